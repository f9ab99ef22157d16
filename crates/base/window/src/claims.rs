//! Numbers and memory of processes. The kernel's locks record their owners, so that it takes them back from the dead.
//! Each granule of a region has two locks: its owner's, and one that peers share while they may put there. A claim
//! needs both, so memory of a dead process is not given to another while a stopped peer may still write to it.
//!
//! Locks do not show peers on another kernel. If there are any, memory rests for [`REST_MS`] after its owner's last
//! sign of life, or after it was given back. The table at the beginning of a region serves that: for each process the
//! time at which it was last alive, for each granule its owner or the time from which it may be claimed.
//!
//! The heap of a process is an owner without a number ([`HeapOwner`]): no peer requests a pair with it, so it has no
//! doors, and no time at which it was last alive. After its death its memory rests from the moment at which a process
//! finds it.

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

/// Milliseconds for which memory rests into which a peer on another kernel may still put.
pub const REST_MS: u64 = 10_000;
/// Number in the owner words of memory that a heap owns.
const HEAP: u32 = PROCESSES;
/// Memory at the beginning of a region that heaps leave to claims of processes with numbers: at least `LEFT` bytes, and
/// at least one part in `LEFT_PART`.
const LEFT: u64 = 8 << 20;
const LEFT_PART: u32 = 8;
/// Time that a process waits for another's search for memory before it searches at the same time.
const PATIENCE: Duration = Duration::from_secs(1);

/// The numbers and memory that a process holds of its node, and its uses of other nodes' memory.
pub struct Claims {
    node: u32,
    layout: Layout,
    own: Region,
    header: Region,
    identity: Identity,
    kernel: Box<dyn Kernel>,
    held: Mutex<Held>,
}

/// Locks that this holder has: the kernel would grant them to the same holder again.
#[derive(Default)]
struct Held {
    /// Numbers with their incarnations.
    processes: BTreeMap<u32, u64>,
    /// Incarnations of heaps.
    heaps: BTreeSet<u64>,
    granules: BTreeSet<u32>,
    /// Places in the memory of the node's board.
    board: BTreeSet<u32>,
    /// Number of uses of each granule of a node.
    uses: BTreeMap<(u32, u32), usize>,
}

impl Held {
    /// Returns true if the process or heap of this incarnation is held here.
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
    /// The claims of a process of the node that [`nodes::join`] has found by the same `kernel`.
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

    /// The locks held. ESRCH: this is a forked child, in which a thread that does not exist may hold the mutex.
    fn held(&self) -> Result<MutexGuard<'_, Held>> {
        self.kernel.check()?;
        Ok(self.held.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the lowest free number of this node and a new incarnation. The doors are left as the number's last owner
    /// left them.
    ///
    /// # Errors
    /// ENOSPC: the node has [`PROCESSES`] processes. ESRCH: this is a forked child.
    pub fn process(self: &Arc<Self>) -> Result<Process> {
        self.process_from(0)
    }

    /// [`Claims::process`], but with the first free number from `first` on, continued at 0 behind the last. Resources
    /// are shared out by these numbers, so the processes of several windows should not all have the same.
    ///
    /// # Errors
    /// Those of [`Claims::process`].
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

    /// An owner of memory without a number, for this process's heap.
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

    /// The descriptor by which the locks are taken; None: there is none. Closing it gives up all claims.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.kernel.descriptor()
    }

    /// A new incarnation that no other process has, locked.
    fn incarnation(&self) -> Result<u64> {
        loop {
            let random = self.kernel.random()? % locks::INCARNATIONS;
            if random != 0 && self.kernel.try_lock(one(locks::incarnation(random)), Kind::Alone)? {
                return Ok(random);
            }
        }
    }

