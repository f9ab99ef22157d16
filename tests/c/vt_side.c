/* vt_side: the objects of one end of a connection and the requests that drive them. The same code answers a local
 * call and a request that came over the socket, so a case reads the same for one process and for two. See vt.h. */
#define _GNU_SOURCE
#include "vt.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

struct vt_cfg vt_cfg_default(enum vt_type type)
{
	return (struct vt_cfg){
		.type = type,
		.qp_access = VT_ACCESS_ALL & ~IBV_ACCESS_LOCAL_WRITE,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.min_rnr_timer = 12,
		.max_rd = 4,
		.max_dest_rd = 4,
		.sq_depth = 16,
		.rq_depth = 16,
		.max_sge = 4,
		.max_inline = 64,
		.qkey = VT_QKEY,
		.mtu = IBV_MTU_1024,
	};
}

static void side_teardown(struct vt_side *s)
{
	for (int i = 0; i < VT_SLOTS; i++) {
		if (s->mw[i])
			ibv_dealloc_mw(s->mw[i]);
		s->mw[i] = NULL;
	}
	if (s->qp)
		ibv_destroy_qp(s->qp);
	if (s->srq)
		ibv_destroy_srq(s->srq);
	if (s->ah)
		ibv_destroy_ah(s->ah);
	for (int i = 0; i < VT_SLOTS; i++) {
		if (s->mr[i])
			ibv_dereg_mr(s->mr[i]);
		s->mr[i] = NULL;
	}
	if (s->scq)
		ibv_destroy_cq(s->scq);
	if (s->rcq && s->rcq != s->scq)
		ibv_destroy_cq(s->rcq);
	if (s->xrcd)
		ibv_close_xrcd(s->xrcd);
	if (s->pd)
		ibv_dealloc_pd(s->pd);
	if (s->pd2)
		ibv_dealloc_pd(s->pd2);
	if (s->buf)
		vt_memory_free(s->buf, VT_BUF);
	s->qp = NULL;
	s->srq = NULL;
	s->ah = NULL;
	s->scq = s->rcq = NULL;
	s->xrcd = NULL;
	s->pd = s->pd2 = NULL;
	s->buf = NULL;
	/* Events of objects that are gone are gone too; those of the device may stay. */
	struct ibv_async_event ev;
	while (s->open && vt_event(s->dev.ctx, &ev, 0))
		ibv_ack_async_event(&ev);
}

static int create_srq(struct vt_side *s)
{
	if (s->cfg.type == VT_RC_SRQ) {
		struct ibv_srq_init_attr a = { .attr = { .max_wr = s->cfg.rq_depth, .max_sge = s->cfg.max_sge } };
		s->srq = ibv_create_srq(s->pd, &a);
		return s->srq ? 0 : errno;
	}
	struct ibv_xrcd_init_attr x = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1,
					.oflags = O_CREAT };
	s->xrcd = ibv_open_xrcd(s->dev.ctx, &x);
	if (!s->xrcd)
		return errno;
	struct ibv_srq_init_attr_ex a = {
		.attr = { .max_wr = s->cfg.rq_depth, .max_sge = s->cfg.max_sge },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC,
		.pd = s->pd,
		.xrcd = s->xrcd,
		.cq = s->rcq,
	};
	s->srq = ibv_create_srq_ex(s->dev.ctx, &a);
	if (!s->srq)
		return errno;
	return ibv_get_srq_num(s->srq, &s->self.srqn);
}

static enum ibv_qp_type qp_type(const struct vt_cfg *c)
{
	switch (c->type) {
	case VT_UC:
		return IBV_QPT_UC;
	case VT_UD:
		return IBV_QPT_UD;
	case VT_XRC:
		return c->responder ? IBV_QPT_XRC_RECV : IBV_QPT_XRC_SEND;
	default:
		return IBV_QPT_RC;
	}
}

