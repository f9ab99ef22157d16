//! The programs of a run: they ask for connections and QPs, and do with their identifiers what they may; what they hear
//! must fit what they know.

use std::collections::BTreeMap;

use vervain_cm::message::reason;
use vervain_cm::{CommId, Event, Path, PathParams, RepParams, ReqParams, SidrRepParams, SidrReqParams};

use super::{Attempt, ELSEWHERE, Happening, LATEST, SECOND, SERVICE, World, address, guid};
use crate::program::{End, Stage};

impl World {
    /// A QP, perhaps one that was used before.
    fn qpn(&mut self, process: usize) -> u32 {
        let again = self.random.permille(300);
        let process = &mut self.processes[process];
        if again && let Some(qpn) = process.free.pop() {
            return qpn;
        }
        process.next_qpn += 1;
        process.slot << 14 | process.next_qpn
    }

    pub fn begin(&mut self, process: usize, question: bool) {
        let server = self.random.between(0, self.processes.len() as u64 - 1) as usize;
        let host = self.processes[process].host;
        let path = Path {
            port: 1,
            hop_limit: 64,
            sgid: address(host),
            dgid: address(self.processes[server].host),
            ..Path::default()
        };
        let service_id = SERVICE + server as u64;
        let number = self.attempts.len();
        let name = (number as u64).to_be_bytes();
        let qpn = self.qpn(process);
        let psn = self.random.between(0, 0xff_ffff) as u32;
        let short = self.random.permille(150);
        let max_retries = if short { self.random.between(0, 3) as u8 } else { 15 };
        let mut exponent = || self.random.between(14, 18) as u8;
        let (remote_response_timeout, local_response_timeout) = (exponent(), exponent());
        let (now, incarnation) = (self.now, self.processes[process].incarnation);
        let client = (process, incarnation);
        let served = BTreeMap::new();
        self.attempts.push(Attempt { client, server, qpn, psn, short, withdrawn: false, was_up: false, served });
        let machine = self.processes[process].machine.as_mut().expect("a process");
        let (conn, stage) = if question {
            self.tally.questions += 1;
            let mut private_data = [0; 216];
            private_data[..8].copy_from_slice(&name);
            let params = SidrReqParams {
                service_id,
                response_timeout: remote_response_timeout,
                max_retries,
                private_data,
                ..SidrReqParams::default()
            };
            (machine.sidr_request(now, path, &params), Stage::SidrAsked)
        } else {
            self.tally.attempts += 1;
            let mut private_data = [0; 92];
            private_data[..8].copy_from_slice(&name);
            let params = ReqParams {
                service_id,
                ca_guid: guid(host),
                qpn,
                starting_psn: psn,
                path: PathParams { packet_life_time: 16, ..PathParams::default() },
                ack_timeout: 17,
                remote_response_timeout,
                local_response_timeout,
                max_retries,
                private_data,
                ..ReqParams::default()
            };
            (machine.connect(now, path, &params), Stage::Asked)
        };
        let old = self.processes[process].ends.insert(conn, End::new(stage, Some(number), qpn));
        assert!(old.is_none(), "an identifier twice");
        self.say(|| format!("process {process} asks process {server}: {conn:#x}, attempt {number}"));
        if self.random.permille(100) {
            let at = self.soon(3 * SECOND);
            self.at(at, Happening::Act { process, incarnation, conn });
        }
        self.drain(process);
    }

