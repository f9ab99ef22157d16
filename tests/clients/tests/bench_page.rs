//! The pages of `vervain bench`, opened in headless Chromium: a report and a comparison of made-up results. A script
//! that is added to a copy of the page tells what a reader would see: which figures are there, whether words cover each
//! other or are cut, whether the page is wider than the window, or a table wider than its place.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use vervain_bench::results::Flag;
use vervain_bench::sample;
use vervain_bench_report::{self as report, compare};
use vervain_tests::{Failures, Finished, Job, alone, have, tool, unswayed};

/// A hang is what it finds.
const LIMIT: Duration = Duration::from_secs(300);

/// Looks at the page as it is drawn, and leaves what it saw as JSON in an element at the end.
const PROBE: &str = r#"<script>
addEventListener("load", () => {
  const seen = (element) => element.getClientRects().length > 0;
  const figures = {}, covered = [], cut = [], small = [];
  for (const figure of document.querySelectorAll("figure")) {
    const drawings = [...figure.querySelectorAll("svg.figure")].filter(seen);
    figures[figure.id] = {
      drawings: drawings.length,
      shapes: drawings.reduce((n, svg) => n + svg.querySelectorAll("polyline,polygon,rect,circle").length, 0),
      values: figure.querySelectorAll("tbody tr").length,
      label: drawings.every((svg) => svg.getAttribute("aria-label") && svg.querySelector("title")),
    };
    for (const svg of drawings) {
      const sheet = svg.getBoundingClientRect(), scale = sheet.width / svg.viewBox.baseVal.width;
      const words = [...svg.querySelectorAll("text")].filter(seen).map((text) => [text, text.getBoundingClientRect()]);
      words.forEach(([text, box], i) => {
        const name = figure.id + ": " + text.textContent.trim();
        const sideways = box.left < sheet.left || box.right > sheet.right;
        if (sideways || box.top < sheet.top || box.bottom > sheet.bottom) cut.push(name);
        const letters = parseFloat(getComputedStyle(text).fontSize) * scale;
        if (letters < 11) small.push(name + ": " + letters);
        for (const [other, far] of words.slice(i + 1)) {
          const wide = Math.min(box.right, far.right) - Math.max(box.left, far.left);
          const high = Math.min(box.bottom, far.bottom) - Math.max(box.top, far.top);
          if (wide > 1 && high > box.height / 4) covered.push(name + " and " + other.textContent.trim());
        }
      });
    }
  }
  const tables = [...document.querySelectorAll("div.scroll")].filter((box) => seen(box) && !box.closest("details:not([open])"));
  const hidden = tables.filter((box) => box.scrollWidth > box.clientWidth).map((box) => {
    return (box.closest("[id]") || box).id + ": " + box.scrollWidth + " pixels in " + box.clientWidth;
  });
  const count = (selector) => [...document.querySelectorAll(selector)].filter(seen).length;
  const told = {
    figures, covered, cut, small, hidden, tables: tables.length,
    beyond: document.documentElement.scrollWidth - innerWidth, wide: innerWidth,
    ground: getComputedStyle(document.body).backgroundColor,
    ink: getComputedStyle(document.querySelector("svg.figure text.text") || document.body).fill,
    paper: [0, 1, 2].map((i) => count("svg.figure .p" + i)),
    rows: [0, 1, 2].map((i) => count("tr.paper-" + i)),
    choices: count("select[data-choice]"),
    banner: count("div[id=doubtful]"),
  };
  const element = document.createElement("pre");
  element.id = "probe";
  element.textContent = JSON.stringify(told);
  parent.document.body.append(element); // Its own, unless it is framed.
});
</script>"#;

/// Chromium has no window narrower than this. A page is narrower in a frame, where fragments say nothing.
const NARROWEST: u32 = 500;

/// A window from here on has room for every table; in a narrower one a table may have to be scrolled.
const HAS_ROOM: u32 = 1280;

/// One way to open a page.
#[derive(Debug, Clone, Copy)]
struct View {
    fragment: &'static str,
    dark: bool,
    width: u32,
}

