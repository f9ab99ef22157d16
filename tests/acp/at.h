/* at: what the test programs of ACP share. Checks that print and count, regions, and what ranks tell each other through starter
 * memory, of which bytes 0 to 1023 are used. For C11 and for C++17. A program prints one line that begins with "OK" on each rank,
 * or a sentence for each failure, and ends with status 0 or 1. */
#ifndef AT_H
#define AT_H

#include <acp.h>

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define AT_SLOTS 48           /* words of starter memory that at_tell has */
#define AT_LANDING (8 * 96)   /* where at_load and at_store keep their word; those behind it are free for programs */
#define AT_FREE (8 * 104)     /* first byte that programs may use as they like, up to 1023 */
#define AT_ALL ((acp_handle_t)ACP_HANDLE_ALL)
#define AT_CONT ((acp_handle_t)ACP_HANDLE_CONT)
#define AT_NULL ((acp_handle_t)ACP_HANDLE_NULL)
#define AT_PATIENCE 60.0 /* seconds until what must come is a failure; none takes a tenth of it */

static int at_rank = -1, at_procs = -1, at_failures;

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static inline void at_failed(int line, const char *format, ...) {
	char text[512];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	/* The first ones tell what it is. */
	if (at_failures++ < 20)
		printf("FAIL rank %d, line %d: %s\n", at_rank, line, text);
	fflush(stdout);
}

/* A failed check is printed, and the program goes on: others wait for it. */
#define AT_CHECK(condition, ...)                                                                                       \
	do {                                                                                                               \
		if (!(condition))                                                                                              \
			at_failed(__LINE__, __VA_ARGS__);                                                                          \
	} while (0)
/* A failed requirement ends the program, and the launcher the other ranks. */
#define AT_MUST(condition, ...)                                                                                        \
	do {                                                                                                               \
		if (!(condition)) {                                                                                            \
			at_failed(__LINE__, __VA_ARGS__);                                                                          \
			exit(1);                                                                                                   \
		}                                                                                                              \
	} while (0)

static inline const char *at_why(void) {
	const char *why = acp_error();
	return why ? why : "no error";
}

static inline double at_now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Whether a process is stopped: the third character behind its name says how it is. */
static inline bool at_is_stopped(pid_t pid) {
	char name[64], text[512];
	snprintf(name, sizeof name, "/proc/%d/stat", (int)pid);
	FILE *file = fopen(name, "r");
	AT_MUST(file != NULL, "%s: %s", name, strerror(errno));
	size_t got = fread(text, 1, sizeof text - 1, file);
	fclose(file);
	text[got] = 0;
	const char *behind = strrchr(text, ')');
	return behind != NULL && behind[2] == 'T';
}

static inline void at_number(void) {
	at_rank = acp_rank();
	at_procs = acp_procs();
	AT_MUST(at_procs >= 1 && at_rank >= 0 && at_rank < at_procs, "rank %d of %d", at_rank, at_procs);
}

static inline void at_begin(int *argc, char ***argv) {
	AT_MUST(acp_init(argc, argv) == 0, "acp_init: %s", at_why());
	at_number();
}

static inline void at_sync(void) {
	AT_MUST(acp_sync() == 0, "%s", at_why());
}

static inline int at_verdict(void) {
	if (at_failures == 0)
		printf("OK rank %d\n", at_rank);
	else
		printf("FAIL rank %d: %d in all\n", at_rank, at_failures);
	fflush(stdout);
	return at_failures != 0;
}

/* The end of main. */
static inline int at_end(void) {
	at_sync();
	AT_CHECK(acp_finalize() == 0, "%s", at_why());
	return at_verdict();
}

/* ---- Memory ---- */

struct at_region {
	unsigned char *at;
	size_t size;
	acp_atkey_t key;
	acp_ga_t ga;
};

static inline struct at_region at_register(void *memory, size_t size) {
	struct at_region region;
	region.at = (unsigned char *)memory;
	region.size = size;
	region.key = acp_register_memory(memory, size, 0);
	AT_MUST(region.key != ACP_ATKEY_NULL, "%zu B: %s", size, at_why());
	region.ga = acp_query_ga(region.key, memory);
	AT_MUST(region.ga != ACP_GA_NULL, "the address of a region of %zu B", size);
	return region;
}

