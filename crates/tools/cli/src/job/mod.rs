//! `vervain job`, `checkpoint`, `restart` and `gang`: from the command line to the crate that does it, and from its
//! answers to what is printed.

pub mod cli;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::env;
use std::ffi::{OsStr, OsString};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail};
use comfy_table::Table;
use vervain_config::{SYSFS, Variable};
use vervain_job::control::{Made, Reply, Request, Status, ask};
use vervain_job::gang::{self, Ended, Rules};
use vervain_job::hosts::Moves;
use vervain_job::manifest::{Manifest, Program, Saved};
use vervain_job::place::Places;
use vervain_job::space;
use vervain_job::store::find;
use vervain_job::supervisor::{self, Setting, Start, Upkeep};
use vervain_job::word::Word;
use vervain_job::{agent, cooperative, remote, rsh, starter, tree};

use self::cli::{
    CheckpointArgs, GangArgs, HostOptions, InsideArgs, InsideCommand, JobArgs, JobCommand, JobListArgs, JobRshArgs,
    JobRunArgs, RestartArgs, UpkeepOptions,
};
use crate::run::{FAILED, Ready, WRONG_SETTING};
use crate::{libs, output, sysfs};

pub fn job(args: &JobArgs) -> ExitCode {
    let result = match &args.command {
        JobCommand::Run(args) => return ended(run(args)),
        JobCommand::Rsh(args) => return ended(rsh(args)),
        JobCommand::List(args) => list(args),
        JobCommand::Kill(args) => {
            places().and_then(|places| match ask(&places, &args.name, &Request::Kill, &mut |_| ())? {
                Reply::Killed => Ok(ExitCode::SUCCESS),
                other => bail!("an odd answer: {other:?}"),
            })
        }
    };
    result.unwrap_or_else(|error| {
        output::complain(&error);
        ExitCode::FAILURE
    })
}

/// The exit status of a supervisor is its job's; its own errors are as those of `vervain run`.
fn ended(result: Result<u8, (u8, anyhow::Error)>) -> ExitCode {
    ExitCode::from(result.unwrap_or_else(|(status, error)| {
        output::complain(&error);
        status
    }))
}

/// The status of ssh if a command was not started.
const NOT_STARTED: u8 = 255;

fn rsh(args: &JobRshArgs) -> Result<u8, (u8, anyhow::Error)> {
    let rsh = || rsh::rsh(&sysfs::private_directory()?, &args.host, &args.command, SYSFS.name());
    rsh().map_err(|e| (NOT_STARTED, e))
}

fn places() -> Result<Places> {
    Ok(Places::new(&sysfs::private_directory()?))
}

fn run(args: &JobRunArgs) -> Result<u8, (u8, anyhow::Error)> {
    let wrong = |text: &str| Err((WRONG_SETTING, anyhow!("{text}")));
    if args.dir.is_none() && args.upkeep.every.is_some() {
        return wrong("--every needs --dir, the folder for the checkpoints");
    }
    if args.dir.is_none() && args.upkeep.restart.is_some() {
        return wrong("--restart needs --dir, the folder with the checkpoints");
    }
    let failed = |e: anyhow::Error| (FAILED, e);
    keep_other_descriptors();
    let ready = Ready::new(&args.command, &args.device, !args.no_preload, args.verbose)?;
    if args.cooperative {
        return cooperative(args, &ready).map_err(failed);
    }
    let private = sysfs::private_directory().map_err(failed)?;
    let tree = ready.variable(SYSFS.name()).map(PathBuf::from).filter(|tree| tree.starts_with(&private));
    let start = Start {
        name: args.name.clone(),
        program: (
            std::path::absolute(ready.program()).map_err(|e| failed(e.into()))?,
            args.command.iter().map(|word| Word(word.as_bytes().to_vec())).collect(),
        ),
        environment: ready.command(),
        tree,
        network: args.network.into(),
    };
    let setting = setting(private, args.dir.clone(), &args.upkeep, args.device.lib_dir.as_deref()).map_err(failed)?;
    supervisor::run(on(setting, &args.hosts), start).map_err(failed)
}

/// For a job that may have parts on other hosts.
fn on(setting: Setting, hosts: &HostOptions) -> Setting {
    Setting { remote_start: hosts.remote_start.clone(), moves: hosts.map.clone().unwrap_or_default(), ..setting }
}

/// A job that saves itself.
fn cooperative(args: &JobRunArgs, ready: &Ready) -> Result<u8> {
    let private = sysfs::private_directory()?;
    let words = |text: &OsStr| Word(text.as_bytes().to_vec());
    // Variables set by options are set in the environment at a restart: the options need not be given again.
    let mut environment: BTreeMap<OsString, OsString> = env::vars_os().collect();
    for (name, value) in args.device.settings.in_force(Variable::value)? {
        environment.insert(name.into(), value);
    }
    let start = cooperative::Start {
        name: args.name.clone(),
        program: Program {
            words: args.command.iter().map(|word| words(word)).collect(),
            directory: words(env::current_dir()?.as_os_str()),
            environment: environment.iter().map(|(name, value)| (words(name), words(value))).collect(),
            preload: !args.no_preload,
        },
        file: std::path::absolute(ready.program())?,
        environment: ready.command(),
        from: args.from.clone(),
    };
    let setting = Setting {
        private,
        criu: None,
        remote_start: None,
        moves: Moves::default(),
        libraries: Vec::new(),
        upkeep: upkeep(args.dir.clone(), &args.upkeep)?,
        note: output::note,
    };
    cooperative::run(setting, start)
}

