//! Numbers as a plan writes them: 8, "64K", "8 MiB", and series of them, "8..8M" and "8..8M by 4".

use crate::case::bytes;

/// The numbers that a key takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quantity {
    pub least: u64,
    pub most: u64,
    /// Bytes, with their units.
    pub is_size: bool,
}

/// A message: IBA volume 1, 9.7.7 allows 2^31 bytes. None of 0 bytes: bandwidth would be 0, and the latency of a Write
/// is measured by its last byte.
pub(super) const SIZE: Quantity = Quantity { least: 1, most: 1 << 31, is_size: true };

impl Quantity {
    pub(super) const fn count(least: u64, most: u64) -> Quantity {
        Quantity { least, most, is_size: false }
    }

    /// The numbers that a text means: one, or a series.
    pub(super) fn series(self, text: &str) -> Option<Vec<u64>> {
        let Some((first, rest)) = text.split_once("..") else {
            return Some(vec![self.allowed(self.number(text)?)?]);
        };
        let (last, factor) = match rest.split_once(" by ") {
            Some((last, factor)) => (last, digits(factor.trim())?),
            None => (rest, 2),
        };
        let (first, last) = (self.allowed(self.number(first)?)?, self.allowed(self.number(last)?)?);
        if first == 0 || first > last || factor < 2 {
            return None;
        }
        Some(std::iter::successors(Some(first), |n| n.checked_mul(factor)).take_while(|n| *n <= last).collect())
    }

    /// The number, where the key takes it.
    pub(super) fn allowed(self, number: u64) -> Option<u64> {
        (self.least..=self.most).contains(&number).then_some(number)
    }

    /// One number; a size with its unit where it has one.
    pub(super) fn number(self, text: &str) -> Option<u64> {
        if self.is_size { vervain_config::bytes(text.as_bytes()) } else { digits(text.trim()) }
    }

    /// "1 B to 2 GiB".
    pub(super) fn range(self) -> String {
        match self.is_size {
            true => format!("{} to {}", bytes(self.least), bytes(self.most)),
            false => format!("{} to {}", self.least, self.most),
        }
    }

    /// The forms of a list's elements, for error texts.
    pub(super) fn forms(self) -> String {
        match self.is_size {
            true => format!(r#"{}, written 8, "64K", "8 MiB", "8..8M" or "8..8M by 4""#, self.range()),
            false => format!(r#"{}, written 8, "1..128" or "1..128 by 4""#, self.range()),
        }
    }
}

/// Digits only: `parse` would take a sign.
fn digits(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_units_of_the_field() {
        for (text, size) in [
            ("8", 8),
            ("8 B", 8),
            (" 8b ", 8),
            ("64K", 65536),
            ("64 KiB", 65536),
            ("8m", 8 << 20),
            ("8  MiB", 8 << 20),
            ("2G", 1 << 31),
            ("2 GiB", 1 << 31),
        ] {
            assert_eq!(SIZE.series(text), Some(vec![size]), "{text}");
        }
        for text in [
            "",
            " ",
            "K",
            "0",
            "-8",
            "+8",
            "8.5",
            "8 KB",
            "8 kilo",
            "3G",
            "8 8",
            "99999999999999999999",
            "17179869184G",
        ] {
            assert_eq!(SIZE.series(text), None, "{text}");
        }
    }

    #[test]
    fn a_series_goes_by_its_factor_up_to_its_end() {
        assert_eq!(SIZE.series("8..64"), Some(vec![8, 16, 32, 64]));
        assert_eq!(SIZE.series("8 B .. 8 KiB by 8"), Some(vec![8, 64, 512, 4096]));
        assert_eq!(SIZE.series("3..13"), Some(vec![3, 6, 12]));
        assert_eq!(SIZE.series("5..5"), Some(vec![5]));
        assert_eq!(SIZE.series("8..8M").map(|all| all.len()), Some(21));
        assert_eq!(SIZE.series("1..2G by 18446744073709551615"), Some(vec![1]));
        for text in
            ["..", "8..", "..8", "64..8", "8..64 by 1", "8..64 by 0", "8..64 by", "8..64 by x", "8...64", "0..8"]
        {
            assert_eq!(SIZE.series(text), None, "{text}");
        }
    }

    #[test]
    fn counts_have_no_units() {
        let depth = Quantity::count(1, 32768);
        assert_eq!(depth.series("1..128 by 4"), Some(vec![1, 4, 16, 64]));
        assert_eq!(depth.series("1K"), None);
        assert_eq!(depth.series("32769"), None);
        assert_eq!(depth.range(), "1 to 32768");
        assert_eq!(SIZE.range(), "1 B to 2 GiB");
    }
}
