//! Made-up results for tests: of a device that behaves like none, by formulas, the same each time.

use std::collections::BTreeMap;

use crate::case::{Case, Interface, Interference, Measure, Memory, Operation, Placement, Service};
use crate::results::{
    CaseResult, DeviceFacts, Failure, Flag, Header, Host, InterferenceProof, PlanText, RawFigures, Results, Run,
    SCHEMA, Skipped, Summary,
};

/// A Write of this size: RC, bandwidth, alone, on one host.
pub fn write_case(size: u64) -> Case {
    Case {
        measure: Measure::Bandwidth,
        operation: Operation::Write,
        service: Service::Rc,
        size,
        depth: 128,
        qps: 1,
        placement: Placement::Loopback,
        interference: None,
        memory: Memory::Host,
        interface: Interface::Verbs,
        environment: None,
        grid: None,
    }
}

/// A case whose runs came to these bytes per second.
pub fn bandwidth(case: Case, values: &[f64]) -> CaseResult {
    assert_eq!(case.measure, Measure::Bandwidth);
    let run = |round: usize, value: f64| {
        let seconds = 5000.0 * case.size as f64 / value;
        let segments = (0..5).map(|i| (1000, seconds / 5.0 * (1.0 + f64::from(i - 2) * 0.004))).collect();
        Run { segments, ..plain_run(&case, round, seconds) }
    };
    of_runs(case, values, run)
}

/// A case whose runs had these medians, in ns.
pub fn latency(case: Case, values: &[f64]) -> CaseResult {
    assert_eq!(case.measure, Measure::Latency);
    let run = |round: usize, value: f64| {
        let ps = |factor: f64| (value * factor * 1000.0) as u64;
        let histogram = vec![(ps(0.95), 900), (ps(1.0), 2600), (ps(1.1), 1440), (ps(1.6), 50), (ps(4.0), 10)];
        Run { histogram, ..plain_run(&case, round, value * 5000.0 / 1e9) }
    };
    of_runs(case, values, run)
}

fn plain_run(case: &Case, round: usize, seconds: f64) -> Run {
    let proof = |stream| InterferenceProof {
        stream,
        operations: 64_000,
        rate: 64_000.0 / seconds,
        slices: (0..16).map(|i| 4000 + 300 * ((i * 7) % 5)).collect(),
        slice_ms: seconds * 1000.0 / 16.0,
        longest_pause_ms: seconds * 3.0,
        throughout: true,
    };
    Run {
        round: round as u32,
        at: round as f64 * 40.0,
        iterations: 5000,
        seconds,
        segments: Vec::new(),
        histogram: Vec::new(),
        lost: 0,
        interference: case.interference.map(proof),
    }
}

fn of_runs(case: Case, values: &[f64], run: impl Fn(usize, f64) -> Run) -> CaseResult {
    let runs: Vec<Run> = values.iter().enumerate().map(|(round, value)| run(round, *value)).collect();
    let summary = summary(&case, values);
    CaseResult { case, iterations: 5000, runs, failures: Vec::new(), summary }
}

fn summary(case: &Case, values: &[f64]) -> Option<Summary> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let value = *sorted.get(sorted.len() / 2)?;
    let (low, high) = (sorted[0], sorted[sorted.len() - 1]);
    let is_latency = case.measure == Measure::Latency;
    let spread = (high - low) / value;
    Some(Summary {
        value,
        interval: (low, high),
        quartiles: (low * 0.97, high * 1.03),
        range: (low * 0.9, high * if is_latency { 20.0 } else { 1.1 }),
        mean: value * 1.01,
        p99: is_latency.then_some(value * 1.6),
        p999: is_latency.then_some(value * 4.0),
        rate: (!is_latency).then_some(value / case.size as f64),
        spread,
        drift: 0.01,
        warm_up: 0.0,
        flags: if spread > 0.15 { vec![Flag::Noisy] } else { Vec::new() },
    })
}

