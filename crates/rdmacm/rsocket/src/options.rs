//! Options of sockets: setsockopt(2) and getsockopt(2), at the levels of sockets, of TCP, of IPv6 and of RDMA.

use std::time::Duration;

use crate::calls::Options;
use crate::fabric::{Errno, IdOption, Result};
use crate::protocol::wire::{scale, unscale};
use crate::service;
use crate::settings::LEAST_SEND_BYTES;
use crate::stream::State;
use crate::table::{Entry, Socket};
use crate::waiting::lock;

/// The level of RDMA's own options.
pub const SOL_RDMA: i32 = 0x10000;
const RDMA_SQSIZE: i32 = 0;
const RDMA_RQSIZE: i32 = 1;
const RDMA_INLINE: i32 = 2;
const RDMA_IOMAPSIZE: i32 = 3;
const RDMA_ROUTE: i32 = 4;

/// Counts of requests are of 16 bits, and one of them is none.
const MOST: u32 = 0xfffe;

const UNKNOWN: Errno = Errno(libc::ENOTSUP);

fn int(value: &[u8]) -> Result<i32> {
    value.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes)).ok_or(Errno(libc::EINVAL))
}

fn pair(value: &[u8]) -> Result<(i64, i64)> {
    let half = |at: usize| value.get(at..)?.first_chunk().map(|bytes| i64::from_ne_bytes(*bytes));
    half(0).zip(half(8)).ok_or(Errno(libc::EINVAL))
}

/// struct timeval; zeros: none.
fn timeout(value: &[u8]) -> Result<Option<Duration>> {
    let (seconds, micros) = pair(value)?;
    let micros = u32::try_from(micros).ok().filter(|micros| *micros < 1_000_000).ok_or(Errno(libc::EDOM))?;
    // Before the epoch: at once, as the kernel has it.
    let whole = Duration::new(u64::try_from(seconds).unwrap_or(0), micros * 1000);
    Ok((!whole.is_zero()).then_some(whole))
}

fn with_options<T>(entry: &Entry, with: impl FnOnce(&mut Options) -> T) -> T {
    entry.socket.calls().with_options(with)
}

fn has_buffers(entry: &Entry) -> bool {
    match &entry.socket {
        Socket::Stream(socket) => socket.link().is_some(),
        Socket::Datagram(socket) => !socket.is_new(),
    }
}

/// Asked for, doubled as the kernel does.
fn doubled(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0).saturating_mul(2)
}

/// setsockopt(2).
///
/// # Errors
/// ENOTSUP: no such option. EINVAL: no such value, or too late.
pub fn set(entry: &Entry, level: i32, name: i32, value: &[u8]) -> Result<()> {
    if let (Socket::Datagram(socket), true) = (&entry.socket, level != SOL_RDMA) {
        let length = value.len() as libc::socklen_t;
        // SAFETY: a value of that length.
        let set = unsafe {
            let value = value.as_ptr();
            libc::syscall(libc::SYS_setsockopt, socket.descriptor(), level, name, value, length)
        };
        if set != 0 {
            return Err(Errno::last());
        }
    }
    let done = match level {
        libc::SOL_SOCKET => set_socket(entry, name, value),
        libc::IPPROTO_TCP => set_tcp(entry, name, value),
        libc::IPPROTO_IPV6 => set_v6(entry, name, value),
        SOL_RDMA => set_rdma(entry, name, value),
        _ => Err(UNKNOWN),
    };
    match (done, &entry.socket) {
        // The UDP socket has it.
        (Err(UNKNOWN), Socket::Datagram(_)) if level != SOL_RDMA => Ok(()),
        (done, _) => done,
    }
}

fn keep(entry: &Entry, level: i32, name: i32, value: i32) {
    lock(&entry.kept).insert((level, name), value);
}

fn kept(entry: &Entry, level: i32, name: i32) -> i32 {
    lock(&entry.kept).get(&(level, name)).copied().unwrap_or(0)
}

