#define _GNU_SOURCE
#include "vt_world.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct world *w;

/* ---- making things ---- */

void open_world(void)
{
	vt_require(vt_open(&w->dev), "opening the device");
	w->pd = ibv_alloc_pd(w->dev.ctx);
	KEEP(VERVAIN_PD, w->pd);
	w->mr = ibv_reg_mr(w->pd, w->buf, BUF, VT_ACCESS_ALL | IBV_ACCESS_MW_BIND);
	KEEP(VERVAIN_MR, w->mr);
}

void make_cq(int i, int entries, struct ibv_comp_channel *channel)
{
	w->cq[i] = ibv_create_cq(w->dev.ctx, entries, &w->cq[i], channel, 0);
	KEEP(VERVAIN_CQ, w->cq[i]);
}

struct ibv_qp_init_attr_ex init_of(enum ibv_qp_type type, int i, int cq)
{
	return (struct ibv_qp_init_attr_ex){
		.qp_context = &w->qp[i], .send_cq = w->cq[cq], .recv_cq = w->cq[cq], .qp_type = type, .pd = w->pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD, .cap = { 16, 16, 3, 3, 64 },
	};
}

void make_qp_of(int i, struct ibv_qp_init_attr_ex init)
{
	w->qp[i] = ibv_create_qp_ex(w->dev.ctx, &init);
	KEEP(VERVAIN_QP, w->qp[i]);
}

void make_qp(enum ibv_qp_type type, int i, int cq)
{
	make_qp_of(i, init_of(type, i, cq));
}

static bool is_datagram(const struct ibv_qp *qp)
{
	return qp->qp_type == IBV_QPT_UD;
}

struct ibv_ah_attr address(void)
{
	struct ibv_ah_attr ah = { .dlid = w->dev.port.lid, .port_num = w->dev.port_num, .is_global = w->dev.global };
	ah.grh = (struct ibv_global_route){ .dgid = w->dev.gid, .sgid_index = (uint8_t)w->dev.gid_index, .hop_limit = 64 };
	return ah;
}

int to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = w->dev.port_num, .qkey = VT_QKEY,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | VT_ACCESS_FLUSH_GLOBAL };
	int rights = is_datagram(qp) ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
	return ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | rights);
}

int to_rtr(struct ibv_qp *qp, const struct ibv_qp *peer, uint32_t psn)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer ? peer->qp_num : 0, .rq_psn = psn,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 5, .ah_attr = address() };
	int mask = IBV_QP_STATE;
	if (!is_datagram(qp))
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (qp->qp_type == IBV_QPT_RC || qp->qp_type == IBV_QPT_XRC_RECV || qp->qp_type == IBV_QPT_XRC_SEND)
		mask |= qp->qp_type == IBV_QPT_XRC_SEND ? 0 : IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	return ibv_modify_qp(qp, &a, mask);
}

int to_rts(struct ibv_qp *qp, uint32_t psn)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 5, .rnr_retry = 7, .sq_psn = psn, .max_rd_atomic = 4 };
	int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (qp->qp_type == IBV_QPT_RC || qp->qp_type == IBV_QPT_XRC_SEND)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	return ibv_modify_qp(qp, &a, mask | (qp->qp_type == IBV_QPT_XRC_RECV ? IBV_QP_TIMEOUT : 0));
}

void join(int a, int b)
{
	struct ibv_qp *one = w->qp[a], *other = w->qp[b];
	uint32_t psn[2] = { 0x123450u + (uint32_t)a, 0xfffffeu - (uint32_t)b };
	vt_require(to_init(one) == 0 && to_init(other) == 0, "INIT");
	vt_require(to_rtr(one, other, psn[1]) == 0 && to_rtr(other, one, psn[0]) == 0, "RTR");
	vt_require(to_rts(one, psn[0]) == 0 && to_rts(other, psn[1]) == 0, "RTS");
}

void pair(enum ibv_qp_type type, int a, int b, int cq)
{
	make_qp(type, a, cq);
	make_qp(type, b, cq + 1);
	join(a, b);
}

/* ---- work ---- */

struct ibv_sge at(uint64_t offset, uint32_t length)
{
	return (struct ibv_sge){ (uintptr_t)w->buf + offset, length, w->mr->lkey };
}

struct ibv_send_wr request(uint64_t id, enum ibv_wr_opcode opcode, struct ibv_sge *sge)
{
	return (struct ibv_send_wr){ .wr_id = id, .opcode = opcode, .sg_list = sge, .num_sge = sge != NULL, .send_flags = IBV_SEND_SIGNALED };
}

int post(int qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	return ibv_post_send(w->qp[qp], wr, &bad);
}

void send_of(int qp, uint64_t id, uint64_t offset, uint32_t length, unsigned flags)
{
	struct ibv_sge sge = at(offset, length);
	struct ibv_send_wr wr = request(id, IBV_WR_SEND, &sge);
	wr.send_flags |= flags;
	vt_check(post(qp, &wr) == 0, "posting %" PRIu64, id);
}

void rdma(int qp, uint64_t id, enum ibv_wr_opcode opcode, uint64_t offset, uint32_t length, uint64_t remote, uint32_t rkey)
{
	struct ibv_sge sge = at(offset, length);
	struct ibv_send_wr wr = request(id, opcode, &sge);
	wr.wr.rdma.remote_addr = remote;
	wr.wr.rdma.rkey = rkey;
	vt_check(post(qp, &wr) == 0, "posting %" PRIu64, id);
}

