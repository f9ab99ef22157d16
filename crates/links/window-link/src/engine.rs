//! A process's part in a window, and the work of its progress thread: looks, and tasks that are due by the clock.
//! Whichever thread looks handles the messages that have come ([`super::receive`]).

use super::address;
use super::connection::{self, Connection};
use super::connections::Connections;
use super::datagrams::Datagrams;
use super::grants::Grants;
use super::mads::Mads;
use super::pace::{FIRST_LOOK_NS, LAST_LOOK_NS, NEVER, Pace};
use super::pairs::Pairs;
use super::receive::Receiving;
use super::watch::{Looker, Watch};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::host::spin_budget::Patience;
use vervain_hca::process::Process;
use vervain_hca::process::peer::warn_of_settings_for_packets;
use vervain_hca::{Error, Qp, QpAttr, Result, now_ns};
use vervain_qp1::Gsi;
use vervain_window::pairs::heartbeat::BEAT_NS;
use vervain_window::pairs::rendezvous::PeerId;
use vervain_window::{PutDevice, Region};

/// Most looks of the progress thread in a row that find messages, before it does its other work.
const ROUNDS: usize = 64;

/// A process's part in a window, by concern.
pub struct Engine {
    pub pairs: Arc<Pairs>,
    /// The memory of this process in the window.
    pub region: Region,
    pub connections: Arc<Connections>,
    pub grants: Arc<Grants>,
    pub datagrams: Datagrams,
    pub mads: Mads,
    pub receiving: OwnerLock<Receiving>,
    /// Time of the progress thread's next look: CLOCK_MONOTONIC, nanoseconds.
    pub next_look: Arc<AtomicU64>,
    pace: OwnerLock<Pace>,
    /// Time of this process's next heartbeat: CLOCK_MONOTONIC, nanoseconds.
    next_beat: AtomicU64,
    /// Time for which the progress thread looks for more after a message, and the time of its last look.
    patience: OwnerLock<(Patience, u64)>,
    pub watch: Watch,
}

impl Engine {
    /// The engine of a process without pairs. `direct`: true if data may be put directly to its destination.
    pub fn new(
        device: Arc<dyn PutDevice>,
        process: Arc<vervain_window::Process>,
        direct: bool,
        gsi: Arc<Gsi>,
    ) -> Engine {
        let region = device.own().clone();
        let pairs = Arc::new(Pairs::new(device, process));
        let connections = Arc::<Connections>::default();
        Engine {
            region,
            grants: Grants::new(direct, Arc::clone(&pairs), Arc::clone(&connections)),
            pairs,
            connections,
            datagrams: Datagrams::default(),
            mads: Mads::new(gsi),
            receiving: OwnerLock::default(),
            next_look: Arc::default(),
            pace: OwnerLock::default(),
            next_beat: AtomicU64::new(0),
            patience: OwnerLock::new((Patience::for_puts(), 0)),
            watch: Watch::default(),
        }
    }

    /// Connects `qp` with one of `node`.
    pub fn connect(&self, qp: &Arc<Qp>, attr: &QpAttr, node: u32) -> Result<Arc<Connection>> {
        let peer = address::peer(node, attr.dest_qp_num);
        let shared = (&self.pairs, &self.grants.grantees, &self.next_look);
        let connection = connection::connect(shared, qp, attr, peer);
        self.connections.by_qp.insert(qp.qp_num(), Arc::clone(&connection));
        if !self.pairs.request(peer) {
            self.connections.by_qp.remove(qp.qp_num());
            return Err(Error::no_memory("the window has no room for another peer: a larger one has"));
        }
        log::info!("QP {:#x} is connected through the window", qp.qp_num());
        let is_own = node == self.pairs.facts().node;
        warn_of_settings_for_packets(&format!("node {node} is reached through the window"), is_own);
        self.pace.lock().hurry();
        Ok(connection)
    }

    /// A pair with a process is over. Connections that have not used it, and so may mean the next process of that
    /// number, need another.
    pub fn request_again(&self, peer: PeerId) {
        if self.connections.with(peer).iter().any(|connection| connection.path.peer.used_pair().is_none()) {
            self.pairs.request(peer);
        }
    }

    /// The progress thread's look: where something has come, more may follow at once. The thread does not yield
    /// meanwhile: a program that spins on the same CPU would have it for a whole slice, milliseconds, while a timer's
    /// wake-up preempts that program.
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

    /// Does what is due by the clock: states put again, beats, timers, MADs that wait. When the next thing is.
    fn keep_time(&self, now: u64) -> u64 {
        if now >= self.next_beat.load(Ordering::Relaxed) {
            self.next_beat.store(now + BEAT_NS, Ordering::Relaxed);
            self.pairs.beat();
        }
        let mut next = self.pairs.announce_again(now).unwrap_or(NEVER);
        for connection in self.connections.by_qp.all(|_| true) {
            if connection.path.deadline() <= now
                && let Some(qp) = connection.qp().upgrade()
            {
                connection.timeout(&qp, now);
            }
            next = next.min(connection.path.deadline());
        }
        let mads = self.mads.push_waiting(&self.pairs, now).unwrap_or(NEVER);
        next.min(mads).min(self.next_beat.load(Ordering::Relaxed))
    }

    /// The progress thread comes by. When it is to come again.
    pub fn attend(self: &Arc<Self>, process: &'static Process) -> u64 {
        self.watch.start(self, process);
        let found = self.look_out(process);
        // A deadline that is set from now on, which may be passed over here, has this thread look again.
        self.next_look.store(NEVER, Ordering::SeqCst);
        let now = now_ns();
        let again = if process.is_stopped() { LAST_LOOK_NS } else { FIRST_LOOK_NS };
        let due = process.handle_packets(|| self.keep_time(now)).unwrap_or(now + again);
        let (mut more, mut owes) = (false, false);
        if let Some(mut rx) = self.receiving.try_lock() {
            let _ = process.handle_packets(|| {
                rx.tell_taken();
                rx.flush();
            });
            (more, owes) = (rx.has_more(), rx.owes());
        }
        let pause = self.pace.lock().next(now, process.packets.looks(), found || more);
        let is_done = !found && !more && !owes;
        let next = if is_done && self.watch.sees_all(&self.pairs) { due } else { due.min(now + pause) };
        self.next_look.store(next, Ordering::SeqCst);
        next
    }
}
