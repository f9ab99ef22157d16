/* UD and what belongs to it: the 40 bytes in front of a message, address handles made from them, Q_Keys, multicast.
 * And XRC's sharing of a target QP. */
#include "vt.h"

#include <arpa/inet.h>
#include <fcntl.h>

static struct vt_side *A(void) { return vt_a.local; }
static struct vt_side *B(void) { return vt_b.local; }

static void ready(void)
{
	struct vt_cfg a = vt_cfg_default(VT_UD), b = a;
	b.responder = 1;
	vt_pair(&a, &b);
}

static bool on_infiniband(void) { return A()->dev.port.link_layer == IBV_LINK_LAYER_INFINIBAND; }

static void recv_b(uint32_t len)
{
	vt_require(vt_recv(&vt_b, 7, vt_b.info.addr + VT_RECV_AT, len, vt_b.info.lkey) == 0, "posting a receive");
}

static int sent(const struct vt_wr *w)
{
	struct ibv_wc wc;
	int rc = vt_send(&vt_a, w);
	vt_check(rc == 0, "posting: %s", vt_errno_name(rc));
	return vt_cqes(&vt_a, 0, 1, 2000, &wc) == 1 ? (int)wc.status : -1;
}

/* Annex A17.4.5: for RoCE v2 over IPv4 the last 20 of the 40 bytes are the IPv4 header, the first 20 undefined. */
static void grh(void)
{
	ready();
	struct ibv_wc wc;
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_SEND, 100);
	recv_b(VT_GRH + 100);
	vt_check(sent(&w) == IBV_WC_SUCCESS, "the send");
	vt_require(vt_cqes(&vt_b, 1, 1, 2000, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "the receive");
	vt_check(wc.byte_len == 140, "byte_len %u", wc.byte_len);
	vt_check(wc.src_qp == vt_a.info.qpn, "src_qp 0x%x", wc.src_qp);
	const uint8_t *h = B()->buf + VT_RECV_AT;
	vt_check(wc.slid == A()->dev.port.lid, "slid %u, want %u", wc.slid, A()->dev.port.lid);
	if (!A()->dev.global) {
		vt_check(!(wc.wc_flags & IBV_WC_GRH), "IBV_WC_GRH on a path without one");
	} else {
		vt_require(wc.wc_flags & IBV_WC_GRH, "IBV_WC_GRH is missing");
		static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };
		if (!memcmp(A()->dev.gid.raw, mapped, 12)) {
			vt_check(h[20] == 0x45, "version and length of the IPv4 header: 0x%02x", h[20]);
			/* BTH 12 + DETH 8 + 100 + ICRC 4, UDP 8, IPv4 20 */
			vt_check((h[22] << 8 | h[23]) == 152, "IPv4 total length %d, want 152", h[22] << 8 | h[23]);
			vt_check(h[29] == 17, "IPv4 protocol %d", h[29]);
			vt_check(!memcmp(h + 32, A()->dev.gid.raw + 12, 4), "IPv4 source is not the sender's");
			vt_check(!memcmp(h + 36, B()->dev.gid.raw + 12, 4), "IPv4 destination is not the receiver's");
			uint32_t sum = 0;
			for (int i = 20; i < 40; i += 2)
				sum += (uint32_t)(h[i] << 8 | h[i + 1]);
			while (sum >> 16)
				sum = (sum & 0xffff) + (sum >> 16);
			vt_check(sum == 0xffff, "IPv4 header checksum");
		} else {
			vt_check(!memcmp(h + 8, A()->dev.gid.raw, 16) && !memcmp(h + 24, B()->dev.gid.raw, 16), "GIDs of the GRH");
		}
	}
	vt_check(h[40] == 0xaa && h[139] == 0xaa && h[140] == 0xbb, "the message is not behind the 40 bytes");

	/* The way back, by what the completion and the header say. */
	struct ibv_ah_attr av;
	struct ibv_grh *g = (struct ibv_grh *)(uintptr_t)h;
	int rc = ibv_init_ah_from_wc(B()->dev.ctx, 1, &wc, g, &av);
	vt_require(rc == 0, "ibv_init_ah_from_wc: %d, %s", rc, vt_errno_name(errno));
	vt_check(!A()->dev.global || (av.is_global && !memcmp(&av.grh.dgid, &A()->dev.gid, 16)), "the address of the sender is another");
	struct ibv_ah *ah = ibv_create_ah_from_wc(B()->pd, &wc, g, 1);
	vt_require(ah, "ibv_create_ah_from_wc: %s", strerror(errno));
	vt_require(vt_recv(&vt_a, 8, vt_a.info.addr + VT_RECV_AT, 256, vt_a.info.lkey) == 0, "posting");
	struct ibv_sge sge = { vt_b.info.addr, 16, vt_b.info.lkey };
	struct ibv_send_wr back = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	back.wr.ud.ah = ah;
	back.wr.ud.remote_qpn = wc.src_qp;
	back.wr.ud.remote_qkey = VT_QKEY;
	vt_require(ibv_post_send(B()->qp, &back, &bad) == 0 && vt_cqes(&vt_b, 0, 1, 2000, &wc) == 1, "the send back");
	vt_check(vt_cqes(&vt_a, 1, 1, 2000, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.byte_len == 56, "the answer did not arrive");
	vt_check(ibv_destroy_ah(ah) == 0, "ibv_destroy_ah");
	vt_teardown();
}

