//! Executes a request packet that comes in sequence (IBA 9.7.4.1): opcode sequence, lengths, keys, receives, in that
//! order.

use serde::{Deserialize, Serialize};
use vervain_iba::{Nak, Right, Status};
use vervain_wire::{Headers, Packet, opcode};

use crate::host::{Data, Received, ResponderHost, Target};

use super::answer::{Body, Resource};
use super::{Responder, Stop};

/// Longest message (IBA 9.7.7).
pub(super) const LONGEST: u32 = 1 << 31;

/// Packets that answer READs before what they read is changed: as many as a READ of ours asks for at most.
const AT_ONCE: u32 = 64;

/// A SEND or WRITE that has begun and not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The SRQ that an XRC packet names, else 0.
    pub srqn: u32,
    /// Bytes that have come.
    pub done: u64,
    /// Their destination.
    pub target: Target,
}

impl Responder {
    /// Executes the packet; how many PSNs it takes. Unless it is executed whole, nothing is changed here.
    #[inline]
    pub(super) fn execute<H: ResponderHost>(
        &mut self,
        packet: &Packet<'_, H::Data>,
        host: &mut H,
    ) -> Result<u32, Stop> {
        let code = packet.headers.bth.opcode;
        if self.announced.is_some() && !opcode::is_send(code) {
            // It is another message that comes.
            self.drop_message(host);
        }
        if opcode::is_send(code) {
            self.check_place(packet, true, host)?;
            self.send(packet, host)?;
            self.counters.sends += u64::from(opcode::ends(code));
            Ok(self.packets(packet))
        } else if opcode::is_write(code) {
            self.check_place(packet, false, host)?;
            self.write(packet, host)?;
            self.counters.writes += u64::from(opcode::ends(code));
            Ok(self.packets(packet))
        } else {
            if self.message.is_some() {
                return Err(self.invalid(host));
            }
            let is_read = opcode::operation(code) == opcode::READ_REQUEST;
            let packets = match opcode::operation(code) {
                opcode::READ_REQUEST => self.read(&packet.headers, host),
                opcode::COMPARE_SWAP | opcode::FETCH_ADD => self.atomic(&packet.headers, host),
                opcode::ATOMIC_WRITE => self.atomic_write(packet, host),
                opcode::FLUSH => self.flush(&packet.headers, host),
                _ => Err(Nak::InvalidRequest.into()),
            }?;
            *if is_read { &mut self.counters.reads } else { &mut self.counters.atomics } += 1;
            Ok(packets)
        }
    }

    /// The number of packets of a message that this one stands for.
    #[inline]
    pub(super) fn packets<D: Data + ?Sized>(&self, packet: &Packet<'_, D>) -> u32 {
        if packet.payload.has_landed() {
            packet.payload.length().div_ceil(self.config.mtu as usize).max(1) as u32
        } else {
            1
        }
    }

    /// The packet does not fit: a receive that was taken goes back, for the QP flushes it.
    #[cold]
    pub(super) fn invalid(&mut self, host: &mut impl ResponderHost) -> Stop {
        self.drop_message(host);
        Nak::InvalidRequest.into()
    }

    /// Forgets the message that is coming in, or is announced.
    pub(super) fn drop_message(&mut self, host: &mut impl ResponderHost) {
        let message = self.message.take().or(self.announced.take());
        if let Some(Message { srqn, target: Target::Receive { receive, .. }, .. }) = message {
            host.unclaim(srqn, receive);
        }
    }

