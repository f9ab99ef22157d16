//! The RoCE link: QPs whose peer is on another host, as RoCE v2 packets over ordinary UDP sockets (DESIGN decision 12).
//!
//! `net` has the sockets, `vervain-transport` the protocol, and `vervain-carrier` joins it to the device model. Here
//! a QP's two ends meet sockets: `outbound` sends for the requester, `connection` answers, `rx` delivers packets to
//! them, `poll` decides which thread does so, and when. `pacing` and `rx::no_receive` keep UC and UD messages from
//! being lost when a receiver falls behind.

pub(crate) mod address;
mod backlog;
mod connection;
mod datagrams;
mod idle_probe;
mod mads;
mod outbound;
mod pacing;
mod packet_sink;
mod paths;
mod poll;
mod poll_rate;
mod poll_state;
mod ports;
mod rx;
mod timers;
mod waiters;

pub mod net;
pub mod port_sharing;

use address::{Address, ip_of};
use connection::Connection;
use datagrams::Datagrams;
use mads::Mads;
use net::{Arrival, Port, Reach};
use pacing::Paces;
use packet_sink::Destination;
use paths::Paths;
use poll_state::PollState;
use ports::{LocalPort, Ports};
use rx::{Addressees, Receiver};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Duration;
use vervain_carrier::by_qp::ByQp;
use vervain_hca::arena::layout::slot_of;
use vervain_hca::device::Device;
use vervain_hca::device::gids::is_of_this_host;
use vervain_hca::device::lids::is_of_infiniband;
use vervain_hca::host::address_map::first_known;
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::process::Process;
use vervain_hca::process::poller::{EventHandler, Poller};
use vervain_hca::qp::carrier::{self, Carrier, Datagram, Mad, ServiceClaim};
use vervain_hca::{AhAttr, Error, Gid, Qp, QpAttr, QpType, Result};
use vervain_qp1::Gsi;
use vervain_transport::{RequesterCounters, ResponderCounters};

/// The RoCE carrier of one process, in parts.
pub struct Roce {
    me: Weak<Roce>,
    devices: Vec<Arc<Device>>,
    ports: Ports,
    addressees: Addressees,
    receiving: OwnerLock<Receiver>,
    poll_state: Arc<PollState>,
    reach: Reach,
    /// Packets that others have received may have been kept while the process was stopped, or own ones when it was
    /// parked.
    has_kept: AtomicBool,
    /// Packets that lay in the sockets when these were given up.
    kept: OwnerLock<Vec<KeptPacket>>,
    mads: Arc<Mads>,
}

/// A packet that lay in a socket when this was given up: whose port, from whom, its bytes.
type KeptPacket = (Arc<LocalPort>, Arrival, Vec<u8>);

impl Roce {
    /// The carrier of a process that has no QP yet; sockets are opened at the first need.
    ///
    /// `alone`: true if there is no other link to processes of this host.
    pub fn new(devices: &[Arc<Device>], alone: bool, gsi: Arc<Gsi>) -> Result<Arc<Roce>> {
        let ports = Ports::new(alone)?;
        let addressees = Addressees {
            connections: ByQp::default(),
            paths: Paths::default(),
            datagrams: Datagrams::new(!alone),
            paces: Paces::default(),
        };
        Ok(Arc::new_cyclic(|me| Roce {
            me: Weak::clone(me),
            devices: devices.to_vec(),
            ports,
            addressees,
            receiving: OwnerLock::default(),
            poll_state: Arc::default(),
            reach: Reach::default(),
            has_kept: AtomicBool::new(false),
            kept: OwnerLock::default(),
            mads: Arc::new(Mads::new(gsi)),
        }))
    }

    /// The port of a local address, with its counters; none if no QP has needed it yet.
    pub fn port(&self, ip: IpAddr) -> Option<Arc<Port>> {
        self.local_port(ip).map(|port| Arc::clone(&port.port))
    }

    /// Packets that came to this address for process slots that nobody has.
    pub fn unowned(&self, ip: IpAddr) -> Option<u64> {
        self.local_port(ip).map(|port| port.sharing.counters().unowned.get())
    }

    /// Counters of the two halves of a connected QP; the requester's are None before its QP was ready to send.
    pub fn counters(&self, qpn: u32) -> Option<(ResponderCounters, Option<RequesterCounters>)> {
        let connection = self.addressees.connections.get(qpn)?;
        Some((connection.responder.counters(), connection.requester_counters()))
    }

    /// Bytes, as a socket counts them, of UC and UD messages that this process may have and has under way to the
    /// process with QP `qpn` at `ip`; the first is None if that process does not answer probes.
    pub fn credit(&self, ip: IpAddr, qpn: u32) -> Option<(Option<u64>, u64)> {
        self.addressees.paces.find((ip, slot_of(qpn))).map(|pace| pace.account())
    }

    /// Returns true if packets or requests wait for others: the next poll, or the progress thread, sends them.
    pub fn has_corked(&self) -> bool {
        self.poll_state.is_corked()
    }

