//! The state that threads of the program and the context's own thread share: the engine behind its lock, and
//! descriptors. A program that sleeps does so on one descriptor, which stands for the queues of messages and of
//! completions, and for events that the thread finds.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, epoll, eventfd};
use vervain_bootstrap::Job;
use vervain_rdma::{CompChannel, Context, Cq, EventKind};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::lock::{Guard, Lock};
use crate::nodes::PORT;

const SOMETHING: Error = Error::plain(libc::EBUSY, "something has come");

/// A CQ and where its events arrive.
pub(crate) struct Events {
    pub cq: Cq,
    pub channel: CompChannel,
}

impl Events {
    /// Asks for an event when the next completion comes.
    pub fn arm(&self) -> Result<()> {
        Ok(self.cq.request_notify(false)?)
    }

    /// Takes the events that there are, and says whether there were any.
    pub fn take(&self) -> Result<bool> {
        let mut any = false;
        while let Some(event) = self.channel.next_event()? {
            event.acknowledge_later(&self.cq);
            any = true;
        }
        Ok(any)
    }
}

pub(crate) struct Shared {
    engine: Lock<Engine>,
    pub stop: AtomicBool,
    /// Wakes the thread.
    kick: OwnedFd,
    /// Wakes a program that sleeps.
    ready: OwnedFd,
    /// The descriptor that a program sleeps on.
    program: OwnedFd,
    pub messages: Events,
    pub completions: Events,
    pub door: Events,
    /// The open device, whose events tell that few receives are left.
    pub device: Context,
    pub job: Arc<Job>,
    pub epoch: u32,
}

impl Shared {
    pub fn new(engine: Engine, job: Arc<Job>, epoch: u32) -> Result<Shared> {
        let no_descriptor = |error| Error::new(libc::ENOMEM, format!("no descriptor for events: {error}"));
        let new_event = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(no_descriptor);
        let port = &engine.nodes.mesh.ports()[PORT];
        let messages = Events { cq: port.service.clone(), channel: port.service_channel.clone() };
        let completions = Events { cq: port.data.clone(), channel: port.data_channel.clone() };
        let door = Events { cq: port.door_cq.clone(), channel: port.door_channel.clone() };
        let (kick, ready) = (new_event()?, new_event()?);
        let program = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(no_descriptor)?;
        for fd in [messages.channel.fd(), completions.channel.fd(), ready.as_fd()] {
            epoll::add(&program, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN).map_err(no_descriptor)?;
        }
        let device = port.context.clone();
        device.set_async_nonblocking(true)?;
        let engine = Lock::new(engine);
        let stop = AtomicBool::new(false);
        Ok(Shared { engine, stop, kick, ready, program, messages, completions, door, device, job, epoch })
    }

    #[inline]
    pub fn lock(&self) -> Guard<'_, Engine> {
        self.engine.lock()
    }

    /// A call of the program's.
    #[inline]
    pub fn with<T>(&self, f: impl FnOnce(&mut Engine) -> T) -> T {
        let mut engine = self.lock();
        let result = f(&mut engine);
        let kick = engine.nodes.needs_thread();
        // Another thread of the program's may sleep until this.
        let wake = engine.nodes.news.armed && engine.nodes.news.is_any();
        drop(engine);
        if kick {
            self.kick();
        }
        if wake {
            self.wake();
        }
        result
    }

    /// Has the thread look at what there is to do.
    #[cold]
    pub fn kick(&self) {
        let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
    }

    /// Readable when the thread was kicked.
    pub fn kicked(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    /// Takes the kicks.
    pub fn take_kicks(&self) {
        clear(self.kick.as_fd());
    }

    /// Wakes a program that sleeps.
    pub fn wake(&self) {
        let _ = rustix::io::write(&self.ready, &1u64.to_ne_bytes());
    }

    /// The descriptor for select(2) and poll(2): readable when something has happened.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// Prepares for a sleep on [`fd`](Shared::fd).
    pub fn before_select(&self) -> Result<()> {
        self.with(|engine| self.prepare(engine))
    }

    fn prepare(&self, engine: &mut Engine) -> Result<()> {
        self.forget_events(engine)?;
        engine.look();
        self.check_news(engine)?;
        engine.nodes.news.armed = true;
        self.messages.arm()?;
        if engine.under_way() {
            self.completions.arm()?;
        }
        // Completions that came before the arming may have no event of their own.
        engine.look_for_messages();
        engine.look_for_completions();
        self.check_news(engine)
    }

    /// EBUSY where there is something that the program has not seen.
    fn check_news(&self, engine: &mut Engine) -> Result<()> {
        let Engine { nodes, inbox, .. } = engine;
        let waits = inbox.has_messages() || nodes.has_untold() || nodes.has_failed();
        if waits || nodes.news.is_any() {
            nodes.news.see();
            return Err(SOMETHING);
        }
        Ok(())
    }

    /// Ends what [`before_select`](Shared::before_select) has begun.
    pub fn after_select(&self) -> Result<()> {
        let mut engine = self.lock();
        if engine.nodes.news.armed {
            engine.nodes.news.see();
        }
        self.forget_events(&mut engine)
    }

    fn forget_events(&self, engine: &mut Engine) -> Result<()> {
        if std::mem::take(&mut engine.nodes.news.armed) {
            self.messages.take()?;
            self.completions.take()?;
            clear(self.ready.as_fd());
        }
        Ok(())
    }

    /// Takes the device's events, and says whether few receives are left.
    pub fn few_receives_left(&self) -> Result<bool> {
        let mut any = false;
        while let Some(event) = self.device.next_async_event()? {
            any |= event.kind == EventKind::SrqLimit;
        }
        Ok(any)
    }

    /// Stops the thread, once it is awake.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.kick();
    }
}

fn clear(event: BorrowedFd<'_>) {
    let _ = rustix::io::read(event, &mut [0u8; 8]);
}
