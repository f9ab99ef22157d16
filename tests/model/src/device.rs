//! Stand-in for the device's limits.

pub(crate) struct Limits {
    pub(crate) max_sge: u32,
}

pub(crate) const LIMITS: Limits = Limits { max_sge: 1 };
