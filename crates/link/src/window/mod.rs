//! The carrier through a window (`VERVAIN_WINDOW`): memory of nodes that may share no kernel, where a process puts and never reads. The
//! protocol is that of `vervain-transport`; its packets go into the rings of pairs ([`vervain_window::pairs`]), which lose nothing. What
//! comes is taken by whoever polls, by the watch, whom peers of this kernel wake, or by the progress thread, which looks ever more
//! seldom while nothing comes.

mod address;
mod connection;
mod connections;
mod datagrams;
mod direct;
mod grantees;
mod grants;
mod landing;
mod management;
mod no_receive;
mod numbers;
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
mod slot_out;
mod uc_patience;
mod watch;
mod writes;

use crate::gsi::Gsi;
use connection::Connection;
use connections::Connections;
use datagrams::Datagrams;
use grants::Grants;
use pace::{FIRST_LOOK_NS, LAST_LOOK_NS, NEVER, Pace};
use pair::Pair;
use pairs::Pairs;
use program::OwnProgram;
use receive::Receiving;
use std::collections::{HashMap, HashSet};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use vervain_config::{Config, WINDOW, WindowSpec};
use vervain_hca::device::Device;
use vervain_hca::host::cancel::nap;
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::host::spin_budget::Patience;
use vervain_hca::process::Process;
use vervain_hca::process::poller::{EventHandler, Poller};
use vervain_hca::qp::carrier::{self, Carrier, Datagram, Mad, ServiceClaim};
use vervain_hca::{AhAttr, Error, Gid, Qp, QpAttr, Result, now_ns};
use vervain_window::pairs::pulse::BEAT_NS;
use vervain_window::pairs::rendezvous::PeerId;
use vervain_window::pairs::slot::Kind;
use vervain_window::{Facts, Options, PROCESSES, PutDevice, Region};
use watch::Watch;

/// Looks of the progress thread that find something, before it sees to other things.
const ROUNDS: usize = 64;
/// How long one that joins a group waits until those that are there can know.
const JOIN: Duration = Duration::from_millis(50);

