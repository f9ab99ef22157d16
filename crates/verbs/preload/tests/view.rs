//! Programs under the preload: a C program that calls every hook, and those that users have at hand.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use tempfile::TempDir;

fn preload() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| vervain_symver::exports::built_library("libvervain_preload.so").expect("it builds"))
}

/// A tree as `vervain run` makes it, with one device.
fn tree() -> TempDir {
    let tmp = tempfile::tempdir().unwrap();
    let root = tmp.path();
    let device = root.join("sys/devices/virtual/infiniband/vervain0");
    fs::create_dir_all(device.join("ports/1")).unwrap();
    fs::write(device.join("node_type"), "1: CA\n").unwrap();
    fs::write(device.join("ports/1/state"), "4: ACTIVE\n").unwrap();
    fs::create_dir_all(root.join("sys/class/infiniband")).unwrap();
    symlink("../../devices/virtual/infiniband/vervain0", root.join("sys/class/infiniband/vervain0")).unwrap();
    fs::create_dir_all(root.join("dev/infiniband")).unwrap();
    symlink("/dev/null", root.join("dev/infiniband/uverbs0")).unwrap();
    fs::create_dir_all(root.join("sys/devices/virtual/misc/rdma_cm")).unwrap();
    fs::write(root.join("sys/devices/virtual/misc/rdma_cm/abi_version"), "4\n").unwrap();
    fs::create_dir_all(root.join("sys/class/misc")).unwrap();
    symlink("../../devices/virtual/misc/rdma_cm", root.join("sys/class/misc/rdma_cm")).unwrap();
    tmp
}

