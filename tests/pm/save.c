/* Contexts that are saved under traffic and brought back: each rank sends messages to all, which are received once and in order whatever is
 * saved, forgotten and done again meanwhile. Arguments: "same", "mistakes", "write" or "read"; a seed; a directory.
 *   mistakes: what cannot be
 *   same:  in one process, several times
 *   write: it saves, goes on for a while, and dies
 *   read:  another process goes on from there
 * Some memory is locked at a fixed address, written and read by the handles that were told before the save. */
#include "pt.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#define EACH 400u           /* messages from each rank to each */
#define PART ((size_t)4096)      /* bytes of it for each rank */
#define WINDOW (PT_MAX * PART)   /* bytes that each has locked for others */
#define WINDOW_AT ((void *)0x7e0000000000)

/* What the program has of its own, which it saves too. */
static struct state {
	uint32_t sent[PT_MAX], received[PT_MAX];
	pmAddrHandle windows[PT_MAX]; /* of all ranks */
	pmAddrHandle local;
} mine;

static uint64_t seed;
static int early; /* ranks that have all, and wait for rank 0, which does not */

static uint32_t draw(uint32_t below) {
	seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
	return (uint32_t)(seed >> 33) % below;
}

static size_t length_of(uint32_t number) { return 1 + (number * 2654435761u >> 7) % (number % 5 == 0 ? (uint32_t)pt_mtu : 200u); }

static bool send_one(int to) {
	caddr_t buffer;
	size_t len = length_of(mine.sent[to]);
	int said = pmGetSendBuffer(pt_context, to, &buffer, len);
	if (said == ENOBUFS)
		return false;
	PT_MUST(said == 0, "pmGetSendBuffer: %s", pt_why());
	for (size_t i = 0; i < len; i++)
		buffer[i] = (char)pt_byte(pt_rank, to, mine.sent[to], i);
	PT_MUST(pmSend(pt_context) == 0, "pmSend: %s", pt_why());
	mine.sent[to]++;
	return true;
}

static bool receive_one(void) {
	caddr_t buffer;
	size_t len, i = 0;
	int from;
	int said = pmReceive(pt_context, &buffer, &len);
	if (said == ENOBUFS)
		return false;
	PT_MUST(said == 0, "pmReceive: %s", pt_why());
	PT_MUST(pmGetSender(pt_context, &from) == 0, "pmGetSender: %s", pt_why());
	if (pt_rank == 0 && mine.received[from] == EACH && len == 1 && *buffer == 'b') {
		early++;
		PT_MUST(pmReleaseReceiveBuffer(pt_context) == 0, "%s", pt_why());
		return true;
	}
	uint32_t number = mine.received[from]++;
	PT_CHECK(len == length_of(number), "message %u from %d has %zu bytes", number, from, len);
	while (i < len && (unsigned char)buffer[i] == pt_byte(from, pt_rank, number, i))
		i++;
	PT_CHECK(i == len, "message %u from %d, byte %zu of %zu", number, from, i, len);
	PT_MUST(pmReleaseReceiveBuffer(pt_context) == 0, "%s", pt_why());
	return true;
}

static uint32_t sum(const uint32_t *all) {
	uint32_t n = 0;
	for (int r = 0; r < pt_ranks; r++)
		n += all[r];
	return n;
}

/* Sends and receives until `sent` messages were sent in all, and with all of them until all have come too. */
static void exchange(uint32_t sent) {
	uint32_t all = EACH * (uint32_t)pt_ranks;
	double last = pt_now();
	while (sum(mine.sent) < sent || (sent == all && sum(mine.received) < all)) {
		bool any = false;
		for (uint32_t n = 1 + draw(20); n > 0 && sum(mine.sent) < sent; n--) {
			int to = (int)draw((uint32_t)pt_ranks);
			while (mine.sent[to] == EACH)
				to = (to + 1) % pt_ranks;
			any |= send_one(to);
		}
		for (uint32_t n = draw(20); n > 0; n--)
			any |= receive_one();
		if (any)
			last = pt_now();
		else
			usleep(50); /* for those who share the processor */
		PT_MUST(pt_now() - last < PT_PATIENCE, "%u of %u were sent, %u received", sum(mine.sent), sent, sum(mine.received));
	}
}

static void settle(void) {
	double until = pt_now() + PT_PATIENCE;
	int said;
	PT_MUST(pmSendStable(pt_context) == 0, "%s", pt_why());
	while ((said = pmIsSendStable(pt_context)) == EBUSY)
		PT_MUST(pt_now() < until, "it is not stable");
	PT_MUST(said == 0, "%s", pt_why());
}

