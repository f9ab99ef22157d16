//! This process's place in its job: the one [`World`] that all functions use, from `acp_init` to `acp_finalize`.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

use vervain_acp::{Ender, Settings, World};
use vervain_acp_channel::Channels;
use vervain_acp_containers::hashed::Places;
use vervain_acp_heap::Heap;

use crate::error;
use crate::workspace::Workspaces;

/// The world; null before `acp_init`, during `acp_reset` and after `acp_finalize`. Functions take it with one load.
/// That none of them is in the midst of its work when the world goes is the program's duty, which acp.h names.
static WORLD: AtomicPtr<World> = AtomicPtr::new(ptr::null_mut());

/// The libraries above the world; null if the world is. They are dropped before the world.
static LIBRARIES: AtomicPtr<Libraries> = AtomicPtr::new(ptr::null_mut());

/// The libraries above the basic layer, in this process.
pub struct Libraries {
    pub channels: Channels<'static>,
    pub workspaces: Workspaces,
    pub heap: Heap<'static>,
    /// The places of sets, multisets and maps.
    pub places: Places,
}

impl Libraries {
    /// # Safety
    /// The world outlives them.
    unsafe fn of(world: *const World) -> Box<Self> {
        // SAFETY: the caller's promise.
        let world: &'static World = unsafe { &*world };
        Box::new(Self {
            channels: Channels::new(world),
            workspaces: Workspaces::new(world),
            heap: Heap::new(world),
            places: Places::new(),
        })
    }
}

/// The function that ends the job, once this process has joined one.
static ENDER: OnceLock<Ender> = OnceLock::new();

/// The function that ends the job; None in a process that is no rank.
pub fn ender() -> Option<&'static Ender> {
    ENDER.get().filter(|_| PHASE.load(Ordering::Acquire) != CHILD)
}

/// One of the phases below.
static PHASE: AtomicU8 = AtomicU8::new(OUTSIDE);
/// `acp_init` has not been called, or has failed.
const OUTSIDE: u8 = 0;
/// A rank, or about to be one.
const RANK: u8 = 1;
/// `acp_finalize` has been called.
const LEFT: u8 = 2;
/// Made by fork(2) from a rank.
const CHILD: u8 = 3;

/// Held by those who make, change or end the world.
static TURN: Mutex<()> = Mutex::new(());

/// The world, if this process is a rank.
#[inline]
pub fn world() -> Option<&'static World> {
    // SAFETY: what is not null was made by `join` and is freed by `leave`, which takes the pointer away first; the
    // program does not call it while another of its threads is inside a function.
    unsafe { WORLD.load(Ordering::Acquire).as_ref() }
}

/// [`world`], or else the reason why `function` cannot be: it is what `acp_error` returns then.
#[inline]
pub fn rank_for(function: &str) -> Option<&'static World> {
    let world = world();
    if world.is_none() {
        error::note(function, why_not());
    }
    world
}

/// The libraries above the world, if this process is a rank; else why `function` cannot be is what `acp_error` returns.
#[inline]
pub fn libraries_for(function: &str) -> Option<&'static Libraries> {
    // SAFETY: as of the world.
    let libraries = unsafe { LIBRARIES.load(Ordering::Acquire).as_ref() };
    if libraries.is_none() {
        error::note(function, why_not());
    }
    libraries
}

/// The reason why this process is no rank.
#[cold]
fn why_not() -> &'static str {
    match PHASE.load(Ordering::Acquire) {
        OUTSIDE => "acp_init has not been called",
        LEFT => "acp_finalize has been called",
        CHILD => "this process was forked from a rank, and is none itself",
        _ => "another thread is in acp_init, acp_reset or acp_finalize",
    }
}

