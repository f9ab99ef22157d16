//! Counting what the ports do, where `vervain run` has made a place for it (`vervain_counters`); elsewhere it could not
//! be read, so the counts are dropped.

use crate::host::lock::OwnerLock;
use crate::host::signals::SignalsHeld;
use crate::host::tid;
use std::cell::Cell;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use vervain_config::Config;
pub use vervain_counters::Word;
use vervain_counters::{Block, CountersFile, Line, WORDS};

use crate::device::Device;
use vervain_iba::Opcode;

/// Ports of all devices at most: 16 devices with 4 each.
const MOST_PORTS: usize = 64;

/// The void.
static NOWHERE: [Line; MOST_PORTS] = [const { Line::new() }; MOST_PORTS];
/// This process's file; null for none. Never freed: threads of any age may still give blocks back.
static FILE: AtomicPtr<OwnerLock<CountersFile>> = AtomicPtr::new(std::ptr::null_mut());
/// Ports that have lines.
static PORTS: AtomicU32 = AtomicU32::new(1);

/// The port at which the work of an object is counted.
#[derive(Debug, Default)]
pub struct Tally {
    /// Offset of the port's line in a block, in bytes: one of [`PORTS`] lines.
    at: AtomicUsize,
}

/// The counter of work that belongs to no QP: the first port.
pub static FIRST: Tally = Tally { at: AtomicUsize::new(0) };

impl Tally {
    /// Counts at `port`, from 1, of the device with number `device` from now on, where each device has `ports`.
    pub(crate) fn set(&self, device: u32, ports: u8, port: u8) {
        let index = device * u32::from(ports) + u32::from(port.max(1)) - 1;
        // A program may have changed its environment since the file was opened.
        let index = index.min(PORTS.load(Ordering::Relaxed) - 1) as usize;
        self.at.store(index * size_of::<Line>(), Ordering::Relaxed);
    }

    /// Adds `n`.
    #[inline(always)]
    pub fn add(&self, word: Word, n: u64) {
        self.line().add(word, n);
    }

    /// Adds to two of them.
    #[inline(always)]
    pub fn add_both(&self, (one, n): (Word, u64), (other, m): (Word, u64)) {
        let line = self.line();
        line.add(one, n);
        line.add(other, m);
    }

    /// Takes one back that was added.
    #[cold]
    pub fn subtract_one(&self, word: Word) {
        self.line().subtract_one(word);
    }

    /// The calling thread's line of the port.
    #[inline(always)]
    pub(crate) fn line(&self) -> &'static Line {
        let lines = match tid::lines() {
            lines if lines.is_null() => claim(),
            lines => lines,
        };
        // SAFETY: every block has a line for each of PORTS ports, which do not become fewer while there are objects,
        // and NOWHERE has more; neither ever goes away while this thread has its address.
        unsafe { &*lines.byte_add(self.at.load(Ordering::Relaxed)) }
    }
}

/// An object that is counted as long as it exists.
#[derive(Debug)]
pub(crate) struct Counted {
    kind: Word,
    at: Tally,
    /// The file of the process that made it: a forked child does not count its parent's objects.
    file: usize,
}

impl Counted {
    /// One more object of this kind at `device`.
    pub(crate) fn new(kind: Word, device: &Device) -> Counted {
        let at = Tally::default();
        at.set(device.index(), device.ports(), 1);
        at.add(kind, 1);
        Counted { kind, at, file: FILE.load(Ordering::Acquire) as usize }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if FILE.load(Ordering::Acquire) as usize == self.file {
            self.at.line().subtract_one(self.kind);
        }
    }
}

/// The counter of a request by memory.
#[inline(always)]
pub(crate) fn by_memory(opcode: Opcode) -> Word {
    match opcode {
        Opcode::Send | Opcode::SendImm | Opcode::SendInv => Word::MemorySends,
        Opcode::Write | Opcode::WriteImm => Word::MemoryWrites,
        Opcode::Read => Word::MemoryReads,
        _ => Word::MemoryAtomics,
    }
}

/// Opens the file of a process that begins.
pub(crate) fn start(config: &Config) {
    // Already there, where the process could not be made the last time.
    if !FILE.load(Ordering::Acquire).is_null() {
        return;
    }
    let ports = crate::device::port_count(config).clamp(1, MOST_PORTS as u32);
    let directory = config.sysfs.as_ref().filter(|directory| directory.is_absolute());
    let file = directory.and_then(|d| match CountersFile::open(d, ports as usize) {
        Ok(file) => Some(file),
        Err(e) => {
            log::info!("nothing is counted: {}: {e}", d.join(vervain_counters::FILE).display());
            None
        }
    });
    PORTS.store(ports, Ordering::Relaxed);
    let file = file.map_or(std::ptr::null_mut(), |f| Box::into_raw(Box::new(OwnerLock::new(f))));
    // The file of a forked child's parent is left where it is.
    FILE.store(file, Ordering::Release);
    tell_sums_at_exit();
}

