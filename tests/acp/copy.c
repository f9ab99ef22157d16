/* Copies: from every rank to every rank, issued by every rank, of 0 B to 64 MiB, aligned or not; nothing beside is touched. */
#include "at.h"

#define GUARD 64
#define SMALL (132 * 1024 + 8) /* bytes of the largest copy that all issue at once */
#define PLACE (SMALL + 2 * GUARD)
#define LARGE ((size_t)64 << 20)
#define BLANK 0xee

static struct at_region from, to;
static acp_ga_t sources[AT_MAX], targets[AT_MAX];

/* Where the copy that `issuer` makes from `source` lands. */
static size_t place(int issuer, int source) {
	return (size_t)(issuer * at_procs + source) * PLACE + GUARD;
}

static void all_at_once(size_t size, size_t skip, size_t shift, unsigned round) {
	at_fill(from.at, SMALL + GUARD, at_rank, round);
	memset(to.at, BLANK, to.size);
	at_sync();
	acp_handle_t last = 0;
	for (int s = 0; s < at_procs; s++) {
		for (int d = 0; d < at_procs; d++) {
			acp_ga_t target = targets[d] + place(at_rank, s) + shift;
			acp_handle_t h = acp_copy(target, sources[s] + skip, size, AT_NULL);
			AT_CHECK(h > last, "%zu B from %d to %d: %" PRId64 " after %" PRId64 ": %s", size, s, d, h, last, at_why());
			last = h;
		}
	}
	acp_complete(last);
	AT_CHECK(acp_inquire(last) == 0, "the last is complete and is not");
	at_sync();
	for (int issuer = 0; issuer < at_procs; issuer++) {
		for (int s = 0; s < at_procs; s++) {
			const unsigned char *start = to.at + place(issuer, s) - GUARD, *at = start + GUARD + shift;
			size_t wrong = 0;
			while (wrong < size && at[wrong] == at_byte(s, round, skip + wrong))
				wrong++;
			AT_CHECK(wrong == size, "%zu B at %zu + %zu from %d by %d: byte %zu", size, skip, shift, s, issuer, wrong);
			AT_CHECK(at_all_are(start, GUARD + shift, BLANK), "%zu B from %d by %d: bytes before", size, s, issuer);
			AT_CHECK(at_all_are(at + size, PLACE - GUARD - shift - size, BLANK), "%zu B from %d by %d: bytes behind", size, s,
				issuer);
		}
	}
	at_sync();
}

static void small_ones(void) {
	static const size_t sizes[] = {0, 1, 2, 3, 4, 7, 8, 9, 31, 64, 255, 1000, 4096, 4097, 8192, 32769, 65536, 131072, 131073};
	static const size_t skips[] = {0, 1, 7, 40}, shifts[] = {0, 3, 4, 7};
	unsigned round = 0;
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
		for (size_t j = 0; j < 4; j++, round++)
			all_at_once(sizes[i], skips[j], shifts[(i + j) % 4], round);
}

/* Each issues one: from the next but one to the next, so that with three ranks it is neither end. */
static void large_ones(void) {
	static const size_t sizes[] = {(1 << 20) + 3, (4 << 20) - 1, LARGE};
	int target = (at_rank + 1) % at_procs, source = (at_rank + 2) % at_procs;
	int arrives_from = (at_rank + 1) % at_procs;
	struct at_region a = at_region(LARGE), b = at_region(LARGE);
	acp_ga_t as[AT_MAX], bs[AT_MAX];
	at_exchange(0, a.ga, as);
	at_exchange(1, b.ga, bs);
	for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		size_t shift = LARGE - sizes[i] < 5 ? 0 : 5;
		at_fill(a.at, sizes[i], at_rank, 1000 + i);
		memset(b.at, BLANK, LARGE);
		at_sync();
		acp_handle_t h = acp_copy(bs[target] + shift, as[source], sizes[i], AT_NULL);
		AT_CHECK(h >= 1, "%zu B: %s", sizes[i], at_why());
		acp_complete(h);
		at_sync();
		size_t wrong = at_differs(b.at + shift, sizes[i], arrives_from, 1000 + i);
		AT_CHECK(wrong == sizes[i], "%zu B from %d: byte %zu", sizes[i], arrives_from, wrong);
		AT_CHECK(at_all_are(b.at, shift, BLANK), "%zu B: bytes before", sizes[i]);
		size_t behind = LARGE - shift - sizes[i];
		AT_CHECK(at_all_are(b.at + shift + sizes[i], behind, BLANK), "%zu B: bytes behind", sizes[i]);
		at_sync();
	}
	at_free(a);
	at_free(b);
}

/* What is found wrong when the copy is issued. */
static void refused_ones(void) {
	acp_ga_t good = targets[(at_rank + 1) % at_procs];
	at_sync();
	AT_CHECK(acp_copy(good, ACP_GA_NULL, 8, AT_NULL) == AT_NULL, "a copy from NULL");
	AT_CHECK(acp_error() && strstr(acp_error(), "acp_copy: "), "%s", at_why());
	AT_CHECK(acp_copy(ACP_GA_NULL, good, 8, AT_NULL) == AT_NULL, "a copy to NULL");
	AT_CHECK(acp_copy(ACP_GA_NULL, ACP_GA_NULL, 0, AT_NULL) == AT_NULL, "a copy of nothing from NULL to NULL");
	AT_CHECK(acp_copy(to.ga, to.ga + to.size - 7, 8, AT_NULL) == AT_NULL, "a copy from behind my own region");
	AT_CHECK(acp_copy(to.ga + to.size - 7, to.ga, 8, AT_NULL) == AT_NULL, "a copy to behind my own region");
	AT_CHECK(acp_copy(to.ga, from.ga, SIZE_MAX, AT_NULL) == AT_NULL, "a copy of all there is");
	static const acp_handle_t never[] = {-3, -4, -1000, INT64_MIN, INT64_MIN + 1};
	for (size_t i = 0; i < sizeof never / sizeof never[0]; i++)
		AT_CHECK(acp_copy(good, good + 8, 8, never[i]) == AT_NULL, "a copy after %" PRId64, never[i]);
	AT_CHECK(acp_error() && strstr(acp_error(), "is no handle"), "%s", at_why());
	/* The whole region may be copied, and nothing just behind its end. */
	acp_handle_t h = acp_copy(to.ga + to.size, from.ga + from.size, 0, AT_NULL);
	AT_CHECK(h >= 1, "nothing just behind the end: %s", at_why());
	acp_complete(h);
	at_sync();
}

int main(int argc, char **argv) {
	at_begin(&argc, &argv);
	from = at_region(SMALL + GUARD);
	to = at_region((size_t)at_procs * (size_t)at_procs * PLACE);
	at_exchange(0, from.ga, sources);
	at_exchange(1, to.ga, targets);
	small_ones();
	large_ones();
	refused_ones();
	return at_end();
}
