//! The world: this process as a rank of its job, with global memory.

use std::ffi::c_void;
use std::sync::{Arc, Weak};
use std::time::Duration;

use vervain_bootstrap::Job;

use crate::address::{GlobalAddress, Layout, Parts};
use crate::batch::{Batch, Staging};
use crate::command::{Ask, Notice};
use crate::engine::{Engine, segments};
use crate::error::{Error, Result};
use crate::handle::{Handle, Order};
use crate::memory::Rights;
use crate::op::Atomic;
use crate::progress::Progress;
use crate::settings::Settings;

/// The key of a registration (`acp_atkey_t`): the global address of the region's first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Key(pub u64);

/// The libraries above this one that have starter memory of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// Channels, segmented buffers and workspaces (ACP_STARTER_MEMORY_CL).
    Communication = 1,
    /// Global allocation and containers (ACP_STARTER_MEMORY_DL).
    Data = 2,
}

/// The answer to a request for a [segment](World::extend).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extension {
    /// The segment begins here.
    Segment(GlobalAddress),
    /// Another request has had a segment for all made meanwhile.
    Others,
    /// The rank has no memory for it, or no place in its tables.
    NoMemory,
}

/// A handle that ends the job of a [`World`], for any thread.
#[derive(Debug, Clone)]
pub struct Ender(Weak<Job>);

impl Ender {
    /// Ends all ranks of the job, with `sentence` as the reason. Returns if this process has left it.
    pub fn abort(&self, sentence: &str) {
        if let Some(job) = self.0.upgrade() {
            job.abort(1, sentence)
        }
    }

    /// Ends the other ranks, for a process that is about to end by exit(3) without having left the job
    /// ([`Job::desert`]).
    pub fn desert(&self, sentence: &str) {
        if let Some(job) = self.0.upgrade() {
            job.desert(sentence);
        }
    }
}

/// This process as a rank of its job, with global memory. Threads share it; each call is one operation.
///
/// A thread of the library's own serves other ranks and goes on with operations that wait, also while the program
/// computes or sleeps. It sleeps itself unless there is work.
pub struct World {
    job: Arc<Job>,
    settings: Settings,
    rank: u32,
    epoch: u32,
    /// The engine has it too; here it needs no lock.
    layout: Layout,
    /// None while [`reset`](World::reset) makes it anew, and after a reset that has failed in between.
    progress: Option<Progress>,
}

impl World {
    /// Joins the job that this process was started in, and returns once all ranks have.
    ///
    /// If ranks disagree (another version of this library, other sizes of starter memory), the job ends with a
    /// sentence.
    ///
    /// # Errors
    /// One sentence: no supported launcher, no RDMA device, not enough resources.
    pub fn init(settings: &Settings) -> Result<World> {
        Self::join(Arc::new(Job::join()?), settings)
    }

    /// As [`init`](World::init), in a job that was joined before.
    ///
    /// # Errors
    /// As [`init`](World::init).
    pub fn join(job: Arc<Job>, settings: &Settings) -> Result<World> {
        let (rank, epoch) = (job.rank(), 0);
        let layout = Layout::of_job(job.size())?;
        let progress = Some(Progress::start(&job, rank, epoch, settings)?);
        Ok(World { job, settings: settings.clone(), rank, epoch, layout, progress })
    }

    #[inline]
    fn progress(&self) -> &Progress {
        self.progress.as_ref().unwrap_or_else(|| self.abort("a rank goes on after a reset that has failed"))
    }

    pub(crate) fn staging(&self) -> &Staging {
        self.progress().staging()
    }