    /// Claims the place of the message that comes next, of `length` bytes, `headers` being those of its first packet,
    /// so that its sender can learn the place before it sends. For a SEND a receive is taken, and the message then uses
    /// that one. None if the message cannot be taken now; if it comes all the same, it is refused for the reason that
    /// holds then.
    pub fn announce(&mut self, headers: &Headers, length: u64, host: &mut impl ResponderHost) -> Option<(u32, Target)> {
        let code = headers.bth.opcode;
        let is_next = headers.bth.psn == self.expected && code == self.opcode_base | opcode::operation(code);
        let is_busy = self.refusal.is_some() || self.message.is_some() || !self.answers.is_empty();
        if self.ended || is_busy || !is_next || !opcode::starts(code) || length > u64::from(LONGEST) {
            return None;
        }
        let srqn = headers.srqn.unwrap_or(0);
        if let Some(Message { srqn: of, target, .. }) = self.announced.filter(|_| opcode::is_send(code)) {
            let fits = matches!(target, Target::Receive { room, .. } if length <= room);
            return (of == srqn && fits).then_some((srqn, target));
        }
        self.drop_message(host);
        if !opcode::is_send(code) {
            let reth = headers.reth.filter(|reth| opcode::is_write(code) && u64::from(reth.length) == length)?;
            host.check(srqn, reth.rkey, reth.addr, length, Right::Write).ok()?;
            return Some((srqn, Target::Memory { rkey: reth.rkey, addr: reth.addr, length: reth.length }));
        }
        let (receive, room) = host.claim(srqn).ok()?;
        if length > room {
            host.unclaim(srqn, receive);
            return None;
        }
        let target = Target::Receive { receive, room };
        self.announced = Some(Message { srqn, done: 0, target });
        Some((srqn, target))
    }

    /// Opcode sequence and payload length (IBA 9.7.4.1).
    #[inline]
    pub(super) fn check_place<H: ResponderHost>(
        &mut self,
        packet: &Packet<'_, H::Data>,
        is_send: bool,
        host: &mut H,
    ) -> Result<(), Stop> {
        let code = packet.headers.bth.opcode;
        let fits = match &self.message {
            None => opcode::starts(code),
            Some(message) => {
                !opcode::starts(code)
                    && is_send == matches!(message.target, Target::Receive { .. })
                    && message.srqn == packet.headers.srqn.unwrap_or(0)
            }
        };
        let (length, mtu) = (packet.payload.length(), self.config.mtu as usize);
        let has_landed = packet.payload.has_landed();
        let length_fits = match (opcode::starts(code), opcode::ends(code)) {
            (_, false) if has_landed => length.is_multiple_of(mtu) && length != 0,
            (_, false) => length == mtu,
            (false, true) => length >= 1 && (length <= mtu || has_landed),
            (true, true) => length <= mtu || has_landed,
        };
        if fits && length_fits { Ok(()) } else { Err(self.invalid(host)) }
    }

    /// A packet of a SEND.
    #[inline]
    pub(super) fn send<H: ResponderHost>(&mut self, packet: &Packet<'_, H::Data>, host: &mut H) -> Result<(), Stop> {
        let headers = &packet.headers;
        let mut message = match self.message {
            Some(message) => message,
            None => {
                let srqn = headers.srqn.unwrap_or(0);
                if self.announced.is_some_and(|announced| announced.srqn != srqn) {
                    self.drop_message(host);
                }
                match self.announced {
                    Some(announced) => announced,
                    None => {
                        let (receive, room) = host.claim(srqn)?;
                        Message { srqn, done: 0, target: Target::Receive { receive, room } }
                    }
                }
            }
        };
        let Target::Receive { receive, room } = message.target else { return Err(self.invalid(host)) };
        let srqn = message.srqn;
        let is_last = opcode::ends(headers.bth.opcode);
        let length = packet.payload.length() as u64;
        if message.done + length > u64::from(LONGEST) {
            return Err(self.invalid(host));
        }
        let mut received =
            Received { length: (message.done + length) as u32, partial: !is_last, ..Received::default() };
        if message.done + length > room {
            // IBA 9.9.3: the receive is too short; a local length error here, an invalid request there.
            (self.message, self.announced) = (None, None);
            return Err(Stop::Spoil { srqn, receive, received, status: Status::LocalLength, nak: Nak::InvalidRequest });
        }
        if length > 0
            && let Err(nak) = host.fill(srqn, receive, message.done, packet.payload, is_last)
        {
            if matches!(nak, Nak::Silence | Nak::ReceiverNotReady(_)) {
                // The packet will come again and find things as they were; what was told of a receive still holds.
                if self.message.is_none() && self.announced.is_none() {
                    host.unclaim(srqn, receive);
                }
                return Err(nak.into());
            }
            (self.message, self.announced) = (None, None);
            return Err(Stop::Spoil { srqn, receive, received, status: Status::LocalProtection, nak });
        }
        self.announced = None;
        message.done += length;
        if !is_last {
            self.message = Some(message);
            return Ok(());
        }
        self.message = None;
        received.imm = headers.imm.map(u32::from_ne_bytes);
        received.solicited = headers.bth.solicited;
        received.invalidated = headers.invalidate;
        if let Some(rkey) = headers.invalidate
            && let Err(nak) = host.invalidate(srqn, rkey)
        {
            // The receive was used; its completion reports the fault of the message (IBA 9.9.3, class J).
            return Err(Stop::Spoil { srqn, receive, received, status: Status::RemoteInvalidRequest, nak });
        }
        self.msn = self.msn.wrapping_add(1);
        self.acknowledge_first(packet, host);
        host.complete(srqn, receive, &received);
        Ok(())
    }

