//! Datagrams from the network. A message for a connection must come from the address at its other end; anything else
//! changes nothing.

use vervain_wire::cm::{Drep, Dreq, Message, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq, answered, parse, reason, sidr};

use super::conn::{Asked, Conn, Remote, Repetition, State};
use super::{Machine, NUMBER_BITS};
use crate::params::Service;
use crate::{Ari, CommId, Event, Mad, Nanos, Path, time};

/// Hop limit of answers to other hosts: what came has lost some of its own.
const HOP_LIMIT: u8 = 64;

/// The identifier that a message names.
enum Named {
    /// There is none, or it has ended, or is one with another peer's identifier.
    Nobody,
    /// It is there, but not for who has sent this.
    Foreign,
    /// It is there.
    Conn(State),
}

/// The way back.
fn back(path: &Path) -> Path {
    Path { hop_limit: if path.hop_limit == 0 { 0 } else { HOP_LIMIT }, ..*path }
}

impl Machine {
    /// A MAD has come, of any content, by a path whose `sgid` is the address here.
    pub fn receive(&mut self, now: Nanos, path: &Path, mad: &Mad) {
        let Ok((header, message)) = parse(mad) else { return };
        let tid = header.tid;
        match message {
            Message::Req(req) => self.on_req(now, path, tid, req),
            Message::Mra(mra) => self.on_mra(now, path, &mra),
            Message::Rej(rej) => self.on_rej(now, path, &rej),
            Message::Rep(rep) => self.on_rep(now, path, tid, rep),
            Message::Rtu(rtu) => self.on_rtu(path, tid, &rtu),
            Message::Dreq(dreq) => self.on_dreq(now, path, tid, &dreq),
            Message::Drep(drep) => self.on_drep(now, path, &drep),
            Message::SidrReq(req) => self.on_sidr_req(now, path, tid, req),
            Message::SidrRep(rep) => self.on_sidr_rep(path, rep),
            // Over RoCE there are no other paths; the kernel drops these too.
            Message::Lap | Message::Apr => {}
        }
    }

    /// This MAD could not be sent: nobody is there.
    pub fn refused(&mut self, now: Nanos, mad: &Mad) {
        let Ok((_, message)) = parse(mad) else { return };
        let (id, remote) = match message {
            Message::Req(req) => {
                let id = req.local_comm_id;
                if self.conns.get(&id).is_some_and(|conn| conn.state == State::ReqSent) {
                    self.rejected(id, reason::INVALID_SERVICE_ID);
                    self.idle(id);
                }
                return;
            }
            Message::SidrReq(req) => {
                let id = req.request_id;
                if self.conns.get(&id).is_some_and(|conn| conn.state == State::SidrReqSent) {
                    let rep = SidrRep {
                        request_id: id,
                        status: sidr::UNSUPPORTED,
                        service_id: req.service_id,
                        ..SidrRep::default()
                    };
                    self.tell(Event::SidrReply { conn: id, rep });
                    self.idle(id);
                }
                return;
            }
            Message::Mra(mra) => (mra.local_comm_id, mra.remote_comm_id),
            Message::Rep(rep) => (rep.local_comm_id, rep.remote_comm_id),
            Message::Rtu(rtu) => (rtu.local_comm_id, rtu.remote_comm_id),
            Message::Dreq(dreq) => (dreq.local_comm_id, dreq.remote_comm_id),
            // The connections that these are about have ended anyway.
            Message::Rej(_) | Message::Drep(_) | Message::SidrRep(_) | Message::Lap | Message::Apr => return,
        };
        if self.conns.get(&id).and_then(|conn| conn.remote).is_some_and(|known| known.id == remote) {
            self.lost(now, id);
        }
    }

    /// The process with this slot has ended, on the host for whose addresses `is_there` is true. To be called before
    /// any datagram of the next process with this slot is received.
    pub fn gone(&mut self, now: Nanos, slot: u32, is_there: impl Fn(&Path) -> bool) {
        let of_it = |id: u32| id >> NUMBER_BITS == slot;
        let was_with = |conn: &Conn| {
            let with = conn.remote.is_some_and(|remote| of_it(remote.id));
            with || conn.server.is_some_and(of_it) || conn.sidr.is_some_and(of_it)
        };
        let with = |(_, conn): &(&CommId, &Conn)| was_with(conn) && is_there(&conn.path);
        let ids: Vec<CommId> = self.conns.iter().filter(with).map(|(id, _)| *id).collect();
        for id in ids {
            self.lost(now, id);
        }
    }