    /// Bytes that may be under way to the peer process of a connected QP, and that are.
    pub fn window(&self, qpn: u32) -> Option<(u64, u64)> {
        let connection = self.addressees.connections.get(qpn)?;
        let window = connection.path.window.lock();
        Some((window.size(), window.in_flight()))
    }

    /// Handles packets as if the socket of local address `ip` had received them, and sends the packets that result.
    /// Returns false if there is no such port.
    pub fn take_in<'a>(&self, ip: IpAddr, packets: impl IntoIterator<Item = net::Datagram<'a>>) -> bool {
        let Some(port) = self.local_port(ip) else { return false };
        let mut rx = self.receiving.lock();
        self.ports.refresh(rx.ports());
        for datagram in packets {
            self.arrived(&mut rx, &port, &datagram);
        }
        self.settle(&mut rx, &port);
        true
    }
}

impl Roce {
    /// The local and the remote address of an address vector. EINVAL when they are not of one family.
    fn addresses(&self, device: u32, ah: &AhAttr) -> Result<(Address, IpAddr)> {
        let device = &self.devices[device as usize];
        let (gid, interface) = device
            .source(ah.grh.sgid_index.into())
            .ok_or_else(|| Error::invalid(format!("the port has no GID at index {}", ah.grh.sgid_index)))?;
        // A program may know a host by two addresses: one that it has had, and what that has become. There is one for
        // all that is counted.
        let (local, remote) = (ip_of(&gid), first_known(ip_of(&ah.grh.dgid)));
        if is_of_infiniband(&ah.grh.dgid) {
            return Err(Error::invalid(format!(
                "the peer's address {remote} is of an InfiniBand port, and this port is Ethernet; use one --link-layer on \
                 both sides"
            )));
        }
        if local.is_ipv4() != remote.is_ipv4() {
            return Err(Error::invalid(format!(
                "GID index {} is {local}, which cannot send to {remote}; choose the index of an address of its family",
                ah.grh.sgid_index
            )));
        }
        Ok((Address { ip: local, interface }, remote))
    }

    /// All addresses of the QP's device.
    fn own_addresses(&self, qp: &Qp) -> Vec<Address> {
        let device = &self.devices[qp.device_index() as usize];
        let gids = device.gids(1);
        gids.iter().map(|e| Address { ip: ip_of(&e.gid), interface: e.ifindex }).collect()
    }

    /// The port of a local address, if it is open.
    fn local_port(&self, ip: IpAddr) -> Option<Arc<LocalPort>> {
        let mut ports = Vec::new();
        self.ports.refresh(&mut ports);
        ports.into_iter().find(|port| port.port.ip() == ip)
    }
}

impl Carrier for Roce {
    fn carries(&self, device: &Device, _ah: &AhAttr) -> bool {
        device.is_ethernet()
    }

    fn connect(&self, qp: &Arc<Qp>, attr: &QpAttr) -> Result<Arc<dyn carrier::Connection>> {
        let (local, remote) = self.addresses(qp.device_index(), &attr.ah)?;
        self.reach.check(local.ip, local.interface, remote, Duration::ZERO)?;
        let port = self.ports.open(qp.process(), local)?;
        let within_host = is_of_this_host(&attr.ah.grh.dgid);
        let path = self.addressees.paths.to(remote, within_host, attr.dest_qp_num, 128 << attr.path_mtu);
        if Arc::strong_count(&path) == 1 {
            log::info!("QP {:#x} is connected to {remote} in packets", qp.qp_num());
        }
        let pace = (qp.qp_type() == QpType::Uc).then(|| self.addressees.paces.with(remote, attr.dest_qp_num));
        let connection = Arc::new(Connection::new(Arc::clone(&self.poll_state), qp, attr, port, remote, path, pace));
        self.addressees.connections.insert(qp.qp_num(), Arc::clone(&connection));
        Ok(connection)
    }

    fn resolve(&self, device: u32, ah: &AhAttr, patience: Duration) -> Result<()> {
        let (local, remote) = self.addresses(device, ah)?;
        self.reach.check(local.ip, local.interface, remote, patience)
    }

    fn register_qp(&self, qp: &Arc<Qp>) -> Result<()> {
        self.addressees.datagrams.listeners.register_qp(qp);
        let (mut opened, mut refused) = (false, None);
        for address in self.own_addresses(qp) {
            match self.ports.open(qp.process(), address) {
                Ok(port) => {
                    // A datagram brings its IP header's hop limit and traffic class with it.
                    port.port.tell_hop_limits();
                    opened = true;
                }
                Err(e) => {
                    log::info!("QP {:#x} receives no datagrams at {}: {e}", qp.qp_num(), address.ip);
                    refused.get_or_insert(e);
                }
            }
        }
        refused.filter(|_| !opened).map_or(Ok(()), |e| {
            self.addressees.datagrams.listeners.unregister_qp(qp.qp_num());
            Err(e)
        })
    }

    fn check_source(&self, process: &'static Process, device: u32, ah: &AhAttr) -> Result<()> {
        self.addresses(device, ah).map_or(Ok(()), |(local, _)| self.ports.check(process, local))
    }

