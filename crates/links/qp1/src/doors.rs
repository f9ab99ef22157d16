//! Sockets for MADs of this host's processes: one for this process's slot, and one for each service that it has
//! claimed. A socket's name is the claim: the kernel gives it to one process, and frees it when that process ends.

use super::events::{Events, Token};
use super::mad::Addressee;
use super::message::{Message, actual_gid};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::net::Ipv6Addr;
use std::result::Result;
use vervain_hca::Gid;
use vervain_hca::qp::carrier::ServiceClaim;
use vervain_sockets::unix::{self, Private};
use vervain_sockets::user::User;

/// Most messages taken from one door in one visit.
const MESSAGES: usize = 64;
/// Visits that take all that a socket can hold (net.unix.max_dgram_qlen, 10 by default).
const VISITS: usize = 16;

/// Name of the socket for MADs to `service` at `address`; None: at any address.
pub fn name_of_service(uid: u32, service: u64, address: Option<&Gid>) -> String {
    vervain_names::service(uid, service, address.map(|gid| Ipv6Addr::from(actual_gid(gid))))
}

/// Purpose of a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Messages whose identifiers begin with this slot.
    Slot(u32),
    /// Requests for a service.
    Service(ServiceClaim),
}

impl Purpose {
    fn name(&self, uid: u32) -> String {
        match self {
            Purpose::Slot(slot) => vervain_names::management(uid, *slot),
            Purpose::Service(claim) => name_of_service(uid, claim.service, claim.address.as_ref()),
        }
    }

    /// Returns true if a MAD for `whom`, sent to address `to`, belongs here.
    pub fn takes(&self, whom: Addressee, to: &Gid) -> bool {
        match (self, whom) {
            (Purpose::Slot(slot), Addressee::Slot(whose)) => *slot == whose,
            (Purpose::Service(claim), Addressee::Service(service)) => {
                claim.service == service && claim.address.is_none_or(|address| address == *to)
            }
            _ => false,
        }
    }
}

/// A door.
struct Door {
    number: u32,
    purpose: Purpose,
    /// None while the process is parked without its sockets.
    socket: Option<Private>,
}

impl Door {
    fn open(&mut self, uid: u32, events: &Events) -> Result<(), Errno> {
        let socket = unix::named(&self.purpose.name(uid))?;
        events.watch(&socket, Token::Door(self.number))?;
        self.socket = Some(socket);
        Ok(())
    }

    /// Takes up to [`MESSAGES`] messages of this user's processes. Returns true if there may be more.
    fn receive(&self, user: &User, each: &mut impl FnMut(Purpose, Message)) -> bool {
        let Some(socket) = &self.socket else { return false };
        // One byte more than a message has, so that a longer one is noticed.
        let mut bytes = [0; super::message::MESSAGE + 1];
        for _ in 0..MESSAGES {
            match unix::receive(socket.as_fd(), &mut bytes, 0) {
                Ok(received) if received.uid.is_some_and(|uid| user.is_of((received.pid, uid))) => {
                    if let Some(message) = Message::of(&bytes[..received.length]) {
                        each(self.purpose, message);
                    }
                }
                Ok(_) => {}
                Err(_) => return false,
            }
        }
        true
    }
}

/// All doors of a process.
#[derive(Default)]
pub struct Doors {
    doors: Vec<Door>,
    next: u32,
    have_left: bool,
}

impl Doors {
    /// Opens a door. EADDRINUSE: the name is taken.
    pub fn open(&mut self, uid: u32, events: &Events, purpose: Purpose) -> Result<(), Errno> {
        let mut door = Door { number: self.next, purpose, socket: None };
        door.open(uid, events)?;
        self.next = self.next.wrapping_add(1);
        self.doors.push(door);
        Ok(())
    }

    /// Closes a door; messages in its socket are lost.
    pub fn close(&mut self, purpose: Purpose) {
        self.doors.retain(|door| door.purpose != purpose);
    }

    /// The claimed services.
    pub fn services(&self) -> impl Iterator<Item = ServiceClaim> {
        self.doors.iter().filter_map(|door| match door.purpose {
            Purpose::Service(claim) => Some(claim),
            Purpose::Slot(_) => None,
        })
    }

    /// Returns true if a MAD for `whom`, sent to `to`, is for this process.
    pub fn take(&self, whom: Addressee, to: &Gid) -> bool {
        self.doors.iter().any(|door| door.purpose.takes(whom, to))
    }

    /// Returns true if the process is parked without its sockets.
    pub fn have_left(&self) -> bool {
        self.have_left
    }

    /// Takes messages from the door with this number, as many as one visit takes.
    pub fn receive(&self, number: u32, user: &User, mut each: impl FnMut(Purpose, Message)) {
        self.doors.iter().filter(|door| door.number == number).for_each(|door| {
            door.receive(user, &mut each);
        });
    }

    /// Takes all messages that lie at any door. A limit on the visits ends it where more keep coming, as from another
    /// user, whose messages are dropped: a socket holds few at a time.
    pub fn receive_all(&self, user: &User, mut each: impl FnMut(Purpose, Message)) {
        for door in &self.doors {
            let _ = (0..VISITS).find(|_| !door.receive(user, &mut each));
        }
    }

    /// Closes the sockets of a process that is stopped.
    pub fn leave(&mut self) {
        self.have_left = true;
        self.doors.iter_mut().for_each(|door| door.socket = None);
    }

    /// Opens the sockets again, all or none, under the names that follow from the present addresses.
    pub fn rejoin(&mut self, uid: u32, events: &Events) -> Result<(), Errno> {
        if let Err(error) = self.doors.iter_mut().try_for_each(|door| door.open(uid, events)) {
            self.leave();
            return Err(error);
        }
        self.have_left = false;
        Ok(())
    }
}