fn under_preload(tree: &Path, program: impl AsRef<Path>, args: &[&str]) -> Output {
    Command::new(program.as_ref())
        .args(args)
        .env("LD_PRELOAD", preload())
        .env("VERVAIN_SYSFS", tree)
        .output()
        .unwrap_or_else(|e| panic!("{}: {e}", program.as_ref().display()))
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Compiles `tests/view.c` into `dir`.
fn c_program(dir: &Path, flags: &[&str]) -> PathBuf {
    let program = dir.join("view");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/view.c");
    let output = Command::new("cc").args(flags).args(["-w", "-o"]).args([&program, &source]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

#[test]
fn a_c_program_finds_the_view_in_every_function() {
    for flags in [&["-O0"][..], &["-O2", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"]] {
        let (tree, dir) = (tree(), tempfile::tempdir().unwrap());
        let program = c_program(dir.path(), flags);
        let output = Command::new(program)
            .current_dir(dir.path())
            .env("LD_PRELOAD", preload())
            .env("VERVAIN_SYSFS", tree.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{flags:?}:\n{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn the_tools_of_the_shell_see_a_device() {
    let tree = tree();
    assert_eq!(stdout(&under_preload(tree.path(), "ls", &["/sys/class/infiniband"])), "vervain0\n");
    assert_eq!(
        stdout(&under_preload(tree.path(), "cat", &["/sys/class/infiniband/vervain0/ports/1/state"])),
        "4: ACTIVE\n"
    );
    let kind = under_preload(tree.path(), "stat", &["-c", "%F", "/dev/infiniband/uverbs0"]);
    assert_eq!(stdout(&kind), "character special file\n");
    let long = under_preload(tree.path(), "ls", &["-l", "/dev/infiniband/uverbs0"]);
    assert!(stdout(&long).starts_with('c'), "{long:?}");
    assert!(long.stderr.is_empty(), "{long:?}");
    let entered = under_preload(tree.path(), "sh", &["-c", "cd /sys/class/infiniband && echo *"]);
    assert_eq!(stdout(&entered), "vervain0\n");
    for (class, device) in [("infiniband/vervain0", "infiniband/vervain0"), ("misc/rdma_cm", "misc/rdma_cm")] {
        let real = under_preload(tree.path(), "readlink", &["-f", &format!("/sys/class/{class}")]);
        assert_eq!(stdout(&real), format!("/sys/devices/virtual/{device}\n"));
    }
}

#[test]
fn of_the_class_misc_rdma_cm_is_shown_and_the_rest_is_the_machines() {
    let tree = tree();
    for dir in ["class", "devices/virtual"] {
        let version = under_preload(tree.path(), "cat", &[&format!("/sys/{dir}/misc/rdma_cm/abi_version")]);
        assert_eq!(stdout(&version), "4\n");
        let other = Path::new("/sys").join(dir).join("misc");
        let [shown, there] = ["VERVAIN_SYSFS", "NOTHING"].map(|variable| {
            let mut command = Command::new("ls");
            command.arg(&other).env("LD_PRELOAD", preload()).env(variable, tree.path());
            command.output().unwrap().stdout
        });
        assert_eq!(shown, there);
    }
    fs::write(tree.path().join("sys/class/misc/rdma_cm_other"), "").unwrap();
    assert!(!under_preload(tree.path(), "stat", &["/sys/class/misc/rdma_cm_other"]).status.success());
}

#[test]
fn python_sees_a_device() {
    if Command::new("python3").arg("--version").output().is_err() {
        return vervain_skip::skip("this machine has no python3");
    }
    let script = "
import glob, os, stat
assert os.listdir('/sys/class/infiniband') == ['vervain0']
assert stat.S_ISCHR(os.stat('/dev/infiniband/uverbs0').st_mode)
assert os.path.realpath('/sys/class/infiniband/vervain0') == '/sys/devices/virtual/infiniband/vervain0'
assert open('/sys/class/infiniband/vervain0/node_type').read() == '1: CA\\n'
assert glob.glob('/sys/class/infiniband/*/ports/*') == ['/sys/class/infiniband/vervain0/ports/1']
with os.scandir('/dev/infiniband') as entries:
    assert [e.name for e in entries] == ['uverbs0']
print('seen')";
    assert_eq!(stdout(&under_preload(tree().path(), "python3", &["-c", script])), "seen\n");
}

/// The kernel's files of an empty GID: they can be opened, and read(2) is EINVAL.
#[test]
fn a_placeholder_without_a_text_cannot_be_read() {
    let tree = tree();
    let file = tree.path().join("sys/devices/virtual/infiniband/vervain0/ports/1/empty");
    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(vervain_counters::PLACEHOLDER_MODE)).unwrap();
    let there = "/sys/class/infiniband/vervain0/ports/1";
    let read = format!(
        "exec 3<{there}/empty && cd {there} && exec 4<empty && LC_ALL=C cat <&3; LC_ALL=C cat state <&4 - {there}/empty"
    );
    let output = under_preload(tree.path(), "sh", &["-c", &read]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "4: ACTIVE\n");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((said.lines().count(), said.matches("Invalid argument").count()), (3, 3), "{said}");
    if Command::new("python3").arg("--version").output().is_err() {
        return vervain_skip::skip("this machine has no python3");
    }
    let script = format!(
        "
import errno
file = open('{there}/empty')
try:
    print('read', file.read())
except OSError as e:
    print(errno.errorcode[e.errno])"
    );
    assert_eq!(stdout(&under_preload(tree.path(), "python3", &["-c", &script])), "EINVAL\n");
}

#[test]
fn without_a_tree_everything_passes_through() {
    for tree in ["", "relative/path", "/"] {
        let output = under_preload(Path::new(tree), "cat", &["/proc/self/comm"]);
        assert_eq!(stdout(&output), "cat\n");
        let output = under_preload(Path::new(tree), "stat", &["/sys/class/infiniband/vervain0"]);
        assert!(!output.status.success());
    }
}

#[test]
fn a_tree_that_is_gone_is_an_empty_machine() {
    let output = under_preload(Path::new("/no/such/tree"), "ls", &["/sys/class/infiniband"]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("No such file"));
}

#[test]
fn a_process_has_what_the_device_needs_before_its_second_thread() {
    let (tree, dir) = (tree(), tempfile::tempdir().unwrap());
    let program = dir.path().join("threads");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/threads.c");
    let output = Command::new("cc").args(["-Wall", "-pthread", "-o"]).args([&program, &source]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = stdout(&under_preload(tree.path(), &program, &[]));
    let said: Vec<i32> = said.split_ascii_whitespace().map(|word| word.parse().unwrap()).collect();
    let [registered, size, registered_then, size_then] = said[..] else { panic!("{said:?}") };
    assert!(size < 700 && size_then > 700, "the table of descriptors: {said:?}");
    // Before Linux 6.3 the kernel does not tell registrations.
    if registered >= 0 {
        assert_eq!((registered, registered_then), (0, 1 << 2 | 1 << 4), "{said:?}");
    }
}
