//! The send queue's view of its QP: its identity, the CQ for its completions, and the mark of send work.

use crate::arena::layout::{QpShared, Switch};
use crate::context::Context;
use crate::cq::Cq;
use crate::device::Device;
use crate::device::port_counters::{Tally, Word, by_memory};
use crate::host::barrier;
use crate::process::send_work::Marks;
use crate::process::{Process, gate};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use vervain_iba::{AhAttr, Gid, Nak, Opcode, QpState, QpType};

/// The part of a QP that its send queue works with.
pub struct QpBase {
    pub(crate) process: &'static Process,
    pub(crate) context: Arc<Context>,
    pub(crate) qp_type: QpType,
    pub(crate) number: u32,
    pub(crate) shared: &'static QpShared,
    /// The switch of its context.
    pub(crate) switch: &'static Switch,
    pub(crate) send_cq: Option<Arc<Cq>>,
    /// The state of its send work that other threads see.
    pub(crate) marks: Marks,
    lid: AtomicU32,
    /// Counters of its operations.
    pub tally: Tally,
}

impl QpBase {
    pub(crate) fn new(
        process: &'static Process,
        context: &Arc<Context>,
        qp_type: QpType,
        number: u32,
        shared: &'static QpShared,
        switch: &'static Switch,
        send_cq: Option<&Arc<Cq>>,
    ) -> QpBase {
        QpBase {
            process,
            context: Arc::clone(context),
            qp_type,
            number,
            shared,
            switch,
            send_cq: send_cq.cloned(),
            marks: Marks::default(),
            lid: AtomicU32::new(0),
            tally: Tally::default(),
        }
    }

    /// QP number.
    #[inline]
    pub fn qp_num(&self) -> u32 {
        self.number
    }

    /// Service type.
    #[inline]
    pub fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// The current state; an error of a peer may have changed it.
    #[inline]
    pub fn state(&self) -> QpState {
        QpState::from_verbs(self.shared.state.load(Ordering::Acquire)).unwrap_or(QpState::Err)
    }

