//! The state machines of a process: the program's calls. Datagrams from the network are in `receive.rs`, deadlines in
//! `timers.rs`.

mod conn;
mod receive;
mod timers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use vervain_gsi::SLOT_BITS;
use vervain_wire::cm::{Drep, Dreq, Mra, PERMISSIVE_LID, Rej, Rep, Req, Rtu, SidrRep, SidrReq, answered, reason, sidr};

use crate::params::{RepParams, ReqParams, Service, SidrRepParams, SidrReqParams};
use crate::{Ari, CommId, Error, Event, Mad, Nanos, Output, Path, time};
use conn::{Conn, Remote, Repetition, State};

/// Bits of an identifier below the slot.
const NUMBER_BITS: u32 = u32::BITS - SLOT_BITS;

/// Refusals and answers that are kept to be repeated, at most. The oldest are forgotten; a repeated request of those is
/// then a new one.
const RESTING: usize = 4096;

/// Time for which the answer to a SIDR_REQ is kept, as an exponent: somewhat longer than the kernel waits before it
/// asks again.
const SIDR_RESPONSE: u8 = 21;

/// An address of a peer, its adapter, and its identifier or QP.
type RemoteKey = ([u8; 16], u64, u32);

/// The connection manager of a process. See the crate's documentation. `now` is never less than in an earlier call; all
/// calls that may send have it, whether they set a timer today or not.
#[derive(Debug)]
pub struct Machine {
    slot: u32,
    /// The number of the next identifier.
    next: u32,
    /// The upper half of transaction IDs.
    tids: u32,
    conns: BTreeMap<CommId, Conn>,
    /// By the identifier at the other end.
    by_id: BTreeMap<RemoteKey, CommId>,
    /// By the QP at the other end.
    by_qpn: BTreeMap<RemoteKey, CommId>,
    /// SIDR_REQs that have come, by address and number of the request.
    asked: BTreeMap<([u8; 16], u32), CommId>,
    deadlines: BTreeSet<(Nanos, CommId)>,
    /// The last that came to rest with an answer to be repeated, the oldest first.
    resting: VecDeque<CommId>,
    outputs: VecDeque<Output>,
}

/// Private data with zeros behind.
fn padded<const N: usize>(bytes: &[u8]) -> Result<[u8; N], Error> {
    let mut padded = [0; N];
    padded.get_mut(..bytes.len()).ok_or(Error::TooLong)?.copy_from_slice(bytes);
    Ok(padded)
}

impl Machine {
    /// The connection manager of the process with this slot, from 0 to 1023. Identifiers begin where `seed` says, which
    /// should be another one for each process that has the slot.
    pub fn new(slot: u32, seed: u64) -> Machine {
        // splitmix64: neighbouring seeds give identifiers that are far from one another.
        let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        Machine {
            slot: slot & ((1 << SLOT_BITS) - 1),
            next: mixed as u32,
            tids: (mixed >> 32) as u32,
            conns: BTreeMap::new(),
            by_id: BTreeMap::new(),
            by_qpn: BTreeMap::new(),
            asked: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            resting: VecDeque::new(),
            outputs: VecDeque::new(),
        }
    }

