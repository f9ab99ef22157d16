//! An opened device and the small objects under it: protection domains and XRC domains.

use crate::cq::Cq;
use crate::cq::channel::CompChannel;
use crate::device::Device;
use crate::device::ah::Ah;
use crate::device::async_events::{AsyncEvent, AsyncQueue, Element, EventCount};
use crate::device::port_counters::{Counted, Word};
use crate::error::{Error, Result};
use crate::host::lock::OwnerLock;
use crate::mr::Mr;
use crate::mr::dm::Dm;
use crate::mr::mw::Mw;
use crate::process::Process;
use crate::qp::{Qp, QpInit};
use crate::rq::srq::{Srq, SrqInit};
use crate::types::{AhAttr, hca_clock_ns};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

/// Every open device.
static OPEN: OwnerLock<Vec<Weak<Context>>> = OwnerLock::new(Vec::new());

/// The open devices of this process; those that a forked child has from its parent are not.
pub(crate) fn open_ones() -> Vec<Arc<Context>> {
    OPEN.lock().iter().filter_map(Weak::upgrade).filter(|c| c.process.lock().is_current()).collect()
}

/// An open device.
pub struct Context {
    device: Arc<Device>,
    process: OwnerLock<&'static Process>,
    events: AsyncQueue,
    _counted: Counted,
}

impl Context {
    /// Opens `device` in `process`. The link's crate offers this with its link wired in.
    pub fn open(device: &Arc<Device>, process: &'static Process) -> Result<Arc<Context>> {
        let process = OwnerLock::new(process);
        let context = Arc::new(Context {
            device: Arc::clone(device),
            process,
            events: AsyncQueue::create()?,
            _counted: Counted::new(Word::Contexts, device),
        });
        let mut all = OPEN.lock();
        all.retain(|c| c.strong_count() > 0);
        all.push(Arc::downgrade(&context));
        Ok(context)
    }

    /// The process that new objects belong to. A forked child makes its own with a context that it has from its parent,
    /// as with a descriptor of the kernel's; the objects that it has from there stay the parent's.
    pub(crate) fn process(&self) -> Result<&'static Process> {
        let mut process = self.process.lock();
        if !process.is_current() {
            let here = process.here()?;
            self.events.leave_to_parent()?;
            *process = here;
        }
        Ok(*process)
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The descriptor that is readable when an async event waits.
    pub fn async_fd(&self) -> RawFd {
        self.events.fd()
    }

    /// The next async event; blocks, or EAGAIN as the descriptor says (`man ibv_get_async_event`).
    pub fn next_event(&self) -> Result<AsyncEvent> {
        self.events.next()
    }

    pub(crate) fn raise(&self, event_type: u32, element: Element, count: &Arc<EventCount>) {
        self.events.push(AsyncEvent { event_type, element }, count);
    }

    pub(crate) fn forget_events(&self, element: Element) {
        self.events.forget(element);
    }

    /// The HCA's clock, in nanoseconds (`ibv_query_rt_values_ex`).
    pub fn clock_ns(&self) -> u64 {
        hca_clock_ns()
    }

    /// A protection domain.
    pub fn alloc_pd(self: &Arc<Self>) -> Result<Arc<Pd>> {
        let process = self.process()?;
        Ok(Arc::new(Pd {
            context: Arc::clone(self),
            process,
            number: process.next_pd(),
            users: AtomicU32::new(0),
            _counted: Counted::new(Word::Pds, &self.device),
        }))
    }

    /// A completion channel.
    pub fn create_comp_channel(&self) -> Result<Arc<CompChannel>> {
        self.process()?;
        CompChannel::create()
    }

    /// A completion queue of at least `cqe` entries (`man ibv_create_cq`). `timestamps` makes completions carry the time at
    /// which they were made.
    pub fn create_cq(
        self: &Arc<Self>,
        cqe: u32,
        channel: Option<&Arc<CompChannel>>,
        comp_vector: u32,
        cookie: usize,
        ignore_overrun: bool,
        timestamps: bool,
    ) -> Result<Arc<Cq>> {
        if comp_vector >= crate::device::LIMITS.comp_vectors {
            return Err(Error::invalid(format!("there is no completion vector {comp_vector}")));
        }
        Cq::create(self, cqe, channel, cookie, ignore_overrun, timestamps)
    }

