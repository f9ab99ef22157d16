//! Every case in a row: what was measured, what ran beside it and the proof that it did, what failed and what was left
//! out.

use maud::{Markup, html};
use vervain_bench::case::Measure;
use vervain_bench::number::{in_unit, number, percent, unit};
use vervain_bench::results::{CaseResult, Flag, InterferenceProof, Results, Summary};

use super::html::table;
use super::query::flags;
use super::{Cell, Table, interval};

/// All measured cases, whole.
pub fn all(results: &Results) -> Table {
    let mut table = Table::new(&[
        "case",
        "value",
        "unit",
        "95 % from",
        "to",
        "lower quartile",
        "upper",
        "p99",
        "p99.9",
        "messages/s",
        "runs",
        "spread",
        "flags",
    ]);
    for CaseResult { case, runs, summary, .. } in &results.cases {
        let Some(summary) = summary else { continue };
        let cell = |value: f64| Cell::maybe(Some(in_unit(case.measure, value)));
        let tail = |value: Option<f64>| value.map_or(Cell::None, cell);
        let ends = (in_unit(case.measure, summary.interval.0), in_unit(case.measure, summary.interval.1));
        let ends = interval(ends, summary.flags.contains(&Flag::TooFewRounds));
        let end = |i: usize| ends[i].clone();
        table.push(vec![
            case.to_string().into(),
            match cell(summary.value) {
                Cell::Number(value) if !summary.flags.is_empty() => Cell::Doubtful(value),
                other => other,
            },
            unit(case.measure).into(),
            end(0),
            end(1),
            cell(summary.quartiles.0),
            cell(summary.quartiles.1),
            tail(summary.p99),
            tail(summary.p999),
            Cell::maybe(summary.rate),
            Cell::Count(runs.len() as u64),
            percent(summary.spread).into(),
            flags(summary).into(),
        ]);
    }
    table
}

/// Numbers at a glance: a heading, a value, a word on it. A doubtful value is no headline unless all are.
pub fn tiles(results: &Results) -> Vec<[String; 3]> {
    let summaries = || results.cases.iter().filter_map(|c| Some((&c.case, c.summary.as_ref()?)));
    let best = |measure: Measure, of: fn(&Summary) -> f64, is_sound: bool| {
        let alone = summaries().filter(move |(case, _)| case.measure == measure && case.interference.is_none());
        // Steps of a kernel are no messages.
        let alone = alone.filter(|(case, _)| case.grid.is_none());
        let values = alone.map(move |(case, summary)| (case, of(summary), summary));
        let values =
            values.filter(move |(_, value, s)| value.is_finite() && *value > 0.0 && (!is_sound || s.flags.is_empty()));
        match measure {
            Measure::Latency => values.min_by(|a, b| a.1.total_cmp(&b.1)),
            Measure::Bandwidth => values.max_by(|a, b| a.1.total_cmp(&b.1)),
        }
    };
    let value: fn(&Summary) -> f64 = |s| s.value;
    let rate: fn(&Summary) -> f64 = |s| s.rate.unwrap_or(f64::NAN);
    let headlines = [
        ("Lowest latency", Measure::Latency, value, 1e3, "µs"),
        ("Highest bandwidth", Measure::Bandwidth, value, 1e6, "MB/s"),
        ("Highest message rate", Measure::Bandwidth, rate, 1e6, "million/s"),
    ];
    let mut tiles = Vec::new();
    for (heading, measure, of, by, unit) in headlines {
        let Some((case, value, summary)) = best(measure, of, true).or_else(|| best(measure, of, false)) else {
            continue;
        };
        let (mark, doubt) = match flags(summary) {
            flags if flags.is_empty() => ("", String::new()),
            flags => ("*", format!("; doubtful ({flags}), and none is sound")),
        };
        tiles.push([heading.to_owned(), format!("{}{mark} {unit}", number(value / by)), format!("{case}{doubt}")]);
    }
    let doubtful = summaries().filter(|(_, s)| !s.flags.is_empty()).count();
    let failed = results.cases.iter().filter(|c| c.summary.is_none()).count();
    let counts = format!("{doubtful} of them doubtful, {failed} failed, {} left out", results.skipped.len());
    tiles.push(["Cases measured".to_owned(), summaries().count().to_string(), counts]);
    tiles
}

