//! Any bytes as a packet: parser, emitter, ICRC.

#![no_main]

#[path = "../checks/packet.rs"]
mod packet;

libfuzzer_sys::fuzz_target!(|datagram: &[u8]| {
    packet::check(datagram);
});
