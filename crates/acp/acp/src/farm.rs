//! A farm: one process that answers for many ranks of a job. It serves measurements of a real rank
//! ([`World`](crate::World)) in a job that is larger than the machine.
//!
//! Each of its ranks is found by the directory, and has its own handshakes, QPs, table of registrations and words of
//! starter memory; they share devices, doors and the queues. They serve no commands, since puts, gets, atomics and
//! short copies need none. On command they visit the rank that is measured.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vervain_bootstrap::Job;
use vervain_mesh::{Crowd, Event, Link, Options, Qps};
use vervain_rdma::{AtomicCap, CompChannel, Completion, Cq, RemoteAddr, SendRequest};

use crate::address::Layout;
use crate::engine::{Peer, by_device, hello};
use crate::error::{Error, Result};
use crate::memory::{Domain, Mapped, Pages, Registration, Rights};
use crate::progress::{agreed, options};
use crate::settings::Settings;
use crate::table::{Entry, read_entry};

/// Ranks of a block of the mesh's directory: a farm has whole blocks.
pub const BLOCK: u32 = vervain_mesh::protocol::BLOCK;

/// Bytes of the starter memory of each rank that are its own alone; the next rank's follow.
pub const OWN_BYTES: u64 = 32;
/// Offsets in a farm rank's starter memory: its [`identity`], for ranks that get; a word for ranks that put ([`mark`]);
/// one for ranks that add; one for the copy of another rank's identity.
pub const IDENTITY: u64 = 0;
/// See [`IDENTITY`].
pub const PUT: u64 = 8;
/// See [`IDENTITY`].
pub const ADDED: u64 = 16;
/// See [`IDENTITY`].
pub const COPIED: u64 = 24;

/// Offsets in the starter memory of the visited rank: the identity that visitors get, a word that each adds 1 to, and
/// the first of the words that they put to.
pub const COUNT: u64 = 8;
/// See [`COUNT`].
pub const SLOTS: u64 = 16;

/// Ranks of a farm that are on their visit at a time.
const WINDOW: usize = 8;
/// Bytes of each of them for its reads and writes.
const DESK: usize = 64;
/// Longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// The word that identifies a rank.
pub fn identity(rank: u32) -> u64 {
    mix(rank, 0x9e37_79b9_7f4a_7c15)
}

/// The word that `rank` puts, or that is put to it.
pub fn mark(rank: u32) -> u64 {
    mix(rank, 0xd1b5_4a32_d192_ed03)
}

/// The rank of a mark, of `ranks`; None if it is no rank's mark.
pub fn marked(mark: u64, ranks: u32) -> Option<u32> {
    let rank = mark as u32;
    (rank < ranks && self::mark(rank) == mark).then_some(rank)
}

/// The number in the low half, and a hash of it in the high one.
fn mix(rank: u32, factor: u64) -> u64 {
    let hash = (u64::from(rank) + 1).wrapping_mul(factor);
    (hash | 1 << 63) & !0xffff_ffff | u64::from(rank)
}

