//! A network inside of the process: identifiers, queues and memory that obey what verbs and rdma_cm promise, and no
//! more.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use vervain_rsocket::fabric::{
    Completion, Errno, Event, Fabric, Handle, Id, IdOption, Kind, Limits, Operation, Outcome, Part, QueueSizes, Queues,
    Region, Result,
};

/// Peers at such a port have devices without immediate data, and requests that hold just a message.
pub const SEPARATE_PORTS: std::ops::RangeInclusive<u16> = 20_000..=29_999;

/// Devices there hold nothing in a request.
pub const BARE_PORTS: std::ops::RangeInclusive<u16> = 30_000..=31_999;

#[derive(Default)]
struct World {
    numbers: u32,
    listeners: HashMap<u16, Weak<Ident>>,
    regions: HashMap<u32, (u64, usize, bool)>,
    queue_pairs: HashMap<u32, Weak<Pair>>,
    silent: Vec<u16>,
}

/// All of it.
#[derive(Clone, Default)]
pub struct Network(Arc<Mutex<World>>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A descriptor that is readable while it counts.
struct Bell(OwnedFd);

impl Bell {
    fn new() -> Bell {
        Bell(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap())
    }

    fn ring(&self) {
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    fn silence(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 8]) == Ok(8)
    }
}

enum Told {
    AddressResolved,
    RouteResolved,
    Request(Arc<Ident>, Vec<u8>),
    Established(Vec<u8>),
    Failed(i32),
    Disconnected,
}

struct Ident {
    network: Network,
    kind: Kind,
    bell: Bell,
    events: Mutex<VecDeque<Told>>,
    local: Mutex<Option<SocketAddr>>,
    remote: Mutex<Option<SocketAddr>>,
    peer: Mutex<Weak<Ident>>,
    pair: Mutex<Weak<Pair>>,
    gone: AtomicBool,
}

impl Ident {
    fn new(network: &Network, kind: Kind) -> Arc<Ident> {
        Arc::new(Ident {
            network: network.clone(),
            kind,
            bell: Bell::new(),
            events: Mutex::default(),
            local: Mutex::default(),
            remote: Mutex::default(),
            peer: Mutex::default(),
            pair: Mutex::default(),
            gone: AtomicBool::new(false),
        })
    }

    fn tell(&self, told: Told) {
        lock(&self.events).push_back(told);
        self.bell.ring();
    }

    fn leave(&self) {
        if self.gone.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Some(pair) = lock(&self.pair).upgrade() {
            let _world = lock(&self.network.0);
            pair.fail();
        }
        if let Some(peer) = lock(&self.peer).upgrade() {
            peer.tell(Told::Disconnected);
        }
    }
}

struct FakeId(Arc<Ident>);

impl Drop for FakeId {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Fabric for Network {
    fn identifier(&self, kind: Kind) -> Result<Box<dyn Id>> {
        Ok(Box::new(FakeId(Ident::new(self, kind))))
    }
}

impl Network {
    /// The cable of all QPs that are connected to this port is pulled.
    pub fn unplug(&self, port: u16) {
        let world = lock(&self.0);
        for pair in world.queue_pairs.values().filter_map(Weak::upgrade) {
            let is_it = |address: Option<SocketAddr>| address.is_some_and(|address| address.port() == port);
            if is_it(*lock(&pair.ident.local)) || is_it(*lock(&pair.ident.remote)) {
                pair.unplugged.store(true, Ordering::SeqCst);
            }
        }
    }

    /// Requests for the way of datagrams to this port get no answer.
    pub fn silence(&self, port: u16) {
        lock(&self.0).silent.push(port);
    }

    /// The connection manager says that the peers of this port are gone, as after the death of their process.
    pub fn bury(&self, port: u16) {
        let world = lock(&self.0);
        for pair in world.queue_pairs.values().filter_map(Weak::upgrade) {
            if lock(&pair.ident.remote).is_some_and(|address| address.port() == port) {
                pair.ident.tell(Told::Disconnected);
            }
        }
    }
}

impl Id for FakeId {
    fn descriptor(&self) -> RawFd {
        self.0.bell.0.as_raw_fd()
    }

    fn event(&self) -> Result<Option<Event>> {
        let mut events = lock(&self.0.events);
        let told = events.pop_front();
        if events.is_empty() {
            self.0.bell.silence();
        }
        Ok(told.map(|told| match told {
            Told::AddressResolved => Event::AddressResolved,
            Told::RouteResolved => Event::RouteResolved,
            Told::Request(ident, private) => Event::Request(Box::new(FakeId(ident)), private),
            Told::Established(private) => Event::Established(private),
            Told::Failed(errno) => Event::Failed(Errno(errno)),
            Told::Disconnected => Event::Disconnected,
        }))
    }

