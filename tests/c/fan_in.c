/* Many processes against one: sends of many QPs into one SRQ and one CQ, datagrams of everybody to everybody, and
 * objects that come and go in some threads while others use theirs. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#define SENDERS 16
#define EACH 3000
#define RECVS 256
#define SERVER &(struct vt_duo_opts){ .type = VT_RC_SRQ, .nqp = SENDERS, .depth = RECVS / 2, .timeout = 12, .retry = 2, \
	.size = 1 << 20 }
#define CLIENT &(struct vt_duo_opts){ .type = VT_RC, .nqp = 1, .depth = 32, .size = 1 << 20 }

static struct vt_duo d;

/* Sends its numbers 1 … EACH, several outstanding. */
static int sender_peer(int fd)
{
	struct ibv_wc wc;
	unsigned out = 0;
	if (!vt_duo_open(&d, CLIENT) || !vt_duo_meet(&d, fd))
		return 1;
	for (uint64_t number = 1; number <= EACH; number++) {
		memcpy(d.buf, &number, 8);
		struct ibv_sge sge = vt_duo_sge(&d, 0, 8);
		if (vt_duo_post(&d, 0, IBV_WR_SEND_WITH_IMM, number, IBV_SEND_SIGNALED | IBV_SEND_INLINE, &sge, 1, 0)) {
			printf("FAIL sender: posting %" PRIu64 "\n", number);
			return 1;
		}
		for (out++; out >= 24 || (number == EACH && out);) {
			int n = vt_poll(d.cq, &wc, 1, 30000);
			if (n != 1 || wc.status != IBV_WC_SUCCESS) {
				printf("FAIL sender: message %" PRIu64 ": %s\n", number, vt_wc_name(n == 1 ? (int)wc.status : -1));
				return 1;
			}
			out--;
		}
	}
	char c;
	vt_get(fd, &c, 1, 60000);
	return vt_duo_close(&d) ? 0 : 1;
}

static bool post_receive(uint64_t slot)
{
	struct ibv_sge sge = vt_duo_sge(&d, slot * 64, 64);
	struct ibv_recv_wr r = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;
	return ibv_post_srq_recv(d.srq, &r, &bad) == 0;
}

static int sender_of(uint32_t qpn)
{
	for (int i = 0; i < SENDERS; i++)
		if (d.self.qpn[i] == qpn)
			return i;
	return -1;
}

