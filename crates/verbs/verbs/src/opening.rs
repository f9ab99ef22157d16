//! Openings of devices: what the contexts of one share, that which was opened and those imported.

use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use vervain_hca::host::lock::OwnerLock;
use vervain_hca::{self as hca, Error};

use crate::abi::*;
use crate::object::{self, Handle, state};
use crate::registry::Registry;

/// The openings of this process.
static OPENINGS: OwnerLock<Vec<(Weak<Opening>, usize)>> = OwnerLock::new(Vec::new());

/// State that all `ibv_context`s of one opening share: the one opened and those imported.
pub(crate) struct Opening {
    pub(crate) hca: Arc<hca::Context>,
    /// The file whose descriptor is `cmd_fd`: empty, and only there to be recognised by `ibv_import_device`.
    identity: FileIdentity,
    next_handle: AtomicU32,
    pub(crate) pds: Registry<ibv_pd>,
    pub(crate) mrs: Registry<ibv_mr>,
    pub(crate) mws: Registry<ibv_mw>,
    pub(crate) dms: Registry<ibv_dm>,
    pub(crate) channels: Registry<ibv_comp_channel>,
    pub(crate) cqs: Registry<ibv_cq_ex>,
    pub(crate) xrcds: Registry<ibv_xrcd>,
    pub(crate) srqs: Registry<ibv_srq>,
    pub(crate) qps: Registry<ibv_qp_ex>,
}

impl Opening {
    /// One whose `cmd_fd` leads to the file of `fd`; `device` is what [`Opening::find`] gives for it.
    pub(crate) fn new(hca: Arc<hca::Context>, fd: RawFd, device: usize) -> Result<Arc<Opening>, Error> {
        let opening = Arc::new(Opening {
            hca,
            identity: identify(fd)?,
            next_handle: AtomicU32::new(1),
            pds: Registry::default(),
            mrs: Registry::default(),
            mws: Registry::default(),
            dms: Registry::default(),
            channels: Registry::default(),
            cqs: Registry::default(),
            xrcds: Registry::default(),
            srqs: Registry::default(),
            qps: Registry::default(),
        });
        let mut openings = OPENINGS.lock();
        openings.retain(|(o, _)| o.strong_count() > 0);
        openings.push((Arc::downgrade(&opening), device));
        Ok(opening)
    }

    /// That of this process whose `cmd_fd` leads to the file of `fd`, and its device.
    pub(crate) fn find(fd: RawFd) -> Result<Option<(Arc<Opening>, usize)>, Error> {
        let identity = identify(fd)?;
        let openings = OPENINGS.lock();
        Ok(openings.iter().find_map(|(o, device)| Some((o.upgrade().filter(|o| o.identity == identity)?, *device))))
    }

    /// A number for an object's `handle`; never 0, which is what a forgotten field holds.
    pub(crate) fn handle(&self) -> u32 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }
}

impl Handle for verbs_context {
    type State = (Arc<Opening>, OwnedFd);
}

/// The state behind a client's context.
pub(crate) unsafe fn opening<'a>(context: *mut ibv_context) -> &'a Arc<Opening> {
    // SAFETY: every `ibv_context` that a client can have is the tail of a `verbs_context` that `context` has made.
    unsafe { &state(verbs_context::of(context)).0 }
}

/// Device and inode of a descriptor's file.
type FileIdentity = (libc::dev_t, libc::ino_t);

fn identify(fd: RawFd) -> Result<FileIdentity, Error> {
    // SAFETY: `stat` is integers; fstat fills it or fails.
    let mut stat: libc::stat = unsafe { object::zeros() };
    // SAFETY: as above; a descriptor that is not open fails with EBADF.
    if unsafe { libc::fstat(fd, &raw mut stat) } != 0 {
        return Err(Error::last_os("fstat"));
    }
    Ok((stat.st_dev, stat.st_ino))
}
