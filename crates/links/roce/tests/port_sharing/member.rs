//! A member: a process that shares a port, processes what comes for its slots and tells the sender of each packet that
//! it did. It is this test binary again, asked for by a variable of the environment.
//!
//! Packets are a BTH without meaning (the destination QPN in bytes 5 to 7), a slot and a sequence number. The answer is
//! slot, sequence number, process id and the way that the packet came.

use std::io::{BufRead, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use vervain_roce::net::{Datagram, Port, ReceiveBatch};
use vervain_roce::port_sharing::{Misrouted, Sharing, slot_of_packet};

/// Names address and slots of the process that is to be a member.
pub const VARIABLE: &str = "VERVAIN_TEST_PORT_MEMBER";
/// Bytes of a packet and of an answer.
pub const PACKET: usize = 24;
/// The way of a packet: it came to the socket of its owner, or was handed to it.
pub const DIRECT: u32 = 0;
pub const ADOPTED: u32 = 1;

/// A packet with number `sequence` for `slot`.
pub fn packet(slot: u32, sequence: u64) -> [u8; PACKET] {
    let mut bytes = [0; PACKET];
    let qpn = slot << vervain_hca::arena::layout::INDEX_BITS | (sequence as u32 & 0x3fff);
    bytes[4..8].copy_from_slice(&(0xff00_0000 | qpn).to_be_bytes());
    bytes[12..16].copy_from_slice(&slot.to_ne_bytes());
    bytes[16..24].copy_from_slice(&sequence.to_ne_bytes());
    bytes
}

/// A socket at `at`, as a process of Vervain would make it.
pub fn bind(at: SocketAddr) -> vervain_hca::Result<OwnedFd> {
    assert_eq!(at.port(), 4791, "Port::bind knows this port only");
    Port::bind(at.ip(), 0)
}

/// The process, if this is one.
#[test]
fn member_process() {
    let Ok(text) = std::env::var(VARIABLE) else { return };
    let (at, slots) = text.split_once(' ').unwrap();
    let at: SocketAddr = at.parse().unwrap();
    let slots: Vec<u32> = slots.split(',').map(|s| s.parse().unwrap()).collect();
    match Sharing::join(at, &slots, None, &|| bind(at)) {
        Ok((sharing, socket)) => serve(at, &Arc::new(sharing), socket),
        Err(e) => say(&format!("failed {} {e}", e.errno())),
    }
}

/// The harness writes to standard output too; what is meant for the parent has a mark.
fn say(text: &str) {
    // One write, so that a kill leaves no half of it.
    let _ = std::io::stdout().write_all(format!("\n#{text}\n").as_bytes());
    let _ = std::io::stdout().flush();
}

fn serve(at: SocketAddr, sharing: &Arc<Sharing>, socket: OwnedFd) {
    let answers = UdpSocket::bind("127.0.0.1:0").unwrap();
    let inode = std::fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
    let port = Port::with_socket(at.ip(), 0, socket).unwrap();
    let mut batch = ReceiveBatch::new();
    let mut misrouted = Misrouted::default();
    say(&format!("joined {}", inode.display()));
    let answer = |packet: &Datagram<'_>, way: u32| {
        let mut bytes = [0; PACKET];
        bytes[..12].copy_from_slice(&packet.bytes[12..]);
        bytes[12..16].copy_from_slice(&std::process::id().to_ne_bytes());
        bytes[16..20].copy_from_slice(&way.to_ne_bytes());
        let _ = answers.send_to(&bytes, packet.from);
    };
    loop {
        let fd =
            |fd: std::os::fd::BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut fds = [fd(port.receive_socket()), fd(sharing.poll_fd()), fd(std::io::stdin().as_fd())];
        // SAFETY: the array lives on this stack.
        unsafe { libc::poll(fds.as_mut_ptr(), 3, -1) };
        while fds[0].revents != 0 && batch.receive(&port) {
            for packet in batch.datagrams() {
                match slot_of_packet(packet.bytes) {
                    Some(slot) if sharing.owns(slot) => answer(&packet, DIRECT),
                    Some(slot) => misrouted.add(sharing, slot, &packet),
                    None => {}
                }
            }
            misrouted.flush(sharing);
        }
        if fds[1].revents != 0 {
            sharing.handle_events(Some(&mut |packet: &_| answer(packet, ADOPTED)));
        }
        if fds[2].revents != 0 && !obey(sharing) {
            return;
        }
    }
}

/// One line of the parent's; false when the process is to end.
fn obey(sharing: &Arc<Sharing>) -> bool {
    let mut line = String::new();
    // The parent writes a line at a time and waits for the answer, so nothing is left in the reader's buffer.
    if std::io::stdin().lock().read_line(&mut line).unwrap_or(0) == 0 {
        return false;
    }
    match line.trim().split_once(' ') {
        Some(("slot", slot)) => {
            let (sharing, slot) = (Arc::clone(sharing), slot.parse().unwrap());
            std::thread::spawn(move || match sharing.add_slot(slot) {
                Ok(()) => say("done"),
                Err(e) => say(&format!("failed {} {e}", e.errno())),
            });
        }
        Some(("become", program)) => {
            say("done");
            let error = Command::new(program).arg("1000").env_remove(VARIABLE).exec();
            panic!("exec: {error}");
        }
        _ => {
            let c = sharing.counters();
            let misrouted = [&c.handed_over, &c.not_taken, &c.unowned, &c.adopted].map(|c| c.get().to_string());
            say(&format!("{} {}", misrouted.join(" "), sharing.unclaimed()));
        }
    }
    true
}
