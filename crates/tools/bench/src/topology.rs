//! Which CPUs there are, which of them lie together, and which process runs on which. The coordinator hands CPUs out by
//! it, workers pin themselves and place their memory by it.
//!
//! Read from sysfs and `sched_getaffinity(2)`: the Rust crates for hwloc need libhwloc on the machine that builds, and
//! libnuma's placement calls need no library at all here, since memory lies on the node of the CPU that touches it
//! first ([`Topology::on_node`]).

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::{fs, io};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs that this process may use, by node and core. CPU and node numbers are the kernel's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// Ascending.
    cpus: Vec<u32>,
    /// All nodes, and those of `cpus` that each has.
    nodes: BTreeMap<u32, Vec<u32>>,
    /// The core of each of `cpus`, named by the lowest of its threads.
    cores: BTreeMap<u32, u32>,
}

impl Topology {
    /// The machine as the calling thread may use it: to be read before it is pinned.
    ///
    /// # Errors
    /// Where the kernel has more than the 1024 CPUs that `sched_getaffinity(2)` is asked for.
    pub fn read() -> io::Result<Topology> {
        let set = sched_getaffinity(None)?;
        let usable = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).filter_map(|cpu| u32::try_from(cpu).ok());
        Ok(Self::from_sysfs(Path::new("/sys"), usable.collect()))
    }

    /// The topology in a sysfs at `root`. A machine without nodes has node 0, a CPU without siblings a core of its own.
    fn from_sysfs(root: &Path, cpus: Vec<u32>) -> Topology {
        let list =
            |path: &str| fs::read_to_string(root.join("devices/system").join(path)).ok().map(|text| parse(&text));
        let of = |all: Vec<u32>| all.into_iter().filter(|cpu| cpus.contains(cpu)).collect::<Vec<_>>();

        let mut nodes = BTreeMap::new();
        for entry in fs::read_dir(root.join("devices/system/node")).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("node")?.parse().ok());
            if let Some(node) = number
                && let Some(all) = list(&format!("node/node{node}/cpulist"))
            {
                nodes.insert(node, of(all));
            }
        }
        if nodes.is_empty() {
            nodes.insert(0, cpus.clone());
        }
        let core = |cpu: u32| {
            let siblings = list(&format!("cpu/cpu{cpu}/topology/thread_siblings_list")).unwrap_or_default();
            (cpu, siblings.into_iter().min().unwrap_or(cpu))
        };
        let cores = cpus.iter().map(|cpu| core(*cpu)).collect();
        Topology { cpus, nodes, cores }
    }

    /// The CPUs that this process may use, ascending.
    pub fn cpus(&self) -> &[u32] {
        &self.cpus
    }

    /// All NUMA nodes, ascending; also those without a CPU that this process may use.
    pub fn nodes(&self) -> Vec<u32> {
        self.nodes.keys().copied().collect()
    }

    /// The node of a CPU; None if this process may not use it.
    pub fn node_of(&self, cpu: u32) -> Option<u32> {
        self.nodes.iter().find(|(_, cpus)| cpus.contains(&cpu)).map(|(node, _)| *node)
    }

    /// The CPUs of a node that this process may use, ascending.
    pub fn cpus_of(&self, node: u32) -> &[u32] {
        self.nodes.get(&node).map_or(&[], Vec::as_slice)
    }

    /// The CPUs in the order in which to hand them out: those of the node `near` first (None: of the one with the
    /// most), then of the others in turn; on each node one thread of each core before the second ones. CPU 0 comes last
    /// among its like, also where there are only two: interrupts and the kernel's own work go there unless told
    /// otherwise, and the first place is the measured requester's, whose clock is read.
    pub fn order(&self, near: Option<u32>) -> Vec<u32> {
        let most = || self.nodes.iter().rev().max_by_key(|(_, cpus)| cpus.len()).map(|(node, _)| *node);
        let near = near.or_else(most);
        let thread = |cpu: u32| self.cores.range(..cpu).filter(|(_, core)| Some(*core) == self.cores.get(&cpu)).count();
        let mut order = self.cpus.clone();
        order.sort_by_cached_key(|&cpu| {
            let node = self.node_of(cpu);
            (node != near, node, thread(cpu), cpu == 0, cpu)
        });
        order
    }

    /// A sentence where some of these CPUs are threads of one core: processes on them take each other's time.
    pub fn shared_cores(&self, cpus: &[u32]) -> Option<String> {
        let mut threads = BTreeMap::<u32, Vec<u32>>::new();
        for cpu in cpus {
            let core = threads.entry(*self.cores.get(cpu)?).or_default();
            if !core.contains(cpu) {
                core.push(*cpu);
            }
        }
        let mut shared =
            threads.into_values().filter(|threads| threads.len() > 1).map(|threads| join(&threads, " and "));
        let first = shared.next()?;
        Some(format!("CPUs {} are threads of one core", shared.fold(first, |all, next| format!("{all}, and {next}"))))
    }

    /// Runs `f` on the CPUs of `node`, then lets the calling thread run where it ran before. Memory that `f` is the
    /// first to touch lies on that node as long as there is room, unless the process was given another policy than the
    /// kernel's own (`set_mempolicy(2)`, numactl): see numa(7).
    ///
    /// # Errors
    /// There is no such node, or none of its CPUs may be used; the error lists the nodes that can be named.
    pub fn on_node<T>(&self, node: u32, f: impl FnOnce() -> T) -> io::Result<T> {
        let cpus = self.cpus_of(node);
        if cpus.is_empty() {
            let usable: Vec<_> =
                self.nodes.iter().filter(|(_, cpus)| !cpus.is_empty()).map(|(node, _)| *node).collect();
            let what = if self.nodes.contains_key(&node) { "no CPU that may be used" } else { "no place here" };
            let why = format!("NUMA node {node} has {what}; nodes with CPUs: {}", join(&usable, ", "));
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        on_cpus(cpus, f)
    }
}

