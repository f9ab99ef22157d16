//! QP 1 (IBA 13.5.1): management datagrams of the connection managers of processes. A carrier takes them between two
//! hosts; within one they go through unix sockets, whose names follow from the addressee. No process is needed to
//! deliver another's, so a stopped or killed one delays none (docs/connection-manager.md).
//!
//! Received MADs lie in the inbox until the progress thread gives them to the client.

mod doors;
mod events;
pub mod mad;
mod message;
mod outbox;
mod peers;

use doors::{Doors, Purpose, name_of_service};
use events::{Events, Token};
use mad::Addressee;
pub use message::{Message, Origin, gid_of};
use outbox::Outbox;
use peers::Peers;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use vervain_gsi::{ANY, Mad, Path};
use vervain_hca::device::{Device, gids};
use vervain_hca::host::cancel::nap;
use vervain_hca::host::lock::{OwnerGuard, OwnerLock};
use vervain_hca::process::Process;
use vervain_hca::process::poller::EventHandler;
use vervain_hca::qp::carrier::ServiceClaim;
use vervain_hca::qp::table::QpTable;
use vervain_hca::{AhAttr, Error, Gid, Grh, Result, now_ns};
use vervain_sockets::os_error;
use vervain_sockets::unix;
use vervain_sockets::user::User;

/// Most MADs that wait for the client, and most that wait to be sent while the process is stopped.
const MOST_KEPT: usize = 16384;
/// Nanoseconds between two looks at a process that is paused.
const PAUSED_NS: u64 = 1_000_000;
/// Interval of the looks for a parked process's sockets.
const PARKED_NAP: Duration = Duration::from_millis(1);
const NEVER: u64 = u64::MAX;

/// QP 1 of the calling process.
static CURRENT: OwnerLock<Option<Arc<Gsi>>> = OwnerLock::new(None);

/// Receiver of MADs: [`vervain_gsi::Client`].
pub trait Client: Send + Sync {
    /// Handles a received MAD.
    fn receive(&self, path: &Path, mad: &Mad);

    /// Called at the requested time, or after [`wake`]. Returns the time of the next call, in nanoseconds.
    fn tick(&self, now: u64) -> u64;

    /// Handles the end of the process that had `slot`.
    fn gone(&self, slot: u32);
}

/// QP 1, as one process has it.
pub struct Gsi {
    devices: Vec<Arc<Device>>,
    /// The user whose processes are trusted.
    user: Arc<User>,
    events: Events,
    client: OnceLock<Arc<dyn Client>>,
    /// Slot of the process; 0: no client is attached yet.
    slot: AtomicU32,
    doors: OwnerLock<Doors>,
    /// Held while services are claimed and released, and so while carriers are updated, which takes milliseconds. Never
    /// taken by the progress thread.
    claiming: OwnerLock<()>,
    outbox: Outbox,
    peers: Peers,
    inbox: OwnerLock<VecDeque<Message>>,
    /// MADs to be sent once the process goes on.
    held: OwnerLock<VecDeque<(Path, Mad)>>,
    /// True once a client is attached, or a MAD was handed on.
    is_in_use: AtomicBool,
    has_news: AtomicBool,
    deadline: AtomicU64,
}

/// Place of one of this host's addresses.
struct Place {
    device: u32,
    port: u8,
    index: u8,
}

impl Gsi {
    /// QP 1 of a process that is being made.
    pub fn new(devices: &[Arc<Device>], user: Arc<User>) -> Result<Arc<Gsi>> {
        let gsi = Arc::new(Gsi {
            devices: devices.to_vec(),
            user,
            events: Events::new()?,
            client: OnceLock::new(),
            slot: AtomicU32::new(0),
            doors: OwnerLock::default(),
            claiming: OwnerLock::default(),
            outbox: Outbox::default(),
            peers: Peers::default(),
            inbox: OwnerLock::default(),
            held: OwnerLock::default(),
            is_in_use: AtomicBool::new(false),
            has_news: AtomicBool::new(false),
            deadline: AtomicU64::new(NEVER),
        });
        *CURRENT.lock() = Some(Arc::clone(&gsi));
        Ok(gsi)
    }

    /// The user id. EPERM: this user cannot be told from others.
    fn uid(&self) -> Result<u32> {
        self.user.number().ok_or_else(|| Error::new(libc::EPERM, "this user namespace does not tell users apart"))
    }

    fn is_attached(&self) -> bool {
        self.client.get().is_some()
    }

