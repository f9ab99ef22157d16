/* Maps: every function, from every rank. */
#define KIND map
#include "hashed.h"

enum { VALUES = HALF + 8192, LONGEST = 200000 };

static size_t value_size(int number) {
	static const size_t sizes[] = { 8, 1, 24, 700, 4000, 70000, LONGEST };
	return sizes[number % 21 > 6 ? number % 3 : number % 21];
}

/* A pair whose value is that of a rank. */
static acp_pair_t pair(int number, int rank) {
	acp_pair_t pair = { key(number), { pool.ga + VALUES, value_size(number) } };
	at_fill(pool.at + VALUES, value_size(number), rank, (unsigned)number);
	return pair;
}

static int put(container c, int number) {
	return acp_insert_map(c, pair(number, 7));
}

static acp_element_t key_of(iterator it) {
	acp_pair_t pair = acp_dereference_map_it(it);
	AT_CHECK((pair.first.ga == ACP_GA_NULL) == (pair.second.ga == ACP_GA_NULL), "half of a pair");
	return pair.first;
}

/* 0 for a key that is there is no failure. */
static void errors(container a) {
	AT_CHECK(put(a, 1) == 1, "%s", at_why());
	AT_CHECK(acp_retrieve_map(none(), pair(1, 7)) == 0 && acp_error() != NULL, "no map");
	acp_clear_error();
	AT_CHECK(acp_error() == NULL && put(a, 1) == 0 && acp_error() == NULL, "%s", at_why());
	AT_CHECK(acp_insert_map(none(), pair(1, 7)) == 0 && acp_error() != NULL, "no map");
}

/* The rank whose value a key has here; -1 if it is none's. */
static int value_of(container a, int number) {
	acp_pair_t room = { key(number), { pool.ga + VALUES, LONGEST } };
	memset(pool.at + VALUES, 0xee, LONGEST);
	size_t size = acp_retrieve_map(a, room);
	AT_CHECK(size == value_size(number), "key %d has %zu bytes", number, size);
	AT_CHECK(at_all_are(pool.at + VALUES + size, LONGEST - size, 0xee), "bytes behind the value");
	for (int rank = 0; rank <= AT_MAX; rank++)
		if (at_differs(pool.at + VALUES, size, rank, (unsigned)number) == size)
			return rank;
	return -1;
}

/* Values of all lengths are not copied to this rank's memory where that may not be written; the map stays as it is. */
static void read_only(container a) {
	struct at_region r = at_region(LONGEST);
	AT_MUST(acp_unregister_memory(r.key) == 0, "%s", at_why());
	memset(r.at, 0x77, LONGEST);
	AT_MUST(mprotect(r.at, r.size, PROT_READ) == 0, "mprotect");
	r.key = acp_register_memory(r.at, LONGEST, 0);
	AT_MUST(r.key != ACP_ATKEY_NULL, "%s", at_why());
	r.ga = acp_query_ga(r.key, r.at);
	for (int i = 0; i < 7; i++)
		AT_CHECK(put(a, i) == 1, "%s", at_why());
	for (int i = 0; i < 7; i++) {
		acp_pair_t room = { key(i), { r.ga, LONGEST } };
		AT_CHECK(acp_retrieve_map(a, room) == 0, "%zu bytes went where nobody may write", value_size(i));
		AT_CHECK(strstr(at_why(), "may not be written"), "%s", at_why());
		/* It is a source. */
		acp_remove_map(a, key(i));
		AT_CHECK(acp_insert_map(a, (acp_pair_t){ key(i), { r.ga, value_size(i) } }) == 1, "%s", at_why());
		room.second.ga = pool.ga + VALUES;
		AT_CHECK(acp_retrieve_map(a, room) == value_size(i), "%s", at_why());
		AT_CHECK(at_all_are(pool.at + VALUES, value_size(i), 0x77), "another value of %zu bytes", value_size(i));
	}
	AT_CHECK(at_all_are(r.at, LONGEST, 0x77), "it was written");
	AT_CHECK(acp_unregister_memory(r.key) == 0, "%s", at_why());
	munmap(r.at, r.size);
	acp_clear_map(a);
}

