//! The server: commands by which peers ask this rank to act. Each thread that drives the engine calls it, most often
//! the progress thread, so that the program may sleep.

mod rounds;

use std::collections::VecDeque;

use vervain_mesh::{Command as Arrival, Link};

use self::rounds::Round;
use super::requester::Requester;
use crate::command::{Ask, Command, NOTHING, Status};
use crate::op::{Answer, Op, Place, Work};

/// The most commands that are served at a time; others wait in the SRQ.
const MAX_SERVED: u32 = 64;
/// Bytes of a copy inside this rank's memory that are copied at a time, since the lock is held meanwhile.
const PART: u64 = 1 << 20;

/// A command that has come and not begun.
struct Received {
    arrival: Arrival,
    command: Command,
    index: u16,
}

/// The source of a request to this rank.
#[derive(Clone, Copy)]
pub(super) enum Asker {
    /// An operation of this rank's.
    Own(u32),
    Peer(Answer),
}

/// A request for a segment that waits for the end of a round.
struct Extension {
    known: u64,
    len: u64,
    asker: Asker,
}

#[derive(Default)]
pub(super) struct Server {
    /// Room for arrivals while they are polled; empty in between.
    arrivals: Vec<Arrival>,
    commands: VecDeque<Received>,
    /// The number of commands that have begun and are not answered, except those that wait for a round.
    served: u32,
    /// Copies of peers' inside this rank's memory; the first is copied a part at a time.
    copies: VecDeque<u32>,
    round: Option<Round>,
    /// Requests for a segment that wait for the end of the round.
    extensions: Vec<Extension>,
    /// The number of requests to this rank to look.
    pub looks: u64,
}

impl Server {
    /// Returns true if there is work that waits for nothing.
    pub fn is_busy(&self) -> bool {
        !self.copies.is_empty() || (self.served < MAX_SERVED && self.has_commands())
    }

    /// Returns true if a command of a peer is under way.
    pub fn is_serving(&self) -> bool {
        self.served > 0
    }

    /// Returns true if a command has come and not begun.
    #[inline]
    pub fn has_commands(&self) -> bool {
        !self.commands.is_empty()
    }

    /// Ends a command whose answer has left.
    pub fn end_command(&mut self) {
        self.served -= 1;
    }

    /// Takes in commands that have come. Returns true if there were any arrivals.
    pub fn receive_commands(&mut self, requester: &mut Requester) -> bool {
        let mut any = false;
        let mut arrivals = std::mem::take(&mut self.arrivals);
        for port in 0..requester.mesh.ports().len() {
            match requester.mesh.poll_service(port, &mut arrivals) {
                Ok(found) => any |= found > 0,
                Err(error) => requester.fail(error.into()),
            }
        }
        for arrival in arrivals.drain(..) {
            requester.mesh.received(arrival.link);
            let mut bytes = [0; Command::BYTES + 1];
            let read = requester.mesh.read_command(&arrival, &mut bytes);
            match Command::decode(&bytes[..read]) {
                Some((command, index)) => {
                    requester.mesh.hold(arrival.link);
                    self.commands.push_back(Received { arrival, command, index });
                }
                // No rank of this version sends it.
                None => repost_receive(requester, &arrival),
            }
        }
        self.arrivals = arrivals;
        any
    }

    /// Begins to serve commands, as many as may be under way. The others keep their receives, so that peers have to
    /// wait at last.
    pub fn begin_commands(&mut self, requester: &mut Requester) {
        // The issuers do these copies themselves.
        while let Some(i) = requester.take_late() {
            requester.answer_served(i, Status::Busy, 0);
        }
        while self.served < MAX_SERVED
            && let Some(Received { arrival, command, index }) = self.commands.pop_front()
        {
            repost_receive(requester, &arrival);
            self.served += 1;
            self.begin(requester, arrival.link, command, index);
        }
    }

    fn begin(&mut self, requester: &mut Requester, link: Link, command: Command, index: u16) {
        let answer = |status: Status, value| Answer { link, index, status: status as u8, value };
        let memory = &requester.memory;
        match command {
            Command::Copy { dst, src, len } => {
                if let Err(size) = memory.check_range(src, len) {
                    return requester.answer(answer(Status::SourceOutside, size));
                }
                let Some(to) = memory.layout.parts(dst) else {
                    return requester.answer(answer(Status::DestinationOutside, NOTHING));
                };
                let op = Op { dst, src, len, answer: answer(Status::Done, 0), ..Op::NONE };
                if to.rank != memory.rank {
                    requester.add(Op { work: Work::Serve, ..op });
                    return;
                }
                if let Err(size) = memory.check_range(dst, len) {
                    return requester.answer(answer(Status::DestinationOutside, size));
                }
                if memory.table.writable(dst, 0).is_err() {
                    return requester.answer(answer(Status::ReadOnly, 0));
                }
                let i = requester.operations.add(Op { work: Work::ServeHere, place: Place::Queued, ..op });
                self.copies.push_back(i);
            }
            Command::Atomic { at, what } => {
                let width = what.width();
                let done = match memory.check_range(at, width as u64) {
                    Err(size) => answer(Status::SourceOutside, size),
                    Ok(()) if memory.table.writable(at, width).is_err() => answer(Status::ReadOnly, 0),
                    Ok(()) => match memory.carry_out(at, what) {
                        Ok(old) => answer(Status::Done, old),
                        Err(_) => answer(Status::Misaligned, 0),
                    },
                };
                requester.answer(done);
            }
            Command::Ask(ask) => self.begin_ask(requester, ask, Asker::Peer(answer(Status::Done, 0))),
            Command::Discard => {
                requester.connections.forget_entries(link);
                requester.answer(answer(Status::Done, 0));
            }
        }
    }

    /// Carries out a request to this rank, or has it wait for a round.
    pub fn begin_ask(&mut self, requester: &mut Requester, ask: Ask, asker: Asker) {
        let value = match ask {
            Ask::Look => {
                self.looks += 1;
                0
            }
            Ask::Extend { known, len } => match requester.memory.extend(&requester.mesh, known, len) {
                Some(address) => address,
                None => {
                    // Not counted as served meanwhile: the round may wait for a command that this rank has to serve.
                    self.served -= u32::from(matches!(asker, Asker::Peer(_)));
                    self.extensions.push(Extension { known, len, asker });
                    return self.begin_round(requester);
                }
            },
            Ask::Retract { segment } => requester.memory.retract(segment).into(),
        };
        match asker {
            Asker::Own(i) => requester.finish_with(i, value, size_of::<u64>()),
            Asker::Peer(answer) => requester.answer(Answer { value, ..answer }),
        }
    }

    /// Copies the next part of the first copy inside this rank. Returns true if there was one.
    pub fn copy_part(&mut self, requester: &mut Requester) -> bool {
        let Some(&i) = self.copies.front() else { return false };
        let op = requester.operations[i];
        let part = (op.len - op.offset).min(PART);
        let copied = requester.memory.copy(op.dst.add(op.offset), op.src.add(op.offset), part as usize);
        let op = &mut requester.operations[i];
        op.offset += part;
        let status = match copied {
            Ok(()) if op.offset < op.len => return true,
            Ok(()) => Status::Done,
            // It was unregistered meanwhile.
            Err(_) => Status::SourceOutside,
        };
        self.copies.pop_front();
        requester.answer_served(i, status, if status == Status::Done { 0 } else { NOTHING });
        true
    }
}

fn repost_receive(requester: &mut Requester, arrival: &Arrival) {
    if let Err(error) = requester.mesh.repost_command(arrival) {
        requester.fail(error.into());
    }
}
