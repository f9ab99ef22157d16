//! BTH opcodes (IBA table 38; annexes A14 for XRC, A17 for the CNP, A19 for FLUSH and ATOMIC WRITE) and what follows
//! from each: the transport service, the place in a message, the extended headers. A table of flags, one load per
//! question.

/// Reliable connection. A whole opcode is a service and an operation: `RC | SEND_ONLY`.
pub const RC: u8 = 0x00;
/// Unreliable connection.
pub const UC: u8 = 0x20;
/// Unreliable datagram.
pub const UD: u8 = 0x60;
/// Extended reliable connection (annex A14).
pub const XRC: u8 = 0xa0;
/// Congestion notification packet (annex A17.9.3), a whole opcode.
pub const CNP: u8 = 0x81;
/// Vervain's own, out of the range left to manufacturers (IBA table 38, 0xC0 to 0xFF): asks the process that has the QP
/// how much it has room for, and whether everything before has come. A whole opcode; a DETH and four bytes follow.
pub const PROBE: u8 = 0xec;
/// The answer to that; the four bytes are the room.
pub const ECHO: u8 = 0xf1;
/// Vervain's own: a responder of RC or XRC reports which request packets it misses, and which later ones it keeps. A
/// whole opcode; an AETH and the [`crate::gaps`] follow. It acknowledges everything before its PSN.
pub const GAPS: u8 = 0xda;

/// First packet of a SEND.
pub const SEND_FIRST: u8 = 0x00;
/// Middle packet of a SEND.
pub const SEND_MIDDLE: u8 = 0x01;
/// Last packet of a SEND.
pub const SEND_LAST: u8 = 0x02;
/// Last packet of a SEND with immediate data.
pub const SEND_LAST_IMM: u8 = 0x03;
/// A SEND of one packet.
pub const SEND_ONLY: u8 = 0x04;
/// A SEND of one packet, with immediate data.
pub const SEND_ONLY_IMM: u8 = 0x05;
/// First packet of an RDMA WRITE.
pub const WRITE_FIRST: u8 = 0x06;
/// Middle packet of an RDMA WRITE.
pub const WRITE_MIDDLE: u8 = 0x07;
/// Last packet of an RDMA WRITE.
pub const WRITE_LAST: u8 = 0x08;
/// Last packet of an RDMA WRITE with immediate data.
pub const WRITE_LAST_IMM: u8 = 0x09;
/// An RDMA WRITE of one packet.
pub const WRITE_ONLY: u8 = 0x0a;
/// An RDMA WRITE of one packet, with immediate data.
pub const WRITE_ONLY_IMM: u8 = 0x0b;
/// RDMA READ request.
pub const READ_REQUEST: u8 = 0x0c;
/// First packet of an RDMA READ response.
pub const READ_RESPONSE_FIRST: u8 = 0x0d;
/// Middle packet of an RDMA READ response.
pub const READ_RESPONSE_MIDDLE: u8 = 0x0e;
/// Last packet of an RDMA READ response.
pub const READ_RESPONSE_LAST: u8 = 0x0f;
/// An RDMA READ response of one packet; answers FLUSH and ATOMIC WRITE too (A19).
pub const READ_RESPONSE_ONLY: u8 = 0x10;
/// ACK or NAK: the AETH says which.
pub const ACKNOWLEDGE: u8 = 0x11;
/// Answer to an atomic.
pub const ATOMIC_ACKNOWLEDGE: u8 = 0x12;
/// Compare and swap.
pub const COMPARE_SWAP: u8 = 0x13;
/// Fetch and add.
pub const FETCH_ADD: u8 = 0x14;
/// Last packet of a SEND with invalidate.
pub const SEND_LAST_INVALIDATE: u8 = 0x16;
/// A SEND of one packet, with invalidate.
pub const SEND_ONLY_INVALIDATE: u8 = 0x17;
/// RDMA FLUSH (annex A19).
pub const FLUSH: u8 = 0x1c;
/// ATOMIC WRITE (annex A19).
pub const ATOMIC_WRITE: u8 = 0x1d;

/// A transport service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection.
    Xrc,
}

