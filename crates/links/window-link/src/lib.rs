//! The carrier through a window (`VERVAIN_WINDOW`): memory of nodes that may share no kernel, where a process puts and
//! never reads. The protocol is that of `vervain-transport`; its packets go into the rings of pairs
//! ([`vervain_window::pairs`]), which lose nothing. The packets that come are handled by a thread that polls, by the
//! watch, which peers of this kernel wake, or by the progress thread, which looks more and more rarely while nothing
//! comes.
//!
//! `engine::Engine` has a part for each concern: `pairs` (their begin and end), `connections`, `grants` (memory of
//! either side into which the other puts), `datagrams` (UD and multicast), `mads` (QP 1), `receive` with `deferred`,
//! and `watch`. A connection (`connection`) sends its packets by `slot_out`, and its direct puts by `direct`.

mod address;
mod connection;
mod connections;
mod datagrams;
mod deferred;
mod direct;
mod engine;
mod grantees;
mod grants;
mod landing;
mod mads;
mod no_receive;
mod pace;
mod pair;
mod pairs;
mod path_psns;
mod payload;
mod peer_qp;
mod program;
mod put_psns;
mod reads;
mod receive;
mod route;
mod slot_out;
mod uc_patience;
mod watch;
mod writes;

use engine::Engine;
use program::OwnProgram;
use std::sync::Arc;
use vervain_config::{Config, WINDOW, WindowSpec};
use vervain_hca::device::Device;
use vervain_hca::host::cancel::nap;
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::process::Process;
use vervain_hca::process::poller::{EventHandler, Poller};
use vervain_hca::qp::carrier::{self, Carrier, Datagram, Mad, ServiceClaim};
use vervain_hca::{AhAttr, Error, Gid, Qp, QpAttr, Result};
use vervain_qp1::Gsi;
use vervain_window::pairs::slot::Kind;
use vervain_window::{Options, PROCESSES, PutDevice};
use watch::Looker;

/// The window of the calling process, opened at the first call; None: the environment names none, or nothing uses it.
///
/// # Errors
/// The window cannot be opened; the error is a sentence.
pub fn of_process() -> Result<Option<Arc<dyn PutDevice>>> {
    static OPENED: OwnerLock<Option<Opened>> = OwnerLock::new(None);
    let pid = std::process::id();
    let mut opened = OPENED.lock();
    if let Some(opened) = opened.as_ref().filter(|opened| opened.pid == pid) {
        return opened.device.clone();
    }
    let device = Config::of_process()?.window_in_use().map(self::open).transpose();
    // The parent's window is not mapped in a forked child, where its addresses may be something else's.
    std::mem::forget(opened.replace(Opened { pid, device: device.clone() }));
    device
}

/// A window, and the process that has opened it.
struct Opened {
    pid: u32,
    device: Result<Option<Arc<dyn PutDevice>>>,
}

fn open(spec: &WindowSpec) -> Result<Arc<dyn PutDevice>> {
    vervain_window::open(&spec.path, &Options::of(spec))
        .map_err(|e| Error::new(e.errno(), format!("{}: {e}", WINDOW.name())))
}

/// The GID of this node in the window of this process; None: it has no window.
///
/// # Errors
/// Those of [`of_process`].
pub fn gid() -> Result<Option<Gid>> {
    Ok(of_process()?.map(|device| device.facts().gid(device.facts().node)))
}

/// The carrier, with what is polled for it.
pub struct Window(Arc<Engine>);

impl Window {
    /// Makes it for the calling process, which gets a number among those of its node.
    pub fn new(device: Arc<dyn PutDevice>, gsi: Arc<Gsi>) -> Result<Window> {
        device.set_program(Box::new(OwnProgram));
        let failed = |e: vervain_window::Error| Error::new(e.errno(), format!("{}: {e}", WINDOW.name()));
        // A number stands for a part of the host's QP numbers, which all of its windows share.
        let mut first = [0; 4];
        getrandom::fill(&mut first).map_err(|e| Error::new(libc::EIO, format!("no random number can be had: {e}")))?;
        let process = Arc::new(device.claims().process_from(u32::from_ne_bytes(first)).map_err(failed)?);
        let is_wanted = Config::of_process()?.window.as_ref().is_none_or(|window| window.direct);
        let direct = is_wanted && device.facts().coherent;
        Ok(Window(Arc::new(Engine::new(device, process, direct, gsi))))
    }

