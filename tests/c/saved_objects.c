/* Every kind of object, saved and restored (vervain.h): what it told and what it held is as it was, and it works. */
#define _GNU_SOURCE
#include "vt_world.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>

static void domains_before(void)
{
	struct ibv_parent_domain_init_attr init = { .pd = w->pd };
	w->parent = ibv_alloc_parent_domain(w->dev.ctx, &init);
	KEEP(VERVAIN_PD, w->parent);
	w->mrs[0] = ibv_reg_mr(w->parent, w->buf, 4096, VT_ACCESS_ALL);
	KEEP(VERVAIN_MR, w->mrs[0]);
	make_cq(0, 8, NULL);
	make_cq(1, 8, NULL);
	struct ibv_qp_init_attr_ex init_qp = init_of(IBV_QPT_RC, 0, 0);
	init_qp.pd = w->parent;
	make_qp_of(0, init_qp);
	make_qp(IBV_QPT_RC, 1, 1);
	join(0, 1);
	halt();
}

static void domains_after(void)
{
	vt_check(w->qp[0]->pd == w->parent && w->mrs[0]->pd == w->parent && w->qp[1]->pd == w->pd, "other domains");
	vt_check(ibv_dealloc_pd(w->pd) == EBUSY && ibv_dealloc_pd(w->parent) == EBUSY, "a domain in use was given up");
	go_on();
	works(0, 1, 0, 1);
	/* A parent domain is the domain that it is of. */
	rdma(1, 5, IBV_WR_RDMA_READ, 8192, 64, (uintptr_t)w->buf, w->mrs[0]->rkey);
	completes(1, 5, IBV_WC_SUCCESS);
}

static void regions_before(void)
{
	make_cq(0, 16, NULL);
	make_cq(1, 16, NULL);
	pair(IBV_QPT_RC, 0, 1, 0);
	w->mrs[0] = ibv_reg_mr_iova(w->pd, w->buf + 4096, 4096, 0x7700000123ull, VT_ACCESS_ALL);
	w->mrs[1] = ibv_reg_mr(w->pd, w->buf + 8200, 4000, VT_ACCESS_ALL | IBV_ACCESS_ZERO_BASED);
	w->mrs[2] = ibv_alloc_null_mr(w->pd);
	w->mrs[3] = ibv_reg_mr(w->pd, w->buf + 16384, 4096, IBV_ACCESS_REMOTE_READ);
	struct ibv_alloc_dm_attr dm = { .length = 3000, .log_align_req = 8 };
	w->dm = ibv_alloc_dm(w->dev.ctx, &dm);
	for (int i = 0; i < 4; i++)
		KEEP(VERVAIN_MR, w->mrs[i]);
	KEEP(VERVAIN_DM, w->dm);
	w->mrs[4] = ibv_reg_dm_mr(w->pd, w->dm, 0, 3000, VT_ACCESS_ALL | IBV_ACCESS_ZERO_BASED);
	w->mrs[5] = ibv_reg_dm_mr(w->pd, w->dm, 1000, 500, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ZERO_BASED);
	KEEP(VERVAIN_MR, w->mrs[4]);
	KEEP(VERVAIN_MR, w->mrs[5]);
	vt_fill(w->buf, BUF, 5);
	vt_check(ibv_memcpy_to_dm(w->dm, 0, w->buf, 3000) == 0, "writing to device memory");
	halt();
}

