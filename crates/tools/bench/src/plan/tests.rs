//! Plans from their text to their cases, the built-in ones, and texts of all sorts.

mod mistakes;

use std::fmt::Write as _;

use super::*;
use crate::case::{Grid, Interface, Interference, Measure, Memory, Operation, Service};
use crate::environment::PaperDevice;
use crate::sample::write_case;

const GUIDE: &str = include_str!("../../../../../docs/bench.md");

/// A block without mistakes, to which tests add lines.
const BLOCK: &str = "[[case]]\noperation = \"write\"\nmeasure = \"bandwidth\"\n";

fn plan(text: &str) -> Plan {
    parse("mine", text).unwrap_or_else(|errors| panic!("{errors}"))
}

fn cases(text: &str) -> Vec<(Case, Settings)> {
    plan(text).cases(Placement::Loopback)
}

#[test]
fn what_a_plan_leaves_out_has_the_defaults_of_the_guide() {
    let plan = plan("[[case]]\noperation = [\"write\", \"faa\"]\nmeasure = [\"latency\", \"bandwidth\"]\n");
    assert_eq!((&*plan.name, &*plan.title, plan.rounds, plan.seed, plan.spread), ("mine", "mine", 5, None, 0.1));
    assert_eq!(plan.pinning, Pinning::default());
    let cases = plan.cases(Placement::Peer);
    let latency = Case { measure: Measure::Latency, depth: 1, placement: Placement::Peer, ..write_case(8) };
    let bandwidth = Case { measure: Measure::Bandwidth, depth: 128, ..latency };
    let faa = Operation::FetchAdd;
    let expected = [latency, Case { operation: faa, ..latency }, bandwidth, Case { operation: faa, ..bandwidth }];
    assert_eq!(cases.iter().map(|(case, _)| *case).collect::<Vec<_>>(), expected);
    let settings = |iterations, warm_up, signal_every| Settings {
        iterations,
        full_iterations: None,
        only_full: false,
        warm_up,
        at_least: Duration::from_millis(20),
        at_most: Duration::from_millis(300),
        inline: None,
        signal_every,
        volume: 40 << 20,
    };
    assert_eq!(cases[0].1, settings(2000, 200, 1));
    assert_eq!(cases[2].1, settings(5000, 256, 100));
}

#[test]
fn what_a_plan_says_is_what_is_measured() {
    let plan = plan(
        r#"
        title = "Mine"
        rounds = 7
        seed = 42
        spread = 0.25
        [pinning]
        client = 3
        server = "free"
        background_client = "auto"
        background_server = 0x10
        memory_node = 1
        gpu = 7
        [defaults]
        service = "uc"
        depth = 16
        at_most = "1s"
        [[case]]
        operation = "send+imm"
        measure = "bandwidth"
        size = "1500 B"
        qps = 4
        placement = "peer"
        memory = "gpu"
        interference = "64 KiB read"
        iterations = 1_000
        warm_up = 0
        at_least = "1.5ms"
        inline = "auto"
        signal_every = 8
        [[case]]
        service = "ud"
        operation = "send"
        measure = "latency"
        inline = 64
        "#,
    );
    assert_eq!((&*plan.title, plan.rounds, plan.seed, plan.spread), ("Mine", 7, Some(42), 0.25));
    let pinning = Pinning {
        client: Pin::Cpu(3),
        server: Pin::Free,
        background_client: Pin::Auto,
        background_server: Pin::Cpu(16),
        memory_node: Some(1),
        gpu: Some(7),
    };
    assert_eq!(plan.pinning, pinning);
    let first = plan.blocks[0];
    let case = Case {
        measure: Measure::Bandwidth,
        operation: Operation::SendImm,
        service: Service::Uc,
        size: 1500,
        depth: 16,
        qps: 4,
        placement: Placement::Peer,
        interference: Some(Interference { operation: Operation::Read, size: 65536 }),
        memory: Memory::Gpu,
        interface: Interface::Verbs,
        environment: None,
        grid: None,
    };
    let settings = Settings {
        iterations: 1000,
        full_iterations: None,
        only_full: false,
        warm_up: 0,
        at_least: Duration::from_micros(1500),
        at_most: Duration::from_secs(1),
        inline: None,
        signal_every: 8,
        volume: 40 << 20,
    };
    assert_eq!((first.case, first.placement, first.settings), (case, Some(Placement::Peer), settings));
    let second = plan.blocks[1];
    // The depth of [defaults] is not for latency.
    assert_eq!((second.case.service, second.case.depth, second.settings.inline), (Service::Ud, 1, Some(64)));
}

