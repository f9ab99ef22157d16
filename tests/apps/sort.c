/* Integer bucket sort by all-to-all, as IS of the NAS Parallel Benchmarks does it: keys around the middle of their
 * range, counted into 1024 buckets; the counts are summed over all ranks, neighbouring buckets dealt out to the
 * ranks so that each gets about as many keys, and the keys sent there by MPI_Alltoallv; each rank then counts its
 * own.
 *
 * n[] is log2 of the number of keys and log2 of the range of keys. Each iteration sorts anew, two keys changed
 * before; none may get lost or double, and each rank's may not be below those of the one before. The last result is
 * compared with a serial sort of all keys. */
#include "app.h"

static const struct size SIZES[] = {
	{ "S", { 16, 11 }, 10 },
	{ "W", { 20, 16 }, 10 },
	{ "A", { 23, 19 }, 10 },
	{ "B", { 25, 21 }, 10 },
};

enum { LOG_BUCKETS = 10, BUCKETS = 1 << LOG_BUCKETS };

/* Keys first to first + count - 1 of the sequence: each the mean of four random numbers, scaled to the range. */
static void generate(int *keys, int64_t first, int64_t count, int range)
{
	uint64_t x = lcg_at((uint64_t)first * 4);
	for (int64_t i = 0; i < count; i++) {
		double sum = 0;
		for (int n = 0; n < 4; n++)
			sum += lcg_next(&x);
		keys[i] = (int)(range / 4 * sum);
	}
}

/* The changes before iteration n, 1 the first; the sequence may begin before `first` and end after its `count` keys. */
static void change(int *keys, int64_t first, int64_t count, int range, int n, int iterations)
{
	int64_t at[2] = { n, n + iterations };
	int value[2] = { n % range, range - 1 - n % range };
	for (int i = 0; i < 2; i++)
		if (at[i] >= first && at[i] < first + count)
			keys[at[i] - first] = value[i];
}

/* A number that two collections of keys hardly share unless they are the same, in whatever order. */
static uint64_t fingerprint(const int *keys, int64_t count)
{
	uint64_t sum = 0;
	for (int64_t i = 0; i < count; i++) {
		uint64_t x = ((uint64_t)(unsigned)keys[i] + 1) * UINT64_C(0x9E3779B97F4A7C15);
		x = (x ^ x >> 29) * UINT64_C(0xBF58476D1CE4E5B9);
		sum += x ^ x >> 32;
	}
	return sum;
}

/* Sorts keys of low to high - 1 by counting them. */
static void counting_sort(int *sorted, const int *keys, int64_t count, int low, int high)
{
	int64_t *seen = room((size_t)(high - low) * sizeof(*seen)), n = 0;
	memset(seen, 0, (size_t)(high - low) * sizeof(*seen));
	for (int64_t i = 0; i < count; i++)
		seen[keys[i] - low]++;
	for (int key = low; key < high; key++)
		for (int64_t i = 0; i < seen[key - low]; i++)
			sorted[n++] = key;
	free(seen);
}

struct sorter {
	MPI_Comm comm;
	int rank, ranks, shift;
	int *send_counts, *send_at, *receive_counts, *receive_at;
	int *by_bucket, *received, *sorted;
	int capacity, low, high, mine;
};

/* Leaves in s->sorted the keys that are this rank's, s->mine of them, all within s->low to s->high - 1. */
static void bucket_sort(struct sorter *s, const int *keys, int count)
{
	int own[BUCKETS] = { 0 }, all[BUCKETS], next[BUCKETS], total = 0, before = 0;
	for (int i = 0; i < count; i++)
		own[keys[i] >> s->shift]++;
	MPI_Allreduce(own, all, BUCKETS, MPI_INT, MPI_SUM, s->comm);
	for (int b = 0; b < BUCKETS; b++) {
		next[b] = b ? next[b - 1] + own[b - 1] : 0;
		total += all[b];
	}
	for (int i = 0; i < count; i++)
		s->by_bucket[next[keys[i] >> s->shift]++] = keys[i];
	/* Bucket b belongs to the rank in whose share of the keys the bucket's middle lies. */
	for (int r = 0; r < s->ranks; r++)
		s->send_counts[r] = 0;
	s->low = s->high = 0;
	for (int b = 0; b < BUCKETS; b++) {
		int owner = (int)(((int64_t)before + all[b] / 2) * s->ranks / (total ? total : 1));
		if (owner >= s->ranks)
			owner = s->ranks - 1;
		before += all[b];
		s->send_counts[owner] += own[b];
		if (owner < s->rank)
			s->low = (b + 1) << s->shift;
		if (owner <= s->rank)
			s->high = (b + 1) << s->shift;
	}
	MPI_Alltoall(s->send_counts, 1, MPI_INT, s->receive_counts, 1, MPI_INT, s->comm);
	s->mine = 0;
	for (int r = 0; r < s->ranks; r++) {
		s->send_at[r] = r ? s->send_at[r - 1] + s->send_counts[r - 1] : 0;
		s->receive_at[r] = s->mine;
		s->mine += s->receive_counts[r];
	}
	if (s->mine > s->capacity) {
		free(s->received);
		free(s->sorted);
		s->capacity = s->mine;
		s->received = room((size_t)s->mine * sizeof(int));
		s->sorted = room((size_t)s->mine * sizeof(int));
	}
	MPI_Alltoallv(s->by_bucket, s->send_counts, s->send_at, MPI_INT, s->received, s->receive_counts, s->receive_at,
		      MPI_INT, s->comm);
}

