//! Receiving: messages lie where the device has put them, in receives that all senders share, until the program gives
//! them back.

use crate::engine::{Engine, PORT};
use crate::error::{Error, Result};

const NONE: Error = Error::plain(libc::ENOBUFS, "no message has come");
const BUSY: Error = Error::plain(libc::EBUSY, "the message that was received last was not released");
const NOTHING_RECEIVED: Error = Error::plain(libc::EIO, "no message was received");

/// Between two looks at what else may have happened, a program that waits for a message looks as often for that alone.
const LOOKS: u32 = 16;

/// In place of a receive: the message was copied out of its own.
pub(crate) const KEPT: u32 = u32::MAX;

/// A message that has come: which receive it has taken, its length, and from which node.
#[derive(Clone, Copy)]
pub(crate) struct Message {
    pub buffer: u32,
    pub len: u32,
    pub node: u32,
}

/// A message in its receive buffer, the program's until it is [released](crate::Context::release_receive_buffer).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Its address.
    pub at: *mut u8,
    /// Its length in bytes.
    pub len: usize,
    /// The node that has sent it.
    pub node: u32,
}

impl Engine {
    /// The next message.
    #[inline]
    pub fn receive(&mut self) -> Result<Received> {
        if self.received.is_some() {
            return Err(BUSY);
        }
        if !self.rest.kept.is_empty() {
            return Ok(self.receive_kept());
        }
        if self.queue.is_empty() && !self.look_for_messages() {
            return self.nothing_received();
        }
        let Some(message) = self.queue.pop_front() else { return Err(NONE) };
        self.received = Some(message);
        Ok(Received { at: self.receive_memory(message.buffer), len: message.len as usize, node: message.node })
    }

    /// Address of a message.
    #[inline]
    fn receive_memory(&self, buffer: u32) -> *mut u8 {
        self.mesh.memory_of(PORT, buffer)
    }

    #[inline]
    fn nothing_received(&mut self) -> Result<Received> {
        self.idle = self.idle.wrapping_add(1);
        if self.idle.is_multiple_of(LOOKS) { self.look_further() } else { Err(NONE) }
    }

    #[inline(never)]
    fn look_further(&mut self) -> Result<Received> {
        self.keeps_up();
        if self.under_way() {
            self.look_for_completions();
        }
        self.check()?;
        if let Some(node) = self.untold.pop_front() {
            return Err(Error::new(libc::EPIPE, &*self.lost[&node]));
        }
        Err(NONE)
    }

    /// Gives the buffer of the message that was received last back to the device.
    #[inline]
    pub fn release_receive_buffer(&mut self) -> Result<()> {
        let Some(message) = self.received.take() else { return Err(NOTHING_RECEIVED) };
        self.let_go(message)
    }

    /// The program has no more use for a message.
    #[inline]
    pub fn let_go(&mut self, message: Message) -> Result<()> {
        if message.buffer == KEPT {
            self.rest.out = None;
            return Ok(());
        }
        self.give_back(message.buffer)
    }

    /// A message that was kept in other memory than its receive's, before all that are in those.
    #[cold]
    fn receive_kept(&mut self) -> Received {
        let kept = self.rest.kept.pop_front().expect("there is one, by the caller's word");
        let (node, len) = (kept.node, kept.len());
        self.received = Some(Message { buffer: KEPT, len: len as u32, node });
        let out = self.rest.out.insert(kept);
        Received { at: out.memory(), len, node }
    }

    /// The sender of the message that was received last.
    pub fn sender(&self) -> Result<u32> {
        self.received.map(|message| message.node).ok_or(NOTHING_RECEIVED)
    }

    /// Gives back all that has come, for nobody will look at it.
    pub fn discard(&mut self) {
        while self.look_for_messages() {}
        while let Some(message) = self.received.take().or_else(|| self.queue.pop_front()) {
            if let Err(error) = self.let_go(message) {
                self.failure.get_or_insert(error);
            }
        }
        self.rest.kept.clear();
    }
}
