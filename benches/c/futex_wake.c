/*
 * What waking a sleeping process costs, without Vervain: the measure for everything that must wake its peer.
 *
 *   futex_wake N GAP_US CPU CPU   ns from before FUTEX_WAKE in one process until the waiter in another has run
 *
 * The waiter sleeps for GAP_US before each wake. It answers by a store that the waker spins for, so a cache line's way
 * back is in the number.
 */
#define _GNU_SOURCE
#include "clock.h"

#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* In memory that both map, a cache line for each writer. */
static struct meeting {
	uint32_t asked __attribute__((aligned(64)));
	uint32_t seen __attribute__((aligned(64)));
} *meeting;

static void waiter(void)
{
	for (uint32_t seen = 0;;) {
		uint32_t asked = __atomic_load_n(&meeting->asked, __ATOMIC_ACQUIRE);
		if (asked == seen) {
			syscall(SYS_futex, &meeting->asked, FUTEX_WAIT, seen, NULL, NULL, 0);
			continue;
		}
		seen = asked;
		__atomic_store_n(&meeting->seen, seen, __ATOMIC_RELEASE);
	}
}

int main(int argc, char **argv)
{
	if (argc != 5) {
		fprintf(stderr, "futex_wake: see the head of futex_wake.c\n");
		return 2;
	}
	size_t count = strtoul(argv[1], NULL, 10);
	uint64_t gap = strtoul(argv[2], NULL, 10) * 1000;
	meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	double *samples = calloc(count, sizeof *samples);
	pid_t child = meeting == MAP_FAILED || !samples ? -1 : fork();
	if (child < 0) {
		fprintf(stderr, "futex_wake: %s\n", strerror(errno));
		return 1;
	}
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
		pin(atoi(argv[4]));
		waiter();
	}
	pin(atoi(argv[3]));
	uint64_t cost = clock_cost_ns();
	for (uint32_t i = 1; i <= count; i++) {
		for (uint64_t rest = now_ns(); now_ns() - rest < gap;)
			;
		uint64_t begin = now_ns();
		__atomic_store_n(&meeting->asked, i, __ATOMIC_SEQ_CST);
		syscall(SYS_futex, &meeting->asked, FUTEX_WAKE, 1, NULL, NULL, 0);
		while (__atomic_load_n(&meeting->seen, __ATOMIC_ACQUIRE) != i)
			;
		uint64_t took = now_ns() - begin;
		samples[i - 1] = (double)(took > cost ? took - cost : 0);
	}
	printf("%.3f\n", median(samples, count));
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	return 0;
}
