//! A process that answers for many ranks of a job. It serves measurements of a real rank ([`vervain_acp::World`]) in a
//! job that is larger than the machine.
//!
//! Each of its ranks is found by the directory, and has its own handshakes, QPs, table of registrations and words of
//! starter memory; they share devices, doors and the queues. They serve no commands, since puts, gets, atomics and
//! short copies need none. On command they visit the rank that is measured.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vervain_acp::parts::{Entry, Peer, agreed, hello, options};
use vervain_acp::{Layout, Settings};
use vervain_bootstrap::Job;
use vervain_mesh::parts::Pair;
use vervain_mesh::{Event, Link, Mesh, Options};
use vervain_rdma::{Access, AtomicCap, CompChannel, Completion, Cq, Region, RemoteAddr, SendRequest};

use crate::rank_pool::RankPool;
use crate::words::{ADDED, COPIED, COUNT, IDENTITY, OWN_BYTES, PUT, SLOTS, identity, mark, tour};

/// Ranks of a process that are on their visit at a time.
const WINDOW: usize = 8;
/// Bytes of each of them for its reads and writes.
const DESK: usize = 64;
/// Longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// A rank on its visit.
struct Visit {
    rank: u32,
    link: Link,
    qps: Rc<Pair>,
    peer: Peer,
    /// Requests that have not completed.
    left: u32,
}

/// The ranks of this process. They are driven by [`serve`](SimulatedRanks::serve) and [`visit`](SimulatedRanks::visit).
pub struct SimulatedRanks {
    pool: RankPool,
    ranks: Range<u32>,
    /// Ranks of the job.
    size: u32,
    absent: u32,
    /// A table of registrations for each rank, with its starter memory only. As all memory here it is known to the
    /// first port alone, that of color 0, which starter memory has.
    tables: Region,
    /// The starter memories of all ranks, one behind the other.
    starters: Region,
    desks: Region,
    queues: Vec<[(Cq, CompChannel); 2]>,
    visits: Vec<Option<Visit>>,
    /// Ranks that have not begun their visit.
    at_home: VecDeque<u32>,
    gone: usize,
    back: usize,
}

/// Entries of a table: none, and the three starter memories, of which only the first exists.
const ENTRIES: usize = 4;

