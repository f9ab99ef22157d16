//! Over rings, messages and the answers of READs that are put where they belong, as the link over a window does it: the
//! sender asks before the first packet of a message, or names the place with the request of a READ, and then packets
//! stand for many.

use vervain_transport::{Data, Nanos, Target, psn};
use vervain_wire::{Headers, opcode};

use crate::plan::{Landings, US};
use crate::random::Random;
use crate::world::World;

/// The unit that goes from host to host: a packet, and over rings the note with it.
#[derive(Clone, Debug)]
pub struct Parcel {
    pub packet: Vec<u8>,
    pub note: Option<Note>,
}

#[derive(Clone, Copy, Debug)]
pub enum Note {
    /// It is no packet: its sender asks where a message of so many bytes belongs whose first packet has these headers.
    Asks(u64),
    /// Nor is this, which has the same PSN: the answer.
    Tells(Option<Target>),
    /// A READ whose answer may be put where it belongs.
    Wants,
    /// The packet's bytes have been put there.
    Put(Target),
}

impl From<Vec<u8>> for Parcel {
    fn from(packet: Vec<u8>) -> Self {
        Self { packet, note: None }
    }
}

/// The payload of a packet that comes in. Here all bytes cross with it; a host that was not told where they are takes
/// none.
pub struct Arrived {
    pub bytes: Vec<u8>,
    /// The place where they have been put.
    pub place: Option<Target>,
}

impl Data for Arrived {
    fn length(&self) -> usize {
        self.bytes.len()
    }

    fn word(&self) -> Option<[u8; 8]> {
        self.bytes[..].try_into().ok()
    }

    fn has_landed(&self) -> bool {
        self.place.is_some()
    }

    fn bytes(&self) -> Option<&[u8]> {
        self.place.is_none().then_some(&self.bytes)
    }

    fn with_kept<R>(bytes: &[u8], act: impl FnOnce(&Self) -> R) -> Option<R> {
        Some(act(&Arrived { bytes: bytes.to_vec(), place: None }))
    }
}

/// PSNs of a message, or of an answer, for which there is a place.
#[derive(Clone, Copy, Debug)]
pub struct Landing {
    pub psn: u32,
    pub packets: u32,
    pub place: Target,
}

impl Landing {
    pub fn covers(&self, psn: u32) -> bool {
        psn::distance(self.psn, psn) < self.packets
    }
}

/// PSNs that so many bytes take.
pub fn packets(bytes: u64, mtu: u32) -> u32 {
    bytes.div_ceil(u64::from(mtu)).max(1) as u32
}

/// How a sender puts its messages, or a responder its answers.
pub struct Putter {
    random: Random,
    mtu: u32,
    plan: Landings,
    /// Decides how many go as one next.
    cut: u64,
    /// The state of the message in progress.
    state: State,
    /// READs whose answers may be put, oldest first: asked for here, and by the peer.
    pub wanted: Vec<Landing>,
    pub answers: Vec<Landing>,
    /// The place that the peer has been told to put its message to.
    pub told: Option<Landing>,
    /// Packets that stood for several.
    pub spans: u64,
}

enum State {
    Unknown,
    /// Asked for the message whose first packet has this PSN; until then the answer is waited for.
    Asked(u32, Nanos),
    /// The next packet goes as it is.
    Nowhere,
    Here(Landing),
}

/// The way of a packet.
pub enum Way {
    /// It goes as it is.
    Plain,
    Put(Target),
    /// The question goes instead.
    Ask,
    /// The packet has to wait.
    Wait,
}

impl Putter {
    pub fn new(random: Random, mtu: u32, plan: Landings) -> Self {
        Self {
            random,
            mtu,
            plan,
            cut: 0,
            state: State::Unknown,
            wanted: Vec::new(),
            answers: Vec::new(),
            told: None,
            spans: 0,
        }
    }

    fn is_willing(&mut self) -> bool {
        self.random.permille(self.plan.willing)
    }

    /// The number of the packets left of the message that go as one.
    pub fn span(&self, left: u32) -> u32 {
        if matches!(self.state, State::Here(_)) { self.some(left) } else { 1 }
    }

    /// The same for the answer of a READ, from this PSN on.
    pub fn answer_span(&self, psn: u32, left: u32) -> u32 {
        if self.answers.iter().any(|read| read.covers(psn)) { self.some(left) } else { 1 }
    }

    fn some(&self, left: u32) -> u32 {
        1 + (self.cut % self.plan.most.min(left.into())) as u32
    }

    /// The way of a packet of a message.
    pub fn way(&mut self, now: Nanos, headers: &Headers, bytes: u32) -> Way {
        self.cut = self.random.bits();
        let plain = if bytes > self.mtu { Way::Wait } else { Way::Plain };
        let (psn, code) = (headers.bth.psn, headers.bth.opcode);
        let is_willing = self.is_willing();
        match self.state {
            State::Asked(_, until) if now < until => Way::Wait,
            State::Unknown if opcode::starts(code) && is_willing => {
                self.state = State::Asked(psn, now + self.random.magnitude(US, 500 * US));
                Way::Ask
            }
            State::Here(landing) if landing.covers(psn) && is_willing => {
                if opcode::ends(code) {
                    self.state = State::Unknown;
                }
                self.put(bytes, landing.place)
            }
            // Several that were to go as one go one by one.
            State::Here(_) => {
                self.state = State::Nowhere;
                plain
            }
            _ => {
                self.state = State::Unknown;
                plain
            }
        }
    }

