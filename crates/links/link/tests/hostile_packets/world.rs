//! Live QPs of each kind on 127.0.0.1, whose memory, receives and states must not change, and the look that tells.

#[path = "../fixture/mod.rs"]
#[allow(dead_code)]
mod fixture;

use fixture::{ALL, wait};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use vervain_hca::{
    Ah, AhAttr, Context, Cq, Data, Grh, Mr, Opcode, Pd, Qp, QpAttr, QpCap, QpInit, QpState, QpType, SendRequest, Sge,
    Srq, SrqInit, Status, UdDest, Xrcd, attr, devices, event, send_flags,
};
use vervain_roce::Roce;

pub const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// PSN of the first request of each pair, both ways.
pub const FIRST_PSN: u32 = 0x40_0000;
pub const QKEY: u32 = 0x1122_3344;
/// READs and atomics at once.
pub const MAX_READS: u8 = 4;
pub const MTU: usize = 1024;
/// Bytes of the memory that peers may use, and of each receive.
pub const MEMORY: usize = 64 << 10;
pub const RECEIVE: usize = 2 * MTU;
const RECEIVES: u64 = 8;

/// Runs a test in a process of its own, which reaches even itself in packets, and in a network namespace of its own, by
/// a user namespace unless this is root. Where neither may be had, tests take turns: each wants the same addresses.
pub fn alone(test: &str, body: impl FnOnce()) {
    alone_with(test, &[], body);
}

/// Runs a test as [`alone`] does, with more variables.
pub fn alone_with(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) {
    const MARK: &str = "VERVAIN_TEST_ALONE";
    static TURN: Mutex<()> = Mutex::new(());
    if std::env::var_os(MARK).is_some() {
        return body();
    }
    let command = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture", "--include-ignored"]);
        command.env(MARK, "1").env("VERVAIN_LINK", "roce").env("VERVAIN_INTERFACE", "lo");
        command.envs(variables.iter().copied());
        command
    };
    // SAFETY: no arguments.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let maps = [
        ("uid_map", format!("{user} {user} 1")),
        ("setgroups", "deny".into()),
        ("gid_map", format!("{group} {group} 1")),
    ];
    let mut apart = command();
    // SAFETY: only system calls between fork and exec.
    unsafe { apart.pre_exec(move || own_network(&maps)) };
    let status = apart.status().unwrap_or_else(|_| {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        command().status().unwrap()
    });
    assert!(status.success(), "{test}: {status}");
}

/// Gives this process, of one thread, a network of its own.
fn own_network(maps: &[(&str, String)]) -> std::io::Result<()> {
    // SAFETY: no memory is involved.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        // SAFETY: as before.
        if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        for (name, map) in maps {
            std::fs::write(std::path::Path::new("/proc/self").join(name), map)?;
        }
    }
    loopback_up()
}

fn loopback_up() -> std::io::Result<()> {
    // SAFETY: the request is a struct on this stack, of zeros at first, which name no interface.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0);
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[..2].copy_from_slice(&[b'l' as libc::c_char, b'o' as libc::c_char]);
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
        let done = libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw const request);
        libc::close(socket);
        if done < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// The value of byte `i` of all memory.
fn pattern(i: usize) -> u8 {
    (i * 31 + i / 256 * 7) as u8 | 1
}

/// Memory full of the pattern. It stays where it is.
pub struct Memory {
    bytes: Box<[u8]>,
    pub mr: Arc<Mr>,
}

impl Memory {
    fn new(pd: &Arc<Pd>, len: usize) -> Memory {
        let bytes: Box<[u8]> = (0..len).map(pattern).collect();
        let at = bytes.as_ptr() as u64;
        let mr = Mr::register(pd, at, len as u64, at, ALL).unwrap();
        Memory { bytes, mr }
    }

    pub fn addr(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }

    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge { addr: self.addr() + offset as u64, length: length as u32, lkey: self.mr.lkey() }
    }

    fn check(&self, what: &str) {
        let at = self.bytes.as_ptr();
        // Other threads may write here: it is read as they would see it.
        let byte = |i: usize| {
            // SAFETY: `i` is below the length of the box.
            unsafe { at.add(i).read_volatile() }
        };
        let changed = (0..self.bytes.len()).find(|i| byte(*i) != pattern(*i));
        assert_eq!(changed, None, "{what}: a byte has changed");
    }

    fn restore(&mut self) {
        self.bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = pattern(i));
    }
}

