//! The comparison of two measured cases: the ratio of their values, its interval, and the probability that it is
//! chance.
//!
//! *Interval.* That of [`Bootstrap::ratio_to`], which draws runs, then their parts, and is stretched for few runs.
//!
//! *Chance.* Among hundreds of pairs some lie outside their intervals by chance alone, so each needs a p-value that can
//! be corrected for their number, and that knows how few the runs are. The unit is the run: what lies within one shares
//! its moment, its neighbours and its page frames. A permutation test of three against three runs cannot go below 2/20,
//! and one of five against five not below 2/252, far above what Holm's correction asks of hundreds of pairs; a
//! bootstrap of three values has ten different outcomes. So it is Welch's t test of the logarithms of the runs' values:
//! it assumes that they scatter about evenly around their mean, and pays for the few runs with the wide tails of its
//! distribution. One run that is far off widens the scatter and makes the test more careful, not less. Three runs on
//! each side are the least it takes.

use statrs::distribution::{ContinuousCDF, StudentsT};
use vervain_bench::results::CaseResult;
use vervain_bench::stats::{Bootstrap, LEAST_RUNS};

/// The values of runs are known to three digits (the histogram's buckets), so three equal ones do not mean that there
/// is no scatter: the least that is assumed, as a share.
const RESOLUTION: f64 = 5e-4;

/// One value divided by another, with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    /// The second value divided by the first.
    pub value: f64,
    /// Lower and upper end.
    pub interval: (f64, f64),
}

/// The values of the runs of a case that can be reckoned with: above zero and finite.
pub fn run_values(result: &CaseResult) -> Vec<f64> {
    let values = result.runs.iter().map(|run| run.value(&result.case));
    values.filter(|value| value.is_finite() && *value > 0.0).collect()
}

/// The second case's value as a multiple of the first's; None if one has no run. The same seed gives the same interval.
pub fn ratio(first: &CaseResult, second: &CaseResult, seed: u64) -> Option<Ratio> {
    let [first, second] = [first, second].map(|result| Bootstrap::of(&result.case, &result.runs, seed));
    let (value, interval) = second?.ratio_to(&first?);
    Some(Ratio { value, interval })
}

/// The probability that two sets of values that differ this much come from chance alone: Welch's t test, two-sided, of
/// their logarithms. None with fewer than [`LEAST_RUNS`] on one side.
pub fn chance(first: &[f64], second: &[f64]) -> Option<f64> {
    if first.len().min(second.len()) < LEAST_RUNS {
        return None;
    }
    let [first, second] = [first, second].map(|values| {
        let n = values.len() as f64;
        let mean = values.iter().map(|v| v.ln()).sum::<f64>() / n;
        let variance = values.iter().map(|v| (v.ln() - mean).powi(2)).sum::<f64>() / (n - 1.0);
        (mean, variance.max(RESOLUTION.powi(2)) / n, n)
    });
    let error = first.1 + second.1;
    let t = (second.0 - first.0) / error.sqrt();
    // Welch and Satterthwaite's degrees of freedom.
    let freedom = error.powi(2) / (first.1.powi(2) / (first.2 - 1.0) + second.1.powi(2) / (second.2 - 1.0));
    let distribution = StudentsT::new(0.0, 1.0, freedom).ok()?;
    Some((2.0 * distribution.cdf(-t.abs())).min(1.0))
}

/// Holm's correction: p-values that may be held against 5 % though there are many of them, in the same order. The
/// chance that even one of those below 5 % is a false alarm is then below 5 %.
pub fn holm(chances: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..chances.len()).collect();
    order.sort_by(|a, b| chances[*a].total_cmp(&chances[*b]));
    let mut corrected = vec![0.0; chances.len()];
    let mut least: f64 = 0.0;
    for (rank, index) in order.into_iter().enumerate() {
        least = least.max(chances[index] * (chances.len() - rank) as f64).min(1.0);
        corrected[index] = least;
    }
    corrected
}

#[cfg(test)]
mod tests {
    use super::*;
    use vervain_bench::sample::{bandwidth, write_case};

    #[test]
    fn chance_agrees_with_the_textbook() {
        // t = 2.236 with 4 degrees of freedom: p = 0.0890 (R: t.test of the same logarithms).
        let logs = |values: [f64; 3]| values.map(f64::exp);
        let p = chance(&logs([1.0, 2.0, 3.0]), &logs([2.825_742, 3.825_742, 4.825_742])).expect("three runs");
        assert!((p - 0.0890).abs() < 1e-3, "{p}");
        assert_eq!(chance(&[1.0, 1.0], &[2.0, 2.0, 2.0]), None);
    }

    #[test]
    fn equal_values_leave_the_scatter_of_their_digits() {
        assert!(chance(&[100.0; 3], &[100.05; 3]).expect("runs") > 0.05);
        assert!(chance(&[100.0; 3], &[101.0; 3]).expect("runs") < 0.001);
    }

    #[test]
    fn holm_multiplies_the_smallest_by_all_and_never_falls() {
        assert_eq!(holm(&[0.04, 0.01, 0.03, 0.5]), [0.09, 0.04, 0.09, 0.5]);
        assert_eq!(holm(&[]), [0.0; 0]);
    }

    #[test]
    fn a_ratio_lies_in_its_interval_and_repeats() {
        let one = bandwidth(write_case(4096), &[1.0e9, 1.1e9, 0.9e9]);
        let two = bandwidth(write_case(4096), &[2.0e9, 2.2e9, 1.8e9]);
        let found = ratio(&one, &two, 7).expect("runs");
        assert!((found.value - 2.0).abs() < 0.02, "{found:?}");
        assert!(found.interval.0 < 2.0 && found.interval.1 > 2.0, "{found:?}");
        assert!(found.interval.0 > 1.0 && found.interval.1 < 4.0, "{found:?}");
        assert_eq!(ratio(&one, &two, 7), Some(found));
        assert_eq!(ratio(&one, &bandwidth(write_case(4096), &[]), 7), None);
    }
}
