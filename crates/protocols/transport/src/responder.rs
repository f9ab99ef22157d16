//! The responder of a QP (IBA 9.7.4, 9.7.5): takes request packets in PSN order, has its host execute them, and keeps
//! what is to be answered until it is polled for it. Executed requests that come again are answered again and not
//! executed again.

use serde::{Deserialize, Serialize};

mod answer;
mod duplicate;
mod execute;
mod kept;
mod saved;
mod transmit;

use std::sync::Arc;

use vervain_iba::{Nak, Right, Status};
use vervain_wire::aeth::{NakCode, Syndrome};
use vervain_wire::{Headers, Packet, opcode};

use crate::config::{LARGEST_MTU, ResponderConfig, Service};
use crate::counters::ResponderCounters;
use crate::host::{Data, Received, ResponderHost};
use crate::psn;
use crate::saved::Unusable;
use answer::Answers;
pub(crate) use answer::REMEMBERED;
pub use answer::{Answer, Body, Resource};
pub use execute::Message;
pub(crate) use kept::MOST_KEPT;
use kept::{Fate, Kept};
pub use kept::{KeptRoom, KeptShare};
pub use saved::SavedResponder;

/// Most kept packets that one call executes. Those of a long gap take milliseconds together, and the thread that
/// receives has others to serve.
const KEPT_IN_CALL: u32 = 64;

/// A UC packet that is behind by this much at most is late or a copy. A fabric delivers in order and once, so IBA has
/// no rule; UDP does neither. Not half of all PSNs, as for RC: a sender goes on while the link is down and would not be
/// heard after.
const LATE: u32 = 1 << 16;
/// Most parts of READs that wait to be answered again.
const MOST_PARTS: usize = 256;

/// The receiving side of a connected QP.
#[derive(Debug)]
pub struct Responder {
    config: ResponderConfig,
    opcode_base: u8,
    expected: u32,
    /// Messages executed (IBA 9.7.7).
    msn: u32,
    /// The message of several packets that is coming in.
    message: Option<Message>,
    /// A SEND whose receive was taken before it comes.
    announced: Option<Message>,
    /// The requester has been told, or shall not be told, that `expected` is missing (IBA 9.7.5.2.8: one NAK).
    quiet: bool,
    /// The last PSN that has come since then. One that is not higher shows that the requester went back and `expected`
    /// was lost again. None: it was not lost, and its requester is to hear nothing.
    beyond: Option<u32>,
    /// The highest PSN that was dropped since then for being beyond `expected`.
    dropped: Option<u32>,
    ack_due: bool,
    /// The acknowledgement of the packet in hand has left, and with it that of all before.
    acked_first: bool,
    refusal: Option<Refusal>,
    answers: Answers,
    /// Packets beyond `expected`. None: the requester takes no reports of gaps, and nothing is kept.
    kept: Option<Box<Kept>>,
    ended: bool,
    counters: ResponderCounters,
}

/// A NAK to be sent after all answers to requests before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// PSN of the request that is refused.
    pub psn: u32,
    /// The answer to the requester.
    pub syndrome: Syndrome,
    /// The consequence at this end.
    pub then: Then,
}

/// The consequence of a NAK for the QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Then {
    /// The requester tries again.
    Nothing,
    /// It ends.
    Fail(Nak),
    /// The QP ends, and so does a receive, with the arguments of [`ResponderHost::spoil`].
    #[allow(missing_docs)]
    Spoil { srqn: u32, receive: u32, received: Received, status: Status, nak: Nak },
}

/// The reason why a packet was not executed.
#[derive(Clone, Copy, Debug)]
enum Stop {
    Nak(Nak),
    /// The request changes memory that is still to be sent to a reader. It counts as lost on the way; a NAK behind the
    /// reader's answer asks for it again.
    TooEarly,
    /// The receive of the message completes in error.
    Spoil {
        srqn: u32,
        receive: u32,
        received: Received,
        status: Status,
        nak: Nak,
    },
}

impl From<Nak> for Stop {
    fn from(nak: Nak) -> Stop {
        Stop::Nak(nak)
    }
}

impl Responder {
    /// A responder that has received nothing. `config.mtu` must be a power of two up to [`LARGEST_MTU`].
    pub fn new(config: &ResponderConfig) -> Responder {
        debug_assert!(config.mtu.is_power_of_two() && config.mtu <= LARGEST_MTU);
        Responder {
            config: *config,
            opcode_base: config.service.opcode_base(),
            expected: config.expected_psn & psn::MASK,
            msn: 0,
            message: None,
            announced: None,
            quiet: false,
            beyond: None,
            dropped: None,
            ack_due: false,
            acked_first: false,
            refusal: None,
            answers: Answers::default(),
            kept: None,
            ended: false,
            counters: ResponderCounters::default(),
        }
    }

