//! What the subcommands print: whole text at once, and errors as one sentence.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;

/// Writes `text` to standard output. A reader that has gone (`| head`) is not an error.
pub fn print(text: &str) -> Result<ExitCode> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(e.into()),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// One line on standard error; where that is closed there is nobody to tell.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr(), "vervain: {text}");
}

/// An error with its causes, as one line.
pub fn complain(error: &anyhow::Error) {
    note(&format!("{error:#}"));
}
