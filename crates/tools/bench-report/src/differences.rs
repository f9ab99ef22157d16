//! The page of a comparison: the ratios as forest plots, and the list.

use std::path::{Path, PathBuf};

use anyhow::Result;
use maud::{Markup, html};
use vervain_bench::case::{Case, Measure};
use vervain_bench::number::{in_unit, unit};

use super::forest::{Row, Tone, draw};
use super::html::{around, figure_block, table};
use super::{Cell, Drawing, Figure, Picture, Table, html as page, save};
use crate::compare::{Comparison, Pair, Verdict, chance_word, describe};

/// Rows of one plot; a longer one cannot be taken in.
const MOST_ROWS: usize = 40;

const CAPTION: &str = "Those that differ come first. Bars are 95 % intervals; grey: no significant difference.";

/// Writes the page to `file`, drawings and list beside it under its name. Returns the files, the page first.
pub(crate) fn write(comparison: &Comparison, file: &Path) -> Result<Vec<PathBuf>> {
    let stem = file.file_stem().map_or_else(|| "compare".to_owned(), |s| s.to_string_lossy().into_owned());
    let figures = figures(comparison, &stem)?;
    save(file, whole(comparison, &figures)?.as_bytes())?;
    let mut files = vec![file.to_owned()];
    for figure in &figures {
        if let Drawing::One(Picture { wide: svg, .. }) = &figure.drawing {
            let beside = file.with_file_name(format!("{}.svg", figure.name));
            save(&beside, page::standalone(svg, &figure.title).as_bytes())?;
            files.push(beside);
        }
    }
    let beside = file.with_file_name(format!("{stem}.csv"));
    save(&beside, list(&comparison.ordered()).csv()?.as_bytes())?;
    files.push(beside);
    Ok(files)
}

fn figures(comparison: &Comparison, stem: &str) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for measure in Measure::ALL {
        let pairs: Vec<&Pair> = comparison.comparable().filter(|p| p.case.measure == *measure).collect();
        let (title, means) = match measure {
            Measure::Latency => ("Latency: second by first", "to the left the second is faster"),
            Measure::Bandwidth => ("Bandwidth: second by first", "to the right the second is faster"),
        };
        let parts = pairs.len().div_ceil(MOST_ROWS);
        for (part, pairs) in pairs.chunks(MOST_ROWS).enumerate() {
            let suffix = if part > 0 { format!("-{}", part + 1) } else { String::new() };
            let of = if parts > 1 { format!(", part {} of {parts}", part + 1) } else { String::new() };
            let rows: Vec<Row> = pairs.iter().map(|p| row(p)).collect();
            figures.push(Figure {
                name: format!("{stem}-{measure}{suffix}"),
                title: format!("{title}{of}"),
                caption: CAPTION.to_owned(),
                findings: Vec::new(),
                drawing: Drawing::One(Picture::of(|width| draw(&rows, means, width))?),
                table: list(pairs),
                table_first: false,
            });
        }
    }
    Ok(figures)
}

fn row(pair: &Pair) -> Row {
    let tone = match pair.verdict {
        Verdict::Better => Tone::Better,
        Verdict::Worse => Tone::Worse,
        _ => Tone::Same,
    };
    Row { label: describe(&pair.case), value: pair.ratio.value, interval: pair.ratio.interval, tone }
}

fn list(pairs: &[&Pair]) -> Table {
    let mut table =
        Table::new(&["case", "first", "second", "unit", "second / first", "95 % from", "to", "p", "verdict"]);
    for pair in pairs {
        let measure = pair.case.measure;
        table.push(vec![
            pair.case.to_string().into(),
            Cell::Number(in_unit(measure, pair.values[0])),
            Cell::Number(in_unit(measure, pair.values[1])),
            unit(measure).into(),
            Cell::Number(pair.ratio.value),
            Cell::Number(pair.ratio.interval.0),
            Cell::Number(pair.ratio.interval.1),
            pair.chance.map_or_else(|| "–".to_owned(), chance_word).into(),
            pair.verdict.word().into(),
        ]);
    }
    table
}

fn only(words: &str, cases: &[Case]) -> Markup {
    html! {
        @if !cases.is_empty() {
            details { summary { (cases.len()) " " (words) } ul { @for case in cases { li { (case.to_string()) } } } }
        }
    }
}

