//! The network that programs get: Vervain's rdma_cm and libibverbs.

use std::any::Any;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use libc::sockaddr_storage;
use vervain_abi::*;
use vervain_rdmacm::abi::*;
use vervain_rdmacm::address;
use vervain_rdmacm::verbs::{Verbs, verbs};
use vervain_rdmacm::*;

use crate::fabric::{
    Completion, Errno, Event, Fabric, Handle, Id, IdOption, Kind, Limits, Operation, Outcome, Part, QueueSizes, Queues,
    Region, Result,
};
use crate::waiting::lock;

/// How often a peer that is not ready, or silent, is tried again: as often as it takes, and seven times.
const RETRIES: u8 = 7;

/// IBV_TRANSPORT_IWARP.
const IWARP: c_int = 1;

/// GIDs of a port that are looked at.
const GIDS: usize = 256;

// enum ibv_wc_status
const WC_FLUSHED: u32 = 5;
const WC_RETRIES: u32 = 12;
const WC_NOT_READY: u32 = 13;

/// Makes identifiers of rdma_cm.
pub struct Rdma;

fn verbs_of() -> Result<&'static Verbs> {
    verbs().map_err(Errno)
}

/// The outcome of a function that returns 0 or -1 with errno.
fn done(returned: c_int) -> Result<()> {
    if returned == 0 { Ok(()) } else { Err(Errno::last()) }
}

/// The outcome of a function that returns 0 or an errno value.
fn posted(returned: c_int) -> Result<()> {
    if returned == 0 { Ok(()) } else { Err(Errno(returned.abs())) }
}

fn made<T>(object: *mut T) -> Result<*mut T> {
    if object.is_null() { Err(Errno::last()) } else { Ok(object) }
}

/// Has a descriptor that is open return rather than wait: by a system call, as the C library's function may be a
/// preload's.
///
/// # Safety
/// It is open until this returns.
unsafe fn set_nonblocking(fd: RawFd) -> Result<()> {
    // SAFETY: the caller's.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::io::ioctl_fionbio(fd, true).map_err(|error| Errno(error.raw_os_error()))
}

fn to_c(address: &SocketAddr) -> sockaddr_storage {
    // SAFETY: a struct of integers.
    let mut storage = unsafe { std::mem::zeroed() };
    address::write(&mut storage, address);
    storage
}

fn from_c(storage: &sockaddr_storage) -> Option<SocketAddr> {
    // SAFETY: it has room for each family's.
    unsafe { address::read(ptr::from_ref(storage).cast()) }.ok()
}

impl Fabric for Rdma {
    fn identifier(&self, kind: Kind) -> Result<Box<dyn Id>> {
        let channel = made(rdma_create_event_channel())?;
        let space = if kind == Kind::Stream { RDMA_PS_TCP } else { RDMA_PS_UDP };
        let mut id = ptr::null_mut();
        // SAFETY: a channel, and room for the identifier.
        let created = done(unsafe { rdma_create_id(channel, &raw mut id, ptr::null_mut(), space) });
        if let Err(error) = created {
            // SAFETY: just made, and nobody else's.
            unsafe { rdma_destroy_event_channel(channel) };
            return Err(error);
        }
        RdmaId::new(id, channel, kind).map(|id| Box::new(id) as Box<dyn Id>)
    }
}

/// An identifier with a channel of its own.
struct Owned {
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
    /// Its functions are not for two threads at once.
    calls: Mutex<()>,
    kind: Kind,
}

// SAFETY: the pointers are used under the lock.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: made for this, and its QP, which keeps this, is destroyed.
        unsafe {
            rdma_destroy_id(self.id);
            rdma_destroy_event_channel(self.channel);
        }
    }
}

impl Owned {
    /// Calls a function of the identifier.
    fn call<T>(&self, call: impl FnOnce(*mut rdma_cm_id) -> T) -> T {
        let _calls = lock(&self.calls);
        call(self.id)
    }

