//! One per process: the arena, the numbers it hands out, the registry of objects that peers may call on, and the progress
//! thread, which sleeps until something cannot finish inside a call (DESIGN decision 6).

pub(crate) mod doorbell;
pub(crate) mod exports;
pub mod imports;
pub mod link;
pub(crate) mod packets;
pub mod peer;
pub mod peer_channels;
pub(crate) mod progress;
pub(crate) mod revocation;
pub mod share_api;

use crate::arena::layout::{self, Header, Lane, PER_SLOT};
use crate::arena::numbers::{Kind, Numbers, SlotNumbers};
use crate::arena::{Arena, Block};
use crate::cq::Cq;
use crate::error::{Error, Result};
use crate::host::barrier;
use crate::host::lock::OwnerLock;
use crate::mr::KeyTable;
use crate::mr::adopt::registration::Adopting;
use crate::mr::pinnable::Mappings;
use crate::mr::transfer::Policy;
use crate::process::doorbell::{AttentionTable, Looked, Looker};
use crate::process::exports::{ExportedRange, Objects};
use crate::process::link::{LaneRequest, Link};
use crate::process::packets::Packets;
use crate::process::peer::PeerProcess;
use crate::process::revocation::Revocation;
use crate::process::share_api::Source;
use crate::qp::Qp;
use crate::rq::lane::OwnedLane;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use vervain_config::Config;
use vervain_share::checkers;

/// The process that the library serves; null before the first device is opened, and in a forked child until it opens one.
static CURRENT: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());
static STARTING: OwnerLock<()> = OwnerLock::new(());
/// Descriptors that a forked child must not keep: peers see us dead when the last copy of them is closed.
static PRIVATE_FDS: [AtomicU32; 4096] = [const { AtomicU32::new(0) }; 4096];

/// What the process has.
pub struct Process {
    pub(crate) arena: Arena,
    /// This process as a peer of itself.
    pub own: Arc<PeerProcess>,
    pub(crate) keys: KeyTable,
    pub(crate) objects: Objects,
    pub(crate) mappings: Mappings,
    pub(crate) attention: AttentionTable,
    /// How peers are reached.
    pub link: Box<dyn Link>,
    make_link: MakeLink,
    numbers: OwnerLock<Numbers>,
    /// By where they lie.
    pub(crate) lanes: OwnerLock<BTreeMap<u64, (&'static Lane, Weak<OwnedLane>)>>,
    /// By number.
    qps: OwnerLock<BTreeMap<u32, Weak<Qp>>>,
    pending: OwnerLock<Vec<Arc<Qp>>>,
    serving: OwnerLock<()>,
    /// Random, kept the whole life of the process image.
    pub incarnation: [u64; 2],
    pub(crate) policy: Policy,
    next_pd: AtomicU32,
    urgent: AtomicBool,
    pub(crate) revocation: Revocation,
    /// Memory of lanes that are gone, for new ones.
    lane_blocks: OwnerLock<Vec<Block>>,
    pub(crate) packets: Packets,
}

impl Process {
    /// The process, made when the first device is opened. `link` makes the way to peers; it is told the arena's descriptor,
    /// the descriptor that wakes this process and its identity.
    pub fn start(link: MakeLink) -> Result<&'static Process> {
        if let Some(p) = Process::current() {
            return Ok(p);
        }
        let _starting = STARTING.lock();
        if let Some(p) = Process::current() {
            return Ok(p);
        }
        install_fork_handlers();
        crate::host::faults::install();
        let process = Process::create(link)?;
        let process: &'static Process = Box::leak(Box::new(process));
        crate::process::progress::spawn(process)?;
        for fd in [process.arena.fd(), process.own.wake_fd()].into_iter().chain(process.mappings.fd()) {
            keep_from_children(fd);
        }
        CURRENT.store(std::ptr::from_ref(process).cast_mut(), Ordering::Release);
        if let Some(source) = process.objects.source() {
            source.guard_forks();
            source.call_for_reaper();
        }
        Ok(process)
    }

