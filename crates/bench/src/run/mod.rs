//! The coordinator: rounds over the cases of a plan, each measured by a team of worker processes, each kept at once.
//!
//! The rounds interleave: a case is measured once in each, and in another order each time, so that what the machine does
//! meanwhile (another tenant, a changed clock) meets all cases and not the last ones.

mod collect;
mod job;
mod journal;
mod live;
mod team;
mod values;
mod worker_handle;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime};

use anyhow::{Context as _, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use self::collect::{Collector, default_placement, plan_of};
use self::job::Job;
pub use self::job::{JobRequest, StartJob};
pub use self::journal::Setup;
use self::journal::{Begin, Entry, Journal, replace};
use self::live::Live;
use self::team::{Needs, Team};
pub use self::worker_handle::watch;
use self::worker_handle::{ANSWER_TIMEOUT, Role, WorkerError, WorkerHandle};
use crate::case::{Case, Interface, Memory, Placement, Service, bytes};
use crate::plan::{Plan, Settings};
use crate::protocol::{Answer, Order, PORT};
use crate::report;
use crate::results::{Failure, Header, Host, PlanText, Results, Skipped};
use crate::terminal::Screen;
use crate::worker::SCATTER;

/// The file with everything, in the directory of a run.
pub const RESULTS: &str = "results.json";
/// What the libraries of the workers print.
const LOG: &str = "workers.log";
/// Workers of this host that die one after another before it is no use to start more.
const DEATHS: u32 = 3;

/// What to run.
pub struct Options {
    /// The plan, and who takes part; None: as a run in `dir` was begun, to go on with it.
    pub new: Option<(Plan, Setup)>,
    /// Where everything goes.
    pub dir: PathBuf,
}

/// How workers are started on this host.
pub struct Launcher {
    /// A command that becomes a worker ([`crate::worker::serve`]) on its standard input.
    pub worker: Box<dyn Fn(Route) -> Command>,
    /// A command that starts the ranks of a job, each of which becomes a worker ([`crate::worker::join`]); or why there is none, in a
    /// sentence.
    pub job: Box<StartJob>,
    /// What [`Route::Packets`] is, in words, where there is such a route: how a device without a far host can show what
    /// one would be like.
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
    /// What it brought.
    pub results: Results,
    /// For the terminal: the values as tables.
    pub table: String,
    /// Whether the user ended it.
    pub by_user: bool,
}

/// Carries out a plan, or what is left of it. Whatever ends it, results and report of what was measured are written.
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

/// Writes results and report of the run in `dir` again, from its journal.
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
    replace(&dir.join(RESULTS), &serde_json::to_vec(results)?)?;
    report::write(results, dir).context("cannot write the report")?;
    Ok(())
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

/// Why a run ends before its last round.
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
        let (cases, mut skipped) = possible(plan.cases(usual), &setup, launcher);
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
        let (cases, _) = possible(all.clone(), &begin.setup, launcher);
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

/// The cases that this set-up has a placement for, and those that it has none for.
fn possible(cases: Cases, setup: &Setup, launcher: &Launcher) -> (Cases, Vec<Skipped>) {
    let reachable = setup.peer.is_some() || launcher.packets.is_some();
    let (there, not): (Vec<_>, Vec<_>) =
        cases.into_iter().partition(|(case, _)| reachable || case.placement == Placement::Loopback);
    let why = "there is no other host: name one by --peer";
    (there, not.into_iter().map(|(case, _)| Skipped { case, why: why.into() }).collect())
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

/// Which cases the terminal shows at the end: all, or of long series over the size the ends and the middle. Those of ranks share a
/// row with others of their size, so all are shown.
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

/// What the workers of a team have in common.
type Kind = (Placement, Memory, Interface);

/// The team that every run has: it shows the device, and measures the machine itself.
const PLAIN: Kind = (Placement::Loopback, Memory::Host, Interface::Verbs);

/// The kind of team that carries out a case.
fn kind(case: &Case) -> Kind {
    (case.placement, case.memory, case.interface)
}

/// The workers of each kind, made when they are first needed and again when they died.
struct Teams<'r> {
    plan_pinning: crate::plan::Pinning,
    setup: Setup,
    /// Bytes of memory; of each kind that the cases need.
    bytes: BTreeMap<Kind, (u64, u64)>,
    launcher: &'r Launcher,
    log: File,
    interrupted: &'r AtomicBool,
    teams: BTreeMap<Kind, Team<'r>>,
    /// Kinds that this set-up cannot have, and why.
    absent: BTreeMap<Kind, String>,
    /// Workers of this host that died since the last measurement.
    deaths: u32,
}

impl<'r> Teams<'r> {
    fn new(
        plan: &Plan,
        setup: &Setup,
        cases: &[(Case, Settings)],
        dir: &Path,
        launcher: &'r Launcher,
        interrupted: &'r AtomicBool,
    ) -> Result<Self> {
        let log = OpenOptions::new().create(true).append(true).open(dir.join(LOG))?;
        let mut kinds: BTreeSet<Kind> = cases.iter().map(|(case, _)| kind(case)).collect();
        // Ranks of a job do not tell the device.
        if kinds.iter().all(|kind| kind.2.has_ranks()) {
            kinds.insert(PLAIN);
        }
        let needs = |of: Kind| team::memory_for(cases.iter().map(|(case, _)| case).filter(|case| kind(case) == of));
        let bytes = kinds.iter().map(|of| (*of, needs(*of))).collect();
        let mut teams = Self {
            plan_pinning: plan.pinning,
            setup: setup.clone(),
            bytes,
            launcher,
            log,
            interrupted,
            teams: BTreeMap::new(),
            absent: BTreeMap::new(),
            deaths: 0,
        };
        for kind in kinds {
            match teams.get(kind) {
                Ok(_) => {}
                // No GPU, or none that the device reaches: the other cases can be measured all the same.
                Err(WorkerError::Failed(why)) if kind.1 == Memory::Gpu => {
                    teams.absent.insert(kind, why);
                }
                // Not installed, or not able to use this device.
                Err(WorkerError::Failed(why) | WorkerError::Lost { why, remote: false }) if kind.2.has_ranks() => {
                    teams.absent.insert(kind, why);
                }
                Err(error) => bail!("{error}"),
            }
        }
        Ok(teams)
    }

    fn get(&mut self, kind: Kind) -> Result<&mut Team<'r>, WorkerError> {
        if !self.teams.contains_key(&kind) {
            let team = self.make(kind)?;
            self.teams.insert(kind, team);
        }
        self.teams.get_mut(&kind).ok_or_else(|| WorkerError::Failed("no workers".into()))
    }

    fn make(&mut self, kind: Kind) -> Result<Team<'r>, WorkerError> {
        let (placement, memory, interface) = kind;
        if interface.has_ranks() {
            return self.make_job(interface, self.bytes.get(&kind).map_or(1, |bytes| bytes.0));
        }
        let peer = self.setup.peer.as_ref().filter(|_| placement == Placement::Peer);
        let route = match (placement, peer) {
            (Placement::Peer, None) => Route::Packets,
            _ => Route::Usual,
        };
        let address = peer.map(|peer| with_port(peer));
        let mut start_worker = |role: Role| match (&address, role) {
            (Some(address), Role::Server | Role::BackgroundServer) => {
                WorkerHandle::connect(address, role, self.interrupted)
            }
            _ => {
                let mut command = (self.launcher.worker)(route);
                if memory == Memory::Gpu {
                    command.env(SCATTER.0, SCATTER.1);
                }
                WorkerHandle::start(command, role, &self.log, self.interrupted)
            }
        };
        Team::new(Needs {
            start_worker: &mut start_worker,
            device: self.setup.device.as_deref(),
            port: self.setup.port,
            gid_index: self.setup.gid_index,
            pinning: self.plan_pinning,
            memory,
            bytes: self.bytes.get(&kind).copied().unwrap_or((1, 0)),
        })
    }

    /// Ranks with so much starter memory, on the CPUs of the plain team.
    fn make_job(&mut self, interface: Interface, starter: u64) -> Result<Team<'r>, WorkerError> {
        let (log, interrupted) = (self.log.try_clone(), self.interrupted);
        let log = log.map_err(|e| WorkerError::Failed(format!("no log: {e}")))?;
        let (command, port) = (&*self.launcher.job, self.setup.port);
        let like = self.get(PLAIN)?;
        let (job, ranks) = Job::start(interface, port, starter, command, &log, interrupted)?;
        Team::of_job(ranks, job, like)
    }

    fn measure(
        &mut self,
        case: &Case,
        settings: &Settings,
        iterations: &mut Option<u64>,
    ) -> Result<team::Outcome, WorkerError> {
        let result = self.get(kind(case)).and_then(|team| team.measure(case, settings, iterations));
        match &result {
            Ok(_) => self.deaths = 0,
            // The others of its team wait for the dead.
            Err(WorkerError::Lost { .. }) => {
                self.teams.remove(&kind(case));
                self.deaths += 1;
            }
            Err(_) => {}
        }
        result
    }

    /// The machine's own figures, between the CPUs of requester and responder, or of the two requesters where the
    /// responder is elsewhere.
    fn raw(&mut self, round: u32) -> Result<Option<crate::results::RawFigures>, WorkerError> {
        let Some((_, team)) = self.teams.iter_mut().next() else { return Ok(None) };
        let cpus = team.cpus;
        match team.client().ask(&Order::Raw { round, cpus }, ANSWER_TIMEOUT) {
            Ok(Answer::Raw(figures)) => Ok(Some(figures)),
            Ok(other) => Err(team.client().out_of_order(&other)),
            // Worth knowing, not worth ending for.
            Err(WorkerError::Failed(_)) => Ok(None),
            Err(other) => Err(other),
        }
    }

    fn header(&self, plan: &Plan, launcher: &Launcher) -> Result<Header> {
        let first = self.teams.values().next().context("no workers")?;
        let of = |placement| move |(kind, team): (&Kind, _)| (kind.0 == placement).then_some(team);
        let peer = self.teams.iter().find_map(of(Placement::Peer));
        let gpu = self.teams.values().find_map(|team| team.here.gpu.clone());
        let gpu_there = self.teams.iter().filter_map(of(Placement::Peer)).find_map(|team| team.there.gpu.clone());
        let mut notes: Vec<String> = self.teams.values().flat_map(|team| team.notes.clone()).collect();
        notes.dedup();
        Ok(Header {
            version: launcher.version.clone(),
            started: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            plan: PlanText { name: plan.name.clone(), title: plan.title.clone(), text: plan.text.clone() },
            seed: plan.seed.unwrap_or_else(|| fastrand::u64(..1 << 53)),
            rounds: plan.rounds,
            host: Host { gpu, ..first.here.clone() },
            peer: peer.filter(|_| self.setup.peer.is_some()).map(|team| Host { gpu: gpu_there, ..team.there.clone() }),
            peer_note: peer.and(launcher.packets.clone()).filter(|_| self.setup.peer.is_none()),
            notes,
        })
    }
}

/// host:port of a peer, whose port may be left out.
fn with_port(peer: &str) -> String {
    let has_port = match peer.rsplit_once(':') {
        // An IPv6 address without brackets has colons and no port.
        Some((host, _)) => !host.contains(':') || host.ends_with(']'),
        None => false,
    };
    match (has_port, peer.contains(':') && !peer.starts_with('[')) {
        (true, _) => peer.to_owned(),
        (false, true) => format!("[{peer}]:{PORT}"),
        (false, false) => format!("{peer}:{PORT}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_may_name_a_port() {
        for (peer, address) in [
            ("node7", "node7:4790"),
            ("node7:99", "node7:99"),
            ("10.0.0.1", "10.0.0.1:4790"),
            ("fe80::1%eth0", "[fe80::1%eth0]:4790"),
            ("[::1]:99", "[::1]:99"),
            ("[::1]", "[::1]:4790"),
        ] {
            assert_eq!(with_port(peer), address);
        }
    }
}
