//! The completion of one request.

use std::fmt;

use vervain_abi::*;

/// One completion, in the layout that `ibv_poll_cq(3)` fills.
#[derive(Debug, Clone, Copy, Default)]
#[repr(transparent)]
pub struct Completion(ibv_wc);

impl Completion {
    /// The number that the request was given.
    pub fn id(&self) -> u64 {
        self.0.wr_id
    }

    /// How it ended. But for [`id`](Self::id), [`qp_num`](Self::qp_num) and [`vendor_error`](Self::vendor_error),
    /// nothing else here has a meaning unless that is [`Status::Success`].
    pub fn status(&self) -> Status {
        Status::of(self.0.status)
    }

    /// Returns true if it ended well: the status, compared without naming it.
    #[inline]
    pub fn is_success(&self) -> bool {
        self.0.status == IBV_WC_SUCCESS
    }

    /// The kind of request.
    pub fn opcode(&self) -> Opcode {
        Opcode::of(self.0.opcode)
    }

    /// The bytes received, or read; for UD with the [`GRH_BYTES`](crate::GRH_BYTES) in front. Not set for sends and
    /// writes.
    pub fn bytes(&self) -> u32 {
        self.0.byte_len
    }

    /// The immediate data that came with it, in host order.
    pub fn immediate(&self) -> Option<u32> {
        (self.0.wc_flags & IBV_WC_WITH_IMM != 0).then(|| u32::from_be(self.0.imm_data))
    }

    /// The key of this side's window that the peer's Send closed.
    pub fn invalidated(&self) -> Option<u32> {
        // The same field as the immediate data, but in host order.
        (self.0.wc_flags & IBV_WC_WITH_INV != 0).then_some(self.0.imm_data)
    }

    /// The QP that the request was posted to.
    pub fn qp_num(&self) -> u32 {
        self.0.qp_num
    }

    /// The QP that sent the message; UD only.
    pub fn source_qp(&self) -> u32 {
        self.0.src_qp
    }

    /// Returns true if a GRH lies in front of the message; UD only.
    pub fn has_grh(&self) -> bool {
        self.0.wc_flags & IBV_WC_GRH != 0
    }

    /// The LID of the port that sent the message; UD on InfiniBand only.
    pub fn source_lid(&self) -> u16 {
        self.0.slid
    }

    /// The service level that the message came with; UD only. On RoCE the device's substitute: the priority of the
    /// VLAN, or bits that name the packet's IP header.
    pub fn service_level(&self) -> u8 {
        self.0.sl
    }

    pub(crate) fn raw(&self) -> ibv_wc {
        self.0
    }

    /// The vendor's own number for the error.
    pub fn vendor_error(&self) -> u32 {
        self.0.vendor_err
    }
}

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $words:literal;)+) => {
        /// How a request ended; `enum ibv_wc_status`, IBA volume 1, 10.10.3 and 11.6.2.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Status {
            $($(#[$doc])* $name,)+
            /// A number that is newer than this crate.
            Other(u32),
        }

        impl Status {
            fn of(number: ibv_wc_status) -> Self {
                match number {
                    $($number => Self::$name,)+
                    other => Self::Other(other),
                }
            }

            /// The number in `enum ibv_wc_status`.
            pub fn number(self) -> u32 {
                match self {
                    $(Self::$name => $number,)+
                    Self::Other(other) => other,
                }
            }

            fn words(self) -> &'static str {
                match self {
                    $(Self::$name => $words,)+
                    Self::Other(_) => "unknown status",
                }
            }
        }
    };
}

