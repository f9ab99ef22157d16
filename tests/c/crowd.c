/* Sixteen processes, all to all, each polling busily: far more than there are cores, so they get on only if those that
 * poll in vain let go of theirs. Every rank has an RC QP to every other, one CQ for everything and one SRQ. In step k it
 * writes k into its slot at a peer, adds k to a word of the peer that all share and to one of its own, and sends k. RC
 * keeps the order, so a rank that receives k from a peer has the rest of step k in its memory. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#define RANKS 16
#define STEPS 250
#define RECVS 128
#define OPTS &(struct vt_duo_opts){ .type = VT_RC_SRQ, .nqp = RANKS, .depth = RECVS / 2, .sge = 1, .size = 1 << 18, .timeout = 17 }
#define WINDOW 4 /* steps under way at a peer */
#define VICTIM 5
#define SLOTS 8192 /* 256 bytes for each rank: the payload of its last write */
#define SHARED 16384
#define COUNTS 20480 /* a word for each rank */
#define RECEIVED 32768
#define SOURCE 65536 /* 256 bytes for each peer and step under way */
#define OLD 131072

struct report {
	uint64_t received[RANKS], messages, failed, polls, switches;
};

static struct vt_duo d;
static struct vt_duo_addr all[RANKS];
static uint32_t me;
static bool killing;

static bool bad(const char *what, int rank, uint64_t k)
{
	printf("FAIL rank %u: %s, peer %d, %" PRIu64 "\n", me, what, rank, k);
	return false;
}

static uint64_t word_at(uint64_t off)
{
	return __atomic_load_n((uint64_t *)(void *)(d.buf + off), __ATOMIC_ACQUIRE);
}

static bool receive_into(uint64_t slot)
{
	struct ibv_sge sge = vt_duo_sge(&d, RECEIVED + slot * 64, 64);
	struct ibv_recv_wr r = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *wrong;
	return ibv_post_srq_recv(d.srq, &r, &wrong) == 0;
}

/* wr_id of a request: its step, with the peer above. */
static bool add(int to, uint64_t k, uint64_t off, unsigned flags)
{
	struct ibv_sge old = vt_duo_sge(&d, OLD + (uint64_t)to * 64, 8);
	struct ibv_send_wr w = { .wr_id = k | (uint64_t)to << 32, .sg_list = &old, .num_sge = 1,
				 .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .send_flags = flags }, *wrong;
	w.wr.atomic.remote_addr = all[to].addr + off;
	w.wr.atomic.rkey = all[to].rkey;
	w.wr.atomic.compare_add = k;
	return ibv_post_send(d.qp[to], &w, &wrong) == 0;
}

/* 8 to 256 bytes, all the step's number: the tail cannot be there without the rest. */
static uint32_t size_of_step(uint64_t k)
{
	return 8 + (uint32_t)(k * 8 % 249) / 8 * 8;
}

static bool step(int to, uint64_t k)
{
	uint64_t at = SOURCE + ((uint64_t)to * WINDOW + k % WINDOW) * 256, message[2] = { k, me };
	uint32_t n = size_of_step(k);
	for (uint32_t i = 0; i < n; i += 8)
		memcpy(d.buf + at + i, &k, 8);
	struct ibv_sge from = vt_duo_sge(&d, at, n), text = { (uintptr_t)message, sizeof(message), 0 };
	d.peer.rkey = all[to].rkey;
	return !vt_duo_post(&d, to, IBV_WR_RDMA_WRITE, k, 0, &from, 1, all[to].addr + SLOTS + me * 256) && add(to, k, SHARED, 0) &&
	       add(to, k, COUNTS + me * 8, 0) &&
	       !vt_duo_post(&d, to, IBV_WR_SEND_WITH_IMM, k | (uint64_t)to << 32, IBV_SEND_SIGNALED | IBV_SEND_INLINE, &text, 1, 0);
}

static int rank_of(uint32_t qpn)
{
	for (int i = 0; i < RANKS; i++)
		if (d.self.qpn[i] == qpn)
			return i;
	return -1;
}

/* A message of a peer: in order, and the rest of its step is here. */
static bool take(const struct ibv_wc *wc, int from, uint64_t *received)
{
	uint64_t message[2], k = received[from] + 1;
	memcpy(message, d.buf + RECEIVED + wc->wr_id * 64, sizeof(message));
	if (message[0] != k || message[1] != (uint64_t)from || be32toh(wc->imm_data) != (uint32_t)k || wc->byte_len != sizeof(message))
		return bad("a message out of order", from, message[0]);
	for (uint32_t i = size_of_step(k); i; i -= 8)
		if (word_at(SLOTS + (uint64_t)from * 256 + i - 8) < k)
			return bad("a message came before the write in front of it", from, k);
	if (word_at(COUNTS + (uint64_t)from * 8) < k * (k + 1) / 2)
		return bad("a message came before the atomic in front of it", from, k);
	received[from] = k;
	return receive_into(wc->wr_id) || bad("posting a receive", from, k);
}

