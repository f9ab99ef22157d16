//! Description of a message in its slot, apart from the headers: a word with kind, place and length, and the tag, which
//! is put behind everything else and so announces the message.

/// Kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A packet of the transport: its headers as on the wire, and its payload.
    Packet = 1,
    /// The sender of long messages asks for a high-bandwidth ring.
    WantLongRing = 2,
    /// Answer: the ring's offset.
    LongRing = 3,
    /// The sender has joined a multicast group.
    Join = 4,
    /// The sender has left a multicast group.
    Leave = 5,
    /// The sender asks to write memory of the receiver directly ([`super::grant`]).
    WantGrant = 6,
    /// Answer: it may.
    Grant = 7,
    /// Answer: it may not.
    NoGrant = 8,
    /// Headers of the first packet of a long message that comes next, and a word each for its length and a number. The
    /// sender waits for the answer with the message's destination.
    WantLanding = 9,
    /// Answer: the destination ([`super::grant::Grant`]; its key is the PSN of the first packet, its `iova` repeats the
    /// number).
    Landing = 10,
    /// Answer: the sender cannot put to the destination.
    NoLanding = 11,
    /// [`Kind::Packet`] with a READ request and, a word each, the destination of the answer: its place, its length, the
    /// count of revocations of its sender's grants, and the incarnation that has claimed the memory.
    ReadPacket = 12,
    /// The owner of a QP asks how many PSNs the Writes would have taken that its peer has put directly
    /// ([`super::grant::Want`], whose key counts the questions).
    WantPsns = 13,
    /// Answer: their number, as length of a [`super::grant::Grant`] with the question's key.
    Psns = 14,
}

/// Places of a message's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the slot.
    Slot = 0,
    /// Among the bytes of the block.
    Block = 1,
    /// In the high-bandwidth ring.
    LongRing = 2,
    /// At its destination.
    Landed = 3,
}

/// Kind, place and length of a message, encoded in four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meaning {
    /// Kind of the message.
    pub kind: Kind,
    /// Place of its payload.
    pub place: Place,
    /// Bytes of payload; 0 if it has landed.
    pub len: u16,
    /// The last bytes of the headers are an acknowledgement that goes with it ([`super::ring::Acknowledgement`]).
    pub acknowledges: bool,
}

/// Bit added to the kind of a message that acknowledges.
const ACKNOWLEDGES: u8 = 0x80;

impl Meaning {
    /// The four bytes as they are put.
    #[inline]
    pub fn encode(self) -> [u8; 4] {
        let [low, high] = self.len.to_le_bytes();
        let acknowledges = if self.acknowledges { ACKNOWLEDGES } else { 0 };
        [self.kind as u8 | acknowledges, self.place as u8, low, high]
    }

    /// The meaning of four bytes; None: no sender puts these.
    #[inline]
    pub fn decode([kind, place, low, high]: [u8; 4]) -> Option<Meaning> {
        let acknowledges = kind & ACKNOWLEDGES != 0;
        let kind = match kind & !ACKNOWLEDGES {
            1 => Kind::Packet,
            2 => Kind::WantLongRing,
            3 => Kind::LongRing,
            4 => Kind::Join,
            5 => Kind::Leave,
            6 => Kind::WantGrant,
            7 => Kind::Grant,
            8 => Kind::NoGrant,
            9 => Kind::WantLanding,
            10 => Kind::Landing,
            11 => Kind::NoLanding,
            12 => Kind::ReadPacket,
            13 => Kind::WantPsns,
            14 => Kind::Psns,
            _ => return None,
        };
        let place = match place {
            0 => Place::Slot,
            1 => Place::Block,
            2 => Place::LongRing,
            3 => Place::Landed,
            _ => return None,
        };
        let is_packet = matches!(kind, Kind::Packet | Kind::ReadPacket);
        let meaning = Meaning { kind, place, len: u16::from_le_bytes([low, high]), acknowledges };
        (is_packet || !acknowledges).then_some(meaning)
    }
}

/// The tag of the slot that follows `before` others of its ring. An earlier lap never has the same. The other half of
/// the tag's word is ignored, so a device may put the halves one by one.
#[inline]
pub fn tag(before: u64) -> u32 {
    (before as u32).wrapping_add(1)
}
