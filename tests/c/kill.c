/* Death, stopping and replacement of a peer. A survivor serves two peers on one CQ and one SRQ: a healthy one, whose
 * numbered messages must keep coming in order, and a victim that is killed, stopped or replaced at random moments under
 * load. Afterwards the survivor's requests end in error within their timeout and it connects to the next victim. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define RECVS 64
#define MSG 64
#define HEALTHY 0
#define VICTIM 1
#define OPTS(n) &(struct vt_duo_opts){ .type = VT_RC_SRQ, .nqp = n, .depth = 64, .timeout = 12, .retry = 2, .size = 1 << 20 }

/* ---- the two peers ---- */
static struct vt_duo p;

static bool settle(struct vt_duo *d, int n)
{
	struct ibv_wc wc;
	while (n--)
		if (vt_poll(d->cq, &wc, 1, 20000) != 1 || wc.status != IBV_WC_SUCCESS)
			return false;
	return true;
}

/* Sends 1, 2, 3 … until the socket is closed or written to. */
static int healthy_peer(int fd)
{
	if (!vt_duo_open(&p, &(struct vt_duo_opts){ .type = VT_RC, .nqp = 1, .depth = 64, .size = 1 << 20 }) || !vt_duo_meet(&p, fd))
		return 1;
	char c;
	for (uint64_t number = 1; !vt_get(fd, &c, 1, 0); number++) {
		memcpy(p.buf, &number, 8);
		struct ibv_sge sge = vt_duo_sge(&p, 0, 8);
		if (vt_duo_post(&p, 0, IBV_WR_SEND, number, IBV_SEND_SIGNALED | IBV_SEND_INLINE, &sge, 1, 0) || !settle(&p, 1)) {
			printf("FAIL healthy peer: message %" PRIu64 " was not delivered\n", number);
			return 1;
		}
		if (number % 8 == 0)
			usleep(300);
	}
	return vt_duo_close(&p) ? 0 : 1;
}

/* Everything at once until killed: sends with numbers, writes, reads, atomics, of small and large size. */
static int victim_peer(int fd)
{
	if (!vt_duo_open(&p, &(struct vt_duo_opts){ .type = VT_RC, .nqp = 1, .depth = 64, .size = 1 << 20 }) || !vt_duo_meet(&p, fd))
		return 1;
	uint64_t number = 0;
	for (unsigned i = 0;; i++) {
		static const int ops[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_SEND,
			IBV_WR_RDMA_WRITE };
		int op = ops[i % VT_ARRAY(ops)];
		uint32_t len = op == IBV_WR_SEND || op == IBV_WR_ATOMIC_FETCH_AND_ADD ? 8 : 1u << (3 + vt_random() % 15);
		if (op == IBV_WR_SEND) {
			number++;
			memcpy(p.buf, &number, 8);
		}
		struct ibv_sge sge = vt_duo_sge(&p, op == IBV_WR_SEND ? 0 : 4096, len);
		unsigned flags = IBV_SEND_SIGNALED | (op == IBV_WR_SEND ? IBV_SEND_INLINE : 0);
		if (vt_duo_post(&p, 0, op, number, flags, &sge, 1, p.peer.addr + (512u << 10)))
			return 1;
		if (i % 4 == 3 && !settle(&p, 4))
			return 1;
		if (i % 64 == 63)
			sched_yield();
	}
}

/* Replaces itself by another program while connected, without a word to the device; that ends when the survivor closes fd. */
static int exec_peer(int fd)
{
	if (!vt_duo_open(&p, OPTS(1)) || !vt_duo_meet(&p, fd))
		return 1;
	struct ibv_sge sge = vt_duo_sge(&p, 4096, 4096);
	for (unsigned i = 0, n = (unsigned)(vt_random() % 40); i < n; i++)
		if (vt_duo_post(&p, 0, IBV_WR_RDMA_WRITE, i, IBV_SEND_SIGNALED, &sge, 1, p.peer.addr + (512u << 10)) || !settle(&p, 1))
			return 1;
	dup2(fd, STDIN_FILENO);
	execl("/bin/cat", "cat", (char *)NULL);
	return 1;
}

/* ---- the survivor ---- */
static struct vt_duo s;
static uint64_t healthy_last, victim_last, posted, completed, sends_out, sends_bad;
static int healthy_fd;
static pid_t healthy_pid;