    /// The process at the other end is gone. The program gets the events that the kernel would have caused in the dead
    /// process's name.
    fn lost(&mut self, now: Nanos, id: CommId) {
        match self.conn(id).state {
            State::ReqSent | State::RepSent => {
                self.rejected(id, reason::CONSUMER_DEFINED);
                self.idle(id);
            }
            State::RepRcvd => {
                self.rejected(id, reason::CONSUMER_DEFINED);
                self.rest(now, id, State::Timewait, None);
            }
            State::ReqRcvd => {
                self.rejected(id, reason::TIMEOUT);
                self.idle(id);
            }
            State::Established | State::DreqSent => self.disconnected(now, id, [0; 224], true),
            State::DreqRcvd => self.rest(now, id, State::Timewait, None),
            State::Rejected | State::SidrDone => self.idle(id),
            State::Timewait | State::Idle | State::SidrReqSent | State::SidrReqRcvd => {}
        }
    }

    fn rejected(&mut self, id: CommId, reason: u16) {
        self.tell(Event::Rejected { conn: id, reason, ari: Ari::NONE, private_data: [0; 148] });
    }

    /// The connection between these two identifiers.
    fn named(&self, path: &Path, local: u32, remote: u32) -> Named {
        match self.conns.get(&local) {
            Some(conn) if conn.state == State::Idle => Named::Nobody,
            Some(conn) if conn.path.dgid != path.dgid => Named::Foreign,
            Some(conn) if conn.remote.is_some_and(|known| known.id == remote) => Named::Conn(conn.state),
            _ => Named::Nobody,
        }
    }

    /// Returns true if an identifier that nobody has is one of this process. Others are not for it to answer for.
    fn is_ours(&self, id: u32) -> bool {
        id >> NUMBER_BITS == self.slot
    }

    /// Refuses a message for which there is no connection.
    fn refuse_unknown(&mut self, path: &Path, tid: u64, rej: Rej) {
        self.send(back(path), rej.encode(tid));
    }

    /// Refuses a REP or RTU that names an identifier which nobody has.
    fn nobody(&mut self, path: &Path, tid: u64, local: u32, remote: u32, message: u8) {
        if self.is_ours(local) {
            let reason = reason::INVALID_COMM_ID;
            let rej = Rej { local_comm_id: local, remote_comm_id: remote, message, reason, ..Rej::default() };
            self.refuse_unknown(path, tid, rej);
        }
    }

    /// Returns true if a peer that says that it has this identifier and QP contradicts a connection with it. Then that
    /// one is stale: the peer has lost it, and is asked to say so.
    fn is_stale(&mut self, now: Nanos, path: &Path, remote: Remote) -> bool {
        let with_id = self.by_id.get(&(path.dgid, remote.guid, remote.id)).copied();
        let with_qpn = self.by_qpn.get(&(path.dgid, remote.guid, remote.qpn)).copied();
        let mut stale = false;
        for id in [with_id, with_qpn].into_iter().flatten() {
            let state = self.conn(id).state;
            stale |= state.is_live();
            if state == State::Established {
                self.dreq(now, id, [0; 220]);
            }
        }
        stale
    }

    fn on_req(&mut self, now: Nanos, path: &Path, tid: u64, req: Req) {
        let rej = Rej { remote_comm_id: req.local_comm_id, message: answered::REQ, ..Rej::default() };
        let remote = Remote { id: req.local_comm_id, guid: req.local_ca_guid, qpn: req.local_qpn };
        let asked = Asked { tid, service_id: req.service_id, qpn: req.local_qpn, psn: req.starting_psn };
        if let Some(&id) = self.by_id.get(&(path.dgid, remote.guid, remote.id))
            && self.conn(id).asked == Some(asked)
        {
            match self.conn(id).state {
                State::ReqRcvd | State::RepSent => self.answer_again(id),
                State::Rejected => {
                    self.answer_again(id);
                    // Should that be lost too, it comes once more.
                    self.linger(now, id);
                }
                State::Timewait => self.refuse_unknown(path, tid, Rej { reason: reason::STALE_CONN, ..rej }),
                _ => {}
            }
            return;
        }
        let service = Service::from_wire(req.transport_service, req.extended_transport);
        let reason = if service.is_none() {
            Some(reason::INVALID_TRANSPORT_TYPE)
        } else if !(1..=5).contains(&req.path_mtu) {
            Some(reason::INVALID_MTU)
        } else if self.is_stale(now, path, remote) {
            Some(reason::STALE_CONN)
        } else {
            None
        };
        if let Some(reason) = reason {
            return self.refuse_unknown(path, tid, Rej { reason, ..rej });
        }
        let id = self.free_id();
        let life = req.primary_local_ack_timeout.saturating_sub(1);
        // The way that the REQ describes is the one for its connection; the addresses are those it came by.
        let way = Path {
            flow_label: req.primary_flow_label,
            traffic_class: req.primary_traffic_class,
            hop_limit: if path.hop_limit == 0 { 0 } else { req.primary_hop_limit },
            ..*path
        };
        let conn = Conn {
            state: State::ReqRcvd,
            xrc: service == Some(Service::Xrc),
            asked: Some(asked),
            life,
            ack_timeout: life + 1,
            repetition: Repetition::new(time::of(req.local_cm_response_timeout), req.max_cm_retries),
            again: time::of(req.remote_cm_response_timeout) + 2 * time::of(life),
            ..Conn::new(way, tid)
        };
        self.conns.insert(id, conn);
        self.know(id, remote);
        self.tell(Event::Request { conn: id, path: way, req });
    }

