/*
 * What the OSU micro-benchmarks measure of MPI, among any number of ranks.
 *
 *   ranks lat SIZE:COUNT...                    ns of half a ping-pong, of ranks 0 and 1
 *   ranks bw SIZE:COUNT...                     ns of a message in COUNT windows of 64, all pairs together: from each rank of
 *                                              the first half to one of the second
 *   ranks put|get|fetch-add|swap SIZE:COUNT... ns of an operation and its flush; on a window of MPI_Win_allocate
 *   ranks put-bw SIZE:COUNT...                 ns of a put in COUNT windows of 64, with their flush
 *   ranks put-created|... SIZE:COUNT...        the same on a window of MPI_Win_create over malloc'd memory
 *   ranks barrier|allreduce|alltoall SIZE:COUNT...
 *   ranks cost SIZE:COUNT                      of the ping-pongs: switches of context and page faults per 1,000 messages;
 *                                              then MPI_Init in ms, and the PSS and private memory of a rank in KiB
 *
 * For each size it prints the mean and the median of batches, of rank 0; collectives the mean over the ranks. A batch is of
 * 20, or of as many as SIZE:COUNT:BATCH says. One-sided operations are rank 0's, under MPI_Win_lock_all; the others wait in
 * MPI_Barrier, so that their libraries make progress. A rank runs where the environment's RANKS_CPUS, a list, says; without
 * it anywhere.
 */
#define _GNU_SOURCE
#include "clock.h"

#include <mpi.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>

enum { WINDOW = 64, PER_BATCH = 20 };

static int rank, ranks;
static char *local, *remote;
static MPI_Win win = MPI_WIN_NULL;

