//! Numbers of IP and UDP.

/// The hop limit that the sockets have by themselves.
pub const HOP_LIMIT: u8 = 64;
/// ECN bits of the traffic class, or TOS (RFC 3168, 5): of a packet whose sender heeds marks, and of a marked one.
pub const ECT0: u8 = 0b10;
/// See [`ECT0`].
pub const CE: u8 = 0b11;
/// The largest flow label of IPv6.
pub const MOST_LABEL: u32 = 0xf_ffff;
/// Most bytes that a UDP datagram carries over IPv4.
pub const MAX_DATAGRAM: usize = 65_507;
