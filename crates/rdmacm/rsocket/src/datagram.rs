//! A datagram socket: a UDP socket, by which peers find each other's QPs, and a UD QP for each address here that it
//! sends from.

use std::collections::{HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};

use crate::calls::{Calls, Flags, Options};
use crate::fabric::{
    Completion, Errno, Fabric, Handle, Id, Kind as IdKind, Operation, Outcome, QueueSizes, Queues, Result,
};
use crate::memory::{Memory, Vectors};
use crate::protocol::datagram::{Kind, MAX_BYTES, QUEUE_KEY, UdpHeader, decode_source, encode_source};
use crate::service;
use crate::waiting::{Waitable, Waiters, lock, wait};

/// Bytes before a datagram that has come to a UD QP.
const GRH_BYTES: usize = 40;

/// From one receive to the next in memory.
const RECEIVE_STRIDE: u32 = 2112;

/// In the identifier of a receive.
const RECEIVE: u64 = 1 << 63;

/// Peers that are known at a time: anybody can send to a UDP socket.
const MOST_DESTINATIONS: usize = 4096;

/// For how long the way to a peer is looked for, and how soon again when there was none.
const RESOLVE: Duration = Duration::from_secs(2);

/// For how long a close waits until the device has taken what was sent.
const DRAIN: Duration = Duration::from_secs(1);

/// Datagrams that are taken from a UDP socket before others have their turn.
const TURN: usize = 64;

/// A QP at an address of this host.
struct Endpoint {
    local: SocketAddr,
    // Dropped in this order: a QP that is no more touches no memory.
    queues: Arc<dyn Queues>,
    send: Memory,
    receive: Memory,
    id: Box<dyn Id>,
    /// The largest datagram with its header.
    largest: usize,
    slots: u32,
    state: Mutex<EndpointState>,
}

struct EndpointState {
    /// Places to send from that are free.
    free: Vec<u32>,
    armed: bool,
}

struct Destination {
    endpoint: Arc<Endpoint>,
    /// The way to its host, once that is known, and the number of its QP there by its last datagram.
    way: Option<Arc<dyn Handle>>,
    number: u32,
    tried: Option<Instant>,
}

struct Inner {
    endpoints: Vec<Arc<Endpoint>>,
    destinations: HashMap<SocketAddr, Destination>,
    connected: Option<SocketAddr>,
    received: VecDeque<(SocketAddr, Vec<u8>)>,
    reads: bool,
    writes: bool,
}

/// A datagram socket.
pub struct DatagramSocket {
    fabric: Arc<dyn Fabric>,
    udp: OwnedFd,
    is_v6: bool,
    /// The service thread reads its UDP socket.
    served: Mutex<bool>,
    inner: Mutex<Inner>,
    /// Options and waiters.
    pub calls: Calls,
}

impl DatagramSocket {
    /// A new one, of IPv6 or of IPv4.
    ///
    /// # Errors
    /// As of socket(2).
    pub fn new(fabric: Arc<dyn Fabric>, is_v6: bool) -> Result<DatagramSocket> {
        let family = if is_v6 { AddressFamily::INET6 } else { AddressFamily::INET };
        // The thread that reads it must not wait there.
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let udp = rustix::net::socket_with(family, SocketType::DGRAM, flags, None).map_err(os)?;
        let inner = Inner {
            endpoints: Vec::new(),
            destinations: HashMap::new(),
            connected: None,
            received: VecDeque::new(),
            reads: true,
            writes: true,
        };
        Ok(DatagramSocket {
            fabric,
            udp,
            is_v6,
            served: Mutex::new(false),
            inner: Mutex::new(inner),
            calls: Calls::new(Options::default()),
        })
    }

    /// The descriptor of its UDP socket, by which the program names it.
    pub fn descriptor(&self) -> RawFd {
        self.udp.as_raw_fd()
    }

    /// The address of its UDP socket.
    ///
    /// # Errors
    /// As of getsockname(2).
    pub fn local(&self) -> Result<SocketAddr> {
        let local = rustix::net::getsockname(&self.udp).map_err(os)?;
        SocketAddr::try_from(local).map_err(os)
    }

    /// The address that it is connected to.
    pub fn peer(&self) -> Option<SocketAddr> {
        lock(&self.inner).connected
    }

    /// Has the service take in UDP datagrams from now on.
    fn serve(self: &Arc<Self>) -> Result<()> {
        let mut served = lock(&self.served);
        if !*served {
            service::add_datagrams(self)?;
            *served = true;
        }
        Ok(())
    }

