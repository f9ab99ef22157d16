/*
 * Heat in a rod, by ACP: each rank has a part of the cells, and puts its first and last one into its neighbors' memory at each step.
 * At the end rank 0 has all parts copied into the memory of the last rank, as a third party: it needs no memory of its own for them.
 *
 *   make && vervain launch -n 4 -- ./heat
 */
#include <acp.h>

#include <stdio.h>
#include <stdlib.h>

enum { CELLS = 100, STEPS = 2000 };

/* What a rank tells the others, at the beginning of its starter memory. */
struct told {
	acp_ga_t cells; /* its part of the rod, twice */
	acp_ga_t rod;   /* at the last rank: where the whole rod goes */
};

static int rank, ranks;

static void must(int holds, const char *what)
{
	if (!holds) {
		fprintf(stderr, "%s: %s\n", what, acp_error() ? acp_error() : "failed");
		acp_abort("heat cannot go on"); /* ends all ranks */
	}
}

/* The first cell of a rank; how many it has. */
static int first(int of)
{
	return (int)((long)CELLS * of / ranks);
}

static int count(int of)
{
	return first(of + 1) - first(of);
}

/* Where a cell of a rank lies in one of its two states of the rod: cell 0 and the one behind the last are its neighbors'. */
static size_t place(int of, int state, int cell)
{
	return ((size_t)state * (size_t)(count(of) + 2) + (size_t)cell) * sizeof(double);
}

/* Gets what a rank has told, into our starter memory behind what we tell. */
static struct told told_by(int other)
{
	acp_ga_t here = acp_query_starter_ga(rank) + sizeof(struct told);
	acp_handle_t get = acp_copy(here, acp_query_starter_ga(other), sizeof(struct told), ACP_HANDLE_NULL);
	must(get != ACP_HANDLE_NULL, "acp_copy");
	acp_complete(get); /* before that the memory may have anything */
	return *(struct told *)acp_query_address(here);
}

static acp_ga_t global(void *memory, size_t size)
{
	acp_atkey_t key = acp_register_memory(memory, size, 0);
	must(key != ACP_ATKEY_NULL, "acp_register_memory");
	return acp_query_ga(key, memory);
}

int main(int argc, char **argv)
{
	if (acp_init(&argc, &argv)) /* has said why */
		return 1;
	rank = acp_rank();
	ranks = acp_procs();
	int last = ranks - 1, own = count(rank);

	double *cells = calloc(2, (size_t)(own + 2) * sizeof(double)), *rod = calloc(CELLS, sizeof(double));
	must(cells && rod, "memory");
	if (rank == 0) /* the rod is held at 1 in front and at 0 behind */
		cells[place(0, 0, 0) / sizeof(double)] = cells[place(0, 1, 0) / sizeof(double)] = 1;

	struct told *mine = acp_query_address(acp_query_starter_ga(rank));
	mine->cells = global(cells, 2 * (size_t)(own + 2) * sizeof(double));
	mine->rod = rank == last ? global(rod, CELLS * sizeof(double)) : ACP_GA_NULL;
	must(!acp_sync(), "acp_sync"); /* all have told */
	acp_ga_t left = rank > 0 ? told_by(rank - 1).cells : ACP_GA_NULL;
	acp_ga_t right = rank < last ? told_by(rank + 1).cells : ACP_GA_NULL;

	for (int step = 0; step < STEPS; step++) {
		int state = step % 2;
		acp_ga_t from = mine->cells;
		/* Two puts that need no order; each says where the cell goes, where it is, and how many bytes. */
		if (rank > 0)
			acp_copy(left + place(rank - 1, state, count(rank - 1) + 1), from + place(rank, state, 1), sizeof(double),
				 ACP_HANDLE_NULL);
		if (rank < last)
			acp_copy(right + place(rank + 1, state, 0), from + place(rank, state, own), sizeof(double), ACP_HANDLE_NULL);
		/* A barrier waits for the ranks, not for their accesses: those have to be complete before. */
		acp_complete((acp_handle_t)ACP_HANDLE_ALL);
		must(!acp_sync(), "acp_sync");
		/* Neighbors may put the next state's edge meanwhile, which is in the other half: so one barrier a step is enough. */
		const double *old = cells + place(rank, state, 0) / sizeof(double);
		double *new = cells + place(rank, !state, 0) / sizeof(double);
		for (int i = 1; i <= own; i++)
			new[i] = old[i] + 0.25 * (old[i - 1] - 2 * old[i] + old[i + 1]);
	}
	must(!acp_sync(), "acp_sync"); /* all parts are ready */

	if (rank == 0) {
		acp_ga_t whole = told_by(last).rod;
		acp_handle_t copy = ACP_HANDLE_NULL;
		for (int r = 0; r < ranks; r++) {
			copy = acp_copy(whole + (size_t)first(r) * sizeof(double), told_by(r).cells + place(r, STEPS % 2, 1),
					(size_t)count(r) * sizeof(double), ACP_HANDLE_NULL);
			must(copy != ACP_HANDLE_NULL, "acp_copy");
		}
		acp_complete(copy); /* the last one, and with it all that were issued before */
	}
	must(!acp_sync(), "acp_sync");
	if (rank == last) {
		double sum = 0;
		int warm = 0;
		for (int i = 0; i < CELLS; i++) {
			sum += rod[i];
			warm += rod[i] > 0.1;
		}
		printf("heat: %d ranks, %d cells above 0.1, sum %.9f\n", ranks, warm, sum);
		fflush(stdout);
	}
	must(!acp_finalize(), "acp_finalize"); /* unregisters what is registered */
	free(cells);
	free(rod);
	return 0;
}
