//! The program, for devices with limits: its memory in the window. The devices' counts are added at the first port.

use vervain_hca::device::port_counters::{self, Word};
use vervain_hca::process::Process;
use vervain_window::{Count, Program};

/// The program of this process.
pub struct OwnProgram;

impl Program for OwnProgram {
    fn place(&self, address: *const u8, len: usize) -> Option<u64> {
        Process::current()?.place_in_window(address.addr() as u64, len as u64)
    }

    fn count(&self, what: Count, n: u64) {
        let word = match what {
            Count::StagedAlignment => Word::WindowCopiedAlignment,
            Count::StagedMemory => Word::WindowCopiedMemory,
            Count::InternalDescriptors => Word::WindowInternalDescriptors,
            Count::HostDescriptors => Word::WindowHostDescriptors,
            Count::Hops => Word::WindowHops,
            Count::Refusals => Word::WindowRefusals,
        };
        port_counters::FIRST.add(word, n);
    }
}
