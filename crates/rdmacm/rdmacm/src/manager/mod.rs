//! The connection manager of the process, as the kernel's rdma_cm is for others: the addresses that identifiers are
//! bound to, their phases on the way to a connection, and their events. It knows no struct of C's; events go to queues,
//! and MADs to QP 1.

mod addresses;
mod claims;
mod connections;
mod ident;
mod incoming;
mod parameters;

pub(crate) use addresses::Setting;
pub(crate) use ident::Shown;

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use claims::{Claims, EPHEMERAL};
use ident::{Ident, Object, Phase};
use vervain_abi::*;
use vervain_cm::message::service_id;
use vervain_cm::{CommId, Machine, Output};
use vervain_gsi::{Client, Mad, Path};

use crate::abi::rdma_cm_id;
use crate::device::{Device, Source, open_all, sources};
use crate::queue::{Outstanding, Queue};
use crate::reports::{Handle, Report};
use crate::verbs::{Verbs, verbs};

/// Nanoseconds for which the end of a process waits for calls in progress, and the time between two looks.
const LOCKED_AT_THE_END: u64 = 200_000_000;
const NAP: Duration = Duration::from_micros(100);

pub(crate) struct Manager {
    pub verbs: &'static Verbs,
    pub devices: Vec<Device>,
    claims: Claims,
    state: Mutex<State>,
}

struct State {
    machine: Machine,
    ids: HashMap<Handle, Ident>,
    by_conn: HashMap<CommId, Handle>,
    /// By service ID.
    listeners: HashMap<u64, Vec<Handle>>,
    /// Identifiers that ask again, and the times.
    again: Vec<(u64, Handle)>,
    last: Handle,
    /// When the progress thread looks at the clock next.
    armed: u64,
    /// The last port that was given to one who did not ask.
    port: u16,
}

/// Now, by CLOCK_MONOTONIC, in ns. By the C library: under valgrind the kernel's vDSO is not where rustix finds it.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the timespec on this stack; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The service ID of a port.
fn service(space: u32, port: u16) -> u64 {
    service_id(space as u16, port)
}

