//! Senders of UC and UD messages that wait for credit, seen by their peer, which is a plain socket here; receivers that
//! have fewer receives than messages come; and forgers of probes and echoes.

use super::forge::{Fate, Forged, emit};
use super::side::{Side, poll};
use super::take_in;
use super::world::{HERE, QKEY, World, address_of, alone, alone_with, connect_to, resident};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use vervain_hca::device::port_counters::{Word, own_sums};
use vervain_hca::{Ah, QpAttr, QpState, QpType, UdDest, attr};
use vervain_wire::icrc::Flow;
use vervain_wire::{Bth, Deth, Headers, UDP_PORT, VERVAIN, opcode, parse};

const THERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// A QP there.
const THEIR_QPN: u32 = 0x77_7777;
/// Number of messages that fit into a socket of the default size.
const MESSAGES: u64 = 120;
const LIMIT: Duration = Duration::from_secs(20);
/// Bytes of an echo.
const ECHO: u64 = 28;
/// Cost of such a message, and the credit of an unknown peer.
const COST: u64 = 2048 + 320;
const FIRST: u64 = (64 << 10) / COST;
/// Time that a peer is first waited for that has never answered; doubled with each try.
const FIRST_WAIT: Duration = Duration::from_millis(2);
/// Time that a peer is waited for, in all tries, that has never answered; and somewhat less.
const PATIENCE: Duration = Duration::from_millis(20);
/// Time that a peer is first waited for that has answered; doubled with each try.
const WAIT: Duration = Duration::from_millis(4);

/// The socket that stands for the other process.
struct Peer {
    socket: UdpSocket,
    /// Sequence numbers of the probes that came.
    probes: Vec<u32>,
    /// Messages that came, and the PSNs of those with the mark.
    messages: u64,
    marked: Vec<u32>,
}

impl Peer {
    fn new() -> Peer {
        let socket = UdpSocket::bind((THERE, UDP_PORT)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let room: libc::c_int = 212_992;
        // SAFETY: the option is an int on this stack.
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, (&raw const room).cast(), 4) };
        Peer { socket, probes: Vec::new(), messages: 0, marked: Vec::new() }
    }

    /// Takes what has come.
    fn look(&mut self) {
        let mut room = [0; 65536];
        while let Ok(n) = self.socket.recv(&mut room) {
            let bth = parse(&room[..n]).unwrap().headers.bth;
            if bth.opcode == opcode::PROBE {
                self.probes.push(bth.psn);
                continue;
            }
            self.messages += 1;
            if bth.is_vervain() {
                self.marked.push(bth.psn);
            }
        }
    }

    fn echo(&self, qpn: u32, sequence: u32, credit: u32) {
        let echo = echo(self.socket.local_addr().unwrap(), qpn, sequence, credit);
        self.socket.send_to(&echo.bytes, (HERE, UDP_PORT)).unwrap();
    }
}

fn credit_packet(from: SocketAddr, headers: &Headers, payload: u32) -> Forged {
    let mut bytes = emit(headers, 0);
    bytes.extend(payload.to_be_bytes());
    let (SocketAddr::V4(v4), IpAddr::V4(to)) = (from, HERE) else { panic!("IPv4 only") };
    let icrc = Flow::v4((*v4.ip(), v4.port()), (to, UDP_PORT)).icrc(0, &bytes);
    bytes.extend(icrc);
    Forged { from, bytes, fate: Fate::Unwanted }
}

fn echo(from: SocketAddr, qpn: u32, sequence: u32, credit: u32) -> Forged {
    let bth = Bth { opcode: opcode::ECHO, pkey: 0xffff, dest_qpn: qpn, psn: sequence, ..Bth::default() };
    let deth = Some(Deth { qkey: 0, source_qpn: THEIR_QPN });
    credit_packet(from, &Headers { bth, deth, ..Headers::default() }, credit)
}

fn probe(from: SocketAddr, qpn: u32, deth: Deth) -> Forged {
    let bth = Bth { opcode: opcode::PROBE, pkey: 0xffff, dest_qpn: qpn, psn: 5, ..Bth::default() };
    credit_packet(from, &Headers { bth, deth: Some(deth), ..Headers::default() }, 0)
}

