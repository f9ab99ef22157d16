/* Lists: every function, of lists on every rank with elements on all, worked on by each rank in turn. */
#include "at.h"

static struct at_region source, seen;

static acp_element_t element(const char *text) {
	acp_element_t e;
	memcpy(source.at, text, strlen(text));
	e.ga = source.ga;
	e.size = strlen(text);
	return e;
}

/* Where a comparison and a look have what they fetch. */
static size_t fetch(acp_element_t e, size_t to) {
	AT_MUST(to + e.size <= seen.size, "an element of %zu bytes", e.size);
	if (e.size > 0)
		acp_complete(acp_copy(seen.ga + to, e.ga, e.size, AT_NULL));
	return e.size;
}

/* By the first byte only, so that what is behind it tells equal ones apart. */
static unsigned compared;
static int by_first(const acp_element_t one, const acp_element_t other) {
	compared++;
	fetch(one, 0);
	fetch(other, 1000);
	return (int)seen.at[0] - (int)seen.at[1000];
}

/* The elements' texts with commas between, forwards and back. */
static void has_at(int line, acp_list_t l, const char *text) {
	char got[2000] = "", back[2000] = "";
	size_t count = 0;
	acp_list_it_t it = acp_begin_list(l), end = acp_end_list(l);
	for (; it.elem != end.elem; it = acp_increment_list_it(it), count++) {
		AT_MUST(it.elem != ACP_GA_NULL && count < 100, "line %d: an iterator: %s", line, at_why());
		size_t size = fetch(acp_dereference_list_it(it), 0);
		snprintf(got + strlen(got), 100, "%s%.*s", count > 0 ? "," : "", (int)size, (char *)seen.at);
	}
	for (size_t i = 0; i < count; i++) {
		it = acp_decrement_list_it(it);
		AT_MUST(it.elem != ACP_GA_NULL, "line %d: an iterator: %s", line, at_why());
		char rest[2000];
		memcpy(rest, back, sizeof rest);
		size_t size = fetch(acp_dereference_list_it(it), 0);
		snprintf(back, sizeof back, "%.*s%s%.1000s", (int)size, (char *)seen.at, i > 0 ? "," : "", rest);
	}
	if (strcmp(got, text) != 0 || strcmp(back, text) != 0)
		at_failed(line, "a list has '%s', and from behind '%s', in place of '%s'", got, back, text);
	if (acp_size_list(l) != count || acp_empty_list(l) != (count == 0))
		at_failed(line, "a list says %zu, and %d, of %zu elements", acp_size_list(l), acp_empty_list(l), count);
	if (acp_distance_list_it(acp_begin_list(l), end) != (int)count)
		at_failed(line, "a list of %d elements", acp_distance_list_it(acp_begin_list(l), end));
}
#define HAS(l, text) has_at(__LINE__, l, text)

static acp_list_t made(const char *texts, int rank) {
	acp_list_t l = acp_create_list(rank);
	AT_MUST(l.ga != ACP_GA_NULL && acp_query_rank(l.ga) == rank, "a list on rank %d: %s", rank, at_why());
	char text[100];
	for (int i = 0; *texts; i++) {
		size_t size = strcspn(texts, ",");
		memcpy(text, texts, size);
		text[size] = 0;
		acp_push_back_list(l, element(text), (rank + i) % at_procs);
		texts += size + (texts[size] == ',');
	}
	return l;
}

static acp_list_it_t at(acp_list_t l, int index) {
	return acp_advance_list_it(acp_begin_list(l), index);
}

static void ends(int rank) {
	acp_list_t l = acp_create_list(rank);
	HAS(l, "");
	AT_CHECK(acp_begin_list(l).elem == acp_end_list(l).elem && acp_end_list(l).list.ga == l.ga, "an empty list has an element");
	for (int r = 0; r < at_procs; r++) {
		acp_push_back_list(l, element("b"), r);
		acp_list_it_t last = acp_decrement_list_it(acp_end_list(l));
		AT_CHECK(acp_query_rank(acp_dereference_list_it(last).ga) == r, "an element of another rank than %d", r);
		acp_push_front_list(l, element("a"), r);
		AT_CHECK(acp_query_rank(acp_dereference_list_it(acp_begin_list(l)).ga) == r, "an element of another rank than %d", r);
		HAS(l, "a,b");
		acp_pop_front_list(l);
		HAS(l, "b");
		acp_pop_back_list(l);
		HAS(l, "");
	}
	acp_push_back_list(l, element(""), rank);
	acp_push_back_list(l, element("x"), rank);
	HAS(l, ",x");
	AT_CHECK(acp_dereference_list_it(acp_begin_list(l)).size == 0, "an element without bytes has some");
	acp_pop_back_list(l);
	acp_pop_back_list(l);
	acp_pop_back_list(l);
	AT_CHECK(strstr(at_why(), "acp_pop_back_list: "), "%s", at_why());
	acp_pop_front_list(l);
	HAS(l, "");
	acp_destroy_list(l);
}

