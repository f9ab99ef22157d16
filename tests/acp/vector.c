/* Vectors: every function, of vectors on every rank, worked on by each rank in turn. */
#include "at.h"

static struct at_region source, seen;

/* What the vector has, into `seen`. */
static size_t load(acp_vector_t v) {
	size_t size = acp_size_vector(v);
	AT_MUST(size <= seen.size, "a vector of %zu bytes", size);
	if (size > 0) {
		acp_ga_t at = acp_at_vector(v, 0);
		AT_MUST(at != ACP_GA_NULL, "%s", at_why());
		acp_complete(acp_copy(seen.ga, at, size, AT_NULL));
	}
	return size;
}

static void has_at(int line, acp_vector_t v, const char *text) {
	size_t size = load(v);
	if (size != strlen(text) || memcmp(seen.at, text, size) != 0)
		at_failed(line, "a vector has '%.*s' in place of '%s'", (int)(size < 200 ? size : 200), (char *)seen.at, text);
	if (acp_empty_vector(v) != (size == 0))
		at_failed(line, "empty says %d of %zu bytes", acp_empty_vector(v), size);
	if (acp_capacity_vector(v) < size || acp_capacity_vector(v) % 8 != 0)
		at_failed(line, "a capacity of %zu for %zu bytes", acp_capacity_vector(v), size);
}
#define HAS(v, text) has_at(__LINE__, v, text)

/* The global address of a text, until the next one. */
static acp_ga_t of(const char *text) {
	memcpy(source.at, text, strlen(text));
	return source.ga;
}

static acp_vector_t made(const char *text, int rank) {
	acp_vector_t v = acp_create_vector(0, rank);
	AT_MUST(v.ga != ACP_GA_NULL && acp_query_rank(v.ga) == rank, "a vector on rank %d: %s", rank, at_why());
	acp_push_back_vector(v, of(text), strlen(text));
	return v;
}

static acp_vector_it_t at(acp_vector_t v, int index) {
	return acp_advance_vector_it(acp_begin_vector(v), index);
}

static void life(int rank) {
	acp_vector_t v = acp_create_vector(13, rank);
	AT_MUST(v.ga != ACP_GA_NULL, "%s", at_why());
	AT_CHECK(acp_query_rank(v.ga) == rank, "it is of rank %d", acp_query_rank(v.ga));
	AT_CHECK(acp_size_vector(v) == 13 && acp_capacity_vector(v) == 16, "%zu of %zu bytes", acp_size_vector(v), acp_capacity_vector(v));
	AT_CHECK(acp_query_rank(acp_at_vector(v, 0)) == rank, "its bytes are of rank %d", acp_query_rank(acp_at_vector(v, 0)));
	AT_CHECK(acp_at_vector(v, 12) == acp_at_vector(v, 0) + 12, "its bytes are not one behind the other");
	AT_CHECK(acp_at_vector(v, 13) == ACP_GA_NULL, "there is a byte at the end");
	AT_CHECK(strstr(at_why(), "acp_at_vector: "), "%s", at_why());
	AT_CHECK(acp_at_vector(v, -1) == ACP_GA_NULL, "there is a byte before the first");
	acp_clear_vector(v);
	AT_CHECK(acp_empty_vector(v) == 1 && acp_capacity_vector(v) == 16, "cleared, it has room for %zu", acp_capacity_vector(v));
	HAS(v, "");
	acp_reserve_vector(v, 1000);
	AT_CHECK(acp_capacity_vector(v) >= 1000, "room for %zu of 1000", acp_capacity_vector(v));
	acp_ga_t before = 0;
	for (int i = 0; i < 100; i++) {
		acp_push_back_vector(v, of("0123456789"), 10);
		AT_CHECK(i == 0 || acp_at_vector(v, 0) == before, "it moves in spite of its room");
		before = acp_at_vector(v, 0);
	}
	AT_CHECK(acp_size_vector(v) == 1000, "it has %zu", acp_size_vector(v));
	acp_pop_back_vector(v, 995);
	HAS(v, "01234");
	acp_pop_back_vector(v, 6);
	HAS(v, "");
	acp_pop_back_vector(v, 1);
	acp_destroy_vector(v);
}

