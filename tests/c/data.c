/* Data between two processes: every operation with random sizes, offsets and scatter lists, checked byte for byte; a
 * reader that polls the last byte; order of small writes. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#define AREA (16u << 20) /* first half of a buffer: targets of the peer; second half: own sources and receives */
#define MAX_LEN (8u << 20)

struct order {
	uint32_t what; /* an opcode, or one of the following */
	uint32_t nsge;
	uint64_t off, len, seed;
	uint32_t sge_len[4];
};
enum { CHECK = 1000, PREPARE, FINISH };

/* Cuts len into up to four pieces. */
static uint32_t split(uint64_t len, uint32_t *pieces)
{
	uint32_t n = 1 + (uint32_t)(vt_random() % 4);
	uint64_t left = len;
	for (uint32_t i = 0; i + 1 < n; i++) {
		pieces[i] = (uint32_t)(left ? vt_random() % (left + 1) : 0);
		left -= pieces[i];
	}
	pieces[n - 1] = (uint32_t)left;
	return n;
}

static uint64_t random_len(void)
{
	switch (vt_random() % 8) {
	case 0:
		return vt_random() % 9;
	case 1:
		return vt_random() % 70;
	case 2:
		return 4096 * (1 + vt_random() % 4) + vt_random() % 3 - 1;
	case 3:
		return vt_random() % (MAX_LEN + 1);
	case 4:
		return 65536 + vt_random() % 131072;
	default:
		return vt_random() % 20000;
	}
}

static int random_peer(int fd)
{
	struct vt_duo d;
	struct order o;
	struct ibv_wc wc;
	char ok = 1;
	if (!vt_duo_open(&d, &(struct vt_duo_opts){ .type = VT_RC, .nqp = 1, .size = 2 * AREA }) || !vt_duo_meet(&d, fd))
		return 1;
	while (vt_get(fd, &o, sizeof(o), 60000) && o.what != FINISH) {
		switch (o.what) {
		case PREPARE:
			vt_fill(d.buf + o.off, o.len, o.seed);
			break;
		case CHECK:
			ok = vt_verify(d.buf + o.off, o.len, o.seed) == o.len;
			break;
		case IBV_WR_SEND:
		case IBV_WR_SEND_WITH_IMM:
		case IBV_WR_RDMA_WRITE_WITH_IMM: {
			struct ibv_sge sge[4];
			uint64_t at = AREA + o.off;
			for (uint32_t i = 0; i < o.nsge; i++) {
				sge[i] = vt_duo_sge(&d, at, o.sge_len[i]);
				at += o.sge_len[i];
			}
			struct ibv_recv_wr r = { .wr_id = o.seed, .sg_list = sge, .num_sge = (int)o.nsge }, *bad;
			ok = ibv_post_recv(d.qp[0], &r, &bad) == 0;
			vt_put(fd, &ok, 1);
			bool write = o.what == IBV_WR_RDMA_WRITE_WITH_IMM;
			int n = vt_poll(d.cq, &wc, 1, 30000);
			ok = n == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == o.seed && wc.byte_len == o.len &&
			     vt_verify(d.buf + (write ? o.off : AREA + o.off), o.len, o.seed) == o.len;
			if (!ok)
				printf("peer: %d completions, %s, %u of %" PRIu64 " bytes\n", n, vt_wc_name(n == 1 ? (int)wc.status : -1),
				       n == 1 ? wc.byte_len : 0, o.len);
			break;
		}
		}
		vt_put(fd, &ok, 1);
	}
	return vt_duo_close(&d) ? 0 : 1;
}

static bool ask(int fd, uint32_t what, uint64_t off, uint64_t len, uint64_t seed)
{
	struct order o = { .what = what, .off = off, .len = len, .seed = seed };
	char ok = 0;
	return vt_put(fd, &o, sizeof(o)) && vt_get(fd, &ok, 1, 60000) && ok;
}

