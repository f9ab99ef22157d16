/* pt: what the test programs of PM share. Checks that print and count, contexts, messages with contents that say who has sent them, and a
 * barrier. For C11 and for C++17. A program prints one line that begins with "OK" on each rank, or a sentence for each failure, and
 * ends with status 0 or 1. */
#ifndef PT_H
#define PT_H

#include <pm.h>

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <time.h>
#include <unistd.h>

#define PT_PATIENCE 60.0 /* seconds until what must come is a failure; none takes a tenth of it */
#define PT_MAX 64        /* ranks that programs have tables for */

static pmDevice *pt_device;
static pmContext *pt_context;
static int pt_rank = -1, pt_ranks = -1, pt_failures;
static size_t pt_mtu;

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static inline void pt_failed(int line, const char *format, ...) {
	char text[512];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	/* The first ones tell what it is. */
	if (pt_failures++ < 20)
		printf("FAIL rank %d, line %d: %s\n", pt_rank, line, text);
	fflush(stdout);
}

/* A failed check is printed, and the program goes on: others wait for it. */
#define PT_CHECK(condition, ...)                                                                                       \
	do {                                                                                                               \
		if (!(condition))                                                                                              \
			pt_failed(__LINE__, __VA_ARGS__);                                                                          \
	} while (0)
/* A failed requirement ends the program, and the launcher the other ranks. */
#define PT_MUST(condition, ...)                                                                                        \
	do {                                                                                                               \
		if (!(condition)) {                                                                                            \
			pt_failed(__LINE__, __VA_ARGS__);                                                                          \
			exit(1);                                                                                                   \
		}                                                                                                              \
	} while (0)
