//! A peer that says anything, and a program that calls anything: what comes of it may be wrong, but it ends, and leaves
//! nothing behind.

use vervain_cm::{
    CommId, Event, Machine, Mad, Output, Path, PathParams, RepParams, ReqParams, SidrRepParams, SidrReqParams,
};
use vervain_seeds::Outcome;

use crate::random::Random;

/// The result of a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    received: u64,
    sent: u64,
    told: u64,
}

impl Outcome for Tally {
    fn add(&mut self, other: &Tally) {
        self.received += other.received;
        self.sent += other.sent;
        self.told += other.told;
    }
}

struct Nonsense {
    random: Random,
    machine: Machine,
    now: u64,
    path: Path,
    /// Identifiers of the program, those that it has given up too.
    ids: Vec<CommId>,
    /// Datagrams that were sent, to be changed and sent back.
    seen: Vec<Mad>,
    tally: Tally,
}

impl Nonsense {
    fn drain(&mut self) {
        for count in 0.. {
            let Some(output) = self.machine.next_output() else { break };
            assert!(count < 100, "outputs without end");
            match output {
                Output::Send { mad, .. } => {
                    self.tally.sent += 1;
                    self.seen.push(mad);
                }
                Output::Event(event) => {
                    self.tally.told += 1;
                    if let Event::Request { conn, .. } | Event::SidrRequest { conn, .. } = event {
                        self.ids.push(conn);
                    }
                }
            }
        }
    }

    /// A message that the machine might have had from its peer: identifiers where the peer's would be, the rest as it
    /// comes.
    fn mad(&mut self) -> Mad {
        let mut mad = [0; 256];
        if !self.seen.is_empty() && self.random.permille(800) {
            mad = self.seen[self.random.between(0, self.seen.len() as u64 - 1) as usize];
            if self.random.permille(500) {
                // An answer has the two identifiers the other way round.
                let local: [u8; 4] = mad[24..28].try_into().expect("four");
                mad.copy_within(28..32, 24);
                mad[28..32].copy_from_slice(&local);
            }
        } else {
            mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        }
        if self.random.permille(700) {
            mad[16..18].copy_from_slice(&[0, self.random.between(0xf, 0x1b) as u8]);
        }
        for _ in 0..self.random.between(0, 4) {
            mad[self.random.between(0, 90) as usize] = self.random.bits() as u8;
        }
        mad
    }

    fn call(&mut self) {
        let now = self.now;
        let qpn = self.random.between(0, 5) as u32;
        let id = match self.ids.len() as u64 {
            0 => 0,
            count => self.ids[self.random.between(0, count - 1) as usize],
        };
        let machine = &mut self.machine;
        let exponent = self.random.between(0, 255) as u8;
        let _ = match self.random.between(0, 10) {
            0 => {
                let params = ReqParams {
                    qpn,
                    path: PathParams { packet_life_time: exponent, ..PathParams::default() },
                    remote_response_timeout: exponent,
                    max_retries: exponent,
                    ..ReqParams::default()
                };
                self.ids.push(machine.connect(now, self.path, &params));
                Ok(())
            }
            1 => machine.accept(now, id, &RepParams { qpn, target_ack_delay: exponent, ..RepParams::default() }),
            2 => machine.ready(now, id, b""),
            3 => machine.reject(now, id, exponent.into(), b"", b""),
            4 => machine.mra(now, id, exponent, b""),
            5 => machine.disconnect(now, id, b""),
            6 => machine.established(now, id),
            7 => machine.destroy(now, id),
            8 => {
                let params = SidrReqParams { max_retries: exponent % 16, ..SidrReqParams::default() };
                self.ids.push(machine.sidr_request(now, self.path, &params));
                Ok(())
            }
            9 => machine.sidr_reply(now, id, &SidrRepParams::default()),
            _ => {
                machine.gone(now, self.random.between(0, 3) as u32, |_| true);
                Ok(())
            }
        };
    }
}

pub fn run_seed(seed: u64) -> Tally {
    let mut random = Random::new(seed);
    let path = Path { port: 1, hop_limit: 64, sgid: [1; 16], dgid: [2; 16], ..Path::default() };
    let (machine, tally) = (Machine::new(1, random.bits()), Tally::default());
    let mut nonsense = Nonsense { random, machine, now: 0, path, ids: Vec::new(), seen: Vec::new(), tally };
    for _ in 0..300 {
        match nonsense.random.between(0, 9) {
            0 => {
                nonsense.now += nonsense.random.between(0, 20_000_000_000);
                nonsense.machine.tick(nonsense.now);
            }
            1..=3 => nonsense.call(),
            4 => {
                let mad = nonsense.mad();
                nonsense.machine.refused(nonsense.now, &mad);
            }
            _ => {
                let mad = nonsense.mad();
                nonsense.tally.received += 1;
                nonsense.machine.receive(nonsense.now, &nonsense.path, &mad);
            }
        }
        nonsense.drain();
    }
    for id in nonsense.ids.clone() {
        let _ = nonsense.machine.destroy(nonsense.now, id);
        nonsense.drain();
    }
    for _ in 0..10_000 {
        let Some(deadline) = nonsense.machine.next_deadline() else { break };
        nonsense.now = nonsense.now.max(deadline);
        nonsense.machine.tick(nonsense.now);
        nonsense.drain();
    }
    assert!(nonsense.machine.is_empty(), "something is left: {:#?}", nonsense.machine);
    nonsense.tally
}