    /// Asks for a connection: sends a REQ.
    pub fn connect(&mut self, now: Nanos, path: Path, params: &ReqParams) -> CommId {
        let id = self.free_id();
        let (transport_service, extended_transport) = params.service.to_wire();
        let req = Req {
            local_comm_id: id,
            ece_options: params.ece.options,
            ece_vendor: params.ece.vendor,
            service_id: params.service_id,
            local_ca_guid: params.ca_guid,
            local_qpn: params.qpn,
            responder_resources: params.responder_resources,
            initiator_depth: params.initiator_depth,
            remote_cm_response_timeout: params.remote_response_timeout.min(31),
            transport_service,
            flow_control: params.flow_control,
            starting_psn: params.starting_psn,
            local_cm_response_timeout: params.local_response_timeout.min(31),
            retry_count: params.retry_count.min(7),
            pkey: params.path.pkey,
            path_mtu: params.path.mtu,
            rnr_retry_count: params.rnr_retry_count.min(7),
            max_cm_retries: params.max_retries.min(15),
            srq: params.srq,
            extended_transport,
            primary_local_lid: PERMISSIVE_LID,
            primary_remote_lid: PERMISSIVE_LID,
            primary_local_gid: path.sgid,
            primary_remote_gid: path.dgid,
            primary_flow_label: path.flow_label,
            primary_packet_rate: params.path.packet_rate,
            primary_traffic_class: path.traffic_class,
            primary_hop_limit: path.hop_limit,
            primary_sl: params.path.sl,
            primary_subnet_local: path.hop_limit <= 1,
            primary_local_ack_timeout: params.ack_timeout.min(31),
            private_data: params.private_data,
            ..Req::default()
        };
        let life = params.path.packet_life_time.min(31);
        let conn = Conn {
            xrc: params.service == Service::Xrc,
            local_guid: params.ca_guid,
            local_qpn: params.qpn,
            life,
            ack_timeout: life + 1,
            repetition: Repetition::new(
                time::of(params.remote_response_timeout) + 2 * time::of(life),
                params.max_retries.min(15),
            ),
            again: time::of(params.local_response_timeout) + time::of(life),
            ..Conn::new(path, self.tid(id))
        };
        let mad = req.encode(conn.tid);
        self.conns.insert(id, conn);
        self.repeat(now, id, State::ReqSent, mad);
        id
    }

    /// Grants an [`Event::Request`]: sends a REP.
    ///
    /// # Errors
    /// [`Error::State`] if it is none any more.
    pub fn accept(&mut self, now: Nanos, conn: CommId, params: &RepParams) -> Result<(), Error> {
        let id = conn;
        let conn = self.owned(id)?;
        let (State::ReqRcvd, Some(remote)) = (conn.state, conn.remote) else { return Err(Error::State) };
        conn.local_qpn = params.qpn;
        conn.local_guid = params.ca_guid;
        let (local_qpn, local_eecn) = if conn.xrc { (0, params.qpn) } else { (params.qpn, 0) };
        let rep = Rep {
            local_comm_id: id,
            remote_comm_id: remote.id,
            ece_options: params.ece.options,
            ece_vendor: params.ece.vendor,
            local_qkey: params.qkey,
            local_qpn,
            local_eecn,
            starting_psn: params.starting_psn,
            responder_resources: params.responder_resources,
            initiator_depth: params.initiator_depth,
            target_ack_delay: params.target_ack_delay.min(31),
            failover_accepted: params.failover_accepted,
            flow_control: params.flow_control,
            rnr_retry_count: params.rnr_retry_count.min(7),
            srq: params.srq || conn.xrc,
            local_ca_guid: params.ca_guid,
            private_data: params.private_data,
        };
        let mad = rep.encode(conn.tid);
        self.repeat(now, id, State::RepSent, mad);
        Ok(())
    }

    /// Answers an [`Event::Reply`] when the QP is ready to send: an RTU, with at most 224 bytes of private data. The
    /// connection is established; no event says so.
    ///
    /// # Errors
    /// [`Error::State`] if there is no reply, or it was refused, or answered; [`Error::TooLong`].
    pub fn ready(&mut self, _now: Nanos, conn: CommId, private_data: &[u8]) -> Result<(), Error> {
        let id = conn;
        let conn = self.owned(id)?;
        let (State::RepRcvd, Some(remote)) = (conn.state, conn.remote) else { return Err(Error::State) };
        let private_data = padded(private_data)?;
        let rtu = Rtu { local_comm_id: id, remote_comm_id: remote.id, private_data };
        let (path, mad) = (conn.path, rtu.encode(conn.tid));
        conn.state = State::Established;
        conn.mad = Some(Box::new(mad));
        self.send(path, mad);
        Ok(())
    }

