/* Channels. The argument says what is done: "all" (each function, and what it refuses), "rounds N LIMIT" (ping-pong, ring, fan-in of
 * all sizes up to LIMIT), "ping SIZE ROUNDS" (prints half a round trip), "die STEP" (rank 1 is killed there), "late" (rank 1 stops for
 * a second), "open" (channels are left open). */
#include "at.h"

#include <limits.h>
#include <signal.h>

#define SIZE_FAILED ((size_t)-1)

static acp_ch_t channel(int sender, int receiver) {
	acp_ch_t ch = acp_create_ch(sender, receiver);
	AT_MUST(ch != ACP_CH_NULL, "from %d to %d: %s", sender, receiver, at_why());
	return ch;
}

static void send_all(acp_ch_t ch, void *from, size_t size) {
	AT_CHECK(acp_send_ch(ch, from, size) == 0, "%zu B: %s", size, at_why());
}

static acp_request_t begin_send(acp_ch_t ch, void *from, size_t size) {
	acp_request_t request = acp_nbsend_ch(ch, from, size);
	AT_MUST(request != ACP_REQUEST_NULL, "%s", at_why());
	return request;
}

static acp_request_t begin_recv(acp_ch_t ch, void *to, size_t size) {
	acp_request_t request = acp_nbrecv_ch(ch, to, size);
	AT_MUST(request != ACP_REQUEST_NULL, "%s", at_why());
	return request;
}

static void is_received(acp_request_t request, const unsigned char *at, size_t size, int rank, unsigned round) {
	size_t got = acp_wait_ch(request);
	AT_CHECK(got == size, "round %u: %zu B of %zu: %s", round, got, size, got == SIZE_FAILED ? at_why() : "");
	size_t same = at_differs(at, size, rank, round);
	AT_CHECK(same == size, "round %u, %zu B from %d: byte %zu differs", round, size, rank, same);
}

/* ---- What is refused ---- */

static void refusals(void) {
	int next = (at_rank + 1) % at_procs;
	AT_CHECK(acp_create_ch(at_rank, at_rank) == ACP_CH_NULL && strstr(at_why(), "both"), "to itself: %s", at_why());
	AT_CHECK(acp_create_ch(at_rank, at_procs) == ACP_CH_NULL, "to nobody");
	AT_CHECK(acp_create_ch(-1, at_rank) == ACP_CH_NULL, "from nobody");
	if (at_procs >= 3)
		AT_CHECK(acp_create_ch(next, (at_rank + 2) % at_procs) == ACP_CH_NULL && strstr(at_why(), "neither"),
			"of others: %s", at_why());
	char byte = 0;
	AT_CHECK(acp_nbsend_ch(ACP_CH_NULL, &byte, 1) == ACP_REQUEST_NULL, "by no channel");
	AT_CHECK(acp_nbrecv_ch(ACP_CH_NULL, &byte, 1) == ACP_REQUEST_NULL, "by no channel");
	AT_CHECK(acp_nbfree_ch(ACP_CH_NULL) == ACP_REQUEST_NULL, "no channel is freed");
	AT_CHECK(acp_free_ch(ACP_CH_NULL) == -1, "no channel is freed");
	AT_CHECK(acp_send_ch(ACP_CH_NULL, &byte, 1) == -1, "by no channel");
	AT_CHECK(acp_recv_ch(ACP_CH_NULL, &byte, 1) == -1, "by no channel");
	AT_CHECK(acp_wait_ch(ACP_REQUEST_NULL) == SIZE_FAILED, "no request");
	acp_request_t none[2] = {ACP_REQUEST_NULL, ACP_REQUEST_NULL};
	size_t sizes[2] = {1, 2};
	AT_CHECK(acp_waitall_ch(none, 2, sizes) == -1 && sizes[0] == SIZE_FAILED && sizes[1] == SIZE_FAILED, "no requests");
	AT_CHECK(acp_waitall_ch(none, -1, NULL) == -1 && acp_waitall_ch(NULL, 1, NULL) == -1, "not so many");
	AT_CHECK(acp_waitall_ch(NULL, 0, NULL) == 0, "none: %s", at_why());
}

