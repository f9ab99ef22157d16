//! The services of QPs.

use std::fmt;

use serde::{Deserialize, Serialize};
use vervain_abi::{IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, ibv_qp_type};

/// The service that a QP gives; `enum ibv_qp_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Transport {
    /// Reliable connection: every operation, each completed when the peer has it.
    Rc,
    /// Unreliable connection: Send and Write; a message that lost a packet is dropped.
    Uc,
    /// Datagrams of at most an MTU, to any QP.
    Ud,
}

impl Transport {
    pub(crate) fn raw(self) -> ibv_qp_type {
        match self {
            Self::Rc => IBV_QPT_RC,
            Self::Uc => IBV_QPT_UC,
            Self::Ud => IBV_QPT_UD,
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        })
    }
}
