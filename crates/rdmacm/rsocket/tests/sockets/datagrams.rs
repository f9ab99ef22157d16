//! Datagram sockets, by UDP and between queue pairs.

use std::ffi::c_int;
use std::thread;
use std::time::Duration;

use libc::{POLLIN, POLLOUT, sockaddr_in};
use vervain_rsocket::c::*;

use crate::calls::*;
use crate::ends::network;

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