    fn attach(&self, process: &'static Process, client: Arc<dyn Client>) -> Result<()> {
        let uid = self.uid()?;
        let _claiming = self.claiming.lock();
        if self.is_attached() {
            return Err(Error::busy("the process has a connection manager"));
        }
        let slot = process.first_slot()?;
        let opened = self.doors_when_there().open(uid, &self.events, Purpose::Slot(slot));
        opened.map_err(|e| os_error("cannot make the socket of the connection manager", e))?;
        self.slot.store(slot, Ordering::Release);
        let _ = self.client.set(client);
        self.is_in_use.store(true, Ordering::Release);
        self.tell_carriers(process).inspect_err(|e| log::info!("no MADs come by packets yet: {e}")).ok();
        Ok(())
    }

    /// The doors, once a parked process has its sockets again.
    fn doors_when_there(&self) -> OwnerGuard<'_, Doors> {
        loop {
            let doors = self.doors.lock();
            if !doors.have_left() {
                return doors;
            }
            drop(doors);
            nap(PARKED_NAP);
        }
    }

    /// Makes carriers deliver this process's MADs here. Called with `claiming` held.
    fn tell_carriers(&self, process: &'static Process) -> Result<()> {
        let services: Vec<ServiceClaim> = self.doors.lock().services().collect();
        QpTable::of(process)?.router().serve(process, self.slot.load(Ordering::Acquire), &services)
    }

    fn claim(&self, process: &'static Process, claim: ServiceClaim) -> Result<()> {
        let uid = self.uid()?;
        if !self.is_attached() {
            return Err(Error::invalid("the process has no connection manager attached"));
        }
        if claim.address.is_some_and(|address| !self.is_here(&address)) {
            return Err(Error::new(libc::EADDRNOTAVAIL, "the address is none of this host's"));
        }
        let _claiming = self.claiming.lock();
        // The kernel's rdma_cm returns EADDRNOTAVAIL if one of the two claims is for any address (cma_check_port).
        let in_use = |errno| Error::new(errno, format!("service {:#x} is claimed already", claim.service));
        let same = claim.address.map_or(libc::EADDRNOTAVAIL, |_| libc::EADDRINUSE);
        let purpose = Purpose::Service(claim);
        let opened = self.doors_when_there().open(uid, &self.events, purpose);
        opened.map_err(|e| if e == Errno::ADDRINUSE { in_use(same) } else { os_error("cannot claim a service", e) })?;
        // Checked only now, so that at least one of two simultaneous claims sees the other.
        let claimed =
            if self.conflicts(uid, &claim) { Err(in_use(libc::EADDRNOTAVAIL)) } else { self.tell_carriers(process) };
        claimed.inspect_err(|_| {
            self.doors.lock().close(purpose);
            // Some carriers may have been updated.
            let _ = self.tell_carriers(process);
        })
    }

    /// Returns true if another process has claimed the service at an address that this claim includes.
    fn conflicts(&self, uid: u32, claim: &ServiceClaim) -> bool {
        let others: Vec<Option<Gid>> = match claim.address {
            Some(_) => vec![None],
            None => self.gids().map(|(_, gid)| Some(gid)).collect(),
        };
        let own: Vec<ServiceClaim> = self.doors.lock().services().collect();
        let is_anothers = |address: &Option<Gid>| {
            let same = ServiceClaim { address: *address, ..*claim };
            !own.contains(&same) && is_taken(&name_of_service(uid, claim.service, address.as_ref()))
        };
        others.iter().any(is_anothers)
    }

    fn release(&self, process: &'static Process, claim: ServiceClaim) -> Result<()> {
        let _claiming = self.claiming.lock();
        self.doors_when_there().close(Purpose::Service(claim));
        self.tell_carriers(process)
    }

    /// The device at a place in the list of devices.
    pub fn device(&self, index: u32) -> Result<&Arc<Device>> {
        self.devices.get(index as usize).ok_or_else(|| Error::invalid(format!("there is no device {index}")))
    }

    // ---- addresses -------------------------------------------------------------------------------------------------

    /// The GIDs of all ports, with their places.
    fn gids(&self) -> impl Iterator<Item = (Place, Gid)> {
        let ports = self.devices.iter().flat_map(|device| (1..=device.ports()).map(move |port| (device, port)));
        ports.flat_map(|(device, port)| {
            device.gids(port).into_iter().filter_map(move |entry| {
                let index = u8::try_from(entry.index).ok()?;
                Some((Place { device: device.index(), port, index }, entry.gid))
            })
        })
    }

    fn place(&self, gid: &Gid) -> Option<Place> {
        self.gids().find(|(_, own)| own == gid).map(|(place, _)| place)
    }

    /// Returns true if an address is one of this host's.
    fn is_here(&self, gid: &Gid) -> bool {
        gids::is_of_this_host(gid) || self.place(gid).is_some()
    }

    /// The address vector of a path.
    fn ah(&self, path: &Path) -> AhAttr {
        let lid = |place: Place| self.devices[place.device as usize].lid(place.port);
        AhAttr {
            dlid: self.place(&path.dgid).map_or(0, lid),
            is_global: true,
            port_num: path.port,
            grh: Grh {
                dgid: path.dgid,
                flow_label: path.flow_label,
                sgid_index: path.sgid_index,
                hop_limit: path.hop_limit,
                traffic_class: path.traffic_class,
            },
            ..AhAttr::default()
        }
    }

    // ---- out -------------------------------------------------------------------------------------------------------

    fn send(&self, process: &'static Process, path: &Path, mad: &Mad) -> Result<()> {
        if process.is_stopped() {
            return self.hold(path, mad);
        }
        match self.send_now(process, path, mad) {
            // The other process may be parked by now, like this one.
            Err(e) if e.errno() == libc::ECONNREFUSED && process.is_stopped() => self.hold(path, mad),
            sent => sent,
        }
    }

    /// Keeps a MAD until the process goes on.
    fn hold(&self, path: &Path, mad: &Mad) -> Result<()> {
        let mut held = self.held.lock();
        if held.len() == MOST_KEPT {
            return Err(Error::new(libc::EAGAIN, "the process is stopped, and many MADs wait"));
        }
        held.push_back((*path, *mad));
        drop(held);
        self.tell_news();
        Ok(())
    }

    fn send_now(&self, process: &'static Process, path: &Path, mad: &Mad) -> Result<()> {
        let ah = self.ah(path);
        let whom = mad::addressee(mad).ok_or_else(|| Error::invalid("no MAD of communication management"))?;
        match QpTable::of(process)?.router().way_of_mads(path.device, &ah)? {
            Some(carrier) => carrier.send_mad(process, path.device, &ah, mad),
            None => self.send_here(process, path.device, &ah, whom, mad),
        }
    }

    /// Sends a MAD to a process of this host.
    pub fn send_here(
        &self,
        process: &'static Process,
        device: u32,
        ah: &AhAttr,
        whom: Addressee,
        mad: &Mad,
    ) -> Result<()> {
        let message = Message {
            origin: Origin::Process(self.slot.load(Ordering::Acquire)),
            from: self.device(device)?.gid(ah.port_num, ah.grh.sgid_index.into())?,
            to: ah.grh.dgid,
            flow_label: ah.grh.flow_label,
            traffic_class: ah.grh.traffic_class,
            hop_limit: 0,
            mad: *mad,
        };
        self.put(whom, &message)?;
        if let Addressee::Slot(slot) = whom {
            self.know(process, slot);
        }
        Ok(())
    }

    /// Sends a message to its process on this host. ECONNREFUSED: there is none.
    fn put(&self, whom: Addressee, message: &Message) -> Result<()> {
        let uid = self.uid()?;
        self.is_in_use.store(true, Ordering::Release);
        let names = match whom {
            Addressee::Slot(slot) => vec![vervain_names::management(uid, slot)],
            Addressee::Service(service) => {
                [Some(&message.to), None].map(|address| name_of_service(uid, service, address)).into()
            }
        };
        let bytes = message.to_bytes();
        let mut put = Err(Errno::CONNREFUSED);
        for name in names {
            put = self.outbox.send(&self.events, &name, &bytes);
            if put != Err(Errno::CONNREFUSED) {
                break;
            }
        }
        put.map_err(|e| match e {
            Errno::CONNREFUSED => Error::new(libc::ECONNREFUSED, "no process of this host takes that MAD"),
            e => os_error("cannot send a MAD", e),
        })
    }

    /// Watches the process of `slot` for its end, as MADs are exchanged with it.
    fn know(&self, process: &Process, slot: u32) {
        if self.user.number().is_none() {
            return;
        }
        if slot != 0 && !process.owns_slot(slot) {
            self.peers.know(&self.events, &self.user, slot);
            if self.peers.have_ended() {
                self.tell_news();
            }
        }
    }

    // ---- in --------------------------------------------------------------------------------------------------------

    /// Keeps a message from a door if it belongs there.
    fn take(&self, purpose: Purpose, message: Message) {
        let belongs = mad::addressee(&message.mad).is_some_and(|whom| purpose.takes(whom, &message.to));
        let is_believed = message.origin == Origin::Carrier || self.is_here(&message.from);
        if belongs && is_believed {
            self.keep(message);
        }
    }

    /// Keeps a MAD that a carrier has received, or hands it on to its process. Returns false if it is for none. May be
    /// called with locks of the carrier held.
    pub fn arrived(&self, message: Message) -> bool {
        let Some(whom) = mad::addressee(&message.mad) else { return false };
        if !self.doors.lock().take(whom, &message.to) {
            match self.put(whom, &message) {
                // The client must reply that nobody has claimed the service.
                Err(e) if e.errno() == libc::ECONNREFUSED && matches!(whom, Addressee::Service(_)) => {}
                put => return put.is_ok(),
            }
            if !self.is_attached() {
                return false;
            }
        }
        self.keep(message);
        self.tell_news();
        true
    }

    /// The slot of this host's process that has sent a message, by a carrier included.
    fn sender(&self, message: &Message) -> Option<u32> {
        match message.origin {
            Origin::Process(slot) => Some(slot),
            Origin::Carrier => mad::sender(&message.mad).filter(|_| self.is_here(&message.from)),
        }
    }

    fn keep(&self, message: Message) {
        let mut inbox = self.inbox.lock();
        // A full inbox drops messages, like a full socket.
        if inbox.len() < MOST_KEPT {
            inbox.push_back(message);
        }
    }

    fn tell_news(&self) {
        self.has_news.store(true, Ordering::SeqCst);
        if let Some(process) = Process::current() {
            process.wake_progress();
        }
    }

    fn path(&self, message: &Message) -> Option<Path> {
        let place = self.place(&message.to)?;
        Some(Path {
            device: place.device,
            flow_label: message.flow_label,
            port: place.port,
            sgid_index: place.index,
            traffic_class: message.traffic_class,
            hop_limit: message.hop_limit,
            sgid: message.to,
            dgid: message.from,
        })
    }

    /// Gives the client the received MADs, then the ends of peers, those only if all MADs of the ended have been
    /// received. Called with no lock held.
    fn deliver(&self, process: &'static Process, all_is_said: bool) {
        let held: Vec<_> = self.held.lock().drain(..).collect();
        for (path, mad) in held {
            // A lost datagram is no error.
            let sent = self.send_now(process, &path, &mad);
            sent.unwrap_or_else(|e| log::info!("a MAD is dropped: {e}"));
        }
        let Some(client) = self.client.get() else { return };
        let gone = if all_is_said { self.peers.take_gone() } else { Vec::new() };
        loop {
            let Some(message) = self.inbox.lock().pop_front() else { break };
            if let Some(path) = self.path(&message) {
                self.sender(&message).into_iter().for_each(|slot| self.know(process, slot));
                client.receive(&path, &message.mad);
            }
        }
        gone.into_iter().for_each(|slot| client.gone(slot));
        let now = now_ns();
        if self.deadline.load(Ordering::SeqCst) <= now {
            self.deadline.store(NEVER, Ordering::SeqCst);
            let next = client.tick(now);
            self.deadline.fetch_min(next, Ordering::SeqCst);
        }
        if !all_is_said {
            self.deadline.fetch_min(now + PAUSED_NS, Ordering::SeqCst);
        }
    }
}

