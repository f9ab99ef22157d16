//! Memory as the language allows it to be. A load sees any store of its word that nothing replaces of which its thread has heard,
//! so an old one too; acquiring a store that was released is hearing of what its thread had heard of, and so are fences. Threads
//! take their steps in program order, and stores of one word in the order in which they are made; how a load may see what is
//! stored later by another thread in return for it is left out, as no machine does it.
//!
//! A barrier for everybody ([`fence_everywhere`], `man 2 membarrier`) is a fence in each thread, at whatever step it is. So the
//! frequent side of `host/barrier.rs` is checked as it is, without a fence of its own.

use shuttle::rand::{RngCore, thread_rng};
use shuttle::sync::atomic::AtomicUsize;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// For each word, by its number, the newest store that is known.
#[derive(Clone, Default)]
pub(crate) struct View(Vec<u32>);

impl View {
    fn newest(&self, word: usize) -> u32 {
        self.0.get(word).copied().unwrap_or(0)
    }

    fn hear_of(&mut self, word: usize, store: u32) {
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] = self.0[word].max(store);
    }

    fn join(&mut self, other: &View) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
    }
}

struct Store {
    value: u64,
    /// What one hears of who acquires it.
    released: View,
}

#[derive(Clone, Default)]
struct Thread {
    /// What it has heard of.
    known: View,
    /// What it hears of with its next acquiring fence.
    to_acquire: View,
    /// What it had heard of at its last releasing fence.
    released: View,
}

#[derive(Default)]
struct Memory {
    /// The stores of each word.
    words: Vec<Vec<Store>>,
    threads: Vec<Thread>,
    /// What all have heard of who pass a sequentially consistent fence from now on.
    fenced: View,
    /// The same at the last fence in every thread; one that takes its first step later has passed that too.
    fenced_everywhere: View,
    /// Where threads take turns.
    turns: Option<Rc<AtomicUsize>>,
}

thread_local! {
    // All threads of a model run in one thread of the test.
    static MEMORY: RefCell<Memory> = RefCell::default();
}

fn is_acquire(order: Ordering) -> bool {
    matches!(order, Ordering::Acquire | Ordering::AcqRel | Ordering::SeqCst)
}

fn is_release(order: Ordering) -> bool {
    matches!(order, Ordering::Release | Ordering::AcqRel | Ordering::SeqCst)
}

impl Memory {
    fn thread(&mut self) -> (usize, &mut Thread) {
        let me = usize::from(shuttle::current::me());
        if self.threads.len() <= me {
            let known = self.fenced_everywhere.clone();
            self.threads.resize(me + 1, Thread { known, ..Thread::default() });
        }
        (me, &mut self.threads[me])
    }

    fn newest(&self, word: usize) -> u32 {
        self.words[word].len() as u32 - 1
    }

    fn read(&mut self, word: usize, store: u32, order: Ordering) -> u64 {
        let (me, _) = self.thread();
        let (thread, seen) = (&mut self.threads[me], &self.words[word][store as usize]);
        thread.known.hear_of(word, store);
        if is_acquire(order) {
            thread.known.join(&seen.released);
        } else {
            thread.to_acquire.join(&seen.released);
        }
        seen.value
    }

    /// `carried` is what a store goes on telling that was read in the same step.
    fn write(&mut self, word: usize, value: u64, order: Ordering, carried: Option<View>) {
        let store = self.words[word].len() as u32;
        let (_, thread) = self.thread();
        thread.known.hear_of(word, store);
        let mut released = if is_release(order) { thread.known.clone() } else { thread.released.clone() };
        carried.iter().for_each(|carried| released.join(carried));
        released.hear_of(word, store);
        self.words[word].push(Store { value, released });
        if order == Ordering::SeqCst {
            self.fenced.hear_of(word, store);
        }
    }

    fn fence(&mut self, thread: usize, order: Ordering) {
        let thread = &mut self.threads[thread];
        if is_acquire(order) {
            thread.known.join(&thread.to_acquire);
        }
        if order == Ordering::SeqCst {
            self.fenced.join(&thread.known);
            thread.known = self.fenced.clone();
        }
        if is_release(order) {
            thread.released = thread.known.clone();
        }
    }
}

fn with<R>(f: impl FnOnce(&mut Memory) -> R) -> R {
    MEMORY.with_borrow_mut(f)
}

/// Another thread may go on here.
fn step() {
    let turns = with(|memory| Rc::clone(memory.turns.get_or_insert_with(|| Rc::new(AtomicUsize::new(0)))));
    turns.load(Ordering::SeqCst);
}

/// Everything is forgotten: a model begins.
pub(crate) fn clear() {
    MEMORY.take();
}

/// One more word: its number.
pub(crate) fn word(value: u64) -> usize {
    with(|memory| {
        memory.words.push(vec![Store { value, released: View::default() }]);
        memory.words.len() - 1
    })
}

pub(crate) fn load(word: usize, order: Ordering) -> u64 {
    step();
    with(|memory| {
        let newest = memory.newest(word);
        let (_, thread) = memory.thread();
        let mut oldest = thread.known.newest(word);
        if order == Ordering::SeqCst {
            oldest = oldest.max(memory.fenced.newest(word));
        }
        // Most loads see the newest one, as on a machine.
        let store = match newest - oldest {
            0 => newest,
            _ if thread_rng().next_u64() & 1 == 0 => newest,
            late => newest - (thread_rng().next_u64() % (u64::from(late) + 1)) as u32,
        };
        memory.read(word, store, order)
    })
}

pub(crate) fn store(word: usize, value: u64, order: Ordering) {
    step();
    with(|memory| memory.write(word, value, order, None));
}

/// Reads the newest store and makes the next in one step, if `f` gives its value.
pub(crate) fn update(
    word: usize,
    success: Ordering,
    failure: Ordering,
    f: impl FnOnce(u64) -> Option<u64>,
) -> Result<u64, u64> {
    step();
    with(|memory| {
        let newest = memory.newest(word);
        let Some(value) = f(memory.words[word][newest as usize].value) else {
            return Err(memory.read(word, newest, failure));
        };
        let before = memory.read(word, newest, success);
        let carried = memory.words[word][newest as usize].released.clone();
        memory.write(word, value, success, Some(carried));
        Ok(before)
    })
}

pub(crate) fn fence(order: Ordering) {
    step();
    with(|memory| {
        let (me, _) = memory.thread();
        memory.fence(me, order);
    });
}

/// A full fence in every thread, in one after the other. The caller has passed one itself.
pub(crate) fn fence_everywhere() {
    with(|memory| memory.fenced_everywhere = memory.fenced.clone());
    for thread in 0..with(|memory| memory.threads.len()) {
        step();
        with(|memory| memory.fence(thread, Ordering::SeqCst));
    }
}

/// What the calling thread has heard of: for one that it starts, or that waits for its end.
pub(crate) fn known() -> View {
    with(|memory| memory.thread().1.known.clone())
}

/// The calling thread hears of what another had heard of.
pub(crate) fn hear(view: &View) {
    with(|memory| memory.thread().1.known.join(view));
}

/// Memory that is no atomic: whoever touches it has heard of all who did before.
pub(crate) struct Plain(usize);

impl Plain {
    pub(crate) fn new() -> Plain {
        Plain(word(0))
    }

    pub(crate) fn touch(&self) {
        step();
        with(|memory| {
            let newest = memory.newest(self.0);
            let (me, thread) = memory.thread();
            assert_eq!(thread.known.newest(self.0), newest, "thread {me} touches memory that another is touching");
            memory.write(self.0, me as u64, Ordering::Relaxed, None);
        });
    }
}
