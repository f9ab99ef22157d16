/*
 * A hash table in windows of one-sided MPI, as one writes it by hand: places of a key and a value, both of 8 B, open addressing over
 * the memory of all ranks. An insert is a compare and swap of the key's place, and a put of the value.
 *
 *   rma_map COUNT CPU...   millions of inserts a second of COUNT different keys by all ranks, which have the CPUs in turn
 */
#define _GNU_SOURCE
#include "clock.h"

#include <mpi.h>

static uint64_t scatter(uint64_t number)
{
	return (number + 1) * 0x9e3779b97f4a7c15u;
}

int main(int argc, char **argv)
{
	int rank, ranks;
	size_t count = argc > 1 ? strtoul(argv[1], NULL, 10) : 0;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (argc > 2)
		pin(atoi(argv[2 + rank % (argc - 2)]));
	uint64_t share = count / (size_t)ranks, places = 1, *table, key, value = 1, found, none = 0;
	while (places < 2 * share)
		places *= 2;
	MPI_Win win;
	MPI_Win_allocate((MPI_Aint)(16 * places), 1, MPI_INFO_NULL, MPI_COMM_WORLD, &table, &win);
	for (uint64_t i = 0; i < 2 * places; i++)
		table[i] = 0;
	/* Open MPI 4.1 has no endpoint for atomics before. */
	uint64_t all_to[256] = {0}, all_from[256];
	MPI_Alltoall(all_to, 1, MPI_UINT64_T, all_from, 1, MPI_UINT64_T, MPI_COMM_WORLD);
	MPI_Win_lock_all(0, win);
	MPI_Barrier(MPI_COMM_WORLD);
	uint64_t begin = now_ns();
	for (uint64_t i = share * (uint64_t)rank; i < share * ((uint64_t)rank + 1); i++) {
		key = scatter(i);
		int owner = (int)(key % (uint64_t)ranks);
		for (uint64_t at = key / (uint64_t)ranks;; at++) {
			MPI_Aint place = (MPI_Aint)(16 * (at % places));
			MPI_Compare_and_swap(&key, &none, &found, MPI_UINT64_T, owner, place, win);
			MPI_Win_flush(owner, win);
			if (found == none) {
				MPI_Put(&value, 8, MPI_CHAR, owner, place + 8, 8, MPI_CHAR, win);
				MPI_Win_flush(owner, win);
			}
			if (found == none || found == key)
				break;
		}
	}
	MPI_Barrier(MPI_COMM_WORLD);
	double took = (double)(now_ns() - begin) / 1e9;
	MPI_Win_unlock_all(win);
	uint64_t made = 0, all = 0;
	for (uint64_t i = 0; i < places; i++)
		made += table[2 * i] != 0 && table[2 * i + 1] == value;
	MPI_Reduce(&made, &all, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%.6f\n", (double)all / took / 1e6);
	MPI_Win_free(&win);
	MPI_Finalize();
	return rank == 0 && all != share * (uint64_t)ranks;
}
