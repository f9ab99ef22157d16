/* A program that has seen the end of what a peer writes, and has no use for its QP any more: it destroys it at once, moves it to
 * ERR or RESET, or ends. An adapter has acknowledged by then what it has put into memory, so the peer's Write completes with success.
 * And a program that posts the first Writes of its QP, and goes: an adapter has sent them by then, so the peer sees them. So does one
 * that is stopped meanwhile, and finds when it goes on that its peer is dead and another has come in its place. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include <sched.h>
#include <sys/wait.h>
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

#define MESSAGES 8
#define FEW &(struct vt_duo_opts){ .type = VT_RC, .nqp = 1, .depth = MESSAGES + 1, .size = 64 * (MESSAGES + 1) }

/* Connects with what is behind the socket, by way of whoever has it at the other end. */
static bool few_meet(int fd)
{
	return vt_duo_open(&d, FEW) && vt_duo_meet(&d, fd);
}

/* Gets one message while its peer lives, and the others when it is told to go on. The exit status is how many came, and 1. */
static int sleeper(int fd)
{
	char go = 'g';
	struct ibv_wc wc;
	if (!few_meet(fd))
		return 0;
	for (uint64_t i = 0; i <= MESSAGES; i++) {
		struct ibv_sge sge = vt_duo_sge(&d, 64 * i, 64);
		struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;
		if (ibv_post_recv(d.qp[0], &wr, &bad))
			return 0;
	}
	if (vt_poll(d.cq, &wc, 1, 20000) != 1 || !vt_put(fd, &go, 1) || !vt_get(fd, &go, 1, 60000))
		return 0;
	int came = 0;
	while (came < MESSAGES && vt_poll(d.cq, &wc, 1, 5000) == 1 && wc.status == IBV_WC_SUCCESS)
		came += vt_verify(d.buf + 64 * (came + 1), 64, (uint64_t)came + 2) == 64;
	return came + 1;
}

/* Sends one message, and the others when the peer is stopped; it ends by a signal then. */
static int sender(int fd)
{
	char go;
	struct ibv_wc wc;
	if (!few_meet(fd))
		return 1;
	for (int i = 0; i <= MESSAGES; i++) {
		struct ibv_sge sge = vt_duo_sge(&d, 64 * (uint64_t)i, 64);
		vt_fill(d.buf + 64 * i, 64, (uint64_t)i + 1);
		if (vt_duo_post(&d, 0, IBV_WR_SEND, (uint64_t)i, IBV_SEND_SIGNALED, &sge, 1, 0))
			return 2;
		if (i == 0 && (vt_poll(d.cq, &wc, 1, 20000) != 1 || !vt_put(fd, &go, 1) || !vt_get(fd, &go, 1, 60000)))
			return 3;
	}
	vt_put(fd, &go, 1);
	pause();
	return 4;
}

/* Comes when one has died, and tells its QP number. */
static int successor(int fd)
{
	char go;
	return vt_duo_open(&d, FEW) && vt_put(fd, d.self.qpn, sizeof(uint32_t)) && vt_get(fd, &go, 1, 60000) ? 0 : 1;
}

/* In a window processes have numbers, which their slots say (docs/local-link.md): the next process has some free one. */
#define SLOT_SHIFT 14
#define NUMBERS 64

/* Starts others until one has the number of the one that had `qpn`; one if there are no numbers. How many. */
static int succeed(uint32_t qpn, pid_t *pids, int *fds)
{
	const char *link = getenv("VERVAIN_LINK");
	for (int n = 0; n < NUMBERS; n++) {
		uint32_t own;
		pids[n] = vt_spawn("successor", &fds[n]);
		vt_require(pids[n] > 0 && vt_get(fds[n], &own, sizeof(own), 20000), "the one that comes after it");
		if (!link || strcmp(link, "window") || (own >> SLOT_SHIFT) % NUMBERS == (qpn >> SLOT_SHIFT) % NUMBERS)
			return n + 1;
	}
	vt_require(false, "nobody has the number again");
	return 0;
}

/* Passes what one child has to say on to the other. */
static bool pass(int from, int to, void *room, size_t n)
{
	return vt_get(from, room, n, 20000) && vt_put(to, room, n);
}

static void what_was_sent_to_one_that_stands_arrives_though_the_sender_dies(void)
{
	int receives, sends, after[NUMBERS], status;
	pid_t next[NUMBERS];
	struct vt_duo_addr at;
	char go = 'g';
	pid_t receiver = vt_spawn("sleeper", &receives), victim = vt_spawn("sender", &sends);
	vt_require(receiver > 0 && victim > 0, "starting");
	vt_require(pass(receives, sends, &at, sizeof(at)) && pass(sends, receives, &at, sizeof(at)) && pass(receives, sends, &go, 1) &&
			   pass(sends, receives, &go, 1),
		   "connecting");
	vt_require(vt_get(receives, &go, 1, 20000) && vt_get(sends, &go, 1, 20000), "the first message");
	vt_require(!kill(receiver, SIGSTOP) && waitpid(receiver, &status, WUNTRACED) == receiver && WIFSTOPPED(status), "stopping");
	vt_require(vt_put(sends, &go, 1) && vt_get(sends, &go, 1, 20000), "the sender is gone");
	vt_require(vt_kill(victim), "killing the sender");
	int n = succeed(at.qpn[0], next, after);
	vt_require(!kill(receiver, SIGCONT) && vt_put(receives, &go, 1), "going on");
	status = vt_reap(receiver, 60000);
	vt_check(WIFEXITED(status) && WEXITSTATUS(status) == MESSAGES + 1, "%d of %d messages came", WEXITSTATUS(status) - 1, MESSAGES);
	for (int i = 0; i < n; i++) {
		vt_check(vt_put(after[i], &go, 1) && vt_reap(next[i], 20000) == 0, "the one that came after it has failed");
		close(after[i]);
	}
	close(receives);
	close(sends);
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { { "what_is_seen_is_acknowledged", what_is_seen_is_acknowledged },
						{ "what_was_posted_arrives", what_was_posted_arrives },
						{ "what_was_sent_to_one_that_stands_arrives_though_the_sender_dies",
						  what_was_sent_to_one_that_stands_arrives_though_the_sender_dies } };
	static const struct vt_role roles[] = { { "target", target },	{ "leaver", leaver },	    { "sleeper", sleeper },
						{ "sender", sender },	{ "successor", successor } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