/// A message with the mark.
fn marked(from: SocketAddr, service: u8, qpn: u32, deth: Option<Deth>) -> Forged {
    let opcode = service | opcode::SEND_ONLY;
    let bth = Bth { opcode, pkey: 0xffff, dest_qpn: qpn, psn: 5, mark: VERVAIN, ..Bth::default() };
    credit_packet(from, &Headers { bth, deth, ..Headers::default() }, 0)
}

/// A UC QP whose peer is a socket, and that.
fn uc() -> (World, Side, Peer) {
    let (world, peer) = (World::new(&[QpType::Rc]), Peer::new());
    let side = Side::new(&world.context, QpType::Uc, 1);
    connect_to(&side.qp, address_of(&world.context, THERE), THEIR_QPN);
    (world, side, peer)
}

/// A first message, and the answer to its mark.
fn introduce(world: &World, side: &Side, peer: &mut Peer, credit: u32) {
    side.post(0, None);
    peer.look();
    let came = (peer.messages, peer.probes.len(), peer.marked.len());
    assert_eq!(came, (1, 0, 1), "the first message has the mark, and no probe comes with it");
    peer.echo(side.qp.qp_num(), peer.marked[0], credit);
    let (mut completed, before) = (0, Instant::now());
    while completed == 0 || world.roce.credit(THERE.into(), THEIR_QPN) != Some((Some(credit.into()), 0)) {
        completed += poll(&side.sent).len();
        assert!(before.elapsed() < LIMIT, "{:?}", world.roce.credit(THERE.into(), THEIR_QPN));
    }
    (peer.messages, peer.marked) = (0, Vec::new());
}

/// Polls until all messages have completed, in order, and have come.
fn complete(side: &Side, peer: &mut Peer, first: u64) {
    let (mut next, before) = (first, Instant::now());
    while next < MESSAGES || peer.messages < MESSAGES {
        for c in poll(&side.sent) {
            assert_eq!(c.wr_id, next);
            next += 1;
        }
        peer.look();
        assert!(before.elapsed() < LIMIT, "{next} completed, {} came", peer.messages);
    }
}

#[test]
fn a_sender_without_credit_waits_for_the_echo_and_goes_on() {
    alone("credit::a_sender_without_credit_waits_for_the_echo_and_goes_on", || {
        let (world, side, mut peer) = uc();
        const CREDIT: u64 = 128 << 10;
        introduce(&world, &side, &mut peer, CREDIT as u32);
        let begin = Instant::now();
        (0..MESSAGES).for_each(|n| side.post(n, None));
        peer.look();
        assert_eq!(peer.messages, CREDIT / COST, "what the credit has room for");
        // A probe for each quarter of the credit, one to spare, and one for each time that none was answered.
        let unanswered = (1..7).filter(|n| begin.elapsed() >= WAIT * ((1 << n) - 1)).count();
        assert!((4..=5 + unanswered).contains(&peer.probes.len()), "{:?}", peer.probes);
        let mut completed = poll(&side.sent).len();
        while completed < 64 && completed < (CREDIT / COST) as usize {
            completed += poll(&side.sent).len();
        }
        assert!(poll(&side.sent).is_empty(), "a message that has not left has completed");
        // The first part has come: as much may follow.
        let (probe, before) = (peer.probes[0], Instant::now());
        peer.echo(side.qp.qp_num(), probe, CREDIT as u32);
        while peer.messages == CREDIT / COST {
            completed += poll(&side.sent).len();
            peer.look();
            assert!(before.elapsed() < LIMIT);
        }
        assert!(peer.messages <= CREDIT / COST * 4 / 3, "{} messages", peer.messages);
        // All has come.
        peer.echo(side.qp.qp_num(), *peer.probes.last().unwrap(), 1 << 20);
        let done = peer.messages;
        complete(&side, &mut peer, completed as u64 + poll(&side.sent).len() as u64);
        assert!(peer.messages > done);
    });
}

