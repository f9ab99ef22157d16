//! The other side of a simulated QP: memory, receives and rights, as its responder sees them as host. Each call is held
//! against the script of the peer's requests: done exactly once, in order, with the right data.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use vervain_transport::{
    Nak, Opcode, Payload, Received, Refused, Request, ResponderHost, Right, Status, Target as Place, Transmit,
};

use crate::landing::{Arrived, Note, Putter, Way};
use crate::plan::{Misdeed, Op, Receives, Service, keys};
use crate::port::Port;
use crate::random::pattern;

/// Receives: a QP's own, or those of an SRQ.
pub struct ReceiveQueue {
    pub plan: Receives,
    posted: u32,
    taken: u32,
    /// Claimed and given back, to be claimed again first.
    back: VecDeque<u32>,
}

impl ReceiveQueue {
    pub fn new(plan: Receives) -> Self {
        Self { plan, posted: plan.first, taken: 0, back: VecDeque::new() }
    }

    /// Posts more, unless very many are left.
    pub fn refill(&mut self) -> bool {
        let few = self.left() < 256;
        if few {
            self.posted += self.plan.then;
        }
        few
    }

    fn left(&self) -> u32 {
        self.posted - self.taken + self.back.len() as u32
    }

    fn take(&mut self) -> Option<u32> {
        if let Some(receive) = self.back.pop_front() {
            return Some(receive);
        }
        (self.taken < self.posted).then(|| {
            self.taken += 1;
            self.taken - 1
        })
    }
}

/// The state that all QPs of a host share.
pub struct Shared {
    pub host: usize,
    pub words: [u64; keys::WORD_COUNT as usize],
    pub receives: ReceiveQueue,
}

/// The state of a responder's QP.
pub struct Target {
    pub service: Service,
    /// The requests that the peer posts.
    script: Rc<[Op]>,
    /// The key of the memory, and the memory.
    key: u32,
    pub memory: Vec<u8>,
    pub own: ReceiveQueue,
    room: u64,
    rnr_timer: u8,
    mtu: u32,
    /// Requests of the script that have been executed, and how many bytes of the next one.
    executed: usize,
    offset: u64,
    /// A claimed receive, and its bytes.
    claimed: Option<(u32, Vec<u8>)>,
    /// The words that atomics found.
    pub found: HashMap<usize, u64>,
    pub failed: bool,
    /// UC: the request and the offset that the packet under way belongs to, and how far the current message came whole.
    pub packet: Option<(usize, u64)>,
    whole: Option<(usize, u64)>,
    /// UC: one past the last request that was done.
    done: usize,
    /// Receives completed.
    pub received: u64,
    /// Grows with everything that is executed.
    pub progressed: u64,
    pub putter: Option<Putter>,
}

impl Target {
    pub fn new(
        service: Service,
        script: Rc<[Op]>,
        key: u32,
        region: u64,
        receives: Receives,
        limits: (u64, u8, u32),
    ) -> Self {
        let (room, rnr_timer, mtu) = limits;
        Self {
            service,
            script,
            key,
            memory: vec![0; region as usize],
            own: ReceiveQueue::new(receives),
            room,
            rnr_timer,
            mtu,
            executed: 0,
            offset: 0,
            claimed: None,
            found: HashMap::new(),
            failed: false,
            packet: None,
            whole: None,
            done: 0,
            received: 0,
            progressed: 0,
            putter: None,
        }
    }

    pub fn has_claimed(&self) -> bool {
        self.claimed.is_some()
    }

    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// The first request that is not known to be executed. Requests without a trace count as executed.
    pub fn progress(&self) -> usize {
        if self.offset > 0 {
            return self.executed;
        }
        let traceless = self.script[self.executed..].iter().take_while(|op| op.traceless()).count();
        self.executed + traceless
    }

