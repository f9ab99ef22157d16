//! Images whose digest is right and whose values are not: each field of an object of every kind is changed, alone and
//! together with others. Every such image must either be refused without leaving anything behind, or make a device that
//! runs and can be destroyed.

use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, OnceLock};
use vervain_hca::cq::saved::SavedCq;
use vervain_hca::mr::saved::{SavedBinding, SavedDm, SavedMr, SavedMw};
use vervain_hca::process::SavedProcess;
use vervain_hca::process::rendezvous::{Acquaintance, Credentials};
use vervain_hca::qp::saved::SavedQp;
use vervain_hca::qp::sq::saved::{SavedBind, SavedData, SavedProgress, SavedSend};
use vervain_hca::rq::saved::SavedReceive;
use vervain_hca::srq::saved::SavedSrq;
use vervain_hca::{AhAttr, Completion, Gid, Grh, Opcode, QpAttr, QpCap, QpState, QpType, Sge};

/// Slots of the image.
const SLOT: u32 = 333;
/// Its keys.
const KEY: u32 = 0x0001_2305;
const WINDOW: u32 = 0x0001_2411;
/// The address by which users of the key name its memory.
const IOVA: u64 = 0x7000_0000_0123;
const GROUP: Gid = [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 126, 208, 2];

/// Registered memory of 0x4000 bytes.
fn memory() -> u64 {
    static MEMORY: OnceLock<usize> = OnceLock::new();
    *MEMORY.get_or_init(|| Box::leak(vec![0u64; 0x800].into_boxed_slice()).as_mut_ptr().expose_provenance()) as u64
}

fn qpn(index: u32) -> u32 {
    SLOT << 14 | index
}

