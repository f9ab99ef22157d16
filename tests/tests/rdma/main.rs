//! `crates/verbs/rdma` over the device: every operation with its data, errors, events. The tests that need a device are
//! marked as ignored; those at the end of this file run this binary under `vervain run`, by memory, in packets and on
//! InfiniBand, and have it run them.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use vervain_rdma::*;
use vervain_tests::{Job, under_vervain, unswayed, way};

use side::*;

mod datagrams;
mod memory;
mod reuse;
mod sharing;
mod side;

fn sends_and_writes(transport: Transport) {
    let (a, b) = pair(transport);
    let data = pattern(1, 30_001);
    a.region.write(5, &data);

    b.qp.receive(RecvRequest::new(&[b.region.slice(7..1007), b.region.slice(2000..LEN)]).id(11)).expect("posted");
    a.qp.post(SendRequest::send(&[a.region.slice(5..30_006)]).id(12).signaled()).expect("posted");
    a.done(12, Opcode::Send);
    let received = b.done(11, Opcode::Receive);
    assert_eq!((received.bytes(), received.immediate()), (30_001, None));
    assert_eq!((b.bytes(7, 1000), b.bytes(2000, 29_001)), (data[..1000].to_vec(), data[1000..].to_vec()));
    assert_eq!(b.bytes(1007, 993), vec![0; 993]);

    b.qp.receive(RecvRequest::new(&[b.region.slice(0..64)]).id(21)).expect("posted");
    // Inline: the memory may change as soon as the call is back.
    a.qp.post(SendRequest::send_imm(&[a.region.slice(5..37)], 0xdead_0001).id(22).inline().solicited())
        .expect("posted");
    a.region.fill(5..37, 0xee);
    let received = b.done(21, Opcode::Receive);
    assert_eq!((received.bytes(), received.immediate()), (32, Some(0xdead_0001)));
    assert_eq!(b.bytes(0, 32), data[..32]);

    b.region.fill(0..LEN, 0);
    a.region.write(5, &data);
    a.qp.post(SendRequest::write(&[a.region.slice(5..30_006)], b.there(9)).id(31).signaled()).expect("posted");
    a.done(31, Opcode::Write);
    b.qp.receive(RecvRequest::new(&[]).id(41)).expect("posted");
    let sges = [a.region.slice(5..13)];
    let last = SendRequest::write_imm(&sges, b.there(32_000), 7).id(42).signaled();
    a.qp.post(last).expect("posted");
    a.done(42, Opcode::Write);
    let received = b.done(41, Opcode::ReceiveWriteImm);
    assert_eq!((received.bytes(), received.immediate()), (8, Some(7)));
    assert_eq!((b.bytes(9, 30_001), b.bytes(32_000, 8)), (data.clone(), data[..8].to_vec()));
    assert_eq!((b.region.load_byte(8), b.region.load_byte(30_010)), (0, 0));
    a.quiet();
    b.quiet();
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn rc_sends_and_writes() {
    sends_and_writes(Transport::Rc);
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn uc_sends_and_writes() {
    sends_and_writes(Transport::Uc);
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn rc_reads_and_does_atomics() {
    let (a, b) = pair(Transport::Rc);
    let data = pattern(3, 30_000);
    b.region.write(8, &data);
    let into = [a.region.slice(3..10_003), a.region.slice(20_000..40_000)];
    a.qp.post(SendRequest::read(&into, b.there(8)).id(1).signaled()).expect("posted");
    assert_eq!(a.done(1, Opcode::Read).bytes(), 30_000);
    assert_eq!((a.bytes(3, 10_000), a.bytes(20_000, 20_000)), (data[..10_000].to_vec(), data[10_000..].to_vec()));

    b.region.store(16, u64::MAX - 1);
    let old = [a.region.slice(0..8)];
    a.qp.post(SendRequest::fetch_add(&old, b.there(16), 5).id(2).signaled()).expect("posted");
    a.done(2, Opcode::FetchAdd);
    assert_eq!((a.region.load(0), b.region.load(16)), (u64::MAX - 1, 3));
    for (id, expected, result) in [(3, 4, 3), (4, 3, 99)] {
        let swap = SendRequest::compare_swap(&old, b.there(16), expected, 99).id(id).fence().signaled();
        a.qp.post(swap).expect("posted");
        a.done(id, Opcode::CompareSwap);
        assert_eq!((a.region.load(0), b.region.load(16)), (3, result));
    }
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn datagrams_with_their_grh() {
    let (a, b) = pair(Transport::Ud);
    let ah = Ah::new(&a.pd, &b.endpoint(), &a.path).expect("an AH");
    let data = pattern(5, 1000);
    a.region.write(0, &data);
    for (id, immediate) in [(1, None), (2, Some(0xfeed))] {
        b.region.fill(0..LEN, 0);
        b.qp.receive(RecvRequest::new(&[b.region.slice(0..2000)]).id(id)).expect("posted");
        let sges = [a.region.slice(0..1000)];
        let request = match immediate {
            None => SendRequest::datagram(&sges, &ah, b.qp.number(), QKEY),
            Some(value) => SendRequest::datagram_imm(&sges, &ah, b.qp.number(), QKEY, value),
        };
        a.qp.post(request.id(id).signaled()).expect("posted");
        a.done(id, Opcode::Send);
        let received = b.done(id, Opcode::Receive);
        assert_eq!((received.bytes() as usize, received.immediate()), (GRH_BYTES + 1000, immediate));
        assert_eq!((received.source_qp(), received.has_grh()), (a.qp.number(), a.path.gid_index.is_some()));
        assert_eq!(b.bytes(GRH_BYTES, 1001), [data.as_slice(), &[0]].concat());
    }
    // A Q_Key that is not the receiver's: dropped.
    b.qp.receive(RecvRequest::new(&[b.region.slice(0..2000)])).expect("posted");
    let stray = [a.region.slice(0..8)];
    a.qp.post(SendRequest::datagram(&stray, &ah, b.qp.number(), QKEY + 1).id(3).signaled()).expect("posted");
    a.done(3, Opcode::Send);
    b.quiet();
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn requests_go_to_the_qps_that_they_are_for() {
    let (a, b) = pair(Transport::Ud);
    let connected = Side::new(Transport::Rc, |q| q, |_| ());
    let ah = Ah::new(&a.pd, &b.endpoint(), &a.path).expect("an AH");
    let foreign = Ah::new(&b.pd, &b.endpoint(), &b.path).expect("an AH");
    let sges = [a.region.slice(0..8)];
    let datagram = |ah| SendRequest::datagram(&sges, ah, b.qp.number(), QKEY);
    let refused = |qp: &Qp, request| {
        let single = qp.post(request).expect_err("refused");
        assert_eq!((single.errno, single.posted), (22, 0), "{single}");
        let mut list = SendList::with_capacity(1);
        list.push(request);
        assert_eq!(qp.post_list(&mut list).expect_err("refused"), single);
    };
    refused(&a.qp, SendRequest::send(&sges));
    refused(&a.qp, SendRequest::write(&sges, b.there(0)));
    refused(&a.qp, datagram(&foreign));
    refused(&connected.qp, datagram(&ah));
    let mut mixed = SendList::with_capacity(2);
    mixed.push(datagram(&ah));
    mixed.push(datagram(&foreign));
    assert_eq!(a.qp.post_list(&mut mixed).expect_err("refused").posted, 0);
    a.quiet();
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn lists_are_posted_whole_and_again() {
    let (a, b) = pair(Transport::Rc);
    a.region.write(0, &pattern(9, 1024));
    let mut sends = SendList::with_capacity(2);
    let mut receives = RecvList::with_capacity(2);
    for i in 0..16 {
        let at = i * 64;
        let sges = [a.region.slice(at..at + 16), a.region.slice(at + 16..at + 64)];
        let send = SendRequest::send(&sges).id(i as u64);
        sends.push(if i == 15 { send.signaled() } else { send });
        receives.push(RecvRequest::new(&[b.region.slice(at..at + 64)]).id(100 + i as u64));
    }
    assert_eq!((sends.len(), receives.len()), (16, 16));
    for _ in 0..3 {
        b.region.fill(0..LEN, 0);
        b.qp.receive_list(&mut receives).expect("posted");
        a.qp.post_list(&mut sends).expect("posted");
        a.done(15, Opcode::Send);
        let received: Vec<_> = b.take(16).iter().map(|c| (c.id(), c.status())).collect();
        assert_eq!(received, (100..116).map(|id| (id, Status::Success)).collect::<Vec<_>>());
        assert_eq!(b.bytes(0, 1024), pattern(9, 1024));
    }
    a.quiet();
    // Filled anew, beyond what the queue holds: those before the one that found no room are posted.
    receives.clear();
    b.qp.receive_list(&mut receives).expect("nothing is nothing");
    let sges = [b.region.slice(0..8)];
    for _ in 0..5000 {
        receives.push(RecvRequest::new(&sges));
    }
    let full = b.qp.receive_list(&mut receives).expect_err("full");
    assert!(full.is_full() && full.posted >= 32, "{full}");
    assert!(b.qp.receive(RecvRequest::new(&sges)).expect_err("full").is_full());
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn signal_all_completes_every_request() {
    let (a, b) = pair_with(Transport::Rc, |q| q.signal_all(true), |_| ());
    let sges = [a.region.slice(0..8)];
    a.qp.post(SendRequest::write(&sges, b.there(0)).id(1)).expect("posted");
    a.done(1, Opcode::Write);
    let (c, d) = pair(Transport::Rc);
    let sges = [c.region.slice(0..8)];
    c.qp.post(SendRequest::write(&sges, d.there(0)).id(1)).expect("posted");
    c.quiet();
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn a_wrong_key_is_a_remote_access_error_and_an_event() {
    let (a, b) = pair(Transport::Rc);
    while b.context.next_async_event().expect("events").is_some() {}
    let sges = [a.region.slice(0..8)];
    let wrong = RemoteAddr { rkey: b.region.rkey() ^ 0x5a00, ..b.there(0) };
    a.qp.post(SendRequest::write(&sges, wrong).id(1)).expect("posted");
    a.qp.post(SendRequest::write(&sges, b.there(0)).id(2)).expect("posted");
    let ends: Vec<_> = a.take(2).iter().map(|c| (c.id(), c.status())).collect();
    assert_eq!(ends, [(1, Status::RemoteAccess), (2, Status::Flushed)]);
    assert_eq!(a.qp.state().expect("a state"), QpState::Error);
    let event = b.event(&[EventKind::QpAccessError]);
    assert_eq!(event.source, EventSource::Qp(b.qp.number()));
    assert_eq!(b.qp.state().expect("a state"), QpState::Error);
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn each_end_of_the_range_and_each_right_is_checked() {
    let beyond = |b: &Side| b.there(LEN as u64 - 7);
    for (name, to, status) in [
        ("beyond the end", &beyond as &dyn Fn(&Side) -> RemoteAddr, Status::RemoteAccess),
        ("no such key", &|b: &Side| RemoteAddr { rkey: 0, ..b.there(0) }, Status::RemoteAccess),
    ] {
        let (a, b) = pair(Transport::Rc);
        a.qp.post(SendRequest::read(&[a.region.slice(0..8)], to(&b)).id(1)).expect("posted");
        assert_eq!(a.take(1)[0].status(), status, "{name}");
    }
    let (a, b) = pair(Transport::Rc);
    let read_only = b.pd.region(100, Access::REMOTE_READ).expect("a region");
    a.qp.post(SendRequest::write(&[a.region.slice(0..8)], read_only.remote().at(0)).id(1)).expect("posted");
    assert_eq!(a.take(1)[0].status(), Status::RemoteAccess);
    // Memory of another domain is none of this QP's.
    let (a, b) = pair(Transport::Rc);
    a.qp.post(SendRequest::write(&[b.region.slice(0..8)], b.there(0)).id(1)).expect("posted");
    assert_eq!(a.take(1)[0].status(), Status::LocalProtection);
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn a_peer_that_is_gone_exceeds_the_retries_and_one_without_receives_the_rnr_retries() {
    // The answer that there is no receive must not be lost to a short timeout on a busy machine.
    let no_second_wait = |path: &mut PathOptions| (path.rnr_retry, path.min_rnr_timer) = (1, 1);
    let hasty = |path: &mut PathOptions| (path.timeout, path.retry_count) = (8, 1);
    let (a, b) = pair_with(Transport::Rc, |q| q, no_second_wait);
    a.qp.post(SendRequest::send(&[a.region.slice(0..8)]).id(1)).expect("posted");
    assert_eq!(a.take(1)[0].status(), Status::RnrRetryExceeded);
    drop(b);

    let (a, b) = (Side::new(Transport::Rc, |q| q, hasty), Side::new(Transport::Rc, |q| q, hasty));
    let mut gone = b.endpoint();
    drop(b);
    gone.memory = None;
    a.qp.connect(&gone, &a.path).expect("connected");
    a.qp.post(SendRequest::send(&[a.region.slice(0..8)]).id(1)).expect("posted");
    let done = a.take(1)[0];
    assert_eq!(done.status(), Status::RetryExceeded);
    assert_eq!(done.status().to_string(), "no answer from the peer in all retries (status 12)");
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn memory_outlives_its_handle_until_it_is_deregistered() {
    let (a, b) = pair(Transport::Rc);
    let region = b.pd.region(LEN, Access::REMOTE).expect("a region");
    region.write(0, b"still here");
    let there = region.remote().at(0);
    drop(region);
    a.qp.post(SendRequest::read(&[a.region.slice(0..10)], there).id(1).signaled()).expect("posted");
    a.done(1, Opcode::Read);
    assert_eq!(a.bytes(0, 10), b"still here");

    let region = b.pd.region(LEN, Access::REMOTE).expect("a region");
    let there = region.remote().at(0);
    region.deregister().expect("deregistered");
    a.qp.post(SendRequest::read(&[a.region.slice(0..10)], there).id(2).signaled()).expect("posted");
    assert_eq!(a.take(1)[0].status(), Status::RemoteAccess);

    // Handles may go in any order: what a QP needs stays.
    let (a, b) = pair(Transport::Rc);
    let there = b.there(0);
    let Side { context, pd, cq, region, qp, .. } = b;
    drop((context, pd, cq, region));
    a.region.write(0, b"x");
    a.qp.post(SendRequest::write(&[a.region.slice(0..1)], there).id(3).signaled()).expect("posted");
    a.done(3, Opcode::Write);
    drop(qp);
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn foreign_memory_is_read_and_written_where_it_lies() {
    let (a, b) = pair(Transport::Rc);
    let mut words = vec![0u64; 1024];
    // SAFETY: the vector lives until `deregister` below, is not touched in between, and the CPU can read it.
    let foreign = unsafe { b.pd.register_foreign(words.as_mut_ptr().cast(), 8192, Access::REMOTE) };
    let foreign = foreign.expect("registered");
    a.region.store(0, 0x0102_0304);
    a.qp.post(SendRequest::write(&[a.region.slice(0..8)], foreign.remote().at(80)).id(1).signaled()).expect("posted");
    a.done(1, Opcode::Write);
    b.qp.post(SendRequest::write(&[foreign.slice(80..88)], a.there(800)).id(2).signaled()).expect("posted");
    b.done(2, Opcode::Write);
    foreign.deregister().expect("deregistered");
    assert_eq!((words[10], words[9], a.region.load(800)), (0x0102_0304, 0, 0x0102_0304));
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn a_sleeper_is_woken_for_its_cq() {
    let (a, b) = pair(Transport::Rc);
    let channel = CompChannel::new(&b.context).expect("a channel");
    channel.set_nonblocking(true).expect("non-blocking");
    let cqs = [(); 2].map(|()| Cq::new(&b.context, 16, Some(&channel), 0).expect("a CQ"));
    assert_ne!(cqs[0].id(), cqs[1].id());
    let qp = Qp::builder(Transport::Rc, &b.pd, &cqs[0], &cqs[1]).build().expect("a QP");
    let sender = Qp::builder(Transport::Rc, &a.pd, &a.cq, &a.cq).build().expect("a QP");
    for (qp, path) in [(&qp, &b.path), (&sender, &a.path)] {
        qp.init(path, Access::REMOTE).expect("INIT");
    }
    qp.connect(&sender.endpoint(&a.path).expect("an endpoint"), &b.path).expect("connected");
    sender.connect(&qp.endpoint(&b.path).expect("an endpoint"), &a.path).expect("connected");

    let sges = [a.region.slice(0..8)];
    let receive = |id| qp.receive(RecvRequest::new(&[b.region.slice(0..8)]).id(id)).expect("posted");
    cqs[1].request_notify(true).expect("armed");
    assert!(channel.next_event().expect("events").is_none());
    receive(1);
    receive(2);
    sender.post(SendRequest::send(&sges)).expect("posted");
    sender.post(SendRequest::send(&sges).solicited().signaled()).expect("posted");
    let until = Instant::now() + PATIENCE;
    let event = loop {
        match channel.next_event().expect("events") {
            Some(event) => break event,
            None => assert!(Instant::now() < until, "no event"),
        }
    };
    assert_eq!(event.cq(), cqs[1].id());
    drop(event);
    // The event was for the second: both are there, and there is no other event.
    let mut done = [Completion::default(); 4];
    assert_eq!(cqs[1].poll(&mut done).expect("completions"), 2);
    assert_eq!((done[0].id(), done[1].id()), (1, 2));
    assert!(channel.next_event().expect("events").is_none());
    assert!(a.cq.request_notify(false).expect_err("no channel").to_string().contains("without a channel"));
}

/// Far more events than one acknowledgement takes, of two CQs; what is owed at the end is paid when a CQ goes, which
/// else would wait for ever.
#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn events_are_acknowledged_many_at_once() {
    let [a, b] = [(); 2].map(|()| Side::new(Transport::Rc, |q| q, |_| ()));
    let channel = CompChannel::new(&a.context).expect("a channel");
    channel.set_nonblocking(true).expect("non-blocking");
    let [cq, other] = [(); 2].map(|()| Cq::new(&a.context, 16, Some(&channel), 0).expect("a CQ"));
    assert!(cq.capacity() >= 16);
    let qp = Qp::builder(Transport::Rc, &a.pd, &cq, &other).build().expect("a QP");
    qp.init(&a.path, Access::REMOTE).expect("INIT");
    a.join(&qp, &b, &b.qp);
    let mut done = [Completion::default(); 2];
    for id in 0..150 {
        cq.request_notify(false).expect("armed");
        qp.post(SendRequest::write(&[a.region.slice(0..8)], b.there(0)).id(id).signaled()).expect("posted");
        let mut fd = libc::pollfd { fd: channel.fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, whose descriptor is open as long as the channel.
        assert_eq!(unsafe { libc::poll(&raw mut fd, 1, 5000) }, 1, "no event {id}");
        let event = channel.next_event().expect("events").expect("it was readable");
        assert_eq!(event.cq(), cq.id());
        // By mistake of another CQ: acknowledged at once.
        event.acknowledge_later(if id % 10 == 0 { &other } else { &cq });
        assert_eq!(cq.poll(&mut done).expect("completions"), 1);
        assert_eq!((done[0].id(), done[0].status()), (id, Status::Success));
    }
    assert!(channel.next_event().expect("events").is_none());
    drop((qp, cq, other));
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn devices_and_ports_say_what_they_are() {
    let library = Library::load().expect("libibverbs");
    let devices = library.devices().expect("devices");
    let context = Context::open(&library, Some(devices[0].name())).expect("open");
    assert_eq!(context.name(), devices[0].name());
    let attr = context.attr().expect("attributes");
    assert!(attr.ports >= 1 && attr.max_qp > 100 && attr.max_sge >= 2 && attr.max_dest_rd_atomic >= 1, "{attr:?}");
    assert_ne!((attr.atomics, attr.identity.node_guid), (AtomicCap::None, [0; 8]));
    assert!(attr.max_region >= 1 << 32 && attr.max_rd_atomic >= 1 && attr.max_pd > 10, "{attr:?}");
    assert!(attr.page_sizes & 4096 != 0 && attr.capabilities.contains(Capabilities::RNR_NAK), "{attr:?}");
    let port = context.port(1).expect("a port");
    assert_eq!(port.state, PortState::Active);
    assert!(port.gbps() > 1.0 && port.active_mtu.is_some() && port.max_message >= 1 << 20, "{port:?}");
    let best = context.best_gid(1).expect("GIDs");
    if std::env::var_os("VERVAIN_LINK_LAYER").is_some() {
        assert_eq!((port.link_layer, best, port.lid == 0), (LinkLayer::InfiniBand, None, false));
    } else {
        assert_eq!((port.link_layer, port.lid), (LinkLayer::Ethernet, 0));
        let best = best.expect("a GID");
        assert!(best.kind == GidType::RoceV2 && best.ip().is_some(), "{best:?}");
        assert!(context.gids().expect("GIDs").contains(&best));
    }
    let path = PathOptions::of(&context, 1).expect("a path");
    assert_eq!(path.gid_index.map(u32::from), best.map(|b| b.index));
    assert_eq!((Some(path.mtu), path.max_rd_atomic), (port.active_mtu, attr.max_rd_atomic));
    assert_eq!(context.pkey(1, 0).expect("a P_Key"), 0xffff);
    let beyond = context.port(200).expect_err("no such port");
    assert_eq!(beyond.errno(), Some(22));
    assert!(beyond.to_string().starts_with(&format!("ibv_query_port failed for port 200 of {}", context.name())));
    let none = Context::open(&library, Some("nothing0")).err().expect("no such device");
    assert!(none.to_string().contains("no RDMA device called nothing0; there is"), "{none}");
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn impossible_objects_are_refused_in_a_sentence() {
    let side = Side::new(Transport::Rc, |q| q, |_| ());
    let other = Side::new(Transport::Rc, |q| q, |_| ());
    let says = |error: Error, words: &str| assert!(error.to_string().contains(words), "{error}");
    says(Cq::new(&side.context, 0, None, 0).err().expect("empty"), "ibv_create_cq failed for a CQ of 0 entries on ");
    says(side.pd.region(0, Access::REMOTE).err().expect("empty"), "at least one byte");
    let rights = Access::REMOTE_WRITE;
    says(
        side.pd.region(64, rights).err().expect("no local right"),
        "ibv_reg_mr failed for 64 bytes with Access(REMOTE_WRITE)",
    );
    let builder = Qp::builder(Transport::Rc, &side.pd, &side.cq, &side.cq);
    says(builder.clone().max_send(1 << 30).build().err().expect("too many"), "a RC QP of 1073741824 sends");
    let mixed = Qp::builder(Transport::Rc, &side.pd, &side.cq, &other.cq);
    says(mixed.build().err().expect("two devices"), "of another open device");
    let channel = CompChannel::new(&other.context).expect("a channel");
    says(Cq::new(&side.context, 8, Some(&channel), 0).err().expect("two devices"), "of another open device");
    let fresh = builder.build().expect("a QP");
    says(fresh.ready_to_send(&side.path).expect_err("from RESET"), "ibv_modify_qp failed for RC QP ");
    assert_eq!(fresh.state().expect("a state"), QpState::Reset);
    side.qp.fail().expect("ERR");
    assert_eq!(side.qp.state().expect("a state"), QpState::Error);
    side.qp.reset().expect("RESET");
    assert_eq!(side.qp.state().expect("a state"), QpState::Reset);
}

#[test]
#[ignore = "run under Vervain, by several_devices"]
fn each_device_and_port_can_be_had() {
    let library = Library::load().expect("libibverbs");
    let devices = library.devices().expect("devices");
    assert_eq!(devices.len(), 2);
    for (i, device) in devices.iter().enumerate() {
        let context = device.open().expect("open");
        let by_name = Context::open(&library, Some(device.name())).expect("open");
        assert_eq!((context.name(), by_name.name()), (device.name(), devices[i].name()));
        assert_eq!(
            context.attr().expect("attributes").identity.node_guid,
            by_name.attr().expect("attributes").identity.node_guid
        );
        assert_eq!(context.attr().expect("attributes").ports, 3);
        for port in 1..=3 {
            assert_eq!(context.port(port).expect("a port").state, PortState::Active);
            assert_eq!(PathOptions::of(&context, port).expect("a path").port, port);
        }
    }
    assert_ne!(devices[0].name(), devices[1].name());
}

/// The endpoints go over a pipe, as text.
#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn two_processes_reach_each_others_memory() {
    let side = Side::new(Transport::Rc, |q| q, |_| ());
    let mut peer = Command::new(this())
        .args(["--ignored", "--exact", "--nocapture", "serves_a_peer"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this binary again");
    let mut lines = BufReader::new(peer.stdout.take().expect("a pipe")).lines();
    // The test harness says a word or two before.
    let line = lines.find_map(|l| l.ok()?.strip_prefix(MARK).map(str::to_owned)).expect("the peer's endpoint");
    let remote: Endpoint = serde_json::from_str(&line).expect("an endpoint");
    side.qp.connect(&remote, &side.path).expect("connected");
    let mut stdin = peer.stdin.take().expect("a pipe");
    writeln!(stdin, "{}", serde_json::to_string(&side.endpoint()).expect("text")).expect("written");
    assert!(lines.any(|l| l.is_ok_and(|l| l.contains("ready"))));

    let memory = remote.memory.expect("memory");
    assert_eq!(memory.len, LEN as u64);
    side.region.write(0, &pattern(2, 20_000));
    side.qp.post(SendRequest::write(&[side.region.slice(0..20_000)], memory.at(8)).id(1).signaled()).expect("posted");
    side.done(1, Opcode::Write);
    let old = [side.region.slice(24_000..24_008)];
    side.qp.post(SendRequest::fetch_add(&old, memory.at(0), 2).id(2).signaled()).expect("posted");
    side.done(2, Opcode::FetchAdd);
    assert_eq!(side.region.load(24_000), 40);
    // Its end is the end of the peer, which then says what it has.
    drop(stdin);
    assert!(peer.wait().expect("an end").success());
}

/// Before the line that the peer is to read.
const MARK: &str = "endpoint ";

#[test]
#[ignore = "started by two_processes_reach_each_others_memory"]
fn serves_a_peer() {
    let side = Side::new(Transport::Rc, |q| q, |_| ());
    side.region.store(0, 40);
    println!("\n{MARK}{}", serde_json::to_string(&side.endpoint()).expect("text"));
    let mut lines = std::io::stdin().lines();
    let line = lines.next().expect("a line").expect("read");
    side.qp.connect(&serde_json::from_str(&line).expect("an endpoint"), &side.path).expect("connected");
    println!("ready");
    assert!(lines.next().is_none());
    assert_eq!((side.region.load(0), side.bytes(8, 20_001)), (42, [pattern(2, 20_000).as_slice(), &[0]].concat()));
}

#[test]
#[ignore = "run without a library, by without_a_library"]
fn no_library_is_one_clear_sentence() {
    let error = Library::load().err().expect("no library");
    assert!(error.is_library(), "{error}");
    let text = error.to_string();
    assert!(text.starts_with("cannot load libibverbs: ") && text.contains("libibverbs.so.1: "), "{text}");
}

/// Has this binary run its ignored tests, all or the one named, in the program that `command` starts.
fn inside(command: &mut Command, only: Option<&str>) {
    // At once, so that some make QPs and register memory, for which the device pauses, while others send.
    command.args(["--ignored", "--test-threads", "4"]);
    match only {
        Some(name) => command.args(["--exact", name]),
        None => command.args(["--skip", "no_library", "--skip", "serves_a_peer", "--skip", "each_device"]),
    };
    let end = Job::start(command).finish(Duration::from_secs(60));
    let ran = if only.is_some() { "1 passed; 0 failed" } else { "34 passed; 0 failed" };
    assert!(end.success() && end.output.contains(ran), "{}", end.describe());
}

fn this() -> std::path::PathBuf {
    std::env::current_exe().expect("this binary")
}

#[test]
fn everything_by_memory() {
    inside(under_vervain(this()).env("VERVAIN_LINK", "auto"), None);
}

#[test]
fn everything_in_packets() {
    let dir = tempfile::tempdir().expect("a directory");
    let capture = dir.path().join("capture-%p");
    inside(under_vervain(this()).envs(way("roce")).env("VERVAIN_PCAP", &capture), None);
    let files = std::fs::read_dir(dir.path()).expect("the directory");
    let sizes: Vec<_> = files.map(|f| f.and_then(|f| f.metadata()).expect("a file").len()).collect();
    // Both processes, and the data that each moved.
    assert_eq!(sizes.iter().filter(|&&len| len > 20_000).count(), 2, "{sizes:?}");
}

#[test]
fn everything_on_infiniband() {
    inside(under_vervain(this()).env("VERVAIN_LINK_LAYER", "infiniband"), None);
}

#[test]
fn several_devices() {
    let only = Some("each_device_and_port_can_be_had");
    inside(under_vervain(this()).env("VERVAIN_DEVICES", "2").env("VERVAIN_PORTS", "3"), only);
}

/// An empty file in the place of the library: what the dynamic linker says of one that is absent is no different to us.
#[test]
fn without_a_library() {
    let empty = tempfile::tempdir().expect("a directory");
    std::fs::write(empty.path().join("libibverbs.so.1"), "").expect("a file");
    inside(unswayed(this()).env("LD_LIBRARY_PATH", empty.path()), Some("no_library_is_one_clear_sentence"));
}
