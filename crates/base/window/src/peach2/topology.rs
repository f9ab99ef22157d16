//! The links between boards, and the route of a put from one board to another.

use vervain_config::Links;

/// Links that leave a board, each joined to another board. The fourth port leads to the board's own host.
pub(super) const PORTS: usize = 3;

/// A link that leaves a board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Link {
    /// The board.
    pub node: u32,
    /// Number of the link: 0 leads to the next board of a ring (E), 1 to the one before (W), 2 to the other ring (S).
    pub port: usize,
}

/// The links that a put passes from one node to another, in order: none to the own node, one if all boards are linked
/// to all.
pub(super) fn route(links: Links, nodes: u32, from: u32, to: u32) -> Vec<Link> {
    match links {
        _ if from == to => Vec::new(),
        Links::AllToAll => vec![Link { node: from, port: 0 }],
        Links::Rings => ring_route(nodes, from, to),
    }
}

/// The route in PEACH2's topology: two rings with equally many boards, board i of one joined to board i of the other;
/// one ring if the number of boards is odd, or too small for two. The route takes the shorter way along its own ring
/// first, then the link to the other ring.
fn ring_route(nodes: u32, from: u32, to: u32) -> Vec<Link> {
    let len = if nodes.is_multiple_of(2) && nodes > 2 { nodes / 2 } else { nodes };
    let (ring, place) = (from / len, from % len);
    let east = (to % len + len - place) % len;
    let (port, steps) = if east <= len - east { (0, east) } else { (1, len - east) };
    let at = |step: u32| (place + if port == 0 { step } else { len - step }) % len + ring * len;
    let mut links: Vec<Link> = (0..steps).map(|step| Link { node: at(step), port }).collect();
    if to / len != ring {
        links.push(Link { node: ring * len + to % len, port: 2 });
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The node to which a link leads.
    fn end(nodes: u32, link: Link) -> u32 {
        let len = if nodes.is_multiple_of(2) && nodes > 2 { nodes / 2 } else { nodes };
        let (ring, place) = (link.node / len, link.node % len);
        match link.port {
            0 => ring * len + (place + 1) % len,
            1 => ring * len + (place + len - 1) % len,
            _ => (1 - ring) * len + place,
        }
    }

    #[test]
    fn every_node_is_reached_by_links_that_are_there() {
        for nodes in 1..=64 {
            for (from, to) in (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to))) {
                let links = route(Links::Rings, nodes, from, to);
                let mut at = from;
                for link in &links {
                    assert_eq!(link.node, at, "{from} to {to} of {nodes}: {links:?}");
                    at = end(nodes, *link);
                }
                assert_eq!(at, to, "{nodes}: {links:?}");
                assert!(links.len() as u32 <= nodes / 4 + 1 + nodes % 2 * nodes / 4, "{nodes}: {links:?}");
            }
        }
    }

    #[test]
    fn two_rings_of_four_take_the_shorter_way() {
        let ports = |from, to| route(Links::Rings, 8, from, to).iter().map(|link| link.port).collect::<Vec<_>>();
        assert_eq!(ports(0, 1), [0]);
        assert_eq!(ports(0, 3), [1]);
        assert_eq!(ports(0, 2), [0, 0]);
        assert_eq!(ports(1, 5), [2]);
        assert_eq!(ports(3, 4), [0, 2]);
        assert_eq!(ports(6, 6), []);
        assert_eq!(route(Links::Rings, 2, 0, 1).len(), 1);
        assert_eq!(route(Links::AllToAll, 8, 0, 2), [Link { node: 0, port: 0 }]);
    }
}
