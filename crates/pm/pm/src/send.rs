//! Sending: a buffer of the context's is filled by the program and goes by the lane for commands, into a receive that
//! all senders share. Where the node has none, the device waits and tries again.

use vervain_mesh::Link;
use vervain_rdma::SendRequest;

use crate::engine::{COLOR, Engine, NO_LINK, QUEUE};
use crate::error::{Error, Result};

const FULL: Error = Error::plain(libc::ENOBUFS, "no send buffer is free, or the node is not connected yet");
const BUSY: Error = Error::plain(libc::EBUSY, "a send buffer was taken and not sent");
pub(crate) const STOPPED: Error = Error::plain(libc::ENOBUFS, "sending is stopped");
const NOT_SENT: Error = Error::plain(libc::EBUSY, "messages are still being sent");

/// A send buffer that is with the device.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    pub link: Link,
    pub len: u32,
    /// Which of all messages it was.
    pub order: u64,
}

impl Default for Slot {
    fn default() -> Self {
        Self { link: NO_LINK, len: 0, order: 0 }
    }
}

/// The send buffer that the program fills.
#[derive(Clone, Copy)]
pub(crate) struct Out {
    slot: u32,
    len: u32,
    node: u32,
    link: Link,
}

impl Engine {
    /// A buffer of `len` bytes for a message to `node`.
    #[inline]
    pub fn send_buffer(&mut self, node: u32, len: usize) -> Result<*mut u8> {
        if len == 0 || len > self.mtu {
            return Err(Error::invalid(format!("a message of {len} bytes: 1 to {} are possible", self.mtu)));
        }
        self.check_node(node)?;
        if self.out.is_some() {
            return Err(BUSY);
        }
        if self.rest.is_stopped {
            return Err(STOPPED);
        }
        if self.rest.unsent.is_some() && !self.begin_unsent() {
            return self.no_buffer();
        }
        if self.free.is_empty() {
            self.look_for_completions();
        }
        let Some(link) = self.connection_with_room(node) else { return self.no_buffer() };
        let Some(slot) = self.free.pop() else { return self.no_buffer() };
        self.mesh.hold(link);
        self.out = Some(Out { slot, len: len as u32, node, link });
        Ok(self.buffers.as_ptr().wrapping_add(slot as usize * self.mtu))
    }

    /// The connection to a node, where it takes one more message.
    #[inline]
    pub fn connection_with_room(&mut self, node: u32) -> Option<Link> {
        let link = self.connection(node)?;
        if self.connections[link.index as usize].messages <= 1 {
            return Some(link);
        }
        // The buffer of a message that is over is the next, since it is in the cache. When the last one is over, and
        // others wait for the place, the connection is not that to the node any more.
        self.look_for_completions();
        self.mesh.find(node, COLOR).filter(|link| self.connections[link.index as usize].messages < QUEUE)
    }

    /// Looks at all that could make room, for the next try.
    #[cold]
    fn no_buffer(&mut self) -> Result<*mut u8> {
        self.look();
        self.check()?;
        Err(FULL)
    }

    /// Sends the buffer that was given out.
    #[inline]
    pub fn send(&mut self) -> Result<()> {
        let Some(Out { slot, len, node, link }) = self.out else {
            return Err(Error::invalid("no send buffer was taken"));
        };
        if self.rest.is_stopped {
            return Err(STOPPED);
        }
        self.out = None;
        self.post_taken(slot, len, node, link)
    }

    /// Sends what is in a slot that was taken, by a connection that is held for it.
    #[inline]
    pub fn post_taken(&mut self, slot: u32, len: u32, node: u32, link: Link) -> Result<()> {
        let sent = self.post_message(slot, len, node, link);
        if sent.is_err() {
            self.free.push(slot);
            self.mesh.release(link);
        }
        sent
    }

    #[inline]
    fn post_message(&mut self, slot: u32, len: u32, node: u32, link: Link) -> Result<()> {
        self.check_node(node)?;
        let start = slot as usize * self.mtu;
        let sges = [self.buffers.slice(start..start + len as usize)];
        let request = SendRequest::send(&sges).id(u64::from(slot)).signaled();
        let request = if len as usize <= self.inline { request.inline() } else { request };
        self.mesh.commands(link).post(request)?;
        self.mesh.sent(link);
        self.posted += 1;
        self.slots[slot as usize] = Slot { link, len, order: self.posted };
        let connection = &mut self.connections[link.index as usize];
        connection.messages += 1;
        connection.counts.sent += 1;
        Ok(())
    }

    /// Gives the buffer back that was given out.
    pub fn forget_send_buffer(&mut self) {
        if let Some(Out { slot, link, .. }) = self.out.take() {
            self.free.push(slot);
            self.mesh.release(link);
        }
    }

    /// A message is with its node, or has failed: by which connection.
    #[inline]
    pub fn message_over(&mut self, slot: u32) -> Link {
        let link = self.slots[slot as usize].link;
        self.connections[link.index as usize].messages -= 1;
        self.free.push(slot);
        link
    }

    /// Checks that all messages that were sent are with their nodes.
    pub fn check_sent(&mut self) -> Result<()> {
        self.begin_unsent();
        while self.look_for_completions() {}
        self.check()?;
        let is_begun = self.rest.unsent.as_ref().is_none_or(|unsent| unsent.messages.is_empty());
        if is_begun && self.free.len() + usize::from(self.out.is_some()) == self.slots.len() {
            return Ok(());
        }
        Err(NOT_SENT)
    }
}