/// Runs `f` on these CPUs, then lets the calling thread run where it ran before. Processes that `f` starts stay there.
///
/// # Errors
/// Where there are no such CPUs or this process may not use them.
pub fn on_cpus<T>(cpus: &[u32], f: impl FnOnce() -> T) -> io::Result<T> {
    /// Moves the thread back when it goes, also when `f` panics.
    struct Back(CpuSet);
    impl Drop for Back {
        fn drop(&mut self) {
            // It ran there before. Where the kernel has taken those CPUs away since, it runs where it is.
            let _ = sched_setaffinity(None, &self.0);
        }
    }

    let _back = Back(sched_getaffinity(None)?);
    move_to(cpus)?;
    Ok(f())
}

/// Lets the calling thread, and threads that it makes from now on, run on this CPU only.
///
/// # Errors
/// Where there is no such CPU or this process may not use it.
pub(crate) fn pin(cpu: u32) -> io::Result<()> {
    move_to(&[cpu]).map_err(|e| io::Error::new(e.kind(), format!("cannot run on CPU {cpu}: {e}")))
}

fn move_to(cpus: &[u32]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        let cpu = usize::try_from(cpu).ok().filter(|cpu| *cpu < CpuSet::MAX_CPU);
        // The kernel's error for a CPU that it does not have.
        set.set(cpu.ok_or(rustix::io::Errno::INVAL)?);
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// The CPU of each process; None if there is no CPU to hand out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Assignment {
    /// The measured requester.
    pub client: Option<u32>,
    /// Its responder.
    pub server: Option<u32>,
    /// The interfering requester.
    pub background_client: Option<u32>,
    /// Its responder.
    pub background_server: Option<u32>,
    /// A sentence where processes share a CPU.
    pub note: Option<String>,
}

