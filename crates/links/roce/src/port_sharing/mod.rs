//! Sharing of UDP port 4791 of an address by the processes of a user. Each has a socket there, bound with SO_REUSEPORT;
//! a program in the kernel picks the socket by the process slot in the destination QPN (`program`). `group` keeps the
//! order of the sockets, also when processes end; members reach each other by `mailbox`. No process depends on another:
//! each that joins does all the work itself, one at a time (`turn`).
//!
//! docs/port-sharing.md has the details.

mod deadline;
mod group;
mod group_lock;
mod join;
#[cfg(test)]
#[path = "tests/listener_process.rs"]
mod listener_process;
mod mailbox;
mod misrouted;
mod program;
mod sys;
mod udp;

pub use group::Served;
pub use misrouted::{Misrouted, qpn_of_packet, slot_of_packet};

use crate::net::Datagram;
use crate::net::sys::{refill, vacate};
use group::Group;
use group_lock::GroupLock;
use mailbox::{HEAD, MOST, Mailbox, Word};
use misrouted::Origin;
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::SocketType;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use vervain_hca::arena::layout::SLOTS_PER_PROCESS;
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::{Error, Result};
use vervain_names::Other;
use vervain_sockets::unix::Private;

/// Version of the messages, the descriptor store, the table and the options of the sockets. Processes of different
/// versions do not share an address; that they can say so needs `HEAD` bytes with the version in the same place.
const VERSION: u32 = 3;
/// Index of the socket that nobody reads.
const SINK: u32 = 0;
/// Messages taken from a mailbox in one visit.
const MESSAGES: usize = 16;

/// Fates of misrouted packets, in packets.
#[derive(Default)]
pub struct Counters {
    /// Handed to their owner.
    pub handed_over: Count,
    /// Dropped because their owner did not take those before.
    pub not_taken: Count,
    /// Dropped because nobody has their slot.
    pub unowned: Count,
    /// Got from others that received them.
    pub adopted: Count,
}

/// A number that only grows.
#[derive(Default)]
pub struct Count(AtomicU64);

impl Count {
    fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// So far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Names of everything that belongs to one address, in the abstract namespace of unix sockets, which is the network
/// namespace's as the address is. They do not tell the user: one user at a time can have the address.
#[derive(Clone, Copy)]
struct Names {
    at: SocketAddr,
}

impl Names {
    fn turn(&self) -> String {
        vervain_names::turn(self.at)
    }

    fn mailbox(&self, slot: u32) -> String {
        vervain_names::mailbox(self.at, slot)
    }

    fn error(&self, errno: i32, why: &str) -> Error {
        Error::new(errno, format!("cannot receive RoCE packets at {}: {why}", self.at))
    }

    fn other_user(&self, other: &Other) -> Error {
        let remedy = vervain_names::REMEDY;
        let why = format!("processes of another user have that port ({other}, as seen from here): {remedy}");
        self.error(libc::EADDRINUSE, &why)
    }

    /// The error of a name that another user has, if it is so; [`Names::other_user`] is that of a whole group.
    fn taken_by_another(&self, kind: SocketType, name: &str, uid: u32) -> Option<Error> {
        let mut holders = vervain_names::holders(kind, name).ok()?;
        holders.retain(|holder| holder.name == name);
        let other = vervain_names::others(&holders, uid).into_iter().next()?;
        let why = format!("another user has the name @{name} ({other}): {}", vervain_names::REMEDY);
        Some(self.error(libc::EADDRINUSE, &why))
    }

    /// The open mailboxes. The holder of the turn asks this once: meanwhile mailboxes of this user open and close only
    /// where their processes end.
    fn doors(&self, uid: u32) -> Doors {
        let prefix = vervain_names::mailboxes(self.at);
        let mut doors = Doors::default();
        // If the kernel does not list them, this user's are found by trying.
        for holder in vervain_names::holders(SocketType::DGRAM, &prefix).unwrap_or_default() {
            let Some(slot) = holder.name.strip_prefix(&prefix).and_then(|slot| slot.parse().ok()) else { continue };
            let is_strange = holder.uid.is_some_and(|of| of != uid);
            if is_strange { &mut doors.strange } else { &mut doors.listed }.insert(slot);
        }
        doors
    }

    fn other_view(&self, theirs: u32, mine: u32) -> Error {
        let why = "processes of this user in another user namespace have that port";
        self.error(libc::EADDRINUSE, &format!("{why} (there they are uid {theirs}, here uid {mine})"))
    }

