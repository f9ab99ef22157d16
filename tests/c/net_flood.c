/* Two processes on each side of a network, 64 QPs between the sides, as much data both ways as $VT_FLOOD_MB says (1024): RDMA
 * Writes, Reads, Sends and atomics at once, every byte checked. Run with packets lost, it shows that each arrives exactly
 * once. The other side is in the network namespace of $VT_PEER_NETNS, else on this host. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include <poll.h>
#include <sched.h>
#include <unistd.h>

#define SIDES 2      /* processes on each side */
#define QPS 16       /* between two of them: 2 * 2 * 16 = 64 */
#define CHUNK 65536u /* longest message */
#define WRITES 3     /* in each round of a QP; with a Send and a Read it moves 5 chunks each way */
#define RECVS 4
#define PIECES (WRITES + 2)
#define MOVED (PIECES * (uint64_t)(CHUNK - 256)) /* at least, in a round of a QP */

/* A QP's part of the buffer. What the peer reads stays as it is; the rest is filled anew in each round. */
enum { OUT = 0, SENT = OUT + WRITES, READABLE, IN, READ_INTO = IN + WRITES, RECEIVED, CHUNKS = RECEIVED + RECVS };
#define COUNTERS ((uint64_t)QPS * CHUNKS * CHUNK) /* one for each QP, which the peer counts up */
#define OLD (COUNTERS + QPS * 8)                  /* what it was before */
#define SIZE (OLD + QPS * 8)

#define VERIFIED 0x80000000u /* immediate data of the message that answers a round */

struct channel {
	uint32_t round, theirs; /* rounds begun here; rounds of the peer that are verified */
	unsigned out;           /* requests not completed */
	bool answered;          /* the peer has verified our round */
	uint64_t received;
};

struct link {
	struct vt_duo d;
	struct channel qp[QPS];
	uint64_t seed_out, seed_in; /* of what goes to this peer and what comes from it */
	uint32_t rounds;
};

static struct link links[SIDES];

static uint64_t at(int qp, int chunk) { return ((uint64_t)qp * CHUNKS + (unsigned)chunk) * CHUNK; }
static uint64_t content(uint64_t seed, int qp, uint32_t round, int piece)
{
	return seed ^ ((uint64_t)qp << 48 | (uint64_t)round << 16 | (unsigned)piece);
}
static uint32_t length(int qp, uint32_t round, int piece) { return CHUNK - (uint32_t)(qp * 7 + (int)round * 13 + piece * 5) % 256; }

static bool post_receive(struct link *l, int qp, int which)
{
	struct ibv_sge sge = vt_duo_sge(&l->d, at(qp, RECEIVED + which), CHUNK);
	struct ibv_recv_wr r = { .wr_id = (uint64_t)which, .sg_list = &sge, .num_sge = 1 }, *bad;
	return ibv_post_recv(l->d.qp[qp], &r, &bad) == 0;
}

static bool post(struct link *l, int qp, int opcode, uint32_t id, uint64_t from, uint32_t len, uint64_t to)
{
	struct ibv_sge sge = vt_duo_sge(&l->d, from, len);
	l->qp[qp].out++;
	return vt_duo_post(&l->d, qp, opcode, id, IBV_SEND_SIGNALED, &sge, len != 0, l->d.peer.addr + to) == 0;
}

/* One of each operation; the Send is the last, and so tells that the others have arrived. */
static bool begin_round(struct link *l, int qp)
{
	struct channel *c = &l->qp[qp];
	uint32_t round = c->round++;
	c->answered = false;
	bool ok = post(l, qp, IBV_WR_ATOMIC_FETCH_AND_ADD, round, OLD + (uint64_t)qp * 8, 8, COUNTERS + (uint64_t)qp * 8) &&
		  post(l, qp, IBV_WR_RDMA_READ, round, at(qp, READ_INTO), length(qp, 0, WRITES + 1), at(qp, READABLE));
	for (int i = 0; i <= WRITES && ok; i++) {
		uint64_t from = at(qp, i == WRITES ? SENT : OUT + i);
		uint32_t len = length(qp, round, i);
		vt_fill(l->d.buf + from, len, content(l->seed_out, qp, round, i));
		ok = i == WRITES ? post(l, qp, IBV_WR_SEND_WITH_IMM, round, from, len, 0)
				 : post(l, qp, IBV_WR_RDMA_WRITE, round, from, len, at(qp, IN + i));
	}
	return ok;
}

static bool same(struct link *l, int qp, uint32_t round, const char *what, uint64_t off, uint32_t len, uint64_t seed)
{
	size_t right = vt_verify(l->d.buf + off, len, seed);
	vt_check(right == len, "QP %d, round %u: byte %zu of %u of the %s is wrong", qp, round, right, len, what);
	return right == len;
}

