//! How the two ends of a connection find each other. The end that others store to has a node in memory of its own, and
//! pushes it on a list that begins in the first word of the other rank's starter memory: by compare and swap, until
//! nobody has come between. The other rank takes the whole list by one swap, whenever it looks, and reads the nodes. So
//! the list needs 8 bytes however many push, nobody waits for one who has stopped, and nothing is ever full.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use vervain_acp::{Atomic, Error, GlobalAddress, Handle, Order, Result, World};

use crate::memory::{self, Arena, Piece};

/// Words of a node: the next one's address, kind and number, and what the kind of end wants to tell.
pub(crate) const NODE: usize = 5;
/// A value that no atomic finds.
const NOTHING: u64 = u64::MAX;
/// Limit of how far a peer may be ahead with creating ends.
const AHEAD: u32 = 1 << 20;

/// The kinds of ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Channel = 1,
    Segments = 2,
}

/// Which end of which rank's: matching ones have the same number, in the order of their creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    pub peer: u32,
    pub kind: Kind,
    pub number: u32,
}

/// The node of an end of a peer's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hello {
    /// Its address.
    pub node: GlobalAddress,
    pub told: [u64; 3],
}

/// Pushing a node.
pub(crate) struct Push<'w> {
    to: u32,
    node: Piece<'w>,
    /// The first word of the list at the last look.
    expected: u64,
    /// The place where the atomic stores the word that it has found.
    found: usize,
    is_under_way: bool,
    is_over: bool,
}

impl<'w> Push<'w> {
    /// Begins to push the first words of `node`, which say `told`; `found` is the index of a word for the atomics.
    pub fn new(world: &World, name: Name, node: Piece<'w>, told: [u64; 3], found: usize) -> Result<Self> {
        node.store(1, u64::from(name.kind as u32) << 32 | u64::from(name.number));
        told.iter().enumerate().for_each(|(i, word)| node.store(2 + i, *word));
        let mut push = Self { to: name.peer, node, expected: 0, found, is_under_way: false, is_over: false };
        push.go_on(world)?;
        Ok(push)
    }

    /// Returns whether it is over.
    pub fn go_on(&mut self, world: &World) -> Result<bool> {
        while !self.is_over {
            if self.is_under_way {
                let found = self.node.load(self.found);
                if found == NOTHING {
                    return Ok(false);
                }
                self.is_under_way = false;
                if found == self.expected {
                    self.is_over = true;
                    world.wake(self.to)?;
                    break;
                }
                self.expected = found;
            }
            self.node.store(0, self.expected);
            self.node.store(self.found, NOTHING);
            let list = world.library_starter(vervain_acp::Library::Communication, self.to);
            let list = list.ok_or_else(|| Error::refused(format!("there is no rank {}", self.to)))?;
            let swap = Atomic::CompareSwap8 { expected: self.expected, new: self.node.address(0).0 };
            world.atomic(self.node.address(self.found), list, swap, Order::Now)?;
            self.is_under_way = true;
        }
        Ok(true)
    }

    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// The word that changes when its atomic is done.
    pub fn watched(&self) -> &'w AtomicU64 {
        self.node.word(self.found)
    }
}

/// The list of this rank's, and who was on it.
pub(crate) struct Mail<'w> {
    first: &'w AtomicU64,
    landing: Piece<'w>,
    /// Lists whose first node is to be read, and the one that is being read.
    lists: Vec<GlobalAddress>,
    reading: Option<(GlobalAddress, Handle)>,
    arrived: HashMap<Name, Hello>,
    /// Nodes that wait for an end of this rank's, each of them once.
    nodes: HashSet<u64>,
    /// Ends of this rank's that were created, by peer and kind, for each direction.
    created: HashMap<(u32, Kind, bool), u32>,
}

impl<'w> Mail<'w> {
    pub fn new(world: &'w World, arena: &mut Arena<'w>) -> Result<Self> {
        Ok(Self {
            first: memory::first_word(world)?,
            landing: arena.take(16)?,
            lists: vec![],
            reading: None,
            arrived: HashMap::new(),
            nodes: HashSet::new(),
            created: HashMap::new(),
        })
    }

    /// The name of an end that is created; `pushes`: it is the one that pushes.
    pub fn name(&mut self, peer: u32, kind: Kind, pushes: bool) -> Name {
        let count = self.created.entry((peer, kind, pushes)).or_default();
        *count += 1;
        Name { peer, kind, number: *count - 1 }
    }

    /// The node of the matching end, if it has come.
    pub fn take(&mut self, name: &Name) -> Option<Hello> {
        let hello = self.arrived.remove(name)?;
        self.nodes.remove(&hello.node.0);
        Some(hello)
    }

    /// The word that changes when somebody pushes.
    pub fn watched(&self) -> &'w AtomicU64 {
        self.first
    }

    /// The handle of the read in progress.
    pub fn handle(&self) -> Option<Handle> {
        self.reading.map(|(_, handle)| handle)
    }

    /// Takes the list and reads nodes, as far as that goes without waiting. A round trip for each node.
    #[inline]
    pub fn go_on(&mut self, world: &World) -> Result<()> {
        if self.first.load(Ordering::Relaxed) == 0 && self.reading.is_none() {
            return Ok(());
        }
        self.read(world)
    }

    fn read(&mut self, world: &World) -> Result<()> {
        let first = self.first.swap(0, Ordering::AcqRel);
        if first != 0 {
            self.lists.push(GlobalAddress(first));
        }
        // Not without an end, whatever peers store.
        for _ in 0..256 {
            if let Some((node, handle)) = self.reading {
                if !world.is_complete(handle)? {
                    return Ok(());
                }
                self.reading = None;
                self.note(world, node)?;
            }
            let Some(node) = self.lists.pop() else { return Ok(()) };
            let peer = world.rank_of(node).filter(|peer| *peer != world.rank() && node.0.is_multiple_of(8));
            if peer.is_none() {
                return Err(Error::broken(format!("{node} on the list of those who want to send here is no node")));
            }
            let handle = world.copy(self.landing.address(0), node, NODE * memory::WORD, Order::Now)?;
            self.reading = Some((node, handle));
        }
        Ok(())
    }

    /// Notes a node that was read.
    fn note(&mut self, world: &World, node: GlobalAddress) -> Result<()> {
        let [next, name, told @ ..] = std::array::from_fn::<u64, NODE, _>(|i| self.landing.load(i));
        if next != 0 {
            self.lists.push(GlobalAddress(next));
        }
        let Some(peer) = world.rank_of(node) else { return Ok(()) };
        let kind = [Kind::Channel, Kind::Segments].into_iter().find(|kind| *kind as u64 == name >> 32);
        let number = name as u32;
        let known = |kind| self.created.get(&(peer, kind, false)).copied().unwrap_or(0);
        let name = kind.filter(|kind| number < known(*kind).saturating_add(AHEAD));
        let name = name.map(|kind| Name { peer, kind, number });
        let name = name.filter(|name| !self.arrived.contains_key(name) && self.nodes.insert(node.0));
        let Some(name) = name else {
            return Err(Error::broken(format!("what rank {peer} says of its end of a connection cannot be: {told:?}")));
        };
        self.arrived.insert(name, Hello { node, told });
        Ok(())
    }
}