static void values(container a) {
	enum { SOME = 42 };
	for (int i = 0; i < SOME; i++)
		AT_CHECK(put(a, i) == 1, "%s", at_why());
	for (int i = 0; i < SOME; i++) {
		AT_CHECK(acp_insert_map(a, pair(i, 8)) == 0, "key %d twice", i);
		AT_CHECK(value_of(a, i) == 7, "key %d has the value of %d", i, value_of(a, i));
	}
	/* Less room than there is to copy, and none. */
	acp_pair_t room = { key(6), { pool.ga + VALUES, 10 } };
	memset(pool.at + VALUES, 0xee, 64);
	AT_CHECK(acp_retrieve_map(a, room) == LONGEST, "the size that is stored");
	AT_CHECK(at_differs(pool.at + VALUES, 10, 7, 6) == 10 && pool.at[VALUES + 10] == 0xee, "10 bytes of it");
	room.second.size = 0;
	AT_CHECK(acp_retrieve_map(a, room) == LONGEST, "the size that is stored");
	AT_CHECK(acp_retrieve_map(a, pair(SOME, 7)) == 0, "a key that is not there");
	/* To another rank's memory. */
	room = (acp_pair_t){ key(4), { pools[(at_rank + 1) % at_procs] + VALUES, LONGEST } };
	AT_CHECK(acp_retrieve_map(a, room) == 4000, "the size that is stored");
	acp_complete(acp_copy(landing_ga(), room.second.ga, 4000, AT_NULL));
	AT_CHECK(at_differs(landing(), 4000, 7, 4) == 4000, "a value at another rank's");
	/* A value of another rank's, which is where it was just put. */
	acp_remove_map(a, key(4));
	room.second.size = 4000;
	AT_CHECK(acp_insert_map(a, room) == 1 && value_of(a, 4) == 7, "%s", at_why());
	/* Where an iterator leads to, it can be changed. */
	acp_pair_t there = acp_dereference_map_it(acp_find_map(a, key(0)));
	AT_CHECK(there.second.size == 8 && there.second.ga % 8 == 0, "%zu bytes", there.second.size);
	acp_complete(acp_swap8(landing_ga(), there.second.ga, 1234, AT_NULL));
	AT_CHECK(acp_retrieve_map(a, (acp_pair_t){ key(0), { landing_ga(), 8 } }) == 8, "%s", at_why());
	AT_CHECK(*(uint64_t *)(void *)landing() == 1234, "what was swapped in");
	/* A value without bytes removes. */
	AT_CHECK(acp_insert_map(a, (acp_pair_t){ key(1), { pool.ga, 0 } }) == 0, "a value without bytes");
	AT_CHECK(acp_find_map(a, key(1)).elem == ACP_GA_NULL && acp_size_map(a) == SOME - 1, "%zu keys", acp_size_map(a));
	AT_CHECK(acp_insert_map(a, (acp_pair_t){ { pool.ga, 0 }, { pool.ga, 8 } }) == 0, "a key without bytes");
	AT_CHECK(acp_insert_map(a, (acp_pair_t){ key(SOME), { pool.ga + POOL, 8 } }) == 0, "a value outside of its region");
	AT_CHECK(acp_insert_map(a, (acp_pair_t){ key(SOME), { ACP_GA_NULL, 8 } }) == 0, "a value at no address");
	AT_CHECK(acp_insert_map(a, (acp_pair_t){ key(SOME), { pool.ga, (size_t)-1 } }) == 0, "a value of all memory");
	AT_CHECK(put(a, SOME) == 1, "%s", at_why());
	/* Who merges keeps its values. */
	container b = acp_create_map(1, &at_rank, 2, at_rank);
	acp_insert_map(b, pair(2, 3));
	acp_insert_map(b, pair(100, 3));
	acp_merge_map(b, a);
	AT_CHECK(value_of(b, 2) == 3 && value_of(b, 100) == 3 && value_of(b, 6) == 7, "values after a merge");
	AT_CHECK(acp_size_map(b) == SOME + 1, "%zu keys", acp_size_map(b));
	acp_move_map(b, a);
	AT_CHECK(value_of(b, 2) == 3 && acp_size_map(b) == SOME + 1 && acp_empty_map(a), "%zu keys", acp_size_map(b));
	acp_swap_map(a, b);
	AT_CHECK(value_of(a, 2) == 3 && value_of(a, 5) == 7 && acp_empty_map(b), "values after a swap");
	acp_destroy_map(b);
	acp_clear_map(a);
	errors(a);
	acp_clear_map(a);
}

static void more(container a) {
	for (int r = 0; r < at_procs; r++) {
		if (r == at_rank) {
			values(a);
			read_only(a);
		}
		at_sync();
	}
	/* Of those that insert the same key at once, one succeeds, and its value is there. */
	bool mine[KEYS];
	uint64_t won = 0;
	for (int i = 0; i < KEYS; i++)
		won += mine[i] = acp_insert_map(a, pair(i, at_rank));
	AT_CHECK(total(won) == KEYS, "insertions of %d keys have succeeded", KEYS);
	for (int i = 0; i < KEYS; i++) {
		int rank = value_of(a, i);
		AT_CHECK(rank >= 0 && rank < at_procs && (rank == at_rank) == mine[i], "key %d has the value of %d", i, rank);
	}
	at_sync();
	size_t all = acp_size_map(a), own = acp_size_local_map(a);
	at_sync();
	if (at_rank == 0) {
		acp_clear_local_map(a);
		AT_CHECK(acp_size_map(a) == all - own && acp_empty_local_map(a), "%zu keys", acp_size_map(a));
	}
	at_sync();
}
