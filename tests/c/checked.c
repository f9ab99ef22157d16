/* A program for sanitizers, memcheck and debuggers to look at (tests/clients/tests/sanitizers.rs). The cases of traffic are right and
 * must be left in peace; each case after them does its traffic too, and then makes one mistake, which must be found. Memory
 * is large and malloc'd, as Vervain would share it. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE (1u << 20)
#define HALF (SIZE / 2)
#define LIMIT 120000 /* ms: valgrind is slow */

static struct vt_duo d;
static char *mine; /* SIZE bytes, registered as mr */
static struct ibv_mr *mr;

/* A QP connected to itself in slot 0 and another such in slot 1; malloc'd memory. */
static void open_looped(int nqp)
{
	vt_require(vt_duo_open(&d, &(struct vt_duo_opts){ .type = VT_RC, .nqp = nqp, .size = 4096 }), "opening");
	mine = malloc(SIZE);
	vt_require(mine && (mr = ibv_reg_mr(d.pd, mine, SIZE, VT_ACCESS_ALL)), "registering: %s", strerror(errno));
	d.peer = d.self;
	d.peer.rkey = mr->rkey;
	for (int i = 0; i < nqp; i++)
		vt_require(vt_duo_connect(&d, i), "connecting");
}

static void close_looped(void)
{
	vt_require(!ibv_dereg_mr(mr), "ibv_dereg_mr");
	free(mine);
	vt_require(vt_duo_close(&d), "closing");
}

static struct ibv_sge sge_of(char *at, uint32_t len)
{
	return (struct ibv_sge){ (uintptr_t)at, len, mr->lkey };
}

static void send_to(int opcode, uint64_t id, char *from, uint32_t len, uint64_t to)
{
	struct ibv_sge sge = sge_of(from, len);
	int rc = vt_duo_post(&d, 0, opcode, id, IBV_SEND_SIGNALED, &sge, 1, to);
	vt_require(rc == 0, "posting: %s", vt_errno_name(rc));
}

static void receive(uint64_t id, char *into, uint32_t len)
{
	struct ibv_sge sge = sge_of(into, len);
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;
	int rc = ibv_post_recv(d.qp[0], &wr, &bad);
	vt_require(rc == 0, "posting a receive: %s", vt_errno_name(rc));
}

/* The next n completions are good. */
static void complete(int n)
{
	struct ibv_wc wc[4];
	int got = vt_poll(d.cq, wc, n, LIMIT);
	vt_require(got == n, "%d completions of %d", got, n);
	for (int i = 0; i < n; i++)
		vt_require(wc[i].status == IBV_WC_SUCCESS, "%s", vt_wc_name((int)wc[i].status));
}

static void verify(const char *p, size_t n, uint64_t seed)
{
	size_t wrong = vt_verify((const uint8_t *)p, n, seed);
	vt_require(wrong == n, "byte %zu is wrong", wrong);
}

/* Each operation on itself, of memory that this program never wrote to at the other end. */
static void operations(void)
{
	vt_fill((uint8_t *)mine, HALF, 1);
	send_to(IBV_WR_RDMA_WRITE, 1, mine, HALF, (uintptr_t)mine + HALF);
	complete(1);
	verify(mine + HALF, HALF, 1);
	memset(mine, 0, HALF);
	send_to(IBV_WR_RDMA_READ, 2, mine, HALF, (uintptr_t)mine + HALF);
	complete(1);
	verify(mine, HALF, 1);
	receive(3, mine + HALF, HALF);
	vt_fill((uint8_t *)mine, HALF, 2);
	send_to(IBV_WR_SEND, 4, mine, HALF, 0);
	complete(2);
	verify(mine + HALF, HALF, 2);
	uint64_t word = 41;
	memcpy(mine + HALF, &word, 8);
	send_to(IBV_WR_ATOMIC_FETCH_AND_ADD, 5, mine, 8, (uintptr_t)mine + HALF);
	complete(1);
	memcpy(&word, mine + HALF, 8);
	vt_require(word == 42 && mine[0] == 41, "fetch and add");
}

static void case_looped(void)
{
	open_looped(1);
	operations();
	close_looped();
}

/* ---- two processes ---- */

/* The address of malloc'd memory goes to the peer with that of the QP. */
static bool open_apart(int fd)
{
	if (!vt_duo_open(&d, &(struct vt_duo_opts){ .type = VT_RC, .nqp = 1, .size = 4096 }))
		return false;
	mine = malloc(SIZE);
	mr = mine ? ibv_reg_mr(d.pd, mine, SIZE, VT_ACCESS_ALL) : NULL;
	if (!mr)
		return false;
	d.self.addr = (uintptr_t)mine;
	d.self.rkey = mr->rkey;
	return vt_duo_meet(&d, fd);
}

static bool same(int fd)
{
	char c = 0;
	return vt_put(fd, &c, 1) && vt_get(fd, &c, 1, LIMIT);
}