    /// The state that another responder needs to go on. A receive that was taken for an announced message is given
    /// back.
    pub fn save(&mut self, host: &mut impl ResponderHost) -> SavedResponder {
        if self.announced.is_some() {
            self.drop_message(host);
        }
        SavedResponder {
            expected: self.expected,
            msn: self.msn,
            message: self.message,
            quiet: self.quiet,
            beyond: self.beyond,
            dropped: self.dropped,
            ack_due: self.ack_due,
            refusal: self.refusal,
            answers: self.answers.due.iter().copied().collect(),
            resources: self.answers.resources.iter().copied().collect(),
            ended: self.ended,
            reports: self.answers.remembers_more,
        }
    }

    /// A responder in the place of one that was saved. `config` is as for [`Responder::new`], whose `expected_psn` is
    /// not looked at. The host sees that the receives of its message and of its refusal are claimed. If
    /// `saved.reports`, the caller goes on with [`Responder::keep_packets`].
    ///
    /// # Errors
    /// No responder has been in such a state.
    pub fn resume(config: &ResponderConfig, saved: &SavedResponder) -> Result<Responder, Unusable> {
        saved.check(config)?;
        let SavedResponder { expected, msn, message, quiet, beyond, dropped, ack_due, refusal, ended, .. } = *saved;
        let (due, resources) = (saved.answers.iter().copied().collect(), saved.resources.iter().copied().collect());
        let answers = Answers { due, resources, remembers_more: saved.reports };
        Ok(Responder {
            message,
            msn,
            quiet,
            beyond,
            dropped,
            ack_due,
            refusal,
            ended,
            answers,
            ..Responder::new(&ResponderConfig { expected_psn: expected, ..*config })
        })
    }

    /// Changes how many READs and atomics the peer may have outstanding; it may while the QP is drained (IBA 11.2.5.2).
    pub fn set_max_dest_rd_atomic(&mut self, most: u8) {
        self.config.max_dest_rd_atomic = most;
    }

    /// Keeps packets that come before one that is missing, in the peer's `share`, and reports gaps from now on: the
    /// requester has shown that it takes such reports ([`Responder::handle_introduction`]).
    pub fn keep_packets(&mut self, share: &Arc<KeptShare>) {
        if self.config.service != Service::Uc && !self.ended {
            self.answers.remembers_more = true;
            self.kept.get_or_insert_with(|| Box::new(Kept::new(share)));
        }
    }

    /// Drops the packets that are kept. Their requester takes them for lost when it is asked for them again.
    pub fn drop_kept(&mut self) {
        self.kept.iter_mut().for_each(|kept| kept.clear());
    }

    /// Keeps nothing any more, for a thread has ended in the middle of a call.
    pub fn forget_kept(&mut self) {
        self.kept.iter_mut().for_each(|kept| kept.forget());
        self.kept = None;
    }

