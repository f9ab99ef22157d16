//! What `make deb` and `make tarball` make of the build under test: what is in it, that it runs from where it is
//! unpacked or installed, that it goes without a trace, and what is said where it cannot run.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use tempfile::TempDir;
use vervain_tests::container::is_root;
use vervain_tests::packages::{self, build, can_make, make, run, source};
use vervain_tests::{Finished, Job, free_port, have, pairs, unswayed};

const LIMIT: Duration = Duration::from_secs(60);

/// Where packages are made, once for all tests of this program.
fn place() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("packages")
}

fn deb() -> &'static Path {
    static DEB: OnceLock<PathBuf> = OnceLock::new();
    DEB.get_or_init(|| make("deb", &place(), "022"))
}

fn tarball() -> &'static Path {
    static TARBALL: OnceLock<PathBuf> = OnceLock::new();
    TARBALL.get_or_init(|| make("tarball", &place(), "022"))
}

/// A directory with the tarball's content in it, below a name with blanks.
fn unpacked() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let root = packages::unpack(tarball(), &dir.path().join("a place with blanks"));
    (dir, root)
}

/// Files and links below a directory, sorted, as seen from there.
fn files(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).expect("a directory").flatten() {
            match entry.file_type().expect("its type").is_dir() {
                true => waiting.push(entry.path()),
                false => {
                    let path = entry.path();
                    found.push(path.strip_prefix(root).expect("below it").to_str().expect("a name").to_owned());
                }
            }
        }
    }
    found.sort();
    found
}

/// The programs and libraries among the files below a directory.
fn machine_code(root: &Path) -> Vec<PathBuf> {
    let paths = files(root).into_iter().map(|file| root.join(file));
    let found: Vec<_> =
        paths.filter(|path| !path.is_symlink() && fs::read(path).expect("a file").starts_with(b"\x7fELF")).collect();
    assert!(found.len() > 10, "{found:?}");
    found
}

/// A command finds its devices and its libraries in `lib/vervain` beside it, and two programs exchange data by it.
fn works(command: &Path) {
    let doctor = Job::start(unswayed(command).arg("doctor")).finish(LIMIT);
    let libraries = command.parent().and_then(Path::parent).expect("a prefix").join("lib/vervain");
    assert!(doctor.success(), "{}", doctor.describe());
    assert!(doctor.output.contains(&format!("libraries: {} lists vervain0", libraries.display())), "{}", doctor.output);
    assert!(!doctor.output.contains("does not share memory"), "{}", doctor.output);
    let devices = Job::start(unswayed(command).arg("devices")).finish(LIMIT);
    assert!(devices.success() && devices.output.contains("vervain0"), "{}", devices.describe());
    if !have(&["ibv_rc_pingpong"]) {
        return;
    }
    let port = free_port();
    let side = || {
        let mut side = unswayed(command);
        side.args(["run", "--", "ibv_rc_pingpong", "-g", "0", "-p", &port.to_string()]);
        side
    };
    let (server, mut client) = (side(), side());
    client.arg("127.0.0.1");
    for end in <[_; 2]>::from(pairs::serve(server, client, port, LIMIT)) {
        assert!(end.success() && end.output.contains("1000 iters in"), "{}", end.describe());
    }
}

