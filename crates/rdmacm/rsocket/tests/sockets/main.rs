//! The functions of C over a network in the process: what sockets promise.

mod calls;
mod connecting;
mod datagrams;
mod ends;
mod network;
mod options;
mod streams;
