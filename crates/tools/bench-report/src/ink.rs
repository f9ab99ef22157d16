//! The colours of the figures. The SVG backend of plotters writes fixed colours, one for each role here; the text that
//! comes out gets classes instead, and style sheets give each class its colour for light and for dark. A viewer without
//! style sheets shows the fixed colours, which are the light ones.

use std::fmt::Write as _;

use plotters::style::RGBColor;

/// Series that can be told apart in one figure.
pub const SERIES: usize = 7;

/// The inks; each has a colour of its own, if only by the lowest bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ink {
    /// Words.
    Text,
    /// Words that may cross something else.
    Label,
    /// Axes and their numbers.
    Axis,
    /// Lines of the grid.
    Grid,
    /// The background; also the inside of hollow marks.
    Surface,
    /// The line of a series.
    Line(usize),
    /// Marks, bars and error bars of a series.
    Mark(usize),
    /// A second line of the same series, for its 99th percentile.
    Tail(usize),
    /// The paper's value for a device; by its place in [`reference::DEVICES`](super::reference::DEVICES).
    Paper(usize),
    /// Around that, so that it stands out from what it crosses.
    Halo(usize),
}

/// Light and dark value. The series stay apart for all common kinds of colour blindness, and from both grounds by 3:1.
const SERIES_COLOURS: [(u32, u32); SERIES] = [
    (0x0060ac, 0x58b4f4),
    (0xc44a00, 0xff9650),
    (0x007c5c, 0x3cd0a4),
    (0xa43c80, 0xf098cc),
    (0x8c6400, 0xe4c048),
    (0x1c84a8, 0x80dce8),
    (0x585c64, 0xb8bcc4),
];
const PAPER_COLOURS: [(u32, u32); 3] = [(0x7c2c2c, 0xffb4a8), (0x3c3c90, 0xb4b8ff), (0x4c6020, 0xc8d890)];
/// Names of the style variables, light, dark. The page's own style uses the same.
const PLAIN: [(&str, u32, u32); 4] = [
    ("text", 0x1b1f24, 0xe6edf3),
    ("axis", 0x57606a, 0xa2acb8),
    ("grid", 0xe2e5e9, 0x2c333c),
    ("surface", 0xffffff, 0x171c23),
];

impl Ink {
    fn all() -> impl Iterator<Item = Self> {
        let series = (0..SERIES).flat_map(|i| [Self::Line(i), Self::Mark(i), Self::Tail(i)]);
        let papers = (0..PAPER_COLOURS.len()).flat_map(|i| [Self::Paper(i), Self::Halo(i)]);
        [Self::Text, Self::Label, Self::Axis, Self::Grid, Self::Surface].into_iter().chain(series).chain(papers)
    }

    fn code(self) -> u32 {
        match self {
            Self::Text => PLAIN[0].1,
            Self::Label => PLAIN[0].1 ^ 1,
            Self::Axis => PLAIN[1].1,
            Self::Grid => PLAIN[2].1,
            Self::Surface => PLAIN[3].1,
            // The colours of the series end in two zero bits.
            Self::Line(i) => SERIES_COLOURS[i % SERIES].0,
            Self::Mark(i) => SERIES_COLOURS[i % SERIES].0 | 1,
            Self::Tail(i) => SERIES_COLOURS[i % SERIES].0 | 2,
            Self::Paper(i) => PAPER_COLOURS[i % PAPER_COLOURS.len()].0,
            Self::Halo(i) => PLAIN[3].1 ^ (i as u32 + 1),
        }
    }

    /// The colour to draw with.
    pub fn colour(self) -> RGBColor {
        let [_, r, g, b] = self.code().to_be_bytes();
        RGBColor(r, g, b)
    }

    fn class(self) -> String {
        match self {
            Self::Text => "text".to_owned(),
            Self::Label => "text label".to_owned(),
            Self::Axis => "axis".to_owned(),
            Self::Grid => "grid".to_owned(),
            Self::Surface => "surface".to_owned(),
            Self::Line(i) => format!("s{i} line"),
            Self::Mark(i) => format!("s{i}"),
            Self::Tail(i) => format!("s{i} tail"),
            Self::Paper(i) => format!("p{i} paper"),
            Self::Halo(i) => format!("p{i} paper halo"),
        }
    }
}

/// Gives each element of a drawing the class of its colour.
pub fn classify(svg: &str) -> String {
    let mut text = svg.to_owned();
    for ink in Ink::all() {
        let (code, class) = (format!("#{:06X}", ink.code()), ink.class());
        for (attribute, how) in [("stroke", "k"), ("fill", "f")] {
            let plain = format!("{attribute}=\"{code}\"");
            text = text.replace(&plain, &format!("class=\"{how} {class}\" {plain}"));
        }
    }
    text
}