static void edits(int rank, int other) {
	acp_list_t l = made("a,b,c,d,e", rank), m = made("1,2,3", other);
	acp_list_it_t it = acp_insert_list(at(l, 2), element("new"), other);
	AT_CHECK(it.list.ga == l.ga && acp_query_rank(it.elem) == other && acp_distance_list_it(acp_begin_list(l), it) == 2, "inserted");
	HAS(l, "a,b,new,c,d,e");
	it = acp_erase_list(it);
	AT_CHECK(it.elem == at(l, 2).elem, "another one follows");
	HAS(l, "a,b,c,d,e");
	it = acp_insert_range_list(at(l, 1), at(m, 1), acp_end_list(m));
	AT_CHECK(it.elem == at(l, 1).elem, "other ones are inserted");
	AT_CHECK(acp_query_rank(it.elem) == acp_query_rank(at(m, 1).elem), "a copy is of another rank");
	HAS(l, "a,2,3,b,c,d,e");
	it = acp_insert_range_list(at(l, 2), at(l, 0), at(l, 4));
	HAS(l, "a,2,a,2,3,b,3,b,c,d,e");
	it = acp_erase_range_list(at(l, 2), at(l, 8));
	AT_CHECK(it.elem == at(l, 2).elem, "another one follows");
	HAS(l, "a,2,c,d,e");
	it = acp_erase_range_list(it, it);
	AT_CHECK(it.elem == at(l, 2).elem, "another one follows");
	acp_assign_list(m, l);
	HAS(m, "a,2,c,d,e");
	acp_assign_list(m, m);
	acp_assign_range_list(m, at(m, 1), at(m, 3));
	HAS(m, "2,c");
	acp_assign_range_list(m, at(l, 3), acp_end_list(l));
	HAS(m, "d,e");
	HAS(l, "a,2,c,d,e");
	acp_swap_list(l, m);
	HAS(l, "d,e");
	HAS(m, "a,2,c,d,e");
	acp_swap_list(l, l);
	acp_clear_list(l);
	HAS(l, "");
	acp_swap_list(l, m);
	HAS(m, "");
	HAS(l, "a,2,c,d,e");
	acp_destroy_list(l);
	acp_destroy_list(m);
}

static void orders(int rank, int other) {
	acp_list_t l = made("c1,a1,b1,a2,c2,b2,a3", rank), m = made("b9,a9,d9", other);
	acp_reverse_list(l);
	HAS(l, "a3,b2,c2,a2,b1,a1,c1");
	acp_reverse_list(l);
	acp_list_it_t kept = at(l, 1);
	int of = acp_query_rank(kept.elem);
	compared = 0;
	acp_sort_list(l, by_first);
	HAS(l, "a1,a2,a3,b1,b2,c1,c2");
	AT_CHECK(compared <= 7 * 3, "%u comparisons of 7 elements", compared);
	AT_CHECK(kept.elem == acp_begin_list(l).elem && acp_query_rank(kept.elem) == of, "an element has moved");
	acp_sort_list(m, by_first);
	HAS(m, "a9,b9,d9");
	acp_merge_list(l, m, by_first);
	HAS(l, "a1,a2,a3,a9,b1,b2,b9,c1,c2,d9");
	HAS(m, "");
	acp_merge_list(l, l, by_first);
	acp_merge_list(l, m, by_first);
	HAS(l, "a1,a2,a3,a9,b1,b2,b9,c1,c2,d9");
	acp_merge_list(m, l, by_first);
	HAS(l, "");
	acp_sort_list(l, by_first);
	acp_reverse_list(l);
	acp_unique_list(l);
	HAS(l, "");
	HAS(m, "a1,a2,a3,a9,b1,b2,b9,c1,c2,d9");
	acp_destroy_list(l);
	acp_destroy_list(m);
	l = made("x,y,y,x,x,xx,x,y", rank);
	acp_remove_list(l, element("z"));
	HAS(l, "x,y,y,x,x,xx,x,y");
	acp_unique_list(l);
	HAS(l, "x,y,x,xx,x,y");
	acp_remove_list(l, element("x"));
	HAS(l, "y,xx,y");
	/* By an element of its own. */
	acp_remove_list(l, acp_dereference_list_it(acp_begin_list(l)));
	HAS(l, "xx");
	acp_destroy_list(l);
}