    /// bind(2).
    ///
    /// # Errors
    /// Those of bind(2).
    pub fn bind(self: &Arc<Self>, address: &SocketAddr) -> Result<()> {
        rustix::net::bind(&self.udp, address).map_err(os)?;
        self.serve()
    }

    /// connect(2).
    ///
    /// # Errors
    /// Those of connect(2), or there is no device on the way.
    pub fn connect(self: &Arc<Self>, to: &SocketAddr) -> Result<()> {
        rustix::net::connect(&self.udp, to).map_err(os)?;
        let mut inner = lock(&self.inner);
        self.destination(&mut inner, to)?;
        inner.connected = Some(*to);
        inner.received.retain(|(from, _)| is_same(from, to));
        drop(inner);
        self.serve()
    }

    /// The address here that leads there.
    fn source(&self, to: &SocketAddr) -> Result<SocketAddr> {
        let own = self.local()?;
        if !own.ip().is_unspecified() && !own.ip().is_loopback() {
            return Ok(own);
        }
        let mut found = vervain_rdmacm::address::source_for(None, to).map_err(Errno)?;
        found.set_port(own.port());
        Ok(found)
    }

    fn destination<'a>(&self, inner: &'a mut MutexGuard<'_, Inner>, to: &SocketAddr) -> Result<&'a mut Destination> {
        if !inner.destinations.contains_key(to) {
            // A device knows an IPv4 address as such.
            let source = canonical(&self.source(to)?);
            let known = inner.endpoints.iter().find(|endpoint| endpoint.local.ip() == source.ip());
            let endpoint = match known.cloned() {
                Some(endpoint) => endpoint,
                None => {
                    let make = |options: &mut Options| Endpoint::new(&*self.fabric, source, options);
                    let endpoint = Arc::new(self.calls.with_options(make)?);
                    inner.endpoints.push(endpoint.clone());
                    // A sleeper does not poll the new descriptor yet.
                    self.calls.waiters.wake();
                    endpoint
                }
            };
            if inner.destinations.len() >= MOST_DESTINATIONS {
                let connected = inner.connected;
                let other = inner.destinations.keys().find(|other| Some(**other) != connected).copied();
                other.and_then(|other| inner.destinations.remove(&other));
            }
            inner.destinations.insert(*to, Destination { endpoint, way: None, number: 0, tried: None });
        }
        inner.destinations.get_mut(to).ok_or(Errno(libc::EIO))
    }

    /// sendto(2), or send(2) without an address.
    ///
    /// # Errors
    /// EDESTADDRREQ, EMSGSIZE, EAGAIN, EPIPE; others: there is no device on the way.
    pub fn send(self: &Arc<Self>, data: &mut Vectors<'_>, to: Option<&SocketAddr>, flags: Flags) -> Result<usize> {
        self.serve()?;
        let length = data.left();
        let (endpoint, to, way) = {
            let mut inner = lock(&self.inner);
            if !inner.writes {
                return Err(Errno(libc::EPIPE));
            }
            let to = to.copied().or(inner.connected).ok_or(Errno(libc::EDESTADDRREQ))?;
            let found = self.destination(&mut inner, &to)?;
            (found.endpoint.clone(), to, found.way.clone().map(|handle| (handle, found.number)))
        };
        let header = UdpHeader { kind: Kind::Data, qp_number: endpoint.queues.number(), address: endpoint.local.ip() };
        let header = header.encode();
        // So what is sent does not depend on what is known of the peer.
        if length > MAX_BYTES - header.bytes().len() {
            return Err(Errno(libc::EMSGSIZE));
        }
        let source = encode_source(&self.stamped(&endpoint)?);
        let whole = source.bytes().len() + length;
        match way.filter(|_| whole <= endpoint.largest) {
            Some((handle, number)) => {
                let take = |_: &mut [libc::pollfd]| lock(&endpoint.state).free.pop();
                let slot = self.wait(flags, self.calls.with_options(|options| options.send_timeout), take)?;
                let start = slot * MAX_BYTES as u32;
                let body = start + source.bytes().len() as u32;
                // SAFETY: the header's bytes.
                unsafe { endpoint.send.copy_in(&(start..body), source.bytes().as_ptr()) };
                data.fill(&endpoint.send, &(body..body + length as u32));
                let part = endpoint.send.part(&(start..start + whole as u32));
                let inline = whole <= endpoint.queues.inline_bytes() as usize;
                let operation = Operation::SendTo(&*handle, number, QUEUE_KEY);
                // SAFETY: of that memory.
                let posted = unsafe { endpoint.queues.send(slot.into(), &[part], inline, operation) };
                if posted.is_err() {
                    lock(&endpoint.state).free.push(slot);
                }
                posted.map(|()| length)
            }
            None => {
                let mut datagram = header.bytes().to_vec();
                data.append(length, &mut datagram);
                self.send_udp(&datagram, &to).map(|()| length)
            }
        }
    }

