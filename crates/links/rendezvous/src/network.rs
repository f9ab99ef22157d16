//! Watch over the host's network, by the kernel's notifications of links and addresses (rtnetlink(7)). Their contents
//! are ignored: some may be lost when many come at once, so the network is always looked at as a whole.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

/// RTMGRP_LINK, RTMGRP_IPV4_IFADDR and RTMGRP_IPV6_IFADDR (linux/rtnetlink.h).
const GROUPS: u32 = 0x1 | 0x10 | 0x100;

/// A socket that is readable after a change. Without changes it costs nothing.
pub struct Watch(OwnedFd);

impl Watch {
    /// Begins to listen, then makes the devices look at the network, so that no change is missed in between.
    pub fn open() -> Result<Watch, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // NETLINK_ROUTE is protocol 0.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
        vervain_hca::context::network_changed();
        Ok(Watch(socket))
    }

    /// Takes the notifications and makes the devices look at the network.
    pub fn handle(&self) {
        let mut buffer = [0u8; 64];
        // NOBUFS: some were lost, one more reason to look.
        while let Ok(_) | Err(Errno::INTR | Errno::NOBUFS) = recv(&self.0, &mut buffer, RecvFlags::TRUNC) {}
        vervain_hca::context::network_changed();
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
