//! The C programs of `tests/c`, `tests/mpi` and `tests/apps`, compiled against the system's libibverbs headers and
//! library, and those of `tests/acp` and `tests/pm`, compiled against Vervain's libacp and libpm. A program of `tests/c`
//! is a file without the prefix `vt`, together with those of the folder of its name and all files that have the prefix;
//! a file with the prefix `stand_in` is a library for itself. Objects are kept from one test program and run to the next,
//! under the hash of what they are made of; programs are linked once per test program.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::{Finished, have, side_by_side, skip, tool};

/// Whether a C compiler and the header of libibverbs exist; prints what is missing.
pub fn have_c() -> bool {
    have_header("infiniband/verbs.h", "libibverbs-dev")
}

/// Whether what the programs `tests/c/cm_*.c` are made with exists; prints what is missing.
pub fn have_cm() -> bool {
    have_c() && have_header("rdma/rdma_cma.h", "librdmacm-dev")
}

fn have_header(header: &str, package: &str) -> bool {
    let missing = match (tool("cc"), Path::new("/usr/include").join(header).exists()) {
        (None, _) => "C compiler (package gcc)".to_owned(),
        (_, false) => format!("{header} (package {package})"),
        _ => return true,
    };
    skip(format_args!("this machine has no {missing}"));
    false
}

/// The compiled program of `tests/c/NAME.c`.
///
/// # Panics
/// When it does not compile without a warning.
pub fn c_program(name: &str) -> PathBuf {
    c_program_with(name, &[])
}

/// A C program linked with Vervain's `libraries` as well, such as `hns` for libhns.so.
///
/// # Panics
/// When it does not compile without a warning.
pub fn c_program_with(name: &str, libraries: &[&str]) -> PathBuf {
    static BUILT: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    built.get_or_insert_with(HashMap::new).entry(name.to_owned()).or_insert_with(|| compile(name, libraries)).clone()
}

/// Why a C program's run failed, if it did: its last line counts the cases, its exit status says whether all held. Cases that
/// it has skipped, for what the machine lacks, are skips of the test.
pub fn failure(end: &Finished) -> Option<String> {
    for line in end.output.lines() {
        if let Some(what) = line.strip_prefix("skip ") {
            skip(what);
        } else if line.starts_with("note ") {
            println!("{line}");
        }
    }
    // The device has not taken the memory of `vt_share.c`: nothing of what the run is for was tried.
    let is_without_memory = end.output.contains("shared memory speaks version");
    if end.success() && end.output.contains(" cases, 0 failed") && !is_without_memory {
        return None;
    }
    let bad: Vec<_> = end.output.lines().filter(|l| l.starts_with("FAIL") || l.starts_with("seed")).collect();
    Some(format!("{}\n{}", bad.join("\n"), end.describe()))
}

/// Fails the test when a C program's run failed.
///
/// # Panics
/// When it did.
pub fn must_hold(end: &Finished) {
    if let Some(why) = failure(end) {
        panic!("{why}");
    }
}

/// The library of `tests/c/stand_in_NAME.c`, in a directory of its own under the name `file` that a program asks for.
///
/// # Panics
/// When it does not compile without a warning.
pub fn stand_in(name: &str, file: &str) -> PathBuf {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(format!("stand_in_{name}.c"));
    std::fs::create_dir_all(out_dir().join(name)).expect("a directory for the library");
    // Only the libraries whose functions it calls, or else the stand-in of one library would bring the others.
    let options = ["-std=gnu11", "-O2", "-g", "-fPIC", "-Wall", "-Wextra", "-Werror"];
    build("cc", &format!("{name}/{file}"), &options, &["-shared", "-Wl,--as-needed"], &[source])
}

/// The compiled program of `benches/c/NAME.c`, built as `make bench` builds it.
///
/// # Panics
/// When it does not compile.
pub fn bench_program(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/c").join(name).with_extension("c");
    build("cc", &format!("bench-{name}"), &["-O2"], &[], &[source])
}

