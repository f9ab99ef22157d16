/*
 * The operations that bound Vervain, without Vervain: process_vm_writev and shared memory between two processes, and a
 * locked add in one. Each mode does what the verbs program measured beside it does, and prints one number on a line.
 *
 *   raw call N CPU CPU              ns of one 8-byte process_vm_writev; the target spins on the word
 *   raw pingpong N CPU CPU          ns of half a round trip: each side writes 8 bytes into the other, which spins
 *   raw shared N CPU CPU            the same through memory that both map: what the two CPUs need at least
 *   raw bandwidth BYTES N CPU CPU   MiB/s of process_vm_writev; the target sleeps
 *   raw xadd N                      ns of a locked add
 */
#define _GNU_SOURCE
#include "clock.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CLIENT, SERVER };

struct side {
	pid_t peer;
	volatile uint64_t *mine; /* written by the peer, read here */
	uint64_t *theirs;        /* address in the peer */
};

/* In memory that both map: where each has its buffer, and who is ready. */
static struct meeting {
	void *volatile buffer[2];
	volatile uint64_t word[2][8]; /* a cache line each */
} *meeting;

static void die(const char *what)
{
	fprintf(stderr, "raw: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void vm_write(pid_t peer, void *to, void *from, size_t length)
{
	struct iovec local = { from, length }, remote = { to, length };
	if (process_vm_writev(peer, &local, 1, &remote, 1, 0) != (ssize_t)length)
		die("process_vm_writev");
}

/* Memory as perftest gets it: page-aligned heap, twice the message, touched. */
static void *buffer(size_t length)
{
	void *memory;
	size_t bytes = 2 * length < 8192 ? 8192 : 2 * length;
	if (posix_memalign(&memory, 4096, bytes))
		die("posix_memalign");
	memset(memory, 0, bytes);
	return memory;
}

/* Both sides come here; each leaves knowing the other's buffer. */
static void *meet(int role, void *mine)
{
	void *theirs;
	meeting->buffer[role] = mine;
	__sync_synchronize();
	while (!(theirs = meeting->buffer[!role]))
		;
	return theirs;
}

static void report(double value)
{
	printf("%.3f\n", value);
}

static double *samples_for(size_t count)
{
	double *samples = calloc(count, sizeof *samples);
	if (!samples)
		die("calloc");
	return samples;
}

static void pingpong(int role, struct side *side, size_t count, int shared)
{
	double *samples = samples_for(count);
	uint64_t cost = clock_cost_ns(), word = 0;
	for (uint64_t i = 1; i <= count; i++) {
		if (role == SERVER)
			while (*side->mine != i)
				;
		uint64_t begin = role == CLIENT ? now_ns() : 0;
		if (shared) {
			meeting->word[!role][0] = i;
		} else {
			word = i;
			vm_write(side->peer, side->theirs, &word, sizeof word);
		}
		if (role == CLIENT) {
			while (*side->mine != i)
				;
			uint64_t took = now_ns() - begin;
			samples[i - 1] = (double)(took > cost ? took - cost : 0) / 2;
		}
	}
	if (role == CLIENT)
		report(median(samples, count));
}

static void call(int role, struct side *side, size_t count)
{
	if (role == SERVER) {
		while (*side->mine != UINT64_MAX)
			;
		return;
	}
	double *samples = samples_for(count);
	uint64_t cost = clock_cost_ns(), last = UINT64_MAX;
	for (uint64_t i = 0; i < count; i++) {
		uint64_t begin = now_ns();
		vm_write(side->peer, side->theirs, &i, sizeof i);
		uint64_t took = now_ns() - begin;
		samples[i] = (double)(took > cost ? took - cost : 0);
	}
	vm_write(side->peer, side->theirs, &last, sizeof last);
	report(median(samples, count));
}

static void bandwidth(int role, struct side *side, void *from, size_t length, size_t count)
{
	if (role == SERVER) {
		pause();
		return;
	}
	vm_write(side->peer, side->theirs, from, length);
	uint64_t begin = now_ns();
	for (size_t i = 0; i < count; i++)
		vm_write(side->peer, side->theirs, from, length);
	report((double)length * (double)count / 1048576.0 / ((double)(now_ns() - begin) / 1e9));
}

static void xadd(size_t count)
{
	enum { BATCH = 100 };
	static volatile uint64_t word;
	double *samples = samples_for(count);
	for (size_t i = 0; i < count; i++) {
		uint64_t begin = now_ns();
		for (int j = 0; j < BATCH; j++)
			__sync_fetch_and_add(&word, 1);
		samples[i] = (double)(now_ns() - begin) / BATCH;
	}
	report(median(samples, count));
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "xadd")) {
		xadd(strtoul(argv[2], NULL, 10));
		return 0;
	}
	if (argc < 5) {
		fprintf(stderr, "raw: see the head of raw.c\n");
		return 2;
	}
	size_t length = argc > 5 ? strtoul(argv[2], NULL, 10) : 8;
	size_t count = strtoul(argv[argc - 3], NULL, 10);

	meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (meeting == MAP_FAILED)
		die("mmap");
	/* Yama lets a process write into its descendants only, unless they say so. */
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
	pid_t parent = getpid(), child = fork();
	if (child < 0)
		die("fork");
	int role = child ? CLIENT : SERVER;
	if (role == SERVER) {
		prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	}
	pin(atoi(argv[role == CLIENT ? argc - 2 : argc - 1]));

	void *mine = buffer(length);
	int shared = !strcmp(argv[1], "shared");
	struct side side = { child ? child : parent, mine, NULL };
	side.theirs = meet(role, mine);
	if (shared)
		side.mine = &meeting->word[role][0];

	if (!strcmp(argv[1], "call"))
		call(role, &side, count);
	else if (!strcmp(argv[1], "bandwidth"))
		bandwidth(role, &side, mine, length, count);
	else
		pingpong(role, &side, count, shared);

	if (role == CLIENT) {
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
	}
	return 0;
}
