//! Two results against each other: which cases differ, by how much, and whether that is more than chance. The
//! statistics and the reasons for them are [`ratio`]'s.

pub mod ratio;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use vervain_bench::case::{Case, Measure};
use vervain_bench::number::{in_unit, moment, number, unit};
use vervain_bench::results::{CaseResult, Flag, Host, Results, Summary};
use vervain_bench::stats;
use vervain_bench::terminal::{self, Kind, Screen};

use crate::differences;
use ratio::Ratio;

/// Against what the corrected chance is held.
const SIGNIFICANT: f64 = 0.05;

/// The comparison of two results.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// Which they are: plan, device and time of each.
    pub names: [String; 2],
    /// The reasons why the comparison may not be one of like with like.
    pub warnings: Vec<String>,
    /// Cases with a value in both, in the order of the first.
    pub pairs: Vec<Pair>,
    /// Cases with a value in the first only.
    pub only_first: Vec<Case>,
    /// Cases with a value in the second only.
    pub only_second: Vec<Case>,
}

/// A case that both measured.
#[derive(Debug, Clone)]
pub struct Pair {
    /// The case.
    pub case: Case,
    /// Both values, in ns or bytes per second.
    pub values: [f64; 2],
    /// The second as a multiple of the first.
    pub ratio: Ratio,
    /// Probability of such a difference by chance, after Holm's correction over all pairs; None if it is unknown.
    pub chance: Option<f64>,
    /// The meaning of the difference.
    pub verdict: Verdict,
}

/// The meaning of the difference of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The second is faster: the corrected chance is below 5 %, and the interval of the ratio is without 1.
    Better,
    /// The second is slower, as surely.
    Worse,
    /// Chance explains it.
    Same,
    /// One side has fewer runs than [`stats::LEAST_RUNS`].
    FewRuns,
    /// One side is flagged noisy, and the difference is no larger than the spread of its runs.
    Noisy,
    /// The interfering stream of one side paused.
    Unproven,
    /// They are one step of the clock apart.
    ClockStep,
}

impl Verdict {
    /// In words.
    pub fn word(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Same => "no significant difference",
            Self::FewRuns => "not comparable: few runs",
            Self::Noisy => "not comparable: noisy",
            Self::Unproven => "not comparable: interference paused",
            Self::ClockStep => "not comparable: one step of the clock",
        }
    }

    /// Returns true if nothing can be said.
    pub fn is_silent(self) -> bool {
        matches!(self, Self::FewRuns | Self::Noisy | Self::Unproven | Self::ClockStep)
    }
}

/// Pairs the cases of two results. The ratios are the second's value by the first's.
pub fn compare(first: &Results, second: &Results) -> Comparison {
    let has_value = |c: &&CaseResult| c.summary.as_ref().is_some_and(|s| s.value.is_finite() && s.value > 0.0);
    let with_value =
        |results: &Results| -> Vec<CaseResult> { results.cases.iter().filter(has_value).cloned().collect() };
    let (ours, theirs) = (with_value(first), with_value(second));
    let is_in = |case: &CaseResult, of: &[CaseResult]| of.iter().any(|c| c.case == case.case);
    let missing = |of: &[CaseResult], other: &[CaseResult]| -> Vec<Case> {
        of.iter().filter(|c| !is_in(c, other)).map(|c| c.case).collect()
    };
    let mut pairs: Vec<Pair> =
        ours.iter().filter_map(|a| pair(a, theirs.iter().find(|b| b.case == a.case)?, first.header.seed)).collect();
    judge(&mut pairs);
    Comparison {
        names: [first, second].map(name),
        warnings: warnings(first, second),
        only_first: missing(&ours, &theirs),
        only_second: missing(&theirs, &ours),
        pairs,
    }
}

fn name(results: &Results) -> String {
    let header = &results.header;
    format!("{} on {} of {}, {}", header.plan.name, header.host.device.name, header.host.name, moment(&header.started))
}

