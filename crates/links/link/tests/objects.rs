//! Shared objects between two processes: an owner whose memory lies in objects of a stand-in for the preload, and this
//! process, which maps them. Each test runs in a process of its own, and its owner in a child of that.

#[path = "../../../device/hca/tests/common/fake_share.rs"]
mod fake_share;
mod fixture;

use fixture::{ALL, LIMIT};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vervain_hca::{
    Completion, Context, Cq, Data, Mr, Opcode, Pd, Qp, QpAttr, QpCap, QpState, QpType, SendRequest, Sge, Status, attr,
    devices, send_flags,
};

struct Side {
    context: Arc<Context>,
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    qp: Arc<Qp>,
}

fn side() -> Side {
    let context = vervain_link::open(&devices().unwrap()[0]).unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = Cq::create(&context, 64, None, 0, 0, false, false).unwrap();
    let cap = QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64 };
    let qp = fixture::qp(&context, &pd, &cq, QpType::Rc, cap);
    Side { context, pd, cq, qp }
}

impl Side {
    fn connect(&self, peer: u32) {
        let way = QpAttr {
            qp_access_flags: ALL,
            dest_qp_num: peer,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 1,
            timeout: 12,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        fixture::to_rts(&self.context, &self.qp, &way);
    }

    fn wait(&self) -> Completion {
        fixture::wait(&self.cq)
    }
}

// ---- the owner -----------------------------------------------------------------------------------------------------

/// The owner's process: does what it is told on standard input, line by line.
#[test]
fn owner() {
    if std::env::var_os("VT_OWNER").is_none() {
        return;
    }
    fake_share::install();
    let mut side = None;
    let (mut addr, mut mr): (usize, Option<Arc<Mr>>) = (0, None);
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let number = |i: usize| words[i].parse::<u64>().unwrap();
        let answer = match words[0] {
            "memfd" | "unsealed" => {
                let name = std::ffi::CString::new(words[2]).unwrap();
                addr = fake_share::memfd(&name, number(1), words[0] == "memfd");
                addr as u64
            }
            "segment" => {
                addr = fake_share::segment(number(1));
                addr as u64
            }
            "heap" => {
                addr = fake_share::memfd(c"vt-heap", number(1), true);
                fake_share::with_heap();
                addr as u64
            }
            "open" => {
                side = Some(self::side());
                u64::from(side.as_ref().unwrap().qp.qp_num())
            }
            "connect" => {
                side.as_ref().unwrap().connect(number(1) as u32);
                0
            }
            "register" => {
                let s = side.as_ref().unwrap();
                let at = (addr as u64) + number(1);
                let new = Mr::register(&s.pd, at, number(2), at, ALL).unwrap();
                let key = new.rkey();
                mr = Some(new);
                u64::from(key)
            }
            "deregister" => {
                mr.take().unwrap().deregister().unwrap();
                u64::from(fake_share::pins())
            }
            "where" => addr as u64,
            "reconnect" => {
                let reset = QpAttr { qp_state: QpState::Reset, ..QpAttr::default() };
                side.as_ref().unwrap().qp.modify(&reset, attr::STATE).unwrap();
                0
            }
            "remove" => {
                fake_share::remove(addr);
                0
            }
            // SAFETY: a word of the object that was made last.
            "peek" => unsafe { ((addr as u64 + number(1)) as *const u64).read_volatile() },
            // SAFETY: as above.
            "poke" => unsafe {
                ((addr as u64 + number(1)) as *mut u64).write_volatile(number(2));
                0
            },
            other => panic!("unknown order {other}"),
        };
        println!("= {answer}");
    }
    std::process::exit(0);
}

struct Owner {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    qpn: u32,
}

