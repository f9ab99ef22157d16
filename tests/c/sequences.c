/* Faults whose point is time or order: retries and RNR, flushing, the SQE state, late peers, ordering, revocation.
 * Times are lower bounds from the attributes (IBA 9.7.5.2.4 RNR, 9.7.6.1.3 transport timer) with wide upper ones. */
#include "vt.h"

#include <signal.h>
#include <sys/wait.h>

static void ready(enum vt_type type, uint32_t timeout, uint32_t retry, uint32_t rnr, uint32_t rnr_timer)
{
	struct vt_cfg a = vt_cfg_default(type);
	a.timeout = timeout;
	a.retry_cnt = retry;
	a.rnr_retry = rnr;
	a.min_rnr_timer = rnr_timer;
	struct vt_cfg b = a;
	b.responder = 1;
	vt_pair(&a, &b);
}

static int post(int opcode, uint64_t id, unsigned flags)
{
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, opcode, 8);
	w.wr_id = id;
	w.flags = flags;
	return vt_send(&vt_a, &w);
}

static int wait_status(unsigned ms)
{
	struct ibv_wc wc;
	return vt_cqes(&vt_a, 0, 1, ms, &wc) == 1 ? (int)wc.status : -1;
}

static void recv_one(uint64_t id)
{
	int rc = vt_recv(&vt_b, id, vt_b.info.addr + VT_RECV_AT, 64, vt_b.info.lkey);
	vt_check(rc == 0, "posting a receive: %s", vt_errno_name(rc));
}

/* What takes too long does so each time; what the machine has held up does not. */
#define TRIES 3

static void retry_time(void)
{
	uint64_t us = UINT64_MAX, in_post = UINT64_MAX;
	for (int i = 0; i < TRIES && (in_post >= 20000 || us >= 4 * 100700 + 1000000); i++) {
		ready(VT_RC, 13, 2, 7, 12); /* 33.6 ms, three tries */
		vt_simple(&vt_b, VT_DESTROY, 0, 0, 0);
		uint64_t start = vt_now_us(), own = vt_own_us();
		post(IBV_WR_RDMA_WRITE, 1, IBV_SEND_SIGNALED);
		in_post = vt_own_us() - own;
		int status = wait_status(20000);
		us = vt_now_us() - start;
		vt_check(status == IBV_WC_RETRY_EXC_ERR, "expected RETRY_EXC_ERR, got %s", vt_wc_name(status));
		vt_check(us >= 90000, "retries of 3 x 33.6 ms ended after %" PRIu64 " us", us);
		vt_teardown();
	}
	vt_check(in_post < 20000, "ibv_post_send blocked for %" PRIu64 " us", in_post);
	/* C9-139: a try lasts at least the timeout and at most four times as long. */
	vt_check(us < 4 * 100700 + 1000000, "retries of 3 x 33.6 ms ended after %" PRIu64 " us", us);
}

static void timeout_zero(void)
{
	ready(VT_RC, 0, 0, 7, 12); /* 0 means wait for ever */
	vt_simple(&vt_b, VT_DESTROY, 0, 0, 0);
	post(IBV_WR_RDMA_WRITE, 1, IBV_SEND_SIGNALED);
	int status = wait_status(400);
	vt_check(status == -1, "timeout 0 means no timeout, got %s", vt_wc_name(status));
	vt_check(vt_modify(&vt_a, IBV_QPS_ERR) == 0, "to ERR with a request outstanding");
	status = wait_status(1000);
	vt_check(status == IBV_WC_WR_FLUSH_ERR, "expected WR_FLUSH_ERR, got %s", vt_wc_name(status));
	vt_teardown();
}

static void late_peer(void)
{
	struct vt_cfg a = vt_cfg_default(VT_RC), b = a;
	b.responder = 1;
	vt_ends_open();
	vt_setup(&vt_a, &a);
	vt_setup(&vt_b, &b);
	vt_require(vt_connect(&vt_a, &vt_b, IBV_QPS_RTS) == 0, "a QP whose peer is in RESET must reach RTS");
	post(IBV_WR_RDMA_WRITE, 1, IBV_SEND_SIGNALED);
	int status = wait_status(60);
	vt_check(status == -1, "completed while the peer was in RESET: %s", vt_wc_name(status));
	vt_require(vt_connect(&vt_b, &vt_a, IBV_QPS_RTR) == 0, "connecting the responder");
	status = wait_status(3000);
	vt_check(status == IBV_WC_SUCCESS, "expected SUCCESS once the peer is in RTR, got %s", vt_wc_name(status));
	vt_teardown();
}

