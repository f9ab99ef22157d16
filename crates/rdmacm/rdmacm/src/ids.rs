//! Identifiers and event channels: `rdma_create_id(3)`, `rdma_create_event_channel(3)`, `rdma_migrate_id(3)`,
//! `rdma_get_cm_event(3)`.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vervain_abi::*;

use crate::abi::*;
use crate::address;
use crate::addrinfo::Resolution;
use crate::connect;
use crate::device::Route;
use crate::errno::{fail, result};
use crate::manager::{Manager, Shown};
use crate::qp;
use crate::queue::{Held, Queue, Queued};
use crate::reports::{ConnParam, Handle, Report, What};

/// A `struct rdma_event_channel` with what belongs to it.
#[repr(C)]
pub(crate) struct Channel {
    pub c: rdma_event_channel,
    pub queue: Arc<Queue>,
}

/// A `struct rdma_cm_id` with what belongs to it.
#[repr(C)]
pub(crate) struct Id {
    pub c: rdma_cm_id,
    pub handle: Handle,
    /// Calls wait for their event: the channel is its own.
    pub is_synchronous: bool,
    /// A response could not be followed: later messages of the other end cause no events any more.
    has_failed: AtomicBool,
    /// For a listener: the attributes of QPs of requests.
    pub qp_init_attr: Option<ibv_qp_init_attr>,
    /// Private data that the address information had.
    pub connect_data: Vec<u8>,
    pub initiator_depth: u8,
    pub responder_resources: u8,
    pub path: ibv_sa_path_rec,
    groups: Mutex<Vec<Joined>>,
    /// The protection domain of the device that it was given, to be given back.
    default_pd: *mut ibv_pd,
    /// Which of the completion queues it has made.
    pub own_queues: qp::OwnQueues,
    pub device: Option<usize>,
    /// The question of `rdma_resolve_addrinfo`.
    pub resolution: Arc<Mutex<Resolution>>,
}

impl Id {
    /// Acknowledges the event that an earlier call has left, if there is one.
    pub fn acknowledge(&mut self) {
        let event = std::mem::replace(&mut self.c.event, ptr::null_mut());
        if !event.is_null() {
            // SAFETY: a call that waited has left it there.
            unsafe { rdma_ack_cm_event(event) };
        }
    }

    /// The groups that it has joined, or is to: the thread that hears of one attaches the QP, while another may join or
    /// leave.
    pub fn groups(&self) -> MutexGuard<'_, Vec<Joined>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A group that was joined, or is to be.
#[derive(Clone, Copy)]
pub(crate) struct Joined {
    pub ip: std::net::IpAddr,
    pub context: *mut c_void,
    pub mgid: ibv_gid,
    /// Its QP is not to receive what is sent to the group.
    pub sends_only: bool,
    pub is_attached: bool,
}

/// A `struct rdma_cm_event` with what belongs to it.
#[repr(C)]
struct EventBox {
    c: rdma_cm_event,
    /// Counts it among the events that the destruction of the identifier waits for.
    _held: Held,
    private_data: Vec<u8>,
}

/// The value behind an identifier.
///
/// # Safety
/// It came from [`rdma_create_id`] or with an event, and is not destroyed.
pub(crate) unsafe fn id_of<'a>(id: *mut rdma_cm_id) -> &'a mut Id {
    // SAFETY: the caller's; the C struct is its first field.
    unsafe { &mut *id.cast::<Id>() }
}

unsafe fn channel_of<'a>(channel: *mut rdma_event_channel) -> &'a Channel {
    // SAFETY: the caller's: it came from rdma_create_event_channel and is not destroyed; the C struct is its first
    // field.
    unsafe { &*channel.cast::<Channel>() }
}

fn new_channel() -> Result<*mut rdma_event_channel, c_int> {
    Manager::get()?;
    let queue = Arc::new(Queue::new()?);
    let channel = Box::new(Channel { c: rdma_event_channel { fd: queue.fd() }, queue });
    Ok(Box::into_raw(channel).cast())
}

/// `rdma_create_event_channel(3)`.
pub extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    match new_channel() {
        Ok(channel) => channel,
        Err(errno) => {
            fail(errno);
            ptr::null_mut()
        }
    }
}

