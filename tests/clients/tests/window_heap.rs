//! The shared heap in a window: whole programs whose memory lies there see what they would see on private memory; the processes of
//! a node share the region, and what a dead one had is free.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use vervain_tests::{Finished, Job, c_program, have_c, must_hold, skip, under_vervain};

const MIB: u64 = 1 << 20;

fn end(command: &mut Command) -> Finished {
    Job::start(command).finish(Duration::from_secs(60))
}

/// A window in memory that goes with this, of two nodes.
struct Window {
    value: String,
    /// MiB of a region that heaps may have.
    heap: u64,
    _memory: OwnedFd,
}

impl Window {
    fn new(mib: u64) -> Window {
        let options = vervain_window::Options { size: Some(mib * MIB), nodes: Some(2), node: None, peach2: None };
        let memory = vervain_window::memfd(&options).expect("a window");
        let value = format!("/proc/{}/fd/{},heap=on", std::process::id(), memory.as_raw_fd());
        let granules = vervain_window::Layout::new(2, mib * MIB).expect("a layout").granules().len() as u64;
        Window { value, heap: (granules.saturating_sub((granules / 8).max(128))) / 16, _memory: memory }
    }

    /// A program that has its large memory there from the start.
    fn program(&self, program: impl AsRef<Path>) -> Command {
        let mut command = under_vervain(program.as_ref());
        command.envs([("VERVAIN_SHARE", "always"), ("VERVAIN_WINDOW", &self.value)]);
        command
    }

    fn filler(&self) -> Filler {
        let mut child = self.program(c_program("window_heap"));
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a program");
        let (to, from) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        Filler { child, to, from: BufReader::new(from) }
    }
}

/// Whether there is shared memory at all.
fn can_share() -> bool {
    let strict = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|s| s.trim() == "2");
    if strict {
        skip("vm.overcommit_memory is 2");
    }
    have_c() && !strict
}

/// `window_heap` in a process of its own.
struct Filler {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Filler {
    fn tell(&mut self, line: &str) {
        writeln!(self.to, "{line}").expect("the program lives");
    }

    fn hear(&mut self) -> i64 {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("a pipe");
        line.trim().parse().unwrap_or_else(|_| panic!("{line:?}"))
    }

    fn ask(&mut self, line: &str) -> i64 {
        self.tell(line);
        self.hear()
    }

