//! Memory of a GPU, with a stand-in for its driver (`tests/c/stand_in_cuda.c`), whose memory is the process's own:
//! `crates/verbs/rdma` allocates, registers and frees it, `vervain bench` measures it, and what is missing is said. No GPU has
//! a part in it. The tests that need a device are marked as ignored; the others run this binary under `vervain run`, and
//! have it run them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use vervain_rdma::*;
use vervain_tests::{Finished, Job, alone, free_port, have_c, stand_in, under_vervain, unswayed, vervain};

const LIMIT: Duration = Duration::from_secs(60);
const LEN: usize = 100_000;

/// One end of a connection.
struct Side {
    pd: Pd,
    cq: Cq,
    region: Region,
    qp: Qp,
    path: PathOptions,
}

impl Side {
    fn new() -> Self {
        // The stand-in of libibverbs, where there is one, or the library itself.
        let library = std::env::var_os("STAND_IN_VERBS").map_or_else(Library::load, |p| Library::open(Path::new(&p)));
        let context = Context::open(&library.expect("libibverbs"), None).expect("a device");
        let pd = Pd::new(&context).expect("a PD");
        let cq = Cq::new(&context, 16, None, 0).expect("a CQ");
        let region = pd.region(LEN, Access::REMOTE).expect("a region");
        let qp = Qp::builder(Transport::Rc, &pd, &cq, &cq).build().expect("a QP");
        let path = PathOptions::of(&context, 1).expect("a path");
        qp.init(&path, Access::REMOTE).expect("INIT");
        Self { pd, cq, region, qp, path }
    }

    fn pair() -> (Self, Self) {
        let (a, b) = (Self::new(), Self::new());
        a.qp.connect(&b.qp.endpoint(&b.path).expect("an endpoint"), &a.path).expect("connected");
        b.qp.connect(&a.qp.endpoint(&a.path).expect("an endpoint"), &b.path).expect("connected");
        (a, b)
    }

    /// Posts it and waits until it has completed.
    fn carry_out(&self, request: SendRequest<'_, '_>) {
        self.qp.post(request.signaled()).expect("posted");
        let (mut done, until) = ([Completion::default()], Instant::now() + LIMIT);
        while self.cq.poll(&mut done).expect("completions") == 0 {
            assert!(Instant::now() < until, "no completion");
        }
        assert_eq!(done[0].status(), Status::Success);
    }

    fn bytes(&self, from: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.region.read(from, &mut bytes);
        bytes
    }
}

/// What the stand-ins were called for, without the number of the process.
fn calls() -> Vec<String> {
    let text = fs::read_to_string(std::env::var_os("STAND_IN_LOG").expect("a log")).unwrap_or_default();
    text.lines().filter_map(|line| Some(line.split_once(' ')?.1.to_owned())).collect()
}

