//! Atomics (IBA 9.4.5): 8 bytes, aligned, in memory that the peer's key names.

use crate::mr::transfer;
use crate::process::peer::Location;
use crate::responder::Responder;
use vervain_iba::{Nak, access};

/// Compare and swap, or fetch and add.
#[derive(Clone, Copy)]
pub(crate) struct Atomic {
    /// True: compare and swap; else fetch and add.
    pub compare_swap: bool,
    /// The compare value, or the addend.
    pub compare_add: u64,
    /// The new value.
    pub swap: u64,
}

impl Responder {
    /// Carries out an atomic inside the mark. Returns the earlier value; None if only the owner can do it.
    #[inline]
    pub(crate) fn fetch_atomic(&self, rkey: u32, addr: u64, atomic: Atomic) -> Result<Option<u64>, Nak> {
        let location = self.remote_memory(rkey, addr, 8, access::REMOTE_ATOMIC);
        if !addr.is_multiple_of(8) && location != Err(Nak::InvalidRequest) {
            return Err(Nak::InvalidRequest);
        }
        match location? {
            Location::Mapped(p) if (p as usize).is_multiple_of(8) => {
                // SAFETY: eight aligned bytes, just checked against their key inside the mark, which keeps them so.
                let before = unsafe { transfer::atomic(p, atomic.compare_swap, atomic.compare_add, atomic.swap) };
                before.map(Some).map_err(|_| Nak::RemoteOperation)
            }
            _ => Ok(None),
        }
    }

    /// Carries out an atomic from a packet: compare and swap, or fetch and add without `compare`. Returns the earlier
    /// value.
    pub fn atomic(&self, rkey: u32, addr: u64, compare: Option<u64>, swap_add: u64) -> Result<u64, Nak> {
        let (compare_add, swap) = compare.map_or((swap_add, 0), |c| (c, swap_add));
        let atomic = Atomic { compare_swap: compare.is_some(), compare_add, swap };
        // None: the region's addresses are aligned, but its memory is not.
        self.fetch_atomic(rkey, addr, atomic)?.ok_or(Nak::InvalidRequest)
    }
}
