//! The end of a stream: which ways are open still, and the messages that close them.

use crate::protocol::wire::Message;

/// The state of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It is open, at least one way.
    Open,
    /// Both ends have ended it, or one has for both.
    Disconnected,
    /// It is broken, with an errno value.
    Broken(i32),
}

#[derive(Debug)]
pub(super) struct Ending {
    phase: Phase,
    /// This end may send.
    sending: bool,
    /// The peer may send, and this end has not announced that it reads no more.
    receiving: bool,
    /// The last message sent about the end of the stream.
    announced: Option<Message>,
    /// The message about the end of the stream that is still to be sent.
    pending: Option<Message>,
}

impl Ending {
    pub fn new() -> Ending {
        Ending { phase: Phase::Open, sending: true, receiving: true, announced: None, pending: None }
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }

    pub fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    pub fn is_sending(&self) -> bool {
        self.sending
    }

    pub fn is_receiving(&self) -> bool {
        self.receiving
    }

    /// Ends the stream both ways, unless it has ended.
    pub fn end(&mut self, phase: Phase) {
        if self.is_open() {
            (self.phase, self.sending, self.receiving, self.pending) = (phase, false, false, None);
        }
    }

    /// The peer sends no more.
    pub fn peer_shut_down(&mut self) {
        self.receiving = false;
        if !self.sending {
            self.end(Phase::Disconnected);
        }
    }

    /// This end will not read, or not write, any more.
    pub fn shut_down(&mut self, reading: bool, writing: bool) {
        if !self.is_open() {
            return;
        }
        self.receiving &= !reading;
        self.sending &= !writing;
        let end = match (self.receiving, self.sending) {
            (_, true) => return,
            (true, false) => Message::Shutdown,
            (false, false) => Message::Disconnect,
        };
        if self.announced != Some(end) && self.announced != Some(Message::Disconnect) {
            self.pending = Some(end);
        }
    }

    /// Returns true if a message is still to be sent.
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Takes the message that is still to be sent: it is sent.
    pub fn announce(&mut self) -> Option<Message> {
        let end = self.pending.take()?;
        self.announced = Some(end);
        Some(end)
    }
}