/// What registered memory of a GPU is good for, and that it goes in the right order.
fn everything(registered_as: &[&str]) {
    let gpu = Gpu::open(1).expect("a GPU");
    assert_eq!((gpu.index(), gpu.name(), gpu.to_string().as_str()), (1, "Stand-in 1", "GPU 1 (Stand-in 1)"));
    assert_eq!(Gpu::nearest(Some(5)).expect("the first").index(), 0);
    let none = Gpu::open(2).err().expect("no such GPU");
    assert_eq!((none.to_string().as_str(), none.errno()), ("there is no GPU 2: CUDA counts 2", None));
    let (a, b) = Side::pair();
    assert!(b.pd.gpu_region(&gpu, 0, Access::REMOTE).is_err());

    let memory = b.pd.gpu_region(&gpu, LEN, Access::REMOTE).expect("registered");
    let there = memory.remote();
    assert_eq!((there.addr % 65536, there.len), (0, LEN as u64));
    a.region.fill(0..LEN, 7);
    a.carry_out(SendRequest::read(&[a.region.slice(0..LEN)], there.at(0)));
    assert_eq!(a.bytes(0, LEN), vec![0; LEN], "it begins as zeros");
    let data: Vec<u8> = (0..LEN).map(|i| (i % 251) as u8).collect();
    a.region.write(0, &data);
    a.carry_out(SendRequest::write(&[a.region.slice(0..LEN - 80)], there.at(80)));
    a.region.fill(0..LEN, 0);
    b.carry_out(SendRequest::write(&[memory.slice(80..LEN)], a.region.remote().at(8)));
    assert_eq!(a.bytes(8, LEN - 80), data[..LEN - 80]);

    // A page before, for the pages that are its alone; filled only after CUDA was told to wait for that.
    let made = ["init, scatter unset", "retain 1", "alloc 196608", "sync", "fill 100000"];
    let before = [&made[..], registered_as].concat();
    assert_eq!(calls(), before);
    memory.deregister().expect("deregistered");
    assert_eq!(calls()[before.len()..], ["deregister 100000", "free 196608", "release 1"]);

    // Left to the domain, it stays as long as that.
    let before = calls().len();
    let left = b.pd.gpu_region(&gpu, 1, Access::REMOTE).expect("registered").remote();
    a.carry_out(SendRequest::write(&[a.region.slice(0..1)], left.at(0)));
    assert!(calls()[before..].iter().all(|call| !call.starts_with("free")));
    drop(b);
    let gone = calls()[before..].join(", ");
    assert!(gone.contains("deregister 1, free 131072, release 1"), "{gone}");
}

#[test]
#[ignore = "run with the stand-in, by a_gpus_memory_is_used_and_freed_once_it_is_deregistered"]
fn by_address() {
    everything(&[]);
}

#[test]
#[ignore = "run with the stand-in, by what_cannot_be_registered_by_its_address_is_as_a_dma_buf"]
fn by_dma_buf() {
    everything(&["export 131072", "register as a dma-buf from 0"]);
}

#[test]
#[ignore = "run with the stand-in, by memory_that_is_not_to_be_had_is_one_sentence"]
fn refused() {
    let b = Side::new();
    let refusal = |gpu: Result<Gpu>| gpu.and_then(|gpu| b.pd.gpu_region(&gpu, LEN, Access::REMOTE)).err();
    let error = refusal(Gpu::open(0)).expect("refused");
    println!("\nerrno {:?}: {error}", error.errno());
    // What was allocated before it failed is not left.
    let count = |what: &str| calls().iter().filter(|call| call.starts_with(what)).count();
    assert_eq!((count("alloc"), count("retain")), (count("free"), count("release")), "{:?}", calls());
}

/// This binary under Vervain, with the stand-in of a driver whose GPUs are `like` that, for one of its ignored tests.
fn inside(like: &str, log: &Path, test: &str) -> Command {
    let mut command = under_vervain(std::env::current_exe().expect("this binary"));
    command.args(["--ignored", "--exact", "--nocapture", test]);
    with_gpus(&mut command, like, log);
    command
}

fn with_gpus(command: &mut Command, like: &str, log: &Path) {
    let driver = stand_in("cuda", "libcuda.so.1");
    let variables = [("STAND_IN_GPU", like.as_ref()), ("STAND_IN_LOG", log.as_os_str())];
    command.envs(variables).env("LD_LIBRARY_PATH", driver.parent().expect("its directory"));
}

fn passes(command: &mut Command) -> Finished {
    let end = Job::start(command).finish(LIMIT);
    assert!(end.success() && end.output.contains("1 passed; 0 failed"), "{}", end.describe());
    end
}

fn verbs() -> PathBuf {
    stand_in("verbs", "libverbs-stand-in.so")
}

#[test]
fn a_gpus_memory_is_used_and_freed_once_it_is_deregistered() {
    if !have_c() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    passes(inside("", &dir.path().join("log"), "by_address").env("STAND_IN_VERBS", verbs()));
}

#[test]
fn what_cannot_be_registered_by_its_address_is_as_a_dma_buf() {
    if !have_c() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    passes(inside("far", &dir.path().join("log"), "by_dma_buf").env("STAND_IN_VERBS", verbs()));
}

