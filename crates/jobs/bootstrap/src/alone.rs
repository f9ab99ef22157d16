//! A process that no launcher has started: rank 0 of 1, with a store of its own.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::{Error, Exchange, Joined, Result, error};

/// The values that were put, and those that fences have committed.
#[derive(Default)]
struct Store(Mutex<Values>);

#[derive(Default)]
struct Values {
    put: HashMap<String, Vec<u8>>,
    committed: HashMap<String, Vec<u8>>,
}

pub fn join() -> Result<Joined> {
    let exchange = Box::<Store>::default();
    Ok(Joined { rank: 0, size: 1, id: random_id()?, local: Some(vec![0]), exchange })
}

/// A name that no other job has: 32 random hexadecimal digits.
pub fn random_id() -> Result<String> {
    let mut bytes = [0; 16];
    // Up to 256 bytes come whole (getrandom(2)).
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| Error::new(format!("no random number for the job's name: {e}")))?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

impl Store {
    fn with<R>(&self, work: impl FnOnce(&mut Values) -> R) -> Result<R> {
        Ok(work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl Exchange for Store {
    fn put(&self, key: &str, value: &[u8]) -> Result<()> {
        self.with(|values| _ = values.put.insert(key.to_owned(), value.to_vec()))
    }

    fn fence(&self) -> Result<()> {
        self.with(|values| {
            let put = std::mem::take(&mut values.put);
            values.committed.extend(put);
        })
    }

    fn get(&self, _rank: u32, key: &str, _timeout: Duration) -> Result<Option<Vec<u8>>> {
        self.with(|values| values.committed.get(key).cloned())
    }

    fn abort(&self, status: i32, sentence: &str) {
        error::print(&format!("the program aborted with status {status}: {sentence}"));
    }

    fn finalize(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_there_after_the_fence() {
        let store = Store::default();
        let get = || store.get(0, "k", Duration::ZERO).unwrap();
        store.put("k", b"1").unwrap();
        assert_eq!(get(), None);
        store.fence().unwrap();
        assert_eq!(get().as_deref(), Some(&b"1"[..]));
    }

    #[test]
    fn two_jobs_have_two_names() {
        let (one, other) = (random_id().unwrap(), random_id().unwrap());
        assert_eq!(one.len(), 32);
        assert_ne!(one, other);
    }
}