static void splices(int rank, int other) {
	acp_list_t l = made("a,b,c,d,e", rank), m = made("1,2,3", other);
	acp_list_it_t two = at(m, 1);
	acp_splice_list(at(l, 1), two);
	HAS(l, "a,2,b,c,d,e");
	HAS(m, "1,3");
	AT_CHECK(at(l, 1).elem == two.elem, "a copy was made");
	acp_splice_list(acp_end_list(l), at(l, 0));
	HAS(l, "2,b,c,d,e,a");
	acp_splice_list(at(l, 0), at(l, 5));
	HAS(l, "a,2,b,c,d,e");
	acp_splice_list(at(l, 1), at(l, 1));
	acp_splice_list(at(l, 2), at(l, 1));
	HAS(l, "a,2,b,c,d,e");
	acp_splice_list(at(l, 1), at(l, 2));
	HAS(l, "a,b,2,c,d,e");
	acp_splice_range_list(at(m, 1), at(l, 1), at(l, 4));
	HAS(l, "a,d,e");
	HAS(m, "1,b,2,c,3");
	acp_splice_range_list(acp_begin_list(m), at(m, 3), acp_end_list(m));
	HAS(m, "c,3,1,b,2");
	acp_splice_range_list(acp_end_list(l), acp_begin_list(m), acp_end_list(m));
	HAS(l, "a,d,e,c,3,1,b,2");
	HAS(m, "");
	acp_splice_range_list(acp_begin_list(m), acp_end_list(l), acp_end_list(l));
	acp_splice_range_list(at(l, 2), at(l, 1), at(l, 4));
	acp_splice_range_list(at(l, 1), at(l, 1), at(l, 4));
	acp_splice_range_list(at(l, 4), at(l, 1), at(l, 4));
	HAS(l, "a,d,e,c,3,1,b,2");
	acp_splice_list(acp_begin_list(m), acp_end_list(l));
	HAS(m, "");
	acp_destroy_list(l);
	acp_destroy_list(m);
}

static void iterators(int rank) {
	acp_list_t l = made("a,b,c", rank), m = made("d", rank);
	acp_list_it_t begin = acp_begin_list(l), end = acp_end_list(l), theirs = acp_begin_list(m);
	AT_CHECK(acp_advance_list_it(begin, 3).elem == end.elem && acp_advance_list_it(end, -3).elem == begin.elem, "iterators advance");
	AT_CHECK(acp_advance_list_it(begin, 0).elem == begin.elem, "one stays");
	AT_CHECK(acp_distance_list_it(begin, at(l, 2)) == 2 && acp_distance_list_it(end, end) == 0, "distances");
	AT_CHECK(acp_dereference_list_it(at(l, 1)).size == 1 && acp_dereference_list_it(at(l, 1)).ga != ACP_GA_NULL, "an element");
	/* What cannot be. */
	AT_CHECK(acp_increment_list_it(end).elem == ACP_GA_NULL && acp_decrement_list_it(begin).elem == ACP_GA_NULL, "past the ends");
	AT_CHECK(acp_advance_list_it(begin, 4).elem == ACP_GA_NULL && acp_advance_list_it(end, -4).elem == ACP_GA_NULL, "past the ends");
	AT_CHECK(acp_dereference_list_it(end).ga == ACP_GA_NULL && acp_dereference_list_it(end).size == 0, "an element at the end");
	AT_CHECK(acp_distance_list_it(end, begin) == -1 && acp_distance_list_it(begin, theirs) == -1, "distances that are none");
	AT_CHECK(acp_erase_list(end).elem == ACP_GA_NULL, "the end is erased");
	AT_CHECK(acp_erase_range_list(at(l, 1), begin).elem == ACP_GA_NULL, "a range that ends before it begins");
	AT_CHECK(acp_erase_range_list(begin, theirs).elem == ACP_GA_NULL, "a range from one to another");
	AT_CHECK(acp_insert_range_list(begin, acp_end_list(m), theirs).elem == ACP_GA_NULL, "a range that ends before it begins");
	AT_CHECK(acp_insert_list(begin, element("x"), at_procs).elem == ACP_GA_NULL, "an element of no rank");
	acp_element_t none;
	none.ga = ACP_GA_NULL;
	none.size = 1;
	AT_CHECK(acp_insert_list(begin, none, 0).elem == ACP_GA_NULL, "an element from NULL");
	acp_push_back_list(l, none, 0);
	acp_push_front_list(l, none, 0);
	acp_push_back_list(l, element("x"), -1);
	acp_remove_list(l, none);
	acp_sort_list(l, NULL);
	acp_merge_list(l, m, NULL);
	AT_CHECK(strstr(at_why(), "acp_merge_list: "), "%s", at_why());
	HAS(l, "a,b,c");
	HAS(m, "d");
	acp_destroy_list(l);
	acp_destroy_list(m);
}

