/* Registrations, and what global addresses say. */
#include "at.h"

static acp_ga_t starters[AT_MAX];

static void starter_memory(void) {
	AT_CHECK(acp_query_starter_ga(-1) == ACP_GA_NULL, "rank -1 has starter memory");
	AT_CHECK(acp_query_starter_ga(at_procs) == ACP_GA_NULL, "rank %d has starter memory", at_procs);
	AT_CHECK(acp_query_starter_ga(2147483647) == ACP_GA_NULL, "the last number has starter memory");
	AT_CHECK(acp_query_starter_ga(-2147483647 - 1) == ACP_GA_NULL, "the first number has starter memory");
	for (int r = 0; r < at_procs; r++) {
		acp_ga_t ga = acp_query_starter_ga(r);
		starters[r] = ga;
		AT_CHECK(ga != ACP_GA_NULL && acp_query_rank(ga) == r, "starter memory of %d is of %d", r, acp_query_rank(ga));
		AT_CHECK(acp_query_rank(ga + 1023) == r, "its end is of %d", acp_query_rank(ga + 1023));
		AT_CHECK(acp_query_color(ga) == 0, "its color is %d", acp_query_color(ga));
		AT_CHECK((acp_query_address(ga) != NULL) == (r == at_rank), "rank %d: %p", r, acp_query_address(ga));
		for (int other = 0; other < r; other++)
			AT_CHECK(starters[other] != ga, "ranks %d and %d share it", other, r);
	}
	unsigned char *own = (unsigned char *)acp_query_address(starters[at_rank]);
	AT_CHECK((uintptr_t)own % 8 == 0, "starter memory at %p", (void *)own);
	AT_CHECK(acp_query_address(starters[at_rank] + 999) == own + 999, "an address within it");
	AT_CHECK(acp_unregister_memory(starters[at_rank]) == -1, "starter memory is unregistered");
	AT_CHECK(acp_query_address(starters[at_rank]) == own, "it is gone");
}

static void no_addresses(void) {
	AT_CHECK(acp_query_rank(ACP_GA_NULL) == -1, "rank %d", acp_query_rank(ACP_GA_NULL));
	AT_CHECK(acp_query_color(ACP_GA_NULL) == -1, "color %d", acp_query_color(ACP_GA_NULL));
	AT_CHECK(acp_query_address(ACP_GA_NULL) == NULL, "NULL has memory");
	AT_CHECK(acp_query_ga(ACP_ATKEY_NULL, &at_rank) == ACP_GA_NULL, "NULL is a key");
	AT_CHECK(acp_unregister_memory(ACP_ATKEY_NULL) == -1, "NULL is unregistered");
	AT_CHECK(acp_unregister_memory(0xfedcba9876543210ULL) == -1, "rubbish is unregistered");
	AT_CHECK(acp_query_ga(0xfedcba9876543210ULL, &at_rank) == ACP_GA_NULL, "rubbish is a key");
	AT_CHECK(acp_query_address(0xfedcba9876543210ULL) == NULL, "rubbish is an address");
}

static void a_region(void) {
	struct at_region r = at_region(10000);
	AT_CHECK(acp_query_rank(r.ga) == at_rank && acp_query_color(r.ga) == 0, "of rank %d", acp_query_rank(r.ga));
	AT_CHECK(acp_query_ga(r.key, r.at + 1) == r.ga + 1, "the second byte");
	AT_CHECK(acp_query_ga(r.key, r.at + 9999) == r.ga + 9999, "the last byte");
	AT_CHECK(acp_query_ga(r.key, r.at + 10000) == r.ga + 10000, "just behind the end");
	AT_CHECK(acp_query_ga(r.key, r.at + 10001) == ACP_GA_NULL, "behind that");
	AT_CHECK(acp_query_ga(r.key, r.at - 1) == ACP_GA_NULL, "before the first");
	AT_CHECK(acp_query_ga(r.key, NULL) == ACP_GA_NULL, "NULL");
	AT_CHECK(acp_query_address(r.ga) == r.at, "the first byte");
	AT_CHECK(acp_query_address(r.ga + 9999) == r.at + 9999, "the last byte");
	/* A key of another rank is no key here. */
	acp_ga_t keys[AT_MAX];
	at_exchange(0, r.key, keys);
	for (int other = 0; other < at_procs; other++) {
		if (other == at_rank)
			continue;
		AT_CHECK(acp_query_ga(keys[other], r.at) == ACP_GA_NULL, "a key of rank %d has addresses here", other);
		AT_CHECK(acp_query_address(keys[other]) == NULL, "memory of rank %d is here", other);
		AT_CHECK(acp_unregister_memory(keys[other]) == -1, "memory of rank %d is unregistered", other);
	}
	at_sync();
	AT_CHECK(acp_unregister_memory(r.key) == 0, "%s", at_why());
	AT_CHECK(acp_unregister_memory(r.key) == -1, "it is unregistered twice");
	AT_CHECK(acp_query_ga(r.key, r.at) == ACP_GA_NULL, "it has an address yet");
	AT_CHECK(acp_query_address(r.ga) == NULL, "it has memory yet");
	munmap(r.at, r.size);
}