/* The service level goes along, and a node of a window is found by its GID alone. */
static void levels(void)
{
	ready();
	struct ibv_wc wc;
	if (!on_infiniband())
		vt_does_not_apply("RoCE has no service levels");
	bool of_window = A()->dev.global && A()->dev.gid.raw[0] == 0xfd;
	for (int by_gid = 0; by_gid <= of_window; by_gid++) {
		struct ibv_ah_attr av = { .port_num = 1, .dlid = by_gid ? 0 : vt_b.info.lid, .sl = 5, .is_global = A()->dev.global };
		av.grh.dgid = vt_b.info.gid;
		av.grh.sgid_index = (uint8_t)A()->dev.gid_index;
		struct ibv_ah *ah = ibv_create_ah(A()->pd, &av);
		vt_require(ah, "ibv_create_ah: %s", strerror(errno));
		struct ibv_sge sge = { vt_a.info.addr, 16, vt_a.info.lkey };
		struct ibv_send_wr w = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
		w.wr.ud.ah = ah;
		w.wr.ud.remote_qpn = vt_b.info.qpn;
		w.wr.ud.remote_qkey = VT_QKEY;
		recv_b(256);
		vt_require(ibv_post_send(A()->qp, &w, &bad) == 0 && vt_cqes(&vt_a, 0, 1, 2000, &wc) == 1, "the send");
		vt_require(vt_cqes(&vt_b, 1, 1, 2000, &wc) == 1, "a datagram %s", by_gid ? "without a LID" : "of service level 5");
		vt_check(wc.sl == 5 && wc.slid == A()->dev.port.lid, "service level %u from LID %u", wc.sl, wc.slid);
		ibv_destroy_ah(ah);
	}
	vt_teardown();
}

/* 10.2.5: a Q_Key with its top bit set means the QP's own; others travel as they are and must match. */
static void qkeys(void)
{
	ready();
	struct ibv_wc wc;
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_SEND, 16);
	recv_b(256);
	w.ud_qkey = 0x80000000u;
	vt_check(sent(&w) == IBV_WC_SUCCESS && vt_cqes(&vt_b, 1, 1, 2000, &wc) == 1 && wc.status == IBV_WC_SUCCESS,
		 "the top bit of the Q_Key does not select the QP's own");
	recv_b(256);
	struct ibv_port_attr before, after;
	ibv_query_port(B()->dev.ctx, 1, &before);
	w.ud_qkey = VT_QKEY + 1;
	vt_check(sent(&w) == IBV_WC_SUCCESS && vt_cqes(&vt_b, 1, 1, 20, &wc) == 0, "a wrong Q_Key was taken");
	ibv_query_port(B()->dev.ctx, 1, &after);
	vt_note("qkey_viol_cntr %u -> %u", before.qkey_viol_cntr, after.qkey_viol_cntr);
	w.ud_qkey = VT_QKEY;
	vt_check(sent(&w) == IBV_WC_SUCCESS && vt_cqes(&vt_b, 1, 1, 2000, &wc) == 1, "the right Q_Key after a wrong one");
	vt_teardown();
}