static void nothing(void) {
	acp_list_t none;
	none.ga = ACP_GA_NULL;
	acp_list_it_t it = acp_begin_list(none);
	AT_CHECK(it.elem == ACP_GA_NULL && acp_end_list(none).elem == ACP_GA_NULL, "an iterator of none");
	AT_CHECK(acp_size_list(none) == 0 && acp_empty_list(none) == -1, "none has a size");
	AT_CHECK(acp_increment_list_it(it).elem == ACP_GA_NULL && acp_decrement_list_it(it).elem == ACP_GA_NULL, "none has elements");
	AT_CHECK(acp_advance_list_it(it, 1).elem == ACP_GA_NULL && acp_dereference_list_it(it).ga == ACP_GA_NULL, "none has elements");
	AT_CHECK(acp_distance_list_it(it, it) == -1, "none has elements");
	AT_CHECK(acp_erase_list(it).elem == ACP_GA_NULL && acp_erase_range_list(it, it).elem == ACP_GA_NULL, "erased");
	AT_CHECK(acp_insert_list(it, element("x"), 0).elem == ACP_GA_NULL, "inserted");
	AT_CHECK(acp_insert_range_list(it, it, it).elem == ACP_GA_NULL, "inserted");
	acp_push_back_list(none, element("x"), 0);
	acp_push_front_list(none, element("x"), 0);
	acp_pop_back_list(none);
	acp_pop_front_list(none);
	acp_assign_list(none, none);
	acp_assign_range_list(none, it, it);
	acp_swap_list(none, none);
	acp_merge_list(none, none, by_first);
	acp_sort_list(none, by_first);
	acp_reverse_list(none);
	acp_unique_list(none);
	acp_remove_list(none, element("x"));
	acp_splice_list(it, it);
	acp_splice_range_list(it, it, it);
	acp_clear_list(none);
	acp_destroy_list(none);
	AT_CHECK(strstr(at_why(), "acp_destroy_list: "), "%s", at_why());
	AT_CHECK(acp_create_list(-1).ga == ACP_GA_NULL && acp_create_list(at_procs).ga == ACP_GA_NULL, "on no rank");
}

/* The words of the header and of elements, as programs for ACP 3.0.0 read them: first, last, how many; next, before, bytes,
 * value. */
static void words(void) {
	acp_list_t l = acp_create_list(at_rank);
	acp_push_back_list(l, element("one"), at_rank);
	acp_push_back_list(l, element("another"), at_rank);
	volatile const uint64_t *header = (volatile const uint64_t *)acp_query_address(l.ga);
	AT_MUST(header != NULL, "%s", at_why());
	volatile const uint64_t *first = (volatile const uint64_t *)acp_query_address(header[0]);
	volatile const uint64_t *last = (volatile const uint64_t *)acp_query_address(header[1]);
	AT_MUST(first != NULL && last != NULL && header[2] == 2, "%" PRIu64 " elements", header[2]);
	AT_CHECK(first[0] == header[1] && first[1] == l.ga && first[2] == 3, "the first: %#" PRIx64 ", %#" PRIx64, first[0], first[1]);
	AT_CHECK(last[0] == l.ga && last[1] == header[0] && last[2] == 7, "the last: %#" PRIx64 ", %#" PRIx64, last[0], last[1]);
	AT_CHECK(memcmp((const void *)(first + 3), "one", 3) == 0 && memcmp((const void *)(last + 3), "another", 7) == 0, "the values");
	AT_CHECK(acp_dereference_list_it(acp_begin_list(l)).ga == header[0] + 24, "a value is elsewhere");
	acp_destroy_list(l);
}

int main(int argc, char **argv) {
	AT_CHECK(acp_create_list(0).ga == ACP_GA_NULL, "a list outside of a job");
	at_begin(&argc, &argv);
	source = at_region(4096);
	seen = at_region(4096);
	at_sync();
	for (int turn = 0; turn < at_procs; turn++) {
		if (turn == at_rank) {
			for (int rank = 0; rank < at_procs; rank++) {
				int other = (rank + 1) % at_procs;
				ends(rank);
				edits(rank, other);
				orders(rank, other);
				splices(rank, other);
				iterators(rank);
			}
			words();
			nothing();
		}
		at_sync();
	}
	return at_end();
}
