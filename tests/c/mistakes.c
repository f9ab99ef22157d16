/* Mistakes that programs make, one a case: what the device says of them is compared by the test that runs this. The calls
 * and completions must fail, or not come; how, conformance.c and its like look at. */
#include "vt.h"

#include <signal.h>
#include <unistd.h>

static void pair(const struct vt_cfg *b)
{
	struct vt_cfg a = vt_cfg_default(VT_RC), plain = a;
	a.sq_depth = 8;
	plain.responder = 1;
	vt_pair(&a, b ? b : &plain);
}

/* The request must end with this status. */
static void fails(struct vt_wr w, enum ibv_wc_status status)
{
	struct ibv_wc wc = { .status = IBV_WC_GENERAL_ERR };
	w.flags |= IBV_SEND_SIGNALED;
	vt_require(vt_send(&vt_a, &w) == 0 && vt_cqes(&vt_a, 0, 1, 5000, &wc) == 1, "no completion");
	vt_check(wc.status == status, "status %s", vt_wc_name((int)wc.status));
	int events[8];
	vt_events(&vt_b, 500, events, 8); /* the other end has heard of it */
	vt_teardown();
}

static void full_queue(void)
{
	pair(NULL);
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_RDMA_WRITE, 8);
	w.flags = IBV_SEND_SIGNALED;
	for (int i = 0; i < 8; i++)
		vt_require(vt_send(&vt_a, &w) == 0, "posting %d", i);
	int rc = vt_send(&vt_a, &w);
	vt_check(rc == ENOMEM, "the ninth: %s", vt_errno_name(rc));
	vt_teardown();
}

/* Gives the initiator a QP that reports to `cq`, connected as the one before. */
static void replace_qp(struct ibv_cq *cq)
{
	struct vt_side *s = vt_a.local;
	struct ibv_qp_init_attr ia = { .send_cq = cq, .recv_cq = cq, .cap = { 64, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	ibv_destroy_qp(s->qp);
	s->qp = ibv_create_qp(s->pd, &ia);
	vt_require(s->qp, "ibv_create_qp: %s", strerror(errno));
	s->self.qpn = vt_a.info.qpn = s->qp->qp_num;
	s->self.psn = vt_a.info.psn = 77;
	vt_require(vt_modify(&vt_b, IBV_QPS_RESET) == 0 && !vt_connect(&vt_b, &vt_a, IBV_QPS_RTS) && !vt_connect(&vt_a, &vt_b, IBV_QPS_RTS),
		   "connecting");
}

static void overrun(void)
{
	struct vt_cfg a = vt_cfg_default(VT_RC), b = a;
	b.responder = 1;
	vt_pair(&a, &b);
	struct vt_side *s = vt_a.local;
	struct ibv_cq *cq = ibv_create_cq(s->dev.ctx, 4, NULL, NULL, 0);
	vt_require(cq, "ibv_create_cq: %s", strerror(errno));
	unsigned entries = (unsigned)cq->cqe;
	replace_qp(cq);
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_RDMA_WRITE, 8);
	w.flags = IBV_SEND_SIGNALED;
	for (unsigned i = 0; i <= entries + 1; i++)
		vt_send(&vt_a, &w);
	struct ibv_async_event ev;
	bool told = false;
	while (!told && vt_event(s->dev.ctx, &ev, 5000) == 1) {
		told = ev.event_type == IBV_EVENT_CQ_ERR;
		ibv_ack_async_event(&ev);
	}
	vt_check(told, "no IBV_EVENT_CQ_ERR");
	vt_check(vt_state(&vt_a) == IBV_QPS_ERR, "the QP of an overrun CQ is in %s", vt_state_name(vt_state(&vt_a)));
	ibv_destroy_qp(s->qp);
	s->qp = NULL;
	ibv_destroy_cq(cq);
	vt_teardown();
}

static void unknown_rkey(void)
{
	pair(NULL);
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_RDMA_WRITE, 8);
	w.rkey ^= 0xff;
	fails(w, IBV_WC_REM_ACCESS_ERR);
}

static void outside_the_mr(void)
{
	pair(NULL);
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_RDMA_READ, 64);
	w.raddr += vt_b.info.size - 32;
	fails(w, IBV_WC_REM_ACCESS_ERR);
}

static void mr_without_the_right(void)
{
	pair(NULL);
	struct vt_info mr = vt_reg(&vt_b, 1, false, IBV_ACCESS_LOCAL_WRITE, 0, 4096);
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_RDMA_WRITE, 8);
	w.raddr = mr.addr;
	w.rkey = mr.rkey;
	fails(w, IBV_WC_REM_ACCESS_ERR);
}

