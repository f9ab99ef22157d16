/* Memory windows and invalidation, as operations of the table: bind of type 1 and 2, local invalidate, send with
 * invalidate, and what each is refused for (IBA 10.6.7, 10.6.6.2.5; man ibv_bind_mw, ibv_wr_post). */
#include "vt.h"

#define ALL (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

static void ready(enum vt_type type)
{
	struct vt_cfg a = vt_cfg_default(type), b = a;
	b.responder = 1;
	vt_pair(&a, &b);
}

static struct vt_wr bind(int opcode, int slot, uint32_t rkey, uint64_t off, uint64_t len, uint32_t access)
{
	return (struct vt_wr){ .wr_id = 5, .opcode = opcode, .flags = IBV_SEND_SIGNALED, .mw = slot, .mw_rkey = rkey, .mw_mr = 0,
			       .mw_addr = vt_b.info.addr + off, .mw_len = len, .mw_access = access };
}

/* Posts at the responder and gives the status of the completion; -1 none. */
static int do_b(const struct vt_wr *w, int *rc_out)
{
	struct ibv_wc wc;
	int rc = vt_send(&vt_b, w);
	if (rc_out)
		*rc_out = rc;
	if (rc)
		return -1;
	return vt_cqes(&vt_b, 0, 1, 2000, &wc) == 1 ? (int)wc.status : -1;
}

static int access_by(uint32_t rkey, int opcode, uint64_t off, uint32_t len)
{
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, opcode, len);
	struct ibv_wc wc;
	w.rkey = rkey;
	w.raddr = vt_b.info.addr + off;
	w.compare_add = 1;
	int rc = vt_send(&vt_a, &w);
	vt_check(rc == 0, "posting: %s", vt_errno_name(rc));
	return vt_cqes(&vt_a, 0, 1, 3000, &wc) == 1 ? (int)wc.status : -1;
}

#define want_status(got, want, ...)                                                                                        \
	do {                                                                                                                   \
		int got_ = (got);                                                                                                  \
		char what_[120];                                                                                                   \
		snprintf(what_, sizeof(what_), __VA_ARGS__);                                                                       \
		vt_check(got_ == (want), "%s: expected %s, got %s", what_, vt_wc_name(want), vt_wc_name(got_));                    \
	} while (0)

