//! `vervain completions` and `vervain man`: both are made from the command line's own definition, so that they cannot
//! drift from it. `make install` calls them.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap::builder::Resettable;

use crate::cli::{Cli, CompletionsArgs, ManArgs};
use crate::output;

pub fn completions(args: &CompletionsArgs) -> Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "vervain", &mut text);
    output::print(&String::from_utf8_lossy(&text))
}

/// The command line with its version alone: a page is for each build of that.
fn documented() -> clap::Command {
    Cli::command().long_version(Resettable::Reset)
}

/// The main page, or with a directory one page for the command and for each subcommand.
pub fn man(args: &ManArgs) -> Result<ExitCode> {
    match &args.dir {
        Some(dir) => {
            fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
            clap_mangen::generate_to(documented(), dir)
                .with_context(|| format!("cannot write the manual pages into {}", dir.display()))?;
            Ok(ExitCode::SUCCESS)
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(documented()).render(&mut page)?;
            output::print(&String::from_utf8_lossy(&page))
        }
    }
}
