//! Slurm for tests: its daemons on one node, which is a network namespace, with a key, state and logs of their own in a
//! directory that goes with them. They are the only processes of a pid namespace, whose first process reads from a pipe of this
//! one: however a test ends, the pipe closes, and the kernel kills them and the steps that they have started.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::container::is_root;
use crate::netns::Network;
use crate::{Job, have, skip, tool, unswayed};

/// What runs in the namespaces, in the directory that is its argument: munged, the controller, the daemon of the node. Then it
/// says so and waits for the end of its input. Each wait is bounded.
const DAEMONS: &str = r#"
    cd "$0"
    export PATH="$PATH:/usr/sbin:/sbin" SLURM_CONF="$0/slurm.conf"
    deadline=$(($(date +%s) + 120))
    until_it() {
        until "$@"; do
            [ "$(date +%s)" -lt $deadline ] || { tail -n 20 *.log >&2; exit 1; }
            sleep 0.1
        done
    }
    is_idle() { [ "$(timeout 5 sinfo -h -o %T 2>/dev/null)" = idle ]; }
    mungekey --create --keyfile=munge.key
    munged --foreground --socket="$0/munge.socket" --key-file="$0/munge.key" --log-file="$0/munged.log" \
        --pid-file="$0/munged.pid" --seed-file="$0/munged.seed" > munged.out 2>&1 &
    until_it test -S munge.socket
    slurmctld -D > slurmctld.log 2>&1 &
    slurmd -D > slurmd.log 2>&1 &
    until_it is_idle
    echo ready
    exec cat
"#;

const LIMIT: Duration = Duration::from_secs(120);

/// The host's name in [`Network::of_one`].
const HOST: &str = "vervain-first";

/// A Slurm cluster of one node.
pub struct Slurm {
    holder: Child,
    /// What the daemons run in.
    _network: Network,
    directory: TempDir,
}

impl Slurm {
    /// Starts the daemons, with PMIx for the steps; None with a printed reason where that cannot be.
    ///
    /// # Panics
    /// When they are there and do not start within 120 s.
    pub fn start() -> Option<Slurm> {
        if !have(&["munged", "mungekey", "slurmctld", "slurmd", "sinfo", "srun", "unshare", "nsenter"]) {
            return None;
        }
        if !is_root() {
            skip("only root starts Slurm's daemons");
            return None;
        }
        let network = Network::of_one()?;
        // Slurm looks up its own name only where there is an address besides 127.0.0.1 (AI_ADDRCONFIG of getaddrinfo).
        network.first().ip(&["address", "add", "10.47.91.1/32", "dev", "lo"]);
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path();
        // munged demands that all users reach its socket.
        fs::set_permissions(path, fs::Permissions::from_mode(0o711)).expect("a directory of this user's");
        for name in ["state", "spool", "tmp"] {
            fs::create_dir(path.join(name)).expect("a directory");
        }
        fs::write(path.join("slurm.conf"), configuration(&path.display().to_string())).expect("a file");
        let mut command = unswayed("unshare");
        command.args(["--pid", "--mount-proc", "--fork", "--kill-child", "sh", "-ec", DAEMONS]).arg(path);
        let mut command = network.first().enter(&command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut slurm = Slurm { holder: command.spawn().expect("nsenter"), _network: network, directory };
        let mut ready = [0; 6];
        let said = slurm.holder.stdout.as_mut().map(|out| out.read_exact(&mut ready));
        assert!(matches!(said, Some(Ok(()))), "Slurm's daemons do not start");
        if !slurm.has_pmix() {
            skip("this Slurm has no PMIx");
            return None;
        }
        Some(slurm)
    }

    /// `srun -n RANKS`, with more ranks than processors allowed; `mpi` is how they are told of each other.
    pub fn srun(&self, mpi: &str, ranks: u32) -> Command {
        let mut command = self.command();
        command.args([&format!("--mpi={mpi}"), "--overcommit", "-n", &ranks.to_string()]);
        command
    }

    fn has_pmix(&self) -> bool {
        let listed = Job::start(self.command().arg("--mpi=list")).finish(LIMIT);
        listed.output.split_whitespace().any(|word| word == "pmix")
    }

    /// srun among the daemons, so that it ends with them.
    fn command(&self) -> Command {
        let pid = self.holder.id();
        let srun: PathBuf = tool("srun").expect("it was there");
        let mut command = unswayed("nsenter");
        // The holder itself is in the outer pid namespace.
        command.args(["-t", &pid.to_string(), "-m", "-n", "-u"]).arg(format!("--pid=/proc/{pid}/ns/pid_for_children"));
        command.arg("--").arg(srun).env("SLURM_CONF", self.directory.path().join("slurm.conf"));
        command
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

/// One node without control groups, which a test may not be allowed to make, and without accounting.
fn configuration(directory: &str) -> String {
    format!(
        "ClusterName=vervain
SlurmctldHost={HOST}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
TmpFS={directory}/tmp
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/linear
ReturnToService=2
MailProg=/bin/true
NodeName={HOST} NodeAddr=127.0.0.1 CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"
    )
}
