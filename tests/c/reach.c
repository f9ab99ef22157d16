/* reach ADDRESS...: connects a QP to each address and makes an address handle of it, and prints what became of that: "ADDRESS
 * modify ERRNO, handle ERRNO". A QP whose modify has failed is still in INIT, and can then be connected to this host itself. */
#define _GNU_SOURCE
#include "vt.h"

#include <arpa/inet.h>

static struct vt_dev dev;

static int to_rtr(struct ibv_qp *qp, union ibv_gid gid)
{
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = 0x11, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = dev.port_num,
			     .grh = { .dgid = gid, .sgid_index = (uint8_t)dev.gid_index, .hop_limit = 64 } },
	};
	return ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr init;
	return ibv_query_qp(qp, &a, IBV_QP_STATE, &init) ? IBV_QPS_UNKNOWN : a.qp_state;
}

int main(int argc, char **argv)
{
	if (!vt_open(&dev))
		return 2;
	struct ibv_pd *pd = ibv_alloc_pd(dev.ctx);
	struct ibv_cq *cq = ibv_create_cq(dev.ctx, 16, NULL, NULL, 0);
	for (int i = 1; i < argc && pd && cq; i++) {
		union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff } };
		if (inet_pton(AF_INET, argv[i], gid.raw + 12) != 1 && inet_pton(AF_INET6, argv[i], gid.raw) != 1)
			return 2;
		struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
		struct ibv_qp *qp = ibv_create_qp(pd, &init);
		struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = dev.port_num };
		if (!qp || ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
			return 1;
		int modified = to_rtr(qp, gid);
		if (modified && (state_of(qp) != IBV_QPS_INIT || to_rtr(qp, dev.gid))) {
			printf("the QP is in state %d\n", state_of(qp));
			return 1;
		}
		struct ibv_ah_attr to = { .is_global = 1, .port_num = dev.port_num,
					  .grh = { .dgid = gid, .sgid_index = (uint8_t)dev.gid_index, .hop_limit = 64 } };
		errno = 0;
		struct ibv_ah *ah = ibv_create_ah(pd, &to);
		int made = errno;
		printf("%s modify %s, handle %s\n", argv[i], vt_errno_name(modified), vt_errno_name(ah ? 0 : made));
		if ((ah && ibv_destroy_ah(ah)) || ibv_destroy_qp(qp))
			return 1;
	}
	puts("done");
	return 0;
}
