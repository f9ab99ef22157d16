//! RoCEv2 packets as bytes (IBA vol. 1 ch. 9, annexes A14, A17 and A19): headers and opcodes, parsed and emitted, and
//! the invariant CRC; and the management datagrams of the connection manager (ch. 12, 13). No I/O, no allocation, no
//! policy: what a packet means to a QP is the business of `vervain-transport`, what a management datagram means that of
//! `vervain-cm`.

#![forbid(unsafe_code)]

pub mod aeth;
pub mod cm;
pub mod gaps;
mod headers;
pub mod icrc;
pub mod mad;
pub mod opcode;
mod parse;

pub use headers::{Aeth, AtomicEth, BTH_LEN, Bth, Deth, Headers, MAX_HEADERS, Reth, TAKES_GAPS, VERVAIN};
pub use parse::{ICRC_LEN, Malformed, Packet, parse, parse_headers, parse_headers_to, parse_to};

/// The UDP port of RoCE v2 (IANA).
pub const UDP_PORT: u16 = 4791;
