/* hashed: what the programs for sets, multisets and maps share. They define KIND, and put, which inserts the key with a number, then
 * include this. Keys and what else programs need lies in `pool`, a region of each rank's. */
#include "at.h"

#define PASTE(a, b, c) a##b##c
#define NAME(a, kind, c) PASTE(a, kind, c)
#define FN(name) NAME(acp_##name##_, KIND, )
#define IT_FN(name) NAME(acp_##name##_, KIND, _it)
typedef NAME(acp_, KIND, _t) container;
typedef NAME(acp_, KIND, _it_t) iterator;
typedef NAME(acp_, KIND, _ib_t) success;

enum { KEY_SIZES = 9, KEYS = 200, POOL = 1 << 20, HALF = POOL / 2 };
static struct at_region pool;
static acp_ga_t pools[AT_MAX];

static size_t key_size(int number) {
	static const size_t sizes[KEY_SIZES] = { 1 + sizeof(int), 8, 12, 16, 40, 100, 500, 1500, 3000 };
	return sizes[number % KEY_SIZES];
}

/* The bytes of a key: its number, then a pattern. */
static void key_bytes(int number, unsigned char *bytes) {
	at_fill(bytes, key_size(number), 0, (unsigned)number);
	memcpy(bytes, &number, sizeof number);
}

/* A key in this rank's memory, until the next but 100. */
static acp_element_t key(int number) {
	static int next;
	size_t at = (size_t)(next++ % 100) * 4096;
	key_bytes(number, pool.at + at);
	return (acp_element_t){ pool.ga + at, key_size(number) };
}

/* Where copies of elements go. */
static unsigned char *landing(void) {
	return pool.at + HALF;
}

static acp_ga_t landing_ga(void) {
	return pool.ga + HALF;
}

static int put(container c, int number);

/* The number of a key somewhere; -1 if it is none. */
static int number_of(acp_element_t element) {
	int number = -1;
	unsigned char expected[4096];
	if (element.ga == ACP_GA_NULL || element.size > 4096 || element.size < sizeof number)
		return -1;
	acp_complete(acp_copy(landing_ga(), element.ga, element.size, AT_NULL));
	memcpy(&number, landing(), sizeof number);
	if (number < 0 || element.size != key_size(number))
		return -1;
	key_bytes(number, expected);
	return memcmp(expected, landing(), element.size) == 0 ? number : -1;
}

static acp_element_t key_of(iterator it);

static bool same(iterator a, iterator b) {
	return a.rank == b.rank && a.slot == b.slot && a.elem == b.elem;
}

/* Where a key belongs: CRC-64 with the reflected polynomial, bit by bit. */
static void place(int number, container c, uint64_t *rank, uint64_t *slot) {
	unsigned char bytes[4096];
	uint64_t crc = ~0ULL;
	key_bytes(number, bytes);
	for (size_t i = 0; i < key_size(number); i++) {
		crc ^= bytes[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0xC96C5795D7870F42ULL : 0);
	}
	crc = ~crc >> 16;
	*rank = crc / c.num_slots % c.num_ranks;
	*slot = crc % c.num_slots;
}

/* A container of rank 0's for all. */
static container shared(container own) {
	at_tell(1, own.ga);
	at_tell(2, own.num_ranks);
	at_tell(3, own.num_slots);
	at_sync();
	container all;
	all.ga = at_told(0, 1);
	all.num_ranks = at_told(0, 2);
	all.num_slots = at_told(0, 3);
	at_sync();
	return all;
}

/* The sum of a number of each rank. */
static uint64_t total(uint64_t own) {
	uint64_t sum = 0;
	at_tell(1, own);
	at_sync();
	for (int r = 0; r < at_procs; r++)
		sum += at_told(r, 1);
	at_sync();
	return sum;
}

static container none(void) {
	container c;
	memset(&c, 0, sizeof c);
	return c;
}

/* Keys 0 to `count` - 1 with a step, and no others, each once, where they belong and in the order in which they were inserted. */
static void holds_keys(container c, int first, int step, int count) {
	unsigned char seen[4096];
	int found = 0, last = -1;
	uint64_t last_rank = 0, last_slot = 0;
	memset(seen, 0, sizeof seen);
	for (iterator it = FN(begin)(c), end = FN(end)(c); !same(it, end); it = IT_FN(increment)(it)) {
		uint64_t rank, slot;
		int number = number_of(key_of(it));
		AT_MUST(number >= first && (number - first) % step == 0 && number < first + step * count, "a key that is none, %d", number);
		AT_CHECK(!seen[number]++, "%d twice", number);
		place(number, c, &rank, &slot);
		AT_CHECK(it.rank == (int)rank && it.slot == (int)slot, "%d is at %d, %d", number, it.rank, it.slot);
		if (found++) {
			bool after = rank > last_rank || (rank == last_rank && (slot > last_slot || (slot == last_slot && number > last)));
			AT_CHECK(after, "%d comes after %d", number, last);
		}
		last = number, last_rank = rank, last_slot = slot;
		AT_MUST(found <= count, "more than %d keys", count);
	}
	AT_CHECK(found == count, "%d keys, not %d", found, count);
	AT_CHECK(FN(size)(c) == (size_t)count, "the size is %zu, not %d", FN(size)(c), count);
	AT_CHECK(FN(empty)(c) == (count == 0), "%d keys, and empty: %d", count, FN(empty)(c));
}