impl SimulatedRanks {
    /// Opens the devices and begins to listen, for all of `ranks` except `absent`; `job` is that of the first of them,
    /// which begins a block of the directory. A fence follows, then [`populate`](SimulatedRanks::populate).
    ///
    /// # Errors
    /// One sentence: no device, one that is not atomic beside processors, starter memory that is too small.
    pub fn open(job: &Job, ranks: Range<u32>, absent: u32, settings: &Settings) -> Result<Self> {
        Layout::of(job.size()).context("the job is larger than global addresses can name")?;
        ensure!(settings.starter[0] >= OWN_BYTES, "{OWN_BYTES} bytes of starter memory are needed, at least");
        // The connections of the visited rank, those that close, and those of its visitors.
        let options = Options { connections: 2 * settings.connections + 2 * WINDOW, ..options(settings) };
        let pool = RankPool::open(job, ranks.clone(), &options, &agreed(settings))?;
        let caps = pool.ports().iter().map(|port| Ok(port.context.attr()?.atomics)).collect::<Result<Vec<_>>>()?;
        let is_atomic = caps.iter().all(|cap| *cap == AtomicCap::Global);
        ensure!(is_atomic, "the device is not atomic beside processors, which a farm needs");
        let pd = pool.ports()[0].pd.clone();
        let count = ranks.len();
        let starters = pd.region((count as u64 * OWN_BYTES + settings.starter[0]) as usize, Access::REMOTE)?;
        let tables = pd.region(count * ENTRIES * Entry::BYTES, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
        for (at, rank) in ranks.clone().enumerate() {
            let start = starters.addr() + at as u64 * OWN_BYTES;
            let entry = Entry { start, size: settings.starter[0], rkey: starters.rkey() };
            for (i, word) in entry.words().into_iter().enumerate() {
                tables.store((at * ENTRIES + 1) * Entry::BYTES + 8 * i, word);
            }
            starters.store(place(at, IDENTITY), identity(rank));
        }
        let desks = pd.region(WINDOW * DESK, Access::LOCAL_WRITE)?;
        let queues = pool.queues();
        let at_home = ranks.clone().filter(|rank| *rank != absent).collect();
        Ok(Self {
            pool,
            ranks,
            size: job.size(),
            absent,
            tables,
            starters,
            desks,
            queues,
            visits: (0..WINDOW).map(|_| None).collect(),
            at_home,
            gone: 0,
            back: 0,
        })
    }

    /// Has all ranks register with their leaders.
    ///
    /// # Errors
    /// A rank is not registered within two minutes; errors of the device.
    pub fn populate(&mut self, job: &Job) -> Result<()> {
        let ports = self.queues.len();
        let absent = self.absent;
        for (at, rank) in self.ranks.clone().enumerate().filter(|(_, rank)| *rank != absent) {
            let table = self.tables.addr() + (at * ENTRIES * Entry::BYTES) as u64;
            let hello = hello(table, 0, |_| (self.tables.rkey(), 0), ports, true);
            self.pool.add(job, rank, hello)?;
            self.pool.introduce(job, Instant::now(), rank)?;
            let until = Instant::now() + PATIENCE;
            while !self.pool.registered(rank) {
                ensure!(Instant::now() <= until, "rank {rank} is not registered after {PATIENCE:?}");
                self.turn(job, None, until)?;
            }
        }
        Ok(())
    }

    /// Serves peers until `wake` is readable.
    ///
    /// # Errors
    /// A connection of a rank cannot be made or closed; errors of the device.
    pub fn serve(&mut self, job: &Job, wake: BorrowedFd<'_>) -> Result<()> {
        let long = Instant::now() + Duration::from_secs(1 << 20);
        while !self.turn(job, Some(wake), long)? {}
        Ok(())
    }

    /// The most connections that these ranks have had at a time: QPs are used again.
    pub fn connections(&self) -> usize {
        self.pool.connections()
    }

    /// Has `count` ranks that have not visited yet visit rank `host`: each connects, gets the identity of `host`, puts
    /// a mark, and adds 1 to its count. Returns when all have.
    ///
    /// # Errors
    /// Fewer ranks are left; a rank got a wrong word; a connection or a request has failed.
    pub fn visit(&mut self, job: &Job, host: u32, count: usize) -> Result<()> {
        ensure!(count <= self.at_home.len(), "{count} ranks are to go, and {} are left", self.at_home.len());
        (self.gone, self.back) = (0, 0);
        let mut seen = (0, Instant::now());
        while self.back < count {
            while self.gone < count && self.gone - self.back < WINDOW {
                let Some(rank) = self.at_home.pop_front() else { break };
                self.gone += 1;
                self.pool.want(job, Instant::now(), rank, host)?;
            }
            self.turn(job, None, Instant::now() + PATIENCE)?;
            if self.back > seen.0 {
                seen = (self.back, Instant::now());
            } else if seen.1.elapsed() > PATIENCE {
                bail!("rank {host} cannot be visited for {PATIENCE:?}");
            }
        }
        Ok(())
    }

    /// Counts the ranks with the state that the [`tour`] of rank `absent` should leave: their mark put, 1 added, and
    /// the identity of the rank before them on the tour copied here (for the first, nothing).
    pub fn check(&self) -> u32 {
        let mut before = None;
        let mut right = 0;
        for rank in tour(self.size, self.absent) {
            if self.ranks.contains(&rank) {
                let at = (rank - self.ranks.start) as usize;
                let found = [IDENTITY, PUT, ADDED, COPIED].map(|offset| self.starters.load(place(at, offset)));
                right += u32::from(found == [identity(rank), mark(rank), 1, before.map_or(0, identity)]);
            }
            before = Some(rank);
        }
        right
    }

    /// Does the work that there is, then sleeps until there is more, or until `until`. Returns true if `wake` is
    /// readable.
    fn turn(&mut self, job: &Job, wake: Option<BorrowedFd<'_>>, until: Instant) -> Result<bool> {
        if self.work(job)? {
            return Ok(false);
        }
        for (cq, channel) in self.queues.iter().flatten() {
            while let Some(event) = channel.next_event()? {
                event.acknowledge_later(cq);
            }
            cq.request_notify(false)?;
        }
        // Completions from before they were armed.
        if self.work(job)? {
            return Ok(false);
        }
        let until = self.pool.deadline().map_or(until, |deadline| deadline.min(until));
        let wait = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
        let mut fds: Vec<_> = wake.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).into_iter().collect();
        let channels = self.queues.iter().flatten();
        fds.extend(channels.map(|(_, channel)| PollFd::from_borrowed_fd(channel.fd(), PollFlags::IN)));
        // A signal does no harm.
        let _ = poll(&mut fds, Some(&timeout));
        Ok(wake.is_some() && !fds[0].revents().is_empty())
    }

