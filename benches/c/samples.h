/* Timing in batches: their median, mean and 99th percentile, printed as three numbers. */
#ifndef VERVAIN_BENCH_SAMPLES_H
#define VERVAIN_BENCH_SAMPLES_H

#include "clock.h"

/* Operations between two readings of the clock: few, so that the tail of the batches is that of the operations. */
enum { PER_BATCH = 20 };

/* Runs `once` about `count` times and prints ns of one: the median, the mean and the 99th percentile of batches. */
static inline void measure(void (*once)(size_t size), size_t size, size_t count)
{
	size_t batches = (count + PER_BATCH - 1) / PER_BATCH;
	double *samples = calloc(batches, sizeof *samples), sum = 0;
	for (size_t i = 0; i <= batches; i++) { /* the first is the warm-up */
		uint64_t begin = now_ns();
		for (size_t j = 0; j < PER_BATCH; j++)
			once(size);
		if (i > 0)
			sum += samples[i - 1] = (double)(now_ns() - begin) / PER_BATCH;
	}
	double middle = median(samples, batches); /* sorts */
	printf("%.1f %.1f %.1f ", middle, sum / (double)batches, samples[(batches * 99) / 100]);
	free(samples);
}

#endif
