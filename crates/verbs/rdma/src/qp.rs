//! Queue pairs: made, connected, posted to.

use std::collections::hash_map::RandomState;
use std::ffi::c_int;
use std::fmt;
use std::hash::BuildHasher;
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use vervain_abi::*;

use crate::ah::AddressVector;
use crate::cq::Cq;
use crate::error::{Error, PostError, Result, check};
use crate::path::{Endpoint, PathOptions};
use crate::pd::{Access, Pd};
use crate::post::{Domain, RecvList, RecvRequest, SendList, SendRequest};
use crate::qp_attr::{QpAttr, QpState};
use crate::receive::{self, PostReceives, ReceiveQueue};
use crate::srq::Srq;
use crate::transport::Transport;

/// Parameters of a new QP; [`Qp::builder`] begins with 128 requests in each queue, of one SGE, none inline, and
/// completions for requests that ask for one.
#[derive(Clone)]
pub struct QpBuilder {
    transport: Transport,
    pd: Pd,
    send_cq: Cq,
    recv_cq: Cq,
    cap: ibv_qp_cap,
    signal_all: bool,
    srq: Option<Srq>,
}

impl QpBuilder {
    /// Requests that the send queue holds at least, to [`max_queue`](crate::DeviceAttr::max_queue).
    pub fn max_send(mut self, requests: u32) -> Self {
        self.cap.max_send_wr = requests;
        self
    }

    /// Receives that the receive queue holds at least, to [`max_queue`](crate::DeviceAttr::max_queue).
    pub fn max_receive(mut self, requests: u32) -> Self {
        self.cap.max_recv_wr = requests;
        self
    }

    /// SGEs of one send and of one receive, to [`max_sge`](crate::DeviceAttr::max_sge).
    pub fn max_sges(mut self, send: u32, receive: u32) -> Self {
        (self.cap.max_send_sge, self.cap.max_recv_sge) = (send, receive);
        self
    }

    /// Bytes that a request can carry inline. Devices allow some hundreds; no query returns their limit.
    pub fn max_inline(mut self, bytes: u32) -> Self {
        self.cap.max_inline_data = bytes;
        self
    }

    /// Takes the receives for what comes in from `srq`; the QP then has no receive queue of its own, and
    /// [`max_receive`](QpBuilder::max_receive) does not count.
    pub fn srq(mut self, srq: &Srq) -> Self {
        self.srq = Some(srq.clone());
        self
    }

    /// Chooses that every request has a completion, as if it were signaled.
    pub fn signal_all(mut self, all: bool) -> Self {
        self.signal_all = all;
        self
    }

    /// Makes the QP, in RESET; `ibv_create_qp(3)`.
    ///
    /// # Errors
    /// EINVAL: more than the device can. ENOMEM. A CQ or SRQ of another open device than the domain.
    pub fn build(&self) -> Result<Qp> {
        let context = self.pd.context();
        let about = || {
            let cap = &self.cap;
            format!(
                "a {} QP of {} sends and {} receives, {} bytes inline, on {}",
                self.transport,
                cap.max_send_wr,
                cap.max_recv_wr,
                cap.max_inline_data,
                context.name()
            )
        };
        if [&self.send_cq, &self.recv_cq].iter().any(|cq| !Arc::ptr_eq(&cq.0.context.0, &context.0)) {
            return Err(Error::invalid(format!("a CQ for {} is of another open device", about())));
        }
        if self.srq.as_ref().is_some_and(|srq| !Arc::ptr_eq(&srq.0.pd.context().0, &context.0)) {
            return Err(Error::invalid(format!("the SRQ for {} is of another open device", about())));
        }
        let ops = context.0.ops();
        let (Some(post_send), Some(post_recv)) = (ops.post_send, ops.post_recv) else {
            return Err(Error::library(format!("the driver of {} cannot post", context.name())));
        };
        let own_queue = (self.cap, post_recv);
        let (cap, post_recv) = self.srq.as_ref().map_or(own_queue, |_| {
            (ibv_qp_cap { max_recv_wr: 0, max_recv_sge: 0, ..self.cap }, receive::no_queue as PostReceives<_>)
        });
        let mut init = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: self.send_cq.0.raw,
            recv_cq: self.recv_cq.0.raw,
            srq: self.srq.as_ref().map_or(ptr::null_mut(), |srq| srq.0.raw),
            cap,
            qp_type: self.transport.raw(),
            sq_sig_all: self.signal_all.into(),
        };
        // SAFETY: a domain, CQs and an SRQ of one open device, all of which the QP keeps, and a struct of the layout
        // that the call reads and writes.
        let raw = unsafe { (context.0.library.0.qp.create)(self.pd.0.raw, &mut init) };
        if raw.is_null() {
            return Err(Error::last("ibv_create_qp", about()));
        }
        // SAFETY: the library's, made just now; the number does not change.
        let number = unsafe { (*raw).qp_num };
        let domain = if self.transport == Transport::Ud { Arc::as_ptr(&self.pd.0) } else { ptr::null() };
        Ok(Qp {
            raw,
            post_send,
            // SAFETY: made just now for this driver; the queue is a part of the QP.
            receives: unsafe { ReceiveQueue::new(raw, post_recv, "ibv_post_recv") },
            domain,
            number,
            psn: AtomicU32::new(random_psn(number)),
            generation: AtomicU32::new(0),
            max_inline: init.cap.max_inline_data,
            transport: self.transport,
            pd: self.pd.clone(),
            cqs: [self.send_cq.clone(), self.recv_cq.clone()],
            srq: self.srq.clone(),
        })
    }
}

