//! Moving bytes between this process and the memory that a key names, by the best way there is (DESIGN decision 4):
//! mapped memory by the CPU, other memory by process_vm calls, and if the kernel refuses those, by the owner.
//!
//! Programs poll the last byte of a write, so every way that writes publishes the tail last: first the body, then the
//! final word. The writes of a message are visible after all earlier writes of its QP, and its reads come before all
//! later ones (IBA 9.5): on processors that keep no order of their own the fences here do that (docs/shared-memory.md,
//! Memory order).

pub use crate::arena::layout::DIRECT_CHUNK;
use crate::arena::layout::{Iov, Lane};
use crate::host::STORES_IN_ORDER;
use crate::host::copy::bulk;
use crate::host::guarded::{self, Access, Faulted};
use crate::process::peer::{Location, PeerProcess};
use std::mem::MaybeUninit;
use std::sync::atomic::{Ordering, fence};
/// Which ways this process may use.
pub use vervain_config::MemoryWay as Policy;

/// Most pieces of local memory in one transfer: the device's max_sge, one for a header, one for the last word.
pub const MAX_PIECES: usize = 35;
/// A chunk of a process_vm copy. Larger than 64 KiB because each call costs some microseconds: at 256 KiB a transfer of
/// 1 MiB reached 0.86 of the bandwidth of one raw call, at 1 MiB 0.93. Revocation does not depend on the size: the
/// owner can take the remote address away from a call that has not begun (`Lane::iov`), and a call that has begun runs
/// to its end in the kernel.
pub const VM_CHUNK: u64 = 1 << 20;

// A place in a shared object is contiguous for so many bytes.
const _: () = assert!(DIRECT_CHUNK <= crate::process::imports::SLACK);

/// The reason why a transfer did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Local memory is not there.
    Local,
    /// Remote memory is not there.
    Remote,
    /// The process has ended, or its memory was taken away.
    Gone,
    /// The kernel refuses process_vm calls on that process.
    Refused,
}

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the local pieces into the place.
    Write,
    /// From the place into the local pieces.
    Read,
}

/// Local memory: a list of pieces of this process, already checked against its keys. A null address reads zeros and
/// drops writes.
pub struct Pieces {
    n: usize,
    /// The first `n` are set; zeroing the others would cost more than a small operation.
    list: [MaybeUninit<libc::iovec>; MAX_PIECES],
    len: u64,
}

impl Pieces {
    /// No pieces.
    #[inline]
    pub fn new() -> Self {
        Pieces { n: 0, list: [const { MaybeUninit::uninit() }; MAX_PIECES], len: 0 }
    }

    /// Adds a piece; those beyond [`MAX_PIECES`] never occur, because max_sge bounds them.
    #[inline]
    pub fn push(&mut self, p: *mut u8, len: u64) {
        if len > 0 && self.n < MAX_PIECES {
            self.list[self.n].write(libc::iovec { iov_base: p.cast(), iov_len: len as usize });
            self.n += 1;
            self.len += len;
        }
    }

    #[inline]
    fn list(&self) -> &[libc::iovec] {
        // SAFETY: `push` has set the first `n`, and nothing lowers `n`.
        unsafe { std::slice::from_raw_parts(self.list.as_ptr().cast(), self.n) }
    }

    /// Address and length of each piece; a null address stands for zeros.
    pub fn iter(&self) -> impl Iterator<Item = (*const u8, usize)> {
        self.list().iter().map(|piece| (piece.iov_base.cast::<u8>().cast_const(), piece.iov_len))
    }

    /// The bytes of a slice; valid as long as that is.
    pub fn of(data: &[u8]) -> Pieces {
        let mut pieces = Pieces::new();
        pieces.push(data.as_ptr().cast_mut(), data.len() as u64);
        pieces
    }

    /// Adds bytes `[from, from + len)` of these pieces to `to`.
    pub fn slice_into(&self, from: u64, len: u64, to: &mut Pieces) {
        let (mut skip, mut left) = (from, len);
        for piece in self.list() {
            let n = piece.iov_len as u64;
            if skip >= n {
                skip -= n;
                continue;
            }
            let take = (n - skip).min(left);
            let base = piece.iov_base.cast::<u8>();
            to.push(if base.is_null() { base } else { base.wrapping_add(skip as usize) }, take);
            left -= take;
            skip = 0;
        }
    }

    /// The bytes, read once, if there are eight that can be read.
    pub fn word(&self) -> Option<[u8; 8]> {
        let mut word = [0; 8];
        if self.len != word.len() as u64 {
            return None;
        }
        // SAFETY: eight bytes of this stack, and memory of this process that is only read.
        unsafe { copy_direct(Direction::Write, word.as_mut_ptr(), self, false) }.ok()?;
        Some(word)
    }

