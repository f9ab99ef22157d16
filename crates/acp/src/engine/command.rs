//! Commands of peers, served by whoever looks: mostly the progress thread, so that the program may sleep.

use std::time::{Duration, Instant};

use vervain_mesh::{Command as Arrival, Link};

use super::{Engine, MAX_SERVED};
use crate::command::{Ask, Command, NOTHING, Status};
use crate::op::{Answer, Op, Place, Step, Work};

/// How long a copy that is served waits for its connection before the issuer is told to do it itself. A pool whose connections are
/// all held by peers that wait for answers would wait for ever.
pub(super) const PATIENCE: Duration = Duration::from_millis(50);
/// Bytes of a copy inside this rank's memory that are copied at a time, for the lock is held meanwhile.
const PART: u64 = 1 << 20;

/// A command that has come and not begun.
pub(super) struct Received {
    arrival: Arrival,
    command: Command,
    index: u16,
}

impl Engine {
    /// Takes in what has come from peers.
    pub(super) fn receive(&mut self) -> bool {
        let mut any = false;
        let mut arrivals = std::mem::take(&mut self.arrivals);
        for port in 0..self.mesh.ports().len() {
            match self.mesh.poll_service(port, &mut arrivals) {
                Ok(found) => any |= found > 0,
                Err(error) => self.fail(error.into()),
            }
        }
        for arrival in arrivals.drain(..) {
            self.mesh.received(arrival.link);
            let mut bytes = [0; Command::BYTES + 1];
            let read = self.mesh.read_command(&arrival, &mut bytes);
            match Command::decode(&bytes[..read]) {
                Some((command, index)) => {
                    self.mesh.hold(arrival.link);
                    self.commands.push_back(Received { arrival, command, index });
                }
                // What no rank of this version sends.
                None => self.give_receive(&arrival),
            }
        }
        self.arrivals = arrivals;
        any
    }

    fn give_receive(&mut self, arrival: &Arrival) {
        if let Err(error) = self.mesh.repost_command(arrival) {
            self.fail(error.into());
        }
    }

    /// Begins to serve what has come, as many as may be under way. The others keep their receives, so that peers wait in the end.
    pub(super) fn begin_commands(&mut self) {
        self.give_back_late();
        while self.served < MAX_SERVED
            && let Some(Received { arrival, command, index }) = self.commands.pop_front()
        {
            self.give_receive(&arrival);
            self.served += 1;
            self.begin(arrival.link, command, index);
        }
    }

    fn begin(&mut self, link: Link, command: Command, index: u16) {
        let answer = |status: Status, value| Answer { link, index, status: status as u8, value };
        match command {
            Command::Copy { dst, src, len } => {
                if let Err(size) = self.memory.check_range(src, len) {
                    return self.answer(answer(Status::SourceOutside, size));
                }
                let Some(to) = self.memory.layout.parts(dst) else {
                    return self.answer(answer(Status::DestinationOutside, NOTHING));
                };
                let work = if to.rank == self.memory.rank { Work::ServeHere } else { Work::Serve };
                if work == Work::ServeHere
                    && let Err(size) = self.memory.check_range(dst, len)
                {
                    return self.answer(answer(Status::DestinationOutside, size));
                }
                if work == Work::ServeHere && self.memory.table.writable(dst, 0).is_err() {
                    return self.answer(answer(Status::ReadOnly, 0));
                }
                let i = self.operations.add(Op { work, dst, src, len, answer: answer(Status::Done, 0), ..Op::NONE });
                self.start(i);
            }
            Command::Atomic { at, what } => {
                let width = what.width();
                let done = match self.memory.check_range(at, width as u64) {
                    Err(size) => answer(Status::SourceOutside, size),
                    Ok(()) if self.memory.table.writable(at, width).is_err() => answer(Status::ReadOnly, 0),
                    Ok(()) => match self.memory.carry_out(at, what) {
                        Ok(old) => answer(Status::Done, old),
                        Err(_) => answer(Status::Misaligned, 0),
                    },
                };
                self.answer(done);
            }
            Command::Ask(ask) => self.begin_ask(ask, Asker::Peer(answer(Status::Done, 0))),
            Command::Discard => {
                self.stamps += 1;
                self.connections[link.index as usize].stamp = self.stamps;
                self.answer(answer(Status::Done, 0));
            }
        }
    }

    /// Begins what this rank is asked for.
    pub(super) fn begin_ask(&mut self, ask: Ask, asker: Asker) {
        let value = match ask {
            Ask::Look => {
                self.looks += 1;
                0
            }
            Ask::Extend { known, len } => match self.memory.extend(&self.mesh, known, len) {
                Some(count) => count,
                None => {
                    // It is none of those that are served meanwhile: the round may wait for what this rank has to serve.
                    self.served -= u32::from(matches!(asker, Asker::Peer(_)));
                    self.extensions.push((known, len, asker));
                    return self.begin_round();
                }
            },
            Ask::Retract { segment } => self.memory.retract(segment).into(),
        };
        self.asked(asker, value);
    }

