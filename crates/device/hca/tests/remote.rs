//! A QP whose messages a carrier has, and the same QP connected anew to a peer that memory reaches.

mod common;

use common::{poll, ways};
use std::cell::Cell;
use std::sync::Arc;
use vervain_hca::device::LinkChoice;
use vervain_hca::process::Progress;
use vervain_hca::qp::carrier::{Carrier, Connection, Datagram, PathAttr, Psns};
use vervain_hca::qp::remote::Sends;
use vervain_hca::qp::router::Router;
use vervain_hca::qp::table;
use vervain_hca::{
    AhAttr, Context, Cq, Data, Device, Gid, Grh, Mr, Opcode, Qp, QpAttr, QpCap, QpInit, QpState, QpType, Result,
    SendRequest, Sge, Status, WorkRequest, access, attr, devices, send_flags,
};

const ALL: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
/// 192.0.2.1, of the documentation's network.
const ELSEWHERE: Gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1];

/// A carrier to every host, by which nothing leaves.
struct Silent;

impl Carrier for Silent {
    fn carries(&self, _: &Device, _: &AhAttr) -> bool {
        true
    }
    fn connect(&self, _: &Arc<Qp>, _: &QpAttr) -> Result<Arc<dyn Connection>> {
        Ok(Arc::new(Silent))
    }
    fn register_qp(&self, _: &Arc<Qp>) -> Result<()> {
        Ok(())
    }
    fn unregister_qp(&self, _: u32) {}
    fn send_datagram(&self, _: &Qp, _: &Datagram<'_>) -> Option<u64> {
        None
    }
}

impl Connection for Silent {
    fn advance(&self, _: &mut Sends<'_>) -> Progress {
        Progress::Idle
    }
    fn modified(&self, _: &PathAttr) {}
    fn psns(&self) -> Psns {
        Psns { next: None, expected: 0 }
    }
    fn has_begun(&self) -> bool {
        false
    }
    fn holds_back(&self, _: &Sends<'_>) -> bool {
        false
    }
    fn disconnected(&self) {}
}

/// A work request that counts how often it is read.
struct Counted {
    data: Sge,
    remote: (u64, u32),
    reads: Cell<u32>,
}

impl Counted {
    fn read<T>(&self, part: T) -> T {
        self.reads.set(self.reads.get() + 1);
        part
    }
}

impl WorkRequest for Counted {
    fn wr_id(&self) -> u64 {
        self.read(1)
    }
    fn flags(&self) -> u32 {
        self.read(send_flags::SIGNALED)
    }
    fn data(&self) -> Sge {
        self.read(self.data)
    }
    fn imm(&self) -> u32 {
        self.read(0)
    }
    fn remote(&self) -> (u64, u32) {
        self.read(self.remote)
    }
    fn atomic(&self) -> (u64, u32, u64, u64) {
        self.read((self.remote.0, self.remote.1, 0, 0))
    }
}

/// RESET to RTS, connected to itself by number and to `dgid` by address.
fn connect(qp: &Qp, dgid: Gid) {
    let ah = AhAttr { is_global: true, port_num: 1, grh: Grh { dgid, ..Grh::default() }, ..AhAttr::default() };
    let new = QpAttr {
        qp_state: QpState::Init,
        port_num: 1,
        qp_access_flags: ALL,
        path_mtu: 5,
        dest_qp_num: qp.qp_num(),
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 1,
        ah,
        ..QpAttr::default()
    };
    qp.modify(&new, attr::STATE | attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS).unwrap();
    let mask = attr::STATE | attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN;
    let mask = mask | attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER;
    qp.modify(&QpAttr { qp_state: QpState::Rtr, ..new }, mask).unwrap();
    let mask = attr::TIMEOUT | attr::RETRY_CNT | attr::RNR_RETRY | attr::MAX_QP_RD_ATOMIC;
    qp.modify(&QpAttr { qp_state: QpState::Rts, ..new }, attr::STATE | attr::SQ_PSN | mask).unwrap();
}

#[test]
fn the_fast_path_is_closed_while_a_carrier_has_the_messages_and_open_after_a_reset() {
    let process = table::start(|identity| {
        Ok((ways(identity), Router::new(LinkChoice::Auto, devices()?, vec![Arc::new(Silent)])))
    })
    .unwrap();
    let context = Context::open(&devices().unwrap()[0], process).unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = Cq::create(&context, 16, None, 0, 0, false, false).unwrap();
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let init = QpInit {
        qp_type: QpType::Rc,
        send_cq: Some(&cq),
        recv_cq: Some(&cq),
        srq: None,
        xrcd: None,
        cap,
        sq_sig_all: false,
        cookie: 0,
    };
    let qp = Qp::create(&context, Some(&pd), &init).unwrap();
    let words = [7_u64, 0];
    let at = words.as_ptr() as u64;
    let mr = Mr::register(&pd, at, 16, at, ALL).unwrap();
    let data = Sge { addr: at, length: 8, lkey: mr.lkey() };
    let work = Counted { data, remote: (at + 8, mr.rkey()), reads: Cell::new(0) };
    let own = context.device().gids(1)[0].gid;

    for _ in 0..2 {
        connect(&qp, ELSEWHERE);
        for opcode in [Opcode::Write, Opcode::Send, Opcode::SendImm, Opcode::Read, Opcode::FetchAdd] {
            let taken = qp.post_send(|poster| {
                poster.fast(opcode, &work) || opcode != Opcode::Write && poster.fast_other(opcode, &work)
            });
            assert_eq!((taken, work.reads.get()), (false, 0), "{opcode:?}");
        }
        assert!(!qp.post_send(|poster| poster.fast_write(&work)) && work.reads.get() == 0);
        qp.modify(&QpAttr { qp_state: QpState::Reset, ..QpAttr::default() }, attr::STATE).unwrap();

        connect(&qp, own);
        // The first request finds the peer, by the long way.
        let (remote_addr, rkey) = work.remote;
        let flags = send_flags::SIGNALED;
        let first = SendRequest { flags, opcode: Opcode::Write, remote_addr, rkey, ..SendRequest::default() };
        qp.post_send(|poster| poster.push(&SendRequest { data: Data::Sges(&[data]), ..first })).unwrap();
        assert_eq!(poll(&cq, 1)[0].status, Status::Success.to_verbs());
        assert!(qp.post_send(|poster| poster.fast_write(&work)) && work.reads.get() > 0);
        assert!(qp.post_send(|poster| poster.fast(Opcode::Read, &work)));
        assert_eq!(poll(&cq, 2).iter().map(|c| c.status).collect::<Vec<_>>(), [Status::Success.to_verbs(); 2]);
        qp.modify(&QpAttr { qp_state: QpState::Reset, ..QpAttr::default() }, attr::STATE).unwrap();
        work.reads.set(0);
    }
}
