//! Why a record of a requester or responder is none.

/// What no requester or responder is in, in a few words: a record that was not saved by one, or for other requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unusable(pub &'static str);

impl std::fmt::Display for Unusable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Unusable {}