/// All ranks of a job except one, each once, far from each other.
pub fn tour(ranks: u32, without: u32) -> impl Iterator<Item = u32> {
    let size = u64::from(ranks);
    // About the golden section of them, without a common divisor.
    let stride = (size * 618 / 1000..).find(|stride| *stride > 0 && gcd(*stride, size) == 1).unwrap_or(1);
    let all = (0..size).map(move |i| ((i + 1) * stride % size) as u32);
    all.filter(move |rank| *rank != without)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A rank of the farm on its visit.
struct Visit {
    rank: u32,
    link: Link,
    qps: Qps,
    peer: Peer,
    /// Requests that have not completed.
    left: u32,
}

/// The process. It is driven by [`serve`](Farm::serve) and [`visit`](Farm::visit).
pub struct Farm {
    crowd: Crowd,
    ranks: Range<u32>,
    absent: u32,
    layout: Layout,
    /// A table of registrations for each rank, with its starter memory only.
    tables: Mapped,
    /// The starter memories of all ranks, one behind the other. None once deregistered.
    starters: Option<Registration>,
    starter_pages: Option<Pages>,
    desks: Mapped,
    queues: Vec<[(Cq, CompChannel); 2]>,
    visits: Vec<Option<Visit>>,
    /// Ranks that have not begun their visit.
    at_home: VecDeque<u32>,
    gone: usize,
    back: usize,
}

/// Entries of a table: none, and the three starter memories, of which only the first exists.
const ENTRIES: usize = 4;

impl Farm {
    /// Opens the devices and begins to listen, for all of `ranks` except `absent`; `job` is that of the first of them,
    /// which begins a block of the directory. A fence follows, then [`populate`](Farm::populate).
    ///
    /// # Errors
    /// One sentence: no device, one that is not atomic beside processors, starter memory that is too small.
    pub fn open(job: &Job, ranks: Range<u32>, absent: u32, settings: &Settings) -> Result<Farm> {
        let layout =
            Layout::of(job.size()).ok_or_else(|| Error::broken("the job is larger than global addresses can name"))?;
        if settings.starter[0] < OWN_BYTES {
            return Err(Error::refused(format!("{OWN_BYTES} bytes of starter memory are needed, at least")));
        }
        // The connections of the visited rank, those that close, and those of its visitors.
        let options = Options { connections: 2 * settings.connections + 2 * WINDOW, ..options(settings) };
        let crowd = Crowd::open(job, ranks.clone(), &options, &agreed(settings))?;
        let pds = crowd.domains();
        let caps = crowd.ports().iter().map(|port| Ok(port.context.attr()?.atomics)).collect::<Result<Vec<_>>>()?;
        if !caps.iter().all(|cap| by_device(*cap)) {
            return Err(Error::refused("the device is not atomic beside processors, which a farm needs"));
        }
        let domains: Vec<_> = pds.iter().map(|pd| Domain { pd, atomics: AtomicCap::Global }).collect();
        let count = ranks.len();
        let len = (count as u64 * OWN_BYTES + settings.starter[0]) as usize;
        let pages = Pages::new(len)?;
        // SAFETY: the pages live as long as the farm, which deregisters them first.
        let starters = unsafe { Registration::new(&domains, pages.start(), len, 0, Rights::Write)? };
        let tables = Mapped::new(&domains, count * ENTRIES * Entry::BYTES)?;
        for (at, rank) in ranks.clone().enumerate() {
            let start = starters.at(at * OWN_BYTES as usize) as u64;
            let entry = Entry { start, size: settings.starter[0], rkey: starters.rkey };
            for (i, word) in entry.words().into_iter().enumerate() {
                tables.word((at * ENTRIES + 1) * Entry::BYTES + 8 * i).store(word, Ordering::Release);
            }
            word(&starters, at, IDENTITY).store(identity(rank), Ordering::Release);
        }
        let desks = Mapped::new(&domains, WINDOW * DESK)?;
        let queues = crowd.queues();
        let at_home = ranks.clone().filter(|rank| *rank != absent).collect();
        Ok(Farm {
            crowd,
            ranks,
            absent,
            layout,
            tables,
            starters: Some(starters),
            starter_pages: Some(pages),
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
            let table = self.tables.start() + (at * ENTRIES * Entry::BYTES) as u64;
            let hello = hello(table, 0, |port| (self.tables.rkey(port), 0), ports, true);
            self.crowd.add(job, rank, hello)?;
            self.crowd.introduce(job, Instant::now(), rank)?;
            let until = Instant::now() + PATIENCE;
            while !self.crowd.registered(rank) {
                if Instant::now() > until {
                    return Err(Error::broken(format!("rank {rank} is not registered after {PATIENCE:?}")));
                }
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

    /// The most connections that the farm's ranks have had at a time: QPs are used again.
    pub fn connections(&self) -> usize {
        self.crowd.connections()
    }

    /// The number of ranks that have not begun their visit.
    pub fn at_home(&self) -> usize {
        self.at_home.len()
    }

    /// Has `count` ranks that have not visited yet visit rank `host`: each connects, gets the identity of `host`, puts
    /// a mark, and adds 1 to its count. Returns when all have.
    ///
    /// # Errors
    /// Fewer ranks are left; a rank got a wrong word; a connection or a request has failed.
    pub fn visit(&mut self, job: &Job, host: u32, count: usize) -> Result<()> {
        if count > self.at_home.len() {
            return Err(Error::refused(format!("{count} ranks are to go, and {} are left", self.at_home.len())));
        }
        (self.gone, self.back) = (0, 0);
        let mut seen = (0, Instant::now());
        while self.back < count {
            while self.gone < count && self.gone - self.back < WINDOW {
                let Some(rank) = self.at_home.pop_front() else { break };
                self.gone += 1;
                self.crowd.want(job, Instant::now(), rank, host)?;
            }
            self.turn(job, None, Instant::now() + PATIENCE)?;
            if self.back > seen.0 {
                seen = (self.back, Instant::now());
            } else if seen.1.elapsed() > PATIENCE {
                return Err(Error::broken(format!("rank {host} cannot be visited for {PATIENCE:?}")));
            }
        }
        Ok(())
    }

    /// Counts the ranks with the state that the [`tour`] of rank `absent` should leave: their mark put, 1 added, and
    /// the identity of the rank before them on the tour copied here (for the first, nothing).
    pub fn check(&self) -> u32 {
        let mut before = None;
        let mut right = 0;
        for rank in tour(self.layout.ranks(), self.absent) {
            if self.ranks.contains(&rank) {
                let Some(starters) = &self.starters else { return 0 };
                let at = (rank - self.ranks.start) as usize;
                let found =
                    [IDENTITY, PUT, ADDED, COPIED].map(|offset| word(starters, at, offset).load(Ordering::Acquire));
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
        let until = self.crowd.deadline().map_or(until, |deadline| deadline.min(until));
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
        let mut any = self.crowd.poll()? | self.crowd.fetch(job)?;
        self.crowd.progress(Instant::now());
        while let Some((rank, event)) = self.crowd.next_event() {
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
        if !self.crowd.is_held(rank, link) {
            return Ok(());
        }
        let peer = Peer::decode(&self.crowd.hello(rank, link), 0)
            .ok_or_else(|| Error::broken("the rank that is visited does not introduce itself"))?;
        let qps = self.crowd.qps(rank, link).ok_or_else(|| Error::broken("a connection without QPs"))?;
        let free = self.visits.iter().position(Option::is_none);
        let at = free.ok_or_else(|| Error::broken("more visits than may be at a time"))?;
        let visit = self.visits[at].insert(Visit { rank, link, qps, peer, left: 1 });
        // Reads the entry of its starter memory.
        let desk = at * DESK;
        let sges = [self.desks.sge(0, desk..desk + Entry::BYTES)];
        let from = RemoteAddr { addr: visit.peer.table + Entry::BYTES as u64, rkey: visit.peer.table_key };
        Ok(visit.qps.data().post(SendRequest::read(&sges, from).id((at as u64) << 1 | 1).signaled())?)
    }

    fn completed(&mut self, completion: &Completion) -> Result<()> {
        if Crowd::is_notice(completion) {
            return Ok(());
        }
        if !completion.is_success() {
            return Err(Error::broken(format!("a visit has failed: {}", completion.status())));
        }
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
        let got = self.desks.word(at * DESK + GOT).load(Ordering::Acquire);
        if got != identity(self.absent) {
            return Err(Error::broken(format!("rank {rank} got {got:#x} from rank {}", self.absent)));
        }
        self.visits[at] = None;
        self.crowd.release(Instant::now(), rank, link);
        self.back += 1;
        Ok(())
    }

    /// Makes the accesses of the visit, once the entry was read.
    fn shown_in(&mut self, at: usize) -> Result<()> {
        let Some(visit) = &mut self.visits[at] else { return Ok(()) };
        let desk = at * DESK;
        let words = [0, 8, 16, 24].map(|word| self.desks.word(desk + word));
        let entry = match read_entry(words) {
            Ok(Some(entry)) if entry.size >= SLOTS + 8 => entry,
            _ => return Err(Error::broken("the rank that is visited has no starter memory of 24 bytes")),
        };
        self.desks.word(desk + GIVEN).store(mark(visit.rank), Ordering::Release);
        let sge = |word: usize| [self.desks.sge(0, desk + word..desk + word + 8)];
        let there = |offset: u64| RemoteAddr { addr: entry.start + offset, rkey: entry.rkey };
        let slots = (entry.size - SLOTS) / 8;
        let slot = SLOTS + u64::from(visit.rank) % slots * 8;
        let (given, got, added) = (sge(GIVEN), sge(GOT), sge(WAS));
        visit.left = 3;
        let id = (at as u64) << 1;
        visit.qps.data().post(SendRequest::write(&given, there(slot)).id(id).signaled())?;
        visit.qps.data().post(SendRequest::read(&got, there(IDENTITY)).id(id).signaled())?;
        Ok(visit.qps.data().post(SendRequest::fetch_add(&added, there(COUNT), 1).id(id).signaled())?)
    }
}

/// Offsets on a visitor's desk, behind the entry: the word that it gets, that which its atomic
/// finds, and that which it puts.
const GOT: usize = 32;
const WAS: usize = 40;
const GIVEN: usize = 48;

impl Drop for Farm {
    fn drop(&mut self) {
        if !self.starters.take().is_none_or(Registration::deregister) {
            // The device may still reach them.
            std::mem::forget(self.starter_pages.take());
        }
    }
}

/// A word of the starter memory of the rank with the index `at`.
fn word(starters: &Registration, at: usize, offset: u64) -> &std::sync::atomic::AtomicU64 {
    starters.word(at * OWN_BYTES as usize + offset as usize)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_tour_comes_to_each_rank_once() {
        for ranks in [2, 3, 4, 1000, 3000, 4096] {
            let all: Vec<u32> = tour(ranks, 1).collect();
            let distinct: BTreeSet<u32> = all.iter().copied().collect();
            assert_eq!((all.len(), distinct.len()), (ranks as usize - 1, ranks as usize - 1), "{ranks}");
            assert!(!distinct.contains(&1));
        }
    }

    #[test]
    fn marks_name_their_rank() {
        for rank in [0, 1, 77, 999_999] {
            assert_eq!(marked(mark(rank), 1_000_000), Some(rank));
            assert_ne!(identity(rank), mark(rank));
            assert_ne!(identity(rank), 0);
        }
        assert_eq!((marked(0, 10), marked(mark(10), 10), marked(identity(3), 10)), (None, None, None));
    }
}
