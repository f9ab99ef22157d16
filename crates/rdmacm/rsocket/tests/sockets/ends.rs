//! Sockets and pairs of them as tests begin with them, and streams of bytes that are checked as they come.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;

use vervain_rsocket::c::*;

use crate::calls::*;
use crate::network::Network;

pub fn network() -> &'static Network {
    static NETWORK: OnceLock<Network> = OnceLock::new();
    NETWORK.get_or_init(|| {
        let network = Network::default();
        vervain_rsocket::install(std::sync::Arc::new(network.clone()));
        network
    })
}

/// A port for one test.
pub fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(1000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub fn stream() -> c_int {
    network();
    let socket = rsocket(libc::AF_INET, libc::SOCK_STREAM, 0);
    assert!(socket >= 0, "{}", errno());
    socket
}

pub fn listener(port: u16, prepare: impl Fn(c_int)) -> c_int {
    let socket = stream();
    prepare(socket);
    assert_eq!(bind(socket, &at(port)), 0);
    assert_eq!(rlisten(socket, 5), 0);
    socket
}

pub fn accept(listener: c_int) -> c_int {
    let socket = try_accept(listener);
    assert!(socket >= 0, "{}", errno());
    socket
}

pub fn connect(socket: c_int, port: u16) -> c_int {
    connect_to(socket, &at(port))
}

/// Both ends of a stream; the one that connected first.
pub fn pair_with(port: u16, prepare: impl Fn(c_int) + Sync) -> [c_int; 2] {
    let listener = listener(port, &prepare);
    let client = stream();
    prepare(client);
    let server = thread::scope(|scope| {
        let server = scope.spawn(|| accept(listener));
        assert_eq!(connect(client, port), 0, "{}", errno());
        server.join().unwrap()
    });
    assert_eq!(rclose(listener), 0);
    [client, server]
}

pub fn pair() -> [c_int; 2] {
    pair_with(port(), |_| {})
}

pub fn small(socket: c_int) {
    for (level, name, value) in [
        (libc::SOL_SOCKET, libc::SO_RCVBUF, 1700),
        (libc::SOL_SOCKET, libc::SO_SNDBUF, 1),
        (0x10000, 0, 16),
        (0x10000, 1, 16),
    ] {
        assert_eq!(set(socket, level, name, value), 0);
    }
}

pub fn nonblocking(socket: c_int) {
    let flags = rfcntl(socket, libc::F_GETFL, 0);
    assert_eq!(rfcntl(socket, libc::F_SETFL, flags | libc::O_NONBLOCK), 0);
}

/// Lengths that look random, the same in each run.
pub fn lengths(seed: u64) -> impl Iterator<Item = usize> {
    let mut state = seed;
    std::iter::from_fn(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some(match state >> 62 {
            0 => (state >> 40) as usize % 8 + 1,
            1 => (state >> 40) as usize % 70 + 1,
            2 => (state >> 40) as usize % 4000 + 1,
            _ => (state >> 40) as usize % 150_000 + 1,
        })
    })
}

pub fn byte(at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

pub fn send_all(socket: c_int, total: usize, seed: u64) {
    let mut done = 0;
    for length in lengths(seed) {
        let length = length.min(total - done);
        let bytes: Vec<u8> = (done..done + length).map(byte).collect();
        let mut sent = 0;
        while sent < length {
            let now = send(socket, &bytes[sent..], 0);
            assert!(now > 0, "{}", errno());
            sent += now as usize;
        }
        done += length;
        if done == total {
            return;
        }
    }
}

pub fn receive_all(socket: c_int, total: usize, seed: u64) {
    let mut done = 0;
    for room in lengths(seed) {
        let bytes = receive(socket, room, 0).unwrap();
        if bytes.is_empty() {
            break;
        }
        assert!(bytes.iter().enumerate().all(|(i, got)| *got == byte(done + i)), "after {done}");
        done += bytes.len();
    }
    assert_eq!(done, total);
}

/// Both ways at once, two threads at each end, then the end.
pub fn whole_stream([a, b]: [c_int; 2], total: usize) {
    thread::scope(|scope| {
        for (socket, seed) in [(a, 1), (b, 2)] {
            scope.spawn(move || {
                send_all(socket, total, seed);
                assert_eq!(rshutdown(socket, libc::SHUT_WR), 0);
            });
            scope.spawn(move || receive_all(socket, total, seed + 10));
        }
    });
    assert_eq!((rclose(a), rclose(b)), (0, 0));
}
