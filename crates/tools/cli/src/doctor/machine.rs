//! Limits and surroundings: the libraries, CPUs, descriptors, memory limits, huge pages, containers, and what else on
//! this machine has to do with RDMA. Each line says what it means for Vervain, and is silent where it means nothing.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread::available_parallelism;

use anyhow::{Result, ensure};
use rustix::mm::{UserfaultfdFlags, userfaultfd as open_userfaultfd};
use rustix::process::{Resource, Rlimit, getrlimit};
use vervain_config::{Config, Setter, TABLE, Unknown, Variable};

use super::access::read;
use super::{Finding, Status};
use crate::cli::BUILD;
use crate::environment::Variables;
use crate::settings::{self, WrongSetting};
use crate::{inventory, libs};

/// Descriptors that a process keeps for each peer process: its arena, its memory, its wake pipe.
const DESCRIPTORS_PER_PEER: u64 = 3;
/// Descriptors of the program itself and of the device, roughly.
const DESCRIPTORS_OWN: u64 = 64;

/// The remedy for a wrong variable.
const ANOTHER_VALUE: &str = "unset the variable, or give it a value that it can have";

/// The text of `vervain --version`.
pub fn build() -> Finding {
    Finding::ok("build", format!("vervain {BUILD}"))
}

/// The libraries beside the command, and whether they list a device.
pub fn libraries(given: Option<&Path>) -> Finding {
    const CHECK: &str = "libraries";
    let listed = || -> Result<String> {
        let dir = libs::directory(given)?;
        let devices = inventory::query(&dir.join(libs::LIBIBVERBS), &Variables::new(), true)?;
        ensure!(!devices.is_empty(), "{} lists no device", dir.join(libs::LIBIBVERBS).display());
        let names: Vec<_> = devices.iter().map(|d| d.name.as_str()).collect();
        Ok(format!("{} lists {}", dir.display(), names.join(", ")))
    };
    match listed() {
        Ok(found) => Finding::ok(CHECK, found),
        Err(e) => {
            let remedy = if e.is::<WrongSetting>() {
                ANOTHER_VALUE
            } else {
                "`make build`, or install it and use the installed command"
            };
            Finding::with(Status::Broken, CHECK, format!("{e:#}"), "programs find no device", remedy)
        }
    }
}

/// The libibverbs that programs of this environment get without `vervain run`, as far as LD_LIBRARY_PATH decides it.
pub fn library_path(given: Option<&Path>) -> Finding {
    let entries = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    judge_library_path(&entries, libs::directory(given).ok().as_deref())
}

fn judge_library_path(entries: &OsStr, own: Option<&Path>) -> Finding {
    const CHECK: &str = "LD_LIBRARY_PATH";
    // It separates by colon and semicolon (ld.so(8)).
    let entries = entries.as_bytes().split(|b| matches!(b, b':' | b';')).filter(|entry| !entry.is_empty());
    let mut libraries = entries.map(|entry| Path::new(OsStr::from_bytes(entry)).join(libs::LIBIBVERBS));
    let Some(first) = libraries.find(|library| library.is_file()) else {
        return Finding::ok(CHECK, "has no libibverbs; `vervain run` puts Vervain's first");
    };
    let is_own = own.is_some_and(|own| own.join(libs::LIBIBVERBS).canonicalize().ok() == first.canonicalize().ok());
    if is_own {
        return Finding::ok(CHECK, "Vervain's libibverbs is the first, without `vervain run` too");
    }
    Finding::with(
        Status::Note,
        CHECK,
        format!("{} is the first libibverbs", first.display()),
        "programs that are started without `vervain run` get that one, and not Vervain's devices",
        "`vervain run -- PROGRAM`, or `eval \"$(vervain env)\"` after it was set",
    )
}

/// The settings of the environment.
pub fn variables() -> Finding {
    let set = TABLE.into_iter().filter(|variable| variable.setter == Setter::User);
    let set: Vec<_> = set.filter_map(|variable| Some((variable, variable.value()?))).collect();
    judge_variables(&set, &Unknown::of_process())
}