    /// Refuses a request or a reply, or takes back what was asked or granted and is not established: a REJ. `reason` is
    /// of [`crate::message::reason`]; private data are at most 148 bytes, additional information 72.
    ///
    /// # Errors
    /// [`Error::State`] if it is established, or has ended; [`Error::TooLong`].
    pub fn reject(
        &mut self,
        now: Nanos,
        conn: CommId,
        reason: u16,
        ari: &[u8],
        private_data: &[u8],
    ) -> Result<(), Error> {
        let state = self.owned(conn)?.state;
        if !matches!(state, State::ReqSent | State::ReqRcvd | State::RepRcvd | State::RepSent) {
            return Err(Error::State);
        }
        let (ari, private_data) = (Ari::new(ari).ok_or(Error::TooLong)?, padded(private_data)?);
        self.refuse(now, conn, reason, ari, private_data);
        Ok(())
    }

    /// Has the other end wait for the answer to a request or reply longer, by 4.096 µs · 2^`service_timeout`: an MRA,
    /// now and whenever the other end asks again. At most 222 bytes of private data.
    ///
    /// # Errors
    /// [`Error::State`] if there is neither; [`Error::TooLong`].
    pub fn mra(&mut self, now: Nanos, conn: CommId, service_timeout: u8, private_data: &[u8]) -> Result<(), Error> {
        self.prepare_mra(now, conn, service_timeout, private_data)?;
        self.answer_again(conn);
        Ok(())
    }

    /// As [`Machine::mra`], but only when the other end asks again. The kernel's rdma_cm does this for each request and
    /// reply, with 24.
    ///
    /// # Errors
    /// As [`Machine::mra`].
    pub fn prepare_mra(
        &mut self,
        _now: Nanos,
        conn: CommId,
        service_timeout: u8,
        private_data: &[u8],
    ) -> Result<(), Error> {
        let id = conn;
        let conn = self.owned(id)?;
        let message = match conn.state {
            State::ReqRcvd => answered::REQ,
            State::RepRcvd => answered::REP,
            _ => return Err(Error::State),
        };
        let mra = Mra {
            local_comm_id: id,
            remote_comm_id: conn.remote.map_or(0, |remote| remote.id),
            message,
            service_timeout: service_timeout.min(31),
            private_data: padded(private_data)?,
        };
        conn.mad = Some(Box::new(mra.encode(conn.tid)));
        Ok(())
    }

    /// Ends a connection: a DREQ, with at most 220 bytes of private data, and then [`Event::Disconnected`]; or, where a
    /// DREQ has come, a DREP with at most 224.
    ///
    /// # Errors
    /// [`Error::State`] if it is not established; [`Error::TooLong`].
    pub fn disconnect(&mut self, now: Nanos, conn: CommId, private_data: &[u8]) -> Result<(), Error> {
        match self.owned(conn)?.state {
            State::Established => {
                let private_data = padded(private_data)?;
                self.dreq(now, conn, private_data);
            }
            State::DreqRcvd => {
                let private_data = padded(private_data)?;
                self.drep(now, conn, private_data);
            }
            _ => return Err(Error::State),
        }
        Ok(())
    }

    /// The QP has received something (`IBV_EVENT_COMM_EST`), so the other end is ready though no RTU has come:
    /// [`Event::Established`].
    ///
    /// # Errors
    /// [`Error::Established`] if that is known; [`Error::State`] if it was not granted, or has ended.
    pub fn established(&mut self, _now: Nanos, conn: CommId) -> Result<(), Error> {
        match self.owned(conn)?.state {
            State::RepSent => {
                self.establish(conn, [0; 224]);
                Ok(())
            }
            State::Established => Err(Error::Established),
            _ => Err(Error::State),
        }
    }

