//! `libvervain_preload.so`: programs that look for RDMA devices beside the verbs (UCX, Mooncake, NCCL) find them under
//! /sys/class/infiniband and /dev/infiniband. The library stands before the C library's path functions and puts the tree
//! that `vervain run` made, $VERVAIN_SYSFS, in place of a few path prefixes; every other call passes through after a
//! comparison of the first bytes. It owns nothing else: no device, no policy, no content of the files.
//!
//! - `view` knows the prefixes and the tree, `real` finds the functions behind ours.
//! - `files`, `status`, `links` and `listing` are the functions, by what they do with a path.
//!
//! Only absolute paths in their plain spelling are rewritten: not `/sys//class/…`, and not a path relative to a directory
//! above. Calls that the C library makes inside itself never come here, nor do direct system calls (Go, static programs).

mod files;
mod links;
mod listing;
mod real;
mod status;
mod view;

/// Finds everything while the program has one thread, so that a hook called from a signal handler or after vfork(2) only
/// reads what is there. Hooks called before this, by the constructors of other libraries, find it themselves.
extern "C" fn prepare() {
    view::prepare();
    files::resolve();
    status::resolve();
    links::resolve();
    listing::resolve();
}

// SAFETY: the dynamic linker calls each pointer of .init_array once, with arguments that `prepare` does not take.
#[used]
#[unsafe(link_section = ".init_array")]
static PREPARE: extern "C" fn() = prepare;
