//! The channel into a node's region by the board: a chain of puts is described by descriptors, copied into staging
//! memory first where the board could not read it, and carried out in the time that the board takes.

use super::board::{Transfer, gpu_read_ns, now_ns, wait_until};
use super::descriptor::{ALIGN, CONGRUENT, Descriptor};
use super::staging::{AREA, Area};
use super::topology::{Link, route};
use super::{Inside, Prepared, Readable};
use crate::device::{Bounds, Channel, Count, Origin, Put, Refused, Source, Traits};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Bytes below which the processor copies a source: it takes less time than a descriptor.
const ZERO_COPY: usize = 256;
/// Most chains that are left for later.
const LATER: usize = 32;
/// Bytes from which on a copy is split: all but its last line is made early.
const SPLIT: u64 = 512;
/// Bytes of a word.
const WORD: u64 = 8;
/// Bytes of a line.
const LINE: u64 = 64;
/// Time before its end at which a transfer's copies begin, apart from the last if that is short. The bytes of a long
/// transfer move all the time.
const LEAD_NS: u64 = 150;

/// A channel that puts by a board.
pub(super) struct BoardChannel {
    device: Arc<Inside>,
    node: u32,
    /// Address of the node's region.
    base: NonNull<u8>,
    bounds: Bounds,
    /// Links between the boards.
    route: Vec<Link>,
    image: Option<Image>,
    chain: Described,
    /// Number of chains left for later.
    later: usize,
}

// SAFETY: the address is in a shared mapping that `device` keeps; this type only stores there.
unsafe impl Send for BoardChannel {}

/// The own node's image of a block of the peer: each byte of the block has one place in it from which it is put.
struct Image {
    at: u64,
    block: u64,
    /// Offsets of the slots in the block, which ends behind them.
    slots: Range<u64>,
    /// The slots' descriptors in the memory of the board; None: they are in the host's.
    prepared: Option<Prepared>,
}

impl Image {
    fn place(&self, to: u64, len: u64) -> Option<u64> {
        let end = self.slots.end;
        let offset = to.checked_sub(self.block).filter(|offset| *offset <= end && len <= end - offset)?;
        Some(self.at + offset)
    }

    fn has_prepared(&self, descriptor: &Descriptor) -> bool {
        let offset = descriptor.to.wrapping_sub(self.block);
        self.prepared.is_some() && self.slots.contains(&offset) && self.place(descriptor.to, descriptor.len()).is_some()
    }
}

/// Transfers to be carried out.
#[derive(Default)]
struct Described {
    descriptors: Vec<Descriptor>,
    copies: Vec<Copy>,
    /// Time at which they were asked for, in nanoseconds; 0: times are not modelled.
    begin: u64,
    /// Nanoseconds that the processor takes before the board can begin.
    ns: u64,
    /// True if memory of a GPU is read.
    is_gpu: bool,
}

/// A copy of the bytes of one or several descriptors.
#[derive(Debug, Clone, Copy)]
struct Copy {
    to: u64,
    len: u64,
    /// True if the bytes are the program's. They are read by their source, at the time of the copy.
    is_program: bool,
    /// Offset of the bytes in the source, or else in the own region.
    at: u64,
    /// Index of the last of the descriptors.
    descriptor: usize,
}

impl Copy {
    /// Splits a long copy into all but its last line, and that line; a short one stays whole.
    fn split(&self) -> (Option<Copy>, Copy) {
        if self.len < SPLIT {
            return (None, *self);
        }
        let early = self.len - LINE;
        (Some(Copy { len: early, ..*self }), Copy { to: self.to + early, len: LINE, at: self.at + early, ..*self })
    }
}

impl Described {
    /// Adds a block. It is merged with the last descriptor, if that is `first` or a later one and lies directly behind
    /// it.
    fn add(&mut self, from: u64, to: u64, len: u64, first: usize) {
        // The words of a slot are described after the payload that they stand before.
        let is_beside = |last: &&mut Descriptor| last.count == 1 && from + len == last.from && to + len == last.to;
        match self.descriptors.get_mut(first..).and_then(<[_]>::last_mut).filter(is_beside) {
            Some(last) => *last = Descriptor::plain(from, to, len + last.block),
            None => self.descriptors.push(Descriptor::plain(from, to, len)),
        }
        self.copies.push(Copy { to, len, is_program: false, at: from, descriptor: self.descriptors.len() - 1 });
    }