/// Chromium at a page, with a directory of its own for all that it keeps. It asks its maker for news at each start, so
/// no name leads anywhere.
fn chromium(home: &Path, view: View, page: &Path) -> Command {
    let mut command = unswayed(tool("chromium").expect("chromium"));
    command.env("HOME", home).args([
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--hide-scrollbars",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--enable-logging=stderr",
        "--virtual-time-budget=5000",
    ]);
    command.arg(format!("--user-data-dir={}", home.join("profile").display()));
    command.arg(format!("--window-size={},1200", view.width.max(NARROWEST)));
    command.arg(format!("--blink-settings=preferredColorScheme={}", u8::from(!view.dark)));
    command.arg(format!("file://{}{}", framed(page, view.width).display(), view.fragment));
    command
}

/// The page, or one with it in a frame if it is to be narrower than a window can be.
fn framed(page: &Path, width: u32) -> PathBuf {
    if width >= NARROWEST {
        return page.to_owned();
    }
    let text = fs::read_to_string(page).expect("the page").replace('&', "&amp;").replace('"', "&quot;");
    let frame = page.with_extension("framed.html");
    let style = format!("border:0;width:{width}px;height:1200px");
    let html =
        format!("<!DOCTYPE html><meta charset=utf-8><body style=margin:0><iframe style=\"{style}\" srcdoc=\"{text}\">");
    fs::write(&frame, html).expect("a frame");
    frame
}

/// What the console said, line by line. Chromium logs all levels alike, and the pages say nothing at all; a request
/// that their policy forbids is told there too. What its own pages (of a new tab) have to say is not asked.
fn console(end: &Finished) -> Vec<&str> {
    let lines = end.output.lines().filter(|line| line.contains(":CONSOLE"));
    lines.filter(|line| !line.contains(", source: chrome://")).collect()
}

/// A copy of the page with the probe in it.
fn probed(page: &Path) -> PathBuf {
    let text = fs::read_to_string(page).expect("the page");
    let copy = page.with_extension("probed.html");
    fs::write(&copy, text.replace("</body>", &format!("{PROBE}</body>"))).expect("a copy");
    copy
}