/// A pair without its last word: `chance` is not yet corrected.
fn pair(first: &CaseResult, second: &CaseResult, seed: u64) -> Option<Pair> {
    let ratio = ratio::ratio(first, second, seed)?;
    let summaries = [first.summary.as_ref()?, second.summary.as_ref()?];
    let [a, b] = [first, second].map(ratio::run_values);
    let has = |flag| summaries.iter().any(|s| s.flags.contains(&flag));
    let spread = |s: &&Summary| s.flags.contains(&Flag::Noisy).then_some(s.spread);
    let noise = summaries.iter().filter_map(spread).fold(0.0, f64::max);
    let difference = ratio.value.max(1.0 / ratio.value) - 1.0;
    let chance = ratio::chance(&a, &b);
    let verdict = if chance.is_none() {
        Verdict::FewRuns
    } else if has(Flag::InterferencePaused) {
        Verdict::Unproven
    } else if has(Flag::Noisy) && difference <= noise {
        Verdict::Noisy
    } else if difference > 0.0 && (summaries[0].value - summaries[1].value).abs() <= clock_step(first, second) {
        Verdict::ClockStep
    } else {
        Verdict::Same
    };
    let chance = chance.filter(|_| !verdict.is_silent());
    Some(Pair { case: first.case, values: summaries.map(|s| s.value), ratio, chance, verdict })
}

/// The least by which iterations of either side differed, in ns, which the clock cannot go below; 0 for bandwidth.
fn clock_step(first: &CaseResult, second: &CaseResult) -> f64 {
    let both: Vec<_> = [first, second].iter().flat_map(|side| &side.runs).cloned().collect();
    stats::clock_step(&first.case, &both)
}

/// Corrects the chances for their number, and says which pairs differ.
fn judge(pairs: &mut [Pair]) {
    let chances: Vec<f64> = pairs.iter().filter_map(|p| p.chance).collect();
    let corrected = ratio::holm(&chances);
    for (pair, chance) in pairs.iter_mut().filter(|p| p.chance.is_some()).zip(corrected) {
        pair.chance = Some(chance);
        let (low, high) = pair.ratio.interval;
        if chance < SIGNIFICANT && (low > 1.0 || high < 1.0) {
            let more_is_better = pair.case.measure == Measure::Bandwidth;
            pair.verdict = if (low > 1.0) == more_is_better { Verdict::Better } else { Verdict::Worse };
        }
    }
}

fn warnings(first: &Results, second: &Results) -> Vec<String> {
    let (a, b) = (&first.header, &second.header);
    let mut warnings = Vec::new();
    let mut differ = |what: &str, ours: String, theirs: String| {
        if ours != theirs {
            warnings.push(format!("{what} differs: {ours} against {theirs}."));
        }
    };
    let machine = |h: &Host| format!("{} ({}, {} CPUs, kernel {})", h.name, h.cpu, h.cpus, h.kernel);
    let device = |h: &Host| {
        format!(
            "{} (vendor {:#x}, part {}, firmware {})",
            h.device.name, h.device.vendor, h.device.part, h.device.firmware
        )
    };
    let peer =
        |h: &Option<Host>| h.as_ref().map_or_else(|| "none".to_owned(), |h| format!("{}, {}", machine(h), device(h)));
    let pinned = |h: &Host| {
        let pin = |(role, cpu): (&String, &Option<u32>)| {
            format!("{role} {}", cpu.map_or("free".to_owned(), |c| c.to_string()))
        };
        h.pinned.iter().map(pin).collect::<Vec<_>>().join(", ")
    };
    differ("The machine", machine(&a.host), machine(&b.host));
    differ("The device", device(&a.host), device(&b.host));
    differ("The library", a.host.library.clone(), b.host.library.clone());
    differ("The peer", peer(&a.peer), peer(&b.peer));
    differ("The pinning", pinned(&a.host), pinned(&b.host));
    if a.plan.text != b.plan.text {
        warnings.push(format!(
            "The plans differ ({}, {}): equal cases may have been measured differently.",
            a.plan.name, b.plan.name
        ));
    }
    for (which, results) in [("first", first), ("second", second)] {
        if !results.complete {
            warnings.push(format!("The {which} run is not complete."));
        }
    }
    warnings
}

impl Comparison {
    /// The number of pairs with this verdict.
    fn count(&self, of: impl Fn(Verdict) -> bool) -> usize {
        self.pairs.iter().filter(|p| of(p.verdict)).count()
    }

