//! A composite context: nodes that are reached by different contexts, such as a fast one inside a host and one for all
//! others.

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::epoll;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::locks::{AddrHandle, Whom};
use crate::rdma::Direction;
use crate::receive::Received;

const BUSY: Error = Error::plain(libc::EBUSY, "the message that was received last was not released");
const OUT: Error = Error::plain(libc::EBUSY, "a send buffer was taken and not sent");
const NOTHING_RECEIVED: Error = Error::plain(libc::EIO, "no message was received");
const NO_MEMBER: Error = Error::plain(libc::EINVAL, "the composite context has no nodes yet");

/// How a node is reached.
#[derive(Clone, Copy)]
struct Way {
    member: usize,
    node: u32,
}

#[derive(Default)]
struct State {
    members: Vec<Arc<Context>>,
    ways: Vec<Option<Way>>,
    /// The member that has given out a send buffer, and the one that has given out a message, with the sender as it is
    /// known here.
    out: Option<usize>,
    received: Option<(usize, u32)>,
    /// The member that is asked first for the next message.
    turn: usize,
}

impl State {
    fn way(&self, node: u32) -> Result<Way> {
        let way = self.ways.get(node as usize).copied().flatten();
        way.ok_or_else(|| {
            Error::invalid(format!("node {node} of the composite context has no member to be reached by"))
        })
    }

    /// The number that a node of a member has here.
    fn number(&self, member: usize, node: u32) -> Option<u32> {
        let is = |way: &Option<Way>| way.is_some_and(|way| way.member == member && way.node == node);
        self.ways.iter().position(is).map(|number| number as u32)
    }

    fn all(&self, what: impl Fn(&Context) -> Result<()>) -> Result<()> {
        self.members.iter().try_for_each(|member| what(member))
    }
}

/// Nodes over several contexts, with the calls of one. Its members go on having their own.
pub struct Composite {
    state: Mutex<State>,
    program: OwnedFd,
}

impl Composite {
    /// A context without nodes.
    ///
    /// # Errors
    /// ENOMEM: no descriptor.
    pub fn new() -> Result<Composite> {
        let program = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| Error::new(libc::ENOMEM, format!("no descriptor for events: {error}")))?;
        Ok(Composite { state: Mutex::default(), program })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `node` be node `there` of `member`. One that was another's before is that no more. Each process says so for
    /// itself.
    ///
    /// # Errors
    /// EINVAL: the member has no such node, or `node` is above 2^20. ENOMEM: no descriptor.
    pub fn add(&self, node: u32, member: &Arc<Context>, there: u32) -> Result<()> {
        if there >= member.nodes() || node > 1 << 20 {
            return Err(Error::invalid(format!("node {node} cannot be node {there} of {}", member.nodes())));
        }
        let mut state = self.state();
        let at = match state.members.iter().position(|known| Arc::ptr_eq(known, member)) {
            Some(at) => at,
            None => {
                epoll::add(&self.program, member.fd(), epoll::EventData::new_u64(0), epoll::EventFlags::IN)
                    .map_err(|error| Error::new(libc::ENOMEM, format!("no descriptor for events: {error}")))?;
                state.members.push(member.clone());
                state.members.len() - 1
            }
        };
        if state.ways.len() <= node as usize {
            state.ways.resize(node as usize + 1, None);
        }
        state.ways[node as usize] = Some(Way { member: at, node: there });
        Ok(())
    }

    /// This process's number: the one that its own node has here.
    ///
    /// # Errors
    /// EINVAL: it has none.
    pub fn node(&self) -> Result<u32> {
        let state = self.state();
        let own = state.members.iter().enumerate().find_map(|(at, member)| state.number(at, member.node()));
        own.ok_or(NO_MEMBER)
    }

    /// The number of nodes: one more than the highest number.
    pub fn nodes(&self) -> u32 {
        self.state().ways.len() as u32
    }

    /// The longest message to a node, in bytes.
    ///
    /// # Errors
    /// EINVAL: no such node.
    pub fn mtu(&self, node: u32) -> Result<usize> {
        let state = self.state();
        Ok(state.members[state.way(node)?.member].mtu())
    }

    /// As [`Context::send_buffer`].
    ///
    /// # Errors
    /// Those of [`Context::send_buffer`].
    pub fn send_buffer(&self, node: u32, len: usize) -> Result<*mut u8> {
        let mut state = self.state();
        let way = state.way(node)?;
        if state.out.is_some() {
            return Err(OUT);
        }
        let buffer = state.members[way.member].send_buffer(way.node, len)?;
        state.out = Some(way.member);
        Ok(buffer)
    }

    /// As [`Context::send`].
    ///
    /// # Errors
    /// Those of [`Context::send`].
    pub fn send(&self) -> Result<()> {
        let mut state = self.state();
        let member = state.out.ok_or_else(|| Error::invalid("no send buffer was taken"))?;
        let sent = state.members[member].send();
        if !sent.as_ref().is_err_and(Error::is_temporary) {
            state.out = None;
        }
        sent
    }

