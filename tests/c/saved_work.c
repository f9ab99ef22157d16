/* Work that was posted while all stood still, and queue pairs that drain or have failed, saved and restored (vervain.h): each request is
 * carried out once, in order, with what it was to do. */
#define _GNU_SOURCE
#include "vt_world.h"

#define FROM 30000u /* where data comes from */

static void two_pairs(enum ibv_qp_type type)
{
	make_cq(0, 64, NULL);
	make_cq(1, 64, NULL);
	pair(type, 0, 1, 0);
	vt_fill(w->buf + FROM, 2000, 21);
}

static uint64_t here(uint64_t offset)
{
	return (uintptr_t)w->buf + offset;
}

/* Requests of every operation. */
static void requests_before(void)
{
	struct ibv_sge sge[2];
	struct ibv_send_wr wr;
	two_pairs(IBV_QPT_RC);
	for (int i = 0; i < 2; i++) {
		w->mw[i] = ibv_alloc_mw(w->pd, IBV_MW_TYPE_2);
		KEEP(VERVAIN_MW, w->mw[i]);
	}
	/* One window is bound, so that it can be invalidated. */
	w->key[0] = ibv_inc_rkey(w->mw[0]->rkey);
	wr = request(1, IBV_WR_BIND_MW, NULL);
	wr.bind_mw.mw = w->mw[0];
	wr.bind_mw.rkey = w->key[0];
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){ .mr = w->mr, .addr = here(0), .length = 4096, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE };
	vt_check(post(0, &wr) == 0, "binding");
	completes(0, 1, IBV_WC_SUCCESS);
	w->mw[0]->rkey = w->key[0];
	for (uint64_t i = 0; i < 6; i++)
		receive(1, i, i * 1000, 800);
	uint64_t word = 1000;
	memcpy(w->buf + 10000, &word, 8);
	halt();
	send_of(0, 10, FROM, 700, 0);
	send_of(0, 11, FROM, 60, IBV_SEND_INLINE);
	sge[0] = at(FROM, 100);
	sge[1] = at(FROM + 100, 400);
	wr = request(12, IBV_WR_SEND_WITH_IMM, sge);
	wr.num_sge = 2;
	wr.imm_data = 0x11223344;
	vt_check(post(0, &wr) == 0, "posting");
	wr = request(13, IBV_WR_LOCAL_INV, NULL);
	wr.invalidate_rkey = w->key[0];
	vt_check(post(0, &wr) == 0, "posting");
	rdma(0, 14, IBV_WR_RDMA_WRITE, FROM, 1500, here(12000), w->mr->rkey);
	wr = request(15, IBV_WR_RDMA_WRITE_WITH_IMM, sge);
	wr.imm_data = 0x55667788;
	wr.wr.rdma.remote_addr = here(14000);
	wr.wr.rdma.rkey = w->mr->rkey;
	vt_check(post(0, &wr) == 0, "posting");
	rdma(0, 16, IBV_WR_RDMA_READ, 16000, 1500, here(12000), w->mr->rkey);
	for (int i = 0; i < 2; i++) {
		sge[0] = at(11000 + 8 * (uint64_t)i, 8);
		wr = request(17 + (uint64_t)i, i ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD, sge);
		wr.wr.atomic.remote_addr = here(10000);
		wr.wr.atomic.rkey = w->mr->rkey;
		wr.wr.atomic.compare_add = i ? 1042 : 42;
		wr.wr.atomic.swap = 7;
		vt_check(post(0, &wr) == 0, "posting");
	}
	w->key[1] = ibv_inc_rkey(w->mw[1]->rkey);
	wr = request(19, IBV_WR_BIND_MW, NULL);
	wr.bind_mw.mw = w->mw[1];
	wr.bind_mw.rkey = w->key[1];
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){ .mr = w->mr, .addr = here(20000), .length = 4096, .mw_access_flags = IBV_ACCESS_REMOTE_READ };
	vt_check(post(0, &wr) == 0, "binding");
	/* One that does not say that it is done, and one of no bytes. */
	sge[0] = at(FROM, 300);
	wr = request(20, IBV_WR_SEND, sge);
	wr.send_flags = IBV_SEND_FENCE;
	vt_check(post(0, &wr) == 0, "posting");
	wr = request(21, IBV_WR_SEND, NULL);
	vt_check(post(0, &wr) == 0, "posting");
	/* What is inline was copied; the rest is read when it is sent. */
	memset(w->buf + FROM, 0xcc, 60);
	vt_fill(w->buf + FROM, 2000, 22);
}

