//! The summary of the runs of a case: its value, the interval of that, and the reasons for doubt. The coordinator has
//! the [`Summary`] made, the report shows it; `compare` takes two [`Bootstrap`]s.

use std::collections::BTreeMap;

use crate::case::{Case, Measure};
use crate::results::{Flag, Run, Summary, percentile};

mod bootstrap;
mod recorder;
#[cfg(test)]
pub(crate) mod synthetic;

pub use bootstrap::{Bootstrap, median};
pub use recorder::Recorder;

use bootstrap::{quantile, segments, unit, usable, value};

/// Iterations from which a 99.9th percentile has at least ten beyond it.
const ENOUGH_FOR_P999: f64 = 10_000.0;

/// Runs without which nothing is said of how runs differ. With two there is one degree of freedom: Student's t is 12.7,
/// and an interval nine times as wide as what the runs themselves show.
pub const LEAST_RUNS: usize = 3;

/// An interval that ends above this many times the value shows its order of magnitude at best.
pub const WIDEST: f64 = 2.0;

/// Above this share the first segment was slower because it was the first.
const COLD: f64 = 0.1;

/// The summary of `runs`; None if none has a value. Runs without one (no iterations, no time) count as missing.
///
/// `noisy_above` is the share of its value by which runs may differ before the case is flagged
/// ([`Plan::spread`](crate::plan::Plan::spread)); `seed` and the case decide the bootstrap's random numbers.
pub fn summarise(case: &Case, runs: &[Run], planned_rounds: u32, noisy_above: f64, seed: u64) -> Option<Summary> {
    let bootstrap = Bootstrap::of(case, runs, seed)?;
    let mut runs: Vec<Run> = usable(case, runs).cloned().collect();
    runs.sort_by(|a, b| a.round.cmp(&b.round).then(a.at.total_cmp(&b.at)));
    let values: Vec<f64> = runs.iter().map(|run| value(case, run)).collect();
    let middle = median(&mut values.clone());

    let spread = (max(&values) - min(&values)) / middle;
    let drift = drift(&values) / middle;
    // A difference below the clock's resolution counts as none.
    let step = clock_step(case, &runs) / middle;
    let warm_up = warm_up(&runs);
    let paused = |run: &Run| !run.interference.as_ref().is_some_and(|proof| proof.throughout);
    let (value, interval) = (bootstrap.value(), bootstrap.interval());
    let flags = [
        (Flag::Noisy, spread > noisy_above.max(step)),
        (Flag::Drifting, drift.abs() > (noisy_above / 2.0).max(step)),
        (Flag::ColdStart, warm_up > COLD),
        (Flag::Incomplete, (runs.len() as u64) < u64::from(planned_rounds)),
        (Flag::TooFewRounds, runs.len() < LEAST_RUNS || interval.1 > WIDEST * value),
        (Flag::InterferencePaused, case.interference.is_some() && runs.iter().any(paused)),
        (Flag::Lossy, runs.iter().any(|run| run.lost > 0)),
    ];

    let parts = match case.measure {
        Measure::Latency => Distribution::of_iterations(&runs),
        Measure::Bandwidth => Distribution::of_segments(case, &runs),
    };
    Some(Summary {
        value,
        interval,
        quartiles: parts.quartiles,
        range: parts.range,
        mean: parts.mean,
        p99: parts.p99,
        p999: parts.p999,
        rate: (case.measure == Measure::Bandwidth).then_some(middle),
        spread,
        drift,
        warm_up,
        flags: flags.into_iter().filter(|(_, raised)| *raised).map(|(flag, _)| flag).collect(),
    })
}

/// The histograms of all runs in one, ascending.
pub fn merge(runs: &[Run]) -> Vec<(u64, u64)> {
    let mut merged = BTreeMap::<u64, u64>::new();
    for &(ps, count) in runs.iter().flat_map(|run| &run.histogram) {
        let sum = merged.entry(ps).or_default();
        *sum = sum.saturating_add(count);
    }
    merged.into_iter().collect()
}

/// How what the runs are made of is distributed.
struct Distribution {
    quartiles: (f64, f64),
    range: (f64, f64),
    mean: f64,
    p99: Option<f64>,
    p999: Option<f64>,
}

impl Distribution {
    fn of_iterations(runs: &[Run]) -> Self {
        let merged = merge(runs);
        let count: f64 = merged.iter().map(|(_, count)| *count as f64).sum();
        let sum: f64 = merged.iter().map(|(ps, count)| *ps as f64 * *count as f64).sum();
        let at = |share| percentile(&merged, share);
        Self {
            quartiles: (at(0.25), at(0.75)),
            range: (at(0.0), at(1.0)),
            mean: sum / count / 1000.0,
            p99: Some(at(0.99)),
            p999: (count >= ENOUGH_FOR_P999).then(|| at(0.999)),
        }
    }

