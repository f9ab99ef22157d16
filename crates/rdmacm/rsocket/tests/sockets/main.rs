//! The functions of C over a network in the process: what sockets promise.

mod calls;
mod network;

use std::ffi::{c_int, c_void};
use std::fs;
use std::io::{Read, Write};
use std::mem::zeroed;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, AtomicU16, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use calls::*;
use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, pollfd, sockaddr_in};
use network::{BARE_PORTS, Network, SEPARATE_PORTS};
use vervain_rsocket::c::*;

fn network() -> &'static Network {
    static NETWORK: OnceLock<Network> = OnceLock::new();
    NETWORK.get_or_init(|| {
        let network = Network::default();
        vervain_rsocket::install(std::sync::Arc::new(network.clone()));
        network
    })
}

/// A port for one test.
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(1000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn stream() -> c_int {
    network();
    let socket = rsocket(libc::AF_INET, libc::SOCK_STREAM, 0);
    assert!(socket >= 0, "{}", errno());
    socket
}

fn listener(port: u16, prepare: impl Fn(c_int)) -> c_int {
    let socket = stream();
    prepare(socket);
    assert_eq!(bind(socket, &at(port)), 0);
    assert_eq!(rlisten(socket, 5), 0);
    socket
}

fn accept(listener: c_int) -> c_int {
    let socket = try_accept(listener);
    assert!(socket >= 0, "{}", errno());
    socket
}

fn connect(socket: c_int, port: u16) -> c_int {
    connect_to(socket, &at(port))
}

/// Both ends of a stream; the one that connected first.
fn pair_with(port: u16, prepare: impl Fn(c_int) + Sync) -> [c_int; 2] {
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

fn pair() -> [c_int; 2] {
    pair_with(port(), |_| {})
}

fn small(socket: c_int) {
    for (level, name, value) in [
        (libc::SOL_SOCKET, libc::SO_RCVBUF, 1700),
        (libc::SOL_SOCKET, libc::SO_SNDBUF, 1),
        (0x10000, 0, 16),
        (0x10000, 1, 16),
    ] {
        assert_eq!(set(socket, level, name, value), 0);
    }
}

fn nonblocking(socket: c_int) {
    let flags = rfcntl(socket, libc::F_GETFL, 0);
    assert_eq!(rfcntl(socket, libc::F_SETFL, flags | libc::O_NONBLOCK), 0);
}

/// Lengths that look random, the same in each run.
fn lengths(seed: u64) -> impl Iterator<Item = usize> {
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

fn byte(at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn send_all(socket: c_int, total: usize, seed: u64) {
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

fn receive_all(socket: c_int, total: usize, seed: u64) {
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
fn whole_stream([a, b]: [c_int; 2], total: usize) {
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

#[test]
fn streams_of_random_sizes_arrive_both_ways_at_once() {
    whole_stream(pair(), 20 << 20);
}

#[test]
fn small_buffers_wrap_and_run_out_of_credit() {
    whole_stream(pair_with(port(), small), 3 << 20);
}

#[test]
fn devices_without_immediate_data_or_room_in_requests_do_as_well() {
    whole_stream(pair_with(*SEPARATE_PORTS.start(), small), 3 << 20);
    whole_stream(pair_with(*BARE_PORTS.start(), small), 3 << 20);
    whole_stream(pair_with(*BARE_PORTS.start() + 1, |_| {}), 5 << 20);
}

#[test]
fn a_stream_goes_on_one_way_when_the_other_is_shut() {
    let [a, b] = pair();
    assert_eq!(send(a, b"question", 0), 8);
    assert_eq!(rshutdown(a, libc::SHUT_WR), 0);
    assert_eq!((send(a, b"more", 0), errno()), (-1, libc::EPIPE));
    assert_eq!(receive(b, 100, 0).unwrap(), b"question");
    assert_eq!(receive(b, 100, 0).unwrap(), b"");
    assert_eq!(poll(b, POLLIN | POLLOUT, 0), POLLIN | POLLOUT);
    assert_eq!(send(b, b"answer", 0), 6);
    assert_eq!(rclose(b), 0);
    assert_eq!(poll(a, POLLIN, -1), POLLIN);
    assert_eq!(receive(a, 100, 0).unwrap(), b"answer");
    assert_eq!(receive(a, 100, 0).unwrap(), b"");
    assert_eq!(poll(a, POLLIN, 0), POLLIN | POLLHUP);
    assert_eq!(rclose(a), 0);
    assert_eq!((rclose(a), errno()), (-1, libc::EBADF));
}

#[test]
fn a_peer_that_closes_leaves_what_it_sent() {
    let [a, b] = pair();
    assert_eq!(send(a, b"last words", 0), 10);
    assert_eq!(rclose(a), 0);
    assert_eq!(receive(b, 4, 0).unwrap(), b"last");
    assert_eq!(receive(b, 100, 0).unwrap(), b" words");
    assert_eq!(receive(b, 100, 0).unwrap(), b"");
    assert_eq!((send(b, b"?", 0), errno()), (-1, libc::ECONNRESET));
    rclose(b);
}

#[test]
fn calls_that_must_not_wait_do_not() {
    let [a, b] = pair_with(port(), small);
    assert_eq!(receive(b, 1, libc::MSG_DONTWAIT), Err(libc::EAGAIN));
    nonblocking(a);
    assert_eq!(receive(a, 1, 0), Err(libc::EAGAIN));
    assert_eq!(poll(a, POLLIN | POLLOUT, 0), POLLOUT);
    let mut sent = 0;
    loop {
        match send(a, &[1; 1000], 0) {
            -1 => break assert_eq!(errno(), libc::EAGAIN),
            length => sent += length,
        }
    }
    // The receive buffer is as large as asked for, twice.
    assert_eq!(sent, 3400);
    assert_eq!(poll(a, POLLOUT, 0), 0);
    assert_eq!(poll(b, POLLIN, 0), POLLIN);
    let waiting = thread::spawn(move || poll(a, POLLOUT, -1));
    assert_eq!(receive(b, 3400, libc::MSG_WAITALL).unwrap().len(), 3400);
    assert_eq!(waiting.join().unwrap(), POLLOUT);
    for socket in [a, b] {
        rclose(socket);
    }
}

#[test]
fn flags_of_receives_are_obeyed() {
    let [a, b] = pair();
    assert_eq!(send(a, b"abc", 0), 3);
    assert_eq!(receive(b, 2, libc::MSG_PEEK).unwrap(), b"ab");
    assert_eq!(receive(b, 9, libc::MSG_PEEK).unwrap(), b"abc");
    let later = thread::spawn(move || {
        for part in [b"de", b"fg", b"hi"] {
            thread::sleep(Duration::from_millis(5));
            assert_eq!(send(a, part, 0), 2);
        }
    });
    assert_eq!(receive(b, 8, libc::MSG_WAITALL).unwrap(), b"abcdefgh");
    later.join().unwrap();
    // Data that is there when the peer ends is given, even if it is less than asked for.
    rclose(a);
    assert_eq!(receive(b, 8, libc::MSG_WAITALL).unwrap(), b"i");
    assert_eq!(receive(b, 1, libc::MSG_OOB), Err(libc::EOPNOTSUPP));
    rclose(b);
}

#[test]
fn vectors_are_gathered_and_scattered() {
    let [a, b] = pair();
    let parts = |parts: &mut [Vec<u8>]| -> Vec<libc::iovec> {
        parts.iter_mut().map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() }).collect()
    };
    let mut out = [b"one".to_vec(), Vec::new(), vec![b'2'; 5000], b"three".to_vec()];
    // SAFETY: four vectors, over parts that stay.
    assert_eq!(unsafe { rwritev(a, parts(&mut out).as_ptr(), 4) }, 5008);
    let mut into = [vec![0; 4], vec![0; 4999], vec![0; 5]];
    // SAFETY: a struct of integers and pointers.
    let mut message: libc::msghdr = unsafe { zeroed() };
    let mut vectors = parts(&mut into);
    (message.msg_iov, message.msg_iovlen) = (vectors.as_mut_ptr(), 3);
    // SAFETY: three vectors, over parts that stay.
    assert_eq!(unsafe { rrecvmsg(b, &raw mut message, libc::MSG_WAITALL) }, 5008);
    assert_eq!(into.concat(), out.concat());
    // SAFETY: as above.
    assert_eq!(unsafe { rsendmsg(b, &raw const message, 0) }, 5008);
    assert_eq!(receive(a, 5008, libc::MSG_WAITALL).unwrap(), out.concat());
    // SAFETY: a negative number of vectors is refused.
    assert_eq!((unsafe { rreadv(a, vectors.as_ptr(), -1) }, errno()), (-1, libc::EINVAL));
    for socket in [a, b] {
        rclose(socket);
    }
}

#[test]
fn connections_are_made_without_waiting() {
    let port = port();
    let listener = listener(port, nonblocking);
    assert_eq!((try_accept(listener), errno()), (-1, libc::EAGAIN));
    assert_eq!(poll(listener, POLLIN, 0), 0);
    let client = rsocket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, libc::IPPROTO_TCP);
    assert_eq!((connect(client, port), errno()), (-1, libc::EINPROGRESS));
    assert_eq!((connect(client, port), errno()), (-1, libc::EALREADY));
    assert_eq!((send(client, b"x", 0), errno()), (-1, libc::EAGAIN));
    // One thread has both ends.
    while poll(listener, POLLIN, 10) == 0 {
        poll(client, POLLOUT, 0);
    }
    let (server, from) = address_by(raccept, listener);
    assert!(server >= 0 && c_int::from(from.sin_family) == libc::AF_INET);
    assert_eq!(poll(client, POLLOUT, -1), POLLOUT);
    assert_eq!(get(client, libc::SOL_SOCKET, libc::SO_ERROR), 0);
    assert_eq!((connect(client, port), errno()), (-1, libc::EISCONN));
    assert_eq!(send(client, b"hello", 0), 5);
    assert_eq!(receive(server, 5, 0).unwrap(), b"hello");
    for (ask, socket) in [(rgetpeername as Ask, client), (rgetsockname as Ask, server)] {
        let (answer, name) = address_by(ask, socket);
        assert_eq!((answer, u16::from_be(name.sin_port)), (0, port));
    }
    for socket in [client, server, listener] {
        rclose(socket);
    }
}

/// A client whose request has come, and the listener has seen.
fn asked(listener: c_int, port: u16) -> c_int {
    let client = stream();
    nonblocking(client);
    assert_eq!((connect(client, port), errno()), (-1, libc::EINPROGRESS));
    poll(listener, POLLIN, 0);
    client
}

#[test]
fn who_has_given_up_is_passed_over() {
    let port = port();
    let listener = listener(port, nonblocking);
    rclose(asked(listener, port));
    assert_eq!(poll(listener, POLLIN, 0), POLLIN);
    assert_eq!((try_accept(listener), errno()), (-1, libc::EAGAIN));
    rclose(asked(listener, port));
    let client = asked(listener, port);
    let server = accept(listener);
    assert_eq!(poll(client, POLLOUT, -1), POLLOUT);
    assert_eq!(send(client, b"here", 0), 4);
    assert_eq!(rfcntl(server, libc::F_SETFL, libc::O_RDWR), 0);
    assert_eq!(receive(server, 4, 0).unwrap(), b"here");
    for socket in [client, server, listener] {
        rclose(socket);
    }
}

#[test]
fn requests_beyond_the_backlog_are_refused() {
    let port = port();
    let listener = listener(port, nonblocking);
    assert_eq!(rlisten(listener, 2), 0);
    let clients = [(); 3].map(|()| asked(listener, port));
    let refused = |client| {
        poll(client, POLLOUT, 0);
        get(client, libc::SOL_SOCKET, libc::SO_ERROR) == libc::ECONNREFUSED
    };
    assert_eq!(clients.map(refused), [false, false, true]);
    // A client that has given up takes no place.
    rclose(clients[0]);
    let fourth = asked(listener, port);
    assert!(!refused(fourth));
    let servers = [accept(listener), accept(listener)];
    assert_eq!((try_accept(listener), errno()), (-1, libc::EAGAIN));
    for client in [clients[1], fourth] {
        assert_eq!(poll(client, POLLOUT, -1), POLLOUT);
    }
    // 0: as many as the system allows.
    assert_eq!(rlisten(listener, 0), 0);
    let many = [(); 20].map(|()| asked(listener, port));
    assert!(!many.into_iter().any(refused));
    for socket in [&many[..], &servers, &clients[1..], &[fourth, listener]].concat() {
        rclose(socket);
    }
}

#[test]
fn what_comes_before_the_answer_is_kept_for_after_it() {
    for ends in [port(), *SEPARATE_PORTS.start() + 1] {
        let listener = listener(ends, small);
        let client = stream();
        small(client);
        nonblocking(client);
        assert_eq!((connect(client, ends), errno()), (-1, libc::EINPROGRESS));
        let server = accept(listener);
        // The server offers its second half, and the client finds that before it looks for the answer.
        assert_eq!(poll(server, POLLOUT, 0), POLLOUT);
        assert_eq!(send(client, b"first", 0), 5);
        assert_eq!(receive(server, 5, 0).unwrap(), b"first");
        assert_eq!(rfcntl(client, libc::F_SETFL, libc::O_RDWR), 0);
        whole_stream([client, server], 100_000);
        rclose(listener);
    }
}

#[test]
fn nobody_there_is_an_error_at_once_or_later() {
    let client = stream();
    assert_eq!((connect(client, 9), errno()), (-1, libc::ECONNREFUSED));
    rclose(client);
    let port = port();
    let listener = listener(port, |_| {});
    let client = stream();
    nonblocking(client);
    assert_eq!((connect(client, port), errno()), (-1, libc::EINPROGRESS));
    assert_eq!(poll(listener, POLLIN, -1), POLLIN);
    // The connection has not been accepted.
    rclose(listener);
    assert_ne!(poll(client, POLLOUT, -1) & (POLLOUT | POLLERR), 0);
    assert_eq!(get(client, libc::SOL_SOCKET, libc::SO_ERROR), libc::ECONNREFUSED);
    assert_eq!(get(client, libc::SOL_SOCKET, libc::SO_ERROR), 0);
    rclose(client);
    let lonely = stream();
    assert_eq!((send(lonely, b"x", 0), errno()), (-1, libc::ENOTCONN));
    assert_eq!(receive(lonely, 1, 0), Err(libc::ENOTCONN));
    assert_eq!((rshutdown(lonely, libc::SHUT_RD), errno()), (-1, libc::ENOTCONN));
    rclose(lonely);
}

#[test]
fn a_peer_that_dies_is_the_end_of_the_stream() {
    let port = port();
    let [a, b] = pair_with(port, |_| {});
    assert_eq!(send(b, b"kept", 0), 4);
    let reading = thread::spawn(move || (receive(a, 9, 0), receive(a, 9, 0)));
    thread::sleep(Duration::from_millis(10));
    network().bury(port);
    assert_eq!(reading.join().unwrap(), (Ok(b"kept".to_vec()), Ok(Vec::new())));
    assert_eq!(poll(a, POLLIN, 0), POLLIN | POLLHUP);
    rclose(a);
    rclose(b);
}

#[test]
fn a_peer_that_is_silent_breaks_the_stream() {
    let port = port();
    let [a, b] = pair_with(port, |_| {});
    network().unplug(port);
    assert_eq!(send(a, b"x", 0), 1);
    assert_eq!(receive(a, 1, 0), Err(libc::ETIMEDOUT));
    assert_eq!(receive(a, 1, 0), Ok(Vec::new()));
    assert_eq!(poll(a, POLLIN, 0), POLLIN | POLLERR | POLLHUP);
    assert_eq!((send(a, b"x", 0), errno()), (-1, libc::ECONNRESET));
    rclose(a);
    rclose(b);
}

#[test]
fn who_speaks_another_protocol_is_refused_and_the_next_is_accepted() {
    use vervain_rsocket::fabric::{Event, Fabric, Kind};
    let port = port();
    let listener = listener(port, |_| {});
    let stranger = network().identifier(Kind::Stream).unwrap();
    let to = format!("127.0.0.1:{port}").parse().unwrap();
    stranger.resolve_address(&to, Duration::ZERO).unwrap();
    stranger.connect(&[9; 40]).unwrap();
    let server = thread::spawn(move || accept(listener));
    let client = stream();
    assert_eq!(connect(client, port), 0);
    let server = server.join().unwrap();
    assert!(matches!(stranger.event(), Ok(Some(Event::AddressResolved))));
    assert!(matches!(stranger.event(), Ok(Some(Event::Failed(_)))));
    for socket in [client, server, listener] {
        rclose(socket);
    }
}

#[test]
fn sockets_are_polled_beside_other_descriptors() {
    let [a, b] = pair();
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let pipe = reader.as_raw_fd();
    let mut fds = [a, pipe, -1, b].map(|fd| pollfd { fd, events: POLLIN, revents: 0 });
    let mut ready = |timeout| {
        poll_all(&mut fds, timeout).min(9) * 10000 + fds.iter().fold(0, |sum, fd| 10 * sum + c_int::from(fd.revents))
    };
    assert_eq!(ready(0), 0);
    assert_eq!(ready(20), 0);
    let writes = thread::spawn(move || {
        thread::sleep(Duration::from_millis(10));
        writer.write_all(b"x").unwrap();
        writer
    });
    assert_eq!(ready(-1), 10100);
    // It stays open: its end would be an event too.
    let _writer = writes.join().unwrap();
    assert_eq!(send(a, b"y", 0), 1);
    assert_eq!(ready(-1), 20101);
    reader.read_exact(&mut [0]).unwrap();
    let sender = thread::spawn(move || {
        thread::sleep(Duration::from_millis(10));
        assert_eq!(send(b, b"z", 0), 1);
    });
    assert_eq!(receive(b, 1, 0).unwrap(), b"y");
    assert_eq!(ready(-1), 11000);
    sender.join().unwrap();

    let mut sets = [Set::of(&[a, b, pipe]), Set::of(&[b]), Set::of(&[])];
    assert_eq!(select(a.max(b).max(pipe) + 1, &mut sets), 2);
    assert_eq!([a, b, pipe].map(|fd| sets[0].has(fd)), [true, false, false]);
    assert!(sets[1].has(b));
    for socket in [a, b] {
        rclose(socket);
    }
}

#[test]
fn who_sleeps_is_woken_by_what_another_thread_finds() {
    let [a, b] = pair_with(port(), small);
    // Each thread sleeps for a part of what the others find in the one completion queue.
    thread::scope(|scope| {
        scope.spawn(|| send_all(a, 200_000, 5));
        scope.spawn(|| send_all(b, 200_000, 6));
        for socket in [a, b] {
            scope.spawn(move || {
                let mut done = 0;
                while done < 200_000 {
                    assert_ne!(poll(socket, POLLIN, -1) & POLLIN, 0);
                    done += receive(socket, 777, libc::MSG_DONTWAIT).map_or(0, |bytes| bytes.len());
                }
            });
        }
    });
    for socket in [a, b] {
        rclose(socket);
    }
}

/// Starts a thread, and waits until it sleeps in the call.
fn sleeps_in<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    let tid = Arc::new(AtomicI32::new(0));
    let told = Arc::clone(&tid);
    let thread = thread::spawn(move || {
        // SAFETY: asks for a number.
        told.store(unsafe { libc::gettid() }, Ordering::Relaxed);
        call()
    });
    // Behind the name, which may have spaces, is the state.
    let sleeps = |tid| {
        let stat = fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('S')
    };
    while tid.load(Ordering::Relaxed) == 0 || !sleeps(tid.load(Ordering::Relaxed)) {
        thread::sleep(Duration::from_millis(1));
    }
    thread
}

#[test]
fn a_close_ends_the_calls_of_others() {
    let [a, b] = pair();
    let reading = sleeps_in(move || receive(a, 1, 0));
    assert_eq!(rclose(a), 0);
    assert_eq!(reading.join().unwrap(), Ok(Vec::new()));
    let listener = listener(port(), |_| {});
    let accepting = sleeps_in(move || (try_accept(listener), errno()));
    assert_eq!(rclose(listener), 0);
    assert_eq!(accepting.join().unwrap(), (-1, libc::EBADF));
    rclose(b);
}

#[test]
fn buffers_are_mapped_for_the_peer() {
    let [a, b] = pair_with(port(), |socket| assert_eq!(set(socket, 0x10000, 3, 4), 0));
    // SAFETY: places in buffers that stay until the sockets are closed.
    let map = |place, length, access, offset| unsafe { riomap(b, place, length, access, 0, offset) };
    let mut buffers = vec![vec![0_u8; 100_000]; 4];
    for (i, buffer) in buffers.iter_mut().enumerate() {
        let place: *mut c_void = buffer.as_mut_ptr().cast();
        let offset = if i == 3 { -1 } else { 100_000 * i as i64 };
        let expected = if i == 3 { place as i64 } else { offset };
        assert_eq!(map(place, 100_000, libc::PROT_WRITE, offset), expected);
    }
    let place: *mut c_void = buffers[0].as_mut_ptr().cast();
    assert_eq!((map(place, 1, libc::PROT_WRITE, 7), errno()), (-1, libc::ENOMEM));
    assert_eq!((map(place, 1, libc::PROT_READ, 7), errno()), (-1, libc::EINVAL));
    // They are told with the next data.
    assert_eq!(send(b, b"go", 0), 2);
    assert_eq!(receive(a, 2, 0).unwrap(), b"go");
    let data: Vec<u8> = (0..150_000).map(byte).collect();
    // SAFETY: there are more bytes than any write has.
    let write = |length, offset| unsafe { riowrite(a, data.as_ptr().cast(), length, offset, 0) };
    assert_eq!(write(150_000, 50_000), 150_000, "it goes on in the next buffer");
    assert_eq!(write(150_000, 250_000), 50_000, "there is none behind the third");
    assert_eq!(write(3, buffers[3].as_ptr() as i64 + 5), 3);
    assert_eq!(write(3, 400_000), 0);
    assert_eq!(send(a, b"done", 0), 4);
    assert_eq!(receive(b, 4, 0).unwrap(), b"done");
    assert_eq!(buffers[0][50_000..], data[..50_000]);
    assert_eq!(buffers[1][..], data[50_000..]);
    assert_eq!((&buffers[2][..50_000], &buffers[2][50_000..]), (&[0; 50_000][..], &data[..50_000]));
    assert_eq!(buffers[3][4..9], [0, data[0], data[1], data[2], 0]);
    let place: *mut c_void = buffers[0].as_mut_ptr().cast();
    assert_eq!(riounmap(b, place, 100_000), 0);
    assert_eq!((riounmap(b, place, 100_000), errno()), (-1, libc::EINVAL));
    // A buffer that is not mapped any more cannot be written to: the stream breaks.
    assert_eq!(write(1, 0), 1);
    assert_eq!(receive(a, 1, 0), Err(libc::ECONNRESET));
    rclose(a);
    rclose(b);
}

#[test]
fn options_are_kept_and_bounded() {
    let socket = stream();
    for (level, name, value, expected) in [
        (libc::SOL_SOCKET, libc::SO_REUSEADDR, 7, 1),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE, 1, 1),
        (libc::SOL_SOCKET, libc::SO_RCVBUF, 50_000, 100_000),
        (libc::SOL_SOCKET, libc::SO_SNDBUF, 10, 4096),
        (libc::SOL_SOCKET, libc::SO_SNDBUF, -1, 4096),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1, 1),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY, 1, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 30, 30),
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1, 1),
        (0x10000, 0, 100_000, 0xfffe),
        (0x10000, 1, 77, 77),
        (0x10000, 2, 16, 16),
        (0x10000, 3, 1000, 768),
    ] {
        assert_eq!(set(socket, level, name, value), 0, "{level} {name}");
        assert_eq!(get(socket, level, name), expected, "{level} {name}");
    }
    assert_eq!(get(socket, libc::SOL_SOCKET, libc::SO_TYPE), libc::SOCK_STREAM);
    assert_eq!((set(socket, libc::SOL_SOCKET, libc::SO_MARK, 1), errno()), (-1, libc::ENOTSUP));
    assert_eq!((set(socket, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 0), errno()), (-1, libc::EINVAL));
    assert_eq!((set(9999, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1), errno()), (-1, libc::EBADF));
    let linger = libc::linger { l_onoff: 1, l_linger: 3 };
    assert_eq!(set_to(socket, libc::SOL_SOCKET, libc::SO_LINGER, &linger), 0);
    let mut route = [0_u8; 200];
    let length = get_bytes(socket, 0x10000, 4, &mut route);
    assert_eq!((length, route[71], route[72]), (72, 7, 0));
    rclose(socket);

    let timeout = libc::timeval { tv_sec: 0, tv_usec: 20_000 };
    let [a, b] = pair();
    assert_eq!(set_to(a, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &timeout), 0);
    assert_eq!(receive(a, 1, 0), Err(libc::EAGAIN));
    assert_eq!((set(a, 0x10000, 0, 16), errno()), (-1, libc::EINVAL), "it is connected");
    rclose(a);
    rclose(b);
    for (domain, kind, protocol) in [(libc::AF_UNIX, 1, 0), (libc::AF_INET, 3, 0), (libc::AF_INET, 1, 17)] {
        assert_eq!((rsocket(domain, kind, protocol), errno()), (-1, libc::ENOTSUP));
    }
}