    /// A packet of a WRITE.
    #[inline]
    pub(super) fn write<H: ResponderHost>(&mut self, packet: &Packet<'_, H::Data>, host: &mut H) -> Result<(), Stop> {
        let headers = &packet.headers;
        let code = headers.bth.opcode;
        let (is_last, takes_receive) = (opcode::ends(code), opcode::has_imm(code));
        let bytes = packet.payload.length() as u64;
        let mut message = match (self.message, headers.reth) {
            (Some(message), _) => message,
            (None, Some(reth)) => {
                let target = Target::Memory { rkey: reth.rkey, addr: reth.addr, length: reth.length };
                let srqn = headers.srqn.unwrap_or(0);
                // The whole range is checked at the first packet (9.7.4.1.5). That of a single one is when it is
                // stored.
                if !is_last || takes_receive || bytes == 0 {
                    if reth.length > LONGEST {
                        return Err(Nak::InvalidRequest.into());
                    }
                    host.check(srqn, reth.rkey, reth.addr, u64::from(reth.length), Right::Write)?;
                }
                Message { srqn, done: 0, target }
            }
            (None, None) => return Err(self.invalid(host)),
        };
        let Target::Memory { rkey, addr, length } = message.target else { return Err(self.invalid(host)) };
        let srqn = message.srqn;
        let done = message.done + bytes;
        // The last packet ends where the RETH says, and no other reaches that far (9.7.4.1).
        if is_last != (done >= u64::from(length)) || done > u64::from(length) {
            return Err(self.invalid(host));
        }
        self.answer_readers(addr.wrapping_add(message.done), bytes, host)?;
        let claimed = if takes_receive { Some(host.claim(srqn)?.0) } else { None };
        if bytes > 0
            && let Err(nak) = host.write(srqn, rkey, addr.wrapping_add(message.done), packet.payload, is_last)
        {
            if let Some(receive) = claimed {
                host.unclaim(srqn, receive);
            }
            return Err(nak.into());
        }
        message.done = done;
        if !is_last {
            self.message = Some(message);
            return Ok(());
        }
        self.message = None;
        self.msn = self.msn.wrapping_add(1);
        if let Some(receive) = claimed {
            let received = Received {
                length,
                write: true,
                imm: headers.imm.map(u32::from_ne_bytes),
                invalidated: None,
                solicited: headers.bth.solicited,
                partial: false,
            };
            self.acknowledge_first(packet, host);
            host.complete(srqn, receive, &received);
        }
        Ok(())
    }

    /// READ and atomics need a place to be remembered in (IBA 9.7.4.1).
    fn check_resources(&self) -> Result<(), Nak> {
        if self.answers.has_place(self.config.max_dest_rd_atomic) { Ok(()) } else { Err(Nak::InvalidRequest) }
    }

    /// Answers the READs of memory that is about to change. Without a fence a WRITE may overtake a READ (IBA 10.8.3.3),
    /// but adapters read when the request comes, and programs count on it: Open MPI's MPI_Get_accumulate with
    /// MPI_REPLACE is a READ and a WRITE. Where not all can be sent now, the request that changes it has to come again.
    #[inline]
    fn answer_readers(&mut self, addr: u64, len: u64, host: &mut impl ResponderHost) -> Result<(), Stop> {
        if self.answers.is_empty() || len == 0 || !self.answers.read_some_of(addr, len) {
            return Ok(());
        }
        self.send_answers(AT_ONCE, host);
        match (self.refuses_for_good(), self.answers.read_some_of(addr, len)) {
            // The memory of a READ has gone: the refusal waits, and nothing behind it is looked at.
            (true, _) => Err(Nak::Silence.into()),
            (false, true) => Err(Stop::TooEarly),
            (false, false) => Ok(()),
        }
    }