static void sizes_of_types(void) {
	AT_CHECK(sizeof(container) == 24 && sizeof(iterator) == 40 && sizeof(success) == 48, "sizes of types");
	AT_CHECK(sizeof(acp_element_t) == 16 && sizeof(acp_pair_t) == 32, "sizes of types");
	AT_CHECK(offsetof(iterator, rank) == 24 && offsetof(iterator, slot) == 28 && offsetof(iterator, elem) == 32, "offsets");
}

static void refusals(void) {
	int list[] = { 0, at_procs }, negative[] = { -1 };
	AT_CHECK(FN(create)(2, list, 4, 0).ga == ACP_GA_NULL && strstr(at_why(), "no rank"), "%s", at_why());
	AT_CHECK(FN(create)(1, negative, 4, 0).ga == ACP_GA_NULL, "a table of rank -1");
	AT_CHECK(FN(create)(1, list, 4, at_procs).ga == ACP_GA_NULL, "a directory of rank %d", at_procs);
	AT_CHECK(FN(create)(1, list, 4, -1).ga == ACP_GA_NULL, "a directory of rank -1");
	AT_CHECK(FN(create)(1, list, 0, 0).ga == ACP_GA_NULL, "no slots");
	AT_CHECK(FN(create)(1, list, -1, 0).ga == ACP_GA_NULL, "-1 slots");
	AT_CHECK(FN(create)(-1, list, 4, 0).ga == ACP_GA_NULL, "-1 ranks");
	AT_CHECK(FN(create)(1, NULL, 4, 0).ga == ACP_GA_NULL, "a list that is not there");
	/* A name that names nothing. */
	container c = none();
	AT_CHECK(put(c, 1) == 0 && FN(size)(c) == 0 && FN(empty)(c) == 1, "a container that is none");
	AT_CHECK(FN(find)(c, key(1)).elem == ACP_GA_NULL && FN(begin)(c).elem == ACP_GA_NULL, "a key in none");
	c.ga = acp_query_starter_ga(0) + AT_FREE;
	c.num_ranks = c.num_slots = 1;
	AT_CHECK(put(c, 1) == 0 && strstr(at_why(), "there is no"), "%s", at_why());
	FN(remove)(c, key(1));
	FN(clear)(c);
	FN(merge)(c, c);
}

/* One rank does all; the keys of the containers may be of any rank. */
static void one_does_all(container a, container b) {
	acp_element_t nothing = { pool.ga, 0 };
	iterator end = FN(end)(a);
	AT_CHECK(end.elem == ACP_GA_NULL && end.rank == (int)a.num_ranks && end.slot == 0, "the end is %d, %d", end.rank, end.slot);
	AT_CHECK(same(FN(begin)(a), end) && FN(empty)(a) == 1 && FN(size)(a) == 0, "an empty one has a beginning");
	AT_CHECK(same(IT_FN(increment)(end), end) && key_of(end).ga == ACP_GA_NULL, "beyond the end");
	AT_CHECK(same(FN(find)(a, nothing), end), "a key without bytes was found");
	for (int i = 0; i < KEYS; i++)
		AT_CHECK(put(a, i) == 1, "key %d: %s", i, at_why());
	holds_keys(a, 0, 1, KEYS);
	/* Keys of others' memory. */
	for (int i = 0; i < KEYS; i += 7) {
		acp_element_t mine = key(i), theirs = { pools[at_procs - 1] + 101 * 4096, mine.size };
		acp_complete(acp_copy(theirs.ga, mine.ga, mine.size, AT_NULL));
		iterator it = FN(find)(a, theirs);
		AT_CHECK(number_of(key_of(it)) == i, "key %d was not found", i);
		AT_CHECK(acp_query_rank(it.elem) >= 0, "an element of no rank");
	}
	for (int i = 0; i < KEYS; i += 2)
		FN(remove)(a, key(i));
	for (int i = 0; i < KEYS; i++)
		AT_CHECK(same(FN(find)(a, key(i)), end) == (i % 2 == 0), "key %d", i);
	holds_keys(a, 1, 2, KEYS / 2);
	FN(merge)(b, a);
	holds_keys(a, 1, 2, KEYS / 2);
	AT_CHECK(FN(size)(b) == KEYS / 2, "the copy has %zu keys", FN(size)(b));
	FN(clear)(a);
	holds_keys(a, 0, 1, 0);
	FN(move)(a, b);
	AT_CHECK(FN(size)(a) == KEYS / 2 && FN(size)(b) == 0 && FN(empty)(b), "%zu and %zu keys", FN(size)(a), FN(size)(b));
	put(b, 0);
	FN(swap)(a, b);
	AT_CHECK(FN(size)(a) == 1 && FN(size)(b) == KEYS / 2, "%zu and %zu keys", FN(size)(a), FN(size)(b));
	AT_CHECK(number_of(key_of(FN(begin)(a))) == 0, "another key");
	FN(assign)(a, b);
	AT_CHECK(FN(size)(a) == KEYS / 2 && FN(size)(b) == KEYS / 2, "%zu and %zu keys", FN(size)(a), FN(size)(b));
	AT_CHECK(same(FN(find)(a, key(0)), end), "key 0 is still there");
	/* With itself. */
	FN(assign)(a, a), FN(merge)(a, a), FN(move)(a, a), FN(swap)(a, a);
	AT_CHECK(FN(size)(a) == KEYS / 2, "%zu keys", FN(size)(a));
	/* Each is removed while the iterator names it. */
	int left = KEYS / 2;
	for (iterator it = FN(begin)(a); !same(it, end) && left >= 0; it = IT_FN(increment)(it), left--) {
		FN(remove)(a, key(number_of(key_of(it))));
		AT_CHECK(key_of(it).ga == ACP_GA_NULL, "a key that was removed");
	}
	AT_CHECK(left == 0 && FN(size)(a) == 0, "%d are left, %zu", left, FN(size)(a));
	FN(clear)(b);
	AT_CHECK(FN(empty)(b), "%zu keys", FN(size)(b));
}