#[test]
fn the_deb_has_files_where_debian_wants_them_and_nowhere_else() {
    if !can_make() {
        return;
    }
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    let places = [
        "usr/bin/vervain",
        "usr/bin/acpcc",
        "usr/include/vervain.h",
        "usr/include/acp.h",
        "usr/include/pm.h",
        "usr/lib/vervain/",
        &format!("usr/lib/{triplet}/libacp"),
        &format!("usr/lib/{triplet}/libpm.so"),
        &format!("usr/lib/{triplet}/pkgconfig/"),
        "usr/share/bash-completion/completions/vervain",
        "usr/share/zsh/vendor-completions/_vervain",
        "usr/share/fish/vendor_completions.d/vervain.fish",
        "usr/share/man/man1/vervain",
        "usr/share/man/man1/acpcc.1.gz",
        "usr/share/lintian/overrides/vervain",
        "usr/share/doc/vervain/",
    ];
    let listed = run("dpkg-deb", &[&"--contents", &deb()]);
    let mut used = BTreeSet::new();
    for line in listed.output.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        let [mode, owner, _, _, _, path, ..] = words[..] else { panic!("{line}") };
        assert_eq!(owner, "root/root", "{line}");
        // A link has all rights and none of its own.
        let sound = ["-rw-r--r--", "-rwxr-xr-x", "drwxr-xr-x", "lrwxrwxrwx"].contains(&mode);
        assert!(sound, "{line}");
        if mode.starts_with('d') {
            continue;
        }
        let place = places.iter().find(|place| path.trim_start_matches("./").starts_with(**place));
        used.insert(*place.unwrap_or_else(|| panic!("no place of a package's: {line}")));
    }
    assert_eq!(used, places.into_iter().collect(), "places that have a file");
    let dir = tempfile::tempdir().expect("a directory");
    run("dpkg-deb", &[&"--raw-extract", &deb(), &dir.path()]);
    // No script of a maintainer's: what dpkg unpacks it removes.
    let control = files(&dir.path().join("DEBIAN"));
    assert_eq!(control, ["control", "md5sums", "shlibs", "triggers"]);
    let mut sums = Command::new("md5sum");
    let sums = sums.args(["--check", "--quiet", "DEBIAN/md5sums"]).current_dir(dir.path());
    let end = Job::start(sums).finish(LIMIT);
    assert!(end.success(), "{}", end.describe());
    let summed = fs::read_to_string(dir.path().join("DEBIAN/md5sums")).expect("the sums").lines().count();
    let regular =
        files(&dir.path().join("usr")).iter().filter(|f| !dir.path().join("usr").join(f).is_symlink()).count();
    assert_eq!(summed, regular);
}

#[test]
fn packages_carry_the_licences_of_the_crates_that_are_in_them() {
    if !can_make() {
        return;
    }
    let (_dir, root) = unpacked();
    let texts = fs::read_to_string(root.join("share/doc/vervain/third-party.txt")).expect("the licences");
    let lock = fs::read_to_string(source().join("Cargo.lock")).expect("the list of crates");
    // Of the command, of the libraries, and of a tests' one, which does not ship.
    for (name, ships) in [("clap", true), ("libc", true), ("rustix", true), ("syn", false)] {
        let version =
            lock.split_once(&format!("name = \"{name}\"\nversion = \"")).and_then(|(_, rest)| rest.split_once('"'));
        let (version, _) = version.unwrap_or_else(|| panic!("no {name} in Cargo.lock"));
        assert_eq!(texts.contains(&format!("\n{name}-{version}: ")), ships, "{name} {version}");
    }
    assert!(texts.contains("Permission is hereby granted"), "{texts}");
}

#[test]
fn the_deb_depends_on_the_glibc_whose_symbols_it_uses() {
    if !can_make() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    run("dpkg-deb", &[&"--extract", &deb(), &dir.path()]);
    let depends = run("dpkg-deb", &[&"--field", &deb(), &"Depends"]).output;
    let packages: Vec<_> = depends.trim().split(", ").collect();
    let version = |text: &str| text.split('.').map(|n| n.parse().expect("a number")).collect::<Vec<u32>>();
    // By the symbols; the package was made by the list of versions.
    let newest = machine_code(dir.path()).into_iter().flat_map(|file| {
        let symbols = run("readelf", &[&"--wide", &"--dyn-syms", &file]).output;
        let versions = symbols.lines().filter(|line| line.contains(" UND ")).filter_map(|line| {
            let version = line.split_once("@GLIBC_")?.1.split_whitespace().next()?;
            Some(version.to_owned())
        });
        versions.collect::<Vec<_>>()
    });
    let newest = newest.max_by_key(|text| version(text)).expect("a symbol of glibc's");
    assert!(packages.contains(&format!("libc6 (>= {newest})").as_str()), "{depends}, and {newest} is used");
    assert!(packages.iter().all(|one| one.starts_with("libc6 ") || *one == "libgcc-s1"), "{depends}");
}