/* One send reaches many, in the order of sending. */
static void order(void)
{
	ready();
	struct ibv_wc wc[8];
	for (uint64_t i = 0; i < 8; i++)
		vt_require(vt_recv(&vt_b, i, vt_b.info.addr + VT_RECV_AT + i * 256, 256, vt_b.info.lkey) == 0, "posting");
	for (uint64_t i = 0; i < 8; i++) {
		struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_SEND, 8);
		w.flags |= IBV_SEND_INLINE;
		vt_simple(&vt_a, VT_POKE, 0, (int64_t)(i + 500), 0);
		vt_check(sent(&w) == IBV_WC_SUCCESS, "send %" PRIu64, i);
	}
	int n = vt_cqes(&vt_b, 1, 8, 2000, wc);
	vt_check(n == 8, "%d of 8 messages", n);
	for (int i = 0; i < n; i++)
		vt_check(vt_peek(&vt_b, VT_RECV_AT + (uint64_t)i * 256 + VT_GRH) == (uint64_t)i + 500, "message %d is another", i);
	vt_teardown();
}

static struct ibv_qp *ud_qp(struct vt_side *s)
{
	struct ibv_qp_init_attr ia = { .send_cq = s->scq, .recv_cq = s->rcq, .cap = { 8, 8, 1, 1, 0 }, .qp_type = IBV_QPT_UD };
	struct ibv_qp *qp = ibv_create_qp(s->pd, &ia);
	vt_require(qp, "ibv_create_qp: %s", strerror(errno));
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = VT_QKEY };
	vt_require(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), "INIT");
	a.qp_state = IBV_QPS_RTR;
	vt_require(!ibv_modify_qp(qp, &a, IBV_QP_STATE), "RTR");
	a.qp_state = IBV_QPS_RTS;
	vt_require(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN), "RTS");
	return qp;
}

