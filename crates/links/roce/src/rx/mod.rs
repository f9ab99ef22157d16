//! From the socket to the QP. The receiving thread takes packets from the sockets here. `demux` checks each and finds
//! its requester or responder; `acks` decides when the responders' acknowledgements and answers leave. Packets that
//! cannot be handled yet are kept: in `deferred` those whose QP another thread has, in `no_receive` unreliable messages
//! that came before a receive for them. `notifications` tells senders whose way is congested.

mod acks;
mod deferred;
mod demux;
mod no_receive;
mod notifications;

pub(super) use acks::ACK_DELAY_NS;
pub(super) use demux::{Addressees, Visit};

use super::Roce;
use super::connection::Connection;
use super::net::{Arrival, Datagram, LastFlow, ReceiveBatch};
use super::pacing::Echoes;
use super::poll_rate::RepeatRate;
use super::port_sharing::{Misrouted, qpn_of_packet, slot_of_packet};
use super::ports::LocalPort;
use acks::AcksDue;
use deferred::Deferred;
use demux::LastConnection;
use no_receive::AwaitingReceive;
use notifications::Notifications;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use vervain_hca::arena::layout::{MULTICAST_QPN, slot_of};
use vervain_hca::device::port_counters::{FIRST, Word};
use vervain_hca::host::cancel::nap;
use vervain_hca::host::spin_budget::Patience;
use vervain_hca::now_ns;
use vervain_hca::process::Process;
use vervain_hca::{Error, Result};
use vervain_qp1::mad;
use vervain_transport::{Nanos, pacer};
use vervain_wire::opcode;

/// Most batches taken from one port in a row.
const BATCHES: usize = 8;
/// Number of packets up to which a poll ends, as they may be all there are; they count as no stream.
const FEW: u32 = 4;
/// Polls in a row without a packet after which acknowledgements leave on their own.
const EMPTY_POLLS: u32 = 2;
/// Time that misrouted packets of this process wait while another thread receives.
const MISROUTED_WAIT: Duration = Duration::from_micros(50);

/// State of the thread that receives packets.
#[derive(Default)]
pub(super) struct Receiver {
    batch: ReceiveBatch,
    ports: Vec<Arc<LocalPort>>,
    state: RxState,
    /// Polls since the last one that found a packet, and all polls.
    empty_polls: u32,
    polls: u32,
    /// Time for which threads look for packets before they sleep, and the time at which one last began to sleep.
    pub(super) patience: Patience,
    pub(super) slept_at: Nanos,
    /// Packets for other processes of this host.
    misrouted: Misrouted,
    /// Rate at which polls that have found packets ask for more.
    asks_again: RepeatRate,
    /// True if a pause kept received packets from being handled.
    cut_short: bool,
    /// Scratch: connections whose timers have expired.
    pub(super) due: Vec<Arc<Connection>>,
}

/// State that packets leave behind, a part for each concern.
#[derive(Default)]
struct RxState {
    last: LastConnection,
    last_flow: LastFlow,
    acks: AcksDue,
    deferred: Deferred,
    awaiting_receive: AwaitingReceive,
    echoes: Echoes,
    notifications: Notifications,
}

impl Receiver {
    /// Time from which an acknowledgement waits; None: none does.
    pub(super) fn acks_due_since(&self) -> Option<Nanos> {
        self.state.acks.since()
    }

    /// The ports as last refreshed.
    pub(super) fn ports(&mut self) -> &mut Vec<Arc<LocalPort>> {
        &mut self.ports
    }

    /// A thread, be it the progress thread, has received packets: the program, which is about to see what they bring,
    /// may answer.
    fn took_in(&mut self) {
        self.empty_polls = 0;
    }

    /// Counts a poll. Returns true if it is time for acknowledgements to leave on their own.
    pub(super) fn polled(&mut self, found: bool) -> bool {
        self.empty_polls = if found { 0 } else { self.empty_polls.saturating_add(1) };
        self.empty_polls >= EMPTY_POLLS
    }

    /// Returns true if the rest of a message is still to come.
    pub(super) fn is_in_message(&self) -> bool {
        self.state.acks.is_in_message()
    }

    /// Returns true if a READ's answer is not all sent, or the turn of kept packets has come.
    pub(super) fn has_more_to_send(&self) -> bool {
        self.state.acks.has_more()
    }

