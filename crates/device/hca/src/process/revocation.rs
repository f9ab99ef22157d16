//! Revocation (DESIGN decision 3): a thread that takes a right away, a key or the state of a QP, waits until no
//! initiator is in flight that may have seen it. Initiators that have ended are not waited for. One that stands still,
//! because it was stopped or waits for a page of its own, is waited for [`PATIENCE_NS`] and then cut off: its lane is
//! shut for ever, what it does from then on does not count, and the program's memory is parted from the pages that it
//! may still write to.

use crate::adopt::sys::NoSignals;
use crate::arena::Block;
use crate::arena::layout::{self, BY_PACKETS, CqShared, HEAP, Lane, NOT_SHARED, OFFSET_BITS};
use crate::error::Result;
use crate::host::barrier;
use crate::host::cancel::nap;
use crate::host::clock::now_ns;
use crate::host::lock::OwnerLock;
use crate::process::Process;
use crate::process::exports::Pin;
use crate::process::gate::{self, LaneGate, Standing, in_flight};
use crate::process::grants::{Grant, Silent};
use crate::process::key_table::Named;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;
use vervain_share::sys::page;

/// Nanoseconds for which an initiator may stand still while a revocation waits for it.
pub(crate) const PATIENCE_NS: u64 = 2_000_000_000;
/// Looks in a row, some 50 µs apart, that have to find it so besides: a job that was stopped as a whole goes on
/// together.
const LOOKS: u32 = 100;
/// A look that comes so late began anew: this thread stood still itself.
const LATE_NS: u64 = 50_000_000;
/// Nanoseconds for which a fork waits for one. The fork takes nothing away: a child that sees a message half written
/// sees the same as with an adapter in the middle of it.
const FORK_PATIENCE_NS: u64 = 50_000_000;

/// Initiators that were cut off, and the memory that they may still touch when they go on. It is not used again until
/// they have left or ended.
#[derive(Default)]
pub(crate) struct Revocation {
    suspects: OwnerLock<Suspects>,
    /// Held while initiators are cut off.
    cutting: OwnerLock<()>,
    /// Memory of CQs that are gone, for new ones.
    cq_blocks: OwnerLock<Vec<Block>>,
    /// How often memory was parted from its pages, counted when that is done.
    partings: AtomicU64,
}

#[derive(Default)]
struct Suspects {
    /// Lane and the in-flight mark that stood in it.
    lanes: Vec<(&'static Lane, u64)>,
    parked: Vec<Block>,
    pins: Vec<Pin>,
    silent: Vec<Silent>,
}

impl Suspects {
    /// Forgets those that have left or ended; whether none is left.
    fn is_empty(&mut self, process: &Process) -> bool {
        self.lanes.retain(|(lane, gate)| lane.gate.load(Ordering::Acquire) == *gate && process.initiator_lives(lane));
        self.silent.retain(Silent::remains);
        self.lanes.is_empty() && self.silent.is_empty()
    }
}

/// While this lives, no thread and no peer is in this process's memory. No signal handler runs in the thread that holds
/// it: a thread that ended in one would leave all others waiting.
pub(crate) struct Closed<'a> {
    process: &'a Process,
    _signals: NoSignals,
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.process.resume();
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Process {
    /// Makes `key` invalid and waits for initiators that are in flight with it.
    pub(crate) fn revoke_key(&self, key: u32) {
        self.keys.entry(key).key.store(0, Ordering::SeqCst);
        self.drain(key);
    }

    /// [`Process::revoke_key`] for a region, which receives may name. Messages that have arrived are in the memory
    /// afterwards.
    pub(crate) fn revoke_region(&self, key: u32) {
        self.revoke_key(key);
        self.lanes.inline.scatter_waiting(key);
    }

    /// Waits until nobody is in flight in the memory of `key`, which was made invalid, here or in a peer.
    pub(crate) fn drain(&self, key: u32) {
        let there = |lane: &Lane| self.keys.may_reach(lane.key.load(Ordering::SeqCst), key);
        self.wait_until_left(self.initiators_inside(there));
        self.take_back_grants(|granted, _| granted == key, PATIENCE_NS);
        self.wait_for_own();
    }

    /// Closes the memory and the queues of this process: when this returns no peer and no thread of this process is in
    /// flight, and new operations wait for [`Process::resume`]. Pauses add up.
    pub fn pause(&self) {
        self.pause_where(|_| true);
    }

    /// [`Process::pause`] that waits only for peers on lanes that `matter`.
    pub(crate) fn pause_where(&self, matter: impl Fn(&Lane) -> bool) {
        self.switches.close();
        self.wait_until_left(self.initiators_inside(matter));
        self.take_back_grants(|_, _| true, PATIENCE_NS);
        self.wait_for_own();
        self.packets.wait_for();
    }

    /// [`Process::pause`] before a fork, which cuts no initiator off.
    pub(crate) fn pause_for_fork(&self) {
        self.switches.close();
        drop(self.those_stuck(self.initiators_inside(|_| true), FORK_PATIENCE_NS));
        self.grants.ask_back(|_| true, FORK_PATIENCE_NS);
        self.wait_for_own();
        self.packets.wait_for();
    }

    /// Closes the gate for as long as the guard lives.
    pub(crate) fn close_gate(&self) -> Closed<'_> {
        self.close_gate_where(|_| true)
    }

