//! Hosts whose packets go through rings in memory: nothing is lost, and what a host does not take keeps others waiting.

use vervain_transport::Nanos;

use crate::plan::Service;
use crate::world::{Event, World};

impl World {
    /// Until when the host of an event does nothing, if it is so late.
    pub fn stalled(&self, event: &Event) -> Option<Nanos> {
        let host = match event {
            Event::Post { end } | Event::Timer { end } => self.ends[*end].plan.host,
            Event::Progress { host } | Event::Acknowledge { host } | Event::Resume { host } => *host,
            _ => return None,
        };
        let (from, to) = self.hosts[host].plan.stalls?;
        (from..to).contains(&self.now).then_some(to)
    }

    /// A packet of host `from` is taken out of its ring, which that learns of a little later.
    pub fn take_out(&mut self, host: usize, from: usize) {
        if let Some(ring) = self.hosts[from].port.rings.get_mut(host) {
            ring.taken += 1;
            assert!(ring.taken <= ring.put && ring.put - ring.taken <= ring.slots, "{ring:?} holds too much");
            let count = ring.taken;
            self.at(self.now + self.plan.latency, Event::Taken { host: from, by: host, count });
        }
    }

    /// There is room in the ring to host `by`.
    pub fn taken(&mut self, host: usize, by: usize, count: u64) {
        let ring = &mut self.hosts[host].port.rings[by];
        let was_full = ring.is_full();
        ring.known = count;
        if was_full {
            self.resume(host);
        }
    }

    /// QP `index` has more to send, and its host no room. The host learns of room in a ring.
    pub fn try_again(&mut self, host: usize, index: usize) {
        let (to, _) = self.peer(index);
        let is_full = self.hosts[host].port.rings.get(to).is_some_and(|ring| ring.is_full());
        if !is_full {
            self.resume(host);
        }
    }

    /// If answers are prompt: the PSN up to which the peer of QP `index` has executed everything.
    pub fn executed_by_peer(&self, index: usize) -> Option<u32> {
        let peer = &self.ends[self.ends[index].peer];
        let knows = self.plan.rings?.prompt && peer.target.service != Service::Unreliable;
        (knows && !peer.dead).then(|| peer.responder.expected_psn())
    }

    /// Checks that no probe was sent, and that no window has changed.
    pub fn check_rings(&self) {
        let Some(rings) = self.plan.rings else { return };
        assert!(self.ends.iter().all(|end| end.requester.counters().probes == 0), "probes of what cannot be lost");
        let windows = || self.hosts.iter().flat_map(|host| &host.windows);
        assert!(windows().all(|window| window.size() >= rings.window), "a window has become smaller");
    }
}
