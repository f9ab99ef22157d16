//! Whether a peer lives of which no lock tells, for it is on another kernel. Every [`BEAT_NS`] each side puts another count into the
//! other's block ([`super::block::BEAT`]), and looks at what has come into its own. Looks are counted, not time: who stood still
//! himself, and sees old counts for that, has not looked meanwhile.

/// How often a process says that it lives, in nanoseconds.
pub const BEAT_NS: u64 = 100_000_000;
/// Looks without a new count, until a peer is silent.
pub const SILENT: u32 = 10;

/// What two processes say to each other of that.
#[derive(Debug, Default)]
pub struct Pulse {
    said: u32,
    heard: u32,
    /// Looks in a row that have found nothing new.
    missed: u32,
}

impl Pulse {
    /// The next count to put.
    pub fn beat(&mut self) -> u32 {
        self.said = self.said.wrapping_add(1);
        self.said
    }

    /// A look at the count that the peer has put: whether it is silent.
    pub fn look(&mut self, told: u32) -> bool {
        let is_new = told != self.heard;
        self.heard = told;
        self.missed = if is_new { 0 } else { self.missed.saturating_add(1) };
        self.missed >= SILENT
    }
}