    fn kill(mut self) {
        self.child.kill().expect("the program lives");
        self.child.wait().expect("the program has ended");
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A child of a filler, which is not this process's to wait for.
struct Orphan(i32);

impl Orphan {
    fn lives(&self) -> bool {
        // Not one that has ended and waits to be asked about.
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-9", &self.0.to_string()]).status();
    }
}

#[test]
fn programs_see_what_they_would_see_on_private_memory() {
    if !can_share() {
        return;
    }
    // One that has room for everything, and one that soon has not.
    for mib in [512, 24] {
        let window = Window::new(mib);
        for name in ["share_maps", "share_fork"] {
            let program = c_program(name);
            let (plain, shared) = (end(&mut Command::new(&program)), end(&mut window.program(&program)));
            assert!(plain.success() && shared.success(), "{}\n{}", plain.describe(), shared.describe());
            assert_eq!(plain.output, shared.output, "{name} in a window of {mib} MiB");
        }
        let got = end(&mut window.program(c_program("share_threads")));
        assert!(got.success() && got.output.contains("ok"), "{}", got.describe());
    }
}

#[test]
fn random_memory_calls_do_what_the_model_says() {
    if !can_share() {
        return;
    }
    let window = Window::new(512);
    let arguments = ["--seeds", "100", "50", "--calls", "100", "--without", "huge-in-part"];
    let got = end(window.program(c_program("memory_model")).args(arguments));
    assert!(got.success() && got.output.contains("50 seeds, 0 failed"), "{}", got.describe());
}

#[test]
fn large_and_page_aligned_memory_is_in_the_window() {
    if !can_share() {
        return;
    }
    let window = Window::new(64);
    let places = |arguments: &[&str], value: &str| {
        let mut command = window.program(c_program("share_where"));
        let got = end(command.args(arguments).env("VERVAIN_WINDOW", value));
        assert!(got.success(), "{}", got.describe());
        let words: Vec<_> = got.output.lines().filter_map(|l| l.split_once(' ')).map(|(_, w)| w.to_owned()).collect();
        words.join(" ")
    };
    let all = "window window window shared window";
    assert_eq!(places(&["1048576"], &window.value), all);
    // A program that closes what it has not opened keeps its memory, and gets more.
    assert_eq!(places(&["1048576", "close"], &window.value), all);
    assert_eq!(places(&["1048576", "fsize", "1000000"], &window.value), "window window window private window");
    assert_eq!(places(&["100000"], &window.value), "private window private private window");
    let off = window.value.replace(",heap=on", "");
    assert_eq!(places(&["1048576"], &off), ["shared"; 5].join(" "));
}

#[test]
fn a_window_without_room_for_a_heap_is_told_once_and_the_heap_is_elsewhere() {
    if !can_share() {
        return;
    }
    let got = end(Window::new(4).program(c_program("share_where")).arg("1048576"));
    assert!(got.success() && got.output.contains("malloc shared"), "{}", got.describe());
    let lines: Vec<_> = got.output.lines().filter(|l| l.contains("vervain:")).collect();
    let says = "MiB, is too small for a heap beside what messages need; the heap is not in it";
    assert!(lines.len() == 1 && lines[0].contains(says), "{lines:?}");
}

#[test]
fn processes_share_the_region_and_the_dead_leave_it_to_others() {
    if !can_share() {
        return;
    }
    let window = Window::new(96);
    let mut fillers: Vec<Filler> = (0..8).map(|_| window.filler()).collect();
    fillers.iter_mut().for_each(|filler| filler.tell("fill"));
    let counts: Vec<i64> = fillers.iter_mut().map(Filler::hear).collect();
    let heap = window.heap as i64;
    // The granules between two blocks are as many as the processes have left.
    assert!(counts.iter().sum::<i64>() <= heap && counts.iter().sum::<i64>() >= heap - 1, "{counts:?} of {heap}");
    assert!(fillers.iter_mut().all(|filler| filler.ask("check") == 1), "blocks are their owners' only");
    let rest = fillers.split_off(4);
    let freed = counts[4..].iter().sum::<i64>();
    rest.into_iter().for_each(Filler::kill);
    let mut heir = window.filler();
    assert_eq!(heir.ask("fill"), freed);
    assert_eq!(heir.ask("check"), 1);
    assert!(fillers.iter_mut().all(|filler| filler.ask("check") == 1));
}

#[test]
fn what_is_kept_makes_room_in_a_full_region() {
    if !can_share() {
        return;
    }
    let window = Window::new(64);
    let mut filler = window.filler();
    let heap = window.heap as i64;
    assert_eq!(filler.ask("fill"), heap);
    assert_eq!(filler.ask("large 3"), 0, "a full region");
    filler.ask("free 4");
    assert_eq!(filler.ask("large 3"), 1);
    assert_eq!(filler.ask("large 3"), 1, "warm");
    assert_eq!(filler.ask("check"), 1);
    filler.ask(&format!("free {}", heap - 4));
    assert_eq!(filler.ask("large 16"), 1);
}

#[test]
fn children_leave_their_parents_memory_to_others_when_it_dies() {
    if !can_share() {
        return;
    }
    let window = Window::new(64);
    for way in ["fork", "_Fork", "spawn"] {
        let mut parent = window.filler();
        assert_eq!(parent.ask("fill"), window.heap as i64);
        let child = Orphan(parent.ask(way) as i32);
        assert_eq!(parent.ask("check"), 1);
        assert_eq!(window.filler().ask("fill"), 0, "the parent lives");
        parent.kill();
        assert!(child.lives(), "{way}");
        assert_eq!(window.filler().ask("fill"), window.heap as i64, "{way}");
    }
}

#[test]
fn programs_with_devices_have_their_heaps_beside_what_messages_need() {
    if !can_share() {
        return;
    }
    // The second has no room for what sixteen processes allocate.
    for mib in [256, 24] {
        let window = Window::new(mib);
        for (program, case) in [("crowd", &["all_to_all"][..]), ("fork_traffic", &[])] {
            let mut command = window.program(c_program(program));
            must_hold(&end(command.args(case).envs([("VERVAIN_LINK", "window"), ("VT_ROUNDS", "5")])));
        }
    }
}

#[test]
fn device_memory_is_what_it_is_elsewhere_by_each_link_and_in_a_full_window() {
    if !can_share() {
        return;
    }
    let window = Window::new(64);
    let mut filler = window.filler();
    for full in [false, true] {
        assert!(!full || filler.ask("fill") == window.heap as i64);
        for link in ["auto", "local", "window"] {
            let mut program = window.program(c_program("objects_mr"));
            let cases = ["device_memory", "given_memory", "device_memory_in_use"];
            must_hold(&end(program.args(cases).env("VERVAIN_LINK", link)));
        }
    }
}
