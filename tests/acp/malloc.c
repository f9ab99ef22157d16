/* Global allocation: every rank allocates and frees memory of every rank's. The argument says what of it: "sizes", "churn COUNT" with
 * a heap of one segment, "limit", "rejoin", "none", "huge", "twice", "twice large", "inside", "foreign", "kill", "speed COUNT". */
#include "at.h"

#include <signal.h>

enum { LARGEST = 6 << 20, HELD = 64 };

static const size_t sizes[] = {1, 8, 15, 16, 17, 100, 511, 512, 513, 4000, 16384, 16385, 100000, 524288, 524289, 2 << 20, LARGEST};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

static struct at_region buffer;

static uint64_t random_state;

static uint64_t at_random(uint64_t below) {
	random_state = random_state * 6364136223846793005ULL + 1442695040888963407ULL;
	return (random_state >> 33) % below;
}

static void put(acp_ga_t to, size_t size, int rank, unsigned round) {
	at_fill(buffer.at, size, rank, round);
	acp_handle_t h = acp_copy(to, buffer.ga, size, AT_NULL);
	AT_MUST(h != AT_NULL, "%s", at_why());
	acp_complete(h);
}

static void check(acp_ga_t from, size_t size, int rank, unsigned round) {
	memset(buffer.at, 0xee, size);
	acp_handle_t h = acp_copy(buffer.ga, from, size, AT_NULL);
	AT_MUST(h != AT_NULL, "%s", at_why());
	acp_complete(h);
	size_t at = at_differs(buffer.at, size, rank, round);
	AT_CHECK(at == size, "%zu B of rank %d, round %u: byte %zu has changed", size, rank, round, at);
}

static acp_ga_t must_malloc(size_t size, int rank) {
	acp_ga_t ga = acp_malloc(size, rank);
	AT_MUST(ga != ACP_GA_NULL, "%zu B of rank %d: %s", size, rank, at_why());
	AT_MUST(acp_query_rank(ga) == rank, "%zu B of rank %d are of rank %d", size, rank, acp_query_rank(ga));
	AT_CHECK(ga % 16 == 0 && (size < 512 || ga % 512 == 0), "%zu B at %#" PRIx64, size, ga);
	if (rank == at_rank)
		AT_CHECK(acp_query_address(ga) != NULL && (uintptr_t)acp_query_address(ga) % 16 == 0, "no address");
	return ga;
}

static void refused(size_t size, int rank, const char *why) {
	AT_CHECK(acp_malloc(size, rank) == ACP_GA_NULL, "%zu B of rank %d", size, rank);
	AT_CHECK(strstr(at_why(), why) != NULL, "%zu B of rank %d: %s", size, rank, at_why());
}

/* Blocks of all sizes on all ranks keep what is in them, beside each other; each is looked at and freed by the next rank. */
static void all_sizes(void) {
	static acp_ga_t blocks[AT_MAX][SIZES];
	refused(0, at_rank, "0 bytes");
	refused(8, -1, "there is no rank -1");
	refused(8, at_procs, "there is no rank");
	refused((size_t)-1, at_rank, "no memory left");
	acp_free(ACP_GA_NULL);
	struct at_region told = at_region(sizeof blocks);
	acp_ga_t all[AT_MAX];
	at_exchange(0, told.ga, all);
	for (unsigned round = 0; round < 3; round++) {
		for (int r = 0; r < at_procs; r++)
			for (int s = 0; s < SIZES; s++) {
				blocks[r][s] = must_malloc(sizes[s], r);
				put(blocks[r][s], sizes[s], at_rank * AT_MAX + r, round * SIZES + (unsigned)s);
			}
		memcpy(told.at, blocks, sizeof blocks);
		at_sync();
		int from = (at_rank + 1) % at_procs;
		acp_complete(acp_copy(buffer.ga, all[from], sizeof blocks, AT_NULL));
		memcpy(blocks, buffer.at, sizeof blocks);
		for (int r = 0; r < at_procs; r++)
			for (int s = 0; s < SIZES; s++) {
				check(blocks[r][s], sizes[s], from * AT_MAX + r, round * SIZES + (unsigned)s);
				acp_free(blocks[r][s]);
			}
		at_sync();
	}
}

