/* Atomics of several processes and of the owner's own threads on the same words of malloc'd memory: the device says
 * IBV_ATOMIC_GLOB, so C11 atomics and remote ones exclude each other, and every sum is exact. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#define PEERS 3
#define THREADS 2
#define SIZE (1u << 20)
#define OPTS &(struct vt_duo_opts){ .type = VT_RC, .nqp = PEERS, .depth = 32, .size = SIZE }
#define PEER_OPTS &(struct vt_duo_opts){ .type = VT_RC, .nqp = 1, .depth = 32, .size = SIZE }
#define TIME_US 250000u /* a peer goes on for so long, and for LEAST operations at least */
#define LEAST 200

/* Words of the owner, far apart. */
enum { ADDED = 4096, SWAPPED = 8192, LOCK = 12288, GUARDED = 16384 };

static struct vt_duo d;
static struct {
	uint64_t addr;
	uint32_t rkey, which;
} job; /* which: 0 adds, 1 swaps, 2 a lock */

static bool atomic_op(int opcode, uint64_t off, uint64_t compare_add, uint64_t swap, uint64_t *old)
{
	struct ibv_sge sge = vt_duo_sge(&d, 0, 8);
	struct ibv_send_wr w = { .sg_list = &sge, .num_sge = 1, .opcode = (enum ibv_wr_opcode)opcode, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_wc wc;
	w.wr.atomic.remote_addr = job.addr + off;
	w.wr.atomic.rkey = job.rkey;
	w.wr.atomic.compare_add = compare_add;
	w.wr.atomic.swap = swap;
	if (ibv_post_send(d.qp[0], &w, &bad) || vt_poll(d.cq, &wc, 1, 20000) != 1 || wc.status != IBV_WC_SUCCESS)
		return false;
	memcpy(old, d.buf, 8);
	return true;
}

static bool move_word(int opcode, uint64_t off, uint64_t local)
{
	struct ibv_sge sge = vt_duo_sge(&d, local, 8);
	struct ibv_wc wc;
	d.peer.rkey = job.rkey;
	return !vt_duo_post(&d, 0, opcode, 1, IBV_SEND_SIGNALED, &sge, 1, job.addr + off) && vt_poll(d.cq, &wc, 1, 20000) == 1 &&
	       wc.status == IBV_WC_SUCCESS;
}

/* One remote increment by compare and swap, from a guess. */
static bool swap_up(uint64_t off, uint64_t *guess, uint64_t by)
{
	for (;;) {
		uint64_t old;
		if (!atomic_op(IBV_WR_ATOMIC_CMP_AND_SWP, off, *guess, *guess + by, &old))
			return false;
		bool won = old == *guess;
		*guess = won ? old + by : old;
		if (won)
			return true;
	}
}

static bool locked_up(void)
{
	uint64_t old = 1, value;
	while (old) {
		if (!atomic_op(IBV_WR_ATOMIC_CMP_AND_SWP, LOCK, 0, 1, &old))
			return false;
		if (old)
			sched_yield();
	}
	if (!move_word(IBV_WR_RDMA_READ, GUARDED, 64))
		return false;
	memcpy(&value, d.buf + 64, 8);
	value++;
	memcpy(d.buf + 64, &value, 8);
	memset(d.buf + 128, 0, 8);
	return move_word(IBV_WR_RDMA_WRITE, GUARDED, 64) && move_word(IBV_WR_RDMA_WRITE, LOCK, 128);
}

static int adder(int fd)
{
	char c;
	uint64_t last, old = 0, guess = 0, n, until;
	if (!vt_duo_open(&d, PEER_OPTS) || !vt_duo_meet(&d, fd))
		return 1;
	while (vt_get(fd, &job, sizeof(job), 100000) && job.addr) {
		for (n = last = 0, until = vt_now_us() + TIME_US; n < LEAST || vt_now_us() < until; n++) {
			bool ok = job.which == 0 ? atomic_op(IBV_WR_ATOMIC_FETCH_AND_ADD, ADDED, 3, 0, &old)
				: job.which == 1 ? swap_up(SWAPPED, &guess, 5) : locked_up();
			if (!ok || (job.which == 0 && n && old <= last)) {
				printf("FAIL peer: operation %" PRIu64 " of kind %u\n", n, job.which);
				return 2;
			}
			last = old;
			if (n % 64 == 63)
				sched_yield();
		}
		if (!vt_put(fd, &n, sizeof(n)))
			return 3;
	}
	return vt_get(fd, &c, 1, 20000) && vt_duo_close(&d) ? 0 : 4;
}

static uint8_t *memory;
static int kind;
static atomic_bool stop;
static uint64_t own[THREADS];

static _Atomic uint64_t *word(int off)
{
	return (_Atomic uint64_t *)(void *)(memory + off);
}

/* The owner's threads go on until the peers are done, so that all of it is contended. */
static void *owner(void *arg)
{
	uint64_t *count = arg;
	for (; !atomic_load(&stop); ++*count) {
		if (kind == 0) {
			atomic_fetch_add(word(ADDED), 7);
		} else if (kind == 1) {
			uint64_t old = atomic_load(word(SWAPPED));
			while (!atomic_compare_exchange_weak(word(SWAPPED), &old, old + 11))
				;
		} else {
			uint64_t open = 0;
			while (!atomic_compare_exchange_weak(word(LOCK), &open, 2)) {
				open = 0;
				sched_yield();
			}
			/* Not an atomic increment: the lock alone makes it one. */
			uint64_t value = atomic_load_explicit(word(GUARDED), memory_order_relaxed);
			atomic_store_explicit(word(GUARDED), value + 1, memory_order_relaxed);
			atomic_store(word(LOCK), 0);
		}
		/* One in a while is enough to contend; the peers need a core. */
		if (*count % 64 == 63 || kind == 2)
			sched_yield();
	}
	return NULL;
}

static void contend(int which)
{
	static const char *const names[] = { "fetch and add", "compare and swap", "a lock" };
	static const int offsets[] = { ADDED, SWAPPED, GUARDED };
	int fd[PEERS];
	pid_t pid[PEERS];
	pthread_t t[THREADS];
	char c = 1;
	vt_require(vt_duo_open(&d, OPTS), "the owner");
	if (d.dev.attr.atomic_cap != IBV_ATOMIC_GLOB)
		vt_does_not_apply("atomic_cap is %d, not IBV_ATOMIC_GLOB", (int)d.dev.attr.atomic_cap);
	memory = malloc(SIZE);
	struct ibv_mr *mr = memory ? ibv_reg_mr(d.pd, memory, SIZE, VT_ACCESS_ALL) : NULL;
	vt_require(mr, "memory");
	memset(memory, 0, SIZE);
	struct vt_duo_addr mine = d.self, hello = mine;
	for (int i = 0; i < PEERS; i++) {
		pid[i] = vt_spawn("adder", &fd[i]);
		hello.qpn[0] = mine.qpn[i];
		vt_require(pid[i] > 0 && vt_get(fd[i], &d.peer, sizeof(d.peer), 20000) && vt_put(fd[i], &hello, sizeof(hello)), "peer %d", i);
		d.peer.qpn[i] = d.peer.qpn[0];
		vt_require(vt_duo_connect(&d, i) && vt_put(fd[i], &c, 1) && vt_get(fd[i], &c, 1, 20000), "peer %d", i);
	}
	kind = which;
	atomic_store(&stop, false);
	memset(own, 0, sizeof(own));
	for (int i = 0; i < THREADS; i++)
		pthread_create(&t[i], NULL, owner, &own[i]);
	job.addr = (uintptr_t)memory;
	job.rkey = mr->rkey;
	job.which = (uint32_t)which;
	int done = 0;
	uint64_t theirs = 0, n;
	for (int i = 0; i < PEERS; i++)
		vt_put(fd[i], &job, sizeof(job));
	for (int i = 0; i < PEERS; i++)
		if (vt_get(fd[i], &n, sizeof(n), 100000)) {
			theirs += n;
			done++;
		}
	atomic_store(&stop, true);
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	vt_check(done == PEERS, "%d of %d peers came to the end", done, PEERS);
	uint64_t ours = own[0] + own[1];
	uint64_t want = which == 0 ? 3 * theirs + 7 * ours : which == 1 ? 5 * theirs + 11 * ours : theirs + ours;
	uint64_t got = atomic_load(word(offsets[which]));
	vt_check(got == want, "%s: the sum is %" PRIu64 ", not %" PRIu64, names[which], got, want);
	vt_note("%s: %" PRIu64 " of the owner's threads beside %" PRIu64 " of peers", names[which], ours, theirs);
	job.addr = 0;
	for (int i = 0; i < PEERS; i++) {
		vt_put(fd[i], &job, sizeof(job));
		vt_put(fd[i], "e", 1);
		int status = vt_reap(pid[i], 20000);
		vt_check(status == 0, "peer %d failed: status 0x%x", i, (unsigned)status);
		close(fd[i]);
	}
	vt_check(ibv_dereg_mr(mr) == 0 && vt_duo_close(&d), "closing");
	free(memory);
}

static void adds(void) { contend(0); }
static void swaps(void) { contend(1); }
static void lock(void) { contend(2); }

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { { "adds", adds }, { "swaps", swaps }, { "lock", lock } };
	static const struct vt_role roles[] = { { "adder", adder } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
