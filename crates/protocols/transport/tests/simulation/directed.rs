//! Plans written by hand, each for one situation; and every single fault of a short exchange, one after the other.

use vervain_transport::{Flush, Nanos, Opcode, Request, Status};

use crate::plan::{ConnectionPlan, EndPlan, Gaps, HostPlan, MS, Op, Plan, Receives, SECOND, Service, US, keys};
use crate::random::{mix, pattern};
use crate::world::{Outcome, World};

const MTU: u32 = 1024;
const REGION: u64 = 256 << 10;
/// 4.096 us << 12.
const TIMEOUT: Nanos = 16_777_216;

/// Two hosts, one connection, no faults, nothing to do yet.
fn plan(service: Service) -> Plan {
    let end = |host| EndPlan {
        host,
        ready: 0,
        first_psn: 100,
        first_request: 0,
        timeout: 12,
        retries: 7,
        rnr_retries: 7,
        rnr_timer: 8,
        depth: 4,
        queue: 64,
        gap: US,
        operations: Vec::new(),
        receives: Receives::PLENTY,
        room: 64 << 10,
        region: REGION,
    };
    let host = HostPlan {
        faults: String::new(),
        poll: 0,
        acknowledge: 0,
        full: 0,
        deaf: 0,
        stops: None,
        moves: Vec::new(),
        stalls: None,
        shared: Receives::PLENTY,
    };
    Plan {
        seed: 1,
        hosts: vec![host.clone(), host],
        connections: vec![ConnectionPlan { service, mtu: MTU, ends: [end(0), end(1)], landings: None }],
        latency: 10 * US,
        mild: true,
        patience: 60 * SECOND,
        strangers: Vec::new(),
        rings: None,
        gaps: Gaps::Nobody,
    }
}

/// A request of the first end, with the memory of the second.
fn op(number: usize, operation: Opcode, length: u64) -> Op {
    use Opcode::{AtomicWrite, CompareSwap, FetchAdd};
    let key = mix(7, number as u64);
    let rkey = if matches!(operation, CompareSwap | FetchAdd) { keys::WORDS | 1 } else { keys::REGION | 1 };
    let mut word = [0; 8];
    pattern(key, 0, &mut word);
    let request = Request {
        opcode: operation,
        length,
        remote_addr: keys::base(rkey),
        rkey,
        imm_or_rkey: number as u32,
        compare_add: if operation == AtomicWrite { u64::from_ne_bytes(word) } else { number as u64 },
        swap: number as u64 + 1,
        flush: Flush { placement: 1, ..Flush::default() },
        ..Request::default()
    };
    Op { request, key, misdeed: None }
}

impl Plan {
    fn with(mut self, operations: &[(Opcode, u64)]) -> Self {
        let make = |(number, &(operation, length)): (usize, &(Opcode, u64))| op(number, operation, length);
        self.connections[0].ends[0].operations = operations.iter().enumerate().map(make).collect();
        self
    }

    fn faults(mut self, host: usize, faults: &str) -> Self {
        faults.clone_into(&mut self.hosts[host].faults);
        self
    }

    fn first_end(&mut self) -> &mut EndPlan {
        &mut self.connections[0].ends[0]
    }

    fn run(self) -> Outcome {
        World::new(self, false).run()
    }

    fn end_with(self, status: Status, completed: usize) -> Nanos {
        let mut world = World::new(self, false);
        let outcome = world.run();
        assert_eq!(world.ends[0].send.failed, Some(status));
        assert_eq!(world.ends[0].send.completed, completed);
        outcome.done
    }
}

/// One of each, some of them long.
const MIXED: &[(Opcode, u64)] = &[
    (Opcode::Send, 3000),
    (Opcode::Write, 2500),
    (Opcode::Read, 3500),
    (Opcode::FetchAdd, 8),
    (Opcode::WriteImm, 1024),
    (Opcode::CompareSwap, 8),
    (Opcode::Read, 8),
    (Opcode::SendImm, 0),
    (Opcode::AtomicWrite, 8),
    (Opcode::Read, 2048),
    (Opcode::FetchAdd, 8),
    (Opcode::Write, 0),
    (Opcode::Send, 1),
];

fn all(count: usize, operation: Opcode, length: u64) -> Vec<(Opcode, u64)> {
    vec![(operation, length); count]
}