    /// Reads its fields.
    fn with<T>(&self, with: impl FnOnce(&rdma_cm_id) -> T) -> T {
        // SAFETY: it lives, and what writes its fields has the lock.
        self.call(|id| with(unsafe { &*id }))
    }
}

struct RdmaId(Arc<Owned>);

impl RdmaId {
    fn new(id: *mut rdma_cm_id, channel: *mut rdma_event_channel, kind: Kind) -> Result<RdmaId> {
        let owned = Owned { id, channel, calls: Mutex::default(), kind };
        // SAFETY: it lives, and its descriptor with it.
        unsafe { set_nonblocking((*channel).fd) }?;
        Ok(RdmaId(Arc::new(owned)))
    }

    /// The identifier of a request gets a channel of its own. Its event is acknowledged, or it would be waited for.
    fn of_request(id: *mut rdma_cm_id, kind: Kind) -> Result<RdmaId> {
        let channel = made(rdma_create_event_channel()).inspect_err(|_| {
            // SAFETY: nobody else has it.
            unsafe { rdma_destroy_id(id) };
        })?;
        // SAFETY: both live.
        let migrated = done(unsafe { rdma_migrate_id(id, channel) });
        if migrated.is_err() {
            // SAFETY: nobody else has them.
            unsafe {
                rdma_destroy_id(id);
                rdma_destroy_event_channel(channel);
            }
        }
        migrated.and_then(|()| RdmaId::new(id, channel, kind))
    }

    fn parameters(private: &[u8]) -> Result<rdma_conn_param> {
        Ok(rdma_conn_param {
            private_data: private.as_ptr().cast(),
            private_data_len: u8::try_from(private.len()).map_err(|_| Errno(libc::EINVAL))?,
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: 1,
            retry_count: RETRIES,
            rnr_retry_count: RETRIES,
            srq: 0,
            qp_num: 0,
        })
    }
}

/// The event for a failure with this status; `otherwise` is the errno if the status gives none.
fn why(status: c_int, otherwise: i32) -> Event {
    Event::Failed(Errno(if status < 0 { -status } else { otherwise }))
}

impl Id for RdmaId {
    fn descriptor(&self) -> RawFd {
        // SAFETY: it lives, and its field does not change.
        unsafe { (*self.0.channel).fd }
    }

    fn event(&self) -> Result<Option<Event>> {
        let mut event = ptr::null_mut();
        // SAFETY: a channel, and room for the event.
        let got = done(self.0.call(|_| unsafe { rdma_get_cm_event(self.0.channel, &raw mut event) }));
        match got {
            Err(Errno(libc::EAGAIN)) => return Ok(None),
            got => got?,
        }
        // SAFETY: an event until it is acknowledged.
        let (kind, status, id) = unsafe { ((*event).event, (*event).status, (*event).id) };
        let private = if matches!(kind, RDMA_CM_EVENT_CONNECT_REQUEST | RDMA_CM_EVENT_ESTABLISHED) {
            // SAFETY: events of these kinds have parameters of a connection.
            let parameters = unsafe { (*event).param.conn };
            if parameters.private_data.is_null() {
                Vec::new()
            } else {
                let length = parameters.private_data_len.into();
                // SAFETY: so many bytes, until the event is acknowledged.
                unsafe { std::slice::from_raw_parts(parameters.private_data.cast::<u8>(), length) }.to_vec()
            }
        } else {
            Vec::new()
        };
        // SAFETY: once.
        self.0.call(|_| unsafe { rdma_ack_cm_event(event) });
        Ok(Some(match kind {
            RDMA_CM_EVENT_ADDR_RESOLVED => Event::AddressResolved,
            RDMA_CM_EVENT_ROUTE_RESOLVED => Event::RouteResolved,
            RDMA_CM_EVENT_CONNECT_REQUEST => match RdmaId::of_request(id, self.0.kind) {
                Ok(id) => Event::Request(Box::new(id), private),
                // The listener is as it was.
                Err(_) => Event::Other,
            },
            RDMA_CM_EVENT_ESTABLISHED => Event::Established(private),
            RDMA_CM_EVENT_DISCONNECTED => Event::Disconnected,
            RDMA_CM_EVENT_REJECTED => Event::Failed(Errno(libc::ECONNREFUSED)),
            RDMA_CM_EVENT_ADDR_ERROR | RDMA_CM_EVENT_ROUTE_ERROR => why(status, libc::EHOSTUNREACH),
            RDMA_CM_EVENT_UNREACHABLE => why(status, libc::ETIMEDOUT),
            RDMA_CM_EVENT_CONNECT_ERROR => why(status, libc::ECONNABORTED),
            RDMA_CM_EVENT_DEVICE_REMOVAL => Event::Failed(Errno(libc::ENODEV)),
            _ => Event::Other,
        }))
    }