const UNREACHABLE: &str = "vervain0 cannot reach GPU memory: ibv_reg_mr: Bad address (os error 14); ibv_reg_dmabuf_mr: \
                           Operation not supported (os error 95); is nvidia-peermem loaded?";

#[test]
fn memory_that_is_not_to_be_had_is_one_sentence() {
    if !have_c() {
        return;
    }
    for (like, expected) in [
        ("none", "errno None: cuInit failed: CUDA_ERROR_NO_DEVICE (100)".into()),
        (
            "full",
            "errno None: cuMemAlloc failed for 196608 bytes of GPU 0 (Stand-in 0): CUDA_ERROR_OUT_OF_MEMORY (2)".into(),
        ),
        ("far", format!("errno Some(14): {UNREACHABLE}")),
        ("sealed", format!("errno Some(14): {UNREACHABLE}")),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let end = passes(&mut inside(like, &dir.path().join("log"), "refused"));
        assert!(end.output.lines().any(|line| line == expected), "{like}: {expected}\n{}", end.describe());
    }
}

/// Every operation in a GPU's memory, and one beside in the host's.
const EVERYTHING: &str = r#"
title = "GPU memory"
rounds = 2
[pinning]
gpu = 1
[defaults]
memory = "gpu"
iterations = 200
at_least = "1ms"
at_most = "50ms"
[[case]]
operation = ["send", "send+imm", "write+imm", "read"]
measure = ["latency", "bandwidth"]
size = [1, 8, 5000, "1M"]
[[case]]
operation = ["faa", "cas"]
measure = ["latency", "bandwidth"]
interference = ["none", "64K read"]
at_least = "40ms"
at_most = "80ms"
[[case]]
operation = "send"
service = "ud"
measure = ["latency", "bandwidth"]
[[case]]
operation = "write"
measure = "bandwidth"
memory = ["host", "gpu"]
qps = 2
"#;

/// `vervain bench run` of a plan into `dir`/out, with such GPUs.
fn bench(dir: &Path, like: &str, plan: &str) -> Command {
    let file = dir.join("plan.toml");
    fs::write(&file, plan).expect("a plan");
    let mut command = unswayed(vervain());
    command.args(["bench", "run"]).arg(file).arg("-o").arg(dir.join("out"));
    with_gpus(&mut command, like, &dir.join("log"));
    command
}

fn results(dir: &Path) -> Value {
    let text = fs::read(dir.join("out/results.json")).expect("results.json");
    serde_json::from_slice(&text).expect("JSON")
}

#[test]
fn a_gpus_memory_is_measured_beside_the_hosts() {
    if !have_c() {
        return;
    }
    let _turn = alone();
    let dir = tempfile::tempdir().expect("a directory");
    let end = Job::start(&mut bench(dir.path(), "", EVERYTHING)).finish(LIMIT);
    assert_eq!(end.code(), Some(0), "{}", end.describe());
    let results = results(dir.path());
    assert_eq!((&results["complete"], &results["header"]["host"]["gpu"]), (&true.into(), &"GPU 1 (Stand-in 1)".into()));
    let cases = results["cases"].as_array().expect("cases");
    let of = |memory: &str| cases.iter().filter(|c| c["case"]["memory"] == memory).count();
    assert_eq!((of("gpu"), of("host")), (32 + 8 + 2 + 1, 1));
    for case in cases {
        assert_eq!(case["failures"], Value::Array(vec![]), "{case}");
        assert!(case["summary"]["value"].as_f64().is_some_and(|value| value > 0.0), "{case}");
    }
    assert!(end.output.contains("GPU memory"), "{}", end.describe());

    // By requester and responder of the cases in a GPU, and by nobody else: once each, of the second GPU, as the plan
    // says, with room for two areas of the largest message and GRH.
    let log = fs::read_to_string(dir.path().join("log")).expect("the stand-in's log");
    let calls: Vec<_> = log.lines().filter_map(|line| line.split_once(' ')).collect();
    let workers: std::collections::BTreeSet<_> = calls.iter().map(|(pid, _)| *pid).collect();
    assert_eq!(workers.len(), 2, "{log}");
    for worker in workers {
        let of_it: Vec<_> = calls.iter().filter(|(pid, _)| *pid == worker).map(|(_, call)| *call).collect();
        assert_eq!(of_it, ["init, scatter 0", "retain 1", "alloc 2228224", "sync", "fill 2105344"]);
    }
}

