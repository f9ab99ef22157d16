/* ibv_modify_qp: every transition with every attribute, per transport. The table gives the attributes that each
 * transition requires and allows (IBA 11.2.5.2, table 91; the same rules a kernel applies for every HCA); all else is
 * EINVAL and leaves the QP as it was. Then what is queried back, wrong values, SQD and its drained event. */
#include "vt.h"

#include <fcntl.h>

enum kind { RC, UC, UD, INI, TGT, KINDS }; /* INI, TGT: XRC send and receive */
static const char *const kind_names[KINDS] = { "RC", "UC", "UD", "XRC_SEND", "XRC_RECV" };
static const enum ibv_qp_type kind_types[KINDS] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV };

#define CUR IBV_QP_CUR_STATE
#define ACC IBV_QP_ACCESS_FLAGS
#define PKEY IBV_QP_PKEY_INDEX
#define PORT IBV_QP_PORT
#define QKEY IBV_QP_QKEY
#define AV IBV_QP_AV
#define MTU IBV_QP_PATH_MTU
#define TMO IBV_QP_TIMEOUT
#define RETRY IBV_QP_RETRY_CNT
#define RNR IBV_QP_RNR_RETRY
#define RQPSN IBV_QP_RQ_PSN
#define SQPSN IBV_QP_SQ_PSN
#define RD IBV_QP_MAX_QP_RD_ATOMIC
#define DRD IBV_QP_MAX_DEST_RD_ATOMIC
#define ALT IBV_QP_ALT_PATH
#define TIMER IBV_QP_MIN_RNR_TIMER
#define MIG IBV_QP_PATH_MIG_STATE
#define DEST IBV_QP_DEST_QPN
#define NOTIFY IBV_QP_EN_SQD_ASYNC_NOTIFY
/* Alternate paths exist on InfiniBand only, and a device may lack migration: whether these two are allowed where the
 * table allows them is not asserted; where it forbids them, the refusal is. */
#define MAYBE (ALT | MIG)

/* What the kernel's uverbs layer takes out of the mask before it asks the table, so that programs may always set it;
 * perftest does, on both ends of an XRC connection. */
static const int ignored[KINDS] = { 0, 0, 0, DRD | TIMER, RD | RETRY | RNR };

#define CONNECT (AV | MTU | DEST | RQPSN)
#define SEND_SIDE (TMO | RETRY | RNR | SQPSN | RD)

