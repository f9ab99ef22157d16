//! A context: the job's processes as nodes of one network.

use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use vervain_mesh::Mesh;

use crate::asked::{self, Asked};
use crate::checkpoint::{self, Checkpoints};
use crate::device::Device;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::job::{self, Hosts};
use crate::locks::{AddrHandle, Whom};
use crate::nodes::QUEUE;
use crate::rdma::Direction;
use crate::receive::Received;
use crate::save;
use crate::settings::Settings;
use crate::shared::Shared;
use crate::thread::{STACK, run};
use crate::window::Window;

/// The state of a context's meetings with its other nodes.
#[derive(Default)]
pub(crate) struct Together {
    pub turn: u32,
    pub checkpoints: Checkpoints,
    pub asked: Asked,
}

/// Between two looks at what a context that opens or closes waits for.
const LOOK: Duration = Duration::from_micros(100);

/// This process as a node among the others of its job. Threads may share it.
///
/// Each call but [`open`](Context::open) and [`close`](Context::close) returns at once.
pub struct Context {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Work that all nodes do together; one thread of the program at a time takes part.
    together: Mutex<Together>,
    /// Behind what is made on it.
    device: Arc<Device>,
}

impl Context {
    /// Joins the job, unless it was joined before, and opens a context on the device. All processes of the job call it,
    /// for as many contexts and in the same order; it returns once all have.
    ///
    /// # Errors
    /// EIO: no launcher that can be spoken to, the device has failed, or nodes have other settings. ENOMEM: not the
    /// resources.
    pub fn open(device: &Arc<Device>) -> Result<Context> {
        let settings = &device.settings;
        let (job, epoch) = job::enter()?;
        let agreed = settings.agreed();
        let mesh = Mesh::open(&job, job.rank(), epoch, &options(settings), &agreed, vec![])?;
        let shared = Arc::new(Shared::new(Engine::new(mesh, settings)?, job.clone(), epoch)?);
        let of_thread = shared.clone();
        let thread = vervain_scheduler::spawn("pm", STACK, move || run(&of_thread))
            .map_err(|error| Error::new(libc::ENOMEM, format!("no thread for connections: {error}")))?;
        let together = Together { asked: Asked::open(&job, epoch)?, ..Default::default() };
        let context = Context { shared, thread: Some(thread), together: together.into(), device: device.clone() };
        job.fence()?;
        let introduction = Mesh::find_leader(&job, job.rank(), epoch)?;
        if introduction.agreed() != agreed {
            return Err(Error::broken(format!(
                "nodes have other settings: node 0 has '{}', node {} has '{}'",
                String::from_utf8_lossy(introduction.agreed()),
                job.rank(),
                String::from_utf8_lossy(&agreed)
            )));
        }
        context.shared.lock().nodes.mesh.introduce(introduction)?;
        context.shared.kick();
        loop {
            let engine = context.shared.lock();
            engine.nodes.check()?;
            if engine.nodes.mesh.registered() {
                break;
            }
            drop(engine);
            thread::sleep(LOOK);
        }
        Ok(context)
    }

    /// Waits until all sent messages are with their nodes and all processes have come here, and closes the context.
    /// Messages that were not received are dropped. If a node was lost, the others are not waited for.
    ///
    /// # Errors
    /// EIO: the launcher is gone. The context is closed in any case.
    pub fn close(self) -> Result<()> {
        let all_there = loop {
            let mut engine = self.shared.lock();
            if !engine.discarding {
                engine.discarding = true;
                engine.rest.keeps = false;
                engine.forget_send_buffer();
                self.shared.kick();
            }
            engine.discard();
            let is_begun = engine.begin_unsent();
            engine.look();
            let has_failed = engine.nodes.has_failed();
            if has_failed || (is_begun && !engine.under_way()) {
                break !has_failed && !engine.nodes.has_lost();
            }
            drop(engine);
            thread::sleep(LOOK);
        };
        // Until all have come here, the thread makes room for what they still send.
        if all_there { Ok(self.shared.job.fence()?) } else { Ok(()) }
    }

