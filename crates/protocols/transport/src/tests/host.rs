//! A QP's host over plain vectors: one region of memory, a list of requests, a queue of receives, a list of packets
//! sent.

use std::collections::VecDeque;

use vervain_wire::{ICRC_LEN, MAX_HEADERS, Packet, parse};

use crate::*;

/// Address and key of the region.
pub const BASE: u64 = 0x10_0000;
pub const RKEY: u32 = 0x1234;

/// A receive that has been taken.
#[derive(Clone, Debug, Default)]
pub struct Receive {
    pub data: Vec<u8>,
    pub room: u64,
    pub done: Option<(Received, Status)>,
}

pub struct Host {
    // The requester's side.
    pub requests: Vec<(Request, Vec<u8>)>,
    pub delivered: Vec<Vec<u8>>,
    pub completions: Vec<(u32, Status)>,
    /// The peer has taken all that was sent.
    pub taken: bool,
    /// Request whose local memory is not accessible.
    pub bad_local: Option<u32>,
    // The responder's.
    pub memory: Vec<u8>,
    /// Address of the memory.
    pub base: u64,
    /// Every key is good.
    pub any_key: bool,
    pub rights: Vec<Right>,
    /// Rooms of receives that are posted.
    pub posted: VecDeque<u64>,
    pub receives: Vec<Receive>,
    /// The memory of receives has gone, and that of READs when they are answered.
    pub bad_receive: bool,
    pub invalidated: Vec<u32>,
    pub bad_invalidate: bool,
    pub failed: Option<Nak>,
    pub silent: bool,
    pub tell_credits: bool,
    pub writes: usize,
    /// Packets that were sent and not looked at when each receive completed.
    pub sent_before: Vec<usize>,
    pub atomics: usize,
    // Both.
    pub wire: VecDeque<Vec<u8>>,
    /// Packets that may still be sent.
    pub room: usize,
    pub again: usize,
}

impl Host {
    pub fn new() -> Host {
        Host {
            requests: Vec::new(),
            delivered: Vec::new(),
            completions: Vec::new(),
            taken: true,
            bad_local: None,
            memory: vec![0; 1 << 20],
            base: BASE,
            any_key: false,
            rights: vec![Right::Write, Right::Read, Right::Atomic, Right::Flush(1)],
            posted: VecDeque::new(),
            receives: Vec::new(),
            bad_receive: false,
            invalidated: Vec::new(),
            bad_invalidate: false,
            failed: None,
            silent: false,
            tell_credits: false,
            writes: 0,
            sent_before: Vec::new(),
            atomics: 0,
            wire: VecDeque::new(),
            room: usize::MAX,
            again: 0,
        }
    }

    /// Posts a request of `data.len()` bytes, or `length` bytes of a READ.
    pub fn post(&mut self, operation: Opcode, data: &[u8], change: impl FnOnce(&mut Request)) -> u32 {
        let mut request = Request {
            opcode: operation,
            length: data.len() as u64,
            remote_addr: BASE,
            rkey: RKEY,
            ..Request::default()
        };
        change(&mut request);
        self.delivered.push(vec![0; request.length as usize]);
        self.requests.push((request, data.to_vec()));
        self.requests.len() as u32 - 1
    }

    fn range(&self, rkey: u32, addr: u64, len: u64, right: Right) -> Result<usize, Nak> {
        if self.silent {
            return Err(Nak::Silence);
        }
        if len == 0 {
            return Ok(0);
        }
        let offset = addr.checked_sub(self.base).ok_or(Nak::RemoteAccess)?;
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.memory.len() as u64);
        if (rkey != RKEY && !self.any_key) || !inside || !self.rights.contains(&right) {
            return Err(Nak::RemoteAccess);
        }
        Ok(offset as usize)
    }

    fn send(&mut self, packet: &Transmit<'_>, payload: &[u8]) -> Result<(), Refused> {
        if self.room == 0 {
            return Err(Refused::Full);
        }
        self.room -= 1;
        self.again += usize::from(packet.again);
        let mut bytes = [0; MAX_HEADERS];
        let len = packet.headers.emit(&mut bytes);
        let mut bytes = bytes[..len].to_vec();
        bytes.extend_from_slice(payload);
        assert_eq!(packet.headers.bth.pad as usize, payload.len().wrapping_neg() & 3);
        bytes.resize(bytes.len() + packet.headers.bth.pad as usize + ICRC_LEN, 0);
        self.wire.push_back(bytes);
        Ok(())
    }

    /// The packets sent since the last call, as opcode, PSN and AckReq.
    pub fn sent(&mut self) -> Vec<(u8, u32, bool)> {
        let bth = |bytes: &Vec<u8>| parse(bytes).unwrap().headers.bth;
        self.wire.drain(..).map(|bytes| bth(&bytes)).map(|bth| (bth.opcode, bth.psn, bth.ack_request)).collect()
    }
}

/// Parses what [`Host`] sent.
pub fn parsed(bytes: &[u8]) -> Packet<'_> {
    parse(bytes).unwrap()
}

impl RequesterHost for Host {
    type Data = [u8];

    fn request(&self, n: u32) -> Option<Request> {
        self.requests.get(n as usize).map(|(request, _)| *request)
    }

