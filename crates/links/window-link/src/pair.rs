//! A pair with another process of the window: what goes there, and what comes from there.

use super::payload::PiecesSource;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use vervain_hca::Qp;
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::mr::transfer::Pieces;
use vervain_transport::Refused;
use vervain_window::pairs::block;
use vervain_window::pairs::ends::Ends;
use vervain_window::pairs::heartbeat::Heartbeat;
use vervain_window::pairs::rendezvous::PeerId;
use vervain_window::pairs::ring::{ACKNOWLEDGEMENT, Acknowledgement, Class, HEADERS, NO_BYTES, Outgoing, Unsent};
use vervain_window::pairs::slot::Kind;
use vervain_window::{Region, UseGuard};
use vervain_wire::aeth::Syndrome;
use vervain_wire::{Aeth, Bth, Headers, MAX_HEADERS, opcode};

/// Bits of an opcode that say of which service it is (IBA table 38).
const SERVICE: u8 = 0xe0;
/// Parts of the peer's memory that are held for the next put.
const HELD: usize = 16;

/// Memory of the peer that nobody else gets while this is there.
struct Hold {
    granules: Range<u32>,
    owner: u64,
    used: Arc<UseGuard>,
}

/// A pair. It lasts until the peer has ended; what is sent then is lost.
pub struct Pair {
    /// The peer.
    pub peer: PeerId,
    /// Incarnation of the peer's process.
    pub incarnation: u64,
    /// A number that no other pair of this process has or had.
    pub id: u64,
    outgoing: OwnerLock<Outgoing>,
    /// The block that this process has for the peer.
    region: Region,
    own: u64,
    /// Number of revocations by this process.
    taken_back: AtomicU32,
    /// Number of the peer's revocations that this process has followed.
    followed: AtomicU32,
    /// While these are there, nobody else gets the memory that is put to.
    uses: OwnerLock<Vec<UseGuard>>,
    /// Memory of the peer's that was put to last, kept for the next time: to take it from the kernel anew costs more
    /// than a short put.
    held: OwnerLock<VecDeque<Hold>>,
    /// The peer has ended, or puts what cannot be.
    over: AtomicBool,
    /// True if it has put invalid slots: nothing more is taken from it.
    distrusted: AtomicBool,
    /// Heartbeat of a peer on another kernel; `silent`: ten looks without one.
    heartbeat: OwnerLock<Heartbeat>,
    silent: AtomicBool,
    /// `taken` when a datagram last timed out; `u64::MAX`: never.
    stalled: AtomicU64,
    /// The last look for room found none.
    is_full: AtomicBool,
    /// QPs that found no room, and whether there are any.
    waiting: OwnerLock<Vec<Weak<Qp>>>,
    is_waited_for: AtomicBool,
    /// Something was put that goes with what is put next.
    owes: AtomicBool,
}

impl Pair {
    /// With the process of that incarnation. `used` keeps its block; its messages come into block `own` of `region`.
    pub fn new(
        (peer, incarnation): (PeerId, u64),
        outgoing: Outgoing,
        (region, own): (Region, u64),
        used: UseGuard,
    ) -> Self {
        static IDS: AtomicU64 = AtomicU64::new(1);
        Pair {
            peer,
            incarnation,
            id: IDS.fetch_add(1, Ordering::Relaxed),
            outgoing: OwnerLock::new(outgoing),
            region,
            own,
            taken_back: AtomicU32::new(0),
            followed: AtomicU32::new(0),
            uses: OwnerLock::new(vec![used]),
            held: OwnerLock::default(),
            over: AtomicBool::new(false),
            distrusted: AtomicBool::new(false),
            heartbeat: OwnerLock::default(),
            silent: AtomicBool::new(false),
            stalled: AtomicU64::new(u64::MAX),
            is_full: AtomicBool::new(false),
            waiting: OwnerLock::default(),
            is_waited_for: AtomicBool::new(false),
            owes: AtomicBool::new(false),
        }
    }

    /// A word of the block, as the peer has put it; the lower half, which is put whole.
    #[inline]
    pub fn told(&self, word: u64) -> u32 {
        self.region.word(self.own + word).load(Ordering::Acquire) as u32
    }