/// Returns true if a process has this name.
fn is_taken(name: &str) -> bool {
    let call = || -> std::result::Result<(), Errno> {
        let socket = unix::datagrams()?;
        rustix::net::connect(&socket, &unix::abstract_name(name)?)
    };
    call() != Err(Errno::CONNREFUSED)
}

impl EventHandler for Gsi {
    fn events_fd(&self) -> Option<RawFd> {
        Some(self.events.fd())
    }

    fn deadline(&self) -> Option<u64> {
        let has_news = self.has_news.load(Ordering::SeqCst);
        let at = self.deadline.load(Ordering::SeqCst);
        if !has_news && at == NEVER {
            return None;
        }
        // The client's time stands still while the process is stopped; this is called again afterwards.
        let process = Process::current().filter(|process| !process.is_stopped())?;
        let soonest = if process.is_paused() { now_ns() + PAUSED_NS } else { 0 };
        Some(soonest.max(if has_news { 0 } else { at }))
    }

    fn handle_events(&self, process: &'static Process) {
        self.has_news.store(false, Ordering::SeqCst);
        if self.user.number().is_none() || !self.is_in_use.load(Ordering::Acquire) {
            return;
        }
        let mut rooms = Vec::new();
        for token in self.events.take() {
            match token {
                Token::Door(number) => {
                    let mut come = Vec::new();
                    self.doors.lock().receive(number, &self.user, |purpose, message| come.push((purpose, message)));
                    come.into_iter().for_each(|(purpose, message)| self.take(purpose, message));
                }
                Token::Room(number) => rooms.push(number),
                Token::Peer(slot) => self.peers.handle(slot),
            }
        }
        // MADs that ended processes have sent come before their ends, by sockets and by carriers.
        let mut all_is_said = true;
        if self.peers.have_ended() {
            self.take_all();
            all_is_said = process.packets.take_in(process);
        }
        let handled = process.handle_packets(|| {
            rooms.iter().for_each(|number| self.outbox.go_on(*number));
            self.outbox.resume(&self.events);
            self.deliver(process, all_is_said);
        });
        if handled.is_none() {
            // Nothing is sent while stopped, as the addressee may be parked.
            rooms.iter().for_each(|number| self.outbox.suspend(*number));
            self.has_news.store(true, Ordering::SeqCst);
        }
    }