    /// A batch without accesses.
    pub fn batch(&self) -> Batch<'_> {
        Batch::new(self)
    }

    /// The number of times that this rank's batches have waited for accesses to other ranks: round trips, of any
    /// length.
    pub fn round_trips(&self) -> u64 {
        self.staging().round_trips()
    }

    #[inline]
    fn with<T>(&self, f: impl FnOnce(&mut Engine) -> T) -> T {
        self.progress().with(f)
    }

    /// Waits until all ranks have called it and this one's operations are over, and leaves the job.
    ///
    /// # Errors
    /// The job is broken, or the launcher gone.
    pub fn finalize(mut self) -> Result<()> {
        self.leave()?;
        drop(self.progress.take());
        match Arc::into_inner(self.job) {
            Some(job) => job.finalize().map_err(Error::from),
            // Another part of this process goes on with it.
            None => Ok(()),
        }
    }

    /// Waits until all ranks have called it and this one's operations are over.
    fn leave(&self) -> Result<()> {
        self.complete_all()?;
        self.progress().wait(|engine| Ok(engine.have_all_looked().then_some(())))?;
        // No rank needs this one's service any more when all have come: the thread that serves may wait for the store
        // of the launcher, which some launchers hold for the whole fence.
        self.sync()?;
        self.job.fence()?;
        Ok(())
    }

    /// Begins anew with `rank` as this process's number: all registrations are gone, starter memory is zero, handles
    /// begin at 1. All ranks call it, with numbers that are a permutation. Returns once all have.
    ///
    /// # Errors
    /// There is no such rank: nothing has changed. Otherwise the job is broken, for example if two processes want to be
    /// the same rank, and the next call in this world ends it.
    pub fn reset(&mut self, rank: u32) -> Result<()> {
        if rank >= self.size() {
            return Err(Error::refused(format!("there is no rank {rank}: the job has {}", self.size())));
        }
        self.leave()?;
        let hook = self.progress().hook();
        drop(self.progress.take());
        self.epoch += 1;
        self.rank = rank;
        let progress = Progress::start(&self.job, rank, self.epoch, &self.settings)?;
        if let Some(hook) = hook {
            progress.set_hook(hook);
        }
        self.progress = Some(progress);
        // No rank may find another's memory before it is zero: connections are made to the new one only.
        Ok(())
    }

    /// Ends all ranks of the job, with `sentence` as the reason. Handlers of atexit(3) do not run.
    #[cold]
    pub fn abort(&self, sentence: &str) -> ! {
        self.job.abort(1, sentence)
    }

    /// Returns once all ranks have called it. Operations may still be under way then.
    ///
    /// # Errors
    /// The job is broken.
    pub fn sync(&self) -> Result<()> {
        let progress = self.progress();
        let _one = progress.barrier_lock();
        let (rank, size) = (self.rank, self.size());
        let passed = progress.next_barrier();
        let mut round = 0;
        // Dissemination: after round r, 2^(r+1) ranks up to this one have come.
        while (size - 1) >> round != 0 {
            let distance = 1 << round;
            self.with(|engine| engine.notify((rank + distance) % size, Notice::Barrier(round).encode()));
            progress.wait(|engine| Ok((engine.barrier[round as usize] >= passed).then_some(())))?;
            round += 1;
        }
        Ok(())
    }

    /// This process's number, from 0.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> u32 {
        self.job.size()
    }

    /// The number of accessing devices of this rank: its colors are 0 to one less.
    pub fn colors(&self) -> u32 {
        self.with(|engine| engine.mesh().colors())
    }

    /// The number of connections that are open, opening or closing. At most [`Settings::connections`].
    pub fn connections(&self) -> usize {
        self.with(|engine| engine.mesh().links().count())
    }

    /// The first byte of the starter memory of `rank`; None if there is no such rank.
    pub fn starter(&self, rank: u32) -> Option<GlobalAddress> {
        self.with(|engine| engine.memory().starter(rank, 0))
    }

    /// The first byte of the starter memory of a library above at `rank`; None if there is no such rank.
    pub fn library_starter(&self, library: Library, rank: u32) -> Option<GlobalAddress> {
        self.with(|engine| engine.memory().starter(rank, library as u32))
    }

    /// Bytes of the starter memory of a library above, the same at each rank.
    pub fn library_starter_len(&self, library: Library) -> u64 {
        self.settings.starter[library as usize]
    }

    fn ask(&self, rank: u32, ask: Ask, dst: GlobalAddress) -> Result<Handle> {
        self.progress().issue(|engine| engine.ask(rank, ask, dst))
    }

    /// Has a thread of `rank` that is in [`wait_until`](World::wait_until) look. Returns before it does, and no later
    /// operation waits for it.
    ///
    /// # Errors
    /// [Refused](Error::is_refused): there is no such rank. Else the job is broken.
    pub fn wake(&self, rank: u32) -> Result<()> {
        self.progress().wake(rank)
    }

    /// Waits until `ready` returns true, for memory of this rank that others write to, or until the operation `over`
    /// and all before it are over. `ready` is called repeatedly for a moment, then when a peer [wakes](World::wake)
    /// this rank, and every `at_least` in case that none does. Threads of the program wait side by side. `ready` must
    /// not call ACP.
    ///
    /// # Errors
    /// The job is broken.
    pub fn wait_until(&self, at_least: Duration, over: Option<Handle>, mut ready: impl FnMut() -> bool) -> Result<()> {
        let is_over = |engine: &Engine| over.is_some_and(|over| over.get() < engine.head());
        self.progress().wait_looking(Some(at_least), |engine| Ok((is_over(engine) || ready()).then_some(())))
    }

    /// Has `rank` map and register another segment of `len` bytes for the heap, zeroed, and put it into its directory,
    /// in the data library's starter memory. `known`: the number of segments for all in the directory; the segment is
    /// then for all, and only one of the ranks that ask with the same number gets it made. None: it is for the caller
    /// alone, and no other rank has its address. One round trip, in which `rank` has to act.
    ///
    /// # Errors
    /// [Refused](Error::is_refused): there is no such rank. Else the job is broken.
    pub fn extend(&self, rank: u32, known: Option<u64>, len: u64) -> Result<Extension> {
        let known = known.unwrap_or(segments::FOR_ITSELF);
        Ok(match self.ask_for(rank, Ask::Extend { known, len })? {
            segments::NO_MEMORY => Extension::NoMemory,
            segments::OTHERS => Extension::Others,
            address => Extension::Segment(GlobalAddress(address)),
        })
    }

    /// Has `rank` unmap the segment at `segment`, which was for one rank alone and which no rank may use any more.
    /// Returns true if there was one. One round trip, in which `rank` has to act.
    ///
    /// # Errors
    /// As [`extend`](World::extend).
    pub fn retract(&self, rank: u32, segment: GlobalAddress) -> Result<bool> {
        Ok(self.ask_for(rank, Ask::Retract { segment })? == 1)
    }

    fn ask_for(&self, rank: u32, ask: Ask) -> Result<u64> {
        let mut batch = self.batch();
        let answer = batch.answer(|to| self.ask(rank, ask, to))?;
        batch.wait()?;
        Ok(batch.word(answer, 0))
    }

    /// Registers memory, so that all ranks can access it by the device `color`. Memory that may not be written can be
    /// registered too, and then only be read.
    ///
    /// # Safety
    /// The memory stays mapped until [`unregister`](World::unregister), and no Rust reference leads into it.
    ///
    /// # Errors
    /// No such color; larger than global addresses of this job can name; the table is full; memory that the device
    /// cannot register.
    pub unsafe fn register_foreign(&self, start: *mut c_void, len: usize, color: u32) -> Result<Key> {
        // SAFETY: handed on to the caller.
        Ok(Key(unsafe { self.progress().register(start, len, color)? }.0))
    }

    /// As [`register_foreign`](World::register_foreign) for color 0, but never waits until other ranks have forgotten
    /// earlier registrations: if it would have to, they are asked, and this is refused.
    ///
    /// # Safety
    /// As [`register_foreign`](World::register_foreign).
    ///
    /// # Errors
    /// As [`register_foreign`](World::register_foreign); other ranks would have to forget a registration first.
    pub unsafe fn register_at_once(&self, start: *mut c_void, len: usize, rights: Rights) -> Result<Key> {
        // SAFETY: handed on to the caller.
        Ok(Key(unsafe { self.progress().register_at_once(start, len, rights)? }.0))
    }

    /// Takes a registration back. Accesses to it are errors from now on, even those of this rank's operations under
    /// way.
    ///
    /// # Errors
    /// The key is not one of this rank, was taken back already, or is that of a starter memory.
    pub fn unregister(&self, key: Key) -> Result<()> {
        self.with(|engine| engine.memory_mut().table.remove(GlobalAddress(key.0)))
    }

    /// The global address of `pointer` in the region of `key`; the byte behind its end has one too. None for any other
    /// pointer.
    pub fn global(&self, key: Key, pointer: *const c_void) -> Option<GlobalAddress> {
        self.with(|engine| engine.memory().table.global(GlobalAddress(key.0), pointer as usize))
    }

    /// The pointer to memory of this rank; None for that of other ranks.
    pub fn address(&self, address: GlobalAddress) -> Option<*mut c_void> {
        self.with(|engine| {
            let (registration, offset) = engine.memory().table.find(address)?;
            Some(registration.at(offset).cast())
        })
    }

    /// Calls `f` with the place of `len` bytes of this rank's memory, which stays registered meanwhile.
    /// [`Rights::Write`]: `f` writes there.
    pub(crate) fn own(
        &self,
        address: GlobalAddress,
        len: usize,
        rights: Rights,
        f: impl FnOnce(*mut u8),
    ) -> Result<()> {
        self.with(|engine| engine.memory().place(address, len, rights).map(f))
    }

    /// The rank of an address; None for that of no rank.
    pub fn rank_of(&self, address: GlobalAddress) -> Option<u32> {
        Some(self.layout.parts(address)?.rank)
    }

    /// The address of the first byte of an address's region, which need not be registered; None for the address of no
    /// rank.
    pub fn region_of(&self, address: GlobalAddress) -> Option<GlobalAddress> {
        self.layout.parts(address).map(|parts| self.layout.address(Parts { offset: 0, ..parts }))
    }

    /// The color of an address; None for that of no rank.
    pub fn color_of(&self, address: GlobalAddress) -> Option<u32> {
        Some(self.layout.parts(address)?.color)
    }

    /// Copies `len` bytes from `src` to `dst`, each of any rank. Returns before it is done; waits only while 1,024
    /// operations are outstanding. The bytes are unspecified if source and destination overlap.
    ///
    /// # Errors
    /// [Refused](Error::is_refused): an address of no rank, or own memory outside of its region. Otherwise the job is
    /// broken.
    #[inline]
    pub fn copy(&self, dst: GlobalAddress, src: GlobalAddress, len: usize, order: Order) -> Result<Handle> {
        self.progress().issue(|engine| engine.copy(dst, src, len, order))
    }

    /// Carries out an atomic operation on the word at `src`, of any rank, and stores its earlier value to `dst`, a word
    /// of this rank. Both are aligned to their size.
    ///
    /// # Errors
    /// [Refused](Error::is_refused): an address of no rank, a destination of another rank, one that is not aligned.
    /// Else as [`copy`](World::copy).
    #[inline]
    pub fn atomic(&self, dst: GlobalAddress, src: GlobalAddress, what: Atomic, order: Order) -> Result<Handle> {
        self.progress().issue(|engine| engine.atomic(dst, src, what, order))
    }

    /// Waits until this operation, and all that were issued before it, are over. Returns at once for one that was never
    /// issued.
    ///
    /// # Errors
    /// The job is broken.
    #[inline]
    pub fn complete(&self, handle: Handle) -> Result<()> {
        self.progress().complete(handle.get())
    }

    /// Waits until all operations that were issued are over.
    ///
    /// # Errors
    /// The job is broken.
    #[inline]
    pub fn complete_all(&self) -> Result<()> {
        let last = self.with(|engine| engine.next() - 1);
        self.progress().complete(last)
    }

    /// Returns true if this operation, and all that were issued before it, are over; also for one that was never
    /// issued.
    ///
    /// # Errors
    /// The job is broken.
    #[inline]
    pub fn is_complete(&self, handle: Handle) -> Result<bool> {
        self.progress().is_complete(handle.get())
    }

    /// Returns true if all operations that were issued are over.
    ///
    /// # Errors
    /// The job is broken.
    #[inline]
    pub fn all_complete(&self) -> Result<bool> {
        let last = self.with(|engine| engine.next() - 1);
        self.progress().is_complete(last)
    }

    /// A handle that ends the job even while [`reset`](World::reset) or [`finalize`](World::finalize) has the world.
    pub fn ender(&self) -> Ender {
        Ender(Arc::downgrade(&self.job))
    }

    /// Sets the function that is called once when a thread finds that the job is broken. Without it the next call
    /// returns the error.
    pub fn set_failure_hook(&self, hook: fn(&Error)) {
        self.progress().set_hook(hook);
    }
}