static void random_ops(void)
{
	static const int ops[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM };
	static const char *const names[] = { "write", "write_imm", "read", "send", "send_imm" };
	const char *rounds = getenv("VT_ROUNDS");
	int fd, count = rounds ? atoi(rounds) : 800;
	uint64_t moved = 0;
	pid_t pid = vt_spawn("random", &fd);
	struct vt_duo d;
	vt_require(pid > 0 && vt_duo_open(&d, &(struct vt_duo_opts){ .type = VT_RC, .nqp = 1, .size = 2 * AREA }) && vt_duo_meet(&d,
		fd), "setup");
	for (int i = 0; i < count; i++) {
		size_t k = vt_random() % VT_ARRAY(ops);
		struct order o = { .what = (uint32_t)ops[k], .len = random_len(), .seed = vt_random() };
		o.off = vt_random() % (AREA - o.len);
		uint64_t src = AREA + vt_random() % (AREA - o.len), at = src;
		struct ibv_sge sge[4];
		uint32_t pieces[4], n = split(o.len, pieces);
		for (uint32_t j = 0; j < n; j++) {
			sge[j] = vt_duo_sge(&d, at, pieces[j]);
			at += pieces[j];
		}
		bool read = ops[k] == IBV_WR_RDMA_READ, quiet = ops[k] == IBV_WR_RDMA_WRITE;
		char ok = 0;
		if (read)
			vt_require(ask(fd, PREPARE, o.off, o.len, o.seed), "the peer is gone");
		else
			vt_fill(d.buf + src, o.len, o.seed);
		if (!read && !quiet) {
			o.nsge = split(o.len, o.sge_len);
			vt_require(vt_put(fd, &o, sizeof(o)) && vt_get(fd, &ok, 1, 30000) && ok, "%s: the receive was not posted", names[k]);
		}
		int rc = vt_duo_post(&d, 0, ops[k], (uint64_t)i, IBV_SEND_SIGNALED, sge, (int)n, d.peer.addr + o.off);
		struct ibv_wc wc;
		vt_require(rc == 0 && vt_poll(d.cq, &wc, 1, 30000) == 1, "%d: %s of %" PRIu64 " bytes: no completion, post gave %s", i,
			names[k], o.len,
			   vt_errno_name(rc));
		vt_require(wc.status == IBV_WC_SUCCESS, "%d: %s of %" PRIu64 " bytes: %s", i, names[k], o.len, vt_wc_name((int)wc.status));
		if (read)
			ok = vt_verify(d.buf + src, o.len, o.seed) == o.len;
		else if (quiet)
			ok = ask(fd, CHECK, o.off, o.len, o.seed);
		else
			ok = vt_get(fd, &ok, 1, 60000) && ok;
		vt_require(ok, "%d: %s of %" PRIu64 " bytes in %u pieces at %" PRIu64 ": wrong data", i, names[k], o.len, n, o.off);
		moved += o.len;
	}
	printf("note %d requests moved %" PRIu64 " bytes\n", count, moved);
	struct order end = { .what = FINISH };
	vt_put(fd, &end, sizeof(end));
	vt_check(vt_duo_close(&d), "closing");
	vt_check(vt_reap(pid, 10000) == 0, "the peer failed");
	close(fd);
}

/* ---- a reader that polls the last word: when it is new, all before it is new (man ibv_query_qp_data_in_order) ---- */
static const uint32_t tails[] = { 16, 64, 256, 1000, 4096, 4104, 20000, 65536, 65544, 300000, 1 << 20 };
#define ROUNDS 200

static volatile uint64_t *word_at(struct vt_duo *d, uint64_t off)
{
	return (volatile uint64_t *)(d->buf + off);
}

static bool wait_word(volatile uint64_t *w, uint64_t value)
{
	uint64_t start = 0;
	for (unsigned n = 0; __atomic_load_n(w, __ATOMIC_ACQUIRE) != value; n++)
		if (n % 4096 == 4095) {
			sched_yield();
			uint64_t now = vt_now_us();
			start = start ? start : now;
			if (now - start > 20000000)
				return false;
		}
	return true;
}