    /// Bytes in all.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if a piece belongs to the null MR, which only the CPU's copies know.
    pub fn has_null(&self) -> bool {
        self.list().iter().any(|piece| piece.iov_base.is_null())
    }

    /// Returns true if pieces that are no longer than a page each are there.
    pub fn are_readable(&self) -> bool {
        self.list().iter().all(|piece| {
            let (base, last) = (piece.iov_base.cast::<u8>(), piece.iov_len - 1);
            // SAFETY: checked local memory, which is answered for where it is gone.
            base.is_null() || unsafe { guarded::load1(base).is_ok() && guarded::load1(base.wrapping_add(last)).is_ok() }
        })
    }

    /// Which side of a copy between these pieces and other memory lacks what it `faulted` at.
    #[cold]
    pub fn side(&self, faulted: Faulted) -> Fault {
        let is_in = |piece: &libc::iovec| {
            !piece.iov_base.is_null() && faulted.address().wrapping_sub(piece.iov_base as usize) < piece.iov_len
        };
        if self.list().iter().any(is_in) { Fault::Local } else { Fault::Remote }
    }

    /// Returns true if there is nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Default for Pieces {
    fn default() -> Self {
        Self::new()
    }
}

/// Moves `pieces` to or from mapped memory. `last` says that the message ends here, so that its tail is published last.
/// A fault says which side lacks the memory; part of the bytes may have been moved then.
///
/// # Safety
/// No reference is to what is written, nor one that excludes others to what is read.
#[inline]
pub unsafe fn copy_direct(direction: Direction, at: *mut u8, pieces: &Pieces, last: bool) -> Result<(), Fault> {
    // SAFETY: the caller's promise.
    unsafe { copy_direct_of(direction, at, pieces, last, false) }
}

/// Moves `pieces` as [`copy_direct`] does, past the caches if `stream`: for a chunk of a message that is so long.
///
/// # Safety
/// As for [`copy_direct`].
#[inline]
pub unsafe fn copy_direct_of(
    direction: Direction,
    at: *mut u8,
    pieces: &Pieces,
    last: bool,
    stream: bool,
) -> Result<(), Fault> {
    if direction == Direction::Write {
        fence(Ordering::Release);
    }
    let mut at = at;
    for (i, piece) in pieces.list().iter().enumerate() {
        let (p, n) = (piece.iov_base.cast::<u8>(), piece.iov_len);
        // SAFETY: the caller vouches for both sides; source and destination may overlap in a looped QP.
        let copied = unsafe {
            match direction {
                Direction::Read if p.is_null() => Ok(()),
                Direction::Read => bulk(at, p, n, stream),
                Direction::Write if p.is_null() => guarded::clear(at, n),
                Direction::Write if last && i + 1 == pieces.n => copy_tail_last_of(p, at, n, stream),
                Direction::Write => bulk(p, at, n, stream),
            }
        };
        copied.map_err(|faulted| pieces.side(faulted))?;
        at = at.wrapping_add(n);
    }
    if direction == Direction::Read {
        fence(Ordering::Acquire);
    }
    Ok(())
}

/// Copies `n` bytes, which are read before all that is read after this; a word by one load and one store.
///
/// # Safety
/// As for [`copy_direct`].
#[inline(always)]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, n: usize) -> Access {
    // SAFETY: the caller's promise.
    unsafe {
        if n == 8 && (from as usize).is_multiple_of(8) {
            return guarded::copy_word(from, to);
        }
        let copied = bulk(from, to, n, false);
        fence(Ordering::Acquire);
        copied
    }
}

/// Copies `n` bytes so that a reader who sees the last byte change finds everything before it, and one who sees any
/// finds what was stored before this.
///
/// # Safety
/// As for [`copy_direct`].
#[inline(always)]
pub(crate) unsafe fn copy_tail_last(from: *const u8, to: *mut u8, n: usize) -> Access {
    // SAFETY: the caller's promise.
    unsafe {
        if n == 8 && (to as usize).is_multiple_of(8) {
            guarded::copy_word(from, to)
        } else {
            copy_body_and_tail(from, to, n, false)
        }
    }
}

/// Copies `n` bytes as [`copy_tail_last`] does, past the caches if `stream`.
///
/// # Safety
/// As for [`copy_direct`].
#[inline]
unsafe fn copy_tail_last_of(from: *const u8, to: *mut u8, n: usize, stream: bool) -> Access {
    // SAFETY: the caller's promise.
    unsafe { if stream { copy_body_and_tail(from, to, n, true) } else { copy_tail_last(from, to, n) } }
}