static void rnr_time(void)
{
	uint64_t us = UINT64_MAX, in_post = UINT64_MAX;
	for (int i = 0; i < TRIES && (in_post >= 10000 || us >= 1030000); i++) {
		ready(VT_RC, 14, 7, 3, 20); /* 10.24 ms, first try and three more */
		uint64_t start = vt_now_us(), own = vt_own_us();
		post(IBV_WR_SEND, 1, IBV_SEND_SIGNALED);
		in_post = vt_own_us() - own;
		int status = wait_status(20000);
		us = vt_now_us() - start;
		vt_check(status == IBV_WC_RNR_RETRY_EXC_ERR, "expected RNR_RETRY_EXC_ERR, got %s", vt_wc_name(status));
		vt_check(us >= 30000, "3 waits of 10.24 ms took %" PRIu64 " us", us);
	}
	vt_check(us < 1030000, "3 waits of 10.24 ms took %" PRIu64 " us", us);
	vt_check(in_post < 10000, "ibv_post_send blocked for %" PRIu64 " us", in_post);
	/* The responder is unharmed and serves the next connection attempt. */
	vt_check(vt_state(&vt_b) == IBV_QPS_RTS, "the responder left RTS");
	us = UINT64_MAX;
	for (int i = 0; i < TRIES && us >= 450000; i++) {
		ready(VT_RC, 14, 7, 0, 31); /* 491.52 ms, of which there is not one wait */
		uint64_t start = vt_now_us();
		post(IBV_WR_SEND, 1, IBV_SEND_SIGNALED);
		int status = wait_status(20000);
		us = vt_now_us() - start;
		vt_check(status == IBV_WC_RNR_RETRY_EXC_ERR, "rnr_retry 0: %s", vt_wc_name(status));
	}
	vt_check(us < 450000, "rnr_retry 0 ended after %" PRIu64 " us", us);
	vt_teardown();
}

static void rnr_recover(void)
{
	ready(VT_RC, 14, 7, 6, 30); /* 327.68 ms: the receive comes before the last of six */
	post(IBV_WR_SEND, 1, IBV_SEND_SIGNALED);
	vt_check(wait_status(30) == -1, "completed without a receive");
	recv_one(5);
	int status = wait_status(3000);
	vt_check(status == IBV_WC_SUCCESS, "expected SUCCESS, got %s", vt_wc_name(status));
	ready(VT_RC, 18, 0, 7, 1); /* 7 is for ever; the timer is 10 us; an answer has a second to come */
	for (uint64_t i = 0; i < 5; i++)
		post(i == 3 ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND, i, IBV_SEND_SIGNALED);
	vt_check(wait_status(250) == -1, "completed without a receive");
	for (uint64_t i = 0; i < 5; i++)
		recv_one(i);
	struct ibv_wc wc[5];
	int n = vt_cqes(&vt_a, 0, 5, 3000, wc);
	vt_check(n == 5, "%d of 5 sends completed after the receives came", n);
	for (int i = 0; i < n; i++)
		vt_check(wc[i].status == IBV_WC_SUCCESS && wc[i].wr_id == (uint64_t)i, "completion %d: %s of %" PRIu64, i,
			 vt_wc_name((int)wc[i].status), wc[i].wr_id);
	vt_teardown();
}

/* One fault in the middle: before it success in order, it, then flushes in order, signalled or not. */
static void flush_order(void)
{
	ready(VT_RC, 14, 7, 0, 12);
	for (uint64_t i = 0; i < 4; i++)
		vt_recv(&vt_a, 100 + i, vt_a.info.addr + VT_RECV_AT, 64, vt_a.info.lkey);
	recv_one(50);
	struct vt_side *a = vt_a.local;
	struct ibv_sge sge = { vt_a.info.addr, 8, vt_a.info.lkey };
	struct ibv_send_wr w[6], *bad;
	memset(w, 0, sizeof(w));
	for (int i = 0; i < 6; i++) {
		w[i].wr_id = (uint64_t)i;
		w[i].next = i < 5 ? &w[i + 1] : NULL;
		w[i].sg_list = &sge;
		w[i].num_sge = 1;
		w[i].opcode = IBV_WR_RDMA_WRITE;
		w[i].send_flags = i == 0 ? IBV_SEND_SIGNALED : 0; /* an error is reported without being asked for */
		w[i].wr.rdma.remote_addr = vt_b.info.addr;
		w[i].wr.rdma.rkey = i == 2 ? 0x5a5a5a5a : vt_b.info.rkey;
	}
	vt_require(ibv_post_send(a->qp, w, &bad) == 0, "posting");
	static const struct { uint64_t id; int status; } want[] = {
		{ 0, IBV_WC_SUCCESS }, { 2, IBV_WC_REM_ACCESS_ERR }, { 3, IBV_WC_WR_FLUSH_ERR }, { 4, IBV_WC_WR_FLUSH_ERR },
		{ 5, IBV_WC_WR_FLUSH_ERR } };
	struct ibv_wc wc[8];
	int n = vt_cqes(&vt_a, 0, 5, 3000, wc);
	vt_check(n == 5, "%d of 5 send completions", n);
	for (int i = 0; i < n; i++)
		vt_check(wc[i].wr_id == want[i].id && (int)wc[i].status == want[i].status, "send completion %d: expected %s of %" PRIu64
			 ", got %s of %" PRIu64, i, vt_wc_name(want[i].status), want[i].id, vt_wc_name((int)wc[i].status), wc[i].wr_id);
	n = vt_cqes(&vt_a, 1, 4, 3000, wc);
	vt_check(n == 4, "%d of 4 receives flushed at the initiator", n);
	for (int i = 0; i < n; i++)
		vt_check(wc[i].wr_id == 100 + (uint64_t)i && wc[i].status == IBV_WC_WR_FLUSH_ERR, "flush %d names %" PRIu64, i, wc[i].wr_id);
	n = vt_cqes(&vt_b, 1, 1, 3000, wc);
	vt_check(n == 1 && wc[0].wr_id == 50 && wc[0].status == IBV_WC_WR_FLUSH_ERR, "the responder's receive is not flushed");
	vt_check(vt_cqes(&vt_a, 0, 1, 5, wc) == 0, "more send completions than requests");
	vt_teardown();
}

