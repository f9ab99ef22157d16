//! Windows in files: making and finding them, what is refused, puts between nodes.

#[allow(dead_code)] // each test file uses a part of it
mod common;

use common::{Agent, folder};
use proptest::prelude::*;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use vervain_window::{FileDevice, Options, Origin, Put, PutDevice, Refused, memfd};

#[test]
#[ignore = "a process of its own, started by Agent::new"]
fn agent() {
    common::serve();
}

const SMALL: Options = Options { size: Some(4 << 20), nodes: Some(2), node: None, peach2: None };

fn node(node: u32) -> Options {
    Options { node: Some(node), ..SMALL }
}

fn open(path: &Path, options: &Options) -> FileDevice {
    FileDevice::open(path, options).unwrap()
}

fn refused(path: &Path, options: &Options, errno: i32, says: &str) {
    let error = FileDevice::open(path, options).unwrap_err();
    assert!(error.to_string().contains(says), "{error}");
    assert_eq!(error.errno(), errno, "{error}");
}

#[test]
fn a_window_that_is_not_there_is_made_for_its_user_alone_with_all_its_memory() {
    let (folder, path) = folder();
    let device = open(&path, &Options::default());
    let layout = device.facts().layout;
    assert_eq!(layout.nodes(), 8);
    let meta = fs::metadata(&path).unwrap();
    assert_eq!(meta.permissions().mode() & 0o7777, 0o600);
    assert_eq!(meta.len(), layout.size());
    assert!(std::os::unix::fs::MetadataExt::blocks(&meta) * 512 >= layout.size());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left there");
    assert_ne!(device.facts().uuid, [0; 16]);
    assert_eq!(open(&path, &Options::default()).facts(), device.facts());
}

#[test]
fn what_is_put_is_in_the_other_nodes_region_and_nowhere_else() {
    let (_folder, path) = folder();
    let [a, b] = [0, 1].map(|n| open(&path, &node(n)));
    let layout = a.facts().layout;
    let (first, last) = (layout.doors(), layout.region_len() - 8);
    let mut channel = a.channel(1).unwrap();
    let before = fs::read(&path).unwrap();
    let text = b"sixteen bytes of";
    let chain = [
        Put { to: first, from: Origin::Words(&[1, 2]) },
        Put { to: first + 19, from: Origin::Source(&&text[..]) },
        Put { to: last, from: Origin::Words(&[u64::MAX]) },
    ];
    channel.put(&chain).unwrap();
    let read = |at: u64| b.own().word(at).load(Ordering::Acquire);
    assert_eq!((read(first), read(first + 8), read(last)), (1, 2, u64::MAX));
    let bytes = b.own().bytes(first + 19..first + 35).unwrap();
    // SAFETY: in the region, and nobody writes there now.
    assert_eq!(unsafe { std::slice::from_raw_parts(bytes, 16) }, text);
    let after = fs::read(&path).unwrap();
    let start = (layout.size() - layout.region_len()) as usize;
    let changed: Vec<usize> = (0..before.len()).filter(|i| before[*i] != after[*i]).collect();
    let allowed = |i: &usize| {
        let at = (*i - start) as u64;
        (first..first + 35).contains(&at) || at >= last
    };
    assert!(changed.iter().all(|i| *i >= start && allowed(i)), "{changed:?}");
    // To its own node, too.
    a.channel(0).unwrap().put(&chain[..1]).unwrap();
    assert_eq!(a.own().word(first + 8).load(Ordering::Acquire), 2);
    // A chain with one bad put is not begun.
    let bad = [Put { to: first, from: Origin::Words(&[9]) }, Put { to: last, from: Origin::Words(&[1, 2]) }];
    assert_eq!(channel.put(&bad), Err(Refused::Outside));
    assert_eq!(read(first), 1);
    assert!(a.channel(2).is_err_and(|e| e.errno() == libc::EINVAL));
}

#[test]
fn a_channel_keeps_what_it_puts_to() {
    let (_folder, path) = folder();
    let [a, b] = [0, 1].map(|n| open(&path, &node(n)));
    let at = a.facts().layout.doors();
    let (mut channel, region) = (a.channel(1).unwrap(), b.own().clone());
    drop((a, b));
    channel.put(&[Put { to: at, from: Origin::Words(&[5]) }]).unwrap();
    assert_eq!(region.word(at).load(Ordering::Acquire), 5);
}

#[test]
fn many_that_make_one_window_at_once_get_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let mut agents: Vec<Agent> = (0..4).map(|_| Agent::new()).collect();
    for (round, kind) in (0..250).map(|n| (n, "file")).chain((250..300).map(|n| (n, "write_only"))) {
        let path = folder.path().join(round.to_string());
        agents.iter_mut().for_each(|a| a.tell(&format!("open {kind} {} size=4194304 nodes=2", path.display())));
        let answers: Vec<Vec<u64>> = agents.iter_mut().map(|a| a.hear().unwrap()).collect();
        assert!(answers.iter().all(|answer| *answer == answers[0]), "round {round}: {answers:?}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path)).unwrap();
    }
}

