//! Options of sockets.

use vervain_rsocket::c::*;

use crate::calls::*;
use crate::ends::{pair, stream};

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
