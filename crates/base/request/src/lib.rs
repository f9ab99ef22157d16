//! How the supervisor of a job asks its nodes for a checkpoint that they make themselves, all at the same place of the
//! program: a file of one page that the supervisor and the nodes of its host map.
//!
//! Nodes number the calls by which they ask whether a checkpoint is wanted, from 1. When the supervisor asks, they are
//! at different calls, so the one at which all of them take it must be one that none has begun. One word decides that,
//! and each step is a single compare-and-swap on it. The word holds a state and a number:
//!
//! * idle: nothing is asked; the number is the highest call that a node has begun. A node whose call is higher raises
//!   the number; the supervisor changes the state to asked, with the next number.
//! * asked: the number is the call at which all nodes take the checkpoint, and none has begun it. The first node that
//!   comes to it changes the state to begun; a supervisor that waits no longer, back to idle.
//! * begun: a node is at that call, so the request cannot be taken back. Node 0 changes the state to saved, a node that
//!   has failed to failed.
//! * saved: all nodes have saved, and wait. The supervisor changes the state to idle after it has put the files away.
//! * failed: as idle, until the supervisor has seen it and changes the state to idle. The number is the highest call
//!   that a node has begun.
//!
//! So a node that is asked nothing reads one word, and one of all nodes writes it for each call. Nobody waits for
//! another one here. A node does no more than take a checkpoint or not, whatever the word holds, so a broken word harms
//! its own job only.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::rand::{GetRandomFlags, getrandom};

/// The variable by which processes of a job find the file.
pub const VARIABLE: &str = "PM_CHECKPOINT_REQUEST";

/// Bytes of the file.
const LEN: usize = 4096;
/// The first word of a file of this layout.
const LAYOUT: u64 = u64::from_le_bytes(*b"pmAsked1");

/// The contents of the file. Each field but the word has one kind of writer.
#[repr(C)]
struct Page {
    /// [`LAYOUT`]; the supervisor's.
    layout: AtomicU64,
    /// A random number, never 0, by which nodes know that they have one file; the supervisor's.
    identity: AtomicU64,
    /// State and number, see [`Word`]; anybody's.
    word: AtomicU64,
    /// One more than the number of the context whose nodes are asked, 0 before any has called; the first node's.
    context: AtomicU32,
    /// The nodes that have called, and if they see one file: [`Callers`]; the nodes'.
    callers: AtomicU32,
    /// The reason why the last checkpoint has failed, an errno value or 0; written by the node that has failed.
    errno: AtomicI32,
}

/// The state in the lowest bits of the word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Asked,
    Begun,
    Saved,
    Failed,
}

/// The word's value: a state and the number of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Word(State, u64);

/// Bits of the state.
const BITS: u32 = 3;

impl Word {
    fn bits(self) -> u64 {
        self.1 << BITS | self.0 as u64
    }

    /// None: a value that no participant writes.
    fn of(bits: u64) -> Option<Word> {
        let states = [State::Idle, State::Asked, State::Begun, State::Saved, State::Failed];
        let state = states.into_iter().find(|state| *state as u64 == bits & ((1 << BITS) - 1))?;
        Some(Word(state, bits >> BITS))
    }
}

/// Which nodes have asked whether a checkpoint is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Callers {
    /// None has yet.
    None,
    /// Nodes that all see this file.
    Together,
    /// Nodes of which some see another file or none, such as those of other hosts. They take no checkpoints that are
    /// asked for.
    Apart,
}

/// The progress of a request, as the supervisor sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// There is no request.
    Idle,
    /// No node has come to the call yet.
    Asked,
    /// Nodes are saving, or wait for others that have not come to it.
    Begun,
    /// All have saved, and wait for [`Requests::go_on`].
    Saved,
    /// It has failed at a node, with this errno value or 0, and the job goes on.
    Failed(i32),
}

/// The mapped file.
struct Map {
    page: NonNull<Page>,
    file: File,
}

// SAFETY: what it points to are atomics, mapped until it is dropped.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps a file that has [`LEN`] bytes.
    fn new(file: File) -> io::Result<Map> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the place, so nothing that is mapped is replaced.
        let at = unsafe { mmap(ptr::null_mut(), LEN, access, MapFlags::SHARED, &file, 0) }?;
        let page = NonNull::new(at.cast()).ok_or(ErrorKind::OutOfMemory)?;
        Ok(Map { page, file })
    }

    fn page(&self) -> &Page {
        // SAFETY: mapped while this lives, aligned to a page, large enough; all fields are atomics, which take any
        // value.
        unsafe { self.page.as_ref() }
    }

    fn word(&self) -> Option<Word> {
        Word::of(self.page().word.load(Acquire))
    }

    /// Replaces the word, if it is still `old`.
    fn swap(&self, old: Word, new: Word) -> bool {
        self.page().word.compare_exchange(old.bits(), new.bits(), Release, Relaxed).is_ok()
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length, and nobody has a reference any more.
        let _ = unsafe { munmap(self.page.as_ptr().cast(), LEN) };
    }
}

/// The supervisor's end.
pub struct Requests(Map);