    /// This process's number, from 0.
    pub fn node(&self) -> u32 {
        self.shared.job.rank()
    }

    /// The number of nodes.
    pub fn nodes(&self) -> u32 {
        self.shared.job.size()
    }

    /// The longest message, in bytes.
    pub fn mtu(&self) -> usize {
        self.device.settings.mtu
    }

    /// The longest message that goes inside its work request, in bytes; 0: none does.
    pub fn inline(&self) -> usize {
        self.shared.lock().sends.inline()
    }

    /// Counts the hosts of the job; all processes call it.
    ///
    /// # Errors
    /// EIO: the launcher is gone.
    pub fn hosts(&self) -> Result<Hosts> {
        Hosts::count(&self.shared.job)
    }

    /// A buffer for a message of `len` bytes to `node`, the caller's to fill until [`send`](Context::send). There is
    /// one at a time.
    ///
    /// # Errors
    /// EINVAL: no such node, a length of 0 or above the MTU. ENOBUFS: none is free, too much is under way to that node,
    /// or it is not connected yet. EBUSY: one is out. EPIPE: the node is lost. EIO: the context is.
    #[inline]
    pub fn send_buffer(&self, node: u32, len: usize) -> Result<*mut u8> {
        self.shared.with(|engine| engine.send_buffer(node, len))
    }

    /// Sends the buffer that was taken. Messages to a node arrive in the order of these calls.
    ///
    /// # Errors
    /// EINVAL: none was taken. EPIPE: the node is lost. EIO: the device has refused it. The buffer is given back in any
    /// case.
    #[inline]
    pub fn send(&self) -> Result<()> {
        self.shared.with(Engine::send)
    }

    /// Checks that all messages that were sent are with their nodes, in receive buffers there.
    ///
    /// # Errors
    /// EBUSY: not yet. EIO: the context is lost.
    pub fn is_send_done(&self) -> Result<()> {
        self.shared.with(Engine::check_sent)
    }

    /// The next message, in its buffer: the caller's until [`release_receive_buffer`](Context::release_receive_buffer).
    ///
    /// # Errors
    /// ENOBUFS: none has come. EBUSY: the last one was not released. EPIPE: a node was lost, told once for each. EIO:
    /// the context was.
    #[inline]
    pub fn receive(&self) -> Result<Received> {
        self.shared.with(Engine::receive)
    }

    /// Gives the buffer of the last message back.
    ///
    /// # Errors
    /// EIO: nothing was received, or the device has failed.
    #[inline]
    pub fn release_receive_buffer(&self) -> Result<()> {
        self.shared.with(Engine::release_receive_buffer)
    }

    /// The sender of the message that was received last and not released.
    ///
    /// # Errors
    /// EIO: there is none.
    pub fn sender(&self) -> Result<u32> {
        self.shared.lock().sender()
    }

    /// Locks memory, so that `whom`, who has to be given the handle, reaches it. It may be locked more than once, for
    /// several nodes too. Devices know one key for all: it is the handle that keeps others out.
    ///
    /// # Safety
    /// The memory stays mapped until it is unlocked as often, and no request of this node's uses it any more. Nobody
    /// has a Rust reference into it.
    ///
    /// # Errors
    /// EINVAL: no such node; no such memory, of 1 byte to 4 GiB less a page. ENOSPC: the device can lock no more.
    pub unsafe fn lock(&self, whom: Whom, start: *mut c_void, len: usize) -> Result<AddrHandle> {
        self.shared.with(|engine| {
            check_whom(engine, whom)?;
            // SAFETY: the caller's promise.
            unsafe { engine.locks.lock(whom, start, len) }
        })
    }

