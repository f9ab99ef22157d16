/* answer PEER_ADDRESS GROUP_ADDRESS [LABEL]: answers each message of a peer that is not Vervain with the same bytes. It has
 * an RC QP whose peer is QP 0x11 at that address, first PSN 0 both ways, and a UD QP, a member of the group. Prints their
 * numbers and the key of its memory, one line for each message, and goes on until it is killed. LABEL is the flow label of
 * its address vectors. */
#define _GNU_SOURCE
#include "vt.h"

#include <arpa/inet.h>

#define PEER_QPN 0x11
#define ROOM 4096u
#define DEPTH 64u

static struct vt_dev dev;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static uint8_t *memory;

#define must(cond)                                                                                                         \
	do {                                                                                                                   \
		if (!(cond)) {                                                                                                     \
			fprintf(stderr, "%s: %s\n", #cond, strerror(errno));                                                           \
			exit(1);                                                                                                       \
		}                                                                                                                  \
	} while (0)

static union ibv_gid gid_of(const char *address)
{
	union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff } };
	must(inet_pton(AF_INET, address, gid.raw + 12) == 1 || inet_pton(AF_INET6, address, gid.raw) == 1);
	return gid;
}

static struct ibv_qp *create(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .cap = { DEPTH, DEPTH, 1, 1, 0 }, .qp_type = type };
	struct ibv_qp *qp = ibv_create_qp(pd, &a);
	must(qp);
	return qp;
}

/* Receives of a QP have the numbers of the rooms behind `base`. */
static void post_receive(struct ibv_qp *qp, uint64_t room)
{
	struct ibv_sge sge = { (uintptr_t)memory + room * ROOM, ROOM, mr->lkey };
	struct ibv_recv_wr w = { .wr_id = room, .sg_list = &sge, .num_sge = 1 }, *bad;
	must(ibv_post_recv(qp, &w, &bad) == 0);
}

static void connect_rc(struct ibv_qp *qp, const char *peer, uint32_t label)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = dev.port_num, .qp_access_flags = VT_ACCESS_ALL };
	must(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	a = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = PEER_QPN, .max_dest_rd_atomic = 4,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = dev.port_num,
			     .grh = { .dgid = gid_of(peer), .sgid_index = (uint8_t)dev.gid_index, .hop_limit = 64, .flow_label = label } },
	};
	must(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4 };
	must(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				   IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static void ready_ud(struct ibv_qp *qp, const char *group)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = dev.port_num, .qkey = VT_QKEY };
	must(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
	a.qp_state = IBV_QPS_RTR;
	must(ibv_modify_qp(qp, &a, IBV_QP_STATE) == 0);
	a.qp_state = IBV_QPS_RTS;
	must(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
	union ibv_gid gid = gid_of(group);
	must(ibv_attach_mcast(qp, &gid, 0) == 0);
}

int main(int argc, char **argv)
{
	if (argc < 3 || !vt_open(&dev))
		return 2;
	uint32_t label = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 0) : 0;
	memory = calloc(2 * DEPTH, ROOM);
	must(memory && (pd = ibv_alloc_pd(dev.ctx)));
	must((mr = ibv_reg_mr(pd, memory, 2 * DEPTH * ROOM, VT_ACCESS_ALL)));
	must((cq = ibv_create_cq(dev.ctx, 4 * DEPTH, NULL, NULL, 0)));
	struct ibv_qp *rc = create(IBV_QPT_RC), *ud = create(IBV_QPT_UD);
	connect_rc(rc, argv[1], label);
	ready_ud(ud, argv[2]);
	for (uint64_t room = 0; room < DEPTH; room++) {
		post_receive(rc, room);
		post_receive(ud, DEPTH + room);
	}
	printf("numbers %u %u %u %" PRIu64 " end\n", rc->qp_num, ud->qp_num, mr->rkey, (uint64_t)(uintptr_t)memory);
	fflush(stdout);
	for (;;) {
		struct ibv_wc wc;
		if (vt_poll(cq, &wc, 1, 1000) != 1)
			continue;
		must(wc.status == IBV_WC_SUCCESS);
		if (!(wc.opcode & IBV_WC_RECV)) {
			/* The answer is sent, and its room free. */
			post_receive(wc.wr_id < DEPTH ? rc : ud, wc.wr_id);
			continue;
		}
		uint8_t *room = memory + wc.wr_id * ROOM;
		struct ibv_sge sge = { (uintptr_t)room, wc.byte_len, mr->lkey };
		struct ibv_send_wr w = { .wr_id = wc.wr_id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					 .send_flags = IBV_SEND_SIGNALED }, *bad;
		if (wc.wr_id < DEPTH) {
			printf("RC message of %u bytes\n", wc.byte_len);
			must(ibv_post_send(rc, &w, &bad) == 0);
		} else {
			struct ibv_grh *grh = (struct ibv_grh *)room;
			sge.addr += VT_GRH;
			sge.length -= VT_GRH;
			printf("UD message of %u bytes, from QP %#x, flow label %#x\n", sge.length, wc.src_qp,
			       ntohl(grh->version_tclass_flow) & 0xfffff);
			struct ibv_ah_attr back;
			must(ibv_init_ah_from_wc(dev.ctx, dev.port_num, &wc, grh, &back) == 0);
			/* Not from a group's address. */
			back.grh.sgid_index = (uint8_t)dev.gid_index;
			w.wr.ud.ah = ibv_create_ah(pd, &back);
			must(w.wr.ud.ah);
			w.wr.ud.remote_qpn = wc.src_qp;
			w.wr.ud.remote_qkey = VT_QKEY;
			must(ibv_post_send(ud, &w, &bad) == 0);
			must(ibv_destroy_ah(w.wr.ud.ah) == 0);
		}
		fflush(stdout);
	}
}
