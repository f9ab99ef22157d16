//! Handing a batch to the kernel, and handling its refusals. Packets that are not sent are lost, like packets on the
//! wire: the protocol above sends them again. A counter counts each.

use super::address::RawAddress;
use super::ancillary::Control;
use super::capture::{Capture, Captured, Turn};
use super::faults::Lines;
use super::port::Port;
use super::send::{SendBatch, TooLarge};
use super::sys;
use super::train::{FlowKey, Train};
use libc::{iovec, mmsghdr};
use std::io;
use std::sync::Arc;
use vervain_hca::device::port_counters::{FIRST, Word};
use vervain_hca::now_ns;
use vervain_wire::ICRC_LEN;
use vervain_wire::icrc::Untold;

/// Milliseconds that a call waits for the kernel to have room.
const PATIENCE: i64 = 1;

/// Reasons why the kernel did not take a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// A signal came, or an error of an earlier packet: the message may be tried again.
    Earlier,
    /// The socket's buffer is full.
    Busy,
    /// The interface's queue is full, which cannot be waited for.
    QueueFull,
    /// A packet is larger than the MTU, alone or in a train.
    Size,
    /// The interface does not take trains.
    Train,
    /// There is no route.
    Unreachable,
}

impl Trouble {
    fn of(e: &io::Error) -> Trouble {
        match e.raw_os_error().unwrap_or_default() {
            libc::EINTR | libc::ECONNREFUSED => Trouble::Earlier,
            libc::EAGAIN => Trouble::Busy,
            libc::ENOBUFS | libc::ENOMEM => Trouble::QueueFull,
            // A train whose packets exceed the MTU is EINVAL up to Linux 6.12.
            libc::EMSGSIZE | libc::EINVAL => Trouble::Size,
            libc::EIO | libc::EOPNOTSUPP => Trouble::Train,
            _ => Trouble::Unreachable,
        }
    }
}

impl SendBatch {
    /// Sends the batch.
    pub fn flush(&mut self) {
        if self.port.lines.is_some() {
            self.pass_faults();
        }
        self.send();
        self.trains.clear();
        self.room.clear();
    }

    /// Removes from the batch the packets that faults drop or hold back, and sends held ones that are due.
    #[cold]
    fn pass_faults(&mut self) {
        let port = Arc::clone(&self.port);
        let lines = port.lines.as_deref();
        port.release();
        for train in std::mem::take(&mut self.trains) {
            let Some(mut line) = lines.and_then(Lines::transmit) else {
                self.trains.push(train);
                continue;
            };
            let now = now_ns();
            // Packets that pass one after the other, which form a train again.
            let mut run: Option<Train> = None;
            for n in 0..train.packets {
                let at = n * train.segment;
                let packet = self.room.part(train.start + at, train.segment.min(train.bytes - at));
                let course = line.judge(now, packet);
                if course.is_some_and(|course| line.passes(now, &course)) {
                    let run = run.get_or_insert_with(|| train.rest(at));
                    if run.packets != n {
                        seal(&train, run.packets, packet);
                    }
                    run.add(packet.len());
                    continue;
                }
                self.trains.extend(run.take());
                let Some(course) = course else { continue };
                seal(&train, 0, packet);
                line.keep(course, train.key, packet);
                if line.next_timeout().is_some_and(|at| at <= now) {
                    // It follows the packets before it without being overtaken.
                    drop(line);
                    self.send();
                    self.trains.clear();
                    port.release();
                    line = lines.and_then(Lines::transmit).expect("it was there");
                }
            }
            self.trains.extend(run);
        }
    }

    fn send(&mut self) {
        self.address();
        let (mut next, mut patience) = (0, PATIENCE);
        while let Some(train) = self.trains.get(next) {
            let (socket, source) = self.port.flow(train.key.slot, train.key.spread);
            let same = self.trains[next..].iter().take_while(|train| train.source == source).count();
            let messages = &mut self.messages[next..next + same];
            let mut turn = self.port.capture.map(Capture::turn);
            // SAFETY: addresses, control messages, pieces and bytes are in the batch, which does not change meanwhile.
            let sent = unsafe {
                match messages {
                    [message] => sys::send(socket, &message.msg_hdr).map(|_| 1),
                    _ => sys::send_all(socket, messages),
                }
            };
            match sent {
                Ok(sent) => {
                    self.trains[next..next + sent].iter().for_each(|train| {
                        self.port.sent(
                            &mut turn,
                            &train.key,
                            train.source,
                            train.segment,
                            self.room.part(train.start, train.bytes),
                        );
                    });
                    next += sent;
                }
                Err(e) => {
                    drop(turn);
                    match Trouble::of(&e) {
                        Trouble::Earlier => {}
                        Trouble::Busy if sys::wait_for_room(socket, std::mem::take(&mut patience)) => {}
                        trouble => {
                            self.refused(next, trouble);
                            next += 1;
                        }
                    }
                }
            }
        }
    }

