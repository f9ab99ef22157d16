//! Connections from the processes that initiate to this one: their greeting, lanes for them, and their end.

use super::groups::Groups;
use super::socket::{Message, Socket, kind};
use super::{Identity, slots_in};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use vervain_hca::arena::layout::VERSION;
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::process::Process;
use vervain_hca::process::peer::{name_of, warn_of_settings_for_packets};
use vervain_hca::process::rendezvous::LaneRequest;

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
    /// Numbers of objects that it has asked for.
    objects: HashSet<u32>,
}

impl Incoming {
    /// Takes a new connection.
    pub(super) fn add(&self, socket: Socket, watch: impl FnOnce(&Socket, u32) -> bool) {
        let mut state = self.state.lock();
        let id = state.next;
        state.next = state.next.wrapping_add(1);
        if watch(&socket, id) {
            let (slots, objects) = (Vec::new(), HashSet::new());
            state.peers.insert(id, Connection { socket, slots, incarnation: [0; 2], objects });
        }
    }

    /// Whether a process with that slot is connected.
    pub(super) fn has(&self, slot: u32) -> bool {
        self.state.lock().peers.values().any(|c| c.slots.contains(&slot) && !c.socket.is_ended())
    }

    /// What connection `id` has sent.
    pub(super) fn handle(&self, id: u32, process: &'static Process, identity: &Identity, groups: &Groups) {
        loop {
            // Not locked while the process works: it may ask whether an initiator lives.
            let received = match self.state.lock().peers.get(&id) {
                Some(c) => c.socket.receive(),
                None => return,
            };
            match received {
                Ok(Some((message, _fds))) => self.message(id, &message, process, identity, groups),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Ok(None) | Err(_) => {
                    self.end(id, process, groups);
                    return;
                }
            }
        }
    }

    fn message(&self, id: u32, m: &Message, process: &'static Process, identity: &Identity, groups: &Groups) {
        match m.kind {
            kind::HELLO if m.args[0] != VERSION => {
                log::error!(
                    "a process with another version of Vervain (arena version {}, here {VERSION}) was refused",
                    m.args[0]
                );
                self.reply(id, &Message::new(kind::REFUSED, &[VERSION], &[]), &[]);
            }
            kind::HELLO => {
                self.tell_of(id);
                self.greet(id, m, process, groups);
                self.reply(id, &identity.message(kind::WELCOME), &[identity.arena.as_fd(), identity.wake.as_fd()]);
            }
            kind::SLOTS => {
                if let Some(c) = self.state.lock().peers.get_mut(&id) {
                    c.slots = slots_in(m);
                }
            }
            kind::LANE => {
                let [initiator, qpn, srqn, ..] = m.args;
                let lane = process.make_lane(&LaneRequest { initiator, qpn, srqn });
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
            kind::FORGET => process.drop_lanes_of(m.args[0]),
            kind::JOIN | kind::LEAVE => {
                groups.note(m, m.kind == kind::JOIN);
                self.reply(id, &Message::new(kind::ACK, &[m.args[1]], &[]), &[]);
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

    /// A peer wants to map an object.
    fn grant(&self, id: u32, m: &Message, process: &'static Process) {
        let [number, generation, window, ..] = m.args;
        // Noted before it is looked up: if it is withdrawn in between, the peer is told, before or after the answer.
        if let Some(c) = self.state.lock().peers.get_mut(&id) {
            c.objects.insert(number);
        }
        let granted = process.grant_object(number, generation);
        let args = [number, generation, window, u32::from(granted.is_some())];
        let fd = granted.flatten();
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        self.reply(id, &Message::new(kind::OBJECT_REPLY, &args, &[]), &fds);
    }

    /// Tells the peers that have asked for an object that it is withdrawn. One whose socket is full finds out by itself,
    /// when it next hears of anything.
    pub(super) fn withdraw(&self, number: u32, generation: u32) {
        let message = Message::new(kind::OBJECT_GONE, &[number, generation], &[]);
        for c in self.state.lock().peers.values_mut().filter(|c| c.objects.contains(&number)) {
            c.objects.remove(&number);
            let _ = c.socket.send(&message, &[]);
        }
    }

    /// Says that a process reaches this one.
    #[cold]
    fn tell_of(&self, id: u32) {
        let peer = self.state.lock().peers.get(&id).and_then(|c| c.socket.peer());
        if let Some((pid, _)) = peer {
            log::info!("{} has connected by memory", name_of(pid));
            warn_of_settings_for_packets(pid);
        }
    }

    /// A process introduces itself. An earlier one under the same slot has ended, even if its connection still shows life.
    fn greet(&self, id: u32, m: &Message, process: &'static Process, groups: &Groups) {
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
        stale.iter().for_each(|other| self.end(*other, process, groups));
        state = self.state.lock();
        if let Some(c) = state.peers.get_mut(&id) {
            (c.slots, c.incarnation) = (slots, incarnation);
        }
    }

    /// Sends `message` to every process that is connected.
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

    fn end(&self, id: u32, process: &'static Process, groups: &Groups) {
        let Some(c) = self.state.lock().peers.remove(&id) else { return };
        // Another connection of the same process may still be there.
        let gone: Vec<u32> = c.slots.iter().copied().filter(|s| !self.has(*s)).collect();
        groups.forget(&gone);
        process.reap(&gone);
    }
}