#[test]
fn without_faults_nothing_is_sent_twice() {
    for service in [Service::Reliable, Service::ReliableShared, Service::Unreliable] {
        let mixed: Vec<_> = MIXED.iter().copied().filter(|(op, _)| service.reliable() || unreliable(*op)).collect();
        let outcome = plan(service).with(&mixed).run();
        assert_eq!((outcome.requests, outcome.failures, outcome.again), (mixed.len() as u64, 0, 0), "{service:?}");
    }
}

fn unreliable(operation: Opcode) -> bool {
    use Opcode::{Send, SendImm, Write, WriteImm};
    matches!(operation, Send | SendImm | Write | WriteImm)
}

/// Drops, doubles, delays and damages each packet of a short exchange in turn, in both directions.
#[test]
fn any_single_fault_is_made_good() {
    single_faults(Gaps::Nobody);
}

#[test]
fn any_single_fault_is_made_good_by_those_who_report_gaps() {
    single_faults(Gaps::Everybody);
}

fn single_faults(gaps: Gaps) {
    let plan = |service| Plan { gaps, ..plan(service) };
    let normal = plan(Service::Reliable).with(MIXED).run();
    for host in 0..2 {
        for n in 1..normal.packets {
            for kind in
                ["drop=any@N", "dup=any@N", "dup=any@N:3ms", "reorder=any@N:2ms", "corrupt=any@N", "drop=any@N:x3"]
            {
                let faults = kind.replace('N', &n.to_string());
                let outcome =
                    std::panic::catch_unwind(|| plan(Service::Reliable).with(MIXED).faults(host, &faults).run());
                let outcome = outcome.unwrap_or_else(|_| panic!("host {host} with {faults}"));
                assert_eq!((outcome.requests, outcome.failures), (MIXED.len() as u64, 0), "host {host} with {faults}");
                assert!(outcome.done < 200 * MS, "host {host} with {faults} took {} ns", outcome.done);
            }
        }
    }
}

/// Each packet is dropped, and again one of those that follow: resent ones among them.
#[test]
fn any_two_losses_are_made_good() {
    two_losses(Gaps::Nobody);
}

#[test]
fn any_two_losses_are_made_good_by_those_who_report_gaps() {
    two_losses(Gaps::Everybody);
}

fn two_losses(gaps: Gaps) {
    let plan = |service| Plan { gaps, ..plan(service) };
    let normal = plan(Service::Reliable).with(MIXED).run();
    for (one, other) in [(0, 0), (0, 1), (1, 1)] {
        for n in 1..normal.packets {
            for m in 1..=normal.packets {
                let mut plan = plan(Service::Reliable).with(MIXED);
                plan.hosts[one].faults = format!("drop=any@{n}");
                plan.hosts[other].faults += &format!(",drop=any@{m}");
                let outcome = std::panic::catch_unwind(|| plan.run());
                let outcome = outcome.unwrap_or_else(|_| panic!("host {one} loses {n}, host {other} {m}"));
                assert_eq!(outcome.failures, 0, "host {one} loses {n}, host {other} {m}");
            }
        }
    }
}

#[test]
fn what_a_partition_interrupts_goes_on_when_it_heals() {
    let outcome = plan(Service::Reliable)
        .with(&MIXED.repeat(20))
        .faults(0, "down=200us..90ms")
        .faults(1, "rx.down=300us..95ms")
        .run();
    assert_eq!((outcome.requests, outcome.failures), (20 * MIXED.len() as u64, 0));
}

#[test]
fn a_partition_that_lasts_exceeds_the_retries() {
    let mut plan = plan(Service::Reliable).with(&all(100, Opcode::Write, 1024)).faults(0, "down=0..50s");
    plan.mild = false;
    let at = plan.end_with(Status::RetryExceeded, 0);
    // IBA 9.7.6.1.3: each of the eight tries waits from T to 4 T.
    assert!((8 * TIMEOUT..=32 * TIMEOUT + MS).contains(&at), "after {at} ns");
}

/// Each outage takes the only retry, and progress gives it back (IBA 9.7.6.1.3).
#[test]
fn retries_begin_anew_with_each_progress() {
    let outages = "down=2ms..8ms,down=16ms..22ms,down=30ms..36ms";
    let mut plan = plan(Service::Reliable).with(&all(400, Opcode::Write, 1024)).faults(0, outages);
    // 4.2 ms.
    plan.first_end().timeout = 10;
    plan.first_end().retries = 1;
    plan.first_end().gap = 300 * US;
    let outcome = plan.run();
    assert_eq!((outcome.requests, outcome.failures), (400, 0));
    assert!(outcome.done > 40 * MS, "was done before the outages, after {} ns", outcome.done);
}

