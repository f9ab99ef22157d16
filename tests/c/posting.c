/* Faults that ibv_post_send, ibv_post_recv and ibv_post_srq_recv find themselves: the errno, bad_wr, and that what
 * was posted before the fault still runs (man ibv_post_send, ibv_post_recv; IBA 11.4.1.1, 11.4.1.2). */
#include "vt.h"

static struct vt_side *A(void)
{
	return vt_a.local;
}

static void ready(enum vt_type type)
{
	struct vt_cfg a = vt_cfg_default(type), b = a;
	b.responder = 1;
	vt_pair(&a, &b);
}

static void expect_send(int opcode, int want, const char *what)
{
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, opcode, 8);
	int rc = vt_send(&vt_a, &w);
	vt_check(rc == want, "%s: expected %s, got %s", what, vt_errno_name(want), vt_errno_name(rc));
	struct ibv_wc wc;
	if (want)
		vt_check(vt_cqes(&vt_a, 0, 1, 2, &wc) == 0, "%s: a request that was refused completed", what);
	int state = vt_state(&vt_a);
	vt_check(state == IBV_QPS_RTS, "%s: the QP went to %s", what, vt_state_name(state));
}

/* The table of opcodes per transport of man ibv_post_send. */
static void opcodes(void)
{
	ready(VT_UD);
	expect_send(IBV_WR_RDMA_WRITE, EINVAL, "UD write");
	expect_send(IBV_WR_RDMA_WRITE_WITH_IMM, EINVAL, "UD write_imm");
	expect_send(IBV_WR_RDMA_READ, EINVAL, "UD read");
	expect_send(IBV_WR_ATOMIC_CMP_AND_SWP, EINVAL, "UD cas");
	expect_send(IBV_WR_ATOMIC_FETCH_AND_ADD, EINVAL, "UD faa");
	expect_send(IBV_WR_LOCAL_INV, EINVAL, "UD local_inv");
	expect_send(IBV_WR_BIND_MW, EINVAL, "UD bind_mw");
	expect_send(IBV_WR_SEND_WITH_INV, EINVAL, "UD send_inv");
	ready(VT_UC);
	expect_send(IBV_WR_RDMA_READ, EINVAL, "UC read");
	expect_send(IBV_WR_ATOMIC_CMP_AND_SWP, EINVAL, "UC cas");
	expect_send(IBV_WR_ATOMIC_FETCH_AND_ADD, EINVAL, "UC faa");
	ready(VT_RC);
	expect_send(99, EINVAL, "opcode 99");

	vt_teardown();
}