    /// Divisor and remainder of this process's slots: number of processes of a node, and number of this one. So a QP
    /// number shows its process.
    pub fn slots(&self) -> (u32, u32) {
        (PROCESSES, self.0.pairs.me().process)
    }
}

impl Clone for Window {
    fn clone(&self) -> Self {
        Window(Arc::clone(&self.0))
    }
}

impl Carrier for Window {
    fn carries(&self, device: &Device, ah: &AhAttr) -> bool {
        let facts = self.0.pairs.facts();
        address::is_group(facts, device, ah) || address::destination(facts, device, ah).is_some()
    }

    fn reaches_this_host(&self) -> bool {
        true
    }

    fn connect(&self, qp: &Arc<Qp>, attr: &QpAttr) -> Result<Arc<dyn carrier::Connection>> {
        let engine = &self.0;
        let node = address::destination(engine.pairs.facts(), qp.device(), &attr.ah)
            .ok_or_else(|| Error::new(libc::ENETUNREACH, "the address is none of the window's nodes"))?;
        Ok(engine.connect(qp, attr, node)?)
    }

    fn register_qp(&self, qp: &Arc<Qp>) -> Result<()> {
        self.0.datagrams.listeners.register_qp(qp);
        Ok(())
    }

    fn let_arrive(&self, process: &'static Process, qpn: u32) {
        if let Some(connection) = self.0.connections.by_qp.get(qpn) {
            self.0.let_message_arrive(process, &connection);
        }
    }

    fn unregister_qp(&self, qpn: u32) {
        self.0.datagrams.listeners.unregister_qp(qpn);
        let Some(connection) = self.0.connections.by_qp.remove(qpn) else { return };
        connection.close();
        // What it has acknowledged its peer learns: nothing more may be sent there that would take it along.
        connection.path.peer.pair().iter().for_each(|pair| pair.flush());
    }

    fn send_datagram(&self, qp: &Qp, datagram: &Datagram<'_>) -> Option<u64> {
        self.0.datagrams.send(&self.0.pairs, qp, datagram)
    }

    fn send_mad(&self, process: &'static Process, device: u32, ah: &AhAttr, mad: &Mad) -> Result<()> {
        self.0.mads.send(&self.0.pairs, process, device, ah, mad)
    }

    fn serve(&self, process: &'static Process, _slot: u32, _services: &[ServiceClaim]) -> Result<()> {
        // The process that gets a MAD hands it on to the one that it is for.
        process.expect_packets();
        Ok(())
    }

    fn join(&self, group: &Gid, qp: &Qp) -> Result<()> {
        if !self.0.datagrams.listeners.groups.join(*group, qp.qp_num()) {
            return Ok(());
        }
        self.0.receiving.lock().tell(Kind::Join, *group);
        self.0.pairs.request_all();
        qp.process().expect_packets();
        // A sender that learns afterwards of this member finds it there.
        nap(datagrams::JOIN);
        Ok(())
    }

    fn leave(&self, group: &Gid, qpn: u32) {
        if self.0.datagrams.listeners.groups.leave(*group, qpn) {
            self.0.receiving.lock().tell(Kind::Leave, *group);
        }
    }
}

impl EventHandler for Window {
    fn leave(&self) -> Result<()> {
        // Its number is a lock on the window, and what others put there comes while it stands still.
        Err(Error::unsupported("a process that has a window cannot be parked for a checkpoint"))
    }
}

impl Poller for Window {
    fn poll(&self, process: &'static Process) -> bool {
        self.0.look(process)
    }

    fn attend(&self, process: &'static Process) -> (bool, Option<u64>) {
        (false, Some(self.0.attend(process)))
    }

    fn shutdown(&self) -> bool {
        self.0.is_all_said()
    }
}
