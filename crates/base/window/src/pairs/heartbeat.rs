//! Heartbeat of a peer on another kernel, whose locks cannot be seen here. Every [`BEAT_NS`] each side puts a new count
//! into the other's block ([`super::block::BEAT`]), and looks at the one in its own. Looks are counted, not time: a
//! process that stood still finds old counts for that reason alone, but it has not looked meanwhile.

/// Nanoseconds between two beats of a process.
pub const BEAT_NS: u64 = 100_000_000;
/// Looks without a new count after which a peer is silent.
pub const SILENT: u32 = 10;

/// The beats of this process to a peer, and the peer's.
#[derive(Debug, Default)]
pub struct Heartbeat {
    sent: u32,
    received: u32,
    /// Consecutive looks that have found no new count.
    missed: u32,
}

impl Heartbeat {
    /// The next count to put.
    pub fn beat(&mut self) -> u32 {
        self.sent = self.sent.wrapping_add(1);
        self.sent
    }

    /// Looks at the count that the peer has put. Returns true if the peer is silent.
    pub fn look(&mut self, told: u32) -> bool {
        let is_new = told != self.received;
        self.received = told;
        self.missed = if is_new { 0 } else { self.missed.saturating_add(1) };
        self.missed >= SILENT
    }
}
