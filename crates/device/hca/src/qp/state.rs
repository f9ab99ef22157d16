//! The QP state machine: the transitions, and the attributes that each needs and allows (IBA 11.2.5.2, table 91).

use crate::error::{Error, Result};
use vervain_iba::QpState::{Err as Failed, Init, Reset, Rtr, Rts, Sqd, Sqe};
use vervain_iba::QpType::{Rc, Uc, Ud, XrcRecv, XrcSend};
use vervain_iba::attr::{
    ACCESS_FLAGS, ALT_PATH, AV, CUR_STATE, DEST_QPN, EN_SQD_ASYNC_NOTIFY, MAX_DEST_RD_ATOMIC, MAX_QP_RD_ATOMIC,
    MIN_RNR_TIMER, PATH_MIG_STATE, PATH_MTU, PKEY_INDEX, PORT, QKEY, RETRY_CNT, RNR_RETRY, RQ_PSN, SQ_PSN, STATE,
    TIMEOUT, names,
};
use vervain_iba::{QpState, QpType};

/// The attributes that a transition needs, and others that it allows. None if there is no such transition.
fn masks(t: QpType, from: QpState, to: QpState) -> Option<(u32, u32)> {
    let requester = matches!(t, Rc | XrcSend);
    let responder = matches!(t, Rc | XrcRecv);
    let when = |yes: bool, mask: u32| if yes { mask } else { 0 };
    Some(match (from, to) {
        (Reset, Reset) | (Init | Rtr | Rts | Sqd | Sqe | Failed, Reset | Failed) => (0, 0),
        (Reset, Init) => (PKEY_INDEX | PORT | if t == Ud { QKEY } else { ACCESS_FLAGS }, 0),
        (Init, Init) => (0, PKEY_INDEX | PORT | if t == Ud { QKEY } else { ACCESS_FLAGS }),
        (Init, Rtr) if t == Ud => (0, PKEY_INDEX | QKEY),
        (Init, Rtr) => (
            AV | PATH_MTU | DEST_QPN | RQ_PSN | when(responder, MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER),
            ALT_PATH | ACCESS_FLAGS | PKEY_INDEX,
        ),
        (Rtr, Rts) if t == Ud => (SQ_PSN, CUR_STATE | QKEY),
        (Rtr, Rts) => (
            SQ_PSN | when(requester, TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC) | when(t == XrcRecv, TIMEOUT),
            running(t),
        ),
        (Rts, Rts) | (Sqd, Rts) => (0, running(t)),
        (Rts, Sqd) => (0, EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => (0, drained(t)),
        (Sqe, Rts) if t == Ud => (0, CUR_STATE | QKEY),
        (Sqe, Rts) if t == Uc => (0, CUR_STATE | ACCESS_FLAGS),
        _ => return None,
    })
}

/// Attributes that may change while a QP runs.
fn running(t: QpType) -> u32 {
    match t {
        Ud => CUR_STATE | QKEY,
        Uc | XrcSend => CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE,
        Rc | XrcRecv => CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE | MIN_RNR_TIMER,
    }
}

/// Attributes that may change while the send queue is drained.
fn drained(t: QpType) -> u32 {
    let path = AV | ALT_PATH | ACCESS_FLAGS | PKEY_INDEX | PATH_MIG_STATE;
    match t {
        Ud => PKEY_INDEX | QKEY,
        Uc => path,
        Rc => path | PORT | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
        XrcSend => path | PORT | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC,
        XrcRecv => path | PORT | TIMEOUT | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
    }
}

/// The attributes that a transition needs.
pub(crate) fn needed(t: QpType, from: QpState, to: QpState) -> Result<u32> {
    let masks =
        masks(t, from, to).ok_or_else(|| Error::invalid(format!("{t} QP: it cannot go from {from} to {to}")))?;
    Ok(masks.0)
}

/// Refuses a modify that is not in the table.
pub(crate) fn check(t: QpType, from: QpState, to: QpState, mask: u32) -> Result<()> {
    let needed = needed(t, from, to)?;
    let allowed = masks(t, from, to).map_or(0, |(_, allowed)| allowed);
    let missing = needed & !mask;
    if missing != 0 {
        return Err(Error::invalid(format!("{t} QP, {from} to {to}: attr_mask lacks {}", names(missing))));
    }
    let extra = mask & !(needed | allowed | STATE);
    if extra != 0 {
        return Err(Error::invalid(format!("{t} QP, {from} to {to}: attr_mask may not have {}", names(extra))));
    }
    if mask & CUR_STATE != 0 && !matches!(from, Rtr | Rts | Sqd | Sqe) {
        return Err(Error::invalid("the current state is not one that can be assumed"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_masks_that_perftest_uses_are_accepted() {
        assert!(check(Rc, Reset, Init, 0x39).is_ok());
        assert!(check(Rc, Init, Rtr, 0x0012_9181).is_ok());
        assert!(check(Rc, Rtr, Rts, 0x12e01).is_ok());
    }

    #[test]
    fn every_type_reaches_rts_with_what_is_needed_and_not_with_less() {
        for t in [Rc, Uc, Ud, XrcSend, XrcRecv] {
            for (from, to) in [(Reset, Init), (Init, Rtr), (Rtr, Rts)] {
                let (needed, _) = masks(t, from, to).unwrap();
                assert!(check(t, from, to, needed | STATE).is_ok());
                for bit in (0..32).map(|b| 1 << b).filter(|b| needed & b != 0) {
                    assert!(check(t, from, to, needed & !bit | STATE).is_err(), "{t:?} {from:?} {to:?} {bit:#x}");
                }
            }
        }
    }

    #[test]
    fn states_are_not_skipped() {
        assert!(check(Rc, Reset, Rtr, STATE).is_err());
        assert!(check(Rc, Init, Rts, STATE).is_err());
        assert!(check(Rc, Reset, Failed, STATE).is_err());
        assert!(check(Rc, Sqe, Rts, STATE).is_err());
        assert!(check(Ud, Sqe, Rts, STATE).is_ok());
    }
}
