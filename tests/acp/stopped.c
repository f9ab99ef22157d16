/* The last rank is stopped, by SIGSTOP, for longer than connections with the usual timeout last. Meanwhile the others copy to it,
 * from it and by it, and change a word of it. When it goes on, all of that is done, once. */
#include "at.h"

#include <signal.h>

#define SIZE ((size_t)300 * 1024) /* a copy between two others is a command to the owner of its source */
#define ADDS 20
#define STOP 3 /* seconds; timeout 14 and 7 retries last for 1.6 in packets and through a window */
/* Words of rank 0: how many wait for the stop, how many have begun after it. */
#define WAITING (AT_FREE + 8)
#define BEGUN (AT_FREE + 16)

/* Where a block of a region begins: block 0 is the rank's own data, 1 what it has fetched, 2 what another rank has copied to here,
 * 3 + rank what that rank has put. A word is behind the last one. */
static size_t block(int which) {
	return (size_t)which * SIZE;
}

/* Tells rank 0 by one of its words. */
static void count(size_t word) {
	acp_handle_t h = acp_add8(acp_query_starter_ga(at_rank) + AT_FREE, acp_query_starter_ga(0) + word, 1, AT_NULL);
	AT_MUST(h != AT_NULL, "%s", at_why());
}

/* Rank 0 waits until so many others have counted. */
static void all_have_counted(size_t word, int others) {
	AT_CHECK(at_becomes(at_starter(word), (uint64_t)others), "%" PRIu64 " of %d", at_word(at_starter(word)), others);
}

/* Issues accesses to a rank. They are not complete before it goes on, unless it is reached by memory. */
static void visit(int host, const acp_ga_t *all) {
	/* Another one that visits, if there is one. */
	int third = (at_rank + 1) % host;
	acp_ga_t mine = all[at_rank], there = all[host];
	AT_MUST(acp_copy(there + block(3 + at_rank), mine, SIZE, AT_NULL) != AT_NULL, "%s", at_why());
	AT_MUST(acp_copy(mine + block(1), there, SIZE, AT_NULL) != AT_NULL, "%s", at_why());
	AT_MUST(acp_copy(all[third] + block(2), there, SIZE, AT_NULL) != AT_NULL, "%s", at_why());
	for (int i = 0; i < ADDS; i++) {
		acp_handle_t h = acp_add8(acp_query_starter_ga(at_rank) + AT_FREE, there + block(3 + at_procs), 1,
			i == 0 ? AT_NULL : AT_CONT);
		AT_MUST(h != AT_NULL, "%s", at_why());
	}
}

int main(int argc, char **argv) {
	at_begin(&argc, &argv);
	int host = at_procs - 1;
	AT_MUST(host >= 1 && host < AT_MAX, "%d ranks", at_procs);
	struct at_region r = at_region(block(4 + at_procs));
	at_fill(r.at, SIZE, at_rank, 5);
	at_tell(1, (uint64_t)getpid());
	acp_ga_t all[AT_MAX];
	at_exchange(0, r.ga, all); /* each rank is connected with each */
	pid_t pid = (pid_t)at_told(host, 1);
	at_sync();
	if (at_rank != host) {
		/* All have passed the barrier before it stops, which may be in the midst of the next one. */
		if (at_rank != 0) {
			count(WAITING);
		} else {
			all_have_counted(WAITING, host - 1);
			AT_MUST(kill(pid, SIGSTOP) == 0, "%s", strerror(errno));
		}
		while (!at_is_stopped(pid))
			usleep(1000);
		visit(host, all);
		if (at_rank != 0) {
			count(BEGUN);
		} else {
			all_have_counted(BEGUN, host - 1);
			sleep(STOP);
			AT_MUST(kill(pid, SIGCONT) == 0, "%s", strerror(errno));
		}
		acp_complete(AT_ALL);
		AT_CHECK(at_differs(r.at + block(1), SIZE, host, 5) == SIZE, "what was fetched");
	}
	at_sync();
	if (at_rank != host) {
		AT_CHECK(at_differs(r.at + block(2), SIZE, host, 5) == SIZE, "what another rank has copied to here");
	} else {
		for (int i = 0; i < host; i++)
			AT_CHECK(at_differs(r.at + block(3 + i), SIZE, i, 5) == SIZE, "what rank %d has put", i);
		uint64_t added = at_word((volatile uint64_t *)(volatile void *)(r.at + block(3 + at_procs)));
		AT_CHECK(added == (uint64_t)(ADDS * host), "%" PRIu64 " of %d were added", added, ADDS * host);
	}
	return at_end();
}
