//! The page: one file with its styles, its script and its pictures in it. Its content security policy forbids
//! everything that would have to be fetched. Without the script it shows the same, but offers no choices.

use anyhow::Result;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use vervain_bench::number::moment;
use vervain_bench::results::Results;

use super::axis::Spacing;
use super::reference::{DEVICES, PAPER};
use super::{
    Cell, Drawing, Figure, OF_ACP, OF_PM, OF_TCA, OF_THE_PAPER, Picture, Table, acp, cases, ink, machine, pm, tca,
};
use crate::doubt;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// The page loads nothing and sends nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

/// A whole page around this content. `controls`: what can be chosen.
pub fn around(title: &str, controls: &Markup, content: &Markup) -> String {
    let chosen = Some((":root[data-theme=\"light\"]", ":root[data-theme=\"dark\"]"));
    let figure_style = ink::style();
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                link rel="icon" href="data:,";
                title { (title) }
                style { (PreEscaped(ink::colours(":root", chosen))) (PreEscaped(STYLE)) (PreEscaped(paper_rows())) }
                style #figure-style { (PreEscaped(&figure_style)) }
                // For figures that are saved from the page: their colours by themselves.
                style #alone-style media="not all" { (PreEscaped(ink::colours("svg.figure", None))) }
            }
            body {
                nav.controls aria-label="Choices" hidden { (controls) (theme()) }
                main { (content) }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
    .into_string()
}

/// Rows of the paper show with its device.
fn paper_rows() -> String {
    let row = |(i, device): (usize, &super::reference::Device)| {
        let with = |key: &str| format!(":root[data-reference=\"{key}\"] tr.paper-{i}");
        format!("{},{}{{display:table-row}}\n", with(device.key), with("all"))
    };
    DEVICES.iter().enumerate().map(row).collect()
}

fn theme() -> Markup {
    choice("theme", "Colours", &[("", "as the system"), ("light", "light"), ("dark", "dark")])
}

fn choice(key: &str, label: &str, values: &[(&str, &str)]) -> Markup {
    html! {
        label {
            (label) " "
            select data-choice=(key) { @for (value, words) in values { option value=(value) { (words) } } }
        }
    }
}

