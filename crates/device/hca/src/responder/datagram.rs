//! Datagrams at the far side (IBA 9.8.3.2): one visit, inside an in-flight mark, since a datagram is never longer than
//! a packet.

use crate::arena::layout::request;
use crate::device::grh::GRH_BYTES;
use crate::mr::transfer::{self, Direction, Fault, Pieces, Policy};
use crate::process::peer::Location;
use crate::reasons;
use crate::responder::{Barred, Refusal, Responder, Spoilt, WakeCall};
use crate::rq::Receipt;
use std::sync::atomic::Ordering;
use vervain_iba::{Nak, Status};

/// The outcome of a delivery.
pub(crate) enum Outcome {
    /// Delivered or dropped; Some: the wake-up to make.
    Over(Option<WakeCall>),
    /// The owner is still busy with an earlier one.
    Later,
}

/// The outcome of a datagram from a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// It has its receive, perhaps spoilt.
    Yes,
    /// The owner is still busy with an earlier one: dropped.
    OwnerIsBusy,
    /// The QP is stopped: to be kept.
    Stopped,
}

/// A datagram on its way into a receive.
pub(crate) struct Arriving<'a> {
    /// The header in front of the payload ([`crate::device::grh`]).
    pub header: &'a [u8; GRH_BYTES],
    /// The payload: memory of this process that was checked against its keys, or that of a packet.
    pub payload: &'a Pieces,
    /// The fields of its completion.
    pub receipt: Receipt,
    /// Q_Key.
    pub qkey: u32,
    /// True: it asks for a solicited event.
    pub solicited: bool,
}

/// Delivers a datagram from a packet to the QP behind `target`, which is this process's. Called inside
/// `Process::handle_packets`. The data is read once, and may change meanwhile.
///
/// # Errors
/// The datagram is dropped: no receive, or a wrong Q_Key.
pub fn deliver(
    target: &Responder,
    header: &[u8; GRH_BYTES],
    data: &Pieces,
    receipt: &Receipt,
    qkey: u32,
    solicited: bool,
) -> Result<Delivered, Nak> {
    let _mark = match target.enter_unless_stopped() {
        Err(Barred::Stopped) => return Ok(Delivered::Stopped),
        entered => entered?,
    };
    let arriving = Arriving { header, payload: data, receipt: *receipt, qkey, solicited };
    match receive(target, &arriving, Policy::Auto)? {
        Outcome::Over(call) => {
            call.into_iter().for_each(WakeCall::make);
            Ok(Delivered::Yes)
        }
        Outcome::Later => Ok(Delivered::OwnerIsBusy),
    }
}

/// Writes a datagram into a receive, inside the mark.
pub(crate) fn receive(target: &Responder, d: &Arriving<'_>, policy: Policy) -> Result<Outcome, Nak> {
    let request = &target.lane.request;
    match request.state.load(Ordering::Acquire) {
        request::POSTED | request::RUNNING => return Ok(Outcome::Later),
        _ => request.state.store(request::IDLE, Ordering::Relaxed),
    }
    if target.qp.qkey.load(Ordering::Relaxed) != d.qkey {
        return Err(Nak::InvalidRequest);
    }
    let wqe = target.claim()?;
    let total = d.total();
    if total > target.receive_room(wqe) {
        target.spoil_receive(wqe, &d.receipt, d.spoils(Status::LocalLength));
        return Ok(Outcome::Over(None));
    }
    let reachable = target.space.is_own() || transfer::by_vm(&target.space, policy);
    if !reachable && !all_mapped(target, wqe, total) {
        return ask_owner(target, wqe, d);
    }
    let mut done = 0;
    while done < total {
        let to = match target.reach_receive(wqe, done, total - done) {
            Ok(Some(to)) => to,
            Err(Nak::Silence) => return Err(Nak::Silence),
            _ => {
                target.spoil_receive(wqe, &d.receipt, d.spoils(Status::LocalProtection));
                return Ok(Outcome::Over(None));
            }
        };
        let mut part = Pieces::new();
        let n = d.part(done, to.len, &mut part);
        // SAFETY: the payload is checked local memory, the header lies in this process; no more than was reached.
        let moved = unsafe { to.transfer(to.way(policy), Direction::Write, &part, done + n == total, false, policy) };
        match moved {
            Ok(true) => done += n,
            Ok(false) => return ask_owner(target, wqe, d),
            Err(Refusal::Nak(_)) => return Err(Nak::Silence),
            Err(Refusal::Fault(fault)) => return not_received(target, wqe, d, fault),
        }
    }
    Ok(Outcome::Over(target.publish_receive(wqe, &d.receipt, d.solicited)))
}

