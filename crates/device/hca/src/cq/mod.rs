//! Completion queues. Completions lie in the rings of those that made them (`completion`): the lanes of initiators, and
//! one ring for each QP's own work. They are merged when the program polls.

pub mod channel;
pub(crate) mod completion;
pub(crate) mod facts;
pub(crate) mod notify;
pub mod peer_events;
pub(crate) mod recv_ring;
pub(crate) mod rings;
pub mod saved;
pub(crate) mod send_ring;

use crate::arena::Block;
use crate::arena::layout::{CqShared, watch};
use crate::context::Context;
use crate::cq::channel::CompChannel;
use crate::cq::completion::{Source, set_ready, watched};
use crate::cq::notify::SinceEvent;
use crate::cq::recv_ring::RecvRing;
use crate::cq::rings::Rings;
use crate::cq::send_ring::SendRing;
use crate::device::port_counters::{Counted, Word};
use crate::error::{Error, Result};
use crate::host::clock::hca_clock_ns;
use crate::host::clock::now_ns;
use crate::host::lock::{OwnerGuard, OwnerLock};
use crate::host::signals::SignalsHeld;
use crate::host::tid;
use crate::host::yield_policy::{Courtesy, offer_cpu};
use crate::process::Process;
use crate::process::doorbell::{Attend, Looked, Looker};
use crate::process::send_work::{SendWork, is_same};
use crate::reasons;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use vervain_iba::{Completion, event};

/// A QP whose completions come to a CQ.
pub(crate) trait Reports: Send + Sync {
    /// The CQ has overrun: the QP goes to ERR, and says so (IBA 11.6.3.3).
    fn cq_has_failed(&self);
}

/// A completion queue.
pub struct Cq {
    pub(crate) context: Arc<Context>,
    pub(crate) process: &'static Process,
    pub(crate) shared: &'static CqShared,
    block: OwnerLock<Option<Block>>,
    queue: OwnerLock<Queue>,
    channel: Option<Arc<CompChannel>>,
    cookie: AtomicUsize,
    pub(crate) events: Arc<crate::context::async_events::EventCount>,
    /// QPs and SRQs that report here.
    pub(crate) users: AtomicU32,
    ignore_overrun: bool,
    failed: AtomicBool,
    /// [`watch::COUNT`] is set. Changes under the queue's lock.
    counts: AtomicBool,
    timestamps: bool,
    /// The QPs to put into ERR when it overruns, by QP number.
    reporting: OwnerLock<BTreeMap<u32, Weak<dyn Reports>>>,
    /// Send queues that hold work which polling has to advance.
    pending: OwnerLock<Vec<Arc<dyn SendWork>>>,
    pending_count: AtomicU32,
    pub(crate) channel_id: u32,
    _counted: Counted,
}

struct Queue {
    /// Flushed receives, and what lanes that were closed had delivered before.
    local: VecDeque<Completion>,
    /// Rings of QPs whose receives are flushed in `local`, and up to which completion they come before it.
    before_local: Vec<(Arc<SendRing>, u32)>,
    rings: Rings,
    courtesy: Courtesy,
    since_event: SinceEvent,
    /// Completions that the send and receive queues reporting here can make at once.
    bound: u64,
    /// The number of QPs that report the receives of each shared queue here.
    shared_queues: HashMap<usize, u32>,
}

impl Queue {
    fn new(shared: &'static CqShared) -> Queue {
        Queue {
            local: VecDeque::new(),
            before_local: Vec::new(),
            rings: Rings::new(shared),
            courtesy: Courtesy::default(),
            since_event: SinceEvent::default(),
            bound: 0,
            shared_queues: HashMap::new(),
        }
    }

    /// Has the next polls take what lies in `ring` before what is in the own queue.
    fn put_before_local(&mut self, ring: &Arc<SendRing>) {
        self.before_local.retain(|(r, _)| !Arc::ptr_eq(r, ring));
        self.before_local.push((Arc::clone(ring), ring.produced()));
        self.rings.aside = true;
    }
}

