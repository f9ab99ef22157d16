/* fork, exec and registration while a peer never stops writing into malloc'd, registered memory. A child has a copy of the
 * moment of its birth, which nobody writes to but itself; the parent loses no remote write and sees none of the child's. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE (1u << 20)
#define OPTS &(struct vt_duo_opts){ .type = VT_RC, .nqp = 1, .depth = 32, .size = SIZE }
#define FORKS 50
#define CYCLES 1500
#define LIMIT_US 8000000u

/* The peer's half: a counter, and records of 64 bytes, all words of which are the record's number. The parent's half: a
 * page that its own thread counts in. */
#define RECORD 64
#define RECORDS 4096
#define COUNTER (RECORDS * RECORD)
#define OWN (COUNTER + 4096)
#define USED (OWN + 4096)

static struct vt_duo d;

struct job {
	uint64_t addr;
	uint32_t rkey, pad;
};
struct outcome {
	uint64_t writes, adds;
};

static bool settle(void)
{
	struct ibv_wc wc;
	return vt_poll(d.cq, &wc, 1, 20000) == 1 && wc.status == IBV_WC_SUCCESS;
}

/* Record n goes to place n % RECORDS; after each one the counter, and now and then a look back at what must be there. */
static int writer(int fd)
{
	struct job job;
	struct outcome o = { 0 };
	char c;
	if (!vt_duo_open(&d, OPTS) || !vt_duo_meet(&d, fd) || !vt_get(fd, &job, sizeof(job), 20000))
		return 1;
	d.peer.rkey = job.rkey;
	struct ibv_sge from = vt_duo_sge(&d, 0, RECORD), old = vt_duo_sge(&d, 4096, 8), back = vt_duo_sge(&d, 8192, RECORD);
	for (uint64_t n = 1; n % 8 || !vt_get(fd, &c, 1, 0); n++) {
		uint64_t was, place = job.addr + n % RECORDS * RECORD;
		for (int i = 0; i < RECORD; i += 8)
			memcpy(d.buf + i, &n, 8);
		if (vt_duo_post(&d, 0, IBV_WR_RDMA_WRITE, n, 0, &from, 1, place) ||
		    vt_duo_post(&d, 0, IBV_WR_ATOMIC_FETCH_AND_ADD, n, IBV_SEND_SIGNALED, &old, 1, job.addr + COUNTER) || !settle())
			return 2;
		memcpy(&was, d.buf + 4096, 8);
		if (was != o.adds) {
			printf("FAIL writer: the counter was %" PRIu64 " after %" PRIu64 " additions\n", was, o.adds);
			return 3;
		}
		o.adds++;
		o.writes = n;
		uint64_t look = n > RECORDS ? n - vt_random() % RECORDS : 1 + vt_random() % n;
		if (vt_duo_post(&d, 0, IBV_WR_RDMA_READ, n, IBV_SEND_SIGNALED, &back, 1, job.addr + look % RECORDS * RECORD) || !settle())
			return 4;
		for (int i = 0; i < RECORD; i += 8) {
			memcpy(&was, d.buf + 8192 + i, 8);
			if (was != look) {
				printf("FAIL writer: record %" PRIu64 " is %" PRIu64 " at byte %d after %" PRIu64 " writes\n", look, was, i, n);
				return 5;
			}
		}
		/* The parent and its children need the cores, too. */
		if (n % 64 == 0)
			sched_yield();
	}
	return vt_put(fd, &o, sizeof(o)) && vt_get(fd, &c, 1, 20000) && vt_duo_close(&d) ? 0 : 6;
}

static uint8_t *memory;
static struct ibv_mr *mr;
static int fd;
static pid_t peer;
static atomic_bool stop;
static uint64_t counted;

static _Atomic uint64_t *word(size_t off)
{
	return (_Atomic uint64_t *)(void *)(memory + off);
}

