//! PSNs as a program finds them in the attributes of a QP (`man ibv_query_qp`): by its path MTU, a message has as many
//! as packets of that size (IBA 9.7.2), while messages through a window are cut into larger ones.

use std::sync::atomic::{AtomicU64, Ordering};
use vervain_wire::{Headers, opcode};

/// Bits of a PSN.
const MASK: u32 = 0x00ff_ffff;

/// Difference between the PSNs of one direction of a connection and those by the path MTU.
pub struct PathPsns {
    path_mtu: u64,
    /// The PSN behind the last packet counted, and what is to be added to it: both in one word, the second in the upper
    /// half.
    state: AtomicU64,
}

impl PathPsns {
    /// For a direction that begins with `first`.
    pub fn new(path_mtu: u32, first: u32) -> Self {
        PathPsns { path_mtu: path_mtu.into(), state: AtomicU64::new((first & MASK).into()) }
    }

    /// The next packet to be counted has this PSN.
    pub fn begin(&self, first: u32) {
        let more = self.state.load(Ordering::Relaxed) >> 32;
        self.state.store(more << 32 | u64::from(first & MASK), Ordering::Relaxed);
    }

    /// A packet with `payload` bytes has gone; one that has gone before counts once. Called by one thread at a time.
    pub fn count(&self, headers: &Headers, payload: u64) {
        let state = self.state.load(Ordering::Relaxed);
        let (next, more) = (state as u32, (state >> 32) as u32);
        let bth = &headers.bth;
        // Half of all PSNs are before, those that have gone already; over UC some may be missing.
        if bth.psn.wrapping_sub(next) & MASK > MASK / 2 {
            return;
        }
        let operation = opcode::operation(bth.opcode);
        let bytes = match (operation, &headers.reth) {
            (opcode::READ_REQUEST, Some(reth)) => u64::from(reth.length),
            _ => payload,
        };
        let of = |mtu: u64| bytes.div_ceil(mtu).max(1) as u32;
        let own = of(vervain_window::pairs::block::MTU.into());
        let next = bth.psn.wrapping_add(own) & MASK;
        let more = more.wrapping_add(of(self.path_mtu)).wrapping_sub(own);
        self.state.store(u64::from(more) << 32 | u64::from(next), Ordering::Relaxed);
    }

    /// Counts `bytes` that were put without a packet. Returns the PSNs that they would have taken. Called by one thread
    /// at a time, like `count`.
    pub fn skip(&self, bytes: u64) -> u32 {
        let psns = bytes.div_ceil(self.path_mtu).max(1) as u32;
        let state = self.state.load(Ordering::Relaxed);
        let more = ((state >> 32) as u32).wrapping_add(psns);
        self.state.store(u64::from(more) << 32 | u64::from(state as u32), Ordering::Relaxed);
        psns
    }

    /// The program's PSN for `psn`, the one behind all that were counted.
    pub fn of_path(&self, psn: u32) -> u32 {
        psn.wrapping_add((self.state.load(Ordering::Relaxed) >> 32) as u32) & MASK
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vervain_wire::{Bth, Reth};

    #[test]
    fn a_message_has_as_many_psns_as_packets_of_the_path() {
        let psns = PathPsns::new(1024, MASK);
        let packet = |psn: u32, code, length| Headers {
            bth: Bth { opcode: opcode::RC | code, psn: psn & MASK, ..Bth::default() },
            reth: Some(Reth { length, ..Reth::default() }),
            ..Headers::default()
        };
        psns.count(&packet(MASK, opcode::SEND_FIRST, 0), 16384);
        psns.count(&packet(MASK, opcode::SEND_FIRST, 0), 16384);
        psns.count(&packet(0, opcode::SEND_LAST, 0), 3616);
        assert_eq!(psns.of_path(1), (MASK + 20) & MASK);
        psns.count(&packet(1, opcode::READ_REQUEST, 20_000), 0);
        assert_eq!(psns.of_path(3), (MASK + 40) & MASK);
        psns.count(&packet(3, opcode::SEND_ONLY, 0), 0);
        assert_eq!(psns.of_path(4), (MASK + 41) & MASK);
        assert_eq!((psns.skip(8), psns.skip(2049)), (1, 3));
        assert_eq!(psns.of_path(4), (MASK + 45) & MASK);
        psns.count(&packet(4, opcode::SEND_ONLY, 0), 0);
        assert_eq!(psns.of_path(5), (MASK + 46) & MASK);
    }
}