    /// Memory must be what the executed requests leave there when each is done once and in order.
    pub fn check_memory(&self) {
        let mut model = vec![0; self.memory.len()];
        let base = keys::base(self.key);
        for (index, op) in self.script[..(self.executed + 1).min(self.script.len())].iter().enumerate() {
            let stores = op.writes() || op.request.opcode == Opcode::AtomicWrite;
            if !stores || op.request.rkey != self.key || op.misdeed.is_some_and(|m| m != Misdeed::Local) {
                continue;
            }
            let length = if index < self.executed { op.request.length } else { self.offset };
            let start = (op.request.remote_addr - base) as usize;
            pattern(op.key, 0, &mut model[start..start + length as usize]);
        }
        if let Some(at) = self.memory.iter().zip(&model).position(|(a, b)| a != b) {
            panic!("memory differs from the model's at byte {at} after {} requests", self.executed);
        }
    }

    /// The request that a store, a claim or an atomic must belong to.
    fn current(&mut self) -> (usize, u64) {
        if let Some(packet) = self.packet {
            return packet;
        }
        self.executed = self.progress();
        assert!(self.executed < self.script.len(), "more is executed than was posted");
        (self.executed, self.offset)
    }

    fn op(&self, index: usize) -> &Op {
        &self.script[index]
    }

    /// Data of the current message, at the right place of it, and the right bytes.
    fn advance(&mut self, index: usize, offset: u64, arrived: &Arrived, last: bool) {
        let data = &arrived.bytes;
        let op = self.script[index];
        let end = offset + data.len() as u64;
        self.progressed += 1;
        assert!(data.len() <= self.mtu as usize || arrived.place.is_some(), "more data at once than the MTU");
        assert!(end <= op.request.length, "request {index} stores more than its length");
        assert_eq!(last, end == op.request.length, "request {index}: the end of the message is not where it says");
        let mut wanted = vec![0; data.len()];
        pattern(op.key, offset, &mut wanted);
        assert!(*data == wanted, "request {index} stores wrong data at offset {offset}");
        if self.service.reliable() {
            assert_eq!(offset, self.offset, "request {index} stores out of order");
            self.offset = end;
        } else {
            assert!(index >= self.done, "request {index} came after a later one");
            if offset > 0 {
                assert_eq!(self.whole, Some((index, offset)), "request {index} goes on with a gap");
            }
            self.whole = Some((index, end));
        }
    }

    fn finish(&mut self, index: usize) {
        self.progressed += 1;
        self.executed = index + 1;
        self.done = index + 1;
        self.offset = 0;
        self.whole = None;
    }

    fn check_received(&self, index: usize, received: &Received) {
        let op = self.op(index);
        let request = &op.request;
        let imm = matches!(request.opcode, Opcode::SendImm | Opcode::WriteImm).then_some(request.imm_or_rkey);
        let invalidated = (request.opcode == Opcode::SendInv).then_some(request.imm_or_rkey);
        let wanted = Received {
            length: request.length as u32,
            write: op.writes(),
            imm,
            invalidated,
            solicited: request.is_solicited(),
            partial: false,
        };
        assert_eq!(*received, wanted, "request {index} is received with other particulars");
    }
}

/// The host of a responder, for one call.
pub struct TargetHost<'a> {
    pub target: &'a mut Target,
    pub shared: &'a mut Shared,
    pub port: &'a mut Port,
    pub peer_host: usize,
    pub peer_qpn: u32,
}