/// Lets go of the file, for an image of the process: it counts in its own memory until [`rejoin`].
pub(crate) fn leave() {
    with_file(|file| file.leave());
}

/// Counts in the file again.
pub(crate) fn rejoin() {
    with_file(|file| file.rejoin());
}

fn with_file(f: impl FnOnce(&mut CountersFile) -> std::io::Result<()>) {
    // SAFETY: null, or a leaked box.
    let Some(file) = (unsafe { FILE.load(Ordering::Acquire).as_ref() }) else { return };
    if let Err(e) = f(&mut file.lock()) {
        log::info!("what is counted is not seen by others: {e}");
    }
}

/// The process that began last: a forked child that ends has its parent's functions of atexit(3).
static PID: AtomicU32 = AtomicU32::new(0);

/// Has what this process moved, and by which way, told when it ends: whether Vervain was used, and how.
fn tell_sums_at_exit() {
    static ONCE: Once = Once::new();
    PID.store(std::process::id(), Ordering::Relaxed);
    if log::log_enabled!(log::Level::Info) {
        ONCE.call_once(|| {
            // SAFETY: a function of this library, which takes nothing and returns.
            unsafe { libc::atexit(tell_sums) };
        });
    }
}

/// Counts of this process, over all ports, by [`Word`]; None if nothing is counted.
pub fn own_sums() -> Option<[u64; WORDS]> {
    // SAFETY: null, or a leaked box that is never freed.
    let file = unsafe { FILE.load(Ordering::Acquire).as_ref() };
    file.map(|file| file.lock().own_sums())
}

extern "C" fn tell_sums() {
    if PID.load(Ordering::Relaxed) != std::process::id() {
        return;
    }
    if let Some(sums) = own_sums() {
        let of = |words: &[Word]| words.iter().map(|word| sums[*word as usize]).sum::<u64>();
        let by_memory = of(&[Word::MemorySends, Word::MemoryWrites, Word::MemoryReads, Word::MemoryAtomics]);
        let [sent, received] = [Word::SentPackets, Word::ReceivedPackets].map(|word| of(&[word]));
        let [direct, ring, staged] =
            [Word::WindowDirectBytes, Word::WindowRingBytes, Word::WindowStagedBytes].map(|word| of(&[word]));
        let ways = [
            (by_memory > 0).then(|| format!("{by_memory} requests with {} bytes by memory", of(&[Word::MemoryBytes]))),
            (sent + received > 0).then(|| {
                let [sent_bytes, received_bytes] = [Word::SentBytes, Word::ReceivedBytes].map(|word| of(&[word]));
                let sent_bytes = sent_bytes + ring + staged;
                format!("{sent} packets with {sent_bytes} bytes sent, {received} with {received_bytes} bytes received")
            }),
            (direct + ring + staged > 0).then(|| {
                format!(
                    "into the window {direct} bytes where they belong, {ring} of messages below 64 KiB into rings, {staged} of \
                     longer ones into rings"
                )
            }),
        ];
        // A process that only looks at a device, or is only reached by memory, has moved nothing.
        let ways: Vec<_> = ways.into_iter().flatten().collect();
        if !ways.is_empty() {
            log::info!("this process has moved: {}", ways.join("; "));
        }
    }
}

/// In a forked child: what the parent has is not the child's.
pub(crate) fn forget() {
    FILE.store(std::ptr::null_mut(), Ordering::Release);
}

/// A block that goes back when its thread ends.
struct Held(Cell<Option<(&'static OwnerLock<CountersFile>, Block)>>);

impl Drop for Held {
    fn drop(&mut self) {
        // Later destructors of the thread may still use the device.
        tid::set_lines(NOWHERE.as_ptr());
        if let Some((file, block)) = self.0.take()
            && std::ptr::eq(FILE.load(Ordering::Acquire), file)
            // One that ends in the midst of taking another (`pthread_exit` of a signal handler) would wait for itself.
            && !file.raw().held_by_me()
        {
            file.lock().give_back(block);
        }
    }
}

thread_local! {
    static HELD: Held = const { Held(Cell::new(None)) };
}

/// The lines of a thread that has none yet.
#[cold]
#[inline(never)]
fn claim() -> *const Line {
    // The destructor of HELD is registered below, for which the C library takes the dynamic linker's lock.
    let _held = SignalsHeld::begin();
    let file = FILE.load(Ordering::Acquire);
    // SAFETY: null, or a leaked box that is never freed.
    let file = unsafe { file.as_ref() };
    let mut lines = NOWHERE.as_ptr();
    if let Some((file, block)) = file.and_then(|file| file.lock().take().ok().map(|block| (file, block))) {
        // A thread that is past its destructors counts into the void.
        match HELD.try_with(|held| held.0.set(Some((file, block)))) {
            Ok(()) => lines = block.lines(),
            Err(_) => file.lock().give_back(block),
        }
    }
    tid::set_lines(lines);
    lines
}
