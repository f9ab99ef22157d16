//! Receive queues, a QP's own and shared ones: one mechanism for both. The owner posts WQEs into a ring; initiators
//! claim them with one compare-and-swap on the ring entry, which names the claimer, so that a claimant that died is
//! known.
//!
//! The queue of a connected QP has one claimer at a time and is simpler: see `exclusive`.
//!
//! A ring entry holds `ring (1 bit) | position (23 bits) | WQE index (16) | claimer's QPN (24, 0 while unclaimed)`.
//! WQEs are freed in any order, so entries name them by index and the owner keeps the list of free ones.

pub(crate) mod exclusive;
mod ring;
pub mod saved;

use crate::arena::layout::{Completed, Inline, RecvWqe, RqShared, WqeSge};
use crate::arena::{ArenaRef, Block, View};
use crate::device::LIMITS;
use crate::error::{Error, Result};
use crate::host::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::host::clock::hca_clock_ns;
use crate::host::lock::OwnerLock;
use crate::host::prefetch::{prefetch, prefetch_to_read};
use crate::process::Process;
use ring::{Ring, help};
use vervain_iba::{Completion, Sge};

/// Longest ring: entries have 16 bits for the WQE index.
const MAX_SLOTS: usize = 1 << 16;
/// WQEs of a queue with several claimers that stand in for retired ones.
const SPARE: usize = 8;
/// Most SGEs of a receive, whatever a peer's memory claims.
const MAX_SGES: u32 = LIMITS.qp.max_sge;

fn entry(position: u64, wqe: u32, claimer: u32) -> u64 {
    ring::in_entry(position) << 40 | u64::from(wqe) << 24 | u64::from(claimer)
}

fn entry_position(e: u64) -> u64 {
    e >> 40
}

fn entry_wqe(e: u64) -> u32 {
    (e >> 24) as u32 & 0xffff
}

fn entry_claimer(e: u64) -> u32 {
    e as u32 & 0xff_ffff
}

/// Length and key of an SGE in one word.
fn len_key(sge: &Sge) -> u64 {
    u64::from(sge.length) | u64::from(sge.lkey) << 32
}

/// A receive queue as an initiator reaches it in the owner's arena.
#[derive(Clone)]
pub struct RqView {
    view: View,
    /// The shared head.
    pub shared: ArenaRef<RqShared>,
    ring: ArenaRef<[AtomicU64]>,
    // Owner, once; read when the queue is found.
    wqes: u64,
    stride: u32,
    count: u32,
    pub(crate) mask: u64,
    pub(crate) exclusive: bool,
}

impl RqView {
    /// The queue at `offset` of `view`, if it is one.
    pub fn new(view: &View, offset: u64) -> Option<RqView> {
        let shared = view.hold::<RqShared>(offset)?;
        let slots = shared.mask.load(Ordering::Relaxed) as usize + 1;
        if !slots.is_power_of_two() || slots > MAX_SLOTS {
            return None;
        }
        let exclusive = shared.exclusive.load(Ordering::Relaxed) != 0;
        let rings = if exclusive { 1 } else { 2 };
        let ring = view.hold_slice(shared.ring.load(Ordering::Relaxed), rings * slots)?;
        Some(RqView {
            view: view.clone(),
            ring,
            wqes: shared.wqes.load(Ordering::Relaxed),
            stride: shared.stride.load(Ordering::Relaxed),
            count: shared.count.load(Ordering::Relaxed),
            mask: slots as u64 - 1,
            exclusive,
            shared,
        })
    }

    /// Returns true if a WQE was ever posted. Positions start after one lap.
    pub fn has_had_any(&self) -> bool {
        self.shared.tail.first.load(Ordering::Acquire) > self.mask + 1
    }

    /// WQEs that are not claimed, as far as known.
    pub fn waiting(&self) -> u64 {
        let again = if self.uses_again() { self.again().waiting() } else { 0 };
        self.first().waiting().saturating_add(again)
    }