static void ping_pong(size_t size)
{
	for (int turn = 0; turn < 2; turn++)
		if (turn == rank)
			MPI_Send(local, (int)size, MPI_CHAR, !rank, 1, MPI_COMM_WORLD);
		else if (rank < 2)
			MPI_Recv(remote, (int)size, MPI_CHAR, !rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void window_of_messages(size_t size)
{
	MPI_Request requests[WINDOW];
	int pairs = ranks / 2, receives = rank >= pairs, peer = receives ? rank - pairs : rank + pairs;
	for (int j = 0; j < WINDOW; j++)
		if (receives)
			MPI_Irecv(remote, (int)size, MPI_CHAR, peer, 2, MPI_COMM_WORLD, &requests[j]);
		else
			MPI_Isend(local, (int)size, MPI_CHAR, peer, 2, MPI_COMM_WORLD, &requests[j]);
	MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
	if (receives)
		MPI_Send(NULL, 0, MPI_CHAR, peer, 3, MPI_COMM_WORLD);
	else
		MPI_Recv(NULL, 0, MPI_CHAR, peer, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void put(size_t size)
{
	MPI_Put(local, (int)size, MPI_CHAR, 1, 0, (int)size, MPI_CHAR, win);
	MPI_Win_flush(1, win);
}

static void window_of_puts(size_t size)
{
	for (int j = 0; j < WINDOW; j++)
		MPI_Put(local, (int)size, MPI_CHAR, 1, 0, (int)size, MPI_CHAR, win);
	MPI_Win_flush(1, win);
}

static void get(size_t size)
{
	MPI_Get(local, (int)size, MPI_CHAR, 1, 0, (int)size, MPI_CHAR, win);
	MPI_Win_flush(1, win);
}

static void fetch_add(size_t size)
{
	static uint64_t one = 1;
	(void)size;
	MPI_Fetch_and_op(&one, local, MPI_UINT64_T, 1, 0, MPI_SUM, win);
	MPI_Win_flush(1, win);
}

static void swap(size_t size)
{
	static uint64_t one = 1, zero = 0;
	(void)size;
	MPI_Compare_and_swap(&one, &zero, local, MPI_UINT64_T, 1, 0, win);
	MPI_Win_flush(1, win);
}

static void barrier(size_t size)
{
	(void)size;
	MPI_Barrier(MPI_COMM_WORLD);
}

static void allreduce(size_t size)
{
	int count = (int)(size < sizeof(double) ? 1 : size / sizeof(double));
	MPI_Allreduce(local, remote, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

static void alltoall(size_t size)
{
	MPI_Alltoall(local, (int)size, MPI_CHAR, remote, (int)size, MPI_CHAR, MPI_COMM_WORLD);
}

struct mode {
	const char *name;
	void (*once)(size_t size);
	double parts; /* what is counted, in one call */
	enum { MESSAGES, ONE_SIDED, COLLECTIVE } kind; /* of ranks 0 and 1, at rank 0, of all */
};

static const struct mode modes[] = {
	{ "lat", ping_pong, 2, MESSAGES },	   { "bw", window_of_messages, WINDOW, COLLECTIVE },
	{ "cost", ping_pong, 2, MESSAGES },	   { "put", put, 1, ONE_SIDED },
	{ "get", get, 1, ONE_SIDED },		   { "fetch-add", fetch_add, 1, ONE_SIDED },
	{ "swap", swap, 1, ONE_SIDED },		   { "barrier", barrier, 1, COLLECTIVE },
	{ "allreduce", allreduce, 1, COLLECTIVE }, { "alltoall", alltoall, 1, COLLECTIVE },
	{ "put-bw", window_of_puts, WINDOW, ONE_SIDED },
};

static const struct mode *mode_of(const char *name)
{
	for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
		size_t length = strlen(modes[i].name);
		if (!strncmp(modes[i].name, name, length) && (!name[length] || !strcmp(name + length, "-created")))
			return &modes[i];
	}
	fprintf(stderr, "ranks: see the head of ranks.c\n");
	exit(2);
}

/* Runs `count` calls, prints what one part takes. */
static void measure(const struct mode *mode, size_t size, size_t count, size_t per_batch)
{
	size_t batches = (count + per_batch - 1) / per_batch;
	double parts = mode->parts * (mode->once == window_of_messages ? ranks / 2 : 1);
	double *samples = calloc(batches, sizeof *samples), sum = 0, mean, middle;
	for (size_t i = 0; i <= batches; i++) { /* the first is the warm-up */
		if (i == 1 && mode->kind == COLLECTIVE)
			MPI_Barrier(MPI_COMM_WORLD);
		uint64_t begin = now_ns();
		for (size_t j = 0; j < per_batch; j++)
			mode->once(size);
		if (i > 0)
			sum += samples[i - 1] = (double)(now_ns() - begin) / (double)per_batch / parts;
	}
	mean = sum / (double)batches;
	middle = median(samples, batches);
	if (mode->kind == COLLECTIVE) {
		double mine[2] = { mean, middle }, all[2];
		MPI_Reduce(mine, all, 2, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
		mean = all[0] / ranks, middle = all[1] / ranks;
	}
	if (rank == 0)
		printf("%.1f %.1f ", mean, middle);
	free(samples);
}

static void print_memory(void)
{
	char line[256];
	FILE *file = fopen("/proc/self/smaps_rollup", "r");
	double pss = 0, private = 0, kib;
	while (file && fgets(line, sizeof line, file)) {
		if (sscanf(line, "Pss: %lf", &kib) == 1)
			pss = kib;
		if (sscanf(line, "Private_%*[^:]: %lf", &kib) == 1)
			private += kib;
	}
	if (file)
		fclose(file);
	printf("%.0f %.0f ", pss, private);
}

static void print_cost(const struct mode *mode, size_t size, size_t count, double init)
{
	struct rusage before, after;
	getrusage(RUSAGE_SELF, &before);
	for (size_t i = 0; i < count; i++)
		mode->once(size);
	getrusage(RUSAGE_SELF, &after);
	double thousands = (double)count * 2 / 1000;
	if (rank == 0) {
		printf("%.2f ", (double)(after.ru_nvcsw - before.ru_nvcsw) / thousands);
		printf("%.2f ", (double)(after.ru_nivcsw - before.ru_nivcsw) / thousands);
		printf("%.2f ", (double)(after.ru_minflt - before.ru_minflt) / thousands);
		printf("%.1f ", init);
		print_memory();
	}
}

/* The rank, as the launchers tell it before MPI_Init, which may start threads; and its CPU. */
static void pin_rank(void)
{
	const char *names[] = { "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK" }, *cpus = getenv("RANKS_CPUS");
	int mine = 0;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (getenv(names[i]))
			mine = atoi(getenv(names[i]));
	for (; cpus && mine > 0; mine--)
		cpus = strchr(cpus, ',') ? strchr(cpus, ',') + 1 : NULL;
	if (cpus)
		pin(atoi(cpus));
}

int main(int argc, char **argv)
{
	size_t longest = 8, size, count;
	void *memory;
	if (argc < 3) {
		fprintf(stderr, "ranks: see the head of ranks.c\n");
		return 2;
	}
	const struct mode *mode = mode_of(argv[1]);
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	pin_rank();
	uint64_t begin = now_ns();
	MPI_Init(&argc, &argv);
	double init = (double)(now_ns() - begin) / 1e6;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (int i = 2; i < argc; i++)
		longest = strtoul(argv[i], NULL, 10) > longest ? strtoul(argv[i], NULL, 10) : longest;
	longest *= mode->once == alltoall ? (size_t)ranks : 1;
	if (posix_memalign((void **)&local, 4096, longest) || posix_memalign((void **)&remote, 4096, longest) ||
	    posix_memalign(&memory, 4096, longest))
		MPI_Abort(MPI_COMM_WORLD, 1);
	memset(local, 1, longest);
	memset(remote, 1, longest);
	memset(memory, 0, longest);
	if (mode->kind == ONE_SIDED && strstr(argv[1], "-created"))
		MPI_Win_create(memory, (MPI_Aint)longest, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
	else if (mode->kind == ONE_SIDED)
		MPI_Win_allocate((MPI_Aint)longest, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &win);
	if (win != MPI_WIN_NULL && rank == 0)
		MPI_Win_lock_all(0, win);
	for (int i = 2; i < argc; i++) {
		size_t per_batch = PER_BATCH;
		if (sscanf(argv[i], "%zu:%zu:%zu", &size, &count, &per_batch) < 2 || !per_batch)
			MPI_Abort(MPI_COMM_WORLD, 2);
		if (mode->kind == MESSAGES && rank > 1)
			continue;
		if (mode->kind == ONE_SIDED && rank > 0)
			continue;
		if (!strcmp(mode->name, "cost"))
			print_cost(mode, size, count, init);
		else
			measure(mode, size, count, per_batch);
	}
	if (win != MPI_WIN_NULL && rank == 0)
		MPI_Win_unlock_all(win);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		printf("\n");
	if (win != MPI_WIN_NULL)
		MPI_Win_free(&win);
	MPI_Finalize();
	return 0;
}
