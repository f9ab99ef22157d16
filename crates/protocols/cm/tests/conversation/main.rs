//! Two connection managers, datagram by datagram: what each rule of the protocol does.

mod connecting;
mod ending;
mod identity;
mod pair;
mod sidr;
