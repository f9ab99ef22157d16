//! Datagrams (IBA 9.8.3): a send completes when it has left, and arrives or is dropped. It waits for no peer: messages
//! to a process whose handshake is under way, or that a carrier holds back, are kept for a moment, so that the first
//! one is not lost and a stopped process does not hold up the others. Programs rely on that: UCX uses a buffer again
//! once the peer has answered its message, even if the buffer is still posted for another send. Only messages to a
//! group, and others beyond a few, wait for their carrier in the send queue.

use crate::arena::layout::{MULTICAST_QPN, slot_of};
use crate::device::grh::{self, GRH_BYTES};
use crate::device::port_counters::Word;
use crate::host::clock::now_ns;
use crate::mr::transfer::{self, Direction, Pieces};
use crate::qp::ah::Route;
use crate::qp::base::QpBase;
use crate::qp::sq::exec::{Step, clock};
use crate::qp::sq::resolve::{self, Resolved};
use crate::qp::sq::wqe::UdAddress;
use crate::responder::datagram::{self, Arriving, Outcome};
use crate::responder::{Barred, Responder, WakeCall};
use crate::rq::Receipt;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use vervain_iba::{AhAttr, Nak, Opcode, Status, wc};

/// Shortest time that a message is kept for a process that does not answer, in ns. A message to a process that lives
/// but has had no CPU is kept longer, while at most [`KEEP_LONGER`] wait: an adapter receives for such a process.
const KEEP_NS: u64 = 1_000_000_000;
/// The most messages that are kept.
const KEEP: usize = 1024;
const KEEP_LONGER: usize = KEEP / 2;
/// Longest time that a message is kept which its carrier holds back, in ns. Most often the carrier gives up earlier.
const KEEP_FOR_CARRIER_NS: u64 = 4_000_000_000;
/// The number of kept messages from which on those for carriers wait in the send queue.
const KEEP_FOR_CARRIER: usize = 64;
const LOOK_NS: u64 = 100_000;
/// Delay before a look at a stopped QP, which announces that it goes on, or at a process that has had no CPU for long,
/// in ns.
const LOOK_AT_STOPPED_NS: u64 = 50_000_000;

/// A datagram that leaves by a carrier.
pub struct Datagram<'a> {
    /// Destination.
    pub ah: &'a AhAttr,
    /// Destination QP.
    pub qpn: u32,
    /// Q_Key for the packet.
    pub qkey: u32,
    /// Immediate data in the byte order of memory.
    pub imm: Option<u32>,
    /// True: it asks for a solicited event.
    pub solicited: bool,
    /// The payload, valid during the call.
    pub data: &'a Pieces,
}

/// The carriers of a UD QP's datagrams.
pub(crate) trait DatagramOut: Send + Sync {
    /// Takes a datagram along; it leaves with the next [`DatagramOut::flush`] of the same thread. Some(time)
    /// (CLOCK_MONOTONIC, ns): the peer has no room for it now; it is to be tried again then.
    fn send(&self, route: Route, datagram: &Datagram<'_>) -> Option<u64>;

    /// Sends the datagrams that this thread has queued.
    fn flush(&self);
}

/// The peers that a UD QP has sent to, and the messages that wait to be sent.
#[derive(Default)]
pub(crate) struct UdPeers {
    known: HashMap<u32, Responder>,
    waiting: VecDeque<Kept>,
    /// True: packets were queued that have not been sent.
    left: bool,
    /// True: all messages wait for QPs that are stopped, or for processes that have had no CPU for [`KEEP_NS`].
    all_stand: bool,
    /// The carriers.
    out: Option<Weak<dyn DatagramOut>>,
}

/// The QP that sends, and its Q_Key.
#[derive(Clone, Copy)]
pub(crate) struct Sender<'a> {
    pub qp: &'a QpBase,
    pub qkey: u32,
}

impl Sender<'_> {
    /// IBA 9.6.1.3.1: a Q_Key with the high bit set stands for the sending QP's own.
    fn qkey_for(&self, to: &UdAddress) -> u32 {
        if to.qkey & 0x8000_0000 != 0 { self.qkey } else { to.qkey }
    }

    fn clock(&self) -> u64 {
        clock(self.qp.switch)
    }
}

/// A datagram without its destination.
pub(crate) struct Message<'a> {
    /// The payload, readable local memory.
    pub data: &'a Pieces,
    /// Immediate data in the byte order of memory.
    pub imm: Option<u32>,
    /// True: it asks for a solicited event.
    pub solicited: bool,
}

/// A datagram that waits.
struct Kept {
    to: UdAddress,
    data: Vec<u8>,
    imm: Option<u32>,
    solicited: bool,
    /// True: for its carrier. Else for memory, also to a member of a group that is reached both ways.
    is_carried: bool,
    /// The time until which it is kept, in ns of the QP's clock.
    until: u64,
}

/// The outcome of a delivery.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Delivery {
    /// It has arrived, or is lost.
    Over,
    /// The way to the QP is not known yet, or closed for a moment.
    Later,
    /// The QP is stopped.
    Stopped,
}