    fn other_version(&self, theirs: u32) -> Error {
        let why = "processes with another version of Vervain have that port";
        self.error(libc::EADDRINUSE, &format!("{why} (its sharing is version {theirs}, here {VERSION})"))
    }
}

/// Trains of packets that are kept: as much as a socket's buffer holds, and far more than come while others join.
const MOST_KEPT: usize = 128;

/// Slots with an open mailbox, as the kernel lists them.
#[derive(Default)]
struct Doors {
    /// Opened by this user, or by nobody knows whom. A list may lack mailboxes that are open: the kernel makes it in
    /// pieces, while others come and go.
    listed: BTreeSet<u32>,
    /// Opened by another user.
    strange: BTreeSet<u32>,
}

/// A process's part in an address.
pub struct Sharing {
    /// Names for the present address; changed only while this process has left.
    names: OwnerLock<Names>,
    uid: u32,
    index: AtomicU32,
    epoll: Private,
    /// One for each slot. Above the group, so that they go first: who has no mailbox is taken for dead.
    mailboxes: [OnceLock<Mailbox>; SLOTS_PER_PROCESS],
    group: Group,
    /// This process's part of QP 1. Changed with the turn.
    served: OwnerLock<Option<Served>>,
    buffer: OwnerLock<Vec<u8>>,
    /// Trains of packets that others have received while this process was stopped. Taken after `buffer`.
    kept: OwnerLock<Vec<(Origin, Vec<u8>)>>,
    counters: Counters,
}

impl Sharing {
    /// Joins the processes of this user that receive at `at`, as the owner of `slots`, with what is `served` of QP 1,
    /// and returns the socket to receive by. `bind` makes one, bound to `at` with SO_REUSEPORT; it is not called when
    /// there is one that a dead process has left behind, which was made in the same way. Once the `Sharing` is dropped,
    /// the socket may be somebody else's.
    ///
    /// Waits for the progress thread of some other member, so the progress thread must not call this: some
    /// milliseconds, or up to 13 s when processes of this user are stopped in the wrong places; two minutes at most
    /// when they get no CPU. EADDRINUSE when another user, another user namespace, another version or another program
    /// has the port or its names, EBUSY when nobody answers, EPERM in a user namespace that does not tell users apart.
    pub fn join(
        at: SocketAddr,
        slots: &[u32],
        served: Option<Served>,
        bind: &dyn Fn() -> Result<OwnedFd>,
    ) -> Result<(Sharing, OwnedFd)> {
        let names = Names { at };
        let uid = vervain_sockets::user::own().map_err(|why| names.error(libc::EPERM, &why))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| os_error(&names, e))?;
        let _lock = GroupLock::take(&names, uid)?;
        let doors = names.doors(uid);
        let group = match join::ask_members(&names, uid, &doors)? {
            Some(fd_store) => Group::open(&names, fd_store)?,
            None => Group::create(&names)?,
        };
        let (index, socket) = group.take_place(&names, &doors, bind)?;
        let (epoll, mailboxes) = (Private::keep(epoll), Default::default());
        let (buffer, counters) = (OwnerLock::default(), Counters::default());
        let sharing = Sharing {
            names: OwnerLock::new(names),
            uid,
            index: AtomicU32::new(index),
            epoll,
            mailboxes,
            group,
            served: OwnerLock::new(served),
            buffer,
            kept: OwnerLock::default(),
            counters,
        };
        for slot in slots {
            sharing.open_door(*slot)?;
        }
        sharing.group.lead(&names, &doors, index, slots, sharing.served.lock().as_ref())?;
        Ok((sharing, socket))
    }

    /// Makes another slot lead here, before any peer learns a QPN in it. Waits like [`Sharing::join`].
    pub fn add_slot(&self, slot: u32) -> Result<()> {
        let names = self.names();
        let _lock = GroupLock::take(&names, self.uid)?;
        self.open_door(slot)?;
        let served = self.served.lock().clone();
        self.lead(&names, served.as_ref())
    }

    /// Delivers packets of QP 1 here that name the slot, one of this process's, or one of these services. Waits like
    /// [`Sharing::join`].
    pub fn serve(&self, served: Served) -> Result<()> {
        let served = Some(served);
        if *self.served.lock() == served {
            return Ok(());
        }
        let names = self.names();
        let _lock = GroupLock::take(&names, self.uid)?;
        self.lead(&names, served.as_ref())?;
        *self.served.lock() = served;
        Ok(())
    }

    /// Makes this process's slots lead here, and the packets of QP 1 in `served`. Called with the turn.
    fn lead(&self, names: &Names, served: Option<&Served>) -> Result<()> {
        let slots: Vec<u32> = self.mailboxes().map(|mailbox| mailbox.slot).collect();
        self.group.lead(names, &names.doors(self.uid), self.index.load(Ordering::Relaxed), &slots, served)
    }

    fn names(&self) -> Names {
        *self.names.lock()
    }

    /// Leaves the group, as a process that ends does: what it holds of it stands for nothing until [`Sharing::rejoin`].
    /// Misrouted that wait are kept before.
    pub fn leave(&self) -> std::io::Result<()> {
        self.handle_events(None);
        let _buffer = self.buffer.lock();
        for mailbox in self.mailboxes() {
            // The description may live on in what others hold, and an entry with it.
            let _ = epoll::delete(&self.epoll, mailbox);
            vacate(mailbox.as_fd())?;
        }
        self.group.leave()
    }

