//! Messages that stand in the completions of their receives (`cq::recv_ring`), on the side of their process: a poll
//! copies them into the program's memory, and a revocation of that memory does so before.

use crate::arena::layout::Inline;
use crate::host::guarded;
use crate::host::lock::OwnerLock;
use crate::process::key_table::KeyTable;
use std::collections::BTreeMap;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use vervain_iba::{Sge, access};

/// A lane whose completions hold messages.
pub(crate) trait InlineReceives: Send + Sync {
    /// Puts those that wait for receives of the `revoked` key into their memory. No more of them are delivered.
    fn scatter_waiting(&self, revoked: u32);
}

/// All of them, by where their lanes lie.
#[derive(Default)]
pub(crate) struct InlineLanes(OwnerLock<BTreeMap<u64, Weak<dyn InlineReceives>>>);

impl InlineLanes {
    pub(crate) fn add(&self, offset: u64, lane: Weak<dyn InlineReceives>) {
        self.0.lock().insert(offset, lane);
    }

    pub(crate) fn remove(&self, offset: u64) {
        self.0.lock().remove(&offset);
    }

    /// Scatters all messages that wait for memory of `revoked`, which nobody is in flight with any more.
    pub(crate) fn scatter_waiting(&self, revoked: u32) {
        let lanes: Vec<_> = self.0.lock().values().filter_map(Weak::upgrade).collect();
        lanes.iter().for_each(|lane| lane.scatter_waiting(revoked));
    }
}

impl KeyTable {
    /// Puts the first bytes of `message` into the memory `at`, as many as that has; false if its key does not allow
    /// that, or the memory is not there. A key that was `revoked` allows it until
    /// [`super::Process::revoke_region`] returns.
    #[inline]
    pub(crate) fn scatter(&self, at: &Sge, pd: u32, message: &Inline, revoked: bool) -> bool {
        let len = u64::from(at.length);
        let Some(entry) = self.entries.get((at.lkey >> 8) as usize) else { return false };
        let offset = if revoked {
            entry.offset(at.addr, len)
        } else {
            entry.plain_offset(at.lkey, at.addr, len, access::LOCAL_WRITE, pd)
        };
        let Some(offset) = offset.filter(|_| len <= size_of::<Inline>() as u64) else { return false };
        let to = entry.host.load(Ordering::Relaxed).wrapping_add(offset) as *mut u8;
        // SAFETY: the message is as long as that; the program has registered the memory and posted it, and no reference
        // of the device is to it.
        unsafe { guarded::copy(message.as_ptr().cast(), to, at.length as usize) }.is_ok()
    }
}
