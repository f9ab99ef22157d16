//! The common parts of all charts: a sheet with the legend above, the axes around, and the plot between. The legend
//! stands outside the plot, so it can cover no value.

use anyhow::Result;
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axis::Axis;
use super::ink::{Ink, classify};

/// Pixels across: half of a wide page.
pub const WIDE: i32 = 520;
/// Pixels across: all of a wide page.
pub const WHOLE: i32 = 2 * WIDE;
/// Pixels across on a phone, which would show the other in letters too small to read.
pub const NARROW: i32 = 360;
/// Pixels of the letters.
pub const LETTER: i32 = 13;
const ROW: i32 = 20;
/// Pixels from the x axis to the top of the plot.
pub const PLOT: i32 = 240;
/// Pixels of a mark, about.
pub const MARK: i32 = 8;
const LEFT: i32 = 62;
/// Between the legend and the plot, where the units stand.
pub const UNIT: i32 = 28;
/// Below the plot, where the ticks' words stand.
const TICKS: i32 = 26;
const MARGIN: i32 = 10;
/// From one line of names to the next.
const NAME: i32 = LETTER + 3;
/// Pixels before the words of a legend.
const SAMPLE: i32 = 32;

/// A plot in the space of its [axes](Axis).
pub type Plot<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
/// A sheet in pixels.
pub type Sheet<'b> = DrawingArea<SVGBackend<'b>, Shift>;

/// A value with its interval, in the units of the axes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Along the x axis.
    pub x: f64,
    /// The value.
    pub y: f64,
    /// Its 95 % interval.
    pub interval: (f64, f64),
    /// True if it is flagged: drawn hollow, or with an asterisk.
    pub doubtful: bool,
}

/// A value of the paper.
#[derive(Debug, Clone, PartialEq)]
pub struct PaperValue {
    /// Its place in [`reference::DEVICES`](super::reference::DEVICES).
    pub device: usize,
    /// For the legend, value included.
    pub label: String,
    /// In the unit of the y axis.
    pub y: f64,
}

/// A second scale on the right for the same lines.
#[derive(Debug, Clone, PartialEq)]
pub struct RightScale {
    /// Its unit.
    pub unit: String,
    /// The factor of each value.
    pub factor: f64,
}

/// A line of the legend.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The sample before the words.
    pub sample: Sample,
    /// The words.
    pub label: String,
}

/// The sample of something in a legend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sample {
    /// Line and mark of a series.
    Series(usize),
    /// A filled box of a series.
    Bar(usize),
    /// A line of 99th percentiles.
    Tail,
    /// A hollow mark.
    Hollow,
    /// An asterisk.
    Asterisk,
    /// A device of the paper.
    Paper(usize),
}

/// The frame of a plot.
pub struct Frame<'a> {
    /// Pixels across, of the whole sheet.
    pub width: i32,
    /// Beside the origin; also the categories' words.
    pub x: &'a Axis,
    /// Words for the ticks of x, where it has categories.
    pub names: &'a [String],
    /// Below the x axis.
    pub x_label: &'a str,
    /// The upright axis.
    pub y: &'a Axis,
    /// Above the y axis.
    pub y_unit: &'a str,
    /// On the right.
    pub right: Option<&'a RightScale>,
    /// Above all.
    pub legend: &'a [Entry],
}

impl Frame<'_> {
    fn is_too_wide(&self, words: &str) -> bool {
        width(words, LETTER) > (self.width - 2 * LEFT) / self.names.len().max(1) as i32
    }

    /// Returns true if one of the names is too wide for its place, so that they stand in two lines.
    fn breaks_names(&self) -> bool {
        self.names.iter().any(|name| self.is_too_wide(name))
    }

    /// Returns true if one is too wide even so, so that every other name stands lower.
    fn staggers_names(&self) -> bool {
        self.names.iter().flat_map(|name| lines(name)).any(|line| self.is_too_wide(line))
    }

    /// Lines below the axis.
    fn name_lines(&self) -> i32 {
        let each = if self.breaks_names() { self.names.iter().map(|name| lines(name).len()).max() } else { None };
        each.unwrap_or(1) as i32 * (1 + i32::from(self.staggers_names()))
    }
}

