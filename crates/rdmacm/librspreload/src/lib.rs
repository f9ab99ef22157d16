//! `librspreload.so`, by LD_PRELOAD: the sockets of a program become rsockets (rsocket(7)), without a change to it.
//!
//! A program that makes a stream or datagram socket of AF_INET or AF_INET6 gets a socket of the kernel's, and beside it
//! an rsocket, which does what is asked of the descriptor. Where there is no rsocket to be had, or it cannot be bound,
//! listen or connect, it is given up, and the kernel's socket goes on in its place, under the same descriptor and with
//! the same options.
//!
//! - `table` knows which descriptor has an rsocket, `rsockets` finds librdmacm's functions, `real` those behind ours.
//! - `calls` are the functions of sockets, `waiting` poll(2) and select(2), `descriptors` those of any descriptor.
//!
//! Calls that the C library makes inside itself never come here: buffered streams (`FILE`) read and write the kernel's
//! socket. epoll(7) is refused for rsockets. In a child of fork(2) or vfork(2) all calls go to the kernel: its parent's
//! rsockets are not the child's to use or to close, and it makes none of its own while there are such.

mod calls;
mod descriptors;
mod real;
mod rsockets;
mod table;
mod waiting;