/* One CQ for both queues, in time's order: the success before the fault, the fault, and only then what it flushes. */
static void flush_after_cause(void)
{
	struct vt_cfg a = vt_cfg_default(VT_RC), b = a;
	a.one_cq = b.one_cq = 1;
	b.responder = 1;
	vt_pair(&a, &b);
	for (uint64_t i = 0; i < 3; i++)
		vt_recv(&vt_a, 100 + i, vt_a.info.addr + VT_RECV_AT, 64, vt_a.info.lkey);
	recv_one(50);
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_RDMA_WRITE, 8);
	for (int i = 0; i < 4; i++) {
		w.wr_id = (uint64_t)i;
		w.flags = IBV_SEND_SIGNALED;
		w.rkey = i == 1 ? 0x5a5a5a5a : vt_b.info.rkey;
		vt_send(&vt_a, &w);
	}
	struct ibv_wc wc[8];
	vt_sleep_ms(100); /* all of it waits to be polled */
	int n = vt_cqes(&vt_a, 0, 7, 3000, wc);
	vt_check(n == 7, "%d of 7 completions", n);
	vt_check(n > 0 && wc[0].wr_id == 0 && wc[0].status == IBV_WC_SUCCESS, "first: %s of %" PRIu64,
		vt_wc_name((int)wc[0].status), wc[0].wr_id);
	vt_check(n > 1 && wc[1].wr_id == 1 && wc[1].status == IBV_WC_REM_ACCESS_ERR, "second: %s of %" PRIu64,
		vt_wc_name((int)wc[1].status), wc[1].wr_id);
	uint64_t sends = 2, receives = 100;
	for (int i = 2; i < n; i++) {
		uint64_t *next = wc[i].wr_id < 100 ? &sends : &receives;
		vt_check(wc[i].wr_id == *next && wc[i].status == IBV_WC_WR_FLUSH_ERR, "completion %d: %s of %" PRIu64, i,
			vt_wc_name((int)wc[i].status), wc[i].wr_id);
		++*next;
	}
	n = vt_cqes(&vt_b, 0, 1, 3000, wc);
	vt_check(n == 1 && wc[0].wr_id == 50 && wc[0].status == IBV_WC_WR_FLUSH_ERR, "the responder's receive is not flushed");
	vt_teardown();
}

static void modify_to_err(void)
{
	static const enum vt_type types[] = { VT_RC, VT_UC, VT_UD };
	for (size_t t = 0; t < VT_ARRAY(types); t++) {
		ready(types[t], 14, 7, 7, 26);
		struct ibv_wc wc[8];
		for (uint64_t i = 0; i < 3; i++)
			vt_recv(&vt_a, 10 + i, vt_a.info.addr + VT_RECV_AT, 64, vt_a.info.lkey);
		unsigned sends = types[t] == VT_RC ? 3 : 0; /* RC ones wait for a receive; the others do not wait */
		for (uint64_t i = 0; i < sends; i++)
			post(IBV_WR_SEND, 20 + i, 0);
		vt_check(vt_modify(&vt_a, IBV_QPS_ERR) == 0, "modify to ERR");
		int n = vt_cqes(&vt_a, 1, 3, 2000, wc);
		vt_check(n == 3, "type %d: %d of 3 receives flushed", (int)types[t], n);
		for (int i = 0; i < n; i++)
			vt_check(wc[i].status == IBV_WC_WR_FLUSH_ERR && wc[i].wr_id == 10 + (uint64_t)i && wc[i].qp_num == vt_a.info.qpn,
				 "type %d: receive %d: %s of %" PRIu64, (int)types[t], i, vt_wc_name((int)wc[i].status), wc[i].wr_id);
		n = vt_cqes(&vt_a, 0, (int)sends, 2000, wc);
		vt_check(n == (int)sends, "type %d: %d of %u sends flushed", (int)types[t], n, sends);
		for (int i = 0; i < n; i++)
			vt_check(wc[i].status == IBV_WC_WR_FLUSH_ERR && wc[i].wr_id == 20 + (uint64_t)i, "send %d: %s of %" PRIu64, i,
				 vt_wc_name((int)wc[i].status), wc[i].wr_id);
	}
	vt_teardown();
}

/* 10.3.1.1: in RESET the queues are empty and nothing outstanding completes; the QP can be used again. */
static void modify_to_reset(void)
{
	ready(VT_RC, 14, 7, 7, 26);
	struct ibv_wc wc[4];
	vt_recv(&vt_a, 10, vt_a.info.addr + VT_RECV_AT, 64, vt_a.info.lkey);
	post(IBV_WR_SEND, 20, IBV_SEND_SIGNALED);
	vt_check(vt_modify(&vt_a, IBV_QPS_RESET) == 0, "modify to RESET");
	vt_check(vt_cqes(&vt_a, 0, 1, 20, wc) == 0, "a send of before RESET completed");
	vt_check(vt_cqes(&vt_a, 1, 1, 5, wc) == 0, "a receive of before RESET completed");
	vt_check(vt_modify(&vt_b, IBV_QPS_RESET) == 0, "modify to RESET");
	vt_check(!vt_connect(&vt_b, &vt_a, IBV_QPS_RTS) && !vt_connect(&vt_a, &vt_b, IBV_QPS_RTS), "connecting again");
	recv_one(30);
	post(IBV_WR_SEND, 21, IBV_SEND_SIGNALED);
	vt_check(wait_status(3000) == IBV_WC_SUCCESS, "the QP does not work after RESET");
	vt_check(vt_cqes(&vt_b, 1, 1, 2000, wc) == 1 && wc[0].wr_id == 30, "the receive after RESET");
	vt_teardown();
}

