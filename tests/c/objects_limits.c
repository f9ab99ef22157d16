/* Device and port attributes, the limits at creation, and what is refused because something still uses it. */
#include "vt.h"

#include <fcntl.h>
#include <sys/mman.h>

static struct vt_dev dev;

static void open_once(void)
{
	if (!dev.ctx)
		vt_require(vt_open(&dev), "no device");
}

static void device(void)
{
	open_once();
	const struct ibv_device_attr *a = &dev.attr;
	vt_check(a->max_qp_wr >= 32768, "max_qp_wr %d", a->max_qp_wr);
	vt_check(a->max_sge >= 32, "max_sge %d", a->max_sge);
	vt_check(a->max_cqe >= 4000000, "max_cqe %d", a->max_cqe);
	vt_check(a->max_qp >= 65536 && a->max_cq > 0 && a->max_mr > 0 && a->max_pd > 0 && a->max_ah > 0 && a->max_mw > 0,
		"a limit is zero");
	vt_check(a->max_srq > 0 && a->max_srq_wr > 0 && a->max_srq_sge > 0, "SRQ limits %d %d %d", a->max_srq, a->max_srq_wr,
		a->max_srq_sge);
	vt_check(a->max_qp_rd_atom > 0 && a->max_qp_init_rd_atom > 0, "max_qp_rd_atom %d", a->max_qp_rd_atom);
	vt_check(a->vendor_id != 0, "vendor_id 0 (pyverbs and others take it for an error)");
	vt_check(a->atomic_cap != IBV_ATOMIC_NONE, "atomics exist, atomic_cap says none");
	vt_check(a->phys_port_cnt >= 1, "phys_port_cnt %d", a->phys_port_cnt);
	vt_check(a->node_guid != 0, "node_guid 0");
	vt_check(strlen(a->fw_ver) > 0 && strlen(a->fw_ver) < 64, "fw_ver \"%.64s\"", a->fw_ver);
	vt_check(a->page_size_cap & 4096, "page_size_cap lacks 4 KiB");
	vt_check(a->max_mcast_grp > 0 && a->max_mcast_qp_attach > 0, "multicast limits");
	vt_check(a->device_cap_flags & IBV_DEVICE_XRC, "IBV_DEVICE_XRC is missing");
	vt_check(a->device_cap_flags & IBV_DEVICE_MEM_WINDOW, "IBV_DEVICE_MEM_WINDOW is missing");
	vt_check(a->device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B, "IBV_DEVICE_MEM_WINDOW_TYPE_2B is missing");
	vt_check(a->device_cap_flags & IBV_DEVICE_RC_RNR_NAK_GEN, "IBV_DEVICE_RC_RNR_NAK_GEN is missing");
	struct ibv_device_attr_ex x = { 0 };
	vt_require(ibv_query_device_ex(dev.ctx, NULL, &x) == 0, "ibv_query_device_ex");
	vt_check(!memcmp(&x.orig_attr, a, sizeof(*a)), "ibv_query_device_ex and ibv_query_device differ");
	vt_check(x.completion_timestamp_mask != 0 && x.hca_core_clock != 0, "timestamps: mask 0x%" PRIx64 ", %" PRIu64 " kHz",
		 x.completion_timestamp_mask, x.hca_core_clock);
	vt_check(x.phys_port_cnt_ex == a->phys_port_cnt, "phys_port_cnt_ex %u", x.phys_port_cnt_ex);
	vt_check(x.max_dm_size > 0, "max_dm_size 0");
	vt_check(x.raw_packet_caps == 0 && x.tm_caps.max_ops == 0 && x.rss_caps.supported_qpts == 0 && x.tso_caps.max_tso == 0,
		 "a capability is claimed that the device does not have");
	vt_check(ibv_get_device_guid(dev.ctx->device) == a->node_guid, "ibv_get_device_guid differs from node_guid");
	vt_check(dev.ctx->num_comp_vectors >= 1, "num_comp_vectors %d", dev.ctx->num_comp_vectors);
	vt_check(!strncmp(ibv_get_device_name(dev.ctx->device), "vervain", 7), "device name %s", ibv_get_device_name(dev.ctx->device));
	struct ibv_values_ex v = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
	vt_check(ibv_query_rt_values_ex(dev.ctx, &v) == 0 && v.comp_mask == IBV_VALUES_MASK_RAW_CLOCK && (v.raw_clock.tv_sec ||
		v.raw_clock.tv_nsec),
		 "ibv_query_rt_values_ex");
}

