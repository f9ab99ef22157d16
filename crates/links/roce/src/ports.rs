//! The ports of this process: one for each local address that a QP has needed so far.

use super::address::Address;
use super::net::address::scoped;
use super::net::{Datagram, LastFlow, Port, SendBatch};
use super::poll_rate::PortPollRate;
use super::port_sharing::{self, Sharing};
use rustix::event::epoll;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;
use vervain_hca::device::gids::interface_of;
use vervain_hca::device::port_counters::{FIRST, Word};
use vervain_hca::host::address_map::actual;
use vervain_hca::host::cancel::{Uncancelled, nap};
use vervain_hca::host::lock::{OwnerGuard, OwnerLock};
use vervain_hca::process::{Process, keep_from_children};
use vervain_hca::qp::carrier::ServiceClaim;
use vervain_hca::{Error, Result, now_ns};
use vervain_qp1::gid_of;
use vervain_sockets::os_error;
use vervain_wire::UDP_PORT;

/// Posts that wait in a batch at most, or to be begun: as many packets as a train takes.
pub(super) const MAX_CORKED: u32 = 64;
/// Nanoseconds that an address is left alone that could not be opened: a try takes milliseconds, and datagrams come
/// often.
const REFUSED_NS: u64 = 1_000_000_000;
/// Between two looks whether a parked process has its sockets again.
const PARKED_NAP: Duration = Duration::from_millis(1);

/// The sockets of one address, and what waits to be sent from there.
pub(super) struct LocalPort {
    pub port: Arc<Port>,
    /// Sharing of the port by this host's processes.
    pub sharing: Sharing,
    batch: OwnerLock<SendBatch>,
    /// Posts whose packets wait in the batch for others.
    corked: AtomicU32,
    /// Rate at which polls include this port.
    pub poll_rate: PortPollRate,
}

impl LocalPort {
    fn address(&self) -> Address {
        Address { ip: self.port.ip(), interface: self.port.interface() }
    }

    /// The packets that are being collected.
    pub(super) fn batch(&self) -> OwnerGuard<'_, SendBatch> {
        self.batch.lock()
    }

    /// The batch in which packets are collected. Err(true): another thread holds it; Err(false): this one may, so
    /// waiting is no use.
    pub(super) fn try_batch(&self) -> std::result::Result<OwnerGuard<'_, SendBatch>, bool> {
        self.batch.try_lock().ok_or_else(|| self.batch.raw().comes_free())
    }

    /// Sends what the fault device has held back until now.
    #[inline]
    pub(super) fn release(&self) {
        if self.port.next_release().is_some_and(|at| at <= now_ns()) {
            self.port.release();
        }
    }

    /// Returns true if the ICRC of a packet is right; counts the packet otherwise.
    pub(super) fn is_intact(&self, datagram: &Datagram<'_>) -> bool {
        self.is_intact_by(datagram, &mut LastFlow::default())
    }

    /// [`LocalPort::is_intact`], with the flow of the `last` packet.
    #[inline]
    pub(super) fn is_intact_by(&self, datagram: &Datagram<'_>, last: &mut LastFlow) -> bool {
        let is_intact = datagram.flow_by(last).is_some_and(|flow| datagram.is_intact_in(&flow));
        if !is_intact {
            self.count_bad_icrc(datagram);
        }
        is_intact
    }

    #[cold]
    fn count_bad_icrc(&self, datagram: &Datagram<'_>) {
        let counters = self.port.counters();
        counters.bad_icrc.add(1);
        FIRST.add(Word::BadIcrc, 1);
        tell_of_bad_icrc(datagram, counters.bad_icrc.get());
    }

    /// Counts a post whose packets are to wait in the batch, which the caller holds; false if they are to leave at
    /// once, for enough wait.
    #[inline]
    pub(super) fn cork(&self) -> bool {
        let corked = self.corked.load(Ordering::Relaxed) + 1;
        self.corked.store(corked, Ordering::Relaxed);
        corked < MAX_CORKED
    }

    /// Sends the packets that were collected.
    pub(super) fn flush(&self) {
        self.flush_batch(&mut self.batch.lock());
    }

    /// Sends the packets that were collected, unless somebody has them; false if that is another thread.
    fn flush_if_free(&self) -> bool {
        match self.try_batch() {
            Ok(mut batch) => self.flush_batch(&mut batch),
            Err(comes_free) => return !comes_free,
        }
        true
    }

    /// Sends the packets in `batch`, which is this port's.
    pub(super) fn flush_batch(&self, batch: &mut SendBatch) {
        self.corked.store(0, Ordering::Relaxed);
        if !batch.is_empty() {
            batch.flush();
        }
    }
}