    /// The program gives the identifier up. The messages that this requires are sent to the other end, and repeated
    /// until they are answered. There are no more events of this identifier.
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn destroy(&mut self, now: Nanos, conn: CommId) -> Result<(), Error> {
        let id = conn;
        let conn = self.owned(id)?;
        conn.owned = false;
        match conn.state {
            State::ReqSent => {
                let guid = conn.local_guid;
                self.refuse(now, id, reason::TIMEOUT, guid_as_ari(guid), [0; 148]);
            }
            State::ReqRcvd | State::RepRcvd | State::RepSent => {
                self.refuse(now, id, reason::CONSUMER_DEFINED, Ari::NONE, [0; 148]);
            }
            State::Established => self.dreq(now, id, [0; 220]),
            State::DreqRcvd => self.drep(now, id, [0; 224]),
            State::SidrReqRcvd => {
                self.answer_sidr(now, id, &SidrRepParams { status: sidr::REJECT, ..SidrRepParams::default() });
            }
            State::SidrReqSent | State::Idle => self.idle(id),
            State::DreqSent | State::Timewait | State::Rejected | State::SidrDone => {}
        }
        Ok(())
    }

    /// Asks for the QP that serves datagrams: sends a SIDR_REQ. Ends in [`Event::SidrReply`] or [`Event::Unreachable`].
    pub fn sidr_request(&mut self, now: Nanos, path: Path, params: &SidrReqParams) -> CommId {
        let id = self.free_id();
        let req = SidrReq {
            request_id: id,
            pkey: params.pkey,
            service_id: params.service_id,
            private_data: params.private_data,
        };
        let conn = Conn {
            repetition: Repetition::new(time::of(params.response_timeout), params.max_retries),
            service_id: params.service_id,
            ..Conn::new(path, self.tid(id))
        };
        let mad = req.encode(conn.tid);
        self.conns.insert(id, conn);
        self.repeat(now, id, State::SidrReqSent, mad);
        id
    }

    /// Answers an [`Event::SidrRequest`]: a SIDR_REP.
    ///
    /// # Errors
    /// [`Error::State`] if it was answered.
    pub fn sidr_reply(&mut self, now: Nanos, conn: CommId, params: &SidrRepParams) -> Result<(), Error> {
        match self.owned(conn)?.state {
            State::SidrReqRcvd => self.answer_sidr(now, conn, params),
            _ => return Err(Error::State),
        }
        Ok(())
    }

    /// The next output, in order: a datagram to be sent or an event.
    pub fn next_output(&mut self) -> Option<Output> {
        loop {
            let output = self.outputs.pop_front()?;
            let wanted = match &output {
                Output::Send { .. } => true,
                Output::Event(event) => self.conns.get(&event.conn()).is_some_and(|conn| conn.owned),
            };
            if wanted {
                return Some(output);
            }
        }
    }

    /// Identifiers that are kept, those that are destroyed too while something may still come for them.
    pub fn kept(&self) -> usize {
        self.conns.len()
    }

    /// Returns true if nothing at all is kept, of no identifier and no peer.
    pub fn is_empty(&self) -> bool {
        self.conns.is_empty()
            && self.by_id.is_empty()
            && self.by_qpn.is_empty()
            && self.asked.is_empty()
            && self.deadlines.is_empty()
            && self.outputs.is_empty()
    }

    /// An identifier that the program has not given up.
    fn owned(&mut self, id: CommId) -> Result<&mut Conn, Error> {
        self.conns.get_mut(&id).filter(|conn| conn.owned).ok_or(Error::Unknown)
    }

    fn conn(&mut self, id: CommId) -> &mut Conn {
        self.conns.get_mut(&id).expect("an identifier that is kept")
    }

    fn free_id(&mut self) -> CommId {
        loop {
            let number = self.next & ((1 << NUMBER_BITS) - 1);
            self.next = self.next.wrapping_add(1);
            let id = self.slot << NUMBER_BITS | number;
            if number != 0 && !self.conns.contains_key(&id) {
                return id;
            }
        }
    }

