//! The payload of a report of gaps ([`crate::opcode::GAPS`]): run lengths of request packets from the report's PSN on,
//! in turn missing and kept. The first packet is missing, the last is kept; what lies behind it is not reported.

/// Most gaps of a report, which then has 256 bytes of payload: it fits the smallest path MTU.
pub const MOST: usize = 64;
/// Most PSNs that a report spans: 2^15, more than a window of 8 MiB holds.
pub const REACH: u32 = 1 << 15;

/// Packets that are missing, and kept ones behind them; neither is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// PSNs of missing packets.
    pub missing: u16,
    /// PSNs of packets that the responder keeps.
    pub kept: u16,
}

impl Gap {
    /// Bytes of a gap: both numbers, big-endian.
    pub const LEN: usize = 4;

    /// The gap as it lies in the packet.
    pub fn bytes(self) -> [u8; Gap::LEN] {
        let ([a, b], [c, d]) = (self.missing.to_be_bytes(), self.kept.to_be_bytes());
        [a, b, c, d]
    }

    /// PSNs of both.
    pub fn psns(self) -> u32 {
        u32::from(self.missing) + u32::from(self.kept)
    }
}

/// The gaps of a report's payload. None: it has none, more than [`MOST`], an empty run, spans more than [`REACH`] PSNs,
/// or ends in the middle of a gap.
pub fn parse(payload: &[u8]) -> Option<impl Iterator<Item = Gap> + Clone + '_> {
    let (gaps, rest) = payload.as_chunks::<{ Gap::LEN }>();
    if !rest.is_empty() || gaps.is_empty() || gaps.len() > MOST {
        return None;
    }
    let gaps =
        gaps.iter().map(|&[a, b, c, d]| Gap { missing: u16::from_be_bytes([a, b]), kept: u16::from_be_bytes([c, d]) });
    let are_runs = gaps.clone().all(|gap| gap.missing != 0 && gap.kept != 0);
    let psns: u32 = gaps.clone().map(Gap::psns).sum();
    (are_runs && psns <= REACH).then_some(gaps)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(gaps: &[(u16, u16)]) -> Vec<u8> {
        gaps.iter().flat_map(|&(missing, kept)| Gap { missing, kept }.bytes()).collect()
    }

    #[test]
    fn gaps_are_read_as_they_were_written() {
        let gaps = [(1, 2), (300, 1), (7, 0x1000)];
        let bytes = payload(&gaps);
        assert_eq!(bytes[..8], [0, 1, 0, 2, 1, 44, 0, 1]);
        let read: Vec<_> = parse(&bytes).unwrap().map(|gap| (gap.missing, gap.kept)).collect();
        assert_eq!(read, gaps);
    }

    #[test]
    fn a_report_has_gaps_and_whole_ones_and_no_more_than_may_be() {
        let is_good = |bytes: &[u8]| parse(bytes).is_some();
        assert!(!is_good(&[]) && !is_good(&[0, 1]) && !is_good(&payload(&[(1, 1)])[..3]));
        assert!(!is_good(&payload(&[(0, 1)])) && !is_good(&payload(&[(1, 0)])));
        assert!(!is_good(&payload(&[(1, 1), (1, 0)])) && !is_good(&payload(&[(1, 1), (0, 1)])));
        assert!(is_good(&payload(&[(1, 1); MOST])) && !is_good(&payload(&[(1, 1); MOST + 1])));
        assert!(is_good(&payload(&[(1, 0x7fff)])) && !is_good(&payload(&[(1, 0x8000)])));
        assert!(!is_good(&payload(&[(u16::MAX, u16::MAX); MOST])), "no sum wraps");
    }
}
