//! Words as sets.

/// The numbers of the set bits of `word`.
pub(crate) fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        if word == 0 {
            return None;
        }
        let b = word.trailing_zeros();
        word &= word - 1;
        Some(b)
    })
}

/// The numbers of the set bits of `word`, those from `first` on before those below it.
pub(crate) fn bits_from(word: u64, first: u32) -> impl Iterator<Item = u32> {
    let below = (1 << first) - 1;
    bits(word & !below).chain(bits(word & below))
}

#[cfg(test)]
mod tests {
    use super::bits_from;

    #[test]
    fn bits_come_round_from_any_place() {
        let from = |first| bits_from(1 | 1 << 7 | 1 << 63, first).collect::<Vec<_>>();
        assert_eq!([from(0), from(7), from(8), from(63)].map(|found| found[0]), [0, 7, 63, 63]);
        assert_eq!(from(8), [63, 0, 7]);
    }
}
