//! Objects that peers may call on: each has a number, its owner a bitmap (`Header::attention`).

use crate::arena::layout::ATTENTION;
use crate::error::{Error, Result};
use crate::host::lock::OwnerLock;
use std::sync::Weak;

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

    /// Has the object do what it was asked for.
    pub(crate) fn call(&self, number: u32, by: Looker) -> Looked {
        // Not under the lock, where the last holder of an object would end it.
        let object = self.table.lock().objects.get(number as usize).and_then(Option::as_ref).and_then(Weak::upgrade);
        object.map_or(Looked::Done, |object| object.attend(by))
    }
}
