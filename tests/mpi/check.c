/* What MPI promises, checked: messages of many sizes, collectives, one-sided memory, threads. Each rank checks all that it
 * receives; rank 0 prints "N checks, M failed" and the status is 0 if none did.
 *
 *   check [point|collective|onesided|threads]...   all without an argument
 */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;
static long checks, failed;

static void check(int ok, const char *what, long a, long b)
{
	checks++;
	if (ok)
		return;
	if (failed++ < 5)
		fprintf(stderr, "rank %d: %s (%ld, %ld)\n", rank, what, a, b);
}

static unsigned char byte_of(int from, int to, int tag, size_t i)
{
	return (unsigned char)(from * 131 + to * 31 + tag * 7 + i + (i >> 8) * 13);
}

static void fill(unsigned char *p, size_t n, int from, int to, int tag)
{
	for (size_t i = 0; i < n; i++)
		p[i] = byte_of(from, to, tag, i);
}

static int same(const unsigned char *p, size_t n, int from, int to, int tag)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != byte_of(from, to, tag, i))
			return 0;
	return 1;
}

static void *room(size_t n)
{
	void *p = malloc(n ? n : 1);
	if (!p)
		MPI_Abort(MPI_COMM_WORLD, 3);
	return p;
}

/* Sizes on both sides of what libraries send at once, in pieces, and by rendezvous. */
static const int SIZES[] = { 0, 1, 7, 8, 63, 64, 1000, 4096, 8191, 16384, 65536, 65537, 300000, 1 << 20, (1 << 20) + 13 };
enum { NSIZES = sizeof(SIZES) / sizeof(*SIZES), MOST = (1 << 20) + 13 };

