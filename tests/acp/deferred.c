/* Accesses whose order is not fulfilled when they are issued go on although their issuer only looks at its memory from then on,
 * and although the ranks that have the data do the same. */
#include "at.h"

#define SIZE ((size_t)2 << 20)
#define STEPS 11 /* odd: the last one leads to the second place */

static struct at_region mine;
static acp_ga_t all[AT_MAX];

/* A chain from place to place among the other ranks; its end sets a word of mine. */
static void issue_and_look(unsigned round) {
	acp_ga_t place[2] = {all[(at_rank + 1) % at_procs], all[(at_rank + 2) % at_procs] + SIZE};
	/* The flag comes from the rank that has the end of the chain. */
	volatile uint64_t *flag = at_starter(AT_FREE), *counted = at_starter(AT_FREE + 16);
	acp_ga_t here = acp_query_starter_ga(at_rank) + AT_FREE;
	*flag = 0;
	acp_handle_t h = AT_NULL;
	for (int i = 0; i < STEPS; i++) {
		h = acp_copy(place[(i + 1) % 2], place[i % 2], SIZE, i % 3 == 2 ? AT_ALL : h);
		AT_MUST(h >= 1, "%s", at_why());
	}
	h = acp_add8(here + 16, place[0] + 2 * SIZE, 1, h);
	h = acp_copy(here, place[1] + SIZE - 8, 8, h);
	AT_MUST(h >= 1, "%s", at_why());
	/* The last word of the data, which cannot be 0. */
	uint64_t end;
	unsigned char bytes[8];
	for (size_t i = 0; i < 8; i++)
		bytes[i] = at_byte((at_rank + 1) % at_procs, round, SIZE - 8 + i);
	memcpy(&end, bytes, 8);
	AT_CHECK(at_becomes(flag, end), "round %u: the flag is %#" PRIx64, round, *flag);
	AT_CHECK(*counted == round - 1, "round %u: counted %" PRIu64, round, *counted);
	AT_CHECK(acp_inquire(h) == 0 || acp_inquire(h) == 1, "acp_inquire is %d", acp_inquire(h));
	acp_complete(h);
	AT_CHECK(acp_inquire(h) == 0, "complete and not complete");
	/* The others end their looking. */
	for (int r = 0; r < at_procs; r++)
		if (r != at_rank)
			at_store(acp_query_starter_ga(r) + AT_FREE + 8, round * 64 + (unsigned)at_rank);
}

int main(int argc, char **argv) {
	at_begin(&argc, &argv);
	/* Two places for the chain, and a word that is counted. */
	mine = at_region(2 * SIZE + 64);
	at_exchange(0, mine.ga, all);
	unsigned round = 0;
	for (int issuer = 0; issuer < at_procs; issuer++) {
		memset(mine.at + 2 * SIZE, 0, 64);
		for (round = 1; round <= 5; round++) {
			at_fill(mine.at, SIZE, at_rank, round);
			at_sync();
			if (at_rank == issuer)
				issue_and_look(round);
			else
				AT_CHECK(at_becomes(at_starter(AT_FREE + 8), round * 64 + (unsigned)issuer), "round %u of %d", round, issuer);
			at_sync();
			if (at_rank == (issuer + 2) % at_procs) {
				size_t wrong = at_differs(mine.at + SIZE, SIZE, (issuer + 1) % at_procs, round);
				AT_CHECK(wrong == SIZE, "round %u of %d: byte %zu", round, issuer, wrong);
			}
			at_sync();
		}
	}
	return at_end();
}