static void device_list(void)
{
	int n = -1;
	struct ibv_device **a = ibv_get_device_list(&n), **b = ibv_get_device_list(NULL);
	vt_require(a && b && n >= 1 && a[n] == NULL, "the device list is not closed by NULL");
	vt_check(a[0] == b[0], "a device has two addresses");
	vt_check(a[0]->node_type == IBV_NODE_CA && a[0]->transport_type == IBV_TRANSPORT_IB, "node type %d, transport %d",
		(int)a[0]->node_type,
		 (int)a[0]->transport_type);
	struct ibv_context *one = ibv_open_device(a[0]), *two = ibv_open_device(a[0]);
	ibv_free_device_list(a);
	ibv_free_device_list(b);
	vt_require(one && two && one != two, "opening a device twice");
	struct ibv_device_attr attr;
	vt_check(ibv_query_device(one, &attr) == 0, "the list was freed and the open device with it");
	vt_check(ibv_close_device(one) == 0 && ibv_query_device(two, &attr) == 0, "closing one context broke the other");
	vt_check(ibv_close_device(two) == 0, "ibv_close_device");
}

static void port(void)
{
	open_once();
	const struct ibv_port_attr *p = &dev.port;
	struct ibv_port_attr bad;
	union ibv_gid gid;
	__be16 pkey;
	vt_check(p->state == IBV_PORT_ACTIVE && p->phys_state == 5, "state %d, phys_state %d", (int)p->state, p->phys_state);
	vt_check(p->max_mtu == IBV_MTU_4096 && p->active_mtu >= IBV_MTU_256 && p->active_mtu <= p->max_mtu, "MTU %d of %d",
		(int)p->active_mtu, (int)p->max_mtu);
	vt_check(p->max_msg_sz >= 0x40000000u, "max_msg_sz 0x%x", p->max_msg_sz);
	vt_check(p->gid_tbl_len > 0 && p->pkey_tbl_len > 0, "table lengths %d, %d", p->gid_tbl_len, p->pkey_tbl_len);
	vt_check(p->link_layer == IBV_LINK_LAYER_ETHERNET || (p->lid != 0 && p->sm_lid != 0), "InfiniBand without LIDs: %u, %u",
		p->lid, p->sm_lid);
	vt_check(!(p->flags & IBV_QPF_GRH_REQUIRED) == (p->link_layer != IBV_LINK_LAYER_ETHERNET), "flags 0x%x", p->flags);
	vt_check(ibv_query_port(dev.ctx, 0, &bad) == EINVAL, "port 0 exists");
	vt_check(ibv_query_port(dev.ctx, (uint8_t)(dev.attr.phys_port_cnt + 1), &bad) == EINVAL, "a port beyond the last exists");
	for (int i = 0; i < p->gid_tbl_len; i++)
		vt_check(ibv_query_gid(dev.ctx, 1, i, &gid) == 0, "GID index %d of %d is refused", i, p->gid_tbl_len);
	vt_check(ibv_query_gid(dev.ctx, 1, p->gid_tbl_len, &gid) == -1, "a GID beyond the table");
	vt_check(ibv_query_pkey(dev.ctx, 1, 0, &pkey) == 0 && be16toh(pkey) == 0xffff, "P_Key 0 is 0x%x", be16toh(pkey));
	vt_check(ibv_get_pkey_index(dev.ctx, 1, htobe16(0xffff)) == 0, "ibv_get_pkey_index");
	vt_check(ibv_query_pkey(dev.ctx, 1, p->pkey_tbl_len, &pkey) == -1, "a P_Key beyond the table");
	struct ibv_gid_entry table[256];
	ssize_t n = ibv_query_gid_table(dev.ctx, table, VT_ARRAY(table), 0);
	vt_check(n >= 1, "ibv_query_gid_table: %zd", n);
	/* What programs for adapters take by default. */
	if (p->link_layer == IBV_LINK_LAYER_ETHERNET)
		vt_check(ibv_query_gid_ex(dev.ctx, 1, 3, &table[VT_ARRAY(table) - 1], 0) == 0, "no GID at index 3");
	for (ssize_t i = 0; i < n; i++) {
		struct ibv_gid_entry e;
		vt_check(ibv_query_gid(dev.ctx, (uint8_t)table[i].port_num, (int)table[i].gid_index, &gid) == 0 &&
				 !memcmp(&gid, &table[i].gid, 16), "GID %zd differs between the queries", i);
		vt_check(ibv_query_gid_ex(dev.ctx, table[i].port_num, table[i].gid_index, &e, 0) == 0 &&
			e.gid_type == table[i].gid_type, "GID entry %zd", i);
		if (dev.global)
			vt_check(e.gid_type == IBV_GID_TYPE_ROCE_V2, "GID %zd is of type %u", i, e.gid_type);
	}
}