/* Serves SENDERS processes; `deaths` of them are killed on the way, the others must not notice. */
static void serve(int deaths)
{
	int fd[SENDERS], alive = SENDERS;
	pid_t pid[SENDERS];
	uint64_t last[SENDERS] = { 0 }, done = 0, posted = RECVS, completed = 0, progress = vt_now_us();
	uint64_t kill_at[SENDERS];
	vt_require(vt_duo_open(&d, SERVER), "the server");
	struct vt_duo_addr mine = d.self, hello = mine;
	for (uint64_t i = 0; i < RECVS; i++)
		vt_require(post_receive(i), "posting");
	for (int i = 0; i < SENDERS; i++) {
		pid[i] = vt_spawn("sender", &fd[i]);
		vt_require(pid[i] > 0, "fork");
		kill_at[i] = i < deaths ? vt_random() % (EACH / 2) + 1 : UINT64_MAX;
	}
	for (int i = 0; i < SENDERS; i++) {
		char go = 1;
		hello.qpn[0] = mine.qpn[i];
		vt_require(vt_get(fd[i], &d.peer, sizeof(d.peer), 20000) && vt_put(fd[i], &hello, sizeof(hello)), "sender %d", i);
		d.peer.qpn[i] = d.peer.qpn[0];
		vt_require(vt_duo_connect(&d, i), "connecting sender %d", i);
		vt_require(vt_put(fd[i], &go, 1) && vt_get(fd[i], &go, 1, 20000), "sender %d", i);
	}
	while (done < (uint64_t)(SENDERS - deaths)) {
		struct ibv_wc wc[16];
		int n = ibv_poll_cq(d.cq, 16, wc);
		vt_require(n >= 0, "ibv_poll_cq");
		vt_require(n > 0 || vt_now_us() - progress < 20000000, "nothing comes any more: %" PRIu64 " of %d senders are done",
			done, alive);
		if (n == 0)
			sched_yield();
		else
			progress = vt_now_us();
		for (int i = 0; i < n; i++) {
			int from = sender_of(wc[i].qp_num);
			uint64_t number;
			completed++;
			vt_require(from >= 0 && wc[i].wr_id < RECVS, "a completion of QP 0x%x, wr_id %" PRIu64, wc[i].qp_num, wc[i].wr_id);
			memcpy(&number, d.buf + wc[i].wr_id * 64, 8);
			if (wc[i].status == IBV_WC_SUCCESS) {
				vt_require(number == last[from] + 1 && be32toh(wc[i].imm_data) == (uint32_t)number,
					   "sender %d: after message %" PRIu64 " came %" PRIu64 ", immediate %u", from, last[from], number,
						be32toh(wc[i].imm_data));
				last[from] = number;
				done += number == EACH && from >= deaths;
			} else {
				vt_require(from < deaths && kill_at[from] == 0, "sender %d: a receive ended with %s", from,
					vt_wc_name((int)wc[i].status));
			}
			vt_require(post_receive(wc[i].wr_id), "no room for a receive that came back");
			posted++;
			if (from < deaths && last[from] >= kill_at[from] && kill_at[from]) {
				kill(pid[from], SIGKILL);
				kill_at[from] = 0;
				alive--;
			}
		}
	}
	for (int i = 0; i < SENDERS; i++) {
		char c = 1;
		if (i >= deaths)
			vt_put(fd[i], &c, 1);
		else
			kill(pid[i], SIGKILL); /* one that was so slow that all others were done before its moment */
		int status = vt_reap(pid[i], 20000);
		vt_check(i < deaths || status == 0, "sender %d: status 0x%x", i, (unsigned)status);
		close(fd[i]);
	}
	/* Of the dead ones' receives none is lost: ERR, then every completion, then count what the queue takes. */
	for (int i = 0; i < SENDERS; i++) {
		struct ibv_qp_attr err = { .qp_state = IBV_QPS_ERR };
		vt_check(ibv_modify_qp(d.qp[i], &err, IBV_QP_STATE) == 0, "to ERR");
	}
	struct ibv_wc wc;
	while (vt_poll(d.cq, &wc, 1, 100) == 1)
		completed++;
	uint64_t room = 0;
	while (room <= RECVS && post_receive(0))
		room++;
	struct ibv_srq_attr a;
	vt_require(ibv_query_srq(d.srq, &a) == 0, "ibv_query_srq");
	vt_check(room + posted - completed == a.max_wr, "an SRQ of %u holds %" PRIu64 " and takes %" PRIu64 " more", a.max_wr,
		posted - completed, room);
	vt_check(vt_duo_close(&d), "closing");
}

static void one_queue(void) { serve(0); }
static void one_queue_with_deaths(void)
{
	for (int round = 0; round < 5; round++)
		serve(SENDERS / 2);
}

/* ---- datagrams of everybody to everybody ---- */
#define RANKS 24
#define ROUNDS 20

struct ud_addr {
	union ibv_gid gid;
	uint32_t qpn;
	uint16_t lid, pad;
};
static struct ud_addr all[RANKS];

