//! The names by which processes of Vervain find each other, in the abstract namespace of unix sockets, and who has
//! them.
//!
//! The kernel gives such a name to the first who asks for it, whatever user that is, in the whole network namespace. So
//! another user can take names before this one does. Nothing is believed of such a socket; what is left to do is to
//! lose no time with it, and to say whose it is.

mod addresses;
mod holders;
pub mod parking;
pub mod process;

pub use addresses::{AddressMap, BadMap};
pub use holders::{Holder, Other, holders, others, peer, process_with};

use std::net::{Ipv6Addr, SocketAddr};

/// The listener of the process that has slot `slot`; sequenced packets.
pub fn slot(uid: u32, slot: u32) -> String {
    format!("{}{slot}", slots(uid))
}

/// The prefix of all slots' names of a user.
pub fn slots(uid: u32) -> String {
    format!("vervain/{uid}/")
}

/// The listener of process `pid`, which has opened its devices as user `uid`, and can become another user: a peer sees
/// `uid` by it while the process is another user's. Sequenced packets. `unique`: pid namespaces may have one number
/// each, and share a network.
pub fn opening(uid: u32, pid: u32, unique: u64) -> String {
    format!("{}{unique:016x}", openings(uid, pid))
}

/// The prefix of the names of [`opening`].
pub fn openings(uid: u32, pid: u32) -> String {
    format!("{}opened/{pid}/", slots(uid))
}

/// The socket for management datagrams to the process that has slot `slot`; datagrams.
pub fn management(uid: u32, slot: u32) -> String {
    format!("{}cm/{slot}", slots(uid))
}

/// The socket for management datagrams that ask for service `service`, of the process that has claimed it, at
/// `address`, a GID, or at any; datagrams.
pub fn service(uid: u32, service: u64, address: Option<Ipv6Addr>) -> String {
    let address = address.map_or_else(|| "*".to_owned(), |address| address.to_string());
    format!("{}cm/{service:016x}/{address}", slots(uid))
}

/// The listener of the process that changes the group of sockets of an address; sequenced packets.
pub fn turn(at: SocketAddr) -> String {
    format!("{UDP}{at}")
}

/// The socket for messages to the member of the group that has slot `slot`; datagrams.
pub fn mailbox(at: SocketAddr, slot: u32) -> String {
    format!("{}{slot}", mailboxes(at))
}

/// The prefix of the names of all mailboxes of an address.
pub fn mailboxes(at: SocketAddr) -> String {
    format!("{UDP}{at}/")
}

/// The prefix of the names of turns and mailboxes of all addresses.
pub const UDP: &str = "vervain/udp/";

/// The remedy for names that another user has.
pub const REMEDY: &str = "it has to end, or this program to run in a network namespace of its own";
