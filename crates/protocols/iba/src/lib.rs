//! The words of the InfiniBand specification as Rust types. The numbers are those of the InfiniBand verbs (IBA vol. 1
//! ch. 11, `verbs.h`), so that the C ABI passes them through unchanged. Requests and their outcomes are in `request`;
//! [`timer`] has the timers that requester and responder agree on. Device model, transport and links share one set of
//! them.

#![forbid(unsafe_code)]

pub mod timer;

use serde::{Deserialize, Serialize};

/// A 128-bit global identifier.
pub type Gid = [u8; 16];

/// A scatter/gather element; same layout as `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sge {
    /// Address of the first byte, as the key's users name it.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Local key.
    pub lkey: u32,
}

/// Declares an enum whose variants carry the verbs' numbers, with both conversions.
macro_rules! verbs_enum {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $number:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[repr(u32)]
        pub enum $name { $($(#[$vmeta])* $variant = $number),+ }

        impl $name {
            /// The variant with this number of the verbs; None if there is none.
            #[inline]
            pub fn from_verbs(n: u32) -> Option<Self> {
                match n { $($number => Some(Self::$variant),)+ _ => None }
            }

            /// The verbs' number.
            #[inline]
            pub fn to_verbs(self) -> u32 {
                self as u32
            }
        }
    };
}

mod request;

pub use request::{Flush, Nak, Opcode, Request, Right, Status};

verbs_enum! {
    /// Transport service types (`enum ibv_qp_type`).
    QpType {
        /// Reliable connection.
        Rc = 2,
        /// Unreliable connection.
        Uc = 3,
        /// Unreliable datagram.
        Ud = 4,
        /// XRC initiator.
        XrcSend = 9,
        /// XRC target.
        XrcRecv = 10,
    }
}

/// The specification's name: `RC`, `XRC initiator`.
impl std::fmt::Display for QpType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            QpType::Rc => "RC",
            QpType::Uc => "UC",
            QpType::Ud => "UD",
            QpType::XrcSend => "XRC initiator",
            QpType::XrcRecv => "XRC target",
        })
    }
}

impl QpType {
    /// Returns true for an acknowledged service, which reports errors to the initiator.
    #[inline]
    pub fn is_reliable(self) -> bool {
        matches!(self, QpType::Rc | QpType::XrcSend | QpType::XrcRecv)
    }

    /// Returns true for a service bound to one peer QP.
    #[inline]
    pub fn is_connected(self) -> bool {
        self != QpType::Ud
    }
}

verbs_enum! {
    /// `enum ibv_qp_state` (IBA 10.3.1).
    #[derive(Default)]
    QpState {
        /// Newly made or reset.
        #[default]
        Reset = 0,
        /// Receives may be posted.
        Init = 1,
        /// Ready to receive.
        Rtr = 2,
        /// Ready to send.
        Rts = 3,
        /// Send queue drained or draining.
        Sqd = 4,
        /// Send queue in error (UC, UD).
        Sqe = 5,
        /// All work is flushed.
        Err = 6,
    }
}

/// The specification's name: `RESET`, `INIT`.
impl std::fmt::Display for QpState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            QpState::Reset => "RESET",
            QpState::Init => "INIT",
            QpState::Rtr => "RTR",
            QpState::Rts => "RTS",
            QpState::Sqd => "SQD",
            QpState::Sqe => "SQE",
            QpState::Err => "ERR",
        })
    }
}

/// Completions: `enum ibv_wc_opcode` of receives, and `enum ibv_wc_flags`.
pub mod wc {
    /// `IBV_WC_RECV`.
    pub const OP_RECV: u32 = 128;
    /// `IBV_WC_RECV_RDMA_WITH_IMM`.
    pub const OP_RECV_RDMA_WITH_IMM: u32 = 129;

    /// `IBV_WC_GRH`.
    pub const FLAG_GRH: u32 = 1;
    /// `IBV_WC_WITH_IMM`.
    pub const FLAG_IMM: u32 = 2;
    /// `IBV_WC_WITH_INV`.
    pub const FLAG_INV: u32 = 8;
}

/// `IBV_ACCESS_*`.
pub mod access {
    /// Local write.
    pub const LOCAL_WRITE: u32 = 1;
    /// Remote write.
    pub const REMOTE_WRITE: u32 = 2;
    /// Remote read.
    pub const REMOTE_READ: u32 = 4;
    /// Remote atomic.
    pub const REMOTE_ATOMIC: u32 = 8;
    /// Windows may be bound to it.
    pub const MW_BIND: u32 = 16;
    /// Addresses count from zero.
    pub const ZERO_BASED: u32 = 32;
    /// On-demand paging.
    pub const ON_DEMAND: u32 = 64;
    /// Backed by huge pages.
    pub const HUGETLB: u32 = 128;
    /// Flush to global visibility.
    pub const FLUSH_GLOBAL: u32 = 256;
    /// Flush to persistence.
    pub const FLUSH_PERSISTENT: u32 = 512;
    /// Rights under which the memory may be written, now or through a window (`ib_access_writable` of the kernel).
    pub const WRITABLE: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_ATOMIC | MW_BIND;
    /// Bits that a device may ignore (`IBV_ACCESS_OPTIONAL_RANGE`).
    pub const OPTIONAL_RANGE: u32 = 0x3ff0_0000;
    /// All bits that this device supports.
    pub const KNOWN: u32 =
        LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC | MW_BIND | ZERO_BASED | HUGETLB | FLUSH_GLOBAL;
}