/* Allocates and frees on rank 0, and looks now and then into what it has. */
static void churn(int count) {
	acp_ga_t held[HELD] = {0};
	size_t size[HELD];
	unsigned round[HELD];
	for (int i = 0; i < count; i++) {
		uint64_t slot = at_random(HELD);
		if (held[slot] != ACP_GA_NULL) {
			if (i % 16 == 0)
				check(held[slot], size[slot], at_rank, round[slot]);
			acp_free(held[slot]);
			held[slot] = ACP_GA_NULL;
			continue;
		}
		size[slot] = 1 + at_random(1ULL << (4 + at_random(6)));
		held[slot] = must_malloc(size[slot], 0);
		round[slot] = (unsigned)i;
		put(held[slot], size[slot] < 16 ? size[slot] : 16, at_rank, round[slot]);
		if (size[slot] > 16)
			put(held[slot], size[slot], at_rank, round[slot]);
	}
	for (int slot = 0; slot < HELD; slot++)
		if (held[slot] != ACP_GA_NULL) {
			check(held[slot], size[slot], at_rank, round[slot]);
			acp_free(held[slot]);
		}
}

/* The heap may have one segment of 512 KiB only, whose tree has a block of 31 units of 16 KiB. */
static void churn_in_one_segment(int count) {
	const size_t whole = 31 * (16 << 10);
	acp_ga_t ga = ACP_GA_NULL;
	for (int i = 0; i < 3; i++) {
		if (at_rank == at_procs - 1) {
			ga = must_malloc(whole, 0);
			refused(16 << 10, 0, "no memory left");
			acp_free(ga);
		}
		at_sync();
		if (i < 2)
			churn(count / 2);
		at_sync();
	}
}

/* Up to the heap's limit of 1 MiB, twice the same. */
static void limit(void) {
	static acp_ga_t blocks[1 << 17];
	const size_t size[] = {16, 600, 20000, 300000, 1000000};
	for (size_t s = 0; s < sizeof size / sizeof size[0]; s++) {
		size_t counts[2];
		for (int i = 0; i < 2; i++) {
			size_t n = 0;
			while (n < 1 << 17 && (blocks[n] = acp_malloc(size[s], at_rank)) != ACP_GA_NULL)
				n++;
			AT_CHECK(strstr(at_why(), "no memory left") != NULL, "%s", at_why());
			AT_CHECK(n * size[s] <= 1 << 20, "%zu blocks of %zu B", n, size[s]);
			counts[i] = n;
			while (n > 0)
				acp_free(blocks[--n]);
		}
		AT_CHECK(counts[0] == counts[1], "%zu blocks of %zu B, and then %zu", counts[0], size[s], counts[1]);
		AT_CHECK(s > 2 || counts[0] * size[s] > 3 << 17, "%zu blocks of %zu B", counts[0], size[s]);
	}
}

/* How many blocks of this size there are at a time, up to `most`. */
static size_t count_blocks(size_t size, int rank, size_t most) {
	static acp_ga_t blocks[1 << 15];
	size_t n = 0;
	while (n < most && (blocks[n] = acp_malloc(size, rank)) != ACP_GA_NULL)
		n++;
	for (size_t i = 0; i < n; i++)
		acp_free(blocks[i]);
	return n;
}

/* In a heap of 16 MiB, small blocks that were freed are as many large ones again as there were before. */
static void rejoin(void) {
	const int last = at_procs - 1;
	if (at_rank == 0) {
		size_t fresh = count_blocks(5000000, last, 10);
		AT_CHECK(fresh == 3, "%zu blocks of 5 MB in 16 MiB", fresh);
		size_t small = count_blocks(600, last, 1 << 15);
		AT_CHECK(small > 10000 && small < 1 << 15, "%zu blocks of 600 B", small);
		for (int i = 0; i < 3; i++) {
			size_t then = count_blocks(5000000, last, 10);
			AT_CHECK(then == fresh, "%zu blocks of 5 MB, and %zu after small ones", fresh, then);
		}
	}
	at_sync();
}

/* There is no memory at all. */
static void none(void) {
	for (int r = 0; r < at_procs; r++)
		refused(16, r, "no memory left");
}