impl Cq {
    /// A completion queue of at least `cqe` entries (`man ibv_create_cq`). `timestamps` makes completions carry the
    /// time at which they were made.
    pub fn create(
        context: &Arc<Context>,
        cqe: u32,
        channel: Option<&Arc<CompChannel>>,
        comp_vector: u32,
        cookie: usize,
        ignore_overrun: bool,
        timestamps: bool,
    ) -> Result<Arc<Cq>> {
        if comp_vector >= crate::device::LIMITS.cq.comp_vectors {
            return Err(Error::invalid(format!("there is no completion vector {comp_vector}")));
        }
        let process = context.process()?;
        channel.map_or(Ok(()), |channel| channel.check())?;
        process.attention.check_room()?;
        let capacity = capacity_for(cqe)?;
        let block = process.cq_block()?;
        let shared = process.arena.view().get::<CqShared>(block.offset()).expect("just allocated");
        clear(shared);
        shared.capacity.store(u64::from(capacity), Ordering::Relaxed);
        shared.timestamps.store(u32::from(timestamps), Ordering::Relaxed);
        let cq = Arc::new_cyclic(|weak: &Weak<Cq>| {
            let channel_id = channel.map_or(0, |c| c.register(weak.clone()));
            shared.event.store(channel_id, Ordering::Relaxed);
            shared.channel.store(channel.map_or(0, |c| c.number), Ordering::Relaxed);
            shared.attention.store(process.attention.add(weak.clone()), Ordering::Relaxed);
            Cq {
                context: Arc::clone(context),
                process,
                shared,
                block: OwnerLock::new(Some(block)),
                queue: OwnerLock::new(Queue::new(shared)),
                channel: channel.cloned(),
                cookie: AtomicUsize::new(cookie),
                events: Arc::default(),
                users: AtomicU32::new(0),
                ignore_overrun,
                failed: AtomicBool::new(false),
                counts: AtomicBool::new(false),
                timestamps,
                reporting: OwnerLock::default(),
                pending: OwnerLock::default(),
                pending_count: AtomicU32::new(0),
                channel_id,
                _counted: Counted::new(Word::Cqs, context.device()),
            }
        });
        if let Some(channel) = channel {
            channel.users.fetch_add(1, Ordering::Relaxed);
        }
        Ok(cq)
    }

    /// Offset of the shared part.
    pub(crate) fn offset(&self) -> u64 {
        self.block.lock().as_ref().map_or(0, Block::offset)
    }

    /// Completions that fit.
    pub fn cqe(&self) -> u32 {
        self.shared.capacity.load(Ordering::Relaxed) as u32
    }

    pub(crate) fn has_timestamps(&self) -> bool {
        self.timestamps
    }

    /// The program's cookie.
    pub fn cookie(&self) -> usize {
        self.cookie.load(Ordering::Relaxed)
    }

    /// Changes the cookie.
    pub fn set_cookie(&self, cookie: usize) {
        self.cookie.store(cookie, Ordering::Relaxed);
    }

    /// The channel that gets its events.
    pub fn channel(&self) -> Option<&Arc<CompChannel>> {
        self.channel.as_ref()
    }

    // ---- producing -------------------------------------------------------------------------------------------------

    /// A completion of the process's own work was pushed into its ring, and the CQ asked to be told.
    #[cold]
    #[inline(never)]
    pub(crate) fn tell(&self, solicited_or_error: bool) {
        let news = watched(self.shared);
        if news.overrun && !self.ignore_overrun {
            // The caller holds a send queue; the progress thread breaks the news.
            self.shared.overrun.store(1, Ordering::SeqCst);
            self.process.own.raise(self.shared.attention.load(Ordering::Relaxed));
        }
        if news.event {
            crate::cq::notify::fire(self.shared, solicited_or_error, || self.raise_event());
        }
    }

    /// Adds a completion that has no ring: a flushed receive.
    pub(crate) fn push(&self, mut completion: Completion) {
        if self.timestamps {
            completion.timestamp = hca_clock_ns();
        }
        let error = completion.status != vervain_iba::Status::Success.to_verbs();
        {
            let mut q = self.queue.lock();
            let capacity = self.shared.capacity.load(Ordering::Relaxed);
            let local = q.local.len() as u64;
            // The rings are added up only where they could make the difference.
            if local + q.bound >= capacity && local + q.rings.pending() >= capacity && !self.ignore_overrun {
                drop(q);
                self.shared.overrun.store(1, Ordering::SeqCst);
                self.process.own.raise(self.shared.attention.load(Ordering::Relaxed));
                return;
            }
            // A post or a poll may be under way.
            let _held = (q.local.len() == q.local.capacity()).then(SignalsHeld::begin);
            q.local.push_back(completion);
            q.rings.aside = true;
            self.shared.local.store(local + 1, Ordering::Relaxed);
        }
        if self.shared.watch.load(Ordering::SeqCst) & watch::EVENTS != 0 {
            crate::cq::notify::fire(self.shared, error, || self.raise_event());
        }
    }

