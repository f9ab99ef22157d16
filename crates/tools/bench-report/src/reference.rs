//! The paper's values: Akimoto et al. 2012, "Performance evaluation of InfiniBand atomic operation". Only values that
//! its text and tables print are here; the points of its curves are not.

use vervain_bench::case::{Interference, Operation};

/// A device of the paper.
#[derive(Debug)]
pub struct Device {
    /// In the address of the page: `#reference=x1-ddr`.
    pub key: &'static str,
    /// The paper's name for it.
    pub name: &'static str,
    /// Its name where there is little room.
    pub short: &'static str,
    /// The bandwidth that Send, Write and Read reach with large messages, MB/s (figure 1).
    pub plateau: f64,
    /// Tables 2 and 3, where they have it.
    tables: Option<Tables>,
}

/// The values of a device in tables 2 and 3, in the order of [`STREAMS`].
#[derive(Debug)]
struct Tables {
    /// FAA bandwidth in MB/s (table 2).
    bandwidth: [f64; 5],
    /// FAA latency in µs (table 3).
    latency: [f64; 5],
}

/// The devices of the paper.
pub const DEVICES: [Device; 3] = [
    Device {
        key: "x1-ddr",
        name: "ConnectX-1 DDR",
        short: "X1 DDR",
        plateau: 1590.0,
        tables: Some(Tables { bandwidth: [17.6, 12.9, 17.1, 8.8, 8.7], latency: [2.08, 2.33, 2.12, 8.20, 8.20] }),
    },
    Device {
        key: "x1-qdr",
        name: "ConnectX-1 QDR",
        short: "X1 QDR",
        plateau: 3060.0,
        tables: Some(Tables { bandwidth: [22.4, 16.3, 19.2, 11.1, 11.0], latency: [1.69, 1.74, 2.66, 6.43, 6.43] }),
    },
    // Only the plateau is printed of this one.
    Device { key: "x2-qdr", name: "ConnectX-2 QDR", short: "X2 QDR", plateau: 3060.0, tables: None },
];

/// The interference of the paper's tables, all of 8 bytes.
pub const STREAMS: [Option<Operation>; 5] =
    [None, Some(Operation::Write), Some(Operation::Read), Some(Operation::FetchAdd), Some(Operation::CompareSwap)];

/// A figure, a table or a finding of the paper.
pub const PAPER: &str = "Akimoto et al. 2012, “Performance evaluation of InfiniBand atomic operation”";

impl Device {
    /// FAA bandwidth beside this stream in MB/s, where the paper has it.
    pub fn bandwidth(&self, beside: Option<Interference>) -> Option<f64> {
        self.tables.as_ref().zip(column(beside)).map(|(tables, i)| tables.bandwidth[i])
    }

    /// FAA latency beside this stream in µs, where the paper has it.
    pub fn latency(&self, beside: Option<Interference>) -> Option<f64> {
        self.tables.as_ref().zip(column(beside)).map(|(tables, i)| tables.latency[i])
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
        assert_eq!((DEVICES[2].bandwidth(None), DEVICES[2].latency(None)), (None, None));
    }
}