/// Makes this process a rank.
///
/// # Errors
/// A sentence: it is one, was one, was forked from one, or cannot be one.
pub fn join() -> Result<(), String> {
    // Before the lock is taken: in a child it may be held by a thread that it does not have.
    if PHASE.load(Ordering::Acquire) == CHILD {
        return Err(why_not().into());
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match PHASE.load(Ordering::Acquire) {
        OUTSIDE => {}
        RANK => return Err("acp_init has been called before".into()),
        _ => return Err(format!("{}, and a process is a rank only once", why_not())),
    }
    watch_forks();
    PHASE.store(RANK, Ordering::Release);
    let made = Settings::from_environment().and_then(|settings| World::init(&settings));
    match made {
        Ok(world) => {
            // Also for what goes wrong while the world is being changed or left.
            let _ = ENDER.set(world.ender());
            world.set_failure_hook(error::end_job);
            publish(Box::into_raw(Box::new(world)));
            Ok(())
        }
        Err(error) => {
            PHASE.store(OUTSIDE, Ordering::Release);
            Err(error.to_string())
        }
    }
}

/// Gives this process a new number. The job ends where that has failed half-way, for there is no world then.
///
/// # Errors
/// A sentence: it is no rank, or the new number cannot be.
pub fn renumber(rank: u32) -> Result<(), String> {
    // A refusal must leave everything as it was, the libraries' channels too.
    if let Some(ranks) = world().map(World::size).filter(|ranks| rank >= *ranks) {
        return Err(format!("there is no rank {rank}: the job has {ranks}"));
    }
    let world = take()?;
    // SAFETY: the pointer is `join`'s and nobody else has it now.
    let result = unsafe { (*world).reset(rank) };
    publish(world);
    result.map_err(|error| error::reason(&error))
}

/// Ends this process's being a rank, whatever comes of it.
///
/// # Errors
/// A sentence: it is no rank, or has not left the job in order.
pub fn leave() -> Result<(), String> {
    let world = take()?;
    PHASE.store(LEFT, Ordering::Release);
    // SAFETY: the pointer is `join`'s, and with it gone from `WORLD` for good nobody else will have it.
    let world = unsafe { Box::from_raw(world) };
    world.finalize().map_err(|error| error.to_string())
}

/// Gives the functions the world, and new libraries above it.
fn publish(world: *mut World) {
    // SAFETY: `take` drops them before somebody changes or ends the world.
    LIBRARIES.store(Box::into_raw(unsafe { Libraries::of(world) }), Ordering::Release);
    WORLD.store(world, Ordering::Release);
}

/// Takes the world away from the functions, and drops the libraries above it.
fn take() -> Result<*mut World, String> {
    if PHASE.load(Ordering::Acquire) != RANK {
        return Err(why_not().into());
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let world = WORLD.swap(ptr::null_mut(), Ordering::AcqRel);
    let libraries = LIBRARIES.swap(ptr::null_mut(), Ordering::AcqRel);
    if !libraries.is_null() {
        // SAFETY: made by `publish`, taken once; no function of another thread is inside, by the program's duty.
        drop(unsafe { Box::from_raw(libraries) });
    }
    if world.is_null() { Err(why_not().into()) } else { Ok(world) }
}

/// Called by exit(3), and when a program returns from main. If this rank has not called `acp_finalize`, the others
/// would wait for it for ever: they are ended.
///
/// As a destructor of the library's it comes after the program's functions of atexit(3) and its destructors, which may
/// still call `acp_finalize`. It takes no lock of this library's, since a handler of a signal may have called exit(3)
/// in the midst of any function here. A child made by fork(2) is in a phase of its own; one made by clone(2) has
/// another process number than the job.
pub extern "C" fn process_ends() {
    if PHASE.load(Ordering::Acquire) != RANK {
        return;
    }
    if let Some(ender) = ENDER.get() {
        flush_output();
        ender.desert("it ended without acp_finalize");
    }
}

/// Writes what the program has printed. exit(3) does so later, when the launcher may have killed this process. Standard
/// output only: another thread may hold the lock of standard input for as long as nothing comes.
fn flush_output() {
    unsafe extern "C" {
        static stdout: *mut libc::FILE;
    }
    // SAFETY: the C library's own stream, which it keeps until the process has ended.
    unsafe { libc::fflush(stdout) };
}

/// A child made by fork(2) has this memory and not the progress thread, nor does the job count it. There the functions
/// answer as before `acp_init`; what the world has in memory stays.
fn watch_forks() {
    extern "C" fn in_the_child() {
        if PHASE.load(Ordering::Acquire) != OUTSIDE {
            PHASE.store(CHILD, Ordering::Release);
            WORLD.store(ptr::null_mut(), Ordering::Release);
            LIBRARIES.store(ptr::null_mut(), Ordering::Release);
        }
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler stores into atomics, which is allowed in the child of a process with threads, and its
        // code stays mapped (build.rs). It fails for want of memory only, and then children are told nothing.
        unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
    });
}
