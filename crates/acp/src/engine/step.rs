//! What follows when a request has completed.

use vervain_mesh::Mesh;
use vervain_rdma::{Completion, Status as CompletionStatus};

use super::Engine;
use super::buffers::BOUNCE;
use crate::address::GlobalAddress;
use crate::command::{NOTHING, Notice, Status};
use crate::error::Error;
use crate::op::{Place, Step, Work};
use crate::table::read_only;

/// In the id of a request: not an operation's, but the Read of an entry for the connection with this index.
pub(super) const FETCH: u64 = 1 << 40;
/// The request is a command.
pub(super) const SENT: u64 = 1 << 41;

impl Engine {
    /// Goes on after one completion.
    #[inline]
    pub(super) fn completed(&mut self, completion: &Completion) {
        if !completion.is_success() {
            return self.completed_badly(completion);
        }
        if let Some((link, immediate)) = Mesh::notice(completion) {
            return self.notice(link, immediate);
        }
        let id = completion.id();
        if id & FETCH != 0 {
            return self.fetched(id as u32);
        }
        let i = id as u32;
        let op = &mut self.operations[i];
        op.in_flight -= 1;
        let (over, link) = (op.in_flight == 0 && op.place == Place::Posted, op.link);
        let connection = &mut self.connections[link.index as usize];
        if id & SENT != 0 {
            connection.sent -= 1;
        } else {
            connection.posted -= 1;
        }
        let waits = connection.has_waiting();
        if over {
            self.step_over(i);
        }
        if waits {
            self.pump(link);
        }
    }

    /// All requests of an operation's step are over.
    fn step_over(&mut self, i: u32) {
        let op = &mut self.operations[i];
        let link = op.link;
        match (op.work, op.step) {
            (Work::Put | Work::Get | Work::Device(_), _) => {
                let connection = &mut self.connections[link.index as usize];
                connection.singles -= 1;
                connection.reads -= u32::from(op.work != Work::Put);
                self.mesh.release(link);
                self.operations.finish(i);
            }
            (Work::Bounce, Step::Read) => {
                op.step = Step::Write;
                self.mesh.release(link);
                self.route(i);
            }
            (Work::Bounce, _) => {
                op.offset += (op.len - op.offset).min(BOUNCE);
                op.step = Step::Read;
                let more = op.offset < op.len;
                self.mesh.release(link);
                if more { self.route(i) } else { self.operations.finish(i) }
            }
            (Work::Loop(_), _) => self.loop_over(i),
            (Work::Forward | Work::Owner(_) | Work::Ask(_) | Work::Discard, _) => {
                if op.answered {
                    self.answered(i);
                }
            }
            (Work::Serve, Step::Write) => {
                self.mesh.release(link);
                self.served_op(i, Status::Done, 0);
            }
            (Work::Notify(_), _) => {
                self.mesh.release(link);
                self.operations.finish(i);
            }
            (Work::Serve | Work::ServeHere | Work::Answer, _) => {
                self.mesh.release(link);
                self.served -= 1;
                self.operations.finish(i);
            }
            (Work::Here | Work::HereAtomic(_), _) => unreachable!("nothing of it is posted"),
        }
    }

    /// A Read or a compare and swap of a loop is over.
    fn loop_over(&mut self, i: u32) {
        let found = self.operations.word(i);
        let op = &mut self.operations[i];
        let Work::Loop(what) = op.work else { return };
        let (dst, link, upper) = (op.dst, op.link, op.upper);
        let swapped = op.step == Step::Atomic && found == op.expected;
        op.expected = found;
        let old = half(found, what.width(), upper);
        if swapped || what.apply(old).is_none() {
            self.loop_done(i);
            self.mesh.release(link);
            return self.atomic_over(i, dst, old, what.width());
        }
        self.operations[i].step = Step::Atomic;
        // Before others that wait: the guess is good now.
        self.repost(i);
    }

    fn atomic_over(&mut self, i: u32, dst: GlobalAddress, old: u64, width: usize) {
        match self.memory.store(dst, old, width) {
            Ok(()) => self.operations.finish(i),
            Err(error) => self.fail(error),
        }
    }

    /// What was asked for has been answered.
    pub(super) fn ask_over(&mut self, i: u32, value: u64) {
        match self.operations[i].dst {
            GlobalAddress::NULL => self.has_looked(i),
            dst => self.atomic_over(i, dst, value, size_of::<u64>()),
        }
    }