/// Opens a page in a view and gives what the probe saw; None, and a failure noted, where something went wrong.
fn look(dir: &Path, page: &Path, view: View, failures: &mut Failures) -> Option<Value> {
    let what = format!("{} {view:?}", page.display());
    let end = Job::start(chromium(dir, view, page).arg("--dump-dom")).finish(LIMIT);
    let said = console(&end);
    if !end.success() || !said.is_empty() {
        failures.add(&what, format!("{said:#?}\n{}", end.status.map_or("no end".to_owned(), |s| s.to_string())));
        return None;
    }
    let told = end.output.split_once("<pre id=\"probe\">").and_then(|(_, rest)| rest.split_once("</pre>"));
    let told = told.map(|(json, _)| json.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"));
    let told: Option<Value> = told.and_then(|json| serde_json::from_str(&json).ok());
    if told.is_none() {
        failures.add(&what, "the probe left nothing");
    }
    let told = told?;
    for fault in ["covered", "cut", "small"] {
        if told[fault].as_array().is_none_or(|found| !found.is_empty()) {
            failures.add(&what, format!("words are {fault}: {:#}", told[fault]));
        }
    }
    if view.width >= HAS_ROOM && told["hidden"].as_array().is_none_or(|found| !found.is_empty()) {
        failures.add(&what, format!("tables are wider than their place: {:#}", told["hidden"]));
    }
    if told["wide"] != view.width {
        failures.add(&what, format!("the window is {} wide", told["wide"]));
    }
    if told["beyond"].as_i64().is_none_or(|pixels| pixels > 0) {
        failures.add(&what, format!("the page is wider than the window: {}", told["beyond"]));
    }
    Some(told)
}

/// Whether each figure shows one drawing with something in it, and values.
fn judge_figures(what: &str, told: &Value, expected: &[String], failures: &mut Failures) {
    for name in expected {
        let figure = &told["figures"][name];
        let is_there = figure["drawings"] == 1
            && figure["shapes"].as_i64() > Some(5)
            && figure["values"].as_i64() > Some(0)
            && figure["label"] == true;
        if !is_there {
            failures.add(what, format!("{name}: {figure}"));
        }
    }
}

/// Whether it is a picture with much in it, bright or dark as it should be.
fn judge_picture(what: &str, file: &Path, dark: bool, failures: &mut Failures) {
    let decoded = fs::File::open(file).map_err(|e| e.to_string()).and_then(|file| {
        let mut reader = png::Decoder::new(std::io::BufReader::new(file)).read_info().map_err(|e| e.to_string())?;
        let mut pixels = vec![0; reader.output_buffer_size().ok_or("too large")?];
        let info = reader.next_frame(&mut pixels).map_err(|e| e.to_string())?;
        Ok((info.color_type.samples(), pixels))
    });
    let (samples, pixels) = match decoded {
        Ok(decoded) => decoded,
        Err(why) => return failures.add(what, format!("no picture: {why}")),
    };
    let colours: std::collections::HashSet<&[u8]> = pixels.chunks_exact(samples).map(|pixel| &pixel[..3]).collect();
    let mean = pixels.chunks_exact(samples).map(|p| f64::from(p[1])).sum::<f64>() / (pixels.len() / samples) as f64;
    if colours.len() < 50 || (mean < 100.0) != dark {
        failures.add(what, format!("{} colours, mean {mean:.0}", colours.len()));
    }
}

#[test]
fn a_report_shows_every_figure_in_light_and_dark_wide_and_narrow() {
    if !have(&["chromium"]) {
        return;
    }
    let _turn = alone();
    let dir = tempfile::tempdir().expect("a directory");
    let files = report::write(&sample::everything(1.0), dir.path()).expect("a report");
    let page = &files[0];
    let copy = probed(page);
    let mut expected: Vec<String> = ["fig2a", "fig2b", "table2", "table3"].map(str::to_owned).to_vec();
    for figure in ["fig1", "fig3", "fig3-share", "fig3b", "fig4", "fig4b", "latency-rc", "depth-8B-rc", "qps-8B-rc"] {
        expected.extend(["loopback", "peer"].map(|placement| format!("{figure}-{placement}")));
    }
    let mut failures = Failures::default();
    // Which of the paper's devices is seen in each; the last has no row in a table.
    let views = [
        (View { fragment: "", dark: false, width: 1400 }, [false; 3]),
        (View { fragment: "#reference=all&scale=log", dark: true, width: 1400 }, [true; 3]),
        (View { fragment: "#reference=x1-qdr&scale=linear", dark: false, width: 1000 }, [false, true, false]),
        (View { fragment: "#reference=x1-ddr", dark: true, width: 500 }, [true, false, false]),
        (View { fragment: "#reference=x2-qdr", dark: false, width: 1400 }, [false, false, true]),
        (View { fragment: "#theme=light", dark: true, width: 1400 }, [false; 3]),
        (View { fragment: "", dark: true, width: 400 }, [false; 3]),
    ];
    let mut grounds = Vec::new();
    for (view, paper) in views {
        let Some(told) = look(dir.path(), &copy, view, &mut failures) else { continue };
        let what = format!("{view:?}");
        judge_figures(&what, &told, &expected, &mut failures);
        for (device, shown) in paper.into_iter().enumerate() {
            let seen = ["paper", "rows"].map(|where_| told[where_][device].as_i64().is_some_and(|count| count > 0));
            if seen != [shown, shown && device < 2] {
                failures.add(&what, format!("device {device} of the paper: {} {}", told["paper"], told["rows"]));
            }
        }
        if told["choices"] != 3 {
            failures.add(&what, format!("{} choices", told["choices"]));
        }
        grounds.push((told["ground"].clone(), told["ink"].clone()));
    }
    if grounds.len() == 7 && (grounds[0] == grounds[1] || grounds[0] != grounds[2] || grounds[0] != grounds[5]) {
        failures.add("light and dark", format!("{grounds:?}"));
    }
    for (dark, width) in [(false, 1400), (true, 500)] {
        let view = View { fragment: "#reference=all", dark, width };
        let picture = dir.path().join(format!("{dark}.png"));
        let shoot = format!("--screenshot={}", picture.display());
        let end = Job::start(chromium(dir.path(), view, page).arg(shoot)).finish(LIMIT);
        if end.success() {
            judge_picture(&format!("picture {view:?}"), &picture, dark, &mut failures);
        } else {
            failures.add("picture", end.describe());
        }
    }
    failures.assert_none();
}

#[test]
fn a_report_of_many_environments_has_room_for_its_tables_and_its_words() {
    if !have(&["chromium"]) {
        return;
    }
    let _turn = alone();
    let mut failures = Failures::default();
    for results in [sample::boards(), sample::everything(1.0)] {
        let dir = tempfile::tempdir().expect("a directory");
        let copy = probed(&report::write(&results, dir.path()).expect("a report")[0]);
        for width in [HAS_ROOM, 1920] {
            let Some(told) = look(dir.path(), &copy, View { fragment: "", dark: false, width }, &mut failures) else {
                continue;
            };
            let (what, plan) = (format!("{width} pixels"), &results.header.plan.name);
            // The tables of the figures whose values come first, and that of all cases.
            if told["tables"].as_i64().is_none_or(|tables| tables < 3) {
                failures.add(&what, format!("{plan}: {} tables", told["tables"]));
            }
            if plan == "tca" {
                let expected = ["tca-latency", "tca-bandwidth"].map(str::to_owned);
                judge_figures(&what, &told, &expected, &mut failures);
            }
        }
    }
    failures.assert_none();
}

#[test]
fn a_comparison_and_a_report_of_nothing_open_without_a_word() {
    if !have(&["chromium"]) {
        return;
    }
    let _turn = alone();
    let dir = tempfile::tempdir().expect("a directory");
    let mut failures = Failures::default();
    let file = dir.path().join("difference.html");
    let comparison = compare::compare(&sample::everything(1.0), &sample::everything(1.2));
    comparison.write(&file).expect("a comparison");
    for (dark, width) in [(false, 1400), (true, 400)] {
        let view = View { fragment: "", dark, width };
        let Some(told) = look(dir.path(), &probed(&file), view, &mut failures) else { continue };
        let expected = ["latency", "bandwidth"].map(|measure| format!("difference-{measure}"));
        judge_figures(&format!("{view:?}"), &told, &expected, &mut failures);
    }
    let mut doubtful = sample::quick();
    for case in &mut doubtful.cases {
        case.summary.as_mut().expect("a summary").flags = vec![Flag::TooFewRounds, Flag::Noisy];
    }
    let pages = [(sample::nothing(), 0), (sample::failures(), 0), (sample::quick(), 0), (doubtful, 1)];
    for (results, banners) in pages {
        let files = report::write(&results, dir.path()).expect("a report");
        let view = View { fragment: "", dark: false, width: 400 };
        let Some(told) = look(dir.path(), &probed(&files[0]), view, &mut failures) else { continue };
        if told["banner"] != banners {
            failures.add(&results.header.plan.title, format!("{} banners, not {banners}", told["banner"]));
        }
    }
    failures.assert_none();
}

/// The other tests believe a silent console; here it is made to speak.
#[test]
fn a_request_or_an_error_of_a_page_is_told_on_the_console() {
    if !have(&["chromium"]) {
        return;
    }
    let _turn = alone();
    let dir = tempfile::tempdir().expect("a directory");
    let page = report::write(&sample::nothing(), dir.path()).expect("a report").remove(0);
    let text = fs::read_to_string(&page).expect("the page");
    for fault in ["<img src=\"http://127.0.0.1:9/x.png\">", "<script>nothing.at.all()</script>"] {
        fs::write(&page, text.replace("</body>", &format!("{fault}</body>"))).expect("a page");
        let view = View { fragment: "", dark: false, width: 1000 };
        let end = Job::start(chromium(dir.path(), view, &page).arg("--dump-dom")).finish(LIMIT);
        assert!(end.success() && !console(&end).is_empty(), "{fault}: {}", end.describe());
    }
}
