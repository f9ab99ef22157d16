/* Many: 64 processes connected all to all, 10,000 QPs in one process, QPNs that come back. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS 64
#define OPTS &(struct vt_duo_opts){ .type = VT_RC, .nqp = RANKS, .depth = 8, .sge = 1, .timeout = 18, .size = 1 << 16 }

static struct vt_duo d;
static struct vt_duo_addr all[RANKS];

/* Rank r uses its QP i to reach rank i. It writes r + 1 into slot r of every rank, adds one to a word of every rank,
 * and at the end finds every slot filled and its word counted up to RANKS. */
static int rank_peer(int fd)
{
	uint32_t me;
	char go;
	struct ibv_wc wc;
	if (!vt_get(fd, &me, sizeof(me), 60000) || !vt_duo_open(&d, OPTS))
		return 1;
	if (!vt_put(fd, &d.self, sizeof(d.self)) || !vt_get(fd, all, sizeof(all), 60000))
		return 1;
	for (int i = 0; i < RANKS; i++) {
		d.peer = all[i];
		d.peer.qpn[i] = all[i].qpn[me];
		if (!vt_duo_connect(&d, i))
			return 1;
	}
	go = 1;
	if (!vt_put(fd, &go, 1) || !vt_get(fd, &go, 1, 60000))
		return 1;
	uint64_t mine = me + 1;
	memcpy(d.buf + 32768, &mine, 8);
	for (int i = 0; i < RANKS; i++) {
		struct ibv_sge from = vt_duo_sge(&d, 32768, 8), old = vt_duo_sge(&d, 32768 + 64, 8);
		d.peer = all[i];
		if (vt_duo_post(&d, i, IBV_WR_RDMA_WRITE, 1, 0, &from, 1, all[i].addr + me * 8) ||
		    vt_duo_post(&d, i, IBV_WR_ATOMIC_FETCH_AND_ADD, 2, IBV_SEND_SIGNALED, &old, 1, all[i].addr + RANKS * 8)) {
			printf("FAIL rank %u: posting to %d\n", me, i);
			return 1;
		}
	}
	for (int i = 0; i < RANKS; i++)
		if (vt_poll(d.cq, &wc, 1, 60000) != 1 || wc.status != IBV_WC_SUCCESS) {
			printf("FAIL rank %u: completion %d: %s\n", me, i, vt_wc_name((int)wc.status));
			return 1;
		}
	if (!vt_put(fd, &go, 1) || !vt_get(fd, &go, 1, 60000))
		return 1;
	for (uint64_t i = 0; i <= RANKS; i++) {
		uint64_t got, want = i < RANKS ? i + 1 : RANKS;
		memcpy(&got, d.buf + i * 8, 8);
		if (got != want) {
			printf("FAIL rank %u: word %" PRIu64 " is %" PRIu64 "\n", me, i, got);
			return 1;
		}
	}
	return vt_duo_close(&d) ? 0 : 1;
}

static void all_to_all(void)
{
	int fd[RANKS], ok = 0;
	pid_t pid[RANKS];
	uint64_t begin = vt_now_us();
	for (uint32_t i = 0; i < RANKS; i++) {
		pid[i] = vt_spawn("rank", &fd[i]);
		vt_require(pid[i] > 0 && vt_put(fd[i], &i, sizeof(i)), "starting rank %u", i);
	}
	for (int i = 0; i < RANKS; i++)
		vt_require(vt_get(fd[i], &all[i], sizeof(all[i]), 60000), "rank %d did not open the device", i);
	uint64_t opened = vt_now_us();
	for (int i = 0; i < RANKS; i++)
		vt_require(vt_put(fd[i], all, sizeof(all)), "rank %d is gone", i);
	for (int step = 0; step < 2; step++) {
		char go = 1;
		for (int i = 0; i < RANKS; i++)
			vt_require(vt_get(fd[i], &go, 1, 90000), "rank %d did not reach step %d", i, step);
		for (int i = 0; i < RANKS; i++)
			vt_put(fd[i], &go, 1);
	}
	for (int i = 0; i < RANKS; i++) {
		ok += vt_reap(pid[i], 30000) == 0;
		close(fd[i]);
	}
	vt_check(ok == RANKS, "%d of %d ranks ended well", ok, RANKS);
	vt_note("%d processes: %.2f s to open, %.2f s in all", RANKS, (double)(opened - begin) / 1e6, (double)(vt_now_us() - begin) / 1e6);
}

