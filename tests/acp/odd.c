/* Odd uses that are right all the same, or refused: threads, ends that are freed in any order, memory that may not be written, lists of
 * requests with nothing or the same twice, lengths that differ. */
#include "at.h"

#include <pthread.h>
#include <sys/mman.h>

#define SIZE_FAILED ((size_t)-1)

enum { LANES = 6, ROUNDS = 60, LONG = (1 << 20) + 77 };

static acp_ch_t channel(int sender, int receiver) {
	acp_ch_t ch = acp_create_ch(sender, receiver);
	AT_MUST(ch != ACP_CH_NULL, "from %d to %d: %s", sender, receiver, at_why());
	return ch;
}

static acp_request_t request(acp_request_t made) {
	AT_MUST(made != ACP_REQUEST_NULL, "%s", at_why());
	return made;
}

/* ---- Threads ---- */

static size_t lane_size(unsigned lane, unsigned round) {
	static const size_t sizes[] = {0, 1, 64, 65, 4088, 4089, 30000, LONG};
	return sizes[(lane * 5 + round) % (round % 7 == 0 ? 8 : 7)];
}

struct lane {
	unsigned number;
	acp_ch_t ch;
	bool sends;
	int failures;
};

/* Each thread has ends of its own; half of them begin and wait, half do both at once. */
static void *run_lane(void *of) {
	struct lane *lane = of;
	unsigned char *bytes = malloc(LONG + 1);
	for (unsigned round = 0; round < ROUNDS; round++) {
		size_t size = lane_size(lane->number, round), got = size;
		if (lane->sends) {
			at_fill(bytes, size, (int)lane->number, round);
			if (round % 2)
				lane->failures += acp_send_ch(lane->ch, bytes, size) != 0;
			else
				lane->failures += acp_wait_ch(acp_nbsend_ch(lane->ch, bytes, size)) != 0;
		} else {
			if (round % 3)
				got = (size_t)acp_recv_ch(lane->ch, bytes, LONG);
			else
				got = acp_wait_ch(acp_nbrecv_ch(lane->ch, bytes, LONG));
			lane->failures += got != size || at_differs(bytes, size, (int)lane->number, round) != size;
		}
	}
	lane->failures += acp_free_ch(lane->ch) != 0;
	free(bytes);
	return NULL;
}

static void threads(void) {
	if (at_rank > 1)
		return;
	struct lane lanes[LANES];
	pthread_t ids[LANES];
	for (unsigned i = 0; i < LANES; i++)
		lanes[i] = (struct lane){i, channel((int)(i & 1), (int)(~i & 1)), (int)(i & 1) == at_rank, 0};
	for (unsigned i = 0; i < LANES; i++)
		AT_MUST(pthread_create(&ids[i], NULL, run_lane, &lanes[i]) == 0, "no thread");
	for (unsigned i = 0; i < LANES; i++) {
		pthread_join(ids[i], NULL);
		AT_CHECK(lanes[i].failures == 0, "lane %u: %d", i, lanes[i].failures);
	}
}

struct waiter {
	acp_request_t *requests;
	size_t sum;
	int over;
};

/* All threads wait for all requests; each is over for one of them. */
static void *wait_for_all(void *of) {
	struct waiter *waiter = of;
	for (int i = 0; i < 100; i++) {
		size_t size = acp_wait_ch(waiter->requests[i]);
		if (size != SIZE_FAILED) {
			waiter->over++;
			waiter->sum += size;
		}
	}
	return NULL;
}

static void same_requests(void) {
	if (at_rank > 1)
		return;
	acp_ch_t ch = channel(0, 1);
	static unsigned char bytes[100][100];
	acp_request_t requests[100];
	for (int i = 0; i < 100; i++)
		requests[i] = request(at_rank == 0 ? acp_nbsend_ch(ch, bytes[i], (size_t)i) : acp_nbrecv_ch(ch, bytes[i], 100));
	struct waiter waiters[3] = {{requests, 0, 0}, {requests, 0, 0}, {requests, 0, 0}};
	pthread_t ids[3];
	for (int i = 0; i < 3; i++)
		AT_MUST(pthread_create(&ids[i], NULL, wait_for_all, &waiters[i]) == 0, "no thread");
	for (int i = 0; i < 3; i++)
		pthread_join(ids[i], NULL);
	AT_CHECK(waiters[0].over + waiters[1].over + waiters[2].over == 100, "requests are over once");
	AT_CHECK(waiters[0].sum + waiters[1].sum + waiters[2].sum == (at_rank == 0 ? 0 : 99 * 50), "the sizes");
	AT_CHECK(acp_free_ch(ch) == 0, "%s", at_why());
}

/* ---- Lists of requests ---- */