static bool post_receive(uint64_t slot)
{
	struct ibv_sge sge = vt_duo_sge(&s, slot * MSG, MSG);
	struct ibv_recv_wr r = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;
	posted++;
	return ibv_post_srq_recv(s.srq, &r, &bad) == 0;
}

/* Takes in whatever has completed; says whether that was anything. Receives are told from sends by wr_id < RECVS,
	since a failed one has no opcode. */
static bool take(void)
{
	struct ibv_wc wc[16];
	int n = ibv_poll_cq(s.cq, 16, wc);
	vt_require(n >= 0, "ibv_poll_cq: %d", n);
	for (int i = 0; i < n; i++) {
		if (wc[i].wr_id >= RECVS) {
			sends_out--;
			sends_bad += wc[i].status != IBV_WC_SUCCESS;
			continue;
		}
		completed++;
		uint64_t number;
		memcpy(&number, s.buf + wc[i].wr_id * MSG, 8);
		if (wc[i].status != IBV_WC_SUCCESS) {
			vt_check(wc[i].qp_num != s.self.qpn[HEALTHY], "a receive of the healthy peer ended with %s", vt_wc_name((int)wc[i].status));
		} else if (wc[i].qp_num == s.self.qpn[HEALTHY]) {
			vt_require(number == healthy_last + 1, "after message %" PRIu64 " of the healthy peer came %" PRIu64, healthy_last, number);
			healthy_last = number;
		} else {
			vt_check(number == victim_last + 1, "after message %" PRIu64 " of the victim came %" PRIu64, victim_last, number);
			victim_last = number;
		}
		vt_require(post_receive(wc[i].wr_id), "the SRQ has no room for a receive that came back");
	}
	if (n == 0)
		sched_yield();
	return n > 0;
}

static void take_for(uint64_t us)
{
	for (uint64_t until = vt_now_us() + us; vt_now_us() < until;)
		take();
}

/* Keeps some requests to the victim outstanding; false once one has failed. */
static bool push(void)
{
	static const int ops[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD };
	while (sends_out < 16) {
		int op = ops[vt_random() % 3];
		struct ibv_sge sge = vt_duo_sge(&s, 128 << 10, op == IBV_WR_ATOMIC_FETCH_AND_ADD ? 8 : 1u << (3 + vt_random() % 14));
		if (vt_duo_post(&s, VICTIM, op, RECVS + 1, IBV_SEND_SIGNALED, &sge, 1, s.peer.addr + (512u << 10)))
			return false;
		sends_out++;
	}
	take();
	return sends_bad == 0;
}

static void survivor_open(void)
{
	memset(&s, 0, sizeof(s));
	healthy_last = posted = completed = sends_out = sends_bad = 0;
	vt_require(vt_duo_open(&s, OPTS(2)), "the survivor");
	for (uint64_t i = 0; i < RECVS; i++)
		vt_require(post_receive(i), "posting");
	healthy_pid = vt_spawn("healthy", &healthy_fd);
	/* Addresses are exchanged by hand: the two connections of the survivor have different peers. */
	char go = 1;
	vt_require(healthy_pid > 0 && vt_put(healthy_fd, &s.self, sizeof(s.self)) && vt_get(healthy_fd, &s.peer, sizeof(s.peer),
		20000), "the healthy peer");
	vt_require(vt_duo_connect(&s, HEALTHY) && vt_put(healthy_fd, &go, 1) && vt_get(healthy_fd, &go, 1, 20000), "the healthy peer");
}

/* Connects the slot VICTIM to a new process. False when it died before that was done. */
static bool victim_meet(int fd)
{
	struct vt_duo_addr hello = s.self;
	char go = 1;
	hello.qpn[0] = s.self.qpn[VICTIM];
	victim_last = 0;
	sends_bad = 0;
	if (!vt_put(fd, &hello, sizeof(hello)) || !vt_get(fd, &s.peer, sizeof(s.peer), 20000))
		return false;
	s.peer.qpn[VICTIM] = s.peer.qpn[0];
	vt_require(vt_duo_connect(&s, VICTIM), "connecting to the victim");
	return vt_put(fd, &go, 1) && vt_get(fd, &go, 1, 20000);
}

