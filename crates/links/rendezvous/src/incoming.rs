//! Connections from processes that initiate to this one: their greeting, their lanes, and their end.

use super::kind;
use super::restored::save_in;
use super::{Local, proof_in, slots_in};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use vervain_hca::arena::layout::VERSION;
use vervain_hca::context::network_changed;
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::process::Process;
use vervain_hca::process::lanes::LaneRequest;
use vervain_hca::process::peer::{name_of, warn_of_memory};
use vervain_hca::{Error, Result};
use vervain_names::AddressMap;
use vervain_names::parking::{ADDRESS, ANSWER, Step, pair_in};
use vervain_sockets::socket::{Message, Socket};

/// Most addresses that a supervisor may announce as moved; a job has fewer.
const MOST_MOVED: usize = 64 << 10;
/// Bytes of stack of the thread that takes a step of parking.
const PARKING_STACK: usize = 256 << 10;

#[derive(Default)]
pub(super) struct Incoming {
    state: OwnerLock<State>,
}

#[derive(Default)]
struct State {
    next: u32,
    peers: HashMap<u32, Connection>,
}

struct Connection {
    socket: Socket,
    slots: Vec<u32>,
    incarnation: [u64; 2],
    proof: [u64; 2],
    /// True once it has this process's greeting, and its past as far as it matters to peers.
    welcomed: bool,
    /// True if it looked for another process, whose name this one keeps.
    astray: bool,
    /// Numbers of objects that it has requested.
    objects: HashSet<u32>,
    /// Addresses that have changed, old and new, announced by a supervisor before it makes the process rejoin.
    moved: Vec<(IpAddr, IpAddr)>,
}

impl Connection {
    fn new(socket: Socket, astray: bool) -> Connection {
        let (slots, incarnation, proof, objects) = (Vec::new(), [0; 2], [0; 2], HashSet::new());
        let moved = Vec::new();
        Connection { socket, slots, incarnation, proof, welcomed: false, astray, objects, moved }
    }
}

impl Incoming {
    /// Adds a new connection.
    pub(super) fn add(&self, socket: Socket, astray: bool, watch: impl FnOnce(&Socket, u32) -> bool) {
        let mut state = self.state.lock();
        let id = state.next;
        state.next = state.next.wrapping_add(1);
        if watch(&socket, id) {
            state.peers.insert(id, Connection::new(socket, astray));
        }
    }

    /// Returns true if a process with that slot is connected.
    pub(super) fn has(&self, slot: u32) -> bool {
        self.state.lock().peers.values().any(|c| c.slots.contains(&slot) && !c.socket.is_ended())
    }

    /// Handles the messages of connection `id`.
    pub(super) fn handle(&self, id: u32, process: &'static Process, link: &Local) {
        loop {
            // Unlocked during the work, which may ask if an initiator lives.
            let received = match self.state.lock().peers.get(&id) {
                Some(c) => c.socket.receive(),
                None => return,
            };
            match received {
                Ok(Some((message, _fds))) => self.message(id, &message, process, link),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Ok(None) | Err(_) => {
                    self.end(id, process, link);
                    return;
                }
            }
        }
    }

