//! Amounts as people write them: `1%`, `100us`, `5ms..2s`, `1Gbit`, `256kB`.

use crate::Nanos;
use crate::chance::Probability;

/// From and to, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span<T> {
    pub(crate) low: T,
    pub(crate) high: T,
}

/// A number and the letters after it.
fn number(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let value: f64 = text[..end].parse().ok()?;
    Some((value, &text[end..]))
}

/// `0%` to `100%`.
pub(crate) fn probability(text: &str) -> Option<Probability> {
    let (value, unit) = number(text)?;
    (unit == "%" && value <= 100.0).then(|| Probability::of(value / 100.0))
}

/// A time: `ns`, `us`, `ms` or `s`.
pub(crate) fn time(text: &str) -> Option<Nanos> {
    let (value, unit) = number(text)?;
    let scale = match unit {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return (text == "0").then_some(0),
    };
    Some((value * scale).round() as Nanos)
}

/// `A..B`, or `A` alone for both.
pub(crate) fn span<T: Copy + PartialOrd>(text: &str, part: impl Fn(&str) -> Option<T>) -> Option<Span<T>> {
    let (low, high) = match text.split_once("..") {
        Some((low, high)) => (part(low)?, part(high)?),
        None => (part(text)?, part(text)?),
    };
    (low <= high).then_some(Span { low, high })
}

/// Bits in a second: `bit`, `kbit`, `Mbit`, `Gbit`.
pub(crate) fn rate(text: &str) -> Option<u64> {
    scaled(text, "bit").filter(|&rate| rate > 0)
}

/// Bytes: `B`, `kB`, `MB`, `GB`, in powers of 1000 as [`rate`]: queue by rate is the time that a packet waits. Sizes of
/// memory are in powers of 1024 (`crates/base/config/src/size.rs`). No unit but `B` is in both grammars, so no text has
/// two values.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    scaled(text, "B")
}

fn scaled(text: &str, unit: &str) -> Option<u64> {
    let (value, letters) = number(text)?;
    let scale = match letters.strip_suffix(unit)? {
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        _ => return None,
    };
    Some((value * scale).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_with_their_units() {
        assert_eq!(time("100us"), Some(100_000));
        assert_eq!(time("1.5ms"), Some(1_500_000));
        assert_eq!(time("0"), Some(0));
        assert_eq!(rate("2.5Gbit"), Some(2_500_000_000));
        assert_eq!(bytes("256kB"), Some(256_000));
        assert_eq!([bytes("5B"), bytes("1.3MB"), bytes("2GB")], [Some(5), Some(1_300_000), Some(2_000_000_000)]);
        assert_eq!(span("1ms..2s", time), Some(Span { low: 1_000_000, high: 2_000_000_000 }));
        assert_eq!(probability("100%"), Some(Probability::ALWAYS));
    }

    #[test]
    fn amounts_without_sense_are_refused() {
        for text in ["", "5", "-1ms", "1m", "1.2.3s", "ms"] {
            assert_eq!(time(text), None, "{text}");
        }
        assert_eq!(span("2s..1s", time), None);
        assert_eq!(probability("101%"), None);
        assert_eq!(probability("0.5"), None);
        assert_eq!(rate("0bit"), None);
        for text in ["5", "64K", "64k", "64KiB", "64KB", "64kb", "64 kB", "1TB"] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }
}