    fn asked(&mut self, asker: Asker, value: u64) {
        match asker {
            Asker::Own(i) => self.ask_over(i, value),
            Asker::Peer(answer) => self.answer(Answer { value, ..answer }),
        }
    }

    /// What a served operation did is over: now the answer.
    pub(super) fn served_op(&mut self, i: u32, status: Status, value: u64) {
        let op = &mut self.operations[i];
        op.answer = Answer { status: status as u8, value, ..op.answer };
        op.step = Step::Answer;
        self.route(i);
    }

    /// Copies of peers' inside this rank: the next part of the first. Says whether there was one.
    pub fn copy_part(&mut self) -> bool {
        let Some(&i) = self.here.front() else { return false };
        let op = self.operations[i];
        let part = (op.len - op.offset).min(PART);
        let (dst, src) = (op.dst.add(op.offset), op.src.add(op.offset));
        let copied = self.memory.copy(dst, src, part as usize);
        let op = &mut self.operations[i];
        op.offset += part;
        let status = match copied {
            Ok(()) if op.offset < op.len => return true,
            Ok(()) => Status::Done,
            // Unregistered meanwhile.
            Err(_) => Status::SourceOutside,
        };
        self.here.pop_front();
        self.served_op(i, status, if status == Status::Done { 0 } else { NOTHING });
        true
    }

    /// Tells the issuers of copies that have waited for a connection for too long to do them themselves.
    fn give_back_late(&mut self) {
        while let Some(&(since, i)) = self.served_since.front() {
            let op = &self.operations[i];
            if op.work != Work::Serve || op.place != Place::Contact {
                self.served_since.pop_front();
                continue;
            }
            if Instant::now() < since + PATIENCE {
                return;
            }
            self.served_since.pop_front();
            self.give_up_contact(i);
            self.served_op(i, Status::Busy, 0);
        }
    }

    /// Asks all peers that may have read this rank's table to forget it, so that the keys given up until now can be used again.
    pub fn begin_round(&mut self) {
        if self.round.is_some() {
            return;
        }
        let peers: Vec<Link> = self.mesh.links().collect();
        self.round =
            Some(Round { waits: peers.len() + 1, keys: self.memory.table.given_up(), asked: 0, unasked: peers });
        self.ask_more();
        self.forgotten();
        self.drain();
    }

    /// Asks those that are open, as many at a time as may be under way. The others open, or they close, and the peer forgets with it.
    fn ask_more(&mut self) {
        while let Some(round) = &mut self.round
            && round.asked < MAX_ASKED
        {
            let is_open =
                |link: &Link| self.connections[link.index as usize].link == Some(*link) && self.mesh.is_open(*link);
            let Some(at) = round.unasked.iter().rposition(is_open) else { return };
            let link = round.unasked.swap_remove(at);
            round.asked += 1;
            self.mesh.hold(link);
            let i = self.operations.add(Op { work: Work::Discard, link, ..Op::NONE });
            self.start(i);
        }
    }

    /// A connection has opened that a round may wait for.
    pub(super) fn round_goes_on(&mut self) {
        if self.round.is_some() {
            self.ask_more();
        }
    }

    /// A connection has closed that a round may wait for.
    pub(super) fn round_without(&mut self, link: Link) {
        let Some(round) = &mut self.round else { return };
        let Some(at) = round.unasked.iter().position(|unasked| *unasked == link) else { return };
        round.unasked.swap_remove(at);
        self.forgotten();
    }

    /// Whether a round is under way.
    pub fn in_round(&self) -> bool {
        self.round.is_some()
    }

    /// A peer that was asked has forgotten.
    pub(super) fn has_forgotten(&mut self) {
        if let Some(round) = &mut self.round {
            round.asked -= 1;
        }
        self.ask_more();
        self.forgotten();
    }

    /// There is one less to wait for.
    fn forgotten(&mut self) {
        let Some(round) = &mut self.round else { return };
        round.waits -= 1;
        if round.waits == 0 {
            let keys = round.keys;
            self.round = None;
            self.memory.table.round_done(keys);
            for (known, len, asker) in std::mem::take(&mut self.extensions) {
                self.served += u32::from(matches!(asker, Asker::Peer(_)));
                self.begin_ask(Ask::Extend { known, len }, asker);
            }
        }
    }
}

/// Who has asked for something.
#[derive(Clone, Copy)]
pub(super) enum Asker {
    /// An operation of this rank's.
    Own(u32),
    Peer(Answer),
}

/// Peers that are asked to forget at a time.
const MAX_ASKED: u32 = 128;

/// Peers are asked to forget.
pub(super) struct Round {
    /// Peers that have not yet, and one for who asks.
    waits: usize,
    /// Keys that it frees.
    keys: usize,
    /// Peers that have been asked, and have not answered.
    asked: u32,
    /// Those that have not been.
    unasked: Vec<Link>,
}
