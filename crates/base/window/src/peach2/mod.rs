//! A model of PEACH2, a board that joins PCIe domains and only writes: by DMA, out of memory of its own node that it
//! can read, at places and with lengths that its descriptors allow. The memory is a file, like [`FileDevice`]'s. The
//! thread that puts moves the bytes, after the time that the board would have taken if that is asked for.
//!
//! The board refuses transfers that break a limit. The channel breaks none: it copies bytes that the board could not
//! read, in the sender's memory, and counts them.

mod board;
mod channel;
mod descriptor;
mod staging;
mod topology;

#[cfg(test)]
mod tests;

use crate::claims::Claims;
use crate::device::{Channel, Count, Facts, Program, PutDevice, Region, Source};
use crate::error::{Error, Result};
use crate::file::{FileDevice, check_node};
use crate::layout::Layout;
use crate::locks;
use crate::make::Options;
use board::Boards;
use channel::BoardChannel;
use descriptor::{ALIGN, CONGRUENT, INTERNAL};
use staging::Staging;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use vervain_config::Peach2;

/// Misses after which the program's memory map is asked less often.
const FEW: u32 = 64;

/// A window whose nodes put by boards.
#[derive(Debug)]
pub struct Peach2Device(Arc<Inside>);

struct Inside {
    memory: FileDevice,
    facts: Facts,
    own: Region,
    model: Peach2,
    boards: Boards,
    staging: Staging,
    program: OnceLock<Box<dyn Program>>,
    /// Address at which the own region would begin if the program had mapped all of it; 0: unknown.
    program_base: AtomicUsize,
    /// Requests to the program's memory map that found nothing.
    misses: AtomicU32,
}

impl fmt::Debug for Inside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peach2").field("memory", &self.memory).field("model", &self.model).finish_non_exhaustive()
    }
}

/// Ways in which the board can, or cannot, read a source for a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Readable {
    /// It can read it in place.
    Here,
    /// It could if the source lay otherwise.
    BreaksLimit,
    /// The source is not in the window.
    Elsewhere,
}

/// Descriptors in the memory of the own board, kept until this is dropped. The kernel frees them when the process dies.
#[derive(Debug)]
struct Prepared {
    claims: Arc<Claims>,
    place: u32,
}

impl Drop for Prepared {
    fn drop(&mut self) {
        self.claims.give_back_board_memory(self.place);
    }
}

impl Peach2Device {
    /// Opens the window at `path`, and makes it if nothing is there.
    ///
    /// # Errors
    /// Those of [`FileDevice::open`]. ENOMEM: a region has no room for staging memory. EINVAL: times are modelled, and
    /// nodes of another kernel are there.
    pub fn open(path: &Path, options: &Options, model: Peach2) -> Result<Peach2Device> {
        let memory = FileDevice::open(path, options)?;
        let facts = Facts { whole: ALIGN as u32, ..memory.facts().clone() };
        let others = (0..facts.layout.nodes()).any(|node| memory.claims().is_here(node) == Some(false));
        if others && model.timing {
            return Err(Error::invalid(
                "nodes of different kernels have no clock in common: timing=on is for one kernel",
            ));
        }
        let boards = Boards::new(memory.header().clone(), model);
        boards.set_gpu_heap(facts.node, model.gpu_heap);
        let staging = Staging::new(memory.claims())?;
        let own = memory.own().clone();
        let (program, program_base, misses) = Default::default();
        Ok(Peach2Device(Arc::new(Inside { memory, facts, own, model, boards, staging, program, program_base, misses })))
    }
}

impl Inside {
    fn count(&self, what: Count, n: u64) {
        if n > 0
            && let Some(program) = self.program.get()
        {
            program.count(what, n);
        }
    }

    fn is_claimed(&self, granule: u32) -> bool {
        self.own.word(Layout::owner(granule)).load(Ordering::Acquire) as u8 != 0
    }

    /// Offset in the own region of memory of the program; None: it is not there, or unknown.
    fn place(&self, address: *const u8, len: usize) -> Option<u64> {
        let base = self.program_base.load(Ordering::Relaxed);
        if base == 0 {
            let misses = self.misses.load(Ordering::Relaxed);
            let program = self.program.get().filter(|_| misses < FEW || misses.is_multiple_of(FEW));
            let found = program.and_then(|program| program.place(address, len));
            match found {
                // All of the program's memory there is mapped at the same distances as in the region.
                Some(at) => self.program_base.store(address.addr().wrapping_sub(at as usize), Ordering::Relaxed),
                None => self.misses.store(misses.wrapping_add(1), Ordering::Relaxed),
            }
            return found;
        }
        let (at, region) = (address.addr().wrapping_sub(base), self.own.size() as usize);
        (at < region && len <= region - at).then_some(at as u64)
    }

    /// Finds out if the board can read a source for `to`. If so, `pieces` has place and length of each piece.
    fn readable(&self, source: &dyn Source, to: u64, pieces: &mut Vec<(u64, u64)>) -> Readable {
        let (mut at, mut readable) = (to, Readable::Here);
        let known = source.pieces(&mut |address, len| {
            let len64 = len as u64;
            match self.place(address, len) {
                _ if readable == Readable::Elsewhere => {}
                None => readable = Readable::Elsewhere,
                Some(from) => {
                    let is_aligned = (from | at | len64).is_multiple_of(ALIGN);
                    if !is_aligned || !(from ^ at).is_multiple_of(CONGRUENT) {
                        readable = Readable::BreaksLimit;
                    }
                    pieces.push((from, len64));
                }
            }
            at += len64;
        });
        if known && !pieces.is_empty() { readable } else { Readable::Elsewhere }
    }

    /// Returns true if the destination is memory of a GPU.
    fn is_gpu(&self, node: u32, offset: u64) -> bool {
        self.boards.has_gpu_heap(node) && self.staging.is_for_heaps(offset)
    }

    /// Keeps descriptors for `slots` slots in the own board's memory; None: no room.
    fn prepare(&self, slots: u64) -> Option<Prepared> {
        if self.model.without.internal {
            return None;
        }
        let places = INTERNAL / (2 * slots as u32);
        let claims = self.memory.claims();
        let place = (0..places).find(|place| claims.claim_board_memory(*place).unwrap_or(false))?;
        Some(Prepared { claims: Arc::clone(claims), place })
    }

    fn wake(&self, node: u32, offset: u64) {
        if let Ok(mut way) = self.memory.channel(node) {
            way.wake(offset);
        }
    }
}

impl PutDevice for Peach2Device {
    fn facts(&self) -> &Facts {
        &self.0.facts
    }

    fn own(&self) -> &Region {
        &self.0.own
    }

    fn channel(&self, node: u32) -> Result<Box<dyn Channel>> {
        check_node(self.0.facts.layout, node)?;
        self.0.staging.begin()?;
        Ok(Box::new(BoardChannel::new(Arc::clone(&self.0), node, self.0.memory.base_of(node))))
    }

    fn wakes(&self, node: u32) -> bool {
        self.0.memory.wakes(node)
    }

    fn sleep(&self, offset: u64, seen: u32) {
        self.0.memory.sleep(offset, seen);
    }

    fn claims(&self) -> &Arc<Claims> {
        self.0.memory.claims()
    }

    fn set_program(&self, program: Box<dyn Program>) {
        // The first one stays.
        let _ = self.0.program.set(program);
    }
}

const _: () = assert!(locks::BOARD_PLACES >= INTERNAL as u64);