/// The manager of a process, by the process's number: a child has its parent's memory, but none of the
/// resources that the parent was given.
static CURRENT: Mutex<Option<(u32, &'static Manager)>> = Mutex::new(None);

impl Manager {
    /// The manager of this process, if it has been made.
    fn known() -> Option<&'static Manager> {
        let current = CURRENT.try_lock().ok()?;
        current.filter(|(of, _)| *of == std::process::id()).map(|(_, manager)| manager)
    }

    /// The manager of this process. ENODEV if libibverbs is not Vervain's or has no device.
    pub fn get() -> Result<&'static Manager, c_int> {
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        // An inherited manager is the parent's.
        if let Some((_, manager)) = current.filter(|(of, _)| *of == process) {
            return Ok(manager);
        }
        let manager: &'static Manager = Box::leak(Box::new(Manager::start()?));
        let client = Client { user: std::ptr::from_ref(manager).cast_mut().cast(), receive, tick, gone };
        // SAFETY: functions that take that pointer, to a value that is never freed.
        let failed = unsafe { (manager.verbs.gsi.attach)(&raw const client) };
        if failed != 0 {
            return Err(failed);
        }
        let slot = (manager.verbs.gsi.slot)();
        let mut state = manager.state();
        state.machine = Machine::new(slot, fastrand::u64(..));
        // Processes begin at different places, for these ports are claimed by nobody.
        let all = u32::from(EPHEMERAL.end - EPHEMERAL.start);
        state.port = EPHEMERAL.start + (slot.wrapping_mul(all / 61) % all) as u16;
        drop(state);
        *current = Some((process, manager));
        Ok(manager)
    }

    fn start() -> Result<Manager, c_int> {
        let verbs = verbs()?;
        let devices = open_all(verbs)?;
        if devices.is_empty() {
            return Err(libc::ENODEV);
        }
        let state = State {
            machine: Machine::new(0, 0),
            ids: HashMap::new(),
            by_conn: HashMap::new(),
            listeners: HashMap::new(),
            again: Vec::new(),
            last: 0,
            armed: u64::MAX,
            port: EPHEMERAL.start,
        };
        Ok(Manager { verbs, devices, claims: Claims::new(verbs.gsi), state: Mutex::new(state) })
    }

    /// All addresses of all devices, as they are now.
    fn sources(&self) -> Vec<Source> {
        sources(self.verbs, &self.devices)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with an identifier, and what follows of it: EINVAL where there is none.
    fn with<R>(
        &self,
        id: Handle,
        f: impl FnOnce(&mut Machine, &mut Ident, u64) -> Result<R, c_int>,
    ) -> Result<R, c_int> {
        let mut state = self.state();
        let State { machine, ids, .. } = &mut *state;
        let done = f(machine, ids.get_mut(&id).ok_or(libc::EINVAL)?, now());
        self.go_on(state);
        done
    }

    /// A new identifier.
    pub fn create(&self, queue: Arc<Queue>, space: u32, qp_type: ibv_qp_type) -> Handle {
        let mut state = self.state();
        state.last += 1;
        let id = state.last;
        state.ids.insert(id, Ident::new(id, queue, space, qp_type));
        id
    }

    /// The program has `object` for it from now on. False if it has ended.
    pub fn adopt(&self, id: Handle, object: *mut rdma_cm_id) -> bool {
        let mut state = self.state();
        let Some(ident) = state.ids.get_mut(&id) else { return false };
        ident.object = Some(Object(object));
        // A request that the program has seen takes no place of the backlog, and outlives who listened.
        if let Some(listener) = ident.listener
            && let Some(listener) = state.ids.get_mut(&listener)
        {
            listener.backlog.remove(id);
        }
        true
    }

    /// The program's object for it.
    pub fn object(&self, id: Handle) -> Option<*mut rdma_cm_id> {
        self.state().ids.get(&id).and_then(|ident| ident.object).map(|object| object.0)
    }

    /// Those of its events that the program holds.
    pub fn outstanding(&self, id: Handle) -> Option<Arc<Outstanding>> {
        self.state().ids.get(&id).map(|ident| Arc::clone(ident.events.outstanding()))
    }

    /// The type of its QP, by what was asked of a request.
    pub fn qp_type(&self, id: Handle) -> Option<ibv_qp_type> {
        self.state().ids.get(&id).map(|ident| ident.qp_type)
    }

    /// Ends an identifier, and all that is in progress with it. The caller then waits for events that the program
    /// holds.
    pub fn destroy(&self, id: Handle) {
        let mut state = self.state();
        let Some(ident) = state.ids.remove(&id) else { return };
        if let Some(listener) = ident.listener.and_then(|listener| state.ids.get_mut(&listener)) {
            listener.backlog.remove(id);
        }
        if let Some(of) = ident.claim.map(|claim| claim.service())
            && let Some(listeners) = state.listeners.get_mut(&of)
        {
            listeners.retain(|listener| *listener != id);
            if listeners.is_empty() {
                state.listeners.remove(&of);
            }
        }
        ident.events.withdraw();
        for unseen in ident.backlog.into_waiting() {
            state.forget(unseen);
        }
        if let Some(conn) = ident.conn {
            state.by_conn.remove(&conn);
            let _ = state.machine.destroy(now(), conn);
        }
        self.go_on(state);
        if let Some(claim) = ident.claim {
            self.claims.release(claim);
        }
    }

    /// The part of an identifier that is shown.
    pub fn shown(&self, id: Handle) -> Option<Shown> {
        let state = self.state();
        let ident = state.ids.get(&id)?;
        Some(Shown {
            from: ident.from,
            to: ident.to,
            route: ident.route,
            has_path: !matches!(
                ident.phase,
                Phase::Idle | Phase::Bound | Phase::ResolvingAddress | Phase::AddressResolved | Phase::Listening
            ),
            ack_timeout: ident.parameters.ack_timeout(),
        })
    }

    /// Events of an identifier go to another queue from now on, those that have come too.
    pub fn migrate(&self, id: Handle, to: &Arc<Queue>) -> Result<(), c_int> {
        self.with(id, |_, ident, _| {
            ident.events.migrate(to);
            Ok(())
        })
    }

    /// Tells of an identifier what did not come from a peer. EINVAL where there is none.
    pub fn report(&self, id: Handle, report: Report) -> Result<(), c_int> {
        self.with(id, |_, ident, _| {
            ident.events.push(report);
            Ok(())
        })
    }

    /// Tells what is to be told, lets others in, and sends what is to be sent: a system call for each is long enough
    /// for them to be wanted.
    fn go_on<'a>(&'a self, mut state: MutexGuard<'a, State>) {
        loop {
            let mut sends = Vec::new();
            while let Some(output) = state.machine.next_output() {
                match output {
                    Output::Send { path, mad } => sends.push((path, mad)),
                    Output::Event(event) => state.handle_event(event, || self.sources()),
                }
            }
            // The progress thread sleeps until then.
            let deadline = state.next_deadline();
            let is_earlier = deadline < state.armed;
            if is_earlier {
                state.armed = deadline;
            }
            drop(state);
            if is_earlier {
                (self.verbs.gsi.wake)();
            }
            sends.retain(|(path, mad)| self.is_refused(path, mad));
            if sends.is_empty() {
                return;
            }
            state = self.state();
            for (_, mad) in &sends {
                state.machine.refused(now(), mad);
            }
        }
    }

    /// Sends; whether nobody is there.
    fn is_refused(&self, path: &Path, mad: &Mad) -> bool {
        // SAFETY: a path and a MAD.
        match unsafe { (self.verbs.gsi.send)(path, mad) } {
            0 | libc::EAGAIN => false,
            libc::ECONNREFUSED => true,
            // It is sent again, and given up in the end.
            errno => {
                log::info!("a MAD is not sent: {}", std::io::Error::from_raw_os_error(errno));
                false
            }
        }
    }

    /// Ends all connections, as the kernel does for a process that ends.
    pub fn end_all(&self) {
        // The progress thread may take a MAD in at this moment; a thread that ends the process in the midst of a call
        // waits for itself.
        let until = now() + LOCKED_AT_THE_END;
        let mut state = loop {
            match self.state.try_lock() {
                Ok(state) => break state,
                Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                Err(TryLockError::WouldBlock) if now() > until => return,
                Err(TryLockError::WouldBlock) => std::thread::sleep(NAP),
            }
        };
        let conns: Vec<CommId> = state.by_conn.drain().map(|(conn, _)| conn).collect();
        for conn in conns {
            let _ = state.machine.destroy(now(), conn);
        }
        while let Some(output) = state.machine.next_output() {
            if let Output::Send { path, mad } = output {
                self.is_refused(&path, &mad);
            }
        }
    }
}