static bool work(int fd, struct report *r)
{
	uint64_t sent[RANKS] = { 0 }, done[RANKS] = { 0 }, progress = vt_now_us();
	bool gone[RANKS] = { false }, told = false;
	/* The victim does not end before it is killed, however fast it is. */
	for (int open = 2 * (RANKS - 1); open > 0 || (killing && me == VICTIM);) {
		struct ibv_wc wc[16];
		/* To the victim without end: only who has something under way hears of the death. */
		for (int i = 1; i < RANKS; i++) {
			int to = (int)(me + (uint32_t)i) % RANKS;
			if (!gone[to] && (sent[to] < STEPS || (killing && to == VICTIM)) && sent[to] - done[to] < WINDOW && !step(to, ++sent[to]))
				return bad("posting", to, sent[to]);
		}
		/* Nothing but polling: the library itself has to let others run. */
		int n = ibv_poll_cq(d.cq, 16, wc);
		r->polls++;
		if (n < 0)
			return bad("ibv_poll_cq", -1, 0);
		if (n)
			progress = vt_now_us();
		else if (r->polls % 4096 == 0 && vt_now_us() - progress > 60000000)
			return bad("nothing comes any more; open", open, r->messages);
		for (int i = 0; i < n; i++) {
			int peer = rank_of(wc[i].qp_num);
			bool receive = wc[i].wr_id < RECVS && wc[i].wr_id >> 32 == 0 && (wc[i].opcode & IBV_WC_RECV);
			if (peer < 0)
				return bad("a completion of an unknown QP", -1, wc[i].qp_num);
			if (wc[i].status != IBV_WC_SUCCESS) {
				if (!killing || peer != VICTIM)
					return bad(vt_wc_name((int)wc[i].status), peer, wc[i].wr_id);
				if (!r->failed++ && wc[i].status != IBV_WC_RETRY_EXC_ERR && wc[i].status != IBV_WC_WR_FLUSH_ERR)
					return bad(vt_wc_name((int)wc[i].status), peer, wc[i].wr_id);
				/* Both directions end here; the dead one sends no more. */
				open -= gone[peer] ? 0 : 2;
				gone[peer] = true;
			} else if (receive) {
				if (!take(&wc[i], peer, r->received))
					return false;
				r->messages++;
				open -= r->received[peer] == STEPS && !(killing && peer == VICTIM);
			} else {
				uint64_t k = wc[i].wr_id & UINT32_MAX;
				if (k != ++done[peer])
					return bad("a send completed out of order", peer, k);
				open -= k == STEPS && !(killing && peer == VICTIM);
			}
			if (killing && !told && r->messages > STEPS * (RANKS - 1) / 4)
				told = vt_put(fd, "x", 1);
		}
	}
	/* What the dead one had sent may be polled after the error. */
	struct ibv_wc wc;
	while (killing && vt_poll(d.cq, &wc, 1, 200) == 1) {
		int peer = rank_of(wc.qp_num);
		if (peer != VICTIM)
			return bad("a completion after the end", peer, wc.wr_id);
		if (wc.status == IBV_WC_SUCCESS && wc.opcode & IBV_WC_RECV) {
			if (!take(&wc, peer, r->received))
				return false;
			r->messages++;
		}
	}
	return true;
}

/* What the peers added: each its steps, the dead one as many as it came to. */
static bool sums(const struct report *r)
{
	uint64_t shared = 0, whole = (uint64_t)STEPS * (STEPS + 1) / 2;
	for (int i = 0; i < RANKS; i++) {
		uint64_t count = word_at(COUNTS + (uint64_t)i * 8), k = r->received[i];
		if (i == (int)me)
			continue;
		bool partial = killing && i == VICTIM;
		/* The dead one may have been between the atomics and the send of its next step. */
		if (count != whole && !(partial && (count == k * (k + 1) / 2 || count == (k + 1) * (k + 2) / 2)))
			return bad("the words added one by one", i, count);
		shared += count;
		for (uint32_t at = 0; !partial && at < size_of_step(STEPS); at += 8)
			if (word_at(SLOTS + (uint64_t)i * 256 + at) != STEPS)
				return bad("the last write", i, word_at(SLOTS + (uint64_t)i * 256 + at));
	}
	uint64_t got = word_at(SHARED);
	uint64_t k = r->received[VICTIM];
	/* The shared word is added to before the victim's own. */
	if (got == shared || (killing && (got == shared + k + 1 || got == shared + k + 2)))
		return true;
	return bad("the sum in the shared word", -1, got - shared);
}

