//! The window that VERVAIN_WINDOW names: opened as programs open it, which makes one that is not there.

use vervain_config::{Config, LINK, WINDOW, WindowSpec};
use vervain_window::{Error, Facts, Medium, Occupancy, Options, Processes};

use super::{Finding, Status};

const CHECK: &str = "window";
/// Bytes of the ring for long messages of one peer; with less left of a region there is none.
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
    let is_folder = facts.medium == Medium::File && spec.path.is_dir();
    let kind = match (&spec.peach2, facts.medium, facts.read_speed) {
        (Some(board), ..) if board.timing => {
            "a file that is put to by a model of PEACH2 boards, in their time".to_owned()
        }
        (Some(_), ..) => "a file that is put to by a model of PEACH2 boards".to_owned(),
        (None, Medium::File, _) if is_folder => "a folder of files that others only write".to_owned(),
        (None, medium, None) => medium.to_string(),
        (None, medium, Some(speed)) => format!("{medium}, read with {} MB/s", speed / 1_000_000),
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
        ways(spec, facts),
        if is_folder { ", by a system call each" } else { "" },
    );
    if facts.is_slow() {
        return Finding::with(
            Status::Slower,
            CHECK,
            found,
            "no cache keeps this memory, so each look for a message is slow",
            "device-DAX (an NVDIMM of the guest), or a KVM that does not honour the memory types of the guest",
        );
    }
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

/// The data that is put in place, and the reason why the rest is not.
fn ways(spec: &WindowSpec, facts: &Facts) -> &'static str {
    if !spec.direct {
        return "every message is copied into a ring there and out of it (direct=off)";
    }
    if !facts.coherent {
        return "every message is copied into a ring there and out of it: stores of other nodes are not seen by themselves";
    }
    match (spec.heap, facts.medium.maps_pages()) {
        (true, false) => {
            "every message is copied into a ring there and out of it, for the heap cannot map single pages of this device-DAX (heap=on is \
             without effect; `ndctl create-namespace --align=4k` makes one that has them)"
        }
        (true, true) => {
            "RDMA Writes, and messages and answers to READs of 64 KiB or more, go straight to memory that is allocated in the window \
             (heap=on); shorter messages, and what goes to other memory, are copied into a ring there and out of it"
        }
        (false, false) => "every message is copied into a ring there and out of it",
        (false, true) => {
            "every message is copied into a ring there and out of it, for programs' memory is not in the window (heap=on puts it \
             there)"
        }
    }
}

/// The remedy for a window that cannot be opened.
fn remedy(error: &Error) -> &'static str {
    match error.errno() {
        libc::ENOENT | libc::ENOTDIR => "make the folder that it is to lie in, or name another place",
        libc::EACCES | libc::EROFS => {
            "a place where this user may write; for a device, the right to open it (chown, a rule of udev)"
        }
        libc::EPERM => "a file of this user's own that nobody else may write (chmod go-w), or a sealed memfd",
        libc::EPROTO => "the same version of Vervain at all nodes, and a new file",
        libc::ENOSPC | libc::EFBIG | libc::ENOMEM => {
            "a larger /dev/shm (docker run --shm-size), a smaller size=, a higher ulimit -f; of nodes there are 8"
        }
        libc::EBUSY => "another node=, or end the processes of the node, or of the device, that the sentence names",
        libc::ENODEV | libc::ENXIO | libc::EIO => {
            "what the sentence says; docs/windows.md shows guests with such devices"
        }
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
        let folder = tempfile::tempdir().unwrap();
        let options = Options { size: Some(8 << 20), nodes: Some(2), ..Options::default() };
        let file = vervain_window::open(&folder.path().join("w"), &options).unwrap().facts().clone();
        for (heap, direct, coherent, medium, says) in [
            (true, true, true, Medium::File, "go straight to memory that is allocated in the window"),
            (true, true, true, Medium::Ivshmem, "go straight to memory that is allocated in the window"),
            (true, true, true, Medium::Dax { align: 4096 }, "go straight to memory that is allocated in the window"),
            (true, true, true, Medium::Dax { align: 2 << 20 }, "heap=on is without effect"),
            (false, true, true, Medium::File, "heap=on puts it there"),
            (true, false, true, Medium::File, "direct=off"),
            (true, true, false, Medium::File, "not seen by themselves"),
        ] {
            let words = ways(&spec(heap, direct), &Facts { coherent, medium, ..file.clone() });
            assert!(words.contains(says), "{words}");
            let is_direct = heap && direct && coherent && medium.maps_pages();
            assert_eq!(words.contains("every message is copied"), !is_direct, "{words}");
        }
    }

    #[test]
    fn a_device_is_told_with_its_speed_and_what_a_slow_one_costs() {
        let folder = tempfile::tempdir().unwrap();
        let spec = WindowSpec::of(b"ivshmem,node=0").unwrap();
        let options = Options { size: Some(8 << 20), nodes: Some(2), node: Some(0), peach2: None };
        let device = vervain_window::open(&folder.path().join("w"), &options).unwrap();
        let occupancy = device.claims().occupancy().unwrap();
        for (speed, status) in [(2_400_000_000, Status::Ok), (40_000_000, Status::Slower)] {
            let facts = Facts { medium: Medium::Ivshmem, read_speed: Some(speed), ..device.facts().clone() };
            let found = judge(&spec, &facts, &occupancy);
            assert_eq!(found.status, status);
            let says = format!("ivshmem: memory of an ivshmem device, read with {} MB/s, 7.9 MiB", speed / 1_000_000);
            assert!(found.found.contains(&says), "{found:?}");
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
