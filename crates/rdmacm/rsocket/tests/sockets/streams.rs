//! Streams: what is sent arrives, in order and once; waiting, polling, ends.

use std::ffi::{c_int, c_void};
use std::fs;
use std::io::{Read, Write};
use std::mem::zeroed;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, pollfd};
use vervain_rsocket::c::*;

use crate::calls::*;
use crate::ends::{byte, listener, network, nonblocking, pair, pair_with, port, send_all, small, whole_stream};
use crate::network::{BARE_PORTS, SEPARATE_PORTS};

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
