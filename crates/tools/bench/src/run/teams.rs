//! The workers of a run: which kinds of teams its cases need, and how each is made.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use anyhow::{Context as _, Result, bail};

use super::job::{Job, JobRequest};
use super::journal::Setup;
use super::team::{self, Needs, Team};
use super::worker_handle::{ANSWER_TIMEOUT, Role, WorkerError, WorkerHandle};
use super::{LOG, Launcher, Route};
use crate::case::{Case, EnvironmentName, Interface, Memory, Placement};
use crate::environment::{Environment, Prepared};
use crate::plan::{Pinning, Plan, Settings};
use crate::protocol::{Answer, Order, PORT};
use crate::results::{Header, Host, PlanText, RawFigures};
use crate::worker::SCATTER;

/// The settings that the workers of a team have in common; the number is that of the ranks of a job.
pub type Kind = (Placement, Memory, Interface, Option<EnvironmentName>, u32);

/// The team that every run has: it shows the device, and measures the machine itself.
const PLAIN: Kind = (Placement::Loopback, Memory::Host, Interface::Verbs, None, 0);

/// The kind of team that carries out a case.
pub fn kind(case: &Case) -> Kind {
    (case.placement, case.memory, case.interface, case.environment, case.ranks())
}

/// The workers of each kind, made when they are first needed and again when they died.
pub struct Teams<'r> {
    plan_pinning: Pinning,
    environments: BTreeMap<EnvironmentName, Environment>,
    setup: Setup,
    /// Bytes of memory; of each kind that the cases need.
    bytes: BTreeMap<Kind, (u64, u64)>,
    launcher: &'r Launcher,
    log: File,
    interrupted: &'r AtomicBool,
    teams: BTreeMap<Kind, Team<'r>>,
    /// Kinds that this set-up cannot have, and why.
    pub absent: BTreeMap<Kind, String>,
    /// Workers of this host that died since the last measurement.
    pub deaths: u32,
}

impl<'r> Teams<'r> {
    pub fn new(
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
            environments: plan.environments.clone(),
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
                // Not installed, or not able to use this device; an environment without a device, or without a window.
                Err(WorkerError::Failed(why) | WorkerError::Lost { why, remote: false })
                    if kind.2 != Interface::Verbs || kind.3.is_some() =>
                {
                    teams.absent.insert(kind, why);
                }
                Err(error) => bail!("{error}"),
            }
        }
        Ok(teams)
    }

    pub fn get(&mut self, kind: Kind) -> Result<&mut Team<'r>, WorkerError> {
        if !self.teams.contains_key(&kind) {
            let team = self.make(kind)?;
            self.teams.insert(kind, team);
        }
        self.teams.get_mut(&kind).ok_or_else(|| WorkerError::Failed("no workers".into()))
    }

    fn make(&mut self, kind: Kind) -> Result<Team<'r>, WorkerError> {
        let (placement, memory, interface, environment, ranks) = kind;
        // Processes that have opened the device have its file open: it needs no name any longer.
        let environment = self.prepare(environment)?;
        if interface.has_ranks() {
            let starter = self.bytes.get(&kind).map_or(1, |bytes| bytes.0);
            return self.make_job((interface, ranks), starter, &environment);
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
                command.envs(environment.variables.iter().map(|(name, value)| (name, value)));
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
            interface,
            bytes: self.bytes.get(&kind).copied().unwrap_or((1, 0)),
        })
    }

    /// The variables of an environment, with a file that is new.
    fn prepare(&self, environment: Option<EnvironmentName>) -> Result<Prepared, WorkerError> {
        let Some(name) = environment else { return Ok(Prepared::default()) };
        let failed = |why: String| WorkerError::Failed(format!("no environment {name}: {why}"));
        let environment = self.environments.get(&name).ok_or_else(|| failed("the plan has none".into()))?;
        environment.prepare().map_err(|e| failed(e.to_string()))
    }

    /// Ranks with so much starter memory, on the CPUs of the plain team.
    fn make_job(
        &mut self,
        job: (Interface, u32),
        starter: u64,
        environment: &Prepared,
    ) -> Result<Team<'r>, WorkerError> {
        let (log, interrupted) = (self.log.try_clone(), self.interrupted);
        let log = log.map_err(|e| WorkerError::Failed(format!("no log: {e}")))?;
        let (launcher, port) = (self.launcher, self.setup.port);
        let command = |request: &JobRequest<'_>| {
            let mut command = (launcher.job)(request)?;
            command.envs(environment.variables.iter().map(|(name, value)| (name, value)));
            Ok(command)
        };
        let like = self.get(PLAIN)?;
        let (job, ranks) = Job::start(job, port, starter, &command, &log, interrupted)?;
        Team::of_job(ranks, job, like)
    }

    pub fn measure(
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
    pub fn raw(&mut self, round: u32) -> Result<Option<RawFigures>, WorkerError> {
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

    pub fn header(&self, plan: &Plan, launcher: &Launcher) -> Result<Header> {
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
            environments: plan.environments.iter().map(|(name, of)| (name.to_string(), of.clone())).collect(),
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