static void save(int fd) {
	settle();
	PT_MUST(pmSaveContext(pt_context, fd) == 0, "pmSaveContext: %s", pt_why());
}

static void restore(int fd) {
	PT_MUST(pmRestoreContext(pt_context, fd) == 0, "pmRestoreContext: %s", pt_why());
	PT_CHECK(pmIsSendStable(pt_context) == 0, "%s", pt_why());
	PT_MUST(pmControlSend(pt_context, 1) == 0, "%s", pt_why());
}

/* A descriptor of memory that is this user's alone. */
static int memory_file(void) {
	FILE *file = tmpfile();
	PT_MUST(file && fchmod(fileno(file), 0600) == 0, "no file: %s", strerror(errno));
	return fileno(file);
}

static int open_file(const char *directory, const char *name, int flags) {
	char path[4096];
	snprintf(path, sizeof path, "%s/%s.%d", directory, name, pt_rank);
	int fd = open(path, flags, 0600);
	PT_MUST(fd >= 0, "%s: %s", path, strerror(errno));
	return fd;
}

static unsigned char *map_window(size_t number) {
	void *at = (char *)WINDOW_AT + (number * PT_MAX + (size_t)pt_rank) * WINDOW;
	void *mapped = mmap(at, WINDOW, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	PT_MUST(mapped == at, "mmap: %s", strerror(errno));
	return (unsigned char *)mapped;
}

/* Each writes into its part of the next one's memory and reads it from there, by the handles that it knows, while messages go to and fro. */
static void touch_windows(unsigned char *bytes, uint32_t number) {
	int next = (pt_rank + 1) % pt_ranks;
	pmAddrHandle there = mine.windows[next] + (size_t)pt_rank * PART;
	for (size_t i = 0; i < PART; i++)
		bytes[i] = pt_byte(pt_rank, next, number, i);
	pt_copy(true, next, there, mine.local, PART);
	PT_CHECK(pt_copied(true) == 0, "pmIsWriteDone: %s", pt_why());
	memset(bytes, 0, PART);
	pt_copy(false, next, there, mine.local, PART);
	PT_CHECK(pt_copied(false) == 0, "pmIsReadDone: %s", pt_why());
	for (size_t i = 0; i < PART; i++)
		PT_CHECK(bytes[i] == pt_byte(pt_rank, next, number, i), "byte %zu of what was read back", i);
}

/* All know the handles of all. */
static void tell_windows(void) {
	pmAddrHandle own = mine.windows[pt_rank];
	if (pt_rank != 0) {
		pt_must_send(0, &own, sizeof own);
		pt_must_receive(0, mine.windows, sizeof mine.windows);
	}
	for (int r = 1; r < pt_ranks && pt_rank == 0; r++) {
		caddr_t buffer;
		size_t len;
		int said, from;
		while ((said = pmReceive(pt_context, &buffer, &len)) == ENOBUFS)
			;
		PT_MUST(said == 0 && len == sizeof own && pmGetSender(pt_context, &from) == 0, "%s", pt_why());
		memcpy(&mine.windows[from], buffer, sizeof own);
		PT_MUST(pmReleaseReceiveBuffer(pt_context) == 0, "%s", pt_why());
	}
	for (int r = 1; r < pt_ranks && pt_rank == 0; r++)
		pt_must_send(r, mine.windows, sizeof mine.windows);
	/* Until all have them, nobody sends anything else: that all have saved says so. */
	int fd = memory_file();
	save(fd);
	PT_MUST(pmControlSend(pt_context, 1) == 0, "%s", pt_why());
	close(fd);
}

static void all_the_rest(unsigned char *own, unsigned char *bytes) {
	int before = (pt_rank + pt_ranks - 1) % pt_ranks;
	exchange(EACH * (uint32_t)pt_ranks);
	for (int r = 0; r < pt_ranks; r++)
		PT_CHECK(mine.received[r] == EACH, "%u messages from %d", mine.received[r], r);
	touch_windows(bytes, 99);
	pt_meet(&early);
	for (size_t i = 0; i < PART; i++)
		PT_CHECK(own[(size_t)before * PART + i] == pt_byte(before, pt_rank, 99, i), "byte %zu of what was written here", i);
	pt_meet(&early);
}

/* Some more messages, but not all. */
static void exchange_some(void) {
	uint32_t all = EACH * (uint32_t)pt_ranks, now = sum(mine.sent), more = 1 + draw(all / 4);
	exchange(now + more < all - 1 ? now + more : now);
}

static void in_one_process(unsigned char *bytes) {
	int fd = memory_file();
	for (uint32_t round = 0; round < 3; round++) {
		exchange_some();
		touch_windows(bytes, round);
		save(fd);
		struct state then = mine;
		if (draw(4) > 0) {
			PT_MUST(pmControlSend(pt_context, 1) == 0, "%s", pt_why());
			exchange_some();
		}
		/* What has come since, and what was sent, is forgotten. */
		restore(fd);
		mine = then;
		touch_windows(bytes, 10 + round);
	}
	close(fd);
}

/* What cannot be saved or restored is told, to all, and changes nothing. */
static void mistakes(void) {
	int fd = memory_file(), other = memory_file(), pipes[2];
	caddr_t buffer;
	int last = pt_ranks - 1;
	bool is_last = pt_rank == last;
	int others = is_last ? 0 : ECANCELED;
	char why[64];
	snprintf(why, sizeof why, "node %d could not", last);
	/* One that is not stable keeps all from saving. */
	settle();
	if (is_last)
		PT_SAYS(0, "", pmControlSend(pt_context, 1));
	PT_SAYS(is_last ? EINVAL : others, is_last ? "was not stopped" : why, pmSaveContext(pt_context, fd));
	settle();
	/* A file that others may read; none at all. */
	PT_MUST(fchmod(other, 0644) == 0 && pipe(pipes) == 0, "%s", strerror(errno));
	PT_SAYS(is_last ? EACCES : others, is_last ? "0644" : why, pmSaveContext(pt_context, is_last ? other : fd));
	PT_SAYS(is_last ? EACCES : others, is_last ? "regular file" : why, pmSaveContext(pt_context, is_last ? pipes[1] : fd));
	PT_SAYS(is_last ? EBADF : others, is_last ? "descriptor" : why, pmSaveContext(pt_context, is_last ? -1 : fd));
	PT_SAYS(0, "", pmSaveContext(pt_context, fd));
	PT_SAYS(0, "", fchmod(other, 0600) == 0 ? 0 : errno);
	/* Nothing, a byte that is another, another version, the image of an earlier save, another's. */
	PT_SAYS(is_last ? EBADMSG : others, is_last ? "too short" : why, pmRestoreContext(pt_context, is_last ? other : fd));
	char image[1 << 16];
	ssize_t len = pread(fd, image, sizeof image, 0);
	PT_MUST(len > 60 && len < (ssize_t)sizeof image, "an image of %zd bytes", len);
	image[len - 1] ^= 1;
	PT_MUST(pwrite(other, image, (size_t)len, 0) == len, "%s", strerror(errno));
	PT_SAYS(is_last ? EBADMSG : others, is_last ? "digest" : why, pmRestoreContext(pt_context, is_last ? other : fd));
	image[len - 1] ^= 1;
	image[8] ^= 2;
	PT_MUST(pwrite(other, image, (size_t)len, 0) == len, "%s", strerror(errno));
	PT_SAYS(is_last ? EPROTONOSUPPORT : others, is_last ? "version 0" : why, pmRestoreContext(pt_context, is_last ? other : fd));
	PT_SAYS(0, "", pmSaveContext(pt_context, other));
	if (pt_ranks > 1)
		PT_SAYS(ESTALE, "of different saves", pmRestoreContext(pt_context, is_last ? fd : other));
	PT_SAYS(0, "", pmRestoreContext(pt_context, other));
	/* Memory that was locked and is not any more. */
	unsigned char *memory = pt_pages(4096);
	pmAddrHandle handle = pt_lock(PM_NODE_ANY, memory, 4096);
	PT_SAYS(0, "", pmSaveContext(pt_context, fd));
	PT_SAYS(0, "", pmMUnlock(pt_context, PM_NODE_ANY, (caddr_t)memory, 4096));
	PT_SAYS(EINVAL, "are not now", pmRestoreContext(pt_context, fd));
	/* Locked again it has the handle of then. */
	pt_lock(pt_rank, memory, 4096);
	PT_SAYS(0, "", pmRestoreContext(pt_context, fd));
	PT_CHECK(pt_lock(PM_NODE_ANY, memory, 4096) == handle, "another handle than at the save");
	/* A buffer that is out, a message that is not released. */
	PT_SAYS(0, "", pmControlSend(pt_context, 1));
	double until = pt_now() + PT_PATIENCE;
	while (is_last && pmGetSendBuffer(pt_context, pt_rank, &buffer, 1) == ENOBUFS)
		PT_MUST(pt_now() < until, "no buffer");
	settle();
	PT_SAYS(is_last ? EBUSY : others, is_last ? "was taken and not sent" : why, pmSaveContext(pt_context, fd));
	PT_SAYS(is_last ? EBUSY : others, is_last ? "was taken and not sent" : why, pmRestoreContext(pt_context, fd));
	PT_SAYS(0, "", pmControlSend(pt_context, 1));
	if (is_last) {
		size_t got;
		int said;
		*buffer = 'x';
		PT_SAYS(0, "", pmSend(pt_context));
		while ((said = pmReceive(pt_context, &buffer, &got)) == ENOBUFS)
			PT_MUST(pt_now() < until, "no message");
		PT_CHECK(said == 0 && *buffer == 'x', "%s", pt_why());
	}
	settle();
	PT_SAYS(is_last ? EBUSY : others, is_last ? "was not released" : why, pmSaveContext(pt_context, fd));
	if (is_last)
		PT_SAYS(0, "", pmReleaseReceiveBuffer(pt_context));
	PT_SAYS(0, "", pmSaveContext(pt_context, fd));
	PT_SAYS(0, "", pmControlSend(pt_context, 1));
	PT_SAYS(EINVAL, "pmc", pmSaveContext(NULL, fd));
	PT_SAYS(EINVAL, "pmc", pmRestoreContext(NULL, fd));
	PT_SAYS(0, "", pmMUnlock(pt_context, pt_rank, (caddr_t)memory, 4096));
	PT_SAYS(0, "", pmMUnlock(pt_context, PM_NODE_ANY, (caddr_t)memory, 4096));
}

int main(int argc, char **argv) {
	const char *what = argc > 1 ? argv[1] : "same", *directory = argc > 3 ? argv[3] : ".";
	pt_begin();
	seed = (argc > 2 ? strtoull(argv[2], NULL, 10) : 1) * 1000 + (uint64_t)pt_rank;
	unsigned char *own = map_window(0), *bytes = map_window(1);
	if (strcmp(what, "read") == 0) {
		int fd = open_file(directory, "program", O_RDONLY), context = open_file(directory, "context", O_RDONLY);
		PT_MUST(read(fd, &mine, sizeof mine) == (ssize_t)sizeof mine, "what the program had");
		PT_SAYS(EINVAL, "are not now", pmRestoreContext(pt_context, context));
		/* In another order than at the save, and so by other keys. */
		pt_lock(PM_NODE_ANY, bytes, PART);
		pt_lock(PM_NODE_ANY, own, WINDOW);
		restore(context);
		/* Its handle is none that others have of the two. */
		unsigned char *more = pt_pages(PART);
		pmAddrHandle handle = pt_lock(PM_NODE_ANY, more, PART);
		PT_CHECK(handle >> 32 != mine.local >> 32 && handle >> 32 != mine.windows[pt_rank] >> 32, "handle %" PRIx64, handle);
		PT_CHECK(pt_lock(PM_NODE_ANY, own, WINDOW) == mine.windows[pt_rank], "another handle than at the save");
		touch_windows(bytes, 50);
		all_the_rest(own, bytes);
		return pt_end();
	}
	mine.windows[pt_rank] = pt_lock(PM_NODE_ANY, own, WINDOW);
	mine.local = pt_lock(PM_NODE_ANY, bytes, PART);
	tell_windows();
	if (strcmp(what, "mistakes") == 0)
		mistakes();
	if (strcmp(what, "same") == 0)
		in_one_process(bytes);
	if (strcmp(what, "write") == 0) {
		int fd = open_file(directory, "program", O_WRONLY | O_CREAT | O_TRUNC), context = open_file(directory, "context", O_RDWR | O_CREAT);
		exchange_some();
		touch_windows(bytes, 0);
		settle();
		PT_MUST(write(fd, &mine, sizeof mine) == (ssize_t)sizeof mine, "%s", strerror(errno));
		PT_MUST(pmSaveContext(pt_context, context) == 0, "pmSaveContext: %s", pt_why());
		/* All have saved. What happens from now on, the others will not remember. */
		PT_MUST(pmControlSend(pt_context, 1) == 0, "%s", pt_why());
		printf("SAVED rank %d with %u sent, %u received\n", pt_rank, sum(mine.sent), sum(mine.received));
		fflush(stdout);
		exchange_some();
		raise(SIGKILL);
	}
	all_the_rest(own, bytes);
	return pt_end();
}
