//! NETLINK_RDMA under `vervain run`: what `rdma` of iproute2 prints of the devices, and what programs see that speak netlink
//! themselves.

use std::time::Duration;

use vervain_tests::counters::Counters;
use vervain_tests::{Finished, Job, free_port, have, under_vervain, unswayed};

const LIMIT: Duration = Duration::from_secs(30);
const PYTHON: &str = "/usr/bin/python3";

/// `rdma` with these arguments under these variables.
fn rdma(args: &str, vars: &[(&str, &str)]) -> Finished {
    Job::start(under_vervain("rdma").args(args.split_whitespace()).envs(vars.iter().copied())).finish(LIMIT)
}

/// What `rdma` prints, which must end well, each line without what stands at its ends.
fn printed(args: &str, vars: &[(&str, &str)]) -> Vec<String> {
    let end = rdma(args, vars);
    assert!(end.success(), "{}", end.describe());
    end.output.lines().map(|line| line.trim().to_owned()).collect()
}

#[test]
fn rdma_lists_devices_and_links() {
    if !have(&["rdma"]) {
        return;
    }
    let vars = [("VERVAIN_DEVICES", "2"), ("VERVAIN_PORTS", "2"), ("VERVAIN_INTERFACE", "lo")];
    let devices = printed("dev", &vars);
    assert_eq!(devices.len(), 2, "{devices:?}");
    for (index, line) in devices.iter().enumerate() {
        assert!(line.starts_with(&format!("{index}: vervain{index}: node_type ca fw ")), "{line}");
    }
    let guid =
        Job::start(under_vervain("cat").arg("/sys/class/infiniband/vervain1/node_guid").envs(vars)).finish(LIMIT);
    assert!(devices[1].contains(&format!("node_guid {}", guid.output.trim())), "{devices:?}");
    let link = |port: &str| format!("link vervain{port} state ACTIVE physical_state LINK_UP netdev lo");
    assert_eq!(printed("link show", &vars), ["0/1", "0/2", "1/1", "1/2"].map(link));
    assert_eq!(printed("link show vervain1/2", &vars), [link("1/2")]);
    // As rdma-core's tests ask for it.
    let json = printed("link show -j", &vars).concat();
    let of_first =
        "\"ifname\":\"vervain0\",\"port\":1,\"state\":\"ACTIVE\",\"physical_state\":\"LINK_UP\",\"netdev\":\"lo\"";
    assert!(json.starts_with('[') && json.contains(of_first), "{json}");
    assert_eq!(printed("-d link show vervain0/1", &vars), [link("0/1") + " netdev_index 1"]);
    let detailed = printed("-d -j dev show vervain1", &vars).concat();
    assert!(
        detailed.contains("\"ifname\":\"vervain1\"") && detailed.contains("\"adaptive-moderation\":false"),
        "{detailed}"
    );
}

#[test]
fn rdma_prints_lids_of_infiniband() {
    if !have(&["rdma"]) {
        return;
    }
    let links = printed("link", &[("VERVAIN_LINK_LAYER", "infiniband")]);
    let [link] = &links[..] else { panic!("{links:?}") };
    let lid = Job::start(
        under_vervain("cat").arg("/sys/class/infiniband/vervain0/ports/1/lid").env("VERVAIN_LINK_LAYER", "infiniband"),
    )
    .finish(LIMIT);
    let lid = u32::from_str_radix(lid.output.trim().trim_start_matches("0x"), 16).expect("a LID");
    let expected = format!("subnet_prefix fe80:0000:0000:0000 lid {lid} sm_lid 1 lmc 0 state ACTIVE");
    assert!(link.contains(&expected) && !link.contains("netdev"), "{link}, not {expected}");
}

#[test]
fn rdma_says_what_is_not_there_and_cannot_be_done() {
    if !have(&["rdma"]) {
        return;
    }
    for (args, said) in [
        ("dev show vervain7", "Wrong device name"),
        ("link show vervain0/3", "Wrong device name"),
        ("dev set vervain0 name mine", "Operation not supported"),
        ("link delete vervain0", "Operation not supported"),
    ] {
        let end = rdma(args, &[]);
        assert!(!end.success() && end.output.contains(said), "{}", end.describe());
    }
    assert_eq!(printed("system show", &[]), ["netns shared copy-on-fork on"]);
    assert_eq!(printed("resource show qp", &[]), Vec::<String>::new());
}

#[test]
fn rdma_prints_the_counters_of_sysfs() {
    if !have(&["rdma", "ibv_rc_pingpong"]) {
        return;
    }
    let counters = Counters::new(&[("VERVAIN_INTERFACE", "lo")]);
    let port = free_port().to_string();
    let mut server = Job::start(counters.command("ibv_rc_pingpong").args(["-g", "0", "-p", &port]));
    assert!(server.listens(port.parse().expect("a number"), LIMIT));
    let client =
        Job::start(counters.command("ibv_rc_pingpong").args(["-g", "0", "-p", &port, "127.0.0.1"])).finish(LIMIT);
    assert!(client.success(), "{}", client.describe());
    assert!(server.finish(LIMIT).success());
    let sent = counters.read("rx_send_requests");
    let line = Job::start(counters.command("rdma").args(["statistic", "show", "link", "vervain0/1"])).finish(LIMIT);
    assert!(sent >= 2000 && line.output.contains(&format!("rx_send_requests {sent} ")), "{sent}: {}", line.describe());
}