#[test]
fn a_responder_that_stops_exceeds_the_retries() {
    for (retries, operation) in [(0, Opcode::Write), (1, Opcode::Read), (3, Opcode::FetchAdd), (7, Opcode::Send)] {
        let mut plan = plan(Service::Reliable).with(&all(1000, operation, 8));
        plan.first_end().retries = retries;
        plan.hosts[1].stops = Some(100 * US);
        let mut world = World::new(plan, false);
        let at = world.run().done;
        assert_eq!(world.ends[0].send.failed, Some(Status::RetryExceeded), "{operation:?}");
        let tries = Nanos::from(retries) + 1;
        assert!((tries * TIMEOUT..=tries * 4 * TIMEOUT + MS).contains(&at), "{operation:?} after {at} ns");
    }
}

#[test]
fn a_receiver_that_is_seldom_ready_is_waited_for() {
    let mut plan = plan(Service::Reliable).with(&all(50, Opcode::Send, 2000));
    plan.connections[0].ends[1].receives = Receives { first: 0, then: 1, every: 5 * MS };
    let outcome = plan.run();
    assert_eq!((outcome.receives, outcome.failures), (50, 0));
}

/// Each message meets two or three RNR NAKs, all together a hundred.
#[test]
fn rnr_retries_begin_anew_with_each_progress() {
    let mut plan = plan(Service::Reliable).with(&all(50, Opcode::Send, 2000));
    plan.first_end().rnr_retries = 5;
    plan.connections[0].ends[1].receives = Receives { first: 0, then: 1, every: 400 * US };
    let outcome = plan.run();
    assert_eq!((outcome.receives, outcome.failures), (50, 0));
}

#[test]
fn a_receiver_that_is_never_ready_exceeds_the_rnr_retries() {
    for rnr_retries in [0, 1, 4] {
        let mut plan = plan(Service::Reliable).with(&all(50, Opcode::Send, 2000));
        plan.first_end().rnr_retries = rnr_retries;
        plan.connections[0].ends[1].receives = Receives { first: 3, then: 1, every: 10 * SECOND };
        let at = plan.end_with(Status::RnrRetryExceeded, 3);
        // Code 8 stands for 160 us (IBA table 45).
        assert!(at >= u64::from(rnr_retries) * 160 * US, "after {at} ns");
    }
}

/// A round trip takes 20 us, a probe comes after 300 us at the earliest: what is done by then, answers have set right.
#[test]
fn what_others_follow_is_resent_when_they_arrive() {
    let writes = all(60, Opcode::Write, 1024);
    let reads = all(60, Opcode::Read, 1024);
    let sends = all(60, Opcode::Send, 3000);
    for (host, operations, faults) in [
        (0, &writes, "drop=any@9"),
        (0, &writes, "drop=any@9,drop=any@30,drop=any@50"),
        (0, &sends, "drop=send_middle@7,drop=send_first@20"),
        (0, &reads, "drop=read_request@9"),
        (1, &reads, "drop=read_response@9,drop=read_response@33"),
        (1, &writes, "drop=ack@5..7"),
    ] {
        // At once, and with pauses in which all is set right before the next loss.
        for gap in [US, 15 * US] {
            let took = |faults| {
                let mut plan = plan(Service::Reliable).with(operations).faults(host, faults);
                plan.first_end().gap = gap;
                plan.run().done
            };
            let (normal, lossy) = (took(""), took(faults));
            assert!(lossy < normal + 150 * US, "{faults}: took {lossy} ns, not {normal}");
        }
    }
}

/// The ACK timeout is 4.3 s here; the round trip time says much earlier that something is missing.
#[test]
fn what_nothing_follows_is_probed_for() {
    for (host, faults) in [(0, "drop=any@60"), (1, "drop=ack@56..60"), (0, "drop=any@58..60")] {
        let mut plan = plan(Service::Reliable).with(&all(60, Opcode::Write, 1024)).faults(host, faults);
        plan.first_end().timeout = 20;
        let outcome = plan.run();
        assert!(outcome.done < 50 * MS, "{faults}: took {} ns", outcome.done);
    }
}