#[test]
fn a_peer_that_does_not_answer_is_not_waited_for_for_long() {
    alone("credit::a_peer_that_does_not_answer_is_not_waited_for_for_long", || {
        let (world, side, mut peer) = uc();
        let begin = Instant::now();
        (0..MESSAGES).for_each(|n| side.post(n, None));
        peer.look();
        // One more without credit for each wait in vain.
        let tries = (1..4).filter(|n| begin.elapsed() >= FIRST_WAIT * ((1 << n) - 1)).count() as u64;
        let most = if begin.elapsed() > PATIENCE { MESSAGES } else { FIRST + tries };
        assert!((FIRST..=most).contains(&peer.messages), "{} messages, {tries} tries", peer.messages);
        complete(&side, &mut peer, 0);
        assert!(begin.elapsed() > PATIENCE, "{:?}", begin.elapsed());
        assert_eq!(world.roce.credit(THERE.into(), THEIR_QPN), Some((None, 0)));
        assert_eq!(peer.probes, [], "nothing but messages goes to a device that may not be Vervain's");
        assert!((5..20).contains(&peer.marked.len()), "{:?}", peer.marked);
        // One that has answered before has more time. Then it is as one that never has.
        peer.echo(side.qp.qp_num(), *peer.marked.last().unwrap(), 32 << 10);
        let before = Instant::now();
        while world.roce.credit(THERE.into(), THEIR_QPN) != Some((Some(32 << 10), 0)) {
            poll(&side.sent);
            assert!(before.elapsed() < LIMIT);
        }
        peer.messages = 0;
        let before = Instant::now();
        (0..MESSAGES).for_each(|n| side.post(n, None));
        complete(&side, &mut peer, 0);
        assert!(before.elapsed() > Duration::from_millis(500), "{:?}", before.elapsed());
    });
}

#[test]
fn forged_echoes_change_nothing_and_no_grant_passes_the_bound() {
    alone("credit::forged_echoes_change_nothing_and_no_grant_passes_the_bound", || {
        let (world, side, mut peer) = uc();
        introduce(&world, &side, &mut peer, 128 << 10);
        (0..10).for_each(|n| side.post(n, None));
        peer.look();
        let credit = || world.roce.credit(THERE.into(), THEIR_QPN).unwrap();
        let qpn = side.qp.qp_num();
        assert_eq!(credit().1, 10 * COST);
        let (there, stranger) = (SocketAddr::from((THERE, UDP_PORT)), SocketAddr::from(([127, 0, 0, 3], UDP_PORT)));
        let port = world.roce.port(HERE).unwrap();
        (10..20).for_each(|n| side.post(n, None));
        peer.look();
        let awaited = *peer.probes.last().expect("a quarter of the credit is under way");
        let before = credit();
        let (unwanted, sent) = (port.counters().unwanted.get(), port.counters().sent_packets.get());
        let start = resident();
        for round in 0..1000u32 {
            let train: Vec<Forged> = (0..64)
                .map(|n| match n % 2 {
                    0 => echo(there, qpn, awaited.wrapping_add(1 + round * 64 + n) & 0xff_ffff, 1 << 30),
                    _ => echo(stranger, qpn, awaited, 1 << 30),
                })
                .collect();
            take_in(&world, &train);
        }
        assert_eq!(credit(), before);
        assert_eq!(port.counters().unwanted.get() - unwanted, 64_000);
        assert_eq!(port.counters().sent_packets.get(), sent, "packets that went out");
        assert!(resident().saturating_sub(start) < 4 << 20);
        take_in(&world, &[echo(there, qpn, awaited, u32::MAX)]);
        assert_eq!(credit().0, Some(8 << 20));
        // Sent once more it is one that nobody waits for.
        take_in(&world, &[echo(there, qpn, awaited, 1)]);
        assert_eq!(credit().0, Some(8 << 20));
    });
}

