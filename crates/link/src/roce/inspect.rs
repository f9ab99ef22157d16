//! What the link counts, for whoever looks at it from outside, and a way in for packets beside the sockets.

use super::net::{Datagram, Port};
use super::rx::Receiver;
use super::{Engine, LocalPort, Roce};
use std::net::IpAddr;
use std::sync::Arc;
use vervain_hca::arena::layout::slot_of;
use vervain_transport::{RequesterCounters, ResponderCounters};

impl Roce {
    /// The port of a local address, with its counters; none if no QP has needed it yet.
    pub fn port(&self, ip: IpAddr) -> Option<Arc<Port>> {
        self.engine.port(ip).map(|port| Arc::clone(&port.port))
    }

    /// Packets that came to this address for process slots that nobody has.
    pub fn unowned(&self, ip: IpAddr) -> Option<u64> {
        self.engine.port(ip).map(|port| port.sharing.counters().unowned.get())
    }

    /// What the two halves of a connected QP have counted. The requester's are none before its QP was ready to send.
    pub fn counters(&self, qpn: u32) -> Option<(ResponderCounters, Option<RequesterCounters>)> {
        let connection = self.engine.connections.get(qpn)?;
        Some((connection.counters(), connection.requester_counters()))
    }

    /// What this process may have under way of UC and UD messages to the process with QP `qpn` at `ip`, and what it has, in
    /// bytes as a socket counts them; the first is none if the process does not answer probes.
    pub fn credit(&self, ip: IpAddr, qpn: u32) -> Option<(Option<u64>, u64)> {
        self.engine.paces.find((ip, slot_of(qpn))).map(|pace| pace.account())
    }

    /// Takes packets as if the socket of local address `ip` had given them, and says what is to be said to them. False if
    /// there is no such port.
    pub fn take_in<'a>(&self, ip: IpAddr, packets: impl IntoIterator<Item = Datagram<'a>>) -> bool {
        let Some(port) = self.engine.port(ip) else { return false };
        let mut rx = self.engine.receiving.lock();
        self.engine.take_in(&mut rx, &port, packets);
        true
    }
}

impl Engine {
    fn port(&self, ip: IpAddr) -> Option<Arc<LocalPort>> {
        let mut ports = Vec::new();
        self.ports.refresh(&mut ports);
        ports.into_iter().find(|port| port.port.ip() == ip)
    }

    fn take_in<'a>(&self, rx: &mut Receiver, port: &Arc<LocalPort>, packets: impl IntoIterator<Item = Datagram<'a>>) {
        self.ports.refresh(rx.ports());
        for datagram in packets {
            self.arrived(rx, port, &datagram);
        }
        self.settle(rx, port);
    }
}