/// The window of the calling process, opened at the first call; None where the environment names none, or nothing goes that way.
///
/// # Errors
/// What is wrong with it, in a sentence.
pub fn of_process() -> Result<Option<Arc<dyn PutDevice>>> {
    static OPENED: OwnerLock<Option<Opened>> = OwnerLock::new(None);
    let pid = std::process::id();
    let mut opened = OPENED.lock();
    if let Some(opened) = opened.as_ref().filter(|opened| opened.pid == pid) {
        return opened.device.clone();
    }
    let device = Config::of_process()?.window_in_use().map(self::open).transpose();
    // What was the parent's is not mapped in a forked child, where its addresses may have become something else's.
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

/// The GID of this node in the window of this process, if there is one.
///
/// # Errors
/// As [`of_process`].
pub fn gid() -> Result<Option<Gid>> {
    Ok(of_process()?.map(|device| device.facts().gid(device.facts().node)))
}

/// The carrier, with what is polled for it.
pub struct Window(Arc<Engine>);

/// What a process has of a window.
struct Engine {
    pairs: Arc<Pairs>,
    /// The memory of this process in the window.
    region: Region,
    connections: Arc<Connections>,
    grants: Arc<Grants>,
    datagrams: Datagrams,
    /// Who takes what is for QP 1, and what goes out from there.
    gsi: Arc<Gsi>,
    mads: management::Outgoing,
    /// Which peers are in which group.
    groups: OwnerLock<HashMap<Gid, HashSet<PeerId>>>,
    receiving: OwnerLock<Receiving>,
    /// When the progress thread comes by.
    next_look: Arc<AtomicU64>,
    pace: OwnerLock<Pace>,
    next_beat: AtomicU64,
    /// How long the progress thread looks out for more after something came, and when it looked last.
    patience: OwnerLock<(Patience, u64)>,
    watch: Watch,
}

impl Window {
    /// Makes it for the calling process, which gets a number among those of its node.
    pub(crate) fn new(device: Arc<dyn PutDevice>, gsi: Arc<Gsi>) -> Result<Window> {
        device.set_program(Box::new(OwnProgram));
        let failed = |e: vervain_window::Error| Error::new(e.errno(), format!("{}: {e}", WINDOW.name()));
        // A number stands for a part of the host's QP numbers, which all of its windows share.
        let mut first = [0; 4];
        getrandom::fill(&mut first).map_err(|e| Error::new(libc::EIO, format!("no random number can be had: {e}")))?;
        let process = Arc::new(device.claims().process_from(u32::from_ne_bytes(first)).map_err(failed)?);
        let is_wanted = Config::of_process()?.window.as_ref().is_none_or(|window| window.direct);
        let direct = is_wanted && device.facts().coherent;
        let region = device.own().clone();
        let pairs = Arc::new(Pairs::new(device, process));
        let connections = Arc::<Connections>::default();
        let engine = Arc::new(Engine {
            region,
            grants: Grants::new(direct, Arc::clone(&pairs), Arc::clone(&connections)),
            pairs,
            connections,
            datagrams: Datagrams::default(),
            gsi,
            mads: management::Outgoing::default(),
            groups: OwnerLock::default(),
            receiving: OwnerLock::default(),
            next_look: Arc::default(),
            pace: OwnerLock::default(),
            next_beat: AtomicU64::new(0),
            patience: OwnerLock::new((Patience::for_puts(), 0)),
            watch: Watch::default(),
        });
        Ok(Window(engine))
    }

    /// Slots of this process have this remainder when divided by the number of processes of a node, so that a QP number says
    /// whose it is.
    pub fn slots(&self) -> (u32, u32) {
        (PROCESSES, self.0.pairs.me().process)
    }
}

impl Clone for Window {
    fn clone(&self) -> Self {
        Window(Arc::clone(&self.0))
    }
}

impl Engine {
    fn facts(&self) -> &Facts {
        self.pairs.facts()
    }

    fn next_look(&self) -> u64 {
        self.next_look.load(Ordering::SeqCst)
    }

    /// There is no pair with a process any more. Connections that have not used it, and so may mean the next process of that number,
    /// need another.
    fn request_again(&self, peer: PeerId) {
        if self.connections.with(peer).iter().any(|connection| connection.peer().used_pair().is_none()) {
            self.pairs.request(peer);
        }
    }

    /// A pair is over: its peer is in no group any more.
    fn end_pair(&self, pair: &Arc<Pair>) {
        self.pairs.end(pair);
        self.groups.lock().values_mut().for_each(|members| {
            members.remove(&pair.peer);
        });
    }

    /// A peer has joined a group, or left it.
    fn enter(&self, peer: PeerId, group: Gid, joins: bool) {
        let mut groups = self.groups.lock();
        if joins {
            groups.entry(group).or_default().insert(peer);
        } else if let Some(members) = groups.get_mut(&group) {
            members.remove(&peer);
        }
    }

    /// Pairs with the processes that are in a group.
    fn members(&self, group: &Gid) -> Vec<Arc<Pair>> {
        let members = self.groups.lock().get(group).cloned().unwrap_or_default();
        members.into_iter().filter_map(|peer| self.pairs.get(peer)).collect()
    }

    /// The progress thread's look: where something has come, more may follow at once. The thread does not yield meanwhile: a
    /// program that spins on the same CPU would have it for a whole slice, milliseconds, while a timer's wake-up preempts that program.
    fn look_out(&self, process: &'static Process) -> bool {
        let mut patience = self.patience.lock();
        let (patience, last) = &mut *patience;
        let found = self.look(process);
        if found {
            patience.slept(now_ns() - *last);
            for _ in 0..ROUNDS {
                if !patience.look_out(|| self.look(process)) {
                    break;
                }
            }
        }
        *last = now_ns();
        found
    }

    /// What is due by the clock: states told again, signs of life, timers. When the next thing is.
    fn keep_time(&self, now: u64) -> u64 {
        if now >= self.next_beat.load(Ordering::Relaxed) {
            self.next_beat.store(now + BEAT_NS, Ordering::Relaxed);
            self.pairs.beat();
        }
        let mut next = self.pairs.tell_again(now).unwrap_or(NEVER);
        for connection in self.connections.all() {
            if connection.deadline() <= now
                && let Some(qp) = connection.qp().upgrade()
            {
                connection.timeout(&qp, now);
            }
            next = next.min(connection.deadline());
        }
        let mads = self.push_waiting_mads(now).unwrap_or(NEVER);
        next.min(mads).min(self.next_beat.load(Ordering::Relaxed))
    }
}

impl Carrier for Window {
    fn carries(&self, device: &Device, ah: &AhAttr) -> bool {
        let facts = self.0.facts();
        address::is_group(facts, device, ah) || address::destination(facts, device, ah).is_some()
    }

    fn reaches_this_host(&self) -> bool {
        true
    }

    fn connect(&self, qp: &Arc<Qp>, attr: &QpAttr) -> Result<Arc<dyn carrier::Connection>> {
        let engine = &self.0;
        let node = address::destination(engine.facts(), qp.device(), &attr.ah)
            .ok_or_else(|| Error::new(libc::ENETUNREACH, "the address is none of the window's nodes"))?;
        let peer = address::peer(node, attr.dest_qp_num);
        let shared = (&engine.pairs, &engine.grants.grantees, &engine.next_look);
        let connection = Connection::new(shared, qp, attr, peer);
        engine.connections.insert(qp.qp_num(), Arc::clone(&connection));
        if !engine.pairs.request(peer) {
            engine.connections.remove(qp.qp_num());
            return Err(Error::no_memory("the window has no room for another peer: a larger one has"));
        }
        log::info!("QP {:#x} is connected through the window", qp.qp_num());
        engine.pace.lock().hurry();
        qp.process().expect_packets();
        qp.process().wake_for_packets();
        Ok(connection)
    }

    fn register_qp(&self, qp: &Arc<Qp>) -> Result<()> {
        self.0.datagrams.listen(qp);
        qp.process().expect_packets();
        Ok(())
    }

    fn let_arrive(&self, process: &'static Process, qpn: u32) {
        if let Some(connection) = self.0.connections.get(qpn) {
            self.0.let_message_arrive(process, &connection);
        }
    }

    fn unregister_qp(&self, qpn: u32) {
        self.0.datagrams.unregister_qp(qpn);
        let connection = self.0.connections.remove(qpn);
        connection.iter().for_each(|connection| connection.close());
    }

    fn send_datagram(&self, qp: &Qp, datagram: &Datagram<'_>) -> Option<u64> {
        self.0.send_datagram(qp, datagram)
    }

    fn send_mad(&self, process: &'static Process, device: u32, ah: &AhAttr, mad: &Mad) -> Result<()> {
        let device = self.0.gsi.device(device)?;
        self.0.send_mad(process, device, ah, mad)
    }

    fn serve(&self, process: &'static Process, _slot: u32, _services: &[ServiceClaim]) -> Result<()> {
        // Whoever hands a MAD on finds out whom it is for.
        process.expect_packets();
        process.wake_for_packets();
        Ok(())
    }

    fn join(&self, group: &Gid, qp: &Qp) -> Result<()> {
        if !self.0.datagrams.join(group, qp.qp_num()) {
            return Ok(());
        }
        self.0.receiving.lock().tell(Kind::Join, *group);
        self.0.pairs.request_all();
        qp.process().expect_packets();
        qp.process().wake_for_packets();
        // A sender that is told afterwards that this one listens finds that it does.
        nap(JOIN);
        Ok(())
    }

    fn leave(&self, group: &Gid, qpn: u32) {
        if self.0.datagrams.leave(group, qpn) {
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

    fn wait_for(&self, _process: &'static Process, _fd: RawFd) -> Result<()> {
        // The progress thread takes in what comes meanwhile.
        Ok(())
    }

    fn attend(&self, process: &'static Process) -> (bool, Option<u64>) {
        let engine = &self.0;
        engine.set_watch(process);
        let found = engine.look_out(process);
        // Whoever sets a deadline from now on, which may be passed over here, has this thread look again.
        engine.next_look.store(NEVER, Ordering::SeqCst);
        let now = now_ns();
        let again = if process.is_stopped() { LAST_LOOK_NS } else { FIRST_LOOK_NS };
        let due = process.handle_packets(|| engine.keep_time(now)).unwrap_or(now + again);
        let (mut more, mut owes) = (false, false);
        if let Some(mut rx) = engine.receiving.try_lock() {
            let _ = process.handle_packets(|| {
                rx.tell_taken();
                rx.flush();
            });
            (more, owes) = (rx.has_more(), rx.owes());
        }
        let pause = engine.pace.lock().next(now, process.packet_looks(), found || more);
        let is_done = !found && !more && !owes;
        let next = if is_done && engine.is_guarded() { due } else { due.min(now + pause) };
        engine.next_look.store(next, Ordering::SeqCst);
        (false, Some(next))
    }

    fn packet_fd(&self) -> Option<RawFd> {
        None
    }

    fn shutdown(&self) -> bool {
        self.0.is_all_said()
    }
}
