//! The keys of a block that say how its cases are measured, apart from those that say which cases there are.

use std::time::Duration;

use humantime::format_duration;

use super::Settings;
use super::block::DEPTH;
use super::error::Mistakes;
use super::quantity::{Quantity, SIZE};
use super::read::{Field, Item, Node};
use crate::case::{Interface, Measure};

const ITERATIONS: Quantity = Quantity::count(1, 1_000_000_000);
const WARM_UP: Quantity = Quantity::count(0, 1_000_000_000);
const INLINE: Quantity = Quantity { least: 0, most: 4096, is_size: true };
const HOUR: Duration = Duration::from_secs(3600);

const AT_LEAST_DEFAULT: Duration = Duration::from_millis(20);
const AT_MOST_DEFAULT: Duration = Duration::from_millis(300);
const SIGNAL_DEFAULT: u64 = 100;
/// IMB-MPI1's OVERALL_VOL, 40 MBytes.
const VOLUME_DEFAULT: u64 = 40 << 20;

/// P1's iterations; of ranks' latency IMB-MPI1's, its MSGSPERSAMPLE.
fn iterations_default(measure: Measure, interface: Interface) -> u64 {
    match measure {
        Measure::Latency if interface.has_ranks() => 1000,
        Measure::Latency => 2000,
        Measure::Bandwidth => 5000,
    }
}

fn warm_up_default(measure: Measure, interface: Interface) -> u64 {
    match measure {
        _ if interface.has_ranks() => 4,
        Measure::Latency => 200,
        Measure::Bandwidth => 256,
    }
}

/// What a table has of [`Settings`].
#[derive(Default)]
pub(super) struct SettingKeys {
    iterations: Field<Item<u64>>,
    full_iterations: Field<Item<u64>>,
    only_full: Field<Item<bool>>,
    warm_up: Field<Item<u64>>,
    at_least: Field<Item<Duration>>,
    at_most: Field<Item<Duration>>,
    pub inline: Field<Item<Option<u32>>>,
    signal_every: Field<Item<u64>>,
    pub volume: Field<Item<u64>>,
}

impl SettingKeys {
    /// Reads the key `name`. False: it is none of these.
    pub fn read(&mut self, name: &str, value: &Node<'_, '_>, mistakes: &mut Mistakes<'_>) -> bool {
        match name {
            "only_full" => self.only_full = value.one(mistakes, Node::flag),
            "full_iterations" => self.full_iterations = value.one(mistakes, |v| v.count(ITERATIONS)),
            "iterations" => self.iterations = value.one(mistakes, |v| v.count(ITERATIONS)),
            "warm_up" => self.warm_up = value.one(mistakes, |v| v.count(WARM_UP)),
            "at_least" => self.at_least = value.one(mistakes, |v| v.duration(Duration::ZERO, HOUR)),
            "at_most" => self.at_most = value.one(mistakes, |v| v.duration(Duration::from_millis(1), HOUR)),
            "inline" => self.inline = value.one(mistakes, |v| v.inline(INLINE)),
            "signal_every" => self.signal_every = value.one(mistakes, |v| v.count(DEPTH)),
            "volume" => self.volume = value.one(mistakes, |v| v.size(SIZE)),
            _ => return false,
        }
        true
    }

    /// Notes times of which the least is above the most. `d` are those of `[defaults]`.
    pub fn check_times(&self, d: &Self, mistakes: &mut Mistakes<'_>) {
        let (least, most) = (self.at_least.or(&d.at_least), self.at_most.or(&d.at_most));
        if matches!(least, Field::Wrong) || matches!(most, Field::Wrong) {
            return;
        }
        let least_time = *least.value().unwrap_or(&AT_LEAST_DEFAULT);
        let most_time = *most.value().unwrap_or(&AT_MOST_DEFAULT);
        if least_time <= most_time {
            return;
        }
        // The mistake is where the block has its say, or the file.
        let most_is_wrong = self.at_least.is_absent() && !self.at_most.is_absent() || least.is_absent();
        let (item, bound, found) = match most_is_wrong {
            true => (most, format!("at least {}, which is at_least", format_duration(least_time)), most_time),
            false => (least, format!("at most {}, which is at_most", format_duration(most_time)), least_time),
        };
        if let Field::Is(item) = item {
            let what = format!("expected {bound} here, found {}", format_duration(found));
            mistakes.add(item.span.clone(), &item.key, what);
        }
    }

    /// The settings of a case: of these keys, else of `d`, those of `[defaults]`, else the usual ones.
    pub fn settings(&self, d: &Self, measure: Measure, interface: Interface, depth: u32) -> Settings {
        fn given<T: Copy>(own: &Field<Item<T>>, d: &Field<Item<T>>, default: T) -> T {
            *own.or(d).value().unwrap_or(&default)
        }
        Settings {
            iterations: given(&self.iterations, &d.iterations, iterations_default(measure, interface)),
            full_iterations: self.full_iterations.or(&d.full_iterations).value().copied(),
            only_full: given(&self.only_full, &d.only_full, false),
            warm_up: given(&self.warm_up, &d.warm_up, warm_up_default(measure, interface)),
            at_least: given(&self.at_least, &d.at_least, AT_LEAST_DEFAULT),
            at_most: given(&self.at_most, &d.at_most, AT_MOST_DEFAULT),
            inline: given(&self.inline, &d.inline, None),
            signal_every: given(&self.signal_every, &d.signal_every, SIGNAL_DEFAULT).min(u64::from(depth)) as u32,
            volume: given(&self.volume, &d.volume, VOLUME_DEFAULT),
        }
    }
}