/// The compiled program of `tests/mpi/NAME.c`, built by an MPI's `compiler`.
///
/// # Panics
/// When it does not compile.
pub fn mpi_program(compiler: &str, name: &str) -> PathBuf {
    mpi_source(compiler, &["-O2"], "mpi", name)
}

/// The compiled kernel of `tests/apps/NAME.c`, built by an MPI's `compiler`, for its speed is measured too.
///
/// # Panics
/// When it does not compile.
pub fn app_program(compiler: &str, name: &str) -> PathBuf {
    mpi_source(compiler, &["-O3"], "apps", name)
}

/// The compiled kernel of `tests/apps/NAME.c` for PM: `tests/pm/mpi` has what it uses of MPI.
///
/// # Panics
/// When it does not compile.
pub fn app_over_pm(name: &str) -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = tests.join("apps").join(name).with_extension("c");
    let [include, place] = ["include", "lib"].map(|folder| crate::pm::prefix().join(folder).display().to_string());
    let (include, rpath, place) = (format!("-I{include}"), format!("-Wl,-rpath,{place}"), format!("-L{place}"));
    let mpi = format!("-I{}", tests.join("pm/mpi").display());
    let options = ["-O3", "-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", &mpi, &include];
    let built = try_build("cc", &format!("pm-app-{name}"), &options, &[&place, &rpath], &["-lpm", "-lm"], &[source]);
    built.unwrap_or_else(|why| panic!("{name} does not compile over PM:\n{why}"))
}

/// The compiled program of `tests/acp/NAME.c`, built by `compiler` with `options` and linked with libacp as it is installed. Without
/// a standard among the options, or a compiler that has its own, it is C11.
///
/// # Panics
/// When it does not compile without a warning.
pub fn acp_program(compiler: &str, options: &[&str], name: &str) -> PathBuf {
    installed_program("acp", &crate::acp::prefix(), compiler, options, name)
}

/// The compiled program of `tests/pm/NAME.c`, linked with libpm; otherwise as [`acp_program`].
///
/// # Panics
/// As there.
pub fn pm_program(compiler: &str, options: &[&str], name: &str) -> PathBuf {
    installed_program("pm", &crate::pm::prefix(), compiler, options, name)
}

/// The compiled program of `examples/pm/NAME.c`, linked with libpm.
///
/// # Panics
/// When it does not compile without a warning.
pub fn pm_example(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/pm").join(name).with_extension("c");
    linked("pm", &crate::pm::prefix(), "cc", &[], &format!("pm-example-{name}"), source)
}

/// A program of the folder that has the name of the library which it uses, installed below `prefix`.
fn installed_program(library: &str, prefix: &Path, compiler: &str, options: &[&str], name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(library).join(name).with_extension("c");
    let name = format!("{library}-{compiler}{}-{name}", options.concat().replace(['=', '+'], "-"));
    linked(library, prefix, compiler, options, &name, source)
}

/// Checks that `text`, which includes the header that is installed below `prefix`, is clean in these standards of C and of
/// C++, by each compiler that is there.
///
/// # Panics
/// When one of them says anything.
pub fn must_be_clean(text: &str, prefix: &Path, c: &[&str], cxx: &[&str]) {
    let dir = tempfile::tempdir().expect("a directory");
    let include = format!("-I{}", prefix.join("include").display());
    let compilers = [
        ("gcc", "program.c", c),
        ("clang", "program.c", c),
        ("g++", "program.cc", cxx),
        ("clang++", "program.cc", cxx),
    ];
    let there: Vec<_> = compilers.into_iter().filter(|(compiler, ..)| tool(compiler).is_some()).collect();
    if there.is_empty() {
        skip("this machine has no C or C++ compiler");
    }
    for (compiler, name, standards) in there {
        let source = dir.path().join(name);
        std::fs::write(&source, text).expect("a source file");
        for standard in standards {
            let mut command = Command::new(compiler);
            command.args([&format!("-std={standard}"), "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only"]);
            let end = command.arg(&include).arg(&source).output().expect("a compiler");
            let said = String::from_utf8_lossy(&end.stderr);
            assert!(end.status.success() && said.is_empty(), "{command:?}:\n{said}");
        }
    }
}

