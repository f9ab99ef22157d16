//! The UD QP by which ranks tell each other of connections.

use vervain_rdma::{Ah, Completion, Cq, GRH_BYTES, PathOptions, Pd, Qp, RecvRequest, Region, SendRequest, Transport};

use crate::address::{Door as Address, Site};
use crate::error::{Error, Result};
use crate::protocol::MAX_DATAGRAM;

/// Datagrams that may come while this process is busy. More are lost, and are said again.
const RECEIVES: u32 = 256;
/// Datagrams that may be under way from here; more are dropped.
const SENDS: u32 = 64;
/// The most requests of the door that can be outstanding.
pub const REQUESTS: u32 = RECEIVES + SENDS;
/// Ways to other ports that are kept.
const WAYS: usize = 64;

const RECEIVE_BYTES: usize = GRH_BYTES + MAX_DATAGRAM;

/// In the ids of receives, and of sends; the rest is the slot.
const RECEIVE: u64 = 1 << 62;
const SEND: u64 = 1 << 61;

/// Bytes of a door's memory, and of the ways that it keeps.
pub const BYTES: usize =
    RECEIVE_BYTES * RECEIVES as usize + MAX_DATAGRAM * SENDS as usize + WAYS * size_of::<(Site, Ah)>();

/// A UD QP with its memory.
pub struct Door {
    qp: Qp,
    pd: Pd,
    path: PathOptions,
    qkey: u32,
    incoming: Region,
    outgoing: Region,
    idle: Vec<u32>,
    /// The handles that were made last, and which of them the next one replaces.
    ways: Vec<(Site, Ah)>,
    oldest: usize,
}

/// The request that a completion was of.
pub enum Done {
    /// A datagram: its slot and length.
    Datagram(u32, usize),
    /// A request without news.
    Nothing,
    /// Not the door's.
    Other,
}

impl Door {
    /// Opens one whose requests complete into `cq`.
    ///
    /// # Errors
    /// What verbs says.
    pub fn open(pd: &Pd, cq: &Cq, path: &PathOptions) -> Result<Door> {
        let qp = Qp::builder(Transport::Ud, pd, cq, cq).max_send(SENDS).max_receive(RECEIVES).build()?;
        let qkey = u32::from_le_bytes(random()?) >> 1;
        qp.activate(path, qkey)?;
        let door = Door {
            incoming: pd.region(RECEIVE_BYTES * RECEIVES as usize, vervain_rdma::Access::LOCAL_WRITE)?,
            outgoing: pd.region(MAX_DATAGRAM * SENDS as usize, vervain_rdma::Access::empty())?,
            qp,
            pd: pd.clone(),
            path: *path,
            qkey,
            idle: (0..SENDS).collect(),
            ways: Vec::new(),
            oldest: 0,
        };
        (0..RECEIVES).try_for_each(|slot| door.post(slot))?;
        Ok(door)
    }

    /// Its address for peers; `path` is how it was opened.
    ///
    /// # Errors
    /// What verbs says.
    pub fn address(&self, path: &PathOptions) -> Result<Address> {
        let endpoint = self.qp.endpoint(path)?;
        let site = endpoint.gid.map_or(Site::Lid(endpoint.lid), |gid| Site::Gid(gid.0, endpoint.lid));
        Ok(Address { site, qpn: self.qp.number(), qkey: self.qkey })
    }

    fn post(&self, slot: u32) -> Result<()> {
        let start = slot as usize * RECEIVE_BYTES;
        let sges = [self.incoming.slice(start..start + RECEIVE_BYTES)];
        Ok(self.qp.receive(RecvRequest::new(&sges).id(RECEIVE | u64::from(slot)))?)
    }

    /// Sends a datagram, if there is room: who waits for an answer asks again.
    pub fn send(&mut self, to: &Address, datagram: &[u8]) {
        let Some(slot) = self.idle.pop() else { return };
        if self.post_datagram(slot, to, datagram).is_err() {
            self.idle.push(slot);
        }
    }

    fn post_datagram(&mut self, slot: u32, to: &Address, datagram: &[u8]) -> Result<()> {
        let way = self.way(to)?;
        let start = slot as usize * MAX_DATAGRAM;
        self.outgoing.write(start, datagram);
        let sges = [self.outgoing.slice(start..start + datagram.len())];
        let request = SendRequest::datagram(&sges, &self.ways[way].1, to.qpn, to.qkey);
        Ok(self.qp.post(request.id(SEND | u64::from(slot)).signaled())?)
    }

    /// The handle for that port, by its place in the list.
    fn way(&mut self, to: &Address) -> Result<usize> {
        if let Some(found) = self.ways.iter().position(|(site, _)| *site == to.site) {
            return Ok(found);
        }
        let way = (to.site, Ah::new(&self.pd, &to.endpoint(to.qpn, 0), &self.path)?);
        if self.ways.len() < WAYS {
            self.ways.push(way);
            return Ok(self.ways.len() - 1);
        }
        let place = self.oldest;
        self.oldest = (self.oldest + 1) % WAYS;
        self.ways[place] = way;
        Ok(place)
    }

    /// Takes a completion of the CQ that the door completes into.
    ///
    /// # Errors
    /// A receive or a send failed.
    pub fn completed(&mut self, completion: &Completion) -> Result<Done> {
        let slot = completion.id() as u32;
        let kind = completion.id() & (RECEIVE | SEND);
        if kind == 0 {
            return Ok(Done::Other);
        }
        if !completion.is_success() {
            return Err(Error::new(format!("a datagram of {} failed: {}", self.qp, completion.status())));
        }
        if kind == SEND {
            self.idle.push(slot);
            return Ok(Done::Nothing);
        }
        let length = (completion.bytes() as usize).min(RECEIVE_BYTES).saturating_sub(GRH_BYTES);
        Ok(Done::Datagram(slot, length))
    }

    /// Copies a datagram, and posts its receive again.
    ///
    /// # Errors
    /// What verbs says.
    pub fn take(&self, slot: u32, into: &mut [u8]) -> Result<()> {
        self.incoming.read(slot as usize * RECEIVE_BYTES + GRH_BYTES, into);
        self.post(slot)
    }
}

/// Bytes that nobody can guess.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        // Short reads happen for more than 256 bytes only, and on signals.
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::new(format!("getrandom failed: {error}"))),
        }
    }
    Ok(bytes)
}