static void qp_without_the_right(void)
{
	struct vt_cfg b = vt_cfg_default(VT_RC);
	b.responder = 1;
	b.qp_access = IBV_ACCESS_REMOTE_READ;
	pair(&b);
	fails(vt_wr_to(&vt_a, &vt_b, IBV_WR_RDMA_WRITE, 8), IBV_WC_REM_INV_REQ_ERR);
}

static void flush_without_the_right(void)
{
	struct vt_cfg a = vt_cfg_default(VT_RC), b = a;
	a.send_ops = VT_QP_EX_WITH_FLUSH;
	b.responder = 1;
	vt_pair(&a, &b);
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, VT_OP_FLUSH, 8);
	w.rkey = vt_reg(&vt_b, 1, false, IBV_ACCESS_LOCAL_WRITE, 0, 4096).rkey;
	w.swap = 64;
	w.use_ex = 1;
	fails(w, IBV_WC_REM_ACCESS_ERR);
}

static void long_message(void)
{
	pair(NULL);
	vt_require(vt_recv(&vt_b, 1, vt_b.info.addr + VT_RECV_AT, 16, vt_b.info.lkey) == 0, "posting a receive");
	fails(vt_wr_to(&vt_a, &vt_b, IBV_WR_SEND, 64), IBV_WC_REM_INV_REQ_ERR);
}

static void no_receive(void)
{
	struct vt_cfg a = vt_cfg_default(VT_RC), b = a;
	a.rnr_retry = 0;
	b.responder = 1;
	vt_pair(&a, &b);
	fails(vt_wr_to(&vt_a, &vt_b, IBV_WR_SEND, 64), IBV_WC_RNR_RETRY_EXC_ERR);
}

static void local_key(void)
{
	pair(NULL);
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_RDMA_WRITE, 8);
	w.sge[0].lkey ^= 0xff;
	fails(w, IBV_WC_LOC_PROT_ERR);
}

/* Leaves nothing behind that runs at the end of a program. */
static void local_key_and_exit(void)
{
	struct ibv_wc wc;
	pair(NULL);
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_RDMA_WRITE, 8);
	w.flags = IBV_SEND_SIGNALED;
	w.sge[0].lkey ^= 0xff;
	vt_require(vt_send(&vt_a, &w) == 0 && vt_cqes(&vt_a, 0, 1, 5000, &wc) == 1, "no completion");
	_exit(0);
}

static void local_range(void)
{
	pair(NULL);
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_RDMA_WRITE, 64);
	w.sge[1] = w.sge[0];
	w.sge[1].addr += vt_a.info.size - 32;
	w.nsge = 2;
	fails(w, IBV_WC_LOC_PROT_ERR);
}

static void local_right(void)
{
	pair(NULL);
	struct vt_info mr = vt_reg(&vt_a, 1, false, 0, 0, 4096);
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_RDMA_READ, 8);
	w.sge[0] = (struct ibv_sge){ mr.addr, 8, mr.lkey };
	fails(w, IBV_WC_LOC_PROT_ERR);
}

static void no_reads(void)
{
	struct vt_cfg a = vt_cfg_default(VT_RC), b = a;
	a.max_rd = 0;
	b.responder = 1;
	vt_pair(&a, &b);
	fails(vt_wr_to(&vt_a, &vt_b, IBV_WR_RDMA_READ, 8), IBV_WC_LOC_QP_OP_ERR);
}

static void too_many_reads(void)
{
	struct vt_cfg a = vt_cfg_default(VT_RC);
	vt_ends_open();
	vt_setup(&vt_a, &a);
	vt_require(vt_connect(&vt_a, &vt_a, IBV_QPS_RTR) == 0, "to RTR");
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 255 };
	int rc = ibv_modify_qp(vt_a.local->qp, &attr,
			       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
	vt_check(rc == EINVAL, "%s", vt_errno_name(rc));
	vt_teardown();
}

static void lacking_mask(void)
{
	struct vt_cfg a = vt_cfg_default(VT_RC);
	vt_ends_open();
	vt_setup(&vt_a, &a);
	vt_require(vt_connect(&vt_a, &vt_a, IBV_QPS_INIT) == 0, "to INIT");
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .dest_qp_num = vt_a.info.qpn, .ah_attr = { .port_num = 1 } };
	int rc = ibv_modify_qp(vt_a.local->qp, &attr,
			       IBV_QP_STATE | IBV_QP_AV | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC);
	vt_check(rc == EINVAL, "%s", vt_errno_name(rc));
	vt_teardown();
}