/// A name parted at its last space.
fn lines(name: &str) -> Vec<&str> {
    name.rsplit_once(' ').map_or_else(|| vec![name], |(first, second)| vec![first, second])
}

/// Words in an ink.
pub fn words(ink: Ink, size: i32, h: HPos, v: VPos) -> TextStyle<'static> {
    // The backend divides sizes by 1.24.
    TextStyle {
        font: ("sans-serif", f64::from(size) * 1.24).into_font(),
        color: ink.colour().to_backend_color(),
        pos: Pos::new(h, v),
    }
}

/// About how wide words are; rather too wide, as the reader's font is not known.
pub fn width(text: &str, size: i32) -> i32 {
    (text.chars().count() as f64 * f64::from(size) * 0.6).ceil() as i32
}

/// The begin of each entry of a legend, and the number of rows that they take.
fn layout<'a>(legend: impl IntoIterator<Item = &'a Entry>, across: i32) -> (Vec<(i32, i32)>, i32) {
    let (mut x, mut row) = (MARGIN, 0);
    let mut places = Vec::new();
    for entry in legend {
        let takes = SAMPLE + width(&entry.label, LETTER) + 18;
        if x > MARGIN && x + takes > across {
            (x, row) = (MARGIN, row + 1);
        }
        places.push((x, row));
        x += takes;
    }
    let rows = if places.is_empty() { 0 } else { row + 1 };
    (places, rows)
}

/// Draws entries in rows from this height on.
fn entries(sheet: &Sheet<'_>, legend: &[&Entry], top: i32, across: i32) -> Result<()> {
    let (places, _) = layout(legend.iter().copied(), across);
    for (entry, (x, row)) in legend.iter().zip(places) {
        let y = top + row * ROW + ROW / 2;
        sample(sheet, entry.sample, (x, y))?;
        let ink = if let Sample::Paper(i) = entry.sample { Ink::Paper(i) } else { Ink::Text };
        sheet.draw_text(&entry.label, &words(ink, LETTER, HPos::Left, VPos::Center), (x + SAMPLE, y))?;
    }
    Ok(())
}

/// The outline of the mark of a series around (0, 0).
fn outline(series: usize, r: i32) -> Vec<(i32, i32)> {
    match series % 7 {
        0 => (0..12).map(|i| f64::from(i) * std::f64::consts::TAU / 12.0).map(|a| round(a, r)).collect(),
        1 => vec![(-r, -r), (r, -r), (r, r), (-r, r)],
        2 => vec![(0, -r - 1), (r + 1, r), (-r - 1, r)],
        3 => vec![(0, -r - 2), (r + 2, 0), (0, r + 2), (-r - 2, 0)],
        4 => vec![(0, r + 1), (r + 1, -r), (-r - 1, -r)],
        5 => vec![(-r - 1, -2), (r + 1, -2), (r + 1, 2), (-r - 1, 2)],
        _ => vec![(-2, -r - 1), (2, -r - 1), (2, r + 1), (-2, r + 1)],
    }
}

fn round(angle: f64, r: i32) -> (i32, i32) {
    let r = f64::from(r) + 0.5;
    ((angle.cos() * r).round() as i32, (angle.sin() * r).round() as i32)
}

/// Draws the mark of a series; hollow where the value is doubtful.
pub fn mark(sheet: &Sheet<'_>, series: usize, at: (i32, i32), hollow: bool) -> Result<()> {
    mark_in(sheet, (series, Ink::Mark(series)), at, hollow)
}

fn mark_in(sheet: &Sheet<'_>, (shape, ink): (usize, Ink), at: (i32, i32), hollow: bool) -> Result<()> {
    let mut points: Vec<_> = outline(shape, 4).into_iter().map(|(x, y)| (at.0 + x, at.1 + y)).collect();
    let inside = if hollow { Ink::Surface } else { ink };
    sheet.draw(&Polygon::new(points.clone(), inside.colour().filled()))?;
    // Past the first point, so that the corner there is closed like the others.
    points.extend_from_within(..2);
    sheet.draw(&PathElement::new(points, ink.colour().stroke_width(2)))?;
    Ok(())
}

