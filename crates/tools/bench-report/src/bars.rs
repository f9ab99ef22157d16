//! Grouped bars: one group for each operation, one bar in it for each placement.

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};
use vervain_bench::number::number;

use super::axis::{Axis, Spacing};
use super::canvas::{self, Entry, Frame, PaperValue, Point, RightScale, Sample, paper_lines, whisker, words};
use super::ink::Ink;

/// A chart of grouped bars. The `x` of a point is the place of its group.
#[derive(Debug, Clone, PartialEq)]
pub struct BarChart {
    /// The groups' words.
    pub groups: Vec<String>,
    /// A label for the legend and one bar in each of some groups.
    pub bars: Vec<(String, Vec<Point>)>,
    /// Above the y axis.
    pub unit: String,
    /// Lines across a group, by its place.
    pub paper: Vec<(usize, PaperValue)>,
    /// On the right.
    pub right: Option<RightScale>,
}

/// The share of a group that its bars fill.
const FILLED: f64 = 0.8;
/// The words on top of a bar are smaller than those around, so that two beside each other do not touch.
const VALUE: i32 = 12;

impl BarChart {
    /// The chart; bars begin at zero.
    pub fn draw(&self, width: i32) -> Result<String> {
        let points = || self.bars.iter().flat_map(|(_, points)| points);
        let most = points().map(|p| p.y).filter(|y| y.is_finite()).fold(0.0, f64::max);
        let tops = points().flat_map(|p| [p.y, p.interval.1]).filter(|v| *v <= most * 1.5);
        let papers = self.paper.iter().map(|(_, v)| v.y).filter(|v| *v <= most * 1.5);
        // Room for the value on top of the highest.
        let x = Axis::names(self.groups.len());
        let y = Axis::over(tops.chain(papers).map(|v| v * 1.06), Spacing::Linear);
        let mut legend: Vec<Entry> = Vec::new();
        for (i, (label, _)) in self.bars.iter().enumerate() {
            legend.push(Entry { sample: Sample::Bar(i), label: label.clone() });
        }
        if points().any(|p| p.doubtful) {
            legend.push(Entry { sample: Sample::Asterisk, label: "doubtful value".to_owned() });
        }
        let papers: Vec<PaperValue> = self.paper.iter().map(|(_, value)| value.clone()).collect();
        legend.extend(canvas::paper_entries(&papers, &y));
        let frame = Frame {
            width,
            x: &x,
            names: &self.groups,
            x_label: "",
            y: &y,
            y_unit: &self.unit,
            right: self.right.as_ref(),
            legend: &legend,
        };
        canvas::draw(&frame, |plot, sheet| {
            let pixel = |place: f64, value: f64| plot.backend_coord(&(place, y.at(value)));
            let (left, top) = plot.backend_coord(&(x.range.0, y.range.1));
            let mut labels = Vec::new();
            let wide = FILLED / self.bars.len().max(1) as f64;
            for (i, (_, points)) in self.bars.iter().enumerate() {
                for point in points {
                    let begin = point.x + (1.0 - FILLED) / 2.0 + wide * i as f64;
                    let (from, to) = (pixel(begin + wide * 0.05, 0.0), pixel(begin + wide * 0.95, point.y));
                    sheet.draw(&Rectangle::new([from, to], Ink::Mark(i).colour().filled()))?;
                    let middle = i32::midpoint(from.0, to.0);
                    let ends = (pixel(begin, point.interval.0).1, pixel(begin, point.interval.1).1);
                    whisker(sheet, Ink::Text, middle, ends)?;
                    let text = format!("{}{}", number(point.y), if point.doubtful { "*" } else { "" });
                    labels.push((middle, to.1.min(ends.1) - 4, text));
                }
            }
            // There is room beside the units; above them are the words of the legend.
            for (x, y, text) in apart(labels, (left, top - canvas::UNIT + VALUE)) {
                sheet.draw_text(&text, &words(Ink::Label, VALUE, HPos::Center, VPos::Bottom), (x, y))?;
            }
            let ends = |group: usize, v: f64| [0.02, 0.98].map(|share| pixel(group as f64 + share, v));
            let papers = self.paper.iter().filter(|(_, v)| y.covers(v.y));
            paper_lines(sheet, &papers.map(|(group, v)| (v.device, ends(*group, v.y))).collect::<Vec<_>>())
        })
    }
}

/// Moves labels (middle, foot, words) up until none covers another, right of `left` and with their feet below `top`.
/// Labels without room are left out: the table has all values.
fn apart(mut labels: Vec<(i32, i32, String)>, (left, top): (i32, i32)) -> Vec<(i32, i32, String)> {
    labels.sort_by_key(|(x, ..)| *x);
    let mut placed: Vec<(i32, i32, String)> = Vec::new();
    for (x, y, text) in labels {
        let wide = canvas::width(&text, VALUE);
        let (x, mut y) = (x.max(left + wide / 2), y.max(top));
        let touches = |y: i32| {
            placed.iter().any(|other| {
                let reach = (wide + canvas::width(&other.2, VALUE)) / 2;
                (x - other.0).abs() < reach && (y - other.1).abs() < VALUE + 1
            })
        };
        while y >= top && touches(y) {
            y -= 1;
        }
        if y >= top {
            placed.push((x, y, text));
        }
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bar_says_its_value_and_a_doubtful_one_has_an_asterisk() {
        let point = |x, y, doubtful| Point { x, y, interval: (y * 0.9, y * 1.1), doubtful };
        let chart = BarChart {
            groups: vec!["write".to_owned(), "faa".to_owned()],
            bars: vec![("loopback".to_owned(), vec![point(0.0, 120.0, false), point(1.0, 61.0, true)])],
            unit: "MB/s".to_owned(),
            paper: vec![(1, PaperValue { device: 1, label: "QDR 22.4".to_owned(), y: 22.4 })],
            right: Some(RightScale { unit: "M/s".to_owned(), factor: 0.125 }),
        };
        let svg = chart.draw(canvas::WIDE).expect("a drawing");
        for text in ["\n120\n", "\n61.0*\n", "\ndoubtful value\n", "\nQDR 22.4\n", "\nfaa\n", "\nM/s\n"] {
            assert!(svg.contains(text), "{text:?} in {svg}");
        }
        assert_eq!(svg.matches("f s0").count(), 3, "two bars and the legend: {svg}");
        assert_eq!(svg.matches("k p1 paper\"").count(), 2, "one line and the legend: {svg}");
    }

    #[test]
    fn labels_of_equal_bars_stand_above_each_other() {
        let label = |x, y| (x, y, "123.4".to_owned());
        let placed = |labels, top| {
            let placed: Vec<_> = apart(labels, (90, top)).iter().map(|l| (l.0, l.1)).collect();
            placed
        };
        let labels = || vec![label(130, 50), label(100, 50), label(160, 90), label(500, 10)];
        assert_eq!(placed(labels(), 10), [(108, 50), (130, 37), (160, 90), (500, 10)]);
        // No words of the legend are covered, by a bar that ends above the scale either.
        assert_eq!(placed(labels(), 38), [(108, 50), (160, 90), (500, 38)]);
    }

    #[test]
    fn a_chart_without_bars_is_drawn_all_the_same() {
        let empty = BarChart { groups: vec![], bars: vec![], unit: String::new(), paper: vec![], right: None };
        assert!(empty.draw(canvas::NARROW).expect("a drawing").starts_with("<svg"));
    }
}
