//! The ports that identifiers of this process have, as QP 1 knows them.

use std::collections::HashMap;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use vervain_gsi::{ANY, Table};

use super::service;

/// Ports for those who ask for none in particular (Linux's net.ipv4.ip_local_port_range, by default).
pub(super) const EPHEMERAL: std::ops::Range<u16> = 32768..60999;
/// The number of them that are tried.
const TRIES: u32 = 4096;

/// A port at an address, as QP 1 knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    service: u64,
    address: [u8; 16],
}

/// The options of an identifier that let another one have its port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sharing {
    pub only_its_family: bool,
    pub reuses_address: bool,
}

/// The claim of an identifier on a place, and its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    place: Place,
    is_ipv4: bool,
    sharing: Sharing,
}

impl Claim {
    pub fn service(&self) -> u64 {
        self.place.service
    }

    pub fn is_at(&self, address: &[u8; 16]) -> bool {
        self.place.address == *address
    }

    /// Returns true if no request is for both: one takes those over IPv4 only, the other those over IPv6.
    pub fn is_apart_from(&self, other: &Claim) -> bool {
        self.place != other.place || self.is_of_another_family(other)
    }

    fn is_of_another_family(&self, other: &Claim) -> bool {
        let is_only_ipv6 = |claim: &Claim| !claim.is_ipv4 && claim.sharing.only_its_family;
        self.is_ipv4 && is_only_ipv6(other) || other.is_ipv4 && is_only_ipv6(self)
    }

    /// Returns true if a request may be for both.
    fn overlaps(&self, other: &Claim) -> bool {
        let (one, another) = (&self.place, &other.place);
        let same = one.address == another.address || [one.address, another.address].contains(&ANY);
        one.service == another.service && same && !self.is_of_another_family(other)
    }
}

/// The claims of identifiers of this process.
pub(super) struct Claims {
    gsi: &'static Table,
    /// Held while a port is claimed or released, and by nobody who takes MADs in.
    all: Mutex<HashMap<Place, Vec<Claim>>>,
}

impl Claims {
    pub fn new(gsi: &'static Table) -> Claims {
        Claims { gsi, all: Mutex::default() }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Place, Vec<Claim>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims the port of an address for an identifier, or any, if that is 0; `gid` is the address that QP 1 knows for
    /// it.
    pub fn take(
        &self,
        space: u32,
        address: &SocketAddr,
        gid: [u8; 16],
        sharing: Sharing,
    ) -> Result<(Claim, u16), c_int> {
        let mut all = self.all();
        let mut take = |port: u16| {
            let place = Place { service: service(space, port), address: gid };
            let claim = Claim { place, is_ipv4: address.is_ipv4(), sharing };
            check(&all, &claim)?;
            let others = all.entry(place).or_default();
            if others.is_empty() {
                // SAFETY: an address of 16 bytes.
                match unsafe { (self.gsi.claim)(place.service, &raw const place.address) } {
                    0 => {}
                    errno => return Err(errno),
                }
            }
            others.push(claim);
            Ok((claim, port))
        };
        if address.port() != 0 {
            return take(address.port());
        }
        for _ in 0..TRIES {
            match take(fastrand::u16(EPHEMERAL)) {
                Err(libc::EADDRINUSE | libc::EADDRNOTAVAIL) => {}
                done => return done,
            }
        }
        Err(libc::EADDRNOTAVAIL)
    }

    pub fn release(&self, claim: Claim) {
        let mut all = self.all();
        let Some(same) = all.get_mut(&claim.place) else { return };
        if let Some(at) = same.iter().position(|one| *one == claim) {
            same.swap_remove(at);
        }
        if same.is_empty() {
            all.remove(&claim.place);
            // SAFETY: an address of 16 bytes.
            unsafe { (self.gsi.release)(claim.place.service, &raw const claim.place.address) };
        }
    }
}

/// Checks that a claim may stand beside the others: EADDRNOTAVAIL if one of two is for any address, and EADDRINUSE for
/// the very same one (cma_check_port of the kernel).
fn check(all: &HashMap<Place, Vec<Claim>>, claim: &Claim) -> Result<(), c_int> {
    let others = all.values().flatten().filter(|other| claim.overlaps(other));
    let mut others = others.filter(|other| !(claim.sharing.reuses_address && other.sharing.reuses_address));
    match others.next() {
        None => Ok(()),
        Some(other) if [claim.place.address, other.place.address].contains(&ANY) => Err(libc::EADDRNOTAVAIL),
        Some(_) => Err(libc::EADDRINUSE),
    }
}
