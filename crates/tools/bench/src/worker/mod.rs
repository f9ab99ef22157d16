//! A worker: one process with one open device, one stretch of registered memory and at most one case at a time. It does
//! what the coordinator orders, in the order in which it is ordered, and ends when the line to the coordinator does.

mod bandwidth;
mod clock;
mod jacobi;
mod latency;
mod memory;
// PM gives addresses, and takes those of memory that it is to lock: what is done with them is here and nowhere else in
// this crate.
#[allow(unsafe_code)]
mod node;
mod pair;
mod put;
mod rank;
mod segments;
mod wait;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::process;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use vervain_rdma::{Context, Library, PathOptions, Pd};

use self::clock::Clock;
pub use self::jacobi::Problem;
use self::memory::Memory;
pub use self::memory::SCATTER;
pub use self::node::{MOST_COPY, MOST_MESSAGE};
use self::pair::Pair;
pub use self::pair::needs;
pub use self::put::MOST as MOST_PUT;
use self::put::{Puts, Window};
pub use self::rank::join;
use self::wait::Stop;
use crate::case::{self, Interface, Measure};
use crate::control::{Control, Silence};
use crate::protocol::{Answer, Ends, Opened, Order, Side, Spec, VERSION};
use crate::topology::{self, Topology};
use crate::{machine, raw};

/// The most memory that a coordinator may ask for, in bytes: it may be another host's.
const MOST_MEMORY: u64 = 32 << 30;
/// Time for which a worker waits for its next order: as long as the coordinator lives.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Serves the coordinator at the other end of `socket` until it hangs up.
///
/// # Errors
/// The socket is none.
pub fn serve(socket: OwnedFd, defaults: Defaults) -> Result<()> {
    // After any end of the process that started this one, the answers have no reader.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let stop = Arc::new(Stop::new(false));
    let told = stop.clone();
    // On the reading thread, since the other one may be measuring.
    let mut control = Control::new(socket, move |order| match order {
        Some(Order::Stop) => {
            told.store(true, Ordering::Relaxed);
            true
        }
        Some(Order::Start { .. }) => {
            told.store(false, Ordering::Relaxed);
            false
        }
        // The coordinator is gone.
        None => process::exit(0),
        _ => false,
    })?;
    let mut worker = Worker { stop, clock: Clock::new(), ends: None, open: None, defaults };
    loop {
        let order = match control.receive(FOREVER) {
            Ok(order) => order,
            Err(Silence::Late) => continue,
            Err(Silence::Gone(_)) => return Ok(()),
        };
        let answer = worker.carry_out(order, &mut control).unwrap_or_else(|error| {
            // Requests may be under way, and the other end does not know.
            worker.ends = None;
            Answer::Failed(format!("{error:#}"))
        });
        control.send(&answer)?;
    }
}

struct Worker {
    stop: Arc<Stop>,
    clock: Clock,
    /// The resources prepared for the case.
    ends: Option<Prepared>,
    open: Option<Open>,
    /// The values to open with if the order names none.
    defaults: Defaults,
}

/// One end of a case.
enum Prepared {
    Pair(Pair),
    Puts(Puts),
}

/// The device that a worker opens where the coordinator names none: what `vervain bench serve` was told.
#[derive(Debug, Clone, Default)]
pub struct Defaults {
    /// None: the first device.
    pub device: Option<String>,
    /// Place in the port's GID table; None: the best.
    pub gid_index: Option<u8>,
}

/// The device, and what outlives a case.
struct Open {
    context: Context,
    pd: Pd,
    path: PathOptions,
    memory: Option<Memory>,
    /// The window, if it is measured by itself.
    window: Option<Window>,
}

impl Worker {
    fn carry_out(&mut self, order: Order, control: &mut Control<Order>) -> Result<Answer> {
        match order {
            Order::Open { version, device, port, gid_index } => {
                ensure!(version == VERSION, "protocol version {version} of the coordinator is not ours, {VERSION}");
                let Defaults { device: usual, gid_index: usual_gid } = self.defaults.clone();
                self.open(device.or(usual).as_deref(), port, gid_index.or(usual_gid))
            }
            Order::Settle { cpu, interface, memory, node, gpu, bytes } => {
                if interface == Interface::Window {
                    let open = self.open.as_mut().context("no device is open")?;
                    open.window = Some(Window::open()?);
                }
                self.settle(cpu, memory, node, gpu, bytes)
            }
            Order::Prepare(spec) => self.prepare(spec),
            Order::Connect(peers) => {
                self.connect(&peers)?;
                Ok(Answer::Done)
            }
            Order::Start { iterations } => self.start(iterations, control),
            Order::Release(number) => {
                self.ends = None;
                Ok(Answer::Released(number))
            }
            Order::Raw { round, cpus } => Ok(Answer::Raw(raw::measure(round, cpus))),
            Order::Stop => bail!("nothing to stop"),
        }
    }

