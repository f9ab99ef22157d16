/*
 * Many processes on few processors: Sends of 8 bytes through one shared receive queue and one completion queue each.
 *
 *   many all-to-all PROCESSES MESSAGES CPU...   every process sends MESSAGES to every other
 *   many fan-in INITIATORS MESSAGES CPU...      every initiator sends MESSAGES to one receiver (on the last CPU)
 *
 * prints thousands of messages a second, all together. A process that finds no completion gives its processor to
 * another (sched_yield). The processes part before any opens the device; process I runs on the CPU at I modulo
 * their number.
 */
#define _GNU_SOURCE
#include "clock.h"
#include "verbs.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX = 33, OUTSTANDING = 8, RECEIVES = 1024, BYTES = 8 };

static struct meeting {
	struct address address[MAX][MAX]; /* of the QP that the first has for the second */
	volatile int arrived[3];
	volatile uint64_t begun, done[MAX];
} *meeting;

static struct ibv_cq *cq;
static struct ibv_srq *srq;
static struct ibv_mr *mr;
static struct ibv_qp *qps[MAX];
static int outstanding[MAX], left[MAX];

/* Everyone waits here for everyone, asleep. */
static void barrier(int which, int count)
{
	__sync_fetch_and_add(&meeting->arrived[which], 1);
	while (meeting->arrived[which] < count)
		usleep(500);
}

static void post_receive(void)
{
	struct ibv_sge sge = { (uintptr_t)mr->addr + 64, BYTES, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1, .wr_id = MAX }, *bad;
	need("ibv_post_srq_recv", ibv_post_srq_recv(srq, &wr, &bad));
}

static void post_send(int peer)
{
	struct ibv_sge sge = { (uintptr_t)mr->addr, BYTES, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = (uint64_t)peer, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	need("ibv_post_send", ibv_post_send(qps[peer], &wr, &bad));
	outstanding[peer]++;
	left[peer]--;
}

/* Takes completions; how many messages came in and how many sends ended. */
static int take(uint64_t *received, uint64_t *ended)
{
	struct ibv_wc wc[16];
	int count = ibv_poll_cq(cq, 16, wc);
	if (count < 0)
		exit((fprintf(stderr, "many: ibv_poll_cq: %d\n", count), 1));
	for (int i = 0; i < count; i++) {
		if (wc[i].status != IBV_WC_SUCCESS)
			exit((fprintf(stderr, "many: completion: %s\n", ibv_wc_status_str(wc[i].status)), 1));
		if (wc[i].wr_id == MAX) {
			post_receive();
			++*received;
		} else {
			outstanding[wc[i].wr_id]--;
			++*ended;
		}
	}
	return count;
}

static void work(int self, int processes, int fan_in, int messages)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_srq_init_attr init = { .attr = { .max_wr = RECEIVES, .max_sge = 1 } };
	cq = ibv_create_cq(context, 2 * RECEIVES, NULL, NULL, 0);
	srq = pd && cq ? ibv_create_srq(pd, &init) : NULL;
	mr = srq ? ibv_reg_mr(pd, heap(4096), 4096, REMOTE_ACCESS) : NULL;
	if (!mr)
		die("set-up");
	for (int i = 0; i < RECEIVES; i++)
		post_receive();
	uint64_t to_send = 0, to_receive = 0, received = 0, ended = 0;
	for (int peer = 0; peer < processes; peer++) {
		if (peer == self || (fan_in && peer && self))
			continue;
		qps[peer] = make_qp(pd, cq, cq, srq, 2 * OUTSTANDING);
		meeting->address[self][peer] = address_of(qps[peer], NULL);
		left[peer] = fan_in && !self ? 0 : messages;
		to_send += (uint64_t)left[peer];
		to_receive += fan_in && self ? 0 : (uint64_t)messages;
	}
	barrier(0, processes);
	for (int peer = 0; peer < processes; peer++)
		if (qps[peer])
			connect_qp(qps[peer], meeting->address[peer][self]);
	barrier(1, processes);
	__sync_val_compare_and_swap(&meeting->begun, 0, now_ns());
	while (ended < to_send || received < to_receive) {
		int moved = 0;
		for (int peer = 0; peer < processes; peer++)
			for (; left[peer] && outstanding[peer] < OUTSTANDING; moved++)
				post_send(peer);
		while (take(&received, &ended))
			moved++;
		if (!moved)
			sched_yield();
	}
	meeting->done[self] = now_ns();
	barrier(2, processes); /* nobody's QPs go while others still send to them */
}

int main(int argc, char **argv)
{
	int processes = argc > 4 ? atoi(argv[2]) : 0, messages = argc > 4 ? atoi(argv[3]) : 0, cpus = argc - 4;
	int fan_in = argc > 4 && !strcmp(argv[1], "fan-in");
	processes += fan_in;
	if (processes < 2 || processes > MAX) {
		fprintf(stderr, "many: see the head of many.c\n");
		return 2;
	}
	meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (meeting == MAP_FAILED)
		die("mmap");
	pid_t children[MAX];
	for (int i = 0; i < processes; i++) {
		children[i] = fork();
		if (children[i] < 0)
			die("fork");
		if (!children[i]) {
			prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
			pin(atoi(argv[4 + (fan_in && !i ? cpus - 1 : i % cpus)]));
			work(i, processes, fan_in, messages);
			_exit(0);
		}
	}
	for (int left_to_end = processes; left_to_end; left_to_end--) {
		int status;
		pid_t ended = wait(&status);
		for (int i = 0; i < processes; i++)
			if (children[i] == ended)
				children[i] = 0;
		if (ended > 0 && WIFEXITED(status) && !WEXITSTATUS(status))
			continue;
		for (int i = 0; i < processes; i++) /* they wait for the one that failed */
			if (children[i])
				kill(children[i], SIGKILL);
		return 1;
	}
	uint64_t last = 0;
	for (int i = 0; i < processes; i++)
		last = meeting->done[i] > last ? meeting->done[i] : last;
	double total = (double)messages * (fan_in ? processes - 1 : (double)processes * (processes - 1));
	printf("%.3f\n", total * 1e6 / (double)(last - meeting->begun));
	return 0;
}