/// What the loader maps of a file: for each such segment its flags, its address and its bytes, but for the headers in
/// front, which say where the parts are that are not mapped, and which tools write anew: an empty segment may lie at
/// any offset (ELF-64, fields by their offsets).
fn mapped(file: &Path) -> Vec<(u32, u64, Vec<u8>)> {
    let bytes = fs::read(file).expect("an ELF file");
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let half = |at: usize| usize::from(u16::from_le_bytes(bytes[at..at + 2].try_into().expect("2 bytes")));
    let part = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    let (table, size, number) = (word(32) as usize, half(54), half(56));
    let segments = (0..number).map(|i| table + i * size).filter(|at| part(*at) == 1);
    let segments = segments.map(|at| {
        let (from, length) = (word(at + 8) as usize, word(at + 32) as usize);
        (part(at + 4), word(at + 16), bytes[from.max(table + number * size)..from + length].to_vec())
    });
    segments.collect()
}

#[test]
fn what_ships_is_the_code_that_was_tested_without_what_debuggers_read() {
    if !can_make() {
        return;
    }
    let (_dir, root) = unpacked();
    for file in machine_code(&root) {
        let name = file.file_name().and_then(|name| name.to_str()).expect("a name");
        let built = build().join(name.split_once(".so").map_or(name.to_owned(), |(stem, _)| format!("{stem}.so")));
        assert!(mapped(&file) == mapped(&built), "{} is not {}", file.display(), built.display());
        let sections = run("readelf", &[&"--wide", &"--sections", &file]).output;
        // The names of functions stay, for backtraces.
        assert!(sections.contains(" .symtab "), "{sections}");
        let stays = [" .debug_info ", " .debug_line "].iter().any(|name| sections.contains(name));
        assert!(!stays && sections.contains(" .gnu_debuglink "), "{sections}");
        // Nothing is looked for where it was built.
        let dynamic = run("readelf", &[&"--wide", &"--dynamic", &file]).output;
        assert!(!dynamic.contains("(RPATH)") && !dynamic.contains("(RUNPATH)"), "{dynamic}");
    }
}

#[test]
fn the_tarball_works_where_it_is_unpacked() {
    if !can_make() {
        return;
    }
    let (_dir, root) = unpacked();
    works(&root.join("bin/vervain"));
    for file in files(&root) {
        let bytes = fs::read(root.join(&file)).expect("a file");
        let Ok(text) = String::from_utf8(bytes) else { continue };
        for place in [source(), build(), place()] {
            assert!(!text.contains(place.to_str().expect("a path")), "{file} names {}", place.display());
        }
    }
    // The wrapper of the compiler is told nothing either.
    if !have(&["cc"]) {
        return;
    }
    let program = root.join("program");
    let example = source().join("tests/acp/original.c");
    run(root.join("bin/acpcc").to_str().expect("a path"), &[&example, &"-o", &program]);
    let mut launch = unswayed(root.join("bin/vervain"));
    let end =
        Job::start(launch.args(["launch", "-n", "2", "--"]).arg(&program).args(["--acp-nprocs", "2"])).finish(LIMIT);
    assert!(end.success() && end.output.contains("OK rank"), "{}", end.describe());
}

#[test]
fn the_same_build_gives_the_same_bytes() {
    if !can_make() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    for (goal, first) in [("deb", deb()), ("tarball", tarball())] {
        let second = make(goal, dir.path(), "077");
        assert_eq!(first.file_name(), second.file_name());
        assert!(fs::read(first).expect("it") == fs::read(&second).expect("it"), "{} differ", second.display());
    }
}

/// A command as root, with mounts of its own; root of a namespace, if this user is not root.
fn as_root(script: &str, arguments: &[&dyn AsRef<std::ffi::OsStr>]) -> Finished {
    let mut command = Command::new("unshare");
    if !is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--mount", "sh", "-c", script, "sh"]).args(arguments.iter().map(AsRef::as_ref));
    // Where dpkg looks for what it calls.
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    Job::start(&mut command).finish(LIMIT)
}

