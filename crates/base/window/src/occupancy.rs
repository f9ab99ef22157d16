//! Usage of a window, for reports.

use crate::claims::Claims;
use crate::error::Result;
use crate::layout::{GRANULE, PROCESSES};

/// Usage of a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occupancy {
    /// Nodes that are or were taken, by number.
    pub nodes: Vec<(u32, Processes)>,
    /// Bytes of this node's region that processes can claim, and how many of them are free.
    pub room: (u64, u64),
}

/// The processes of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Processes {
    /// Number of living processes.
    Live(u32),
    /// The node has another kernel, whose locks are not seen here.
    Elsewhere,
}

impl Claims {
    /// The usage that the locks show.
    ///
    /// # Errors
    /// ESRCH: this is a forked child.
    pub fn occupancy(&self) -> Result<Occupancy> {
        let mut nodes = Vec::new();
        for node in 0..self.layout().nodes() {
            let Some(is_here) = self.is_here(node) else { continue };
            let mut live = 0;
            for number in 0..PROCESSES {
                live += u32::from(is_here && self.has_process(node, number)?);
            }
            nodes.push((node, if is_here { Processes::Live(live) } else { Processes::Elsewhere }));
        }
        let room = [self.layout().granules().len(), self.unclaimed()?].map(|granules| granules as u64 * GRANULE);
        Ok(Occupancy { nodes, room: room.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileDevice, Options, PutDevice};

    #[test]
    fn it_says_who_is_there_and_what_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let open = |node| {
            let options = Options { size: Some(4 << 20), nodes: Some(3), node: Some(node), peach2: None };
            FileDevice::open(&folder.path().join("window"), &options).unwrap()
        };
        let (ours, also_ours, theirs) = (open(0), open(0), open(2));
        let (all, _) = ours.claims().occupancy().unwrap().room;
        let processes = [&ours, &also_ours, &also_ours].map(|device| device.claims().process().unwrap());
        let claims = [&processes[1], &processes[0], &processes[2], &processes[0]].map(|p| p.claim(2).unwrap());
        let used = claims[3].bytes().start / GRANULE;
        // Memory of the dead cannot be claimed while a peer may still put there.
        let guard = theirs.claims().use_of(0, used as u32..used as u32 + 1, processes[0].incarnation()).unwrap();
        drop(claims);
        let after = ours.claims().occupancy().unwrap();
        assert_eq!(after.nodes, [(0, Processes::Live(3)), (2, Processes::Live(0))]);
        assert_eq!(after.room, (all, all - GRANULE));
        let again = processes[2].claim(3).unwrap();
        assert_eq!(theirs.claims().occupancy().unwrap().nodes, after.nodes);
        for device in [&ours, &also_ours] {
            assert_eq!(device.claims().occupancy().unwrap().room.1, all - 4 * GRANULE);
        }
        drop((again, guard));
        assert_eq!(ours.claims().occupancy().unwrap().room.1, all);
    }

    #[test]
    fn of_another_kernel_s_nodes_it_does_not_say_how_many_live() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("window");
        let options = |node| Options { size: Some(4 << 20), nodes: Some(2), node: Some(node), peach2: None };
        let other = crate::nodes::Identity { kernel: 5, namespace: [1, 1] };
        let _theirs = FileDevice::open_as(&path, &options(1), other).unwrap();
        let ours = FileDevice::open(&path, &options(0)).unwrap();
        let nodes = ours.claims().occupancy().unwrap().nodes;
        assert_eq!(nodes, [(0, Processes::Live(0)), (1, Processes::Elsewhere)]);
    }
}
