//! What a slot says of its message besides the headers: the tag, which is put behind everything else and so says that the message is
//! there, and a word that says what the message is.

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A packet of the transport: its headers as on the wire, and its payload.
    Packet = 1,
    /// The sender of long messages asks for a high-bandwidth ring.
    WantLongRing = 2,
    /// Where that ring is.
    LongRing = 3,
    /// The sender has joined a multicast group.
    Join = 4,
    /// The sender has left a multicast group.
    Leave = 5,
    /// The sender would write memory of the receiver directly ([`super::grant`]).
    WantGrant = 6,
    /// It may.
    Grant = 7,
    /// It may not.
    NoGrant = 8,
    /// The headers of the first packet of a long message that comes next, whose sender waits to be told where it belongs; and a word each,
    /// its length and a number.
    WantLanding = 9,
    /// That is there ([`super::grant::Grant`], whose key is the PSN of the first packet, and whose `iova` repeats the number).
    Landing = 10,
    /// It is nowhere that the sender can put to.
    NoLanding = 11,
    /// [`Kind::Packet`], a READ request, and where its answer belongs, a word each: the place, the length, how often its sender had taken
    /// back what it had granted, and the incarnation that has claimed the memory.
    ReadPacket = 12,
    /// The owner of a QP asks how many PSNs the Writes would have taken that its peer has put ([`super::grant::Want`], whose key counts
    /// the questions).
    WantPsns = 13,
    /// So many ([`super::grant::Grant`], whose key is that of the question, and whose length they are).
    Psns = 14,
}

/// Where the payload of a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the slot.
    Slot = 0,
    /// Among the bytes of the block.
    Block = 1,
    /// In the high-bandwidth ring.
    LongRing = 2,
    /// Where it belongs.
    Landed = 3,
}

/// What a message is, in four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meaning {
    /// What it is.
    pub kind: Kind,
    /// Where its payload is.
    pub place: Place,
    /// Bytes of payload; 0 where it has landed.
    pub len: u16,
    /// The last bytes of the headers are an acknowledgement that goes with it ([`super::ring::Acknowledgement`]).
    pub acknowledges: bool,
}

/// What a kind has besides where it acknowledges.
const ACKNOWLEDGES: u8 = 0x80;

impl Meaning {
    /// As it is put.
    #[inline]
    pub fn encode(self) -> [u8; 4] {
        let [low, high] = self.len.to_le_bytes();
        let acknowledges = if self.acknowledges { ACKNOWLEDGES } else { 0 };
        [self.kind as u8 | acknowledges, self.place as u8, low, high]
    }

    /// None for what no sender puts.
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

/// The tag of the slot after `before` others of its ring: never that of an earlier lap. The other half of its word is not looked at,
/// so that a device may put the halves one by one.
#[inline]
pub fn tag(before: u64) -> u32 {
    (before as u32).wrapping_add(1)
}
