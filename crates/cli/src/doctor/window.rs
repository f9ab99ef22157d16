//! The window that VERVAIN_WINDOW names: opened as programs open it, which makes one that is not there.

use vervain_config::{Config, LINK, WINDOW, WindowSpec};
use vervain_window::{Error, Facts, Occupancy, Options, Processes};

use super::{Finding, Status};

const CHECK: &str = "window";
/// What the ring for long messages of one peer takes; with less left of a region there is none.
const LONG_RING: u64 = 1 << 20;

pub fn window() -> Finding {
    let Ok(config) = Config::of_process() else {
        return Finding::not_tested(CHECK, "a variable is wrong");
    };
    let Some(spec) = &config.window else {
        return Finding::ok(
            CHECK,
            format!("none ({} is not set): peers are reached by memory and packets", WINDOW.name()),
        );
    };
    if config.window_in_use().is_none() {
        let found = format!("{} is set, but {} leaves no use for it", WINDOW.name(), LINK.name());
        let remedy = format!("{}=auto or window", LINK.name());
        return Finding::with(Status::Note, CHECK, found, "nothing goes through the window", remedy);
    }
    let options = Options::of(spec);
    let looked = vervain_window::open(&spec.path, &options)
        .and_then(|device| Ok((device.facts().clone(), device.claims().occupancy()?)));
    match looked {
        Ok((facts, occupancy)) => judge(spec, &facts, &occupancy),
        Err(e) => Finding::with(Status::Broken, CHECK, e.to_string(), "programs find no device", remedy(&e)),
    }
}

fn judge(spec: &WindowSpec, facts: &Facts, occupancy: &Occupancy) -> Finding {
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let is_folder = spec.path.is_dir();
    let kind = match &spec.peach2 {
        Some(board) if board.timing => "a file that is put to by a model of PEACH2 boards, in their time",
        Some(_) => "a file that is put to by a model of PEACH2 boards",
        None if is_folder => "a folder of files that others only write",
        None => "a file",
    };
    let how = if spec.node.is_some() { "as the variable says" } else { "by its network namespace" };
    let processes = occupancy.nodes.iter().map(|(node, processes)| match processes {
        Processes::Live(n) => format!("{n} on node {node}"),
        Processes::Elsewhere => format!("unknown on node {node}, which has another kernel"),
    });
    let processes: Vec<_> = processes.collect();
    let (all, free) = occupancy.room;
    let found = format!(
        "{}: {kind}, {}, {} nodes; this is node {}, {how}; processes with a device: {}; {} of {} for peers free; {}{}; \
         hw_counters/window_*_bytes tell how much goes which way",
        spec.path.display(),
        mib(facts.layout.size()),
        facts.layout.nodes(),
        facts.node,
        processes.join(", "),
        mib(free),
        mib(all),
        ways(spec, facts.coherent),
        if is_folder { ", by a system call each" } else { "" },
    );
    if free >= LONG_RING {
        return Finding::ok(CHECK, found);
    }
    Finding::with(
        Status::Slower,
        CHECK,
        found,
        "new peers get no ring for long messages; with less than 64 KiB left, connecting fails (ENOMEM)",
        "a new window with a larger size=, or fewer processes that talk to each other",
    )
}

/// What is put where it belongs, and why the rest is not.
fn ways(spec: &WindowSpec, is_coherent: bool) -> &'static str {
    match (spec.direct && is_coherent, spec.heap) {
        (true, true) => {
            "RDMA Writes, and messages and answers to READs of 64 KiB or more, go straight to memory that is allocated in the window \
             (heap=on); shorter messages, and what goes to other memory, are copied into a ring there and out of it"
        }
        (true, false) => {
            "every message is copied into a ring there and out of it, for programs' memory is not in the window (heap=on puts it \
             there)"
        }
        (false, _) if !spec.direct => "every message is copied into a ring there and out of it (direct=off)",
        (false, _) => {
            "every message is copied into a ring there and out of it: stores of other nodes are not seen by themselves"
        }
    }
}

/// What helps against a window that cannot be opened.
fn remedy(error: &Error) -> &'static str {
    match error.errno() {
        libc::ENOENT | libc::ENOTDIR => "make the folder that it is to lie in, or name another place",
        libc::EACCES | libc::EROFS => "a place where this user may write",
        libc::EPERM => "a file of this user's own that nobody else may write (chmod go-w), or a sealed memfd",
        libc::EPROTO => "the same version of Vervain at all nodes, and a new file",
        libc::ENOSPC | libc::EFBIG | libc::ENOMEM => {
            "a larger /dev/shm (docker run --shm-size), a smaller size=, a higher ulimit -f; of nodes there are 8"
        }
        libc::EBUSY => "another node=, or end the processes of the node that has the number",
        _ => "name another file, or delete this one when no program uses it; give node= if the sentence asks for it",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_told_with_its_node_its_processes_and_its_room() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { size: Some(8 << 20), nodes: Some(2), node: Some(1), peach2: None };
        for (name, says) in
            [("file", "a file, 7.9 MiB, 2 nodes"), ("folder/", "a folder of files that others only write, 7.9 MiB")]
        {
            let spec = WindowSpec {
                path: folder.path().join(name),
                peach2: None,
                size: None,
                node: Some(1),
                heap: false,
                direct: true,
            };
            let device = vervain_window::open(&spec.path, &options).unwrap();
            let process = device.claims().process().unwrap();
            let looked = |device: &dyn vervain_window::PutDevice| {
                judge(&spec, device.facts(), &device.claims().occupancy().unwrap())
            };
            let found = looked(&*device);
            assert_eq!(found.status, Status::Ok);
            for words in [
                says,
                "this is node 1, as the variable says",
                "processes with a device: 1 on node 1",
                "MiB for peers free",
            ] {
                assert!(found.found.contains(words), "{found:?}");
            }
            let claims: Vec<_> = std::iter::from_fn(|| process.claim(1).ok()).collect();
            assert_eq!(looked(&*device).status, Status::Slower);
            drop(claims);
        }
    }

    #[test]
    fn what_is_copied_twice_is_told_with_the_reason() {
        let spec = |heap, direct| WindowSpec { path: "w".into(), peach2: None, size: None, node: None, heap, direct };
        for (heap, direct, is_coherent, says) in [
            (true, true, true, "go straight to memory that is allocated in the window"),
            (false, true, true, "heap=on puts it there"),
            (true, false, true, "direct=off"),
            (true, true, false, "not seen by themselves"),
        ] {
            let words = ways(&spec(heap, direct), is_coherent);
            assert!(words.contains(says), "{words}");
            assert_eq!(words.contains("every message is copied"), !(heap && direct && is_coherent), "{words}");
        }
    }

    #[test]
    fn each_error_has_its_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("window");
        let refused = |options: &Options| remedy(&vervain_window::open(&path, options).err().expect("an error"));
        std::fs::write(&path, "no window").unwrap();
        assert!(refused(&Options::default()).contains("delete this one"));
        std::fs::remove_file(&path).unwrap();
        assert!(refused(&Options { size: Some(1 << 40), ..Options::default() }).contains("smaller size="));
        let missing = folder.path().join("missing/window");
        let error = vervain_window::open(&missing, &Options::default()).err().expect("an error");
        assert!(remedy(&error).contains("make the folder"));
    }
}
