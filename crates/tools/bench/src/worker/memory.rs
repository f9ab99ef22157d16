//! The stretch of registered memory that a worker has: the host's, which this process can read too, or a GPU's.

use std::ffi::OsStr;
use std::ops::Range;

use anyhow::{Context as _, Result, ensure};
use vervain_rdma::{Access, Foreign, Gpu, Pd, Region, RemoteMemory, Sge};

use crate::topology::Topology;

/// The memory of messages.
pub enum Memory {
    /// The host's.
    Host(Region),
    /// A GPU's, for the device only.
    Gpu(Foreign),
}

impl Memory {
    /// Makes `len` bytes of the host's, on a NUMA node; None: that of the CPU.
    pub fn of_host(pd: &Pd, len: usize, node: Option<u32>) -> Result<Self> {
        let touched = || -> Result<Region> {
            let region = pd.region(len, Access::REMOTE)?;
            // A page lies where it is touched first.
            region.fill(0..len, 0);
            Ok(region)
        };
        Ok(Self::Host(match node {
            Some(node) => Topology::read()?.on_node(node, touched)??,
            None => touched()?,
        }))
    }

    /// Makes `len` bytes in a GPU, by its number; None: the one next to the device. Says which one it is.
    pub fn of_gpu(pd: &Pd, len: usize, index: Option<u32>) -> Result<(Self, String)> {
        let context = pd.context();
        let leaves = leaves_copies(context.attr()?.identity.vendor, std::env::var_os(SCATTER.0).as_deref());
        ensure!(leaves, "start `vervain bench serve` with {}={} if messages lie in a GPU", SCATTER.0, SCATTER.1);
        let gpu = match index {
            Some(index) => Gpu::open(index)?,
            None => Gpu::nearest(context.numa_node())?,
        };
        Ok((Self::Gpu(pd.gpu_region(&gpu, len, Access::REMOTE)?), gpu.to_string()))
    }

    /// The address and key that the other end needs.
    pub fn remote(&self) -> RemoteMemory {
        match self {
            Self::Host(region) => region.remote(),
            Self::Gpu(foreign) => foreign.remote(),
        }
    }

    /// An SGE of the bytes in `range`.
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> Sge<'_> {
        match self {
            Self::Host(region) => region.slice(range),
            Self::Gpu(foreign) => foreign.slice(range),
        }
    }

    /// The memory where the CPU reaches it, to write and to poll.
    pub fn of_cpu(&self) -> Result<&Region> {
        match self {
            Self::Host(region) => Ok(region),
            Self::Gpu(_) => None.context("the CPU cannot poll the memory of a GPU"),
        }
    }

    /// Gives it back now.
    pub fn deregister(self) -> Result<()> {
        match self {
            Self::Host(region) => Ok(region.deregister()?),
            Self::Gpu(foreign) => Ok(foreign.deregister()?),
        }
    }
}

/// The variable that has mlx5 leave short messages to the device: else it would have the CPU copy them out of their
/// completions, into a GPU's memory too. It is read when a QP is made.
pub const SCATTER: (&str, &str) = ("MLX5_SCATTER_TO_CQE", "0");

/// The vendor number of the devices that mlx5 drives.
const MELLANOX: u32 = 0x02c9;

/// Returns true if a vendor's library has the device alone write to memory, with this value of [`SCATTER`].
fn leaves_copies(vendor: u32, scatter: Option<&OsStr>) -> bool {
    vendor != MELLANOX || scatter.is_some_and(|value| value == SCATTER.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mlx5_has_to_be_told_to_leave_memory_to_the_device() {
        let of = |vendor, value: Option<&str>| leaves_copies(vendor, value.map(OsStr::new));
        assert_eq!([of(MELLANOX, None), of(MELLANOX, Some("1")), of(MELLANOX, Some("0"))], [false, false, true]);
        assert!(of(0x1d0f, None));
    }
}