    /// Adds the program's bytes at these places, for one destination.
    fn add_program(&mut self, pieces: &[(u64, u64)], to: u64) {
        let (first, mut at) = (self.descriptors.len(), to);
        for (from, len) in pieces {
            if !self.descriptors[first..].last_mut().is_some_and(|last| last.join(*from, at, *len)) {
                self.descriptors.push(Descriptor::plain(*from, at, *len));
            }
            at += len;
        }
        self.copies.push(Copy { to, len: at - to, is_program: true, at: 0, descriptor: self.descriptors.len() - 1 });
    }

    /// Removes all copies behind the first `copies`, with their descriptors.
    fn truncate(&mut self, copies: usize) {
        self.copies.truncate(copies);
        self.descriptors.truncate(self.copies.last().map_or(0, |copy| copy.descriptor + 1));
    }

    fn clear(&mut self) {
        self.descriptors.clear();
        self.copies.clear();
        (self.begin, self.ns, self.is_gpu) = (0, 0, false);
    }
}

/// The staging area in use, and its bytes used.
#[derive(Default)]
struct Staged<'a> {
    area: Option<Area<'a>>,
    used: u64,
}

impl<'a> Staged<'a> {
    /// A place of `len` bytes in the area that is congruent with `to`; `len` is at most [`AREA`] less one line.
    fn place(&mut self, device: &'a Inside, to: u64, len: u64) -> u64 {
        let begin = self.area.get_or_insert_with(|| device.staging.area()).begin();
        let free = begin + self.used;
        let place = free + to.wrapping_sub(free) % CONGRUENT;
        self.used = place + len - begin;
        place
    }
}

impl BoardChannel {
    pub(super) fn new(device: Arc<Inside>, node: u32, base: NonNull<u8>) -> BoardChannel {
        let bounds = Bounds::of(device.facts.layout);
        let route = route(device.model.links, device.facts.layout.nodes(), device.facts.node, node);
        BoardChannel { device, node, base, bounds, route, image: None, chain: Described::default(), later: 0 }
    }

