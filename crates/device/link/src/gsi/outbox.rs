//! Messages to other processes of the host. A socket takes few (net.unix.max_dgram_qlen): what it has no room for waits here, in order,
//! until the kernel says that there is some. Nothing waits for a process that has ended.

use super::events::{Events, Token};
use super::message::MESSAGE;
use crate::unix::{self, Private};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use vervain_hca::host::lock::OwnerLock;

/// Messages that wait for one socket at most, and for all.
const MOST_FOR_ONE: usize = 4096;
const MOST: usize = 16384;

type Bytes = [u8; MESSAGE];

/// What is on its way out.
#[derive(Default)]
pub struct Outbox {
    state: OwnerLock<State>,
}

#[derive(Default)]
struct State {
    /// What is not kept leaves by this one.
    socket: Option<Private>,
    queues: HashMap<u32, Queue>,
    next: u32,
    waiting: usize,
}

/// What waits for a socket.
struct Queue {
    name: String,
    /// Connected there, so that the kernel tells when there is room; None while this process stands still.
    socket: Option<Private>,
    waiting: VecDeque<Bytes>,
}

impl Queue {
    fn connect(&mut self, events: &Events, number: u32) -> Result<(), Errno> {
        let socket = Private::keep(unix::datagrams()?);
        rustix::net::connect(&socket, &unix::abstract_name(&self.name)?)?;
        events.watch(&socket, Token::Room(number))?;
        self.socket = Some(socket);
        Ok(())
    }
}

impl Outbox {
    /// Sends `message` to the socket with this name, or has it wait. ECONNREFUSED if nobody has the name, EAGAIN if too many wait.
    pub fn send(&self, events: &Events, name: &str, message: &Bytes) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let known = state.queues.values_mut().find(|queue| queue.name == name);
        let queue = match known {
            Some(queue) => queue,
            None => {
                let socket = match &mut state.socket {
                    Some(socket) => socket,
                    none => none.insert(Private::keep(unix::datagrams()?)),
                };
                match unix::send(socket.as_fd(), Some(name), &[IoSlice::new(message)], &[]) {
                    Err(Errno::AGAIN) if state.waiting < MOST => {}
                    sent => return sent,
                }
                let mut queue = Queue { name: name.to_owned(), socket: None, waiting: VecDeque::new() };
                let number = state.next;
                state.next = state.next.wrapping_add(1);
                queue.connect(events, number)?;
                state.queues.entry(number).insert_entry(queue).into_mut()
            }
        };
        if queue.waiting.len() == MOST_FOR_ONE || state.waiting == MOST {
            return Err(Errno::AGAIN);
        }
        queue.waiting.push_back(*message);
        state.waiting += 1;
        Ok(())
    }

    /// Sends what waits in the queue with this number, for which there is room.
    pub fn go_on(&self, number: u32) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let Some(queue) = state.queues.get_mut(&number) else { return };
        let Some(socket) = &queue.socket else { return };
        while let Some(message) = queue.waiting.front() {
            match unix::send(socket.as_fd(), None, &[IoSlice::new(message)], &[]) {
                Ok(()) => {
                    queue.waiting.pop_front();
                    state.waiting -= 1;
                }
                Err(Errno::AGAIN | Errno::INTR) => return,
                // Its process has ended.
                Err(_) => break,
            }
        }
        if let Some(queue) = state.queues.remove(&number) {
            state.waiting -= queue.waiting.len();
        }
    }

    /// Has the queue with this number wait for [`Outbox::resume`].
    pub fn suspend(&self, number: u32) {
        if let Some(queue) = self.state.lock().queues.get_mut(&number) {
            queue.socket = None;
        }
    }

    /// Has no socket open any more.
    pub fn leave(&self) {
        let mut state = self.state.lock();
        state.socket = None;
        state.queues.values_mut().for_each(|queue| queue.socket = None);
    }

    /// Goes on with what was suspended or waited when it left, now that the other processes are back too.
    pub fn resume(&self, events: &Events) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let waiting = &mut state.waiting;
        state.queues.retain(|number, queue| {
            let is_there = queue.socket.is_some() || queue.connect(events, *number).is_ok();
            *waiting -= if is_there { 0 } else { queue.waiting.len() };
            is_there
        });
    }
}
