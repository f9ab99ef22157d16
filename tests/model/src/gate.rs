//! The gate: an initiator that marks itself, looks whether it may come in and touches memory, against an owner who takes that
//! away (DESIGN decision 3).

use crate::arena::layout::{CqShared, KeyEntry, Lane, QpShared, Switch};
use crate::check::check;
use crate::cq::recv_ring::{Deliveries, RecvRing};
use crate::host::atomic::{Ordering, spin_loop};
use crate::host::barrier;
use crate::memory::Plain;
use crate::process::Process;
use crate::process::gate::{self, Gates, InFlight, LaneGate};
use crate::rq::{Receipt, RecvQueue};
use crate::thread;
use std::ops::Range;
use std::sync::Arc;
use vervain_iba::{QpState, Sge};

const PD: u32 = 1;
const BYTES: u64 = 8;
/// Where the two regions are in the owner's memory.
const PLACES: [u64; 2] = [0x1000, 0x2000];

/// A region of the owner: its key, and its memory.
struct Region {
    entry: &'static KeyEntry,
    key: u32,
    place: u64,
    memory: Plain,
}

impl Region {
    fn new(process: &'static Process, index: u32, place: u64) -> Arc<Region> {
        let region = Region { entry: process.place(), key: index << 8 | 7, place, memory: Plain::new() };
        region.name(region.key, place);
        Arc::new(region)
    }

    /// Other memory by the same key.
    fn same_key(&self) -> Region {
        Region { entry: self.entry, key: self.key, place: self.place, memory: Plain::new() }
    }

    /// Has `key` mean the memory at `place`.
    fn name(&self, key: u32, place: u64) {
        self.entry.iova.store(place, Ordering::Relaxed);
        self.entry.len.store(BYTES, Ordering::Relaxed);
        self.entry.host.store(place, Ordering::Relaxed);
        self.entry.domain.store(PD.into(), Ordering::Relaxed);
        self.entry.key.store(key.into(), Ordering::SeqCst);
    }

    /// Touches the memory, if the key is good. Inside the mark.
    fn touch(&self) -> bool {
        if self.entry.plain_offset(self.key, self.place, BYTES, 0, PD).is_none() {
            return false;
        }
        assert_eq!(self.entry.host.load(Ordering::Relaxed), self.place, "the key leads to other memory");
        self.memory.touch();
        true
    }

    /// The owner's program uses the memory.
    fn use_it(&self) {
        self.memory.touch();
    }
}

/// A QP, and one initiator's lane into it.
struct Target {
    qp: &'static QpShared,
    switch: &'static Switch,
    lane: &'static Lane,
    /// Kept as long as the lane, as its owner keeps it.
    _gate: Arc<LaneGate>,
}

impl Target {
    fn new(process: &'static Process, gates: &Gates, offset: u64) -> Arc<Target> {
        let (qp, switch, lane): (&QpShared, _, &Lane) = (process.place(), process.place(), process.place());
        qp.state.store(QpState::Rts as u32, Ordering::Relaxed);
        lane.open.store(1, Ordering::Relaxed);
        let gate = Arc::new(LaneGate::new(lane, offset));
        gates.add(&gate);
        Arc::new(Target { qp, switch, lane, _gate: gate })
    }

    fn enter(&self) -> Option<InFlight<'_>> {
        let mark = InFlight::begin(self.lane, &!barrier::is_registered());
        gate::is_open(self.lane, self.qp, self.switch).then_some(mark)
    }

    /// The fast path of a request, which names the memory before the mark.
    fn write_at_once(&self, region: &Region) {
        gate::name(self.lane, region.key, region.place);
        if let Some(_mark) = self.enter() {
            region.touch();
        }
    }

    /// The long way, which names each piece inside the mark.
    fn write_in_pieces(&self, regions: &[&Region]) {
        let Some(_mark) = self.enter() else { return };
        for region in regions {
            if !gate::name_next(self.lane, region.key, region.place, &!barrier::is_registered()) || !region.touch() {
                return;
            }
        }
    }
}

/// Those that may be inside where the caller has closed the way in.
fn inside(gates: &Gates, matter: impl Fn(&Lane) -> bool) -> Vec<Arc<LaneGate>> {
    barrier::heavy();
    gates.which(|lane| gate::in_flight(lane) && matter(lane))
}

