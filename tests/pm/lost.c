/* The last rank dies, by a signal that nobody can handle: those who send to it are told, and go on with each other. Its process is
 * started by another one, which the launcher knows, so that the job goes on. */
#include "pt.h"

#include <signal.h>

int main(void) {
	pt_begin();
	PT_MUST(pt_ranks >= 3, "3 ranks at least");
	int dead = pt_ranks - 1;
	unsigned char *memory = pt_pages(4096);
	pmAddrHandle here = pt_lock(PM_NODE_ANY, memory, 4096), there = 0;
	/* All know each other, and its memory. */
	pt_barrier();
	if (pt_rank == dead) {
		for (int r = 0; r < dead; r++)
			pt_must_send(r, &here, sizeof here);
		for (int r = 0; r < dead; r++)
			pt_must_receive(-1, &there, 1);
		printf("OK rank %d\n", pt_rank);
		fflush(stdout);
		raise(SIGKILL);
	}
	pt_must_receive(dead, &there, sizeof there);
	pt_must_send(dead, "k", 1);
	/* Until it is noticed. */
	double until = pt_now() + PT_PATIENCE;
	caddr_t buffer;
	size_t len;
	int said;
	do {
		PT_MUST(pt_now() < until, "nobody notices that rank %d is dead", dead);
		said = pmGetSendBuffer(pt_context, dead, &buffer, 1);
		if (said == 0)
			said = pmSend(pt_context);
		else
			usleep(1000);
	} while (said == 0 || said == ENOBUFS);
	PT_CHECK(said == EPIPE && strstr(pt_why(), "is lost"), "%s: %s", strerror(said), pt_why());
	PT_SAYS(EPIPE, "is lost", pmGetSendBuffer(pt_context, dead, &buffer, 1));
	PT_SAYS(EPIPE, "is lost", pmWrite(pt_context, dead, there, here, 8));
	/* A receive says so once. Others' first messages may be before that. */
	char first[PT_MAX];
	int messages = 0;
	while ((said = pmReceive(pt_context, &buffer, &len)) != EPIPE) {
		PT_MUST(pt_now() < until && (said == 0 || said == ENOBUFS), "%s: %s", strerror(said), pt_why());
		if (said == 0) {
			PT_MUST(messages < PT_MAX && len == 1, "%zu bytes", len);
			first[messages++] = buffer[0];
			PT_SAYS(0, "", pmReleaseReceiveBuffer(pt_context));
		}
	}
	PT_CHECK(strstr(pt_why(), "is lost"), "%s", pt_why());
	/* The others go on. */
	for (int r = 0; r < dead; r++)
		if (r != pt_rank)
			pt_must_send(r, "m", 1);
	for (; messages < dead - 1; messages++)
		pt_must_receive(-1, &first[messages], 1);
	for (int i = 0; i < messages; i++)
		PT_CHECK(first[i] == 'm', "a message of '%c'", first[i]);
	PT_SAYS(ENOBUFS, "no message", pmReceive(pt_context, &buffer, &len));
	pt_must_be_sent();
	return pt_end();
}
