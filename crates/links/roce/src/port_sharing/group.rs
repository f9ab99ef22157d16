//! The group of sockets at one address. The kernel picks from it by index, and the last socket moves into the place of
//! one that is closed. So none is ever closed while the group has a member: each also lies, as a descriptor in flight
//! (`man 7 unix`, SCM_RIGHTS), in the queue of a socket pair that all members hold, the descriptor store. Message k
//! there is the socket with index k. The table, a memfd beside the sink in message 0, maps slots to sockets.
//!
//! Every change requires the turn ([`super::group_lock`]), and its process may be killed at any point of it. So a
//! socket is in the descriptor store before the table names it, and the kernel is asked if an entry's process lives.

use super::mailbox::Caller;
use super::program::{self, Management};
use super::sys;
use super::{Doors, Names, VERSION, udp};
use crate::net::options;
use crate::net::sys::{refill, vacate};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use vervain_hca::arena::layout::{SLOTS, SLOTS_PER_PROCESS};
use vervain_hca::{Error, Result};
use vervain_share::sys::without_sigxfsz;
use vervain_sockets::unix::{self, Private};

/// Bytes of a message in the descriptor store; their values do not matter, and messages are found by their distance.
const STRIDE: usize = 8;
/// Bytes of room for descriptors in flight. The kernel gives what net.core.wmem_max allows; the default is enough for
/// some 500.
const VAULT_BYTES: i32 = 4 << 20;
/// Slots of one member, 0: none. The entry of the sink has the version of the table instead.
type Entry = [u32; SLOTS_PER_PROCESS];
const ENTRY: usize = size_of::<Entry>();
/// Entries: as many as there are slots, the first for the sink.
const ENTRIES: usize = SLOTS as usize;
/// Records behind the entries, for packets of QP 1: service ID, slot, kind. A free one has slot 0.
const RECORDS: usize = 4096;
const RECORD: usize = 16;

/// Roles of the process with a record's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// It has claimed the service.
    Service = 1,
    /// It answers requests for services that nobody has claimed.
    Taker = 2,
}

/// A record of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Record {
    kind: Kind,
    slot: u32,
    service: u64,
}

impl Record {
    fn to_bytes(record: Option<Record>) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        if let Some(Record { kind, slot, service }) = record {
            bytes[..8].copy_from_slice(&service.to_ne_bytes());
            bytes[8..12].copy_from_slice(&slot.to_ne_bytes());
            bytes[12..].copy_from_slice(&(kind as u32).to_ne_bytes());
        }
        bytes
    }

    fn of(bytes: &[u8]) -> Option<Record> {
        let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
        let kind = [Kind::Service, Kind::Taker].into_iter().find(|kind| *kind as u32 == word(12))?;
        let service = u64::from_ne_bytes(std::array::from_fn(|i| bytes[i]));
        Some(Record { kind, slot: word(8), service }).filter(|record| (1..SLOTS).contains(&record.slot))
    }
}

/// The packets of QP 1 that a process gets: all with its slot, requests for these services, and a share of the requests
/// for services that nobody has claimed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// A slot of the process.
    pub slot: u32,
    /// Service IDs.
    pub services: Vec<u64>,
}

impl Served {
    fn records(&self) -> BTreeSet<Record> {
        let record = |kind, service| Record { kind, slot: self.slot, service };
        let services = self.services.iter().map(|service| record(Kind::Service, *service));
        [record(Kind::Taker, 0)].into_iter().chain(services).collect()
    }
}

/// A member's descriptors of the group.
pub struct Group {
    fd_store: [Private; 2],
    sink: Private,
    table: Private,
}

/// Ends of the descriptor store: messages go into one, and are looked at in the other.
const IN: usize = 0;
const OUT: usize = 1;

