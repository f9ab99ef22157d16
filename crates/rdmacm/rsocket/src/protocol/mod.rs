//! The protocol of rsockets, without sockets, threads or clocks: what two ends say to each other, and what each may do
//! next.
//!
//! A stream ([`stream`]) moves data by RDMA Writes into a ring in the receiver's memory. Each Write carries 32 bits of
//! immediate data, a [`Message`](wire::Message): so many bytes have come, so many more may be sent, or the end. Where
//! data may be written the receiver says by Writes of its own, into a small array in the sender's memory, the target
//! SGL. Both ends say where these are when they connect ([`Hello`](wire::Hello)). Datagrams ([`datagram`]) are messages
//! between UD QPs, whose numbers are found over a UDP socket.
//!
//! Facts are from rdma-core's docs/rsocket.txt and from what its librdmacm sends.

pub mod datagram;
pub mod stream;
pub mod wire;
