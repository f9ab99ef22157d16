/* Contexts that are saved with messages, writes and reads under way, which nobody waits for: they are over once in this life, and once more
 * after each restore. Arguments: "same", "write" or "read"; "stopped", "traffic" or "apart"; a seed; a directory.
 *   stopped: the process stands still from before it sends until it has saved, so all that it has sent is under way
 *   traffic: some of it is
 *   apart:   as traffic, and the last rank's device cannot stand still, so all wait
 *   same:    it goes on, and goes back, twice
 *   write:   it saves and dies, at once or later
 *   read:    another process goes on from there; with one argument more it dies at its end, and there is another one after it */
#include "pt.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#define EACH 60u /* messages from each rank to each */
#define UNDER_WAY 40u /* of them, before the save, at most */
#define COPIES 2
#define PART ((size_t)512 << 10)
#define ROOM (PT_MAX * COPIES * PART)
#define AT ((char *)0x7d0000000000)
#define KIND_AT 52 /* in an image: how it was made */

/* Written to by others; read by others; written from; read to. */
enum { TARGET, GIVEN, SOURCE, SINK, KINDS };

static struct state {
	uint32_t sent[PT_MAX], received[PT_MAX];
	pmAddrHandle handles[PT_MAX][KINDS];
} mine;

static unsigned char *memory[KINDS];
static uint64_t seed;
static int early;
static bool stopped, apart;
static int (*device_stop)(void *, const void *), (*device_go)(void *);

static uint32_t draw(uint32_t below) {
	seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
	return (uint32_t)(seed >> 33) % below;
}

static size_t length_of(uint32_t number) { return 2 + (number * 2654435761u >> 7) % (number % 3 == 0 ? (uint32_t)pt_mtu - 1 : 200u); }

static bool send_one(int to) {
	static unsigned char bytes[65536];
	size_t len = length_of(mine.sent[to]);
	for (size_t i = 0; i < len; i++)
		bytes[i] = pt_byte(pt_rank, to, mine.sent[to], i);
	if (!pt_send(to, bytes, len))
		return false;
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
	PT_MUST(said == 0 && pmGetSender(pt_context, &from) == 0, "pmReceive: %s", pt_why());
	if (pt_rank == 0 && mine.received[from] == EACH && len == 1) {
		early++;
	} else {
		uint32_t number = mine.received[from]++;
		PT_CHECK(len == length_of(number), "message %u from %d has %zu bytes", number, from, len);
		while (i < len && (unsigned char)buffer[i] == pt_byte(from, pt_rank, number, i))
			i++;
		PT_CHECK(i == len, "message %u from %d, byte %zu of %zu", number, from, i, len);
	}
	PT_MUST(pmReleaseReceiveBuffer(pt_context) == 0, "%s", pt_why());
	return true;
}

static size_t place(int rank, int copy) { return ((size_t)rank * COPIES + (size_t)copy) * PART; }

/* Bytes of each kind that are used. */
static size_t used(void) { return (size_t)pt_ranks * COPIES * PART; }

/* What the program has in its memory when it begins. */
static void fill(void) {
	for (int r = 0; r < pt_ranks; r++)
		for (int c = 0; c < COPIES; c++)
			for (size_t i = 0; i < PART; i++) {
				memory[SOURCE][place(r, c) + i] = pt_byte(pt_rank, r, 100 + (uint32_t)c, i);
				memory[GIVEN][place(r, c) + i] = pt_byte(pt_rank, r, 200 + (uint32_t)c, i);
				memory[TARGET][place(r, c) + i] = memory[SINK][place(r, c) + i] = 0;
			}
}

static void check(int kind, int from, int to, int rank, uint32_t number, int copy) {
	size_t i = 0;
	while (i < PART && memory[kind][place(rank, copy) + i] == pt_byte(from, to, number + (uint32_t)copy, i))
		i++;
	PT_CHECK(i == PART, "copy %d of %d, byte %zu of kind %d", copy, rank, i, kind);
}

/* All that was under way comes, and all else. */
static void all_the_rest(void) {
	double until = pt_now() + PT_PATIENCE;
	for (bool more = true; more;) {
		more = false;
		for (int r = 0; r < pt_ranks; r++) {
			if (mine.sent[r] < EACH)
				send_one(r);
			more |= mine.sent[r] < EACH || mine.received[r] < EACH;
		}
		while (receive_one())
			;
		PT_MUST(pt_now() < until, "messages from 0: %u, to 0: %u", mine.received[0], mine.sent[0]);
	}
	PT_CHECK(pt_copied(true) == 0, "pmIsWriteDone: %s", pt_why());
	PT_CHECK(pt_copied(false) == 0, "pmIsReadDone: %s", pt_why());
	for (int r = 0; r < pt_ranks; r++)
		for (int c = 0; c < COPIES; c++)
			check(SINK, r, pt_rank, r, 200, c);
	pt_meet(&early);
	for (int r = 0; r < pt_ranks; r++)
		for (int c = 0; c < COPIES; c++)
			check(TARGET, r, pt_rank, r, 100, c);
	pt_meet(&early);
}