    fn tid(&self, id: CommId) -> u64 {
        u64::from(self.tids) << 32 | u64::from(id)
    }

    fn send(&mut self, path: Path, mad: Mad) {
        self.outputs.push_back(Output::Send { path, mad });
    }

    fn tell(&mut self, event: Event) {
        if self.conns.get(&event.conn()).is_some_and(|conn| conn.owned) {
            self.outputs.push_back(Output::Event(event));
        }
    }

    /// Sends what the other end is to answer, now and again.
    fn repeat(&mut self, now: Nanos, id: CommId, state: State, mad: Mad) {
        let conn = self.conn(id);
        conn.state = state;
        conn.mad = Some(Box::new(mad));
        let (path, deadline) = (conn.path, conn.repetition.begin(now));
        self.arm(id, Some(deadline));
        self.send(path, mad);
    }

    /// Waits for what may still come, and answers it with `mad`.
    fn rest(&mut self, now: Nanos, id: CommId, state: State, mad: Option<Mad>) {
        let conn = self.conn(id);
        conn.state = state;
        conn.mad = mad.map(Box::new);
        self.linger(now, id);
        if state != State::Timewait {
            self.resting.push_back(id);
            let oldest = if self.resting.len() > RESTING { self.resting.pop_front() } else { None };
            if let Some(id) = oldest
                && self.conns.get(&id).is_some_and(|conn| matches!(conn.state, State::Rejected | State::SidrDone))
            {
                self.idle(id);
            }
        }
    }

    /// Waits from now on, as long as its state wants.
    fn linger(&mut self, now: Nanos, id: CommId) {
        let conn = self.conn(id);
        let time = match conn.state {
            State::Timewait => time::of(conn.ack_timeout),
            State::SidrDone => time::of(SIDR_RESPONSE),
            _ => conn.again + time::of(conn.ack_timeout),
        };
        self.arm(id, Some(now.saturating_add(time)));
    }

    /// Ends the identifier: no more datagrams are sent or taken for it.
    fn idle(&mut self, id: CommId) {
        self.arm(id, None);
        let conn = self.conn(id);
        conn.state = State::Idle;
        conn.mad = None;
        let (owned, dgid, remote, asked) = (conn.owned, conn.path.dgid, conn.remote, conn.sidr.take());
        if let Some(Remote { id: remote_id, guid, qpn }) = remote {
            forget(&mut self.by_id, (dgid, guid, remote_id), id);
            forget(&mut self.by_qpn, (dgid, guid, qpn), id);
        }
        if let Some(request) = asked {
            forget(&mut self.asked, (dgid, request), id);
        }
        if !owned {
            self.conns.remove(&id);
        }
    }

    /// The other end is known from now on.
    fn know(&mut self, id: CommId, remote: Remote) {
        let conn = self.conn(id);
        conn.remote = Some(remote);
        let dgid = conn.path.dgid;
        self.by_id.insert((dgid, remote.guid, remote.id), id);
        self.by_qpn.insert((dgid, remote.guid, remote.qpn), id);
    }

    /// Sends again what answers the message that has come again.
    fn answer_again(&mut self, id: CommId) {
        let conn = self.conn(id);
        if let Some(mad) = conn.mad.as_deref().copied() {
            let path = conn.path;
            self.send(path, mad);
        }
    }