/* Rank 0 sends to 1. */
static void one_way(void) {
	if (at_rank > 1)
		return;
	static unsigned char buffer[1 << 20], small[100];
	acp_ch_t ch = channel(0, 1);
	if (at_rank == 0) {
		AT_CHECK(acp_nbrecv_ch(ch, small, 1) == ACP_REQUEST_NULL && strstr(at_why(), "sender"), "%s", at_why());
		/* Truncation, at each way that a message goes by. */
		size_t sizes[] = {50, 3000, 20000, sizeof buffer};
		for (unsigned i = 0; i < 4; i++) {
			at_fill(buffer, sizes[i], 0, i);
			send_all(ch, buffer, sizes[i]);
			send_all(ch, buffer, sizes[i]);
			send_all(ch, buffer, sizes[i]);
		}
		send_all(ch, NULL, 0);
		/* 1,000 before the other end looks. */
		at_fill(buffer, 8000, 0, 9);
		static acp_request_t many[1000];
		for (int i = 0; i < 1000; i++)
			many[i] = begin_send(ch, buffer + 8 * i, 8);
		AT_CHECK(acp_waitall_ch(many, 1000, NULL) == 0, "%s", at_why());
		for (int i = 0; i < 1000; i++)
			AT_CHECK(many[i] == ACP_REQUEST_NULL, "request %d is still one", i);
		acp_request_t last = begin_send(ch, buffer, 10), freed = acp_nbfree_ch(ch);
		AT_CHECK(freed != ACP_REQUEST_NULL, "%s", at_why());
		AT_CHECK(acp_nbsend_ch(ch, small, 1) == ACP_REQUEST_NULL && strstr(at_why(), "freed"), "%s", at_why());
		AT_CHECK(acp_wait_ch(last) == 0 && acp_wait_ch(freed) == 0, "%s", at_why());
		AT_CHECK(acp_wait_ch(freed) == SIZE_FAILED, "waited for twice");
		AT_CHECK(acp_nbsend_ch(ch, small, 1) == ACP_REQUEST_NULL, "it is gone");
	} else {
		AT_CHECK(acp_send_ch(ch, small, 1) == -1 && strstr(at_why(), "receiver"), "%s", at_why());
		size_t sizes[] = {50, 3000, 20000, sizeof buffer};
		for (unsigned i = 0; i < 4; i++) {
			memset(buffer, 0xee, sizeof buffer);
			is_received(begin_recv(ch, buffer, sizes[i] - 7), buffer, sizes[i] - 7, 0, i);
			AT_CHECK(at_all_are(buffer + sizes[i] - 7, 7, 0xee) || i == 3, "%zu B: behind the end", sizes[i]);
			AT_CHECK(acp_recv_ch(ch, buffer, 0) == 0, "%s", at_why());
			AT_CHECK(acp_recv_ch(ch, buffer, sizeof buffer) == (int)sizes[i], "%s", at_why());
			AT_CHECK(at_differs(buffer, sizes[i], 0, i) == sizes[i], "%zu B differ", sizes[i]);
		}
		AT_CHECK(acp_recv_ch(ch, buffer, 10) == 0, "of no bytes: %s", at_why());
		/* Waited for in another order. */
		static acp_request_t many[1000];
		for (int i = 0; i < 1000; i++)
			many[i] = begin_recv(ch, buffer + 8 * i, 8);
		AT_CHECK(acp_wait_ch(many[999]) == 8 && acp_wait_ch(many[0]) == 8 && acp_wait_ch(many[500]) == 8, "%s", at_why());
		static size_t got[1000];
		AT_CHECK(acp_waitall_ch(many, 1000, got) == -1, "three are gone");
		for (int i = 0; i < 1000; i++)
			AT_CHECK(got[i] == (i == 0 || i == 500 || i == 999 ? SIZE_FAILED : 8), "request %d: %zu B", i, got[i]);
		AT_CHECK(at_differs(buffer, 8000, 0, 9) == 8000, "they are not in order");
		AT_CHECK(acp_recv_ch(ch, buffer, 100) == 10, "%s", at_why());
		/* Nothing more comes. */
		AT_CHECK(acp_recv_ch(ch, buffer, 100) == -1 && strstr(at_why(), "freed"), "%s", at_why());
		AT_CHECK(acp_free_ch(ch) == 0, "%s", at_why());
		AT_CHECK(acp_free_ch(ch) == -1, "freed twice");
	}
}

