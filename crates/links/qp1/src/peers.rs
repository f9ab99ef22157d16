//! Watch over the processes of this host with which MADs were exchanged: a connection to the rendezvous of each, over
//! which nothing is sent, ends with the process.

use super::events::{Events, Token};
use rustix::io::Errno;
use std::collections::HashMap;
use vervain_hca::host::lock::OwnerLock;
use vervain_sockets::socket::Socket;
use vervain_sockets::user::User;

/// The watched processes.
#[derive(Default)]
pub struct Peers {
    state: OwnerLock<State>,
}

#[derive(Default)]
struct State {
    connections: HashMap<u32, Socket>,
    /// Slots of those that have ended since the last [`Peers::take_gone`].
    gone: Vec<u32>,
}

impl Peers {
    /// Watches the process of `user` with `slot` for its end.
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
            // Another user's process, or too many connections: the next MAD tries again.
            _ => {}
        }
    }

    /// Drops messages of the process of `slot`, which are not for QP 1, or notes its end.
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

    /// Returns true if watched processes have ended.
    pub fn have_ended(&self) -> bool {
        !self.state.lock().gone.is_empty()
    }

    /// Takes the slots of the ended processes.
    pub fn take_gone(&self) -> Vec<u32> {
        std::mem::take(&mut self.state.lock().gone)
    }
}
