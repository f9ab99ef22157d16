//! The command line of jobs. No behaviour.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use vervain_job::gang::{LONGEST_SLICE, SHORTEST_SLICE};
use vervain_job::hosts::{Host, Moves, RemoteStart};
use vervain_job::manifest::Network;
use vervain_job::place::Name;

use crate::cli::DeviceOptions;

pub const EXAMPLES: &str = "\
Examples:
  vervain job run --name lu -- mpirun -n 2 ./lu           then, elsewhere: vervain checkpoint lu ~/lu-checkpoints
  vervain job run --name lu --dir ~/lu-checkpoints --every 10m --keep 3 --restart -- mpirun -n 2 ./lu
  vervain restart ~/lu-checkpoints                        goes on from the newest checkpoint
  vervain job run --cooperative --name lu --dir ~/lu-checkpoints -- vervain launch -n 4 -- ./lu    a program that saves itself
  vervain job list";

#[derive(Args, Debug)]
pub struct JobArgs {
    #[command(subcommand)]
    pub command: JobCommand,
}

#[derive(Subcommand, Debug)]
pub enum JobCommand {
    /// Run a program on Vervain's devices, as a job that can be checkpointed
    ///
    /// The job has process numbers, terminals, /dev/shm and a folder for temporary files of its own. This command stays
    /// in the foreground: the job's exit status is its own, signals are passed on, and the job ends with it. Needs root
    /// and CRIU.
    ///
    /// With --cooperative it needs neither, and the job has nothing of its own: a program that calls
    /// pmCheckpointIfAsked of libpm saves itself when `vervain checkpoint` asks, and goes on from there when it is
    /// started again.
    #[command(after_help = EXAMPLES, override_usage = "vervain job run --name NAME [OPTIONS] [--] PROGRAM [ARGS]...")]
    Run(Box<JobRunArgs>),
    /// List this user's jobs
    List(JobListArgs),
    /// Kill a job with all its processes
    Kill(JobKillArgs),
    /// Run a command on another host, as part of the job that this is called in
    ///
    /// Called by programs of a job, in place of ssh. Needs --remote-start of `vervain job run`, which has mpirun use it
    /// by itself. The command gets the streams of this one by TCP, which is not encrypted; the exit status is its own,
    /// 255 if it was not started.
    Rsh(JobRshArgs),
}

#[derive(Args, Debug)]
pub struct JobRshArgs {
    /// The host, by name or address
    pub host: Host,
    /// The words of the command, for a shell there
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub struct JobRunArgs {
    /// The job's name, by which `vervain checkpoint` finds it
    #[arg(long, value_name = "NAME")]
    pub name: Name,
    /// For a program that saves itself, by pmCheckpointIfAsked: no CRIU, no root, no namespaces
    #[arg(long, requires = "dir", conflicts_with_all = ["network", "criu", "remote_start", "map"])]
    pub cooperative: bool,
    /// The checkpoint from which such a program goes on: what `vervain restart` says
    #[arg(long, hide = true, requires = "cooperative", value_name = "PATH")]
    pub from: Option<PathBuf>,
    /// The network: that of this command, or one of the job's own with nothing but lo
    #[arg(long, value_enum, default_value_t = JobNetwork::Host)]
    pub network: JobNetwork,
    /// Do without the preload: no view of /sys/class/infiniband and /dev/infiniband, nothing allocated from shared
    /// memory
    #[arg(long)]
    pub no_preload: bool,
    /// Print the environment and the libibverbs that the program gets, and, as --log info does, why each call failed
    #[arg(short, long)]
    pub verbose: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub command: Vec<OsString>,
    /// Folder for the checkpoints of --every, --restart and --cooperative; only this user may be able to write there
    #[arg(long, value_name = "DIR", help_heading = "Checkpoint options")]
    pub dir: Option<PathBuf>,
    #[command(flatten)]
    pub upkeep: UpkeepOptions,
    #[command(flatten)]
    pub hosts: HostOptions,
    #[command(flatten)]
    pub device: DeviceOptions,
}

/// Where else a job has parts.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Options of several hosts")]
pub struct HostOptions {
    /// How a program is started on another host, such as ssh or 'srun -N1 -n1 -w {}': the job may then have parts there
    #[arg(long, value_name = "CMD")]
    pub remote_start: Option<RemoteStart>,
    /// Hosts and addresses that are others where the job is brought back, such as node1=node7,10.0.0.1=10.0.0.7
    #[arg(long, value_name = "OLD=NEW,...")]
    pub map: Option<Moves>,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobNetwork {
    /// The one that this command is in
    Host,
    /// One of the job's own, with lo: ports and Vervain's slots are free at any restart
    Private,
}

impl From<JobNetwork> for Network {
    fn from(network: JobNetwork) -> Network {
        match network {
            JobNetwork::Host => Network::Host,
            JobNetwork::Private => Network::Private,
        }
    }
}

/// What a supervisor does besides.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Checkpoint options")]
pub struct UpkeepOptions {
    /// Make a checkpoint as often as this, such as 10m or 90s
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub every: Option<Duration>,
    /// Keep so many of the checkpoints of --every, and remove older ones
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub keep: Option<u32>,
    /// If the job is killed, resume it from the newest checkpoint after this time; at most 3 times without a new one
    #[arg(long, value_name = "TIME", value_parser = time, num_args = 0..=1, require_equals = true, default_missing_value = "20s")]
    pub restart: Option<Duration>,
    /// The CRIU to use [default: that of PATH]
    #[arg(long, value_name = "PATH")]
    pub criu: Option<PathBuf>,
}

fn time(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .ok()
        .filter(|time| *time > Duration::ZERO)
        .ok_or_else(|| "it can be a time such as 20s, 10m or 1h 30m".to_owned())
}

#[derive(Args, Debug)]
pub struct JobListArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct JobKillArgs {
    /// The job's name
    pub name: Name,
}

#[derive(Args, Debug)]
pub struct CheckpointArgs {
    /// The job's name
    pub name: Name,
    /// Folder for the job's checkpoints; only this user may be able to write there
    pub dir: PathBuf,
    /// Let the job go on, which is the default
    #[arg(long, conflicts_with = "stop")]
    pub leave_running: bool,
    /// End the job with the checkpoint
    #[arg(long)]
    pub stop: bool,
    /// Remove older checkpoints in DIR, but for so many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub keep: Option<u32>,
    /// How long a job of --cooperative may take to come to where it saves itself
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "60s")]
    pub wait: Duration,
}

