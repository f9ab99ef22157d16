//! rsockets: rdma-core's own programs over them, and programs that know nothing of them under `librspreload.so`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use vervain_tests::netns::{Host, Network};
use vervain_tests::{Finished, Job, have, libraries, under_vervain, unswayed};

const LIMIT: Duration = Duration::from_secs(120);

/// For a server to begin to listen.
const PATIENCE: Duration = Duration::from_secs(20);

/// A client that comes before its server listens is refused, and says so in many ways. A server that has served one has ended, so this
/// hides no failure of one that was served.
fn try_until_there(client: impl Fn() -> Command) -> Finished {
    let until = Instant::now() + PATIENCE;
    loop {
        let end = Job::start(&mut client()).finish(LIMIT);
        if end.success() || Instant::now() > until {
            return end;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn assert_well(end: &Finished) {
    assert!(end.success(), "{}", end.describe());
}

/// Runs a program of rdma-core's as server and client with these arguments. Its server ends by itself.
fn pair(server_host: &Host, client_host: &Host, program: &str, arguments: &str) {
    let command = |more: &[&str]| {
        let mut command = under_vervain(program);
        command.args(more).args(arguments.split_whitespace());
        command
    };
    let server = Job::start(&mut server_host.enter(&command(&["-b", server_host.v4])));
    let client = try_until_there(|| client_host.enter(&command(&["-s", server_host.v4])));
    assert_well(&client);
    assert_well(&server.finish(LIMIT));
}

fn network() -> Option<Network> {
    have(&["rstream", "riostream", "rcopy", "udpong"]).then(|| Network::of_two(1500)).flatten()
}

const TESTS: [(&str, &str); 8] = [
    ("rstream", "-T b -T v -I 50 -C 10 -S 100000"),
    ("rstream", "-T a -T v -I 50 -C 10 -S 100000"),
    ("rstream", "-T n -T v -I 50 -C 10 -S 5000"),
    ("rstream", "-T r -T v -I 50 -C 10 -S 64"),
    ("rstream", "-B 3000 -i 0 -T v -I 20 -C 10 -S 50000"),
    ("rstream", "-k 1 -I 20 -C 2 -S 1000000"),
    ("riostream", "-T v -I 20 -C 10 -S 100000"),
    ("riostream", "-T b -I 20 -C 10 -S 1000"),
];

#[test]
fn rdma_cores_streams_run_in_a_host_and_between_two() {
    let Some(network) = network() else { return };
    for (program, arguments) in TESTS {
        pair(network.second(), network.second(), program, arguments);
        pair(network.second(), network.first(), program, arguments);
    }
}

#[test]
fn rdma_cores_datagrams_run_in_a_host_and_between_two() {
    let Some(network) = network() else { return };
    let host = network.second();
    // The server never ends.
    let mut server = under_vervain("udpong");
    server.args(["-b", host.v4, "-T", "e"]);
    let _server = Job::start(&mut host.enter(&server));
    for client_host in [network.second(), network.first()] {
        for how in ["b", "n", "a"] {
            let mut client = under_vervain("udpong");
            client.args(["-s", host.v4, "-T", "e", "-T", how, "-C", "200", "-S", "900"]);
            // A datagram may be lost, and the client waits for each: then another is tried.
            let once = |_| Job::start(&mut client_host.enter(&client)).finish(PATIENCE);
            assert!((0..3).map(once).any(|end| end.success()), "each of three that run {how} has lost some");
        }
    }
}

/// Files that are gone when this is.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("rsockets-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    /// A file of bytes that are not all alike.
    fn data(&self, name: &str, length: usize) -> String {
        let bytes: Vec<u8> =
            (0..length as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
        fs::write(self.0.join(name), bytes).expect("a file");
        self.path(name)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }

    fn assert_same(&self, one: &str, other: &str) {
        let read = |name| fs::read(self.0.join(name)).unwrap_or_default();
        assert!(read(one) == read(other), "{one} and {other} differ");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn rcopy_copies_a_file_to_another_host() {
    let Some(network) = network() else { return };
    let folder = Folder::new("rcopy");
    let (from, to) = (folder.data("from", 5_000_000), folder.path("to"));
    let _server = Job::start(&mut network.second().enter(&under_vervain("rcopy")));
    let copied = try_until_there(|| {
        let mut client = under_vervain("rcopy");
        client.args([&from, &format!("{}:{to}", network.second().v4)]);
        network.first().enter(&client)
    });
    assert_well(&copied);
    folder.assert_same("from", "to");
}

/// A program under the preload.
fn unaware(program: &str, arguments: &[&str]) -> Command {
    let mut command = under_vervain(program);
    command.args(arguments).env("LD_PRELOAD", libraries().join("rsocket/librspreload.so"));
    command
}

/// Echoes what one client sends, and says how much.
const SERVER: &str = r"
import socket, sys
listener = socket.socket()
listener.bind((sys.argv[1], 8000))
listener.listen(5)
client, _ = listener.accept()
count = 0
while data := client.recv(100000):
    count += len(data)
    client.sendall(data)
client.close()
print('echoed', count)
";

/// Sends and receives at once, by two threads, with timeouts, which make Python poll.
const CLIENT: &str = r"
import os, socket, sys, threading
client = socket.create_connection((sys.argv[1], 8000), timeout=60)
assert client.getpeername() == (sys.argv[1], 8000)
data, got = os.urandom(3000000), b''
sender = threading.Thread(target=lambda: (client.sendall(data), client.shutdown(socket.SHUT_WR)))
sender.start()
while part := client.recv(65536):
    got += part
sender.join()
print('same', got == data)
";

/// Has children close all descriptors, as those do that start another program, and talks on.
const PARENT: &str = r"
import os, socket, subprocess, sys
client = socket.create_connection((sys.argv[1], 8000), timeout=60)
client.sendall(b'before')
assert client.recv(100) == b'before'
child = os.fork()
if child == 0:
    for descriptor in range(3, 256):
        try:
            os.close(descriptor)
        except OSError:
            pass
    os.execvp('true', ['true'])
assert os.waitpid(child, 0)[1] == 0
subprocess.run(['true'], check=True)
client.sendall(b'after')
print('still', client.recv(100))
";

#[test]
fn children_that_close_all_leave_their_parents_rsockets_alone() {
    let Some(network) = network().filter(|_| have(&["python3"])) else { return };
    let (host, peer) = (network.second(), network.first());
    let server = Job::start(&mut host.enter(&unaware("python3", &["-c", SERVER, host.v4])));
    let client = try_until_there(|| peer.enter(&unaware("python3", &["-c", PARENT, host.v4])));
    assert_well(&client);
    assert!(client.output.contains("still b'after'"), "{}", client.describe());
    assert!(server.finish(LIMIT).output.contains("echoed 11"));
}

#[test]
fn programs_that_know_nothing_of_it_use_rsockets() {
    let Some(network) = network().filter(|_| have(&["python3", "curl"])) else { return };
    let (host, peer) = (network.second(), network.first());
    let server = Job::start(&mut host.enter(&unaware("python3", &["-c", SERVER, host.v4])));
    let client = try_until_there(|| peer.enter(&unaware("python3", &["-c", CLIENT, host.v4])));
    assert_well(&client);
    assert!(client.output.contains("same True"), "{}", client.describe());
    let server = server.finish(LIMIT);
    assert!(server.output.contains("echoed 3000000"), "{}", server.describe());

    let folder = Folder::new("web");
    folder.data("from", 3_000_000);
    let serve = ["-m", "http.server", "--bind", host.v4, "--directory", &folder.path(""), "8080"];
    let address = format!("http://{}:8080/from", host.v4);
    let fetched = |from: &Host, command: Command, to: &str| {
        assert_well(&try_until_there(|| from.enter(&command)));
        folder.assert_same("from", to);
    };
    let web = Job::start(&mut host.enter(&unaware("python3", &serve)));
    fetched(peer, unaware("curl", &["-sSf", "-o", &folder.path("by-rsockets"), &address]), "by-rsockets");
    // No socket of the kernel's listens.
    assert!(!host.run("ss", &["-ltn"]).output.contains(":8080"));
    web.signal_group(libc::SIGKILL);
    drop(web);

    // A server that has none of them is reached by TCP.
    let mut plain = unswayed("python3");
    plain.args(serve);
    let _web = Job::start(&mut host.enter(&plain));
    let get = "import sys, urllib.request as web; open(sys.argv[2], 'wb').write(web.urlopen(sys.argv[1]).read())";
    fetched(host, unaware("python3", &["-c", get, &address, &folder.path("by-tcp")]), "by-tcp");
}
