//! Forest plots: ratios with their intervals, one under the other, and the line of "no difference" through all.

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};
use vervain_bench::number::tick;

use super::canvas::{Sheet, width, words};
use super::ink::{Ink, classify};

/// One row.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Above the interval.
    pub label: String,
    /// The ratio.
    pub value: f64,
    /// Its interval.
    pub interval: (f64, f64),
    /// Colour and fill.
    pub tone: Tone,
}

/// The meaning of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// Better, and not by chance.
    Better,
    /// Worse, and not by chance.
    Worse,
    /// Perhaps chance.
    Same,
}

impl Tone {
    fn series(self) -> usize {
        match self {
            Self::Better => 0,
            Self::Worse => 1,
            Self::Same => 6,
        }
    }

    /// Colour alone must not tell it.
    fn note(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Same => "",
        }
    }
}

const MARGIN: i32 = 30;
/// Below the words, where the interval is drawn.
const BAR: i32 = 20;
const LETTER: i32 = 12;
/// From one line of words to the next.
const LINE: i32 = 16;
const NOTE: i32 = 60;
const TOP: i32 = 54;

/// Draws the rows from top to bottom over one scale. `means` says which way is good.
pub fn draw(rows: &[Row], means: &str, across: i32) -> Result<String> {
    let ends = rows.iter().flat_map(|r| [r.value, r.interval.0, r.interval.1]).filter(|v| *v > 0.0 && v.is_finite());
    let most = ends.map(|v| v.log2().abs()).fold(0.05, f64::max).min(10.0);
    let (ticks, reach) = scale(most);
    let labels: Vec<Vec<String>> = rows.iter().map(|row| lines(&row.label, across - NOTE - 10)).collect();
    let height = TOP + labels.iter().map(|lines| lines.len() as i32 * LINE + BAR).sum::<i32>() + 8;
    let pixel = |value: f64| {
        let share = (value.max(f64::MIN_POSITIVE).log2().clamp(-reach, reach) + reach) / (2.0 * reach);
        MARGIN + (share * f64::from(across - 2 * MARGIN)).round() as i32
    };
    let mut svg = String::new();
    {
        let sheet: Sheet<'_> = SVGBackend::with_string(&mut svg, (across as u32, height as u32)).into_drawing_area();
        sheet.fill(&Ink::Surface.colour())?;
        let text = |text: &str, ink, size, at, h| sheet.draw_text(text, &words(ink, size, h, VPos::Center), at);
        text(means, Ink::Axis, LETTER, (across / 2, 14), HPos::Center)?;
        for value in ticks {
            let x = pixel(value);
            text(&format!("× {}", tick(value)), Ink::Axis, LETTER, (x, 36), HPos::Center)?;
            let ink = if (value - 1.0).abs() < 1e-9 { Ink::Axis } else { Ink::Grid };
            sheet.draw(&PathElement::new(vec![(x, TOP - 8), (x, height - 4)], ink.colour().stroke_width(1)))?;
        }
        let mut top = TOP;
        for (row, lines) in rows.iter().zip(&labels) {
            text(row.tone.note(), Ink::Label, LETTER, (across - 10, top + 8), HPos::Right)?;
            for line in lines {
                text(line, Ink::Label, LETTER, (10, top + 8), HPos::Left)?;
                top += LINE;
            }
            let y = top + 8;
            top += BAR;
            let ink = Ink::Mark(row.tone.series());
            let ends = (pixel(row.interval.0), pixel(row.interval.1));
            sheet.draw(&PathElement::new(vec![(ends.0, y), (ends.1, y)], ink.colour().stroke_width(2)))?;
            sheet.draw(&Circle::new((pixel(row.value), y), 6, ink.colour().filled()))?;
        }
        sheet.present()?;
    }
    Ok(classify(&svg))
}

/// Words in lines of at most so many pixels.
fn lines(text: &str, room: i32) -> Vec<String> {
    let mut lines: Vec<String> = vec![String::new()];
    for word in text.split(' ') {
        let longer = match lines.last().map_or("", String::as_str) {
            "" => word.to_owned(),
            line => format!("{line} {word}"),
        };
        let is_first = lines.last().is_some_and(String::is_empty);
        if is_first || width(&longer, LETTER) <= room {
            lines.pop();
            lines.push(longer);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// Ticks for ratios up to 2 to the power of `most` and their inverses, and how far the axis goes each way, as a
/// logarithm to base 2.
fn scale(most: f64) -> (Vec<f64>, f64) {
    let candidates: &[&[f64]] = &[&[1.05, 1.1], &[1.1, 1.2], &[1.2, 1.5], &[1.5, 2.0], &[2.0, 4.0], &[4.0, 16.0]];
    let fits = candidates.iter().find(|c| c.iter().copied().fold(0.0, f64::max).log2() >= most);
    let steps: &[f64] = fits.copied().unwrap_or(&[32.0, 1024.0]);
    let mut ticks: Vec<f64> = steps.iter().flat_map(|s| [*s, 1.0 / s]).collect();
    ticks.push(1.0);
    ticks.sort_by(f64::total_cmp);
    (ticks, steps.iter().copied().fold(1.0, f64::max).log2() * 1.02)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canvas::{NARROW, WIDE};

    #[test]
    fn rows_stand_under_each_other_and_say_what_they_are() {
        let row =
            |value: f64, tone| Row { label: "<a> & b".to_owned(), value, interval: (value * 0.9, value * 1.1), tone };
        let rows = [row(1.5, Tone::Better), row(0.7, Tone::Worse), row(1.0, Tone::Same)];
        let svg = draw(&rows, "right is faster", WIDE).expect("a drawing");
        assert_eq!(svg.matches("<circle").count(), 3);
        assert_eq!(svg.matches("&lt;a&gt; &amp; b").count(), 3);
        assert!(svg.contains("\nbetter\n") && svg.contains("\nworse\n"), "{svg}");
        assert!(svg.contains("× 2") && svg.contains("× 0.5"), "{svg}");
    }

    #[test]
    fn a_label_that_would_reach_the_note_goes_on_below() {
        let label = "64 KiB write+imm RC, depth 512, loopback, beside 8 B read";
        assert_eq!(lines(label, 450), [label]);
        assert_eq!(lines(label, 290), ["64 KiB write+imm RC, depth 512,", "loopback, beside 8 B read"]);
        assert_eq!(lines("", 290), [""]);
        let row = || Row { label: label.to_owned(), value: 1.0, interval: (0.9, 1.1), tone: Tone::Worse };
        let svg = draw(&[row(), row()], "", NARROW).expect("a drawing");
        assert_eq!(svg.matches("\nloopback, beside 8 B read\n").count(), 2, "{svg}");
    }

    #[test]
    fn ratios_beyond_all_measure_stay_on_the_sheet() {
        let row = Row { label: String::new(), value: 1e30, interval: (0.0, f64::INFINITY), tone: Tone::Same };
        let svg = draw(&[row], "", NARROW).expect("a drawing");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(draw(&[], "", WIDE).expect("a drawing").starts_with("<svg"));
    }
}
