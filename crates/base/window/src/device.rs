//! Interface of a device that can write the memory of other nodes and never read it: no method returns bytes of another
//! node.

use crate::claims::Claims;
use crate::error::Result;
use crate::layout::Layout;
use crate::medium::{self, Medium};
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Properties of a device and its window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The node of this process, below `layout.nodes()`.
    pub node: u32,
    /// Nodes, regions, and the places in a region.
    pub layout: Layout,
    /// Random number of the window, the same at all nodes.
    pub uuid: [u8; 16],
    /// True if a put is visible by the time [`Channel::put`] returns.
    pub coherent: bool,
    /// Bytes that become visible together where they are put by [`Origin::Words`]: 8, or 4.
    pub whole: u32,
    /// Kind of the window's memory.
    pub medium: Medium,
    /// Bytes that this node reads of its region in a second. Measured for devices; None: not measured.
    pub read_speed: Option<u64>,
}

impl Facts {
    /// Returns true if measurement shows that no cache holds the memory.
    pub fn is_slow(&self) -> bool {
        self.read_speed.is_some_and(medium::is_uncached)
    }

    /// The GID of `node`, which only one window of the world has: a local IPv6 address (RFC 4193), whose global part is
    /// 40 bits of the window's random number, and whose interface part is the node's number and one.
    pub fn gid(&self, node: u32) -> [u8; 16] {
        let mut gid = [0; 16];
        gid[0] = 0xfd;
        gid[1..6].copy_from_slice(&self.uuid[..5]);
        gid[8..].copy_from_slice(&(u64::from(node) + 1).to_be_bytes());
        gid
    }
}

/// A device, as one process has it.
pub trait PutDevice: Send + Sync {
    /// Properties of the device and its window.
    fn facts(&self) -> &Facts;

    /// The region of this process's node.
    fn own(&self) -> &Region;

    /// A channel into the region of `node`, which may be this one. Several may lead to one node, with no order among
    /// them.
    ///
    /// # Errors
    /// EINVAL: there is no such node; and failures of the device.
    fn channel(&self, node: u32) -> Result<Box<dyn Channel>>;

    /// Returns true if [`Channel::wake`] wakes processes of `node`, and theirs wakes processes of this one.
    fn wakes(&self, _node: u32) -> bool {
        false
    }

    /// Sleeps until the lower half of the word at `offset` of the own region differs from `seen`, or a peer wakes it;
    /// it may also return early. Only for devices whose [`PutDevice::wakes`] is true of the own node.
    fn sleep(&self, _offset: u64, _seen: u32) {}

    /// Numbers and memory for the processes of this node.
    fn claims(&self) -> &Arc<Claims>;

    /// Sets the program's memory map, for devices that read such memory in the own region. Called once.
    fn set_program(&self, _program: Box<dyn Program>) {}
}

/// The program, as a device sees it: its memory in the own region, and its counters.
pub trait Program: Send + Sync {
    /// Offset in the own region of the `len` bytes at `address`; None unless they lie there in one piece. Bytes that
    /// move away later are not read by this answer.
    fn place(&self, address: *const u8, len: usize) -> Option<u64>;

    /// Adds `n`, events or bytes, to a counter.
    fn count(&self, what: Count, n: u64);
}

/// Counters of a device with limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// Bytes that the sender copied first because their place breaks a limit of the device.
    StagedAlignment,
    /// Bytes that the sender copied first because the device cannot read where they lie.
    StagedMemory,
    /// Descriptors in the memory of the board.
    InternalDescriptors,
    /// Descriptors in the memory of the host.
    HostDescriptors,
    /// Links that were passed.
    Hops,
    /// Chains that broke a limit.
    Refusals,
}

/// Properties of a channel, for its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traits {
    /// Places and lengths of [`Origin::Source`] are multiples of this.
    pub grain: u64,
    /// True if long messages deserve a ring of their own.
    pub has_long_ring: bool,
    /// True if a put takes so long that puts which may wait should go together with the next.
    pub is_slow: bool,
}