/* Several of a pair, both ways, created in one order and used in another; messages that nobody receives. */
static void many_of_a_pair(void) {
	enum { MANY = 70, LONG = 100000 };
	int other = at_rank ^ 1;
	if (other >= at_procs)
		return;
	static acp_ch_t out[MANY], in[MANY];
	static acp_request_t sent[MANY], got[MANY];
	static unsigned char from[MANY][LONG], to[MANY][LONG];
	for (unsigned round = 0; round < 3; round++) {
		for (int i = 0; i < MANY; i++) {
			/* The directions are counted for themselves. */
			if (at_rank < other) {
				out[i] = channel(at_rank, other);
				in[i] = channel(other, at_rank);
			} else {
				in[i] = channel(other, at_rank);
				out[i] = channel(at_rank, other);
			}
		}
		for (int i = MANY - 1; i >= 0; i--) {
			size_t size = i % 3 == 0 ? LONG : (size_t)i * 40;
			at_fill(from[i], size, at_rank, round * 100 + (unsigned)i);
			sent[i] = begin_send(out[i], from[i], size);
		}
		/* Not in the order of anything. */
		for (int i = 0; i < MANY; i++)
			got[i * 37 % MANY] = begin_recv(in[i * 37 % MANY], to[i * 37 % MANY], LONG);
		for (int i = 0; i < MANY; i++) {
			size_t size = i % 3 == 0 ? LONG : (size_t)i * 40;
			is_received(got[i], to[i], size, other, round * 100 + (unsigned)i);
		}
		AT_CHECK(acp_waitall_ch(sent, MANY, NULL) == 0, "%s", at_why());
		for (int i = 0; i < MANY; i++) {
			/* Nobody receives these; the first is too long for the ring. */
			acp_request_t unwanted = begin_send(out[i], from[i], i == 0 ? LONG : 100);
			sent[i] = acp_nbfree_ch(out[i]);
			got[i] = acp_nbfree_ch(in[i]);
			AT_CHECK(acp_wait_ch(unwanted) == 0, "%s", at_why());
		}
		AT_CHECK(acp_waitall_ch(got, MANY, NULL) == 0 && acp_waitall_ch(sent, MANY, NULL) == 0, "%s", at_why());
	}
}

/* A channel that is created and freed, and one whose other end comes late. */
static void unused(void) {
	if (at_rank > 1)
		return;
	for (int i = 0; i < 50; i++) {
		acp_ch_t ch = channel(0, 1);
		AT_CHECK(acp_free_ch(ch) == 0, "%s", at_why());
	}
	acp_ch_t ahead = channel(1, 0);
	if (at_rank == 0) {
		unsigned char word[8];
		is_received(begin_recv(ahead, word, 8), word, 8, 1, 1);
	} else {
		unsigned char word[8];
		at_fill(word, 8, 1, 1);
		send_all(ahead, word, 8);
	}
	AT_CHECK(acp_free_ch(ahead) == 0, "%s", at_why());
}

/* What fits the ring is sent while the receiver, which has created its end, is elsewhere. */
static void sent_while_the_receiver_is_elsewhere(void) {
	unsigned char bytes[2000];
	acp_ch_t ch = at_rank < 2 ? channel(0, 1) : ACP_CH_NULL;
	at_fill(bytes, sizeof bytes, 0, 5);
	if (at_rank == 0)
		send_all(ch, bytes, sizeof bytes);
	at_sync();
	if (at_rank == 1)
		is_received(begin_recv(ch, bytes, sizeof bytes), bytes, sizeof bytes, 0, 5);
	if (at_rank < 2)
		AT_CHECK(acp_free_ch(ch) == 0, "%s", at_why());
}

/* ---- Rounds of all sizes ---- */

static size_t next_size(size_t size) {
	return size < 4 ? size + 1 : size < 200 ? size + size / 3 : size * 3 + 1;
}

static unsigned rounds_of(unsigned rounds, size_t size) {
	size_t most = (size_t)(48 << 20) / (size + 1);
	return most < 2 ? 2 : most < rounds ? (unsigned)most : rounds;
}

