//! The confidence interval of a case's value: the values that other runs of it would have given, by the bootstrap.
//!
//! Measurements depend on each other at two levels. Iterations of one run share a placement of memory, a clock
//! frequency and a neighbour on the host; another run has others. So runs are drawn first, with replacement, and then
//! each drawn run is drawn anew from its own parts (Davison and Hinkley, *Bootstrap Methods and their Application*,
//! 1997, 3.8, who show that this errs towards wide intervals: the side to err on, since the segments of a run are not
//! independent).
//!
//! * **Bandwidth**: the parts are the run's segments, drawn with replacement. They are long blocks of iterations, so
//!   what depends on each other within one stays together (block bootstrap; Carlstein, Ann. Statist. 14, 1986).
//! * **Latency**: the part is the run's histogram, of which the median is wanted. The median of n draws from n values
//!   is the value whose rank is nearly normal about n/2 with deviation √n/2 (Maritz and Jarrett, JASA 73, 1978), so it
//!   is drawn directly. That takes iterations for independent. The n used is therefore the effective one: divided by
//!   how much more the means of the segments vary than the histogram's own variance explains (batch means; Law,
//!   *Simulation Modeling and Analysis*, 9.5.3), and never below the number of segments. The means themselves are not
//!   drawn: a few iterations that the scheduler stretched a hundredfold move them, and hardly move the median.
//!
//! **Few runs.** With n runs the percentiles of the bootstrap cannot lie outside the smallest and the largest run, and
//! the true median lies outside those in 2^(1-n) of all cases: one in four with three runs. Deviations from the value
//! are therefore stretched by t(n-1)/z · √(n/(n-1)), as Hesterberg's expanded percentile interval does with the levels
//! (*What Teachers Should Know About the Bootstrap*, Am. Stat. 69, 2015), in logarithms, so that nothing becomes
//! negative: 9.2 with two runs, 2.7 with three, 1.6 with five, 1.2 with ten. One run says nothing of the next; its
//! interval is that of its own parts only.

use fastrand::Rng;
use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::case::{Case, Measure};
use crate::results::Run;

/// Resamples: enough that the ends of a 95 % interval, 50 resamples from the edge, are themselves known to a few
/// percent of its width.
const RESAMPLES: usize = 2000;

/// Two-sided 95 % of the normal distribution.
const Z: f64 = 1.959_964;

/// The value of a case, and the values that it could have had as well.
#[derive(Debug, Clone)]
pub struct Bootstrap {
    value: f64,
    unit: f64,
    draws: Vec<f64>,
}

impl Bootstrap {
    /// The bootstrap of these runs; the same for the same seed. None if no run has a value.
    pub fn of(case: &Case, runs: &[Run], seed: u64) -> Option<Bootstrap> {
        let levels: Vec<Level> = usable(case, runs).map(|run| Level::of(case, run)).collect();
        if levels.is_empty() {
            return None;
        }
        let value = median(&mut levels.iter().map(|l| l.value).collect::<Vec<_>>());
        let stretch = stretch(levels.len());
        let mut rng = Rng::with_seed(seed ^ fnv1a(&case.to_string()));
        let mut drawn = vec![0.0; levels.len()];
        let mut draw = || {
            for value in &mut drawn {
                *value = levels[rng.usize(..levels.len())].draw(&mut rng);
            }
            value * ((median(&mut drawn) / value).ln() * stretch).exp()
        };
        let draws = (0..RESAMPLES).map(|_| draw()).collect();
        Some(Bootstrap { value, unit: unit(case), draws })
    }

    /// The value of the case, as [`Summary::value`](crate::results::Summary::value).
    pub fn value(&self) -> f64 {
        self.value * self.unit
    }

    /// Its interval, 95 %; the value lies within.
    pub fn interval(&self) -> (f64, f64) {
        let (low, high) = interval(self.draws.clone(), self.value);
        (low * self.unit, high * self.unit)
    }

    /// The value by that of `base`, which other runs gave, and the interval of that quotient, 95 %: the two differ
    /// significantly where 1 lies outside.
    pub fn ratio_to(&self, base: &Bootstrap) -> (f64, (f64, f64)) {
        // Two runs of one plan have the same seed and so the same random numbers: from the other end, they are others.
        let draws = self.draws.iter().zip(base.draws.iter().rev()).map(|(a, b)| a / b).collect();
        let ratio = self.value / base.value;
        (ratio, interval(draws, ratio))
    }
}