static void regions_after(void)
{
	static uint8_t bytes[3000];
	vt_check(vt_verify(w->buf, BUF, 5) == BUF, "registered memory has changed");
	vt_check(ibv_memcpy_from_dm(bytes, w->dm, 0, 3000) == 0 && !memcmp(bytes, w->buf, 3000), "device memory");
	vt_check(w->mrs[0]->addr == w->buf + 4096 && w->mrs[0]->length == 4096 && w->mr->addr == w->buf, "where regions are");
	vt_check(w->mrs[4]->length == 3000 && w->mrs[5]->length == 500 && w->mrs[4]->pd == w->pd, "regions of device memory");
	go_on();
	static const struct {
		uint64_t remote, offset; /* the address by the key, and the place in the buffer that it stands for */
	} reads[6] = { { 0x7700000223ull, 4096 + 256 }, { 100, 8300 }, { 0, 0 }, { 0, 16384 }, { 40, 40 }, { 7, 1007 } };
	for (int i = 0; i < 6; i++) {
		memset(w->buf + 50000, 0xee, 256);
		rdma(0, (uint64_t)i, IBV_WR_RDMA_READ, 50000, 256, i == 3 ? (uintptr_t)w->buf + 16384 : reads[i].remote, w->mrs[i]->rkey);
		if (i == 2) {
			/* Reads of others are refused; it is a key for local use. */
			completes(0, 2, IBV_WC_REM_ACCESS_ERR);
			struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
			vt_check(ibv_modify_qp(w->qp[0], &reset, IBV_QP_STATE) == 0 && ibv_modify_qp(w->qp[1], &reset, IBV_QP_STATE) == 0, "RESET");
			join(0, 1);
			struct ibv_sge sge = { 4711, 64, w->mrs[2]->lkey };
			struct ibv_send_wr wr = request(22, IBV_WR_SEND, &sge);
			receive(1, 23, 50000, 64);
			vt_check(post(0, &wr) == 0, "posting");
			completes(0, 22, IBV_WC_SUCCESS);
			completes(1, 23, IBV_WC_SUCCESS);
			vt_check(w->buf[50000] == 0 && w->buf[50063] == 0, "what the null region holds");
			continue;
		}
		completes(0, (uint64_t)i, IBV_WC_SUCCESS);
		vt_check(!memcmp(w->buf + 50000, w->buf + reads[i].offset, 256), "what region %d has", i);
	}
	rdma(0, 30, IBV_WR_RDMA_WRITE, 0, 128, 2000, w->mrs[4]->rkey);
	completes(0, 30, IBV_WC_SUCCESS);
	vt_check(ibv_memcpy_from_dm(bytes, w->dm, 2000, 128) == 0 && !memcmp(bytes, w->buf, 128), "writing to device memory by its key");
	rdma(0, 31, IBV_WR_RDMA_WRITE, 0, 128, (uintptr_t)w->buf + 16384, w->mrs[3]->rkey);
	completes(0, 31, IBV_WC_REM_ACCESS_ERR);
}

/* Windows: 0 type 1 bound; 1 type 2 bound; 2 type 2, bound and invalidated; 3 type 2 and 4 type 1 never bound; 5 type 2 and 6 type 1
 * that are bound while all stands; 7 type 2, zero-based. */
static const int mw_types[8] = { 1, 2, 2, 2, 1, 2, 1, 2 };

static uint64_t window_at(int i)
{
	return (uint64_t)i * 2048;
}

static void bind_window(int i, uint64_t id)
{
	unsigned access = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | (i == 7 ? IBV_ACCESS_ZERO_BASED : 0);
	struct ibv_mw_bind_info info = { .mr = w->mr, .addr = (uintptr_t)w->buf + window_at(i), .length = 2048, .mw_access_flags = access };
	if (mw_types[i] == 1) {
		struct ibv_mw_bind b = { .wr_id = id, .send_flags = IBV_SEND_SIGNALED, .bind_info = info };
		vt_check(ibv_bind_mw(w->qp[1], w->mw[i], &b) == 0, "binding");
		w->key[i] = w->mw[i]->rkey;
		return;
	}
	w->key[i] = ibv_inc_rkey(w->mw[i]->rkey);
	struct ibv_send_wr wr = request(id, IBV_WR_BIND_MW, NULL);
	wr.bind_mw.mw = w->mw[i];
	wr.bind_mw.rkey = w->key[i];
	wr.bind_mw.bind_info = info;
	vt_check(post(1, &wr) == 0, "binding");
}