static void create_limits(void)
{
	open_once();
	const struct ibv_device_attr *a = &dev.attr;
	struct ibv_pd *pd = ibv_alloc_pd(dev.ctx);
	struct ibv_cq *cq = ibv_create_cq(dev.ctx, 10, NULL, NULL, 0), *c;
	vt_require(pd && cq, "PD and CQ");
	vt_check(cq->cqe >= 10, "cqe %d", cq->cqe);
	static const int bad_cqe[] = { 0, -1, INT32_MAX };
	for (size_t i = 0; i < VT_ARRAY(bad_cqe); i++) {
		errno = 0;
		c = ibv_create_cq(dev.ctx, bad_cqe[i], NULL, NULL, 0);
		vt_check(!c && errno == EINVAL, "a CQ of %d entries: %s", bad_cqe[i], c ? "created" : vt_errno_name(errno));
	}
	c = ibv_create_cq(dev.ctx, a->max_cqe, NULL, NULL, 0);
	vt_check(c != NULL, "a CQ of max_cqe entries: %s", vt_errno_name(errno));
	if (c)
		vt_check(ibv_destroy_cq(c) == 0, "ibv_destroy_cq");
	c = ibv_create_cq(dev.ctx, a->max_cqe + 1, NULL, NULL, 0);
	vt_check(!c && errno == EINVAL, "max_cqe + 1: %s", vt_errno_name(errno));
	c = ibv_create_cq(dev.ctx, 1, NULL, NULL, dev.ctx->num_comp_vectors);
	vt_check(!c && errno == EINVAL, "a completion vector beyond the last: %s", vt_errno_name(errno));

	const struct ibv_qp_cap max = { (uint32_t)a->max_qp_wr, (uint32_t)a->max_qp_wr, (uint32_t)a->max_sge, (uint32_t)a->max_sge, 1024 };
	struct ibv_qp_init_attr q = { .send_cq = cq, .recv_cq = cq, .cap = max, .qp_type = IBV_QPT_RC };
	struct ibv_qp *qp = ibv_create_qp(pd, &q);
	vt_check(qp != NULL, "a QP at all limits: %s", vt_errno_name(errno));
	if (qp) {
		vt_check(q.cap.max_send_wr >= max.max_send_wr && q.cap.max_inline_data >= 1024, "capabilities returned are smaller");
		vt_check(qp->qp_num > 1 && qp->qp_num < (1u << 24), "QPN 0x%x", qp->qp_num);
		vt_check(ibv_destroy_qp(qp) == 0, "ibv_destroy_qp");
	}
	for (int i = 0; i < 5; i++) {
		q.cap = (struct ibv_qp_cap){ 1, 1, 1, 1, 0 };
		uint32_t *field[] = { &q.cap.max_send_wr, &q.cap.max_recv_wr, &q.cap.max_send_sge, &q.cap.max_recv_sge,
			&q.cap.max_inline_data };
		const uint32_t value[] = { max.max_send_wr + 1, max.max_recv_wr + 1, max.max_send_sge + 1, max.max_recv_sge + 1, 1u << 20 };
		*field[i] = value[i];
		errno = 0;
		qp = ibv_create_qp(pd, &q);
		vt_check(!qp && errno == EINVAL, "QP capability %d beyond the limit: %s", i, qp ? "created" : vt_errno_name(errno));
		if (qp)
			ibv_destroy_qp(qp);
	}
	q.cap = (struct ibv_qp_cap){ 1, 1, 1, 1, 0 };
	q.qp_type = (enum ibv_qp_type)77;
	qp = ibv_create_qp(pd, &q);
	vt_check(!qp && (errno == EINVAL || errno == EOPNOTSUPP), "QP type 77: %s", vt_errno_name(errno));
	q.qp_type = IBV_QPT_RAW_PACKET;
	errno = 0;
	qp = ibv_create_qp(pd, &q);
	vt_check(!qp && errno == EOPNOTSUPP, "raw packet QP: expected EOPNOTSUPP, got %s", vt_errno_name(errno));
	q.qp_type = IBV_QPT_UC;
	q.cap = (struct ibv_qp_cap){ 0, 0, 0, 0, 0 };
	qp = ibv_create_qp(pd, &q);
	vt_check(qp != NULL, "a QP that asks for nothing: %s", vt_errno_name(errno));
	if (qp)
		ibv_destroy_qp(qp);
	struct ibv_srq_init_attr s = { .attr = { (uint32_t)a->max_srq_wr + 1, 1, 0 } };
	vt_check(!ibv_create_srq(pd, &s) && errno == EINVAL, "max_srq_wr + 1: %s", vt_errno_name(errno));
	s.attr = (struct ibv_srq_attr){ 1, (uint32_t)a->max_srq_sge + 1, 0 };
	vt_check(!ibv_create_srq(pd, &s) && errno == EINVAL, "max_srq_sge + 1: %s", vt_errno_name(errno));
	vt_check(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0, "cleaning up");
}