/// The style variables as CSS declarations.
fn variables(dark: bool) -> String {
    let pick = |(light, darker): (u32, u32)| if dark { darker } else { light };
    let mut text = String::new();
    for (name, light, darker) in PLAIN {
        let _ = write!(text, "--{name}:#{:06x};", pick((light, darker)));
    }
    for (prefix, colours) in [("s", SERIES_COLOURS.as_slice()), ("p", &PAPER_COLOURS)] {
        for (i, colour) in colours.iter().enumerate() {
            let _ = write!(text, "--{prefix}{i}:#{:06x};", pick(*colour));
        }
    }
    text
}

/// Colours of everything below `root` (a CSS selector), by the reader's preference; `light` and `dark` are selectors
/// where one was chosen by hand.
pub fn colours(root: &str, chosen: Option<(&str, &str)>) -> String {
    let (light, dark) = (variables(false), variables(true));
    let mut css = format!("{root}{{{light}}}\n@media (prefers-color-scheme:dark){{{root}{{{dark}}}}}\n");
    if let Some((chose_light, chose_dark)) = chosen {
        let _ =
            write!(css, "{chose_light}{{{light}}}\n{chose_dark}{{{dark}}}\n@media print{{{chose_dark}{{{light}}}}}\n");
    }
    css
}

/// How the classes of a figure look, whatever the colours are.
pub fn style() -> String {
    let mut css = String::from(
        "svg.figure text{font-family:system-ui,-apple-system,\"Segoe UI\",Roboto,\"Liberation Sans\",sans-serif}\n\
         svg.figure .k{stroke:var(--c)} svg.figure .f{fill:var(--c)}\n\
         svg.figure .line{stroke-linejoin:round;stroke-linecap:round}\n\
         svg.figure .tail{stroke-dasharray:1 4;stroke-linecap:round}\n\
         svg.figure .label{paint-order:stroke;stroke:var(--surface);stroke-width:3px;stroke-linejoin:round}\n\
         svg.figure .paper{display:none} svg.figure .k.paper:not(.halo){stroke-dasharray:10 10}\n",
    );
    for name in ["text", "axis", "grid", "surface"] {
        let _ = writeln!(css, "svg.figure .{name}{{--c:var(--{name})}}");
    }
    let dashes = ["none", "9 4", "3 4", "12 4 3 4", "6 3", "2 6", "14 6"];
    for (i, dash) in dashes.iter().enumerate() {
        let _ = writeln!(css, "svg.figure .s{i}{{--c:var(--s{i})}} svg.figure .s{i}.line{{stroke-dasharray:{dash}}}");
    }
    for (i, device) in super::reference::DEVICES.iter().enumerate() {
        let shown = format!("svg.figure[data-reference=\"{}\"] .p{i}", device.key);
        // Two devices may have the same value: each is seen where the other's line is not.
        let _ = writeln!(css, "svg.figure .p{i}{{--c:var(--p{i});stroke-dashoffset:{}}}", i % 2 * 10);
        let _ = writeln!(css, "{shown},svg.figure[data-reference=\"all\"] .p{i}{{display:inline}}");
    }
    css + "svg.figure .halo{--c:var(--surface)}\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ink_has_a_colour_and_a_class_of_its_own() {
        let all: Vec<Ink> = Ink::all().collect();
        for (i, one) in all.iter().enumerate() {
            for other in &all[..i] {
                assert_ne!((one.code(), one.class()), (other.code(), other.class()), "{one:?} {other:?}");
                assert_ne!(one.code(), other.code(), "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn a_colour_becomes_a_class_and_stays_as_a_fallback() {
        let plain = "<line stroke=\"#C44A01\"/><text fill=\"#1B1F24\">";
        let expected = "<line class=\"k s1\" stroke=\"#C44A01\"/><text class=\"f text\" fill=\"#1B1F24\">";
        assert_eq!(classify(plain), expected);
    }

    fn luminance(colour: u32) -> f64 {
        let [_, r, g, b] = colour.to_be_bytes().map(|v| {
            let v = f64::from(v) / 255.0;
            if v <= 0.040_45 { v / 12.92 } else { ((v + 0.055) / 1.055).powf(2.4) }
        });
        0.2126 * r + 0.7152 * g + 0.0722 * b
    }

    fn contrast(one: u32, other: u32) -> f64 {
        let (one, other) = (luminance(one) + 0.05, luminance(other) + 0.05);
        one.max(other) / one.min(other)
    }

    #[test]
    fn all_inks_stand_out_from_their_ground() {
        for (light, dark) in SERIES_COLOURS.into_iter().chain(PAPER_COLOURS) {
            assert!(contrast(light, PLAIN[3].1) > 3.0 && contrast(dark, PLAIN[3].2) > 3.0, "{light:06x} {dark:06x}");
        }
        for (name, light, dark) in &PLAIN[..2] {
            assert!(contrast(*light, PLAIN[3].1) > 4.5 && contrast(*dark, PLAIN[3].2) > 4.5, "{name}");
        }
    }
}
