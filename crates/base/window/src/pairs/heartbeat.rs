//! Whether a peer on another kernel lives, whose locks are not seen here. Every [`BEAT_NS`] each side puts a new count
//! into the other's block ([`super::block::BEAT`]), and looks at the one in its own. Looks are counted, not time: a
//! process that stood still finds old counts for that reason alone, but has not looked meanwhile.

/// Nanoseconds between two beats of a process.
pub const BEAT_NS: u64 = 100_000_000;
/// Looks without a new count, until a peer is silent.
pub const SILENT: u32 = 10;

/// The beats of this process to a peer, and the peer's.
#[derive(Debug, Default)]
pub struct Heartbeat {
    sent: u32,
    received: u32,
    /// Looks in a row that have found nothing new.
    missed: u32,
}

impl Heartbeat {
    /// The next count to put.
    pub fn beat(&mut self) -> u32 {
        self.sent = self.sent.wrapping_add(1);
        self.sent
    }

    /// A look at the count that the peer has put: whether it is silent.
    pub fn look(&mut self, told: u32) -> bool {
        let is_new = told != self.received;
        self.received = told;
        self.missed = if is_new { 0 } else { self.missed.saturating_add(1) };
        self.missed >= SILENT
    }
}
