//! Objects that peers may call on: each has a number, its owner a bitmap (`Header::attention`).

use crate::arena::layout::ATTENTION;
use crate::error::{Error, Result};
use crate::host::lock::OwnerLock;
use crate::process::peer::PeerProcess;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

/// The thread that looks at an object after a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Looker {
    /// The progress thread, which may wait for locks.
    Progress,
    /// A thread of the program that polls a CQ, and may hold locks itself.
    Poll,
}

/// The result of a look.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Looked {
    /// All is done.
    Done,
    /// An initiator's request was carried out.
    Served,
    /// Only the progress thread may do it.
    NotHere,
}

/// An object that peers may call on.
pub(crate) trait Attend: Send + Sync {
    /// Does what peers have asked for.
    fn attend(&self, by: Looker) -> Looked;
}

/// Objects by attention number.
#[derive(Default)]
pub(crate) struct AttentionTable {
    table: OwnerLock<Table>,
    /// Odd while the progress thread does what peers have called for.
    attending: AtomicU64,
}

#[derive(Default)]
struct Table {
    objects: Vec<Option<Weak<dyn Attend>>>,
    /// Numbers that were given back.
    free: Vec<u32>,
}

impl AttentionTable {
    /// A number for an object. Beyond the table they are shared with nobody: number 0 is never handed out.
    pub(crate) fn add(&self, object: Weak<dyn Attend>) -> u32 {
        let mut t = self.table.lock();
        if let Some(n) = t.free.pop() {
            t.objects[n as usize] = Some(object);
            return n;
        }
        if t.objects.is_empty() {
            t.objects.push(None);
        }
        t.objects.push(Some(object));
        t.objects.len() as u32 - 1
    }

    /// ENOMEM when there are no numbers for another object and its lane: beyond the table, numbers would stand for two.
    pub(crate) fn check_room(&self) -> Result<()> {
        let t = self.table.lock();
        if t.objects.len() + 4 > ATTENTION && t.free.len() < 4 {
            return Err(Error::no_memory("this process has all the QPs, CQs and SRQs that it can have"));
        }
        Ok(())
    }

    pub(crate) fn remove(&self, number: u32) {
        let mut t = self.table.lock();
        if let Some(entry) = t.objects.get_mut(number as usize)
            && entry.take().is_some()
        {
            t.free.push(number);
        }
    }

    /// Looks at everything that peers asked `own` for, in the progress thread. Returns true if requests of initiators
    /// were among it.
    pub(crate) fn attend(&self, own: &PeerProcess) -> bool {
        let mut numbers = Vec::new();
        self.attending.fetch_add(1, Ordering::SeqCst);
        own.take_attention(|n| numbers.push(n));
        let mut served = false;
        for n in numbers {
            served |= self.call(n, Looker::Progress) == Looked::Served;
        }
        self.attending.fetch_add(1, Ordering::SeqCst);
        served
    }

    /// Returns true if the progress thread is at it, which it says before it takes what was called for.
    pub(crate) fn is_attending(&self) -> bool {
        !self.attending.load(Ordering::SeqCst).is_multiple_of(2)
    }

    /// Looks at what peers asked for in a thread that polls, which must not wait for another that is at it.
    #[cold]
    pub(crate) fn attend_from_poll(&self, own: &PeerProcess) {
        let mut lanes = Vec::new();
        own.take_attention(|n| lanes.push(n));
        let mut rest = false;
        for n in lanes {
            if self.call(n, Looker::Poll) == Looked::NotHere {
                // Events and flushes take locks that the polling thread may hold.
                own.raise(n);
                rest = true;
            }
        }
        if rest {
            own.wake();
        }
    }

    /// Has the object do what it was asked for.
    fn call(&self, number: u32, by: Looker) -> Looked {
        // Not under the lock, where the last holder of an object would end it.
        let object = self.table.lock().objects.get(number as usize).and_then(Option::as_ref).and_then(Weak::upgrade);
        object.map_or(Looked::Done, |object| object.attend(by))
    }
}
