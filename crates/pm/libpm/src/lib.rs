//! `libpm.so.2`: the functions of PM (PMv2 of SCore's cluster system) for C, which `include/pm.h` declares and
//! documents, and nothing else. Their work is done in the `vervain-pm` crate; here arguments become its types, and its
//! errors C's values.
//!
//! `tests/exports.rs` compares the built library and the header with the list of functions.

#![allow(non_snake_case, reason = "the names are PM's")]

mod context;
mod device;
mod error;
mod message;
mod rdma;
mod rest;
mod score;
mod select;

use vervain_symver::export;

export!(default "PM_2.0" from device: pmCloseDevice, pmOpenDevice);
export!(
    default "PM_2.0" from context:
    pmAddNode,
    pmAssociateNodes,
    pmAttachContext,
    pmCloseContext,
    pmDetachContext,
    pmGetMtu,
    pmGetNodeCount,
    pmGetSelf,
    pmOpenContext,
);
export!(
    default "PM_2.0" from message:
    pmGetSendBuffer,
    pmGetSender,
    pmIsSendDone,
    pmReceive,
    pmReleaseReceiveBuffer,
    pmSend,
);
export!(
    default "PM_2.0" from rdma:
    pmIsReadDone,
    pmIsWriteDone,
    pmMLock,
    pmMUnlock,
    pmRead,
    pmWrite,
);
export!(
    default "PM_2.0" from rest:
    pmCheckpoint,
    pmCheckpointIfAsked,
    pmControlSend,
    pmGetCheckpoint,
    pmIsSendStable,
    pmRestartUser,
    pmRestoreContext,
    pmSaveContext,
    pmSendStable,
);
export!(default "PM_2.0" from select: pmAfterSelect, pmBeforeSelect, pmGetFd);
export!(default "PM_2.0" from score: score_become_idle, score_initialize);

// Extension.
export!(default "PM_2.0" from error: pmErrorString);
