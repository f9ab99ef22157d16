//! Damage to packets, drawn at random.

use proptest::prelude::*;

/// One change to a packet. Positions are taken modulo its length.
#[derive(Clone, Debug)]
pub enum Mutation {
    /// Flips a bit.
    Flip(u16, u8),
    /// Sets a byte.
    Set(u16, u8),
    /// Cuts the packet off.
    Cut(u16),
    /// Appends bytes.
    Grow(Vec<u8>),
    /// Goes on with another packet from there.
    Splice(u16, prop::sample::Index),
}

/// Any mutation. Half of the positions lie in the first bytes, where the headers are.
pub fn mutation() -> impl Strategy<Value = Mutation> {
    let at = || prop_oneof![0..48u16, any::<u16>()];
    prop_oneof![
        4 => (at(), 0..8u8).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
        4 => (at(), any::<u8>()).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        1 => at().prop_map(Mutation::Cut),
        1 => prop::collection::vec(any::<u8>(), 1..9).prop_map(Mutation::Grow),
        2 => (at(), any::<prop::sample::Index>()).prop_map(|(at, other)| Mutation::Splice(at, other)),
    ]
}

/// Changes a packet. `others` are what to splice with.
pub fn apply(packet: &mut Vec<u8>, mutation: &Mutation, others: &[Vec<u8>]) {
    let len = packet.len();
    let within = |at: u16| usize::from(at) % len.max(1);
    match mutation {
        Mutation::Flip(at, bit) if len > 0 => packet[within(*at)] ^= 1 << bit,
        Mutation::Set(at, byte) if len > 0 => packet[within(*at)] = *byte,
        Mutation::Flip(..) | Mutation::Set(..) => {}
        Mutation::Cut(at) => packet.truncate(within(*at)),
        Mutation::Grow(bytes) => packet.extend(bytes),
        Mutation::Splice(at, other) => {
            let at = within(*at);
            packet.truncate(at);
            packet.extend(others[other.index(others.len())].iter().skip(at));
        }
    }
}