    fn place<'a>(&self, device: &'a Inside, to: u64, len: u64, staged: &mut Staged<'a>) -> u64 {
        let in_image = self.image.as_ref().and_then(|image| image.place(to, len));
        in_image.unwrap_or_else(|| staged.place(device, to, len))
    }

    /// Describes words, which the board reads from a copy in staging memory.
    fn words<'a>(&mut self, device: &'a Inside, (to, words): (u64, &[u64]), first: usize, staged: &mut Staged<'a>) {
        let place = self.place(device, to, size_of_val(words) as u64, staged);
        for (i, word) in words.iter().enumerate() {
            device.own.word(place + 8 * i as u64).store(*word, Ordering::Relaxed);
        }
        self.chain.add(place, to, size_of_val(words) as u64, first);
    }

    /// Describes memory of the program. It is copied first if the board cannot read it, or if that takes less time.
    /// Returns true if the board reads it in place.
    fn source<'a>(
        &mut self,
        device: &'a Inside,
        (to, source): (u64, &dyn Source),
        may_be_read: bool,
        staged: &mut Staged<'a>,
    ) -> Result<bool, Refused> {
        let len = source.len() as u64;
        if !(to | len).is_multiple_of(ALIGN) {
            return Err(Refused::Misaligned);
        }
        let is_in_image = self.image.as_ref().is_some_and(|image| image.place(to, len).is_some());
        let mut pieces = Vec::new();
        let readable = device.readable(source, to, &mut pieces);
        let is_worth_it = source.len() >= ZERO_COPY || readable == Readable::Here && device.model.gpu_heap;
        if readable == Readable::Here && may_be_read && !is_in_image && is_worth_it && !device.model.without.zero_copy {
            self.chain.is_gpu |= device.model.gpu_heap;
            self.chain.add_program(&pieces, to);
            return Ok(true);
        }
        match readable {
            _ if is_in_image => {}
            Readable::Elsewhere => device.count(Count::StagedMemory, len),
            Readable::Here | Readable::BreaksLimit => device.count(Count::StagedAlignment, len),
        }
        if device.model.gpu_heap && readable != Readable::Elsewhere {
            self.chain.ns += gpu_read_ns(len);
        }
        self.copied(device, (to, source), staged)?;
        Ok(false)
    }

    /// Copies a source into staging memory. A long one is copied in parts, of which all but the last are carried out at
    /// once.
    fn copied<'a>(
        &mut self,
        device: &'a Inside,
        (to, source): (u64, &dyn Source),
        staged: &mut Staged<'a>,
    ) -> Result<(), Refused> {
        let (all, mut from) = (source.len(), 0);
        if all >= ZERO_COPY {
            self.chain.begin = 0;
        }
        let is_in_image = self.image.as_ref().is_some_and(|image| image.place(to, all as u64).is_some());
        while from < all {
            let mut len = all - from;
            if !is_in_image {
                if staged.used > 0 && staged.used + len as u64 > AREA - CONGRUENT {
                    self.carry_out(device, None)?;
                    staged.used = 0;
                }
                let room = (AREA - CONGRUENT - staged.used) as usize;
                if len > room {
                    // No part ends within the last line, so that the last word is seen whole.
                    len = room.min(len - LINE as usize) & !(CONGRUENT as usize - 1);
                }
            }
            let part = to + from as u64;
            let place = self.place(device, part, len as u64, staged);
            let at = device.own.bytes(place..place + len as u64).ok_or(Refused::Outside)?;
            // SAFETY: as many bytes of memory claimed for this; the only references to them are to atomics.
            unsafe { source.store_part_to(from, len, at) }.map_err(Refused::Faulted)?;
            self.chain.add(place, part, len as u64, usize::MAX);
            from += len;
        }
        Ok(())
    }

    /// Carries out the described transfers; `program` is the source that the board reads in place.
    fn carry_out(&mut self, device: &Inside, program: Option<&dyn Source>) -> Result<(), Refused> {
        let mut chain = std::mem::take(&mut self.chain);
        let done = self.carry_out_chain(device, &chain, program);
        chain.clear();
        (self.chain, self.later) = (chain, 0);
        done
    }

    fn carry_out_chain(
        &mut self,
        device: &Inside,
        chain: &Described,
        program: Option<&dyn Source>,
    ) -> Result<(), Refused> {
        for descriptor in &chain.descriptors {
            let checked = descriptor.check(device.facts.layout, |granule| device.is_claimed(granule));
            checked.inspect_err(|_| device.count(Count::Refusals, 1))?;
        }
        let all = 0..chain.descriptors.len();
        if !device.model.without.chaining {
            return self.transfer(device, chain, all, program);
        }
        // Each begins when its predecessor has landed.
        all.into_iter().try_for_each(|n| self.transfer(device, chain, n..n + 1, program))
    }

    /// One transfer: the copies of these descriptors.
    fn transfer(
        &mut self,
        device: &Inside,
        chain: &Described,
        range: Range<usize>,
        program: Option<&dyn Source>,
    ) -> Result<(), Refused> {
        // A transfer begins at the call that asks for it, or when its source has been copied.
        let is_first = range.start == 0 && chain.begin != 0;
        let begin = if !is_first && device.model.timing { now_ns() } else { chain.begin };
        let descriptors = &chain.descriptors[range.clone()];
        let is_internal = self.image.as_ref().is_some_and(|image| descriptors.iter().all(|d| image.has_prepared(d)));
        let count = descriptors.len() as u64;
        device.count(if is_internal { Count::InternalDescriptors } else { Count::HostDescriptors }, count);
        device.count(Count::Hops, self.route.len() as u64);
        let mut copies = chain.copies.iter().filter(|copy| range.contains(&copy.descriptor));
        if !device.model.timing {
            return copies.try_for_each(|copy| self.copy(device, copy, program));
        }
        let make = match is_internal {
            true if device.model.without.prepared => device.model.make_internal_ns,
            true => 0,
            false => device.model.make_host_ns,
        };
        let bytes = descriptors.iter().map(Descriptor::len).sum();
        let is_gpu = chain.is_gpu || descriptors.iter().any(|d| device.is_gpu(self.node, d.to));
        let transfer = Transfer { from: device.facts.node, bytes, is_internal, is_gpu };
        let due = device.boards.land(&self.route, begin + chain.ns + count * u64::from(make), transfer);
        // The last part is copied at the end of that time, the rest while the board moves it.
        let last = copies.next_back().map(Copy::split);
        let Some((early, last)) = last else { return Ok(()) };
        wait_until(due.saturating_sub(transfer.moves_ns().max(LEAD_NS)));
        copies.try_for_each(|copy| self.copy(device, copy, program))?;
        early.iter().try_for_each(|copy| self.copy(device, copy, program))?;
        wait_until(due);
        self.copy(device, &last, program)
    }

    fn copy(&self, device: &Inside, copy: &Copy, program: Option<&dyn Source>) -> Result<(), Refused> {
        // Earlier puts become visible before this; on x86-64 that takes no instruction.
        fence(Ordering::Release);
        if !self.bounds.contains(copy.to, copy.len) {
            return Err(Refused::Outside);
        }
        // SAFETY: the bounds have been checked.
        let at = unsafe { self.base.add(copy.to as usize) };
        let from = copy.at;
        if copy.is_program {
            let source = program.ok_or(Refused::NotMine)?;
            // SAFETY: as many bytes are inside, and the only references to them are to atomics.
            return unsafe {
                match from {
                    0 if copy.len == source.len() as u64 => source.store_to(at.as_ptr()),
                    _ => source.store_part_to(from as usize, copy.len as usize, at.as_ptr()),
                }
            }
            .map_err(Refused::Faulted);
        }
        let from = device.own.bytes(from..from + copy.len).ok_or(Refused::Outside)?;
        // Programs poll the last word, or the part of one that there is, so it becomes visible whole and behind all
        // others.
        let last = match (at.addr().get() as u64 + copy.len) % WORD {
            0 => WORD,
            part => part,
        };
        let body = copy.len.saturating_sub(last) as usize;
        // SAFETY: both are inside regions, whose bytes are accessed only as atomics and by raw pointers. Places and
        // lengths are multiples of four, and so is the begin of the last word; a whole word ends at a multiple of
        // eight.
        unsafe {
            std::ptr::copy(from, at.as_ptr(), body);
            let (from, at) = (from.add(body), at.add(body));
            if copy.len - body as u64 == WORD && at.addr().get().is_multiple_of(WORD as usize) {
                at.cast::<AtomicU64>().as_ref().store(from.cast::<u64>().read_unaligned(), Ordering::Release);
            } else {
                for half in (0..copy.len as usize - body).step_by(ALIGN as usize) {
                    let word = (*from.add(half).cast::<AtomicU32>()).load(Ordering::Relaxed);
                    at.add(half).cast::<AtomicU32>().as_ref().store(word, Ordering::Release);
                }
            }
        }
        Ok(())
    }

    fn put_chain(&mut self, chain: &[Put<'_>], may_be_later: bool) -> Result<(), Refused> {
        self.bounds.check(chain)?;
        let device = Arc::clone(&self.device);
        let (mut staged, mut program, before) = (Staged::default(), None, self.chain.copies.len());
        if device.model.timing {
            self.chain.begin = now_ns();
        }
        let first = self.chain.descriptors.len();
        for (n, put) in chain.iter().enumerate() {
            match put.from {
                _ if put.from.len() == 0 => {}
                Origin::Words(words) => {
                    // The last put of a chain becomes visible after all others, so it has a descriptor of its own.
                    let first = if n + 1 == chain.len() { usize::MAX } else { first };
                    self.words(&device, (put.to, words), first, &mut staged);
                }
                Origin::Source(source) => {
                    match self.source(&device, (put.to, source), program.is_none(), &mut staged) {
                        Ok(true) => program = Some(source),
                        Ok(false) => {}
                        Err(refused) => {
                            device.count(Count::Refusals, u64::from(refused == Refused::Misaligned));
                            // Chains left for later stay.
                            self.chain.truncate(before);
                            return Err(refused);
                        }
                    }
                }
            }
        }
        self.later += 1;
        let is_later = may_be_later && device.model.timing && self.later < LATER;
        // Neither a staging area nor the program's memory may be read after the call: others use them next.
        if is_later && staged.area.is_none() && program.is_none() { Ok(()) } else { self.carry_out(&device, program) }
    }
}

