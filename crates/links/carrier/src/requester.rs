//! The requester's end of a connection: the requester, and its host, which has a send queue in hand.

use super::{AsPieces, PacketOut, counters};
use std::cell::Cell;
use vervain_hca::device::port_counters::Tally;
use vervain_hca::mr::transfer::Pieces;
use vervain_hca::qp::remote::Sends;
use vervain_hca::{Opcode, Request, Status};
use vervain_transport::{
    Data, Nanos, Payload, Refused, Requester, RequesterConfig, RequesterCounters, RequesterHost, SavedRequester,
    Transmit, Unusable, Window,
};
use vervain_wire::opcode;

/// The requester of a QP, with its position in the send queue.
#[derive(Default)]
pub struct RequesterEnd {
    /// Made when the QP is ready to send.
    requester: Option<Requester>,
    /// Requests of the send queue that the requester has not seen: this process carried them out alone.
    skipped: u32,
    /// One past the last request that the requester has seen in RTS; in SQD no later one begins.
    begun: Cell<u32>,
    /// The requester's counters when they were last added to the QP's.
    counted: RequesterCounters,
}

impl RequesterEnd {
    /// Counters of the requester; None: the QP was never ready to send.
    pub fn counters(&self) -> Option<&RequesterCounters> {
        self.requester.as_ref().map(Requester::counters)
    }

    /// PSN of the next new packet.
    pub fn next_psn(&self) -> Option<u32> {
        self.requester.as_ref().map(Requester::next_psn)
    }

    /// Time at which the requester wants to be called, if at any.
    #[inline]
    pub fn next_timeout(&self) -> Option<Nanos> {
        self.requester.as_ref().and_then(Requester::next_timeout)
    }

    /// Returns true if there is a requester that has nothing under way.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.requester.as_ref().is_some_and(Requester::is_idle)
    }

    /// Returns true if requests are under way.
    pub fn has_begun(&self) -> bool {
        self.under_way() > 0
    }

    /// Number of requests under way.
    #[inline]
    pub fn under_way(&self) -> usize {
        self.requester.as_ref().map_or(0, Requester::under_way)
    }

    /// [`Requester::waits_for_receive`].
    pub fn waits_for_receive(&self) -> bool {
        self.requester.as_ref().is_some_and(Requester::waits_for_receive)
    }

    /// [`Requester::modify`].
    pub fn modify(&mut self, config: &RequesterConfig) {
        self.requester.iter_mut().for_each(|requester| requester.modify(config));
    }

    /// Adds the requester's counts since the last call.
    #[inline]
    pub fn count(&mut self, tally: &Tally) {
        if let Some(requester) = &self.requester {
            counters::of_requester(tally, requester.counters(), &mut self.counted);
        }
    }

    /// Returns true if requests, or packets of them, are still to be sent.
    pub fn has_unsent(&self, sends: &Sends<'_>) -> bool {
        let is_posted = |n| sends.may_begin() && sends.get(n).is_some();
        match &self.requester {
            Some(requester) => requester.has_unsent() || is_posted(self.next()),
            None => is_posted(sends.head()),
        }
    }

    /// [`Requester::waits_for_peer`].
    pub fn waits_for_peer(&self) -> bool {
        self.requester.as_ref().is_some_and(Requester::waits_for_peer)
    }

    /// Ends the requester of a QP that is disconnected: what it had under way counts no more in `window`.
    pub fn abandon(&mut self, window: &mut Window) {
        if let Some(mut requester) = self.requester.take() {
            requester.abandon(window);
        }
    }

    /// Makes the requester, from the first PSN and the first request, unless one goes on already. None: the QP is not
    /// ready to send.
    pub fn start(&mut self, sends: &Sends<'_>, config: impl FnOnce(u32, u32) -> RequesterConfig) -> Option<()> {
        if self.requester.is_none() && !sends.may_begin() {
            return None;
        }
        // An ended one may be replaced: UC goes from SQE back to RTS, with the next PSN.
        let first_psn = match &self.requester {
            Some(requester) if !requester.has_ended() || !sends.may_begin() => return Some(()),
            Some(ended) => ended.next_psn(),
            None => sends.path().sq_psn,
        };
        self.begun.set(sends.head());
        self.skipped = 0;
        self.requester = Some(Requester::new(&config(first_psn, sends.head())));
        self.counted = RequesterCounters::default();
        Some(())
    }

    /// The record from which another requester can go on; None if there is none that goes on.
    pub fn save(&self) -> Option<SavedRequester> {
        self.requester.as_ref()?.save()
    }

    /// Makes a requester in the place of a saved one, with the same requests posted. `config` is that of
    /// [`RequesterEnd::start`].
    pub fn resume<O: PacketOut>(
        &mut self,
        sends: &mut Sends<'_>,
        out: O,
        saved: &SavedRequester,
        config: impl FnOnce(u32, u32) -> RequesterConfig,
    ) -> Result<(), Unusable> {
        let head = sends.head();
        if saved.begun > sends.tail().wrapping_sub(head) {
            return Err(Unusable("more requests were begun than there are"));
        }
        // They count as begun, so that they go on in SQD too.
        self.begun.set(head.wrapping_add(saved.begun));
        self.skipped = 0;
        let mut host = SendQueueHost { sends, skipped: 0, begun: &self.begun, out, reason: None };
        self.requester = Some(Requester::resume(&config(saved.first_psn, head), saved, &mut host)?);
        Ok(())
    }

    /// Number of the next request that the requester has not seen.
    #[inline]
    pub fn next(&self) -> u32 {
        self.begun.get()
    }

    /// The requester and its host, whose packets go to `out`. Only after [`RequesterEnd::start`].
    pub fn host<'a, 's, O>(
        &'a mut self,
        sends: &'a mut Sends<'s>,
        out: O,
    ) -> Option<(&'a mut Requester, SendQueueHost<'a, 's, O>)> {
        let RequesterEnd { requester, skipped, begun, .. } = self;
        let host = SendQueueHost { sends, skipped: *skipped, begun, out, reason: None };
        requester.as_mut().map(|requester| (requester, host))
    }

    /// Carries out a bind or an invalidation at the head. It waits for everything before it, and everything after waits
    /// for it. Returns true if there was one.
    #[inline]
    pub fn do_local(&mut self, sends: &mut Sends<'_>) -> bool {
        self.has_turn(sends) && sends.is_local(sends.head()) && {
            sends.do_local();
            self.skip(sends);
            true
        }
    }

    /// Lets `execute` carry out the request at the head without the requester, if nothing is under way. Returns true if
    /// it did, and thus returned a status.
    #[inline]
    pub fn do_alone(&mut self, sends: &mut Sends<'_>, execute: impl FnOnce(&Sends<'_>, u32) -> Option<Status>) -> bool {
        if !self.has_turn(sends) {
            return false;
        }
        let Some(status) = execute(sends, sends.head()) else { return false };
        sends.finish(status);
        self.skip(sends);
        true
    }

    /// Returns true if a request at the head may begin, and nothing is under way.
    #[inline]
    fn has_turn(&self, sends: &Sends<'_>) -> bool {
        sends.head() != sends.tail() && self.is_idle() && sends.may_begin()
    }

    /// Makes the requester pass over the request just done.
    #[inline]
    fn skip(&mut self, sends: &Sends<'_>) {
        self.skipped = self.skipped.wrapping_add(1);
        self.begun.set(sends.head());
    }
}