#[test]
fn a_probe_is_echoed_once_and_only_to_a_sender_of_its_qp() {
    alone("credit::a_probe_is_echoed_once_and_only_to_a_sender_of_its_qp", || {
        let (mut world, side, peer) = uc();
        world.add(QpType::Ud);
        let ud = world.pair(QpType::Ud).b.qp_num();
        let (rc, uc) = (world.pair(QpType::Rc).b.qp_num(), side.qp.qp_num());
        let there = peer.socket.local_addr().unwrap();
        let stranger = SocketAddr::from(([127, 0, 0, 3], UDP_PORT));
        let port = world.roce.port(HERE).unwrap();
        let from = |qkey, source_qpn| Deth { qkey, source_qpn };
        let answers = |probe: Forged| {
            let counters = port.counters();
            let (sent, bytes, unwanted) =
                (counters.sent_packets.get(), counters.sent_bytes.get(), counters.unwanted.get());
            let (length, before) = (probe.bytes.len() as u64, Instant::now());
            take_in(&world, &[probe]);
            let answers = || counters.sent_packets.get() - sent;
            // The progress thread may be the one that sends it.
            while answers() + counters.unwanted.get() == unwanted {
                assert!(before.elapsed() < LIMIT, "neither answered nor counted");
            }
            assert!(counters.sent_bytes.get() - bytes <= length.max(ECHO), "an answer is larger than the question");
            assert_eq!(answers() + counters.unwanted.get() - unwanted, 1);
            answers()
        };
        assert_eq!(answers(probe(there, uc, from(0, THEIR_QPN))), 1);
        let mut room = [0; 100];
        let n = peer.socket.recv(&mut room).unwrap();
        let echo = parse(&room[..n]).unwrap();
        assert_eq!((echo.headers.bth.opcode, echo.headers.bth.psn), (opcode::ECHO, 5));
        assert_eq!(echo.headers.deth, Some(from(0, uc)));
        assert_eq!(u64::from(u32::from_be_bytes(echo.payload.try_into().unwrap())), port.room() / 2);
        assert_eq!(answers(probe(stranger, uc, from(0, THEIR_QPN))), 0, "not its peer's address");
        assert_eq!(answers(probe(there, uc, from(0, THEIR_QPN + 1))), 0, "not its peer");
        assert_eq!(answers(probe(there, rc, from(0, THEIR_QPN))), 0, "RC");
        // One that this process would give: packets for others are handed on.
        assert_eq!(answers(probe(there, uc ^ 1000, from(0, THEIR_QPN))), 0, "no QP");
        assert_eq!(answers(probe(stranger, ud, from(QKEY, 17))), 1, "anybody may send datagrams");
        assert_eq!(answers(probe(stranger, ud, from(QKEY + 1, 17))), 0, "with the Q_Key");
        // A message with the mark asks as well. Those here find no receive, and are dropped.
        let listener = world.pair(QpType::Ud).a.qp_num();
        assert_eq!(answers(marked(there, opcode::UC, uc, None)), 1);
        assert_eq!(answers(marked(stranger, opcode::UC, uc, None)), 0, "not its peer's address");
        assert_eq!(answers(marked(stranger, opcode::UD, listener, Some(from(QKEY, 17)))), 1);
        assert_eq!(answers(marked(there, opcode::RC, rc, None)), 0, "RC");
        world.unchanged("after probes");
        world.works();
    });
}

/// Receives of a QP that gets more messages.
const RECEIVES: u64 = 4;

/// Checks that all messages from `first` on come in order to a program that posts a receive for each that it finds,
/// however many one poll receives. Returns the time that it takes.
fn all_come_in_order(a: &Side, b: &Side, first: u64) -> Duration {
    let (mut next, before) = (first, Instant::now());
    while next < first + MESSAGES {
        for c in poll(&b.received) {
            assert_eq!(c.wr_id, next);
            b.post_receive(next + RECEIVES);
            next += 1;
        }
        poll(&a.sent);
        assert!(before.elapsed() < LIMIT, "{next} came");
    }
    before.elapsed()
}

#[test]
fn datagrams_wait_for_a_program_that_polls_and_has_no_connection() {
    alone("credit::datagrams_wait_for_a_program_that_polls_and_has_no_connection", || {
        let world = World::new(&[QpType::Ud]);
        let here = address_of(&world.context, Ipv4Addr::LOCALHOST);
        let [a, b] = [1, RECEIVES as u32].map(|receives| Side::new(&world.context, QpType::Ud, receives));
        connect_to(&a.qp, here, 0);
        connect_to(&b.qp, here, 0);
        let ah = Ah::create(&a.pd, &here).unwrap();
        (0..RECEIVES).for_each(|n| b.post_receive(n));
        // Nothing more comes to the socket, so the program's polls do not look at earlier packets. The progress thread
        // does, every 100 us; otherwise they would wait until the program is next kept from polling, some seconds
        // later.
        let times = (0..40).map(|round| {
            (0..MESSAGES).for_each(|n| a.post(n, Some(UdDest { ah: &ah, qpn: b.qp.qp_num(), qkey: QKEY })));
            all_come_in_order(&a, &b, round * MESSAGES)
        });
        let late: Vec<Duration> = times.filter(|time| *time > Duration::from_secs(1)).collect();
        assert!(late.len() < 2, "{late:?} of 40");
    });
}