/// A QP that took none of its waiting messages: the oldest goes first.
struct Blocked {
    qpn: u32,
    delivery: Delivery,
    /// True: the oldest has waited for [`KEEP_NS`].
    is_overdue: bool,
    /// True: the oldest is kept, overdue or not.
    stays: bool,
}

impl UdPeers {
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(crate) fn next_look(&self) -> Option<u64> {
        let ns = if self.all_stand { LOOK_AT_STOPPED_NS } else { LOOK_NS };
        (!self.waiting.is_empty()).then(|| now_ns() + ns)
    }

    pub(crate) fn forget_waiting(&mut self) {
        self.waiting.clear();
    }

    pub(crate) fn each(&self, f: impl FnMut(&Responder)) {
        self.known.values().for_each(f);
    }

    /// Forgets all peers. Returns true if any was known.
    pub(crate) fn disconnect(&mut self) -> bool {
        self.waiting.clear();
        !std::mem::take(&mut self.known).is_empty()
    }

    /// Returns true if a message to QP `qpn` waits, which others must not overtake.
    fn waits_for(&self, qpn: u32) -> bool {
        self.waiting.iter().any(|kept| kept.to.qpn == qpn)
    }

    /// Sets the carriers.
    pub(crate) fn set_out(&mut self, out: Weak<dyn DatagramOut>) {
        self.out = Some(out);
    }

    /// Sends a datagram. `owed` gets the peers to wake when it has completed.
    pub(crate) fn send(
        &mut self,
        from: Sender<'_>,
        to: &UdAddress,
        message: &Message<'_>,
        owed: &mut Vec<WakeCall>,
    ) -> Step {
        if to.route.carrier().is_some() {
            let held_back_until =
                if self.waits_for(to.qpn) { Some(now_ns() + LOOK_NS) } else { self.carry(from, to, message) };
            if let Some(until) = held_back_until {
                if to.qpn == MULTICAST_QPN || self.waiting.len() >= KEEP_FOR_CARRIER {
                    // The peer makes room only for datagrams that have left.
                    self.flush();
                    return Step::Wait(until);
                }
                return self.keep(*to, message, true, from.clock() + KEEP_FOR_CARRIER_NS);
            }
        }
        let process = from.qp.process;
        let members = match to.route {
            Route::Carrier(_) | Route::Unreachable => Vec::new(),
            _ if to.qpn == MULTICAST_QPN => process.rendezvous.members(process, &to.ah.grh.dgid),
            _ => vec![to.qpn],
        };
        for qpn in members {
            let to = UdAddress { qpn, ..*to };
            // Waiting messages go first, or messages to one peer would change places.
            let later = self.waits_for(qpn) || self.deliver(from, &to, message, owed) != Delivery::Over;
            if later && self.waiting.len() < KEEP {
                let kept = self.keep(to, message, false, from.clock() + KEEP_NS);
                if !matches!(kept, Step::Done(Status::Success)) {
                    return kept;
                }
            }
        }
        Step::Done(Status::Success)
    }

    /// Keeps a message that cannot leave now.
    fn keep(&mut self, to: UdAddress, message: &Message<'_>, is_carried: bool, until: u64) -> Step {
        let &Message { data: pieces, imm, solicited } = message;
        let mut data = vec![0u8; pieces.len() as usize];
        // SAFETY: the vector has as many bytes as the pieces, checked local memory, name.
        if unsafe { transfer::copy_direct(Direction::Write, data.as_mut_ptr(), pieces, false) }.is_err() {
            return Step::Done(Status::LocalProtection);
        }
        self.waiting.push_back(Kept { to, data, imm, solicited, is_carried, until });
        self.all_stand = false;
        Step::Done(Status::Success)
    }

    /// Gives a message to its carrier. Some(time) (CLOCK_MONOTONIC, ns) if it is to be tried again then.
    fn carry(&mut self, from: Sender<'_>, to: &UdAddress, message: &Message<'_>) -> Option<u64> {
        let &Message { data, imm, solicited } = message;
        let datagram = Datagram { ah: &to.ah, qpn: to.qpn, qkey: from.qkey_for(to), imm, solicited, data };
        let held_back_until = self.carriers().and_then(|out| out.send(to.route, &datagram));
        self.left = true;
        held_back_until
    }

    fn carriers(&self) -> Option<Arc<dyn DatagramOut>> {
        self.out.as_ref().and_then(Weak::upgrade)
    }

    /// Sends the packets that this call has queued.
    pub(crate) fn flush(&mut self) {
        let left = std::mem::take(&mut self.left);
        if let Some(out) = self.carriers().filter(|_| left) {
            out.flush();
        }
    }

    /// Returns true if a datagram waits for a process that may answer soon.
    pub(crate) fn keeps_any(&self) -> bool {
        !self.waiting.is_empty() && !self.all_stand
    }

    /// Returns true if the process of QP `qpn`, which does not answer, is known to live.
    #[cold]
    fn lives(&self, from: Sender<'_>, qpn: u32) -> bool {
        // A peer that was reached once and has died is silent, so its messages are not kept.
        self.known.contains_key(&qpn) || from.qp.process.rendezvous.is_slow(slot_of(qpn))
    }