#[test]
fn a_way_that_is_given_is_taken() {
    let port = port();
    let listener = listener(port, |_| {});
    let client = stream();
    assert_eq!(set_to(client, 0x10000, 4, &[1_u8; 72]), 0);
    let server = thread::spawn(move || accept(listener));
    assert_eq!(connect(client, port), 0);
    for socket in [client, server.join().unwrap(), listener] {
        rclose(socket);
    }
}

#[test]
fn streams_show_that_they_are_alive() {
    let port = port();
    let [a, b] = pair_with(port, |_| {});
    assert_eq!(set(a, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 1), 0);
    assert_eq!(set(a, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1), 0);
    network().unplug(port);
    assert_eq!(receive(a, 1, 0), Err(libc::ETIMEDOUT));
    rclose(a);
    rclose(b);
}

fn datagrams() -> (c_int, sockaddr_in) {
    network();
    let socket = rsocket(libc::AF_INET, libc::SOCK_DGRAM, 0);
    assert_eq!(bind(socket, &at(0)), 0);
    let (answer, name) = address_by(rgetsockname, socket);
    assert_eq!(answer, 0);
    (socket, name)
}

#[test]
fn datagrams_go_by_udp_first_and_between_queue_pairs_then() {
    let ((a, a_name), (b, b_name)) = (datagrams(), datagrams());
    for round in 0..200_u32 {
        let text = round.to_string();
        assert_eq!(send_to(a, text.as_bytes(), &b_name), text.len() as isize);
        assert_eq!(receive_from(b, 100, 0), (text.into_bytes(), u16::from_be(a_name.sin_port)));
        assert_eq!(send_to(b, b"back", &a_name), 4);
        assert_eq!(receive_from(a, 100, 0), (b"back".to_vec(), u16::from_be(b_name.sin_port)));
    }
    // One that is longer than a packet of the device goes by UDP, and one that no peer could take not at all.
    assert_eq!(send_to(a, &[5; 2032], &b_name), 2032);
    assert_eq!(receive_from(b, 4000, libc::MSG_PEEK).0, [5; 2032]);
    assert_eq!(receive_from(b, 10, 0).0, [5; 10]);
    assert_eq!((send_to(a, &[5; 2033], &b_name), errno()), (-1, libc::EMSGSIZE));
    assert_eq!(send_to(a, b"", &b_name), 0);
    assert_eq!(receive_from(b, 10, 0).0, b"");
    assert_eq!(receive(b, 10, libc::MSG_DONTWAIT), Err(libc::EAGAIN));
    assert_eq!(poll(b, POLLIN | POLLOUT, 0), POLLOUT);
    let waiting = thread::spawn(move || poll(b, POLLIN, -1));
    thread::sleep(Duration::from_millis(10));
    assert_eq!(send_to(a, b"!", &b_name), 1);
    assert_eq!(waiting.join().unwrap(), POLLIN);
    for socket in [a, b] {
        assert_eq!(rclose(socket), 0);
    }
    // The port is free again.
    let socket = rsocket(libc::AF_INET, libc::SOCK_DGRAM, 0);
    assert_eq!(bind(socket, &a_name), 0);
    rclose(socket);
}

