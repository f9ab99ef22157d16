//! Claims and uses of memory by several processes, drawn by a property test, against a model of who has what.

#[allow(dead_code)] // each test file uses a part of it
mod simulated;

use proptest::prelude::*;
use simulated::{MemoryDevice, Plan, World};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::Ordering;
use vervain_window::{Claim, FileDevice, GRANULE, HeapOwner, Layout, Options, Process, PutDevice, UseGuard};

#[derive(Debug, Clone)]
enum Act {
    /// A process claims so many granules.
    Claim(usize, u32),
    /// Claims this many granules for its heap, aligned.
    ClaimHeap(usize, u32, u32),
    /// It gives back one of its claims.
    GiveBack(usize, usize),
    /// One uses a part of what another has: begin and end in 16ths of it.
    Use(usize, usize, usize, u32, u32),
    Unuse(usize, usize),
    /// It dies, and another takes its place.
    Kill(usize),
}

const PROCESSES: usize = 4;

fn act() -> impl Strategy<Value = Act> {
    let who = || 0..PROCESSES;
    prop_oneof![
        4 => (who(), 1..40_u32).prop_map(|(who, count)| Act::Claim(who, count)),
        2 => (who(), 1..12_u32, 1..6_u32).prop_map(|(who, count, align)| Act::ClaimHeap(who, count, align)),
        3 => (who(), any::<usize>()).prop_map(|(who, which)| Act::GiveBack(who, which)),
        3 => (who(), who(), any::<usize>(), 0..16_u32, 1..17_u32)
            .prop_map(|(who, whose, which, from, to)| Act::Use(who, whose, which, from, to)),
        3 => (who(), any::<usize>()).prop_map(|(who, which)| Act::Unuse(who, which)),
        1 => who().prop_map(Act::Kill),
    ]
}

/// A device, and how its process dies.
enum Device {
    Memory(MemoryDevice),
    /// Dies by an orderly end, as the kernel closes descriptors.
    File(FileDevice),
}

impl Device {
    fn get(&self) -> &dyn PutDevice {
        match self {
            Device::Memory(device) => device,
            Device::File(device) => device,
        }
    }
}

struct Player {
    claims: Vec<Claim>,
    /// With the node's granules that they are of.
    uses: Vec<(UseGuard, BTreeSet<u32>)>,
    process: Process,
    heap: HeapOwner,
    device: Device,
}

impl Player {
    fn new(device: Device) -> Player {
        let (process, heap) = (device.get().claims().process().unwrap(), device.get().claims().heap().unwrap());
        Player { claims: vec![], uses: vec![], process, heap, device }
    }
}

/// The first place for so many granules among those that nobody has or uses.
fn first_fit(players: &[Player], all: Range<u32>, count: u32, align: u32) -> Option<Range<u32>> {
    let owned = players[..PROCESSES - 1].iter().flat_map(|p| &p.claims).flat_map(Claim::granules);
    let used = players.iter().flat_map(|p| &p.uses).flat_map(|(_, granules)| granules.iter().copied());
    let taken: BTreeSet<u32> = owned.chain(used).collect();
    let first = all.clone().filter(|first| first.is_multiple_of(align) && all.end - first >= count);
    let mut runs = first.map(|first| first..first + count);
    runs.find(|run| run.clone().all(|g| !taken.contains(&g)))
}

/// Processes of node 0, and a last one of node 1, which only uses what is theirs.
fn play(acts: Vec<Act>, device: impl Fn(u32) -> Device) -> Result<(), TestCaseError> {
    let node = |who: usize| u32::from(who == PROCESSES - 1);
    let mut players: Vec<Player> = (0..PROCESSES).map(|who| Player::new(device(node(who)))).collect();
    let layout = players[0].device.get().facts().layout;
    let mut last_of: BTreeMap<u64, u64> = BTreeMap::new();
    for act in acts {
        match act {
            Act::Claim(who, count) | Act::ClaimHeap(who, count, _) if node(who) == 0 => {
                let player = &players[who];
                let (claim, expected) = match act {
                    Act::ClaimHeap(.., align) => {
                        let expected = first_fit(&players, player.heap.granules(), count, align);
                        (player.heap.claim(count, align), expected)
                    }
                    _ => {
                        let expected = first_fit(&players, layout.granules(), count, 1);
                        (player.process.claim(count), expected)
                    }
                };
                prop_assert_eq!(claim.as_ref().ok().map(Claim::granules), expected);
                let Ok(claim) = claim else { continue };
                let own = players[who].device.get().own();
                for granule in claim.granules() {
                    for at in [0, GRANULE / 2, GRANULE - 8].map(|at| u64::from(granule) * GRANULE + at) {
                        prop_assert_eq!(own.word(at).swap(at, Ordering::Relaxed), 0);
                        last_of.insert(at, at);
                    }
                }
                players[who].claims.push(claim);
            }
            Act::Claim(..) | Act::ClaimHeap(..) => {}
            Act::GiveBack(who, which) => {
                let claims = &mut players[who].claims;
                if !claims.is_empty() {
                    claims.swap_remove(which % claims.len());
                }
            }
            Act::Use(who, whose, which, from, to) => {
                if players[whose].claims.is_empty() {
                    continue;
                }
                let claim = &players[whose].claims[which % players[whose].claims.len()];
                let (all, len) = (claim.granules(), claim.granules().len() as u32);
                let part = all.start + from * len / 16..all.start + to * len / 16;
                let incarnation = players[whose].process.incarnation();
                let guard = players[who].device.get().claims().use_of(0, part.clone(), incarnation);
                prop_assert_eq!(
                    guard.as_ref().err().map(vervain_window::Error::errno),
                    part.is_empty().then_some(libc::EINVAL)
                );
                players[who].uses.extend(guard.ok().map(|guard| (guard, part.collect())));
            }
            Act::Unuse(who, which) => {
                let uses = &mut players[who].uses;
                if !uses.is_empty() {
                    uses.swap_remove(which % uses.len());
                }
            }
            Act::Kill(who) => {
                if let Device::Memory(device) = &players[who].device {
                    device.kill();
                }
                players[who] = Player::new(device(node(who)));
            }
        }
    }
    // Memory of others was never touched.
    for at in players[..PROCESSES - 1].iter().flat_map(|p| &p.claims).map(|claim| claim.bytes().start) {
        prop_assert_eq!(players[0].device.get().own().word(at).load(Ordering::Relaxed), last_of[&at]);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_has_one_owner_in_a_simulation(acts in prop::collection::vec(act(), 1..80)) {
        let world = World::new(Layout::new(2, 20 << 20).unwrap(), Plan::default(), 0);
        play(acts, |node| Device::Memory(world.device(node).unwrap()))?;
    }

    #[test]
    fn memory_has_one_owner_in_a_file(acts in prop::collection::vec(act(), 1..80)) {
        let folder = tempfile::tempdir().unwrap();
        let options = |node| Options { size: Some(20 << 20), nodes: Some(2), node: Some(node), peach2: None };
        let path = folder.path().join("window");
        play(acts, |node| Device::File(FileDevice::open(&path, &options(node)).unwrap()))?;
    }
}