/* 10.3.1.6: in SQE the send queue flushes, the receive queue works, RTS may be entered again. */
static void sqe(void)
{
	static const enum vt_type types[] = { VT_UD, VT_UC };
	for (size_t t = 0; t < VT_ARRAY(types); t++) {
		ready(types[t], 14, 7, 7, 12);
		struct ibv_wc wc[4];
		struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_SEND, 8);
		w.sge[0].lkey = 0x5a5a5a5a;
		vt_send(&vt_a, &w);
		int status = wait_status(2000);
		vt_check(status == IBV_WC_LOC_PROT_ERR, "expected LOC_PROT_ERR, got %s", vt_wc_name(status));
		vt_require(vt_state(&vt_a) == IBV_QPS_SQE, "expected SQE, got %s", vt_state_name(vt_state(&vt_a)));
		vt_check(post(IBV_WR_SEND, 3, 0) == 0, "post_send in SQE is refused");
		status = wait_status(2000);
		vt_check(status == IBV_WC_WR_FLUSH_ERR, "a send in SQE: expected WR_FLUSH_ERR, got %s", vt_wc_name(status));
		vt_recv(&vt_a, 8, vt_a.info.addr + VT_RECV_AT, 128, vt_a.info.lkey);
		struct vt_wr back = vt_wr_to(&vt_b, &vt_a, IBV_WR_SEND, 8);
		vt_send(&vt_b, &back);
		vt_check(vt_cqes(&vt_a, 1, 1, 2000, wc) == 1 && wc[0].status == IBV_WC_SUCCESS, "a QP in SQE does not receive");
		int rc = vt_modify(&vt_a, IBV_QPS_RTS);
		vt_check(rc == 0, "SQE to RTS: %s", vt_errno_name(rc));
		vt_recv(&vt_b, 9, vt_b.info.addr + VT_RECV_AT, 128, vt_b.info.lkey);
		post(IBV_WR_SEND, 4, IBV_SEND_SIGNALED);
		vt_check(wait_status(2000) == IBV_WC_SUCCESS, "the QP does not send after SQE to RTS");
		vt_check(vt_cqes(&vt_b, 1, 1, 2000, wc) == 1, "nothing arrived after SQE to RTS");
	}
	vt_teardown();
}

static void last_wqe(void)
{
	ready(VT_RC_SRQ, 14, 7, 7, 12);
	int ev[8];
	vt_check(vt_modify(&vt_b, IBV_QPS_ERR) == 0, "modify to ERR");
	int n = vt_events(&vt_b, 2000, ev, 8);
	vt_check(n == 1 && ev[0] == IBV_EVENT_QP_LAST_WQE_REACHED, "expected last WQE reached, got %d events, %s", n,
		 vt_event_name(n ? ev[0] : -1));
	vt_teardown();
}

/* Receives of an SRQ are taken in the order of posting (10.2.9.3 leaves it open; ConnectX is FIFO for one QP). */
static void srq_order(void)
{
	ready(VT_RC_SRQ, 14, 7, 7, 12);
	struct ibv_wc wc[16];
	for (uint64_t i = 0; i < 12; i++)
		recv_one(i);
	for (uint64_t i = 0; i < 12; i++)
		post(IBV_WR_SEND, i, IBV_SEND_SIGNALED);
	int n = vt_cqes(&vt_b, 1, 12, 3000, wc);
	vt_check(n == 12, "%d of 12 receives", n);
	for (int i = 0; i < n; i++)
		vt_check(wc[i].wr_id == (uint64_t)i && wc[i].qp_num == vt_b.info.qpn, "receive %d is %" PRIu64, i, wc[i].wr_id);
	vt_teardown();
}

/* Unsignalled requests complete silently and in order with the signalled one after them. */
static void unsignalled(void)
{
	ready(VT_RC, 14, 7, 7, 12);
	struct ibv_wc wc[4];
	for (uint64_t round = 0; round < 40; round++) {
		for (uint64_t i = 0; i < 8; i++) {
			struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_RDMA_WRITE, 8);
			w.flags = i == 7 ? IBV_SEND_SIGNALED : 0;
			w.wr_id = round * 8 + i;
			w.raddr += 8 * i;
			vt_simple(&vt_a, VT_POKE, 0, (int64_t)(w.wr_id + 1000), 0);
			w.flags |= IBV_SEND_INLINE;
			vt_require(vt_send(&vt_a, &w) == 0, "round %" PRIu64 ": the queue is full though everything completed", round);
		}
		vt_require(vt_cqes(&vt_a, 0, 1, 2000, wc) == 1 && wc[0].wr_id == round * 8 + 7, "round %" PRIu64, round);
		for (uint64_t i = 0; i < 8; i++)
			vt_check(vt_peek(&vt_b, 8 * i) == round * 8 + i + 1000, "a write of before the completion is not there");
	}
	vt_check(vt_cqes(&vt_a, 0, 1, 5, wc) == 0, "an unsignalled request completed");
	vt_teardown();
}

