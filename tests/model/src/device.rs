//! Stand-in for the device's limits.

pub(crate) struct Limits {
    pub(crate) qp: QpLimits,
}

pub(crate) struct QpLimits {
    pub(crate) max_sge: u32,
}

pub(crate) const LIMITS: Limits = Limits { qp: QpLimits { max_sge: 1 } };