    /// Takes the oldest WQE for the initiator `me` (its QPN): its index; none when the queue is empty or closed.
    #[inline]
    pub fn claim(&self, me: u32) -> Option<u32> {
        if self.shared.open.load(Ordering::Relaxed) == 0 {
            return None;
        }
        if self.exclusive { self.claim_exclusive() } else { self.claim_among_others(me) }
    }

    /// Prefetches the line of a receive that comes soon, so that its message need not wait for it. Another claimer may
    /// take that receive. In a shared queue it is the one after the next, and the next one is returned: its line was
    /// fetched by the message before. There the line is mostly only read.
    #[inline(always)]
    pub fn fetch_next(&self) -> Option<u32> {
        if self.exclusive {
            let head = self.shared.head.first.load(Ordering::Relaxed);
            self.line((head & self.mask) as u32).into_iter().for_each(prefetch);
            return None;
        }
        let [next, after_the_next] = self.next_two();
        after_the_next.and_then(|wqe| self.line(wqe)).into_iter().for_each(prefetch_to_read);
        next
    }

    /// Address of WQE number `index`.
    #[inline]
    fn line(&self, index: u32) -> Option<*const i8> {
        self.wqe(index).map(|wqe| std::ptr::from_ref(wqe).cast())
    }

    /// WQE number `index`, if there is one.
    #[inline]
    pub fn wqe(&self, index: u32) -> Option<&RecvWqe> {
        if index >= self.count {
            return None;
        }
        self.view.get(self.wqe_offset(index))
    }

    #[inline]
    fn wqe_offset(&self, index: u32) -> u64 {
        self.wqes.wrapping_add(u64::from(index) * u64::from(self.stride))
    }

    /// The SGEs of a WQE.
    #[inline]
    pub fn sges(&self, index: u32) -> Option<&[WqeSge]> {
        let wqe = self.wqe(index)?;
        let n = wqe.num_sge.load(Ordering::Relaxed).min(self.shared.max_sge.load(Ordering::Relaxed)).min(MAX_SGES);
        self.view.slice(self.wqe_offset(index).wrapping_add(size_of::<RecvWqe>() as u64), n as usize)
    }

    /// One SGE as a value.
    #[inline]
    pub fn sge(sge: &WqeSge) -> Sge {
        let len_key = sge.len_key.load(Ordering::Relaxed);
        Sge { addr: sge.addr.load(Ordering::Relaxed), length: len_key as u32, lkey: (len_key >> 32) as u32 }
    }
}

/// The fields that a claimant writes into a WQE before it publishes it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Receipt {
    /// [`Status`](vervain_iba::Status) as a number: what is read from a peer may be any byte.
    pub status: u32,
    /// `enum ibv_wc_opcode`.
    pub opcode: u32,
    /// Bytes received.
    pub byte_len: u32,
    /// Immediate or invalidated key.
    pub imm: u32,
    /// Sender's QPN.
    pub src_qp: u32,
    /// `IBV_WC_*`.
    pub wc_flags: u32,
    /// Sender's LID.
    pub slid: u16,
    /// Service level.
    pub sl: u8,
}

impl Receipt {
    /// Writes it where the owner looks for it.
    #[inline]
    pub(crate) fn write(&self, to: &Completed) {
        to.status_opcode.store(self.status | self.opcode << 8, Ordering::Relaxed);
        to.byte_len.store(self.byte_len, Ordering::Relaxed);
        to.imm.store(self.imm, Ordering::Relaxed);
        to.src_qp.store(self.src_qp, Ordering::Relaxed);
        to.wc_flags.store(self.wc_flags, Ordering::Relaxed);
        to.slid_sl.store(u32::from(self.slid) | u32::from(self.sl) << 16, Ordering::Relaxed);
    }

