/* Workspaces. The argument "open" has them left as they are; "differ" has ranks create different ones. */
#include "at.h"

enum { BLOCK = 5000 };

static void whole(acp_wsd_t ws, size_t size, int start, struct at_region own) {
	int blocks = (int)((size + BLOCK - 1) / BLOCK);
	AT_CHECK(ws->size_ws == size && ws->size_default == BLOCK && ws->size_remainder == size % BLOCK, "%zu", ws->size_ws);
	AT_CHECK(ws->ngas == (size_t)blocks, "%zu blocks", ws->ngas);
	for (int i = 0; i < blocks; i++) {
		int bytes = i + 1 == blocks && size % BLOCK ? (int)(size % BLOCK) : BLOCK;
		AT_CHECK(ws->procs[i] == start + i && ws->sizes[i] == bytes, "block %d: rank %d, %d B", i, ws->procs[i], ws->sizes[i]);
		AT_CHECK(acp_query_rank(ws->gas[i]) == start + i, "block %d is of rank %d", i, acp_query_rank(ws->gas[i]));
		if (start + i == at_rank) {
			AT_CHECK(ws->ga_data == ws->gas[i] && ws->key_data == ws->keys[i], "it is mine");
			AT_CHECK(ws->data == acp_query_address(ws->ga_data) && ws->data != NULL, "it is at %p", ws->data);
		}
	}
	if (at_rank < start || at_rank >= start + blocks)
		AT_CHECK(ws->data == NULL && ws->ga_data == ACP_GA_NULL && ws->key_data == ACP_ATKEY_NULL, "none is mine");
	/* Zero at first; rank 0 writes all. */
	AT_CHECK(acp_read_ws(ws, own.ga, size, 0) == 0 && at_all_are(own.at, size, 0), "it is not zero");
	at_sync();
	at_fill(own.at, size, 0, (unsigned)size);
	if (at_rank == 0)
		AT_CHECK(acp_write_ws(ws, own.ga, size, 0) == 0, "%s", at_why());
	at_sync();
	memset(own.at, 0, size + 1);
	AT_CHECK(acp_read_ws(ws, own.ga, size, 0) == 0, "%s", at_why());
	AT_CHECK(at_differs(own.at, size, 0, (unsigned)size) == size && own.at[size] == 0, "what was written is not there");
	/* Around each border, and outside. */
	for (int i = 1; i < blocks; i++)
		for (size_t before = 0; before < 4; before++)
			for (size_t len = 0; len < 8; len++) {
				size_t at = (size_t)i * BLOCK - before;
				if (at + len > size)
					continue;
				memset(own.at, 0xee, 16);
				AT_CHECK(acp_read_ws(ws, own.ga, len, at) == 0, "%s", at_why());
				for (size_t k = 0; k < len; k++)
					AT_CHECK(own.at[k] == at_byte(0, (unsigned)size, at + k), "%zu of %zu from %zu", k, len, at);
				AT_CHECK(own.at[len] == 0xee, "%zu from %zu: more than that", len, at);
			}
	AT_CHECK(acp_read_ws(ws, own.ga, 0, size) == 0, "nothing at the end: %s", at_why());
	AT_CHECK(acp_read_ws(ws, own.ga, 1, size) == 1 && strstr(at_why(), "outside"), "%s", at_why());
	AT_CHECK(acp_write_ws(ws, own.ga, size, 1) == 1 && acp_write_ws(ws, own.ga, 2, SIZE_MAX) == 1, "outside");
	AT_CHECK(acp_read_ws(ws, ACP_GA_NULL, 1, 0) == 1 && acp_write_ws(ws, ACP_GA_NULL, 1, 0) == 1, "nowhere");
	at_sync();
	/* Each rank a stripe of its own, at once, from another's memory. */
	size_t stripe = size / (size_t)at_procs;
	at_fill(own.at, stripe, at_rank, 7);
	acp_ga_t all[AT_MAX];
	at_exchange(0, own.ga, all);
	int next = (at_rank + 1) % at_procs;
	AT_CHECK(acp_write_ws(ws, all[next], stripe, stripe * (size_t)next) == 0, "%s", at_why());
	at_sync();
	AT_CHECK(acp_read_ws(ws, own.ga + size, stripe, stripe * (size_t)at_rank) == 0, "%s", at_why());
	AT_CHECK(at_differs(own.at + size, stripe, at_rank, 7) == stripe, "the stripe of this rank");
	at_sync();
}

int main(int argc, char **argv) {
	const char *what = argc > 1 ? argv[1] : "all";
	AT_CHECK(acp_create_ws(1) == ACP_WSD_NULL && acp_setparams_ws(0, 1) == 1 && acp_read_ws(ACP_WSD_NULL, 1, 1, 0) == 1, "before");
	at_begin(&argc, &argv);
	if (strcmp(what, "differ") == 0) {
		acp_create_ws(100 + (size_t)at_rank);
		at_sync();
		return at_end();
	}
	struct at_region own = at_region(2 * BLOCK * (size_t)at_procs + 4096);
	/* By the numbers of the beginning: one block for each rank, then none is left. */
	acp_wsd_t first[AT_MAX];
	for (int i = 0; i < at_procs; i++) {
		first[i] = acp_create_ws(100);
		AT_MUST(first[i] != ACP_WSD_NULL, "%s", at_why());
		AT_CHECK(first[i]->size_default == 17073526 && first[i]->procs[0] == i && first[i]->sizes[0] == 100, "block %d", i);
	}
	AT_CHECK(acp_create_ws(1) == ACP_WSD_NULL && strstr(at_why(), "are not there"), "%s", at_why());
	AT_CHECK(acp_setparams_ws((size_t)at_procs, 1) == 1 && acp_setparams_ws(0, 0) == 1, "no such rank, no such block");
	AT_CHECK(acp_setparams_ws(0, (size_t)1 << 31) == 1, "larger than int");
	AT_CHECK(acp_setparams_ws(0, BLOCK) == 0, "%s", at_why());
	AT_CHECK(acp_create_ws(0) == ACP_WSD_NULL, "no bytes");
	AT_CHECK(acp_create_ws((size_t)BLOCK * (size_t)at_procs + 1) == ACP_WSD_NULL, "one rank too many");
	for (int blocks = 1; blocks <= at_procs; blocks++)
		for (int start = 0; start + blocks <= at_procs; start++)
			for (int rest = 0; rest < 2; rest++) {
				AT_CHECK(acp_setparams_ws((size_t)start, BLOCK) == 0, "%s", at_why());
				size_t size = (size_t)BLOCK * (size_t)blocks - (rest ? 1234 : 0);
				acp_wsd_t ws = acp_create_ws(size);
				AT_MUST(ws != ACP_WSD_NULL, "%s", at_why());
				whole(ws, size, start, own);
				acp_destroy_ws(ws);
				AT_CHECK(acp_read_ws(ws, own.ga, 1, 0) == 1, "it is gone");
			}
	acp_destroy_ws(ACP_WSD_NULL);
	AT_CHECK(acp_read_ws(first[0], own.ga, 100, 0) == 0 && at_all_are(own.at, 0, 0), "%s", at_why());
	if (strcmp(what, "open") != 0)
		for (int i = 0; i < at_procs; i++)
			acp_destroy_ws(first[i]);
	return at_end();
}