impl State {
    /// When time is to be looked at: `u64::MAX` for never.
    fn next_deadline(&self) -> u64 {
        let again = self.again.iter().map(|(at, _)| *at);
        again.chain(self.machine.next_deadline()).min().unwrap_or(u64::MAX)
    }

    /// Ends one that the program has not seen.
    fn forget(&mut self, id: Handle) {
        let Some(ident) = self.ids.remove(&id) else { return };
        ident.events.withdraw();
        if let Some(conn) = ident.conn {
            self.by_conn.remove(&conn);
            let _ = self.machine.destroy(now(), conn);
        }
    }

    /// A port for one that nobody looks for.
    fn unclaimed_port(&mut self) -> u16 {
        self.port = if self.port + 1 < EPHEMERAL.end { self.port + 1 } else { EPHEMERAL.start };
        self.port
    }
}

/// The manager that QP 1 was given.
///
/// # Safety
/// `user` is the pointer of [`Manager::get`].
unsafe fn manager(user: *mut c_void) -> &'static Manager {
    // SAFETY: the caller's; it is never freed.
    unsafe { &*user.cast::<Manager>() }
}

unsafe extern "C" fn receive(user: *mut c_void, path: *const Path, mad: *const Mad) {
    // SAFETY: of Client: the pointer that was given with it, a path and a MAD.
    let (manager, path, mad) = unsafe { (manager(user), &*path, &*mad) };
    let mut state = manager.state();
    state.machine.receive(now(), path, mad);
    manager.go_on(state);
}

unsafe extern "C" fn tick(user: *mut c_void, at: u64) -> u64 {
    // SAFETY: of Client.
    let manager = unsafe { manager(user) };
    let mut state = manager.state();
    let at = at.max(now());
    state.machine.tick(at);
    state.ask_again(at);
    // The calls below may set an earlier time, which is no reason to wake a thread.
    state.armed = 0;
    manager.go_on(state);
    let mut state = manager.state();
    state.armed = state.next_deadline();
    state.armed
}

unsafe extern "C" fn gone(user: *mut c_void, slot: u32) {
    // SAFETY: of Client.
    let manager = unsafe { manager(user) };
    let sources = manager.sources();
    let mut state = manager.state();
    state.machine.gone(now(), slot, |path| sources.iter().any(|source| source.gid.raw == path.dgid));
    manager.go_on(state);
}

/// Ends all connections of this process, if it has ever had any.
pub(crate) fn end_all() {
    if let Some(manager) = Manager::known() {
        manager.end_all();
    }
}