impl Group {
    /// Begins the group of an address that has none.
    pub fn create(names: &Names) -> Result<Group> {
        udp::must_be_vacant(names)?;
        let sink = udp::sink(names)?;
        udp::must_be_alone(names, 1)?;
        let made = || -> io::Result<Group> {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let (put, look) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
            options::set(put.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, &VAULT_BYTES)?;
            let table = rustix::fs::memfd_create("vervain-port", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            without_sigxfsz(|| rustix::fs::ftruncate(&table, (ENTRIES * ENTRY + RECORDS * RECORD) as u64))?;
            rustix::fs::fcntl_add_seals(&table, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
            let group = Group {
                fd_store: [put, look].map(Private::keep),
                sink: Private::keep(sink),
                table: Private::keep(table),
            };
            group.write(0, &[VERSION, 0, 0, 0])?;
            group.store(&[group.sink.as_fd(), group.table.as_fd()])?;
            Ok(group)
        };
        made().map_err(|e| failure(names, &e))
    }

    /// The group whose descriptor store a member has sent.
    pub fn open(names: &Names, fd_store: [OwnedFd; 2]) -> Result<Group> {
        let fd_store = fd_store.map(Private::keep);
        let looked = look(&fd_store[OUT], 0).map_err(|e| failure(names, &e))?;
        let Some([sink, table]) = looked.and_then(|fds| <[OwnedFd; 2]>::try_from(fds).ok()) else {
            return Err(names.error(libc::EPROTO, "a member has handed over something else than a fd_store"));
        };
        Ok(Group { fd_store, sink: Private::keep(sink), table: Private::keep(table) })
    }

    /// Leaves the group. Its descriptors stand for nothing until [`Group::take_over`].
    pub fn leave(&self) -> io::Result<()> {
        self.each().try_for_each(|held| vacate(held.as_fd()))
    }

    /// Makes the descriptors stand for the same as those of `other`.
    pub fn take_over(&self, other: &Group) -> io::Result<()> {
        self.each()
            .zip(other.each())
            .try_for_each(|(held, new)| refill(held.as_fd(), new.as_fd().try_clone_to_owned()?))
    }

    fn each(&self) -> impl Iterator<Item = &Private> {
        self.fd_store.iter().chain([&self.sink, &self.table])
    }

    /// The descriptor store, for a process that joins.
    pub fn fd_store(&self) -> [BorrowedFd<'_>; 2] {
        [self.fd_store[IN].as_fd(), self.fd_store[OUT].as_fd()]
    }

    /// Packets that the kernel dropped because no process has their slot.
    pub fn unclaimed(&self) -> u32 {
        sys::drops(self.sink.as_fd())
    }

    /// Takes a place in the group for one more process. Returns its index and the socket. `bind` makes a socket that
    /// shares the address. Called with the turn; leaves no route to a process that is gone.
    pub fn take_place(
        &self,
        names: &Names,
        doors: &Doors,
        bind: &dyn Fn() -> Result<OwnedFd>,
    ) -> Result<(u32, OwnedFd)> {
        let entries = self.live_entries(names, doors)?;
        self.route(names, &entries, &[], None)?;
        for index in 1..ENTRIES {
            if entries.get(index).is_some_and(|e| e[0] != 0) {
                continue;
            }
            // Drops packets for the last owner, which are nobody's any more. A socket may also be here because its
            // maker ended before the table named it.
            if let Some(socket) = self.socket(names, index)? {
                udp::drain(&socket);
                return Ok((index as u32, socket));
            }
            let socket = bind()?;
            udp::must_be_alone(names, index + 1)?;
            self.store(&[socket.as_fd()]).map_err(|e| failure(names, &e))?;
            return Ok((index as u32, socket));
        }
        Err(names.error(libc::ENOMEM, &format!("{} processes share the port", ENTRIES - 1)))
    }

    /// Makes `slots`, whose mailboxes the caller has opened, lead to the socket with this index and no other, along
    /// with the packets of QP 1 in `served`. Called with the turn.
    pub fn lead(&self, names: &Names, doors: &Doors, index: u32, slots: &[u32], served: Option<&Served>) -> Result<()> {
        let mut entry = Entry::default();
        let Some(places) = entry.get_mut(..slots.len()) else {
            return Err(Error::invalid(format!("a process has {SLOTS_PER_PROCESS} slots at most")));
        };
        places.copy_from_slice(slots);
        self.write(index as usize, &entry).map_err(|e| failure(names, &e))?;
        let mut entries = self.live_entries(names, doors)?;
        for (other, entry) in entries.iter_mut().enumerate().skip(1).filter(|(other, _)| *other != index as usize) {
            // Its process has ended since the last look: the mailboxes by which it would seem alive are the caller's
            // now.
            if entry.iter().any(|slot| *slot != 0 && slots.contains(slot)) {
                *entry = Entry::default();
                self.write(other, entry).map_err(|e| failure(names, &e))?;
            }
        }
        self.route(names, &entries, slots, served)
    }

    /// The table, from which entries of dead processes are removed.
    fn live_entries(&self, names: &Names, doors: &Doors) -> Result<Vec<Entry>> {
        let mut entries = self.entries().map_err(|e| failure(names, &e))?;
        if entries[0][0] != VERSION {
            return Err(names.other_version(entries[0][0]));
        }
        let caller = Caller::default();
        for (index, entry) in entries.iter_mut().enumerate().skip(1) {
            if entry[0] != 0 && !caller.is_live(names, doors, entry[0]) {
                *entry = Entry::default();
                self.write(index, entry).map_err(|e| failure(names, &e))?;
            }
        }
        let used = entries.iter().rposition(|e| e[0] != 0).map_or(1, |last| last + 1);
        entries.truncate(used);
        Ok(entries)
    }

    /// Writes the program for the table. The records of the member that has `slots` become those of `served`.
    fn route(&self, names: &Names, entries: &[Entry], slots: &[u32], served: Option<&Served>) -> Result<()> {
        let members = entries.iter().enumerate().skip(1);
        let routes = members.flat_map(|(index, entry)| {
            entry.iter().filter(|slot| (1..SLOTS).contains(*slot)).map(move |slot| (*slot, index as u32))
        });
        let routes: Vec<(u32, u32)> = routes.collect();
        let by_slot: BTreeMap<u32, u32> = routes.iter().copied().collect();
        let records = self.change_records(|record| by_slot.contains_key(&record.slot), slots, served);
        let records = records.map_err(|e| failure(names, &e))?;
        let mut management = Management::default();
        for Record { kind, slot, service } in records {
            match (kind, by_slot.get(&slot)) {
                (Kind::Service, Some(index)) => management.services.push((service, *index)),
                (Kind::Taker, Some(index)) => management.takers.push(*index),
                (_, None) => {}
            }
        }
        program::attach(self.sink.as_fd(), &routes, management).map_err(|e| failure(names, &e))
    }

    /// Frees the records of dead processes, and those of `slots` that are not in `served`, and makes the missing ones.
    /// Packets of a record without a place are handed on by their receiver. Returns the records. Each is written by
    /// itself, so that a process killed meanwhile leaves the others' whole.
    fn change_records(
        &self,
        lives: impl Fn(&Record) -> bool,
        slots: &[u32],
        served: Option<&Served>,
    ) -> io::Result<Vec<Record>> {
        let mut wanted = served.map(Served::records).unwrap_or_default();
        let mut records = self.records()?;
        for (place, held) in records.iter_mut().enumerate() {
            let Some(record) = *held else { continue };
            if !wanted.remove(&record) && (!lives(&record) || slots.contains(&record.slot)) {
                *held = None;
                self.write_record(place, None)?;
            }
        }
        let free = records.iter_mut().enumerate().filter(|(_, held)| held.is_none());
        for ((place, held), record) in free.zip(wanted) {
            *held = Some(record);
            self.write_record(place, *held)?;
        }
        Ok(records.into_iter().flatten().collect())
    }

    fn records(&self) -> io::Result<Vec<Option<Record>>> {
        let mut bytes = vec![0; RECORDS * RECORD];
        let length = rustix::io::pread(&self.table, &mut bytes[..], (ENTRIES * ENTRY) as u64)?;
        if length != bytes.len() {
            return Err(Errno::PROTO.into());
        }
        Ok(bytes.chunks_exact(RECORD).map(Record::of).collect())
    }

    fn write_record(&self, place: usize, record: Option<Record>) -> io::Result<()> {
        let at = (ENTRIES * ENTRY + place * RECORD) as u64;
        let written = rustix::io::pwrite(&self.table, &Record::to_bytes(record), at)?;
        if written == RECORD { Ok(()) } else { Err(Errno::IO.into()) }
    }

    /// The socket with this index; None: the group has fewer.
    fn socket(&self, names: &Names, index: usize) -> Result<Option<OwnedFd>> {
        let fds = look(&self.fd_store[OUT], index).map_err(|e| failure(names, &e))?;
        Ok(fds.and_then(|mut fds| fds.pop()))
    }

    fn store(&self, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(fds));
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(&self.fd_store[IN], &[IoSlice::new(&[0; STRIDE])], &mut control, flags)?;
        Ok(())
    }

    fn entries(&self) -> io::Result<Vec<Entry>> {
        let mut bytes = [0; ENTRIES * ENTRY];
        let length = rustix::io::pread(&self.table, &mut bytes[..], 0)?;
        if length != bytes.len() {
            return Err(Errno::PROTO.into());
        }
        let word = |bytes: &[u8]| u32::from_ne_bytes(bytes.try_into().unwrap_or_default());
        let entry = |bytes: &[u8]| std::array::from_fn(|i| word(&bytes[4 * i..4 * i + 4]));
        Ok(bytes.chunks_exact(ENTRY).map(entry).collect())
    }

    fn write(&self, index: usize, entry: &Entry) -> io::Result<()> {
        let bytes: Vec<u8> = entry.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let written = rustix::io::pwrite(&self.table, &bytes, (index * ENTRY) as u64)?;
        if written == bytes.len() { Ok(()) } else { Err(Errno::IO.into()) }
    }
}

/// The descriptors of message `index` of the descriptor store, which stay there.
fn look(fd_store: &Private, index: usize) -> io::Result<Option<Vec<OwnedFd>>> {
    // The distance belongs to the socket, not to this process, but this process has the turn.
    options::set(fd_store.as_fd(), libc::SOL_SOCKET, libc::SO_PEEK_OFF, &((index * STRIDE) as i32))?;
    match unix::receive(fd_store.as_fd(), &mut [0; STRIDE], libc::MSG_PEEK) {
        // The kernel leaves out descriptors for which this process has no place; every message has some.
        Ok(message) if message.fds.is_empty() => Err(io::Error::from_raw_os_error(libc::EMFILE)),
        Ok(message) => Ok(Some(message.fds)),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(e) => Err(e),
    }
}

fn failure(names: &Names, e: &io::Error) -> Error {
    let errno = e.raw_os_error().unwrap_or(libc::EIO);
    match errno {
        // The limits are one per user on descriptors in flight (`man 7 unix`, ETOOMANYREFS), and the room of the
        // descriptor store.
        libc::ETOOMANYREFS | libc::EAGAIN | libc::ENOBUFS => {
            names.error(errno, "too many processes share the port for the limit of open files or net.core.wmem_max")
        }
        _ => names.error(errno, &e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::mailbox::Mailbox;
    use super::*;

    #[test]
    fn a_slot_leads_to_its_heir_whenever_its_owner_ended() {
        let names = Names { at: ([127, 8, 0, std::process::id() as u8], 4791).into() };
        let group = Group::create(&names).unwrap();
        let (owner, other) = (1, 2);
        let (uid, none) = (rustix::process::geteuid().as_raw(), Doors::default());
        let _doors = [7, 8, 9].map(|slot| Mailbox::open(&names, uid, slot).unwrap());
        group.lead(&names, &none, owner, &[8, 9], None).unwrap();
        group.lead(&names, &none, other, &[7], None).unwrap();
        // The owner of 8 and 9 ends after its heir's look for living processes, and before the heir opens the mailbox
        // of 8.
        group.lead(&names, &none, 3, &[8], None).unwrap();
        let slots = || group.entries().unwrap()[1..5].iter().map(|e| e[0]).collect::<Vec<_>>();
        assert_eq!(slots(), [0, 7, 8, 0]);
        // Another user has opened a mailbox in the name of a member that has ended.
        group.lead(&names, &Doors { strange: [7].into(), ..Doors::default() }, 3, &[8], None).unwrap();
        assert_eq!(slots(), [0, 0, 8, 0]);
    }

    #[test]
    fn records_of_the_dead_go_and_those_of_others_stay_where_they_are() {
        let names = Names { at: ([127, 8, 3, std::process::id() as u8], 4791).into() };
        let group = Group::create(&names).unwrap();
        let (uid, none) = (rustix::process::geteuid().as_raw(), Doors::default());
        let open = |slot| Mailbox::open(&names, uid, slot).unwrap();
        let [_first, second, _third] = [7, 8, 9].map(open);
        let lead = |index, slot, services: &[u64]| {
            let served = Served { slot, services: services.to_vec() };
            group.lead(&names, &none, index, &[slot], Some(&served)).unwrap();
        };
        let of = |kind| {
            let records = group.records().unwrap().into_iter().enumerate();
            let of_kind = records.filter_map(|(place, record)| Some(place).zip(record.filter(|r| r.kind == kind)));
            of_kind.map(|(place, record)| (place, record.slot, record.service)).collect::<Vec<_>>()
        };
        lead(1, 7, &[70, 71]);
        lead(2, 8, &[80]);
        lead(3, 9, &[90]);
        assert_eq!(of(Kind::Taker), [(2, 7, 0), (4, 8, 0), (6, 9, 0)]);
        assert_eq!(of(Kind::Service), [(0, 7, 70), (1, 7, 71), (3, 8, 80), (5, 9, 90)]);
        // One gives a service back and claims two; one has ended.
        drop(second);
        lead(1, 7, &[71, 72, 73]);
        assert_eq!(of(Kind::Service), [(0, 7, 72), (1, 7, 71), (3, 7, 73), (5, 9, 90)]);
        // Another process gets the slot of one that has ended, and serves nothing.
        let _heir = open(8);
        lead(2, 8, &[]);
        group.lead(&names, &none, 1, &[7], None).unwrap();
        assert_eq!((of(Kind::Taker), of(Kind::Service)), (vec![(4, 8, 0), (6, 9, 0)], vec![(5, 9, 90)]));
    }
}
