//! A UDP payload to headers and payload. All checks that need no QP are here: lengths, padding, version, opcode (IBA
//! 9.6.1 and the packet formats of 9.2 to 9.4). Reserved bits are ignored, as IBA 9.2 requires.

use crate::gaps;
use crate::headers::{Aeth, AtomicEth, BTH_LEN, Bth, Deth, Headers, Reth};
use crate::opcode::{self, Format};

/// Bytes of the ICRC, the end of every packet.
pub const ICRC_LEN: usize = 4;
/// Bytes of the reserved field that a CNP carries behind its BTH (A17.9.3).
const CNP_PAYLOAD: usize = 16;
/// Bytes that a probe and its echo carry, so that the answer is no larger than the question.
const CREDIT_PAYLOAD: usize = 4;
/// Bytes that an ATOMIC WRITE stores (A19).
const ATOMIC_WRITE_PAYLOAD: usize = 8;

/// A packet, in place. The payload is bytes that stay as they are, unless a carrier has it otherwise.
#[derive(Debug, PartialEq, Eq)]
pub struct Packet<'a, P: ?Sized = [u8]> {
    /// All headers.
    pub headers: Headers,
    /// The payload without padding and ICRC.
    pub payload: &'a P,
}

impl<P: ?Sized> Clone for Packet<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: ?Sized> Copy for Packet<'_, P> {}

impl Default for Packet<'_> {
    /// No packet: for [`parse_to`].
    fn default() -> Self {
        Packet { headers: Headers::default(), payload: &[] }
    }
}

/// The reason why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Too short for the headers that its opcode calls for and the ICRC.
    #[error("{found} bytes where at least {wanted} were wanted")]
    Short {
        /// Bytes that were wanted.
        wanted: usize,
        /// Bytes that there are.
        found: usize,
    },
    /// The length is not a multiple of 4.
    #[error("{0} bytes, which is not a multiple of 4")]
    Unaligned(usize),
    /// The transport header version is not 0 (IBA 9.2.6).
    #[error("transport header version {0} where 0 was wanted")]
    Version(u8),
    /// The opcode is reserved, of RD, or another manufacturer's.
    #[error("opcode {0:#04x} is not known")]
    Opcode(u8),
    /// More padding than payload.
    #[error("{pad} bytes of padding in a payload of {found}")]
    Padding {
        /// Bytes of padding that the BTH names.
        pad: u8,
        /// Bytes between headers and ICRC.
        found: usize,
    },
    /// The payload has a length that the opcode does not allow.
    #[error("{found} bytes of payload, which opcode {opcode:#04x} does not allow")]
    Payload {
        /// The opcode.
        opcode: u8,
        /// Bytes of payload and padding.
        found: usize,
    },
}

/// Reads fields one behind the other. The length has been checked against the opcode, so that no read fails.
struct Reader<'a> {
    bytes: &'a [u8],
}

impl Reader<'_> {
    #[inline(always)]
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        match self.bytes.split_first_chunk::<N>() {
            Some((field, rest)) => {
                self.bytes = rest;
                *field
            }
            None => [0; N],
        }
    }

    #[inline(always)]
    fn word(&mut self) -> u32 {
        u32::from_be_bytes(self.bytes())
    }

    #[inline(always)]
    fn double(&mut self) -> u64 {
        u64::from_be_bytes(self.bytes())
    }

    #[inline(always)]
    fn reth(&mut self) -> Reth {
        Reth { addr: self.double(), rkey: self.word(), length: self.word() }
    }

    #[inline(always)]
    fn aeth(&mut self) -> Aeth {
        let word = self.word();
        Aeth { syndrome: (word >> 24) as u8, msn: word & 0xff_ffff }
    }
}

/// Parses a UDP payload, from the BTH to the ICRC. The ICRC itself is the business of [`crate::icrc`], which is asked
/// first.
///
/// # Errors
/// What is no packet.
#[inline]
pub fn parse(datagram: &[u8]) -> Result<Packet<'_>, Malformed> {
    let mut packet = Packet::default();
    parse_to(datagram, &mut packet).map(|()| packet)
}

