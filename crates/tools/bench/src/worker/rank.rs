//! A worker that is a rank of a job: of ACP, of PM, or of an MPI. Its launcher has started it, and it finds the
//! coordinator by a name.
//!
//! Rank 0 measures. The ping-pong is that of the Intel MPI Benchmarks (IMB-MPI1 PingPong): a barrier, some iterations
//! before those that count, half the time of a round trip, from one buffer into another. ACP's other ranks wait for
//! orders in a system call and have no part in a copy. PM's ping-pong is like that of an MPI; its bandwidth is that of
//! operations one after the other until all are done, which of messages the other rank says.

use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use vervain_acp::{GlobalAddress, Order as Begin, Settings, World};
use vervain_mpi::{Flavour, Mpi};
use vervain_pm::Direction;

use super::FOREVER;
use super::clock::{Clock, Ticks};
use super::jacobi::{Block, Problem};
use super::node::Node;
use super::pair::going_round;
use super::segments::Course;
use crate::case::{Case, Grid, Interface, Operation};
use crate::control::{Control, Silence};
use crate::protocol::{Answer, Ends, Joined, Measured, Order, Side, Spec, VERSION};
use crate::stats::Recorder;
use crate::{machine, topology};

/// Iterations between two looks at the clock, which takes as long as a tenth of a small message.
const BATCH: u64 = 20;
/// From this size on each iteration is looked at: it takes a hundred times as long as the look.
const ONE_BY_ONE: u64 = 64 << 10;
/// Operations of one byte by which a rank wakes up: it has slept since its last case, where those of a benchmark that
/// goes through all sizes come from the one before.
const WAKING: u64 = 1000;
/// A rank whose coordinator is gone leaves its job, which takes all ranks. If they do not come, it ends all the same.
const LEAVING: Duration = Duration::from_secs(20);
/// Buffers begin on a page, as starter memory does.
const PAGE: usize = 4096;

/// Joins the job that this process was started in, connects to the coordinator at `name` of the abstract namespace, and
/// does what is ordered until it hangs up; then leaves the job.
///
/// # Errors
/// There is no coordinator of that name; the job cannot be left.
pub fn join(name: &str, interface: Interface) -> Result<()> {
    // After any end of the process that started this one, this one ends too.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let address = SocketAddr::from_abstract_name(name)?;
    let socket = UnixStream::connect_addr(&address).context("the coordinator is gone")?;
    let mut control = Control::<Order>::new(OwnedFd::from(socket), |order| {
        if order.is_none() {
            thread::spawn(|| {
                thread::sleep(LEAVING);
                std::process::exit(1);
            });
        }
        false
    })?;
    let member = match Member::join(interface) {
        Ok(member) => member,
        Err(error) => {
            control.send(&Answer::Failed(format!("{error:#}")))?;
            return Err(error);
        }
    };
    let (rank, ranks) = member.place();
    control.send(&Answer::Joined(Joined { version: VERSION, rank, ranks }))?;
    let mut rank = Rank { member, clock: Clock::new(), case: None, buffers: Buffers::default(), block: None };
    loop {
        let order = match control.receive(FOREVER) {
            Ok(order) => order,
            Err(Silence::Late) => continue,
            Err(Silence::Gone(_)) => return rank.member.leave(),
        };
        if matches!(order, Order::Stop) {
            // Its operation ends by itself.
            continue;
        }
        let is_measured = matches!(order, Order::Start { .. });
        match rank.carry_out(order, &mut control) {
            Ok(answer) => control.send(&answer)?,
            Err(error) => {
                rank.case = None;
                control.send(&Answer::Failed(format!("{error:#}")))?;
                // Requests in progress between nodes of PM would be taken for the next case's: the nodes end, and
                // others are started.
                if is_measured && matches!(rank.member, Member::Pm(_)) {
                    return Err(error);
                }
            }
        }
    }
}

/// The job from inside.
enum Member {
    Acp(World),
    Pm(Node),
    Mpi(Mpi),
}