/* The peer's round has arrived: everything of it is there, once. */
static bool verify_round(struct link *l, int qp, const struct ibv_wc *wc)
{
	struct channel *c = &l->qp[qp];
	uint32_t round = be32toh(wc->imm_data), len = length(qp, round, WRITES);
	vt_check(round == c->theirs && wc->byte_len == len, "QP %d: round %u of %u bytes, expected %u of %u", qp, round,
		 wc->byte_len, c->theirs, len);
	bool ok = round == c->theirs && wc->byte_len == len &&
		  same(l, qp, round, "Send", at(qp, RECEIVED + (int)wc->wr_id), len, content(l->seed_in, qp, round, WRITES));
	for (int i = 0; i < WRITES; i++)
		ok = ok && same(l, qp, round, "Write", at(qp, IN + i), length(qp, round, i), content(l->seed_in, qp, round, i));
	uint64_t counted;
	memcpy(&counted, l->d.buf + COUNTERS + (uint64_t)qp * 8, 8);
	vt_check(counted == round + 1, "QP %d: the peer has counted to %" PRIu64 " in round %u", qp, counted, round);
	c->theirs++;
	for (int i = 0; i <= WRITES; i++)
		c->received += length(qp, round, i);
	return ok && counted == round + 1 && post_receive(l, qp, (int)wc->wr_id) &&
	       post(l, qp, IBV_WR_SEND_WITH_IMM, VERIFIED | round, 0, 0, 0);
}

static bool completed(struct link *l, const struct ibv_wc *wc)
{
	int qp = 0;
	while (qp < QPS && l->d.qp[qp]->qp_num != wc->qp_num)
		qp++;
	if (wc->status != IBV_WC_SUCCESS || qp == QPS) {
		vt_check(false, "QP %d: %s", qp, vt_wc_name((int)wc->status));
		return false;
	}
	struct channel *c = &l->qp[qp];
	if (wc->opcode & IBV_WC_RECV) {
		if (!(be32toh(wc->imm_data) & VERIFIED))
			return verify_round(l, qp, wc);
		c->answered = true;
		return post_receive(l, qp, (int)wc->wr_id);
	}
	c->out--;
	if (wc->opcode == IBV_WC_RDMA_READ) {
		uint32_t len = length(qp, 0, WRITES + 1);
		c->received += len;
		bool ok = same(l, qp, c->round - 1, "Read", at(qp, READ_INTO), len, content(l->seed_in, qp, 0, WRITES + 1));
		memset(l->d.buf + at(qp, READ_INTO), 0, len);
		return ok;
	}
	return true;
}

/* One look; -1 something is wrong, 0 nothing new. */
static int advance(struct link *l)
{
	struct ibv_wc wc[16];
	int n = ibv_poll_cq(l->d.cq, 16, wc);
	for (int i = 0; i < n; i++)
		if (!completed(l, &wc[i]))
			return -1;
	for (int qp = 0; qp < QPS && n > 0; qp++) {
		struct channel *c = &l->qp[qp];
		if (c->out == 0 && c->answered && c->round < l->rounds && !begin_round(l, qp))
			return -1;
	}
	return n;
}

static bool ended(const struct link *l)
{
	for (int qp = 0; qp < QPS; qp++)
		if (l->qp[qp].round < l->rounds || l->qp[qp].theirs < l->rounds || l->qp[qp].out || !l->qp[qp].answered)
			return false;
	return true;
}

struct job {
	uint32_t side, rank, rounds; /* side 0 or 1 of the network */
};

static uint64_t seed_of(uint32_t side, uint32_t from, uint32_t to) { return (uint64_t)(side + 1) << 60 | from << 4 | to; }

static bool open_links(int fd, const struct job *job)
{
	for (uint32_t i = 0; i < SIDES; i++) {
		struct link *l = &links[i];
		struct vt_duo_opts o = { .type = VT_RC, .nqp = QPS, .depth = 16, .sge = 1, .size = SIZE };
		if (!vt_duo_open(&l->d, &o) || !vt_put(fd, &l->d.self, sizeof(l->d.self)))
			return false;
		l->rounds = job->rounds;
		l->seed_out = seed_of(job->side, job->rank, i);
		l->seed_in = seed_of(!job->side, i, job->rank);
		for (int qp = 0; qp < QPS; qp++)
			vt_fill(l->d.buf + at(qp, READABLE), CHUNK, content(l->seed_out, qp, 0, WRITES + 1));
	}
	for (int i = 0; i < SIDES; i++) {
		struct link *l = &links[i];
		if (!vt_get(fd, &l->d.peer, sizeof(l->d.peer), 20000))
			return false;
		for (int qp = 0; qp < QPS; qp++) {
			if (!vt_duo_connect(&l->d, qp))
				return false;
			for (int k = 0; k < RECVS; k++)
				if (!post_receive(l, qp, k))
					return false;
		}
	}
	char go = 1;
	return vt_put(fd, &go, 1) && vt_get(fd, &go, 1, 20000);
}

