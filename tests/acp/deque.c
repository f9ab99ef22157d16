/* Deques: every function, of deques on every rank, worked on by each rank in turn. */
#include "at.h"

static struct at_region source, seen;

static void fetch(acp_element_t part, size_t to) {
	AT_MUST(to + part.size <= seen.size, "%zu bytes", part.size);
	if (part.size > 0)
		acp_complete(acp_copy(seen.ga + to, part.ga, part.size, AT_NULL));
}

/* What the deque has, into `seen`. */
static size_t load(acp_deque_t d) {
	size_t size = acp_size_deque(d);
	if (size > 0) {
		acp_pair_t parts = acp_dereference_deque_it(acp_begin_deque(d), size);
		AT_CHECK(parts.first.size + parts.second.size == size, "%zu and %zu of %zu bytes", parts.first.size, parts.second.size, size);
		AT_CHECK((parts.second.size == 0) == (parts.second.ga == ACP_GA_NULL), "a second part of %zu bytes", parts.second.size);
		fetch(parts.first, 0);
		fetch(parts.second, parts.first.size);
	}
	return size;
}

static void has_at(int line, acp_deque_t d, const char *text) {
	size_t size = load(d);
	if (size != strlen(text) || memcmp(seen.at, text, size) != 0)
		at_failed(line, "a deque has '%.*s' in place of '%s'", (int)(size < 200 ? size : 200), (char *)seen.at, text);
	if (acp_empty_deque(d) != (size == 0))
		at_failed(line, "empty says %d of %zu bytes", acp_empty_deque(d), size);
	if (acp_capacity_deque(d) < size)
		at_failed(line, "a capacity of %zu for %zu bytes", acp_capacity_deque(d), size);
}
#define HAS(d, text) has_at(__LINE__, d, text)

/* The global address of a text, until the next one. */
static acp_ga_t of(const char *text) {
	memcpy(source.at, text, strlen(text));
	return source.ga;
}

static acp_deque_t made(const char *text, int rank) {
	acp_deque_t d = acp_create_deque(0, rank);
	AT_MUST(d.ga != ACP_GA_NULL && acp_query_rank(d.ga) == rank, "a deque on rank %d: %s", rank, at_why());
	acp_push_back_deque(d, of(text), strlen(text));
	return d;
}

static acp_deque_it_t at(acp_deque_t d, int index) {
	return acp_advance_deque_it(acp_begin_deque(d), index);
}

static void ends(int rank) {
	acp_deque_t d = acp_create_deque(13, rank);
	AT_MUST(d.ga != ACP_GA_NULL, "%s", at_why());
	AT_CHECK(acp_size_deque(d) == 0 && acp_empty_deque(d) == 1 && acp_capacity_deque(d) == 16, "room for %zu", acp_capacity_deque(d));
	AT_CHECK(acp_at_deque(d, 0) == ACP_GA_NULL, "there is a byte in none");
	acp_push_back_deque(d, of("cdef"), 4);
	acp_push_front_deque(d, of("ab"), 2);
	HAS(d, "abcdef");
	/* The bytes begin near the end of the room, and go on at its start. */
	acp_pair_t parts = acp_dereference_deque_it(acp_begin_deque(d), 6);
	AT_CHECK(parts.first.size == 2 && parts.second.size == 4, "%zu and %zu bytes", parts.first.size, parts.second.size);
	AT_CHECK(acp_query_rank(parts.first.ga) == rank && acp_query_rank(parts.second.ga) == rank, "parts of other ranks");
	AT_CHECK(acp_at_deque(d, 0) == parts.first.ga && acp_at_deque(d, 2) == parts.second.ga, "bytes that are not in the parts");
	AT_CHECK(acp_at_deque(d, 5) == parts.second.ga + 3 && acp_at_deque(d, 6) == ACP_GA_NULL, "the last byte");
	AT_CHECK(acp_at_deque(d, -1) == ACP_GA_NULL, "there is a byte before the first");
	parts = acp_dereference_deque_it(at(d, 1), 1);
	AT_CHECK(parts.first.size == 1 && parts.second.size == 0 && parts.second.ga == ACP_GA_NULL, "one byte in two parts");
	parts = acp_dereference_deque_it(at(d, 4), 100);
	AT_CHECK(parts.first.size == 2 && parts.second.size == 0, "%zu bytes of two", parts.first.size);
	parts = acp_dereference_deque_it(acp_end_deque(d), 1);
	AT_CHECK(parts.first.ga == ACP_GA_NULL && parts.first.size == 0 && parts.second.ga == ACP_GA_NULL, "bytes at the end");
	for (int i = 0; i < 50; i++) {
		acp_push_front_deque(d, of("123"), 3);
		acp_pop_back_deque(d, 3);
		HAS(d, i % 2 == 0 ? (i == 0 ? "123abc" : "123123") : "123123");
	}
	for (int i = 0; i < 50; i++) {
		acp_push_back_deque(d, of("xy"), 2);
		acp_pop_front_deque(d, 2);
	}
	HAS(d, "xyxyxy");
	AT_CHECK(acp_capacity_deque(d) == 16, "it has grown to %zu", acp_capacity_deque(d));
	acp_push_front_deque(d, of("a longer text than fits"), 23);
	HAS(d, "a longer text than fitsxyxyxy");
	acp_pop_front_deque(d, 20);
	acp_pop_back_deque(d, 2);
	HAS(d, "itsxyxy");
	acp_pop_front_deque(d, 100);
	HAS(d, "");
	acp_pop_back_deque(d, 1);
	acp_pop_front_deque(d, 1);
	acp_reserve_deque(d, 5000);
	AT_CHECK(acp_capacity_deque(d) >= 5000, "room for %zu of 5000", acp_capacity_deque(d));
	acp_push_front_deque(d, of("z"), 1);
	acp_clear_deque(d);
	HAS(d, "");
	acp_destroy_deque(d);
}