    /// Lets the memory of the number's last process, which is dead, rest from its last sign of life on.
    fn release_memory_of_dead(&self, number: u32) {
        let rested = (self.alive(number) + REST_MS) << 8;
        for granule in self.layout.granules() {
            let word = self.own.word(Layout::owner(granule));
            // Fails if another process claims the granule just now.
            let _ = word.compare_exchange(owned_by(number), rested, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Time at which the process was last alive, in milliseconds; 0: the word is in the future, as after a restart of
    /// the machine.
    fn alive(&self, number: u32) -> u64 {
        let said = self.own.word(Layout::alive(number)).load(Ordering::Acquire);
        if said > self.kernel.now_ms() { 0 } else { said }
    }

    /// Returns true if a peer on another kernel may still put into a granule that nobody owns.
    fn rests(&self, granule: u32) -> bool {
        let word = self.own.word(Layout::owner(granule)).load(Ordering::Acquire);
        let until = match (word & 0xff) as u32 {
            0 => word >> 8,
            // A heap's rest begins when its locks show that it is dead ([`Claims::let_rest`]).
            heap if heap == HEAP + 1 => return false,
            process => self.alive((process - 1) % PROCESSES) + REST_MS,
        };
        let now = self.kernel.now_ms();
        // A time that is too far away is from before a restart, or nonsense.
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

    /// Claims `count` granules of `all` in a row that begin at a multiple of `align`.
    fn claim(&self, count: u32, all: &Range<u32>, align: u32, owner: u32) -> Result<Range<u32>> {
        let mut held = self.held()?;
        let claiming = locks::claiming(self.node);
        // If the lock's holder is stopped, this process only has to skip what that one has just locked.
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
        // SAFETY: inside the region; both locks are held, so no other process owns or uses it.
        unsafe { std::ptr::write_bytes(at, 0, (bytes.end - bytes.start) as usize) };
        for granule in granules.clone() {
            self.own.word(Layout::owner(granule)).store(owned_by(owner), Ordering::Release);
        }
        held.granules.extend(granules.clone());
        self.kernel.unlock(locks::users(self.node, &granules));
        Ok(granules)
    }

    /// `count` free granules in a row; both locks of each are taken. To ask the kernel about each granule takes long if
    /// many processes have some, so the first search skips those that the table gives to living processes. A wrong
    /// entry hides a granule only until nothing else is free.
    fn find(&self, held: &Held, count: u32, all: &Range<u32>, align: u32) -> Result<Option<Range<u32>>> {
        let mut living = BTreeMap::new();
        let found =
            self.find_where(|granule| !self.is_said_to_be_owned(granule, &mut living), held, count, all, align)?;
        if found.is_some() { Ok(found) } else { self.find_where(|_| true, held, count, all, align) }
    }

    /// Returns true if the table gives a granule to another process that lives; `living` caches the results by process.
    fn is_said_to_be_owned(&self, granule: u32, living: &mut BTreeMap<u32, bool>) -> bool {
        let word = self.own.word(Layout::owner(granule)).load(Ordering::Acquire);
        let process = (word as u8).checked_sub(1).map(u32::from).filter(|process| *process < PROCESSES);
        process.is_some_and(|process| {
            let lives =
                || self.kernel.others(one(locks::process(self.node, process))).is_ok_and(|others| others.is_some());
            *living.entry(process).or_insert_with(lives)
        })
    }

    /// `count` granules in a row for which `may_be_free` is true; both locks of each are taken.
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
                // A dead heap's granule, or one given back between the look and the lock.
                self.kernel.unlock(users);
                self.kernel.unlock(owner);
            }
        }
    }

    /// The granule behind those of a run whose `locks` others hold; the first of the run if nobody holds them any more.
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

    /// Uses memory that the process of this incarnation has announced as its own on `node`: while the guard lives, the
    /// memory is that process's or nobody's. On another kernel that holds only for [`REST_MS`] from the process's last
    /// sign of life.
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
            // A new claimant has it: the old owner's lock was free.
            return Err(dead());
        }
        let guard = UseGuard { claims: self.clone(), node, granules };
        for granule in guard.granules.clone() {
            *held.uses.entry((node, granule)).or_default() += 1;
        }
        // This order matters: a process that is alive now owns the memory, and as the shared lock was taken before, no
        // other gets it.
        let lives = self.lives(&held, node, incarnation);
        drop(held);
        if !lives? {
            return Err(dead());
        }
        Ok(guard)
    }

    /// Returns true if the process of `node` with this incarnation lives; None: it is on another kernel, so only that
    /// one knows.
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

    /// Returns true if a node is of this kernel; None: never taken.
    pub fn is_here(&self, node: u32) -> Option<bool> {
        Identity::of_entry(self.header().table.get(node as usize)?).map(|there| there.kernel == self.identity.kernel)
    }

    /// Number of this node's granules that nobody has or uses.
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

    /// Returns true if the node was ever taken.
    pub fn has_node(&self, node: u32) -> bool {
        self.header().table.get(node as usize).and_then(Identity::of_entry).is_some()
    }

    /// Returns true if a process of `node` has this number. On another kernel all numbers of a node are taken to exist.
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

    /// Returns true if the process of this incarnation lives. One on another kernel is taken to live.
    fn lives(&self, held: &Held, node: u32, incarnation: u64) -> Result<bool> {
        let there = Identity::of_entry(&self.header().table[node as usize]);
        Ok(there.is_some_and(|there| there.kernel != self.identity.kernel)
            || held.has(incarnation)
            || self.kernel.others(one(locks::incarnation(incarnation)))?.is_some())
    }

    /// Takes a place in the memory of this node's board. Returns false if it is taken already.
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