/// A run of which nothing has been measured yet.
pub fn nothing() -> Results {
    let pinned = [("client", Some(0)), ("server", Some(1)), ("background client", None)];
    let host = Host {
        name: "alpha".to_owned(),
        cpu: "Sample CPU <9000> & friends".to_owned(),
        cpus: 2,
        nodes: 1,
        memory: 16 << 30,
        kernel: "6.12.0".to_owned(),
        governor: None,
        library: "/usr/lib/libibverbs.so.1".to_owned(),
        device: DeviceFacts {
            name: "sample0".to_owned(),
            port: 1,
            firmware: "1.0".to_owned(),
            vendor: 0x2c9,
            part: 4115,
            link_layer: "Ethernet".to_owned(),
            gbps: 100.0,
            mtu: 4096,
            max_rd_atomic: 16,
            node: None,
        },
        gpu: None,
        pinned: pinned.into_iter().map(|(role, cpu)| (role.to_owned(), cpu)).collect::<BTreeMap<_, _>>(),
    };
    let plan = PlanText {
        name: "paper".to_owned(),
        title: "The figures of P1".to_owned(),
        text: "title = \"The figures of P1\"\n# <script>alert(1)</script>\n".to_owned(),
    };
    Results {
        schema: SCHEMA,
        header: Header {
            version: "0.1.0".to_owned(),
            started: "2025-01-02T03:04:05Z".to_owned(),
            plan,
            seed: 42,
            rounds: 5,
            environments: BTreeMap::new(),
            host: host.clone(),
            peer: Some(Host { name: "beta".to_owned(), ..host }),
            peer_note: None,
            notes: vec!["Client and background share CPU 0.".to_owned()],
        },
        ended: "2025-01-02T03:14:05Z".to_owned(),
        complete: true,
        interrupted: None,
        raw: (0..5).map(raw).collect(),
        cases: Vec::new(),
        skipped: Vec::new(),
    }
}

fn raw(round: u32) -> RawFigures {
    let wobble = 1.0 + f64::from(round) * 0.01;
    RawFigures {
        round,
        cross_core_ns: (round != 3).then_some(60.0 * wobble),
        memcpy: vec![(4096, 40e9 / wobble), (1 << 20, 18e9 / wobble)],
        clock_ns: 21.0,
    }
}

/// A run of which everything failed.
pub fn failures() -> Results {
    let failed = |size| {
        let why = "the peer said <script>alert(2)</script> & closed".to_owned();
        let failures = vec![Failure { round: 0, why: why.clone() }, Failure { round: 1, why }];
        CaseResult { failures, ..bandwidth(Case { service: Service::Uc, ..write_case(size) }, &[]) }
    };
    let skipped = Skipped {
        case: Case { operation: Operation::FetchAdd, size: 8, ..write_case(8) },
        why: "the device has no atomics".to_owned(),
    };
    Results {
        complete: false,
        interrupted: Some("The peer was lost.".to_owned()),
        cases: vec![failed(8), failed(4096)],
        skipped: vec![skipped],
        ..nothing()
    }
}

/// A run of everything that a page can show; `speed` multiplies all bandwidths and divides all latencies.
pub fn everything(speed: f64) -> Results {
    let mut random = fastrand::Rng::with_seed((speed * 1000.0) as u64);
    let mut results = failures();
    results.complete = true;
    results.interrupted = None;
    for case in cases() {
        let ideal = model(&case);
        let ideal = if case.measure == Measure::Latency { ideal / speed } else { ideal * speed };
        let noise = if (case.size.ilog2() + case.depth) % 11 == 5 { 0.4 } else { 0.03 };
        let values: Vec<f64> = (0..5).map(|_| ideal * (1.0 + noise * (random.f64() - 0.5))).collect();
        let measure = if case.measure == Measure::Latency { latency } else { bandwidth };
        results.cases.push(measure(case, &values));
    }
    results
}

/// A run of what the plan `quick` measures, each case three times.
pub fn quick() -> Results {
    of_plan("quick", 1.0)
}

/// A run of what the plan `tca` measures, in its environments; latencies are about those that its paper prints.
pub fn boards() -> Results {
    of_plan("tca", 10.0)
}