    fn transmit(&mut self, packet: &Transmit<'_>) -> Result<(), Refused> {
        let data = match packet.payload {
            Payload::None => Vec::new(),
            Payload::Request { n, .. } if self.bad_local == Some(n) => return Err(Refused::Memory),
            Payload::Request { n, offset, len } => {
                self.requests[n as usize].1[offset as usize..][..len as usize].to_vec()
            }
            Payload::Memory { .. } | Payload::Bytes(_) => panic!("a requester sends data of its requests"),
        };
        self.send(packet, &data)
    }

    fn deliver(&mut self, n: u32, offset: u64, data: &[u8]) -> Result<(), Refused> {
        if self.bad_local == Some(n) {
            return Err(Refused::Memory);
        }
        self.delivered[n as usize][offset as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    fn deliver_word(&mut self, n: u32, word: u64) -> Result<(), Refused> {
        self.deliver(n, 0, &word.to_ne_bytes())
    }

    fn is_taken(&self) -> bool {
        self.taken
    }

    fn complete(&mut self, n: u32, status: Status) {
        assert_eq!(n as usize, self.completions.len(), "in order, each once");
        self.completions.push((n, status));
    }
}

impl ResponderHost for Host {
    type Data = [u8];

    fn check(&mut self, _srqn: u32, rkey: u32, addr: u64, len: u64, right: Right) -> Result<(), Nak> {
        self.range(rkey, addr, len, right).map(|_| ())
    }

    fn write(&mut self, _srqn: u32, rkey: u32, addr: u64, data: &[u8], _last: bool) -> Result<(), Nak> {
        let offset = self.range(rkey, addr, data.len() as u64, Right::Write)?;
        self.memory[offset..][..data.len()].copy_from_slice(data);
        self.writes += 1;
        Ok(())
    }

    fn atomic(&mut self, _srqn: u32, rkey: u32, addr: u64, compare: Option<u64>, swap_add: u64) -> Result<u64, Nak> {
        let offset = self.range(rkey, addr, 8, Right::Atomic)?;
        let word = u64::from_ne_bytes(self.memory[offset..][..8].try_into().unwrap());
        let new = match compare {
            None => word.wrapping_add(swap_add),
            Some(compare) if compare == word => swap_add,
            Some(_) => word,
        };
        self.memory[offset..][..8].copy_from_slice(&new.to_ne_bytes());
        self.atomics += 1;
        Ok(word)
    }

    fn atomic_write(&mut self, srqn: u32, rkey: u32, addr: u64, value: u64) -> Result<(), Nak> {
        self.write(srqn, rkey, addr, &value.to_ne_bytes(), true)
    }

    fn claim(&mut self, _srqn: u32) -> Result<(u32, u64), Nak> {
        if self.silent {
            return Err(Nak::Silence);
        }
        let room = self.posted.pop_front().ok_or(Nak::ReceiverNotReady(12))?;
        self.receives.push(Receive { room, ..Receive::default() });
        Ok((self.receives.len() as u32 - 1, room))
    }

    fn fill(&mut self, _srqn: u32, receive: u32, offset: u64, data: &[u8], _last: bool) -> Result<(), Nak> {
        if self.silent {
            return Err(Nak::Silence);
        }
        if self.bad_receive {
            return Err(Nak::RemoteOperation);
        }
        let receive = &mut self.receives[receive as usize];
        assert!(offset + data.len() as u64 <= receive.room);
        receive.data.resize(offset as usize, 0);
        receive.data.extend_from_slice(data);
        Ok(())
    }

    fn invalidate(&mut self, _srqn: u32, rkey: u32) -> Result<(), Nak> {
        if self.bad_invalidate {
            return Err(Nak::RemoteAccess);
        }
        self.invalidated.push(rkey);
        Ok(())
    }

    fn complete(&mut self, _srqn: u32, receive: u32, received: &Received) {
        self.sent_before.push(self.wire.len());
        self.spoil(0, receive, received, Status::Success, Nak::Silence);
        self.failed = None;
    }

    fn spoil(&mut self, _srqn: u32, receive: u32, received: &Received, status: Status, nak: Nak) {
        let receive = &mut self.receives[receive as usize];
        assert!(receive.done.is_none(), "a receive completes once");
        receive.done = Some((*received, status));
        self.failed = Some(nak);
    }

    fn unclaim(&mut self, _srqn: u32, receive: u32) {
        assert_eq!(receive as usize, self.receives.len() - 1);
        let receive = self.receives.pop().unwrap();
        assert!(receive.done.is_none());
        self.posted.push_front(receive.room);
    }

    fn fail(&mut self, nak: Nak) {
        self.failed = Some(nak);
    }

    fn credits(&mut self) -> Option<u32> {
        self.tell_credits.then_some(self.posted.len() as u32)
    }

    fn transmit(&mut self, packet: &Transmit<'_>) -> Result<(), Refused> {
        let data = match packet.payload {
            Payload::None => Vec::new(),
            Payload::Memory { .. } if self.bad_receive => return Err(Refused::Memory),
            Payload::Memory { rkey, addr, len, .. } => {
                let offset = self.range(rkey, addr, u64::from(len), Right::Read).map_err(|_| Refused::Memory)?;
                self.memory[offset..][..len as usize].to_vec()
            }
            Payload::Bytes(bytes) => bytes.to_vec(),
            Payload::Request { .. } => panic!("a responder does not send requests"),
        };
        self.send(packet, &data)
    }
}
