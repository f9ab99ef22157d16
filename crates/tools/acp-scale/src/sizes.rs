//! The memory that a rank uses, from the types and constants of ACP and of the mesh, beside the paper's numbers for the
//! original (Ajima et al. 2015, Table 3).

use std::fmt;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::{Deserialize, Serialize};
use vervain_acp::parts::{EngineBytes, STACK, options, table_bytes};
use vervain_acp::{Layout, Settings};
use vervain_mesh::{Kind, Link, Port};

/// A rank's memory, and its sums.
#[derive(Debug, Serialize)]
pub struct Memory {
    ranks: u32,
    connections: usize,
    rows: Vec<Holding>,
    bytes: u64,
    paper_bytes: u64,
}

/// A rank's memory of one kind.
#[derive(Debug, Serialize)]
struct Holding {
    /// Its name, for people.
    what: &'static str,
    /// The parts that make it up and their number, for people.
    made_of: String,
    /// The most bytes.
    bytes: u64,
    /// True: it grows with the number of ranks.
    grows: bool,
    /// The original's counterpart, and its bytes in the paper.
    paper: Option<Paper>,
}

/// The original's memory, by the paper.
#[derive(Debug, Serialize)]
struct Paper {
    what: &'static str,
    bytes: u64,
}

/// Bytes of a device's objects, as measured: devices do not report them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Objects {
    /// Bytes of a pair of QPs, which is a connection.
    pub pair: u64,
    /// Bytes that all connections of a device share: CQs, SRQ, the QP for datagrams, the context.
    pub shared: u64,
}

/// Commands of the original, in a queue and in the buffer for remote ones.
const PAPER_COMMANDS: u64 = 4096 * 120;
/// Its table of registrations.
const PAPER_TABLE: u64 = 255 * 40;
/// Its table of memory regions, rounded in the paper.
const PAPER_REGIONS: u64 = 12_000;
/// Tables of peers that the original keeps.
const PAPER_CACHE: u64 = 1024 * PAPER_TABLE;
/// Its CQ.
const PAPER_CQ: u64 = 128;
/// For each rank: four flags, a QP, address and key of its starter memory. The paper's text has the QP's 160 bytes; its
/// table prints another number, which its sum contradicts.
const PAPER_FLAGS: u64 = 4;
const PAPER_QP: u64 = 160;
const PAPER_STARTER: u64 = 12;

/// The most memory of each kind that one of `ranks` ranks can hold with these settings. The program's own memory and
/// the code are not included. `objects`: the measured objects of the device.
///
/// # Errors
/// The number of ranks is 0, or larger than global addresses can name.
pub fn memory(ranks: u32, settings: &Settings, objects: Objects) -> Result<Memory> {
    let layout =
        Layout::of(ranks).with_context(|| format!("there is no job of {ranks} ranks: 1 to 2097152 are possible"))?;
    let options = options(settings);
    let ports = settings.devices.len().max(1);
    let (engine, connections) = (EngineBytes::of(settings.connections), settings.connections);
    let each = |bytes: u64| bytes * u64::from(ranks);
    let paper = |(what, bytes)| Paper { what, bytes };
    let row = |what, made_of: String, bytes: u64, of_paper: Option<_>| Holding {
        what,
        made_of,
        bytes,
        grows: false,
        paper: of_paper.map(paper),
    };
    let mut rows = vec![
        row(
            "operations",
            format!("{} under way", EngineBytes::OPERATIONS),
            engine.operations as u64,
            Some(("command queue", PAPER_COMMANDS)),
        ),
        row(
            "table of registrations",
            format!("{} regions", layout.max_regions()),
            table_bytes(layout) as u64,
            Some(("address keys and memory regions", PAPER_TABLE + PAPER_REGIONS)),
        ),
        row(
            "entries of peers' tables",
            format!("{} entries", EngineBytes::ENTRIES),
            engine.entries as u64,
            Some(("1,024 tables of peers", PAPER_CACHE)),
        ),
        row(
            "buffers of copies between two others",
            "touched when there are such copies".into(),
            engine.buffers as u64,
            None,
        ),
        row("starter memory", "three regions".into(), settings.starter.iter().sum(), None),
        row("stack of the thread", "reserved; a part is touched".into(), STACK as u64, None),
    ];
    for held in vervain_mesh::memory(ranks, &options, ports) {
        let (more, of_paper) = match held.kind {
            Kind::Connections => (engine.connections as u64, Some(("flags of 1 B", each(PAPER_FLAGS)))),
            Kind::Commands => (0, Some(("remote command buffer", PAPER_COMMANDS))),
            Kind::Addresses => (0, Some(("addresses of starter memories", each(PAPER_STARTER)))),
            _ => (0, None),
        };
        let (what, made_of, bytes) = (held.what, held.made_of, held.bytes + more);
        rows.push(Holding { what, made_of, bytes, grows: held.grows, paper: of_paper.map(paper) });
    }
    let Objects { pair, shared } = objects;
    let made_of = format!("{connections} pairs of {pair} B");
    let paper_qps = Some(("QPs of 160 B", each(PAPER_QP)));
    rows.push(row("QPs, of Vervain's device", made_of, pair * connections as u64, paper_qps));
    let made_of = format!("{ports} device(s)");
    rows.push(row("CQs, SRQ, UD QP, of Vervain's device", made_of, shared * ports as u64, Some(("CQ", PAPER_CQ))));
    let bytes = rows.iter().map(|row| row.bytes).sum();
    let paper_bytes = rows.iter().filter_map(|row| row.paper.as_ref()).map(|paper| paper.bytes).sum();
    Ok(Memory { ranks, connections, rows, bytes, paper_bytes })
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_BORDERS_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
        table.set_header(["what a rank holds", "of", "bytes", "grows", "Ajima et al. 2015", "bytes"]);
        for row in &self.rows {
            let paper = row.paper.as_ref();
            let (what, bytes) = paper.map_or(("", String::new()), |paper| (paper.what, number(paper.bytes)));
            let grows = if row.grows { "yes" } else { "" };
            table.add_row([row.what, &row.made_of, &number(row.bytes), grows, what, &bytes]);
        }
        table.add_row(["sum", "", &number(self.bytes), "", "", &number(self.paper_bytes)]);
        for column in [2, 5] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        writeln!(
            f,
            "One rank of {}, with {} connections at a time; the program's memory and code are not in it.\n{table}",
            number(self.ranks.into()),
            self.connections
        )
    }
}