/// [`parse`] into `packet`, which the caller provides because headers are long to move: [`Packet::default`], or what
/// the last call has left there. After an error it is as it was.
///
/// # Errors
/// Those of [`parse`].
pub fn parse_to<'a>(datagram: &'a [u8], packet: &mut Packet<'a>) -> Result<(), Malformed> {
    let found = datagram.len();
    let (Some(&[opcode, flags, ..]), true) = (datagram.first_chunk::<2>(), found >= BTH_LEN + ICRC_LEN) else {
        return Err(Malformed::Short { wanted: BTH_LEN + ICRC_LEN, found });
    };
    if flags & 0xf != 0 {
        return Err(Malformed::Version(flags & 0xf));
    }
    if !opcode::is_known(opcode) {
        return Err(Malformed::Opcode(opcode));
    }
    let headers_len = opcode::headers_len(opcode);
    if found < headers_len + ICRC_LEN {
        return Err(Malformed::Short { wanted: headers_len + ICRC_LEN, found });
    }
    if !found.is_multiple_of(4) {
        return Err(Malformed::Unaligned(found));
    }
    let pad = flags >> 4 & 3;
    let payload = &datagram[headers_len..found - ICRC_LEN];
    let Some(payload_len) = payload.len().checked_sub(pad as usize) else {
        return Err(Malformed::Padding { pad, found: payload.len() });
    };
    let allowed = match opcode {
        opcode::CNP => payload_len == CNP_PAYLOAD,
        opcode::PROBE | opcode::ECHO => payload_len == CREDIT_PAYLOAD,
        opcode::GAPS => gaps::parse(&payload[..payload_len]).is_some(),
        _ if !opcode::has_payload(opcode) => payload.is_empty(),
        _ if opcode::operation(opcode) == opcode::ATOMIC_WRITE => payload_len == ATOMIC_WRITE_PAYLOAD,
        _ => true,
    };
    if !allowed {
        return Err(Malformed::Payload { opcode, found: payload.len() });
    }
    // Packets of one opcode have the same headers, each of which is read anew.
    if packet.headers.bth.opcode != opcode {
        packet.headers = Headers::default();
    }
    packet.payload = &payload[..payload_len];
    read_headers(&datagram[..headers_len], &mut packet.headers);
    Ok(())
}

/// Parses the headers of a packet whose `payload` bytes lie elsewhere, without padding and ICRC; what `bytes` has
/// behind the headers counts for nothing.
///
/// # Errors
/// What is no packet, as for [`parse`].
#[inline(always)]
pub fn parse_headers(bytes: &[u8], payload: usize) -> Result<Headers, Malformed> {
    let mut headers = Headers::default();
    parse_headers_to(bytes, payload, &mut headers).map(|()| headers)
}

/// [`parse_headers`] into `headers`, which the caller provides because they are long to move; it must be
/// [`Headers::default`].
///
/// # Errors
/// Those of [`parse_headers`].
pub fn parse_headers_to(bytes: &[u8], payload: usize, headers: &mut Headers) -> Result<(), Malformed> {
    let found = bytes.len();
    let Some(&[opcode, flags, ..]) = bytes.first_chunk::<2>() else {
        return Err(Malformed::Short { wanted: BTH_LEN, found });
    };
    if flags & 0xf != 0 {
        return Err(Malformed::Version(flags & 0xf));
    }
    if !opcode::is_known(opcode) {
        return Err(Malformed::Opcode(opcode));
    }
    let wanted = opcode::headers_len(opcode);
    if found < wanted {
        return Err(Malformed::Short { wanted, found });
    }
    let allowed = match opcode {
        opcode::CNP | opcode::PROBE | opcode::ECHO | opcode::GAPS => false,
        _ if !opcode::has_payload(opcode) => payload == 0,
        _ if opcode::operation(opcode) == opcode::ATOMIC_WRITE => payload == ATOMIC_WRITE_PAYLOAD,
        _ => true,
    };
    if !allowed {
        return Err(Malformed::Payload { opcode, found: payload });
    }
    read_headers(&bytes[..wanted], headers);
    Ok(())
}

/// Reads the headers of a known opcode; `bytes` has their length. Those that are not there stay as they are.
#[inline(always)]
fn read_headers(bytes: &[u8], headers: &mut Headers) {
    let mut from = Reader { bytes };
    let [opcode, flags] = from.bytes();
    let pkey = u16::from_be_bytes(from.bytes());
    let (qpn, psn) = (from.word(), from.word());
    headers.bth = Bth {
        opcode,
        solicited: flags & 0x80 != 0,
        migration: flags & 0x40 != 0,
        pad: flags >> 4 & 3,
        pkey,
        dest_qpn: qpn & 0xff_ffff,
        ack_request: psn & 1 << 31 != 0,
        mark: (psn >> 24) as u8 & 0x7f,
        psn: psn & 0xff_ffff,
    };
    if opcode::has_xrceth(opcode) {
        headers.srqn = Some(from.word() & 0xff_ffff);
    } else if opcode::has_deth(opcode) {
        headers.deth = Some(Deth { qkey: from.word(), source_qpn: from.word() & 0xff_ffff });
    }
    match opcode::format(opcode) {
        Format::Plain => {}
        Format::Imm => headers.imm = Some(from.bytes()),
        Format::Invalidate => headers.invalidate = Some(from.word()),
        Format::Reth => headers.reth = Some(from.reth()),
        Format::RethImm => {
            headers.reth = Some(from.reth());
            headers.imm = Some(from.bytes());
        }
        Format::Aeth => headers.aeth = Some(from.aeth()),
        Format::AethAtomic => {
            headers.aeth = Some(from.aeth());
            headers.atomic_ack = Some(from.double());
        }
        Format::Atomic => {
            headers.atomic = Some(AtomicEth {
                addr: from.double(),
                rkey: from.word(),
                swap_add: from.double(),
                compare: from.double(),
            });
        }
        Format::Flush => {
            let word = from.word();
            headers.flush = Some(((word & 0xf) as u8, (word >> 4 & 3) as u8));
            headers.reth = Some(from.reth());
        }
    }
}