const KNOWN: u16 = 1;
const REQUEST: u16 = 1 << 1;
/// First packet of a message, or the only one.
const START: u16 = 1 << 2;
/// Last packet of a message, or the only one.
const END: u16 = 1 << 3;
const SEND: u16 = 1 << 4;
const WRITE: u16 = 1 << 5;
const READ_ANSWER: u16 = 1 << 6;
const ATOMIC: u16 = 1 << 7;
/// May carry a payload.
const PAYLOAD: u16 = 1 << 8;
/// Begins with XRCETH.
const XRCETH: u16 = 1 << 9;
/// Begins with DETH.
const DETH: u16 = 1 << 10;
/// The extended headers after XRCETH and DETH, a [`Format`].
const FORMAT_SHIFT: u32 = 12;

/// Which extended headers follow XRCETH or DETH, in packet order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Format {
    /// No further header.
    Plain,
    /// Immediate data.
    Imm,
    /// IETH.
    Invalidate,
    /// RETH.
    Reth,
    /// RETH, immediate data.
    RethImm,
    /// AETH.
    Aeth,
    /// AETH, AtomicAckETH.
    AethAtomic,
    /// AtomicETH.
    Atomic,
    /// FETH, RETH.
    Flush,
}

impl Format {
    const ALL: [Format; 9] = [
        Format::Plain,
        Format::Imm,
        Format::Invalidate,
        Format::Reth,
        Format::RethImm,
        Format::Aeth,
        Format::AethAtomic,
        Format::Atomic,
        Format::Flush,
    ];

    /// Bytes of these headers.
    const fn len(self) -> usize {
        match self {
            Format::Plain => 0,
            Format::Imm | Format::Invalidate | Format::Aeth => 4,
            Format::AethAtomic => 12,
            Format::Reth => 16,
            Format::RethImm | Format::Flush => 20,
            Format::Atomic => 28,
        }
    }
}

/// Flags of an operation of the reliable services.
const fn operation_flags(operation: u8) -> u16 {
    let (flags, format) = match operation {
        SEND_FIRST => (REQUEST | SEND | PAYLOAD | START, Format::Plain),
        SEND_MIDDLE => (REQUEST | SEND | PAYLOAD, Format::Plain),
        SEND_LAST => (REQUEST | SEND | PAYLOAD | END, Format::Plain),
        SEND_LAST_IMM => (REQUEST | SEND | PAYLOAD | END, Format::Imm),
        SEND_LAST_INVALIDATE => (REQUEST | SEND | PAYLOAD | END, Format::Invalidate),
        SEND_ONLY => (REQUEST | SEND | PAYLOAD | START | END, Format::Plain),
        SEND_ONLY_IMM => (REQUEST | SEND | PAYLOAD | START | END, Format::Imm),
        SEND_ONLY_INVALIDATE => (REQUEST | SEND | PAYLOAD | START | END, Format::Invalidate),
        WRITE_FIRST => (REQUEST | WRITE | PAYLOAD | START, Format::Reth),
        WRITE_MIDDLE => (REQUEST | WRITE | PAYLOAD, Format::Plain),
        WRITE_LAST => (REQUEST | WRITE | PAYLOAD | END, Format::Plain),
        WRITE_LAST_IMM => (REQUEST | WRITE | PAYLOAD | END, Format::Imm),
        WRITE_ONLY => (REQUEST | WRITE | PAYLOAD | START | END, Format::Reth),
        WRITE_ONLY_IMM => (REQUEST | WRITE | PAYLOAD | START | END, Format::RethImm),
        READ_REQUEST => (REQUEST | START | END, Format::Reth),
        READ_RESPONSE_FIRST => (READ_ANSWER | PAYLOAD | START, Format::Aeth),
        READ_RESPONSE_MIDDLE => (READ_ANSWER | PAYLOAD, Format::Plain),
        READ_RESPONSE_LAST => (READ_ANSWER | PAYLOAD | END, Format::Aeth),
        READ_RESPONSE_ONLY => (READ_ANSWER | PAYLOAD | START | END, Format::Aeth),
        ACKNOWLEDGE => (START | END, Format::Aeth),
        ATOMIC_ACKNOWLEDGE => (START | END, Format::AethAtomic),
        COMPARE_SWAP | FETCH_ADD => (REQUEST | ATOMIC | START | END, Format::Atomic),
        FLUSH => (REQUEST | START | END, Format::Flush),
        ATOMIC_WRITE => (REQUEST | PAYLOAD | START | END, Format::Reth),
        _ => return 0,
    };
    KNOWN | flags | (format as u16) << FORMAT_SHIFT
}