static int create_qp(struct vt_side *s)
{
	const struct vt_cfg *c = &s->cfg;
	struct ibv_qp_init_attr_ex a = {
		.send_cq = s->scq,
		.recv_cq = s->rcq,
		.srq = c->type == VT_RC_SRQ ? s->srq : NULL,
		.cap = { c->sq_depth, c->rq_depth, c->max_sge, c->max_sge, c->max_inline },
		.qp_type = qp_type(c),
		.sq_sig_all = c->sq_sig_all,
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = s->pd,
	};
	if (a.qp_type == IBV_QPT_XRC_RECV) {
		a.comp_mask = IBV_QP_INIT_ATTR_XRCD;
		a.xrcd = s->xrcd;
		a.send_cq = a.recv_cq = NULL;
		a.pd = NULL;
	} else if (c->send_ops) {
		a.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		a.send_ops_flags = c->send_ops;
	}
	if (a.qp_type == IBV_QPT_XRC_SEND) {
		a.recv_cq = NULL;
		a.cap.max_recv_wr = a.cap.max_recv_sge = 0;
	}
	s->qp = ibv_create_qp_ex(s->dev.ctx, &a);
	return s->qp ? 0 : errno;
}

static int side_setup(struct vt_side *s, const struct vt_cfg *cfg)
{
	side_teardown(s);
	s->cfg = *cfg;
	memset(&s->self, 0, sizeof(s->self));
	s->buf = vt_memory(VT_BUF);
	if (s->buf == MAP_FAILED) {
		s->buf = NULL;
		return errno;
	}
	memset(s->buf, cfg->responder ? 0xbb : 0xaa, VT_BUF);
	if (!(s->pd = ibv_alloc_pd(s->dev.ctx)) || !(s->pd2 = ibv_alloc_pd(s->dev.ctx)))
		return errno;
	if (!(s->scq = ibv_create_cq(s->dev.ctx, 256, s, NULL, 0)) ||
		!(s->rcq = s->cfg.one_cq ? s->scq : ibv_create_cq(s->dev.ctx, 256, s, NULL, 0)))
		return errno;
	int access = VT_ACCESS_ALL | IBV_ACCESS_MW_BIND;
	if (!(s->mr[0] = ibv_reg_mr(s->pd, s->buf, VT_BUF, access)))
		return errno;
	int rc = 0;
	if (cfg->responder && (cfg->type == VT_RC_SRQ || cfg->type == VT_XRC))
		rc = create_srq(s);
	if (!rc)
		rc = create_qp(s);
	if (rc)
		return rc;
	s->self.gid = s->dev.gid;
	s->self.lid = s->dev.port.lid;
	s->self.qpn = s->qp->qp_num;
	s->self.psn = (s->qp->qp_num * 7919u) & 0xffffff;
	s->self.qkey = cfg->qkey;
	s->self.addr = (uint64_t)(uintptr_t)s->buf;
	s->self.size = VT_BUF;
	s->self.lkey = s->mr[0]->lkey;
	s->self.rkey = s->mr[0]->rkey;
	return 0;
}

static void fill_av(struct vt_side *s, struct ibv_ah_attr *av)
{
	memset(av, 0, sizeof(*av));
	av->port_num = s->dev.port_num;
	av->dlid = s->peer.lid;
	if (s->dev.global) {
		av->is_global = 1;
		av->grh.dgid = s->peer.gid;
		av->grh.sgid_index = (uint8_t)s->dev.gid_index;
		av->grh.hop_limit = 64;
	}
}