/// Two QPs connected to each other; the second has receives posted, itself or in its SRQ.
pub struct Pair {
    pub kind: QpType,
    pub a: Arc<Qp>,
    pub b: Arc<Qp>,
    srq: Option<Arc<Srq>>,
    pub send_cq: Arc<Cq>,
    pub recv_cq: Arc<Cq>,
    pub memory: Memory,
    pub receives: Memory,
    /// The receive that is next.
    pub next: u64,
    /// Messages that have gone from `a` to `b`.
    pub messages: u32,
    ah: Option<Arc<Ah>>,
    xrcd: Option<Arc<Xrcd>>,
}

pub struct World {
    pub context: Arc<Context>,
    pub roce: std::sync::Arc<Roce>,
    pub pairs: Vec<Pair>,
}

impl World {
    pub fn new(kinds: &[QpType]) -> World {
        World::with_memory(kinds, MEMORY)
    }

    /// A world whose pairs have `bytes` bytes of memory each.
    pub fn with_memory(kinds: &[QpType], bytes: usize) -> World {
        let context = vervain_link::open(&devices().unwrap()[0]).unwrap();
        set_nonblocking(context.async_fd());
        let roce = vervain_link::roce_link().unwrap();
        let pairs = kinds.iter().map(|kind| Pair::new(&context, *kind, bytes)).collect();
        let mut world = World { context, roce, pairs };
        world.works();
        // An XRC target stays in RTR, where the first message raises "established" (IBA 11.6.3.1).
        world.established(kinds.iter().filter(|kind| **kind == QpType::XrcSend).count());
        world.unchanged("at first");
        world
    }

    pub fn pair(&self, kind: QpType) -> &Pair {
        self.pairs.iter().find(|pair| pair.kind == kind).unwrap()
    }

    /// Checks that all packets are handled, and everything is as before.
    pub fn unchanged(&self, when: &str) {
        self.drain(when);
        for pair in &self.pairs {
            let what = format!("{when}, {:?}", pair.kind);
            assert_eq!((pair.a.state(), pair.b.state()), (QpState::Rts, pair.state_of_b()), "{what}");
            if let (Some(left), None) = (pair.b.receives_waiting(), &pair.srq) {
                assert_eq!(u64::from(left), RECEIVES, "{what}: receives that wait");
            }
            pair.memory.check(&what);
            pair.receives.check(&what);
        }
        assert!(self.context.next_event().is_err(), "{when}: an async event");
    }

    /// Takes in packets until none comes any more; nothing completes.
    pub fn drain(&self, when: &str) {
        let port = self.roce.port(HERE).unwrap();
        let mut quiet = 0;
        while quiet < 20 {
            let before = port.counters().received_packets.get();
            for pair in &self.pairs {
                for cq in [&pair.send_cq, &pair.recv_cq] {
                    cq.poll(1, &mut |c| panic!("{when}, {:?}: {c:?}", pair.kind));
                }
            }
            std::thread::sleep(Duration::from_micros(200));
            quiet = if port.counters().received_packets.get() == before { quiet + 1 } else { 0 };
        }
    }

    /// Another pair.
    pub fn add(&mut self, kind: QpType) {
        self.pairs.push(Pair::new(&self.context, kind, MEMORY));
    }

    /// A pair that is no longer to be as it was.
    pub fn take(&mut self, kind: QpType) -> Pair {
        let place = self.pairs.iter().position(|pair| pair.kind == kind).unwrap();
        self.pairs.remove(place)
    }

    /// Takes the event of so many QPs that communication is established.
    pub fn established(&self, qps: usize) {
        let deadline = Instant::now() + Duration::from_secs(10);
        for _ in 0..qps {
            let told = loop {
                match self.context.next_event() {
                    Ok(told) => break told.event_type,
                    Err(_) => assert!(Instant::now() < deadline, "no async event came"),
                }
                std::thread::yield_now();
            };
            assert_eq!(told, event::COMM_EST);
        }
    }

    /// The next async event of this pair that is an error; "established" may come before it.
    pub fn failure(&self, pair: &Pair, what: &str) -> u32 {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            if let Ok(told) = self.context.next_event() {
                pair.b.ack_async_event();
                if told.event_type != event::COMM_EST {
                    return told.event_type;
                }
            }
            assert!(Instant::now() < deadline, "{what}: no async event came");
            std::thread::yield_now();
        }
    }

    /// Messages go through on each pair, into the receives that are next.
    pub fn works(&mut self) {
        for pair in &mut self.pairs {
            pair.send();
        }
    }
}