/// A number with commas between thousands.
pub fn number(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(",")
}

/// Measures the objects of the device that these settings name. `weigh` returns the bytes that this process holds at
/// the time of its call.
///
/// # Errors
/// No usable device, or not enough resources.
pub fn weigh(settings: &Settings, weigh: impl Fn() -> u64) -> Result<Objects> {
    /// Enough pairs that the rounding to pages makes no difference.
    const PAIRS: u64 = 256;
    let one = Settings { devices: settings.devices.iter().take(1).cloned().collect(), ..settings.clone() };
    let before = weigh();
    let ports = Port::open_all(&options(&one))?;
    let opened = weigh();
    // With the receives for notices posted, as in a place of the pool.
    let make = |_| -> vervain_mesh::Result<_> {
        let pair = ports[0].pair()?;
        ports[0].prepare(&pair, Link { index: 0, life: 0 })?;
        Ok(pair)
    };
    let pairs = (0..PAIRS).map(make).collect::<vervain_mesh::Result<Vec<_>>>()?;
    let made = weigh();
    drop(pairs);
    // The memory of the door and of the receives is not the device's.
    let own = vervain_mesh::memory(1, &options(&one), 1).into_iter().filter(|held| held.kind.is_of_port());
    let own: u64 = own.map(|held| held.bytes).sum();
    Ok(Objects {
        pair: made.saturating_sub(opened) / PAIRS,
        shared: (opened.saturating_sub(before) / ports.len() as u64).saturating_sub(own),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECTS: Objects = Objects { pair: 12_000, shared: 1 << 20 };

    #[test]
    fn numbers_have_commas() {
        assert_eq!([0, 999, 1000, 1_234_567].map(number), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn the_table_has_a_line_for_each_row_and_the_sums() {
        let memory = memory(1_000_000, &Settings::default(), OBJECTS).unwrap();
        let text = memory.to_string();
        for row in &memory.rows {
            assert!(text.contains(&number(row.bytes)), "{}: {text}", row.what);
        }
        assert_eq!(memory.bytes, memory.rows.iter().map(|row| row.bytes).sum::<u64>());
        assert!(text.contains(&number(memory.bytes)) && text.contains(&number(memory.paper_bytes)), "{text}");
    }

    #[test]
    fn the_papers_column_has_the_papers_sum() {
        let sum = memory(1_000_000, &Settings::default(), OBJECTS).unwrap().paper_bytes;
        assert_eq!((sum + 500_000) / 1_000_000, 187);
    }

    #[test]
    fn a_million_ranks_cost_little_more_than_a_thousand() {
        let sum = |ranks| memory(ranks, &Settings::default(), OBJECTS).unwrap().bytes;
        assert!(sum(1_000_000) < 16_000_000, "{}", sum(1_000_000));
        assert!(sum(1_000_000) < sum(1_000) + 200_000);
        assert!(memory(0, &Settings::default(), OBJECTS).is_err());
        assert!(memory((1 << 21) + 1, &Settings::default(), OBJECTS).is_err());
    }

    #[test]
    fn settings_are_honoured() {
        let bytes = |settings: &Settings, what: &str| {
            let rows = memory(1_000_000, settings, OBJECTS).unwrap().rows;
            rows.iter().find(|row| row.what == what).map(|row| row.bytes).unwrap()
        };
        let (usual, few) = (Settings::default(), Settings { connections: 64, ..Settings::default() });
        assert_eq!(bytes(&usual, "connections"), 4 * bytes(&few, "connections"));
        assert_eq!(bytes(&few, "QPs, of Vervain's device"), 64 * 12_000);
        let starter = Settings { starter: [1 << 20, 0, 8], ..Settings::default() };
        assert_eq!(bytes(&starter, "starter memory"), (1 << 20) + 8);
    }
}
