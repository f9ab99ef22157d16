//! Line charts: values over sizes, queue depths or numbers of QPs.

use anyhow::Result;
use plotters::prelude::*;

use super::axis::{Axis, Spacing};
use super::canvas::{self, Entry, Frame, PaperValue, Point, RightScale, Sample, mark, paper_lines, whisker};
use super::ink::Ink;

/// A series.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// For the legend.
    pub label: String,
    /// In any order.
    pub points: Vec<Point>,
    /// 99th percentiles: x and value.
    pub tail: Vec<(f64, f64)>,
}

/// A chart of lines; at most [`SERIES`](super::ink::SERIES) of them can be told apart.
#[derive(Debug, Clone, PartialEq)]
pub struct LineChart {
    /// Below.
    pub x_label: String,
    /// How x goes.
    pub x: Spacing,
    /// Above the y axis.
    pub unit: String,
    /// The series.
    pub lines: Vec<Line>,
    /// Horizontal lines.
    pub paper: Vec<PaperValue>,
    /// On the right.
    pub right: Option<RightScale>,
    /// A line across that means "nothing changed".
    pub level: Option<f64>,
}

/// The paper's values are on the scale where that does not press the measured ones down by more than this.
const ROOM_FOR_PAPER: f64 = 1.5;
/// 99th percentiles are on a linear scale where that does not press the measured ones down by more than this.
const ROOM_FOR_TAIL: f64 = 3.0;

impl LineChart {
    /// The chart with y values evenly spaced, or by decades.
    pub fn draw(&self, spacing: Spacing, width: i32) -> Result<String> {
        let x = Axis::over(self.lines.iter().flat_map(|l| &l.points).map(|p| p.x), self.x);
        let y = self.y_axis(spacing);
        let legend = self.legend(&y);
        let frame = Frame {
            width,
            x: &x,
            names: &[],
            x_label: &self.x_label,
            y: &y,
            y_unit: &self.unit,
            right: self.right.as_ref(),
            legend: &legend,
        };
        canvas::draw(&frame, |plot, sheet| {
            let pixel = |vx: f64, vy: f64| plot.backend_coord(&(x.at(vx), y.at(vy)));
            let across = |value: f64| [x.range.0, x.range.1].map(|end| plot.backend_coord(&(end, y.at(value))));
            if let Some(level) = self.level {
                sheet.draw(&PathElement::new(across(level).to_vec(), Ink::Axis.colour()))?;
            }
            let papers = self.paper.iter().filter(|v| y.covers(v.y));
            paper_lines(sheet, &papers.map(|v| (v.device, across(v.y))).collect::<Vec<_>>())?;
            for (i, line) in self.lines.iter().enumerate() {
                let mut tail: Vec<_> =
                    line.tail.iter().filter(|(_, v)| y.covers(*v)).map(|(a, v)| pixel(*a, *v)).collect();
                tail.sort_unstable();
                sheet.draw(&PathElement::new(tail, Ink::Tail(i).colour().stroke_width(2)))?;
            }
            for (i, line) in self.lines.iter().enumerate() {
                let mut points = line.points.clone();
                points.sort_by(|a, b| a.x.total_cmp(&b.x));
                let path: Vec<_> = points.iter().map(|p| pixel(p.x, p.y)).collect();
                sheet.draw(&PathElement::new(path.clone(), Ink::Line(i).colour().stroke_width(2)))?;
                for (point, at) in points.iter().zip(path) {
                    let [low, high] = [point.interval.0, point.interval.1].map(|v| pixel(point.x, v).1);
                    whisker(sheet, Ink::Mark(i), at.0, (low, high))?;
                    mark(sheet, i, at, point.doubtful)?;
                }
            }
            Ok(())
        })
    }

    /// Returns true if a value is so small that its mark would lie on the x axis if values were evenly spaced.
    pub fn hides_a_value(&self) -> bool {
        let top = self.y_axis(Spacing::Linear).range.1;
        let values = self.lines.iter().flat_map(|l| &l.points).map(|p| p.y);
        values.filter(|y| *y > 0.0).any(|y| y / top * f64::from(canvas::PLOT) < f64::from(canvas::MARK))
    }

