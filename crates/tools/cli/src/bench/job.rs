//! How the ranks of a job are started that measure: those of ACP and PM by `vervain launch`, those of an MPI by its
//! mpirun.

use std::process::{Command, Stdio};

use anyhow::{Result, bail};
use vervain_bench::case::Interface;
use vervain_bench::run::{JobRequest, Route};

use super::Workers;

/// An MPI as it is installed.
struct Mpi {
    name: &'static str,
    /// Its launcher: where two MPIs are installed it has a name of its own.
    launchers: [&'static str; 2],
    /// The part of `--version` by which this launcher is recognised.
    mark: &'static str,
    package: &'static str,
    options: &'static [&'static str],
    /// The option that says how many ranks there are.
    ranks: &'static str,
    /// More of them for ranks that use this device and nothing else.
    over_device: &'static [&'static str],
}

const OPEN_MPI: Mpi = Mpi {
    name: "Open MPI",
    launchers: ["mpirun.openmpi", "mpirun"],
    mark: "Open MPI",
    package: "openmpi-bin",
    // Ranks are pinned by the coordinator. A host of one processor runs both all the same.
    options: &["--bind-to", "none", "--oversubscribe"],
    ranks: "-np",
    over_device: &[
        "--mca",
        "pml",
        "ucx",
        "--mca",
        "osc",
        "ucx",
        "--mca",
        "btl",
        "self",
        // Or else it uses UCX for devices only that it knows by name.
        "--mca",
        "opal_common_ucx_tls",
        "any",
        "--mca",
        "opal_common_ucx_devices",
        "any",
    ],
};

const MPICH: Mpi = Mpi {
    name: "MPICH",
    launchers: ["mpirun.mpich", "mpirun"],
    mark: "HYDRA",
    package: "mpich",
    options: &["-bind-to", "none"],
    ranks: "-n",
    over_device: &[],
};

/// The interface that a rank was told.
pub fn interface(word: &str) -> Result<Interface> {
    let found = Interface::ALL.iter().copied().find(|interface| interface.word() == word);
    let Some(interface) = found.filter(|interface| interface.has_ranks()) else {
        bail!("no job has ranks of {word}");
    };
    Ok(interface)
}

/// The command that starts the ranks, or the sentence that says what is missing.
pub fn command(workers: &Workers, request: &JobRequest<'_>) -> Result<Command, String> {
    let rank = ["bench", "worker", "--join", request.name, "--interface", request.interface.word()];
    let (mpi, over_device) = match request.interface {
        Interface::Verbs | Interface::Window => return Err("it has no ranks".into()),
        Interface::Acp => {
            let mut command = launch(workers, request);
            command.args(["--starter", &request.starter.to_string(), "--"]).arg(&workers.exe).args(rank);
            command.env("ACP_DEVICES", &workers.device);
            return Ok(command);
        }
        Interface::Pm => {
            let mut command = launch(workers, request);
            command.arg("--").arg(&workers.exe).args(rank).env("PM_DEVICE", &workers.device);
            return Ok(command);
        }
        Interface::OpenMpi => (OPEN_MPI, true),
        Interface::OpenMpiOwn => (OPEN_MPI, false),
        Interface::Mpich => (MPICH, true),
        Interface::MpichOwn => (MPICH, false),
    };
    let launcher = mpi.launchers.into_iter().find(|launcher| says(launcher, mpi.mark)).ok_or_else(|| {
        let Mpi { name, launchers: [own, _], package, .. } = mpi;
        format!("{name} is not installed: there is no {own}, nor an mpirun of its (Debian: apt install {package})")
    })?;
    let mut command = Command::new(launcher);
    command.args(mpi.options).args([mpi.ranks, &request.ranks.to_string()]);
    // Open MPI asks for these before it starts as root.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    if over_device {
        workers.set_variables(&mut command, Route::Usual);
        command.args(mpi.over_device).env("UCX_TLS", "rc,self");
        command.env("UCX_NET_DEVICES", format!("{}:{}", workers.device, request.port));
    }
    command.arg(&workers.exe).args(rank);
    Ok(command)
}

/// `vervain launch` for so many ranks, without what it starts.
fn launch(workers: &Workers, request: &JobRequest<'_>) -> Command {
    let mut command = workers.command(Route::Usual);
    // The environment is that of workers already.
    command.args(["launch", "--verbs", "system", "--no-prefix", "-n", &request.ranks.to_string()]);
    command
}

/// Returns true if this launcher is there and says so of itself.
fn says(launcher: &str, mark: &str) -> bool {
    let output = Command::new(launcher).arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_told_an_interface_that_has_ranks() {
        assert_eq!(interface("mpich-own").ok(), Some(Interface::MpichOwn));
        for word in ["verbs", "mpi", ""] {
            assert!(interface(word).is_err_and(|e| e.to_string().contains("no job has ranks of")), "{word}");
        }
    }

    #[test]
    fn ranks_of_pm_are_launched_on_the_device_of_the_run() {
        let workers = Workers {
            exe: "/bin/vervain".into(),
            variables: vec![],
            device: "mlx5_0".into(),
            ours: false,
            note: String::new(),
        };
        let request = JobRequest { interface: Interface::Pm, port: 1, ranks: 2, starter: 4096, name: "here" };
        let command = command(&workers, &request).expect("a command");
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        let expected = "launch --verbs system --no-prefix -n 2 -- /bin/vervain bench worker --join here --interface pm";
        assert_eq!(words.join(" "), expected);
        let device = command.get_envs().find(|(name, _)| *name == "PM_DEVICE").and_then(|(_, value)| value);
        assert_eq!(device, Some("mlx5_0".as_ref()));
    }

    #[test]
    fn only_a_launcher_that_is_there_and_of_this_mpi_is_taken() {
        assert!(says("cargo", "cargo"), "it runs this test");
        assert!(!says("cargo", "HYDRA") && !says("no-such-launcher", ""));
    }
}
