/*
 * Initiators against the memory of an owner who sleeps: what one-sided operations cost from posting to their
 * completion, and what two initiators get out of one word.
 *
 *   onesided write|read|fetch-add|compare-swap OWNER_CPU CPU SIZE:COUNT[:GAP]...  ns of an operation, for each size
 *   onesided write-tail|... OWNER_CPU CPU SIZE:COUNT...              median, mean and 99th percentile of batches of 20
 *   onesided write-bw|read-bw OWNER_CPU CPU SIZE:COUNT...            MiB/s, for each size
 *   onesided one-word|distinct-words OWNER_CPU CPU SECONDS CPU...    millions of fetch-and-adds a second
 *
 * The processes part before any of them opens the device. Latencies: one request at a time, batches of
 * batch_of(SIZE), their median; with a gap, one by one, GAP microseconds apart. Bandwidth: windows of 64 requests, then all completions, as the OSU benchmarks do.
 * Fetch-and-adds: lists of 16 requests, each signalled; an initiator on each CPU named; at the end the words must
 * hold the sum.
 */
#define _GNU_SOURCE
#include "samples.h"
#include "verbs.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_INITIATORS = 8, WINDOW = 64, LIST = 16, WORD_STRIDE = 256 };

static struct meeting {
	struct address owner[MAX_INITIATORS], initiator[MAX_INITIATORS];
	volatile int published[MAX_INITIATORS], connected, ready, stop, failed;
	uint64_t added[MAX_INITIATORS];
	double rate[MAX_INITIATORS];
} *meeting;

static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static struct address remote;
static enum ibv_wr_opcode opcode;

static int finished;

/* At exit: tells the others not to wait for this process. */
static void note_failure(void)
{
	if (!finished)
		meeting->failed = 1;
}

static void until(volatile int *flag, int value)
{
	while (*flag != value) {
		if (meeting->failed)
			exit(1);
		usleep(200);
	}
	__sync_synchronize();
}

/* A device, a PD, a CQ and `length` bytes registered. */
static struct ibv_pd *open_all(size_t length)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 2 * WINDOW, NULL, NULL, 0);
	mr = pd && cq ? ibv_reg_mr(pd, heap(length), length, REMOTE_ACCESS) : NULL;
	if (!mr)
		die("set-up");
	return pd;
}

static void post(size_t size, size_t count, uint64_t at)
{
	struct ibv_sge sge = { (uintptr_t)mr->addr, (uint32_t)size, mr->lkey };
	struct ibv_send_wr list[LIST], *bad;
	for (size_t i = 0; i < count; i++) {
		list[i] = (struct ibv_send_wr){ .next = i + 1 < count ? &list[i + 1] : NULL, .opcode = opcode,
						.sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED };
		if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
			list[i].wr.atomic.remote_addr = at;
			list[i].wr.atomic.rkey = remote.rkey;
			list[i].wr.atomic.compare_add = opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
			list[i].wr.atomic.swap = 1;
		} else {
			list[i].wr.rdma.remote_addr = at;
			list[i].wr.rdma.rkey = remote.rkey;
		}
	}
	need("ibv_post_send", ibv_post_send(qp, list, &bad));
}

static void once(size_t size)
{
	post(size, 1, remote.buffer);
	await(cq, 1);
}

static double latency(size_t size, size_t count)
{
	size_t per_batch = batch_of(size), batches = (count + per_batch - 1) / per_batch;
	double *samples = calloc(batches, sizeof *samples);
	for (size_t i = 0; i < per_batch; i++) /* warm-up */
		once(size);
	for (size_t i = 0; i < batches; i++) {
		uint64_t begin = now_ns();
		for (size_t j = 0; j < per_batch; j++)
			once(size);
		samples[i] = (double)(now_ns() - begin) / (double)per_batch;
	}
	double result = median(samples, batches);
	free(samples);
	return result;
}

/* Each operation by itself, after a pause in which whoever serves it may fall asleep. */
static double rare(size_t size, size_t count, size_t gap_us)
{
	double *samples = calloc(count, sizeof *samples);
	uint64_t cost = clock_cost_ns();
	for (size_t i = 0; i < count; i++) {
		for (uint64_t rest = now_ns() + gap_us * 1000; now_ns() < rest;)
			;
		uint64_t begin = now_ns();
		once(size);
		samples[i] = (double)(now_ns() - begin - cost);
	}
	double result = median(samples, count);
	free(samples);
	return result;
}

static double bandwidth(size_t size, size_t count)
{
	size_t windows = (count + WINDOW - 1) / WINDOW;
	uint64_t begin = 0;
	for (size_t i = 0; i <= windows; i++) {
		if (i == 1) /* the first was the warm-up */
			begin = now_ns();
		for (size_t j = 0; j < WINDOW; j++)
			post(size, 1, remote.buffer);
		await(cq, WINDOW);
	}
	return (double)(windows * WINDOW * size) / 1048576.0 / ((double)(now_ns() - begin) / 1e9);
}

