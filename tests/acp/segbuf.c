/* Segmented buffers. The argument says what is done: "all", "open" (they are left so), "die STEP" (rank 1 is killed there). */
#include "at.h"

#include <signal.h>

enum { SIZE = 3000, COUNT = 5, MANY = 9 };

static acp_segbuf_t create(bool is_source, int peer, void *memory, size_t size, size_t count) {
	acp_segbuf_t end = is_source ? acp_create_src_segbuf(peer, memory, size, count) : acp_create_dst_segbuf(peer, memory, size, count);
	AT_MUST(end != ACP_SEGBUF_NULL, "%s", at_why());
	return end;
}

static void await(int (*ask)(acp_segbuf_t), acp_segbuf_t end) {
	double until = at_now() + AT_PATIENCE;
	int answer;
	while ((answer = ask(end)) == 1 && at_now() < until)
		;
	AT_MUST(answer == 0, "%d: %s", answer, at_why());
}

static void part(acp_segbuf_t end) {
	AT_CHECK(acp_free_segbuf(end) == -1, "freed while it is connected");
	AT_CHECK(acp_disconnect_segbuf(end) == 0, "%s", at_why());
	AT_CHECK(acp_disconnect_segbuf(end) == -1, "disconnected twice");
	AT_CHECK(acp_isready_segbuf(end) == -1 && acp_isacked_segbuf(end) == -1, "it is disconnected");
	AT_CHECK(acp_query_segbuf_head(end) == -1, "it is disconnected");
	AT_CHECK(acp_free_segbuf(end) == 0, "%s", at_why());
	AT_CHECK(acp_free_segbuf(end) == -1 && acp_isconnected_segbuf(end) == -1, "it is gone");
}

static void refusals(void) {
	char memory[64];
	AT_CHECK(acp_create_src_segbuf(at_rank, memory, 8, 8) == ACP_SEGBUF_NULL && strstr(at_why(), "both"), "%s", at_why());
	AT_CHECK(acp_create_dst_segbuf(at_rank, memory, 8, 8) == ACP_SEGBUF_NULL, "to itself");
	AT_CHECK(acp_create_src_segbuf(at_procs, memory, 8, 8) == ACP_SEGBUF_NULL, "to nobody");
	AT_CHECK(acp_create_dst_segbuf(-1, memory, 8, 8) == ACP_SEGBUF_NULL, "from nobody");
	int next = (at_rank + 1) % at_procs;
	if (next != at_rank) {
		AT_CHECK(acp_create_src_segbuf(next, memory, 0, 8) == ACP_SEGBUF_NULL, "no bytes");
		AT_CHECK(acp_create_src_segbuf(next, memory, 8, 0) == ACP_SEGBUF_NULL, "no segments");
		AT_CHECK(acp_create_src_segbuf(next, memory, SIZE_MAX / 2, 3) == ACP_SEGBUF_NULL, "more than there is");
		AT_CHECK(acp_create_src_segbuf(next, NULL, 8, 8) == ACP_SEGBUF_NULL, "nowhere");
	}
	AT_CHECK(acp_connect_segbuf(ACP_SEGBUF_NULL) == -1 && acp_isconnected_segbuf(ACP_SEGBUF_NULL) == -1, "none");
	AT_CHECK(acp_ready_segbuf(ACP_SEGBUF_NULL) == -1 && acp_ack_segbuf(ACP_SEGBUF_NULL) == -1, "none");
	AT_CHECK(acp_query_segbuf_tail(ACP_SEGBUF_NULL) == -1 && acp_query_segbuf_sent(ACP_SEGBUF_NULL) == -1, "none");
	AT_CHECK(acp_disconnect_segbuf(ACP_SEGBUF_NULL) == -1 && acp_free_segbuf(ACP_SEGBUF_NULL) == -1, "none");
}

