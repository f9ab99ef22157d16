//! Mistakes in a plan, as their author sees them: place, key, what was expected, what was found, and the line itself.

use std::fmt;
use std::ops::Range;

/// Mistakes that are shown; who made more has made the same one many times.
pub(super) const SHOWN: usize = 50;
/// Characters of a line that are shown.
const LINE: usize = 110;
/// Characters of a value that are shown as "found".
const FOUND: usize = 40;

/// All that is wrong with a plan, in the order of its lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanErrors {
    /// The plan's name, or the path of its file.
    pub plan: String,
    /// The mistakes, at least one and at most 50.
    pub errors: Vec<PlanError>,
    /// Mistakes beyond those.
    pub more: usize,
}

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanError {
    /// Its place; None for a plan that could not be read at all.
    pub place: Option<Place>,
    /// The key with the way to it, `case[2].size`; blocks and elements count from 1. Empty where there is none.
    pub key: String,
    /// A sentence: what was expected and what was found.
    pub what: String,
}

/// A place in the text of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// The line, or what of it is near the mistake, without control characters.
    pub excerpt: String,
    /// The mistake within the excerpt, in characters.
    pub marked: Range<usize>,
}

impl std::error::Error for PlanErrors {}

impl PlanErrors {
    /// For a plan of which there is no text.
    pub(super) fn unreadable(plan: &str, what: String) -> PlanErrors {
        PlanErrors { plan: plan.to_owned(), errors: vec![PlanError { place: None, key: String::new(), what }], more: 0 }
    }
}

impl fmt::Display for PlanErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.errors.iter().enumerate() {
            if i > 0 {
                write!(f, "\n\n")?;
            }
            write!(f, "{}", self.plan)?;
            if let Some(place) = &error.place {
                write!(f, ":{}:{}", place.line, place.column)?;
            }
            if !error.key.is_empty() {
                write!(f, ": {}", error.key)?;
            }
            write!(f, ": {}", error.what)?;
            if let Some(Place { line, excerpt, marked, .. }) = &error.place {
                let margin = line.to_string().len();
                let (before, carets) = (" ".repeat(marked.start), "^".repeat(marked.len().max(1)));
                write!(f, "\n{:margin$} |\n{line} | {excerpt}\n{:margin$} | {before}{carets}", "", "")?;
            }
        }
        if self.more > 0 {
            write!(f, "\n\n{}: and {} more mistakes", self.plan, self.more)?;
        }
        Ok(())
    }
}

/// Collects the mistakes in one text.
pub(super) struct Mistakes<'t> {
    text: &'t str,
    found: Vec<(Range<usize>, String, String)>,
}

impl<'t> Mistakes<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Mistakes { text, found: Vec::new() }
    }

    /// Bytes `span` of the text are wrong.
    pub(super) fn add(&mut self, span: Range<usize>, key: impl Into<String>, what: impl Into<String>) {
        self.found.push((span, key.into(), what.into()));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Returns true if it is text in quotes.
    pub(super) fn is_quoted(&self, span: &Range<usize>) -> bool {
        self.text.get(span.clone()).is_some_and(|text| text.starts_with(['"', '\'']))
    }

    /// The text there, for "found ...": as it was written, cut if it is long.
    pub(super) fn quote(&self, span: Range<usize>) -> String {
        let text = self.text.get(span).unwrap_or_default();
        let mut shown: String = text.chars().take(FOUND).map(visible).collect();
        if text.chars().nth(FOUND).is_some() {
            shown.push('…');
        }
        shown
    }

    /// In the order of the text; a mistake of `[defaults]` that shows in many blocks is one.
    pub(super) fn into_errors(mut self, plan: &str) -> PlanErrors {
        self.found.sort_by(|a, b| (a.0.start, a.0.end, &a.1, &a.2).cmp(&(b.0.start, b.0.end, &b.1, &b.2)));
        self.found.dedup();
        let more = self.found.len().saturating_sub(SHOWN);
        let shown = self.found.drain(..).take(SHOWN);
        let error = |(span, key, what)| PlanError { place: Some(place(self.text, span)), key, what };
        PlanErrors { plan: plan.to_owned(), errors: shown.map(error).collect(), more }
    }
}

