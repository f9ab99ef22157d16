//! A fork with the device's gate set: peers are held off while the copy is made, in the parent only.

use std::sync::atomic::{AtomicUsize, Ordering};

use vervain_share::{device, fork, heap};
use vervain_skip::skip;

static CLOSED: AtomicUsize = AtomicUsize::new(0);
static OPENED: AtomicUsize = AtomicUsize::new(0);
static BLOCK: AtomicUsize = AtomicUsize::new(0);

/// The last thing that a peer writes before the gate is closed.
unsafe extern "C" fn before() {
    CLOSED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the test's block.
    unsafe { (BLOCK.load(Ordering::Relaxed) as *mut u8).write(2) };
}

/// And the first afterwards.
unsafe extern "C" fn after() {
    OPENED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the test's block.
    unsafe { (BLOCK.load(Ordering::Relaxed) as *mut u8).write(3) };
}

#[test]
fn the_child_has_what_peers_wrote_before_the_gate_closed() {
    fork::register();
    vervain_share::wake();
    let block = heap::alloc(1 << 20, 1, true);
    if block.is_null() {
        skip(vervain_share::status::sentence());
        return;
    }
    BLOCK.store(block as usize, Ordering::Relaxed);
    // SAFETY: the table is a static; the functions may be called around fork.
    unsafe { ((*device::api()).set_fork_gate)(Some(before), Some(after)) };
    for round in 1..=3 {
        // SAFETY: the child calls nothing that another thread could have locked.
        let child = unsafe { libc::fork() };
        if child == 0 {
            std::thread::sleep(std::time::Duration::from_millis(50));
            // SAFETY: its own copy of the block.
            let seen = unsafe { block.read_volatile() };
            let counts = (CLOSED.load(Ordering::Relaxed), OPENED.load(Ordering::Relaxed));
            let right = seen == 2 && counts == (round, round - 1);
            // SAFETY: ends the child without handlers.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!((CLOSED.load(Ordering::Relaxed), OPENED.load(Ordering::Relaxed)), (round, round));
        // SAFETY: the test's block.
        assert_eq!(unsafe { block.read_volatile() }, 3);
    }
    heap::free(block as usize);
}
