/*
 * RDMA into a process that sleeps, from posting to the completion that is polled for: one RC QP between two processes,
 * memory that malloc gave. With VERVAIN_MEMORY=owner the target's progress thread has to be woken and copies.
 *
 *   passive write|read BYTES N GAP_US CPU CPU   median ns of one operation; GAP_US apart, 0 for back to back
 *   passive memcpy BYTES N GAP_US CPU CPU       the same bytes by memcpy into memory that both map
 */
#define _GNU_SOURCE
#include "clock.h"

#include <errno.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CLIENT, SERVER };

/* In memory that both map. */
static struct meeting {
	struct address {
		uint32_t qpn, rkey;
		uint64_t addr;
		volatile int known, connected;
	} of[2];
} *meeting;

static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static char *memory;
static union ibv_gid gid;
static struct ibv_port_attr port;

static void die(const char *what)
{
	fprintf(stderr, "passive: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void must(const char *what, int error)
{
	if (error) {
		errno = error;
		die(what);
	}
}

static void open_qp(int role, size_t bytes)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
	if (!pd)
		die("no device");
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	memory = malloc(bytes);
	if (!cq || !memory)
		die("set-up");
	memset(memory, 1, bytes);
	mr = ibv_reg_mr(pd, memory, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	qp = mr ? ibv_create_qp(pd, &init) : NULL;
	if (!qp || ibv_query_port(context, 1, &port) || ibv_query_gid(context, 1, 0, &gid))
		die("ibv_create_qp");
	struct address *mine = &meeting->of[role];
	mine->qpn = qp->qp_num;
	mine->rkey = mr->rkey;
	mine->addr = (uintptr_t)memory;
	__sync_synchronize();
	mine->known = 1;
}

static void connect_to(int role)
{
	struct address *peer = &meeting->of[!role];
	while (!peer->known)
		usleep(100);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};
	must("INIT", ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = peer->qpn, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = { .port_num = 1, .dlid = port.lid, .is_global = port.link_layer == IBV_LINK_LAYER_ETHERNET,
			     .grh = { .dgid = gid, .hop_limit = 1 } },
	};
	must("RTR", ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	must("RTS", ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
	meeting->of[role].connected = 1;
	while (!peer->connected)
		usleep(100);
}

static void operation(enum ibv_wr_opcode opcode, size_t bytes)
{
	struct ibv_sge sge = { (uintptr_t)memory, (uint32_t)bytes, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.wr.rdma.remote_addr = meeting->of[SERVER].addr;
	wr.wr.rdma.rkey = meeting->of[SERVER].rkey;
	must("ibv_post_send", ibv_post_send(qp, &wr, &bad));
	struct ibv_wc wc;
	int count;
	while (!(count = ibv_poll_cq(cq, 1, &wc)))
		;
	if (count < 0 || wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "passive: completion: %s\n", count < 0 ? "none" : ibv_wc_status_str(wc.status));
		exit(1);
	}
}

int main(int argc, char **argv)
{
	if (argc != 7) {
		fprintf(stderr, "passive: see the head of passive.c\n");
		return 2;
	}
	size_t bytes = strtoul(argv[2], NULL, 10), count = strtoul(argv[3], NULL, 10);
	uint64_t gap = strtoul(argv[4], NULL, 10) * 1000;
	int copy = !strcmp(argv[1], "memcpy");
	enum ibv_wr_opcode opcode = !strcmp(argv[1], "read") ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;

	meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	double *samples = calloc(count, sizeof *samples);
	if (meeting == MAP_FAILED || shared == MAP_FAILED || !samples)
		die("memory");
	memset(shared, 1, bytes);
	pid_t child = fork();
	if (child < 0)
		die("fork");
	int role = child ? CLIENT : SERVER;
	pin(atoi(argv[role == CLIENT ? 5 : 6]));
	if (role == SERVER)
		prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	if (!copy) {
		open_qp(role, bytes);
		connect_to(role);
	} else if (role == CLIENT) {
		memory = malloc(bytes);
		memset(memory, 1, bytes);
	}
	if (role == SERVER)
		for (;;)
			pause();

	uint64_t cost = clock_cost_ns();
	for (size_t i = 0; i < 8 + count; i++) {
		for (uint64_t rest = now_ns(); now_ns() - rest < gap;)
			;
		uint64_t begin = now_ns();
		if (copy)
			memcpy(shared, memory, bytes);
		else
			operation(opcode, bytes);
		uint64_t took = now_ns() - begin;
		if (i >= 8) /* the first ones connect, map and allocate */
			samples[i - 8] = (double)(took > cost ? took - cost : 0);
	}
	printf("%.3f\n", median(samples, count));
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	return 0;
}