fn judge_variables(set: &[(&'static Variable, OsString)], unknown: &[Unknown]) -> Finding {
    const CHECK: &str = "variables";
    let wrong = |(variable, value): &(&'static Variable, OsString)| {
        Some(format!("{}{}", variable.name(), settings::mistake(variable, value)?))
    };
    let wrong: Vec<_> = set.iter().filter_map(wrong).collect();
    if !wrong.is_empty() {
        let cost = "`vervain run` starts no program, and the library has no device";
        return Finding::with(Status::Broken, CHECK, wrong.join("; "), cost, ANOTHER_VALUE);
    }
    if !unknown.is_empty() {
        let remedy = "names as in `vervain env --list`";
        let unknown: Vec<_> = unknown.iter().map(Unknown::to_string).collect();
        return Finding::with(Status::Note, CHECK, unknown.join(" "), "they have no effect", remedy);
    }
    let set: Vec<_> = set.iter().map(|(variable, value)| format!("{}={}", variable.name(), value.display())).collect();
    Finding::ok(CHECK, if set.is_empty() { "none is set: the defaults hold".to_owned() } else { set.join(", ") })
}

/// userfaultfd, for adoption of registered memory, as `vervain_hca::adopt` asks for it.
pub fn userfaultfd() -> Finding {
    const CHECK: &str = "userfaultfd";
    const NO_ADOPTION: &str = "VERVAIN_ADOPT=on has no effect: private memory is not shared while it is registered";
    /// UFFD_USER_MODE_ONLY (linux/userfaultfd.h): not refused to ordinary users.
    const USER_MODE_ONLY: UserfaultfdFlags = UserfaultfdFlags::from_bits_retain(1);
    let open = |flags: UserfaultfdFlags| {
        // SAFETY: no memory is ever registered with the descriptor, which is closed at the end of this function.
        unsafe { open_userfaultfd(flags | UserfaultfdFlags::CLOEXEC) }.ok()
    };
    let sysctl = read("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_else(|| "absent".into());
    let device = fs::OpenOptions::new().read(true).write(true).open("/dev/userfaultfd").ok();
    let access = yes(device.is_some());
    let found = |what| format!("{what} (vm.unprivileged_userfaultfd {sysctl}, /dev/userfaultfd {access})");
    if let Some(opened) = open(UserfaultfdFlags::empty()).or_else(|| new_userfaultfd(&device?)) {
        let adopted = Config::of_process().is_ok_and(|config| config.adopt);
        let setting = if adopted { "VERVAIN_ADOPT is on" } else { "VERVAIN_ADOPT is off" };
        if moves_pages(&opened) {
            return Finding::ok(CHECK, found(format!("works; {setting}")));
        }
        let found = found(format!("without UFFDIO_MOVE or write protection of shared memory; {setting}"));
        return Finding::with(Status::Note, CHECK, found, NO_ADOPTION, "Linux 6.8 or later");
    }
    let refused = if open(USER_MODE_ONLY).is_some() { "only for faults in user mode" } else { "refused" };
    Finding::with(
        Status::Note,
        CHECK,
        found(refused.to_owned()),
        NO_ADOPTION,
        "as root: sysctl vm.unprivileged_userfaultfd=1, or read and write access to /dev/userfaultfd",
    )
}

/// One by `/dev/userfaultfd`, which the open `device` is; `None` if the kernel refuses it.
fn new_userfaultfd(device: &fs::File) -> Option<OwnedFd> {
    /// USERFAULTFD_IOC_NEW (linux/userfaultfd.h).
    const NEW: libc::c_ulong = 0xaa00;
    // SAFETY: the request takes flags by value and returns a descriptor, which is owned at once.
    unsafe {
        let fd = libc::ioctl(device.as_raw_fd(), NEW as _, libc::O_CLOEXEC);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
    }
}

/// Whether the kernel has all that adoption needs: pages that are moved (Linux 6.8), write protection of shared memory.
fn moves_pages(userfaultfd: &OwnedFd) -> bool {
    /// UFFDIO_API, and UFFD_FEATURE_PAGEFAULT_FLAG_WP, _WP_HUGETLBFS_SHMEM and _MOVE (linux/userfaultfd.h).
    const API: libc::c_ulong = 0xc018_aa3f;
    const FEATURES: u64 = 1 << 0 | 1 << 12 | 1 << 16;
    let mut words = [0xaa, FEATURES, 0_u64];
    // SAFETY: `words` is a struct uffdio_api, of 24 bytes, as the request's number says.
    unsafe { libc::ioctl(userfaultfd.as_raw_fd(), API as _, words.as_mut_ptr()) == 0 }
}

fn yes(accessible: bool) -> &'static str {
    if accessible { "accessible" } else { "not accessible" }
}

/// CPUs that this process may use.
pub fn cpus() -> Finding {
    const CHECK: &str = "CPUs";
    match available_parallelism().map_or(1, usize::from) {
        1 => Finding::with(
            Status::Slower,
            CHECK,
            "1",
            "two processes that poll take turns: latency is the scheduler's time slice, not the memory's",
            "two CPUs or more (taskset, cpuset or CPU quota of the container); or completion channels instead of polling",
        ),
        n => Finding::ok(CHECK, n.to_string()),
    }
}

/// RLIMIT_NOFILE.
pub fn descriptors() -> Finding {
    let limit = getrlimit(Resource::Nofile);
    judge_descriptors(limit)
}

fn judge_descriptors(limit: Rlimit) -> Finding {
    const CHECK: &str = "open files";
    let show = |n: Option<u64>| n.map_or_else(|| "unlimited".to_owned(), |n| n.to_string());
    let (soft, hard) = (show(limit.current), show(limit.maximum));
    let Some(current) = limit.current else {
        return Finding::ok(CHECK, "unlimited");
    };
    let peers = current.saturating_sub(DESCRIPTORS_OWN) / DESCRIPTORS_PER_PEER;
    let found = format!("soft {soft}, hard {hard}: room for about {peers} peer processes");
    if peers >= 256 {
        return Finding::ok(CHECK, found);
    }
    let raise_hard = "limits.conf(5), LimitNOFILE= of the service, docker run --ulimit nofile=";
    let remedy = match limit.maximum {
        Some(maximum) if maximum <= current => raise_hard.to_owned(),
        _ => format!("ulimit -n {hard} (beyond: {raise_hard})"),
    };
    Finding::with(
        Status::Note,
        CHECK,
        found,
        format!("each peer process takes about {DESCRIPTORS_PER_PEER} descriptors; more peers are refused with EMFILE"),
        remedy,
    )
}

/// RLIMIT_MEMLOCK. Vervain locks no memory, but programs look at the limit.
pub fn memlock() -> Finding {
    const CHECK: &str = "locked memory";
    match getrlimit(Resource::Memlock).current {
        None => Finding::ok(CHECK, "unlimited"),
        Some(bytes) => {
            Finding::ok(CHECK, format!("{} KiB; Vervain locks none, so it does not limit registration", bytes >> 10))
        }
    }
}

/// Size and free space of /dev/shm. Vervain's own memory is in memfds, which are not counted there.
pub fn shm() -> Finding {
    const CHECK: &str = "/dev/shm";
    const MIB: u64 = 1 << 20;
    let lack = |found: String| {
        Finding::with(
            Status::Note,
            CHECK,
            found,
            "nothing for Vervain, whose memory is in memfds; MPI libraries and UCX keep theirs there",
            "mount -o remount,size=1G /dev/shm, docker run --shm-size=1g",
        )
    };
    match rustix::fs::statvfs("/dev/shm") {
        Err(e) => lack(format!("absent: {}", std::io::Error::from(e))),
        Ok(v) => {
            let (size, free) = (v.f_blocks * v.f_frsize / MIB, v.f_bavail * v.f_frsize / MIB);
            let found = format!("{size} MiB, {free} MiB free");
            if free < 128 { lack(found) } else { Finding::ok(CHECK, found) }
        }
    }
}

/// Transparent huge pages for shared memory.
pub fn huge_pages() -> Finding {
    const CHECK: &str = "huge pages (shmem)";
    let text = read("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    match text.as_deref().and_then(selected) {
        Some(mode @ ("always" | "within_size" | "advise" | "force")) => Finding::ok(CHECK, mode),
        other => Finding::with(
            Status::Note,
            CHECK,
            other.unwrap_or("not in this kernel"),
            "large shared regions are of 4 KiB pages: more TLB misses in large copies",
            "as root: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
        ),
    }
}

/// The word in brackets, as in `always [advise] never`.
fn selected(text: &str) -> Option<&str> {
    text.split_whitespace().find_map(|w| w.strip_prefix('[')?.strip_suffix(']'))
}

/// Container and namespaces.
pub fn surroundings() -> Finding {
    const CHECK: &str = "namespaces";
    /// PROC_PID_INIT_INO (linux/proc_ns.h): the inode of the first pid namespace.
    const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";
    let name = |kind: &str| {
        fs::read_link(format!("/proc/self/ns/{kind}"))
            .map_or_else(|_| format!("{kind} unknown"), |p| p.display().to_string())
    };
    let (pid, net) = (name("pid"), name("net"));
    let container = container();
    let first = pid == FIRST_PID_NAMESPACE;
    let found = format!(
        "{}, {pid}{}, {net}",
        container.unwrap_or("no container seen"),
        if first { " (the first)" } else { "" }
    );
    if container.is_none() && first {
        return Finding::ok(CHECK, found);
    }
    Finding::with(
        Status::Note,
        CHECK,
        found,
        "processes of other network namespaces are reached in packets; in other pid namespaces, memory that peers cannot \
         map is copied by its owner",
        "for memory alone start the programs in one container, or with --network container:NAME --pid container:NAME \
         (Kubernetes: one pod with shareProcessNamespace)",
    )
}

fn container() -> Option<&'static str> {
    if env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        return Some("Kubernetes pod");
    }
    if Path::new("/.dockerenv").exists() {
        return Some("Docker container");
    }
    if Path::new("/run/.containerenv").exists() {
        return Some("Podman container");
    }
    env::var_os("container").map(|_| "container")
}