/// Part of one word, from the front: a copy of 3, 5, 6 or 7 bytes in one go stores the last ones first.
///
/// # Safety
/// As for [`copy_direct`]; `n` is at most 8.
unsafe fn copy_bytes_in_order(from: *const u8, to: *mut u8, n: usize) -> Access {
    // All are read before the first is written, in case the two overlap.
    let mut bytes = [0u8; 8];
    // SAFETY: the caller's promise.
    unsafe {
        guarded::copy(from, bytes.as_mut_ptr(), n)?;
        for (i, byte) in bytes.iter().take(n).enumerate() {
            guarded::store1(to.add(i), *byte)?;
        }
    }
    Ok(())
}

/// # Safety
/// As for [`copy_direct`].
#[inline(never)]
unsafe fn copy_body_and_tail(from: *const u8, to: *mut u8, n: usize, stream: bool) -> Access {
    // The final word: what lies at and beyond the last aligned word boundary before the end.
    let end = to as usize + n;
    let tail = match end % 8 {
        0 => 8,
        k if k.is_multiple_of(4) => 4,
        k if k.is_multiple_of(2) => 2,
        _ => 1,
    };
    if n < tail {
        // SAFETY: the caller's promise; n is less than the 8 bytes of a word.
        return unsafe { copy_bytes_in_order(from, to, n) };
    }
    let body = n - tail;
    fence(Ordering::Release);
    // SAFETY: the caller's promise; body + tail == n, and `to + body` is aligned to `tail` by its choice.
    unsafe {
        let (src, dst) = (from.add(body), to.add(body));
        // The tail is read before the body is written, in case the two overlap; its store is a release.
        match tail {
            8 => {
                let v = guarded::load8(src)?;
                if body > 0 {
                    bulk(from, to, body, stream)?;
                }
                guarded::store8(dst, v)
            }
            4 => {
                let v = guarded::load4(src)?;
                bulk(from, to, body, stream)?;
                guarded::store4(dst, v)
            }
            2 => {
                let v = guarded::load2(src)?;
                bulk(from, to, body, stream)?;
                guarded::store2(dst, v)
            }
            _ => {
                let v = guarded::load1(src)?;
                bulk(from, to, body, stream)?;
                guarded::store1(dst, v)
            }
        }
    }
}

/// Bytes at the end of a message of `len` bytes to `host` that the kernel copies as a piece of their own; 0 where all
/// is one piece. With stores `in_order` that is what lies in the last word: the kernel copies upwards. Without, only
/// one store is seen whole, so it is what one store can take.
fn tail_of(host: u64, len: u64, in_order: bool) -> u64 {
    let end = host.wrapping_add(len);
    if in_order {
        return if len > WORD { 1 + end.wrapping_sub(1) % WORD } else { 0 };
    }
    let tail = 1 << end.trailing_zeros().min(len.max(1).ilog2()).min(WORD.ilog2());
    if tail < len { tail } else { 0 }
}

/// A remote address put where the owner can take it away, before the caller's last look at the gate.
#[inline]
pub fn aim(lane: &Lane, direction: Direction, host: u64, len: u64, last: bool) {
    let tail = if direction == Direction::Write && last { tail_of(host, len, STORES_IN_ORDER) } else { 0 };
    lane.iov[0].base.store(host, Ordering::Relaxed);
    lane.iov[0].len.store(len - tail, Ordering::Relaxed);
    lane.iov[1].base.store(host.wrapping_add(len - tail), Ordering::Relaxed);
    lane.iov[1].len.store(tail, Ordering::Relaxed);
}

/// Brings in the pages of `pieces` for a process_vm call, which would else wait for one, on a slow disk or a
/// userfaultfd, while it holds the peer's: a store into memory that its owner has given back meanwhile.
pub(crate) fn bring_in(direction: Direction, pieces: &Pieces) -> Result<(), Fault> {
    for (start, len) in pieces.iter() {
        // In each page from the first byte on, and at the last.
        for offset in (0..len).step_by(4096).chain([len - 1]) {
            let at = start.wrapping_add(offset);
            // SAFETY: a byte of checked local memory, which stays as it is; what is not there is answered.
            let access = unsafe {
                match direction {
                    Direction::Write => guarded::load1(at).map(drop),
                    Direction::Read => guarded::touch(at.cast_mut()),
                }
            };
            access.map_err(|_| Fault::Local)?;
        }
    }
    Ok(())
}

/// Bytes of a word.
const WORD: u64 = 8;

