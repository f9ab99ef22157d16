//! Messages that have come: they lie where the device has put them, in receives that all senders share, until the
//! program gives them back; or in memory of their own, for receives are for those who still send.

use std::collections::VecDeque;

use vervain_mesh::Mesh;

use crate::error::Result;
use crate::image::SavedMessage;
use crate::nodes::{Nodes, PORT};
use crate::window::Window;

/// Between two looks at what else may have happened, a program that waits for a message looks as often for that alone.
const LOOKS: u32 = 16;

/// In place of a receive: the message was copied out of its own.
const KEPT: u32 = u32::MAX;

/// A message that has come: which receive it has taken, its length, and from which node.
#[derive(Clone, Copy)]
struct Message {
    buffer: u32,
    len: u32,
    node: u32,
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

/// A message in memory of its own.
struct Kept {
    pub node: u32,
    len: usize,
    /// The bytes as words, since programs read words from messages.
    words: Box<[u64]>,
}

impl Kept {
    /// A message of these bytes.
    pub fn new(node: u32, bytes: &[u8]) -> Self {
        let mut words = vec![0; bytes.len().div_ceil(8)].into_boxed_slice();
        for (word, bytes) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut all = [0; 8];
            all[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(all);
        }
        Self { node, len: bytes.len(), words }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Address of the bytes; the program may write to them.
    pub fn memory(&mut self) -> *mut u8 {
        self.words.as_mut_ptr().cast()
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.truncate(self.len);
        bytes
    }
}

/// The messages that the program has not given back.
pub(crate) struct Inbox {
    /// Messages out of their receives, in order, all before those that are in theirs; and the one that the program has.
    kept: VecDeque<Kept>,
    kept_out: Option<Kept>,
    /// Messages in their receives, in order.
    queue: VecDeque<Message>,
    /// The message that the program has.
    received: Option<Message>,
    pub window: Window,
    /// How often a receive has found nothing.
    idle: u32,
}

impl Inbox {
    /// An inbox of so many receives, which connections share or not.
    pub fn new(receives: usize, shared: bool) -> Inbox {
        Inbox {
            kept: VecDeque::new(),
            kept_out: None,
            queue: VecDeque::with_capacity(receives),
            received: None,
            window: Window::new(receives as u32, shared),
            idle: 0,
        }
    }

    /// Takes in what has come; returns how many messages.
    #[inline]
    pub fn poll(&mut self, nodes: &mut Nodes) -> Result<usize> {
        let Inbox { queue, window, .. } = self;
        Ok(nodes.poll_messages(|command, node| {
            window.taken();
            queue.push_back(Message { buffer: command.buffer, len: command.len, node });
        })?)
    }

    /// Returns true if there is a message that the program has not.
    pub fn has_messages(&self) -> bool {
        self.is_queued() || self.has_kept()
    }

    /// Returns true if there is one in its receive.
    #[inline]
    pub fn is_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns true if there is one in memory of its own.
    #[inline]
    pub fn has_kept(&self) -> bool {
        !self.kept.is_empty()
    }

    /// A receive has found nothing. Returns true if it is time to look at what else may have happened.
    #[inline]
    pub fn found_nothing(&mut self) -> bool {
        self.idle = self.idle.wrapping_add(1);
        self.idle.is_multiple_of(LOOKS)
    }

    /// Returns true if senders may wait for a receive, since the program has not received what is in them.
    pub fn is_used_up(&self) -> bool {
        self.window.is_used_up(self.queue.len())
    }

    /// Messages in memory of their own.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Returns true if the program has a message.
    #[inline]
    pub fn is_out(&self) -> bool {
        self.received.is_some()
    }

    /// The sender of the message that the program has.
    pub fn sender(&self) -> Option<u32> {
        self.received.map(|message| message.node)
    }

    /// Gives the program the first message in its receive.
    #[inline]
    pub fn receive(&mut self, mesh: &Mesh) -> Option<Received> {
        let message = self.queue.pop_front()?;
        self.received = Some(message);
        Some(Received { at: mesh.memory_of(PORT, message.buffer), len: message.len as usize, node: message.node })
    }

    /// Gives the program the first message in memory of its own.
    #[cold]
    pub fn receive_kept(&mut self) -> Option<Received> {
        let kept = self.kept.pop_front()?;
        let (node, len) = (kept.node, kept.len());
        self.received = Some(Message { buffer: KEPT, len: len as u32, node });
        let out = self.kept_out.insert(kept);
        Some(Received { at: out.memory(), len, node })
    }

    /// Gives back the message that the program has. None: it has none.
    #[inline]
    pub fn release(&mut self, mesh: &mut Mesh) -> Option<Result<()>> {
        let message = self.received.take()?;
        Some(self.let_go(message, mesh))
    }

    /// The program has no more use for a message.
    #[inline]
    fn let_go(&mut self, message: Message, mesh: &mut Mesh) -> Result<()> {
        if message.buffer == KEPT {
            self.kept_out = None;
            return Ok(());
        }
        self.window.give_back(message.buffer, mesh)
    }

    /// Takes messages out of their receives.
    #[cold]
    pub fn keep(&mut self, nodes: &mut Nodes) {
        while let Some(message) = self.queue.pop_front() {
            let mut bytes = vec![0; message.len as usize];
            nodes.mesh.read_memory_of(PORT, message.buffer, &mut bytes);
            self.kept.push_back(Kept::new(message.node, &bytes));
            if let Err(error) = self.window.give_back(message.buffer, &mut nodes.mesh) {
                nodes.fail(error);
            }
        }
    }

    /// Gives back all that has come, for nobody will look at it.
    pub fn discard(&mut self, nodes: &mut Nodes) {
        while let Some(message) = self.received.take().or_else(|| self.queue.pop_front()) {
            if let Err(error) = self.let_go(message, &mut nodes.mesh) {
                nodes.note_failure(error);
            }
        }
        self.kept.clear();
    }

    /// The messages in memory of their own, for an image.
    pub fn saved(&self) -> Vec<SavedMessage> {
        self.kept.iter().map(|kept| SavedMessage { node: kept.node, bytes: kept.bytes() }).collect()
    }

    /// Takes the messages of an image; there are no others.
    pub fn restore(&mut self, messages: &[SavedMessage]) {
        self.kept = messages.iter().map(|message| Kept::new(message.node, &message.bytes)).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_kept_has_its_bytes() {
        for len in [1, 7, 8, 9, 8192] {
            let bytes: Vec<u8> = (0..len).map(|at| at as u8 ^ 0x5a).collect();
            let mut kept = Kept::new(3, &bytes);
            assert_eq!((kept.len(), kept.bytes()), (len, bytes));
            assert!(kept.memory().addr().is_multiple_of(8));
        }
    }
}
