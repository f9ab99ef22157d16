//! Identities of a window's nodes. A node is a network namespace of a kernel, so a container is one and a guest is one.
//! Its number is its place in the table of the header. A node exists while one of its processes lives.

use crate::error::{Error, Result};
use crate::layout::{Entry, Header, Layout};
use crate::locks::{self, Kernel, Kind, Locked, one};
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Time that a process waits for the lock of the table of nodes, which others hold for moments only.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// Time without a heartbeat after which a node is dead. Processes call [`crate::Process::beat`] some ten times in it.
const STILL: Duration = Duration::from_secs(1);

/// The identity of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The kernel, by its boot id.
    pub kernel: u128,
    /// Device and inode of the network namespace.
    pub namespace: [u64; 2],
}

impl Identity {
    /// The identity of the calling thread's node.
    pub(crate) fn own() -> Result<Identity> {
        const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
        const NAMESPACE: &str = "/proc/thread-self/ns/net";
        let cannot =
            |file| move |e| Error::of(format_args!("which node of the window this is does not show in {file}"), e);
        let text = std::fs::read_to_string(BOOT_ID).map_err(cannot(BOOT_ID))?;
        let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
        let kernel = u128::from_str_radix(&digits, 16)
            .map_err(|_| Error::new(libc::EIO, format!("{BOOT_ID} is not a number: {:?}", text.trim())))?;
        let meta = std::fs::metadata(NAMESPACE).map_err(cannot(NAMESPACE))?;
        Ok(Identity { kernel, namespace: [meta.dev(), meta.ino()] })
    }

    /// The identity in an entry of the table; None: never taken.
    pub(crate) fn of_entry(entry: &Entry) -> Option<Identity> {
        let words = [0, 1, 2, 3].map(|i: usize| entry.identity[i].load(Ordering::Acquire));
        let kernel = u128::from(words[0]) << 64 | u128::from(words[1]);
        (words != [0; 4]).then_some(Identity { kernel, namespace: [words[2], words[3]] })
    }

    fn write(self, entry: &Entry) {
        let words = [(self.kernel >> 64) as u64, self.kernel as u64, self.namespace[0], self.namespace[1]];
        for (word, value) in entry.identity.iter().zip(words) {
            word.store(value, Ordering::Release);
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "network namespace {} of the kernel with boot id {:032x}", self.namespace[1], self.kernel)
    }
}

/// Returns true if a node of another kernel has ever been in the window. Locks do not show its processes.
pub(crate) fn has_other_kernels(header: &Header, layout: Layout, own: Identity) -> bool {
    header.table[..layout.nodes() as usize]
        .iter()
        .any(|entry| Identity::of_entry(entry).is_some_and(|other| other.kernel != own.kernel))
}

/// The number of the node with this identity: `wanted`, or else the one that it has already, or a free one. From now on
/// the holder of `locks` keeps the node alive.
///
/// # Errors
/// EINVAL: there is no node `wanted`, or none is wanted although a node of another kernel lives, whose locks cannot be
/// seen; EBUSY: the node is another's, or the table stays locked; ENOSPC: all nodes are others'.
pub(crate) fn join(
    header: &Header,
    layout: Layout,
    locks: &dyn Kernel,
    own: Identity,
    wanted: Option<u32>,
    patience: Duration,
) -> Result<u32> {
    if let Some(wanted) = wanted.filter(|n| *n >= layout.nodes()) {
        let last = layout.nodes() - 1;
        return Err(Error::invalid(format!("the window has nodes 0 to {last}, not {wanted}")));
    }
    if !locks::lock_soon(locks, locks::TABLE, patience)? {
        return Err(locks::stuck("the window's table of nodes"));
    }
    let _table = Locked::of(locks, locks::TABLE);
    let entry = |n: u32| &header.table[n as usize];
    let node = match wanted {
        Some(wanted) => match holder(entry(wanted), locks, wanted, own)? {
            Some(other) if other != own => {
                return Err(Error::new(libc::EBUSY, format!("node {wanted} of the window is {other}; this is {own}")));
            }
            _ => wanted,
        },
        None => search(header, layout, locks, own)?,
    };
    if Identity::of_entry(entry(node)) != Some(own) {
        own.write(entry(node));
    }
    if !locks.try_lock(one(locks::node(node)), Kind::Shared)? {
        return Err(locks::stuck("the window's node"));
    }
    Ok(node)
}

/// The identity that holds a node; None: no living process does.
fn holder(entry: &Entry, locks: &dyn Kernel, node: u32, own: Identity) -> Result<Option<Identity>> {
    let Some(said) = Identity::of_entry(entry) else { return Ok(None) };
    let is_held = if said.kernel == own.kernel {
        locks.others(one(locks::node(node)))?.is_some()
    } else {
        moves(&[entry], locks)
    };
    Ok(is_held.then_some(said))
}