    /// After an initiator has died: raises the event that it may not have raised.
    pub(crate) fn rescue(&self) {
        let q = self.queue.lock();
        let waiting = !q.local.is_empty() || q.rings.pending() > 0;
        drop(q);
        crate::cq::notify::rescue(self.shared, waiting, || self.raise_event());
    }

    /// QP `qpn` reports here.
    pub(crate) fn add_reporting(&self, qpn: u32, qp: Weak<dyn Reports>) {
        self.reporting.lock().insert(qpn, qp);
    }

    /// It no longer does.
    pub(crate) fn remove_reporting(&self, qpn: u32) {
        self.reporting.lock().remove(&qpn);
    }

    /// Queues that report here can make `n` more completions, of a queue that is shared under `key` if that is given.
    pub(crate) fn expect(&self, n: u64, key: Option<usize>) {
        let mut q = self.queue.lock();
        if let Some(key) = key {
            let users = q.shared_queues.entry(key).or_default();
            *users += 1;
            if *users > 1 {
                return;
            }
        }
        q.bound += n;
        drop(q);
        self.count_if_needed();
    }

    /// Queues that reported here and made at most `n` completions do so no longer, see [`Cq::expect`].
    pub(crate) fn expect_no_more(&self, n: u64, key: Option<usize>) {
        let mut q = self.queue.lock();
        if let Some(key) = key
            && let Some(users) = q.shared_queues.get_mut(&key)
        {
            *users -= 1;
            if *users > 0 {
                return;
            }
            q.shared_queues.remove(&key);
        }
        q.bound = q.bound.saturating_sub(n);
    }

    /// A CQ that is as large as all queues that report to it cannot overrun, so completions are not counted. For any
    /// other, each completion is counted from now on.
    fn count_if_needed(&self) {
        let is_needed = |q: &Queue| q.bound > self.shared.capacity.load(Ordering::Relaxed);
        let counts = || self.counts.load(Ordering::Relaxed);
        if counts() || !is_needed(&self.queue.lock()) {
            return;
        }
        // No completion is published here while the count begins.
        let gate = self.process.close_gate_where(|lane| lane.leads_to.cq.load(Ordering::Relaxed) == self.offset());
        let q = self.queue.lock();
        if !counts() {
            self.shared.consumed.store(0, Ordering::Relaxed);
            self.shared.produced.store(q.rings.pending(), Ordering::Relaxed);
            self.counts.store(true, Ordering::Relaxed);
            self.shared.watch.fetch_or(watch::COUNT, Ordering::SeqCst);
        }
        drop(q);
        drop(gate);
    }

    /// While this is held, counting does not begin, and nobody polls.
    pub(crate) fn hold_count(&self) -> impl Drop {
        self.queue.lock()
    }

    /// Puts an event into the completion channel.
    pub fn raise_event(&self) {
        if let Some(channel) = &self.channel {
            channel.post(self.channel_id);
        }
    }

    /// More completions than fit: the CQ is in error, and so is every QP that reports here (IBA 11.6.3.3).
    #[cold]
    pub(crate) fn overrun(&self) {
        if self.ignore_overrun || self.failed.swap(true, Ordering::AcqRel) {
            return;
        }
        let reporting: Vec<_> =
            self.reporting.lock().iter().filter_map(|(qpn, qp)| Some((*qpn, qp.upgrade()?))).collect();
        let numbers: Vec<_> = reporting.iter().map(|(qpn, _)| format!("{qpn:#x}")).collect();
        let entries = self.shared.capacity.load(Ordering::Relaxed);
        let (qps, are) = if numbers.len() == 1 { ("QP", "is") } else { ("QPs", "are") };
        reasons::tell(format_args!(
            "CQ overrun: more than its {entries} entries; {qps} {} {are} now in ERR",
            numbers.join(", ")
        ));
        // A program that reads the event must find the QPs in ERR.
        reporting.iter().for_each(|(_, qp)| qp.cq_has_failed());
        self.context.raise(event::CQ_ERR, crate::context::async_events::Element::Cq(self.cookie()), &self.events);
    }

