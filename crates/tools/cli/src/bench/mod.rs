//! `vervain bench`: which libibverbs the workers get, where a run's files go, what is said at its end. The measuring is
//! `vervain_bench`'s, the report `vervain_bench_report`'s.

pub mod cli;
mod job;

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use vervain_bench::plan::{self, Plan};
use vervain_bench::results::Results;
use vervain_bench::run::{Launcher, Options, Outcome, Route, Setup};
use vervain_bench::{run, serve, worker};
use vervain_bench_report::{self as report, compare, doubt};
use vervain_config::{LINK, LinkChoice, PREFIX, TABLE, Variable};

use self::cli::{BenchArgs, BenchCommand, CompareArgs, PlansArgs, ReportArgs, RunArgs, ServeArgs, Verbs, Which};
use crate::environment::Variables;
use crate::inventory::{self, Device};
use crate::{libs, output, settings};

/// Exit status after Ctrl-C, as shells give it.
const INTERRUPTED: u8 = 130;
/// The vendor number of Vervain's devices.
const VERVAIN: u32 = 0x02_5652;

pub fn bench(args: &BenchArgs) -> Result<ExitCode> {
    match &args.command {
        BenchCommand::Run(args) => measure(args),
        BenchCommand::Serve(args) => be_far(args),
        BenchCommand::Compare(args) => compare(args),
        BenchCommand::Report(args) => report_again(args),
        BenchCommand::Plans(args) => plans(args),
        BenchCommand::Worker(args) => {
            if let (Some(name), Some(interface)) = (&args.join, &args.interface) {
                return worker::join(name, job::interface(interface)?).map(|()| ExitCode::SUCCESS);
            }
            let socket = io::stdin().as_fd().try_clone_to_owned()?;
            let defaults = worker::Defaults { device: args.device.clone(), gid_index: args.gid_index };
            worker::serve(socket, defaults).map(|()| ExitCode::SUCCESS)
        }
    }
}

fn measure(args: &RunArgs) -> Result<ExitCode> {
    // A mistake in the plan is reported before any library is asked.
    let plan = if args.resume.is_some() { None } else { Some(the_plan(args)?) };
    let workers = Workers::find(&args.which)?;
    output::note(&workers.note);
    let launcher = workers.launcher();
    let (new, dir) = match (plan, &args.resume) {
        (Some(plan), _) => {
            let dir = args.out.clone().unwrap_or_else(|| default_directory(&plan.name));
            let Which { device, gid_index, .. } = args.which.clone();
            let setup = Setup { device, port: args.port, gid_index, peer: args.peer.clone(), full: args.full };
            (Some((plan, setup)), dir)
        }
        (None, dir) => (None, dir.clone().unwrap_or_default()),
    };
    let outcome = run::run(Options { new, dir: dir.clone() }, &launcher)?;
    write_report(&outcome.results, &dir)?;
    let mut tables = report::tables(&outcome.results);
    if !outcome.table.is_empty() {
        tables.insert(0, outcome.table.clone());
    }
    output::print(&format!("{}\n", tables.join("\n")))?;
    Ok(ending(&outcome, &dir))
}

/// Prints the end of a run, and returns the exit status.
fn ending(outcome: &Outcome, dir: &Path) -> ExitCode {
    let results = &outcome.results;
    let failed = results.cases.iter().filter(|c| !c.failures.is_empty()).count();
    let flagged = results.cases.iter().filter(|c| c.summary.as_ref().is_some_and(|s| !s.flags.is_empty())).count();
    let measured = results.cases.iter().filter(|c| !c.runs.is_empty()).count();
    let mut counts = vec![format!("{measured} {} measured", if measured == 1 { "case" } else { "cases" })];
    for (count, what) in
        [(flagged, "flagged as doubtful"), (failed, "with failures"), (results.skipped.len(), "skipped")]
    {
        if count > 0 {
            counts.push(format!("{count} {what}"));
        }
    }
    output::note(&counts.join(", "));
    for case in results.cases.iter().filter(|c| !c.failures.is_empty()).take(5) {
        output::note(&format!("failed: {}: {}", case.case, case.failures[0].why));
    }
    // Each reason once, with the first case that it is of.
    let mut reasons: Vec<&str> = vec![];
    for skipped in &results.skipped {
        if !reasons.contains(&skipped.why.as_str()) {
            reasons.push(&skipped.why);
            output::note(&format!("skipped: {}: {}", skipped.case, skipped.why));
        }
    }
    if let Some(banner) = doubt::banner(results) {
        output::note(&banner.sentence);
        banner.remedies.iter().for_each(|remedy| output::note(remedy));
    }
    let shown = dir.display();
    output::note(&format!("report: {shown}/report.html, results: {shown}/results.json"));
    if let Some(why) = &results.interrupted {
        output::note(&format!("{why}; what was measured is kept, go on by: vervain bench run --resume {shown}"));
    }
    match (outcome.by_user, results.complete && failed == 0) {
        (true, _) => ExitCode::from(INTERRUPTED),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::FAILURE,
    }
}