    /// The address of an endpoint, with the port that peers know this socket by.
    fn stamped(&self, endpoint: &Endpoint) -> Result<SocketAddr> {
        let mut local = endpoint.local;
        local.set_port(self.local()?.port());
        Ok(local)
    }

    fn send_udp(&self, datagram: &[u8], to: &SocketAddr) -> Result<()> {
        let peer = rustix::net::getpeername(&self.udp).ok().flatten().and_then(|peer| SocketAddr::try_from(peer).ok());
        let (is_connected, flags) = (peer.is_some_and(|peer| is_same(&peer, to)), SendFlags::NOSIGNAL);
        let sent = if is_connected {
            rustix::net::send(&self.udp, datagram, flags)
        } else {
            rustix::net::sendto(&self.udp, datagram, flags, to)
        };
        match sent {
            // The peer's host has no such socket, or had none: nobody takes the datagram, which is no error of this
            // one.
            Err(rustix::io::Errno::CONNREFUSED) => Ok(()),
            sent => sent.map(|_| ()).map_err(os),
        }
    }

    /// recvfrom(2): the sender, bytes that were written, and bytes that the datagram has.
    ///
    /// # Errors
    /// EAGAIN.
    pub fn receive(
        self: &Arc<Self>,
        into: &mut Vectors<'_>,
        flags: Flags,
    ) -> Result<(Option<SocketAddr>, usize, usize)> {
        self.serve()?;
        let timeout = self.calls.with_options(|options| options.receive_timeout);
        let next = |_: &mut [libc::pollfd]| {
            let mut inner = lock(&self.inner);
            let found = if flags.peek { inner.received.front().cloned() } else { inner.received.pop_front() };
            match found {
                Some((from, bytes)) => Some((Some(from), bytes)),
                None => (!inner.reads).then(|| (None, Vec::new())),
            }
        };
        let (from, bytes) = self.wait(flags, timeout, next)?;
        let length = bytes.len().min(into.left());
        into.store(&bytes[..length]);
        Ok((from, length, bytes.len()))
    }

    /// shutdown(2).
    pub fn shut_down(&self, reading: bool, writing: bool) {
        let mut inner = lock(&self.inner);
        inner.reads &= !reading;
        inner.writes &= !writing;
        drop(inner);
        self.calls.waiters.wake();
    }

    /// close(2).
    pub fn close(&self) {
        // So that it is not served again, by a call that goes on in another thread.
        if std::mem::replace(&mut *lock(&self.served), true) {
            service::remove_datagrams(self);
        }
        self.shut_down(true, true);
        let is_drained = |_: &mut [libc::pollfd]| {
            let inner = lock(&self.inner);
            let drained = |endpoint: &Arc<Endpoint>| lock(&endpoint.state).free.len() == endpoint.slots as usize;
            inner.endpoints.iter().all(drained).then_some(())
        };
        let deadline = Instant::now() + DRAIN;
        while wait(&[self], &mut [], Some(deadline), is_drained) == Err(Errno(libc::EINTR)) {}
    }

    /// The events that poll(2) is to report of it.
    pub fn events(self: &Arc<Self>, interest: i16) -> i16 {
        let _ = self.serve();
        let inner = lock(&self.inner);
        let readable = !inner.received.is_empty() || !inner.reads;
        let has_room = |endpoint: &Arc<Endpoint>| !lock(&endpoint.state).free.is_empty();
        let writable = inner.endpoints.is_empty() || inner.endpoints.iter().any(has_room);
        let input = if readable { libc::POLLIN | libc::POLLRDNORM } else { 0 };
        let output = if writable { libc::POLLOUT | libc::POLLWRNORM } else { 0 };
        (input | output) & interest
    }

    fn wait<T>(
        &self,
        flags: Flags,
        timeout: Option<Duration>,
        mut check: impl FnMut(&mut [libc::pollfd]) -> Option<T>,
    ) -> Result<T> {
        if !self.calls.may_wait(flags) {
            self.progress();
            return check(&mut []).ok_or(Errno(libc::EAGAIN));
        }
        wait(&[self], &mut [], timeout.map(|timeout| Instant::now() + timeout), check)?.ok_or(Errno(libc::EAGAIN))
    }