static void states(void)
{
	struct vt_cfg c = vt_cfg_default(VT_RC), b = c;
	b.responder = 1;
	static const enum ibv_qp_state at[] = { IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR };
	vt_ends_open();
	for (size_t i = 0; i < VT_ARRAY(at); i++) {
		vt_setup(&vt_a, &c);
		vt_setup(&vt_b, &b);
		vt_require(vt_connect(&vt_a, &vt_b, at[i]) == 0, "connecting up to %s", vt_state_name((int)at[i]));
		struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_RDMA_WRITE, 8);
		int rc = vt_send(&vt_a, &w);
		vt_check(rc == EINVAL, "post_send in %s: expected EINVAL, got %s", vt_state_name((int)at[i]), vt_errno_name(rc));
		rc = vt_recv(&vt_a, 1, vt_a.info.addr, 8, vt_a.info.lkey);
		int want = at[i] == IBV_QPS_RESET ? EINVAL : 0;
		vt_check(rc == want, "post_recv in %s: expected %s, got %s", vt_state_name((int)at[i]), vt_errno_name(want),
			 vt_errno_name(rc));
	}
	/* In ERR both are accepted and complete as flushed (10.3.1.5). */
	ready(VT_RC);
	vt_modify(&vt_a, IBV_QPS_ERR);
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_RDMA_WRITE, 8);
	struct ibv_wc wc;
	w.wr_id = 41;
	w.flags = 0;
	vt_check(vt_send(&vt_a, &w) == 0, "post_send in ERR is refused");
	vt_check(vt_cqes(&vt_a, 0, 1, 1000, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 41,
		 "a send posted in ERR is not flushed");
	vt_check(vt_recv(&vt_a, 42, vt_a.info.addr, 8, vt_a.info.lkey) == 0, "post_recv in ERR is refused");
	vt_check(vt_cqes(&vt_a, 1, 1, 1000, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 42,
		 "a receive posted in ERR is not flushed");
	vt_teardown();
}

static void sge_counts(void)
{
	ready(VT_RC_SRQ);
	struct vt_side *a = A();
	struct ibv_qp_attr qa;
	struct ibv_qp_init_attr ia;
	vt_require(ibv_query_qp(a->qp, &qa, IBV_QP_CAP, &ia) == 0, "ibv_query_qp");
	uint32_t max = ia.cap.max_send_sge, rmax = ia.cap.max_recv_sge, n = (max > rmax ? max : rmax) + 1;
	vt_require(max >= 4 && rmax >= 4 && n < 200, "max_send_sge %u, max_recv_sge %u", max, rmax);
	struct ibv_sge sge[200];
	for (uint32_t i = 0; i < n; i++)
		sge[i] = (struct ibv_sge){ vt_a.info.addr + i * 8, 8, vt_a.info.lkey };
	struct ibv_send_wr wr = { .sg_list = sge, .num_sge = (int)max, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED }, *bad = NULL;
	wr.wr.rdma.remote_addr = vt_b.info.addr;
	wr.wr.rdma.rkey = vt_b.info.rkey;
	struct ibv_wc wc;
	int rc = ibv_post_send(a->qp, &wr, &bad);
	vt_check(rc == 0 && vt_poll(a->scq, &wc, 1, 2000) == 1 && wc.status == IBV_WC_SUCCESS, "max_send_sge elements: %s",
		 vt_errno_name(rc));
	wr.num_sge = (int)max + 1;
	rc = ibv_post_send(a->qp, &wr, &bad);
	vt_check(rc == EINVAL && bad == &wr, "max_send_sge + 1 elements: expected EINVAL, got %s", vt_errno_name(rc));
	wr.num_sge = -1;
	rc = ibv_post_send(a->qp, &wr, &bad);
	vt_check(rc == EINVAL, "-1 send elements: expected EINVAL, got %s", vt_errno_name(rc));
	struct ibv_recv_wr rr = { .sg_list = sge, .num_sge = (int)rmax + 1 }, *rbad = NULL;
	rc = ibv_post_recv(a->qp, &rr, &rbad);
	vt_check(rc == EINVAL && rbad == &rr, "max_recv_sge + 1 elements: expected EINVAL, got %s", vt_errno_name(rc));

	struct ibv_srq_init_attr sa = { .attr = { .max_wr = 4, .max_sge = 2 } };
	struct ibv_srq *srq = ibv_create_srq(a->pd, &sa);
	vt_require(srq, "ibv_create_srq: %s", strerror(errno));
	vt_require(sa.attr.max_sge < 200, "SRQ max_sge %u", sa.attr.max_sge);
	rr.num_sge = (int)sa.attr.max_sge + 1;
	rbad = NULL;
	rc = ibv_post_srq_recv(srq, &rr, &rbad);
	vt_check(rc == EINVAL && rbad == &rr, "SRQ max_sge + 1 elements: expected EINVAL, got %s", vt_errno_name(rc));
	/* A full shared queue: ENOMEM, and the requests before the one that does not fit stay posted. */
	rr.num_sge = 1;
	uint32_t posted = 0;
	while (posted <= sa.attr.max_wr && (rc = ibv_post_srq_recv(srq, &rr, &rbad)) == 0)
		posted++;
	vt_check(posted == sa.attr.max_wr && rc == ENOMEM, "SRQ of %u took %u, then %s", sa.attr.max_wr, posted, vt_errno_name(rc));
	vt_check(ibv_destroy_srq(srq) == 0, "ibv_destroy_srq");
	vt_teardown();
}

static void inline_data(void)
{
	ready(VT_RC);
	struct vt_side *a = A();
	struct ibv_qp_attr qa;
	struct ibv_qp_init_attr ia;
	vt_require(ibv_query_qp(a->qp, &qa, IBV_QP_CAP, &ia) == 0, "ibv_query_qp");
	uint32_t max = ia.cap.max_inline_data;
	vt_require(max >= 64 && max < VT_BUF, "max_inline_data %u", max);
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_RDMA_WRITE, max);
	struct ibv_wc wc;
	w.flags |= IBV_SEND_INLINE;
	int rc = vt_send(&vt_a, &w);
	vt_check(rc == 0 && vt_cqes(&vt_a, 0, 1, 2000, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "inline of %u bytes: %s", max,
		 vt_errno_name(rc));
	w.sge[0].length = max + 1;
	rc = vt_send(&vt_a, &w);
	/* The man page names no errno; ConnectX says ENOMEM, rxe EINVAL. */
	vt_check(rc == EINVAL || rc == ENOMEM, "inline of one byte too many: expected EINVAL, got %s", vt_errno_name(rc));
	w.sge[0].length = 8;
	w.opcode = IBV_WR_RDMA_READ;
	rc = vt_send(&vt_a, &w);
	vt_check(rc == EINVAL, "inline read: expected EINVAL, got %s", vt_errno_name(rc));

	/* The buffer may be changed as soon as the call returns, even while the message cannot be delivered. */
	uint64_t *src = (uint64_t *)a->buf;
	src[0] = 0x1111;
	w.opcode = IBV_WR_SEND;
	rc = vt_send(&vt_a, &w);
	src[0] = 0x2222;
	vt_sleep_ms(5);
	vt_recv(&vt_b, 1, vt_b.info.addr + VT_RECV_AT, 8, vt_b.info.lkey);
	vt_check(vt_cqes(&vt_b, 1, 1, 2000, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "the inline send did not arrive");
	uint64_t got = vt_peek(&vt_b, VT_RECV_AT);
	vt_check(got == 0x1111, "inline data were taken after the post returned: 0x%" PRIx64, got);
	vt_teardown();
}

/* Sends that wait for a receive keep their places: the queue takes exactly max_send_wr. */
static void sq_full(void)
{
	ready(VT_RC);
	struct vt_side *a = A();
	struct ibv_qp_attr qa;
	struct ibv_qp_init_attr ia;
	vt_require(ibv_query_qp(a->qp, &qa, IBV_QP_CAP, &ia) == 0, "ibv_query_qp");
	uint32_t max = ia.cap.max_send_wr, posted = 0;
	vt_require(max >= 16 && max < 200, "max_send_wr %u", max);
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_SEND, 8);
	int rc = 0;
	uint64_t start = vt_own_us();
	while (posted <= max && (rc = (w.wr_id = posted, vt_send(&vt_a, &w))) == 0)
		posted++;
	uint64_t took = vt_own_us() - start;
	vt_check(posted == max && rc == ENOMEM, "a send queue of %u took %u, then %s", max, posted, vt_errno_name(rc));
	vt_check(took < 1000000, "posting %u sends that wait took %" PRIu64 " us", posted, took);
	for (uint32_t i = 0; i < posted; i++)
		vt_recv(&vt_b, i, vt_b.info.addr + VT_RECV_AT, 8, vt_b.info.lkey);
	struct ibv_wc wc[VT_MAX_WC];
	uint32_t done = 0;
	while (done < posted) {
		int n = vt_cqes(&vt_a, 0, 1, 3000, wc);
		if (n != 1)
			break;
		vt_check(wc[0].status == IBV_WC_SUCCESS && wc[0].wr_id == done, "completion %u: %s of %" PRIu64, done,
			 vt_wc_name((int)wc[0].status), wc[0].wr_id);
		done++;
		vt_recv(&vt_b, 1000, vt_b.info.addr + VT_RECV_AT, 8, vt_b.info.lkey);
	}
	vt_check(done == posted, "%u of %u waiting sends completed", done, posted);
	vt_check(vt_send(&vt_a, &w) == 0, "a drained send queue takes no request");
	vt_teardown();
}

static void chains(void)
{
	ready(VT_RC);
	struct vt_side *a = A();
	struct ibv_qp_attr qa;
	struct ibv_qp_init_attr ia;
	vt_require(ibv_query_qp(a->qp, &qa, IBV_QP_CAP, &ia) == 0, "ibv_query_qp");
	uint32_t max = ia.cap.max_recv_wr;
	vt_require(max >= 16 && max < 300, "max_recv_wr %u", max);
	struct ibv_sge sge = { vt_a.info.addr, 8, vt_a.info.lkey };
	struct ibv_recv_wr rr[300], *rbad = NULL;
	for (uint32_t i = 0; i <= max; i++)
		rr[i] = (struct ibv_recv_wr){ .wr_id = i, .next = i < max ? &rr[i + 1] : NULL, .sg_list = &sge, .num_sge = 1 };
	int rc = ibv_post_recv(a->qp, rr, &rbad);
	vt_check(rc == ENOMEM && rbad == &rr[max], "a chain of max_recv_wr + 1: %s, bad_wr is number %td", vt_errno_name(rc),
		 rbad ? rbad - rr : -1);

	/* The third of four is bad: the first two run, the last does not. */
	struct ibv_send_wr w[4], *bad = NULL;
	memset(w, 0, sizeof(w));
	for (int i = 0; i < 4; i++) {
		w[i].wr_id = (uint64_t)i;
		w[i].next = i < 3 ? &w[i + 1] : NULL;
		w[i].sg_list = &sge;
		w[i].num_sge = 1;
		w[i].opcode = i == 2 ? (enum ibv_wr_opcode)77 : IBV_WR_RDMA_WRITE;
		w[i].send_flags = IBV_SEND_SIGNALED;
		w[i].wr.rdma.remote_addr = vt_b.info.addr + 64u * (unsigned)i;
		w[i].wr.rdma.rkey = vt_b.info.rkey;
	}
	memset(a->buf, 0x77, 8);
	rc = ibv_post_send(a->qp, w, &bad);
	vt_check(rc == EINVAL && bad == &w[2], "bad third request: %s, bad_wr is number %td", vt_errno_name(rc), bad ? bad - w : -1);
	struct ibv_wc wc[4];
	int n = vt_poll(a->scq, wc, 2, 2000);
	vt_check(n == 2 && wc[0].wr_id == 0 && wc[1].wr_id == 1, "%d of the 2 requests before the bad one completed", n);
	vt_check(vt_poll(a->scq, wc, 1, 5) == 0, "the request after the bad one completed");
	vt_check(vt_peek(&vt_b, 64) == 0x7777777777777777ull, "the second write did not happen");
	vt_check(vt_peek(&vt_b, 192) == 0xbbbbbbbbbbbbbbbbull, "the write after the bad request happened");
	vt_teardown();
}

static void ud_address(void)
{
	ready(VT_UD);
	struct vt_side *a = A();
	struct ibv_sge sge = { vt_a.info.addr, 8, vt_a.info.lkey };
	struct ibv_send_wr w = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad = NULL;
	w.wr.ud.remote_qpn = vt_b.info.qpn;
	w.wr.ud.remote_qkey = VT_QKEY;
	int rc = ibv_post_send(a->qp, &w, &bad);
	vt_check(rc == EINVAL && bad == &w, "UD without an address handle: expected EINVAL, got %s", vt_errno_name(rc));
	vt_teardown();
}

/* The builder interface reports at ibv_wr_complete and drops the whole batch (man ibv_wr_post). */
static void builder_faults(void)
{
	struct vt_cfg a = vt_cfg_default(VT_RC), b = a;
	b.responder = 1;
	a.send_ops = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND;
	vt_pair(&a, &b);
	struct vt_side *s = A();
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(s->qp);
	vt_require(x, "ibv_qp_to_qp_ex gave NULL");
	struct ibv_wc wc;
	static uint8_t big[65536];
	ibv_wr_start(x);
	x->wr_id = 1;
	x->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(x, vt_b.info.rkey, vt_b.info.addr);
	ibv_wr_set_sge(x, vt_a.info.lkey, vt_a.info.addr, 8);
	ibv_wr_rdma_write(x, vt_b.info.rkey, vt_b.info.addr + 8);
	ibv_wr_set_inline_data(x, big, sizeof(big));
	int rc = ibv_wr_complete(x);
	vt_check(rc == EINVAL || rc == ENOMEM, "inline beyond the limit: expected EINVAL, got %s", vt_errno_name(rc));
	vt_check(vt_poll(s->scq, &wc, 1, 5) == 0, "a batch with a fault was posted in part");
	ibv_wr_start(x);
	ibv_wr_rdma_write(x, vt_b.info.rkey, vt_b.info.addr);
	ibv_wr_set_sge(x, vt_a.info.lkey, vt_a.info.addr, 8);
	ibv_wr_abort(x);
	vt_check(vt_poll(s->scq, &wc, 1, 5) == 0, "an aborted batch was posted");
	ibv_wr_start(x);
	x->wr_id = 9;
	ibv_wr_rdma_write(x, vt_b.info.rkey, vt_b.info.addr);
	ibv_wr_set_sge(x, vt_a.info.lkey, vt_a.info.addr, 8);
	rc = ibv_wr_complete(x);
	vt_check(rc == 0 && vt_poll(s->scq, &wc, 1, 2000) == 1 && wc.wr_id == 9, "the batch after an aborted one: %s", vt_errno_name(rc));
	/* More requests than the queue holds: ENOMEM for the whole batch. */
	ibv_wr_start(x);
	for (int i = 0; i < 1000; i++) {
		ibv_wr_rdma_write(x, vt_b.info.rkey, vt_b.info.addr);
		ibv_wr_set_sge(x, vt_a.info.lkey, vt_a.info.addr, 8);
	}
	rc = ibv_wr_complete(x);
	vt_check(rc == ENOMEM, "a batch longer than the queue: expected ENOMEM, got %s", vt_errno_name(rc));
	/* A QP of another type has no such builders. */
	vt_setup(&vt_a, &(struct vt_cfg){ .type = VT_UD, .sq_depth = 4, .rq_depth = 4, .max_sge = 1 });
	struct ibv_qp_init_attr_ex ia = { .send_cq = s->scq, .recv_cq = s->rcq, .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_UD,
					  .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = s->pd,
					  .send_ops_flags = IBV_QP_EX_WITH_RDMA_READ };
	errno = 0;
	struct ibv_qp *qp = ibv_create_qp_ex(s->dev.ctx, &ia);
	vt_check(!qp && (errno == EOPNOTSUPP || errno == EINVAL), "UD with a read builder: expected EOPNOTSUPP, got %s",
		 vt_errno_name(errno));
	vt_teardown();
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = {
		{ "opcodes", opcodes }, { "states", states }, { "sge_counts", sge_counts }, { "inline_data", inline_data },
		{ "sq_full", sq_full }, { "chains", chains }, { "ud_address", ud_address }, { "builder_faults", builder_faults },
	};
	return vt_main(argc, argv, cases, VT_ARRAY(cases));
}