/// Draws an interval as a thin upright bar with ends.
pub fn whisker(sheet: &Sheet<'_>, ink: Ink, x: i32, ends: (i32, i32)) -> Result<()> {
    if (ends.0 - ends.1).abs() > 2 {
        let style = ink.colour().stroke_width(1);
        sheet.draw(&PathElement::new(vec![(x, ends.0), (x, ends.1)], style))?;
        for y in [ends.0, ends.1] {
            sheet.draw(&PathElement::new(vec![(x - 4, y), (x + 4, y)], style))?;
        }
    }
    Ok(())
}

/// Draws values of the paper across the plot: each its device and its ends. None lies under the halo of another.
pub fn paper_lines(sheet: &Sheet<'_>, values: &[(usize, [(i32, i32); 2])]) -> Result<()> {
    for (device, ends) in values {
        sheet.draw(&PathElement::new(ends.to_vec(), Ink::Halo(*device).colour().stroke_width(5)))?;
    }
    for (device, ends) in values {
        sheet.draw(&PathElement::new(ends.to_vec(), Ink::Paper(*device).colour().stroke_width(2)))?;
    }
    Ok(())
}

fn sample(sheet: &Sheet<'_>, sample: Sample, (x, y): (i32, i32)) -> Result<()> {
    let line = vec![(x, y), (x + 26, y)];
    match sample {
        Sample::Series(i) => {
            sheet.draw(&PathElement::new(line, Ink::Line(i).colour().stroke_width(2)))?;
            mark(sheet, i, (x + 13, y), false)?;
        }
        Sample::Bar(i) => {
            sheet.draw(&Rectangle::new([(x + 6, y - 7), (x + 22, y + 7)], Ink::Mark(i).colour().filled()))?;
        }
        Sample::Tail => {
            sheet.draw(&PathElement::new(line, Ink::Tail(6).colour().stroke_width(2)))?;
        }
        Sample::Hollow => mark_in(sheet, (0, Ink::Axis), (x + 16, y), true)?,
        Sample::Asterisk => {
            sheet.draw_text("*", &words(Ink::Text, LETTER + 4, HPos::Center, VPos::Center), (x + 18, y + 3))?
        }
        Sample::Paper(i) => {
            sheet.draw(&PathElement::new(line, Ink::Paper(i).colour().stroke_width(2)))?;
        }
    }
    Ok(())
}

/// Draws a chart: the frame, and what `paint` puts into the plot. The second argument of `paint` is the sheet, in whose
/// pixels marks and words are drawn on top.
pub fn draw(frame: &Frame<'_>, paint: impl FnOnce(&Plot<'_, '_>, &Sheet<'_>) -> Result<()>) -> Result<String> {
    // The paper's values come and go; at the bottom their place does not look empty.
    let (papers, own): (Vec<&Entry>, Vec<&Entry>) =
        frame.legend.iter().partition(|entry| matches!(entry.sample, Sample::Paper(_)));
    let rows = |entries: &[&Entry]| layout(entries.iter().copied(), frame.width).1;
    let top = 6 + rows(&own) * ROW + 4;
    let words_below = if frame.x_label.is_empty() { 0 } else { 20 };
    let ticks = TICKS + (frame.name_lines() - 1) * NAME;
    let below = top + UNIT + PLOT + ticks + words_below;
    let height = below + rows(&papers) * ROW + 4;
    let mut svg = String::new();
    {
        let sheet = SVGBackend::with_string(&mut svg, (frame.width as u32, height as u32)).into_drawing_area();
        sheet.fill(&Ink::Surface.colour())?;
        entries(&sheet, &own, 6, frame.width)?;
        entries(&sheet, &papers, below, frame.width)?;
        let unit = |text: &str, x, h| sheet.draw_text(text, &words(Ink::Axis, LETTER, h, VPos::Center), (x, top + 9));
        unit(frame.y_unit, 10, HPos::Left)?;
        let right = frame.right.map_or(26, |_| LEFT - 8);
        let area = sheet.margin(top + UNIT, height - below + words_below, 0, right);
        let chart = ChartBuilder::on(&area)
            .set_label_area_size(LabelAreaPosition::Left, LEFT)
            .set_label_area_size(LabelAreaPosition::Bottom, ticks)
            .build_cartesian_2d(frame.x.range.0..frame.x.range.1, frame.y.range.0..frame.y.range.1)?;
        axes(&sheet, &chart, frame)?;
        let caption = words(Ink::Axis, LETTER, HPos::Center, VPos::Center);
        sheet.draw_text(frame.x_label, &caption, ((LEFT + frame.width - right) / 2, below - 12))?;
        if let Some(scale) = frame.right {
            unit(&scale.unit, frame.width - 10, HPos::Right)?;
        }
        paint(&chart, &sheet)?;
        sheet.present()?;
    }
    Ok(classify(&svg))
}