    pub fn hear(&mut self, process: usize, event: Event) {
        self.say(|| format!("process {process} hears {}", brief_event(&event)));
        let conn = event.conn();
        let incarnation = self.processes[process].incarnation;
        match &event {
            Event::Request { path, req, .. } => {
                let attempt = if path.dgid == ELSEWHERE {
                    None
                } else {
                    let name = *req.private_data.first_chunk().expect("a name");
                    Some(self.requested(process, conn, u64::from_be_bytes(name) as usize, req.local_comm_id, &event))
                };
                let end = End::new(Stage::Requested, attempt.map(|(attempt, _)| attempt), 0);
                let end = End { other: attempt.map(|(_, other)| other), ..end };
                assert!(self.processes[process].ends.insert(conn, end).is_none(), "an identifier twice");
            }
            Event::SidrRequest { path, req, .. } => {
                let name = u64::from_be_bytes(*req.private_data.first_chunk().expect("a name")) as usize;
                let attempt = if path.dgid == ELSEWHERE { None } else { Some(name) };
                let end = End::new(Stage::SidrRequested, attempt, 0);
                assert!(self.processes[process].ends.insert(conn, end).is_none(), "an identifier twice");
            }
            _ => self.hear_of(process, conn, &event),
        }
        let end = &self.processes[process].ends[&conn];
        // An identifier that waits for others needs nothing of the program.
        if !matches!(end.stage, Stage::Asked | Stage::Granted | Stage::Ending | Stage::SidrAsked) {
            let at = self.soon(2 * SECOND);
            self.at(at, Happening::Act { process, incarnation, conn });
        }
    }

    /// A request has come: which attempt it is of, and the client.
    fn requested(
        &mut self,
        process: usize,
        conn: CommId,
        number: usize,
        client: CommId,
        event: &Event,
    ) -> (usize, (usize, u32, CommId)) {
        let Event::Request { req, .. } = event else { unreachable!() };
        let attempt = &mut self.attempts[number];
        attempt.served.insert(conn, self.processes[process].incarnation);
        assert_eq!((attempt.server, attempt.qpn, attempt.psn), (process, req.local_qpn, req.starting_psn));
        assert!(!attempt.was_up, "attempt {number}, which was a connection, asks again: {conn:#x}");
        let again = |end: &&End| end.attempt == Some(number) && !end.is_client && end.stage != Stage::Over;
        let twice = self.processes[process].ends.values().find(again);
        assert!(twice.is_none(), "attempt {number} asks twice: {conn:#x}, {twice:?}");
        (number, (attempt.client.0, attempt.client.1, client))
    }

    fn hear_of(&mut self, process: usize, conn: CommId, event: &Event) {
        let end = self.processes[process].ends.get_mut(&conn).expect("an identifier of the program");
        let before = end.stage;
        end.hear(event);
        let end = end.clone();
        match event {
            Event::Reply { rep, .. } => {
                let attempt = &self.attempts[end.attempt.expect("own")];
                let server = attempt.server;
                let key = (server, attempt.served[&rep.local_comm_id], rep.local_comm_id);
                // The other end has granted it, with what is here, if it is still there.
                if let Some(other) = self.processes[server].ends.get(&rep.local_comm_id)
                    && other.attempt == end.attempt
                {
                    assert!(matches!(other.stage, Stage::Granted | Stage::Over), "{other:?}");
                    assert_eq!((other.qpn, rep.local_ca_guid), (rep.local_qpn, guid(self.processes[server].host)));
                }
                self.processes[process].ends.get_mut(&conn).expect("it").other = Some(key);
            }
            Event::Established { .. } => {
                self.tally.established += 1;
                if let Some(attempt) = end.attempt {
                    self.attempts[attempt].was_up = true;
                }
            }
            Event::Rejected { .. } => {
                self.tally.rejected += 1;
                assert!(before != Stage::Up || end.is_client || self.tally.killed > 0, "nobody has ended it: {end:?}");
            }
            Event::Unreachable { .. } => {
                self.tally.unreachable += 1;
                if before == Stage::Granted
                    && let Some(attempt) = end.attempt
                {
                    self.attempts[attempt].withdrawn = true;
                }
            }
            Event::Disconnected { .. } if before == Stage::Up => {
                assert!(self.tally.killed > 0 || self.tally.stale > 0, "nobody has ended it: {end:?}");
            }
            _ => {}
        }
    }