    /// Takes what has come over UDP.
    pub fn take_udp(self: &Arc<Self>) {
        let mut buffer = [MaybeUninit::<u8>::uninit(); MAX_BYTES];
        for _ in 0..TURN {
            let flags = rustix::net::RecvFlags::DONTWAIT;
            let Ok(((bytes, _), _, from)) = rustix::net::recvfrom(&self.udp, &mut buffer, flags) else { return };
            let Some(from) = from.and_then(|from| SocketAddr::try_from(from).ok()) else { continue };
            if let Some((header, payload)) = UdpHeader::decode(bytes, &canonical(&from)) {
                // A failure for this peer must not keep others waiting.
                let _ = self.take_datagram(&header, payload, &from);
            }
        }
    }

    fn take_datagram(self: &Arc<Self>, header: &UdpHeader, payload: &[u8], from: &SocketAddr) -> Result<()> {
        let mut inner = lock(&self.inner);
        let destination = self.destination(&mut inner, from)?;
        let endpoint = destination.endpoint.clone();
        // The same peer may have another QP by now.
        destination.number = header.qp_number;
        let now = Instant::now();
        let asks = destination.way.is_none() && destination.tried.is_none_or(|tried| now - tried >= RESOLVE);
        if asks {
            destination.tried = Some(now);
        }
        if header.kind == Kind::Data {
            self.keep(&mut inner, from, payload);
        }
        drop(inner);
        if header.kind == Kind::Data {
            self.calls.waiters.wake();
            let (number, address) = (endpoint.queues.number(), endpoint.local.ip());
            let answer = UdpHeader { kind: Kind::Control, qp_number: number, address };
            self.send_udp(answer.encode().bytes(), from)?;
        }
        if asks && !self.find_way(endpoint, *from) {
            // The next datagram asks again; until it is known they go by UDP.
            if let Some(destination) = lock(&self.inner).destinations.get_mut(from) {
                destination.tried = None;
            }
        }
        Ok(())
    }

    /// Looks for the way to a peer, without waiting: any host can send a datagram that names one that does not answer.
    /// Returns true if the search has begun.
    fn find_way(self: &Arc<Self>, endpoint: Arc<Endpoint>, to: SocketAddr) -> bool {
        // A socket that is closed meanwhile is gone.
        let socket = Arc::downgrade(self);
        service::aside(move || {
            let found = endpoint.id.resolve_datagram(&canonical(&to), RESOLVE);
            if let (Ok(handle), Some(socket)) = (found, socket.upgrade())
                && let Some(destination) = lock(&socket.inner).destinations.get_mut(&to)
            {
                destination.way = Some(handle);
            }
        })
    }

    /// Keeps a datagram for the program, if there is room and it wants it.
    fn keep(&self, inner: &mut MutexGuard<'_, Inner>, from: &SocketAddr, payload: &[u8]) {
        // A socket of IPv6 knows peers with IPv4 by mapped addresses.
        let from = &match from.ip() {
            IpAddr::V4(v4) if self.is_v6 => SocketAddr::new(v4.to_ipv6_mapped().into(), from.port()),
            _ => *from,
        };
        let wanted = inner.connected.is_none_or(|peer| is_same(&peer, from)) && inner.reads;
        let most = self.calls.with_options(|options| options.datagram_receives());
        if wanted && inner.received.len() < most as usize {
            inner.received.push_back((*from, payload.to_vec()));
        }
    }

    /// Returns true if its sizes can still be chosen.
    pub fn is_new(&self) -> bool {
        lock(&self.inner).endpoints.is_empty()
    }

    fn endpoints(&self) -> Vec<Arc<Endpoint>> {
        lock(&self.inner).endpoints.clone()
    }
}

/// Returns true if it is one socket's address: flow labels and the like do not count.
fn is_same(one: &SocketAddr, other: &SocketAddr) -> bool {
    (one.ip(), one.port()) == (other.ip(), other.port())
}

/// An IPv4 address that is mapped into IPv6 is one of IPv4.
fn canonical(address: &SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        v4 @ IpAddr::V4(_) => SocketAddr::new(v4, address.port()),
        IpAddr::V6(_) => *address,
    }
}

fn os(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error())
}

