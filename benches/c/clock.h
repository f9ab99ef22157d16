/* The clock and the medians that the measuring programs share. */
#ifndef VERVAIN_BENCH_CLOCK_H
#define VERVAIN_BENCH_CLOCK_H

#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Processor time of this process. */
static inline double cpu_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* What reading the clock costs, to be taken off intervals that are not much longer. */
static inline uint64_t clock_cost_ns(void)
{
	uint64_t least = UINT64_MAX;
	for (int i = 0; i < 1000; i++) {
		uint64_t begin = now_ns(), took = now_ns() - begin;
		if (took < least)
			least = took;
	}
	return least;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* Sorts the samples and gives their median. */
static inline double median(double *samples, size_t count)
{
	qsort(samples, count, sizeof *samples, by_value);
	return samples[count / 2];
}

/* Operations of `size` bytes between two readings of the clock: enough to hide it, few enough for a median. */
static inline size_t batch_of(size_t size)
{
	return size <= 4096 ? 100 : size <= 65536 ? 10 : 1;
}

static inline void pin(int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (cpu >= 0 && sched_setaffinity(0, sizeof set, &set))
		perror("sched_setaffinity");
}

#endif
