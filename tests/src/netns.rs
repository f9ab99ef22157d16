//! Networks for tests: two hosts, which are network namespaces joined by a veth pair, each with a name of its own, or one
//! host with its loopback only. A namespace lives as long as a process inside of it that reads from a pipe of this one:
//! however a test ends, the pipe closes and the namespace goes. Root has the right to make them; others where user
//! namespaces are allowed.

use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::{Finished, Job, tool};

const LIMIT: Duration = Duration::from_secs(20);

/// A network namespace, with a UTS namespace for the host's name.
pub struct Host {
    holder: Child,
    user: bool,
    /// Address that the other host uses; 127.0.0.1 where there is no other.
    pub v4: &'static str,
    /// IPv6 address that the other host uses; ::1 where there is no other.
    pub v6: &'static str,
}

/// Two hosts, or one that is both.
pub struct Network {
    /// In the order of their addresses.
    hosts: Vec<Host>,
    /// MTU of the interface between them.
    pub mtu: u32,
}

/// How a namespace is entered and left.
#[derive(Clone, Copy)]
struct Rights {
    /// A user namespace comes with it.
    user: bool,
}

impl Network {
    /// Two hosts joined by a cable with this MTU, `eth0` at each end; None with a printed reason where this user may not.
    /// GID 0 of each is its IPv4 address, GID 1 its IPv6 address.
    ///
    /// # Panics
    /// When the namespaces are there and cannot be joined.
    pub fn of_two(mtu: u32) -> Option<Network> {
        let rights = rights()?;
        let first = Host::start(rights, None, "10.47.91.1", "fd47:91::1");
        let second = Host::start(rights, Some(&first), "10.47.91.2", "fd47:91::2");
        let (mtu_text, peer) = (mtu.to_string(), second.holder.id().to_string());
        let pair = ["link", "add", "eth0", "mtu", &mtu_text, "type", "veth", "peer", "name", "eth0"];
        first.ip(&[&pair[..], &["mtu", &mtu_text, "netns", &peer]].concat());
        let network = Network { hosts: vec![first, second], mtu };
        for host in &network.hosts {
            // Link-local addresses would come and go with duplicate address detection.
            host.ip(&["link", "set", "eth0", "addrgenmode", "none"]);
            host.ip(&["address", "add", &format!("{}/24", host.v4), "dev", "eth0"]);
            host.ip(&["address", "add", &format!("{}/64", host.v6), "dev", "eth0", "nodad"]);
            host.ip(&["link", "set", "lo", "up"]);
            host.ip(&["link", "set", "eth0", "up"]);
        }
        // Known to each other: the first question for an IPv6 neighbour on a link that is just up may go unheard, and
        // the second comes a second later, when a QP has given up.
        let [first, second] = &network.hosts[..] else { unreachable!("two were made") };
        first.meet(second);
        second.meet(first);
        Some(network)
    }

    /// One host with its loopback interface only.
    pub fn of_one() -> Option<Network> {
        let host = Host::start(rights()?, None, "127.0.0.1", "::1");
        host.ip(&["link", "set", "lo", "up"]);
        Some(Network { hosts: vec![host], mtu: 65536 })
    }

    /// Where clients run.
    pub fn first(&self) -> &Host {
        &self.hosts[0]
    }

    /// Where servers run.
    pub fn second(&self) -> &Host {
        self.hosts.last().expect("a network has a host")
    }

    /// Has both hosts cut trains of packets apart before they leave, so that captures and nftables see each packet.
    pub fn cut_trains(&self) {
        for host in &self.hosts {
            host.ip(&["link", "set", "eth0", "gso_max_segs", "1"]);
        }
    }

