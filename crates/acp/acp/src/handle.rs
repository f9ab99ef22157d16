//! Handles, the numbers of operations, and the orders in which operations start.

/// The number of an operation that was issued, from 1 (`acp_handle_t`). Later ones have higher numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Handle(i64);

impl Handle {
    pub(crate) fn of(seq: i64) -> Self {
        Self(seq)
    }

    /// The handle with this number; None for a number below 1.
    pub fn new(number: i64) -> Option<Self> {
        (number >= 1).then_some(Self(number))
    }

    /// Its number.
    pub fn get(self) -> i64 {
        self.0
    }
}

/// The start of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// At once (`ACP_HANDLE_NULL`).
    Now,
    /// After this operation and all that were issued before it.
    After(Handle),
    /// After all operations that were issued before (`ACP_HANDLE_ALL`).
    All,
    /// With the operation just before, if that has the same ranks and colors at both ends: as soon as that one may
    /// start, and without overtaking it. Else as [`All`](Order::All) (`ACP_HANDLE_CONT`).
    Continue,
}