/// `rdma_destroy_event_channel(3)`.
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    if !channel.is_null() {
        // SAFETY: of the man page: made by rdma_create_event_channel, and nobody uses it any more.
        drop(unsafe { Box::from_raw(channel.cast::<Channel>()) });
    }
}

/// Makes an identifier; without a channel, one whose calls wait.
pub(crate) unsafe fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: rdma_port_space,
    qp_type: ibv_qp_type,
) -> Result<*mut rdma_cm_id, c_int> {
    if !matches!(ps, RDMA_PS_IPOIB | RDMA_PS_TCP | RDMA_PS_UDP | RDMA_PS_IB) {
        return Err(libc::EINVAL);
    }
    let manager = Manager::get()?;
    let is_synchronous = channel.is_null();
    let channel = if is_synchronous { new_channel()? } else { channel };
    // SAFETY: the program's, or just made.
    let queue = Arc::clone(unsafe { &channel_of(channel).queue });
    let handle = manager.create(queue, ps, qp_type);
    let id = Box::into_raw(new_id(handle, channel, context, ps, qp_type, is_synchronous)).cast();
    manager.adopt(handle, id);
    Ok(id)
}

fn new_id(
    handle: Handle,
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: rdma_port_space,
    qp_type: ibv_qp_type,
    is_synchronous: bool,
) -> Box<Id> {
    // SAFETY: a struct of integers and pointers.
    let c = rdma_cm_id { channel, context, ps, qp_type, ..unsafe { std::mem::zeroed() } };
    Box::new(Id {
        c,
        handle,
        is_synchronous,
        has_failed: AtomicBool::new(false),
        qp_init_attr: None,
        connect_data: Vec::new(),
        initiator_depth: 0,
        responder_resources: 0,
        // SAFETY: a struct of integers.
        path: unsafe { std::mem::zeroed() },
        groups: Mutex::default(),
        default_pd: ptr::null_mut(),
        own_queues: qp::OwnQueues::default(),
        device: None,
        resolution: Arc::default(),
    })
}

/// The type of the QPs of a port space.
pub(crate) fn qp_type_of(ps: rdma_port_space) -> ibv_qp_type {
    if matches!(ps, RDMA_PS_IPOIB | RDMA_PS_UDP) { IBV_QPT_UD } else { IBV_QPT_RC }
}

/// `rdma_create_id(3)`.
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    // SAFETY: of the man page.
    let made = unsafe { create(channel, context, ps, qp_type_of(ps)) };
    // SAFETY: room for the result.
    result(made.map(|made| unsafe { *id = made }))
}

/// `rdma_destroy_id(3)`. Waits until all events of it are acknowledged.
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    let manager = match Manager::get() {
        Ok(manager) => manager,
        Err(errno) => return fail(errno),
    };
    // SAFETY: of the man page.
    let object = unsafe { id_of(id) };
    object.acknowledge();
    let outstanding = manager.outstanding(object.handle);
    manager.destroy(object.handle);
    outstanding.into_iter().for_each(|held| held.wait());
    if let Some(device) = object.device {
        manager.devices[device].give_pd_back(manager.verbs, object.default_pd);
    }
    // SAFETY: made by create; nobody uses it any more.
    let object = unsafe { Box::from_raw(id.cast::<Id>()) };
    if object.is_synchronous {
        // SAFETY: it is its own.
        unsafe { rdma_destroy_event_channel(object.c.channel) };
    }
    0
}

