//! The counters by the names that the kernel's drivers have for them, and what each is the sum of.

use crate::{WORDS, Word};

/// The directory of a counter under a port in sysfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Directory {
    /// `counters`: those of the port (IBA 16.1.3.5, PortCounters).
    Counters,
    /// `hw_counters`: the driver's own.
    HwCounters,
}

impl Directory {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Directory::Counters => "counters",
            Directory::HwCounters => "hw_counters",
        }
    }
}

/// A counter that is shown.
#[derive(Debug)]
pub struct Counter {
    /// Its directory.
    pub directory: Directory,
    /// The file's name.
    pub name: &'static str,
    words: &'static [Word],
    /// The sum is divided by this: PortXmitData and PortRcvData count in units of four bytes (IBA 16.1.3.5).
    unit: u64,
}

const fn port(name: &'static str, words: &'static [Word], unit: u64) -> Counter {
    Counter { directory: Directory::Counters, name, words, unit }
}

const fn hw(name: &'static str, words: &'static [Word]) -> Counter {
    Counter { directory: Directory::HwCounters, name, words, unit: 1 }
}

use Word::*;

/// A message by memory leaves the port and comes back to the host at once, like what an adapter loops: it counts in
/// both directions, whole, as one packet.
const SENT: &[Word] = &[SentPackets, MemorySends, MemoryWrites, MemoryReads, MemoryAtomics, WindowWrites];
const RECEIVED: &[Word] = &[ReceivedPackets, MemorySends, MemoryWrites, MemoryReads, MemoryAtomics, WindowWrites];
/// Bytes that a sender puts in place count in both directions too, since their receiver does not see them; for bytes in
/// rings the receiver counts them when it takes them out.
const SENT_DATA: &[Word] = &[SentBytes, MemoryBytes, WindowDirectBytes, WindowRingBytes, WindowStagedBytes];
const RECEIVED_DATA: &[Word] = &[ReceivedBytes, MemoryBytes, WindowDirectBytes];

/// All that are shown. Names that mlx5 or rxe have mean here what they mean there.
pub static REAL: &[Counter] = &[
    port("port_xmit_data", SENT_DATA, 4),
    port("port_rcv_data", RECEIVED_DATA, 4),
    port("port_xmit_packets", SENT, 1),
    port("port_rcv_packets", RECEIVED, 1),
    port("port_rcv_errors", &[BadIcrc, Malformed], 1),
    port("port_xmit_discards", &[Discarded], 1),
    hw("memory_bytes", &[MemoryBytes]),
    hw("memory_vm_bytes", &[VmBytes]),
    hw("memory_owner_bytes", &[OwnerBytes]),
    hw("window_direct_bytes", &[WindowDirectBytes]),
    hw("window_ring_bytes", &[WindowRingBytes]),
    hw("window_staged_bytes", &[WindowStagedBytes]),
    hw("window_copied_alignment_bytes", &[WindowCopiedAlignment]),
    hw("window_copied_memory_bytes", &[WindowCopiedMemory]),
    hw("window_internal_descriptors", &[WindowInternalDescriptors]),
    hw("window_host_descriptors", &[WindowHostDescriptors]),
    hw("window_hops", &[WindowHops]),
    hw("window_refusals", &[WindowRefusals]),
    hw("sent_pkts", &[SentPackets]),
    hw("rcvd_pkts", &[ReceivedPackets]),
    hw("rx_send_requests", &[MemorySends, Sends]),
    hw("rx_write_requests", &[MemoryWrites, WindowWrites, Writes]),
    hw("rx_read_requests", &[MemoryReads, Reads]),
    hw("rx_atomic_requests", &[MemoryAtomics, Atomics]),
    hw("rx_icrc_encapsulated", &[BadIcrc]),
    hw("duplicate_request", &[Duplicates]),
    hw("out_of_sequence", &[OutOfSequence]),
    hw("packet_seq_err", &[SequenceNaks]),
    hw("implied_nak_seq_err", &[ImpliedNaks]),
    hw("rnr_nak_retry_err", &[RnrNaks]),
    hw("out_of_buffer", &[OutOfBuffer]),
    hw("local_ack_timeout_err", &[Timeouts]),
    hw("resent_pkts", &[Resent]),
    hw("np_ecn_marked_roce_packets", &[MarkedPackets]),
    hw("np_cnp_sent", &[NotificationsSent]),
    hw("rp_cnp_handled", &[NotificationsHandled]),
    hw("req_cqe_error", &[Errors, Flushed]),
    hw("req_cqe_flush_error", &[Flushed]),
    hw("resp_cqe_flush_error", &[FlushedReceives]),
    hw("req_remote_access_errors", &[RemoteAccess]),
    hw("req_remote_invalid_request", &[RemoteInvalid]),
];