/// Memory for one word that the kernel copies, so placed that it copies the word in one piece.
///
/// The kernel copies by `rep movsb`, of which no processor promises more than whole bytes. Two cases were seen in which
/// a peer that polls an aligned word finds it half written: Intel's (FSRM) go byte by byte if the source begins less
/// than 64 bytes before a page that is not present; AMD's (Zen 4) if the destination lies 1 to 15 bytes behind the
/// source, both taken modulo a page. Of its two places one is at least 128 bytes from the other end of the copy, modulo
/// a page, and both are 256 bytes or more from the end of their page.
#[repr(C, align(512))]
struct LastWord([MaybeUninit<u8>; 512]);

impl LastWord {
    fn new() -> Self {
        LastWord([MaybeUninit::uninit(); 512])
    }

    /// The place for a word that is copied to or from `remote`.
    fn place(&mut self, remote: u64) -> *mut u8 {
        let first = self.0.as_mut_ptr().cast::<u8>();
        let apart = remote.wrapping_sub(first.addr() as u64).wrapping_add(128) % 4096;
        if apart < 256 { first.wrapping_add(256) } else { first }
    }
}

/// Moves `pieces` to or from the memory that [`aim`] named, by a process_vm call; by two where one call's stores are
/// not seen in their order, and the tail has to be seen last. The last word of a message, and a message of one word, is
/// loaded from local memory or stored there by this function (see `LastWord`).
pub fn copy_vm(space: &PeerProcess, lane: &Lane, direction: Direction, pieces: &Pieces) -> Result<(), Fault> {
    if space.is_dead() {
        return Err(Fault::Gone);
    }
    // The owner may have changed it: it is bounded below.
    let tail = lane.iov[1].len.load(Ordering::Relaxed);
    let remote = if tail == 0 { &lane.iov[..1] } else { &lane.iov[..] };
    let last = match tail {
        0 if pieces.len() <= WORD => pieces.len(),
        tail => tail.min(WORD).min(pieces.len()),
    };
    if last == 0 {
        return call_vm(space, remote, direction, pieces, pieces);
    }
    let body = pieces.len() - last;
    let mut word = LastWord::new();
    let place = word.place(lane.iov[0].base.load(Ordering::Relaxed).wrapping_add(body));
    let (mut local, mut ends) = (Pieces::new(), Pieces::new());
    pieces.slice_into(0, body, &mut local);
    pieces.slice_into(body, last, &mut ends);
    if direction == Direction::Write {
        // SAFETY: `place` has room for a word, and the pieces are checked local memory.
        unsafe { copy_direct(Direction::Write, place, &ends, true) }?;
        if tail != 0 && !STORES_IN_ORDER {
            call_vm(space, &lane.iov[..1], direction, &local, pieces)?;
            let mut word = Pieces::new();
            word.push(place, last);
            return call_vm(space, &lane.iov[1..], direction, &word, pieces);
        }
        local.push(place, last);
        return call_vm(space, remote, direction, &local, pieces);
    }
    local.push(place, last);
    call_vm(space, remote, direction, &local, pieces)?;
    match *ends.list() {
        // SAFETY: checked local memory, and the word that the kernel has stored.
        [piece] => unsafe { copy(place, piece.iov_base.cast(), last as usize) }.map_err(|_| Fault::Local),
        // SAFETY: as above.
        _ => unsafe { copy_direct(Direction::Read, place, &ends, false) },
    }
}

/// One process_vm call between `local` and places of the lane, for a transfer of `pieces`. Its writes are visible after
/// all earlier writes, its reads come before all later ones.
fn call_vm(
    space: &PeerProcess,
    remote: &[Iov],
    direction: Direction,
    local: &Pieces,
    pieces: &Pieces,
) -> Result<(), Fault> {
    let (list, n) = (local.list().as_ptr(), local.n as u64);
    let (remote, remotes) = (remote.as_ptr().cast::<libc::iovec>(), remote.len() as u64);
    fence(Ordering::Release);
    // SAFETY: the local list names checked memory of this process and the caller's word; the kernel checks the remote
    // addresses and reads the list itself, from shared memory, so that the owner can still revoke it.
    let moved = unsafe {
        match direction {
            Direction::Write => libc::process_vm_writev(space.pid, list, n, remote, remotes, 0),
            Direction::Read => libc::process_vm_readv(space.pid, list, n, remote, remotes, 0),
        }
    };
    fence(Ordering::Acquire);
    if moved == local.len as isize {
        return Ok(());
    }
    vm_fault(space, direction, pieces, moved)
}

