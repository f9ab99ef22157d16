//! QP numbers that come back: a QP has nothing to do with the one that had its number before.

#[allow(dead_code)]
mod fixture;

use std::sync::Arc;
use vervain_hca::{
    CompChannel, Context, Cq, Data, Mr, Opcode, Pd, Qp, QpAttr, QpCap, QpType, SendRequest, Sge, Status, access,
    devices, send_flags,
};

struct World {
    context: Arc<Context>,
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    channel: Arc<CompChannel>,
    mr: Arc<Mr>,
    word: Box<u64>,
}

impl World {
    fn new() -> World {
        let context = vervain_link::open(&devices().unwrap()[0]).unwrap();
        let pd = context.alloc_pd().unwrap();
        let channel = CompChannel::create(&context).unwrap();
        let cq = Cq::create(&context, 64, Some(&channel), 0, 0, false, false).unwrap();
        let word = Box::new(0);
        let at = std::ptr::from_ref::<u64>(&word) as u64;
        let mr = Mr::register(&pd, at, 8, at, access::LOCAL_WRITE).unwrap();
        World { context, pd, cq, channel, mr, word }
    }

    fn qp(&self, qp_type: QpType) -> Arc<Qp> {
        let cap = QpCap { max_send_wr: 1, max_recv_wr: 0, max_send_sge: 1, max_recv_sge: 0, max_inline_data: 0 };
        fixture::qp(&self.context, &self.pd, &self.cq, qp_type, cap)
    }

    /// Connects `qp` to `peer`, whose silence it bears for one ACK timeout of 4.096 µs × 2^`timeout`.
    fn connect(&self, qp: &Qp, peer: u32, timeout: u8) {
        fixture::to_rts(&self.context, qp, &QpAttr { dest_qp_num: peer, timeout, ..QpAttr::default() });
    }

    fn write(&self, qp: &Qp) {
        let at = std::ptr::from_ref::<u64>(&self.word) as u64;
        let sge = [Sge { addr: at, length: 8, lkey: self.mr.lkey() }];
        let (flags, data) = (send_flags::SIGNALED, Data::Sges(&sge));
        let request = SendRequest { opcode: Opcode::Write, flags, data, ..SendRequest::default() };
        qp.post_send(|poster| poster.push(&request)).unwrap();
    }

    /// Sleeps until the CQ has an event.
    fn sleep(&self) -> bool {
        let mut fd = libc::pollfd { fd: self.channel.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which lives during the call.
        unsafe { libc::poll(&raw mut fd, 1, 10_000) == 1 }
    }
}

#[test]
fn who_sleeps_is_woken_by_a_qp_that_has_the_number_of_one_destroyed_just_before() {
    let world = World::new();
    let silent = world.qp(QpType::Rc).qp_num();
    let first = world.qp(QpType::Rc);
    // All that stand for the same slot, so that the next number is the one that comes back.
    let mut others = Vec::new();
    let slot = |number: u32| number >> 14;
    while others.last().is_none_or(|qp: &Arc<Qp>| slot(qp.qp_num()) == slot(first.qp_num())) {
        others.push(world.qp(QpType::XrcSend));
    }
    let mut qp = first;
    for round in 0..5 {
        // The progress thread looks after this one, which waits for longer than the test takes.
        world.connect(&qp, silent, 22);
        world.write(&qp);
        std::thread::sleep(std::time::Duration::from_millis(20));
        let number = qp.qp_num();
        qp.destroy().unwrap();
        qp = world.qp(QpType::Rc);
        assert_eq!(qp.qp_num(), number, "round {round}");
        world.cq.req_notify(false).unwrap();
        world.connect(&qp, silent, 10);
        world.write(&qp);
        assert!(world.sleep(), "round {round}: nobody looks after the new QP");
        let mut status = None;
        while world.cq.poll(1, &mut |completion| status = Some(completion.status)) == 0 {}
        assert_eq!(status, Some(Status::RetryExceeded.to_verbs()));
        world.channel.next_event().unwrap();
        qp.destroy().unwrap();
        qp = world.qp(QpType::Rc);
        assert_eq!(qp.qp_num(), number, "round {round}");
    }
}