    /// Reads the fields there.
    #[inline]
    pub(crate) fn read(from: &Completed) -> Receipt {
        let status_opcode = from.status_opcode.load(Ordering::Relaxed);
        let slid_sl = from.slid_sl.load(Ordering::Relaxed);
        Receipt {
            status: status_opcode & 0xff,
            opcode: status_opcode >> 8,
            byte_len: from.byte_len.load(Ordering::Relaxed),
            imm: from.imm.load(Ordering::Relaxed),
            src_qp: from.src_qp.load(Ordering::Relaxed),
            wc_flags: from.wc_flags.load(Ordering::Relaxed),
            slid: slid_sl as u16,
            sl: (slid_sl >> 16) as u8,
        }
    }

    /// Writes it into a claimed WQE.
    #[inline]
    pub fn write_into(&self, wqe: &RecvWqe, timestamp: bool) {
        self.write(&wqe.completed);
        if timestamp {
            wqe.timestamp.store(hca_clock_ns(), Ordering::Relaxed);
        }
    }
}

/// The program's part of a WQE, on a line that only the owner writes to.
#[derive(Default)]
pub(crate) struct Posted {
    /// The program's cookie.
    pub(crate) wr_id: AtomicU64,
    /// In a queue with several claimers the first SGE: its address, 0 for none, and its length and key as in a
    /// [`WqeSge`].
    addr: AtomicU64,
    len_key: AtomicU64,
}

/// A receive queue as its owner has it.
pub struct RecvQueue {
    process: &'static Process,
    /// Offset of the shared head, for QPs and tables.
    pub offset: u64,
    /// Shared parts.
    pub view: RqView,
    blocks: Vec<Block>,
    pub(crate) state: OwnerLock<State>,
    /// The program's part of each WQE.
    pub(crate) posted: Box<[Posted]>,
    /// Position of the oldest receive not polled, of the queue of a connected QP. Changed under the CQ's lock.
    pub(crate) taken: AtomicU64,
    /// QPs that share it.
    pub users: AtomicU32,
    pub(crate) max_wr: u32,
    max_sge: u32,
    pd: u32,
}

#[derive(Default)]
pub(crate) struct State {
    free: Vec<u16>,
    /// WQEs that were given up after their claimers had been cut off; those may still write into them until they have
    /// left.
    retired: Vec<u16>,
    /// WQEs that take their place.
    spare: Vec<u16>,
    in_use: Vec<bool>,
    /// The position at which each WQE was posted last, 0 for never: an entry of another position is an old one.
    posted_at: Vec<u64>,
    /// Position after the last posted WQE of the first ring.
    pub(crate) tail: u64,
    /// The same of the second ring, without its bit.
    again_tail: u64,
    /// A value that the head of each ring has had: it moves on with every claim, and looking at it takes it away from
    /// the claimers.
    heads_seen: [u64; 2],
}

impl State {
    /// The WQE that ring entry `e` stands for, if it is outstanding and was not posted again since.
    fn current(&self, e: u64) -> Option<u32> {
        let index = entry_wqe(e);
        let i = index as usize;
        (self.in_use.get(i) == Some(&true) && ring::in_entry(self.posted_at[i]) == entry_position(e)).then_some(index)
    }
}

