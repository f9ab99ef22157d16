//! The queries of figures: the cases that have a value, and those that belong together. A figure selects by the
//! measurement, not by the name of the plan, so any plan gets those figures that it has cases for.

use std::collections::BTreeMap;

use vervain_bench::case::{Case, Interface, Interference, Measure, Memory, Operation, Placement, Service};
use vervain_bench::number::in_unit;
use vervain_bench::results::{CaseResult, Flag, Results, Summary};

use super::canvas::Point;

/// A case with a value that can be drawn.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// Its runs.
    pub result: &'a CaseResult,
    /// The summary of the runs.
    pub summary: &'a Summary,
}

impl Seen<'_> {
    /// The case.
    pub fn case(&self) -> &Case {
        &self.result.case
    }

    /// Returns true if a flag says so.
    pub fn is_doubtful(&self) -> bool {
        !self.summary.flags.is_empty()
    }

    /// Returns true if its runs are too few for an interval.
    pub fn has_too_few_rounds(&self) -> bool {
        self.summary.flags.contains(&Flag::TooFewRounds)
    }

    /// The value in the unit in which it is shown.
    pub fn value(&self) -> f64 {
        in_unit(self.case().measure, self.summary.value)
    }

    /// Its interval in that unit; the value itself where an end is no number.
    pub fn interval(&self) -> (f64, f64) {
        let end = |end: f64| in_unit(self.case().measure, if end.is_finite() { end } else { self.summary.value });
        (end(self.summary.interval.0), end(self.summary.interval.1))
    }

    /// A point of a chart.
    pub fn point(&self, x: f64) -> Point {
        // An interval that is unknown is not drawn.
        let interval = if self.has_too_few_rounds() { (self.value(), self.value()) } else { self.interval() };
        Point { x, y: self.value(), interval, doubtful: self.is_doubtful() }
    }
}

/// All cases of the verbs API that have a value above zero, but those in a GPU's memory, and those in environments:
/// figures are of the host's, as those of the paper are, and the table of all cases has the others. Environments have
/// figures of their own.
pub fn seen(results: &Results) -> Vec<Seen<'_>> {
    seen_through(results, Interface::Verbs)
}

/// The same of another interface.
pub fn seen_through(results: &Results, interface: Interface) -> Vec<Seen<'_>> {
    let fits = |case: &Case| case.memory == Memory::Host && case.interface == interface && case.environment.is_none();
    seen_where(results, fits)
}

/// All that have a value above zero and are as asked.
pub fn seen_where(results: &Results, fits: impl Fn(&Case) -> bool) -> Vec<Seen<'_>> {
    let with_value = |result| -> Option<Seen<'_>> {
        let result: &CaseResult = result;
        let summary = result.summary.as_ref().filter(|_| fits(&result.case))?;
        (summary.value.is_finite() && summary.value > 0.0).then_some(Seen { result, summary })
    };
    results.cases.iter().filter_map(with_value).collect()
}

/// The common settings of the cases of one figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Setting {
    /// The place of the responder.
    pub placement: Placement,
    /// The service of the QPs.
    pub service: Service,
    /// The quantity that is measured.
    pub measure: Measure,
}

impl Setting {
    /// The setting of a case.
    pub fn of(case: &Case) -> Self {
        Self { placement: case.placement, service: case.service, measure: case.measure }
    }

    /// RC in this placement.
    pub fn rc(measure: Measure, placement: Placement) -> Self {
        Self { placement, service: Service::Rc, measure }
    }

    /// Returns true if a case has it.
    pub fn fits(&self, case: &Case) -> bool {
        Self::of(case) == *self
    }
}

/// The settings that there are cases of, in order.
pub fn settings(seen: &[Seen<'_>]) -> Vec<Setting> {
    let mut settings: Vec<Setting> = seen.iter().map(|s| Setting::of(s.case())).collect();
    settings.sort_unstable();
    settings.dedup();
    settings
}

/// One QP, and of each operation the depth of most sizes, the largest of those: one series must not mix depths. (For
/// latency both are 1 always.)
pub fn over_size<'a>(
    seen: &[Seen<'a>],
    setting: Setting,
    operation: Operation,
    beside: Option<Interference>,
) -> Vec<Seen<'a>> {
    let fits = |s: &&Seen<'_>| {
        let case = s.case();
        setting.fits(case) && case.operation == operation && case.qps == 1 && case.interference == beside
    };
    let all: Vec<Seen<'a>> = seen.iter().filter(fits).copied().collect();
    let depth = most_common(all.iter().map(|s| s.case().depth));
    let mut chosen: Vec<_> = all.into_iter().filter(|s| Some(s.case().depth) == depth).collect();
    chosen.sort_by_key(|s| s.case().size);
    chosen
}

