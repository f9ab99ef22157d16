/*
 * What it costs to register memory and to deregister it.
 *
 *   register touched|untouched BYTES N    ns of ibv_reg_mr and ibv_dereg_mr of memory from malloc's allocator
 *   register used BYTES N                 ns of ibv_reg_mr, an RDMA Write of all of it, its completion, ibv_dereg_mr
 *
 * prints the median. Untouched memory is allocated anew for each registration; what malloc costs is not counted. The
 * write goes over one RC QP connected to itself, into memory that stays registered.
 */
#define _GNU_SOURCE
#include "clock.h"
#include "verbs.h"

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *target;

static void write_from(struct ibv_mr *mr)
{
	struct ibv_sge sge = { (uintptr_t)mr->addr, (uint32_t)mr->length, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { (uintptr_t)target->addr, target->rkey } }, *bad;
	need("ibv_post_send", ibv_post_send(qp, &wr, &bad));
	await(cq, 1);
}

static double once(void *memory, size_t length, int use)
{
	uint64_t begin = now_ns();
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, length, REMOTE_ACCESS);
	if (!mr)
		die("ibv_reg_mr");
	if (use)
		write_from(mr);
	need("ibv_dereg_mr", ibv_dereg_mr(mr));
	return (double)(now_ns() - begin);
}

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "register: see the head of register.c\n");
		return 2;
	}
	int untouched = !strcmp(argv[1], "untouched"), use = !strcmp(argv[1], "used");
	size_t length = strtoul(argv[2], NULL, 10), count = strtoul(argv[3], NULL, 10);
	double *samples = calloc(count, sizeof *samples);
	struct ibv_context *context = open_device();
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	if (!samples || !pd || !cq)
		die("set-up");
	if (use) {
		target = ibv_reg_mr(pd, heap(length), length, REMOTE_ACCESS);
		if (!target)
			die("ibv_reg_mr");
		qp = make_qp(pd, cq, cq, NULL, 16);
		connect_qp(qp, address_of(qp, NULL));
	}
	void *memory = untouched ? NULL : heap(length);
	for (size_t i = 0; i < count; i++) {
		if (untouched && posix_memalign(&memory, 4096, length))
			die("posix_memalign");
		samples[i] = once(memory, length, use);
		if (untouched)
			free(memory);
	}
	printf("%.1f\n", median(samples, count));
	return 0;
}
