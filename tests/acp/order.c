/* Order and completion, each by its outcome: who starts too early finds the data of the round before. For up to 5 ranks. */
#include "at.h"

#define BLOCK ((size_t)256 * 1024)
#define BLOCKS 8
#define ROUNDS 40

static struct at_region mine;
static acp_ga_t all[AT_MAX];

/* Block `b` of the rank so many behind this one. */
static acp_ga_t block(int behind, int b) {
	return all[(at_rank + behind) % at_procs] + (acp_ga_t)b * BLOCK;
}

static unsigned char *own(int b) {
	return mine.at + (size_t)b * BLOCK;
}

static acp_handle_t copy(acp_ga_t dst, acp_ga_t src, size_t size, acp_handle_t order) {
	acp_handle_t h = acp_copy(dst, src, size, order);
	AT_MUST(h >= 1, "%" PRId64 ": %s", h, at_why());
	return h;
}

static void handles_increase(void) {
	acp_ga_t word = acp_query_starter_ga(at_rank) + AT_FREE, other = acp_query_starter_ga((at_rank + 1) % at_procs);
	acp_handle_t last = 0, early = 0;
	for (int i = 0; i < 3000; i++) {
		acp_handle_t order = i % 5 == 0 ? AT_NULL : i % 5 == 1 ? AT_ALL : i % 5 == 2 ? AT_CONT : i % 5 == 3 ? last : early;
		acp_handle_t h = i % 7 == 0 ? acp_add8(word, word + 8, 1, order)
			: i % 11 == 0 ? acp_copy(word, word + 16, 0, order)
			              : acp_copy(word, other + AT_FREE + 16, 8, order);
		AT_MUST(h > last && h != AT_ALL && h != AT_CONT, "%" PRId64 " after %" PRId64 ": %s", h, last, at_why());
		if (i % 100 == 50)
			early = h;
		last = h;
	}
	acp_complete(AT_ALL);
	AT_CHECK(acp_inquire(AT_ALL) == 0 && acp_inquire(AT_CONT) == 0 && acp_inquire(last) == 0, "all is complete");
	at_sync();
}

static void completion_of_nothing(void) {
	acp_handle_t h = copy(block(1, 0), block(2, 1), BLOCK, AT_NULL);
	acp_complete(AT_NULL);
	acp_complete(h + 1000000);
	acp_complete(INT64_MAX);
	acp_complete(-3);
	acp_complete(INT64_MIN);
	AT_CHECK(acp_inquire(AT_NULL) == 0, "NULL is %d", acp_inquire(AT_NULL));
	AT_CHECK(acp_inquire(h + 1000000) == 0, "what was never issued is %d", acp_inquire(h + 1000000));
	AT_CHECK(acp_inquire(-3) == 0 && acp_inquire(INT64_MIN) == 0, "-3 is %d", acp_inquire(-3));
	acp_complete(AT_CONT);
	AT_CHECK(acp_inquire(h) == 0, "CONT waits for all");
	at_sync();
}

/* A block goes through all ranks, from place to place; each step is by another order, as `how` says. */
static void relay(const char *what, acp_handle_t (*how)(acp_handle_t first, acp_handle_t before)) {
	for (unsigned round = 1; round <= ROUNDS; round++) {
		at_fill(own(0), BLOCK, at_rank, round);
		acp_handle_t before = 0, first = 0;
		for (int step = 1; step <= at_procs + 1; step++) {
			before = copy(block(step, step % (BLOCKS - 1)), block(step - 1, (step - 1) % (BLOCKS - 1)), BLOCK,
				step == 1 ? AT_NULL : how(first, before));
			if (step == 1)
				first = before;
		}
		/* Home again. */
		copy(block(0, BLOCKS - 1), block(at_procs + 1, (at_procs + 1) % (BLOCKS - 1)), BLOCK, how(first, before));
		acp_complete(AT_ALL);
		size_t wrong = at_differs(own(BLOCKS - 1), BLOCK, at_rank, round);
		AT_CHECK(wrong == BLOCK, "%s, round %u: byte %zu", what, round, wrong);
		/* Others' blocks go through my places too. */
		at_sync();
	}
}