static void type1(void)
{
	ready(VT_RC);
	uint32_t unbound = vt_mw(&vt_b, 0, IBV_MW_TYPE_1, false);
	struct vt_wr b = bind(VT_OP_BIND_MW1, 0, 0, 4096, 8192, ALL);
	vt_require(vt_send(&vt_b, &b) == 0, "ibv_bind_mw");
	uint32_t first = vt_bound_rkey();
	struct ibv_wc wc;
	vt_require(vt_cqes(&vt_b, 0, 1, 2000, &wc) == 1, "no completion of the bind");
	want_status((int)wc.status, IBV_WC_SUCCESS, "bind");
	vt_check(wc.opcode == IBV_WC_BIND_MW && wc.wr_id == 5, "bind completion: opcode %d", (int)wc.opcode);
	vt_check(first != unbound, "ibv_bind_mw did not change the rkey");
	want_status(access_by(first, IBV_WR_RDMA_WRITE, 4096, 8), IBV_WC_SUCCESS, "write at the start");
	want_status(access_by(first, IBV_WR_RDMA_READ, 4096 + 8192 - 8, 8), IBV_WC_SUCCESS, "read at the end");
	want_status(access_by(first, IBV_WR_ATOMIC_FETCH_AND_ADD, 4096, 8), IBV_WC_SUCCESS, "atomic");
	/* Binding again makes the key of before stale; binding with length 0 unbinds. */
	b.mw_access = IBV_ACCESS_REMOTE_READ;
	vt_require(vt_send(&vt_b, &b) == 0, "ibv_bind_mw again");
	uint32_t second = vt_bound_rkey();
	vt_require(vt_cqes(&vt_b, 0, 1, 2000, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "second bind");
	vt_check(second != first, "a second bind kept the rkey");
	want_status(access_by(second, IBV_WR_RDMA_READ, 4096, 8), IBV_WC_SUCCESS, "read by the second key");
	want_status(access_by(first, IBV_WR_RDMA_READ, 4096, 8), IBV_WC_REM_ACCESS_ERR, "read by the first key");
	vt_teardown();

	static const struct { const char *what; uint64_t off; uint32_t len, access; int opcode; } bad[] = {
		{ "below the window", 4096 - 8, 16, ALL, IBV_WR_RDMA_WRITE },
		{ "beyond the window", 4096 + 8192 - 8, 16, ALL, IBV_WR_RDMA_WRITE },
		{ "write without the right", 4096, 8, IBV_ACCESS_REMOTE_READ, IBV_WR_RDMA_WRITE },
		{ "read without the right", 4096, 8, IBV_ACCESS_REMOTE_WRITE, IBV_WR_RDMA_READ },
		{ "atomic without the right", 4096, 8, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ, IBV_WR_ATOMIC_FETCH_AND_ADD },
	};
	for (size_t i = 0; i < VT_ARRAY(bad); i++) {
		int ev[8];
		ready(VT_RC);
		vt_mw(&vt_b, 0, IBV_MW_TYPE_1, false);
		b = bind(VT_OP_BIND_MW1, 0, 0, 4096, 8192, bad[i].access);
		vt_require(vt_send(&vt_b, &b) == 0, "ibv_bind_mw");
		uint32_t rkey = vt_bound_rkey();
		vt_require(vt_cqes(&vt_b, 0, 1, 2000, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "bind");
		want_status(access_by(rkey, bad[i].opcode, bad[i].off, bad[i].len), IBV_WC_REM_ACCESS_ERR, "%s", bad[i].what);
		int n = vt_events(&vt_b, 2000, ev, 8);
		vt_check(n == 1 && ev[0] == IBV_EVENT_QP_ACCESS_ERR, "%s: responder event %s", bad[i].what, vt_event_name(n ? ev[0] : -1));
		vt_teardown();
	}
}

static void unbind_and_free(void)
{
	ready(VT_RC);
	struct ibv_wc wc;
	vt_mw(&vt_b, 0, IBV_MW_TYPE_1, false);
	struct vt_wr b = bind(VT_OP_BIND_MW1, 0, 0, 0, 4096, ALL);
	vt_require(vt_send(&vt_b, &b) == 0 && vt_cqes(&vt_b, 0, 1, 2000, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "bind");
	b = bind(VT_OP_BIND_MW1, 0, 0, 0, 0, 0);
	vt_require(vt_send(&vt_b, &b) == 0, "bind of length 0");
	uint32_t rkey = vt_bound_rkey();
	vt_require(vt_cqes(&vt_b, 0, 1, 2000, &wc) == 1, "no completion of the unbind");
	want_status((int)wc.status, IBV_WC_SUCCESS, "unbind");
	want_status(access_by(rkey, IBV_WR_RDMA_WRITE, 0, 8), IBV_WC_REM_ACCESS_ERR, "write by an unbound window");
	ready(VT_RC);
	vt_mw(&vt_b, 0, IBV_MW_TYPE_1, false);
	b = bind(VT_OP_BIND_MW1, 0, 0, 0, 4096, ALL);
	vt_require(vt_send(&vt_b, &b) == 0, "bind");
	rkey = vt_bound_rkey();
	vt_require(vt_cqes(&vt_b, 0, 1, 2000, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "bind");
	vt_check(vt_simple(&vt_b, VT_MW_FREE, 0, 0, 0) == 0, "ibv_dealloc_mw of a bound window");
	want_status(access_by(rkey, IBV_WR_RDMA_WRITE, 0, 8), IBV_WC_REM_ACCESS_ERR, "write by a freed window");
	vt_teardown();
}

static void type2(void)
{
	for (int ex = 0; ex < 2; ex++) {
		struct vt_cfg a = vt_cfg_default(VT_RC), bc = a;
		bc.responder = 1;
		bc.send_ops = ex ? IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV : 0;
		vt_pair(&a, &bc);
		struct ibv_wc wc;
		uint32_t rkey = ibv_inc_rkey(vt_mw(&vt_b, 0, IBV_MW_TYPE_2, false));
		struct vt_wr b = bind(IBV_WR_BIND_MW, 0, rkey, 0, 4096, ALL);
		b.use_ex = ex;
		want_status(do_b(&b, NULL), IBV_WC_SUCCESS, "bind");
		want_status(access_by(rkey, IBV_WR_RDMA_WRITE, 0, 8), IBV_WC_SUCCESS, "write");
		/* Local invalidate ends it, and the window can be bound anew under another key. */
		struct vt_wr inv = { .wr_id = 6, .opcode = IBV_WR_LOCAL_INV, .flags = IBV_SEND_SIGNALED, .imm = rkey, .use_ex = ex };
		vt_require(vt_send(&vt_b, &inv) == 0, "posting local invalidate");
		vt_require(vt_cqes(&vt_b, 0, 1, 2000, &wc) == 1, "no completion of local invalidate");
		want_status((int)wc.status, IBV_WC_SUCCESS, "local invalidate");
		vt_check(wc.opcode == IBV_WC_LOCAL_INV && wc.wr_id == 6, "local invalidate completion: opcode %d", (int)wc.opcode);
		uint32_t again = ibv_inc_rkey(rkey);
		b = bind(IBV_WR_BIND_MW, 0, again, 0, 4096, IBV_ACCESS_REMOTE_WRITE);
		b.use_ex = ex;
		want_status(do_b(&b, NULL), IBV_WC_SUCCESS, "bind after invalidate");
		want_status(access_by(again, IBV_WR_RDMA_WRITE, 0, 8), IBV_WC_SUCCESS, "write by the new key");
		want_status(access_by(rkey, IBV_WR_RDMA_WRITE, 0, 8), IBV_WC_REM_ACCESS_ERR, "write by the invalidated key");
		vt_teardown();
	}
}

static void send_inv(void)
{
	ready(VT_RC);
	struct ibv_wc wc;
	uint32_t rkey = ibv_inc_rkey(vt_mw(&vt_b, 0, IBV_MW_TYPE_2, false));
	struct vt_wr b = bind(IBV_WR_BIND_MW, 0, rkey, 0, 4096, ALL);
	want_status(do_b(&b, NULL), IBV_WC_SUCCESS, "bind");
	want_status(access_by(rkey, IBV_WR_RDMA_WRITE, 0, 8), IBV_WC_SUCCESS, "write");
	vt_recv(&vt_b, 9, vt_b.info.addr + VT_RECV_AT, 64, vt_b.info.lkey);
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_SEND_WITH_INV, 8);
	w.imm = rkey;
	vt_require(vt_send(&vt_a, &w) == 0 && vt_cqes(&vt_a, 0, 1, 2000, &wc) == 1, "send with invalidate");
	want_status((int)wc.status, IBV_WC_SUCCESS, "send with invalidate");
	vt_require(vt_cqes(&vt_b, 1, 1, 2000, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "receive of it");
	vt_check((wc.wc_flags & IBV_WC_WITH_INV) && wc.invalidated_rkey == rkey, "the receive names rkey 0x%x, want 0x%x",
		 wc.invalidated_rkey, rkey);
	want_status(access_by(rkey, IBV_WR_RDMA_WRITE, 0, 8), IBV_WC_REM_ACCESS_ERR, "write by the invalidated key");
	/* A key that cannot be invalidated: the receive ends in error and so does the connection (9.9.3 class J). */
	ready(VT_RC);
	vt_recv(&vt_b, 9, vt_b.info.addr + VT_RECV_AT, 64, vt_b.info.lkey);
	w = vt_wr_to(&vt_a, &vt_b, IBV_WR_SEND_WITH_INV, 8);
	w.imm = 0x5a5a5a5a;
	vt_require(vt_send(&vt_a, &w) == 0, "posting");
	int n = vt_cqes(&vt_b, 1, 1, 2000, &wc);
	vt_check(n == 1 && wc.status != IBV_WC_SUCCESS && wc.status != IBV_WC_WR_FLUSH_ERR,
		"invalidate of an unknown key: the receive got %s",
		 vt_wc_name(n == 1 ? (int)wc.status : -1));
	vt_check(vt_state(&vt_b) == IBV_QPS_ERR, "the responder is in %s", vt_state_name(vt_state(&vt_b)));
	vt_teardown();
}

/* What a bind is refused for: a memory management operation error and a QP in ERR. */
static void bad_binds(void)
{
	enum { NO_MW_BIND, NO_LOCAL_WRITE, BEYOND, OTHER_PD, WRONG_KEY, BOUND };
	static const char *const names[] = { "region without IBV_ACCESS_MW_BIND", "write window on a region without local write",
					     "beyond the region", "window of another PD", "key with another index",
					     "window that is bound already" };
	for (int f = NO_MW_BIND; f <= BOUND; f++) {
		ready(VT_RC);
		int rc;
		uint32_t rkey = ibv_inc_rkey(vt_mw(&vt_b, 0, IBV_MW_TYPE_2, f == OTHER_PD));
		struct vt_wr b = bind(IBV_WR_BIND_MW, 0, rkey, 0, 4096, ALL);
		if (f == NO_MW_BIND) {
			vt_reg(&vt_b, 1, false, VT_ACCESS_ALL, 0, 8192);
			b.mw_mr = 1;
		} else if (f == NO_LOCAL_WRITE) {
			vt_reg(&vt_b, 1, false, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND, 0, 8192);
			b.mw_mr = 1;
		} else if (f == BEYOND) {
			b.mw_addr = vt_b.info.addr + VT_BUF - 8;
			b.mw_len = 16;
		} else if (f == WRONG_KEY) {
			b.mw_rkey = rkey ^ 0x00010000;
		} else if (f == BOUND) {
			want_status(do_b(&b, NULL), IBV_WC_SUCCESS, "first bind");
			b.mw_rkey = ibv_inc_rkey(rkey);
		}
		int status = do_b(&b, &rc);
		if (rc == 0) {
			want_status(status, IBV_WC_MW_BIND_ERR, "%s", names[f]);
			vt_check(vt_state(&vt_b) == IBV_QPS_ERR, "%s: the QP is in %s", names[f], vt_state_name(vt_state(&vt_b)));
		} else {
			/* What the library sees at once it may refuse at once. */
			vt_check(rc == EINVAL || rc == EPERM, "%s: %s", names[f], vt_errno_name(rc));
		}
		vt_teardown();
	}
	ready(VT_RC);
	struct vt_wr inv = { .wr_id = 6, .opcode = IBV_WR_LOCAL_INV, .flags = IBV_SEND_SIGNALED, .imm = 0x5a5a5a5a };
	want_status(do_b(&inv, NULL), IBV_WC_MW_BIND_ERR, "local invalidate of an unknown key");
	ready(VT_RC);
	inv.imm = vt_b.info.rkey; /* an ordinary region may not be invalidated (10.6.5) */
	want_status(do_b(&inv, NULL), IBV_WC_MW_BIND_ERR, "local invalidate of an ordinary region");
	vt_teardown();
}

/* ibv_bind_mw is for type 1 only, the posted bind for type 2 only; ZERO_BASED windows count from 0. */
static void kinds(void)
{
	ready(VT_RC);
	vt_mw(&vt_b, 0, IBV_MW_TYPE_2, false);
	struct vt_wr b = bind(VT_OP_BIND_MW1, 0, 0, 0, 4096, ALL);
	int rc = vt_send(&vt_b, &b);
	vt_check(rc == EINVAL, "ibv_bind_mw of a type 2 window: expected EINVAL, got %s", vt_errno_name(rc));
	uint32_t t1 = vt_mw(&vt_b, 1, IBV_MW_TYPE_1, false);
	b = bind(IBV_WR_BIND_MW, 1, ibv_inc_rkey(t1), 0, 4096, ALL);
	int status = do_b(&b, &rc);
	vt_check(rc == EINVAL || status == IBV_WC_MW_BIND_ERR, "posted bind of a type 1 window: %s, %s", vt_errno_name(rc),
		vt_wc_name(status));
	ready(VT_RC);
	uint32_t rkey = ibv_inc_rkey(vt_mw(&vt_b, 0, IBV_MW_TYPE_2, false));
	b = bind(IBV_WR_BIND_MW, 0, rkey, 4096, 4096, ALL | IBV_ACCESS_ZERO_BASED);
	status = do_b(&b, &rc);
	if (rc == 0 && status == IBV_WC_SUCCESS) {
		want_status(access_by(rkey, IBV_WR_RDMA_WRITE, 16 - vt_b.info.addr, 8), IBV_WC_SUCCESS, "write into a zero-based window");
		uint64_t got = vt_peek(&vt_b, 4096 + 16);
		vt_check(got == 0xaaaaaaaaaaaaaaaaull, "a zero-based write landed elsewhere");
	} else {
		vt_check(rc == EOPNOTSUPP || rc == EINVAL, "zero-based window: %s, %s", vt_errno_name(rc), vt_wc_name(status));
	}
	vt_teardown();
}

/* Binding is for UC and XRC requesters as well (the table of man ibv_post_send). */
static void other_types(void)
{
	static const enum vt_type types[] = { VT_UC, VT_XRC };
	for (size_t i = 0; i < VT_ARRAY(types); i++) {
		ready(types[i]);
		struct ibv_wc wc = { 0 };
		uint32_t rkey = ibv_inc_rkey(vt_mw(&vt_a, 0, IBV_MW_TYPE_2, false));
		struct vt_wr w = { .wr_id = 5, .opcode = IBV_WR_BIND_MW, .flags = IBV_SEND_SIGNALED, .mw = 0, .mw_rkey = rkey, .mw_mr = 0,
				   .mw_addr = vt_a.info.addr, .mw_len = 4096, .mw_access = ALL };
		int rc = vt_send(&vt_a, &w);
		vt_check(rc == 0, "posting a bind on type %d: %s", (int)types[i], vt_errno_name(rc));
		want_status(rc || vt_cqes(&vt_a, 0, 1, 2000, &wc) != 1 ? -1 : (int)wc.status, IBV_WC_SUCCESS, "bind on type %d", (int)types[i]);
		w = (struct vt_wr){ .wr_id = 6, .opcode = IBV_WR_LOCAL_INV, .flags = IBV_SEND_SIGNALED, .imm = rkey };
		rc = vt_send(&vt_a, &w);
		want_status(rc || vt_cqes(&vt_a, 0, 1, 2000, &wc) != 1 ? -1 : (int)wc.status, IBV_WC_SUCCESS, "invalidate on type %d",
			(int)types[i]);
		vt_teardown();
	}
}

/* Type 2B: a window serves only the QP it was bound on. */
static void other_qp(void)
{
	ready(VT_RC);
	struct vt_side *b = vt_b.local;
	if (!b)
		vt_does_not_apply("needs both sides in this process");
	uint32_t rkey = ibv_inc_rkey(vt_mw(&vt_b, 0, IBV_MW_TYPE_2, false));
	struct ibv_qp_init_attr ia = { .send_cq = b->scq, .recv_cq = b->rcq, .cap = { 8, 8, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp *own = b->qp, *other = ibv_create_qp(b->pd, &ia);
	vt_require(other, "ibv_create_qp: %s", strerror(errno));
	/* The other QP is connected to itself: it only has to bind. */
	struct vt_info keep = b->self;
	struct vt_end self = { .local = b, .info = b->self };
	self.info.qpn = other->qp_num;
	b->qp = other;
	int rc = vt_connect(&vt_b, &self, IBV_QPS_RTS);
	vt_check(rc == 0, "connecting a QP to itself: %s", vt_errno_name(rc));
	struct vt_wr w = bind(IBV_WR_BIND_MW, 0, rkey, 0, 4096, ALL);
	want_status(do_b(&w, NULL), IBV_WC_SUCCESS, "bind on the other QP");
	b->qp = own;
	b->self = keep;
	want_status(access_by(rkey, IBV_WR_RDMA_WRITE, 0, 8), IBV_WC_REM_ACCESS_ERR, "write through the window of another QP");
	vt_check(vt_simple(&vt_b, VT_MW_FREE, 0, 0, 0) == 0, "ibv_dealloc_mw");
	vt_check(ibv_destroy_qp(other) == 0, "ibv_destroy_qp");
	vt_teardown();
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = {
		{ "type1", type1 }, { "unbind_and_free", unbind_and_free }, { "type2", type2 }, { "send_inv", send_inv },
		{ "bad_binds", bad_binds }, { "kinds", kinds }, { "other_types", other_types }, { "other_qp", other_qp },
	};
	return vt_main(argc, argv, cases, VT_ARRAY(cases));
}
