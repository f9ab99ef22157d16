//! Containers without an engine: processes of a test in user, pid, mount and IPC namespaces of their own, with a /dev/shm of
//! 64 MiB and a /proc and /tmp of their own, under what an engine may restrict. The network is that of a host of
//! [`crate::netns`], so two containers of one host are a pod.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::netns::Host;
use crate::{Job, c_program, library, unswayed, vervain};

const LIMIT: Duration = Duration::from_secs(20);

/// Where a container has the `vervain` command.
pub const VERVAIN: &str = "/mnt/bin/vervain";
/// Where it has the compiled programs of `tests/c`.
pub const PROGRAMS: &str = "/mnt/c";
/// Where it has what it shares with others.
pub const VOLUME: &str = "/mnt/volume";

/// What a container's engine restricts.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// A user namespace, whose root is the user of the test: rootless Podman.
    pub rootless: bool,
    /// Programs run as this user of the container. Needs root on the host, and is for containers that are not rootless.
    pub uid: Option<u32>,
    /// Programs have Docker's default capabilities: CAP_SYS_PTRACE, for one, is not among them. Needs root on the host.
    pub few_capabilities: bool,
    /// Nothing outside of /dev/shm, /mnt and /proc can be written to.
    pub read_only_root: bool,
    /// Programs see no other user's processes in /proc, and of their own user's those that they may trace.
    pub hidden_processes: bool,
    /// System calls that fail, and the errno (seccomp).
    pub refused: Vec<(libc::c_long, i32)>,
}

/// A container that runs nothing but what is started in it.
pub struct Container {
    holder: Child,
    limits: Limits,
}