static void registration(void)
{
	open_once();
	struct ibv_pd *pd = ibv_alloc_pd(dev.ctx);
	static uint8_t page[8192];
	struct ibv_mr *mr;
	vt_require(pd, "ibv_alloc_pd");
	/* 10.6.3.1: remote write or atomic needs local write. */
	mr = ibv_reg_mr(pd, page, sizeof(page), IBV_ACCESS_REMOTE_WRITE);
	vt_check(!mr && errno == EINVAL, "remote write without local write: %s", mr ? "registered" : vt_errno_name(errno));
	mr = ibv_reg_mr(pd, page, sizeof(page), IBV_ACCESS_REMOTE_ATOMIC);
	vt_check(!mr && errno == EINVAL, "remote atomic without local write: %s", mr ? "registered" : vt_errno_name(errno));
	volatile unsigned unknown = 1u << 15;
	mr = ibv_reg_mr(pd, page, sizeof(page), (unsigned)unknown);
	vt_check(!mr && (errno == EINVAL || errno == EOPNOTSUPP), "an unknown access flag: %s", mr ? "registered" : vt_errno_name(errno));
	mr = ibv_reg_mr(pd, (void *)16, 4096, IBV_ACCESS_LOCAL_WRITE);
	vt_check(!mr && errno == EFAULT, "memory that is not there: expected EFAULT, got %s", mr ? "registered" : vt_errno_name(errno));
	uint8_t *half = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	vt_require(half != MAP_FAILED && !mprotect(half + 4096, 4096, PROT_NONE), "half a mapping without any right");
	for (int from = 0; from <= 4096; from += 4096) {
		mr = ibv_reg_mr(pd, half + from, 8192 - (size_t)from, IBV_ACCESS_LOCAL_WRITE);
		vt_check(!mr && errno == EFAULT, "memory from %d that nobody may read: %s", from, mr ? "registered" : vt_errno_name(errno));
	}
	mr = ibv_reg_mr(pd, half, 4096, IBV_ACCESS_LOCAL_WRITE);
	vt_check(mr && ibv_dereg_mr(mr) == 0 && !munmap(half, 8192), "the memory before it: %s", vt_errno_name(errno));
	mr = ibv_reg_mr(pd, (void *)(uintptr_t)-4096, 8192, IBV_ACCESS_LOCAL_WRITE);
	vt_check(!mr && errno == EINVAL, "a range that wraps: %s", mr ? "registered" : vt_errno_name(errno));
	volatile unsigned relaxed = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING;
	mr = ibv_reg_mr(pd, page, sizeof(page), relaxed);
	vt_check(mr != NULL, "an optional access flag is ignored, not refused: %s", vt_errno_name(errno));
	if (mr)
		ibv_dereg_mr(mr);
	/* The same memory may be registered many times, and read-only memory for reading. */
	struct ibv_mr *many[50];
	for (size_t i = 0; i < VT_ARRAY(many); i++) {
		many[i] = ibv_reg_mr(pd, page + i, sizeof(page) - 2 * i, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
		vt_require(many[i], "registration %zu of the same memory: %s", i, strerror(errno));
		vt_check(i == 0 || (many[i]->lkey != many[i - 1]->lkey && many[i]->rkey != many[i - 1]->rkey), "two regions share a key");
		vt_check(many[i]->addr == page + i && many[i]->length == sizeof(page) - 2 * i && many[i]->pd == pd, "struct ibv_mr");
	}
	for (size_t i = 0; i < VT_ARRAY(many); i++)
		vt_check(ibv_dereg_mr(many[i]) == 0, "ibv_dereg_mr");
	static const char text[4096] = "read-only";
	mr = ibv_reg_mr(pd, (void *)(uintptr_t)text, sizeof(text), IBV_ACCESS_REMOTE_READ);
	vt_check(mr != NULL, "read-only memory for remote read: %s", vt_errno_name(errno));
	if (mr)
		ibv_dereg_mr(mr);
	mr = ibv_reg_mr(pd, page, sizeof(page), IBV_ACCESS_LOCAL_WRITE);
	vt_check(ibv_dealloc_pd(pd) == EBUSY, "a PD with a region is freed");
	vt_check(mr && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0, "freeing in the right order");
}

static void busy(void)
{
	open_once();
	struct ibv_pd *pd = ibv_alloc_pd(dev.ctx);
	struct ibv_comp_channel *ch = ibv_create_comp_channel(dev.ctx);
	struct ibv_cq *cq = ibv_create_cq(dev.ctx, 10, NULL, ch, 0);
	struct ibv_srq_init_attr sa = { .attr = { 4, 1, 0 } };
	vt_require(pd && ch && cq, "PD, channel, CQ");
	struct ibv_srq *srq = ibv_create_srq(pd, &sa);
	vt_require(srq, "ibv_create_srq: %s", strerror(errno));
	struct ibv_qp_init_attr q = { .send_cq = cq, .recv_cq = cq, .srq = srq, .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp *qp = ibv_create_qp(pd, &q);
	vt_require(qp, "ibv_create_qp: %s", strerror(errno));
	int rc = ibv_destroy_cq(cq);
	vt_require(rc == EBUSY, "a CQ with a QP: expected EBUSY, got %s", vt_errno_name(rc));
	rc = ibv_destroy_srq(srq);
	vt_require(rc == EBUSY, "an SRQ with a QP: expected EBUSY, got %s", vt_errno_name(rc));
	rc = ibv_dealloc_pd(pd);
	vt_require(rc == EBUSY, "a PD with a QP: expected EBUSY, got %s", vt_errno_name(rc));
	rc = ibv_destroy_comp_channel(ch);
	vt_require(rc == EBUSY, "a channel with a CQ: expected EBUSY, got %s", vt_errno_name(rc));
	vt_check(ibv_destroy_qp(qp) == 0, "ibv_destroy_qp");
	rc = ibv_dealloc_pd(pd);
	vt_require(rc == EBUSY, "a PD with an SRQ: expected EBUSY, got %s", vt_errno_name(rc));
	vt_check(ibv_destroy_srq(srq) == 0 && ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(ch) == 0,
		"destroying in the right order");
	struct ibv_ah_attr av = { .port_num = 1, .dlid = dev.port.lid };
	if (dev.global) {
		av.is_global = 1;
		av.grh.dgid = dev.gid;
		av.grh.sgid_index = (uint8_t)dev.gid_index;
	}
	struct ibv_ah *ah = ibv_create_ah(pd, &av);
	vt_require(ah, "ibv_create_ah: %s", strerror(errno));
	rc = ibv_dealloc_pd(pd);
	vt_require(rc == EBUSY, "a PD with an AH: expected EBUSY, got %s", vt_errno_name(rc));
	vt_check(ibv_destroy_ah(ah) == 0, "ibv_destroy_ah");
	av.port_num = 9;
	vt_check(!ibv_create_ah(pd, &av) && errno == EINVAL, "an AH of port 9: %s", vt_errno_name(errno));
	if (dev.global) {
		av.port_num = 1;
		av.is_global = 0;
		vt_check(!ibv_create_ah(pd, &av) && errno == EINVAL, "an AH without GRH on Ethernet: %s", vt_errno_name(errno));
	}
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	vt_require(mw, "ibv_alloc_mw: %s", strerror(errno));
	vt_check(ibv_dealloc_pd(pd) == EBUSY, "a PD with an MW is freed");
	vt_check(ibv_dealloc_mw(mw) == 0 && ibv_dealloc_pd(pd) == 0, "freeing in the right order");
	struct ibv_xrcd_init_attr x = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT };
	struct ibv_xrcd *xrcd = ibv_open_xrcd(dev.ctx, &x);
	vt_require(xrcd, "ibv_open_xrcd: %s", strerror(errno));
	struct ibv_qp_init_attr_ex t = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
	qp = ibv_create_qp_ex(dev.ctx, &t);
	vt_require(qp, "an XRC target: %s", strerror(errno));
	rc = ibv_close_xrcd(xrcd);
	vt_require(rc == EBUSY, "an XRC domain with a QP: expected EBUSY, got %s", vt_errno_name(rc));
	vt_check(ibv_destroy_qp(qp) == 0 && ibv_close_xrcd(xrcd) == 0, "closing in the right order");
}

/* srq_limit is "irrelevant for ibv_create_srq" (its man page): programs leave there what the stack had. */
static void srq_limit_at_creation(void)
{
	struct vt_cfg a = vt_cfg_default(VT_RC), b = a;
	b.responder = 1;
	vt_pair(&a, &b);
	struct vt_side *side = vt_b.local;
	static const uint32_t limits[] = { 4, 17, 0xdeadbeef };
	for (size_t i = 0; i < 2 * VT_ARRAY(limits); i++) {
		uint32_t limit = limits[i / 2];
		struct ibv_srq_init_attr ia = { .attr = { .max_wr = 16, .max_sge = 1, .srq_limit = limit } };
		struct ibv_srq_init_attr_ex xa = { .attr = ia.attr, .pd = side->pd, .srq_type = IBV_SRQT_BASIC,
						   .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD };
		struct ibv_srq *srq = i % 2 ? ibv_create_srq_ex(side->dev.ctx, &xa) : ibv_create_srq(side->pd, &ia);
		vt_require(srq, "an SRQ made with limit %u: %s", limit, strerror(errno));
		struct ibv_srq_attr q;
		vt_check(ibv_query_srq(srq, &q) == 0 && q.srq_limit == 0, "made with limit %u, armed at %u", limit, q.srq_limit);
		int ev[8];
		struct ibv_sge sge = { vt_b.info.addr + VT_RECV_AT, 64, vt_b.info.lkey };
		struct ibv_recv_wr rr = { .sg_list = &sge, .num_sge = 1 }, *bad;
		for (int k = 0; k < 5; k++)
			vt_require(ibv_post_srq_recv(srq, &rr, &bad) == 0, "posting");
		vt_require(ibv_destroy_qp(side->qp) == 0, "ibv_destroy_qp");
		struct ibv_qp_init_attr qa = { .send_cq = side->scq, .recv_cq = side->rcq, .srq = srq, .cap = { 8, 0, 1, 0, 0 },
					       .qp_type = IBV_QPT_RC };
		vt_require((side->qp = ibv_create_qp(side->pd, &qa)), "ibv_create_qp: %s", strerror(errno));
		side->self.qpn = vt_b.info.qpn = side->qp->qp_num;
		vt_require(!vt_modify(&vt_a, IBV_QPS_RESET) && !vt_connect(&vt_b, &vt_a, IBV_QPS_RTS) &&
			   !vt_connect(&vt_a, &vt_b, IBV_QPS_RTS), "connecting");
		for (int k = 0; k < 2; k++) {
			struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_SEND, 8);
			struct ibv_wc wc;
			vt_require(vt_send(&vt_a, &w) == 0 && vt_cqes(&vt_b, 1, 1, 2000, &wc) == 1, "a message");
		}
		vt_check(vt_events(&vt_b, 10, ev, 8) == 0, "made with limit %u: an event that nobody armed", limit);
		vt_require(ibv_destroy_qp(side->qp) == 0 && ibv_destroy_srq(srq) == 0, "destroying");
		vt_require((side->qp = ibv_create_qp(side->pd, &(struct ibv_qp_init_attr){ .send_cq = side->scq, .recv_cq = side->rcq,
			.cap = { 8, 8, 1, 1, 0 }, .qp_type = IBV_QPT_RC })), "ibv_create_qp");
	}
	vt_teardown();
}