/* 10.8.3.3: a fenced request sees what the reads and atomics before it brought; sq_sig_all signals every request. */
static void fence(void)
{
	struct vt_cfg a = vt_cfg_default(VT_RC), b = a;
	a.sq_sig_all = 1;
	b.responder = 1;
	vt_pair(&a, &b);
	for (int64_t round = 0; round < 50; round++) {
		struct vt_wr atomic = vt_wr_to(&vt_a, &vt_b, IBV_WR_ATOMIC_FETCH_AND_ADD, 8), read = vt_wr_to(&vt_a, &vt_b,
			IBV_WR_RDMA_READ, 8);
		struct vt_wr tell = vt_wr_to(&vt_a, &vt_b, IBV_WR_SEND, 16);
		struct ibv_wc wc[3];
		vt_simple(&vt_b, VT_POKE, 0, 1000 + round, 0);
		vt_simple(&vt_b, VT_POKE, 64, 2000 + round, 0);
		recv_one((uint64_t)round);
		atomic.compare_add = 1;
		read.raddr += 64;
		read.sge[0].addr += 8;
		atomic.flags = read.flags = 0;
		tell.flags = IBV_SEND_FENCE;
		vt_require(!vt_send(&vt_a, &atomic) && !vt_send(&vt_a, &read) && !vt_send(&vt_a, &tell), "posting");
		int n = vt_cqes(&vt_a, 0, 3, 3000, wc);
		vt_require(n == 3 && wc[2].status == IBV_WC_SUCCESS, "sq_sig_all: %d of 3 completions", n);
		vt_require(vt_cqes(&vt_b, 1, 1, 2000, wc) == 1, "the receive");
		uint64_t one = vt_peek(&vt_b, VT_RECV_AT), two = vt_peek(&vt_b, VT_RECV_AT + 8);
		vt_check(one == 1000 + (uint64_t)round && two == 2000 + (uint64_t)round,
			"the fenced send carries %" PRIu64 " and %" PRIu64, one, two);
	}
	vt_teardown();
}

static void xrc_srq_gone(void)
{
	ready(VT_XRC, 14, 7, 0, 12);
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_SEND, 8);
	recv_one(1);
	w.srqn ^= 0x5a5a;
	vt_send(&vt_a, &w);
	int status = wait_status(3000);
	/* Annex A14: an XRC SRQ number that is not valid in the domain is an invalid request; nothing is delivered. */
	vt_check(status == IBV_WC_REM_INV_REQ_ERR, "unknown XRC SRQ: expected REM_INV_REQ_ERR, got %s", vt_wc_name(status));
	struct ibv_wc wc;
	vt_check(vt_cqes(&vt_b, 1, 1, 5, &wc) == 0, "a send to an unknown SRQ was delivered");
	vt_teardown();
}

/* A requester that may have no read outstanding can post none (ConnectX: local QP operation error). */
static void no_rd_atomic(void)
{
	struct vt_cfg a = vt_cfg_default(VT_RC), b = a;
	a.max_rd = 0;
	b.responder = 1;
	vt_pair(&a, &b);
	int rc = post(IBV_WR_RDMA_READ, 1, IBV_SEND_SIGNALED);
	if (rc == EINVAL) {
		vt_check(vt_state(&vt_a) == IBV_QPS_RTS, "a refused read moved the QP");
	} else {
		int status = wait_status(3000);
		vt_check(rc == 0 && status == IBV_WC_LOC_QP_OP_ERR, "expected EINVAL or LOC_QP_OP_ERR, got %s, %s", vt_errno_name(rc),
			 vt_wc_name(status));
	}
	vt_teardown();
}

/* More than max_msg_sz (2^31) in one message is a local length error. The null region lends the length. */
static void too_long(void)
{
	ready(VT_RC, 14, 7, 7, 12);
	struct vt_side *a = vt_a.local;
	struct ibv_mr *null_mr = ibv_alloc_null_mr(a->pd);
	vt_require(null_mr, "ibv_alloc_null_mr: %s", strerror(errno));
	struct ibv_sge sge[2] = { { 0, 0x7fffffff, null_mr->lkey }, { 0, 16, null_mr->lkey } };
	struct ibv_send_wr w = { .sg_list = sge, .num_sge = 2, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED }, *bad;
	w.wr.rdma.remote_addr = vt_b.info.addr;
	w.wr.rdma.rkey = vt_b.info.rkey;
	int rc = ibv_post_send(a->qp, &w, &bad), status = -1;
	if (!rc)
		status = wait_status(5000);
	vt_check(rc == 0 && status == IBV_WC_LOC_LEN_ERR, "expected LOC_LEN_ERR, got %s, %s", vt_errno_name(rc), vt_wc_name(status));
	vt_check(vt_peek(&vt_b, 0) == 0xbbbbbbbbbbbbbbbbull, "a message that is too long was written");
	ibv_dereg_mr(null_mr);
	vt_teardown();
}