    /// Ends the second host, in which no process may run any more, and waits until its cable is gone.
    ///
    /// # Panics
    /// When it stays.
    pub fn end_second(&mut self) {
        self.hosts.truncate(1);
        let until = Instant::now() + LIMIT;
        // The kernel takes namespaces down in the background.
        while self.first().run("ip", &["link", "show", "eth0"]).success() {
            assert!(Instant::now() < until, "a process keeps the second host");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Host {
    /// Starts the process that holds a namespace open. One of an ordinary user shares the user namespace of `beside`.
    fn start(rights: Rights, beside: Option<&Host>, v4: &'static str, v6: &'static str) -> Host {
        let mut command = match beside {
            Some(host) if rights.user => host.enter(Command::new("unshare").arg("-nu")),
            _ => {
                let mut command = Command::new("unshare");
                command.arg(if rights.user { "-Urnu" } else { "-nu" });
                command
            }
        };
        let name = if beside.is_some() { "vervain-second" } else { "vervain-first" };
        command.args(["sh", "-c", "hostname \"$0\" && echo ready; exec cat", name]);
        let mut holder =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let mut ready = [0; 6];
        let said = holder.stdout.as_mut().map(|out| std::io::Read::read_exact(out, &mut ready));
        assert!(matches!(said, Some(Ok(()))), "no namespace by {command:?}");
        Host { holder, user: rights.user, v4, v6 }
    }

    /// Enters the addresses of `other` into the table of neighbours.
    fn meet(&self, other: &Host) {
        let shown = other.run("ip", &["-brief", "link", "show", "eth0"]).output;
        let mac = shown.split_whitespace().find(|w| w.len() == 17 && w.matches(':').count() == 5);
        let mac = mac.unwrap_or_else(|| panic!("no MAC address in {shown}"));
        for address in [other.v4, other.v6] {
            self.ip(&["neighbour", "replace", address, "lladdr", mac, "dev", "eth0", "nud", "permanent"]);
        }
    }

    /// A process that is in the host's namespaces as long as they are wanted.
    pub fn pid(&self) -> u32 {
        self.holder.id()
    }

    /// The file that stands for the network namespace.
    pub fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.pid())
    }

    /// The command, in this namespace.
    pub fn enter(&self, command: &Command) -> Command {
        self.enter_by(command, if self.user { &["-U", "--preserve-credentials"] } else { &[] })
    }

    /// The command, in this namespace, for a process that is in that of the other host. The two share a user namespace,
    /// and no process may enter the one that it is in.
    pub fn enter_from_other(&self, command: &Command) -> Command {
        self.enter_by(command, &[])
    }

    fn enter_by(&self, command: &Command, rights: &[&str]) -> Command {
        let mut inside = Command::new("nsenter");
        inside.args(["-t", &self.pid().to_string(), "-n", "-u"]).args(rights);
        inside.arg("--").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }

    /// Returns true if [`act`](Self::act) is possible; else prints why not.
    pub fn takes_threads(&self) -> bool {
        if self.user {
            crate::skip("only root can have a thread in another network");
        }
        !self.user
    }

    /// Does something in a thread in the network namespace.
    ///
    /// # Panics
    /// When the thread may not enter it, or panics.
    pub fn act<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        let network = std::fs::File::open(self.path()).expect("the network namespace");
        let act = || {
            // SAFETY: changes this thread only, which ends then.
            let entered = unsafe { libc::setns(network.as_raw_fd(), libc::CLONE_NEWNET) };
            assert_eq!(entered, 0, "{}", std::io::Error::last_os_error());
            act()
        };
        std::thread::scope(|scope| scope.spawn(act).join().expect("the thread in the namespace"))
    }

    /// Runs a tool here to its end.
    pub fn run(&self, program: &str, args: &[&str]) -> Finished {
        let program = tool(program).unwrap_or_else(|| program.into());
        Job::start(&mut self.enter(Command::new(program).args(args))).finish(LIMIT)
    }

    /// Runs `ip` (iproute2).
    ///
    /// # Panics
    /// When it fails.
    pub fn ip(&self, args: &[&str]) {
        let end = self.run("ip", args);
        assert!(end.success(), "{}", end.describe());
    }

    /// Drops what `rule` selects of the packets that come in: an expression of nft(8) without its verdict.
    ///
    /// # Panics
    /// When it is no rule.
    pub fn drop_incoming(&self, rule: &str) {
        let rule = format!("add rule inet vervain incoming {rule} counter drop");
        let chain = "add chain inet vervain incoming { type filter hook input priority 0; }";
        for line in ["add table inet vervain", chain, &rule] {
            let end = self.run("nft", &[line]);
            assert!(end.success(), "{}", end.describe());
        }
    }

