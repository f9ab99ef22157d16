//! Handles, the numbers of operations, and the orders in which operations start.

/// The number of an operation that was issued, from 1 (`acp_handle_t`). Later ones have higher numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Handle(i64);

impl Handle {
    pub(crate) fn of(seq: i64) -> Self {
        Self(seq)
    }

    /// The handle with this number; None below 1.
    pub fn new(number: i64) -> Option<Self> {
        (number >= 1).then_some(Self(number))
    }

    /// Its number.
    pub fn get(self) -> i64 {
        self.0
    }
}

/// When an operation may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// At once (`ACP_HANDLE_NULL`).
    Now,
    /// When this one, and all that were issued before it, are over.
    After(Handle),
    /// When all that were issued before are over (`ACP_HANDLE_ALL`).
    All,
    /// If the operation just before has the same ranks and colors at both ends: when that one may start, and without
    /// overtaking it. Else as [`All`](Order::All) (`ACP_HANDLE_CONT`).
    Continue,
}