impl Endpoint {
    fn new(fabric: &dyn Fabric, source: SocketAddr, options: &Options) -> Result<Endpoint> {
        let id = fabric.identifier(IdKind::Datagram)?;
        // Peers know the UDP socket's port; the identifier's own is nobody's business.
        id.bind(&SocketAddr::new(source.ip(), 0))?;
        let limits = id.limits();
        let (sends, receives) =
            (options.datagram_sends().min(limits.requests), options.datagram_receives().min(limits.requests));
        let queues = id.queues(&QueueSizes {
            send_requests: sends,
            receives,
            inline_bytes: options.wishes.inline_bytes.into(),
        })?;
        let send = Memory::new(&*queues, sends as usize * MAX_BYTES, false)?;
        let receive = Memory::new(&*queues, (receives * RECEIVE_STRIDE) as usize, false)?;
        let largest = MAX_BYTES.min(limits.datagram as usize);
        let state = Mutex::new(EndpointState { free: (0..sends).collect(), armed: false });
        let endpoint = Endpoint { local: source, queues, send, receive, id, largest, slots: sends, state };
        (0..receives).try_for_each(|at| endpoint.post_receive(at))?;
        Ok(endpoint)
    }

    fn post_receive(&self, at: u32) -> Result<()> {
        let start = at * RECEIVE_STRIDE;
        let part = self.receive.part(&(start..start + (GRH_BYTES + MAX_BYTES) as u32));
        // SAFETY: of that memory.
        unsafe { self.queues.receive(RECEIVE | u64::from(at), &[part]) }
    }

    /// Takes completions: datagrams go to `each`. Returns true if there were any.
    fn progress(&self, each: &mut impl FnMut(&SocketAddr, &[u8])) -> bool {
        let mut batch = [Completion::default(); 32];
        // One thread at a time, so that a place is not posted before it was read.
        let mut state = lock(&self.state);
        let mut any = false;
        while let Ok(count @ 1..) = self.queues.poll(&mut batch) {
            any = true;
            for completion in &batch[..count.min(batch.len())] {
                let at = completion.id as u32;
                if completion.id & RECEIVE == 0 {
                    if at < self.slots {
                        state.free.push(at);
                    }
                    continue;
                }
                let length = (completion.bytes as usize).clamp(GRH_BYTES, GRH_BYTES + MAX_BYTES) - GRH_BYTES;
                if completion.outcome == Outcome::Success {
                    let mut bytes = vec![0; length];
                    let start = at * RECEIVE_STRIDE + GRH_BYTES as u32;
                    // SAFETY: as many bytes.
                    unsafe { self.receive.copy_out(&(start..start + length as u32), bytes.as_mut_ptr()) };
                    if let Some((from, payload)) = decode_source(&bytes) {
                        each(&from, payload);
                    }
                }
                if completion.outcome != Outcome::Flushed {
                    let _ = self.post_receive(at);
                }
            }
        }
        any
    }
}

impl Waitable for DatagramSocket {
    fn progress(&self) {
        let mut any = false;
        for endpoint in self.endpoints() {
            let mut come = Vec::new();
            any |= endpoint.progress(&mut |from, payload| come.push((*from, payload.to_vec())));
            if !come.is_empty() {
                let mut inner = lock(&self.inner);
                come.iter().for_each(|(from, payload)| self.keep(&mut inner, from, payload));
            }
        }
        if any {
            self.calls.waiters.wake();
        }
    }

    fn arm(&self) {
        for endpoint in self.endpoints() {
            let mut state = lock(&endpoint.state);
            if !state.armed {
                state.armed = endpoint.queues.arm().is_ok();
            }
        }
    }

    fn descriptors(&self, into: &mut Vec<libc::pollfd>) {
        let polled = |endpoint: Arc<Endpoint>| libc::pollfd {
            fd: endpoint.queues.descriptor(),
            events: libc::POLLIN,
            revents: 0,
        };
        into.extend(self.endpoints().into_iter().map(polled));
    }

    fn woken(&self, polled: &[libc::pollfd]) {
        for endpoint in self.endpoints() {
            let is_it = |one: &libc::pollfd| one.fd == endpoint.queues.descriptor() && one.revents != 0;
            if polled.iter().any(is_it) {
                let mut state = lock(&endpoint.state);
                if endpoint.queues.take_event() {
                    state.armed = false;
                }
            }
        }
        self.calls.waiters.wake();
    }

    fn waiters(&self) -> &Waiters {
        &self.calls.waiters
    }
}
