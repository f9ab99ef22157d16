//! An opened device, and the protection domains under it.

pub mod async_events;

use crate::arena::layout::{SWITCHES, Switch};
use crate::context::async_events::{AsyncEvent, AsyncQueue, Element, EventCount};
use crate::device::Device;
use crate::device::port_counters::{Counted, Word};
use crate::error::{Error, Result};
use crate::host::clock::hca_clock_ns;
use crate::host::lock::OwnerLock;
use crate::process::Process;
use crate::process::gate;
use crate::process::rendezvous::SavedProcess;
use crate::process::switches::OF_PROCESS;
use crate::process::switches::PATIENCE_NS;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use vervain_iba::event;

/// Every open device.
static OPEN: OwnerLock<Vec<Weak<Context>>> = OwnerLock::new(Vec::new());

/// The open devices of this process; those that a forked child has from its parent are not.
fn open_ones() -> Vec<Arc<Context>> {
    OPEN.lock().iter().filter_map(Weak::upgrade).filter(|c| c.home.lock().process.is_current()).collect()
}

/// Looks at the network again and reports changes to every open device whose ports lie behind it. The link calls this
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
    home: OwnerLock<Home>,
    events: AsyncQueue,
    _counted: Counted,
}

/// The place in which the objects of a context are made.
#[derive(Clone, Copy)]
struct Home {
    process: &'static Process,
    /// The number of the context's switch there.
    switch: usize,
}

impl Home {
    fn new(process: &'static Process) -> Home {
        Home { process, switch: process.switches.take() }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let home = *self.home.lock();
        if home.process.is_current() {
            home.process.switches.give_back(home.switch);
        }
    }
}

impl Context {
    /// Opens `device` in `process`. The link's crate offers this with its link wired in.
    pub fn open(device: &Arc<Device>, process: &'static Process) -> Result<Arc<Context>> {
        let events = AsyncQueue::create()?;
        let context = Arc::new(Context {
            device: Arc::clone(device),
            home: OwnerLock::new(Home::new(process)),
            events,
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
        let mut home = self.home.lock();
        if !home.process.is_current() {
            let here = home.process.here()?;
            self.events.leave_to_parent()?;
            *home = Home::new(here);
        }
        Ok(home.process)
    }

    /// The switch that lets initiators in to its QPs, and where that lies in the arena.
    pub(crate) fn switch(&self) -> (&'static Switch, u64) {
        let Home { process, switch } = *self.home.lock();
        (process.switches.get(switch), process.switches.offset(switch))
    }

    /// Stops its QPs: when this returns nothing of them moves, here or in peers, and operations that need them wait
    /// until [`Context::go`]. EALREADY if it is stopped. ETIMEDOUT if a request is in progress for `patience`
    /// nanoseconds, 2 s if None; then it is not stopped.
    pub fn stop(&self, patience: Option<u64>) -> Result<()> {
        let home = self.standing_home()?;
        home.process.stop(home.switch, patience.unwrap_or(PATIENCE_NS))
    }

    /// The end of a stop. EALREADY if it is not stopped.
    pub fn go(&self) -> Result<()> {
        let home = self.standing_home()?;
        home.process.go(home.switch)
    }

    /// Notes that it was saved, and announces that to its peers. EBUSY if it is not stopped.
    pub fn mark_saved(&self, suspense: u32) -> Result<SavedProcess> {
        let home = self.standing_home()?;
        home.process.mark_saved(home.switch, suspense)
    }

    /// There is no image of it although [`Context::mark_saved`] said so.
    pub fn unmark_saved(&self) {
        let Home { process, switch } = *self.home.lock();
        process.unmark_saved(switch);
    }

    /// Takes the place of the context that was saved of the process `saved`, now that its objects are there; it is
    /// stopped.
    pub fn take_the_place(&self, saved: &SavedProcess) -> Result<()> {
        let home = self.standing_home()?;
        home.process.take_the_place(home.switch, saved)
    }

    /// Claims the numbers that the QPs of a saved process have. EADDRINUSE if another process has them.
    pub fn claim_slots_again(&self, saved: &SavedProcess) -> Result<()> {
        self.process()?.claim_slots_again(&saved.slots, &saved.credentials)
    }

    /// Returns true if it was saved since it is stopped.
    pub fn is_saved(&self) -> bool {
        gate::is_saved(self.switch().0)
    }

    /// Returns true if it is stopped, by itself or with the process.
    pub fn is_stopped(&self) -> bool {
        gate::is_stopped(self.switch().0)
    }

    /// EOPNOTSUPP where it can be stopped with the process only.
    fn standing_home(&self) -> Result<Home> {
        self.process()?;
        let home = *self.home.lock();
        if home.switch == OF_PROCESS {
            let why = format!("only the first {SWITCHES} contexts of a process can be stopped alone");
            return Err(Error::new(libc::EOPNOTSUPP, why));
        }
        Ok(home)
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

    pub(crate) fn forget_events(&self, count: &Arc<EventCount>) {
        self.events.forget(count);
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
            number: process.numbers.next_pd(),
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
