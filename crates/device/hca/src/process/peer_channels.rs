//! The completion channels of a peer, as far as this process writes their events itself: it has asked for their pipes.

use crate::host::cancel::{self, Descriptor};
use crate::host::lock::OwnerLock;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// Channels of one peer whose pipes are kept open here; events of others go through its progress thread.
pub(crate) const MOST: usize = 64;

/// A peer's channel, as its events are written from here.
pub(crate) struct Pipe {
    pub(crate) write: Descriptor,
    /// Kept so that the pipe has a reader as long as we may write: never a SIGPIPE.
    _read: Descriptor,
}

enum Known {
    Asked,
    Here(Arc<Pipe>),
    Refused,
}

/// The channels of one peer.
#[derive(Default)]
pub struct PeerChannels {
    known: OwnerLock<HashMap<u32, Known>>,
}

impl PeerChannels {
    /// The peer's answer: both ends of the channel's pipe, or none when there is no such channel. Called by the link.
    pub fn learn(&self, number: u32, ends: Option<[OwnedFd; 2]>) {
        let known = match ends {
            Some([read, write]) if is_pipe(&read, &write) => {
                Known::Here(Arc::new(Pipe { write: write.into(), _read: read.into() }))
            }
            _ => Known::Refused,
        };
        self.known.lock().insert(number, known);
    }

    /// The channel is gone. Called by the link.
    pub fn forget(&self, number: u32) {
        self.known.lock().remove(&number);
    }

    pub(crate) fn pipe(&self, number: u32, ask: impl FnOnce() -> bool) -> Option<Arc<Pipe>> {
        let mut known = self.known.lock();
        match known.get(&number) {
            Some(Known::Here(pipe)) => return Some(Arc::clone(pipe)),
            Some(Known::Asked | Known::Refused) => return None,
            None => {}
        }
        if known.values().filter(|k| !matches!(k, Known::Refused)).count() >= MOST {
            return None;
        }
        known.insert(number, Known::Asked);
        // The link has locks of its own, under which it calls `learn`.
        drop(known);
        if !ask() {
            self.known.lock().remove(&number);
        }
        None
    }
}

/// Writes the event of the CQ that has the number `event` in its channel; false when the pipe is full.
pub(crate) fn write_event(fd: RawFd, event: u32) -> bool {
    // A write below PIPE_BUF is whole or none. The writer holds the read end as well, so there is no SIGPIPE.
    cancel::write(fd, u64::from(event))
}

/// Returns true if these are the two ends of one pipe, the second of which does not block.
fn is_pipe(read: &OwnedFd, write: &OwnedFd) -> bool {
    let look = |fd: &OwnedFd| {
        // SAFETY: fills a struct on this stack, all of whose bytes may be zero; reads the flags of an open descriptor.
        unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            let found = libc::fstat(fd.as_raw_fd(), &raw mut stat) == 0;
            let flags = libc::fcntl(fd.as_raw_fd(), libc::F_GETFL);
            (found && stat.st_mode & libc::S_IFMT == libc::S_IFIFO).then_some((stat.st_dev, stat.st_ino, flags))
        }
    };
    let (Some((dev_r, ino_r, flags_r)), Some((dev_w, ino_w, flags_w))) = (look(read), look(write)) else {
        return false;
    };
    (dev_r, ino_r) == (dev_w, ino_w)
        && flags_r & libc::O_ACCMODE == libc::O_RDONLY
        && flags_w & libc::O_ACCMODE == libc::O_WRONLY
        && flags_w & libc::O_NONBLOCK != 0
}