    fn open(&mut self, device: Option<&str>, port: u8, gid_index: Option<u8>) -> Result<Answer> {
        let context = Context::open(&Library::load()?, device)?;
        let mut path = PathOptions::of(&context, port)?;
        if gid_index.is_some() {
            path.gid_index = gid_index;
        }
        let topology = Topology::read().context("cannot tell which CPUs there are")?;
        let host = machine::host(&topology, machine::device(&context, port, path.mtu)?, BTreeMap::new());
        let opened =
            Opened { host, cpus: topology.order(context.numa_node()), pid: process::id(), boot: machine::boot() };
        self.open = Some(Open { pd: Pd::new(&context)?, context, path, memory: None, window: None });
        Ok(Answer::Opened(Box::new(opened)))
    }

    fn settle(
        &mut self,
        cpu: Option<u32>,
        memory: case::Memory,
        node: Option<u32>,
        gpu: Option<u32>,
        bytes: u64,
    ) -> Result<Answer> {
        ensure!(bytes <= MOST_MEMORY, "{bytes} bytes are more than a worker gives, {MOST_MEMORY}");
        let open = self.open.as_mut().context("no device is open")?;
        if let Some(cpu) = cpu {
            topology::pin(cpu).with_context(|| format!("cannot run on CPU {cpu}"))?;
        }
        self.ends = None;
        if let Some(old) = open.memory.take() {
            old.deregister()?;
        }
        let len = usize::try_from(bytes)?.max(1);
        let (memory, gpu) = match memory {
            case::Memory::Host => (Memory::of_host(&open.pd, len, node)?, None),
            case::Memory::Gpu => Memory::of_gpu(&open.pd, len, gpu).map(|(memory, gpu)| (memory, Some(gpu)))?,
        };
        open.memory = Some(memory);
        Ok(Answer::Settled { gpu })
    }

    fn prepare(&mut self, spec: Spec) -> Result<Answer> {
        let open = self.open.as_ref().context("no device is open")?;
        self.ends = None;
        if spec.case.interface == Interface::Window {
            let puts = Puts::new(open.window.as_ref().context("no window is open")?, spec)?;
            let end = puts.end();
            self.ends = Some(Prepared::Puts(puts));
            return Ok(Answer::Prepared(end));
        }
        let memory = open.memory()?;
        let pair =
            Pair::new(spec, &open.pd, memory, open.path).with_context(|| format!("on {}", open.context.name()))?;
        let endpoints = pair.endpoints(memory)?;
        self.ends = Some(Prepared::Pair(pair));
        Ok(Answer::Prepared(Ends::Qps(endpoints)))
    }

    fn connect(&mut self, peers: &Ends) -> Result<()> {
        let open = self.open.as_ref().context("no device is open")?;
        match (self.ends.as_mut().context("no QPs are prepared")?, peers) {
            (Prepared::Puts(puts), peer) => puts.connect(peer),
            (Prepared::Pair(pair), Ends::Qps(peers)) => {
                pair.connect(&open.pd, peers)?;
                if pair.is_received_from() {
                    bandwidth::post_receives(pair, open.memory()?)?;
                }
                Ok(())
            }
            (Prepared::Pair(_), Ends::Place { .. }) => bail!("the other end has no QPs"),
        }
    }

    fn start(&mut self, iterations: u64, control: &mut Control<Order>) -> Result<Answer> {
        let open = self.open.as_ref().context("no device is open")?;
        let (stop, clock) = (&*self.stop, &self.clock);
        let pair = match self.ends.as_mut().context("no QPs are prepared")? {
            Prepared::Pair(pair) => &*pair,
            Prepared::Puts(puts) => {
                puts.reset();
                if puts.side() == Side::Requester {
                    return Ok(Answer::Run(puts.request(iterations, stop, clock)?));
                }
                control.send(&Answer::Listening)?;
                puts.respond(iterations, stop)?;
                return Ok(Answer::Served { received: 0 });
            }
        };
        let memory = open.memory()?;
        let spec = pair.spec;
        if spec.case.measure == Measure::Latency {
            latency::reset(pair, memory);
        }
        if spec.side == Side::Responder {
            control.send(&Answer::Listening)?;
        }
        Ok(match (spec.side, spec.case.measure) {
            (Side::Requester, _) if spec.endless => {
                let running = || Ok(control.send(&Answer::Listening)?);
                Answer::Stream(bandwidth::interfere(pair, memory, stop, clock, running)?)
            }
            (Side::Requester, Measure::Latency) => {
                Answer::Run(latency::request(pair, memory, iterations, stop, clock)?)
            }
            (Side::Requester, Measure::Bandwidth) => {
                Answer::Run(bandwidth::request(pair, memory, iterations, stop, clock)?)
            }
            (Side::Responder, Measure::Latency) => {
                Answer::Served { received: latency::respond(pair, memory, iterations, stop)? }
            }
            (Side::Responder, Measure::Bandwidth) => {
                Answer::Served { received: bandwidth::respond(pair, memory, iterations, stop)? }
            }
        })
    }
}

impl Open {
    fn memory(&self) -> Result<&Memory> {
        self.memory.as_ref().context("no memory is made")
    }
}