#define MANY 10000
static void many_qps(void)
{
	static struct ibv_qp *qp[MANY];
	struct vt_dev dev;
	struct ibv_wc wc;
	static uint8_t mem[8192];
	vt_require(vt_open(&dev), "opening");
	struct ibv_pd *pd = ibv_alloc_pd(dev.ctx);
	struct ibv_cq *cq = ibv_create_cq(dev.ctx, MANY + 10, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, mem, sizeof(mem), VT_ACCESS_ALL);
	vt_require(pd && cq && mr, "PD, CQ, MR: %s", strerror(errno));
	uint64_t begin = vt_now_us();
	struct vt_duo s = { .dev = dev, .pd = pd, .cq = cq, .mr = mr, .buf = mem, .o = { .depth = 4, .sge = 1, .timeout = 14 } };
	s.peer = (struct vt_duo_addr){ .gid = dev.gid, .lid = dev.port.lid, .rkey = mr->rkey, .addr = (uintptr_t)mem };
	int made = 0;
	for (; made < MANY; made++) {
		if (!vt_duo_qp(&s, 0))
			break;
		qp[made] = s.qp[0];
		s.peer.qpn[0] = s.qp[0]->qp_num;
		if (!vt_duo_connect(&s, 0))
			break;
	}
	vt_require(made == MANY, "only %d QPs", made);
	uint64_t created = vt_now_us();
	for (int i = 0; i < MANY; i++) {
		s.qp[0] = qp[i];
		struct ibv_sge sge = vt_duo_sge(&s, 0, 8);
		mem[0] = (uint8_t)i;
		vt_require(vt_duo_post(&s, 0, IBV_WR_RDMA_WRITE, (uint64_t)i, IBV_SEND_SIGNALED, &sge, 1, (uintptr_t)mem + 4096) == 0,
			"posting on QP %d", i);
		if (i % 2) /* half are polled at once, half all together */
			vt_require(vt_poll(cq, &wc, 1, 2000) == 1 && wc.status == IBV_WC_SUCCESS, "QP %d", i);
	}
	int rest = 0;
	while (rest < MANY / 2 && vt_poll(cq, &wc, 1, 2000) == 1 && wc.status == IBV_WC_SUCCESS)
		rest++;
	vt_check(rest == MANY / 2 && mem[4096] == (uint8_t)(MANY - 1), "%d of %d later completions", rest, MANY / 2);
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	uint64_t used = vt_now_us();
	for (int i = 0; i < MANY; i++)
		vt_require(ibv_destroy_qp(qp[i]) == 0, "destroying QP %d", i);
	vt_note("%d QPs: %.2f s to create and connect, %.2f s for a write on each, %.2f s to destroy, %ld MiB at most", MANY,
		(double)(created - begin) / 1e6, (double)(used - created) / 1e6, (double)(vt_now_us() - used) / 1e6, u.ru_maxrss / 1024);
	vt_check(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(dev.ctx), "cleaning up");
}

/* A number is not given again at once: packets of the QP of before would reach the new one. */
static void numbers(void)
{
	struct vt_dev dev;
	vt_require(vt_open(&dev), "opening");
	struct ibv_pd *pd = ibv_alloc_pd(dev.ctx);
	struct ibv_cq *cq = ibv_create_cq(dev.ctx, 10, NULL, NULL, 0);
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	uint32_t last = 0;
	int again = 0;
	for (int i = 0; i < 20000; i++) {
		struct ibv_qp *qp = ibv_create_qp(pd, &a);
		vt_require(qp, "QP number %d: %s", i, strerror(errno));
		again += qp->qp_num == last;
		last = qp->qp_num;
		vt_require(last < (1u << 24), "QPN 0x%x", last);
		vt_require(ibv_destroy_qp(qp) == 0, "ibv_destroy_qp");
	}
	vt_check(again == 0, "%d of 20000 QPs got the number of the one destroyed just before", again);
	static uint8_t mem[4096];
	uint32_t key = 0;
	again = 0;
	for (int i = 0; i < 20000; i++) {
		struct ibv_mr *mr = ibv_reg_mr(pd, mem, sizeof(mem), IBV_ACCESS_LOCAL_WRITE);
		vt_require(mr, "registration number %d: %s", i, strerror(errno));
		again += mr->rkey == key;
		key = mr->rkey;
		ibv_dereg_mr(mr);
	}
	vt_check(again == 0, "%d of 20000 regions got the key of the one deregistered just before", again);
	vt_check(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(dev.ctx), "cleaning up");
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { { "all_to_all", all_to_all }, { "many_qps", many_qps }, { "numbers", numbers } };
	static const struct vt_role roles[] = { { "rank", rank_peer } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
