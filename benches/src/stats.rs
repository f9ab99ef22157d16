//! Medians and spreads of a handful of rounds.

use serde::{Deserialize, Serialize};

/// What several rounds gave: the middle one, and the lowest and highest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The middle value, or the mean of the two middle ones.
    pub median: f64,
    /// The lowest value.
    pub min: f64,
    /// The highest value.
    pub max: f64,
    /// How many values there were.
    pub rounds: usize,
}

impl Summary {
    /// None for no values at all. A round without a value is NaN.
    pub fn of(values: &[f64]) -> Option<Summary> {
        let mut sorted: Vec<f64> = values.iter().copied().filter(|value| !value.is_nan()).collect();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) };
        Some(Summary { median, min, max, rounds: sorted.len() })
    }
}

/// The ratio of each round, so that what disturbs a whole round leaves the ratio alone.
pub fn ratios(ours: &[f64], raw: &[f64]) -> Vec<f64> {
    ours.iter().zip(raw).filter(|(_, raw)| **raw > 0.0).map(|(ours, raw)| ours / raw).collect()
}

/// The difference of each round.
pub fn differences(ours: &[f64], raw: &[f64]) -> Vec<f64> {
    ours.iter().zip(raw).map(|(ours, raw)| ours - raw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_holds_the_middle_and_both_ends() {
        let odd = Summary::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max, odd.rounds), (2.0, 1.0, 3.0, 3));
        assert_eq!(Summary::of(&[4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert_eq!(Summary::of(&[f64::NAN, 1.0]).unwrap().rounds, 1);
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn ratios_and_differences_are_taken_round_by_round() {
        assert_eq!(ratios(&[2.0, 30.0], &[1.0, 10.0]), [2.0, 3.0]);
        assert_eq!(differences(&[2.0, 30.0], &[1.0, 10.0]), [1.0, 20.0]);
    }
}