/// The summary of vervain0: `pd 1 cq 1 …`.
fn objects(counters: &Counters) -> String {
    let end = Job::start(counters.command("rdma").args(["resource", "show", "vervain0"])).finish(LIMIT);
    assert!(end.success(), "{}", end.describe());
    end.output.trim().trim_start_matches("0: vervain0: ").to_owned()
}

#[test]
fn rdma_counts_the_objects_of_processes_that_are_there() {
    if !have(&["rdma", "ibv_srq_pingpong"]) {
        return;
    }
    const NONE: &str = "pd 0 cq 0 qp 0 cm_id 0 mr 0 ctx 0 srq 0";
    let counters = Counters::new(&[("VERVAIN_INTERFACE", "lo")]);
    assert_eq!(objects(&counters), NONE);
    // A server that waits has all that it needs, here for 5 connections.
    let serve = || {
        let port = free_port();
        let mut args = vec!["-g".to_owned(), "0".to_owned(), "-q".to_owned(), "5".to_owned()];
        args.extend(["-p".to_owned(), port.to_string()]);
        let mut server = Job::start(counters.command("ibv_srq_pingpong").args(args));
        assert!(server.listens(port, LIMIT));
        server
    };
    let first = serve();
    assert_eq!(objects(&counters), "pd 1 cq 1 qp 5 cm_id 0 mr 1 ctx 1 srq 1");
    let second = serve();
    assert_eq!(objects(&counters), "pd 2 cq 2 qp 10 cm_id 0 mr 2 ctx 2 srq 2");
    first.signal_group(libc::SIGKILL);
    drop(first.finish(LIMIT));
    assert_eq!(objects(&counters), "pd 1 cq 1 qp 5 cm_id 0 mr 1 ctx 1 srq 1");
    second.signal_group(libc::SIGKILL);
    drop(second.finish(LIMIT));
    assert_eq!(objects(&counters), NONE);
}

/// Asks for all devices by each call that sends, from sockets of each kind; polls, duplicates, and leaves a socket unread.
const SPEAKER: &str = r#"
import select, socket, struct
RDMA, USERSOCK, GET, DUMP = 20, 2, 5 << 10 | 1, 0x301
def ask(seq): return struct.pack('=IHHII', 16, GET, DUMP, seq, 0)
def read(s, port, seq):
    names = []
    while True:
        assert select.select([s], [], [], 0)[0], 'the answer is there when the call returns'
        data, _, _, sender = s.recvmsg(4096)
        length, kind, flags, got, to = struct.unpack_from('=IHHII', data)
        assert (length, got, to) == (len(data), seq, port), (length, got, to)
        if kind == 3: return names
        assert kind == GET and flags & 2, (kind, flags)
        at = 16
        while at < length:
            size, attribute = struct.unpack_from('=HH', data, at)
            if attribute == 2: names.append(data[at + 4:at + size - 1].decode())
            at += size + 3 & ~3
for kind in socket.SOCK_RAW, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC:
    s = socket.socket(socket.AF_NETLINK, kind, RDMA)
    s.sendto(ask(1), (0, 0))
    port, groups = s.getsockname()
    assert port and not groups
    assert read(s, port, 1) == NAMES
    assert s.send(ask(2)) == 16 and read(s, port, 2) == NAMES
    assert s.sendmsg([ask(3)[:5], ask(3)[5:]], [], 0, (0, 0)) == 16 and read(s, port, 3) == NAMES
    other = s.dup()
    other.send(ask(4)); assert read(s, port, 4) == NAMES
    s.close(); other.send(ask(5)); assert read(other, port, 5) == NAMES
    assert not select.select([other], [], [], 0)[0], 'and nothing else'
bound = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, RDMA)
bound.bind((123456, 0)); bound.send(ask(6)); assert read(bound, 123456, 6) == NAMES
# The kernel's own netlink is left alone, and so is who sends to a process.
route = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
route.send(struct.pack('=IHHIIB', 17, 18, 0x301, 7, 0, 0)); assert struct.unpack_from('=IH', route.recv(65536))[1] == 16
route.sendto(struct.pack('=IHHIIB', 17, 18, 0x301, 7, 0, 0), (0, 0))
peer = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, USERSOCK)
peer.sendto(b'to a process, not the kernel', (123456, 0)); assert bound.recv(100) == b'to a process, not the kernel'
# Unread answers fill the queue: an error, and no call that never returns.
try:
    for i in range(100000): bound.send(ask(i))
    raise AssertionError('no end of room')
except OSError as e: assert e.errno == 105, e
print('spoken')
"#;

#[test]
fn a_program_that_speaks_netlink_gets_the_devices_by_every_call_that_sends() {
    let script = SPEAKER.replace("NAMES", "['vervain0', 'vervain1', 'vervain2']");
    let end = Job::start(under_vervain(PYTHON).args(["-c", &script]).env("VERVAIN_DEVICES", "3")).finish(LIMIT);
    assert!(end.success() && end.output.contains("spoken"), "{}", end.describe());
}

#[test]
fn without_a_view_the_socket_is_the_kernels() {
    let script = "
import socket
try: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 20); print('yes')
except OSError as e: print(e.errno)";
    let of_kernel = Job::start(unswayed(PYTHON).args(["-c", script])).finish(LIMIT);
    // The preload is there, and the variable that leads to its tree is not.
    let mut without = under_vervain("env");
    let without = Job::start(without.args(["-u", "VERVAIN_SYSFS", PYTHON, "-c", script])).finish(LIMIT);
    assert!(without.success() && without.output == of_kernel.output, "{} {}", without.describe(), of_kernel.describe());
}
