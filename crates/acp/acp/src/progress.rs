//! Progress of the engine: threads of the program drive it while they are in a call, and a thread of the library's own
//! serves peers and goes on with waiting operations. No thread spins for long: with more ranks than processors,
//! spinning threads keep the others from the work that they wait for.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use vervain_bootstrap::Job;
use vervain_mesh::Mesh;
use vervain_rdma::{CompChannel, Cq};

use crate::batch::Staging;
use crate::engine::{Engine, SENDS};
use crate::error::{Error, Result};
use crate::settings::Settings;

/// The longest time that a thread spins before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// Looks at the own requests for each look at those of peers.
const LOOKS: u32 = 16;
/// Bytes of the thread's stack.
pub const STACK: usize = 256 << 10;

/// The engine with its lock, its thread, and the threads that wait.
pub(crate) struct Progress {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    barrier: Mutex<()>,
    barriers: AtomicU64,
    /// Dropped after the engine's owners: its pages stay until the registrations are gone.
    staging: Staging,
}

struct Shared {
    state: Mutex<State>,
    /// The first handle that is not over, for a look without the lock.
    head: Arc<AtomicI64>,
    /// Events that wake the progress thread, and a thread of the program that sleeps.
    kick: OwnedFd,
    wake: OwnedFd,
    /// For further threads of the program: signaled when the one that sleeps on descriptors wakes.
    woken: Condvar,
    stop: AtomicBool,
    hook: Mutex<Option<fn(&Error)>>,
    job: Arc<Job>,
    epoch: u32,
    channels: Vec<[CompChannel; 2]>,
    cqs: Vec<[Cq; 2]>,
}

struct State {
    engine: Engine,
    /// True: a thread of the program sleeps until one of this rank's requests completes.
    sleeper: bool,
    /// True: the progress thread sleeps until one completes.
    watching: bool,
    /// True: the hook has been called.
    reported: bool,
    /// The state at the last look of the thread that sleeps.
    slept: Seen,
}

/// The state that threads of the program may wait for without a completion of their own: the first handle that is not
/// over, notices of barriers, a failure, a round, the place in the directory, requests of peers to look, answers to
/// such requests of this rank.
type Seen = (i64, u64, bool, bool, bool, u64, bool);

const SERVICE: usize = 0;
const DATA: usize = 1;