static int rank(int fd)
{
	struct report r = { 0 };
	struct rusage u;
	uint32_t hello[2];
	char go;
	if (!vt_get(fd, hello, sizeof(hello), 60000))
		return 1;
	me = hello[0];
	killing = hello[1];
	if (!vt_duo_open(&d, OPTS))
		return 2;
	for (uint64_t i = 0; i < RECVS; i++)
		if (!receive_into(i))
			return 2;
	if (!vt_put(fd, &d.self, sizeof(d.self)) || !vt_get(fd, all, sizeof(all), 60000))
		return 3;
	for (int i = 0; i < RANKS; i++) {
		d.peer = all[i];
		d.peer.qpn[i] = all[i].qpn[me];
		if (i != (int)me && !vt_duo_connect(&d, i))
			return 4;
	}
	if (!vt_put(fd, "r", 1) || !vt_get(fd, &go, 1, 60000))
		return 5;
	if (!work(fd, &r))
		return 6;
	getrusage(RUSAGE_SELF, &u);
	r.switches = (uint64_t)u.ru_nivcsw;
	if (!vt_put(fd, "d", 1) || !vt_get(fd, &go, 1, 120000) || !sums(&r) || !vt_put(fd, &r, sizeof(r)))
		return 7;
	return vt_duo_close(&d) ? 0 : 8;
}

static void crowd(bool kill_one)
{
	int fd[RANKS];
	pid_t pid[RANKS];
	char c;
	struct report r, sum = { 0 };
	for (uint32_t i = 0; i < RANKS; i++) {
		uint32_t hello[2] = { i, kill_one };
		pid[i] = vt_spawn("rank", &fd[i]);
		vt_require(pid[i] > 0 && vt_put(fd[i], hello, sizeof(hello)), "starting rank %u", i);
	}
	for (int i = 0; i < RANKS; i++)
		vt_require(vt_get(fd[i], &all[i], sizeof(all[i]), 60000), "rank %d did not open the device", i);
	for (int i = 0; i < RANKS; i++)
		vt_require(vt_put(fd[i], all, sizeof(all)), "rank %d is gone", i);
	for (int i = 0; i < RANKS; i++)
		vt_require(vt_get(fd[i], &c, 1, 60000), "rank %d did not connect", i);
	uint64_t begin = vt_now_us();
	for (int i = 0; i < RANKS; i++)
		vt_require(vt_put(fd[i], "g", 1), "rank %d is gone", i);
	if (kill_one) {
		/* It has told that it is in the middle. */
		vt_require(vt_get(fd[VICTIM], &c, 1, 60000) && c == 'x', "the victim was never in the middle");
		vt_sleep_ms((unsigned)(vt_random() % 3));
		kill(pid[VICTIM], SIGKILL);
		vt_reap(pid[VICTIM], 5000);
	}
	for (int i = 0; i < RANKS; i++) {
		if (kill_one && i == VICTIM)
			continue;
		do
			vt_require(vt_get(fd[i], &c, 1, 110000), "rank %d does not end", i);
		while (c == 'x');
	}
	uint64_t took = vt_now_us() - begin;
	for (int i = 0; i < RANKS; i++)
		if (!kill_one || i != VICTIM)
			vt_put(fd[i], "e", 1);
	for (int i = 0; i < RANKS; i++) {
		if (kill_one && i == VICTIM) {
			close(fd[i]);
			continue;
		}
		bool told = vt_get(fd[i], &r, sizeof(r), 60000);
		int status = vt_reap(pid[i], 20000);
		vt_check(told && status == 0, "rank %d failed: status 0x%x", i, (unsigned)status);
		close(fd[i]);
		if (!told)
			continue;
		vt_check(!kill_one || r.failed, "rank %d has no completion that tells of the death", i);
		vt_check(!kill_one ? r.messages == (uint64_t)STEPS * (RANKS - 1)
				   : r.messages == (uint64_t)STEPS * (RANKS - 2) + r.received[VICTIM],
			"rank %d has %" PRIu64 " messages", i, r.messages);
		sum.messages += r.messages;
		sum.polls += r.polls;
		sum.failed += r.failed;
		sum.switches += r.switches;
	}
	vt_note("%" PRIu64 " steps of four requests in %.2f s, %.0f polls and %.2f lost time slices a step, %" PRIu64 " errors", sum.messages,
		(double)took / 1e6, (double)sum.polls / (double)sum.messages, (double)sum.switches / (double)sum.messages, sum.failed);
}

static void all_to_all(void) { crowd(false); }
static void one_is_killed(void) { crowd(true); }

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { { "all_to_all", all_to_all }, { "one_is_killed", one_is_killed } };
	static const struct vt_role roles[] = { { "rank", rank } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
