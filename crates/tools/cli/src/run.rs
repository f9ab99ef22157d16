//! `vervain run`: finds the program and the libraries, makes the sysfs view, sets the environment and executes. The
//! program replaces this process, so that its pid, signals and exit status are its own.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Result;
use vervain_config::{LOG, LogLevel, SYSFS, Variable};

use crate::cli::{DeviceOptions, RunArgs};
use crate::environment::{self, Variables};
use crate::program::{self, Executed, NotRunnable};
use crate::settings::{self, WrongSetting};
use crate::{inventory, libs, output, sysfs};

/// Exit status where a variable is wrong, as where an option is.
pub const WRONG_SETTING: u8 = 2;
/// Exit status where Vervain itself failed, as env(1) has it.
pub const FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Returns only if the program could not be started.
pub fn run(args: &RunArgs) -> ExitCode {
    match start(args) {
        Ok(never) => match never {},
        Err((status, error)) => {
            output::complain(&error);
            ExitCode::from(status)
        }
    }
}

fn start(args: &RunArgs) -> Result<std::convert::Infallible, (u8, anyhow::Error)> {
    let ready = Ready::new(&args.command, &args.device, !args.no_preload, args.verbose)?;
    let error = ready.command().exec();
    Err(ready.failed(&error))
}

/// A program that can be executed, and the environment that it gets.
pub struct Ready {
    words: Vec<OsString>,
    program: PathBuf,
    variables: Variables,
}

impl Ready {
    /// The program on Vervain's devices. The error has the exit status beside it.
    pub fn new(
        words: &[OsString],
        device: &DeviceOptions,
        preload: bool,
        verbose: bool,
    ) -> Result<Ready, (u8, anyhow::Error)> {
        // A wrong variable is treated as a wrong option: reported before anything is looked for.
        device.settings.in_force(Variable::value).map_err(|e| (WRONG_SETTING, e))?;
        let mut ready = Ready::as_it_is(words)?;
        let (dir, mut variables) =
            prepare(device, preload).map_err(|e| (if e.is::<WrongSetting>() { WRONG_SETTING } else { FAILED }, e))?;

        let executed = program::executed(&ready.program, env::var_os("PATH").as_deref());
        for obstacle in executed.iter().flat_map(|e| e.obstacles(&dir)) {
            output::note(&format!("warning: {obstacle}"));
        }
        if verbose {
            if !variables.iter().any(|(name, _)| *name == LOG.name()) {
                variables.push((LOG.name(), LogLevel::Info.word().into()));
            }
            for (name, value) in &variables {
                output::note(&format!("{name}={}", value.to_string_lossy()));
            }
            explain(&ready.program, executed.as_ref(), &dir, &variables);
        }
        ready.variables = variables;
        Ok(ready)
    }

    /// The program in the environment of this process.
    pub fn as_it_is(words: &[OsString]) -> Result<Ready, (u8, anyhow::Error)> {
        let program = program::find(&words[0], env::var_os("PATH").as_deref()).map_err(|e| {
            let status = if matches!(e, NotRunnable::NotFound(_)) { NOT_FOUND } else { NOT_EXECUTABLE };
            (status, anyhow::anyhow!("{e}"))
        })?;
        Ok(Ready { words: words.to_vec(), program, variables: Variables::new() })
    }

    /// Variables that the program gets besides.
    pub fn add(&mut self, variables: Variables, verbose: bool) {
        for (name, value) in variables.iter().filter(|_| verbose) {
            output::note(&format!("{name}={}", value.to_string_lossy()));
        }
        self.variables.extend(variables);
    }

    /// The file that is executed.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// A variable that the program gets.
    pub fn variable(&self, name: &str) -> Option<&OsStr> {
        self.variables.iter().find(|(of, _)| *of == name).map(|(_, value)| value.as_os_str())
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg0(&self.words[0]).args(&self.words[1..]);
        for (name, value) in &self.variables {
            if value.is_empty() {
                command.env_remove(name)
            } else {
                command.env(name, value)
            };
        }
        command
    }

    /// Exit status and sentence where executing it has failed.
    pub fn failed(&self, error: &io::Error) -> (u8, anyhow::Error) {
        (NOT_EXECUTABLE, cannot_execute(&self.program, error))
    }
}

/// The library directory and all variables for a program, with the sysfs view made if it is wanted.
pub fn prepare(options: &DeviceOptions, view: bool) -> Result<(PathBuf, Variables)> {
    let mut variables = options.settings.in_force(Variable::value)?;
    let dir = libs::directory(options.lib_dir.as_deref())?;
    settings::tell_unknown();
    // Needed without the view too: a setting that only the library can judge must be reported before the program
    // starts.
    let devices = match inventory::query(&dir.join(libs::LIBIBVERBS), &variables, true) {
        Err(e) if e.is::<WrongSetting>() => return Err(options.settings.by_option(e)),
        devices => devices,
    };
    if view && dir.join(libs::PRELOAD).is_file() {
        // A program that only uses libibverbs does not need the view, so its absence is reported and accepted.
        match devices.and_then(|devices| sysfs::tree(&devices)) {
            Ok(tree) => variables.push((SYSFS.name(), tree.into())),
            Err(e) => output::note(&format!("warning: no view of /sys/class/infiniband: {e:#}")),
        }
        variables.push(("LD_PRELOAD", environment::preload(&dir, env::var_os("LD_PRELOAD").as_deref())));
    } else {
        variables.extend(environment::without_preload(|name| env::var_os(name)));
    }
    let library_path = environment::library_path(&dir, env::var_os("LD_LIBRARY_PATH").as_deref());
    variables.insert(0, ("LD_LIBRARY_PATH", library_path));
    variables.extend(environment::client_defaults(|name| env::var_os(name).is_some()));
    variables.extend(environment::checkers(&dir, |name| env::var_os(name)));
    Ok((dir, variables))
}

