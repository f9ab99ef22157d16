//! Programs that connect by librdmacm, unmodified: rdma-core's own, perftest, fio, libfabric, QEMU's migration and an iSER target, within a
//! host by memory and in packets, and between two hosts, which are namespaces joined by a cable, over IPv4 and IPv6.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use vervain_tests::netns::{Host, Network};
use vervain_tests::{Failures, Finished, Job, alone, have, under_vervain, way};

/// How long a program may take.
const LIMIT: Duration = Duration::from_secs(60);
/// How long a server may take to listen.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a server may take until it has a port.
const LISTENS: Duration = Duration::from_secs(2);
/// rping's server that serves many takes one for another where two ask within microseconds.
const APART: Duration = Duration::from_millis(150);
/// Of the cable.
const MTU: u32 = 1500;

/// A server and its client: words, in which HERE and THERE stand for the addresses of the client and of the server. Both end.
const PAIRS: &[(&str, &str)] = &[
    ("rping -s -v -V -C 30 -S 4000 -a THERE", "rping -c -v -V -C 30 -S 4000 -a THERE"),
    ("rping -s -q -C 3 -a THERE", "rping -c -q -C 3 -a THERE"),
    ("ucmatose -b THERE -c 20 -C 5", "ucmatose -s THERE -c 20 -C 5"),
    ("ucmatose -b THERE -m", "ucmatose -s THERE -m -t 8"),
    ("ucmatose -b THERE -P ib -S 5000", "ucmatose -s THERE -P ib -S 5000 -a 14"),
    ("udaddy -b THERE -c 3", "udaddy -s THERE -c 3"),
];

/// As above, over IPv4 only; servers without an address listen at the first that getaddrinfo(3) has, 0.0.0.0.
const PAIRS_OF_IPV4: &[(&str, &str)] = &[
    ("rdma_server", "rdma_client -s THERE"),
    ("rdma_xserver -c r", "rdma_xclient -c r -s THERE"),
    ("rdma_xserver -c x", "rdma_xclient -c x -s THERE"),
    ("mckey -m 239.1.2.3 -b THERE -c 2", "mckey -m 239.1.2.3 -s -b HERE -c 2"),
    ("mckey -m 239.1.2.4 -b THERE", "mckey -m 239.1.2.4 -s -o -b HERE"),
    ("ib_send_lat -R -F -n 500", "ib_send_lat -R -F -n 500 THERE"),
    ("ib_write_bw -R -F -n 500", "ib_write_bw -R -F -n 500 THERE"),
    ("ib_read_lat -R -F -n 500", "ib_read_lat -R -F -n 500 THERE"),
    ("ib_atomic_bw -R -F -n 500", "ib_atomic_bw -R -F -n 500 THERE"),
    ("ib_send_bw -R -F -n 500 -q 4", "ib_send_bw -R -F -n 500 -q 4 THERE"),
    ("ib_send_lat -R -F -n 500 -c UD", "ib_send_lat -R -F -n 500 -c UD THERE"),
    ("fi_pingpong -p verbs -e msg", "fi_pingpong -p verbs -e msg THERE"),
    ("fi_pingpong -p verbs;ofi_rxm -e rdm", "fi_pingpong -p verbs;ofi_rxm -e rdm THERE"),
];

/// Returns true if a program has ended as it should. rping's main thread destroys the event channel on which its other thread may be
/// about to wait for the next event: all its rounds are done then, and its exit status is that thread's.
fn ended_well(end: &Finished) -> bool {
    let has_parted = end.output.find("DISCONNECT EVENT").map(|at| &end.output[at..]);
    let is_late = has_parted.is_some_and(|rest| rest.contains("rdma_get_cm_event: Bad file descriptor"));
    end.success() || end.code() == Some(255) && is_late
}

/// Who talks to whom, and by which way.
struct Case<'a> {
    name: &'static str,
    server: &'a Host,
    client: &'a Host,
    way: &'static str,
    is_ipv6: bool,
}