/* The header's words, as programs for ACP 3.0.0 read them: address, bytes, capacity. */
static void header(void) {
	acp_vector_t v = made("12345678", at_rank);
	volatile const uint64_t *words = (volatile const uint64_t *)acp_query_address(v.ga);
	AT_MUST(words != NULL, "%s", at_why());
	AT_CHECK(words[0] == acp_at_vector(v, 0) && words[1] == 8 && words[2] == 8, "%#" PRIx64 ", %" PRIu64 ", %" PRIu64, words[0],
		words[1], words[2]);
	const void *bytes = acp_query_address(words[0]);
	AT_CHECK(bytes != NULL && memcmp(bytes, "12345678", 8) == 0, "other bytes at the address of the header");
	acp_clear_vector(v);
	for (int i = 0; i < 5; i++)
		acp_push_back_vector(v, of("word"), 4);
	AT_CHECK(words[1] == 20 && words[2] == 24, "%" PRIu64 " bytes of %" PRIu64, words[1], words[2]);
	AT_CHECK(acp_capacity_vector(v) == 24, "a capacity of %zu", acp_capacity_vector(v));
	HAS(v, "wordwordwordwordword");
	acp_reserve_vector(v, 33);
	AT_CHECK(words[2] == 40, "a capacity of %" PRIu64, words[2]);
	acp_destroy_vector(v);
}

static void growth(int rank) {
	acp_vector_t v = acp_create_vector(0, rank);
	at_fill(source.at, 7, at_rank, 1);
	unsigned moves = 0;
	acp_ga_t place = ACP_GA_NULL;
	for (int i = 0; i < 3000; i++) {
		acp_push_back_vector(v, source.ga, 7);
		if (i % 100 == 99) {
			moves += acp_at_vector(v, 0) != place;
			place = acp_at_vector(v, 0);
		}
	}
	AT_CHECK(acp_capacity_vector(v) == 21000, "a capacity of %zu", acp_capacity_vector(v));
	AT_CHECK(acp_size_vector(v) == 21000 && moves < 20, "%zu bytes with %u moves", acp_size_vector(v), moves);
	size_t size = load(v), right = 0;
	while (right < size && seen.at[right] == at_byte(at_rank, 1, right % 7))
		right++;
	AT_CHECK(right == size, "another byte at %zu", right);
	/* More than passes at a time, from the front. */
	acp_reserve_vector(v, 700000);
	at_fill(source.at, 600000, at_rank, 2);
	acp_insert_vector(acp_begin_vector(v), source.ga, 600000);
	acp_insert_vector(acp_begin_vector(v), source.ga, 3);
	size = load(v);
	AT_CHECK(size == 621003, "%zu bytes", size);
	AT_CHECK(at_differs(seen.at, 3, at_rank, 2) == 3, "other bytes at the front");
	AT_CHECK(at_differs(seen.at + 3, 600000, at_rank, 2) == 600000, "another byte at %zu", at_differs(seen.at + 3, 600000, at_rank, 2));
	acp_erase_vector(acp_begin_vector(v), 1);
	AT_CHECK(load(v) == 621002 && at_differs(seen.at + 2, 600000, at_rank, 2) == 600000, "other bytes after one is erased");
	acp_destroy_vector(v);
}

