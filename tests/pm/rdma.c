/* Memory that is locked is written and read by all ranks, at any offset and length, by one node or any; locks are counted, and taken back
 * while they are in use; what is not locked is refused. */
#include "pt.h"

#define PIECE ((size_t)1 << 20)
#define MARGIN 333

static unsigned char *own;         /* a piece for each rank, from an address that is no round one */
static pmAddrHandle locked[PT_MAX]; /* the memory of each rank */

static size_t total(void) {
	return PIECE * (size_t)pt_ranks;
}

/* Tells all ranks a handle. */
static void exchange(pmAddrHandle handle, pmAddrHandle *all) {
	struct {
		int from;
		pmAddrHandle handle;
	} told = {pt_rank, handle};
	all[pt_rank] = handle;
	pt_barrier();
	if (pt_rank != 0) {
		pt_must_send(0, &told, sizeof told);
		pt_must_receive(0, all, (size_t)pt_ranks * sizeof *all);
	} else {
		for (int r = 1; r < pt_ranks; r++) {
			pt_must_receive(-1, &told, sizeof told);
			all[told.from] = told.handle;
		}
		for (int r = 1; r < pt_ranks; r++)
			pt_must_send(r, all, (size_t)pt_ranks * sizeof *all);
	}
	pt_barrier();
}

static const size_t lengths[] = {1, 7, 8, 64, 100, 4095, 4096, 4097, 65536, 300001};
#define LENGTHS (sizeof lengths / sizeof *lengths)

/* Each rank writes into its piece at every rank, itself too, and reads it back. */
static void all_to_all(void) {
	unsigned char *source = pt_pages(PIECE) + 5, *back = pt_pages(PIECE) + 11;
	pmAddrHandle from = pt_lock(PM_NODE_ANY, source, PIECE - 5), to = pt_lock(0, back, PIECE - 11);
	for (int r = 0; r < pt_ranks; r++) {
		size_t at = 0;
		for (size_t i = 0; i < LENGTHS; at += lengths[i++] + 3) {
			for (size_t b = 0; b < lengths[i]; b++)
				source[at + b] = pt_byte(pt_rank, r, (uint32_t)i, b);
			pt_copy(true, r, locked[r] + (pmAddrHandle)pt_rank * PIECE + at, from + at, lengths[i]);
		}
		PT_CHECK(pt_copied(true) == 0, "writes to %d: %s", r, pt_why());
		at = 0;
		for (size_t i = 0; i < LENGTHS; at += lengths[i++] + 3)
			pt_copy(false, r, locked[r] + (pmAddrHandle)pt_rank * PIECE + at, to + at, lengths[i]);
		PT_CHECK(pt_copied(false) == 0, "reads from %d: %s", r, pt_why());
		at = 0;
		for (size_t i = 0; i < LENGTHS; at += lengths[i++] + 3)
			PT_CHECK(memcmp(source + at, back + at, lengths[i]) == 0, "what was read from %d at %zu is not what was written", r, at);
	}
	PT_SAYS(0, "", pmMUnlock(pt_context, PM_NODE_ANY, (caddr_t)source, PIECE - 5));
	PT_SAYS(0, "", pmMUnlock(pt_context, 0, (caddr_t)back, PIECE - 11));
	pt_barrier();
	for (int r = 0; r < pt_ranks; r++) {
		size_t at = 0;
		for (size_t i = 0; i < LENGTHS; at += lengths[i++] + 3) {
			size_t b = 0;
			const unsigned char *found = own + (size_t)r * PIECE + at;
			while (b < lengths[i] && found[b] == pt_byte(r, pt_rank, (uint32_t)i, b))
				b++;
			PT_CHECK(b == lengths[i], "byte %zu of %zu at %zu of rank %d", b, lengths[i], at, r);
			PT_CHECK(found[lengths[i]] == 0 && found[lengths[i] + 2] == 0, "behind the bytes at %zu of rank %d", at, r);
		}
	}
}

static void counted(void) {
	unsigned char *memory = pt_pages(8192);
	pmAddrHandle one = pt_lock(0, memory, 8192), again = pt_lock(0, memory, 8192), any = pt_lock(PM_NODE_ANY, memory, 8192);
	PT_CHECK(one == again && one == any, "the same memory has several handles");
	pmAddrHandle part = pt_lock(0, memory + 10, 100);
	PT_CHECK(part != one, "a part of it is not a region of its own");
	PT_SAYS(ENOENT, "not locked for node 0", pmMUnlock(pt_context, 0, (caddr_t)memory + 10, 99));
	PT_SAYS(ENOENT, "not locked for all", pmMUnlock(pt_context, PM_NODE_ANY, (caddr_t)memory + 10, 100));
	PT_SAYS(0, "", pmMUnlock(pt_context, 0, (caddr_t)memory + 10, 100));
	PT_SAYS(ENOENT, "not locked for node 0", pmMUnlock(pt_context, 0, (caddr_t)memory + 10, 100));
	for (int i = 0; i < 2; i++)
		PT_SAYS(0, "", pmMUnlock(pt_context, 0, (caddr_t)memory, 8192));
	PT_SAYS(ENOENT, "not locked for node 0", pmMUnlock(pt_context, 0, (caddr_t)memory, 8192));
	/* Still locked for all. */
	pt_copy(true, pt_rank, locked[pt_rank], any, 8);
	PT_CHECK(pt_copied(true) == 0, "%s", pt_why());
	PT_SAYS(0, "", pmMUnlock(pt_context, PM_NODE_ANY, (caddr_t)memory, 8192));
	PT_SAYS(EINVAL, "not of memory locked here", pmWrite(pt_context, pt_rank, locked[pt_rank], any, 8));
	PT_SAYS(EINVAL, "not of memory locked here", pmRead(pt_context, pt_rank, locked[pt_rank], any, 8));
}