impl RecvQueue {
    /// Makes a queue of `max_wr` receives (at least 1) with up to `max_sge` pieces each; `exclusive` when at most one
    /// initiator takes from it.
    pub fn create(process: &'static Process, pd: u32, max_wr: u32, max_sge: u32, exclusive: bool) -> Result<RecvQueue> {
        // With one claimer, WQEs stand in the order of posting. Else there are more entries than receives, so that in a
        // full queue posted and claimed entries are not neighbours: claimers and owner would wait for each other's
        // lines.
        let slots = u64::from(max_wr.max(1).next_power_of_two()) << u32::from(!exclusive);
        let count = if exclusive { slots as u32 } else { max_wr.max(1) + SPARE as u32 };
        let stride =
            (size_of::<RecvWqe>() as u64 + u64::from(max_sge) * size_of::<WqeSge>() as u64).next_multiple_of(64);
        let mut blocks = Vec::new();
        let made = (|| {
            let rings = if exclusive { 1 } else { 2 };
            for bytes in [size_of::<RqShared>() as u64, rings * slots * 8, stride * u64::from(count)] {
                blocks.push(process.arena.alloc(bytes)?);
            }
            Ok::<(), Error>(())
        })();
        if let Err(e) = made {
            blocks.drain(..).for_each(|b| process.release(b));
            return Err(e);
        }
        let offset = blocks[0].offset();
        let shared = process.arena.view().get::<RqShared>(offset).expect("just allocated");
        shared.ring.store(blocks[1].offset(), Ordering::Relaxed);
        shared.wqes.store(blocks[2].offset(), Ordering::Relaxed);
        shared.stride.store(stride as u32, Ordering::Relaxed);
        shared.mask.store(slots as u32 - 1, Ordering::Relaxed);
        shared.count.store(count, Ordering::Relaxed);
        shared.max_sge.store(max_sge, Ordering::Relaxed);
        shared.pd.store(pd, Ordering::Relaxed);
        shared.exclusive.store(u32::from(exclusive), Ordering::Relaxed);
        // Positions start after one lap, so that a zeroed entry is never taken for a posted one.
        for counter in [&shared.head.first, &shared.tail.first, &shared.head.again, &shared.tail.again] {
            counter.store(slots, Ordering::Relaxed);
        }
        shared.open.store(1, Ordering::Release);
        let view = RqView::new(process.arena.view(), offset).expect("just made");
        let posted = (0..count).map(|_| Posted::default()).collect();
        let state = State {
            free: (0..max_wr).rev().map(|i| i as u16).collect(),
            retired: Vec::new(),
            spare: if exclusive { Vec::new() } else { (0..SPARE as u32).map(|i| (max_wr + i) as u16).collect() },
            in_use: vec![false; count as usize],
            posted_at: vec![0; count as usize],
            tail: slots,
            again_tail: slots,
            heads_seen: [slots; 2],
        };
        Ok(RecvQueue {
            process,
            offset,
            view,
            blocks,
            state: OwnerLock::new(state),
            posted,
            taken: AtomicU64::new(slots),
            users: AtomicU32::new(0),
            max_wr,
            max_sge,
            pd,
        })
    }

    /// The cookie of WQE `index`.
    pub fn wr_id(&self, index: u32) -> Option<u64> {
        Some(self.posted.get(index as usize)?.wr_id.load(Ordering::Relaxed))
    }

    /// Receives that may be outstanding.
    pub fn max_wr(&self) -> u32 {
        self.max_wr
    }