static int datagram_peer(int fd)
{
	struct vt_dev dev;
	uint32_t me;
	static uint8_t buf[RANKS * ROUNDS * 64 + 4096], got[RANKS][ROUNDS];
	if (!vt_get(fd, &me, sizeof(me), 60000) || !vt_open(&dev))
		return 1;
	struct ibv_pd *pd = ibv_alloc_pd(dev.ctx);
	struct ibv_cq *scq = ibv_create_cq(dev.ctx, 256, NULL, NULL, 0), *rcq = ibv_create_cq(dev.ctx, RANKS * ROUNDS, NULL, NULL, 0);
	struct ibv_mr *mr = pd ? ibv_reg_mr(pd, buf, sizeof(buf), IBV_ACCESS_LOCAL_WRITE) : NULL;
	if (!scq || !rcq || !mr)
		return 1;
	struct ibv_qp_init_attr ia = { .send_cq = scq, .recv_cq = rcq, .cap = { 128, RANKS * ROUNDS, 1, 1, 64 }, .qp_type = IBV_QPT_UD };
	struct ibv_qp *qp = ibv_create_qp(pd, &ia);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = VT_QKEY };
	if (!qp || ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY))
		return 1;
	for (uint64_t i = 0; i < RANKS * ROUNDS; i++) {
		struct ibv_sge sge = { (uintptr_t)buf + i * 64, 64, mr->lkey };
		struct ibv_recv_wr r = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;
		if (ibv_post_recv(qp, &r, &bad))
			return 1;
	}
	a.qp_state = IBV_QPS_RTR;
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE))
		return 1;
	a.qp_state = IBV_QPS_RTS;
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN))
		return 1;
	struct ud_addr self = { .gid = dev.gid, .qpn = qp->qp_num, .lid = dev.port.lid };
	if (!vt_put(fd, &self, sizeof(self)) || !vt_get(fd, all, sizeof(all), 60000))
		return 1;
	struct ibv_ah *ah[RANKS];
	struct ibv_wc wc;
	uint8_t *text = buf + RANKS * ROUNDS * 64;
	for (int i = 0; i < RANKS; i++) {
		struct ibv_ah_attr av = { .port_num = 1, .dlid = all[i].lid };
		if (dev.global) {
			av.is_global = 1;
			av.grh.dgid = all[i].gid;
			av.grh.sgid_index = (uint8_t)dev.gid_index;
			av.grh.hop_limit = 8;
		}
		if (!(ah[i] = ibv_create_ah(pd, &av)))
			return 1;
	}
	for (uint32_t round = 0; round < ROUNDS; round++)
		for (uint32_t i = 0; i < RANKS; i++) {
			uint32_t words[2] = { me, round };
			memcpy(text, words, 8);
			struct ibv_sge sge = { (uintptr_t)text, 8, mr->lkey };
			struct ibv_send_wr w = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE }, *bad;
			w.wr.ud.ah = ah[(i + me) % RANKS];
			w.wr.ud.remote_qpn = all[(i + me) % RANKS].qpn;
			w.wr.ud.remote_qkey = VT_QKEY;
			if (ibv_post_send(qp, &w, &bad) || vt_poll(scq, &wc, 1, 20000) != 1 || wc.status != IBV_WC_SUCCESS) {
				printf("FAIL rank %u: a datagram was not sent\n", me);
				return 1;
			}
		}
	uint32_t next[RANKS] = { 0 };
	int n = 0;
	for (; n < RANKS * ROUNDS && vt_poll(rcq, &wc, 1, 10000) == 1; n++) {
		uint32_t words[2];
		memcpy(words, buf + wc.wr_id * 64 + VT_GRH, 8);
		bool known = wc.status == IBV_WC_SUCCESS && wc.byte_len == VT_GRH + 8 && words[0] < RANKS && words[1] < ROUNDS &&
			wc.src_qp == all[words[0]].qpn;
		if (!known || got[words[0]][words[1]]++ || words[1] != next[words[0]]) {
			printf("FAIL rank %u: datagram %d: %s, %u bytes, from rank %u round %u (due: %u)\n", me, n,
				vt_wc_name((int)wc.status), wc.byte_len, words[0], words[1],
			       known ? next[words[0]] : 0);
			return 1;
		}
		next[words[0]]++;
	}
	if (n != RANKS * ROUNDS)
		printf("FAIL rank %u: %d of %d datagrams\n", me, n, RANKS * ROUNDS);
	char c = 1;
	vt_put(fd, &c, 1);
	vt_get(fd, &c, 1, 60000);
	return n != RANKS * ROUNDS;
}

/* Receives wait for every message, so none may be dropped; order holds between two QPs. */
static void datagrams(void)
{
	int fd[RANKS];
	pid_t pid[RANKS];
	char c = 1;
	for (uint32_t i = 0; i < RANKS; i++) {
		pid[i] = vt_spawn("datagram", &fd[i]);
		vt_require(pid[i] > 0 && vt_put(fd[i], &i, sizeof(i)), "rank %u", i);
	}
	for (int i = 0; i < RANKS; i++)
		vt_require(vt_get(fd[i], &all[i], sizeof(all[i]), 30000), "rank %d did not come up", i);
	for (int i = 0; i < RANKS; i++)
		vt_put(fd[i], all, sizeof(all));
	for (int i = 0; i < RANKS; i++)
		vt_check(vt_get(fd[i], &c, 1, 60000), "rank %d is gone", i);
	for (int i = 0; i < RANKS; i++) {
		vt_put(fd[i], &c, 1);
		vt_check(vt_reap(pid[i], 20000) == 0, "rank %d failed", i);
		close(fd[i]);
	}
}