static void requests_after(void)
{
	static uint8_t inline_data[60];
	vt_fill(inline_data, 60, 21);
	is_empty(0);
	is_empty(1);
	go_on();
	for (uint64_t i = 10; i <= 21; i++)
		if (i != 20)
			completes(0, i, IBV_WC_SUCCESS);
	static const uint32_t lengths[] = { 700, 60, 500, 0, 300, 0 };
	for (uint64_t i = 0; i < 6; i++) {
		struct ibv_wc wc = completes(1, i, IBV_WC_SUCCESS);
		const uint8_t *got = w->buf + i * 1000;
		if (i == 3)
			vt_check(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.imm_data == 0x55667788, "a write with immediate data");
		else
			vt_check(wc.opcode == IBV_WC_RECV && wc.byte_len == lengths[i], "message %" PRIu64 " of %u bytes", i, wc.byte_len);
		if (i == 2)
			vt_check(wc.wc_flags & IBV_WC_WITH_IMM && wc.imm_data == 0x11223344, "immediate data");
		vt_check(i == 1 ? !memcmp(got, inline_data, 60) : i == 3 || vt_verify(got, lengths[i], 22) == lengths[i], "message %" PRIu64, i);
	}
	vt_check(vt_verify(w->buf + 12000, 1500, 22) == 1500 && vt_verify(w->buf + 14000, 100, 22) == 100, "writes");
	vt_check(vt_verify(w->buf + 16000, 1500, 22) == 1500, "a read");
	uint64_t word, was[2];
	memcpy(&word, w->buf + 10000, 8);
	memcpy(was, w->buf + 11000, 16);
	vt_check(word == 7 && was[0] == 1000 && was[1] == 1042, "atomics: %" PRIu64 ", %" PRIu64 ", %" PRIu64, word, was[0], was[1]);
	rdma(1, 30, IBV_WR_RDMA_READ, 17000, 64, here(20000), w->key[1]);
	completes(1, 30, IBV_WC_SUCCESS);
	works(0, 1, 0, 1);
	rdma(1, 31, IBV_WR_RDMA_WRITE, FROM, 64, here(0), w->key[0]);
	completes(1, 31, IBV_WC_REM_ACCESS_ERR);
}

/* By the functions of an extended QP, with what those alone have; an invalidation by the peer. */
static void extended_before(void)
{
	make_cq(0, 64, NULL);
	make_cq(1, 64, NULL);
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr_ex init = init_of(IBV_QPT_RC, i, i);
		init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		init.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_BIND_MW | VT_QP_EX_WITH_ATOMIC_WRITE |
			VT_QP_EX_WITH_FLUSH;
		init.sq_sig_all = 1;
		make_qp_of(i, init);
	}
	join(0, 1);
	w->mrs[0] = ibv_reg_mr(w->pd, w->buf, 4096, VT_ACCESS_ALL | VT_ACCESS_FLUSH_GLOBAL);
	KEEP(VERVAIN_MR, w->mrs[0]);
	w->mw[0] = ibv_alloc_mw(w->pd, IBV_MW_TYPE_2);
	KEEP(VERVAIN_MW, w->mw[0]);
	receive(1, 1, 8000, 100);
	receive(0, 2, 9000, 100);
	halt();
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(w->qp[0]);
	vt_require(qp, "an extended QP");
	struct ibv_mw_bind_info bind = { .mr = w->mr, .addr = here(0), .length = 4096, .mw_access_flags = IBV_ACCESS_REMOTE_READ };
	w->key[0] = ibv_inc_rkey(w->mw[0]->rkey);
	ibv_wr_start(qp);
	qp->wr_id = 10;
	ibv_wr_bind_mw(qp, w->mw[0], w->key[0], &bind);
	qp->wr_id = 11;
	uint64_t value = 0x0123456789abcdef;
	vt_build_atomic_write(qp, w->mrs[0]->rkey, here(64), &value);
	qp->wr_id = 12;
	vt_build_flush(qp, w->mrs[0]->rkey, here(64), 8, VT_FLUSH_GLOBAL, VT_FLUSH_RANGE);
	qp->wr_id = 13;
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, w->mr->lkey, here(FROM), 77);
	vt_check(ibv_wr_complete(qp) == 0, "posting");
	vt_fill(w->buf + FROM, 100, 3);
}

static void extended_after(void)
{
	struct ibv_qp_ex *peer = ibv_qp_to_qp_ex(w->qp[1]);
	vt_require(peer && ibv_qp_to_qp_ex(w->qp[0]), "it is no extended QP any more");
	go_on();
	for (uint64_t i = 10; i < 14; i++)
		completes(0, i, IBV_WC_SUCCESS);
	vt_check(completes(1, 1, IBV_WC_SUCCESS).byte_len == 77 && vt_verify(w->buf + 8000, 77, 3) == 77, "a message");
	uint64_t value;
	memcpy(&value, w->buf + 64, 8);
	vt_check(value == 0x0123456789abcdef, "an atomic write: %#" PRIx64, value);
	ibv_wr_start(peer);
	peer->wr_id = 20;
	ibv_wr_send_inv(peer, w->key[0]);
	ibv_wr_set_sge(peer, w->mr->lkey, here(FROM), 10);
	vt_check(ibv_wr_complete(peer) == 0, "posting");
	completes(1, 20, IBV_WC_SUCCESS);
	struct ibv_wc wc = completes(0, 2, IBV_WC_SUCCESS);
	vt_check(wc.wc_flags & IBV_WC_WITH_INV && wc.invalidated_rkey == w->key[0], "invalidated");
}