static void multicast(void)
{
	ready();
	union ibv_gid mgid = { .raw = { 0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3 } };
	uint16_t mlid = on_infiniband() ? 0xc001 : 0;
	struct vt_side *b = B();
	struct ibv_qp *second = ud_qp(b);
	int rc = ibv_attach_mcast(b->qp, &mgid, mlid);
	vt_require(rc == 0, "ibv_attach_mcast: %s", vt_errno_name(rc));
	vt_check(ibv_attach_mcast(b->qp, &mgid, mlid) == 0, "attaching twice is allowed");
	vt_require(ibv_attach_mcast(second, &mgid, mlid) == 0, "a second member");
	struct ibv_ah_attr av = { .port_num = 1, .dlid = mlid, .is_global = 1 };
	av.grh.dgid = mgid;
	av.grh.sgid_index = (uint8_t)A()->dev.gid_index;
	av.grh.hop_limit = 1;
	struct ibv_ah *ah = ibv_create_ah(A()->pd, &av);
	vt_require(ah, "an address handle of a group: %s", strerror(errno));
	struct ibv_sge rs = { vt_b.info.addr + VT_RECV_AT + 4096, 256, vt_b.info.lkey };
	struct ibv_recv_wr rr = { .wr_id = 99, .sg_list = &rs, .num_sge = 1 }, *rbad;
	struct ibv_wc wc[4];
	/* Room for a second copy, which must not come. */
	for (int i = 0; i < 2; i++) {
		recv_b(256);
		vt_require(ibv_post_recv(second, &rr, &rbad) == 0, "posting");
	}
	struct ibv_sge sge = { vt_a.info.addr, 16, vt_a.info.lkey };
	struct ibv_send_wr w = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	w.wr.ud.ah = ah;
	w.wr.ud.remote_qpn = 0xffffff;
	w.wr.ud.remote_qkey = VT_QKEY;
	vt_require(ibv_post_send(A()->qp, &w, &bad) == 0 && vt_cqes(&vt_a, 0, 1, 2000, wc) == 1 && wc[0].status == IBV_WC_SUCCESS,
		"the send");
	int n = vt_cqes(&vt_b, 1, 2, 2000, wc), members = 0;
	for (int i = 0; i < n; i++) {
		vt_check(wc[i].status == IBV_WC_SUCCESS && wc[i].byte_len == 56 && (wc[i].wc_flags & IBV_WC_GRH),
			"member %d: %s, %u bytes, flags 0x%x", i,
			 vt_wc_name((int)wc[i].status), wc[i].byte_len, wc[i].wc_flags);
		members |= wc[i].qp_num == second->qp_num ? 2 : 1;
	}
	vt_check(n == 2 && members == 3, "%d of 2 members got one copy each", n);
	n = vt_cqes(&vt_b, 1, 1, 50, wc);
	vt_check(n == 0, "a member got a second copy");
	/* Detached: no more; a member with no receive does not hinder the others. */
	vt_check(ibv_detach_mcast(second, &mgid, mlid) == 0, "ibv_detach_mcast");
	vt_require(ibv_post_recv(second, &rr, &rbad) == 0, "posting");
	recv_b(256);
	vt_require(ibv_post_send(A()->qp, &w, &bad) == 0 && vt_cqes(&vt_a, 0, 1, 2000, wc) == 1, "the send");
	n = vt_cqes(&vt_b, 1, 2, 50, wc);
	vt_check(n == 1 && wc[0].qp_num == b->qp->qp_num, "%d copies after detaching one of two", n);
	rc = ibv_detach_mcast(second, &mgid, mlid);
	vt_check(rc != 0, "detaching what is not attached succeeds");
	/* A member may not be destroyed; an RC QP or a unicast GID may not join (man ibv_attach_mcast). */
	rc = ibv_destroy_qp(b->qp);
	vt_require(rc != 0, "a member of a group was destroyed");
	vt_check(ibv_attach_mcast(b->qp, &A()->dev.gid, mlid) == EINVAL, "a unicast GID is taken for a group");
	/* Attached once however often it was asked for (10.5.1). */
	vt_check(ibv_detach_mcast(b->qp, &mgid, mlid) == 0, "ibv_detach_mcast");
	vt_check(ibv_destroy_qp(b->qp) == 0, "a QP that has left its group is not destroyed");
	b->qp = NULL;
	vt_check(ibv_destroy_qp(second) == 0 && ibv_destroy_ah(ah) == 0, "destroying");
	struct ibv_qp_init_attr ia = { .send_cq = b->scq, .recv_cq = b->rcq, .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp *rcqp = ibv_create_qp(b->pd, &ia);
	rc = rcqp ? ibv_attach_mcast(rcqp, &mgid, mlid) : 0;
	vt_check(rc == EINVAL, "an RC QP joining: expected EINVAL, got %s", vt_errno_name(rc));
	if (rcqp)
		ibv_destroy_qp(rcqp);
	vt_teardown();
}

/* Two target QPs of one domain fill one shared queue; ibv_open_qp finds a target by its number. */
static void xrc(void)
{
	struct vt_cfg a = vt_cfg_default(VT_XRC), b = a;
	b.responder = 1;
	vt_pair(&a, &b);
	struct vt_side *s = B();
	struct ibv_qp_open_attr oa = { .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
				       .qp_num = s->qp->qp_num, .xrcd = s->xrcd, .qp_type = IBV_QPT_XRC_RECV };
	struct ibv_qp *again = ibv_open_qp(s->dev.ctx, &oa);
	vt_require(again, "ibv_open_qp: %s", strerror(errno));
	vt_check(again->qp_num == s->qp->qp_num, "another QP was opened");
	struct ibv_qp_attr qa;
	struct ibv_qp_init_attr ia;
	vt_check(ibv_query_qp(again, &qa, IBV_QP_STATE, &ia) == 0 && qa.qp_state == IBV_QPS_RTS, "its state");
	oa.qp_num ^= 0x800;
	errno = 0;
	vt_check(!ibv_open_qp(s->dev.ctx, &oa) && errno, "a QP that is not there was opened");
	/* The first handle closes, the QP stays until the last one does. */
	vt_check(ibv_destroy_qp(s->qp) == 0, "closing the first handle");
	s->qp = again;
	struct ibv_wc wc;
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_SEND, 64);
	vt_require(vt_recv(&vt_b, 3, vt_b.info.addr + VT_RECV_AT, 64, vt_b.info.lkey) == 0, "posting");
	vt_require(vt_send(&vt_a, &w) == 0 && vt_cqes(&vt_a, 0, 1, 3000, &wc) == 1, "a send");
	vt_check(wc.status == IBV_WC_SUCCESS, "the QP went with its first handle: %s", vt_wc_name((int)wc.status));
	vt_check(vt_cqes(&vt_b, 1, 1, 2000, &wc) == 1 && wc.wr_id == 3 && wc.opcode == IBV_WC_RECV, "the receive");
	/* A second SRQ of the domain is addressed by its own number over the same connection. */
	struct ibv_srq_init_attr_ex sa = {
		.attr = { 4, 1, 0 }, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC, .pd = s->pd, .xrcd = s->xrcd, .cq = s->scq };
	struct ibv_srq *other = ibv_create_srq_ex(s->dev.ctx, &sa);
	vt_require(other && ibv_get_srq_num(other, &w.srqn) == 0, "a second SRQ: %s", strerror(errno));
	struct ibv_sge sge = { vt_b.info.addr + VT_RECV_AT, 64, vt_b.info.lkey };
	struct ibv_recv_wr rr = { .wr_id = 4, .sg_list = &sge, .num_sge = 1 }, *bad;
	vt_require(ibv_post_srq_recv(other, &rr, &bad) == 0, "posting");
	vt_require(vt_send(&vt_a, &w) == 0 && vt_cqes(&vt_a, 0, 1, 3000, &wc) == 1 && wc.status == IBV_WC_SUCCESS,
		"a send to the second SRQ");
	vt_check(vt_cqes(&vt_b, 0, 1, 2000, &wc) == 1 && wc.wr_id == 4, "it did not arrive on the second SRQ's CQ");
	vt_check(ibv_destroy_srq(other) == 0, "ibv_destroy_srq");
	vt_teardown();
	/* Two opens of one file are one domain. */
	int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	struct ibv_xrcd_init_attr x = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = O_CREAT };
	struct ibv_xrcd *one = ibv_open_xrcd(s->dev.ctx, &x);
	vt_require(one, "ibv_open_xrcd of a file: %s", strerror(errno));
	x.oflags = 0;
	struct ibv_xrcd *two = ibv_open_xrcd(s->dev.ctx, &x);
	vt_check(two != NULL, "opening the same domain again: %s", vt_errno_name(errno));
	x.oflags = O_CREAT | O_EXCL;
	errno = 0;
	vt_check(!ibv_open_xrcd(s->dev.ctx, &x) && errno, "O_EXCL on a domain that exists");
	vt_check((!two || ibv_close_xrcd(two) == 0) && ibv_close_xrcd(one) == 0, "ibv_close_xrcd");
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { { "grh", grh }, { "levels", levels }, { "qkeys", qkeys }, { "order", order }, { "multicast", multicast },
		{ "xrc", xrc } };
	return vt_main(argc, argv, cases, VT_ARRAY(cases));
}