impl Pair {
    fn new(context: &Arc<Context>, kind: QpType, bytes: usize) -> Pair {
        let pd = context.alloc_pd().unwrap();
        let cq = || Cq::create(context, 64, None, 0, 0, false, false).unwrap();
        let (send_cq, recv_cq) = (cq(), cq());
        let is_xrc = kind == QpType::XrcSend;
        let xrcd = is_xrc.then(|| Xrcd::open(context, None, libc::O_CREAT).unwrap());
        let srq = xrcd.as_ref().map(|xrcd| {
            let xrc = Some((xrcd, &recv_cq));
            let init = SrqInit { max_wr: RECEIVES as u32, max_sge: 1, cookie: 0, xrc };
            Srq::create(context, &pd, &init).unwrap()
        });
        let create = |qp_type, recv_cq| {
            let max_recv = if is_xrc { 0 } else { RECEIVES as u32 };
            let cap = QpCap {
                max_send_wr: if qp_type == QpType::XrcRecv { 0 } else { 16 },
                max_recv_wr: max_recv,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 64,
            };
            let targets = qp_type == QpType::XrcRecv;
            let init = QpInit {
                qp_type,
                send_cq: if targets { None } else { Some(&send_cq) },
                recv_cq: if is_xrc { None } else { Some(recv_cq) },
                srq: None,
                xrcd: if targets { xrcd.as_ref() } else { None },
                cap,
                sq_sig_all: false,
                cookie: 0,
            };
            Qp::create(context, if targets { None } else { Some(&pd) }, &init).unwrap()
        };
        let a = create(kind, &send_cq);
        let b = create(if is_xrc { QpType::XrcRecv } else { kind }, &recv_cq);
        connect(context, &a, b.qp_num());
        connect(context, &b, a.qp_num());
        let memory = Memory::new(&pd, bytes);
        let receives = Memory::new(&pd, RECEIVE * RECEIVES as usize);
        let ah = (kind == QpType::Ud).then(|| Ah::create(&pd, &address(context)).unwrap());
        let pair = Pair { kind, a, b, srq, send_cq, recv_cq, memory, receives, next: 0, messages: 0, ah, xrcd };
        (0..RECEIVES).for_each(|n| pair.post(n));
        pair
    }

    fn post(&self, n: u64) {
        let sge = [self.receives.sge((n % RECEIVES) as usize * RECEIVE, RECEIVE)];
        match &self.srq {
            Some(srq) => srq.post_recv(n, &sge).unwrap(),
            None => self.b.post_recv(n, &sge).unwrap(),
        }
    }

    fn state_of_b(&self) -> QpState {
        if self.xrcd.is_some() { QpState::Rtr } else { QpState::Rts }
    }

    /// Makes its receiving QP fail.
    pub fn fail(&self) {
        self.b.modify(&QpAttr { qp_state: QpState::Err, ..QpAttr::default() }, attr::STATE).unwrap();
    }

    /// The receives of a QP that has failed come back unused, each once, and no byte of its memory has changed.
    pub fn check_flushed(&self, what: &str) {
        for n in self.next..self.next + RECEIVES {
            let c = wait(&self.recv_cq);
            assert_eq!((c.wr_id, c.status), (n, Status::Flushed.to_verbs()), "{what}");
        }
        self.recv_cq.poll(1, &mut |c| panic!("{what}: {c:?}"));
        self.memory.check(what);
    }

    /// Ends both QPs.
    pub fn destroy(self) {
        self.a.destroy().unwrap();
        self.b.destroy().unwrap();
    }

    /// A look for packets.
    pub fn poll(&self) {
        self.recv_cq.poll(1, &mut |c| panic!("{:?}: {c:?}", self.kind));
    }

    /// The SRQ that its messages go to; 0 for none.
    pub fn srqn(&self) -> u32 {
        self.srq.as_ref().map_or(0, |srq| srq.srq_num())
    }

    /// PSN of the request that `b` expects.
    pub fn expected_psn(&self) -> u32 {
        (FIRST_PSN + self.messages) & 0xff_ffff
    }

    /// Posts a message from `a` to `b`.
    pub fn post_message(&self) {
        let hello: &[u8] = b"a message";
        let inline = [hello];
        let ud = self.ah.as_ref().map(|ah| UdDest { ah, qpn: self.b.qp_num(), qkey: QKEY });
        let request = SendRequest {
            opcode: Opcode::Send,
            flags: send_flags::SIGNALED | send_flags::INLINE,
            data: Data::Inline(&inline),
            ud,
            srqn: self.srqn(),
            ..SendRequest::default()
        };
        self.a.post_send(|p| p.push(&request)).unwrap();
    }

