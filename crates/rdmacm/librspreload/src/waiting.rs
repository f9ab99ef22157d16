//! poll(2) and select(2), whose descriptors may be of both kinds.

use std::ffi::c_int;

use libc::{fd_set, nfds_t, pollfd, timeval};

use crate::real::{real, set_errno};
use crate::rsockets::Functions;
use crate::table::find;

/// Polls with rsockets in the place of the descriptors that have one.
fn poll_mixed(fds: &mut [pollfd], timeout: c_int, functions: &Functions) -> c_int {
    let to_rsocket = |fd: &pollfd| pollfd { fd: find(fd.fd).map_or(fd.fd, |(rsocket, _)| rsocket), ..*fd };
    let mut mixed: Vec<pollfd> = fds.iter().map(to_rsocket).collect();
    // SAFETY: an array of that length.
    let ready = unsafe { (functions.rpoll)(mixed.as_mut_ptr(), mixed.len() as nfds_t, timeout) };
    if ready >= 0 {
        fds.iter_mut().zip(&mixed).for_each(|(fd, polled)| fd.revents = polled.revents);
    }
    ready
}

/// poll(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    if !fds.is_null() && count > 0 {
        // SAFETY: the caller's own arguments.
        let all = unsafe { std::slice::from_raw_parts_mut(fds, count as usize) };
        if let Some((_, functions)) = all.iter().find_map(|fd| find(fd.fd)) {
            return poll_mixed(all, timeout, functions);
        }
    }
    // SAFETY: as above.
    unsafe { real!(poll(fds, count, timeout): fn(*mut pollfd, nfds_t, c_int) -> c_int) }
}

/// The form of poll with _FORTIFY_SOURCE.
#[unsafe(no_mangle)]
unsafe extern "C" fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, size: usize) -> c_int {
    if (size / size_of::<pollfd>()) < count as usize {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: the caller's own arguments.
    unsafe { poll(fds, count, timeout) }
}

/// select(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the caller's own arguments; null is none.
    let has = |set: *mut fd_set, fd| !set.is_null() && unsafe { libc::FD_ISSET(fd, set) };
    let sets = [
        (read, libc::POLLIN, libc::POLLIN | libc::POLLHUP | libc::POLLERR),
        (write, libc::POLLOUT, libc::POLLOUT | libc::POLLERR),
        (except, libc::POLLPRI, libc::POLLPRI),
    ];
    let mut fds = Vec::new();
    // Programs have larger sets of their own making, which are for the kernel as they are.
    for fd in 0..count.min(libc::FD_SETSIZE as c_int) {
        let wanted = sets.iter().filter(|(set, ..)| has(*set, fd));
        let events = wanted.fold(0, |events, (_, event, _)| events | event);
        if events != 0 {
            fds.push(pollfd { fd, events, revents: 0 });
        }
    }
    let Some((_, functions)) = fds.iter().find_map(|fd| find(fd.fd)) else {
        // SAFETY: as above.
        return unsafe {
            real!(select(count, read, write, except, timeout):
                fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int)
        };
    };
    // SAFETY: as above.
    let wait = unsafe { timeout.as_ref() }.map_or(-1, |timeout| {
        let whole = timeout.tv_sec.saturating_mul(1000).saturating_add((timeout.tv_usec + 999) / 1000);
        c_int::try_from(whole).unwrap_or(c_int::MAX)
    });
    let ready = poll_mixed(&mut fds, wait, functions);
    if ready < 0 {
        return ready;
    }
    if fds.iter().any(|fd| fd.revents & libc::POLLNVAL != 0) {
        set_errno(libc::EBADF);
        return -1;
    }
    let mut bits = 0;
    for (set, event, counts) in sets {
        if set.is_null() {
            continue;
        }
        // SAFETY: as above.
        unsafe { libc::FD_ZERO(set) };
        for fd in fds.iter().filter(|fd| fd.events & event != 0 && fd.revents & counts != 0) {
            // SAFETY: as above, with a descriptor below FD_SETSIZE.
            unsafe { libc::FD_SET(fd.fd, set) };
            bits += 1;
        }
    }
    bits
}