    fn message(&self, id: u32, m: &Message, process: &'static Process, link: &Local) {
        let Local { identity, groups, suspense, .. } = link;
        match m.kind {
            kind::HELLO if m.args[0] != VERSION => {
                log::error!(
                    "a process with another version of Vervain (arena version {}, here {VERSION}) was refused",
                    m.args[0]
                );
                self.reply(id, &Message::new(kind::REFUSED, &[VERSION], &[]), &[]);
            }
            _ if Step::of(m.kind).is_some() => self.park(id, m.kind, process),
            ADDRESS => {
                if let Some(c) = self.state.lock().peers.get_mut(&id).filter(|c| c.moved.len() < MOST_MOVED) {
                    c.moved.push(pair_in(m.wide));
                }
            }
            kind::YIELD => {
                let yields = link.yield_names(m);
                self.reply(id, &Message::new(kind::YIELD_REPLY, &[u32::from(yields)], &[]), &[]);
            }
            // The process that it looks for is not there.
            kind::HELLO if self.state.lock().peers.get(&id).is_some_and(|c| c.astray) => self.end(id, process, link),
            kind::HELLO => {
                self.tell_of(id);
                self.greet(id, m, process, link);
                self.reply(id, &identity.message(kind::WELCOME), &[identity.arena.as_fd(), identity.wake.as_fd()]);
                link.past().iter().for_each(|message| self.reply(id, message, &[]));
                if let Some(c) = self.state.lock().peers.get_mut(&id) {
                    c.welcomed = true;
                }
            }
            kind::SLOTS => {
                if let Some(c) = self.state.lock().peers.get_mut(&id) {
                    c.slots = slots_in(m);
                }
            }
            kind::LANE => {
                let [initiator, qpn, srqn, ..] = m.args;
                let lane = process.lanes.make(&LaneRequest { initiator, qpn, srqn });
                let args = [initiator, qpn, srqn, u32::from(lane.is_some())];
                self.reply(id, &Message::new(kind::LANE_REPLY, &args, &[lane.unwrap_or(0)]), &[]);
            }
            kind::CHANNEL => {
                let channel = vervain_hca::cq::peer_events::own_channel(m.args[0]);
                let ends = channel.as_ref().map(|c| c.ends());
                self.reply(
                    id,
                    &Message::new(kind::CHANNEL_REPLY, &m.args[..1], &[]),
                    ends.as_ref().map_or(&[], |e| &e[..]),
                );
            }
            kind::OBJECT => self.grant(id, m, process),
            kind::FORGET => process.lanes.drop_those_of(m.args[0]),
            kind::JOIN | kind::LEAVE => {
                groups.note(m, m.kind == kind::JOIN);
                self.reply(id, &Message::new(kind::ACK, &[m.args[1]], &[]), &[]);
            }
            kind::SAVED => {
                let of = |c: &Connection| (c.slots.clone(), c.incarnation, c.proof);
                let known = self.state.lock().peers.get(&id).map(of);
                if let Some((slots, incarnation, proof)) = known {
                    suspense.saved(&slots, incarnation, proof, m.wide[0], m.args[0]);
                }
            }
            kind::SAVE_IS_OVER => {
                let slots = self.state.lock().peers.get(&id).map(|c| c.slots.clone()).unwrap_or_default();
                suspense.is_over(&slots, m.wide[0]);
            }
            kind::RESTORED => {
                let slots = slots_in(m);
                // Messages that the saved process sent before its end come first.
                slots.iter().for_each(|slot| link.outgoing.handle(*slot, link));
                let who = self.state.lock().peers.get(&id).map_or([0; 2], |c| c.incarnation);
                let good = suspense.takes_the_place(&slots, who, &m.wide, save_in(m));
                self.reply(id, &Message::new(kind::RESTORED_REPLY, &[u32::from(good)], &[]), &[]);
            }
            kind::MEMBERS => {
                for member in groups.own_members() {
                    self.reply(id, &member, &[]);
                }
                self.reply(id, &Message::new(kind::ACK, &[m.args[0]], &[]), &[]);
            }
            _ => {}
        }
    }

    /// Takes a step of parking for a supervisor. The progress thread takes part in some steps, so another thread takes
    /// them, and it alone has the connection from then on.
    fn park(&self, id: u32, kind: u32, process: &'static Process) {
        let Some(Connection { socket, moved, .. }) = self.state.lock().peers.remove(&id) else { return };
        let Some(step) = Step::of(kind) else { return };
        let socket = Arc::new(socket);
        let of_thread = Arc::clone(&socket);
        let answer = |socket: &Socket, errno: i32| {
            // A supervisor that is gone needs no answer.
            let _ = socket.send(&Message::new(ANSWER, &[errno.cast_unsigned()], &[]), &[]);
        };
        let taken = vervain_scheduler::spawn("vervain-park", PARKING_STACK, move || {
            // The supervisor was killed, and another may have requested something else since.
            if of_thread.is_ended() {
                return;
            }
            let taken = match step {
                Step::Stop => process.parking.park(process),
                Step::Leave => process.parking.leave(process),
                Step::Rejoin => rejoin(process, moved),
                Step::Go => process.parking.unpark(process),
            };
            if let Err(error) = &taken {
                log::error!("the job cannot be checkpointed or go on ({step:?}): {error}");
            }
            answer(&of_thread, taken.map_or_else(|error| error.errno(), |()| 0));
        });
        if let Err(error) = taken {
            answer(&socket, error.raw_os_error().unwrap_or(libc::EAGAIN));
        }
    }