#[test]
fn a_block_is_the_product_of_its_lists_with_sizes_changing_first() {
    let text = r#"
        [[case]]
        operation = ["write", "read"]
        measure = "bandwidth"
        size = ["8..16", 4096]
        depth = "1..4 by 4"
        qps = [1, 2]
        placement = ["peer", "loopback"]
        memory = ["host", "gpu"]
        interference = ["none", "8 B cas"]
    "#;
    let all = cases(text);
    assert_eq!(all.len(), 2 * 3 * 2 * 2 * 2 * 2 * 2);
    let shown: Vec<_> = all.iter().map(|(case, _)| case.to_string()).collect();
    assert_eq!(shown[0], "8 B write RC bandwidth, depth 1, peer");
    assert_eq!(shown[2], "4 KiB write RC bandwidth, depth 1, peer");
    assert_eq!(shown[3], "8 B write RC bandwidth, depth 4, peer");
    assert_eq!(shown[6], "8 B write RC bandwidth, depth 1, 2 QPs, peer");
    assert_eq!(shown[12], "8 B write RC bandwidth, depth 1, peer, beside 8 B cas");
    assert_eq!(shown[24], "8 B write RC bandwidth, depth 1, peer, GPU memory");
    assert_eq!(shown[191], "4 KiB read RC bandwidth, depth 4, 2 QPs, loopback, GPU memory, beside 8 B cas");
}

#[test]
fn a_case_that_is_asked_for_twice_is_measured_once_as_it_was_first() {
    let text = format!("{BLOCK}size = [8, 8]\niterations = 7\n{BLOCK}placement = [\"loopback\", \"peer\"]\n");
    let plan = plan(&text);
    assert_eq!(plan.blocks.len(), 4);
    let iterations = |placement| plan.cases(placement).iter().map(|(_, s)| s.iterations).collect::<Vec<_>>();
    assert_eq!(iterations(Placement::Loopback), [7, 5000]);
    assert_eq!(iterations(Placement::Peer), [7, 5000]);
    let placements = plan.cases(Placement::Peer).iter().map(|(c, _)| c.placement).collect::<Vec<_>>();
    assert_eq!(placements, [Placement::Peer, Placement::Loopback]);
}

#[test]
fn sizes_and_driving_of_the_defaults_are_not_for_atomics_and_latency() {
    let text = r#"
        [defaults]
        size = "8..8M"
        depth = [1, 16]
        qps = [1, 2]
        [[case]]
        operation = ["faa", "write"]
        measure = ["latency", "bandwidth"]
    "#;
    let all = cases(text);
    let count = |measure, operation| {
        all.iter().filter(|(case, _)| case.measure == measure && case.operation == operation).count()
    };
    assert_eq!(count(Measure::Latency, Operation::FetchAdd), 1);
    assert_eq!(count(Measure::Bandwidth, Operation::FetchAdd), 4);
    assert_eq!(count(Measure::Latency, Operation::Write), 21);
    assert_eq!(count(Measure::Bandwidth, Operation::Write), 84);
}

#[test]
fn the_limits_themselves_are_taken() {
    for line in [
        "size = [1, \"2G\"]",
        "depth = [1, 32768]",
        "qps = 16384",
        "iterations = 1_000_000_000",
        "warm_up = 0",
        "at_least = \"0s\"",
        "at_most = \"1h\"",
        "at_least = \"300ms\"",
        "inline = 0",
        "inline = \"4K\"",
        "signal_every = 32768",
        "interference = \"2GiB write\"",
    ] {
        plan(&format!("{BLOCK}{line}\n"));
    }
    for line in ["rounds = 1", "rounds = 1000", "seed = 9223372036854775807", "spread = 1", "spread = 0.001"] {
        plan(&format!("{line}\n{BLOCK}"));
    }
}

