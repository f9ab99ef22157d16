//! Agreements of all nodes that do not travel by messages, since those stand still: each node puts a value into the
//! job's store, and all go on or none does.

use std::time::Duration;

use vervain_bootstrap::Job;

use crate::error::{Error, Result};

/// Time for which a launcher may take to fetch a value.
const PATIENCE: Duration = Duration::from_secs(30);

/// The nodes of a context as they meet. All call its functions in the same order.
pub(crate) struct Meeting<'a> {
    job: &'a Job,
    epoch: u32,
    /// How often they have met, for keys are put once.
    turn: &'a mut u32,
}

impl<'a> Meeting<'a> {
    pub fn new(job: &'a Job, epoch: u32, turn: &'a mut u32) -> Self {
        Self { job, epoch, turn }
    }

    fn key(&self) -> String {
        format!("pm.rest.{}.{}", self.epoch, self.turn)
    }

    /// Tells all others something, and returns once they have told theirs too, which [`told`](Self::told) has until the
    /// next time.
    pub fn tell(&mut self, what: &[u8]) -> Result<()> {
        *self.turn += 1;
        self.job.put(&self.key(), what)?;
        Ok(self.job.fence()?)
    }

    /// The value that a node has put.
    pub fn told(&self, node: u32) -> Result<Vec<u8>> {
        let told = self.job.get(node, &self.key(), PATIENCE)?;
        told.ok_or_else(|| Error::broken(format!("node {node} has not told what it was asked")))
    }

    /// The value that node 0 gives to all.
    pub fn told_by_first(&mut self, what: &[u8]) -> Result<Vec<u8>> {
        // A value has a byte at least.
        let own = if self.job.rank() == 0 { [&[1], what].concat() } else { vec![0] };
        self.tell(&own)?;
        Ok(self.told(0)?.split_off(1))
    }

    /// Returns whether all nodes say yes.
    pub fn all_agree(&mut self, own: bool) -> Result<bool> {
        self.tell(&[u8::from(own)])?;
        let mut all = own;
        if self.job.rank() == 0 {
            for node in 0..self.job.size() {
                all &= self.told(node)? == [1];
            }
        }
        Ok(self.told_by_first(&[u8::from(all)])? == [1])
    }

    /// Checks that all nodes have done `what`.
    ///
    /// # Errors
    /// The own error, or ECANCELED for another node's.
    pub fn all_have<T>(&mut self, what: &str, own: Result<T>) -> Result<T> {
        let errno = own.as_ref().map_or_else(|error| error.errno(), |_| 0);
        self.tell(&errno.to_le_bytes())?;
        let mut failed = Vec::new();
        if self.job.rank() == 0 {
            for node in 0..self.job.size() {
                let told = self.told(node)?;
                if told != 0i32.to_le_bytes() {
                    failed = [&node.to_le_bytes()[..], &told].concat();
                    break;
                }
            }
        }
        let failed = self.told_by_first(&failed)?;
        let own = own?;
        let number = |at: usize| failed.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
        match (number(0), number(4)) {
            (Some(node), Some(errno)) => {
                let why = std::io::Error::from_raw_os_error(errno.cast_signed());
                Err(Error::new(libc::ECANCELED, format!("node {node} could not {what}, so none has: {why}")))
            }
            _ => Ok(own),
        }
    }
}