static void lists(void) {
	if (at_rank > 1)
		return;
	acp_ch_t ch = channel(0, 1);
	unsigned char bytes[4][8] = {{1}, {2}, {3}, {4}};
	acp_request_t all[6];
	size_t sizes[6] = {7, 7, 7, 7, 7, 7};
	for (int i = 0; i < 4; i++)
		all[i] = request(at_rank == 0 ? acp_nbsend_ch(ch, bytes[i], 8) : acp_nbrecv_ch(ch, bytes[i], 8));
	all[4] = all[1];
	all[5] = ACP_REQUEST_NULL;
	AT_CHECK(acp_waitall_ch(all, 6, sizes) == -1 && strstr(at_why(), "request 4"), "%s", at_why());
	for (int i = 0; i < 6; i++) {
		size_t wanted = i > 3 ? SIZE_FAILED : at_rank == 0 ? 0 : 8;
		AT_CHECK(sizes[i] == wanted && all[i] == ACP_REQUEST_NULL, "request %d: %zu", i, sizes[i]);
	}
	AT_CHECK(acp_free_ch(ch) == 0, "%s", at_why());
}

/* ---- Ends ---- */

/* Freed in another order than at the other end, some before they were used, some with messages that nobody wants. */
static void any_order(void) {
	enum { COUNT = 24 };
	if (at_rank > 1)
		return;
	static unsigned char bytes[LONG];
	acp_ch_t ends[COUNT];
	acp_request_t freed[COUNT], sent[COUNT];
	for (int i = 0; i < COUNT; i++) {
		ends[i] = channel(i & 1, ~i & 1);
		sent[i] = ACP_REQUEST_NULL;
		if ((i & 1) == at_rank && i % 3 != 0)
			sent[i] = request(acp_nbsend_ch(ends[i], bytes, i % 5 == 0 ? LONG : i % 5 == 1 ? 100000 : (size_t)i));
	}
	for (int i = 0; i < COUNT; i++) {
		int which = (at_rank == 0 ? i * 5 : i * 7 + 3) % COUNT;
		freed[which] = request(acp_nbfree_ch(ends[which]));
		AT_CHECK(acp_nbfree_ch(ends[which]) == ACP_REQUEST_NULL && acp_free_ch(ends[which]) == -1, "freed twice");
	}
	for (int i = 0; i < COUNT; i++) {
		AT_CHECK(acp_wait_ch(freed[i * 11 % COUNT]) == 0, "%s", at_why());
		AT_CHECK(sent[i] == ACP_REQUEST_NULL || acp_wait_ch(sent[i]) == 0, "%s", at_why());
	}
}

/* ---- Memory ---- */

/* A sender's memory may be read only; that of a receiver of nothing may be nowhere. */
static void memory(void) {
	if (at_rank > 1)
		return;
	acp_ch_t ch = channel(0, 1);
	static const size_t sizes[] = {0, 10, 5000, 30000, LONG, LONG};
	unsigned char *pages = mmap(NULL, LONG + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	AT_MUST(pages != MAP_FAILED, "mmap");
	if (at_rank == 0) {
		at_fill(pages, LONG, 0, 3);
		mprotect(pages, LONG + 4096, PROT_READ);
	}
	for (unsigned i = 0; i < 6; i++) {
		if (at_rank == 0) {
			AT_CHECK(acp_send_ch(ch, pages, sizes[i]) == 0, "%s", at_why());
			AT_CHECK(acp_send_ch(ch, pages, sizes[i]) == 0, "%s", at_why());
		} else {
			AT_CHECK(acp_recv_ch(ch, NULL, 0) == 0, "%s", at_why());
			memset(pages, 0xee, LONG + 20);
			AT_CHECK(acp_recv_ch(ch, pages + 3, LONG + 10) == (int)sizes[i], "%s", at_why());
			AT_CHECK(at_differs(pages + 3, sizes[i], 0, 3) == sizes[i], "%zu B", sizes[i]);
			AT_CHECK(at_all_are(pages, 3, 0xee) && at_all_are(pages + 3 + sizes[i], 10, 0xee), "around %zu B", sizes[i]);
		}
	}
	/* Bytes that are nowhere. */
	if (at_rank == 0)
		AT_CHECK(acp_nbsend_ch(ch, NULL, 1) == ACP_REQUEST_NULL && acp_send_ch(ch, NULL, 1 << 30) == -1 && strstr(at_why(), "no memory"),
			"%s", at_why());
	else
		AT_CHECK(acp_nbrecv_ch(ch, NULL, 1) == ACP_REQUEST_NULL && acp_recv_ch(ch, NULL, 8) == -1 && strstr(at_why(), "no memory"), "%s",
			at_why());
	AT_CHECK(acp_free_ch(ch) == 0, "%s", at_why());
	munmap(pages, LONG + 4096);
}

int main(int argc, char **argv) {
	at_begin(&argc, &argv);
	AT_MUST(at_procs > 1, "two ranks at least");
	threads();
	same_requests();
	lists();
	any_order();
	memory();
	return at_end();
}
