//! This process's membership in its job, which all its contexts share. The job is joined by the first context and left
//! with the last device, and a process does either once: launchers know it by that.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vervain_bootstrap::Job;

use crate::error::{Error, Result};

/// Time for which a launcher may take to fetch a value.
const PATIENCE: Duration = Duration::from_secs(30);

enum State {
    Outside,
    In(Arc<Job>),
    Left,
}

struct Membership {
    state: State,
    devices: u32,
    /// Contexts that were opened: each is an epoch of the mesh, so all ranks open theirs in the same order.
    contexts: u32,
    hosts: Option<Hosts>,
}

static MEMBERSHIP: Mutex<Membership> =
    Mutex::new(Membership { state: State::Outside, devices: 0, contexts: 0, hosts: None });

fn membership() -> MutexGuard<'static, Membership> {
    MEMBERSHIP.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device was opened.
pub(crate) fn add_device() {
    membership().devices += 1;
}

/// One was closed, and no context uses it: with the last one the job is left.
pub(crate) fn remove_device() -> Result<()> {
    let mut membership = membership();
    membership.devices -= 1;
    if membership.devices > 0 || matches!(membership.state, State::Outside) {
        return Ok(());
    }
    let State::In(job) = std::mem::replace(&mut membership.state, State::Left) else { return Ok(()) };
    drop(membership);
    Arc::into_inner(job).map_or(Ok(()), |job| Ok(job.finalize()?))
}

/// The job, and the number of the context that is to be opened in it.
pub(crate) fn enter() -> Result<(Arc<Job>, u32)> {
    let mut membership = membership();
    let job = match &membership.state {
        State::In(job) => job.clone(),
        State::Left => {
            return Err(Error::broken("this process has closed its last device, and with that left its job"));
        }
        State::Outside => {
            let job = Arc::new(Job::join()?);
            membership.state = State::In(job.clone());
            job
        }
    };
    membership.contexts += 1;
    Ok((job, membership.contexts - 1))
}

/// The hosts of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hosts {
    /// Their number.
    pub count: u32,
    /// The number of this one, from 0. They are numbered as the lowest ranks of each.
    pub own: u32,
}

impl Hosts {
    /// Counts the hosts; all ranks do, once they are in the job. Where the launcher does not say which ranks share a
    /// host, each has its own.
    pub(crate) fn count(job: &Job) -> Result<Hosts> {
        let mut membership = membership();
        if let Some(hosts) = membership.hosts {
            return Ok(hosts);
        }
        let word = |bytes: &[u8]| bytes.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        let lowest = job.local_ranks().and_then(|ranks| ranks.first().copied()).unwrap_or(job.rank());
        job.put("pm.host", &lowest.to_le_bytes())?;
        job.fence()?;
        if job.rank() == 0 {
            let mut all = Vec::new();
            for rank in 0..job.size() {
                let value = job.get(rank, "pm.host", PATIENCE)?;
                let value = value.as_deref().and_then(word);
                all.push(value.ok_or_else(|| Error::broken(format!("rank {rank} does not say on which host it is")))?);
            }
            all.sort_unstable();
            all.dedup();
            let bytes: Vec<u8> = all.into_iter().flat_map(u32::to_le_bytes).collect();
            job.put("pm.hosts", &bytes)?;
        }
        job.fence()?;
        let all = job.get(0, "pm.hosts", PATIENCE)?.unwrap_or_default();
        let own = all.chunks_exact(4).position(|bytes| word(bytes) == Some(lowest));
        let own = own.ok_or_else(|| Error::broken("rank 0 does not know this host"))?;
        let hosts = Hosts { count: (all.len() / 4) as u32, own: own as u32 };
        membership.hosts = Some(hosts);
        Ok(hosts)
    }
}