    /// As [`Context::is_send_done`], of all members.
    ///
    /// # Errors
    /// Those of [`Context::is_send_done`].
    pub fn is_send_done(&self) -> Result<()> {
        self.state().all(Context::is_send_done)
    }

    /// As [`Context::receive`]. The members are asked in turn.
    ///
    /// # Errors
    /// Those of [`Context::receive`]; EIO: a message came by a member from a node that is not reached by it, and was
    /// dropped.
    pub fn receive(&self) -> Result<Received> {
        let mut state = self.state();
        if state.received.is_some() {
            return Err(BUSY);
        }
        let mut outcome = Err(NO_MEMBER);
        for _ in 0..state.members.len() {
            let at = state.turn;
            state.turn = (at + 1) % state.members.len();
            match state.members[at].receive() {
                Ok(received) => {
                    let Some(node) = state.number(at, received.node) else {
                        state.members[at].release_receive_buffer()?;
                        let sentence = format!(
                            "a message of node {} of a member was dropped: this composite context reaches no node so",
                            received.node
                        );
                        return Err(Error::new(libc::EIO, sentence));
                    };
                    state.received = Some((at, node));
                    return Ok(Received { node, ..received });
                }
                Err(error) => {
                    let is_temporary = error.is_temporary();
                    outcome = Err(error);
                    if !is_temporary {
                        break;
                    }
                }
            }
        }
        outcome
    }

    /// As [`Context::release_receive_buffer`].
    ///
    /// # Errors
    /// Those of [`Context::release_receive_buffer`].
    pub fn release_receive_buffer(&self) -> Result<()> {
        let mut state = self.state();
        let (member, _) = state.received.take().ok_or(NOTHING_RECEIVED)?;
        state.members[member].release_receive_buffer()
    }

    /// As [`Context::sender`], by the number here.
    ///
    /// # Errors
    /// Those of [`Context::sender`].
    pub fn sender(&self) -> Result<u32> {
        self.state().received.map(|(_, node)| node).ok_or(NOTHING_RECEIVED)
    }

    /// The member that a lock is made in, and for whom there.
    fn locking(&self, whom: Whom) -> Result<(Arc<Context>, Whom)> {
        let Whom::Node(node) = whom else {
            return Err(Error::invalid(
                "a composite context locks memory for one node at a time: members have keys of their own",
            ));
        };
        let state = self.state();
        let way = state.way(node)?;
        Ok((state.members[way.member].clone(), Whom::Node(way.node)))
    }

    /// As [`Context::lock`], in the member by which the node is reached. The handle is for that node, and for copies to
    /// and from it.
    ///
    /// # Safety
    /// The same as for [`Context::lock`].
    ///
    /// # Errors
    /// Those of [`Context::lock`]; EINVAL for [`Whom::Any`].
    pub unsafe fn lock(&self, whom: Whom, start: *mut c_void, len: usize) -> Result<AddrHandle> {
        let (member, whom) = self.locking(whom)?;
        // SAFETY: the caller's promise.
        unsafe { member.lock(whom, start, len) }
    }

    /// As [`Context::unlock`].
    ///
    /// # Errors
    /// Those of [`Context::unlock`]; EINVAL for [`Whom::Any`].
    pub fn unlock(&self, whom: Whom, start: *mut c_void, len: usize) -> Result<()> {
        let (member, whom) = self.locking(whom)?;
        member.unlock(whom, start, len)
    }

    /// As [`Context::copy`].
    ///
    /// # Errors
    /// Those of [`Context::copy`].
    pub fn copy(
        &self,
        direction: Direction,
        node: u32,
        remote: AddrHandle,
        local: AddrHandle,
        len: usize,
    ) -> Result<()> {
        let state = self.state();
        let way = state.way(node)?;
        state.members[way.member].copy(direction, way.node, remote, local, len)
    }

    /// As [`Context::is_copied`], of all members.
    ///
    /// # Errors
    /// Those of [`Context::is_copied`].
    pub fn is_copied(&self, direction: Direction) -> Result<()> {
        self.state().all(|member| member.is_copied(direction))
    }

    /// As [`Context::control_send`], of all members.
    ///
    /// # Errors
    /// Those of [`Context::control_send`].
    pub fn control_send(&self, on: bool) -> Result<()> {
        self.state().all(|member| member.control_send(on))
    }

    /// As [`Context::send_stable`], of all members.
    ///
    /// # Errors
    /// Those of [`Context::send_stable`].
    pub fn send_stable(&self) -> Result<()> {
        self.state().all(Context::send_stable)
    }

    /// As [`Context::is_send_stable`], of all members.
    ///
    /// # Errors
    /// Those of [`Context::is_send_stable`].
    pub fn is_send_stable(&self) -> Result<()> {
        self.state().all(Context::is_send_stable)
    }

    /// As [`Context::before_select`].
    ///
    /// # Errors
    /// Those of [`Context::before_select`].
    pub fn before_select(&self) -> Result<()> {
        self.state().all(Context::before_select)
    }

    /// As [`Context::fd`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// As [`Context::after_select`].
    ///
    /// # Errors
    /// Those of [`Context::after_select`].
    pub fn after_select(&self) -> Result<()> {
        self.state().all(Context::after_select)
    }
}