fn linked(library: &str, prefix: &Path, compiler: &str, options: &[&str], name: &str, source: PathBuf) -> PathBuf {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let [include, place] = ["include", "lib"].map(|folder| prefix.join(folder).display().to_string());
    let (include, rpath, place) = (format!("-I{include}"), format!("-Wl,-rpath,{place}"), format!("-L{place}"));
    let standard: &[&str] = if options.iter().any(|o| o.starts_with("-std=")) { &[] } else { &["-std=c11"] };
    let strict = ["-D_GNU_SOURCE", "-O2", "-g", "-Wall", "-Wextra", "-pedantic", "-Werror", &include];
    let libraries = [&format!("-l{library}"), "-lpthread", "-lm"];
    let built =
        try_build(compiler, name, &[standard, options, &strict].concat(), &[&place, &rpath], &libraries, &[source]);
    built.unwrap_or_else(|why| panic!("{name} does not compile:\n{why}"))
}

fn mpi_source(compiler: &str, speed: &[&str], folder: &str, name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(name).with_extension("c");
    // MPICH's header makes GCC warn of MPI_STATUSES_IGNORE.
    let options = ["-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-stringop-overflow"];
    build(compiler, &format!("{compiler}-{name}"), &[speed, &options].concat(), &[], &[source])
}

/// Where the compiled programs lie.
///
/// # Panics
/// When it cannot be made.
pub(crate) fn out_dir() -> PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tmp/vervain-c");
    std::fs::create_dir_all(&dir).expect("a directory for the C programs");
    dir.canonicalize().expect("the directory of the C programs")
}

/// The program of `tests/c/NAME.c` compiled by `compiler` with a sanitizer's options; none, and the reason printed, where the
/// machine has no such compiler, or no runtime of the sanitizer for it.
///
/// # Panics
/// When it does not compile without a warning.
pub fn sanitized_program(compiler: &str, sanitizer: &[&str], name: &str) -> Option<PathBuf> {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if !have(&[compiler]) || !have_c() {
        return None;
    }
    // clang warns of what only a linker takes.
    let compiled: Vec<&str> = sanitizer.iter().copied().filter(|option| !option.starts_with("-Wl,")).collect();
    let options = [&OPTIONS[..], &compiled].concat();
    let as_named = format!("{name}-{compiler}{}", sanitizer.concat().replace(['=', '/', ','], "-"));
    let linked = [&LINKED[..], sanitizer].concat();
    match try_build(compiler, &as_named, &options, &linked, &VERBS, &sources_of(name)) {
        Ok(program) => Some(program),
        // The linkers' words for a library that is not there: "cannot find -lasan", "cannot find /…/libclang_rt.asan.a".
        Err(why) if why.lines().any(|line| line.contains("cannot find") && line.contains("san")) => {
            skip(format_args!("{compiler} has no runtime for {}", sanitizer.join(" ")));
            None
        }
        Err(why) => panic!("{as_named} does not compile:\n{why}"),
    }
}

fn compile(name: &str, libraries: &[&str]) -> PathBuf {
    let mut linked = LINKED.to_vec();
    let ours: Vec<_> = libraries.iter().map(|library| format!("-l{library}")).collect();
    let place = format!("-L{}", crate::libraries().display());
    if !ours.is_empty() {
        // They stand before the objects, where a linker that takes only what it needs would leave them out.
        linked.extend(["-Wl,--no-as-needed", &place]);
        linked.extend(ours.iter().map(String::as_str));
        linked.push("-Wl,--as-needed");
    }
    // Those that connect by librdmacm have it before what it needs.
    let used = if name.starts_with("cm_") { &WITH_CM[..] } else { &VERBS };
    let built = try_build("cc", name, &OPTIONS, &linked, used, &sources_of(name));
    built.unwrap_or_else(|why| panic!("{name} does not compile:\n{why}"))
}

