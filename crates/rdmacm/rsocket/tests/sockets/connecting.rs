//! Making connections: listening, asking, accepting, refusing, with waiting and without.

use std::ffi::c_int;
use std::thread;
use std::time::Duration;

use libc::{POLLERR, POLLIN, POLLOUT};
use vervain_rsocket::c::*;

use crate::calls::*;
use crate::ends::{accept, connect, listener, network, nonblocking, port, small, stream, whole_stream};
use crate::network::SEPARATE_PORTS;

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
