/* The one way to a connected RC QP, for the measuring programs that speak verbs: the first device, its first port. */
#ifndef VERVAIN_BENCH_VERBS_H
#define VERVAIN_BENCH_VERBS_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	REMOTE_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
			IBV_ACCESS_REMOTE_ATOMIC,
	INLINE_BYTES = 64,
};

/* What a peer must know to connect, and to reach one buffer. */
struct address {
	uint32_t qpn;
	uint16_t lid;
	union ibv_gid gid;
	uint64_t buffer;
	uint32_t rkey;
};

static inline void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

/* For calls that return the errno. */
static inline void need(const char *what, int error)
{
	if (error) {
		errno = error;
		die(what);
	}
}

static inline struct ibv_context *open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	if (!context)
		die("no device");
	return context;
}

/* Memory as programs get it: from malloc's allocator, touched. */
static inline void *heap(size_t length)
{
	void *memory;
	if (posix_memalign(&memory, 4096, length))
		die("posix_memalign");
	memset(memory, 1, length);
	return memory;
}

static inline struct ibv_qp *make_qp(struct ibv_pd *pd, struct ibv_cq *send_cq, struct ibv_cq *recv_cq,
				     struct ibv_srq *srq, uint32_t depth)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = send_cq, .recv_cq = recv_cq, .srq = srq, .qp_type = IBV_QPT_RC, .pd = pd,
		.cap = { .max_send_wr = depth, .max_recv_wr = srq ? 0 : depth, .max_send_sge = 1, .max_recv_sge = 1,
			 .max_inline_data = INLINE_BYTES },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(pd->context, &init);
	if (!qp)
		die("ibv_create_qp_ex");
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	};
	need("INIT", ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	return qp;
}

static inline struct address address_of(struct ibv_qp *qp, struct ibv_mr *mr)
{
	struct ibv_port_attr port;
	struct address address = { .qpn = qp->qp_num };
	if (ibv_query_port(qp->context, 1, &port) || ibv_query_gid(qp->context, 1, 0, &address.gid))
		die("query");
	address.lid = port.lid;
	if (mr) {
		address.buffer = (uintptr_t)mr->addr;
		address.rkey = mr->rkey;
	}
	return address;
}

static inline void connect_qp(struct ibv_qp *qp, struct address to)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = to.qpn, .max_dest_rd_atomic = 16,
		.min_rnr_timer = 12,
		.ah_attr = { .port_num = 1, .dlid = to.lid, .is_global = !to.lid, /* Ethernet has no LIDs */
			     .grh = { .dgid = to.gid, .hop_limit = 1 } },
	};
	need("RTR", ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 16,
	};
	need("RTS", ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

/* Spins for `count` successful completions. */
static inline void await(struct ibv_cq *cq, int count)
{
	struct ibv_wc wc;
	while (count) {
		int got = ibv_poll_cq(cq, 1, &wc);
		if (got < 0 || (got && wc.status != IBV_WC_SUCCESS)) {
			fprintf(stderr, "completion: %s\n", got < 0 ? "none" : ibv_wc_status_str(wc.status));
			exit(1);
		}
		count -= got;
	}
}

#endif
