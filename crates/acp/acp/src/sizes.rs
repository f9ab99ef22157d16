//! The memory that a rank uses, from the types and constants of this crate and of the mesh, beside the paper's numbers
//! for the original (Ajima et al. 2015, Table 3).

use vervain_mesh::Kind;

use crate::address::Layout;
use crate::engine::EngineBytes;
use crate::error::{Error, Result};
use crate::progress::{STACK, options};
use crate::settings::Settings;
use crate::table::Table;

/// A rank's memory of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// Its name, for people.
    pub what: &'static str,
    /// The parts that make it up and their number, for people.
    pub made_of: String,
    /// The most bytes.
    pub bytes: u64,
    /// True: it grows with the number of ranks.
    pub grows: bool,
    /// The original's counterpart, and its bytes in the paper.
    pub paper: Option<(&'static str, u64)>,
}

/// Bytes of a device's objects, as measured: devices do not report them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
/// the code are not included. `objects`: the measured objects of the device; None leaves them out.
///
/// # Errors
/// The number of ranks is 0, or larger than global addresses can name.
pub fn memory(ranks: u32, settings: &Settings, objects: Option<Objects>) -> Result<Vec<Holding>> {
    let layout = Layout::of(ranks)
        .ok_or_else(|| Error::refused(format!("there is no job of {ranks} ranks: 1 to 2097152 are possible")))?;
    let options = options(settings);
    let ports = settings.devices.len().max(1);
    let (engine, connections) = (EngineBytes::of(settings.connections), settings.connections);
    let each = |bytes: u64| bytes * u64::from(ranks);
    let row = |what, made_of: String, bytes: u64, paper| Holding { what, made_of, bytes, grows: false, paper };
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
            Table::bytes(layout) as u64,
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
        let (more, paper) = match held.kind {
            Kind::Connections => (engine.connections as u64, Some(("flags of 1 B", each(PAPER_FLAGS)))),
            Kind::Commands => (0, Some(("remote command buffer", PAPER_COMMANDS))),
            Kind::Addresses => (0, Some(("addresses of starter memories", each(PAPER_STARTER)))),
            _ => (0, None),
        };
        let (what, made_of, bytes) = (held.what, held.made_of, held.bytes + more);
        rows.push(Holding { what, made_of, bytes, grows: held.grows, paper });
    }
    if let Some(Objects { pair, shared }) = objects {
        let pairs = pair * connections as u64;
        let made_of = format!("{connections} pairs of {pair} B");
        rows.push(row("QPs, of Vervain's device", made_of, pairs, Some(("QPs of 160 B", each(PAPER_QP)))));
        let shared = shared * ports as u64;
        rows.push(row(
            "CQs, SRQ, UD QP, of Vervain's device",
            format!("{ports} device(s)"),
            shared,
            Some(("CQ", PAPER_CQ)),
        ));
    }
    Ok(rows)
}

/// Measures the objects of the device that these settings name. `weigh` returns the bytes that this process holds at
/// the time of its call.
///
/// # Errors
/// No usable device, or not enough resources.
pub fn weigh(settings: &Settings, mut weigh: impl FnMut() -> u64) -> Result<Objects> {
    /// Enough pairs that the rounding to pages makes no difference.
    const PAIRS: u64 = 256;
    let one = Settings { devices: settings.devices.iter().take(1).cloned().collect(), ..settings.clone() };
    let before = weigh();
    let mut stock = vervain_mesh::Stock::open(&options(&one))?;
    let (opened, ports) = (weigh(), stock.ports() as u64);
    for _ in 0..PAIRS {
        stock.make()?;
    }
    let made = weigh();
    // The memory of the door and of the receives is not the device's.
    let own = vervain_mesh::memory(1, &options(&one), 1).into_iter().filter(|held| held.kind.is_of_port());
    let own: u64 = own.map(|held| held.bytes).sum();
    Ok(Objects {
        pair: made.saturating_sub(opened) / PAIRS,
        shared: (opened.saturating_sub(before) / ports).saturating_sub(own),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECTS: Option<Objects> = Some(Objects { pair: 12_000, shared: 1 << 20 });

    #[test]
    fn the_papers_column_has_the_papers_sum() {
        let rows = memory(1_000_000, &Settings::default(), OBJECTS).unwrap();
        let sum: u64 = rows.iter().filter_map(|row| row.paper).map(|(_, bytes)| bytes).sum();
        assert_eq!((sum + 500_000) / 1_000_000, 187);
    }

    #[test]
    fn a_million_ranks_cost_little_more_than_a_thousand() {
        let sum =
            |ranks| -> u64 { memory(ranks, &Settings::default(), OBJECTS).unwrap().iter().map(|row| row.bytes).sum() };
        assert!(sum(1_000_000) < 16_000_000, "{}", sum(1_000_000));
        assert!(sum(1_000_000) < sum(1_000) + 200_000);
        assert!(memory(0, &Settings::default(), None).is_err());
        assert!(memory((1 << 21) + 1, &Settings::default(), None).is_err());
    }

    #[test]
    fn settings_are_honoured() {
        let bytes = |settings: &Settings, what: &str| {
            let rows = memory(1_000_000, settings, OBJECTS).unwrap();
            rows.iter().find(|row| row.what == what).map(|row| row.bytes).unwrap()
        };
        let (usual, few) = (Settings::default(), Settings { connections: 64, ..Settings::default() });
        assert_eq!(bytes(&usual, "connections"), 4 * bytes(&few, "connections"));
        assert_eq!(bytes(&few, "QPs, of Vervain's device"), 64 * 12_000);
        let starter = Settings { starter: [1 << 20, 0, 8], ..Settings::default() };
        assert_eq!(bytes(&starter, "starter memory"), (1 << 20) + 8);
    }
}
