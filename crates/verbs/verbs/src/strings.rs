//! The functions that name enum values: `ibv_event_type_str(3)` and its kin. Tools print these words and scripts search
//! for them, so they are the words of rdma-core.

use core::ffi::{CStr, c_char};

use crate::abi::{ibv_event_type, ibv_node_type, ibv_port_state, ibv_wc_status, ibv_wr_opcode};

const NODE_TYPES: [&CStr; 7] = [
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

const PORT_STATES: [&CStr; 6] = [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];

const EVENT_TYPES: [&CStr; 21] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
    c"Device link speed change",
];

const WC_STATUSES: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

const WR_OPCODES: [&CStr; 16] = [
    c"rdma-write",
    c"rdma-write-with-imm",
    c"send",
    c"send-with-imm",
    c"rdma-read",
    c"atomic-cmp-and-swp",
    c"atomic-fetch-and-add",
    c"local-inv",
    c"bind-mw",
    c"send-with-inv",
    c"tso",
    c"driver1",
    // 12 and 13 are driver-private opcodes without a name.
    c"unknown",
    c"unknown",
    c"flush",
    c"atomic-write",
];

fn name(names: &[&'static CStr], index: usize) -> *const c_char {
    names.get(index).copied().unwrap_or(c"unknown").as_ptr()
}

/// The name of a node type.
pub extern "C" fn ibv_node_type_str(node_type: ibv_node_type) -> *const c_char {
    // The first type is 1; 0 wraps to an index that no table has.
    name(&NODE_TYPES, (node_type as usize).wrapping_sub(1))
}

/// The name of a port state.
pub extern "C" fn ibv_port_state_str(port_state: ibv_port_state) -> *const c_char {
    name(&PORT_STATES, port_state as usize)
}

/// The name of an async event type.
pub extern "C" fn ibv_event_type_str(event: ibv_event_type) -> *const c_char {
    name(&EVENT_TYPES, event as usize)
}

/// The name of a completion status.
pub extern "C" fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char {
    name(&WC_STATUSES, status as usize)
}

/// The name of a send opcode.
pub extern "C" fn ibv_wr_opcode_str(opcode: ibv_wr_opcode) -> *const c_char {
    name(&WR_OPCODES, opcode as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi;

    fn text(p: *const c_char) -> &'static str {
        // SAFETY: the functions under test return pointers to NUL-terminated statics.
        unsafe { CStr::from_ptr(p) }.to_str().expect("the names are ASCII")
    }

    #[test]
    fn names_sit_at_their_values_and_anything_else_is_unknown() {
        assert_eq!(text(ibv_node_type_str(abi::IBV_NODE_CA)), "InfiniBand channel adapter");
        assert_eq!(text(ibv_node_type_str(abi::IBV_NODE_UNSPECIFIED)), "unspecified");
        assert_eq!(text(ibv_node_type_str(0)), "unknown");
        assert_eq!(text(ibv_node_type_str(abi::IBV_NODE_UNKNOWN)), "unknown");
        assert_eq!(text(ibv_port_state_str(abi::IBV_PORT_ACTIVE)), "active");
        assert_eq!(text(ibv_port_state_str(6)), "unknown");
        assert_eq!(text(ibv_event_type_str(abi::IBV_EVENT_QP_LAST_WQE_REACHED)), "last WQE reached");
        assert_eq!(text(ibv_event_type_str(abi::IBV_EVENT_DEVICE_SPEED_CHANGE)), "Device link speed change");
        assert_eq!(text(ibv_event_type_str(21)), "unknown");
        assert_eq!(text(ibv_wc_status_str(12)), "transport retry counter exceeded");
        assert_eq!(text(ibv_wc_status_str(u32::MAX)), "unknown");
        assert_eq!(text(ibv_wr_opcode_str(abi::IBV_WR_ATOMIC_WRITE)), "atomic-write");
        assert_eq!(text(ibv_wr_opcode_str(12)), "unknown");
    }
}