    fn on_rep(&mut self, now: Nanos, path: &Path, tid: u64, rep: Rep) {
        let (id, remote_id) = (rep.remote_comm_id, rep.local_comm_id);
        if let Some(conn) = self.conns.get(&id)
            && conn.state == State::ReqSent
        {
            if conn.path.dgid == path.dgid {
                self.on_first_rep(now, id, rep);
            }
            return;
        }
        match self.named(path, id, remote_id) {
            // For a REQ that was taken back there is no other identifier yet.
            Named::Nobody => self.nobody(path, tid, id, remote_id, answered::REP),
            // Once more.
            Named::Conn(State::RepRcvd | State::Established | State::Rejected) => self.answer_again(id),
            Named::Conn(_) | Named::Foreign => {}
        }
    }

    fn on_first_rep(&mut self, now: Nanos, id: CommId, rep: Rep) {
        let conn = self.conn(id);
        let qpn = if conn.xrc { rep.local_eecn } else { rep.local_qpn };
        let remote = Remote { id: rep.local_comm_id, guid: rep.local_ca_guid, qpn };
        let path = conn.path;
        if self.is_stale(now, &path, remote) {
            self.rejected(id, reason::STALE_CONN);
            let conn = self.conn(id);
            // Not among those that are known: that one is another's.
            conn.remote = Some(remote);
            conn.state = State::RepRcvd;
            return self.refuse(now, id, reason::STALE_CONN, Ari::NONE, [0; 148]);
        }
        let conn = self.conn(id);
        conn.state = State::RepRcvd;
        conn.mad = None;
        conn.ack_timeout = time::ack_timeout(rep.target_ack_delay, conn.life);
        self.arm(id, None);
        self.know(id, remote);
        self.tell(Event::Reply { conn: id, rep });
    }

    fn on_rtu(&mut self, path: &Path, tid: u64, rtu: &Rtu) {
        let (id, remote) = (rtu.remote_comm_id, rtu.local_comm_id);
        match self.named(path, id, remote) {
            Named::Nobody => self.nobody(path, tid, id, remote, answered::OTHER),
            Named::Conn(State::RepSent) => self.establish(id, rtu.private_data),
            Named::Conn(State::Rejected) => self.answer_again(id),
            Named::Conn(_) | Named::Foreign => {}
        }
    }

