//! The RC, UC and XRC protocols of IBA vol. 1 ch. 9 over packets: requester, responder, timers, windows. Time, packets
//! and randomness are passed in; packets, deadlines and completions are handed out. No clock, no socket, no thread, so
//! that a whole fabric runs in a deterministic simulation.
//!
//! A QP is a [`Requester`] and a [`Responder`], which know nothing of each other. Both act on the QP through a host
//! trait that the link implements over the device model. `handle_*` methods take what has come in, `poll_*` methods
//! give out what is to be sent; after any `handle_*`, and after each post, the host calls `poll_transmit` and then
//! `next_timeout`. Requesters whose packets end in the same receive buffer share a [`Window`], and for UC and datagrams
//! a [`Pacer`].

#![forbid(unsafe_code)]

mod config;
mod counters;
mod drain;
mod host;
mod marks;
pub mod pacer;
pub mod psn;
mod requester;
mod responder;
mod rtt;
mod saved;
mod window;

pub use config::{LARGEST_MTU, RequesterConfig, ResponderConfig, Service};
pub use counters::{RequesterCounters, ResponderCounters};
pub use host::{Data, Nanos, Payload, Received, Refused, RequesterHost, ResponderHost, Target, Transmit};
pub use pacer::Pacer;
pub use requester::{Requester, SavedRequester, Sent};
pub use responder::{Answer, Body, KeptRoom, KeptShare, Message, Refusal, Resource, Responder, SavedResponder, Then};
pub use rtt::Rtt;
pub use saved::Unusable;
pub use window::Window;

pub use vervain_iba::{Flush, Nak, Opcode, Request, Right, Status, send_flags};

#[cfg(test)]
mod tests;
