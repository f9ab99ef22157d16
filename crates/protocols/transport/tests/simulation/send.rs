//! The send queue of a simulated QP: what its requester sees as host, and what must hold of completions and of data
//! that Reads and atomics fetch.

use std::collections::BTreeMap;
use std::rc::Rc;

use vervain_transport::{Nanos, Opcode, Payload, Refused, Request, RequesterCounters, RequesterHost, Status, Transmit};

use vervain_wire::opcode;

use crate::landing::{Arrived, Note, Putter, Way, packets};
use crate::plan::{EndPlan, Misdeed, Op, keys};
use crate::port::{Port, Ring};
use crate::random::pattern;

pub struct SendQueue {
    pub script: Rc<[Op]>,
    first_request: u32,
    mtu: u32,
    /// Requests posted and done so far.
    pub posted: usize,
    pub completed: usize,
    /// How the QP ended, if it did.
    pub failed: Option<Status>,
    pub places: usize,
    /// The peer's memory, if all requests posted so far had been executed.
    shadow: Vec<u8>,
    fetches: Vec<Option<Fetch>>,
    /// The highest PSN sent, counted from the first one without wrapping.
    first_psn: u32,
    highest: Option<i64>,
    /// Packets sent, and sent again.
    pub packets: u64,
    pub again: u64,
    /// Grows with everything that is done for good.
    pub progress: u64,
    /// Over a ring: how much it had taken in with the last packet of this QP.
    put: u64,
    /// Bytes in the ring at the last timeout, if packets are sent again because of it, and no NAK has come since.
    timed_out: Option<u64>,
    /// It has gone back, and sent nothing new since.
    resends: bool,
    /// Over rings where answers are prompt: the PSN up to which the peer has executed everything.
    pub executed: Option<u32>,
    pub putter: Option<Putter>,
    /// Bytes of the message that was asked for.
    pub asked: u64,
    /// Bytes of a READ that is about to be asked for.
    long_read: u64,
}

/// The data that a Read or an atomic has fetched.
#[derive(Clone, Default)]
struct Fetch {
    data: Vec<u8>,
    /// Bytes from the start that have been delivered.
    delivered: usize,
    /// What has been delivered behind a gap: where each piece begins and ends.
    early: BTreeMap<usize, usize>,
    /// The contents of the peer's memory when the request was posted.
    expected: Vec<u8>,
}

impl SendQueue {
    pub fn new(plan: &EndPlan, peer_region: u64, mtu: u32) -> Self {
        Self {
            script: plan.operations.clone().into(),
            first_request: plan.first_request,
            mtu,
            posted: 0,
            completed: 0,
            failed: None,
            places: plan.queue as usize,
            shadow: vec![0; peer_region as usize],
            fetches: vec![None; plan.operations.len()],
            first_psn: plan.first_psn,
            highest: None,
            packets: 0,
            again: 0,
            progress: 0,
            put: 0,
            timed_out: None,
            resends: false,
            executed: None,
            putter: None,
            asked: 0,
            long_read: 0,
        }
    }

    /// All requests have been posted and are done, or the QP has failed.
    pub fn finished(&self) -> bool {
        self.failed.is_some() || self.completed == self.script.len()
    }

    /// Finds the reason why the requester sends again from now on, by its counters before and after a step.
    pub fn goes_back(&mut self, before: &RequesterCounters, after: &RequesterCounters, ring: Option<&Ring>) {
        let naks = |counters: &RequesterCounters| counters.rnr_naks + counters.sequence_naks + counters.implied_naks;
        if naks(after) > naks(before) {
            (self.timed_out, self.resends) = (None, true);
        } else if after.timeouts > before.timeouts {
            // Packets that are being sent again already go on if all that were sent meanwhile are not taken.
            let is_taken = ring.is_some_and(|ring| ring.known >= self.put);
            if is_taken || !self.resends {
                self.timed_out = Some(self.put);
            }
            self.resends |= is_taken;
        }
    }

