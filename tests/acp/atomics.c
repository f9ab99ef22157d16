/* Atomic operations: what each does to the word and stores, on words of every rank, and what is refused. */
#include "at.h"

static struct at_region words;
static acp_ga_t all[AT_MAX], here;
static volatile uint64_t *old8;
static volatile uint32_t *old4;

static const uint64_t START = 0xfedcba9876543210ULL, BESIDE = 0x1122334455667788ULL;

enum { CAS_HIT, CAS_MISS, SWAP, ADD, XOR, OR, AND, KINDS };
static const char *const names[KINDS] = {"cas that hits", "cas that misses", "swap", "add", "xor", "or", "and"};

static acp_handle_t eight(int kind, acp_ga_t dst, acp_ga_t src, uint64_t was, uint64_t value, acp_handle_t order) {
	switch (kind) {
	case CAS_HIT: return acp_cas8(dst, src, was, value, order);
	case CAS_MISS: return acp_cas8(dst, src, was ^ 1ULL << 63, value, order);
	case SWAP: return acp_swap8(dst, src, value, order);
	case ADD: return acp_add8(dst, src, value, order);
	case XOR: return acp_xor8(dst, src, value, order);
	case OR: return acp_or8(dst, src, value, order);
	default: return acp_and8(dst, src, value, order);
	}
}

static acp_handle_t four(int kind, acp_ga_t dst, acp_ga_t src, uint32_t was, uint32_t value, acp_handle_t order) {
	switch (kind) {
	case CAS_HIT: return acp_cas4(dst, src, was, value, order);
	case CAS_MISS: return acp_cas4(dst, src, was ^ 1U << 31, value, order);
	case SWAP: return acp_swap4(dst, src, value, order);
	case ADD: return acp_add4(dst, src, value, order);
	case XOR: return acp_xor4(dst, src, value, order);
	case OR: return acp_or4(dst, src, value, order);
	default: return acp_and4(dst, src, value, order);
	}
}

static uint64_t wanted(int kind, uint64_t was, uint64_t value) {
	switch (kind) {
	case CAS_MISS: return was;
	case ADD: return was + value;
	case XOR: return was ^ value;
	case OR: return was | value;
	case AND: return was & value;
	default: return value;
	}
}

/* Three words of my own on each rank: the middle one is changed. */
static acp_ga_t triple(int rank) {
	return all[rank] + (acp_ga_t)at_rank * 24;
}

static void set_triple(acp_ga_t ga) {
	at_store(ga, BESIDE);
	at_store(ga + 8, START);
	at_store(ga + 16, ~BESIDE);
}

static void triple_is(const char *what, int rank, acp_ga_t ga, uint64_t middle) {
	uint64_t word = at_load(ga + 8);
	AT_CHECK(word == middle, "%s on rank %d: the word is %#" PRIx64 ", not %#" PRIx64, what, rank, word, middle);
	AT_CHECK(at_load(ga) == BESIDE && at_load(ga + 16) == ~BESIDE, "%s on rank %d: a word beside has changed", what, rank);
}

static void words_of_eight(int rank) {
	static const uint64_t values[] = {0, 1, ~0ULL, 0x8000000000000000ULL, 0x00000000ffffffffULL, 0x0123456789abcdefULL};
	for (int kind = 0; kind < KINDS; kind++) {
		for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
			set_triple(triple(rank));
			*old8 = 1;
			acp_handle_t h = eight(kind, here, triple(rank) + 8, START, values[i], AT_NULL);
			AT_CHECK(h >= 1, "%s on rank %d: %s", names[kind], rank, at_why());
			acp_complete(h);
			AT_CHECK(*old8 == START, "%s on rank %d stores %#" PRIx64, names[kind], rank, *old8);
			triple_is(names[kind], rank, triple(rank), wanted(kind, START, values[i]));
		}
	}
}