#[test]
fn memory_without_a_name_is_a_window_when_it_is_sealed() {
    let fd = memfd(&SMALL).unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    let [a, b] = [0, 1].map(|n| open(&path, &node(n)));
    assert_eq!(a.facts().uuid, b.facts().uuid);
    assert!(File::from(fd).set_len(0).is_err());
    // SAFETY: a system call; the descriptor is owned at once.
    let loose = unsafe {
        let fd = libc::memfd_create(c"loose".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        <File as std::os::fd::FromRawFd>::from_raw_fd(fd)
    };
    loose.set_len(a.facts().layout.size()).unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}", loose.as_raw_fd()));
    refused(&path, &SMALL, libc::EPERM, "not sealed against being made shorter");
}

/// Memory of so many bytes without a name, sealed against being made shorter; with its path.
fn sealed(len: u64) -> (File, PathBuf) {
    // SAFETY: a system call; the descriptor is owned at once.
    let file = unsafe {
        let fd = libc::memfd_create(c"sealed".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        <File as std::os::fd::FromRawFd>::from_raw_fd(fd)
    };
    file.set_len(len).unwrap();
    // SAFETY: a system call on a descriptor.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) }, 0);
    let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
    (file, path)
}

#[test]
fn fresh_memory_that_is_sealed_becomes_a_window_once() {
    // No multiple of what regions are made of.
    const LEN: u64 = (5 << 20) + 4096;
    let any_size = |node| Options { node: Some(node), size: None, ..SMALL };
    let (_file, path) = sealed(LEN);
    let [a, b] = std::thread::scope(|scope| {
        let open = |node| open(&path, &any_size(node));
        let threads = [0, 1].map(|node| scope.spawn(move || open(node)));
        threads.map(|thread| thread.join().unwrap())
    });
    assert_eq!(a.facts().uuid, b.facts().uuid);
    let layout = a.facts().layout;
    assert!(layout.nodes() == 2 && layout.size() <= LEN, "{layout:?}");
    let at = layout.doors();
    a.channel(1).unwrap().put(&[Put { to: at, from: Origin::Words(&[5]) }]).unwrap();
    assert_eq!(b.own().word(at).load(Ordering::Acquire), 5);
    assert_eq!(open(&path, &any_size(0)).facts(), a.facts());
}

#[test]
fn sealed_memory_that_is_no_window_is_refused_with_a_sentence() {
    let (_file, path) = sealed(0);
    refused(&path, &SMALL, libc::EINVAL, "has no bytes: give it those of the window");
    let (_file, path) = sealed(4096);
    refused(&path, &SMALL, libc::EINVAL, "has 4096 bytes, too few for a window");
    let (file, path) = sealed(5 << 20);
    refused(&path, &Options { size: Some(8 << 20), ..SMALL }, libc::EINVAL, "bytes, not 8388608");
    file.write_all_at(b"data of somebody", 100).unwrap();
    refused(&path, &SMALL, libc::EINVAL, "what it begins with is no header");
    let mut bytes = [0; 16];
    file.read_exact_at(&mut bytes, 100).unwrap();
    assert_eq!(&bytes, b"data of somebody");
}

#[test]
fn nothing_is_made_where_devices_are() {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/dev", folder.path().join("link")).unwrap();
    let name = format!("vervain-test-{}", std::process::id());
    let absent = Path::new("/dev").join(&name);
    for path in [&absent, &folder.path().join("link").join(&name)] {
        refused(path, &SMALL, libc::ENOENT, "is not there, and below /dev none is made but in /dev/shm");
    }
    let slash = PathBuf::from(format!("{}/", absent.display()));
    let error = vervain_window::open(&slash, &SMALL).err().expect("an error");
    assert!(error.to_string().contains("below /dev none is made"), "{error}");
    assert!(!absent.exists());
}

/// Changes the header of a window that is made anew.
fn changed(path: &Path, word: u64, value: u64) {
    let _ = fs::remove_file(path);
    drop(open(path, &SMALL));
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(&value.to_ne_bytes(), word * 8).unwrap();
}

#[test]
fn a_file_that_is_no_good_window_is_refused_with_a_sentence() {
    let (folder, path) = folder();
    changed(&path, 0, 1);
    refused(
        &path,
        &SMALL,
        libc::EINVAL,
        "is none: what it begins with is no header; to have a new window made, delete this one",
    );
    changed(&path, 1, 2);
    refused(&path, &SMALL, libc::EPROTO, "has version 2 of the layout, and this is 1: use one version of Vervain");
    changed(&path, 2, 0);
    refused(&path, &SMALL, libc::EINVAL, "is broken: a window has 1 to 64 nodes, not 0");
    changed(&path, 2, 65);
    refused(&path, &SMALL, libc::EINVAL, "is broken: a window has 1 to 64 nodes, not 65");
    changed(&path, 2, 3);
    refused(&path, &SMALL, libc::EINVAL, "and its header says");
    for len in [0, 1, 65536 + 1, 1 << 40, !0xffff] {
        changed(&path, 3, len);
        refused(&path, &SMALL, libc::EINVAL, &format!("is broken: its header says that regions have {len} bytes"));
    }
    for len in [0, 10, 4096, 65536] {
        changed(&path, 0, 1);
        OpenOptions::new().write(true).open(&path).unwrap().set_len(len).unwrap();
        refused(&path, &SMALL, libc::EINVAL, "what it begins with is no header");
    }
    fs::remove_file(&path).unwrap();
    let size = open(&path, &SMALL).facts().layout.size();
    for len in [size - 1, size + 1, size / 2, 65536] {
        OpenOptions::new().write(true).open(&path).unwrap().set_len(len).unwrap();
        refused(&path, &SMALL, libc::EINVAL, &format!("has {len} bytes, and its header says {size}; to have a"));
    }
    fs::remove_file(&path).unwrap();
    drop(open(&path, &SMALL));
    for mode in [0o620, 0o602, 0o666, 0o777] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        refused(&path, &SMALL, libc::EPERM, &format!("may be written by others than its owner (mode {mode:o})"));
    }
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    drop(open(&path, &SMALL));
    refused(folder.path(), &SMALL, libc::EISDIR, "cannot be opened");
    refused(Path::new("/dev/null"), &SMALL, libc::EINVAL, "is no regular file");
    refused(&folder.path().join("absent/window"), &SMALL, libc::ENOENT, "cannot be made");
    refused(Path::new(""), &SMALL, libc::ENOENT, "the window");
    refused(&folder.path().join(".."), &SMALL, libc::EISDIR, "cannot be opened");
    let link = folder.path().join("link");
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    let begin = std::time::Instant::now();
    let large = Options { size: Some(1 << 40), ..SMALL };
    refused(&link, &large, libc::ENOENT, "link is a link to nowhere, which is not there");
    assert!(begin.elapsed().as_millis() < 500, "it is refused at once, before anything is made");
    let pipe = folder.path().join("pipe");
    make_fifo(&pipe);
    refused(&pipe, &SMALL, libc::EINVAL, "is no regular file");
}