    /// Handles everything that has come. Returns true if there was anything.
    fn work(&mut self, job: &Job) -> Result<bool> {
        let mut any = self.pool.poll()? | self.pool.fetch(job)?;
        self.pool.progress(Instant::now());
        while let Some((rank, event)) = self.pool.next_event() {
            any = true;
            match event {
                Event::Opened(link) => self.arrived(rank, link)?,
                Event::Closed { .. } => {}
                Event::Failed { error, .. } => return Err(error.into()),
            }
        }
        for port in 0..self.queues.len() {
            let mut done = [Completion::default(); 16];
            let found = self.queues[port][0].0.poll(&mut done)?;
            for completion in &done[..found] {
                any = true;
                self.completed(completion)?;
            }
        }
        Ok(any)
    }

    /// Handles a connection that is open: of a rank that wanted it, or of one that is visited.
    fn arrived(&mut self, rank: u32, link: Link) -> Result<()> {
        if !self.pool.is_held(rank, link) {
            return Ok(());
        }
        let peer = Peer::decode(&self.pool.hello(rank, link), 0)
            .context("the rank that is visited does not introduce itself")?;
        let qps = self.pool.qps(rank, link).context("a connection without QPs")?;
        let free = self.visits.iter().position(Option::is_none);
        let at = free.context("more visits than may be at a time")?;
        let visit = self.visits[at].insert(Visit { rank, link, qps, peer, left: 1 });
        // Reads the entry of its starter memory.
        let desk = at * DESK;
        let sges = [self.desks.slice(desk..desk + Entry::BYTES)];
        let from = RemoteAddr { addr: visit.peer.table + Entry::BYTES as u64, rkey: visit.peer.table_key };
        Ok(visit.qps.data.post(SendRequest::read(&sges, from).id((at as u64) << 1 | 1).signaled())?)
    }

    fn completed(&mut self, completion: &Completion) -> Result<()> {
        if Mesh::notice(completion).is_some() {
            return Ok(());
        }
        ensure!(completion.is_success(), "a visit has failed: {}", completion.status());
        let at = (completion.id() >> 1) as usize;
        let Some(visit) = self.visits.get_mut(at).and_then(Option::as_mut) else { return Ok(()) };
        visit.left -= 1;
        if completion.id() & 1 != 0 {
            return self.shown_in(at);
        }
        if visit.left > 0 {
            return Ok(());
        }
        let (rank, link) = (visit.rank, visit.link);
        let got = self.desks.load(at * DESK + GOT);
        ensure!(got == identity(self.absent), "rank {rank} got {got:#x} from rank {}", self.absent);
        self.visits[at] = None;
        self.pool.release(Instant::now(), rank, link);
        self.back += 1;
        Ok(())
    }

    /// Makes the accesses of the visit, once the entry was read.
    fn shown_in(&mut self, at: usize) -> Result<()> {
        let Some(visit) = &mut self.visits[at] else { return Ok(()) };
        let desk = at * DESK;
        let words = [0, 8, 16, 24].map(|word| self.desks.load(desk + word));
        let entry = match Entry::read(words) {
            Ok(Some(entry)) if entry.size >= SLOTS + 8 => entry,
            _ => bail!("the rank that is visited has no starter memory of 24 bytes"),
        };
        self.desks.store(desk + GIVEN, mark(visit.rank));
        let sge = |word: usize| [self.desks.slice(desk + word..desk + word + 8)];
        let there = |offset: u64| RemoteAddr { addr: entry.start + offset, rkey: entry.rkey };
        let slots = (entry.size - SLOTS) / 8;
        let slot = SLOTS + u64::from(visit.rank) % slots * 8;
        let (given, got, added) = (sge(GIVEN), sge(GOT), sge(WAS));
        visit.left = 3;
        let id = (at as u64) << 1;
        visit.qps.data.post(SendRequest::write(&given, there(slot)).id(id).signaled())?;
        visit.qps.data.post(SendRequest::read(&got, there(IDENTITY)).id(id).signaled())?;
        Ok(visit.qps.data.post(SendRequest::fetch_add(&added, there(COUNT), 1).id(id).signaled())?)
    }
}

/// Offsets on a visitor's desk, behind the entry: the word that it gets, that which its atomic
/// finds, and that which it puts.
const GOT: usize = 32;
const WAS: usize = 40;
const GIVEN: usize = 48;

/// The offset in all starter memories of a word of the rank with the index `at`.
fn place(at: usize, offset: u64) -> usize {
    at * OWN_BYTES as usize + offset as usize
}
