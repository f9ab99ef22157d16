//! Counters of requesters and responders, so that each resend and each refused packet is found under a number. Names
//! follow those of the kernel's `rdma statistic` if it has one.

/// Counters of a [`crate::Requester`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequesterCounters {
    /// Packets sent more than once.
    pub resent_packets: u64,
    /// NAKs "PSN sequence error", and reports of gaps, that were obeyed (rcvd_seq_err).
    pub sequence_naks: u64,
    /// Times that an answer overtook one that was not known to be missing (IBA 9.7.5.1, implied NAK).
    pub implied_naks: u64,
    /// RNR NAKs that were obeyed (rcvd_rnr_err).
    pub rnr_naks: u64,
    /// Expired ACK timeouts, each of which took a retry (completer_retry_err).
    pub timeouts: u64,
    /// Packets sent because an answer was late by the measured round trip time, long before the timeout.
    pub probes: u64,
    /// Responses that fit nothing outstanding and were dropped.
    pub stale: u64,
    /// Those of them that are reports of gaps: only what is missing was sent again.
    pub reports: u64,
}

/// Counters of a [`crate::Responder`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponderCounters {
    /// SENDs that were carried out (rdma_recvs).
    pub sends: u64,
    /// RDMA WRITEs.
    pub writes: u64,
    /// RDMA READs that were accepted.
    pub reads: u64,
    /// Atomics, ATOMIC WRITEs and FLUSHes.
    pub atomics: u64,
    /// Requests that had been executed before (duplicate_request).
    pub duplicates: u64,
    /// Requests beyond the expected one (out_of_seq_request).
    pub out_of_sequence: u64,
    /// RNR NAKs (send_rnr_err).
    pub rnr_naks: u64,
    /// Requests refused as an error.
    pub errors: u64,
    /// Packets dropped without an answer: of another service, during an error, unknown duplicates, UC out of sequence.
    pub dropped: u64,
    /// Reports of gaps that were sent.
    pub reports: u64,
}
