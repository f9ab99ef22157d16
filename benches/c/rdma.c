/*
 * What acp.c does, in verbs: one request at a time, posted and polled for, between two processes of which the owner sleeps.
 *
 *   rdma write|read|add|cas OWNER_CPU CPU SIZE:COUNT...  ns of an operation: median, mean, 99th percentile, for each size
 */
#define _GNU_SOURCE
#include "samples.h"
#include "verbs.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static struct address remote;
static enum ibv_wr_opcode opcode;

static void once(size_t size)
{
	struct ibv_sge sge = { (uintptr_t)mr->addr, (uint32_t)size, mr->lkey };
	struct ibv_send_wr request = { .opcode = opcode, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
		request.wr.atomic.remote_addr = remote.buffer;
		request.wr.atomic.rkey = remote.rkey;
		request.wr.atomic.compare_add = opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
		request.wr.atomic.swap = 1;
	} else {
		request.wr.rdma.remote_addr = remote.buffer;
		request.wr.rdma.rkey = remote.rkey;
	}
	need("ibv_post_send", ibv_post_send(qp, &request, &bad));
	await(cq, 1);
}

/* A connection to the process at the other end of `other`, through which each tells its address. */
static void meet(int other, size_t length)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	mr = pd && cq ? ibv_reg_mr(pd, heap(length), length, REMOTE_ACCESS) : NULL;
	if (!mr)
		die("set-up");
	qp = make_qp(pd, cq, cq, NULL, 16);
	struct address own = address_of(qp, mr);
	if (write(other, &own, sizeof own) != sizeof own || read(other, &remote, sizeof remote) != sizeof remote)
		die("the other process");
	connect_qp(qp, remote);
	/* Nobody begins before both are connected. */
	if (write(other, "", 1) != 1 || read(other, &own, 1) != 1)
		die("the other process");
}

int main(int argc, char **argv)
{
	size_t longest = 4096, size, count;
	int ends[2];
	const char *names[] = { "write", "read", "add", "cas" };
	const enum ibv_wr_opcode opcodes[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD,
					       IBV_WR_ATOMIC_CMP_AND_SWP };
	int mode = 0;
	while (argc > 4 && mode < 4 && strcmp(argv[1], names[mode]))
		mode++;
	if (argc < 5 || mode == 4) {
		fprintf(stderr, "rdma: see the head of rdma.c\n");
		return 2;
	}
	opcode = opcodes[mode];
	for (int i = 4; i < argc; i++)
		longest = strtoul(argv[i], NULL, 10) > longest ? strtoul(argv[i], NULL, 10) : longest;
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
		die("socketpair");
	pid_t owner = fork();
	if (owner < 0)
		die("fork");
	if (!owner) {
		prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
		close(ends[0]);
		pin(atoi(argv[2]));
		meet(ends[1], longest);
		char end;
		return read(ends[1], &end, 1) != 0; /* sleeps until the other has ended */
	}
	close(ends[1]);
	pin(atoi(argv[3]));
	meet(ends[0], longest);
	for (int i = 4; i < argc; i++) {
		if (sscanf(argv[i], "%zu:%zu", &size, &count) != 2)
			die(argv[i]);
		measure(once, size, count);
	}
	printf("\n");
	fflush(stdout);
	close(ends[0]);
	int status = 0;
	waitpid(owner, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
