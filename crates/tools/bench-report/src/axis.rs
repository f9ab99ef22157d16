//! Axes: which range they cover, where their ticks are, and what stands there. A logarithmic axis is drawn in the space
//! of the logarithm, so a chart sees straight lines only.

use vervain_bench::case::bytes;
use vervain_bench::number::tick;

/// How values lie along an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spacing {
    /// Evenly, from zero on.
    Linear,
    /// By powers of ten.
    Decades,
    /// By powers of two, counted.
    Powers,
    /// By powers of two, in bytes.
    Bytes,
    /// Categories 0, 1, ... at the middle of each.
    Names,
}

/// One axis, ready to draw.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    spacing: Spacing,
    /// Both ends, in the space it is drawn in.
    pub range: (f64, f64),
    /// In the same space.
    pub ticks: Vec<f64>,
}

/// Labels of sizes are wide, so that more of them would touch.
const MOST_X_TICKS: i32 = 8;

impl Axis {
    /// An axis that all the values fit on. Those that are not finite, or not above zero where a logarithm is taken, do
    /// not count.
    pub fn over(values: impl IntoIterator<Item = f64>, spacing: Spacing) -> Self {
        let positive = spacing != Spacing::Linear;
        let values: Vec<f64> = values.into_iter().filter(|v| v.is_finite() && (!positive || *v > 0.0)).collect();
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (low, high) = if values.is_empty() { (1.0, 1.0) } else { (low, high) };
        match spacing {
            Spacing::Linear => linear(low.min(0.0), high),
            Spacing::Decades => decades(low, high),
            Spacing::Powers | Spacing::Bytes => powers(low, high, spacing),
            Spacing::Names => Self::names(1),
        }
    }

    /// An axis of so many categories.
    pub fn names(count: usize) -> Self {
        let ticks = (0..count).map(|i| i as f64 + 0.5).collect();
        Self { spacing: Spacing::Names, range: (0.0, count.max(1) as f64), ticks }
    }

    /// The place of a value, in the space it is drawn in; held within the range.
    pub fn at(&self, value: f64) -> f64 {
        let place = match self.spacing {
            Spacing::Linear => value,
            Spacing::Names => value + 0.5,
            Spacing::Decades => value.max(f64::MIN_POSITIVE).log10(),
            Spacing::Powers | Spacing::Bytes => value.max(f64::MIN_POSITIVE).log2(),
        };
        place.clamp(self.range.0, self.range.1)
    }

    /// The value at a place.
    fn value(&self, place: f64) -> f64 {
        match self.spacing {
            Spacing::Linear | Spacing::Names => place,
            Spacing::Decades => 10_f64.powf(place),
            Spacing::Powers | Spacing::Bytes => place.exp2(),
        }
    }

    /// The text at a tick. Categories have their own words.
    pub fn label(&self, place: f64) -> String {
        match self.spacing {
            Spacing::Bytes => bytes(self.value(place).round() as u64),
            _ => tick(self.value(place)),
        }
    }

    /// Returns true if a value is within the range.
    pub fn covers(&self, value: f64) -> bool {
        value.is_finite() && value <= self.value(self.range.1) * 1.000_001
    }

    /// This stretch of paper for values that are `factor` times these.
    pub fn times(&self, factor: f64) -> Self {
        match self.spacing {
            Spacing::Linear => {
                let mut axis = linear(self.range.0 * factor, self.range.1 * factor);
                axis.range = (self.range.0 * factor, self.range.1 * factor);
                axis.ticks.retain(|t| *t <= axis.range.1);
                axis
            }
            _ => {
                let ends = [self.range.0, self.range.1].map(|end| end + factor.log10());
                let mut axis = decades(10_f64.powf(ends[0]), 10_f64.powf(ends[1]));
                axis.range = (ends[0], ends[1]);
                axis.ticks.retain(|t| (ends[0]..=ends[1]).contains(t));
                axis
            }
        }
    }
}

/// From zero to a round number above the largest, in steps of 1, 2 or 5.
fn linear(low: f64, high: f64) -> Axis {
    let span = if high > low { high - low } else { 1.0 };
    let rough = span / 5.0;
    let decade = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|s| s * decade).into_iter().find(|s| *s >= rough * 0.999).unwrap_or(rough);
    let (first, last) = ((low / step).floor(), ((low + span) / step - 1e-9).ceil());
    let ticks = (first as i64..=last as i64).map(|i| i as f64 * step).collect();
    Axis { spacing: Spacing::Linear, range: (first * step, last * step), ticks }
}

