//! Allocation from shared memory (DESIGN decision 4a): large allocations and anonymous mappings live on a sealed
//! memfd, so that a peer on the same host can map them and an RDMA write is one copy. The preload library hooks the C
//! library's functions and calls this crate; the device asks it where memory lies (`api`, `device`). It knows nothing
//! of verbs.
//!
//! - `settings` decides whether there is a heap, `object` is its memfd or window, `room` what is free there, `blocks`
//!   what is not, `state` all of it and its lock, `mode` whether there is one.
//! - `heap` serves malloc and its kin, with `slab` for small blocks at page boundaries, `maps` mmap and its kin,
//!   `remap` mremap; `marks` remembers what the program did to ranges.
//! - `pins` keeps pages for the device, `fork` gives children their copy, which `snapshots` makes, `dump` keeps holes
//!   out of core dumps, `program` knows the program's own shared memory, `reaper` gives back what is kept too long.
//! - `faults` is the seam of the device's own handler of faults, `checkers` knows sanitizers and memcheck.
//!
//! docs/shared-memory.md says what is served and what it costs.

pub mod api;
mod blocks;
pub mod checkers;
pub mod device;
pub mod dump;
pub mod faults;
pub mod fork;
pub mod heap;
pub mod maps;
pub mod marks;
mod mode;
mod object;
mod pins;
pub mod program;
mod reaper;
pub mod remap;
mod room;
pub mod settings;
mod slab;
mod snapshots;
mod state;
pub mod status;
pub mod sys;

pub use mode::{stop, wake};
pub use object::make_room_for_descriptors;
