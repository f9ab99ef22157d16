//! Memory that a rank holds for its connections, from the types and constants of this crate.

use crate::devices::Devices;
use crate::options::Options;
use crate::protocol::{BLOCK, PoolBytes, fetched};
use crate::{door, introduction, port};

/// Memory that a rank holds for one purpose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// Which kind.
    pub kind: Kind,
    /// Its purpose, for people.
    pub what: &'static str,
    /// The number and kind of its parts, for people.
    pub made_of: String,
    /// Bytes, at most.
    pub bytes: u64,
    /// True if it grows with the number of ranks.
    pub grows: bool,
}

/// Kinds of what a mesh holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The connections' side in software.
    Connections,
    /// Addresses of other ranks.
    Addresses,
    /// Addresses of leaders of the directory.
    Leaders,
    /// Connections that were closed.
    Closed,
    /// The door's memory.
    Door,
    /// Receives for commands.
    Commands,
    /// A leader's directory.
    Directory,
    /// Values fetched from the job's store.
    Fetched,
}

impl Kind {
    /// Returns true if each port has memory of it.
    pub fn is_of_port(self) -> bool {
        matches!(self, Kind::Door | Kind::Commands)
    }
}

/// The memory that one of `ranks` ranks holds in a mesh with these options at `ports` ports, at most. It does not count
/// the objects of the devices, nor the bytes that a launcher's library adds to the values that it keeps.
pub fn memory(ranks: u32, options: &Options, ports: usize) -> Vec<Holding> {
    let places = options.connections;
    let leaders = ranks.div_ceil(BLOCK);
    let fetched = fetched(leaders);
    let commands = options.commands as usize * if options.shared { 1 } else { places };
    let pool = PoolBytes::of(places, leaders as usize);
    let holding =
        |kind, what, made_of: String, bytes: usize, grows| Holding { kind, what, made_of, bytes: bytes as u64, grows };
    vec![
        holding(
            Kind::Connections,
            "connections",
            format!("{places} places in the pool"),
            pool.places + Devices::bytes(places, ports),
            false,
        ),
        holding(Kind::Addresses, "addresses of ranks", "a cache of fixed size".into(), pool.known, false),
        holding(Kind::Leaders, "addresses of leaders", format!("{leaders}"), pool.leaders, true),
        holding(Kind::Closed, "connections that were closed", "the last ones".into(), pool.closed, false),
        holding(Kind::Door, "datagrams of handshakes", format!("{ports} door(s)"), ports * door::BYTES, false),
        holding(
            Kind::Commands,
            "receives for commands",
            format!("{} of {} B", commands * ports, port::slot_bytes(options)),
            ports * commands * port::slot_bytes(options),
            false,
        ),
        holding(Kind::Directory, "directory, of leaders only", format!("{BLOCK} ranks"), pool.directory, false),
        holding(
            Kind::Fetched,
            "values in the launcher's library, of leaders only",
            format!("{fetched} leaders, {} B each", introduction::leader_bytes()),
            fetched as usize * introduction::leader_bytes(),
            true,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_learned_of_leaders_grows_with_ranks() {
        let options = Options::default();
        let (few, many) = (memory(1000, &options, 1), memory(1 << 20, &options, 1));
        for (few, many) in few.iter().zip(&many) {
            assert_eq!(many.grows, many.bytes > few.bytes, "{many:?}");
        }
        let fetched = |all: &[Holding]| all.iter().find(|row| row.kind == Kind::Fetched).map(|row| row.bytes);
        // Those of a group of 32, and one of 32 others.
        assert_eq!(fetched(&many), fetched(&few).map(|one| one * 63));
    }

    #[test]
    fn connections_and_ports_count() {
        let options = Options::default();
        let bytes = |connections, ports| {
            let all = memory(1000, &Options { connections, ..options.clone() }, ports);
            move |kind| all.iter().find(|row| row.kind == kind).map(|row| row.bytes).unwrap()
        };
        let (one, twice, ports) = (bytes(256, 1), bytes(512, 1), bytes(256, 2));
        assert_eq!(twice(Kind::Connections), 2 * one(Kind::Connections));
        assert_eq!(ports(Kind::Commands), 2 * one(Kind::Commands));
        assert_eq!(one(Kind::Commands), u64::from(options.commands) * options.command_bytes as u64);
    }
}