/// Names the sender of the `n`th packet whose ICRC is wrong, ever more seldom.
#[cold]
fn tell_of_bad_icrc(datagram: &Datagram<'_>, n: u64) {
    if n.is_power_of_two() {
        let (from, to) = datagram.on_the_wire();
        let (from, to) = (from.ip(), to.ip());
        log::info!(
            "a packet from {from} to {to} has a wrong ICRC, and {} before it: damaged, with addresses that were translated on \
             the way (NAT), or with IP options or extension headers",
            n - 1
        );
    }
}

/// The packets of QP 1 that are for this process.
struct Served {
    slot: u32,
    services: Vec<ServiceClaim>,
}

impl Served {
    /// Those of them that are for an address.
    fn at(&self, ip: IpAddr) -> port_sharing::Served {
        let gid = gid_of(ip);
        let here = self.services.iter().filter(|claim| claim.address.is_none_or(|address| address == gid));
        port_sharing::Served { slot: self.slot, services: here.map(|claim| claim.service).collect() }
    }
}

/// All ports.
pub(super) struct Ports {
    list: OwnerLock<Vec<Arc<LocalPort>>>,
    /// Length of the list, which only grows.
    count: AtomicUsize,
    /// The slots of the process. Held while a port is opened, so that none of them is missed; not by the progress
    /// thread.
    slots: OwnerLock<Vec<u32>>,
    /// Members of multicast groups on this host get packets, for they get no copy by memory.
    multicast_loops: bool,
    packets: OwnedFd,
    /// Addresses that could not be opened, until when they are not tried again, and why.
    refused: OwnerLock<Vec<(Address, u64, Error)>>,
    control: OwnedFd,
    /// This process's part of QP 1. Changed under the lock of `slots`.
    served: OwnerLock<Option<Served>>,
    /// The process is parked, and has none of their sockets. Changed under the lock of `slots`.
    have_left: AtomicBool,
}