/// Whether this user may do that; prints why not.
fn can_be_root() -> bool {
    if !have(&["unshare", "mount"]) {
        return false;
    }
    let end = as_root("mount -t tmpfs none /mnt", &[]);
    if !end.success() {
        vervain_tests::skip(format_args!("no mounts of a user's own: {}", end.output.trim()));
    }
    end.success()
}

/// A root directory in which dpkg knows of this version of libc6 and of nothing else but libgcc-s1.
fn dpkg_root(libc: &str) -> TempDir {
    let root = tempfile::tempdir().expect("a directory");
    let admin = root.path().join("var/lib/dpkg");
    for directory in ["info", "updates", "triggers"] {
        fs::create_dir_all(admin.join(directory)).expect("a directory");
    }
    let architecture = run("dpkg", &[&"--print-architecture"]).output;
    let package = |name: &str, version: &str| {
        format!(
            "Package: {name}\nStatus: install ok installed\nMaintainer: Nobody <nobody@localhost>\n\
             Architecture: {}\nMulti-Arch: same\nVersion: {version}\nDescription: {name}\n\n",
            architecture.trim()
        )
    };
    let status = package("libc6", libc) + &package("libgcc-s1", "12");
    fs::write(admin.join("status"), status).expect("the packages that are there");
    root
}