static void edits(int rank, int other) {
	acp_vector_t v = made("abcdefgh", rank), w = made("12345", other);
	acp_vector_it_t it = acp_insert_vector(at(v, 3), of("XY"), 2);
	AT_CHECK(it.vector.ga == v.ga && it.index == 3, "an insertion at %d", it.index);
	HAS(v, "abcXYdefgh");
	it = acp_insert_vector(acp_end_vector(v), of("!"), 1);
	AT_CHECK(it.index == 10, "an insertion at %d", it.index);
	HAS(v, "abcXYdefgh!");
	it = acp_erase_vector(at(v, 3), 2);
	AT_CHECK(it.index == 3, "an erasure at %d", it.index);
	HAS(v, "abcdefgh!");
	acp_erase_vector(at(v, 8), 100);
	HAS(v, "abcdefgh");
	it = acp_erase_range_vector(at(v, 1), at(v, 4));
	AT_CHECK(it.index == 1, "an erasure at %d", it.index);
	HAS(v, "aefgh");
	it = acp_insert_range_vector(at(v, 1), at(w, 1), at(w, 4));
	AT_CHECK(it.index == 1, "an insertion at %d", it.index);
	HAS(v, "a234efgh");
	acp_insert_range_vector(at(v, 2), at(v, 1), at(v, 6));
	HAS(v, "a2234ef34efgh");
	/* Bytes of its own, by where they lie, with room and without. */
	acp_reserve_vector(v, 100);
	acp_push_back_vector(v, acp_at_vector(v, 0), 3);
	HAS(v, "a2234ef34efgha22");
	acp_insert_vector(at(v, 1), acp_at_vector(v, 0), 4);
	HAS(v, "aa2232234ef34efgha22");
	acp_assign_range_vector(v, at(v, 15), at(v, 20));
	HAS(v, "gha22");
	for (int i = 0; i < 6; i++) {
		size_t size = acp_size_vector(v);
		acp_push_back_vector(v, acp_at_vector(v, 0), size);
	}
	AT_CHECK(load(v) == 320 && memcmp(seen.at + 310, "gha22gha22", 10) == 0, "%zu bytes of its own", acp_size_vector(v));
	acp_assign_vector(v, w);
	HAS(v, "12345");
	HAS(w, "12345");
	acp_assign_vector(v, v);
	HAS(v, "12345");
	acp_assign_range_vector(w, at(v, 1), at(v, 3));
	HAS(w, "23");
	acp_swap_vector(v, w);
	HAS(v, "23");
	HAS(w, "12345");
	acp_swap_vector(v, v);
	HAS(v, "23");
	acp_push_back_vector(v, of("abcdefghijklmnopqrstuvwxyz"), 26);
	HAS(v, "23abcdefghijklmnopqrstuvwxyz");
	AT_CHECK(acp_query_rank(acp_at_vector(v, 27)) >= 0, "a byte of no rank");
	acp_destroy_vector(v);
	acp_destroy_vector(w);
}

static void iterators(int rank) {
	acp_vector_t v = made("hello", rank), w = made("world", rank);
	acp_vector_it_t begin = acp_begin_vector(v), end = acp_end_vector(v);
	AT_CHECK(begin.vector.ga == v.ga && begin.index == 0 && end.vector.ga == v.ga && end.index == 5, "%d and %d", begin.index, end.index);
	AT_CHECK(acp_distance_vector_it(begin, end) == 5 && acp_distance_vector_it(end, begin) == -5, "%d", acp_distance_vector_it(begin, end));
	AT_CHECK(acp_advance_vector_it(end, -2).index == 3 && acp_advance_vector_it(begin, 0).index == 0, "iterators advance");
	AT_CHECK(acp_dereference_vector_it(at(v, 4)) == acp_at_vector(v, 4) && acp_at_vector(v, 4) != ACP_GA_NULL, "the last byte");
	/* What cannot be. */
	AT_CHECK(acp_dereference_vector_it(end) == ACP_GA_NULL, "there is a byte at the end");
	AT_CHECK(acp_advance_vector_it(begin, -1).vector.ga == ACP_GA_NULL, "there is a byte before the first");
	AT_CHECK(acp_advance_vector_it(at(v, 1), 2147483647).vector.ga == ACP_GA_NULL, "an index overflows");
	AT_CHECK(acp_insert_vector(at(v, 6), of("x"), 1).vector.ga == ACP_GA_NULL, "an insertion behind the end");
	AT_CHECK(acp_erase_vector(at(v, 6), 1).vector.ga == ACP_GA_NULL, "an erasure behind the end");
	AT_CHECK(acp_erase_range_vector(end, begin).vector.ga == ACP_GA_NULL, "an erasure from the end to the beginning");
	AT_CHECK(acp_erase_range_vector(begin, acp_end_vector(w)).vector.ga == ACP_GA_NULL, "an erasure from one to another");
	AT_CHECK(acp_insert_range_vector(begin, acp_begin_vector(w), at(w, 6)).vector.ga == ACP_GA_NULL, "six bytes of five");
	AT_CHECK(acp_insert_vector(begin, ACP_GA_NULL, 1).vector.ga == ACP_GA_NULL, "a byte at NULL");
	AT_CHECK(acp_insert_vector(begin, source.ga + source.size - 1, 2).vector.ga == ACP_GA_NULL, "a byte behind its region");
	acp_assign_range_vector(v, at(w, 3), at(w, 7));
	acp_push_back_vector(v, ACP_GA_NULL, 1);
	acp_push_back_vector(v, acp_at_vector(v, 4), 2);
	acp_push_back_vector(v, ACP_GA_NULL, 0);
	acp_reserve_vector(v, SIZE_MAX);
	HAS(v, "hello");
	acp_destroy_vector(v);
	acp_destroy_vector(w);
}

