//! The ICRC's view of who sends to whom.

use std::net::SocketAddr;
use vervain_wire::icrc::Flow;

/// For packets between two addresses, as they are on the wire; None if they are of different families.
#[inline]
pub fn flow(from: SocketAddr, to: SocketAddr) -> Option<Flow> {
    match (from, to) {
        (SocketAddr::V4(from), SocketAddr::V4(to)) => Some(Flow::v4((*from.ip(), from.port()), (*to.ip(), to.port()))),
        (SocketAddr::V6(from), SocketAddr::V6(to)) => Some(Flow::v6((*from.ip(), from.port()), (*to.ip(), to.port()))),
        _ => None,
    }
}
