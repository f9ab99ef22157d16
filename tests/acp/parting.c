/* Ranks that begin anew, and in the end leave, in the midst of everything: channels and segmented buffers that one end or both have,
 * requests of each kind that nobody has waited for, workspaces that are there. What comes behind is as it is in a new job. The
 * argument is how often. */
#include "at.h"

enum { LONG = (3 << 20) / 2, PARTS = 100000, SEGMENT = 5000, SEGMENTS = 3, KEPT = 40 };

static int next, before;
static unsigned char *kept[KEPT];
static int kept_count;

static acp_ch_t channel(int sender, int receiver) {
	acp_ch_t ch = acp_create_ch(sender, receiver);
	AT_MUST(ch != ACP_CH_NULL, "from %d to %d: %s", sender, receiver, at_why());
	return ch;
}

/* Memory until the next beginning. */
static unsigned char *memory(size_t size) {
	AT_MUST(kept_count < KEPT, "too much is kept");
	unsigned char *at = malloc(size);
	AT_MUST(at != NULL, "no memory");
	return kept[kept_count++] = at;
}

static acp_request_t request(acp_request_t made) {
	AT_MUST(made != ACP_REQUEST_NULL, "%s", at_why());
	return made;
}

static acp_request_t begin_send(acp_ch_t ch, size_t size, unsigned round) {
	unsigned char *from = memory(size);
	at_fill(from, size, at_rank, round);
	return request(acp_nbsend_ch(ch, from, size));
}

static void receive(acp_ch_t ch, size_t size, unsigned round) {
	unsigned char *to = malloc(size + 1);
	AT_MUST(to != NULL, "no memory");
	int got = acp_recv_ch(ch, to, size);
	AT_CHECK(got == (int)size && at_differs(to, size, before, round) == size, "round %u: %d of %zu B: %s", round, got, size, at_why());
	free(to);
}

static acp_segbuf_t buffer(bool is_source, int peer) {
	unsigned char *at = memory(SEGMENT * SEGMENTS);
	acp_segbuf_t end = is_source ? acp_create_src_segbuf(peer, at, SEGMENT, SEGMENTS) : acp_create_dst_segbuf(peer, at, SEGMENT, SEGMENTS);
	AT_MUST(end != ACP_SEGBUF_NULL, "%s", at_why());
	return end;
}

static void leave_all_open(unsigned round) {
	/* The other end is never there, or was freed by this rank only. */
	channel(at_rank, next);
	begin_send(channel(at_rank, next), 10, round);
	acp_ch_t out = channel(at_rank, next), freed = channel(at_rank, next);
	acp_ch_t unmet = channel(before, at_rank);
	channel(before, at_rank);
	acp_ch_t in = channel(before, at_rank), half = channel(before, at_rank);
	request(acp_nbrecv_ch(unmet, memory(10), 10));
	request(acp_nbfree_ch(freed));
	request(acp_nbrecv_ch(half, memory(10), 10));
	/* Something has come, something is being fetched, something is offered, and something too long for the ring is behind it. */
	acp_request_t first = begin_send(out, 1000, round);
	acp_request_t second = begin_send(out, LONG, round);
	for (int i = 0; i < 2; i++)
		begin_send(out, LONG, round);
	begin_send(out, PARTS, round);
	begin_send(out, PARTS, round);
	receive(in, 1000, round);
	AT_CHECK(acp_wait_ch(first) == 0, "%s", at_why());
	if (round % 3 == 0) {
		receive(in, LONG, round);
		AT_CHECK(acp_wait_ch(second) == 0, "%s", at_why());
	}
	request(acp_nbrecv_ch(in, memory(LONG), LONG));
	/* Full, and given back by one. */
	acp_segbuf_t source = buffer(true, next), destination = buffer(false, before);
	AT_CHECK(acp_connect_segbuf(source) == 0, "%s", at_why());
	for (int i = 0; i < SEGMENTS; i++)
		AT_CHECK(acp_ack_segbuf(source) == 0, "%s", at_why());
	if (round % 2)
		AT_CHECK(acp_disconnect_segbuf(source) == 0, "%s", at_why());
	AT_CHECK(acp_connect_segbuf(destination) == 0, "%s", at_why());
	if (acp_isacked_segbuf(destination) == 0)
		AT_CHECK(acp_ready_segbuf(destination) == 0, "%s", at_why());
	buffer(at_rank & 1, next);
	AT_CHECK(acp_setparams_ws(0, 1000) == 0 && acp_create_ws(1500) != ACP_WSD_NULL, "%s", at_why());
}

static void is_as_new(unsigned round) {
	acp_ch_t out = channel(at_rank, next), in = channel(before, at_rank);
	size_t sizes[] = {0, 20, 4000, PARTS, LONG, 8};
	for (unsigned i = 0; i < 6; i++) {
		acp_request_t sent = begin_send(out, sizes[i], round + i + 1000);
		receive(in, sizes[i], round + i + 1000);
		AT_CHECK(acp_wait_ch(sent) == 0, "%s", at_why());
	}
	acp_request_t ends[] = {acp_nbfree_ch(out), acp_nbfree_ch(in)};
	AT_CHECK(acp_waitall_ch(ends, 2, NULL) == 0, "%s", at_why());
	acp_segbuf_t source = buffer(true, next), destination = buffer(false, before);
	unsigned char *from = kept[kept_count - 2], *to = kept[kept_count - 1];
	AT_CHECK(acp_connect_segbuf(source) == 0 && acp_query_segbuf_tail(source) == 0, "%s", at_why());
	at_fill(from, SEGMENT, at_rank, round);
	AT_CHECK(acp_ack_segbuf(source) == 0 && acp_connect_segbuf(destination) == 0, "%s", at_why());
	int answer;
	while ((answer = acp_isacked_segbuf(destination)) == 1)
		;
	AT_CHECK(answer == 0 && at_differs(to, SEGMENT, before, round) == SEGMENT, "round %u: the segment: %s", round, at_why());
	AT_CHECK(acp_disconnect_segbuf(source) == 0 && acp_disconnect_segbuf(destination) == 0, "%s", at_why());
	AT_CHECK(acp_free_segbuf(source) == 0 && acp_free_segbuf(destination) == 0, "%s", at_why());
}

int main(int argc, char **argv) {
	unsigned count = argc > 1 ? (unsigned)atoi(argv[1]) : 4;
	at_begin(&argc, &argv);
	AT_MUST(at_procs > 1, "two ranks at least");
	for (unsigned round = 0;; round++) {
		next = (at_rank + 1) % at_procs;
		before = (at_rank + at_procs - 1) % at_procs;
		is_as_new(round);
		leave_all_open(round);
		if (round == count)
			break;
		/* Backwards, or as it was. */
		AT_MUST(acp_reset(round % 2 ? at_rank : at_procs - 1 - at_rank) == 0, "%s", at_why());
		at_number();
		while (kept_count > 0)
			free(kept[--kept_count]);
	}
	AT_CHECK(acp_finalize() == 0, "%s", at_why());
	while (kept_count > 0)
		free(kept[--kept_count]);
	return at_verdict();
}