    fn bind(&self, address: &SocketAddr) -> Result<()> {
        let mut place = to_c(address);
        // SAFETY: it lives, with an address.
        done(self.0.call(|id| unsafe { rdma_bind_addr(id, (&raw mut place).cast()) }))?;
        // The loopback's address is of no device, and datagrams need one.
        if address.ip().is_loopback() && self.0.with(|id| id.ps == RDMA_PS_UDP && id.verbs.is_null()) {
            self.resolve_address(&SocketAddr::new(address.ip(), 0), Duration::from_secs(1))?;
            self.event()?;
        }
        Ok(())
    }

    fn listen(&self, backlog: i32) -> Result<()> {
        // SAFETY: it lives.
        done(self.0.call(|id| unsafe { rdma_listen(id, backlog) }))
    }

    fn resolve_address(&self, to: &SocketAddr, timeout: Duration) -> Result<()> {
        let mut to = to_c(to);
        let (place, timeout) = ((&raw mut to).cast(), milliseconds(timeout));
        // SAFETY: it lives, with an address.
        done(self.0.call(|id| unsafe { rdma_resolve_addr(id, ptr::null_mut(), place, timeout) }))
    }

    fn resolve_route(&self, timeout: Duration) -> Result<()> {
        // SAFETY: it lives.
        done(self.0.call(|id| unsafe { rdma_resolve_route(id, milliseconds(timeout)) }))
    }

