//! Congestion notification, seen by a peer that is a plain socket: marked packets and the notifications that answer
//! them, notifications and what they change, and forged ones.

use super::forge::{Fate, Forged, emit, seal};
use super::side::{Side, poll};
use super::take_in;
use super::world::{FIRST_PSN, HERE, QKEY, World, address_of, alone, alone_with, connect_to};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use vervain_hca::device::port_counters::{Word, own_sums};
use vervain_hca::{Ah, Qp, QpType, UdDest};
use vervain_roce::net::Datagram;
use vervain_wire::{Bth, Deth, Headers, UDP_PORT, opcode, parse};

pub(super) const THERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
pub(super) const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
/// A QP there.
pub(super) const THEIR_QPN: u32 = 0x77_7777;
const LIMIT: Duration = Duration::from_secs(20);
/// ECN bits.
const ECT0: u8 = 2;
const CE: libc::c_int = 3;
/// The BTH, 16 reserved bytes and the ICRC.
const CNP: usize = 32;

/// The socket that stands for the other process, or for a stranger.
pub(super) struct Peer(UdpSocket);

impl Peer {
    pub(super) fn new(at: Ipv4Addr) -> Peer {
        let socket = UdpSocket::bind((at, UDP_PORT)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let peer = Peer(socket);
        peer.set(libc::IP_RECVTOS, 1);
        peer
    }

    fn set(&self, option: libc::c_int, value: libc::c_int) {
        // SAFETY: the option is an int on this stack.
        let set =
            unsafe { libc::setsockopt(self.0.as_raw_fd(), libc::IPPROTO_IP, option, (&raw const value).cast(), 4) };
        assert_eq!(set, 0);
    }

    /// The next packet that has come, and its type of service.
    pub(super) fn receive(&self) -> Option<(Vec<u8>, u8)> {
        let (mut bytes, mut control) = (vec![0u8; 65536], [0u64; 8]);
        let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: a message of zeros is an empty one; all that it points at outlives the call, and the macros keep to
        // the control buffer.
        unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
            (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
            let length = libc::recvmsg(self.0.as_raw_fd(), &raw mut message, 0);
            bytes.truncate(usize::try_from(length).ok()?);
            let header = libc::CMSG_FIRSTHDR(&raw const message).as_ref().expect("the type of service");
            assert_eq!((header.cmsg_level, header.cmsg_type), (libc::IPPROTO_IP, libc::IP_TOS));
            Some((bytes, *libc::CMSG_DATA(header)))
        }
    }

    /// The notifications among the packets that have come.
    fn notifications(&self) -> Vec<(Vec<u8>, u8)> {
        std::iter::from_fn(|| self.receive()).filter(|(bytes, _)| bytes[0] == opcode::CNP).collect()
    }

    pub(super) fn send(&self, packet: &Forged) {
        self.0.send_to(&packet.bytes, (HERE, UDP_PORT)).unwrap();
    }
}

pub(super) fn packet(from: Ipv4Addr, headers: &Headers, payload: usize) -> Forged {
    let from = SocketAddr::from((from, UDP_PORT));
    let mut bytes = emit(headers, payload);
    seal(&mut bytes, from);
    Forged { from, bytes, fate: Fate::Unwanted }
}

/// A SEND of nothing to `qp`.
fn message(from: Ipv4Addr, qp: &Qp, qkey: u32) -> Forged {
    let base = match qp.qp_type() {
        QpType::Ud => opcode::UD,
        QpType::Uc => opcode::UC,
        _ => opcode::RC,
    };
    let opcode = base | opcode::SEND_ONLY;
    let bth = Bth { opcode, pkey: 0xffff, dest_qpn: qp.qp_num(), psn: FIRST_PSN, ..Bth::default() };
    let deth = Some(Deth { qkey, source_qpn: THEIR_QPN });
    packet(from, &Headers { bth, deth, ..Headers::default() }, 0)
}

fn notification(from: Ipv4Addr, qpn: u32, pkey: u16) -> Forged {
    let bth = Bth { opcode: opcode::CNP, pkey, dest_qpn: qpn, ..Bth::default() };
    packet(from, &Headers { bth, ..Headers::default() }, 16)
}

/// A QP whose peer is a socket, and that.
pub(super) fn side(world: &World, qp_type: QpType) -> Side {
    let side = Side::new(&world.context, qp_type, 1);
    connect_to(&side.qp, address_of(&world.context, THERE), THEIR_QPN);
    side
}

/// Polls until the port has received `count` packets more than `before`.
pub(super) fn receive(world: &World, side: &Side, before: u64, count: u64) {
    let (port, begin) = (world.roce.port(HERE).unwrap(), Instant::now());
    while port.counters().received_packets.get() < before + count {
        poll(&side.received);
        assert!(begin.elapsed() < LIMIT, "{:?}", port.counters());
    }
    // What results from them leaves with the poll that took them.
    poll(&side.received);
}

/// What has been counted so far.
fn counted(word: Word) -> u64 {
    own_sums().expect("a file of counters")[word as usize]
}

fn marked_packets_are_answered(qp_type: QpType) {
    let (world, peer, stranger) = (World::new(&[QpType::Rc]), Peer::new(THERE), Peer::new(STRANGER));
    let side = side(&world, qp_type);
    let port = world.roce.port(HERE).unwrap();
    let received = || port.counters().received_packets.get();

    // A packet that the network has not marked, and marked ones that are not for the QP.
    peer.set(libc::IP_TOS, ECT0.into());
    let before = received();
    peer.send(&message(THERE, &side.qp, QKEY));
    receive(&world, &side, before, 1);
    [&peer, &stranger].iter().for_each(|socket| socket.set(libc::IP_TOS, CE));
    let before = received();
    stranger.send(&message(STRANGER, &side.qp, QKEY ^ 1));
    stranger.send(&notification(STRANGER, side.qp.qp_num(), 0xffff));
    peer.send(&notification(THERE, side.qp.qp_num() ^ 0x40, 0xffff));
    let mut damaged = message(THERE, &side.qp, QKEY);
    damaged.bytes[9] ^= 1;
    peer.send(&damaged);
    let mut count = 4;
    if qp_type == QpType::Ud {
        peer.send(&message(THERE, &side.qp, QKEY ^ 1));
        count += 1;
    }
    receive(&world, &side, before, count);
    assert_eq!((counted(Word::MarkedPackets), counted(Word::NotificationsSent)), (0, 0));

    // Marked ones, far more often than each 50 us.
    let (begin, before) = (Instant::now(), received());
    for n in 0..200 {
        peer.send(&message(THERE, &side.qp, QKEY));
        if n % 20 == 19 {
            receive(&world, &side, before, n + 1);
        }
    }
    let most = begin.elapsed().as_micros() as u64 / 50 + 1;
    let sent = counted(Word::NotificationsSent);
    assert!((1..=most).contains(&sent), "{sent} in {:?}", begin.elapsed());
    assert_eq!(counted(Word::MarkedPackets), 200);
    let (mut came, begin) = (0, Instant::now());
    while came < sent {
        for (bytes, tos) in peer.notifications() {
            assert_eq!((bytes.len(), bytes[4], tos), (CNP, 0x40, 0), "BECN, and itself not to be marked");
            let packet = parse(&bytes).unwrap();
            let wanted = Bth { opcode: opcode::CNP, pkey: 0xffff, dest_qpn: THEIR_QPN, ..Bth::default() };
            assert_eq!((packet.headers.bth, packet.payload), (wanted, &[0; 16][..]));
            came += 1;
        }
        assert!(begin.elapsed() < LIMIT, "{came} of {sent} have come");
    }
    assert_eq!((came, stranger.notifications()), (sent, vec![]));
}

/// Runs a test where what is done is counted.
fn alone_and_counted(test: &str, body: impl FnOnce()) {
    let directory = tempfile::tempdir().unwrap();
    alone_with(test, &[("VERVAIN_SYSFS", directory.path().to_str().unwrap())], body);
}

#[test]
fn marked_packets_of_a_reliable_peer_are_answered_by_notifications() {
    alone_and_counted("congestion::marked_packets_of_a_reliable_peer_are_answered_by_notifications", || {
        marked_packets_are_answered(QpType::Rc);
    });
}

#[test]
fn marked_packets_of_an_unreliable_peer_are_answered_by_notifications() {
    alone_and_counted("congestion::marked_packets_of_an_unreliable_peer_are_answered_by_notifications", || {
        marked_packets_are_answered(QpType::Uc);
    });
}

#[test]
fn marked_datagrams_are_answered_by_notifications() {
    alone_and_counted("congestion::marked_datagrams_are_answered_by_notifications", || {
        marked_packets_are_answered(QpType::Ud);
    });
}

/// Handles a packet as if it had come with these ECN bits, and after others that the socket had no room for.
fn take_in_so(world: &World, packet: &Forged, tos: u8, overflowed: bool) {
    let Forged { from, bytes, .. } = packet;
    let datagram = Datagram { from: *from, to: HERE, hop_limit: 64, tos, overflowed, label: 0, index: 0, bytes };
    assert!(world.roce.take_in(HERE, [datagram]));
}

#[test]
fn a_packet_behind_those_that_a_full_socket_has_dropped_is_answered_too() {
    alone_and_counted("congestion::a_packet_behind_those_that_a_full_socket_has_dropped_is_answered_too", || {
        let (world, _peer) = (World::new(&[QpType::Rc]), Peer::new(THERE));
        let side = side(&world, QpType::Rc);
        take_in_so(&world, &message(THERE, &side.qp, QKEY), ECT0, false);
        assert_eq!(counted(Word::NotificationsSent), 0);
        take_in_so(&world, &message(THERE, &side.qp, QKEY), ECT0, true);
        assert_eq!((counted(Word::NotificationsSent), counted(Word::MarkedPackets)), (1, 0));
    });
}

#[test]
fn a_marked_answer_to_a_read_closes_the_window_of_its_requester() {
    alone_and_counted("congestion::a_marked_answer_to_a_read_closes_the_window_of_its_requester", || {
        let (world, peer) = (World::new(&[QpType::Rc]), Peer::new(THERE));
        let side = side(&world, QpType::Rc);
        let qpn = side.qp.qp_num();
        side.post(1, None);
        peer.receive().expect("the message");
        let bth = |operation| Bth { opcode: opcode::RC | operation, pkey: 0xffff, dest_qpn: qpn, ..Bth::default() };
        let answer = |operation| packet(THERE, &Headers { bth: bth(operation), ..Headers::default() }, 0);
        let size = || world.roce.window(qpn).unwrap().0;
        let resent = || world.roce.counters(qpn).unwrap().1.unwrap().resent_packets;
        let before = size();
        // Of acknowledgements the peer is told, who sends other things by that way.
        take_in_so(&world, &answer(opcode::ACKNOWLEDGE), CE as u8, false);
        assert!(size() == before || resent() > 0);
        take_in_so(&world, &answer(opcode::READ_RESPONSE_ONLY), CE as u8, false);
        assert!(size() == before / 2 || resent() > 0, "{} of {before}", size());
        assert_eq!(counted(Word::MarkedPackets), 2);
    });
}

/// Notifications for QP `qpn` that change nothing.
fn forged(qpn: u32) -> [Forged; 4] {
    let mut damaged = notification(THERE, qpn, 0xffff);
    damaged.bytes[20] = 1;
    [
        notification(STRANGER, qpn, 0xffff),
        notification(THERE, qpn, 0x1234),
        notification(THERE, qpn ^ 0x40, 0xffff),
        damaged,
    ]
}

#[test]
fn a_notification_of_the_peer_closes_the_window_and_a_forged_one_does_not() {
    alone_and_counted("congestion::a_notification_of_the_peer_closes_the_window_and_a_forged_one_does_not", || {
        let (world, peer) = (World::new(&[QpType::Rc]), Peer::new(THERE));
        let side = side(&world, QpType::Rc);
        let qpn = side.qp.qp_num();
        let handled = || counted(Word::NotificationsHandled);
        let due = notification(THERE, qpn, 0xffff);
        let (whole, _) = world.roce.window(qpn).unwrap();
        take_in(&world, std::slice::from_ref(&due));
        assert_eq!((world.roce.window(qpn).unwrap(), handled()), ((whole, 0), 1), "nothing is under way");

        side.post(1, None);
        let (bytes, tos) = peer.receive().expect("the message");
        assert_eq!((bytes[0], tos), (opcode::RC | opcode::SEND_ONLY, ECT0));
        take_in(&world, &forged(qpn));
        assert_eq!(handled(), 1);
        take_in(&world, std::slice::from_ref(&due));
        assert_eq!(handled(), 2);
        let (size, _) = world.roce.window(qpn).unwrap();
        // The test may have lost its processors for so long that the requester has given the message up as lost.
        let resent = world.roce.counters(qpn).unwrap().1.unwrap().resent_packets;
        assert!(size == whole / 2 || resent > 0 && size < whole / 2, "{size} of {whole}");
    });
}

fn the_credit_becomes_less(qp_type: QpType) {
    let (world, peer) = (World::new(&[QpType::Rc]), Peer::new(THERE));
    let side = side(&world, qp_type);
    let qpn = side.qp.qp_num();
    let ah = Ah::create(&side.pd, &address_of(&world.context, THERE)).unwrap();
    let to = UdDest { ah: &ah, qpn: THEIR_QPN, qkey: QKEY };
    side.post(0, (qp_type == QpType::Ud).then_some(to));
    let (_, tos) = peer.receive().expect("the message");
    assert_eq!(tos, ECT0);
    let credit = || world.roce.credit(THERE.into(), THEIR_QPN).unwrap().0.unwrap();
    let port = world.roce.port(HERE).unwrap();
    let (before, unwanted, sent) = (credit(), port.counters().unwanted.get(), port.counters().sent_packets.get());
    for _ in 0..1000 {
        take_in(&world, &forged(qpn));
    }
    assert_eq!((credit(), port.counters().unwanted.get() - unwanted), (before, 3000));
    for _ in 0..1000 {
        take_in(&world, &[notification(THERE, qpn, 0xffff)]);
    }
    assert_eq!(credit(), before / 2, "once until the peer answers");
    assert_eq!(port.counters().sent_packets.get(), sent, "nothing is sent for them");
}

#[test]
fn a_notification_lowers_the_credit_of_an_unreliable_connection() {
    alone("congestion::a_notification_lowers_the_credit_of_an_unreliable_connection", || {
        the_credit_becomes_less(QpType::Uc);
    });
}

#[test]
fn a_notification_lowers_the_credit_of_datagrams() {
    alone("congestion::a_notification_lowers_the_credit_of_datagrams", || the_credit_becomes_less(QpType::Ud));
}