    /// Returns true if packets are kept until they can be handled.
    pub(super) fn keeps_packets(&self) -> bool {
        !self.state.deferred.is_empty() || !self.state.awaiting_receive.is_empty()
    }

    /// Sends the echoes and notifications that lie in the batches of the ports.
    fn send_replies(&mut self) {
        let notifies = self.state.notifications.take_batched();
        if self.state.echoes.take_batched() || notifies {
            self.flush_ports();
        }
    }

    fn flush_ports(&self) {
        self.ports.iter().for_each(|port| port.flush());
    }
}

/// Returns true if a packet is a request rather than a response.
#[inline]
fn is_request(packet: &[u8]) -> bool {
    packet.first().is_some_and(|op| opcode::is_request(*op))
}

impl Roce {
    /// Receives the packets that have come. Returns true if there were any.
    pub(super) fn receive(&self, rx: &mut Receiver) -> bool {
        self.receive_by(rx, false)
    }

    /// Receives the packets that have come, for a thread that asks all the time: most polls leave out ports where
    /// nothing comes, and a poll ends with the first few packets, or where the next question finds nothing most often.
    pub(super) fn receive_in_poll(&self, rx: &mut Receiver) -> bool {
        rx.polls = rx.polls.wrapping_add(1);
        self.receive_by(rx, true)
    }

    fn receive_by(&self, rx: &mut Receiver, in_poll: bool) -> bool {
        // Packets wait in the sockets while the process is paused.
        let Some(process) = Process::current().filter(|p| !p.is_paused()) else {
            rx.cut_short = true;
            return false;
        };
        self.ports.refresh(&mut rx.ports);
        self.retry_kept(process, rx);
        let mut any = false;
        for i in 0..rx.ports.len() {
            rx.ports[i].release();
            if !in_poll || rx.ports.len() < 2 || rx.ports[i].poll_rate.is_due(rx.polls, i) {
                let found = self.receive_from_port(process, rx, i, in_poll);
                rx.ports[i].poll_rate.polled(found);
                any |= found;
            }
        }
        if any {
            rx.took_in();
        }
        if rx.state.acks.is_stream() {
            rx.send_responses();
        }
        any
    }

    /// Retries packets that could not be handled when they came.
    #[inline]
    pub(super) fn retry_kept(&self, process: &Process, rx: &mut Receiver) {
        if !rx.state.deferred.is_empty() {
            process.handle_packets(|| rx.state.retry_deferred());
            self.uncork();
        }
        if !rx.state.awaiting_receive.is_empty() {
            process.handle_packets(|| self.addressees.retry_awaiting_receive(&mut rx.state, now_ns()));
            rx.send_replies();
        }
    }

    /// Receives the packets of the `i`th port, and sends the packets that result. Returns true if any had come.
    #[inline]
    fn receive_from_port(&self, process: &Process, rx: &mut Receiver, i: usize, in_poll: bool) -> bool {
        let mut any = false;
        for _ in 0..BATCHES {
            if any && in_poll && !rx.asks_again.is_due() {
                // The next poll is soon.
                rx.batch.ends_early();
                break;
            }
            let batch = self.receive_batch(process, rx, i);
            if any && in_poll {
                rx.asks_again.asked(batch.is_some());
            }
            let Some(now) = batch else { break };
            any = true;
            if !rx.misrouted.is_empty() {
                rx.misrouted.flush(&rx.ports[i].sharing);
            }
            let lacks_receive = rx.state.awaiting_receive.take_grown();
            if rx.state.acks.must_leave(now) {
                rx.send_responses();
            }
            rx.send_replies();
            self.uncork();
            if lacks_receive {
                // The program is to see these, and to post receives. The rest can stay where it is.
                break;
            }
            if in_poll && rx.ports.len() > 1 && rx.batch.datagrams().take(FEW as usize + 1).count() <= FEW as usize {
                // Most often that was all, and the program has been waiting for it. If not, the next poll is soon.
                break;
            }
        }
        any
    }

