//! READs and atomics that have been accepted: what is still to be answered, and what may be asked for again.

use serde::{Deserialize, Serialize};

/// The contents of an answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// A READ response with this memory, read when it is sent.
    #[allow(missing_docs)]
    Read { srqn: u32, rkey: u32, addr: u64, length: u32 },
    /// An atomic acknowledgement with the word before.
    Word(u64),
    /// A READ response of no bytes (FLUSH, ATOMIC WRITE).
    Nothing,
    /// A plain acknowledgement of SENDs and WRITEs that have come again.
    Acknowledgement,
}

/// A request that has been executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resource {
    /// PSN of the request.
    pub first_psn: u32,
    /// Packets of its answer.
    pub packets: u32,
    /// The answer.
    pub body: Body,
    /// MSN once it is executed.
    pub msn: u32,
}

/// An answer to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// PSN of its next packet.
    pub psn: u32,
    /// Packets left.
    pub packets: u32,
    /// The part of it that is still to be sent.
    pub body: Body,
    /// MSN to be sent with it.
    pub msn: u32,
    /// Its first packets have been sent.
    pub begun: bool,
    /// It is sent because it was asked for again.
    pub again: bool,
}
