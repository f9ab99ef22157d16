//! One case beside each stream, as a table and as bars: tables 2 and 3 of the paper for FAA, and the same for whatever
//! else was measured at one size only.

use anyhow::Result;
use vervain_bench::case::{Case, Interference, Measure, Operation, Placement, Service, bytes};
use vervain_bench::number::{number, unit};

use super::bars::BarChart;
use super::canvas::PaperValue;
use super::findings::times;
use super::orders;
use super::query::{Seen, most_common, name, place, stream, streams};
use super::reference::{DEVICES, Device};
use super::{Cell, Drawing, Figure, Picture, Row, Table};
use crate::compare::ratio::ratio;

/// An operation that is measured beside streams, at one size, over one QP, in any placement of the responder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// The quantity that is measured.
    pub measure: Measure,
    /// The service of its QP.
    pub service: Service,
    /// The operation.
    pub operation: Operation,
    /// Bytes.
    pub size: u64,
}

/// More columns would touch.
const MOST_STREAMS: usize = 4;

impl Target {
    /// The target of a case.
    pub fn of(case: &Case) -> Self {
        Self { measure: case.measure, service: case.service, operation: case.operation, size: case.size }
    }

    fn fits(&self, case: &Case) -> bool {
        Self::of(case) == *self && case.qps == 1
    }

    /// The paper's value of it.
    fn paper(&self, device: &Device, beside: Option<Interference>) -> Option<f64> {
        if (self.operation, self.service, self.size) != (Operation::FetchAdd, Service::Rc, 8) {
            return None;
        }
        match self.measure {
            Measure::Latency => device.latency(beside),
            Measure::Bandwidth => device.bandwidth(beside),
        }
    }

    /// "FAA bandwidth", with what is not as in the paper.
    fn label(&self) -> String {
        let service = if self.service == Service::Rc { String::new() } else { format!(" {}", self.service) };
        let size = if self.operation.is_atomic() { String::new() } else { format!("{} ", bytes(self.size)) };
        format!("{size}{}{} {}", name(self.operation), service.to_uppercase(), self.measure)
    }
}

