//! Messages to other processes of the host. A socket holds few (net.unix.max_dgram_qlen); the others wait here in order
//! until the kernel reports room. Messages to a process that has ended are dropped.

use super::events::{Events, Token};
use super::message::MESSAGE;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use vervain_hca::host::lock::OwnerLock;
use vervain_sockets::unix::{self, Private};

/// Most messages that wait for one socket, and for all.
const MOST_FOR_ONE: usize = 4096;
const MOST: usize = 16384;

type Bytes = [u8; MESSAGE];

/// Messages on their way out.
#[derive(Default)]
pub struct Outbox {
    state: OwnerLock<State>,
}

#[derive(Default)]
struct State {
    /// Socket for messages that do not wait.
    socket: Option<Private>,
    queues: HashMap<u32, Queue>,
    next: u32,
    waiting: usize,
}

/// Messages that wait for a socket.
struct Queue {
    name: String,
    /// Connected to that socket, so that the kernel reports room; None while this process is stopped.
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
    /// Sends `message` to the socket with this name, or queues it. ECONNREFUSED: no process has the name; EAGAIN: too
    /// many wait.
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

    /// Sends queued messages as far as there is room.
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
                // The process has ended.
                Err(_) => break,
            }
        }
        if let Some(queue) = state.queues.remove(&number) {
            state.waiting -= queue.waiting.len();
        }
    }

    /// Suspends the queue with this number until [`Outbox::resume`].
    pub fn suspend(&self, number: u32) {
        if let Some(queue) = self.state.lock().queues.get_mut(&number) {
            queue.socket = None;
        }
    }

    /// Closes all sockets.
    pub fn leave(&self) {
        let mut state = self.state.lock();
        state.socket = None;
        state.queues.values_mut().for_each(|queue| queue.socket = None);
    }

    /// Connects the queues without sockets again, once the other processes are back too.
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