/// The device, opened; one test has it at a time.
struct Lent(MutexGuard<'static, usize>);

impl Lent {
    fn new() -> Lent {
        static OPENED: OnceLock<Mutex<usize>> = OnceLock::new();
        let open = || {
            let mut count = 0;
            // SAFETY: the list is one, and a device is in it.
            unsafe {
                let list = crate::ibv_get_device_list(&raw mut count);
                assert!(!list.is_null() && count > 0);
                Mutex::new(crate::ibv_open_device(*list).expose_provenance())
            }
        };
        Lent(OPENED.get_or_init(open).lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    fn context(&self) -> *mut ibv_context {
        ptr::with_exposed_provenance_mut(*self.0)
    }

    fn opening(&self) -> &Opening {
        // SAFETY: an open context.
        unsafe { opening(self.context()) }
    }

    /// The number of objects.
    fn objects(&self) -> usize {
        let o = self.opening();
        macro_rules! count {
            ($($kind:ident),+) => { 0 $(+ o.$kind.each(|_, _| Ok(())).unwrap().len())+ };
        }
        count!(pds, mrs, mws, dms, channels, cqs, xrcds, srqs, qps)
    }
}

fn receive(wr_id: u64) -> SavedReceive {
    SavedReceive { wr_id, sges: vec![Sge { addr: IOVA + 64, length: 128, lkey: KEY }] }
}

fn send(opcode: Opcode, data: SavedData) -> SavedSend {
    let rkey = if matches!(opcode, Opcode::Send) { 0 } else { KEY };
    let (flags, remote_addr, flush) = (2, IOVA + 0x3fd, hca::Flush::default());
    SavedSend {
        wr_id: 7,
        opcode,
        flags,
        imm_or_rkey: 0,
        remote_addr,
        rkey,
        compare_add: 0,
        swap: 0,
        data,
        ud: None,
        srqn: 0,
        flush,
        bind: None,
    }
}

fn pieces(length: u32) -> SavedData {
    SavedData::Sges(vec![Sge { addr: IOVA, length, lkey: KEY }])
}

/// A QP of CQ 0 that is ready to send, and that nothing is posted to.
fn qp(index: u32, qp_type: QpType, ah: AhAttr) -> image::Qp {
    let attr = QpAttr {
        qp_state: QpState::Rts,
        cur_qp_state: QpState::Rts,
        path_mtu: 3,
        qkey: 0x1122,
        rq_psn: 5,
        sq_psn: 5,
        qp_access_flags: 0xf,
        ah,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 3,
        port_num: 1,
        timeout: 14,
        retry_cnt: 3,
        rnr_retry: 3,
        ..QpAttr::default()
    };
    let cap = QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 32 };
    let saved = SavedQp {
        number: qpn(index),
        qp_type,
        cap,
        sq_sig_all: false,
        attr,
        established: 0,
        last_wqe_told: false,
        wants_drained: false,
        sends: Vec::new(),
        progress: SavedProgress::default(),
        receives: Vec::new(),
        groups: Vec::new(),
        connection: None,
    };
    image::Qp {
        handle: 30 + index,
        qp_context: 0,
        pd: Some(0),
        send_cq: Some(0),
        recv_cq: Some(0),
        srq: None,
        xrcd: None,
        extended: false,
        opened: false,
        saved,
    }
}

/// One of each.
fn every_kind(device: &hca::Device) -> Image {
    let ah = AhAttr {
        is_global: true,
        port_num: 1,
        grh: Grh { dgid: device.gid(1, 0).unwrap(), hop_limit: 64, ..Grh::default() },
        ..AhAttr::default()
    };
    let addr = memory();
    let mr = |key, over, dm| {
        let (length, iova) = if dm { (32, 0) } else { (0x4000, IOVA) };
        let saved = SavedMr { key, addr, length, iova, access: 0x1f, over };
        image::Mr { handle: key, pd: 0, dm: dm.then_some(0), saved }
    };
    let binding = SavedBinding { mr: KEY, addr: IOVA + 16, length: 64, access: 4, qpn: qpn(1) };
    let mw = |mw_type, key, binding| {
        let saved = SavedMw { mw_type, key, next_key: key, binding };
        image::Mw { handle: key, pd: 0, saved }
    };
    let completion = Completion { wr_id: 3, qp_num: qpn(1), ..Completion::default() };
    let cq = |channel, armed, completions| {
        let saved =
            SavedCq { capacity: 15, ignore_overrun: false, timestamps: true, failed: false, armed, completions };
        image::Cq { handle: 20, cq_context: 0, channel, extended: true, saved }
    };
    let srq = |number, xrc| {
        let saved = SavedSrq { number, max_wr: 4, max_sge: 2, srq_limit: 1, receives: vec![receive(1), receive(2)] };
        image::Srq { handle: 25, srq_context: 0, pd: 0, xrc, saved }
    };
    let connected = |index, to| {
        let mut qp = qp(index, QpType::Rc, ah);
        qp.saved.attr.dest_qp_num = qpn(to);
        qp
    };
    let (mut one, mut other) = (connected(1, 2), connected(2, 1));
    let bind =
        SavedBind { mw: WINDOW + 0x100, new_rkey: WINDOW + 0x101, mr: Some(KEY), addr: IOVA, length: 8, access: 4 };
    one.saved.sends = vec![
        SavedSend { compare_add: 1, ..send(Opcode::FetchAdd, pieces(8)) },
        send(Opcode::Send, SavedData::Inline(vec![1, 2, 3])),
        send(Opcode::Write, pieces(600)),
        send(Opcode::Read, pieces(600)),
        SavedSend { bind: Some(bind), rkey: 0, ..send(Opcode::BindMw, SavedData::Sges(vec![])) },
    ];
    one.saved.progress = SavedProgress { begun: true, unanswered: true };
    other.saved.receives = vec![receive(8), receive(9)];
    let mut datagrams = qp(3, QpType::Ud, ah);
    datagrams.saved.groups = vec![GROUP];
    datagrams.saved.receives = vec![receive(10)];
    datagrams.saved.sends = vec![SavedSend { ud: Some((ah, qpn(3), 0x1122)), ..send(Opcode::Send, pieces(60)) }];
    let (mut source, mut target) = (qp(4, QpType::XrcSend, ah), qp(5, QpType::XrcRecv, ah));
    source.recv_cq = None;
    source.saved.cap = QpCap { max_recv_wr: 0, max_recv_sge: 0, ..source.saved.cap };
    source.saved.attr.dest_qp_num = qpn(5);
    source.saved.sends = vec![SavedSend { srqn: qpn(1), ..send(Opcode::Send, pieces(60)) }];
    (target.pd, target.send_cq, target.recv_cq, target.xrcd) = (None, None, None, Some(0));
    target.saved.cap = QpCap::default();
    target.saved.attr.dest_qp_num = qpn(4);
    let again = image::Qp { opened: true, ..target.clone() };
    let mut shared = qp(6, QpType::Uc, ah);
    (shared.srq, shared.saved.attr.dest_qp_num) = (Some(0), qpn(6));
    let states = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Sqd, QpState::Sqe, QpState::Err];
    let states = (7..).zip(states).map(|(index, state)| {
        let mut qp = qp(index, if state == QpState::Sqe { QpType::Uc } else { QpType::Rc }, ah);
        (qp.saved.attr.qp_state, qp.saved.attr.dest_qp_num) = (state, qpn(index));
        if state == QpState::Init {
            qp.saved.attr = QpAttr { path_mtu: 0, ah: AhAttr::default(), dest_qp_num: 0, ..qp.saved.attr };
        }
        qp
    });
    let qps = [one, other, datagrams, source, target, again, shared].into_iter().chain(states).collect();
    let peer = Acquaintance { slots: vec![400, 401], incarnation: [1, 2], proof: [3, 4] };
    let credentials = Credentials { secret: [5, 6, 7, 8], save: 9, suspense: 10 };
    Image {
        process: SavedProcess { slots: vec![SLOT], credentials, known: vec![peer] },
        device: device.name().to_owned(),
        pds: vec![image::Pd { handle: 1, parent_of: None }, image::Pd { handle: 2, parent_of: Some(0) }],
        memory: vec![image::Memory { addr, length: 0x4000, kept: false }],
        dms: vec![image::Dm { handle: 3, saved: SavedDm { log_align: 3, bytes: vec![9; 64] } }],
        mrs: vec![
            mr(KEY, Over::Memory, false),
            mr(KEY + 0x1000, Over::Nothing, false),
            mr(KEY + 0x2000, Over::DeviceMemory(16), true),
        ],
        mws: vec![mw(2, WINDOW, Some(binding)), mw(1, WINDOW + 0x100, None)],
        channels: vec![image::Channel { fd: 9, events: vec![0, 0] }],
        cqs: vec![cq(Some(0), Some(true), vec![completion; 2]), cq(None, None, vec![])],
        xrcds: vec![77],
        srqs: vec![srq(0, None), srq(qpn(1), Some((0, 1)))],
        qps,
    }
}

unsafe extern "C" fn note(user: *mut c_void, object: *const vervain_object) {
    // SAFETY: the list that was passed along, and an object.
    unsafe { (*user.cast::<Vec<vervain_object>>()).push(*object) };
}

/// Restores the image; what became of it. All that it made is gone again.
fn attempt(lent: &Lent, image: &Image) -> c_int {
    // SAFETY: a name and flags; the descriptor that comes back is ours alone.
    let file = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"image".as_ptr(), libc::MFD_CLOEXEC)) };
    let bytes: Vec<_> =
        image.memory.iter().filter(|m| m.kept).map(|m| vec![0; m.length.min(1 << 20) as usize]).collect();
    image::write(file.as_raw_fd(), image, &bytes).unwrap();
    let mut objects: Vec<vervain_object> = Vec::new();
    let user = (&raw mut objects).cast();
    let attr = vervain_restore_attr { comp_mask: 0, reserved: 0, user, memory: None, restored: Some(note) };
    // SAFETY: an open descriptor and context, and objects that are destroyed in the reverse order.
    unsafe {
        libc::lseek(file.as_raw_fd(), 0, libc::SEEK_SET);
        let rc = vervain_restore(lent.context(), file.as_raw_fd(), &raw const attr);
        if rc != 0 {
            assert!(objects.is_empty());
            assert!(!lent.opening().hca.is_stopped());
        } else {
            assert_eq!(crate::vervain_go(lent.context()), 0);
            run_and_destroy(objects);
        }
        assert_eq!(lent.objects(), 0, "something is left ({rc})");
        rc
    }
}

