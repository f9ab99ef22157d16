/*
 * A program that never opens a device: what it does a lot of, to be run bare and under `vervain run`.
 *
 *   bystander small N     ns of a malloc and a free of 16 to 256 bytes, 1000 blocks alive
 *   bystander mixed N     ns of a malloc, a touch of each page and a free of 16 bytes to 4 MiB (small ones are more)
 *   bystander large N     ns of a malloc, a touch of each page and a free of 1 to 8 MiB
 *   bystander map N       ns of an anonymous mmap of 4 MiB, a touch of each page and a munmap
 *   bystander spawn N     ns to start /bin/true and to see it end
 *
 * prints the median of batches: processor time, which the machine's other work hardly touches; wall time for spawn.
 */
#define _GNU_SOURCE
#include "clock.h"

#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ALIVE = 1000, PAGE = 4096 };

extern char **environ;

static uint64_t state = 88172645463325252u;

/* xorshift64: the same sizes in every run. */
static uint64_t next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	return state ^= state << 17;
}

static void touch(volatile char *memory, size_t length)
{
	for (size_t i = 0; i < length; i += PAGE)
		memory[i] = 1;
}

static char *blocks[ALIVE];

/* Puts a new block in the place of an old one. */
static void replace(size_t slot, size_t length)
{
	free(blocks[slot]);
	blocks[slot] = malloc(length);
	if (!blocks[slot])
		exit(1);
	touch(blocks[slot], length);
}

static void small(void) { replace(next() % ALIVE, 16 + next() % 241); }

/* 16 B to 4 MiB, each power of two half as often as the one before. */
static void mixed(void)
{
	size_t power = (size_t)__builtin_ctzll(next() | 1ull << 18);
	replace(next() % 64, (16ul << power) + next() % 64);
}

static void large(void) { replace(next() % 4, (1ul << 20) + next() % (7ul << 20)); }

static void map(void)
{
	enum { LENGTH = 4 << 20 };
	char *memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		exit(1);
	touch(memory, LENGTH);
	munmap(memory, LENGTH);
}

static void spawn(void)
{
	char *arguments[] = { "true", NULL };
	pid_t child;
	int status;
	if (posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ) || waitpid(child, &status, 0) != child ||
	    status)
		exit(1);
}

static uint64_t cpu_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static const struct {
	const char *name;
	void (*run)(void);
	size_t per_batch;
} modes[] = {
	{ "small", small, 1000 }, { "mixed", mixed, 1000 }, { "large", large, 10 },
	{ "map", map, 10 }, { "spawn", spawn, 1 },
};

int main(int argc, char **argv)
{
	for (size_t i = 0; argc == 3 && i < sizeof modes / sizeof *modes; i++) {
		if (strcmp(argv[1], modes[i].name))
			continue;
		size_t batches = strtoul(argv[2], NULL, 10) / modes[i].per_batch + 1;
		double *samples = calloc(batches, sizeof *samples);
		uint64_t (*clock_ns)(void) = modes[i].run == spawn ? now_ns : cpu_ns;
		for (size_t j = 0; j < modes[i].per_batch; j++) /* warm-up */
			modes[i].run();
		for (size_t b = 0; b < batches; b++) {
			uint64_t begin = clock_ns();
			for (size_t j = 0; j < modes[i].per_batch; j++)
				modes[i].run();
			samples[b] = (double)(clock_ns() - begin) / (double)modes[i].per_batch;
		}
		printf("%.3f\n", median(samples, batches));
		return 0;
	}
	fprintf(stderr, "bystander: see the head of bystander.c\n");
	return 2;
}
