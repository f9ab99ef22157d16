//! Trials of what the local link does between processes: shared memory that can be sealed, the rendezvous socket,
//! copies from and to another process, and handles of processes.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::net::SocketType;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, geteuid, getpid, pidfd_open};

use vervain_names::Other;

use super::{Finding, Status};
use crate::probe;

/// A sealed memfd, which every arena is: peers map it and must not be able to shrink it under each other.
pub fn memfd() -> Finding {
    const CHECK: &str = "memfd and seals";
    let noexec = read("/proc/sys/vm/memfd_noexec");
    match seal_a_memfd() {
        Ok(()) => Finding::ok(CHECK, format!("works (vm.memfd_noexec {})", noexec.as_deref().unwrap_or("absent"))),
        Err(e) => Finding::with(
            Status::Broken,
            CHECK,
            format!("{e:#} (vm.memfd_noexec {})", noexec.as_deref().unwrap_or("absent")),
            "no memory can be shared between processes",
            "a kernel with memfd_create (Linux 3.17), sysctl vm.memfd_noexec below 2, a seccomp profile that allows it",
        ),
    }
}

fn seal_a_memfd() -> Result<()> {
    let fd = memfd_create("vervain-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .context("memfd_create fails")?;
    let file = File::from(fd);
    file.set_len(4096).context("a memfd cannot be given a size")?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&file, seals).context("a memfd cannot be sealed")?;
    ensure!(file.set_len(0).is_err(), "a sealed memfd can still be shrunk");
    Ok(())
}

/// An abstract unix socket with SO_PEERCRED, over which processes hand each other their arenas.
pub fn rendezvous() -> Finding {
    const CHECK: &str = "abstract unix sockets";
    match meet() {
        Ok(()) => Finding::ok(CHECK, "bind, connect and SO_PEERCRED work"),
        Err(e) => Finding::with(
            Status::Broken,
            CHECK,
            format!("{e:#}"),
            "processes cannot find each other",
            "a sandbox (AppArmor, Landlock, seccomp) refuses them: allow AF_UNIX sockets with abstract names",
        ),
    }
}

