/* hello.c: a first RDMA program, complete and in one process. Two queue pairs (QPs) are connected to each other; one
 * sends a message, which the other receives, and then writes into memory by itself.
 *
 *     cc -o hello hello.c -libverbs        (Debian, Ubuntu: packages gcc, libc6-dev, libibverbs-dev)
 *     vervain run -- ./hello
 *     vervain run -- ./hello no-receive    a mistake, which Vervain explains; others: wrong-lkey, wrong-rkey
 *
 * It runs on RDMA cards, too. Exit status: 0 if both operations succeeded, 1 otherwise. */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PORT = 1, GID_INDEX = 0 /* of cards, RoCE v2 over IPv4 often has 3 */, SIZE = 64 };

static char source[SIZE], target[SIZE];
static struct ibv_cq *cq;

static void must(int succeeded, const char *call)
{
	if (!succeeded) {
		perror(call);
		exit(EXIT_FAILURE);
	}
}

static struct ibv_qp *create_qp(struct ibv_pd *pd)
{
	struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };
	attr.cap = (struct ibv_qp_cap){ .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 };
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);
	must(qp != NULL, "ibv_create_qp");
	return qp;
}

/* RESET to INIT, RTR (ready to receive), RTS (ready to send). Two programs would exchange numbers and GIDs of their QPs
 * before, by TCP or librdmacm. */
static void connect_qp(struct ibv_qp *qp, struct ibv_qp *peer, union ibv_gid gid, enum ibv_mtu mtu)
{
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = PORT };
	init.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
	must(!ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "to INIT");

	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = peer->qp_num };
	rtr.min_rnr_timer = rtr.max_dest_rd_atomic = 1;
	rtr.ah_attr = (struct ibv_ah_attr){ .port_num = PORT, .is_global = 1 };
	rtr.ah_attr.grh = (struct ibv_global_route){ .dgid = gid, .sgid_index = GID_INDEX, .hop_limit = 64 };
	must(!ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "to RTR");

	/* One retry if the peer has no receive; 7 retries for ever. */
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 1 };
	rts.max_rd_atomic = 1;
	must(!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					      IBV_QP_MAX_QP_RD_ATOMIC), "to RTS");
}

static struct ibv_wc next_completion(void)
{
	struct ibv_wc wc;
	int count;
	while ((count = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	must(count == 1, "ibv_poll_cq");
	return wc;
}

/* Posts a request, waits for its completion and perhaps that of a receive, and prints what the target holds then. */
static void carry_out(const char *name, struct ibv_qp *qp, struct ibv_send_wr request, int completions)
{
	struct ibv_send_wr *bad;
	must(!ibv_post_send(qp, &request, &bad), "ibv_post_send");
	for (; completions > 0; completions--) {
		struct ibv_wc wc = next_completion();
		if (wc.status != IBV_WC_SUCCESS) {
			printf("%s: %s\n", name, ibv_wc_status_str(wc.status));
			exit(EXIT_FAILURE);
		}
	}
	printf("%s: success, and the target holds \"%s\"\n", name, target);
}

int main(int argc, char **argv)
{
	const char *mistake = argc > 1 ? argv[1] : "";
	struct ibv_device **devices = ibv_get_device_list(NULL);
	if (!devices || !devices[0]) {
		fprintf(stderr, "There is no RDMA device: vervain run -- %s\n", argv[0]);
		return EXIT_FAILURE;
	}
	struct ibv_context *device = ibv_open_device(devices[0]);
	must(device != NULL, "ibv_open_device");
	struct ibv_port_attr port;
	union ibv_gid gid;
	must(!ibv_query_port(device, PORT, &port) && !ibv_query_gid(device, PORT, GID_INDEX, &gid), "port and GID");

	/* The device uses registered memory only. Requests name their own by its lkey, a peer's by its rkey. */
	struct ibv_pd *pd = ibv_alloc_pd(device);
	must(pd != NULL, "ibv_alloc_pd");
	struct ibv_mr *from = ibv_reg_mr(pd, source, SIZE, 0);
	struct ibv_mr *to = ibv_reg_mr(pd, target, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	must(from && to, "ibv_reg_mr");

	cq = ibv_create_cq(device, 16, NULL, NULL, 0);
	must(cq != NULL, "ibv_create_cq");
	struct ibv_qp *near = create_qp(pd), *far = create_qp(pd);
	connect_qp(near, far, gid, port.active_mtu);
	connect_qp(far, near, gid, port.active_mtu);
	printf("%s: QP 0x%x and QP 0x%x are connected\n", ibv_get_device_name(devices[0]), near->qp_num, far->qp_num);

	/* A Send fills the memory of a receive that the peer has posted. Both get a completion. */
	struct ibv_sge into = { .addr = (uintptr_t)target, .length = SIZE, .lkey = to->lkey };
	struct ibv_recv_wr receive = { .sg_list = &into, .num_sge = 1 }, *bad;
	if (strcmp(mistake, "no-receive") != 0)
		must(!ibv_post_recv(far, &receive, &bad), "ibv_post_recv");
	struct ibv_sge out = { .addr = (uintptr_t)source, .length = SIZE, .lkey = from->lkey };
	if (strcmp(mistake, "wrong-lkey") == 0)
		out.lkey ^= 0x100;
	strcpy(source, "Hello");
	struct ibv_send_wr request = { .sg_list = &out, .num_sge = 1, .opcode = IBV_WR_SEND };
	carry_out("Send", near, request, 2);

	/* An RDMA Write names the memory by address and rkey. The peer does nothing for it and gets no completion. */
	strcpy(source, "Hello again");
	request.opcode = IBV_WR_RDMA_WRITE;
	request.wr.rdma.remote_addr = (uintptr_t)target;
	request.wr.rdma.rkey = strcmp(mistake, "wrong-rkey") == 0 ? to->rkey ^ 0x100 : to->rkey;
	carry_out("RDMA Write", near, request, 1);

	ibv_destroy_qp(near);
	ibv_destroy_qp(far);
	ibv_destroy_cq(cq);
	ibv_dereg_mr(from);
	ibv_dereg_mr(to);
	ibv_dealloc_pd(pd);
	ibv_close_device(device);
	ibv_free_device_list(devices);
	return EXIT_SUCCESS;
}