/* When dereg_mr returns nobody touches the memory any more, however busy the peer is (design decision 3). */
static void revoke(void)
{
	for (int round = 0; round < 20; round++) {
		struct vt_cfg a = vt_cfg_default(VT_RC), b = a;
		a.sq_depth = 64;
		b.responder = 1;
		vt_pair(&a, &b);
		struct vt_info mr = vt_reg(&vt_b, 1, false, VT_ACCESS_ALL, 0, VT_RECV_AT);
		for (int i = 0; i < 32; i++) {
			struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_RDMA_WRITE, 120 * 1024);
			w.rkey = mr.rkey;
			w.wr_id = (uint64_t)i;
			vt_require(vt_send(&vt_a, &w) == 0, "posting");
		}
		vt_require(vt_simple(&vt_b, VT_DEREG, 1, 0, 0) == 0, "ibv_dereg_mr under load");
		vt_simple(&vt_b, VT_FILL, 0, VT_RECV_AT, 0xcc);
		struct ibv_wc wc[VT_MAX_WC];
		int n = vt_cqes(&vt_a, 0, 32, 10000, wc), phase = 0;
		vt_require(n == 32, "%d of 32 writes completed", n);
		for (int i = 0; i < n; i++) {
			int want = phase == 0 ? IBV_WC_SUCCESS : IBV_WC_WR_FLUSH_ERR;
			if (phase == 0 && wc[i].status == IBV_WC_REM_ACCESS_ERR)
				phase = 1;
			else
				vt_check((int)wc[i].status == want, "write %d: expected %s, got %s", i, vt_wc_name(want),
					vt_wc_name((int)wc[i].status));
		}
		for (uint64_t at = 0; at < VT_RECV_AT; at += 4096 - 8)
			vt_require(vt_peek(&vt_b, at) == 0xccccccccccccccccull, "memory changed after ibv_dereg_mr returned");
		vt_teardown();
	}
}

/* A receive with a first piece of no length, whose key is nobody's and is not looked at (IBA 9.7.4.1.5). */
static void recv_with_nothing_first(uint64_t addr, uint32_t len, uint32_t lkey)
{
	struct vt_req r = { .op = VT_RECV, .wr = { .wr_id = 3, .nsge = 2, .sge = { { addr, 0, 0xdead00 }, { addr, len, lkey } } } };
	struct vt_rep rep;
	vt_do(&vt_b, &r, &rep);
	vt_check(rep.rc == 0, "posting a receive: %s", vt_errno_name(rep.rc));
}

/* A receive may be longer than its region: adapters hold against the key what they store, and only that. */
static void overhang(void)
{
	static const enum vt_type types[] = { VT_RC, VT_RC_SRQ, VT_UC, VT_UD, VT_XRC };
	static const struct { uint32_t region, message; } sizes[] = { { 4096, 60 }, { 100000, 96000 } };
	for (size_t t = 0; t < VT_ARRAY(types); t++)
		for (size_t i = 0; i < VT_ARRAY(sizes); i++) {
			uint32_t grh = types[t] == VT_UD ? VT_GRH : 0, region = sizes[i].region, len = sizes[i].message;
			if (grh && len > 1000)
				continue;
			ready(types[t], 14, 7, 7, 12);
			struct vt_info mr = vt_reg(&vt_b, 1, false, IBV_ACCESS_LOCAL_WRITE, VT_RECV_AT, region);
			uint64_t at = VT_RECV_AT + region - len - grh;
			struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_SEND, len);
			struct ibv_wc wc;
			recv_with_nothing_first(vt_b.info.addr + at, len + grh + 1000, mr.lkey);
			w.nsge = 2;
			w.sge[1] = w.sge[0];
			w.sge[0] = (struct ibv_sge){ vt_a.info.addr, 0, 0xdead00 };
			vt_require(vt_send(&vt_a, &w) == 0, "posting");
			int status = wait_status(3000), n = vt_cqes(&vt_b, 1, 1, 3000, &wc);
			vt_check(status == IBV_WC_SUCCESS && n == 1 && wc.status == IBV_WC_SUCCESS && wc.byte_len == len + grh,
				"%u bytes up to the end of the region: %s, %s", len, vt_wc_name(status), vt_wc_name(n == 1 ? (int)wc.status : -1));
			vt_check(vt_peek(&vt_b, at + grh + len - 8) == 0xaaaaaaaaaaaaaaaaull, "the data are not there");
			vt_check(vt_peek(&vt_b, at + grh + len) == 0xbbbbbbbbbbbbbbbbull, "there is more than was sent");
			/* One byte further on it does not fit any more. */
			recv_with_nothing_first(vt_b.info.addr + at + 1, len + grh + 1000, mr.lkey);
			vt_require(vt_send(&vt_a, &w) == 0, "posting");
			bool unreliable = types[t] == VT_UD || types[t] == VT_UC;
			status = wait_status(3000);
			n = vt_cqes(&vt_b, 1, 1, 3000, &wc);
			vt_check(status == (unreliable ? IBV_WC_SUCCESS : IBV_WC_REM_OP_ERR), "beyond the region: %s", vt_wc_name(status));
			vt_check(n == 1 && wc.status == IBV_WC_LOC_PROT_ERR, "the receive beyond the region: %s",
				vt_wc_name(n == 1 ? (int)wc.status : -1));
			vt_check(vt_peek(&vt_b, at + grh + len) == 0xbbbbbbbbbbbbbbbbull, "memory behind the region was written");
			vt_teardown();
		}
}