const OPTIONS: [&str; 6] = ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror"];
const LINKED: [&str; 1] = ["-rdynamic"];
const VERBS: [&str; 4] = ["-lpthread", "-ldl", "-lm", "-libverbs"];
const WITH_CM: [&str; 5] = ["-lrdmacm", "-lpthread", "-ldl", "-lm", "-libverbs"];

fn sources_of(name: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = vec![root.join("c").join(name).with_extension("c")];
    let is_c = |path: &PathBuf| path.extension().is_some_and(|e| e == "c");
    let files = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    sources.extend(files(root.join("c").join(name)).filter(is_c));
    let is_shared = |path: &PathBuf| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with("vt"));
    sources.extend(files(root.join("c")).filter(|path| is_shared(path) && is_c(path)));
    sources.sort();
    sources
}

fn build(compiler: &str, name: &str, options: &[&str], linked: &[&str], sources: &[PathBuf]) -> PathBuf {
    try_build(compiler, name, options, linked, &VERBS, sources)
        .unwrap_or_else(|why| panic!("{name} does not compile:\n{why}"))
}

/// Compiles with `options` what has no object yet, and links all of it with `linked` and the `libraries`.
fn try_build(
    compiler: &str,
    name: &str,
    options: &[&str],
    linked: &[&str],
    libraries: &[&str],
    sources: &[PathBuf],
) -> Result<PathBuf, String> {
    let objects: Vec<_> = sources.iter().map(|source| (source, object_of(compiler, options, source))).collect();
    let missing: Vec<_> = objects.iter().filter(|(_, object)| !object.exists()).collect();
    let wrong = Mutex::new(String::new());
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    side_by_side(processors, &missing, |(source, object)| {
        let compiled = produce(Command::new(compiler).args(options).arg("-c").arg(source), &[], object);
        if let Err(why) = compiled {
            wrong.lock().unwrap_or_else(PoisonError::into_inner).push_str(&why);
        }
    });
    let wrong = wrong.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let out = out_dir().join(name);
    let objects = objects.iter().map(|(_, object)| object);
    produce(Command::new(compiler).args(linked).args(objects), libraries, &out)?;
    Ok(out)
}

/// Runs a compiler that makes `out`, under a name of this process first: two runs at once do not use each other's half-written
/// file.
fn produce(command: &mut Command, last: &[&str], out: &Path) -> Result<(), String> {
    let mut partial = out.as_os_str().to_owned();
    partial.push(format!(".{}", std::process::id()));
    let result = command.args(last).arg("-o").arg(&partial).output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    if !result.status.success() {
        return Err(String::from_utf8_lossy(&result.stderr).into_owned());
    }
    std::fs::rename(&partial, out).expect("naming what was compiled");
    Ok(())
}

/// Where the object of a source lies: named for what it is made of, including the headers beside the source and in the
/// folder of its name, the system's header of verbs, ours of ACP, PM and Vervain, and that of MPI over PM.
fn object_of(compiler: &str, options: &[&str], source: &Path) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    (compiler, options).hash(&mut hasher);
    let folders = [source.parent().expect("the folder of a source").to_owned(), source.with_extension("")];
    let entries = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    let mut headers: Vec<_> = entries.map(|entry| entry.path()).collect();
    headers.retain(|path| path.extension().is_some_and(|e| e == "h"));
    headers.sort();
    let verbs = PathBuf::from("/usr/include/infiniband/verbs.h");
    let ours = [
        "acp/libacp/include/acp.h",
        "pm/libpm/include/pm.h",
        "verbs/libibverbs/include/vervain.h",
        "../tests/pm/mpi/mpi.h",
    ]
    .map(|header| Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates").join(header));
    for file in std::iter::once(source).chain(headers.iter().chain([&verbs]).chain(&ours).map(PathBuf::as_path)) {
        // A machine without the header compiles only what does without.
        std::fs::read(file).unwrap_or_default().hash(&mut hasher);
    }
    let objects = out_dir().join("objects");
    std::fs::create_dir_all(&objects).expect("a directory for objects");
    let stem = source.file_stem().and_then(|stem| stem.to_str()).expect("a plain name");
    objects.join(format!("{stem}-{:016x}.o", hasher.finish()))
}
