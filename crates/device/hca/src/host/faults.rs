//! The handler of SIGSEGV and SIGBUS that stands before the program's own: a fault of an access that
//! [`crate::host::guarded`] lists goes on there, every other one is the program's, as if this were not here. Under the
//! preload the program's sigaction(2) and signal(2) say and set what stands behind it (`vervain_share::faults`);
//! without, a program that puts its own action there takes this one away, or calls it when it passes on what it does
//! not know.

use crate::host::{arch, guarded};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use vervain_share::dump;
use vervain_share::faults::{self, Entry, SIGNALS};

/// The program's action, written by the holder of `writer`; `turn` is odd meanwhile. Read in signal handlers.
struct Asked {
    writer: AtomicBool,
    turn: AtomicU32,
    action: std::cell::UnsafeCell<libc::sigaction>,
}

// SAFETY: the action is read and written as `turn` says.
unsafe impl Sync for Asked {}

static ASKED: [Asked; SIGNALS.len()] = [const {
    Asked {
        writer: AtomicBool::new(false),
        turn: AtomicU32::new(0),
        // SAFETY: all zeros is the default action.
        action: std::cell::UnsafeCell::new(unsafe { std::mem::zeroed() }),
    }
}; SIGNALS.len()];

impl Asked {
    fn of(signal: c_int) -> Option<&'static Asked> {
        ASKED.iter().zip(SIGNALS).find_map(|(asked, of)| (of == signal).then_some(asked))
    }

    fn get(&self) -> libc::sigaction {
        loop {
            let turn = self.turn.load(Ordering::Acquire);
            // SAFETY: plain words, that are thrown away if they were written meanwhile.
            let action = unsafe { std::ptr::read_volatile(self.action.get()) };
            fence(Ordering::Acquire);
            if turn & 1 == 0 && self.turn.load(Ordering::Relaxed) == turn {
                return action;
            }
        }
    }

    /// Replaces the action by `new`; returns the one before.
    fn set(&self, new: &libc::sigaction) -> libc::sigaction {
        // A handler on this thread must not wait for this thread.
        let _masked = vervain_share::sys::mask_signals();
        while self.writer.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        let old = self.get();
        self.turn.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        // SAFETY: only the holder of `writer` writes, and readers look at `turn` before and after.
        unsafe { std::ptr::write_volatile(self.action.get(), *new) };
        self.turn.fetch_add(1, Ordering::Release);
        self.writer.store(false, Ordering::Release);
        old
    }
}

/// Puts the handler in place, once in the life of the process image; a forked child has it from its parent.
pub(crate) fn install() {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    if INSTALLED.swap(true, Ordering::AcqRel) {
        return;
    }
    // SAFETY: all zeros is a valid action with an empty mask.
    let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
    ours.sa_sigaction = handler as *const () as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    let olds = SIGNALS.map(|signal| {
        // SAFETY: all zeros is a valid action, and is written over.
        let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: the old action is known before it can be asked for; both structs live here.
        unsafe {
            libc::sigaction(signal, std::ptr::null(), &raw mut old);
            if let Some(asked) = Asked::of(signal) {
                asked.set(&old);
            }
            libc::sigaction(signal, &raw const ours, std::ptr::null_mut());
        }
        old
    });
    // SAFETY: looks a name up in the libraries that are loaded.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, faults::SYMBOL.as_ptr()) };
    if symbol.is_null() {
        return;
    }
    // SAFETY: the name is this project's own and stands for a function of this type (`faults::SYMBOL`).
    let stand_before = unsafe { std::mem::transmute::<*mut c_void, Entry>(symbol) };
    // SAFETY: `exchange` may be called at any time from now on.
    unsafe { stand_before(exchange) };
    // Once more by the preload, which has an action of its own for the default one.
    for (signal, old) in SIGNALS.into_iter().zip(&olds) {
        // SAFETY: a valid action.
        unsafe { libc::sigaction(signal, old, std::ptr::null_mut()) };
    }
}

/// sigaction(2) for what stands behind the handler.
unsafe extern "C" fn exchange(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    let Some(asked) = Asked::of(signal) else { return -1 };
    // SAFETY: null or the caller's struct, read before anything is written.
    let new = unsafe { new.as_ref() }.copied();
    let before = match &new {
        Some(new) => asked.set(new),
        None => asked.get(),
    };
    if !old.is_null() {
        // SAFETY: the caller's struct.
        unsafe { old.write(before) };
    }
    0
}

extern "C" fn handler(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both, and waits for nobody else to change them.
    let (info_ref, context_ref) = unsafe { (&*info, &mut *context.cast::<libc::ucontext_t>()) };
    // A signal that was sent is no fault (`man 2 sigaction`, si_code).
    if info_ref.si_code > 0 && go_on(info_ref, context_ref) {
        return;
    }
    pass_on(signal, info, context);
}

/// Returns true if the fault is that of a guarded instruction; then the thread goes on behind it, with the address in a
/// register.
fn go_on(info: &libc::siginfo_t, context: &mut libc::ucontext_t) -> bool {
    let Some(landing) = guarded::landing(arch::guarded::instruction(context)) else { return false };
    // SAFETY: a fault has an address; where the processor did not give one it is 0, which would say that all is well.
    let address = unsafe { info.si_addr() } as usize;
    arch::guarded::go_on_at(context, landing, if address == 0 { usize::MAX } else { address });
    true
}

/// Does what the program has asked for.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(asked) = Asked::of(signal) else { return };
    let action = asked.get();
    // SAFETY: the kernel passes a siginfo.
    let about = unsafe { &*info };
    match action.sa_sigaction {
        // The kernel does not let a fault be ignored.
        libc::SIG_IGN if about.si_code <= 0 => return,
        libc::SIG_DFL | libc::SIG_IGN => return dump::die_by(signal, about),
        _ => {}
    }
    if action.sa_flags & libc::SA_RESETHAND != 0 {
        // SAFETY: all zeros is the default action.
        asked.set(&unsafe { std::mem::zeroed() });
    }
    // The kernel has blocked the signal itself, and gives the mask back when the handler returns.
    // SAFETY: the sets live here; the handler is the program's, and takes what the kernel passes to it.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const action.sa_mask, std::ptr::null_mut());
        if action.sa_flags & libc::SA_NODEFER != 0 {
            let mut this: libc::sigset_t = std::mem::zeroed();
            libc::sigaddset(&raw mut this, signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const this, std::ptr::null_mut());
        }
        type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
        let handler = std::mem::transmute::<*const (), Handler>(action.sa_sigaction as *const ());
        handler(signal, info, context);
    }
}