/// Has the device run for a moment, and all its objects destroyed.
unsafe fn run_and_destroy(mut objects: Vec<vervain_object>) {
    // SAFETY: objects of these kinds, which nobody else has.
    unsafe {
        for _ in 0..3 {
            for cq in objects.iter().filter(|o| o.kind == kind::CQ) {
                let mut wc = [const { core::mem::MaybeUninit::<ibv_wc>::uninit() }; 16];
                assert!(cq::poll_cq(cq.object.cast(), 16, wc.as_mut_ptr().cast()) >= 0);
            }
            std::thread::yield_now();
        }
        while let Some(o) = objects.pop() {
            let gone = match o.kind {
                kind::QP => {
                    qp::hca_qp(o.object.cast()).leave_groups();
                    qp::ibv_destroy_qp(o.object.cast())
                }
                kind::SRQ => srq::ibv_destroy_srq(o.object.cast()),
                kind::XRCD => xrcd::close_xrcd(o.object.cast()),
                kind::CQ => cq::ibv_destroy_cq(o.object.cast()),
                kind::COMP_CHANNEL => comp_channel::ibv_destroy_comp_channel(o.object.cast()),
                kind::MW => mw::dealloc_mw(o.object.cast()),
                kind::MR => mr::ibv_dereg_mr(o.object.cast()),
                kind::DM => dm::free_dm(o.object.cast()),
                _ => pd::ibv_dealloc_pd(o.object.cast()),
            };
            assert_eq!(gone, 0, "destroying {o:?}");
        }
    }
}

