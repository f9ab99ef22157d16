//! A QP whose peer is not a QP of this process.

use std::sync::Arc;
use vervain_hca::{
    CompChannel, Completion, Context, Cq, Data, Mr, Opcode, Pd, Qp, QpCap, QpInit, QpType, SendRequest, Sge, Status,
    UdDest, access,
};

/// Bytes of its messages.
pub const BYTES: usize = 1024;
/// Bytes of its memory, which its peer may use.
pub const MEMORY: usize = 64 << 10;
const RIGHTS: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;

/// A QP with memory for its messages.
pub struct Side {
    pub context: Arc<Context>,
    pub pd: Arc<Pd>,
    pub qp: Arc<Qp>,
    /// Channel of both CQs.
    pub channel: Arc<CompChannel>,
    pub sent: Arc<Cq>,
    pub received: Arc<Cq>,
    pub memory: Vec<u8>,
    pub mr: Arc<Mr>,
}

impl Side {
    pub fn new(context: &Arc<Context>, qp_type: QpType, receives: u32) -> Side {
        let pd = context.alloc_pd().unwrap();
        let channel = CompChannel::create(context).unwrap();
        let cq = || Cq::create(context, 1024, Some(&channel), 0, 0, false, false).unwrap();
        let (sent, received) = (cq(), cq());
        let cap =
            QpCap { max_send_wr: 512, max_recv_wr: receives, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 64 };
        let init = QpInit {
            qp_type,
            send_cq: Some(&sent),
            recv_cq: Some(&received),
            srq: None,
            xrcd: None,
            cap,
            sq_sig_all: true,
            cookie: 0,
        };
        let qp = Qp::create(context, Some(&pd), &init).unwrap();
        let memory = vec![7u8; MEMORY];
        let at = memory.as_ptr() as u64;
        let mr = Mr::register(&pd, at, memory.len() as u64, at, RIGHTS).unwrap();
        Side { context: Arc::clone(context), pd, qp, channel, sent, received, memory, mr }
    }

    pub fn sge(&self, length: usize) -> [Sge; 1] {
        [Sge { addr: self.memory.as_ptr() as u64, length: length as u32, lkey: self.mr.lkey() }]
    }

    pub fn post(&self, wr_id: u64, ud: Option<UdDest<'_>>) {
        let sge = self.sge(BYTES);
        let request = SendRequest { wr_id, opcode: Opcode::Send, data: Data::Sges(&sge), ud, ..SendRequest::default() };
        self.qp.post_send(|p| p.push(&request)).unwrap();
    }

    pub fn post_receive(&self, wr_id: u64) {
        self.qp.post_recv(wr_id, &self.sge(2 * BYTES)).unwrap();
    }
}

/// Completions, all of them successful.
pub fn poll(cq: &Cq) -> Vec<Completion> {
    let mut got = Vec::new();
    cq.poll(64, &mut |c| got.push(*c));
    assert!(got.iter().all(|c| c.status == Status::Success.to_verbs()), "{got:?}");
    got
}