static const struct transition {
	enum ibv_qp_state from, to;
	struct { int required, optional; } of[KINDS]; /* RC, UC, UD, XRC send, XRC receive */
} table[] = {
	{ IBV_QPS_RESET, IBV_QPS_RESET, { { 0, 0 } } },
	{ IBV_QPS_RESET, IBV_QPS_INIT,
	  { { PKEY | PORT | ACC, 0 }, { PKEY | PORT | ACC, 0 }, { PKEY | PORT | QKEY, 0 }, { PKEY | PORT | ACC, 0 },
	    { PKEY | PORT | ACC, 0 } } },
	{ IBV_QPS_INIT, IBV_QPS_RESET, { { 0, 0 } } },
	{ IBV_QPS_INIT, IBV_QPS_ERR, { { 0, 0 } } },
	{ IBV_QPS_INIT, IBV_QPS_INIT,
	  { { 0, PKEY | PORT | ACC }, { 0, PKEY | PORT | ACC }, { 0, PKEY | PORT | QKEY }, { 0, PKEY | PORT | ACC },
	    { 0, PKEY | PORT | ACC } } },
	{ IBV_QPS_INIT, IBV_QPS_RTR,
	  { { CONNECT | DRD | TIMER, ALT | ACC | PKEY }, { CONNECT, ALT | ACC | PKEY }, { 0, PKEY | QKEY }, { CONNECT, ALT | ACC | PKEY },
	    { CONNECT | DRD | TIMER, ALT | ACC | PKEY } } },
	{ IBV_QPS_RTR, IBV_QPS_RESET, { { 0, 0 } } },
	{ IBV_QPS_RTR, IBV_QPS_ERR, { { 0, 0 } } },
	{ IBV_QPS_RTR, IBV_QPS_RTS,
	  { { SEND_SIDE, CUR | ALT | ACC | TIMER | MIG }, { SQPSN, CUR | ALT | ACC | MIG }, { SQPSN, CUR | QKEY },
	    { SEND_SIDE, CUR | ALT | ACC | MIG }, { TMO | SQPSN, CUR | ALT | ACC | TIMER | MIG } } },
	{ IBV_QPS_RTS, IBV_QPS_RESET, { { 0, 0 } } },
	{ IBV_QPS_RTS, IBV_QPS_ERR, { { 0, 0 } } },
	{ IBV_QPS_RTS, IBV_QPS_RTS,
	  { { 0, CUR | ACC | ALT | MIG | TIMER }, { 0, CUR | ACC | ALT | MIG }, { 0, CUR | QKEY }, { 0, CUR | ACC | ALT | MIG },
	    { 0, CUR | ACC | ALT | MIG | TIMER } } },
	{ IBV_QPS_RTS, IBV_QPS_SQD, { { 0, NOTIFY }, { 0, NOTIFY }, { 0, NOTIFY }, { 0, NOTIFY }, { 0, NOTIFY } } },
	{ IBV_QPS_SQD, IBV_QPS_RESET, { { 0, 0 } } },
	{ IBV_QPS_SQD, IBV_QPS_ERR, { { 0, 0 } } },
	{ IBV_QPS_SQD, IBV_QPS_RTS,
	  { { 0, CUR | ALT | ACC | TIMER | MIG }, { 0, CUR | ALT | ACC | MIG }, { 0, CUR | QKEY }, { 0, CUR | ALT | ACC | MIG },
	    { 0, CUR | ALT | ACC | TIMER | MIG } } },
	{ IBV_QPS_SQD, IBV_QPS_SQD,
	  { { 0, PORT | AV | TMO | RETRY | RNR | RD | DRD | ALT | ACC | PKEY | TIMER | MIG }, { 0, AV | ALT | ACC | PKEY | MIG },
	    { 0, PKEY | QKEY }, { 0, PORT | AV | TMO | RETRY | RNR | RD | ALT | ACC | PKEY | MIG },
	    { 0, PORT | AV | TMO | DRD | ALT | ACC | PKEY | TIMER | MIG } } },
	{ IBV_QPS_SQE, IBV_QPS_RESET, { { 0, 0 } } },
	{ IBV_QPS_SQE, IBV_QPS_ERR, { { 0, 0 } } },
	{ IBV_QPS_SQE, IBV_QPS_RTS, { { 0, 0 }, { 0, CUR | ACC }, { 0, CUR | QKEY } } },
	{ IBV_QPS_ERR, IBV_QPS_RESET, { { 0, 0 } } },
	{ IBV_QPS_ERR, IBV_QPS_ERR, { { 0, 0 } } },
};

static struct vt_dev dev;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_xrcd *xrcd;
static struct ibv_mr *mr;
static uint8_t memory[4096];

static void setup(void)
{
	if (!dev.ctx)
		vt_require(vt_open(&dev), "no device");
	vt_require((pd = ibv_alloc_pd(dev.ctx)), "ibv_alloc_pd: %s", strerror(errno));
	vt_require((cq = ibv_create_cq(dev.ctx, 64, NULL, NULL, 0)), "ibv_create_cq: %s", strerror(errno));
	struct ibv_xrcd_init_attr x = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT };
	vt_require((xrcd = ibv_open_xrcd(dev.ctx, &x)), "ibv_open_xrcd: %s", strerror(errno));
	vt_require((mr = ibv_reg_mr(pd, memory, sizeof(memory), VT_ACCESS_ALL)), "ibv_reg_mr: %s", strerror(errno));
}

static void cleanup(void)
{
	vt_check(ibv_dereg_mr(mr) == 0 && ibv_close_xrcd(xrcd) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0, "cleaning up");
}

