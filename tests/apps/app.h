/* What the kernels share: the command line, memory, the clock, pseudo-random numbers, the line that says how
 * it went.
 *
 *   KERNEL [SIZE [ITERATIONS [unchecked] [every=N] [stay=FILE]]]
 *
 * Each works on the whole of MPI_COMM_WORLD and times that; then rank 0 does the same alone, over MPI_COMM_SELF, and
 * compares every number. `unchecked` leaves that out, for measurements of sizes that take long. With `every`, rank 0
 * prints how far it is after each N iterations. With `stay`, nothing ends while FILE is there, on a machine of any
 * speed: rank 0 sleeps before it says that the last of them is done. The status is 0 if nothing differed. */
#ifndef APP_H
#define APP_H

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A size by name: what n[] holds is said by the kernel. */
struct size {
	const char *name;
	int n[3];
	int iterations;
};

struct app {
	int rank, ranks;
	const struct size *size;
	int iterations;
	int checked;
	int every;
	const char *stay;
};

_Noreturn static inline void refuse(const char *why)
{
	fprintf(stderr, "%s\n", why);
	MPI_Abort(MPI_COMM_WORLD, 2);
	abort();
}

/* The first of the sizes is what runs without an argument. */
static inline struct app app_start(int argc, char **argv, const struct size *sizes, int count)
{
	struct app app = { .size = &sizes[0], .checked = 1 };
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &app.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &app.ranks);
	if (argc > 1) {
		int i = 0;
		while (i < count && strcmp(argv[1], sizes[i].name))
			i++;
		if (i == count)
			refuse("no such size");
		app.size = &sizes[i];
	}
	app.iterations = argc > 2 ? atoi(argv[2]) : app.size->iterations;
	if (app.iterations < 1)
		refuse("iterations: 1 or more");
	for (int i = 3; i < argc; i++) {
		if (!strcmp(argv[i], "unchecked"))
			app.checked = 0;
		else if (!strncmp(argv[i], "stay=", 5))
			app.stay = argv[i] + 5;
		else if (sscanf(argv[i], "every=%d", &app.every) != 1 || app.every < 1)
			refuse("arguments behind the iterations: `unchecked`, `every=N`, `stay=FILE`");
	}
	return app;
}

/* After an iteration, counted from 1: prints a number by which results are compared. */
static inline void app_step(const struct app *app, int iteration, double number)
{
	if (app->rank != 0)
		return;
	if (app->stay && iteration == app->iterations)
		while (access(app->stay, F_OK) == 0)
			nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
	if (!app->every || iteration % app->every)
		return;
	printf("%d %.17g\n", iteration, number);
	fflush(stdout);
}

/* Prints, at rank 0, kernel, size, ranks, the longest time of all ranks and what `numbers` says; ends MPI. */
static inline int app_end(const struct app *app, const char *kernel, double seconds, const char *numbers, int ok)
{
	int all = ok;
	MPI_Allreduce(&ok, &all, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
	if (app->rank == 0)
		printf("%s %s %d ranks: %.6f s, %s %s\n", kernel, app->size->name, app->ranks, seconds, numbers,
		       !all ? "MISMATCH" : app->checked ? "ok" : "unchecked");
	MPI_Finalize();
	return !all;
}

static inline void *room(size_t bytes)
{
	void *p = malloc(bytes ? bytes : 1);
	if (!p)
		refuse("no memory");
	return p;
}

static inline double longest(double seconds, MPI_Comm comm)
{
	double most = seconds;
	MPI_Allreduce(&seconds, &most, 1, MPI_DOUBLE, MPI_MAX, comm);
	return most;
}

/* Part `which` of `parts` of n things: where it begins. The parts differ by one at most. */
static inline int part(int n, int parts, int which)
{
	return (int)((int64_t)n * which / parts);
}

/* The linear congruential generator of the NAS Parallel Benchmarks' report (RNR-94-007, 2.3): x' = 5^13 x mod 2^46,
 * from 314159265 on; a number in [0, 1) is x / 2^46. Products modulo 2^64 are exact modulo 2^46. */
#define LCG_FACTOR 1220703125u
#define LCG_SEED 314159265u
#define LCG_MASK ((UINT64_C(1) << 46) - 1)

static inline double lcg_next(uint64_t *x)
{
	*x = *x * LCG_FACTOR & LCG_MASK;
	return (double)*x * 0x1p-46;
}

/* The state from which lcg_next gives number n of the sequence, the first being number 0. */
static inline uint64_t lcg_at(uint64_t n)
{
	uint64_t x = LCG_SEED;
	for (uint64_t factor = LCG_FACTOR; n; n >>= 1, factor = factor * factor & LCG_MASK)
		if (n & 1)
			x = x * factor & LCG_MASK;
	return x;
}

#endif
