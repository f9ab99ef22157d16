//! What the paper measured: Akimoto et al. 2012, "Performance evaluation of InfiniBand atomic operation". Only values
//! that its text and tables print are here; the points of its curves are not.

use crate::case::{Interference, Operation};

/// A device of the paper.
#[derive(Debug)]
pub struct Device {
    /// In the address of the page: `#reference=ddr`.
    pub key: &'static str,
    /// As the paper names it.
    pub name: &'static str,
    /// The bandwidth that Send, Write and Read reach with large messages, MB/s (figure 1).
    pub plateau: f64,
    /// FAA bandwidth in MB/s (table 2), in the order of [`STREAMS`].
    faa_bandwidth: [f64; 5],
    /// FAA latency in µs (table 3), in the order of [`STREAMS`].
    faa_latency: [f64; 5],
}

/// The devices whose values the paper prints.
pub const DEVICES: [Device; 2] = [
    Device {
        key: "ddr",
        name: "ConnectX-1 DDR",
        plateau: 1590.0,
        faa_bandwidth: [17.6, 12.9, 17.1, 8.8, 8.7],
        faa_latency: [2.08, 2.33, 2.12, 8.20, 8.20],
    },
    Device {
        key: "qdr",
        name: "ConnectX-1 QDR",
        plateau: 3060.0,
        faa_bandwidth: [22.4, 16.3, 19.2, 11.1, 11.0],
        faa_latency: [1.69, 1.74, 2.66, 6.43, 6.43],
    },
];

/// The interference of the paper's tables, all of 8 bytes.
pub const STREAMS: [Option<Operation>; 5] =
    [None, Some(Operation::Write), Some(Operation::Read), Some(Operation::FetchAdd), Some(Operation::CompareSwap)];

/// A figure, a table or a finding of the paper.
pub const PAPER: &str = "Akimoto et al. 2012, “Performance evaluation of InfiniBand atomic operation”";

impl Device {
    /// FAA bandwidth beside this stream in MB/s, where the paper has it.
    pub fn bandwidth(&self, beside: Option<Interference>) -> Option<f64> {
        column(beside).map(|i| self.faa_bandwidth[i])
    }

    /// FAA latency beside this stream in µs, where the paper has it.
    pub fn latency(&self, beside: Option<Interference>) -> Option<f64> {
        column(beside).map(|i| self.faa_latency[i])
    }
}

fn column(beside: Option<Interference>) -> Option<usize> {
    let stream = match beside {
        None => None,
        Some(stream) if stream.size == 8 => Some(stream.operation),
        Some(_) => return None,
    };
    STREAMS.iter().position(|s| *s == stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_tables_are_found_by_their_columns() {
        let beside = |operation, size| Some(Interference { operation, size });
        assert_eq!(DEVICES[0].bandwidth(None), Some(17.6));
        assert_eq!(DEVICES[1].latency(beside(Operation::Read, 8)), Some(2.66));
        assert_eq!(DEVICES[1].bandwidth(beside(Operation::Read, 8192)), None);
        assert_eq!(DEVICES[1].bandwidth(beside(Operation::Send, 8)), None);
    }
}
