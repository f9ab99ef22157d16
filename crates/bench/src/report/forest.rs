//! Forest plots: ratios with their intervals, one under the other, and the line of "no difference" through all.

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::canvas::{Sheet, WIDTH, width, words};
use super::ink::{Ink, classify};
use super::number::tick;

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

/// What a row says.
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
/// Two lines: the words, below them the interval.
const ROW: i32 = 36;
const LETTER: i32 = 12;
/// For labels that would reach the note.
const SMALL: i32 = 10;
const NOTE: i32 = 60;
const TOP: i32 = 54;

/// Draws the rows from top to bottom over one scale. `means` says which way is good.
pub fn draw(rows: &[Row], means: &str) -> Result<String> {
    let ends = rows.iter().flat_map(|r| [r.value, r.interval.0, r.interval.1]).filter(|v| *v > 0.0 && v.is_finite());
    let most = ends.map(|v| v.log2().abs()).fold(0.05, f64::max).min(10.0);
    let (ticks, reach) = scale(most);
    let height = TOP + ROW * rows.len() as i32 + 8;
    let pixel = |value: f64| {
        let share = (value.max(f64::MIN_POSITIVE).log2().clamp(-reach, reach) + reach) / (2.0 * reach);
        MARGIN + (share * f64::from(WIDTH - 2 * MARGIN)).round() as i32
    };
    let mut svg = String::new();
    {
        let sheet: Sheet<'_> = SVGBackend::with_string(&mut svg, (WIDTH as u32, height as u32)).into_drawing_area();
        sheet.fill(&Ink::Surface.colour())?;
        let text = |text: &str, ink, size, at, h| sheet.draw_text(text, &words(ink, size, h, VPos::Center), at);
        text(means, Ink::Axis, LETTER, (WIDTH / 2, 14), HPos::Center)?;
        for value in ticks {
            let x = pixel(value);
            text(&format!("× {}", tick(value)), Ink::Axis, LETTER, (x, 36), HPos::Center)?;
            let ink = if (value - 1.0).abs() < 1e-9 { Ink::Axis } else { Ink::Grid };
            sheet.draw(&PathElement::new(vec![(x, TOP - 8), (x, height - 4)], ink.colour().stroke_width(1)))?;
        }
        for (i, row) in rows.iter().enumerate() {
            let top = TOP + ROW * i as i32;
            let size = if width(&row.label, LETTER) > WIDTH - NOTE - 10 { SMALL } else { LETTER };
            text(&row.label, Ink::Label, size, (10, top + 8), HPos::Left)?;
            text(row.tone.note(), Ink::Label, LETTER, (WIDTH - 10, top + 8), HPos::Right)?;
            let y = top + 24;
            let ink = Ink::Mark(row.tone.series());
            let ends = (pixel(row.interval.0), pixel(row.interval.1));
            sheet.draw(&PathElement::new(vec![(ends.0, y), (ends.1, y)], ink.colour().stroke_width(2)))?;
            sheet.draw(&Circle::new((pixel(row.value), y), 6, ink.colour().filled()))?;
        }
        sheet.present()?;
    }
    Ok(classify(&svg))
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

    #[test]
    fn rows_stand_under_each_other_and_say_what_they_are() {
        let row =
            |value: f64, tone| Row { label: "<a> & b".to_owned(), value, interval: (value * 0.9, value * 1.1), tone };
        let rows = [row(1.5, Tone::Better), row(0.7, Tone::Worse), row(1.0, Tone::Same)];
        let svg = draw(&rows, "right is faster").expect("a drawing");
        assert_eq!(svg.matches("<circle").count(), 3);
        assert_eq!(svg.matches("&lt;a&gt; &amp; b").count(), 3);
        assert!(svg.contains("\nbetter\n") && svg.contains("\nworse\n"), "{svg}");
        assert!(svg.contains("× 2") && svg.contains("× 0.5"), "{svg}");
    }

    #[test]
    fn ratios_beyond_all_measure_stay_on_the_sheet() {
        let row = Row { label: String::new(), value: 1e30, interval: (0.0, f64::INFINITY), tone: Tone::Same };
        let svg = draw(&[row], "").expect("a drawing");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(draw(&[], "").expect("a drawing").starts_with("<svg"));
    }
}
