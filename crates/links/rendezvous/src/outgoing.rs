//! Connections to the processes to which this one initiates: the handshake, their mapped arenas, and their lanes.

use super::kind;
use super::restored::save_in;
use super::{Identity, Local, proof_in, slots_in};
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use vervain_hca::arena::View;
use vervain_hca::arena::layout::slot_of;
use vervain_hca::host::cancel::Uncancelled;
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::now_ns;
use vervain_hca::process::Process;
use vervain_hca::process::imports::Wanted;
use vervain_hca::process::lanes::{LaneReply, LaneRequest};
use vervain_hca::process::peer::PeerProcess;
use vervain_hca::process::rendezvous::Peer;
use vervain_names::process::can_run;
use vervain_sockets::socket::{Message, Socket};

/// Most requests for lanes under way to one peer: its socket buffer surely holds as many.
const OUTSTANDING: usize = 64;

/// Nanoseconds for which the connection of a slow process is unanswered. A younger one may be made again and again, as
/// by a process without free descriptors; an older one of a process that runs will never be answered.
const SLOW_NS: Range<u64> = 500_000_000..60_000_000_000;

#[derive(Default)]
pub(super) struct Outgoing {
    state: OwnerLock<State>,
}

#[derive(Default)]
struct State {
    peers: HashMap<u32, Connection>,
    lanes: HashMap<LaneRequest, LaneReply>,
    /// Ended processes whose memory is not unmapped yet.
    ended: Vec<Arc<PeerProcess>>,
}

struct Connection {
    socket: Socket,
    pid: i32,
    space: Option<Arc<PeerProcess>>,
    /// Slots in its welcome; empty before.
    slots: Vec<u32>,
    incarnation: [u64; 2],
    proof: [u64; 2],
    /// Time of the connection (CLOCK_MONOTONIC, nanoseconds).
    since: u64,
    /// True if it has refused this process.
    refuses: bool,
    /// Its answer to [`kind::RESTORED`]; None: not yet.
    takes_us: Option<bool>,
    /// True if a saved process is waited for in its place, and it has not proved to be that one.
    unproven: bool,
    asked: usize,
}

impl Outgoing {
    /// The process behind `slot`; starts the handshake if there was none. If `waits` (a saved process is waited for
    /// there), only if `asks`, to see if it is there again.
    pub(super) fn peer(
        &self,
        slot: u32,
        identity: &Identity,
        watch: impl FnOnce(&Socket) -> bool,
        waits: impl Fn() -> bool,
        asks: impl FnOnce() -> bool,
    ) -> Peer {
        let mut state = self.state.lock();
        match state.peers.get_mut(&slot) {
            Some(Connection { unproven: true, .. }) if waits() => return Peer::Suspended,
            Some(Connection { space: Some(space), unproven, .. }) if !space.is_dead() => {
                *unproven = false;
                return Peer::Ready(Arc::clone(space));
            }
            Some(Connection { space: Some(_), .. }) => state.forget(slot),
            Some(c) => {
                c.unproven = false;
                return Peer::Connecting;
            }
            None => {}
        }
        let unproven = waits();
        if unproven && !asks() {
            return Peer::Suspended;
        }
        let absent = || if unproven { Peer::Suspended } else { Peer::Absent };
        let socket = match Socket::connect(&identity.name(slot)) {
            Ok(socket) => socket,
            // Its queue of connections is full: it is alive, and slow.
            Err(Errno::AGAIN) if !unproven => return Peer::Connecting,
            Err(Errno::AGAIN | Errno::CONNREFUSED) => return absent(),
            Err(e) => {
                log::error!("cannot reach the process of slot {slot}: {}", std::io::Error::from(e));
                return absent();
            }
        };
        let Some(pid) = identity.trust(&socket) else { return absent() };
        if socket.send(&identity.message(kind::HELLO), &[]).is_err() || !watch(&socket) {
            return absent();
        }
        state.peers.insert(slot, Connection { unproven, ..Connection::new(socket, pid) });
        if unproven { Peer::Suspended } else { Peer::Connecting }
    }