    /// A shared receive queue.
    pub fn create_srq(self: &Arc<Self>, pd: &Arc<Pd>, init: &SrqInit<'_>) -> Result<Arc<Srq>> {
        Srq::create(self, pd, init)
    }

    /// A queue pair.
    pub fn create_qp(self: &Arc<Self>, pd: Option<&Arc<Pd>>, init: &QpInit<'_>) -> Result<Arc<Qp>> {
        Qp::create(self, pd, init)
    }

    /// The XRC target `qpn` of this process in `xrcd`, once more (`man ibv_open_qp`).
    pub fn open_qp(self: &Arc<Self>, xrcd: &Arc<Xrcd>, qpn: u32) -> Result<Arc<Qp>> {
        self.process()?
            .find_qp(qpn)
            .filter(|qp| qp.shared.xrcd.load(Ordering::Relaxed) == xrcd.id)
            .ok_or_else(|| Error::invalid(format!("the XRC domain has no target QP {qpn:#x} in this process")))
    }

    /// A memory region whose users name its memory from `iova` on.
    pub fn reg_mr(&self, pd: &Arc<Pd>, addr: u64, length: u64, iova: u64, access: u32) -> Result<Arc<Mr>> {
        Mr::register(pd, addr, length, iova, access)
    }

    /// The region that reads as zeros and swallows writes (`man ibv_alloc_null_mr`).
    pub fn null_mr(&self, pd: &Arc<Pd>) -> Result<Arc<Mr>> {
        Mr::null(pd)
    }

    /// A memory window of type 1 or 2.
    pub fn alloc_mw(&self, pd: &Arc<Pd>, mw_type: u32) -> Result<Arc<Mw>> {
        Mw::alloc(pd, mw_type)
    }

    /// Device memory.
    pub fn alloc_dm(self: &Arc<Self>, length: u64, log_align: u32) -> Result<Arc<Dm>> {
        Dm::alloc(self, length, log_align)
    }

    /// A region over device memory.
    pub fn reg_dm_mr(&self, pd: &Arc<Pd>, dm: &Arc<Dm>, offset: u64, length: u64, access: u32) -> Result<Arc<Mr>> {
        Mr::of_dm(pd, dm, offset, length, access)
    }

    /// An address handle.
    pub fn create_ah(&self, pd: &Arc<Pd>, attr: &AhAttr) -> Result<Arc<Ah>> {
        Ah::create(pd, attr)
    }

    /// An XRC domain: that of the file behind `fd`, or a new one (`man ibv_open_xrcd`).
    pub fn open_xrcd(self: &Arc<Self>, fd: Option<RawFd>, oflags: i32) -> Result<Arc<Xrcd>> {
        self.process()?;
        if oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
            return Err(Error::invalid("XRC domains know only O_CREAT and O_EXCL"));
        }
        let id = match fd {
            Some(fd) => file_id(fd)?,
            None => crate::process::random_u64()? | 1,
        };
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
}

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

/// A protection domain.
pub struct Pd {
    context: Arc<Context>,
    pub(crate) process: &'static Process,
    pub(crate) number: u32,
    pub(crate) users: AtomicU32,
    _counted: Counted,
}

impl Pd {
    /// A number that names it inside this process.
    pub fn handle(&self) -> u32 {
        self.number
    }

    pub(crate) fn device(&self) -> &Device {
        &self.context.device
    }

    /// Ends it; EBUSY while objects belong to it.
    pub fn dealloc(&self) -> Result<()> {
        if self.users.load(Ordering::Acquire) != 0 {
            return Err(Error::busy("objects belong to the protection domain"));
        }
        Ok(())
    }
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
    /// The SRQ of this domain with that number, in this process.
    pub(crate) fn srq(&self, number: u32) -> Option<Arc<Srq>> {
        self.srqs.lock().iter().filter_map(Weak::upgrade).find(|s| s.srq_num() == number && s.check().is_ok())
    }

    /// Closes it; EBUSY while QPs or SRQs belong to it.
    pub fn close(&self) -> Result<()> {
        if self.users.load(Ordering::Acquire) != 0 && self.handles.load(Ordering::Acquire) == 1 {
            return Err(Error::busy("QPs or SRQs belong to the XRC domain"));
        }
        self.handles.fetch_sub(1, Ordering::AcqRel);
        Ok(())
    }
}