#[test]
fn a_name_that_is_no_plan_gets_the_names_that_are() {
    let errors = load("papr").expect_err("no such plan").to_string();
    let expected = "papr: expected a file, or the name of a built-in plan, quick, paper, interference, atomics, \
                    scaling, acp, tca or pm; the file: No such file or directory (os error 2); did you mean \"paper\"?";
    assert_eq!(errors, expected);
}

#[test]
fn a_file_is_read_and_named_by_its_path() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("mine.toml");
    let path = path.to_str().expect("a path in UTF-8");
    std::fs::write(path, BLOCK).expect("written");
    let plan = load(path).expect("a plan");
    assert_eq!((&*plan.name, &*plan.text, plan.blocks.len()), (path, BLOCK, 1));

    std::fs::write(path, b"title = \"M\xfcller\"\n").expect("written");
    let errors = load(path).expect_err("Latin-1").to_string();
    let excerpt = "  |\n1 | title = \"M\u{fffd}ller\"\n  |           ^";
    assert_eq!(errors, format!("{path}:1:11: title: expected text in UTF-8, found the byte 0xfc\n{excerpt}"));

    std::fs::write(path, "#".repeat(TEXT_MOST + 1)).expect("written");
    let errors = load(path).expect_err("too long").to_string();
    assert_eq!(errors, format!("{path}: expected a plan of at most 256 KiB, found a longer text"));
    assert!(load(dir.path().to_str().expect("a path")).expect_err("a directory").to_string().contains("the file: "));
}

#[test]
fn built_in_plans_have_the_size_and_take_the_time_that_the_guide_says() {
    let mut rows = String::new();
    for (name, text) in BUILT_IN {
        let plan = load(name).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!((&*plan.name, &*plan.text), (*name, *text));
        let (count, time) = (plan.cases(Placement::Loopback).len(), plan.estimate(Placement::Loopback).as_secs());
        let row = format!("| `{name}` | {count} | {} | {time} s |", plan.rounds);
        if !GUIDE.contains(&row) {
            writeln!(rows, "{row}").expect("a string takes it");
        }
    }
    assert!(rows.is_empty(), "docs/bench.md lacks\n{rows}");
    let estimate = |name| load(name).expect("built in").estimate(Placement::Loopback);
    assert!(estimate("quick") < Duration::from_secs(30));
    assert!(estimate("paper") < Duration::from_secs(360));
}

#[test]
fn the_paper_plan_has_every_point_of_the_paper() {
    let plan = load("paper").expect("built in");
    let cases: HashSet<_> = plan.cases(Placement::Loopback).into_iter().map(|(case, _)| case).collect();
    let base = write_case(8);
    let latency = |case| Case { measure: Measure::Latency, depth: 1, ..case };
    let (write, read, faa, cas) = (Operation::Write, Operation::Read, Operation::FetchAdd, Operation::CompareSwap);
    let beside = |operation, size| Some(Interference { operation, size });
    let short = [None, beside(write, 8), beside(read, 8), beside(faa, 8), beside(cas, 8)];
    let mut expected = HashSet::new();
    // Figure 1, and 3 and 4.
    for size in (3..=23).map(|power| 1 << power) {
        expected.insert(Case { operation: Operation::Send, size, ..base });
        for operation in [write, read] {
            expected.extend(short.map(|interference| Case { operation, size, interference, ..base }));
        }
    }
    // Figure 2.
    for operation in [Operation::Send, write, read, faa, cas] {
        for placement in [Placement::Peer, Placement::Loopback] {
            let point = Case { operation, placement, ..base };
            expected.extend([point, latency(point)]);
        }
    }
    // Cases that are not drawn.
    let long = [beside(write, 8 << 10), beside(read, 8 << 10), beside(write, 8 << 20), beside(read, 8 << 20)];
    for size in (3..=23).step_by(2).map(|power| 1 << power) {
        for operation in [write, read] {
            expected.extend(long.map(|interference| Case { operation, size, interference, ..base }));
        }
    }
    for operation in [faa, cas] {
        for interference in long {
            let point = Case { operation, interference, ..base };
            expected.extend([point, latency(point)]);
        }
    }
    // Tables 2 and 3.
    for interference in short {
        let point = Case { operation: faa, interference, ..base };
        expected.extend([point, latency(point)]);
    }
    assert_eq!(cases, expected);
    assert!(plan.blocks.iter().all(|b| b.settings.iterations == [2000, 5000][b.case.measure as usize]));
}