void receive(int qp, uint64_t id, uint64_t offset, uint32_t length)
{
	struct ibv_sge sge[2] = { at(offset, length / 2), at(offset + length / 2, length - length / 2) };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = sge, .num_sge = 2 }, *bad;
	vt_check((w->qp[qp]->srq ? ibv_post_srq_recv(w->qp[qp]->srq, &wr, &bad) : ibv_post_recv(w->qp[qp], &wr, &bad)) == 0, "posting a receive");
}

/* The next completion of a CQ is this one. */
struct ibv_wc completes(int cq, uint64_t id, int status)
{
	struct ibv_wc wc;
	memset(&wc, 0, sizeof(wc));
	vt_require(vt_poll(w->cq[cq], &wc, 1, 5000) == 1, "no completion where %" PRIu64 " was to come", id);
	vt_check(wc.wr_id == id && (int)wc.status == status, "completion %" PRIu64 " with %s for %" PRIu64 " with %s", wc.wr_id, vt_wc_name((int)wc.status),
		 id, vt_wc_name(status));
	return wc;
}

void is_empty(int cq)
{
	struct ibv_wc wc;
	vt_check(ibv_poll_cq(w->cq[cq], 1, &wc) == 0, "CQ %d has another completion, %" PRIu64 " with %s", cq, wc.wr_id, vt_wc_name((int)wc.status));
}

/* A message from one QP to the other, both ways. */
void works(int a, int b, int cq_a, int cq_b)
{
	for (int k = 0; k < 2; k++) {
		int from = k ? b : a, to = k ? a : b, cq_from = k ? cq_b : cq_a, cq_to = k ? cq_a : cq_b;
		vt_fill(w->buf + 60000, 700, (uint64_t)k + 91);
		receive(to, 1001, 61000, 700);
		send_of(from, 1002, 60000, 700, 0);
		completes(cq_from, 1002, IBV_WC_SUCCESS);
		vt_check(completes(cq_to, 1001, IBV_WC_SUCCESS).byte_len == 700 && vt_verify(w->buf + 61000, 700, (uint64_t)k + 91) == 700, "a new message");
	}
}

void halt(void)
{
	int rc = vt_vstop(w->dev.ctx, NULL);
	vt_require(rc == 0, "vervain_stop: %s", vt_errno_name(rc));
}

void go_on(void)
{
	int rc = vt_vgo(w->dev.ctx);
	vt_require(rc == 0, "vervain_go: %s", vt_errno_name(rc));
}

/* ---- having them again ---- */

void world_new(void)
{
	vt_saved_find();
	w = mmap(NULL, sizeof(*w), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	vt_require(w != MAP_FAILED, "memory");
}

void destroy_world(void)
{
	if (w->in_group)
		vt_check(ibv_detach_mcast(*w->in_group, &w->group, 0) == 0, "detaching");
	vt_destroy_all(&w->things);
}

void world_end(void)
{
	destroy_world();
	vt_check(ibv_close_device(w->dev.ctx) == 0, "closing the device");
	munmap(w, sizeof(*w));
}

static void saved(const struct pasts *p, int fd, uint32_t flags)
{
	struct vervain_save_attr attr = { .flags = flags };
	open_world();
	p->before();
	vt_note_all(&w->things);
	int rc = vt_vsave(w->dev.ctx, fd, &attr);
	vt_require(rc == 0, "vervain_save: %s", vt_errno_name(rc));
	/* It changes nothing. */
	vt_compare_all(&w->things);
	vt_rewind(fd);
}

static void restored(const struct pasts *p, int fd)
{
	int rc = vt_restore_all(&w->things, w->dev.ctx, fd);
	vt_require(rc == 0, "vervain_restore: %s", vt_errno_name(rc));
	close(fd);
	vt_compare_all(&w->things);
	p->after();
	world_end();
}

void world_again(const struct pasts *p)
{
	int fd = vt_image();
	world_new();
	saved(p, fd, 0);
	destroy_world();
	/* In the context that was saved, and stands since, or in another one of the process. */
	if (vt_random() % 2)
		vt_require(ibv_close_device(w->dev.ctx) == 0 && vt_open(&w->dev), "opening the device anew");
	restored(p, fd);
}

void world_goes_on(const struct pasts *p)
{
	int fd = vt_image();
	world_new();
	saved(p, fd, 0);
	close(fd);
	p->after();
	world_end();
}

/* The status of a child that has done `f`. */
int by_child(void (*f)(const struct pasts *, int), const struct pasts *p, int fd)
{
	int status = 1;
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		if (!setjmp(vt_abandon))
			f(p, fd);
		fflush(stdout);
		_exit(vt_failures() != 0);
	}
	return child > 0 && waitpid(child, &status, 0) == child ? status : -1;
}

static void saved_with_memory(const struct pasts *p, int fd)
{
	saved(p, fd, VERVAIN_SAVE_MEMORY);
}

static void restored_here(const struct pasts *p, int fd)
{
	memset(w->buf, 0xaa, BUF);
	vt_require(vt_open(&w->dev), "opening the device");
	restored(p, fd);
}

/* One child is saved and ends, with what is registered in the image; another one takes its place. */
void world_elsewhere(const struct pasts *p)
{
	int fd = vt_image(), status;
	world_new();
	vt_require((status = by_child(saved_with_memory, p, fd)) == 0, "the process that was saved: %#x", (unsigned)status);
	vt_require((status = by_child(restored_here, p, fd)) == 0, "the process that was restored: %#x", (unsigned)status);
	close(fd);
	munmap(w, sizeof(*w));
}