/* After the death of the victim every request to it must end; then the slot gets a new QP. */
static void victim_gone(const char *how, int round)
{
	uint64_t start = vt_now_us(), own = vt_own_us();
	struct ibv_sge sge = vt_duo_sge(&s, 128 << 10, 8);
	if (sends_out < 16 && sends_bad == 0 && vt_duo_post(&s, VICTIM, IBV_WR_RDMA_WRITE, RECVS + 1, IBV_SEND_SIGNALED, &sge, 1,
		s.peer.addr) == 0)
		sends_out++;
	/* (retry + 1) x 16.8 ms is the timeout of the QP; IBA lets it be four times that. */
	while (sends_out && vt_now_us() - start < 20000000)
		take();
	vt_require(sends_out == 0, "round %d (%s): %" PRIu64 " requests to the dead peer never completed", round, how, sends_out);
	uint64_t took = vt_own_us() - own;
	vt_check(took < 1500000, "round %d (%s): the requests ended after %" PRIu64 " us", round, how, took);
	/* The way to lose no receive of an SRQ: ERR, last WQE reached, an empty CQ, and only then destroy (10.3.1.4). */
	struct ibv_qp_attr err = { .qp_state = IBV_QPS_ERR };
	struct ibv_async_event ev = { .event_type = IBV_EVENT_COMM_EST };
	vt_check(ibv_modify_qp(s.qp[VICTIM], &err, IBV_QP_STATE) == 0, "to ERR");
	while (ev.event_type != IBV_EVENT_QP_LAST_WQE_REACHED && vt_event(s.dev.ctx, &ev, 3000))
		ibv_ack_async_event(&ev);
	vt_check(ev.event_type == IBV_EVENT_QP_LAST_WQE_REACHED, "round %d (%s): no last WQE reached", round, how);
	while (take())
		;
	vt_check(ibv_destroy_qp(s.qp[VICTIM]) == 0, "ibv_destroy_qp");
	s.qp[VICTIM] = NULL;
	vt_require(vt_duo_qp(&s, VICTIM), "a new QP");
}

static void survivor_close(void)
{
	/* Every receive is posted or has completed: nothing was lost with a dead peer. */
	take_for(20000);
	uint64_t before = healthy_last;
	for (uint64_t start = vt_now_us(); healthy_last == before && vt_now_us() - start < 20000000;)
		take();
	vt_check(healthy_last > before, "the healthy peer does not send any more");
	char stop = 1;
	vt_put(healthy_fd, &stop, 1);
	/* Its last message may wait for a receive: go on serving until it has ended. */
	siginfo_t end = { .si_pid = 0 };
	for (int i = 0; i < 1000 && end.si_pid == 0; i++) {
		take_for(5000);
		waitid(P_PID, (id_t)healthy_pid, &end, WEXITED | WNOHANG | WNOWAIT);
	}
	vt_check(vt_reap(healthy_pid, 5000) == 0, "the healthy peer failed");
	close(healthy_fd);
	take_for(2000);
	struct ibv_srq_attr a;
	vt_require(ibv_query_srq(s.srq, &a) == 0, "ibv_query_srq");
	uint64_t in_queue = posted - completed, room = 0;
	while (room <= a.max_wr && post_receive(0))
		room++;
	vt_check(room + in_queue == a.max_wr,
		"an SRQ of %u holds %" PRIu64 " and takes %" PRIu64 " more: %" PRId64 " entries are lost", a.max_wr, in_queue, room,
		 (int64_t)(a.max_wr - room - in_queue));
	vt_check(vt_duo_close(&s), "closing");
}

static int rounds(int otherwise)
{
	const char *n = getenv("VT_ROUNDS");
	return n ? atoi(n) : otherwise;
}

