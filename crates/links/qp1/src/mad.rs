//! The process of a host that a management datagram (MAD) is for, as the MAD itself names it: QP 1 is the host's, and
//! no process has it alone.

use vervain_gsi::{MAD_BYTES, Mad, SLOT_BITS};
use vervain_hca::arena::layout::SLOTS;

/// Number of the QP between which MADs are exchanged.
pub const QPN: u32 = 1;
/// Its Q_Key (IBA 10.2.4.2).
pub const QKEY: u32 = 0x8001_0000;

/// Class and version of communication management (IBA 12.6), and their offset in a MAD.
const CLASS: [u8; 2] = [7, 2];
const CLASS_AT: usize = 1;
/// Offset of a MAD's attribute ID.
pub const ATTRIBUTE_AT: usize = 16;
/// Offset of the messages of communication management. They begin with the sender's identifier, or the number of a SIDR
/// request.
pub const LOCAL_AT: usize = 24;
/// Offset of the receiver's identifier, in messages that have one.
pub const REMOTE_AT: usize = 28;
/// Offset of the service ID in REQ and SIDR_REQ.
pub const SERVICE_AT: usize = 32;

/// Attribute ID of a REQ (IBA 12.6.5), which like the next two names sender or receiver differently from the rest.
pub const REQ: u16 = 0x10;
/// Attribute ID of a SIDR_REQ (IBA 12.11.1).
pub const SIDR_REQ: u16 = 0x17;
/// Attribute ID of a SIDR_REP (IBA 12.11.1).
pub const SIDR_REP: u16 = 0x18;

/// Addressee of a MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressee {
    /// The process with this slot, which has chosen the identifier.
    Slot(u32),
    /// The process that has claimed this service.
    Service(u64),
}

fn word(mad: &Mad, at: usize) -> u32 {
    u32::from_be_bytes(std::array::from_fn(|i| mad[at + i]))
}

/// The slot of the process that has sent `mad`; None: the MAD does not name it.
pub fn sender(mad: &Mad) -> Option<u32> {
    let is_one = mad[CLASS_AT..CLASS_AT + 2] == CLASS && attribute(mad) != SIDR_REP;
    is_one.then(|| word(mad, LOCAL_AT) >> (u32::BITS - SLOT_BITS))
}

fn attribute(mad: &Mad) -> u16 {
    u16::from_be_bytes([mad[ATTRIBUTE_AT], mad[ATTRIBUTE_AT + 1]])
}

/// The addressee of `mad`; None: it is not of communication management.
pub fn addressee(mad: &Mad) -> Option<Addressee> {
    if mad[CLASS_AT..CLASS_AT + 2] != CLASS {
        return None;
    }
    let slot_at = match attribute(mad) {
        REQ | SIDR_REQ => {
            let service = u64::from_be_bytes(std::array::from_fn(|i| mad[SERVICE_AT + i]));
            return Some(Addressee::Service(service));
        }
        SIDR_REP => LOCAL_AT,
        _ => REMOTE_AT,
    };
    Some(Addressee::Slot(word(mad, slot_at) >> (u32::BITS - SLOT_BITS)))
}

const _: () = assert!(SERVICE_AT + 8 <= MAD_BYTES && SLOTS == 1 << SLOT_BITS);

#[cfg(test)]
mod tests {
    use super::*;

    fn mad(attribute: u16) -> Mad {
        let mut mad = [0xee; MAD_BYTES];
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[16..18].copy_from_slice(&attribute.to_be_bytes());
        mad[24..28].copy_from_slice(&(5u32 << 22 | 1).to_be_bytes());
        mad[28..32].copy_from_slice(&(1022u32 << 22 | 0x3f_ffff).to_be_bytes());
        mad[32..40].copy_from_slice(&0x0000_0001_0106_1234u64.to_be_bytes());
        mad
    }

    #[test]
    fn requests_name_a_service_and_all_others_an_identifier() {
        for attribute in [REQ, SIDR_REQ] {
            assert_eq!(addressee(&mad(attribute)), Some(Addressee::Service(0x0000_0001_0106_1234)));
        }
        assert_eq!(addressee(&mad(SIDR_REP)), Some(Addressee::Slot(5)));
        // REJ, MRA, REP, RTU, DREQ, DREP, LAP, APR.
        for attribute in [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x19, 0x1a] {
            assert_eq!(addressee(&mad(attribute)), Some(Addressee::Slot(1022)), "{attribute:#x}");
        }
    }

    #[test]
    fn senders_name_themselves_but_in_answers_to_requests_for_datagrams() {
        for attribute in [REQ, SIDR_REQ, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16] {
            assert_eq!(sender(&mad(attribute)), Some(5), "{attribute:#x}");
        }
        assert_eq!(sender(&mad(SIDR_REP)), None);
    }

    #[test]
    fn other_classes_are_for_nobody() {
        for (at, value) in [(1, 3), (2, 1)] {
            let mut other = mad(REQ);
            other[at] = value;
            assert_eq!((addressee(&other), sender(&other)), (None, None));
        }
    }
}