/* Either half of a word of 8 bytes; the other half and what lies beside the old value stay. */
static void words_of_four(int rank) {
	static const uint32_t values[] = {0, 1, ~0U, 0x80000000U, 0x01234567U};
	for (int kind = 0; kind < KINDS; kind++) {
		for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
			for (int half = 0; half < 2; half++) {
				set_triple(triple(rank));
				int shift = half * 32;
				uint32_t was = (uint32_t)(START >> shift);
				uint64_t result = (uint64_t)(uint32_t)wanted(kind, was, values[i]) << shift;
				uint64_t whole = result | (START & (half ? 0xffffffffULL : 0xffffffff00000000ULL));
				*old8 = BESIDE;
				acp_handle_t h = four(kind, here + 4, triple(rank) + 8 + 4 * (acp_ga_t)half, was, values[i], AT_NULL);
				AT_CHECK(h >= 1, "%s of 4 on rank %d: %s", names[kind], rank, at_why());
				acp_complete(h);
				AT_CHECK(old4[1] == was, "%s of half %d on rank %d stores %#" PRIx32, names[kind], half, rank, old4[1]);
				AT_CHECK(old4[0] == (uint32_t)BESIDE, "%s of half %d on rank %d stores more", names[kind], half, rank);
				triple_is(names[kind], rank, triple(rank), whole);
			}
		}
	}
}

/* Regions of 4 bytes, in either half of a word whose other half is not registered. */
static void regions_of_four(void) {
	static uint64_t memory[2];
	acp_ga_t others[AT_MAX];
	for (int half = 0; half < 2; half++) {
		uint32_t *word = (uint32_t *)(void *)&memory[1] + half;
		memory[0] = memory[1] = BESIDE;
		*word = 5;
		struct at_region r = at_register(word, 4);
		at_exchange(2, r.ga, others);
		acp_handle_t h = AT_NULL;
		for (int i = 0; i < 100; i++)
			h = four(ADD, here, others[(at_rank + 1) % at_procs], 0, 3, i % 2 ? AT_ALL : AT_CONT);
		AT_CHECK(h >= 1, "%s", at_why());
		acp_complete(h);
		AT_CHECK(old4[0] == 5 + 99 * 3, "half %d: the last found %" PRIu32, half, old4[0]);
		at_sync();
		AT_CHECK(*word == 305, "half %d: %" PRIu32, half, *word);
		uint32_t beside = *((uint32_t *)(void *)&memory[1] + !half);
		AT_CHECK(beside == (uint32_t)(BESIDE >> (half ? 0 : 32)) && memory[0] == BESIDE, "half %d: what lies beside", half);
		AT_CHECK(acp_unregister_memory(r.key) == 0, "%s", at_why());
		at_sync();
	}
}

/* The old value lands wherever the caller has memory, also where the word is. */
static void old_values(void) {
	set_triple(triple(at_rank));
	acp_complete(acp_add8(triple(at_rank) + 16, triple(at_rank) + 8, 1, AT_NULL));
	AT_CHECK(at_load(triple(at_rank) + 16) == START, "the old value is %#" PRIx64, at_load(triple(at_rank) + 16));
	AT_CHECK(at_load(triple(at_rank) + 8) == START + 1, "the word is %#" PRIx64, at_load(triple(at_rank) + 8));
	/* Many at once, each to a place of its own. */
	enum { MANY = 1000 };
	struct at_region places = at_region(MANY * 8);
	acp_ga_t word = triple((at_rank + 1) % at_procs) + 8;
	at_store(word, 7);
	for (acp_ga_t i = 0; i < MANY; i++)
		AT_CHECK(acp_add8(places.ga + 8 * i, word, 1, AT_NULL) >= 1, "%s", at_why());
	acp_complete(AT_ALL);
	unsigned char seen[MANY] = {0};
	for (size_t i = 0; i < MANY; i++) {
		uint64_t found;
		memcpy(&found, places.at + 8 * i, 8);
		AT_CHECK(found >= 7 && found < 7 + MANY && seen[found - 7]++ == 0, "place %zu has %" PRIu64, i, found);
	}
	AT_CHECK(at_load(word) == 7 + MANY, "the word is %" PRIu64, at_load(word));
	at_free(places);
}

