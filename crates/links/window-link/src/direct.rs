//! Data of a connection that is put where it belongs: Writes to granted memory, long messages, answers of long READs.

use super::grantees::Grantees;
use super::landing::Landing;
use super::reads::Reads;
use super::writes::Writes;
use std::sync::Arc;

/// The direct puts of a connection's data, by kind.
pub struct Direct {
    /// RDMA Writes.
    pub writes: Writes,
    /// Messages.
    pub landing: Landing,
    /// Answers of READs.
    pub reads: Reads,
}

impl Direct {
    /// Those of a connection between processes that put directly if `grantees` allows it.
    pub fn new(grantees: &Arc<Grantees>) -> Self {
        let is_on = grantees.direct;
        Direct { writes: Writes::new(is_on), landing: Landing::new(is_on), reads: Reads::new(grantees) }
    }

    /// The peer takes back what it has granted: behind this nothing more is put by it.
    pub fn forget(&self) {
        self.writes.forget();
        self.landing.forget();
        self.reads.forget_answers();
    }

    /// The connection is over.
    pub fn disconnect(&self) {
        self.writes.forget();
        self.landing.end_message();
        self.reads.clear();
    }
}