    /// Answers a peer that asks to map an object.
    fn grant(&self, id: u32, m: &Message, process: &'static Process) {
        let [number, generation, window, ..] = m.args;
        // Noted before the look-up: if the object is withdrawn in between, the peer is notified, before or after the
        // answer.
        if let Some(c) = self.state.lock().peers.get_mut(&id) {
            c.objects.insert(number);
        }
        let granted = process.grant_object(number, generation);
        let args = [number, generation, window, u32::from(granted.is_some())];
        let fd = granted.flatten();
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        self.reply(id, &Message::new(kind::OBJECT_REPLY, &args, &[]), &fds);
    }

    /// Notifies the peers that have requested an object that it is withdrawn. A peer whose socket is full finds out by
    /// itself at its next message.
    pub(super) fn withdraw(&self, number: u32, generation: u32) {
        let message = Message::new(kind::OBJECT_GONE, &[number, generation], &[]);
        for c in self.state.lock().peers.values_mut().filter(|c| c.objects.contains(&number)) {
            c.objects.remove(&number);
            let _ = c.socket.send(&message, &[]);
        }
    }

    /// Logs that a process has connected to this one.
    #[cold]
    fn tell_of(&self, id: u32) {
        let peer = self.state.lock().peers.get(&id).and_then(|c| c.socket.peer());
        if let Some((pid, _)) = peer {
            log::info!("{} has connected by memory", name_of(pid));
            warn_of_memory(pid);
        }
    }

    /// Handles a greeting. An earlier process under the same slot has ended, even if its connection still seems alive.
    fn greet(&self, id: u32, m: &Message, process: &'static Process, link: &Local) {
        let slots = slots_in(m);
        let incarnation = [m.wide[0], m.wide[1]];
        let mut state = self.state.lock();
        let stale: Vec<u32> = state
            .peers
            .iter()
            .filter(|(other, c)| {
                **other != id && c.incarnation != incarnation && c.slots.iter().any(|s| slots.contains(s))
            })
            .map(|(other, _)| *other)
            .collect();
        drop(state);
        for other in stale {
            // It may have announced its save.
            self.handle(other, process, link);
            self.end(other, process, link);
        }
        state = self.state.lock();
        if let Some(c) = state.peers.get_mut(&id) {
            (c.slots, c.incarnation, c.proof) = (slots, incarnation, proof_in(m));
        }
    }

    /// The connected processes that know this one: slots, incarnation, proof.
    pub(super) fn known(&self) -> Vec<(Vec<u32>, [u64; 2], [u64; 2])> {
        let state = self.state.lock();
        let welcomed = state.peers.values().filter(|c| c.welcomed && !c.slots.is_empty());
        welcomed.map(|c| (c.slots.clone(), c.incarnation, c.proof)).collect()
    }

    /// Sends `message` to every connected process. Returns false if one had no room for it.
    pub(super) fn try_tell_all(&self, message: &Message) -> bool {
        let told = |c: &Connection| c.socket.send(message, &[]) != Err(Errno::AGAIN);
        self.state.lock().peers.values().all(told)
    }

    /// Sends `message` to every connected process.
    pub(super) fn tell_all(&self, message: &Message) {
        for c in self.state.lock().peers.values() {
            let _ = c.socket.send(message, &[]);
        }
    }

    fn reply(&self, id: u32, message: &Message, fds: &[rustix::fd::BorrowedFd<'_>]) {
        if let Some(c) = self.state.lock().peers.get(&id)
            && let Err(e) = c.socket.send(message, fds)
        {
            log::debug!("a peer does not take its answer: {}", std::io::Error::from(e));
        }
    }

    fn end(&self, id: u32, process: &'static Process, link: &Local) {
        let Some(c) = self.state.lock().peers.remove(&id) else { return };
        // Another connection of the same process may still be there.
        let gone: Vec<u32> = c.slots.iter().copied().filter(|s| !self.has(*s)).collect();
        link.groups.forget(&gone);
        link.suspense.has_ended(&gone, c.incarnation);
        if link.suspense.was_saved(&gone) {
            link.keep_names(&gone);
            process.lanes.reap_saved(&gone);
        } else {
            process.lanes.reap(&gone);
        }
    }
}

/// Gives the process back what it had given up, with these addresses changed.
fn rejoin(process: &'static Process, moved: Vec<(IpAddr, IpAddr)>) -> Result<()> {
    let map = AddressMap::new(moved).map_err(|e| Error::new(libc::EPROTO, e.to_string()))?;
    process.parking.rejoin(process, &map.pairs().collect::<Vec<_>>(), network_changed)
}
