//! The structure of the sources, from their own syntax: the rooms of the device model, the words of the specification,
//! where unsafe code is allowed, and in [`limits`] how large structs, types, circles of imports and files may be and how
//! wide comments.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::Visit;

#[path = "structure/limits.rs"]
mod limits;

/// The rooms of `crates/device/hca/src`, each of which may use those before it.
const ROOMS: [&str; 17] = [
    "error",
    "host",
    "reasons",
    "adopt",
    "arena",
    "device",
    "process",
    "context",
    "rq",
    "cq",
    "srq",
    "mr",
    "responder",
    "lane",
    "owner_copy",
    "qp",
    "hang",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    files(folder, &["rs"], found);
}

/// The files below a folder that have one of these extensions.
fn files(folder: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files(&path, extensions, found);
        } else if path.extension().is_some_and(|e| extensions.iter().any(|extension| e == *extension)) {
            found.push(path);
        }
    }
}

/// Modules by name (`qp::sq`, without the crate's root) with the modules of the same crate that each one names.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// The paths of a file, but for those of tests.
#[derive(Default)]
struct Paths {
    all: Vec<Vec<String>>,
    /// Those of `pub use` in any form.
    exported: Vec<Vec<String>>,
}

impl Paths {
    fn expand(&mut self, tree: &syn::UseTree, before: &[String]) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.expand(&path.tree, &with(&path.ident)),
            syn::UseTree::Name(name) => self.all.push(with(&name.ident)),
            syn::UseTree::Rename(name) => self.all.push(with(&name.ident)),
            syn::UseTree::Glob(_) => self.all.push(before.to_vec()),
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.expand(item, before)),
        }
    }
}

/// `#[cfg(test)]`.
fn is_test(attribute: &syn::Attribute) -> bool {
    attribute.path().is_ident("cfg") && attribute.parse_args::<syn::Path>().is_ok_and(|p| p.is_ident("test"))
}

impl Visit<'_> for Paths {
    fn visit_item_mod(&mut self, module: &syn::ItemMod) {
        if !module.attrs.iter().any(is_test) {
            syn::visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_use(&mut self, item: &syn::ItemUse) {
        let before = self.all.len();
        self.expand(&item.tree, &[]);
        if !matches!(item.vis, syn::Visibility::Inherited) {
            self.exported.extend_from_slice(&self.all[before..]);
        }
    }

    /// The module that `pub(super)` names sees the item; the item imports nothing of it.
    fn visit_visibility(&mut self, _: &syn::Visibility) {}

    fn visit_path(&mut self, path: &syn::Path) {
        self.all.push(path.segments.iter().map(|s| s.ident.to_string()).collect());
        syn::visit::visit_path(self, path);
    }
}

/// The module of a file below `src`, without the crate's root.
fn module_name(crate_folder: &Path, file: &Path) -> Vec<String> {
    let path = file.strip_prefix(crate_folder.join("src")).expect("below it").with_extension("");
    let parts = path.iter().map(|part| part.to_string_lossy().into_owned());
    parts.filter(|part| part != "mod" && part != "lib").collect()
}

/// Modules with their sources; the crate's root, which has no name, is one of them.
type Sources = BTreeMap<Vec<String>, syn::File>;

fn parse(crate_folder: &Path) -> Sources {
    let mut files = Vec::new();
    if crate_folder.join("src").is_dir() {
        sources(&crate_folder.join("src"), &mut files);
    }
    let file = |f: &PathBuf| syn::parse_file(&fs::read_to_string(f).expect("a source")).expect("Rust");
    files.iter().map(|f| (module_name(crate_folder, f), file(f))).collect()
}

fn graph(sources: &Sources) -> Graph {
    let mut graph = Graph::new();
    for (own, file) in sources.iter().filter(|(own, _)| !own.is_empty()) {
        let mut paths = Paths::default();
        paths.visit_file(file);
        let to_child = paths.exported.iter().map(|path| [&own[..], path].concat()).filter(|full| {
            let child = &full[..=own.len()];
            sources.contains_key(child)
        });
        let full = paths.all.iter().filter_map(|path| {
            let above = path.iter().take_while(|part| *part == "super").count();
            match path[0].as_str() {
                "crate" => Some(path[1..].to_vec()),
                "self" => Some([own, &path[1..]].concat()),
                "super" => Some([&own[..own.len().saturating_sub(above)], &path[above..]].concat()),
                _ => None,
            }
        });
        let longest =
            |full: Vec<String>| (1..=full.len()).rev().map(|n| full[..n].to_vec()).find(|m| sources.contains_key(m));
        let edges = full.chain(to_child).filter_map(longest).filter(|to| to != own).map(|to| to.join("::"));
        graph.insert(own.join("::"), edges.collect());
    }
    graph
}

/// The modules that are reached from `from`.
fn reached<'a>(graph: &'a Graph, from: &'a str) -> BTreeSet<&'a str> {
    let (mut seen, mut waiting) = (BTreeSet::new(), vec![from]);
    while let Some(module) = waiting.pop() {
        for next in graph.get(module).into_iter().flatten() {
            if seen.insert(next.as_str()) {
                waiting.push(next);
            }
        }
    }
    seen
}

/// The folders of `crates`, each of which may use those before it.
const FOLDERS: [&str; 11] =
    ["base", "protocols", "device", "links", "verbs", "stand-ins", "rdmacm", "jobs", "acp", "pm", "tools"];

/// The folders of all crates.
fn crates() -> Vec<PathBuf> {
    let inside = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect()
    };
    inside(&root().join("crates")).iter().flat_map(|folder| inside(folder)).collect()
}

