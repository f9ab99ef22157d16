//! Checkpoints that the supervisor of the job asks for (`vervain-request`): nodes number their calls, and a word of
//! memory that they share with it says at which of them all make one.

use std::env;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use vervain_bootstrap::Job;
use vervain_request::{Node, VARIABLE};

use crate::checkpoint;
use crate::context::Together;
use crate::error::{Error, Result};
use crate::shared::Shared;

/// Time for which a launcher may take to fetch a value.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks whether the supervisor has put a checkpoint away, and how many of them until one at whether it is
/// there.
const LOOK: Duration = Duration::from_micros(500);
const LOOKS: u32 = 200;
/// Time for which a node that could not save may take to give the reason; the others know already that it could not.
const REASON: Duration = Duration::from_secs(1);

/// The state of a context's requests for checkpoints.
#[derive(Default)]
pub(crate) struct Asked {
    node: Option<Node>,
    /// True if all nodes see one file; None until that was checked.
    together: Option<bool>,
    /// True if this context is the one that is asked.
    is_of: bool,
    calls: u64,
}

fn key(epoch: u32) -> String {
    format!("pm.asked.{epoch}")
}

impl Asked {
    /// Finds the supervisor's file, and announces its identity to the other nodes, which see it after the next fence;
    /// so the first call need not wait for them.
    pub fn open(job: &Job, epoch: u32) -> Result<Asked> {
        // One that cannot be opened is that of another host.
        let path = env::var_os(VARIABLE).filter(|path| !path.is_empty());
        let node = path.and_then(|path| Node::open(Path::new(&path)).ok());
        let identity = node.as_ref().map_or(0, Node::identity);
        job.put(&key(epoch), &identity.to_le_bytes())?;
        Ok(Asked { node, ..Asked::default() })
    }

    /// Returns whether all nodes of the context see what this one does.
    fn are_together(node: &Node, shared: &Shared) -> Result<bool> {
        let own = node.identity().to_le_bytes();
        let mut all = true;
        for rank in 0..shared.job.size() {
            let told = shared.job.get(rank, &key(shared.epoch), PATIENCE)?;
            all &= told.as_deref() == Some(&own);
        }
        node.meet(all);
        Ok(all)
    }

    /// The file, and the number of the next call, where there is one that all see.
    fn next(&mut self, shared: &Shared) -> Result<Option<(&Node, u64)>> {
        // In any case, or the numbers of nodes would differ from then on.
        self.calls += 1;
        let Some(node) = &self.node else { return Ok(None) };
        let all = match self.together {
            Some(all) => all,
            None => {
                let all = Self::are_together(node, shared)?;
                *self.together.insert(all)
            }
        };
        if all && self.calls == 1 {
            self.is_of = node.is_of(shared.epoch);
        }
        if all && !self.is_of {
            return Err(Error::invalid("checkpoints are asked of another context, which was the first to call"));
        }
        Ok(all.then_some((node, self.calls)))
    }
}

/// Makes a checkpoint, if one is asked for at this call; says whether.
pub(crate) fn make(
    shared: &Shared,
    together: &mut Together,
    directory: impl FnOnce() -> Result<PathBuf>,
    program: impl FnOnce(i32),
) -> Result<bool> {
    let mut asked = std::mem::take(&mut together.asked);
    let made = match asked.next(shared) {
        Ok(Some((node, call))) if node.begin(call) => {
            let directory = directory();
            let directory = directory.as_deref().map_err(Clone::clone);
            let made = checkpoint::make(shared, together, directory, program, || hand_over(node, call));
            // The node that failed gives its reason; the others have none to give.
            match made.as_ref().map_err(Error::errno) {
                Ok(()) => {}
                Err(libc::ECANCELED) => await_reason(node, call),
                Err(error) => node.failed(call, error),
            }
            made.map(|()| true)
        }
        other => other.map(|_| false),
    };
    together.asked = asked;
    made
}

/// Waits until the node that could not save has said why: the next call of this one would say that it has failed, and
/// no reason.
fn await_reason(node: &Node, call: u64) {
    let until = Instant::now() + REASON;
    while node.is_making(call) && Instant::now() < until {
        thread::sleep(LOOK);
    }
}

/// Waits until the supervisor has put away what all nodes have saved.
fn hand_over(node: &Node, call: u64) {
    node.saved(call);
    let mut looks = 0;
    while !node.is_over(call) {
        looks += 1;
        if looks % LOOKS == 0 && node.is_alone() {
            return;
        }
        thread::sleep(LOOK);
    }
}