const fn opcode_flags(opcode: u8) -> u16 {
    let operation = opcode & 0x1f;
    let flags = operation_flags(operation);
    match opcode & 0xe0 {
        RC => flags,
        // IBA table 38: SENDs without invalidate, and WRITEs.
        UC if operation <= WRITE_ONLY_IMM => flags,
        UD if operation == SEND_ONLY || operation == SEND_ONLY_IMM => flags | DETH,
        // A14.2.2: every request names the SRQ, no response does.
        XRC if flags & REQUEST != 0 => flags | XRCETH,
        XRC => flags,
        _ if opcode == CNP => KNOWN | START | END,
        _ if opcode == PROBE => KNOWN | REQUEST | PAYLOAD | START | END | DETH,
        _ if opcode == ECHO => KNOWN | PAYLOAD | START | END | DETH,
        _ if opcode == GAPS => KNOWN | PAYLOAD | START | END | (Format::Aeth as u16) << FORMAT_SHIFT,
        _ => 0,
    }
}

static FLAGS: [u16; 256] = {
    let mut table = [0; 256];
    let mut opcode = 0;
    while opcode < 256 {
        table[opcode] = opcode_flags(opcode as u8);
        opcode += 1;
    }
    table
};

#[inline]
fn has(opcode: u8, flags: u16) -> bool {
    FLAGS[opcode as usize] & flags == flags
}

/// IBA and its annexes give the opcode a meaning, in a service that Vervain has; or it is one of Vervain's own.
#[inline]
pub fn is_known(opcode: u8) -> bool {
    has(opcode, KNOWN)
}

/// The transport service; none for the CNP, [`PROBE`], [`ECHO`], [`GAPS`] and for what is unknown.
#[inline]
pub fn service(opcode: u8) -> Option<Service> {
    if !is_known(opcode) {
        return None;
    }
    match opcode & 0xe0 {
        RC => Some(Service::Rc),
        UC => Some(Service::Uc),
        UD => Some(Service::Ud),
        XRC => Some(Service::Xrc),
        _ => None,
    }
}

/// The operation without the service: one of the constants of this module from [`SEND_FIRST`] to [`ATOMIC_WRITE`].
#[inline]
pub const fn operation(opcode: u8) -> u8 {
    opcode & 0x1f
}

/// Goes from requester to responder. A packet of a reliable service that is not a request is a response.
#[inline]
pub fn is_request(opcode: u8) -> bool {
    has(opcode, REQUEST)
}

/// Goes from responder to requester: READ response, ACK, NAK, atomic answer, [`ECHO`], [`GAPS`].
#[inline]
pub fn is_response(opcode: u8) -> bool {
    FLAGS[opcode as usize] & (KNOWN | REQUEST) == KNOWN && opcode != CNP
}

/// Last of several packets.
#[inline]
pub fn is_last(opcode: u8) -> bool {
    FLAGS[opcode as usize] & (START | END) == END
}

/// Begins a message: first or only.
#[inline]
pub fn starts(opcode: u8) -> bool {
    has(opcode, START)
}

/// Ends a message: last or only.
#[inline]
pub fn ends(opcode: u8) -> bool {
    has(opcode, END)
}

/// Part of a SEND of any kind.
#[inline]
pub fn is_send(opcode: u8) -> bool {
    has(opcode, SEND)
}

/// Part of an RDMA WRITE of any kind (not ATOMIC WRITE).
#[inline]
pub fn is_write(opcode: u8) -> bool {
    has(opcode, WRITE)
}

/// Part of a READ response.
#[inline]
pub fn is_read_response(opcode: u8) -> bool {
    has(opcode, READ_ANSWER)
}

/// Compare and swap, or fetch and add.
#[inline]
pub fn is_atomic(opcode: u8) -> bool {
    has(opcode, ATOMIC)
}

/// May carry a payload.
#[inline]
pub fn has_payload(opcode: u8) -> bool {
    has(opcode, PAYLOAD)
}

/// Carries the SRQ number of an XRC request.
#[inline]
pub fn has_xrceth(opcode: u8) -> bool {
    has(opcode, XRCETH)
}

/// Carries the header of a datagram.
#[inline]
pub fn has_deth(opcode: u8) -> bool {
    has(opcode, DETH)
}

/// Carries immediate data.
#[inline]
pub fn has_imm(opcode: u8) -> bool {
    matches!(format(opcode), Format::Imm | Format::RethImm)
}

/// Carries the key that a SEND invalidates.
#[inline]
pub fn has_invalidate(opcode: u8) -> bool {
    format(opcode) == Format::Invalidate
}

/// Carries an RDMA header.
#[inline]
pub fn has_reth(opcode: u8) -> bool {
    matches!(format(opcode), Format::Reth | Format::RethImm | Format::Flush)
}