fn make_fifo(path: &Path) {
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: a C string.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
}

#[test]
fn another_users_file_is_refused() {
    let (_folder, path) = folder();
    drop(open(&path, &SMALL));
    if std::os::unix::fs::chown(&path, Some(65_534), None).is_err() {
        vervain_skip::skip("only root gives files away");
        return;
    }
    refused(&path, &SMALL, libc::EPERM, "is user 65534's, and this is user 0");
}

#[test]
fn what_contradicts_a_window_that_is_there_is_refused() {
    let (_folder, path) = folder();
    let size = open(&path, &SMALL).facts().layout.size();
    refused(
        &path,
        &Options { size: Some(8 << 20), ..SMALL },
        libc::EINVAL,
        &format!("has {size} bytes, not 8388608: leave size= out"),
    );
    refused(&path, &Options { size: Some(1), ..SMALL }, libc::EINVAL, "a window of 1 bytes cannot be");
    refused(&path, &Options { nodes: Some(8), ..SMALL }, libc::EINVAL, "has 2 nodes, not 8");
    refused(&path, &node(2), libc::EINVAL, "nodes 0 to 1, not 2");
    assert_eq!(open(&path, &Options { size: Some(size), ..SMALL }).facts().layout.size(), size);
    assert_eq!(open(&path, &Options::default()).facts().layout.nodes(), 2);
}

#[test]
fn a_window_that_cannot_be_made_leaves_nothing() {
    let (folder, path) = folder();
    for (options, errno, says) in [
        (Options { size: Some(1 << 16), ..SMALL }, libc::EINVAL, "a window of 65536 bytes cannot be"),
        (Options { nodes: Some(0), ..SMALL }, libc::EINVAL, "1 to 64 nodes, not 0"),
        (Options { size: Some(1 << 40), ..SMALL }, libc::ENOSPC, "there is no room for a window of"),
    ] {
        refused(&path, &options, errno, says);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{says}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn random_headers_never_map_beyond_the_file(words in prop::collection::vec((0..4_u64, any::<u64>()), 1..4)) {
        let (_folder, path) = folder();
        drop(open(&path, &SMALL));
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        for (word, value) in &words {
            file.write_all_at(&value.to_ne_bytes(), word * 8).unwrap();
        }
        let error = FileDevice::open(&path, &Options::default()).unwrap_err();
        prop_assert!([libc::EINVAL, libc::EPROTO].contains(&error.errno()), "{error}");
    }
}
