//! A sender of Writes without end, and the QP that takes them. Memory is not simulated: packets have a length only.

use std::collections::VecDeque;
use std::sync::Arc;

use vervain_transport::{
    KeptRoom, KeptShare, Nak, Nanos, Opcode, Payload, Received, Refused, Request, Requester, RequesterConfig,
    RequesterHost, Responder, ResponderConfig, ResponderHost, Right, Service, Status, Transmit, Window,
};
use vervain_wire::{Headers, Packet, TAKES_GAPS};

pub const MTU: u32 = 4096;
/// Bytes of a request.
const MESSAGE: u64 = 256 << 10;
/// Requests that are posted at a time.
const POSTED: u32 = 64;
/// Most bytes under way to one process, as of the RoCE link.
const MOST_UNDER_WAY: u64 = 8 << 20;

static ZEROS: [u8; MTU as usize] = [0; MTU as usize];

/// A packet on its way.
#[derive(Clone)]
pub struct Sent {
    pub headers: Headers,
    pub length: usize,
    /// The payload of a report of gaps.
    report: Vec<u8>,
}

impl Sent {
    fn of(packet: &Transmit<'_>) -> Sent {
        let (length, report) = match packet.payload {
            Payload::None => (0, Vec::new()),
            Payload::Request { len, .. } | Payload::Memory { len, .. } => (len as usize, Vec::new()),
            Payload::Bytes(report) => (report.len(), report.to_vec()),
        };
        Sent { headers: *packet.headers, length, report }
    }

    pub fn packet(&self) -> Packet<'_> {
        let payload = if self.report.is_empty() { &ZEROS[..self.length] } else { &self.report };
        Packet { headers: self.headers, payload }
    }
}

/// The send queue, which is never empty.
#[derive(Default)]
pub struct SendQueue {
    done: u32,
    pub out: VecDeque<Sent>,
}

impl RequesterHost for SendQueue {
    type Data = [u8];

    fn request(&self, n: u32) -> Option<Request> {
        let request = Request { opcode: Opcode::Write, length: MESSAGE, ..Request::default() };
        (n.wrapping_sub(self.done) < POSTED).then_some(request)
    }

    fn transmit(&mut self, packet: &Transmit<'_>) -> Result<(), Refused> {
        self.out.push_back(Sent::of(packet));
        Ok(())
    }

    fn deliver(&mut self, _: u32, _: u64, _: &[u8]) -> Result<(), Refused> {
        unreachable!("no READ was posted")
    }

    fn deliver_word(&mut self, _: u32, _: u64) -> Result<(), Refused> {
        unreachable!("no atomic was posted")
    }

    fn complete(&mut self, n: u32, status: Status) {
        assert_eq!(status, Status::Success, "request {n}");
        self.done = n.wrapping_add(1);
    }
}

/// The memory that the Writes go to.
#[derive(Default)]
pub struct Sink {
    /// Bytes written.
    pub taken: u64,
    pub out: VecDeque<Sent>,
}

impl ResponderHost for Sink {
    type Data = [u8];

    fn check(&mut self, _: u32, _: u32, _: u64, _: u64, _: Right) -> Result<(), Nak> {
        Ok(())
    }

    fn write(&mut self, _: u32, _: u32, _: u64, data: &[u8], _: bool) -> Result<(), Nak> {
        self.taken += data.len() as u64;
        Ok(())
    }

    fn credits(&mut self) -> Option<u32> {
        None
    }

    fn transmit(&mut self, packet: &Transmit<'_>) -> Result<(), Refused> {
        self.out.push_back(Sent::of(packet));
        Ok(())
    }

    fn fail(&mut self, nak: Nak) {
        panic!("{nak:?}");
    }

    fn atomic(&mut self, _: u32, _: u32, _: u64, _: Option<u64>, _: u64) -> Result<u64, Nak> {
        unreachable!("only Writes come")
    }

    fn atomic_write(&mut self, _: u32, _: u32, _: u64, _: u64) -> Result<(), Nak> {
        unreachable!("only Writes come")
    }

    fn claim(&mut self, _: u32) -> Result<(u32, u64), Nak> {
        unreachable!("only Writes come")
    }

    fn fill(&mut self, _: u32, _: u32, _: u64, _: &[u8], _: bool) -> Result<(), Nak> {
        unreachable!("only Writes come")
    }

    fn invalidate(&mut self, _: u32, _: u32) -> Result<(), Nak> {
        unreachable!("only Writes come")
    }

    fn complete(&mut self, _: u32, _: u32, _: &Received) {
        unreachable!("only Writes come")
    }

    fn spoil(&mut self, _: u32, _: u32, _: &Received, _: Status, _: Nak) {
        unreachable!("only Writes come")
    }

    fn unclaim(&mut self, _: u32, _: u32) {}
}

/// One QP of each of two processes, which share no path with others.
pub struct Flow {
    pub requester: Requester,
    pub window: Window,
    pub sends: SendQueue,
    pub responder: Responder,
    pub sink: Sink,
    /// When the sender's line is free.
    pub line_free: Nanos,
    /// When a notification last left the receiver.
    pub notified: Option<Nanos>,
    /// For packets behind a gap.
    pub room: Option<Arc<KeptShare>>,
    /// When the last answer arrives: answers do not overtake each other.
    pub answered: Nanos,
    /// The deadline that an event stands for.
    pub timer: Option<Nanos>,
}

impl Flow {
    /// `speaks` of gaps.
    pub fn new(speaks: bool) -> Flow {
        let requester = RequesterConfig {
            service: Service::Rc,
            dest_qpn: 0x11,
            pkey: 0xffff,
            migrated: true,
            introduces: speaks,
            first_psn: 100,
            first_request: 0,
            mtu: MTU,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 16,
        };
        let responder = ResponderConfig {
            service: Service::Rc,
            dest_qpn: 0x12,
            pkey: 0xffff,
            migrated: true,
            expected_psn: 100,
            mtu: MTU,
            max_dest_rd_atomic: 16,
            acks_first: false,
        };
        Flow {
            requester: Requester::new(&requester),
            window: Window::new(MTU, MOST_UNDER_WAY),
            sends: SendQueue::default(),
            responder: Responder::new(&responder),
            sink: Sink::default(),
            line_free: 0,
            notified: None,
            room: speaks.then(|| Arc::new(KeptRoom::new(64 << 20)).share()),
            answered: 0,
            timer: None,
        }
    }
    /// Gives the responder a packet, as a link does.
    pub fn arrives(&mut self, sent: &Sent) {
        let packet = sent.packet();
        match self.room.as_ref().filter(|_| packet.headers.bth.mark == TAKES_GAPS) {
            Some(room) => self.responder.handle_introduction(&packet, &mut self.sink, room),
            None => self.responder.handle_packet(&packet, &mut self.sink),
        }
        while self.responder.execute_kept(&mut self.sink) {}
        while self.responder.poll_transmit(64, &mut self.sink) {}
    }
}
