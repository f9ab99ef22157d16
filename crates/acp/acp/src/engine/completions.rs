//! Work that follows the completion of a request.

use vervain_mesh::{Link, Mesh};
use vervain_rdma::{Completion, Status as CompletionStatus};

use super::Engine;
use super::buffers::BOUNCE;
use super::requester::{FETCH, SENT};
use crate::address::GlobalAddress;
use crate::command::{NOTHING, Notice, Status};
use crate::error::Error;
use crate::op::{Place, Step, Work, half};
use crate::table::read_only;

impl Engine {
    /// Goes on after one completion.
    #[inline]
    pub(super) fn handle_completion(&mut self, completion: &Completion) {
        if !completion.is_success() {
            return self.handle_failed(completion);
        }
        if let Some((link, immediate)) = Mesh::notice(completion) {
            return self.handle_notice(link, immediate);
        }
        let id = completion.id();
        if id & FETCH != 0 {
            return self.requester.handle_entry(id as u32);
        }
        let i = id as u32;
        let op = &mut self.requester.operations[i];
        op.in_flight -= 1;
        let (over, link) = (op.in_flight == 0 && op.place == Place::Posted, op.link);
        let connection = &mut self.requester.connections[link.index];
        if id & SENT != 0 {
            connection.sent -= 1;
        } else {
            connection.posted -= 1;
        }
        let waits = connection.has_waiting();
        if over {
            self.finish_step(i);
        }
        if waits {
            self.requester.pump(link);
        }
    }

    /// Ends a step of an operation whose requests are all over.
    fn finish_step(&mut self, i: u32) {
        let op = &mut self.requester.operations[i];
        let link = op.link;
        match (op.work, op.step) {
            (Work::Put | Work::Get | Work::Device(_), _) => {
                let connection = &mut self.requester.connections[link.index];
                connection.singles -= 1;
                connection.reads -= u32::from(op.work != Work::Put);
                self.requester.mesh.release(link);
                self.requester.operations.finish(i);
            }
            (Work::Bounce, Step::Read) => {
                op.step = Step::Write;
                self.requester.mesh.release(link);
                self.requester.route(i);
            }
            (Work::Bounce, _) => {
                op.offset += (op.len - op.offset).min(BOUNCE);
                op.step = Step::Read;
                let more = op.offset < op.len;
                self.requester.mesh.release(link);
                if more { self.requester.route(i) } else { self.requester.operations.finish(i) }
            }
            (Work::Loop(_), _) => self.finish_loop_step(i),
            (Work::Forward | Work::Owner(_) | Work::Ask(_) | Work::Discard, _) => {
                if op.answered {
                    self.handle_answer(i);
                }
            }
            (Work::Serve, Step::Write) => {
                self.requester.mesh.release(link);
                self.requester.answer_served(i, Status::Done, 0);
            }
            (Work::Notify(_), _) => {
                self.requester.mesh.release(link);
                self.requester.operations.finish(i);
            }
            (Work::Serve | Work::ServeHere | Work::Answer, _) => {
                self.requester.mesh.release(link);
                self.server.end_command();
                self.requester.operations.finish(i);
            }
            (Work::Here | Work::HereAtomic(_), _) => unreachable!("nothing of it is posted"),
        }
    }

    /// Ends a Read or a compare and swap of a loop.
    fn finish_loop_step(&mut self, i: u32) {
        let found = self.requester.operations.word(i);
        let op = &mut self.requester.operations[i];
        let Work::Loop(what) = op.work else { return };
        let (link, upper) = (op.link, op.upper);
        let swapped = op.step == Step::Atomic && found == op.expected;
        op.expected = found;
        let old = half(found, what.width(), upper);
        if swapped || what.apply(old).is_none() {
            self.requester.end_loop(i);
            self.requester.mesh.release(link);
            return self.requester.finish_with(i, old, what.width());
        }
        self.requester.operations[i].step = Step::Atomic;
        // Posted before others that wait: the guess is good now.
        self.requester.repost(i);
    }

    /// Ends a request that a peer has answered.
    fn finish_ask(&mut self, i: u32, value: u64) {
        match self.requester.operations[i].dst {
            GlobalAddress::NULL => self.wakes.handle_looked(&mut self.requester, i),
            _ => self.requester.finish_with(i, value, size_of::<u64>()),
        }
    }