fn interval(mut draws: Vec<f64>, value: f64) -> (f64, f64) {
    draws.sort_by(f64::total_cmp);
    (quantile(&draws, 0.025).min(value), quantile(&draws, 0.975).max(value))
}

/// The factor by which an interval of this number of runs has to be wider than the percentiles of the bootstrap.
fn stretch(runs: usize) -> f64 {
    if runs < 2 {
        return 1.0;
    }
    let freedom = (runs - 1) as f64;
    let distribution = StudentsT::new(0.0, 1.0, freedom).expect("a degree of freedom at least");
    let t = distribution.inverse_cdf(0.975);
    t / Z * (runs as f64 / freedom).sqrt()
}

/// A run, ready to be drawn from. Values in [`unit`]s.
struct Level {
    value: f64,
    parts: Parts,
}

enum Parts {
    /// Numbers of iterations that took at most so many ns, ascending, and the number of them that are independent.
    Iterations { cumulative: Vec<(u64, f64)>, effective: f64 },
    /// Iterations and seconds, and the value of all of them.
    Segments(Vec<(f64, f64)>, f64),
}

impl Level {
    fn of(case: &Case, run: &Run) -> Level {
        let value = value(case, run);
        let parts = match case.measure {
            Measure::Latency => {
                let mut seen = 0;
                let cumulative = run.histogram.iter().map(|&(ps, count)| {
                    seen += count;
                    (seen, ps as f64 / 1000.0)
                });
                Parts::Iterations { cumulative: cumulative.collect(), effective: effective(run) }
            }
            Measure::Bandwidth => {
                let segments: Vec<_> = segments(run).collect();
                let all = quotient(segments.iter());
                Parts::Segments(segments, all)
            }
        };
        Level { value, parts }
    }

    /// A value that the run could have had as well.
    fn draw(&self, rng: &mut Rng) -> f64 {
        match &self.parts {
            Parts::Iterations { cumulative, effective } => {
                let share = 0.5 + normal(rng) / (2.0 * effective.sqrt());
                let total = cumulative.last().map_or(0, |(seen, _)| *seen);
                // Casts from floats saturate; the rank is one of 1 to total.
                let rank = ((share * total as f64).ceil() as u64).clamp(1, total.max(1));
                let at = cumulative.partition_point(|(seen, _)| *seen < rank);
                cumulative.get(at).map_or(self.value, |(_, ns)| *ns)
            }
            Parts::Segments(segments, _) if segments.len() < 2 => self.value,
            Parts::Segments(segments, all) => {
                let drawn = (0..segments.len()).map(|_| &segments[rng.usize(..segments.len())]);
                self.value * quotient(drawn) / all
            }
        }
    }
}

/// Iterations of a latency run that would say as much if they did not depend on each other.
fn effective(run: &Run) -> f64 {
    let iterations: f64 = run.histogram.iter().map(|(_, count)| *count as f64).sum();
    let segments: Vec<_> = segments(run).map(|(iterations, seconds)| (seconds / iterations, 1.0)).collect();
    let buckets = run.histogram.iter().map(|&(ps, count)| (ps as f64, count as f64));
    if segments.len() < 2 {
        return iterations;
    }
    let count = segments.len() as f64;
    // The variance of a sample of `count` is estimated with one degree of freedom less.
    let between = relative_variance(segments.into_iter()) * count / (count - 1.0);
    let within = relative_variance(buckets);
    if within == 0.0 {
        return iterations;
    }
    let inflation = between / within * (iterations / count);
    (iterations / inflation.max(1.0)).max(count).min(iterations)
}

/// The variance of weighted values as a share of their squared mean.
fn relative_variance(values: impl Iterator<Item = (f64, f64)> + Clone) -> f64 {
    let weight: f64 = values.clone().map(|(_, weight)| weight).sum();
    let mean = values.clone().map(|(value, weight)| value * weight).sum::<f64>() / weight;
    values.map(|(value, weight)| weight * (value / mean - 1.0).powi(2)).sum::<f64>() / weight
}

/// The unit of a case's value: bytes of a message (bandwidth, where a run's value is messages per second in here, so
/// that messages of 0 bytes have one too), or 1 (latency, in ns).
pub(super) fn unit(case: &Case) -> f64 {
    match case.measure {
        Measure::Latency => 1.0,
        Measure::Bandwidth => case.size as f64,
    }
}