    fn unregister_qp(&self, qpn: u32) {
        self.addressees.datagrams.listeners.unregister_qp(qpn);
        if let Some(connection) = self.addressees.connections.remove(qpn)
            && let Some(qp) = connection.qp.upgrade()
        {
            connection.close(&qp);
        }
    }

    fn send_datagram(&self, qp: &Qp, datagram: &Datagram<'_>) -> Option<u64> {
        let opened = self.addresses(qp.device_index(), datagram.ah).and_then(|(local, remote)| {
            let port = self.ports.open_for_datagram(qp.process(), local)?;
            Ok((port, (local.ip, remote)))
        });
        let Addressees { datagrams, paces, .. } = &self.addressees;
        match opened {
            Ok((port, addresses)) => datagrams.send(paces, qp, datagram, &port, addresses),
            Err(e) => {
                // Datagrams may be lost; this one is.
                log::info!("QP {:#x}: a datagram is dropped: {e}", qp.qp_num());
                None
            }
        }
    }

    fn send_mad(&self, process: &'static Process, device: u32, ah: &AhAttr, mad: &Mad) -> Result<()> {
        let (local, remote) = self.addresses(device, ah)?;
        let to = Destination::new(remote, &ah.grh);
        let port = match self.ports.find(local) {
            Some(port) => port,
            // Packets of the progress thread leave when the port is open.
            None if process.progress.is_this_thread() => {
                let Some(me) = self.me.upgrade() else { return Ok(()) };
                return self.mads.send_when_open(move || me.ports.open_for_datagram(process, local), to, mad);
            }
            None => self.ports.open_for_datagram(process, local)?,
        };
        self.mads.send(&port, to, mad);
        Ok(())
    }

    fn serve(&self, process: &'static Process, slot: u32, services: &[ServiceClaim]) -> Result<()> {
        self.ports.serve(slot, services)?;
        let own = || self.devices.iter().flat_map(|device| device.gids(1));
        // The addresses of the services are opened. An error where none of a service is to be had.
        for claim in services {
            let (mut opened, mut refused) = (false, None);
            for entry in own().filter(|entry| claim.address.is_none_or(|address| address == entry.gid)) {
                let address = Address { ip: ip_of(&entry.gid), interface: entry.ifindex };
                match self.ports.open_for_datagram(process, address) {
                    Ok(_) => opened = true,
                    Err(e) => {
                        log::info!("no MADs come by packets at {}: {e}", address.ip);
                        refused.get_or_insert(e);
                    }
                }
            }
            refused.filter(|_| !opened).map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    fn flush(&self) {
        self.ports.each(LocalPort::flush);
    }

    fn join(&self, group: &Gid, qp: &Qp) -> Result<()> {
        let (group, qpn) = (ip_of(group), qp.qp_num());
        if !self.addressees.datagrams.listeners.groups.join(group, qpn) {
            return Ok(());
        }
        // On all addresses of its family, one for each interface: the sockets of its other addresses would get copies.
        let mut addresses = self.own_addresses(qp);
        addresses.retain(|a| a.ip.is_ipv4() == group.is_ipv4());
        addresses.sort_by_key(|a| a.interface);
        addresses.dedup_by_key(|a| a.interface);
        for address in addresses {
            let joined = self.ports.open(qp.process(), address).and_then(|port| self.ports.join(&port, group));
            if let Err(e) = joined {
                log::info!("QP {qpn:#x} is not in the group {group} at {}: {e}", address.ip);
            }
        }
        Ok(())
    }

    fn leave(&self, group: &Gid, qpn: u32) {
        let group = ip_of(group);
        if self.addressees.datagrams.listeners.groups.leave(group, qpn) {
            self.ports.each(|port| port.port.leave(group));
        }
    }
}

impl EventHandler for Roce {
    fn events_fd(&self) -> Option<RawFd> {
        Some(self.ports.control_fd().as_raw_fd())
    }

    /// Lets other processes into the ports, and takes packets of this process that came to them.
    fn handle_events(&self, _process: &'static Process) {
        self.adopt_misrouted();
    }

    fn leave(&self) -> Result<()> {
        self.leave_ports()
    }

    fn rejoin(&self) -> Result<()> {
        self.rejoin_ports()
    }
}

impl Poller for Roce {
    fn expect_slot(&self, slot: u32) -> Result<()> {
        self.ports.add_slot(slot)
    }

    fn poll(&self, process: &'static Process) -> bool {
        self.poll_packets(process)
    }

    fn wait_for(&self, process: &'static Process, fd: RawFd) -> Result<()> {
        self.wait_for_packets(process, fd)
    }

    fn attend(&self, process: &'static Process) -> (bool, Option<u64>) {
        self.come_by(process)
    }

    fn packet_fd(&self) -> Option<RawFd> {
        self.ports.packet_fd()
    }

    fn take_in(&self, process: &'static Process) -> bool {
        self.take_all_in(process)
    }

    fn shutdown(&self) -> bool {
        self.send_last()
    }
}