impl Member {
    fn join(interface: Interface) -> Result<Self> {
        let flavour = match interface {
            Interface::Verbs | Interface::Window => bail!("a job has ranks of ACP, of PM or of an MPI"),
            Interface::Acp => return Ok(Self::Acp(World::init(&Settings::from_environment()?)?)),
            Interface::Pm => return Ok(Self::Pm(Node::join()?)),
            Interface::OpenMpi | Interface::OpenMpiOwn => Flavour::OpenMpi,
            Interface::Mpich | Interface::MpichOwn => Flavour::Mpich,
        };
        Ok(Self::Mpi(Mpi::init(flavour)?))
    }

    /// The rank's number, and how many there are.
    fn place(&self) -> (u32, u32) {
        match self {
            Self::Acp(world) => (world.rank(), world.size()),
            Self::Pm(node) => node.place(),
            Self::Mpi(mpi) => (mpi.rank(), mpi.ranks()),
        }
    }

    fn leave(self) -> Result<()> {
        match self {
            Self::Acp(world) => Ok(world.finalize()?),
            Self::Pm(node) => node.leave(),
            Self::Mpi(mpi) => Ok(mpi.finalize()?),
        }
    }
}

struct Rank {
    member: Member,
    clock: Clock,
    case: Option<Spec>,
    buffers: Buffers,
    /// This rank's part of a Jacobi kernel; none where there are more ranks than blocks.
    block: Option<Block>,
}

/// The memory of MPI's messages; none for ACP, which has starter memory, and for PM, whose node has its own. Kept from
/// case to case, since touching hundreds of MiB takes longer than a measurement, as far as the host has memory.
#[derive(Default)]
struct Buffers {
    outgoing: Buffer,
    incoming: Buffer,
}

impl Buffers {
    /// Buffers of at least so many bytes each.
    fn provide(&mut self, len: usize) {
        if self.outgoing.len < len {
            // The old ones first: there may not be room for both.
            *self = Self::default();
            *self = Self { outgoing: Buffer::new(len), incoming: Buffer::new(len) };
        }
    }

    /// Gives them back if they are more than a rank may keep.
    fn keep(&mut self, most: usize) {
        if self.outgoing.len + self.incoming.len > most {
            *self = Self::default();
        }
    }
}

/// The part of the host's memory that a rank may keep: eight ranks of four jobs keep a quarter at most.
const SHARE_KEPT: u64 = 32;

/// Bytes from a page's first one on.
#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    skip: usize,
    len: usize,
}

impl Buffer {
    fn new(len: usize) -> Self {
        // Touched, so that no page is made while it is measured.
        let bytes = vec![1; len + PAGE];
        let skip = bytes.as_ptr().align_offset(PAGE);
        Self { bytes, skip, len }
    }

    fn get(&self, len: usize) -> &[u8] {
        &self.bytes[self.skip..self.skip + len]
    }

    fn get_mut(&mut self, len: usize) -> &mut [u8] {
        &mut self.bytes[self.skip..self.skip + len]
    }
}

impl Rank {
    fn carry_out(&mut self, order: Order, control: &mut Control<Order>) -> Result<Answer> {
        match order {
            Order::Settle { cpu, .. } => {
                if let Some(cpu) = cpu {
                    topology::pin(cpu)?;
                }
                Ok(Answer::Settled { gpu: None })
            }
            Order::Prepare(spec) => {
                self.case = None;
                self.prepare(spec)?;
                Ok(Answer::Prepared(Ends::Qps(vec![])))
            }
            Order::Connect(_) => Ok(Answer::Done),
            Order::Start { iterations } => {
                if matches!(self.case, Some(Spec { side: Side::Responder, .. })) {
                    control.send(&Answer::Listening)?;
                }
                self.start(iterations)
            }
            Order::Release(number) => {
                (self.case, self.block) = (None, None);
                let most = (machine::memory() / SHARE_KEPT) as usize;
                self.buffers.keep(most);
                if let Member::Pm(node) = &mut self.member {
                    node.keep(most)?;
                }
                Ok(Answer::Released(number))
            }
            Order::Open { .. } | Order::Raw { .. } | Order::Stop => bail!("no order for a rank of a job"),
        }
    }

