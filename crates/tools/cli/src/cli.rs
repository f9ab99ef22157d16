//! The command line: subcommands, options, their ranges and their help. No behaviour.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::environment::Variables;
use crate::settings::Settings;

/// Version and build of this command: what `vervain --version` prints behind the name.
///
/// The commit of the sources ("unknown" where they come without git), with "+dirty" if tracked files differed from it
/// when the command was compiled; the target; the features of the CPU that the compiler took for granted.
pub const BUILD: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (build ",
    env!("BUILD_COMMIT"),
    ", ",
    env!("BUILD_TARGET"),
    ", CPU features ",
    env!("BUILD_CPU_FEATURES"),
    ")"
);

/// RDMA without RDMA hardware.
///
/// Put `vervain run --` in front of a program that uses libibverbs and it finds an RDMA device: no RNIC, no kernel
/// module, no root, no daemon. Processes of one user on one host talk to each other at the cost of one copy, hosts by
/// RoCE v2 packets over UDP port 4791.
#[derive(Parser, Debug)]
#[command(
    name = "vervain",
    version,
    long_version = BUILD,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a program on Vervain's devices
    ///
    /// Sets the environment (library path, preload, device options) and executes the program in this very process, so
    /// its pid, its exit status and its signals are its own. Exit status if the program does not start: 2 for a mistake
    /// in an option or a variable, 125 if Vervain itself fails, 126 if the program cannot be executed, 127 if it is not
    /// found.
    #[command(after_help = RUN_EXAMPLES, override_usage = "vervain run [OPTIONS] [--] PROGRAM [ARGS]...")]
    Run(RunArgs),
    /// Run a program as the ranks of a parallel job on this host
    ///
    /// Starts N processes on Vervain's devices, which find each other by the launcher, and prints their output line by
    /// line, each line behind the number of its rank. Standard input is that of rank 0. If a rank ends with another
    /// status than 0, by a signal, or aborts the job, the others are ended. Exit status: 0 if that of all ranks is,
    /// else that of the first that failed, 128 and the signal's number for a signal; if the program does not start, as
    /// of `vervain run`.
    #[command(after_help = LAUNCH_EXAMPLES, override_usage = "vervain launch -n N [OPTIONS] [--] PROGRAM [ARGS]...")]
    Launch(LaunchArgs),
    /// Run programs as jobs that can be checkpointed, list them, kill them
    Job(crate::job::cli::JobArgs),
    /// Save a running job, so that it can be restarted after it has ended or was killed
    ///
    /// The job goes on, unless --stop is given. A checkpoint that is there is whole.
    Checkpoint(crate::job::cli::CheckpointArgs),
    /// Restart a job from its newest checkpoint, and stay in the foreground as `vervain job run` does
    ///
    /// What is in a checkpoint is executed, so one that another user has made, or could have changed, is refused.
    Restart(crate::job::cli::RestartArgs),
    /// Have jobs take turns: one has the CPUs for a while, and the others are stopped
    ///
    /// Stays in the foreground until the jobs have ended, or it is told to end. Then, or if it is killed, all jobs go
    /// on at once. Connections of a job that is stopped know of no time. Prints at its end what the switches have cost.
    #[command(after_help = crate::job::cli::GANG_EXAMPLES)]
    Gang(crate::job::cli::GangArgs),
    /// List the devices that a program under `vervain run` sees
    Devices(DevicesArgs),
    /// Check this machine for everything that Vervain uses, with cost and remedy of each lack
    ///
    /// Each check is a trial; one that cannot be made says "not tested". Exit status: 0 if Vervain can run here, even
    /// if slower; 1 if it cannot.
    Doctor(DoctorArgs),
    /// Print the environment variables that `vervain run` sets, for shells, Dockerfiles and CI, or list all variables
    #[command(after_help = ENV_EXAMPLES)]
    Env(EnvArgs),
    /// Measure any verbs device, with and without interference, and draw the results
    #[command(after_help = crate::bench::cli::EXAMPLES)]
    Bench(crate::bench::cli::BenchArgs),
    /// Look at what ACP, the library for global memory, costs
    Acp(crate::acp::cli::AcpArgs),
    /// Print the completion script of a shell
    Completions(CompletionsArgs),
    /// Print the manual page, or write all of them into a directory
    Man(ManArgs),
    /// Print the answers of the verbs library as JSON (the process behind `devices` and `run`)
    #[command(hide = true)]
    Inventory(InventoryArgs),
    /// The second process of doctor's trial of memory access between processes
    #[command(hide = true)]
    Probe(ProbeArgs),
    /// Ends the ranks of a launcher that was killed; their numbers come by standard input
    #[command(hide = true)]
    Guard,
    /// The programs inside of a job's namespaces
    #[command(hide = true)]
    Inside(crate::job::cli::InsideArgs),
    /// Print the kind of memory that this process allocates (the process behind doctor's trial of sharing)
    #[command(hide = true)]
    Sharing,
}