fn meet() -> Result<()> {
    let name = format!("vervain-doctor-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(name)?;
    let listener = UnixListener::bind_addr(&address).context("cannot bind one")?;
    let client = UnixStream::connect_addr(&address).context("cannot connect to one")?;
    let (server, _) = listener.accept().context("cannot accept on one")?;
    for end in [client.as_fd(), server.as_fd()] {
        let peer = socket_peercred(end).context("SO_PEERCRED fails")?;
        ensure!(peer.uid == geteuid(), "SO_PEERCRED tells another user ({})", peer.uid.as_raw());
    }
    Ok(())
}

/// The names under which programs of this user meet. Any user can take them; the first one has them.
pub fn names() -> Finding {
    let own = geteuid().as_raw();
    let held = |kind, prefix: &str| vervain_names::holders(kind, prefix).unwrap_or_default();
    let slots = held(SocketType::SEQPACKET, &vervain_names::slots(own));
    let mut port = held(SocketType::SEQPACKET, vervain_names::UDP);
    port.extend(held(SocketType::DGRAM, vervain_names::UDP));
    judge_names(&vervain_names::others(&slots, own), &vervain_names::others(&port, own))
}

/// Processes of a user on one host at most (docs/local-link.md).
const SLOTS: usize = 1022;

/// `slots`, `port`: users who have names of this user's slots, and names by which UDP port 4791 is shared.
fn judge_names(slots: &[Other], port: &[Other]) -> Finding {
    const CHECK: &str = "names of sockets";
    let (mut found, mut cost, mut processes) = (Vec::new(), Vec::new(), Vec::new());
    let sum = |others: &[Other]| others.iter().map(|other| other.names).sum::<usize>();
    let (taken, by_port) = (sum(slots), sum(port));
    let mut tell = |what: String, others: &[Other]| {
        let who: Vec<_> = others.iter().map(Other::to_string).collect();
        found.push(format!("{what}: {}", who.join("; ")));
        processes.extend(others.iter().filter_map(|other| Some(other.process.as_ref()?.0.to_string())));
    };
    if taken > 0 {
        tell(format!("{taken} of this user's {SLOTS} process slots are another user's"), slots);
        let all = taken >= SLOTS;
        cost.push(if all { "no program of this user can make a QP" } else { "fewer processes of this user at a time" });
    }
    if by_port > 0 {
        tell(format!("{by_port} names for sharing UDP port 4791 are another user's"), port);
        cost.push("no packets from and to the addresses that they have; peers of this host are reached");
    }
    if found.is_empty() {
        return Finding::ok(CHECK, "no other user has those of this user's programs");
    }
    let end = match &processes[..] {
        [] => "that user's process has to end (as root, vervain doctor says which it is)".to_owned(),
        pids => format!("as root: kill {}", pids.join(" ")),
    };
    let status = if taken >= SLOTS { Status::Broken } else { Status::Note };
    let remedy = format!("{end}; or a network namespace of your own, which no other user enters");
    Finding::with(status, CHECK, found.join("; "), cost.join("; "), remedy)
}

/// process_vm_readv and process_vm_writev, really called between two processes.
pub fn process_vm() -> Finding {
    let yama = read("/proc/sys/kernel/yama/ptrace_scope");
    let filtered = read("/proc/self/status").is_some_and(|s| s.contains("\nSeccomp:\t2"));
    match probe::between_processes() {
        Ok((without, with)) => judge_process_vm(without, with, yama.as_deref(), filtered),
        Err(e) => judge_failure(&format!("{e:#}"), yama.as_deref()),
    }
}

const PROCESS_VM: &str = "process_vm access";
const PROCESS_VM_COST: &str = "memory that peers cannot map is copied by a thread of its owner: each such operation waits \
                               for that thread to wake";

fn judge_process_vm(without: probe::Outcome, with: probe::Outcome, yama: Option<&str>, filtered: bool) -> Finding {
    let scope = yama.map_or_else(|| "no Yama".to_owned(), |s| format!("Yama ptrace_scope {s}"));
    if without.works() {
        return Finding::ok(PROCESS_VM, format!("read and write work ({scope})"));
    }
    if with.works() {
        let found = format!("read and write work with PR_SET_PTRACER, which Vervain's library asks for ({scope})");
        return Finding::ok(PROCESS_VM, found);
    }
    let errno = with.read.or(with.write).unwrap_or(Errno::UnknownErrno);
    let seccomp = if filtered { ", under a seccomp filter" } else { "" };
    let found = format!("refused: {} ({scope}{seccomp})", errno.desc());
    let remedy = match (errno, yama) {
        (Errno::EPERM, Some("2" | "3")) => "as root: sysctl kernel.yama.ptrace_scope=1 (from 3 only by a reboot)",
        (Errno::ENOSYS, _) if !filtered => "a kernel with CONFIG_CROSS_MEMORY_ATTACH",
        _ if filtered => {
            "start the container with --cap-add SYS_PTRACE, or a seccomp profile that allows process_vm_readv and \
             process_vm_writev"
        }
        _ => "a security module or a user namespace refuses it: run both processes in the same one",
    };
    Finding::with(Status::Slower, PROCESS_VM, found, PROCESS_VM_COST, remedy)
}

fn judge_failure(error: &str, yama: Option<&str>) -> Finding {
    Finding::with(
        Status::NotTested,
        PROCESS_VM,
        format!("could not be tried: {error} (Yama ptrace_scope {})", yama.unwrap_or("absent")),
        PROCESS_VM_COST,
        "let this user start a second process (ulimit -u, pids limit of the container)",
    )
}

/// A handle of a process, by which its death is seen at once.
pub fn pidfd() -> Finding {
    const CHECK: &str = "pidfd";
    match pidfd_open(getpid(), PidfdFlags::empty()) {
        Ok(_) => Finding::ok(CHECK, "pidfd_open works"),
        Err(e) => Finding::with(
            Status::Note,
            CHECK,
            format!("pidfd_open fails: {}", io::Error::from(e)),
            "the death of a peer may be noticed later, not missed",
            "Linux 5.3 or later, and a seccomp profile that allows pidfd_open",
        ),
    }
}

/// A small file of /proc or /sys, trimmed; None if it cannot be read.
pub fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|s| s.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Outcome;

    const WORKS: Outcome = Outcome { read: None, write: None };
    const REFUSED: Outcome = Outcome { read: Some(Errno::EPERM), write: Some(Errno::EPERM) };

    #[test]
    fn leave_by_prctl_is_enough() {
        let f = judge_process_vm(REFUSED, WORKS, Some("1"), false);
        assert_eq!(f.status, Status::Ok);
        assert!(f.found.contains("PR_SET_PTRACER"), "{}", f.found);
    }

    #[test]
    fn yama_and_seccomp_have_remedies_of_their_own() {
        let yama = judge_process_vm(REFUSED, REFUSED, Some("2"), false);
        assert_eq!(yama.status, Status::Slower);
        assert!(yama.remedy.contains("ptrace_scope=1"), "{}", yama.remedy);
        let seccomp = judge_process_vm(REFUSED, REFUSED, None, true);
        assert!(seccomp.remedy.contains("SYS_PTRACE"), "{}", seccomp.remedy);
        let kernel = Outcome { read: Some(Errno::ENOSYS), write: Some(Errno::ENOSYS) };
        assert!(judge_process_vm(kernel, kernel, None, false).remedy.contains("CONFIG_CROSS_MEMORY_ATTACH"));
    }

    #[test]
    fn a_stranger_with_the_names_of_this_user_is_told_with_what_to_do() {
        let other = |names, process: Option<i32>| {
            let process = process.map(|pid| (pid, "squat".to_owned()));
            [Other { uid: 1001, names, process }]
        };
        assert_eq!(judge_names(&[], &[]).status, Status::Ok);
        let all = judge_names(&other(SLOTS, Some(77)), &[]);
        assert_eq!((all.status, &*all.cost), (Status::Broken, "no program of this user can make a QP"));
        assert!(all.found.ends_with("another user's: uid 1001, process 77 (squat)"), "{}", all.found);
        assert!(all.remedy.starts_with("as root: kill 77; or"), "{}", all.remedy);
        let some = judge_names(&other(3, None), &other(1, None));
        assert_eq!(some.status, Status::Note);
        assert!(some.found.contains("3 of this user's 1022") && some.found.contains("1 names for"), "{}", some.found);
        assert!(some.remedy.contains("vervain doctor says which"), "{}", some.remedy);
    }
}