/// `dpkg` with these words on such a root.
fn dpkg(root: &Path, words: &[&dyn AsRef<std::ffi::OsStr>]) -> Finished {
    let log = format!("--log={}", root.join("var/lib/dpkg/log").display());
    let root = format!("--root={}", root.display());
    as_root(r#"exec dpkg "$@""#, &[&[&root as &dyn AsRef<std::ffi::OsStr>, &log], words].concat())
}

/// The files of a root but for dpkg's notes.
fn besides_notes(root: &Path) -> Vec<String> {
    files(root).into_iter().filter(|file| !file.starts_with("var/lib/dpkg/")).collect()
}

#[test]
fn the_deb_is_installed_runs_and_goes_without_a_trace() {
    if !can_make() || !can_be_root() {
        return;
    }
    let root = dpkg_root("2.36-9");
    let end = dpkg(root.path(), &[&"--install", &deb()]);
    assert!(end.success(), "{}", end.describe());
    works(&root.path().join("usr/bin/vervain"));
    let end = dpkg(root.path(), &[&"--remove", &"vervain"]);
    assert!(end.success() && !end.output.contains("not empty"), "{}", end.describe());
    assert_eq!(besides_notes(root.path()), [""; 0]);
    assert!(!root.path().join("usr").exists(), "directories stay");
}

#[test]
fn dpkg_refuses_the_deb_where_glibc_is_too_old() {
    if !can_make() || !can_be_root() {
        return;
    }
    let root = dpkg_root("2.17-1");
    let end = dpkg(root.path(), &[&"--install", &deb()]);
    assert!(!end.success() && end.output.contains("vervain depends on libc6 (>= 2."), "{}", end.describe());
    assert!(end.output.contains("Version of libc6:") && end.output.contains("is 2.17-1"), "{}", end.describe());
}

#[test]
fn the_tarball_installs_itself_and_uninstalls_all_of_that() {
    if !can_make() {
        return;
    }
    let (dir, root) = unpacked();
    let installer = root.join("install.sh");
    let installer = installer.to_str().expect("a path");
    let end = run(installer, &[]);
    assert!(end.output.contains(&format!("next:  {}/bin/vervain doctor", root.display())), "{}", end.output);
    let prefix = dir.path().join("a prefix");
    // Twice: over what is there.
    for _ in 0..2 {
        let end = run(installer, &[&prefix]);
        assert_eq!(end.output.lines().count(), 1, "{}", end.output);
    }
    let shipped: Vec<_> = files(&root).into_iter().filter(|file| file.contains('/')).collect();
    assert_eq!(files(&prefix), shipped);
    works(&prefix.join("bin/vervain"));
    run(root.join("uninstall.sh").to_str().expect("a path"), &[&prefix]);
    assert_eq!(files(&prefix), [""; 0]);
}

#[test]
fn the_installer_says_in_one_sentence_why_it_cannot_run_here() {
    if !can_make() {
        return;
    }
    let (dir, root) = unpacked();
    let tools = dir.path().join("tools");
    fs::create_dir(&tools).expect("a directory");
    // What getconf(1) and uname(1) say on other systems.
    for (tool, text, sentence) in [
        ("getconf", "echo glibc 2.9", "or later, and this system has glibc 2.9: build Vervain from source here"),
        ("getconf", "echo glibc 2.99.9", ""),
        ("getconf", "exit 1", "or later, and this system has another C library"),
        ("uname", "echo riscv64", "and the machine is riscv64"),
    ] {
        let path = tools.join(tool);
        let mut script = Command::new("sh");
        let text =
            format!("printf '#!/bin/sh\\n{text}\\n' > \"$1\"; chmod 755 \"$1\"; PATH=\"${{1%/*}}:$PATH\" \"$2\"");
        let end = Job::start(script.args(["-c", &text, "sh"]).arg(&path).arg(root.join("install.sh"))).finish(LIMIT);
        fs::remove_file(&path).expect("the tool");
        assert_eq!(end.success(), sentence.is_empty(), "{}", end.describe());
        let one_line = end.output.starts_with("vervain: ") && end.output.lines().count() == 1;
        assert!(one_line && end.output.trim_end().ends_with(sentence), "{}", end.describe());
    }
    let file = dir.path().join("file");
    fs::write(&file, "").expect("a file");
    let end = Job::start(Command::new(root.join("install.sh")).arg(&file)).finish(LIMIT);
    assert!(!end.success() && end.output.contains("cannot be written to by this user"), "{}", end.describe());
    assert_eq!(end.output.lines().count(), 1, "{}", end.describe());
}

#[test]
fn a_place_that_is_read_only_will_do_and_one_that_is_noexec_is_named() {
    if !can_make() || !can_be_root() {
        return;
    }
    let (dir, root) = unpacked();
    let end = as_root(
        r#"set -e
        mount --bind "$1" "$1"
        mount -o remount,bind,ro "$1"
        ! touch "$1/file" 2> /dev/null
        exec "$1/bin/vervain" doctor"#,
        &[&root],
    );
    assert!(end.success() && end.output.starts_with("Vervain runs here"), "{}", end.describe());
    for (options, sentence) in [("ro", "cannot be written to by this user"), ("noexec", "mounted noexec?")] {
        let mount = format!(
            r#"mount -t tmpfs -o {options} none "$2"; "$1/install.sh" "$2" 2>&1; echo "status $?"; find "$2" -type f"#
        );
        let prefix = dir.path().join("prefix");
        fs::create_dir_all(&prefix).expect("a directory");
        let end = as_root(&mount, &[&root, &prefix]);
        let [said, status] = end.output.lines().collect::<Vec<_>>()[..] else { panic!("{}", end.describe()) };
        assert!(said.starts_with("vervain: ") && said.contains(sentence), "{}", end.describe());
        assert_eq!(status, "status 1");
    }
    let libraries = dir.path().join("libraries");
    fs::create_dir(&libraries).expect("a directory");
    let end = as_root(
        r#"set -e
        mount -t tmpfs -o noexec none "$2"
        cp -r "$1/lib/vervain/." "$2"
        ! "$1/bin/vervain" run --lib-dir "$2" -- true
        exec "$1/bin/vervain" doctor --lib-dir "$2""#,
        &[&root, &libraries],
    );
    let sentence = format!("no library can be loaded from {}: its filesystem is mounted noexec", libraries.display());
    assert!(!end.success() && end.output.contains("Vervain cannot run here: libraries"), "{}", end.describe());
    assert!(end.output.contains(&format!("libraries: {sentence}; install Vervain elsewhere;")), "{}", end.describe());
    assert!(end.output.contains(&format!("vervain: {sentence}")), "{}", end.describe());
}