impl Progress {
    /// Joins the mesh of `epoch` as `rank`. Returns once all ranks have.
    pub fn start(job: &Arc<Job>, rank: u32, epoch: u32, settings: &Settings) -> Result<Progress> {
        let options = options(settings);
        let mesh = Mesh::open(job, rank, epoch, &options, &agreed(settings), vec![])?;
        let channels = mesh.ports().iter().map(|p| [p.service_channel.clone(), p.data_channel.clone()]).collect();
        let cqs = mesh.ports().iter().map(|p| [p.service.clone(), p.data.clone()]).collect();
        let head = Arc::new(AtomicI64::new(1));
        let engine = Engine::new(mesh, settings, head.clone())?;
        let new_event = || {
            eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
                .map_err(|error| Error::broken(format!("no descriptor for events: {error}")))
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                engine,
                sleeper: false,
                watching: false,
                reported: false,
                slept: Seen::default(),
            }),
            head,
            kick: new_event()?,
            wake: new_event()?,
            woken: Condvar::new(),
            stop: AtomicBool::new(false),
            hook: Mutex::new(None),
            job: job.clone(),
            epoch,
            channels,
            cqs,
        });
        let of_thread = shared.clone();
        let thread = vervain_scheduler::spawn("acp", STACK, move || of_thread.run())
            .map_err(|error| Error::broken(format!("no thread for progress: {error}")))?;
        let progress = Progress {
            shared,
            thread: Some(thread),
            barrier: Mutex::new(()),
            barriers: AtomicU64::new(0),
            staging: Staging::default(),
        };
        job.fence()?;
        let introduction = Mesh::find_leader(job, rank, epoch)?;
        if introduction.agreed() != agreed(settings) {
            job.abort(1, &disagreement(introduction.agreed(), settings, rank));
        }
        if let Err(error) = progress.with(|engine| engine.mesh_mut().introduce(introduction)) {
            // The other ranks would wait for this one.
            job.abort(1, &error.to_string());
        }
        // The thread sends the packets that are due at once.
        progress.shared.kick();
        progress.wait(|engine| Ok(engine.mesh().registered().then_some(())))?;
        if epoch > 0 {
            // Two processes may want to be the same rank: one of them knows by now, and does not come here.
            job.fence()?;
        }
        Ok(progress)
    }

    #[inline]
    pub fn with<T>(&self, f: impl FnOnce(&mut Engine) -> T) -> T {
        f(&mut self.shared.lock().engine)
    }

    /// Memory for [batches](crate::Batch).
    pub fn staging(&self) -> &Staging {
        &self.staging
    }

    pub fn set_hook(&self, hook: fn(&Error)) {
        *self.shared.hook.lock().unwrap_or_else(PoisonError::into_inner) = Some(hook);
        // The job may be broken already.
        self.shared.kick();
    }

    pub fn hook(&self) -> Option<fn(&Error)> {
        *self.shared.hook.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock for one barrier at a time.
    pub fn barrier_lock(&self) -> MutexGuard<'_, ()> {
        self.barrier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the barrier that begins, from 1.
    pub fn next_barrier(&self) -> u64 {
        self.barriers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Issues an operation, once there is room for it.
    #[inline]
    pub fn issue<T>(&self, f: impl FnOnce(&mut Engine) -> Result<T>) -> Result<T> {
        let mut state = self.shared.lock();
        while !state.engine.has_room() {
            drop(state);
            self.wait(|engine| Ok(engine.has_room().then_some(())))?;
            state = self.shared.lock();
        }
        let issued = f(&mut state.engine);
        self.shared.leave(state);
        issued
    }

    /// Has a waiting thread of `rank` look.
    pub fn wake(&self, rank: u32) -> Result<()> {
        let mut state = self.shared.lock();
        let woken = state.engine.wake(rank);
        self.shared.leave(state);
        woken
    }

    /// Waits until all operations up to `seq` are over.
    #[inline]
    pub fn complete(&self, seq: i64) -> Result<()> {
        if seq < self.shared.head.load(Ordering::Acquire) {
            return Ok(());
        }
        self.wait(|engine| Ok((seq < engine.head() || seq >= engine.next()).then_some(())))
    }

    #[inline]
    pub fn is_complete(&self, seq: i64) -> Result<bool> {
        if seq < self.shared.head.load(Ordering::Acquire) {
            return Ok(true);
        }
        let mut state = self.shared.lock();
        let engine = &mut state.engine;
        engine.poll();
        let done = seq < engine.head() || seq >= engine.next();
        if !done {
            engine.serve();
        }
        if let Some(failure) = engine.failure() {
            let failure = failure.clone();
            self.shared.leave(state);
            return Err(failure);
        }
        self.shared.leave(state);
        Ok(done)
    }

    /// Drives the engine until `ready` returns Some.
    #[inline]
    pub fn wait<T>(&self, ready: impl FnMut(&mut Engine) -> Result<Option<T>>) -> Result<T> {
        self.wait_looking(None, ready)
    }

    /// As [`wait`](Progress::wait), for events that the engine may not notice: `ready` is called at least once in each
    /// `every`.
    #[inline]
    pub fn wait_looking<T>(
        &self,
        every: Option<Duration>,
        mut ready: impl FnMut(&mut Engine) -> Result<Option<T>>,
    ) -> Result<T> {
        let mut looks = 0;
        let mut began = None;
        loop {
            let mut state = self.shared.lock();
            if looks % LOOKS == LOOKS - 1 {
                state.engine.serve();
                state.engine.copy_part();
            }
            state.engine.poll();
            let found = ready(&mut state.engine)?;
            let failure = state.engine.failure().cloned();
            if found.is_none() && failure.is_none() {
                drop(state);
            } else {
                self.shared.leave(state);
                return found.map_or_else(|| Err(failure.expect("one of both")), Ok);
            }
            looks += 1;
            if looks % LOOKS == 0 {
                let now = Instant::now();
                if now - *began.get_or_insert(now) > SPIN {
                    self.shared.sleep(every, |engine| Ok(ready(engine)?.is_some()))?;
                    // The next look serves peers too.
                    (looks, began) = (LOOKS - 1, None);
                }
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.kick();
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, the panic could not be reported.
            let _ = thread.join();
        }
        // No thread is left that would ask for a region.
        if !self.with(|engine| engine.memory_mut().close()) {
            self.staging.forget();
        }
    }
}

impl Shared {
    #[inline]
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a call of a thread of the program: waiting operations are left to the progress thread.
    #[inline]
    fn leave(&self, state: MutexGuard<'_, State>) {
        let engine = &state.engine;
        let unattended = !state.watching && !state.sleeper && engine.needs_polling();
        let now = engine.is_busy() || engine.mesh().needs_owner() || (engine.failure().is_some() && !state.reported);
        let wake = state.sleeper && state.slept != seen(engine);
        drop(state);
        if unattended || now {
            self.kick();
        }
        if wake {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    #[cold]
    fn kick(&self) {
        let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
    }

    /// Sleeps until a request of this rank has completed, or the progress thread has changed the state that the program
    /// may wait for, or `most` is over.
    #[cold]
    fn sleep(&self, most: Option<Duration>, mut ready: impl FnMut(&mut Engine) -> Result<bool>) -> Result<()> {
        let mut state = self.lock();
        // Under the lock: the progress thread may take the event that follows, and then sees that a thread sleeps.
        self.arm(DATA)?;
        // Earlier completions, which may have no event of their own.
        while state.engine.poll() {}
        if ready(&mut state.engine)? || state.engine.failure().is_some() || state.engine.is_busy() {
            return Ok(());
        }
        if state.sleeper {
            if state.slept != seen(&state.engine) {
                // This thread has polled a completion that the sleeper waits for.
                self.wake();
            }
            // The sleeper wakes the others each time that it wakes.
            match most {
                Some(most) => drop(self.woken.wait_timeout(state, most).unwrap_or_else(PoisonError::into_inner)),
                None => drop(self.woken.wait(state).unwrap_or_else(PoisonError::into_inner)),
            }
            return Ok(());
        }
        state.sleeper = true;
        state.slept = seen(&state.engine);
        let now = state.engine.mesh().needs_owner();
        drop(state);
        if now {
            self.kick();
        }
        let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
        fds.extend(self.channels.iter().map(|c| PollFd::from_borrowed_fd(c[DATA].fd(), PollFlags::IN)));
        let _ = poll(&mut fds, most.map(timespec).as_ref());
        clear(self.wake.as_fd());
        let taken = self.take_events(DATA);
        let mut state = self.lock();
        state.sleeper = false;
        // The event that the progress thread may have waited for is taken.
        state.watching = false;
        drop(state);
        self.woken.notify_all();
        taken.map(|_| ())
    }

    fn arm(&self, which: usize) -> Result<()> {
        self.cqs.iter().try_for_each(|cqs| cqs[which].request_notify(false).map_err(Error::from))
    }

    /// Takes the events that there are. Returns true if there were any.
    fn take_events(&self, which: usize) -> Result<bool> {
        let mut any = false;
        for (channels, cqs) in self.channels.iter().zip(&self.cqs) {
            while let Some(event) = channels[which].next_event()? {
                event.acknowledge_later(&cqs[which]);
                any = true;
            }
        }
        Ok(any)
    }

    /// The body of the progress thread.
    fn run(&self) {
        let mut taken = false;
        while !self.stop.load(Ordering::Acquire) {
            if let Err(error) = self.run_once(&mut taken) {
                self.lock().engine.fail(error);
            }
        }
    }

    /// Does the work that there is, then sleeps until there is more. `taken`: events of this rank's requests have been
    /// taken.
    fn run_once(&self, taken: &mut bool) -> Result<()> {
        self.arm(SERVICE)?;
        let mut state = self.lock();
        // Completions from before it was armed may be more than one look takes, and may have no event of their own.
        let served = state.engine.serve();
        state.engine.poll();
        state.engine.copy_part();
        state = self.poll_served(state);
        state.watching = state.engine.needs_polling() && !state.sleeper;
        if state.watching {
            self.arm(DATA)?;
            // Completions from before it was armed.
            while state.engine.poll() {}
        }
        let watching = state.watching;
        // An event that was taken may be the one that the sleeper has armed.
        let wake = state.sleeper && (*taken || state.slept != seen(&state.engine));
        *taken = false;
        let leader = state.engine.mesh_mut().wanted_leader();
        let now = Instant::now();
        let wait = match state.engine.due() {
            _ if served || state.engine.is_busy() || state.engine.mesh().needs_owner() => Some(Duration::ZERO),
            due => due.map(|due| due.saturating_duration_since(now)),
        };
        let hook = *self.hook.lock().unwrap_or_else(PoisonError::into_inner);
        let failure = if state.reported { None } else { state.engine.failure().cloned() };
        state.reported |= failure.is_some() && hook.is_some();
        drop(state);
        if wake {
            self.wake();
        }
        if let (Some(failure), Some(hook)) = (failure, hook) {
            hook(&failure);
        }
        if let Some(leader) = leader {
            let found = Mesh::fetch_leader(&self.job, leader, self.epoch);
            self.lock().engine.mesh_mut().leader_found(leader, found);
            return Ok(());
        }
        *taken = self.await_events(watching, wait)?;
        Ok(())
    }

    /// Goes on with peers' copies until nothing has completed for a while: a device in memory moves the bytes of large
    /// requests while it is polled.
    fn poll_served<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let mut since = Instant::now();
        while state.engine.is_serving() && !state.sleeper && since.elapsed() < SPIN {
            drop(state);
            state = self.lock();
            if state.engine.poll() {
                state.engine.serve();
                since = Instant::now();
            }
        }
        state
    }

    fn await_events(&self, watching: bool, wait: Option<Duration>) -> Result<bool> {
        let of =
            |which: usize| self.channels.iter().map(move |c| PollFd::from_borrowed_fd(c[which].fd(), PollFlags::IN));
        let mut fds = vec![PollFd::new(&self.kick, PollFlags::IN)];
        fds.extend(of(SERVICE));
        if watching {
            fds.extend(of(DATA));
        }
        let _ = poll(&mut fds, wait.map(timespec).as_ref());
        clear(self.kick.as_fd());
        self.take_events(SERVICE)?;
        if watching { self.take_events(DATA) } else { Ok(false) }
    }
}

fn seen(engine: &Engine) -> Seen {
    let barriers = engine.barrier.iter().sum();
    let (looks, looked) = (engine.looks(), engine.have_all_looked());
    (engine.head(), barriers, engine.failure().is_some(), engine.in_round(), engine.mesh().registered(), looks, looked)
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() }
}

fn clear(event: BorrowedFd<'_>) {
    let _ = rustix::io::read(event, &mut [0u8; 8]);
}

/// The options of the mesh for these settings.
pub fn options(settings: &Settings) -> vervain_mesh::Options {
    vervain_mesh::Options {
        connections: settings.connections,
        sends: SENDS,
        commands: 128,
        command_bytes: crate::command::Command::BYTES,
        devices: settings.devices.clone(),
        give_up: settings.timeout,
        silence: settings.timeout,
        ..Default::default()
    }
}

/// The settings that all ranks must have alike, encoded.
pub fn agreed(settings: &Settings) -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION").as_bytes();
    let mut bytes = vec![version.len() as u8];
    bytes.extend(version);
    bytes.extend(settings.starter.iter().flat_map(|size| size.to_le_bytes()));
    bytes
}

/// The sentence about ranks that disagree: rank 0 has `theirs`.
fn disagreement(theirs: &[u8], settings: &Settings, rank: u32) -> String {
    let own = agreed(settings);
    let version = |bytes: &[u8]| bytes.get(..=usize::from(*bytes.first().unwrap_or(&0))).map(<[u8]>::to_vec);
    if version(theirs) != version(&own) || theirs.len() != own.len() {
        return format!("rank {rank} and rank 0 use different versions of the ACP library");
    }
    let sizes = |bytes: &[u8]| -> Vec<String> {
        let from = bytes.len() - 24;
        bytes[from..].chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().expect("8 bytes")).to_string()).collect()
    };
    format!(
        "ranks disagree about the sizes of starter memory (ACP_STARTER_MEMORY, _CL, _DL): rank 0 has {}, rank {rank} has {}",
        sizes(theirs).join(", "),
        sizes(&own).join(", ")
    )
}
