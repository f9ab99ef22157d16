//! Owner copies (DESIGN decision 4d): where an initiator can neither map nor read the memory of the target, the
//! target's own process moves the bytes, through a bounce buffer in the lane. The initiator's side, the owner's, and
//! the buffer.

pub(crate) mod bounce;
pub(crate) mod owner;