static void windows_before(void)
{
	make_cq(0, 16, NULL);
	make_cq(1, 16, NULL);
	pair(IBV_QPT_RC, 0, 1, 0);
	for (int i = 0; i < 8; i++) {
		w->mw[i] = ibv_alloc_mw(w->pd, mw_types[i] == 1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
		KEEP(VERVAIN_MW, w->mw[i]);
		w->key[i] = w->mw[i]->rkey;
	}
	static const int now[] = { 0, 1, 2, 7 };
	for (unsigned i = 0; i < VT_ARRAY(now); i++) {
		bind_window(now[i], (uint64_t)now[i]);
		completes(1, (uint64_t)now[i], IBV_WC_SUCCESS);
		if (mw_types[now[i]] == 2)
			w->mw[now[i]]->rkey = w->key[now[i]];
	}
	struct ibv_send_wr wr = request(20, IBV_WR_LOCAL_INV, NULL);
	wr.invalidate_rkey = w->key[2];
	vt_check(post(1, &wr) == 0, "invalidating");
	completes(1, 20, IBV_WC_SUCCESS);
	vt_fill(w->buf, BUF, 9);
	halt();
	bind_window(5, 5);
	bind_window(6, 6);
	/* What it says before it is bound is the program's matter. */
	w->mw[6]->rkey = (w->key[6] & ~0xffu) | ((w->key[6] - 1) & 0xff);
}

static void windows_after(void)
{
	vt_check(w->mw[1]->type == IBV_MW_TYPE_2 && w->mw[0]->type == IBV_MW_TYPE_1 && w->mw[0]->pd == w->pd, "types");
	for (int i = 0; i < 5; i++)
		vt_check(w->mw[i]->rkey == w->key[i], "window %d has key %#x for %#x", i, w->mw[i]->rkey, w->key[i]);
	go_on();
	completes(1, 5, IBV_WC_SUCCESS);
	completes(1, 6, IBV_WC_SUCCESS);
	static const int bound[] = { 0, 1, 5, 6, 7 };
	for (unsigned k = 0; k < VT_ARRAY(bound); k++) {
		int i = bound[k];
		uint64_t where = i == 7 ? 0 : (uintptr_t)w->buf + window_at(i);
		rdma(0, (uint64_t)i, IBV_WR_RDMA_READ, 50000, 2048, where, w->key[i]);
		completes(0, (uint64_t)i, IBV_WC_SUCCESS);
		vt_check(!memcmp(w->buf + 50000, w->buf + window_at(i), 2048), "through window %d", i);
	}
	/* A type 2 window is invalidated by the QP that has bound it, and bound again. */
	struct ibv_send_wr wr = request(40, IBV_WR_LOCAL_INV, NULL);
	wr.invalidate_rkey = w->key[1];
	vt_check(post(1, &wr) == 0, "invalidating");
	completes(1, 40, IBV_WC_SUCCESS);
	w->mw[1]->rkey = w->key[1];
	bind_window(1, 41);
	completes(1, 41, IBV_WC_SUCCESS);
	bind_window(4, 42);
	completes(1, 42, IBV_WC_SUCCESS);
	/* A bind without a length unbinds; and a peer invalidates. */
	receive(1, 43, 60000, 64);
	struct ibv_sge sge = at(59000, 64);
	wr = request(44, IBV_WR_SEND_WITH_INV, &sge);
	wr.invalidate_rkey = w->key[5];
	vt_check(post(0, &wr) == 0, "posting");
	completes(0, 44, IBV_WC_SUCCESS);
	struct ibv_wc wc = completes(1, 43, IBV_WC_SUCCESS);
	vt_check(wc.wc_flags & IBV_WC_WITH_INV && wc.invalidated_rkey == w->key[5], "invalidated");
	rdma(0, 45, IBV_WR_RDMA_READ, 50000, 64, (uintptr_t)w->buf + window_at(2), w->key[2]);
	completes(0, 45, IBV_WC_REM_ACCESS_ERR);
}

static void exchange(void)
{
	for (uint64_t i = 0; i < 5; i++) {
		receive(0, 100 + i, 1000 * i, 500);
		receive(1, 200 + i, 1000 * i, 500);
		send_of(0, 300 + i, 30000, 100, i % 2 ? IBV_SEND_SOLICITED : 0);
		completes(1, 200 + i, IBV_WC_SUCCESS);
		send_of(1, 400 + i, 31000, 200 + (uint32_t)i, 0);
		completes(1, 400 + i, IBV_WC_SUCCESS);
		receive(2, 500 + i, 40000, 100);
		send_of(3, 600 + i, 41000, 10 + (uint32_t)i, 0);
		completes(3, 600 + i, IBV_WC_SUCCESS);
	}
}

/* CQ 0 holds completions of sends and receives; CQ 2 is extended, with times. */
static void completions_before(void)
{
	make_cq(0, 64, NULL);
	make_cq(1, 64, NULL);
	struct ibv_cq_init_attr_ex ex = { .cqe = 20, .cq_context = &w->cq[2], .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_BYTE_LEN };
	w->cq[2] = ibv_cq_ex_to_cq(ibv_create_cq_ex(w->dev.ctx, &ex));
	KEEP(VERVAIN_CQ, w->cq[2]);
	make_cq(3, 64, NULL);
	pair(IBV_QPT_RC, 0, 1, 0);
	pair(IBV_QPT_RC, 2, 3, 2);
	exchange();
	halt();
}

static void completions_after(void)
{
	for (int k = 0; k < 2; k++) {
		/* In order of each queue. */
		uint64_t sent = 300, received = 100;
		for (int n = 0; n < 10; n++) {
			struct ibv_wc wc;
			memset(&wc, 0, sizeof(wc));
			vt_require(ibv_poll_cq(w->cq[0], 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.qp_num == w->qp[0]->qp_num, "completion %d", n);
			if (wc.opcode == IBV_WC_SEND)
				vt_check(wc.wr_id == sent++, "send %" PRIu64 " for %" PRIu64, wc.wr_id, sent - 1);
			else
				vt_check(wc.opcode == IBV_WC_RECV && wc.wr_id == received && wc.byte_len == 100 + received++, "receive %" PRIu64 ", %u bytes", wc.wr_id, wc.byte_len);
		}
		vt_check(sent == 305 && received == 105, "%" PRIu64 " sends", sent - 300);
		is_empty(0);
		struct ibv_cq_ex *ex = (struct ibv_cq_ex *)w->cq[2];
		struct ibv_poll_cq_attr attr = { .comp_mask = 0 };
		int rc = ibv_start_poll(ex, &attr);
		uint64_t before = 0, n = 0;
		for (; rc == 0; rc = ibv_next_poll(ex), n++) {
			uint64_t now = ibv_wc_read_completion_ts(ex);
			vt_check(ex->wr_id == 500 + n && ex->status == IBV_WC_SUCCESS && ibv_wc_read_byte_len(ex) == 10 + n, "completion %" PRIu64, ex->wr_id);
			vt_check(now > before, "time %" PRIu64 " after %" PRIu64, now, before);
			before = now;
		}
		vt_check(rc == ENOENT && n == 5, "%" PRIu64 " completions by ibv_start_poll", n);
		if (n)
			ibv_end_poll(ex);
		/* All once more. */
		if (k == 0) {
			go_on();
			exchange();
		}
	}
}

static void overrun_before(void)
{
	struct ibv_async_event ev = { .event_type = IBV_EVENT_COMM_EST };
	make_cq(0, 64, NULL);
	make_cq(1, 1, NULL);
	pair(IBV_QPT_RC, 0, 1, 0);
	for (uint64_t i = 0; i < 15; i++)
		receive(1, i, 0, 64);
	for (int i = 0; i <= w->cq[1]->cqe; i++)
		send_of(0, (uint64_t)i, 1000, 64, 0);
	/* The last event: that of the QP is told before. */
	while (ev.event_type != IBV_EVENT_CQ_ERR) {
		vt_require(vt_event(w->dev.ctx, &ev, 5000) == 1, "it does not overrun");
		ibv_ack_async_event(&ev);
	}
	halt();
}

static void overrun_after(void)
{
	struct ibv_async_event ev;
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr init;
	vt_check(ibv_query_qp(w->qp[1], &a, IBV_QP_STATE, &init) == 0 && a.qp_state == IBV_QPS_ERR, "its QP is in %s", vt_state_name((int)a.qp_state));
	go_on();
	/* The one that it has room for, and those that came too many. */
	struct ibv_wc wc[32];
	int n = ibv_poll_cq(w->cq[1], 32, wc);
	vt_check(n > w->cq[1]->cqe, "%d completions", n);
	vt_check(vt_event(w->dev.ctx, &ev, 20) == 0, "an event, of what was told before");
}

/* CQ 0: two events were not read, and it is armed again for any; 1: armed for solicited ones; 2: not armed; 3: one event not read. */
static void events_before(void)
{
	w->channel = ibv_create_comp_channel(w->dev.ctx);
	KEEP(VERVAIN_COMP_CHANNEL, w->channel);
	for (int i = 0; i < 4; i++) {
		make_cq(i, 16, w->channel);
	}
	make_cq(4, 64, NULL);
	for (int i = 0; i < 4; i++) {
		make_qp(IBV_QPT_RC, 2 * i, i);
		make_qp(IBV_QPT_RC, 2 * i + 1, 4);
		join(2 * i, 2 * i + 1);
		for (uint64_t k = 0; k < 4; k++)
			receive(2 * i, 10 + k, 0, 64);
	}
	static const int fire[] = { 0, 3, 0 };
	for (unsigned i = 0; i < VT_ARRAY(fire); i++) {
		vt_check(ibv_req_notify_cq(w->cq[fire[i]], 0) == 0, "arming");
		send_of(2 * fire[i] + 1, 50 + i, 1000, 8, 0);
		completes(4, 50 + i, IBV_WC_SUCCESS);
	}
	vt_check(ibv_req_notify_cq(w->cq[0], 0) == 0 && ibv_req_notify_cq(w->cq[1], 1) == 0, "arming");
	halt();
}

static int next_event(unsigned ms)
{
	struct pollfd p = { .fd = w->channel->fd, .events = POLLIN };
	struct ibv_cq *cq;
	void *context;
	if (poll(&p, 1, (int)ms) != 1 || ibv_get_cq_event(w->channel, &cq, &context))
		return -1;
	ibv_ack_cq_events(cq, 1);
	int i = (int)((struct ibv_cq **)context - w->cq);
	vt_check(i >= 0 && i < CQS && w->cq[i] == cq, "the event of another CQ");
	return i;
}

static void events_after(void)
{
	static const int first[] = { 0, 3, 0, -1 };
	for (unsigned i = 0; i < VT_ARRAY(first); i++)
		vt_check(next_event(first[i] < 0 ? 0 : 1000) == first[i], "event %u", i);
	go_on();
	/* CQ 2 was not armed, CQ 1 not for this, and CQ 3 not any more. */
	for (int i = 3; i >= 1; i--) {
		send_of(2 * i + 1, 60, 1000, 8, 0);
		completes(4, 60, IBV_WC_SUCCESS);
	}
	send_of(1, 61, 1000, 8, 0);
	completes(4, 61, IBV_WC_SUCCESS);
	vt_check(next_event(1000) == 0 && next_event(20) == -1, "the event of what was armed");
	send_of(3, 62, 1000, 8, IBV_SEND_SOLICITED);
	completes(4, 62, IBV_WC_SUCCESS);
	vt_check(next_event(1000) == 1 && next_event(20) == -1, "the event of what was armed for solicited ones");
}

static void srq_before(void)
{
	make_cq(0, 32, NULL);
	make_cq(1, 32, NULL);
	struct ibv_srq_init_attr init = { .srq_context = &w->srq, .attr = { .max_wr = 10, .max_sge = 2 } };
	w->srq = ibv_create_srq(w->pd, &init);
	KEEP(VERVAIN_SRQ, w->srq);
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr_ex qp = init_of(IBV_QPT_RC, 2 * i + 1, 1);
		qp.srq = w->srq;
		make_qp(IBV_QPT_RC, 2 * i, 0);
		make_qp_of(2 * i + 1, qp);
		join(2 * i, 2 * i + 1);
	}
	for (uint64_t i = 0; i < 10; i++)
		receive(1, i, i * 1000, 800);
	for (uint64_t i = 0; i < 3; i++) {
		send_of((int)(i % 2) * 2, 100 + i, 30000, 600, 0);
		completes(0, 100 + i, IBV_WC_SUCCESS);
	}
	completes(1, 0, IBV_WC_SUCCESS);
	struct ibv_srq_attr attr = { .srq_limit = 5 };
	vt_check(ibv_modify_srq(w->srq, &attr, IBV_SRQ_LIMIT) == 0, "a limit");
	vt_fill(w->buf + 30000, 800, 3);
	halt();
	send_of(2, 103, 30000, 800, 0);
}

static void srq_after(void)
{
	vt_check(w->qp[1]->srq == w->srq && w->qp[3]->srq == w->srq, "another SRQ");
	completes(1, 1, IBV_WC_SUCCESS);
	completes(1, 2, IBV_WC_SUCCESS);
	is_empty(1);
	struct ibv_async_event ev;
	go_on();
	for (uint64_t i = 3; i < 10; i++) {
		if (i != 3)
			send_of((int)(i % 2) * 2, 100 + i, 30000, 800, 0);
		completes(0, 100 + i, IBV_WC_SUCCESS);
		struct ibv_wc wc = completes(1, i, IBV_WC_SUCCESS);
		vt_check(wc.byte_len == 800 && vt_verify(w->buf + i * 1000, 800, 3) == 800, "message %" PRIu64, i);
		vt_check(wc.qp_num == w->qp[i == 3 || i % 2 ? 3 : 1]->qp_num, "message %" PRIu64 " came by another QP", i);
		/* Five are left after the fifth. */
		bool raised = vt_event(w->dev.ctx, &ev, i < 5 ? 0 : i == 5 ? 2000 : 0) == 1;
		vt_check(raised == (i == 5) && (!raised || (ev.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && ev.element.srq == w->srq)), "the limit at %" PRIu64, i);
		if (raised)
			ibv_ack_async_event(&ev);
	}
	works(0, 1, 0, 1);
}

static void xrc_before(void)
{
	make_cq(0, 32, NULL);
	make_cq(1, 32, NULL);
	struct ibv_xrcd_init_attr domain = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT };
	w->xrcd = ibv_open_xrcd(w->dev.ctx, &domain);
	KEEP(VERVAIN_XRCD, w->xrcd);
	struct ibv_srq_init_attr_ex init = { .srq_context = &w->srq, .attr = { .max_wr = 8, .max_sge = 2 }, .srq_type = IBV_SRQT_XRC, .pd = w->pd,
		.xrcd = w->xrcd, .cq = w->cq[1],
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ };
	w->srq = ibv_create_srq_ex(w->dev.ctx, &init);
	KEEP(VERVAIN_SRQ, w->srq);
	struct ibv_qp_init_attr_ex target = { .qp_context = &w->qp[1], .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = w->xrcd };
	struct ibv_qp_init_attr_ex source = init_of(IBV_QPT_XRC_SEND, 0, 0);
	source.recv_cq = NULL;
	source.cap.max_recv_wr = source.cap.max_recv_sge = 0;
	make_qp_of(0, source);
	make_qp_of(1, target);
	join(0, 1);
	/* A second handle of the target. */
	struct ibv_qp_open_attr open = { .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE | IBV_QP_OPEN_ATTR_CONTEXT,
		.qp_num = w->qp[1]->qp_num, .xrcd = w->xrcd, .qp_type = IBV_QPT_XRC_RECV, .qp_context = &w->qp[2] };
	w->qp[2] = ibv_open_qp(w->dev.ctx, &open);
	KEEP(VERVAIN_QP, w->qp[2]);
	for (uint64_t i = 0; i < 3; i++) {
		struct ibv_sge sge[2] = { at(i * 1000, 300), at(i * 1000 + 300, 300) };
		struct ibv_recv_wr wr = { .wr_id = i, .sg_list = sge, .num_sge = 2 }, *bad;
		vt_check(ibv_post_srq_recv(w->srq, &wr, &bad) == 0, "posting a receive");
	}
	vt_fill(w->buf + 30000, 500, 4);
	halt();
	struct ibv_sge sge = at(30000, 500);
	struct ibv_send_wr wr = request(100, IBV_WR_SEND, &sge);
	uint32_t srqn;
	vt_check(ibv_get_srq_num(w->srq, &srqn) == 0, "the number of an SRQ");
	wr.qp_type.xrc.remote_srqn = w->key[0] = srqn;
	vt_check(post(0, &wr) == 0, "posting");
}