    /// Posts the next request, if there is a place for it.
    pub fn post(&mut self) {
        if !self.has_place() {
            return;
        }
        let op = self.script[self.posted];
        let request = &op.request;
        let mut fetch = Fetch { data: vec![0; request.length as usize], ..Fetch::default() };
        if op.misdeed.is_none() && request.rkey & keys::KIND == keys::REGION {
            let start = (request.remote_addr - keys::base(request.rkey)) as usize;
            let range = start..start + request.length as usize;
            if op.writes() {
                pattern(op.key, 0, &mut self.shadow[range]);
            } else if op.reads() {
                fetch.expected = self.shadow[range].to_vec();
            } else if request.opcode == Opcode::AtomicWrite {
                pattern(op.key, 0, &mut self.shadow[range]);
            }
        } else if op.misdeed.is_none() && request.rkey & keys::KIND == keys::PATTERN {
            fetch.expected = vec![0; request.length as usize];
            let start = request.remote_addr - keys::base(request.rkey);
            pattern(u64::from(request.rkey), start, &mut fetch.expected);
        }
        if op.reads() || op.atomic() {
            self.fetches[self.posted] = Some(fetch);
        }
        self.posted += 1;
    }

    /// There is a request to be posted, and a place for it.
    pub fn has_place(&self) -> bool {
        self.failed.is_none() && self.posted < self.script.len() && self.posted - self.completed < self.places
    }

    /// The word that atomic `index` has fetched.
    pub fn fetched_word(&self, index: usize) -> u64 {
        let fetch = self.fetches[index].as_ref().expect("an atomic");
        u64::from_ne_bytes(fetch.data[..].try_into().expect("eight bytes"))
    }

    fn index(&self, n: u32) -> usize {
        n.wrapping_sub(self.first_request) as usize
    }

    /// A Read's data must be what was in memory when its turn came: what all requests before it left there, or what a
    /// later one wrote that did not have to wait for it.
    fn check_read(&self, index: usize) {
        let op = &self.script[index];
        let fetch = self.fetches[index].as_ref().expect("a Read");
        assert_eq!(fetch.delivered, fetch.data.len(), "Read {index} is done, but not all its data came");
        if fetch.data == fetch.expected {
            return;
        }
        let later: Vec<&Op> = self.script[index + 1..self.posted]
            .iter()
            .take_while(|op| !op.request.is_fenced())
            .filter(|op| op.misdeed.is_none_or(|m| m == Misdeed::Local))
            .collect();
        for (i, (&got, &wanted)) in fetch.data.iter().zip(&fetch.expected).enumerate() {
            let addr = op.request.remote_addr + i as u64;
            let written = |op: &&Op| {
                let begin = op.request.remote_addr;
                let covers = (op.writes() || op.request.opcode == Opcode::AtomicWrite)
                    && op.request.rkey == self.script[index].request.rkey
                    && begin <= addr
                    && addr < begin + op.request.length;
                let mut byte = [0];
                pattern(op.key, addr.wrapping_sub(begin), &mut byte);
                covers && byte[0] == got
            };
            assert!(
                got == wanted || later.iter().any(written),
                "Read {index}: byte {i} is {got:#x}; memory held {wanted:#x} when its turn came, and no later request wrote that"
            );
        }
    }
}

/// The host of a requester, for one call.
pub struct SendHost<'a> {
    pub queue: &'a mut SendQueue,
    pub port: &'a mut Port,
    pub peer_host: usize,
    pub peer_qpn: u32,
    pub now: Nanos,
}

