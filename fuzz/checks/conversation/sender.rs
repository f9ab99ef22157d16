//! The send queue that a requester works on. Requests end once, in order, and none after an error; a READ that succeeds has
//! all its data; nothing is sent or delivered beyond a request.

use vervain_transport::{Opcode, Payload, Refused, Request, RequesterHost, Status, Transmit};

use super::assert_well_formed;

/// The counter of requests wraps soon.
pub const FIRST_REQUEST: u32 = u32::MAX - 2;

pub struct Sender {
    mtu: u32,
    posted: Vec<Posted>,
    completed: usize,
    /// Packets that are taken.
    pub room: u32,
    pub last_psn: u32,
    pub has_failed: bool,
}

struct Posted {
    request: Request,
    /// Its memory is not accessible.
    is_bad: bool,
    /// Bytes delivered, from the first on.
    delivered: u64,
}

impl Sender {
    pub fn new(mtu: u32) -> Sender {
        Sender { mtu, posted: Vec::new(), completed: 0, room: u32::MAX, last_psn: super::FIRST_PSN, has_failed: false }
    }

    pub fn post(&mut self, request: Request, is_bad: bool) {
        self.posted.push(Posted { request, is_bad, delivered: 0 });
    }

    /// A request that is under way.
    #[track_caller]
    fn pending(&mut self, n: u32) -> &mut Posted {
        assert!(!self.has_failed, "request {n} after an error");
        let index = n.wrapping_sub(FIRST_REQUEST) as usize;
        assert!(index >= self.completed, "request {n} has ended");
        &mut self.posted[index]
    }
}

impl RequesterHost for Sender {
    type Data = [u8];

    fn request(&self, n: u32) -> Option<Request> {
        self.posted.get(n.wrapping_sub(FIRST_REQUEST) as usize).map(|posted| posted.request)
    }

    fn transmit(&mut self, packet: &Transmit<'_>) -> Result<(), Refused> {
        assert!(!self.has_failed, "a packet after an error");
        let len = match packet.payload {
            Payload::None => 0,
            Payload::Request { n, offset, len } => {
                let posted = self.pending(n);
                assert!(offset + u64::from(len) <= posted.request.length);
                assert!(posted.request.opcode != Opcode::Read);
                if posted.is_bad {
                    return Err(Refused::Memory);
                }
                len
            }
            Payload::Memory { .. } | Payload::Bytes(_) => panic!("a requester sends memory of a responder"),
        };
        assert_well_formed(packet.headers, len, self.mtu);
        self.room = self.room.checked_sub(1).ok_or(Refused::Full)?;
        self.last_psn = packet.headers.bth.psn;
        Ok(())
    }

    fn deliver(&mut self, n: u32, offset: u64, data: &[u8]) -> Result<(), Refused> {
        let posted = self.pending(n);
        assert!(matches!(posted.request.opcode, Opcode::Read | Opcode::CompareSwap | Opcode::FetchAdd));
        let end = offset + data.len() as u64;
        assert!(offset <= posted.delivered && end <= posted.request.length, "a hole, or too much");
        if posted.is_bad {
            return Err(Refused::Memory);
        }
        posted.delivered = posted.delivered.max(end);
        Ok(())
    }

    fn deliver_word(&mut self, n: u32, word: u64) -> Result<(), Refused> {
        self.deliver(n, 0, &word.to_ne_bytes())
    }

    fn is_taken(&self) -> bool {
        // As good as any other bit of the script.
        self.room & 1 == 0
    }

    fn complete(&mut self, n: u32, status: Status) {
        let posted = self.pending(n);
        if status == Status::Success && posted.request.opcode == Opcode::Read {
            assert_eq!(posted.delivered, posted.request.length);
        }
        assert_eq!(n.wrapping_sub(FIRST_REQUEST) as usize, self.completed, "out of order");
        self.completed += 1;
        self.has_failed = status != Status::Success;
    }
}