/// Hands the CPUs of one host out in `order` ([`Topology::order`]). With `same_host` all four processes run here.
/// Without, there are two: requesters on one host, responders on the other; each host is assigned by its own order and
/// takes its two.
///
/// The measured requester never shares a CPU with the interfering one unless there is only one CPU: what is to be seen
/// is how streams share a device (the method of P1), not how processes share a CPU. So with two CPUs it has one for
/// itself.
pub(crate) fn assign(order: &[u32], same_host: bool) -> Assignment {
    let four = |[client, server, background_client, background_server]: [u32; 4], note: Option<String>| Assignment {
        client: Some(client),
        server: Some(server),
        background_client: Some(background_client),
        background_server: Some(background_server),
        note,
    };
    match (order, same_host) {
        ([], _) => Assignment::default(),
        (&[a], _) => {
            let note = format!("all processes share CPU {a}: what is measured is the scheduler's work as well");
            four([a; 4], Some(note))
        }
        (&[a, b, ..], false) => four([a, a, b, b], None),
        (&[a, b], true) => {
            let note =
                format!("CPU {a} is the requester's; the responder and both interfering processes share CPU {b}");
            four([a, b, b, b], Some(note))
        }
        (&[a, b, c], true) => {
            let note = format!("the responder and that of the interfering stream share CPU {b}");
            four([a, b, c, b], Some(note))
        }
        (&[a, b, c, d, ..], true) => four([a, b, c, d], None),
    }
}

/// The numbers of a list as the kernel writes it: "0-3,8,10-11".
fn parse(list: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<u32>().ok()?..=last.trim().parse().ok()?)
    };
    list.trim().split(',').filter_map(range).flatten().collect()
}

