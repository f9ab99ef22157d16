//! The options of a mesh, and its events.

use std::time::Duration;

use crate::address::MAX_DEVICES;
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
    /// Receives for commands, which all connections of a port share, or with [`shared`](Options::shared) off those of
    /// each.
    pub commands: u32,
    /// True if connections share them, by an SRQ; else memory for them grows with the number of connections.
    pub shared: bool,
    /// The number of shared receives that are posted from the start; the owner posts the others with
    /// [`Mesh::post_commands`](crate::Mesh::post_commands).
    pub posted: u32,
    /// The longest command, in bytes.
    pub command_bytes: usize,
    /// The most bytes that a command is to carry inline, if devices can. The device's own limit is found by trying,
    /// since no query returns it.
    pub max_inline: u32,
    /// True if the door's completions go into a CQ of its own, [`Port::door_cq`](crate::Port::door_cq), rather than
    /// into that of commands: for owners with a thread that waits for the door and another one for the commands.
    pub own_door_cq: bool,
    /// The most devices that are used of those that are there, from 1 to [`MAX_DEVICES`].
    pub most_devices: usize,
    /// The devices by their names, at most [`MAX_DEVICES`]; none: the usable ones, in the library's
    /// order.
    pub devices: Vec<String>,
    /// Time for which a peer may leave a datagram of the mesh's unanswered: one that asks for an address, opens or
    /// closes a connection.
    pub give_up: Duration,
    /// Time for which the peer of a connection may be silent before requests fail; they take up to four times as long
    /// to fail ([`PathOptions::outlasting`](vervain_rdma::PathOptions::outlasting)).
    pub silence: Duration,
}

impl Default for Options {
    /// 256 connections of 16 sends, 24 notices; 128 commands of 64 bytes, which may be inline; all usable devices; 30 s
    /// and 0.5 s.
    fn default() -> Self {
        Self {
            connections: 256,
            sends: 16,
            notices: 24,
            commands: 128,
            shared: true,
            posted: u32::MAX,
            command_bytes: 64,
            max_inline: 64,
            own_door_cq: false,
            most_devices: MAX_DEVICES,
            devices: Vec::new(),
            give_up: Duration::from_secs(30),
            silence: Duration::from_millis(500),
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

/// A change of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It is open, by this side's wish or the peer's: requests may be posted. It is not closed before this event was
    /// taken.
    Opened(Link),
    /// It is closed, and its place free; to have it again it must be asked for again. Requests that came while it
    /// closed are kept.
    Closed {
        /// The connection that was.
        link: Link,
        /// To which rank.
        rank: u32,
        /// Its color.
        color: u32,
    },
    /// It cannot be made or closed, and the job cannot go on.
    Failed {
        /// The rank that is not reached; the own one where this process has no place in the job.
        rank: u32,
        /// Its color.
        color: u32,
        /// The reason.
        error: Error,
    },
}

#[cfg(test)]
mod tests {
    use vervain_rdma::PathOptions;

    use super::*;

    #[test]
    fn connections_have_the_usual_timeout_unless_told_otherwise() {
        let usual = PathOptions::default();
        assert_eq!(usual.outlasting(Options::default().silence), usual);
    }
}
