/*
 * One RC QP connected to itself: what one operation costs from posting to its completion, in one thread.
 *
 *   looped OPERATION BATCHES OPERATIONS_PER_BATCH
 *
 * prints the median over the batches of ns per operation. The batch has one reading of the clock at either end, so the
 * clock costs nothing. Messages are 8 bytes; each is posted signalled and polled for before the next.
 *
 * The operation `packet` is for VERVAIN_LINK=roce: send_packet is one packet, to be counted alone, as is receive_packet in
 * `packet-to-poll`; and `message` for VERVAIN_LINK=window, with send_packet and poll_received. `write-train`, `read-train` and `fetch-add-train` are
 * as many requests as may be on the wire at once, posted one by one by post_train.
 */
#define _GNU_SOURCE
#include "clock.h"
#include "verbs.h"

enum { LENGTH = 8, REMOTE = 64, RECEIVED = 128, TRAIN = 16, SEEN_TO_POLL = 8 };

static struct ibv_qp *qp;
static struct ibv_qp_ex *qpx;
static struct ibv_cq *send_cq, *recv_cq;
static struct ibv_mr *mr;
static char *memory;

/* ibv_post_send and ibv_poll_cq of one request. */
static inline void post(enum ibv_wr_opcode opcode, unsigned flags)
{
	struct ibv_sge sge = { (uintptr_t)memory, LENGTH, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode,
				  .send_flags = IBV_SEND_SIGNALED | flags }, *bad;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = (uintptr_t)memory + REMOTE;
		wr.wr.atomic.rkey = mr->rkey;
		wr.wr.atomic.compare_add = 1;
		wr.wr.atomic.swap = 1;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)memory + REMOTE;
		wr.wr.rdma.rkey = mr->rkey;
	}
	need("ibv_post_send", ibv_post_send(qp, &wr, &bad));
	await(send_cq, 1);
}

/* What the program itself does for a write, around functions that do nothing: to be taken off a count of instructions. */
static __attribute__((noinline)) int post_nothing(struct ibv_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	__asm__ volatile("" : : "r"(q), "r"(wr), "r"(bad) : "memory");
	return 0;
}

static __attribute__((noinline)) int poll_nothing(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	__asm__ volatile("" : : "r"(cq), "r"(n), "r"(wc) : "memory");
	wc->status = IBV_WC_SUCCESS;
	return 1;
}

