/*
 * The libraries above ACP's basic layer, as their users call them.
 *
 *   containers channel SIZE:COUNT...  ns of half a ping-pong over two channels, for each size
 *   containers malloc SIZE:COUNT...   ns of acp_malloc and of acp_free, of rank 0's own memory, then of rank 1's, for each size
 *   containers map SIZE:COUNT         ns of an insert, a retrieve and a find of 8 B keys with values of SIZE in a map of rank 1's
 *   containers push SIZE:COUNT        ns of acp_push_back_vector on a vector of rank 1's
 *   containers keys 8:COUNT           millions of inserts a second of COUNT different keys of 8 B by all ranks into a map over all of them
 *
 * ns: median, mean and 99th percentile. Rank 0 works and prints; in map, push and malloc the others sleep in acp_sync. Ranks run where
 * ACP_CPUS says.
 */
#define _GNU_SOURCE
#include "ranks_of_acp.h"
#include "samples.h"

enum { REGISTERED = 32 << 20 };

static acp_ga_t keys; /* registered memory of this rank */
static uint64_t *key; /* there */

static void *registered(size_t size, acp_ga_t *ga)
{
	void *memory;
	if (posix_memalign(&memory, 4096, size))
		die("memory");
	memset(memory, 0, size);
	acp_atkey_t atkey = acp_register_memory(memory, size, 0);
	*ga = acp_query_ga(atkey, memory);
	if (*ga == ACP_GA_NULL)
		die("acp_register_memory");
	return memory;
}

/* ---- Channels ---- */

static acp_ch_t to, from;
static char *message;

static void ping(size_t size)
{
	if (acp_send_ch(to, message, size) || acp_recv_ch(from, message, size) != (int)size)
		die("a channel");
}

static void echo(size_t size)
{
	if (acp_recv_ch(from, message, size) != (int)size || acp_send_ch(to, message, size))
		die("a channel");
}

static void channel(size_t size, size_t count)
{
	size_t batches = (count + PER_BATCH - 1) / PER_BATCH;
	double *samples = calloc(batches, sizeof *samples), sum = 0;
	message = calloc(1, size + 1);
	acp_ch_t out = acp_create_ch(0, 1), back = acp_create_ch(1, 0);
	if (!out || !back)
		die("acp_create_ch");
	to = rank == 0 ? out : back;
	from = rank == 0 ? back : out;
	for (size_t i = 0; i <= batches; i++) { /* the first is the warm-up */
		uint64_t begin = now_ns();
		for (size_t j = 0; j < PER_BATCH; j++)
			rank == 0 ? ping(size) : echo(size);
		if (i > 0)
			sum += samples[i - 1] = (double)(now_ns() - begin) / PER_BATCH / 2;
	}
	double middle = median(samples, batches);
	if (rank == 0)
		printf("%.1f %.1f %.1f ", middle, sum / (double)batches, samples[batches * 99 / 100]);
	free(samples);
	/* Both ends of one, then of the other. */
	if (acp_free_ch(out) || acp_free_ch(back))
		die("acp_free_ch");
	free(message);
}

/* ---- Allocation ---- */

static void show(double *samples, size_t batches)
{
	double sum = 0, middle = median(samples, batches);
	for (size_t i = 0; i < batches; i++)
		sum += samples[i];
	printf("%.1f %.1f %.1f ", middle, sum / (double)batches, samples[batches * 99 / 100]);
}

static void allocate(size_t size, size_t count, int of)
{
	size_t batches = (count + PER_BATCH - 1) / PER_BATCH;
	double *got = calloc(batches, sizeof *got), *given = calloc(batches, sizeof *given);
	acp_ga_t blocks[PER_BATCH];
	for (size_t i = 0; i <= batches; i++) {
		uint64_t begin = now_ns();
		for (size_t j = 0; j < PER_BATCH; j++)
			blocks[j] = acp_malloc(size, of);
		uint64_t middle = now_ns();
		for (size_t j = 0; j < PER_BATCH; j++) {
			if (blocks[j] == ACP_GA_NULL)
				die("acp_malloc");
			acp_free(blocks[j]);
		}
		if (i > 0) {
			got[i - 1] = (double)(middle - begin) / PER_BATCH;
			given[i - 1] = (double)(now_ns() - middle) / PER_BATCH;
		}
	}
	show(got, batches);
	show(given, batches);
	free(got);
	free(given);
}