    fn notice(&mut self, link: vervain_mesh::Link, immediate: u32) {
        self.mesh.received(link);
        if let Err(error) = self.mesh.repost_notice(link) {
            return self.fail(error.into());
        }
        match Notice::decode(immediate) {
            Some(Notice::Barrier(round)) => {
                if let Some(count) = self.barrier.get_mut(round as usize) {
                    *count += 1;
                }
            }
            Some(Notice::Answer(index, status)) => {
                let Some(op) = self.operations.get_mut(usize::from(index)) else { return };
                // Nobody but the server of this command is to answer it.
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
                    self.answered(u32::from(index));
                }
            }
            None => {}
        }
    }

    /// A command has been sent, and its answer has come.
    fn answered(&mut self, i: u32) {
        let op = &mut self.operations[i];
        let (link, work, status, dst, src, len) = (op.link, op.work, op.answer.status, op.dst, op.src, op.len);
        op.answered = false;
        let value = self.operations.word(i);
        let connection = &mut self.connections[link.index as usize];
        connection.unanswered -= 1;
        let waits = connection.has_waiting();
        let size = (value != NOTHING).then_some(value);
        match status {
            s if s == Status::Busy as u8 => {
                self.mesh.release(link);
                let op = &mut self.operations[i];
                op.work = Work::Bounce;
                self.start(i);
            }
            s if s == Status::SourceOutside as u8 => {
                let error = self.outside(src, len, size);
                self.fail(error);
            }
            s if s == Status::DestinationOutside as u8 => {
                let error = self.outside(dst, len, size);
                self.fail(error);
            }
            s if s == Status::ReadOnly as u8 => {
                let address = if let Work::Owner(_) = work { src } else { dst };
                let rank = self.memory.layout.parts(address).map_or(0, |parts| parts.rank);
                self.fail(Error::broken(read_only(rank, address)));
            }
            s if s == Status::Misaligned as u8 => {
                self.fail(Error::broken(format!("the word of {len} bytes at {src} is not aligned to its size")));
            }
            _ => {
                self.mesh.release(link);
                match work {
                    Work::Owner(what) => self.atomic_over(i, dst, value, what.width()),
                    Work::Ask(_) => self.ask_over(i, value),
                    Work::Discard => {
                        self.operations.finish(i);
                        self.has_forgotten();
                    }
                    _ => self.operations.finish(i),
                }
            }
        }
        if waits {
            self.pump(link);
        }
    }

    #[cold]
    fn completed_badly(&mut self, completion: &Completion) {
        if completion.status() == CompletionStatus::Flushed && self.failure.is_some() {
            return;
        }
        if let Some((link, _)) = Mesh::notice(completion) {
            let (rank, _) = self.mesh.peer(link);
            return self.fail(Error::broken(format!("the connection to rank {rank} broke: {}", completion.status())));
        }
        let id = completion.id();
        let link = match id & FETCH {
            0 => self.operations.of_request(id).link,
            _ => vervain_mesh::Link { index: id as u32, life: 0 },
        };
        let (rank, _) = self.mesh.peer(link);
        let op = self.operations.of_request(id);
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
        self.fail(Error::broken(sentence));
    }
}

/// The word of `width` bytes inside the 8 that a device has brought.
fn half(word: u64, width: usize, upper: bool) -> u64 {
    match (width, upper) {
        (8, _) => word,
        (_, false) => word & 0xffff_ffff,
        (_, true) => word >> 32,
    }
}

/// The 8 bytes with `value` in the place of one half.
pub(super) fn with_half(word: u64, value: u64, width: usize, upper: bool) -> u64 {
    match (width, upper) {
        (8, _) => value,
        (_, false) => word & !0xffff_ffff | value & 0xffff_ffff,
        (_, true) => word & 0xffff_ffff | value << 32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_half_is_taken_out_and_put_back() {
        let word = 0x1111_1111_2222_2222;
        assert_eq!((half(word, 4, false), half(word, 4, true), half(word, 8, true)), (0x2222_2222, 0x1111_1111, word));
        assert_eq!(with_half(word, 0x3333_3333, 4, true), 0x3333_3333_2222_2222);
        assert_eq!(with_half(word, 0x3333_3333, 4, false), 0x1111_1111_3333_3333);
        assert_eq!(with_half(word, 7, 8, false), 7);
    }
}