impl Owner {
    fn start(orders: &[&str]) -> Owner {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "owner", "--nocapture"])
            .env("VT_OWNER", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (orders_to, answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut owner = Owner { child, orders: orders_to, answers, qpn: 0 };
        for order in orders {
            owner.ask(order);
        }
        owner.qpn = owner.ask("open") as u32;
        owner
    }

    fn ask(&mut self, order: &str) -> u64 {
        writeln!(self.orders, "{order}").unwrap();
        self.answer()
    }

    fn answer(&mut self) -> u64 {
        loop {
            let mut line = String::new();
            assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "the owner has ended");
            // The harness prints on the same line before the first answer.
            if let Some((_, answer)) = line.trim_end().split_once("= ") {
                return answer.parse().unwrap();
            }
        }
    }

    fn signal(&self, signal: i32) {
        // SAFETY: signals our own child, which has not been waited for.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// ---- the initiator -------------------------------------------------------------------------------------------------

struct Initiator {
    side: Side,
    buffer: Vec<u64>,
    mr: Arc<Mr>,
}

impl Initiator {
    fn new(owner: &mut Owner) -> Initiator {
        let side = side();
        let buffer = vec![0u64; 1 << 18];
        let at = buffer.as_ptr() as u64;
        let mr = Mr::register(&side.pd, at, (buffer.len() * 8) as u64, at, ALL).unwrap();
        owner.ask(&format!("connect {}", side.qp.qp_num()));
        side.connect(owner.qpn);
        Initiator { side, buffer, mr }
    }

    fn run(&self, opcode: Opcode, len: u64, addr: u64, rkey: u64, add: u64) -> u32 {
        let sge = [Sge { addr: self.buffer.as_ptr() as u64, length: len as u32, lkey: self.mr.lkey() }];
        let request = SendRequest {
            opcode,
            flags: send_flags::SIGNALED,
            remote_addr: addr,
            rkey: rkey as u32,
            compare_add: add,
            data: Data::Sges(&sge),
            ..SendRequest::default()
        };
        self.side.qp.post_send(|p| p.push(&request)).unwrap();
        self.side.wait().status
    }

    fn write(&mut self, value: u64, len: u64, addr: u64, rkey: u64) -> u32 {
        self.buffer[..(len / 8) as usize].fill(value);
        self.run(Opcode::Write, len, addr, rkey, 0)
    }

    /// Writes until the object named so is mapped here.
    fn write_until_mapped(&mut self, name: &str, addr: u64, rkey: u64) {
        until(&format!("{name} is mapped"), || {
            assert_eq!(self.write(7, 8, addr, rkey), Status::Success.to_verbs());
            mapped(name)
        });
    }
}

fn mapped(name: &str) -> bool {
    std::fs::read_to_string("/proc/self/maps").unwrap().contains(name)
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs `f` in a process of its own, so that limits, mappings and variables are its own.
fn alone(test: &str, f: impl FnOnce()) {
    if std::env::var("VT_ALONE").as_deref() == Ok(test) {
        f();
        return;
    }
    let run = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("VT_ALONE", test)
        .output()
        .unwrap();
    let text = [run.stdout, run.stderr].concat();
    assert!(run.status.success(), "{}: {}", run.status, String::from_utf8_lossy(&text));
}

#[test]
fn memory_is_mapped_at_its_first_use_and_then_needs_nobody() {
    alone("memory_is_mapped_at_its_first_use_and_then_needs_nobody", || {
        let mut owner = Owner::start(&["memfd 1048576 vt-first"]);
        let mut me = Initiator::new(&mut owner);
        let rkey = owner.ask("register 4096 65536");
        let addr = owner.ask("poke 4104 100") + base(&mut owner) + 4096;
        me.write_until_mapped("vt-first", addr, rkey);
        // A stopped owner cannot carry out an atomic: the CPU here does.
        owner.signal(libc::SIGSTOP);
        assert_eq!(me.run(Opcode::FetchAdd, 8, addr + 8, rkey, 11), Status::Success.to_verbs());
        assert_eq!(me.buffer[0], 100);
        assert_eq!(me.write(0x5555, 32768, addr + 16, rkey), Status::Success.to_verbs());
        owner.signal(libc::SIGCONT);
        assert_eq!((owner.ask("peek 4104"), owner.ask("peek 4112"), owner.ask("peek 36872")), (111, 0x5555, 0x5555));
        // And back.
        owner.ask("poke 8192 99");
        assert_eq!(me.run(Opcode::Read, 8, addr + 4096, rkey, 0), Status::Success.to_verbs());
        assert_eq!(me.buffer[0], 99);
        assert_eq!(owner.ask("deregister"), 0, "the pin is given back");
        until("the mapping goes with the last key", || !mapped("vt-first"));
        assert_eq!(me.write(1, 8, addr, rkey), Status::RemoteAccess.to_verbs());
    });
}

/// The address of the owner's last object.
fn base(owner: &mut Owner) -> u64 {
    owner.ask("where")
}

#[test]
fn the_heap_is_mapped_with_the_arena() {
    alone("the_heap_is_mapped_with_the_arena", || {
        let mut owner = Owner::start(&["heap 4194304"]);
        let me = Initiator::new(&mut owner);
        let addr = base(&mut owner);
        let rkey = owner.ask("register 0 4096");
        // Something that touches no memory makes the acquaintance.
        assert_eq!(me.run(Opcode::Write, 0, addr, rkey, 0), Status::Success.to_verbs());
        until("the heap is mapped", || mapped("vt-heap"));
        owner.ask("deregister");
        let rkey = owner.ask("register 4096 4096");
        owner.signal(libc::SIGSTOP);
        assert_eq!(me.run(Opcode::FetchAdd, 8, addr + 4096, rkey, 3), Status::Success.to_verbs());
        owner.signal(libc::SIGCONT);
        assert_eq!(owner.ask("peek 4096"), 3);
        owner.ask("deregister");
        assert!(mapped("vt-heap"), "the heap stays");
    });
}

#[test]
fn an_object_that_takes_anothers_number_gets_its_own_bytes() {
    alone("an_object_that_takes_anothers_number_gets_its_own_bytes", || {
        let mut owner = Owner::start(&[]);
        let mut me = Initiator::new(&mut owner);
        for round in 0..200u64 {
            let (name, value) = (format!("vt-object-{round}-"), 0x1000 + round);
            let addr = owner.ask(&format!("memfd 65536 {name}"));
            let rkey = owner.ask("register 0 65536");
            // Sometimes at once, with whatever is mapped still; sometimes when this one is.
            if round % 3 == 0 {
                me.write_until_mapped(&name, addr, rkey);
            }
            assert_eq!(me.write(value, 65536, addr, rkey), Status::Success.to_verbs());
            if round % 2 == 0 {
                assert_eq!(me.write(value, 4096, addr, rkey), Status::Success.to_verbs());
            }
            assert_eq!((owner.ask("peek 0"), owner.ask("peek 65528")), (value, value), "round {round}");
            assert_eq!(owner.ask("deregister"), 0);
            owner.ask("remove");
        }
        until("nothing stays mapped", || !mapped("vt-object"));
    });
}

#[test]
fn a_writer_never_meets_the_next_object_through_an_old_key() {
    alone("a_writer_never_meets_the_next_object_through_an_old_key", || {
        let mut owner = Owner::start(&[]);
        let mut me = Initiator::new(&mut owner);
        let mut refused = 0;
        for round in 0..60u64 {
            let addr = owner.ask(&format!("memfd 262144 vt-next-{round}"));
            let rkey = owner.ask("register 0 262144");
            me.write_until_mapped(&format!("vt-next-{round}"), addr, rkey);
            // Withdrawn, and its number given to another, while the writer goes on with the old key.
            writeln!(owner.orders, "deregister").unwrap();
            writeln!(owner.orders, "memfd 262144 vt-later-{round}").unwrap();
            writeln!(owner.orders, "register 0 262144").unwrap();
            let status = loop {
                match Status::from_verbs(me.write(0xbad, 262144, addr, rkey)) {
                    Some(Status::Success) => {}
                    status => break status,
                }
            };
            assert_eq!(status, Some(Status::RemoteAccess));
            refused += 1;
            // Two answers, and then that of the question.
            for _ in 0..3 {
                owner.answer();
            }
            for at in [0, 65536, 262136] {
                assert_eq!(owner.ask(&format!("peek {at}")), 0, "round {round}: an old key reached a new object");
            }
            owner.ask("deregister");
            owner.ask("remove");
            owner.ask("reconnect");
            me.side.qp.modify(&QpAttr { qp_state: QpState::Reset, ..QpAttr::default() }, attr::STATE).unwrap();
            owner.ask(&format!("connect {}", me.side.qp.qp_num()));
            me.side.connect(owner.qpn);
        }
        assert_eq!(refused, 60);
    });
}

#[test]
fn an_owner_that_is_killed_leaves_an_error_and_no_mapping() {
    alone("an_owner_that_is_killed_leaves_an_error_and_no_mapping", || {
        for round in 0..5u64 {
            let name = format!("vt-killed-{round}");
            let mut owner = Owner::start(&[&format!("memfd 16777216 {name}")]);
            let mut me = Initiator::new(&mut owner);
            let addr = base(&mut owner);
            let rkey = owner.ask("register 0 16777216");
            me.write_until_mapped(&name, addr, rkey);
            let pid = owner.child.id() as i32;
            let killer = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(5 + round));
                // SAFETY: signals our own child, which is waited for later.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            });
            let status = loop {
                match Status::from_verbs(me.write(round, 1 << 20, addr + (1 << 20), rkey)) {
                    Some(Status::Success) => {}
                    status => break status,
                }
            };
            killer.join().unwrap();
            assert_eq!(status, Some(Status::RetryExceeded));
            until("a dead owner's memory is let go", || !mapped(&name));
        }
    });
}

#[test]
fn a_descriptor_that_could_shrink_is_not_mapped() {
    alone("a_descriptor_that_could_shrink_is_not_mapped", || {
        let mut owner = Owner::start(&["unsealed 65536 vt-loose"]);
        let mut me = Initiator::new(&mut owner);
        let addr = base(&mut owner);
        let rkey = owner.ask("register 0 65536");
        for value in 0..200 {
            assert_eq!(me.write(value, 4096, addr, rkey), Status::Success.to_verbs());
            std::thread::sleep(Duration::from_micros(200));
        }
        assert!(!mapped("vt-loose"));
        assert_eq!(me.run(Opcode::FetchAdd, 8, addr, rkey, 1), Status::Success.to_verbs(), "the owner does it");
        assert_eq!(owner.ask("peek 0"), 200);
    });
}

#[test]
fn a_system_v_segment_is_attached() {
    alone("a_system_v_segment_is_attached", || {
        let mut owner = Owner::start(&["segment 131072"]);
        let mut me = Initiator::new(&mut owner);
        let addr = base(&mut owner);
        let rkey = owner.ask("register 0 131072");
        me.write_until_mapped("SYSV", addr, rkey);
        owner.signal(libc::SIGSTOP);
        assert_eq!(me.write(5, 131072, addr, rkey), Status::Success.to_verbs());
        assert_eq!(me.run(Opcode::FetchAdd, 8, addr, rkey, 4), Status::Success.to_verbs());
        owner.signal(libc::SIGCONT);
        assert_eq!((owner.ask("peek 0"), owner.ask("peek 131064")), (9, 5));
        owner.ask("deregister");
        until("it is detached", || !mapped("SYSV"));
    });
}

#[test]
fn what_cannot_be_mapped_is_reached_otherwise() {
    alone("what_cannot_be_mapped_is_reached_otherwise", || {
        let mut owner = Owner::start(&["memfd 17179869184 vt-large"]);
        let mut me = Initiator::new(&mut owner);
        let addr = base(&mut owner);
        let rkey = owner.ask("register 0 17179869184");
        // Acquainted first: the arena itself needs address space.
        assert_eq!(me.run(Opcode::Write, 0, addr, rkey, 0), Status::Success.to_verbs());
        let used: u64 =
            std::fs::read_to_string("/proc/self/statm").unwrap().split(' ').next().unwrap().parse().unwrap();
        let limit = libc::rlimit { rlim_cur: used * 4096 + (1 << 30), rlim_max: libc::RLIM_INFINITY };
        // SAFETY: lowers a limit of this process.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
        for value in 0..200 {
            assert_eq!(me.write(value, 4096, addr + (1 << 33), rkey), Status::Success.to_verbs());
            std::thread::sleep(Duration::from_micros(200));
        }
        assert!(!mapped("vt-large"));
        assert_eq!(me.run(Opcode::FetchAdd, 8, addr + (1 << 33), rkey, 1), Status::Success.to_verbs());
        assert_eq!(owner.ask(&format!("peek {}", 1u64 << 33)), 200);
    });
}

#[test]
fn a_message_across_two_windows_arrives_whole() {
    alone("a_message_across_two_windows_arrives_whole", || {
        const GIB: u64 = 1 << 30;
        let mut owner = Owner::start(&[&format!("memfd {} vt-wide", 130 * GIB)]);
        let mut me = Initiator::new(&mut owner);
        let addr = base(&mut owner);
        let rkey = owner.ask(&format!("register 0 {}", 130 * GIB));
        for boundary in [64 * GIB, 128 * GIB] {
            let at = addr + boundary - 300_000;
            for value in 1..100 {
                assert_eq!(me.write(value, 1 << 20, at, rkey), Status::Success.to_verbs());
                for offset in [0, 299_992, 300_000, 300_008, (1 << 20) - 8] {
                    let word = owner.ask(&format!("peek {}", boundary - 300_000 + offset));
                    assert_eq!(word, value, "at {offset} of a message that crosses {boundary:#x}");
                }
            }
        }
        assert_eq!(std::fs::read_to_string("/proc/self/maps").unwrap().matches("vt-wide").count(), 3);
    });
}
