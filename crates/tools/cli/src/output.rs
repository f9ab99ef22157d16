//! The output of subcommands: whole text at once, wrapped and coloured on a terminal only, and errors as one sentence.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::Result;

/// Writes `text` to standard output. A reader that has gone (`| head`) is not an error.
pub fn print(text: &str) -> Result<ExitCode> {
    write(io::stdout().lock(), text)
}

/// As [`print()`], but escapes for colours stay only on a terminal, by the rules of NO_COLOR and CLICOLOR_FORCE.
pub fn print_styled(text: &str) -> Result<ExitCode> {
    write(anstream::stdout().lock(), text)
}

fn write(mut out: impl Write, text: &str) -> Result<ExitCode> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(e.into()),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Columns of the terminal that standard output is, 80 if it has no number; None if it is no terminal.
pub fn columns() -> Option<usize> {
    let size = || terminal_size::terminal_size_of(io::stdout());
    io::stdout().is_terminal().then(|| size().map_or(80, |(width, _)| width.0.into()))
}

/// `text` behind `prefix`, as a paragraph of whole words whose further lines begin below the first one's text; as one
/// line without `columns`. A word that is longer than a line, such as a path, stays whole too.
pub fn hanging(prefix: &str, text: &str, columns: Option<usize>) -> String {
    let indent = prefix.chars().count();
    let (mut out, mut at) = (prefix.to_owned(), indent);
    for (n, word) in text.split_whitespace().enumerate() {
        let length = word.chars().count();
        if n > 0 && columns.is_some_and(|columns| at + 1 + length > columns) {
            out = out + "\n" + &" ".repeat(indent);
            at = indent;
        } else if n > 0 {
            out.push(' ');
            at += 1;
        }
        out.push_str(word);
        at += length;
    }
    out + "\n"
}

/// One line on standard error; where that is closed there is nobody to tell.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr(), "vervain: {text}");
}

/// An error with its causes, as one line.
pub fn complain(error: &anyhow::Error) {
    note(&format!("{error:#}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paragraph_hangs_below_its_first_word_and_keeps_words_whole() {
        let text = "one two three /a/path/that/is/long";
        assert_eq!(hanging("ok  ", text, None), format!("ok  {text}\n"));
        assert_eq!(hanging("ok  ", text, Some(11)), "ok  one two\n    three\n    /a/path/that/is/long\n");
        assert_eq!(hanging("ok  ", text, Some(10)), "ok  one\n    two\n    three\n    /a/path/that/is/long\n");
    }
}