#[test]
fn connected_datagram_sockets_have_one_peer() {
    let ((a, a_name), (b, b_name), (c, _)) = (datagrams(), datagrams(), datagrams());
    assert_eq!((send(a, b"x", 0), errno()), (-1, libc::EDESTADDRREQ));
    assert_eq!(connect_to(a, &b_name), 0);
    for _ in 0..50 {
        assert_eq!(send(a, b"to b", 0), 4);
        assert_eq!(receive_from(b, 9, 0).0, b"to b");
        assert_eq!(send_to(c, b"from c", &a_name), 6);
        assert_eq!(send_to(b, b"from b", &a_name), 6);
        assert_eq!(receive_from(a, 9, 0), (b"from b".to_vec(), u16::from_be(b_name.sin_port)));
    }
    assert_eq!(rshutdown(a, libc::SHUT_WR), 0);
    assert_eq!((send(a, b"x", 0), errno()), (-1, libc::EPIPE));
    assert_eq!(rlisten(a, 1), -1);
    for socket in [a, b, c] {
        rclose(socket);
    }
}

#[test]
fn who_cannot_be_found_keeps_nobody_waiting() {
    let (a, a_name) = datagrams();
    let to = format!("127.0.0.1:{}", u16::from_be(a_name.sin_port));
    let header = [0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 0xff, 0xff, 0xff, 1, 2, 3, 4];
    let start = std::time::Instant::now();
    // Fewer than may be looked for at a time: tests beside this one look too.
    let lost: Vec<_> = (0..5).map(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    for socket in &lost {
        network().silence(socket.local_addr().unwrap().port());
        socket.send_to(&[&header[..], b"from nowhere"].concat(), &to).unwrap();
        assert_eq!(receive_from(a, 99, 0).0, b"from nowhere");
    }
    let (b, _) = datagrams();
    assert_eq!(send_to(b, b"here", &a_name), 4);
    assert_eq!(receive_from(a, 99, 0).0, b"here");
    assert_eq!((rclose(a), rclose(b)), (0, 0));
    // Each is looked for for two seconds, at once: one after the other they would take ten.
    assert!(start.elapsed() < Duration::from_secs(9));
}

#[test]
fn anything_that_comes_by_udp_is_harmless() {
    let (a, a_name) = datagrams();
    let other = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = format!("127.0.0.1:{}", u16::from_be(a_name.sin_port));
    let header = [0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 0xff, 0xff, 0xff, 1, 2, 3, 4];
    for cut in 0..header.len() {
        other.send_to(&header[..cut], &to).unwrap();
        let mut bent = header;
        bent[cut] ^= 0xff;
        if !(8..16).contains(&cut) && cut != 7 {
            other.send_to(&bent, &to).unwrap();
        }
    }
    other.send_to(&[&header[..], b"fine"].concat(), &to).unwrap();
    assert_eq!(receive_from(a, 9, 0).0, b"fine");
    // It is answered with the number of a QP.
    let mut answer = [0; 99];
    let length = other.recv(&mut answer).unwrap();
    assert_eq!((length, answer[5]), (16, 7));
    // A QP that is not there takes nothing.
    assert_eq!(send_to(a, b"lost", &at(other.local_addr().unwrap().port())), 4);
    rclose(a);
}
