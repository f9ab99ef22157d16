//! The two ends of a connection whose messages go as packets, over whatever carries them: the hosts by which the requester and
//! the responder of `vervain-transport` act on a QP. A carrier adds where packets leave ([`PacketOut`]) and how they come.

pub mod requester;
pub mod responder;

use vervain_hca::mr::transfer::Pieces;
use vervain_hca::wc;
use vervain_transport::{Refused, Status};
use vervain_wire::Headers;

/// Where the packets of one peer leave.
pub trait PacketOut {
    /// Whether another packet may be pushed now.
    fn has_room(&self) -> bool;

    /// Adds a packet; `from`, which is copied, is only read during this call.
    ///
    /// # Errors
    /// [`Refused::Memory`] where `from` is not there, [`Refused::Full`] where it is to be tried again later.
    fn push(&mut self, headers: &Headers, from: &Pieces) -> Result<(), Refused>;

    /// See [`vervain_transport::RequesterHost::is_taken`].
    fn is_taken(&self) -> bool {
        true
    }
}

/// `enum ibv_wc_status`.
pub fn wc_status(status: Status) -> u32 {
    match status {
        Status::Success => wc::SUCCESS,
        Status::LocalLength => wc::LOC_LEN_ERR,
        Status::LocalQpOperation => wc::LOC_QP_OP_ERR,
        Status::LocalProtection => wc::LOC_PROT_ERR,
        Status::BadResponse => wc::BAD_RESP_ERR,
        Status::RemoteInvalidRequest => wc::REM_INV_REQ_ERR,
        Status::RemoteAccess => wc::REM_ACCESS_ERR,
        Status::RemoteOperation => wc::REM_OP_ERR,
        Status::RetryExceeded => wc::RETRY_EXC_ERR,
        Status::RnrRetryExceeded => wc::RNR_RETRY_EXC_ERR,
    }
}