/// Draws the grid, the axes and their numbers.
fn axes(sheet: &Sheet<'_>, plot: &Plot<'_, '_>, frame: &Frame<'_>) -> Result<()> {
    let pixel = |x: f64, y: f64| plot.backend_coord(&(x, y));
    let (x, y) = (frame.x, frame.y);
    let line = |ink: Ink, from, to| sheet.draw(&PathElement::new(vec![from, to], ink.colour()));
    let label = |text: &str, h, v, at| sheet.draw_text(text, &words(Ink::Axis, LETTER, h, v), at);
    for tick in &y.ticks {
        let from = pixel(x.range.0, *tick);
        line(Ink::Grid, from, pixel(x.range.1, *tick))?;
        label(&y.label(*tick), HPos::Right, VPos::Center, (from.0 - 8, from.1))?;
    }
    let labels: Vec<String> =
        x.ticks.iter().enumerate().map(|(i, t)| frame.names.get(i).cloned().unwrap_or_else(|| x.label(*t))).collect();
    let apart = x.ticks.windows(2).map(|pair| pixel(pair[1], 0.0).0 - pixel(pair[0], 0.0).0).min();
    let every = if frame.names.is_empty() { every(&labels, apart.unwrap_or(1)) } else { 1 };
    for (i, (tick, text)) in x.ticks.iter().zip(&labels).enumerate() {
        let from = pixel(*tick, y.range.0);
        if frame.names.is_empty() {
            line(Ink::Grid, from, pixel(*tick, y.range.1))?;
        }
        // The last has its words whatever the others have: it is how far the axis goes.
        if !(labels.len() - 1 - i).is_multiple_of(every) {
            continue;
        }
        let lower = if i % 2 == 1 && frame.staggers_names() { frame.name_lines() / 2 } else { 0 };
        for (line, text) in if frame.breaks_names() { lines(text) } else { vec![text.as_str()] }.iter().enumerate() {
            label(text, HPos::Center, VPos::Top, (from.0, from.1 + 8 + (lower + line as i32) * NAME))?;
        }
    }
    let corner = pixel(x.range.0, y.range.0);
    line(Ink::Axis, corner, pixel(x.range.0, y.range.1))?;
    line(Ink::Axis, corner, pixel(x.range.1, y.range.0))?;
    if let Some(scale) = frame.right {
        let right = y.times(scale.factor);
        line(Ink::Axis, pixel(x.range.1, y.range.0), pixel(x.range.1, y.range.1))?;
        for tick in &right.ticks {
            let share = (tick - right.range.0) / (right.range.1 - right.range.0);
            let at = pixel(x.range.1, y.range.0 + share * (y.range.1 - y.range.0));
            line(Ink::Axis, at, (at.0 + 5, at.1))?;
            label(&right.label(*tick), HPos::Left, VPos::Center, (at.0 + 9, at.1))?;
        }
    }
    Ok(())
}