    /// Asks the peer for all that it was granted.
    pub fn take_back(&self) {
        self.put(|outgoing| {
            let count = self.taken_back.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
            outgoing.tell(block::TAKEN_BACK, count.into());
            outgoing.wake_if_asleep();
        });
    }

    /// Returns true if the peer has revoked its grants, and this process has not followed.
    #[inline]
    pub fn is_asked_back(&self) -> bool {
        self.told(block::TAKEN_BACK) != self.followed()
    }

    /// The hold on these granules of the peer, which `owner` has said to be its own: one that is there, or what `hold`
    /// gets.
    pub fn hold(
        &self,
        granules: Range<u32>,
        owner: u64,
        hold: impl FnOnce(Range<u32>) -> vervain_window::Result<UseGuard>,
    ) -> vervain_window::Result<Arc<UseGuard>> {
        let mut held = self.held.lock();
        let covers = |hold: &&Hold| {
            hold.owner == owner && hold.granules.start <= granules.start && granules.end <= hold.granules.end
        };
        if let Some(hold) = held.iter().find(covers) {
            return Ok(Arc::clone(&hold.used));
        }
        let used = Arc::new(hold(granules.clone())?);
        if held.len() >= HELD {
            held.pop_front();
        }
        held.push_back(Hold { granules, owner, used: Arc::clone(&used) });
        Ok(used)
    }

    /// Number of revocations by this process.
    pub fn taken_back(&self) -> u32 {
        self.taken_back.load(Ordering::SeqCst)
    }

    /// Number of the peer's revocations that this process has followed.
    #[inline]
    pub fn followed(&self) -> u32 {
        self.followed.load(Ordering::Relaxed)
    }

    /// Announces to the peer that no more is put by grants before its revocation number `count`.
    pub fn follow(&self, count: u32) {
        self.put(|outgoing| {
            self.followed.store(count, Ordering::Relaxed);
            outgoing.tell(block::GIVEN_BACK, count.into());
        });
        self.held.lock().clear();
    }