/* Segments from rank 0 to 1, each checked; the ring is full and empty at times that both know. */
static void stream(unsigned rounds) {
	static unsigned char memory[SIZE * COUNT];
	if (at_rank > 1)
		return;
	bool is_source = at_rank == 0;
	acp_segbuf_t end = create(is_source, 1 - at_rank, memory, SIZE, COUNT);
	AT_CHECK(acp_connect_segbuf(end) == 0 && acp_isconnected_segbuf(end) == 0, "%s", at_why());
	for (unsigned i = 0; i < rounds; i++) {
		unsigned char *at = memory + i % COUNT * SIZE;
		if (is_source) {
			await(acp_isready_segbuf, end);
			AT_CHECK(acp_query_segbuf_tail(end) == i % COUNT, "tail %d, not %u", (int)acp_query_segbuf_tail(end), i % COUNT);
			at_fill(at, SIZE, 0, i);
			AT_CHECK(acp_ack_segbuf(end) == 0, "%s", at_why());
			AT_CHECK(acp_ready_segbuf(end) == -1 && strstr(at_why(), "source"), "%s", at_why());
		} else {
			await(acp_isacked_segbuf, end);
			AT_CHECK(acp_query_segbuf_head(end) == i % COUNT && acp_query_segbuf_sent(end) == 0, "round %u", i);
			size_t same = at_differs(at, SIZE, 0, i);
			AT_CHECK(same == SIZE, "round %u: byte %zu", i, same);
			AT_CHECK(acp_ready_segbuf(end) == 0, "%s", at_why());
			AT_CHECK(acp_ack_segbuf(end) == -1 && strstr(at_why(), "destination"), "%s", at_why());
		}
	}
	if (is_source) {
		/* Full, as the other does nothing before the barrier. */
		at_sync();
		for (unsigned i = 0; i < COUNT; i++) {
			await(acp_isready_segbuf, end);
			AT_CHECK(acp_ack_segbuf(end) == 0, "%u: %s", i, at_why());
		}
		AT_CHECK(acp_ack_segbuf(end) == -1 && acp_isready_segbuf(end) == 1 && acp_isacked_segbuf(end) == 0, "it is full");
		double until = at_now() + AT_PATIENCE;
		while (acp_query_segbuf_sent(end) != (int64_t)((rounds + COUNT) % COUNT) && at_now() < until)
			;
		AT_CHECK(acp_query_segbuf_sent(end) == (rounds + COUNT) % COUNT, "sent %d", (int)acp_query_segbuf_sent(end));
		at_sync();
	} else {
		AT_CHECK(acp_isacked_segbuf(end) == 1 && acp_ready_segbuf(end) == -1 && strstr(at_why(), "no segment has come"), "%s", at_why());
		at_sync();
		at_sync();
		for (unsigned i = 0; i < COUNT; i++) {
			await(acp_isacked_segbuf, end);
			AT_CHECK(acp_ready_segbuf(end) == 0, "%u: %s", i, at_why());
		}
		AT_CHECK(acp_ready_segbuf(end) == -1 && acp_isready_segbuf(end) == 0, "it is empty");
	}
	part(end);
}

/* Several of a pair in both directions, matched by order of creation. */
static void many(void) {
	static unsigned char out[MANY][SIZE], in[MANY][SIZE];
	acp_segbuf_t from[MANY], to[MANY];
	int other = at_rank ^ 1;
	if (other >= at_procs)
		return;
	for (int i = 0; i < MANY; i++) {
		from[i] = create(true, other, out[i], (size_t)SIZE - (size_t)i, 1);
		to[i] = create(false, other, in[i], (size_t)SIZE - (size_t)i, 1);
	}
	for (int i = MANY - 1; i >= 0; i--) {
		await(acp_isconnected_segbuf, from[i]);
		at_fill(out[i], SIZE - (size_t)i, at_rank, (unsigned)i);
		AT_CHECK(acp_ack_segbuf(from[i]) == 0, "%s", at_why());
		AT_CHECK(acp_disconnect_segbuf(from[i]) == 0, "%s", at_why());
	}
	for (int i = 0; i < MANY; i++) {
		AT_CHECK(acp_connect_segbuf(to[i]) == 0, "%s", at_why());
		await(acp_isacked_segbuf, to[i]);
		AT_CHECK(at_differs(in[i], SIZE - (size_t)i, other, (unsigned)i) == (size_t)(SIZE - i), "the one of %d", i);
		AT_CHECK(acp_disconnect_segbuf(to[i]) == 0, "%s", at_why());
	}
	for (int i = 0; i < MANY; i++)
		AT_CHECK(acp_free_segbuf(to[i]) == 0 && acp_free_segbuf(from[i]) == 0, "%s", at_why());
}

