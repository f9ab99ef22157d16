//! The Python wheel and the package in it, without pip: the wheel is made from the build of the tests, unpacked and used.
//! `tests/clients/tests/python_wheel.rs` installs it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use vervain_tests::netns::Network;
use vervain_tests::{Job, have, skip, tool, unswayed, wheel};

const LIMIT: Duration = Duration::from_secs(60);

/// The command in a package that pip would have installed.
const COMMAND: &str = "vervain/_prefix/bin/vervain";

/// The wheel, and the folder that it is unpacked into; made once.
fn unpacked() -> Option<&'static (PathBuf, PathBuf)> {
    static UNPACKED: OnceLock<Option<(PathBuf, PathBuf)>> = OnceLock::new();
    let make = || {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-package");
        let _ = fs::remove_dir_all(&folder);
        let (wheel, unpacked) = (wheel::make(&folder.join("made"))?, folder.join("unpacked"));
        wheel::unpack(&wheel, &unpacked);
        Some((wheel, unpacked))
    };
    let unpacked = UNPACKED.get_or_init(make).as_ref();
    if unpacked.is_none() {
        skip("no wheel could be made");
    }
    unpacked
}

/// ELF files below a folder.
fn elf_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let is_elf = |path: &PathBuf| fs::read(path).expect("a file").starts_with(b"\x7fELF");
    files.into_iter().filter(is_elf).chain(folders.iter().flat_map(|folder| elf_files(folder))).collect()
}

/// The newest version of glibc that a symbol of the file wants, by its minor number.
fn newest_glibc(file: &Path) -> Option<u32> {
    let end = Job::start(Command::new("objdump").arg("-T").arg(file)).finish(LIMIT);
    assert!(end.success(), "{}", end.describe());
    let versions = end.output.split("GLIBC_2.").skip(1);
    versions
        .map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next().expect("digits").parse().expect("a number"))
        .max()
}

#[test]
fn a_wheel_says_what_it_has_and_the_oldest_glibc_that_it_runs_with() {
    if !have(&["objdump"]) {
        return;
    }
    let Some((wheel, unpacked)) = unpacked() else { return };
    let files = elf_files(unpacked);
    // The command, eight libraries with a stand-in each for the name without a version, the preload and that of rsockets.
    assert_eq!(files.len(), 1 + 2 * 8 + 2, "{files:?}");
    let newest = files.iter().filter_map(|file| newest_glibc(file)).max().expect("a symbol of glibc");
    let name = wheel.file_name().expect("a name").to_string_lossy();
    let tag = format!("-py3-none-manylinux_2_{newest}_{}.whl", std::env::consts::ARCH);
    assert!(name.ends_with(&tag), "{name} needs glibc 2.{newest}");
    assert_eq!(fs::read_dir(wheel.parent().expect("its folder")).expect("it").count(), 1, "only the wheel is left");
}

/// NCCL opens `libibverbs.so`, in place of which wheels can have no link: it has to be the same library, not another copy.
#[test]
fn a_name_without_a_version_leads_to_the_same_library() {
    let Some((_, unpacked)) = unpacked() else { return };
    let script = "import ctypes\n\
        libraries = ['ibverbs', 'rdmacm', 'mlx5', 'mlx4', 'efa', 'hns', 'mana', 'ionic']\n\
        loaded = [ctypes.CDLL(f'lib{name}.so') for name in libraries]\n\
        of = lambda library, name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value\n\
        named = ctypes.CDLL('libibverbs.so.1')\n\
        assert of(loaded[0], 'ibv_open_device') == of(named, 'ibv_open_device')\n\
        maps = {line.split()[-1] for line in open('/proc/self/maps') if 'libibverbs.so.1' in line}\n\
        assert len(maps) == 1, maps\n\
        count = ctypes.c_int()\n\
        assert loaded[0].ibv_get_device_list(ctypes.byref(count)) and count.value == 1\n";
    let mut command = unswayed(unpacked.join(COMMAND));
    let end = Job::start(command.args(["run", "--", "python3", "-c", script])).finish(LIMIT);
    assert!(end.success(), "{}", end.describe());
}

#[test]
fn the_package_runs_and_tests_programs() {
    if !have(&["ibv_rc_pingpong", "ibv_devices", "rping", "setsid", "seq"]) {
        return;
    }
    let (Some((_, unpacked)), Some(network)) = (unpacked(), Network::of_one()) else { return };
    let python = tool("python3").expect("the wheel was made by it");
    let mut tests = wheel::package_tests(&python, &unpacked.join(COMMAND));
    let end = Job::start(&mut network.first().enter(tests.env("PYTHONPATH", unpacked))).finish(LIMIT);
    assert!(end.success(), "{}", end.describe());
}