#[test]
fn a_far_hosts_gpu_is_its_own() {
    if !have_c() {
        return;
    }
    let _turn = alone();
    let dir = tempfile::tempdir().expect("a directory");
    let address = format!("127.0.0.1:{}", free_port());
    let mut serve = unswayed(vervain());
    serve.args(["bench", "serve", "--bind", &address]);
    with_gpus(&mut serve, "", &dir.path().join("far"));
    let mut far = Job::start(&mut serve);
    assert!(far.wait_output("serving at", LIMIT), "{}", far.output());
    let plan = "rounds = 1\n[[case]]\noperation = \"send\"\nmeasure = \"latency\"\nmemory = \"gpu\"\n";
    let end = Job::start(bench(dir.path(), "", plan).args(["--peer", &address])).finish(LIMIT);
    assert_eq!(end.code(), Some(0), "{}", end.describe());
    let results = results(dir.path());
    let gpus = [&results["header"]["host"]["gpu"], &results["header"]["peer"]["gpu"]];
    assert_eq!(gpus, ["GPU 0 (Stand-in 0)"; 2]);
    for log in ["log", "far"] {
        let text = fs::read_to_string(dir.path().join(log)).expect("a log");
        assert_eq!(text.lines().filter(|line| line.contains(" alloc ")).count(), 1, "{log}: {text}");
    }
}

#[test]
fn what_has_no_gpu_is_skipped_with_the_reason_and_the_rest_is_measured() {
    if !have_c() {
        return;
    }
    let _turn = alone();
    let plan = "rounds = 1\n[[case]]\noperation = \"read\"\nmeasure = \"latency\"\nmemory = [\"host\", \"gpu\"]\n";
    let only = plan.replace("\"host\", ", "");
    // An empty file in the place of the driver: what the dynamic linker says of one that is absent is no different.
    let no_driver = tempfile::tempdir().expect("a directory");
    fs::write(no_driver.path().join("libcuda.so.1"), "").expect("a file");
    for (like, why) in [
        ("no driver", "the requester at this host: no GPU can be had, since the CUDA driver cannot be loaded: "),
        ("none", "the requester at this host: cuInit failed: CUDA_ERROR_NO_DEVICE (100)"),
        ("far", &format!("the requester at this host: {UNREACHABLE}")),
        ("sealed", &format!("the requester at this host: {UNREACHABLE}")),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let run = |plan: &str| {
            let mut command = bench(dir.path(), like, plan);
            if like == "no driver" {
                command.env("LD_LIBRARY_PATH", no_driver.path());
            }
            Job::start(&mut command).finish(LIMIT)
        };
        let end = run(&only);
        assert_eq!(end.code(), Some(1), "{}", end.describe());
        let said = format!("nothing of this plan can be measured: {why}");
        assert!(end.output.contains(&said), "{said}\n{}", end.describe());
        assert!(!dir.path().join("out").exists(), "nothing is left of a run that could not begin");

        let end = run(plan);
        // Between the two may stand that the measurement is in doubt, on a busy machine.
        assert!(end.output.contains("1 case measured") && end.output.contains("1 skipped"), "{}", end.describe());
        let results = results(dir.path());
        assert_eq!(results["skipped"][0]["case"]["memory"], "gpu");
        let told = results["skipped"][0]["why"].as_str().unwrap_or_default();
        assert!(told.starts_with(why), "{told}");
        assert_eq!(
            (&results["cases"][0]["case"]["memory"], &results["header"]["host"]["gpu"]),
            (&"host".into(), &Value::Null)
        );
    }
}
