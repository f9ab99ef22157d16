//! Processes of this host that MADs were exchanged with, and whether they still are there: a connection to the rendezvous of each, by which
//! nothing is said, ends with its process.

use super::events::{Events, Token};
use crate::local::socket::Socket;
use crate::user::User;
use rustix::io::Errno;
use std::collections::HashMap;
use vervain_hca::host::lock::OwnerLock;

/// Those processes.
#[derive(Default)]
pub struct Peers {
    state: OwnerLock<State>,
}

#[derive(Default)]
struct State {
    connections: HashMap<u32, Socket>,
    /// Slots of those that have ended since it was asked last.
    gone: Vec<u32>,
}

impl Peers {
    /// MADs are exchanged with the process of `user` that has `slot`: its end is heard of from now on.
    pub fn know(&self, events: &Events, user: &User, slot: u32) {
        let mut state = self.state.lock();
        if state.connections.contains_key(&slot) {
            return;
        }
        match Socket::connect(&vervain_names::slot(user.uid, slot)) {
            Ok(socket)
                if socket.peer().is_some_and(|peer| user.is_of(peer))
                    && events.watch(&socket, Token::Peer(slot)).is_ok() =>
            {
                state.connections.insert(slot, socket);
            }
            Err(Errno::CONNREFUSED) if !state.gone.contains(&slot) => state.gone.push(slot),
            // Another user's, or too many connect: the next MAD has it tried again.
            _ => {}
        }
    }

    /// Takes what the process of `slot` says, which is for others, or notes that it has ended.
    pub fn handle(&self, slot: u32) {
        let mut state = self.state.lock();
        loop {
            match state.connections.get(&slot).map(Socket::receive) {
                Some(Ok(Some(_)) | Err(Errno::INTR)) => {}
                None | Some(Err(Errno::AGAIN)) => return,
                Some(Ok(None) | Err(_)) => break,
            }
        }
        state.connections.remove(&slot);
        state.gone.push(slot);
    }

    /// Whether processes have ended.
    pub fn have_ended(&self) -> bool {
        !self.state.lock().gone.is_empty()
    }

    /// Their slots.
    pub fn take_gone(&self) -> Vec<u32> {
        std::mem::take(&mut self.state.lock().gone)
    }
}