static void huge(void) {
	int other = (at_rank + 1) % at_procs;
	acp_ga_t ga = must_malloc(8ULL << 30, other);
	at_store(ga, 1);
	at_store(ga + (8ULL << 30) - 8, 2);
	AT_CHECK(at_load(ga) == 1 && at_load(ga + (8ULL << 30) - 8) == 2, "the ends of 8 GiB");
	acp_free(ga);
	/* Each of these is unmapped before the next. */
	for (int i = 0; i < 600; i++) {
		ga = must_malloc(5 << 20, other);
		at_store(ga + (5 << 20) - 8, (uint64_t)i);
		AT_CHECK(at_load(ga + (5 << 20) - 8) == (uint64_t)i, "round %d", i);
		acp_free(ga);
	}
}

static void wrong(const char *how) {
	int other = at_procs - 1;
	acp_ga_t ga = must_malloc(1000, other);
	acp_ga_t large = must_malloc(LARGEST, other);
	at_sync();
	if (at_rank == 0) {
		if (strcmp(how, "twice") == 0)
			acp_free(ga);
		if (strcmp(how, "twice large") == 0) {
			acp_free(large);
			acp_free(large);
		}
		acp_free(strcmp(how, "inside") == 0 ? ga + 16 : strcmp(how, "foreign") == 0 ? buffer.ga + 64 : ga);
		AT_CHECK(false, "acp_free has returned");
	}
	at_sync();
}

static void kill_one(void) {
	for (int i = 0;; i++) {
		if (at_rank == 1 && i == 3)
			kill(getpid(), SIGKILL);
		churn(1000);
	}
}

static double each(double began, int count) {
	return (at_now() - began) / count * 1e9;
}

/* Prints nanoseconds of a get of 8 bytes and of pairs of acp_malloc and acp_free, here and at another rank, taken in turns. */
static void speed(int count) {
	static acp_ga_t many[4096];
	if (at_rank == 0)
		for (int r = 0; r < at_procs && r < 2; r++)
			for (int round = 0; round < 3; round++) {
				acp_ga_t from = acp_query_starter_ga(r);
				double began = at_now();
				for (int i = 0; i < count; i++)
					acp_complete(acp_copy(buffer.ga, from, 8, AT_NULL));
				double get = each(began, count);
				began = at_now();
				for (int i = 0; i < count; i++)
					acp_free(must_malloc(64, r));
				double pair = each(began, count);
				double allocate = 0, release = 0;
				for (int i = 0; i < count; i += 4096) {
					began = at_now();
					for (int j = 0; j < 4096; j++)
						many[j] = acp_malloc(64, r);
					allocate += at_now() - began;
					began = at_now();
					for (int j = 0; j < 4096; j++)
						acp_free(many[j]);
					release += at_now() - began;
				}
				int n = (count + 4095) / 4096 * 4096;
				printf("at rank %d: get %.0f ns, malloc and free %.0f ns, of 4096 in a row malloc %.0f ns, free %.0f ns\n", r, get, pair,
				       allocate / n * 1e9, release / n * 1e9);
			}
	at_sync();
	double began = at_now();
	for (int i = 0; i < count; i++)
		acp_free(must_malloc(64, 0));
	printf("all at rank 0: malloc and free %.0f ns\n", each(began, count));
}

int main(int argc, char **argv) {
	at_begin(&argc, &argv);
	const char *what = argc > 1 ? argv[1] : "sizes";
	int count = argc > 2 ? atoi(argv[2]) : 10000;
	buffer = at_region(LARGEST);
	random_state = (uint64_t)at_rank + 1;
	if (strcmp(what, "sizes") == 0)
		all_sizes();
	else if (strcmp(what, "churn") == 0)
		churn_in_one_segment(count);
	else if (strcmp(what, "limit") == 0)
		limit();
	else if (strcmp(what, "rejoin") == 0)
		rejoin();
	else if (strcmp(what, "none") == 0)
		none();
	else if (strcmp(what, "huge") == 0)
		huge();
	else if (strcmp(what, "kill") == 0)
		kill_one();
	else if (strcmp(what, "speed") == 0)
		speed(count);
	else
		wrong(what);
	return at_end();
}
