//! Fetch and add by two processes at once, in memory of a third that merely allocated it, beside the CPU's own.

use anyhow::Result;

use crate::between::raw;
use crate::process::number;
use crate::report::{Row, Rows, Section, Target, Unit};
use crate::rounds::{single, together};
use crate::setup::Setup;

/// The bounds, in millions a second, both initiators together.
const ONE_WORD_AT_LEAST: f64 = 8.0;
const DISTINCT_AT_LEAST: f64 = 20.0;
const SECONDS: &str = "0.3";

/// One word and two.
pub fn section(setup: &Setup) -> Section {
    Section::new(
        "Three processes: two fetch and add at once in the third's memory",
        "The owner allocated the memory by posix_memalign and sleeps; lists of 16 requests, each signalled and polled\n\
         for; the sum is checked. Beside it: lock xadd of two processes in memory that both map.",
        rows(setup),
    )
}

fn rows(setup: &Setup) -> Result<Rows> {
    let columns = together(
        setup.rounds,
        [
            single(|| contended(setup, "one-word")),
            single(|| raw(setup, "memory", &["xadd", "one", SECONDS])),
            single(|| contended(setup, "distinct-words")),
            single(|| raw(setup, "memory", &["xadd", "distinct", SECONDS])),
        ],
    )?;
    let [one, raw_one, distinct, raw_distinct] = &columns[..] else { return Ok(Vec::new()) };
    let row = |what: &str, ours: &[f64], raw: &[f64], least| {
        Row::beside(what, Unit::MillionPerS, ours, ("lock xadd", raw), Target::AtLeast(least))
    };
    Ok(vec![
        row("one word, both together", one, raw_one, ONE_WORD_AT_LEAST),
        row("a word for each, both together", distinct, raw_distinct, DISTINCT_AT_LEAST),
    ])
}

fn contended(setup: &Setup, mode: &str) -> Result<f64> {
    let [client, server] = setup.cpus.words();
    number(setup.ours("onesided")?.args([mode, &server, &client, SECONDS, &server]), None)
}