/// `rdma_migrate_id(3)`. Waits until all events of it are acknowledged that came by the channel before.
pub unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    // SAFETY: of the man page.
    let object = unsafe { id_of(id) };
    let moved = (|| {
        let manager = Manager::get()?;
        if object.is_synchronous && channel.is_null() {
            return Err(libc::EINVAL);
        }
        if object.is_synchronous {
            object.acknowledge();
        }
        let to = if channel.is_null() { new_channel()? } else { channel };
        // SAFETY: the program's, or just made.
        manager.migrate(object.handle, unsafe { &channel_of(to).queue })?;
        manager.outstanding(object.handle).into_iter().for_each(|held| held.wait());
        let from = std::mem::replace(&mut object.c.channel, to);
        if std::mem::replace(&mut object.is_synchronous, channel.is_null()) {
            // SAFETY: it was its own.
            unsafe { rdma_destroy_event_channel(from) };
        }
        Ok(())
    })();
    result(moved)
}

/// Waits for the event of a call, where the identifier is one whose calls wait.
pub(crate) unsafe fn complete(id: *mut rdma_cm_id) -> Result<(), c_int> {
    // SAFETY: the caller's.
    let object = unsafe { id_of(id) };
    if !object.is_synchronous {
        return Ok(());
    }
    object.acknowledge();
    // SAFETY: its own channel.
    let event = unsafe { next_event(object.c.channel) }?;
    // SAFETY: just made.
    let (kind, status) = unsafe { ((*event).event, (*event).status) };
    object.c.event = event;
    match status {
        0 => Ok(()),
        _ if kind == RDMA_CM_EVENT_REJECTED => Err(libc::ECONNREFUSED),
        _ => Err(status.abs()),
    }
}

/// `rdma_get_cm_event(3)`.
pub unsafe extern "C" fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int {
    if channel.is_null() || event.is_null() {
        return fail(libc::EINVAL);
    }
    // SAFETY: of the man page.
    let next = unsafe { next_event(channel) };
    // SAFETY: room for the result.
    result(next.map(|next| unsafe { *event = next }))
}

unsafe fn next_event(channel: *mut rdma_event_channel) -> Result<*mut rdma_cm_event, c_int> {
    let manager = Manager::get()?;
    // SAFETY: the caller's.
    let queue = Arc::clone(unsafe { &channel_of(channel).queue });
    loop {
        let (queued, held) = queue.next()?;
        // SAFETY: the caller's.
        if let Some(event) = unsafe { event_of(manager, queued, held) } {
            return Ok(event);
        }
    }
}

