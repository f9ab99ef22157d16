//! Any sequence of packets, posts and timeouts into a QP.

#![no_main]

#[path = "../checks/conversation/mod.rs"]
mod conversation;

libfuzzer_sys::fuzz_target!(|script: &[u8]| conversation::check(script));
