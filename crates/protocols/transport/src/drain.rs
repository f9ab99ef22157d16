//! Loss by a full queue, or at random: where packets are lost of which each alone is sent again, the window is a
//! quarter for a moment. If round trips are shorter then, packets wait in a queue, and it has overflowed; if not, the
//! path loses packets by itself, and a smaller window would not change that. BBR's ProbeRTT finds a queue so too; the
//! shortest round trip of all would not tell a sender of it that has come when the queue was full.

use crate::host::Nanos;
use crate::rtt::Rtt;

/// The window is divided by this.
const PART: u64 = 4;
/// A round trip that takes such a part longer, and so many nanoseconds, has waited in a queue. Trains of packets take
/// some microseconds longer where they are longer. A sender with a fifth of a full queue finds it.
const LONGER_PART: Nanos = 16;
const LONGER: Nanos = 10_000;
/// For so long the measurement holds; and from each shorter round trip on, as when another sender makes room.
const HOLDS: Nanos = 10_000_000_000;

/// The measurement of the path without this sender's part of a queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Drain {
    /// There is none.
    #[default]
    None,
    /// The window, which was `full`, is a part of it. The round trip of a packet that is sent after `begun` is the
    /// measurement, for no more than a part is under way then. If `left` bytes are acknowledged before, there is none.
    #[allow(missing_docs)]
    Begun { full: u64, begun: Nanos, left: u64 },
    /// A round trip took `least`. It is measured anew after `until`.
    #[allow(missing_docs)]
    Measured { least: Nanos, until: Nanos },
}

impl Drain {
    /// The window of `full` bytes is to be made small; its size for now.
    pub(crate) fn begin(&mut self, now: Nanos, full: u64) -> u64 {
        *self = Drain::Begun { full, begun: now, left: 2 * full };
        full / PART
    }

    /// The size that the window had before it was made small.
    #[inline]
    pub(crate) fn full(&self) -> Option<u64> {
        match *self {
            Drain::Begun { full, .. } => Some(full),
            _ => None,
        }
    }

    /// Whether packets wait in a queue at `now`; none if there is no measurement.
    pub(crate) fn has_queue(&self, now: Nanos, rtt: &Rtt) -> Option<bool> {
        match *self {
            Drain::Measured { least, until } if now < until => {
                Some(rtt.assumed() > least + least / LONGER_PART + LONGER)
            }
            _ => None,
        }
    }

    /// So many bytes have been acknowledged. Returns true if the measurement has failed.
    pub(crate) fn acknowledged(&mut self, bytes: u64) -> bool {
        let Drain::Begun { left, .. } = self else { return false };
        *left = left.saturating_sub(bytes);
        *left == 0
    }

    /// A packet that was sent at `sent` has been answered. Returns the size of the window before, if this is the
    /// measurement.
    pub(crate) fn sample(&mut self, now: Nanos, sent: Nanos) -> Option<u64> {
        let time = now.saturating_sub(sent);
        let full = match *self {
            Drain::Begun { full, begun, .. } if sent > begun => Some(full),
            Drain::Measured { least, .. } if time < least => None,
            _ => return None,
        };
        *self = Drain::Measured { least: time, until: now + HOLDS };
        full
    }
}