/// `IBV_QP_*`: the attributes that a modify names.
pub mod attr {
    #![allow(missing_docs)]

    macro_rules! bits {
        ($($name:ident = $bit:literal),+ $(,)?) => {
            $(pub const $name: u32 = 1 << $bit;)+

            /// The names of the bits of `mask` in a program's source: `IBV_QP_STATE | IBV_QP_PORT`.
            pub fn names(mask: u32) -> String {
                let known = [$(($name, concat!("IBV_QP_", stringify!($name)))),+];
                let mut names: Vec<_> =
                    known.iter().filter(|(bit, _)| mask & bit != 0).map(|(_, name)| (*name).to_owned()).collect();
                let unknown = known.iter().fold(mask, |left, (bit, _)| left & !bit);
                if unknown != 0 {
                    names.push(format!("{unknown:#x}"));
                }
                names.join(" | ")
            }
        };
    }

    bits! {
        STATE = 0,
        CUR_STATE = 1,
        EN_SQD_ASYNC_NOTIFY = 2,
        ACCESS_FLAGS = 3,
        PKEY_INDEX = 4,
        PORT = 5,
        QKEY = 6,
        AV = 7,
        PATH_MTU = 8,
        TIMEOUT = 9,
        RETRY_CNT = 10,
        RNR_RETRY = 11,
        RQ_PSN = 12,
        MAX_QP_RD_ATOMIC = 13,
        ALT_PATH = 14,
        MIN_RNR_TIMER = 15,
        SQ_PSN = 16,
        MAX_DEST_RD_ATOMIC = 17,
        PATH_MIG_STATE = 18,
        CAP = 19,
        DEST_QPN = 20,
        RATE_LIMIT = 25,
    }
}

/// `IBV_SEND_*`.
pub mod send_flags {
    /// Wait for earlier reads and atomics.
    pub const FENCE: u32 = 1;
    /// Make a completion.
    pub const SIGNALED: u32 = 2;
    /// Ask for a solicited event at the peer.
    pub const SOLICITED: u32 = 4;
    /// The data is copied at posting.
    pub const INLINE: u32 = 8;
    /// Checksum offload, which this device does not have.
    pub const IP_CSUM: u32 = 16;
}

/// Async events (`enum ibv_event_type`).
pub mod event {
    #![allow(missing_docs)]
    pub const CQ_ERR: u32 = 0;
    pub const QP_FATAL: u32 = 1;
    pub const QP_REQ_ERR: u32 = 2;
    pub const QP_ACCESS_ERR: u32 = 3;
    pub const COMM_EST: u32 = 4;
    pub const SQ_DRAINED: u32 = 5;
    pub const PORT_ACTIVE: u32 = 9;
    pub const PORT_ERR: u32 = 10;
    pub const SRQ_ERR: u32 = 14;
    pub const SRQ_LIMIT_REACHED: u32 = 15;
    pub const QP_LAST_WQE_REACHED: u32 = 16;
    pub const GID_CHANGE: u32 = 18;
}

/// Global routing header fields of an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grh {
    /// Destination GID.
    pub dgid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Index of the source GID in the port's table.
    pub sgid_index: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

/// An address vector (`struct ibv_ah_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AhAttr {
    /// Destination LID (InfiniBand link layer).
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// Source path bits.
    pub src_path_bits: u8,
    /// Static rate.
    pub static_rate: u8,
    /// True: `grh` is used.
    pub is_global: bool,
    /// Port, counted from 1.
    pub port_num: u8,
    /// Global routing header.
    pub grh: Grh,
}

/// Sizes of a QP's queues (`struct ibv_qp_cap`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// The 24 bits of a PSN (IBA 9.2.1).
pub const PSN_MASK: u32 = 0x00ff_ffff;

/// `struct ibv_qp_attr`, but for alternate paths and rate limits, which no QP has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct QpAttr {
    pub qp_state: QpState,
    pub cur_qp_state: QpState,
    pub path_mtu: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: u32,
    pub cap: QpCap,
    pub ah: AhAttr,
    pub pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
}

/// A completion, as `struct ibv_wc` and the extended CQ report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completion {
    /// The program's cookie.
    pub wr_id: u64,
    /// [`Status`] as a number. That of a receive comes from memory that peers write: it may be any byte.
    pub status: u32,
    /// `enum ibv_wc_opcode`.
    pub opcode: u32,
    /// Vendor's error code: 0.
    pub vendor_err: u32,
    /// Bytes transferred.
    pub byte_len: u32,
    /// Immediate data as on the wire (big endian), or the invalidated rkey.
    pub imm_or_rkey: u32,
    /// The local QP.
    pub qp_num: u32,
    /// The remote QP of a received message.
    pub src_qp: u32,
    /// `IBV_WC_*` flags.
    pub wc_flags: u32,
    /// Sender's LID.
    pub slid: u16,
    /// Service level.
    pub sl: u8,
    /// Path bits of the destination LID.
    pub dlid_path_bits: u8,
    /// P_Key index.
    pub pkey_index: u16,
    /// Time of completion: nanoseconds of CLOCK_MONOTONIC_RAW, this HCA's 1 GHz clock.
    pub timestamp: u64,
}
