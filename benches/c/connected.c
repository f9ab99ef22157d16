/*
 * Two processes with many connected pairs of RC QPs, by each of which both write 8 bytes in turn, and wait for it.
 *
 *   connected QPS
 *
 * QPS is the number of all QPs. After each turn of all it prints how many there have been, and sleeps for 20 ms. It ends when it is killed.
 */
#define _GNU_SOURCE
#include "verbs.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <unistd.h>

enum { MOST = 32768, BYTES = 8 };

static struct meeting {
	struct address address[2][MOST];
	volatile int arrived[2];
} *meeting;

/* Both wait here for each other, asleep. */
static void barrier(int which)
{
	__sync_fetch_and_add(&meeting->arrived[which], 1);
	while (meeting->arrived[which] < 2)
		usleep(500);
}

static void write_one(struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_mr *mr, const struct address *to, size_t offset)
{
	struct ibv_sge sge = { (uintptr_t)mr->addr + offset, BYTES, mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = to->buffer + offset, .rkey = to->rkey },
	}, *bad;
	need("ibv_post_send", ibv_post_send(qp, &wr, &bad));
	await(cq, 1);
}

int main(int argc, char **argv)
{
	int count = (argc > 1 ? atoi(argv[1]) : 10000) / 2;
	if (count < 1 || count > MOST)
		die("QPs: 2 to 65536");
	meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (meeting == MAP_FAILED)
		die("mmap");
	int me = fork() == 0;
	if (me)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	size_t length = (size_t)count * BYTES;
	struct ibv_mr *mr = pd && cq ? ibv_reg_mr(pd, heap(length), length, REMOTE_ACCESS) : NULL;
	struct ibv_qp **qps = calloc((size_t)count, sizeof *qps);
	if (!mr || !qps)
		die("no memory region");
	for (int i = 0; i < count; i++) {
		qps[i] = make_qp(pd, cq, cq, NULL, 1);
		meeting->address[me][i] = address_of(qps[i], mr);
	}
	barrier(0);
	for (int i = 0; i < count; i++)
		connect_qp(qps[i], meeting->address[1 - me][i]);
	barrier(1);
	for (uint64_t turn = 1;; turn++) {
		for (int i = 0; i < count; i++)
			write_one(qps[i], cq, mr, &meeting->address[1 - me][i], (size_t)i * BYTES);
		if (me == 0) {
			printf("%llu\n", (unsigned long long)turn);
			fflush(stdout);
		}
		usleep(20000);
	}
}