    fn set_route(&self, route: &[u8]) -> Result<()> {
        let (mut route, length) = (route.to_vec(), route.len());
        let place = route.as_mut_ptr().cast();
        // SAFETY: it lives, with a value of that length.
        done(self.0.call(|id| unsafe { rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, place, length) }))
    }

    fn route(&self) -> Vec<u8> {
        self.0.with(|id| {
            let mut bytes = Vec::new();
            for at in 0..usize::try_from(id.route.num_paths).unwrap_or(0) {
                // SAFETY: it has so many.
                let record = unsafe { *id.route.path_rec.add(at) };
                let data = path_data(&record);
                let view =
                    // SAFETY: a struct of integers, without padding.
                    unsafe { std::slice::from_raw_parts(ptr::from_ref(&data).cast(), size_of::<ibv_path_data>()) };
                bytes.extend_from_slice(view);
            }
            bytes
        })
    }

    fn path_mtu(&self) -> Option<u32> {
        // SAFETY: null, or the first of its paths.
        self.0.with(|id| unsafe { id.route.path_rec.as_ref() }.map(|path| 128 << path.mtu.clamp(1, 5)))
    }

    fn set_option(&self, option: IdOption, value: i32) -> Result<()> {
        let option = match option {
            IdOption::ReuseAddress => RDMA_OPTION_ID_REUSEADDR,
            IdOption::V6Only => RDMA_OPTION_ID_AFONLY,
        };
        let mut value = value;
        let place = (&raw mut value).cast();
        // SAFETY: it lives, with a value of that length.
        done(self.0.call(|id| unsafe { rdma_set_option(id, RDMA_OPTION_ID, option, place, size_of::<c_int>()) }))
    }

    fn queues(&self, sizes: &QueueSizes) -> Result<Arc<dyn Queues>> {
        RdmaQueues::new(&self.0, sizes).map(|queues| Arc::new(queues) as Arc<dyn Queues>)
    }

    fn connect(&self, private: &[u8]) -> Result<()> {
        let mut parameters = RdmaId::parameters(private)?;
        // SAFETY: it lives, with parameters that are read now.
        done(self.0.call(|id| unsafe { rdma_connect(id, &raw mut parameters) }))
    }

    fn accept(&self, private: &[u8]) -> Result<()> {
        let mut parameters = RdmaId::parameters(private)?;
        // SAFETY: as above.
        done(self.0.call(|id| unsafe { rdma_accept(id, &raw mut parameters) }))
    }

    fn reject(&self) {
        // SAFETY: it lives. If the peer has given up, nobody is to be told.
        self.0.call(|id| unsafe { rdma_reject(id, ptr::null(), 0) });
    }

    fn disconnect(&self) {
        // SAFETY: it lives. It may be that it is not connected any more.
        self.0.call(|id| unsafe { rdma_disconnect(id) });
    }

    fn local(&self) -> Option<SocketAddr> {
        self.0.with(|id| from_c(&id.route.addr.src))
    }

    fn peer(&self) -> Option<SocketAddr> {
        self.0.with(|id| from_c(&id.route.addr.dst))
    }

    fn limits(&self) -> Limits {
        let (context, port) = self.0.with(|id| (id.verbs, id.port_num));
        let mut limits = Limits { requests: 0, separate: false, datagram: 0 };
        let Ok(verbs) = verbs() else { return limits };
        // SAFETY: structs of integers.
        let (mut device, mut attr) = unsafe { std::mem::zeroed::<(ibv_device_attr, ibv_port_attr)>() };
        // SAFETY: an open context, where there is one, and room for the answers.
        unsafe {
            if context.is_null() || (verbs.device.query)(context, &raw mut device) != 0 {
                return limits;
            }
            limits.requests = u32::try_from(device.max_qp_wr).unwrap_or(0);
            limits.separate = (*(*context).device).transport_type == IWARP;
            if (verbs.device.query_port)(context, port, &raw mut attr) == 0 {
                limits.datagram = 128 << attr.active_mtu.clamp(1, 5);
            }
        }
        limits
    }

    fn resolve_datagram(&self, to: &SocketAddr, timeout: Duration) -> Result<Arc<dyn Handle>> {
        let verbs = verbs_of()?;
        let (context, pd, port, local) = self.0.with(|id| (id.verbs, id.pd, id.port_num, from_c(&id.route.addr.src)));
        let local = local.filter(|_| !context.is_null()).ok_or(Errno(libc::EINVAL))?;
        // One whose calls wait finds the way; no QP needs it.
        let mut id = ptr::null_mut();
        // SAFETY: room for the identifier.
        done(unsafe { rdma_create_id(ptr::null_mut(), &raw mut id, ptr::null_mut(), RDMA_PS_UDP) })?;
        let (mut from, mut to) = (to_c(&SocketAddr::new(local.ip(), 0)), to_c(to));
        let timeout = milliseconds(timeout);
        // SAFETY: it lives, with two addresses.
        let found = done(unsafe { rdma_resolve_addr(id, (&raw mut from).cast(), (&raw mut to).cast(), timeout) })
            // SAFETY: as above.
            .and_then(|()| done(unsafe { rdma_resolve_route(id, timeout) }))
            // SAFETY: as above; a route that was found has a path.
            .and_then(|()| unsafe { (*id).route.path_rec.as_ref() }.copied().ok_or(Errno(libc::EHOSTUNREACH)));
        // SAFETY: made above.
        unsafe { rdma_destroy_id(id) };
        let path = found?;
        let mut table = [ibv_gid_entry::default(); GIDS];
        let count =
            // SAFETY: an open context, and room for so many entries of that size.
            unsafe { (verbs.device.query_gid_table)(context, table.as_mut_ptr(), GIDS, 0, size_of::<ibv_gid_entry>()) };
        let is_it = |entry: &&ibv_gid_entry| entry.port_num == u32::from(port) && entry.gid.raw == path.sgid.raw;
        let index =
            table.iter().take(usize::try_from(count).unwrap_or(0)).find(is_it).map_or(0, |entry| entry.gid_index);
        // SAFETY: a struct of integers.
        let mut attr: ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: an open context, and room for the answer.
        posted(unsafe { (verbs.device.query_port)(context, port, &raw mut attr) })?;
        let mut way = ibv_ah_attr {
            grh: ibv_global_route {
                dgid: path.dgid,
                flow_label: u32::from_be(path.flow_label),
                sgid_index: u8::try_from(index).unwrap_or(0),
                hop_limit: path.hop_limit,
                traffic_class: path.traffic_class,
            },
            dlid: u16::from_be(path.dlid),
            sl: path.sl,
            src_path_bits: (u16::from_be(path.slid) & ((1 << attr.lmc) - 1)) as u8,
            static_rate: path.rate,
            // On Ethernet there is no other address than the GID.
            is_global: (attr.link_layer == IBV_LINK_LAYER_ETHERNET || path.hop_limit > 1).into(),
            port_num: port,
        };
        // SAFETY: the QP's protection domain, and attributes that are read now.
        let ah = made(unsafe { (verbs.ah.create)(pd, &raw mut way) })?;
        Ok(Arc::new(RdmaHandle { ah, verbs, _id: self.0.clone() }))
    }
}

