//! The ICRC's view of who sends to whom.

use std::net::SocketAddr;
use vervain_wire::icrc::Flow;

/// The flow of the last packet, as most others go the same way: it takes as long to make as the ICRC of a small packet.
#[derive(Default)]
pub struct LastFlow(Option<(SocketAddr, SocketAddr, Flow)>);

impl LastFlow {
    /// The flow of packets between two addresses, as they are on the wire; None if they are of different families.
    #[inline]
    pub fn get(&mut self, from: SocketAddr, to: SocketAddr) -> Option<Flow> {
        if let Some((last_from, last_to, flow)) = self.0
            && (last_from, last_to) == (from, to)
        {
            return Some(flow);
        }
        let made = flow(from, to)?;
        self.0 = Some((from, to, made));
        Some(made)
    }
}

/// For packets between two addresses, as they are on the wire; None if they are of different families.
#[inline]
pub fn flow(from: SocketAddr, to: SocketAddr) -> Option<Flow> {
    match (from, to) {
        (SocketAddr::V4(from), SocketAddr::V4(to)) => Some(Flow::v4((*from.ip(), from.port()), (*to.ip(), to.port()))),
        (SocketAddr::V6(from), SocketAddr::V6(to)) => Some(Flow::v6((*from.ip(), from.port()), (*to.ip(), to.port()))),
        _ => None,
    }
}
