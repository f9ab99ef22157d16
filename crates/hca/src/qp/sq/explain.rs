//! Why a work request has failed, in a sentence (DESIGN decision 11).

use crate::qp::base::QpBase;
use crate::qp::sq::SendQueue;
use crate::qp::sq::path::Path;
use crate::reasons;
use vervain_iba::{Opcode, access, wc};

impl SendQueue {
    /// Says why the request at place `i` ends with `status`.
    #[cold]
    pub(crate) fn explain(&self, qp: &QpBase, i: usize, status: u32) {
        let (own, peer, opcode) = (qp.qp_num(), self.params.dest_qpn, self.wq[i].opcode);
        let refused = self.refused_by_key(i, status);
        let why = refused.as_deref().unwrap_or_else(|| in_general(status));
        reasons::tell(format_args!("QP {own:#x}, {opcode:?} to QP {peer:#x}: status {status}: {why}"));
    }

    /// What of the keys or the QP of a peer whose memory is reached refuses the request at place `i`.
    fn refused_by_key(&self, i: usize, status: u32) -> Option<String> {
        let w = &self.wq[i];
        let right = match w.opcode {
            Opcode::Write | Opcode::WriteImm | Opcode::AtomicWrite => access::REMOTE_WRITE,
            Opcode::Read => access::REMOTE_READ,
            Opcode::CompareSwap | Opcode::FetchAdd => access::REMOTE_ATOMIC,
            _ => return None,
        };
        match (status, &self.path) {
            (wc::REM_ACCESS_ERR | wc::REM_INV_REQ_ERR, Path::Memory(peer)) => {
                Some(peer.why_refused(w.rkey, w.remote_addr, w.length, right))
            }
            _ => None,
        }
    }
}

/// What a status says, where nothing more is known.
fn in_general(status: u32) -> &'static str {
    match status {
        wc::LOC_LEN_ERR => "the message has a length that the operation or the path does not allow",
        wc::LOC_QP_OP_ERR => "the QP does not allow the operation (max_rd_atomic?)",
        wc::LOC_PROT_ERR => "an SGE names memory that its lkey does not cover or allow",
        wc::MW_BIND_ERR => "the window or key does not allow the bind or invalidation",
        wc::REM_INV_REQ_ERR => "the peer's QP or receive does not take this request",
        wc::REM_ACCESS_ERR => "the rkey does not cover or allow the remote memory",
        wc::REM_OP_ERR => "the peer's receive buffer or memory is not accessible",
        wc::RETRY_EXC_ERR => {
            "nobody answers under that QP number: no process of this user on this host, or the QP not ready, in error, \
             connected to another or expecting another PSN"
        }
        wc::RNR_RETRY_EXC_ERR => "the peer has no receive posted",
        _ => "error",
    }
}