/// A channel into the region of one node.
pub trait Channel: Send {
    /// Puts become visible in the order of the chain and of the calls: a reader that sees the last with acquire sees
    /// all.
    ///
    /// # Errors
    /// Nothing is done if one of the chain is not allowed. If a source faults, the puts before it are done.
    fn put(&mut self, chain: &[Put<'_>]) -> std::result::Result<(), Refused>;

    /// Puts a chain that may become visible late: before the next call of [`Channel::put`] takes effect, or at
    /// [`Channel::flush`].
    ///
    /// # Errors
    /// Those of [`Channel::put`].
    fn put_later(&mut self, chain: &[Put<'_>]) -> std::result::Result<(), Refused> {
        self.put(chain)
    }

    /// Makes everything visible that [`Channel::put_later`] has held back.
    fn flush(&mut self) {}

    /// Returns true if [`Channel::put_later`] holds anything back.
    fn owes(&self) -> bool {
        false
    }

    /// Announces that the block at `block` will be put to often: words before its slots, and slots of `len` bytes each.
    fn prepare(&mut self, _block: u64, _slots: Range<u64>, _len: u64) {}

    /// Returns true if a source is put better to a place of its own than behind words.
    fn wants_own_place(&self, _source: &dyn Source) -> bool {
        false
    }

    /// Properties of the channel.
    fn traits(&self) -> Traits {
        Traits { grain: 1, has_long_ring: true, is_slow: false }
    }

    /// Wakes the process that sleeps on the word at `offset` of the region, if [`PutDevice::wakes`] is true of the
    /// node.
    fn wake(&mut self, _offset: u64) {}
}

/// Bytes on their way to another node.
#[derive(Debug, Clone, Copy)]
pub struct Put<'a> {
    /// Offset in the node's region, [`Layout::doors`] or more.
    pub to: u64,
    /// Source of the bytes.
    pub from: Origin<'a>,
}

/// Sources of bytes that are put.
#[derive(Clone, Copy)]
pub enum Origin<'a> {
    /// Words, for a place at a multiple of 8. Each becomes visible whole (see [`Facts::whole`]), in any order.
    Words(&'a [u64]),
    /// Memory of the program, whose bytes become visible in any order.
    Source(&'a dyn Source),
}

impl Origin<'_> {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Origin::Words(words) => size_of_val(*words) as u64,
            Origin::Source(source) => source.len() as u64,
        }
    }
}

impl fmt::Debug for Origin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Words(words) => f.debug_tuple("Words").field(words).finish(),
            Origin::Source(source) => write!(f, "Source({} bytes)", source.len()),
        }
    }
}

/// Memory of the program that is put. It may be unmapped at any time, so only its implementor knows how to read it.
///
/// # Safety
/// The length never changes, and no bytes are written but so many at the given place.
#[allow(clippy::len_without_is_empty)]
pub unsafe trait Source {
    /// Bytes.
    fn len(&self) -> usize;

    /// Stores the bytes at `to`. Stores that bypass the caches are fenced before it returns: a plain store that follows
    /// is seen after them.
    ///
    /// # Errors
    /// Part of the memory could not be read. Some of the bytes may have been stored.
    ///
    /// # Safety
    /// `to` is valid for writes of [`Source::len`] bytes. Others may access them at the same time; no reference is to
    /// them.
    unsafe fn store_to(&self, to: *mut u8) -> std::result::Result<(), Faulted>;

    /// Stores the `len` bytes from offset `from` on, like [`Source::store_to`].
    ///
    /// # Errors
    /// Those of [`Source::store_to`].
    ///
    /// # Safety
    /// Those of [`Source::store_to`], for `len` bytes.
    ///
    /// # Panics
    /// There are not so many.
    unsafe fn store_part_to(&self, from: usize, len: usize, to: *mut u8) -> std::result::Result<(), Faulted>;

