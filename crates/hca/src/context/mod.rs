//! An opened device, and the protection domains under it.

pub mod async_events;

use crate::context::async_events::{AsyncEvent, AsyncQueue, Element, EventCount};
use crate::device::Device;
use crate::device::port_counters::{Counted, Word};
use crate::error::{Error, Result};
use crate::host::clock::hca_clock_ns;
use crate::host::lock::OwnerLock;
use crate::process::Process;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use vervain_iba::event;

/// Every open device.
static OPEN: OwnerLock<Vec<Weak<Context>>> = OwnerLock::new(Vec::new());

/// The open devices of this process; those that a forked child has from its parent are not.
fn open_ones() -> Vec<Arc<Context>> {
    OPEN.lock().iter().filter_map(Weak::upgrade).filter(|c| c.process.lock().is_current()).collect()
}

/// Looks at the network again and tells every open device whose ports it lies behind what has changed. Called by the link
/// when it begins to listen for changes, and at each.
pub fn network_changed() {
    let (events, up) = crate::device::gids::look_again();
    if events.is_empty() {
        return;
    }
    log::info!("the network has changed: port {}", if up { "up" } else { "down" });
    let unacknowledged = Arc::new(EventCount::default());
    for context in open_ones() {
        let device = context.device();
        let concerned = |e: &&u32| device.follows_network() || device.is_ethernet() && **e == event::GID_CHANGE;
        for port in 1..=device.ports() {
            events.iter().filter(concerned).for_each(|e| context.raise(*e, Element::Port(port), &unacknowledged));
        }
    }
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
