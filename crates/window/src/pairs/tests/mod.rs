//! Both ends of pairs, in one process.

mod meeting;
mod rings;
mod waking;

use super::block;
use super::ring::{Incoming, Outgoing};
use crate::{FileDevice, Layout, Options, Plan, PutDevice, World};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Two nodes of a window, and the memory that they are.
struct Two {
    _memory: Option<OwnedFd>,
    devices: [Arc<dyn PutDevice>; 2],
}

impl Two {
    fn new() -> Two {
        let options = Options { nodes: Some(2), size: Some(32 << 20), node: None };
        let memory = crate::memfd(&options).unwrap();
        let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
        let open = |node| -> Arc<dyn PutDevice> {
            Arc::new(FileDevice::open(Path::new(&path), &Options { node: Some(node), ..options }).unwrap())
        };
        Two { devices: [open(0), open(1)], _memory: Some(memory) }
    }

    /// With a kernel each, which tells nothing of the other's processes.
    fn apart() -> Two {
        let layout = Layout::new(2, 32 << 20).unwrap();
        let world = World::new(layout, Plan { kernel_each: true, ..Plan::default() }, 0);
        let device = |node| -> Arc<dyn PutDevice> { Arc::new(world.device(node).unwrap()) };
        Two { devices: [device(0), device(1)], _memory: None }
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

/// Has another thread stop, also when this one fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