/* Adds until the owner says stop. */
static void add(int self, int distinct)
{
	uint64_t at = remote.buffer + (distinct ? (uint64_t)self * WORD_STRIDE : 0), done = 0;
	__sync_fetch_and_add(&meeting->ready, 1);
	while (meeting->ready >= 0)
		; /* the owner sets it below zero to start all at once */
	uint64_t begin = now_ns();
	while (!meeting->stop) {
		post(8, LIST, at);
		await(cq, LIST);
		done += LIST;
	}
	meeting->rate[self] = (double)done * 1e3 / (double)(now_ns() - begin);
	meeting->added[self] = done;
}

static void initiate(int self, const char *mode, size_t longest, int sizes, char **list)
{
	struct ibv_pd *pd = open_all(longest);
	qp = make_qp(pd, cq, cq, NULL, 2 * WINDOW);
	meeting->initiator[self] = address_of(qp, mr);
	__sync_synchronize();
	meeting->published[self] = 1;
	until(&meeting->connected, 1);
	remote = meeting->owner[self];
	connect_qp(qp, remote);
	opcode = *mode == 'w'	? IBV_WR_RDMA_WRITE
		 : *mode == 'r' ? IBV_WR_RDMA_READ
		 : *mode == 'c' ? IBV_WR_ATOMIC_CMP_AND_SWP
				: IBV_WR_ATOMIC_FETCH_AND_ADD;
	if (!strcmp(mode, "one-word") || !strcmp(mode, "distinct-words")) {
		add(self, *mode == 'd');
		return;
	}
	for (int i = 0; i < sizes; i++) {
		size_t size, count, gap_us = 0;
		sscanf(list[i], "%zu:%zu:%zu", &size, &count, &gap_us);
		if (strstr(mode, "-tail"))
			measure(once, size, count);
		else
			printf("%.3f ", strstr(mode, "-bw") ? bandwidth(size, count)
					: gap_us	    ? rare(size, count, gap_us)
							    : latency(size, count));
	}
	printf("\n");
	fflush(stdout);
}

/* Lets all initiators add for a while; the words must then hold what they say they added. */
static void referee(int initiators, int distinct, double seconds)
{
	volatile uint64_t *words = mr->addr;
	int place = WORD_STRIDE / 8;
	uint64_t before = 0, after = 0, added = 0;
	double rate = 0;
	until(&meeting->ready, initiators);
	for (int i = 0; i < initiators; i++)
		before += words[i * place];
	meeting->ready = -1;
	usleep((useconds_t)(seconds * 1e6));
	meeting->stop = 1;
	while (wait(NULL) > 0)
		;
	for (int i = 0; i < initiators; i++) {
		after += words[i * place];
		added += meeting->added[i];
		rate += meeting->rate[i];
		uint64_t untouched = words[MAX_INITIATORS * place];
		if (!meeting->added[i] || (distinct && words[i * place] - untouched != meeting->added[i]))
			exit((fprintf(stderr, "onesided: initiator %d's sum is wrong\n", i), 1));
	}
	if (after - before != added)
		exit((fprintf(stderr, "onesided: %lu adds, but the words say otherwise\n", (unsigned long)added), 1));
	printf("%.3f\n", rate);
}

int main(int argc, char **argv)
{
	if (argc < 5) {
		fprintf(stderr, "onesided: see the head of onesided.c\n");
		return 2;
	}
	const char *mode = argv[1];
	int adds = !strcmp(mode, "one-word") || !strcmp(mode, "distinct-words");
	int initiators = adds ? argc - 4 : 1, cpus[MAX_INITIATORS] = { atoi(argv[3]) };
	for (int i = 1; i < initiators && i < MAX_INITIATORS; i++)
		cpus[i] = atoi(argv[4 + i]);
	size_t longest = (MAX_INITIATORS + 1) * WORD_STRIDE;
	for (int i = 4; !adds && i < argc; i++)
		longest = strtoul(argv[i], NULL, 10) > longest ? strtoul(argv[i], NULL, 10) : longest;

	meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (meeting == MAP_FAILED || initiators > MAX_INITIATORS)
		die("mmap");
	atexit(note_failure);
	for (int i = 0; i < initiators; i++) {
		pid_t child = fork();
		if (child < 0)
			die("fork");
		if (!child) {
			prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
			pin(cpus[i]);
			initiate(i, mode, longest, argc - 4, argv + 4);
			finished = 1;
			return 0;
		}
	}
	pin(atoi(argv[2]));
	struct ibv_pd *pd = open_all(longest);
	for (int i = 0; i < initiators; i++) {
		struct ibv_qp *mine = make_qp(pd, cq, cq, NULL, WINDOW);
		until(&meeting->published[i], 1);
		meeting->owner[i] = address_of(mine, mr);
		connect_qp(mine, meeting->initiator[i]);
	}
	__sync_synchronize();
	meeting->connected = 1;
	if (adds) {
		referee(initiators, *mode == 'd', atof(argv[4]));
		finished = 1;
		return 0;
	}
	int status = 0;
	wait(&status);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