    pub fn destroy(&mut self, process: usize, conn: CommId) {
        let now = self.now;
        let Some(end) = self.processes[process].ends.remove(&conn) else { return };
        self.say(|| format!("process {process} destroys {conn:#x}, {:?}", end.stage));
        if let (Stage::Granted | Stage::Requested, Some(attempt)) = (end.stage, end.attempt) {
            self.attempts[attempt].withdrawn = true;
        }
        let taken = &mut self.processes[process];
        if end.qpn != 0 {
            taken.free.push(end.qpn);
        }
        taken.machine.as_mut().expect("a process").destroy(now, conn).expect("an identifier");
        self.drain(process);
    }

    /// A program does something with an identifier, if its knowledge allows anything.
    pub fn act(&mut self, process: usize, conn: CommId) {
        let now = self.now;
        let Some(end) = self.processes[process].ends.get(&conn).cloned() else { return };
        let choice = self.random.between(0, 999);
        self.say(|| format!("process {process} acts on {conn:#x}, {:?}: {choice}", end.stage));
        let granted = self.qpn(process);
        let host = self.processes[process].host;
        let exponent = self.random.between(14, 18) as u8;
        let machine = self.processes[process].machine.as_mut().expect("an incarnation");
        let next = match (end.stage, choice) {
            (Stage::Requested, 0..700) => {
                let params = RepParams {
                    ca_guid: guid(host),
                    qpn: granted,
                    starting_psn: granted,
                    target_ack_delay: 10,
                    ..RepParams::default()
                };
                machine.accept(now, conn, &params).expect("is requested");
                Stage::Granted
            }
            (Stage::Requested, 700..800) | (Stage::Replied, 850..920) => {
                machine.reject(now, conn, reason::CONSUMER_DEFINED, b"", b"").expect("is not established");
                Stage::Over
            }
            (Stage::Requested, 800..870) | (Stage::Replied, 920..960) => {
                machine.mra(now, conn, exponent, b"").expect("is asked");
                end.stage
            }
            (Stage::Requested, 870..940) => {
                machine.prepare_mra(now, conn, exponent, b"").expect("is asked");
                end.stage
            }
            (Stage::Replied, 0..850) => {
                machine.ready(now, conn, b"").expect("is granted");
                Stage::Up
            }
            (Stage::Up, 0..500) => {
                // A stale connection is being ended already.
                let ended = machine.disconnect(now, conn, b"");
                assert!(ended.is_ok() || self.tally.stale > 0, "is established: {end:?}");
                Stage::Ending
            }
            // Stays to the end.
            (Stage::Up, 500..800) => end.stage,
            (Stage::AskedToEnd, 0..700) => {
                // A peer that is gone needs no answer.
                let _ = machine.disconnect(now, conn, b"");
                Stage::Over
            }
            (Stage::SidrRequested, 0..800) => {
                let params = SidrRepParams { qpn: granted, qkey: 7, ..SidrRepParams::default() };
                machine.sidr_reply(now, conn, &params).expect("is asked");
                Stage::Over
            }
            _ => return self.destroy(process, conn),
        };
        let known = self.processes[process].ends.get_mut(&conn).expect("it");
        known.stage = next;
        if next == Stage::Granted {
            known.qpn = granted;
        }
        if end.stage == Stage::Replied && next == Stage::Up && self.random.permille(600) {
            let (to, incarnation, conn) = end.other.expect("granted");
            if !self.random.permille(self.lost) {
                let at = self.soon(LATEST);
                self.at(at, Happening::Data { to, incarnation, conn });
            }
        }
        if !matches!(next, Stage::Granted | Stage::Ending) && (next, end.stage) != (Stage::Up, Stage::Up) {
            let (incarnation, at) = (self.processes[process].incarnation, self.soon(2 * SECOND));
            self.at(at, Happening::Act { process, incarnation, conn });
        }
        self.drain(process);
    }
}

fn brief_event(event: &Event) -> String {
    let words = format!("{event:?}");
    words[..words.len().min(160)].to_owned()
}