impl SendHost<'_> {
    /// The note with a packet, if it goes now: the place of its data, or the place for the answer.
    fn note(&mut self, packet: &Transmit<'_>, long_read: u64) -> Result<Option<Note>, Refused> {
        let queue = &mut *self.queue;
        let bth = &packet.headers.bth;
        let Some(putter) = &mut queue.putter else { return Ok(None) };
        if opcode::operation(bth.opcode) == opcode::READ_REQUEST {
            return Ok(putter.wants(bth.psn, long_read).then_some(Note::Wants));
        }
        let is_posted = opcode::is_send(bth.opcode) || opcode::is_write(bth.opcode);
        let Payload::Request { n, len, .. } = packet.payload else { return Ok(None) };
        if !is_posted {
            return Ok(None);
        }
        match putter.way(self.now, packet.headers, len) {
            Way::Plain => Ok(None),
            Way::Put(place) => Ok(Some(Note::Put(place))),
            Way::Wait => Err(Refused::Full),
            Way::Ask => {
                queue.asked = queue.script[queue.index(n)].request.length;
                let mut headers = *packet.headers;
                headers.bth.pad = 0;
                self.port.send(self.peer_host, &headers, &[], Some(Note::Asks(queue.asked)));
                Err(Refused::Full)
            }
        }
    }
}