static void xrc_after(void)
{
	vt_check(w->qp[1]->qp_num == w->qp[2]->qp_num, "two handles of one QP");
	go_on();
	for (uint64_t i = 0; i < 3; i++) {
		struct ibv_sge sge = at(30000, 500);
		struct ibv_send_wr wr = request(100 + i, IBV_WR_SEND, &sge);
		wr.qp_type.xrc.remote_srqn = w->key[0];
		if (i)
			vt_check(post(0, &wr) == 0, "posting");
		completes(0, 100 + i, IBV_WC_SUCCESS);
		vt_check(completes(1, i, IBV_WC_SUCCESS).byte_len == 500 && vt_verify(w->buf + i * 1000, 500, 4) == 500, "message %" PRIu64, i);
	}
	struct ibv_sge sge = at(40000, 100);
	struct ibv_send_wr wr = request(200, IBV_WR_RDMA_READ, &sge);
	wr.wr.rdma.remote_addr = (uintptr_t)w->buf + 30000;
	wr.wr.rdma.rkey = w->mr->rkey;
	wr.qp_type.xrc.remote_srqn = w->key[0];
	vt_check(post(0, &wr) == 0, "posting");
	completes(0, 200, IBV_WC_SUCCESS);
	vt_check(vt_verify(w->buf + 40000, 100, 4) == 100, "what was read");
}