/* ---- objects come and go in some threads, others work ---- */
static unsigned stop, failures, churned, worked;

/* How often objects come and go, and are used meanwhile, at least. */
#define CHURNS 10000
#define WORKED 100

static void *churn(void *arg)
{
	struct vt_duo *w = arg;
	static __thread uint8_t mem[8192];
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		struct ibv_cq *cq = ibv_create_cq(w->dev.ctx, 16, NULL, NULL, 0);
		struct ibv_mr *mr = ibv_reg_mr(w->pd, mem, sizeof(mem), VT_ACCESS_ALL);
		struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = w->cq, .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
		struct ibv_qp *qp = cq ? ibv_create_qp(w->pd, &a) : NULL;
		struct vt_duo one = { .dev = w->dev, .pd = w->pd, .cq = cq, .mr = mr, .buf = mem, .qp = { qp }, .o = { .timeout = 14 } };
		struct ibv_wc wc;
		bool ok = cq && mr && qp;
		if (ok) {
			one.peer = (struct vt_duo_addr){ .gid = w->dev.gid, .lid = w->dev.port.lid, .rkey = mr->rkey,
				.addr = (uintptr_t)mem, .qpn = { qp->qp_num } };
			struct ibv_sge sge = { (uintptr_t)mem, 64, mr->lkey };
			ok = vt_duo_connect(&one, 0) && !vt_duo_post(&one, 0, IBV_WR_RDMA_WRITE, 1, IBV_SEND_SIGNALED, &sge, 1,
				(uintptr_t)mem + 4096) &&
			     vt_poll(cq, &wc, 1, 5000) == 1 && wc.status == IBV_WC_SUCCESS;
		}
		ok = ok && !ibv_destroy_qp(qp) && !ibv_dereg_mr(mr) && !ibv_destroy_cq(cq);
		if (!ok) {
			__atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED);
			return NULL;
		}
		__atomic_fetch_add(&churned, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static int lender_peer(int fd)
{
	char c;
	if (!vt_duo_open(&d, CLIENT) || !vt_duo_meet(&d, fd))
		return 1;
	pthread_t t;
	pthread_create(&t, NULL, churn, &d);
	/* Until the other end has done, whose run has a limit of its own. */
	vt_get(fd, &c, 1, 600000);
	stop = 1;
	pthread_join(t, NULL);
	return !vt_duo_close(&d) || failures;
}

static void churning(void)
{
	int fd;
	pthread_t t[3];
	stop = failures = churned = worked = 0;
	pid_t pid = vt_spawn("lender", &fd);
	vt_require(pid > 0 && vt_duo_open(&d, CLIENT) && vt_duo_meet(&d, fd), "setup");
	for (int i = 0; i < 3; i++)
		pthread_create(&t[i], NULL, churn, &d);
	unsigned wanted = getenv("VT_CHURNS") ? (unsigned)atoi(getenv("VT_CHURNS")) : CHURNS;
	for (; worked < WORKED || (__atomic_load_n(&churned, __ATOMIC_RELAXED) < wanted && !__atomic_load_n(&failures, __ATOMIC_RELAXED));
		worked++) {
		struct ibv_sge sge = vt_duo_sge(&d, 0, 1u << (3 + worked % 16));
		struct ibv_wc wc;
		vt_require(!vt_duo_post(&d, 0, worked % 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, 1, IBV_SEND_SIGNALED, &sge, 1,
			d.peer.addr), "posting");
		vt_require(vt_poll(d.cq, &wc, 1, 10000) == 1 && wc.status == IBV_WC_SUCCESS, "request %u while objects come and go: %s",
			worked, vt_wc_name((int)wc.status));
	}
	stop = 1;
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
	vt_check(failures == 0, "%u of the threads failed", failures);
	vt_note("%u requests while %u times a QP, a CQ and a region were made and destroyed", worked, churned);
	char c = 1;
	vt_put(fd, &c, 1);
	vt_check(vt_reap(pid, 10000) == 0, "the peer failed");
	vt_check(vt_duo_close(&d), "closing");
	close(fd);
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { { "one_queue", one_queue }, { "one_queue_with_deaths", one_queue_with_deaths },
						{ "datagrams", datagrams }, { "churning", churning } };
	static const struct vt_role roles[] = { { "sender", sender_peer }, { "datagram", datagram_peer }, { "lender", lender_peer } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