static bool flow(void)
{
	uint64_t progress = vt_now_us();
	for (int i = 0; i < SIDES; i++)
		for (int qp = 0; qp < QPS; qp++)
			if (!begin_round(&links[i], qp))
				return false;
	while (!ended(&links[0]) || !ended(&links[1])) {
		int news = 0;
		for (int i = 0; i < SIDES; i++) {
			int n = advance(&links[i]);
			if (n < 0)
				return false;
			news += n;
		}
		uint64_t idle = news ? 0 : vt_now_us() - progress;
		if (news)
			progress = vt_now_us();
		else if (idle > 500)
			usleep(50);
		else
			sched_yield();
		if (idle > 60000000) {
			vt_check(false, "nothing moves for a minute");
			return false;
		}
	}
	return true;
}

static int member(int fd)
{
	struct job job;
	char go;
	if (!vt_get(fd, &job, sizeof(job), 20000) || !open_links(fd, &job) || !flow())
		return 1;
	uint64_t received = 0;
	for (int i = 0; i < SIDES; i++)
		for (int qp = 0; qp < QPS; qp++)
			received += links[i].qp[qp].received;
	/* Until everybody has what it needs, the answers to the last requests included. */
	if (!vt_put(fd, &received, sizeof(received)) || !vt_get(fd, &go, 1, 600000))
		return 1;
	return vt_duo_close(&links[0].d) && vt_duo_close(&links[1].d) ? 0 : 1;
}

/* Starts one process of a side; those of side 1 go to the peer's network. */
static pid_t start(uint32_t side, uint32_t rank, uint32_t rounds, int *fd)
{
	struct job job = { side, rank, rounds };
	char path[512];
	const char *peer = getenv("VT_PEER_NETNS");
	if (peer && side == 0) {
		snprintf(path, sizeof(path), "%s", peer);
		unsetenv("VT_PEER_NETNS");
	}
	pid_t pid = vt_spawn("member", fd);
	if (peer && side == 0)
		setenv("VT_PEER_NETNS", path, 1);
	return pid > 0 && vt_put(*fd, &job, sizeof(job)) ? pid : -1;
}

static void flood(void)
{
	const char *mb = getenv("VT_FLOOD_MB");
	uint64_t wanted = (mb ? strtoull(mb, NULL, 0) : 1024) << 20;
	uint32_t rounds = (uint32_t)((wanted + SIDES * SIDES * QPS * MOVED - 1) / (SIDES * SIDES * QPS * MOVED));
	int fd[2][SIDES];
	pid_t pid[2][SIDES];
	struct vt_duo_addr addr[2][SIDES][SIDES];
	uint64_t received[2] = { 0 }, began = vt_now_us(), n;
	for (uint32_t s = 0; s < 2; s++)
		for (uint32_t r = 0; r < SIDES; r++) {
			pid[s][r] = start(s, r, rounds, &fd[s][r]);
			vt_require(pid[s][r] > 0, "starting a process");
		}
	for (int s = 0; s < 2; s++)
		for (int r = 0; r < SIDES; r++)
			vt_require(vt_get(fd[s][r], addr[s][r], sizeof(addr[s][r]), 20000), "the addresses of side %d, rank %d", s, r);
	for (int s = 0; s < 2; s++)
		for (int r = 0; r < SIDES; r++)
			for (int i = 0; i < SIDES; i++)
				vt_require(vt_put(fd[s][r], &addr[!s][i][r], sizeof(addr[!s][i][r])), "telling addresses");
	char go = 1;
	for (int s = 0; s < 2; s++)
		for (int r = 0; r < SIDES; r++)
			vt_require(vt_get(fd[s][r], &go, 1, 20000), "side %d, rank %d does not connect", s, r);
	for (int s = 0; s < 2; s++)
		for (int r = 0; r < SIDES; r++)
			vt_put(fd[s][r], &go, 1);
	for (int s = 0; s < 2; s++)
		for (int r = 0; r < SIDES; r++) {
			vt_require(vt_get(fd[s][r], &n, sizeof(n), 600000), "side %d, rank %d has not ended well", s, r);
			received[s] += n;
		}
	double seconds = (double)(vt_now_us() - began) / 1e6;
	for (int s = 0; s < 2; s++) {
		vt_check(received[s] >= wanted, "side %d has received %" PRIu64 " bytes of %" PRIu64, s, received[s], wanted);
		for (int r = 0; r < SIDES; r++)
			vt_put(fd[s][r], &go, 1);
	}
	for (int s = 0; s < 2; s++)
		for (int r = 0; r < SIDES; r++)
			vt_check(vt_reap(pid[s][r], 20000) == 0, "side %d, rank %d", s, r);
	vt_note("%.0f and %.0f MiB in %.2f s", (double)received[0] / 1048576, (double)received[1] / 1048576, seconds);
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { { "flood", flood } };
	static const struct vt_role roles[] = { { "member", member } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
