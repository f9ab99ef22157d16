/*
 * One RC QP connected to itself: what one operation costs from posting to its completion, in one thread.
 *
 *   looped OPERATION BATCHES OPERATIONS_PER_BATCH
 *
 * prints the median over the batches of ns per operation. The batch has one reading of the clock at either end, so the
 * clock costs nothing. Messages are 8 bytes; each is posted signalled and polled for before the next.
 */
#define _GNU_SOURCE
#include "clock.h"

#include <errno.h>
#include <infiniband/verbs.h>
#include <string.h>

enum { LENGTH = 8, REMOTE = 64, RECEIVED = 128 };

static struct ibv_qp *qp;
static struct ibv_qp_ex *qpx;
static struct ibv_cq *send_cq, *recv_cq;
static struct ibv_mr *mr;
static char *memory;

static void die(const char *what)
{
	fprintf(stderr, "looped: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* For calls that return the errno. */
static void refused(const char *what, int error)
{
	errno = error;
	die(what);
}

static inline void await(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int count;
	while (!(count = ibv_poll_cq(cq, 1, &wc)))
		;
	if (count < 0 || wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "looped: completion: %s\n", count < 0 ? "none" : ibv_wc_status_str(wc.status));
		exit(1);
	}
}

/* ibv_post_send and ibv_poll_cq of one request. */
static inline void post(enum ibv_wr_opcode opcode, unsigned flags)
{
	struct ibv_sge sge = { (uintptr_t)memory, LENGTH, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED | flags }, *bad;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)memory + REMOTE;
		wr.wr.atomic.rkey = mr->rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)memory + REMOTE;
		wr.wr.rdma.rkey = mr->rkey;
	}
	int failed = ibv_post_send(qp, &wr, &bad);
	if (failed)
		refused("ibv_post_send", failed);
	await(send_cq);
}

static void write_8(void) { post(IBV_WR_RDMA_WRITE, 0); }
static void write_inline(void) { post(IBV_WR_RDMA_WRITE, IBV_SEND_INLINE); }
static void read_8(void) { post(IBV_WR_RDMA_READ, 0); }
static void fetch_add(void) { post(IBV_WR_ATOMIC_FETCH_AND_ADD, 0); }

static void wr_write_inline(void)
{
	ibv_wr_start(qpx);
	qpx->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(qpx, mr->rkey, (uintptr_t)memory + REMOTE);
	ibv_wr_set_inline_data(qpx, memory, LENGTH);
	int failed = ibv_wr_complete(qpx);
	if (failed)
		refused("ibv_wr_complete", failed);
	await(send_cq);
}

static void send_recv(void)
{
	struct ibv_sge sge = { (uintptr_t)memory + RECEIVED, LENGTH, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	int failed = ibv_post_recv(qp, &wr, &bad);
	if (failed)
		refused("ibv_post_recv", failed);
	post(IBV_WR_SEND, 0);
	await(recv_cq);
}

static const struct operation {
	const char *name;
	void (*run)(void);
} operations[] = {
	{ "write", write_8 },
	{ "write-inline", write_inline },
	{ "wr-write-inline", wr_write_inline },
	{ "read", read_8 },
	{ "send-recv", send_recv },
	{ "fetch-add", fetch_add },
};

static void open_qp(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	if (!context)
		die("no device");
	struct ibv_pd *pd = ibv_alloc_pd(context);
	send_cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	recv_cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	if (!pd || !send_cq || !recv_cq || posix_memalign((void **)&memory, 4096, 4096))
		die("set-up");
	memset(memory, 1, 4096);
	mr = ibv_reg_mr(pd, memory, 4096,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = send_cq, .recv_cq = recv_cq, .qp_type = IBV_QPT_RC, .pd = pd,
		.cap = { .max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE,
	};
	qp = mr ? ibv_create_qp_ex(context, &init) : NULL;
	if (!qp)
		die("ibv_create_qp_ex");
	qpx = ibv_qp_to_qp_ex(qp);
}

static void connect_to_itself(void)
{
	struct ibv_port_attr port;
	union ibv_gid gid;
	int failed;
	if (ibv_query_port(qp->context, 1, &port) || ibv_query_gid(qp->context, 1, 0, &gid))
		die("query");
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	};
	if ((failed = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)))
		refused("INIT", failed);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = qp->qp_num, .max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .port_num = 1, .dlid = port.lid, .is_global = port.link_layer == IBV_LINK_LAYER_ETHERNET,
			     .grh = { .dgid = gid, .hop_limit = 1 } },
	};
	if ((failed = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)))
		refused("RTR", failed);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1,
	};
	if ((failed = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)))
		refused("RTS", failed);
}

int main(int argc, char **argv)
{
	const struct operation *operation = NULL;
	for (size_t i = 0; argc == 4 && i < sizeof operations / sizeof *operations; i++)
		if (!strcmp(argv[1], operations[i].name))
			operation = &operations[i];
	if (!operation) {
		fprintf(stderr, "looped: see the head of looped.c\n");
		return 2;
	}
	size_t batches = strtoul(argv[2], NULL, 10), per_batch = strtoul(argv[3], NULL, 10);
	double *samples = calloc(batches + 1, sizeof *samples);
	if (!samples)
		die("calloc");
	open_qp();
	connect_to_itself();
	for (size_t i = 0; i < batches; i++) {
		uint64_t begin = now_ns();
		for (size_t j = 0; j < per_batch; j++)
			operation->run();
		samples[i] = (double)(now_ns() - begin) / (double)per_batch;
	}
	printf("%.3f\n", median(samples, batches));
	return 0;
}