impl Ports {
    /// No port yet. If `multicast_loops`, ports get what this host sends to their groups.
    pub(super) fn new(multicast_loops: bool) -> Result<Ports> {
        let epoll = || -> Result<OwnedFd> {
            let fd = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| os_error("epoll", e))?;
            keep_from_children(fd.as_raw_fd());
            Ok(fd)
        };
        let (list, slots, count) = (OwnerLock::default(), OwnerLock::default(), AtomicUsize::new(0));
        Ok(Ports {
            list,
            slots,
            count,
            multicast_loops,
            refused: OwnerLock::default(),
            packets: epoll()?,
            control: epoll()?,
            served: OwnerLock::default(),
            have_left: AtomicBool::new(false),
        })
    }

    /// The port of `address`, opened if it is not yet.
    pub(super) fn open(&self, process: &'static Process, address: Address) -> Result<Arc<LocalPort>> {
        if let Some(port) = self.find(address) {
            return Ok(port);
        }
        let slots = self.slots_when_there();
        if let Some(port) = self.find(address) {
            return Ok(port);
        }
        let port = self.open_now(address, &slots)?;
        process.expect_packets();
        Ok(port)
    }

    /// The port of `address`, opened for a datagram if it is not yet: an address that could not be opened is left alone
    /// for a while.
    pub(super) fn open_for_datagram(&self, process: &'static Process, address: Address) -> Result<Arc<LocalPort>> {
        if let Some(port) = self.find(address) {
            return Ok(port);
        }
        let mut refused = self.refused.lock();
        refused.retain(|(_, until, _)| now_ns() < *until);
        if let Some((_, _, e)) = refused.iter().find(|(at, ..)| *at == address) {
            return Err(e.clone());
        }
        let opened = self.open(process, address);
        if let Err(e) = &opened {
            refused.push((address, now_ns() + REFUSED_NS, e.clone()));
        }
        opened
    }

    /// Checks that datagrams can leave from `address`. EADDRINUSE: another user or program has it. Other errors may be
    /// gone by then. Without a slot there is no QP that sends, and no process to be found behind a port.
    pub(super) fn check(&self, process: &'static Process, address: Address) -> Result<()> {
        if self.slots.lock().is_empty() {
            return Ok(());
        }
        match self.open_for_datagram(process, address) {
            Err(e) if e.errno() == libc::EADDRINUSE => Err(e),
            _ => Ok(()),
        }
    }

    fn open_now(&self, address: Address, slots: &[u32]) -> Result<Arc<LocalPort>> {
        let (ip, interface) = (address.ip, address.interface);
        let at = scoped(actual(ip), UDP_PORT, interface);
        // With what is served, at once: nothing waits for others between here and the list, which is where who answers
        // them looks.
        let served = self.served.lock().as_ref().map(|served| served.at(ip));
        let (sharing, socket) = Sharing::join(at, slots, served, &|| Port::bind(ip, interface))?;
        let port = Arc::new(Port::with_socket(ip, interface, socket)?);
        if !self.multicast_loops {
            port.spare_own_members();
        }
        watch(&self.packets, port.receive_socket())?;
        watch(&self.control, sharing.poll_fd())?;
        // Not before it is sure that it stays open.
        keep_from_children(port.receive_socket().as_raw_fd());
        let batch = OwnerLock::new(SendBatch::new(Arc::clone(&port)));
        let port =
            Arc::new(LocalPort { port, sharing, batch, corked: AtomicU32::new(0), poll_rate: PortPollRate::default() });
        let mut list = self.list.lock();
        list.push(Arc::clone(&port));
        self.count.store(list.len(), Ordering::Release);
        Ok(port)
    }

    /// The port of `address`, if it is open.
    pub(super) fn find(&self, address: Address) -> Option<Arc<LocalPort>> {
        // Most addresses are one whatever interface has them, and that may just be becoming another.
        let at = |address: Address| scoped(address.ip, UDP_PORT, address.interface);
        self.list.lock().iter().find(|p| at(p.address()) == at(address)).cloned()
    }

    /// Makes a port take part in a multicast group.
    pub(super) fn join(&self, port: &LocalPort, group: IpAddr) -> Result<()> {
        port.port.join(group, |socket| {
            keep_from_children(socket.as_raw_fd());
            watch(&self.packets, socket)
        })
    }

    pub(super) fn add_slot(&self, slot: u32) -> Result<()> {
        let mut slots = self.slots_when_there();
        let ports = self.list.lock().clone();
        ports.iter().try_for_each(|port| port.sharing.add_slot(slot))?;
        slots.push(slot);
        Ok(())
    }

    /// Delivers packets of QP 1 to this process, at all ports, present and future: those for `slot`, or for one of
    /// these services at an address it is claimed for. Returns the first error, after all ports.
    pub(super) fn serve(&self, slot: u32, services: &[ServiceClaim]) -> Result<()> {
        let _slots = self.slots_when_there();
        let served = Served { slot, services: services.to_vec() };
        let ports = self.list.lock().clone();
        let led: Vec<_> = ports.iter().map(|port| port.sharing.serve(served.at(port.port.ip()))).collect();
        *self.served.lock() = Some(served);
        led.into_iter().collect()
    }

    /// The slots; not before a process that is parked has its sockets again.
    fn slots_when_there(&self) -> OwnerGuard<'_, Vec<u32>> {
        loop {
            let slots = self.slots.lock();
            if !self.have_left.load(Ordering::Relaxed) {
                return slots;
            }
            drop(slots);
            nap(PARKED_NAP);
        }
    }

    /// Gives all sockets up. Called with the receiver in hand, so that nobody is at them.
    pub(super) fn leave(&self) -> io::Result<()> {
        let _slots = self.slots.lock();
        self.have_left.store(true, Ordering::Relaxed);
        self.list.lock().iter().try_for_each(|port| self.give_up(port))
    }

    fn give_up(&self, port: &LocalPort) -> io::Result<()> {
        // Others may hold the socket too, and so keep the entry of a number that leads nowhere.
        port.port.each_receive_socket(|socket| {
            let _ = epoll::delete(&self.packets, socket);
            Ok(())
        })?;
        port.sharing.leave()?;
        port.port.close()
    }

    /// Opens them again, all or none, on the interfaces that have their addresses now.
    pub(super) fn rejoin(&self) -> Result<()> {
        let _slots = self.slots.lock();
        if !self.have_left.load(Ordering::Relaxed) {
            return Ok(());
        }
        let ports = self.list.lock().clone();
        if let Err(error) = ports.iter().try_for_each(|port| self.take_back(port)) {
            for port in &ports {
                self.give_up(port).map_err(|e| os_failure(port, &e))?;
            }
            return Err(error);
        }
        // The clock may be another too.
        self.refused.lock().clear();
        self.have_left.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn take_back(&self, port: &LocalPort) -> Result<()> {
        let Address { ip, interface } = port.address();
        let interface = interface_of(&gid_of(ip), interface).unwrap_or(interface);
        let socket = port.sharing.rejoin(scoped(actual(ip), UDP_PORT, interface), &|| Port::bind(ip, interface))?;
        let reopened = port.port.reopen(socket, interface).and_then(|()| {
            port.port.each_receive_socket(|socket| {
                Ok(epoll::add(&self.packets, socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?)
            })
        });
        reopened.map_err(|e| os_failure(port, &e))
    }

    /// Readable when there is something to do about sharing a port.
    pub(super) fn control_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// Time at which the fault device releases the next packet.
    pub(super) fn next_release(&self) -> Option<u64> {
        self.list.lock().iter().filter_map(|port| port.port.next_release()).min()
    }

    /// Calls `f` for each port.
    pub(super) fn each(&self, mut f: impl FnMut(&LocalPort)) {
        for port in self.list.lock().iter() {
            f(port);
        }
    }

    /// Sends the batches of all ports without waiting. Returns false if another thread holds one of them.
    pub(super) fn flush_if_free(&self) -> bool {
        let Some(list) = self.list.try_lock() else { return !self.list.raw().comes_free() };
        list.iter().fold(true, |all, port| port.flush_if_free() & all)
    }

    /// Brings a copy of the list up to date.
    #[inline]
    pub(super) fn refresh(&self, copy: &mut Vec<Arc<LocalPort>>) {
        if copy.len() != self.count.load(Ordering::Acquire) {
            // May close a socket.
            let _whole = Uncancelled::begin();
            copy.clone_from(&self.list.lock());
        }
    }

    /// Readable when packets have come.
    pub(super) fn packet_fd(&self) -> Option<RawFd> {
        (self.count.load(Ordering::Acquire) != 0).then(|| self.packets.as_raw_fd())
    }
}

fn os_failure(port: &LocalPort, e: &io::Error) -> Error {
    let what = format!("cannot receive RoCE packets at {} again: {e}", actual(port.port.ip()));
    Error::new(e.raw_os_error().unwrap_or(libc::EIO), what)
}

fn watch(epoll: &OwnedFd, fd: BorrowedFd<'_>) -> Result<()> {
    epoll::add(epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN).map_err(|e| os_error("epoll", e))
}
