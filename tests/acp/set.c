/* Sets: every function, from every rank. */
#define KIND set
#include "hashed.h"

static int put(container c, int number) {
	return acp_insert_set(c, key(number));
}

static acp_element_t key_of(iterator it) {
	return acp_dereference_set_it(it);
}

/* Of those that insert the same key at once, one succeeds. */
static void more(container a) {
	uint64_t won = 0;
	for (int i = 0; i < KEYS; i++)
		won += (uint64_t)acp_insert_set(a, key(i));
	AT_CHECK(total(won) == KEYS, "insertions of %d keys have succeeded", KEYS);
	AT_CHECK(acp_insert_set(a, (acp_element_t){ pool.ga, 0 }) == 0, "a key without bytes");
	AT_CHECK(acp_insert_set(a, (acp_element_t){ ACP_GA_NULL, 8 }) == 0, "a key at no address");
	AT_CHECK(acp_insert_set(a, (acp_element_t){ pool.ga + POOL - 4, 8 }) == 0, "a key outside of its region");
	AT_CHECK(acp_size_set(a) == KEYS, "%zu keys", acp_size_set(a));
}
