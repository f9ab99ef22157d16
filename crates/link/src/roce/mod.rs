//! The RoCE link: QPs whose peer is on another host, as RoCE v2 packets over ordinary UDP sockets (DESIGN decision 12).
//!
//! `net` has the sockets, `vervain-transport` the protocol, and [`crate::endpoint`] joins it to the device model. Here a QP's
//! two ends meet sockets: `outbound` sends for the requester, `connection` answers, `rx` leads packets to them, `poll` says which
//! thread does so, and when. `pacing` and `rx::no_receive` keep UC and UD messages from being lost when a receiver falls behind.

pub(crate) mod address;
mod backlog;
mod connection;
mod connections;
mod datagrams;
mod idle_probe;
mod inspect;
mod management;
mod outbound;
mod pacing;
mod packet_sink;
mod poll;
mod poll_rate;
mod poll_state;
mod ports;
mod rx;
mod timers;

pub mod net;
pub mod port_sharing;

use crate::gsi::Gsi;
use address::{Address, ip_of};
use connection::Connection;
use connections::Connections;
use datagrams::Datagrams;
use net::{Arrival, Reach};
use pacing::Paces;
use poll_state::PollState;
use ports::{LocalPort, Ports};
use rx::Receiver;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;
use vervain_hca::device::Device;
use vervain_hca::device::lids::is_of_infiniband;
use vervain_hca::host::address_map::first_known;
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::process::Process;
use vervain_hca::process::poller::{EventHandler, Poller};
use vervain_hca::qp::carrier::{self, Carrier, Datagram, Mad, ServiceClaim};
use vervain_hca::{AhAttr, Error, Gid, Qp, QpAttr, QpType, Result};

/// The RoCE carrier of one process.
pub struct Roce {
    engine: Arc<Engine>,
}

/// What all parts of the carrier share.
struct Engine {
    devices: Vec<Arc<Device>>,
    ports: Ports,
    connections: Connections,
    datagrams: Datagrams,
    /// What UC and UD messages wait for.
    paces: Paces,
    receiving: OwnerLock<Receiver>,
    poll_state: Arc<PollState>,
    reach: Reach,
    /// Packets that others have received may have been kept while the process was stopped, or own ones when it was parked.
    has_kept: AtomicBool,
    /// Packets that lay in the sockets when these were given up.
    kept: OwnerLock<Vec<KeptPacket>>,
    /// Who takes what is for QP 1.
    gsi: Arc<Gsi>,
    /// PSN of the next packet from there.
    management_psn: AtomicU32,
    /// A thread opens a port for what the progress thread has sent from there.
    is_opening_port: AtomicBool,
}

/// A packet that lay in a socket when this was given up: whose port, from whom, its bytes.
type KeptPacket = (Arc<LocalPort>, Arrival, Vec<u8>);

impl Roce {
    /// The carrier of a process that has no QP yet; sockets are opened when the first one needs them.
    ///
    /// `alone` says that there is no other way to processes of this host.
    pub(crate) fn new(devices: &[Arc<Device>], alone: bool, gsi: Arc<Gsi>) -> Result<Roce> {
        let engine = Engine {
            devices: devices.to_vec(),
            ports: Ports::new(alone)?,
            connections: Connections::default(),
            datagrams: Datagrams::default(),
            paces: Paces::default(),
            receiving: OwnerLock::default(),
            poll_state: Arc::default(),
            reach: Reach::default(),
            has_kept: AtomicBool::new(false),
            kept: OwnerLock::default(),
            gsi,
            management_psn: AtomicU32::new(0),
            is_opening_port: AtomicBool::new(false),
        };
        Ok(Roce { engine: Arc::new(engine) })
    }
}

impl Carrier for Roce {
    fn carries(&self, device: &Device, _ah: &AhAttr) -> bool {
        device.is_ethernet()
    }

    fn connect(&self, qp: &Arc<Qp>, attr: &QpAttr) -> Result<Arc<dyn carrier::Connection>> {
        let engine = &self.engine;
        let (local, remote) = engine.addresses(qp.device_index(), &attr.ah)?;
        engine.reach.check(local.ip, local.interface, remote, Duration::ZERO)?;
        let port = engine.ports.open(qp.process(), local)?;
        let path = engine.connections.path(remote, attr.dest_qp_num, 128 << attr.path_mtu);
        if Arc::strong_count(&path) == 1 {
            log::info!("QP {:#x} is connected to {remote} in packets", qp.qp_num());
        }
        let pace = (qp.qp_type() == QpType::Uc).then(|| engine.paces.with(remote, attr.dest_qp_num));
        let connection = Arc::new(Connection::new(Arc::clone(&engine.poll_state), qp, attr, port, remote, path, pace));
        engine.connections.insert(Arc::clone(&connection));
        Ok(connection)
    }