static int wrong(const struct sorter *s, const char *what)
{
	fprintf(stderr, "sort: rank %d: %s\n", s->rank, what);
	return 0;
}

/* Whether the keys that came are within this rank's range, so that sorting them sorts all. */
static int in_range(const struct sorter *s)
{
	for (int i = 0; i < s->mine; i++)
		if (s->received[i] < s->low || s->received[i] >= s->high)
			return wrong(s, "a key that belongs elsewhere");
	return 1;
}

/* Whether the ranges follow each other, each rank's keys ascend, and all together are those that were given. */
static int verify(const struct sorter *s, const int *keys, int count)
{
	int ok = 1, below = 0;
	uint64_t prints[2] = { fingerprint(keys, count), fingerprint(s->sorted, s->mine) }, sums[2];
	int numbers[2] = { count, s->mine }, totals[2];
	for (int i = 1; i < s->mine; i++)
		ok = ok && s->sorted[i - 1] <= s->sorted[i];
	/* The highest key of all ranks before; at rank 0 it stays 0. */
	int highest = s->mine ? s->sorted[s->mine - 1] : 0;
	MPI_Exscan(&highest, &below, 1, MPI_INT, MPI_MAX, s->comm);
	if (s->rank == 0)
		below = 0;
	if (!ok || (s->mine && s->sorted[0] < below))
		ok = wrong(s, "keys that are not sorted");
	MPI_Allreduce(prints, sums, 2, MPI_UINT64_T, MPI_SUM, s->comm);
	MPI_Allreduce(numbers, totals, 2, MPI_INT, MPI_SUM, s->comm);
	if (sums[0] != sums[1] || totals[0] != totals[1])
		ok = wrong(s, "the keys sorted are not those given");
	return ok;
}

/* Rank 0 gets everybody's keys and compares them with a serial sort of the whole sequence. */
static int compare(const struct app *app, const struct sorter *s, int64_t total, int range)
{
	int ok = 1, *all = NULL;
	MPI_Gather(&s->mine, 1, MPI_INT, s->receive_counts, 1, MPI_INT, 0, s->comm);
	if (s->rank == 0) {
		int64_t sum = 0;
		for (int r = 0; r < s->ranks; r++) {
			s->receive_at[r] = (int)sum;
			sum += s->receive_counts[r];
		}
		if (sum != total)
			refuse("sort: the number of keys has changed");
		all = room((size_t)total * sizeof(int));
	}
	MPI_Gatherv(s->sorted, s->mine, MPI_INT, all, s->receive_counts, s->receive_at, MPI_INT, 0, s->comm);
	if (s->rank == 0) {
		int *keys = room((size_t)total * sizeof(int)), *serial = room((size_t)total * sizeof(int));
		generate(keys, 0, total, range);
		for (int n = 1; n <= app->iterations; n++)
			change(keys, 0, total, range, n, app->iterations);
		counting_sort(serial, keys, total, 0, range);
		if (memcmp(all, serial, (size_t)total * sizeof(int)))
			ok = wrong(s, "the result is not the serial run's");
		free(serial);
		free(keys);
		free(all);
	}
	return ok;
}

int main(int argc, char **argv)
{
	struct app app = app_start(argc, argv, SIZES, 4);
	int64_t total = INT64_C(1) << app.size->n[0];
	int range = 1 << app.size->n[1], first = part((int)total, app.ranks, app.rank);
	int count = part((int)total, app.ranks, app.rank + 1) - first, ok = 1;
	struct sorter s = { .comm = MPI_COMM_WORLD, .rank = app.rank, .ranks = app.ranks };
	s.shift = app.size->n[1] - LOG_BUCKETS;
	s.capacity = 2 * count;
	int **each_rank[] = { &s.send_counts, &s.send_at, &s.receive_counts, &s.receive_at };
	for (int i = 0; i < 4; i++)
		*each_rank[i] = room((size_t)app.ranks * sizeof(int));
	s.by_bucket = room((size_t)count * sizeof(int));
	s.received = room((size_t)s.capacity * sizeof(int));
	s.sorted = room((size_t)s.capacity * sizeof(int));
	int *keys = room((size_t)count * sizeof(int));
	generate(keys, first, count, range);

	double took = 0;
	for (int n = 1; n <= app.iterations; n++) {
		change(keys, first, count, range, n, app.iterations);
		MPI_Barrier(s.comm);
		double start = MPI_Wtime();
		bucket_sort(&s, keys, count);
		int fits = in_range(&s), all_fit;
		if (fits)
			counting_sort(s.sorted, s.received, s.mine, s.low, s.high);
		took += MPI_Wtime() - start;
		MPI_Allreduce(&fits, &all_fit, 1, MPI_INT, MPI_LAND, s.comm);
		ok = all_fit && verify(&s, keys, count) && ok;
	}
	took = longest(took, s.comm);
	ok = (!app.checked || compare(&app, &s, total, range)) && ok;
	char numbers[100];
	snprintf(numbers, sizeof(numbers), "%.2f Mkeys/s", (double)total * app.iterations / took * 1e-6);
	return app_end(&app, "sort", took, numbers, ok);
}
