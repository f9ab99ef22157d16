//! The coordinator: rounds over the cases of a plan, each measured by a team of worker processes, each kept at once.
//!
//! The rounds interleave: a case is measured once in each, and in another order each time, so that what the machine
//! does meanwhile (another tenant, a changed clock) meets all cases and not the last ones.

mod collect;
mod job;
mod journal;
mod live;
mod team;
mod teams;
mod values;
mod worker_handle;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use self::collect::{Collector, default_placement, plan_of};
pub use self::job::{JobRequest, StartJob};
pub use self::journal::Setup;
use self::journal::{Begin, Entry, Journal, replace};
use self::live::Live;
use self::teams::{Teams, kind};
use self::worker_handle::WorkerError;
pub use self::worker_handle::watch;
use crate::case::{Case, EnvironmentName, Placement, Service, bytes};
use crate::environment::Environment;
use crate::plan::{Plan, Settings};
use crate::results::{Failure, Results, Skipped};
use crate::terminal::Screen;

/// The file with everything, in the directory of a run.
pub const RESULTS: &str = "results.json";
/// The file of the libraries' messages in workers.
const LOG: &str = "workers.log";
/// Workers of this host that die one after another before it is no use to start more.
const DEATHS: u32 = 3;

/// The options of a run.
pub struct Options {
    /// The plan, and who takes part; None: as a run in `dir` was begun, to go on with it.
    pub new: Option<(Plan, Setup)>,
    /// The folder of all files.
    pub dir: PathBuf,
}

/// Says why a device does not have what a variable chooses, by its name and value.
pub type Refusal = dyn Fn(&str, &str) -> Option<String>;

/// How workers are started on this host.
pub struct Launcher {
    /// A command that becomes a worker ([`crate::worker::serve`]) on its standard input.
    pub worker: Box<dyn Fn(Route) -> Command>,
    /// A command that starts the ranks of a job, each of which becomes a worker ([`crate::worker::join`]); or why there
    /// is none, in a sentence.
    pub job: Box<StartJob<'static>>,
    /// The reason why the device of this host does not have what an environment's variable, by name and value, chooses;
    /// None: it has.
    pub refusal: Box<Refusal>,
    /// The description of [`Route::Packets`], if there is such a route: it shows how a device without a far host would
    /// behave with one.
    pub packets: Option<String>,
    /// The version of the program.
    pub version: String,
}

/// Which way the device of a worker is to take to a process of the same host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Its usual one.
    Usual,
    /// Over the network, as to another host.
    Packets,
}

/// How a run ended.
pub struct Outcome {
    /// The results.
    pub results: Results,
    /// For the terminal: the values as tables.
    pub table: String,
    /// True if the user ended it.
    pub by_user: bool,
}

/// Carries out a plan, or what is left of it. After any end, the results of all measurements are written.
///
/// # Errors
/// Nothing could be measured: no device, no peer, no directory. After that an error ends up in the results.
pub fn run(options: Options, launcher: &Launcher) -> Result<Outcome> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // The second one ends the program at once.
        flag::register_conditional_shutdown(signal, 130, interrupted.clone())?;
        flag::register(signal, interrupted.clone())?;
    }
    let mut run = match options.new {
        Some((plan, setup)) => Run::begin(plan, setup, &options.dir, launcher, &interrupted)
            .map_err(|error| without_a_trace(error, &options.dir))?,
        None => Run::resume(&options.dir, launcher, &interrupted)?,
    };
    let end = run.rounds();
    run.live.finish();
    let by_user = matches!(end, Err(End::Peer(WorkerError::Interrupted)));
    let why = end.err().map(|end| end.to_string());
    let shown = headlines(&run.cases);
    let table = values::tables(&mut run.collected, &shown, false, Screen::Out);
    let results = run.collected.results(why);
    write(&results, &options.dir)?;
    Ok(Outcome { results, table, by_user })
}

/// Takes away what a run made that could not begin, and adds to its error what the workers printed.
fn without_a_trace(error: anyhow::Error, dir: &Path) -> anyhow::Error {
    if dir.join(journal::NAME).exists() {
        return error;
    }
    let log = dir.join(LOG);
    let said = std::fs::read_to_string(&log).unwrap_or_default();
    // A directory that the user had before, or has put something into, stays.
    let _ = std::fs::remove_file(&log);
    let _ = std::fs::remove_dir(dir);
    match said.trim() {
        "" => error,
        said => anyhow::anyhow!("{error:#}\n{said}"),
    }
}

/// Writes the results of the run in `dir` again, from its journal.
///
/// # Errors
/// There is no run in it; it cannot be written.
pub fn again(dir: &Path) -> Result<Results> {
    let (mut collected, _) = Collector::of_journal(dir)?;
    let results = collected.results(None);
    write(&results, dir)?;
    Ok(results)
}

fn write(results: &Results, dir: &Path) -> Result<()> {
    replace(&dir.join(RESULTS), &serde_json::to_vec(results)?)
}