/* Zeroed pages. */
static inline struct at_region at_region(size_t size) {
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	AT_MUST(memory != MAP_FAILED, "mmap of %zu B: %s", size, strerror(errno));
	return at_register(memory, size);
}

static inline void at_free(struct at_region region) {
	AT_CHECK(acp_unregister_memory(region.key) == 0, "%s", at_why());
	munmap(region.at, region.size);
}

/* What a rank has at an offset: a byte that differs from its neighbours', other ranks' and other rounds'. */
static inline unsigned char at_byte(int rank, unsigned round, size_t offset) {
	uint64_t x = (offset + 1) * 0x9e3779b97f4a7c15ULL ^ ((uint64_t)round << 32 | (uint64_t)(rank + 1)) * 0xd6e8feb86659fd93ULL;
	return (unsigned char)((x ^ x >> 29) >> 13);
}

static inline void at_fill(unsigned char *at, size_t size, int rank, unsigned round) {
	for (size_t i = 0; i < size; i++)
		at[i] = at_byte(rank, round, i);
}

/* The first offset that is not as at_fill leaves it; `size` if all are. */
static inline size_t at_differs(const unsigned char *at, size_t size, int rank, unsigned round) {
	size_t i = 0;
	while (i < size && at[i] == at_byte(rank, round, i))
		i++;
	return i;
}

static inline bool at_all_are(const unsigned char *at, size_t size, unsigned char value) {
	size_t i = 0;
	while (i < size && at[i] == value)
		i++;
	return i == size;
}

/* ---- Starter memory ---- */

static inline volatile uint64_t *at_starter(size_t offset) {
	unsigned char *starter = (unsigned char *)acp_query_address(acp_query_starter_ga(at_rank));
	AT_MUST(starter != NULL, "my own starter memory has no address");
	return (volatile uint64_t *)(void *)(starter + offset);
}

static inline uint64_t at_word(volatile uint64_t *word) {
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* Waits, without a call of ACP, until the word is `value`. */
static inline bool at_becomes(volatile uint64_t *word, uint64_t value) {
	double until = at_now() + AT_PATIENCE;
	while (at_word(word) != value)
		if (at_now() > until)
			return false;
	return true;
}

/* The word at `ga`. */
static inline uint64_t at_load(acp_ga_t ga) {
	acp_handle_t h = acp_copy(acp_query_starter_ga(at_rank) + AT_LANDING, ga, 8, AT_NULL);
	AT_MUST(h != AT_NULL, "%s", at_why());
	acp_complete(h);
	return at_word(at_starter(AT_LANDING));
}

/* Makes the word at `ga` be `value`. */
static inline void at_store(acp_ga_t ga, uint64_t value) {
	*at_starter(AT_LANDING + 8) = value;
	acp_handle_t h = acp_copy(ga, acp_query_starter_ga(at_rank) + AT_LANDING + 8, 8, AT_NULL);
	AT_MUST(h != AT_NULL, "%s", at_why());
	acp_complete(h);
}

/* Tells the other ranks a word; they see it after the next at_sync. */
static inline void at_tell(int slot, uint64_t word) {
	AT_MUST(slot < AT_SLOTS, "slot %d", slot);
	__atomic_store_n(at_starter((size_t)slot * 8), word, __ATOMIC_RELEASE);
}

/* What a rank has told. */
static inline uint64_t at_told(int rank, int slot) {
	return at_load(acp_query_starter_ga(rank) + (acp_ga_t)slot * 8);
}

/* Tells the address of a region, and gets that of each rank. Afterwards the slot can be used again. */
static inline void at_exchange(int slot, acp_ga_t own, acp_ga_t *all) {
	at_tell(slot, own);
	at_sync();
	for (int r = 0; r < at_procs; r++)
		all[r] = at_told(r, slot);
	at_sync();
}

#define AT_MAX 64 /* ranks that programs have tables for */

#endif