    fn resolve(&self, device: u32, ah: &AhAttr, patience: Duration) -> Result<()> {
        let (local, remote) = self.engine.addresses(device, ah)?;
        self.engine.reach.check(local.ip, local.interface, remote, patience)
    }

    fn register_qp(&self, qp: &Arc<Qp>) -> Result<()> {
        self.engine.datagrams.listen(qp);
        let (mut opened, mut refused) = (false, None);
        for address in self.engine.own_addresses(qp) {
            match self.engine.ports.open(qp.process(), address) {
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
            self.engine.datagrams.unregister_qp(qp.qp_num());
            Err(e)
        })
    }

    fn check_source(&self, process: &'static Process, device: u32, ah: &AhAttr) -> Result<()> {
        self.engine.addresses(device, ah).map_or(Ok(()), |(local, _)| self.engine.ports.check(process, local))
    }

    fn unregister_qp(&self, qpn: u32) {
        self.engine.datagrams.unregister_qp(qpn);
        if let Some(connection) = self.engine.connections.remove(qpn)
            && let Some(qp) = connection.qp.upgrade()
        {
            connection.close(&qp);
        }
    }

    fn send_datagram(&self, qp: &Qp, datagram: &Datagram<'_>) -> Option<u64> {
        self.engine.send_datagram(qp.process(), qp, datagram)
    }

    fn send_mad(&self, process: &'static Process, device: u32, ah: &AhAttr, mad: &Mad) -> Result<()> {
        management::send(&self.engine, process, device, ah, mad)
    }

    fn serve(&self, process: &'static Process, slot: u32, services: &[ServiceClaim]) -> Result<()> {
        self.engine.serve(process, slot, services)
    }

    fn flush(&self) {
        self.engine.ports.each(LocalPort::flush);
    }

    fn join(&self, group: &Gid, qp: &Qp) -> Result<()> {
        self.engine.join(group, qp)
    }

    fn leave(&self, group: &Gid, qpn: u32) {
        self.engine.leave_group(group, qpn);
    }
}

impl EventHandler for Roce {
    fn events_fd(&self) -> Option<RawFd> {
        Some(self.engine.ports.control_fd().as_raw_fd())
    }

    /// Lets other processes into the ports, and takes packets of this process that came to them.
    fn handle_events(&self, _process: &'static Process) {
        self.engine.adopt_strays();
    }

    fn leave(&self) -> Result<()> {
        self.engine.leave_ports()
    }

    fn rejoin(&self) -> Result<()> {
        self.engine.rejoin_ports()
    }
}

impl Poller for Roce {
    fn expect_slot(&self, slot: u32) -> Result<()> {
        self.engine.ports.add_slot(slot)
    }

    fn poll(&self, process: &'static Process) -> bool {
        self.engine.poll(process)
    }

    fn wait_for(&self, process: &'static Process, fd: RawFd) -> Result<()> {
        self.engine.wait_for(process, fd)
    }

    fn attend(&self, process: &'static Process) -> (bool, Option<u64>) {
        self.engine.attend(process)
    }

    fn packet_fd(&self) -> Option<RawFd> {
        self.engine.ports.packet_fd()
    }

    fn take_in(&self, process: &'static Process) -> bool {
        self.engine.take_all_in(process)
    }

    fn shutdown(&self) -> bool {
        self.engine.shutdown()
    }
}

impl Engine {
    /// The local and the remote address of an address vector. EINVAL when they are not of one family.
    fn addresses(&self, device: u32, ah: &AhAttr) -> Result<(Address, IpAddr)> {
        let device = &self.devices[device as usize];
        let (gid, interface) = device
            .source(ah.grh.sgid_index.into())
            .ok_or_else(|| Error::invalid(format!("the port has no GID at index {}", ah.grh.sgid_index)))?;
        // A program may know a host by two addresses: one that it has had, and what that has become. There is one for all that is counted.
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
}
