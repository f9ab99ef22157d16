//! `vervain acp`: what ACP costs a rank in memory, by the library's types and constants, and measured.

pub mod cli;

use std::fmt::Display;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use vervain_acp::Settings;
use vervain_acp_scale::{Ended, Plan};

use self::cli::{AcpArgs, AcpCommand, MemoryArgs};
use crate::environment::Variables;
use crate::{output, run};

/// Exit status after a signal, as shells give it.
const INTERRUPTED: i32 = 128;

/// Runs `vervain acp`: the report, or one of the processes that it starts to measure.
pub fn acp(args: &AcpArgs) -> Result<ExitCode> {
    match &args.command {
        AcpCommand::Memory(args) => return memory(args),
        AcpCommand::Weigh => vervain_acp_scale::weigh(),
        AcpCommand::Rank => vervain_acp_scale::rank(),
        AcpCommand::SimulatedRanks(args) => vervain_acp_scale::simulated_ranks(args.first..args.end, args.measured),
        AcpCommand::Bare => vervain_acp_scale::bare(),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn memory(args: &MemoryArgs) -> Result<ExitCode> {
    let settings = settings(args)?;
    let variables = variables(args)?;
    if !args.measure {
        let objects = vervain_acp_scale::weighed(&variables)?;
        return print(&vervain_acp_scale::memory(args.ranks, &settings, objects)?, args.json);
    }
    let tell = |what: &str| {
        if !args.json {
            output::note(what);
        }
    };
    let plan = Plan { ranks: args.ranks, farms: args.farms, leader: args.leader };
    match vervain_acp_scale::measure(&plan, &settings, &variables, tell)? {
        Ended::Measured(measurement) => print(&*measurement, args.json),
        Ended::BySignal(signal) => Ok(ExitCode::from((INTERRUPTED + signal) as u8)),
    }
}

fn print(what: &(impl Display + Serialize), json: bool) -> Result<ExitCode> {
    output::print(&if json { serde_json::to_string_pretty(what)? + "\n" } else { what.to_string() })
}

/// ACP's settings, by the options and by the environment.
fn settings(args: &MemoryArgs) -> Result<Settings> {
    let mut settings = Settings::from_environment()?;
    let given = [args.starter.starter, args.starter.starter_cl, args.starter.starter_dl];
    for (size, given) in settings.starter.iter_mut().zip(given) {
        *size = given.unwrap_or(*size);
    }
    Ok(settings)
}

/// Variables of processes on Vervain's device, as under `vervain run`.
fn variables(args: &MemoryArgs) -> Result<Variables> {
    let (_, mut variables) = run::prepare(&args.device, true)?;
    variables.extend(args.starter.variables());
    Ok(variables)
}