static void rounds(unsigned count, size_t limit) {
	int next = (at_rank + 1) % at_procs, before = (at_rank + at_procs - 1) % at_procs;
	unsigned char *from = malloc(limit + 1), *to = malloc(limit + 1);
	AT_MUST(from && to, "no %zu B", limit);
	/* Around the ring, both ends of which are on each rank. */
	acp_ch_t out = channel(at_rank, next), in = channel(before, at_rank);
	for (size_t size = 0; size <= limit; size = next_size(size)) {
		unsigned n = rounds_of(count, size * (size_t)at_procs);
		for (unsigned round = 0; round < n; round++) {
			at_fill(from, size, at_rank, round);
			acp_request_t got = begin_recv(in, to, limit), sent = begin_send(out, from, size);
			is_received(got, to, size, before, round);
			AT_CHECK(acp_wait_ch(sent) == 0, "%s", at_why());
		}
	}
	/* Each waits for the other end, so both at once. */
	acp_request_t both[2] = {acp_nbfree_ch(out), acp_nbfree_ch(in)};
	AT_CHECK(acp_waitall_ch(both, 2, NULL) == 0, "%s", at_why());
	free(from);
	free(to);
}

static void ping(unsigned count, size_t limit) {
	if (at_rank > 1)
		return;
	unsigned char *from = malloc(limit + 1), *to = malloc(limit + 1);
	AT_MUST(from && to, "no %zu B", limit);
	acp_ch_t forth = channel(0, 1), back = channel(1, 0);
	for (size_t size = 0; size <= limit; size = next_size(size)) {
		unsigned n = rounds_of(count, size);
		for (unsigned round = 0; round < n; round++) {
			at_fill(from, size, at_rank, round);
			if (at_rank == 0)
				send_all(forth, from, size);
			is_received(begin_recv(at_rank == 0 ? back : forth, to, limit), to, size, 1 - at_rank, round);
			if (at_rank == 1)
				send_all(back, from, size);
		}
	}
	acp_request_t both[2] = {acp_nbfree_ch(forth), acp_nbfree_ch(back)};
	AT_CHECK(acp_waitall_ch(both, 2, NULL) == 0, "%s", at_why());
	free(from);
	free(to);
}

static void fan_in(unsigned count) {
	acp_ch_t all[AT_MAX];
	uint64_t word[2];
	for (int r = 1; r < at_procs; r++)
		if (at_rank == 0 || at_rank == r)
			all[r] = channel(r, 0);
	for (unsigned round = 0; round < count; round++)
		for (int r = 1; r < at_procs; r++) {
			if (at_rank == r) {
				word[0] = round;
				word[1] = (uint64_t)r;
				send_all(all[r], word, sizeof word);
			} else if (at_rank == 0) {
				AT_CHECK(acp_recv_ch(all[r], word, sizeof word) == 16, "%s", at_why());
				AT_CHECK(word[0] == round && word[1] == (uint64_t)r, "%u of %d: %" PRIu64, round, r, word[0]);
			}
		}
	for (int r = 1; r < at_procs; r++)
		if (at_rank == 0 || at_rank == r)
			AT_CHECK(acp_free_ch(all[r]) == 0, "%s", at_why());
}

static void measure(size_t size, unsigned count) {
	if (at_rank > 1)
		return;
	unsigned char *bytes = calloc(size + 1, 1);
	acp_ch_t forth = channel(0, 1), back = channel(1, 0);
	double began = 0, best = 1e9;
	for (unsigned block = 0; block < 10; block++) {
		began = at_now();
		for (unsigned i = 0; i < count; i++)
			if (at_rank == 0) {
				acp_send_ch(forth, bytes, size);
				acp_recv_ch(back, bytes, size);
			} else {
				acp_recv_ch(forth, bytes, size);
				acp_send_ch(back, bytes, size);
			}
		double took = (at_now() - began) / count / 2 * 1e6;
		best = took < best ? took : best;
	}
	if (at_rank == 0)
		printf("%zu B: %.3f us half a round trip, %.2f GB/s\n", size, best, (double)size / best / 1e3);
	acp_request_t both[2] = {acp_nbfree_ch(forth), acp_nbfree_ch(back)};
	AT_CHECK(acp_waitall_ch(both, 2, NULL) == 0, "%s", at_why());
	free(bytes);
}

