//! A process as the device model has it: its arena, itself as a peer of itself, the numbers and keys that it hands out,
//! the gates of the lanes into it, its doorbells, and the progress thread, which sleeps until something cannot finish
//! inside a call (DESIGN decision 6). The QPs stand above it, see [`crate::qp::table`].

mod adoption;
pub(crate) mod doorbell;
pub(crate) mod exports;
mod fork;
pub(crate) mod gate;
pub mod grants;
pub mod imports;
pub(crate) mod inline_receive;
pub(crate) mod key_table;
pub mod lanes;
mod leaving;
mod packets;
pub mod parking;
pub mod peer;
pub mod peer_channels;
pub mod poller;
pub mod progress;
pub mod rendezvous;
pub(crate) mod revocation;
pub(crate) mod send_work;
pub mod share_api;
mod sleeper;
pub(crate) mod standing;
pub(crate) mod switches;

pub use fork::{forget_private_fd, keep_from_children};
pub use rendezvous::SavedProcess;
pub use send_work::Progress;

use crate::arena::layout::{self, Header, Lane, PER_SLOT, QpShared, refused};
use crate::arena::numbers::{Kind, Numbers, SlotNumbers};
use crate::arena::{Arena, Block};
use crate::error::{Error, Result};
use crate::host::pinnable::Mappings;
use crate::host::{barrier, random};
use crate::process::adoption::Adopting;
use crate::process::doorbell::AttentionTable;
use crate::process::exports::{ExportedRange, Objects};
use crate::process::fork::{Image, Restart};
use crate::process::grants::Grants;
use crate::process::key_table::KeyTable;
use crate::process::lanes::Lanes;
use crate::process::packets::Packets;
use crate::process::parking::Parking;
use crate::process::peer::PeerProcess;
use crate::process::poller::{EventHandler, Poller};
use crate::process::progress::ProgressThread;
use crate::process::rendezvous::{Credentials, Rendezvous};
use crate::process::revocation::Revocation;
use crate::process::send_work::{SendWork, SendWorks};
use crate::process::share_api::Source;
use crate::process::switches::Switches;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use vervain_config::{Config, MemoryWay};
use vervain_share::api::KIND_WINDOW;
use vervain_share::checkers;

/// The process that the library serves; null before the first device is opened, and in a forked child until it opens
/// one.
static CURRENT: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

/// How a process reaches others.
pub struct Ways {
    /// The processes of this host.
    pub rendezvous: Arc<dyn Rendezvous>,
    /// Pollers of the carriers.
    pub pollers: Vec<Arc<dyn Poller>>,
    /// Further handlers for the progress thread.
    pub handlers: Vec<Arc<dyn EventHandler>>,
}

/// Facts about the process that the ways to peers are made for.
pub struct Identity {
    /// The arena's memfd.
    pub arena_fd: i32,
    /// The descriptor that wakes the progress thread.
    pub wake_fd: i32,
    /// Random, kept the whole life of the process image.
    pub incarnation: [u64; 2],
}

/// The state of the process.
pub struct Process {
    pub(crate) arena: Arena,
    /// This process as a peer of itself.
    pub own: Arc<PeerProcess>,
    pub(crate) keys: KeyTable,
    pub(crate) objects: Objects,
    adopting: Option<Adopting>,
    pub(crate) mappings: Mappings,
    pub(crate) attention: AttentionTable,
    /// The processes of this host.
    pub rendezvous: Arc<dyn Rendezvous>,
    /// The lanes into the QPs of this process.
    pub lanes: Lanes,
    image: Image,
    pub(crate) numbers: Numbers,
    pub(crate) switches: Switches,
    /// Has it stand still for a supervisor.
    pub parking: Parking,
    /// What is left to the progress thread.
    pub progress: ProgressThread,
    pub(crate) send_work: SendWorks,
    /// Random, kept the whole life of the process image.
    pub incarnation: [u64; 2],
    pub(crate) policy: MemoryWay,
    revocation: Revocation,
    pub(crate) grants: Grants,
    /// The carriers and their packets.
    pub packets: Packets,
}