static void point(void)
{
	unsigned char *out = room(MOST), *in = room(MOST);
	MPI_Status s;
	int n;
	/* Around the ring, blocking and not. */
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
	for (int i = 0; i < NSIZES; i++) {
		fill(out, (size_t)SIZES[i], rank, next, i);
		memset(in, 0, (size_t)SIZES[i]);
		MPI_Sendrecv(out, SIZES[i], MPI_BYTE, next, i, in, MOST, MPI_BYTE, before, i, MPI_COMM_WORLD, &s);
		MPI_Get_count(&s, MPI_BYTE, &n);
		check(n == SIZES[i] && same(in, (size_t)n, before, rank, i), "ring", SIZES[i], n);
	}
	/* Everybody to everybody, all at once, in an order that does not fit. */
	enum { EACH = 6, PIECE = 20100 };
	MPI_Request *r = room(sizeof(*r) * (size_t)ranks * EACH * 2);
	unsigned char *outs = room((size_t)ranks * EACH * PIECE), *ins = room((size_t)ranks * EACH * PIECE);
	int k = 0;
	for (int p = 0; p < ranks; p++)
		for (int j = EACH - 1; j >= 0; j--)
			MPI_Irecv(ins + ((size_t)p * EACH + j) * PIECE, PIECE, MPI_BYTE, p, j, MPI_COMM_WORLD, &r[k++]);
	for (int p = 0; p < ranks; p++)
		for (int j = 0; j < EACH; j++) {
			unsigned char *o = outs + ((size_t)p * EACH + j) * PIECE;
			size_t size = (size_t)(j * 3999 + rank);
			fill(o, size, rank, p, j);
			MPI_Isend(o, (int)size, MPI_BYTE, p, j, MPI_COMM_WORLD, &r[k++]);
		}
	MPI_Waitall(k, r, MPI_STATUSES_IGNORE);
	for (int p = 0; p < ranks; p++)
		for (int j = 0; j < EACH; j++)
			check(same(ins + ((size_t)p * EACH + j) * PIECE, (size_t)(j * 3999 + p), p, rank, j), "all to all", p, j);
	/* Any source: each of many short messages comes once, those of a sender in order. */
	enum { SHORT = 200 };
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		int *seen = calloc((size_t)ranks, sizeof(*seen)), word[2];
		for (int i = 0; i < SHORT * (ranks - 1); i++) {
			MPI_Recv(word, 2, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &s);
			check(word[0] == s.MPI_SOURCE && word[1] == seen[s.MPI_SOURCE]++ && s.MPI_TAG == word[1] % 10, "any source",
			      word[0], word[1]);
		}
		free(seen);
	} else {
		for (int i = 0; i < SHORT; i++) {
			int word[2] = { rank, i };
			MPI_Send(word, 2, MPI_INT, 0, i % 10, MPI_COMM_WORLD);
		}
	}
	MPI_Barrier(MPI_COMM_WORLD);
	/* A probe tells the size; a synchronous send ends with its receive. */
	if (ranks > 1 && rank < 2) {
		int other = 1 - rank;
		fill(out, 70000, rank, other, 9);
		MPI_Request q;
		MPI_Issend(out, 70000, MPI_BYTE, other, 9, MPI_COMM_WORLD, &q);
		MPI_Probe(other, 9, MPI_COMM_WORLD, &s);
		MPI_Get_count(&s, MPI_BYTE, &n);
		MPI_Recv(in, MOST, MPI_BYTE, other, 9, MPI_COMM_WORLD, &s);
		check(n == 70000 && same(in, 70000, other, rank, 9), "probe", n, 0);
		MPI_Wait(&q, MPI_STATUS_IGNORE);
	}
	/* Data with holes. */
	enum { COLUMNS = 64, ROWS = 500 };
	MPI_Datatype column;
	MPI_Type_vector(ROWS, 1, COLUMNS, MPI_INT, &column);
	MPI_Type_commit(&column);
	int *from = room(sizeof(int) * COLUMNS * ROWS), *to = calloc(COLUMNS * ROWS, sizeof(int));
	for (int i = 0; i < COLUMNS * ROWS; i++)
		from[i] = rank * 1000000 + i;
	MPI_Sendrecv(from + 3, 1, column, next, 77, to + 5, 1, column, before, 77, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	int right = 1;
	for (int i = 0; i < COLUMNS * ROWS; i++)
		right &= to[i] == (i % COLUMNS == 5 ? before * 1000000 + i - 2 : 0);
	check(right, "vector", 0, 0);
	MPI_Type_free(&column);
	free(from), free(to), free(outs), free(ins), free(r), free(out), free(in);
}

