//! The rendezvous: processes of one user on one host (DESIGN decision 6). Each process listens under the name of its
//! slot, which is the upper part of its QP numbers. An initiator connects there, and gets the owner's arena and the
//! descriptor that wakes the owner. The connection stays open: its end shows either side the other's death.
//!
//! Nothing here is on the data path. Threads of the program only start things; the progress thread handles the answers.

mod groups;
mod incoming;
mod kind;
mod network;
mod outgoing;
mod restored;
mod suspense;

use groups::Groups;
use incoming::Incoming;
use network::Watch;
use outgoing::Outgoing;
use rustix::event::epoll;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::SocketType;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};
use suspense::Suspense;
use vervain_hca::arena::layout::{SLOTS, SLOTS_PER_PROCESS};
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::process::imports::Wanted;
use vervain_hca::process::lanes::{LaneReply, LaneRequest};
use vervain_hca::process::peer::PeerProcess;
use vervain_hca::process::rendezvous::{Acquaintance, Credentials, Member, Peer, Rendezvous};
use vervain_hca::process::{self, Process, keep_from_children};
use vervain_hca::{Error, Gid, Result, now_ns};
use vervain_sockets::os_error;
use vervain_sockets::socket::{Message, Socket};
use vervain_sockets::user::User;

/// Source of an epoll event.
#[derive(Clone, Copy)]
enum Token {
    Listener(u32),
    Outgoing(u32),
    Incoming(u32),
    Network,
    Opening,
}

impl Token {
    fn data(self) -> epoll::EventData {
        let (tag, n) = match self {
            Token::Listener(n) => (0u64, n),
            Token::Outgoing(n) => (1, n),
            Token::Incoming(n) => (2, n),
            Token::Network => (3, 0),
            Token::Opening => (4, 0),
        };
        epoll::EventData::new_u64(tag << 32 | u64::from(n))
    }

    fn of(data: epoll::EventData) -> Token {
        let word = data.u64();
        match word >> 32 {
            0 => Token::Listener(word as u32),
            1 => Token::Outgoing(word as u32),
            2 => Token::Incoming(word as u32),
            3 => Token::Network,
            _ => Token::Opening,
        }
    }
}

/// This process's identity towards its peers.
pub(crate) struct Identity {
    pub arena: OwnedFd,
    pub wake: OwnedFd,
    pub incarnation: [u64; 2],
    /// Secret by which a restored process proves to peers that it takes a saved one's place, and its digest, which
    /// peers know.
    secret: [u64; 4],
    proof: [u64; 2],
    pub user: Arc<User>,
    /// Slots held so far.
    pub slots: OwnerLock<Vec<u32>>,
}

impl Identity {
    /// The greeting, also sent when slots are added.
    fn message(&self, kind: u32) -> Message {
        let mut args = [0u32; 5];
        args[0] = vervain_hca::arena::layout::VERSION;
        for (to, slot) in args[1..].iter_mut().zip(self.slots.lock().iter()) {
            *to = *slot;
        }
        let ([a, b], [c, d]) = (self.incarnation, self.proof);
        Message::new(kind, &args, &[a, b, c, d])
    }

    /// The pid of the process at the other end, if it is this user's: others may not connect (DESIGN decision 7). It is
    /// 0 if our pid namespace does not show it.
    fn trust(&self, socket: &Socket) -> Option<i32> {
        socket.peer().filter(|peer| self.user.is_of(*peer)).map(|(pid, _)| pid)
    }

    /// The name of a slot's listener.
    fn name(&self, slot: u32) -> String {
        vervain_names::slot(self.user.uid, slot)
    }
}

/// The slots in a greeting.
fn slots_in(message: &Message) -> Vec<u32> {
    message.args[1..=SLOTS_PER_PROCESS].iter().copied().filter(|s| *s != 0).collect()
}

/// The digest of the secret of a greeting's sender.
fn proof_in(message: &Message) -> [u64; 2] {
    [message.wide[2], message.wide[3]]
}

