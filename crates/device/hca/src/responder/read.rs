//! RDMA Read (IBA 9.4.4): from memory that the peer's key names.

use crate::mr::transfer::Pieces;
use crate::process::peer::Location;
use crate::responder::{Reached, Responder};
use std::sync::atomic::{Ordering, fence};
use vervain_iba::{Nak, access};

impl Responder {
    /// Checks that the QP has room for the answer to a Read or an atomic at all (IBA 9.7.4.1.2). Called inside the
    /// mark: outside, the QP may be gone and its memory reused.
    pub(crate) fn answers(&self) -> Result<(), Nak> {
        if self.qp.max_dest_rd_atomic.load(Ordering::Relaxed) == 0 { Err(Nak::InvalidRequest) } else { Ok(()) }
    }

    /// Reaches the memory that a Read fetches.
    #[inline]
    pub(crate) fn reach_read(&self, rkey: u32, addr: u64, len: u64) -> Result<Reached<'_>, Nak> {
        self.reach(rkey, addr, len, access::REMOTE_READ)
    }

    /// The memory that a Read fetches, valid until the end of the mark. For an answer in packets: the memory is this
    /// process's own.
    pub fn read(&self, rkey: u32, addr: u64, len: u64) -> Result<Pieces, Nak> {
        match self.reach_read(rkey, addr, len)?.location {
            Location::Mapped(p) => {
                // Behind earlier writes of this thread for packets (IBA 9.5): a load may pass a store.
                fence(Ordering::SeqCst);
                let mut pieces = Pieces::new();
                pieces.push(p, len);
                Ok(pieces)
            }
            // This process's own memory is all mapped, and the null MR is for local use.
            Location::Unmapped(_) | Location::Null => Err(Nak::RemoteAccess),
        }
    }
}