/// Starts such a job again, in the environment that it had: by the command that has started it.
fn again(found: (PathBuf, Manifest, PathBuf), args: &RestartArgs) -> Result<Infallible> {
    let (path, manifest, folder) = found;
    let program = cooperative::program(&path, &manifest)?;
    let text = |words: &Word| OsString::from_vec(words.0.clone());
    let name = args.name.as_ref().map_or_else(|| manifest.name.clone(), ToString::to_string);
    let mut command = Command::new(env::current_exe().context("cannot find this command")?);
    command.args(["job", "run", "--cooperative", "--name", &name, "--dir"]).arg(folder).arg("--from").arg(&path);
    let time = |time: Duration| humantime::format_duration(time).to_string();
    if let Some(every) = args.upkeep.every {
        command.args(["--every", &time(every)]);
    }
    if let Some(keep) = args.upkeep.keep {
        command.args(["--keep", &keep.to_string()]);
    }
    if let Some(wait) = args.upkeep.restart {
        command.arg(format!("--restart={}", time(wait)));
    }
    if let Some(dir) = &args.lib_dir {
        command.arg("--lib-dir").arg(std::path::absolute(dir)?);
    }
    if !program.preload {
        command.arg("--no-preload");
    }
    command.arg("--").args(program.words.iter().map(text));
    command.env_clear().envs(program.environment.iter().map(|(name, value)| (text(name), text(value))));
    // By it the job is found, from where it is now.
    match env::var_os(RUNTIME) {
        Some(runtime) => command.env(RUNTIME, runtime),
        None => command.env_remove(RUNTIME),
    };
    let directory = PathBuf::from(text(&program.directory));
    env::set_current_dir(&directory)
        .with_context(|| format!("cannot go to {}, where the job was started", directory.display()))?;
    Err(anyhow::Error::from(command.exec()).context("cannot execute this command"))
}

/// The variable that names the folder of this user's jobs, among others.
const RUNTIME: &str = "XDG_RUNTIME_DIR";

fn upkeep(dir: Option<PathBuf>, upkeep: &UpkeepOptions) -> Result<Upkeep> {
    Ok(Upkeep {
        dir: dir.map(std::path::absolute).transpose()?,
        every: upkeep.every,
        keep: upkeep.keep.map(|keep| keep as usize),
        restart: upkeep.restart,
    })
}

fn setting(private: PathBuf, dir: Option<PathBuf>, options: &UpkeepOptions, lib_dir: Option<&Path>) -> Result<Setting> {
    let libraries = libs::directory(lib_dir)?;
    let libraries = [libs::LIBIBVERBS, libs::LIBRDMACM, libs::PRELOAD].map(|name| libraries.join(name));
    Ok(Setting {
        private,
        criu: options.criu.clone(),
        remote_start: None,
        moves: Moves::default(),
        libraries: libraries.into_iter().filter(|path| path.is_file()).collect(),
        upkeep: upkeep(dir, options)?,
        note: output::note,
    })
}

pub fn checkpoint(args: &CheckpointArgs) -> Result<ExitCode> {
    let dir = std::path::absolute(&args.dir)?;
    let keep = args.keep.map(|keep| keep as usize);
    let request = Request::Checkpoint { dir, stop: args.stop, keep, within: args.wait };
    match ask(&places()?, &args.name, &request, &mut |what| output::note(what))? {
        Reply::Made(made) => output::print(&told(&made, args.stop)),
        other => bail!("an odd answer: {other:?}"),
    }
}

pub fn gang(args: &GangArgs) -> Result<ExitCode> {
    let rules = Rules { slice: args.slice, switches: args.switches, time: args.time };
    let ended = gang::run(&places()?, &args.names, &rules, output::note)?;
    output::print(&summary(&ended))
}

fn summary(ended: &Ended) -> String {
    let of = |times: &[Duration]| {
        let [median, most_of_them, most] = [50, 95, 100].map(|percent| short(gang::percentile(times, percent)));
        format!("median {median}, 95th percentile {most_of_them}, most {most}")
    };
    let mut text = format!("{} switches in {}\n", ended.switches.len(), short(ended.took));
    if !ended.switches.is_empty() {
        let part = |part: fn(&gang::Switch) -> Duration| of(&ended.switches.iter().map(part).collect::<Vec<_>>());
        text += &format!("a switch:  {}\n", part(|switch| switch.all));
        text += &format!("  stop:    {}\n", part(|switch| switch.stop));
        text += &format!("  signals: {}\n", part(|switch| switch.signals));
        text += &format!("  go:      {}\n", part(|switch| switch.go));
    }
    for (name, time) in &ended.shares {
        let share = time.as_secs_f64() / ended.took.as_secs_f64().max(f64::MIN_POSITIVE) * 100.0;
        text += &format!("{name} had the CPUs for {}, {share:.1} %\n", short(*time));
    }
    text
}