/// The number of ticks of which one can have its words, if ticks are `apart` pixels apart.
fn every(labels: &[String], apart: i32) -> usize {
    let widest = labels.iter().map(|label| width(label, LETTER)).max().unwrap_or(0);
    (widest / apart.max(1) + 1) as usize
}

/// The legend's entries of the paper's values, said to be off the scale where they are.
pub fn paper_entries(values: &[PaperValue], y: &Axis) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for value in values {
        let sample = Sample::Paper(value.device);
        let off = if y.covers(value.y) { "" } else { " (above the scale)" };
        let label = format!("{}{off}", value.label);
        // A device with several values has one entry.
        match entries.iter_mut().find(|entry| entry.sample == sample) {
            Some(entry) if off.is_empty() => entry.label = label,
            Some(_) => {}
            None => entries.push(Entry { sample, label }),
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_legend_breaks_before_the_edge() {
        let entry = Entry { sample: Sample::Series(0), label: "x".repeat(25) };
        let (places, rows) = layout(&vec![entry.clone(); 3], WIDE);
        assert_eq!(places, [(10, 0), (255, 0), (10, 1)]);
        assert_eq!(rows, 2);
        assert_eq!(layout(&vec![entry; 3], NARROW).0, [(10, 0), (10, 1), (10, 2)]);
        assert_eq!(layout(&[], WIDE).1, 0);
    }

    #[test]
    fn names_that_are_too_wide_stand_in_two_lines_and_lower_by_turns() {
        let (x, y) = (Axis::names(7), Axis::names(1));
        let lines = |width, name: &str| {
            let names = vec![name.to_owned(); 7];
            let (x, y) = (&x, &y);
            Frame { width, x, names: &names, x_label: "", y, y_unit: "", right: None, legend: &[] }.name_lines()
        };
        assert_eq!([WHOLE, WIDE, NARROW].map(|width| lines(width, "Send")), [1, 1, 1]);
        assert_eq!([WHOLE, WIDE, NARROW].map(|width| lines(width, "raw put")), [1, 1, 2]);
        assert_eq!([WHOLE, WIDE, NARROW].map(|width| lines(width, "Write+imm")), [1, 2, 2]);
        assert_eq!([WHOLE, WIDE, NARROW].map(|width| lines(width, "MPI ping-pong")), [1, 4, 4]);
    }

    #[test]
    fn ticks_that_are_close_take_turns_to_have_words() {
        let labels = ["8 B", "128 B", "2 KiB", "32 KiB", "512 KiB", "8 MiB"].map(str::to_owned);
        assert_eq!([90, 56, 54, 20].map(|apart| every(&labels, apart)), [1, 1, 2, 3]);
        let axis = Axis::over([8.0, 8_388_608.0], crate::axis::Spacing::Bytes);
        let y = Axis::over([1.0], crate::axis::Spacing::Linear);
        let words = |width| {
            let frame = Frame { width, x: &axis, names: &[], x_label: "", y: &y, y_unit: "", right: None, legend: &[] };
            let svg = draw(&frame, |_, _| Ok(())).expect("a drawing");
            labels.iter().filter(|label| svg.contains(&format!("\n{label}\n"))).cloned().collect::<Vec<_>>()
        };
        assert_eq!(words(WIDE), labels);
        assert_eq!(words(NARROW), ["128 B", "32 KiB", "8 MiB"]);
    }

    #[test]
    fn words_are_escaped() {
        let legend = [Entry { sample: Sample::Bar(0), label: "<script>alert(1)</script>".to_owned() }];
        let axis = Axis::names(1);
        let y = Axis::over([1.0], crate::axis::Spacing::Linear);
        let names = ["a & b".to_owned()];
        let width = WIDE;
        let frame =
            Frame { width, x: &axis, names: &names, x_label: "", y: &y, y_unit: "µs", right: None, legend: &legend };
        let svg = draw(&frame, |_, _| Ok(())).expect("a drawing");
        assert!(svg.contains("&lt;script&gt;") && svg.contains("a &amp; b") && !svg.contains("<script"), "{svg}");
    }
}