/* The header's words, as programs for ACP 3.0.0 read them: address, where the bytes begin, bytes, capacity. */
static void header(void) {
	acp_deque_t d = acp_create_deque(0, at_rank);
	volatile const uint64_t *words = (volatile const uint64_t *)acp_query_address(d.ga);
	AT_MUST(words != NULL, "%s", at_why());
	for (int i = 0; i < 5; i++)
		acp_push_back_deque(d, of("word"), 4);
	AT_CHECK(words[0] == acp_at_deque(d, 0) && words[1] == 0, "%#" PRIx64 ", from %" PRIu64 " on", words[0], words[1]);
	AT_CHECK(words[2] == 20 && words[3] == 20, "%" PRIu64 " bytes of %" PRIu64, words[2], words[3]);
	acp_pop_front_deque(d, 4);
	acp_push_back_deque(d, of("12"), 2);
	AT_CHECK(words[1] == 4 && words[2] == 18 && words[3] == 20, "%" PRIu64 ", %" PRIu64 ", %" PRIu64, words[1], words[2], words[3]);
	/* They go on at the start of the block behind the capacity. */
	acp_ga_t last = acp_at_deque(d, 17);
	AT_CHECK(last == words[0] + 1, "the last byte is at %#" PRIx64, last);
	HAS(d, "wordwordwordword12");
	/* One more than there is room for, of bytes that are in two parts; then of bytes in one part. */
	acp_push_back_deque(d, of("345"), 3);
	HAS(d, "wordwordwordword12345");
	AT_CHECK(words[3] == 21, "a capacity of %" PRIu64, words[3]);
	acp_push_back_deque(d, of("6"), 1);
	acp_push_front_deque(d, of("<>"), 2);
	acp_insert_deque(at(d, 1), of("-"), 1);
	HAS(d, "<->wordwordwordword123456");
	AT_CHECK(words[2] == 25 && words[3] == 25, "%" PRIu64 " bytes of %" PRIu64, words[2], words[3]);
	acp_destroy_deque(d);
}

static void edits(int rank, int other) {
	acp_deque_t d = made("abcdefgh", rank), e = made("12345", other);
	acp_push_front_deque(d, of("<"), 1);
	acp_deque_it_t it = acp_insert_deque(at(d, 3), of("XY"), 2);
	AT_CHECK(it.deque.ga == d.ga && it.index == 3, "an insertion at %d", it.index);
	HAS(d, "<abXYcdefgh");
	acp_insert_deque(at(d, 9), of("Z"), 1);
	HAS(d, "<abXYcdefZgh");
	acp_insert_deque(acp_end_deque(d), of(">"), 1);
	HAS(d, "<abXYcdefZgh>");
	it = acp_erase_deque(at(d, 3), 2);
	AT_CHECK(it.index == 3, "an erasure at %d", it.index);
	acp_erase_deque(at(d, 7), 1);
	HAS(d, "<abcdefgh>");
	acp_erase_deque(at(d, 9), 100);
	HAS(d, "<abcdefgh");
	it = acp_erase_range_deque(at(d, 1), at(d, 4));
	AT_CHECK(it.index == 1, "an erasure at %d", it.index);
	HAS(d, "<defgh");
	it = acp_insert_range_deque(at(d, 1), at(e, 1), at(e, 4));
	AT_CHECK(it.index == 1, "an insertion at %d", it.index);
	HAS(d, "<234defgh");
	acp_insert_range_deque(at(d, 2), at(d, 1), at(d, 6));
	HAS(d, "<2234de34defgh");
	acp_assign_range_deque(d, at(d, 1), at(d, 7));
	HAS(d, "2234de");
	acp_assign_deque(d, e);
	HAS(d, "12345");
	acp_assign_deque(d, d);
	HAS(d, "12345");
	acp_assign_range_deque(e, at(d, 1), at(d, 3));
	HAS(e, "23");
	acp_swap_deque(d, e);
	HAS(d, "23");
	HAS(e, "12345");
	acp_push_front_deque(d, acp_at_deque(d, 1), 1);
	HAS(d, "323");
	acp_destroy_deque(d);
	acp_destroy_deque(e);
}

