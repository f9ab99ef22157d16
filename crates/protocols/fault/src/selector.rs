//! Which packets a rule is about: by the operation in the BTH's opcode (IBA 9.2.1) and by count.

use std::fmt;

use crate::units::{Span, span};

/// Operations of all services (opcode bits 4..0), by name.
const OPERATIONS: &[(u8, &str)] = &[
    (0x00, "send_first"),
    (0x01, "send_middle"),
    (0x02, "send_last"),
    (0x03, "send_last_imm"),
    (0x04, "send_only"),
    (0x05, "send_only_imm"),
    (0x06, "write_first"),
    (0x07, "write_middle"),
    (0x08, "write_last"),
    (0x09, "write_last_imm"),
    (0x0a, "write_only"),
    (0x0b, "write_only_imm"),
    (0x0c, "read_request"),
    (0x0d, "read_response_first"),
    (0x0e, "read_response_middle"),
    (0x0f, "read_response_last"),
    (0x10, "read_response_only"),
    (ACKNOWLEDGE, "acknowledge"),
    (0x12, "atomic_acknowledge"),
    (0x13, "compare_swap"),
    (0x14, "fetch_add"),
    (0x16, "send_last_invalidate"),
    (0x17, "send_only_invalidate"),
    (0x1c, "flush"),
    (0x1d, "atomic_write"),
];
const ACKNOWLEDGE: u8 = 0x11;
/// The BTH has 12 bytes; an acknowledgement's AETH follows.
const AETH: usize = 12;

/// Packets by operation and count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selector {
    name: String,
    /// The numbers among those that match, from 1; None: all.
    count: Option<Span<u64>>,
}

impl Selector {
    /// `NAME`, `NAME@N` or `NAME@N..M`. A name stands for all operations that begin with it: `write` for `write_first`
    /// and so on.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (name, count) = match text.split_once('@') {
            Some((name, count)) => (name, Some(span(count, |n| n.parse().ok().filter(|&n: &u64| n > 0))?)),
            None => (text, None),
        };
        let known =
            matches!(name, "any" | "ack" | "nak" | "rnr") || OPERATIONS.iter().any(|(_, full)| begins(full, name));
        known.then(|| Self { name: name.to_owned(), count })
    }

    /// Returns true if the operation is meant.
    pub(crate) fn names(&self, packet: &[u8]) -> bool {
        let Some(&opcode) = packet.first() else { return false };
        match self.name.as_str() {
            "any" => true,
            // IBA table 44: bits 6..5 of the syndrome.
            "ack" => syndrome(packet) == Some(0),
            "rnr" => syndrome(packet) == Some(1),
            "nak" => syndrome(packet) == Some(3),
            name => OPERATIONS.iter().any(|(code, full)| opcode & 0x1f == *code && begins(full, name)),
        }
    }

    /// Returns true if the `n`th one that is named is meant.
    pub(crate) fn counts(&self, n: u64) -> bool {
        self.count.is_none_or(|Span { low, high }| low <= n && n <= high)
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            None => write!(f, "{}", self.name),
            Some(Span { low, high }) if low == high => write!(f, "{}@{low}", self.name),
            Some(Span { low, high }) => write!(f, "{}@{low}..{high}", self.name),
        }
    }
}

fn begins(full: &str, name: &str) -> bool {
    full.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

fn syndrome(packet: &[u8]) -> Option<u8> {
    (packet.first()? & 0x1f == ACKNOWLEDGE).then_some(())?;
    Some((packet.get(AETH)? >> 5) & 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_for_all_operations_that_begin_with_it() {
        let send = Selector::parse("send").unwrap();
        for (opcode, meant) in [(0x00, true), (0x05, true), (0x17, true), (0x64, true), (0x06, false)] {
            assert_eq!(send.names(&[opcode]), meant, "{opcode:#x}");
        }
        assert!(Selector::parse("write_last").unwrap().names(&[0x09]));
        assert!(Selector::parse("sen").is_none());
    }

    #[test]
    fn acknowledgements_are_told_apart_by_their_syndrome() {
        let mut packet = [0; 16];
        packet[0] = 0x11;
        for (syndrome, name) in [(0x1f, "ack"), (0x20, "rnr"), (0x60, "nak")] {
            packet[12] = syndrome;
            for other in ["ack", "rnr", "nak"] {
                assert_eq!(Selector::parse(other).unwrap().names(&packet), other == name);
            }
            assert!(Selector::parse("acknowledge").unwrap().names(&packet));
        }
        assert!(!Selector::parse("ack").unwrap().names(&packet[..12]));
    }
}
