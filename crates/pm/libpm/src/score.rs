//! The state that programs of SCore find at their start: the job's context and numbers, as variables.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::{mem, ptr};

use vervain_pm::Error;

use crate::context::{Context, Way};
use crate::device::Device;
use crate::error::print;

macro_rules! variables {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $bytes:literal;)+) => {
        // As the functions' exports: the version is a part of the name.
        $(std::arch::global_asm!(
            concat!(".pushsection .bss.", stringify!($name), ",\"aw\",%nobits"),
            concat!(".balign ", $bytes),
            concat!(".globl \"", stringify!($name), "@@PM_2.0\""),
            concat!(".type \"", stringify!($name), "@@PM_2.0\",%object"),
            concat!("\"", stringify!($name), "@@PM_2.0\":"),
            concat!(".zero ", $bytes),
            concat!(".size \"", stringify!($name), "@@PM_2.0\", ", $bytes),
            ".popsection",
        );)+

        unsafe extern "C" {
            $($(#[$doc])* static mut $name: $type;)+
        }
    };
}

variables! {
    /// The number of contexts.
    score_num_pmnet: c_int = 4;
    /// The contexts.
    score_pmnet: *mut *mut c_void = 8;
    /// Hosts, and the number of this one.
    score_num_host: c_int = 4;
    score_self_host: c_int = 4;
    /// Processes, and the number of this one.
    score_num_proc: c_int = 4;
    score_self_proc: c_int = 4;
    /// Nodes of the contexts, and the number of this one.
    score_num_node: c_int = 4;
    score_self_node: c_int = 4;
}

/// The longest sleep of `score_become_idle`, in milliseconds.
const NAP: c_int = 10;

/// The objects that `score_initialize` has made.
struct World {
    context: *mut Context,
    device: Device,
}

// SAFETY: the context may be used by several threads; a thread that takes the world out of its place has it alone.
unsafe impl Send for World {}

static WORLD: Mutex<Option<World>> = Mutex::new(None);

/// Joins the job and opens its context; the process ends with a sentence where that cannot be.
pub extern "C" fn score_initialize(_argc: c_int, _argv: *mut *mut c_char) {
    if let Err(error) = initialize() {
        print(&format!("score_initialize: {error}"));
        std::process::exit(1);
    }
}

fn initialize() -> Result<(), Error> {
    let mut world = WORLD.lock().unwrap_or_else(PoisonError::into_inner);
    if world.is_some() {
        return Err(Error::new(libc::EBUSY, "it has been called before"));
    }
    let device = Device::open("ib", &[])?;
    let context = match Context::open(&device) {
        Ok(context) => context,
        Err(error) => {
            // The process ends, and the job is not left before the sentence is out: with that, others fail for want of
            // this one.
            mem::forget(device);
            return Err(error);
        }
    };
    let Way::One(way) = &context.way else { return Err(Error::new(libc::EIO, "no context of the job")) };
    let hosts = way.hosts()?;
    let (nodes, own) = (way.nodes().cast_signed(), way.node().cast_signed());
    let context = Box::into_raw(Box::new(context));
    // SAFETY: variables of this library's, which the program reads once this has returned; nobody else writes them.
    unsafe {
        (score_num_host, score_self_host) = (hosts.count.cast_signed(), hosts.own.cast_signed());
        (score_num_proc, score_self_proc) = (nodes, own);
        (score_num_node, score_self_node) = (nodes, own);
        score_pmnet = Box::into_raw(Box::new([context, ptr::null_mut()])).cast();
        score_num_pmnet = 1;
    }
    *world = Some(World { context, device });
    // SAFETY: the handler's code stays mapped (build.rs). Where it cannot be registered, the job is not left in order.
    unsafe { on_exit(at_the_end, ptr::null_mut()) };
    Ok(())
}

unsafe extern "C" {
    /// on_exit(3), as the GNU C library has it.
    fn on_exit(handler: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// A program of SCore's has no function that ends it. One that fails ends at once: the launcher ends the others, which
/// may wait for it.
extern "C" fn at_the_end(status: c_int, _: *mut c_void) {
    let world = WORLD.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(World { context, device }) = world.filter(|_| status == 0) else { return };
    // SAFETY: made by `initialize`, taken once, at the end of the program.
    let closed = unsafe { Box::from_raw(context) }.close();
    let left = match device {
        Device::Verbs(device) => device.close(),
        Device::Composite(_) => Ok(()),
    };
    if let Err(error) = closed.and(left) {
        print(&format!("at the end: {error}"));
    }
}

/// Sleeps until something has come, but not for long.
pub extern "C" fn score_become_idle() {
    let world = WORLD.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(context) = world.as_ref().map(|world| world.context) else { return };
    drop(world);
    // SAFETY: made by `initialize`; it is there until the program ends.
    let Way::One(context) = (unsafe { &(*context).way }) else { return };
    if context.before_select().is_ok() {
        let mut fd = libc::pollfd { fd: context.fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor's place.
        unsafe { libc::poll(&mut fd, 1, NAP) };
        // An error is reported by the next call.
        let _ = context.after_select();
    }
}