const RUN_EXAMPLES: &str = "\
Examples:
  vervain run -- ibv_devinfo
  vervain run -- ib_write_lat            a server, and when it waits, in another terminal
  vervain run -- ib_write_lat localhost  its client
  vervain run --devices 2 --link-layer infiniband -- ibv_devices
  vervain run -v -- ./my-program         prints the environment and the libibverbs that it gets";

const LAUNCH_EXAMPLES: &str = "\
Examples:
  vervain launch -n 4 -- ./my-program
  vervain launch -n 4 --devices 2 --link roce --interface lo -- ./my-program   in packets, as `vervain run` does
  vervain launch -n 2 --verbs system -- ./my-program                           on this host's RDMA card
  vervain launch -n 8 --starter 64k -- ./my-acp-program                        with more starter memory of ACP";

const ENV_EXAMPLES: &str = "\
Examples:
  eval \"$(vervain env)\"                            bash, zsh, sh
  vervain env --format fish | source               fish
  vervain env --format github >> \"$GITHUB_ENV\"     GitHub Actions
  vervain env --format docker >> Dockerfile        Vervain is in /opt/vervain of the image
  vervain env --format docker --prefix /usr/local  Vervain is in /usr/local of the image
  vervain env --list                               all variables, their values and meanings";

/// What the devices look like. Each option but the last stands for a variable, which the library reads.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Device options")]
pub struct DeviceOptions {
    #[command(flatten)]
    pub settings: Settings,
    /// Directory of Vervain's libraries, if it is not beside the command
    #[arg(long, value_name = "DIR")]
    pub lib_dir: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct RunArgs {
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
    #[command(flatten)]
    pub device: DeviceOptions,
}

#[derive(Args, Debug)]
pub struct LaunchArgs {
    /// Number of ranks, 1 to 4096
    #[arg(short = 'n', long, value_name = "N", value_parser = ranks)]
    pub ranks: u32,
    /// Print the output of the ranks as it is, without their numbers; lines stay whole
    #[arg(long)]
    pub no_prefix: bool,
    /// The libibverbs of the ranks
    #[arg(long, value_enum, default_value_t = RanksVerbs::Vervain)]
    pub verbs: RanksVerbs,
    /// Do without the preload: no view of /sys/class/infiniband and /dev/infiniband, nothing allocated from shared
    /// memory
    #[arg(long)]
    pub no_preload: bool,
    /// Print the environment and the libibverbs that the ranks get, and, as --log info does, why each call failed
    #[arg(short, long)]
    pub verbose: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub command: Vec<OsString>,
    #[command(flatten)]
    pub starter: StarterOptions,
    #[command(flatten)]
    pub device: DeviceOptions,
}

/// Starter memories of ACP: what each rank has from the beginning, and others reach. Bytes; None: as the rank's
/// environment says.
#[derive(Args, Debug, Clone, Copy, Default, PartialEq, Eq)]
#[command(next_help_heading = "ACP options")]
pub struct StarterOptions {
    /// Starter memory of each rank, such as 4096, 64k or 1G, up to 1024G [env: ACP_STARTER_MEMORY]
    #[arg(long, value_name = "SIZE", value_parser = starter_memory)]
    pub starter: Option<u64>,
    /// Starter memory of the channel library [env: ACP_STARTER_MEMORY_CL]
    #[arg(long, value_name = "SIZE", value_parser = starter_memory)]
    pub starter_cl: Option<u64>,
    /// Starter memory of the data library [env: ACP_STARTER_MEMORY_DL]
    #[arg(long, value_name = "SIZE", value_parser = starter_memory)]
    pub starter_dl: Option<u64>,
}

impl StarterOptions {
    /// The variables that the options stand for, of those that were given.
    pub fn variables(self) -> Variables {
        let all = [
            ("ACP_STARTER_MEMORY", self.starter),
            ("ACP_STARTER_MEMORY_CL", self.starter_cl),
            ("ACP_STARTER_MEMORY_DL", self.starter_dl),
        ];
        all.into_iter().filter_map(|(name, bytes)| Some((name, bytes?.to_string().into()))).collect()
    }
}

fn starter_memory(text: &str) -> Result<u64, String> {
    // ACP's own limit.
    const MOST: u64 = 1 << 40;
    vervain_config::bytes(text.as_bytes())
        .filter(|bytes| *bytes <= MOST)
        .ok_or_else(|| "it can be a number of bytes, such as 4096, 64k or 1G, up to 1024G".to_owned())
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum RanksVerbs {
    /// Vervain's, as under `vervain run`
    Vervain,
    /// The one that the dynamic linker finds; the environment stays as it is
    System,
}

fn ranks(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|ranks| (1..=4096).contains(ranks)).ok_or_else(|| "it can be 1 to 4096".to_owned())
}

#[derive(Args, Debug)]
pub struct DevicesArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub device: DeviceOptions,
}

