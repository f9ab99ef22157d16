//! Sizes as users write them in variables, options and plans: one grammar for all but the queue of the fault injector,
//! whose units are decimal (`crates/protocols/fault/src/units.rs`). Nothing here allocates: the preload reads a size
//! inside of malloc.

/// Units, in any case: entry N is 1024 to the power of N. `kB`, `MB` and `GB` are refused: they are powers of 1000 to
/// some and of 1024 to others.
const UNITS: [[&str; 2]; 5] = [["", "B"], ["K", "KiB"], ["M", "MiB"], ["G", "GiB"], ["T", "TiB"]];

/// Bytes: decimal digits, then a unit if wanted, such as `4096`, `64k`, `512M` or `8 MiB`, with spaces around both if
/// wanted. `None`: anything else, a sign or a fraction included, and 2^64 bytes or more.
pub fn bytes(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii();
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let unit = unit.trim_ascii_start();
    let power = UNITS.iter().position(|names| names.iter().any(|name| unit.eq_ignore_ascii_case(name.as_bytes())))?;
    std::str::from_utf8(digits).ok()?.parse::<u64>().ok()?.checked_mul(1 << (10 * power))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_a_unit() {
        for (text, size) in [
            ("0", 0),
            ("4096", 4096),
            ("8 B", 8),
            ("8b", 8),
            ("64k", 64 << 10),
            ("64K", 64 << 10),
            ("64 KiB", 64 << 10),
            ("8m", 8 << 20),
            (" 8  MiB ", 8 << 20),
            ("512M", 512 << 20),
            ("2G", 2 << 30),
            ("2gib", 2 << 30),
            ("1T", 1 << 40),
            ("1 TiB", 1 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(bytes(text.as_bytes()), Some(size), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_or_not_the_same_to_all_is_refused() {
        for text in [
            "",
            " ",
            "K",
            "-1",
            "+8",
            "1.5G",
            "8 8",
            "8 kilo",
            "8KK",
            "4GB",
            "4gb",
            "8 KB",
            "8kB",
            "0x10",
            "1_000",
            "99999999999T",
            "17179869184G",
            "18446744073709551616",
        ] {
            assert_eq!(bytes(text.as_bytes()), None, "{text}");
        }
        assert_eq!(bytes(b"4\xffB"), None);
    }
}
