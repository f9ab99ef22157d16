//! Windows: memory that several nodes map. Each node owns one region of it, into which the others can put but which
//! they never read.
//!
//! A node is a machine or a container; a process is a node and a number. [`PutDevice`] is the link layer's interface to
//! a window; no method of it returns bytes of another node. Memory for others to put into is claimed in granules, which
//! the kernel takes back when the claimant dies ([`Claims`]).
//!
//! * [`FileDevice`]: a file that all nodes map, or a device that is memory: device-DAX, ivshmem.
//! * [`WriteOnlyDevice`]: a folder of files; by the kernel's rights all but the owner can only write them.
//! * [`Peach2Device`]: a file into which nodes put by a model of PEACH2 boards.
//! * [`pairs`]: messages in order between two processes, by puts.

mod arch;
mod claims;
mod dax;
mod device;
mod error;
mod file;
mod found;
mod inscription;
mod ivshmem;
mod layout;
mod locks;
mod make;
mod mapping;
mod medium;
mod nodes;
mod occupancy;
mod ofd;
mod open;
pub mod pairs;
pub mod parts;
mod peach2;
mod reason;
mod write_only;

// The integration tests have it too, and name this crate by its own name.
#[cfg(test)]
#[allow(dead_code, unused_imports)] // the unit tests use a part of it
#[path = "../tests/simulated/mod.rs"]
mod simulated;
#[cfg(test)]
extern crate self as vervain_window;

pub use claims::{Claim, Claims, HeapOwner, Process, REST_MS, UseGuard};
pub use device::{Channel, Count, Facts, Faulted, Origin, Program, Put, PutDevice, Refused, Region, Source, Traits};
pub use error::{Error, Result};
pub use file::FileDevice;
pub use layout::{CELL, GRANULE, Layout, MAX_NODES, MAX_SIZE, PROCESSES};
pub use make::{Options, memfd};
pub use medium::Medium;
pub use occupancy::{Occupancy, Processes};
pub use ofd::{forks_are_handled, in_forked_child};
pub use open::open;
pub use peach2::Peach2Device;
pub use reason::Reason;
pub use write_only::WriteOnlyDevice;