/// The kinds of objects, as `rdma resource` of iproute2 names them and in its order, and the word that counts each.
pub const OBJECTS: &[(&str, Option<Word>)] = &[
    ("pd", Some(Pds)),
    ("cq", Some(Cqs)),
    ("qp", Some(Qps)),
    // Identifiers of librdmacm are not there.
    ("cm_id", None),
    ("mr", Some(Mrs)),
    ("ctx", Some(Contexts)),
    ("srq", Some(Srqs)),
];

/// The counter of that name; a name occurs in one directory only.
pub fn find(name: &str) -> Option<&'static Counter> {
    REAL.iter().find(|counter| counter.name == name)
}

/// The text of the placeholder file for a counter in the tree of `vervain run`; both `port` and `ports` are counted
/// over all devices.
pub fn placeholder(counter: &Counter, port: usize, ports: usize) -> String {
    format!("port {port} of {ports}: {}\n", counter.name)
}

/// The port, the number of ports and the counter of a placeholder.
pub fn parse_placeholder(text: &[u8]) -> Option<(usize, usize, &'static Counter)> {
    let (port, rest) = std::str::from_utf8(text).ok()?.strip_prefix("port ")?.split_once(" of ")?;
    let (ports, name) = rest.split_once(": ")?;
    let (port, ports) = (port.parse().ok()?, ports.parse().ok()?);
    (port < ports && ports <= 64).then_some((port, ports, find(name.trim_end())?))
}

/// The value of `counter`, when the words of its port have these sums.
pub fn sum(counter: &Counter, words: &[u64; WORDS]) -> u64 {
    counter.words.iter().fold(0, |sum: u64, word| sum.wrapping_add(words[*word as usize])) / counter.unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_for_one_counter() {
        for (i, counter) in REAL.iter().enumerate() {
            assert!(REAL[..i].iter().all(|earlier| earlier.name != counter.name), "{}", counter.name);
            assert!(std::ptr::eq(find(counter.name).unwrap(), counter));
        }
        assert!(find("port_xmit_wait").is_none());
    }

    #[test]
    fn a_placeholder_says_what_it_stands_for() {
        for counter in REAL {
            let (port, ports, found) = parse_placeholder(placeholder(counter, 3, 4).as_bytes()).unwrap();
            assert_eq!((port, ports, found.name), (3, 4, counter.name));
        }
        for wrong in
            ["", "port 4 of 4: sent_pkts\n", "port 0 of 1: sent", "port 0 of 65: sent_pkts", "0 of 1: sent_pkts"]
        {
            assert!(parse_placeholder(wrong.as_bytes()).is_none(), "{wrong}");
        }
    }

    #[test]
    fn data_count_in_units_of_four_bytes_over_all_links() {
        let mut words = [0; WORDS];
        words[MemoryBytes as usize] = 4096;
        words[SentBytes as usize] = 404;
        words[MemoryWrites as usize] = 2;
        words[SentPackets as usize] = 5;
        assert_eq!(sum(find("port_xmit_data").unwrap(), &words), 1125);
        assert_eq!(sum(find("port_xmit_packets").unwrap(), &words), 7);
        assert_eq!(sum(find("port_rcv_packets").unwrap(), &words), 2);
        assert_eq!(sum(find("rx_write_requests").unwrap(), &words), 2);
        (words[WindowDirectBytes as usize], words[WindowWrites as usize]) = (8, 1);
        (words[WindowRingBytes as usize], words[WindowStagedBytes as usize]) = (12, 16);
        assert_eq!(sum(find("port_xmit_data").unwrap(), &words), 1134);
        assert_eq!(sum(find("port_rcv_data").unwrap(), &words), 1026, "of rings what the receiver has counted");
        assert_eq!(sum(find("port_xmit_packets").unwrap(), &words), 8);
        assert_eq!(sum(find("rx_write_requests").unwrap(), &words), 3);
    }
}