    /// Closes the gate for what goes on by the lanes that `matter`, as long as the guard lives.
    pub(crate) fn close_gate_where(&self, matter: impl Fn(&Lane) -> bool) -> Closed<'_> {
        let signals = NoSignals::new();
        self.pause_where(matter);
        Closed { process: self, _signals: signals }
    }

    /// The end of a pause.
    pub fn resume(&self) {
        self.switches.open();
    }

    /// Waits for threads of this process that carry out send work or requests of peers.
    fn wait_for_own(&self) {
        self.send_work.executing().iter().for_each(|work| work.wait_executing());
        self.lanes.wait_serving();
    }

    /// Gates by which initiators may still be inside to whom the caller has just closed the way, of those that
    /// `matter`. On all others the initiator finds it closed.
    pub(crate) fn initiators_inside(&self, matter: impl Fn(&Lane) -> bool) -> Vec<Arc<LaneGate>> {
        self.heavy_barrier();
        self.lanes.gates.which(|lane| in_flight(lane) && matter(lane))
    }

    /// Between what this thread has closed and its look at the marks of initiators and of send work.
    fn heavy_barrier(&self) {
        // What was closed is seen by an initiator that takes its lane after this look.
        fence(Ordering::SeqCst);
        if self.lanes.gates.any(|lane| self.is_foreign(lane.initiator.load(Ordering::SeqCst))) {
            barrier::heavy();
        } else {
            barrier::heavy_here();
        }
    }

    /// Returns true if another process may act as this [`Lane::initiator`], by memory.
    fn is_foreign(&self, initiator: u64) -> bool {
        let qpn = initiator as u32;
        initiator != gate::NOBODY && qpn & BY_PACKETS == 0 && !self.owns_slot(layout::slot_of(qpn))
    }

    /// Waits until nobody is in flight on `lanes`, whose way in was closed before.
    pub(crate) fn wait_for(&self, lanes: &[Arc<LaneGate>]) {
        self.heavy_barrier();
        self.wait_until_left(lanes.iter().filter(|gate| in_flight(gate.lane)).map(Arc::clone).collect());
    }

    /// Shuts `lanes` for good: nobody can enter any more, and nobody is inside.
    pub(crate) fn shut(&self, lanes: &[Arc<LaneGate>]) {
        lanes.iter().for_each(|gate| gate.lane.open.store(0, Ordering::SeqCst));
        self.wait_for(lanes);
        self.lanes.wait_serving();
    }

    fn wait_until_left(&self, lanes: Vec<Arc<LaneGate>>) {
        if lanes.is_empty() {
            return;
        }
        let stuck = self.those_stuck(lanes, PATIENCE_NS);
        if !stuck.is_empty() {
            self.cut_off(stuck);
        }
    }

    /// Waits until each of the initiators has left or ended, or has stood still for `patience` nanoseconds; those that
    /// have, and those that were cut off before.
    fn those_stuck(&self, lanes: Vec<Arc<LaneGate>>, patience: u64) -> Vec<Standing> {
        let mut moving = gate::standing(lanes);
        let mut stuck = Vec::new();
        let (mut spins, mut looks, mut last) = (0u32, 0u32, now_ns());
        loop {
            moving.retain(|(gate, mark)| gate.stands(*mark));
            if moving.is_empty() {
                return stuck;
            }
            spins += 1;
            if spins < 2000 {
                std::hint::spin_loop();
                continue;
            }
            if spins == 2000 {
                // From now on time counts for all that stand still, so that the next wait does not begin anew.
                for gate in self.lanes.gates.which(in_flight) {
                    gate.in_flight_since(gate.mark());
                }
            }
            if spins.is_multiple_of(64) {
                moving.retain(|(gate, _)| self.initiator_lives(gate.lane));
            }
            let now = now_ns();
            looks = if now - last > LATE_NS { 0 } else { looks + 1 };
            last = now;
            let over = |(gate, mark): &mut Standing| {
                // A thread of this process is waited for as in all its send work: it knows the memory by other
                // addresses.
                let time_is_over = looks > LOOKS && now.saturating_sub(gate.in_flight_since(*mark)) > patience;
                gate.is_cut_off() || (time_is_over && !self.is_own_initiator(gate.lane))
            };
            stuck.extend(moving.extract_if(.., over));
            nap(Duration::from_micros(20));
        }
    }

    /// Returns true if a QP of this process is the initiator, by memory.
    fn is_own_initiator(&self, lane: &Lane) -> bool {
        let qpn = lane.initiator.load(Ordering::Acquire) as u32;
        qpn & BY_PACKETS == 0 && self.owns_slot(layout::slot_of(qpn))
    }

    /// Cuts off initiators that stand still. Where the program goes on using memory that one of them may be writing to,
    /// in the shared heap, its pages are replaced by private copies, and the keys of other regions there lead peers to
    /// the copies.
    #[cold]
    fn cut_off(&self, mut stuck: Vec<Standing>) {
        // Those that another thread has cut off are waited for here, until it has parted their memory too.
        let _one_at_a_time = self.revocation.cutting.lock();
        let mut parted: Vec<Range<u64>> = Vec::new();
        loop {
            stuck.retain(|(gate, mark)| !gate.is_cut_off() && gate.stands(*mark));
            if stuck.is_empty() {
                break;
            }
            stuck.iter().for_each(|(gate, _)| gate.cut_off());
            barrier::heavy();
            for (gate, _) in &stuck {
                gate.lane.unaim();
                log_cut_off(gate.lane.initiator.load(Ordering::Relaxed) as u32);
                // It may have begun something else meanwhile, the last thing that it could begin.
                let mark = gate.mark();
                if mark & 1 == 1 {
                    self.revocation.suspects.lock().lanes.push((gate.lane, mark));
                }
            }
            let touched = stuck.iter().filter_map(|(gate, _)| self.keys.touched(gate.lane));
            let pages: Vec<_> = touched.filter(|memory| self.objects.in_heap(memory)).map(whole_pages).collect();
            if pages.is_empty() {
                break;
            }
            // Other initiators may be writing there rightfully, by the mapping that ends now. They finish, or are cut
            // off too, for their writes would be lost.
            self.keys.unshare(|host, len, _| pages.iter().any(|p| overlap(p, &(host..host.saturating_add(len)))));
            let there = |lane: &Lane| {
                let touched = self.keys.touched(lane);
                touched.is_some_and(|memory| pages.iter().any(|p| overlap(p, &memory)))
            };
            let lanes = self.initiators_inside(|lane| lane.cut_off.load(Ordering::SeqCst) == 0 && there(lane));
            parted.extend(pages.iter().cloned());
            stuck = self.those_stuck(lanes, PATIENCE_NS);
        }
        for pages in &parted {
            self.objects.part(pages);
        }
        if !parted.is_empty() {
            self.revocation.partings.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Takes back what peers were granted of the keys and by the QPs that `which` is true of; what was stored before
    /// keeps new grants away. Nothing more comes by them afterwards, but from peers that do not answer within
    /// `patience` nanoseconds: the program's memory is parted from what these may still write.
    pub(crate) fn take_back_grants(&self, which: impl Fn(u32, u32) -> bool, patience: u64) {
        let mut silent = self.grants.take_back(|grant| which(grant.key, grant.qpn), patience);
        if silent.is_empty() {
            return;
        }
        log::warn!("a peer does not answer: the memory that it was granted is taken from it");
        let _one_at_a_time = self.revocation.cutting.lock();
        let mut parted: Vec<Range<u64>> = Vec::new();
        while !silent.is_empty() {
            let pages: Vec<_> = silent.iter().map(|silent| whole_pages(silent.memory.clone())).collect();
            self.revocation.suspects.lock().silent.extend(silent);
            // Data that other peers put there rightfully must come by the ring.
            let is_there = |grant: &Grant| pages.iter().any(|pages| overlap(pages, &grant.memory));
            silent = self.grants.take_back(is_there, patience);
            parted.extend(pages);
        }
        parted.iter().for_each(|pages| self.objects.part(pages));
        self.revocation.partings.fetch_add(1, Ordering::SeqCst);
    }

    /// For [`Process::publish_key`]: to be asked before it is found out where the key leads.
    pub(crate) fn partings(&self) -> u64 {
        self.revocation.partings.load(Ordering::SeqCst)
    }

    /// Makes `key` good. If memory was parted since `partings` was asked, peers do not map what it leads to, for that
    /// may no longer be what the program sees.
    pub(crate) fn publish_key(&self, key: u32, mut named: Named, partings: u64) {
        let _not_cutting = self.revocation.cutting.lock();
        if self.partings() != partings && named.at >> OFFSET_BITS == u64::from(HEAP) {
            named.at = NOT_SHARED;
        }
        self.keys.write(key, &named);
    }

    /// Returns true if an initiator that was cut off may still store to the place at which it stopped.
    pub(crate) fn has_suspects(&self) -> bool {
        !self.revocation.suspects.lock().is_empty(self)
    }

    /// Memory for a CQ: CQs, too, are only made in memory of former CQs. A peer that has completed something there
    /// raises the event after its mark (`WakeCall`), and may stand still before that.
    pub(crate) fn cq_block(&self) -> Result<Block> {
        let old = if self.has_suspects() { None } else { self.revocation.cq_blocks.lock().pop() };
        old.map_or_else(|| self.arena.alloc(size_of::<CqShared>() as u64), Ok)
    }

    pub(crate) fn return_cq_block(&self, block: Block) {
        self.revocation.cq_blocks.lock().push(block);
    }

    /// Frees a block of the arena, later if a suspect may still touch it.
    pub(crate) fn release(&self, block: Block) {
        self.let_go(Some(block), None);
    }

    /// Ends a pin, later if a suspect may still touch the memory. The key that led there is revoked.
    pub(crate) fn unshare(&self, pin: Option<Pin>) {
        if pin.is_some() {
            self.let_go(None, pin);
        }
    }

    fn let_go(&self, mut block: Option<Block>, mut pin: Option<Pin>) {
        let mut s = self.revocation.suspects.lock();
        let (mut blocks, mut pins) = (Vec::new(), Vec::new());
        let free = s.is_empty(self);
        if free {
            blocks = std::mem::take(&mut s.parked);
            // Reverting adopted memory waits for everybody in flight, as only registration may.
            pins.extend(s.pins.extract_if(.., |parked| pin.is_some() || !parked.is_adopted()));
        } else {
            s.parked.extend(block.take());
            s.pins.extend(pin.take());
        }
        drop(s);
        blocks.into_iter().chain(block).for_each(|b| self.arena.release(b));
        for pin in pins.into_iter().chain(pin) {
            // Neighbours of adopted memory, in its first and last page, may be registered without being adopted.
            let gate = pin.is_adopted().then(|| self.close_gate());
            let (gone, adopted) = self.objects.unpin(pin);
            if let (Some(adopting), Some(adopted)) = (&self.adopting, adopted) {
                adopting.revert(adopted);
            }
            drop(gate);
            if let Some(gone) = gone {
                self.rendezvous.object_withdrawn(gone.number, gone.generation);
            }
        }
    }
}

fn whole_pages(memory: Range<u64>) -> Range<u64> {
    let page = page() as u64;
    memory.start & !(page - 1)..memory.end.next_multiple_of(page)
}

#[cold]
fn log_cut_off(qpn: u32) {
    log::warn!("QP {qpn:#x} of a stopped process was cut off: its memory access was revoked while it was in flight");
}