impl RequesterHost for SendHost<'_> {
    type Data = Arrived;

    fn request(&self, n: u32) -> Option<Request> {
        let index = self.queue.index(n);
        (index < self.queue.posted).then(|| self.queue.script[index].request)
    }

    fn transmit(&mut self, packet: &Transmit<'_>) -> Result<(), Refused> {
        let queue = &mut *self.queue;
        let long_read = std::mem::take(&mut queue.long_read);
        assert!(queue.failed.is_none(), "a requester that has failed sends");
        assert_eq!(packet.headers.bth.dest_qpn, self.peer_qpn, "a packet to another QP");
        let mut data = Vec::new();
        match packet.payload {
            Payload::None => {}
            Payload::Request { n, offset, len } => {
                let index = queue.index(n);
                assert!(index < queue.posted, "data of request {index}, which has not been posted");
                assert!(index >= queue.completed, "data of request {index}, which is done");
                let op = &queue.script[index];
                assert!(offset + u64::from(len) <= op.request.length, "data behind the end of request {index}");
                if op.misdeed == Some(Misdeed::Local) && offset + u64::from(len) >= op.request.length {
                    return Err(Refused::Memory);
                }
                data = vec![0; len as usize];
                pattern(op.key, offset, &mut data);
            }
            Payload::Memory { .. } | Payload::Bytes(_) => panic!("a requester sends what is not its data"),
        }
        if self.port.is_full(self.peer_host) {
            return Err(Refused::Full);
        }
        let note = self.note(packet, long_read)?;
        let queue = &mut *self.queue;
        let has_landed = matches!(note, Some(Note::Put(_)));
        assert!(data.len() <= queue.mtu as usize || has_landed, "{} bytes and an MTU of {}", data.len(), queue.mtu);
        let known = queue.highest.unwrap_or(-1);
        let ahead = (packet.headers.bth.psn.wrapping_sub(queue.first_psn) as i64 - known) << 40 >> 40;
        let psn = known + ahead;
        assert!((0..=known + 1).contains(&psn), "PSN {:#x} leaves a gap", packet.headers.bth.psn);
        if psn <= known {
            let payload = !matches!(packet.payload, Payload::None);
            assert!(packet.again || !payload, "PSN {:#x} is sent again and not marked so", packet.headers.bth.psn);
            queue.again += 1;
            if let Some(ring) = self.port.rings.get(self.peer_host) {
                let is_there = queue.timed_out.is_some_and(|put| ring.taken < put);
                assert!(!is_there, "PSN {:#x} is sent again while it lies in the ring", packet.headers.bth.psn);
            }
            let done =
                queue.executed.is_some_and(|to| to.wrapping_sub(packet.headers.bth.psn + 1) & 0xff_ffff < 1 << 23);
            assert!(!done, "PSN {:#x} is sent again, which the peer has executed", packet.headers.bth.psn);
        }
        // A READ takes a PSN for each packet of its answer (IBA 9.7.2).
        let answers = match packet.headers.reth {
            Some(reth) if opcode::operation(packet.headers.bth.opcode) == opcode::READ_REQUEST => {
                i64::from(packets(reth.length.into(), queue.mtu))
            }
            _ => i64::from(packets(data.len() as u64, queue.mtu)),
        };
        queue.resends &= psn <= known;
        queue.highest = Some(known.max(psn + answers - 1));
        queue.packets += 1;
        self.port.send(self.peer_host, packet.headers, &data, note);
        if let Some(ring) = self.port.rings.get(self.peer_host) {
            queue.put = ring.put;
        }
        Ok(())
    }

    fn landing(&self, left: u32) -> u32 {
        self.queue.putter.as_ref().map_or(1, |putter| putter.span(left))
    }

    fn asks(&mut self, n: u32, offset: u64, len: u64) {
        let op = &self.queue.script[self.queue.index(n)];
        assert!(op.reads() && offset + len <= op.request.length, "asks for what is not asked for");
        self.queue.long_read = len;
    }

    fn is_taken(&self) -> bool {
        self.port.rings.get(self.peer_host).is_none_or(|ring| ring.known >= self.queue.put)
    }

    fn deliver(&mut self, n: u32, offset: u64, data: &Arrived) -> Result<(), Refused> {
        let data = &data.bytes;
        let queue = &mut *self.queue;
        let index = queue.index(n);
        assert!(queue.failed.is_none(), "data for a QP that has failed");
        assert!((queue.completed..queue.posted).contains(&index), "data for request {index}, which is not under way");
        let op = &queue.script[index];
        let fetch =
            queue.fetches[index].as_mut().unwrap_or_else(|| panic!("data for request {index}, which fetches none"));
        if op.misdeed == Some(Misdeed::Local) {
            return Err(Refused::Memory);
        }
        let (start, end) = (offset as usize, offset as usize + data.len());
        assert!(end <= fetch.data.len(), "data behind the end of request {index}");
        let is_early = start > fetch.delivered;
        assert!(
            !is_early || self.port.rings.get(self.peer_host).is_none(),
            "data of request {index} with a gap before"
        );
        fetch.data[start..end].copy_from_slice(data);
        if is_early {
            queue.progress += u64::from(fetch.early.insert(start, end).is_none());
            return Ok(());
        }
        queue.progress += u64::from(end > fetch.delivered);
        fetch.delivered = fetch.delivered.max(end);
        while let Some(piece) = fetch.early.first_entry().filter(|piece| *piece.key() <= fetch.delivered) {
            fetch.delivered = fetch.delivered.max(piece.remove());
        }
        Ok(())
    }

    fn deliver_word(&mut self, n: u32, word: u64) -> Result<(), Refused> {
        self.deliver(n, 0, &Arrived { bytes: word.to_ne_bytes().to_vec(), place: None })
    }

    fn complete(&mut self, n: u32, status: Status) {
        let queue = &mut *self.queue;
        queue.progress += 1;
        let index = queue.index(n);
        assert!(queue.failed.is_none(), "request {index} is done after one that failed");
        assert_eq!(index, queue.completed, "requests are done out of order");
        assert!(index < queue.posted, "request {index} is done before it was posted");
        let op = &queue.script[index];
        if status == Status::Success {
            assert!(op.misdeed.is_none(), "request {index} succeeded with {:?}", op.misdeed);
            if op.reads() {
                queue.check_read(index);
            } else if let Some(fetch) = &queue.fetches[index] {
                assert_eq!(fetch.delivered, 8, "atomic {index} is done without its word");
            }
            queue.completed += 1;
        } else {
            queue.failed = Some(status);
        }
        self.port.note(&[u64::from(self.peer_qpn), u64::from(n), status as u64]);
    }
}