/// exec(2) says ENOENT for a missing interpreter too, which reads as nonsense when the file is there.
fn cannot_execute(program: &Path, error: &io::Error) -> anyhow::Error {
    let shown = program.display();
    if error.kind() == io::ErrorKind::NotFound && program.exists() {
        return anyhow::anyhow!("cannot execute {shown}: the interpreter that it names is missing");
    }
    anyhow::anyhow!("cannot execute {shown}: {error}")
}

/// `-v`: which file is executed, and which libibverbs the dynamic linker takes for it.
fn explain(program: &Path, executed: Option<&Executed>, dir: &Path, variables: &Variables) {
    let Some(executed) = executed else {
        return output::note(&format!("cannot tell what {} executes", program.display()));
    };
    let via = if executed.path == program { String::new() } else { format!(" -> {}", executed.path.display()) };
    output::note(&format!("executes {}{via}", program.display()));
    if starts_ranks_of_mpich(program) && env::var_os(MPICH_WITHOUT_ITS_OWN).is_none() {
        output::note(&format!(
            "MPICH may pass messages inside a host through shared memory of its own, as that of PyPI does; \
             {MPICH_WITHOUT_ITS_OWN}=1 has it use the device"
        ));
    }
    let Some(interpreter) = executed.elf.interpreter.as_deref().filter(|_| executed.elf.native) else {
        return;
    };
    let ours = dir.join(libs::LIBIBVERBS);
    output::note(&match linked(interpreter, executed, variables) {
        Err(e) => format!("{} cannot be asked: {e}", interpreter.display()),
        Ok(Some(path)) if path.canonicalize().ok() == ours.canonicalize().ok() => {
            format!("libibverbs.so.1 => {} (Vervain's)", path.display())
        }
        Ok(Some(path)) => format!(
            "libibverbs.so.1 => {} (NOT Vervain's: see the warning above, or a DT_RPATH of a library it needs)",
            path.display()
        ),
        Ok(None) if executed.secure().is_some() => "it does not link libibverbs itself".to_owned(),
        Ok(None) => format!("it does not link libibverbs itself; one loaded later is {}", ours.display()),
    });
}

/// Has MPICH take each rank for one on a host of its own.
const MPICH_WITHOUT_ITS_OWN: &str = "MPIR_CVAR_NOLOCAL";

/// Returns true if a program is MPICH's launcher, Hydra: another part of it lies beside.
fn starts_ranks_of_mpich(program: &Path) -> bool {
    let real = program.canonicalize().unwrap_or_else(|_| program.to_owned());
    let name = real.file_name().unwrap_or_default().to_string_lossy();
    (name.starts_with("mpiexec") || name.starts_with("mpirun")) && real.with_file_name("hydra_pmi_proxy").is_file()
}

/// Asks the program's own dynamic linker (`ld.so --list`, which runs nothing of the program) for its libibverbs.
fn linked(interpreter: &Path, executed: &Executed, variables: &Variables) -> io::Result<Option<PathBuf>> {
    let mut linker = Command::new(interpreter);
    linker.arg("--list").arg(&executed.path);
    if executed.secure().is_some() {
        linker.env_remove("LD_LIBRARY_PATH").env_remove("LD_PRELOAD");
    } else {
        linker.envs(variables.iter().map(|(n, v)| (*n, v)));
    }
    Ok(listed(&linker.output()?.stdout))
}

/// The path in ld.so's line `libibverbs.so.1 => PATH (ADDRESS)`.
fn listed(list: &[u8]) -> Option<PathBuf> {
    let text = String::from_utf8_lossy(list);
    text.lines().find_map(|line| {
        let (name, path) = line.trim().split_once(" => ")?;
        let path = path.rsplit_once(" (")?.0;
        (OsStr::new(name) == libs::LIBIBVERBS).then(|| PathBuf::from(path))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mpichs_launcher_is_told_from_others() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        for name in ["mpiexec.hydra", "orterun", "prog"] {
            std::fs::write(file(name), "").unwrap();
        }
        std::os::unix::fs::symlink("mpiexec.hydra", file("mpirun")).unwrap();
        std::os::unix::fs::symlink("orterun", file("mpirun.openmpi")).unwrap();
        assert!(!starts_ranks_of_mpich(&file("mpirun")), "no Hydra");
        std::fs::write(file("hydra_pmi_proxy"), "").unwrap();
        let of = ["mpirun", "mpiexec.hydra", "mpirun.openmpi", "prog"].map(|name| starts_ranks_of_mpich(&file(name)));
        assert_eq!(of, [true, true, false, false]);
    }

    #[test]
    fn the_linkers_list_is_read() {
        let list = b"\tlinux-vdso.so.1 (0x00007ffd)\n\tlibibverbs.so.1 => /opt/a b/libibverbs.so.1 (0x00007f2a)\n";
        assert_eq!(listed(list), Some(PathBuf::from("/opt/a b/libibverbs.so.1")));
        assert_eq!(listed(b"\tlibibverbs.so.1 => not found\n"), None);
        assert_eq!(listed(b"\tlibc.so.6 => /lib/libc.so.6 (0x1)\n"), None);
    }
}