    fn put(&mut self, bytes: u32, place: Target) -> Way {
        self.spans += u64::from(bytes > self.mtu);
        Way::Put(place)
    }

    /// The peer says where the message belongs whose first packet has this PSN, and which has so many bytes.
    fn told(&mut self, psn: u32, bytes: u64, place: Option<Target>) {
        if matches!(self.state, State::Asked(of, _) if of == psn) {
            let packets = packets(bytes, self.mtu);
            self.state = place.map_or(State::Nowhere, |place| State::Here(Landing { psn, packets, place }));
        }
    }

    /// Returns true if a READ asks for its answer to be put. If not, what was said of it before still holds.
    pub fn wants(&mut self, psn: u32, bytes: u64) -> bool {
        let wants = bytes > u64::from(self.mtu) && self.is_willing();
        if wants {
            self.wanted.retain(|known| psn::is_before(known.psn, psn));
            self.wanted.push(read(psn, bytes, self.mtu));
        }
        wants
    }

    /// The peer's READ is such a one.
    pub fn is_wanted(&mut self, psn: u32, bytes: u64) {
        self.answers.retain(|known| psn::is_before(known.psn, psn));
        self.answers.push(read(psn, bytes, self.mtu));
    }

    /// The way of a packet of an answer.
    pub fn answer_way(&mut self, psn: u32, bytes: u32) -> Way {
        self.cut = self.random.bits();
        match self.answers.iter().position(|read| read.covers(psn)) {
            Some(at) if self.is_willing() => self.put(bytes, self.answers[at].place),
            Some(at) => {
                self.answers.remove(at);
                if bytes > self.mtu { Way::Wait } else { Way::Plain }
            }
            None => Way::Plain,
        }
    }

    /// Returns true if the peer was told to put the packet in this place. Earlier places are not valid any more.
    pub fn is_told(&self, headers: &Headers, place: Target) -> bool {
        let psn = headers.bth.psn;
        if opcode::is_request(headers.bth.opcode) {
            self.told.is_some_and(|told| told.covers(psn) && told.place == place)
        } else {
            self.wanted.iter().any(|read| read.covers(psn))
        }
    }
}

/// A READ that asks for so many bytes. Where its answer belongs only its requester knows.
fn read(psn: u32, bytes: u64, mtu: u32) -> Landing {
    let place = Target::Memory { rkey: 0, addr: 0, length: bytes as u32 };
    Landing { psn, packets: packets(bytes, mtu), place }
}

impl World {
    /// Takes the note with a packet for QP `index`, and returns the place of its bytes. None if nothing else is to be
    /// done with it.
    pub fn noted(&mut self, index: usize, headers: &Headers, note: Option<Note>) -> Option<Option<Target>> {
        let end = &mut self.ends[index];
        let Some(note) = note else { return Some(None) };
        match note {
            Note::Asks(bytes) => self.asked(index, headers, bytes),
            Note::Tells(place) => {
                if let Some(putter) = &mut end.send.putter {
                    putter.told(headers.bth.psn, end.send.asked, place);
                }
            }
            Note::Wants => {
                let bytes = headers.reth.map_or(0, |reth| reth.length);
                end.target.putter.as_mut()?.is_wanted(headers.bth.psn, bytes.into());
                return Some(None);
            }
            Note::Put(place) => {
                let is_request = opcode::is_request(headers.bth.opcode);
                let putter = if is_request { &end.target.putter } else { &end.send.putter };
                return putter.as_ref().filter(|putter| putter.is_told(headers, place)).map(|_| Some(place));
            }
        }
        None
    }

    /// A packet of a message for QP `index` has been handled: with its end ends what its sender was told.
    pub fn message_ends(&mut self, index: usize, headers: &Headers) {
        if opcode::ends(headers.bth.opcode)
            && let Some(putter) = &mut self.ends[index].target.putter
        {
            putter.told = None;
        }
    }

    /// An answer of so many bytes has come for QP `index`: nothing more is put for READs that end with it, or before.
    pub fn answer_ends(&mut self, index: usize, psn: u32, bytes: usize) {
        let send = &mut self.ends[index].send;
        if let Some(putter) = &mut send.putter {
            let end = psn::add(psn, packets(bytes as u64, putter.mtu));
            putter.wanted.retain(|read| psn::is_before(end, psn::add(read.psn, read.packets)));
        }
    }

    /// The peer of QP `index` asks where a message belongs.
    fn asked(&mut self, index: usize, headers: &Headers, bytes: u64) {
        let place =
            self.with_responder(index, Some(headers), |responder, host| responder.announce(headers, bytes, host));
        let (to, qpn) = self.peer(index);
        let end = &mut self.ends[index];
        let (host, mtu) = (end.plan.host, end.target.mtu());
        let Some(putter) = &mut end.target.putter else { return };
        // A receive that is no memory in one piece is taken all the same.
        let place = place.map(|(_, place)| place).filter(|_| putter.is_willing());
        putter.told = place.map(|place| Landing { psn: headers.bth.psn, packets: packets(bytes, mtu), place });
        let port = &mut self.hosts[host].port;
        if port.rings[to].is_full() {
            putter.told = None;
            return;
        }
        let mut headers = *headers;
        (headers.bth.dest_qpn, headers.bth.pad) = (qpn, 0);
        port.send(to, &headers, &[], Some(Note::Tells(place)));
        self.flush(host);
    }
}