    /// Handles one batch of the `i`th port. Returns its time; None: nothing had come, or a pause kept it out.
    #[inline]
    fn receive_batch(&self, process: &Process, rx: &mut Receiver, i: usize) -> Option<Nanos> {
        let Receiver { batch, ports, state, misrouted, cut_short, .. } = rx;
        let port = &ports[i];
        // Responses first: an acknowledgement that travels with an answer is seen before it, so that a program that
        // gets the answer finds its own send complete, as with an HCA.
        let taken = process.handle_packets(|| {
            // Received only now: if a pause began in between, nobody would handle the batch.
            if !batch.receive(&port.port) {
                return None;
            }
            let now = now_ns();
            let mut responses = batch.datagrams_where(|bytes| !is_request(bytes));
            while let Some(datagram) = responses.next() {
                self.take_or_forward(port, state, misrouted, now, &datagram, &mut responses);
            }
            let mut requests = batch.datagrams_where(is_request);
            while let Some(datagram) = requests.next() {
                self.take_or_forward(port, state, misrouted, now, &datagram, &mut requests);
            }
            Some(now)
        });
        *cut_short |= taken.is_none();
        taken.flatten()
    }

    /// Handles all packets that have come until now, and this process's resulting packets to itself. Returns false if a
    /// pause prevented that.
    pub(super) fn take_in_all(&self, rx: &mut Receiver) -> bool {
        rx.cut_short = false;
        self.empty_sockets(rx);
        if rx.acks_due_since().is_some() {
            rx.send_responses();
            self.empty_sockets(rx);
        }
        !rx.cut_short
    }

    /// Receives until no more packets come, or more than could lie there at first.
    fn empty_sockets(&self, rx: &mut Receiver) {
        let room = rx.ports.iter().map(|port| port.port.room()).max().unwrap_or_default();
        let messages = room / pacer::cost(0);
        let _ = (0..=messages / BATCHES as u64).find(|_| !self.receive(rx));
    }

    /// Handles a packet that has not come by a socket; [`Roce::settle`] is called after the last.
    pub(super) fn arrived(&self, rx: &mut Receiver, port: &Arc<LocalPort>, datagram: &Datagram<'_>) {
        self.take_or_forward(port, &mut rx.state, &mut rx.misrouted, now_ns(), datagram, &mut std::iter::empty());
    }

    /// Sends the packets that result from [`Roce::arrived`].
    pub(super) fn settle(&self, rx: &mut Receiver, port: &LocalPort) {
        rx.misrouted.flush(&port.sharing);
        rx.send_replies();
        rx.send_responses();
        self.uncork();
    }

    /// Gives a packet to its process, which is nearly always this one, with those of the `following` that are for the
    /// same QP.
    #[inline]
    fn take_or_forward<'a>(
        &self,
        port: &Arc<LocalPort>,
        state: &mut RxState,
        misrouted: &mut Misrouted,
        now: Nanos,
        datagram: &Datagram<'a>,
        following: &mut (impl Iterator<Item = Datagram<'a>> + Clone),
    ) {
        match slot_of_packet(datagram.bytes) {
            Some(slot) if port.sharing.owns(slot) || slot == slot_of(MULTICAST_QPN) => {
                self.addressees.packet(port, state, now, datagram, following);
            }
            slot => self.forward(port, misrouted, slot, datagram),
        }
    }

    #[cold]
    fn forward(&self, port: &Arc<LocalPort>, misrouted: &mut Misrouted, slot: Option<u32>, datagram: &Datagram<'_>) {
        match slot {
            // QP 1 finds its process itself.
            Some(_) if qpn_of_packet(datagram.bytes) == Some(mad::QPN) => self.mads.receive(port, datagram),
            Some(slot) => misrouted.add(&port.sharing, slot, datagram),
            None => {
                port.port.counters().malformed.add(1);
                FIRST.add(Word::Malformed, 1);
            }
        }
    }