impl Case<'_> {
    fn is_within_a_host(&self) -> bool {
        std::ptr::eq(self.server, self.client)
    }

    fn command(&self, host: &Host, words: &str) -> Command {
        let address = |host: &Host| if self.is_ipv6 { host.v6 } else { host.v4 };
        let words = words.replace("THERE", address(self.server)).replace("HERE", address(self.client));
        let mut words = words.split(' ');
        let mut command = under_vervain(words.next().expect("a program"));
        command.args(words);
        let only = match self.way {
            "roce" => vec![("VERVAIN_LINK", "roce")],
            way_by_memory => way(way_by_memory),
        };
        command.envs(only);
        host.enter(&command)
    }

    /// A server that listens; of one that does not, for it has another way, that is not waited for long.
    fn server(&self, words: &str) -> Job {
        let job = Job::start(&mut self.command(self.server, words));
        let names = format!("/proc/{}/net/unix", self.server.pid());
        let until = Instant::now() + LISTENS;
        // The claim of a port, which stands there before the port is listened at (docs/connection-manager.md).
        while !fs::read_to_string(&names).unwrap_or_default().contains("/cm/0000000001") && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        job
    }

    /// A client, again and again until its server listens: one that comes before is refused, and says so in its own way.
    fn client(&self, words: &str, server: &mut Job) -> Finished {
        let until = Instant::now() + PATIENCE;
        loop {
            let end = Job::start(&mut self.command(self.client, words)).finish(LIMIT);
            if ended_well(&end) || end.status.is_none() || Instant::now() > until || !server.running() {
                return end;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Both, to their ends.
    fn pair(&self, (server, client): (&str, &str)) -> Result<(), String> {
        let mut serving = self.server(server);
        let end = self.client(client, &mut serving);
        // The other end's: a client that has failed may have been refused by it, and left it waiting.
        let served = serving.finish(if ended_well(&end) { LIMIT } else { Duration::from_secs(1) });
        if ended_well(&end) && ended_well(&served) {
            return Ok(());
        }
        Err(format!("{}\n{}", end.describe(), served.describe()))
    }
}

/// Each case, where the programs are there.
fn each(programs: &[&str], mut one: impl FnMut(&Case<'_>) -> Vec<(String, Result<(), String>)>) {
    if !have(programs) {
        return;
    }
    let Some(network) = Network::of_two(MTU) else { return };
    let (first, second) = (network.first(), network.second());
    let case = |name, client, way, is_ipv6| Case { name, server: second, client, way, is_ipv6 };
    let mut failures = Failures::default();
    for case in [
        case("by memory", second, "auto", false),
        case("in packets", second, "roce", false),
        case("to another host", first, "auto", false),
        case("to another host, IPv6", first, "auto", true),
    ] {
        let began = Instant::now();
        for (what, done) in one(&case) {
            if let Err(why) = done {
                failures.add(&format!("{}: {what}", case.name), why);
            }
        }
        println!("{}: {:.1} s", case.name, began.elapsed().as_secs_f64());
    }
    failures.assert_none();
}

#[test]
fn pairs_of_programs_connect_talk_and_part() {
    let _turn = alone();
    each(&["rping", "ib_send_lat", "fi_pingpong"], |case| {
        let mut pairs: Vec<_> = PAIRS.to_vec();
        if !case.is_ipv6 {
            pairs.extend(PAIRS_OF_IPV4);
        }
        let timed = |pair: (&'static str, &'static str)| {
            let began = Instant::now();
            let done = case.pair(pair);
            println!("{}: {}: {:.1} s", case.name, pair.1, began.elapsed().as_secs_f64());
            (pair.1.to_owned(), done)
        };
        pairs.into_iter().map(timed).collect()
    });
}

#[test]
fn a_server_of_many_serves_each_of_them() {
    let _turn = alone();
    each(&["rping", "cmtime"], |case| {
        let served = |server: &str, client: &str, at_once: usize| {
            let mut serving = case.server(server);
            let first = case.client(client, &mut serving);
            if !ended_well(&first) {
                return Err(first.describe());
            }
            let start = |_| {
                std::thread::sleep(APART);
                Job::start(&mut case.command(case.client, client))
            };
            let others: Vec<Job> = (0..at_once).map(start).collect();
            let ends = others.into_iter().map(|job| job.finish(LIMIT));
            let failed: Vec<String> = ends.filter(|end| !ended_well(end)).map(|end| end.describe()).collect();
            if failed.is_empty() && serving.running() { Ok(()) } else { Err(failed.join("\n") + &serving.output()) }
        };
        vec![
            ("8 of rping".to_owned(), served("rping -s -P -a THERE", "rping -c -V -C 100 -a THERE", 8)),
            ("cmtime".to_owned(), served("cmtime -b THERE", "cmtime -s THERE -c 300", 1)),
        ]
    });
}

/// A gibibyte; of SENDs each block has a checksum, which who gets it looks at. fio asks for no RNR retry: there are receives for all blocks.
#[test]
fn fio_moves_a_gibibyte() {
    let _turn = alone();
    let folder = tempfile::tempdir().expect("a folder");
    each(&["fio"], |case| {
        if case.is_ipv6 {
            return Vec::new();
        }
        // The second in MiB.
        let (blocks, block) = if case.is_within_a_host() { (256, 4) } else { (64, 1) };
        let file = |name: &str, text: String| {
            let path = folder.path().join(name);
            fs::write(&path, text).expect("fio's words");
            path.display().to_string()
        };
        let (checked, size) = ("verify=crc32c\nverify_state_save=0\n", blocks * block);
        let common = format!("ioengine=rdma\nport=8888\nbs={block}m\nsize={size}m\n");
        ["write", "read", "send"]
            .into_iter()
            .map(|verb| {
                let (depth, checks) = if verb == "send" { (blocks, checked) } else { (16, "") };
                let takes = file("takes", format!("[receiver]\n{common}iodepth={depth}\n{checks}rw=read\n"));
                let (few, host) = ("iodepth=16\niodepth_batch_complete=16\n", case.server.v4);
                let gives =
                    format!("[sender]\n{common}{few}{checks}do_verify=0\nrw=write\nverb={verb}\nhostname={host}\n");
                let gives = file("gives", gives);
                let done = case.pair((&format!("fio {takes}"), &format!("fio {gives}")));
                (format!("fio, {verb}"), done)
            })
            .collect()
    });
}

/// Where a guest's memory has what is compared, and its bytes.
const LOADED_AT: u64 = 32 << 20;
const LOADED: usize = 24 << 20;

/// What QEMU's monitor at `path` answers to a command.
fn monitor(path: &Path, command: &str) -> Result<String, String> {
    let until_prompt = |stream: &mut UnixStream| {
        let mut said = Vec::new();
        let mut some = [0; 4096];
        while !said.ends_with(b"(qemu) ") {
            match stream.read(&mut some) {
                Ok(0) | Err(_) => return Err(format!("no prompt: {}", String::from_utf8_lossy(&said))),
                Ok(n) => said.extend(&some[..n]),
            }
        }
        Ok(String::from_utf8_lossy(&said).into_owned())
    };
    let mut stream = UnixStream::connect(path).map_err(|e| e.to_string())?;
    stream.set_read_timeout(Some(LIMIT)).map_err(|e| e.to_string())?;
    until_prompt(&mut stream)?;
    writeln!(stream, "{command}").map_err(|e| e.to_string())?;
    until_prompt(&mut stream)
}

/// A guest of QEMU moves by RDMA to another QEMU with all its memory, registered at once or piece by piece.
#[test]
fn a_guest_is_migrated() {
    let _turn = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let memory: Vec<u8> = (0..LOADED as u32 / 4).flat_map(|n| n.wrapping_mul(0x9e37_79b1).to_ne_bytes()).collect();
    fs::write(path("memory"), &memory).expect("the guest's memory");
    each(&["qemu-system-x86_64"], |case| {
        if case.is_ipv6 {
            return Vec::new();
        }
        // It stands still, so that its memory stays as it is.
        let guest = |name: &str, more: &str| {
            let monitor = format!("unix:{},server=on,wait=off", path(name).display());
            format!(
                "qemu-system-x86_64 -S -accel tcg -m 64 -display none -nodefaults -serial none -monitor {monitor} {more}"
            )
        };
        let loaded = format!("-device loader,file={},addr={LOADED_AT},force-raw=on", path("memory").display());
        let migrate = |pinned: &str| {
            let mut to = case.server(&guest("to", "-incoming rdma:THERE:4444"));
            let mut from = Job::start(&mut case.command(case.client, &guest("from", &loaded)));
            let until = Instant::now() + PATIENCE;
            while !(path("from").exists() && path("to").exists()) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(20));
            }
            let moved = (|| {
                let ask = |name: &str, command: &str| monitor(&path(name), command);
                ask("from", &format!("migrate_set_capability rdma-pin-all {pinned}"))?;
                ask("from", "migrate_set_parameter max-bandwidth 10G")?;
                ask("from", &format!("migrate rdma:{}:4444", case.server.v4))?;
                let status = ask("from", "info migrate")?;
                if !status.contains("Migration status: completed") {
                    return Err(status);
                }
                let file = path("received");
                ask("to", &format!("pmemsave {LOADED_AT} {LOADED} \"{}\"", file.display()))?;
                let is_whole = fs::read(file).is_ok_and(|received| received == memory);
                is_whole.then_some(()).ok_or_else(|| "other bytes".to_owned())
            })();
            let both = [&mut from, &mut to].map(|job| job.running()) == [true; 2];
            ["from", "to", "received"].iter().for_each(|name| drop(fs::remove_file(path(name))));
            let ends = [from, to].map(|job| job.finish(Duration::ZERO).describe()).join("\n");
            moved.map_err(|why| format!("{why}\n{ends}")).and_then(|()| both.then_some(()).ok_or(ends))
        };
        ["on", "off"].map(|pinned| (format!("rdma-pin-all {pinned}"), migrate(pinned))).into()
    });
}

/// libiscsi's tests, which compare what they read with what they have written, at a target of tgtd.
#[test]
fn an_iser_target_is_read_and_written() {
    let _turn = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::write(path("disk"), vec![0; 16 << 20]).expect("a disk");
    each(&["tgtd", "tgtadm", "iscsi-test-cu"], |case| {
        if case.is_ipv6 {
            return Vec::new();
        }
        let command = |host: &Host, words: &str| {
            let mut command = case.command(host, words);
            // The socket by which tgtadm talks to tgtd.
            command.env("TGT_IPC_SOCKET", path("control"));
            command
        };
        // By TCP it serves too, at another port.
        let tgtd = Job::start(&mut command(case.server, "tgtd -f --iscsi portal=THERE:3299"));
        let admin = |words: &str| {
            let end = Job::start(&mut command(case.server, &format!("tgtadm --lld iser {words}"))).finish(LIMIT);
            end.success().then_some(()).ok_or_else(|| end.describe())
        };
        let until = Instant::now() + PATIENCE;
        while admin("--mode target --op show").is_err() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
        }
        let disk = format!("--mode logicalunit --op new --tid 1 --lun 1 -b {}", path("disk"));
        // tgtd 1.0.85 asks for both.
        let name = "iqn.2026-12.vervain:initiator";
        let made = admin("--mode target --op new --tid 1 -T iqn.2026-12.vervain:disk")
            .and_then(|()| admin(&disk))
            .and_then(|()| admin("--mode target --op bind --tid 1 -I ALL"))
            .and_then(|()| admin(&format!("--mode target --op bind --tid 1 -Q {name}")));
        let passes = |tests: &str| {
            made.clone()?;
            let url = "iser://THERE:3260/iqn.2026-12.vervain:disk/1";
            let words = format!("iscsi-test-cu -d -n -s -i {name} -I {name} -t ALL.{tests} {url}");
            let end = Job::start(&mut command(case.client, &words)).finish(LIMIT);
            let all = end.success() && end.output.contains("Tests completed with return value: 0");
            all.then_some(()).ok_or_else(|| format!("{}\n{}", end.describe(), tgtd.output()))
        };
        let done = ["Read16", "Write16", "WriteVerify16"].map(|tests| (format!("iSER, {tests}"), passes(tests)));
        tgtd.finish(Duration::ZERO);
        done.into()
    });
}