/// Whole decades if there are three or more of them, else 1, 2, 5.
fn decades(low: f64, high: f64) -> Axis {
    let (low, high) = (low.log10(), high.log10());
    let steps: &[f64] = if high - low < 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let every = (((high - low) / 7.0).ceil() as usize).max(1);
    let places: Vec<f64> = (low.floor() as i32..=high.ceil() as i32)
        .step_by(every)
        .flat_map(|decade| steps.iter().map(move |step| f64::from(decade) + step.log10()))
        .collect();
    let first = places.iter().copied().rfind(|p| *p <= low + 1e-9).unwrap_or(low);
    // The last of whole decades would mostly be empty: the axis ends at 2 or 5.
    let ends = |place: &f64| [0.0, 2_f64.log10(), 5_f64.log10(), 1.0].map(|part| place + part);
    let last = places.iter().flat_map(ends).find(|p| *p >= high - 1e-9).unwrap_or(high);
    let last = if last > first { last } else { first + 1.0 };
    let ticks = places.into_iter().filter(|p| (first - 1e-9..=last + 1e-9).contains(p)).collect();
    Axis { spacing: Spacing::Decades, range: (first, last), ticks }
}

/// Powers of two, in steps that end at the largest where such a step gives few enough ticks.
fn powers(low: f64, high: f64, spacing: Spacing) -> Axis {
    let (low, high) = (low.log2().floor() as i32, high.log2().ceil() as i32);
    // Two decimals more than one size: a single point stands in the middle.
    let (low, high) = if low == high { (low - 1, high + 1) } else { (low, high) };
    let fits = |step: &i32| (high - low) / step < MOST_X_TICKS;
    let even = (1..=high - low).filter(fits).find(|step| (high - low) % step == 0 && (high - low) / step >= 4);
    let step = even.or_else(|| (1..=high - low).find(fits)).unwrap_or(1);
    let ticks = (low..=high).step_by(step as usize).map(f64::from).collect();
    Axis { spacing, range: (f64::from(low), f64::from(high)), ticks }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<String> {
        axis.ticks.iter().map(|t| axis.label(*t)).collect()
    }

    #[test]
    fn sizes_from_8_bytes_to_8_mib_end_in_a_tick() {
        let axis = Axis::over([8.0, 8_388_608.0], Spacing::Bytes);
        assert_eq!(labels(&axis), ["8 B", "128 B", "2 KiB", "32 KiB", "512 KiB", "8 MiB"]);
        assert_eq!(labels(&Axis::over([8.0], Spacing::Bytes)), ["4 B", "8 B", "16 B"]);
        assert_eq!(labels(&Axis::over([1.0, 512.0], Spacing::Powers)), ["1", "4", "16", "64", "256"]);
    }

    #[test]
    fn a_linear_axis_begins_at_zero_and_ends_round() {
        let axis = Axis::over([300.0, 11_800.0], Spacing::Linear);
        assert_eq!(labels(&axis), ["0", "5,000", "10,000", "15,000"]);
        assert_eq!(labels(&Axis::over([0.2], Spacing::Linear)), ["0", "0.05", "0.1", "0.15", "0.2"]);
    }

    #[test]
    fn decades_get_steps_between_where_there_are_few() {
        assert_eq!(
            labels(&Axis::over([3.0, 900.0], Spacing::Decades)),
            ["2", "5", "10", "20", "50", "100", "200", "500", "1,000"]
        );
        assert_eq!(labels(&Axis::over([12.0, 11_800.0], Spacing::Decades)), ["10", "100", "1,000", "10,000"]);
        assert_eq!(Axis::over([12.0, 11_800.0], Spacing::Decades).range.1, 20_000_f64.log10());
        assert_eq!(Axis::over([12.0, 99_000.0], Spacing::Decades).range.1, 5.0);
    }

    #[test]
    fn nothing_and_nonsense_still_make_an_axis() {
        for spacing in [Spacing::Linear, Spacing::Decades, Spacing::Powers, Spacing::Bytes] {
            for values in [vec![], vec![f64::NAN], vec![0.0], vec![1e-30, 1e30], vec![5.0, 5.0]] {
                let axis = Axis::over(values.clone(), spacing);
                assert!(axis.range.0 < axis.range.1 && !axis.ticks.is_empty(), "{spacing:?} {values:?} {axis:?}");
                assert!(axis.ticks.len() < 100, "{spacing:?} {values:?} {}", axis.ticks.len());
            }
        }
    }

    #[test]
    fn a_second_scale_covers_the_same_paper() {
        let axis = Axis::over([80.0], Spacing::Linear).times(1.0 / 8.0);
        assert_eq!(axis.range, (0.0, 10.0));
        assert_eq!(labels(&axis), ["0", "2", "4", "6", "8", "10"]);
        let axis = Axis::over([8.0, 8000.0], Spacing::Decades).times(0.125);
        assert_eq!(labels(&axis), ["1", "10", "100", "1,000"]);
    }
}