    fn on_mra(&mut self, now: Nanos, path: &Path, mra: &Mra) {
        let id = mra.remote_comm_id;
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.path.dgid == path.dgid) else { return };
        let of_it = match conn.state {
            State::ReqSent => mra.message == answered::REQ,
            State::RepSent => {
                mra.message == answered::REP && conn.remote.is_some_and(|remote| remote.id == mra.local_comm_id)
            }
            _ => false,
        };
        if !of_it {
            return;
        }
        let wait = time::of(mra.service_timeout) + time::of(conn.ack_timeout);
        let Some(deadline) = conn.repetition.prolong(now, wait) else { return };
        conn.server = Some(mra.local_comm_id);
        self.arm(id, Some(deadline));
        self.tell(Event::MraReceived { conn: id, private_data: mra.private_data });
    }

    fn on_rej(&mut self, now: Nanos, path: &Path, rej: &Rej) {
        let Some((id, state)) = self.refused_by(path, rej) else { return };
        let event = Event::Rejected {
            conn: id,
            reason: rej.reason,
            ari: Ari { length: rej.information_length, bytes: rej.information },
            private_data: rej.private_data,
        };
        match state {
            State::ReqSent => {
                self.tell(event);
                self.idle(id);
            }
            State::ReqRcvd | State::RepSent => {
                self.tell(event);
                // A REQ that was under way for long is not a new request.
                self.rest(now, id, State::Rejected, None);
            }
            State::RepRcvd | State::Established => {
                self.tell(event);
                self.rest(now, id, State::Timewait, None);
            }
            State::DreqSent => self.disconnected(now, id, [0; 224], true),
            _ => {}
        }
    }

    /// The connection that a REJ refuses.
    fn refused_by(&self, path: &Path, rej: &Rej) -> Option<(CommId, State)> {
        // A peer that gives up waiting may not know this end's identifier, and names its adapter instead.
        let guid = rej.information.first_chunk().filter(|_| rej.information_length >= 8);
        if rej.reason == reason::TIMEOUT
            && let Some(guid) = guid
            && let Some(&id) = self.by_id.get(&(path.dgid, u64::from_be_bytes(*guid), rej.local_comm_id))
        {
            return Some((id, self.conns.get(&id)?.state));
        }
        let conn = self.conns.get(&rej.remote_comm_id).filter(|conn| conn.path.dgid == path.dgid)?;
        let of_it = match conn.state {
            State::ReqSent => rej.message == answered::REQ,
            _ => conn.remote.is_some_and(|remote| remote.id == rej.local_comm_id),
        };
        of_it.then_some((rej.remote_comm_id, conn.state))
    }

    fn on_dreq(&mut self, now: Nanos, path: &Path, tid: u64, dreq: &Dreq) {
        let (id, remote) = (dreq.remote_comm_id, dreq.local_comm_id);
        let state = match self.named(path, id, remote) {
            Named::Foreign => return,
            Named::Nobody => {
                if self.is_ours(id) {
                    let drep = Drep { local_comm_id: id, remote_comm_id: remote, ..Drep::default() };
                    self.send(back(path), drep.encode(tid));
                }
                return;
            }
            Named::Conn(state) => state,
        };
        let conn = self.conn(id);
        if conn.local_qpn != dreq.remote_qpn {
            return;
        }
        match state {
            State::RepSent | State::Established => {
                if state == State::RepSent {
                    // A peer that ends the connection has had it: the RTU was lost, or is late.
                    self.establish(id, [0; 224]);
                }
                let conn = self.conn(id);
                conn.state = State::DreqRcvd;
                conn.tid = tid;
                conn.mad = None;
                self.arm(id, None);
                self.tell(Event::DisconnectRequested { conn: id, private_data: dreq.private_data });
            }
            State::DreqSent => {
                conn.tid = tid;
                self.tell(Event::Disconnected { conn: id, private_data: [0; 224], is_certain: true });
                self.drep(now, id, [0; 224]);
            }
            State::Timewait if conn.mad.is_some() => self.answer_again(id),
            State::Timewait | State::Rejected => {
                let (path, drep) = (conn.path, Drep { local_comm_id: id, remote_comm_id: remote, ..Drep::default() });
                self.send(path, drep.encode(tid));
            }
            _ => {}
        }
    }

    fn on_drep(&mut self, now: Nanos, path: &Path, drep: &Drep) {
        if let Named::Conn(State::DreqSent) = self.named(path, drep.remote_comm_id, drep.local_comm_id) {
            self.disconnected(now, drep.remote_comm_id, drep.private_data, true);
        }
    }

    fn on_sidr_req(&mut self, now: Nanos, path: &Path, tid: u64, req: SidrReq) {
        let key = (path.dgid, req.request_id);
        if let Some(&id) = self.asked.get(&key) {
            let conn = self.conn(id);
            if conn.tid == tid && conn.service_id == req.service_id {
                if conn.state == State::SidrDone {
                    self.answer_again(id);
                    self.linger(now, id);
                }
                return;
            }
        }
        let id = self.free_id();
        let way = back(path);
        let conn = Conn {
            state: State::SidrReqRcvd,
            sidr: Some(req.request_id),
            service_id: req.service_id,
            ..Conn::new(way, tid)
        };
        self.conns.insert(id, conn);
        self.asked.insert(key, id);
        self.tell(Event::SidrRequest { conn: id, path: way, req });
    }

    fn on_sidr_rep(&mut self, path: &Path, rep: SidrRep) {
        let id = rep.request_id;
        let asked = |conn: &&Conn| conn.state == State::SidrReqSent && conn.path.dgid == path.dgid;
        if self.conns.get(&id).filter(asked).is_some() {
            self.tell(Event::SidrReply { conn: id, rep });
            self.idle(id);
        }
    }
}
