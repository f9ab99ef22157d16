//! Parking: the process stands still for a supervisor that has an image made of it by the operating system, or lets
//! others have its CPUs. It is stopped as by [`Process::stop_all`], and gives up what such an image cannot have. The
//! program may be stopped by itself meanwhile, and go on: it notices only that it stands still for longer.

use crate::device::gids;
use crate::error::{Error, Result};
use crate::host::address_map;
use crate::host::lock::OwnerLock;
use crate::process::Process;
use crate::process::poller::EventHandler;
use crate::process::switches::{OF_PROCESS, PATIENCE_NS};
use std::net::IpAddr;
use vervain_config::ADOPT;

/// The stage of parking of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Going,
    Stopped,
    Left,
}

/// How a supervisor has a process stand still, which all methods are given.
#[derive(Default)]
pub struct Parking(OwnerLock<Parked>);

#[derive(Default)]
struct Parked {
    stage: Stage,
    /// The program has stopped the process too, and has it go on itself.
    by_program: bool,
}

impl Parking {
    /// Stops the process, unless it is. ETIMEDOUT if somebody keeps it from that.
    pub fn park(&self, process: &Process) -> Result<()> {
        let mut parked = self.0.lock();
        if parked.stage == Stage::Going {
            parked.by_program = match process.stop(OF_PROCESS, PATIENCE_NS) {
                Err(error) if error.errno() == libc::EALREADY => true,
                stopped => stopped.map(|()| false)?,
            };
            parked.stage = Stage::Stopped;
        }
        Ok(())
    }

    /// Gives up what no image has; the process is parked. EOPNOTSUPP for what it cannot.
    pub fn leave(&self, process: &Process) -> Result<()> {
        let mut parked = self.0.lock();
        match parked.stage {
            Stage::Going => return Err(not_parked()),
            Stage::Stopped => {}
            Stage::Left => return Ok(()),
        }
        if process.adopting.is_some() {
            return Err(Error::unsupported(format!("memory that is adopted ({}=on) has no image", ADOPT.name())));
        }
        address_map::leave(gids::own_addresses());
        let left = process.packets.handlers().try_for_each(EventHandler::leave);
        if left.is_err() {
            rejoin_handlers(process)?;
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
    pub fn rejoin(&self, process: &Process, moved: &[(IpAddr, IpAddr)], look_again: impl Fn()) -> Result<()> {
        let mut parked = self.0.lock();
        match parked.stage {
            Stage::Going => return Err(not_parked()),
            Stage::Stopped => return Ok(()),
            Stage::Left => {}
        }
        address_map::change(moved);
        rejoin_handlers(process)?;
        address_map::come_back();
        look_again();
        crate::device::port_counters::rejoin();
        parked.stage = Stage::Stopped;
        Ok(())
    }

    /// Has the process go on, unless it does, or its program has stopped it.
    pub fn unpark(&self, process: &Process) -> Result<()> {
        let mut parked = self.0.lock();
        match parked.stage {
            Stage::Going => return Ok(()),
            Stage::Stopped => {}
            Stage::Left => return Err(Error::busy("it has not got back what it had given up")),
        }
        if !parked.by_program {
            process.go(OF_PROCESS)?;
        }
        parked.stage = Stage::Going;
        Ok(())
    }

    /// The program stops the process.
    pub(super) fn stop(&self, process: &Process, patience: u64) -> Result<()> {
        let mut parked = self.0.lock();
        if parked.stage == Stage::Going || parked.by_program {
            return process.stop(OF_PROCESS, patience);
        }
        parked.by_program = true;
        Ok(())
    }

    /// The program has the process go on: when it is not parked any more.
    pub(super) fn go(&self, process: &Process) -> Result<()> {
        let mut parked = self.0.lock();
        if parked.stage == Stage::Going {
            return process.go(OF_PROCESS);
        }
        if !std::mem::take(&mut parked.by_program) {
            return Err(Error::new(libc::EALREADY, "the process is not stopped"));
        }
        Ok(())
    }
}

fn rejoin_handlers(process: &Process) -> Result<()> {
    process.packets.handlers().try_for_each(EventHandler::rejoin)
}

fn not_parked() -> Error {
    Error::invalid("the process is not parked")
}
