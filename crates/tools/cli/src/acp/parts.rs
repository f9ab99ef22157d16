//! The processes of a measurement: the rank that is measured, farms, and a program that does nothing. Each takes
//! orders, a line of JSON each, on standard input, answers by a line on standard output, and ends when there are no
//! more.

use std::collections::BTreeSet;
use std::io::{self, BufRead, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use vervain_acp::farm::{ADDED, COPIED, COUNT, Farm, IDENTITY, PUT, SLOTS, identity, mark, marked, tour};
use vervain_acp::{Atomic, Settings, World};
use vervain_bootstrap::Job;

use super::cli::FarmArgs;
use super::footprint::{self, Footprint};

/// An order to a process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Order {
    /// To the rank: inodes of memfds that belong to others.
    Foreign(BTreeSet<u64>),
    /// To the rank: have to do with so many further ranks.
    Contact(u32),
    /// To the rank: say what you hold, and how often you were visited.
    Weigh,
    /// To a farm: so many further ranks visit the one that is measured.
    Visit(u32),
    /// To a farm: how many ranks are as the rank's tour should have left them?
    Check,
}

/// The state of a process, once it is there.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ready {
    /// Inodes of its memfds, before it has met anybody.
    pub memfds: BTreeSet<u64>,
}

/// The answer of a farm.
#[derive(Debug, Serialize, Deserialize)]
pub struct FarmAnswer {
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

fn settings() -> Result<Settings> {
    Settings::from_environment().map_err(|error| anyhow::anyhow!("{error}"))
}

/// Joins the job and waits for the others: what any program with PMIx has.
pub fn bare() -> Result<ExitCode> {
    let job = Job::join()?;
    job.fence()?;
    say(&Footprint::now(&BTreeSet::new())?)?;
    while hear::<Order>()?.is_some() {}
    job.finalize()?;
    Ok(ExitCode::SUCCESS)
}

pub fn farm(args: &FarmArgs) -> Result<ExitCode> {
    let job = Job::join()?;
    ensure!(job.rank() == args.first, "rank {} is started as rank {}", args.first, job.rank());
    let mut farm = Farm::open(&job, args.first..args.end, args.measured, &settings()?).map_err(sentence)?;
    let memfds = footprint::memfds()?;
    job.fence()?;
    farm.populate(&job).map_err(sentence)?;
    say(&Ready { memfds })?;
    loop {
        farm.serve(&job, io::stdin().as_fd()).map_err(sentence)?;
        let right = match hear()? {
            None => return Ok(ExitCode::SUCCESS),
            Some(Order::Visit(count)) => {
                farm.visit(&job, args.measured, count as usize).map_err(sentence)?;
                0
            }
            Some(Order::Check) => farm.check(),
            Some(order) => bail!("a farm cannot do {order:?}"),
        };
        say(&FarmAnswer { right, connections: farm.connections() })?;
    }
}

fn sentence(error: vervain_acp::Error) -> anyhow::Error {
    anyhow::anyhow!("{error}")
}

pub fn rank() -> Result<ExitCode> {
    let world = World::init(&settings()?).map_err(sentence)?;
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
    Ok(ExitCode::SUCCESS)
}

/// The rank that is measured, with what it needs for its contacts.
struct Measured<'w> {
    world: &'w World,
    own: vervain_acp::Region<'w>,
}

/// Offsets in the own region: what comes, what goes.
const HERE: u64 = 0;
const GOES: u64 = 8;

impl<'w> Measured<'w> {
    fn new(world: &'w World) -> Result<Self> {
        let measured = Self { world, own: world.region(64, 0).map_err(sentence)? };
        // The values that visitors get.
        measured.store(measured.starter(world.rank())?, identity(world.rank()))?;
        Ok(measured)
    }

    fn starter(&self, rank: u32) -> Result<vervain_acp::GlobalAddress> {
        self.world.starter(rank).with_context(|| format!("there is no rank {rank}"))
    }

    fn at(&self, offset: u64) -> vervain_acp::GlobalAddress {
        vervain_acp::GlobalAddress(self.own.key().0).add(offset)
    }

    fn load(&self, address: vervain_acp::GlobalAddress) -> Result<u64> {
        let place = self.world.address(address).context("no memory of this rank")?;
        // SAFETY: a word of registered memory of this rank, aligned, that peers change by atomics and stores of 8
        // bytes.
        Ok(unsafe { std::sync::atomic::AtomicU64::from_ptr(place.cast()) }.load(std::sync::atomic::Ordering::Acquire))
    }

    fn store(&self, address: vervain_acp::GlobalAddress, value: u64) -> Result<()> {
        let place = self.world.address(address).context("no memory of this rank")?;
        // SAFETY: as above.
        unsafe { std::sync::atomic::AtomicU64::from_ptr(place.cast()) }
            .store(value, std::sync::atomic::Ordering::Release);
        Ok(())
    }

    fn copy(&self, to: vervain_acp::GlobalAddress, from: vervain_acp::GlobalAddress) -> Result<()> {
        let handle = self.world.copy(to, from, 8, vervain_acp::Order::Now).map_err(sentence)?;
        self.world.complete(handle).map_err(sentence)
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
        let added = self.world.atomic(self.at(HERE), there.add(ADDED), Atomic::Add8(1), vervain_acp::Order::Now);
        self.world.complete(added.map_err(sentence)?).map_err(sentence)?;
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