/* Unlocked while it is being written from. */
static void put_off(void) {
	size_t len = (size_t)48 << 20;
	unsigned char *target = pt_pages(len), *source = pt_pages(len);
	pmAddrHandle all[PT_MAX];
	exchange(pt_lock(PM_NODE_ANY, target, len), all);
	int next = (pt_rank + 1) % pt_ranks, before = (pt_rank + pt_ranks - 1) % pt_ranks;
	memset(source, 0x40 + pt_rank, len);
	pmAddrHandle from = pt_lock(next, source, len);
	pt_copy(true, next, all[next], from, len);
	PT_SAYS(0, "", pmMUnlock(pt_context, next, (caddr_t)source, len));
	PT_SAYS(EINVAL, "not of memory locked here", pmWrite(pt_context, next, all[next], from, 8));
	PT_CHECK(pt_copied(true) == 0, "%s", pt_why());
	pt_barrier();
	size_t i = 0;
	while (i < len && target[i] == 0x40 + before)
		i++;
	PT_CHECK(i == len, "byte %zu of %zu", i, len);
	PT_SAYS(0, "", pmMUnlock(pt_context, PM_NODE_ANY, (caddr_t)target, len));
}

static void refused(void) {
	unsigned char *memory = pt_pages(4096);
	pmAddrHandle here = pt_lock(PM_NODE_ANY, memory + 96, 4000);
	pmContext *c = pt_context;
	int me = pt_rank;
	PT_SAYS(EINVAL, "not all inside", pmWrite(c, me, locked[me], here, 4001));
	PT_SAYS(EINVAL, "not all inside", pmWrite(c, me, locked[me], here + 4000, 1));
	PT_SAYS(EINVAL, "not all inside", pmRead(c, me, locked[me], here - 1, 1));
	PT_SAYS(EINVAL, "0 bytes", pmWrite(c, me, locked[me], here, 0));
	PT_SAYS(EINVAL, "no node", pmWrite(c, pt_ranks, locked[me], here, 1));
	PT_SAYS(EINVAL, "no node -1", pmRead(c, -1, locked[me], here, 1));
	pmAddrHandle none;
	PT_SAYS(EINVAL, "0 bytes", pmMLock(c, PM_NODE_ANY, (caddr_t)memory, 0, &none));
	PT_SAYS(EINVAL, "no node", pmMLock(c, pt_ranks, (caddr_t)memory, 8, &none));
	PT_SAYS(EINVAL, "no node", pmMUnlock(c, pt_ranks, (caddr_t)memory, 8));
	PT_SAYS(EINVAL, "cannot be locked", pmMLock(c, 0, (caddr_t)(uintptr_t)4096, 8, &none));
	PT_SAYS(EINVAL, "4 GiB", pmMLock(c, 0, (caddr_t)memory + 1, (size_t)1 << 32, &none));
	PT_SAYS(0, "", pmIsWriteDone(c));
	PT_SAYS(0, "", pmIsReadDone(c));
	/* It still works. */
	pt_copy(true, me, locked[me], here, 4000);
	PT_CHECK(pt_copied(true) == 0, "%s", pt_why());
	PT_SAYS(0, "", pmMUnlock(c, PM_NODE_ANY, (caddr_t)memory + 96, 4000));
}

/* Memory that the node has unlocked, or never locked. */
static void faults(bool write) {
	unsigned char *memory = pt_pages(4096);
	pmAddrHandle here = pt_lock(PM_NODE_ANY, memory, 4096), all[PT_MAX];
	unsigned char *gone = pt_pages(4096);
	pmAddrHandle lost = pt_lock(PM_NODE_ANY, gone, 4096);
	PT_SAYS(0, "", pmMUnlock(pt_context, PM_NODE_ANY, (caddr_t)gone, 4096));
	exchange(lost, all);
	if (pt_rank == 0) {
		int to = pt_ranks - 1;
		pt_copy(write, to, all[to], here, 8);
		PT_CHECK(pt_copied(write) == EFAULT && strstr(pt_why(), "not locked there"), "%s", pt_why());
		/* The next one is refused here, or fails behind it. */
		int said;
		while ((said = pmWrite(pt_context, to, locked[to], here, 8)) == ENOBUFS)
			;
		PT_CHECK(said == EPIPE && strstr(pt_why(), "refused"), "%s: %s", strerror(said), pt_why());
		PT_SAYS(0, "", pmIsWriteDone(pt_context));
		PT_SAYS(0, "", pmIsReadDone(pt_context));
	}
	/* Messages go on, both ways. */
	pt_barrier();
}

int main(int argc, char **argv) {
	pt_begin();
	own = pt_pages(total() + MARGIN) + MARGIN;
	exchange(pt_lock(PM_NODE_ANY, own, total()), locked);
	if (argc > 1)
		faults(strcmp(argv[1], "write") == 0);
	else {
		all_to_all();
		pt_barrier();
		counted();
		refused();
		pt_barrier();
		put_off();
	}
	pt_barrier();
	return pt_end();
}