/// What goes wrong is told as rdma_cm tells it.
#[test]
fn what_cannot_be_is_told() {
    let _turn = alone();
    each(&["rping"], |case| {
        let refused = |words: &str, why: &str| {
            let end = Job::start(&mut case.command(case.client, words)).finish(LIMIT);
            if !end.success() && end.status.is_some() && end.output.contains(why) {
                Ok(())
            } else {
                Err(format!("no {why}: {}", end.describe()))
            }
        };
        let mut all = Vec::new();
        // Somebody has to be there who speaks RDMA.
        let mut serving = case.server("rping -s -P -a THERE");
        let end = case.client("rping -c -C 1 -a THERE", &mut serving);
        all.push(("one that is served".into(), if ended_well(&end) { Ok(()) } else { Err(end.describe()) }));
        all.push(("nobody listens".into(), refused("rping -c -p 9999 -a THERE", "RDMA_CM_EVENT_REJECTED, error 8")));
        let port = Job::start(&mut case.command(case.server, "rping -s -a THERE")).finish(LIMIT);
        let is_told = !port.success() && port.output.contains("rdma_bind_addr: Address already in use");
        all.push(("a port that is taken".into(), if is_told { Ok(()) } else { Err(port.describe()) }));
        if !case.is_ipv6 {
            all.push((
                "no route".into(),
                refused("rping -c -a 203.0.113.1", "rdma_resolve_addr: Network is unreachable"),
            ));
        }
        all
    });
}