impl TargetHost<'_> {
    fn alive(&mut self) -> Result<(), Nak> {
        if self.target.failed || self.port.is_deaf() { Err(Nak::Silence) } else { Ok(()) }
    }

    /// The check of the key's rights for the range.
    fn rights(&self, rkey: u32, addr: u64, len: u64, right: Right) -> Result<(), Nak> {
        let size = match (rkey & keys::KIND, right) {
            (keys::REGION, Right::Write | Right::Read | Right::Flush(1)) if rkey == self.target.key => {
                self.target.memory.len() as u64
            }
            (keys::PATTERN | keys::GONE, Right::Read) if rkey & keys::OWNER == self.shared.host as u32 => {
                keys::PATTERN_LENGTH
            }
            (keys::WORDS, Right::Atomic) if rkey & keys::OWNER == self.shared.host as u32 => keys::WORD_COUNT * 8,
            _ => return Err(Nak::RemoteAccess),
        };
        let start = addr.checked_sub(keys::base(rkey)).ok_or(Nak::RemoteAccess)?;
        if start.checked_add(len).is_none_or(|end| end > size) { Err(Nak::RemoteAccess) } else { Ok(()) }
    }

    fn queue(&mut self) -> &mut ReceiveQueue {
        if self.target.service.shared() { &mut self.shared.receives } else { &mut self.target.own }
    }

    fn check_srqn(&self, srqn: u32) {
        let wanted = if self.target.service == Service::Extended { self.shared.host as u32 + 1 } else { 0 };
        assert_eq!(srqn, wanted, "the SRQ number of the packet");
    }
}

