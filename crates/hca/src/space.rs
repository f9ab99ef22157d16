//! A process as its peers see it: its mapped arena, the way to wake it, and what its keys and QP numbers stand for.
//! One's own process is a space too, so that a QP looped back inside one process takes the same path as any other.

use crate::arena::View;
use crate::error::{Error, Result};
use crate::events::PeerChannels;
use crate::layout::{self, Header, KeyEntry, QpShared, RqShared};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// `FUTEX_OWNER_DIED`: the kernel sets it in a robust mutex whose owner died (`man 2 get_robust_list`).
const OWNER_DIED: u32 = 0x4000_0000;

/// A process and its arena.
pub struct Space {
    /// The mapped arena.
    pub view: View,
    /// Its header.
    pub header: &'static Header,
    /// Its key table.
    pub keys: &'static [KeyEntry],
    attention: &'static [AtomicU64],
    own: bool,
    /// The process in our pid namespace; 0 when it is not visible from here.
    pub pid: i32,
    wake: OwnedFd,
    dead: AtomicBool,
    vm: AtomicU8,
    /// Its completion channels.
    pub channels: PeerChannels,
}

/// Where memory named by a key is, seen from the calling process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Mapped here.
    Direct(*mut u8),
    /// In the other process only, at this address of its own.
    Remote(u64),
    /// The null MR.
    Null,
}

impl Space {
    /// Takes a mapped arena for what it says it is; refused with one clear sentence when it is not an arena of this version.
    pub fn new(view: View, own: bool, pid: i32, wake: OwnedFd) -> Result<Space> {
        let header = view.get::<Header>(0).ok_or_else(|| Error::invalid("an arena is too small for its header"))?;
        if header.magic.load(Ordering::Acquire) != layout::MAGIC {
            return Err(Error::invalid("a peer's shared memory is not a Vervain arena"));
        }
        let version = header.version.load(Ordering::Relaxed);
        if version != layout::VERSION {
            return Err(Error::new(
                libc::EPROTO,
                format!(
                    "a peer's arena has version {version}, this library has {}; use one Vervain for both",
                    layout::VERSION
                ),
            ));
        }
        let keys = view.slice(header.keys.load(Ordering::Relaxed), layout::KEYS);
        let attention = view.slice(header.attention.load(Ordering::Relaxed), layout::ATTENTION / 64);
        let (Some(keys), Some(attention)) = (keys, attention) else {
            return Err(Error::invalid("a peer's arena has tables outside of itself"));
        };
        Ok(Space {
            view,
            header,
            keys,
            attention,
            own,
            pid,
            wake,
            dead: AtomicBool::new(false),
            vm: AtomicU8::new(0),
            channels: PeerChannels::default(),
        })
    }

    /// Whether this is the calling process.
    #[inline]
    pub fn is_own(&self) -> bool {
        self.own
    }

    /// The descriptor that wakes its progress thread.
    pub fn wake_fd(&self) -> RawFd {
        self.wake.as_raw_fd()
    }

    /// Whether the process has ended (or has replaced itself by `exec`).
    #[inline]
    pub fn is_dead(&self) -> bool {
        !self.own
            && (self.dead.load(Ordering::Relaxed)
                || self.header.alive[0].load(Ordering::Relaxed) as u32 & OWNER_DIED != 0)
    }

    /// Notes that the process has ended.
    pub fn mark_dead(&self) {
        self.dead.store(true, Ordering::Release);
    }

    /// Whether process_vm calls may be tried on it.
    pub fn vm_allowed(&self) -> bool {
        self.pid > 0 && self.vm.load(Ordering::Relaxed) == 0
    }

    /// Notes that the kernel refused a process_vm call on it.
    pub fn deny_vm(&self) {
        self.vm.store(1, Ordering::Relaxed);
    }

    /// Asks the owner to look at its object `number`, and wakes its progress thread if it sleeps.
    pub fn raise(&self, number: u32) {
        let n = number as usize % layout::ATTENTION;
        self.attention[n / 64].fetch_or(1 << (n % 64), Ordering::SeqCst);
        self.header.attention_summary[n / 4096].fetch_or(1 << (n / 64 % 64), Ordering::SeqCst);
        self.wake();
    }

    /// Wakes the progress thread if it sleeps.
    pub fn wake(&self) {
        // Written before the mark is taken: a peer that is stopped in between leaves the mark for others. Each sleep
        // has a mark of its own, so that a late taker does not take that of the next one.
        let sleep = self.header.sleeping.load(Ordering::SeqCst);
        if sleep != 0 {
            crate::wake::wake(&self.wake);
            let _ = self.header.sleeping.compare_exchange(sleep, 0, Ordering::SeqCst, Ordering::Relaxed);
        }
    }