static void too_many(void)
{
	struct vt_cfg a = vt_cfg_default(VT_RC);
	vt_ends_open();
	vt_setup(&vt_a, &a);
	struct ibv_qp_init_attr ia = { .send_cq = vt_a.local->scq, .recv_cq = vt_a.local->rcq, .cap = { 16777216, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	vt_check(!ibv_create_qp(vt_a.local->pd, &ia) && errno == EINVAL, "%s", strerror(errno));
	vt_teardown();
}

static void too_early(void)
{
	struct vt_cfg a = vt_cfg_default(VT_RC), b = a;
	b.responder = 1;
	vt_ends_open();
	vt_setup(&vt_a, &a);
	vt_setup(&vt_b, &b);
	vt_require(vt_connect(&vt_a, &vt_b, IBV_QPS_RTR) == 0, "to RTR");
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_RDMA_WRITE, 8);
	int rc = vt_send(&vt_a, &w);
	vt_check(rc == EINVAL, "%s", vt_errno_name(rc));
	vt_teardown();
}

/* RTR with the GID that a port of the other link layer has. */
static int to_rtr_with(const uint8_t gid[16])
{
	vt_require(vt_connect(&vt_a, &vt_a, IBV_QPS_INIT) == 0, "to INIT");
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.dest_qp_num = vt_a.info.qpn,
		.path_mtu = IBV_MTU_1024,
		.ah_attr = { .port_num = 1, .is_global = 1, .grh = { .sgid_index = (uint8_t)vt_a.local->dev.gid_index, .hop_limit = 1 } },
	};
	memcpy(attr.ah_attr.grh.dgid.raw, gid, 16);
	return ibv_modify_qp(vt_a.local->qp, &attr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				     IBV_QP_MIN_RNR_TIMER);
}

static void other_link_layer(void)
{
	static const uint8_t of_infiniband[16] = { 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x02, 0x56, 1, 2, 3, 4, 0, 1 };
	static const uint8_t of_ethernet[16] = { [10] = 0xff, 0xff, 192, 0, 2, 7 };
	struct vt_cfg a = vt_cfg_default(VT_RC);
	vt_ends_open();
	vt_setup(&vt_a, &a);
	bool ethernet = vt_a.local->dev.global;
	int rc = to_rtr_with(ethernet ? of_infiniband : of_ethernet);
	if (ethernet) {
		vt_check(rc == EINVAL, "%s", vt_errno_name(rc));
		vt_teardown();
		return;
	}
	vt_require(rc == 0, "to RTR: %s", vt_errno_name(rc));
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .timeout = 1 };
	vt_require(!ibv_modify_qp(vt_a.local->qp, &attr,
				  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
		   "to RTS");
	struct vt_wr w = vt_wr_to(&vt_a, &vt_a, IBV_WR_RDMA_WRITE, 8);
	struct ibv_wc wc = { .status = IBV_WC_GENERAL_ERR };
	w.flags = IBV_SEND_SIGNALED;
	vt_require(vt_send(&vt_a, &w) == 0 && vt_cqes(&vt_a, 0, 1, 5000, &wc) == 1, "no completion");
	vt_check(wc.status == IBV_WC_RETRY_EXC_ERR, "status %s", vt_wc_name((int)wc.status));
	vt_teardown();
}

static void wrong_qkey(void)
{
	struct vt_cfg a = vt_cfg_default(VT_UD), b = a;
	b.responder = 1;
	vt_pair(&a, &b);
	vt_require(vt_recv(&vt_b, 1, vt_b.info.addr + VT_RECV_AT, 1024, vt_b.info.lkey) == 0, "posting a receive");
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_SEND, 64);
	struct ibv_wc wc = { .status = IBV_WC_GENERAL_ERR };
	w.ud_qkey = 0x5678;
	w.flags = IBV_SEND_SIGNALED;
	vt_require(vt_send(&vt_a, &w) == 0 && vt_cqes(&vt_a, 0, 1, 5000, &wc) == 1, "no completion");
	vt_check(wc.status == IBV_WC_SUCCESS && vt_cqes(&vt_b, 1, 1, 300, &wc) == 0, "it has arrived");
	vt_teardown();
}

/* Harmless at the end of a program, and so common there: the domain goes before what is in it. */
static void domain_in_use(void)
{
	struct vt_cfg a = vt_cfg_default(VT_RC);
	vt_ends_open();
	vt_setup(&vt_a, &a);
	int rc = ibv_dealloc_pd(vt_a.local->pd);
	vt_check(rc == EBUSY, "%s", vt_errno_name(rc));
	vt_teardown();
}