/// Reads a results file, or that of the directory of a run.
///
/// # Errors
/// There is none; it is of another layout.
pub fn read(path: &Path) -> Result<Results> {
    let path = if path.is_dir() { path.join(RESULTS) } else { path.to_owned() };
    let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let schema = serde_json::from_slice::<serde_json::Value>(&text).ok().and_then(|v| v["schema"].as_u64());
    if schema != Some(crate::results::SCHEMA.into()) {
        bail!("{} is not of `vervain bench`, or of another version of it", path.display());
    }
    serde_json::from_slice(&text).with_context(|| format!("{} cannot be read", path.display()))
}

/// The reason why a run ends before its last round.
enum End {
    Peer(WorkerError),
    Here(anyhow::Error),
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Peer(error) => error.fmt(f),
            Self::Here(error) => write!(f, "{error:#}"),
        }
    }
}

impl From<anyhow::Error> for End {
    fn from(error: anyhow::Error) -> Self {
        Self::Here(error)
    }
}

/// A run under way.
struct Run<'r> {
    cases: Cases,
    journal: Journal,
    collected: Collector,
    teams: Teams<'r>,
    live: Live,
    interrupted: &'r AtomicBool,
}

impl<'r> Run<'r> {
    fn begin(
        plan: Plan,
        setup: Setup,
        dir: &Path,
        launcher: &'r Launcher,
        interrupted: &'r AtomicBool,
    ) -> Result<Self> {
        // Before anything is started, and before a directory is made for a run that cannot be.
        if dir.join(journal::NAME).exists() {
            bail!("{0} has a run already: go on with it by --resume {0}, or name another directory", dir.display());
        }
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let usual = if setup.peer.is_some() { Placement::Peer } else { Placement::Loopback };
        let (cases, mut skipped) = possible(&plan, plan.cases(usual), &setup, launcher);
        let mut teams = Teams::new(&plan, &setup, &cases, dir, launcher, interrupted)?;
        let (cases, unfit) = fitting(cases, &mut teams)?;
        skipped.extend(unfit);
        if cases.is_empty() {
            let why = skipped.first().map_or("it has no case", |s| s.why.as_str());
            bail!("nothing of this plan can be measured: {why}");
        }
        let header = teams.header(&plan, launcher)?;
        let begin = Begin { header, setup };
        let mut journal = Journal::begin(dir, begin.clone())?;
        let mut collected = Collector::new(begin, &plan, &plan.cases(usual));
        for skipped in skipped {
            journal.add(&Entry::Skipped(skipped.clone()))?;
            collected.add(Entry::Skipped(skipped));
        }
        let live = Live::new(cases.len() as u64 * u64::from(collected.rounds()));
        Ok(Self { cases, journal, collected, teams, live, interrupted })
    }

    fn resume(dir: &Path, launcher: &'r Launcher, interrupted: &'r AtomicBool) -> Result<Self> {
        let (mut journal, begin, entries) = Journal::resume(dir)?;
        let plan = plan_of(&begin)?;
        let all = plan.cases(default_placement(&begin));
        let (cases, _) = possible(&plan, all.clone(), &begin.setup, launcher);
        let mut teams = Teams::new(&plan, &begin.setup, &cases, dir, launcher, interrupted)?;
        let (cases, _) = fitting(cases, &mut teams)?;
        let mut collected = Collector::new(begin, &plan, &all);
        entries.into_iter().for_each(|entry| collected.add(entry));
        journal.add(&Entry::Resumed(collected.now()))?;
        let now = teams.header(&plan, launcher)?;
        let live = Live::new(cases.len() as u64 * u64::from(collected.rounds()));
        let before = &collected.begin().header;
        if (&now.host, &now.peer) != (&before.host, &before.peer) {
            live.say(
                "note: machine or device differ from those that the run was begun with; the results name the latter",
            );
        }
        Ok(Self { cases, journal, collected, teams, live, interrupted })
    }

    fn rounds(&mut self) -> Result<(), End> {
        let rounds = self.collected.rounds();
        let seed = self.collected.begin().header.seed;
        for round in 0..rounds {
            let mut order: Vec<_> = (0..self.cases.len()).collect();
            fastrand::Rng::with_seed(seed.wrapping_add(round.into())).shuffle(&mut order);
            let all = order.len();
            order.retain(|i| !self.collected.is_settled(&self.cases[*i].0, round));
            self.live.skip((all - order.len()) as u64);
            if !order.is_empty()
                && !self.collected.has_raw(round)
                && let Some(figures) = self.teams.raw(round).map_err(End::Peer)?
            {
                self.keep(Entry::Raw(figures))?;
            }
            let later: Vec<Case> = (round + 1..rounds).flat_map(|_| self.cases.iter().map(|c| c.0)).collect();
            let mut rest: Vec<Case> = later.into_iter().chain(order.iter().rev().map(|i| self.cases[*i].0)).collect();
            for i in order {
                let (case, settings) = self.cases[i];
                self.live.begin(&case, round, rounds, &rest);
                rest.pop();
                self.measure(round, case, settings)?;
            }
            self.live.round(round, rounds);
        }
        Ok(())
    }

