//! The processes of a measurement: the rank that is measured, those that are the simulated ranks, and a program that
//! does nothing. Each takes orders, a line of JSON each, on standard input, answers by a line on standard output, and
//! ends when there are no more. A further one weighs the objects of the device.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::io::{self, BufRead, Write};
use std::ops::Range;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use vervain_acp::{Atomic, GlobalAddress, Order as Begin, Region, Settings, World};
use vervain_bootstrap::Job;

use crate::footprint::{self, Footprint};
use crate::simulated_ranks::SimulatedRanks;
use crate::sizes::{self, Objects};
use crate::words::{ADDED, COPIED, COUNT, IDENTITY, PUT, SLOTS, identity, mark, marked, tour};

/// Names and values in the environment of a process.
pub type Variables = [(&'static str, OsString)];

/// An order to a process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Order {
    /// To the rank: inodes of memfds that belong to others.
    Foreign(BTreeSet<u64>),
    /// To the rank: have to do with so many further ranks.
    Contact(u32),
    /// To the rank: say what you hold, and how often you were visited.
    Weigh,
    /// To simulated ranks: so many further ones visit the one that is measured.
    Visit(u32),
    /// To simulated ranks: how many are as the rank's tour should have left them?
    Check,
}

/// The state of a process, once it is there.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ready {
    /// Inodes of its memfds, before it has met anybody.
    pub memfds: BTreeSet<u64>,
}

/// The answer of simulated ranks.
#[derive(Debug, Serialize, Deserialize)]
pub struct SimulatedAnswer {
    /// Ranks that are as they should be.
    pub right: u32,
    /// Connections that its ranks have ever had at a time.
    pub connections: usize,
}

/// The answer of the rank.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct RankAnswer {
    pub footprint: Footprint,
    /// Connections at this moment.
    pub connections: usize,
    /// The times of these contacts.
    pub times: Times,
    /// Ranks that have visited since the beginning.
    pub visits: u64,
}

/// Times of contacts, in seconds.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Times {
    /// First accesses to a rank, each a get of 8 bytes with the handshake before it: their number, their sum, the
    /// longest.
    pub misses: u32,
    pub miss_sum: f64,
    pub miss_max: f64,
    /// Accesses over a connection that existed: puts of 8 bytes.
    pub hits: u32,
    pub hit_sum: f64,
}

impl Times {
    fn miss(&mut self, took: Duration) {
        self.misses += 1;
        self.miss_sum += took.as_secs_f64();
        self.miss_max = self.miss_max.max(took.as_secs_f64());
    }

    fn hit(&mut self, took: Duration) {
        self.hits += 1;
        self.hit_sum += took.as_secs_f64();
    }

    pub fn add(&mut self, more: &Times) {
        self.misses += more.misses;
        self.miss_sum += more.miss_sum;
        self.miss_max = self.miss_max.max(more.miss_max);
        self.hits += more.hits;
        self.hit_sum += more.hit_sum;
    }
}

/// Says something to who has started this process.
fn say(what: &impl Serialize) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(what)?)?;
    Ok(out.flush()?)
}

/// The next order; None if there are no more.
fn hear<T: DeserializeOwned>() -> Result<Option<T>> {
    let mut line = String::new();
    if io::stdin().lock().read_line(&mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_str(&line).context("an order that is none")?))
}