static int tail_peer(int fd)
{
	struct vt_duo d;
	struct ibv_wc wc;
	if (!vt_duo_open(&d, &(struct vt_duo_opts){ .type = VT_RC, .nqp = 1, .size = 2 << 20 }) || !vt_duo_meet(&d, fd))
		return 1;
	uint64_t stamp = 0;
	for (size_t s = 0; s < VT_ARRAY(tails); s++)
		for (int r = 0; r < ROUNDS; r++) {
			stamp++;
			if (!wait_word(word_at(&d, tails[s] - 8), stamp)) {
				printf("peer: the write of %u bytes never ended\n", tails[s]);
				return 1;
			}
			for (uint32_t i = 0; i + 8 <= tails[s]; i += 8)
				if (*word_at(&d, i) != stamp) {
					printf("FAIL peer: byte %u of %u is of round %" PRIu64 " when the last word is of %" PRIu64 "\n", i, tails[s],
					       *word_at(&d, i), stamp);
					return 1;
				}
			*word_at(&d, 1 << 20) = stamp;
			struct ibv_sge sge = vt_duo_sge(&d, 1 << 20, 8);
			if (vt_duo_post(&d, 0, IBV_WR_RDMA_WRITE, stamp, IBV_SEND_SIGNALED, &sge, 1, d.peer.addr + (1 << 20) + 8) ||
			    vt_poll(d.cq, &wc, 1, 20000) != 1 || wc.status != IBV_WC_SUCCESS)
				return 1;
		}
	char done;
	vt_get(fd, &done, 1, 20000);
	return vt_duo_close(&d) ? 0 : 1;
}

static void last_byte(void)
{
	int fd;
	pid_t pid = vt_spawn("tail", &fd);
	struct vt_duo d;
	struct ibv_wc wc;
	vt_require(pid > 0 && vt_duo_open(&d, &(struct vt_duo_opts){ .type = VT_RC, .nqp = 1, .size = 2 << 20 }) && vt_duo_meet(&d,
		fd), "setup");
	uint64_t stamp = 0;
	for (size_t s = 0; s < VT_ARRAY(tails); s++)
		for (int r = 0; r < ROUNDS; r++) {
			stamp++;
			for (uint32_t i = 0; i + 8 <= tails[s]; i += 8)
				*word_at(&d, i) = stamp;
			struct ibv_sge sge = vt_duo_sge(&d, 0, tails[s]);
			vt_require(vt_duo_post(&d, 0, IBV_WR_RDMA_WRITE, stamp, IBV_SEND_SIGNALED, &sge, 1, d.peer.addr) == 0, "posting");
			vt_require(vt_poll(d.cq, &wc, 1, 20000) == 1 && wc.status == IBV_WC_SUCCESS, "a write of %u bytes", tails[s]);
			vt_require(wait_word(word_at(&d, (1 << 20) + 8), stamp), "the peer did not see the write of %u bytes, round %d",
				tails[s], r);
		}
	char done = 1;
	vt_put(fd, &done, 1);
	vt_check(vt_reap(pid, 10000) == 0, "the reader failed");
	vt_check(vt_duo_close(&d), "closing");
	close(fd);
}