/* Rank 1 is killed at a step; the others wait for what never comes. */
static void die(int step) {
	static unsigned char buffer[1 << 20];
	acp_ch_t forth = ACP_CH_NULL, back = ACP_CH_NULL;
	for (int now = 0;; now++) {
		if (at_rank == 1 && now == step)
			kill(getpid(), SIGKILL);
		if (now == 0 && at_rank < 2)
			forth = channel(0, 1), back = channel(1, 0);
		size_t size = now == 2 ? sizeof buffer : 100;
		if (now >= 1 && at_rank == 0 && now < 4) {
			acp_send_ch(forth, buffer, size);
			acp_recv_ch(back, buffer, size);
		} else if (now >= 1 && at_rank == 1 && now < 4) {
			acp_recv_ch(forth, buffer, size);
			acp_send_ch(back, buffer, size);
		} else if (now == 4 && at_rank == 0) {
			acp_free_ch(forth);
		} else if (now >= 4 || at_rank > 1) {
			at_sync();
		}
	}
}

/* Rank 1 waits for a message and is stopped. Rank 0 sends it one, and messages go on between ranks 0 and 2, over an old channel and a
 * new one: some laps of the ring, messages that are offered, and the end of the channels. */
static void while_one_is_stopped(void) {
	at_tell(0, (uint64_t)getpid());
	at_sync();
	pid_t stopped = (pid_t)at_told(1, 0);
	long word = 7;
	size_t longest = 4 << 20;
	unsigned char *bytes = calloc(1, longest);
	AT_MUST(bytes != NULL, "no memory");
	if (at_rank == 1) {
		acp_ch_t ch = channel(0, 1);
		AT_CHECK(acp_recv_ch(ch, &word, sizeof word) == (int)sizeof word && word == 8, "%ld: %s", word, at_why());
		AT_CHECK(acp_free_ch(ch) == 0, "%s", at_why());
		free(bytes);
		return;
	}
	acp_ch_t to_stopped = at_rank == 0 ? channel(0, 1) : ACP_CH_NULL;
	acp_ch_t to[2] = {channel(at_rank, 2 - at_rank), ACP_CH_NULL}, from[2] = {channel(2 - at_rank, at_rank), ACP_CH_NULL};
	for (int round = 0; round < 400; round++) {
		if (round == 10 && at_rank == 0) {
			usleep(50000); /* most often it sleeps by now, and has asked to be woken */
			AT_MUST(kill(stopped, SIGSTOP) == 0, "kill: %s", strerror(errno));
			word = 8;
			AT_CHECK(acp_send_ch(to_stopped, &word, sizeof word) == 0, "%s", at_why());
		}
		if (round == 20)
			to[1] = channel(at_rank, 2 - at_rank), from[1] = channel(2 - at_rank, at_rank);
		acp_ch_t out = to[round >= 20 && round % 2], in = from[round >= 20 && round % 2];
		/* Of the last ones so many that addresses of registrations would be used again, which all ranks are asked for. */
		size_t size = round % 10 == 5 ? longest : round >= 60 ? (1 << 20) + 1 : 4000;
		if (at_rank == 0)
			AT_CHECK(acp_send_ch(out, bytes, size) == 0, "%s", at_why());
		AT_CHECK(acp_recv_ch(in, bytes, size) == (int)size, "round %d: %s", round, at_why());
		if (at_rank == 2)
			AT_CHECK(acp_send_ch(out, bytes, size) == 0, "%s", at_why());
	}
	acp_request_t ends[] = {acp_nbfree_ch(to[0]), acp_nbfree_ch(to[1]), acp_nbfree_ch(from[0]), acp_nbfree_ch(from[1])};
	AT_CHECK(acp_waitall_ch(ends, 4, NULL) == 0, "%s", at_why());
	if (at_rank == 0) {
		kill(stopped, SIGCONT);
		AT_CHECK(acp_free_ch(to_stopped) == 0, "%s", at_why());
	}
	free(bytes);
}