    /// Joins the group of what the address has become, with the slots that it had, and returns the socket to receive
    /// by, as [`Sharing::join`] does.
    pub fn rejoin(&self, at: SocketAddr, bind: &dyn Fn() -> Result<OwnedFd>) -> Result<OwnedFd> {
        let slots: Vec<u32> = self.mailboxes().map(|mailbox| mailbox.slot).collect();
        let (new, socket) = Sharing::join(at, &slots, self.served.lock().clone(), bind)?;
        let names = new.names();
        self.take_over(&new).map_err(|e| names.error(e.raw_os_error().unwrap_or(libc::EIO), &e.to_string()))?;
        *self.names.lock() = names;
        Ok(socket)
    }

    /// Holds what `new` holds of the group.
    fn take_over(&self, new: &Sharing) -> std::io::Result<()> {
        let _buffer = self.buffer.lock();
        self.group.take_over(&new.group)?;
        for (mailbox, of_new) in self.mailboxes().zip(new.mailboxes()) {
            refill(mailbox.as_fd(), of_new.as_fd().try_clone_to_owned()?)?;
            let token = epoll::EventData::new_u64(u64::from(mailbox.slot));
            epoll::add(&self.epoll, mailbox, token, epoll::EventFlags::IN)?;
        }
        self.index.store(new.index.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(())
    }

    fn mailboxes(&self) -> impl Iterator<Item = &Mailbox> {
        self.mailboxes.iter().map_while(OnceLock::get)
    }

    fn open_door(&self, slot: u32) -> Result<()> {
        let names = self.names();
        let mailbox = Mailbox::open(&names, self.uid, slot)?;
        let token = epoll::EventData::new_u64(u64::from(slot));
        let Some(place) = self.mailboxes.iter().find(|place| place.get().is_none()) else {
            return Err(Error::invalid(format!("a process has {SLOTS_PER_PROCESS} slots at most")));
        };
        epoll::add(&self.epoll, &mailbox, token, epoll::EventFlags::IN).map_err(|e| os_error(&names, e))?;
        // Only who has the turn fills a place.
        let _ = place.set(mailbox);
        Ok(())
    }

    /// Readable when there is something for [`Sharing::handle_events`].
    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Answers who joins, and calls `adopt` for packets of this process that others have received; without that they
    /// are kept until there is one. Never waits.
    pub fn handle_events(&self, mut adopt: Option<&mut dyn FnMut(&Datagram<'_>)>) {
        let mut buffer = self.buffer.lock();
        let mut kept = self.kept.lock();
        if let Some(adopt) = &mut adopt {
            for (origin, packets) in kept.drain(..) {
                self.adopt(origin, &packets, *adopt);
            }
        }
        buffer.resize(MOST, 0);
        for mailbox in self.mailboxes() {
            for _ in 0..MESSAGES {
                let Ok(message) = mailbox.receive(&mut buffer) else { break };
                let Some((head, packets)) = buffer[..message.length].split_first_chunk::<HEAD>() else { continue };
                match Word::of(head) {
                    (Some(Word::Misrouted(origin)), _) if message.uid == Some(self.uid) => {
                        match &mut adopt {
                            Some(adopt) => self.adopt(origin, packets, *adopt),
                            None if kept.len() < MOST_KEPT => kept.push((origin, packets.to_vec())),
                            // The packet is lost, as in a full socket.
                            None => {}
                        }
                    }
                    (Some(Word::Ask { uid }), _) if message.uid == Some(self.uid) && uid == self.uid => {
                        if let Some(to) = message.fds.first() {
                            mailbox::answer(to, Word::Welcome, &self.group.fd_store());
                        }
                    }
                    // Another user's misrouted packet has no descriptor.
                    _ => {
                        if let Some(to) = message.fds.first() {
                            mailbox::answer(to, Word::Refused { uid: self.uid }, &[]);
                        }
                    }
                }
            }
        }
    }

    fn adopt(&self, origin: Origin, packets: &[u8], adopt: &mut dyn FnMut(&Datagram<'_>)) {
        for packet in misrouted::packets(origin, packets) {
            // Packets of others are not handed on again: they would go round and round.
            if slot_of_packet(packet.bytes).is_some_and(|slot| self.owns(slot)) {
                self.counters.adopted.add(1);
                adopt(&packet);
            }
        }
    }

    /// Returns true if packets for `slot` are for this process.
    pub fn owns(&self, slot: u32) -> bool {
        self.mailboxes().any(|mailbox| mailbox.slot == slot)
    }

    fn put(&self, slot: u32, origin: Origin, packets: &[u8]) -> SlotOwner {
        let Some(mailbox) = self.mailboxes().next() else { return SlotOwner::IsNobody };
        match mailbox.put(&self.names(), slot, Word::Misrouted(origin), packets) {
            Ok(()) => SlotOwner::Took,
            Err(Errno::CONNREFUSED) => SlotOwner::IsNobody,
            Err(_) => SlotOwner::IsBusy,
        }
    }

    /// Counters of misrouted packets.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Packets to this address that the kernel has dropped because nobody has their slot. The same for all members.
    pub fn unclaimed(&self) -> u64 {
        u64::from(self.group.unclaimed())
    }
}

/// Fate of a message.
enum SlotOwner {
    Took,
    IsBusy,
    IsNobody,
}

fn os_error(names: &Names, e: Errno) -> Error {
    names.error(e.raw_os_error(), &std::io::Error::from(e).to_string())
}