/* What is stored on each rank. */
static void locals(container a, container b) {
	if (at_rank == 0)
		for (int i = 0; i < KEYS; i++)
			put(a, i);
	at_sync();
	size_t own = 0;
	for (iterator it = FN(begin_local)(a), end = FN(end_local)(a); !same(it, end); it = IT_FN(increment)(it)) {
		AT_CHECK(acp_query_rank(it.elem) == at_rank && it.rank == at_rank, "an element of rank %d", acp_query_rank(it.elem));
		AT_MUST(own++ < KEYS, "there is no end");
	}
	AT_CHECK(FN(size_local)(a) == own && FN(empty_local)(a) == (own == 0), "%zu are here, not %zu", FN(size_local)(a), own);
	AT_CHECK(total(own) == KEYS, "all have %" PRIu64, total(own));
	/* All copy their part. */
	FN(merge_local)(b, a);
	at_sync();
	AT_CHECK(FN(size)(a) == KEYS && FN(size)(b) == KEYS, "%zu and %zu keys", FN(size)(a), FN(size)(b));
	at_sync();
	if (at_rank == 0)
		FN(clear)(b);
	at_sync();
	FN(move_local)(b, a);
	at_sync();
	AT_CHECK(FN(size)(a) == 0 && FN(size)(b) == KEYS, "%zu and %zu keys", FN(size)(a), FN(size)(b));
	AT_CHECK(same(FN(begin_local)(a), FN(end_local)(a)) && FN(empty_local)(a), "an empty part has a beginning");
	own = FN(size_local)(b);
	at_sync();
	if (at_rank == at_procs - 1) {
		put(a, KEYS);
		FN(assign_local)(a, b);
		AT_CHECK(FN(size)(a) == own, "%zu keys, not %zu", FN(size)(a), own);
		FN(clear)(a);
		FN(clear)(b);
	}
	at_sync();
}

/* All insert the same keys, and all remove them: each is there once. */
static void all_at_once(container a) {
	for (int i = 0; i < KEYS; i++)
		put(a, i);
	at_sync();
	AT_CHECK(FN(size)(a) == KEYS, "%zu keys", FN(size)(a));
	at_sync();
	for (int i = 0; i < KEYS; i++)
		FN(remove)(a, key(i));
	at_sync();
	AT_CHECK(FN(empty)(a), "%zu keys", FN(size)(a));
	at_sync();
}

static void more(container a);

int main(int argc, char **argv) {
	at_begin(&argc, &argv);
	pool = at_region(POOL);
	at_exchange(0, pool.ga, pools);
	sizes_of_types();
	refusals();
	int backwards[AT_MAX];
	for (int r = 0; r < at_procs; r++)
		backwards[r] = at_procs - 1 - r;
	/* All ranks; and another shape. */
	container a = shared(at_rank == 0 ? FN(create)(0, NULL, 13, at_procs - 1) : none());
	container b = shared(at_rank == 0 ? FN(create)(at_procs, backwards, 3, 0) : none());
	AT_MUST(a.ga != ACP_GA_NULL && a.num_ranks == (uint64_t)at_procs && a.num_slots == 13, "%s", at_why());
	AT_MUST(b.ga != ACP_GA_NULL && acp_query_rank(a.ga) == at_procs - 1, "%s", at_why());
	for (int r = 0; r < at_procs; r++) {
		if (r == at_rank)
			one_does_all(a, b);
		at_sync();
	}
	locals(a, b);
	all_at_once(a);
	more(a);
	at_sync();
	if (at_rank == 0) {
		FN(destroy)(a);
		FN(destroy)(b);
		AT_CHECK(put(a, 1) == 0, "a key was inserted into what was destroyed");
	}
	at_sync();
	at_free(pool);
	return at_end();
}