static struct ibv_qp *create(enum kind k)
{
	struct ibv_qp_init_attr_ex a = { .send_cq = cq, .recv_cq = cq, .cap = { 8, 8, 1, 1, 0 }, .qp_type = kind_types[k],
					 .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd };
	if (k == TGT)
		a = (struct ibv_qp_init_attr_ex){ .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
	if (k == INI) {
		a.recv_cq = NULL;
		a.cap.max_recv_wr = a.cap.max_recv_sge = 0;
	}
	struct ibv_qp *qp = ibv_create_qp_ex(dev.ctx, &a);
	vt_require(qp, "creating a QP of type %s: %s", kind_names[k], strerror(errno));
	return qp;
}

static unsigned sq_psn = 0x222222;

/* Every attribute with a value that is valid for a QP connected to itself. */
static struct ibv_qp_attr values(struct ibv_qp *qp, enum ibv_qp_state from, enum ibv_qp_state to)
{
	struct ibv_qp_attr a = {
		.qp_state = to,
		.cur_qp_state = from,
		.path_mtu = IBV_MTU_1024,
		.path_mig_state = IBV_MIG_MIGRATED,
		.qkey = 0x1234,
		.rq_psn = 0x111111,
		.sq_psn = sq_psn,
		.dest_qp_num = qp->qp_num,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
		.cap = { 8, 8, 1, 1, 0 },
		.en_sqd_async_notify = 1,
		.max_rd_atomic = 2,
		.max_dest_rd_atomic = 3,
		.min_rnr_timer = 5,
		.port_num = dev.port_num,
		.timeout = 10,
		.retry_cnt = 6,
		.rnr_retry = 5,
		.alt_port_num = dev.port_num,
	};
	a.ah_attr.port_num = dev.port_num;
	a.ah_attr.dlid = dev.port.lid;
	if (dev.global) {
		a.ah_attr.is_global = 1;
		a.ah_attr.grh.dgid = dev.gid;
		a.ah_attr.grh.sgid_index = (uint8_t)dev.gid_index;
		a.ah_attr.grh.hop_limit = 3;
	}
	a.alt_ah_attr = a.ah_attr;
	return a;
}

static const struct transition *find(enum ibv_qp_state from, enum ibv_qp_state to)
{
	for (size_t i = 0; i < VT_ARRAY(table); i++)
		if (table[i].from == from && table[i].to == to)
			return &table[i];
	return NULL;
}

static int step(struct ibv_qp *qp, enum kind k, enum ibv_qp_state from, enum ibv_qp_state to, int extra)
{
	const struct transition *t = find(from, to);
	struct ibv_qp_attr a = values(qp, from, to);
	a.en_sqd_async_notify = 0;
	return ibv_modify_qp(qp, &a, IBV_QP_STATE | (t ? t->of[k].required : 0) | extra);
}

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr a = { 0 };
	struct ibv_qp_init_attr ia;
	int rc = ibv_query_qp(qp, &a, IBV_QP_STATE, &ia);
	vt_check(rc == 0, "ibv_query_qp: %s", vt_errno_name(rc));
	return a.qp_state;
}

/* SQE is entered by an error alone: a send from memory that is not registered. */
static void fall_to_sqe(struct ibv_qp *qp, enum kind k)
{
	struct ibv_sge sge = { 16, 8, 0x5a5a5a5a };
	struct ibv_send_wr w = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_qp_attr v = values(qp, IBV_QPS_RTS, IBV_QPS_RTS);
	struct ibv_ah *ah = ibv_create_ah(pd, &v.ah_attr);
	vt_require(ah, "ibv_create_ah: %s", strerror(errno));
	if (k == UD) {
		w.wr.ud.ah = ah;
		w.wr.ud.remote_qpn = qp->qp_num;
		w.wr.ud.remote_qkey = 0x1234;
	}
	int rc = ibv_post_send(qp, &w, &bad);
	struct ibv_wc wc;
	vt_require(rc == 0 && vt_poll(cq, &wc, 1, 2000) == 1 && wc.status == IBV_WC_LOC_PROT_ERR, "the faulty send");
	ibv_destroy_ah(ah);
	vt_require(state_of(qp) == IBV_QPS_SQE, "the QP is in %s, not SQE", vt_state_name((int)state_of(qp)));
}

