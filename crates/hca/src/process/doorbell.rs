//! Objects that peers may call on: each has a number, its owner a bitmap (`Header::attention`).

use crate::arena::layout::ATTENTION;
use crate::cq::Cq;
use crate::error::{Error, Result};
use crate::host::lock::OwnerLock;
use crate::owner_copy::owner::{Turn, serve};
use crate::process::Process;
use crate::qp::Qp;
use crate::rq::lane::OwnedLane;
use crate::rq::srq::Srq;
use std::sync::Weak;

/// Objects that peers may ask to be looked at.
pub(crate) enum Attention {
    Qp(Weak<Qp>),
    Cq(Weak<Cq>),
    Srq(Weak<Srq>),
    Lane(Weak<OwnedLane>),
}

/// Objects by attention number.
#[derive(Default)]
pub(crate) struct AttentionTable {
    table: OwnerLock<(Vec<Option<Attention>>, Vec<u32>)>,
}

impl AttentionTable {
    /// A number for an object. Beyond the table they are shared with nobody: number 0 is never handed out.
    pub(crate) fn add(&self, object: Attention) -> u32 {
        let mut t = self.table.lock();
        if let Some(n) = t.1.pop() {
            t.0[n as usize] = Some(object);
            return n;
        }
        if t.0.is_empty() {
            t.0.push(None);
        }
        t.0.push(Some(object));
        t.0.len() as u32 - 1
    }

    /// ENOMEM when there are no numbers for another object and its lane: beyond the table, numbers would stand for two.
    pub(crate) fn check_room(&self) -> Result<()> {
        let t = self.table.lock();
        if t.0.len() + 4 > ATTENTION && t.1.len() < 4 {
            return Err(Error::no_memory("this process has all the QPs, CQs and SRQs that it can have"));
        }
        Ok(())
    }

    pub(crate) fn remove(&self, number: u32) {
        let mut t = self.table.lock();
        if let Some(entry) = t.0.get_mut(number as usize)
            && entry.take().is_some()
        {
            t.1.push(number);
        }
    }

    /// Has the object do what it was asked for; says whether it is a lane.
    pub(crate) fn call(&self, number: u32, process: &Process) -> bool {
        let (mut qp, mut cq, mut srq, mut lane) = (None, None, None, None);
        match self.table.lock().0.get(number as usize) {
            Some(Some(Attention::Qp(q))) => qp = q.upgrade(),
            Some(Some(Attention::Cq(c))) => cq = c.upgrade(),
            Some(Some(Attention::Srq(s))) => srq = s.upgrade(),
            Some(Some(Attention::Lane(l))) => lane = l.upgrade(),
            _ => {}
        }
        if let Some(q) = qp {
            q.attend();
        }
        if let Some(c) = cq {
            c.attend();
        }
        if let Some(s) = srq {
            s.attend();
        }
        if let Some(l) = &lane {
            serve(process, l, Turn::PROGRESS);
        }
        lane.is_some()
    }

    pub(crate) fn call_lane(&self, number: u32, process: &Process) -> bool {
        let lane = match self.table.lock().0.get(number as usize) {
            Some(Some(Attention::Lane(l))) => l.upgrade(),
            Some(Some(_)) => return false,
            _ => None,
        };
        if let Some(lane) = lane {
            serve(process, &lane, Turn::POLL);
        }
        true
    }
}