    /// Makes the kernel's messages out of the trains.
    fn address(&mut self) {
        self.messages.clear();
        self.pieces.clear();
        let of_trains = self.trains.iter().map(|train| piece(self.room.part(train.start, train.bytes)));
        self.pieces.extend(of_trains);
        for (train, piece) in self.trains.iter_mut().zip(&mut self.pieces) {
            let segment = (train.packets > 1).then_some(train.segment as u16);
            train.control = Control::new(train.key.to, segment, train.key.hop_limit(), train.key.tos);
            self.messages.push(message(&mut train.address, &mut train.control, piece));
        }
    }

    /// Handles a refused train: its packets leave one by one if that may help, else they are lost.
    fn refused(&mut self, n: usize, trouble: Trouble) {
        let train = &self.trains[n];
        if train.packets > 1 && matches!(trouble, Trouble::Size | Trouble::Train) {
            self.one_by_one(n);
        } else {
            self.lost(n, train.packets, train.bytes, trouble);
        }
    }

    /// Sends the packets of train `n` one by one, with the ICRC for identification 0.
    fn one_by_one(&mut self, n: usize) {
        let Train { key, start, bytes, segment, .. } = self.trains[n];
        for at in (0..bytes).step_by(segment) {
            let packet = self.room.part(start + at, segment.min(bytes - at));
            let length = packet.len();
            seal(&self.trains[n], 0, packet);
            match self.port.send(&key, packet) {
                Ok(()) if at == 0 => self.port.without_trains(),
                Ok(()) => {}
                Err(trouble) => self.lost(n, 1, length, trouble),
            }
        }
    }

    /// Counts packets of train `n` that were not sent.
    fn lost(&mut self, n: usize, packets: usize, bytes: usize, trouble: Trouble) {
        self.port.lost(packets, trouble);
        if trouble == Trouble::Size {
            self.too_large = Some(TooLarge { to: self.trains[n].key.to, bytes });
        }
    }
}

impl Port {
    /// Sends held packets that are due.
    pub fn release(&self) {
        while let Some((key, packet)) = self.lines.as_deref().and_then(Lines::next_to_send) {
            if let Err(trouble) = self.send(&key, &packet) {
                self.lost(1, trouble);
            }
        }
    }

    /// Sends one packet.
    fn send(&self, key: &FlowKey, packet: &[u8]) -> Result<(), Trouble> {
        let mut piece = piece(packet);
        let (socket, source) = self.flow(key.slot, key.spread);
        let mut address = RawAddress::new(self.remote(key));
        let mut control = Control::new(key.to, None, key.hop_limit(), key.tos);
        let message = message(&mut address, &mut control, &mut piece);
        let mut turn = self.capture.map(Capture::turn);
        // SAFETY: all that the message points at lives longer than this call.
        match unsafe { sys::send(socket, &message.msg_hdr) } {
            Ok(_) => {
                self.sent(&mut turn, key, source, packet.len(), packet);
                Ok(())
            }
            Err(e) => Err(Trouble::of(&e)),
        }
    }

    fn lost(&self, packets: usize, trouble: Trouble) {
        let counter = match trouble {
            Trouble::Size => &self.counters().too_large,
            Trouble::Earlier | Trouble::Busy | Trouble::QueueFull => &self.counters().no_room,
            Trouble::Train | Trouble::Unreachable => &self.counters().unreachable,
        };
        counter.add(packets as u64);
        FIRST.add(Word::Discarded, packets as u64);
    }

    /// Counts packets that the kernel took in this `turn` of the capture, each but the last of `segment` bytes.
    fn sent(&self, turn: &mut Option<Turn<'_>>, key: &FlowKey, source: u16, segment: usize, bytes: &[u8]) {
        let packets = bytes.len().div_ceil(segment);
        self.counters().sent_packets.add(packets as u64);
        self.counters().sent_bytes.add(bytes.len() as u64);
        if let Some(turn) = turn {
            let (from, to) = (self.local(source), self.remote(key));
            let (hop_limit, tos, label) = (key.hop_limit(), key.tos, self.label(key));
            let packets = bytes.chunks(segment).zip((0..).map(Untold::with_df));
            turn.write(packets.map(|(bytes, untold)| Captured { from, to, hop_limit, tos, label, untold, bytes }));
        }
    }
}

fn piece(bytes: &[u8]) -> iovec {
    iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

/// The kernel's message of a piece, valid as long as all that it is made of stays where it is.
fn message(address: &mut (RawAddress, u32), control: &mut Control, piece: &mut iovec) -> mmsghdr {
    // SAFETY: a message of zeros is an empty one.
    let mut message: mmsghdr = unsafe { std::mem::zeroed() };
    message.msg_hdr.msg_name = (&raw mut address.0).cast();
    message.msg_hdr.msg_namelen = address.1;
    message.msg_hdr.msg_iov = piece;
    message.msg_hdr.msg_iovlen = 1;
    control.enter(&mut message.msg_hdr);
    message
}

/// Computes the ICRC of a whole packet of `train` for its place in one, which is the IPv4 identification.
fn seal(train: &Train, place: usize, packet: &mut [u8]) {
    let (covered, icrc) = packet.split_at_mut(packet.len() - ICRC_LEN);
    icrc.copy_from_slice(&train.flow.icrc(place as u16, covered));
}