/* Sends, writes and reads, and stops. */
static void begin_all(void) {
	if (stopped)
		PT_MUST(device_stop(NULL, NULL) == 0, "vervain_stop");
	for (int r = 0; r < pt_ranks; r++)
		for (int c = 0; c < COPIES; c++) {
			pt_copy(true, r, mine.handles[r][TARGET] + place(pt_rank, c), mine.handles[pt_rank][SOURCE] + place(r, c), PART);
			pt_copy(false, r, mine.handles[r][GIVEN] + place(pt_rank, c), mine.handles[pt_rank][SINK] + place(r, c), PART);
		}
	for (uint32_t n = 1; n < UNDER_WAY; n++)
		for (int r = 0; r < pt_ranks; r++) {
			bool is_sent = send_one(r);
			PT_CHECK(is_sent || !stopped, "message %u to %d is not sent", n, r);
			if (!stopped && draw(3) == 0)
				receive_one();
		}
	PT_SAYS(0, "", pmControlSend(pt_context, 0));
}

static void save(int fd) {
	unsigned char kind;
	PT_MUST(pmSaveContext(pt_context, fd) == 0, "pmSaveContext: %s", pt_why());
	PT_MUST(pread(fd, &kind, 1, KIND_AT) == 1, "%s", strerror(errno));
	PT_CHECK(kind == !apart, "an image of kind %d", kind);
	if (stopped) {
		PT_SAYS(EBUSY, "being sent", pmIsSendDone(pt_context));
		PT_SAYS(EBUSY, "writes", pmIsWriteDone(pt_context));
		PT_SAYS(EBUSY, "reads", pmIsReadDone(pt_context));
		PT_CHECK(device_go(NULL) == 0, "vervain_go");
	}
	/* What has ended since is told when the program goes on: else it would not have any more what is to be written again. */
	usleep(20000);
	if (pmIsWriteDone(pt_context) == 0) {
		PT_CHECK(!stopped, "a write has ended that is in the image");
		memset(memory[SOURCE], 0, used());
	}
	if (stopped)
		PT_SAYS(EBUSY, "reads", pmIsReadDone(pt_context));
}

static void restore(int fd) {
	PT_MUST(pmRestoreContext(pt_context, fd) == 0, "pmRestoreContext: %s", pt_why());
	if (stopped) {
		/* Nothing goes before it is told to. */
		PT_SAYS(EBUSY, "being sent", pmIsSendDone(pt_context));
		PT_SAYS(EBUSY, "writes", pmIsWriteDone(pt_context));
		PT_SAYS(EBUSY, "reads", pmIsReadDone(pt_context));
		PT_CHECK(pt_ranks > 1 || !receive_one(), "a message has come");
	}
	PT_SAYS(0, "", pmIsSendStable(pt_context));
	/* It may be saved as it is. */
	if (draw(2) == 0)
		PT_SAYS(0, "", pmControlSend(pt_context, 1));
}

/* The program's own: what it knows, and what it has in memory. */
static void write_own(int fd) {
	PT_MUST(pwrite(fd, &mine, sizeof mine, 0) == (ssize_t)sizeof mine, "%s", strerror(errno));
	for (int k = 0; k < KINDS; k++)
		PT_MUST(pwrite(fd, memory[k], used(), (off_t)(sizeof mine + (size_t)k * used())) == (ssize_t)used(), "%s", strerror(errno));
}

static void read_own(int fd) {
	PT_MUST(pread(fd, &mine, sizeof mine, 0) == (ssize_t)sizeof mine, "what the program had");
	for (int k = 0; k < KINDS; k++)
		PT_MUST(pread(fd, memory[k], used(), (off_t)(sizeof mine + (size_t)k * used())) == (ssize_t)used(), "%s", strerror(errno));
}

static int open_file(const char *directory, const char *name, int flags) {
	char path[4096];
	snprintf(path, sizeof path, "%s/%s.%d", directory, name, pt_rank);
	int fd = open(path, flags, 0600);
	PT_MUST(fd >= 0, "%s: %s", path, strerror(errno));
	return fd;
}

static int memory_file(void) {
	FILE *file = tmpfile();
	PT_MUST(file && fchmod(fileno(file), 0600) == 0, "no file: %s", strerror(errno));
	return fileno(file);
}

/* Contexts that are open before PM's, of which a device can stop 255. */
static void open_many(void *library) {
	void **(*list)(int *), *(*open_device)(void *);
	*(void **)&list = dlsym(library, "ibv_get_device_list");
	*(void **)&open_device = dlsym(library, "ibv_open_device");
	PT_MUST(list && open_device, "no libibverbs");
	void **devices = list(NULL);
	for (int i = 0; i < 255; i++)
		PT_MUST(open_device(devices[0]), "context %d: %s", i, strerror(errno));
}