#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Directory of Vervain's libraries, if it is not beside the command
    #[arg(long, value_name = "DIR")]
    pub lib_dir: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct EnvArgs {
    /// List Vervain's variables with their values, defaults and meaning; --format json has more
    #[arg(long, conflicts_with = "no_preload")]
    pub list: bool,
    /// Do without the preload: no view of /sys/class/infiniband and /dev/infiniband, nothing allocated from shared
    /// memory
    #[arg(long)]
    pub no_preload: bool,
    /// Format of the output
    #[arg(long, value_enum, default_value_t = EnvFormat::Sh)]
    pub format: EnvFormat,
    /// PREFIX of `make install` inside the image, for --format docker [default: /opt/vervain, as in
    /// examples/Dockerfile]
    #[arg(long, value_name = "DIR", value_parser = crate::env_format::prefix)]
    pub prefix: Option<String>,
    #[command(flatten)]
    pub device: DeviceOptions,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnvFormat {
    /// `export NAME='value'`
    Sh,
    /// `set -gx NAME 'value'`
    Fish,
    /// ENV lines of a Dockerfile, for an image that has Vervain in --prefix
    Docker,
    /// `NAME=value` lines for $GITHUB_ENV
    Github,
    /// One JSON object
    Json,
}

#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

#[derive(Args, Debug)]
pub struct ManArgs {
    /// Directory for the pages of all subcommands; without it the main page goes to standard output
    #[arg(value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct InventoryArgs {
    /// The libibverbs.so.1 to ask
    pub library: PathBuf,
}

#[derive(Args, Debug)]
pub struct ProbeArgs {
    /// Process whose memory is read and written
    pub pid: i32,
    /// Address of eight bytes there
    pub address: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn arguments_of_the_program_stay_the_programs() {
        let cli =
            Cli::try_parse_from(["vervain", "run", "--devices", "2", "--", "prog", "--devices", "99", "-v"]).unwrap();
        let Command::Run(run) = cli.command else { panic!("not run") };
        assert_eq!(run.device.settings.variables(), [("VERVAIN_DEVICES", "2".into())]);
        assert!(!run.verbose);
        assert_eq!(run.command, ["prog", "--devices", "99", "-v"]);
    }

    #[test]
    fn the_separator_may_be_left_out() {
        let cli = Cli::try_parse_from(["vervain", "run", "-v", "prog", "-x"]).unwrap();
        let Command::Run(run) = cli.command else { panic!("not run") };
        assert!(run.verbose);
        assert_eq!(run.command, ["prog", "-x"]);
    }

    #[test]
    fn sizes_of_starter_memories_become_variables_of_bytes() {
        let options = |given: &[&str]| {
            let words = ["vervain", "launch", "-n", "1"].iter().chain(given).chain(&["--", "prog"]);
            Cli::try_parse_from(words).map(|cli| match cli.command {
                Command::Launch(launch) => launch.starter.variables(),
                _ => panic!("not launch"),
            })
        };
        assert_eq!(options(&[]).unwrap(), []);
        assert_eq!(
            options(&["--starter", "64k", "--starter-cl", "0", "--starter-dl", "1024G"]).unwrap(),
            [
                ("ACP_STARTER_MEMORY", "65536".into()),
                ("ACP_STARTER_MEMORY_CL", "0".into()),
                ("ACP_STARTER_MEMORY_DL", "1099511627776".into())
            ]
        );
        for wrong in ["", "-1", "k", "1.5M", "1025G", "99999999999999999999", "4 kB"] {
            assert!(options(&["--starter", wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for bad in [["--devices", "0"], ["--devices", "17"], ["--ports", "5"], ["--link-layer", "token-ring"]] {
            assert!(Cli::try_parse_from(["vervain", "devices", bad[0], bad[1]]).is_err(), "{bad:?}");
        }
    }
}