/// The report of a run.
pub fn page(results: &Results, chapters: &[(&'static str, Vec<Figure>)]) -> Result<String> {
    let header = &results.header;
    let title = format!("{} on {}", header.plan.title, header.host.device.name);
    let mut references = vec![("", "none")];
    references.extend(DEVICES.iter().map(|d| (d.key, d.name)));
    references.push(("all", "all"));
    let has_paper = chapters.iter().any(|(heading, _)| *heading == OF_THE_PAPER);
    let controls = html! {
        @if has_paper { (choice("reference", "Paper’s values", &references)) }
        (choice("scale", "Scale", &[("", "as fits"), ("linear", "linear"), ("log", "logarithmic")]))
    };
    let sections: Vec<(&str, &str, Markup)> = [
        Some(("cases", "All cases", cases::section(results)))
            .filter(|_| results.cases.iter().any(|c| c.summary.is_some())),
        cases::failures(results)
            .map(|failures| ("failures", "Failed and left out", html! { div.scroll { (table(&failures)) } })),
        cases::proof(results).map(|proof| ("proof", "Interference ran throughout", proof)),
        machine::raw(results).map(|raw| ("raw", "The machine by itself", raw)),
        Some(("machine", "Machine and device", machine::hosts(results))),
        Some(("plan", "Plan", plan(results))),
    ]
    .into_iter()
    .flatten()
    .collect();
    let content = html! {
        header {
            h1 { (title) }
            p.lead {
                "Measured by vervain bench " (header.version) " on " (header.host.name)
                @if let Some(peer) = &header.peer { " and " (peer.name) }
                ", " (moment(&header.started)) " to " (moment(&results.ended)) "; plan “" (header.plan.name) "”, "
                (header.rounds) " rounds."
            }
            @if !results.complete {
                p.warning { "This run is not complete. " (results.interrupted.as_deref().unwrap_or_default()) }
            }
            @if let Some(banner) = doubt::banner(results) {
                div.warning #doubtful {
                    p { strong { (banner.sentence) } }
                    ul { @for remedy in &banner.remedies { li { (remedy) } } }
                }
            }
            div.tiles {
                @for [heading, value, word] in cases::tiles(results) {
                    div.tile { span.heading { (heading) } strong { (value) } span { (word) } }
                }
            }
            (contents(chapters, &sections))
        }
        @if chapters.is_empty() { p.warning { "Nothing has been measured, so there are no figures." } }
        @else { (how_to_read()) }
        @for (heading, figures) in chapters {
            section {
                h2 { (heading) }
                @if *heading == OF_THE_PAPER {
                    p { "Drawn after " (PAPER) ", for this device." }
                }
                @if *heading == OF_TCA {
                    p { "After " (tca::PAPER) "." }
                    p.warning { (tca::LABEL) }
                }
                @if *heading == OF_ACP {
                    p { "Drawn after " (acp::PAPER) ", for this device." }
                }
                @if *heading == OF_PM {
                    p { "After " (pm::PAPER) ", for this device." }
                }
                div.figures { @for figure in figures { (figure_block(figure, "figures/")?) } }
            }
        }
        @for (id, heading, body) in &sections { section id=(id) { h2 { (heading) } (body) } }
    };
    Ok(around(&title, &controls, &content))
}

fn contents(chapters: &[(&'static str, Vec<Figure>)], sections: &[(&str, &str, Markup)]) -> Markup {
    html! {
        details.contents {
            summary { "Contents" }
            ul {
                @for figure in chapters.iter().flat_map(|(_, figures)| figures) {
                    li { a href={ "#" (figure.name) } { (figure.title) } }
                }
                @for (id, heading, _) in sections { li { a href={ "#" (id) } { (heading) } } }
            }
        }
    }
}

fn how_to_read() -> Markup {
    html! {
        details.read open {
            summary { "How to read the numbers" }
            ul {
                li { "A latency is that of one message at a time, in µs. For Send and Write it is half of a round \
                    trip whose answer is the same operation; for Read and atomics it is the whole round trip. \
                    The value is the median." }
                li { "A bandwidth counts the bytes of the messages, with many requests under way; 1 MB = 10⁶ \
                    bytes. Sizes are powers of two: 1 KiB = 1024 bytes." }
                li { "Each case was measured several times, in rounds with all others between. The value is the median of \
                    these runs. The interval, drawn as a thin upright bar, is where that median would lie in 95 of 100 \
                    repeats as far as these runs can tell (bootstrap over the runs and their parts, wider if there are \
                    few runs). “Too few rounds”: fewer than three runs, or an interval that ends above twice the value." }
                li { "A hollow mark or an asterisk is a doubtful value: its runs differ too much, or something \
                    else went on. The table of all cases says what." }
            }
        }
    }
}

fn plan(results: &Results) -> Markup {
    html! {
        p { "Seed " code { (results.header.seed) } ": the order of the cases and the intervals follow from it." }
        details { summary { "The plan’s text" } pre { (results.header.plan.text) } }
    }
}

/// A table of the page.
pub fn table(table: &Table) -> Markup {
    let is_number = |cell: &Cell| !matches!(cell, Cell::Text(_));
    let numeric = |column: usize| table.rows.iter().all(|row| row.cells.get(column).is_some_and(is_number));
    let class = |row: &super::Row| row.paper.map(|device| format!("paper-row paper-{device}"));
    html! {
        table.data {
            thead { tr { @for (i, column) in table.columns.iter().enumerate() { th.num[numeric(i)] { (column) } } } }
            tbody {
                @for row in &table.rows {
                    tr class=[class(row)] { @for cell in &row.cells { td.num[is_number(cell)] { (cell.shown()) } } }
                }
            }
        }
    }
}

/// A figure with its sentences, its values and its files; its drawings lie in `folder`, seen from the page.
pub fn figure_block(figure: &Figure, folder: &str) -> Result<Markup> {
    let name = &figure.name;
    let csv = format!("data:text/csv;charset=utf-8,{}", percent_encoded(&figure.table.csv()?));
    let drawings: Vec<(&str, &Picture)> = match &figure.drawing {
        Drawing::One(picture) => vec![("one", picture)],
        Drawing::Two { linear, decades, fits } => {
            let fits = |spacing| *fits == spacing;
            vec![
                (if fits(Spacing::Linear) { "linear fits" } else { "linear" }, linear),
                (if fits(Spacing::Decades) { "log fits" } else { "log" }, decades),
            ]
        }
    };
    Ok(html! {
        figure.values-first[figure.table_first] id=(name) {
            figcaption { h3 { (figure.title) } p { (figure.caption) } }
            @if figure.table_first { div.scroll { (table(&figure.table)) } }
            @for (classes, Picture { wide, narrow }) in drawings {
                @for (width, svg) in [("wide", wide), ("narrow", narrow)] {
                    div class={ "drawing " (classes) " " (width) } { (PreEscaped(inline(svg, &figure.title))) }
                }
            }
            @if !figure.findings.is_empty() { ul.findings { @for finding in &figure.findings { li { (finding) } } } }
            @if !figure.table_first {
                details { summary { "Values" } div.scroll { (table(&figure.table)) } }
            }
            p.files {
                a.save href={ (folder) (name) ".svg" } download={ (name) ".svg" } { "SVG" }
                " · "
                a href=(csv) download={ (name) ".csv" } { "CSV" }
            }
        }
    })
}

/// The body of a drawing, after the opening tag that the backend wrote, and what its view box is.
fn body(svg: &str) -> (&str, &str) {
    let body = svg.split_once(">\n").map_or("", |(_, body)| body);
    let view = svg.split_once("viewBox=\"").and_then(|(_, rest)| rest.split_once('"')).map_or("", |(view, _)| view);
    (view, body)
}

fn titled(title: &str) -> String {
    html! { title { (title) } }.into_string()
}

/// A drawing in the page, whose styles it takes.
fn inline(svg: &str, title: &str) -> String {
    let (view, body) = body(svg);
    let label = html! { svg.figure viewBox=(view) role="img" aria-label=(title) {} }.into_string();
    let open = label.trim_end_matches("</svg>");
    format!("{open}{}{body}", titled(title))
}

/// A drawing as a file: with its styles, light or dark as the reader has it. The attribute `data-reference` of its
/// first element shows the paper's values.
pub fn standalone(svg: &str, title: &str) -> String {
    let (view, body) = body(svg);
    let mut size = view.split(' ').skip(2);
    let (width, height) = (size.next().unwrap_or_default(), size.next().unwrap_or_default());
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"figure\" viewBox=\"{view}\" width=\"{width}\" \
            height=\"{height}\" role=\"img\" data-reference=\"none\">\n{}\n<style>\n{}{}</style>\n{body}",
        titled(title),
        ink::colours("svg.figure", None),
        ink::style(),
    )
}

fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 2);
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b',' => out.push(byte as char),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_a_figure_is_whole_and_escaped() {
        let svg = "<svg width=\"600\" height=\"400\" viewBox=\"0 0 600 400\" xmlns=\"x\">\n<line/>\n</svg>\n";
        let file = standalone(svg, "a <b> & c");
        assert!(file.starts_with(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"figure\" viewBox=\"0 0 600 400\" width=\"600\""
        ));
        assert!(
            file.contains("<title>a &lt;b&gt; &amp; c</title>") && file.contains("prefers-color-scheme:dark"),
            "{file}"
        );
        assert!(file.ends_with("<line/>\n</svg>\n"));
        let within = inline(svg, "\"x\"");
        assert!(
            within.starts_with(
                "<svg class=\"figure\" viewBox=\"0 0 600 400\" role=\"img\" aria-label=\"&quot;x&quot;\">"
            ),
            "{within}"
        );
    }

    #[test]
    fn text_in_an_address_is_encoded() {
        assert_eq!(percent_encoded("a,b\n\"µ\" %"), "a,b%0A%22%C2%B5%22%20%25");
    }
}