/* A message goes on that needs the sender, while that one asks over and over what is so. */
static void others_go_on(void) {
	static unsigned char memory[8], bytes[100000];
	if (at_rank > 1)
		return;
	acp_segbuf_t end = create(at_rank == 0, 1 - at_rank, memory, 8, 1);
	acp_ch_t ch = acp_create_ch(0, 1);
	AT_MUST(ch != ACP_CH_NULL && acp_connect_segbuf(end) == 0, "%s", at_why());
	volatile uint64_t *has_come = at_starter(AT_FREE);
	if (at_rank == 0) {
		*has_come = 0;
		acp_request_t sent = acp_nbsend_ch(ch, bytes, sizeof bytes);
		double until = at_now() + AT_PATIENCE;
		while (at_word(has_come) == 0 && at_now() < until)
			AT_MUST(acp_isready_segbuf(end) == 0 && acp_isconnected_segbuf(end) == 0, "%s", at_why());
		AT_CHECK(at_word(has_come) == 1, "the message does not go on");
		AT_CHECK(acp_wait_ch(sent) == 0, "%s", at_why());
	} else {
		AT_CHECK(acp_recv_ch(ch, bytes, sizeof bytes) == sizeof bytes, "%s", at_why());
		at_store(acp_query_starter_ga(0) + AT_FREE, 1);
	}
	AT_CHECK(acp_free_ch(ch) == 0, "%s", at_why());
	part(end);
}

static void mismatch(void) {
	static unsigned char memory[4096];
	if (at_rank > 1)
		return;
	acp_segbuf_t end = create(at_rank == 0, 1 - at_rank, memory, at_rank == 0 ? 100 : 200, 3);
	AT_CHECK(acp_connect_segbuf(end) == -1, "100 B and 200 B");
	AT_CHECK(strstr(at_why(), "100 B") && strstr(at_why(), "200") && strstr(at_why(), "rank 1"), "%s", at_why());
	AT_CHECK(acp_isconnected_segbuf(end) == -1 && acp_ack_segbuf(end) == -1, "it is not connected");
	AT_CHECK(acp_disconnect_segbuf(end) == 0 && acp_free_segbuf(end) == 0, "%s", at_why());
	/* One that was never connected by a call. */
	end = create(at_rank == 0, 1 - at_rank, memory, 100, 3);
	AT_CHECK(acp_disconnect_segbuf(end) == 0 && acp_connect_segbuf(end) == -1, "it is disconnected");
	AT_CHECK(acp_free_segbuf(end) == 0, "%s", at_why());
}

int main(int argc, char **argv) {
	const char *what = argc > 1 ? argv[1] : "all";
	int step = argc > 2 ? atoi(argv[2]) : 0;
	static unsigned char memory[SIZE * COUNT];
	at_begin(&argc, &argv);
	if (strcmp(what, "all") == 0) {
		refusals();
		if (at_procs > 1) {
			for (int i = 0; i < 3; i++) {
				stream(1000);
				if (at_rank > 1) {
					at_sync();
					at_sync();
				}
			}
			many();
			others_go_on();
			mismatch();
		}
	} else if (strcmp(what, "open") == 0) {
		int next = (at_rank + 1) % at_procs, before = (at_rank + at_procs - 1) % at_procs;
		acp_segbuf_t out = create(true, next, memory, SIZE, COUNT);
		create(false, before, memory, SIZE, COUNT);
		if (at_rank == 0)
			AT_CHECK(acp_connect_segbuf(out) == 0 && acp_ack_segbuf(out) == 0, "%s", at_why());
		AT_CHECK(acp_finalize() == 0, "%s", at_why());
		return at_verdict();
	} else if (strcmp(what, "die") == 0) {
		if (at_rank == 1 && step == 0)
			kill(getpid(), SIGKILL);
		acp_segbuf_t end = at_rank < 2 ? create(at_rank == 0, 1 - at_rank, memory, SIZE, COUNT) : ACP_SEGBUF_NULL;
		if (at_rank == 1 && step == 1)
			kill(getpid(), SIGKILL);
		if (at_rank < 2)
			acp_connect_segbuf(end);
		if (at_rank == 1 && step == 2)
			kill(getpid(), SIGKILL);
		if (at_rank == 0) {
			acp_disconnect_segbuf(end);
			acp_free_segbuf(end);
		}
		at_sync();
	}
	return at_end();
}
