//! QPs that are only numbers, and doors whose datagrams the world takes out.

use std::collections::HashMap;

use vervain_mesh::protocol::Fabric;
use vervain_mesh::{Door, Doors, Lanes, Result, Site};

/// A QP in a life: its number and PSN.
pub type End = (u32, u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Init,
    Connected(End),
}

/// The devices of one machine.
pub struct Fake {
    machine: u32,
    rng: fastrand::Rng,
    /// The QPs for data that are not in RESET, by place and port.
    pub qps: HashMap<(u32, usize), (End, State)>,
    /// Datagrams that were sent: from which port, to which door.
    pub sent: Vec<(usize, Door, Vec<u8>)>,
    /// Ends that were reset.
    pub reset: Vec<End>,
}

impl Fake {
    pub fn new(machine: u32, seed: u64) -> Self {
        let rng = fastrand::Rng::with_seed(seed);
        Self { machine, rng, qps: HashMap::new(), sent: Vec::new(), reset: Vec::new() }
    }

    /// The two ends of the connection of the place.
    pub fn connection(&self, place: u32) -> Option<(End, End)> {
        let found = |port| match self.qps.get(&(place, port)) {
            Some((own, State::Connected(peer))) => Some((*own, *peer)),
            _ => None,
        };
        found(0).or_else(|| found(1))
    }
}

/// The door of a machine's port.
pub fn door(machine: u32, port: u32) -> Door {
    Door { site: Site::Lid(u16::try_from(machine).expect("few") + 1), qpn: machine << 4 | port, qkey: machine }
}

/// The machine and port of a door.
pub fn behind(door: &Door) -> (usize, usize) {
    ((door.qpn >> 4) as usize, (door.qpn & 0xf) as usize)
}

pub fn doors(machine: u32, colors: u32) -> Doors {
    Doors::new(&(0..colors).map(|port| door(machine, port)).collect::<Vec<_>>())
}

/// The machine and the place of a QP's number.
pub fn whose(number: u32) -> (usize, u32) {
    ((number >> 12) as usize, number >> 2 & 0x3ff)
}

impl Fabric for Fake {
    fn send(&mut self, port: usize, to: &Door, datagram: &[u8]) {
        self.sent.push((port, *to, datagram.to_vec()));
    }

    fn is_made(&self, place: u32, port: usize) -> bool {
        (place as usize + port).is_multiple_of(2)
    }

    fn prepare(&mut self, place: u32, port: usize, _: u32) -> Result<Lanes> {
        let number = self.machine << 12 | place << 2 | (port as u32) << 1;
        let data = (number, self.rng.u32(0..1 << 24));
        let before = self.qps.insert((place, port), (data, State::Init));
        assert!(before.is_none(), "a place of machine {} is prepared twice", self.machine);
        Ok(Lanes { data, commands: (number | 1, data.1), mtu: 1024, reads: 1 })
    }

    fn connect(&mut self, place: u32, port: usize, _: &Door, lanes: &Lanes) -> Result<()> {
        let (_, state) = self.qps.get_mut(&(place, port)).expect("prepared");
        assert_eq!(*state, State::Init, "a place of machine {} is connected twice", self.machine);
        *state = State::Connected(lanes.data);
        Ok(())
    }

    fn reset(&mut self, place: u32, port: usize) -> Result<()> {
        if let Some((end, _)) = self.qps.remove(&(place, port)) {
            self.reset.push(end);
        }
        Ok(())
    }
}
