//! The keys of `[defaults]` and `[[case]]`, what must hold between them, and the cases that a block unfolds into.

use std::ops::Range;

use toml::Spanned;

use super::Block;
use super::environments::Environments;
use super::error::{Mistakes, did_you_mean, one_of};
use super::quantity::{Quantity, SIZE};
use super::read::{Field, Item, Node};
use super::settings::SettingKeys;
use crate::case::{
    Case, EnvironmentName, Grid, Interface, Interference, Measure, Memory, Operation, Placement, Service, bytes,
};
use crate::worker::{MOST_COPY, MOST_MESSAGE, MOST_PUT, Problem};

/// Requests under way on a QP: what ConnectX devices can have (max_qp_wr).
pub(super) const DEPTH: Quantity = Quantity::count(1, 32768);
const QPS: Quantity = Quantity::count(1, 16384);
/// The largest MTU of InfiniBand (IBA volume 1, 9.7.1): no datagram is longer.
const DATAGRAM: u64 = 4096;

const SIZE_DEFAULT: u64 = 8;
const DEPTH_DEFAULT: u32 = 128;

/// The keys, in the order of the guide.
pub(super) const KEYS: &[&str] = &[
    "interface",
    "operation",
    "service",
    "measure",
    "size",
    "depth",
    "qps",
    "placement",
    "memory",
    "interference",
    "environment",
    "grid",
    "iterations",
    "full_iterations",
    "only_full",
    "warm_up",
    "at_least",
    "at_most",
    "inline",
    "signal_every",
    "volume",
];

/// The keys of one table.
#[derive(Default)]
pub(super) struct Keys {
    interface: Field<Vec<Item<Interface>>>,
    operation: Field<Vec<Item<Operation>>>,
    service: Field<Vec<Item<Service>>>,
    measure: Field<Vec<Item<Measure>>>,
    size: Field<Vec<Item<u64>>>,
    depth: Field<Vec<Item<u64>>>,
    qps: Field<Vec<Item<u64>>>,
    placement: Field<Vec<Item<Placement>>>,
    memory: Field<Vec<Item<Memory>>>,
    interference: Field<Vec<Item<Option<Interference>>>>,
    environment: Field<Vec<Item<Option<EnvironmentName>>>>,
    grid: Field<Vec<Item<Option<Grid>>>>,
    settings: SettingKeys,
}

impl Keys {
    /// Reads a table. `node` is one.
    pub(super) fn read(node: &Node<'_, '_>, environments: &Environments, mistakes: &mut Mistakes<'_>) -> Keys {
        let mut keys = Keys::default();
        for (name, value) in node.table().into_iter().flatten() {
            let value = Node::new(&node.key, name.get_ref(), value);
            match &**name.get_ref() {
                "interface" => keys.interface = value.list(mistakes, |v| v.word(Interface::ALL, Interface::word)),
                "operation" => keys.operation = value.list(mistakes, |v| v.word(Operation::ALL, Operation::word)),
                "service" => keys.service = value.list(mistakes, |v| v.word(Service::ALL, Service::word)),
                "measure" => keys.measure = value.list(mistakes, |v| v.word(Measure::ALL, Measure::word)),
                "size" => keys.size = value.list(mistakes, |v| v.series(SIZE)),
                "depth" => keys.depth = value.list(mistakes, |v| v.series(DEPTH)),
                "qps" => keys.qps = value.list(mistakes, |v| v.series(QPS)),
                "placement" => keys.placement = value.list(mistakes, |v| v.word(Placement::ALL, Placement::word)),
                "memory" => keys.memory = value.list(mistakes, |v| v.word(Memory::ALL, Memory::word)),
                "interference" => keys.interference = value.list(mistakes, Node::interference),
                "environment" => keys.environment = value.list(mistakes, |v| v.environment(environments)),
                "grid" => keys.grid = value.list(mistakes, Node::grid),
                other if !keys.settings.read(other, &value, mistakes) => unknown(mistakes, name, &value.key, KEYS),
                _ => {}
            }
        }
        keys
    }
}

