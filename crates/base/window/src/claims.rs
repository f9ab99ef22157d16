//! Numbers and memory of processes. The kernel's locks say whose they are, so that it takes them back from the dead.
//! Two locks stand for a granule of a region: that of its owner, and one that peers share while they may put there. Who
//! wants a granule needs both, so that memory of a dead process is not given to another while a stopped peer may still
//! write to it.
//!
//! Of peers on another kernel locks tell nothing. Where there are any, memory rests for [`REST_MS`] after the last sign
//! of life of its owner, or after it was given back. That is what the table at the beginning of a region is for: for
//! each process the time at which it was last alive, for each granule its owner or the time from which on it may be
//! claimed.
//!
//! The heap of a process is an owner without a number ([`HeapOwner`]): nobody calls on it, so it has no doors, and no
//! time at which it was last alive. What it leaves behind when it dies rests from the moment at which somebody finds
//! it.

use crate::device::Region;
use crate::error::{Error, Result};
use crate::layout::{GRANULE, Header, Layout, PROCESSES};
use crate::locks::{self, Kernel, Kind, Locked, one};
use crate::nodes::{self, Identity};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Milliseconds for which memory rests that a peer on another kernel may still put to.
pub const REST_MS: u64 = 10_000;
/// In place of a number in the words of owners: the heap of some process.
const HEAP: u32 = PROCESSES;
/// Bytes of a region that heaps leave to what processes claim by their numbers, at least; and which part of it.
const LEFT: u64 = 8 << 20;
const LEFT_PART: u32 = 8;
/// How long a process waits for another that looks for memory, before it looks at the same time.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a process has of its node, and what it uses of others'.
pub struct Claims {
    node: u32,
    layout: Layout,
    own: Region,
    header: Region,
    identity: Identity,
    kernel: Box<dyn Kernel>,
    held: Mutex<Held>,
}

/// What the holder of the locks has, for to itself a kernel would give it again.
#[derive(Default)]
struct Held {
    /// Numbers with their incarnations.
    processes: BTreeMap<u32, u64>,
    /// Incarnations of heaps.
    heaps: BTreeSet<u64>,
    granules: BTreeSet<u32>,
    /// Places in the memory of the node's board.
    board: BTreeSet<u32>,
    /// How often each granule of a node is used.
    uses: BTreeMap<(u32, u32), usize>,
}

impl Held {
    /// Whether the process or the heap with this incarnation is held here.
    fn has(&self, incarnation: u64) -> bool {
        self.heaps.contains(&incarnation) || self.processes.values().any(|own| *own == incarnation)
    }
}

impl fmt::Debug for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claims").field("node", &self.node).field("layout", &self.layout).finish_non_exhaustive()
    }
}

impl Claims {
    /// Of a process of the node that [`nodes::join`] has found by the same `kernel`.
    pub(crate) fn new(
        (node, identity): (u32, Identity),
        layout: Layout,
        (header, own): (Region, Region),
        kernel: Box<dyn Kernel>,
    ) -> Arc<Claims> {
        Arc::new(Claims { node, layout, own, header, identity, kernel, held: Mutex::default() })
    }

    fn header(&self) -> &Header {
        Header::of(&self.header)
    }

    /// What is held. In a forked child, where nothing is, the lock may be that of a thread that is not there.
    fn held(&self) -> Result<MutexGuard<'_, Held>> {
        self.kernel.check()?;
        Ok(self.held.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The lowest number among the processes of this node that is free, and a new incarnation. Its doors are as the
    /// process left them that had the number before.
    ///
    /// # Errors
    /// ENOSPC: [`PROCESSES`] processes are there. ESRCH: this is a forked child.
    pub fn process(self: &Arc<Self>) -> Result<Process> {
        self.process_from(0)
    }

    /// [`Claims::process`], with the first number that is free from `first` on, after the last of which the lowest
    /// follows: where what processes have goes by their numbers, those of several windows had better not all have the
    /// same.
    ///
    /// # Errors
    /// As [`Claims::process`].
    pub fn process_from(self: &Arc<Self>, first: u32) -> Result<Process> {
        let mut held = self.held()?;
        let numbers = (0..PROCESSES).map(|n| (first % PROCESSES + n) % PROCESSES);
        for number in numbers.filter(|n| !held.processes.contains_key(n)).collect::<Vec<_>>() {
            if !self.kernel.try_lock(one(locks::process(self.node, number)), Kind::Alone)? {
                continue;
            }
            let incarnation = self.incarnation().inspect_err(|_| {
                self.kernel.unlock(one(locks::process(self.node, number)));
            })?;
            self.release_memory_of_dead(number);
            held.processes.insert(number, incarnation);
            drop(held);
            let process = Process(Arc::new(Owner { claims: self.clone(), number, incarnation }));
            process.beat();
            return Ok(process);
        }
        Err(Error::new(libc::ENOSPC, format!("node {} of the window has {PROCESSES} processes already", self.node)))
    }

    /// An owner of memory without a number, for the heap of this process.
    ///
    /// # Errors
    /// ENOMEM: the region is too small to have one. ESRCH: this is a forked child.
    pub fn heap(self: &Arc<Self>) -> Result<HeapOwner> {
        let mut held = self.held()?;
        let incarnation = self.incarnation()?;
        held.heaps.insert(incarnation);
        drop(held);
        let owner = HeapOwner(Arc::new(Owner { claims: self.clone(), number: HEAP, incarnation }));
        if owner.granules().is_empty() {
            let all = (self.layout.granules().len() as u64 * GRANULE) >> 20;
            let what = "too small for a heap beside what messages need";
            return Err(Error::new(libc::ENOMEM, format!("the region of node {}, {all} MiB, is {what}", self.node)));
        }
        Ok(owner)
    }

    /// The number of the descriptor that the locks are taken by. Whoever closes it gives up all that is claimed.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.kernel.descriptor()
    }