static void datagram(int qp, uint64_t id, uint32_t qpn, bool to_group, unsigned flags, uint64_t offset, uint32_t length)
{
	struct ibv_ah_attr attr = address();
	if (to_group) {
		attr.is_global = 1;
		attr.grh.dgid = w->group;
		attr.dlid = 0xc001;
	}
	struct ibv_ah *ah = ibv_create_ah(w->pd, &attr);
	vt_require(ah, "an address");
	struct ibv_sge sge = at(offset, length);
	struct ibv_send_wr wr = request(id, IBV_WR_SEND_WITH_IMM, &sge);
	wr.send_flags |= flags;
	wr.imm_data = htonl(0x1000 + (uint32_t)id);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = to_group ? 0xffffff : qpn;
	wr.wr.ud.remote_qkey = VT_QKEY;
	vt_check(post(qp, &wr) == 0, "posting");
	/* It is not needed any more. */
	vt_check(ibv_destroy_ah(ah) == 0, "giving an address up");
}

static void datagrams_before(void)
{
	make_cq(0, 32, NULL);
	make_cq(1, 32, NULL);
	pair(IBV_QPT_UD, 0, 1, 0);
	static const union ibv_gid group = { .raw = { 0xff, 0x0e, [10] = 0xff, 0xff, 239, 126, 208, 1 } };
	w->group = group;
	vt_check(ibv_attach_mcast(w->qp[1], &w->group, 0) == 0, "attaching");
	w->in_group = &w->qp[1];
	for (uint64_t i = 0; i < 8; i++)
		receive(1, i, i * 1000, 600);
	for (uint64_t i = 0; i < 2; i++)
		datagram(0, 100 + i, w->qp[1]->qp_num, i == 1, 0, 30000, 200);
	for (uint64_t i = 0; i < 2; i++)
		completes(0, 100 + i, IBV_WC_SUCCESS);
	completes(1, 0, IBV_WC_SUCCESS);
	completes(1, 1, IBV_WC_SUCCESS);
	vt_fill(w->buf + 30000, 500, 6);
	halt();
	datagram(0, 102, w->qp[1]->qp_num, false, 0, 30000, 400);
	datagram(0, 103, 0, true, 0, 30000, 40);
	datagram(0, 104, w->qp[1]->qp_num, false, IBV_SEND_INLINE, 30000, 60);
	/* What is inline was copied. */
}

