//! Parking: the process stands still for a supervisor that has an image made of it by the operating system, or lets
//! others have its CPUs. It is stopped as by [`Process::stop_all`], and gives up what such an image cannot have. The
//! program may be stopped by itself meanwhile, and go on: it notices only that it stands still for longer.

use crate::device::gids;
use crate::error::{Error, Result};
use crate::host::address_map;
use crate::process::Process;
use crate::process::poller::EventHandler;
use crate::process::standing::PATIENCE_NS;
use crate::process::switches::{OF_PROCESS, Stage};
use std::net::IpAddr;
use vervain_config::ADOPT;

impl Process {
    /// Stops the process, unless it is. ETIMEDOUT if somebody keeps it from that.
    pub fn park(&self) -> Result<()> {
        let mut parked = self.parked.lock();
        if parked.stage == Stage::Going {
            parked.by_program = match self.stop(OF_PROCESS, PATIENCE_NS) {
                Err(error) if error.errno() == libc::EALREADY => true,
                stopped => stopped.map(|()| false)?,
            };
            parked.stage = Stage::Stopped;
        }
        Ok(())
    }

    /// Gives up what no image has; the process is parked. EOPNOTSUPP for what it cannot.
    pub fn leave(&self) -> Result<()> {
        let mut parked = self.parked.lock();
        match parked.stage {
            Stage::Going => return Err(not_parked()),
            Stage::Stopped => {}
            Stage::Left => return Ok(()),
        }
        if self.adopting.is_some() {
            return Err(Error::unsupported(format!("memory that is adopted ({}=on) has no image", ADOPT.name())));
        }
        address_map::leave(gids::own_addresses());
        let left = self.handlers().try_for_each(EventHandler::leave);
        if left.is_err() {
            self.rejoin_handlers()?;
            address_map::come_back();
            return left;
        }
        crate::device::port_counters::leave();
        parked.stage = Stage::Left;
        Ok(())
    }

    /// Has again what was given up. `moved` are addresses that have become others since, both of one family, as they
    /// were then or as the program knows them; `look_again` has the devices look at the network, which may be another.
    /// It may be called again after an error, with other addresses too. EADDRNOTAVAIL if an address that the process
    /// sends or receives by is not there.
    pub fn rejoin(&self, moved: &[(IpAddr, IpAddr)], look_again: impl Fn()) -> Result<()> {
        let mut parked = self.parked.lock();
        match parked.stage {
            Stage::Going => return Err(not_parked()),
            Stage::Stopped => return Ok(()),
            Stage::Left => {}
        }
        address_map::change(moved);
        self.rejoin_handlers()?;
        address_map::come_back();
        look_again();
        crate::device::port_counters::rejoin();
        parked.stage = Stage::Stopped;
        Ok(())
    }

    /// Has the process go on, unless it does, or its program has stopped it.
    pub fn unpark(&self) -> Result<()> {
        let mut parked = self.parked.lock();
        match parked.stage {
            Stage::Going => return Ok(()),
            Stage::Stopped => {}
            Stage::Left => return Err(Error::busy("it has not got back what it had given up")),
        }
        if !parked.by_program {
            self.go(OF_PROCESS)?;
        }
        parked.stage = Stage::Going;
        Ok(())
    }

    fn rejoin_handlers(&self) -> Result<()> {
        self.handlers().try_for_each(EventHandler::rejoin)
    }

    /// The program stops the process.
    pub(crate) fn stop_unless_parked(&self, patience: u64) -> Result<()> {
        let mut parked = self.parked.lock();
        if parked.stage == Stage::Going || parked.by_program {
            return self.stop(OF_PROCESS, patience);
        }
        parked.by_program = true;
        Ok(())
    }

    /// The program has the process go on: when it is not parked any more.
    pub(crate) fn go_unless_parked(&self) -> Result<()> {
        let mut parked = self.parked.lock();
        if parked.stage == Stage::Going {
            return self.go(OF_PROCESS);
        }
        if !std::mem::take(&mut parked.by_program) {
            return Err(Error::new(libc::EALREADY, "the process is not stopped"));
        }
        Ok(())
    }
}

fn not_parked() -> Error {
    Error::invalid("the process is not parked")
}