    /// Takes a lock back. Once all of that memory are, handles to it have lost their meaning; where a request of this
    /// node's still uses it, that is put off until the request is over.
    ///
    /// # Errors
    /// EINVAL: no such node. ENOENT: it was not locked so. EIO: the device does not let go of it.
    pub fn unlock(&self, whom: Whom, start: *mut c_void, len: usize) -> Result<()> {
        self.shared.with(|engine| {
            check_whom(engine, whom)?;
            engine.locks.unlock(whom, start, len)
        })
    }

    /// Begins to copy `len` bytes between `remote`, of memory that `node` has locked, and `local`, of memory locked
    /// here. Writes, and reads, to a node begin in the order of these calls; nothing orders them with messages.
    ///
    /// # Errors
    /// EINVAL: no such node; a length of 0 or above 1 GiB; `local` is not of memory locked here, or not all of it.
    /// ENOBUFS: too many are under way, or the node is not connected yet. EPIPE: the node is lost, or has refused an
    /// earlier one.
    #[inline]
    pub fn copy(
        &self,
        direction: Direction,
        node: u32,
        remote: AddrHandle,
        local: AddrHandle,
        len: usize,
    ) -> Result<()> {
        self.shared.with(|engine| engine.copy(direction, node, remote, local, len))
    }

    /// Checks that all writes, or all reads, are over: the bytes are in their places.
    ///
    /// # Errors
    /// EBUSY: not yet. EFAULT, once: one has failed, for the memory is not locked at the node. EPIPE, once: one has
    /// failed with the connection. EIO: the context is lost.
    #[inline]
    pub fn is_copied(&self, direction: Direction) -> Result<()> {
        self.shared.with(|engine| engine.check_copied(direction))
    }

    /// Stops all sending: no message leaves, no write or read begins, until this is called with `true`. Requests that
    /// left before go on.
    ///
    /// # Errors
    /// EIO: the context is lost.
    pub fn control_send(&self, on: bool) -> Result<()> {
        let done = self.shared.with(|engine| engine.control_send(on));
        self.shared.kick();
        done
    }

    /// Stops all sending, and keeps messages that come in memory of its own, so that no sender waits for receives here,
    /// until [`control_send`](Context::control_send) lets sending go on.
    ///
    /// # Errors
    /// EIO: the context is lost.
    pub fn send_stable(&self) -> Result<()> {
        let done = self.shared.with(Engine::settle);
        self.shared.kick();
        done
    }

    /// Checks that no message, write or read of this node is in progress.
    ///
    /// # Errors
    /// EBUSY: some are. EINVAL: sending is not stopped. EIO: the context is lost.
    pub fn is_send_stable(&self) -> Result<()> {
        self.shared.with(Engine::check_settled)
    }

    /// Writes the context to a file, or reports why there is none, so that no node waits for this one: messages that
    /// were not received, the numbers of messages to each node, locks, and the owner. All nodes call it when their
    /// sending is stopped, and it stays so. Requests in progress are in the images too, if all devices can stand still;
    /// else it waits for them.
    ///
    /// # Errors
    /// EACCES: it is no regular file of this user with mode 0600. EINVAL: sending goes on. EBUSY: a buffer is out.
    /// EPIPE: a node is lost. ECANCELED: another node has failed. EIO; or what write(2) says. The context goes on in
    /// any case, and is still stopped.
    pub fn save(&self, file: Result<BorrowedFd<'_>>) -> Result<()> {
        save::save(&self.shared, &mut self.together().turn, file)
    }

    /// Makes the context what it was when a file was written; all nodes call it, with files of one save. Messages that
    /// have come or been sent since are forgotten. Memory that was locked then is locked by the same address and length
    /// now, by handles that become those of then. Sending is stopped after it.
    ///
    /// # Errors
    /// EACCES: as in [`save`](Context::save). EBADMSG: the file has no image, or it is damaged. EPROTONOSUPPORT: one of
    /// another version. EINVAL: one of another node or another kind of job, or memory is not locked. ESTALE: nodes have
    /// images of different saves. EBUSY: a buffer is out. EPIPE, ECANCELED, EIO: as in [`save`](Context::save). The
    /// context is then as it was.
    pub fn restore(&self, file: Result<BorrowedFd<'_>>) -> Result<()> {
        save::restore(&self.shared, &mut self.together().turn, file)
    }