#[test]
fn folders_use_those_before_them() {
    let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    let floor = |package: &Path| {
        let folder = name(package.parent().expect("a folder"));
        FOLDERS.iter().position(|f| *f == folder).unwrap_or_else(|| panic!("crates/{folder} is no floor"))
    };
    let floors: BTreeMap<String, usize> = crates().iter().map(|package| (name(package), floor(package))).collect();
    let mut upward = Vec::new();
    for package in crates() {
        let manifest = fs::read_to_string(package.join("Cargo.toml")).expect("Cargo.toml");
        for line in manifest.lines() {
            let Some((used, _)) = line.strip_prefix("vervain-").and_then(|rest| rest.split_once([' ', '.'])) else {
                continue;
            };
            // What is not there is a helper of the tests.
            if floors.get(used).is_some_and(|used| *used > floor(&package)) {
                upward.push(format!("{} uses {used}", name(&package)));
            }
        }
    }
    assert_eq!(upward, Vec::<String>::new(), "crates of later folders");
}

#[test]
fn rooms_of_the_device_model_use_those_before_them() {
    let graph = graph(&parse(&root().join("crates/device/hca")));
    let rank = |module: &str| {
        let room = module.split("::").next().expect("a name");
        ROOMS.iter().position(|r| *r == room).unwrap_or_else(|| panic!("{room} is no room"))
    };
    let upward: BTreeSet<(&str, &str)> = graph
        .iter()
        .flat_map(|(from, all)| all.iter().map(move |to| (from.as_str(), to.as_str())))
        .filter(|(from, to)| rank(to) > rank(from))
        .collect();
    assert_eq!(upward, BTreeSet::new(), "arrows to a later room");
}

/// Types of `vervain-iba`, and the crates over it, none of which has another by that name.
const WORDS: [&str; 6] = ["Nak", "Opcode", "Request", "Right", "Status", "Flush"];
const SPEAKERS: [&str; 11] = [
    "protocols/wire",
    "protocols/transport",
    "device/hca",
    "links/sockets",
    "links/carrier",
    "links/rendezvous",
    "links/qp1",
    "links/roce",
    "links/window-link",
    "links/link",
    "verbs/verbs",
];

/// The names of a file's types, but for those of tests.
#[derive(Default)]
struct Types(Vec<String>);

impl Visit<'_> for Types {
    fn visit_item_mod(&mut self, module: &syn::ItemMod) {
        if !module.attrs.iter().any(|a| a.path().is_ident("cfg")) {
            syn::visit::visit_item_mod(self, module);
        }
    }

    fn visit_item(&mut self, item: &syn::Item) {
        match item {
            syn::Item::Enum(item) => self.0.push(item.ident.to_string()),
            syn::Item::Struct(item) => self.0.push(item.ident.to_string()),
            syn::Item::Type(item) => self.0.push(item.ident.to_string()),
            _ => {}
        }
        syn::visit::visit_item(self, item);
    }
}

#[test]
fn words_of_the_specification_are_defined_once() {
    let mut again = BTreeSet::new();
    for name in SPEAKERS {
        let mut files = Vec::new();
        sources(&root().join("crates").join(name).join("src"), &mut files);
        for file in files {
            let mut types = Types::default();
            types.visit_file(&syn::parse_file(&fs::read_to_string(&file).expect("a source")).expect("Rust"));
            again.extend(types.0.into_iter().filter(|t| WORDS.contains(&t.as_str())).map(|t| (file.clone(), t)));
        }
    }
    assert_eq!(again, BTreeSet::new(), "types that vervain-iba has");
}

