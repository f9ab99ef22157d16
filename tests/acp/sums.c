/* Atomic operations of all ranks on the same words at the same time: nothing is lost. The argument says how many each rank makes of
 * a kind (2000). With "stay=FILE" behind it, the last kind does not begin while FILE is there, on a machine of any speed. */
#include "at.h"

/* Words of rank 0's. */
enum { WHOLE, BY_CAS, BY_CAS4, BITS, OLD, BUSY, LAST = BUSY + 2 * AT_MAX };

static acp_ga_t base, here;
static int count = 2000;

static acp_ga_t word(int index) {
	return base + 8 * (acp_ga_t)index;
}

/* One word and both its halves: the upper half never carries, since the lower one stays small. */
static void whole_and_halves(void) {
	acp_handle_t h = AT_NULL;
	for (int i = 0; i < count; i++) {
		switch ((i + at_rank) % 3) {
		case 0: h = acp_add8(here, word(WHOLE), 1ULL << 32 | 1, AT_NULL); break;
		case 1: h = acp_add4(here, word(WHOLE), 1, AT_NULL); break;
		default: h = acp_add4(here, word(WHOLE) + 4, 1, AT_NULL); break;
		}
		AT_CHECK(h >= 1, "%s", at_why());
	}
	acp_complete(h);
}

static uint64_t lower(void) {
	uint64_t n = 0;
	for (int r = 0; r < at_procs; r++)
		for (int i = 0; i < count; i++)
			n += (i + r) % 3 != 2;
	return n;
}

static uint64_t upper(void) {
	uint64_t n = 0;
	for (int r = 0; r < at_procs; r++)
		for (int i = 0; i < count; i++)
			n += (i + r) % 3 != 1;
	return n;
}

/* Each counts one further than what it has found, until it succeeds. */
static void count_by_cas(void) {
	volatile uint64_t *old = at_starter(AT_FREE);
	uint64_t guess = 0, guess4 = 0;
	for (int i = 0; i < count; i++) {
		for (;;) {
			acp_complete(acp_cas8(here, word(BY_CAS), guess, guess + 1, AT_NULL));
			if (*old == guess)
				break;
			guess = *old;
		}
		for (;;) {
			acp_complete(acp_cas4(here, word(BY_CAS4) + 4, (uint32_t)guess4, (uint32_t)guess4 + 1, AT_NULL));
			if ((uint32_t)*old == (uint32_t)guess4)
				break;
			guess4 = (uint32_t)*old;
		}
		guess++;
		guess4++;
	}
}

/* Every rank has a bit: it sets, clears and turns it, and is sure of it in between. */
static void own_bits(void) {
	volatile uint64_t *old = at_starter(AT_FREE);
	uint64_t bit = 1ULL << at_rank;
	for (int i = 0; i < count; i++) {
		acp_complete(acp_or8(here, word(BITS), bit, AT_NULL));
		AT_CHECK(!(*old & bit), "round %d: the bit is set", i);
		acp_complete(acp_and8(here, word(BITS), ~bit, AT_NULL));
		AT_CHECK(*old & bit, "round %d: the bit is clear", i);
		acp_complete(acp_xor4(here, word(BITS), (uint32_t)bit, AT_NULL));
		AT_CHECK(!(*old & bit), "round %d: the bit is set before it is turned", i);
		acp_complete(acp_xor4(here, word(BITS), (uint32_t)bit, AT_NULL));
	}
}

/* Old values of a sum are all different, and those that one rank gets in turn increase. */
static void old_values_increase(void) {
	volatile uint64_t *old = at_starter(AT_FREE);
	uint64_t last = 0;
	for (int i = 0; i < count; i++) {
		acp_complete(acp_add8(here, word(OLD), 2, AT_NULL));
		AT_CHECK((i == 0 || *old > last) && *old % 2 == 0, "%" PRIu64 " after %" PRIu64, *old, last);
		last = *old;
	}
}

/* A word of 4 bytes is counted while another rank copies to the one right beside it, and looks whether its copy has stayed. */
static void busy_neighbours(void) {
	volatile uint32_t *stamp = (volatile uint32_t *)at_starter(AT_FREE + 64);
	acp_ga_t counted = word(BUSY + at_rank), copied = word(BUSY + (at_rank + 1) % at_procs) + 4;
	for (int i = 1; i <= count; i++) {
		stamp[0] = (uint32_t)i;
		stamp[1] = 0;
		acp_handle_t h = acp_copy(copied, here + 64, 4, AT_NULL);
		acp_add4(here, counted, 1, AT_NULL);
		h = acp_copy(here + 68, copied, 4, h);
		AT_CHECK(h >= 1, "%s", at_why());
		acp_complete(h);
		AT_CHECK(stamp[1] == (uint32_t)i, "what was copied, %d, has become %" PRIu32, i, stamp[1]);
	}
	acp_complete(AT_ALL);
}

static void rank_0_looks(volatile uint64_t *words) {
	uint64_t n = (uint64_t)at_procs * (uint64_t)count;
	AT_CHECK((uint32_t)words[WHOLE] == lower(), "the lower half is %" PRIu32 ", not %" PRIu64, (uint32_t)words[WHOLE], lower());
	AT_CHECK(words[WHOLE] >> 32 == upper(), "the upper half is %" PRIu64 ", not %" PRIu64, words[WHOLE] >> 32, upper());
	AT_CHECK(words[BY_CAS] == n, "by cas8: %" PRIu64 " of %" PRIu64, words[BY_CAS], n);
	AT_CHECK(words[BY_CAS4] == n << 32, "by cas4: %#" PRIx64 " of %#" PRIx64, words[BY_CAS4], n << 32);
	AT_CHECK(words[BITS] == 0, "bits %#" PRIx64, words[BITS]);
	AT_CHECK(words[OLD] == 2 * n, "%" PRIu64 " of %" PRIu64, words[OLD], 2 * n);
	for (int r = 0; r < at_procs; r++) {
		uint64_t busy = words[BUSY + r];
		AT_CHECK((uint32_t)busy == (uint32_t)count, "beside a busy neighbour: %" PRIu32 " of %d", (uint32_t)busy, count);
		AT_CHECK(busy >> 32 == (uint64_t)count, "the neighbour is %" PRIu64 ", not %d", busy >> 32, count);
	}
}

/* Rank 0 does; the others wait for it. */
static void stay_for(const char *file) {
	struct timespec moment = {0, 10000000};
	while (at_rank == 0 && access(file, F_OK) == 0)
		nanosleep(&moment, NULL);
	at_sync();
}

int main(int argc, char **argv) {
	at_begin(&argc, &argv);
	const char *stay = argc > 1 && strncmp(argv[argc - 1], "stay=", 5) == 0 ? argv[--argc] + 5 : NULL;
	if (argc > 1)
		count = atoi(argv[1]);
	AT_MUST(at_procs <= 32, "%d ranks", at_procs);
	struct at_region words = at_region(8 * LAST);
	acp_ga_t all[AT_MAX];
	at_exchange(0, words.ga, all);
	base = all[0];
	here = acp_query_starter_ga(at_rank) + AT_FREE;
	whole_and_halves();
	at_sync();
	count_by_cas();
	at_sync();
	own_bits();
	at_sync();
	old_values_increase();
	at_sync();
	if (stay != NULL)
		stay_for(stay);
	busy_neighbours();
	at_sync();
	if (at_rank == 0)
		rank_0_looks((volatile uint64_t *)(volatile void *)words.at);
	return at_end();
}
