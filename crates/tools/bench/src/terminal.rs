//! Tables on the terminal: no wider than it is, and no word broken in two.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, TableComponent, Width, presets};

/// How a column takes up room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Words, which go on in the next line if there are too many of them.
    Words,
    /// Never parted; on the left.
    Name,
    /// Never parted; on the right.
    Number,
}

/// The screen whose width counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Screen {
    /// The terminal at standard output; without limit if there is none.
    Out,
    /// The terminal at standard error; without limit if there is none.
    Error,
    /// This number of columns.
    Columns(u16),
}

/// Between two columns.
const GAP: u16 = 2;

/// The rows under these headings.
pub fn table(columns: &[(&str, Kind)], rows: &[Vec<String>], screen: Screen) -> String {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_style(TableComponent::HeaderLines, '═')
        .set_content_arrangement(ContentArrangement::Dynamic);
    match screen {
        Screen::Out => {}
        Screen::Error => {
            table.use_stderr();
        }
        Screen::Columns(width) => {
            table.set_width(width);
        }
    }
    table.set_header(columns.iter().map(|(heading, _)| *heading));
    for row in rows {
        table.add_row(row);
    }
    for (i, (heading, kind)) in columns.iter().enumerate() {
        let Some(column) = table.column_mut(i) else { continue };
        let gap = if i + 1 < columns.len() { GAP } else { 0 };
        column.set_padding((0, gap));
        // The crate breaks a word that is wider than its column.
        let words = rows.iter().flat_map(|row| row[i].split(' ')).chain(heading.split(' '));
        let longest = words.map(|word| word.chars().count()).max().unwrap_or(0);
        column.set_constraint(match kind {
            Kind::Words => ColumnConstraint::LowerBoundary(Width::Fixed(longest as u16 + gap)),
            Kind::Name | Kind::Number => ColumnConstraint::ContentWidth,
        });
        if *kind == Kind::Number {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_go_on_in_the_next_line_and_numbers_are_never_parted() {
        let row = |words: &str, number: &str| vec!["a name".to_owned(), words.to_owned(), number.to_owned()];
        let rows = [row("interference paused, incomplete", "12,345 MB/s"), row("", "1 MB/s")];
        let columns = [("", Kind::Name), ("note", Kind::Words), ("value", Kind::Number)];
        let lines = |width| {
            let text = table(&columns, &rows, Screen::Columns(width));
            text.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(
            lines(35),
            [
                "        note                  value",
                "═══════════════════════════════════",
                "a name  interference    12,345 MB/s",
                "        paused,",
                "        incomplete",
                "a name                       1 MB/s",
            ]
        );
        // Too narrow for one word beside another: rather too wide than broken.
        assert!(lines(20).iter().any(|line| line.contains("interference")), "{:#?}", lines(20));
        assert_eq!(lines(80)[2], "a name  interference paused, incomplete  12,345 MB/s");
    }
}
