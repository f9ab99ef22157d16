/* The generic names: those of functions that there are, and of a program's own. The layouts of the types that are passed by value. */
#include "at.h"

#define SIZED(type, bytes) typedef char size_of_##type[sizeof(type) == (bytes) ? 1 : -1]
SIZED(acp_element_t, 16);
SIZED(acp_pair_t, 32);
SIZED(acp_vector_t, 8);
SIZED(acp_deque_t, 8);
SIZED(acp_list_t, 8);
SIZED(acp_vector_it_t, 16);
SIZED(acp_deque_it_t, 16);
SIZED(acp_list_it_t, 16);
typedef char places[offsetof(acp_vector_it_t, index) == 8 && offsetof(acp_deque_it_t, index) == 8 &&
	offsetof(acp_list_it_t, elem) == 8 && offsetof(acp_element_t, size) == 8 && offsetof(acp_pair_t, second) == 16 ? 1 : -1];

/* A container of the program's, by whose names the macros are tried that no type here has. */
static int own_back(int a) { return a + 1; }
static int own_front(int a) { return a + 2; }
#define acp_back_own own_back
#define acp_front_own own_front
static int acp_bucket_own(int a) { return a + 3; }
static int acp_bucket_count_own(int a) { return a + 4; }
static int acp_bucket_size_own(int a) { return a + 5; }
static int acp_count_own(int a, int b) { return a + b; }
static int acp_find_own(int a, int b) { return a * b; }
static int acp_dereference_value_own_it(int a) { return a + 6; }
static int acp_size_value_own_it(int a) { return a + 7; }

static struct at_region memory;

static int less(const acp_element_t one, const acp_element_t other) {
	acp_copy(memory.ga + 64, one.ga, 1, AT_NULL);
	acp_complete(acp_copy(memory.ga + 65, other.ga, 1, AT_NULL));
	return memory.at[64] - memory.at[65];
}

static void names_of_its_own(void) {
	AT_CHECK(acp_back(own, 1) == 2 && acp_front(own, 1) == 3 && acp_bucket(own, 1) == 4, "names of the program's own");
	AT_CHECK(acp_bucket_count(own, 1) == 5 && acp_bucket_size(own, 1) == 6, "names of the program's own");
	AT_CHECK(acp_count(own, 1, 2) == 3 && acp_find(own, 3, 4) == 12, "names of the program's own");
	AT_CHECK(acp_dereference_value(own_it, 1) == 7 && acp_size_value(own_it, 1) == 8, "names of the program's own");
}

static void vectors(int rank) {
	acp_vector_t v = acp_create(vector, 0, rank), w = acp_create(vector, 4, rank);
	acp_push_back(vector, v, memory.ga, 10);
	acp_pop_back(vector, v, 2);
	acp_assign(vector, w, v);
	acp_assign_range(vector, w, acp_begin(vector, v), acp_advance(vector_it, acp_begin(vector, v), 4));
	AT_CHECK(acp_size(vector, w) == 4 && acp_capacity(vector, v) >= 8 && acp_empty(vector, v) == 0, "vectors by generic names");
	acp_insert(vector, acp_begin(vector, v), memory.ga, 1);
	acp_insert_range(vector, acp_end(vector, v), acp_begin(vector, w), acp_end(vector, w));
	acp_erase(vector, acp_begin(vector, v), 1);
	acp_erase_range(vector, acp_begin(vector, v), acp_advance(vector_it, acp_begin(vector, v), 2));
	AT_CHECK(acp_distance(vector_it, acp_begin(vector, v), acp_end(vector, v)) == 10, "a vector of %zu", acp_size(vector, v));
	AT_CHECK(acp_dereference(vector_it, acp_begin(vector, v)) == acp_at(vector, v, 0), "a vector's first byte");
	acp_swap(vector, v, w);
	AT_CHECK(acp_size(vector, v) == 4, "a vector of %zu", acp_size(vector, v));
	acp_reserve(vector, v, 100);
	acp_clear(vector, v);
	acp_destroy(vector, v);
	acp_destroy(vector, w);
}

static void deques(int rank) {
	acp_deque_t d = acp_create(deque, 0, rank), e = acp_create(deque, 4, rank);
	acp_push_back(deque, d, memory.ga, 10);
	acp_push_front(deque, d, memory.ga, 10);
	acp_pop_back(deque, d, 2);
	acp_pop_front(deque, d, 3);
	acp_assign(deque, e, d);
	AT_CHECK(acp_size(deque, e) == 15 && acp_at(deque, e, 15) == ACP_GA_NULL, "a deque of %zu", acp_size(deque, e));
	acp_pair_t parts = acp_dereference(deque_it, acp_advance(deque_it, acp_begin(deque, d), 1), 14);
	AT_CHECK(parts.first.size + parts.second.size == 14, "parts of %zu and %zu", parts.first.size, parts.second.size);
	acp_destroy(deque, d);
	acp_destroy(deque, e);
}

static void lists(int rank) {
	acp_list_t l = acp_create(list, rank), m = acp_create(list, rank);
	acp_element_t e;
	e.size = 1;
	for (unsigned i = 0; i < 6; i++) {
		e.ga = memory.ga + i;
		acp_push_back(list, l, e, rank);
		acp_push_front(list, m, e, rank);
	}
	acp_reverse(list, m);
	acp_sort(list, l, less);
	acp_sort(list, m, less);
	acp_merge(list, l, m, less);
	AT_CHECK(acp_size(list, l) == 12 && acp_empty(list, m) == 1, "a list of %zu", acp_size(list, l));
	acp_unique(list, l);
	AT_CHECK(acp_size(list, l) == 6, "a list of %zu", acp_size(list, l));
	acp_remove(list, l, e);
	acp_splice(list, acp_end(list, m), acp_begin(list, l));
	AT_CHECK(acp_size(list, l) == 4 && acp_size(list, m) == 1, "a list of %zu", acp_size(list, l));
	AT_CHECK(acp_increment(list_it, acp_begin(list, m)).elem == acp_end(list, m).elem, "an iterator further on");
	AT_CHECK(acp_decrement(list_it, acp_end(list, m)).elem == acp_begin(list, m).elem, "an iterator back");
	acp_destroy(list, l);
	acp_destroy(list, m);
}

int main(int argc, char **argv) {
	at_begin(&argc, &argv);
	memory = at_region(4096);
	at_fill(memory.at, 64, 0, 0);
	for (int i = 0; i < 6; i++)
		memory.at[i] = (unsigned char)(10 + i);
	names_of_its_own();
	vectors((at_rank + 1) % at_procs);
	deques((at_rank + 1) % at_procs);
	lists((at_rank + 1) % at_procs);
	/* The atomics have names of their own still. */
	*at_starter(AT_FREE) = 5;
	acp_ga_t word = acp_query_starter_ga(at_rank) + AT_FREE;
	acp_complete(acp_swap8(word + 8, word, 6, AT_NULL));
	AT_CHECK(*at_starter(AT_FREE) == 6 && *at_starter(AT_FREE + 8) == 5, "acp_swap8");
	return at_end();
}