/* The parent's own thread, beside the one that forks. */
static void *counter(void *arg)
{
	(void)arg;
	for (; !atomic_load(&stop); counted++) {
		for (int i = 0; i < 8; i++)
			atomic_fetch_add(word(OWN + (size_t)i * 8), 1);
		if (counted % 256 == 255)
			sched_yield();
	}
	return NULL;
}

static pthread_t begin(void)
{
	pthread_t t;
	peer = vt_spawn("writer", &fd);
	vt_require(peer > 0 && vt_duo_open(&d, OPTS) && vt_duo_meet(&d, fd), "the peer");
	memory = malloc(SIZE);
	mr = memory ? ibv_reg_mr(d.pd, memory, SIZE, VT_ACCESS_ALL) : NULL;
	vt_require(mr, "memory");
	memset(memory, 0, SIZE);
	struct job job = { .addr = (uintptr_t)memory, .rkey = mr->rkey };
	atomic_store(&stop, false);
	counted = 0;
	vt_require(vt_put(fd, &job, sizeof(job)) && pthread_create(&t, NULL, counter, NULL) == 0, "starting");
	for (uint64_t until = vt_now_us() + 10000000; atomic_load(word(COUNTER)) < 100; usleep(100))
		vt_require(vt_now_us() < until, "the peer does not write");
	return t;
}

static void end(pthread_t t, const char *what, int n)
{
	struct outcome o = { 0 };
	vt_check(vt_put(fd, "e", 1) && vt_get(fd, &o, sizeof(o), 20000), "the peer is gone");
	atomic_store(&stop, true);
	pthread_join(t, NULL);
	vt_check(atomic_load(word(COUNTER)) == o.adds, "the counter is %" PRIu64 " after %" PRIu64 " additions", atomic_load(word(COUNTER)),
		o.adds);
	for (uint64_t i = 0; i < RECORDS; i++) {
		/* The last number that belongs there. */
		uint64_t last = o.writes - (o.writes - i) % RECORDS;
		if (o.writes < i || last == 0)
			continue;
		for (size_t at = 0; at < RECORD; at += 8)
			vt_require(atomic_load(word(i * RECORD + at)) == last, "record %" PRIu64 " is %" PRIu64 ", not %" PRIu64, i,
				atomic_load(word(i * RECORD + at)), last);
	}
	for (size_t i = 0; i < 8; i++)
		vt_check(atomic_load(word(OWN + i * 8)) == counted, "of %" PRIu64 " additions of the parent's own thread %" PRIu64 " are there",
			counted, atomic_load(word(OWN + i * 8)));
	for (size_t at = USED; at < SIZE; at++)
		vt_require(memory[at] == 0, "byte %zu was written by somebody", at);
	vt_put(fd, "e", 1);
	int status = vt_reap(peer, 20000);
	vt_check(status == 0, "the peer failed: status 0x%x", (unsigned)status);
	vt_check(ibv_dereg_mr(mr) == 0 && vt_duo_close(&d), "closing");
	free(memory);
	close(fd);
	vt_note("%d %s beside %" PRIu64 " writes and %" PRIu64 " counts", n, what, o.writes, counted);
}

/* What is wrong with the child's copy: 0 nothing. Whole records are asked for only where peers store into shared memory,
 * as a copy of private memory may be taken page by page by the kernel. */
static int look(bool whole)
{
	uint8_t *copy = malloc(USED);
	if (!copy)
		return 10;
	memcpy(copy, memory, USED);
	for (size_t at = 0; whole && at < RECORDS * RECORD; at += RECORD)
		for (size_t i = 8; i < RECORD; i += 8)
			if (memcmp(copy + at, copy + at + i, 8))
				return 11;
	usleep(1500);
	/* Neither the peer nor the parent's thread reaches it. */
	if (memcmp(copy, memory, USED))
		return 12;
	memset(memory, 0xee, SIZE);
	usleep(300);
	for (size_t at = 0; at < SIZE; at++)
		if (memory[at] != 0xee)
			return 13;
	/* A life of its own. */
	uint8_t *more = calloc(1, SIZE);
	if (!more || more[SIZE - 1])
		return 14;
	memset(more, 1, SIZE);
	free(more);
	free(copy);
	return 0;
}

