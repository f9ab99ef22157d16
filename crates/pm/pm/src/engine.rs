//! The state of a context behind its lock: connections, buffers, requests in progress. None of its functions waits. The
//! program's calls move it on; so does the context's thread if a peer waits for this side of a connection.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use vervain_mesh::{Event, Link, Mesh};
use vervain_rdma::{Completion, Region, Status};

use crate::error::{Error, Result};
use crate::locks::Locks;
use crate::rdma::{Operation, Rdma};
use crate::receive::Message;
use crate::rest::{Counts, Rest};
use crate::send::{Out, Slot};
use crate::settings::Settings;
use crate::window::Window;

/// Requests in each of the two send queues of a connection.
pub(crate) const QUEUE: u32 = 64;
/// The only port of the mesh that a context has.
pub(crate) const PORT: usize = 0;
/// The color of all its connections.
pub(crate) const COLOR: u32 = 0;
/// In the ids of requests: it is a write or a read, with its number below; else a message, with its slot.
pub(crate) const RDMA: u64 = 1 << 62;
/// Completions that are taken by one call.
const BATCH: usize = 16;

/// A connection's side that the mesh does not know.
#[derive(Clone, Copy, Default)]
pub(crate) struct Connection {
    /// Messages, and writes and reads, that are with the device.
    pub messages: u32,
    pub operations: u32,
    /// Messages that were sent to the node by it, and those that have come from there.
    pub counts: Counts,
    /// A message, or a write or read, has failed: the device carries out no more of them.
    pub messages_broken: bool,
    pub operations_broken: bool,
}

pub(crate) struct Engine {
    pub mesh: Mesh,
    pub rank: u32,
    pub size: u32,
    pub mtu: usize,
    /// The longest message that goes inside its work request.
    pub inline: usize,
    /// By place in the mesh.
    pub connections: Vec<Connection>,
    /// Nodes that cannot be reached any more, and why.
    pub lost: HashMap<u32, Arc<str>>,
    /// Lost nodes that no receive has reported to the program yet.
    pub untold: VecDeque<u32>,

    /// Send buffers: slots of an MTU.
    pub buffers: Region,
    pub slots: Vec<Slot>,
    /// Those that are free; the one that was used last is the next, since it is in the cache.
    pub free: Vec<u32>,
    /// Messages that were given to the device.
    pub posted: u64,
    /// The buffer that the program fills.
    pub out: Option<Out>,

    /// Messages that have come, in order, and the one that the program has.
    pub queue: VecDeque<Message>,
    pub received: Option<Message>,
    pub window: Window,
    /// How often a receive has found nothing.
    pub idle: u32,

    pub locks: Locks,
    pub rdma: Rdma,
    /// How it stands still, and what was kept or brought back meanwhile.
    pub rest: Rest,

    /// Grows with whatever a program may wait for but messages. `seen`: what it was when the program was last told to
    /// look, by the end of a sleep or since there was something; not when it last found nothing, which may have been of
    /// something else.
    pub news: u64,
    pub seen: u64,
    /// The program has asked for events, and has not taken them.
    pub armed: bool,
    /// The context is being closed: what comes is given back.
    pub discarding: bool,
    /// The context cannot go on.
    pub failure: Option<Error>,
    /// When the mesh wants to be called again, as far as is known; connections have changed since the thread has looked
    /// at that.
    pub due: Option<Instant>,
    pub stirred: bool,
    /// The thread looks at messages and completions too, and when it wakes by itself.
    pub watching: bool,
    pub wakes_at: Option<Instant>,
    done: [Completion; BATCH],
}

impl Engine {
    /// An engine on an open mesh.
    pub fn new(mesh: Mesh, settings: &Settings) -> Result<Engine> {
        let port = &mesh.ports()[PORT];
        let sends = settings.sends();
        let buffers = port.pd.region(sends * settings.mtu, vervain_rdma::Access::LOCAL_WRITE)?;
        let inline = settings.inline.min(port.max_inline() as usize);
        let mut engine = Engine {
            rank: mesh.rank(),
            size: mesh.size(),
            mtu: settings.mtu,
            inline,
            connections: vec![Connection::default(); settings.connections],
            lost: HashMap::new(),
            untold: VecDeque::new(),
            buffers,
            slots: vec![Slot::default(); sends],
            free: (0..sends as u32).rev().collect(),
            posted: 0,
            out: None,
            queue: VecDeque::with_capacity(settings.receives()),
            received: None,
            window: Window::new(settings.receives() as u32, settings.shared),
            idle: 0,
            locks: Locks::new(port.pd.clone()),
            rdma: Rdma::default(),
            rest: Rest::default(),
            news: 0,
            seen: 0,
            armed: false,
            discarding: false,
            failure: None,
            due: None,
            stirred: false,
            watching: false,
            wakes_at: None,
            done: [Completion::default(); BATCH],
            mesh,
        };
        engine.arm_limit()?;
        Ok(engine)
    }