static struct ibv_qp *at(enum kind k, enum ibv_qp_state state)
{
	static const enum ibv_qp_state way[] = { IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS };
	struct ibv_qp *qp = create(k);
	for (size_t i = 1; i < VT_ARRAY(way) && state >= way[i]; i++) {
		if (state == IBV_QPS_ERR && i == 2)
			break;
		int rc = step(qp, k, way[i - 1], way[i], 0);
		vt_require(rc == 0, "%s to %s: %s", vt_state_name((int)way[i - 1]), vt_state_name((int)way[i]), vt_errno_name(rc));
	}
	if (state == IBV_QPS_SQD)
		vt_require(step(qp, k, IBV_QPS_RTS, IBV_QPS_SQD, 0) == 0, "RTS to SQD");
	if (state == IBV_QPS_SQE)
		fall_to_sqe(qp, k);
	if (state == IBV_QPS_ERR)
		vt_require(step(qp, k, IBV_QPS_INIT, IBV_QPS_ERR, 0) == 0, "INIT to ERR");
	vt_require(state_of(qp) == state, "the QP is in %s, not %s", vt_state_name((int)state_of(qp)), vt_state_name((int)state));
	return qp;
}

static void drop(struct ibv_qp *qp)
{
	int rc = ibv_destroy_qp(qp);
	vt_check(rc == 0, "ibv_destroy_qp: %s", vt_errno_name(rc));
}

static void expect(enum kind k, struct ibv_qp **qp, enum ibv_qp_state from, enum ibv_qp_state to, int mask, int want, const char *why)
{
	struct ibv_qp_attr a = values(*qp, from, to);
	int rc = ibv_modify_qp(*qp, &a, mask);
	vt_check(rc == want, "%s to %s with mask 0x%x (%s): expected %s, got %s", vt_state_name((int)from), vt_state_name((int)to),
		mask, why,
		 vt_errno_name(want), vt_errno_name(rc));
	enum ibv_qp_state now = state_of(*qp), due = want ? from : to;
	vt_check(rc != want || now == due, "%s to %s with mask 0x%x (%s): the QP is in %s", vt_state_name((int)from),
		vt_state_name((int)to), mask,
		 why, vt_state_name((int)now));
	if (now != from || rc == 0) {
		drop(*qp);
		*qp = at(k, from);
	}
}

static void transition(enum kind k, enum ibv_qp_state from, enum ibv_qp_state to)
{
	const struct transition *t = find(from, to);
	struct ibv_qp *qp = at(k, from);
	if (!t) {
		/* Not a transition: refused with any mask that a neighbour would need. */
		expect(k, &qp, from, to, IBV_QP_STATE, EINVAL, "no such transition");
		for (size_t i = 0; i < VT_ARRAY(table); i++)
			if (table[i].to == to)
				expect(k, &qp, from, to, IBV_QP_STATE | table[i].of[k].required, EINVAL, "no such transition");
	} else {
		int req = t->of[k].required, opt = t->of[k].optional;
		expect(k, &qp, from, to, IBV_QP_STATE | req, 0, "the required attributes");
		for (int bit = 1; bit <= IBV_QP_DEST_QPN; bit <<= 1) {
			if (bit == IBV_QP_STATE)
				continue;
			if (ignored[k] & bit)
				expect(k, &qp, from, to, IBV_QP_STATE | req | bit, 0, "one attribute that is ignored");
			else if (req & bit)
				expect(k, &qp, from, to, (IBV_QP_STATE | req) & ~bit, EINVAL, "one required attribute missing");
			else if (opt & bit & ~MAYBE)
				expect(k, &qp, from, to, IBV_QP_STATE | req | bit, 0, "one optional attribute more");
			else if (!(opt & bit))
				expect(k, &qp, from, to, IBV_QP_STATE | req | bit, EINVAL, "one attribute too many");
		}
	}
	drop(qp);
}

