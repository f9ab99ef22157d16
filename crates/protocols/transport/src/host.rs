//! The protocol's host: it supplies the requests and memory of a QP, and sends packets. `vervain-carrier` implements
//! the two traits over the device model; tests and the simulation implement them over plain vectors.

use serde::{Deserialize, Serialize};
use vervain_iba::{Nak, Request, Right, Status};
use vervain_wire::Headers;

/// Nanoseconds of a monotonic clock.
pub type Nanos = u64;

/// The source of an outgoing packet's payload. The host gathers it, so that large payloads are not copied here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// No payload.
    None,
    /// Bytes `[offset, offset + len)` of the data of posted request `n`.
    #[allow(missing_docs)]
    Request { n: u32, offset: u64, len: u32 },
    /// Memory of the responder's process that a READ names; `srqn` as in [`ResponderHost`]. `left` are the bytes of the
    /// answer from here to its end.
    #[allow(missing_docs)]
    Memory { srqn: u32, rkey: u32, addr: u64, len: u32, left: u32 },
    /// These bytes.
    Bytes(&'a [u8]),
}

/// An outgoing packet.
#[derive(Clone, Copy, Debug)]
pub struct Transmit<'a> {
    /// All headers; pad count and P_Key are set.
    pub headers: &'a Headers,
    /// The payload.
    pub payload: Payload<'a>,
    /// The packet, or one with its PSN, has been sent before.
    pub again: bool,
}

/// The reason why a packet was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No room now; the host asks again with `poll_transmit` when there is. Over a lossless channel
    /// ([`crate::Window::lossless`]) a requester whose host has none for as long as a peer may be silent ends with
    /// [`Status::RetryExceeded`] (not over UC, which has no timers), so it is also what a host says that does not know
    /// its peer yet; and one that serves several requesters sees to it that each gets room in turn.
    Full,
    /// The memory that the payload names is not accessible (local protection error; for a responder remote access).
    Memory,
}

/// The payload of packets that come in: bytes that stay as they are, or bytes that others may change meanwhile, such as
/// those of a ring in shared memory, which nobody may see as a slice. Only the host reads them.
pub trait Data {
    /// The number of bytes. It does not change.
    fn length(&self) -> usize;
    /// The bytes, read once, if there are eight.
    fn word(&self) -> Option<[u8; 8]>;
    /// Returns true if the sender has put them where they belong ([`RequesterHost::landing`]): nothing is to be copied,
    /// and there may be more of them than a packet has. The packet then stands for as many as they would have taken, of
    /// which it is the first.
    #[inline(always)]
    fn has_landed(&self) -> bool {
        false
    }
    /// The bytes, if they stay as they are and may be kept for later. Only over a channel that loses packets something
    /// is kept.
    fn bytes(&self) -> Option<&[u8]> {
        None
    }
    /// Calls `act` with bytes that were kept. None: this kind of payload is never kept.
    fn with_kept<R>(_bytes: &[u8], _act: impl FnOnce(&Self) -> R) -> Option<R> {
        None
    }
}

impl Data for [u8] {
    #[inline(always)]
    fn length(&self) -> usize {
        self.len()
    }

    #[inline]
    fn word(&self) -> Option<[u8; 8]> {
        self.try_into().ok()
    }

    fn bytes(&self) -> Option<&[u8]> {
        Some(self)
    }

    fn with_kept<R>(bytes: &[u8], act: impl FnOnce(&Self) -> R) -> Option<R> {
        Some(act(bytes))
    }
}

/// The send queue of a QP, seen by its requester. Requests are numbered by a counter that wraps.
pub trait RequesterHost {
    /// Payload of the answers that come in.
    type Data: Data + ?Sized;
    /// Request `n`, if it has been posted and leaves this process. The length of a Flush is here that of the range.
    fn request(&self, n: u32) -> Option<Request>;
    /// Sends a packet.
    fn transmit(&mut self, packet: &Transmit<'_>) -> Result<(), Refused>;
    /// The number of packets to send as one, at least 1, of the `left` packets that remain of the message in progress.
    /// It is more than one if the host puts their data in place ([`crate::Responder::announce`]), and the peer's
    /// [`Data::has_landed`] says so. The next packet transmitted stands for that many.
    #[inline(always)]
    fn landing(&self, _left: u32) -> u32 {
        1
    }
    /// The request that is transmitted next asks for bytes `[offset, offset + len)` of READ `n`, which is many packets.
    fn asks(&mut self, _n: u32, _offset: u64, _len: u64) {}
    /// Data that a Read has fetched, for bytes `[offset, ...)` of request `n`. `Refused::Memory` ends the request with
    /// a local protection error.
    fn deliver(&mut self, n: u32, offset: u64, data: &Self::Data) -> Result<(), Refused>;
    /// The word that atomic `n` has found; as for [`RequesterHost::deliver`].
    fn deliver_word(&mut self, n: u32, word: u64) -> Result<(), Refused>;
    /// Returns true if the peer has taken every packet sent so far out of the channel. Asked when the ACK timeout has
    /// expired: only if it has, they are sent again. Over a channel that loses nothing ([`crate::Window::lossless`])
    /// the peer then had no use for one of them, for example because its QP was not ready; before, a copy would only be
    /// one more for a slow peer to take. Where packets are lost, nobody can know: `true`, which is the default.
    fn is_taken(&self) -> bool {
        true
    }
    /// Request `n` is done. Called once for each request, in order; after one that did not succeed the requester does
    /// nothing more until it is made anew.
    fn complete(&mut self, n: u32, status: Status);
}

/// The destination of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    /// A SEND: the receive that was claimed for it, and its room.
    #[allow(missing_docs)]
    Receive { receive: u32, room: u64 },
    /// A WRITE.
    #[allow(missing_docs)]
    Memory { rkey: u32, addr: u64, length: u32 },
}