/// The link to the processes of this host.
pub struct Local {
    epoll: OwnedFd,
    identity: Identity,
    listeners: OwnerLock<Vec<(u32, Socket)>>,
    /// Divisor and remainder of the slots that it wants.
    wanted: (u32, u32),
    outgoing: Outgoing,
    incoming: Incoming,
    groups: Groups,
    suspense: Suspense,
    /// Names of processes that are waited for, each with the time at which that ends.
    kept: OwnerLock<Vec<(u32, Socket, u64)>>,
    /// Number of the save announced last; 0: it is over.
    save: AtomicU64,
    /// Seconds for which peers wait for this process if it ends after that save.
    suspense_s: AtomicU32,
    /// The saved processes whose places this one takes: their slots, and its credentials for each.
    pasts: OwnerLock<Vec<(Vec<u32>, Credentials)>>,
    /// None if the system refuses it: ports then stay as they were at the start.
    network: Option<Watch>,
    /// Closed for a moment when the process has no other descriptor free.
    spare: OwnerLock<Option<OwnedFd>>,
}

impl Local {
    /// The link of a process that has no slot yet. `wanted` is a divisor and a remainder: it wants slots whose number
    /// leaves that remainder.
    pub fn new(init: &process::Identity, user: Arc<User>, wanted: (u32, u32)) -> Result<Local> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| os_error("epoll", e))?;
        let duplicate = |fd: RawFd| -> Result<OwnedFd> {
            // SAFETY: the descriptor belongs to the process that is being made, and stays open during this call.
            let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
            rustix::io::fcntl_dupfd_cloexec(borrowed, 0).map_err(|e| os_error("duplicating a descriptor", e))
        };
        let (arena, wake) = (duplicate(init.arena_fd)?, duplicate(init.wake_fd)?);
        let spare = OwnerLock::new(rustix::io::fcntl_dupfd_cloexec(&epoll, 0).ok());
        for fd in [&epoll, &arena, &wake] {
            keep_from_children(fd.as_raw_fd());
        }
        let network = Watch::open().inspect_err(|e| log::info!("changes of the network are not seen: {e}")).ok();
        if let Some(watch) = &network {
            let events = epoll::EventFlags::IN;
            epoll::add(&epoll, watch, Token::Network.data(), events).map_err(|e| os_error("epoll", e))?;
            keep_from_children(watch.as_fd().as_raw_fd());
        }
        if let Some(opening) = user.opening() {
            let events = epoll::EventFlags::IN;
            epoll::add(&epoll, opening, Token::Opening.data(), events).map_err(|e| os_error("epoll", e))?;
        }
        let (incarnation, slots) = (init.incarnation, OwnerLock::default());
        let mut secret = [0; 4];
        secret.iter_mut().try_for_each(|word| random_word().map(|random| *word = random))?;
        let proof = suspense::proof_of(&secret);
        let identity = Identity { arena, wake, incarnation, secret, proof, user, slots };
        Ok(Local {
            epoll,
            identity,
            listeners: OwnerLock::default(),
            wanted,
            outgoing: Outgoing::default(),
            incoming: Incoming::default(),
            groups: Groups::default(),
            suspense: Suspense::default(),
            kept: OwnerLock::default(),
            save: AtomicU64::new(0),
            suspense_s: AtomicU32::new(0),
            pasts: OwnerLock::default(),
            network,
            spare,
        })
    }

    fn watch(&self, fd: impl AsFd, token: Token) -> std::result::Result<(), Errno> {
        epoll::add(&self.epoll, fd, token.data(), epoll::EventFlags::IN | epoll::EventFlags::RDHUP)
    }

    fn accept(&self, slot: u32) {
        let (listeners, kept) = (self.listeners.lock(), self.kept.lock());
        let own = listeners.iter().find(|(s, _)| *s == slot).map(|(_, listener)| listener);
        let anothers = kept.iter().find(|(s, ..)| *s == slot).map(|(_, listener, _)| listener);
        let Some(listener) = own.or(anothers) else { return };
        let let_in = |socket: Socket| {
            if self.identity.trust(&socket).is_some() {
                let watch = |socket: &Socket, id| self.watch(socket, Token::Incoming(id)).is_ok();
                self.incoming.add(socket, own.is_none(), watch);
            }
        };
        if let Err(Errno::MFILE | Errno::NFILE) = listener.accept_some(let_in) {
            self.turn_away(listener);
        }
    }

    /// Closes connections of processes that checked which user opened this one.
    fn hang_up(&self) {
        let Some(opening) = self.identity.user.opening() else { return };
        if let Err(Errno::MFILE | Errno::NFILE) = opening.accept_some(drop) {
            self.turn_away(opening);
        }
    }
}

