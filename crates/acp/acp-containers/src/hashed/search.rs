//! Searching a slot's list, with the slot or without it, and having a slot.

use std::thread;
use std::time::{Duration, Instant};

use vervain_acp::{Atomic, Batch, Error, GlobalAddress, GlobalPtr, Order, Place, Result, World};

use super::directory::Slot;
use super::layout::{HEAD, HEADER, Header, MOST, Pointer, STAYS, State, Steps, block, mark, value_offset};
use super::{Bytes, Container, Kind};

/// How often a search finds its slot changed before it takes it.
const FAILURES: u32 = 16;
/// Bytes that are read of an element at first, at most.
const FIRST: usize = 1024;
/// Bytes of a key that are compared at a time.
const PIECE: usize = 64 << 10;
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

impl Container<'_> {
    pub(super) fn broken(&self, slot: &Slot, why: &str) -> Error {
        Error::broken(format!("the slot at {} of a {} {why}", slot.at, self.kind.name()))
    }

    /// Calls `f` with a key's bytes.
    pub(super) fn with_key<T>(&self, key: Bytes<'_>, f: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
        let (at, len) = match key {
            Bytes::Here(bytes) => return f(bytes),
            Bytes::At(at, len) => (at, len),
        };
        let mut short = [0; 256];
        let mut long = vec![];
        let bytes = match short.get_mut(..len) {
            Some(short) => short,
            None => self.room(at, len, &mut long)?,
        };
        self.fetch(at, bytes)?;
        f(bytes)
    }

    /// Room for `len` bytes from `at` on, which there are.
    pub(super) fn room<'b>(&self, at: GlobalAddress, len: usize, bytes: &'b mut Vec<u8>) -> Result<&'b mut [u8]> {
        if len > 16 * PIECE {
            // If they end outside of their region, that ends the job before room for them is allocated.
            self.fetch(at.add(len as u64 - 1), &mut [0])?;
        }
        let none = |_| Error::refused(format!("there is no memory for {len} bytes"));
        bytes.try_reserve_exact(len).map_err(none)?;
        bytes.resize(len, 0);
        Ok(bytes)
    }

    /// Reads global memory: at once where it is this rank's, else one round trip.
    pub(super) fn fetch(&self, at: GlobalAddress, to: &mut [u8]) -> Result<()> {
        let world = self.world();
        if world.rank_of(at) == Some(world.rank()) {
            return world.read(GlobalPtr::new(at), to);
        }
        let mut batch = world.batch();
        let (mut most, mut done) = (16 * PIECE, 0);
        while done < to.len() {
            let len = most.min(to.len() - done);
            let place = match batch.get(at.add(done as u64), len, Order::Now) {
                // If there is no room for as much, in small parts: an element that is moved has to get to a slot.
                Err(error) if error.is_refused() && len > FIRST => {
                    most = FIRST;
                    continue;
                }
                place => place?,
            };
            batch.wait()?;
            batch.read(place, &mut to[done..done + len]);
            batch.clear()?;
            done += len;
        }
        Ok(())
    }

    /// Reads a slot: its word, then the first pointer and the id. One round trip.
    pub(super) fn read_slot(&self, batch: &mut Batch<'_>, slot: &Slot) -> Result<(State, Pointer, u64)> {
        batch.clear()?;
        let word = batch.get(slot.at, 8, Order::Now)?;
        let rest = batch.get(slot.at.add(HEAD), 16, Order::Continue)?;
        batch.wait()?;
        Ok((State(batch.word(word, 0)), Pointer(batch.word(rest, 0)), batch.word(rest, 1)))
    }

    /// Makes a free slot this thread's, if it is still as it was seen. One round trip.
    pub(super) fn lock(&self, batch: &mut Batch<'_>, slot: &Slot, state: State) -> Result<bool> {
        let locked = state.locked_by(self.world().rank());
        let was = batch.atomic(slot.at, Atomic::CompareSwap8 { expected: state.0, new: locked.0 }, Order::Now)?;
        batch.wait()?;
        Ok(batch.word(was, 0) == state.0)
    }

    /// Stores words, then the slot's, in this order: it is free. One round trip.
    pub(super) fn unlock(
        &self,
        batch: &mut Batch<'_>,
        slot: &Slot,
        words: &[(GlobalAddress, u64)],
        state: State,
    ) -> Result<()> {
        let mut order = Order::Now;
        for (at, word) in words.iter().chain([&(slot.at, state.0)]) {
            batch.put_words(*at, &[*word], order)?;
            order = Order::Continue;
        }
        batch.wait()
    }

    /// Takes a slot. Returns its word as it was, and the first pointer. None if it is another container's. Two round
    /// trips.
    pub(super) fn hold(&self, batch: &mut Batch<'_>, slot: &Slot) -> Result<Option<(State, Pointer)>> {
        let mut patience = Patience::new();
        loop {
            let (state, head, id) = self.read_slot(batch, slot)?;
            if id != slot.id {
                return Ok(None);
            }
            if !state.is_locked() && self.lock(batch, slot, state)? {
                return Ok(Some((state, head)));
            }
            patience.wait(self.world(), slot, state)?;
        }
    }

    /// Searches a key in its slot, and reads `want` bytes of the value with it if that costs nothing. Takes the slot if
    /// `hold`, or if there is no other way. None if it is another container's. One round trip, and one for each element
    /// up to the key.
    pub(super) fn look(
        &self,
        batch: &mut Batch<'_>,
        slot: &Slot,
        key: &[u8],
        want: usize,
        hold: bool,
    ) -> Result<Option<Look>> {
        let mut patience = Patience::new();
        let mut failures = if hold { FAILURES } else { 0 };
        loop {
            let (state, head, id) = self.read_slot(batch, slot)?;
            if id != slot.id {
                return Ok(None);
            }
            if state.is_locked() {
                patience.wait(self.world(), slot, state)?;
                continue;
            }
            let held = failures >= FAILURES;
            if held && !self.lock(batch, slot, state)? {
                patience.wait(self.world(), slot, state)?;
                continue;
            }
            let walked = self.walk(batch, slot, state, head, held, key, want);
            match if held { self.or_let_go(batch, slot, state, walked)? } else { walked? } {
                Walked::To(link, element) => return Ok(Some(Look { state, held, link, element })),
                Walked::Changed => failures += 1,
                Walked::Large => failures = FAILURES,
            }
        }
    }

    /// The result of reading a slot that this thread has. If the read was refused the slot is free again: there may be
    /// no room for the bytes. Any other error has ended the job.
    pub(super) fn or_let_go<T>(&self, batch: &mut Batch<'_>, slot: &Slot, state: State, read: Result<T>) -> Result<T> {
        if read.as_ref().is_err_and(Error::is_refused) {
            batch.clear()?;
            self.unlock(batch, slot, &[], state)?;
        }
        read
    }

    /// Walks a slot's list up to a key.
    #[expect(clippy::too_many_arguments, reason = "what was found of the slot, and what is looked for")]
    fn walk(
        &self,
        batch: &mut Batch<'_>,
        slot: &Slot,
        state: State,
        head: Pointer,
        held: bool,
        key: &[u8],
        want: usize,
    ) -> Result<Walked> {
        let (mut link, mut pointer) = (slot.at.add(HEAD), head);
        let wanted = value_offset(key.len()).saturating_add(want).min(FIRST);
        let mut steps = Steps::new();
        for _ in 0..=state.count() {
            if pointer.is_null() {
                return Ok(Walked::To(link, None));
            }
            if steps.again(pointer) {
                return Err(self.broken(slot, "has a list that goes in a circle"));
            }
            if pointer.safe().is_none() && !held {
                return Ok(Walked::Large);
            }
            let Some((first, header)) = self.read_element(batch, slot, pointer, wanted, (!held).then_some(state))?
            else {
                return Ok(Walked::Changed);
            };
            if header.key == key.len() as u64 {
                match self.is_key(batch, slot, pointer, first, key, (!held).then_some(state))? {
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
        Err(self.broken(slot, "has more elements than it counts"))
    }

    /// Reads `wanted` bytes of an element, or fewer if it may have fewer. None if the slot is not as it was. One round
    /// trip.
    pub(super) fn read_element(
        &self,
        batch: &mut Batch<'_>,
        slot: &Slot,
        pointer: Pointer,
        wanted: usize,
        as_it_was: Option<State>,
    ) -> Result<Option<(Place, Header)>> {
        if self.world().rank_of(pointer.address()) != Some(slot.rank) {
            return Err(self.broken(slot, "leads to no element"));
        }
        batch.clear()?;
        let first =
            batch.get(pointer.address(), wanted.max(HEADER).min(pointer.safe().unwrap_or(STAYS)), Order::Now)?;
        if !self.is_still(batch, slot, as_it_was)? {
            return Ok(None);
        }
        let header = Header::of([0, 1, 2, 3].map(|index| batch.word(first, index)));
        let value = if self.kind == Kind::Map { header.more } else { 0 };
        let bytes = if header.key.max(value) < MOST { block(header.key as usize, value as usize) } else { None };
        // A pointer that may be followed without the slot leads to small elements only, so a larger size is that of
        // none.
        let fits = bytes.is_some_and(|bytes| pointer.safe().is_none() || bytes <= STAYS);
        if header.mark != mark(slot.at) || header.key == 0 || !fits {
            return Err(self.broken(slot, "leads to what is no element"));
        }
        Ok(Some((first, header)))
    }

    /// Waits for the batch, and says whether the slot is as it was, behind the last access.
    pub(super) fn is_still(&self, batch: &mut Batch<'_>, slot: &Slot, as_it_was: Option<State>) -> Result<bool> {
        let Some(state) = as_it_was else {
            batch.wait()?;
            return Ok(true);
        };
        let word = batch.get(slot.at, 8, Order::Continue)?;
        batch.wait()?;
        Ok(batch.word(word, 0) == state.0)
    }

    /// Returns true if an element, whose key is as long, has this key. None if the slot is not as it was.
    fn is_key(
        &self,
        batch: &mut Batch<'_>,
        slot: &Slot,
        pointer: Pointer,
        first: Place,
        key: &[u8],
        as_it_was: Option<State>,
    ) -> Result<Option<bool>> {
        let here = (first.len() - HEADER).min(key.len());
        let (begin, rest) = key.split_at(here);
        let mut short = [0; FIRST];
        batch.read(first.part(HEADER, here), &mut short[..here]);
        if short[..here] != *begin {
            return Ok(Some(false));
        }
        for (number, part) in rest.chunks(PIECE).enumerate() {
            let at = pointer.address().add((HEADER + here + number * PIECE) as u64);
            batch.clear()?;
            let place = batch.get(at, part.len(), Order::Now)?;
            if !self.is_still(batch, slot, as_it_was)? {
                return Ok(None);
            }
            if batch.bytes(place) != part {
                return Ok(Some(false));
            }
        }
        Ok(Some(true))
    }
}