    /// How many packets the rules have dropped.
    pub fn dropped(&self) -> u64 {
        let listed = self.run("nft", &["list", "table", "inet", "vervain"]).output;
        let words: Vec<_> = listed.split_whitespace().collect();
        words.windows(2).filter(|w| w[0] == "packets").filter_map(|w| w[1].parse::<u64>().ok()).sum()
    }

    /// How many UDP datagrams its programs have sent, RoCE's among them and no TCP of a launcher.
    ///
    /// # Panics
    /// When the kernel does not tell.
    pub fn datagrams_sent(&self) -> u64 {
        let tables = std::fs::read_to_string(format!("/proc/{}/net/snmp", self.pid())).expect("/proc/PID/net/snmp");
        let mut rows = tables.lines().filter_map(|l| l.strip_prefix("Udp: ")).map(str::split_whitespace);
        let (Some(names), Some(values)) = (rows.next(), rows.next()) else { panic!("no row of UDP in {tables}") };
        let sent = names.zip(values).find(|(name, _)| *name == "OutDatagrams");
        sent.and_then(|(_, value)| value.parse().ok()).unwrap_or_else(|| panic!("no OutDatagrams in {tables}"))
    }

    /// How many bytes have passed its cable, both ways together.
    ///
    /// # Panics
    /// When the kernel does not tell.
    pub fn bytes_on_cable(&self) -> u64 {
        let table = std::fs::read_to_string(format!("/proc/{}/net/dev", self.pid())).expect("/proc/PID/net/dev");
        let row = table.lines().find_map(|line| line.trim().strip_prefix("eth0:"));
        let numbers = row.unwrap_or_else(|| panic!("no eth0 in {table}")).split_whitespace().map(|n| n.parse::<u64>());
        // Received comes first, sent ninth.
        numbers.enumerate().filter(|(i, _)| [0, 8].contains(i)).map(|(_, n)| n.expect("a number")).sum()
    }

    /// Kills what runs in the namespace: a launcher's daemon, say, that has left the group of the test's job.
    fn kill_all(&self) {
        let Ok(ours) = std::fs::read_link(self.path()) else { return };
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
            if std::fs::read_link(entry.path().join("ns/net")).is_ok_and(|theirs| theirs == ours) {
                // SAFETY: kill has no memory effects; the process is in a namespace that this test has made.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
        }
    }

    /// Lets everything in again.
    pub fn drop_nothing(&self) {
        self.run("nft", &["delete", "table", "inet", "vervain"]);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.kill_all();
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// How this user makes network namespaces, tried once; prints why not.
fn rights() -> Option<Rights> {
    static RIGHTS: OnceLock<Option<Rights>> = OnceLock::new();
    let can = |option: &str| {
        let mut command = Command::new("unshare");
        command.args([option, "ip", "link", "set", "lo", "up"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let rights = *RIGHTS.get_or_init(|| {
        if !crate::have(&["unshare", "nsenter", "ip", "hostname"]) {
            return None;
        }
        [("-nu", false), ("-Urnu", true)].into_iter().find(|(o, _)| can(o)).map(|(_, user)| Rights { user })
    });
    if rights.is_none() {
        crate::skip("this user may not make network namespaces (run as root, or allow user namespaces)");
    }
    rights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_hosts_have_names_and_reach_each_other_until_one_ends() {
        if !crate::have(&["python3", "nft"]) {
            return;
        }
        let Some(mut network) = Network::of_two(1500) else { return };
        for (host, name) in [(network.first(), "vervain-first"), (network.second(), "vervain-second")] {
            assert_eq!(host.run("hostname", &[]).output.trim(), name);
        }
        let mut server = Job::start(&mut network.second().enter(Command::new("python3").args([
            "-m",
            "http.server",
            "-b",
            "10.47.91.2",
            "4799",
        ])));
        assert!(server.listens(4799, LIMIT), "{}", server.finish(Duration::ZERO).describe());
        let get = "import sys, urllib.request as u; u.urlopen('http://10.47.91.2:4799', timeout=2)";
        let client = network.first().run("python3", &["-c", get]);
        assert!(client.success(), "{}", client.describe());
        network.first().drop_incoming("tcp sport 4799");
        assert!(!network.first().run("python3", &["-c", get]).success());
        assert!(network.first().dropped() > 0);
        drop(server);
        network.end_second();
    }
}