/// A random word from the system.
fn random_word() -> Result<u64> {
    getrandom::u64().map_err(|e| Error::new(libc::EIO, format!("no random numbers: {e}")))
}

impl Local {
    /// Listens under the name of `slot`, which is this process's from then on. Returns false if another process has the
    /// name.
    fn listen(&self, slot: u32) -> Result<bool> {
        match Socket::listen(&self.identity.name(slot)) {
            Ok(listener) => {
                self.watch(&listener, Token::Listener(slot)).map_err(|e| os_error("epoll", e))?;
                self.listeners.lock().push((slot, listener));
                self.identity.slots.lock().push(slot);
                self.outgoing.announce_slots(&self.identity);
                Ok(true)
            }
            Err(Errno::ADDRINUSE) => Ok(false),
            Err(e) => Err(os_error("cannot make the rendezvous socket", e)),
        }
    }

    /// The error for `count` slots that are all taken, perhaps because another user has their names.
    fn no_slot(&self, count: u32) -> Error {
        let uid = self.identity.user.uid;
        let among = match self.wanted.0 {
            1 => String::new(),
            parts => format!(" that a process of its number in the window can have, one in {parts},"),
        };
        let taken = format!("all {count} process slots of this user on this host{among} are taken");
        let holders = vervain_names::holders(SocketType::SEQPACKET, &vervain_names::slots(uid)).unwrap_or_default();
        match vervain_names::others(&holders, uid).first() {
            Some(other) => {
                let (names, remedy) = (other.names, vervain_names::REMEDY);
                let what = format!("{taken}, {names} of their names by another user ({other}): {remedy}");
                Error::new(libc::EADDRINUSE, what)
            }
            None => Error::no_memory(taken),
        }
    }

    /// Turns a peer away at the limit of open files, where its request would keep the listener readable for ever:
    /// closes a descriptor kept for this, accepts and closes the connection, and opens the descriptor again.
    fn turn_away(&self, listener: &Socket) {
        let mut spare = self.spare.lock();
        *spare = None;
        drop(listener.accept());
        *spare = rustix::io::fcntl_dupfd_cloexec(&self.epoll, 0).ok();
        static TOLD: std::sync::Once = std::sync::Once::new();
        TOLD.call_once(|| {
            log::error!("peers are turned away: this process is at its limit of open files (vervain doctor)");
        });
    }
}

impl Rendezvous for Local {
    fn claim_slot(&self) -> Result<u32> {
        // 0 and the last number are no slots. The start is random, so that numbers of an ended process come back late.
        let count = SLOTS - 2;
        let first = self.identity.incarnation[0] as u32 % count;
        for i in 0..count {
            let slot = 1 + (first + i) % count;
            let (divisor, remainder) = self.wanted;
            if slot % divisor != remainder {
                continue;
            }
            if self.listen(slot)? {
                return Ok(slot);
            }
        }
        Err(self.no_slot(count))
    }

    fn give_slot_back(&self, slot: u32) {
        self.listeners.lock().retain(|(listened, _)| *listened != slot);
        self.identity.slots.lock().retain(|had| *had != slot);
        self.outgoing.announce_slots(&self.identity);
    }

    fn claim_slot_again(&self, slot: u32, slots: &[u32], of: &Credentials) -> Result<()> {
        self.claim_from_peers(slot, slots, of)
    }

    fn acquaintances(&self) -> Vec<Acquaintance> {
        self.known()
    }

