//! The record of the latency of each iteration while a worker measures.

use hdrhistogram::Histogram;

/// The largest latency that is distinguished from larger ones: 100 s, in picoseconds.
const LONGEST: u64 = 100 * 1_000_000_000_000;

/// An HDR histogram of picoseconds: three digits, from 1 ps to 100 s; what lies outside counts as the nearest of the
/// two.
///
/// Its 300 KiB or so are allocated and touched when it is made, so that recording neither allocates nor has a page
/// fault: it is done between two iterations that are timed.
pub struct Recorder {
    histogram: Histogram<u64>,
}

impl Recorder {
    /// An empty one.
    pub fn new() -> Self {
        let mut histogram = Histogram::new_with_bounds(1, LONGEST, 3).expect("1 to 10^14 in three digits");
        // The kernel gives zeroed pages when they are first written. 512 counters fill a page, and no more than 1024
        // of them lie between a value and its double.
        let mut value = 1;
        while value < LONGEST {
            histogram.saturating_record(value);
            value += value.div_ceil(8);
        }
        histogram.reset();
        Self { histogram }
    }

    /// Counts one iteration that took `ps` picoseconds.
    #[inline]
    pub fn record(&mut self, ps: u64) {
        self.histogram.saturating_record(ps);
    }

    /// The buckets that are not empty, ascending: the value in the middle of each, in ps, and its count. They are the
    /// form of [`Run::histogram`](crate::results::Run::histogram).
    pub fn into_buckets(self) -> Vec<(u64, u64)> {
        let middle = |value| self.histogram.median_equivalent(value);
        self.histogram.iter_recorded().map(|v| (middle(v.value_iterated_to()), v.count_at_value())).collect()
    }
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_recorder_is_empty() {
        assert_eq!(Recorder::new().into_buckets(), []);
    }

    #[test]
    fn values_come_back_within_a_thousandth_and_in_order() {
        let values = [1, 999, 1_234_567, 47_000_000, 8_000_000_000_000];
        let mut recorder = Recorder::new();
        for &value in values.iter().rev() {
            recorder.record(value);
            recorder.record(value);
        }
        let buckets = recorder.into_buckets();
        assert_eq!(buckets.len(), values.len());
        for ((found, count), value) in buckets.into_iter().zip(values) {
            assert_eq!(count, 2);
            assert!(found.abs_diff(value) * 1000 <= value, "{value} came back as {found}");
        }
    }

    #[test]
    fn nothing_is_too_short_or_too_long_to_be_counted() {
        let mut recorder = Recorder::new();
        for ps in [0, 1, LONGEST, LONGEST * 2, u64::MAX] {
            recorder.record(ps);
        }
        let buckets = recorder.into_buckets();
        assert_eq!(buckets.iter().map(|(_, count)| count).sum::<u64>(), 5);
        assert!(buckets.last().is_some_and(|(ps, count)| ps.abs_diff(LONGEST) * 1000 <= LONGEST && *count == 3));
    }
}