/// Notes a key that there is not.
pub(super) fn unknown(mistakes: &mut Mistakes<'_>, name: &Spanned<impl AsRef<str>>, key: &str, known: &[&'static str]) {
    let meant = did_you_mean(name.get_ref().as_ref(), known.iter().copied());
    let (keys, found) = (one_of(known.iter().copied()), mistakes.quote(name.span()));
    mistakes.add(name.span(), key, format!("expected a key {keys}, found {found}{meant}"));
}

/// A `[[case]]`, with `[defaults]` behind it.
pub(super) struct Template<'a> {
    own: Keys,
    defaults: &'a Keys,
    key: String,
    span: Range<usize>,
}

impl<'a> Template<'a> {
    /// Reads and checks a block.
    pub(super) fn read(
        node: &Node<'_, '_>,
        defaults: &'a Keys,
        environments: &Environments,
        mistakes: &mut Mistakes<'_>,
    ) -> Template<'a> {
        let own = Keys::read(node, environments, mistakes);
        let block = Template { own, defaults, key: node.key.clone(), span: node.value.span() };
        block.check_required(mistakes);
        block.check_interfaces(mistakes);
        block.check_services(mistakes);
        block.check_sizes(mistakes);
        block.check_latency(mistakes);
        block.check_grids(mistakes);
        block.check_memory(mistakes);
        block.check_environments(mistakes);
        block.own.settings.check_times(&defaults.settings, mistakes);
        block
    }

    fn check_required(&self, mistakes: &mut Mistakes<'_>) {
        if self.own.operation.or(&self.defaults.operation).is_absent() {
            let words = one_of(Operation::ALL.iter().map(|o| o.word()));
            mistakes.add(self.span.clone(), &self.key, format!("expected the key operation, {words}, found none"));
        }
        if self.own.measure.or(&self.defaults.measure).is_absent() {
            let words = one_of(Measure::ALL.iter().map(|m| m.word()));
            mistakes.add(self.span.clone(), &self.key, format!("expected the key measure, {words}, found none"));
        }
    }

    /// Notes parts of the block that an interface does not have, operations above all; the mistake is at the key in the
    /// block.
    fn check_interfaces(&self, mistakes: &mut Mistakes<'_>) {
        let (own, d) = (&self.own, self.defaults);
        let interfaces = values(own.interface.or(&d.interface), &[Interface::Verbs]);
        for interface in Interface::ALL.iter().filter(|of| interfaces.contains(of)) {
            let known = Operation::of(*interface);
            let operations = own.operation.or(&d.operation).get().into_iter().flatten();
            for operation in operations.filter(|o| !known.contains(&o.value)) {
                let words = one_of(known.iter().map(|o| o.word()));
                let found = operation.value;
                let what = format!("expected {words}, which interface \"{interface}\" has, found {found}");
                mistakes.add(operation.span.clone(), &operation.key, what);
            }
            let mut fields = Vec::new();
            match interface {
                Interface::Verbs => {}
                Interface::Pm => fields.extend(self.odd_of_pm()),
                _ => fields.push(odd(own.measure.or(&d.measure), Measure::Latency, "latency")),
            }
            if *interface != Interface::Verbs {
                fields.extend([
                    odd(own.service.or(&d.service), Service::Rc, "rc"),
                    odd(own.memory.or(&d.memory), Memory::Host, "host"),
                    odd(own.placement.or(&d.placement), Placement::Loopback, "loopback"),
                    odd(own.interference.or(&d.interference), None, "none"),
                ]);
            }
            if !interface.has_ranks() {
                let expected = "no volume, since at_most bounds what is measured,";
                fields.push(own.settings.volume.get().map(|item| Odd::of(item, expected)));
            }
            for Odd { span, key, expected } in fields.into_iter().flatten() {
                let found = mistakes.quote(span.clone());
                let what = format!("expected {expected} with interface \"{interface}\", found {found}");
                mistakes.add(span, &key, what);
            }
        }
    }

    /// Measures that PM's operations are not for, and what it decides by itself. Depth and QPs of [defaults] are not
    /// for it.
    fn odd_of_pm(&self) -> Vec<Option<Odd>> {
        let (own, d) = (&self.own, self.defaults);
        let operations = own.operation.or(&d.operation).get().into_iter().flatten();
        let operations = operations.filter(|o| Operation::of(Interface::Pm).contains(&o.value));
        let mut fields: Vec<Option<Odd>> = Vec::new();
        for measure in Measure::ALL {
            if let Some(operation) = operations.clone().find(|o| o.value.measure_of_pm() == *measure) {
                let expected = format!("{measure} for {}", operation.value);
                fields.push(odd(own.measure.or(&d.measure), *measure, &expected));
            }
        }
        for given in [&own.depth, &own.qps] {
            fields.push(odd(given, 1, "1, since PM decides how much is under way,"));
        }
        fields
    }

    /// Operations that the service does not carry: the mistake is where the block has its say.
    fn check_services(&self, mistakes: &mut Mistakes<'_>) {
        let Some(operations) = self.own.operation.or(&self.defaults.operation).get() else { return };
        let Some(services) = self.own.service.or(&self.defaults.service).get() else { return };
        // Each once, however often the lists have it.
        for service in Service::ALL.iter().filter_map(|s| services.iter().find(|item| item.value == *s)) {
            let name = service.value.word().to_uppercase();
            let (carried, others): (Vec<Operation>, Vec<_>) =
                Operation::of(Interface::Verbs).iter().partition(|o| o.is_of(service.value));
            let carried = one_of(carried.iter().map(|o| o.word()));
            for operation in others.iter().filter_map(|o| operations.iter().find(|item| item.value == *o)) {
                let (span, key) = match self.own.operation.is_absent() && !self.own.service.is_absent() {
                    true => (&service.span, &service.key),
                    false => (&operation.span, &operation.key),
                };
                let found = operation.value;
                let what =
                    format!("expected {carried}, which {name} QPs carry (IBA volume 1, table 38), found {found}");
                mistakes.add(span.clone(), key, what);
            }
        }
    }

    fn check_sizes(&self, mistakes: &mut Mistakes<'_>) {
        let operations = self.own.operation.or(&self.defaults.operation).get();
        let atomic = operations.and_then(|all| all.iter().find(|o| o.value.is_atomic()));
        // Sizes of [defaults] are not for atomics.
        let odd = self.own.size.get().and_then(|sizes| sizes.iter().find(|size| size.value != 8));
        if let (Some(atomic), Some(size)) = (atomic, odd) {
            let what = format!(
                "expected 8 B, the size of {}, found {}; other operations have a block of their own",
                atomic.value,
                bytes(size.value)
            );
            mistakes.add(size.span.clone(), &size.key, what);
        }

        let interfaces = values(self.own.interface.or(&self.defaults.interface), &[]);
        let mut sizes = self.own.size.or(&self.defaults.size).get().into_iter().flatten();
        let is_put = |size: u64| size.is_multiple_of(8) && size <= MOST_PUT;
        if let (true, Some(size)) = (interfaces.contains(&Interface::Window), sizes.find(|s| !is_put(s.value))) {
            let what = format!(
                "expected multiples of 8 B up to {}, which raw puts have, found {}",
                bytes(MOST_PUT),
                bytes(size.value)
            );
            mistakes.add(size.span.clone(), &size.key, what);
        }

        if interfaces.contains(&Interface::Pm) {
            self.check_sizes_of_pm(mistakes);
        }

        let services = self.own.service.or(&self.defaults.service).get();
        let datagrams = services.and_then(|all| all.iter().find(|s| s.value == Service::Ud));
        let long = self.own.size.or(&self.defaults.size).get();
        let long = long.and_then(|sizes| sizes.iter().find(|size| size.value > DATAGRAM));
        if let (Some(datagrams), Some(size)) = (datagrams, long) {
            let (span, key, whose) = match self.own.size.is_absent() && !self.own.service.is_absent() {
                true => (&datagrams.span, &datagrams.key, " in [defaults]"),
                false => (&size.span, &size.key, ""),
            };
            let found = bytes(size.value);
            let what = format!("expected sizes up to 4 KiB, the longest datagram of UD, found {found}{whose}");
            mistakes.add(span.clone(), key, what);
        }
    }

    /// Messages have the length of a receive at most, and copies that of a request.
    fn check_sizes_of_pm(&self, mistakes: &mut Mistakes<'_>) {
        let operations = || self.own.operation.or(&self.defaults.operation).get().into_iter().flatten();
        let messages = ([Operation::PingPong, Operation::Send], MOST_MESSAGE, "message");
        let copies = ([Operation::Write, Operation::Read], MOST_COPY, "copy");
        for (of_these, most, what) in [messages, copies] {
            let mut sizes = self.own.size.or(&self.defaults.size).get().into_iter().flatten();
            if let (true, Some(size)) =
                (operations().any(|o| of_these.contains(&o.value)), sizes.find(|s| s.value > most))
            {
                let what = format!(
                    "expected sizes up to {}, the longest {what} of PM, found {}",
                    bytes(most),
                    bytes(size.value)
                );
                mistakes.add(size.span.clone(), &size.key, what);
            }
        }
    }

    /// Depth and QPs of [defaults] are for bandwidth only.
    fn check_latency(&self, mistakes: &mut Mistakes<'_>) {
        let measures = self.own.measure.or(&self.defaults.measure).get();
        if !measures.is_some_and(|all| all.iter().any(|m| m.value == Measure::Latency)) {
            return;
        }
        for given in [&self.own.depth, &self.own.qps] {
            let Some(item) = given.get().and_then(|items| items.iter().find(|item| item.value != 1)) else { continue };
            let why = "latency is that of one message at a time";
            let what = format!("expected 1, since {why}, found {}; bandwidth has a block of its own", item.value);
            mistakes.add(item.span.clone(), &item.key, what);
        }
    }

    /// Notes missing keys of a Jacobi kernel, and keys that only such a kernel has.
    fn check_grids(&self, mistakes: &mut Mistakes<'_>) {
        let (own, d) = (&self.own, self.defaults);
        let operations = own.operation.or(&d.operation).get().into_iter().flatten();
        let (kernels, others): (Vec<_>, Vec<_>) = operations.partition(|operation| operation.value.is_jacobi());
        let grids = own.grid.or(&d.grid);
        if let (Some(kernel), true) = (kernels.first(), grids.is_absent()) {
            let what = format!("expected the key grid beside {}, as grid = \"1x2\", found none", kernel.value);
            mistakes.add(kernel.span.clone(), &kernel.key, what);
        }
        if let (Some(other), Some(grid)) = (others.first(), own.grid.get().and_then(|grids| grids.first())) {
            let what = format!(
                "expected no grid with {}, which jacobi has, found {}",
                other.value,
                mistakes.quote(grid.span.clone())
            );
            mistakes.add(grid.span.clone(), &grid.key, what);
        }
        let sizes = own.size.or(&d.size).get().into_iter().flatten();
        let odd = kernels
            .first()
            .and_then(|kernel| Some((kernel, sizes.into_iter().find(|s| Problem::of(s.value).is_none())?)));
        if let Some((kernel, size)) = odd {
            let what = format!(
                "expected the bytes of a grid of N x N x 2N cells with N a power of 2 from 4 to 256, as 2M, 16M or 128M, for {}, found {}",
                kernel.value,
                bytes(size.value)
            );
            mistakes.add(size.span.clone(), &size.key, what);
        }
    }

    /// Notes uses of a GPU's memory that the CPU would have to read or write; the mistake is at a key of the block.
    fn check_memory(&self, mistakes: &mut Mistakes<'_>) {
        let (own, d) = (&self.own, self.defaults);
        let memories = own.memory.or(&d.memory).get();
        let Some(gpu) = memories.and_then(|all| all.iter().find(|m| m.value == Memory::Gpu)) else { return };
        let ours = !own.memory.is_absent();

        let operations = own.operation.or(&d.operation).get();
        let write = operations.and_then(|all| all.iter().find(|o| o.value == Operation::Write));
        let measures = own.measure.or(&d.measure).get();
        let latency = measures.and_then(|all| all.iter().find(|m| m.value == Measure::Latency));
        if let (Some(write), Some(latency)) = (write, latency) {
            let (span, key, whose) = match (ours, own.operation.is_absent()) {
                (true, _) => (&gpu.span, &gpu.key, ""),
                (false, false) => (&write.span, &write.key, " in [defaults]"),
                (false, true) => (&latency.span, &latency.key, " in [defaults]"),
            };
            let what = format!(
                "expected host for the latency of write, since the CPU polls that memory and cannot poll a GPU's, \
                 found gpu{whose}; write+imm needs no polling"
            );
            mistakes.add(span.clone(), key, what);
        }

        let inline = match own.settings.inline.or(&d.settings.inline) {
            Field::Is(item) => item,
            _ => return,
        };
        if let Some(size) = inline.value.filter(|size| *size > 0) {
            let (span, key, whose) = match own.settings.inline.is_absent() && ours {
                true => (&gpu.span, &gpu.key, " in [defaults]"),
                false => (&inline.span, &inline.key, ""),
            };
            let found = bytes(size.into());
            let why = "from which the CPU cannot copy a message";
            let what = format!("expected \"auto\" or 0 with GPU memory, {why}, found {found}{whose}");
            mistakes.add(span.clone(), key, what);
        }
    }

    /// Workers of another host have the environment of that: the mistake is where the block has its say.
    fn check_environments(&self, mistakes: &mut Mistakes<'_>) {
        let (own, d) = (&self.own, self.defaults);
        let environments = own.environment.or(&d.environment).get();
        let Some(named) = environments.and_then(|all| all.iter().find(|e| e.value.is_some())) else { return };
        let Some(Odd { span, key, expected }) = odd(own.placement.or(&d.placement), Placement::Loopback, "loopback")
        else {
            return;
        };
        let (span, key, whose) = match own.placement.is_absent() && !own.environment.is_absent() {
            true => (named.span.clone(), &named.key, " in [defaults]"),
            false => (span, &key, ""),
        };
        let why = "whose workers are of this host";
        mistakes.add(span, key, format!("expected {expected} in an environment, {why}, found peer{whose}"));
    }

    /// The number of cases that the block unfolds into; right for a block without mistakes.
    pub(super) fn count(&self) -> u64 {
        let d = self.defaults;
        let lists = [
            length(self.own.service.or(&d.service)),
            length(self.own.placement.or(&d.placement)),
            length(self.own.memory.or(&d.memory)),
            length(self.own.interference.or(&d.interference)),
            length(self.own.environment.or(&d.environment)),
        ];
        let sizes = length(self.own.size.or(&d.size));
        let driven = length(self.own.depth.or(&d.depth)).saturating_mul(length(self.own.qps.or(&d.qps)));
        let operations = self.own.operation.or(&d.operation).get().into_iter().flatten();
        let grids = length(self.own.grid.or(&d.grid));
        let of = |operation: Operation| match operation {
            atomic if atomic.is_atomic() => 1,
            kernel if kernel.is_jacobi() => sizes.saturating_mul(grids),
            _ => sizes,
        };
        let sizes: u64 = operations.map(|o| of(o.value)).fold(0, u64::saturating_add);
        let interfaces = values(self.own.interface.or(&d.interface), &[Interface::Verbs]);
        let measures = self.own.measure.or(&d.measure).get().into_iter().flatten();
        let of = |measure| interfaces.iter().map(move |i| if is_driven(measure, *i) { driven } else { 1 });
        let driven = measures.flat_map(|m| of(m.value)).fold(0, u64::saturating_add);
        lists.into_iter().chain([sizes, driven]).fold(1, u64::saturating_mul)
    }

    /// Notes that the plan has become too large with this block.
    pub(super) fn too_many(&self, most: u64, found: u64, mistakes: &mut Mistakes<'_>) {
        let what = format!("expected at most {most} cases in the whole plan, found {found} up to here");
        mistakes.add(self.span.clone(), &self.key, what);
    }

    /// The cases of a block without mistakes: the product of its lists, sizes changing first.
    pub(super) fn unfold(&self) -> Vec<Block> {
        let (own, d) = (&self.own, self.defaults);
        let operations = values(own.operation.or(&d.operation), &[]);
        let interfaces = values(own.interface.or(&d.interface), &[Interface::Verbs]);
        let services = values(own.service.or(&d.service), &[Service::Rc]);
        let services: Vec<_> = interfaces.iter().flat_map(|i| services.iter().map(move |s| (*i, *s))).collect();
        let environments = values(own.environment.or(&d.environment), &[None]);
        let grids = values(own.grid.or(&d.grid), &[None]);
        let sizes = values(own.size.or(&d.size), &[SIZE_DEFAULT]);
        let depths = values(own.depth.or(&d.depth), &[u64::from(DEPTH_DEFAULT)]);
        let qps = values(own.qps.or(&d.qps), &[1]);
        let interferences = values(own.interference.or(&d.interference), &[None]);
        let placements: Vec<Option<Placement>> = match own.placement.or(&d.placement).get() {
            Some(given) => given.iter().map(|item| Some(item.value)).collect(),
            None => vec![None],
        };
        let memories = values(own.memory.or(&d.memory), &[Memory::Host]);
        let places: Vec<_> = placements.iter().flat_map(|p| memories.iter().map(move |m| (*p, *m))).collect();

        let mut blocks = Vec::new();
        for measure in values(own.measure.or(&d.measure), &[]) {
            for &operation in &operations {
                let sizes = if operation.is_atomic() { &vec![8] } else { &sizes };
                let grids = if operation.is_jacobi() { &grids } else { &vec![None] };
                let driven = environments.iter().flat_map(|e| services.iter().map(move |s| (*e, *s)));
                let driven = driven.flat_map(|(e, s)| grids.iter().map(move |grid| (e, s, *grid)));
                for (environment, (interface, service), grid) in driven {
                    let is_driven = is_driven(measure, interface);
                    let (depths, qps) = if is_driven { (&depths, &qps) } else { (&vec![1], &vec![1]) };
                    for &(placement, memory) in &places {
                        for &interference in &interferences {
                            for (&qps, &depth) in qps.iter().flat_map(|q| depths.iter().map(move |d| (q, d))) {
                                // Both are bounded far below 2^32.
                                let (qps, depth) = (qps as u32, depth as u32);
                                let case = |size| Case {
                                    measure,
                                    operation,
                                    service,
                                    size,
                                    depth,
                                    qps,
                                    placement: placement.unwrap_or(Placement::Loopback),
                                    interference,
                                    memory,
                                    interface,
                                    environment,
                                    grid,
                                };
                                if grid == Some(Grid(1, 1)) && operation.is_between_ranks() {
                                    continue;
                                }
                                let settings = own.settings.settings(&d.settings, measure, interface, depth);
                                blocks.extend(sizes.iter().map(|&size| Block {
                                    case: case(size),
                                    placement,
                                    settings,
                                }));
                            }
                        }
                    }
                }
            }
        }
        blocks
    }
}

/// Returns true if the plan says how many requests are under way: of latency there is one, and PM decides by itself.
fn is_driven(measure: Measure, interface: Interface) -> bool {
    measure == Measure::Bandwidth && interface != Interface::Pm
}

/// A value that does not go with the others of a block.
struct Odd {
    span: Range<usize>,
    key: String,
    expected: String,
}

impl Odd {
    fn of<T>(item: &Item<T>, expected: &str) -> Self {
        Self { span: item.span.clone(), key: item.key.clone(), expected: expected.to_owned() }
    }
}

/// The first of a list that is not this one.
fn odd<T: PartialEq>(field: &Field<Vec<Item<T>>>, only: T, word: &str) -> Option<Odd> {
    let item = field.get()?.iter().find(|item| item.value != only)?;
    Some(Odd::of(item, word))
}

/// Values of a list that was given, or else the default's one.
fn length<T>(field: &Field<Vec<Item<T>>>) -> u64 {
    field.get().map_or(1, |items| items.len() as u64)
}

fn values<T: Copy>(field: &Field<Vec<Item<T>>>, default: &[T]) -> Vec<T> {
    field.get().map_or_else(|| default.to_vec(), |items| items.iter().map(|item| item.value).collect())
}