fn the_plan(args: &RunArgs) -> Result<Plan> {
    let mut plan = plan::load(&args.plan)?;
    plan.rounds = args.rounds.unwrap_or(plan.rounds);
    plan.seed = args.seed.or(plan.seed);
    Ok(plan)
}

/// `vervain-bench-paper-20261122-040439`, here.
fn default_directory(plan: &str) -> PathBuf {
    let stem = Path::new(plan).file_stem().map_or_else(|| "run".into(), |s| s.to_string_lossy().into_owned());
    let time: String = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let digits = time.replace(['-', ':', 'Z'], "").replace('T', "-");
    PathBuf::from(format!("vervain-bench-{stem}-{digits}"))
}

fn be_far(args: &ServeArgs) -> Result<ExitCode> {
    let workers = Workers::find(&args.which)?;
    output::note(&workers.note);
    let which = args.which.clone();
    let worker = move || {
        let mut command = workers.worker(Route::Usual);
        command.args(which.device.iter().flat_map(|device| ["--device", device]));
        command.args(which.gid_index.iter().flat_map(|index| ["--gid-index".to_owned(), index.to_string()]));
        command
    };
    serve::serve(args.bind, &worker, &output::note)?;
    Ok(ExitCode::SUCCESS)
}

fn compare(args: &CompareArgs) -> Result<ExitCode> {
    let read = |path: &Path| -> Result<Results> { run::read(path) };
    let comparison = compare::compare(&read(&args.a)?, &read(&args.b)?);
    output::print(&format!("{}\n", comparison.table()))?;
    comparison.write(&args.out)?;
    output::note(&format!("drawn: {}", args.out.display()));
    Ok(ExitCode::SUCCESS)
}

fn write_report(results: &Results, dir: &Path) -> Result<()> {
    report::write(results, dir).context("cannot write the report")?;
    Ok(())
}

fn report_again(args: &ReportArgs) -> Result<ExitCode> {
    write_report(&run::again(&args.dir)?, &args.dir)?;
    output::print(&format!("{0}/report.html\n{0}/results.json\n", args.dir.display()))
}

fn plans(args: &PlansArgs) -> Result<ExitCode> {
    let Some(name) = &args.name else {
        let mut list = String::new();
        for (name, _) in plan::BUILT_IN {
            let plan = plan::load(name)?;
            list += &format!("{name:13} {}\n", plan.title);
        }
        return output::print(&list);
    };
    match plan::BUILT_IN.iter().find(|(known, _)| known == name) {
        Some((_, text)) => output::print(text),
        None => {
            let known: Vec<_> = plan::BUILT_IN.iter().map(|(name, _)| *name).collect();
            bail!("no plan called {name} is built in; there is {}", known.join(", "))
        }
    }
}

/// How worker processes get their libibverbs.
struct Workers {
    exe: PathBuf,
    variables: Vec<(String, OsString)>,
    /// The device's name.
    device: String,
    /// True if the device is one of ours, which can be told to take the network.
    ours: bool,
    note: String,
}

