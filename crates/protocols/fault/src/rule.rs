//! One rule of a configuration: in which direction, to which packets, how often, what happens.

use std::fmt;

use crate::Nanos;
use crate::chance::Probability;
use crate::selector::Selector;
use crate::units::Span;

/// Which way packets go, seen from the one who has the faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Packets that are sent.
    Transmit,
    /// Packets that arrive.
    Receive,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Transmit => "tx",
            Self::Receive => "rx",
        })
    }
}

/// The change that a rule makes to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// It is lost, and with it the next packets, so many in all.
    Drop(Span<u64>),
    /// It arrives a second time, so much later.
    Duplicate(Span<Nanos>),
    /// One to three of its bits are turned.
    Corrupt,
    /// It and all behind it are late.
    Delay(Span<Nanos>),
    /// It is late, and others overtake it.
    Reorder(Span<Nanos>),
}

/// A rule about single packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) direction: Direction,
    pub(crate) action: Action,
    pub(crate) probability: Probability,
    pub(crate) selector: Option<Selector>,
}