    fn bind(&self, address: &SocketAddr) -> Result<()> {
        *lock(&self.0.local) = Some(*address);
        Ok(())
    }

    fn listen(&self, _: i32) -> Result<()> {
        let port = lock(&self.0.local).ok_or(Errno(libc::EINVAL))?.port();
        lock(&self.0.network.0).listeners.insert(port, Arc::downgrade(&self.0));
        Ok(())
    }

    fn resolve_address(&self, to: &SocketAddr, _: Duration) -> Result<()> {
        *lock(&self.0.remote) = Some(*to);
        lock(&self.0.local).get_or_insert("10.0.0.1:5".parse().unwrap());
        self.0.tell(Told::AddressResolved);
        Ok(())
    }

    fn resolve_route(&self, _: Duration) -> Result<()> {
        self.0.tell(Told::RouteResolved);
        Ok(())
    }

    fn set_route(&self, route: &[u8]) -> Result<()> {
        if route.is_empty() {
            return Err(Errno(libc::EINVAL));
        }
        self.0.tell(Told::RouteResolved);
        Ok(())
    }

    fn route(&self) -> Vec<u8> {
        vec![7; 72]
    }

    fn path_mtu(&self) -> Option<u32> {
        None
    }

    fn set_option(&self, _: IdOption, _: i32) -> Result<()> {
        Ok(())
    }

    fn queues(&self, sizes: &QueueSizes) -> Result<Arc<dyn Queues>> {
        let mut world = lock(&self.0.network.0);
        world.numbers += 1;
        let number = world.numbers;
        let inline_bytes = match lock(&self.0.remote).or(*lock(&self.0.local)) {
            Some(address) if SEPARATE_PORTS.contains(&address.port()) => 4,
            Some(address) if BARE_PORTS.contains(&address.port()) => 0,
            _ => sizes.inline_bytes,
        };
        let pair = Arc::new(Pair {
            ident: self.0.clone(),
            number,
            sizes: QueueSizes { inline_bytes, ..*sizes },
            peer: Mutex::default(),
            state: Mutex::default(),
            bell: Bell::new(),
            unplugged: AtomicBool::new(false),
        });
        world.queue_pairs.insert(number, Arc::downgrade(&pair));
        *lock(&self.0.pair) = Arc::downgrade(&pair);
        Ok(Arc::new(FakeQueues(pair)))
    }

    fn connect(&self, private: &[u8]) -> Result<()> {
        let to = lock(&self.0.remote).ok_or(Errno(libc::EINVAL))?;
        let listener = lock(&self.0.network.0).listeners.get(&to.port()).and_then(Weak::upgrade);
        let Some(listener) = listener.filter(|listener| !listener.gone.load(Ordering::SeqCst)) else {
            self.0.tell(Told::Failed(libc::ECONNREFUSED));
            return Ok(());
        };
        let other = Ident::new(&self.0.network, Kind::Stream);
        *lock(&other.peer) = Arc::downgrade(&self.0);
        *lock(&other.local) = Some(to);
        // The devices of both are alike.
        let from = lock(&self.0.local).unwrap();
        *lock(&other.remote) = Some(SocketAddr::new(from.ip(), to.port()));
        *lock(&self.0.peer) = Arc::downgrade(&other);
        listener.tell(Told::Request(other, private.to_vec()));
        Ok(())
    }

    fn accept(&self, private: &[u8]) -> Result<()> {
        // The end of the peer is an event; the call only reports that it comes too late, as rdma_accept(3) does.
        let peer = lock(&self.0.peer).upgrade().ok_or(Errno(libc::EINVAL))?;
        let (own, other) = (lock(&self.0.pair).clone(), lock(&peer.pair).clone());
        *lock(&own.upgrade().unwrap().peer) = other.clone();
        *lock(&other.upgrade().ok_or(Errno(libc::EINVAL))?.peer) = own;
        peer.tell(Told::Established(private.to_vec()));
        self.0.tell(Told::Established(Vec::new()));
        Ok(())
    }

    fn reject(&self) {
        self.0.gone.store(true, Ordering::SeqCst);
        if let Some(peer) = lock(&self.0.peer).upgrade() {
            peer.tell(Told::Failed(libc::ECONNREFUSED));
        }
    }

    fn disconnect(&self) {
        self.0.leave();
    }

    fn local(&self) -> Option<SocketAddr> {
        *lock(&self.0.local)
    }

    fn peer(&self) -> Option<SocketAddr> {
        *lock(&self.0.remote)
    }

