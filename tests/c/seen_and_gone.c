/* A program that has seen the end of what a peer writes, and has no use for its QP any more: it destroys it at once, moves it to
 * ERR or RESET, or ends. An adapter has acknowledged by then what it has put into memory, so the peer's Write completes with success.
 * And a program that posts the first Writes of its QP, and goes: an adapter has sent them by then, so the peer sees them. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include <sched.h>
#include <unistd.h>

#define LONGEST (1u << 20)
#define OPTS &(struct vt_duo_opts){ .type = VT_RC, .nqp = VT_DUO_QPS, .depth = 4, .size = LONGEST, .timeout = 14, .retry = 4 }
#define PATIENCE_US 20000000

static struct vt_duo d;

static uint32_t length(int i)
{
	static const uint32_t all[] = { LONGEST, 1, 300000, 64, 70000, 8, 5000, 131072 };
	return all[i % (int)VT_ARRAY(all)];
}

/* What ends the QP: the last one the end of the program does. */
static int leave(int i)
{
	struct ibv_qp_attr attr = { .qp_state = i % 3 == 1 ? IBV_QPS_ERR : IBV_QPS_RESET };
	if (i == VT_DUO_QPS - 1)
		exit(0);
	if (i % 3 != 0)
		return ibv_modify_qp(d.qp[i], &attr, IBV_QP_STATE);
	int rc = ibv_destroy_qp(d.qp[i]);
	d.qp[i] = NULL;
	return rc;
}

static int target(int fd)
{
	char go = 'g';
	if (!vt_duo_open(&d, OPTS) || !vt_duo_meet(&d, fd))
		return 1;
	for (int i = 0; i < VT_DUO_QPS; i++) {
		const volatile uint8_t *last = d.buf + length(i) - 1;
		uint64_t until = vt_now_us() + PATIENCE_US;
		d.buf[length(i) - 1] = 0;
		if (!vt_put(fd, &go, 1))
			return 2;
		/* Nothing of the device is called meanwhile; the peer needs a core, too. */
		for (unsigned spins = 1; !*last; spins++)
			if (spins % 4096 == 0) {
				if (vt_now_us() > until)
					return 3;
				sched_yield();
			}
		if (leave(i))
			return 4;
	}
	return 5;
}

static void what_is_seen_is_acknowledged(void)
{
	int fd;
	char go = 'g';
	pid_t pid = vt_spawn("target", &fd);
	vt_require(pid > 0 && vt_duo_open(&d, OPTS) && vt_duo_meet(&d, fd), "opening");
	memset(d.buf, 1, LONGEST);
	for (int i = 0; i < VT_DUO_QPS; i++) {
		struct ibv_wc wc;
		struct ibv_sge sge = vt_duo_sge(&d, 0, length(i));
		vt_require(vt_get(fd, &go, 1, 20000), "the target is gone");
		vt_require(vt_duo_post(&d, i, IBV_WR_RDMA_WRITE, 1, IBV_SEND_SIGNALED, &sge, 1, d.peer.addr) == 0, "posting");
		vt_require(vt_poll(d.cq, &wc, 1, 20000) == 1, "a Write of %u bytes does not end", length(i));
		vt_check(wc.status == IBV_WC_SUCCESS, "QP %d, a Write of %u bytes that was seen: %s", i, length(i),
			vt_wc_name((int)wc.status));
	}
	vt_require(vt_reap(pid, 20000) == 0, "the target has failed");
	vt_check(vt_duo_close(&d), "closing");
}

#define ROUNDS 12
/* Writes of one byte, each to a place of its own, and a long one, which is more than a path takes at once. */
#define WRITES 3
#define LONG_AT 4096
#define LONG 300000
#define SEED 7
#define ONE &(struct vt_duo_opts){ .type = VT_RC, .nqp = 1, .depth = WRITES + 1, .size = LONG_AT + LONG }

enum way { DESTROY, RESET, END, NWAYS };
static const char *const ways[] = { "destroys its QP", "resets its QP", "ends" };

/* Posts as soon as it is connected, and goes without polling. */
static int leaver(int fd)
{
	char way, go;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	if (!vt_duo_open(&d, ONE) || !vt_put(fd, &d.self, sizeof(d.self)) || !vt_get(fd, &d.peer, sizeof(d.peer), 20000) ||
	    !vt_get(fd, &way, 1, 20000))
		return 1;
	vt_fill(d.buf + LONG_AT, LONG, SEED);
	if (!vt_duo_connect(&d, 0))
		return 1;
	struct ibv_sge sge;
	for (uint32_t i = 0; i < WRITES; i++) {
		d.buf[i] = (uint8_t)(i + 1);
		sge = vt_duo_sge(&d, i, 1);
		if (vt_duo_post(&d, 0, IBV_WR_RDMA_WRITE, i, IBV_SEND_SIGNALED | IBV_SEND_INLINE, &sge, 1, d.peer.addr + i))
			return 2;
	}
	sge = vt_duo_sge(&d, LONG_AT, LONG);
	if (vt_duo_post(&d, 0, IBV_WR_RDMA_WRITE, WRITES, IBV_SEND_SIGNALED, &sge, 1, d.peer.addr + LONG_AT))
		return 2;
	if (way == END)
		exit(0);
	if (way == RESET && ibv_modify_qp(d.qp[0], &attr, IBV_QP_STATE))
		return 3;
	/* What was lost is not made good by the end of the process. */
	return vt_duo_close(&d) && vt_get(fd, &go, 1, 20000) ? 0 : 4;
}

static void what_was_posted_arrives(void)
{
	for (int round = 0; round < ROUNDS; round++) {
		int fd;
		char way = (char)(round % NWAYS), go = 'g';
		vt_require(vt_duo_open(&d, ONE), "opening");
		memset(d.buf, 0, LONG_AT + LONG);
		pid_t pid = vt_spawn("leaver", &fd);
		vt_require(pid > 0 && vt_get(fd, &d.peer, sizeof(d.peer), 20000) && vt_duo_connect(&d, 0), "the one that leaves");
		vt_require(vt_put(fd, &d.self, sizeof(d.self)) && vt_put(fd, &way, 1), "the one that leaves");
		for (uint64_t until = vt_now_us() + 5000000; vt_verify(d.buf + LONG_AT, LONG, SEED) < LONG && vt_now_us() < until;)
			sched_yield();
		for (int i = 0; i < WRITES; i++)
			vt_check(d.buf[i] == i + 1, "round %d: a program that posts and %s has written %d, not %d", round,
				ways[(int)way], d.buf[i], i + 1);
		size_t right = vt_verify(d.buf + LONG_AT, LONG, SEED);
		vt_check(right == LONG, "round %d: a program that posts and %s has written %zu bytes of %d", round,
			ways[(int)way], right, LONG);
		if (way != END)
			vt_put(fd, &go, 1);
		vt_check(vt_reap(pid, 20000) == 0, "round %d: the one that leaves has failed", round);
		vt_check(vt_duo_close(&d), "closing");
		close(fd);
	}
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { { "what_is_seen_is_acknowledged", what_is_seen_is_acknowledged },
						{ "what_was_posted_arrives", what_was_posted_arrives } };
	static const struct vt_role roles[] = { { "target", target }, { "leaver", leaver } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