int main(int argc, char **argv) {
	const char *what = argc > 1 ? argv[1] : "same", *how = argc > 2 ? argv[2] : "traffic", *directory = argc > 4 ? argv[4] : ".";
	void *library = dlopen("libibverbs.so.1", RTLD_NOW);
	PT_MUST(library, "%s", dlerror());
	stopped = strcmp(how, "stopped") == 0;
	apart = strcmp(how, "apart") == 0;
	const char *rank = getenv("VERVAIN_JOB_RANK"), *ranks = getenv("VERVAIN_JOB_SIZE");
	PT_MUST(rank && ranks, "it runs under vervain launch");
	if (apart && atoi(rank) == atoi(ranks) - 1)
		open_many(library);
	*(void **)&device_stop = dlsym(library, "vervain_stop");
	*(void **)&device_go = dlsym(library, "vervain_go");
	PT_MUST(device_stop && device_go, "this is no device of Vervain's");
	pt_begin();
	seed = (argc > 3 ? strtoull(argv[3], NULL, 10) : 1) * 1000;
	for (int k = 0; k < KINDS; k++) {
		char *at = AT + ((size_t)k * PT_MAX + (size_t)pt_rank) * ROOM;
		memory[k] = (unsigned char *)mmap(at, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | MAP_NORESERVE, -1, 0);
		PT_MUST((char *)memory[k] == at, "mmap: %s", strerror(errno));
	}
	fill();
	if (strcmp(what, "read") == 0) {
		int fd = open_file(directory, "program", O_RDONLY), context = open_file(directory, "context", O_RDONLY);
		read_own(fd);
		for (int k = KINDS - 1; k >= 0; k--)
			pt_lock(PM_NODE_ANY, memory[k], ROOM);
		restore(context);
		/* Again, from what was restored and has gone on or not; none of it is lost. */
		int again = memory_file();
		PT_SAYS(0, "", pmControlSend(pt_context, 0));
		PT_MUST(pmSaveContext(pt_context, again) == 0, "pmSaveContext: %s", pt_why());
		PT_MUST(pmRestoreContext(pt_context, again) == 0, "pmRestoreContext: %s", pt_why());
		PT_SAYS(0, "", pmControlSend(pt_context, 1));
		all_the_rest();
		if (argc > 5) {
			/* And another process goes on from the same images. */
			printf("ENDED rank %d with %d failures\n", pt_rank, pt_failures);
			fflush(stdout);
			PT_MUST(pmSaveContext(pt_context, again) == EINVAL, "sending goes on");
			PT_SAYS(0, "", pmControlSend(pt_context, 0));
			PT_MUST(pmSaveContext(pt_context, again) == 0, "pmSaveContext: %s", pt_why());
			raise(SIGKILL);
		}
		return pt_end();
	}
	for (int k = 0; k < KINDS; k++)
		mine.handles[pt_rank][k] = pt_lock(PM_NODE_ANY, memory[k], ROOM);
	/* All know the handles of all, and are connected. */
	for (int r = 0; r < pt_ranks; r++)
		pt_must_send(r, mine.handles[pt_rank], sizeof mine.handles[0]);
	for (int r = 0; r < pt_ranks; r++) {
		pmAddrHandle theirs[KINDS];
		caddr_t buffer;
		size_t len;
		int said, from;
		while ((said = pmReceive(pt_context, &buffer, &len)) == ENOBUFS)
			;
		PT_MUST(said == 0 && len == sizeof theirs && pmGetSender(pt_context, &from) == 0, "%s", pt_why());
		memcpy(mine.handles[from], buffer, len);
		PT_MUST(pmReleaseReceiveBuffer(pt_context) == 0, "%s", pt_why());
	}
	pt_must_be_sent();
	int other = memory_file();
	PT_SAYS(0, "", pmControlSend(pt_context, 0));
	PT_MUST(pmSaveContext(pt_context, other) == 0, "pmSaveContext: %s", pt_why());
	PT_SAYS(0, "", pmControlSend(pt_context, 1));
	begin_all();
	if (strcmp(what, "write") == 0) {
		int fd = open_file(directory, "program", O_RDWR | O_CREAT | O_TRUNC), context = open_file(directory, "context", O_RDWR | O_CREAT);
		save(context);
		write_own(fd);
		/* All have. */
		PT_MUST(pmSaveContext(pt_context, other) == 0, "pmSaveContext: %s", pt_why());
		printf("SAVED rank %d with %u sent to it, %u received\n", pt_rank, mine.sent[pt_rank], mine.received[pt_rank]);
		fflush(stdout);
		if (draw(2) == 0) {
			PT_SAYS(0, "", pmControlSend(pt_context, 1));
			for (uint32_t n = draw(1000); n > 0; n--)
				receive_one();
		}
		raise(SIGKILL);
	}
	int fd = memory_file(), own = memory_file();
	save(fd);
	write_own(own);
	PT_SAYS(0, "", pmControlSend(pt_context, 1));
	all_the_rest();
	for (int times = 0; times < 2; times++) {
		/* Nobody writes here any more, until all have gone back. */
		read_own(own);
		restore(fd);
		PT_SAYS(0, "", pmControlSend(pt_context, 1));
		all_the_rest();
	}
	return pt_end();
}