/* Waits for a completion that does not come, and gives up after the progress thread has looked a few times. Leaves all as it is. */
static void wait_in_vain(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	if (cq)
		vt_check(vt_poll(cq, &wc, 1, 5000) == 0, "a completion");
	else
		vt_sleep_ms(5000);
	exit(vt_failures() ? 1 : 0);
}

static void post_write(unsigned flags)
{
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_RDMA_WRITE, 8);
	w.flags = flags;
	vt_require(vt_send(&vt_a, &w) == 0, "posting");
}

static void hang_no_receive(void)
{
	pair(NULL);
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_SEND, 64);
	w.flags = IBV_SEND_SIGNALED;
	vt_require(vt_send(&vt_a, &w) == 0, "posting");
	wait_in_vain(vt_a.local->scq);
}

/* As one who presses ^C. */
static void hang_until_interrupted(void)
{
	struct ibv_wc wc;
	pair(NULL);
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_SEND, 64);
	w.flags = IBV_SEND_SIGNALED;
	vt_require(vt_send(&vt_a, &w) == 0 && vt_poll(vt_a.local->scq, &wc, 1, 14000) == 0, "a completion");
	raise(SIGINT);
}

static void hang_unsignaled(void)
{
	pair(NULL);
	post_write(0);
	wait_in_vain(vt_a.local->scq);
}

static void hang_unpolled(void)
{
	pair(NULL);
	post_write(IBV_SEND_SIGNALED);
	wait_in_vain(NULL);
}

/* One event is waited for, and no other asked for. */
static void hang_unarmed(void)
{
	struct vt_cfg a = vt_cfg_default(VT_RC), b = a;
	struct ibv_wc wc;
	void *context;
	b.responder = 1;
	vt_pair(&a, &b);
	struct vt_side *s = vt_a.local;
	struct ibv_comp_channel *channel = ibv_create_comp_channel(s->dev.ctx);
	struct ibv_cq *cq = channel ? ibv_create_cq(s->dev.ctx, 16, NULL, channel, 0) : NULL;
	vt_require(cq, "ibv_create_cq: %s", strerror(errno));
	replace_qp(cq);
	vt_require(ibv_req_notify_cq(cq, 0) == 0, "ibv_req_notify_cq");
	post_write(IBV_SEND_SIGNALED);
	vt_require(ibv_get_cq_event(channel, &cq, &context) == 0, "ibv_get_cq_event: %s", strerror(errno));
	ibv_ack_cq_events(cq, 1);
	vt_require(vt_poll(cq, &wc, 1, 5000) == 1, "no completion");
	post_write(IBV_SEND_SIGNALED);
	wait_in_vain(NULL);
}

/* No mistake: what a program that works makes the device say. */
static void nothing_wrong(void)
{
	pair(NULL);
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_RDMA_WRITE, 4096);
	struct ibv_wc wc = { .status = IBV_WC_GENERAL_ERR };
	w.flags = IBV_SEND_SIGNALED;
	vt_require(vt_send(&vt_a, &w) == 0 && vt_cqes(&vt_a, 0, 1, 5000, &wc) == 1, "no completion");
	vt_check(wc.status == IBV_WC_SUCCESS, "status %s", vt_wc_name((int)wc.status));
	vt_teardown();
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = {
		{ "full_queue", full_queue },		{ "overrun", overrun },
		{ "unknown_rkey", unknown_rkey },	{ "outside_the_mr", outside_the_mr },
		{ "mr_without_the_right", mr_without_the_right }, { "qp_without_the_right", qp_without_the_right },
		{ "flush_without_the_right", flush_without_the_right },
		{ "long_message", long_message },	{ "no_receive", no_receive },
		{ "local_key", local_key },		{ "lacking_mask", lacking_mask },
		{ "local_range", local_range },		{ "local_right", local_right },
		{ "local_key_and_exit", local_key_and_exit },
		{ "no_reads", no_reads },		{ "too_many_reads", too_many_reads },
		{ "too_many", too_many },		{ "too_early", too_early },
		{ "other_link_layer", other_link_layer }, { "wrong_qkey", wrong_qkey },
		{ "domain_in_use", domain_in_use },	{ "nothing_wrong", nothing_wrong },
		{ "hang_no_receive", hang_no_receive }, { "hang_unsignaled", hang_unsignaled },
		{ "hang_until_interrupted", hang_until_interrupted },
		{ "hang_unpolled", hang_unpolled },	{ "hang_unarmed", hang_unarmed },
	};
	return vt_main(argc, argv, cases, VT_ARRAY(cases));
}
