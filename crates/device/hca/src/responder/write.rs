//! RDMA Write (IBA 9.4.3): into memory that the peer's key names.

use crate::mr::transfer::{self, Direction, Pieces};
use crate::process::peer::Location;
use crate::responder::{Reached, Refusal, Responder};
use std::ops::Range;
use vervain_iba::{Nak, access};

impl Responder {
    /// Reaches the memory that a Write goes to.
    #[inline]
    pub(crate) fn reach_write(&self, rkey: u32, addr: u64, len: u64) -> Result<Reached<'_>, Nak> {
        self.reach(rkey, addr, len, access::REMOTE_WRITE)
    }

    /// The memory that a Write goes to and its key. None if it is not mapped in this process, or if the Write is
    /// refused.
    pub fn write_range(&self, rkey: u32, addr: u64, len: u64) -> Option<(u32, Range<u64>)> {
        match self.reach_write(rkey, addr, len).ok()?.location {
            Location::Mapped(at) => Some((rkey, at as u64..at as u64 + len)),
            _ => None,
        }
    }

    /// Writes `data`, a piece of a message, inside the mark. `last`: the message ends with it. For packets: the
    /// destination is this process's own memory. The data is read once, and may change meanwhile.
    pub fn write(&self, rkey: u32, addr: u64, data: &Pieces, last: bool) -> Result<(), Nak> {
        let Location::Mapped(at) = self.remote_memory(rkey, addr, data.len(), access::REMOTE_WRITE)? else {
            // This process's own memory is all mapped, and the null MR is for local use.
            return Err(Nak::RemoteAccess);
        };
        // SAFETY: the pieces are memory of this process that stays during the call; as many bytes were reached, inside
        // the mark.
        let written = unsafe { transfer::copy_direct(Direction::Write, at, data, last) };
        written.map_err(|_| Nak::RemoteOperation)
    }
}

/// The result of a move in the calling process's own memory, which no other owner has to do.
pub(super) fn whole(moved: Result<bool, Refusal>) -> Result<(), Nak> {
    match moved {
        Ok(true) => Ok(()),
        Ok(false) => Err(Nak::RemoteAccess),
        Err(Refusal::Nak(nak)) => Err(nak),
        Err(Refusal::Fault(_)) => Err(Nak::RemoteOperation),
    }
}