impl ResponderHost for TargetHost<'_> {
    type Data = Arrived;

    fn check(&mut self, srqn: u32, rkey: u32, addr: u64, len: u64, right: Right) -> Result<(), Nak> {
        self.alive()?;
        self.check_srqn(srqn);
        if len == 0 { Ok(()) } else { self.rights(rkey, addr, len, right) }
    }

    fn write(&mut self, srqn: u32, rkey: u32, addr: u64, arrived: &Arrived, last: bool) -> Result<(), Nak> {
        let data = &arrived.bytes;
        self.alive()?;
        self.check_srqn(srqn);
        if data.is_empty() {
            return Ok(());
        }
        self.rights(rkey, addr, data.len() as u64, Right::Write)?;
        let (index, offset) = self.target.current();
        let op = *self.target.op(index);
        assert!(op.writes(), "a write where request {index} is {:?}", op.request.opcode);
        assert!(op.misdeed.is_none_or(|m| m == Misdeed::Local), "a write of request {index} with {:?}", op.misdeed);
        assert_eq!(
            (rkey, addr),
            (op.request.rkey, op.request.remote_addr + offset),
            "request {index} writes elsewhere"
        );
        let Request { remote_addr, length, .. } = op.request;
        let whole = Place::Memory { rkey, addr: remote_addr, length: length as u32 };
        assert!(arrived.place.is_none_or(|place| place == whole), "request {index} was put elsewhere");
        self.target.advance(index, offset, arrived, last);
        let start = (addr - keys::base(rkey)) as usize;
        self.target.memory[start..start + data.len()].copy_from_slice(data);
        if last && op.request.opcode == Opcode::Write {
            self.target.finish(index);
        }
        Ok(())
    }

    fn atomic(&mut self, srqn: u32, rkey: u32, addr: u64, compare: Option<u64>, swap_add: u64) -> Result<u64, Nak> {
        self.alive()?;
        self.check_srqn(srqn);
        if !addr.is_multiple_of(8) {
            return Err(Nak::InvalidRequest);
        }
        self.rights(rkey, addr, 8, Right::Atomic)?;
        let (index, _) = self.target.current();
        let op = *self.target.op(index);
        let request = &op.request;
        let (wanted, operand) = match request.opcode {
            Opcode::CompareSwap => (Some(request.compare_add), request.swap),
            Opcode::FetchAdd => (None, request.compare_add),
            other => panic!("an atomic where request {index} is {other:?}"),
        };
        assert_eq!(
            (rkey, addr, compare, swap_add),
            (request.rkey, request.remote_addr, wanted, operand),
            "atomic {index}"
        );
        let word = &mut self.shared.words[((addr - keys::base(rkey)) / 8) as usize];
        let before = *word;
        *word = match compare {
            Some(compare) if compare != before => before,
            Some(_) => swap_add,
            None => before.wrapping_add(swap_add),
        };
        self.target.found.insert(index, before);
        self.target.finish(index);
        Ok(before)
    }

    fn atomic_write(&mut self, srqn: u32, rkey: u32, addr: u64, value: u64) -> Result<(), Nak> {
        self.alive()?;
        self.check_srqn(srqn);
        if !addr.is_multiple_of(8) {
            return Err(Nak::InvalidRequest);
        }
        self.rights(rkey, addr, 8, Right::Write)?;
        let (index, offset) = self.target.current();
        let request = self.target.op(index).request;
        assert_eq!(request.opcode, Opcode::AtomicWrite, "an atomic write where request {index} is another");
        assert_eq!((rkey, addr), (request.rkey, request.remote_addr), "atomic write {index} elsewhere");
        let arrived = Arrived { bytes: value.to_ne_bytes().to_vec(), place: None };
        self.target.advance(index, offset, &arrived, true);
        let start = (addr - keys::base(rkey)) as usize;
        self.target.memory[start..start + 8].copy_from_slice(&arrived.bytes);
        self.target.finish(index);
        Ok(())
    }

    fn claim(&mut self, srqn: u32) -> Result<(u32, u64), Nak> {
        self.alive()?;
        self.check_srqn(srqn);
        let (index, _) = self.target.current();
        assert!(self.target.op(index).receives(), "request {index} claims a receive");
        assert!(self.target.claimed.is_none(), "request {index} claims a second receive");
        let timer = self.target.rnr_timer;
        let receive = self.queue().take().ok_or(Nak::ReceiverNotReady(timer))?;
        let room = self.target.room;
        self.target.claimed = Some((receive, vec![0; room as usize]));
        Ok((receive, room))
    }

    fn fill(&mut self, srqn: u32, receive: u32, offset: u64, arrived: &Arrived, last: bool) -> Result<(), Nak> {
        let data = &arrived.bytes;
        self.alive()?;
        self.check_srqn(srqn);
        let (index, at) = self.target.current();
        assert!(self.target.op(index).sends(), "request {index} fills a receive");
        assert_eq!(offset, at, "request {index} fills its receive elsewhere");
        let room = self.target.room;
        if offset + data.len() as u64 > room {
            return Err(Nak::InvalidRequest);
        }
        let own = Place::Receive { receive, room };
        assert!(arrived.place.is_none_or(|place| place == own), "request {index} was put into another receive");
        self.target.advance(index, offset, arrived, last);
        let (number, bytes) = self.target.claimed.as_mut().expect("a claimed receive");
        assert_eq!(*number, receive, "another receive than the one claimed");
        bytes[offset as usize..offset as usize + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn invalidate(&mut self, srqn: u32, rkey: u32) -> Result<(), Nak> {
        self.check_srqn(srqn);
        let (index, _) = self.target.current();
        let op = self.target.op(index);
        assert_eq!(op.request.opcode, Opcode::SendInv, "request {index} invalidates");
        assert_eq!(op.request.imm_or_rkey, rkey, "request {index} invalidates another key");
        if op.misdeed == Some(Misdeed::Invalidation) { Err(Nak::RemoteAccess) } else { Ok(()) }
    }

    fn complete(&mut self, srqn: u32, receive: u32, received: &Received) {
        assert!(!self.target.failed, "a receive completes after an error");
        self.check_srqn(srqn);
        let (index, offset) = self.target.current();
        let op = *self.target.op(index);
        assert!(op.receives(), "request {index} completes a receive");
        assert!(op.misdeed.is_none_or(|m| m == Misdeed::Local), "request {index} is received with {:?}", op.misdeed);
        self.target.check_received(index, received);
        let (number, bytes) = self.target.claimed.take().expect("a claimed receive");
        assert_eq!(number, receive, "another receive than the one claimed");
        if op.sends() {
            let mut wanted = vec![0; op.request.length as usize];
            pattern(op.key, 0, &mut wanted);
            assert!(bytes[..wanted.len()] == wanted, "request {index} is received with wrong data");
        }
        let whole = match self.target.packet {
            None => offset,
            Some(_) if op.request.length == 0 => 0,
            Some(_) => self.target.whole.map_or(0, |(message, end)| if message == index { end } else { 0 }),
        };
        assert_eq!(whole, op.request.length, "request {index} is received before all of it came");
        assert!(self.target.packet.is_none() || index >= self.target.done, "request {index} is received late or twice");
        self.target.finish(index);
        self.target.received += 1;
        self.port.note(&[u64::from(self.peer_qpn), u64::from(receive), index as u64]);
    }

    fn spoil(&mut self, srqn: u32, receive: u32, _received: &Received, status: Status, _nak: Nak) {
        self.check_srqn(srqn);
        assert!(!self.target.failed, "an error after an error");
        assert_ne!(status, Status::Success);
        let (number, _) = self.target.claimed.take().expect("a claimed receive");
        assert_eq!(number, receive, "another receive than the one claimed");
        self.target.failed = true;
    }

    fn unclaim(&mut self, srqn: u32, receive: u32) {
        self.check_srqn(srqn);
        let at_its_claim = self.target.offset == 0 || self.target.op(self.target.executed).writes();
        assert!(!self.target.service.reliable() || at_its_claim, "a message gives its receive back that has begun");
        let (number, _) = self.target.claimed.take().expect("a claimed receive");
        assert_eq!(number, receive, "another receive than the one claimed");
        self.queue().back.push_back(number);
    }

    fn fail(&mut self, _nak: Nak) {
        assert!(!self.target.failed, "an error after an error");
        self.target.failed = true;
    }

    fn landing(&self, psn: u32, left: u32) -> u32 {
        self.target.putter.as_ref().map_or(1, |putter| putter.answer_span(psn, left))
    }

    fn credits(&mut self) -> Option<u32> {
        (!self.target.service.shared()).then(|| self.target.own.left())
    }

    fn transmit(&mut self, packet: &Transmit<'_>) -> Result<(), Refused> {
        assert_eq!(packet.headers.bth.dest_qpn, self.peer_qpn, "an answer to another QP");
        let mut data = Vec::new();
        match packet.payload {
            Payload::None => {}
            Payload::Memory { srqn, rkey, addr, len, .. } => {
                self.check_srqn(srqn);
                if len > 0 && self.rights(rkey, addr, u64::from(len), Right::Read).is_err() {
                    return Err(Refused::Memory);
                }
                data = vec![0; len as usize];
                let start = addr.wrapping_sub(keys::base(rkey));
                if rkey & keys::KIND == keys::GONE && start + u64::from(len) > keys::PATTERN_LENGTH / 2 {
                    return Err(Refused::Memory);
                }
                if matches!(rkey & keys::KIND, keys::PATTERN | keys::GONE) {
                    pattern(u64::from(rkey), start, &mut data);
                } else if len > 0 {
                    data.copy_from_slice(&self.target.memory[start as usize..start as usize + len as usize]);
                }
            }
            Payload::Bytes(bytes) => data = bytes.to_vec(),
            Payload::Request { .. } => panic!("a responder sends a request's data"),
        }
        if self.port.is_full(self.peer_host) {
            return Err(Refused::Full);
        }
        let mut note = None;
        if let (Some(putter), false) = (&mut self.target.putter, data.is_empty()) {
            match putter.answer_way(packet.headers.bth.psn, data.len() as u32) {
                Way::Put(place) => note = Some(Note::Put(place)),
                Way::Plain => {}
                Way::Ask | Way::Wait => return Err(Refused::Full),
            }
        }
        assert!(data.len() <= self.target.mtu as usize || note.is_some(), "{} bytes in a packet", data.len());
        self.port.send(self.peer_host, packet.headers, &data, note);
        Ok(())
    }
}