/* Each kind of Flush is a right of the region; then of the QP (IBA annex A19). */
static void flush_kinds(void)
{
	static const enum vt_type types[] = { VT_RC, VT_XRC };
	const uint32_t both = VT_ACCESS_FLUSH_GLOBAL | VT_ACCESS_FLUSH_PERSISTENT;
	const struct { uint32_t kind, qp; int mr, want; } rows[] = {
		{ VT_FLUSH_GLOBAL, both, VT_ACCESS_FLUSH_GLOBAL, IBV_WC_SUCCESS },
		{ VT_FLUSH_GLOBAL, both, 0, IBV_WC_REM_ACCESS_ERR },
		{ VT_FLUSH_PERSISTENT, both, VT_ACCESS_FLUSH_GLOBAL, IBV_WC_REM_ACCESS_ERR },
		{ VT_FLUSH_GLOBAL | VT_FLUSH_PERSISTENT, both, VT_ACCESS_FLUSH_GLOBAL, IBV_WC_REM_ACCESS_ERR },
		{ VT_FLUSH_GLOBAL, VT_ACCESS_FLUSH_PERSISTENT, VT_ACCESS_FLUSH_GLOBAL, IBV_WC_REM_INV_REQ_ERR },
	};
	for (size_t t = 0; t < VT_ARRAY(types); t++)
		for (size_t i = 0; i < VT_ARRAY(rows); i++) {
			struct vt_cfg a = vt_cfg_default(types[t]), b = a;
			a.send_ops = VT_QP_EX_WITH_FLUSH;
			b.responder = 1;
			b.qp_access |= rows[i].qp;
			vt_pair(&a, &b);
			struct vt_wr w = vt_wr_to(&vt_a, &vt_b, VT_OP_FLUSH, 8);
			w.rkey = vt_reg(&vt_b, 1, false, VT_ACCESS_ALL | rows[i].mr, 0, 4096).rkey;
			w.flush_kind = rows[i].kind;
			w.swap = 64;
			w.use_ex = 1;
			vt_require(vt_send(&vt_a, &w) == 0, "posting");
			int status = wait_status(3000);
			vt_check(status == rows[i].want, "kind %u, QP 0x%x, region 0x%x: expected %s, got %s", rows[i].kind, rows[i].qp,
				(unsigned)rows[i].mr, vt_wc_name(rows[i].want), vt_wc_name(status));
			vt_teardown();
		}
}

/* As many reads at once as the device says, in both roles. */
static void many_reads(void)
{
	vt_ends_open();
	struct vt_cfg a = vt_cfg_default(VT_RC), b = a;
	vt_setup(&vt_a, &a);
	const struct ibv_device_attr *attr = &vt_a.local->dev.attr;
	int most = attr->max_qp_rd_atom, n = 2 * most;
	vt_check(most >= 128 && attr->max_qp_init_rd_atom >= 128, "max_qp_rd_atom %d, max_qp_init_rd_atom %d", most,
		attr->max_qp_init_rd_atom);
	vt_check(attr->max_res_rd_atom >= most * 128, "max_res_rd_atom %d", attr->max_res_rd_atom);
	vt_teardown();
	a.max_rd = b.max_rd = a.max_dest_rd = b.max_dest_rd = (uint32_t)most;
	a.sq_depth = (uint32_t)n;
	b.responder = 1;
	vt_pair(&a, &b);
	for (int i = 0; i < n; i++) {
		struct vt_wr w = vt_wr_to(&vt_a, &vt_b, i % 4 ? IBV_WR_RDMA_READ : IBV_WR_ATOMIC_FETCH_AND_ADD, i % 4 ? 5000 : 8);
		w.wr_id = (uint64_t)i;
		w.raddr += i % 4 ? 8 : 0;
		w.sge[0].addr += i % 4 ? 8 : 0;
		w.compare_add = 1;
		vt_require(vt_send(&vt_a, &w) == 0, "posting read %d", i);
	}
	for (int i = 0; i < n; i++) {
		struct ibv_wc wc;
		vt_require(vt_cqes(&vt_a, 0, 1, 10000, &wc) == 1, "read %d of %d has not completed", i, n);
		vt_require(wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)i, "read %d: %s", i, vt_wc_name((int)wc.status));
	}
	vt_check(vt_peek(&vt_b, 0) == 0xbbbbbbbbbbbbbbbbull + (uint64_t)((n + 3) / 4), "atomics among the reads");
	vt_teardown();
}

static void psns(struct vt_end *e, uint32_t *sq, uint32_t *rq)
{
	struct vt_req r = { .op = VT_PSNS };
	struct vt_rep rep;
	vt_do(e, &r, &rep);
	vt_check(rep.rc == 0, "ibv_query_qp: %s", vt_errno_name(rep.rc));
	*sq = (uint32_t)rep.arg[0];
	*rq = (uint32_t)rep.arg[1];
}