/// The contents of a receive completion (IBA 11.4.2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Received {
    /// Bytes of the message.
    pub length: u32,
    /// RDMA Write with immediate, rather than a Send.
    pub write: bool,
    /// Immediate data, as it lies in memory.
    pub imm: Option<u32>,
    /// The key that was invalidated.
    pub invalidated: Option<u32>,
    /// The solicited event bit.
    pub solicited: bool,
    /// More of the message was to come: of one that does not fit its receive.
    pub partial: bool,
}

/// The QP and its memory, seen by the responder. Each call is complete in itself: keys, ranges, rights and the state of
/// the QP are checked in each of them, for they may change between packets. `srqn` is the SRQ that an XRC packet names,
/// else 0.
pub trait ResponderHost {
    /// Payload of the requests that come in.
    type Data: Data + ?Sized;
    /// Checks that `[addr, addr + len)` may be accessed in this way. With `len` 0 only the state of the QP is checked,
    /// for the key and address of an empty READ or WRITE do not matter (IBA 9.7.4.1.5); a FLUSH of level 1 (whole
    /// region) is the exception: key and right are checked, and the range is that of the region.
    fn check(&mut self, srqn: u32, rkey: u32, addr: u64, len: u64, right: Right) -> Result<(), Nak>;
    /// Writes; `last` says that the message ends here, so that its last word is stored last.
    fn write(&mut self, srqn: u32, rkey: u32, addr: u64, data: &Self::Data, last: bool) -> Result<(), Nak>;
    /// A 64-bit atomic; the word before. `compare` is none for fetch and add.
    fn atomic(&mut self, srqn: u32, rkey: u32, addr: u64, compare: Option<u64>, swap_add: u64) -> Result<u64, Nak>;
    /// An aligned 8-byte store.
    fn atomic_write(&mut self, srqn: u32, rkey: u32, addr: u64, value: u64) -> Result<(), Nak>;
    /// Takes the next receive; its number and how many bytes it has room for.
    fn claim(&mut self, srqn: u32) -> Result<(u32, u64), Nak>;
    /// Puts payload into a claimed receive.
    fn fill(&mut self, srqn: u32, receive: u32, offset: u64, data: &Self::Data, last: bool) -> Result<(), Nak>;
    /// Invalidates a key for a Send with Invalidate.
    fn invalidate(&mut self, srqn: u32, rkey: u32) -> Result<(), Nak>;
    /// Completes a claimed receive.
    fn complete(&mut self, srqn: u32, receive: u32, received: &Received);
    /// Ends a claimed receive in error, and the QP as well. `nak` is the answer that the peer gets then.
    fn spoil(&mut self, srqn: u32, receive: u32, received: &Received, status: Status, nak: Nak);
    /// A packet has been handled, and another one follows that was kept until its turn came.
    fn next_packet(&mut self) {}
    /// A message that was begun will not be finished (UC): its receive is for the next one.
    fn unclaim(&mut self, srqn: u32, receive: u32);
    /// The request is refused with an error that ends the QP (IBA 9.9.3 class C, asynchronous affiliated error). The
    /// NAK is still to be sent, and leaves although the QP has ended.
    fn fail(&mut self, nak: Nak);
    /// As [`RequesterHost::landing`], of the `left` packets of the answer to a READ from this PSN on.
    #[inline(always)]
    fn landing(&self, _psn: u32, _left: u32) -> u32 {
        1
    }
    /// Receives posted now, if the peer is to be told (IBA 9.7.7.2); none for an SRQ.
    fn credits(&mut self) -> Option<u32>;
    /// Sends a packet: acknowledgements and what READs answer.
    fn transmit(&mut self, packet: &Transmit<'_>) -> Result<(), Refused>;
}
