//! Numbers of IP and UDP.

/// The hop limit that the sockets have by themselves.
pub const HOP_LIMIT: u8 = 64;
/// The largest flow label of IPv6.
pub const MOST_LABEL: u32 = 0xf_ffff;
/// Most bytes that a UDP datagram carries over IPv4.
pub const MAX_DATAGRAM: usize = 65_507;
