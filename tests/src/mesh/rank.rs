//! One rank: the mesh in its mutex, a thread that serves, and operations.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vervain_bootstrap::Job;
use vervain_mesh::{Command, Event, Link, Mesh, Options};
use vervain_rdma::{Access, CompChannel, Completion, Cq, Opcode, Region, RemoteMemory, SendRequest};

use super::Result;

/// Operations that are under way at once.
const AT_ONCE: usize = 4;
/// Far more than one of them takes.
const PATIENCE: Duration = Duration::from_secs(40);
/// Bytes of an operation's part of the memory, here and at peers.
const SLOT: usize = 64;

/// What was done.
#[derive(Debug, Default, Clone)]
pub struct Counts {
    pub done: u32,
    pub answered: u32,
    pub opened: u32,
    pub closed: u32,
    pub by_port: [u32; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Write,
    Read,
    /// A command that the peer answers by a notice.
    Ask,
    Asked,
    Answered,
}

#[derive(Debug, Clone, Copy)]
struct Operation {
    /// To whom, and by which color; for messages.
    _peer: (u32, u32),
    step: Step,
    value: u64,
    link: Option<Link>,
}

/// In the ids of answers; below it the place's index.
const ANSWER: u64 = 1 << 32;
/// In the ids of commands; below it the operation's slot.
const COMMAND: u64 = 1 << 33;

struct State {
    mesh: Mesh,
    /// At each port: what this rank works with, and what peers write to.
    own: Vec<Region>,
    _shared: Vec<Region>,
    operations: [Option<Operation>; AT_ONCE],
    waiting: HashMap<(u32, u32), Vec<usize>>,
    /// The links of answers under way, in the order of their posts for each place.
    answers: HashMap<u32, Vec<Link>>,
    left: u32,
    rng: fastrand::Rng,
    counts: Counts,
    failure: Option<String>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    stop: AtomicBool,
    queues: Vec<(Cq, CompChannel)>,
}

pub struct Rank {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Rank {
    pub fn open(job: &Job, rank: u32, epoch: u32, options: &Options, agreed: &[u8]) -> Result<Rank> {
        let mut mesh = Mesh::open(job, rank, epoch, options, agreed, Vec::new())?;
        let ranks = job.size() as usize;
        let region = |port: &vervain_mesh::Port| port.pd.region(ranks * AT_ONCE * SLOT, Access::REMOTE);
        let own = mesh.ports().iter().map(region).collect::<vervain_rdma::Result<Vec<_>>>()?;
        let shared = mesh.ports().iter().map(region).collect::<vervain_rdma::Result<Vec<_>>>()?;
        let hello = shared.iter().flat_map(|region| {
            let remote = region.remote();
            [remote.addr.to_le_bytes(), u64::from(remote.rkey).to_le_bytes()].concat()
        });
        mesh.set_hello(hello.collect());
        let queues = mesh.ports().iter().flat_map(|port| {
            [(port.service.clone(), port.service_channel.clone()), (port.data.clone(), port.data_channel.clone())]
        });
        let queues = queues.collect();
        let state = State {
            mesh,
            own,
            _shared: shared,
            operations: [None; AT_ONCE],
            waiting: HashMap::new(),
            answers: HashMap::new(),
            left: 0,
            rng: fastrand::Rng::with_seed(u64::from(rank) + 100 * u64::from(epoch)),
            counts: Counts::default(),
            failure: None,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
            queues,
        });
        let of_thread = shared.clone();
        let thread = Some(std::thread::spawn(move || of_thread.serve()));
        let opened = Rank { shared, thread };
        job.fence()?;
        let introduction = Mesh::find_leader(job, rank, epoch)?;
        opened.shared.lock().mesh.introduce(introduction)?;
        opened.until(|state| state.mesh.registered())?;
        Ok(opened)
    }

    /// Does as many operations with random peers.
    pub fn work(&self, operations: u32) -> Result<()> {
        let mut state = self.shared.lock();
        state.left = operations;
        (0..AT_ONCE).for_each(|slot| state.next(slot));
        drop(state);
        self.until(|state| state.counts.done == operations)
    }