static void collective(void)
{
	for (int n = 1; n <= 100000; n *= 10) {
		int *a = room(sizeof(int) * (size_t)n * (size_t)ranks), *b = room(sizeof(int) * (size_t)n * (size_t)ranks);
		int root = n % ranks, ok = 1;
		for (int i = 0; i < n; i++)
			a[i] = rank == root ? i ^ n : -1;
		MPI_Bcast(a, n, MPI_INT, root, MPI_COMM_WORLD);
		for (int i = 0; i < n; i++)
			ok &= a[i] == (i ^ n);
		check(ok, "bcast", n, root);
		for (int i = 0; i < n; i++)
			a[i] = rank + i;
		MPI_Allreduce(a, b, n, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
		ok = 1;
		for (int i = 0; i < n; i++)
			ok &= b[i] == ranks * (ranks - 1) / 2 + i * ranks;
		check(ok, "allreduce", n, 0);
		MPI_Reduce(a, b, n, MPI_INT, MPI_MAX, root, MPI_COMM_WORLD);
		check(rank != root || (b[0] == ranks - 1 && b[n - 1] == ranks + n - 2), "reduce", n, root);
		MPI_Scan(a, b, n, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
		check(b[0] == rank * (rank + 1) / 2, "scan", n, b[0]);
		for (int i = 0; i < n * ranks; i++)
			a[i] = rank * 1000003 + i;
		MPI_Alltoall(a, n, MPI_INT, b, n, MPI_INT, MPI_COMM_WORLD);
		ok = 1;
		for (int p = 0; p < ranks; p++)
			for (int i = 0; i < n; i++)
				ok &= b[p * n + i] == p * 1000003 + rank * n + i;
		check(ok, "alltoall", n, 0);
		MPI_Allgather(a, n, MPI_INT, b, n, MPI_INT, MPI_COMM_WORLD);
		ok = 1;
		for (int p = 0; p < ranks; p++)
			ok &= b[p * n] == p * 1000003 && b[p * n + n - 1] == p * 1000003 + n - 1;
		check(ok, "allgather", n, 0);
		MPI_Scatter(a, n, MPI_INT, b, n, MPI_INT, root, MPI_COMM_WORLD);
		check(b[n - 1] == root * 1000003 + rank * n + n - 1, "scatter", n, root);
		MPI_Reduce_scatter_block(a, b, n, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
		check(b[0] == (ranks - 1) * 1000003 + rank * n, "reduce_scatter", n, b[0]);
		free(a), free(b);
	}
	MPI_Comm half;
	MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
	int mine = rank, sum = 0, want = 0;
	MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, half);
	for (int p = rank % 2; p < ranks; p += 2)
		want += p;
	check(sum == want, "split", sum, want);
	MPI_Comm_free(&half);
}

static void onesided(void)
{
	enum { WORDS = 40000 };
	for (int kind = 0; kind < 2; kind++) {
		long *memory;
		MPI_Win w;
		if (kind == 0) {
			MPI_Win_allocate(WORDS * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &w);
		} else {
			memory = room(WORDS * sizeof(long));
			MPI_Win_create(memory, WORDS * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &w);
		}
		int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
		long *local = room(WORDS * sizeof(long));
		for (int i = 0; i < WORDS; i++)
			memory[i] = 0, local[i] = rank * 100000L + i;
		/* Fences. */
		MPI_Win_fence(0, w);
		MPI_Put(local, WORDS / 2, MPI_LONG, next, 0, WORDS / 2, MPI_LONG, w);
		MPI_Win_fence(0, w);
		int ok = 1;
		for (int i = 0; i < WORDS / 2; i++)
			ok &= memory[i] == before * 100000L + i;
		check(ok, "put", kind, 0);
		MPI_Get(local + WORDS / 2, WORDS / 2, MPI_LONG, next, 0, WORDS / 2, MPI_LONG, w);
		MPI_Win_fence(0, w);
		ok = 1;
		for (int i = 0; i < WORDS / 2; i++)
			ok &= local[WORDS / 2 + i] == rank * 100000L + i;
		check(ok, "get", kind, 0);
		/* Locks: everybody adds to words of rank 0. */
		MPI_Win_fence(0, w);
		if (rank == 0)
			memory[0] = memory[1] = memory[2] = 0;
		MPI_Barrier(MPI_COMM_WORLD);
		enum { TURNS = 100 };
		long one = 1, got, last = -1;
		for (int i = 0; i < TURNS; i++) {
			MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, w);
			MPI_Fetch_and_op(&one, &got, MPI_LONG, 0, 0, MPI_SUM, w);
			MPI_Win_unlock(0, w);
			check(got > last, "fetch_and_op goes back", got, last);
			last = got;
			MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, w);
			MPI_Get(&got, 1, MPI_LONG, 0, 1, 1, MPI_LONG, w);
			MPI_Win_flush(0, w);
			got++;
			MPI_Put(&got, 1, MPI_LONG, 0, 1, 1, MPI_LONG, w);
			MPI_Win_unlock(0, w);
			MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, w);
			for (long expected = 0;; expected = got) {
				long desired = expected + 1;
				MPI_Compare_and_swap(&desired, &expected, &got, MPI_LONG, 0, 2, w);
				MPI_Win_flush(0, w);
				if (got == expected)
					break;
			}
			MPI_Win_unlock(0, w);
		}
		MPI_Barrier(MPI_COMM_WORLD);
		MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, w);
		long sums[3];
		MPI_Get(sums, 3, MPI_LONG, 0, 0, 3, MPI_LONG, w);
		MPI_Win_unlock(0, w);
		check(sums[0] == TURNS * (long)ranks, "fetch_and_op", sums[0], kind);
		check(sums[1] == TURNS * (long)ranks, "exclusive lock", sums[1], kind);
		check(sums[2] == TURNS * (long)ranks, "compare_and_swap", sums[2], kind);
		/* Post, start, complete, wait: with the neighbours. */
		if (ranks > 1) {
			MPI_Group all, to, from;
			MPI_Comm_group(MPI_COMM_WORLD, &all);
			MPI_Group_incl(all, 1, &next, &to);
			MPI_Group_incl(all, 1, &before, &from);
			MPI_Win_post(from, 0, w);
			MPI_Win_start(to, 0, w);
			long word = 42 + rank;
			MPI_Put(&word, 1, MPI_LONG, next, 100, 1, MPI_LONG, w);
			MPI_Accumulate(&word, 1, MPI_LONG, next, 101, 1, MPI_LONG, MPI_SUM, w);
			MPI_Win_complete(w);
			MPI_Win_wait(w);
			check(memory[100] == 42 + before && memory[101] == before * 100001L + 143, "post and start", memory[100],
			      memory[101]);
			MPI_Group_free(&all), MPI_Group_free(&to), MPI_Group_free(&from);
		}
		MPI_Win_free(&w);
		if (kind == 1)
			free(memory);
		free(local);
	}
}

