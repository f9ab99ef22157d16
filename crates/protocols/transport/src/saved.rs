//! The error of an unusable record of a requester or responder.

/// The fault of a record, in a few words: no requester or responder can be in that state, or not with these requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unusable(pub &'static str);