/// This command again, as a process of `vervain acp` in the given environment.
pub fn process(what: &str, variables: &Variables) -> Result<Command> {
    let exe = env::current_exe().context("cannot tell where this command lies (is /proc mounted?)")?;
    let mut command = Command::new(exe);
    command.args(["acp", what]).envs(variables.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
    Ok(command)
}

/// The size of Vervain's objects, as another process measures it.
///
/// # Errors
/// It cannot be started, or has failed: its own sentence.
pub fn weighed(variables: &Variables) -> Result<Objects> {
    let output =
        process("weigh", variables)?.output().context("cannot start a process to weigh the device's objects")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim().strip_prefix("vervain: ").unwrap_or(said.trim());
        bail!("cannot weigh the device's objects: {said}");
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// `vervain acp weigh`: weighs the objects of the device.
///
/// # Errors
/// No usable device, or not enough resources.
pub fn weigh() -> Result<()> {
    let nobody = BTreeSet::new();
    let weigh = || Footprint::now(&nobody).map_or(0, |now| now.anonymous + now.memfds);
    say(&sizes::weigh(&Settings::from_environment()?, weigh)?)
}

/// `vervain acp bare`: joins the job and waits for the others: what any program with PMIx has.
///
/// # Errors
/// There is no job, or /proc cannot be read.
pub fn bare() -> Result<()> {
    let job = Job::join()?;
    job.fence()?;
    say(&Footprint::now(&BTreeSet::new())?)?;
    while hear::<Order>()?.is_some() {}
    Ok(job.finalize()?)
}

/// `vervain acp simulated-ranks`: answers for `ranks`, of which this process is the first, all but `measured`.
///
/// # Errors
/// No device that is atomic beside processors, a connection or a request that failed, a rank with a wrong word; this
/// process is another rank, or gets an order that is not for it.
pub fn simulated_ranks(ranks: Range<u32>, measured: u32) -> Result<()> {
    let job = Job::join()?;
    ensure!(job.rank() == ranks.start, "rank {} is started as rank {}", ranks.start, job.rank());
    let mut simulated = SimulatedRanks::open(&job, ranks, measured, &Settings::from_environment()?)?;
    let memfds = footprint::memfds()?;
    job.fence()?;
    simulated.populate(&job)?;
    say(&Ready { memfds })?;
    loop {
        simulated.serve(&job, io::stdin().as_fd())?;
        let right = match hear()? {
            None => return Ok(()),
            Some(Order::Visit(count)) => {
                simulated.visit(&job, measured, count as usize)?;
                0
            }
            Some(Order::Check) => simulated.check(),
            Some(order) => bail!("a farm cannot do {order:?}"),
        };
        say(&SimulatedAnswer { right, connections: simulated.connections() })?;
    }
}

/// `vervain acp rank`: the rank that is measured.
///
/// # Errors
/// There is no job or no device, a rank is not as it should be, or an order is not for this process.
pub fn rank() -> Result<()> {
    let world = World::init(&Settings::from_environment()?)?;
    let measured = Measured::new(&world)?;
    let mut foreign = BTreeSet::new();
    let mut tour = tour(world.size(), world.rank());
    let mut before = None;
    say(&Ready { memfds: BTreeSet::new() })?;
    loop {
        let mut times = Times::default();
        match hear()? {
            None => break,
            Some(Order::Foreign(inodes)) => foreign = inodes,
            Some(Order::Contact(count)) => {
                for _ in 0..count {
                    let rank = tour.next().context("the tour is over")?;
                    measured.contact(rank, before, &mut times)?;
                    before = Some(rank);
                }
            }
            Some(Order::Weigh) => {}
            Some(order) => bail!("the rank cannot do {order:?}"),
        }
        let (footprint, connections) = (Footprint::now(&foreign)?, world.connections());
        say(&RankAnswer { footprint, connections, times, visits: measured.visits()? })?;
    }
    // The others do not come to the barrier of an orderly end: they are too many.
    Ok(())
}

/// The rank that is measured, with what it needs for its contacts.
struct Measured<'w> {
    world: &'w World,
    own: Region<'w>,
}

/// Offsets in the own region: what comes, what goes.
const HERE: u64 = 0;
const GOES: u64 = 8;

impl<'w> Measured<'w> {
    fn new(world: &'w World) -> Result<Self> {
        let measured = Self { world, own: world.region(64, 0)? };
        // The values that visitors get.
        measured.store(measured.starter(world.rank())?, identity(world.rank()))?;
        Ok(measured)
    }

    fn starter(&self, rank: u32) -> Result<GlobalAddress> {
        self.world.starter(rank).with_context(|| format!("there is no rank {rank}"))
    }

    fn at(&self, offset: u64) -> GlobalAddress {
        GlobalAddress(self.own.key().0).add(offset)
    }

    fn load(&self, address: GlobalAddress) -> Result<u64> {
        let place = self.world.address(address).context("no memory of this rank")?;
        // SAFETY: a word of registered memory of this rank, aligned, that peers change by atomics and stores of 8
        // bytes.
        Ok(unsafe { AtomicU64::from_ptr(place.cast()) }.load(Ordering::Acquire))
    }

    fn store(&self, address: GlobalAddress, value: u64) -> Result<()> {
        let place = self.world.address(address).context("no memory of this rank")?;
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(place.cast()) }.store(value, Ordering::Release);
        Ok(())
    }

    fn copy(&self, to: GlobalAddress, from: GlobalAddress) -> Result<()> {
        let handle = self.world.copy(to, from, 8, Begin::Now)?;
        Ok(self.world.complete(handle)?)
    }

    /// Gets from a rank, puts to it, adds to it, and copies there from the one before.
    fn contact(&self, rank: u32, before: Option<u32>, times: &mut Times) -> Result<()> {
        let there = self.starter(rank)?;
        let began = Instant::now();
        self.copy(self.at(HERE), there.add(IDENTITY))?;
        times.miss(began.elapsed());
        let got = self.load(self.at(HERE))?;
        ensure!(got == identity(rank), "got {got:#x} from rank {rank}");
        self.store(self.at(GOES), mark(rank))?;
        let began = Instant::now();
        self.copy(there.add(PUT), self.at(GOES))?;
        times.hit(began.elapsed());
        let added = self.world.atomic(self.at(HERE), there.add(ADDED), Atomic::Add8(1), Begin::Now);
        self.world.complete(added?)?;
        let old = self.load(self.at(HERE))?;
        ensure!(old == 0, "rank {rank} has been added to: {old}");
        if let Some(before) = before {
            self.copy(there.add(COPIED), self.starter(before)?.add(IDENTITY))?;
        }
        Ok(())
    }

    /// The number of ranks that have added themselves; their marks must be valid.
    fn visits(&self) -> Result<u64> {
        let own = self.starter(self.world.rank())?;
        let visits = self.load(own.add(COUNT))?;
        let mut offset = SLOTS;
        // The first slots are enough.
        while offset < SLOTS + 64 {
            let found = self.load(own.add(offset))?;
            ensure!(
                found == 0 || marked(found, self.world.size()).is_some(),
                "somebody has put {found:#x} to this rank's starter memory"
            );
            offset += 8;
        }
        Ok(visits)
    }
}