#[test]
fn a_forecast_keeps_to_the_bounds_of_the_plan() {
    let (case, settings) = cases(&format!("{BLOCK}size = 8\n"))[0];
    let ms = |case: Case, settings: Settings| settings.forecast(&case).as_millis();
    // 5000 operations of 0.3 µs are over at once; of 8 MiB they are not in time; 16 there are always.
    assert_eq!(ms(case, settings), 25 + 20);
    assert_eq!(ms(Case { size: 8 << 20, ..case }, settings), 25 + 300);
    assert_eq!(ms(Case { size: 1 << 30, ..case }, settings), 25 + 16 * 1000 * (1 << 30) / 5_000_000_000);
    assert_eq!(ms(case, Settings { iterations: 500_000, ..settings }), 25 + 150);
}

#[test]
fn ranks_of_jobs_are_measured_as_often_as_the_intel_mpi_benchmarks_do() {
    let text = "[defaults]\nmeasure = 'latency'\nsize = '1..256M'\n[[case]]\ninterface = 'acp'\noperation = ['put', 'copy']\n\
        [[case]]\ninterface = ['openmpi', 'mpich-own']\noperation = 'ping-pong'\nvolume = '1M'\n";
    let cases = plan(text).cases(Placement::Peer);
    assert_eq!(cases.len(), 4 * 29);
    let (first, settings) = cases[0];
    assert_eq!((first.interface, first.operation, first.size), (Interface::Acp, Operation::Put, 1));
    // On this host also where the run has a peer.
    assert!(cases.iter().all(|(case, _)| (case.placement, case.depth, case.qps) == (Placement::Loopback, 1, 1)));
    assert_eq!((settings.iterations, settings.warm_up, settings.volume), (1000, 4, 40 << 20));
    let iterations = [1, 32 << 10, 64 << 10, 1 << 20, 40 << 20, 64 << 20, 1 << 31]
        .map(|size| settings.of_ranks(&Case { size, ..first }));
    assert_eq!(iterations, [1000, 1000, 640, 40, 1, 1, 1]);
    let (last, settings) = cases.last().expect("a case");
    assert_eq!(settings.of_ranks(&Case { size: 64 << 10, ..*last }), 16);
}

#[test]
fn pm_decides_how_much_is_under_way_and_is_counted_so() {
    let text = "[defaults]\nmeasure = 'bandwidth'\ndepth = [1, 16]\nqps = [1, 2]\n[[case]]\ninterface = ['pm', 'verbs']\n\
        operation = ['send', 'write']\nsize = ['8', '8K']\n[[case]]\ninterface = 'pm'\noperation = 'ping-pong'\n\
        measure = 'latency'\nsize = '8'\n";
    let cases = cases(text);
    let of = |interface| cases.iter().filter(move |(case, _)| case.interface == interface);
    assert_eq!((of(Interface::Pm).count(), of(Interface::Verbs).count()), (2 * 2 + 1, 4 * 2 * 2));
    for (case, settings) in of(Interface::Pm) {
        assert_eq!((case.depth, case.qps, case.ranks(), case.placement), (1, 1, 2, Placement::Loopback), "{case}");
        let iterations = if case.measure == Measure::Latency { 1000 } else { 5000 };
        assert_eq!((settings.iterations, settings.warm_up, settings.volume), (iterations, 4, 40 << 20), "{case}");
    }
    // The most cases of a plan, were those of PM not counted by what they are.
    let most = "[[case]]\ninterface = ['pm', 'verbs']\noperation = 'send'\nmeasure = 'bandwidth'\nsize = 8\n";
    assert_eq!(plan(&format!("[defaults]\ndepth = '1..32768'\nqps = [{}]\n{most}", list(6_000))).blocks.len(), 96_001);
}