    /// An incarnation that nobody else has, locked.
    fn incarnation(&self) -> Result<u64> {
        loop {
            let random = self.kernel.random()? % locks::INCARNATIONS;
            if random != 0 && self.kernel.try_lock(one(locks::incarnation(random)), Kind::Alone)? {
                return Ok(random);
            }
        }
    }

    /// The process that had this number before has died: what it owned rests from its last sign of life on.
    fn release_memory_of_dead(&self, number: u32) {
        let rested = (self.alive(number) + REST_MS) << 8;
        for granule in self.layout.granules() {
            let word = self.own.word(Layout::owner(granule));
            // Unless somebody else claims it just now.
            let _ = word.compare_exchange(owned_by(number), rested, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// When the process with this number was last alive; 0 if what is there cannot be, after a restart of the machine
    /// say.
    fn alive(&self, number: u32) -> u64 {
        let said = self.own.word(Layout::alive(number)).load(Ordering::Acquire);
        if said > self.kernel.now_ms() { 0 } else { said }
    }

    /// Whether a peer on another kernel may still put to a granule that nobody owns.
    fn rests(&self, granule: u32) -> bool {
        let word = self.own.word(Layout::owner(granule)).load(Ordering::Acquire);
        let until = match (word & 0xff) as u32 {
            0 => word >> 8,
            // Not before it is known by its locks that it is dead ([`Claims::let_rest`]).
            heap if heap == HEAP + 1 => return false,
            process => self.alive((process - 1) % PROCESSES) + REST_MS,
        };
        let now = self.kernel.now_ms();
        // Later than can be is from before a restart, or nonsense.
        now < until && until <= now + REST_MS
    }

    /// Starts the rest period of dead heaps' granules. The caller holds both locks.
    fn let_rest(&self, granules: &Range<u32>) {
        let rested = (self.kernel.now_ms() + REST_MS) << 8;
        for granule in granules.clone() {
            let word = self.own.word(Layout::owner(granule));
            let _ = word.compare_exchange(owned_by(HEAP), rested, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// `count` granules of `all` in a row, from a multiple of `align` on.
    fn claim(&self, count: u32, all: &Range<u32>, align: u32, owner: u32) -> Result<Range<u32>> {
        let mut held = self.held()?;
        let claiming = locks::claiming(self.node);
        // A process that is stopped there only makes others pass over what it has just locked.
        let alone = locks::lock_soon(&*self.kernel, claiming, PATIENCE)?;
        let alone = alone.then(|| Locked::of(&*self.kernel, claiming));
        let found = self.find(&held, count, all, align)?;
        drop(alone);
        let granules = found.ok_or_else(|| {
            let (all, what) = (all.len(), "has no room for");
            Error::new(
                libc::ENOMEM,
                format!("the region of node {}, {all} granules of 64 KiB, {what} {count}", self.node),
            )
        })?;
        let bytes = bytes(&granules);
        let at = self.own.bytes(bytes.clone()).expect("granules lie in the region");
        // SAFETY: inside of the region; by both locks nobody else owns or uses it.
        unsafe { std::ptr::write_bytes(at, 0, (bytes.end - bytes.start) as usize) };
        for granule in granules.clone() {
            self.own.word(Layout::owner(granule)).store(owned_by(owner), Ordering::Release);
        }
        held.granules.extend(granules.clone());
        self.kernel.unlock(locks::users(self.node, &granules));
        Ok(granules)
    }

    /// `count` granules in a row that nobody owns or uses; both locks of each are taken. To ask the kernel for each
    /// granule takes long where many processes have some, so those are passed over at first that the table gives to a
    /// living process: a wrong entry hides them until nothing else is free.
    fn find(&self, held: &Held, count: u32, all: &Range<u32>, align: u32) -> Result<Option<Range<u32>>> {
        let mut living = BTreeMap::new();
        let found =
            self.find_where(|granule| !self.is_said_to_be_owned(granule, &mut living), held, count, all, align)?;
        if found.is_some() { Ok(found) } else { self.find_where(|_| true, held, count, all, align) }
    }

    /// Whether a granule is said to be another process's that lives; `living` is what has been found out about
    /// processes.
    fn is_said_to_be_owned(&self, granule: u32, living: &mut BTreeMap<u32, bool>) -> bool {
        let word = self.own.word(Layout::owner(granule)).load(Ordering::Acquire);
        let process = (word as u8).checked_sub(1).map(u32::from).filter(|process| *process < PROCESSES);
        process.is_some_and(|process| {
            let lives =
                || self.kernel.others(one(locks::process(self.node, process))).is_ok_and(|others| others.is_some());
            *living.entry(process).or_insert_with(lives)
        })
    }

    /// So many granules in a row among those that `may_be_free`, by now with both locks.
    fn find_where(
        &self,
        mut may_be_free: impl FnMut(u32) -> bool,
        held: &Held,
        count: u32,
        all: &Range<u32>,
        align: u32,
    ) -> Result<Option<Range<u32>>> {
        let foreign = nodes::has_other_kernels(self.header(), self.layout, self.identity);
        let mut first = all.start;
        loop {
            first = first.next_multiple_of(align);
            if count == 0 || all.end.saturating_sub(first) < count {
                return Ok(None);
            }
            let run = first..first + count;
            let (owner, users) = (locks::owner(self.node, &run), locks::users(self.node, &run));
            let mut is_taken = |g: u32| {
                !may_be_free(g)
                    || held.granules.contains(&g)
                    || held.uses.contains_key(&(self.node, g))
                    || foreign && self.rests(g)
            };
            if let Some(taken) = run.clone().rev().find(|g| is_taken(*g)) {
                first = taken + 1;
            } else if !self.kernel.try_lock(owner.clone(), Kind::Alone)? {
                first = self.behind_others(owner, &run)?;
            } else if !self.kernel.try_lock(users.clone(), Kind::Alone)? {
                self.kernel.unlock(owner);
                first = self.behind_others(users, &run)?;
            } else {
                if foreign {
                    self.let_rest(&run);
                }
                if !foreign || !run.clone().any(|g| self.rests(g)) {
                    return Ok(Some(run));
                }
                // A dead heap's, or given back between the look and the lock.
                self.kernel.unlock(users);
                self.kernel.unlock(owner);
            }
        }
    }

    /// The granule behind those of a run whose `locks` others hold; its first when they hold none any more.
    fn behind_others(&self, locks: Range<u64>, run: &Range<u32>) -> Result<u32> {
        let others = self.kernel.others(locks.clone())?;
        Ok(others.map_or(run.start, |others| run.start + (others.end - locks.start) as u32))
    }

    fn give_back(&self, granules: &Range<u32>) {
        let Ok(mut held) = self.held() else { return };
        let foreign = nodes::has_other_kernels(self.header(), self.layout, self.identity);
        let rested = if foreign { (self.kernel.now_ms() + REST_MS) << 8 } else { 0 };
        for granule in granules.clone() {
            self.own.word(Layout::owner(granule)).store(rested, Ordering::Release);
            held.granules.remove(&granule);
        }
        self.kernel.unlock(locks::owner(self.node, granules));
    }

    /// Uses memory that the process with this incarnation has said to be its own on `node`: while the guard is there,
    /// it stays that process's memory or nobody's. On another kernel that holds for [`REST_MS`] from the process's last
    /// sign of life only.
    ///
    /// # Errors
    /// ESTALE: the process is dead, or the memory another's. EINVAL: there is no such memory. ESRCH: this is a forked
    /// child.
    pub fn use_of(self: &Arc<Self>, node: u32, granules: Range<u32>, incarnation: u64) -> Result<UseGuard> {
        let all = self.layout.granules();
        if node >= self.layout.nodes() || granules.is_empty() || granules.start < all.start || granules.end > all.end {
            return Err(Error::invalid(format!("the window has no granules {granules:?} of node {node} to use")));
        }
        let mut held = self.held()?;
        let dead = || Error::new(libc::ESTALE, format!("the process of node {node} whose memory that was is dead"));
        if !self.kernel.try_lock(locks::users(node, &granules), Kind::Shared)? {
            // It is the claimant's: the owner's lock was free.
            return Err(dead());
        }
        let guard = UseGuard { claims: self.clone(), node, granules };
        for granule in guard.granules.clone() {
            *held.uses.entry((node, granule)).or_default() += 1;
        }
        // The order matters: who lives now owns the memory, and as the lock was there before, nobody else gets it.
        let lives = self.lives(&held, node, incarnation);
        drop(held);
        if !lives? {
            return Err(dead());
        }
        Ok(guard)
    }

    /// Whether the process of `node` with this incarnation lives; None where that is known on another kernel only.
    ///
    /// # Errors
    /// ESRCH: this is a forked child.
    pub fn is_alive(&self, node: u32, incarnation: u64) -> Result<Option<bool>> {
        let held = self.held()?;
        let there = self.header().table.get(node as usize).and_then(Identity::of_entry);
        if there.is_some_and(|there| there.kernel != self.identity.kernel) {
            return Ok(None);
        }
        self.lives(&held, node, incarnation).map(Some)
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// Whether a node is of this kernel; None for one that nobody has been.
    pub fn is_here(&self, node: u32) -> Option<bool> {
        Identity::of_entry(self.header().table.get(node as usize)?).map(|there| there.kernel == self.identity.kernel)
    }

    /// How many granules of this node nobody has or uses.
    pub(crate) fn unclaimed(&self) -> Result<usize> {
        let held = self.held()?;
        let is_taken = |g: &u32| held.granules.contains(g) || held.uses.contains_key(&(self.node, *g));
        let mut unclaimed = 0;
        let mut parts = vec![self.layout.granules()];
        while let Some(part) = parts.pop() {
            let mut taken = part.clone().find(is_taken).map(|g| g..g + 1);
            for locks in [locks::owner(self.node, &part), locks::users(self.node, &part)] {
                if taken.is_none() && !part.is_empty() {
                    let others = self.kernel.others(locks.clone())?;
                    let granule = |byte: u64| part.start + (byte - locks.start) as u32;
                    taken = others.map(|others| granule(others.start)..granule(others.end));
                }
            }
            match taken {
                Some(taken) => parts.extend([part.start..taken.start, taken.end..part.end]),
                None => unclaimed += part.len(),
            }
        }
        Ok(unclaimed)
    }

    /// Whether anybody has ever been this node.
    pub fn has_node(&self, node: u32) -> bool {
        self.header().table.get(node as usize).and_then(Identity::of_entry).is_some()
    }

    /// Whether a process of `node` has this number. On another kernel that is believed of all numbers of a node that
    /// there ever was.
    ///
    /// # Errors
    /// ESRCH: this is a forked child.
    pub fn has_process(&self, node: u32, number: u32) -> Result<bool> {
        let held = self.held()?;
        let Some(there) = self.header().table.get(node as usize).and_then(Identity::of_entry) else { return Ok(false) };
        Ok(there.kernel != self.identity.kernel
            || node == self.node && held.processes.contains_key(&number)
            || self.kernel.others(one(locks::process(node, number)))?.is_some())
    }

    /// Whether the process with this incarnation lives. Of one on another kernel that is believed.
    fn lives(&self, held: &Held, node: u32, incarnation: u64) -> Result<bool> {
        let there = Identity::of_entry(&self.header().table[node as usize]);
        Ok(there.is_some_and(|there| there.kernel != self.identity.kernel)
            || held.has(incarnation)
            || self.kernel.others(one(locks::incarnation(incarnation)))?.is_some())
    }

    /// Takes a place in the memory of the board of this node; whether nobody else has it.
    ///
    /// # Errors
    /// ESRCH: this is a forked child.
    pub(crate) fn claim_board_memory(&self, place: u32) -> Result<bool> {
        let mut held = self.held()?;
        if held.board.contains(&place) || !self.kernel.try_lock(one(locks::board(self.node, place)), Kind::Alone)? {
            return Ok(false);
        }
        held.board.insert(place);
        Ok(true)
    }

    pub(crate) fn give_back_board_memory(&self, place: u32) {
        let Ok(mut held) = self.held() else { return };
        held.board.remove(&place);
        self.kernel.unlock(one(locks::board(self.node, place)));
    }

    fn unuse(&self, node: u32, granules: &Range<u32>) {
        let Ok(mut held) = self.held() else { return };
        for granule in granules.clone() {
            let count = held.uses.get_mut(&(node, granule)).expect("it is used");
            *count -= 1;
            if *count == 0 {
                held.uses.remove(&(node, granule));
                self.kernel.unlock(locks::users(node, &(granule..granule + 1)));
            }
        }
    }
}

fn owned_by(process: u32) -> u64 {
    u64::from(process + 1)
}

fn bytes(granules: &Range<u32>) -> Range<u64> {
    u64::from(granules.start) * GRANULE..u64::from(granules.end) * GRANULE
}

/// A process of a node. When this and all its [`Claim`]s are dropped, the number is free again.
#[derive(Debug)]
pub struct Process(Arc<Owner>);

/// Whose memory is.
#[derive(Debug)]
struct Owner {
    claims: Arc<Claims>,
    /// Or [`HEAP`].
    number: u32,
    incarnation: u64,
}

impl Process {
    /// Below [`PROCESSES`].
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// Random, not 0; no other process of the window has had it. By it peers use the process's memory
    /// ([`Claims::use_of`]).
    pub fn incarnation(&self) -> u64 {
        self.0.incarnation
    }

    /// Says that the process lives; to be called some ten times a second.
    pub fn beat(&self) {
        let claims = &self.0.claims;
        // A forked child cannot speak for its parent.
        if claims.kernel.check().is_ok() {
            claims.own.word(Layout::alive(self.number())).store(claims.kernel.now_ms(), Ordering::Release);
            claims.header().table[claims.node as usize].beats.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// So many granules of the node's region in a row, filled with zeros.
    ///
    /// # Errors
    /// ENOMEM: there are not so many. ESRCH: this is a forked child.
    pub fn claim(&self, count: u32) -> Result<Claim> {
        let claims = &self.0.claims;
        let granules = claims.claim(count, &claims.layout.granules(), 1, self.number())?;
        Ok(Claim { owner: self.0.clone(), granules })
    }
}

/// The heap of a process. Its memory is its own by locks of its own, beside those of the process's device.
#[derive(Debug)]
pub struct HeapOwner(Arc<Owner>);

impl HeapOwner {
    /// As [`Process::incarnation`], of the heap: by it peers use memory that the process has shown them.
    pub fn incarnation(&self) -> u64 {
        self.0.incarnation
    }

    /// The granules that heaps claim: all but the first 8 MiB of the region, or the first eighth, where processes look
    /// first for what messages need.
    pub fn granules(&self) -> Range<u32> {
        let all = self.0.claims.layout.granules();
        let left = (all.len() as u32 / LEFT_PART).max((LEFT / GRANULE) as u32);
        all.start.saturating_add(left).min(all.end)..all.end
    }

    /// So many granules of the node's region in a row, the first of them a multiple of `align`, filled with zeros.
    ///
    /// # Errors
    /// ENOMEM: there are not so many among those for heaps. ESRCH: this is a forked child.
    ///
    /// # Panics
    /// `align` is 0.
    pub fn claim(&self, count: u32, align: u32) -> Result<Claim> {
        let granules = self.0.claims.claim(count, &self.granules(), align, HEAP)?;
        Ok(Claim { owner: self.0.clone(), granules })
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let Ok(mut held) = self.claims.held() else { return };
        self.claims.kernel.unlock(one(locks::incarnation(self.incarnation)));
        if self.number == HEAP {
            held.heaps.remove(&self.incarnation);
        } else {
            held.processes.remove(&self.number);
            self.claims.kernel.unlock(one(locks::process(self.claims.node, self.number)));
        }
    }
}

/// Memory of the node's region that is this process's until this is dropped.
#[derive(Debug)]
pub struct Claim {
    owner: Arc<Owner>,
    granules: Range<u32>,
}

impl Claim {
    /// Which granules of the region.
    pub fn granules(&self) -> Range<u32> {
        self.granules.clone()
    }

    /// Which bytes of the region.
    pub fn bytes(&self) -> Range<u64> {
        bytes(&self.granules)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.owner.claims.give_back(&self.granules);
    }
}

/// A use of a peer's memory, until this is dropped.
#[derive(Debug)]
pub struct UseGuard {
    claims: Arc<Claims>,
    node: u32,
    granules: Range<u32>,
}

impl Drop for UseGuard {
    fn drop(&mut self) {
        self.claims.unuse(self.node, &self.granules);
    }
}