impl Channel for BoardChannel {
    fn put(&mut self, chain: &[Put<'_>]) -> Result<(), Refused> {
        self.put_chain(chain, false)
    }

    fn put_later(&mut self, chain: &[Put<'_>]) -> Result<(), Refused> {
        self.put_chain(chain, true)
    }

    fn flush(&mut self) {
        if self.owes() {
            let device = Arc::clone(&self.device);
            // Chains left for later are staged, so this fails only if the window is not what it was.
            let _ = self.carry_out(&device, None);
        }
    }

    fn owes(&self) -> bool {
        self.later > 0
    }

    fn prepare(&mut self, block: u64, slots: Range<u64>, len: u64) {
        let Some(at) = self.device.staging.image(slots.end) else { return };
        let count = (slots.end - slots.start) / len;
        let prepared = if self.device.model.without.low_latency { None } else { self.device.prepare(count) };
        self.image = Some(Image { at, block, slots, prepared });
    }

    fn wants_own_place(&self, source: &dyn Source) -> bool {
        let device = &self.device;
        device.model.without.low_latency
            || device.model.gpu_heap && device.readable(source, 0, &mut Vec::new()) == Readable::Here
    }

    fn traits(&self) -> Traits {
        Traits {
            grain: ALIGN,
            has_long_ring: !self.device.model.without.high_bandwidth,
            is_slow: self.device.model.timing && !self.device.model.without.chaining,
        }
    }

    fn wake(&mut self, offset: u64) {
        self.flush();
        self.device.wake(self.node, offset);
    }
}

impl Drop for BoardChannel {
    fn drop(&mut self) {
        self.image.iter().for_each(|image| self.device.staging.give_back(image.at));
    }
}
