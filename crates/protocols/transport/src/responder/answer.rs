//! READs and atomics that have been accepted: the answers to be sent, and those that may be asked for again (IBA
//! 9.7.5.1).

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::psn;

/// READs and atomics that are remembered for a requester that takes reports of gaps, for each that may be outstanding:
/// it sends further ones while what is missing of earlier ones is asked for again.
pub(crate) const REMEMBERED: usize = 4;

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

/// The answers of a responder.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// READ responses and atomic answers to be sent, in PSN order, and acknowledgements of repeated requests among
    /// them.
    pub due: VecDeque<Answer>,
    /// READs and atomics that may be asked for again, oldest first.
    pub resources: VecDeque<Resource>,
    /// Their requester takes reports of gaps: [`REMEMBERED`] times as many as may be outstanding are remembered.
    pub remembers_more: bool,
}

impl Answers {
    /// Returns true if nothing is to be sent.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    /// Returns true if there is a place to remember another READ or atomic in, of `most` (IBA 9.7.4.1).
    pub fn has_place(&self, most: u8) -> bool {
        let waiting = || self.due.iter().filter(|answer| !answer.again).count();
        // Answers to be sent again are few, so that those in all most often tell.
        self.due.len() < most.into() || waiting() < most.into()
    }

    /// Returns true if a READ that is yet to be answered asks for some of these bytes.
    pub fn read_some_of(&self, addr: u64, len: u64) -> bool {
        self.due.iter().any(|answer| match answer.body {
            Body::Read { addr: from, length, .. } => {
                addr.wrapping_sub(from) < u64::from(length) || from.wrapping_sub(addr) < len
            }
            _ => false,
        })
    }

    /// Answers a request that was executed, of which so many may be `outstanding`, and keeps what is needed to answer
    /// it again; the oldest gives way.
    pub fn remember(&mut self, resource: Resource, outstanding: u8) {
        let most = usize::from(outstanding.max(1)) * if self.remembers_more { REMEMBERED } else { 1 };
        while self.resources.len() >= most {
            self.resources.pop_front();
        }
        let Resource { first_psn: psn, packets, body, msn } = resource;
        self.resources.push_back(resource);
        self.due.push_back(Answer { psn, packets, body, msn, begun: false, again: false });
    }

    /// The request whose answer has this PSN.
    pub fn find(&self, psn: u32) -> Option<Resource> {
        self.resources.iter().rev().find(|resource| psn::distance(resource.first_psn, psn) < resource.packets).copied()
    }

    /// Counts `packets` of the first answer as sent. Returns true if that was all of it.
    pub fn sent(&mut self, packets: u32, mtu: u32) -> bool {
        let Some(front) = self.due.front_mut() else { return true };
        if packets == front.packets {
            self.due.pop_front();
            return true;
        }
        front.psn = psn::add(front.psn, packets);
        front.packets -= packets;
        front.begun |= packets > 0;
        if let Body::Read { addr, length, .. } = &mut front.body {
            *addr = addr.wrapping_add(u64::from(packets * mtu));
            *length -= packets * mtu;
        }
        false
    }
}