/// Does the library's part of an event, and returns the event as the program sees it; None if it sees none.
unsafe fn event_of(manager: &'static Manager, queued: Queued, held: Held) -> Option<*mut rdma_cm_event> {
    let object = manager.object(queued.id)?;
    let (mut kind, mut status) = (queued.report.kind, queued.report.status);
    // SAFETY: who destroys it removes it from the manager, and waits for the events that are held before it is freed.
    let id = unsafe { id_of(object) };
    let (mut shown, mut listen_id) = (object, ptr::null_mut());
    // SAFETY: a union of integers and pointers.
    let mut param: rdma_event_param = unsafe { std::mem::zeroed() };
    let mut private_data = Vec::new();
    match queued.report.what {
        What::Nothing => {}
        What::Request { new, says } => {
            listen_id = object;
            shown = request(manager, id, new, &says)?;
            if id.c.qp_type == IBV_QPT_UD {
                param.ud = ud_param(&says)
            } else {
                param.conn = conn_param(&says)
            }
            private_data = says.private_data;
        }
        What::Connection(says) => {
            if id.c.qp_type == IBV_QPT_UD {
                param.ud = ud_param(&says)
            } else {
                param.conn = conn_param(&says)
            }
            private_data = says.private_data;
        }
        What::Datagrams { says, ah, qkey } => {
            param.ud = rdma_ud_param { ah_attr: ah, qkey, ..ud_param(&says) };
            private_data = says.private_data;
        }
        What::Argument(arg) => param.arg = arg,
        What::Group { mgid, ah, context } => {
            let qp = id.c.qp;
            let mut groups = id.groups();
            let joined = groups.iter_mut().find(|group| group.context as usize == context && group.mgid == mgid);
            let failed = joined.map_or(libc::EINVAL, |group| group.attach(manager.verbs, qp));
            if failed != 0 {
                (kind, status) = (RDMA_CM_EVENT_MULTICAST_ERROR, -failed);
            }
            param.ud = rdma_ud_param {
                private_data: context as *const c_void,
                private_data_len: 0,
                ah_attr: ah,
                qp_num: 0x00ff_ffff,
                qkey: RDMA_UDP_QKEY,
            };
        }
    }
    match kind {
        RDMA_CM_EVENT_ADDR_RESOLVED => show(manager, id),
        RDMA_CM_EVENT_ROUTE_RESOLVED => show(manager, id),
        RDMA_CM_EVENT_CONNECT_RESPONSE if !id.c.qp.is_null() => {
            // SAFETY: an identifier with its QP.
            (kind, status) = match unsafe { connect::confirm(manager, id) } {
                Ok(()) => (RDMA_CM_EVENT_ESTABLISHED, 0),
                Err(errno) => {
                    id.has_failed.store(true, Ordering::Relaxed);
                    (RDMA_CM_EVENT_CONNECT_ERROR, -errno)
                }
            };
        }
        RDMA_CM_EVENT_REJECTED | RDMA_CM_EVENT_DISCONNECTED if id.has_failed.load(Ordering::Relaxed) => return None,
        RDMA_CM_EVENT_REJECTED | RDMA_CM_EVENT_UNREACHABLE if !id.c.qp.is_null() && id.c.qp_type != IBV_QPT_UD => {
            // SAFETY: as above.
            let _ = unsafe { qp::to_error(manager, id) };
        }
        _ => {}
    }
    let c = rdma_cm_event { id: shown, listen_id, event: kind, status, param };
    let mut event = Box::new(EventBox { c, _held: held, private_data });
    let data = if event.private_data.is_empty() { ptr::null() } else { event.private_data.as_ptr().cast() };
    if !event.private_data.is_empty() {
        // Both arms of the union begin with it.
        event.c.param.conn.private_data = data;
    }
    Some(Box::into_raw(event).cast())
}

/// `rdma_ack_cm_event(3)`.
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    if event.is_null() {
        return fail(libc::EINVAL);
    }
    // SAFETY: of the man page: it came from rdma_get_cm_event, and is acknowledged once.
    drop(unsafe { Box::from_raw(event.cast::<EventBox>()) });
    0
}

/// `rdma_write_cm_event(3)`: an event of the program's own. EINVAL for any other kind.
pub unsafe extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: rdma_cm_event_type,
    status: c_int,
    arg: u64,
) -> c_int {
    if event != RDMA_CM_EVENT_USER {
        return fail(libc::EINVAL);
    }
    // SAFETY: of the man page.
    unsafe {
        connect::at_once(id, |manager, object| {
            manager.report(object.handle, Report { kind: event, status, what: What::Argument(arg) })
        })
    }
}

fn conn_param(says: &ConnParam) -> rdma_conn_param {
    rdma_conn_param {
        private_data: ptr::null(),
        private_data_len: says.private_data.len() as u8,
        responder_resources: says.responder_resources,
        initiator_depth: says.initiator_depth,
        flow_control: says.flow_control,
        retry_count: says.retry_count,
        rnr_retry_count: says.rnr_retry_count,
        srq: says.srq.into(),
        qp_num: says.qpn,
    }
}

fn ud_param(says: &ConnParam) -> rdma_ud_param {
    rdma_ud_param {
        private_data: ptr::null(),
        private_data_len: says.private_data.len() as u8,
        ah_attr: ibv_ah_attr::default(),
        qp_num: says.qpn,
        qkey: 0,
    }
}

/// The channel of a request for this listener: one that waits has requests that wait.
fn new_channel_beside(listener: &Id) -> Result<*mut rdma_event_channel, c_int> {
    if listener.is_synchronous { new_channel() } else { Ok(listener.c.channel) }
}

