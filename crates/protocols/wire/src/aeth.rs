//! The contents of the AETH: the syndrome (IBA table 44) and end-to-end credits (table 46).

use serde::{Deserialize, Serialize};

/// A syndrome, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Syndrome {
    /// Acknowledge, with the encoded credit count: see [`credits`].
    Ack(u8),
    /// Receiver not ready, with the encoded delay: IBA table 45.
    RnrNak(u8),
    /// Refused.
    Nak(NakCode),
}

/// The reason why a request is refused (IBA table 44, NAK codes 0 to 4; 4 concerns RD alone).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum NakCode {
    /// PSN sequence error.
    Sequence = 0,
    /// Invalid request.
    InvalidRequest = 1,
    /// Remote access error.
    RemoteAccess = 2,
    /// Remote operational error.
    RemoteOperation = 3,
}

impl Syndrome {
    /// Decodes the syndrome byte. None for reserved values, to which IBA gives no meaning.
    #[inline]
    pub fn decode(byte: u8) -> Option<Syndrome> {
        let value = byte & 0x1f;
        match byte >> 5 {
            0 => Some(Syndrome::Ack(value)),
            1 => Some(Syndrome::RnrNak(value)),
            3 => match value {
                0 => Some(Syndrome::Nak(NakCode::Sequence)),
                1 => Some(Syndrome::Nak(NakCode::InvalidRequest)),
                2 => Some(Syndrome::Nak(NakCode::RemoteAccess)),
                3 => Some(Syndrome::Nak(NakCode::RemoteOperation)),
                _ => None,
            },
            _ => None,
        }
    }

    /// The syndrome byte. Only the lower 5 bits of credit codes and timers are used.
    #[inline]
    pub fn encode(self) -> u8 {
        match self {
            Syndrome::Ack(code) => code & 0x1f,
            Syndrome::RnrNak(timer) => 1 << 5 | timer & 0x1f,
            Syndrome::Nak(code) => 3 << 5 | code as u8,
        }
    }
}

/// The credit code of a responder that does not limit its requester, as one with an SRQ (IBA 9.7.7.2).
pub const NO_CREDIT_LIMIT: u8 = 31;

/// IBA table 46.
static CREDITS: [u16; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
    8192, 12288, 16384, 24576, 32768,
];

/// Receives that an encoded credit count grants beyond the MSN of its AETH; none: no limit.
#[inline]
pub fn credits(code: u8) -> Option<u32> {
    CREDITS.get((code & 0x1f) as usize).map(|&count| u32::from(count))
}

/// The code of the largest credit count that does not exceed `receives`.
#[inline]
pub fn credit_code(receives: u32) -> u8 {
    (CREDITS.partition_point(|&count| u32::from(count) <= receives) - 1) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_decodes_to_what_encodes_it_or_is_reserved() {
        let mut meaningful = 0;
        for byte in 0..=u8::MAX {
            if let Some(syndrome) = Syndrome::decode(byte) {
                assert_eq!(syndrome.encode(), byte, "{syndrome:?}");
                meaningful += 1;
            }
        }
        assert_eq!(meaningful, 32 + 32 + 4);
        assert_eq!(Syndrome::decode(0x1f), Some(Syndrome::Ack(NO_CREDIT_LIMIT)));
        assert_eq!(Syndrome::decode(0x2c), Some(Syndrome::RnrNak(12)));
        assert_eq!(Syndrome::decode(0x62), Some(Syndrome::Nak(NakCode::RemoteAccess)));
        assert_eq!(Syndrome::decode(0x40), None);
        assert_eq!(Syndrome::decode(0x80), None);
    }

    /// Each step of table 46 from 4 on is 1.5 or 1.33 times the one before: 4, 6, 8, 12, 16...
    #[test]
    fn credit_counts_are_those_of_table_46() {
        let even_codes = (4..31).step_by(2).map(|code| credits(code).unwrap());
        assert!(even_codes.eq((2..16).map(|power| 1 << power)));
        let odd_codes = (5..31).step_by(2).map(|code| credits(code).unwrap());
        assert!(odd_codes.eq((1..14).map(|power| 3 << power)));
        assert!((0..4).map(|code| credits(code).unwrap()).eq(0..4));
        assert_eq!(credits(NO_CREDIT_LIMIT), None);
    }

    #[test]
    fn a_credit_code_never_grants_more_than_there_is() {
        for receives in 0..=70_000 {
            let code = credit_code(receives);
            assert!(credits(code).unwrap() <= receives);
            assert!(code == 30 || credits(code + 1).unwrap() > receives);
        }
    }
}
