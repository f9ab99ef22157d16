//! Shared receive queues (IBA 10.2.9), basic and XRC.

pub mod saved;
pub mod xrcd;

use crate::arena::numbers::Kind;
use crate::context::async_events::{Element, EventCount};
use crate::context::{Context, Pd};
use crate::cq::Cq;
use crate::device::LIMITS;
use crate::device::port_counters::{Counted, Word};
use crate::error::{Error, Result};
use crate::host::lock::OwnerLock;
use crate::process::Process;
use crate::process::doorbell::{Attend, Looked, Looker};
use crate::rq::RecvQueue;
use crate::srq::xrcd::Xrcd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use vervain_iba::{Sge, event};

/// The parameters of a new SRQ.
pub struct SrqInit<'a> {
    /// Receives that may be outstanding.
    pub max_wr: u32,
    /// Pieces in each.
    pub max_sge: u32,
    /// The program's cookie.
    pub cookie: usize,
    /// For an XRC SRQ: its domain and the CQ of its receives.
    pub xrc: Option<(&'a Arc<Xrcd>, &'a Arc<Cq>)>,
}

/// An XRC target QP through which messages come to SRQs.
pub(crate) trait XrcTarget: Send + Sync {
    /// Closes the lanes into `rq`, whose SRQ is being destroyed.
    fn close_lanes_into(&self, rq: &Arc<RecvQueue>);
}

/// A shared receive queue.
pub struct Srq {
    process: &'static Process,
    context: Arc<Context>,
    pd: Arc<Pd>,
    pub(crate) rq: Arc<RecvQueue>,
    xrc: Option<(Arc<Xrcd>, Arc<Cq>)>,
    number: u32,
    /// XRC targets that have made lanes into it.
    targets: OwnerLock<Vec<Weak<dyn XrcTarget>>>,
    cookie: AtomicUsize,
    events: Arc<EventCount>,
    _counted: Counted,
}

impl Srq {
    /// A shared receive queue (`man ibv_create_srq_ex`).
    pub fn create(context: &Arc<Context>, pd: &Arc<Pd>, init: &SrqInit<'_>) -> Result<Arc<Srq>> {
        Self::with_number(context, pd, init, None)
    }

    fn with_number(context: &Arc<Context>, pd: &Arc<Pd>, init: &SrqInit<'_>, number: Option<u32>) -> Result<Arc<Srq>> {
        let process = context.process()?;
        pd.process.check()?;
        init.xrc.map_or(Ok(()), |(_, cq)| cq.process.check())?;
        if init.max_wr == 0 || init.max_wr > LIMITS.srq.max_wr || init.max_sge > LIMITS.srq.max_sge {
            return Err(Error::invalid(format!(
                "an SRQ of {} receives with {} pieces; at most {} with {} are possible",
                init.max_wr, init.max_sge, LIMITS.srq.max_wr, LIMITS.srq.max_sge
            )));
        }
        let rq = Arc::new(RecvQueue::create(process, pd.number, init.max_wr, init.max_sge, false)?);
        let number = match (init.xrc, number) {
            (None, _) => 0,
            (Some(_), None) => process.new_number(Kind::Srq)?,
            (Some(_), Some(number)) => process.numbers.take_again(Kind::Srq, number).map(|()| number)?,
        };
        rq.view.shared.xrcd.store(init.xrc.map_or(0, |(x, _)| x.id), Ordering::Relaxed);
        let srq = Arc::new_cyclic(|me: &Weak<Srq>| {
            let number_of_attention = process.attention.add(me.clone());
            rq.view.shared.attention.store(number_of_attention, Ordering::Relaxed);
            Srq {
                process,
                context: Arc::clone(context),
                pd: Arc::clone(pd),
                rq: Arc::clone(&rq),
                xrc: init.xrc.map(|(x, c)| (Arc::clone(x), Arc::clone(c))),
                number,
                targets: OwnerLock::default(),
                cookie: AtomicUsize::new(init.cookie),
                events: Arc::default(),
                _counted: Counted::new(Word::Srqs, context.device()),
            }
        });
        pd.users.fetch_add(1, Ordering::Relaxed);
        if let Some((x, c)) = init.xrc {
            x.users.fetch_add(1, Ordering::Relaxed);
            c.users.fetch_add(1, Ordering::Relaxed);
            c.expect(u64::from(init.max_wr), None);
            x.srqs.lock().push(Arc::downgrade(&srq));
            process.publish_number(Kind::Srq, number, rq.offset);
        }
        Ok(srq)
    }