static int side_connect(struct vt_side *s, enum ibv_qp_state upto)
{
	const struct vt_cfg *c = &s->cfg;
	enum ibv_qp_type type = qp_type(c);
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT,
		.port_num = s->dev.port_num,
		.qp_access_flags = c->qp_access,
		.qkey = c->qkey,
	};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	if (upto < IBV_QPS_INIT)
		return 0;
	int rc = ibv_modify_qp(s->qp, &a, mask | (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
	if (rc || upto < IBV_QPS_RTR)
		return rc;
	a.qp_state = IBV_QPS_RTR;
	mask = IBV_QP_STATE;
	if (type != IBV_QPT_UD) {
		a.path_mtu = (enum ibv_mtu)c->mtu;
		a.dest_qp_num = s->peer.qpn;
		a.rq_psn = s->peer.psn;
		a.max_dest_rd_atomic = (uint8_t)c->max_dest_rd;
		a.min_rnr_timer = (uint8_t)c->min_rnr_timer;
		fill_av(s, &a.ah_attr);
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
		if (type == IBV_QPT_RC || type == IBV_QPT_XRC_RECV)
			mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	} else {
		struct ibv_ah_attr av;
		fill_av(s, &av);
		if (s->ah)
			ibv_destroy_ah(s->ah);
		if (!(s->ah = ibv_create_ah(s->pd, &av)))
			return errno;
	}
	rc = ibv_modify_qp(s->qp, &a, mask);
	if (rc || upto < IBV_QPS_RTS)
		return rc;
	a.qp_state = IBV_QPS_RTS;
	a.sq_psn = (s->self.psn + (uint32_t)c->psn_off) & 0xffffff;
	a.timeout = (uint8_t)c->timeout;
	a.retry_cnt = (uint8_t)c->retry_cnt;
	a.rnr_retry = (uint8_t)c->rnr_retry;
	a.max_rd_atomic = (uint8_t)c->max_rd;
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (type == IBV_QPT_RC || type == IBV_QPT_XRC_SEND)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	else if (type == IBV_QPT_XRC_RECV)
		mask |= IBV_QP_TIMEOUT;
	return ibv_modify_qp(s->qp, &a, mask);
}

static int post_ex(struct vt_side *s, const struct vt_wr *w)
{
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(s->qp);
	struct ibv_mw_bind_info bind = { s->mr[w->mw_mr], w->mw_addr, w->mw_len, w->mw_access };
	bool data = true;
	if (!x)
		return ENOSYS;
	ibv_wr_start(x);
	x->wr_id = w->wr_id;
	x->wr_flags = w->flags & ~(unsigned)IBV_SEND_INLINE;
	switch (w->opcode) {
	case IBV_WR_SEND:
		ibv_wr_send(x);
		break;
	case IBV_WR_SEND_WITH_IMM:
		ibv_wr_send_imm(x, htonl(w->imm));
		break;
	case IBV_WR_SEND_WITH_INV:
		ibv_wr_send_inv(x, w->imm);
		break;
	case IBV_WR_RDMA_WRITE:
		ibv_wr_rdma_write(x, w->rkey, w->raddr);
		break;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		ibv_wr_rdma_write_imm(x, w->rkey, w->raddr, htonl(w->imm));
		break;
	case IBV_WR_RDMA_READ:
		ibv_wr_rdma_read(x, w->rkey, w->raddr);
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		ibv_wr_atomic_cmp_swp(x, w->rkey, w->raddr, w->compare_add, w->swap);
		break;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		ibv_wr_atomic_fetch_add(x, w->rkey, w->raddr, w->compare_add);
		break;
	case VT_WR_ATOMIC_WRITE:
		vt_build_atomic_write(x, w->rkey, w->raddr, &w->swap);
		data = false;
		break;
	case VT_OP_FLUSH:
		vt_build_flush(x, w->rkey, w->raddr, w->swap, (uint8_t)(w->flush_kind ? w->flush_kind : VT_FLUSH_GLOBAL),
			VT_FLUSH_RANGE);
		data = false;
		break;
	case IBV_WR_LOCAL_INV:
		ibv_wr_local_inv(x, w->imm);
		data = false;
		break;
	case IBV_WR_BIND_MW:
		ibv_wr_bind_mw(x, s->mw[w->mw], w->mw_rkey, &bind);
		data = false;
		break;
	default:
		ibv_wr_abort(x);
		return EINVAL;
	}
	if (s->cfg.type == VT_XRC)
		ibv_wr_set_xrc_srqn(x, w->srqn);
	if (s->cfg.type == VT_UD)
		ibv_wr_set_ud_addr(x, s->ah, w->ud_qpn, w->ud_qkey);
	if (data && (w->flags & IBV_SEND_INLINE)) {
		struct ibv_data_buf b[4];
		for (int i = 0; i < w->nsge && i < 4; i++)
			b[i] = (struct ibv_data_buf){ (void *)(uintptr_t)w->sge[i].addr, w->sge[i].length };
		ibv_wr_set_inline_data_list(x, (size_t)w->nsge, b);
	} else if (data) {
		ibv_wr_set_sge_list(x, (size_t)w->nsge, w->sge);
	}
	return ibv_wr_complete(x);
}

static int post_send(struct vt_side *s, const struct vt_wr *w)
{
	struct ibv_sge sge[4];
	memcpy(sge, w->sge, sizeof(sge));
	if (w->opcode == VT_OP_BIND_MW1) {
		struct ibv_mw_bind b = { .wr_id = w->wr_id, .send_flags = w->flags,
					 .bind_info = { s->mr[w->mw_mr], w->mw_addr, w->mw_len, w->mw_access } };
		return ibv_bind_mw(s->qp, s->mw[w->mw], &b);
	}
	if (w->use_ex)
		return post_ex(s, w);
	struct ibv_send_wr wr = { .wr_id = w->wr_id, .sg_list = sge, .num_sge = w->nsge, .send_flags = w->flags }, *bad;
	wr.opcode = (enum ibv_wr_opcode)w->opcode;
	switch (w->opcode) {
	case IBV_WR_SEND_WITH_INV:
	case IBV_WR_LOCAL_INV:
		wr.invalidate_rkey = w->imm;
		break;
	case IBV_WR_BIND_MW:
		wr.bind_mw.mw = s->mw[w->mw];
		wr.bind_mw.rkey = w->mw_rkey;
		wr.bind_mw.bind_info = (struct ibv_mw_bind_info){ s->mr[w->mw_mr], w->mw_addr, w->mw_len, w->mw_access };
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		wr.wr.atomic.remote_addr = w->raddr;
		wr.wr.atomic.rkey = w->rkey;
		wr.wr.atomic.compare_add = w->compare_add;
		wr.wr.atomic.swap = w->swap;
		break;
	default:
		wr.imm_data = htonl(w->imm);
		wr.wr.rdma.remote_addr = w->raddr;
		wr.wr.rdma.rkey = w->rkey;
	}
	if (s->cfg.type == VT_UD) {
		wr.wr.ud.ah = s->ah;
		wr.wr.ud.remote_qpn = w->ud_qpn;
		wr.wr.ud.remote_qkey = w->ud_qkey;
	}
	wr.qp_type.xrc.remote_srqn = w->srqn;
	int rc = ibv_post_send(s->qp, &wr, &bad);
	if (rc && bad != &wr)
		return -1; /* bad_wr must name the request that failed */
	return rc;
}

static int post_recv(struct vt_side *s, const struct vt_wr *w)
{
	struct ibv_sge sge[4];
	memcpy(sge, w->sge, sizeof(sge));
	struct ibv_recv_wr wr = { .wr_id = w->wr_id, .sg_list = sge, .num_sge = w->nsge }, *bad = NULL;
	int rc = s->srq ? ibv_post_srq_recv(s->srq, &wr, &bad) : ibv_post_recv(s->qp, &wr, &bad);
	return rc && bad != &wr ? -1 : rc;
}

static void events(struct vt_side *s, unsigned ms, struct vt_rep *rep)
{
	struct ibv_async_event ev;
	while (rep->nevents < 8 && vt_event(s->dev.ctx, &ev, ms)) {
		ibv_ack_async_event(&ev);
		if (ev.event_type == IBV_EVENT_COMM_EST)
			continue; /* allowed at any first message in RTR, never a fault */
		rep->event[rep->nevents++] = (int)ev.event_type;
		ms = 0;
	}
}

static int query_state(struct vt_side *s)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr ia;
	return ibv_query_qp(s->qp, &a, IBV_QP_STATE, &ia) ? -1 : (int)a.qp_state;
}

