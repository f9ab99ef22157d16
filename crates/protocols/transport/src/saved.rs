//! The error of an unusable record of a requester or responder.

/// The fault of a record, in a few words: no requester or responder can be in that state, or not with these requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unusable(pub &'static str);

impl std::fmt::Display for Unusable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Unusable {}
