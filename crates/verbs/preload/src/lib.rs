//! `libvervain_preload.so` stands before four groups of the C library's functions. It owns no device and no policy.
//!
//! Paths: programs that look for RDMA devices beside the verbs (UCX, Mooncake, NCCL) find them under
//! /sys/class/infiniband and /dev/infiniband. The library puts the tree that `vervain run` made, $VERVAIN_SYSFS, in
//! place of a few path prefixes; every other call passes through after a comparison of the first bytes.
//!
//! Netlink: a program that asks the kernel for RDMA devices on a socket of NETLINK_RDMA gets those in the tree
//! (`netlink`).
//!
//! Memory: in a process that has loaded the verbs library, large allocations and mappings come from shared memory
//! (`vervain-share`), unless VERVAIN_SHARE=off. The device finds out about them by [`vervain_share_v1`].
//!
//! Libraries: libraries of a package that brings a libibverbs or librdmacm of its own are linked to Vervain's
//! (`loading`).
//!
//! Sanitizers: settings that a runtime needs if this library is loaded (`checkers`).
//!
//! - `view` knows the prefixes and the tree, `real` finds the functions behind ours, `arch` has what depends on the
//!   processor.
//! - `allocation`, `mapping`, `forking`, `signals`, `descriptors` and `sandbox` are the functions of memory.
//! - `threads` finds the functions behind ours before there is a second thread.
//! - `opening`, `files`, `status`, `links` and `listing` are the functions, by what they do with a path; `counters`
//!   fills in the present counts.
//!
//! Only absolute paths in their plain spelling are rewritten: not `/sys//class/…`, and not a path relative to a
//! directory above. Calls that the C library makes inside itself never come here, nor do direct system calls (Go,
//! static programs).

mod allocation;
mod arch;
mod checkers;
mod counters;
mod descriptors;
mod files;
mod forking;
mod links;
mod listing;
mod loading;
mod mapping;
mod netlink;
mod opening;
mod real;
mod sandbox;
mod signals;
mod status;
mod threads;
mod view;

use std::sync::Once;

/// The seam to the device: where memory lies in objects that peers can map. Null when sharing is off.
#[unsafe(no_mangle)]
pub extern "C" fn vervain_share_v1() -> *const vervain_share::api::ShareApi {
    vervain_share::device::api()
}

/// The verbs library has been loaded: this process gets memory that peers can map from now on.
#[unsafe(no_mangle)]
pub extern "C" fn vervain_share_wake_v1() {
    forking::prepare();
    resolve();
    vervain_share::wake();
}

/// The seam to the device's handler of faults (`signals`).
///
/// # Safety
/// `exchange` may be called at any time from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vervain_faults_v1(exchange: vervain_share::faults::Exchange) {
    vervain_share::faults::stand_before(exchange);
}

/// Prepares the parts that must be ready before the program's first instruction. Every process under `vervain run` pays
/// for this, so the real functions are looked up later, at the first call that needs them (`resolve`).
extern "C" fn prepare() {
    view::prepare();
    if vervain_share::settings::from_the_start() {
        vervain_share_wake_v1();
    }
}

/// Finds all functions behind ours. A program that starts no thread and loads nothing has each of them found at its
/// first call, in a signal handler or after vfork(2) too, for dlsym(3) then only takes a lock that is this thread's or
/// nobody's. Before the second thread all are found: another may hold that lock, in dlopen(3), and wait there for what
/// this one calls. Before dlopen(3) too: a call between it and dlerror(3) must not be the one that looks something up.
fn resolve() {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        allocation::resolve();
        mapping::resolve();
        signals::resolve();
        descriptors::resolve();
        sandbox::resolve();
        opening::resolve();
        files::resolve();
        status::resolve();
        links::resolve();
        listing::resolve();
        loading::resolve();
        netlink::resolve();
        threads::resolve();
    });
}

// SAFETY: the dynamic linker calls each pointer of .init_array once, with arguments that `prepare` does not take.
#[used]
#[unsafe(link_section = ".init_array")]
static PREPARE: extern "C" fn() = prepare;

// The start files of the compiler would define it. They are left out (build.rs): their functions, run at the start and
// the end of each program, do nothing for this library. Its address is the library's name to pthread_atfork(3). A test
// binary, which `--all-targets` links, has them.
#[cfg(not(test))]
std::arch::global_asm!(
    ".pushsection .bss.__dso_handle, \"aw\", %nobits",
    ".globl __dso_handle",
    ".hidden __dso_handle",
    ".balign 8",
    "__dso_handle:",
    ".zero 8",
    ".popsection",
);