    /// Returns true if the process behind `slot` has left its connection unanswered at `now` for lack of CPU time.
    pub(super) fn is_slow(&self, slot: u32, now: u64) -> bool {
        let is_late = |c: &&Connection| !c.refuses && SLOW_NS.contains(&now.saturating_sub(c.since));
        let pid = self.state.lock().peers.get(&slot).filter(is_late).map(|c| c.pid);
        let _whole = Uncancelled::begin();
        pid.is_some_and(can_run)
    }

    /// The connected processes: slots, incarnation, proof.
    pub(super) fn known(&self) -> Vec<(Vec<u32>, [u64; 2], [u64; 2])> {
        let state = self.state.lock();
        let welcomed = state.peers.values().filter(|c| !c.slots.is_empty());
        welcomed.map(|c| (c.slots.clone(), c.incarnation, c.proof)).collect()
    }

    /// Sends `message` to every connected process. Returns false if one had no room for it.
    pub(super) fn try_tell_all(&self, message: &Message) -> bool {
        let told = |c: &Connection| c.socket.send(message, &[]) != Err(Errno::AGAIN);
        self.state.lock().peers.values().all(told)
    }

    /// Asks the process behind `slot` by `message` to accept this one in a saved one's place. Returns false if that
    /// cannot be sent.
    pub(super) fn ask_to_be_taken(&self, slot: u32, message: &Message) -> bool {
        let mut state = self.state.lock();
        let Some(c) = state.peers.get_mut(&slot) else { return false };
        c.takes_us = None;
        c.socket.send(message, &[]).is_ok()
    }

    /// The answer of the process behind `slot` to that, and its incarnation; None: not yet.
    pub(super) fn takes_us(&self, slot: u32) -> Option<(bool, [u64; 2])> {
        let state = self.state.lock();
        let c = state.peers.get(&slot)?;
        Some((c.takes_us?, c.incarnation))
    }

    /// Announces new slots of this process to every peer.
    pub(super) fn announce_slots(&self, identity: &Identity) {
        for c in self.state.lock().peers.values() {
            let _ = c.socket.send(&identity.message(kind::SLOTS), &[]);
        }
    }

    /// Sends `message` to the process behind `slot`. Returns false if that cannot be sent.
    pub(super) fn send(&self, slot: u32, message: &Message) -> bool {
        self.state.lock().peers.get(&slot).is_some_and(|c| c.socket.send(message, &[]).is_ok())
    }

    /// A lane of a peer, requested at the first call.
    pub(super) fn lane(&self, slot: u32, request: LaneRequest) -> LaneReply {
        let mut state = self.state.lock();
        match state.lanes.get(&request) {
            // A refusal is returned once; the QP may exist by the next time.
            Some(LaneReply::Refused) => {
                state.lanes.remove(&request);
                return LaneReply::Refused;
            }
            Some(reply) => return *reply,
            None => {}
        }
        let Some(c) = state.peers.get_mut(&slot) else { return LaneReply::Pending };
        let message = Message::new(kind::LANE, &[request.initiator, request.qpn, request.srqn], &[]);
        if c.asked < OUTSTANDING && c.socket.send(&message, &[]).is_ok() {
            c.asked += 1;
            state.lanes.insert(request, LaneReply::Pending);
        }
        LaneReply::Pending
    }

    /// Asks the owner of `space` for an object. Returns false if that cannot be sent.
    pub(super) fn object(&self, space: &PeerProcess, wanted: &Wanted) -> bool {
        let state = self.state.lock();
        let owner = state.peers.values().find(|c| c.space.as_deref().is_some_and(|s| std::ptr::eq(s, space)));
        owner.is_some_and(|c| c.socket.send(&ask(wanted), &[]).is_ok())
    }

    /// Returns true if memory of ended processes may still be mapped.
    pub(super) fn has_ended(&self) -> bool {
        !self.state.lock().ended.is_empty()
    }