    /// Ends it: nothing is put there any more.
    pub fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.let_go();
    }

    /// Gives up the hold on the peer's memory, unless a thread is in the midst of a put: then that one does.
    fn let_go(&self) {
        // That thread checks after it has released the lock by a plain store. Its processor may execute the check
        // first, so the lock is tried for longer than a store takes to become visible.
        if let Some(_outgoing) = self.outgoing.try_lock_briefly() {
            self.uses.lock().clear();
            self.held.lock().clear();
        }
    }

    /// Puts something, unless the pair is over: then the memory may be another's.
    #[inline]
    fn put<T>(&self, f: impl FnOnce(&mut Outgoing) -> T) -> Option<T> {
        let mut outgoing = self.outgoing.lock();
        if self.is_over() {
            return None;
        }
        let done = f(&mut outgoing);
        drop(outgoing);
        if self.is_over() {
            self.let_go();
        }
        Some(done)
    }

    /// Puts the count of messages taken to the peer, which may wait for it.
    #[inline]
    pub fn tell_taken(&self, taken: u64) {
        self.put(|outgoing| {
            outgoing.later(|o| o.tell_taken(taken));
            self.owes.store(outgoing.owes(), Ordering::Relaxed);
            outgoing.wake_if_asleep();
        });
    }

    /// Announces to the peer that this process goes to sleep. Returns true if it did not know.
    pub fn announce_sleep(&self) -> bool {
        self.put(Outgoing::announce_sleep).unwrap_or(false)
    }

    /// Sends the peer a message that is no packet, if there is room for `class`. Returns false if there is none.
    pub fn say(&self, class: Class, kind: Kind, headers: &[u8; HEADERS]) -> bool {
        let say = |outgoing: &mut Outgoing| {
            let has_room = outgoing.has_room(class) || outgoing.look().is_ok() && outgoing.has_room(class);
            has_room && outgoing.send(kind, headers, &NO_BYTES).is_ok()
        };
        // Nothing is owed to one that is gone.
        self.put(say).unwrap_or(true)
    }

    /// Sends the peer a question before a request, if there is room for both. Returns true if it was sent; false also
    /// if the pair is over.
    pub fn ask(&self, kind: Kind, headers: &[u8; HEADERS], more: &[u8]) -> bool {
        let ask = |outgoing: &mut Outgoing| {
            let has_room =
                outgoing.has_room(Class::Request) || outgoing.look().is_ok() && outgoing.has_room(Class::Request);
            has_room && outgoing.send(kind, headers, &more).is_ok()
        };
        self.put(ask).unwrap_or(false)
    }

    /// The peer has a high-bandwidth ring at `at`, kept by `used`.
    pub fn got_long(&self, at: u64, used: UseGuard) {
        self.put(|outgoing| {
            if outgoing.got_long(at) {
                self.uses.lock().push(used);
            }
        });
    }

    /// The peer has put what no peer puts: nothing is taken from it any more.
    #[cold]
    pub fn distrust(&self) {
        if !self.is_over() {
            let PeerId { node, process } = self.peer;
            log::warn!("process {process} of node {node} puts what is no message: nothing is taken from it any more");
            self.end();
        }
        self.distrusted.store(true, Ordering::Relaxed);
    }

    pub fn is_distrusted(&self) -> bool {
        self.distrusted.load(Ordering::Relaxed)
    }

    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Puts a beat for a peer on another kernel, and looks whether one of its own has come.
    pub fn beat(&self) {
        let mut heartbeat = self.heartbeat.lock();
        let count = heartbeat.beat();
        self.put(|outgoing| outgoing.tell(block::BEAT, count.into()));
        let is_silent = heartbeat.look(self.told(block::BEAT));
        if self.silent.swap(is_silent, Ordering::Relaxed) != is_silent {
            let PeerId { node, process } = self.peer;
            let what = if is_silent { "is silent: nothing is put into its memory" } else { "is heard again" };
            log::info!("process {process} of node {node} {what}");
        }
    }

    /// Returns true if the peer may be gone, so that nothing is put directly into its memory. Packets through the ring
    /// have timers.
    #[inline]
    pub fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// Messages that the peer has taken.
    pub fn taken(&self) -> u64 {
        let mut outgoing = self.outgoing.lock();
        let _ = outgoing.look();
        outgoing.taken()
    }

    /// A datagram has timed out.
    pub fn stall(&self) {
        self.stalled.store(self.outgoing.lock().taken(), Ordering::Relaxed);
    }

    /// Returns true if the peer has taken nothing since a datagram timed out.
    pub fn is_stalled(&self) -> bool {
        self.outgoing.lock().taken() == self.stalled.load(Ordering::Relaxed)
    }

    /// Returns true if a packet without payload would have found room at the last look. It may find none now.
    #[inline]
    pub fn may_have_room(&self, class: Class) -> bool {
        !self.is_full.load(Ordering::Relaxed) || self.has_room(class)
    }

    /// Returns true if a packet without payload would find room.
    pub fn has_room(&self, class: Class) -> bool {
        let mut outgoing = self.outgoing.lock();
        let has_room = outgoing.has_room(class) || outgoing.look().is_ok() && outgoing.has_room(class);
        self.is_full.store(!has_room, Ordering::Relaxed);
        has_room
    }

    /// Returns true if the peer has taken the first `sent` messages.
    pub fn has_taken(&self, sent: u64) -> bool {
        let mut outgoing = self.outgoing.lock();
        outgoing.look().is_ok() && outgoing.taken() >= sent
    }

    /// [`Pair::push`] of an acknowledgement: if a put takes long, it goes with the next put, or with a [`Pair::flush`].
    /// Calls `stands_for` if it replaces an earlier one that had not gone.
    ///
    /// # Errors
    /// Those of [`Pair::push`].
    #[inline]
    pub fn push_later(&self, headers: &Headers, stands_for: impl FnOnce()) -> Result<u64, Refused> {
        let encoded = encode(headers);
        self.push_by(&encoded, |outgoing| {
            let sent = match acknowledgement(headers).filter(|_| outgoing.holds_acknowledgements()) {
                Some(short) => outgoing.hold(short, &encoded).map(|does| {
                    if does {
                        stands_for()
                    }
                }),
                None => outgoing.later(|o| o.packet(Class::Answer, &encoded, &NO_BYTES)),
            };
            self.owes.store(outgoing.owes(), Ordering::Relaxed);
            sent
        })
    }

    /// Returns true if an acknowledgement or put waits for the next put.
    #[inline]
    pub fn owes(&self) -> bool {
        self.owes.load(Ordering::Relaxed)
    }

    /// Sends now everything that would go with the next put, while there is room.
    pub fn flush(&self) {
        if !self.owes() {
            return;
        }
        let flushed = self.put(|outgoing| {
            outgoing.flush();
            self.owes.store(outgoing.owes(), Ordering::Relaxed);
        });
        if flushed.is_none() {
            // Nothing is owed to one that is gone.
            self.owes.store(false, Ordering::Relaxed);
        }
    }

    /// Sends a packet; one to a peer that has ended is lost. How many messages were sent by now.
    ///
    /// # Errors
    /// [`Refused::Full`] while there is no room; [`Refused::Memory`] where the payload is not there.
    #[inline]
    pub fn push(&self, class: Class, headers: &[u8; HEADERS], from: &Pieces) -> Result<u64, Refused> {
        self.push_by(headers, |outgoing| outgoing.packet(class, headers, &PiecesSource::new(from, false)))
    }

    /// [`Pair::push`] of a request of another kind, with `more` as its payload.
    ///
    /// # Errors
    /// Those of [`Pair::push`].
    pub fn push_with(&self, kind: Kind, headers: &[u8; HEADERS], more: &[u8]) -> Result<u64, Refused> {
        self.push_by(headers, |outgoing| outgoing.packet_as(kind, Class::Request, headers, &more))
    }

    /// [`Pair::push`] of a packet without its payload, which was put to its destination.
    ///
    /// # Errors
    /// Those of [`Pair::push`].
    pub fn push_landed_packet(
        &self,
        class: Class,
        headers: &[u8; HEADERS],
        place: (u64, u64),
        ends: Ends,
    ) -> Result<u64, Refused> {
        self.push_by(headers, |outgoing| outgoing.push_landed_packet(class, headers, place, ends))
    }

    #[inline]
    fn push_by(
        &self,
        headers: &[u8; HEADERS],
        send: impl FnOnce(&mut Outgoing) -> Result<(), Unsent>,
    ) -> Result<u64, Refused> {
        let push = |outgoing: &mut Outgoing| {
            outgoing.headers_end(|| opcode::headers_len(headers[0]));
            let sent = send(outgoing);
            if self.owes() {
                self.owes.store(outgoing.owes(), Ordering::Relaxed);
            }
            sent.map(|()| outgoing.sent())
        };
        match self.put(push).unwrap_or(Ok(u64::MAX)) {
            Ok(sent) => Ok(sent),
            Err(Unsent::Full) => {
                self.is_full.store(true, Ordering::Relaxed);
                Err(Refused::Full)
            }
            Err(Unsent::Memory) => Err(Refused::Memory),
            Err(Unsent::Broken) => {
                log::warn!(
                    "process {} of node {} puts what cannot be: nothing goes there any more",
                    self.peer.process,
                    self.peer.node
                );
                self.end();
                Ok(u64::MAX)
            }
        }
    }

    /// `qp` goes on when there is room.
    pub fn wait_for_room(&self, qp: &Weak<Qp>) {
        let mut waiting = self.waiting.lock();
        waiting.push(Weak::clone(qp));
        self.is_waited_for.store(true, Ordering::SeqCst);
    }

    /// The QPs that wait, if there is room for them now.
    pub fn take_waiting(&self) -> Vec<Weak<Qp>> {
        if !self.is_waited_for() || !self.is_over() && !self.has_room(Class::Request) {
            return Vec::new();
        }
        let mut waiting = self.waiting.lock();
        self.is_waited_for.store(false, Ordering::Relaxed);
        let mut waiting = std::mem::take(&mut *waiting);
        // A QP may be there more than once.
        waiting.dedup_by(|a, b| Weak::ptr_eq(a, b));
        waiting
    }

    /// Returns true if a QP waits for room.
    pub fn is_waited_for(&self) -> bool {
        self.is_waited_for.load(Ordering::Acquire)
    }
}

