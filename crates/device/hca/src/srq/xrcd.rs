//! XRC domains (IBA annex A14): what XRC targets and the SRQs that they take receives from belong to.

use crate::context::Context;
use crate::error::{Error, Result};
use crate::host::lock::OwnerLock;
use crate::srq::Srq;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

static OPEN_XRCDS: OwnerLock<Vec<Weak<Xrcd>>> = OwnerLock::new(Vec::new());

/// The same file gives the same domain in every process.
fn file_id(fd: RawFd) -> Result<u64> {
    // SAFETY: fstat fills the zeroed struct.
    let stat = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        if libc::fstat(fd, &raw mut stat) != 0 {
            return Err(Error::last_os("the file of an XRC domain"));
        }
        stat
    };
    Ok((stat.st_dev.rotate_left(40) ^ stat.st_ino) | 1)
}

/// An XRC domain (IBA annex A14).
pub struct Xrcd {
    pub(crate) id: u64,
    /// How often it was opened in this process.
    handles: AtomicU32,
    pub(crate) users: AtomicU32,
    pub(crate) srqs: OwnerLock<Vec<Weak<Srq>>>,
}

impl Xrcd {
    /// The XRC domain of the file behind `fd`, or a new one (`man ibv_open_xrcd`).
    pub fn open(context: &Context, fd: Option<RawFd>, oflags: i32) -> Result<Arc<Xrcd>> {
        context.process()?;
        if oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
            return Err(Error::invalid("XRC domains know only O_CREAT and O_EXCL"));
        }
        let id = match fd {
            Some(fd) => file_id(fd)?,
            None => crate::host::random::word()? | 1,
        };
        Self::with_id(id, oflags)
    }

    /// The identity of the domain: the file's, or one that no other domain of this host has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The domain that a saved process had, by its [`Xrcd::id`].
    pub fn restore(context: &Context, id: u64) -> Result<Arc<Xrcd>> {
        context.process()?;
        Self::with_id(id, libc::O_CREAT)
    }

    fn with_id(id: u64, oflags: i32) -> Result<Arc<Xrcd>> {
        let mut all = OPEN_XRCDS.lock();
        all.retain(|x| x.strong_count() > 0);
        if let Some(known) = all.iter().filter_map(Weak::upgrade).find(|x| x.id == id) {
            if oflags & libc::O_EXCL != 0 {
                return Err(Error::new(libc::EEXIST, "the XRC domain of this file is open already"));
            }
            known.handles.fetch_add(1, Ordering::AcqRel);
            return Ok(known);
        }
        if oflags & libc::O_CREAT == 0 {
            return Err(Error::new(libc::ENOENT, "the file has no XRC domain yet (O_CREAT)"));
        }
        let users = AtomicU32::new(0);
        let xrcd = Arc::new(Xrcd { id, handles: AtomicU32::new(1), users, srqs: OwnerLock::default() });
        all.push(Arc::downgrade(&xrcd));
        Ok(xrcd)
    }

    /// The SRQ of this domain with that number, in this process.
    pub(crate) fn srq(&self, number: u32) -> Option<Arc<Srq>> {
        self.srqs.lock().iter().filter_map(Weak::upgrade).find(|s| s.srq_num() == number && s.check().is_ok())
    }

    /// Closes it; EBUSY while QPs or SRQs belong to it.
    pub fn close(&self) -> Result<()> {
        let users = self.users.load(Ordering::Acquire);
        if users != 0 && self.handles.load(Ordering::Acquire) == 1 {
            return Err(Error::busy(format!("QPs and SRQs belong to the XRC domain: {users}")));
        }
        self.handles.fetch_sub(1, Ordering::AcqRel);
        Ok(())
    }
}
