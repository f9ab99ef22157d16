/* Multisets: every function, from every rank. */
#define KIND multiset
#include "hashed.h"

static int put(container c, int number) {
	return acp_insert_multiset(c, key(number));
}

static acp_element_t key_of(iterator it) {
	return acp_dereference_multiset_it(it);
}

/* Counters, alone and of all ranks at once. */
static void more(container a) {
	/* What all have inserted before is there once less for each that has removed it. */
	for (int i = 0; i < 3000; i++)
		AT_CHECK(put(a, i % 5) == 1, "%s", at_why());
	at_sync();
	for (int i = 0; i < 5; i++)
		AT_CHECK(acp_retrieve_multiset(a, key(i)) == 600 * (uint64_t)at_procs, "%" PRIu64, acp_retrieve_multiset(a, key(i)));
	AT_CHECK(acp_size_multiset(a) == 5, "%zu keys", acp_size_multiset(a));
	at_sync();
	for (int i = 0; i < 2500; i++)
		acp_remove_multiset(a, key(i % 5));
	at_sync();
	for (int i = 0; i < 5; i++)
		AT_CHECK(acp_retrieve_multiset(a, key(i)) == 100 * (uint64_t)at_procs, "%" PRIu64, acp_retrieve_multiset(a, key(i)));
	AT_CHECK(acp_retrieve_multiset(a, key(5)) == 0, "a key that is not there");
	AT_CHECK(acp_insert_multiset(a, (acp_element_t){ pool.ga, 0 }) == 0, "a key without bytes");
	at_sync();
	if (at_rank == 0) {
		int list[] = { at_procs - 1 };
		container b = acp_create_multiset(1, list, 1, 0);
		put(b, 1);
		put(b, 1);
		put(b, 9);
		acp_merge_multiset(b, a);
		AT_CHECK(acp_retrieve_multiset(b, key(1)) == 100 * (uint64_t)at_procs + 2, "%" PRIu64, acp_retrieve_multiset(b, key(1)));
		AT_CHECK(acp_retrieve_multiset(b, key(2)) == 100 * (uint64_t)at_procs, "%" PRIu64, acp_retrieve_multiset(b, key(2)));
		AT_CHECK(acp_retrieve_multiset(b, key(9)) == 1 && acp_size_multiset(b) == 6, "%zu keys", acp_size_multiset(b));
		acp_remove_all_multiset(b, key(1));
		acp_remove_all_multiset(b, key(77));
		AT_CHECK(acp_retrieve_multiset(b, key(1)) == 0 && acp_size_multiset(b) == 5, "%zu keys", acp_size_multiset(b));
		acp_destroy_multiset(b);
	}
	at_sync();
}
