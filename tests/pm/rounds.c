/* What messages and copies between rank 0 and the last rank take: round trips and bandwidth by length. It checks nothing that depends on
 * time. Arguments: "latency", "bandwidth", "write" or "read"; the length (8), and how many (100000). */
#include "pt.h"

#define BLOCK 100 /* round trips; the fastest such block is told */

static void take(size_t len) {
	caddr_t buffer;
	size_t got;
	int said;
	while ((said = pmReceive(pt_context, &buffer, &got)) == ENOBUFS)
		;
	PT_MUST(said == 0 && got == len, "%zu bytes: %s", got, pt_why());
	PT_MUST(pmReleaseReceiveBuffer(pt_context) == 0, "%s", pt_why());
}

static void give(int to, size_t len) {
	caddr_t buffer;
	int said;
	while ((said = pmGetSendBuffer(pt_context, to, &buffer, len)) == ENOBUFS)
		;
	PT_MUST(said == 0 && pmSend(pt_context) == 0, "%s", pt_why());
}

static void report(const char *what, size_t len, long count, double took) {
	printf("%s %zu B: %.3f us each, %.1f MB/s\n", what, len, took / (double)count * 1e6, (double)len * (double)count / took / 1e6);
}

int main(int argc, char **argv) {
	const char *what = argc > 1 ? argv[1] : "latency";
	size_t len = argc > 2 ? strtoull(argv[2], NULL, 10) : 8;
	long count = argc > 3 ? atol(argv[3]) : 100000;
	pt_begin();
	int last = pt_ranks - 1, other = pt_rank == 0 ? last : 0;
	/* Long enough to be shared under `vervain run`. */
	unsigned char *memory = (unsigned char *)malloc(len + ((size_t)1 << 20));
	PT_MUST(memory != NULL, "no memory");
	memset(memory, pt_rank + 1, len);
	pmAddrHandle here = pt_lock(PM_NODE_ANY, memory, len), there = 0;
	pt_barrier();
	if (pt_rank == 0 || pt_rank == last) {
		pt_must_send(other, &here, sizeof here);
		pt_must_receive(other, &there, sizeof there);
	}
	pt_barrier();
	double start = pt_now(), best = 1e9;
	if (strcmp(what, "latency") == 0 && (pt_rank == 0 || pt_rank == last)) {
		for (long i = 0; i < count; i++) {
			if (i % BLOCK == 0) {
				double now = pt_now();
				if (i > 0 && now - start < best)
					best = now - start;
				start = now;
			}
			if (pt_rank == 0)
				give(other, len);
			take(len);
			if (pt_rank == last)
				give(other, len);
		}
		if (pt_rank == 0)
			report("round trips of", len, BLOCK, best);
	} else if (strcmp(what, "bandwidth") == 0) {
		for (int round = 0; round < 2; round++) {
			start = pt_now();
			for (long i = 0; i < count && pt_rank == 0; i++)
				give(other, len);
			for (long i = 0; i < count && pt_rank == last; i++)
				take(len);
			if (pt_rank == last)
				give(0, 1);
			if (pt_rank == 0)
				take(1);
		}
		if (pt_rank == 0)
			report("messages of", len, count, pt_now() - start);
	} else if (pt_rank == 0) {
		bool write = strcmp(what, "write") == 0;
		for (int round = 0; round < 2; round++) {
			start = pt_now();
			for (long i = 0; i < count; i++)
				pt_copy(write, other, there, here, len);
			PT_CHECK(pt_copied(write) == 0, "%s", pt_why());
		}
		report(write ? "writes of" : "reads of", len, count, pt_now() - start);
	}
	pt_barrier();
	return pt_end();
}