    /// A message from `a` to `b`.
    fn send(&mut self) {
        self.post_message();
        self.messages += 1;
        let (sent, received) = (wait(&self.send_cq), wait(&self.recv_cq));
        assert_eq!(
            (sent.status, received.status),
            (Status::Success.to_verbs(), Status::Success.to_verbs()),
            "{:?}",
            self.kind
        );
        assert_eq!(received.wr_id, self.next, "{:?}: the next receive", self.kind);
        self.receives.restore();
        self.post(self.next + RECEIVES);
        self.next += 1;
    }

    /// A READ of `len` bytes by `a` from the memory of `b`, into its own place.
    pub fn read(&mut self, len: usize) {
        let sge = [self.memory.sge(0, len)];
        let request = SendRequest {
            opcode: Opcode::Read,
            flags: send_flags::SIGNALED,
            remote_addr: self.memory.addr(),
            rkey: self.memory.mr.rkey(),
            data: Data::Sges(&sge),
            ..SendRequest::default()
        };
        self.a.post_send(|p| p.push(&request)).unwrap();
        assert_eq!(wait(&self.send_cq).status, Status::Success.to_verbs());
    }
}

fn address(context: &Context) -> AhAttr {
    address_of(context, Ipv4Addr::LOCALHOST)
}

/// The way from here to `peer`.
pub fn address_of(context: &Context, peer: Ipv4Addr) -> AhAttr {
    let gids = context.device().gids(1);
    let here = gids.iter().find(|e| e.gid == Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets()).expect("a GID on lo");
    let dgid = peer.to_ipv6_mapped().octets();
    let grh = Grh { dgid, sgid_index: here.index as u8, hop_limit: 64, ..Grh::default() };
    AhAttr { is_global: true, port_num: 1, grh, ..AhAttr::default() }
}

/// Brings a QP as far as it goes.
fn connect(context: &Context, qp: &Qp, dest_qp_num: u32) {
    connect_to(qp, address(context), dest_qp_num);
}

/// Brings a QP as far as it goes, towards the peer at `ah`.
pub fn connect_to(qp: &Qp, ah: AhAttr, dest_qp_num: u32) {
    let new = QpAttr {
        qp_state: QpState::Init,
        port_num: 1,
        qkey: QKEY,
        qp_access_flags: ALL,
        path_mtu: 3,
        dest_qp_num,
        rq_psn: FIRST_PSN,
        sq_psn: FIRST_PSN,
        max_rd_atomic: MAX_READS,
        max_dest_rd_atomic: MAX_READS,
        min_rnr_timer: 1,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        ah,
        ..QpAttr::default()
    };
    let (rtr, rts) = (QpAttr { qp_state: QpState::Rtr, ..new }, QpAttr { qp_state: QpState::Rts, ..new });
    let init = attr::STATE | attr::PKEY_INDEX | attr::PORT;
    if qp.qp_type() == QpType::Ud {
        qp.modify(&new, init | attr::QKEY).unwrap();
        qp.modify(&rtr, attr::STATE).unwrap();
        qp.modify(&rts, attr::STATE | attr::SQ_PSN).unwrap();
        return;
    }
    qp.modify(&new, init | attr::ACCESS_FLAGS).unwrap();
    let way = attr::STATE | attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN;
    let receives = attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER;
    qp.modify(&rtr, if qp.qp_type().is_reliable() && qp.qp_type() != QpType::XrcSend { way | receives } else { way })
        .unwrap();
    let retries = attr::TIMEOUT | attr::RETRY_CNT | attr::RNR_RETRY | attr::MAX_QP_RD_ATOMIC;
    match qp.qp_type() {
        QpType::XrcRecv => {}
        QpType::Uc => qp.modify(&rts, attr::STATE | attr::SQ_PSN).unwrap(),
        _ => qp.modify(&rts, attr::STATE | attr::SQ_PSN | retries).unwrap(),
    }
}

fn set_nonblocking(fd: RawFd) {
    // SAFETY: changes the flags of a descriptor that the context owns.
    unsafe { libc::fcntl(fd, libc::F_SETFL, libc::fcntl(fd, libc::F_GETFL) | libc::O_NONBLOCK) };
}

/// Resident memory of this process, in bytes.
pub fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}
