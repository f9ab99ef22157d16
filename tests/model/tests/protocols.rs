//! What the protocols between processes promise, whoever goes on at each step and whatever each load sees. `make soak` goes on
//! with other seeds; `make soak SEED=n` runs one.

use std::ops::Range;
use std::time::{Duration, Instant};

/// Seeds of each model in an ordinary test run.
const SEEDS: Range<u64> = 0..100;
/// Where `make soak` begins and how long it runs, unless it is told.
const SOAK_FROM: u64 = 10_000;
const SOAK_SECONDS: u64 = 600;

macro_rules! models {
    ($($module:ident::$name:ident,)*) => {
        $(#[test]
        fn $name() {
            vervain_model::$module::$name(SEEDS);
        })*

        const ALL: &[fn(Range<u64>)] = &[$(vervain_model::$module::$name),*];
    };
}

models! {
    gate::nobody_touches_memory_whose_key_was_revoked,
    gate::each_initiator_is_waited_for,
    gate::a_name_moves_on_after_the_access,
    gate::nobody_is_inside_after_the_state_was_closed,
    gate::nobody_is_inside_after_the_lane_was_shut,
    gate::nobody_is_inside_during_a_pause,
    gate::what_counts_for_the_initiator_is_found_by_who_cuts_it_off,
    gate::what_was_delivered_lies_in_memory_whose_key_was_revoked,
    rings::a_watched_ring_loses_nothing,
    rings::a_quiet_ring_loses_nothing,
    rings::rings_that_change_places_lose_nothing,
    rings::rings_with_one_ready_bit_lose_nothing,
    rings::a_watched_lane_loses_nothing,
    rings::a_quiet_lane_loses_nothing,
    rings::a_watched_queue_of_a_connected_qp_loses_nothing,
    rings::a_quiet_queue_of_a_connected_qp_loses_nothing,
    rings::an_answer_is_found_behind_its_message,
    notify::who_asks_and_polls_is_woken,
    notify::who_polls_and_asks_is_woken,
    notify::who_polls_for_long_and_asks_is_woken,
    notify::who_asks_for_solicited_completions_is_woken,
    notify::who_asks_anew_is_woken,
    notify::one_that_stands_still_is_stood_in_for,
    receives::each_receive_is_claimed_once,
    receives::each_receive_of_two_rings_is_claimed_once,
    receives::entries_of_the_last_lap_are_told_from_new_ones,
    receives::what_the_dead_have_claimed_is_found,
    receives::what_the_dead_have_claimed_is_known_a_lap_later,
    receives::what_the_dead_have_claimed_is_posted_again,
}

/// A number in the environment.
fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty())?;
    Some(value.parse().unwrap_or_else(|e| panic!("{name}={value}: {e}")))
}

/// `make soak`.
#[test]
#[ignore = "runs for long; make soak"]
fn soak() {
    let (start, mut seed) = (Instant::now(), setting("VERVAIN_SOAK_FROM").unwrap_or(SOAK_FROM));
    let time = Duration::from_secs(setting("VERVAIN_SOAK_SECONDS").unwrap_or(SOAK_SECONDS));
    if let Some(only) = setting("VERVAIN_SEED") {
        ALL.iter().for_each(|model| model(only..only + 1));
        return;
    }
    while start.elapsed() < time {
        ALL.iter().for_each(|model| model(seed..seed + 10));
        seed += 10;
    }
    println!("seeds below {seed}");
}
