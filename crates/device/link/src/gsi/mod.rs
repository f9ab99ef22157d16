//! QP 1 (IBA 13.5.1): management datagrams of the connection managers of processes. Between two hosts a carrier takes them; within one they
//! go by unix sockets, whose names say whom they lead to. No process is needed for what is another's, so none that is stopped or killed
//! keeps it up (docs/connection-manager.md).
//!
//! What comes, by whatever way, lies in the inbox until the progress thread gives it to the client.

mod doors;
mod events;
pub(crate) mod mad;
mod message;
mod outbox;
mod peers;

use crate::os_error;
use crate::unix;
use crate::user::User;
use doors::{Doors, Purpose, name_of_service};
use events::{Events, Token};
use mad::Addressee;
pub(crate) use message::{Message, Origin};
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
use vervain_hca::qp::table::{self, QpTable};
use vervain_hca::{AhAttr, Error, Gid, Grh, Result, now_ns};

/// MADs that wait for the client at most, and that wait to be sent while the process is stopped.
const MOST_KEPT: usize = 16384;
/// Between two looks at a process that is paused.
const PAUSED_NS: u64 = 1_000_000;
/// Between two looks whether a parked process has its sockets again.
const PARKED_NAP: Duration = Duration::from_millis(1);
const NEVER: u64 = u64::MAX;

/// That of the calling process.
static CURRENT: OwnerLock<Option<Arc<Gsi>>> = OwnerLock::new(None);

/// Who takes MADs in: [`vervain_gsi::Client`].
pub trait Client: Send + Sync {
    /// A MAD has come.
    fn receive(&self, path: &Path, mad: &Mad);

    /// Time has come, or [`wake`] was called; when it wants to be called next.
    fn tick(&self, now: u64) -> u64;

    /// The process that had `slot` has ended.
    fn gone(&self, slot: u32);
}

/// QP 1, as one process has it.
pub struct Gsi {
    devices: Vec<Arc<Device>>,
    /// The user whose processes are believed.
    user: Arc<User>,
    events: Events,
    client: OnceLock<Arc<dyn Client>>,
    /// 0 before a client is attached.
    slot: AtomicU32,
    doors: OwnerLock<Doors>,
    /// Held while services are claimed and given back, and so while carriers are told, which takes milliseconds: not by the progress thread.
    claiming: OwnerLock<()>,
    outbox: Outbox,
    peers: Peers,
    inbox: OwnerLock<VecDeque<Message>>,
    /// What was to be sent while the process was stopped.
    held: OwnerLock<VecDeque<(Path, Mad)>>,
    /// A client is attached, or something was handed on.
    is_in_use: AtomicBool,
    has_news: AtomicBool,
    deadline: AtomicU64,
}

/// Where an address of this host stands.
struct Place {
    device: u32,
    port: u8,
    index: u8,
}

impl Gsi {
    /// That of a process that is being made.
    pub(crate) fn new(devices: &[Arc<Device>], user: Arc<User>) -> Result<Arc<Gsi>> {
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

    /// The user; EPERM where this one cannot be told from others.
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

    /// The doors; not before a process that is parked has its sockets again.
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

    /// Has carriers lead here what is for this process. Called with `claiming` held.
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
        // Where one of two is for any address, the kernel's rdma_cm says so (cma_check_port).
        let in_use = |errno| Error::new(errno, format!("service {:#x} is claimed already", claim.service));
        let same = claim.address.map_or(libc::EADDRNOTAVAIL, |_| libc::EADDRINUSE);
        let purpose = Purpose::Service(claim);
        let opened = self.doors_when_there().open(uid, &self.events, purpose);
        opened.map_err(|e| if e == Errno::ADDRINUSE { in_use(same) } else { os_error("cannot claim a service", e) })?;
        // Only now, so that of two that claim at once one at least sees the other.
        let claimed =
            if self.conflicts(uid, &claim) { Err(in_use(libc::EADDRNOTAVAIL)) } else { self.tell_carriers(process) };
        claimed.inspect_err(|_| {
            self.doors.lock().close(purpose);
            // Some may have been told of it.
            let _ = self.tell_carriers(process);
        })
    }

    /// Whether another process has claimed the service at an address that this claim has too.
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

    pub(crate) fn device(&self, index: u32) -> Result<&Arc<Device>> {
        self.devices.get(index as usize).ok_or_else(|| Error::invalid(format!("there is no device {index}")))
    }

    // ---- addresses -------------------------------------------------------------------------------------------------

    /// The addresses of all ports.
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