/// A table for the small streams, and one for the long ones. `id` is the paper's; others have a name of their own.
pub fn tables(seen: &[Seen<'_>], target: Target, id: Option<&str>, seed: u64) -> Result<Vec<Figure>> {
    let all = streams(seen, |case| target.fits(case));
    // Runs alone at other depths are another case.
    let with_stream = seen.iter().filter(|s| target.fits(s.case()) && s.case().interference.is_some());
    let Some(depth) = most_common(with_stream.map(|s| s.case().depth)) else { return Ok(Vec::new()) };
    let own: Vec<Seen<'_>> =
        seen.iter().filter(|s| target.fits(s.case()) && s.case().depth == depth).copied().collect();
    let (small, long): (Vec<_>, Vec<_>) = all.into_iter().partition(|s| s.size == 8);
    let mut figures = Vec::new();
    for (letter, streams) in [("", small), ("b", long)] {
        for (part, streams) in streams.chunks(MOST_STREAMS).enumerate() {
            let part = if part > 0 { format!("-{}", part + 1) } else { String::new() };
            let Target { measure, service, operation, size } = target;
            let (name, title) = match id {
                Some(id) => {
                    // The paper's tables are of FAA.
                    let (of, as_in) = if operation == Operation::FetchAdd { ("", "") } else { ("-cas", "As in ") };
                    let table = id.replace("table", if as_in.is_empty() { "Table " } else { "table " });
                    (format!("{id}{letter}{of}{part}"), format!("{as_in}{table}{letter}: {}", target.label()))
                }
                None => {
                    let operation = operation.word().replace('+', "-");
                    (format!("beside{letter}-{operation}-{size}B-{measure}-{service}{part}"), target.label())
                }
            };
            figures.push(figure(&own, target, streams, (name, title), seed)?);
        }
    }
    Ok(figures)
}

fn figure(
    seen: &[Seen<'_>],
    target: Target,
    streams: &[Interference],
    (id, title): (String, String),
    seed: u64,
) -> Result<Figure> {
    let unit = unit(target.measure);
    let columns: Vec<Option<Interference>> = std::iter::once(None).chain(streams.iter().copied().map(Some)).collect();
    let at = |placement: Placement, beside: Option<Interference>| {
        seen.iter().find(|s| (s.case().placement, s.case().interference) == (placement, beside))
    };
    let mut table = Table { columns: vec![format!("{} ({unit})", target.label())], rows: Vec::new() };
    table.columns.extend(columns.iter().map(|c| stream(*c)));
    let mut bars = Vec::new();
    let mut findings = Vec::new();
    for placement in [Placement::Peer, Placement::Loopback] {
        let found: Vec<_> = columns.iter().map(|beside| at(placement, *beside)).collect();
        if found.iter().all(Option::is_none) {
            continue;
        }
        let cell = |seen: &Option<&Seen<'_>>| match seen {
            Some(seen) if seen.is_doubtful() => Cell::Doubtful(seen.value()),
            Some(seen) => Cell::Number(seen.value()),
            None => Cell::None,
        };
        table.push(std::iter::once(place(placement).into()).chain(found.iter().map(cell)).collect());
        let points = found.iter().enumerate().filter_map(|(i, s)| Some(s.as_ref()?.point(i as f64))).collect();
        bars.push((place(placement).to_owned(), points));
        let Some(alone) = found[0] else { continue };
        let mut ratios = Vec::new();
        for (beside, found) in columns.iter().zip(&found).skip(1) {
            let Some(ratio) = found.and_then(|found| ratio(alone.result, found.result, seed)) else { continue };
            findings.push(format!(
                "Beside {}, {} is {} times what it is alone, {}{}.",
                stream(*beside),
                target.label(),
                times(ratio),
                place(placement),
                paper_says(target, *beside),
            ));
            ratios.push((*beside, vec![ratio]));
        }
        let ratios: Vec<_> = ratios.into_iter().filter_map(|(beside, ratio)| Some((beside?, ratio))).collect();
        if target.operation == Operation::FetchAdd && ratios.iter().all(|(beside, _)| beside.size == 8) {
            let paper = |device: &Device, beside| target.paper(device, beside);
            findings.extend(orders::of_tables(target.measure, place(placement), &ratios, paper));
        }
    }
    let mut paper = Vec::new();
    for (device, d) in DEVICES.iter().enumerate() {
        let values: Vec<Option<f64>> = columns.iter().map(|beside| target.paper(d, *beside)).collect();
        // A row of nothing but "alone" says nothing of streams.
        if values.iter().flatten().count() < 2 {
            continue;
        }
        let cells = values.iter().copied().map(Cell::maybe);
        let cells = std::iter::once(format!("{} (paper)", d.name).into()).chain(cells).collect();
        table.rows.push(Row { cells, paper: Some(device) });
        let line = |(group, y): (usize, &Option<f64>)| {
            Some((group, PaperValue { device, label: d.name.to_owned(), y: (*y)? }))
        };
        paper.extend(values.iter().enumerate().filter_map(line));
    }
    let hint = if paper.is_empty() { "" } else { " Choose a device under “Paper’s values” to see its row." };
    let depth = seen.first().map_or(1, |s| s.case().depth);
    let is_long = streams.iter().all(|s| s.size > 8);
    let is_the_papers = id.starts_with("table");
    let unprinted = if is_long && is_the_papers {
        " The paper prints no values of these; it says that long streams have the same tendency as beside Write and Read."
    } else {
        ""
    };
    let caption =
        format!("One QP, depth {depth}; another process streams over the same device and port.{unprinted}{hint}");
    let groups = columns.iter().map(|c| stream(*c)).collect();
    let chart = BarChart { groups, bars, unit: unit.to_owned(), paper, right: None };
    Ok(Figure {
        name: id,
        title: format!("{title} in {unit} beside a stream"),
        caption,
        findings,
        drawing: Drawing::One(Picture::below_values(|width| chart.draw(width))?),
        table,
        table_first: true,
    })
}

/// The ratio in the paper, where it has one.
fn paper_says(target: Target, beside: Option<Interference>) -> String {
    let of = |d: &Device| {
        let times = target.paper(d, beside)? / target.paper(d, None)?;
        Some(format!("{} ({})", number(times), d.short))
    };
    let said: Vec<String> = DEVICES.iter().filter_map(of).collect();
    if said.is_empty() { String::new() } else { format!("; paper: {}", said.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::seen;
    use vervain_bench::sample::{bandwidth, everything, nothing, write_case};

    #[test]
    fn table_2_has_a_row_for_each_placement_and_device_of_the_paper() {
        let results = everything(1.0);
        let measure = Measure::Bandwidth;
        let target = Target { measure, service: Service::Rc, operation: Operation::FetchAdd, size: 8 };
        let figures = tables(&seen(&results), target, Some("table2"), 1).expect("figures");
        assert_eq!(figures.iter().map(|f| f.name.as_str()).collect::<Vec<_>>(), ["table2", "table2b"]);
        assert!(figures[1].caption.contains("prints no values of these"), "{}", figures[1].caption);
        let of_cas = Target { operation: Operation::CompareSwap, ..target };
        let of_cas = tables(&seen(&results), of_cas, Some("table2"), 1).expect("figures");
        let named: Vec<_> = of_cas.iter().map(|f| (f.name.as_str(), f.title.as_str())).collect();
        assert_eq!(named[1], ("table2b-cas", "As in table 2b: CAS bandwidth in MB/s beside a stream"));
        let table = &figures[0].table;
        assert_eq!(table.columns, ["FAA bandwidth (MB/s)", "none", "8 B Write", "8 B Read", "8 B FAA", "8 B CAS"]);
        let first: Vec<_> = table.rows.iter().map(|r| (r.cells[0].shown(), r.paper)).collect();
        assert_eq!(first[0], ("peer (inter-node)".to_owned(), None));
        assert_eq!(first[3], ("ConnectX-1 QDR (paper)".to_owned(), Some(1)));
        assert_eq!(table.rows[3].cells[4], Cell::Number(11.1));
        let findings = &figures[0].findings;
        assert!(findings[2].ends_with("paper: 0.500 (X1 DDR), 0.496 (X1 QDR)."), "{findings:?}");
        assert!(
            findings[4].contains("What 8 B streams cost FAA, peer (inter-node): ")
                && findings[4].contains("Paper: Read < Write")
        );
    }

    #[test]
    fn what_ran_alone_at_another_depth_is_not_what_a_stream_is_held_against() {
        let mut results = nothing();
        let beside = Some(Interference { operation: Operation::Send, size: 8192 });
        for (depth, interference, value) in [(512, None, 9e9), (128, None, 4e9), (128, beside, 1e9)] {
            results.cases.push(bandwidth(Case { depth, interference, ..write_case(64) }, &[value; 3]));
        }
        let figures = tables(&seen(&results), Target::of(&write_case(64)), None, 1).expect("figures");
        assert_eq!(figures[0].name, "besideb-write-64B-bandwidth-rc");
        let begins = "Beside 8 KiB Send, 64 B Write bandwidth is 0.250 (";
        assert!(figures[0].findings[0].starts_with(begins), "{:?}", figures[0].findings);
        assert!(figures[0].table.rows.iter().all(|row| row.paper.is_none()));
    }
}