fn list(count: u32) -> String {
    (1..=count).map(|n| n.to_string()).collect::<Vec<_>>().join(", ")
}

#[test]
fn the_plan_of_pm_has_all_that_the_paper_measures_with_and_without_data_in_the_work_request() {
    let plan = load("pm").expect("built in");
    let cases = plan.cases(Placement::Loopback);
    let sizes = |interface, operation, measure, name: &str| {
        let name = EnvironmentName::from(name).ok().filter(|name| !name.is_empty());
        let of = move |case: &Case| (case.interface, case.operation, case.measure, case.environment);
        let fits = move |case: &&Case| of(case) == (interface, operation, measure, name);
        cases.iter().map(|(case, _)| case).filter(fits).map(|case| case.size).collect::<Vec<_>>()
    };
    let messages: Vec<u64> = (3..=13).map(|power| 1 << power).collect();
    for name in ["", "no-inline", "packets", "packets-no-inline"] {
        assert_eq!(sizes(Interface::Pm, Operation::PingPong, Measure::Latency, name), messages, "{name}");
        assert_eq!(sizes(Interface::Pm, Operation::Send, Measure::Bandwidth, name), messages, "{name}");
    }
    for name in ["", "packets"] {
        assert_eq!(sizes(Interface::Verbs, Operation::Send, Measure::Latency, name), messages, "{name}");
        assert_eq!(sizes(Interface::Verbs, Operation::Send, Measure::Bandwidth, name), messages, "{name}");
        let copies = sizes(Interface::Pm, Operation::Write, Measure::Bandwidth, name);
        assert_eq!((copies.first(), copies.last()), (Some(&8), Some(&(1 << 20))));
        assert_eq!(sizes(Interface::Verbs, Operation::Write, Measure::Bandwidth, name), copies, "{name}");
    }
    let value = |name: &str, variable: &str| plan.environments[name].variables.get(variable).cloned();
    for (name, like) in [("no-inline", None), ("packets-no-inline", Some("packets"))] {
        assert_eq!(value(name, "PM_INLINE").as_deref(), Some("0"));
        let mut rest = plan.environments[name].variables.clone();
        rest.remove("PM_INLINE");
        assert_eq!(rest, like.map_or_else(BTreeMap::new, |like| plan.environments[like].variables.clone()));
    }
    assert!(plan.estimate(Placement::Loopback) < Duration::from_secs(120));
}

#[test]
fn kernels_have_grids_of_ranks_and_nothing_else_has() {
    let text = "[defaults]\nmeasure = 'latency'\ngrid = ['1x1', '2x4']\n\
        [[case]]\ninterface = 'mpich'\noperation = ['jacobi', 'ping-pong']\nsize = ['2M', '16M']\niterations = 20\n\
        full_iterations = 1000\n[[case]]\noperation = 'send'\n";
    let cases = plan(text).cases(Placement::Loopback);
    let found: Vec<_> = cases.iter().map(|(case, _)| (case.operation, case.size, case.grid, case.ranks())).collect();
    let expected = [
        (Operation::Jacobi, 2 << 20, Some(Grid(1, 1)), 2),
        (Operation::Jacobi, 16 << 20, Some(Grid(1, 1)), 2),
        (Operation::Jacobi, 2 << 20, Some(Grid(2, 4)), 8),
        (Operation::Jacobi, 16 << 20, Some(Grid(2, 4)), 8),
        (Operation::PingPong, 2 << 20, None, 2),
        (Operation::PingPong, 16 << 20, None, 2),
        (Operation::Send, 8, None, 0),
    ];
    assert_eq!(found, expected);
    let parts = "[[case]]\nmeasure = 'latency'\ninterface = 'mpich'\noperation = ['jacobi-calculation', 'jacobi-exchange', \
        'jacobi-allreduce']\nsize = '2M'\ngrid = ['1x1', '1x2']\n";
    let alone = plan(parts).cases(Placement::Loopback).into_iter().filter(|(case, _)| case.grid == Some(Grid(1, 1)));
    let alone: Vec<_> = alone.map(|(case, _)| case.operation).collect();
    assert_eq!(alone, [Operation::JacobiCalculation], "one rank exchanges nothing");
    // Each of the steps is made, however large they are.
    let (first, settings) = &cases[1];
    assert_eq!((settings.of_ranks(first), settings.full_iterations), (20, Some(1000)));
}