static acp_handle_t by_handle(acp_handle_t first, acp_handle_t before) {
	(void)first;
	return before;
}

static acp_handle_t by_all(acp_handle_t first, acp_handle_t before) {
	(void)first;
	(void)before;
	return AT_ALL;
}

/* The ends differ from step to step, so it is as ALL. With one rank they do not, and nothing is overtaken. */
static acp_handle_t by_cont(acp_handle_t first, acp_handle_t before) {
	(void)first;
	(void)before;
	return AT_CONT;
}

/* A handle stands for all that were issued before it. */
static void a_handle_is_a_prefix(void) {
	for (unsigned round = 1; round <= ROUNDS; round++) {
		/* Into mine: large ones from the next, then a word from the one behind that. */
		at_fill(own(0), BLOCK, at_rank, 100 + round);
		at_sync();
		for (int i = 1; i <= 4; i++)
			copy(block(0, i), block(1, 0), BLOCK, AT_NULL);
		acp_handle_t word = copy(block(0, 6), block(2, 0), 8, AT_NULL);
		acp_handle_t late = copy(block(0, 7), block(0, 4), BLOCK, word);
		if (round % 2) {
			acp_complete(word);
		} else {
			double until = at_now() + AT_PATIENCE;
			int state;
			while ((state = acp_inquire(word)) == 1 && at_now() < until)
				;
			AT_CHECK(state == 0, "acp_inquire: %d", state);
		}
		int from = (at_rank + 1) % at_procs;
		for (int i = 1; i <= 4; i++)
			AT_CHECK(at_differs(own(i), BLOCK, from, 100 + round) == BLOCK, "round %u: block %d", round, i);
		acp_complete(late);
		AT_CHECK(acp_inquire(late) == 0, "complete and not complete");
		AT_CHECK(at_differs(own(7), BLOCK, from, 100 + round) == BLOCK, "round %u: what came after it", round);
		at_sync();
	}
}

/* An earlier handle than the last: what was issued since does not count, what was issued before does. */
static void after_an_earlier_one(void) {
	for (unsigned round = 1; round <= ROUNDS; round++) {
		at_fill(own(0), BLOCK, at_rank, 200 + round);
		at_sync();
		copy(block(0, 1), block(1, 0), BLOCK, AT_NULL);
		acp_handle_t small = copy(block(0, 2), block(2, 0), 64, AT_NULL);
		copy(block(0, 3), block(2, 0), BLOCK, AT_NULL);
		acp_handle_t h = copy(block(0, 4), block(0, 1), BLOCK, small);
		acp_complete(h);
		int from = (at_rank + 1) % at_procs;
		AT_CHECK(at_differs(own(4), BLOCK, from, 200 + round) == BLOCK, "round %u", round);
		at_sync();
	}
}

/* Data, then a flag that does not overtake them, from the one behind to the next: the next looks at the flag. */
static void cont_does_not_overtake(void) {
	enum { FLAG = BLOCKS - 1 };
	volatile uint64_t *flag = (volatile uint64_t *)(void *)own(FLAG);
	uint64_t *stamp = (uint64_t *)(void *)(own(FLAG) + 64);
	for (unsigned round = 1; round <= ROUNDS; round++) {
		at_fill(own(0), BLOCK, at_rank, 300 + round);
		*stamp = round;
		at_sync();
		copy(block(1, 1), block(2, 0), BLOCK, AT_NULL);
		copy(block(1, 2), block(2, 0), 5000, AT_CONT);
		copy(block(1, FLAG), block(2, FLAG) + 64, 8, AT_CONT);
		/* What comes here is issued by the rank before. */
		int from = (at_rank + 1) % at_procs;
		AT_CHECK(at_becomes(flag, round), "round %u: the flag is %" PRIu64, round, at_word(flag));
		AT_CHECK(at_differs(own(1), BLOCK, from, 300 + round) == BLOCK, "round %u: the flag came before the data", round);
		AT_CHECK(at_differs(own(2), 5000, from, 300 + round) == 5000, "round %u: it came before the second", round);
		acp_complete(AT_ALL);
		at_sync();
	}
}

