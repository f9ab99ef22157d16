/* Every rank issues more accesses between two others than any queue holds, without waiting: all get through, whoever they wait for.
 * The arguments are how many small ones (20000) and how many large ones (1500) each rank issues. */
#include "at.h"

#define SPOTS 509
#define LARGE ((size_t)192 * 1024)
#define PLACES 8

static struct at_region from, to;
static acp_ga_t sources[AT_MAX], targets[AT_MAX];

/* What rank `issuer` copies: from the next to the one after that; of two ranks, within the other. */
static int source_of(int issuer) {
	return (issuer + 1) % at_procs;
}

static int target_of(int issuer) {
	return at_procs == 2 ? (issuer + 1) % 2 : (issuer + 2) % at_procs;
}

static int issuer_of_mine(void) {
	for (int r = 0; r < at_procs; r++)
		if (target_of(r) == at_rank)
			return r;
	return -1;
}

static void flood(const char *what, int count, size_t size, size_t places, unsigned round) {
	at_fill(from.at, size * places, at_rank, round);
	memset(to.at, 0, size * places);
	at_sync();
	acp_handle_t last = 0;
	for (int i = 0; i < count; i++) {
		/* Each place again and again: in turn, and the last time too, it gets the same. */
		acp_ga_t at = (acp_ga_t)(((size_t)i * 7) % places) * size;
		acp_handle_t h = acp_copy(targets[target_of(at_rank)] + at, sources[source_of(at_rank)] + at, size, AT_NULL);
		AT_MUST(h > last, "%s %d: %" PRId64 " after %" PRId64 ": %s", what, i, h, last, at_why());
		last = h;
	}
	acp_complete(last);
	at_sync();
	size_t wrong = at_differs(to.at, size * places, source_of(issuer_of_mine()), round);
	AT_CHECK(wrong == size * places, "%s: byte %zu of %zu", what, wrong, size * places);
	at_sync();
}

/* Accesses in both directions at once, each after all before it at times. */
static void mixed(int count) {
	acp_ga_t here = acp_query_starter_ga(at_rank) + AT_FREE;
	int next = (at_rank + 1) % at_procs;
	acp_ga_t word = acp_query_starter_ga(next) + AT_FREE + 64;
	acp_handle_t h = AT_NULL;
	for (int i = 0; i < count; i++) {
		acp_handle_t order = i % 97 == 0 ? AT_ALL : i % 5 == 0 ? AT_CONT : AT_NULL;
		switch (i % 4) {
		case 0: h = acp_copy(targets[target_of(at_rank)], sources[source_of(at_rank)], LARGE, order); break;
		case 1: h = acp_copy(here, sources[next] + 8, 8, order); break;
		case 2: h = acp_copy(targets[next] + LARGE, from.ga + LARGE, 100, order); break;
		default: h = acp_add8(here + 8, word, 1, order); break;
		}
		AT_MUST(h >= 1, "%d: %s", i, at_why());
	}
	acp_complete(AT_ALL);
	AT_CHECK(at_load(word) == (uint64_t)(count / 4), "%" PRIu64 " of %d were added", at_load(word), count / 4);
	at_sync();
}

int main(int argc, char **argv) {
	at_begin(&argc, &argv);
	int small = argc > 1 ? atoi(argv[1]) : 20000, large = argc > 2 ? atoi(argv[2]) : 1500;
	from = at_region(PLACES * LARGE);
	to = at_region(PLACES * LARGE);
	at_exchange(0, from.ga, sources);
	at_exchange(1, to.ga, targets);
	flood("small", small, 8, SPOTS, 1);
	flood("of a page", small / 4, 4096, PLACES, 2);
	flood("large", large, LARGE, PLACES, 3);
	mixed(4 * large);
	return at_end();
}