/// A send queue while its requester works.
pub struct SendQueueHost<'a, 's, O> {
    sends: &'a mut Sends<'s>,
    skipped: u32,
    begun: &'a Cell<u32>,
    /// The way out for packets.
    pub out: O,
    /// Reason why the last refused request was refused.
    reason: Option<Status>,
}

impl<O> SendQueueHost<'_, '_, O> {
    fn scatter(&mut self, n: u32, offset: u64, from: &Pieces) -> Result<(), Refused> {
        self.sends.scatter(n.wrapping_add(self.skipped), offset, from).map_err(|status| {
            self.reason = Some(status);
            Refused::Memory
        })
    }
}

impl<O: PacketOut> RequesterHost for SendQueueHost<'_, '_, O> {
    type Data = O::Data;

    #[inline(always)]
    fn request(&self, n: u32) -> Option<Request> {
        let at = n.wrapping_add(self.skipped);
        let posted = self.sends.get(at)?;
        if posted.opcode.is_local() {
            return None;
        }
        let is_new = at.wrapping_sub(self.begun.get()) as i32 >= 0;
        if is_new {
            if !self.sends.may_begin() || O::HAS_SHORTCUTS && self.out.holds(posted) {
                return None;
            }
            self.begun.set(at.wrapping_add(1));
        }
        let length = if posted.opcode == Opcode::Flush { posted.flush.length } else { posted.length };
        Some(Request { length, ..*posted })
    }

    #[inline]
    fn transmit(&mut self, packet: &Transmit<'_>) -> Result<(), Refused> {
        if !self.out.has_room() {
            return Err(Refused::Full);
        }
        let mut from = Pieces::new();
        if let Payload::Request { n, offset, len } = packet.payload {
            let at = n.wrapping_add(self.skipped);
            if O::HAS_SHORTCUTS && opcode::starts(packet.headers.bth.opcode) {
                self.out.begins_message(self.sends.get(at).map_or(0, |request| request.length));
            }
            let first = opcode::starts(packet.headers.bth.opcode) && !packet.again;
            let gathered = match first {
                true => self.sends.gather_first(at, len.into(), &mut from),
                false => self.sends.gather(at, offset, len.into(), &mut from),
            };
            if let Err(status) = gathered {
                self.reason = Some(status);
                return Err(Refused::Memory);
            }
        }
        self.out.push(packet.headers, &from)
    }

    #[inline]
    fn landing(&self, left: u32) -> u32 {
        self.out.landing(left)
    }

    fn asks(&mut self, n: u32, offset: u64, len: u64) {
        if O::HAS_SHORTCUTS {
            let destination = self.sends.destination(n.wrapping_add(self.skipped), offset, len);
            self.out.asks(destination);
        }
    }

    fn deliver(&mut self, n: u32, offset: u64, data: &O::Data) -> Result<(), Refused> {
        if data.has_landed() {
            let checked = self.sends.check_destination(n.wrapping_add(self.skipped), offset, data.length() as u64);
            return checked.map_err(|status| {
                self.reason = Some(status);
                Refused::Memory
            });
        }
        let mut from = Pieces::new();
        data.add_to(&mut from);
        self.scatter(n, offset, &from)
    }

    fn deliver_word(&mut self, n: u32, word: u64) -> Result<(), Refused> {
        self.scatter(n, 0, &Pieces::of(&word.to_ne_bytes()))
    }

    fn is_taken(&self) -> bool {
        self.out.is_taken()
    }

    fn complete(&mut self, n: u32, status: Status) {
        debug_assert_eq!(n.wrapping_add(self.skipped), self.sends.head());
        let reason = if status == Status::LocalProtection { self.reason.take() } else { None };
        self.sends.finish(reason.unwrap_or(status));
    }
}
