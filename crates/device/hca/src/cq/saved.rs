//! A completion queue that stands still, as a record from which another is made.

use crate::arena::layout::arm;
use crate::context::Context;
use crate::cq::channel::CompChannel;
use crate::cq::{Cq, notify};
use crate::error::Result;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vervain_iba::Completion;

/// The contents of a CQ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedCq {
    /// Entries.
    pub capacity: u32,
    /// More completions than fit are no error.
    pub ignore_overrun: bool,
    /// Completions carry the time at which they were made.
    pub timestamps: bool,
    /// It has overrun.
    pub failed: bool,
    /// The program waits for an event: false at the next solicited completion, true at any.
    pub armed: Option<bool>,
    /// Completions that were not polled, in the order of polling. They are more than `entries` after an overrun.
    pub completions: Vec<Completion>,
}

impl Cq {
    /// The state that another CQ needs to go on. Completions in the rings of QPs are moved into the CQ's own queue
    /// before. None are published meanwhile, for all QPs that report here stand still.
    pub fn save(&self) -> SavedCq {
        let mut q = self.queue.lock();
        let mut all = VecDeque::new();
        while self.poll_aside(&mut q, usize::MAX, &mut |completion| all.push_back(*completion)) > 0 {}
        q.local = all;
        q.rings.aside = !q.local.is_empty();
        self.shared.local.store(q.local.len() as u64, Ordering::Relaxed);
        SavedCq {
            capacity: self.cqe(),
            ignore_overrun: self.ignore_overrun,
            timestamps: self.timestamps,
            failed: self.failed(),
            armed: match self.shared.armed.load(Ordering::SeqCst) & !arm::FIRING {
                arm::NONE => None,
                armed => Some(armed == arm::ANY),
            },
            completions: q.local.iter().copied().collect(),
        }
    }

    /// A CQ in the place of one that was saved ([`Cq::create`]). No event is raised for what it holds.
    pub fn restore(
        context: &Arc<Context>,
        channel: Option<&Arc<CompChannel>>,
        comp_vector: u32,
        cookie: usize,
        saved: &SavedCq,
    ) -> Result<Arc<Cq>> {
        let &SavedCq { capacity, ignore_overrun, timestamps, failed, armed, .. } = saved;
        let cq = Cq::create(context, capacity, channel, comp_vector, cookie, ignore_overrun, timestamps)?;
        let mut q = cq.queue.lock();
        q.local = saved.completions.iter().copied().collect();
        q.rings.aside = !q.local.is_empty();
        cq.shared.local.store(q.local.len() as u64, Ordering::Relaxed);
        if let Some(any) = armed {
            notify::ask(cq.shared, !any, |_| false);
        }
        drop(q);
        cq.failed.store(failed, Ordering::Release);
        Ok(cq)
    }
}