static void forks(void)
{
	const char *share = getenv("VERVAIN_SHARE");
	bool whole = !share || strcmp(share, "off");
	pthread_t t = begin();
	int n = 0;
	uint64_t until = vt_now_us() + LIMIT_US;
	for (; n < FORKS && vt_now_us() < until; n++) {
		uint64_t before = atomic_load(word(COUNTER)), mine = atomic_load(word(OWN));
		pid_t child = fork();
		vt_require(child >= 0, "fork: %s", strerror(errno));
		if (child == 0) {
			/* Of the moment of birth: not older than what the parent had seen. */
			uint64_t then = atomic_load(word(COUNTER)), own = atomic_load(word(OWN));
			_exit(then < before || own < mine ? 20 : look(whole));
		}
		int status = vt_reap(child, 20000);
		vt_require(status == 0, "child %d: status 0x%x", n, (unsigned)status);
		/* The peer goes on, here and not only in its own eyes. */
		before = atomic_load(word(COUNTER));
		for (uint64_t limit = vt_now_us() + 10000000; atomic_load(word(COUNTER)) == before; sched_yield())
			vt_require(vt_now_us() < limit, "after child %d the peer writes no more", n);
	}
	end(t, "children", n);
}

static void execs(void)
{
	pthread_t t = begin();
	int n = 0;
	uint64_t until = vt_now_us() + LIMIT_US;
	for (; n < FORKS / 2 && vt_now_us() < until; n++) {
		/* Several at once, by fork and by vfork; each becomes another program with the library in it. */
		pid_t child[3];
		for (int i = 0; i < 3; i++) {
			child[i] = i == 2 ? vfork() : fork();
			if (child[i] == 0) {
				execl("/proc/self/exe", "vt-role", "--role", "nothing", "0", (char *)NULL);
				_exit(127);
			}
		}
		for (int i = 0; i < 3; i++) {
			int status = child[i] > 0 ? vt_reap(child[i], 20000) : -1;
			vt_require(status == 0, "program %d: status 0x%x", n, (unsigned)status);
		}
	}
	end(t, "times three programs", n);
}

/* Regions over the memory that the peer writes to, and over memory that comes and goes, are made and destroyed. */
static void registrations(void)
{
	pthread_t t = begin();
	int n = 0;
	uint64_t until = vt_now_us() + LIMIT_US;
	for (; n < CYCLES && vt_now_us() < until; n++) {
		size_t off = vt_random() % (SIZE / 2), len = 1 + vt_random() % (SIZE / 2), size = 4096 + vt_random() % SIZE;
		uint8_t *other = malloc(size);
		struct ibv_mr *same = ibv_reg_mr(d.pd, memory + off, len, VT_ACCESS_ALL);
		struct ibv_mr *fresh = other ? ibv_reg_mr(d.pd, other, size, VT_ACCESS_ALL) : NULL;
		vt_require(same && fresh, "cycle %d: ibv_reg_mr: %s", n, strerror(errno));
		memset(other, 0xdd, size);
		vt_require(ibv_dereg_mr(same) == 0 && ibv_dereg_mr(fresh) == 0, "cycle %d: ibv_dereg_mr", n);
		free(other);
		if (n % 16 == 0)
			sched_yield();
	}
	end(t, "times two regions", n);
}

static int nothing(int unused)
{
	(void)unused;
	uint8_t *p = malloc(SIZE);
	if (!p)
		return 1;
	memset(p, 0x5a, SIZE);
	int rc = p[SIZE / 2] != 0x5a;
	free(p);
	return rc;
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { { "forks", forks }, { "execs", execs }, { "registrations", registrations } };
	static const struct vt_role roles[] = { { "writer", writer }, { "nothing", nothing } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