    /// Whether any object of the own process asks for attention.
    #[inline]
    pub fn wants_attention(&self) -> bool {
        self.header.attention_summary.iter().any(|w| w.load(Ordering::SeqCst) != 0)
    }

    /// Takes the numbers of all objects that asked for attention.
    pub fn take_attention(&self, mut each: impl FnMut(u32)) {
        for (s, summary) in self.header.attention_summary.iter().enumerate() {
            if summary.load(Ordering::Relaxed) == 0 {
                continue;
            }
            for w in bits(summary.swap(0, Ordering::SeqCst)) {
                let word = s * 64 + w as usize;
                for b in bits(self.attention[word].swap(0, Ordering::SeqCst)) {
                    each(word as u32 * 64 + b);
                }
            }
        }
    }

    fn slot(&self, number: u32) -> Option<&layout::SlotEntry> {
        let slot = layout::slot_of(number);
        if slot == 0 {
            return None;
        }
        self.header.slots.iter().find(|s| s.slot.load(Ordering::Acquire) == slot)
    }

    /// The QP with this number, if it exists here.
    pub fn qp(&self, qpn: u32) -> Option<&'static QpShared> {
        let table = self.slot(qpn)?.qps.load(Ordering::Acquire);
        let offset =
            self.view.slice::<AtomicU64>(table, layout::PER_SLOT)?[layout::index_of(qpn)].load(Ordering::Acquire);
        if offset == 0 {
            return None;
        }
        self.view.get::<QpShared>(offset).filter(|qp| qp.qpn.load(Ordering::Relaxed) == qpn)
    }

    /// The XRC SRQ with this number, if it exists here.
    pub fn xrc_srq(&self, srqn: u32) -> Option<&'static RqShared> {
        let table = self.slot(srqn)?.srqs.load(Ordering::Acquire);
        let offset =
            self.view.slice::<AtomicU64>(table, layout::PER_SLOT)?[layout::index_of(srqn)].load(Ordering::Acquire);
        if offset == 0 { None } else { self.view.get(offset) }
    }

    /// Finds the memory `[addr, addr + len)` that `key` names, if the key is good, covers it, grants `need`, and belongs to
    /// the protection domain (or, for a type 2 window, to the QP). IBA 10.6.3, 11.2.8, 9.7.4.1.5.
    #[inline]
    pub fn resolve(&self, key: u32, addr: u64, len: u64, need: u32, pd: u32, qpn: u32) -> Option<Place> {
        let entry = self.keys.get((key >> 8) as usize)?;
        if entry.key.load(Ordering::Acquire) != layout::KEY_VALID | u64::from(key) {
            return None;
        }
        let flags = entry.flags.load(Ordering::Relaxed);
        if entry.access.load(Ordering::Relaxed) & need != need {
            return None;
        }
        if flags & layout::KEY_WINDOW2 != 0 {
            if entry.qpn.load(Ordering::Relaxed) != qpn {
                return None;
            }
        } else if entry.pd.load(Ordering::Relaxed) != pd {
            return None;
        }
        if flags & layout::KEY_WINDOW != 0 {
            let parent = entry.parent.load(Ordering::Relaxed);
            let under = self.keys.get((parent >> 8) as usize)?;
            if under.key.load(Ordering::Acquire) != layout::KEY_VALID | parent {
                return None;
            }
        }
        if flags & layout::KEY_NULL != 0 {
            return Some(Place::Null);
        }
        let offset = addr.wrapping_sub(entry.iova.load(Ordering::Relaxed));
        let size = entry.len.load(Ordering::Relaxed);
        if offset > size || len > size - offset {
            return None;
        }
        if self.own {
            return Some(Place::Direct((entry.host.load(Ordering::Relaxed).wrapping_add(offset)) as *mut u8));
        }
        let arena = entry.arena.load(Ordering::Relaxed);
        if arena == layout::NOT_IN_ARENA {
            return Some(Place::Remote(entry.host.load(Ordering::Relaxed).wrapping_add(offset)));
        }
        self.view.at(arena.checked_add(offset)?, len).map(Place::Direct)
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        if !self.own {
            // SAFETY: whoever holds a reference into the arena holds this space too, so none is left.
            unsafe { self.view.unmap() };
        }
    }
}

/// The numbers of the set bits of `word`.
pub fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        if word == 0 {
            return None;
        }
        let b = word.trailing_zeros();
        word &= word - 1;
        Some(b)
    })
}

/// Advances `counter` from `from` by one, whoever does it first.
pub(crate) fn help(counter: &AtomicU64, from: u64) {
    let _ = counter.compare_exchange(from, from.wrapping_add(1), Ordering::AcqRel, Ordering::Relaxed);
}
