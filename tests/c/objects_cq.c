/* Completion queues: resizing, overrun, notification (one shot, solicited, edge-triggered, not blocking), counting of
 * acknowledgements, and the extended interface with all its fields. */
#include "vt.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

static struct vt_side *B(void) { return vt_b.local; }

/* Both sides connected, the responder's receive CQ replaced by `cq` made on its context before the QP. */
static void pair_on(struct ibv_cq **cq, int cqe, struct ibv_comp_channel **channel)
{
	struct vt_cfg a = vt_cfg_default(VT_RC), b = a;
	b.responder = 1;
	a.sq_depth = b.rq_depth = 64;
	vt_pair(&a, &b);
	*channel = ibv_create_comp_channel(B()->dev.ctx);
	vt_require(*channel, "ibv_create_comp_channel: %s", strerror(errno));
	*cq = ibv_create_cq(B()->dev.ctx, cqe, (void *)0x77, *channel, 0);
	vt_require(*cq, "ibv_create_cq: %s", strerror(errno));
	ibv_destroy_qp(B()->qp);
	struct ibv_qp_init_attr ia = { .send_cq = B()->scq, .recv_cq = *cq, .cap = { 64, 64, 4, 4, 64 }, .qp_type = IBV_QPT_RC };
	B()->qp = ibv_create_qp(B()->pd, &ia);
	vt_require(B()->qp, "ibv_create_qp: %s", strerror(errno));
	B()->self.qpn = vt_b.info.qpn = B()->qp->qp_num;
	B()->self.psn = vt_b.info.psn = 77;
	vt_require(vt_modify(&vt_a, IBV_QPS_RESET) == 0 && !vt_connect(&vt_b, &vt_a, IBV_QPS_RTS) && !vt_connect(&vt_a, &vt_b, IBV_QPS_RTS),
		   "connecting");
}

static void pair_off(struct ibv_cq *cq, struct ibv_comp_channel *channel)
{
	vt_check(ibv_destroy_qp(B()->qp) == 0, "ibv_destroy_qp");
	B()->qp = NULL;
	int rc = ibv_destroy_cq(cq);
	vt_check(rc == 0, "ibv_destroy_cq: %s", vt_errno_name(rc));
	vt_check(!channel || ibv_destroy_comp_channel(channel) == 0, "ibv_destroy_comp_channel");
	vt_teardown();
}

static void recv_n(int n)
{
	for (int i = 0; i < n; i++)
		vt_require(vt_recv(&vt_b, (uint64_t)i, vt_b.info.addr + VT_RECV_AT, 64, vt_b.info.lkey) == 0, "posting a receive");
}

static void send_one(unsigned flags)
{
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_SEND, 8);
	struct ibv_wc wc;
	w.flags = IBV_SEND_SIGNALED | flags;
	vt_require(vt_send(&vt_a, &w) == 0 && vt_cqes(&vt_a, 0, 1, 2000, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "a send");
}

static int event_within(struct ibv_comp_channel *ch, int ms)
{
	struct pollfd p = { .fd = ch->fd, .events = POLLIN };
	struct ibv_cq *cq;
	void *ctx;
	if (poll(&p, 1, ms) != 1)
		return 0;
	vt_require(ibv_get_cq_event(ch, &cq, &ctx) == 0, "ibv_get_cq_event: %s", strerror(errno));
	vt_check(ctx == (void *)0x77, "the event names another context");
	ibv_ack_cq_events(cq, 1);
	return 1;
}