static int to_sqd(int qp, bool tell)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = tell };
	return ibv_modify_qp(w->qp[qp], &a, IBV_QP_STATE | (tell ? IBV_QP_EN_SQD_ASYNC_NOTIFY : 0));
}

static int from_sqd(int qp)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTS };
	return ibv_modify_qp(w->qp[qp], &a, IBV_QP_STATE);
}

/* The next event that is none of a QP that has heard of its peer. */
static bool event(int type, unsigned ms, struct ibv_qp *qp)
{
	struct ibv_async_event ev;
	while (vt_event(w->dev.ctx, &ev, ms) == 1) {
		bool is_it = (int)ev.event_type == type && ev.element.qp == qp;
		ibv_ack_async_event(&ev);
		if (is_it)
			return true;
		vt_check(ev.event_type == IBV_EVENT_COMM_EST, "event %s", vt_event_name((int)ev.event_type));
	}
	return false;
}

/* QP 0 is drained, and more was posted; QP 2 was told to drain while all stood, and wants to say when it is done. */
static void draining_before(void)
{
	two_pairs(IBV_QPT_RC);
	pair(IBV_QPT_RC, 2, 3, 0);
	send_of(0, 1, FROM, 100, 0);
	receive(1, 1, 0, 100);
	completes(0, 1, IBV_WC_SUCCESS);
	completes(1, 1, IBV_WC_SUCCESS);
	vt_check(to_sqd(0, true) == 0 && event(IBV_EVENT_SQ_DRAINED, 2000, w->qp[0]), "draining");
	send_of(0, 2, FROM, 100, 0);
	halt();
	send_of(0, 5, FROM, 100, 0);
	send_of(2, 6, FROM, 100, 0);
	vt_check(to_sqd(2, false) == 0, "draining");
	send_of(2, 7, FROM, 100, 0);
}

static void draining_after(void)
{
	go_on();
	for (uint64_t i = 0; i < 2; i++) {
		receive(1, 10 + i, 100 * i, 100);
		receive(3, 20 + i, 1000 + 100 * i, 100);
	}
	vt_check(!event(IBV_EVENT_SQ_DRAINED, 20, w->qp[0]), "it was told once more that it is drained");
	is_empty(0);
	is_empty(1);
	for (int qp = 0; qp < 4; qp += 2) {
		vt_check(from_sqd(qp) == 0, "RTS");
		completes(0, qp ? 6 : 2, IBV_WC_SUCCESS);
		completes(0, qp ? 7 : 5, IBV_WC_SUCCESS);
		completes(1, qp ? 20 : 10, IBV_WC_SUCCESS);
		completes(1, qp ? 21 : 11, IBV_WC_SUCCESS);
	}
	works(0, 1, 0, 1);
	vt_check(to_sqd(2, true) == 0 && event(IBV_EVENT_SQ_DRAINED, 2000, w->qp[2]), "draining once more");
}

/* A send of memory that is none, so that the send queue of an unreliable QP fails. */
static void fail(int qp, uint64_t id)
{
	struct ibv_sge sge = { 16, 100, w->mr->lkey };
	struct ibv_send_wr wr = request(id, IBV_WR_SEND, &sge);
	if (w->qp[qp]->qp_type == IBV_QPT_UD) {
		struct ibv_ah_attr attr = address();
		wr.wr.ud.ah = ibv_create_ah(w->pd, &attr);
		wr.wr.ud.remote_qpn = w->qp[qp + 1]->qp_num;
		wr.wr.ud.remote_qkey = VT_QKEY;
		vt_check(wr.wr.ud.ah && post(qp, &wr) == 0, "posting");
		vt_check(ibv_destroy_ah(wr.wr.ud.ah) == 0, "giving an address up");
	} else {
		vt_check(post(qp, &wr) == 0, "posting");
	}
}

static void send_error_before(void)
{
	two_pairs(IBV_QPT_UC);
	pair(IBV_QPT_UD, 2, 3, 0);
	for (int qp = 0; qp < 4; qp += 2) {
		fail(qp, 1);
		completes(0, 1, IBV_WC_LOC_PROT_ERR);
		fail(qp, 2);
	}
	receive(0, 3, 0, 100);
	halt();
}