fn milliseconds(timeout: Duration) -> c_int {
    c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX)
}

/// A path, as RDMA_ROUTE has it: exactly what was found.
fn path_data(from: &ibv_sa_path_rec) -> ibv_path_data {
    /// The selector "exactly" (IBA 15.2.5.16).
    const EXACTLY: u8 = 2 << 6;
    let flow = u32::from_be(from.flow_label) << 8 | u32::from(from.hop_limit);
    ibv_path_data {
        flags: from.preference.into(),
        reserved: 0,
        path: ibv_path_record {
            service_id: 0,
            dgid: from.dgid,
            sgid: from.sgid,
            dlid: from.dlid,
            slid: from.slid,
            flowlabel_hoplimit: flow.to_be(),
            tclass: from.traffic_class,
            reversible_numpath: (from.reversible as u8) << 7 | 1,
            pkey: from.pkey,
            qosclass_sl: u16::from(from.sl).to_be(),
            mtu: from.mtu | EXACTLY,
            rate: from.rate | EXACTLY,
            packetlifetime: from.packet_life_time | EXACTLY,
            preference: 0,
            reserved: [0; 6],
        },
    }
}

/// A QP, its CQ and the channel of that.
struct RdmaQueues {
    verbs: &'static Verbs,
    qp: *mut ibv_qp,
    cq: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
    pd: *mut ibv_pd,
    inline_bytes: u32,
    id: Arc<Owned>,
}

// SAFETY: queues may be used by any thread (ibv_post_send(3), ibv_poll_cq(3)).
unsafe impl Send for RdmaQueues {}
// SAFETY: and by several at once.
unsafe impl Sync for RdmaQueues {}

