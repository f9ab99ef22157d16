//! A visit: an initiator in flight on a lane that it owns, for as long as it handles packets that came together.

use crate::responder::{Barred, Responder};
use std::ops::Deref;

/// An initiator in flight, with its responder. The mark ends when this is dropped or taken apart.
pub struct Visit {
    /// None after the visit was taken apart.
    responder: Option<Box<Responder>>,
}

impl Visit {
    /// Enters as [`Responder::enter`] does. A refusal returns the responder.
    pub fn enter(responder: Box<Responder>) -> Result<Visit, (Box<Responder>, Barred)> {
        let entered = responder.enter().map(std::mem::forget);
        Self::begin(responder, entered)
    }

    /// Enters as [`Responder::enter_in_hand`] does.
    pub fn enter_in_hand(responder: Box<Responder>) -> Result<Visit, (Box<Responder>, Barred)> {
        let entered = responder.enter_in_hand().map(std::mem::forget);
        Self::begin(responder, entered)
    }

    fn begin(responder: Box<Responder>, entered: Result<(), Barred>) -> Result<Visit, (Box<Responder>, Barred)> {
        match entered {
            Ok(()) => Ok(Visit { responder: Some(responder) }),
            Err(barred) => Err((responder, barred)),
        }
    }

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