/// The reasons why cases failed, and why others were left out; None if there are none.
pub fn failures(results: &Results) -> Option<Table> {
    let mut table = Table::new(&["case", "what happened", "round", "why"]);
    for result in &results.cases {
        for failure in &result.failures {
            let what = if result.summary.is_some() { "one run failed" } else { "failed" };
            let round = Cell::Count(u64::from(failure.round) + 1);
            table.push(vec![result.case.to_string().into(), what.into(), round, failure.why.as_str().into()]);
        }
    }
    for skipped in &results.skipped {
        table.push(vec![skipped.case.to_string().into(), "left out".into(), Cell::None, skipped.why.as_str().into()]);
    }
    (!table.rows.is_empty()).then_some(table)
}

/// The proof that each interfering stream ran throughout; None if there was none.
pub fn proof(results: &Results) -> Option<Markup> {
    let rows: Vec<(&CaseResult, Vec<&InterferenceProof>)> = results
        .cases
        .iter()
        .map(|c| (c, c.runs.iter().filter_map(|r| r.interference.as_ref()).collect::<Vec<_>>()))
        .filter(|(_, proofs)| !proofs.is_empty())
        .collect();
    if rows.is_empty() {
        return None;
    }
    let ran = rows.iter().filter(|(_, proofs)| proofs.iter().all(|p| p.throughout)).count();
    Some(html! {
        p {
            (ran) " of " (rows.len()) " cases had their stream beside them throughout. The small curve shows the \
            operations of the stream in each slice of the measurement, all runs after each other, from zero up; a gap \
            would be a pause."
        }
        details {
            summary { "Proof for each case" }
            div.scroll { table.data {
                thead { tr {
                    th { "case" } th.num { "operations" } th.num { "per second" } th { "over time" }
                    th.num { "least slice / mean" } th.num { "longest pause" } th { "throughout" }
                } }
                tbody { @for (result, proofs) in &rows { (proof_row(result, proofs)) } }
            } }
        }
    })
}

fn proof_row(result: &CaseResult, proofs: &[&InterferenceProof]) -> Markup {
    let operations: u64 = proofs.iter().map(|p| p.operations).sum();
    let rate = proofs.iter().map(|p| p.rate).sum::<f64>() / proofs.len() as f64;
    let slices: Vec<u32> = proofs.iter().flat_map(|p| p.slices.iter().copied()).collect();
    let mean = slices.iter().map(|s| f64::from(*s)).sum::<f64>() / slices.len() as f64;
    let least = slices.iter().min().map_or(f64::NAN, |s| f64::from(*s) / mean);
    let pause = proofs.iter().map(|p| p.longest_pause_ms).fold(0.0, f64::max);
    let throughout = proofs.iter().all(|p| p.throughout);
    html! {
        tr {
            td { (result.case.to_string()) }
            td.num { (number(operations as f64)) }
            td.num { (number(rate)) }
            td { (sparkline(&slices)) }
            td.num { (percent(least)) }
            td.num { (number(pause)) " ms" }
            td { @if throughout { "yes" } @else { strong { "no" } } }
        }
    }
}