enum { THREADS = 3, EACH_THREAD = 40 };

static void *talk(void *arg)
{
	int t = (int)(long)arg, next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
	unsigned char *out = room(30000), *in = room(30000);
	long bad = 0;
	for (int i = 0; i < EACH_THREAD; i++) {
		int n = (i * 379) % 30000;
		fill(out, (size_t)n, rank, next, t * 1000 + i);
		MPI_Sendrecv(out, n, MPI_BYTE, next, t, in, 30000, MPI_BYTE, before, t, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		bad += !same(in, (size_t)n, before, rank, t * 1000 + i);
	}
	free(out), free(in);
	return (void *)bad;
}

static void threads(void)
{
	int level;
	MPI_Query_thread(&level);
	if (level < MPI_THREAD_MULTIPLE) {
		check(0, "MPI_THREAD_MULTIPLE is not provided", level, 0);
		return;
	}
	pthread_t t[THREADS];
	for (long i = 0; i < THREADS; i++)
		if (pthread_create(&t[i], NULL, talk, (void *)i))
			MPI_Abort(MPI_COMM_WORLD, 4);
	for (int i = 0; i < THREADS; i++) {
		void *bad;
		pthread_join(t[i], &bad);
		check(bad == NULL, "threads", i, (long)bad);
	}
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} parts[] = { { "point", point }, { "collective", collective }, { "onesided", onesided }, { "threads", threads } };
	int level;
	/* The launcher reads a pipe: each part is seen as it ends. */
	setvbuf(stdout, NULL, _IOLBF, 0);
	MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (size_t p = 0; p < sizeof(parts) / sizeof(*parts); p++) {
		int wanted = argc < 2;
		for (int i = 1; i < argc; i++)
			wanted |= !strcmp(argv[i], parts[p].name);
		if (!wanted)
			continue;
		double begin = MPI_Wtime();
		parts[p].run();
		MPI_Barrier(MPI_COMM_WORLD);
		if (rank == 0)
			printf("%s: %.2f s\n", parts[p].name, MPI_Wtime() - begin);
	}
	long mine[2] = { checks, failed }, all[2];
	MPI_Reduce(mine, all, 2, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%d ranks: %ld checks, %ld failed\n", ranks, all[0], all[1]);
	int bad = failed != 0, any;
	MPI_Allreduce(&bad, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
	MPI_Finalize();
	return any;
}