fn join(items: &[impl Display], between: &str) -> String {
    items.iter().map(|item| item.to_string()).collect::<Vec<_>>().join(between)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine whose nodes have these CPUs; siblings are `apart` numbers from each other.
    fn machine(nodes: &[&str], apart: u32, usable: impl IntoIterator<Item = u32>) -> Topology {
        let root = tempfile::tempdir().expect("a directory");
        let put = |path: String, text: String| {
            let path = root.path().join("devices/system").join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
            fs::write(path, text).expect("a file");
        };
        put("node/has_cpu".into(), "0\n".into());
        for (number, list) in nodes.iter().enumerate() {
            put(format!("node/node{number}/cpulist"), format!("{list}\n"));
            for cpu in parse(list) {
                let first = cpu % apart;
                put(format!("cpu/cpu{cpu}/topology/thread_siblings_list"), format!("{first},{}\n", first + apart));
            }
        }
        Topology::from_sysfs(root.path(), usable.into_iter().collect())
    }

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!((parse("\n"), parse("5\n")), (vec![], vec![5]));
    }

    #[test]
    fn the_near_node_comes_first_and_cores_before_their_second_threads() {
        let two = machine(&["0-3,8-11", "4-7,12-15"], 8, 0..16);
        assert_eq!(two.order(Some(0)), [1, 2, 3, 0, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15]);
        assert_eq!(two.order(Some(1)), [4, 5, 6, 7, 12, 13, 14, 15, 1, 2, 3, 0, 8, 9, 10, 11]);
        assert_eq!(two.order(None), two.order(Some(0)));
        assert_eq!((two.nodes(), two.node_of(13), two.node_of(16)), (vec![0, 1], Some(1), None));
    }

    #[test]
    fn only_cpus_that_may_be_used_are_handed_out() {
        let some = machine(&["0-3,8-11", "4-7,12-15", ""], 8, [2, 9, 10, 4, 12, 6, 14]);
        // 10 is the second thread of 2, but 9 is the only one of its core.
        assert_eq!(some.order(Some(0)), [2, 9, 10, 4, 6, 12, 14]);
        assert_eq!(some.order(None), [4, 6, 12, 14, 2, 9, 10], "the node with the most");
        assert_eq!((some.cpus_of(1), some.cpus_of(2), some.nodes()), (&[4, 6, 12, 14][..], &[][..], vec![0, 1, 2]));
    }

    #[test]
    fn a_machine_that_says_nothing_has_one_node_and_whole_cores() {
        let bare = Topology::from_sysfs(Path::new("/nowhere"), vec![0, 1, 2]);
        assert_eq!((bare.order(None), bare.nodes(), bare.node_of(1)), (vec![1, 2, 0], vec![0], Some(0)));
        assert_eq!(bare.shared_cores(&[0, 1, 2]), None);
    }

    #[test]
    fn threads_of_one_core_are_said() {
        let two = machine(&["0-7"], 4, 0..8);
        assert_eq!(two.shared_cores(&[0, 1, 2, 2]), None);
        assert_eq!(two.shared_cores(&[1, 5, 0]).as_deref(), Some("CPUs 1 and 5 are threads of one core"));
        let both = two.shared_cores(&[1, 5, 4, 0]).expect("a note");
        assert_eq!(both, "CPUs 4 and 0, and 1 and 5 are threads of one core");
    }

    #[test]
    fn the_measured_requester_shares_no_cpu_with_the_interfering_one() {
        let roles = |order: &[u32], same_host| {
            let a = assign(order, same_host);
            ([a.client, a.server, a.background_client, a.background_server].map(|cpu| cpu.expect("a CPU")), a.note)
        };
        assert_eq!(roles(&[1, 2, 3, 0, 4], true), ([1, 2, 3, 0], None));
        let (three, note) = roles(&[1, 2, 0], true);
        assert_eq!((three, note.is_some_and(|n| n.contains("share CPU 2"))), ([1, 2, 0, 2], true));
        let (two, note) = roles(&[1, 0], true);
        assert_eq!((two, note.is_some_and(|n| n.contains("share CPU 0"))), ([1, 0, 0, 0], true));
        let (one, note) = roles(&[5], true);
        assert_eq!((one, note.is_some_and(|n| n.contains("share CPU 5"))), ([5; 4], true));
        assert_eq!(roles(&[1, 0], false), ([1, 1, 0, 0], None));
        assert!(roles(&[3], false).1.is_some());
        assert_eq!(assign(&[], true), Assignment::default());
    }

    #[test]
    fn a_thread_is_pinned_and_let_go_again() {
        let all = Topology::read().expect("this machine");
        let cpu = *all.order(None).last().expect("a CPU");
        pin(cpu).expect("one of ours");
        assert_eq!(Topology::read().expect("this machine").cpus(), [cpu]);
        move_to(all.cpus()).expect("back");
        assert_eq!(Topology::read().expect("this machine"), all);
        for wrong in [1023, 1024, u32::MAX] {
            let error = pin(wrong).expect_err("no such CPU").to_string();
            assert!(error.contains(&format!("CPU {wrong}")), "{error}");
        }
    }

    #[test]
    fn work_is_done_on_a_node_and_the_thread_comes_back() {
        let all = Topology::read().expect("this machine");
        let cpu = all.cpus()[0];
        let node = all.node_of(cpu).expect("a node");
        pin(cpu).expect("one of ours");
        let there = all.on_node(node, || Topology::read().expect("this machine").cpus().to_vec());
        assert_eq!(there.expect("a node of ours"), all.cpus_of(node));
        assert_eq!(Topology::read().expect("this machine").cpus(), [cpu]);
        let panicked = std::panic::catch_unwind(|| all.on_node(node, || panic!("on purpose")));
        assert!(panicked.is_err());
        assert_eq!(Topology::read().expect("this machine").cpus(), [cpu]);
    }

    #[test]
    fn a_node_that_cannot_be_used_names_those_that_can() {
        let some = machine(&["0-3", "4-7", ""], 8, [1, 5]);
        for (node, what) in [(2, "no CPU"), (9, "no place")] {
            let error = some.on_node(node, || ()).expect_err("not there").to_string();
            assert!(error.contains(what) && error.ends_with("0, 1"), "{error}");
        }
    }
}