    /// The context cannot go on; the first reason counts.
    #[cold]
    pub fn fail(&mut self, error: Error) {
        self.news += 1;
        self.failure.get_or_insert(error);
    }

    /// # Errors
    /// The context cannot go on.
    #[inline]
    pub fn check(&self) -> Result<()> {
        self.failure.as_ref().map_or(Ok(()), |failure| Err(failure.clone()))
    }

    /// # Errors
    /// EINVAL: no such node. EPIPE: it was lost.
    #[inline]
    pub fn check_node(&self, node: u32) -> Result<()> {
        if node >= self.size {
            return Err(Error::invalid(format!("there is no node {node}: the context has {}", self.size)));
        }
        if self.lost.is_empty() { Ok(()) } else { self.check_lost(node) }
    }

    #[cold]
    fn check_lost(&self, node: u32) -> Result<()> {
        self.lost.get(&node).map_or(Ok(()), |why| Err(Error::new(libc::EPIPE, &**why)))
    }

    /// Requests that are with the device.
    #[inline]
    pub fn under_way(&self) -> bool {
        self.free.len() + usize::from(self.out.is_some()) < self.slots.len() || self.rdma.under_way()
    }

    /// The connection to a node; without one it is asked for, and there will be one.
    #[inline]
    pub fn connection(&mut self, node: u32) -> Option<Link> {
        self.mesh.find(node, COLOR).or_else(|| self.connect(node))
    }

    #[cold]
    fn connect(&mut self, node: u32) -> Option<Link> {
        self.mesh.want(node, COLOR);
        self.look_for_peers();
        // One that has just been made is used first: else it might be closed at once, for another one that is wanted.
        let found = self.mesh.find(node, COLOR);
        if found.is_none() {
            // Also where nothing has come: what was asked is to be asked again.
            self.progress(Instant::now());
            self.make_way();
        }
        found
    }

    /// Takes what has come out of its receives, where senders wait for one and connections wait for these senders: one
    /// closes when what was sent by it has come. A program that tries again until it is connected, or computes, may not
    /// receive meanwhile.
    pub fn make_way(&mut self) {
        while self.window.is_used_up(self.queue.len())
            && (self.mesh.is_draining() || self.rest.kept.len() < self.most_kept())
        {
            self.keep_messages();
            if !self.look_for_messages() {
                return;
            }
        }
    }

    /// The most messages that can be in progress at a time. A sender that goes on is to wait for the program, unless
    /// its connection closes.
    fn most_kept(&self) -> usize {
        self.connections.len() * (QUEUE as usize + self.window.all())
    }

    /// Looks at all that may have happened.
    pub fn look(&mut self) {
        self.look_for_messages();
        self.look_for_completions();
        self.look_for_peers();
    }

    /// Looks for messages; says whether some have come.
    #[inline]
    pub fn look_for_messages(&mut self) -> bool {
        let (queue, window, connections) = (&mut self.queue, &mut self.window, &mut self.connections);
        let found = self.mesh.poll_commands(PORT, |command, node| {
            window.taken();
            connections[command.link.index as usize].counts.received += 1;
            queue.push_back(Message { buffer: command.buffer, len: command.len, node });
        });
        match found {
            Ok(0) => false,
            Ok(_) => {
                if self.rest.keeps {
                    self.keep_messages();
                }
                self.attend();
                true
            }
            Err(error) => {
                self.fail(error.into());
                false
            }
        }
    }

    /// Looks for what has become of this node's requests; says whether there was something.
    #[inline]
    pub fn look_for_completions(&mut self) -> bool {
        let found = match self.mesh.ports()[PORT].data.poll(&mut self.done) {
            Ok(0) => return false,
            Ok(found) => found,
            Err(error) => {
                self.fail(error.into());
                return false;
            }
        };
        for i in 0..found {
            let completion = self.done[i];
            self.completed(&completion);
        }
        self.news += found as u64;
        self.attend();
        true
    }

