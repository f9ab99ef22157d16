//! The window of a simulation, and the devices of its processes.

use super::faults::{Chance, Plan, Way};
use super::kernel::{Simulated, Table};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vervain_window::parts::{Bounds, Identity, check_node, claims, header, memory};
use vervain_window::{Channel, Claims, Facts, Layout, Medium, Put, PutDevice, Refused, Region, Result};

const UUID: [u8; 16] = [7; 16];

/// The window of a simulation, with all its nodes.
#[derive(Debug, Clone)]
pub struct World(Arc<Inside>);

#[derive(Debug)]
struct Inside {
    layout: Layout,
    plan: Plan,
    header: Region,
    regions: Vec<Region>,
    /// The kernel of each node.
    kernels: Vec<Arc<Mutex<Table>>>,
    moving: Mutex<Moving>,
}

/// State that changes with time.
#[derive(Debug)]
struct Moving {
    now: u64,
    chance: Chance,
    /// Channels that are open or not empty, by number.
    ways: BTreeMap<u64, Way>,
    next_way: u64,
    /// For each node, the step before which no put from or to it becomes visible.
    stalled: Vec<u64>,
    lost: Vec<bool>,
}

impl World {
    /// A new window, of zeros. The same seed and the same calls give the same run.
    pub fn new(layout: Layout, plan: Plan, seed: u64) -> World {
        let one_kernel: Arc<Mutex<Table>> = Arc::default();
        let nodes = 0..layout.nodes();
        let kernel = |node| if plan.kernel_each { Table::new(node) } else { one_kernel.clone() };
        let moving = Moving {
            now: 0,
            chance: Chance::new(seed),
            ways: BTreeMap::new(),
            next_way: 0,
            stalled: vec![0; nodes.len()],
            lost: vec![false; nodes.len()],
        };
        World(Arc::new(Inside {
            layout,
            plan,
            header: header(layout, UUID).expect("memory for a header"),
            regions: nodes.clone().map(|_| memory(layout.region_len()).expect("memory for a region")).collect(),
            kernels: nodes.map(kernel).collect(),
            moving: Mutex::new(moving),
        }))
    }

    /// The device of a new process of a node.
    ///
    /// # Errors
    /// EINVAL: there is no such node.
    pub fn device(&self, node: u32) -> Result<MemoryDevice> {
        let inside = &self.0;
        check_node(inside.layout, node)?;
        let kernel = if inside.plan.kernel_each { node + 1 } else { 1 };
        let identity = Identity { kernel: kernel.into(), namespace: [1, node.into()] };
        let holder = Simulated::new(&inside.kernels[node as usize]);
        let own = inside.regions[node as usize].clone();
        let memory = (inside.header.clone(), own.clone());
        let claims = claims(inside.layout, (node, identity), Box::new(holder.clone()), memory)?;
        let whole = if inside.plan.torn_words { 4 } else { 8 };
        let facts = Facts {
            node,
            layout: inside.layout,
            uuid: UUID,
            coherent: inside.plan.delay == 0,
            whole,
            medium: Medium::File,
            read_speed: None,
        };
        Ok(MemoryDevice { facts, own, claims, holder, world: self.clone() })
    }

    fn moving(&self) -> MutexGuard<'_, Moving> {
        self.0.moving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Advances time by a step: some of the puts become visible.
    pub fn step(&self) {
        let mut moving = self.moving();
        moving.now += 1;
        let ms = moving.now / self.0.plan.steps_per_ms;
        for kernel in &self.0.kernels {
            kernel.lock().unwrap_or_else(PoisonError::into_inner).now_ms = ms;
        }
        let Moving { now, chance, ways, stalled, .. } = &mut *moving;
        let mut is_over = false;
        for way in ways.values_mut() {
            if !way.is_empty() && way.nodes().iter().all(|node| stalled[*node as usize] <= *now) {
                way.go_on(*now, &self.0.plan, &self.0.regions[way.to as usize], chance);
            }
            is_over |= way.is_over();
        }
        if is_over {
            ways.retain(|_, way| !way.is_over());
        }
    }

    fn go_on(&self, moving: &mut Moving, number: u64) {
        let Moving { now, chance, ways, stalled, .. } = moving;
        let way = ways.get_mut(&number).expect("a way");
        if way.nodes().iter().all(|node| stalled[*node as usize] <= *now) {
            way.go_on(*now, &self.0.plan, &self.0.regions[way.to as usize], chance);
        }
    }

    /// Steps until now.
    pub fn now(&self) -> u64 {
        self.moving().now
    }

    /// Returns true if a put is not visible yet.
    pub fn is_moving(&self) -> bool {
        self.moving().ways.values().any(|way| !way.is_empty())
    }

    /// Keeps puts from and to this node invisible for `steps` steps.
    pub fn stall(&self, node: u32, steps: u64) {
        let mut moving = self.moving();
        moving.stalled[node as usize] = moving.now + steps;
    }

    /// Removes the node: puts on their way from and to it are lost, and later ones too, until [`World::find`]. The
    /// senders get no error. The node's processes live on ([`MemoryDevice::kill`]).
    pub fn lose(&self, node: u32) {
        let mut moving = self.moving();
        moving.lost[node as usize] = true;
        moving.ways.values_mut().filter(|way| way.nodes().contains(&node)).for_each(Way::lose);
    }

    /// Brings the node back, with its memory as it was.
    pub fn find(&self, node: u32) {
        self.moving().lost[node as usize] = false;
    }
}

/// A process's device in a simulation.
pub struct MemoryDevice {
    facts: Facts,
    own: Region,
    claims: Arc<Claims>,
    holder: Simulated,
    world: World,
}

impl fmt::Debug for MemoryDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryDevice").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl MemoryDevice {
    /// Ends the process like kill -9: the kernel releases its locks, and later drops of its parts change nothing. Its
    /// puts go on.
    pub fn kill(&self) {
        self.holder.kill();
    }
}

impl PutDevice for MemoryDevice {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn own(&self) -> &Region {
        &self.own
    }

    fn channel(&self, node: u32) -> Result<Box<dyn Channel>> {
        check_node(self.facts.layout, node)?;
        let mut moving = self.world.moving();
        let number = moving.next_way;
        moving.next_way += 1;
        moving.ways.insert(number, Way::new(self.facts.node, node));
        Ok(Box::new(Delayed { world: self.world.clone(), number, bounds: Bounds::of(self.facts.layout) }))
    }

    fn claims(&self) -> &Arc<Claims> {
        &self.claims
    }
}

/// A channel whose puts become visible bit by bit.
struct Delayed {
    world: World,
    number: u64,
    bounds: Bounds,
}

impl Drop for Delayed {
    fn drop(&mut self) {
        let mut moving = self.world.moving();
        moving.ways.get_mut(&self.number).expect("an open way").closed = true;
        moving.ways.retain(|_, way| !way.is_over());
    }
}

impl Channel for Delayed {
    fn put(&mut self, chain: &[Put<'_>]) -> std::result::Result<(), Refused> {
        self.bounds.check(chain)?;
        let mut moving = self.world.moving();
        let way = moving.ways.get_mut(&self.number).expect("an open way");
        let nodes = way.nodes();
        way.push(chain, &self.world.0.plan)?;
        if nodes.iter().any(|node| moving.lost[*node as usize]) {
            moving.ways.get_mut(&self.number).expect("an open way").lose();
        } else if self.world.0.plan.delay == 0 {
            self.world.go_on(&mut moving, self.number);
        }
        Ok(())
    }
}