statuses! {
    /// Done.
    Success = 0, "success";
    /// The message does not fit the request's memory, or is longer than the QP allows.
    LocalLength = 1, "length does not fit, on this side";
    /// An inconsistency inside the device.
    LocalQpOperation = 2, "the QP could not carry it out";
    /// An inconsistency inside the device, in an end-to-end context.
    LocalEecOperation = 3, "the EE context could not carry it out";
    /// The request's memory is not registered so, in this domain.
    LocalProtection = 4, "no right to the memory, on this side";
    /// The QP went to the error state before the request was carried out.
    Flushed = 5, "flushed: the QP is in the error state";
    /// A memory window could not be bound.
    WindowBind = 6, "memory window could not be bound";
    /// The peer answered what the protocol does not allow.
    BadResponse = 7, "unexpected answer of the peer";
    /// A protection error on the receive queue, while a message came in.
    LocalAccess = 8, "no right to the memory for what came in";
    /// The peer refused the message: too long for its receive, or an operation that its QP does not do.
    RemoteInvalidRequest = 9, "the peer does not take such a request";
    /// The key, the range or the right was wrong, at the peer.
    RemoteAccess = 10, "no right to the memory of the peer";
    /// The peer could not finish it.
    RemoteOperation = 11, "the peer could not carry it out";
    /// No answer: no peer is there, or every packet was lost.
    RetryExceeded = 12, "no answer from the peer in all retries";
    /// The peer had no receive posted.
    RnrRetryExceeded = 13, "the peer had no receive posted in all retries";
    /// RD only.
    LocalRddViolation = 14, "RD domains differ";
    /// RD only.
    RemoteInvalidRdRequest = 15, "the peer does not take such an RD request";
    /// The peer gave the operation up.
    RemoteAborted = 16, "aborted by the peer";
    /// RD only.
    InvalidEecNumber = 17, "no such EE context";
    /// RD only.
    InvalidEecState = 18, "EE context in the wrong state";
    /// The device failed.
    Fatal = 19, "the device failed";
    /// The answer did not come in time.
    ResponseTimeout = 20, "answer timed out";
    /// Anything else.
    General = 21, "general error";
    /// Tag matching failed.
    TagMatching = 22, "tag matching failed";
    /// A rendezvous was left to software.
    RendezvousIncomplete = 23, "rendezvous left to software";
}

impl fmt::Display for Status {
    /// Our words and the header's number: "no right to the memory of the peer (status 10)".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (status {})", self.words(), self.number())
    }
}

impl std::error::Error for Status {}

/// The kind of request that was completed; `enum ibv_wc_opcode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Opcode {
    /// A Send, with or without immediate data.
    Send,
    /// An RDMA Write, with or without immediate data.
    Write,
    /// An RDMA Read.
    Read,
    /// A compare and swap.
    CompareSwap,
    /// A fetch and add.
    FetchAdd,
    /// A bind of a memory window.
    BindWindow,
    /// An invalidation of a key of this side.
    LocalInvalidate,
    /// A receive that a Send filled.
    Receive,
    /// A receive that a Write with immediate data took.
    ReceiveWriteImm,
    /// Another number.
    Other(u32),
}

impl Opcode {
    fn of(number: ibv_wc_opcode) -> Self {
        match number {
            IBV_WC_SEND => Self::Send,
            IBV_WC_RDMA_WRITE => Self::Write,
            IBV_WC_RDMA_READ => Self::Read,
            IBV_WC_COMP_SWAP => Self::CompareSwap,
            IBV_WC_FETCH_ADD => Self::FetchAdd,
            IBV_WC_BIND_MW => Self::BindWindow,
            IBV_WC_LOCAL_INV => Self::LocalInvalidate,
            IBV_WC_RECV => Self::Receive,
            IBV_WC_RECV_RDMA_WITH_IMM => Self::ReceiveWriteImm,
            other => Self::Other(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_back_and_has_words() {
        for number in 0..30 {
            let status = Status::of(number);
            assert_eq!(status.number(), number);
            assert_eq!(matches!(status, Status::Other(_)), number > 23, "{status}");
            assert!(status.to_string().ends_with(&format!("(status {number})")), "{status}");
        }
        assert_eq!(Status::of(IBV_WC_GENERAL_ERR), Status::General);
    }

    #[test]
    fn immediate_data_or_a_key_is_there_when_its_flag_says_so() {
        let wc = |imm_data, wc_flags| Completion(ibv_wc { imm_data, wc_flags, ..Default::default() });
        let (immediate, neither) = (wc(7u32.to_be(), IBV_WC_WITH_IMM), wc(7, 0));
        assert_eq!((immediate.immediate(), immediate.invalidated()), (Some(7), None));
        assert_eq!((neither.immediate(), neither.invalidated()), (None, None));
        let invalidation = wc(0x1203, IBV_WC_WITH_INV);
        assert_eq!((invalidation.immediate(), invalidation.invalidated()), (None, Some(0x1203)));
    }
}