static void kill_under_load(void)
{
	int n = rounds(500), early = 0;
	uint64_t longest = 0;
	survivor_open();
	for (int round = 0; round < n; round++) {
		int fd;
		pid_t pid = vt_spawn("victim", &fd);
		vt_require(pid > 0, "fork");
		/* A tenth die while they set up, at a moment of their first 10 ms. */
		if (round % 10 == 9)
			usleep((useconds_t)(vt_random() % 10000));
		bool early_kill = round % 10 == 9;
		if (early_kill)
			kill(pid, SIGKILL);
		bool met = victim_meet(fd);
		vt_require(met || early_kill, "round %d: the victim did not come up", round);
		if (met && !early_kill) {
			uint64_t until = vt_now_us() + vt_random() % 6000;
			while (vt_now_us() < until)
				vt_require(push(), "round %d: a request failed while the victim lived", round);
			kill(pid, SIGKILL);
		}
		uint64_t start = vt_now_us();
		early += !met;
		/* A victim that died before its address was known has a QP that was never connected. */
		if (met || s.qp[VICTIM]->state == IBV_QPS_RTS) {
			for (int i = 0; i < 5; i++)
				take();
			victim_gone("killed", round);
		}
		longest = vt_now_us() - start > longest ? vt_now_us() - start : longest;
		vt_check(vt_kill(pid), "round %d: the victim ended by itself", round);
		close(fd);
	}
	vt_note("%d victims killed, %d of them before they were connected; longest end of requests %" PRIu64 " us; %" PRIu64 " healthy messages", n,
		early, longest, healthy_last);
	survivor_close();
}

static void stop_and_continue(void)
{
	int n = rounds(60), fd;
	survivor_open();
	pid_t pid = vt_spawn("victim", &fd);
	vt_require(pid > 0 && victim_meet(fd), "the victim");
	uint64_t least = UINT64_MAX;
	for (int round = 0; round < n; round++) {
		take_for(vt_random() % 8000);
		kill(pid, SIGSTOP);
		take_for(2000);
		uint64_t before = healthy_last;
		take_for(15000);
		uint64_t got = healthy_last - before;
		/* A busy machine may give the healthy peer no time; half of what a stopped peer is waited for is surely enough. */
		for (uint64_t start = vt_now_us(); healthy_last == before && vt_now_us() - start < 1000000;)
			take();
		least = got < least ? got : least;
		vt_check(healthy_last > before, "round %d: the healthy peer stood still while the other was stopped", round);
		kill(pid, SIGCONT);
		uint64_t mark = victim_last, start = vt_now_us();
		while (victim_last == mark && vt_now_us() - start < 20000000)
			take();
		vt_require(victim_last > mark, "round %d: the stopped peer did not go on", round);
	}
	vt_note("stopped %d times; in 15 ms of it at least %" PRIu64 " healthy messages", n, least);
	kill(pid, SIGKILL);
	victim_gone("killed", n);
	vt_reap(pid, 5000);
	close(fd);
	/* Killed while stopped. */
	for (int round = 0; round < 20; round++) {
		pid = vt_spawn("victim", &fd);
		vt_require(pid > 0 && victim_meet(fd), "the victim");
		uint64_t until = vt_now_us() + vt_random() % 3000;
		while (vt_now_us() < until)
			push();
		kill(pid, SIGSTOP);
		take_for(1000 + vt_random() % 3000);
		kill(pid, SIGKILL);
		victim_gone("killed while stopped", round);
		vt_reap(pid, 5000);
		close(fd);
	}
	survivor_close();
}

static void exec_while_connected(void)
{
	survivor_open();
	for (int round = 0; round < 20; round++) {
		int fd;
		pid_t pid = vt_spawn("exec", &fd);
		vt_require(pid > 0 && victim_meet(fd), "the victim");
		uint64_t start = vt_now_us();
		while (push() && vt_now_us() - start < 20000000)
			;
		vt_check(sends_bad > 0, "round %d: requests to a process that became another one still succeed", round);
		victim_gone("exec", round);
		close(fd);
		vt_check(vt_reap(pid, 5000) == 0, "the program that it became was disturbed");
	}
	survivor_close();
}

/* The whole process group of survivor and peers is killed by the harness; see robust.rs. Runs for ever. */
static void endless(void)
{
	survivor_open();
	int fd;
	pid_t pid = vt_spawn("victim", &fd);
	vt_require(pid > 0 && victim_meet(fd), "the victim");
	printf("running\n");
	for (;;)
		push();
}

int main(int argc, char **argv)
{
	/* "endless" last and only by name: without names the others run. */
	static const struct vt_case cases[] = { { "kill_under_load", kill_under_load }, { "stop_and_continue", stop_and_continue },
						{ "exec_while_connected", exec_while_connected }, { "endless", endless } };
	static const struct vt_role roles[] = { { "healthy", healthy_peer }, { "victim", victim_peer }, { "exec", exec_peer } };
	return vt_main_roles(argc, argv, cases, argc > 1 ? 4 : 3, roles, VT_ARRAY(roles));
}
