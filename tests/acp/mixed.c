/* An MPI program that calls acp_init too: both number the ranks alike, and traffic of both goes on at the same time. */
#include "at.h"

#include <mpi.h>

#define SIZE ((size_t)1 << 20)

int main(int argc, char **argv) {
	/* Either may be first. */
	bool acp_first = argc > 1 && strcmp(argv[1], "acp-first") == 0;
	if (acp_first)
		at_begin(&argc, &argv);
	MPI_Init(&argc, &argv);
	if (!acp_first)
		at_begin(&argc, &argv);
	int rank, size;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	AT_MUST(rank == at_rank && size == at_procs, "rank %d of %d is %d of %d to ACP", rank, size, at_rank, at_procs);
	struct at_region r = at_region(2 * SIZE);
	unsigned char *message = (unsigned char *)malloc(2 * SIZE);
	acp_ga_t all[AT_MAX];
	/* Addresses can be told by MPI as well. */
	uint64_t ga = r.ga;
	MPI_Allgather(&ga, 1, MPI_UINT64_T, all, 1, MPI_UINT64_T, MPI_COMM_WORLD);
	int next = (rank + 1) % size, before = (rank + size - 1) % size;
	for (unsigned round = 1; round <= 10; round++) {
		at_fill(r.at, SIZE, rank, round);
		at_fill(message, SIZE, rank, 100 + round);
		at_sync();
		MPI_Request requests[2];
		MPI_Irecv(message + SIZE, (int)SIZE, MPI_BYTE, before, 0, MPI_COMM_WORLD, &requests[0]);
		acp_handle_t h = acp_copy(all[next] + SIZE, r.ga, SIZE, AT_NULL);
		MPI_Isend(message, (int)SIZE, MPI_BYTE, next, 0, MPI_COMM_WORLD, &requests[1]);
		acp_complete(h);
		MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
		MPI_Barrier(MPI_COMM_WORLD);
		AT_CHECK(at_differs(r.at + SIZE, SIZE, before, round) == SIZE, "round %u: by ACP", round);
		AT_CHECK(at_differs(message + SIZE, SIZE, before, 100 + round) == SIZE, "round %u: by MPI", round);
		int sum = 0;
		MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
		AT_CHECK(sum == size * (size - 1) / 2, "round %u: a sum of %d", round, sum);
	}
	free(message);
	at_sync();
	AT_CHECK(acp_finalize() == 0, "%s", at_why());
	MPI_Finalize();
	return at_verdict();
}