impl RdmaQueues {
    fn new(id: &Arc<Owned>, sizes: &QueueSizes) -> Result<RdmaQueues> {
        let verbs = verbs_of()?;
        let context = id.with(|id| id.verbs);
        if context.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: an open context.
        let channel = made(unsafe { (verbs.cq.create_channel)(context) })?;
        // From here on dropped, with what there is of it.
        let mut queues = RdmaQueues {
            verbs,
            qp: ptr::null_mut(),
            cq: ptr::null_mut(),
            channel,
            pd: ptr::null_mut(),
            inline_bytes: 0,
            id: id.clone(),
        };
        // SAFETY: just made, with a descriptor.
        unsafe { set_nonblocking((*channel).fd) }?;
        let entries = c_int::try_from(sizes.send_requests + sizes.receives).map_err(|_| Errno(libc::EINVAL))?;
        // SAFETY: an open context, and a channel of it.
        queues.cq = made(unsafe { (verbs.cq.create)(context, entries, ptr::null_mut(), channel, 0) })?;
        let qp_type = if id.kind == Kind::Stream { IBV_QPT_RC } else { IBV_QPT_UD };
        let mut attr = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: queues.cq,
            recv_cq: queues.cq,
            srq: ptr::null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: sizes.send_requests,
                max_recv_wr: sizes.receives,
                max_send_sge: 2,
                max_recv_sge: 1,
                max_inline_data: sizes.inline_bytes,
            },
            qp_type,
            sq_sig_all: 1,
        };
        // SAFETY: it lives, with attributes.
        done(id.call(|id| unsafe { rdma_create_qp(id, ptr::null_mut(), &raw mut attr) }))?;
        (queues.qp, queues.pd) = id.with(|id| (id.qp, id.pd));
        queues.inline_bytes = attr.cap.max_inline_data;
        Ok(queues)
    }

    fn operations(&self) -> &ibv_context_ops {
        // SAFETY: the context of a CQ that lives.
        unsafe { &(*(*self.cq).context).ops }
    }
}

impl Drop for RdmaQueues {
    fn drop(&mut self) {
        // SAFETY: made by `new`, unless null; events are acknowledged as they are taken.
        unsafe {
            if !self.qp.is_null() {
                self.id.call(|id| rdma_destroy_qp(id));
            }
            if !self.cq.is_null() {
                (self.verbs.cq.destroy)(self.cq);
            }
            (self.verbs.cq.destroy_channel)(self.channel);
        }
    }
}

fn sge(part: &Part) -> ibv_sge {
    ibv_sge { addr: part.address, length: part.length, lkey: part.key }
}

impl Queues for RdmaQueues {
    fn number(&self) -> u32 {
        // SAFETY: it lives.
        unsafe { (*self.qp).qp_num }
    }

    fn inline_bytes(&self) -> u32 {
        self.inline_bytes
    }

    unsafe fn register(&self, address: *mut u8, length: usize, remote: bool) -> Result<Box<dyn Region>> {
        let access = IBV_ACCESS_LOCAL_WRITE | if remote { IBV_ACCESS_REMOTE_WRITE } else { 0 };
        // SAFETY: the caller's.
        let mr = made(unsafe { (self.verbs.memory.reg_mr)(self.pd, address.cast(), length, access as c_int) })?;
        Ok(Box::new(RdmaRegion { mr, verbs: self.verbs, _id: self.id.clone() }))
    }

    fn descriptor(&self) -> RawFd {
        // SAFETY: it lives.
        unsafe { (*self.channel).fd }
    }

    fn arm(&self) -> Result<()> {
        let arm = self.operations().req_notify_cq.ok_or(Errno(libc::EOPNOTSUPP))?;
        // SAFETY: it lives.
        posted(unsafe { arm(self.cq, 0) })
    }

    fn take_event(&self) -> bool {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: a channel that does not wait, and room for the answers; the CQ is its only one.
        unsafe {
            let got = (self.verbs.cq.get_event)(self.channel, &raw mut cq, &raw mut context) == 0;
            if got {
                (self.verbs.cq.ack_events)(self.cq, 1);
            }
            got
        }
    }