    /// Pieces that a receive may have.
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }

    #[cold]
    #[inline(never)]
    fn full(&self) -> Error {
        Error::no_memory(format!(
            "the receive queue is full: all of its {} receives are posted and not yet completed; poll the CQ",
            self.max_wr
        ))
    }

    /// Posts one receive. EINVAL for too many pieces, ENOMEM when the queue is full (`man ibv_post_recv`).
    #[inline]
    pub fn post(&self, wr_id: u64, sges: &[Sge]) -> Result<()> {
        if sges.len() > self.max_sge as usize {
            return Err(Error::invalid(format!(
                "a receive has {} SGEs, the queue allows {}",
                sges.len(),
                self.max_sge
            )));
        }
        if self.view.exclusive {
            return self.post_exclusive(wr_id, sges);
        }
        let mut state = self.state.lock();
        let Some(index) = state.free.pop().or_else(|| self.take_retired(&mut state)) else {
            return Err(self.full());
        };
        let index = u32::from(index);
        self.fill(index, wr_id, sges)?.claimer.store(0, Ordering::Relaxed);
        let (posted, first) = (&self.posted[index as usize], sges.first().copied().unwrap_or_default());
        posted.addr.store(first.addr, Ordering::Relaxed);
        posted.len_key.store(len_key(&first), Ordering::Relaxed);
        state.in_use[index as usize] = true;
        self.enqueue(&mut state, index);
        Ok(())
    }

    /// Writes a receive into WQE `index`.
    #[inline]
    pub(crate) fn fill(&self, index: u32, wr_id: u64, sges: &[Sge]) -> Result<&RecvWqe> {
        let (Some(wqe), Some(room), Some(posted)) =
            (self.view.wqe(index), self.sges_of(index, sges.len()), self.posted.get(index as usize))
        else {
            return Err(Error::new(libc::EIO, "the receive queue is damaged"));
        };
        posted.wr_id.store(wr_id, Ordering::Relaxed);
        wqe.num_sge.store(sges.len() as u32, Ordering::Relaxed);
        for (to, sge) in room.iter().zip(sges) {
            to.addr.store(sge.addr, Ordering::Relaxed);
            to.len_key.store(len_key(sge), Ordering::Relaxed);
        }
        Ok(wqe)
    }

    fn sges_of(&self, index: u32, n: usize) -> Option<&[WqeSge]> {
        self.process.arena.view().slice(self.view.wqe_offset(index).wrapping_add(size_of::<RecvWqe>() as u64), n)
    }

    fn enqueue(&self, state: &mut State, index: u32) {
        let is_used_again = state.posted_at[index as usize] != 0 && self.users.load(Ordering::Relaxed) > 1;
        let (ring, tail, head_seen) = if is_used_again {
            self.view.shared.uses_again.store(1, Ordering::Relaxed);
            (self.view.again(), &mut state.again_tail, &mut state.heads_seen[1])
        } else {
            (self.view.first(), &mut state.tail, &mut state.heads_seen[0])
        };
        let position = *tail;
        *tail = position + 1;
        let lap = position - ring.entries.len() as u64;
        if *head_seen <= lap {
            *head_seen = ring.head.load(Ordering::Acquire);
            if *head_seen == lap {
                help(ring.head, lap);
            }
        }
        let slot = ring.slot(position);
        // The entry of one lap ago is claimed, for no more WQEs are outstanding than the ring has entries. Its claimer
        // may have been stopped right after its claim: note the claimer in the WQE, and move the head past it.
        let old = slot.load(Ordering::Acquire);
        // The WQE in hand is posted anew, so an old entry of its own says nothing about it.
        state.posted_at[index as usize] = position | ring.bit;
        self.note_claim(state, old);
        slot.store(entry(position | ring.bit, index, 0), Ordering::Release);
        ring.tail.store(position + 1, Ordering::Release);
    }

    /// The fields that a claimant has written into WQE `index` so far.
    pub fn receipt(&self, index: u32) -> Receipt {
        self.view.wqe(index).map_or_else(Receipt::default, |wqe| Receipt::read(&wqe.completed))
    }

    /// Receives posted and not yet claimed.
    pub fn waiting(&self) -> u64 {
        let state = self.state.lock();
        let waiting = |tail: u64, ring: Ring<'_>| tail.saturating_sub(ring.head.load(Ordering::Acquire));
        waiting(state.tail, self.view.first()) + waiting(state.again_tail, self.view.again())
    }

    /// Reads the completion of a published WQE and frees it; none if the index is not one in use (a damaged ring).
    #[inline]
    pub fn take(&self, index: u32, qp_num: u32) -> Option<Completion> {
        let completion = self.completion(self.view.wqe(index)?, index, qp_num);
        self.free(index).then_some(completion)
    }

    /// Takes receive `index` off the queue with a `receipt` that is known from elsewhere; for queues without
    /// timestamps. The program will look at its message next, which lies in the sender's cache.
    #[inline]
    pub(crate) fn take_with(&self, index: u32, receipt: &Receipt, qp_num: u32) -> Option<Completion> {
        if let Some(posted) = self.posted.get(index as usize) {
            prefetch_to_read(posted.addr.load(Ordering::Relaxed) as *const i8);
        }
        let completion = self.completion_of(receipt, index, qp_num);
        self.free(index).then_some(completion)
    }

    /// The first SGE of receive `index`, as it was posted last.
    #[inline]
    pub(crate) fn first_sge(&self, index: u32) -> Option<Sge> {
        let posted = self.posted.get(index as usize)?;
        let len_key = posted.len_key.load(Ordering::Relaxed);
        let addr = posted.addr.load(Ordering::Relaxed);
        Some(Sge { addr, length: len_key as u32, lkey: (len_key >> 32) as u32 })
    }

    /// The first SGE of a receive that is outstanding; None else: other memory is the program's, and a peer's word does
    /// not change that.
    pub(crate) fn outstanding_sge(&self, index: u32) -> Option<Sge> {
        let state = self.state.lock();
        if state.in_use.get(index as usize) == Some(&true) { self.first_sge(index) } else { None }
    }

    /// Puts the beginning of `message`, which came in a completion, into `memory`, which a receive has; false if its
    /// key does not allow that, or it is not there.
    #[inline]
    pub(crate) fn scatter(&self, memory: &Sge, message: &Inline, is_revoked: bool) -> bool {
        self.process.keys.scatter(memory, self.pd, message, is_revoked)
    }

    /// The receive of a message had no memory for it: the QP at `offset` goes to ERR (IBA 9.9.3).
    #[cold]
    pub(crate) fn fail_qp(&self, offset: u64) {
        self.process.fail_qp(offset);
    }

    /// Frees a WQE; false if it is not in use.
    #[inline]
    fn free(&self, index: u32) -> bool {
        let mut state = self.state.lock();
        let Some(used) = state.in_use.get_mut(index as usize).filter(|used| **used) else { return false };
        *used = false;
        state.free.push(index as u16);
        true
    }

    /// The completion that a claimer has written into WQE `index`.
    #[inline]
    pub(crate) fn completion(&self, wqe: &RecvWqe, index: u32, qp_num: u32) -> Completion {
        let timestamp = wqe.timestamp.load(Ordering::Relaxed);
        Completion { timestamp, ..self.completion_of(&Receipt::read(&wqe.completed), index, qp_num) }
    }

    /// The completion for `receipt`, but for the time.
    #[inline]
    fn completion_of(&self, receipt: &Receipt, index: u32, qp_num: u32) -> Completion {
        Completion {
            wr_id: self.wr_id(index).unwrap_or_default(),
            status: receipt.status,
            opcode: receipt.opcode,
            byte_len: receipt.byte_len,
            imm_or_rkey: receipt.imm,
            qp_num,
            src_qp: receipt.src_qp,
            wc_flags: receipt.wc_flags,
            slid: receipt.slid,
            sl: receipt.sl,
            ..Completion::default()
        }
    }

    /// Takes every receive still outstanding, claimed by whom ever or not, oldest first: the cookies, for flushing.
    /// Nobody may be in flight on the queue.
    pub fn flush(&self) -> Vec<u64> {
        if self.view.exclusive {
            return self.flush_exclusive();
        }
        let mut state = self.state.lock();
        let order = self.outstanding(&state);
        order.into_iter().filter_map(|i| self.give_up(&mut state, i)).collect()
    }

    fn outstanding(&self, state: &State) -> Vec<u32> {
        let mut order: Vec<u32> = Vec::new();
        let mut seen = vec![false; state.in_use.len()];
        for (ring, tail) in [(self.view.again(), state.again_tail), (self.view.first(), state.tail)] {
            for position in tail - ring.entries.len() as u64..tail {
                let slot = ring.slot(position);
                let e = slot.load(Ordering::Acquire);
                if let Some(index) = state.current(e) {
                    seen[index as usize] = true;
                    self.note_claim(state, e);
                    // A mark that is no QPN keeps everybody else away from it.
                    slot.store(e | 0xff_ffff, Ordering::Release);
                    order.push(index);
                }
            }
            ring.head.store(tail, Ordering::Release);
        }
        // Claims older than a lap come first.
        let mut all: Vec<u32> =
            (0..state.in_use.len()).filter(|&i| state.in_use[i] && !seen[i]).map(|i| i as u32).collect();
        all.extend(order);
        all
    }

    /// Takes receive `index` back from the queue, without a completion: its work request's number. Its WQE is used no
    /// more if a claimer that was cut off may still write there.
    fn give_up(&self, state: &mut State, index: u32) -> Option<u64> {
        let wr_id = self.wr_id(index)?;
        state.in_use[index as usize] = false;
        let is_claimed = self.view.wqe(index).is_some_and(|w| w.claimer.load(Ordering::Acquire) != 0);
        if is_claimed && self.process.has_suspects() {
            state.retired.push(index as u16);
            state.free.extend(state.spare.pop());
        } else {
            state.free.push(index as u16);
        }
        Some(wr_id)
    }

    /// A WQE whose claimer was cut off and has left since, where more are retired than there were spare ones.
    #[cold]
    fn take_retired(&self, state: &mut State) -> Option<u16> {
        if !state.retired.is_empty() && !self.process.has_suspects() {
            let missing = SPARE - state.spare.len();
            let again = missing.min(state.retired.len());
            state.spare.extend(state.retired.drain(..again));
            state.free.append(&mut state.retired);
        }
        state.free.pop()
    }

    /// Forgets every receive (reset).
    pub fn reset(&self) {
        self.flush();
    }

    /// The WQEs that the dead initiator `qpn` had claimed and not published, given up: their cookies.
    pub fn reap(&self, qpn: u32) -> Vec<u64> {
        let mut state = self.state.lock();
        self.note_claims(&state);
        let theirs: Vec<u32> = (0..state.in_use.len() as u32)
            .filter(|&i| state.in_use[i as usize])
            .filter(|&i| self.view.wqe(i).is_some_and(|w| w.claimer.load(Ordering::Acquire) == qpn))
            .collect();
        theirs.into_iter().filter_map(|i| self.give_up(&mut state, i)).collect()
    }

    /// Puts the WQEs that the dead initiator `qpn` had claimed and not published back to the end of the queue: for
    /// datagrams, whose loss is not reported.
    pub fn reap_and_repost(&self, qpn: u32) {
        let mut state = self.state.lock();
        self.note_claims(&state);
        for i in 0..state.in_use.len() as u32 {
            let Some(wqe) = self.view.wqe(i) else { continue };
            if state.in_use[i as usize] && wqe.claimer.load(Ordering::Acquire) == qpn {
                wqe.claimer.store(0, Ordering::Release);
                self.enqueue(&mut state, i);
            }
        }
    }

    /// The claimer of receive `index`, which is outstanding: its QPN, 0 for none.
    pub(crate) fn claimer(&self, index: u32) -> Option<u32> {
        let state = self.state.lock();
        let position = *state.posted_at.get(index as usize)?;
        self.note_claim(&state, self.view.ring_of(position).slot(position).load(Ordering::Acquire));
        Some(self.view.wqe(index)?.claimer.load(Ordering::Acquire))
    }

    /// Writes its claimer into each WQE, from the entries of the ring.
    fn note_claims(&self, state: &State) {
        for slot in &*self.view.ring {
            self.note_claim(state, slot.load(Ordering::Acquire));
        }
    }

    /// Writes the claimer that entry `e` names into its WQE, if the entry is current.
    fn note_claim(&self, state: &State, e: u64) {
        if entry_claimer(e) != 0
            && let Some(wqe) = state.current(e).and_then(|index| self.view.wqe(index))
        {
            let _ = wqe.claimer.compare_exchange(0, entry_claimer(e), Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

impl Drop for RecvQueue {
    fn drop(&mut self) {
        // A forked child has no arena.
        if !self.process.is_current() {
            return;
        }
        self.view.shared.open.store(0, Ordering::SeqCst);
        for block in self.blocks.drain(..) {
            self.process.release(block);
        }
    }
}