    fn limits(&self) -> Limits {
        let ports = [*lock(&self.0.local), *lock(&self.0.remote)];
        let separate = ports.iter().flatten().any(|address| SEPARATE_PORTS.contains(&address.port()));
        Limits { requests: 1000, separate: separate && self.0.kind == Kind::Stream, datagram: 1024 }
    }

    fn resolve_datagram(&self, to: &SocketAddr, timeout: Duration) -> Result<Arc<dyn Handle>> {
        if lock(&self.0.network.0).silent.contains(&to.port()) {
            std::thread::sleep(timeout);
            return Err(Errno(libc::ETIMEDOUT));
        }
        Ok(Arc::new(FakeHandle))
    }
}

struct FakeHandle;

impl Handle for FakeHandle {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// Bytes that are on their way, where to, and what is said.
struct Request {
    id: u64,
    bytes: Vec<u8>,
    write: Option<(u64, u32)>,
    needs_receive: bool,
    immediate: Option<u32>,
}

#[derive(Default)]
struct State {
    completions: VecDeque<Completion>,
    armed: bool,
    failed: bool,
    receives: VecDeque<(u64, Vec<Part>)>,
    /// The peer has no receive for them.
    stalled: VecDeque<Request>,
    /// Posted, and their completions were not taken.
    outstanding: usize,
}

struct Pair {
    ident: Arc<Ident>,
    number: u32,
    sizes: QueueSizes,
    peer: Mutex<Weak<Pair>>,
    state: Mutex<State>,
    bell: Bell,
    unplugged: AtomicBool,
}

const RECEIVE: u64 = 1 << 63;

impl Pair {
    fn complete(&self, completion: Completion) {
        let mut state = lock(&self.state);
        state.completions.push_back(completion);
        if std::mem::take(&mut state.armed) {
            self.bell.ring();
        }
    }

    /// All requests end.
    fn fail(&self) {
        let (stalled, receives) = {
            let mut state = lock(&self.state);
            state.failed = true;
            (std::mem::take(&mut state.stalled), std::mem::take(&mut state.receives))
        };
        let ids = stalled.iter().map(|request| request.id).chain(receives.iter().map(|(id, _)| *id));
        for id in ids {
            self.complete(Completion { id, outcome: Outcome::Flushed, ..Completion::default() });
        }
    }

    fn post(&self, world: &World, request: Request) {
        let mut state = lock(&self.state);
        state.outstanding += 1;
        assert!(state.outstanding <= self.sizes.send_requests as usize, "the send queue is full");
        if state.failed {
            drop(state);
            let id = request.id;
            return self.complete(Completion { id, outcome: Outcome::Flushed, ..Completion::default() });
        }
        state.stalled.push_back(request);
        drop(state);
        self.advance(world);
    }

    fn advance(&self, world: &World) {
        loop {
            let Some(request) = lock(&self.state).stalled.pop_front() else { return };
            let id = request.id;
            let peer = lock(&self.peer).upgrade();
            let Some(peer) = peer.filter(|peer| !self.unplugged.load(Ordering::SeqCst) && !lock(&peer.state).failed)
            else {
                self.complete(Completion { id, outcome: Outcome::Silent, ..Completion::default() });
                return self.fail();
            };
            let receive = if request.needs_receive {
                match lock(&peer.state).receives.pop_front() {
                    Some(receive) => Some(receive),
                    None => {
                        lock(&self.state).stalled.push_front(request);
                        return;
                    }
                }
            } else {
                None
            };
            let length = request.bytes.len();
            let mut target = request.write;
            if let (Some((_, parts)), None) = (&receive, target) {
                assert!(length == 0 || parts[0].length as usize >= length);
                target = parts.first().map(|part| (part.address, part.key));
            }
            if let (Some((address, key)), true) = (target, length > 0) {
                let region = world.regions.get(&key).copied();
                let inside = region.is_some_and(|(start, size, remote)| {
                    let end = address.checked_add(length as u64);
                    address >= start
                        && end.is_some_and(|end| end <= start + size as u64)
                        && (remote || receive.is_some())
                });
                if !inside {
                    self.complete(Completion { id, outcome: Outcome::Failed, ..Completion::default() });
                    peer.fail();
                    return self.fail();
                }
                // SAFETY: inside a region, or a receive's parts, which their owners keep until both are gone.
                unsafe { std::ptr::copy(request.bytes.as_ptr(), address as *mut u8, length) };
            }
            if let Some((id, _)) = receive {
                let bytes = length as u32;
                peer.complete(Completion { id, outcome: Outcome::Success, bytes, immediate: request.immediate });
            }
            self.complete(Completion { id, ..Completion::default() });
        }
    }
}

struct FakeQueues(Arc<Pair>);

impl Drop for FakeQueues {
    fn drop(&mut self) {
        let _world = lock(&self.0.ident.network.0);
        self.0.fail();
    }
}

impl Queues for FakeQueues {
    fn number(&self) -> u32 {
        self.0.number
    }