static void nothing(void)
{
	struct ibv_sge sge = { (uintptr_t)memory, LENGTH, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_wc wc;
	wr.wr.rdma.remote_addr = (uintptr_t)memory + REMOTE;
	wr.wr.rdma.rkey = mr->rkey;
	if (post_nothing(qp, &wr, &bad))
		die("post");
	while (!poll_nothing(send_cq, 1, &wc))
		;
	if (wc.status != IBV_WC_SUCCESS)
		die("completion");
}

static void write_8(void) { post(IBV_WR_RDMA_WRITE, 0); }
static void write_inline(void) { post(IBV_WR_RDMA_WRITE, IBV_SEND_INLINE); }
static void read_8(void) { post(IBV_WR_RDMA_READ, 0); }
static void fetch_add(void) { post(IBV_WR_ATOMIC_FETCH_AND_ADD, 0); }
static void compare_swap(void) { post(IBV_WR_ATOMIC_CMP_AND_SWP, 0); }

static void wr_write_inline(void)
{
	ibv_wr_start(qpx);
	qpx->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(qpx, mr->rkey, (uintptr_t)memory + REMOTE);
	ibv_wr_set_inline_data(qpx, memory, LENGTH);
	need("ibv_wr_complete", ibv_wr_complete(qpx));
	await(send_cq, 1);
}

static void send_recv(void)
{
	struct ibv_sge sge = { (uintptr_t)memory + RECEIVED, LENGTH, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	need("ibv_post_recv", ibv_post_recv(qp, &wr, &bad));
	post(IBV_WR_SEND, 0);
	await(recv_cq, 1);
}

/* Not arguments, for this function and others that are counted by their names: of one with arguments compilers make copies by another
 * name. */
static struct ibv_wc counted_wc;

static __attribute__((noinline)) int poll_received(void)
{
	return ibv_poll_cq(recv_cq, 1, &counted_wc);
}

static void poll_empty(void)
{
	if (poll_received())
		die("a completion of nothing");
}

/* What a packet is made of. */
static struct ibv_send_wr packet_wr;

static __attribute__((noinline)) int send_packet(void)
{
	struct ibv_send_wr *bad;
	return ibv_post_send(qp, &packet_wr, &bad);
}

/* Over loopback a packet is in the socket when the call that sends it returns, so the next poll takes it. That completes
 * nothing yet: the acknowledgement waits for polls that find nothing. */
static __attribute__((noinline)) int receive_packet(void)
{
	return ibv_poll_cq(send_cq, 1, &counted_wc);
}

static void packet(void)
{
	struct ibv_sge sge = { (uintptr_t)memory, LENGTH, mr->lkey };
	packet_wr = (struct ibv_send_wr){ .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
					  .send_flags = IBV_SEND_SIGNALED };
	packet_wr.wr.rdma.remote_addr = (uintptr_t)memory + REMOTE;
	packet_wr.wr.rdma.rkey = mr->rkey;
	need("ibv_post_send", send_packet());
	/* The progress thread may have taken everything in already. */
	if (!receive_packet())
		await(send_cq, 1);
	else if (counted_wc.status != IBV_WC_SUCCESS)
		die("completion");
}

/* The same behind requests by which the progress thread sees this one poll: after a pause, as callgrind makes to write a count, it waits
 * at the socket, and would take the packet. */
static void packet_to_poll(void)
{
	for (int i = 0; i < SEEN_TO_POLL; i++)
		write_8();
	packet();
}

/* A Send, which takes a receive. The poll takes the acknowledgement in too: a window has both by then. */
static void message(void)
{
	struct ibv_sge sge = { (uintptr_t)memory, LENGTH, mr->lkey };
	struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 }, *bad;
	need("ibv_post_recv", ibv_post_recv(qp, &receive, &bad));
	packet_wr = (struct ibv_send_wr){ .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					  .send_flags = IBV_SEND_SIGNALED };
	need("ibv_post_send", send_packet());
	if (!poll_received())
		await(recv_cq, 1);
	else if (counted_wc.status != IBV_WC_SUCCESS)
		die("completion");
	await(send_cq, 1);
}

/* As programs post a stream: one request in each call. */
static __attribute__((noinline)) int post_train(void)
{
	struct ibv_send_wr *bad;
	for (int i = 0; i < TRAIN; i++) {
		int error = ibv_post_send(qp, &packet_wr, &bad);
		if (error)
			return error;
	}
	return 0;
}

static void train(enum ibv_wr_opcode opcode)
{
	struct ibv_sge sge = { (uintptr_t)memory, LENGTH, mr->lkey };
	packet_wr = (struct ibv_send_wr){ .sg_list = &sge, .num_sge = 1, .opcode = opcode,
					  .send_flags = IBV_SEND_SIGNALED };
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		packet_wr.wr.atomic.remote_addr = (uintptr_t)memory + REMOTE;
		packet_wr.wr.atomic.rkey = mr->rkey;
		packet_wr.wr.atomic.compare_add = 1;
	} else {
		packet_wr.wr.rdma.remote_addr = (uintptr_t)memory + REMOTE;
		packet_wr.wr.rdma.rkey = mr->rkey;
	}
	need("ibv_post_send", post_train());
	await(send_cq, TRAIN);
}

static void write_train(void) { train(IBV_WR_RDMA_WRITE); }
static void read_train(void) { train(IBV_WR_RDMA_READ); }
static void fetch_add_train(void) { train(IBV_WR_ATOMIC_FETCH_AND_ADD); }

static const struct operation {
	const char *name;
	void (*run)(void);
} operations[] = {
	{ "nothing", nothing },
	{ "write", write_8 },
	{ "write-inline", write_inline },
	{ "wr-write-inline", wr_write_inline },
	{ "read", read_8 },
	{ "send-recv", send_recv },
	{ "fetch-add", fetch_add },
	{ "compare-swap", compare_swap },
	{ "poll-empty", poll_empty },
	{ "packet", packet },
	{ "packet-to-poll", packet_to_poll },
	{ "message", message },
	{ "write-train", write_train },
	{ "read-train", read_train },
	{ "fetch-add-train", fetch_add_train },
};

static void open_looped_qp(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	send_cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	recv_cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	if (!pd || !send_cq || !recv_cq)
		die("set-up");
	memory = heap(4096);
	mr = ibv_reg_mr(pd, memory, 4096, REMOTE_ACCESS);
	if (!mr)
		die("ibv_reg_mr");
	qp = make_qp(pd, send_cq, recv_cq, NULL, 64);
	qpx = ibv_qp_to_qp_ex(qp);
	connect_qp(qp, address_of(qp, NULL));
}

int main(int argc, char **argv)
{
	const struct operation *operation = NULL;
	for (size_t i = 0; argc == 4 && i < sizeof operations / sizeof *operations; i++)
		if (!strcmp(argv[1], operations[i].name))
			operation = &operations[i];
	if (!operation) {
		fprintf(stderr, "looped: see the head of looped.c\n");
		return 2;
	}
	size_t batches = strtoul(argv[2], NULL, 10), per_batch = strtoul(argv[3], NULL, 10);
	double *samples = calloc(batches + 1, sizeof *samples);
	if (!samples)
		die("calloc");
	open_looped_qp();
	for (size_t i = 0; i < batches; i++) {
		uint64_t begin = now_ns();
		for (size_t j = 0; j < per_batch; j++)
			operation->run();
		samples[i] = (double)(now_ns() - begin) / (double)per_batch;
	}
	printf("%.3f\n", median(samples, batches));
	return 0;
}
