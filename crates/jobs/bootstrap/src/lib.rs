//! The ranks of a parallel job: the own number, the number of all, and the key-value store by which they exchange
//! addresses.
//!
//! [`Job::join`] finds the launcher of this process in the environment: one that speaks PMIx (Open MPI's `mpirun`,
//! `prterun`, `srun --mpi=pmix`), `vervain launch`, or none. The words are those of the PMIx standard: a rank puts
//! values under keys, a fence of all ranks commits them, then each rank gets what it needs from the rank that has put
//! it.
//!
//! ```no_run
//! # use std::time::Duration;
//! # fn main() -> vervain_bootstrap::Result<()> {
//! let job = vervain_bootstrap::Job::join()?;
//! job.put("address", b"where I am")?;
//! job.fence()?;
//! let next = (job.rank() + 1) % job.size();
//! let address = job.get(next, "address", Duration::from_secs(30))?;
//! job.finalize()
//! # }
//! ```
//!
//! [`server`] is the other end of `vervain launch`'s way, [`environment`] the variables of all launchers.

mod alone;
mod client;
pub mod environment;
mod error;
mod pmix;
mod protocol;
pub mod server;

use std::collections::HashSet;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

pub use error::{Error, Result};
pub use pmix::host::Host;
pub use protocol::{MAX_KEY, MAX_VALUE};

use environment::Found;

/// The duties of a way to other ranks. Keys and values have been checked before.
trait Exchange: Send + Sync {
    fn put(&self, key: &str, value: &[u8]) -> Result<()>;
    fn fence(&self) -> Result<()>;
    fn get(&self, rank: u32, key: &str, timeout: Duration) -> Result<Option<Vec<u8>>>;
    /// Asks the launcher to end all ranks. There is no answer, since the caller ends in any case.
    fn abort(&self, status: i32, sentence: &str);
    /// Has the launcher end the other ranks, unless it finds by itself that a process ends without
    /// [`finalize`](Exchange::finalize).
    fn desert(&self, _sentence: &str) {}
    fn finalize(&self) -> Result<()>;
}

/// Facts about the job and this process's place in it.
struct Joined {
    rank: u32,
    size: u32,
    id: String,
    local: Option<Vec<u32>>,
    exchange: Box<dyn Exchange>,
}

/// This process's membership in its job. It may be used by several threads; a fence keeps the others from the store
/// until it is over.
#[must_use = "a rank that does not finalize has not left its job in order"]
pub struct Job {
    joined: Joined,
    /// The keys that were put.
    put: Mutex<HashSet<String>>,
    /// A child made by fork(2) has this value too, and is no rank.
    pid: u32,
}

impl Job {
    /// Joins the job that this process was started in. Without any launcher that is a job of its own, as rank 0 of 1.
    /// Under `vervain launch` that is possible once in each process.
    ///
    /// # Errors
    /// One sentence that says what to do: a launcher that does not speak PMIx has started this process, libpmix is
    /// missing, or the launcher does not answer. A process is never rank 0 of 1 for such a reason.
    pub fn join() -> Result<Job> {
        let joined = match environment::find(|name| std::env::var_os(name))? {
            Found::Alone => alone::join()?,
            Found::Launch(seat) => client::join(seat)?,
            Found::Pmix => pmix::join()?,
        };
        Ok(Job { joined, put: Mutex::default(), pid: std::process::id() })
    }

    /// This process's number in the job, from 0.
    pub fn rank(&self) -> u32 {
        self.joined.rank
    }

    /// The number of ranks of the job, at least 1.
    pub fn size(&self) -> u32 {
        self.joined.size
    }

    /// The job's name, which its ranks share and no other job of this launcher has: PMIx's namespace; under `vervain
    /// launch` 32 random hexadecimal digits. It is no secret: a PMIx namespace can be guessed.
    pub fn id(&self) -> &str {
        &self.joined.id
    }

    /// The ranks on this host, in ascending order, this one among them (PMIx: PMIX_LOCAL_PEERS). None if the launcher
    /// does not list them.
    pub fn local_ranks(&self) -> Option<&[u32]> {
        self.joined.local.as_deref()
    }

