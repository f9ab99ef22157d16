//! The two ends of a channel, as machines that go on when somebody calls.
//!
//! The receiving end has a node and the ring, the sending end the other side of the ring. The receiver pushes its node
//! when it is created; the sender, once it has something to send and has read the node, puts a record there that has
//! the address of its own words, and others behind it. So no end waits for more than that the other one was created,
//! and a message that fits the ring is sent while its receiver does something else.
//!
//! A message of more than [`OFFERED`] bytes is registered for the time and offered, and the receiver fetches it: a
//! registration at each end, no copy. Where there is no registration left, and for shorter ones that no record holds,
//! it goes through the ring in parts.

mod receive;
mod send;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use vervain_acp::{Error, Handle, Order, Result, World};

use crate::mail::{Kind as Ends, Mail, Name, Push};
use crate::memory::{Arena, Foreign, Piece, WORD};
use crate::ring::{self, In};
use crate::slab::{Id, Slab};

use self::receive::ReceiveSide;
use self::send::SendSide;

/// A longer message is offered, so that the receiver fetches it. Registering at both ends, and a rank's sleep while the
/// other one copies, take about 100 µs: 256 KiB took 100 µs so and 30 in parts, 1 MiB 138 and 110 to 135, 4 MiB 250 and
/// 550.
pub(crate) const OFFERED: usize = 1 << 20;
/// Offers of a channel that are not taken yet.
const OFFERS: usize = 4;

/// Words in front of the ring, at both ends.
const FRONT: usize = 16;
/// Words of an end.
const BLOCK: usize = FRONT + ring::WORDS;

/// The receiver's words: the node is the first five.
mod receiver {
    /// The sender sleeps, or is about to.
    pub const WAKE: usize = 5;
    /// The words that pushing has found.
    pub const FOUND: usize = 6;
    /// The words that are put to the sender's words of the same meaning.
    pub const READ: usize = 7;
    pub const TAKEN: usize = 8;
    pub const ONE: usize = 9;
}

/// The sender's words.
mod sender {
    /// Words of the ring that the receiver has read.
    pub const READ: usize = 0;
    /// Offers that it has taken.
    pub const TAKEN: usize = 1;
    /// It has freed its end.
    pub const BYE: usize = 2;
    /// It sleeps, or is about to.
    pub const WAKE: usize = 3;
    /// The words that are put to the receiver's words.
    pub const ONE: usize = 4;
}

/// The purpose of a request.
#[derive(Clone, Copy)]
pub(crate) enum What {
    Send(Foreign),
    Receive(Foreign),
    Free,
}

/// The result of a request: bytes, or the reason why it is impossible.
pub(crate) type Outcome = Result<usize, String>;

pub(crate) struct Request {
    pub end: Id,
    pub outcome: Option<Outcome>,
    /// True if its result is not waited for: it goes when it is over.
    pub is_detached: bool,
}

/// The context in which an end goes on.
pub(crate) struct With<'a, 'w> {
    pub world: &'w World,
    pub arena: &'a mut Arena<'w>,
    pub mail: &'a mut Mail<'w>,
    pub requests: &'a mut Slab<Request>,
    /// Changes when a request is over.
    pub finished: &'a AtomicU64,
    /// Changes when something has come from a peer.
    pub moved: &'a mut u64,
}

impl With<'_, '_> {
    fn done(&mut self, id: Id, outcome: Outcome) {
        if let Some(request) = self.requests.get(id) {
            request.outcome = Some(outcome);
            if request.is_detached {
                self.requests.remove(id);
            }
            // A plain store: only the holder of the lock has these.
            self.finished.store(self.finished.load(Ordering::Relaxed) + 1, Ordering::Release);
        }
    }
}

/// An end of a channel.
pub(crate) struct End<'w> {
    name: Name,
    /// Requests that are not over and not offered, in order.
    queue: VecDeque<(Id, What)>,
    side: Side<'w>,
    /// The last access to the peer's words.
    last: Option<Handle>,
    is_freed: bool,
    /// The peer was asked to wake this rank, and nothing has come since.
    has_asked: bool,
    pub is_active: bool,
}