/* An SRQ's limit event, its resizing, and what is refused. */
static void srq(void)
{
	struct vt_cfg a = vt_cfg_default(VT_RC_SRQ), b = a;
	b.responder = 1;
	vt_pair(&a, &b);
	struct ibv_srq *s = vt_b.local->srq;
	struct ibv_srq_attr q;
	struct ibv_wc wc[8];
	int ev[8], rc;
	vt_require(ibv_query_srq(s, &q) == 0 && q.max_wr >= 16 && q.max_sge >= 4 && q.srq_limit == 0, "ibv_query_srq");
	for (uint64_t i = 0; i < 6; i++)
		vt_require(vt_recv(&vt_b, i, vt_b.info.addr + VT_RECV_AT, 64, vt_b.info.lkey) == 0, "posting");
	q.srq_limit = 4;
	vt_require(ibv_modify_srq(s, &q, IBV_SRQ_LIMIT) == 0, "arming the limit");
	for (int i = 0; i < 3; i++) {
		struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_SEND, 8);
		vt_send(&vt_a, &w);
		vt_require(vt_cqes(&vt_b, 1, 1, 2000, wc) == 1, "receive %d", i);
		/* Six posted, limit four: the event comes when three are left. */
		int n = vt_events(&vt_b, i == 2 ? 2000 : 5, ev, 8);
		vt_check(n == (i == 2), "%d receives left, limit 4: %d events", 5 - i, n);
		vt_check(n == 0 || ev[0] == IBV_EVENT_SRQ_LIMIT_REACHED, "event %s", vt_event_name(ev[0]));
	}
	vt_check(ibv_query_srq(s, &q) == 0 && q.srq_limit == 0, "the limit stays armed (%u) after its event", q.srq_limit);
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, IBV_WR_SEND, 8);
	vt_send(&vt_a, &w);
	vt_require(vt_cqes(&vt_b, 1, 1, 2000, wc) == 1, "a receive");
	vt_check(vt_events(&vt_b, 10, ev, 8) == 0, "a second limit event without arming");
	q.srq_limit = q.max_wr + 1;
	rc = ibv_modify_srq(s, &q, IBV_SRQ_LIMIT);
	vt_check(rc == EINVAL, "a limit beyond the size: %s", vt_errno_name(rc));
	if (vt_b.local->dev.attr.device_cap_flags & IBV_DEVICE_SRQ_RESIZE) {
		q.max_wr = 64;
		rc = ibv_modify_srq(s, &q, IBV_SRQ_MAX_WR);
		vt_check(rc == 0, "resizing to 64: %s", vt_errno_name(rc));
		vt_check(ibv_query_srq(s, &q) == 0 && q.max_wr >= 64, "max_wr is %u after resizing to 64", q.max_wr);
		for (int i = 0; i < 60; i++)
			vt_require(vt_recv(&vt_b, 100, vt_b.info.addr + VT_RECV_AT, 64, vt_b.info.lkey) == 0, "receive %d of 60 after resizing", i);
		q.max_wr = 4;
		rc = ibv_modify_srq(s, &q, IBV_SRQ_MAX_WR);
		vt_check(rc == EINVAL, "resizing below what is posted: %s", vt_errno_name(rc));
	} else {
		q.max_wr = 64;
		rc = ibv_modify_srq(s, &q, IBV_SRQ_MAX_WR);
		vt_check(rc != 0, "resizing is not among the capabilities and succeeds");
	}
	vt_teardown();
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = {
		{ "device", device }, { "device_list", device_list }, { "port", port }, { "create_limits", create_limits },
		{ "registration", registration }, { "busy", busy }, { "srq", srq }, { "srq_limit_at_creation", srq_limit_at_creation },
	};
	return vt_main(argc, argv, cases, VT_ARRAY(cases));
}
