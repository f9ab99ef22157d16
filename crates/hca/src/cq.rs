//! Completion queues. Completions of the process's own work go into a queue of its own; receive completions lie in the
//! lanes of the initiators that made them and are merged when the program polls, found by a bitmap of ready lanes.

use crate::arena::Block;
use crate::attention::Attention;
use crate::channel::CompChannel;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::lane::OwnedLane;
use crate::layout::{CqShared, READY_BITS, arm};
use crate::lock::OwnerLock;
use crate::process::Process;
use crate::qp::Qp;
use crate::space::bits;
use crate::types::{Completion, event, hca_clock_ns};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// Empty looks at a hot lane before it goes back to being found by its ready bit.
const COOL_AFTER: u32 = 256;
/// Polls in vain before the thread offers its CPU to others; some ten microseconds.
const PATIENT_POLLS: u32 = 512;
/// Lanes that are looked at directly, without their ready bit being cleared and set for each completion.
const HOT_LANES: usize = 8;

/// A completion queue.
pub struct Cq {
    pub(crate) context: Arc<Context>,
    pub(crate) process: &'static Process,
    shared: &'static CqShared,
    block: OwnerLock<Option<Block>>,
    queue: OwnerLock<Queue>,
    channel: Option<Arc<CompChannel>>,
    cookie: AtomicUsize,
    pub(crate) events: Arc<crate::channel::EventCount>,
    /// QPs and SRQs that report here.
    pub(crate) users: AtomicU32,
    ignore_overrun: bool,
    failed: AtomicBool,
    timestamps: bool,
    /// QPs whose send queues hold work that polling has to advance.
    pending: OwnerLock<Vec<Arc<Qp>>>,
    pending_count: AtomicU32,
    pub(crate) channel_id: u32,
}

#[derive(Default)]
struct Queue {
    local: VecDeque<Entry>,
    lanes: Vec<Vec<Arc<OwnedLane>>>,
    hot: Vec<(Arc<OwnedLane>, u32)>,
    next_bit: u32,
    empty_polls: u32,
    first_hot: usize,
}

struct Entry {
    completion: Completion,
    /// Where to note that the program has seen this send completion, and what.
    freed: Option<Freed>,
}

/// The count of send WQEs that a polled completion gives back to its QP.
#[derive(Clone, Copy)]
pub(crate) struct Freed {
    pub(crate) cell: &'static AtomicU32,
    pub(crate) count: u32,
}