    /// Returns true if it overran.
    pub fn failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    // ---- rings -----------------------------------------------------------------------------------------------------

    /// The ready bit for one more ring.
    pub(crate) fn next_ready_bit(&self) -> u32 {
        self.queue.lock().rings.next_ready_bit()
    }

    /// Has the next poll look at the rings of `ready_bit`: a producer that was about to set the bit may have died
    /// before it did.
    pub(crate) fn look_at(&self, ready_bit: u32) {
        set_ready(self.shared, ready_bit);
    }

    pub(crate) fn add_source(&self, source: Source) {
        self.queue.lock().rings.add(source);
    }

    pub(crate) fn remove_source(&self, source: &Source) {
        let mut q = self.queue.lock();
        // Completions that are left in it will not be polled.
        self.count_consumed(source.pending() as usize);
        source.discard();
        q.rings.remove(source);
    }

    /// Moves what the initiator behind `ring` has published into the own queue, so that flushes come after it.
    pub(crate) fn settle(&self, ring: &RecvRing) {
        let _held = SignalsHeld::begin();
        let mut q = self.queue.lock();
        let n = ring.settle(&mut |c| q.local.push_back(*c));
        ring.sends().filter(|_| n > 0).iter().for_each(|sends| q.put_before_local(sends));
        q.rings.aside |= n > 0;
        self.count_consumed(n);
        self.shared.local.store(q.local.len() as u64, Ordering::Relaxed);
    }

    /// Has the next polls take what lies in `ring` before what is pushed from now on: the error that moved a QP to ERR
    /// comes before the flushed receives of that QP, as from an adapter, whose CQ is one queue.
    pub(crate) fn sends_first(&self, ring: &Arc<SendRing>) {
        if ring.pending() == 0 {
            return;
        }
        let _held = SignalsHeld::begin();
        self.queue.lock().put_before_local(ring);
    }

    #[inline]
    fn count_consumed(&self, n: usize) {
        if self.counts.load(Ordering::Relaxed) {
            let consumed = &self.shared.consumed;
            consumed.store(consumed.load(Ordering::Relaxed).wrapping_add(n as u64), Ordering::Relaxed);
        }
    }

    // ---- polling ---------------------------------------------------------------------------------------------------

    /// Hands up to `max` completions to `sink`, oldest first per QP; returns how many. `man ibv_poll_cq`.
    #[inline]
    pub fn poll(&self, max: usize, sink: &mut impl FnMut(&Completion)) -> usize {
        if self.pending_count.load(Ordering::Relaxed) != 0 {
            self.advance_pending();
        }
        let mut guard = self.queue.lock();
        let n = self.take(&mut guard, max, sink);
        if n == 0 {
            return self.polled_in_vain(guard, max, sink);
        }
        drop(guard);
        if !self.process.packets.are_expected() {
            return n;
        }
        if n < max {
            self.process.packets.sleeper().left_empty();
        }
        if self.process.packets.count_look() {
            // Unacknowledged sends of the program complete at once, so that it may never poll an empty CQ.
            self.process.poll_packets();
        }
        n
    }

    #[inline(always)]
    fn take(&self, q: &mut Queue, max: usize, sink: &mut impl FnMut(&Completion)) -> usize {
        if q.since_event.polled() {
            self.look_at_requests(q);
        }
        let n = if q.rings.aside {
            self.poll_aside(q, max, sink)
        } else {
            q.rings.poll(0, max, sink, |got| self.count_consumed(got))
        };
        if n > 0 {
            q.courtesy.found();
            tid::count_found();
        }
        n
    }

    /// Decides from values at hand if there is anything to do now, and calls nothing: most polls are empty.
    #[cold]
    #[inline(never)]
    fn polled_in_vain(
        &self,
        mut queue: OwnerGuard<'_, Queue>,
        max: usize,
        sink: &mut impl FnMut(&Completion),
    ) -> usize {
        let is_time = queue.courtesy.in_vain(tid::known());
        let wants_packets = self.process.packets.are_expected() && self.process.packets.should_poll();
        if is_time || wants_packets || self.process.own.wants_attention() {
            return self.look_around(queue, is_time, wants_packets, max, sink);
        }
        0
    }