    /// Whether an address is one of this host.
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
            // The other process may be parked by now, as this one is.
            Err(e) if e.errno() == libc::ECONNREFUSED && process.is_stopped() => self.hold(path, mad),
            sent => sent,
        }
    }

    /// Has a MAD wait until the process goes on.
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

    /// Sends to a process of this host.
    pub(crate) fn send_here(
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

    /// Sends to the process of this host that a MAD is for. ECONNREFUSED if there is none.
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

    /// MADs are exchanged with a process of this host.
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

    /// Takes a message that has come by a door, if it belongs there.
    fn take(&self, purpose: Purpose, message: Message) {
        let belongs = mad::addressee(&message.mad).is_some_and(|whom| purpose.takes(whom, &message.to));
        let is_believed = message.origin == Origin::Carrier || self.is_here(&message.from);
        if belongs && is_believed {
            self.keep(message);
        }
    }

    /// Takes a MAD that a carrier has received, or hands it on to the process that it is for. False if it is for none. May be called with
    /// locks of the carrier held.
    pub(crate) fn arrived(&self, message: Message) -> bool {
        let Some(whom) = mad::addressee(&message.mad) else { return false };
        if !self.doors.lock().take(whom, &message.to) {
            match self.put(whom, &message) {
                // That nobody has claimed a service, somebody has to say.
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

    /// The slot of the process of this host that has sent a message, by a carrier too.
    fn sender(&self, message: &Message) -> Option<u32> {
        match message.origin {
            Origin::Process(slot) => Some(slot),
            Origin::Carrier => mad::sender(&message.mad).filter(|_| self.is_here(&message.from)),
        }
    }

    fn keep(&self, message: Message) {
        let mut inbox = self.inbox.lock();
        // As if the socket had been full.
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

    /// Gives the client what has come, and what else it is to hear of: the ends of peers only where all is here that they have said. Called
    /// with no lock held.
    fn deliver(&self, process: &'static Process, all_is_said: bool) {
        let held: Vec<_> = self.held.lock().drain(..).collect();
        for (path, mad) in held {
            // Datagrams may be lost.
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

/// Whether a process has this name.
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
        // Time stands still for a process that is stopped; this is asked again when that is over.
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
        // What they have said before they ended comes first, by whatever way.
        let mut all_is_said = true;
        if self.peers.have_ended() {
            self.take_all();
            all_is_said = process.take_in_packets();
        }
        let handled = process.handle_packets(|| {
            rooms.iter().for_each(|number| self.outbox.go_on(*number));
            self.outbox.resume(&self.events);
            self.deliver(process, all_is_said);
        });
        if handled.is_none() {
            // Nothing is sent any more, for whom it is for may be parked.
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
    /// Takes all that lies at the doors.
    fn take_all(&self) {
        let mut come = Vec::new();
        self.doors.lock().receive_all(&self.user, |purpose, message| come.push((purpose, message)));
        come.into_iter().for_each(|(purpose, message)| self.take(purpose, message));
    }
}

// ---- what the C interface calls ------------------------------------------------------------------------------------

/// The process and its QP 1; EINVAL before [`attach`].
fn current() -> Result<(&'static Process, Arc<Gsi>)> {
    let process = Process::current();
    let gsi = CURRENT.lock().clone();
    let both = process.zip(gsi).filter(|(_, gsi)| gsi.is_attached());
    both.ok_or_else(|| Error::invalid("the process has no connection manager attached"))
}

fn claim_of(service: u64, address: &Gid) -> ServiceClaim {
    ServiceClaim { service, address: (*address != ANY).then_some(*address) }
}

/// MADs for this process go to `client` from now on. EBUSY if they go to another.
pub fn attach(client: Arc<dyn Client>) -> Result<()> {
    crate::start_logging();
    crate::roce::net::check_environment()?;
    let process = table::start(crate::ways)?;
    let gsi = CURRENT.lock().clone().ok_or_else(|| Error::invalid("the process has no QP 1"))?;
    gsi.attach(process, client)
}

/// The process slot that communication identifiers begin with; 0 before [`attach`].
pub fn slot() -> u32 {
    current().map_or(0, |(_, gsi)| gsi.slot.load(Ordering::Acquire))
}

/// REQs and SIDR_REQs for `service` that come to `address`, or to any with [`ANY`], are for this process from now on. EADDRINUSE where
/// another has it, or this one, and EADDRNOTAVAIL if either has it at any address; EADDRNOTAVAIL for an address that this host has not.
pub fn claim(service: u64, address: &Gid) -> Result<()> {
    let (process, gsi) = current()?;
    gsi.claim(process, claim_of(service, address))
}

/// Takes that back.
pub fn release(service: u64, address: &Gid) -> Result<()> {
    let (process, gsi) = current()?;
    gsi.release(process, claim_of(service, address))
}

/// Sends a MAD. ECONNREFUSED: the other end is on this host, and no process takes it; EAGAIN: it has no room now. Others as of
/// [`vervain_hca::Ah::create`].
pub fn send(path: &Path, mad: &Mad) -> Result<()> {
    let (process, gsi) = current()?;
    gsi.send(process, path, mad)
}

/// Finds out whether the host at the other end of a path can be reached, within `patience`, but a second at least: ENETUNREACH, EHOSTUNREACH,
/// ETIMEDOUT.
pub fn resolve(path: &Path, patience: Duration) -> Result<()> {
    let (process, gsi) = current()?;
    let ah = gsi.ah(path);
    let way = QpTable::of(process)?.router().way_of_mads(path.device, &ah)?;
    way.map_or(Ok(()), |carrier| {
        carrier.check_source(process, path.device, &ah)?;
        carrier.resolve(path.device, &ah, patience)
    })
}

/// Has the client's [`Client::tick`] called by the progress thread soon.
pub fn wake() {
    if let Ok((process, gsi)) = current() {
        gsi.deadline.store(0, Ordering::SeqCst);
        process.wake_progress();
    }
}