    fn prepare(&mut self, spec: Spec) -> Result<()> {
        let Case { operation, interface, size, .. } = spec.case;
        ensure!(Operation::of(interface).contains(&operation), "{operation} is no operation of {}", interface.name());
        if operation.is_jacobi() {
            let problem = Problem::of(size).context("no such problem")?;
            let Grid(i, j) = spec.case.grid.context("no grid of ranks")?;
            let rank = self.member.place().0 as usize;
            self.block = Block::new(problem, [i.into(), j.into()], rank);
            ensure!(rank > 0 || self.block.is_some(), "a block without cells");
        } else if matches!(self.member, Member::Mpi(_)) {
            self.buffers.provide(usize::try_from(size)?.max(1));
        } else if let Member::Pm(node) = &mut self.member {
            match direction(operation) {
                Some(_) => node.provide(usize::try_from(size)?)?,
                None => {
                    ensure!(size <= node.mtu(), "a message of {size} bytes, of which PM has {} at most", node.mtu())
                }
            }
        }
        self.case = Some(spec);
        Ok(())
    }

    fn start(&mut self, iterations: u64) -> Result<Answer> {
        let spec = self.case.context("no case is prepared")?;
        let measure = Timed { iterations, warm_up: spec.warm_up, size: spec.case.size, clock: &self.clock };
        match (&self.member, spec.side) {
            (Member::Mpi(mpi), side) if spec.case.operation.is_jacobi() => {
                mpi.barrier()?;
                let Some(block) = &mut self.block else { return Ok(Answer::Served { received: 0 }) };
                let is_alone = spec.case.grid.is_none_or(|grid| grid.ranks() == 1);
                let measured = measure.steps(spec.case.operation, || step(mpi, block, is_alone, &self.clock))?;
                match side {
                    Side::Requester => Ok(Answer::Run(measured)),
                    Side::Responder => Ok(Answer::Served { received: iterations }),
                }
            }
            (Member::Acp(_), Side::Responder) => Ok(Answer::Served { received: 0 }),
            (Member::Acp(world), Side::Requester) => {
                let (to, from) = ends(world, spec.case.operation)?;
                measure.run(1, |len| Ok(world.complete(world.copy(to, from, len, Begin::Now)?)?))
            }
            (Member::Pm(node), side) => match (spec.case.operation, side) {
                (Operation::Send, side) => measure.messages(node, side),
                (Operation::PingPong, Side::Requester) => measure.run(2, |len| {
                    node.send(len)?;
                    node.receive(len)
                }),
                (Operation::PingPong, Side::Responder) => {
                    for len in measure.lengths() {
                        node.receive(len)?;
                        node.send(len)?;
                    }
                    Ok(Answer::Served { received: iterations })
                }
                (_, Side::Responder) => {
                    node.send_handle()?;
                    Ok(Answer::Served { received: 0 })
                }
                (operation, Side::Requester) => {
                    let direction = direction(operation).context("no operation of PM")?;
                    let remote = node.receive_handle()?;
                    let (stride, round) = going_round(&spec.case);
                    let once = |n: u64, len| node.copy(direction, remote, (n & round) as usize * stride, len);
                    measure.stream(once, || node.finish(direction))
                }
            },
            (Member::Mpi(mpi), side) => {
                let len = (spec.case.size as usize).max(1);
                let (outgoing, incoming) = (self.buffers.outgoing.get(len), self.buffers.incoming.get_mut(len));
                mpi.barrier()?;
                if side == Side::Responder {
                    for len in measure.lengths() {
                        mpi.receive(&mut incoming[..len], 0)?;
                        mpi.send(&outgoing[..len], 0)?;
                    }
                    return Ok(Answer::Served { received: iterations });
                }
                measure.run(2, |len| {
                    mpi.send(&outgoing[..len], 1)?;
                    Ok(mpi.receive(&mut incoming[..len], 1)?)
                })
            }
        }
    }
}

/// Destination and source of a copy that rank 0 issues.
fn ends(world: &World, operation: Operation) -> Result<(GlobalAddress, GlobalAddress)> {
    let starter = |rank| world.starter(rank).with_context(|| format!("there is no rank {rank}"));
    match operation {
        Operation::Put => Ok((starter(1)?, starter(0)?)),
        Operation::Get => Ok((starter(0)?, starter(1)?)),
        Operation::Copy => Ok((starter(2)?, starter(1)?)),
        other => bail!("{other} is no operation of ACP"),
    }
}