    /// Calls `each` with address and length of each piece, in order. Returns false if the source is no memory of the
    /// program.
    fn pieces(&self, _each: &mut dyn FnMut(*const u8, usize)) -> bool {
        false
    }

    /// A second handle on the same memory, for a device that reads it after [`Channel::put`] has returned. The device
    /// drops it after the read. With None the device reads before it returns.
    fn keep(&self) -> Option<Box<dyn Source + Send>> {
        None
    }
}

// SAFETY: a slice does not change its length, and is copied whole.
unsafe impl Source for &[u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    unsafe fn store_to(&self, to: *mut u8) -> std::result::Result<(), Faulted> {
        // SAFETY: the caller's promise; a slice of this process cannot overlap bytes to which there is no reference.
        unsafe { std::ptr::copy_nonoverlapping(self.as_ptr(), to, <[u8]>::len(self)) };
        Ok(())
    }

    unsafe fn store_part_to(&self, from: usize, len: usize, to: *mut u8) -> std::result::Result<(), Faulted> {
        // SAFETY: as above.
        unsafe { (&self[from..from + len]).store_to(to) }
    }
}

/// Memory of the program that could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Faulted {
    /// The first address that could not be read.
    pub address: usize,
}

/// Reasons why a chain was not put.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Part of a destination lies before the doors or behind the end of the region.
    #[error("a put outside of what others may write of a region")]
    Outside,
    /// Words go to a place that is no multiple of 8, or a place or length is no multiple of the device's grain.
    #[error("a put to a place, or of a length, that is no multiple of the device's grain")]
    Misaligned,
    /// Source and destination differ modulo the device's boundary.
    #[error("a put whose source and destination are not equal modulo 16")]
    Incongruent,
    /// The device cannot read the source.
    #[error("a put out of memory that the device cannot read")]
    NotMine,
    /// A source could not be read; that put and those behind it were not done.
    #[error("the source of a put cannot be read at {:#x}", .0.address)]
    Faulted(Faulted),
    /// The device failed, with this errno.
    #[error("a put failed: {}", std::io::Error::from_raw_os_error(*.0))]
    Device(i32),
}

/// The part of a region that others may write.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    first: u64,
    len: u64,
}

impl Bounds {
    /// That of each region of such a window.
    pub fn of(layout: Layout) -> Bounds {
        Bounds { first: layout.doors(), len: layout.region_len() - layout.doors() }
    }

    /// Returns true if `len` bytes may be put at `to`.
    #[inline]
    pub(crate) fn contains(self, to: u64, len: u64) -> bool {
        // An offset below the first wraps round, and is too large.
        let at = to.wrapping_sub(self.first);
        at <= self.len && len <= self.len - at
    }

    /// Checks that a chain may be put.
    ///
    /// # Errors
    /// [`Refused::Outside`], [`Refused::Misaligned`].
    #[inline]
    pub fn check(self, chain: &[Put<'_>]) -> std::result::Result<(), Refused> {
        for put in chain {
            if !self.contains(put.to, put.from.len()) {
                return Err(Refused::Outside);
            }
            if matches!(put.from, Origin::Words(_)) && !put.to.is_multiple_of(8) {
                return Err(Refused::Misaligned);
            }
        }
        Ok(())
    }
}

/// Memory of a window that this process shares with others, which write it at any time: its contents are never trusted,
/// and are borrowed only as atomic words. The memory lives as long as a clone of this.
#[derive(Clone)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    _memory: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the memory is shared with other processes anyway, and is accessed as atomics or by raw pointers only.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({:p}, {} bytes)", self.base, self.len)
    }
}