/// The headers of a packet as they lie in a slot.
#[inline]
pub fn encode(headers: &Headers) -> [u8; HEADERS] {
    const _: () = assert!(MAX_HEADERS == HEADERS);
    let mut bytes = [0; HEADERS];
    headers.emit(&mut bytes);
    bytes
}

/// An acknowledgement as it goes with another message, if these are the headers of one and it refuses nothing, in three
/// words: operation and QP, the PSN, the AETH. The rest it has from that message.
#[inline]
fn acknowledgement(headers: &Headers) -> Option<Acknowledgement> {
    let aeth = headers.aeth.filter(|_| opcode::operation(headers.bth.opcode) == opcode::ACKNOWLEDGE)?;
    let Some(Syndrome::Ack(_)) = Syndrome::decode(aeth.syndrome) else { return None };
    let mut bytes = [0; ACKNOWLEDGEMENT];
    let words = [
        u32::from(headers.bth.opcode) << 24 | headers.bth.dest_qpn,
        headers.bth.psn,
        u32::from(aeth.syndrome) << 24 | aeth.msn,
    ];
    bytes.chunks_exact_mut(4).zip(words).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_le_bytes()));
    Some(bytes)
}

/// The headers of an acknowledgement that has come with a message of `bth`.
pub fn with(bth: &Bth, acknowledgement: &Acknowledgement) -> Headers {
    let word = |n: usize| acknowledgement[4 * n..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    let bth = Bth {
        opcode: opcode::ACKNOWLEDGE | (word(0) >> 24) as u8 & SERVICE,
        solicited: false,
        pad: 0,
        ack_request: false,
        dest_qpn: word(0) & 0xff_ffff,
        psn: word(1) & 0xff_ffff,
        ..*bth
    };
    let aeth = Aeth { syndrome: (word(2) >> 24) as u8, msn: word(2) & 0xff_ffff };
    Headers { bth, aeth: Some(aeth), ..Headers::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledgement_that_goes_with_a_message_is_what_it_was() {
        let service =
            |bits| Bth { opcode: bits, migration: true, pkey: 0xffff, mark: vervain_wire::VERVAIN, ..Bth::default() };
        for (own, other) in [(0, 0), (0xa0, 0xa0), (0xa0, 0)] {
            let message = Bth {
                ack_request: true,
                solicited: true,
                pad: 3,
                dest_qpn: 7,
                psn: 9,
                ..service(other | opcode::SEND_ONLY)
            };
            let bth = Bth { dest_qpn: 0xab_cdef, psn: 0xff_fffe, ..service(own | opcode::ACKNOWLEDGE) };
            let aeth = Some(Aeth { syndrome: 31, msn: 0x12_3456 });
            let headers = Headers { bth, aeth, ..Headers::default() };
            let short = acknowledgement(&headers).expect("one that refuses nothing");
            assert_eq!(with(&message, &short), headers);
        }
    }

    #[test]
    fn what_refuses_goes_by_itself() {
        let of = |operation, syndrome| {
            let bth = Bth { opcode: operation, ..Bth::default() };
            acknowledgement(&Headers { bth, aeth: Some(Aeth { syndrome, msn: 1 }), ..Headers::default() })
        };
        assert!(of(opcode::ACKNOWLEDGE, 0x1f).is_some());
        for (operation, syndrome) in
            [(opcode::ACKNOWLEDGE, 0x21), (opcode::ACKNOWLEDGE, 0x60), (opcode::ATOMIC_ACKNOWLEDGE, 0x1f)]
        {
            assert_eq!(of(operation, syndrome), None, "operation {operation:#x}, syndrome {syndrome:#x}");
        }
    }

    #[test]
    fn whose_headers_leave_room_is_known() {
        let room = |operation| HEADERS - opcode::headers_len(operation) >= ACKNOWLEDGEMENT;
        assert!(room(opcode::SEND_ONLY) && room(opcode::WRITE_ONLY_IMM) && !room(opcode::COMPARE_SWAP));
    }
}