impl Requests {
    /// Makes the file anew, for a job that begins.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn create(path: &Path) -> io::Result<Requests> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        file.set_len(LEN as u64)?;
        // Held as long as this process lives: nodes that wait for it know by that.
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let map = Map::new(file)?;
        let mut identity = [0; 8];
        getrandom(&mut identity, GetRandomFlags::empty())?;
        map.page().identity.store(u64::from_ne_bytes(identity) | 1, Relaxed);
        map.page().layout.store(LAYOUT, Release);
        Ok(Requests(map))
    }

    /// Asks for a checkpoint; false if one is asked for already.
    pub fn ask(&self) -> bool {
        while let Some(word @ Word(State::Idle, begun)) = self.0.word() {
            if self.0.swap(word, Word(State::Asked, begun + 1)) {
                return true;
            }
        }
        false
    }

    /// Takes back what was asked; false if a node has begun with it.
    pub fn take_back(&self) -> bool {
        match self.0.word() {
            Some(word @ Word(State::Asked, number)) => self.0.swap(word, Word(State::Idle, number.saturating_sub(1))),
            _ => false,
        }
    }

    /// The progress. A word that was never written counts as idle.
    pub fn progress(&self) -> Progress {
        match self.0.word() {
            None | Some(Word(State::Idle, _)) => Progress::Idle,
            Some(Word(State::Asked, _)) => Progress::Asked,
            Some(Word(State::Begun, _)) => Progress::Begun,
            Some(Word(State::Saved, _)) => Progress::Saved,
            Some(Word(State::Failed, _)) => Progress::Failed(self.0.page().errno.load(Relaxed)),
        }
    }

    /// Has the nodes go on that have saved, or notes that they have failed.
    pub fn go_on(&self) {
        self.0.page().errno.store(0, Relaxed);
        while let Some(word @ Word(State::Saved | State::Failed, number)) = self.0.word() {
            if self.0.swap(word, Word(State::Idle, number)) {
                return;
            }
        }
    }

    /// The nodes that have asked if a checkpoint is wanted.
    pub fn callers(&self) -> Callers {
        match self.0.page().callers.load(Relaxed) {
            0 => Callers::None,
            1 => Callers::Together,
            _ => Callers::Apart,
        }
    }
}

/// A node's end.
pub struct Node(Map);

impl Node {
    /// Maps the file.
    ///
    /// # Errors
    /// It is not there, is another user's, or no such file.
    pub fn open(path: &Path) -> io::Result<Node> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
        let meta = file.metadata()?;
        let own = rustix::process::geteuid().as_raw();
        if !meta.is_file() || meta.uid() != own || meta.len() != LEN as u64 {
            return Err(ErrorKind::InvalidData.into());
        }
        let map = Map::new(file)?;
        if map.page().layout.load(Acquire) != LAYOUT || map.page().identity.load(Relaxed) == 0 {
            return Err(ErrorKind::InvalidData.into());
        }
        Ok(Node(map))
    }

    /// The number that two files do not share, never 0.
    pub fn identity(&self) -> u64 {
        self.0.page().identity.load(Relaxed)
    }

    /// Says that nodes ask, and whether all of them see this file.
    pub fn meet(&self, together: bool) {
        self.0.page().callers.store(if together { 1 } else { 2 }, Relaxed);
    }

    /// Returns true if the nodes of this context are those that are asked: they are, if they were the first to call.
    pub fn is_of(&self, context: u32) -> bool {
        let own = context.saturating_add(1);
        let had = self.0.page().context.compare_exchange(0, own, Relaxed, Relaxed);
        had.map_or_else(|had| had == own, |_| true)
    }

    /// Begins a call, numbered from 1: whether all nodes take a checkpoint at it.
    #[inline]
    pub fn begin(&self, call: u64) -> bool {
        loop {
            let Some(word) = self.0.word() else { return false };
            let next = match word {
                Word(State::Idle | State::Failed, begun) if begun >= call => return false,
                Word(state @ (State::Idle | State::Failed), _) => Word(state, call),
                Word(State::Asked, at) if at == call => Word(State::Begun, call),
                Word(State::Begun, at) if at == call => return true,
                // This node has come back from it, and node 0 did not come to its end: it has failed.
                Word(State::Begun, at) if at < call => Word(State::Failed, call),
                Word(State::Asked | State::Begun | State::Saved, _) => return false,
            };
            if self.0.swap(word, next) {
                return next.0 == State::Begun;
            }
        }
    }

    /// All nodes have saved at this call; node 0 says so, and they wait until [`is_over`](Node::is_over).
    pub fn saved(&self, call: u64) {
        self.0.swap(Word(State::Begun, call), Word(State::Saved, call));
    }

    /// Returns true if the supervisor has put away what was saved at this call.
    pub fn is_over(&self, call: u64) -> bool {
        self.0.word() != Some(Word(State::Saved, call))
    }

    /// Returns true if nodes make the checkpoint of this call, and nobody has said how that has ended.
    pub fn is_making(&self, call: u64) -> bool {
        self.0.word() == Some(Word(State::Begun, call))
    }

    /// This node could not save at this call, for this reason.
    pub fn failed(&self, call: u64, errno: i32) {
        self.0.page().errno.store(errno, Relaxed);
        self.0.swap(Word(State::Begun, call), Word(State::Failed, call));
    }

    /// Returns true if there is no supervisor any more, so that nobody will put anything away.
    pub fn is_alone(&self) -> bool {
        let taken = flock(&self.0.file, FlockOperation::NonBlockingLockShared).is_ok();
        taken && flock(&self.0.file, FlockOperation::Unlock).is_ok()
    }
}

#[cfg(test)]
mod tests;