/// Messages to a QP of the same process that has few receives.
fn overrun(qp_type: QpType) {
    const TRIES: u32 = 20;
    let mut world = World::new(&[QpType::Rc]);
    let here = address_of(&world.context, Ipv4Addr::LOCALHOST);
    let [a, b] = [1, RECEIVES as u32].map(|receives| Side::new(&world.context, qp_type, receives));
    connect_to(&a.qp, here, b.qp.qp_num());
    connect_to(&b.qp, here, a.qp.qp_num());
    let ah = (qp_type == QpType::Ud).then(|| Ah::create(&a.pd, &here).unwrap());
    let send = |n| a.post(n, ah.as_ref().map(|ah| UdDest { ah, qpn: b.qp.qp_num(), qkey: QKEY }));
    // To a QP that never had a receive nothing comes, now or later.
    let port = world.roce.port(HERE).unwrap();
    let dropped = || port.counters().no_receive.get();
    let (drops, before) = (dropped(), Instant::now());
    send(0);
    let mut sent = 0;
    while sent == 0 || dropped() == drops {
        sent += poll(&a.sent).len();
        assert!(poll(&b.received).is_empty());
        assert!(before.elapsed() < LIMIT, "it was not dropped");
    }
    (0..RECEIVES).for_each(|n| b.post_receive(n));
    assert!(poll(&b.received).is_empty());
    (0..MESSAGES).for_each(send);
    all_come_in_order(&a, &b, 0);
    // A program that does not post receives gets as many messages as there are receives. The others are given up after
    // a while, and do not hold up reliable traffic: it passes while they wait, at least once if the machine does not
    // delay this program for longer.
    let mut passes_them = || {
        let drops = dropped();
        (0..MESSAGES).for_each(send);
        let (mut came, mut sent, before) = (0, 0, Instant::now());
        while came < RECEIVES {
            came += poll(&b.received).len() as u64;
            sent += poll(&a.sent).len() as u64;
            assert!(before.elapsed() < LIMIT, "{came} came");
        }
        world.works();
        let passed = dropped() == drops;
        while sent < MESSAGES {
            sent += poll(&a.sent).len() as u64;
            assert!(before.elapsed() < LIMIT, "{sent} sent");
        }
        std::thread::sleep(Duration::from_millis(100));
        assert!(poll(&b.received).is_empty());
        passed
    };
    let passed = (0..TRIES).any(|n| {
        if n > 0 {
            (0..RECEIVES).for_each(|n| b.post_receive(n));
        }
        passes_them()
    });
    assert!(passed, "RC was held up until the messages without receives were dropped, each time");
    // When there are receives again, what is sent then comes.
    (0..RECEIVES).for_each(|n| b.post_receive(1000 + n));
    send(0);
    let before = Instant::now();
    while poll(&b.received).is_empty() {
        assert!(before.elapsed() < LIMIT, "no message came");
    }
    world.unchanged("after messages without receives");
}

#[test]
fn uc_messages_wait_for_a_program_that_posts_receives_and_for_no_other() {
    alone("credit::uc_messages_wait_for_a_program_that_posts_receives_and_for_no_other", || overrun(QpType::Uc));
}

#[test]
fn datagrams_wait_for_a_program_that_posts_receives_and_for_no_other() {
    alone("credit::datagrams_wait_for_a_program_that_posts_receives_and_for_no_other", || overrun(QpType::Ud));
}

/// Messages that wait for receives, to a QP of the same process.
fn each_is_counted_once(qp_type: QpType) {
    let world = World::new(&[QpType::Rc]);
    let here = address_of(&world.context, Ipv4Addr::LOCALHOST);
    let [a, b] = [1, RECEIVES as u32].map(|receives| Side::new(&world.context, qp_type, receives));
    connect_to(&a.qp, here, b.qp.qp_num());
    connect_to(&b.qp, here, a.qp.qp_num());
    let ah = (qp_type == QpType::Ud).then(|| Ah::create(&a.pd, &here).unwrap());
    let received = || own_sums().expect("a file of counters")[Word::ReceivedPackets as usize];
    let before = received();
    (0..RECEIVES).for_each(|n| b.post_receive(n));
    (0..MESSAGES).for_each(|n| a.post(n, ah.as_ref().map(|ah| UdDest { ah, qpn: b.qp.qp_num(), qkey: QKEY })));
    all_come_in_order(&a, &b, 0);
    assert_eq!(received() - before, MESSAGES);
}

