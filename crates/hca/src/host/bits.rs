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
