/* A region of 20 GiB, of which a few pages exist: addresses beyond 16 GiB, and copies within it and between ranks. */
#include "at.h"

#define GIB ((size_t)1 << 30)

int main(int argc, char **argv) {
	static const size_t at[] = {0, 4 * GIB - 4, 16 * GIB - 4, 16 * GIB + 4096, 20 * GIB - 8};
	enum { PLACES = sizeof at / sizeof at[0] };
	at_begin(&argc, &argv);
	struct at_region r = at_region(20 * GIB);
	acp_ga_t all[AT_MAX];
	at_exchange(0, r.ga, all);
	AT_CHECK(acp_query_ga(r.key, r.at + 20 * GIB) == r.ga + 20 * GIB, "just behind the end");
	AT_CHECK(acp_query_ga(r.key, r.at + 20 * GIB + 1) == ACP_GA_NULL, "behind that");
	AT_CHECK(acp_query_address(r.ga + 17 * GIB) == r.at + 17 * GIB, "17 GiB");
	int next = (at_rank + 1) % at_procs, before = (at_rank + at_procs - 1) % at_procs;
	for (int i = 0; i < PLACES; i++)
		at_store(all[next] + at[i], 1000 * (uint64_t)(at_rank + 1) + (uint64_t)i);
	at_sync();
	for (int i = 0; i < PLACES; i++) {
		uint64_t word;
		memcpy(&word, r.at + at[i], 8);
		AT_CHECK(word == 1000 * (uint64_t)(before + 1) + (uint64_t)i, "place %d has %" PRIu64, i, word);
		uint64_t far = at_load(all[next] + at[i]);
		AT_CHECK(far == 1000 * (uint64_t)(at_rank + 1) + (uint64_t)i, "place %d of the next has %" PRIu64, i, far);
	}
	at_sync();
	at_free(r);
	return at_end();
}
