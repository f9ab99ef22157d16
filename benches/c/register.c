/*
 * What it costs to register memory and to deregister it.
 *
 *   register touched|untouched BYTES N    ns of ibv_reg_mr and ibv_dereg_mr of memory from malloc's allocator
 *   register used BYTES N                 ns of ibv_reg_mr, an RDMA Write of all of it, its completion, ibv_dereg_mr
 *   register adopted BYTES N              ns of ibv_reg_mr, and of ibv_dereg_mr, of memory that is shared meanwhile only;
 *                                         all pages are written before each call
 *
 * prints the median, or both. Untouched memory is allocated anew for each registration; what malloc costs is not counted. The
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

/* Whether memory is mapped as shared. */
static int is_shared(const void *memory)
{
	unsigned long at = (unsigned long)memory, low, high;
	char line[512], access[8];
	FILE *maps = fopen("/proc/self/maps", "r");
	int shared = 0;
	while (maps && fgets(line, sizeof line, maps))
		if (sscanf(line, "%lx-%lx %7s", &low, &high, access) == 3 && low <= at && at < high)
			shared = access[3] == 's';
	if (maps)
		fclose(maps);
	return shared;
}

static void write_pages(volatile char *memory, size_t length)
{
	for (size_t i = 0; i < length; i += 4096)
		memory[i]++;
}

static void adopt(char *memory, size_t length, size_t count, double *registering)
{
	double *ending = calloc(count, sizeof *ending);
	if (!ending)
		die("memory");
	for (size_t i = 0; i < count; i++) {
		write_pages(memory, length);
		uint64_t begin = now_ns();
		struct ibv_mr *mr = ibv_reg_mr(pd, memory, length, REMOTE_ACCESS);
		if (!mr)
			die("ibv_reg_mr");
		registering[i] = (double)(now_ns() - begin);
		if (!is_shared(memory)) {
			fprintf(stderr, "register: the memory is not adopted\n");
			exit(1);
		}
		write_pages(memory, length);
		begin = now_ns();
		need("ibv_dereg_mr", ibv_dereg_mr(mr));
		ending[i] = (double)(now_ns() - begin);
	}
	printf("%.1f %.1f\n", median(registering, count), median(ending, count));
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
	if (!strcmp(argv[1], "adopted")) {
		adopt(heap(length), length, count, samples);
		return 0;
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