/// The direction of PM's copy; None for messages.
fn direction(operation: Operation) -> Option<Direction> {
    match operation {
        Operation::Write => Some(Direction::Write),
        Operation::Read => Some(Direction::Read),
        _ => None,
    }
}

/// A step of the Jacobi kernel: when it began, when the halos were there, when it was calculated, when all ranks knew
/// the sum.
fn step(mpi: &Mpi, block: &mut Block, is_alone: bool, clock: &Clock) -> Result<[Ticks; 4]> {
    let begun = clock.now();
    block.exchange(|with, outgoing, incoming| Ok(mpi.exchange(outgoing, incoming, with)?))?;
    let exchanged = clock.now();
    let left = block.step();
    let calculated = clock.now();
    let left = if is_alone { left } else { mpi.sum(left)? };
    ensure!(left.is_finite(), "the calculation has left its numbers: {left}");
    Ok([begun, exchanged, calculated, clock.now()])
}

/// How an operation is measured.
struct Timed<'a> {
    iterations: u64,
    warm_up: u64,
    size: u64,
    clock: &'a Clock,
}

impl Timed<'_> {
    /// The lengths of all messages of a start, in order: those that wake, those before, those that count.
    fn lengths(&self) -> impl Iterator<Item = usize> {
        let whole = self.size as usize;
        (0..WAKING).map(|_| 1).chain((0..self.warm_up + self.iterations).map(move |_| whole))
    }

    /// Calls `once` with each of [`lengths`](Self::lengths). A value is an iteration's time by `halved`: the mean of a
    /// batch.
    fn run(&self, halved: u64, mut once: impl FnMut(usize) -> Result<()>) -> Result<Answer> {
        let size = self.size as usize;
        let batch = if self.size < ONE_BY_ONE { BATCH } else { 1 };
        let mut ends = vec![(1, 1); self.iterations.div_ceil(batch) as usize];
        // Touched, so that no page is made while it is measured.
        ends.clear();
        for len in self.before() {
            once(len)?;
        }
        let mut course = Course::begin(self.iterations, self.clock);
        let mut last = course.began();
        let mut made = 0;
        while made < self.iterations {
            let count = batch.min(self.iterations - made);
            for _ in 0..count {
                once(size)?;
            }
            made += count;
            let now = self.clock.now();
            ends.push((count, now));
            course.mark(made, now);
        }
        let mut recorder = Recorder::new();
        for (count, end) in ends {
            recorder.record(self.clock.picoseconds(last, end) / (count * halved));
            last = end;
        }
        let measured: Measured = course.end(made, recorder.into_buckets());
        Ok(Answer::Run(measured))
    }

    /// The lengths of all messages before those that count.
    fn before(&self) -> impl Iterator<Item = usize> {
        self.lengths().take((WAKING + self.warm_up) as usize)
    }

    /// Messages of PM: both ends, of which the other one says by a byte that it has received all, those before and
    /// those that count.
    fn messages(&self, node: &Node, side: Side) -> Result<Answer> {
        if side == Side::Requester {
            return self.stream(|_, len| node.send(len), || node.receive(1));
        }
        for len in self.before() {
            node.receive(len)?;
        }
        node.send(1)?;
        for _ in 0..self.iterations {
            node.receive(self.size as usize)?;
        }
        node.send(1)?;
        Ok(Answer::Served { received: self.iterations })
    }

    /// Calls `once` with the number and the length of each operation, which it begins, and `finish` where all must be
    /// done: once before the measurement, and at its end. PM reports only that all operations are done, so a run is one
    /// part.
    fn stream(
        &self,
        mut once: impl FnMut(u64, usize) -> Result<()>,
        mut finish: impl FnMut() -> Result<()>,
    ) -> Result<Answer> {
        for (n, len) in (0..).zip(self.before()) {
            once(n, len)?;
        }
        finish()?;
        let mut course = Course::begin(self.iterations, self.clock);
        for n in 0..self.iterations {
            once(n, self.size as usize)?;
        }
        finish()?;
        course.mark(self.iterations, self.clock.now());
        Ok(Answer::Run(course.end(self.iterations, vec![])))
    }

    /// Steps of a Jacobi kernel, of each of which that part is recorded which `operation` is.
    fn steps(&self, operation: Operation, mut once: impl FnMut() -> Result<[Ticks; 4]>) -> Result<Measured> {
        let (from, to) = match operation {
            Operation::JacobiExchange => (0, 1),
            Operation::JacobiCalculation => (1, 2),
            Operation::JacobiAllreduce => (2, 3),
            _ => (0, 3),
        };
        let mut recorder = Recorder::new();
        for _ in 0..self.warm_up {
            once()?;
        }
        let mut course = Course::begin(self.iterations, self.clock);
        for made in 1..=self.iterations {
            let times = once()?;
            recorder.record(self.clock.picoseconds(times[from], times[to]));
            course.mark(made, times[3]);
        }
        Ok(course.end(self.iterations, recorder.into_buckets()))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn batches_are_of_small_messages_and_the_last_may_be_shorter() {
        let clock = Clock::new();
        for (size, iterations, values) in [(8, 50, 3), (8, 20, 1), (ONE_BY_ONE, 50, 50), (1 << 28, 1, 1)] {
            let timed = Timed { iterations, warm_up: 4, size, clock: &clock };
            let made = RefCell::new(vec![]);
            let answer = timed.run(2, |len| {
                made.borrow_mut().push(len);
                Ok(())
            });
            let Ok(Answer::Run(measured)) = answer else { panic!("no run: {answer:?}") };
            assert_eq!((made.borrow().len() as u64, measured.iterations), (WAKING + 4 + iterations, iterations));
            // The lengths that the other end expects.
            assert_eq!(*made.borrow(), timed.lengths().collect::<Vec<_>>());
            assert_eq!(measured.histogram.iter().map(|(_, count)| count).sum::<u64>(), values, "{size} B");
        }
    }

    #[test]
    fn a_stream_is_of_all_operations_and_waits_for_those_before_it_and_for_all() {
        let clock = Clock::new();
        let timed = Timed { iterations: 50, warm_up: 4, size: 8192, clock: &clock };
        let (made, finished) = (RefCell::new(vec![]), RefCell::new(vec![]));
        let once = |n, len| {
            made.borrow_mut().push((n, len));
            Ok(())
        };
        let answer = timed.stream(once, || {
            finished.borrow_mut().push(made.borrow().len());
            Ok(())
        });
        let Ok(Answer::Run(measured)) = answer else { panic!("no run: {answer:?}") };
        assert_eq!(*finished.borrow(), [WAKING as usize + 4, WAKING as usize + 54]);
        // The lengths that the other end expects.
        assert_eq!(made.borrow().iter().map(|(_, len)| *len).collect::<Vec<_>>(), timed.lengths().collect::<Vec<_>>());
        assert_eq!(made.borrow().last(), Some(&(49, 8192)));
        assert_eq!((measured.iterations, measured.segments.len(), measured.histogram.len()), (50, 1, 0));
    }

    #[test]
    fn a_buffer_begins_on_a_page_and_is_as_long_as_asked() {
        for len in [0, 1, PAGE, 3 * PAGE + 1] {
            let mut buffer = Buffer::new(len);
            assert_eq!((buffer.get(len).len(), buffer.get_mut(len).len()), (len, len));
            assert_eq!(buffer.get(len).as_ptr().align_offset(PAGE), 0);
        }
    }

    #[test]
    fn buffers_are_kept_while_they_are_long_enough_and_the_host_has_room() {
        let mut buffers = Buffers::default();
        buffers.provide(3 * PAGE);
        let place = buffers.outgoing.get(0).as_ptr();
        buffers.keep(6 * PAGE);
        buffers.provide(PAGE);
        assert_eq!((buffers.incoming.len, buffers.outgoing.get(0).as_ptr()), (3 * PAGE, place));
        buffers.provide(4 * PAGE);
        assert_eq!((buffers.incoming.len, buffers.outgoing.len), (4 * PAGE, 4 * PAGE));
        buffers.keep(8 * PAGE - 1);
        assert_eq!((buffers.incoming.len, buffers.outgoing.len), (0, 0));
    }
}