static void refused_ones(void) {
	int next = (at_rank + 1) % at_procs;
	acp_ga_t word = triple(next) + 8;
	set_triple(triple(next));
	*old8 = 1;
	for (int kind = 0; kind < KINDS; kind++) {
		for (int at = 1; at < 8; at++) {
			AT_CHECK(eight(kind, here, word + (acp_ga_t)at - 8, START, 1, AT_NULL) == AT_NULL, "%s: a word at %d", names[kind], at);
			AT_CHECK(eight(kind, here + (acp_ga_t)at, word, START, 1, AT_NULL) == AT_NULL, "%s: stored at %d", names[kind], at);
			if (at % 4 == 0)
				continue;
			AT_CHECK(four(kind, here, word + (acp_ga_t)at - 8, 0, 1, AT_NULL) == AT_NULL, "%s of 4: a word at %d", names[kind], at);
			AT_CHECK(four(kind, here + (acp_ga_t)at, word, 0, 1, AT_NULL) == AT_NULL, "%s of 4: stored at %d", names[kind], at);
		}
		AT_CHECK(eight(kind, here, ACP_GA_NULL, START, 1, AT_NULL) == AT_NULL, "%s on NULL", names[kind]);
		AT_CHECK(four(kind, here, ACP_GA_NULL, 0, 1, AT_NULL) == AT_NULL, "%s of 4 on NULL", names[kind]);
		AT_CHECK(eight(kind, ACP_GA_NULL, word, START, 1, AT_NULL) == AT_NULL, "%s stored at NULL", names[kind]);
		AT_CHECK(four(kind, ACP_GA_NULL, word, 0, 1, AT_NULL) == AT_NULL, "%s of 4 stored at NULL", names[kind]);
		AT_CHECK(eight(kind, here, word, START, 1, -5) == AT_NULL, "%s after -5", names[kind]);
		AT_CHECK(four(kind, here, word, 0, 1, -5) == AT_NULL, "%s of 4 after -5", names[kind]);
		if (next != at_rank) {
			AT_CHECK(eight(kind, word + 8, word, START, 1, AT_NULL) == AT_NULL, "%s stored at rank %d", names[kind], next);
			AT_CHECK(four(kind, word + 8, word, 0, 1, AT_NULL) == AT_NULL, "%s of 4 stored at rank %d", names[kind], next);
			AT_CHECK(acp_error() != NULL, "no sentence");
		}
		acp_ga_t end = words.ga + words.size;
		AT_CHECK(eight(kind, end, word, START, 1, AT_NULL) == AT_NULL, "%s stored behind the end", names[kind]);
		AT_CHECK(four(kind, end, word, 0, 1, AT_NULL) == AT_NULL, "%s of 4 stored behind the end", names[kind]);
		AT_CHECK(eight(kind, here, end, START, 1, AT_NULL) == AT_NULL, "%s behind the end of mine", names[kind]);
		AT_CHECK(four(kind, here, end, 0, 1, AT_NULL) == AT_NULL, "%s of 4 behind the end of mine", names[kind]);
	}
	acp_complete(AT_ALL);
	AT_CHECK(*old8 == 1, "a refused one has stored %#" PRIx64, *old8);
	triple_is("what was refused", next, triple(next), START);
	at_sync();
}

int main(int argc, char **argv) {
	at_begin(&argc, &argv);
	words = at_region(4096);
	at_exchange(0, words.ga, all);
	here = acp_query_starter_ga(at_rank) + AT_FREE;
	old8 = at_starter(AT_FREE);
	old4 = (volatile uint32_t *)(volatile void *)old8;
	for (int r = 0; r < at_procs; r++) {
		words_of_eight((at_rank + r) % at_procs);
		words_of_four((at_rank + r) % at_procs);
	}
	regions_of_four();
	old_values();
	at_sync();
	refused_ones();
	return at_end();
}
