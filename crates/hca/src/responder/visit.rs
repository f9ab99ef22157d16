//! A visit: an initiator in flight on a lane that it owns, for as long as it handles one packet.

use crate::responder::{Nak, Responder};
use std::ops::Deref;

/// An initiator in flight, with its responder. The mark ends when this is dropped or taken apart.
pub struct Visit {
    /// None once taken apart.
    responder: Option<Box<Responder>>,
}

impl Responder {
    /// [`Responder::enter`], for as long as the visit lives. The responder comes back with the refusal.
    pub fn visit(self: Box<Self>) -> Result<Visit, (Box<Self>, Nak)> {
        let entered = self.enter().map(std::mem::forget);
        self.visiting(entered)
    }

    /// [`Responder::visit`] inside [`crate::process::Process::handle_packets`], which a pause waits for: what was begun is
    /// finished.
    pub fn visit_in_hand(self: Box<Self>) -> Result<Visit, (Box<Self>, Nak)> {
        let entered = self.enter_in_hand().map(std::mem::forget);
        self.visiting(entered)
    }

    fn visiting(self: Box<Self>, entered: Result<(), Nak>) -> Result<Visit, (Box<Self>, Nak)> {
        match entered {
            Ok(()) => Ok(Visit { responder: Some(self) }),
            Err(nak) => Err((self, nak)),
        }
    }
}

impl Visit {
    /// Ends the mark.
    pub fn leave(mut self) -> Box<Responder> {
        let responder = self.responder.take().expect("not taken apart");
        responder.leave();
        responder
    }
}

impl Deref for Visit {
    type Target = Responder;

    fn deref(&self) -> &Responder {
        self.responder.as_ref().expect("not taken apart")
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        if let Some(responder) = self.responder.take() {
            responder.leave();
        }
    }
}