    /// Gives up the sockets of a process that is stopped; their packets are kept until it goes on.
    pub(super) fn leave_ports(&self) -> Result<()> {
        let mut rx = self.receiving.lock();
        self.ports.refresh(&mut rx.ports);
        let Receiver { ports, batch, .. } = &mut *rx;
        let mut kept = self.kept.lock();
        for port in ports.iter() {
            let keep = |d: &Datagram<'_>| (Arc::clone(port), Arrival::of(d), d.bytes.to_vec());
            let mut before = usize::MAX;
            // Each call takes only so many messages.
            while std::mem::replace(&mut before, kept.len()) != kept.len() {
                port.sharing.handle_events(Some(&mut |datagram: &Datagram<'_>| kept.push(keep(datagram))));
            }
            while batch.receive(&port.port) {
                kept.extend(batch.datagrams().map(|datagram| keep(&datagram)));
            }
        }
        // Checked now, while the addresses are still those that the packets were sent to.
        kept.retain(|(port, arrival, bytes)| port.is_intact(&arrival.with(bytes)));
        self.has_kept.store(true, Ordering::SeqCst);
        let left = self.ports.leave();
        left.map_err(|e| Error::new(e.raw_os_error().unwrap_or(libc::EIO), format!("sockets cannot be given up: {e}")))
    }

    /// Opens the sockets again, perhaps at other addresses: kept packets become as if sent to those.
    pub(super) fn rejoin_ports(&self) -> Result<()> {
        self.ports.rejoin()?;
        for (_, arrival, bytes) in self.kept.lock().iter_mut() {
            if let Some(icrc) = arrival.with(bytes).icrc()
                && let Some(old) = bytes.last_chunk_mut()
            {
                *old = icrc;
            }
        }
        Ok(())
    }

    /// Handles packets of this process that others received, and those that it kept while it stood still. Returns false
    /// if that is not possible now.
    pub(super) fn adopt_misrouted(&self) -> bool {
        let Some(process) = Process::current() else { return true };
        let is_stopped = process.is_stopped();
        if process.is_paused() && !is_stopped {
            return false;
        }
        let Some(mut rx) = self.receiving.try_lock() else {
            // A polling thread holds it for a moment, or has lost its CPU. The packets are still there at the next
            // call, which follows at once.
            nap(MISROUTED_WAIT);
            return false;
        };
        self.ports.refresh(&mut rx.ports);
        let Receiver { ports, state, misrouted, .. } = &mut *rx;
        if is_stopped {
            // Other processes may join nevertheless.
            ports.iter().for_each(|port| port.sharing.handle_events(None));
            self.has_kept.store(true, Ordering::SeqCst);
            return true;
        }
        let mut any = false;
        // A misrouted packet is taken only if it is handled, too.
        let handled = process.handle_packets(|| {
            let mut kept = std::mem::take(&mut *self.kept.lock());
            // Handled like packets from a socket.
            kept.sort_by_key(|(.., bytes)| is_request(bytes));
            for (port, arrival, bytes) in kept {
                any = true;
                let datagram = arrival.with(&bytes);
                self.take_or_forward(&port, state, misrouted, now_ns(), &datagram, &mut std::iter::empty());
                misrouted.flush(&port.sharing);
            }
            for port in ports.iter() {
                port.sharing.handle_events(Some(&mut |datagram: &Datagram<'_>| {
                    any = true;
                    self.addressees.packet(port, state, now_ns(), datagram, &mut std::iter::empty());
                }));
            }
        });
        if any {
            rx.send_replies();
            rx.send_responses();
            self.uncork();
        }
        handled.is_some()
    }

    /// Forgets what a thread that is gone had in hand.
    pub(super) fn start_over(&self, rx: &mut Receiver) {
        // Its lists may be torn; they are left where they are.
        std::mem::forget((std::mem::take(&mut rx.state), std::mem::take(&mut rx.due)));
        for connection in &self.addressees.connections.all(|_| true) {
            acks::forget(connection);
            deferred::forget(connection);
            // It may have been about to call them all.
            self.poll_state.timers.set(&connection.timer, Some(now_ns()));
        }
    }

    /// Acknowledges what was taken in, and sends what waits for other packets, when the process ends; see
    /// [`vervain_hca::process::poller::Poller::shutdown`].
    pub(super) fn send_last(&self) -> bool {
        match self.receiving.try_lock() {
            Some(rx) => rx.state.acks.acknowledge_if_free() & self.ports.flush_if_free(),
            // It has not acknowledged the packets that it had received.
            None => !self.receiving.raw().comes_free(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_leave_on_their_own_after_two_polls_that_found_nothing_since_packets_came() {
        let mut rx = Receiver::default();
        for _ in 0..3 {
            assert!(!rx.polled(false));
            // By the progress thread.
            rx.took_in();
            assert!(!rx.polled(false), "the program has not had time to answer");
            assert!(!rx.polled(true));
        }
        assert_eq!([false; 3].map(|found| rx.polled(found)), [false, true, true]);
    }
}