    /// Unmaps objects that their owners have withdrawn.
    pub(super) fn sweep(&self) {
        let mut state = self.state.lock();
        let mut spaces = std::mem::take(&mut state.ended);
        spaces.extend(state.peers.values().filter_map(|c| c.space.clone()));
        drop(state);
        spaces.iter().for_each(|s| s.sweep_objects());
    }

    /// Forgets one lane.
    pub(super) fn forget_lane(&self, request: &LaneRequest) {
        self.state.lock().lanes.remove(request);
    }

    /// Forgets the lanes of `initiator` and notifies their owners.
    pub(super) fn forget_lanes(&self, initiator: u32) {
        let mut state = self.state.lock();
        let mut owners: Vec<u32> =
            state.lanes.keys().filter(|r| r.initiator == initiator).map(|r| slot_of(r.qpn)).collect();
        owners.sort_unstable();
        owners.dedup();
        state.lanes.retain(|r, _| r.initiator != initiator);
        for slot in owners {
            if let Some(c) = state.peers.get(&slot) {
                let _ = c.socket.send(&Message::new(kind::FORGET, &[initiator], &[]), &[]);
            }
        }
    }

    /// Handles the messages of the process behind `slot`.
    pub(super) fn handle(&self, slot: u32, link: &Local) {
        let (groups, suspense) = (&link.groups, &link.suspense);
        let mut state = self.state.lock();
        loop {
            let Some(c) = state.peers.get_mut(&slot) else { return };
            match c.socket.receive() {
                Ok(Some((message, fds))) => match message.kind {
                    kind::WELCOME => {
                        let mapped = welcome(slot, &message, fds, c.pid);
                        match mapped {
                            Ok(space) => {
                                // Requested now, so that the first use of the heap finds it mapped.
                                if let Some(heap) = space.heap() {
                                    let _ = c.socket.send(&ask(&heap), &[]);
                                }
                                c.space = Some(Arc::new(space));
                                (c.slots, c.proof) = (slots_in(&message), proof_in(&message));
                                c.incarnation = [message.wide[0], message.wide[1]];
                            }
                            Err(e) => {
                                log::error!("cannot use the process of slot {slot}: {e}");
                                state.forget(slot);
                                return;
                            }
                        }
                    }
                    kind::LANE_REPLY => {
                        c.asked = c.asked.saturating_sub(1);
                        let [initiator, qpn, srqn, granted, ..] = message.args;
                        let reply = if granted != 0 { LaneReply::Lane(message.wide[0]) } else { LaneReply::Refused };
                        if let Some(entry) = state.lanes.get_mut(&LaneRequest { initiator, qpn, srqn }) {
                            *entry = reply;
                        }
                    }
                    kind::CHANNEL_REPLY => {
                        if let Some(space) = &c.space {
                            space.channels.learn(message.args[0], fds.try_into().ok());
                        }
                    }
                    kind::CHANNEL_GONE => {
                        if let Some(space) = &c.space {
                            space.channels.forget(message.args[0]);
                        }
                    }
                    kind::OBJECT_REPLY => {
                        let [number, generation, window, ..] = message.args;
                        if let Some(space) = &c.space {
                            space.map_object(&Wanted { number, generation, window }, fds.into_iter().next());
                        }
                    }
                    kind::OBJECT_GONE => {
                        if let Some(space) = &c.space {
                            space.forget_object(message.args[0], message.args[1]);
                        }
                    }
                    kind::SAVED => {
                        suspense.saved(&c.slots, c.incarnation, c.proof, message.wide[0], message.args[0]);
                    }
                    kind::RESTORED => {
                        let of = slots_in(&message);
                        if suspense.takes_the_place(&of, c.incarnation, &message.wide, save_in(&message)) {
                            c.unproven = false;
                        }
                    }
                    kind::SAVE_IS_OVER => suspense.is_over(&c.slots, message.wide[0]),
                    kind::RESTORED_REPLY => c.takes_us = Some(message.args[0] != 0),
                    kind::JOIN => groups.note(&message, true),
                    kind::ACK => groups.acknowledged(message.args[0]),
                    kind::REFUSED => {
                        c.refuses = true;
                        log::error!(
                            "the process of slot {slot} runs another version of Vervain (arena version {}, here {})",
                            message.args[0],
                            vervain_hca::arena::layout::VERSION
                        );
                    }
                    _ => {}
                },
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Ok(None) | Err(_) => {
                    let (slots, incarnation) = (std::mem::take(&mut c.slots), c.incarnation);
                    state.forget(slot);
                    drop(state);
                    suspense.has_ended(&slots, incarnation);
                    if suspense.was_saved(&slots) {
                        link.keep_names(&slots);
                    }
                    return;
                }
            }
        }
    }
}