impl Process {
    /// The process, if a device was opened in it.
    pub fn current() -> Option<&'static Process> {
        let p = CURRENT.load(Ordering::Acquire);
        // SAFETY: null, or a leaked box that is never freed.
        unsafe { p.as_ref() }
    }

    /// The offset of bytes of this process in its node's region of the window; None if they are not there in one piece.
    pub fn place_in_window(&self, addr: u64, len: u64) -> Option<u64> {
        let place = self.objects.source()?.find_range(addr, len)?;
        (place.kind == KIND_WINDOW).then_some(place.offset)
    }

    /// Returns true if this is the process that made the object, and not a forked child of it.
    pub(crate) fn is_current(&self) -> bool {
        self.image.is_current()
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
        if self.is_current() { Ok(self) } else { self.image.restart() }
    }

    /// Makes this the process that the library serves: starts its progress thread and guards it around forks.
    pub(crate) fn serve(&'static self) -> Result<()> {
        fork::install_handlers();
        crate::host::faults::install();
        leaving::install();
        crate::process::progress::spawn(self)?;
        for fd in [self.arena.fd(), self.own.wake_fd()].into_iter().chain(self.mappings.fd()) {
            keep_from_children(fd);
        }
        CURRENT.store(std::ptr::from_ref(self).cast_mut(), Ordering::Release);
        if let Some(source) = self.objects.source() {
            fork::guard(source);
        }
        Ok(())
    }

    /// A process with an arena of its own, which nobody knows of yet. `ways` makes the ways to its peers.
    pub(crate) fn create(ways: impl FnOnce(&Identity) -> Result<Ways>, restart: Restart) -> Result<Process> {
        let config = Config::of_process()?;
        let source = Source::find(config);
        crate::device::port_counters::start(config);
        let arena = Arena::create(size_of::<Header>() as u64)?;
        let view = arena.view();
        let header = view.get::<Header>(0).expect("the arena holds its header");
        let keys = arena.alloc_sparse((layout::KEYS * size_of::<layout::KeyEntry>()) as u64)?;
        // Not the table of keys, which is large and has nothing but addresses of what is registered.
        let rest = keys.offset() + keys.len();
        checkers::may_hold_pointers(view.base().wrapping_add(rest as usize), (view.len() - rest) as usize);
        let attention = arena.alloc((layout::ATTENTION / 8) as u64)?;
        let table = arena.alloc_sparse((layout::OBJECTS * size_of::<layout::ObjectEntry>()) as u64)?;
        let objects = Objects::new(&arena, table.offset(), source)?;
        let switches = Switches::new(&arena)?;
        let incarnation = [random::word()?, random::word()?];
        header.version.store(layout::VERSION, Ordering::Relaxed);
        header.pid.store(std::process::id(), Ordering::Relaxed);
        for (to, from) in header.incarnation.iter().zip(incarnation) {
            to.store(from, Ordering::Relaxed);
        }
        header.heavy.store(u32::from(barrier::register()), Ordering::Relaxed);
        header.keys.store(keys.offset(), Ordering::Relaxed);
        header.attention.store(attention.offset(), Ordering::Relaxed);
        header.objects.store(table.offset(), Ordering::Relaxed);
        header.magic.store(layout::MAGIC, Ordering::Release);
        hold_record_lock(arena.fd())?;
        let wake = crate::host::eventfd::create()?;
        let Ways { rendezvous, pollers, handlers } =
            ways(&Identity { arena_fd: arena.fd(), wake_fd: wake.as_raw_fd(), incarnation })?;
        let own = Arc::new(PeerProcess::new(view.clone(), None, std::process::id() as i32, wake)?);
        allow_process_vm();
        Ok(Process {
            keys: KeyTable::new(own.keys.clone(), keys.offset()),
            objects,
            adopting: Adopting::new(config),
            mappings: Mappings::open(),
            arena,
            own,
            attention: AttentionTable::default(),
            rendezvous,
            image: Image::new(restart),
            numbers: Numbers::new(),
            switches,
            parking: Parking::default(),
            lanes: Lanes::default(),
            progress: ProgressThread::default(),
            send_work: SendWorks::default(),
            incarnation,
            policy: config.memory,
            revocation: Revocation::default(),
            grants: Grants::default(),
            packets: Packets::new(pollers, handlers),
        })
    }

    /// The value that this process writes as `Lane::initiator` for its QP `qpn`.
    pub(crate) fn initiator_id(&self, qpn: u32, generation: u32) -> u64 {
        let nonce = (self.incarnation[0] as u32 ^ generation.wrapping_mul(0x9e37_79b9)) & 0x7fff_ffff;
        u64::from(nonce) << 32 | u64::from(qpn)
    }

    // ---- numbers ---------------------------------------------------------------------------------------------------

    /// A QP or SRQ number, free here and unique on this host; entered into the table when the object is ready.
    pub(crate) fn new_number(&self, kind: Kind) -> Result<u32> {
        self.numbers.take(kind, |i| self.claim_slot(i))
    }

    /// A slot of this process, its first one; claimed now if it has none yet.
    pub fn first_slot(&self) -> Result<u32> {
        self.numbers.first_slot(|i| self.claim_slot(i))
    }

    /// Claims the slots that a saved process had, but for those that this one has.
    pub(crate) fn claim_slots_again(&self, slots: &[u32], of: &Credentials) -> Result<()> {
        let claim = |slot, i| {
            self.rendezvous.claim_slot_again(slot, slots, of)?;
            self.open_slot(i, slot)
        };
        self.numbers.claim_again(slots, |slot| self.owns_slot(slot), claim)
    }

    fn claim_slot(&self, i: usize) -> Result<SlotNumbers> {
        let slot = self.rendezvous.claim_slot()?;
        self.open_slot(i, slot)
    }

    /// Makes a slot that was claimed known to peers as the process's with index `i`.
    fn open_slot(&self, i: usize, slot: u32) -> Result<SlotNumbers> {
        let table = (PER_SLOT * 8) as u64;
        let tables = || Ok((self.arena.alloc_sparse(table)?, self.arena.alloc_sparse(table)?));
        let expected = self.packets.expect_slot(slot);
        let (qps, srqs) = expected.and_then(|()| tables()).inspect_err(|_| self.rendezvous.give_slot_back(slot))?;
        let entry = &self.own.header.slots[i];
        entry.qps.store(qps.offset(), Ordering::Relaxed);
        entry.srqs.store(srqs.offset(), Ordering::Relaxed);
        entry.slot.store(slot, Ordering::Release);
        Ok(SlotNumbers::new(slot, [qps, srqs], self.incarnation[1] as usize))
    }

    /// Makes `number` lead to `offset`; 0 to withdraw it.
    pub(crate) fn publish_number(&self, kind: Kind, number: u32, offset: u64) {
        self.numbers.publish(&self.own.view, kind, number, offset);
    }

    /// A memory key: any, or that which a saved process had.
    pub(crate) fn take_key(&self, key: Option<u32>) -> Result<u32> {
        match key {
            None => self.keys.take(&self.arena),
            Some(key) => self.keys.take_again(&self.arena, key).map(|()| key),
        }
    }

    // ---- peers -----------------------------------------------------------------------------------------------------

    /// Gives up the lanes that peers, or this process itself, have made for `initiator`.
    pub(crate) fn forget_lanes(&self, initiator: u32) {
        self.rendezvous.forget_lanes(initiator);
        self.lanes.drop_those_of(initiator);
    }

    /// Memory for a lane: lanes only ever lie where lanes lay, see `OwnedLane::drop`.
    pub(crate) fn lane_block(&self) -> Result<Block> {
        let is_usable = |b: &Block| {
            let lane = self.own.view.get::<Lane>(b.offset());
            lane.is_some_and(|lane| gate::claim_memory(lane, || self.initiator_lives(lane)))
        };
        self.lanes.take_block(is_usable).map_or_else(|| self.arena.alloc(size_of::<Lane>() as u64), Ok)
    }

    /// Returns true if new operations must wait.
    #[inline]
    pub fn is_paused(&self) -> bool {
        self.switches.of_process().closed.load(Ordering::Relaxed) != 0
    }

    /// Returns true if every QP of this process has been seen outside of its send work, so that no thread uses an
    /// address of a peer's memory that it had before. Looks for a moment only.
    pub(crate) fn has_rested(&self) -> bool {
        barrier::heavy_here();
        self.send_work.executing().iter().all(|work| (0..1000).any(|look| look_again(look, &**work)))
    }

    /// Unmaps what was replaced of peers' memory, once nobody uses it. Called by the rendezvous, on the progress
    /// thread.
    pub fn tidy_imports(&self) {
        imports::tidy(|| self.has_rested());
    }

    // ---- shared objects --------------------------------------------------------------------------------------------

    /// How peers find `[addr, addr + length)`, registered with these access rights: in the arena, or in a shared
    /// object, where it is held.
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

    /// Adopts `[addr, addr + length)` for a registration with `access` rights.
    fn adopt(&self, addr: u64, length: u64, access: u32) -> ExportedRange {
        let adopting = self.adopting.as_ref().filter(|_| adoption::is_for_peers(length, access));
        let adopted = adopting.and_then(|adopting| adopting.adopt(addr, length, || self.close_gate()));
        let (Some(adopting), Some(adopted)) = (adopting, adopted) else { return ExportedRange::NOWHERE };
        let place = adoption::place_of(&adopted);
        if let Some((gone, _object)) = adopting.keep(&self.objects, &self.arena, &adopted.object, &place) {
            self.rendezvous.object_withdrawn(gone.number, gone.generation);
        }
        self.objects.hold(&self.arena, &place, length, adopted).unwrap_or_else(|adopted| {
            let _gate = self.close_gate();
            adopting.revert(adopted);
            ExportedRange::NOWHERE
        })
    }

    /// The answer to a peer that asks for an object; see `Objects::grant`. Called by the link.
    pub fn grant_object(&self, number: u32, generation: u32) -> Option<Option<OwnedFd>> {
        self.objects.grant(number, generation)
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
            return self.send_work.find(qpn).is_some_and(|work| !work.thread_is_gone());
        }
        self.rendezvous.initiator_lives(slot)
    }

    /// Returns true if `slot` is this process's.
    pub fn owns_slot(&self, slot: u32) -> bool {
        // Slot 0 belongs to no process; unused entries hold it.
        slot != 0 && self.own.header.slots.iter().any(|s| s.slot.load(Ordering::Acquire) == slot)
    }

    /// The QP at `offset` of the arena goes to ERR, for a message that it has received has no place.
    #[cold]
    pub(crate) fn fail_qp(&self, offset: u64) {
        if let Some(qp) = self.arena.view().get::<QpShared>(offset) {
            qp.refused.kind.store(refused::RECEIVE, Ordering::Relaxed);
            if qp.fail(None) {
                self.own.raise(qp.attention.load(Ordering::Relaxed));
            }
        }
    }

    // ---- work for the progress thread ------------------------------------------------------------------------------

    pub(crate) fn add_pending(&self, work: Arc<dyn SendWork>) {
        self.progress.add(work);
        self.wake_progress();
    }

    /// The program is about to sleep: the progress thread takes over although it polled a moment ago.
    pub fn hand_over(&self) {
        self.progress.hurry();
        self.wake_progress();
    }

    /// From now on threads that poll look for packets too, and so does the progress thread, which is woken. Called when
    /// a QP is connected or registered, and by a carrier that expects others.
    pub fn expect_packets(&self) {
        self.packets.expect();
        self.wake_for_packets();
    }

    /// Has the progress thread come by and see to packets.
    pub fn wake_for_packets(&self) {
        self.packets.want();
        self.wake_progress();
    }

    /// Looks for packets, in a thread that polls.
    pub(crate) fn poll_packets(&self) -> bool {
        let Some(process) = Process::current() else { return false };
        !process.is_paused() && self.packets.poll(process)
    }

    /// Handles packets, each completely or not at all: a pause waits for `f`. None while the process is paused. Not to
    /// be nested.
    pub fn handle_packets<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        let _in_hand = self.packets.take_in_hand();
        if self.is_paused() { None } else { Some(f()) }
    }

    /// A QP has become ready to send.
    pub(crate) fn qp_is_ready(&self) {
        self.packets.handlers().for_each(|handler| handler.qp_is_ready(self));
    }

    /// Wakes the progress thread.
    pub fn wake_progress(&self) {
        self.own.wake();
    }
}

/// Returns true if a QP is at rest; after some fruitless looks it offers the CPU.
fn look_again(look: u32, work: &dyn SendWork) -> bool {
    if look > 100 {
        std::thread::yield_now();
    }
    !work.is_executing() || work.thread_is_gone()
}

/// Holds a record lock on the arena for as long as the process image lives: unlike a descriptor it is not inherited by
/// a forked child, and it goes when the last thread is gone.
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
