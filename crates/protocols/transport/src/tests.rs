//! Tests of requester and responder against a scripted host, packet by packet.

mod chaos;
mod duplicates;
mod errors;
mod gaps;
mod golden;
mod goodput;
mod host;
mod landed;
mod loss;
mod lossless;
mod operations;
mod pair;
mod parts;
mod placing;
mod saved;
mod unreliable;