/// The value of a run in [`unit`]s.
pub(super) fn value(case: &Case, run: &Run) -> f64 {
    match case.measure {
        Measure::Latency => run.percentile(0.5),
        Measure::Bandwidth => run.iterations as f64 / run.seconds,
    }
}

/// The runs that have a value.
pub(super) fn usable<'a>(case: &Case, runs: &'a [Run]) -> impl Iterator<Item = &'a Run> {
    runs.iter().filter(move |run| {
        let value = value(case, run);
        value.is_finite() && value > 0.0
    })
}

/// The segments of a run that have a speed: iterations and seconds.
pub(super) fn segments(run: &Run) -> impl Iterator<Item = (f64, f64)> {
    let all = run.segments.iter().map(|&(iterations, seconds)| (iterations as f64, seconds));
    all.filter(|(iterations, seconds)| *iterations > 0.0 && *seconds > 0.0 && seconds.is_finite())
}

fn quotient<'a>(parts: impl Iterator<Item = &'a (f64, f64)>) -> f64 {
    let (iterations, seconds) = parts.fold((0.0, 0.0), |(i, s), part| (i + part.0, s + part.1));
    iterations / seconds
}

/// Sorts the values; their median: of an even number the mean of the two in the middle, NaN without values.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    quantile(values, 0.5)
}

/// The value below which this share of sorted values lies, between two neighbours in proportion; NaN without values.
pub(super) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = share * last as f64;
    let below = place.floor() as usize;
    let (low, high) = (sorted[below.min(last)], sorted[(below + 1).min(last)]);
    low + (high - low) * (place - below as f64)
}

/// Normally distributed: mean 0, variance 1 (Box and Muller, 1958).
pub(super) fn normal(rng: &mut Rng) -> f64 {
    // In (0, 1]: the logarithm of 0 is none.
    let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.f64()).cos()
}