/* ---- order: what was posted before is there before, by whichever of write, send and atomic it is told ---- */
#define SLOTS 512
static int order_peer(int fd)
{
	struct vt_duo d;
	struct ibv_wc wc;
	if (!vt_duo_open(&d, &(struct vt_duo_opts){ .type = VT_RC, .nqp = 1, .depth = 128, .size = 1 << 20 }))
		return 1;
	if (!vt_duo_meet(&d, fd))
		return 1;
	for (uint64_t round = 1; round <= 240; round++) {
		struct ibv_sge sge = vt_duo_sge(&d, 65536, 64);
		struct ibv_recv_wr r = { .wr_id = round, .sg_list = &sge, .num_sge = 1 }, *bad;
		char go = 1;
		bool by_flag = round % 3 == 0, by_atomic = round % 3 == 1;
		if ((!by_flag && !by_atomic && ibv_post_recv(d.qp[0], &r, &bad)) || !vt_put(fd, &go, 1))
			return 1;
		if (by_flag) {
			if (!wait_word(word_at(&d, SLOTS * 8), round))
				return 1;
		} else if (by_atomic) {
			if (!wait_word(word_at(&d, SLOTS * 8 + 8), (round + 2) / 3))
				return 1;
		} else if (vt_poll(d.cq, &wc, 1, 20000) != 1 || wc.status != IBV_WC_SUCCESS) {
			return 1;
		}
		for (uint64_t i = 0; i < SLOTS; i++)
			if (*word_at(&d, i * 8) != round * 1000000 + i) {
				printf("FAIL peer: round %" PRIu64 " (%s): slot %" PRIu64 " holds %" PRIu64 "\n", round,
				       by_flag ? "write" : by_atomic ? "atomic" : "send", i, *word_at(&d, i * 8));
				return 1;
			}
		if (!vt_put(fd, &go, 1))
			return 1;
	}
	char done;
	vt_get(fd, &done, 1, 20000);
	return vt_duo_close(&d) ? 0 : 1;
}

static void order(void)
{
	int fd;
	pid_t pid = vt_spawn("order", &fd);
	struct vt_duo d;
	struct ibv_wc wc;
	vt_require(pid > 0 && vt_duo_open(&d, &(struct vt_duo_opts){ .type = VT_RC, .nqp = 1, .depth = 128, .size = 1 << 20 }) &&
		vt_duo_meet(&d, fd), "setup");
	for (uint64_t round = 1; round <= 240; round++) {
		char go;
		vt_require(vt_get(fd, &go, 1, 20000), "the peer is gone in round %" PRIu64, round);
		for (uint64_t i = 0; i < SLOTS; i++) {
			bool sig = i % 64 == 63;
			*word_at(&d, i * 8) = round * 1000000 + i;
			struct ibv_sge sge = vt_duo_sge(&d, i * 8, 8);
			vt_require(vt_duo_post(&d, 0, IBV_WR_RDMA_WRITE, i, sig ? IBV_SEND_SIGNALED : 0, &sge, 1, d.peer.addr + i * 8) == 0,
				"posting");
			/* The last block is not waited for: the message that tells must come behind it by itself. */
			if (sig && i + 1 < SLOTS)
				vt_require(vt_poll(d.cq, &wc, 1, 20000) == 1 && wc.status == IBV_WC_SUCCESS, "write %" PRIu64, i);
		}
		struct ibv_sge sge = vt_duo_sge(&d, SLOTS * 8, 8);
		*word_at(&d, SLOTS * 8) = round;
		int op = round % 3 == 0 ? IBV_WR_RDMA_WRITE : round % 3 == 1 ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_SEND;
		if (op == IBV_WR_ATOMIC_FETCH_AND_ADD)
			sge = vt_duo_sge(&d, 65536, 8);
		vt_require(vt_duo_post(&d, 0, op, 1, IBV_SEND_SIGNALED, &sge, 1,
			d.peer.addr + SLOTS * 8 + (op == IBV_WR_RDMA_WRITE ? 0 : 8)) == 0, "posting");
		struct ibv_wc both[2];
		vt_require(vt_poll(d.cq, both, 2, 20000) == 2 && both[1].status == IBV_WC_SUCCESS, "the message that tells");
		vt_require(vt_get(fd, &go, 1, 20000), "round %" PRIu64 ": the peer saw old data", round);
	}
	char done = 1;
	vt_put(fd, &done, 1);
	vt_check(vt_reap(pid, 10000) == 0, "the peer failed");
	vt_check(vt_duo_close(&d), "closing");
	close(fd);
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { { "random_ops", random_ops }, { "last_byte", last_byte }, { "order", order } };
	static const struct vt_role roles[] = { { "random", random_peer }, { "tail", tail_peer }, { "order", order_peer } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