    fn measure(&mut self, round: u32, case: Case, settings: Settings) -> Result<(), End> {
        if self.interrupted.load(Ordering::Relaxed) {
            return Err(End::Peer(WorkerError::Interrupted));
        }
        let began = Instant::now();
        let mut iterations = self.collected.iterations(&case);
        let result = self.teams.measure(&case, &settings, &mut iterations);
        let entry = match result {
            Ok(measured) => {
                let run = team::run_of(round, self.collected.now(), measured);
                Entry::Run { case, planned: iterations.unwrap_or(run.iterations), run }
            }
            Err(WorkerError::Failed(why) | WorkerError::Lost { why, remote: false }) if self.teams.deaths < DEATHS => {
                Entry::Failure { case, failure: Failure { round, why } }
            }
            Err(error) => return Err(End::Peer(self.during(error, &case))),
        };
        self.keep(entry)?;
        self.live.end(&case, began.elapsed().as_secs_f64(), &mut self.collected);
        Ok(())
    }

    fn keep(&mut self, entry: Entry) -> Result<(), End> {
        self.journal.add(&entry)?;
        self.collected.add(entry);
        Ok(())
    }

    /// The error that ended the run, with the case that was measured.
    fn during(&self, error: WorkerError, case: &Case) -> WorkerError {
        match error {
            WorkerError::Lost { why, remote } => WorkerError::Lost { why: format!("{why} (during {case})"), remote },
            other => other,
        }
    }
}

/// Cases with how to measure them.
type Cases = Vec<(Case, Settings)>;

/// The cases that this set-up has a placement and the environment for, and the others.
fn possible(plan: &Plan, cases: Cases, setup: &Setup, launcher: &Launcher) -> (Cases, Vec<Skipped>) {
    let reachable = setup.peer.is_some() || launcher.packets.is_some();
    let refusal = |(name, environment): (&EnvironmentName, &Environment)| {
        let why = environment.variables.iter().find_map(|(variable, value)| (launcher.refusal)(variable, value))?;
        Some((*name, why))
    };
    let refused: BTreeMap<EnvironmentName, String> = plan.environments.iter().filter_map(refusal).collect();
    let processors = thread::available_parallelism().map_or(1, usize::from) as u32;
    let crowded = format!("its ranks are more than the {processors} processors of this host: --full");
    let (mut there, mut not) = (vec![], vec![]);
    for (case, mut settings) in cases {
        settings.iterations = settings.full_iterations.filter(|_| setup.full).unwrap_or(settings.iterations);
        let is_crowded = case.grid.is_some_and(|grid| grid.ranks() > processors);
        let why = match case.environment.and_then(|name| refused.get(&name)) {
            _ if settings.only_full && !setup.full => Some("it is measured by --full only"),
            Some(why) => Some(why.as_str()),
            None if is_crowded && !setup.full => Some(crowded.as_str()),
            None if reachable || case.placement == Placement::Loopback => None,
            None => Some("there is no other host: name one by --peer"),
        };
        match why {
            Some(why) => not.push(Skipped { case, why: why.into() }),
            None => there.push((case, settings)),
        }
    }
    (there, not)
}

/// The cases that the devices can carry out, as far as that is known before, and the others.
fn fitting(cases: Cases, teams: &mut Teams<'_>) -> Result<(Cases, Vec<Skipped>)> {
    let (mut fit, mut unfit) = (vec![], vec![]);
    for (case, settings) in cases {
        if let Some(why) = teams.absent.get(&kind(&case)) {
            unfit.push(Skipped { case, why: why.clone() });
            continue;
        }
        // A job that has ended since is started again when it is measured.
        let mtu = match case.interface.has_ranks() {
            true => u32::MAX,
            false => teams.get(kind(&case)).map_err(|e| anyhow::anyhow!("{e}"))?.mtu(),
        };
        if case.service == Service::Ud && case.size > u64::from(mtu) {
            let why = format!("a datagram has at most {} on this path", bytes(mtu.into()));
            unfit.push(Skipped { case, why });
        } else {
            fit.push((case, settings));
        }
    }
    Ok((fit, unfit))
}

/// Which cases the terminal shows at the end: all, or of long series over the size the ends and the middle. Those of
/// ranks share a row with others of their size, so all are shown.
fn headlines(cases: &[(Case, Settings)]) -> Vec<Case> {
    let all: Vec<Case> = cases.iter().map(|(case, _)| *case).collect();
    if all.iter().filter(|case| !case.interface.has_ranks()).count() <= 40 {
        return all;
    }
    let mut series: BTreeMap<Case, Vec<u64>> = BTreeMap::new();
    for case in &all {
        series.entry(Case { size: 0, ..*case }).or_default().push(case.size);
    }
    let shown = |case: &&Case| {
        let sizes = &series[&Case { size: 0, ..**case }];
        let ends = [sizes.first(), sizes.get(sizes.len() / 2), sizes.last()];
        case.interface.has_ranks() || ends.contains(&Some(&case.size))
    };
    all.iter().filter(shown).copied().collect()
}
