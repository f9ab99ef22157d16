//! `vervain acp`: what ACP costs a rank in memory, by the library's types and constants, and measured.

pub mod cli;
mod footprint;
mod measure;
mod parts;

use std::collections::BTreeSet;
use std::env;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::{Deserialize, Serialize};
use vervain_acp::{Objects, Settings};

use self::cli::{AcpArgs, AcpCommand, MemoryArgs};
use self::footprint::Footprint;
use crate::environment::Variables;
use crate::{output, run};

pub fn acp(args: &AcpArgs) -> Result<ExitCode> {
    match &args.command {
        AcpCommand::Memory(args) => memory(args),
        AcpCommand::Weigh => weigh(),
        AcpCommand::Rank => parts::rank(),
        AcpCommand::Farm(args) => parts::farm(args),
        AcpCommand::Bare => parts::bare(),
    }
}

/// A row of the table.
#[derive(Serialize)]
struct Row {
    what: &'static str,
    made_of: String,
    bytes: u64,
    grows: bool,
    paper: Option<Paper>,
}

/// The values of the original, by the paper.
#[derive(Serialize)]
struct Paper {
    what: &'static str,
    bytes: u64,
}

/// The table, and its sums.
#[derive(Serialize)]
struct Memory {
    ranks: u32,
    connections: usize,
    rows: Vec<Row>,
    bytes: u64,
    paper_bytes: u64,
}

/// [`Objects`], between processes.
#[derive(Serialize, Deserialize)]
struct Weighed {
    pair: u64,
    shared: u64,
}

fn memory(args: &MemoryArgs) -> Result<ExitCode> {
    let settings = settings(args)?;
    let variables = variables(args)?;
    if args.measure {
        return measure::measure(args, &settings, &variables);
    }
    let table = table_of(args.ranks, &settings, weighed(&variables)?)?;
    if args.json {
        return output::print(&(serde_json::to_string_pretty(&table)? + "\n"));
    }
    output::print(&text(&table))
}

/// ACP's settings, by the options and by the environment.
fn settings(args: &MemoryArgs) -> Result<Settings> {
    let mut settings = Settings::from_environment().map_err(|error| anyhow::anyhow!("{error}"))?;
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

/// This command again, as a process of `vervain acp` in the given environment.
fn process(what: &str, variables: &Variables) -> Result<Command> {
    let exe = env::current_exe().context("cannot tell where this command lies (is /proc mounted?)")?;
    let mut command = Command::new(exe);
    command.args(["acp", what]).envs(variables.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
    Ok(command)
}

/// The size of Vervain's objects, as another process measures it.
fn weighed(variables: &Variables) -> Result<Objects> {
    let output =
        process("weigh", variables)?.output().context("cannot start a process to weigh the device's objects")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim().strip_prefix("vervain: ").unwrap_or(said.trim());
        bail!("cannot weigh the device's objects: {said}");
    }
    let Weighed { pair, shared } = serde_json::from_slice(&output.stdout)?;
    Ok(Objects { pair, shared })
}

/// The other process.
fn weigh() -> Result<ExitCode> {
    let settings = Settings::from_environment().map_err(|error| anyhow::anyhow!("{error}"))?;
    let nobody = BTreeSet::new();
    let weigh = || Footprint::now(&nobody).map_or(0, |now| now.anonymous + now.memfds);
    let Objects { pair, shared } = vervain_acp::weigh(&settings, weigh).map_err(|error| anyhow::anyhow!("{error}"))?;
    output::print(&serde_json::to_string(&Weighed { pair, shared })?)
}

fn table_of(ranks: u32, settings: &Settings, objects: Objects) -> Result<Memory> {
    let held = vervain_acp::memory(ranks, settings, Some(objects)).map_err(|error| anyhow::anyhow!("{error}"))?;
    let (bytes, paper) = (held.iter().map(|row| row.bytes).sum(), held.iter().filter_map(|row| row.paper));
    let paper_bytes = paper.map(|(_, bytes)| bytes).sum();
    let paper = |(what, bytes)| Paper { what, bytes };
    let rows = held.into_iter().map(|row| Row {
        what: row.what,
        made_of: row.made_of,
        bytes: row.bytes,
        grows: row.grows,
        paper: row.paper.map(paper),
    });
    Ok(Memory { ranks, connections: settings.connections, rows: rows.collect(), bytes, paper_bytes })
}

fn text(memory: &Memory) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_BORDERS_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["what a rank holds", "of", "bytes", "grows", "Ajima et al. 2015", "bytes"]);
    for row in &memory.rows {
        let (what, bytes) = row.paper.as_ref().map_or(("", String::new()), |paper| (paper.what, number(paper.bytes)));
        table.add_row([row.what, &row.made_of, &number(row.bytes), if row.grows { "yes" } else { "" }, what, &bytes]);
    }
    table.add_row(["sum", "", &number(memory.bytes), "", "", &number(memory.paper_bytes)]);
    for column in [2, 5] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    format!(
        "One rank of {}, with {} connections at a time; the program's memory and code are not in it.\n{table}\n",
        number(memory.ranks.into()),
        memory.connections
    )
}

/// A number with commas between thousands.
fn number(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas() {
        assert_eq!([0, 999, 1000, 1_234_567].map(number), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn the_table_has_a_line_for_each_row_and_the_sums() {
        let memory = table_of(1_000_000, &Settings::default(), Objects { pair: 12_000, shared: 500_000 }).unwrap();
        let text = text(&memory);
        for row in &memory.rows {
            assert!(text.contains(&number(row.bytes)), "{}: {text}", row.what);
        }
        assert_eq!(memory.bytes, memory.rows.iter().map(|row| row.bytes).sum::<u64>());
        assert!(text.contains(&number(memory.bytes)) && text.contains(&number(memory.paper_bytes)), "{text}");
    }
}