/// Crates that docs/design.md names as those that may have unsafe code.
fn may_be_unsafe() -> BTreeSet<String> {
    let design = fs::read_to_string(root().join("docs/design.md")).expect("docs/design.md");
    let (_, list) = design.split_once("Unsafe code is in these crates only:").expect("the list");
    let (list, _) = list.split_once('.').expect("the end of the list");
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// `eprintln!` writes piece by piece, between which another process's line may come: libraries share standard error with
/// their program, and with all ranks of its job.
#[test]
fn libraries_write_whole_lines() {
    let mut found = Vec::new();
    for package in crates().iter().filter(|package| !package.starts_with(root().join("crates/tools"))) {
        let mut files = Vec::new();
        if package.join("src").is_dir() {
            sources(&package.join("src"), &mut files);
        }
        files.retain(|file| !file.components().any(|part| part.as_os_str().to_string_lossy().starts_with("tests")));
        for file in files {
            let text = fs::read_to_string(&file).expect("a source");
            if text.contains("eprintln!(") || text.contains("eprint!(") {
                found.push(file);
            }
        }
    }
    assert_eq!(found, Vec::<PathBuf>::new(), "sources that print piece by piece");
}

#[test]
fn unsafe_code_is_where_the_design_allows_it() {
    struct Unsafe(bool);
    impl Visit<'_> for Unsafe {
        fn visit_expr_unsafe(&mut self, _: &syn::ExprUnsafe) {
            self.0 = true;
        }
        fn visit_signature(&mut self, signature: &syn::Signature) {
            self.0 |= signature.unsafety.is_some();
        }
        fn visit_item_impl(&mut self, item: &syn::ItemImpl) {
            self.0 |= item.unsafety.is_some();
            syn::visit::visit_item_impl(self, item);
        }
        fn visit_attribute(&mut self, attribute: &syn::Attribute) {
            self.0 |= attribute.path().is_ident("unsafe");
        }
    }
    let allowed = may_be_unsafe();
    let mut found = BTreeSet::new();
    for folder in crates() {
        let mut files = Vec::new();
        if folder.join("src").is_dir() {
            sources(&folder.join("src"), &mut files);
        }
        let mut visit = Unsafe(false);
        for file in &files {
            visit.visit_file(&syn::parse_file(&fs::read_to_string(file).expect("a source")).expect("Rust"));
        }
        if visit.0 {
            found.insert(folder.file_name().expect("a name").to_string_lossy().into_owned());
        }
    }
    assert_eq!(found, allowed, "crates with unsafe code, and those that docs/design.md names");
}

/// Cancellation points among the functions that glibc exports (`man 7 pthreads`; those that Linux adds take
/// `SYSCALL_CANCEL` in glibc's sources). fcntl is one for F_SETLKW only, which nobody here uses.
const CANCELLATION_POINTS: &[&str] = &[
    "accept",
    "accept4",
    "clock_nanosleep",
    "close",
    "connect",
    "copy_file_range",
    "creat",
    "epoll_pwait",
    "epoll_wait",
    "fallocate",
    "fdatasync",
    "fsync",
    "getrandom",
    "msgrcv",
    "msgsnd",
    "msync",
    "nanosleep",
    "open",
    "open64",
    "openat",
    "openat64",
    "pause",
    "poll",
    "ppoll",
    "pread",
    "pread64",
    "preadv",
    "pselect",
    "pthread_cond_timedwait",
    "pthread_cond_wait",
    "pthread_join",
    "pwrite",
    "pwrite64",
    "pwritev",
    "read",
    "readv",
    "recv",
    "recvfrom",
    "recvmmsg",
    "recvmsg",
    "select",
    "sem_timedwait",
    "sem_wait",
    "send",
    "sendmmsg",
    "sendmsg",
    "sendto",
    "sigsuspend",
    "sigtimedwait",
    "sigwait",
    "sleep",
    "splice",
    "sync_file_range",
    "system",
    "tcdrain",
    "tee",
    "usleep",
    "vmsplice",
    "wait",
    "waitid",
    "waitpid",
    "write",
    "writev",
];