    fn leave(&self) -> Result<()> {
        if self.user.number().is_some() {
            self.take_all();
        }
        self.doors.lock().leave();
        self.outbox.leave();
        self.has_news.store(true, Ordering::SeqCst);
        Ok(())
    }

    fn rejoin(&self) -> Result<()> {
        let Some(uid) = self.user.number() else { return Ok(()) };
        let mut doors = self.doors.lock();
        if !doors.have_left() {
            return Ok(());
        }
        doors
            .rejoin(uid, &self.events)
            .map_err(|e| os_error("cannot have the names of the connection manager again", e))
    }
}

impl Gsi {
    /// Takes all messages that lie at the doors.
    fn take_all(&self) {
        let mut come = Vec::new();
        self.doors.lock().receive_all(&self.user, |purpose, message| come.push((purpose, message)));
        come.into_iter().for_each(|(purpose, message)| self.take(purpose, message));
    }
}

// ---- what the C interface calls ------------------------------------------------------------------------------------

/// The process and its QP 1. EINVAL: [`attach`] was not called.
fn current() -> Result<(&'static Process, Arc<Gsi>)> {
    let process = Process::current();
    let gsi = CURRENT.lock().clone();
    let both = process.zip(gsi).filter(|(_, gsi)| gsi.is_attached());
    both.ok_or_else(|| Error::invalid("the process has no connection manager attached"))
}