impl Region {
    /// # Safety
    /// `memory` keeps `len` bytes at `base` readable and writable, a multiple of 8 at a multiple of 8. No reference is
    /// ever to them but to atomics.
    pub(crate) unsafe fn new(base: NonNull<u8>, len: usize, memory: Arc<dyn Any + Send + Sync>) -> Region {
        debug_assert!(base.as_ptr().addr().is_multiple_of(8) && len.is_multiple_of(8));
        Region { base, len, _memory: memory }
    }

    /// Length in bytes.
    pub fn size(&self) -> u64 {
        self.len as u64
    }

    /// The whole region as words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: see `new`; the memory lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.len / 8) }
    }

    /// The word at byte `offset`.
    ///
    /// # Panics
    /// It is no multiple of 8, or outside.
    pub fn word(&self, offset: u64) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "a word at {offset}");
        &self.words()[usize::try_from(offset / 8).expect("an offset")]
    }

    /// The `N` words from byte `offset` on.
    ///
    /// # Panics
    /// It is no multiple of 8, or they are not all inside.
    #[inline]
    pub fn words_at<const N: usize>(&self, offset: u64) -> &[AtomicU64; N] {
        assert!(offset.is_multiple_of(8), "words at {offset}");
        let words = self.words().get(usize::try_from(offset / 8).expect("an offset")..);
        words.and_then(<[_]>::first_chunk).expect("words of the region")
    }

    /// The address of these bytes, for copies by raw pointer; None: not all inside the region.
    pub fn bytes(&self, range: Range<u64>) -> Option<*mut u8> {
        let inside = range.start <= range.end && range.end <= self.size();
        // SAFETY: inside of the memory.
        inside.then(|| unsafe { self.base.as_ptr().add(range.start as usize) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::GRANULE;
    use proptest::prelude::*;

    #[test]
    fn what_is_outside_of_a_region_or_in_its_table_is_refused() {
        let layout = Layout::new(2, 4 << 20).unwrap();
        let (first, end) = (layout.doors(), layout.region_len());
        let bounds = Bounds::of(layout);
        let words = |to, words: &[u64]| bounds.check(&[Put { to, from: Origin::Words(words) }]);
        for (to, n, answer) in [
            (first, 1, Ok(())),
            (end - 8, 1, Ok(())),
            (end, 0, Ok(())),
            (0, 1, Err(Refused::Outside)),
            (first - 8, 1, Err(Refused::Outside)),
            (first - 8, 2, Err(Refused::Outside)),
            (end - 8, 2, Err(Refused::Outside)),
            (end, 1, Err(Refused::Outside)),
            (u64::MAX - 7, 1, Err(Refused::Outside)),
            (u64::MAX - 7, 0, Err(Refused::Outside)),
            (first + 4, 1, Err(Refused::Misaligned)),
        ] {
            assert_eq!(words(to, &[7; 2][..n]), answer, "{n} words at {to}");
        }
        let long = vec![0; GRANULE as usize];
        let bytes = |to| bounds.check(&[Put { to, from: Origin::Source(&&long[..]) }]);
        assert_eq!(bytes(end - GRANULE), Ok(()));
        assert_eq!(bytes(end - GRANULE + 1), Err(Refused::Outside));
        // One bad put in a chain is enough.
        let good = Put { to: first, from: Origin::Words(&[1]) };
        let bad = Put { to: end, ..good };
        assert_eq!(bounds.check(&[good, bad]), Err(Refused::Outside));
    }

    proptest! {
        #[test]
        fn what_is_allowed_lies_inside(to: u64, near in any::<bool>(), n in 0..9_usize) {
            let layout = Layout::new(2, 4 << 20).unwrap();
            let to = if near { to % (layout.region_len() + 64) } else { to };
            let allowed = Bounds::of(layout).check(&[Put { to, from: Origin::Source(&&[0; 8][..n.min(8)]) }]).is_ok();
            let inside = to >= layout.doors() && to.checked_add(n.min(8) as u64).is_some_and(|end| end <= layout.region_len());
            prop_assert_eq!(allowed, inside);
        }
    }
}