static void arm(void)
{
	struct ibv_cq *cq;
	struct ibv_comp_channel *ch;
	struct ibv_wc wc[16];
	pair_on(&cq, 64, &ch);
	recv_n(15);
	send_one(0);
	vt_check(!event_within(ch, 20), "an event though the CQ was never armed");
	/* Arming with a completion already there gives no event; the next completion does (10.2.8.3). */
	vt_require(ibv_req_notify_cq(cq, 0) == 0, "ibv_req_notify_cq");
	vt_check(!event_within(ch, 20), "an event for a completion of before arming");
	send_one(0);
	vt_check(event_within(ch, 2000), "no event for a completion after arming");
	send_one(0);
	vt_check(!event_within(ch, 20), "a second event of one arming");
	vt_check(vt_poll(cq, wc, 3, 3000) == 3, "three completions are due");
	/* Who polls, arms and sleeps does not miss what comes in between (ConnectX; UCX relies on it). */
	send_one(0);
	vt_sleep_ms(20);
	vt_require(ibv_req_notify_cq(cq, 0) == 0, "ibv_req_notify_cq");
	vt_check(event_within(ch, 2000), "no event for what came between polling and arming");
	/* Nor are there two events for a completion that has raised one when the next is asked for. */
	vt_check(vt_poll(cq, wc, 1, 3000) == 1, "a completion is due");
	vt_require(ibv_req_notify_cq(cq, 0) == 0, "ibv_req_notify_cq");
	vt_check(ibv_poll_cq(cq, 1, wc) == 0, "a completion is not due");
	send_one(0);
	vt_require(ibv_req_notify_cq(cq, 0) == 0, "ibv_req_notify_cq");
	vt_check(event_within(ch, 2000) && !event_within(ch, 20), "not one event for one completion");
	/* Who arms after an event and polls then gets no second one for the same completion. */
	vt_require(ibv_req_notify_cq(cq, 0) == 0, "ibv_req_notify_cq");
	vt_check(!event_within(ch, 20), "an event for a completion that there has been one for");
	vt_check(vt_poll(cq, wc, 1, 3000) == 1, "a completion is due");
	send_one(0);
	vt_check(event_within(ch, 2000), "no event for a completion after arming");
	vt_check(vt_poll(cq, wc, 1, 3000) == 1, "a completion is due");
	/* Solicited only. */
	vt_require(ibv_req_notify_cq(cq, 1) == 0, "ibv_req_notify_cq");
	send_one(0);
	vt_check(!event_within(ch, 20), "an event for an unsolicited completion");
	send_one(IBV_SEND_SOLICITED);
	vt_check(event_within(ch, 2000), "no event for a solicited completion");
	/* Armed for the solicited, then for all: the wider one holds. Armed for all, then solicited: it stays wide (10.2.8.3). */
	vt_require(!ibv_req_notify_cq(cq, 1) && !ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
	send_one(0);
	vt_check(event_within(ch, 2000), "armed for all after solicited: no event");
	vt_require(!ibv_req_notify_cq(cq, 0) && !ibv_req_notify_cq(cq, 1), "ibv_req_notify_cq");
	send_one(0);
	vt_check(event_within(ch, 2000), "armed for solicited after all: no event");
	/* An error is solicited. */
	vt_require(ibv_req_notify_cq(cq, 1) == 0, "ibv_req_notify_cq");
	vt_modify(&vt_b, IBV_QPS_ERR);
	vt_check(event_within(ch, 2000), "no event for a flushed receive");
	pair_off(cq, ch);
}

/* Who sends learns that its message has gone before whoever gets it may answer, as on an adapter, where the acknowledgement
 * is on its way first: perftest takes the first event after a send for the send's. A loop of packets tells nothing of that. */
static void sender_first(void)
{
	const char *link = getenv("VERVAIN_LINK");
	bool in_packets = link && (!strcmp(link, "roce") || !strcmp(link, "window"));
	struct vt_cfg cfg = vt_cfg_default(VT_RC);
	vt_pair(&cfg, &cfg);
	struct ibv_comp_channel *ch = ibv_create_comp_channel(B()->dev.ctx);
	vt_require(ch, "ibv_create_comp_channel: %s", strerror(errno));
	struct ibv_cq *cq[2];
	for (int i = 0; i < 2; i++) {
		cq[i] = ibv_create_cq(B()->dev.ctx, 16, NULL, ch, 0);
		vt_require(cq[i], "ibv_create_cq: %s", strerror(errno));
	}
	for (int kind = 0; kind < 4; kind++) {
		ibv_destroy_qp(B()->qp);
		struct ibv_qp_init_attr ia = { .send_cq = cq[0], .recv_cq = cq[1], .cap = { 8, 8, 1, 1, 64 }, .qp_type = IBV_QPT_RC };
		B()->qp = ibv_create_qp(B()->pd, &ia);
		vt_require(B()->qp, "ibv_create_qp: %s", strerror(errno));
		B()->self.qpn = vt_b.info.qpn = B()->qp->qp_num;
		vt_require(!vt_connect(&vt_b, &vt_b, IBV_QPS_RTS), "connecting to itself");
		recv_n(2);
		/* Alone and last in a list, a message and a Write with immediate. */
		struct ibv_sge sge = { (uintptr_t)B()->buf, 8, B()->mr[0]->lkey };
		struct ibv_send_wr *bad, w = { .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED },
			write = { .next = &w, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };
		w.opcode = kind & 1 ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND;
		w.wr.rdma.remote_addr = write.wr.rdma.remote_addr = vt_b.info.addr + VT_RECV_AT;
		w.wr.rdma.rkey = write.wr.rdma.rkey = vt_b.info.rkey;
		vt_require(!ibv_req_notify_cq(cq[0], 0) && !ibv_req_notify_cq(cq[1], 0), "ibv_req_notify_cq");
		vt_require(ibv_post_send(B()->qp, kind & 2 ? &write : &w, &bad) == 0, "ibv_post_send");
		for (int i = 0; i < 2; i++) {
			struct ibv_cq *got;
			struct ibv_wc wc;
			void *ctx;
			vt_require(ibv_get_cq_event(ch, &got, &ctx) == 0, "ibv_get_cq_event: %s", strerror(errno));
			ibv_ack_cq_events(got, 1);
			vt_check(got == cq[i] || in_packets, "kind %d: event %d is the %s's", kind, i, got == cq[0] ? "sender" : "receiver");
			vt_check(ibv_poll_cq(got, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "kind %d: no completion", kind);
		}
	}
	ibv_destroy_qp(B()->qp);
	B()->qp = NULL;
	vt_check(!ibv_destroy_cq(cq[0]) && !ibv_destroy_cq(cq[1]) && !ibv_destroy_comp_channel(ch), "destroying");
	vt_teardown();
}

static void *blocked_get(void *arg)
{
	struct ibv_cq *cq;
	void *ctx;
	if (ibv_get_cq_event(arg, &cq, &ctx) == 0)
		ibv_ack_cq_events(cq, 1);
	return NULL;
}

static void channel_fd(void)
{
	struct ibv_cq *cq, *got;
	struct ibv_comp_channel *ch;
	void *ctx;
	pair_on(&cq, 64, &ch);
	recv_n(12);
	/* A blocked reader wakes. */
	pthread_t t;
	vt_require(ibv_req_notify_cq(cq, 0) == 0 && pthread_create(&t, NULL, blocked_get, ch) == 0, "a thread");
	vt_sleep_ms(20);
	send_one(0);
	vt_require(pthread_join(t, NULL) == 0, "joining");
	fcntl(ch->fd, F_SETFL, fcntl(ch->fd, F_GETFL) | O_NONBLOCK);
	errno = 0;
	vt_check(ibv_get_cq_event(ch, &got, &ctx) == -1 && errno == EAGAIN, "not blocking and empty: expected EAGAIN, got %s",
		vt_errno_name(errno));
	/* Edge-triggered: each event is an edge even when the one before was not read. */
	int ep = epoll_create1(0);
	struct epoll_event e = { .events = EPOLLIN | EPOLLET }, out;
	vt_require(ep >= 0 && epoll_ctl(ep, EPOLL_CTL_ADD, ch->fd, &e) == 0, "epoll");
	for (int i = 0; i < 3; i++) {
		vt_require(ibv_req_notify_cq(cq, 0) == 0, "ibv_req_notify_cq");
		send_one(0);
		vt_check(epoll_wait(ep, &out, 1, 2000) == 1, "edge %d did not come", i);
	}
	vt_check(epoll_wait(ep, &out, 1, 0) == 0, "an edge without an event");
	unsigned n = 0;
	while (ibv_get_cq_event(ch, &got, &ctx) == 0)
		n++;
	vt_check(n == 3, "%u of 3 events", n);
	close(ep);
	ibv_ack_cq_events(cq, n + 5); /* more than were got: destroying must not wait for ever (fio does this) */
	pair_off(cq, ch);
}

static struct ibv_cq *ack_me;
static void *late_ack(void *arg)
{
	vt_sleep_ms(60);
	*(uint64_t *)arg = vt_now_us();
	ibv_ack_cq_events(ack_me, 1);
	return NULL;
}

/* Destroying waits until every event that was got is acknowledged. */
static void ack_wait(void)
{
	struct ibv_cq *cq, *got;
	struct ibv_comp_channel *ch;
	void *ctx;
	uint64_t acked = 0;
	pthread_t t;
	pair_on(&cq, 64, &ch);
	recv_n(2);
	vt_require(ibv_req_notify_cq(cq, 0) == 0, "ibv_req_notify_cq");
	send_one(0);
	vt_require(ibv_get_cq_event(ch, &got, &ctx) == 0 && got == cq, "ibv_get_cq_event");
	vt_check(ibv_destroy_qp(B()->qp) == 0, "ibv_destroy_qp");
	B()->qp = NULL;
	ack_me = cq;
	vt_require(pthread_create(&t, NULL, late_ack, &acked) == 0, "a thread");
	vt_check(ibv_destroy_cq(cq) == 0, "ibv_destroy_cq");
	uint64_t done = vt_now_us();
	pthread_join(t, NULL);
	vt_check(acked && done >= acked, "ibv_destroy_cq did not wait for the acknowledgement");
	vt_check(ibv_destroy_comp_channel(ch) == 0, "ibv_destroy_comp_channel");
	vt_teardown();
}

static void resize(void)
{
	struct ibv_cq *cq;
	struct ibv_comp_channel *ch;
	struct ibv_wc wc[64];
	pair_on(&cq, 16, &ch);
	int before = cq->cqe;
	recv_n(12);
	for (int i = 0; i < 12; i++)
		send_one(0);
	int rc = ibv_resize_cq(cq, 5);
	vt_check(rc == EINVAL || (rc == 0 && cq->cqe >= 12), "smaller than what it holds: %s, cqe %d", vt_errno_name(rc), cq->cqe);
	rc = ibv_resize_cq(cq, before * 4);
	vt_check(rc == 0 && cq->cqe >= before * 4, "larger: %s, cqe %d", vt_errno_name(rc), cq->cqe);
	recv_n(40);
	for (int i = 0; i < 40; i++)
		send_one(0);
	int n = vt_poll(cq, wc, 52, 2000);
	vt_check(n == 52, "%d of 52 completions over a resize", n);
	for (int i = 0; i < n; i++)
		vt_check(wc[i].wr_id == (uint64_t)(i < 12 ? i : i - 12), "completion %d is of %" PRIu64, i, wc[i].wr_id);
	vt_check(ibv_resize_cq(cq, 0) == EINVAL, "resizing to 0");
	vt_check(ibv_resize_cq(cq, B()->dev.attr.max_cqe + 1) == EINVAL, "resizing beyond max_cqe");
	pair_off(cq, ch);
}

/* More completions than entries: the CQ is in error, its QPs too, and nothing is written outside (10.2.8.1, 11.6.3.1). */
static void overrun(void)
{
	struct ibv_cq *cq;
	struct ibv_comp_channel *ch;
	pair_on(&cq, 4, &ch);
	int room = cq->cqe, ev[8];
	vt_require(room < 60, "a CQ of 4 has %d entries", room);
	recv_n(room + 2);
	for (int i = 0; i < room + 2; i++) {
		struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_SEND, 8);
		vt_send(&vt_a, &w);
	}
	int n, cq_err = 0;
	while (!cq_err && (n = vt_events(&vt_b, 3000, ev, 8)) > 0)
		for (int i = 0; i < n; i++) {
			cq_err += ev[i] == IBV_EVENT_CQ_ERR;
			vt_check(ev[i] == IBV_EVENT_CQ_ERR || ev[i] == IBV_EVENT_QP_FATAL || ev[i] == IBV_EVENT_QP_REQ_ERR, "event %s",
				vt_event_name(ev[i]));
		}
	vt_check(cq_err == 1, "%d CQ error events after an overrun", cq_err);
	int state = vt_state(&vt_b);
	vt_check(state == IBV_QPS_ERR, "the QP of an overrun CQ is in %s", vt_state_name(state));
	pair_off(cq, ch);
}

#define WC_ALL (IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)

static void extended(void)
{
	struct vt_cfg a = vt_cfg_default(VT_RC), b = a;
	b.responder = 1;
	vt_pair(&a, &b);
	struct ibv_cq_init_attr_ex ca = { .cqe = 32, .cq_context = (void *)0x77, .wc_flags = WC_ALL };
	struct ibv_cq_ex *cx = ibv_create_cq_ex(B()->dev.ctx, &ca);
	vt_require(cx, "ibv_create_cq_ex with all fields: %s", strerror(errno));
	ibv_destroy_qp(B()->qp);
	struct ibv_qp_init_attr ia = { .send_cq = B()->scq, .recv_cq = ibv_cq_ex_to_cq(cx), .cap = { 8, 8, 1, 1, 0 },
		.qp_type = IBV_QPT_RC };
	B()->qp = ibv_create_qp(B()->pd, &ia);
	vt_require(B()->qp, "ibv_create_qp: %s", strerror(errno));
	B()->self.qpn = vt_b.info.qpn = B()->qp->qp_num;
	vt_require(!vt_modify(&vt_a, IBV_QPS_RESET) && !vt_connect(&vt_b, &vt_a, IBV_QPS_RTS) && !vt_connect(&vt_a, &vt_b,
		IBV_QPS_RTS), "connecting");
	struct ibv_poll_cq_attr pa = { 0 };
	vt_check(ibv_start_poll(cx, &pa) == ENOENT, "an empty CQ: expected ENOENT");
	recv_n(4);
	struct timespec t0, t1;
	clock_gettime(CLOCK_REALTIME, &t0);
	for (int i = 0; i < 3; i++) {
		struct vt_wr w = vt_wr_to(&vt_a, &vt_b, i == 1 ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, 8 + (uint32_t)i);
		struct ibv_wc wc;
		vt_require(vt_send(&vt_a, &w) == 0 && vt_cqes(&vt_a, 0, 1, 2000, &wc) == 1, "a send");
	}
	clock_gettime(CLOCK_REALTIME, &t1);
	uint64_t last_ts = 0, from = (uint64_t)t0.tv_sec * 1000000000u + (uint64_t)t0.tv_nsec,
		to = (uint64_t)t1.tv_sec * 1000000000u + (uint64_t)t1.tv_nsec;
	int rc = ibv_start_poll(cx, &pa), n = 0;
	for (; rc == 0; rc = ibv_next_poll(cx), n++) {
		vt_check(cx->wr_id == (uint64_t)n && cx->status == IBV_WC_SUCCESS, "completion %d: %s of %" PRIu64, n,
			vt_wc_name((int)cx->status), cx->wr_id);
		vt_check(ibv_wc_read_opcode(cx) == IBV_WC_RECV, "opcode %d", (int)ibv_wc_read_opcode(cx));
		vt_check(ibv_wc_read_byte_len(cx) == 8 + (uint32_t)n, "byte_len %u", ibv_wc_read_byte_len(cx));
		vt_check(ibv_wc_read_qp_num(cx) == vt_b.info.qpn, "qp_num");
		vt_check(!!(ibv_wc_read_wc_flags(cx) & IBV_WC_WITH_IMM) == (n == 1), "flags 0x%x", ibv_wc_read_wc_flags(cx));
		vt_check(n != 1 || ntohl(ibv_wc_read_imm_data(cx)) == 0x12345678, "immediate data");
		vt_check(ibv_wc_read_vendor_err(cx) == 0, "vendor_err");
		ibv_wc_read_src_qp(cx);
		ibv_wc_read_slid(cx);
		ibv_wc_read_sl(cx);
		ibv_wc_read_dlid_path_bits(cx);
		uint64_t ts = ibv_wc_read_completion_ts(cx), wall = ibv_wc_read_completion_wallclock_ns(cx);
		vt_check(ts >= last_ts && ts != 0, "timestamps run backwards");
		vt_check(wall + 5000000 >= from && wall <= to + 5000000, "wall clock %" PRIu64 " outside [%" PRIu64 ", %" PRIu64 "]",
			wall, from, to);
		last_ts = ts;
	}
	vt_check(rc == ENOENT && n == 3, "polling ended with %s after %d of 3", vt_errno_name(rc), n);
	ibv_end_poll(cx);
	/* The plain interface works on it too. */
	send_one(0);
	struct ibv_wc wc;
	vt_check(vt_poll(ibv_cq_ex_to_cq(cx), &wc, 1, 2000) == 1 && wc.wr_id == 3, "ibv_poll_cq on an extended CQ");
	struct ibv_modify_cq_attr m = { .attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = { 4, 100 } };
	rc = ibv_modify_cq(ibv_cq_ex_to_cq(cx), &m);
	vt_check(rc == 0 || rc == EOPNOTSUPP, "ibv_modify_cq: %s", vt_errno_name(rc));
	ibv_destroy_qp(B()->qp);
	B()->qp = NULL;
	vt_check(ibv_destroy_cq(ibv_cq_ex_to_cq(cx)) == 0, "ibv_destroy_cq");
	/* What the device does not have is refused, not ignored. */
	ca.wc_flags = 1ull << 40;
	errno = 0;
	cx = ibv_create_cq_ex(B()->dev.ctx, &ca);
	vt_check(!cx && (errno == EOPNOTSUPP || errno == EINVAL), "an unknown completion field: %s", vt_errno_name(errno));
	ca.wc_flags = 0;
	ca.comp_mask = 1u << 20;
	errno = 0;
	cx = ibv_create_cq_ex(B()->dev.ctx, &ca);
	vt_check(!cx && (errno == EOPNOTSUPP || errno == EINVAL), "an unknown comp_mask: %s", vt_errno_name(errno));
	ca.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
	ca.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
	cx = ibv_create_cq_ex(B()->dev.ctx, &ca);
	vt_check(cx != NULL, "a CQ for one thread: %s", vt_errno_name(errno));
	if (cx)
		ibv_destroy_cq(ibv_cq_ex_to_cq(cx));
	vt_teardown();
}

/* The order of sends and receives of one QP that share a CQ, and the count that poll is given. */
static void poll_counts(void)
{
	struct ibv_cq *cq;
	struct ibv_comp_channel *ch;
	struct ibv_wc wc[16];
	pair_on(&cq, 64, &ch);
	vt_check(ibv_poll_cq(cq, 0, wc) == 0, "polling for no entries");
	recv_n(10);
	for (int i = 0; i < 10; i++)
		send_one(0);
	int n = 0;
	for (int k = 1; n < 10 && k < 10; k++) {
		int got = vt_poll(cq, wc, k < 10 - n ? k : 10 - n, 3000);
		for (int i = 0; i < got; i++)
			vt_check(wc[i].wr_id == (uint64_t)(n + i), "completion %d is of %" PRIu64, n + i, wc[i].wr_id);
		n += got;
	}
	vt_check(n == 10 && ibv_poll_cq(cq, 16, wc) == 0, "%d of 10 completions", n);
	pair_off(cq, ch);
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = {
		{ "arm", arm }, { "sender_first", sender_first }, { "channel_fd", channel_fd }, { "ack_wait", ack_wait },
		{ "resize", resize }, { "overrun", overrun }, { "extended", extended }, { "poll_counts", poll_counts },
	};
	return vt_main(argc, argv, cases, VT_ARRAY(cases));
}