    fn tell_saved(&self, suspense: u32) -> Result<Credentials> {
        self.tell_of_save(suspense)
    }

    fn tell_save_is_over(&self) {
        self.tell_of_the_end_of_a_save();
    }

    fn may_be_restored(&self, slot: u32, incarnation: [u64; 2]) -> bool {
        incarnation != self.identity.incarnation && self.suspense.waits_for(slot, incarnation, now_ns())
    }

    fn take_the_place(
        &self,
        process: &'static Process,
        slots: &[u32],
        of: &Credentials,
        known: &[Acquaintance],
    ) -> Result<()> {
        self.introduce(process, slots, of, known)
    }

    fn events_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    fn handle_events(&self, process: &'static Process) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        // One batch a call: the progress thread has other work, and comes back.
        let n = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&now));
        if n.map_or(true, |n| n == 0) {
            if self.outgoing.has_ended() {
                self.outgoing.sweep();
            }
            process.tidy_imports();
            return;
        }
        for event in &events {
            match Token::of(event.data) {
                Token::Listener(slot) => self.accept(slot),
                Token::Outgoing(slot) => self.outgoing.handle(slot, self),
                Token::Incoming(id) => self.incoming.handle(id, process, self),
                Token::Network => self.network.iter().for_each(Watch::handle),
                Token::Opening => self.hang_up(),
            }
        }
        self.outgoing.sweep();
        self.let_names_go();
        process.tidy_imports();
        process.progress.hurry_if_pending();
    }

    fn peer(&self, process: &'static Process, slot: u32) -> Peer {
        let watch = |socket: &Socket| self.watch(socket, Token::Outgoing(slot)).is_ok();
        let waits = || self.suspense.waits_for_any(slot, now_ns());
        let asks = || !self.keeps_name(slot) && self.suspense.may_ask(slot, now_ns());
        let peer = self.outgoing.peer(slot, &self.identity, watch, waits, asks);
        if self.outgoing.has_ended() {
            // The progress thread unmaps the ended process's memory.
            process.wake_progress();
        }
        peer
    }

    fn is_slow(&self, slot: u32) -> bool {
        self.outgoing.is_slow(slot, now_ns())
    }

    fn initiator_lives(&self, slot: u32) -> bool {
        self.incoming.has(slot)
    }

    fn lane(&self, slot: u32, request: LaneRequest) -> LaneReply {
        self.outgoing.lane(slot, request)
    }

    fn forget_lane(&self, request: &LaneRequest) {
        self.outgoing.forget_lane(request);
    }

    fn forget_lanes(&self, initiator: u32) {
        self.outgoing.forget_lanes(initiator);
    }

    fn ask_channel(&self, slot: u32, channel: u32) -> bool {
        self.outgoing.send(slot, &Message::new(kind::CHANNEL, &[channel], &[]))
    }

    fn channel_gone(&self, channel: u32) {
        self.incoming.tell_all(&Message::new(kind::CHANNEL_GONE, &[channel], &[]));
    }

    fn tell_go(&self) {
        self.incoming.tell_all(&Message::new(kind::GO, &[], &[]));
    }

    fn ask_for_object(&self, space: &PeerProcess, wanted: &Wanted) -> bool {
        self.outgoing.object(space, wanted)
    }

    fn object_withdrawn(&self, number: u32, generation: u32) {
        self.incoming.withdraw(number, generation);
    }

    fn join(&self, process: &'static Process, group: &Gid, qpn: u32) -> Result<()> {
        self.groups.add(group, qpn);
        let message = Message::new(kind::JOIN, &[qpn], &groups::words(group));
        self.groups.tell_all(self, process, message);
        Ok(())
    }

    fn leave(&self, process: &'static Process, group: &Gid, qpn: u32) {
        self.groups.remove(group, qpn);
        let message = Message::new(kind::LEAVE, &[qpn], &groups::words(group));
        self.groups.tell_all(self, process, message);
    }

    fn members(&self, process: &'static Process, group: &Gid) -> Vec<Member> {
        self.groups.learn_once(self, process);
        self.groups.members(group)
    }
}