    /// RDMA READ request. The data is read when the response is sent.
    fn read(&mut self, headers: &Headers, host: &mut impl ResponderHost) -> Result<u32, Stop> {
        self.check_resources()?;
        let Some(reth) = headers.reth.filter(|reth| reth.length <= LONGEST) else {
            return Err(Nak::InvalidRequest.into());
        };
        let srqn = headers.srqn.unwrap_or(0);
        host.check(srqn, reth.rkey, reth.addr, u64::from(reth.length), Right::Read)?;
        let packets = reth.length.div_ceil(self.config.mtu).max(1);
        self.remember(
            headers.bth.psn,
            packets,
            Body::Read { srqn, rkey: reth.rkey, addr: reth.addr, length: reth.length },
        );
        Ok(packets)
    }

    /// Compare and swap, fetch and add.
    fn atomic(&mut self, headers: &Headers, host: &mut impl ResponderHost) -> Result<u32, Stop> {
        self.check_resources()?;
        let Some(atomic) = headers.atomic.filter(|atomic| atomic.addr.is_multiple_of(8)) else {
            return Err(Nak::InvalidRequest.into());
        };
        self.answer_readers(atomic.addr, 8, host)?;
        let is_swap = opcode::operation(headers.bth.opcode) == opcode::COMPARE_SWAP;
        let compare = is_swap.then_some(atomic.compare);
        let word = host.atomic(headers.srqn.unwrap_or(0), atomic.rkey, atomic.addr, compare, atomic.swap_add)?;
        self.remember(headers.bth.psn, 1, Body::Word(word));
        Ok(1)
    }

    /// ATOMIC WRITE (annex A19.4.3): answered as a READ of nothing.
    fn atomic_write<H: ResponderHost>(&mut self, packet: &Packet<'_, H::Data>, host: &mut H) -> Result<u32, Stop> {
        self.check_resources()?;
        let headers = &packet.headers;
        let value = packet.payload.word().map(u64::from_ne_bytes);
        let reth = headers.reth.filter(|reth| reth.length == 8 && reth.addr.is_multiple_of(8));
        let (Some(value), Some(reth)) = (value, reth) else { return Err(Nak::InvalidRequest.into()) };
        self.answer_readers(reth.addr, 8, host)?;
        host.atomic_write(headers.srqn.unwrap_or(0), reth.rkey, reth.addr, value)?;
        self.remember(headers.bth.psn, 1, Body::Nothing);
        Ok(1)
    }

    /// FLUSH (annex A19.4.2): once the checks pass, all before it is visible, for memory here is coherent. There is
    /// nothing to make persistent.
    fn flush(&mut self, headers: &Headers, host: &mut impl ResponderHost) -> Result<u32, Stop> {
        self.check_resources()?;
        let (Some(reth), Some((placement, level))) = (headers.reth, headers.flush) else {
            return Err(Nak::InvalidRequest.into());
        };
        // Selectivity level 1: the whole region.
        if level > 1 {
            return Err(Nak::InvalidRequest.into());
        }
        let length = if level == 1 { 0 } else { reth.length };
        host.check(headers.srqn.unwrap_or(0), reth.rkey, reth.addr, u64::from(length), Right::Flush(placement.into()))?;
        self.remember(headers.bth.psn, 1, Body::Nothing);
        Ok(1)
    }

    /// Answers the request and keeps what is needed to answer it again.
    fn remember(&mut self, psn: u32, packets: u32, body: Body) {
        self.msn = self.msn.wrapping_add(1);
        let resource = Resource { first_psn: psn, packets, body, msn: self.msn };
        self.answers.remember(resource, self.config.max_dest_rd_atomic);
        // The answer acknowledges all before it.
        self.ack_due = false;
    }
}