    /// Makes a checkpoint in `directory`, or reports why there is none; all nodes call it. It stops, saves the context
    /// there, calls `program` with the checkpoint's number to save what the program has, and goes on once all nodes
    /// have. It replaces the one before.
    ///
    /// # Errors
    /// As [`save`](Context::save); what open(2) says of files in the directory.
    pub fn checkpoint(&self, directory: Result<&Path>, program: impl FnOnce(i32)) -> Result<()> {
        checkpoint::make(&self.shared, &mut self.together(), directory, program, || ())
    }

    /// Makes a checkpoint if the job's supervisor has asked for one, and returns true if it has; all nodes call it
    /// equally often, and make it at the same of their calls. `directory` and `program` are called only then; without a
    /// request the nodes exchange nothing.
    ///
    /// # Errors
    /// EINVAL: the nodes of another context were the first to call it. Otherwise as
    /// [`checkpoint`](Context::checkpoint).
    pub fn checkpoint_if_asked(
        &self,
        directory: impl FnOnce() -> Result<PathBuf>,
        program: impl FnOnce(i32),
    ) -> Result<bool> {
        asked::make(&self.shared, &mut self.together(), directory, program)
    }

    /// Makes the context what it was at the last checkpoint in `directory` that all nodes have ended, and goes on; all
    /// nodes call it. The number of the checkpoint.
    ///
    /// # Errors
    /// ENOENT: there is none. Otherwise as [`restore`](Context::restore).
    pub fn restart(&self, directory: Result<&Path>) -> Result<i32> {
        checkpoint::restart(&self.shared, &mut self.together(), directory)
    }

    /// The number of the last checkpoint that was made, or restarted from; None if there was none.
    pub fn last_checkpoint(&self) -> Option<i32> {
        self.together().checkpoints.last
    }

    fn together(&self) -> std::sync::MutexGuard<'_, Together> {
        self.together.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has [`fd`](Context::fd) become readable with the next thing that happens: a message, room for one, the end of a
    /// write.
    ///
    /// # Errors
    /// EBUSY: something has happened already, so that the caller looks rather than sleeps. EIO: the device has failed.
    pub fn before_select(&self) -> Result<()> {
        self.shared.before_select()
    }

    /// The descriptor to sleep on, with select(2), poll(2) or epoll(7). It may wake without news for the caller.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.shared.fd()
    }

    /// Takes what has made the descriptor readable, so that it is not until the next
    /// [`before_select`](Context::before_select).
    ///
    /// # Errors
    /// EIO: the device has failed.
    pub fn after_select(&self) -> Result<()> {
        self.shared.after_select()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, there is nobody to tell.
            let _ = thread.join();
        }
    }
}

fn check_whom(engine: &Engine, whom: Whom) -> Result<()> {
    match whom {
        Whom::Any => Ok(()),
        Whom::Node(node) if node < engine.nodes.size => Ok(()),
        Whom::Node(node) => {
            Err(Error::invalid(format!("there is no node {node}: the context has {}", engine.nodes.size)))
        }
    }
}

/// More bytes inline than any device takes that we know, Vervain's too, are not asked for: it counts as a mistake
/// there.
const MOST_INLINE: usize = 1024;

/// The mesh that these settings ask for.
fn options(settings: &Settings) -> vervain_mesh::Options {
    vervain_mesh::Options {
        connections: settings.connections,
        sends: QUEUE,
        notices: 1,
        commands: settings.receives() as u32,
        posted: Window::few(settings.receives() as u32),
        shared: settings.shared,
        command_bytes: settings.mtu,
        max_inline: settings.inline.min(settings.mtu).min(MOST_INLINE) as u32,
        own_door_cq: true,
        most_devices: 1,
        devices: settings.device.iter().cloned().collect(),
        ..Default::default()
    }
}