    /// The compared results and the outcome, in one line.
    pub fn summary(&self) -> String {
        self.sentences().join(" ")
    }

    fn sentences(&self) -> Vec<String> {
        let cases = |count: usize| if count == 1 { "1 case is".to_owned() } else { format!("{count} cases are") };
        let mut sentences = vec![format!(
            "{} in both: {} better, {} worse, {} without significant difference.",
            cases(self.pairs.len()),
            self.count(|v| v == Verdict::Better),
            self.count(|v| v == Verdict::Worse),
            self.count(|v| v == Verdict::Same),
        )];
        let silent = [
            (Verdict::FewRuns, "with few runs"),
            (Verdict::Noisy, "noisy"),
            (Verdict::Unproven, "whose interference paused"),
            (Verdict::ClockStep, "one step of the clock apart"),
        ];
        let silent = silent.map(|(verdict, words)| (self.count(|v| v == verdict), words));
        let why: Vec<String> =
            silent.iter().filter(|(count, _)| *count > 0).map(|(count, words)| format!("{count} {words}")).collect();
        if !why.is_empty() {
            sentences.push(format!(
                "{} in both, but not comparable: {}.",
                cases(self.count(Verdict::is_silent)),
                why.join(", ")
            ));
        }
        let only = self.only_first.len() + self.only_second.len();
        if only > 0 {
            sentences.push(format!("{} in one of the two only: not compared.", cases(only)));
        }
        sentences
    }

    /// For the terminal: the summary, warnings, and a row for each pair that can be compared, those that differ first.
    pub fn table(&self) -> String {
        self.table_on(Screen::Out)
    }

    fn table_on(&self, screen: Screen) -> String {
        let mut text = self.sentences().join("\n") + "\n";
        for warning in &self.warnings {
            let _ = writeln!(text, "warning: {warning}");
        }
        for measure in Measure::ALL {
            let rows: Vec<_> = self.comparable().filter(|p| p.case.measure == *measure).map(row).collect();
            if rows.is_empty() {
                continue;
            }
            let title = match measure {
                Measure::Latency => "Latency",
                Measure::Bandwidth => "Bandwidth",
            };
            let columns = [
                ("case", Kind::Words),
                ("first", Kind::Number),
                ("second", Kind::Number),
                ("ratio", Kind::Number),
                ("95 %", Kind::Number),
                ("p", Kind::Number),
                ("verdict", Kind::Words),
            ];
            let table = terminal::table(&columns, &rows, screen);
            let _ = write!(text, "\n{title}, {}; the ratio is second / first\n{table}\n", unit(*measure));
        }
        text
    }

    /// The pairs of which something can be said, in the order of [`ordered`](Self::ordered).
    pub fn comparable(&self) -> impl Iterator<Item = &Pair> {
        self.ordered().into_iter().filter(|pair| !pair.verdict.is_silent())
    }

    /// Pairs that differ first, the largest difference at the top; then the others in their order.
    pub fn ordered(&self) -> Vec<&Pair> {
        let rank = |p: &Pair| match p.verdict {
            Verdict::Worse => 0,
            Verdict::Better => 1,
            Verdict::Same => 2,
            _ => 3,
        };
        let mut pairs: Vec<&Pair> = self.pairs.iter().collect();
        pairs.sort_by(|a, b| {
            let size = |p: &Pair| if rank(p) < 2 { -p.ratio.value.ln().abs() } else { 0.0 };
            rank(a).cmp(&rank(b)).then(size(a).total_cmp(&size(b)))
        });
        pairs
    }

    /// Writes an HTML page with the differences drawn and listed; beside it, under the same name, the drawings as SVG
    /// (one for latency, one for bandwidth) and the list as CSV. Returns the files, the page first.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, file: &Path) -> Result<Vec<PathBuf>> {
        differences::write(self, file)
    }
}