/// Returns true if the heartbeat of one of these nodes changes within [`STILL`].
fn moves(entries: &[&Entry], locks: &dyn Kernel) -> bool {
    let beats = || entries.iter().map(|entry| entry.beats.load(Ordering::Acquire)).collect::<Vec<_>>();
    let before = beats();
    locks.pause(STILL);
    beats() != before
}

fn search(header: &Header, layout: Layout, locks: &dyn Kernel, own: Identity) -> Result<u32> {
    let table = &header.table[..layout.nodes() as usize];
    let said: Vec<Option<Identity>> = table.iter().map(Identity::of_entry).collect();
    let foreign: Vec<&Entry> = table
        .iter()
        .zip(&said)
        .filter(|(_, said)| said.is_some_and(|s| s.kernel != own.kernel))
        .map(|(e, _)| e)
        .collect();
    // Silent nodes of another kernel are left from before this machine's last boot.
    if !foreign.is_empty() && moves(&foreign, locks) {
        let what = "machines with different kernels use the window, so each has to say which node it is (node=N)";
        return Err(Error::invalid(what));
    }
    for entry in foreign {
        entry.identity.iter().for_each(|word| word.store(0, Ordering::Release));
    }
    let mut free = None;
    for node in 0..layout.nodes() {
        let is_own = said[node as usize] == Some(own);
        let is_held = locks.others(one(locks::node(node)))?.is_some();
        if is_own && is_held {
            return Ok(node);
        }
        // A node that this identity had before is preferred to one that was never taken.
        if !is_held && (is_own || free.is_none()) {
            free = Some(node);
        }
    }
    let full = || Error::new(libc::ENOSPC, format!("all {} nodes of the window are others'", layout.nodes()));
    free.ok_or_else(full)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Region;
    use crate::parts;
    use crate::simulated::kernel::{Simulated, Table};
    use std::ops::Range;
    use std::sync::{Arc, Mutex};

    const SOON: Duration = Duration::from_millis(50);

    /// A window's header, and the kernels of machines that see it.
    struct Fabric {
        header: Region,
        layout: Layout,
        kernels: [Arc<Mutex<Table>>; 2],
    }

    fn fabric(nodes: u32) -> Fabric {
        let layout = Layout::new(nodes, 64 << 20).unwrap();
        Fabric {
            header: parts::memory(crate::layout::HEADER).unwrap(),
            layout,
            kernels: [Arc::default(), Arc::default()],
        }
    }

    fn identity(kernel: usize, namespace: u64) -> Identity {
        Identity { kernel: kernel as u128 + 10, namespace: [4, namespace] }
    }

    impl Fabric {
        fn header(&self) -> &Header {
            Header::of(&self.header)
        }

        /// A new process. It belongs to its node until it is dropped.
        fn join(&self, kernel: usize, namespace: u64, wanted: Option<u32>) -> Result<(u32, Simulated)> {
            let process = Simulated::new(&self.kernels[kernel]);
            self.join_by(&process, identity(kernel, namespace), wanted).map(|node| (node, process))
        }

        fn join_by(&self, kernel: &dyn Kernel, own: Identity, wanted: Option<u32>) -> Result<u32> {
            join(self.header(), self.layout, kernel, own, wanted, SOON)
        }
    }

    /// A kernel that adds to the heartbeat of one node at each pause.
    struct Beating<'a>(Simulated, &'a Fabric, usize);

    impl Kernel for Beating<'_> {
        fn try_lock(&self, bytes: Range<u64>, kind: Kind) -> Result<bool> {
            self.0.try_lock(bytes, kind)
        }
        fn unlock(&self, bytes: Range<u64>) {
            self.0.unlock(bytes);
        }
        fn others(&self, bytes: Range<u64>) -> Result<Option<Range<u64>>> {
            self.0.others(bytes)
        }
        fn now_ms(&self) -> u64 {
            self.0.now_ms()
        }
        fn pause(&self, _time: Duration) {
            self.1.header().table[self.2].beats.fetch_add(1, Ordering::Relaxed);
        }
        fn random(&self) -> Result<u64> {
            self.0.random()
        }
        fn check(&self) -> Result<()> {
            self.0.check()
        }
    }

    #[test]
    fn an_identity_has_one_node_which_others_may_have_when_it_is_gone() {
        let fabric = fabric(3);
        let (first, a) = fabric.join(0, 1, None).unwrap();
        let (second, _b) = fabric.join(0, 2, None).unwrap();
        let (again, c) = fabric.join(0, 1, None).unwrap();
        assert_eq!((first, second, again), (0, 1, 0));
        drop(a);
        assert_eq!(fabric.join(0, 1, None).unwrap().0, 0, "one process of it is there");
        drop(c);
        // Nobody is node 0: who was it gets it, and else the first free one is as good.
        assert_eq!(fabric.join(0, 1, None).unwrap().0, 0);
        let (new, d) = fabric.join(0, 3, None).unwrap();
        assert_eq!(new, 0);
        let (other, e) = fabric.join(0, 1, None).unwrap();
        assert_eq!(other, 2);
        drop(d);
        drop(fabric.join(0, 1, Some(0)).unwrap());
        assert_eq!(fabric.join(0, 1, None).unwrap().0, 2, "where it is, not where it was");
        drop(e);
        let (_, _d) = fabric.join(0, 3, Some(0)).unwrap();
        assert_eq!(fabric.join(0, 1, None).unwrap().0, 2);
    }

    #[test]
    fn a_node_that_is_asked_for_is_had_unless_another_has_it() {
        let fabric = fabric(2);
        let (node, _a) = fabric.join(0, 1, Some(1)).unwrap();
        assert_eq!(node, 1);
        assert_eq!(fabric.join(0, 1, Some(1)).unwrap().0, 1);
        assert_eq!(fabric.join(0, 1, Some(0)).unwrap().0, 0, "several of one namespace");
        let error = fabric.join(0, 2, Some(1)).unwrap_err();
        assert_eq!(error.errno(), libc::EBUSY);
        let both = [identity(0, 1), identity(0, 2)].map(|identity| identity.to_string());
        assert_eq!(error.to_string(), format!("node 1 of the window is {}; this is {}", both[0], both[1]));
        let (_, _b) = fabric.join(0, 2, None).unwrap();
        let error = fabric.join(0, 3, None).unwrap_err();
        assert_eq!((error.errno(), &*error.to_string()), (libc::ENOSPC, "all 2 nodes of the window are others'"));
        let error = fabric.join(0, 1, Some(2)).unwrap_err();
        assert_eq!((error.errno(), &*error.to_string()), (libc::EINVAL, "the window has nodes 0 to 1, not 2"));
    }

    #[test]
    fn a_table_that_stays_locked_is_an_error() {
        let fabric = fabric(2);
        let stopped = Simulated::new(&fabric.kernels[0]);
        assert!(stopped.try_lock(one(locks::TABLE), Kind::Alone).unwrap());
        let error = fabric.join(0, 1, None).unwrap_err();
        assert_eq!(error.errno(), libc::EBUSY);
        assert!(error.to_string().starts_with("the window's table of nodes has been locked for too long"), "{error}");
        drop(stopped);
        fabric.join(0, 1, None).unwrap();
    }

    #[test]
    fn nodes_of_other_kernels_are_there_while_they_say_so() {
        let fabric = fabric(3);
        let (_, _elsewhere) = fabric.join(1, 7, Some(0)).unwrap();
        let alive = |process: &Simulated| Beating(process.clone(), &fabric, 0);
        let here = Simulated::new(&fabric.kernels[0]);
        assert!(has_other_kernels(fabric.header(), fabric.layout, identity(0, 1)));
        // It lives: its node is not to be had, and no node is found without being told.
        let error = fabric.join_by(&alive(&here), identity(0, 1), Some(0)).unwrap_err();
        assert_eq!(error.errno(), libc::EBUSY);
        let error = fabric.join_by(&alive(&here), identity(0, 1), None).unwrap_err();
        assert_eq!((error.errno(), error.to_string().contains("(node=N)")), (libc::EINVAL, true), "{error}");
        assert_eq!(fabric.join_by(&alive(&here), identity(0, 1), Some(1)).unwrap(), 1);
        // Its machine has started anew: the same node again, with another boot id.
        assert_eq!(fabric.join_by(&here, identity(0, 1), Some(0)).unwrap(), 0);
        drop(here);
        // Entries of an earlier life of this machine are forgotten.
        identity(1, 8).write(&fabric.header().table[2]);
        let (node, _b) = fabric.join(0, 9, None).unwrap();
        assert_eq!(node, 0);
        assert!(!has_other_kernels(fabric.header(), fabric.layout, identity(0, 9)));
    }

    #[test]
    fn this_node_has_an_identity() {
        let own = Identity::own().unwrap();
        assert_eq!(own, Identity::own().unwrap());
        assert!(own.kernel != 0 && own.namespace[1] != 0, "{own}");
    }
}
