//! The state of a process, as proc(5) shows it: whether it can answer.

use std::fs;
use std::path::Path;

/// The letter of the state of process `pid` (proc_pid_stat(5)); None if /proc does not show the process.
pub fn state(pid: i32) -> Option<char> {
    state_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Returns true if process `pid` lives and is neither stopped nor traced, so that it goes on once it gets a CPU. False
/// also if this process cannot see that: `pid` is 0, or /proc is missing, hides the process, or belongs to another pid
/// namespace.
pub fn can_run(pid: i32) -> bool {
    let own = std::process::id().to_string();
    let is_of_this_namespace = || fs::read_link("/proc/self").is_ok_and(|number| number == Path::new(&own));
    pid > 0 && is_of_this_namespace() && state(pid).is_some_and(|state| !"TtZXx".contains(state))
}

/// The letter of the state in the text of a `stat` of a process or thread. The name before it may have any characters.
pub fn state_in(stat: &str) -> Option<char> {
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Set for the process that looks from another pid namespace.
    const INSIDE: &str = "VERVAIN_TEST_PID_NAMESPACE";

    #[test]
    fn a_number_of_another_pid_namespace_is_no_process_here() {
        if std::env::var_os(INSIDE).is_some() {
            // The first process there; that of the namespace that /proc belongs to lives, too.
            assert!(std::process::id() == 1 && state(1).is_some() && !can_run(1));
            return;
        }
        let apart = ["--pid", "--fork"];
        if !Command::new("unshare").args(apart).arg("true").output().is_ok_and(|output| output.status.success()) {
            return vervain_skip::skip("unshare --pid does not work here");
        }
        let itself = "process::tests::a_number_of_another_pid_namespace_is_no_process_here";
        let mut command = Command::new("unshare");
        command.args(apart).arg(std::env::current_exe().unwrap()).args(["--exact", itself]).env(INSIDE, "1");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }

    #[test]
    fn the_state_is_behind_a_name_of_any_characters() {
        assert_eq!(state_in("7 (a) b) T 1 7"), Some('T'));
        assert_eq!(state_in("7 (T) R 1 7"), Some('R'));
        assert_eq!(state_in(""), None);
    }

    #[test]
    fn a_process_can_run_unless_it_is_stopped_or_gone() {
        assert!(can_run(std::process::id().cast_signed()) && !can_run(0) && !can_run(-1));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id().cast_signed();
        assert!(can_run(pid));
        // SAFETY: a signal to a child that has not been waited for.
        unsafe { libc::kill(pid, libc::SIGSTOP) };
        let mut status = 0;
        // SAFETY: waits until the child is stopped; the status is on this stack.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, libc::WUNTRACED) };
        assert!(waited == pid && libc::WIFSTOPPED(status));
        assert!(state(pid) == Some('T') && !can_run(pid));
        child.kill().unwrap();
        // SAFETY: waits for the end of the child and leaves it a zombie; zeros are valid for the struct, which is on
        // this stack.
        unsafe { libc::waitid(libc::P_PID, child.id(), &mut std::mem::zeroed(), libc::WEXITED | libc::WNOWAIT) };
        assert!(state(pid) == Some('Z') && !can_run(pid));
        child.wait().unwrap();
        assert!(state(pid).is_none() && !can_run(pid));
    }
}