/// A requester that minds credits asks once when there are none, and not with all it has (IBA 9.7.7.2).
#[test]
fn without_credits_little_is_sent_in_vain() {
    let mut plan = plan(Service::Reliable).with(&all(60, Opcode::Send, 3000));
    plan.connections[0].ends[1].receives = Receives { first: 4, then: 4, every: 2 * MS };
    let outcome = plan.run();
    assert_eq!((outcome.receives, outcome.failures), (60, 0));
    // Each wait of 2 ms meets a dozen RNR timers of 160 us, at the end of each of which a packet or two are refused.
    assert!(outcome.again < 15 * 12 * 3, "{} packets were sent again", outcome.again);
}

#[test]
fn psns_wrap() {
    for first_psn in [0xff_ffff, 0xff_fff0, 0xff_ff80, 0x7f_fff8] {
        for faults in ["", "drop=4%", "dup=30%:1us..2ms", "drop=5%,reorder=20%"] {
            let mut plan = plan(Service::Reliable).with(&MIXED.repeat(8)).faults(0, faults).faults(1, faults);
            plan.first_end().first_psn = first_psn;
            let outcome = plan.run();
            assert_eq!(outcome.failures, 0, "from {first_psn:#x} with {faults:?}");
        }
    }
}

#[test]
fn reads_longer_than_the_window_arrive() {
    for faults in ["", "drop=1%", "rate=500Mbit,queue=100kB"] {
        let reads =
            [(Opcode::Read, 4 << 20), (Opcode::Write, 10_000), (Opcode::Read, 3_000_001), (Opcode::Read, 20_000)];
        let mut plan = plan(Service::Reliable).with(&reads).faults(1, faults);
        plan.connections[0].ends[1].region = 8 << 20;
        let outcome = plan.run();
        assert_eq!((outcome.requests, outcome.failures), (4, 0), "{faults}");
    }
}

/// Everything that was sent once comes again when half of all PSNs, about, have passed: it looks like the future.
#[test]
fn packets_older_than_half_of_all_psns_change_nothing() {
    let mut world = World::new(plan(Service::Reliable).with(MIXED), false);
    world.capture();
    world.run();
    let old = world.captured();
    assert!(old.len() > 20);
    let (mixed, writes) = (MIXED.repeat(10), all(300, Opcode::Write, 2000));
    for ahead in [1 << 22, (1 << 23) - 5, (1 << 23) - 1, 1 << 23, (1 << 23) + 1, (1 << 23) + 9, 3 << 22] {
        for operations in [&mixed, &writes] {
            let mut plan = plan(Service::Reliable).with(operations);
            plan.first_end().first_psn = 100 + ahead;
            plan.connections[0].ends[1].first_psn = 100 + ahead;
            let again = |(n, (from, to, packet)): (usize, &(usize, usize, Vec<u8>))| {
                (15 * US + n as u64 * 3 * US, *from, *to, packet.clone())
            };
            plan.strangers = old.iter().enumerate().map(again).collect();
            let outcome = std::panic::catch_unwind(|| plan.run());
            let outcome = outcome.unwrap_or_else(|_| panic!("{ahead} PSNs later"));
            assert_eq!(outcome.failures, 0, "{ahead} PSNs later");
        }
    }
}

/// Hosts with other processors, kernels and cards between lose packets anywhere; what the peer keeps need not go again.
#[test]
fn random_loss_costs_those_who_report_gaps_what_is_lost() {
    let mut plan = plan(Service::Reliable).with(&all(60, Opcode::Write, 200_000)).faults(0, "drop=1%");
    plan.gaps = Gaps::Everybody;
    let outcome = plan.run();
    assert_eq!((outcome.requests, outcome.failures), (60, 0));
    let lost = outcome.packets / 100;
    assert!((lost / 2..2 * lost).contains(&outcome.again), "{} of {} packets", outcome.again, outcome.packets);
}

#[test]
fn an_unreliable_qp_loses_whole_messages_and_does_not_stop() {
    let sends = all(400, Opcode::Send, 3000);
    let outcome = plan(Service::Unreliable).with(&sends).faults(0, "drop=2%").run();
    assert_eq!((outcome.requests, outcome.again), (400, 0));
    assert!((300..400).contains(&outcome.receives), "{}", outcome.receives);
}

#[test]
fn a_narrow_line_is_filled_and_not_flooded() {
    let outcome =
        plan(Service::Reliable).with(&all(200, Opcode::Write, 100_000)).faults(0, "rate=1Gbit,queue=200kB").run();
    // 20 MB take 170 ms at the least.
    assert!(outcome.done < 340 * MS, "took {} ns", outcome.done);
    assert!(outcome.again * 5 < outcome.packets, "{} of {} packets were sent again", outcome.again, outcome.packets);
}
