/*
 * MPI as the OSU micro-benchmarks measure it, on malloc'd memory; two ranks.
 *
 *   mpi put|get|fetch-add|put-bw CPU CPU SIZE:COUNT...   ns of an operation and its flush, or MiB/s, for each size
 *   mpi lat|bw CPU CPU SIZE:COUNT...                     ns of half a ping-pong, or MiB/s of messages, for each size
 *
 * One-sided (windows by MPI_Win_create), rank 0 works, under MPI_Win_lock_all; rank 1 waits in MPI_Barrier, so that its
 * library makes progress. Batches, warm-up and windows of 64 as in onesided.c, which does the same with verbs.
 */
#define _GNU_SOURCE
#include "clock.h"

#include <mpi.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>

enum { WINDOW = 64, TARGET = 1 };

static MPI_Win win;
static char *local;

static void start(const char *mode, size_t size)
{
	static uint64_t one = 1;
	int count = (int)size;
	if (*mode == 'p')
		MPI_Put(local, count, MPI_CHAR, TARGET, 0, count, MPI_CHAR, win);
	else if (*mode == 'g')
		MPI_Get(local, count, MPI_CHAR, TARGET, 0, count, MPI_CHAR, win);
	else
		MPI_Fetch_and_op(&one, local, MPI_UINT64_T, TARGET, 0, MPI_SUM, win);
}

static double latency(const char *mode, size_t size, size_t count)
{
	size_t per_batch = batch_of(size), batches = (count + per_batch - 1) / per_batch;
	double *samples = calloc(batches, sizeof *samples);
	for (size_t j = 0; j < per_batch; j++) /* warm-up */
		start(mode, size), MPI_Win_flush(TARGET, win);
	for (size_t i = 0; i < batches; i++) {
		uint64_t begin = now_ns();
		for (size_t j = 0; j < per_batch; j++)
			start(mode, size), MPI_Win_flush(TARGET, win);
		samples[i] = (double)(now_ns() - begin) / (double)per_batch;
	}
	double result = median(samples, batches);
	free(samples);
	return result;
}

static double bandwidth(const char *mode, size_t size, size_t count)
{
	size_t windows = (count + WINDOW - 1) / WINDOW;
	uint64_t begin = 0;
	for (size_t i = 0; i <= windows; i++) {
		if (i == 1) /* the first was the warm-up */
			begin = now_ns();
		for (size_t j = 0; j < WINDOW; j++)
			start(mode, size);
		MPI_Win_flush(TARGET, win);
	}
	return (double)(windows * WINDOW * size) / 1048576.0 / ((double)(now_ns() - begin) / 1e9);
}

static void ping_pong(int rank, size_t size)
{
	for (int turn = 0; turn < 2; turn++)
		if (turn == rank)
			MPI_Send(local, (int)size, MPI_CHAR, !rank, 1, MPI_COMM_WORLD);
		else
			MPI_Recv(local, (int)size, MPI_CHAR, !rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static double half_round_trip(int rank, size_t size, size_t count)
{
	size_t per_batch = batch_of(size), batches = (count + per_batch - 1) / per_batch;
	double *samples = calloc(batches, sizeof *samples);
	for (size_t i = 0; i <= batches; i++) { /* the first is the warm-up */
		uint64_t begin = now_ns();
		for (size_t j = 0; j < per_batch; j++)
			ping_pong(rank, size);
		if (i > 0)
			samples[i - 1] = (double)(now_ns() - begin) / 2.0 / (double)per_batch;
	}
	double result = median(samples, batches);
	free(samples);
	return result;
}

static double stream(int rank, size_t size, size_t count)
{
	MPI_Request requests[WINDOW];
	size_t windows = (count + WINDOW - 1) / WINDOW;
	uint64_t begin = 0;
	for (size_t i = 0; i <= windows; i++) {
		if (i == 1) /* the first was the warm-up */
			begin = now_ns();
		for (int j = 0; j < WINDOW; j++)
			if (rank == TARGET)
				MPI_Irecv(local, (int)size, MPI_CHAR, !rank, 2, MPI_COMM_WORLD, &requests[j]);
			else
				MPI_Isend(local, (int)size, MPI_CHAR, !rank, 2, MPI_COMM_WORLD, &requests[j]);
		MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
		if (rank == TARGET)
			MPI_Send(NULL, 0, MPI_CHAR, !rank, 3, MPI_COMM_WORLD);
		else
			MPI_Recv(NULL, 0, MPI_CHAR, !rank, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	}
	return (double)(windows * WINDOW * size) / 1048576.0 / ((double)(now_ns() - begin) / 1e9);
}

/* Messages: both ranks work. */
static void messages(const char *mode, int rank, char **sizes)
{
	for (; *sizes; sizes++) {
		size_t size, count;
		sscanf(*sizes, "%zu:%zu", &size, &count);
		double result = (*mode == 'l' ? half_round_trip : stream)(rank, size, count);
		if (rank != TARGET)
			printf("%.3f ", result);
	}
	if (rank != TARGET)
		printf("\n");
	fflush(stdout);
}

/* The rank, as the launchers tell it before MPI_Init, which may start threads. */
static int rank_from_launcher(void)
{
	const char *names[] = { "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK" };
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (getenv(names[i]))
			return atoi(getenv(names[i]));
	return 0;
}

int main(int argc, char **argv)
{
	size_t longest = 4096;
	int rank, ranks;
	void *memory = NULL;
	if (argc < 5) {
		fprintf(stderr, "mpi: see the head of mpi.c\n");
		return 2;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	pin(atoi(argv[2 + (rank_from_launcher() == TARGET)]));
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (int i = 4; i < argc; i++)
		longest = strtoul(argv[i], NULL, 10) > longest ? strtoul(argv[i], NULL, 10) : longest;
	if (ranks != 2 || posix_memalign(&memory, 4096, longest) || posix_memalign((void **)&local, 4096, longest))
		MPI_Abort(MPI_COMM_WORLD, 1);
	memset(memory, 1, longest);
	memset(local, 1, longest);
	if (!strcmp(argv[1], "lat") || !strcmp(argv[1], "bw")) {
		messages(argv[1], rank, argv + 4);
		MPI_Finalize();
		return 0;
	}
	MPI_Win_create(memory, (MPI_Aint)longest, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
	if (rank != TARGET) {
		MPI_Win_lock_all(0, win);
		for (int i = 4; i < argc; i++) {
			size_t size, count;
			sscanf(argv[i], "%zu:%zu", &size, &count);
			int streams = strstr(argv[1], "-bw") != NULL;
			printf("%.3f ", (streams ? bandwidth : latency)(argv[1], size, count));
		}
		printf("\n");
		fflush(stdout);
		MPI_Win_unlock_all(win);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_free(&win);
	MPI_Finalize();
	return 0;
}
