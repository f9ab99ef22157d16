//! The responder's end of a connection: the responder, its lanes into the QP, and the lock of both.

use super::PacketOut;
use super::closed::Closed;
use super::counters;
use super::responder::{Inbound, Lanes};
use super::saved;
use std::sync::Arc;
use vervain_hca::host::lock::{OwnerGuard, OwnerLock};
use vervain_hca::{Qp, Result};
use vervain_transport::{KeptShare, Responder, ResponderConfig, ResponderCounters, SavedResponder};

/// The responder of a connected QP.
pub struct ResponderEnd {
    state: OwnerLock<State>,
    /// The QP is reset or gone. Set under the lock.
    closed: Closed,
}

struct State {
    responder: Responder,
    /// The configuration it was made from.
    config: ResponderConfig,
    lanes: Lanes,
    /// Its counters when they were last added to the QP's.
    counted: ResponderCounters,
}

impl ResponderEnd {
    /// A responder to which nothing has come.
    pub fn new(config: ResponderConfig) -> Self {
        let (responder, lanes, counted) = (Responder::new(&config), Lanes::default(), ResponderCounters::default());
        ResponderEnd { state: OwnerLock::new(State { responder, config, lanes, counted }), closed: Closed::default() }
    }

    /// Makes the responder of `qp` do `f`; its packets go to `out`, which is made under the lock. None: the QP is reset
    /// or gone.
    #[inline]
    pub fn with<O: PacketOut, R>(
        &self,
        qp: &Qp,
        out: impl FnOnce() -> O,
        f: impl FnOnce(&mut Responder, &mut Inbound<'_, O>) -> R,
    ) -> Option<R> {
        self.locked(self.state.lock(), qp, out, f)
    }

    /// [`ResponderEnd::with`], unless the lock is taken. Err: it is, and whether its holder gives it back
    /// ([`RawLock::comes_free`](vervain_hca::host::lock::RawLock::comes_free)).
    pub fn try_with<O: PacketOut, R>(
        &self,
        qp: &Qp,
        out: impl FnOnce() -> O,
        f: impl FnOnce(&mut Responder, &mut Inbound<'_, O>) -> R,
    ) -> std::result::Result<Option<R>, bool> {
        let Some(state) = self.state.try_lock() else { return Err(self.state.raw().comes_free()) };
        Ok(self.locked(state, qp, out, f))
    }

    #[inline(always)]
    fn locked<O: PacketOut, R>(
        &self,
        mut state: OwnerGuard<'_, State>,
        qp: &Qp,
        out: impl FnOnce() -> O,
        f: impl FnOnce(&mut Responder, &mut Inbound<'_, O>) -> R,
    ) -> Option<R> {
        if state.stolen() {
            state.lanes.leave();
            state.responder.forget_kept();
        }
        if self.is_closed() {
            return None;
        }
        let State { responder, config, lanes, counted } = &mut *state;
        let mut host = Inbound::new(qp, config.dest_qpn, lanes, out());
        let result = f(responder, &mut host);
        // Before the lane is left: the counts of a request are there for those that wait for its end.
        counters::of_responder(&qp.tally, responder.counters(), counted);
        Some(result)
    }

    /// Sets how many READs and atomics the peer may have outstanding from now on.
    pub fn set_max_dest_rd_atomic(&self, most: u8) {
        self.state.lock().responder.set_max_dest_rd_atomic(most);
    }

    /// [`Responder::drop_kept`].
    pub fn drop_kept(&self) {
        self.state.lock().responder.drop_kept();
    }

    /// PSN of the request packet that is expected next.
    pub fn expected_psn(&self) -> u32 {
        self.state.lock().responder.expected_psn()
    }

    /// Counters of the responder.
    pub fn counters(&self) -> ResponderCounters {
        *self.state.lock().responder.counters()
    }

    /// Returns true if an acknowledgement is due.
    #[inline]
    pub fn has_ack_due(&self) -> bool {
        self.state.lock().responder.has_ack_due()
    }

    /// Returns true if a NAK is to be sent.
    pub fn has_refusal_due(&self) -> bool {
        self.state.lock().responder.has_refusal_due()
    }

    /// Goes on in the place of a responder that was saved. If its requester takes reports of gaps, packets are kept in
    /// `share`.
    pub fn resume(&self, qp: &Qp, mut saved: SavedResponder, share: Option<&Arc<KeptShare>>) -> Result<()> {
        saved::claim_places(qp, &mut saved)?;
        let mut state = self.state.lock();
        state.responder = Responder::resume(&state.config, &saved).map_err(saved::unusable)?;
        share.filter(|_| saved.reports).iter().for_each(|share| state.responder.keep_packets(share));
        Ok(())
    }

    /// Set once the QP is reset or gone.
    pub fn closed(&self) -> &Closed {
        &self.closed
    }

    /// Returns true if the QP is reset or gone.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.closed.is_set()
    }

    /// Lets nothing more into the QP, and gives the lanes back.
    pub fn close(&self) {
        let mut state = self.state.lock();
        self.closed.set();
        state.lanes.release();
        state.responder.drop_kept();
    }
}