static void send_error_after(void)
{
	completes(0, 2, IBV_WC_WR_FLUSH_ERR);
	completes(0, 2, IBV_WC_WR_FLUSH_ERR);
	is_empty(0);
	go_on();
	/* It receives as before. */
	send_of(1, 10, FROM, 100, 0);
	completes(1, 10, IBV_WC_SUCCESS);
	completes(0, 3, IBV_WC_SUCCESS);
	fail(0, 11);
	completes(0, 11, IBV_WC_WR_FLUSH_ERR);
	for (int qp = 0; qp < 4; qp += 2) {
		struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTS };
		vt_check(ibv_modify_qp(w->qp[qp], &a, IBV_QP_STATE) == 0, "RTS");
	}
	works(0, 1, 0, 1);
}

/* QP 0 has failed with work and receives, none of which was polled; QP 2 has an SRQ, and was told of its last receive. */
static void errors_before(void)
{
	two_pairs(IBV_QPT_RC);
	struct ibv_srq_init_attr srq = { .srq_context = &w->srq, .attr = { .max_wr = 4, .max_sge = 2 } };
	w->srq = ibv_create_srq(w->pd, &srq);
	KEEP(VERVAIN_SRQ, w->srq);
	struct ibv_qp_init_attr_ex init = init_of(IBV_QPT_RC, 2, 1);
	init.srq = w->srq;
	make_qp_of(2, init);
	make_qp(IBV_QPT_RC, 3, 1);
	join(2, 3);
	receive(2, 50, 5000, 100);
	receive(0, 1, 0, 100);
	receive(0, 2, 0, 100);
	rdma(0, 3, IBV_WR_RDMA_WRITE, FROM, 100, 16, w->mr->rkey);
	send_of(0, 4, FROM, 100, 0);
	vt_sleep_ms(50);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };
	vt_check(ibv_modify_qp(w->qp[2], &a, IBV_QP_STATE) == 0, "ERR");
	struct ibv_async_event ev;
	bool told = false;
	while (vt_event(w->dev.ctx, &ev, told ? 50 : 20000) == 1) {
		told = told || (ev.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && ev.element.qp == w->qp[2]);
		ibv_ack_async_event(&ev);
	}
	vt_check(told, "it was not told of its last receive");
	halt();
	send_of(0, 5, FROM, 100, 0);
	receive(0, 6, 0, 100);
}

/* Sends and receives, each in order. */
static void flushed(uint64_t send, uint64_t sends, uint64_t recv, uint64_t recvs)
{
	for (uint64_t n = 0; n < sends + recvs; n++) {
		struct ibv_wc wc;
		vt_require(vt_poll(w->cq[0], &wc, 1, 2000) == 1, "flushed completion %" PRIu64, n);
		bool is_send = wc.wr_id == send;
		vt_check(is_send || wc.wr_id == recv, "completion %" PRIu64, wc.wr_id);
		int status = wc.wr_id == 3 ? IBV_WC_REM_ACCESS_ERR : IBV_WC_WR_FLUSH_ERR;
		vt_check((int)wc.status == status, "completion %" PRIu64 " with %s", wc.wr_id, vt_wc_name((int)wc.status));
		*(is_send ? &send : &recv) += wc.wr_id == 2 ? 4 : 1;
	}
}

static void errors_after(void)
{
	struct ibv_async_event ev;
	go_on();
	/* What was posted to it while it stood is flushed when it goes on. */
	flushed(3, 3, 1, 3);
	is_empty(0);
	vt_check(vt_event(w->dev.ctx, &ev, 20) == 0, "an event, of what was told before");
	send_of(0, 20, FROM, 100, 0);
	completes(0, 20, IBV_WC_WR_FLUSH_ERR);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RESET };
	for (int qp = 0; qp < 4; qp++)
		vt_check(ibv_modify_qp(w->qp[qp], &a, IBV_QP_STATE) == 0, "RESET");
	join(0, 1);
	works(0, 1, 0, 1);
	/* The receive of the SRQ is there still. */
	join(2, 3);
	send_of(3, 21, FROM, 100, 0);
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc;
		vt_require(vt_poll(w->cq[1], &wc, 1, 2000) == 1 && wc.status == IBV_WC_SUCCESS, "the receive of the SRQ");
		vt_check(wc.wr_id == 21 || wc.wr_id == 50, "completion %" PRIu64, wc.wr_id);
	}
}

PASTS(requests)
PASTS(extended)
PASTS(draining)
PASTS(send_error)
PASTS(errors)

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { CASES(requests), CASES(extended), CASES(draining), CASES(send_error), CASES(errors) };
	return vt_main(argc, argv, cases, VT_ARRAY(cases));
}