    fn until(&self, ready: impl Fn(&State) -> bool) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        let mut state = self.shared.lock();
        loop {
            if let Some(failure) = &state.failure {
                return Err(failure.clone().into());
            }
            if ready(&state) {
                return Ok(());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!("nothing more happens: {:?}, {:?}", state.counts, state.operations).into());
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub fn close(mut self) -> Result<Counts> {
        self.stop();
        let state = self.shared.lock();
        state.failure.clone().map_or_else(|| Ok(state.counts.clone()), |failure| Err(failure.into()))
    }

    fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        while !self.stop.load(Ordering::Acquire) {
            self.queues.iter().for_each(|(cq, _)| cq.request_notify(false).expect("armed"));
            let mut state = self.lock();
            let turn = state.turn();
            if let Err(error) = turn {
                state.failure.get_or_insert(error.to_string());
            }
            let due = state.mesh.progress(Instant::now());
            let wanted = state.mesh.wanted_leader();
            assert_eq!(wanted, None, "so few ranks are one block");
            let is_busy = state.mesh.is_due();
            drop(state);
            self.changed.notify_all();
            // A wish of the other thread may have brought an earlier deadline.
            let longest = if is_busy { Duration::ZERO } else { Duration::from_millis(5) };
            let wait = due.map_or(longest, |due| due.saturating_duration_since(Instant::now()).min(longest));
            let timeout = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
            let mut fds: Vec<_> =
                self.queues.iter().map(|(_, channel)| PollFd::from_borrowed_fd(channel.fd(), PollFlags::IN)).collect();
            let _ = poll(&mut fds, Some(&timeout));
            for (cq, channel) in &self.queues {
                while let Some(event) = channel.next_event().expect("events") {
                    event.acknowledge_later(cq);
                }
            }
        }
    }
}

/// The command: who asks, in which of its slots, and a value.
fn command_bytes(rank: u32, slot: usize, value: u64) -> [u8; SLOT] {
    let mut bytes = [0; SLOT];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = (value as usize + i * 7) as u8;
    }
    bytes[..4].copy_from_slice(&rank.to_le_bytes());
    bytes[4..8].copy_from_slice(&(slot as u32).to_le_bytes());
    bytes[8..16].copy_from_slice(&value.to_le_bytes());
    bytes
}

/// What the peer answers to a value.
fn answer_to(value: u64, slot: usize) -> u32 {
    ((value as u32).wrapping_mul(31) & !0xf) | slot as u32
}

impl State {
    /// Takes in all that has come, and goes on.
    fn turn(&mut self) -> Result<()> {
        for port in 0..self.mesh.ports().len() {
            let mut commands = Vec::new();
            while self.mesh.poll_service(port, &mut commands)? > 0 {}
            for command in commands {
                self.mesh.received(command.link);
                self.answer(&command)?;
            }
            let mut done = [Completion::default(); 8];
            loop {
                let found = self.mesh.ports()[port].data.poll(&mut done)?;
                if found == 0 {
                    break;
                }
                done[..found].iter().try_for_each(|completion| self.completed(completion))?;
            }
        }
        loop {
            self.mesh.progress(Instant::now());
            while let Some(event) = self.mesh.next_event() {
                self.event(event)?;
            }
            if !self.mesh.is_due() {
                return Ok(());
            }
        }
    }