static void impossible_regions(void) {
	static char memory[64];
	AT_CHECK(acp_register_memory(memory, 64, -1) == ACP_ATKEY_NULL, "color -1");
	AT_CHECK(acp_error() != NULL, "no sentence");
	AT_CHECK(acp_register_memory(memory, 64, acp_colors()) == ACP_ATKEY_NULL, "color %d", acp_colors());
	AT_CHECK(acp_register_memory(memory, 64, 2147483647) == ACP_ATKEY_NULL, "the last color");
	AT_CHECK(acp_register_memory(NULL, 64, 0) == ACP_ATKEY_NULL, "memory at NULL");
	AT_CHECK(acp_register_memory(memory, SIZE_MAX, 0) == ACP_ATKEY_NULL, "memory without end");
	void *hole = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	AT_MUST(hole != MAP_FAILED && munmap(hole, 8192) == 0, "mmap");
	AT_CHECK(acp_register_memory(hole, 8192, 0) == ACP_ATKEY_NULL, "memory that is not mapped");
	/* None of these took a place or broke anything. */
	at_free(at_register(memory, 64));
}

/* Memory that may not be written is read by all, and nothing is stored to it: neither at first nor once the peer's region is known. */
static void read_only_regions(void) {
	struct at_region r = at_region(4096), good = at_region(4096);
	AT_MUST(acp_unregister_memory(r.key) == 0, "%s", at_why());
	at_fill(r.at, 4096, at_rank, 7);
	AT_MUST(mprotect(r.at, 4096, PROT_READ) == 0, "mprotect");
	r.key = acp_register_memory(r.at, 4096, 0);
	AT_MUST(r.key != ACP_ATKEY_NULL, "%s", at_why());
	r.ga = acp_query_ga(r.key, r.at);
	acp_ga_t all[AT_MAX];
	at_exchange(0, r.ga, all);
	acp_ga_t there = all[(at_rank + 1) % at_procs];
	for (int round = 0; round < 2; round++) {
		AT_CHECK(acp_copy(r.ga, there, 8, AT_NULL) == AT_NULL, "a get into it, round %d", round);
		AT_CHECK(acp_add8(r.ga, there, 1, AT_NULL) == AT_NULL, "an atomic into it, round %d", round);
		AT_CHECK(acp_copy(r.ga, good.ga, 8, AT_NULL) == AT_NULL, "a copy into it, round %d", round);
		acp_complete(acp_copy(good.ga, there, 4096, AT_NULL));
		AT_CHECK(at_differs(good.at, 4096, (at_rank + 1) % at_procs, 7) == 4096, "it is not what is there");
	}
	at_sync();
	AT_CHECK(acp_unregister_memory(r.key) == 0, "%s", at_why());
	munmap(r.at, r.size);
	at_free(good);
}

/* One to eight bytes wherever they lie, as programs register single variables. */
static void small_regions(void) {
	static unsigned char memory[64];
	acp_ga_t all[AT_MAX];
	for (size_t size = 1; size <= 8; size++) {
		for (size_t at = 0; at < 8; at++) {
			struct at_region r = at_register(memory + 8 + at, size);
			memset(memory, 0x55, sizeof memory);
			memset(r.at, (int)(16 * at + size), size);
			at_exchange(0, r.ga, all);
			unsigned char *landing = (unsigned char *)(void *)at_starter(AT_FREE);
			memset(landing, 0, 8);
			acp_complete(acp_copy(starters[at_rank] + AT_FREE, all[(at_rank + 1) % at_procs], size, AT_NULL));
			AT_CHECK(at_all_are(landing, size, (unsigned char)(16 * at + size)), "%zu B at %zu", size, at);
			AT_CHECK(at_all_are(landing + size, 8 - size, 0), "more than %zu B were copied", size);
			at_sync();
			AT_CHECK(acp_unregister_memory(r.key) == 0, "%s", at_why());
		}
	}
}

/* 252 at once, more if there is room; each is told apart, and places are used again. */
static void many_regions(int wanted) {
	enum { SIZE = 64 };
	struct at_region *all = (struct at_region *)calloc((size_t)wanted, sizeof *all);
	unsigned char *memory = (unsigned char *)malloc((size_t)wanted * SIZE);
	AT_MUST(all && memory, "memory");
	acp_ga_t tables[AT_MAX];
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < wanted; i++) {
			all[i] = at_register(memory + (size_t)i * SIZE, SIZE);
			at_fill(all[i].at, SIZE, at_rank, (unsigned)(round * wanted + i));
		}
		struct at_region table = at_region((size_t)wanted * 8);
		for (int i = 0; i < wanted; i++)
			memcpy(table.at + (size_t)i * 8, &all[i].ga, 8);
		at_exchange(0, table.ga, tables);
		struct at_region landing = at_region(SIZE);
		for (int i = 0; i < wanted; i += 1 + i % 3) {
			int from = (at_rank + 1 + i) % at_procs;
			acp_ga_t ga = at_load(tables[from] + (acp_ga_t)i * 8);
			acp_complete(acp_copy(landing.ga, ga, SIZE, AT_NULL));
			size_t wrong = at_differs(landing.at, SIZE, from, (unsigned)(round * wanted + i));
			AT_CHECK(wrong == SIZE, "round %d: byte %zu of region %d of rank %d", round, wrong, i, from);
		}
		at_free(landing);
		at_sync();
		at_free(table);
		/* Every other one first. */
		for (int step = 0; step < 2; step++)
			for (int i = step; i < wanted; i += 2)
				AT_CHECK(acp_unregister_memory(all[i].key) == 0, "region %d: %s", i, at_why());
		at_sync();
	}
	free(memory);
	free(all);
}

int main(int argc, char **argv) {
	at_begin(&argc, &argv);
	starter_memory();
	no_addresses();
	a_region();
	impossible_regions();
	read_only_regions();
	small_regions();
	many_regions(250); /* with its table and its landing 252 */
	many_regions(298);
	return at_end();
}
