//! Who the nodes of a window are. A node is a network namespace of a kernel, so that a container is one and a guest is one; its
//! number is its place in the table of the header. It is there while one of its processes lives.

use crate::error::{Error, Result};
use crate::layout::{Entry, Header, Layout};
use crate::locks::{self, Kernel, Kind, Locked, one};
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a process waits for the table of nodes, which others hold for moments.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// Processes say by [`crate::Process::beat`] that they live some ten times in this time.
const STILL: Duration = Duration::from_secs(1);

/// Who a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The kernel, by its boot id.
    pub kernel: u128,
    /// Device and inode of the network namespace.
    pub namespace: [u64; 2],
}

impl Identity {
    /// That of the calling thread.
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

    /// What the table says; None for a node that nobody has been.
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

/// Whether a node of another kernel has ever been in the window; locks tell nothing of its processes.
pub(crate) fn has_other_kernels(header: &Header, layout: Layout, own: Identity) -> bool {
    header.table[..layout.nodes() as usize]
        .iter()
        .any(|entry| Identity::of_entry(entry).is_some_and(|other| other.kernel != own.kernel))
}

/// The number of the node with this identity: `wanted`, or what it has already, or a free one. From now on the holder of
/// `locks` keeps the node alive.
///
/// # Errors
/// EINVAL: there is no node `wanted`, or a kernel that tells nothing of its locks is there and nothing is wanted; EBUSY: it is
/// another's, or the table stays locked; ENOSPC: all are others'.
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

/// Who holds a node, if anybody does.
fn holder(entry: &Entry, locks: &dyn Kernel, node: u32, own: Identity) -> Result<Option<Identity>> {
    let Some(said) = Identity::of_entry(entry) else { return Ok(None) };
    let is_held = if said.kernel == own.kernel {
        locks.others(one(locks::node(node)))?.is_some()
    } else {
        moves(&[entry], locks)
    };
    Ok(is_held.then_some(said))
}

/// Whether a process of one of these nodes says that it lives.
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
    // Nodes of another kernel are those of an earlier life of this machine, if they are silent.
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
        // One that was this node before is better than one that nobody was.
        if !is_held && (is_own || free.is_none()) {
            free = Some(node);
        }
    }
    let full = || Error::new(libc::ENOSPC, format!("all {} nodes of the window are others'", layout.nodes()));
    free.ok_or_else(full)
}
