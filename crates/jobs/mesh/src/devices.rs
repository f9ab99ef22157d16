//! The devices as the protocol needs them: ports, and two QPs for each place at each of them, made when they are first
//! used.

use vervain_rdma::{Qp, RecvRequest, Region};

use crate::address::{Door, Lanes};
use crate::error::{Error, Result};
use crate::options::Link;
use crate::port::{Pair, Port};
use crate::protocol::Fabric;
use crate::table::Table;

/// In the ids of receives for notices; the index of the place is in the bits from 32 to 62, its life below.
const NOTICE: u64 = 1 << 63;

/// Ports and QPs.
pub struct Devices {
    pub ports: Vec<Port>,
    /// By place, and in it by port.
    pairs: Box<[Option<Pair>]>,
    /// For each place, the port of the pair in use.
    active: Box<[u32]>,
    /// Places by the numbers of their QPs for commands, for each port.
    numbers: Vec<Table<u32>>,
    /// True for receives of a connection's own that the owner has, by their numbers.
    held: Box<[bool]>,
}

impl Devices {
    pub fn new(ports: Vec<Port>, places: usize) -> Self {
        let pairs = (0..places * ports.len()).map(|_| None).collect();
        let numbers = ports.iter().map(|_| Table::new(places, 0)).collect();
        let own = if ports[0].srq.is_none() { places * ports.len() * ports[0].slots as usize } else { 0 };
        Self { ports, pairs, active: (0..places as u32).collect(), numbers, held: vec![false; own].into() }
    }

    /// Bytes of it, for `places` places at `ports` ports, without the QPs.
    pub fn bytes(places: usize, ports: usize) -> usize {
        places * (ports * size_of::<Option<Pair>>() + size_of::<u32>()) + ports * Table::<u32>::bytes(places)
    }

    fn pair_index(&self, place: u32, port: usize) -> usize {
        place as usize * self.ports.len() + port
    }

    /// The QPs of a place that is used.
    #[inline]
    pub fn pair(&self, place: u32) -> (&Qp, &Qp) {
        let pair = self.pairs[self.active[place as usize] as usize].as_ref().expect("a place in use has QPs");
        (&pair.data, &pair.commands)
    }

    /// The place whose QP for commands this is.
    #[inline]
    pub fn place_of_qp(&self, port: usize, number: u32) -> Option<u32> {
        self.numbers[port].get(number.into())
    }

    /// Returns true if connections share the receives for commands.
    #[inline]
    pub fn are_shared(&self) -> bool {
        self.held.is_empty()
    }

    /// The owner has what a receive of a connection's own has got.
    #[inline]
    pub fn hold(&mut self, slot: u32) {
        self.held[slot as usize] = true;
    }

    /// The place that a receive belongs to which is a connection's own.
    pub fn place_of_slot(&self, port: usize, slot: u32) -> u32 {
        slot / self.ports[port].slots / self.ports.len() as u32
    }

    /// The owner gives one back. It is posted if the place is in use; else it is when it is used again.
    pub fn give_back(&mut self, port: usize, slot: u32, is_used: bool) -> Result<()> {
        self.held[slot as usize] = false;
        match &self.pairs[(slot / self.ports[port].slots) as usize] {
            Some(pair) if is_used => self.ports[port].post_own(pair, slot),
            _ => Ok(()),
        }
    }

    /// The place of a command: the memory, and the offset in it.
    #[inline]
    pub fn receive_of(&self, port: usize, slot: u32) -> (&Region, usize) {
        self.ports[port].receive_of(|pair| self.pairs[pair].as_ref(), slot)
    }

    fn made(&mut self, place: u32, port: usize) -> Result<&Pair> {
        let index = self.pair_index(place, port);
        if self.pairs[index].is_none() {
            let pair = self.ports[port].pair()?;
            self.numbers[port].insert(pair.commands.number().into(), place);
            self.pairs[index] = Some(pair);
        }
        self.pairs[index].as_ref().ok_or_else(|| Error::new("a place has no QPs"))
    }
}

/// The id of a notice's receive.
pub fn notice_id(link: Link) -> u64 {
    NOTICE | u64::from(link.index) << 32 | u64::from(link.life)
}

/// The connection whose notice's receive has this id.
#[inline]
pub fn link_of_notice(id: u64) -> Option<Link> {
    let index = (id & !NOTICE) >> 32;
    (id & NOTICE != 0).then_some(Link { index: index as u32, life: id as u32 })
}

/// A receive for a notice, which has no bytes.
pub fn notice_receive(link: Link) -> RecvRequest<'static, 'static> {
    RecvRequest::new(&[]).id(notice_id(link))
}

impl Fabric for Devices {
    fn send(&mut self, port: usize, to: &Door, datagram: &[u8]) {
        self.ports[port].door.send(to, datagram);
    }

    fn is_made(&self, place: u32, port: usize) -> bool {
        self.pairs[self.pair_index(place, port)].is_some()
    }

    fn prepare(&mut self, place: u32, port: usize, life: u32) -> Result<Lanes> {
        self.made(place, port)?;
        let index = self.pair_index(place, port);
        self.active[place as usize] = index as u32;
        let pair = self.pairs[index].as_ref().ok_or_else(|| Error::new("a place has no QPs"))?;
        let lanes = self.ports[port].prepare(pair, Link { index: place, life })?;
        if pair.receives.is_some() {
            let first = index as u32 * self.ports[port].slots;
            for slot in (first..first + self.ports[port].slots).filter(|slot| !self.held[*slot as usize]) {
                self.ports[port].post_own(pair, slot)?;
            }
        }
        Ok(lanes)
    }

    fn connect(&mut self, place: u32, port: usize, door: &Door, lanes: &Lanes) -> Result<()> {
        let pair = self.pairs[self.pair_index(place, port)].as_ref();
        self.ports[port].connect(pair.ok_or_else(|| Error::new("a place has no QPs"))?, door, lanes)
    }

    fn reset(&mut self, place: u32, port: usize) -> Result<()> {
        let Some(pair) = &self.pairs[self.pair_index(place, port)] else { return Ok(()) };
        pair.data.reset()?;
        Ok(pair.commands.reset()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_names_its_connection() {
        let link = Link { index: 0x7fff_fffe, life: 0xffff_ffff };
        assert_eq!(link_of_notice(notice_id(link)), Some(link));
        assert_eq!(link_of_notice(notice_id(link) & !NOTICE), None);
    }
}
