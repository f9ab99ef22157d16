//! The bytes that a fuzzer makes, read as choices.

/// What is left of a script.
pub struct Script<'a> {
    bytes: &'a [u8],
}

impl<'a> Script<'a> {
    pub fn new(bytes: &'a [u8]) -> Script<'a> {
        Script { bytes }
    }

    /// The next bytes; none at the end.
    pub fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(*bytes)
    }

    /// The next byte.
    pub fn byte(&mut self) -> Option<u8> {
        self.bytes().map(|[byte]| byte)
    }

    /// A length in words, and as much.
    pub fn piece(&mut self) -> Option<&'a [u8]> {
        let len = usize::from(self.byte()? % 32) * 4;
        let (piece, rest) = self.bytes.split_at_checked(len)?;
        self.bytes = rest;
        Some(piece)
    }
}