    fn y_axis(&self, spacing: Spacing) -> Axis {
        let points = || self.lines.iter().flat_map(|l| &l.points);
        let most = points().map(|p| p.y).filter(|y| y.is_finite()).fold(0.0, f64::max);
        let mut values: Vec<f64> = points().map(|p| p.y).collect();
        let room = if spacing == Spacing::Linear { ROOM_FOR_TAIL } else { f64::INFINITY };
        values.extend(points().flat_map(|p| [p.interval.0, p.interval.1]).filter(|v| *v <= most * ROOM_FOR_PAPER));
        values.extend(self.lines.iter().flat_map(|l| &l.tail).map(|t| t.1).filter(|v| *v <= most * room));
        values.extend(self.paper.iter().map(|v| v.y).filter(|v| *v <= most * ROOM_FOR_PAPER));
        values.extend(self.level);
        // A scale by decades is not drawn out by one interval that reaches down to nothing.
        let least = points().map(|p| p.y).filter(|y| *y > 0.0).fold(f64::INFINITY, f64::min);
        values.retain(|v| spacing == Spacing::Linear || *v >= least / 10.0);
        Axis::over(values, spacing)
    }

    fn legend(&self, y: &Axis) -> Vec<Entry> {
        let series = |(i, line): (usize, &Line)| Entry { sample: Sample::Series(i), label: line.label.clone() };
        let drawn = self.lines.iter().enumerate().filter(|(_, line)| !line.points.is_empty());
        let mut legend: Vec<Entry> = drawn.map(series).collect();
        let mut also = |sample, label: &str| legend.push(Entry { sample, label: label.to_owned() });
        if self.lines.iter().any(|l| !l.tail.is_empty()) {
            also(Sample::Tail, "99th percentile");
        }
        if self.lines.iter().flat_map(|l| &l.points).any(|p| p.doubtful) {
            also(Sample::Hollow, "hollow: doubtful value");
        }
        legend.extend(canvas::paper_entries(&self.paper, y));
        legend
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: &[(f64, f64)]) -> LineChart {
        let point = |(x, y): &(f64, f64)| Point { x: *x, y: *y, interval: (y * 0.8, y * 1.2), doubtful: *x > 100.0 };
        LineChart {
            x_label: "message size".to_owned(),
            x: Spacing::Bytes,
            unit: "MB/s".to_owned(),
            lines: vec![Line { label: "write".to_owned(), points: points.iter().map(point).collect(), tail: vec![] }],
            paper: vec![PaperValue { device: 0, label: "paper".to_owned(), y: 1590.0 }],
            right: None,
            level: None,
        }
    }

    #[test]
    fn a_line_has_its_points_in_order_and_a_hollow_mark_for_a_doubtful_one() {
        let svg = chart(&[(1024.0, 4000.0), (8.0, 50.0)]).draw(Spacing::Linear, canvas::WIDE).expect("a drawing");
        let lines: Vec<&str> = svg.lines().filter(|l| l.contains("class=\"k s0 line\"")).collect();
        assert_eq!(lines.len(), 2, "the series and its sample in the legend: {svg}");
        let points = lines[1].split_once("points=\"").expect("points").1;
        let x: Vec<i32> = points.split(' ').filter_map(|p| p.split_once(',')?.0.parse().ok()).collect();
        assert!(x.len() == 2 && x[0] < x[1], "{points}");
        assert_eq!(svg.matches("class=\"f surface\"").count(), 3, "ground, one value, the legend: {svg}");
        assert!(svg.contains("hollow: doubtful value") && svg.contains("k p0 paper"), "{svg}");
    }

    #[test]
    fn a_value_of_the_paper_far_above_is_said_and_not_drawn() {
        let svg = chart(&[(8.0, 5.0), (64.0, 40.0)]).draw(Spacing::Linear, canvas::WIDE).expect("a drawing");
        assert!(svg.contains("paper (above the scale)"), "{svg}");
        assert_eq!(svg.matches("k p0 paper").count(), 1, "only the legend's: {svg}");
    }

    #[test]
    fn no_number_of_a_drawing_is_nan_whatever_the_values() {
        for points in [vec![], vec![(8.0, 0.0)], vec![(8.0, 1e-30), (16.0, 1e30)], vec![(8.0, f64::NAN)]] {
            for spacing in [Spacing::Linear, Spacing::Decades] {
                let svg = chart(&points).draw(spacing, canvas::NARROW).expect("a drawing");
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{points:?} {spacing:?}: {svg}");
            }
        }
    }
}