/* Posts nothing but a receive, and reads what came; its QP is there until the other side has all its completions. */
static int passive(int fd)
{
	struct ibv_wc wc;
	if (!open_apart(fd))
		return 1;
	struct ibv_sge sge = sge_of(mine, HALF);
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	if (ibv_post_recv(d.qp[0], &wr, &bad) || !same(fd))
		return 2;
	if (vt_poll(d.cq, &wc, 1, LIMIT) != 1 || wc.status != IBV_WC_SUCCESS || vt_verify((uint8_t *)mine, HALF, 3) != HALF)
		return 3;
	/* What was written before it, by RDMA Write. */
	if (vt_verify((uint8_t *)mine + HALF, HALF, 4) != HALF || !same(fd))
		return 4;
	if (ibv_dereg_mr(mr))
		return 5;
	free(mine);
	return vt_duo_close(&d) ? 0 : 6;
}

static void case_apart(void)
{
	int fd, status;
	pid_t pid = vt_spawn("passive", &fd);
	vt_require(pid > 0, "starting the peer: %s", strerror(errno));
	vt_require(open_apart(fd) && same(fd), "meeting the peer");
	vt_fill((uint8_t *)mine, HALF, 3);
	vt_fill((uint8_t *)mine + HALF, HALF, 4);
	send_to(IBV_WR_RDMA_WRITE, 1, mine + HALF, HALF, d.peer.addr + HALF);
	send_to(IBV_WR_SEND, 2, mine, HALF, 0);
	complete(2);
	memset(mine, 0, HALF);
	send_to(IBV_WR_RDMA_READ, 3, mine, HALF, d.peer.addr + HALF);
	complete(1);
	verify(mine, HALF, 4);
	vt_require(same(fd), "the peer found something wrong");
	status = vt_reap(pid, LIMIT);
	vt_require(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the peer: status %#x", status);
	close(fd);
	close_looped();
}

/* ---- threads that hand memory to each other by completions alone ---- */

#define TURNS 200
#define PIECE 4096

static _Atomic int failed;
/* Completions that have been polled. */
static _Atomic int polled;

/* The queues are not as deep as there are turns, and the poller may be kept from the processor. Relaxed: the threads are to have no order
   but that of completions. */
static void wait_for_room(int turn)
{
	while (2 * turn - atomic_load_explicit(&polled, memory_order_relaxed) > 32 && !failed)
		usleep(50);
}

/* Polls; looks at what the poster wrote before it posted, and gives the block back to the allocator. */
static void *poller(void *unused)
{
	for (int turn = 0; turn < 2 * TURNS; turn++) {
		struct ibv_wc wc;
		if (vt_poll(d.cq, &wc, 1, LIMIT) != 1 || wc.status != IBV_WC_SUCCESS) {
			failed = 1;
			break;
		}
		char *block = (char *)(uintptr_t)wc.wr_id;
		if (block[0] != 7)
			failed = 1;
		free(block);
		atomic_fetch_add_explicit(&polled, 1, memory_order_relaxed);
	}
	return unused;
}

static char *ticket(void)
{
	char *block = malloc(64);
	if (block)
		block[0] = 7;
	return block;
}

static void case_threads(void)
{
	open_looped(1);
	memset(mine, 1, SIZE);
	pthread_t thread;
	polled = 0;
	vt_require(!pthread_create(&thread, NULL, poller, NULL), "pthread_create");
	for (int turn = 0; turn < TURNS && !failed; turn++) {
		wait_for_room(turn);
		receive((uintptr_t)ticket(), mine + HALF + turn % 100 * PIECE, PIECE);
		send_to(IBV_WR_SEND, (uintptr_t)ticket(), mine + turn % 100 * PIECE, PIECE, 0);
	}
	pthread_join(thread, NULL);
	vt_check(!failed, "a completion failed, or its block was not as it had been posted");
	close_looped();
}

/* ---- the same by the newer functions, ibv_wr_* and ibv_start_poll, with receives of an SRQ ---- */

static struct ibv_cq_ex *cqx;

static void *poller_ex(void *unused)
{
	uint64_t until = vt_now_us() + LIMIT * 1000ull;
	for (int turn = 0; turn < 2 * TURNS && vt_now_us() < until;) {
		if (ibv_start_poll(cqx, &(struct ibv_poll_cq_attr){ 0 })) {
			usleep(50);
			continue;
		}
		do {
			char *block = (char *)(uintptr_t)cqx->wr_id;
			if (cqx->status != IBV_WC_SUCCESS || block[0] != 7)
				failed = 1;
			free(block);
			turn++;
			atomic_fetch_add_explicit(&polled, 1, memory_order_relaxed);
		} while (!ibv_next_poll(cqx));
		ibv_end_poll(cqx);
	}
	if (polled < 2 * TURNS)
		failed = 1;
	return unused;
}

static void case_threads_ex(void)
{
	vt_require(vt_duo_open(&d, &(struct vt_duo_opts){ .type = VT_RC_SRQ, .nqp = 0, .size = 4096 }), "opening");
	mine = malloc(SIZE);
	vt_require(mine && (mr = ibv_reg_mr(d.pd, mine, SIZE, VT_ACCESS_ALL)), "registering: %s", strerror(errno));
	memset(mine, 1, SIZE);
	cqx = ibv_create_cq_ex(d.dev.ctx, &(struct ibv_cq_init_attr_ex){ .cqe = 2 * TURNS });
	vt_require(cqx, "ibv_create_cq_ex: %s", strerror(errno));
	struct ibv_cq *cq = ibv_cq_ex_to_cq(cqx);
	struct ibv_qp_init_attr_ex a = { .send_cq = cq, .recv_cq = cq, .srq = d.srq, .cap = { 64, 0, 1, 0, 0 }, .qp_type = IBV_QPT_RC,
					 .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = d.pd,
					 .send_ops_flags = IBV_QP_EX_WITH_SEND };
	vt_require((d.qp[0] = ibv_create_qp_ex(d.dev.ctx, &a)), "ibv_create_qp_ex: %s", strerror(errno));
	d.peer = d.self;
	d.peer.qpn[0] = d.qp[0]->qp_num;
	vt_require(vt_duo_connect(&d, 0), "connecting");
	struct ibv_qp_ex *qpx = ibv_qp_to_qp_ex(d.qp[0]);
	pthread_t thread;
	polled = 0;
	vt_require(!pthread_create(&thread, NULL, poller_ex, NULL), "pthread_create");
	for (int turn = 0; turn < TURNS && !failed; turn++) {
		wait_for_room(turn);
		struct ibv_sge sge = sge_of(mine + HALF + turn % 100 * PIECE, PIECE);
		struct ibv_recv_wr wr = { .wr_id = (uintptr_t)ticket(), .sg_list = &sge, .num_sge = 1 }, *bad;
		vt_require(!ibv_post_srq_recv(d.srq, &wr, &bad), "posting to the SRQ");
		ibv_wr_start(qpx);
		qpx->wr_id = (uintptr_t)ticket();
		qpx->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_send(qpx);
		ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)mine + turn % 100 * PIECE, PIECE);
		vt_require(!ibv_wr_complete(qpx), "ibv_wr_complete");
	}
	pthread_join(thread, NULL);
	vt_check(!failed, "a completion failed, or its block was not as it had been posted");
	vt_require(!ibv_destroy_qp(d.qp[0]) && !ibv_destroy_cq(cq), "destroying QP and CQ");
	d.qp[0] = NULL;
	close_looped();
}

