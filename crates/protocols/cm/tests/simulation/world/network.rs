//! The network of a run: it loses, doubles, delays and forges MADs between hosts.

use vervain_cm::message::{Message, parse, reason};
use vervain_cm::{Mad, Output, Path};

use super::{CALM, ELSEWHERE, Happening, LATEST, MILLISECOND, SERVICE, World, address};

impl World {
    /// The receiver of a MAD: the process with the slot, or the service.
    fn receiver(&self, host: usize, mad: &Mad) -> Option<usize> {
        let (_, message) = parse(mad).expect("a MAD");
        let of_slot = |id: u32| self.processes.iter().position(|p| p.host == host && p.slot == id >> 22);
        let of_service = |service: u64| Some((service - SERVICE) as usize).filter(|&n| self.processes[n].host == host);
        let found = match message {
            Message::Req(req) => of_service(req.service_id),
            Message::SidrReq(req) => of_service(req.service_id),
            Message::Mra(mra) => of_slot(mra.remote_comm_id),
            // From a peer that gives up and knows no identifier here: the connection is unknown, too.
            Message::Rej(rej) if rej.remote_comm_id == 0 => None,
            Message::Rej(rej) => of_slot(rej.remote_comm_id),
            Message::Rep(rep) => of_slot(rep.remote_comm_id),
            Message::Rtu(rtu) => of_slot(rtu.remote_comm_id),
            Message::Dreq(dreq) => of_slot(dreq.remote_comm_id),
            Message::Drep(drep) => of_slot(drep.remote_comm_id),
            Message::SidrRep(rep) => of_slot(rep.request_id),
            Message::Lap | Message::Apr => None,
        };
        found.filter(|&process| self.processes[process].machine.is_some())
    }

    pub fn send(&mut self, from: usize, path: Path, mad: Mad) {
        self.tally.mads += 1;
        if matches!(parse(&mad), Ok((_, Message::Rej(rej))) if rej.reason == reason::STALE_CONN) {
            self.tally.stale += 1;
        }
        let host = self.processes[from].host;
        assert_eq!((path.sgid, path.port), (address(host), 1));
        if path.dgid == ELSEWHERE {
            return;
        }
        let there = (0..2).find(|&host| address(host) == path.dgid).expect("an address");
        let receiver = self.receiver(there, &mad);
        self.say(|| format!("process {from} to {receiver:?}: {}", brief(&mad)));
        let back = Path { sgid: path.dgid, dgid: path.sgid, ..path };
        if host == there {
            let (now, busy) = (self.now, self.now < CALM && self.random.permille(self.lost / 4));
            match receiver {
                Some(_) if busy => {}
                Some(to) => {
                    self.at(now, Happening::Deliver { to, path: Path { hop_limit: 0, ..back }, mad: Box::new(mad) })
                }
                None => {
                    if let Some(machine) = &mut self.processes[from].machine {
                        machine.refused(now, &mad);
                    }
                }
            }
            return;
        }
        let calm = self.now >= CALM;
        let Some(to) = receiver else { return };
        let copies = if calm {
            1
        } else {
            u64::from(!self.random.permille(self.lost)) + u64::from(self.random.permille(self.doubled))
        };
        for _ in 0..copies {
            let at = if calm { self.now + MILLISECOND } else { self.soon(LATEST) };
            self.at(at, Happening::Deliver { to, path: Path { hop_limit: 63, ..back }, mad: Box::new(mad) });
        }
        if !calm && self.random.permille(self.forged) {
            self.forge(to, back, mad);
        }
    }

    /// Somebody elsewhere has seen a MAD, and sends it as his own, or what he makes of it.
    fn forge(&mut self, to: usize, path: Path, mut mad: Mad) {
        if matches!(parse(&mad), Ok((_, Message::Req(_) | Message::SidrReq(_)))) && !self.foreigners {
            return;
        }
        self.tally.forged += 1;
        for _ in 0..self.random.between(0, 2) {
            let at = self.random.pick(&[24, 27, 28, 31, 32, 33, 35, 60, 100]);
            mad[at] = self.random.bits() as u8;
        }
        let at = self.soon(LATEST);
        self.at(at, Happening::Deliver { to, path: Path { dgid: ELSEWHERE, ..path }, mad: Box::new(mad) });
    }

    pub fn deliver(&mut self, to: usize, path: Path, mad: &Mad) {
        let now = self.now;
        let foreign = path.dgid == ELSEWHERE;
        let Some(machine) = &mut self.processes[to].machine else { return };
        let before = (foreign && !self.foreigners).then(|| format!("{machine:?}"));
        machine.receive(now, &path, mad);
        if let Some(before) = before {
            while let Some(output) = machine.next_output() {
                assert!(matches!(output, Output::Send { path, .. } if path.dgid == ELSEWHERE), "{output:?}");
            }
            assert_eq!(format!("{machine:?}"), before, "who has nothing to do with it changes something");
        }
        self.drain(to);
    }
}

fn brief(mad: &Mad) -> String {
    let (header, message) = parse(mad).expect("a MAD");
    let words = format!("{message:?}");
    let cut = words.find("private_data").unwrap_or(words.len());
    format!("{:#x} {}", header.tid, &words[..cut.min(160)])
}