#[test]
fn messages_that_wait_for_a_receive_are_counted_once() {
    const TEST: &str = "credit::messages_that_wait_for_a_receive_are_counted_once";
    let directory = tempfile::tempdir().unwrap();
    let variables = [("VERVAIN_SYSFS", directory.path().to_str().unwrap())];
    alone_with(TEST, &variables, || [QpType::Uc, QpType::Ud].into_iter().for_each(each_is_counted_once));
}

/// A thread that takes packets from a socket handles them under the same lock as [`take_in`].
fn until_nobody_receives(world: &World) {
    take_in(world, &[]);
}

/// Messages without a receive to a QP that is reset while they wait for one.
fn reset_while_they_wait(qp_type: QpType) {
    const MESSAGES: u64 = 4;
    let world = World::new(&[QpType::Rc]);
    let here = address_of(&world.context, Ipv4Addr::LOCALHOST);
    let [a, b] = [1, MESSAGES as u32].map(|receives| Side::new(&world.context, qp_type, receives));
    connect_to(&a.qp, here, b.qp.qp_num());
    let ah = (qp_type == QpType::Ud).then(|| Ah::create(&a.pd, &here).unwrap());
    let send = |n| a.post(n, ah.as_ref().map(|ah| UdDest { ah, qpn: b.qp.qp_num(), qkey: QKEY }));
    let none_comes = || {
        connect_to(&b.qp, here, a.qp.qp_num());
        b.post_receive(0);
        let port = world.roce.port(HERE).unwrap();
        let all = port.counters().received_packets.get() + MESSAGES;
        (0..MESSAGES).for_each(send);
        let (mut sent, mut came, before) = (0, 0, Instant::now());
        while sent < MESSAGES || came == 0 || port.counters().received_packets.get() < all {
            sent += poll(&a.sent).len() as u64;
            came += poll(&b.received).len();
            assert!(before.elapsed() < LIMIT, "{sent} sent, {came} came");
        }
        // Probes and echoes are packets too: the last message may still be in the batch, which a poll that finds
        // nothing sends. Nor is anything in the socket, once as many have come as have left.
        let counts = || [port.counters().sent_packets.get(), port.counters().received_packets.get()];
        let mut quiet = 0;
        while quiet < 3 {
            let counted = counts();
            assert_eq!(poll(&a.sent).len() + poll(&b.received).len(), 0, "more than one message has a receive");
            quiet = if counts() == counted && counted[0] == counted[1] { quiet + 1 } else { 0 };
            assert!(before.elapsed() < LIMIT, "{counted:?} packets left and came");
        }
        // The thread that has taken the last one from the socket has looked at it too.
        until_nobody_receives(&world);
        let reset = || b.qp.modify(&QpAttr { qp_state: QpState::Reset, ..QpAttr::default() }, attr::STATE).unwrap();
        reset();
        // No thread goes on with one that it found before the reset.
        until_nobody_receives(&world);
        connect_to(&b.qp, here, a.qp.qp_num());
        (0..MESSAGES).for_each(|n| b.post_receive(n));
        let before = Instant::now();
        while before.elapsed() < Duration::from_millis(100) {
            let came = poll(&b.received);
            assert!(came.is_empty(), "messages to the QP as it was before the reset: {came:?}");
        }
        reset();
    };
    (0..10).for_each(|_| none_comes());
}

#[test]
fn uc_messages_that_wait_for_a_receive_end_with_the_qp() {
    alone("credit::uc_messages_that_wait_for_a_receive_end_with_the_qp", || reset_while_they_wait(QpType::Uc));
}

#[test]
fn datagrams_that_wait_for_a_receive_end_with_the_qp() {
    alone("credit::datagrams_that_wait_for_a_receive_end_with_the_qp", || reset_while_they_wait(QpType::Ud));
}
