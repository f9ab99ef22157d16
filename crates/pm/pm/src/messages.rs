//! Sending and receiving of messages.

use vervain_mesh::Link;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::image::SavedMessage;
use crate::nodes::QUEUE;
use crate::receive::Received;
use crate::rest::STOPPED;
use crate::send::Out;

const FULL: Error = Error::plain(libc::ENOBUFS, "no send buffer is free, or the node is not connected yet");
const OUT: Error = Error::plain(libc::EBUSY, "a send buffer was taken and not sent");
const NOT_SENT: Error = Error::plain(libc::EBUSY, "messages are still being sent");
const NONE: Error = Error::plain(libc::ENOBUFS, "no message has come");
const RECEIVED: Error = Error::plain(libc::EBUSY, "the message that was received last was not released");
const NOTHING_RECEIVED: Error = Error::plain(libc::EIO, "no message was received");

impl Engine {
    /// A buffer of `len` bytes for a message to `node`.
    #[inline]
    pub fn send_buffer(&mut self, node: u32, len: usize) -> Result<*mut u8> {
        let mtu = self.sends.mtu();
        if len == 0 || len > mtu {
            return Err(Error::invalid(format!("a message of {len} bytes: 1 to {mtu} are possible")));
        }
        self.nodes.check_node(node)?;
        if self.sends.out().is_some() {
            return Err(OUT);
        }
        if self.rest.is_stopped {
            return Err(STOPPED);
        }
        if self.rest.unsent.is_some() && !self.begin_unsent() {
            return self.no_buffer();
        }
        let Some((slot, link)) = self.take_slot(node) else { return self.no_buffer() };
        self.nodes.mesh.hold(link);
        Ok(self.sends.give_out(Out { slot, len: len as u32, node, link }))
    }

    /// A free slot, and the connection to a node, where it takes one more message.
    #[inline]
    fn take_slot(&mut self, node: u32) -> Option<(u32, Link)> {
        if !self.sends.has_free() {
            self.look_for_completions();
        }
        let link = self.connection_with_room(node)?;
        Some((self.sends.take()?, link))
    }

    /// The connection to a node, where it takes one more message.
    #[inline]
    fn connection_with_room(&mut self, node: u32) -> Option<Link> {
        let link = self.connection(node)?;
        if self.nodes.connection(link).messages <= 1 {
            return Some(link);
        }
        // The buffer of a message that is over is the next, since it is in the cache. When the last one is over, and
        // others wait for the place, the connection is not that to the node any more.
        self.look_for_completions();
        self.nodes.find(node).filter(|link| self.nodes.connection(*link).messages < QUEUE)
    }

    /// Looks at all that could make room, for the next try.
    #[cold]
    fn no_buffer(&mut self) -> Result<*mut u8> {
        self.look();
        self.nodes.check()?;
        Err(FULL)
    }

    /// Sends the buffer that was given out.
    #[inline]
    pub fn send(&mut self) -> Result<()> {
        let Some(out) = self.sends.out() else {
            return Err(Error::invalid("no send buffer was taken"));
        };
        if self.rest.is_stopped {
            return Err(STOPPED);
        }
        self.sends.take_out();
        self.post_taken(out)
    }

    /// Sends what is in a slot that was taken, by a connection that is held for it.
    #[inline]
    fn post_taken(&mut self, out: Out) -> Result<()> {
        let sent = self.post_message(out);
        if sent.is_err() {
            self.sends.give_back(out.slot);
            self.nodes.mesh.release(out.link);
        }
        sent
    }

    #[inline]
    fn post_message(&mut self, Out { slot, len, node, link }: Out) -> Result<()> {
        self.nodes.check_node(node)?;
        self.sends.post(slot, len, self.nodes.mesh.commands(link))?;
        self.nodes.mesh.sent(link);
        self.sends.posted(slot, len, link);
        let connection = self.nodes.connection_mut(link);
        connection.messages += 1;
        connection.counts.sent += 1;
        Ok(())
    }

    /// Sends a message of an image. Returns true if it has begun, or never will: its node is lost.
    pub fn begin_message(&mut self, message: &SavedMessage) -> bool {
        if self.nodes.is_lost(message.node) || self.nodes.has_failed() {
            return true;
        }
        let Some((slot, link)) = self.take_slot(message.node) else { return false };
        self.nodes.mesh.hold(link);
        self.sends.write(slot, &message.bytes);
        let out = Out { slot, len: message.bytes.len() as u32, node: message.node, link };
        if let Err(error) = self.post_taken(out) {
            self.nodes.fail(error);
        }
        true
    }

    /// Gives the buffer back that was given out.
    pub fn forget_send_buffer(&mut self) {
        if let Some(Out { slot, link, .. }) = self.sends.take_out() {
            self.sends.give_back(slot);
            self.nodes.mesh.release(link);
        }
    }

    /// A message is with its node, or has failed: by which connection.
    #[inline]
    pub fn message_over(&mut self, slot: u32) -> Link {
        let link = self.sends.over(slot);
        self.nodes.connection_mut(link).messages -= 1;
        link
    }

    /// Checks that all messages that were sent are with their nodes.
    pub fn check_sent(&mut self) -> Result<()> {
        self.begin_unsent();
        while self.look_for_completions() {}
        self.nodes.check()?;
        let is_begun = self.rest.unsent.as_ref().is_none_or(|unsent| unsent.messages.is_empty());
        if is_begun && !self.sends.under_way() { Ok(()) } else { Err(NOT_SENT) }
    }

    /// The next message.
    #[inline]
    pub fn receive(&mut self) -> Result<Received> {
        if self.inbox.is_out() {
            return Err(RECEIVED);
        }
        if self.inbox.has_kept() {
            return self.inbox.receive_kept().ok_or(NONE);
        }
        if !self.inbox.is_queued() && !self.look_for_messages() {
            return self.nothing_received();
        }
        self.inbox.receive(&self.nodes.mesh).ok_or(NONE)
    }

    #[inline]
    fn nothing_received(&mut self) -> Result<Received> {
        if self.inbox.found_nothing() { self.look_further() } else { Err(NONE) }
    }

    #[inline(never)]
    fn look_further(&mut self) -> Result<Received> {
        self.inbox.window.keeps_up();
        if self.under_way() {
            self.look_for_completions();
        }
        self.nodes.check()?;
        Err(self.nodes.next_loss().unwrap_or(NONE))
    }

    /// Gives the buffer of the message that was received last back to the device.
    #[inline]
    pub fn release_receive_buffer(&mut self) -> Result<()> {
        self.inbox.release(&mut self.nodes.mesh).unwrap_or(Err(NOTHING_RECEIVED))
    }

    /// The sender of the message that was received last.
    pub fn sender(&self) -> Result<u32> {
        self.inbox.sender().ok_or(NOTHING_RECEIVED)
    }

    /// Gives back all that has come, for nobody will look at it.
    pub fn discard(&mut self) {
        while self.look_for_messages() {}
        self.inbox.discard(&mut self.nodes);
    }

    /// Checks that an image can be made as far as the program goes: it holds nothing that would have to be in the
    /// image.
    pub fn check_hands(&self) -> Result<()> {
        if self.sends.out().is_some() {
            return Err(OUT);
        }
        if self.inbox.is_out() {
            return Err(RECEIVED);
        }
        self.nodes.check_all()
    }
}