static void datagrams_after(void)
{
	go_on();
	static const uint32_t lengths[] = { 0, 0, 400, 40, 60, 77, 78 };
	unsigned came = 3;
	for (uint64_t i = 2; i < VT_ARRAY(lengths); i++) {
		if (i > 4)
			datagram(0, 100 + i, w->qp[1]->qp_num, i == 6, 0, 30000, lengths[i]);
		completes(0, 100 + i, IBV_WC_SUCCESS);
		struct ibv_wc wc = completes(1, i, IBV_WC_SUCCESS);
		/* To a QP and to a group, they may overtake each other. */
		uint32_t n = ntohl(wc.imm_data) - 0x1000 - 100;
		vt_require(n < VT_ARRAY(lengths) && !(came & 1u << n), "datagram %u", n);
		came |= 1u << n;
		vt_check(wc.byte_len == lengths[n] + VT_GRH && wc.src_qp == w->qp[0]->qp_num, "datagram %u of %u bytes", n, wc.byte_len);
		vt_check(!memcmp(w->buf + i * 1000 + VT_GRH, w->buf + 30000, lengths[n]), "datagram %u holds something else", n);
	}
}

/* What comes without an answer may come later than its request has completed. */
static void arrives(uint64_t offset, size_t n, uint64_t seed)
{
	for (int i = 0; i < 5000 && vt_verify(w->buf + offset, n, seed) != n; i++)
		vt_sleep_ms(1);
	vt_check(vt_verify(w->buf + offset, n, seed) == n, "data that was to arrive");
}

