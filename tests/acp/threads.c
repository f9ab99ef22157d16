/* Several threads of each rank issue at the same time: each has its own handles, and errors of its own. */
#include "at.h"

#include <pthread.h>

enum { THREADS = 4, TIMES = 500, SIZE = 3000 };

static struct at_region mine;
static acp_ga_t all[AT_MAX];

struct thread {
	int number;
	acp_handle_t handles[3 * TIMES];
	char why[200];
};

static void *work(void *argument) {
	struct thread *t = (struct thread *)argument;
	/* Regions: what all read, then for each thread a place, a landing and a word. */
	acp_ga_t own = (acp_ga_t)(1 + t->number) * 4096, landing = mine.ga + own + (acp_ga_t)THREADS * 4096;
	unsigned char *landed = mine.at + (size_t)(1 + t->number + THREADS) * 4096;
	int next = (at_rank + 1) % at_procs;
	for (int i = 0; i < TIMES; i++) {
		acp_handle_t *h = &t->handles[3 * i];
		h[0] = acp_copy(all[next] + own, all[(at_rank + 2) % at_procs], SIZE, AT_NULL);
		h[1] = acp_copy(landing, all[next] + own, SIZE, h[0]);
		h[2] = acp_add8(landing + 4000, all[0] + 4088, 1, AT_NULL);
		AT_CHECK(h[0] >= 1 && h[1] > h[0] && h[2] > h[1], "thread %d", t->number);
		acp_complete(h[2]);
		AT_CHECK(at_differs(landed, SIZE, (at_rank + 2) % at_procs, 1) == SIZE, "thread %d, time %d", t->number, i);
		landed[0] = 0;
	}
	AT_CHECK(acp_error() == NULL, "thread %d: %s", t->number, at_why());
	AT_CHECK(acp_copy(landing, ACP_GA_NULL, 8, -3 - t->number) == AT_NULL, "thread %d", t->number);
	snprintf(t->why, sizeof t->why, "%s", at_why());
	return NULL;
}

static int compare(const void *a, const void *b) {
	acp_handle_t x = *(const acp_handle_t *)a, y = *(const acp_handle_t *)b;
	return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
	at_begin(&argc, &argv);
	mine = at_region((size_t)(1 + 2 * THREADS) * 4096);
	at_fill(mine.at, SIZE, at_rank, 1);
	at_exchange(0, mine.ga, all);
	static struct thread threads[THREADS];
	pthread_t ids[THREADS];
	for (int i = 0; i < THREADS; i++) {
		threads[i].number = i;
		AT_MUST(pthread_create(&ids[i], NULL, work, &threads[i]) == 0, "a thread");
	}
	static acp_handle_t every[THREADS * 3 * TIMES];
	for (int i = 0; i < THREADS; i++) {
		pthread_join(ids[i], NULL);
		memcpy(every + (size_t)i * 3 * TIMES, threads[i].handles, sizeof threads[i].handles);
		char wanted[40];
		snprintf(wanted, sizeof wanted, "%d is no handle", -3 - i);
		AT_CHECK(strstr(threads[i].why, wanted) != NULL, "thread %d: %s", i, threads[i].why);
	}
	qsort(every, THREADS * 3 * TIMES, sizeof every[0], compare);
	for (int i = 1; i < THREADS * 3 * TIMES; i++)
		AT_CHECK(every[i] != every[i - 1], "two accesses are %" PRId64, every[i]);
	at_sync();
	uint64_t wanted = (uint64_t)at_procs * THREADS * TIMES;
	AT_CHECK(at_load(all[0] + 4088) == wanted, "%" PRIu64 " of %" PRIu64, at_load(all[0] + 4088), wanted);
	return at_end();
}