    /// Answers peers that ask for connections, and goes on with those that are made or closed.
    pub fn look_for_peers(&mut self) -> bool {
        let found = match self.mesh.poll_door(PORT) {
            Ok(0) => return false,
            Ok(found) => found,
            Err(error) => {
                self.fail(error.into());
                return false;
            }
        };
        // An answer may have to be waited for.
        self.progress(Instant::now());
        found > 0
    }

    /// Has the mesh do what is due at once.
    #[inline]
    fn attend(&mut self) {
        if self.mesh.needs_owner() {
            self.progress(Instant::now());
        }
    }

    /// Has the mesh do what is due, and takes note of what has happened to connections.
    #[cold]
    pub fn progress(&mut self, now: Instant) {
        self.stirred = true;
        self.due = self.mesh.progress(now);
        while let Some(event) = self.mesh.next_event() {
            self.news += 1;
            match event {
                // The counts of its last life were taken away when that was closed; messages may have come by this one
                // already.
                Event::Opened(_) => {}
                Event::Closed { link, rank, .. } => {
                    let connection = std::mem::take(&mut self.connections[link.index as usize]);
                    self.rest.add_counts(rank, connection.counts);
                }
                Event::Failed { rank, error, .. } if rank == self.rank => self.fail(error.into()),
                Event::Failed { rank, error, .. } => self.lose(rank, &error.to_string()),
            }
        }
    }

    /// Returns true if something has happened that the program was not told of when it was to sleep.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.news != self.seen
    }

    /// Returns true if the thread has to be told of what a call of the program's has changed: it is to wake earlier, to
    /// look at what it does not look at, or to ask the launcher.
    #[inline]
    pub fn needs_thread(&mut self) -> bool {
        self.mesh.needs_owner() || (self.stirred && self.has_been_stirred())
    }

    #[cold]
    fn has_been_stirred(&mut self) -> bool {
        self.stirred = false;
        let is_earlier = self.due.is_some_and(|due| self.wakes_at.is_none_or(|wakes| due < wakes));
        is_earlier || (self.mesh.is_draining() && !self.watching)
    }

    /// A node cannot be reached any more.
    #[cold]
    pub fn lose(&mut self, node: u32, why: &str) {
        self.news += 1;
        if let Entry::Vacant(place) = self.lost.entry(node) {
            place.insert(format!("node {node} is lost: {why}").into());
            self.untold.push_back(node);
        }
    }

    #[inline]
    fn completed(&mut self, completion: &Completion) {
        // Peers send no notices; a completion of a receive for one means that its connection has ended.
        if Mesh::notice(completion).is_some() {
            return;
        }
        let number = (completion.id() & !RDMA) as u32;
        let is_message = completion.id() & RDMA == 0;
        let link = if is_message { self.message_over(number) } else { self.operation_over(number, completion) };
        if !completion.is_success() {
            self.request_failed(link, is_message, completion.status());
        }
        self.mesh.release(link);
    }

    /// A request has failed, and with it all that were posted behind it by the same lane. It is the end of the node,
    /// but where the node itself has refused a write or a read: that has no more of those.
    #[cold]
    fn request_failed(&mut self, link: Link, is_message: bool, status: Status) {
        let node = self.mesh.peer(link).0;
        let connection = &mut self.connections[link.index as usize];
        let broken = if is_message { &mut connection.messages_broken } else { &mut connection.operations_broken };
        if std::mem::replace(broken, true) || (!is_message && is_refusal(status)) {
            return;
        }
        // The counts of sent and received messages will never agree, so a close must not wait for that.
        self.mesh.hold(link);
        self.lose(node, &format!("a request failed: {status}"));
    }
}

/// Returns true if the node is there and does not allow what was asked.
pub(crate) fn is_refusal(status: Status) -> bool {
    matches!(status, Status::RemoteAccess | Status::RemoteInvalidRequest | Status::RemoteOperation)
}

/// The value in place of a connection in an unused slot or operation.
pub(crate) const NO_LINK: Link = Link { index: 0, life: 0 };

impl Default for Operation {
    fn default() -> Self {
        Operation::NONE
    }
}