/// The value that comes most often; the largest of them.
pub fn most_common(values: impl IntoIterator<Item = u32>) -> Option<u32> {
    let mut counts = BTreeMap::new();
    for value in values {
        *counts.entry(value).or_insert(0_usize) += 1;
    }
    counts.into_iter().max_by_key(|(value, count)| (*count, *value)).map(|(value, _)| value)
}

/// One QP, one size: the case of the largest depth.
pub fn single<'a>(
    seen: &[Seen<'a>],
    setting: Setting,
    operation: Operation,
    size: u64,
    beside: Option<Interference>,
) -> Option<Seen<'a>> {
    let fits = |s: &&Seen<'_>| {
        let case = s.case();
        setting.fits(case) && (case.operation, case.size, case.qps, case.interference) == (operation, size, 1, beside)
    };
    seen.iter().filter(fits).max_by_key(|s| s.case().depth).copied()
}

/// All streams that ran beside cases of this kind, the small ones first.
pub fn streams(seen: &[Seen<'_>], fits: impl Fn(&Case) -> bool) -> Vec<Interference> {
    let mut streams: Vec<_> = seen.iter().filter(|s| fits(s.case())).filter_map(|s| s.case().interference).collect();
    streams.sort_unstable_by_key(|s| (s.size, s.operation));
    streams.dedup();
    streams
}

/// All flags of a case, with commas.
pub fn flags(summary: &Summary) -> String {
    summary.flags.iter().map(Flag::to_string).collect::<Vec<_>>().join(", ")
}

/// An operation as the paper and titles write it.
pub fn name(operation: Operation) -> &'static str {
    match operation {
        Operation::Send => "Send",
        Operation::SendImm => "Send+imm",
        Operation::Write => "Write",
        Operation::WriteImm => "Write+imm",
        Operation::Read => "Read",
        Operation::FetchAdd => "FAA",
        Operation::CompareSwap => "CAS",
        Operation::Put => "put",
        Operation::Get => "get",
        Operation::Copy => "copy",
        Operation::PingPong => "ping-pong",
        Operation::RawPut => "raw put",
        Operation::Jacobi => "Jacobi step",
        Operation::JacobiCalculation => "calculation",
        Operation::JacobiExchange => "halo exchange",
        Operation::JacobiAllreduce => "allreduce",
    }
}

/// "no interference", "8 B Write".
pub fn stream(beside: Option<Interference>) -> String {
    beside
        .map_or_else(|| "none".to_owned(), |s| format!("{} {}", vervain_bench::case::bytes(s.size), name(s.operation)))
}

/// The paper's names.
pub fn place(placement: Placement) -> &'static str {
    match placement {
        Placement::Loopback => "loopback (intra-node)",
        Placement::Peer => "peer (inter-node)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vervain_bench::sample::{bandwidth, nothing, write_case};

    #[test]
    fn a_series_keeps_to_the_depth_of_most_sizes() {
        let mut results = nothing();
        for (size, depth) in [(8, 128), (64, 128), (8, 512), (4096, 128)] {
            results.cases.push(bandwidth(Case { depth, ..write_case(size) }, &[1e9]));
        }
        let seen = seen(&results);
        let setting = Setting::rc(Measure::Bandwidth, Placement::Loopback);
        let series = over_size(&seen, setting, Operation::Write, None);
        assert_eq!(
            series.iter().map(|s| (s.case().size, s.case().depth)).collect::<Vec<_>>(),
            [(8, 128), (64, 128), (4096, 128)]
        );
        assert_eq!(single(&seen, setting, Operation::Write, 8, None).map(|s| s.case().depth), Some(512));
        assert!(over_size(&seen, setting, Operation::Read, None).is_empty());
    }

    #[test]
    fn cases_without_a_number_of_gpus_and_in_environments_are_not_seen() {
        let mut results = nothing();
        results.cases = [f64::NAN, 0.0, 1e9].map(|value| bandwidth(write_case(8), &[value])).to_vec();
        results.cases.push(bandwidth(write_case(8), &[]));
        results.cases.push(bandwidth(Case { memory: Memory::Gpu, ..write_case(8) }, &[1e9]));
        let environment = vervain_bench::case::EnvironmentName::from("board").ok();
        results.cases.push(bandwidth(Case { environment, ..write_case(8) }, &[1e9]));
        assert_eq!(seen(&results).len(), 1);
    }
}