impl Container {
    /// Makes a container in the network of `host`.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn start(host: &Host, limits: &Limits) -> Container {
        Container::with_volume(host, limits, Path::new(""))
    }

    /// The same, with a file or folder of this machine at [`VOLUME`].
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn with_volume(host: &Host, limits: &Limits, volume: &Path) -> Container {
        let command = vervain();
        let directory = library(&command).expect("the libraries beside the command");
        let programs = c_program("refuse");
        let mut unshare = Command::new("unshare");
        if limits.rootless {
            unshare.args(["--user", "--map-root-user"]);
        }
        unshare.args(["--pid", "--mount", "--ipc", "--fork", "--kill-child", "sh", "-ec"]);
        unshare.arg(
            "mount -t tmpfs -o size=1m tmpfs /mnt; mkdir -p /mnt/bin /mnt/lib/vervain /mnt/c
             for d in bin lib/vervain c; do mount --bind \"$1\" /mnt/$d; shift; done
             if [ -n \"$3\" ]; then
                 if [ -d \"$3\" ]; then mkdir /mnt/volume; else : > /mnt/volume; fi
                 mount --bind \"$3\" /mnt/volume
             fi
             mount -t tmpfs -o size=64m,mode=1777 tmpfs /dev/shm
             mount -t proc -o \"hidepid=$1\" proc /proc
             if [ \"$2\" = true ]; then mount -o remount,bind,ro /; else mount -t tmpfs -o mode=1777 tmpfs /tmp; fi
             exec cat",
        );
        let parent = |file: &Path| file.parent().expect("a file is in a directory").to_owned();
        unshare.arg("sh").args([parent(&command), directory, parent(&programs)]);
        unshare.arg(if limits.hidden_processes { "4" } else { "0" }).arg(limits.read_only_root.to_string()).arg(volume);
        let mut start = host.enter(&unshare);
        let mut holder =
            start.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap_or_else(|e| panic!("{start:?}: {e}"));
        // The answer is cat's: from then on the container's first process is no shell any more.
        let mut answer = [0];
        let asked = holder.stdin.as_mut().map(|cat| cat.write_all(b"?"));
        let said = holder.stdout.as_mut().map(|cat| cat.read_exact(&mut answer));
        assert!(matches!((asked, said), (Some(Ok(())), Some(Ok(())))), "no container by {start:?}");
        Container { holder, limits: limits.clone() }
    }

    /// The command, in this container and under its limits.
    pub fn enter(&self, command: &Command) -> Command {
        let pid = self.holder.id();
        let mut inside = Command::new("nsenter");
        inside.args(["-t", &pid.to_string(), "-n", "-u", "-i", "-m"]);
        // The holder itself stays in the outer pid namespace.
        inside.arg(format!("--pid=/proc/{pid}/ns/pid_for_children"));
        if self.limits.rootless || !is_root() {
            inside.args(["-U", "--preserve-credentials"]);
        }
        inside.arg("--");
        inside.args(self.limits.wrapper()).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }

    /// `vervain run -- program` in this container, a program of `tests/c` or a tool, with none of this process's Vervain
    /// variables.
    pub fn under_vervain(&self, program: &str, args: &[&str], variables: &[(&str, &str)]) -> Command {
        let mut command = unswayed(VERVAIN);
        command.args(["run", "--"]).arg(program).args(args).envs(variables.iter().copied());
        self.enter(&command)
    }
}

impl Limits {
    /// Whether this user can make such a container; prints why not.
    pub fn can_be_had(&self) -> bool {
        if !crate::have(&["setpriv", "unshare", "mount"]) {
            return false;
        }
        let end = Job::start(&mut self.attempt()).finish(LIMIT);
        if !end.success() {
            crate::skip(format_args!("this user cannot make such a container: {}", end.describe()));
        }
        end.success()
    }

    /// Whether this user can make such a container in the network of `host`, which may have come with more rights.
    pub fn can_be_had_on(&self, host: &Host) -> bool {
        let needs_root = self.uid.is_some() || self.few_capabilities;
        (is_root() || !needs_root) && Job::start(&mut host.enter(&self.attempt())).finish(LIMIT).success()
    }

    /// A command that makes such a container and ends.
    fn attempt(&self) -> Command {
        let mut tried = Command::new("unshare");
        tried.args(if self.rootless { &["--user", "--map-root-user"][..] } else { &[] });
        tried.args([
            "--pid",
            "--mount",
            "--ipc",
            "--fork",
            "sh",
            "-c",
            "mount -t proc proc /proc && exec \"$@\"",
            "sh",
        ]);
        tried.args(self.privileges()).arg("true");
        tried
    }

    /// The commands that impose the limits on the rest of the command line.
    fn wrapper(&self) -> Vec<String> {
        let mut words = self.privileges();
        if !self.refused.is_empty() {
            let refused: Vec<_> = self.refused.iter().map(|(call, errno)| format!("{call}={errno}")).collect();
            words.extend([format!("{PROGRAMS}/refuse"), refused.join(",")]);
        }
        words
    }

    /// What takes privileges away.
    fn privileges(&self) -> Vec<String> {
        let mut words = Vec::new();
        if self.uid.is_some() || self.few_capabilities {
            words.push("setpriv".to_owned());
        }
        if let Some(uid) = self.uid {
            words.extend([format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".to_owned()]);
        }
        if self.few_capabilities {
            words.extend(["--inh-caps=-all".to_owned(), format!("--bounding-set=-all,+{}", CAPABILITIES.join(",+"))]);
        }
        words
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // The first process of the pid namespace dies with its parent, and all others with it.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Whether this process is root's.
pub fn is_root() -> bool {
    // SAFETY: no arguments, no memory effects.
    unsafe { libc::geteuid() == 0 }
}

/// What Docker leaves to root in a container.
const CAPABILITIES: [&str; 14] = [
    "chown",
    "dac_override",
    "fsetid",
    "fowner",
    "mknod",
    "net_raw",
    "setgid",
    "setuid",
    "setfcap",
    "setpcap",
    "net_bind_service",
    "sys_chroot",
    "kill",
    "audit_write",
];

/// What Docker's default seccomp profile refuses to a container without further capabilities, of Linux's common calls.
pub fn docker_refuses() -> Vec<(libc::c_long, i32)> {
    let refused = [
        libc::SYS_syslog,
        libc::SYS_vhangup,
        libc::SYS_pivot_root,
        libc::SYS_acct,
        libc::SYS_settimeofday,
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_swapon,
        libc::SYS_swapoff,
        libc::SYS_reboot,
        libc::SYS_sethostname,
        libc::SYS_setdomainname,
        libc::SYS_init_module,
        libc::SYS_finit_module,
        libc::SYS_delete_module,
        libc::SYS_quotactl,
        libc::SYS_quotactl_fd,
        libc::SYS_lookup_dcookie,
        libc::SYS_clock_settime,
        libc::SYS_mbind,
        libc::SYS_get_mempolicy,
        libc::SYS_set_mempolicy,
        libc::SYS_set_mempolicy_home_node,
        libc::SYS_migrate_pages,
        libc::SYS_move_pages,
        libc::SYS_kexec_load,
        libc::SYS_add_key,
        libc::SYS_request_key,
        libc::SYS_keyctl,
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_perf_event_open,
        libc::SYS_bpf,
        libc::SYS_fanotify_init,
        libc::SYS_open_by_handle_at,
        libc::SYS_kcmp,
        libc::SYS_userfaultfd,
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
        libc::SYS_open_tree,
        libc::SYS_move_mount,
        libc::SYS_fsopen,
        libc::SYS_fsconfig,
        libc::SYS_fsmount,
        libc::SYS_fspick,
        libc::SYS_mount_setattr,
        libc::SYS_pidfd_getfd,
        libc::SYS_process_madvise,
    ];
    refused.map(|call| (call, libc::EPERM)).into_iter().chain([(libc::SYS_clone3, libc::ENOSYS)]).collect()
}

/// What Podman's refuses: process_vm calls and membarrier too, and what is newer than the profile does not exist.
pub fn podman_refuses() -> Vec<(libc::c_long, i32)> {
    let refused = [
        libc::SYS_membarrier,
        libc::SYS_migrate_pages,
        libc::SYS_move_pages,
        libc::SYS_kexec_load,
        libc::SYS_swapon,
        libc::SYS_swapoff,
        libc::SYS_userfaultfd,
        libc::SYS_vmsplice,
        libc::SYS_open_by_handle_at,
        libc::SYS_bpf,
        libc::SYS_fanotify_init,
        libc::SYS_lookup_dcookie,
        libc::SYS_perf_event_open,
        libc::SYS_quotactl,
        libc::SYS_setdomainname,
        libc::SYS_sethostname,
        libc::SYS_init_module,
        libc::SYS_finit_module,
        libc::SYS_delete_module,
        libc::SYS_mbind,
        libc::SYS_get_mempolicy,
        libc::SYS_set_mempolicy,
        libc::SYS_acct,
        libc::SYS_kcmp,
        libc::SYS_process_madvise,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_ptrace,
        libc::SYS_settimeofday,
        libc::SYS_clock_settime,
        libc::SYS_vhangup,
    ];
    let unknown = [
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
        libc::SYS_futex_waitv,
        libc::SYS_epoll_pwait2,
        libc::SYS_memfd_secret,
        libc::SYS_landlock_create_ruleset,
        libc::SYS_mount_setattr,
        libc::SYS_process_mrelease,
        libc::SYS_set_mempolicy_home_node,
        libc::SYS_add_key,
        libc::SYS_request_key,
        libc::SYS_fanotify_mark,
        libc::SYS_readahead,
    ];
    let refused = refused.map(|call| (call, libc::EPERM));
    refused.into_iter().chain(unknown.map(|call| (call, libc::ENOSYS))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::have_c;
    use crate::netns::Network;

    /// What a shell line prints in such a container.
    fn says(network: &Network, limits: &Limits, line: &str) -> String {
        let container = Container::start(network.first(), limits);
        let end = Job::start(&mut container.enter(Command::new("sh").args(["-c", line]))).finish(LIMIT);
        end.output.trim().to_owned()
    }

    #[test]
    fn limits_hold() {
        let plain = Limits::default();
        if !have_c() || !plain.can_be_had() {
            return;
        }
        let Some(network) = Network::of_two(1500) else { return };
        let says = |limits: &Limits, line: &str| says(&network, limits, line);
        assert_eq!(says(&plain, "cat /proc/1/comm"), "cat", "the first process is the container's own");
        assert_eq!(says(&plain, "df -m --output=size /dev/shm | tail -n 1"), "64");
        assert_eq!(says(&plain, "test -w /usr && grep Seccomp: /proc/self/status"), "Seccomp:\t0");
        assert_eq!(
            says(&Limits { read_only_root: true, ..plain.clone() }, "test -w /usr || echo read-only"),
            "read-only"
        );
        let user = Limits { uid: Some(1000), hidden_processes: true, ..plain.clone() };
        if user.can_be_had() {
            assert_eq!(says(&user, "id -u; test -e /proc/1 || echo hidden"), "1000\nhidden");
        }
        let docker = Limits { few_capabilities: true, refused: docker_refuses(), ..plain.clone() };
        assert_eq!(says(&docker, "grep -c CapEff:.00000000a80425fb /proc/self/status"), "1", "Docker's capabilities");
        assert!(says(&docker, "unshare --uts true").contains("not permitted"));
        let podman = Limits { rootless: true, refused: podman_refuses(), ..plain };
        if !podman.can_be_had() {
            return;
        }
        assert_eq!(
            says(&podman, "id -u; grep -c . /proc/self/uid_map; grep Seccomp: /proc/self/status"),
            "0\n1\nSeccomp:\t2"
        );
        let ids = |kind: &str| format!("readlink /proc/self/ns/{kind}");
        for kind in ["user", "pid", "mnt", "ipc", "net"] {
            let ours = std::fs::read_link(format!("/proc/self/ns/{kind}")).expect("a namespace");
            assert_ne!(says(&podman, &ids(kind)), ours.display().to_string(), "a {kind} namespace of its own");
        }
    }
}