    /// Does what there is time for now, and polls once more where that may have brought something: after others may
    /// have had the CPU, for milliseconds perhaps, and after packets have come (who polls makes progress,
    /// `docs/roce-link.md`). Peers may have completed all they had to while others had the CPU, and be gone: a program
    /// that were told of nothing, and then of a disconnection, would take what it waits for as lost.
    #[cold]
    #[inline(never)]
    fn look_around(
        &self,
        mut queue: OwnerGuard<'_, Queue>,
        is_time: bool,
        wants_packets: bool,
        max: usize,
        sink: &mut impl FnMut(&Completion),
    ) -> usize {
        let is_due = is_time && queue.courtesy.look(tid::found(), now_ns());
        drop(queue);
        if self.process.own.wants_attention() {
            self.process.attention.attend_from_poll(&self.process.own);
        }
        if is_due {
            self.offer_cpu();
        }
        let has_packets = wants_packets && self.process.poll_packets();
        // Also where nobody seems to have had the CPU: two switches may take less time than can be told from none.
        if !is_due && !has_packets {
            return 0;
        }
        if self.pending_count.load(Ordering::Relaxed) != 0 {
            self.advance_pending();
        }
        self.take(&mut self.queue.lock(), max, sink)
    }

    #[cold]
    #[inline(never)]
    fn look_at_requests(&self, q: &mut Queue) {
        if q.since_event.look(tid::found()) {
            crate::cq::notify::forget(self.shared);
        }
    }

    #[cold]
    #[inline(never)]
    fn offer_cpu(&self) {
        let crowded = self.queue.lock().courtesy.is_crowded();
        let away = offer_cpu(crowded);
        self.queue.lock().courtesy.returned(away);
    }

    /// Polls the sources before the watched rings: the own queue with the rings that precede it, and now and then the
    /// rings that are not watched.
    #[cold]
    #[inline(never)]
    fn poll_aside(&self, q: &mut Queue, max: usize, sink: &mut impl FnMut(&Completion)) -> usize {
        let mut n = 0;
        q.before_local.retain(|(ring, until)| {
            let got = ring.take(ring.pending_until(*until).min(max - n), sink);
            self.count_consumed(got);
            n += got;
            ring.pending_until(*until) > 0
        });
        if q.before_local.is_empty() {
            let rest = q.local.len().min(max - n);
            q.local.drain(..rest).for_each(|c| sink(&c));
            n += rest;
        }
        self.shared.local.store(q.local.len() as u64, Ordering::Relaxed);
        q.rings.aside = !q.local.is_empty() || !q.before_local.is_empty();
        n = q.rings.poll_ready(n, max, sink, |got| self.count_consumed(got));
        if n < max { q.rings.poll(n, max, sink, |got| self.count_consumed(got)) } else { n }
    }

    // ---- send queues that wait -------------------------------------------------------------------------------------

    pub(crate) fn add_pending(&self, work: Arc<dyn SendWork>) {
        self.pending.lock().push(work);
        self.pending_count.fetch_add(1, Ordering::Release);
    }

    #[cold]
    #[inline(never)]
    fn advance_pending(&self) {
        let all: Vec<Arc<dyn SendWork>> = match self.pending.try_lock() {
            Some(p) => p.clone(),
            None => return,
        };
        for work in all {
            work.advance_if_free();
            self.drop_if_idle(&*work);
        }
    }

    pub(crate) fn drop_if_idle(&self, work: &dyn SendWork) {
        if work.has_pending() {
            return;
        }
        let mut pending = self.pending.lock();
        if let Some(i) = pending.iter().position(|p| is_same(&**p, work))
            && work.clear_listed()
        {
            pending.swap_remove(i);
            self.pending_count.fetch_sub(1, Ordering::Release);
        }
    }

    // ---- the rest --------------------------------------------------------------------------------------------------

    /// Asks for an event at the next completion, or the next solicited one (`man ibv_req_notify_cq`). A request for any
    /// completion is not weakened by a later one for solicited ones.
    ///
    /// After an event, programs ask for the next one and then poll. UCX polls, asks and sleeps: for it what has come
    /// between the two is an event, as it is with ConnectX, which learns with the request how far the program has
    /// polled.
    pub fn req_notify(&self, solicited_only: bool) -> Result<()> {
        let is_untold = {
            let mut guard = self.queue.lock();
            let Queue { since_event, local, rings, .. } = &mut *guard;
            let holds = || !local.is_empty() || rings.hold_any();
            crate::cq::notify::ask(self.shared, solicited_only, |armed| since_event.is_untold(armed, holds))
        };
        if is_untold {
            crate::cq::notify::fire(self.shared, false, || self.raise_event());
        }
        self.process.packets.sleeper().asked();
        if self.pending_count.load(Ordering::Relaxed) != 0 {
            // The program is about to sleep; from now on the progress thread does the work.
            self.process.hand_over();
        }
        Ok(())
    }