    fn handle_notice(&mut self, link: Link, immediate: u32) {
        self.requester.mesh.received(link);
        if let Err(error) = self.requester.mesh.repost_notice(link) {
            return self.requester.fail(error.into());
        }
        match Notice::decode(immediate) {
            Some(Notice::Barrier(round)) => {
                if let Some(count) = self.barrier.get_mut(round as usize) {
                    *count += 1;
                }
            }
            Some(Notice::Answer(index, status)) => {
                let Some(op) = self.requester.operations.get_mut(usize::from(index)) else { return };
                // Only the server of this command may answer it.
                let is_asked = matches!(op.work, Work::Forward | Work::Owner(_) | Work::Ask(_) | Work::Discard)
                    && matches!(op.place, Place::Posted)
                    && op.link == link
                    && !op.answered;
                if !is_asked {
                    return;
                }
                op.answered = true;
                op.answer.status = status as u8;
                if op.in_flight == 0 {
                    self.handle_answer(u32::from(index));
                }
            }
            None => {}
        }
    }

    /// Goes on after a command that has been sent and answered.
    fn handle_answer(&mut self, i: u32) {
        let op = &mut self.requester.operations[i];
        let (link, work, status, dst, src, len) = (op.link, op.work, op.answer.status, op.dst, op.src, op.len);
        op.answered = false;
        let value = self.requester.operations.word(i);
        let connection = &mut self.requester.connections[link.index];
        connection.unanswered -= 1;
        let waits = connection.has_waiting();
        let size = (value != NOTHING).then_some(value);
        match status {
            s if s == Status::Busy as u8 => {
                self.requester.mesh.release(link);
                let op = &mut self.requester.operations[i];
                op.work = Work::Bounce;
                self.requester.start(i);
            }
            s if s == Status::SourceOutside as u8 => {
                let error = self.requester.outside(src, len, size);
                self.requester.fail(error);
            }
            s if s == Status::DestinationOutside as u8 => {
                let error = self.requester.outside(dst, len, size);
                self.requester.fail(error);
            }
            s if s == Status::ReadOnly as u8 => {
                let address = if let Work::Owner(_) = work { src } else { dst };
                let rank = self.requester.memory.layout.parts(address).map_or(0, |parts| parts.rank);
                self.requester.fail(Error::broken(read_only(rank, address)));
            }
            s if s == Status::Misaligned as u8 => {
                self.requester
                    .fail(Error::broken(format!("the word of {len} bytes at {src} is not aligned to its size")));
            }
            _ => {
                self.requester.mesh.release(link);
                match work {
                    Work::Owner(what) => self.requester.finish_with(i, value, what.width()),
                    Work::Ask(_) => self.finish_ask(i, value),
                    Work::Discard => {
                        self.requester.operations.finish(i);
                        self.server.handle_forgotten(&mut self.requester);
                    }
                    _ => self.requester.operations.finish(i),
                }
            }
        }
        if waits {
            self.requester.pump(link);
        }
    }

    #[cold]
    fn handle_failed(&mut self, completion: &Completion) {
        if completion.status() == CompletionStatus::Flushed && self.requester.failure.is_some() {
            return;
        }
        if let Some((link, _)) = Mesh::notice(completion) {
            let (rank, _) = self.requester.mesh.peer(link);
            return self
                .requester
                .fail(Error::broken(format!("the connection to rank {rank} broke: {}", completion.status())));
        }
        let id = completion.id();
        let link = match id & FETCH {
            0 => self.requester.operations.of_request(id).link,
            _ => Link { index: id as u32, life: 0 },
        };
        let (rank, _) = self.requester.mesh.peer(link);
        let op = self.requester.operations.of_request(id);
        let what = match op.work {
            _ if id & FETCH != 0 => "reading its table of registrations".to_owned(),
            Work::Put | Work::Get | Work::Bounce | Work::Forward | Work::Serve => {
                format!("a copy of {} bytes from {} to {}", op.len, op.src, op.dst)
            }
            Work::Device(_) | Work::Loop(_) | Work::Owner(_) => format!("an atomic at {}", op.src),
            _ => "a message".to_owned(),
        };
        let status = completion.status();
        let sentence = match status {
            CompletionStatus::RetryExceeded | CompletionStatus::RnrRetryExceeded => {
                format!("rank {rank} does not answer: {what} failed with {status}")
            }
            CompletionStatus::RemoteAccess => {
                format!(
                    "rank {rank} refuses {what}: the memory is registered no longer, or may not be written: {status}"
                )
            }
            _ => format!("{what} failed at the connection to rank {rank}: {status}"),
        };
        self.requester.fail(Error::broken(sentence));
    }
}
