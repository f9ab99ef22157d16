//! One slot: searching and listing its elements, with the slot or without it, and having it.

use std::thread;
use std::time::{Duration, Instant};

use vervain_acp::{Atomic, Batch, Error, GlobalAddress, Order, Place, Result, World};

use super::Kind;
use super::bytes::{Bytes, FIRST, PIECE};
use super::directory::Slot;
use super::layout::{HEAD, HEADER, Header, MOST, Pointer, STAYS, State, Steps, block, mark, value_offset};

/// How often a search finds its slot changed before it takes it.
const FAILURES: u32 = 16;
/// Looks before a sleep.
const LOOKS: u32 = 64;
/// Time for which a slot is locked before its holder is looked for. No holder works as long as that.
const LONG: Duration = Duration::from_millis(200);
const FOR_EVER: Duration = Duration::from_secs(600);

/// The wait for a slot that another holder has.
pub(super) struct Patience {
    looks: u32,
    seen: State,
    /// Since when that was seen, and when its holder was last found alive.
    since: Option<(Instant, Instant)>,
}

impl Patience {
    pub fn new() -> Self {
        Self { looks: 0, seen: State(0), since: None }
    }

    /// Waits a moment, having seen the slot so.
    pub fn wait(&mut self, world: &World, slot: &Slot, seen: State) -> Result<()> {
        self.looks += 1;
        if self.looks < LOOKS {
            std::hint::spin_loop();
            return Ok(());
        }
        thread::sleep(Duration::from_micros(20) * (self.looks / LOOKS).min(25));
        let now = Instant::now();
        let (since, found) = match self.since {
            Some(times) if self.seen == seen && seen.is_locked() => times,
            _ => {
                (self.seen, self.since) = (seen, Some((now, now)));
                return Ok(());
            }
        };
        let holder = seen.holder();
        let broken = |why: &str| Error::broken(format!("the slot at {} is locked by rank {holder}, {why}", slot.at));
        if now - since > FOR_EVER {
            return Err(broken("which does not let go of it"));
        }
        if now - found > LONG {
            // If that rank is dead, this ends the job.
            let theirs = world.starter(holder).ok_or_else(|| broken("of which there is none"))?;
            let mut batch = world.batch();
            batch.get(theirs, 8, Order::Now)?;
            batch.wait()?;
            self.since = Some((since, now));
        }
        Ok(())
    }
}

/// An element that was found.
#[derive(Debug, Clone, Copy)]
pub(super) struct Element {
    pub pointer: Pointer,
    pub header: Header,
    /// Its first bytes, if the batch still has them.
    pub first: Option<Place>,
}

impl Element {
    /// The address of the byte at `offset` of it.
    pub fn at(&self, offset: u64) -> GlobalAddress {
        self.pointer.address().add(offset)
    }
}

/// The result of a search.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    /// The slot's word. Where `held`, the one that it gets back if nothing is changed.
    pub state: State,
    /// This thread has the slot.
    pub held: bool,
    /// The place of the pointer to the element, or of the null pointer at the end of the list.
    pub link: GlobalAddress,
    pub element: Option<Element>,
}

/// The result of an attempt to walk a list.
enum Walked {
    To(GlobalAddress, Option<Element>),
    /// The slot has changed meanwhile.
    Changed,
    /// An element that only who has the slot may read.
    Large,
}

/// An element whose header was read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Listed {
    pub pointer: Pointer,
    pub header: Header,
}

impl Listed {
    pub fn at(&self, offset: usize) -> GlobalAddress {
        self.pointer.address().add(offset as u64)
    }

    pub fn key(&self) -> Bytes<'static> {
        Bytes::At(self.at(HEADER), self.header.key as usize)
    }

    /// How often a multiset has it; 1 of others.
    pub fn times(&self, kind: Kind) -> u64 {
        if kind == Kind::Multiset { self.header.more } else { 1 }
    }

    /// The value, for a map.
    pub fn value(&self, kind: Kind) -> Bytes<'static> {
        let len = if kind == Kind::Map { self.header.more } else { 0 };
        Bytes::At(self.at(value_offset(self.header.key as usize)), len as usize)
    }
}

/// A slot, and the batch by which this thread reads and changes it. Its elements are of a container of this kind.
pub(super) struct SlotAccess<'a, 'w> {
    world: &'a World,
    kind: Kind,
    pub batch: &'a mut Batch<'w>,
    pub slot: Slot,
}

impl<'a, 'w> SlotAccess<'a, 'w> {
    /// Accesses nothing yet.
    pub fn new(world: &'a World, kind: Kind, batch: &'a mut Batch<'w>, slot: Slot) -> Self {
        Self { world, kind, batch, slot }
    }

    /// The sentence about a slot that no container makes.
    fn broken(&self, why: &str) -> Error {
        Error::broken(format!("the slot at {} of a {} {why}", self.slot.at, self.kind.name()))
    }

