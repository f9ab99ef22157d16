//! What the owner of a mesh can set, and what it hears from it.

use std::time::Duration;

use crate::error::Error;

/// The longest hello, in bytes.
pub const MAX_HELLO: usize = 64;

/// Sizes and times of a mesh. Ranks may differ in them, except where the protocol above wants them alike.
#[derive(Debug, Clone)]
pub struct Options {
    /// Connections that may be open at once, at least 2.
    pub connections: usize,
    /// Requests in each of the two send queues of a connection.
    pub sends: u32,
    /// Receives on the data lane of a connection: immediate data that the peer may have under way.
    pub notices: u32,
    /// Receives for commands, shared by all connections of a port.
    pub commands: u32,
    /// The longest command, in bytes.
    pub command_bytes: usize,
    /// The devices by their names, at most [`MAX_DEVICES`](crate::MAX_DEVICES); none: the usable ones, in the library's order.
    pub devices: Vec<String>,
    /// How long a peer may be silent that was asked something.
    pub give_up: Duration,
}

impl Default for Options {
    /// 256 connections of 16 sends, 24 notices; 128 commands of 64 bytes; 30 s.
    fn default() -> Self {
        Self {
            connections: 256,
            sends: 16,
            notices: 24,
            commands: 128,
            command_bytes: 64,
            devices: Vec::new(),
            give_up: Duration::from_secs(30),
        }
    }
}

/// A connection: a place in the pool, and which life of it. The place is used again, a life never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Link {
    /// The place, below [`Options::connections`].
    pub index: u32,
    /// How often the place had been used before.
    pub life: u32,
}

/// What has happened to a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It is open, by this side's wish or the peer's: requests may be posted. It is not closed before this event was taken.
    Opened(Link),
    /// It is closed, and its place free; who wants it again says so again. What was wanted while it closed is not forgotten.
    Closed {
        /// The connection that was.
        link: Link,
        /// To which rank.
        rank: u32,
        /// By which colour.
        colour: u32,
    },
    /// It cannot be made or closed, and the job cannot go on.
    Failed {
        /// The rank that is not reached; the own one where this process has no place in the job.
        rank: u32,
        /// By which colour.
        colour: u32,
        /// The reason.
        error: Error,
    },
}