void vt_side_exec(struct vt_side *s, const struct vt_req *r, struct vt_rep *rep)
{
	memset(rep, 0, sizeof(*rep));
	if (!s->open && r->op != VT_QUIT) {
		if (!vt_open(&s->dev)) {
			rep->rc = ENODEV;
			return;
		}
		s->open = true;
	}
	int slot = (int)r->arg[0];
	switch (r->op) {
	case VT_SETUP:
		rep->rc = side_setup(s, &r->cfg);
		rep->info = s->self;
		break;
	case VT_CONNECT:
		s->peer = r->peer;
		rep->rc = side_connect(s, (enum ibv_qp_state)r->arg[0]);
		break;
	case VT_MODIFY: {
		struct ibv_qp_attr a = { .qp_state = (enum ibv_qp_state)r->arg[0] };
		rep->rc = ibv_modify_qp(s->qp, &a, IBV_QP_STATE);
		break;
	}
	case VT_RECV:
		rep->rc = post_recv(s, &r->wr);
		break;
	case VT_SEND:
		rep->rc = post_send(s, &r->wr);
		break;
	case VT_POLL:
		rep->n = vt_poll(r->arg[0] ? s->rcq : s->scq, rep->wc, (int)r->arg[1], (unsigned)r->arg[2]);
		break;
	case VT_EVENTS:
		events(s, (unsigned)r->arg[0], rep);
		break;
	case VT_QUERY:
		rep->arg[0] = s->qp ? query_state(s) : -1;
		break;
	case VT_REG:
		s->mr[slot] = ibv_reg_mr(r->arg[1] ? s->pd2 : s->pd, s->buf + r->arg[3], (size_t)r->arg[4], (int)r->arg[2]);
		rep->rc = s->mr[slot] ? 0 : errno;
		if (s->mr[slot])
			rep->info = (struct vt_info){ .lkey = s->mr[slot]->lkey, .rkey = s->mr[slot]->rkey,
						      .addr = (uintptr_t)s->buf + (uint64_t)r->arg[3] };
		break;
	case VT_DEREG:
		rep->rc = ibv_dereg_mr(s->mr[slot]);
		s->mr[slot] = NULL;
		break;
	case VT_MW:
		s->mw[slot] = ibv_alloc_mw(r->arg[2] ? s->pd2 : s->pd, (enum ibv_mw_type)r->arg[1]);
		rep->rc = s->mw[slot] ? 0 : errno;
		rep->info.rkey = s->mw[slot] ? s->mw[slot]->rkey : 0;
		break;
	case VT_MW_FREE:
		rep->rc = ibv_dealloc_mw(s->mw[slot]);
		s->mw[slot] = NULL;
		break;
	case VT_DESTROY:
		rep->rc = ibv_destroy_qp(s->qp);
		s->qp = NULL;
		break;
	case VT_DESTROY_SRQ:
		rep->rc = ibv_destroy_srq(s->srq);
		if (!rep->rc)
			s->srq = NULL;
		break;
	case VT_FILL:
		memset(s->buf + r->arg[0], (int)r->arg[2], (size_t)r->arg[1]);
		break;
	case VT_HASH:
		rep->arg[0] = (int64_t)vt_hash(s->buf + r->arg[0], (size_t)r->arg[1]);
		break;
	case VT_PEEK:
		memcpy(&rep->arg[0], s->buf + r->arg[0], 8);
		break;
	case VT_POKE:
		memcpy(s->buf + r->arg[0], &r->arg[1], 8);
		break;
	case VT_PROTECT:
		rep->rc = mprotect(s->buf + r->arg[0], (size_t)r->arg[1], (int)r->arg[2]) ? errno : 0;
		break;
	case VT_PSNS: {
		struct ibv_qp_attr a;
		struct ibv_qp_init_attr ia;
		rep->rc = ibv_query_qp(s->qp, &a, IBV_QP_SQ_PSN | IBV_QP_RQ_PSN, &ia);
		rep->arg[0] = a.sq_psn;
		rep->arg[1] = a.rq_psn;
		break;
	}
	case VT_TEARDOWN:
		side_teardown(s);
		break;
	case VT_QUIT:
		side_teardown(s);
		if (s->open)
			ibv_close_device(s->dev.ctx);
		s->open = false;
		break;
	}
	if (r->op == VT_MW || r->op == VT_SEND) {
		/* ibv_bind_mw changes the rkey of a type 1 window: tell it. */
		int i = r->op == VT_MW ? slot : r->wr.mw;
		rep->info.rkey = s->mw[i] ? s->mw[i]->rkey : 0;
	}
}