/* What continues a deferred access waits for the same condition. */
static void cont_has_the_condition_of_the_one_before(void) {
	for (unsigned round = 1; round <= ROUNDS; round++) {
		at_fill(own(0), BLOCK, at_rank, 400 + round);
		at_sync();
		acp_handle_t h = copy(block(1, 1), block(0, 0), BLOCK, AT_NULL);
		copy(block(2, 2), block(1, 1), 64, h);
		copy(block(2, 3), block(1, 1) + BLOCK / 2, BLOCK / 2, AT_CONT);
		acp_complete(AT_ALL);
		at_sync();
		int from = (at_rank + 2 * (at_procs - 1)) % at_procs;
		AT_CHECK(at_differs(own(2), 64, from, 400 + round) == 64, "round %u: what comes after it", round);
		size_t i = 0;
		while (i < BLOCK / 2 && own(3)[i] == at_byte(from, 400 + round, BLOCK / 2 + i))
			i++;
		AT_CHECK(i == BLOCK / 2, "round %u: what continues has started before: byte %zu", round, i);
		at_sync();
	}
}

/* Words by atomics and copies in turn, each after the one before: 1, +2, doubled by a copy to the neighbour and a sum. */
static void atomics_and_copies(void) {
	acp_ga_t here = acp_query_starter_ga(at_rank) + AT_FREE;
	volatile uint64_t *old = at_starter(AT_FREE);
	for (uint64_t round = 1; round <= ROUNDS; round++) {
		acp_ga_t there = block(1, 5), beyond = block(2, 6);
		*at_starter(AT_FREE + 8) = 1000 * round;
		acp_handle_t h = copy(there, here + 8, 8, AT_NULL);
		h = acp_add8(here, there, 2, h);
		h = copy(beyond, there, 8, h);
		h = acp_swap8(here + 16, beyond, 7, AT_ALL);
		h = acp_cas8(here + 24, beyond, 7, 9, AT_CONT);
		h = copy(here + 32, beyond, 8, h);
		acp_complete(h);
		AT_CHECK(old[0] == 1000 * round && old[2] == 1000 * round + 2 && old[3] == 7 && old[4] == 9,
			"%" PRIu64 ": %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64, round, old[0], old[2], old[3], old[4]);
		at_sync();
	}
}

/* More than any queue holds, then all of it. */
static void all_after_many(void) {
	enum { MANY = 5000 };
	uint64_t *from = (uint64_t *)(void *)own(0), *to = (uint64_t *)(void *)own(1), *back = (uint64_t *)(void *)own(3);
	for (unsigned round = 1; round <= 3; round++) {
		for (int i = 0; i < MANY; i++)
			from[i] = (uint64_t)(at_rank + 1) << 40 | round << 20 | (uint64_t)i;
		memset(back, 0, MANY * 8);
		at_sync();
		for (int i = 0; i < MANY; i++)
			copy(block(0, 1) + 8 * (acp_ga_t)i, block(i % at_procs, 0) + 8 * (acp_ga_t)i, 8, AT_NULL);
		copy(block(1, 2), block(0, 1), MANY * 8, AT_ALL);
		copy(block(0, 3), block(1, 2), MANY * 8, AT_ALL);
		acp_complete(AT_ALL);
		for (int i = 0; i < MANY; i++) {
			uint64_t wanted = (uint64_t)((at_rank + i) % at_procs + 1) << 40 | round << 20 | (uint64_t)i;
			AT_CHECK(to[i] == wanted, "round %u: word %d is %#" PRIx64, round, i, to[i]);
			AT_CHECK(back[i] == wanted, "round %u: word %d has come back as %#" PRIx64, round, i, back[i]);
		}
		at_sync();
	}
}

int main(int argc, char **argv) {
	at_begin(&argc, &argv);
	AT_MUST(at_procs <= 5, "%d ranks", at_procs);
	mine = at_region(BLOCKS * BLOCK);
	at_exchange(0, mine.ga, all);
	handles_increase();
	completion_of_nothing();
	relay("a handle", by_handle);
	relay("ALL", by_all);
	relay("CONT", by_cont);
	a_handle_is_a_prefix();
	after_an_earlier_one();
	cont_does_not_overtake();
	cont_has_the_condition_of_the_one_before();
	atomics_and_copies();
	all_after_many();
	return at_end();
}