/// The place of these bytes; of several lines the first.
fn place(text: &str, span: Range<usize>) -> Place {
    let start = boundary(text, span.start);
    let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
    let line_end = text[start..].find('\n').map_or(text.len(), |newline| start + newline);
    let end = boundary(text, span.end.clamp(start, line_end));

    let before = text[line_start..start].chars().count();
    let marked = text[start..end].chars().count();
    // A long line shows from 60 characters before the mistake, after an ellipsis.
    let skipped = if before + marked > LINE { before.saturating_sub(60) } else { 0 };
    let mut excerpt: String = text[line_start..line_end].trim_end_matches('\r').chars().map(visible).collect();
    if skipped > 0 || excerpt.chars().nth(LINE).is_some() {
        let cut: String = excerpt.chars().skip(skipped).take(LINE).collect();
        let goes_on = excerpt.chars().nth(skipped + LINE).is_some();
        excerpt = format!("{}{cut}{}", if skipped > 0 { "…" } else { "" }, if goes_on { "…" } else { "" });
    }
    let at = before - skipped + usize::from(skipped > 0);
    let width = marked.min(LINE.saturating_sub(before - skipped)).max(1);
    Place { line: text[..start].matches('\n').count() + 1, column: before + 1, excerpt, marked: at..at + width }
}

/// The first byte of the character that has this one.
fn boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0)
}

/// Tabs as one blank, so that carets stand where they belong; nothing that a terminal would obey.
fn visible(c: char) -> char {
    match c {
        '\t' | '\n' | '\r' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    }
}

/// The one that was meant, where one is near; for a sentence's end.
pub(super) fn did_you_mean<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> String {
    if word.len() > 40 {
        return String::new();
    }
    let word = word.to_lowercase();
    let likeness = known.into_iter().map(|k| (strsim::jaro_winkler(&word, k), k));
    match likeness.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((likeness, near)) if likeness > 0.8 => format!("; did you mean \"{near}\"?"),
        _ => String::new(),
    }
}

/// "a, b or c".
pub(super) fn one_of<'k>(words: impl IntoIterator<Item = &'k str>) -> String {
    let words: Vec<_> = words.into_iter().collect();
    match words.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => words.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, span: Range<usize>) -> String {
        let mut mistakes = Mistakes::new(text);
        mistakes.add(span, "a.b", "wrong");
        mistakes.into_errors("mine").to_string()
    }

    #[test]
    fn a_mistake_is_shown_below_its_line() {
        let text = "a = 1\r\n\tb = \"ü\" # no\r\n";
        let at = text.find("\"ü").unwrap();
        assert_eq!(shown(text, at..at + 4), "mine:2:6: a.b: wrong\n  |\n2 |  b = \"ü\" # no\n  |      ^^^");
        assert_eq!(shown("", 0..0), "mine:1:1: a.b: wrong\n  |\n1 | \n  | ^");
        assert_eq!(shown("a = [\n1]", 4..8), "mine:1:5: a.b: wrong\n  |\n1 | a = [\n  |     ^");
    }

    #[test]
    fn a_terminal_obeys_nothing_that_a_plan_says() {
        assert_eq!(shown("a = \u{1b}[2J", 4..5), "mine:1:5: a.b: wrong\n  |\n1 | a = \u{fffd}[2J\n  |     ^");
        assert_eq!(Mistakes::new("\u{1b}[2J").quote(0..4), "\u{fffd}[2J");
    }

    #[test]
    fn a_long_line_is_cut_around_the_mistake() {
        let text = format!("{}?{}", "x".repeat(500), "y".repeat(500));
        let errors = shown(&text, 500..501);
        let lines: Vec<_> = errors.lines().collect();
        assert_eq!(lines[2], format!("1 | …{}?{}…", "x".repeat(60), "y".repeat(49)));
        assert_eq!(lines[3], format!("  | {}^", " ".repeat(61)));
        // The mistake is the line.
        assert!(shown(&text, 0..1001).lines().all(|line| line.chars().count() < 120));
    }

    #[test]
    fn mistakes_are_in_the_order_of_the_text_and_shown_once_and_not_by_thousands() {
        let text = "\n".repeat(1000);
        let mut mistakes = Mistakes::new(&text);
        for line in (0..100).rev() {
            mistakes.add(line..line, "", line.to_string());
            mistakes.add(line..line, "", line.to_string());
        }
        let errors = mistakes.into_errors("mine");
        assert_eq!((errors.errors.len(), errors.more), (50, 50));
        let lines: Vec<_> = errors.errors.iter().map(|e| e.place.as_ref().unwrap().line).collect();
        assert_eq!(lines, (1..=50).collect::<Vec<_>>());
        assert!(errors.to_string().ends_with("\n\nmine: and 50 more mistakes"));
    }

    #[test]
    fn a_near_word_is_offered_and_a_far_one_is_not() {
        assert_eq!(did_you_mean("iters", ["iterations", "inline"]), "; did you mean \"iterations\"?");
        assert_eq!(did_you_mean("RC", ["rc", "uc"]), "; did you mean \"rc\"?");
        assert_eq!(did_you_mean("colour", ["rc", "uc"]), "");
        assert_eq!(one_of(["a", "b", "c"]), "a, b or c");
        assert_eq!(one_of(["a"]), "a");
    }
}
