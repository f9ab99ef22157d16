//! What the terminal shows while a run goes on: the last values as a table, a bar, and the time left. Where standard error
//! is no terminal, a line for each round.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::case::{Case, Measure, Memory, bytes};
use crate::report::number::number;
use crate::results::Flag;
use crate::run::collect::Collector;

/// Rows of the table while it runs; below the bar of most terminals.
const ROWS: usize = 12;
/// The depth that the table leaves out: that of plans which do not say otherwise.
const USUAL_DEPTH: u32 = 128;
/// How often the table is drawn at most.
const REDRAW: Duration = Duration::from_millis(200);

/// The display.
pub struct Live {
    bars: MultiProgress,
    bar: ProgressBar,
    table: ProgressBar,
    drawn: Option<Instant>,
    terminal: bool,
    /// Seconds that a run of a case took, the last time.
    cost: BTreeMap<Case, f64>,
    recent: Vec<Case>,
}

impl Live {
    /// For `total` measurements.
    pub fn new(total: u64) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let target = if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bars = MultiProgress::with_draw_target(target);
        let table = bars.add(ProgressBar::no_length());
        let bar = bars.add(ProgressBar::new(total));
        let style =
            |template: &str| ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        table.set_style(style("{msg}"));
        bar.set_style(style("{bar:30} {pos}/{len} {prefix} {wide_msg}"));
        Self { bars, bar, table, drawn: None, terminal, cost: BTreeMap::new(), recent: vec![] }
    }

    /// A line that stays.
    pub fn say(&self, text: &str) {
        if self.terminal {
            let _ = self.bars.println(text);
        } else {
            eprintln!("{text}");
        }
    }

    /// What comes next, and what after it.
    pub fn begin(&mut self, case: &Case, round: u32, rounds: u32, rest: &[Case]) {
        let known = rest.iter().filter_map(|c| self.cost.get(c));
        let average = self.cost.values().sum::<f64>() / self.cost.len().max(1) as f64;
        let (count, sum) = known.fold((0usize, 0.0), |(n, sum), cost| (n + 1, sum + cost));
        let left = sum + (rest.len() - count) as f64 * average;
        if self.cost.len() >= 5 {
            let left = Duration::from_secs(left.round() as u64);
            self.bar.set_prefix(format!("{} left,", humantime::format_duration(left)));
        }
        self.bar.set_message(format!("round {} of {rounds}: {case}", round + 1));
    }

    /// A measurement is over; it took so long, all in all.
    pub fn end(&mut self, case: &Case, took: f64, so_far: &mut Collector) {
        self.cost.insert(*case, took);
        self.bar.inc(1);
        self.recent.retain(|c| c != case);
        self.recent.push(*case);
        if self.recent.len() > ROWS {
            self.recent.remove(0);
        }
        if self.terminal && self.drawn.is_none_or(|at| at.elapsed() > REDRAW) {
            self.drawn = Some(Instant::now());
            self.table.set_message(table(so_far, &self.recent, true));
        }
    }

    /// Skips what was measured before.
    pub fn skip(&self, count: u64) {
        self.bar.inc(count);
    }

    /// A round is over.
    pub fn round(&self, round: u32, rounds: u32) {
        if !self.terminal {
            eprintln!("round {} of {rounds} done", round + 1);
        }
    }

    /// Takes it off the terminal.
    pub fn finish(&self) {
        self.table.finish_and_clear();
        self.bar.finish_and_clear();
    }
}

/// The cases as a table, each with its value so far. While the run goes on no case is complete, and none is said not to
/// be.
pub fn table(so_far: &mut Collector, cases: &[Case], running: bool) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_BORDERS_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["what", "size", "how", "value", "95 %", "p99", "messages", "runs", ""]);
    for case in cases {
        let Some((summary, runs, failures)) = so_far.summary(case) else { continue };
        let what = format!("{} {}", case.operation, case.measure);
        let runs = if failures == 0 { runs.to_string() } else { format!("{runs}, {failures} failed") };
        let Some(summary) = summary else {
            table.add_row([&what, &bytes(case.size), &how(case), "failed", "", "", "", &runs, ""]);
            continue;
        };
        let value = |v| value(case.measure, v);
        let flags = summary.flags.iter().filter(|f| !running || **f != Flag::Incomplete);
        let flags: Vec<_> = flags.map(Flag::to_string).collect();
        table.add_row([
            what,
            bytes(case.size),
            how(case),
            value(summary.value),
            within(summary.value, summary.interval),
            summary.p99.map(value).unwrap_or_default(),
            summary.rate.map(|r| format!("{}/s", si(r))).unwrap_or_default(),
            runs,
            flags.join(", "),
        ]);
    }
    table.to_string()
}

/// Service, placement and neighbour of a case; depth and QPs where they are not those of most.
fn how(case: &Case) -> String {
    let mut how = format!("{} {}", case.service.word().to_uppercase(), case.placement);
    if case.measure == Measure::Bandwidth {
        if case.depth != USUAL_DEPTH {
            how += &format!(", depth {}", case.depth);
        }
        if case.qps > 1 {
            how += &format!(", {} QPs", case.qps);
        }
    }
    if case.memory == Memory::Gpu {
        how += ", GPU memory";
    }
    if let Some(beside) = case.interference {
        how += &format!(", beside {beside}");
    }
    how
}

/// The farther end of an interval, as a share of the value: "±3 %".
fn within(value: f64, (low, high): (f64, f64)) -> String {
    let share = 100.0 * (value - low).max(high - value) / value;
    match share {
        share if share < 10.0 => format!("±{share:.1} %"),
        share if share < 1000.0 => format!("±{share:.0} %"),
        _ => "?".into(),
    }
}

/// A value of a measure with its unit: "1.23 µs", "4,567 MB/s".
fn value(measure: Measure, value: f64) -> String {
    match measure {
        Measure::Latency if value < 1000.0 => format!("{value:.0} ns"),
        Measure::Latency if value < 1e6 => format!("{:.2} µs", value / 1e3),
        Measure::Latency => format!("{:.2} ms", value / 1e6),
        Measure::Bandwidth => format!("{} MB/s", number(value / 1e6)),
    }
}

/// A number with three digits and its SI prefix: "1.23 M".
fn si(value: f64) -> String {
    let prefixes = [(1e9, " G"), (1e6, " M"), (1e3, " k"), (0.0, "")];
    let (unit, prefix) = prefixes.into_iter().find(|(unit, _)| value >= *unit).unwrap_or((0.0, ""));
    format!("{}{prefix}", number(value / f64::max(unit, 1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_three_digits_and_their_unit() {
        let said = [0.4, 999.0, 1234.0, 5.678e6].map(|ns| value(Measure::Latency, ns));
        assert_eq!(said, ["0 ns", "999 ns", "1.23 µs", "5.68 ms"]);
        assert_eq!(value(Measure::Bandwidth, 4.567e9), "4,567 MB/s");
        assert_eq!([0.0, 12.3, 4567.0, 12.3e6, 4.5e9].map(si), ["0", "12.3", "4.57 k", "12.3 M", "4.50 G"]);
    }

    #[test]
    fn an_interval_is_its_farther_end() {
        assert_eq!(within(100.0, (99.0, 103.0)), "±3.0 %");
        assert_eq!(within(100.0, (70.0, 103.0)), "±30 %");
        assert_eq!(within(0.0, (0.0, 1.0)), "?");
    }
}