static void unreliable_before(void)
{
	make_cq(0, 32, NULL);
	make_cq(1, 32, NULL);
	pair(IBV_QPT_UC, 0, 1, 0);
	receive(1, 1, 0, 600);
	receive(1, 2, 1000, 600);
	vt_fill(w->buf + 30000, 600, 8);
	send_of(0, 100, 30000, 600, 0);
	completes(0, 100, IBV_WC_SUCCESS);
	arrives(0, 600, 8);
	halt();
	send_of(0, 101, 30000, 500, 0);
	rdma(0, 102, IBV_WR_RDMA_WRITE, 30000, 600, (uintptr_t)w->buf + 5000, w->mr->rkey);
}

static void unreliable_after(void)
{
	completes(1, 1, IBV_WC_SUCCESS);
	go_on();
	completes(0, 101, IBV_WC_SUCCESS);
	completes(0, 102, IBV_WC_SUCCESS);
	vt_check(completes(1, 2, IBV_WC_SUCCESS).byte_len == 500 && vt_verify(w->buf + 1000, 500, 8) == 500, "a message");
	arrives(5000, 600, 8);
	works(0, 1, 0, 1);
}

/* QPs 0 RESET, 1 INIT with receives, 2 RTR with receives and 3 its peer in RTS, 4 and 5 in RTS. */
static void states_before(void)
{
	make_cq(0, 64, NULL);
	make_cq(1, 64, NULL);
	for (int i = 0; i < 6; i++)
		make_qp(IBV_QPT_RC, i, i % 2);
	vt_require(to_init(w->qp[1]) == 0 && to_init(w->qp[2]) == 0 && to_init(w->qp[3]) == 0, "INIT");
	vt_require(to_rtr(w->qp[2], w->qp[3], 71) == 0 && to_rtr(w->qp[3], w->qp[2], 0xfffff0) == 0 && to_rts(w->qp[3], 71) == 0, "RTR");
	join(4, 5);
	for (uint64_t i = 0; i < 3; i++) {
		receive(1, 10 + i, 100 * i, 100);
		receive(2, 20 + i, 1000 + 100 * i, 100);
	}
	send_of(3, 50, 30000, 64, 0);
	completes(1, 50, IBV_WC_SUCCESS);
	completes(0, 20, IBV_WC_SUCCESS);
	/* All that there is to tell: one that is told later would not be acknowledged, and hold the destruction of the QP for ever. */
	struct ibv_async_event ev;
	vt_require(vt_event(w->dev.ctx, &ev, 20000) == 1, "no event of the first message to a QP in RTR");
	vt_check(ev.event_type == IBV_EVENT_COMM_EST && ev.element.qp == w->qp[2], "event %d", (int)ev.event_type);
	ibv_ack_async_event(&ev);
	vt_fill(w->buf + 30000, 64, 17);
	halt();
	send_of(3, 51, 30000, 64, 0);
}