/// Where the device model and the links call them all the same, each with the reason.
const MAY_BE_CANCELLATION_POINTS: [(&str, &str); 19] = [
    // The waits of ibv_get_cq_event and ibv_get_async_event, in which nothing is held.
    ("hca/src/context/async_events.rs", "libc::read"),
    ("roce/src/poll.rs", "libc::ppoll"),
    // In `Uncancelled` where they stand.
    ("hca/src/arena/mod.rs", "libc::fallocate"),
    ("hca/src/host/cancel.rs", "std::thread::sleep"),
    ("roce/src/net/capture.rs", "std::fs::File"),
    ("roce/src/net/sys.rs", "std::fs::File::open"),
    // Of verbs that run in `Uncancelled` as a whole: opening a device, registration, saving, destroying a QP.
    ("hca/src/adopt/uffd.rs", "std::fs::File::open"),
    ("hca/src/adopt/vmas.rs", "std::fs::File"),
    ("hca/src/adopt/vmas.rs", "std::fs::read_dir"),
    ("hca/src/context/async_events.rs", "libc::recv"),
    ("hca/src/cq/channel.rs", "libc::tee"),
    ("hca/src/device/mod.rs", "std::fs::read"),
    ("hca/src/host/pinnable.rs", "libc::msync"),
    ("hca/src/host/pinnable.rs", "libc::open"),
    ("hca/src/host/sysv.rs", "std::fs::metadata"),
    ("roce/src/port_sharing/udp.rs", "std::fs::read_to_string"),
    ("sockets/src/user.rs", "std::fs::read_to_string"),
    // In threads that are not the program's.
    ("hca/src/process/fork.rs", "libc::close"),
    ("hca/src/process/progress.rs", "libc::ppoll"),
];

#[test]
fn verbs_are_no_cancellation_points() {
    let mut found = BTreeSet::new();
    for folder in ["device", "links"].map(|folder| root().join("crates").join(folder)) {
        let mut files = Vec::new();
        crates().iter().filter(|c| c.starts_with(&folder)).for_each(|c| sources(&c.join("src"), &mut files));
        for file in &files {
            let within = file.strip_prefix(&folder).expect("below it").to_string_lossy().into_owned();
            if within.ends_with("/tests.rs") || within.contains("/tests/") {
                continue;
            }
            let mut paths = Paths::default();
            paths.visit_file(&syn::parse_file(&fs::read_to_string(file).expect("a source")).expect("Rust"));
            let is_one = |path: &Vec<String>| match path.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                ["libc", name] => CANCELLATION_POINTS.contains(&name),
                ["std", "fs", ..] | ["std", "thread", "sleep"] | ["thread", "sleep"] => true,
                _ => false,
            };
            found.extend(paths.all.into_iter().filter(is_one).map(|path| (within.clone(), path.join("::"))));
        }
    }
    let may_be = MAY_BE_CANCELLATION_POINTS.map(|(file, name)| (file.to_owned(), name.to_owned()));
    assert_eq!(
        found,
        may_be.into_iter().collect(),
        "calls of cancellation points; vervain_hca::host::cancel says what to do"
    );
}

/// The folder of the package that a file belongs to.
fn package(file: &Path) -> &Path {
    file.ancestors().find(|folder| folder.join("Cargo.toml").exists()).expect("a package")
}

/// Returns true if a test `name` of `file`, ignored for this reason, is run all the same: by a function of its package
/// that the reason names, or by `make soak`.
fn is_run(reason: &str, name: &str, file: &Path) -> bool {
    if reason.ends_with("make soak") {
        let main = file.file_name().is_some_and(|name| name == "main.rs");
        let program = if main { file.parent().expect("a folder") } else { file }.file_stem().expect("a name");
        let makefile = fs::read_to_string(root().join("Makefile")).expect("the Makefile");
        return name == "soak" && makefile.contains(&format!("--test {} ", program.to_string_lossy()));
    }
    let Some((_, by)) = reason.split_once(" by ") else { return false };
    let runner = by.split(' ').next().and_then(|path| path.rsplit("::").next()).expect("a part");
    let mut all = Vec::new();
    sources(package(file), &mut all);
    all.iter().any(|other| fs::read_to_string(other).expect("a source").contains(&format!("fn {runner}(")))
}

#[test]
fn ignored_tests_name_what_runs_them() {
    let mut all = Vec::new();
    for folder in ["crates", "tests", "benches", "examples"] {
        sources(&root().join(folder), &mut all);
    }
    let (mut ignored, mut idle) = (0, Vec::new());
    for file in &all {
        let text = fs::read_to_string(file).expect("a source");
        for (before, rest) in text.match_indices("#[ignore").map(|(at, _)| (&text[..at], &text[at..])) {
            if !before.rsplit('\n').next().is_some_and(|start| start.trim().is_empty()) {
                continue;
            }
            ignored += 1;
            let reason =
                rest.split_once(']').and_then(|(attribute, _)| attribute.split('"').nth(1)).unwrap_or_default();
            let name = rest.split_once("fn ").and_then(|(_, rest)| rest.split('(').next()).expect("a function");
            if !is_run(reason, name, file) {
                idle.push(format!("{}: {name}: {reason}", file.display()));
            }
        }
    }
    assert!(ignored > 0 && idle.is_empty(), "{ignored} ignored tests, of which nothing runs {idle:#?}");
}