/// A run of a plan, each case three times; latencies are so many times the model's.
fn of_plan(name: &str, slower: f64) -> Results {
    let mut results = nothing();
    let plan = crate::plan::load(name).expect("the plan");
    let value = |case: &Case| {
        let times = if case.measure == Measure::Latency { slower } else { 1.0 };
        [1.0, 1.01, 0.99].map(|factor| model(case) * times * factor)
    };
    let of = |(case, _): (Case, _)| match case.measure {
        Measure::Latency => latency(case, &value(&case)),
        Measure::Bandwidth => bandwidth(case, &value(&case)),
    };
    results.cases = plan.cases(Placement::Loopback).into_iter().map(of).collect();
    results.header.environments = plan.environments.into_iter().map(|(name, of)| (name.to_string(), of)).collect();
    results.header.plan = PlanText { name: plan.name, title: plan.title, text: plan.text };
    results.header.rounds = plan.rounds;
    results
}

fn cases() -> Vec<Case> {
    use Operation::{CompareSwap, FetchAdd, Read, Send, SendImm, Write};
    let sizes = || (3..=23).step_by(2).map(|power| 1 << power);
    let mut cases = Vec::new();
    for placement in [Placement::Loopback, Placement::Peer] {
        let of = |operation, size| Case { operation, placement, ..write_case(size) };
        let lone = |case| Case { measure: Measure::Latency, depth: 1, ..case };
        let streams = [Write, Read, FetchAdd, CompareSwap].map(|operation| Interference { operation, size: 8 });
        let long = [8192, 8 << 20]
            .into_iter()
            .flat_map(|size| [Write, Read].map(|operation| Interference { operation, size }));
        let streams: Vec<_> = streams.into_iter().chain(long).map(Some).collect();
        for operation in [Send, Write, Read] {
            cases.extend(sizes().map(|size| of(operation, size)));
            cases.extend(sizes().map(|size| lone(of(operation, size))));
        }
        for operation in [Write, Read] {
            let beside = |stream: &Option<Interference>| {
                let interference = *stream;
                sizes().map(move |size| Case { interference, ..of(operation, size) }).collect::<Vec<_>>()
            };
            cases.extend(streams.iter().flat_map(beside));
        }
        cases.extend([of(FetchAdd, 8), lone(of(FetchAdd, 8)), of(CompareSwap, 8), lone(of(CompareSwap, 8))]);
        for interference in streams.iter().copied() {
            for atomic in [FetchAdd, CompareSwap] {
                cases.push(Case { interference, ..of(atomic, 8) });
                cases.push(Case { interference, ..lone(of(atomic, 8)) });
            }
        }
        let long = Some(Interference { operation: Operation::WriteImm, size: 8 << 20 });
        cases.push(Case { interference: long, ..of(CompareSwap, 8) });
        let datagram = |size| Case { service: Service::Ud, ..of(SendImm, size) };
        cases.extend((3..=12).map(|power| datagram(1 << power)));
        cases.extend((3..=12).map(|power| lone(datagram(1 << power))));
        for operation in [Send, Write, FetchAdd] {
            cases.extend((0..7).map(|power| Case { depth: 1 << power, ..of(operation, 8) }));
            cases.extend((1..7).map(|power| Case { qps: 1 << power, ..of(operation, 8) }));
        }
    }
    cases
}

fn model(case: &Case) -> f64 {
    let (overhead, peak) = match case.placement {
        Placement::Loopback => (110.0, 11.8),
        Placement::Peer => (700.0, 3.4),
    };
    let overhead = overhead
        * match case.operation {
            Operation::Send | Operation::SendImm => 1.5,
            Operation::Write | Operation::WriteImm => 1.0,
            Operation::Read => 1.2,
            Operation::FetchAdd => 2.0,
            Operation::CompareSwap => 2.1,
            _ => 1.0,
        };
    let long = case.interference.is_some_and(|s| s.size > 4096);
    let slower = match case.interference.map(|s| s.operation) {
        None => 1.0,
        Some(operation) if operation == case.operation => 1.0 / 2.05,
        Some(Operation::FetchAdd | Operation::CompareSwap) => 1.0 / 1.5,
        Some(_) if long => 1.0 / 1.1,
        Some(_) => 1.0 / 1.3,
    };
    let ns = case.size as f64 / peak;
    match case.measure {
        Measure::Latency => (overhead * 2.5 + ns) / slower,
        Measure::Bandwidth => {
            let depth = f64::from(case.depth * case.qps);
            case.size as f64 / (overhead * (1.0 + 3.0 / depth) + ns) * 1e9 * slower
        }
    }
}