/// A queue pair. It keeps its CQs, its SRQ, its domain and all memory that was registered there.
pub struct Qp {
    pub(crate) raw: *mut ibv_qp,
    pub(crate) post_send: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
    receives: ReceiveQueue<ibv_qp>,
    domain: Domain,
    number: u32,
    /// PSN of its present life, or of the one that it begins.
    psn: AtomicU32,
    generation: AtomicU32,
    max_inline: u32,
    pub(crate) transport: Transport,
    pub(crate) pd: Pd,
    cqs: [Cq; 2],
    srq: Option<Srq>,
}

// SAFETY: the functions of libibverbs may be called from any thread, and lock a queue while they post to it; `domain`
// is only compared.
unsafe impl Send for Qp {}
// SAFETY: as above.
unsafe impl Sync for Qp {}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once; no call on it is under way, since those borrow `self`.
        if unsafe { (self.pd.context().0.library.0.qp.destroy)(self.raw) } != 0 {
            // The device may still carry out its requests: the memory and the queues stay for good.
            mem::forget((self.pd.clone(), self.cqs.clone(), self.srq.clone()));
        }
    }
}

impl Qp {
    /// Begins a QP in `pd`, whose sends complete into `send_cq` and receives into `recv_cq`.
    pub fn builder(transport: Transport, pd: &Pd, send_cq: &Cq, recv_cq: &Cq) -> QpBuilder {
        let cap =
            ibv_qp_cap { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        QpBuilder {
            transport,
            pd: pd.clone(),
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            cap,
            signal_all: false,
            srq: None,
        }
    }

    /// Its number, 24 bits.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The PSN of the first packet of its present life, 24 bits; the same as in [`endpoint`](Qp::endpoint), but without
    /// a query of the device.
    pub fn psn(&self) -> u32 {
        self.psn.load(Ordering::Relaxed)
    }

    /// The service that it gives.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Bytes that a request can carry inline; at least what was asked for.
    pub fn max_inline(&self) -> u32 {
        self.max_inline
    }

    /// The address that the peer needs to connect: number, PSN, LID and GID. The caller adds memory. It is valid for
    /// the QP's present life: after a [`reset`](Qp::reset) the PSN is another.
    ///
    /// # Errors
    /// The port cannot be queried, or has no such GID.
    pub fn endpoint(&self, path: &PathOptions) -> Result<Endpoint> {
        path.local(self.pd.context(), self.number, self.psn.load(Ordering::Relaxed))
    }

    /// RESET to INIT: receives can be posted. `access` is what the peer may do ([`Access::REMOTE`]; RC, UC).
    /// `ibv_modify_qp(3)`.
    ///
    /// # Errors
    /// EINVAL: no such port or P_Key; a UD QP, which takes [`init_datagram`](Qp::init_datagram).
    pub fn init(&self, path: &PathOptions, access: Access) -> Result<()> {
        let attr = ibv_qp_attr { qp_access_flags: access.bits(), ..Self::at_port(path) };
        self.modify(IBV_QPS_INIT, attr, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
    }

    /// Takes a UD QP to INIT: it will take datagrams with this Q_Key (below 2^31: others are the kernel's).
    ///
    /// # Errors
    /// EINVAL: no such port or P_Key; a QP of another transport.
    pub fn init_datagram(&self, path: &PathOptions, qkey: u32) -> Result<()> {
        let attr = ibv_qp_attr { qkey, ..Self::at_port(path) };
        self.modify(IBV_QPS_INIT, attr, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY)
    }

    fn at_port(path: &PathOptions) -> ibv_qp_attr {
        ibv_qp_attr { pkey_index: path.pkey_index, port_num: path.port, ..Default::default() }
    }

    /// INIT to RTR: the QP accepts messages of the peer. For UD nothing of `remote` and `path` is used.
    ///
    /// # Errors
    /// EINVAL: a setting out of range. A path that cannot lead there. Else the driver's errno, for example ETIMEDOUT if
    /// the address cannot be resolved.
    pub fn ready_to_receive(&self, remote: &Endpoint, path: &PathOptions) -> Result<()> {
        let mut attr = ibv_qp_attr::default();
        let mut mask = 0;
        if self.transport != Transport::Ud {
            attr.ah_attr = AddressVector::new(remote, path)?.raw();
            attr.path_mtu = path.mtu.raw();
            attr.dest_qp_num = remote.qpn;
            attr.rq_psn = remote.psn;
            mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        }
        if self.transport == Transport::Rc {
            attr.max_dest_rd_atomic = path.max_dest_rd_atomic;
            attr.min_rnr_timer = path.min_rnr_timer;
            mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
        }
        self.modify(IBV_QPS_RTR, attr, mask)
    }

    /// RTR to RTS: requests are carried out.
    ///
    /// # Errors
    /// EINVAL: a setting out of range.
    pub fn ready_to_send(&self, path: &PathOptions) -> Result<()> {
        let mut attr = ibv_qp_attr { sq_psn: self.psn.load(Ordering::Relaxed), ..Default::default() };
        let mut mask = IBV_QP_SQ_PSN;
        if self.transport == Transport::Rc {
            attr.timeout = path.timeout;
            attr.retry_cnt = path.retry_count;
            attr.rnr_retry = path.rnr_retry;
            attr.max_rd_atomic = path.max_rd_atomic;
            mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        }
        self.modify(IBV_QPS_RTS, attr, mask)
    }

    /// INIT to RTS, through RTR. A side may send as soon as the other is in RTR. If that matters, the two sides tell
    /// each other after this call.
    ///
    /// # Errors
    /// As [`ready_to_receive`](Qp::ready_to_receive) and [`ready_to_send`](Qp::ready_to_send).
    pub fn connect(&self, remote: &Endpoint, path: &PathOptions) -> Result<()> {
        self.ready_to_receive(remote, path)?;
        self.ready_to_send(path)
    }

    /// RESET to RTS for UD, which has no peer to wait for; `qkey` as for [`init_datagram`](Qp::init_datagram).
    ///
    /// # Errors
    /// Those of [`init_datagram`](Qp::init_datagram) and [`ready_to_send`](Qp::ready_to_send).
    pub fn activate(&self, path: &PathOptions, qkey: u32) -> Result<()> {
        self.init_datagram(path, qkey)?;
        self.modify(IBV_QPS_RTR, ibv_qp_attr::default(), 0)?;
        self.ready_to_send(path)
    }

    /// RTS to SQD: sends that have begun are finished, later ones wait, and receives go on. With `event` a
    /// [`SendQueueDrained`](crate::EventKind::SendQueueDrained) event reports the end; else [`Qp::attr`] shows it. Not
    /// every device has this state; programs that count completions do not need it. IBA volume 1, 10.3.1.5.
    ///
    /// # Errors
    /// EINVAL: not in RTS, or a device without SQD.
    pub fn drain_sends(&self, event: bool) -> Result<()> {
        let attr = ibv_qp_attr { en_sqd_async_notify: event.into(), ..Default::default() };
        self.modify(IBV_QPS_SQD, attr, if event { IBV_QP_EN_SQD_ASYNC_NOTIFY } else { 0 })
    }

    /// SQD to RTS: the send queue goes on.
    ///
    /// # Errors
    /// EINVAL: the queue is not drained yet.
    pub fn resume_sends(&self) -> Result<()> {
        self.modify(IBV_QPS_RTS, ibv_qp_attr::default(), 0)
    }

    /// Changes the rights of the peer; in RTS (RC, UC). `ibv_modify_qp(3)`.
    ///
    /// # Errors
    /// EINVAL: not in RTS; UD.
    pub fn set_access(&self, access: Access) -> Result<()> {
        let attr = ibv_qp_attr { qp_access_flags: access.bits(), ..Default::default() };
        self.modify(IBV_QPS_RTS, attr, IBV_QP_ACCESS_FLAGS)
    }

    /// Changes the time that a peer must wait after it found no receive here, as
    /// [`min_rnr_timer`](PathOptions::min_rnr_timer); in RTS (RC). `ibv_modify_qp(3)`.
    ///
    /// # Errors
    /// EINVAL: not in RTS; another transport. Above 31 a device may refuse it too, or take its low five bits.
    pub fn set_min_rnr_timer(&self, timer: u8) -> Result<()> {
        let attr = ibv_qp_attr { min_rnr_timer: timer, ..Default::default() };
        self.modify(IBV_QPS_RTS, attr, IBV_QP_MIN_RNR_TIMER)
    }

    /// To the error state, from any: all posted requests, signaled or not, are completed as
    /// [`Flushed`](crate::Status::Flushed), and so are those posted later. Requests that the peer has carried out
    /// already, but not yet confirmed, are among them. Receives of an SRQ are not this QP's and stay there, but for
    /// those that messages had begun to fill; after a [`LastWqeReached`](crate::EventKind::LastWqeReached) event no
    /// more of them are completed here.
    ///
    /// # Errors
    /// The driver's.
    pub fn fail(&self) -> Result<()> {
        self.modify(IBV_QPS_ERR, ibv_qp_attr::default(), 0)
    }

    /// To RESET, from any; the QP can then be connected again, to another peer too, and begins its next life:
    /// [`generation`](Qp::generation) is one more, and [`endpoint`](Qp::endpoint) has another PSN, so that no packet of
    /// the earlier connection is taken for one of the next.
    ///
    /// Posted requests are dropped without a completion. Completions of this life that are not polled yet are taken out
    /// of the CQ by some devices and stay there on others (`ibv_modify_qp(3)` does not define it), and carry the same
    /// [`qp_num`](crate::Completion::qp_num) as those of the next. So either the life is ended first:
    ///
    /// 1. Both sides stop posting, and tell each other: requests in progress then succeed.
    /// 2. [`fail`](Qp::fail), then a last request with an id of its own, [`signaled`](SendRequest::signaled), which is
    ///    flushed too; for a receive queue of its own a last receive likewise.
    /// 3. The CQ is polled until they are there: no completion of this life comes after them. On an SRQ, until
    ///    [`LastWqeReached`](crate::EventKind::LastWqeReached), and then until the CQ is empty (IBA volume 1, 11.6.3).
    ///
    /// Or the ids of its requests carry the generation, and completions with an earlier one are left out.
    ///
    /// # Errors
    /// What the driver says.
    pub fn reset(&self) -> Result<()> {
        self.modify(IBV_QPS_RESET, ibv_qp_attr::default(), 0)?;
        self.psn.store(random_psn(self.number), Ordering::Relaxed);
        self.generation.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// How often it was reset, modulo 2^32: the number of the life that it is in.
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }

    fn modify(&self, to: ibv_qp_state, mut attr: ibv_qp_attr, mask: u32) -> Result<()> {
        attr.qp_state = to;
        let mask = (mask | IBV_QP_STATE).cast_signed();
        // SAFETY: a QP that lives as long as `self`, and a struct of the layout that the call reads.
        let rc = unsafe { (self.pd.context().0.library.0.qp.modify)(self.raw, &mut attr, mask) };
        check(rc, "ibv_modify_qp", || format!("{self} to {:?}", QpState::of(to)))
    }

    /// The state that it is in; `ibv_query_qp(3)`.
    ///
    /// # Errors
    /// The driver's.
    pub fn state(&self) -> Result<QpState> {
        Ok(QpState::of(self.query(IBV_QP_STATE)?.qp_state))
    }

    /// All that it was set to; `ibv_query_qp(3)`.
    ///
    /// # Errors
    /// The driver's.
    pub fn attr(&self) -> Result<QpAttr> {
        self.query(QpAttr::MASK).map(|raw| QpAttr::of(&raw))
    }

    fn query(&self, mask: u32) -> Result<ibv_qp_attr> {
        let mut attr = ibv_qp_attr::default();
        let mut init = MaybeUninit::<ibv_qp_init_attr>::zeroed();
        let query = self.pd.context().0.library.0.qp.query;
        // SAFETY: a QP that lives as long as `self`, and two structs of the layouts that the call writes.
        let rc = unsafe { query(self.raw, &mut attr, mask.cast_signed(), init.as_mut_ptr()) };
        check(rc, "ibv_query_qp", || self.to_string())?;
        Ok(attr)
    }

    /// Posts one request; `ibv_post_send(3)`.
    ///
    /// # Errors
    /// ENOMEM: the queue is full, or the SGEs are too many. EINVAL: not in a state to send; an operation that the
    /// transport does not have; a datagram on RC or UC, or none on UD; an address handle of another domain. Errors of
    /// keys and ranges come as completions.
    #[inline]
    pub fn post(&self, mut request: SendRequest<'_, '_>) -> Result<(), PostError> {
        if request.domain != self.domain {
            return Err(PostError::misplaced("ibv_post_send"));
        }
        let mut bad = ptr::null_mut();
        // SAFETY: a QP that lives as long as `self`; a request that ends the chain, whose SGEs and address handle are
        // borrowed, the handle being of this domain by the check above. Memory is named by a key, and stays registered
        // until it is deregistered or this QP is gone.
        let rc = unsafe { (self.post_send)(self.raw, &mut request.raw, &mut bad) };
        if rc == 0 { Ok(()) } else { Err(PostError::of("ibv_post_send", rc, 0)) }
    }

    /// Posts all requests of the list by one call. One that is empty is nothing.
    ///
    /// # Errors
    /// As [`post`](Qp::post); those before the bad one are posted.
    #[inline]
    pub fn post_list(&self, list: &mut SendList<'_>) -> Result<(), PostError> {
        let first = list.first();
        if first.is_null() {
            return Ok(());
        }
        if list.domain() != self.domain {
            return Err(PostError::misplaced("ibv_post_send"));
        }
        let mut bad = ptr::null_mut();
        // SAFETY: as in `post`; `first` leads through the list's requests and their SGEs, which do not change
        // meanwhile.
        let rc = unsafe { (self.post_send)(self.raw, first, &mut bad) };
        if rc == 0 { Ok(()) } else { Err(PostError::of("ibv_post_send", rc, list.place(bad))) }
    }

    /// Posts one receive; `ibv_post_recv(3)`.
    ///
    /// # Errors
    /// ENOMEM: the queue is full, or the SGEs are too many. EINVAL: in RESET; a QP on an SRQ, which takes all receives.
    #[inline]
    pub fn receive(&self, request: RecvRequest<'_, '_>) -> Result<(), PostError> {
        self.receives.post(request)
    }

    /// Posts all receives of the list by one call. One that is empty is nothing.
    ///
    /// # Errors
    /// As [`receive`](Qp::receive); those before the bad one are posted.
    #[inline]
    pub fn receive_list(&self, list: &mut RecvList<'_>) -> Result<(), PostError> {
        self.receives.post_list(list)
    }
}

/// Random, so that packets of an earlier connection between the same numbers are not taken for this one's.
fn random_psn(number: u32) -> u32 {
    (RandomState::new().hash_one(number) & 0xff_ffff) as u32
}

impl fmt::Display for Qp {
    /// "RC QP 0x11 on mlx5_0".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} QP {:#x} on {}", self.transport, self.number, self.pd.context().name())
    }
}