impl Workers {
    fn find(which: &Which) -> Result<Workers> {
        let exe = env::current_exe().context("cannot tell where this command lies (is /proc mounted?)")?;
        let fits = |devices: &[Device]| -> Option<Device> {
            let wanted = |d: &&Device| which.device.as_ref().is_none_or(|name| *name == d.name);
            devices.iter().find(wanted).cloned()
        };
        if which.verbs != Verbs::Vervain {
            let options = which.options.settings.in_force(Variable::value)?;
            // By its bare name, as a program that links it has it found.
            let found = inventory::query(Path::new(libs::LIBIBVERBS), &options, true);
            if let Some(device) = found.as_ref().ok().and_then(|devices| fits(devices)) {
                let note = format!("device {}, by the libibverbs that the dynamic linker finds", device.name);
                let (variables, ours) = (owned(options), device.vendor_id == VERVAIN);
                return Ok(Workers { exe, variables, device: device.name, ours, note });
            }
            if which.verbs == Verbs::System {
                let none = |devices: Vec<Device>| match &which.device {
                    Some(name) => anyhow::anyhow!("no device called {name}; there is {}", names(&devices)),
                    None => anyhow::anyhow!("the libibverbs of this system has no device"),
                };
                return Err(found.map_or_else(|e| e, none));
            }
        }
        let (dir, variables) = crate::run::prepare(&which.options, true)?;
        let devices = inventory::query(&dir.join(libs::LIBIBVERBS), &variables, true)?;
        let Some(device) = fits(&devices) else {
            let name = which.device.as_deref().unwrap_or("any name");
            bail!("no device called {name} on this system; Vervain's are {}", names(&devices));
        };
        let note = format!("device {}, Vervain's", device.name);
        Ok(Workers { exe, variables: owned(variables), device: device.name, ours: true, note })
    }

    /// A worker of a pair.
    fn worker(&self, route: Route) -> Command {
        let mut command = self.command(route);
        command.args(["bench", "worker"]);
        command
    }

    /// This program, so that it finds the device.
    fn command(&self, route: Route) -> Command {
        let mut command = Command::new(&self.exe);
        self.set_variables(&mut command, route);
        command
    }

    /// Has a program find the device.
    fn set_variables(&self, command: &mut Command, route: Route) {
        command.envs(self.variables.iter().map(|(n, v)| (n, v)));
        if route == Route::Packets {
            command.env(LINK.name(), LinkChoice::Roce.word());
        }
    }

    fn launcher(self) -> Launcher {
        let link = self.variables.iter().find(|(name, _)| name == LINK.name());
        let by_memory_only = link.is_some_and(|(_, v)| LinkChoice::of(v.as_encoded_bytes()) == Some(LinkChoice::Local));
        let packets = self.ours && !by_memory_only;
        let workers = Arc::new(self);
        let (of_job, of_environment) = (workers.clone(), workers.clone());
        Launcher {
            packets: packets.then(|| "RoCE v2 packets between two processes of this host (VERVAIN_LINK=roce)".into()),
            version: env!("CARGO_PKG_VERSION").into(),
            worker: Box::new(move |route| workers.worker(route)),
            job: Box::new(move |request| job::command(&of_job, request)),
            refusal: Box::new(move |name, value| of_environment.refusal(name, value)),
        }
    }

    /// The reason why the device does not have what a variable chooses. None for variables of other libraries, which
    /// are not known here.
    fn refusal(&self, name: &str, value: &str) -> Option<String> {
        if !name.starts_with(PREFIX) {
            return None;
        }
        if !self.ours {
            return Some(format!("{name} is a variable of Vervain, and the device {} is not Vervain's", self.device));
        }
        let Some(variable) = TABLE.into_iter().find(|variable| variable.name() == name) else {
            return Some(format!("{name}: unknown variable; `vervain env --list` lists all"));
        };
        settings::mistake(variable, value.as_ref()).map(|mistake| format!("{name}{mistake}"))
    }
}

fn owned(variables: Variables) -> Vec<(String, OsString)> {
    variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn names(devices: &[Device]) -> String {
    let names: Vec<_> = devices.iter().map(|d| d.name.as_str()).collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_of_ours_is_for_our_devices_and_must_be_one() {
        let of = |ours| Workers {
            exe: PathBuf::new(),
            variables: vec![],
            device: "mlx5_0".into(),
            ours,
            note: String::new(),
        };
        let refusal = |name, value| of(true).refusal(name, value).unwrap_or_default();
        assert_eq!([refusal("VERVAIN_LINK", "local"), refusal("UCX_TLS", "anything")], ["", ""]);
        assert!(refusal("VERVAIN_LINK", "lcoal").starts_with("VERVAIN_LINK"), "{}", refusal("VERVAIN_LINK", "lcoal"));
        assert!(refusal(&format!("{PREFIX}LNIK"), "local").contains("unknown variable"));
        let why = of(false).refusal("VERVAIN_LINK", "local").expect("a refusal");
        assert_eq!(why, "VERVAIN_LINK is a variable of Vervain, and the device mlx5_0 is not Vervain's");
        assert!(of(false).refusal("UCX_TLS", "rc").is_none());
    }
}
