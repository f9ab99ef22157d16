/* Ranks that have no registration left: those whose bits the argument has, of 0 and 1. What was created before works as ever, what
 * would need one is refused, and all is as before once some are given back. */
#include "at.h"

enum { LONG = (1 << 20) + 4099, REGIONS = 16500, SEGMENT = 100, MANY = 5000 };

static acp_atkey_t keys[REGIONS];
static unsigned char memory[8];
static int had;

static void exhaust(void) {
	while (had < REGIONS && (keys[had] = acp_register_memory(memory, sizeof memory, 0)) != ACP_ATKEY_NULL)
		had++;
	AT_CHECK(had > 200 && had < REGIONS && strstr(at_why(), "full"), "after %d: %s", had, at_why());
}

static void give_back(int count) {
	while (count-- > 0)
		AT_CHECK(acp_unregister_memory(keys[--had]) == 0, "%s", at_why());
}

static acp_ch_t channel(int sender, int receiver) {
	acp_ch_t ch = acp_create_ch(sender, receiver);
	AT_MUST(ch != ACP_CH_NULL, "from %d to %d: %s", sender, receiver, at_why());
	return ch;
}

/* Both ways at once, of a size each; what is longer than `room` is cut off. */
static void both_ways(acp_ch_t out, acp_ch_t in, size_t size, size_t room, unsigned round) {
	unsigned char *from = malloc(size + 1), *to = malloc(room + 8);
	size_t wanted = size < room ? size : room;
	AT_MUST(from && to, "no memory");
	at_fill(from, size, at_rank, round);
	memset(to, 0xee, room + 8);
	acp_request_t sent = acp_nbsend_ch(out, from, size), got = acp_nbrecv_ch(in, to + 1, room);
	AT_MUST(sent != ACP_REQUEST_NULL && got != ACP_REQUEST_NULL, "%s", at_why());
	AT_CHECK(acp_wait_ch(got) == wanted, "%zu B: %s", size, at_why());
	AT_CHECK(at_differs(to + 1, wanted, 1 - at_rank, round) == wanted, "%zu B differ", size);
	AT_CHECK(to[0] == 0xee && to[room + 1] == 0xee, "%zu B: around it", room);
	AT_CHECK(acp_wait_ch(sent) == 0, "%zu B: %s", size, at_why());
	free(from);
	free(to);
}

static void all_sizes(acp_ch_t out, acp_ch_t in) {
	static const size_t sizes[] = {0, 10, 4000, 50000, LONG, 3 << 20, LONG};
	for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		both_ways(out, in, sizes[i], sizes[i], i);
		both_ways(out, in, sizes[i], sizes[i] / 2, i + 50);
	}
}

static void end(acp_ch_t one, acp_ch_t other) {
	acp_request_t ends[] = {acp_nbfree_ch(one), acp_nbfree_ch(other)};
	AT_CHECK(acp_waitall_ch(ends, 2, NULL) == 0, "%s", at_why());
}

/* At a rank that has none left. */
static void refused(int other) {
	static unsigned char segments[4 * SEGMENT];
	AT_CHECK(acp_create_src_segbuf(other, segments, SEGMENT, 4) == ACP_SEGBUF_NULL && strstr(at_why(), "full"), "%s", at_why());
	AT_CHECK(acp_create_dst_segbuf(other, segments, SEGMENT, 4) == ACP_SEGBUF_NULL && strstr(at_why(), "full"), "%s", at_why());
}

/* Nothing was counted of what was refused. */
static void segments(int other) {
	static unsigned char bytes[4 * SEGMENT];
	acp_segbuf_t end = at_rank == 0 ? acp_create_src_segbuf(other, bytes, SEGMENT, 4) : acp_create_dst_segbuf(other, bytes, SEGMENT, 4);
	AT_MUST(end != ACP_SEGBUF_NULL && acp_connect_segbuf(end) == 0, "%s", at_why());
	if (at_rank == 0)
		AT_CHECK(acp_ack_segbuf(end) == 0, "%s", at_why());
	else
		while (acp_isacked_segbuf(end) == 1)
			;
	AT_CHECK(acp_disconnect_segbuf(end) == 0 && acp_free_segbuf(end) == 0, "%s", at_why());
}

int main(int argc, char **argv) {
	int who = argc > 1 ? atoi(argv[1]) : 3;
	at_begin(&argc, &argv);
	AT_MUST(at_procs == 2, "two ranks");
	int other = 1 - at_rank;
	bool am_i = who >> at_rank & 1;
	/* Of the first two nothing is known before; by the others something was sent. */
	acp_ch_t out = channel(at_rank, other), in = channel(other, at_rank);
	acp_ch_t used_out = channel(at_rank, other), used_in = channel(other, at_rank);
	both_ways(used_out, used_in, 100, 100, 1);
	at_sync();
	if (am_i)
		exhaust();
	at_sync();
	all_sizes(used_out, used_in);
	all_sizes(out, in);
	if (am_i)
		refused(other);
	/* Blocks are all ranks' business. */
	at_sync();
	AT_CHECK(acp_setparams_ws(0, 1000) == 0, "%s", at_why());
	acp_wsd_t ws = acp_create_ws(2000);
	AT_CHECK(ws == ACP_WSD_NULL && strstr(at_why(), "no memory"), "%s", at_why());
	if (am_i) {
		/* There is room for some more. */
		static acp_ch_t more[MANY];
		int count = 0;
		while (count < MANY && (more[count] = acp_create_ch(other, at_rank)) != ACP_CH_NULL)
			count++;
		AT_CHECK(count < MANY && strstr(at_why(), "full"), "%d channels: %s", count, at_why());
		give_back(10);
	}
	at_sync();
	segments(other);
	ws = acp_create_ws(2000);
	AT_MUST(ws != ACP_WSD_NULL, "%s", at_why());
	acp_destroy_ws(ws);
	all_sizes(out, in);
	end(out, in);
	end(used_out, used_in);
	return at_end();
}