/// Three digits of a time.
fn short(time: Duration) -> String {
    match time.as_secs_f64() {
        s if s < 1e-3 => format!("{:.0} µs", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

fn told(made: &Made, stopped: bool) -> String {
    let processes = if made.processes == 1 { "1 process".to_owned() } else { format!("{} processes", made.processes) };
    format!(
        "{}: {processes}, {}, in {:.2} s; {}\n",
        made.path.display(),
        size(made.bytes),
        made.took.as_secs_f64(),
        if stopped {
            "the job has ended".to_owned()
        } else {
            format!("the job stood still for {} ms", made.frozen.as_millis())
        },
    )
}

fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64 / 1024.0, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

pub fn restart(args: &RestartArgs) -> ExitCode {
    keep_other_descriptors();
    let restart = || -> Result<u8> {
        let found = find(&args.dir, output::note)?;
        if let Saved::Program(_) = found.1.saved {
            match again(found, args)? {}
        }
        let private = sysfs::private_directory()?;
        let setting = setting(private, None, &args.upkeep, args.lib_dir.as_deref())?;
        supervisor::restart(on(setting, &args.hosts), found, args.name.clone())
    };
    ended(restart().map_err(|e| (FAILED, e)))
}

fn list(args: &JobListArgs) -> Result<ExitCode> {
    let places = places()?;
    let mut jobs: Vec<(String, Status)> = Vec::new();
    for name in places.running()? {
        match ask(&places, &name, &Request::Status, &mut |_| ()) {
            Ok(Reply::Status(status)) => jobs.push((name.to_string(), status)),
            Ok(other) => bail!("an odd answer: {other:?}"),
            // It has ended meanwhile.
            Err(_) => {}
        }
    }
    if args.json {
        let jobs: serde_json::Map<_, _> =
            jobs.into_iter().map(|(name, status)| Ok((name, serde_json::to_value(status)?))).collect::<Result<_>>()?;
        return output::print(&(serde_json::to_string_pretty(&jobs)? + "\n"));
    }
    if jobs.is_empty() {
        return output::print("no jobs of this user's run here\n");
    }
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_header(["NAME", "PID", "SINCE", "PROCESSES", "MEMORY", "LAST CHECKPOINT", "COMMAND"]);
    for (name, status) in jobs {
        let at =
            |seconds: u64| humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds)).to_string();
        let checkpoint = status
            .checkpoint
            .map_or_else(|| "none".to_owned(), |(path, made)| format!("{} {}", at(made), path.display()));
        let numbers = [status.pid.to_string(), at(status.since), status.processes.to_string(), size(status.memory)];
        table.add_row([name].into_iter().chain(numbers).chain([checkpoint, status.command]));
    }
    output::print(&format!("{table}\n"))
}

/// The programs inside of a job's namespaces.
pub fn inside(args: &InsideArgs) -> Result<ExitCode> {
    match &args.command {
        InsideCommand::Init { line, plan } => {
            let status = space::init(*line, plan, taken)?;
            Ok(ExitCode::from((status & 0xff) as u8))
        }
        InsideCommand::Root { command } => executed(space::root(command)),
        InsideCommand::Alone { supervisor, command } => executed(tree::alone(*supervisor, command)),
        InsideCommand::Enter { mnt, net, command } => match space::enter(taken(*mnt), taken(*net), command)? {},
        InsideCommand::Serve => agent::serve().map(|()| ExitCode::SUCCESS),
        InsideCommand::Part => remote::serve(&sysfs::private_directory()?).map(|()| ExitCode::SUCCESS),
        InsideCommand::Starter => starter::serve(&sysfs::private_directory()?).map(|()| ExitCode::SUCCESS),
        InsideCommand::Shell => rsh::shell().map(|()| ExitCode::SUCCESS),
    }
}

/// The error of a job's first program that could not be executed.
fn executed(result: Result<Infallible>) -> Result<ExitCode> {
    match result {
        Ok(never) => match never {},
        Err(e) => {
            output::complain(&e);
            Ok(ExitCode::from(126))
        }
    }
}

/// A job gets no descriptors but the standard streams: another one would lead out of its namespaces, and keep it from
/// being saved.
fn keep_other_descriptors() {
    // Not by the C library, whose function of that name is the only one of this command's that glibc 2.31 lacks.
    // SAFETY: no descriptor is closed; it is only said of each that programs which are executed do not get it.
    let _ = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

/// A descriptor that the supervisor has passed by its number.
fn taken(number: RawFd) -> OwnedFd {
    // SAFETY: the command line is the supervisor's, which has passed this descriptor for this process to own.
    unsafe { OwnedFd::from_raw_fd(number) }
}
