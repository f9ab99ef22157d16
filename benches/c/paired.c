/*
 * Two processes with one connected pair of RC QPs.
 *
 *   paired send N CPU CPU         ns of half a round trip of Sends of 8 bytes, inline, both sides polling
 *   paired write-imm N CPU CPU    the same of RDMA Writes with immediate
 *   paired poll N CPU CPU         the same of Sends, both asleep in poll(2) on the descriptor of a completion channel
 *   paired idle SECONDS CPU CPU   ms of processor time that a process takes meanwhile: both sleep
 *
 * The processes part before either opens the device.
 */
#define _GNU_SOURCE
#include "clock.h"
#include "verbs.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CLIENT, SERVER, DEPTH = 64, BYTES = 8 };

static struct meeting {
	struct address address[2];
	volatile int arrived[3];
} *meeting;

static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;

/* Both wait here for each other, asleep. */
static void barrier(int which)
{
	__sync_fetch_and_add(&meeting->arrived[which], 1);
	while (meeting->arrived[which] < 2)
		usleep(500);
}

static void post_receive(void)
{
	struct ibv_sge sge = { (uintptr_t)mr->addr + 64, BYTES, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	need("ibv_post_recv", ibv_post_recv(qp, &wr, &bad));
}

/* Every 32nd is signalled, so that what is polled for is mostly what comes. */
static void post(struct address to, int imm, uint64_t n)
{
	struct ibv_sge sge = { (uintptr_t)mr->addr, BYTES, mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = imm ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND,
		.send_flags = IBV_SEND_INLINE | (n % 32 ? 0 : IBV_SEND_SIGNALED),
		.wr.rdma = { .remote_addr = to.buffer + 128, .rkey = to.rkey },
	}, *bad;
	need("ibv_post_send", ibv_post_send(qp, &wr, &bad));
}

/* Takes what is there; true if a message is. Completions of what was sent pass by. */
static int take(void)
{
	struct ibv_wc wc;
	int got = ibv_poll_cq(cq, 1, &wc);
	if (got < 0 || (got && wc.status != IBV_WC_SUCCESS)) {
		fprintf(stderr, "completion: %s\n", got < 0 ? "none" : ibv_wc_status_str(wc.status));
		exit(1);
	}
	if (!got || !(wc.opcode & IBV_WC_RECV))
		return got ? take() : 0;
	post_receive();
	return 1;
}

/* Until a message is there. */
static void receive(void)
{
	while (!take()) {
		if (!channel)
			continue;
		struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
		struct ibv_cq *ready;
		void *context;
		if (poll(&fd, 1, -1) != 1 || ibv_get_cq_event(channel, &ready, &context))
			die("no event");
		ibv_ack_cq_events(ready, 1);
		need("ibv_req_notify_cq", ibv_req_notify_cq(cq, 0));
	}
}

static void pingpong(int role, struct address to, int imm, size_t count)
{
	double *samples = calloc(count, sizeof *samples);
	uint64_t cost = clock_cost_ns();
	for (size_t i = 0; i < count; i++) {
		if (role == SERVER) {
			receive();
			post(to, imm, i);
			continue;
		}
		uint64_t begin = now_ns();
		post(to, imm, i);
		receive();
		samples[i] = (double)(now_ns() - begin - cost) / 2;
	}
	if (role == CLIENT)
		printf("%.3f\n", median(samples, count));
}

static void idle(int role, unsigned seconds)
{
	usleep(200000); /* let what connecting has started come to rest */
	double before = cpu_ms();
	sleep(seconds);
	if (role == CLIENT)
		printf("%.4f\n", cpu_ms() - before);
}

int main(int argc, char **argv)
{
	if (argc != 5) {
		fprintf(stderr, "paired: see the head of paired.c\n");
		return 2;
	}
	meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (meeting == MAP_FAILED)
		die("mmap");
	pid_t child = fork();
	if (child < 0)
		die("fork");
	int role = child ? CLIENT : SERVER;
	if (role == SERVER)
		prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	pin(atoi(argv[role == CLIENT ? 3 : 4]));

	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	channel = !strcmp(argv[1], "poll") ? ibv_create_comp_channel(context) : NULL;
	cq = ibv_create_cq(context, 4 * DEPTH, NULL, channel, 0);
	if (channel && cq)
		need("ibv_req_notify_cq", ibv_req_notify_cq(cq, 0));
	mr = pd && cq ? ibv_reg_mr(pd, heap(4096), 4096, REMOTE_ACCESS) : NULL;
	if (!mr)
		die("set-up");
	qp = make_qp(pd, cq, cq, NULL, DEPTH);
	for (int i = 0; i < DEPTH / 2; i++)
		post_receive();
	meeting->address[role] = address_of(qp, mr);
	barrier(0);
	struct address to = meeting->address[!role];
	connect_qp(qp, to);
	barrier(1);
	if (!strcmp(argv[1], "idle"))
		idle(role, (unsigned)atoi(argv[2]));
	else
		pingpong(role, to, !strcmp(argv[1], "write-imm"), strtoul(argv[2], NULL, 10));
	fflush(stdout);
	barrier(2); /* nobody's QP goes while the other still sends to it */
	if (role == CLIENT)
		waitpid(child, NULL, 0);
	return 0;
}