static void nothing(void) {
	acp_vector_t none;
	none.ga = ACP_GA_NULL;
	acp_vector_it_t it = acp_begin_vector(none);
	AT_CHECK(it.vector.ga == ACP_GA_NULL && acp_end_vector(none).vector.ga == ACP_GA_NULL, "an iterator of none");
	AT_CHECK(acp_size_vector(none) == 0 && acp_capacity_vector(none) == 0 && acp_empty_vector(none) == -1, "none has a size");
	AT_CHECK(acp_at_vector(none, 0) == ACP_GA_NULL && acp_dereference_vector_it(it) == ACP_GA_NULL, "none has a byte");
	AT_CHECK(acp_erase_vector(it, 1).vector.ga == ACP_GA_NULL && acp_erase_range_vector(it, it).vector.ga == ACP_GA_NULL, "erased");
	AT_CHECK(acp_insert_vector(it, source.ga, 1).vector.ga == ACP_GA_NULL, "inserted");
	AT_CHECK(acp_insert_range_vector(it, it, it).vector.ga == ACP_GA_NULL, "inserted");
	acp_push_back_vector(none, source.ga, 1);
	acp_pop_back_vector(none, 1);
	acp_assign_vector(none, none);
	acp_assign_range_vector(none, it, it);
	acp_swap_vector(none, none);
	acp_reserve_vector(none, 8);
	acp_clear_vector(none);
	acp_destroy_vector(none);
	AT_CHECK(strstr(at_why(), "acp_destroy_vector: "), "%s", at_why());
	AT_CHECK(acp_create_vector(8, -1).ga == ACP_GA_NULL && acp_create_vector(8, at_procs).ga == ACP_GA_NULL, "on no rank");
	AT_CHECK(acp_create_vector(SIZE_MAX, 0).ga == ACP_GA_NULL && strstr(at_why(), "memory"), "%s", at_why());
}

int main(int argc, char **argv) {
	AT_CHECK(acp_create_vector(8, 0).ga == ACP_GA_NULL, "a vector outside of a job");
	at_begin(&argc, &argv);
	source = at_region(1 << 20);
	seen = at_region(1 << 20);
	at_sync();
	for (int turn = 0; turn < at_procs; turn++) {
		if (turn == at_rank) {
			for (int rank = 0; rank < at_procs; rank++) {
				life(rank);
				edits(rank, (rank + 1) % at_procs);
				iterators(rank);
			}
			header();
			growth((at_rank + 1) % at_procs);
			nothing();
		}
		at_sync();
	}
	/* One that others go on with. */
	acp_vector_t mine = acp_create_vector(0, (at_rank + 1) % at_procs);
	acp_ga_t all[AT_MAX];
	at_exchange(0, mine.ga, all);
	acp_vector_t theirs;
	theirs.ga = all[(at_rank + 1) % at_procs];
	acp_push_back_vector(theirs, of("from a neighbour"), 16);
	at_sync();
	HAS(mine, "from a neighbour");
	acp_destroy_vector(mine);
	return at_end();
}