/// A process of a node. Its number is free once this and all its [`Claim`]s are dropped.
#[derive(Debug)]
pub struct Process(Arc<Owner>);

/// An owner of memory.
#[derive(Debug)]
struct Owner {
    claims: Arc<Claims>,
    /// Number of the process, or [`HEAP`].
    number: u32,
    incarnation: u64,
}

impl Process {
    /// Number, below [`PROCESSES`].
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// Incarnation: random, not 0, never another process's of the window. Peers name it to use the process's memory
    /// ([`Claims::use_of`]).
    pub fn incarnation(&self) -> u64 {
        self.0.incarnation
    }

    /// Adds to the process's heartbeat; to be called some ten times a second.
    pub fn beat(&self) {
        let claims = &self.0.claims;
        // A forked child must not act for its parent.
        if claims.kernel.check().is_ok() {
            claims.own.word(Layout::alive(self.number())).store(claims.kernel.now_ms(), Ordering::Release);
            claims.header().table[claims.node as usize].beats.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Claims `count` granules in a row of the node's region, filled with zeros.
    ///
    /// # Errors
    /// ENOMEM: not so many are free in a row. ESRCH: this is a forked child.
    pub fn claim(&self, count: u32) -> Result<Claim> {
        let claims = &self.0.claims;
        let granules = claims.claim(count, &claims.layout.granules(), 1, self.number())?;
        Ok(Claim { owner: self.0.clone(), granules })
    }
}

/// The heap of a process. Its memory has locks of its own, apart from those of the process's device.
#[derive(Debug)]
pub struct HeapOwner(Arc<Owner>);

impl HeapOwner {
    /// Incarnation of the heap, like [`Process::incarnation`]. Peers name it to use memory that the process has
    /// announced.
    pub fn incarnation(&self) -> u64 {
        self.0.incarnation
    }

    /// The granules that heaps may claim: all but the first 8 MiB or the first eighth of the region, whichever is more.
    /// Memory for messages is sought there first.
    pub fn granules(&self) -> Range<u32> {
        let all = self.0.claims.layout.granules();
        let left = (all.len() as u32 / LEFT_PART).max((LEFT / GRANULE) as u32);
        all.start.saturating_add(left).min(all.end)..all.end
    }

    /// Claims `count` granules in a row of the node's region, the first a multiple of `align`, filled with zeros.
    ///
    /// # Errors
    /// ENOMEM: not so many of the heaps' granules are free in a row. ESRCH: this is a forked child.
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

/// Memory of the node's region that is this process's until it is dropped.
#[derive(Debug)]
pub struct Claim {
    owner: Arc<Owner>,
    granules: Range<u32>,
}

impl Claim {
    /// The granules of the region.
    pub fn granules(&self) -> Range<u32> {
        self.granules.clone()
    }

    /// The bytes of the region.
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