    /// Sends a REJ for a connection that is not established, and rests.
    fn refuse(&mut self, now: Nanos, id: CommId, reason: u16, ari: Ari, private_data: [u8; 148]) {
        let conn = self.conn(id);
        let (local_comm_id, message) = match conn.state {
            // Without an MRA, the other end knows no identifier.
            State::ReqRcvd if conn.mad.is_none() => (0, answered::REQ),
            State::ReqRcvd => (id, answered::REQ),
            State::RepRcvd => (id, answered::REP),
            _ => (id, answered::OTHER),
        };
        let rej = Rej {
            local_comm_id,
            remote_comm_id: conn.remote.map(|remote| remote.id).or(conn.server).unwrap_or(0),
            message,
            information_length: ari.length,
            reason,
            information: ari.bytes,
            private_data,
        };
        let (path, mad) = (conn.path, rej.encode(conn.tid));
        self.send(path, mad);
        self.rest(now, id, State::Rejected, Some(mad));
    }

    fn establish(&mut self, id: CommId, private_data: [u8; 224]) {
        self.arm(id, None);
        let conn = self.conn(id);
        conn.state = State::Established;
        conn.mad = None;
        self.tell(Event::Established { conn: id, private_data });
    }

    fn dreq(&mut self, now: Nanos, id: CommId, private_data: [u8; 220]) {
        let tid = self.tid(id);
        let conn = self.conn(id);
        conn.tid = tid;
        let Some(remote) = conn.remote else { return };
        let dreq = Dreq { local_comm_id: id, remote_comm_id: remote.id, remote_qpn: remote.qpn, private_data };
        self.repeat(now, id, State::DreqSent, dreq.encode(tid));
    }

    /// Answers the DREQ that has come, and waits until no packet is under way.
    fn drep(&mut self, now: Nanos, id: CommId, private_data: [u8; 224]) {
        let conn = self.conn(id);
        let remote_comm_id = conn.remote.map_or(0, |remote| remote.id);
        let mad = Drep { local_comm_id: id, remote_comm_id, private_data }.encode(conn.tid);
        let path = conn.path;
        self.send(path, mad);
        self.rest(now, id, State::Timewait, Some(mad));
    }

    fn answer_sidr(&mut self, now: Nanos, id: CommId, params: &SidrRepParams) {
        let conn = self.conn(id);
        let rep = SidrRep {
            request_id: conn.sidr.unwrap_or(0),
            status: params.status,
            information_length: params.ari.length,
            ece_options: params.ece.options,
            ece_vendor: params.ece.vendor,
            qpn: params.qpn,
            service_id: conn.service_id,
            qkey: params.qkey,
            information: params.ari.bytes,
            private_data: params.private_data,
        };
        let (path, mad) = (conn.path, rep.encode(conn.tid));
        self.send(path, mad);
        self.rest(now, id, State::SidrDone, Some(mad));
    }
}

/// Removes a key where it leads to this identifier, and not to one that has taken its place.
fn forget<K: Ord>(map: &mut BTreeMap<K, CommId>, key: K, id: CommId) {
    if map.get(&key) == Some(&id) {
        map.remove(&key);
    }
}

/// The information in a REJ of reason timeout, by which the other end finds the connection.
fn guid_as_ari(guid: u64) -> Ari {
    Ari::new(&guid.to_be_bytes()).unwrap_or(Ari::NONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_not_0_and_not_used_again_while_they_are_kept() {
        for slot in [0, 1023] {
            let mut machine = Machine::new(slot, 1);
            let mut connect = |next| {
                machine.next = next;
                machine.connect(0, Path::default(), &ReqParams::default())
            };
            let last = (1 << NUMBER_BITS) - 1;
            let ids = [connect(last), connect(last), connect(last), connect(1), connect(2)];
            let slot = slot << NUMBER_BITS;
            assert_eq!(ids, [slot | last, slot | 1, slot | 2, slot | 3, slot | 4]);
        }
    }

    #[test]
    fn processes_that_have_a_slot_one_after_the_other_begin_elsewhere() {
        let first = |seed| Machine::new(3, seed).connect(0, Path::default(), &ReqParams::default());
        let firsts: BTreeSet<CommId> = (0..1000).map(first).collect();
        assert!(firsts.len() > 990 && firsts.iter().all(|id| id >> NUMBER_BITS == 3));
    }
}