    /// The program has got an event of this queue.
    pub(crate) fn event_got(&self) {
        self.queue.lock().since_event.event_got();
    }

    /// Changes the capacity; EINVAL when it is out of range or smaller than what waits (`man ibv_resize_cq`).
    pub fn resize(&self, cqe: u32) -> Result<()> {
        let capacity = capacity_for(cqe)?;
        let q = self.queue.lock();
        if q.rings.pending() + q.local.len() as u64 > u64::from(capacity) {
            return Err(Error::invalid("the completion queue holds more completions than the new size"));
        }
        self.shared.capacity.store(u64::from(capacity), Ordering::Relaxed);
        drop(q);
        self.count_if_needed();
        Ok(())
    }

    /// Drops what the QP `qpn` reported and the program has not polled (destroy and reset of a QP). The caller holds
    /// its send queue, whose ring is `ring`.
    pub(crate) fn purge(&self, qpn: u32, ring: Option<&SendRing>) {
        let mut q = self.queue.lock();
        q.local.retain(|c| c.qp_num != qpn);
        self.shared.local.store(q.local.len() as u64, Ordering::Relaxed);
        if let Some(ring) = ring {
            self.count_consumed(ring.pending() as usize);
            ring.clear();
            q.before_local.retain(|(r, _)| !std::ptr::eq(&**r, ring));
        }
    }

    /// Acknowledges an async event about this CQ.
    pub fn ack_async_event(&self) {
        self.events.ack();
    }

    /// Acknowledges `n` events.
    pub fn ack_events(&self, n: u32) {
        self.events.ack_completions(n);
    }

    /// Destroys it; EBUSY while QPs or SRQs use it. Waits until every reported event was acknowledged.
    pub fn destroy(&self) -> Result<()> {
        if !self.process.is_current() {
            return Ok(());
        }
        let users = self.users.load(Ordering::Acquire);
        if users != 0 {
            return Err(Error::busy(format!("QPs and SRQs report to the completion queue: {users}")));
        }
        self.context.forget_events(&self.events);
        self.events.wait();
        if let Some(channel) = &self.channel {
            channel.unregister(self.channel_id);
            channel.users.fetch_sub(1, Ordering::Relaxed);
        }
        self.events.wait_completions();
        self.process.attention.remove(self.shared.attention.load(Ordering::Relaxed));
        Ok(())
    }
}

impl Drop for Cq {
    /// The last holder lets the shared words go: lanes and the progress thread may have used them until now.
    fn drop(&mut self) {
        if self.process.is_current()
            && let Some(block) = self.block.lock().take()
        {
            self.process.return_cq_block(block);
        }
    }
}

/// Makes the words of an old CQ those of a new one.
fn clear(cq: &CqShared) {
    for word in [&cq.watch, &cq.armed, &cq.notify, &cq.overrun] {
        word.store(0, Ordering::Relaxed);
    }
    for word in [&cq.produced, &cq.consumed, &cq.local, &cq.summary].into_iter().chain(&cq.ready) {
        word.store(0, Ordering::Relaxed);
    }
}

/// Capacity as hardware rounds it: a power of two less one. EINVAL for none or more than max_cqe.
fn capacity_for(cqe: u32) -> Result<u32> {
    if cqe == 0 || cqe > crate::device::LIMITS.cq.max_cqe {
        return Err(Error::invalid(format!(
            "a completion queue of {cqe} entries; 1 to {} are possible",
            crate::device::LIMITS.cq.max_cqe
        )));
    }
    Ok(((cqe + 1).next_power_of_two() - 1).min(crate::device::LIMITS.cq.max_cqe))
}

impl Attend for Cq {
    /// Handles the requests of peers: an event, or notice of an overrun.
    fn attend(&self, by: Looker) -> Looked {
        if by == Looker::Poll {
            return Looked::NotHere;
        }
        if self.shared.notify.swap(0, Ordering::SeqCst) != 0 {
            self.raise_event();
        }
        if self.shared.overrun.swap(0, Ordering::SeqCst) != 0 {
            self.overrun();
        }
        Looked::Done
    }
}