static void states_after(void)
{
	go_on();
	completes(1, 51, IBV_WC_SUCCESS);
	completes(0, 21, IBV_WC_SUCCESS);
	vt_check(vt_verify(w->buf + 1100, 64, 17) == 64, "a message to a QP in RTR");
	vt_check(to_rts(w->qp[2], 0xfffff0) == 0, "RTS");
	send_of(3, 52, 30000, 64, 0);
	completes(1, 52, IBV_WC_SUCCESS);
	completes(0, 22, IBV_WC_SUCCESS);
	works(2, 3, 0, 1);
	works(4, 5, 0, 1);
	/* From RESET and INIT on. */
	vt_check(to_init(w->qp[0]) == 0, "INIT");
	vt_check(to_rtr(w->qp[0], w->qp[1], 5) == 0 && to_rts(w->qp[0], 6) == 0 && to_rtr(w->qp[1], w->qp[0], 6) == 0, "RTR");
	for (uint64_t i = 0; i < 3; i++) {
		send_of(0, 60 + i, 30000, 64, 0);
		completes(0, 60 + i, IBV_WC_SUCCESS);
		completes(1, 10 + i, IBV_WC_SUCCESS);
		vt_check(vt_verify(w->buf + 100 * i, 64, 17) == 64, "receive %" PRIu64 " of a QP in INIT", i);
	}
}

PASTS(domains)
PASTS(regions)
PASTS(windows)
PASTS(completions)
PASTS(overrun)
PASTS(events)
PASTS(srq)
PASTS(xrc)
PASTS(datagrams)
PASTS(unreliable)
PASTS(states)

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { CASES(domains), CASES(regions), CASES(windows), CASES(completions), CASES(overrun), CASES(events),
		CASES(srq), CASES(xrc), CASES(datagrams), CASES(unreliable), CASES(states) };
	return vt_main(argc, argv, cases, VT_ARRAY(cases));
}