    /// The process that it belongs to.
    pub fn process(&self) -> &'static Process {
        self.process
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        self.context.device()
    }

    /// Index of its device.
    pub fn device_index(&self) -> u32 {
        self.context.device().index()
    }

    pub(crate) fn generation(&self) -> u32 {
        self.shared.generation.load(Ordering::Relaxed)
    }

    /// The CQ of its sends.
    #[inline]
    pub fn send_cq(&self) -> Option<&Arc<Cq>> {
        self.send_cq.as_ref()
    }

    /// Counts a request that was carried out by memory, with `bytes` of data.
    #[inline(always)]
    pub(crate) fn count_by_memory(&self, opcode: Opcode, bytes: u64) {
        let line = self.tally.line();
        line.add(Word::MemoryBytes, bytes);
        line.add(by_memory(opcode), 1);
    }

    /// Counts the bytes of a request by memory that process_vm calls have moved, and those that the owner has moved.
    #[cold]
    pub(crate) fn count_ways(&self, by_vm: u64, by_owner: u64) {
        let line = self.tally.line();
        line.add(Word::VmBytes, by_vm);
        line.add(Word::OwnerBytes, by_owner);
    }

    /// Its Q_Key (IBA 10.2.5).
    pub fn qkey(&self) -> u32 {
        self.shared.qkey.load(Ordering::Relaxed)
    }

    /// Returns true if it takes requests in its state (IBA 10.3.1).
    pub fn receives(&self) -> bool {
        (QpState::Rtr as u32..=QpState::Sqe as u32).contains(&self.shared.state.load(Ordering::Acquire))
    }

    /// Returns true if it was made in `context`.
    pub fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    /// The LID of its port; 0 on Ethernet.
    pub fn lid(&self) -> u16 {
        self.lid.load(Ordering::Relaxed) as u16
    }

    pub(crate) fn set_lid(&self, lid: u16) {
        self.lid.store(u32::from(lid), Ordering::Relaxed);
    }

    /// The source GID of `ah`, and true if the port speaks RoCE.
    pub(crate) fn source(&self, ah: &AhAttr) -> (Gid, bool) {
        let device = self.context.device();
        let port = ah.port_num.max(1);
        (device.gid(port, u32::from(ah.grh.sgid_index)).unwrap_or_default(), device.is_ethernet())
    }

    /// Stops sends after a request has failed: reliable services go to ERR, the others stop only the send queue (IBA
    /// 10.3.1.6). The QP does the rest of the transition.
    #[cold]
    pub(crate) fn stop_sends(&self) {
        if self.qp_type.is_reliable() {
            self.shared.state.store(QpState::Err as u32, Ordering::SeqCst);
        } else {
            let (rts, sqe) = (QpState::Rts as u32, QpState::Sqe as u32);
            let _ = self.shared.state.compare_exchange(rts, sqe, Ordering::SeqCst, Ordering::Relaxed);
        }
    }

    /// Handles the refusal of a packet by the responder that ends the QP (IBA 9.9.3, class C).
    pub fn refused(&self, nak: Nak) {
        let Some(event) = nak.event() else { return };
        if self.qp_type.is_reliable() && self.shared.fail(Some(event)) {
            self.process.own.raise(self.shared.attention.load(Ordering::Relaxed));
        }
    }

    /// Returns true if it is stopped: packets for it wait until it goes on.
    pub fn is_stopped(&self) -> bool {
        gate::is_stopped(self.switch)
    }

    // ---- the mark of send work -------------------------------------------------------------------------------------

    /// Marks `f` as send work; a thread that revokes local memory waits for it. None while the process is paused.
    #[inline(always)]
    pub(crate) fn executing<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        // No exchange: a thread that revokes local memory makes the revocation visible with a heavy barrier before it
        // looks. One that waits for an earlier mark may see this one first, and goes on: the accesses so far come
        // before it.
        let e = self.marks.executing.load(Ordering::Relaxed);
        self.marks.executing.store(e + 1, Ordering::Release);
        barrier::light(!barrier::is_registered());
        let r = if gate::is_closed(self.switch) { None } else { Some(f()) };
        self.marks.executing.store(e + 2, Ordering::Release);
        r
    }

    /// [`QpBase::executing`] for a QP that is stopped, by the thread that stops it.
    pub(crate) fn while_stopped<R>(&self, f: impl FnOnce() -> R) -> R {
        let e = self.marks.executing.load(Ordering::Relaxed);
        self.marks.executing.store(e + 1, Ordering::Release);
        barrier::light(!barrier::is_registered());
        let r = f();
        self.marks.executing.store(e + 2, Ordering::Release);
        r
    }

    /// Notes if the request at the head, which waits, asks an owner for something. Called inside the mark.
    #[inline]
    pub(crate) fn asks(&self, asks: bool) {
        if self.marks.asks.load(Ordering::Relaxed) != asks {
            self.marks.asks.store(asks, Ordering::Relaxed);
        }
    }

    /// Runs `f`, which itself waits for the marks of send work, outside of the mark. Called from inside send work that
    /// holds no memory at that point.
    pub(crate) fn pausing<R>(&self, f: impl FnOnce() -> R) -> R {
        let e = self.marks.executing.load(Ordering::Relaxed);
        self.marks.executing.store(e + 1, Ordering::Release);
        let r = f();
        self.marks.executing.store(e + 2, Ordering::Release);
        // The new mark is visible before the next access, as in `executing`; an exchange would ensure that on x86-64
        // only.
        barrier::light(true);
        r
    }

    /// Ends the mark of a thread that ended inside it.
    pub(crate) fn end_mark(&self) {
        let e = self.marks.executing.load(Ordering::Relaxed);
        self.marks.executing.store((e | 1) + 1, Ordering::Release);
    }
}