/* ---- Containers ---- */

static acp_map_t map;
static acp_vector_t vector;
static uint64_t next;

/* Different numbers that look like any. */
static uint64_t scatter(uint64_t number)
{
	return (number + 1) * 0x9e3779b97f4a7c15u;
}

static acp_pair_t numbered(size_t size)
{
	*key = scatter(next++);
	acp_pair_t pair = { { keys, 8 }, { keys + 8, size } };
	return pair;
}

static void insert(size_t size)
{
	if (acp_insert_map(map, numbered(size)) != 1)
		die("acp_insert_map");
}

static void retrieve(size_t size)
{
	if (acp_retrieve_map(map, numbered(size)) != size)
		die("acp_retrieve_map");
}

static void find(size_t size)
{
	if (acp_find_map(map, numbered(size).first).elem == ACP_GA_NULL)
		die("acp_find_map");
}

static void push(size_t size)
{
	acp_push_back_vector(vector, keys, size);
}

static void in_map(size_t size, size_t count)
{
	int one = 1 % ranks;
	map = acp_create_map(1, &one, 1 << 16, 0);
	if (map.ga == ACP_GA_NULL)
		die("acp_create_map");
	void (*const kinds[])(size_t) = { insert, retrieve, find };
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		next = 0;
		measure(kinds[i], size, count);
	}
	acp_destroy_map(map);
}

static void on_vector(size_t size, size_t count)
{
	vector = acp_create_vector(0, 1 % ranks);
	if (vector.ga == ACP_GA_NULL)
		die("acp_create_vector");
	measure(push, size, count);
	if (acp_size_vector(vector) < size * count)
		die("acp_push_back_vector");
	acp_destroy_vector(vector);
}

/* All ranks, each with its share of the keys; rank 0 counts them at the end. */
static void by_all(size_t count)
{
	acp_map_t *starter = acp_query_address(acp_query_starter_ga(rank));
	if (rank == 0) {
		int *all = calloc((size_t)ranks, sizeof *all);
		for (int i = 0; i < ranks; i++)
			all[i] = i;
		*starter = acp_create_map(ranks, all, 1 << 18, 0);
		if (starter->ga == ACP_GA_NULL)
			die("acp_create_map");
		free(all);
	}
	synchronize(0);
	complete(acp_copy(acp_query_starter_ga(rank) + 64, acp_query_starter_ga(0), sizeof map, ACP_HANDLE_NULL));
	memcpy(&map, (char *)starter + 64, sizeof map);
	synchronize(0);
	uint64_t begin = now_ns();
	size_t end = count / (size_t)ranks * ((size_t)rank + 1);
	for (next = count / (size_t)ranks * (size_t)rank; next < end;)
		insert(8);
	synchronize(0);
	double took = (double)(now_ns() - begin) / 1e9;
	if (rank == 0) {
		size_t made = acp_size_map(map), expected = count / (size_t)ranks * (size_t)ranks;
		if (made != expected)
			die("keys are missing");
		printf("%.6f ", (double)expected / took / 1e6);
		acp_destroy_map(map);
	}
	synchronize(0);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	pin_rank();
	if (acp_init(&argc, &argv))
		return 1;
	who_am_i();
	key = registered(REGISTERED, &keys);
	for (int i = 2; i < argc; i++) {
		size_t size, count;
		if (sscanf(argv[i], "%zu:%zu", &size, &count) != 2 || size > REGISTERED - 8)
			die(argv[i]);
		synchronize(0);
		if (!strcmp(mode, "channel")) {
			channel(size, count);
		} else if (!strcmp(mode, "keys")) {
			by_all(count);
		} else if (rank == 0) {
			if (!strcmp(mode, "malloc"))
				allocate(size, count, 0), allocate(size, count, 1 % ranks);
			else if (!strcmp(mode, "map"))
				in_map(size, count);
			else if (!strcmp(mode, "push"))
				on_vector(size, count);
			else
				die("see the head of containers.c");
		}
		synchronize(0);
	}
	if (rank == 0)
		printf("\n");
	fflush(stdout);
	return acp_finalize() ? 1 : 0;
}