/// The differences that are not drawn: their number, and folded away the cases and reasons.
fn not_compared(comparison: &Comparison) -> Markup {
    let silent: Vec<&Pair> = comparison.ordered().into_iter().filter(|pair| pair.verdict.is_silent()).collect();
    html! {
        @if silent.len() + comparison.only_first.len() + comparison.only_second.len() > 0 {
            section #not-compared {
                h2 { "Not compared" }
                @if !silent.is_empty() {
                    details { summary { (silent.len()) " in both, but not comparable" } div.scroll { (table(&list(&silent))) } }
                }
                (only("in the first only", &comparison.only_first))
                (only("in the second only", &comparison.only_second))
            }
        }
    }
}

fn whole(comparison: &Comparison, figures: &[Figure]) -> Result<String> {
    let [first, second] = &comparison.names;
    let content = html! {
        header {
            h1 { "Comparison of two runs of vervain bench" }
            p.lead { "First: " (first) ". Second: " (second) "." }
            p { strong { (comparison.summary()) } }
            @for warning in &comparison.warnings { p.warning { (warning) } }
            details.read open {
                summary { "How to read this" }
                ul {
                    li { "A ratio is the second run’s value by the first’s: × 2 is twice the bandwidth, or twice \
                        the latency. Its interval of 95 % comes from drawing runs, and segments within them, \
                        again and again." }
                    li { "“Better” and “worse” take two things: an interval without × 1, and a chance below 5 % by \
                        Welch’s t test of the runs’ logarithms after Holm’s correction for the number of cases. \
                        Both together: if nothing had changed, even one such word on this page would come in \
                        fewer than one of twenty comparisons." }
                    li { "“Not comparable”: fewer than three runs, runs that differ among themselves more than \
                        from the other side’s, interference that paused, or latencies one step of the clock apart. \
                        Such cases are counted and listed, not drawn." }
                    li { "Both runs were taken at different times. A machine that was busier, warmer or newly \
                        started shows here like a change of the device. Measure first, second, and first again \
                        to be sure." }
                }
            }
        }
        div.figures { @for figure in figures { (figure_block(figure, "")?) } }
        (not_compared(comparison))
    };
    Ok(around("Comparison", &html! {}, &content))
}

#[cfg(test)]
mod tests {
    use crate::compare::compare;
    use vervain_bench::case::Measure;
    use vervain_bench::sample::{bandwidth, everything, failures, write_case};

    #[test]
    fn the_page_its_drawings_and_the_list_are_written() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("difference.html");
        let mut first = everything(1.0);
        // One of each measure with too few runs, and one that the second has not.
        for measure in Measure::ALL {
            let case =
                first.cases.iter_mut().find(|c| c.case.measure == *measure && c.runs.len() == 5).expect("a case");
            case.runs.truncate(2);
        }
        first.cases.push(bandwidth(write_case(12_345), &[1e9; 3]));
        let comparison = compare(&first, &everything(1.2));
        let files = comparison.write(&file).expect("files");
        let names: Vec<_> =
            files.iter().map(|f| f.file_name().expect("a name").to_string_lossy().into_owned()).collect();
        assert_eq!(names[0], "difference.html");
        for name in
            ["difference-latency.svg", "difference-bandwidth.svg", "difference-bandwidth-2.svg", "difference.csv"]
        {
            assert!(names.iter().any(|n| n == name), "{name}: {names:?}");
        }
        let page = std::fs::read_to_string(&file).expect("the page");
        assert!(page.contains(&comparison.summary()) && !page.contains("NaN"));
        // Each is drawn for wide and for narrow windows.
        let drawn = page.matches("<circle").count() / 2;
        assert_eq!(drawn, comparison.comparable().count());
        let silent = comparison.pairs.len() - drawn;
        assert!(silent >= 2, "{}", comparison.summary());
        assert!(page.contains(&format!("<summary>{silent} in both, but not comparable</summary>")));
        assert!(page.contains("<summary>1 in the first only</summary>") && !page.contains("in the second only"));
        let list = std::fs::read_to_string(dir.path().join("difference.csv")).expect("the list");
        assert_eq!(list.lines().count(), comparison.pairs.len() + 1);
    }

    #[test]
    fn runs_without_a_value_in_common_are_a_page_too() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("none.html");
        let files = compare(&failures(), &failures()).write(&file).expect("files");
        assert_eq!(files.len(), 2);
        let page = std::fs::read_to_string(&file).expect("the page");
        assert!(page.contains("0 cases are in both") && !page.contains("Not compared"));
    }
}