#[test]
fn the_guide_names_every_key() {
    let missing: Vec<_> = parse::all_keys().filter(|key| !GUIDE.contains(&format!("`{key}`"))).collect();
    assert_eq!(missing, Vec::<&str>::new());
}

#[test]
fn cases_are_measured_in_the_environments_that_a_block_names_on_this_host() {
    let text = r#"
        [environment.board]
        note = "a board"
        paper = "tca-gpu"
        variables = { A = "x:{file}", B = "" }
        [environment.local]
        [[case]]
        operation = "write"
        measure = "bandwidth"
        size = ["8", "64"]
        environment = ["none", "board", "local"]
    "#;
    let plan = plan(text);
    let board = &plan.environments["board"];
    let variables = [("A", "x:{file}"), ("B", "")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(board.variables, BTreeMap::from(variables));
    assert_eq!((board.note.as_deref(), board.paper), (Some("a board"), Some(PaperDevice::Gpu)));
    assert_eq!(plan.environments["local"], Environment::default());
    // With another host at hand.
    let cases = plan.cases(Placement::Peer);
    let shown: Vec<_> = cases.iter().map(|(case, _)| (case.size, case.environment, case.placement)).collect();
    let [board, local] = ["board", "local"].map(|name| EnvironmentName::from(name).ok());
    let (here, there) = (Placement::Loopback, Placement::Peer);
    let expected = [(None, there), (board, here), (local, here)];
    let expected: Vec<_> = expected.into_iter().flat_map(|(name, at)| [(8, name, at), (64, name, at)]).collect();
    assert_eq!(shown, expected);
}

#[test]
fn the_plan_of_tca_has_every_part_of_the_model_and_all_that_the_paper_measures() {
    let plan = load("tca").expect("built in");
    let of = |paper| plan.environments.iter().filter(move |(_, of)| of.paper == Some(paper)).map(|(name, _)| *name);
    let cases = plan.cases(Placement::Loopback);
    for device in [PaperDevice::Cpu, PaperDevice::Gpu, PaperDevice::Other] {
        for name in of(device) {
            let has = |operation, measure, size| {
                let fits = |c: &Case| {
                    (c.operation, c.measure, c.size, c.environment) == (operation, measure, size, Some(name))
                };
                assert!(cases.iter().any(|(case, _)| fits(case)), "{size} B {operation} {measure} in {name}");
            };
            for operation in
                [Operation::Send, Operation::WriteImm, Operation::Read, Operation::FetchAdd, Operation::PingPong]
            {
                has(operation, Measure::Latency, 8);
            }
            has(Operation::Write, Measure::Bandwidth, 2 << 20);
        }
        assert_eq!(of(device).count(), 1, "{device}");
    }
    let windows: Vec<_> = plan.environments.values().filter_map(|of| of.variables.get("VERVAIN_WINDOW")).collect();
    for part in ["low-latency", "high-bandwidth", "chaining", "internal", "prepared", "zero-copy"] {
        assert!(windows.iter().any(|window| window.ends_with(&format!(",without={part}"))), "{part}");
    }
    assert!(windows.iter().any(|window| window.ends_with(",direct=off")));
    assert!(windows.iter().all(|window| window.starts_with("peach2:{file},") && window.contains(",timing=on")));
    assert!(plan.estimate(Placement::Loopback) < Duration::from_secs(600));
}

#[test]
fn the_plans_of_the_guide_are_plans() {
    let plans: Vec<_> = GUIDE.split("```toml\n").skip(1).filter_map(|text| text.split("```").next()).collect();
    assert_eq!(plans.len(), 3);
    assert_eq!(cases(plans[0]).len(), 42);
    assert_eq!(plan(plans[1]).environments.len(), 2);
    assert_ne!(plan(&format!("{}{BLOCK}", plans[2])).pinning, Pinning::default());
}

/// Were the time of any of these the square of the text's length, the test would not end.
#[test]
fn a_text_of_mistakes_alone_is_told_off_soon() {
    for line in ["a=b\n", "a=1\n", "[[case]]\n", "[[case]]\nsize=0\n", "[a]\n", "=", "[", "\"", "a.", "é\n"] {
        let told = parse("long", &line.repeat(TEXT_MOST / line.len())).expect_err(line);
        assert!(told.errors.len() <= 50);
    }
    let list = format!("{BLOCK}size = [{}]", "0,".repeat(TEXT_MOST / 2 - 100));
    let told = parse("long", &list).expect_err("zeros");
    assert_eq!((told.errors.len(), told.more), (50, TEXT_MOST / 2 - 150));
    let (uc, read) = ("\"uc\",".repeat(20_000), "\"read\",".repeat(15_000));
    let lists = format!("[[case]]\nmeasure = \"latency\"\nservice = [{uc}]\noperation = [{read}]\n");
    // Two mistakes: UC does not carry it, and there would be too many cases.
    assert_eq!(parse("long", &lists).expect_err("reads").errors.len(), 2);
}

#[test]
fn any_text_is_a_plan_or_a_mistake() {
    let seed = std::env::var("VERVAIN_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(6);
    let mut rng = fastrand::Rng::with_seed(seed);
    // Words that have a meaning reach further than any bytes do.
    let words: Vec<&str> = BUILT_IN.iter().flat_map(|(_, text)| text.split_inclusive([' ', '\n', '"', ','])).collect();
    let odd = [
        "[[case]]\n",
        "[case]\n",
        "=",
        "\"",
        "'''",
        "[",
        "]",
        "{",
        "}",
        "\0",
        "ü",
        "\r",
        "..",
        "1e999",
        "-1",
        "0x",
        "nan",
        "99999999999999999999",
        " = ",
        "\n",
        "depth = 0\n",
        "rounds.a = 1\n",
        "size = \"1..2G\"\n",
        "\u{202e}",
    ];
    let (mut plans, mut errors) = (0, 0);
    for round in 0..4000 {
        let mut text = BUILT_IN[rng.usize(..BUILT_IN.len())].1.to_owned();
        for _ in 0..rng.usize(1..=4) {
            let mut place = || (0..=rng.usize(..=text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            let (a, b) = (place(), place());
            let (a, b) = (a.min(b), a.max(b));
            let word = if rng.bool() { words[rng.usize(..words.len())] } else { odd[rng.usize(..odd.len())] };
            match rng.u8(..8) {
                0..4 => text.insert_str(a, word),
                4 => text.replace_range(a..b, word),
                5 => text.truncate(b),
                6 => {
                    let copy = text[a..b].to_owned();
                    text.insert_str(b, &copy);
                }
                _ => {
                    let line = text[a..].find('\n').map_or(text.len(), |at| a + at);
                    text.replace_range(a..line, word);
                }
            }
        }
        match parse("any", &text) {
            Ok(plan) => {
                plans += 1;
                plan.estimate(Placement::Peer);
            }
            Err(told) => {
                errors += 1;
                assert!(!told.errors.is_empty(), "seed {seed}, round {round}: {text}");
                // The line is cut, the caret, and the longest list of keys.
                assert!(told.to_string().len() < 51 * 1500, "seed {seed}, round {round}: {text}");
            }
        }
    }
    assert!(plans > 100 && errors > 1000, "{plans} plans, {errors} errors");
}
