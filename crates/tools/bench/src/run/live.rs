//! The display during a run: the last values as a table, a bar, and the time left. If standard error is no terminal, a
//! line for each round.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::case::Case;
use crate::run::collect::Collector;
use crate::run::values;
use crate::terminal::Screen;

/// Cases in the tables while it runs: with their headings and the bar they fit on most terminals.
const ROWS: usize = 8;
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

    /// Shows the case that begins, and the next ones.
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
            self.table.set_message(values::tables(so_far, &self.recent, true, Screen::Error));
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