    fn of_segments(case: &Case, runs: &[Run]) -> Self {
        let mut speeds: Vec<f64> =
            runs.iter().flat_map(segments).map(|(iterations, seconds)| iterations / seconds).collect();
        if speeds.is_empty() {
            speeds = runs.iter().map(|run| value(case, run)).collect();
        }
        speeds.sort_by(f64::total_cmp);
        let iterations: f64 = runs.iter().map(|run| run.iterations as f64).sum();
        let seconds: f64 = runs.iter().map(|run| run.seconds).sum();
        let at = |share| quantile(&speeds, share) * unit(case);
        Self {
            quartiles: (at(0.25), at(0.75)),
            range: (at(0.0), at(1.0)),
            mean: iterations / seconds * unit(case),
            p99: None,
            p999: None,
        }
    }
}

fn min(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn max(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// The median of the last third of the values less that of the first; 0 with fewer than three.
fn drift(values: &[f64]) -> f64 {
    let third = values.len() / 3;
    if third == 0 {
        return 0.0;
    }
    median(&mut values[values.len() - third..].to_vec()) - median(&mut values[..third].to_vec())
}

/// The least by which two iterations differed, in ns: no less than what the clock counts in, which on a machine that
/// counts in tens of ns makes two medians of one latency a seventh apart. 0 where they did not differ, and for
/// bandwidth.
pub fn clock_step(case: &Case, runs: &[Run]) -> f64 {
    if case.measure == Measure::Bandwidth {
        return 0.0;
    }
    // A bucket is a thousandth wide, so a step may look larger by that.
    let least = merge(runs).windows(2).map(|pair| pair[1].0 - pair[0].0 + pair[1].0 / 1000).min();
    least.unwrap_or(0) as f64 / 1000.0
}

/// The excess time of an iteration of a run's first segment over one of its other segments, as a share: the median over
/// the runs, so that one whose first segment was disturbed does not decide for all.
fn warm_up(runs: &[Run]) -> f64 {
    let of_run = |run: &Run| {
        let mut times: Vec<f64> = segments(run).map(|(iterations, seconds)| seconds / iterations).collect();
        let (first, others) = times.split_first_mut()?;
        (!others.is_empty()).then(|| *first / median(others) - 1.0)
    };
    let mut shares: Vec<f64> = runs.iter().filter_map(of_run).collect();
    if shares.is_empty() { 0.0 } else { median(&mut shares) }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::synthetic::{Machine, bandwidth, latency};
    use super::*;
    use crate::case::{Interference, Operation};
    use crate::results::InterferenceProof;

    /// A run of 4 segments of 250 messages at this many messages per second, or of 1000 iterations of this many ns.
    fn steady(round: u32, value: f64) -> Run {
        let segments = vec![(250, 250.0 / value); 4];
        let seconds = 1000.0 / value;
        let histogram = vec![((value * 1000.0) as u64, 1000)];
        Run { round, at: f64::from(round), iterations: 1000, seconds, segments, histogram, lost: 0, interference: None }
    }

    fn summary(case: &Case, runs: &[Run]) -> Summary {
        let summary = summarise(case, runs, u32::try_from(runs.len()).expect("few"), 0.1, 1).expect("a value");
        let Summary { value, interval, quartiles, range, mean, spread, drift, warm_up, .. } = summary;
        let numbers =
            [value, interval.0, interval.1, quartiles.0, quartiles.1, range.0, range.1, mean, spread, drift, warm_up];
        assert!(numbers.iter().chain(&summary.p99).chain(&summary.p999).chain(&summary.rate).all(|n| n.is_finite()));
        assert!(interval.0 <= value && value <= interval.1, "{interval:?} without {value}");
        assert!(range.0 <= quartiles.0 && quartiles.0 <= quartiles.1 && quartiles.1 <= range.1);
        summary
    }

    #[test]
    fn a_latency_is_the_median_of_the_medians_and_its_tail_that_of_all_iterations() {
        let mut runs = vec![steady(0, 1000.0), steady(1, 1100.0), steady(2, 1050.0)];
        runs[0].histogram.push((9_000_000, 50));
        let found = summary(&latency(), &runs);
        assert_eq!((found.value, found.range, found.quartiles), (1050.0, (1000.0, 9000.0), (1000.0, 1100.0)));
        assert_eq!((found.p99, found.p999, found.rate), (Some(9000.0), None, None));
        assert!((found.mean - (3150.0 * 1000.0 + 9000.0 * 50.0) / 3050.0).abs() < 1e-6);
        assert!((found.spread - 100.0 / 1050.0).abs() < 1e-9);
    }

    #[test]
    fn the_thousandth_in_the_tail_needs_ten_thousand_iterations() {
        let mut run = steady(0, 1000.0);
        run.histogram = vec![(1_000_000, 9980), (7_000_000, 19)];
        assert_eq!(summary(&latency(), &[run.clone()]).p999, None);
        run.histogram[1].1 = 20;
        assert_eq!(summary(&latency(), &[run]).p999, Some(7000.0));
    }

    #[test]
    fn a_bandwidth_is_bytes_by_time_and_its_quartiles_those_of_the_segments() {
        let runs = [steady(0, 1e6), steady(1, 1e6), steady(2, 4e6)];
        let found = summary(&bandwidth(64), &runs);
        let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a}, not {b}");
        near(found.value, 64e6);
        near(found.rate.expect("a rate"), 1e6);
        near(found.mean, 64.0 * 3000.0 / (1000.0 / 1e6 * 2.0 + 1000.0 / 4e6));
        near(found.quartiles.0, 64e6);
        near(found.quartiles.1, 256e6);
        near(found.range.1, 256e6);
        assert_eq!((found.p99, found.p999), (None, None));
    }

    #[test]
    fn messages_of_no_bytes_have_a_rate() {
        let found = summary(&bandwidth(0), &[steady(0, 1e6), steady(1, 2e6)]);
        assert_eq!((found.value, found.rate.map(f64::round)), (0.0, Some(1.5e6)));
        assert!(found.flags.contains(&Flag::Noisy));
    }

    #[test]
    fn runs_that_agree_raise_no_flag() {
        let mut rng = Rng::with_seed(4);
        for case in [latency(), bandwidth(4096)] {
            let runs: Vec<_> = (0..6).map(|round| Machine::default().run(&case, round, &mut rng)).collect();
            assert_eq!(summary(&case, &runs).flags, [], "{case}");
            assert_eq!(summary(&case, &runs[..1]).flags, [Flag::TooFewRounds], "{case}, one run");
        }
    }

    #[test]
    fn runs_that_differ_are_noisy_and_those_that_wander_drift() {
        let flags = |values: &[f64]| {
            let runs: Vec<_> = (0..).zip(values).map(|(round, value)| steady(round, *value)).collect();
            summary(&bandwidth(8), &runs).flags
        };
        assert_eq!(flags(&[1.0, 1.12, 1.0, 1.0]), [Flag::Noisy]);
        assert_eq!(flags(&[1.0, 1.02, 1.04, 1.06]), [Flag::Drifting]);
        assert_eq!(flags(&[1.06, 1.04, 1.02, 1.0]), [Flag::Drifting]);
        assert_eq!(flags(&[1.0, 1.0, 1.2, 1.2]), [Flag::Noisy, Flag::Drifting]);
        assert_eq!(flags(&[1.0, 1.09]), [Flag::TooFewRounds], "two runs do not drift");
    }

    #[test]
    fn an_interval_of_two_runs_or_one_wider_than_the_value_takes_more_rounds() {
        let few = |values: &[f64]| {
            let runs: Vec<_> = (0..).zip(values).map(|(round, value)| steady(round, *value)).collect();
            let found = summary(&bandwidth(8), &runs);
            (found.flags.contains(&Flag::TooFewRounds), found.interval.1 / found.value)
        };
        assert!(few(&[1.0]).0 && few(&[1.0, 1.0]).0);
        assert_eq!(few(&[1.0, 1.0, 1.0]), (false, 1.0));
        let (is_few, end) = few(&[1.0, 1.2, 1.1]);
        assert!(!is_few && end < 2.0, "{end}");
        let (is_few, end) = few(&[1.0, 1.6, 1.1]);
        assert!(is_few && end > 2.0, "{end}");
        // Three runs leave doubt; ten with the same scatter do not.
        let ten = [1.0, 1.6, 1.1, 1.0, 1.6, 1.1, 1.0, 1.6, 1.1, 1.1];
        assert!(!few(&ten).0, "{:?}", few(&ten));
    }

    #[test]
    fn runs_that_the_clock_cannot_tell_apart_agree() {
        let run = |round, histogram: &[(u64, u64)]| Run { histogram: histogram.to_vec(), ..steady(round, 1.0) };
        let flags = |runs: &[Run]| summary(&latency(), runs).flags;
        // A latency of 65 ns by a clock that counts in tens.
        let (low, high) = ([(60_012, 501), (70_044, 499)], [(60_012, 499), (70_044, 501), (900_000, 1)]);
        assert_eq!(flags(&[run(0, &low), run(1, &high), run(2, &high)]), []);
        // With a finer clock the same medians differ.
        let fine = [(60_012, 501), (61_000, 1), (70_044, 499)];
        assert_eq!(flags(&[run(0, &fine), run(1, &high), run(2, &high)]), [Flag::Noisy, Flag::Drifting]);
        // Two steps are a difference.
        let higher = [(80_032, 1000)];
        assert_eq!(flags(&[run(0, &low), run(1, &higher), run(2, &higher)]), [Flag::Noisy, Flag::Drifting]);
    }

    #[test]
    fn drift_follows_the_rounds_not_the_list() {
        let runs = [steady(2, 1.06), steady(0, 1.0), steady(1, 1.0)];
        let found = summary(&bandwidth(8), &runs);
        assert!((found.drift - 0.06).abs() < 1e-9 && found.flags == [Flag::Drifting], "{}", found.drift);
    }

    #[test]
    fn a_slow_first_segment_is_a_cold_start_where_most_runs_have_it() {
        let cold = |round| {
            let mut run = steady(round, 1.0);
            run.segments[0].1 *= 1.2;
            run
        };
        let found = summary(&latency(), &[cold(0), cold(1), steady(2, 1.0)]);
        assert!((found.warm_up - 0.2).abs() < 1e-9 && found.flags == [Flag::ColdStart], "{:?}", found.flags);
        let found = summary(&latency(), &[cold(0), steady(1, 1.0), steady(2, 1.0)]);
        assert_eq!((found.warm_up, found.flags), (0.0, vec![]));
    }

    #[test]
    fn a_missing_run_and_one_that_came_to_nothing_are_incomplete() {
        let nothing = Run { iterations: 0, seconds: 0.0, segments: vec![], histogram: vec![], ..steady(1, 1.0) };
        let flags = |runs: &[Run]| summarise(&latency(), runs, 4, 0.1, 1).expect("a value").flags;
        let three = [0, 2, 3].map(|round| steady(round, 1.0)).to_vec();
        assert_eq!(flags(&[three.clone(), vec![steady(1, 1.0)]].concat()), []);
        assert_eq!(flags(&three), [Flag::Incomplete]);
        assert_eq!(flags(&[three, vec![nothing.clone()]].concat()), [Flag::Incomplete]);
        assert!(summarise(&latency(), &[nothing], 2, 0.1, 1).is_none());
    }

    #[test]
    fn interference_that_paused_or_left_no_proof_is_said() {
        let stream = Interference { operation: Operation::Read, size: 8 };
        let case = Case { interference: Some(stream), ..latency() };
        let beside = |throughout| Run {
            interference: Some(InterferenceProof {
                stream,
                operations: 100,
                rate: 100.0,
                slices: vec![100],
                slice_ms: 1000.0,
                longest_pause_ms: 10.0,
                throughout,
            }),
            ..steady(0, 1.0)
        };
        let flags = |case: &Case, runs: [Run; 3]| summary(case, &runs).flags;
        assert_eq!(flags(&case, [true, true, true].map(beside)), []);
        assert_eq!(flags(&case, [true, false, true].map(beside)), [Flag::InterferencePaused]);
        assert_eq!(flags(&case, [0, 1, 2].map(|round| steady(round, 1.0))), [Flag::InterferencePaused]);
        assert_eq!(flags(&case.alone(), [0, 1, 2].map(|round| steady(round, 1.0))), []);
    }

    #[test]
    fn a_lost_message_is_said() {
        let runs = [steady(0, 1.0), Run { lost: 1, ..steady(1, 1.0) }, steady(2, 1.0)];
        assert_eq!(summary(&bandwidth(8), &runs).flags, [Flag::Lossy]);
    }

    #[test]
    fn odd_segments_spoil_nothing() {
        let segments = vec![(0, 1.0), (5, 0.0), (5, f64::NAN), (5, f64::INFINITY), (5, 5.0)];
        let odd = Run { segments, ..steady(0, 1.0) };
        let both = [odd, Run { segments: vec![], ..steady(1, 1.0) }];
        for case in [latency(), bandwidth(8), bandwidth(0)] {
            for runs in [&both[..1], &both[1..], &both] {
                summary(&case, runs);
            }
        }
    }

    #[test]
    fn histograms_merge_bucket_by_bucket() {
        let run = |histogram| Run { histogram, ..steady(0, 1.0) };
        assert_eq!(merge(&[run(vec![(1, 2), (5, 1)]), run(vec![(3, 1), (5, 7)])]), [(1, 2), (3, 1), (5, 8)]);
        assert_eq!(merge(&[]), []);
    }
}