    /// Reads its word, then the first pointer and the id. One round trip.
    pub fn read(&mut self) -> Result<(State, Pointer, u64)> {
        self.batch.clear()?;
        let word = self.batch.get(self.slot.at, 8, Order::Now)?;
        let rest = self.batch.get(self.slot.at.add(HEAD), 16, Order::Continue)?;
        self.batch.wait()?;
        Ok((State(self.batch.word(word, 0)), Pointer(self.batch.word(rest, 0)), self.batch.word(rest, 1)))
    }

    /// Makes a free slot this thread's, if it is still as it was seen. One round trip.
    pub fn lock(&mut self, state: State) -> Result<bool> {
        let locked = state.locked_by(self.world.rank());
        let was =
            self.batch.atomic(self.slot.at, Atomic::CompareSwap8 { expected: state.0, new: locked.0 }, Order::Now)?;
        self.batch.wait()?;
        Ok(self.batch.word(was, 0) == state.0)
    }

    /// Stores words, then the slot's, in this order: it is free. One round trip.
    pub fn unlock(&mut self, words: &[(GlobalAddress, u64)], state: State) -> Result<()> {
        let mut order = Order::Now;
        for (at, word) in words.iter().chain([&(self.slot.at, state.0)]) {
            self.batch.put_words(*at, &[*word], order)?;
            order = Order::Continue;
        }
        self.batch.wait()
    }

    /// Takes the slot. Returns its word as it was, and the first pointer. None if it is another container's. Two round
    /// trips.
    pub fn hold(&mut self) -> Result<Option<(State, Pointer)>> {
        let mut patience = Patience::new();
        loop {
            let (state, head, id) = self.read()?;
            if id != self.slot.id {
                return Ok(None);
            }
            if !state.is_locked() && self.lock(state)? {
                return Ok(Some((state, head)));
            }
            patience.wait(self.world, &self.slot, state)?;
        }
    }

    /// Searches a key in its slot, and reads `want` bytes of the value with it if that costs nothing. Takes the slot if
    /// `hold`, or if there is no other way. None if it is another container's. One round trip, and one for each element
    /// up to the key.
    pub fn look(&mut self, key: &[u8], want: usize, hold: bool) -> Result<Option<Look>> {
        let mut patience = Patience::new();
        let mut failures = if hold { FAILURES } else { 0 };
        loop {
            let (state, head, id) = self.read()?;
            if id != self.slot.id {
                return Ok(None);
            }
            if state.is_locked() {
                patience.wait(self.world, &self.slot, state)?;
                continue;
            }
            let held = failures >= FAILURES;
            if held && !self.lock(state)? {
                patience.wait(self.world, &self.slot, state)?;
                continue;
            }
            let walked = self.walk(state, head, held, key, want);
            match if held { self.or_let_go(state, walked)? } else { walked? } {
                Walked::To(link, element) => return Ok(Some(Look { state, held, link, element })),
                Walked::Changed => failures += 1,
                Walked::Large => failures = FAILURES,
            }
        }
    }

    /// The result of reading a slot that this thread has. If the read was refused the slot is free again: there may be
    /// no room for the bytes. Any other error has ended the job.
    pub fn or_let_go<T>(&mut self, state: State, read: Result<T>) -> Result<T> {
        if read.as_ref().is_err_and(Error::is_refused) {
            self.batch.clear()?;
            self.unlock(&[], state)?;
        }
        read
    }

    /// Gives the slot back if it is held, as it was.
    pub fn let_go(&mut self, look: &Look) -> Result<()> {
        if !look.held {
            return Ok(());
        }
        // So there is room for the word.
        self.batch.clear()?;
        self.unlock(&[], look.state)
    }

    /// Walks a slot's list up to a key.
    fn walk(&mut self, state: State, head: Pointer, held: bool, key: &[u8], want: usize) -> Result<Walked> {
        let (mut link, mut pointer) = (self.slot.at.add(HEAD), head);
        let wanted = value_offset(key.len()).saturating_add(want).min(FIRST);
        let mut steps = Steps::new();
        for _ in 0..=state.count() {
            if pointer.is_null() {
                return Ok(Walked::To(link, None));
            }
            if steps.again(pointer) {
                return Err(self.broken("has a list that goes in a circle"));
            }
            if pointer.safe().is_none() && !held {
                return Ok(Walked::Large);
            }
            let Some((first, header)) = self.read_element(pointer, wanted, (!held).then_some(state))? else {
                return Ok(Walked::Changed);
            };
            if header.key == key.len() as u64 {
                match self.is_key(pointer, first, key, (!held).then_some(state))? {
                    Some(true) => {
                        let first = (HEADER + key.len() <= first.len()).then_some(first);
                        return Ok(Walked::To(link, Some(Element { pointer, header, first })));
                    }
                    Some(false) => {}
                    None => return Ok(Walked::Changed),
                }
            }
            (link, pointer) = (pointer.address(), header.next);
        }
        Err(self.broken("has more elements than it counts"))
    }

