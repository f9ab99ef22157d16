/* An access that cannot be: the issue is refused, or the job ends with a sentence. Rank 0 makes it, as the argument says, on memory of
 * the last rank. */
#include "at.h"

#define SIZE 8192

int main(int argc, char **argv) {
	at_begin(&argc, &argv);
	const char *what = argc > 1 ? argv[1] : "";
	int owner = at_procs - 1;
	struct at_region r = at_region(SIZE);
	acp_ga_t all[AT_MAX];
	at_exchange(0, r.ga, all);
	acp_ga_t there = all[owner], here = r.ga;
	/* Rank 0 has been there, and may remember the region. */
	if (at_rank == 0)
		acp_complete(acp_copy(here, there, SIZE, AT_NULL));
	at_sync();
	if (strcmp(what, "unregistered") == 0 && at_rank == owner)
		AT_CHECK(acp_unregister_memory(r.key) == 0, "%s", at_why());
	if (strcmp(what, "duplicate") == 0) {
		if (acp_reset(0) == 0 && at_procs > 1)
			printf("FAIL rank %d: all are rank 0\n", at_rank);
		else
			printf("REFUSED %s\n", at_why());
		return 1;
	}
	at_sync();
	if (at_rank == 0) {
		printf("ADDRESS %#" PRIx64 "\n", there);
		fflush(stdout);
		acp_handle_t h = AT_NULL;
		if (strcmp(what, "get") == 0)
			h = acp_copy(here, there + SIZE - 100, 200, AT_NULL);
		else if (strcmp(what, "put") == 0)
			h = acp_copy(there + SIZE - 100, here, 200, AT_NULL);
		else if (strcmp(what, "third") == 0)
			h = acp_copy(all[at_procs / 2] + SIZE - 100, there, 200, AT_NULL);
		else if (strcmp(what, "far") == 0)
			h = acp_copy(here, there + (1 << 30), 8, AT_NULL);
		else if (strcmp(what, "add") == 0)
			h = acp_add8(here, there + SIZE, 1, AT_NULL);
		else if (strcmp(what, "unregistered") == 0)
			h = acp_copy(here, there, 8, AT_NULL);
		else
			AT_MUST(false, "'%s' is not one of the faults", what);
		if (h == AT_NULL) {
			printf("REFUSED %s\n", at_why());
			fflush(stdout);
			exit(1);
		}
		acp_complete(h);
		printf("FAIL %s is complete\n", what);
	}
	/* Where the job does not end, it hangs here no longer than the test waits. */
	acp_sync();
	acp_finalize();
	return 0;
}
