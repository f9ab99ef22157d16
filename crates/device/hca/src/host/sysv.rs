//! System V segments as shared objects: a number means the same segment for two processes only in one IPC namespace,
//! and only while the segment lives, so both ends look at it and compare what they see.

use crate::host::mapping;
use std::os::unix::fs::MetadataExt;

/// Facts that distinguish a segment from another one that later has its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) length: u64,
    pub(crate) cuid: u32,
    pub(crate) ctime: u64,
    pub(crate) namespace: u64,
}

/// Segment `shmid` as this process sees it; none when it may not or there is none.
pub(crate) fn look(shmid: i32) -> Option<Segment> {
    // SAFETY: IPC_STAT fills the zeroed struct.
    let stat = unsafe {
        let mut stat: libc::shmid_ds = std::mem::zeroed();
        if libc::shmctl(shmid, libc::IPC_STAT, &raw mut stat) != 0 {
            return None;
        }
        stat
    };
    Some(Segment {
        length: stat.shm_segsz as u64,
        cuid: stat.shm_perm.cuid,
        ctime: stat.shm_ctime as u64,
        namespace: namespace()?,
    })
}

/// The inode of this process's IPC namespace; asked each time, for `unshare` changes it.
fn namespace() -> Option<u64> {
    std::fs::metadata("/proc/self/ns/ipc").ok().map(|m| m.ino())
}

/// Attaches segment `shmid`, if it is the one that was seen.
pub(crate) fn attach(shmid: i32, seen: &Segment) -> Option<*mut u8> {
    if look(shmid).as_ref() != Some(seen) {
        return None;
    }
    let at = mapping::attach(shmid);
    if at.is_null() {
        return None;
    }
    // Attached, it cannot end any more: if it is still the one, it was.
    if look(shmid).as_ref() != Some(seen) {
        // SAFETY: attached just above, and known to nobody.
        unsafe { mapping::detach(at) };
        return None;
    }
    Some(at.cast())
}