    /// The process, if a device was opened in it.
    pub fn current() -> Option<&'static Process> {
        let p = CURRENT.load(Ordering::Acquire);
        // SAFETY: null, or a leaked box that is never freed.
        unsafe { p.as_ref() }
    }

    /// Whether this is the process that made the object, and not a forked child of it.
    pub(crate) fn is_current(&self) -> bool {
        std::ptr::eq(CURRENT.load(Ordering::Acquire), self)
    }

    /// EIO in a forked child, whose copy of the objects has no device behind it (`man ibv_fork_init`).
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_current() {
            return Ok(());
        }
        Err(Error::new(libc::EIO, "this process is a forked child; the object belongs to its parent"))
    }

    /// This one, or in a forked child the child's own, made now if it has none yet.
    pub(crate) fn here(&'static self) -> Result<&'static Process> {
        if self.is_current() { Ok(self) } else { Process::start(self.make_link) }
    }

    fn create(make_link: MakeLink) -> Result<Process> {
        let config = Config::of_process()?;
        let source = Source::find(config);
        crate::device::port_counters::start(config);
        let adopting = Adopting::new(config);
        let arena = Arena::create(size_of::<Header>() as u64)?;
        let view = arena.view();
        let header = view.get::<Header>(0).expect("the arena holds its header");
        let keys = arena.alloc_sparse((layout::KEYS * size_of::<layout::KeyEntry>()) as u64)?;
        // Not the table of keys, which is large and has nothing but addresses of what is registered.
        let rest = keys.offset() + keys.len();
        checkers::may_hold_pointers(view.base().wrapping_add(rest as usize), (view.len() - rest) as usize);
        let attention = arena.alloc((layout::ATTENTION / 8) as u64)?;
        let table = arena.alloc_sparse((layout::OBJECTS * size_of::<layout::ObjectEntry>()) as u64)?;
        let objects = Objects::new(&arena, table.offset(), source, adopting)?;
        let mut random = [0u64; 2];
        for word in &mut random {
            *word = random_u64()?;
        }
        header.version.store(layout::VERSION, Ordering::Relaxed);
        header.pid.store(std::process::id(), Ordering::Relaxed);
        for (to, from) in header.incarnation.iter().zip(random) {
            to.store(from, Ordering::Relaxed);
        }
        header.heavy.store(u32::from(barrier::register()), Ordering::Relaxed);
        header.keys.store(keys.offset(), Ordering::Relaxed);
        header.attention.store(attention.offset(), Ordering::Relaxed);
        header.objects.store(table.offset(), Ordering::Relaxed);
        header.magic.store(layout::MAGIC, Ordering::Release);
        hold_record_lock(arena.fd())?;
        let wake = crate::host::eventfd::create()?;
        let init = LinkInit { arena_fd: arena.fd(), wake_fd: wake.as_raw_fd(), incarnation: random };
        let link = make_link(&init)?;
        let own = Arc::new(PeerProcess::new(view, true, std::process::id() as i32, wake)?);
        allow_process_vm();
        Ok(Process {
            keys: KeyTable::new(own.keys, keys.offset()),
            objects,
            mappings: Mappings::open(),
            arena,
            own,
            attention: AttentionTable::default(),
            link,
            make_link,
            numbers: OwnerLock::default(),
            lanes: OwnerLock::default(),
            qps: OwnerLock::default(),
            pending: OwnerLock::default(),
            serving: OwnerLock::default(),
            incarnation: random,
            policy: config.memory,
            next_pd: AtomicU32::new(1),
            urgent: AtomicBool::new(false),
            revocation: Revocation::default(),
            lane_blocks: OwnerLock::default(),
            packets: Packets::default(),
        })
    }

    pub(crate) fn next_pd(&self) -> u32 {
        self.next_pd.fetch_add(1, Ordering::Relaxed)
    }

    /// What this process writes as `Lane::initiator` for its QP `qpn`.
    pub(crate) fn initiator_id(&self, qpn: u32, generation: u32) -> u64 {
        let nonce = (self.incarnation[0] as u32 ^ generation.wrapping_mul(0x9e37_79b9)) & 0x7fff_ffff;
        u64::from(nonce) << 32 | u64::from(qpn)
    }

    // ---- numbers ---------------------------------------------------------------------------------------------------

    /// A QP number, free in this process and unique on this host; entered into the table when the QP is ready.
    pub(crate) fn new_number(&self, kind: Kind) -> Result<u32> {
        let mut numbers = self.numbers.lock();
        if let Some(number) = numbers.take(kind) {
            return Ok(number);
        }
        let i = numbers.slots.len();
        if i == layout::SLOTS_PER_PROCESS {
            return Err(Error::no_memory("this process has all the QPs or SRQs that it can have"));
        }
        let slot = self.link.claim_slot()?;
        let table = (PER_SLOT * 8) as u64;
        let (qps, srqs) = (self.arena.alloc_sparse(table)?, self.arena.alloc_sparse(table)?);
        let entry = &self.own.header.slots[i];
        entry.qps.store(qps.offset(), Ordering::Relaxed);
        entry.srqs.store(srqs.offset(), Ordering::Relaxed);
        entry.slot.store(slot, Ordering::Release);
        numbers.slots.push(SlotNumbers::new(slot, [qps, srqs], self.incarnation[1] as usize));
        numbers.take(kind).ok_or_else(|| Error::no_memory("no number is free"))
    }

    /// Makes `number` lead to `offset`; 0 to withdraw it.
    pub(crate) fn publish_number(&self, kind: Kind, number: u32, offset: u64) {
        let numbers = self.numbers.lock();
        if let Some(slot) = numbers.slots.iter().find(|s| s.slot == layout::slot_of(number)) {
            let table = self.own.view.slice::<AtomicU64>(slot.tables[kind as usize].offset(), PER_SLOT);
            if let Some(table) = table {
                table[layout::index_of(number)].store(offset, Ordering::SeqCst);
            }
        }
    }

    /// Gives a number back.
    pub(crate) fn free_number(&self, kind: Kind, number: u32) {
        let mut numbers = self.numbers.lock();
        if let Some(slot) = numbers.slots.iter_mut().find(|s| s.slot == layout::slot_of(number)) {
            slot.used[kind as usize][layout::index_of(number)] = false;
        }
    }

    // ---- registries ------------------------------------------------------------------------------------------------

    pub(crate) fn add_lane(&self, lane: &Arc<OwnedLane>) {
        self.lanes.lock().insert(lane.offset, (lane.shared, Arc::downgrade(lane)));
    }

    pub(crate) fn remove_lane(&self, lane: &Arc<OwnedLane>) {
        self.lanes.lock().remove(&lane.offset);
    }

    pub(crate) fn add_qp(&self, qp: &Arc<Qp>) {
        self.qps.lock().insert(qp.qp_num(), Arc::downgrade(qp));
    }

    pub(crate) fn remove_qp(&self, qp: &Arc<Qp>) {
        self.qps.lock().remove(&qp.qp_num());
    }

    /// QP `qpn` of this process.
    pub fn find_qp(&self, qpn: u32) -> Option<Arc<Qp>> {
        // Not dropped under the lock, as the last holder of a QP looks for others.
        let qp = self.qps.lock().get(&qpn).and_then(Weak::upgrade);
        qp.filter(|q| !q.gone.load(Ordering::Acquire))
    }

    /// Makes the lane that an initiator asks for, in this process or in a peer (called by the link for those); its offset.
    pub fn make_lane(&self, request: &LaneRequest) -> Option<u64> {
        let qp = self.find_qp(request.qpn)?;
        if request.srqn == 0 {
            return qp.make_lane(request.initiator, None).ok();
        }
        let srq = qp.xrcd()?.srq(request.srqn)?;
        qp.make_lane(request.initiator, Some(&srq)).ok()
    }

    /// Gives up the lanes that peers, or this process itself, have made for `initiator`.
    pub(crate) fn forget_lanes(&self, initiator: u32) {
        self.link.forget_lanes(initiator);
        self.drop_lanes_of(initiator);
    }

    /// Memory for a lane: lanes only ever lie where lanes lay, see `OwnedLane::drop`.
    pub(crate) fn lane_block(&self) -> Result<Block> {
        let mut blocks = self.lane_blocks.lock();
        let usable = |b: &Block| {
            self.own.view.get::<Lane>(b.offset()).is_some_and(|lane| crate::rq::lane::claim_memory(self, lane))
        };
        // The longest unused first. Those whose initiator is stopped or idle stay for later; they are few.
        if let Some(i) = blocks.iter().take(64).position(usable) {
            return Ok(blocks.swap_remove(i));
        }
        self.arena.alloc(size_of::<Lane>() as u64)
    }

    pub(crate) fn return_lane_block(&self, block: Block) {
        self.lane_blocks.lock().push(block);
    }

    /// Waits until no request of an initiator is being carried out.
    pub(crate) fn wait_serving(&self) {
        self.while_not_serving(|| ());
    }

    /// Runs `f` while no piece of any request is being moved.
    pub(crate) fn while_not_serving(&self, f: impl FnOnce()) {
        let _serving = self.serving.lock();
        f();
    }

    /// Takes back the lanes that `initiator`, a QP that is reset or gone, had in this process. Called by the link.
    pub fn drop_lanes_of(&self, initiator: u32) {
        for lane in self.live_lanes().iter().filter(|l| l.granted != 0 && l.granted == initiator) {
            if let Some(qp) = self.find_qp(lane.qp_num) {
                qp.reap(lane, initiator);
            }
        }
    }

    /// Closes every lane whose receives come from `rq`, an SRQ that is being destroyed.
    pub(crate) fn close_lanes_into(&self, rq: &Arc<crate::rq::RecvQueue>) {
        let lanes: Vec<_> = self.live_lanes().into_iter().filter(|l| Arc::ptr_eq(&l.rq, rq)).collect();
        self.shut(&lanes);
        for lane in &lanes {
            if let Some(qp) = self.find_qp(lane.qp_num) {
                qp.lanes.lock().retain(|l| !Arc::ptr_eq(l, lane));
            }
            lane.close();
        }
    }

    pub(crate) fn live_qps(&self) -> Vec<Arc<Qp>> {
        self.qps.lock().values().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn live_lanes(&self) -> Vec<Arc<OwnedLane>> {
        self.lanes.lock().values().filter_map(|(_, lane)| lane.upgrade()).collect()
    }

    /// Whether nobody may begin.
    #[inline]
    pub fn is_paused(&self) -> bool {
        self.own.header.paused.load(Ordering::Relaxed) != 0
    }

    /// Whether every QP of this process has been seen outside of its send work: whoever held an address of a peer's memory
    /// has done with it. Looks for a moment only.
    pub(crate) fn has_rested(&self) -> bool {
        barrier::heavy();
        self.live_qps().iter().all(|qp| (0..1000).any(|look| look_again(look, qp)))
    }

    // ---- shared objects --------------------------------------------------------------------------------------------

    /// How peers find `[addr, addr + length)`, registered with these access rights: in the arena, or in a shared object,
    /// where it is held.
    pub(crate) fn share(&self, addr: u64, length: u64, access: u32) -> ExportedRange {
        let view = self.arena.view();
        let base = view.at(0, 0).map_or(0, |p| p as u64);
        match addr.checked_sub(base) {
            Some(offset) if view.at(offset, length).is_some() => ExportedRange { at: offset, generation: 0, pin: None },
            _ => match self.objects.pin(&self.arena, addr, length) {
                ExportedRange { pin: None, .. } => self.adopt(addr, length, access),
                found => found,
            },
        }
    }

    /// What a peer that asks for an object gets; see `Objects::grant`. Called by the link.
    pub fn grant_object(&self, number: u32, generation: u32) -> Option<Option<OwnedFd>> {
        self.objects.grant(number, generation)
    }

    /// A CQ overran: every QP that reports to it goes to ERR, and says so (IBA 11.6.3.3).
    pub(crate) fn fail_users_of(&self, cq: &Cq) {
        for qp in self.live_qps() {
            if qp.reports_to(cq) {
                qp.fail(vervain_iba::event::QP_FATAL);
            }
        }
    }

    /// The initiator of `lane` still runs: its process, or for a QP of this process the thread that is at it.
    pub(crate) fn initiator_lives(&self, lane: &Lane) -> bool {
        let qpn = lane.initiator.load(Ordering::Acquire) as u32;
        let slot = layout::slot_of(qpn);
        if qpn & layout::BY_PACKETS != 0 {
            // Packets are received by this process itself.
            return true;
        }
        if self.owns_slot(slot) {
            // Also while it is being destroyed.
            let qp = self.qps.lock().get(&qpn).and_then(Weak::upgrade);
            return qp.is_some_and(|qp| !qp.thread_is_gone());
        }
        self.link.initiator_lives(slot)
    }

    /// Whether `slot` is this process's.
    pub fn owns_slot(&self, slot: u32) -> bool {
        // Slot 0 is nobody's; unused entries hold it.
        slot != 0 && self.own.header.slots.iter().any(|s| s.slot.load(Ordering::Acquire) == slot)
    }

    /// A process that had initiators here has ended: takes back what they held. Called by the link.
    pub fn reap(&self, slots: &[u32]) {
        let theirs = |lane: &Arc<OwnedLane>| lane.holder() != 0 && slots.contains(&layout::slot_of(lane.holder()));
        for lane in self.live_lanes().iter().filter(|l| theirs(l)) {
            let qpn = lane.holder();
            let qp = self.qps.lock().get(&lane.qp_num).and_then(Weak::upgrade);
            match qp {
                Some(qp) => qp.reap(lane, qpn),
                None => lane.reset(),
            }
        }
    }

    // ---- work for the progress thread ------------------------------------------------------------------------------

    pub(crate) fn add_pending(&self, qp: &Arc<Qp>) {
        self.pending.lock().push(Arc::clone(qp));
        self.wake_progress();
    }

    pub(crate) fn pending(&self) -> Vec<Arc<Qp>> {
        self.pending.lock().clone()
    }

    /// Whether QPs came to the list since the progress thread read it.
    pub(crate) fn has_new_pending(&self, known: usize) -> bool {
        self.urgent.load(Ordering::SeqCst) || self.pending.lock().len() > known
    }

    /// Takes a QP without work off the progress thread's list; false if work came meanwhile.
    pub(crate) fn unwatch(&self, qp: &Arc<Qp>) -> bool {
        let mut pending = self.pending.lock();
        if !qp.clear_listed_for_progress() {
            return false;
        }
        pending.retain(|p| !Arc::ptr_eq(p, qp));
        true
    }

    /// The program is about to sleep: the progress thread takes over although it polled a moment ago.
    pub fn hand_over(&self) {
        self.urgent.store(true, Ordering::SeqCst);
        self.wake_progress();
    }

    /// The link has news that QPs may wait for.
    pub fn wake_waiting(&self) {
        if !self.pending.lock().is_empty() {
            self.urgent.store(true, Ordering::SeqCst);
        }
    }

    pub(crate) fn take_urgent(&self) -> bool {
        self.urgent.swap(false, Ordering::SeqCst)
    }

    pub(crate) fn drop_pending(&self, qp: &Arc<Qp>) {
        self.pending.lock().retain(|p| !Arc::ptr_eq(p, qp));
    }

    /// Wakes the progress thread.
    pub fn wake_progress(&self) {
        self.own.wake();
    }

    /// Looks at everything that peers asked for; says whether initiators' requests were among it.
    pub(crate) fn attend(&self) -> bool {
        let mut numbers = Vec::new();
        self.own.take_attention(|n| numbers.push(n));
        let mut served = false;
        for n in numbers {
            served |= self.attention.call(n, Looker::Progress) == Looked::Served;
        }
        served
    }

    /// The same from a thread that polls, which must not wait for another that is at it.
    #[cold]
    pub(crate) fn attend_from_poll(&self) {
        let mut lanes = Vec::new();
        self.own.take_attention(|n| lanes.push(n));
        let mut rest = false;
        for n in lanes {
            if self.attention.call(n, Looker::Poll) == Looked::NotHere {
                // Events and flushes take locks that the polling thread may hold.
                let words = self.own.clone();
                words.raise(n);
                rest = true;
            }
        }
        if rest {
            self.wake_progress();
        }
    }

    /// Does a piece of an initiator's request; [`Process::wait_serving`] waits for it.
    pub(crate) fn serving<R>(&self, piece: impl FnOnce() -> R) -> R {
        let _serving = self.serving.lock();
        piece()
    }
}

/// Whether `qp` is at rest; after some looks in vain the CPU is offered to it.
fn look_again(look: u32, qp: &Qp) -> bool {
    if look > 100 {
        std::thread::yield_now();
    }
    !qp.is_executing() || qp.thread_is_gone()
}

/// What the link is told at the start.
pub struct LinkInit {
    /// The arena's memfd.
    pub arena_fd: i32,
    /// The descriptor that wakes the progress thread.
    pub wake_fd: i32,
    /// Identity.
    pub incarnation: [u64; 2],
}

/// Makes the way to peers for a process.
pub type MakeLink = fn(&LinkInit) -> Result<Box<dyn Link>>;

/// Random bits from the system.
pub(crate) fn random_u64() -> Result<u64> {
    let mut word = [0; 8];
    random(&mut word)?;
    Ok(u64::from_ne_bytes(word))
}

/// As many random bytes.
pub(crate) fn random(bytes: &mut [u8]) -> Result<()> {
    getrandom::fill(bytes).map_err(|e| Error::new(libc::EIO, format!("no random numbers: {e}")))
}

/// Holds a record lock on the arena for as long as the process image lives: unlike a descriptor it is not inherited by a
/// forked child, and it goes when the last thread is gone.
fn hold_record_lock(fd: i32) -> Result<()> {
    // SAFETY: an all-zero flock is valid: the whole file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as i16;
    // SAFETY: F_SETLK reads the struct.
    if unsafe { libc::fcntl(fd, libc::F_SETLK, &raw const lock) } != 0 {
        return Err(Error::last_os("cannot lock the arena"));
    }
    Ok(())
}

/// Lets processes of this user read and write our memory where Yama restricts that to parents (`man 2 prctl`).
fn allow_process_vm() {
    const ANY: libc::c_ulong = libc::c_ulong::MAX;
    // SAFETY: changes one attribute of this process; EINVAL where there is no Yama.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, ANY, 0, 0, 0) };
}

/// Notes a descriptor that a forked child closes at once.
pub fn keep_from_children(fd: i32) {
    for cell in &PRIVATE_FDS {
        if cell.compare_exchange(0, fd as u32 + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return;
        }
    }
}

/// Takes the note back, before the descriptor is closed.
pub fn forget_private_fd(fd: i32) {
    for cell in &PRIVATE_FDS {
        if cell.compare_exchange(fd as u32 + 1, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return;
        }
    }
}

fn install_fork_handlers() {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    if !INSTALLED.swap(true, Ordering::AcqRel) {
        // SAFETY: the child's handler only touches atomics, thread-local data and closes descriptors; the others run where
        // anything may be called.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), Some(after_fork_in_child)) };
    }
}

extern "C" fn before_fork() {
    if let Some(process) = Process::current() {
        process.adoption_before_fork();
    }
}

extern "C" fn after_fork_in_parent() {
    if let Some(process) = Process::current() {
        process.adoption_after_fork();
    }
}

/// In the child: the objects belong to the parent, and so do the sockets by which peers see it alive.
extern "C" fn after_fork_in_child() {
    CURRENT.store(std::ptr::null_mut(), Ordering::Release);
    crate::host::tid::forget();
    crate::device::port_counters::forget();
    barrier::forget();
    for cell in &PRIVATE_FDS {
        let fd = cell.swap(0, Ordering::AcqRel);
        if fd != 0 {
            // SAFETY: the child's copy of a descriptor that only this library uses; the owner objects in the child are
            // never dropped with effect, for the process they belong to is not the current one.
            unsafe { libc::close(fd as i32 - 1) };
        }
    }
}