/// The identifier of a request.
fn request(manager: &'static Manager, listener: &mut Id, new: Handle, says: &ConnParam) -> Option<*mut rdma_cm_id> {
    let qp_type = manager.qp_type(new)?;
    let channel = match new_channel_beside(listener) {
        Ok(channel) => channel,
        Err(errno) => {
            log::warn!("a request for a connection is refused: {}", std::io::Error::from_raw_os_error(errno));
            manager.destroy(new);
            return None;
        }
    };
    let object = new_id(new, channel, listener.c.context, listener.c.ps, qp_type, listener.is_synchronous);
    let object = Box::into_raw(object).cast();
    // SAFETY: just made; and a channel that is the listener's or its own.
    let (id, queue) = unsafe { (id_of(object), &channel_of(channel).queue) };
    id.initiator_depth = says.initiator_depth;
    id.responder_resources = says.responder_resources;
    if !manager.adopt(new, object) || manager.migrate(new, queue).is_err() {
        // It has ended meanwhile.
        // SAFETY: nobody knows of it.
        unsafe { rdma_destroy_id(object) };
        return None;
    }
    show(manager, id);
    Some(object)
}

/// Brings the C struct up to date.
pub(crate) fn show(manager: &Manager, id: &mut Id) {
    let Some(Shown { from, to, route, has_path, ack_timeout }) = manager.shown(id.handle) else { return };
    let addr = &mut id.c.route.addr;
    if let Some(from) = from {
        address::write(&mut addr.src, &from);
    }
    if let Some(to) = to {
        address::write(&mut addr.dst, &to);
    }
    let Some(route) = route else { return };
    if id.device.is_none() {
        let device = &manager.devices[route.source.device];
        id.device = Some(route.source.device);
        id.c.verbs = device.context;
        if let Ok(pd) = device.pd(manager.verbs) {
            id.default_pd = pd;
            if id.c.pd.is_null() {
                id.c.pd = pd;
            }
        }
    }
    id.c.port_num = route.source.port;
    addr.ib.sgid = route.source.gid;
    addr.ib.dgid = route.dgid;
    addr.ib.pkey = 0xffff;
    if has_path {
        id.path = path_record(&route, ack_timeout);
        id.c.route.path_rec = &raw mut id.path;
        id.c.route.num_paths = 1;
    }
}

/// The record of a route that a subnet administrator would have; the kernel's rdma_cm makes it up for RoCE as well.
fn path_record(route: &Route, ack_timeout: u8) -> ibv_sa_path_rec {
    /// The selector "exactly" (IBA 15.2.5.16).
    const EXACTLY: u8 = 2;
    ibv_sa_path_rec {
        dgid: route.dgid,
        sgid: route.source.gid,
        dlid: 0,
        slid: 0,
        raw_traffic: 0,
        flow_label: 0,
        hop_limit: route.hop_limit(),
        traffic_class: route.traffic_class,
        reversible: 1,
        numb_path: 1,
        pkey: 0xffff,
        sl: 0,
        mtu_selector: EXACTLY,
        mtu: route.mtu as u8,
        rate_selector: EXACTLY,
        rate: IBV_RATE_100_GBPS as u8,
        packet_life_time_selector: EXACTLY,
        packet_life_time: ack_timeout.saturating_sub(1),
        preference: 0,
    }
}

/// `rdma_get_src_port(3)`, in network byte order.
pub unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: of the man page.
    unsafe { port_of(&(*id).route.addr.src) }
}

/// `rdma_get_dst_port(3)`, in network byte order.
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: of the man page.
    unsafe { port_of(&(*id).route.addr.dst) }
}

fn port_of(storage: &libc::sockaddr_storage) -> u16 {
    // SAFETY: a sockaddr of its family, or zeros.
    unsafe { address::read(ptr::from_ref(storage).cast()) }.map_or(0, |address| address.port().to_be())
}