impl Arriving<'_> {
    /// Bytes of payload and header.
    fn total(&self) -> u64 {
        GRH_BYTES as u64 + self.payload.len()
    }

    /// The record of a receive that ends with `status` because of it.
    fn spoils(&self, status: Status) -> Spoilt {
        Spoilt { status, length: self.total(), whole: true }
    }

    /// The bytes behind the first `done`, header first: at most `room`, from one of the two parts. Returns their
    /// number.
    fn part(&self, done: u64, room: u64, part: &mut Pieces) -> u64 {
        if done < GRH_BYTES as u64 {
            let n = room.min(GRH_BYTES as u64 - done);
            part.push(self.header[done as usize..].as_ptr().cast_mut(), n);
            n
        } else {
            self.payload.slice_into(done - GRH_BYTES as u64, room, part);
            room
        }
    }
}

/// Completes a receive that was taken but could not be filled.
#[cold]
fn not_received(target: &Responder, wqe: u32, d: &Arriving<'_>, fault: Fault) -> Result<Outcome, Nak> {
    if fault == Fault::Gone {
        return Err(Nak::Silence);
    }
    target.spoil_receive(wqe, &d.receipt, d.spoils(Status::LocalProtection));
    Ok(Outcome::Over(None))
}

/// Logs the reason why a datagram of QP `from` to QP `to` is dropped, which no completion reports (IBA 9.8.3.2): no
/// receive, or a Q_Key `came` that is not the QP's `own`.
#[cold]
pub fn tell_dropped(from: u32, to: u32, (came, own): (u32, u32), has_no_receive: bool) {
    let dropped = format_args!("a datagram of QP {from:#x} to QP {to:#x} is dropped");
    if has_no_receive {
        reasons::tell_what_is_no_failure(format_args!("{dropped}: no receive is posted there"));
    } else if came != own {
        reasons::tell_what_is_no_failure(format_args!(
            "{dropped}: its Q_Key {came:#x} is not that of the QP, {own:#x}"
        ));
    }
}

/// Returns true if the first `total` bytes of receive `wqe` can be reached without the owner.
fn all_mapped(target: &Responder, wqe: u32, total: u64) -> bool {
    let mut done = 0;
    while done < total {
        match target.receive_memory(wqe, done, total - done) {
            Ok(Some((Location::Mapped(_) | Location::Null, room, ..))) => done += room,
            // A faulty receive is reported when it is filled.
            _ => return false,
        }
    }
    true
}

/// Leaves the datagram in the lane's bounce buffer for the owner to finish; the caller does not wait for that.
fn ask_owner(target: &Responder, wqe: u32, d: &Arriving<'_>) -> Result<Outcome, Nak> {
    let total = d.total();
    let bounce = target.lane.bounce.load(Ordering::Acquire);
    let to = target.space.view.at(bounce, total).filter(|_| bounce != 0).ok_or(Nak::Silence)?;
    let mut whole = Pieces::new();
    whole.push(d.header.as_ptr().cast_mut(), GRH_BYTES as u64);
    d.payload.slice_into(0, d.payload.len(), &mut whole);
    // SAFETY: the bounce buffer lies inside the owner's arena as just checked; the pieces are checked local memory.
    if let Err(fault) = unsafe { transfer::copy_direct(Direction::Write, to, &whole, false) } {
        return not_received(target, wqe, d, fault);
    }
    if let Some(w) = target.rq.as_ref().and_then(|rq| rq.wqe(wqe)) {
        d.receipt.write_into(w, false);
    }
    let r = &target.lane.request;
    r.op.store(request::DATAGRAM, Ordering::Relaxed);
    r.key.store(wqe, Ordering::Relaxed);
    r.len.store(total, Ordering::Relaxed);
    r.local.store(u32::from(d.solicited), Ordering::Relaxed);
    r.state.store(request::POSTED, Ordering::SeqCst);
    target.space.raise(target.lane.attention.load(Ordering::Relaxed));
    Ok(Outcome::Over(None))
}
