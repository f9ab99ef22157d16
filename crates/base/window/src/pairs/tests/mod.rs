//! Both ends of pairs, in one process.

mod heartbeat;
mod meeting;
mod rings;
mod waking;

use super::block;
use super::ring::{Incoming, Outgoing};
use crate::simulated::{Plan, World};
use crate::{FileDevice, Layout, Options, PutDevice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Two nodes of a window, and the memory that they are.
struct Two {
    memory: Option<OwnedFd>,
    devices: [Arc<dyn PutDevice>; 2],
}

const OPTIONS: Options = Options { nodes: Some(2), size: Some(32 << 20), node: None, peach2: None };

fn open(memory: &OwnedFd, node: u32) -> Arc<dyn PutDevice> {
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    Arc::new(FileDevice::open(Path::new(&path), &Options { node: Some(node), ..OPTIONS }).unwrap())
}

impl Two {
    fn new() -> Two {
        let memory = crate::memfd(&OPTIONS).unwrap();
        Two { devices: [open(&memory, 0), open(&memory, 1)], memory: Some(memory) }
    }

    /// One of them as another program has it.
    fn elsewhere(&self, node: u32) -> Arc<dyn PutDevice> {
        open(self.memory.as_ref().unwrap(), node)
    }

    /// With a kernel each, which tells nothing of the other's processes.
    fn apart() -> Two {
        let layout = Layout::new(2, 32 << 20).unwrap();
        let world = World::new(layout, Plan { kernel_each: true, ..Plan::default() }, 0);
        let device = |node| -> Arc<dyn PutDevice> { Arc::new(world.device(node).unwrap()) };
        Two { devices: [device(0), device(1)], memory: None }
    }

    /// A ring from the first to the second, whose blocks are the first granule of each.
    fn ring(&self) -> (Outgoing, Incoming) {
        let from = &self.devices[0];
        let at = self.block(0);
        (Outgoing::new(from.channel(1).unwrap(), at, from.own().clone(), at), Incoming::new(at))
    }

    fn block(&self, n: u64) -> u64 {
        u64::from(self.devices[0].facts().layout.granules().start) * crate::GRANULE + n * block::LEN
    }
}

/// A guard that stops another thread, also when this one fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
