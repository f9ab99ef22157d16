/* acp_reset with permutations, and starter memory, which is zero after it and after acp_init. */
#include "at.h"

static bool is_zero(size_t size) {
	return at_all_are((unsigned char *)(void *)at_starter(0), size, 0);
}

/* Data from each rank to each, by third parties too. */
static void everything_works(unsigned round) {
	enum { SIZE = 20000 };
	struct at_region from = at_region(SIZE), to = at_region((size_t)at_procs * SIZE);
	acp_ga_t sources[AT_MAX], targets[AT_MAX];
	at_fill(from.at, SIZE, at_rank, round);
	at_exchange(0, from.ga, sources);
	at_exchange(1, to.ga, targets);
	int target = (at_rank + 1) % at_procs;
	for (int s = 0; s < at_procs; s++)
		AT_CHECK(acp_copy(targets[target] + (acp_ga_t)s * SIZE, sources[s], SIZE, AT_CONT) >= 1, "%s", at_why());
	acp_complete(AT_ALL);
	acp_ga_t count = acp_query_starter_ga(0) + AT_FREE;
	acp_complete(acp_add8(acp_query_starter_ga(at_rank) + AT_LANDING, count, 1, AT_NULL));
	at_sync();
	for (int s = 0; s < at_procs; s++)
		AT_CHECK(at_differs(to.at + (size_t)s * SIZE, SIZE, s, round) == SIZE, "round %u: from rank %d", round, s);
	AT_CHECK(at_load(count) == (uint64_t)at_procs, "round %u: rank 0 has counted %" PRIu64, round, at_load(count));
	at_sync();
	/* `from` stays registered: a reset frees it. */
	at_free(to);
	*at_starter(1016) = round;
	at_sync();
}

static int new_number(int kind) {
	switch (kind) {
	case 0: return at_rank;                  /* identity */
	case 1: return at_procs - 1 - at_rank;   /* reversed */
	case 2: return (at_rank + 1) % at_procs; /* rotated */
	default: return at_rank < 2 && at_procs > 1 ? 1 - at_rank : at_rank; /* two change places */
	}
}

static void impossible_numbers(void) {
	/* A channel that is open across what is refused, from each rank to the next. */
	int right = (at_rank + 1) % at_procs, left = (at_rank + at_procs - 1) % at_procs, word = at_rank;
	acp_ch_t to = at_procs > 1 ? acp_create_ch(at_rank, right) : NULL, from = at_procs > 1 ? acp_create_ch(left, at_rank) : NULL;
	AT_CHECK(acp_reset(-1) == -1, "there is a rank -1");
	AT_CHECK(acp_reset(at_procs) == -1, "there is a rank %d", at_procs);
	AT_CHECK(acp_reset(2147483647) == -1, "there is the last of all ranks");
	AT_CHECK(acp_error() && strstr(acp_error(), "acp_reset: "), "%s", at_why());
	AT_CHECK(acp_rank() == at_rank && acp_procs() == at_procs, "it has had an effect");
	if (at_procs > 1) {
		AT_CHECK(acp_send_ch(to, &word, sizeof word) == 0, "%s", at_why());
		AT_CHECK(acp_recv_ch(from, &word, sizeof word) == (int)sizeof word && word == left, "%d of rank %d: %s", word, left, at_why());
		acp_request_t ends[2] = {acp_nbfree_ch(to), acp_nbfree_ch(from)};
		AT_CHECK(acp_waitall_ch(ends, 2, NULL) == 0, "%s", at_why());
	}
}

int main(int argc, char **argv) {
	at_begin(&argc, &argv);
	AT_CHECK(is_zero(1024), "starter memory is not zero after acp_init");
	at_sync();
	everything_works(1);
	impossible_numbers();
	for (int kind = 0; kind < 4; kind++) {
		unsigned char memory[64];
		acp_atkey_t key = acp_register_memory(memory, sizeof memory, 0);
		AT_CHECK(key != ACP_ATKEY_NULL, "%s", at_why());
		int number = new_number(kind), procs = at_procs;
		AT_MUST(acp_reset(number) == 0, "kind %d, number %d: %s", kind, number, at_why());
		at_number();
		AT_CHECK(at_rank == number && at_procs == procs, "kind %d: rank %d of %d, not %d", kind, at_rank, at_procs, number);
		AT_CHECK(is_zero(1024), "kind %d: starter memory is not zero after acp_reset", kind);
		AT_CHECK(acp_query_ga(key, memory) == ACP_GA_NULL, "kind %d: a key of before has an address", kind);
		AT_CHECK(acp_unregister_memory(key) == -1, "kind %d: it is unregistered", kind);
		AT_CHECK(acp_inquire(AT_ALL) == 0, "kind %d: something is not complete", kind);
		at_sync();
		everything_works(10 + (unsigned)kind);
	}
	return at_end();
}