/// RDMA devices that the kernel has: programs under `vervain run` do not see them.
pub fn hardware() -> Finding {
    const CHECK: &str = "kernel RDMA devices";
    let mut names: Vec<_> = fs::read_dir("/sys/class/infiniband")
        .map(|entries| entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    names.sort();
    if names.is_empty() {
        return Finding::ok(CHECK, "none");
    }
    Finding::ok(CHECK, format!("{}: not seen by programs under `vervain run`", names.join(", ")))
}

/// The kernel's release.
pub fn kernel() -> Finding {
    let uname = rustix::system::uname();
    Finding::ok("kernel", format!("Linux {} {}", uname.release().to_string_lossy(), uname.machine().to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selected_word_is_in_brackets() {
        assert_eq!(selected("always within_size [advise] never deny force"), Some("advise"));
        assert_eq!(selected(""), None);
    }

    #[test]
    fn another_libibverbs_in_front_of_vervains_is_named() {
        let place = tempfile::tempdir().unwrap();
        let [own, other, none] = ["own", "other", "none"].map(|name| place.path().join(name));
        for dir in [&own, &other, &none] {
            fs::create_dir(dir).unwrap();
        }
        for dir in [&own, &other] {
            fs::write(dir.join(libs::LIBIBVERBS), "").unwrap();
        }
        let judged = |dirs: &[&Path]| {
            let entries: Vec<_> = dirs.iter().map(|dir| dir.to_str().unwrap()).collect();
            judge_library_path(OsStr::new(&entries.join(":")), Some(&own))
        };
        let found = judged(&[&none, &other, &own]);
        assert_eq!(found.status, Status::Note);
        assert_eq!(found.found, format!("{}/libibverbs.so.1 is the first libibverbs", other.display()));
        for dirs in [&[own.as_path(), other.as_path()][..], &[none.as_path()], &[]] {
            assert_eq!(judged(dirs).status, Status::Ok, "{dirs:?}");
        }
    }

    #[test]
    fn descriptors_are_counted_in_peers() {
        let few = judge_descriptors(Rlimit { current: Some(256), maximum: Some(4096) });
        assert_eq!(few.status, Status::Note);
        assert!(few.found.contains("about 64 peer"), "{}", few.found);
        assert!(few.remedy.contains("ulimit -n 4096"));
        assert_eq!(judge_descriptors(Rlimit { current: Some(1024), maximum: None }).status, Status::Ok);
    }
}