static void run_kind(enum kind k)
{
	setup();
	for (int from = IBV_QPS_RESET; from <= IBV_QPS_ERR; from++) {
		if (from == IBV_QPS_SQE && k != UC && k != UD)
			continue; /* reliable QPs have no SQE (10.3.1) */
		for (int to = IBV_QPS_RESET; to <= IBV_QPS_ERR; to++) {
			/* IBA allows any state to go to ERR, kernels refuse it from RESET: not asserted. */
			if (from == IBV_QPS_RESET && to == IBV_QPS_ERR)
				continue;
			transition(k, (enum ibv_qp_state)from, (enum ibv_qp_state)to);
		}
	}
	cleanup();
}

static void rc(void) { run_kind(RC); }
static void uc(void) { run_kind(UC); }
static void ud(void) { run_kind(UD); }
static void xrc_send(void) { run_kind(INI); }
static void xrc_recv(void) { run_kind(TGT); }

static void query_back(void)
{
	setup();
	struct ibv_qp *qp = at(RC, IBV_QPS_RTS);
	struct ibv_qp_attr q = { 0 }, v = values(qp, IBV_QPS_RTR, IBV_QPS_RTS);
	struct ibv_qp_init_attr ia = { 0 };
	vt_require(ibv_query_qp(qp, &q, 0x1fffff, &ia) == 0, "ibv_query_qp");
#define same(field) vt_check(q.field == v.field, #field " is %lld, was set to %lld", (long long)q.field, (long long)v.field)
	same(qp_state);
	same(path_mtu);
	same(rq_psn);
	same(sq_psn);
	same(dest_qp_num);
	same(qp_access_flags);
	same(max_rd_atomic);
	same(max_dest_rd_atomic);
	same(min_rnr_timer);
	same(port_num);
	same(timeout);
	same(retry_cnt);
	same(rnr_retry);
	same(pkey_index);
	same(ah_attr.is_global);
	same(ah_attr.port_num);
	same(ah_attr.grh.sgid_index);
	same(ah_attr.grh.hop_limit);
	same(ah_attr.dlid);
	vt_check(!memcmp(&q.ah_attr.grh.dgid, &v.ah_attr.grh.dgid, 16), "the destination GID is another");
	vt_check(q.cur_qp_state == IBV_QPS_RTS, "cur_qp_state is %s", vt_state_name((int)q.cur_qp_state));
	vt_check(qp->state == IBV_QPS_RTS, "qp->state is %s", vt_state_name((int)qp->state));
	vt_check(ia.qp_type == IBV_QPT_RC && ia.send_cq == cq && ia.recv_cq == cq && ia.srq == NULL, "the init attributes are others");
	vt_check(ia.cap.max_send_wr >= 8 && ia.cap.max_recv_wr >= 8 && q.cap.max_send_wr == ia.cap.max_send_wr, "capabilities: %u, %u, %u",
		 ia.cap.max_send_wr, ia.cap.max_recv_wr, q.cap.max_send_wr);
	/* RTS to RTS changes what it may. */
	v = values(qp, IBV_QPS_RTS, IBV_QPS_RTS);
	v.min_rnr_timer = 17;
	v.qp_access_flags = IBV_ACCESS_REMOTE_READ;
	vt_check(ibv_modify_qp(qp, &v, IBV_QP_STATE | TIMER | ACC) == 0, "RTS to RTS");
	/* Without IBV_QP_STATE the attributes of the present state are changed. */
	v.min_rnr_timer = 18;
	vt_check(ibv_modify_qp(qp, &v, TIMER) == 0, "modify without IBV_QP_STATE");
	vt_require(ibv_query_qp(qp, &q, 0x1fffff, &ia) == 0, "ibv_query_qp");
	vt_check(q.min_rnr_timer == 18 && q.qp_access_flags == IBV_ACCESS_REMOTE_READ, "min_rnr_timer %d, access 0x%x", q.min_rnr_timer,
		 q.qp_access_flags);
	/* RNR timers are 5 bits; more are cut off, as mlx5 and rxe do. */
	v.min_rnr_timer = 0x20 | 7;
	vt_check(ibv_modify_qp(qp, &v, TIMER) == 0, "an RNR timer of 6 bits");
	vt_require(ibv_query_qp(qp, &q, 0x1fffff, &ia) == 0, "ibv_query_qp");
	vt_check(q.min_rnr_timer == 7, "the RNR timer is %d, was set to 0x27", q.min_rnr_timer);
	/* PSNs are 24 bits; more are cut off. */
	drop(qp);
	qp = at(UD, IBV_QPS_RTS);
	vt_require(ibv_query_qp(qp, &q, 0x1fffff, &ia) == 0, "ibv_query_qp");
	vt_check(q.qkey == 0x1234 && q.sq_psn == 0x222222, "UD qkey 0x%x, sq_psn 0x%x", q.qkey, q.sq_psn);
	drop(qp);
	cleanup();
}