impl Cq {
    pub(crate) fn create(
        context: &Arc<Context>,
        cqe: u32,
        channel: Option<&Arc<CompChannel>>,
        cookie: usize,
        ignore_overrun: bool,
        timestamps: bool,
    ) -> Result<Arc<Cq>> {
        let process = context.process;
        process.attention.check_room()?;
        let capacity = capacity_for(cqe)?;
        let block = process.arena.alloc(size_of::<CqShared>() as u64)?;
        let shared = process.arena.view().get::<CqShared>(block.offset()).expect("just allocated");
        shared.capacity.store(u64::from(capacity), Ordering::Relaxed);
        shared.timestamps.store(u32::from(timestamps), Ordering::Relaxed);
        let cq = Arc::new_cyclic(|weak: &Weak<Cq>| {
            let channel_id = channel.map_or(0, |c| c.register(weak.clone()));
            shared.event.store(channel_id, Ordering::Relaxed);
            shared.channel.store(channel.map_or(0, |c| c.number), Ordering::Relaxed);
            shared.attention.store(process.attention.add(Attention::Cq(weak.clone())), Ordering::Relaxed);
            Cq {
                context: Arc::clone(context),
                process,
                shared,
                block: OwnerLock::new(Some(block)),
                queue: OwnerLock::default(),
                channel: channel.cloned(),
                cookie: AtomicUsize::new(cookie),
                events: Arc::default(),
                users: AtomicU32::new(0),
                ignore_overrun,
                failed: AtomicBool::new(false),
                timestamps,
                pending: OwnerLock::default(),
                pending_count: AtomicU32::new(0),
                channel_id,
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

    /// Adds a completion of the process's own work. `freed` is told `count` once the program has polled it.
    #[inline]
    pub(crate) fn push(&self, mut completion: Completion, freed: Option<Freed>, solicited: bool) {
        if self.timestamps {
            completion.timestamp = hca_clock_ns();
        }
        let error = completion.status != crate::types::wc::SUCCESS;
        {
            let mut q = self.queue.lock();
            let waiting = self
                .shared
                .produced
                .load(Ordering::Relaxed)
                .saturating_sub(self.shared.consumed.load(Ordering::Relaxed));
            if waiting.saturating_add(q.local.len() as u64) >= self.shared.capacity.load(Ordering::Relaxed)
                && !self.ignore_overrun
            {
                drop(q);
                // The caller holds a send queue; the progress thread breaks the news.
                self.shared.overrun.store(1, Ordering::SeqCst);
                self.process.own.raise(self.shared.attention.load(Ordering::Relaxed));
                return;
            }
            q.local.push_back(Entry { completion, freed });
            self.shared.local.store(q.local.len() as u64, Ordering::Relaxed);
        }
        self.notify(solicited || error);
    }

    #[inline]
    fn notify(&self, solicited_or_error: bool) {
        if self.shared.armed.load(Ordering::SeqCst) != arm::NONE {
            crate::arm::fire(self.shared, solicited_or_error, || self.raise_event());
        }
    }

    /// An initiator has died: tells the program of what it may have told nobody.
    pub(crate) fn rescue(&self) {
        let s = self.shared;
        let remote = s.produced.load(Ordering::SeqCst) != s.consumed.load(Ordering::Relaxed);
        crate::arm::rescue(s, remote || s.local.load(Ordering::Relaxed) != 0, || self.raise_event());
    }

    /// Puts an event into the completion channel.
    pub(crate) fn raise_event(&self) {
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
        self.context.raise(event::CQ_ERR, crate::channel::Element::Cq(self.cookie()), &self.events);
        self.process.fail_users_of(self);
    }

    /// Whether it overran.
    pub fn failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// What peers asked for: an event, or notice of an overrun.
    pub(crate) fn attend(&self) {
        if self.shared.notify.swap(0, Ordering::SeqCst) != 0 {
            self.raise_event();
        }
        if self.shared.overrun.swap(0, Ordering::SeqCst) != 0 {
            self.overrun();
        }
    }

    // ---- lanes -----------------------------------------------------------------------------------------------------

    /// The ready bit for one more lane.
    pub(crate) fn next_ready_bit(&self) -> u32 {
        let mut q = self.queue.lock();
        let bit = q.next_bit;
        q.next_bit = (bit + 1) % READY_BITS as u32;
        bit
    }

    pub(crate) fn add_lane(&self, lane: &Arc<OwnedLane>) {
        let mut q = self.queue.lock();
        let bit = lane.ready_bit() as usize;
        if q.lanes.len() <= bit {
            q.lanes.resize_with(bit + 1, Vec::new);
        }
        q.lanes[bit].push(Arc::clone(lane));
    }

    pub(crate) fn remove_lane(&self, lane: &Arc<OwnedLane>) {
        let mut q = self.queue.lock();
        if let Some(list) = q.lanes.get_mut(lane.ready_bit() as usize) {
            list.retain(|l| !Arc::ptr_eq(l, lane));
        }
        q.hot.retain(|(l, _)| !Arc::ptr_eq(l, lane));
    }

    /// Moves what `lane` has published into the own queue, so that flushes come after it.
    pub(crate) fn settle_lane(&self, lane: &OwnedLane) {
        let mut q = self.queue.lock();
        while let Some(completion) = lane.take() {
            self.count_consumed(1);
            q.local.push_back(Entry { completion, freed: None });
        }
        self.shared.local.store(q.local.len() as u64, Ordering::Relaxed);
    }

    fn count_consumed(&self, n: u64) {
        let consumed = &self.shared.consumed;
        consumed.store(consumed.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    // ---- polling ---------------------------------------------------------------------------------------------------

    /// Hands up to `max` completions to `sink`, oldest first per QP; returns how many. `man ibv_poll_cq`.
    #[inline]
    pub fn poll(&self, max: usize, sink: &mut impl FnMut(&Completion)) -> usize {
        if self.pending_count.load(Ordering::Relaxed) != 0 {
            self.advance_pending();
        }
        let mut q = self.queue.lock();
        let mut n = 0;
        while n < max {
            let Some(entry) = q.local.front() else { break };
            if let Some(freed) = &entry.freed {
                freed.cell.store(freed.count, Ordering::Release);
            }
            sink(&entry.completion);
            q.local.pop_front();
            n += 1;
        }
        if n > 0 {
            self.shared.local.store(q.local.len() as u64, Ordering::Relaxed);
        }
        if n < max {
            n += self.poll_lanes(&mut q, max - n, sink);
        }
        if n > 0 {
            q.empty_polls = 0;
            return n;
        }
        q.empty_polls = q.empty_polls.wrapping_add(1);
        let empty = q.empty_polls;
        drop(q);
        // Whoever polls in vain for long may hold the CPU that its peer needs: on a machine with few cores, peers that
        // spin would take turns by the scheduler's tick, some milliseconds each.
        if empty > PATIENT_POLLS && empty.is_multiple_of(16) {
            std::thread::yield_now();
        }
        0
    }

    fn poll_lanes(&self, q: &mut Queue, max: usize, sink: &mut impl FnMut(&Completion)) -> usize {
        let mut n = 0;
        // Each poll begins with another lane, and now and then with those that are not hot, so that one that is always busy
        // does not starve the rest.
        q.first_hot = if q.first_hot < q.hot.len() { q.first_hot + 1 } else { 0 };
        if q.first_hot == q.hot.len() && self.shared.summary.load(Ordering::SeqCst) != 0 {
            n += self.poll_ready(q, max, sink);
        }
        for k in 0..q.hot.len() {
            if n >= max || k >= q.hot.len() {
                break;
            }
            let turned = q.first_hot + k;
            let i = if turned < q.hot.len() { turned } else { turned - q.hot.len() };
            if i >= q.hot.len() {
                break;
            }
            let (lane, idle) = &mut q.hot[i];
            let got = lane.drain_into(max - n, sink);
            n += got;
            if got > 0 {
                *idle = 0;
            } else {
                *idle += 1;
                if *idle > COOL_AFTER && lane.cool() {
                    q.hot.swap_remove(i);
                }
            }
        }
        if n < max && self.shared.summary.load(Ordering::SeqCst) != 0 {
            n += self.poll_ready(q, max - n, sink);
        }
        if n > 0 {
            self.count_consumed(n as u64);
        } else if self.process.own.wants_attention() {
            self.process.attend_from_poll();
        }
        n
    }

    fn poll_ready(&self, q: &mut Queue, max: usize, sink: &mut impl FnMut(&Completion)) -> usize {
        let mut n = 0;
        for w in bits(self.shared.summary.swap(0, Ordering::SeqCst)) {
            let word = &self.shared.ready[w as usize];
            for b in bits(word.swap(0, Ordering::SeqCst)) {
                let bit = (w * 64 + b) as usize;
                let Queue { lanes, hot, .. } = q;
                for lane in lanes.get(bit).into_iter().flatten() {
                    if n < max {
                        n += lane.drain_into(max - n, sink);
                    }
                    let is_hot = hot.iter().any(|(l, _)| Arc::ptr_eq(l, lane));
                    if !is_hot && hot.len() < HOT_LANES {
                        hot.push((Arc::clone(lane), 0));
                    } else if !is_hot && !lane.cool() {
                        // More came meanwhile, or did not fit: keep the lane findable.
                        word.fetch_or(1 << b, Ordering::SeqCst);
                        self.shared.summary.fetch_or(1 << w, Ordering::SeqCst);
                    }
                }
            }
        }
        n
    }

    // ---- send queues that wait -------------------------------------------------------------------------------------

    pub(crate) fn add_pending(&self, qp: &Arc<Qp>) {
        self.pending.lock().push(Arc::clone(qp));
        self.pending_count.fetch_add(1, Ordering::Release);
    }

    #[cold]
    fn advance_pending(&self) {
        let qps: Vec<Arc<Qp>> = match self.pending.try_lock() {
            Some(p) => p.clone(),
            None => return,
        };
        for qp in qps {
            qp.advance_if_free();
            self.drop_if_idle(&qp);
        }
    }

    pub(crate) fn drop_if_idle(&self, qp: &Arc<Qp>) {
        if qp.has_pending() {
            return;
        }
        let mut pending = self.pending.lock();
        if let Some(i) = pending.iter().position(|p| Arc::ptr_eq(p, qp))
            && qp.clear_listed()
        {
            pending.swap_remove(i);
            self.pending_count.fetch_sub(1, Ordering::Release);
        }
    }

    // ---- the rest --------------------------------------------------------------------------------------------------

    /// Asks for an event at the next completion, or the next solicited one (`man ibv_req_notify_cq`). A request for any
    /// completion is not weakened by a later one for solicited ones.
    pub fn req_notify(&self, solicited_only: bool) -> Result<()> {
        crate::arm::set(self.shared, solicited_only);
        if self.pending_count.load(Ordering::Relaxed) != 0 {
            // The program is about to sleep; from now on the progress thread does the work.
            self.process.hand_over();
        }
        Ok(())
    }

    /// Changes the capacity; EINVAL when it is out of range or smaller than what waits (`man ibv_resize_cq`).
    pub fn resize(&self, cqe: u32) -> Result<()> {
        let capacity = capacity_for(cqe)?;
        let q = self.queue.lock();
        let waiting =
            self.shared.produced.load(Ordering::Relaxed).saturating_sub(self.shared.consumed.load(Ordering::Relaxed));
        if waiting.saturating_add(q.local.len() as u64) > u64::from(capacity) {
            return Err(Error::invalid("the completion queue holds more completions than the new size"));
        }
        self.shared.capacity.store(u64::from(capacity), Ordering::Relaxed);
        Ok(())
    }

    /// Drops what the QP `qpn` reported and the program has not polled (destroy and reset of a QP).
    pub(crate) fn purge(&self, qpn: u32) {
        let mut q = self.queue.lock();
        q.local.retain(|e| e.completion.qp_num != qpn);
        self.shared.local.store(q.local.len() as u64, Ordering::Relaxed);
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
        if self.users.load(Ordering::Acquire) != 0 {
            return Err(Error::busy("the completion queue is in use by QPs or SRQs"));
        }
        self.context.forget_events(crate::channel::Element::Cq(self.cookie()));
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
            self.process.release(block);
        }
    }
}

/// Capacity as hardware rounds it: a power of two less one. EINVAL for none or more than max_cqe.
fn capacity_for(cqe: u32) -> Result<u32> {
    if cqe == 0 || cqe > crate::device::LIMITS.max_cqe {
        return Err(Error::invalid(format!(
            "a completion queue of {cqe} entries; 1 to {} are possible",
            crate::device::LIMITS.max_cqe
        )));
    }
    Ok(((cqe + 1).next_power_of_two() - 1).min(crate::device::LIMITS.max_cqe))
}