/// Carries an ACK header.
#[inline]
pub fn has_aeth(opcode: u8) -> bool {
    matches!(format(opcode), Format::Aeth | Format::AethAtomic)
}

/// Bytes of BTH and extended headers.
#[inline]
pub fn headers_len(opcode: u8) -> usize {
    let deth = if has_deth(opcode) { 8 } else { 0 };
    let xrceth = if has_xrceth(opcode) { 4 } else { 0 };
    super::BTH_LEN + deth + xrceth + format(opcode).len()
}

#[inline]
pub(crate) fn format(opcode: u8) -> Format {
    // The modulo never changes a value that `operation_flags` has put there; it spares a panic branch.
    Format::ALL[(FLAGS[opcode as usize] >> FORMAT_SHIFT) as usize % Format::ALL.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> impl Iterator<Item = u8> {
        (0..=u8::MAX).filter(|&opcode| is_known(opcode))
    }

    #[test]
    fn the_services_have_the_operations_of_table_38() {
        let of = |service_bits: u8| known().filter(move |opcode| opcode & 0xe0 == service_bits);
        let reliable: Vec<u8> = (0..=0x14).chain([0x16, 0x17, 0x1c, 0x1d]).collect();
        assert!(of(RC).eq(reliable.iter().copied()));
        assert!(of(XRC).eq(reliable.iter().map(|operation| XRC | operation)));
        assert!(of(UC).eq(UC..=UC | WRITE_ONLY_IMM));
        assert!(of(UD).eq([UD | SEND_ONLY, UD | SEND_ONLY_IMM]));
        assert_eq!(known().count(), 25 + 25 + 12 + 2 + 1 + 3);
        assert!(is_known(CNP) && service(CNP).is_none() && !is_request(CNP) && !is_response(CNP));
        // Those of a manufacturer (0xc0 and above) belong to no service.
        assert!(known().filter(|opcode| *opcode >= 0xc0).eq([GAPS, PROBE, ECHO]));
        assert!([GAPS, PROBE, ECHO].iter().all(|own| service(*own).is_none()));
        assert!(is_request(PROBE) && is_response(ECHO) && is_response(GAPS) && has_aeth(GAPS));
    }

    #[test]
    fn an_opcode_has_one_place_in_its_message_and_one_direction() {
        for opcode in known() {
            assert_eq!(is_last(opcode), ends(opcode) && !starts(opcode), "{opcode:#x}");
            let answers = opcode == GAPS || (0x0d..=0x12).contains(&operation(opcode));
            assert_eq!(is_request(opcode), opcode != CNP && !answers);
            assert_eq!(is_response(opcode), opcode != CNP && answers);
        }
        for opcode in (0..=u8::MAX).filter(|&opcode| !is_known(opcode)) {
            assert!(![starts, ends, is_request, is_response].iter().any(|is| is(opcode)));
        }
    }

    /// IBA table 38, last columns, and the lengths of 9.3.
    #[test]
    fn header_lengths_are_those_of_the_table() {
        for (opcode, len) in [
            (RC | SEND_MIDDLE, 12),
            (RC | SEND_LAST_IMM, 16),
            (RC | SEND_ONLY_INVALIDATE, 16),
            (RC | WRITE_FIRST, 28),
            (RC | WRITE_ONLY_IMM, 32),
            (RC | READ_REQUEST, 28),
            (RC | READ_RESPONSE_FIRST, 16),
            (RC | READ_RESPONSE_MIDDLE, 12),
            (RC | ACKNOWLEDGE, 16),
            (RC | ATOMIC_ACKNOWLEDGE, 24),
            (RC | FETCH_ADD, 40),
            (RC | FLUSH, 32),
            (RC | ATOMIC_WRITE, 28),
            (UC | WRITE_ONLY_IMM, 32),
            (UD | SEND_ONLY, 20),
            (UD | SEND_ONLY_IMM, 24),
            (XRC | SEND_ONLY, 16),
            (XRC | WRITE_ONLY_IMM, 36),
            (XRC | COMPARE_SWAP, 44),
            (XRC | ACKNOWLEDGE, 16),
            (CNP, 12),
            (PROBE, 20),
            (ECHO, 20),
            (GAPS, 16),
        ] {
            assert_eq!(headers_len(opcode), len, "{opcode:#x}");
        }
        assert_eq!(known().map(headers_len).max(), Some(crate::MAX_HEADERS));
    }
}