enum Side<'w> {
    /// A sender that has nothing to send yet, or does not know of its receiver, and its words: later there might be
    /// none.
    Meet(Piece<'w>),
    Send(SendSide<'w>),
    Receive(ReceiveSide<'w>),
}

/// Wakes the peer if it has asked for that.
#[inline]
fn wake_if(world: &World, peer: u32, asked: &AtomicU64) -> Result<()> {
    // If the peer's memory is near, earlier puts must be in it before the word is looked at.
    fence(Ordering::SeqCst);
    // An asker that comes in between is woken now, or asks for the next time.
    if asked.load(Ordering::Relaxed) != 0 && asked.swap(0, Ordering::AcqRel) != 0 {
        world.wake(peer)?;
    }
    Ok(())
}

impl<'w> End<'w> {
    /// The end of this rank's of its next channel from or to `peer`.
    pub fn new(with: &mut With<'_, 'w>, peer: u32, sends: bool) -> Result<Self> {
        let block = with.arena.take(BLOCK)?;
        let side = if sends {
            Side::Meet(block)
        } else {
            block.store(receiver::ONE, 1);
            let name = with.mail.name(peer, Ends::Channel, true);
            let push = Push::new(with.world, name, block, [ring::WORDS as u64, 0, 0], receiver::FOUND)?;
            let input = In::new(block.words(FRONT..BLOCK));
            let side = ReceiveSide { block, push, there: None, input, parts: None, fetch: None, taken: 0, bye: None };
            return Ok(Self::of(name, Side::Receive(side)));
        };
        Ok(Self::of(with.mail.name(peer, Ends::Channel, false), side))
    }

    fn of(name: Name, side: Side<'w>) -> Self {
        Self { name, queue: VecDeque::new(), side, last: None, is_freed: false, has_asked: false, is_active: false }
    }

    /// Takes a request, which [`go_on`](End::go_on) goes on with.
    ///
    /// # Errors
    /// Refused: it is not for this end.
    pub fn ask(&mut self, requests: &mut Slab<Request>, end: Id, what: What) -> Result<Id> {
        let wrong = match (what, &self.side) {
            _ if self.is_freed => "the channel was freed",
            (What::Send(_), Side::Receive(_)) => "this rank is the channel's receiver",
            (What::Receive(_), Side::Send(_) | Side::Meet(_)) => "this rank is the channel's sender",
            _ => {
                self.is_freed = matches!(what, What::Free);
                let id = requests.insert(Request { end, outcome: None, is_detached: false });
                self.queue.push_back((id, what));
                return Ok(id);
            }
        };
        Err(Error::refused(wrong))
    }

    /// Returns true if there is something that it can go on with only later.
    #[inline]
    pub fn is_busy(&self) -> bool {
        let more = match &self.side {
            Side::Meet(_) => false,
            Side::Send(side) => !side.offered.is_empty(),
            Side::Receive(side) => !side.push.is_over(),
        };
        more || !self.queue.is_empty()
    }

    /// Goes on as far as it goes without waiting. False: it is freed, and gone.
    #[inline]
    pub fn go_on(&mut self, with: &mut With<'_, 'w>) -> Result<bool> {
        match self.side {
            Side::Meet(_) | Side::Send(_) => self.send_on(with),
            Side::Receive(_) => self.receive_on(with),
        }
    }

    /// Has the peer wake this rank when it has stored something here.
    pub fn ask_to_be_woken(&mut self, world: &World) -> Result<()> {
        if self.has_asked {
            return Ok(());
        }
        let (to, one) = match &self.side {
            // Records behind that of the end have no reader.
            Side::Send(side) if !side.has_said_free => {
                (side.there.add((receiver::WAKE * WORD) as u64), side.block.address(sender::ONE))
            }
            Side::Receive(ReceiveSide { there: Some(there), bye: None, block, .. }) => {
                (there.add((sender::WAKE * WORD) as u64), block.address(receiver::ONE))
            }
            _ => return Ok(()),
        };
        self.last = Some(world.copy(to, one, WORD, Order::Now)?);
        self.has_asked = true;
        Ok(())
    }

    /// An access of this rank's that the end waits for.
    pub fn awaited(&self) -> Option<Handle> {
        match &self.side {
            Side::Receive(side) => side.bye.or(side.fetch.as_ref().map(|fetch| fetch.handle)),
            Side::Send(side) if !side.has_said_free => self.last,
            Side::Send(_) | Side::Meet(_) => None,
        }
    }

    /// Calls `f` with the words that change when there is something to go on with.
    pub fn watched(&self, mut f: impl FnMut(&'w AtomicU64)) {
        match &self.side {
            Side::Meet(_) => {}
            Side::Send(side) => {
                [sender::READ, sender::TAKEN, sender::BYE].into_iter().for_each(|at| f(side.block.word(at)));
            }
            Side::Receive(side) => {
                f(side.input.next());
                if !side.push.is_over() {
                    f(side.push.watched());
                }
            }
        }
    }
}

fn is_over(world: &World, last: Option<Handle>) -> Result<bool> {
    last.map_or(Ok(true), |handle| world.is_complete(handle))
}