/// The FNV-1a hash of a text: the same in every build and on every machine, as std's hashers are not.
fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::super::synthetic::{Machine, bandwidth, latency};
    use super::*;

    /// The share of 200 experiments on such a machine whose interval holds the truth.
    fn coverage(case: Case, runs: u32, machine: Machine) -> f64 {
        let mut rng = Rng::with_seed(7);
        let held = (0..200).filter(|_| {
            let runs: Vec<_> = (0..runs).map(|round| machine.run(&case, round, &mut rng)).collect();
            let (low, high) = Bootstrap::of(&case, &runs, 1).expect("an interval").interval();
            assert!(low.is_finite() && high.is_finite() && 0.0 < low && low <= high, "{low} {high}");
            (low..=high).contains(&machine.truth)
        });
        held.count() as f64 / 200.0
    }

    #[test]
    fn intervals_hold_the_truth_whatever_varies_and_however_few_runs_there_are() {
        let quiet = Machine { truth: 1e4, between: 0.0, within: 0.2, memory: 0.0 };
        for case in [latency(), bandwidth(1)] {
            for (runs, between) in [(2, 0.05), (3, 0.05), (5, 0.05), (7, 0.05), (10, 0.3), (1, 0.0), (5, 0.0)] {
                let share = coverage(case, runs, Machine { between, ..quiet });
                assert!(share >= 0.9, "{case}, {runs} runs, {between}: {share}");
            }
        }
    }

    #[test]
    fn iterations_that_depend_on_each_other_count_for_less() {
        let machine = Machine { truth: 1e4, between: 0.0, within: 0.2, memory: 0.95 };
        let share = coverage(latency(), 1, machine);
        assert!(share >= 0.9, "{share}");
        let mut rng = Rng::with_seed(3);
        let dependent = effective(&machine.run(&latency(), 0, &mut rng));
        let independent = effective(&Machine { memory: 0.0, ..machine }.run(&latency(), 0, &mut rng));
        assert!(dependent < 400.0 && independent > 800.0, "{dependent} {independent}");
    }

    #[test]
    fn intervals_are_no_wider_than_they_need_to_be() {
        let machine = Machine { truth: 1e4, between: 0.02, within: 0.2, memory: 0.0 };
        let mut rng = Rng::with_seed(5);
        let runs: Vec<_> = (0..10).map(|round| machine.run(&latency(), round, &mut rng)).collect();
        let (low, high) = Bootstrap::of(&latency(), &runs, 1).expect("an interval").interval();
        // The median of ten has a deviation of 1.25 · 2 % / √10: ± 1.6 %.
        assert!((0.01..0.06).contains(&((high - low) / 1e4)), "{low} to {high}");
    }

    #[test]
    fn a_difference_is_significant_where_it_is_there() {
        let machine = Machine { truth: 1e4, between: 0.03, within: 0.2, memory: 0.0 };
        let mut rng = Rng::with_seed(11);
        let mut quotient = |factor: f64| {
            let mut one = |truth| -> Bootstrap {
                let machine = Machine { truth, ..machine };
                let runs: Vec<_> = (0..5).map(|round| machine.run(&latency(), round, &mut rng)).collect();
                Bootstrap::of(&latency(), &runs, 1).expect("a value")
            };
            let (a, b) = (one(1e4 * factor), one(1e4));
            a.ratio_to(&b).1
        };
        let same = (0..200).map(|_| quotient(1.0)).filter(|(low, high)| (*low..=*high).contains(&1.0)).count();
        assert!(same >= 180, "{same} of 200");
        assert!((0..50).all(|_| quotient(1.5).0 > 1.0));
        assert!((0..50).all(|_| quotient(0.5).1 < 1.0));
        // The random numbers of two runs with one seed are the same; their draws must not go together for that.
        let runs: Vec<_> = (0..5).map(|round| machine.run(&latency(), round, &mut rng)).collect();
        let one = Bootstrap::of(&latency(), &runs, 1).expect("a value");
        let (ratio, (low, high)) = one.ratio_to(&one.clone());
        assert!(ratio == 1.0 && low < 0.99 && 1.01 < high, "{low} to {high}");
    }

    #[test]
    fn the_same_seed_gives_the_same_interval_and_another_case_other_numbers() {
        let machine = Machine { truth: 1e4, between: 0.05, within: 0.2, memory: 0.0 };
        let runs: Vec<_> = (0..5).map(|round| machine.run(&bandwidth(1), round, &mut Rng::with_seed(2))).collect();
        let of = |case: Case, seed| Bootstrap::of(&case, &runs, seed).expect("a value");
        assert_eq!(of(bandwidth(1), 1).draws, of(bandwidth(1), 1).draws);
        assert_ne!(of(bandwidth(1), 1).draws, of(bandwidth(1), 2).draws);
        assert_ne!(of(bandwidth(1), 1).draws, of(bandwidth(2), 1).draws);
        // A seed must give tomorrow what it gives today; the test vector is that of the hash's authors.
        assert_eq!(fnv1a("foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn nothing_without_a_value_has_an_interval() {
        let empty =
            Run { seconds: 0.0, histogram: vec![], ..Machine::default().run(&latency(), 0, &mut Rng::with_seed(1)) };
        assert!(Bootstrap::of(&latency(), &[], 1).is_none());
        assert!(Bootstrap::of(&latency(), std::slice::from_ref(&empty), 1).is_none());
        assert!(Bootstrap::of(&bandwidth(8), &[empty], 1).is_none());
    }

    #[test]
    fn the_stretch_falls_from_that_of_two_runs_towards_none() {
        let stretches: Vec<_> = (2..100).map(stretch).collect();
        assert!(stretches.is_sorted_by(|a, b| a > b), "{stretches:?}");
        assert!((stretches[0] - 9.17).abs() < 0.01 && stretches[97] < 1.02, "{stretches:?}");
        assert_eq!(stretch(1), 1.0);
    }

    #[test]
    fn the_stretch_is_by_the_t_of_the_textbook() {
        // Two-sided 95 %, by degrees of freedom.
        for (freedom, t) in [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (10, 2.228), (30, 2.042)] {
            let runs = freedom + 1;
            let expected = t / Z * (f64::from(runs) / f64::from(freedom)).sqrt();
            let found = stretch(runs as usize);
            assert!((found / expected - 1.0).abs() < 5e-4, "{runs} runs: {found}, not {expected}");
        }
    }

    #[test]
    fn quantiles_lie_between_neighbours() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0]), 2.5);
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.25), 2.0);
        assert_eq!((quantile(&[1.0, 2.0], 0.0), quantile(&[1.0, 2.0], 1.0)), (1.0, 2.0));
        assert!(quantile(&[], 0.5).is_nan());
    }
}