fn set_socket(entry: &Entry, name: i32, value: &[u8]) -> Result<()> {
    match name {
        libc::SO_REUSEADDR => {
            let on = int(value)?;
            if let Socket::Stream(socket) = &entry.socket {
                match socket.set_option(IdOption::ReuseAddress, on) {
                    // Too late to matter, or not known to this device.
                    Err(Errno(libc::ENOSYS)) => {}
                    Err(_) if socket.state() != State::New => {}
                    set => set?,
                }
            }
            keep(entry, libc::SOL_SOCKET, name, i32::from(on != 0));
        }
        libc::SO_RCVBUF | libc::SO_SNDBUF => {
            let bytes = doubled(int(value)?);
            if has_buffers(entry) {
                return Ok(());
            }
            with_options(entry, |options| match name {
                libc::SO_RCVBUF => options.wishes.receive_bytes = bytes.max(2),
                _ => options.wishes.send_bytes = bytes.max(LEAST_SEND_BYTES),
            });
        }
        libc::SO_LINGER => {
            let (on, seconds) = (int(value)?, int(value.get(4..).unwrap_or_default())?);
            let linger = (on != 0).then(|| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
            with_options(entry, |options| options.linger = linger);
        }
        libc::SO_RCVTIMEO => {
            let timeout = timeout(value)?;
            with_options(entry, |options| options.receive_timeout = timeout);
        }
        libc::SO_SNDTIMEO => {
            let timeout = timeout(value)?;
            with_options(entry, |options| options.send_timeout = timeout);
        }
        libc::SO_KEEPALIVE => {
            let on = int(value)? != 0;
            with_options(entry, |options| options.keep_alive = on);
            if let Socket::Stream(socket) = &entry.socket {
                service::keep_alive(socket)?;
            }
        }
        libc::SO_OOBINLINE => keep(entry, libc::SOL_SOCKET, name, i32::from(int(value)? != 0)),
        _ => return Err(UNKNOWN),
    }
    Ok(())
}

fn set_tcp(entry: &Entry, name: i32, value: &[u8]) -> Result<()> {
    match name {
        // The connection itself is reliable, and knows its packets.
        libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL | libc::TCP_MAXSEG => {}
        libc::TCP_KEEPIDLE => {
            let seconds = u64::try_from(int(value)?).ok().filter(|seconds| *seconds > 0).ok_or(Errno(libc::EINVAL))?;
            let on = with_options(entry, |options| {
                options.keep_idle = Duration::from_secs(seconds);
                options.keep_alive
            });
            if let (Socket::Stream(socket), true) = (&entry.socket, on) {
                service::keep_alive(socket)?;
            }
        }
        libc::TCP_NODELAY => keep(entry, libc::IPPROTO_TCP, name, i32::from(int(value)? != 0)),
        _ => return Err(UNKNOWN),
    }
    Ok(())
}

fn set_v6(entry: &Entry, name: i32, value: &[u8]) -> Result<()> {
    if name != libc::IPV6_V6ONLY {
        return Err(UNKNOWN);
    }
    let on = int(value)?;
    if let Socket::Stream(socket) = &entry.socket {
        socket.set_option(IdOption::V6Only, on)?;
    }
    keep(entry, libc::IPPROTO_IPV6, name, i32::from(on != 0));
    Ok(())
}

fn set_rdma(entry: &Entry, name: i32, value: &[u8]) -> Result<()> {
    let is_late = match &entry.socket {
        Socket::Stream(socket) => !matches!(socket.state(), State::New | State::Bound | State::Listening),
        Socket::Datagram(socket) => !socket.is_new(),
    };
    if is_late {
        return Err(Errno(libc::EINVAL));
    }
    let short = || int(value).map(|value| (value as u32).min(MOST) as u16);
    let change = |change: &dyn Fn(&mut Options)| with_options(entry, |options| change(options));
    match name {
        RDMA_SQSIZE => short().map(|n| change(&|options| options.wishes.send_requests = n)),
        RDMA_RQSIZE => short().map(|n| change(&|options| options.wishes.receives = n)),
        RDMA_INLINE => short().map(|n| change(&|options| options.wishes.inline_bytes = n)),
        RDMA_IOMAPSIZE => short().map(|n| change(&|options| options.wishes.io_maps = unscale(scale(n)))),
        RDMA_ROUTE => {
            change(&|options| options.route = Some(value.to_vec()));
            Ok(())
        }
        _ => Err(UNKNOWN),
    }
}

/// getsockopt(2): the value.
///
/// # Errors
/// ENOTSUP: no such option.
pub fn get(entry: &Entry, level: i32, name: i32, room: usize) -> Result<Vec<u8>> {
    let number = |value: i32| Ok(value.to_ne_bytes().to_vec());
    let options = |get: &dyn Fn(&Options) -> i32| number(with_options(entry, |options| get(options)));
    let to_int = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR | libc::SO_OOBINLINE)
        | (libc::IPPROTO_TCP, libc::TCP_NODELAY)
        | (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => number(kept(entry, level, name)),
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => options(&|options| to_int(options.wishes.receive_bytes)),
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => options(&|options| to_int(options.wishes.send_bytes)),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => options(&|options| options.keep_alive.into()),
        (libc::SOL_SOCKET, libc::SO_TYPE) => number(match &entry.socket {
            Socket::Stream(_) => libc::SOCK_STREAM,
            Socket::Datagram(_) => libc::SOCK_DGRAM,
        }),
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => number(entry.domain),
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => {
            number(entry.stream().is_ok_and(|socket| socket.state() == State::Listening).into())
        }
        (libc::SOL_SOCKET, libc::SO_LINGER) => with_options(entry, |options| {
            // Without it a close waits too, for as long as it takes.
            let seconds = options.linger.map_or(0, |linger| linger.as_secs() as i32);
            Ok([i32::from(options.linger.is_some()).to_ne_bytes(), seconds.to_ne_bytes()].concat())
        }),
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) => with_options(entry, |options| {
            let timeout = if name == libc::SO_RCVTIMEO { options.receive_timeout } else { options.send_timeout };
            let timeout = timeout.unwrap_or_default();
            let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
            Ok([seconds.to_ne_bytes(), i64::from(timeout.subsec_micros()).to_ne_bytes()].concat())
        }),
        (libc::SOL_SOCKET, libc::SO_ERROR) => number(match &entry.socket {
            Socket::Stream(socket) => {
                socket.refresh();
                socket.take_error().map_or(0, |error| error.0)
            }
            Socket::Datagram(_) => 0,
        }),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL) => number(1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
            options(&|options| i32::try_from(options.keep_idle.as_secs()).unwrap_or(i32::MAX))
        }
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
            number(entry.stream().ok().and_then(|socket| socket.id().path_mtu()).map_or(2048, to_int))
        }
        (SOL_RDMA, RDMA_SQSIZE) => options(&|options| options.wishes.send_requests.into()),
        (SOL_RDMA, RDMA_RQSIZE) => options(&|options| options.wishes.receives.into()),
        (SOL_RDMA, RDMA_INLINE) => options(&|options| options.wishes.inline_bytes.into()),
        (SOL_RDMA, RDMA_IOMAPSIZE) => options(&|options| options.wishes.io_maps.into()),
        (SOL_RDMA, RDMA_ROUTE) => {
            let socket = entry.stream()?;
            let route =
                socket.calls.with_options(|options| options.route.clone()).unwrap_or_else(|| socket.id().route());
            if route.len() > room { Err(Errno(libc::EINVAL)) } else { Ok(route) }
        }
        _ => match &entry.socket {
            Socket::Datagram(socket) if level != SOL_RDMA => {
                let mut value = vec![0; room.min(1 << 12)];
                let mut length = value.len() as libc::socklen_t;
                // SAFETY: room for a value of that length.
                let got = unsafe {
                    let value = value.as_mut_ptr();
                    libc::syscall(libc::SYS_getsockopt, socket.descriptor(), level, name, value, &raw mut length)
                };
                value.truncate(length as usize);
                if got == 0 { Ok(value) } else { Err(Errno::last()) }
            }
            _ => Err(UNKNOWN),
        },
    }
}