/// A row of the table on the terminal.
fn row(pair: &Pair) -> Vec<String> {
    let (low, high) = pair.ratio.interval;
    let shown = |value: f64| number(in_unit(pair.case.measure, value));
    vec![
        // A number stays with its unit.
        describe(&pair.case).replacen(' ', "\u{a0}", 1),
        shown(pair.values[0]),
        shown(pair.values[1]),
        number(pair.ratio.value),
        format!("{} to {}", number(low), number(high)),
        pair.chance.map_or_else(|| "–".to_owned(), chance_word),
        pair.verdict.word().to_owned(),
    ]
}

/// A p-value in two digits.
pub(crate) fn chance_word(chance: f64) -> String {
    if chance < 0.001 { "< 0.001".to_owned() } else { format!("{chance:.3}") }
}

/// A case under a heading that says what is measured.
pub(crate) fn describe(case: &Case) -> String {
    case.to_string().replacen(&format!(" {}", case.measure), "", 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vervain_bench::sample::{bandwidth, everything, latency, nothing, write_case};

    fn of(cases: Vec<CaseResult>) -> Results {
        Results { cases, ..nothing() }
    }

    #[test]
    fn a_run_equals_itself() {
        let results = everything(1.0);
        let comparison = compare(&results, &results);
        assert_eq!(comparison.count(|v| matches!(v, Verdict::Better | Verdict::Worse)), 0);
        assert!(
            comparison.warnings.is_empty() && comparison.only_first.is_empty() && comparison.only_second.is_empty()
        );
        assert!(comparison.pairs.iter().all(|p| (p.ratio.value - 1.0).abs() < 1e-9));
    }

    #[test]
    fn more_bandwidth_is_better_and_more_latency_worse() {
        let lone = Case { measure: Measure::Latency, depth: 1, ..write_case(8) };
        let first =
            of(vec![bandwidth(write_case(8), &[1.0e9, 1.01e9, 0.99e9]), latency(lone, &[1000.0, 1010.0, 990.0])]);
        let second =
            of(vec![bandwidth(write_case(8), &[1.5e9, 1.51e9, 1.49e9]), latency(lone, &[1500.0, 1510.0, 1490.0])]);
        let verdicts = |c: &Comparison| c.pairs.iter().map(|p| p.verdict).collect::<Vec<_>>();
        assert_eq!(verdicts(&compare(&first, &second)), [Verdict::Better, Verdict::Worse]);
        assert_eq!(verdicts(&compare(&second, &first)), [Verdict::Worse, Verdict::Better]);
    }

    #[test]
    fn among_many_equal_pairs_the_correction_lets_no_chance_pass() {
        // 400 cases, the same in both but for the noise: without correction one in twenty would "differ".
        let mut random = fastrand::Rng::with_seed(3);
        let mut draw = || -> Vec<CaseResult> {
            let run =
                |random: &mut fastrand::Rng| 1e9 * (1.0 + 0.03 * (random.f64() + random.f64() + random.f64() - 1.5));
            (0..400).map(|i| bandwidth(write_case(8 + i), &[(); 5].map(|()| run(&mut random)))).collect()
        };
        let comparison = compare(&of(draw()), &of(draw()));
        assert_eq!(comparison.count(|v| v == Verdict::Same), 400);
    }

    #[test]
    fn few_runs_noise_and_pauses_are_not_compared() {
        let calm = |size| bandwidth(write_case(size), &[1.0e9, 1.01e9, 0.99e9]);
        let wild = |size, by: f64| bandwidth(write_case(size), &[1.0e9 * by, 1.4e9 * by, 0.7e9 * by]);
        let mut paused = calm(512);
        paused.summary.as_mut().expect("a summary").flags.push(Flag::InterferencePaused);
        let first = of(vec![calm(8), calm(64), calm(256), calm(512)]);
        let second = of(vec![bandwidth(write_case(8), &[5.0e9, 5.0e9]), wild(64, 1.2), wild(256, 20.0), paused]);
        let verdicts: Vec<_> = compare(&first, &second).pairs.iter().map(|p| p.verdict).collect();
        assert_eq!(verdicts, [Verdict::FewRuns, Verdict::Noisy, Verdict::Better, Verdict::Unproven]);
    }

    #[test]
    fn latencies_that_the_clock_cannot_tell_apart_are_not_compared() {
        let of_times = |ps: [u64; 3]| {
            let mut result = latency(Case { measure: Measure::Latency, ..write_case(8) }, &[ps[1] as f64 / 1000.0; 3]);
            result.runs.iter_mut().for_each(|run| run.histogram = ps.map(|ps| (ps, 1000)).to_vec());
            result
        };
        let verdict =
            |a: [u64; 3], b: [u64; 3]| compare(&of(vec![of_times(a)]), &of(vec![of_times(b)])).pairs[0].verdict;
        assert_eq!(verdict([50_000, 60_000, 70_000], [60_000, 70_000, 80_000]), Verdict::ClockStep);
        assert_eq!(verdict([50_000, 60_000, 70_000], [70_000, 80_000, 90_000]), Verdict::Worse);
        assert_eq!(verdict([59_000, 60_000, 70_000], [60_000, 70_000, 80_000]), Verdict::Worse);
    }

    #[test]
    fn what_is_in_one_only_and_what_differs_is_told() {
        let first = of(vec![bandwidth(write_case(8), &[1e9; 3]), bandwidth(write_case(16), &[1e9; 3])]);
        let mut second = of(vec![bandwidth(write_case(8), &[1e9; 3]), bandwidth(write_case(16), &[])]);
        second.header.host.device.name = "other0".to_owned();
        second.header.plan.text.push('#');
        second.complete = false;
        let comparison = compare(&first, &second);
        assert_eq!(comparison.only_first, [write_case(16)]);
        let table = comparison.table();
        let line = "1 case is in both: 0 better, 0 worse, 1 without significant difference.\n\
                    1 case is in one of the two only: not compared.\n";
        assert!(table.starts_with(line), "{table}");
        for word in
            ["The device differs: sample0", "The plans differ", "The second run is not complete", "\nBandwidth, MB/s; "]
        {
            assert!(table.contains(word), "{word}: {table}");
        }
    }

    #[test]
    fn what_cannot_be_compared_is_counted_and_not_in_the_table() {
        let sizes = |sizes: &[u64], value: f64, runs: usize| -> Vec<CaseResult> {
            sizes.iter().map(|size| bandwidth(write_case(*size), &vec![value; runs])).collect()
        };
        let first = of([sizes(&[8, 64], 1e9, 3), sizes(&[512, 1024], 1e9, 2), sizes(&[2048, 4096], 1e9, 3)].concat());
        let mut second = of([sizes(&[8, 64], 1.5e9, 3), sizes(&[512, 1024], 1e9, 3), sizes(&[8192], 1e9, 3)].concat());
        second.cases[1].summary.as_mut().expect("a summary").flags.push(Flag::Noisy);
        second.cases[1].summary.as_mut().expect("a summary").spread = 9.0;
        let text = compare(&first, &second).table_on(Screen::Columns(80));
        let expected = "\
4 cases are in both: 1 better, 0 worse, 0 without significant difference.
3 cases are in both, but not comparable: 2 with few runs, 1 noisy.
3 cases are in one of the two only: not compared.

Bandwidth, MB/s; the ratio is second / first
case                        first  second  ratio          95 %        p  verdict
════════════════════════════════════════════════════════════════════════════════
8~B write RC, depth 128,    1,000   1,500   1.50  1.48 to 1.52  < 0.001  better
loopback
";
        assert_eq!(text.replace('\u{a0}', "~"), expected, "\n{text}");
    }

    #[test]
    fn the_table_of_a_comparison_breaks_no_word_at_80_columns() {
        let comparison = compare(&everything(1.0), &everything(1.2));
        let [narrow, wide] = [80, 1000].map(|width| comparison.table_on(Screen::Columns(width)));
        let words = |text: &str| -> std::collections::BTreeSet<String> {
            text.split_whitespace().filter(|word| !word.starts_with('═')).map(str::to_owned).collect()
        };
        assert!(words(&narrow).is_subset(&words(&wide)), "{narrow}");
        // The sentences above the tables are no table.
        let (_, tables) = narrow.split_once("\n\n").expect("tables");
        assert_eq!(tables.lines().find(|line| line.chars().count() > 80), None, "{narrow}");
    }

    #[test]
    fn nothing_against_nothing_is_a_line() {
        assert_eq!(compare(&nothing(), &nothing()).table().lines().count(), 1);
    }
}