#[cold]
fn vm_fault(space: &PeerProcess, direction: Direction, pieces: &Pieces, moved: isize) -> Result<(), Fault> {
    if moved < 0 {
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EPERM | libc::ENOSYS | libc::EACCES) => {
                space.deny_vm();
                return Err(Fault::Refused);
            }
            Some(libc::ESRCH) => {
                space.mark_dead();
                return Err(Fault::Gone);
            }
            _ => {}
        }
    }
    // A short count or EFAULT: either side may lack the memory, or the owner has revoked it.
    Err(if bring_in(direction, pieces).is_ok() { Fault::Remote } else { Fault::Local })
}

/// The 64-bit atomics, on mapped memory. `at` is 8-byte aligned; returns the word before.
///
/// # Safety
/// As for [`copy_direct`]; `at` is aligned to 8.
pub unsafe fn atomic(at: *mut u8, compare_swap: bool, compare_add: u64, swap: u64) -> Result<u64, Faulted> {
    // SAFETY: the caller's promise.
    unsafe {
        if compare_swap { guarded::compare_swap(at, compare_add, swap) } else { guarded::fetch_add(at, compare_add) }
    }
}

/// The way that reaches `place` in `space` now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The CPU, through a mapping.
    Direct(*mut u8),
    /// process_vm calls.
    Vm(u64),
    /// The owner's progress thread.
    Owner,
    /// Nowhere: the null MR.
    Null,
}

/// Returns true if memory of `space` that is not mapped is reached by process_vm calls.
#[inline]
pub fn by_vm(space: &PeerProcess, policy: Policy) -> bool {
    match policy {
        Policy::Auto => space.vm_allowed(),
        Policy::Vm => true,
        Policy::Owner => false,
    }
}

/// Chooses the way.
#[inline]
pub fn way(space: &PeerProcess, place: Location, policy: Policy) -> Way {
    match place {
        Location::Mapped(p) => Way::Direct(p),
        Location::Unmapped(host) if by_vm(space, policy) => Way::Vm(host),
        Location::Unmapped(_) => Way::Owner,
        Location::Null => Way::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_is_far_from_the_other_end_of_its_copy_and_from_the_end_of_its_page() {
        let mut word = LastWord::new();
        for remote in 0..8192_u64 {
            let place = word.place(remote).addr() as u64;
            assert!((128..=4096 - 128).contains(&(remote.wrapping_sub(place) % 4096)), "{remote} and {place}");
            assert!(place % 4096 + 256 <= 4096 && place.is_multiple_of(8), "{place}");
        }
    }

    #[test]
    fn the_kernel_copies_the_end_of_a_message_last_and_in_one_store_where_stores_have_no_order() {
        for host in 0..16 {
            for len in 1..40 {
                let (tail, end) = (tail_of(host, len, false), host + len);
                let store = if tail == 0 { len } else { tail };
                assert!(tail < len && store.is_power_of_two() && store <= WORD, "{len} bytes to {host}: {tail}");
                assert!(end.is_multiple_of(store), "{len} bytes to {host}: {store} bytes take two stores");
                let tail = tail_of(host, len, true);
                assert_eq!(tail == 0, len <= WORD);
                assert!(
                    tail == 0 || (end - tail).is_multiple_of(WORD) && tail <= WORD,
                    "{len} bytes to {host}: {tail}"
                );
            }
        }
    }

    #[test]
    fn the_tail_is_copied_whatever_its_length_and_alignment() {
        let from: Vec<u8> = (0..64u8).collect();
        for at in 0..16 {
            for n in 0..40 {
                let mut to = vec![0xffu8; 64];
                let mut pieces = Pieces::new();
                pieces.push(from.as_ptr().cast_mut(), n);
                // SAFETY: both vectors are longer than at + n.
                let copied = unsafe { copy_direct(Direction::Write, to.as_mut_ptr().add(at), &pieces, true) };
                assert_eq!(copied, Ok(()));
                assert_eq!(&to[at..at + n as usize], &from[..n as usize]);
                assert!(to[..at].iter().chain(&to[at + n as usize..]).all(|&b| b == 0xff));
            }
        }
    }

    #[test]
    fn null_pieces_read_as_zero_and_swallow_writes() {
        let mut to = [7u8; 16];
        let mut pieces = Pieces::new();
        pieces.push(std::ptr::null_mut(), 16);
        // SAFETY: `to` has 16 bytes.
        unsafe {
            assert_eq!(copy_direct(Direction::Read, to.as_mut_ptr(), &pieces, true), Ok(()));
            assert_eq!(to, [7; 16]);
            assert_eq!(copy_direct(Direction::Write, to.as_mut_ptr(), &pieces, true), Ok(()));
        }
        assert_eq!(to, [0; 16]);
    }
}
