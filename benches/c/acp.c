/*
 * ACP, the basic layer, as its users call it; on memory from malloc's allocator.
 *
 *   acp put|get|third|add8|cas8 SIZE:COUNT...  ns of an access and its completion: median, mean, 99th percentile, for each size
 *   acp put-bw|third-bw SIZE:COUNT...          MiB/s with 16 accesses outstanding, for each size
 *   acp sync 0:COUNT                           ns of acp_sync of all ranks: the same three
 *   acp init                                   ms of acp_init
 *   acp idle SECONDS                           ms of CPU time that rank 0 takes while it sleeps so long after acp_init
 *
 * Rank 0 issues and prints. put and get are between it and rank 1; third copies from rank 1 to rank 2, and atomics change a word
 * of rank 1. The other ranks sleep and call nothing of ACP until rank 0 is done. A rank runs where the environment's ACP_CPUS, a
 * list, says; without it anywhere.
 */
#define _GNU_SOURCE
#include "ranks_of_acp.h"
#include "samples.h"

enum { OUTSTANDING = 16 };

/* Of this rank, of rank 1, and where a third party copies to. */
static acp_ga_t mine, far, there;

static void put(size_t size)
{
	complete(acp_copy(far, mine, size, ACP_HANDLE_NULL));
}

static void get(size_t size)
{
	complete(acp_copy(mine, far, size, ACP_HANDLE_NULL));
}

static void third(size_t size)
{
	complete(acp_copy(there, far, size, ACP_HANDLE_NULL));
}

static void add8(size_t size)
{
	(void)size;
	complete(acp_add8(mine, far, 1, ACP_HANDLE_NULL));
}

static void cas8(size_t size)
{
	(void)size;
	complete(acp_cas8(mine, far, 0, 1, ACP_HANDLE_NULL));
}

/* MiB/s; the access that is OUTSTANDING back is complete before another is issued. */
static double bandwidth(acp_ga_t to, acp_ga_t from, size_t size, size_t count)
{
	acp_handle_t handles[OUTSTANDING] = { 0 };
	uint64_t begin = 0;
	for (size_t i = 0; i < count + OUTSTANDING; i++) {
		if (i == OUTSTANDING) { /* the warm-up is over */
			acp_complete((acp_handle_t)ACP_HANDLE_ALL);
			begin = now_ns();
		}
		acp_complete(handles[i % OUTSTANDING]);
		handles[i % OUTSTANDING] = acp_copy(to, from, size, ACP_HANDLE_NULL);
		if (handles[i % OUTSTANDING] == (acp_handle_t)ACP_HANDLE_NULL)
			die("an access was refused");
	}
	acp_complete((acp_handle_t)ACP_HANDLE_ALL);
	return (double)count * (double)size / 1048576.0 / ((double)(now_ns() - begin) / 1e9);
}

struct mode {
	const char *name;
	void (*once)(size_t size); /* NULL: a bandwidth */
};

static const struct mode modes[] = {
	{ "put", put }, { "get", get }, { "third", third }, { "add8", add8 }, { "cas8", cas8 }, { "put-bw", NULL }, { "third-bw", NULL },
};

static void run(const struct mode *mode, char **sizes)
{
	for (; *sizes; sizes++) {
		size_t size, count;
		if (sscanf(*sizes, "%zu:%zu", &size, &count) != 2)
			die(*sizes);
		if (mode->once)
			measure(mode->once, size, count);
		else if (*mode->name == 'p')
			printf("%.1f ", bandwidth(far, mine, size, count));
		else
			printf("%.1f ", bandwidth(there, far, size, count));
	}
}

/* What starter memory is used for: the address of a rank's buffer, and the word by which rank 0 ends the others' sleep. */
struct starter {
	acp_ga_t buffer;
	volatile uint64_t end;
	acp_ga_t fetched;
	uint64_t one;
};

static acp_ga_t in_starter(int of, size_t offset)
{
	return acp_query_starter_ga(of) + offset;
}

static acp_ga_t buffer_of(int of)
{
	struct starter *starter = acp_query_address(acp_query_starter_ga(rank));
	complete(acp_copy(in_starter(rank, offsetof(struct starter, fetched)), in_starter(of, offsetof(struct starter, buffer)),
			  sizeof(acp_ga_t), ACP_HANDLE_NULL));
	return starter->fetched;
}

/* Registers a buffer of `longest` bytes; rank 0 gets to know all, measures, and wakes the others. */
static void accesses(const struct mode *mode, size_t longest, char **sizes)
{
	struct starter *starter = acp_query_address(acp_query_starter_ga(rank));
	void *memory;
	if (!starter || posix_memalign(&memory, 4096, longest))
		die("memory");
	memset(memory, 1, longest);
	acp_atkey_t key = acp_register_memory(memory, longest, 0);
	mine = starter->buffer = acp_query_ga(key, memory);
	if (mine == ACP_GA_NULL)
		die("acp_register_memory");
	synchronize(0);
	if (rank == 0) {
		far = buffer_of(1 % ranks);
		there = buffer_of(2 % ranks);
		run(mode, sizes);
		starter->one = 1;
		for (int other = 1; other < ranks; other++)
			complete(acp_copy(in_starter(other, offsetof(struct starter, end)), in_starter(0, offsetof(struct starter, one)),
					  sizeof starter->one, ACP_HANDLE_NULL));
	}
	while (rank != 0 && !starter->end)
		usleep(1000);
	synchronize(0);
	acp_unregister_memory(key);
}

static void idle(unsigned seconds)
{
	synchronize(0);
	usleep(100000); /* let what joining has started come to rest */
	double before = cpu_ms();
	sleep(seconds);
	if (rank == 0)
		printf("%.4f ", cpu_ms() - before);
	synchronize(0);
}

int main(int argc, char **argv)
{
	size_t longest = 4096;
	const char *name = argc > 1 ? argv[1] : "";
	const struct mode *mode = NULL;
	for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
		if (!strcmp(modes[i].name, name))
			mode = &modes[i];
	int is_sync = !strcmp(name, "sync"), is_idle = !strcmp(name, "idle"), is_init = !strcmp(name, "init");
	if (!mode && !is_init && (!(is_sync || is_idle) || argc < 3)) {
		fprintf(stderr, "acp: see the head of acp.c\n");
		return 2;
	}
	pin_rank();
	uint64_t begin = now_ns();
	if (acp_init(&argc, &argv))
		return 1;
	double init = (double)(now_ns() - begin) / 1e6;
	who_am_i();
	for (int i = 2; i < argc; i++)
		longest = strtoul(argv[i], NULL, 10) > longest ? strtoul(argv[i], NULL, 10) : longest;
	if (mode) {
		accesses(mode, longest, argv + 2);
	} else if (is_idle) {
		idle((unsigned)atoi(argv[2]));
	} else if (is_init && rank == 0) {
		printf("%.3f ", init);
	} else if (is_sync) {
		size_t count = 0;
		sscanf(argv[2], "%*u:%zu", &count);
		/* All ranks take part, and only one may speak. */
		if (rank != 0 && !freopen("/dev/null", "w", stdout))
			die("/dev/null");
		measure(synchronize, 0, count);
	}
	if (rank == 0)
		printf("\n");
	fflush(stdout);
	return acp_finalize() ? 1 : 0;
}