    /// Returns true if packets are kept that came before one that is missing.
    #[inline]
    pub fn keeps_some(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| !kept.is_empty())
    }

    /// Returns true if the turn of a kept packet has come: [`Responder::execute_kept`] is to be called, though no
    /// packet may come any more.
    #[inline]
    pub fn has_kept_due(&self) -> bool {
        self.quiet && self.kept.as_ref().is_some_and(|kept| kept.is_due(self.expected))
    }

    /// Returns true if more than an acknowledgement or a NAK is to be sent: READ responses or atomic answers.
    #[inline]
    pub fn has_answers_due(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Returns true if a NAK is to be sent.
    #[inline]
    pub fn has_refusal_due(&self) -> bool {
        self.refusal.is_some()
    }

    /// Returns true if [`Responder::poll_transmit`] has something to send.
    #[inline]
    pub fn has_ack_due(&self) -> bool {
        self.ack_due || self.refusal.is_some() || !self.answers.is_empty()
    }

    /// Returns true if a request was refused with an error. The responder takes nothing more; the NAK may wait to be
    /// sent.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// PSN of the request that is expected next (`rq_psn` of a queried QP).
    pub fn expected_psn(&self) -> u32 {
        self.expected
    }

    /// Counts since the start.
    pub fn counters(&self) -> &ResponderCounters {
        &self.counters
    }

    /// Takes a request packet of an RC or XRC requester which says that it takes reports of gaps
    /// ([`vervain_wire::TAKES_GAPS`]), as [`Responder::handle_packet`] does. It is believed if the packet is the
    /// expected one and is executed, which a stranger's hardly is; packets are kept in `share` then.
    #[cold]
    pub fn handle_introduction<H: ResponderHost>(
        &mut self,
        packet: &Packet<'_, H::Data>,
        host: &mut H,
        share: &Arc<KeptShare>,
    ) {
        let is_next = packet.headers.bth.psn == self.expected;
        self.handle_packet(packet, host);
        if is_next && packet.headers.bth.psn != self.expected {
            self.keep_packets(share);
        }
    }

    /// Executes kept packets whose turn has come, in PSN order, at most 64. Returns true if more are left
    /// ([`Responder::has_kept_due`]).
    #[inline]
    pub fn execute_kept<H: ResponderHost>(&mut self, host: &mut H) -> bool {
        if !self.has_kept_due() || self.ended || self.refuses_for_good() {
            return false;
        }
        self.go_on(self.expected, KEPT_IN_CALL, host);
        self.has_kept_due()
    }

    /// Takes a request packet. Poll for what is to be said to it; only READs whose memory it changes are answered at
    /// once. If it fills a gap, up to 64 of the packets kept behind it are executed, and the rest by
    /// [`Responder::execute_kept`].
    #[inline]
    pub fn handle_packet<H: ResponderHost>(&mut self, packet: &Packet<'_, H::Data>, host: &mut H) {
        let bth = &packet.headers.bth;
        // Requests behind one that is refused for good are not executed.
        let ends = self.refuses_for_good();
        let is_ours = bth.opcode == self.opcode_base | opcode::operation(bth.opcode) && opcode::is_request(bth.opcode);
        if self.ended || ends || !is_ours {
            self.counters.dropped += 1;
            return;
        }
        if self.config.service == Service::Uc {
            return self.unreliable(packet, host);
        }
        if bth.psn == self.expected {
            self.next_request(packet, host);
        } else if psn::is_before(bth.psn, self.expected) {
            self.counters.duplicates += 1;
            self.duplicate(packet, host);
        } else {
            self.early(packet);
        }
    }

    /// Returns true if the NAK that waits to be sent ends the QP.
    #[inline]
    fn refuses_for_good(&self) -> bool {
        self.refusal.is_some_and(|refusal| !matches!(refusal.then, Then::Nothing))
    }

    /// The packet with the expected PSN.
    #[inline]
    fn next_request<H: ResponderHost>(&mut self, packet: &Packet<'_, H::Data>, host: &mut H) {
        let (missing, was_due) = (self.expected, self.has_kept_due());
        match self.execute_next(packet, host) {
            Ok(()) => {
                if self.quiet {
                    // Once the turn of kept packets has come, each further packet from the wire takes the place of one.
                    let most = if was_due { 0 } else { KEPT_IN_CALL };
                    self.go_on(missing, most, host);
                }
            }
            Err(stop) => self.refuse(stop),
        }
    }

    /// Executes the packet with the expected PSN; the next one is expected then.
    #[inline(always)]
    fn execute_next<H: ResponderHost>(&mut self, packet: &Packet<'_, H::Data>, host: &mut H) -> Result<(), Stop> {
        let packets = self.execute(packet, host)?;
        self.expected = psn::add(self.expected, packets);
        if packets > 1
            && let Some(kept) = &mut self.kept
        {
            kept.executed_read(packets);
        }
        // The others are answered by themselves.
        let is_posted = opcode::is_send(packet.headers.bth.opcode) || opcode::is_write(packet.headers.bth.opcode);
        if std::mem::take(&mut self.acked_first) {
            self.ack_due = false;
        } else {
            self.ack_due |= packet.headers.bth.ack_request && is_posted;
        }
        Ok(())
    }

    /// A request that has been executed before (IBA 9.7.5.1): a SEND or WRITE is acknowledged again, a READ read again,
    /// an atomic answered with what it found the first time.
    #[cold]
    fn duplicate<H: ResponderHost>(&mut self, packet: &Packet<'_, H::Data>, host: &mut H) {
        let headers = &packet.headers;
        let (code, psn) = (headers.bth.opcode, headers.bth.psn);
        if opcode::is_send(code) || opcode::is_write(code) {
            self.ack_due |= self.answers.acknowledge_again(psn, self.expected);
            // Packets that come as one may have been cut in another way the first time, and only the first of them have
            // been executed.
            let last = psn::add(psn, self.packets(packet) - 1);
            if !psn::is_before(last, self.expected) {
                self.out_of_sequence(last);
            }
            return;
        }
        // None: it is too long ago for its requester to miss the answer.
        let answer = self.answers.find(psn).and_then(|resource| match (opcode::operation(code), resource.body) {
            (opcode::READ_REQUEST, Body::Read { .. }) => self.read_again(headers, &resource, host),
            (opcode::COMPARE_SWAP | opcode::FETCH_ADD, Body::Word(_))
            | (opcode::FLUSH | opcode::ATOMIC_WRITE, Body::Nothing) => {
                Some(Answer { psn, packets: 1, body: resource.body, msn: self.msn, begun: false, again: true })
            }
            _ => None,
        });
        // A requester that takes reports asks for each part of a READ that it misses by itself.
        let parts = if self.kept.is_some() { MOST_PARTS } else { 0 };
        let most = 2 * usize::from(self.config.max_dest_rd_atomic) + parts;
        if !answer.is_some_and(|answer| self.answers.insert(answer, most)) {
            self.counters.dropped += 1;
        }
    }

    /// The answer to a READ that is asked for again, whole or in part.
    fn read_again(&mut self, headers: &Headers, resource: &Resource, host: &mut impl ResponderHost) -> Option<Answer> {
        let body = resource.part(headers, self.config.mtu)?;
        let Body::Read { srqn, rkey, addr, length } = body else { return None };
        match host.check(srqn, rkey, addr, u64::from(length), Right::Read) {
            Ok(()) => {}
            Err(Nak::RemoteAccess | Nak::InvalidRequest) => {
                self.refuse_again(headers.bth.psn, NakCode::RemoteAccess);
                return None;
            }
            Err(_) => return None,
        }
        let packets = length.div_ceil(self.config.mtu).max(1);
        Some(Answer { psn: headers.bth.psn, packets, body, msn: self.msn, begun: false, again: true })
    }

    /// The memory of a READ that is asked for again has gone. The requester gets a NAK, but the QP goes on: the request
    /// may be an old copy of one that was answered, for which the requester then takes the NAK, too.
    fn refuse_again(&mut self, psn: u32, code: NakCode) {
        let syndrome = Syndrome::Nak(code);
        self.refusal.get_or_insert(Refusal { psn, syndrome, then: Then::Nothing });
    }

    /// A packet of UC, where messages that come whole are executed and all others dropped without an answer. A gap
    /// drops the message that is coming in; the next one may begin anywhere (IBA 9.8.2.2).
    fn unreliable<H: ResponderHost>(&mut self, packet: &Packet<'_, H::Data>, host: &mut H) {
        let bth = &packet.headers.bth;
        if bth.psn != self.expected {
            if psn::distance(bth.psn, self.expected) <= LATE {
                self.counters.duplicates += 1;
                return;
            }
            self.counters.out_of_sequence += 1;
            self.drop_message(host);
        }
        self.expected = psn::add(bth.psn, self.packets(packet));
        if opcode::starts(bth.opcode) {
            // The one before was not finished.
            if self.message.is_some() {
                self.drop_message(host);
            }
        } else if self.message.is_none() {
            self.counters.dropped += 1;
            return;
        }
        match self.execute(packet, host) {
            Ok(_) => {}
            // IBA 9.9.3, class D: the message is dropped.
            Err(Stop::Nak(_) | Stop::TooEarly) => {
                self.counters.dropped += 1;
                self.drop_message(host);
            }
            Err(Stop::Spoil { srqn, receive, received, status, nak }) => {
                self.finish(Then::Spoil { srqn, receive, received, status, nak }, host);
            }
        }
    }

    /// A packet beyond the expected one. If it can be kept, the requester gets a report when it needs one: of a new
    /// gap, of a kept packet that was dropped, and when it asks, by AckReq or by sending again what has come.
    #[cold]
    fn early<D: Data + ?Sized>(&mut self, packet: &Packet<'_, D>) {
        let (bth, expected) = (&packet.headers.bth, self.expected);
        let psns = match packet.headers.reth {
            Some(reth) if opcode::operation(bth.opcode) == opcode::READ_REQUEST => {
                reth.length.div_ceil(self.config.mtu).max(1)
            }
            _ => 1,
        };
        let fate = self.kept.as_mut().map_or(Fate::Dropped, |kept| kept.add(expected, packet, psns));
        if fate == Fate::Dropped {
            return self.out_of_sequence(bth.psn);
        }
        self.counters.out_of_sequence += 1;
        if std::mem::replace(&mut self.quiet, true) && self.beyond.is_none() {
            return;
        }
        self.beyond = Some(bth.psn);
        if (fate != Fate::Fits || bth.ack_request) && self.refusal.is_none() {
            self.refuse_sequence();
        }
    }

    #[cold]
    fn refuse(&mut self, stop: Stop) {
        self.quiet = true;
        self.beyond = Some(self.expected);
        let (nak, then) = match stop {
            Stop::Nak(nak) => (nak, Then::Fail(nak)),
            Stop::TooEarly => {
                self.counters.dropped += 1;
                return self.refuse_sequence();
            }
            Stop::Spoil { srqn, receive, received, status, nak } => {
                (nak, Then::Spoil { srqn, receive, received, status, nak })
            }
        };
        let (syndrome, then) = match nak {
            // The same as if the packet had been lost on the way.
            Nak::Silence => {
                self.beyond = None;
                self.counters.dropped += 1;
                return;
            }
            Nak::ReceiverNotReady(timer) => {
                self.counters.rnr_naks += 1;
                (Syndrome::RnrNak(timer), Then::Nothing)
            }
            Nak::InvalidRequest => (Syndrome::Nak(NakCode::InvalidRequest), then),
            Nak::RemoteAccess => (Syndrome::Nak(NakCode::RemoteAccess), then),
            Nak::RemoteOperation => (Syndrome::Nak(NakCode::RemoteOperation), then),
        };
        self.refusal = Some(Refusal { psn: self.expected, syndrome, then });
    }

    /// Handles a packet beyond the expected one: one NAK, then silence until the expected one comes (IBA 9.7.5.2.8). If
    /// PSNs begin anew without it, it was lost again, and a second NAK asks for it, since nothing else would.
    fn out_of_sequence(&mut self, psn: u32) {
        self.counters.out_of_sequence += 1;
        if self.dropped.is_none_or(|dropped| psn::is_before(dropped, psn)) {
            self.dropped = Some(psn);
        }
        if self.quiet {
            let Some(beyond) = self.beyond.replace(psn) else {
                self.beyond = None;
                return;
            };
            if psn::is_before(beyond, psn) {
                return;
            }
        }
        self.quiet = true;
        self.beyond = Some(psn);
        self.refuse_sequence();
    }

    /// The requester is to go back to the expected packet.
    fn refuse_sequence(&mut self) {
        let syndrome = Syndrome::Nak(NakCode::Sequence);
        self.refusal = Some(Refusal { psn: self.expected, syndrome, then: Then::Nothing });
    }

    /// The packet at `missing` has come after all, or the turn of the one that was kept there, and with it that of
    /// those kept behind it, of which at most `most` are executed. If its NAK has not left yet, it is not told of, but
    /// the next one is that was dropped, or is missing, behind it: else its requester would learn of that by its
    /// timeout.
    #[cold]
    fn go_on<H: ResponderHost>(&mut self, missing: u32, most: u32, host: &mut H) {
        let is_told = |refusal: &Refusal| refusal.psn == missing && refusal.then == Then::Nothing;
        for _ in 0..most {
            let Some(kept) = self.kept.as_mut().and_then(|kept| kept.take(self.expected)) else { break };
            let headers = kept.headers;
            host.next_packet();
            let executed =
                H::Data::with_kept(&kept.payload, |payload| self.execute_next(&Packet { headers, payload }, host));
            if let Some(all) = &self.kept {
                all.reuse(kept);
            }
            if let Some(Err(stop)) = executed {
                // What ends the QP stays: the memory of a READ at `missing` may have gone.
                self.refusal.take_if(|refusal| is_told(refusal));
                return self.refuse(stop);
            }
        }
        let (keeps_some, is_due) = (self.keeps_some(), self.has_kept_due());
        if self.refusal.as_ref().is_some_and(is_told) {
            if keeps_some || self.dropped.is_some_and(|dropped| !psn::is_before(dropped, self.expected)) {
                // While kept packets are due, it waits for the next call.
                return self.refuse_sequence();
            }
            self.refusal = None;
        }
        if is_due {
            return;
        }
        (self.quiet, self.dropped) = (keeps_some, None);
        if keeps_some {
            // If the last one could not be executed, nothing was to be said; now it was.
            self.beyond.get_or_insert(self.expected);
        }
    }
}
