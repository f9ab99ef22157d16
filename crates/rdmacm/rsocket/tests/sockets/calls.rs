//! The functions of C, each by one that is safe to call.

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr;

use libc::{pollfd, sockaddr, sockaddr_in, socklen_t};
use vervain_rsocket::c::*;

pub fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

/// An address of this host.
pub fn at(port: u16) -> sockaddr_in {
    sockaddr_in {
        sin_family: libc::AF_INET as _,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
        sin_zero: [0; 8],
    }
}

const LENGTH: socklen_t = size_of::<sockaddr_in>() as socklen_t;

fn pointer(address: &sockaddr_in) -> *const sockaddr {
    ptr::from_ref(address).cast()
}

/// Sets an option to a value without padding.
pub fn set_to<T>(socket: c_int, level: c_int, name: c_int, value: &T) -> c_int {
    // SAFETY: as many bytes are read as the value has.
    unsafe { rsetsockopt(socket, level, name, ptr::from_ref(value).cast(), size_of::<T>() as socklen_t) }
}

pub fn set(socket: c_int, level: c_int, name: c_int, value: c_int) -> c_int {
    set_to(socket, level, name, &value)
}

/// Gets an option; returns the number of bytes written to `room`.
pub fn get_bytes(socket: c_int, level: c_int, name: c_int, room: &mut [u8]) -> usize {
    let mut length = room.len() as socklen_t;
    // SAFETY: as many bytes are written at most as there is room for.
    assert_eq!(unsafe { rgetsockopt(socket, level, name, room.as_mut_ptr().cast(), &raw mut length) }, 0);
    length as usize
}

pub fn get(socket: c_int, level: c_int, name: c_int) -> c_int {
    let mut value = [0; 4];
    get_bytes(socket, level, name, &mut value);
    c_int::from_ne_bytes(value)
}

pub fn bind(socket: c_int, to: &sockaddr_in) -> c_int {
    // SAFETY: an address of that length.
    unsafe { rbind(socket, pointer(to), LENGTH) }
}

pub type Ask = unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;

/// The result of `ask`, and the address that it writes.
pub fn address_by(ask: Ask, socket: c_int) -> (c_int, sockaddr_in) {
    let (mut address, mut length) = (at(0), LENGTH);
    // SAFETY: room for an address of that length.
    let answer = unsafe { ask(socket, ptr::from_mut(&mut address).cast(), &raw mut length) };
    assert_eq!(length, LENGTH);
    (answer, address)
}

/// Accepts a connection, wherever from.
pub fn try_accept(listener: c_int) -> c_int {
    // SAFETY: the address is not wanted.
    unsafe { raccept(listener, ptr::null_mut(), ptr::null_mut()) }
}

pub fn connect_to(socket: c_int, to: &sockaddr_in) -> c_int {
    // SAFETY: an address of that length.
    unsafe { rconnect(socket, pointer(to), LENGTH) }
}

pub fn send(socket: c_int, bytes: &[u8], flags: c_int) -> isize {
    // SAFETY: as many bytes are read as there are.
    unsafe { rsend(socket, bytes.as_ptr().cast(), bytes.len(), flags) }
}

pub fn receive(socket: c_int, room: usize, flags: c_int) -> Result<Vec<u8>, c_int> {
    let mut bytes = vec![0; room];
    // SAFETY: as many bytes are written at most as there is room for.
    let length = unsafe { rrecv(socket, bytes.as_mut_ptr().cast(), room, flags) };
    bytes.truncate(usize::try_from(length).map_err(|_| errno())?);
    Ok(bytes)
}

pub fn poll_all(fds: &mut [pollfd], timeout: c_int) -> c_int {
    // SAFETY: so many entries.
    unsafe { rpoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) }
}

pub fn poll(socket: c_int, events: i16, timeout: c_int) -> i16 {
    let mut fd = [pollfd { fd: socket, events, revents: 0 }];
    let ready = poll_all(&mut fd, timeout);
    assert_eq!(ready, c_int::from(fd[0].revents != 0));
    fd[0].revents
}

/// Descriptors, as select(2) takes them.
pub struct Set(libc::fd_set);

impl Set {
    pub fn of(descriptors: &[c_int]) -> Set {
        // SAFETY: a set of bits.
        let mut set = Set(unsafe { zeroed() });
        // SAFETY: the tests have fewer than FD_SETSIZE descriptors.
        descriptors.iter().for_each(|fd| unsafe { libc::FD_SET(*fd, &raw mut set.0) });
        set
    }

    pub fn has(&self, descriptor: c_int) -> bool {
        // SAFETY: as above.
        unsafe { libc::FD_ISSET(descriptor, &raw const self.0) }
    }
}

pub fn select(most: c_int, [read, write, except]: &mut [Set; 3]) -> c_int {
    // SAFETY: three sets, and no time.
    unsafe { rselect(most, &raw mut read.0, &raw mut write.0, &raw mut except.0, ptr::null_mut()) }
}

pub fn send_to(socket: c_int, bytes: &[u8], to: &sockaddr_in) -> isize {
    // SAFETY: as many bytes are read as there are, and an address of that length.
    unsafe { rsendto(socket, bytes.as_ptr().cast(), bytes.len(), 0, pointer(to), LENGTH) }
}

pub fn receive_from(socket: c_int, room: usize, flags: c_int) -> (Vec<u8>, u16) {
    let (mut bytes, mut from, mut length) = (vec![0; room], at(0), LENGTH);
    let (place, name) = (bytes.as_mut_ptr().cast(), (&raw mut from).cast());
    // SAFETY: as many bytes are written at most as there is room for, and an address.
    let got = unsafe { rrecvfrom(socket, place, room, flags, name, &raw mut length) };
    assert!(got >= 0, "{}", errno());
    bytes.truncate(got as usize);
    (bytes, u16::from_be(from.sin_port))
}