/// A way to a value within an image.
type Path = Vec<String>;

/// All values of an image, but for most of those in long lists of numbers.
fn paths(value: &Value, at: &mut Path, all: &mut Vec<Path>) {
    all.push(at.clone());
    let mut below = |name: String, value| {
        at.push(name);
        paths(value, at, all);
        at.pop();
    };
    match value {
        Value::Array(list) => {
            let count = if list.len() > 4 && list.iter().all(Value::is_number) { 1 } else { list.len() };
            list.iter().take(count).enumerate().for_each(|(i, value)| below(i.to_string(), value));
        }
        Value::Object(fields) => fields.iter().for_each(|(name, value)| below(name.clone(), value)),
        _ => {}
    }
}

/// Values to try in its place.
fn others(value: &Value) -> Vec<Value> {
    let names = |names: &[&str]| names.iter().map(|name| json!(name)).collect::<Vec<_>>();
    match value {
        Value::Number(n) => {
            let n = n.as_u64().unwrap_or_default();
            let mut all = vec![0, 1, 2, 3, 7, 0xff, 0x100, 0x7fff, 0xffff, 0x0100_0000, u64::from(u32::MAX)];
            all.extend([1 << 31, 1 << 63, u64::MAX, u64::MAX - 0x3fff, n ^ 1, n.wrapping_add(1), n.wrapping_sub(1)]);
            all.extend([n << 8, n >> 8, n.wrapping_mul(2)]);
            all.into_iter().filter(|other| *other != n).map(|n| json!(n)).collect()
        }
        Value::Bool(b) => vec![json!(!b)],
        Value::Null => vec![json!(0), json!(1), json!(true), json!([0, 1]), json!([1, 2, 3])],
        Value::Array(list) => {
            let mut all = vec![json!([])];
            if let (Some(first), Some(last)) = (list.first(), list.last()) {
                all.push(list.iter().chain([first]).cloned().collect());
                all.push(list.iter().chain([last]).cloned().collect());
                all.push(list.iter().rev().cloned().collect());
                all.push(list[1..].to_vec().into());
                all.push(std::iter::repeat_n(first, 300).cloned().collect());
            }
            all
        }
        Value::Object(_) => vec![Value::Null],
        Value::String(_) => {
            let mut all = names(&["Reset", "Init", "Rtr", "Rts", "Sqd", "Sqe", "Err", "Memory", "Nothing", "another"]);
            all.extend(names(&["Rc", "Uc", "Ud", "XrcSend", "XrcRecv", "Driver", "Send", "SendImm", "SendInv"]));
            all.extend(names(&["Write", "WriteImm", "Read", "CompareSwap", "FetchAdd", "LocalInv"]));
            all.extend(names(&["BindMw", "Flush", "AtomicWrite"]));
            all.push(json!({ "DeviceMemory": 0 }));
            all.push(json!({ "DeviceMemory": u64::MAX }));
            all
        }
    }
}

