//! The context's own thread: it answers peers that want to connect or to close a connection while the program computes,
//! and asks the launcher for leaders' addresses. Messages wait in their buffers for the program, and wake nobody that
//! has not asked for it; the thread looks at them only while a connection closes, which may depend on one, and while
//! the context does.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vervain_mesh::Mesh;

use crate::engine::Engine;
use crate::error::Result;
use crate::shared::Shared;

/// Its stack, of which little is touched.
pub(crate) const STACK: usize = 256 << 10;

/// Runs until the context is closed.
pub(crate) fn run(shared: &Shared) {
    while !shared.stop.load(Ordering::Acquire) {
        if let Err(error) = turn(shared) {
            shared.lock().nodes.fail(error);
            shared.wake();
            // The device or the launcher does not work any more: a call of the program's will report it.
            return;
        }
    }
}

/// Returns true if it looks at messages and completions too.
fn is_watching(engine: &Engine) -> bool {
    engine.nodes.mesh.is_draining() || engine.discarding || engine.rest.keeps || engine.begins()
}

/// Does what there is to do, then sleeps until there is more.
fn turn(shared: &Shared) -> Result<()> {
    shared.door.arm()?;
    let mut engine = shared.lock();
    // A completed request does not hold its connection any more, and a peer that has woken this thread may want its
    // place.
    while engine.look_for_completions() {}
    // Requests that came before the arming may have no event of their own.
    while engine.nodes.look_for_peers() {}
    engine.nodes.progress(Instant::now());
    if engine.begins() {
        engine.begin_unsent();
    }
    let watching = is_watching(&engine);
    engine.nodes.watch(watching);
    if watching {
        shared.messages.arm()?;
        shared.completions.arm()?;
        look(&mut engine);
    }
    let leader = engine.nodes.mesh.wanted_leader();
    let wait = match engine.nodes.begin_sleep() {
        _ if engine.nodes.mesh.needs_owner() => Some(Duration::ZERO),
        due => due.map(|due| due.saturating_duration_since(Instant::now())),
    };
    tell(shared, &engine);
    drop(engine);
    if let Some(leader) = leader {
        let found = Mesh::fetch_leader(&shared.job, leader, shared.epoch);
        shared.lock().nodes.mesh.leader_found(leader, found);
        return Ok(());
    }
    sleep(shared, watching, wait)
}

fn look(engine: &mut Engine) {
    if engine.discarding {
        engine.discard();
    }
    while engine.look_for_messages() {}
    while engine.look_for_completions() {}
    if engine.nodes.mesh.is_draining() {
        engine.make_way();
    }
}

/// Wakes a program that sleeps, where something has happened that it may wait for.
fn tell(shared: &Shared, engine: &Engine) {
    if engine.nodes.news.armed && (engine.nodes.news.is_any() || engine.inbox.has_messages()) {
        shared.wake();
    }
}

fn sleep(shared: &Shared, watching: bool, wait: Option<Duration>) -> Result<()> {
    let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
    let mut fds =
        vec![readable(shared.kicked()), readable(shared.door.channel.fd()), readable(shared.device.async_fd())];
    if watching {
        fds.extend([&shared.messages, &shared.completions].map(|events| readable(events.channel.fd())));
    }
    let wait = wait.map(|wait| Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() });
    let _ = poll(&mut fds, wait.as_ref());
    shared.take_kicks();
    shared.door.take()?;
    if shared.few_receives_left()? {
        let mut engine = shared.lock();
        engine.few_receives_left()?;
        tell(shared, &engine);
    }
    if watching {
        // Under the lock: a program that is about to sleep takes them too, and one that has been woken by one finds it
        // or `ready`.
        let mut engine = shared.lock();
        let taken = shared.messages.take()? | shared.completions.take()?;
        look(&mut engine);
        if taken && engine.nodes.news.armed {
            shared.wake();
        } else {
            tell(shared, &engine);
        }
    }
    Ok(())
}