/* A queried QP says which PSN comes next, not which was the first, in both directions. */
static void next_psns(void)
{
	ready(VT_RC, 14, 7, 7, 12);
	uint32_t mtu = 128u << vt_cfg_default(VT_RC).mtu, first = vt_a.info.psn, sq, rq;
	static const uint32_t lengths[] = { 0, 8, 20000 };
	uint32_t want = first;
	psns(&vt_a, &sq, &rq);
	vt_check(sq == first && rq == vt_b.info.psn, "before any request: 0x%x, 0x%x", sq, rq);
	for (int op = IBV_WR_RDMA_WRITE; op <= IBV_WR_RDMA_READ; op += IBV_WR_RDMA_READ - IBV_WR_RDMA_WRITE)
		for (size_t i = 0; i < VT_ARRAY(lengths); i++) {
			struct vt_wr w = vt_wr_to(&vt_a, &vt_b, op, lengths[i]);
			vt_require(vt_send(&vt_a, &w) == 0 && wait_status(3000) == IBV_WC_SUCCESS, "a request");
			want = (want + (lengths[i] ? (lengths[i] + mtu - 1) / mtu : 1)) & 0xffffff;
			psns(&vt_a, &sq, &rq);
			vt_check(sq == want && rq == vt_b.info.psn, "the sender after %u bytes: sq_psn 0x%x, want 0x%x; rq_psn 0x%x", lengths[i], sq,
				want, rq);
			psns(&vt_b, &sq, &rq);
			vt_check(sq == vt_b.info.psn && rq == want, "the receiver after %u bytes: rq_psn 0x%x, want 0x%x; sq_psn 0x%x",
				lengths[i], rq, want, sq);
		}
	/* What is refused for a while has not been taken, however often it is tried. */
	post(IBV_WR_SEND, 1, IBV_SEND_SIGNALED);
	vt_check(wait_status(50) == -1, "completed without a receive");
	psns(&vt_b, &sq, &rq);
	vt_check(rq == want, "the receiver without a receive: rq_psn 0x%x, want 0x%x", rq, want);
	recv_one(1);
	vt_require(wait_status(3000) == IBV_WC_SUCCESS, "a Send");
	want = (want + 1) & 0xffffff;
	psns(&vt_b, &sq, &rq);
	vt_check(rq == want, "the receiver with one: rq_psn 0x%x, want 0x%x", rq, want);
	vt_check(vt_modify(&vt_a, IBV_QPS_ERR) == 0, "to ERR");
	psns(&vt_a, &sq, &rq);
	vt_check(sq == want, "sq_psn in ERR: 0x%x, want 0x%x", sq, want);
	vt_teardown();
}

/*
 * A QP whose sq_psn is not the rq_psn of its peer is heard by nobody. PSNs of UC only tell what was lost between two
 * messages (IBA 9.8.2.2); those shortly before the expected one are late packets.
 */
static void other_psn(void)
{
	static const int off[] = { 1, 1000, 1 << 22, -1000 };
	for (size_t i = 0; i < VT_ARRAY(off); i++)
		for (int uc = 0; uc < 1 + (off[i] > 0); uc++) {
			struct vt_cfg a = vt_cfg_default(uc ? VT_UC : VT_RC);
			a.timeout = 12;
			a.retry_cnt = 1;
			a.psn_off = off[i];
			struct vt_cfg b = vt_cfg_default(uc ? VT_UC : VT_RC);
			b.responder = 1;
			vt_pair(&a, &b);
			recv_one(1);
			post(IBV_WR_SEND, 1, IBV_SEND_SIGNALED);
			int status = wait_status(3000), want = uc ? IBV_WC_SUCCESS : IBV_WC_RETRY_EXC_ERR;
			vt_check(status == want, "%s, sq_psn %+d: %s", uc ? "UC" : "RC", off[i], vt_wc_name(status));
			struct ibv_wc wc;
			vt_check(vt_cqes(&vt_b, 1, 1, uc ? 1000 : 10, &wc) == uc, "%s, sq_psn %+d: the receiver", uc ? "UC" : "RC", off[i]);
			vt_teardown();
		}
}

/* An adapter receives for a process that has no CPU, also where the device needs that process for it (--two). */
static void datagrams_to_a_stopped_process(void)
{
	enum { DATAGRAMS = 8 };
	ready(VT_UD, 14, 7, 7, 12);
	struct ibv_wc wc[DATAGRAMS];
	for (uint64_t i = 0; i <= DATAGRAMS; i++)
		recv_one(i);
	post(IBV_WR_SEND, 0, IBV_SEND_SIGNALED);
	vt_require(wait_status(3000) == IBV_WC_SUCCESS && vt_cqes(&vt_b, 1, 1, 3000, wc) == 1, "the first datagram");
	int status;
	vt_require(vt_b.pid <= 0 || (kill(vt_b.pid, SIGSTOP) == 0 && waitpid(vt_b.pid, &status, WUNTRACED) == vt_b.pid), "SIGSTOP");
	for (uint64_t i = 1; i <= DATAGRAMS; i++) {
		post(IBV_WR_SEND, i, IBV_SEND_SIGNALED);
		vt_check(wait_status(3000) == IBV_WC_SUCCESS, "datagram %" PRIu64 " waits for the process", i);
	}
	if (vt_b.pid > 0) {
		/* A process that is never going to answer is waited for no longer than a second. */
		vt_sleep_ms(1500);
		kill(vt_b.pid, SIGCONT);
	}
	int n = vt_cqes(&vt_b, 1, DATAGRAMS, 5000, wc);
	vt_check(n == DATAGRAMS, "%d of %d datagrams", n, DATAGRAMS);
	vt_teardown();
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = {
		{ "retry_time", retry_time }, { "timeout_zero", timeout_zero }, { "late_peer", late_peer },
		{ "rnr_time", rnr_time }, { "rnr_recover", rnr_recover }, { "flush_order", flush_order },
		{ "flush_after_cause", flush_after_cause },
		{ "modify_to_err", modify_to_err }, { "modify_to_reset", modify_to_reset }, { "sqe", sqe },
		{ "last_wqe", last_wqe }, { "srq_order", srq_order }, { "unsignalled", unsignalled },
		{ "fence", fence }, { "xrc_srq_gone", xrc_srq_gone }, { "no_rd_atomic", no_rd_atomic }, { "too_long", too_long },
		{ "revoke", revoke }, { "overhang", overhang }, { "flush_kinds", flush_kinds }, { "many_reads", many_reads },
		{ "next_psns", next_psns }, { "other_psn", other_psn },
		{ "datagrams_to_a_stopped_process", datagrams_to_a_stopped_process },
	};
	return vt_main(argc, argv, cases, VT_ARRAY(cases));
}