    fn inline_bytes(&self) -> u32 {
        self.0.sizes.inline_bytes
    }

    unsafe fn register(&self, address: *mut u8, length: usize, remote: bool) -> Result<Box<dyn Region>> {
        let network = self.0.ident.network.clone();
        let mut world = lock(&network.0);
        world.numbers += 1;
        let key = world.numbers;
        world.regions.insert(key, (address as u64, length, remote));
        drop(world);
        Ok(Box::new(FakeRegion(network, key)))
    }

    fn descriptor(&self) -> RawFd {
        self.0.bell.0.as_raw_fd()
    }

    fn arm(&self) -> Result<()> {
        lock(&self.0.state).armed = true;
        Ok(())
    }

    fn take_event(&self) -> bool {
        self.0.bell.silence()
    }

    fn poll(&self, into: &mut [Completion]) -> Result<usize> {
        let mut state = lock(&self.0.state);
        let count = into.len().min(state.completions.len());
        for place in &mut into[..count] {
            *place = state.completions.pop_front().unwrap();
            if place.id & RECEIVE == 0 {
                state.outstanding -= 1;
            }
        }
        Ok(count)
    }

    unsafe fn receive(&self, id: u64, parts: &[Part]) -> Result<()> {
        assert!(id & RECEIVE != 0);
        let world = lock(&self.0.ident.network.0);
        {
            let mut state = lock(&self.0.state);
            if state.failed {
                drop(state);
                self.0.complete(Completion { id, outcome: Outcome::Flushed, ..Completion::default() });
                return Ok(());
            }
            state.receives.push_back((id, parts.to_vec()));
            assert!(state.receives.len() <= self.0.sizes.receives as usize, "the receive queue is full");
        }
        if let Some(peer) = lock(&self.0.peer).upgrade() {
            peer.advance(&world);
        }
        Ok(())
    }

    unsafe fn send(&self, id: u64, parts: &[Part], inline: bool, operation: Operation<'_>) -> Result<()> {
        let world = lock(&self.0.ident.network.0);
        let mut bytes = Vec::new();
        for part in parts {
            let registered = world.regions.get(&part.key).is_some_and(|(start, size, _)| {
                part.address >= *start && part.address + u64::from(part.length) <= start + *size as u64
            });
            assert!(inline || registered, "{part:?} was not registered");
            // SAFETY: the caller's part.
            bytes.extend_from_slice(unsafe {
                std::slice::from_raw_parts(part.address as *const u8, part.length as usize)
            });
        }
        assert!(!inline || bytes.len() <= self.0.sizes.inline_bytes as usize);
        match operation {
            Operation::Write(address, key, immediate) => {
                let write = Some((address, key));
                self.0.post(&world, Request { id, bytes, write, needs_receive: immediate.is_some(), immediate });
            }
            Operation::Send => {
                self.0.post(&world, Request { id, bytes, write: None, needs_receive: true, immediate: None });
            }
            Operation::SendTo(_, number, key) => {
                assert_eq!(key, 0x0123_4567);
                lock(&self.0.state).outstanding += 1;
                if let Some(to) = world.queue_pairs.get(&number).and_then(Weak::upgrade) {
                    let receive = lock(&to.state).receives.pop_front();
                    // No receive waits for the datagram.
                    if let Some((receive, parts)) = receive {
                        assert!(parts[0].length as usize >= 40 + bytes.len());
                        // SAFETY: a receive's part, which its owner keeps until it has completed.
                        unsafe {
                            let place = parts[0].address as *mut u8;
                            std::ptr::copy(bytes.as_ptr(), place.add(40), bytes.len());
                        }
                        let length = 40 + bytes.len() as u32;
                        to.complete(Completion { id: receive, bytes: length, ..Completion::default() });
                    }
                }
                self.0.complete(Completion { id, ..Completion::default() });
            }
        }
        Ok(())
    }
}

struct FakeRegion(Network, u32);

impl Region for FakeRegion {
    fn local_key(&self) -> u32 {
        self.1
    }

    fn remote_key(&self) -> u32 {
        self.1
    }
}

impl Drop for FakeRegion {
    fn drop(&mut self) {
        lock(&self.0.0).regions.remove(&self.1);
    }
}