int main(int argc, char **argv) {
	const char *what = argc > 1 ? argv[1] : "all";
	long first = argc > 2 ? atol(argv[2]) : 0, second = argc > 3 ? atol(argv[3]) : 0;
	if (strcmp(what, "all") == 0)
		AT_CHECK(acp_create_ch(0, 1) == ACP_CH_NULL && acp_wait_ch(ACP_REQUEST_NULL) == SIZE_FAILED, "before acp_init");
	at_begin(&argc, &argv);
	if (strcmp(what, "all") == 0) {
		for (int again = 0; again < 2; again++) {
			refusals();
			if (at_procs == 1)
				break;
			one_way();
			at_sync();
			many_of_a_pair();
			unused();
			sent_while_the_receiver_is_elsewhere();
			/* The second time in another job, so to say. */
			AT_MUST(acp_reset(at_procs - 1 - at_rank) == 0, "%s", at_why());
			at_number();
		}
	} else if (strcmp(what, "rounds") == 0) {
		ping((unsigned)first, (size_t)second);
		rounds((unsigned)first, (size_t)second);
		fan_in((unsigned)first);
	} else if (strcmp(what, "ping") == 0) {
		measure((size_t)first, (unsigned)second);
	} else if (strcmp(what, "long") == 0) {
		ping(2, 100);
		size_t size = (size_t)first << 20;
		unsigned char *memory = at_rank < 2 ? malloc(size) : NULL;
		acp_ch_t ch = at_rank < 2 ? channel(0, 1) : ACP_CH_NULL;
		for (size_t i = 0; at_rank < 2 && i < size; i += 4096)
			memory[i] = at_rank == 0 ? at_byte(0, 1, i) : 0;
		if (at_rank == 0)
			send_all(ch, memory, size);
		else if (at_rank == 1)
			AT_CHECK(acp_wait_ch(begin_recv(ch, memory, size)) == size, "%s", at_why());
		for (size_t i = 0; at_rank == 1 && i < size; i += 4096)
			AT_CHECK(memory[i] == at_byte(0, 1, i), "byte %zu", i);
		if (at_rank < 2)
			AT_CHECK(acp_free_ch(ch) == 0, "%s", at_why());
	} else if (strcmp(what, "die") == 0) {
		die((int)first);
	} else if (strcmp(what, "stopped") == 0) {
		while_one_is_stopped();
	} else if (strcmp(what, "late") == 0) {
		/* The launcher's child stops itself; its own child lets it go on after a second. */
		if (at_rank == 1 && fork() == 0) {
			while (!at_is_stopped(getppid()))
				usleep(10000);
			sleep(1);
			kill(getppid(), SIGCONT);
			_exit(0);
		}
		acp_ch_t ch = at_rank < 2 ? channel(0, 1) : ACP_CH_NULL;
		if (at_rank == 1)
			raise(SIGSTOP);
		static unsigned char bytes[100000];
		at_fill(bytes, sizeof bytes, 0, 1);
		if (at_rank == 0)
			send_all(ch, bytes, sizeof bytes);
		else if (at_rank == 1)
			is_received(begin_recv(ch, bytes, sizeof bytes), bytes, sizeof bytes, 0, 1);
		if (at_rank < 2)
			AT_CHECK(acp_free_ch(ch) == 0, "%s", at_why());
		fan_in(20);
	} else if (strcmp(what, "open") == 0) {
		/* Requests that never end, connected or not; each rank leaves at its own time. */
		static unsigned char bytes[4096];
		int next = (at_rank + 1) % at_procs;
		acp_ch_t out = channel(at_rank, next), in = channel((at_rank + at_procs - 1) % at_procs, at_rank);
		acp_request_t sent = begin_send(out, bytes, sizeof bytes);
		/* Rank 0 waits for this one. */
		if (at_rank == at_procs - 1)
			AT_CHECK(acp_wait_ch(sent) == 0, "%s", at_why());
		for (int i = 0; i < 99; i++)
			begin_send(out, bytes, sizeof bytes);
		begin_recv(in, bytes, sizeof bytes);
		if (at_rank == 0)
			AT_CHECK(acp_recv_ch(in, bytes, sizeof bytes) == sizeof bytes, "%s", at_why());
		AT_CHECK(acp_finalize() == 0, "%s", at_why());
		return at_verdict();
	} else {
		AT_MUST(false, "nothing is called '%s'", what);
	}
	return at_end();
}