impl Connection {
    fn new(socket: Socket, pid: i32) -> Connection {
        let (slots, incarnation, proof) = (Vec::new(), [0; 2], [0; 2]);
        Connection {
            socket,
            pid,
            space: None,
            slots,
            incarnation,
            proof,
            since: now_ns(),
            refuses: false,
            takes_us: None,
            unproven: false,
            asked: 0,
        }
    }
}

fn ask(wanted: &Wanted) -> Message {
    Message::new(kind::OBJECT, &[wanted.number, wanted.generation, wanted.window], &[])
}

impl State {
    /// Forgets the process behind `slot`, which has ended.
    fn forget(&mut self, slot: u32) {
        if let Some(c) = self.peers.remove(&slot)
            && let Some(space) = c.space
        {
            space.mark_dead();
            self.ended.push(space);
        }
        self.lanes.retain(|r, _| slot_of(r.qpn) != slot);
    }
}

/// Maps the arena that came with a welcome, once it is known to be the sender's.
fn welcome(
    slot: u32,
    message: &Message,
    mut fds: Vec<rustix::fd::OwnedFd>,
    pid: i32,
) -> vervain_hca::Result<PeerProcess> {
    use std::sync::atomic::Ordering::Relaxed;
    use vervain_hca::Error;
    let (Some(wake), Some(arena)) = (fds.pop(), fds.pop()) else {
        return Err(Error::invalid("it sent no arena"));
    };
    if !slots_in(message).contains(&slot) {
        return Err(Error::invalid("it does not own that slot"));
    }
    if !vervain_hca::host::eventfd::is_harmless(wake.as_fd()) {
        return Err(Error::invalid("it sent something else than what wakes it"));
    }
    let space = PeerProcess::new(View::of_peer(arena.as_raw_fd())?, Some(ask_for_object), pid, wake)?;
    if space.header.incarnation.iter().map(|w| w.load(Relaxed)).ne(message.wide[..2].iter().copied()) {
        return Err(Error::invalid("its arena belongs to another process"));
    }
    Ok(space)
}

/// Asks the owner of a mapped arena for one of its objects, by this process's own rendezvous.
fn ask_for_object(peer: &PeerProcess, wanted: &Wanted) -> bool {
    Process::current().is_some_and(|process| process.rendezvous.ask_for_object(peer, wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A socket that accepts nothing acts like a process without CPU time.
    #[test]
    fn a_process_that_runs_is_slow_for_some_time_unless_it_refuses() {
        let (slot, name) = (7, format!("vervain-test/slow-{}", std::process::id()));
        let _listener = Socket::listen(&name).unwrap();
        let outgoing = Outgoing::default();
        let me = std::process::id() as i32;
        assert!(!outgoing.is_slow(slot, now_ns()));
        let connection = Connection::new(Socket::connect(&name).unwrap(), me);
        let since = connection.since;
        outgoing.state.lock().peers.insert(slot, connection);
        assert!(!outgoing.is_slow(slot, since) && !outgoing.is_slow(slot, since + SLOW_NS.end));
        assert!(outgoing.is_slow(slot, since + SLOW_NS.start) && !outgoing.is_slow(slot + 1, since + SLOW_NS.start));
        outgoing.state.lock().peers.get_mut(&slot).unwrap().refuses = true;
        assert!(!outgoing.is_slow(slot, since + SLOW_NS.start));
    }
}
