//! What the tests begin with: two ends of a connection.

use std::time::{Duration, Instant};

use vervain_rdma::*;

pub const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of each side's memory: more than a packet holds, and not a whole number of them.
pub const LEN: usize = 40_000;
pub const QKEY: u32 = 0x1111_1111;

/// One end: its own open device, as in a process of its own.
pub struct Side {
    pub context: Context,
    pub pd: Pd,
    pub cq: Cq,
    pub region: Region,
    pub qp: Qp,
    pub path: PathOptions,
}

impl Side {
    pub fn new(transport: Transport, adjust: impl Fn(QpBuilder) -> QpBuilder, path: impl Fn(&mut PathOptions)) -> Self {
        let context = Context::open(&Library::load().expect("libibverbs"), None).expect("a device");
        context.set_async_nonblocking(true).expect("non-blocking");
        let pd = Pd::new(&context).expect("a PD");
        let cq = Cq::new(&context, 64, None, 0).expect("a CQ");
        let region = pd.region(LEN, Access::REMOTE).expect("a region");
        let builder = Qp::builder(transport, &pd, &cq, &cq).max_send(32).max_receive(32).max_sges(2, 2).max_inline(64);
        let qp = adjust(builder).build().expect("a QP");
        let mut options = PathOptions::of(&context, 1).expect("a path");
        path(&mut options);
        if transport == Transport::Ud {
            qp.activate(&options, QKEY).expect("RTS");
        } else {
            qp.init(&options, Access::REMOTE).expect("INIT");
        }
        Self { context, pd, cq, region, qp, path: options }
    }

    /// One more QP of this side, in INIT.
    pub fn another(&self, adjust: impl Fn(QpBuilder) -> QpBuilder) -> Qp {
        let builder = Qp::builder(Transport::Rc, &self.pd, &self.cq, &self.cq).max_send(32).max_receive(32);
        let qp = adjust(builder).build().expect("a QP");
        qp.init(&self.path, Access::REMOTE).expect("INIT");
        qp
    }

    /// Connects one of this side's QPs to one of another's.
    pub fn join(&self, mine: &Qp, other: &Side, theirs: &Qp) {
        let ends = [mine.endpoint(&self.path), theirs.endpoint(&other.path)].map(|end| end.expect("an endpoint"));
        mine.connect(&ends[1], &self.path).expect("connected");
        theirs.connect(&ends[0], &other.path).expect("connected");
    }

    /// Waits for the next event of this side's device that is of one of `kinds`.
    pub fn event(&self, kinds: &[EventKind]) -> AsyncEvent {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.context.next_async_event().expect("events") {
                Some(event) if kinds.contains(&event.kind) => return event,
                _ => assert!(Instant::now() < until, "no event of {kinds:?}"),
            }
        }
    }

    /// No event of `kind` is there.
    pub fn no_event(&self, kind: EventKind) {
        while let Some(event) = self.context.next_async_event().expect("events") {
            assert_ne!(event.kind, kind);
        }
    }

    pub fn endpoint(&self) -> Endpoint {
        let endpoint = self.qp.endpoint(&self.path).expect("an endpoint");
        Endpoint { memory: Some(self.region.remote()), ..endpoint }
    }

    pub fn there(&self, offset: u64) -> RemoteAddr {
        self.region.remote().at(offset)
    }

    /// Waits for `count` completions.
    pub fn take(&self, count: usize) -> Vec<Completion> {
        let (mut done, until) = (vec![Completion::default(); count], Instant::now() + PATIENCE);
        let mut found = 0;
        while found < count {
            found += self.cq.poll(&mut done[found..]).expect("completions");
            assert!(Instant::now() < until, "{found} of {count} completions");
        }
        done
    }

    /// Waits for one completion, which is good, of this request.
    pub fn done(&self, id: u64, opcode: Opcode) -> Completion {
        let done = self.take(1)[0];
        assert_eq!((done.id(), done.status()), (id, Status::Success), "{}", done.status());
        assert_eq!((done.opcode(), done.qp_num()), (opcode, self.qp.number()));
        done
    }

    /// Nothing more is there, and nothing comes in a moment.
    pub fn quiet(&self) {
        let until = Instant::now() + Duration::from_millis(20);
        while Instant::now() < until {
            assert_eq!(self.cq.poll(&mut [Completion::default()]).expect("completions"), 0);
        }
    }

    pub fn bytes(&self, from: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.region.read(from, &mut bytes);
        bytes
    }
}

pub fn pair(transport: Transport) -> (Side, Side) {
    pair_with(transport, |b| b, |_| ())
}

pub fn pair_with(
    transport: Transport,
    adjust: impl Fn(QpBuilder) -> QpBuilder,
    path: impl Fn(&mut PathOptions),
) -> (Side, Side) {
    let (a, b) = (Side::new(transport, &adjust, &path), Side::new(transport, &adjust, &path));
    if transport != Transport::Ud {
        a.qp.connect(&b.endpoint(), &a.path).expect("connected");
        b.qp.connect(&a.endpoint(), &b.path).expect("connected");
    }
    (a, b)
}

/// Bytes that repeat with no power of two.
pub fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i + seed) % 251) as u8).collect()
}