    /// XRC SRQ number; 0 for a basic SRQ.
    pub fn srq_num(&self) -> u32 {
        self.number
    }

    /// The CQ of an XRC SRQ.
    pub(crate) fn cq(&self) -> Option<&Arc<Cq>> {
        self.xrc.as_ref().map(|(_, cq)| cq)
    }

    /// `target` makes a lane into it; see [`Srq::destroy`].
    pub(crate) fn add_target(&self, target: Weak<dyn XrcTarget>) {
        let mut targets = self.targets.lock();
        targets.retain(|known| known.strong_count() > 0 && !known.ptr_eq(&target));
        targets.push(target);
    }

    /// Changes the cookie.
    pub fn set_cookie(&self, cookie: usize) {
        self.cookie.store(cookie, Ordering::Relaxed);
    }

    /// Acknowledges an async event about this SRQ.
    pub fn ack_async_event(&self) {
        self.events.ack();
    }

    /// EIO in a forked child that did not make it.
    pub(crate) fn check(&self) -> Result<()> {
        self.process.check()
    }

    /// Posts one receive (`man ibv_post_srq_recv`).
    #[inline]
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<()> {
        self.rq.post(wr_id, sges)
    }

    /// Arms the limit, or changes the size, which this device does not do (`man ibv_modify_srq`).
    pub fn modify(&self, limit: Option<u32>, max_wr: Option<u32>) -> Result<()> {
        self.process.check()?;
        if max_wr.is_some() {
            return Err(Error::unsupported("an SRQ cannot be resized"));
        }
        if let Some(limit) = limit {
            if limit > self.rq.max_wr() {
                return Err(Error::invalid(format!("SRQ limit {limit} exceeds its size, {}", self.rq.max_wr())));
            }
            self.rq.view.shared.limit.store(limit, Ordering::SeqCst);
            // Armed above what is there already: the event is due at once (IBA 11.2.3.3).
            if limit != 0 && self.rq.waiting() < u64::from(limit) {
                let shared = &self.rq.view.shared;
                if shared.limit.compare_exchange(limit, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                    self.raise_limit();
                }
            }
        }
        Ok(())
    }

    /// Size, pieces and armed limit.
    pub fn query(&self) -> (u32, u32, u32) {
        (self.rq.max_wr(), self.rq.max_sge(), self.rq.view.shared.limit.load(Ordering::Relaxed))
    }

    fn raise_limit(&self) {
        let element = Element::Srq(self.cookie.load(Ordering::Relaxed));
        self.context.raise(event::SRQ_LIMIT_REACHED, element, &self.events);
    }

    /// Destroys it; EBUSY while QPs use it. Waits until its async events were acknowledged.
    pub fn destroy(self: &Arc<Self>) -> Result<()> {
        if !self.process.is_current() {
            return Ok(());
        }
        let users = self.rq.users.load(Ordering::Acquire);
        if users != 0 {
            return Err(Error::busy(format!("QPs use the SRQ: {users}")));
        }
        if let Some((x, c)) = &self.xrc {
            self.process.publish_number(Kind::Srq, self.number, 0);
            // First, so that no lane is made into it any more.
            x.srqs.lock().retain(|s| !std::ptr::eq(s.as_ptr(), Arc::as_ptr(self)));
            self.rq.view.shared.open.store(0, Ordering::SeqCst);
            let targets = std::mem::take(&mut *self.targets.lock());
            targets.iter().filter_map(Weak::upgrade).for_each(|target| target.close_lanes_into(&self.rq));
            self.process.numbers.free(Kind::Srq, self.number);
            x.users.fetch_sub(1, Ordering::Relaxed);
            c.users.fetch_sub(1, Ordering::Relaxed);
            c.expect_no_more(u64::from(self.rq.max_wr()), None);
        }
        self.process.attention.remove(self.rq.view.shared.attention.load(Ordering::Relaxed));
        self.context.forget_events(&self.events);
        self.events.wait();
        self.pd.users.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }
}

impl Attend for Srq {
    /// Handles the news of peers: they have taken the queue below its limit.
    fn attend(&self, by: Looker) -> Looked {
        if by == Looker::Poll {
            return Looked::NotHere;
        }
        if self.rq.view.shared.limit_reached.swap(0, Ordering::SeqCst) != 0 {
            self.raise_limit();
        }
        Looked::Done
    }
}