    /// Puts a value under a key of this rank's, once for each key. Others see it after the next [`fence`](Job::fence)
    /// of all ranks.
    ///
    /// Ranks keep what they have fetched, so a second value would reach some of them only. Under Open MPI 4.1 with PMIx
    /// 4.2 it also had other keys, put beside it, vanish.
    ///
    /// # Errors
    /// A key was put before, is empty, has a NUL or more than [`MAX_KEY`] bytes; a value is empty or has more than
    /// [`MAX_VALUE`] bytes; the launcher is gone or refuses it.
    pub fn put(&self, key: &str, value: &[u8]) -> Result<()> {
        self.check(key)?;
        if value.is_empty() || value.len() > MAX_VALUE {
            let length = value.len();
            return Err(Error::new(format!(
                "the value of key '{key}' has {length} bytes; a value has 1 to {MAX_VALUE}"
            )));
        }
        if !self.put.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned()) {
            return Err(Error::new(format!("rank {} has put key '{key}' before; each key is put once", self.rank())));
        }
        self.joined.exchange.put(key, value)
    }

    /// Waits until all ranks have called it, and commits what this one has put: PMIx_Commit, then PMIx_Fence without
    /// collection of data. Each value is fetched when it is first asked for, so that nothing grows with the number of
    /// ranks. Also the barrier of the job.
    ///
    /// # Errors
    /// The launcher is gone; under `vervain launch` also: a rank has ended or left the job, so the fence would never be
    /// over.
    pub fn fence(&self) -> Result<()> {
        self.check_process()?;
        self.joined.exchange.fence()
    }

    /// The value that `rank` has put under `key` before its last fence; None if there is none. `vervain launch` answers
    /// None at once, PMIx may need up to `timeout`.
    ///
    /// Between the two a fence is needed: without it some PMIx servers answer at once that there is none (Open MPI
    /// 4.1).
    ///
    /// # Errors
    /// There is no such rank, the key is none that can be put, or the launcher is gone or does not answer within
    /// `timeout`.
    pub fn get(&self, rank: u32, key: &str, timeout: Duration) -> Result<Option<Vec<u8>>> {
        self.check(key)?;
        if rank >= self.size() {
            return Err(Error::new(format!("there is no rank {rank}: the job has {}", self.size())));
        }
        self.joined.exchange.get(rank, key, timeout)
    }

    /// Ends all ranks of the job, with `sentence` as the reason; a status of 0 counts as 1, and of others the low 8
    /// bits count (PMIx_Abort). Handlers of atexit(3) do not run, for threads of the program may be in the midst of
    /// anything.
    pub fn abort(&self, status: i32, sentence: &str) -> ! {
        let status = match status & 0xff {
            0 => 1,
            status => status,
        };
        if self.check_process().is_ok() {
            self.joined.exchange.abort(status, sentence);
        }
        let _ = io::stdout().flush();
        // SAFETY: the call ends the process; it touches no memory of it.
        unsafe { libc::_exit(status) }
    }

    /// For a process that is about to end, by exit(3), without [`finalize`](Job::finalize): the other ranks would wait
    /// for it, so the job ends, with `sentence` as the reason. `vervain launch` finds that by itself once the process
    /// has ended, in whatever way. A launcher with PMIx is asked to abort the job with status 1, and may end this
    /// process before the function returns. In a child made by fork(2) it does nothing.
    ///
    /// It takes no lock of this crate's, for exit(3) may have been called by a handler of a signal.
    pub fn desert(&self, sentence: &str) {
        if self.check_process().is_ok() {
            self.joined.exchange.desert(sentence);
        }
    }

    /// Leaves the job. Other ranks are not waited for: where that is wanted, [`fence`](Job::fence) first.
    ///
    /// # Errors
    /// The launcher is gone.
    pub fn finalize(self) -> Result<()> {
        self.check_process()?;
        self.joined.exchange.finalize()
    }

    fn check(&self, key: &str) -> Result<()> {
        if key.is_empty() || key.len() > MAX_KEY || key.contains('\0') {
            return Err(Error::new(format!(
                "'{}' is no key: a key has 1 to {MAX_KEY} bytes and no NUL",
                key.escape_debug()
            )));
        }
        self.check_process()
    }

    /// A child made by fork(2) shares the connection with its parent, whose answers it would take away.
    fn check_process(&self) -> Result<()> {
        if std::process::id() == self.pid {
            return Ok(());
        }
        Err(Error::new(format!(
            "process {} was forked from rank {}, and is no rank itself",
            std::process::id(),
            self.rank()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone() -> Job {
        Job { joined: alone::join().unwrap(), put: Mutex::default(), pid: std::process::id() }
    }

    #[test]
    fn keys_values_and_ranks_that_cannot_be_are_refused() {
        let job = alone();
        let long = "k".repeat(MAX_KEY + 1);
        for key in ["", "a\0b", &long] {
            assert!(job.put(key, b"").unwrap_err().to_string().contains("is no key"), "{key:?}");
            assert!(job.get(0, key, Duration::ZERO).is_err(), "{key:?}");
        }
        job.put(&long[..MAX_KEY], &vec![0; MAX_VALUE]).unwrap();
        for length in [0, MAX_VALUE + 1] {
            assert!(job.put("k", &vec![0; length]).unwrap_err().to_string().contains("a value has 1 to"));
        }
        job.put("k", b"1").unwrap();
        assert_eq!(job.put("k", b"2").unwrap_err().to_string(), "rank 0 has put key 'k' before; each key is put once");
        assert_eq!(job.get(1, "k", Duration::ZERO).unwrap_err().to_string(), "there is no rank 1: the job has 1");
    }

    #[test]
    fn a_forked_child_is_no_rank() {
        let mut job = alone();
        job.pid += 1;
        assert!(job.fence().unwrap_err().to_string().contains("was forked from rank 0"));
    }
}