    fn event(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Opened(link) => {
                self.counts.opened += 1;
                let waiting = self.waiting.remove(&self.mesh.peer(link)).unwrap_or_default();
                waiting.into_iter().try_for_each(|slot| self.begin(slot, link))
            }
            Event::Closed { .. } => {
                self.counts.closed += 1;
                Ok(())
            }
            Event::Failed { error, .. } => Err(error.into()),
        }
    }

    /// The slot's next operation.
    fn next(&mut self, slot: usize) {
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        let (rank, color) = (self.rng.u32(0..self.mesh.size()), self.rng.u32(0..self.mesh.colors()));
        let step = if self.rng.bool() { Step::Write } else { Step::Ask };
        let value = self.rng.u64(..);
        self.operations[slot] = Some(Operation { _peer: (rank, color), step, value, link: None });
        match self.mesh.find(rank, color) {
            Some(link) => {
                if let Err(error) = self.begin(slot, link) {
                    self.failure.get_or_insert(error.to_string());
                }
            }
            None => {
                self.waiting.entry((rank, color)).or_default().push(slot);
                self.mesh.want(rank, color);
            }
        }
    }

    fn begin(&mut self, slot: usize, link: Link) -> Result<()> {
        self.mesh.hold(link);
        let port = self.mesh.port_of(link);
        self.counts.by_port[port] += 1;
        let operation = self.operations[slot].as_mut().expect("under way");
        operation.link = Some(link);
        let (step, value) = (operation.step, operation.value);
        let own = &self.own[port];
        let start = slot * SLOT;
        match step {
            Step::Write => {
                own.store(start, value);
                let there = self.place_at_peer(link, slot);
                let sges = [own.slice(start..start + 8)];
                self.mesh.data(link).post(SendRequest::write(&sges, there).id(slot as u64).signaled())?;
            }
            Step::Ask => {
                own.write(start, &command_bytes(self.mesh.rank(), slot, value));
                let sges = [own.slice(start..start + SLOT)];
                self.mesh.commands(link).post(SendRequest::send(&sges).id(COMMAND | slot as u64).signaled())?;
                self.mesh.sent(link);
                // The answer is waited for, and so is the completion.
                self.mesh.hold(link);
            }
            Step::Read | Step::Asked | Step::Answered => unreachable!("an operation does not begin so"),
        }
        Ok(())
    }

    /// Where this rank's slot is in the memory of the peer.
    fn place_at_peer(&self, link: Link, slot: usize) -> vervain_rdma::RemoteAddr {
        let (_, color) = self.mesh.peer(link);
        let (parts, _) = self.mesh.hello(link).as_chunks::<16>();
        let part = parts[(color as usize).min(parts.len() - 1)];
        let word = |at: usize| u64::from_le_bytes(part[at..at + 8].try_into().expect("8 bytes"));
        let memory = RemoteMemory { addr: word(0), rkey: word(8) as u32, len: 0 };
        memory.at(((self.mesh.rank() as usize * AT_ONCE + slot) * SLOT) as u64)
    }

    fn answer(&mut self, command: &Command) -> Result<()> {
        let mut bytes = [0; SLOT];
        let length = self.mesh.read_command(command, &mut bytes);
        self.mesh.repost_command(command)?;
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let value = u64::from_le_bytes(bytes[8..16].try_into().expect("8 bytes"));
        let (from, slot) = (word(0), word(4) as usize);
        assert_eq!((length, bytes), (SLOT, command_bytes(from, slot, value)), "a command arrives as it was sent");
        assert_eq!(self.mesh.peer(command.link).0, from);
        self.mesh.hold(command.link);
        let request = SendRequest::send_imm(&[], answer_to(value, slot)).id(ANSWER | u64::from(command.link.index));
        self.mesh.data(command.link).post(request.signaled())?;
        self.mesh.sent(command.link);
        self.answers.entry(command.link.index).or_default().push(command.link);
        Ok(())
    }

    fn completed(&mut self, completion: &Completion) -> Result<()> {
        if !completion.is_success() {
            return Err(format!("a request failed: {}", completion.status()).into());
        }
        if let Some((link, immediate)) = Mesh::notice(completion) {
            self.mesh.received(link);
            self.mesh.repost_notice(link)?;
            return self.answered(link, immediate);
        }
        let id = completion.id();
        if id & ANSWER != 0 {
            let link = self.answers.get_mut(&(id as u32)).expect("counted").remove(0);
            self.mesh.release(link);
            self.counts.answered += 1;
            return Ok(());
        }
        let slot = (id & !COMMAND) as usize;
        let operation = self.operations[slot].as_mut().expect("under way");
        let link = operation.link.expect("begun");
        match operation.step {
            Step::Write => {
                operation.step = Step::Read;
                let own = &self.own[self.mesh.port_of(link)];
                let sges = [own.slice(slot * SLOT + 8..slot * SLOT + 16)];
                let read = SendRequest::read(&sges, self.place_at_peer(link, slot)).id(id).signaled();
                self.mesh.data(link).post(read)?;
            }
            Step::Read => {
                assert_eq!(completion.opcode(), Opcode::Read);
                let brought = self.own[self.mesh.port_of(link)].load(slot * SLOT + 8);
                assert_eq!(brought, operation.value, "what was written is read");
                self.over(slot, link);
            }
            Step::Ask => {
                operation.step = Step::Asked;
                self.mesh.release(link);
            }
            Step::Answered => {
                self.mesh.release(link);
                self.over(slot, link);
            }
            Step::Asked => return Err("a command completes twice".into()),
        }
        Ok(())
    }

    fn answered(&mut self, link: Link, immediate: u32) -> Result<()> {
        let slot = (immediate & 0xf) as usize;
        let operation = self.operations.get_mut(slot).and_then(Option::as_mut).ok_or("an answer to nobody")?;
        assert_eq!((operation.link, immediate), (Some(link), answer_to(operation.value, slot)));
        match operation.step {
            Step::Asked => self.over(slot, link),
            // The answer is there before the completion.
            Step::Ask => operation.step = Step::Answered,
            _ => return Err("an answer to no question".into()),
        }
        Ok(())
    }

    fn over(&mut self, slot: usize, link: Link) {
        self.mesh.release(link);
        self.operations[slot] = None;
        self.counts.done += 1;
        self.next(slot);
    }
}
