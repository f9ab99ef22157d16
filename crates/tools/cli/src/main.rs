//! The `vervain` command. This file only parses the command line, calls the subcommand and turns what it returns into
//! an exit status: 0 or the subcommand's own, 1 for an error, 2 for a wrong command line or a wrong variable. `vervain
//! run` becomes the program it starts, and `vervain launch` ends with the status of its ranks; the errors of both are
//! 125 (Vervain), 126 (not executable) and 127 (not found), as with env(1).

mod acp;
mod bench;
mod cli;
mod devices;
mod doctor;
mod env_format;
mod environment;
mod generate;
mod inventory;
mod job;
mod launch;
mod libs;
mod output;
mod probe;
mod program;
mod prune;
mod run;
mod settings;
mod sharing;
mod sysfs;
mod usage;

use std::process::ExitCode;

use crate::cli::Command;

fn main() -> ExitCode {
    let cli = usage::parse();
    let result = match &cli.command {
        Command::Run(args) => return run::run(args),
        Command::Launch(args) => return launch::launch(args),
        Command::Job(args) => return job::job(args),
        Command::Checkpoint(args) => job::checkpoint(args),
        Command::Restart(args) => return job::restart(args),
        Command::Gang(args) => job::gang(args),
        Command::Devices(args) => devices::devices(args),
        Command::Doctor(args) => doctor::doctor(args),
        Command::Env(args) => env_format::env(args),
        Command::Bench(args) => bench::bench(args),
        Command::Acp(args) => acp::acp(args),
        Command::Completions(args) => generate::completions(args),
        Command::Man(args) => generate::man(args),
        Command::Inventory(args) => inventory::print(args),
        Command::Probe(args) => probe::peer(args),
        Command::Guard => launch::guard::guard(),
        Command::Inside(args) => job::inside(args),
        Command::Sharing => sharing::look(),
    };
    result.unwrap_or_else(|error| {
        output::complain(&error);
        if error.is::<settings::WrongSetting>() { ExitCode::from(run::WRONG_SETTING) } else { ExitCode::FAILURE }
    })
}
