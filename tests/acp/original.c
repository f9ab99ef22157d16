/* A program as it was written for ACP 3.0.0: it includes what the original's header relies on, links by the original's names, takes
 * its launcher's arguments, and has functions and data of its own by names that the original's basic layer wants from it. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <acp.h>

size_t iacp_starter_memory_size_dl = 1024;
size_t iacp_starter_memory_size_cl = 1024;

int iacp_init_dl(void);
int iacp_finalize_dl(void);
void iacp_abort_dl(void);
int iacp_init_cl(void);
int iacp_finalize_cl(void);
void iacp_abort_cl(void);

static int called;

int iacp_init_dl(void) { return called++; }
int iacp_finalize_dl(void) { return called++; }
void iacp_abort_dl(void) { called++; }
int iacp_init_cl(void) { return called++; }
int iacp_finalize_cl(void) { return called++; }
void iacp_abort_cl(void) { called++; }

int main(int argc, char **argv) {
	int rank, procs, peer;
	acp_ga_t mine, other;
	acp_handle_t handle;
	volatile uint64_t *starter;

	if (acp_init(&argc, &argv) == -1)
		exit(1);
	if (argc != 3) {
		printf("FAIL %d arguments\n", argc);
		exit(1);
	}
	rank = acp_rank();
	procs = acp_procs();
	peer = (rank + 1) % procs;
	mine = acp_query_starter_ga(rank);
	other = acp_query_starter_ga(peer);
	starter = (volatile uint64_t *)acp_query_address(mine);
	starter[0] = (uint64_t)rank + 1;
	acp_sync();
	handle = acp_copy(other + 8, mine, 8, ACP_HANDLE_NULL);
	handle = acp_copy(mine + 16, other + 8, 8, handle);
	handle = acp_add8(mine + 24, mine, 10, ACP_HANDLE_ALL);
	handle = acp_copy(mine + 32, mine, 8, ACP_HANDLE_CONT);
	while (acp_inquire(handle) != 0)
		;
	acp_complete(ACP_HANDLE_ALL);
	acp_sync();
	if (starter[1] != (uint64_t)((rank + procs - 1) % procs) + 1 || starter[2] != (uint64_t)rank + 1 ||
		starter[3] != (uint64_t)rank + 1 || starter[4] != (uint64_t)rank + 11 || called != 0) {
		printf("FAIL rank %d: %lu %lu %lu %lu, called %d\n", rank, (unsigned long)starter[1], (unsigned long)starter[2],
			(unsigned long)starter[3], (unsigned long)starter[4], called);
		exit(1);
	}
	acp_sync();
	acp_finalize();
	printf("OK rank %d\n", rank);
	return 0;
}