/* One wrong value in an otherwise right request. */
static void wrong_values(void)
{
	setup();
	struct ibv_qp_attr a;
#define refused(from, to, field, value)                                                                                                   \
	do {                                                                                                                                  \
		struct ibv_qp *qp = at(RC, from);                                                                                                 \
		a = values(qp, from, to);                                                                                                         \
		a.field = (value);                                                                                                                \
		int rc_ = ibv_modify_qp(qp, &a, IBV_QP_STATE | find(from, to)->of[RC].required);                                                   \
		vt_check(rc_ == EINVAL, #field " = " #value ": expected EINVAL, got %s", vt_errno_name(rc_));                                      \
		vt_check(state_of(qp) == (from), #field " = " #value ": the QP moved");                                                           \
		drop(qp);                                                                                                                         \
	} while (0)
	refused(IBV_QPS_RESET, IBV_QPS_INIT, port_num, 0);
	refused(IBV_QPS_RESET, IBV_QPS_INIT, port_num, (uint8_t)(dev.attr.phys_port_cnt + 1));
	refused(IBV_QPS_RESET, IBV_QPS_INIT, pkey_index, dev.port.pkey_tbl_len);
	refused(IBV_QPS_INIT, IBV_QPS_RTR, path_mtu, (enum ibv_mtu)0);
	refused(IBV_QPS_INIT, IBV_QPS_RTR, path_mtu, (enum ibv_mtu)6);
	refused(IBV_QPS_INIT, IBV_QPS_RTR, max_dest_rd_atomic, (uint8_t)(dev.attr.max_qp_rd_atom + 1));
	refused(IBV_QPS_INIT, IBV_QPS_RTR, ah_attr.port_num, (uint8_t)(dev.attr.phys_port_cnt + 1));
	if (dev.global) {
		refused(IBV_QPS_INIT, IBV_QPS_RTR, ah_attr.is_global, 0); /* RoCE has no LIDs to go by */
		refused(IBV_QPS_INIT, IBV_QPS_RTR, ah_attr.grh.sgid_index, (uint8_t)(dev.port.gid_tbl_len > 254 ? 255 : dev.port.gid_tbl_len));
	}
	refused(IBV_QPS_RTR, IBV_QPS_RTS, timeout, 32);
	refused(IBV_QPS_RTR, IBV_QPS_RTS, retry_cnt, 8);
	refused(IBV_QPS_RTR, IBV_QPS_RTS, rnr_retry, 8);
	refused(IBV_QPS_RTR, IBV_QPS_RTS, max_rd_atomic, (uint8_t)(dev.attr.max_qp_init_rd_atom + 1));
	cleanup();
}

static int next_event(enum ibv_event_type *type, unsigned ms)
{
	struct ibv_async_event ev;
	do {
		if (!vt_event(dev.ctx, &ev, ms))
			return 0;
		*type = ev.event_type;
		ibv_ack_async_event(&ev);
	} while (*type == IBV_EVENT_COMM_EST);
	return 1;
}

static int write_self(struct ibv_qp *qp, uint64_t id)
{
	struct ibv_sge sge = { (uint64_t)(uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr w = { .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				 .send_flags = IBV_SEND_SIGNALED }, *bad;
	w.wr.rdma.remote_addr = (uint64_t)(uintptr_t)memory + 64;
	w.wr.rdma.rkey = mr->rkey;
	return ibv_post_send(qp, &w, &bad);
}

/* 10.3.1.5: SQD stops new requests, drains the begun ones, tells of it once when asked to, and RTS goes on. */
static void sqd(void)
{
	sq_psn = 0x111111; /* connected to itself: what it sends is what it expects */
	setup();
	struct ibv_qp *qp = at(RC, IBV_QPS_RTS);
	struct ibv_wc wc[4];
	enum ibv_event_type ev;
	vt_check(write_self(qp, 1) == 0 && vt_poll(cq, wc, 1, 2000) == 1 && wc[0].status == IBV_WC_SUCCESS, "a write before SQD");
	struct ibv_qp_attr a = values(qp, IBV_QPS_RTS, IBV_QPS_SQD);
	vt_check(ibv_modify_qp(qp, &a, IBV_QP_STATE | NOTIFY) == 0, "RTS to SQD with notification");
	vt_check(next_event(&ev, 2000) && ev == IBV_EVENT_SQ_DRAINED, "no send queue drained event");
	struct ibv_qp_init_attr ia;
	vt_check(ibv_query_qp(qp, &a, IBV_QP_STATE, &ia) == 0 && a.qp_state == IBV_QPS_SQD && !a.sq_draining,
		"drained, yet sq_draining is set");
	vt_check(write_self(qp, 2) == 0 && write_self(qp, 3) == 0, "posting in SQD is refused");
	vt_check(vt_poll(cq, wc, 1, 50) == 0, "a request posted in SQD was executed");
	vt_check(step(qp, RC, IBV_QPS_SQD, IBV_QPS_RTS, 0) == 0, "SQD to RTS");
	vt_check(vt_poll(cq, wc, 2, 2000) == 2 && wc[0].wr_id == 2 && wc[1].wr_id == 3 && wc[1].status == IBV_WC_SUCCESS,
		 "the requests posted in SQD did not run in RTS");
	vt_check(!next_event(&ev, 5), "a second event came");
	a = values(qp, IBV_QPS_RTS, IBV_QPS_SQD);
	a.en_sqd_async_notify = 0;
	vt_check(ibv_modify_qp(qp, &a, IBV_QP_STATE | NOTIFY) == 0, "RTS to SQD without notification");
	vt_check(!next_event(&ev, 30), "an event though none was asked for");
	/* Parameters may be changed meanwhile. */
	a = values(qp, IBV_QPS_SQD, IBV_QPS_SQD);
	a.retry_cnt = 2;
	vt_check(ibv_modify_qp(qp, &a, IBV_QP_STATE | RETRY) == 0 && ibv_query_qp(qp, &a, 0x1fffff, &ia) == 0 && a.retry_cnt == 2,
		 "SQD to SQD does not change retry_cnt");
	/* The path of a QP that is reached by a carrier stays what it was made with, and the program is told. */
	const char *link = getenv("VERVAIN_LINK");
	int far = link && (!strcmp(link, "roce") || !strcmp(link, "window"));
	a = values(qp, IBV_QPS_SQD, IBV_QPS_SQD);
	int rc = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV);
	vt_check(rc == 0, "SQD to SQD with the same path: %s", vt_errno_name(rc));
	a.ah_attr.grh.traffic_class ^= 4;
	rc = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV);
	vt_check(rc == (far ? EOPNOTSUPP : 0), "SQD to SQD with another path: %s", vt_errno_name(rc));
	drop(qp);
	cleanup();
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = {
		{ "rc", rc }, { "uc", uc }, { "ud", ud }, { "xrc_send", xrc_send }, { "xrc_recv", xrc_recv },
		{ "query_back", query_back }, { "wrong_values", wrong_values }, { "sqd", sqd },
	};
	return vt_main(argc, argv, cases, VT_ARRAY(cases));
}
