//! The halves of the peer's receive buffer that it has offered, and how far they are filled.

use super::TARGET_ENTRIES;
use crate::protocol::wire::Sge;

#[derive(Debug, Default)]
pub(super) struct Targets {
    /// The half that the peer takes data into now, and the index of its entry.
    current: Sge,
    index: u32,
    /// Entries that have come, by index.
    offered: [Option<Sge>; TARGET_ENTRIES as usize],
}

impl Targets {
    /// Takes the half that the peer's greeting offers.
    pub fn begin(&mut self, first: Sge) {
        self.current = first;
    }

    /// Takes an entry that the peer has written.
    pub fn offer(&mut self, index: u32, entry: Sge) {
        self.offered[index as usize] = Some(entry);
    }

    /// Goes on to the next entry when the current one is filled.
    pub fn go_on(&mut self) {
        if self.current.length == 0 {
            let next = (self.index + 1) % TARGET_ENTRIES;
            if let Some(entry) = self.offered[next as usize].take() {
                (self.current, self.index) = (entry, next);
            }
        }
    }

    /// Bytes that fit into the current entry.
    pub fn room(&self) -> u32 {
        self.current.length
    }

    /// Takes the next `length` bytes, for which there is room: their address and key.
    pub fn take(&mut self, length: u32) -> (u64, u32) {
        let (address, key) = (self.current.address, self.current.key);
        self.current.address += u64::from(length);
        self.current.length -= length;
        self.go_on();
        (address, key)
    }
}