static void iterators(int rank) {
	acp_deque_t d = made("hello", rank), e = made("world", rank);
	acp_deque_it_t begin = acp_begin_deque(d), end = acp_end_deque(d);
	AT_CHECK(begin.deque.ga == d.ga && begin.index == 0 && end.deque.ga == d.ga && end.index == 5, "%d and %d", begin.index, end.index);
	AT_CHECK(acp_distance_deque_it(begin, end) == 5 && acp_distance_deque_it(end, begin) == -5, "%d", acp_distance_deque_it(begin, end));
	AT_CHECK(acp_advance_deque_it(end, -2).index == 3, "iterators advance");
	AT_CHECK(acp_advance_deque_it(begin, -1).deque.ga == ACP_GA_NULL, "there is a byte before the first");
	AT_CHECK(acp_insert_deque(at(d, 6), of("x"), 1).deque.ga == ACP_GA_NULL, "an insertion behind the end");
	AT_CHECK(acp_erase_deque(at(d, 6), 1).deque.ga == ACP_GA_NULL, "an erasure behind the end");
	AT_CHECK(acp_erase_range_deque(end, begin).deque.ga == ACP_GA_NULL, "an erasure from the end to the beginning");
	AT_CHECK(acp_erase_range_deque(begin, acp_end_deque(e)).deque.ga == ACP_GA_NULL, "an erasure from one to another");
	AT_CHECK(acp_insert_range_deque(begin, acp_begin_deque(e), at(e, 6)).deque.ga == ACP_GA_NULL, "six bytes of five");
	acp_assign_range_deque(d, at(e, 3), at(e, 7));
	acp_push_back_deque(d, ACP_GA_NULL, 1);
	acp_push_front_deque(d, ACP_GA_NULL, 1);
	acp_reserve_deque(d, SIZE_MAX);
	HAS(d, "hello");
	acp_destroy_deque(d);
	acp_destroy_deque(e);
}

static void nothing(void) {
	acp_deque_t none;
	none.ga = ACP_GA_NULL;
	acp_deque_it_t it = acp_begin_deque(none);
	AT_CHECK(it.deque.ga == ACP_GA_NULL && acp_end_deque(none).deque.ga == ACP_GA_NULL, "an iterator of none");
	AT_CHECK(acp_size_deque(none) == 0 && acp_capacity_deque(none) == 0 && acp_empty_deque(none) == -1, "none has a size");
	AT_CHECK(acp_at_deque(none, 0) == ACP_GA_NULL && acp_dereference_deque_it(it, 1).first.ga == ACP_GA_NULL, "none has a byte");
	AT_CHECK(acp_erase_deque(it, 1).deque.ga == ACP_GA_NULL && acp_erase_range_deque(it, it).deque.ga == ACP_GA_NULL, "erased");
	AT_CHECK(acp_insert_deque(it, source.ga, 1).deque.ga == ACP_GA_NULL, "inserted");
	AT_CHECK(acp_insert_range_deque(it, it, it).deque.ga == ACP_GA_NULL, "inserted");
	acp_push_back_deque(none, source.ga, 1);
	acp_push_front_deque(none, source.ga, 1);
	acp_pop_back_deque(none, 1);
	acp_pop_front_deque(none, 1);
	acp_assign_deque(none, none);
	acp_assign_range_deque(none, it, it);
	acp_swap_deque(none, none);
	acp_reserve_deque(none, 8);
	acp_clear_deque(none);
	acp_destroy_deque(none);
	AT_CHECK(strstr(at_why(), "acp_destroy_deque: "), "%s", at_why());
	AT_CHECK(acp_create_deque(8, -1).ga == ACP_GA_NULL && acp_create_deque(8, at_procs).ga == ACP_GA_NULL, "on no rank");
	AT_CHECK(acp_create_deque(SIZE_MAX, 0).ga == ACP_GA_NULL, "all memory there is");
}

int main(int argc, char **argv) {
	AT_CHECK(acp_create_deque(8, 0).ga == ACP_GA_NULL, "a deque outside of a job");
	at_begin(&argc, &argv);
	source = at_region(1 << 16);
	seen = at_region(1 << 16);
	at_sync();
	for (int turn = 0; turn < at_procs; turn++) {
		if (turn == at_rank) {
			for (int rank = 0; rank < at_procs; rank++) {
				ends(rank);
				edits(rank, (rank + 1) % at_procs);
				iterators(rank);
			}
			header();
			nothing();
		}
		at_sync();
	}
	return at_end();
}