fn claim_of(service: u64, address: &Gid) -> ServiceClaim {
    ServiceClaim { service, address: (*address != ANY).then_some(*address) }
}

/// Delivers the MADs of `process`, the calling one, to `client` from now on. EBUSY: another client is attached.
pub fn attach(process: &'static Process, client: Arc<dyn Client>) -> Result<()> {
    let gsi = CURRENT.lock().clone().ok_or_else(|| Error::invalid("the process has no QP 1"))?;
    gsi.attach(process, client)
}

/// The process slot with which communication identifiers begin; 0 before [`attach`].
pub fn slot() -> u32 {
    current().map_or(0, |(_, gsi)| gsi.slot.load(Ordering::Acquire))
}

/// Claims `service`: REQs and SIDR_REQs for it that are sent to `address`, or to any address with [`ANY`], go to this
/// process from now on. EADDRINUSE: it is claimed at this address already; EADDRNOTAVAIL: it is claimed and one of both
/// claims is for any address, or this host does not have the address.
pub fn claim(service: u64, address: &Gid) -> Result<()> {
    let (process, gsi) = current()?;
    gsi.claim(process, claim_of(service, address))
}

/// Releases a claim.
pub fn release(service: u64, address: &Gid) -> Result<()> {
    let (process, gsi) = current()?;
    gsi.release(process, claim_of(service, address))
}

/// Sends a MAD. ECONNREFUSED: the other end is on this host, and no process receives it; EAGAIN: it has no room now;
/// others are those of [`vervain_hca::Ah::create`].
pub fn send(path: &Path, mad: &Mad) -> Result<()> {
    let (process, gsi) = current()?;
    gsi.send(process, path, mad)
}

/// Resolves the other end of a path within `patience`, at least a second. ENETUNREACH, EHOSTUNREACH or ETIMEDOUT: it
/// cannot be reached.
pub fn resolve(path: &Path, patience: Duration) -> Result<()> {
    let (process, gsi) = current()?;
    let ah = gsi.ah(path);
    let way = QpTable::of(process)?.router().way_of_mads(path.device, &ah)?;
    way.map_or(Ok(()), |carrier| {
        carrier.check_source(process, path.device, &ah)?;
        carrier.resolve(path.device, &ah, patience)
    })
}

/// Makes the progress thread call [`Client::tick`] soon.
pub fn wake() {
    if let Ok((process, gsi)) = current() {
        gsi.deadline.store(0, Ordering::SeqCst);
        process.wake_progress();
    }
}