#[derive(Args, Debug)]
pub struct RestartArgs {
    /// Folder of a job's checkpoints, of which the newest is taken, or one checkpoint
    pub dir: PathBuf,
    /// Another name for the job
    #[arg(long, value_name = "NAME")]
    pub name: Option<Name>,
    #[command(flatten)]
    pub hosts: HostOptions,
    #[command(flatten)]
    pub upkeep: UpkeepOptions,
    /// Directory of Vervain's libraries, if it is not beside the command
    #[arg(long, value_name = "DIR")]
    pub lib_dir: Option<PathBuf>,
}

pub const GANG_EXAMPLES: &str = "\
Examples:
  vervain gang lu ft                            two jobs of `vervain job run`, until they have ended
  vervain gang lu ft --slice 20ms --for 10m     then all go on at once";

#[derive(Args, Debug)]
pub struct GangArgs {
    /// The jobs' names: two or more
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<Name>,
    /// How long each turn takes, from 1ms to 1h
    #[arg(long, value_name = "TIME", value_parser = slice, default_value = "100ms")]
    pub slice: Duration,
    /// End after so many switches from one job to the next
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub switches: Option<u64>,
    /// End after this time, such as 10m
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    pub time: Option<Duration>,
}

fn slice(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .ok()
        .filter(|time| (SHORTEST_SLICE..=LONGEST_SLICE).contains(time))
        .ok_or_else(|| "it can be a time from 1ms to 1h, such as 20ms or 2s".to_owned())
}

#[derive(Args, Debug)]
pub struct InsideArgs {
    #[command(subcommand)]
    pub command: InsideCommand,
}

/// The programs inside of a job's namespaces.
#[derive(Subcommand, Debug)]
pub enum InsideCommand {
    /// The first process
    Init {
        /// Descriptor of the connection to the supervisor
        line: RawFd,
        /// What to set up
        plan: String,
    },
    /// What becomes the job's first program
    Root {
        /// Its file and its words
        #[arg(required = true, trailing_var_arg = true)]
        command: Vec<OsString>,
    },
    /// What runs there besides
    Enter {
        /// Descriptor of the mount namespace
        mnt: RawFd,
        /// Descriptor of the network namespace
        net: RawFd,
        /// The program's file and its arguments
        #[arg(required = true, trailing_var_arg = true)]
        command: Vec<OsString>,
    },
    /// What sees to the job's devices and processes, as it is told on its standard input
    Serve,
    /// The agent on another host
    Part,
    /// The first process of a part on another host
    Starter,
    /// What `vervain job rsh` has there
    Shell,
    /// What becomes the first program of a job without namespaces
    Alone {
        /// The supervisor's process
        supervisor: i32,
        /// Its file and its words
        #[arg(required = true, trailing_var_arg = true)]
        command: Vec<OsString>,
    },
}
