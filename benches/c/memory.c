/*
 * What the memory and the scheduler give two processes, without any library between: the bounds of what a device
 * made of them can do.
 *
 *   memory copy-out BYTES N CPU CPU   MiB/s of memcpy from this process's own memory into memory of both
 *   memory copy-in BYTES N CPU CPU    the same from memory of both into its own
 *   memory xadd one|distinct SECONDS CPU CPU    millions of locked adds a second, both together, on one word or on two
 *   memory wake N GAP CPU CPU         ns from FUTEX_WAKE to the answer of the sleeper, for which the waker spins; GAP
 *                                     microseconds apart, in which it falls asleep
 *
 * The memory of both is a memfd that each maps for itself, touched first by the second process, which then sleeps.
 * As in perftest for messages of a page or more, every copy has the same source and the same destination.
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

enum { CLIENT, SERVER, LINE = 256 };

static struct meeting {
	volatile int here[2], stop;
	char apart[LINE];
	volatile uint64_t word[2][LINE / 8];
	uint32_t bell;
	char after[LINE];
	volatile uint32_t answer;
} *meeting;

static void die(const char *what)
{
	fprintf(stderr, "memory: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void meet(int role)
{
	meeting->here[role] = 1;
	__sync_synchronize();
	while (!meeting->here[!role])
		;
}

static void copy(int role, int out, int memfd, size_t length, size_t count)
{
	char *both = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0), *own;
	if (both == MAP_FAILED || posix_memalign((void **)&own, 4096, length))
		die("mmap");
	if (role == SERVER)
		memset(both, 1, length);
	meet(role);
	if (role == SERVER) {
		pause();
		return;
	}
	memset(own, 2, length);
	memcpy(out ? both : own, out ? own : both, length); /* maps the pages here, warms up */
	uint64_t begin = now_ns();
	for (size_t i = 0; i < count; i++) {
		memcpy(out ? both : own, out ? own : both, length);
		__asm__ volatile("" ::: "memory");
	}
	printf("%.3f\n", (double)length * (double)count / 1048576.0 / ((double)(now_ns() - begin) / 1e9));
}

static double adds(int role, int distinct, double seconds)
{
	volatile uint64_t *word = meeting->word[distinct ? role : 0];
	uint64_t done = 0, fetched = 0, end, begin;
	meet(role);
	begin = now_ns();
	end = begin + (uint64_t)(seconds * 1e9);
	do {
		for (int i = 0; i < 1000; i++)
			fetched += __sync_fetch_and_add(word, 1);
		done += 1000;
		__asm__ volatile("" ::"r"(fetched)); /* a fetch and add, not only an add */
	} while (now_ns() < end);
	return (double)done * 1e3 / (double)(now_ns() - begin);
}

static void sleeper(void)
{
	meet(SERVER);
	for (uint32_t seen = 0;;) {
		syscall(SYS_futex, &meeting->bell, FUTEX_WAIT, seen, NULL, NULL, 0);
		seen = __atomic_load_n(&meeting->bell, __ATOMIC_ACQUIRE);
		meeting->answer = seen;
	}
}

static void wake(size_t count, uint64_t gap_us)
{
	double *samples = calloc(count, sizeof *samples);
	uint64_t cost = clock_cost_ns();
	meet(CLIENT);
	for (uint32_t i = 1; i <= count; i++) {
		for (uint64_t rest = now_ns() + gap_us * 1000; now_ns() < rest;)
			;
		uint64_t begin = now_ns();
		__atomic_store_n(&meeting->bell, i, __ATOMIC_RELEASE);
		syscall(SYS_futex, &meeting->bell, FUTEX_WAKE, 1, NULL, NULL, 0);
		while (meeting->answer != i)
			;
		samples[i - 1] = (double)(now_ns() - begin - cost);
	}
	printf("%.3f\n", median(samples, count));
}

int main(int argc, char **argv)
{
	if (argc < 5) {
		fprintf(stderr, "memory: see the head of memory.c\n");
		return 2;
	}
	const char *mode = argv[1];
	int copies = !strncmp(mode, "copy", 4);
	size_t length = copies ? strtoul(argv[2], NULL, 10) : 0;
	int memfd = memfd_create("memory", MFD_CLOEXEC);
	meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (meeting == MAP_FAILED || memfd < 0 || ftruncate(memfd, (off_t)length))
		die("shared memory");
	pid_t child = fork();
	if (child < 0)
		die("fork");
	int role = child ? CLIENT : SERVER;
	if (role == SERVER)
		prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	pin(atoi(argv[role == CLIENT ? argc - 2 : argc - 1]));
	if (copies) {
		copy(role, !strcmp(mode, "copy-out"), memfd, length, strtoul(argv[3], NULL, 10));
	} else if (!strcmp(mode, "xadd")) {
		double rate = adds(role, !strcmp(argv[2], "distinct"), atof(argv[3]));
		meeting->word[role][1] = (uint64_t)(rate * 1e3);
		if (role == SERVER)
			return 0;
		waitpid(child, NULL, 0);
		printf("%.3f\n", rate + (double)meeting->word[SERVER][1] / 1e3);
		return 0;
	} else if (role == SERVER) {
		sleeper();
	} else {
		wake(strtoul(argv[2], NULL, 10), strtoul(argv[3], NULL, 10));
	}
	if (role == CLIENT) {
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
	}
	return 0;
}