/* ---- pointers that only the device has ---- */

/* Ends with the device open, and blocks that nobody knows of but a receive that waits and a QP. */
static void case_only_known_to_the_device(void)
{
	open_looped(1);
	operations();
	receive((uintptr_t)ticket(), mine, 64);
	d.qp[0]->qp_context = ticket();
}

/* ---- mistakes ---- */

static void case_overflow(void)
{
	open_looped(1);
	operations();
	volatile char *volatile block = malloc(300000);
	block[300000] = 1;
	free((void *)block);
	close_looped();
}

static void case_after_free(void)
{
	open_looped(1);
	operations();
	char *volatile block = malloc(300000);
	block[5] = 1;
	const volatile char *again = block;
	/* Not before the compiler's eyes. */
	__asm__ volatile("" : "+r"(again));
	free(block);
	vt_note("%d", again[5]);
	close_looped();
}

static void case_leak(void)
{
	open_looped(1);
	operations();
	char *volatile block = malloc(300001);
	memset(block, 1, 300001);
	block = NULL;
	close_looped();
}

static int raced;

static void *racer(void *unused)
{
	for (int i = 0; i < 1000; i++)
		raced++;
	return unused;
}

static void case_race(void)
{
	pthread_t thread;
	open_looped(1);
	operations();
	vt_require(!pthread_create(&thread, NULL, racer, NULL), "pthread_create");
	racer(NULL);
	pthread_join(thread, NULL);
	close_looped();
}

static void case_uninitialised(void)
{
	open_looped(1);
	operations();
	char *volatile block = malloc(300000);
	if (block[100] == 'x')
		vt_note("by chance");
	free(block);
	close_looped();
}

static void case_undefined(void)
{
	open_looped(1);
	operations();
	volatile int largest = INT32_MAX;
	vt_note("%d", largest + 1);
	close_looped();
}

static void case_null(void)
{
	open_looped(1);
	operations();
	*(volatile int *)NULL = 1;
}

static const struct vt_case cases[] = {
	{ "looped", case_looped },
	{ "apart", case_apart },
	{ "threads", case_threads },
	{ "threads_ex", case_threads_ex },
	{ "only_known_to_the_device", case_only_known_to_the_device },
	{ "overflow", case_overflow },
	{ "after_free", case_after_free },
	{ "leak", case_leak },
	{ "race", case_race },
	{ "uninitialised", case_uninitialised },
	{ "undefined", case_undefined },
	{ "null", case_null },
};

int main(int argc, char **argv)
{
	static const struct vt_role roles[] = { { "passive", passive } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