/// Counts as a small curve from zero up.
fn sparkline(counts: &[u32]) -> Markup {
    const WIDTH: f64 = 160.0;
    const HEIGHT: f64 = 22.0;
    // No more points than pixels: of those that share one, the least is what matters.
    let share = counts.len().div_ceil(WIDTH as usize).max(1);
    let counts: Vec<u32> = counts.chunks(share).filter_map(|c| c.iter().min().copied()).collect();
    let most = f64::from(counts.iter().copied().max().unwrap_or(0).max(1));
    let step = WIDTH / (counts.len().max(2) - 1) as f64;
    let point = |(i, count): (usize, &u32)| {
        format!("{:.1},{:.1}", i as f64 * step, HEIGHT - 1.0 - f64::from(*count) / most * (HEIGHT - 2.0))
    };
    let points = counts.iter().enumerate().map(point).collect::<Vec<_>>().join(" ");
    html! {
        svg.spark viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } width=(WIDTH) height=(HEIGHT) aria-hidden="true" {
            polyline points=(points) {}
        }
    }
}

/// The table of all cases, with a field to choose rows by a word.
pub fn section(results: &Results) -> Markup {
    html! {
        label.filter hidden { "Show rows with " input #filter type="search" placeholder="write 64 KiB peer"; }
        div.scroll.tall #cases { (table(&all(results))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vervain_bench::sample::{bandwidth, everything, failures as failed, nothing, write_case};

    #[test]
    fn every_case_with_a_value_is_in_the_table() {
        let results = everything(1.0);
        let measured = results.cases.iter().filter(|c| c.summary.is_some()).count();
        assert_eq!(all(&results).rows.len(), measured);
        assert_eq!(failures(&results).expect("failures").rows.len(), 5);
        assert!(failures(&nothing()).is_none());
        assert_eq!(failures(&failed()).expect("failures").rows[4].cells[3], "the device has no atomics".into());
    }

    #[test]
    fn a_doubtful_value_is_a_headline_only_if_all_are_and_says_so() {
        let mut results = nothing();
        for (size, value, flags) in [(8, 1e8, &[][..]), (64, 9e8, &[Flag::Noisy]), (4096, 2e9, &[Flag::TooFewRounds])] {
            let mut case = bandwidth(write_case(size), &[value; 3]);
            case.summary.as_mut().expect("a summary").flags = flags.to_vec();
            results.cases.push(case);
        }
        let bandwidth = |results: &Results| tiles(results)[0].clone();
        let case = "8 B write RC bandwidth, depth 128, loopback";
        assert_eq!(bandwidth(&results), ["Highest bandwidth", "100 MB/s", case]);
        results.cases.remove(0);
        let case = "4 KiB write RC bandwidth, depth 128, loopback; doubtful (too few rounds), and none is sound";
        assert_eq!(bandwidth(&results), ["Highest bandwidth", "2,000* MB/s", case]);
    }

    #[test]
    fn too_few_rounds_stand_in_place_of_an_interval() {
        let mut results = nothing();
        let mut case = bandwidth(write_case(8), &[1e9, 9e9]);
        case.summary.as_mut().expect("a summary").flags = vec![Flag::TooFewRounds];
        results.cases.push(case);
        let cells: Vec<String> = all(&results).rows[0].cells.iter().map(Cell::shown).collect();
        assert_eq!(cells[1..5], ["9,000*", "MB/s", "too few rounds", "–"]);
        assert!(all(&results).csv().expect("csv").contains(",9000,MB/s,1000,9000,"), "whole in CSV");
    }

    #[test]
    fn a_pause_shows_in_the_curve_however_long_it_is() {
        let mut counts = vec![100; 1000];
        counts[500] = 0;
        let drawn = sparkline(&counts).into_string();
        assert!(drawn.contains(",21.0"), "{drawn}");
        assert!(!sparkline(&[]).into_string().contains("NaN"));
    }

    #[test]
    fn a_stream_that_paused_is_told() {
        let mut results = everything(1.0);
        assert!(proof(&nothing()).is_none());
        let case = results.cases.iter_mut().find(|c| c.case.interference.is_some()).expect("a case");
        case.runs[1].interference.as_mut().expect("a proof").throughout = false;
        assert!(proof(&results).expect("proofs").into_string().contains("<strong>no</strong>"));
    }
}
