/* Two processes that go on with every operation while somebody writes what he likes into all the memory between them. What they
 * say to each other may arrive wrong or not at all, and their QPs may fail; but every request ends, every call returns, nobody
 * crashes, and no byte changes that is not registered. They run for VT_ROUNDS tenths of a second. */
#define _GNU_SOURCE
#include "vt_duo.h"

#define QPS 4
#define SIZE (1u << 20)
#define MOST 40000 /* bytes of a request */
#define DEPTH 16
#define GUARD (1u << 20)
#define PATTERN 0x6b
#define RECEIVE (1ull << 63) /* in the wr_id of a receive; below, its QP */

static struct vt_duo d;
static uint32_t sends[QPS], receives[QPS];
static uint64_t done, failed;

static bool post_receives(int i)
{
	while (receives[i] < DEPTH) {
		struct ibv_sge sge = vt_duo_sge(&d, vt_random() % (SIZE - MOST), MOST);
		struct ibv_recv_wr r = { .wr_id = RECEIVE | (uint64_t)i, .sg_list = &sge, .num_sge = 1 }, *bad;
		if (ibv_post_recv(d.qp[i], &r, &bad))
			return false;
		receives[i]++;
	}
	return true;
}

static bool post_sends(int i)
{
	static const int ops[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND, IBV_WR_ATOMIC_FETCH_AND_ADD };
	while (sends[i] < DEPTH) {
		int op = ops[vt_random() % VT_ARRAY(ops)];
		uint32_t len = (uint32_t)(vt_random() % (vt_random() % 4 ? 200 : MOST));
		if (op == IBV_WR_ATOMIC_FETCH_AND_ADD)
			len = 8;
		struct ibv_sge sge = vt_duo_sge(&d, vt_random() % (SIZE - MOST), len);
		uint64_t to = d.peer.addr + vt_random() % (SIZE - MOST) / 8 * 8;
		if (vt_duo_post(&d, i, op, (uint64_t)i, IBV_SEND_SIGNALED, &sge, 1, to))
			return false;
		sends[i]++;
	}
	return true;
}

/* Takes completions; whether each was of a request that was there. */
static bool take(void)
{
	struct ibv_wc wc[16];
	int n = ibv_poll_cq(d.cq, 16, wc);
	for (int k = 0; k < n; k++) {
		uint64_t i = wc[k].wr_id & ~RECEIVE;
		uint32_t *left = i >= QPS ? NULL : wc[k].wr_id & RECEIVE ? &receives[i] : &sends[i];
		if (!left || !*left) {
			printf("FAIL: a completion of nothing, wr_id 0x%" PRIx64 "\n", wc[k].wr_id);
			return false;
		}
		--*left;
		done += wc[k].status == IBV_WC_SUCCESS;
		failed += wc[k].status != IBV_WC_SUCCESS;
	}
	return n >= 0;
}

static bool lives(int i)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr init;
	return ibv_query_qp(d.qp[i], &a, IBV_QP_STATE, &init) == 0 && a.qp_state == IBV_QPS_RTS;
}

static uint32_t left(void)
{
	uint32_t n = 0;
	for (int i = 0; i < QPS; i++)
		n += sends[i] + receives[i];
	return n;
}

static bool is_whole(const uint8_t *guard)
{
	for (size_t i = 0; i < GUARD; i++)
		if (guard[i] != PATTERN) {
			printf("FAIL: byte %zu of memory that is nobody's has changed\n", i);
			return false;
		}
	return true;
}

static bool talk(int fd)
{
	const char *rounds = getenv("VT_ROUNDS");
	uint64_t until = vt_now_us() + (uint64_t)(rounds ? atoi(rounds) : 20) * 100000;
	uint8_t *before = vt_memory(GUARD);
	memset(before, PATTERN, GUARD);
	if (!vt_duo_open(&d, &(struct vt_duo_opts){ .type = VT_RC, .nqp = QPS, .depth = DEPTH, .sge = 1, .timeout = 12, .retry = 3,
						    .size = SIZE }))
		return false;
	uint8_t *after = vt_memory(GUARD);
	memset(after, PATTERN, GUARD);
	if (!vt_duo_meet(&d, fd))
		return false;
	bool told = false;
	while (vt_now_us() < until) {
		for (int i = 0; i < QPS; i++)
			if (lives(i) && !(post_receives(i) && post_sends(i)) && lives(i)) {
				printf("FAIL: a request is refused\n");
				return false;
			}
		if (!take())
			return false;
		if (!told && done > 1000) {
			told = true;
			printf("they talk\n");
			fflush(stdout);
		}
	}
	/* The end of a QP is the end of its requests. */
	for (int i = 0; i < QPS; i++) {
		struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };
		if (ibv_modify_qp(d.qp[i], &a, IBV_QP_STATE))
			return false;
	}
	for (until = vt_now_us() + 20000000; left() && vt_now_us() < until;)
		if (!take())
			return false;
	if (left()) {
		printf("FAIL: %u requests have not ended\n", left());
		return false;
	}
	bool ok = is_whole(before) && is_whole(after) && vt_duo_close(&d);
	printf("%" PRIu64 " requests done, %" PRIu64 " failed\n", done, failed);
	vt_memory_free(before, GUARD);
	vt_memory_free(after, GUARD);
	return ok;
}

static int peer(int fd)
{
	return talk(fd) ? 0 : 1;
}

static void both(void)
{
	int fd;
	pid_t pid = vt_spawn("peer", &fd);
	vt_require(pid > 0 && talk(fd), "this side failed");
	vt_check(vt_reap(pid, 30000) == 0, "the peer failed");
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { { "both", both } };
	static const struct vt_role roles[] = { { "peer", peer } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