    /// Tries to send the waiting messages again. `owed` gets the peers to wake.
    pub(crate) fn send_waiting(&mut self, from: Sender<'_>, owed: &mut Vec<WakeCall>) {
        let mut blocked: Vec<Blocked> = Vec::new();
        let mut moves = false;
        let waiting = self.waiting.len();
        for _ in 0..waiting {
            let Some(mut kept) = self.waiting.pop_front() else { break };
            let mut pieces = Pieces::new();
            pieces.push(kept.data.as_ptr().cast_mut(), kept.data.len() as u64);
            let message = Message { data: &pieces, imm: kept.imm, solicited: kept.solicited };
            let qpn = kept.to.qpn;
            let known = blocked.iter().position(|b| b.qpn == qpn);
            let delivery = match known {
                Some(b) => blocked[b].delivery,
                None if kept.is_carried && self.carry(from, &kept.to, &message).is_some() => Delivery::Later,
                None if kept.is_carried => Delivery::Over,
                None => self.deliver(from, &kept.to, &message, owed),
            };
            if delivery == Delivery::Over {
                moves = true;
                continue;
            }
            if delivery == Delivery::Stopped {
                // It is kept as long as that QP is stopped.
                kept.until = from.clock() + KEEP_NS;
            }
            let is_overdue = from.clock() >= kept.until;
            let b = known.unwrap_or_else(|| {
                let stays = !is_overdue || !kept.is_carried && waiting <= KEEP_LONGER && self.lives(from, qpn);
                blocked.push(Blocked { qpn, delivery, is_overdue, stays });
                blocked.len() - 1
            });
            if blocked[b].stays || !is_overdue {
                self.waiting.push_back(kept);
            }
        }
        self.all_stand = !moves && blocked.iter().all(|b| b.is_overdue || b.delivery == Delivery::Stopped);
        self.flush();
    }

    /// Delivers a message to a QP that memory reaches. `owed` gets the peer, if it is to be woken.
    fn deliver(
        &mut self,
        from: Sender<'_>,
        to: &UdAddress,
        message: &Message<'_>,
        owed: &mut Vec<WakeCall>,
    ) -> Delivery {
        let (qp, process, qkey) = (from.qp, from.qp.process, from.qkey_for(to));
        let &Message { data: pieces, imm, solicited } = message;
        let target = match self.known.entry(to.qpn) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => match resolve::find_ud(process, qp, to.qpn) {
                Resolved::Responder(found) => {
                    found.space.tell_of_way(qp.qp_num());
                    unknown.insert(*found)
                }
                Resolved::Connecting => return Delivery::Later,
                Resolved::Suspended => return Delivery::Stopped,
                Resolved::Nobody | Resolved::NoSuchSrq => return Delivery::Over,
            },
        };
        let route = qp.source(&to.ah);
        let route = grh::Route {
            sgid: &route.0,
            dgid: &to.ah.grh.dgid,
            traffic_class: to.ah.grh.traffic_class,
            flow_label: to.ah.grh.flow_label,
            hop_limit: to.ah.grh.hop_limit,
            roce: route.1,
        };
        let header = grh::build(&route, pieces.len() as usize + if imm.is_some() { 4 } else { 0 });
        let receipt = Receipt {
            opcode: wc::OP_RECV,
            byte_len: pieces.len() as u32 + GRH_BYTES as u32,
            imm: imm.unwrap_or(0),
            src_qp: qp.qp_num(),
            wc_flags: if to.ah.is_global { wc::FLAG_GRH } else { 0 } | if imm.is_some() { wc::FLAG_IMM } else { 0 },
            slid: qp.lid(),
            sl: route.service_level(to.ah.sl),
            ..Receipt::default()
        };
        let arriving = Arriving { header: &header, payload: pieces, receipt, qkey, solicited };
        let arrives = |_mark| datagram::receive(target, &arriving, process.policy);
        match target.enter().map(arrives) {
            Ok(Ok(Outcome::Over(call))) => {
                owed.extend(call);
                qp.count_by_memory(Opcode::Send, pieces.len());
            }
            Ok(Ok(Outcome::Later)) | Err(Barred::Paused) => return Delivery::Later,
            Err(Barred::Stopped) => {
                if target.is_over(process) {
                    // The next try looks for it anew.
                    target.release();
                    self.known.remove(&to.qpn);
                }
                return Delivery::Stopped;
            }
            Ok(Err(Nak::Silence)) | Err(Barred::Silence) => {
                target.release();
                self.known.remove(&to.qpn);
            }
            // Dropped: no receive, a wrong Q_Key, or memory that is not mapped.
            Ok(Err(nak)) => {
                let has_no_receive = matches!(nak, Nak::ReceiverNotReady(_));
                qp.tally.add(Word::OutOfBuffer, u64::from(has_no_receive));
                let theirs = target.qp.qkey.load(Ordering::Relaxed);
                datagram::tell_dropped(qp.qp_num(), to.qpn, (qkey, theirs), has_no_receive);
            }
        }
        Delivery::Over
    }
}