/// Waits for those who are inside where the caller has closed the way in.
fn wait_until_left(gates: &Gates, matter: impl Fn(&Lane) -> bool) {
    let mut moving = gate::standing(inside(gates, matter));
    loop {
        moving.retain(|(gate, mark)| gate.stands(*mark));
        if moving.is_empty() {
            return;
        }
        spin_loop();
    }
}

fn names(region: &Region) -> impl Fn(&Lane) -> bool {
    let key = region.key;
    move |lane| lane.key.load(Ordering::SeqCst) >> 8 == key >> 8
}

/// Revokes the key and uses the memory, then lets the next key of the same index mean other memory.
fn revoke(gates: &Gates, region: &Region) {
    region.entry.key.store(0, Ordering::SeqCst);
    wait_until_left(gates, names(region));
    region.use_it();
    region.name(region.key + 1, region.place + 0x100);
}

/// After a key was revoked nobody touches its memory, and nobody who has seen it good reads what its entry says next.
pub fn nobody_touches_memory_whose_key_was_revoked(seeds: Range<u64>) {
    check("a revoked key", seeds, |process| {
        let gates = Gates::default();
        let target = Target::new(process, &gates, 0);
        let region = Region::new(process, 1, PLACES[0]);
        let initiator = thread::spawn({
            let (target, region) = (Arc::clone(&target), Arc::clone(&region));
            move || {
                target.write_at_once(&region);
                target.write_in_pieces(&[&region]);
            }
        });
        revoke(&gates, &region);
        initiator.join();
    });
}

/// The same with two initiators.
pub fn each_initiator_is_waited_for(seeds: Range<u64>) {
    check("two initiators", seeds, |process| {
        let gates = Gates::default();
        let region = Region::new(process, 1, PLACES[0]);
        let targets = [0, 1].map(|offset| Target::new(process, &gates, offset));
        // Each has memory of its own by the same key, for they may touch the same at the same time.
        let regions = targets.each_ref().map(|_| Arc::new(region.same_key()));
        let initiators = [0, 1].map(|i| {
            let (target, region) = (Arc::clone(&targets[i]), Arc::clone(&regions[i]));
            thread::spawn(move || target.write_at_once(&region))
        });
        region.entry.key.store(0, Ordering::SeqCst);
        wait_until_left(&gates, names(&region));
        regions.iter().for_each(|region| region.use_it());
        initiators.into_iter().for_each(|initiator| initiator.join());
    });
}

/// Who revokes a key waits for nobody who has gone on to other memory, and for everybody who has not.
pub fn a_name_moves_on_after_the_access(seeds: Range<u64>) {
    check("two regions", seeds, |process| {
        let gates = Gates::default();
        let target = Target::new(process, &gates, 0);
        let regions = [Region::new(process, 1, PLACES[0]), Region::new(process, 2, PLACES[1])];
        let initiator = thread::spawn({
            let (target, [a, b]) = (Arc::clone(&target), regions.clone());
            move || target.write_in_pieces(&[&a, &b])
        });
        regions.iter().for_each(|region| revoke(&gates, region));
        initiator.join();
    });
}

/// Closes the way in, waits, and has the program use the memory.
fn closed_by(seeds: Range<u64>, name: &str, close: impl Fn(&Target) + Send + Sync + 'static) {
    check(name, seeds, move |process| {
        let gates = Gates::default();
        let target = Target::new(process, &gates, 0);
        let region = Region::new(process, 1, PLACES[0]);
        let initiator = thread::spawn({
            let (target, region) = (Arc::clone(&target), Arc::clone(&region));
            move || {
                target.write_at_once(&region);
                target.write_in_pieces(&[&region]);
            }
        });
        close(&target);
        wait_until_left(&gates, |_| true);
        region.use_it();
        initiator.join();
    });
}

/// After the QP left its receiving states nobody is in flight on it.
pub fn nobody_is_inside_after_the_state_was_closed(seeds: Range<u64>) {
    closed_by(seeds, "a QP in ERR", |target| target.qp.state.store(QpState::Err as u32, Ordering::SeqCst));
}

/// After the lane was shut nobody is in flight on it.
pub fn nobody_is_inside_after_the_lane_was_shut(seeds: Range<u64>) {
    closed_by(seeds, "a lane that is shut", |target| target.lane.open.store(0, Ordering::SeqCst));
}

/// While the process is paused nobody is in flight.
pub fn nobody_is_inside_during_a_pause(seeds: Range<u64>) {
    closed_by(seeds, "a pause", |target| _ = target.switch.closed.fetch_add(1, Ordering::SeqCst));
}