    fn poll(&self, into: &mut [Completion]) -> Result<usize> {
        const MOST: usize = 32;
        let poll = self.operations().poll_cq.ok_or(Errno(libc::EOPNOTSUPP))?;
        let mut batch = [ibv_wc::default(); MOST];
        let most = into.len().min(MOST) as c_int;
        // SAFETY: a CQ, and room for so many.
        let count = unsafe { poll(self.cq, most, batch.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| Errno(libc::EIO))?;
        for (place, wc) in into.iter_mut().zip(&batch[..count.min(MOST)]) {
            *place = Completion {
                id: wc.wr_id,
                outcome: match wc.status {
                    IBV_WC_SUCCESS => Outcome::Success,
                    WC_FLUSHED => Outcome::Flushed,
                    WC_RETRIES | WC_NOT_READY => Outcome::Silent,
                    _ => Outcome::Failed,
                },
                bytes: wc.byte_len,
                immediate: (wc.wc_flags & IBV_WC_WITH_IMM != 0).then(|| u32::from_be(wc.imm_data)),
            };
        }
        Ok(count)
    }

    unsafe fn receive(&self, id: u64, parts: &[Part]) -> Result<()> {
        let post = self.operations().post_recv.ok_or(Errno(libc::EOPNOTSUPP))?;
        let mut list = parts.first().map_or(ibv_sge::default(), sge);
        let num_sge = parts.len().min(1) as c_int;
        let mut request = ibv_recv_wr { wr_id: id, next: ptr::null_mut(), sg_list: &raw mut list, num_sge };
        let mut bad = ptr::null_mut();
        // SAFETY: a request with its list; the memory is the caller's.
        posted(unsafe { post(self.qp, &raw mut request, &raw mut bad) })
    }

    unsafe fn send(&self, id: u64, parts: &[Part], inline: bool, operation: Operation<'_>) -> Result<()> {
        let post = self.operations().post_send.ok_or(Errno(libc::EOPNOTSUPP))?;
        let mut list = [ibv_sge::default(); 2];
        for (place, part) in list.iter_mut().zip(parts) {
            *place = sge(part);
        }
        // SAFETY: integers and pointers.
        let mut request: ibv_send_wr = unsafe { std::mem::zeroed() };
        (request.wr_id, request.sg_list, request.num_sge) = (id, list.as_mut_ptr(), parts.len().min(2) as c_int);
        request.send_flags = if inline { IBV_SEND_INLINE } else { 0 };
        match operation {
            Operation::Write(remote_addr, rkey, said) => {
                request.opcode = said.map_or(IBV_WR_RDMA_WRITE, |_| IBV_WR_RDMA_WRITE_WITH_IMM);
                request.imm_data = said.unwrap_or(0).to_be();
                request.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey };
            }
            Operation::Send => request.opcode = IBV_WR_SEND,
            Operation::SendTo(handle, remote_qpn, remote_qkey) => {
                let handle = handle.as_any().downcast_ref::<RdmaHandle>().ok_or(Errno(libc::EINVAL))?;
                request.opcode = IBV_WR_SEND;
                request.wr.ud = ibv_send_wr_ud { ah: handle.ah, remote_qpn, remote_qkey };
            }
        }
        let mut bad = ptr::null_mut();
        // SAFETY: a request with its list; the memory is the caller's.
        posted(unsafe { post(self.qp, &raw mut request, &raw mut bad) })
    }
}

struct RdmaRegion {
    mr: *mut ibv_mr,
    verbs: &'static Verbs,
    /// Its protection domain is the identifier's.
    _id: Arc<Owned>,
}

// SAFETY: a region may be used by any thread; its fields do not change.
unsafe impl Send for RdmaRegion {}
// SAFETY: as above.
unsafe impl Sync for RdmaRegion {}

impl Region for RdmaRegion {
    fn local_key(&self) -> u32 {
        // SAFETY: it lives.
        unsafe { (*self.mr).lkey }
    }

    fn remote_key(&self) -> u32 {
        // SAFETY: it lives.
        unsafe { (*self.mr).rkey }
    }
}

impl Drop for RdmaRegion {
    fn drop(&mut self) {
        // SAFETY: made for this.
        unsafe { (self.verbs.memory.dereg_mr)(self.mr) };
    }
}

struct RdmaHandle {
    ah: *mut ibv_ah,
    verbs: &'static Verbs,
    /// Its protection domain is the identifier's.
    _id: Arc<Owned>,
}

// SAFETY: a handle may be used by any thread.
unsafe impl Send for RdmaHandle {}
// SAFETY: as above.
unsafe impl Sync for RdmaHandle {}

impl Handle for RdmaHandle {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for RdmaHandle {
    fn drop(&mut self) {
        // SAFETY: made for this.
        unsafe { (self.verbs.ah.destroy)(self.ah) };
    }
}
