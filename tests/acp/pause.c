/* The last rank sleeps in a system call, without one of ACP, while the others copy from it, to it, within it and change its words. */
#include "at.h"

#include <signal.h>

#define SIZE ((size_t)300 * 1024)

static volatile sig_atomic_t woken;

static void wake(int signal) {
	(void)signal;
	woken = 1;
}

/* pause(2) until rank 0 sends the signal, without the moment between looking and sleeping. */
static void sleep_until_woken(const sigset_t *before) {
	while (!woken)
		sigsuspend(before);
}

static void visit(int host, acp_ga_t there, struct at_region mine, const acp_ga_t *all) {
	/* Its block 0 has its data; block 1 + rank is mine, as is the word at the end. */
	acp_ga_t place = there + (acp_ga_t)(1 + at_rank) * SIZE, word = there + (acp_ga_t)(1 + at_procs) * SIZE;
	for (unsigned round = 0; round < 10; round++) {
		memset(mine.at, 0, SIZE);
		acp_handle_t h = acp_copy(place, there, SIZE, AT_NULL); /* within it */
		h = acp_copy(mine.ga, place, SIZE, h);                  /* to me */
		/* Its data to another, which is neither me nor it if there are enough. */
		int third = (at_rank + 1) % at_procs == host ? (at_rank + 2) % at_procs : (at_rank + 1) % at_procs;
		h = acp_copy(all[third] + SIZE, there, SIZE, h);
		for (int i = 0; i < 20; i++)
			h = acp_add8(acp_query_starter_ga(at_rank) + AT_FREE, word, 1, AT_CONT);
		AT_CHECK(h >= 1, "%s", at_why());
		acp_complete(h);
		AT_CHECK(at_differs(mine.at, SIZE, host, 5) == SIZE, "round %u: what it has", round);
	}
}

int main(int argc, char **argv) {
	at_begin(&argc, &argv);
	int host = at_procs - 1;
	sigset_t blocked, before;
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	sigprocmask(SIG_BLOCK, &blocked, &before);
	struct sigaction action;
	memset(&action, 0, sizeof action);
	action.sa_handler = wake;
	sigaction(SIGUSR1, &action, NULL);
	struct at_region r = at_region((size_t)(2 + at_procs) * SIZE);
	acp_ga_t all[AT_MAX];
	if (at_rank == host)
		at_fill(r.at, SIZE, host, 5);
	at_exchange(0, r.ga, all);
	at_tell(1, (uint64_t)getpid());
	at_sync();
	/* The others tell rank 0 when they have done. */
	acp_ga_t done = acp_query_starter_ga(0) + AT_FREE + 8;
	if (at_procs == 1) {
		visit(host, all[host], at_region(SIZE), all);
	} else if (at_rank == host) {
		sleep_until_woken(&before);
		volatile uint64_t *word = (volatile uint64_t *)(volatile void *)(r.at + (size_t)(1 + at_procs) * SIZE);
		uint64_t wanted = 200 * (uint64_t)(at_procs - 1);
		AT_CHECK(*word == wanted, "%" PRIu64 " of %" PRIu64 " were added", *word, wanted);
		for (int i = 0; i < host; i++)
			AT_CHECK(at_differs(r.at + (size_t)(1 + i) * SIZE, SIZE, host, 5) == SIZE, "what rank %d has copied", i);
	} else {
		visit(host, all[host], r, all);
		acp_complete(acp_add8(acp_query_starter_ga(at_rank) + AT_FREE, done, 1, AT_NULL));
		if (at_rank == 0) {
			AT_CHECK(at_becomes(at_starter(AT_FREE + 8), (uint64_t)host), "%" PRIu64 " have done", *at_starter(AT_FREE + 8));
			kill((pid_t)at_told(host, 1), SIGUSR1);
		}
	}
	at_sync();
	if (at_rank != host)
		AT_CHECK(at_differs(r.at + SIZE, SIZE, host, 5) == SIZE, "what another rank has copied to here");
	return at_end();
}