    /// Reads `wanted` bytes of an element, or fewer if it may have fewer. None if the slot is not as it was. One round
    /// trip.
    fn read_element(
        &mut self,
        pointer: Pointer,
        wanted: usize,
        as_it_was: Option<State>,
    ) -> Result<Option<(Place, Header)>> {
        if self.world.rank_of(pointer.address()) != Some(self.slot.rank) {
            return Err(self.broken("leads to no element"));
        }
        self.batch.clear()?;
        let first =
            self.batch.get(pointer.address(), wanted.max(HEADER).min(pointer.safe().unwrap_or(STAYS)), Order::Now)?;
        if !self.is_still(as_it_was)? {
            return Ok(None);
        }
        let header = Header::of([0, 1, 2, 3].map(|index| self.batch.word(first, index)));
        let value = if self.kind == Kind::Map { header.more } else { 0 };
        let bytes = if header.key.max(value) < MOST { block(header.key as usize, value as usize) } else { None };
        // A pointer that may be followed without the slot leads to small elements only, so a larger size is that of
        // none.
        let fits = bytes.is_some_and(|bytes| pointer.safe().is_none() || bytes <= STAYS);
        if header.mark != mark(self.slot.at) || header.key == 0 || !fits {
            return Err(self.broken("leads to what is no element"));
        }
        Ok(Some((first, header)))
    }

    /// Waits for the batch, and says whether the slot is as it was, behind the last access.
    pub fn is_still(&mut self, as_it_was: Option<State>) -> Result<bool> {
        let Some(state) = as_it_was else {
            self.batch.wait()?;
            return Ok(true);
        };
        let word = self.batch.get(self.slot.at, 8, Order::Continue)?;
        self.batch.wait()?;
        Ok(self.batch.word(word, 0) == state.0)
    }

    /// Returns true if an element, whose key is as long, has this key. None if the slot is not as it was.
    fn is_key(&mut self, pointer: Pointer, first: Place, key: &[u8], as_it_was: Option<State>) -> Result<Option<bool>> {
        let here = (first.len() - HEADER).min(key.len());
        let (begin, rest) = key.split_at(here);
        let mut short = [0; FIRST];
        self.batch.read(first.part(HEADER, here), &mut short[..here]);
        if short[..here] != *begin {
            return Ok(Some(false));
        }
        for (number, part) in rest.chunks(PIECE).enumerate() {
            let at = pointer.address().add((HEADER + here + number * PIECE) as u64);
            self.batch.clear()?;
            let place = self.batch.get(at, part.len(), Order::Now)?;
            if !self.is_still(as_it_was)? {
                return Ok(None);
            }
            if self.batch.bytes(place) != part {
                return Ok(Some(false));
            }
        }
        Ok(Some(true))
    }

    /// All elements of a slot at one moment, in order. Takes the slot if `hold` or there is no other way, and gives it
    /// back. None if it is another container's. A round trip, and one for each element.
    pub fn listed(&mut self, hold: bool) -> Result<Option<Vec<Listed>>> {
        let mut patience = Patience::new();
        let mut failures = if hold { FAILURES } else { 0 };
        loop {
            if failures >= FAILURES {
                let Some((state, head)) = self.hold()? else { return Ok(None) };
                let listed = self.list(state, head, true);
                let listed = self.or_let_go(state, listed)?;
                self.unlock(&[], state)?;
                return Ok(listed);
            }
            let (state, head, id) = self.read()?;
            if id != self.slot.id {
                return Ok(None);
            }
            if state.is_locked() {
                patience.wait(self.world, &self.slot, state)?;
            } else if let Some(listed) = self.list(state, head, false)? {
                return Ok(Some(listed));
            } else {
                failures += 1;
            }
        }
    }

    /// The elements of a list from `head` on. None if the slot has changed, or only who has it may read them.
    pub fn list(&mut self, state: State, head: Pointer, held: bool) -> Result<Option<Vec<Listed>>> {
        let mut listed = vec![];
        let (mut pointer, mut steps) = (head, Steps::new());
        while !pointer.is_null() {
            if steps.again(pointer) {
                return Err(self.broken("has a list that goes in a circle"));
            }
            if listed.len() as u64 > state.count() {
                return Err(self.broken("has more elements than it counts"));
            }
            if pointer.safe().is_none() && !held {
                return Ok(None);
            }
            let read = self.read_element(pointer, HEADER, (!held).then_some(state))?;
            let Some((_, header)) = read else { return Ok(None) };
            listed.push(Listed { pointer, header });
            pointer = header.next;
        }
        Ok(Some(listed))
    }
}
