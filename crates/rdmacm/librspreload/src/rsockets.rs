//! librdmacm's functions, which the first socket loads.

use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

use libc::{iovec, msghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t};

const SONAME: &CStr = c"librdmacm.so.1";

macro_rules! functions {
    ($($name:ident: fn($($ty:ty),*) -> $ret:ty;)*) => {
        /// The functions, each as the socket call of its name without the r.
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($ty),*) -> $ret,)*
        }

        fn load() -> Option<Functions> {
            // SAFETY: a name that ends with 0; loading it runs constructors that are trusted as in any program linked
            // to it.
            let library = unsafe { libc::dlopen(SONAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            if library.is_null() {
                return None;
            }
            Some(Functions {
                $($name: {
                    // SAFETY: a handle that stays open, and a name that ends with 0.
                    let found = unsafe { libc::dlsym(library, concat!(stringify!($name), "\0").as_ptr().cast()) };
                    if found.is_null() {
                        return None;
                    }
                    // SAFETY: a function of this name has this type in <rdma/rsocket.h>.
                    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($ty),*) -> $ret>(found) }
                },)*
            })
        }
    };
}

functions! {
    rsocket: fn(c_int, c_int, c_int) -> c_int;
    rbind: fn(c_int, *const sockaddr, socklen_t) -> c_int;
    rlisten: fn(c_int, c_int) -> c_int;
    raccept: fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    rconnect: fn(c_int, *const sockaddr, socklen_t) -> c_int;
    rshutdown: fn(c_int, c_int) -> c_int;
    rclose: fn(c_int) -> c_int;
    rrecvfrom: fn(c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t;
    rrecvmsg: fn(c_int, *mut msghdr, c_int) -> ssize_t;
    rreadv: fn(c_int, *const iovec, c_int) -> ssize_t;
    rsendto: fn(c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t) -> ssize_t;
    rsendmsg: fn(c_int, *const msghdr, c_int) -> ssize_t;
    rwritev: fn(c_int, *const iovec, c_int) -> ssize_t;
    rpoll: fn(*mut pollfd, nfds_t, c_int) -> c_int;
    rgetpeername: fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    rgetsockname: fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    rsetsockopt: fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;
    rgetsockopt: fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;
    rfcntl: fn(c_int, c_int, c_int) -> c_int;
}

/// The functions; None if there is no such library.
pub fn functions() -> Option<&'static Functions> {
    static LOADED: OnceLock<Option<Functions>> = OnceLock::new();
    LOADED.get_or_init(load).as_ref()
}
