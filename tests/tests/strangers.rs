//! Another user of the host who takes the names of this user's programs, or UDP port 4791, before they come: they end soon
//! with an error that says who it is, or go on another way; never wait for it, and never believe it.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use vervain_tests::netns::{Host, Network};
use vervain_tests::{Failures, Finished, Job, alone, have, skip, unswayed, vervain};

const NOBODY: u32 = 65534;
const SLOTS: u32 = 1022;
const LIMIT: Duration = Duration::from_secs(40);
/// Within this all is over, on a machine with much else to do: without a stranger a run takes half a second, and what a
/// stranger costs beyond that is 3 s at most.
const SOON: Duration = Duration::from_secs(10);

/// A socket with a name in the abstract namespace.
fn named(kind: i32, name: &str) -> OwnedFd {
    // SAFETY: an address of zeros is one; the name is shorter than its room; the descriptor is new and checked.
    unsafe {
        let fd = libc::socket(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        let socket = OwnedFd::from_raw_fd(fd);
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX as u16;
        for (to, from) in address.sun_path[1..].iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        let length = size_of::<libc::sa_family_t>() + 1 + name.len();
        let bound = libc::bind(fd, (&raw const address).cast(), length as u32);
        assert_eq!(bound, 0, "{name}: {}", std::io::Error::last_os_error());
        if kind == libc::SOCK_SEQPACKET {
            assert_eq!(libc::listen(fd, 5), 0);
        }
        socket
    }
}

/// Makes sockets as another user, on that host.
fn as_nobody<T: Send>(host: &Host, make: impl FnOnce() -> T + Send) -> T {
    host.act(|| {
        // SAFETY: the system call changes this thread only, which ends when it has made the sockets.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) }, 0);
        make()
    })
}

struct World {
    network: Network,
    failures: Failures,
}

impl World {
    /// Where root acts as another user; None, with a printed reason, where it cannot.
    fn new() -> Option<World> {
        // SAFETY: asks for a number.
        if unsafe { libc::geteuid() } != 0 {
            skip("only root can act as another user");
            return None;
        }
        if !have(&["ibv_rc_pingpong", "ibv_ud_pingpong"]) {
            return None;
        }
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: reads a limit into the struct on this stack, and sets it from there.
        unsafe {
            libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
        Some(World { network: Network::of_one()?, failures: Failures::default() })
    }

    fn host(&self) -> &Host {
        self.network.first()
    }

    /// Both ends of a ping-pong, by this link; both must end in the time. True where both succeed.
    fn pingpong(&mut self, program: &str, link: &str) -> (bool, String) {
        // The client tries once; a server that has what it needs listens before long, another ends.
        let listens = "grep -qs ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6";
        let wait = format!("while kill -0 $! 2>/dev/null && ! {listens}; do sleep 0.02; done");
        let both = format!("{program} -g 0 & {wait}; {program} -g 0 127.0.0.1; r=$?; wait $! && exit $r");
        let mut command = unswayed(vervain());
        command.args(["run", "--log", "info", "--link", link, "--", "sh", "-c", &both]);
        let end = self.run(&command);
        (end.success(), end.output)
    }

    fn run(&mut self, command: &Command) -> Finished {
        let begin = Instant::now();
        let end = Job::start(&mut self.host().enter(command)).finish(LIMIT);
        if begin.elapsed() > SOON {
            self.failures.add("time", format!("{:?}: {}", begin.elapsed(), end.describe()));
        }
        end
    }

    /// That programs which need what the stranger has fail, and say who it is.
    fn refused(&mut self, what: &str, link: &str, wanted: &str) {
        let who = format!("uid {NOBODY}, process {} (", std::process::id());
        for program in ["ibv_rc_pingpong", "ibv_ud_pingpong"] {
            let (worked, output) = self.pingpong(program, link);
            for wanted in [wanted, &who, "(EADDRINUSE)"] {
                if worked || !output.contains(wanted) {
                    self.failures.add(&format!("{what}, {program} by {link}"), format!("no {wanted:?} in {output}"));
                }
            }
        }
    }

    /// That `vervain doctor` says who it is.
    fn diagnosed(&mut self, what: &str, wanted: &str) {
        let mut command = unswayed(vervain());
        command.args(["doctor", "--json"]);
        let end = self.run(&command);
        let who = format!("uid {NOBODY}, process {} (", std::process::id());
        for wanted in [wanted, &who, &format!("as root: kill {}", std::process::id())] {
            if !end.output.contains(wanted) {
                self.failures.add(&format!("{what}, doctor"), format!("no {wanted:?} in {}", end.describe()));
            }
        }
    }

    /// That what does not need it works.
    fn works(&mut self, what: &str, link: &str) {
        let (worked, output) = self.pingpong("ibv_rc_pingpong", link);
        if !worked {
            self.failures.add(what, output);
        }
    }
}

#[test]
fn one_who_has_all_slots_is_named_and_costs_no_time() {
    let Some(mut world) = World::new() else { return };
    let _turn = alone();
    let slots = as_nobody(world.host(), || {
        (1..=SLOTS).map(|slot| named(libc::SOCK_SEQPACKET, &format!("vervain/0/{slot}"))).collect::<Vec<_>>()
    });
    world.refused("slots", "local", "1022 of their names by another user");
    world.refused("slots", "roce", "1022 of their names by another user");
    world.diagnosed("slots", "1022 of this user's 1022 process slots");
    drop(slots);
    world.works("after the slots", "local");
    world.failures.assert_none();
}

#[test]
fn one_who_has_all_doors_is_named_and_costs_no_time() {
    let Some(mut world) = World::new() else { return };
    let _turn = alone();
    let doors = as_nobody(world.host(), || {
        let names = (1..=SLOTS).map(|slot| format!("vervain/udp/127.0.0.1:4791/{slot}"));
        names.map(|name| named(libc::SOCK_DGRAM, &name)).collect::<Vec<_>>()
    });
    world.refused("doors", "roce", "another user has the name @vervain/udp/127.0.0.1:4791/");
    world.works("by memory, beside the doors", "auto");
    world.diagnosed("doors", "1022 names for sharing UDP port 4791");
    drop(doors);
    world.works("after the doors", "roce");
    world.failures.assert_none();
}

#[test]
fn one_who_has_the_turn_or_the_port_is_named_and_costs_no_time() {
    let Some(mut world) = World::new() else { return };
    let _turn = alone();
    let at = SocketAddr::from(([127, 0, 0, 1], 4791));
    let turn = as_nobody(world.host(), || named(libc::SOCK_SEQPACKET, &format!("vervain/udp/{at}")));
    world.refused("turn", "roce", "processes of another user have that port");
    world.diagnosed("turn", "1 names for sharing UDP port 4791");
    drop(turn);
    let port = as_nobody(world.host(), || UdpSocket::bind(("0.0.0.0", 4791)).expect("the port"));
    world.refused("port", "roce", "processes of another user have that port");
    world.works("by memory, beside the port", "auto");
    drop(port);
    world.works("after the port", "roce");
    world.failures.assert_none();
}