/* A call that must return this errno value, and have a sentence with these words where it is one. */
#define PT_SAYS(errnum, words, call)                                                                                   \
	do {                                                                                                               \
		int pt_said = (call);                                                                                          \
		PT_CHECK(pt_said == (errnum), #call ": %s rather than %s: %s", strerror(pt_said), strerror(errnum), pt_why());  \
		PT_CHECK((errnum) == 0 || strstr(pt_why(), words) != NULL, #call ": '%s' lacks '%s'", pt_why(), words);        \
	} while (0)

static inline const char *pt_why(void) {
	const char *why = pmErrorString();
	return why ? why : "no error";
}

static inline double pt_now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- The job ---- */

static inline void pt_numbers(void) {
	PT_MUST(pmGetSelf(pt_context, &pt_rank) == 0 && pmGetNodeCount(pt_context, &pt_ranks) == 0, "%s", pt_why());
	PT_MUST(pt_ranks >= 1 && pt_ranks <= PT_MAX && pt_rank >= 0 && pt_rank < pt_ranks, "rank %d of %d", pt_rank, pt_ranks);
	PT_MUST(pmGetMtu(pt_context, pt_rank, &pt_mtu) == 0, "%s", pt_why());
}

static inline void pt_begin(void) {
	char kind[] = "ib";
	PT_MUST(pmOpenDevice(kind, 0, NULL, &pt_device) == 0, "pmOpenDevice: %s", pt_why());
	PT_MUST(pmOpenContext(pt_device, &pt_context) == 0, "pmOpenContext: %s", pt_why());
	pt_numbers();
}

/* A context over two others: by the first of them to nodes whose number and this one's are even together, by the second to others. With
 * `reversed`, all by the second, and numbered from the end. */
static pmContext *pt_members[2];
static pmDevice *pt_composite;

static inline void pt_begin_composite(bool reversed) {
	char kind[] = "composite";
	int numbers[PT_MAX];
	pt_begin();
	pt_members[0] = pt_context;
	PT_MUST(pmOpenContext(pt_device, &pt_members[1]) == 0, "pmOpenContext: %s", pt_why());
	PT_MUST(pmOpenDevice(kind, 0, NULL, &pt_composite) == 0, "pmOpenDevice: %s", pt_why());
	PT_MUST(pmOpenContext(pt_composite, &pt_context) == 0, "pmOpenContext: %s", pt_why());
	for (int i = 0; i < pt_ranks; i++)
		numbers[i] = reversed ? pt_ranks - 1 - i : i;
	PT_MUST(pmAssociateNodes(pt_context, pt_ranks, numbers, pt_members[1]) == 0, "pmAssociateNodes: %s", pt_why());
	for (int i = 0; i < pt_ranks && !reversed; i++)
		if ((i + pt_rank) % 2 == 0)
			PT_MUST(pmAddNode(pt_context, i, pt_members[0]) == 0, "pmAddNode: %s", pt_why());
	int before = pt_rank, ranks = pt_ranks;
	pt_numbers();
	PT_CHECK(pt_ranks == ranks && pt_rank == numbers[before], "node %d of %d", pt_rank, pt_ranks);
}

static inline int pt_verdict(void) {
	if (pt_failures == 0)
		printf("OK rank %d\n", pt_rank);
	else
		printf("FAIL rank %d: %d in all\n", pt_rank, pt_failures);
	fflush(stdout);
	return pt_failures != 0;
}

static inline int pt_end(void) {
	if (pt_composite) {
		PT_CHECK(pmCloseContext(pt_members[1]) == EBUSY, "a member is closed");
		PT_CHECK(pmCloseContext(pt_context) == 0, "pmCloseContext: %s", pt_why());
		PT_CHECK(pmCloseDevice(pt_composite) == 0, "pmCloseDevice: %s", pt_why());
		PT_CHECK(pmCloseContext(pt_members[1]) == 0, "pmCloseContext: %s", pt_why());
		pt_context = pt_members[0];
	}
	PT_CHECK(pmCloseContext(pt_context) == 0, "pmCloseContext: %s", pt_why());
	PT_CHECK(pmCloseDevice(pt_device) == 0, "pmCloseDevice: %s", pt_why());
	return pt_verdict();
}

/* ---- Messages ---- */

/* What byte `offset` of message `number` from `from` to `to` is. */
static inline unsigned char pt_byte(int from, int to, uint32_t number, size_t offset) {
	uint64_t x = (offset + 1) * 0x9e3779b97f4a7c15ULL ^ ((uint64_t)number << 24 | (uint64_t)(from + 1) << 12 | (uint64_t)(to + 1)) * 0xd6e8feb86659fd93ULL;
	return (unsigned char)((x ^ x >> 29) >> 13);
}

/* Sleeps until something may have come. */
static inline void pt_sleep(void) {
	int said = pmBeforeSelect(pt_context);
	if (said == EBUSY)
		return;
	PT_MUST(said == 0, "pmBeforeSelect: %s", pt_why());
	struct pollfd fd = {-1, POLLIN, 0};
	int room = 1;
	PT_MUST(pmGetFd(pt_context, &fd.fd, &room) == 0 && room == 1, "pmGetFd: %s", pt_why());
	PT_MUST(poll(&fd, 1, (int)(PT_PATIENCE * 1000)) == 1, "rank %d slept in vain", pt_rank);
	PT_MUST(pmAfterSelect(pt_context) == 0, "pmAfterSelect: %s", pt_why());
}

/* Sends `len` bytes at once, or returns false where that cannot be now. */
static inline bool pt_send(int to, const void *bytes, size_t len) {
	caddr_t buffer;
	int said = pmGetSendBuffer(pt_context, to, &buffer, len);
	if (said == ENOBUFS)
		return false;
	PT_MUST(said == 0, "pmGetSendBuffer(%d, %zu): %s", to, len, pt_why());
	memcpy(buffer, bytes, len);
	PT_MUST(pmSend(pt_context) == 0, "pmSend: %s", pt_why());
	return true;
}

/* Sends where nobody else sends to this rank meanwhile. */
static inline void pt_must_send(int to, const void *bytes, size_t len) {
	double until = pt_now() + PT_PATIENCE;
	while (!pt_send(to, bytes, len))
		PT_MUST(pt_now() < until, "%zu bytes to %d are not sent", len, to);
}

/* Waits until all that was sent is with its nodes. */
static inline void pt_must_be_sent(void) {
	double until = pt_now() + PT_PATIENCE;
	int said;
	while ((said = pmIsSendDone(pt_context)) == EBUSY)
		PT_MUST(pt_now() < until, "messages are still being sent");
	PT_MUST(said == 0, "pmIsSendDone: %s", pt_why());
}

/* The next message, which must be of `from` if that is not -1 and fit; its length. */
static inline size_t pt_must_receive(int from, void *bytes, size_t room) {
	double until = pt_now() + PT_PATIENCE;
	caddr_t buffer;
	size_t len;
	int said, sender;
	while ((said = pmReceive(pt_context, &buffer, &len)) == ENOBUFS)
		PT_MUST(pt_now() < until, "no message from %d", from);
	PT_MUST(said == 0, "pmReceive: %s", pt_why());
	PT_MUST(pmGetSender(pt_context, &sender) == 0, "pmGetSender: %s", pt_why());
	PT_MUST((from == -1 || sender == from) && len <= room, "%zu bytes from %d, not up to %zu from %d", len, sender, room, from);
	memcpy(bytes, buffer, len);
	PT_MUST(pmReleaseReceiveBuffer(pt_context) == 0, "pmReleaseReceiveBuffer: %s", pt_why());
	return len;
}

/* Waits until all ranks are here. At rank 0, `there` is how many others it has received the word from by itself, which are 0 behind it. */
static inline void pt_meet(int *there) {
	/* Rank 0 may still receive what others were sent before it: it counts them only. */
	static char any[65536];
	if (pt_rank != 0) {
		pt_must_send(0, "b", 1);
		pt_must_receive(0, any, 1);
		return;
	}
	for (; *there < pt_ranks - 1; ++*there)
		pt_must_receive(-1, any, sizeof any);
	*there = 0;
	for (int r = 1; r < pt_ranks; r++)
		pt_must_send(r, "b", 1);
}

/* Returns once all ranks have called it, where all expect as many messages as are sent: to rank 0, and back. */
static inline void pt_barrier(void) {
	int there = 0;
	pt_meet(&there);
}

/* ---- Memory ---- */

static inline unsigned char *pt_pages(size_t size) {
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	PT_MUST(memory != MAP_FAILED, "mmap of %zu B: %s", size, strerror(errno));
	return (unsigned char *)memory;
}

static inline pmAddrHandle pt_lock(int node, void *at, size_t len) {
	pmAddrHandle handle;
	PT_MUST(pmMLock(pt_context, node, (caddr_t)at, len, &handle) == 0, "pmMLock: %s", pt_why());
	return handle;
}

/* Begins a write or a read, once there is room. */
static inline void pt_copy(bool write, int node, pmAddrHandle there, pmAddrHandle here, size_t len) {
	double until = pt_now() + PT_PATIENCE;
	int said;
	while ((said = write ? pmWrite(pt_context, node, there, here, len) : pmRead(pt_context, node, there, here, len)) == ENOBUFS)
		PT_MUST(pt_now() < until, "no room for a copy of %zu bytes", len);
	PT_MUST(said == 0, "%s of %zu bytes: %s", write ? "pmWrite" : "pmRead", len, pt_why());
}

/* What has become of all writes, or reads. */
static inline int pt_copied(bool write) {
	double until = pt_now() + PT_PATIENCE;
	int said;
	while ((said = write ? pmIsWriteDone(pt_context) : pmIsReadDone(pt_context)) == EBUSY)
		PT_MUST(pt_now() < until, "a copy is not over");
	return said;
}

#endif