/// An initiator that is cut off while it publishes: what counts for it the owner has found, and each receive ends once.
pub fn what_counts_for_the_initiator_is_found_by_who_cuts_it_off(seeds: Range<u64>) {
    check("cut off", seeds, |process| {
        let gates = Gates::default();
        let target = Target::new(process, &gates, 0);
        let cq: &CqShared = process.place();
        let rq = Arc::new(RecvQueue::create(process, PD, 1, 1, false).unwrap());
        rq.post(11, &[]).unwrap();
        let (ring, held, cqes, held_cqes) = process.lane_rings(1);
        let owned = RecvRing::new(target.lane, ring, Some(cqes), Arc::clone(&rq), 3, true, None);
        let initiator = thread::spawn({
            let (target, rq) = (Arc::clone(&target), rq.view.clone());
            move || {
                let Some(_mark) = target.enter() else { return false };
                let Some(index) = rq.claim(5) else { return false };
                if gate::is_cut_off(target.lane) {
                    return false;
                }
                let (cqes, full_barrier) = (Some(&held_cqes), &!barrier::is_registered());
                let deliveries = Deliveries { lane: target.lane, ring: &held, cqes, cq, full_barrier };
                deliveries.push(&rq, index, rq.wqe(index).unwrap(), &Receipt::default(), None);
                gate::counts(target.lane)
            }
        });
        target.qp.state.store(QpState::Err as u32, Ordering::SeqCst);
        // Its time may be over at any step that it is at.
        let stuck = gate::standing(inside(&gates, |_| true));
        stuck.iter().for_each(|(gate, _)| gate.cut_off());
        barrier::heavy();
        let mut ended = Vec::new();
        owned.take(usize::MAX, &mut |c| ended.push(c.wr_id));
        let delivered = ended.len();
        ended.extend(rq.flush());
        assert_eq!(ended, [11], "a receive ends once");
        let counts = initiator.join();
        assert!(!counts || delivered == 1, "the initiator has success, and the receive was flushed");
    });
}

/// A message that stands in its completion while the key of its receive is revoked: when that is over it lies in the memory, if it
/// was delivered at all, and whoever polls does not put it there again.
pub fn what_was_delivered_lies_in_memory_whose_key_was_revoked(seeds: Range<u64>) {
    check("delivered in a completion", seeds, |process| {
        let gates = Gates::default();
        let (target, region) = (Target::new(process, &gates, 0), Region::new(process, 1, PLACES[0]));
        let cq: &CqShared = process.place();
        let rq = Arc::new(RecvQueue::create(process, PD, 2, 1, false).unwrap());
        rq.post(0, &[Sge { addr: region.place, length: BYTES as u32, lkey: region.key }]).unwrap();
        let (ring, held, cqes, held_cqes) = process.lane_rings(2);
        let owned = RecvRing::new(target.lane, ring, Some(cqes), Arc::clone(&rq), 3, true, None);
        let initiator = thread::spawn({
            let (target, rq, region) = (Arc::clone(&target), rq.view.clone(), Arc::clone(&region));
            move || {
                let Some(_mark) = target.enter() else { return false };
                let Some(index) = rq.claim(5) else { return false };
                if !gate::name_next(target.lane, region.key, region.place, &!barrier::is_registered())
                    || region.entry.plain_offset(region.key, region.place, BYTES, 0, PD).is_none()
                {
                    return false;
                }
                let (cqes, full_barrier) = (Some(&held_cqes), &!barrier::is_registered());
                let deliveries = Deliveries { lane: target.lane, ring: &held, cqes, cq, full_barrier };
                let receipt = Receipt { byte_len: BYTES as u32, ..Receipt::default() };
                deliveries.push(&rq, index, rq.wqe(index).unwrap(), &receipt, Some(&[5; 7]));
                true
            }
        });
        let mut taken = owned.take(1, &mut |_| ());
        region.entry.key.store(0, Ordering::SeqCst);
        barrier::heavy();
        wait_until_left(&gates, names(&region));
        if owned.is_ready() {
            owned.scatter_waiting(region.key);
        }
        let in_memory = process.keys.take_scattered();
        taken += owned.take(1, &mut |_| ());
        let delivered = initiator.join();
        assert_eq!(taken, usize::from(delivered), "completions");
        assert_eq!(in_memory, [(region.place, 5)][..taken], "what lies in the memory");
        assert_eq!(process.keys.take_scattered(), [], "put there after the memory was taken back");
    });
}
