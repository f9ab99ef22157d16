//! The ways to a peer's memory, best first (DESIGN decision 4): which are in force in a program under `vervain run`,
//! and why. The trial of process_vm calls is in `access.rs`.

use std::path::Path;

use anyhow::{Result, ensure};
use vervain_config::{Config, MemoryWay, Share};

use super::{Finding, Status};
use crate::libs;
use crate::sharing::{self, Serving};

/// Memory that the preload serves from sealed memfds, or from a window.
pub fn allocated_shared(lib_dir: Option<&Path>) -> Finding {
    let share = Config::of_process().map_or(Share::Auto, |config| config.share);
    let serving = libs::directory(lib_dir).and_then(|dir| sharing::under(&dir));
    judge_allocated_shared(share, serving, vervain_share::status::window())
}

const ALLOCATED_SHARED: &str = "allocated from shared memory";
const ALLOCATED_SHARED_COST: &str = "memory that programs allocate is not mapped by peers: each operation between \
                                     processes costs a system call, or waits for a thread of the owner";

fn judge_allocated_shared(share: Share, serving: Result<Serving>, window: Option<Result<String, String>>) -> Finding {
    let lack =
        |found: &str, remedy| Finding::with(Status::Slower, ALLOCATED_SHARED, found, ALLOCATED_SHARED_COST, remedy);
    match serving {
        Ok(Serving::InWindow) => {
            let place = window.and_then(Result::ok).unwrap_or_else(|| "in a window".to_owned());
            Finding::ok(ALLOCATED_SHARED, format!("in force: {place}, and get the rest from the C library"))
        }
        Ok(Serving::Served) if let Some(Err(why)) = window => Finding::with(
            Status::Slower,
            ALLOCATED_SHARED,
            format!("in a memfd and not in the window: {why}"),
            "peers of other nodes reach it through rings only",
            "what VERVAIN_WINDOW can be is in docs/environment.md",
        ),
        Ok(Serving::Served) => {
            Finding::ok(ALLOCATED_SHARED, "in force: peers map large allocations of programs under `vervain run`")
        }
        Ok(_) if share == Share::Off => lack("off: VERVAIN_SHARE is off", "unset VERVAIN_SHARE"),
        Ok(Serving::Off) => lack(
            "off: the preload is loaded but serves no memory from memfds",
            "VERVAIN_LOG=info says why; see memfd and seals, and the limits below",
        ),
        Ok(Serving::Absent) => {
            lack("not in force: the preload that is loaded does not share memory", "`make build`, or `make install`")
        }
        Ok(Serving::OtherVersion) => {
            lack("not in force: preload and command are of different versions", "`make build`, or `make install`")
        }
        Err(e) => Finding::with(
            Status::NotTested,
            ALLOCATED_SHARED,
            format!("could not be tried: {e:#}"),
            ALLOCATED_SHARED_COST,
            "`make build` puts the preload beside the libraries; let this user start a second process",
        ),
    }
}

/// Shared memory that programs make themselves.
pub fn programs_own() -> Finding {
    const CHECK: &str = "programs' own shared memory";
    const MEMFDS: &str = "memfds that are sealed against shrinking are mapped by peers";
    match attach_a_segment() {
        Ok(()) => Finding::ok(CHECK, format!("{MEMFDS}, and System V segments inside one IPC namespace")),
        Err(e) => Finding::with(
            Status::Note,
            CHECK,
            format!("{MEMFDS}; System V segments are not: {e:#}"),
            "memory in System V segments is reached like private memory",
            "a kernel with CONFIG_SYSVIPC; larger kernel.shmmni and kernel.shmall",
        ),
    }
}

/// Makes a segment of a page, attaches it by its number, and looks at it, as owner and peer do.
fn attach_a_segment() -> Result<()> {
    let failed = |what: &str| format!("{what} fails: {}", std::io::Error::last_os_error());
    // SAFETY: makes a segment of our own.
    let id = unsafe { libc::shmget(libc::IPC_PRIVATE, 4096, 0o600) };
    ensure!(id >= 0, failed("shmget"));
    // SAFETY: attaches it at an address of the kernel's choice; it goes with its last user, and IPC_STAT fills the
    // zeroed struct.
    let (at, seen) = unsafe {
        let at = libc::shmat(id, std::ptr::null(), 0);
        let mut stat: libc::shmid_ds = std::mem::zeroed();
        let seen = libc::shmctl(id, libc::IPC_STAT, &raw mut stat);
        libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
        (at, seen)
    };
    ensure!(at.addr() != usize::MAX, failed("shmat"));
    // SAFETY: attached just above.
    unsafe { libc::shmdt(at) };
    ensure!(seen == 0, "IPC_STAT fails");
    Ok(())
}

/// Copies by the owner, which need nothing of the machine.
pub fn owner_copies() -> Finding {
    const CHECK: &str = "owner copies";
    let found = match Config::of_process().map_or(MemoryWay::Auto, |config| config.memory) {
        MemoryWay::Vm => "not in use: VERVAIN_MEMORY is vm, and memory that process_vm cannot reach is an error",
        MemoryWay::Owner => "for all memory that is not mapped: VERVAIN_MEMORY is owner",
        MemoryWay::Auto => {
            "for atomics on memory that is not mapped, and if process_vm is refused; the machine has no part in them"
        }
    };
    Finding::not_tested(CHECK, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_switched_off_says_by_what() {
        let f = judge_allocated_shared(Share::Off, Ok(Serving::Off), None);
        assert_eq!(f.status, Status::Slower);
        assert!(f.found.contains("VERVAIN_SHARE"), "{}", f.found);
        assert_eq!(judge_allocated_shared(Share::Auto, Ok(Serving::Served), None).status, Status::Ok);
        assert!(judge_allocated_shared(Share::Auto, Ok(Serving::Absent), None).found.contains("does not share"));
        assert!(
            judge_allocated_shared(Share::Auto, Err(anyhow::anyhow!("no preload")), None).found.contains("no preload")
        );
        let place = Some(Ok("in the window w".to_owned()));
        let f = judge_allocated_shared(Share::Auto, Ok(Serving::InWindow), place);
        assert!(f.status == Status::Ok && f.found.contains("in the window w"), "{}", f.found);
        let f = judge_allocated_shared(Share::Auto, Ok(Serving::Served), Some(Err("too small".to_owned())));
        assert!(f.status == Status::Slower && f.found.contains("not in the window: too small"), "{}", f.found);
    }

    #[test]
    fn segments_can_be_tried() {
        let f = programs_own();
        assert!(f.found.contains("sealed against shrinking"), "{}", f.found);
    }
}