fn value_at<'a>(image: &'a mut Value, path: &[String]) -> Option<&'a mut Value> {
    path.iter().try_fold(image, |value, name| match value {
        Value::Array(list) => list.get_mut(name.parse::<usize>().ok()?),
        Value::Object(fields) => fields.get_mut(name),
        _ => None,
    })
}

/// One of `EACH` changes is tried; with `HOSTILE=all` in the environment every one, which takes minutes.
const EACH: usize = 32;

#[test]
fn whatever_one_field_says() {
    let lent = Lent::new();
    let good = every_kind(lent.opening().hca.device());
    assert_eq!(attempt(&lent, &good), 0);
    let value = serde_json::to_value(&good).unwrap();
    let mut all = Vec::new();
    paths(&value, &mut Vec::new(), &mut all);
    let each = if std::env::var("HOSTILE").is_ok_and(|which| which == "all") { 1 } else { EACH };
    let mut count = std::process::id() as usize;
    let mut tried = [0; 2];
    for path in &all {
        let mut changed = value.clone();
        let was = value_at(&mut changed, path).unwrap().clone();
        for other in others(&was) {
            count += 1;
            if !count.is_multiple_of(each) {
                continue;
            }
            *value_at(&mut changed, path).unwrap() = other.clone();
            let Ok(image) = serde_json::from_value::<Image>(changed.clone()) else { continue };
            println!("{path:?}: {other}");
            tried[usize::from(attempt(&lent, &image) == 0)] += 1;
        }
    }
    // Both happen, whichever of the changes these are.
    assert!(tried.iter().all(|n| *n > 1000 / each), "{tried:?}");
    assert_eq!(attempt(&lent, &good), 0, "something of the numbers is left");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_some_fields_say(picks: Vec<(usize, usize)>) {
        let lent = Lent::new();
        let good = every_kind(lent.opening().hca.device());
        let mut image = serde_json::to_value(&good).unwrap();
        for (which, what) in picks.into_iter().take(6) {
            let mut all = Vec::new();
            paths(&image, &mut Vec::new(), &mut all);
            let place = value_at(&mut image, &all[which % all.len()]).unwrap();
            let others = others(place);
            if !others.is_empty() {
                let was = std::mem::replace(place, others[what % others.len()].clone());
                if serde_json::from_value::<Image>(image.clone()).is_err() {
                    *value_at(&mut image, &all[which % all.len()]).unwrap() = was;
                }
            }
        }
        attempt(&lent, &serde_json::from_value(image).unwrap());
        prop_assert_eq!(attempt(&lent, &good), 0);
    }
}
