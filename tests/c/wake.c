/* Events and copies that another process has to be woken for: programs that sleep on a completion channel, whose peers are
 * stopped, killed, or outlive the channel; and, where the owner of memory copies, long messages that are seen, stopped or
 * revoked half way. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define RECVS 16
#define MSG 64
#define BIG (4u << 20)
#define OPTS(t, n) &(struct vt_duo_opts){ .type = t, .nqp = n, .depth = RECVS, .timeout = 14, .retry = 7, .size = 2 * BIG }

static struct vt_duo d;
static uint64_t last[2];

static int rounds(int otherwise)
{
	const char *n = getenv("VT_ROUNDS");
	return n ? atoi(n) : otherwise;
}

static bool receive_into(uint64_t slot)
{
	struct ibv_sge sge = vt_duo_sge(&d, slot * MSG, MSG);
	struct ibv_recv_wr r = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;
	return d.srq ? ibv_post_srq_recv(d.srq, &r, &bad) == 0 : ibv_post_recv(d.qp[0], &r, &bad) == 0;
}

static bool send_number(uint64_t number)
{
	memcpy(d.buf + BIG, &number, 8);
	struct ibv_sge sge = vt_duo_sge(&d, BIG, 8);
	return vt_duo_post(&d, 0, IBV_WR_SEND, RECVS, IBV_SEND_SIGNALED | IBV_SEND_INLINE, &sge, 1, 0) == 0;
}

/* Takes in what the CQ holds: receives in order for each QP. Returns how many there were, -1 after an error. */
static int take(void)
{
	struct ibv_wc wc[8];
	int got = 0;
	for (int n; (n = ibv_poll_cq(d.cq, 8, wc)) > 0; got += n)
		for (int i = 0; i < n; i++) {
			if (wc[i].status != IBV_WC_SUCCESS)
				return -1;
			if (wc[i].wr_id >= RECVS)
				continue;
			uint64_t number;
			int from = wc[i].qp_num == d.self.qpn[0] ? 0 : 1;
			memcpy(&number, d.buf + wc[i].wr_id * MSG, 8);
			vt_check(number == last[from] + 1, "after message %" PRIu64 " came %" PRIu64, last[from], number);
			last[from] = number;
			vt_require(receive_into(wc[i].wr_id), "posting a receive");
		}
	return got;
}

/* Sleeps until there is something in the CQ, as a program does: arm, look, sleep on the channel. 1, 0 after ms without,
 * -1 after an error. A completion that comes without an event is a failure. */
static int sleep_for(int ms)
{
	struct ibv_cq *cq;
	void *context;
	vt_require(ibv_req_notify_cq(d.cq, 0) == 0, "ibv_req_notify_cq");
	int got = take();
	if (got)
		return got < 0 ? -1 : 1;
	struct pollfd f = { .fd = d.channel->fd, .events = POLLIN };
	if (poll(&f, 1, ms) == 0) {
		got = take();
		if (got > 0)
			vt_require(poll(&f, 1, 3000) == 1, "a completion came, and no event");
		if (got <= 0)
			return got;
	}
	vt_require(ibv_get_cq_event(d.channel, &cq, &context) == 0 && cq == d.cq, "ibv_get_cq_event: %s", strerror(errno));
	ibv_ack_cq_events(cq, 1);
	return got ? 1 : take() < 0 ? -1 : 1;
}

/* ---- asleep on both sides ---- */

static bool answer(uint64_t rounds_left, bool first)
{
	for (uint64_t i = 1; i <= rounds_left; i++) {
		if (first && !send_number(i))
			return false;
		for (uint64_t before = last[0]; last[0] == before;)
			if (sleep_for(10000) != 1)
				return false;
		if (!first && !send_number(i))
			return false;
	}
	return true;
}

static bool open_and_meet(int fd)
{
	if (!vt_duo_open(&d, OPTS(VT_RC, 1)))
		return false;
	memset(last, 0, sizeof(last));
	if (!vt_duo_meet(&d, fd))
		return false;
	for (uint64_t i = 0; i < RECVS; i++)
		if (!receive_into(i))
			return false;
	return true;
}

static int answerer(int fd)
{
	char c;
	return open_and_meet(fd) && answer(2000, false) && vt_put(fd, "x", 1) && vt_get(fd, &c, 1, 10000) && vt_duo_close(&d) ? 0 : 1;
}

static void two_sleepers(void)
{
	int fd;
	char c;
	pid_t pid = vt_spawn("answerer", &fd);
	vt_require(pid > 0 && open_and_meet(fd), "the peer");
	vt_check(answer(2000, true), "after %" PRIu64 " answers none came", last[0]);
	vt_check(vt_get(fd, &c, 1, 10000) && vt_put(fd, "x", 1) && vt_duo_close(&d), "closing");
	vt_check(vt_reap(pid, 10000) == 0, "the peer failed");
	close(fd);
}

/* ---- senders that are stopped and killed ---- */

static int sender(int fd)
{
	struct ibv_wc wc;
	char c;
	if (!vt_duo_open(&d, OPTS(VT_RC, 1)) || !vt_duo_meet(&d, fd))
		return 1;
	for (uint64_t i = 1; !vt_get(fd, &c, 1, 0); i++) {
		if (!send_number(i) || vt_poll(d.cq, &wc, 1, 20000) != 1 || wc.status != IBV_WC_SUCCESS)
			return 1;
		usleep((useconds_t)(vt_random() % 200));
	}
	return vt_duo_close(&d) ? 0 : 1;
}

static pid_t meet_sender(int slot, int *fd)
{
	char go = 1;
	struct vt_duo_addr hello = d.self;
	pid_t pid = vt_spawn("sender", fd);
	hello.qpn[0] = d.self.qpn[slot];
	last[slot] = 0;
	vt_require(pid > 0 && vt_put(*fd, &hello, sizeof(hello)) && vt_get(*fd, &d.peer, sizeof(d.peer), 20000), "a sender");
	d.peer.qpn[slot] = d.peer.qpn[0];
	vt_require(vt_duo_connect(&d, slot) && vt_put(*fd, &go, 1) && vt_get(*fd, &go, 1, 20000), "a sender");
	return pid;
}

static void open_sleeper(int qps)
{
	vt_require(vt_duo_open(&d, OPTS(VT_RC_SRQ, qps)), "opening");
	for (uint64_t i = 0; i < RECVS; i++)
		vt_require(receive_into(i), "posting");
}

static void stopped_senders_wake_nobody_less(void)
{
	int fds[2];
	open_sleeper(2);
	pid_t healthy = meet_sender(0, &fds[0]), victim = meet_sender(1, &fds[1]);
	for (int i = 0; i < rounds(60); i++) {
		for (uint64_t until = vt_now_us() + vt_random() % 6000; vt_now_us() < until;)
			vt_require(sleep_for(5000) == 1, "no event");
		kill(victim, SIGSTOP);
		uint64_t mark = last[0] + 10;
		while (last[0] < mark)
			vt_require(sleep_for(5000) == 1, "round %d: asleep while a sender is stopped and another sends", i);
		kill(victim, SIGCONT);
		for (mark = last[1]; last[1] == mark;)
			vt_require(sleep_for(5000) == 1, "round %d: no event of the sender that goes on", i);
	}
	kill(victim, SIGKILL);
	kill(healthy, SIGKILL);
	while (sleep_for(300) == 1)
		;
	vt_reap(victim, 5000);
	vt_reap(healthy, 5000);
	vt_check(vt_duo_close(&d), "closing");
	close(fds[0]);
	close(fds[1]);
}

static void killed_senders_leave_no_silent_completion(void)
{
	uint64_t got = 0;
	for (int i = 0; i < rounds(60); i++) {
		int fd;
		open_sleeper(1);
		pid_t pid = meet_sender(0, &fd);
		for (uint64_t until = vt_now_us() + vt_random() % 4000; vt_now_us() < until;)
			vt_require(sleep_for(5000) == 1, "no event");
		kill(pid, SIGKILL);
		while (sleep_for(50) == 1)
			;
		got += last[0];
		vt_reap(pid, 5000);
		close(fd);
		vt_check(vt_duo_close(&d), "closing");
	}
	vt_note("%" PRIu64 " messages", got);
}

/* ---- a peer that outlives channels ---- */

static int open_files(void)
{
	int n = 0;
	DIR *dir = opendir("/proc/self/fd");
	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n;
}

/* Sends three messages to each address it is given; then tells how many files more it has open than after the tenth. */
static int server(int fd)
{
	struct ibv_wc wc;
	int tenth = 0;
	if (!vt_duo_open(&d, OPTS(VT_RC, 0)))
		return 1;
	d.o.nqp = 1;
	for (int i = 0;; i++) {
		char more;
		if (!vt_get(fd, &more, 1, 20000))
			return 1;
		if (!more)
			break;
		if (!vt_duo_qp(&d, 0) || !vt_duo_meet(&d, fd))
			return 1;
		for (uint64_t n = 1; n <= 3; n++) {
			if (!send_number(n) || vt_poll(d.cq, &wc, 1, 20000) != 1 || wc.status != IBV_WC_SUCCESS)
				return 1;
			usleep(300);
		}
		if (!vt_get(fd, &more, 1, 20000) || ibv_destroy_qp(d.qp[0]))
			return 1;
		d.qp[0] = NULL;
		tenth = i == 10 ? open_files() : tenth;
	}
	int growth = open_files() - tenth;
	return vt_put(fd, &growth, sizeof(growth)) ? 0 : 1;
}

static void channels_come_and_go(void)
{
	int fd, growth = 1000, n = rounds(150);
	pid_t pid = vt_spawn("server", &fd);
	vt_require(pid > 0, "the peer");
	for (int i = 0; i < n; i++) {
		vt_require(vt_put(fd, "\1", 1) && open_and_meet(fd), "round %d", i);
		while (last[0] < 3)
			vt_require(sleep_for(5000) == 1, "round %d: no event after message %" PRIu64, i, last[0]);
		vt_require(vt_put(fd, "x", 1) && vt_duo_close(&d), "closing, round %d", i);
	}
	vt_check(vt_put(fd, "\0", 1) && vt_get(fd, &growth, sizeof(growth), 10000), "the end");
	vt_check(growth <= 4, "the peer holds %d descriptors more after %d channels than after 10", growth, n);
	vt_check(vt_reap(pid, 10000) == 0, "the peer failed");
	close(fd);
}

/* ---- long messages that are seen half way ---- */

static const uint32_t sizes[] = { 8, 4096, 65536, 65536 + 8, 1u << 20, (1u << 20) + 12, BIG };

static void fill(uint8_t *p, uint32_t n, uint32_t word)
{
	for (uint32_t at = 0; at < n; at += 4)
		memcpy(p + at, &word, 4);
}

static int writer(int fd)
{
	struct ibv_wc wc;
	char c;
	if (!vt_duo_open(&d, OPTS(VT_RC, 1)) || !vt_duo_meet(&d, fd))
		return 1;
	for (uint32_t i = 1; vt_get(fd, &c, 1, 20000) && c; i++) {
		uint32_t n = sizes[i % VT_ARRAY(sizes)];
		fill(d.buf, n, i);
		struct ibv_sge sge[2] = { vt_duo_sge(&d, 0, n / 2), vt_duo_sge(&d, n / 2, n - n / 2) };
		int op = i % 5 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
		if (op == IBV_WR_RDMA_READ)
			fill(d.buf, n, 0);
		if (vt_duo_post(&d, 0, op, i, IBV_SEND_SIGNALED, sge, 2, d.peer.addr) || vt_poll(d.cq, &wc, 1, 20000) != 1 ||
		    wc.status != IBV_WC_SUCCESS)
			return 1;
		for (uint32_t at = 0; op == IBV_WR_RDMA_READ && at < n; at += 4) {
			uint32_t word;
			memcpy(&word, d.buf + at, 4);
			if (word != i)
				return 2;
		}
	}
	return vt_duo_close(&d) ? 0 : 1;
}

/* The last word of a message is the last to change, however it gets there. */
static void the_tail_comes_last(void)
{
	int fd;
	pid_t pid = vt_spawn("writer", &fd);
	vt_require(pid > 0 && vt_duo_open(&d, OPTS(VT_RC, 1)) && vt_duo_meet(&d, fd), "the peer");
	for (uint32_t i = 1; i <= (uint32_t)rounds(300); i++) {
		uint32_t n = sizes[i % VT_ARRAY(sizes)], word = 0;
		bool read = i % 5 == 0;
		if (read)
			fill(d.buf, n, i);
		vt_require(vt_put(fd, "\1", 1), "round %u", i);
		volatile uint32_t *tail = (volatile uint32_t *)(d.buf + n - 4);
		for (uint64_t until = vt_now_us() + 20000000; *tail != i;)
			vt_require(vt_now_us() < until, "round %u: %u bytes never came", i, n);
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		for (uint32_t at = 0; at < n; at += 4) {
			memcpy(&word, d.buf + at, 4);
			vt_require(word == i, "round %u: with the tail of %u bytes there, byte %u is of message %u", i, n, at, word);
		}
	}
	vt_check(vt_put(fd, "\0", 1) && vt_reap(pid, 20000) == 0, "the peer failed");
	vt_check(vt_duo_close(&d), "closing");
	close(fd);
}

/* Writes without end; a key that is no longer good is told by status, and both take new QPs. */
static int intruder(int fd)
{
	struct ibv_wc wc;
	char c = 1;
	uint32_t rkey;
	if (!vt_duo_open(&d, OPTS(VT_RC, 0)))
		return 1;
	d.o.nqp = 1;
	while (vt_get(fd, &c, 1, 20000) && c) {
		if (!vt_duo_qp(&d, 0) || !vt_duo_meet(&d, fd) || !vt_get(fd, &rkey, sizeof(rkey), 20000))
			return 1;
		d.peer.rkey = rkey;
		do {
			struct ibv_sge sge = vt_duo_sge(&d, 0, BIG);
			if (vt_duo_post(&d, 0, IBV_WR_RDMA_WRITE, 1, IBV_SEND_SIGNALED, &sge, 1, d.peer.addr) ||
			    vt_poll(d.cq, &wc, 1, 20000) != 1)
				return 2;
		} while (wc.status == IBV_WC_SUCCESS);
		if (wc.status != IBV_WC_REM_ACCESS_ERR)
			return 3;
		if (!vt_put(fd, "x", 1) || ibv_destroy_qp(d.qp[0]))
			return 4;
		d.qp[0] = NULL;
	}
	return vt_duo_close(&d) ? 0 : 5;
}

static void revoked_half_way(void)
{
	int fd;
	pid_t pid = vt_spawn("intruder", &fd);
	vt_require(pid > 0 && vt_duo_open(&d, OPTS(VT_RC, 0)), "the peer");
	d.o.nqp = 1;
	for (int i = 0; i < rounds(60); i++) {
		char c;
		vt_require(vt_put(fd, "\1", 1) && vt_duo_qp(&d, 0) && vt_duo_meet(&d, fd), "round %d", i);
		struct ibv_mr *mr = ibv_reg_mr(d.pd, d.buf, BIG, VT_ACCESS_ALL);
		vt_require(mr && vt_put(fd, &mr->rkey, sizeof(mr->rkey)), "round %d", i);
		for (uint64_t until = vt_now_us() + vt_random() % 5000; vt_now_us() < until;)
			usleep(50);
		vt_require(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
		uint32_t mark = 0xa5000000u | (uint32_t)i, word;
		fill(d.buf, BIG, mark);
		for (int look = 0; look < 2; look++, usleep(500))
			for (uint32_t at = 0; at < BIG; at += 4) {
				memcpy(&word, d.buf + at, 4);
				vt_require(word == mark, "round %d: byte %u changed after the region was deregistered", i, at);
			}
		vt_require(vt_get(fd, &c, 1, 20000), "round %d: the writer was not refused", i);
		struct ibv_async_event event;
		while (vt_event(d.dev.ctx, &event, 0))
			ibv_ack_async_event(&event);
		vt_require(ibv_destroy_qp(d.qp[0]) == 0, "ibv_destroy_qp");
		d.qp[0] = NULL;
	}
	vt_check(vt_put(fd, "\0", 1) && vt_reap(pid, 20000) == 0, "the peer failed");
	vt_check(vt_duo_close(&d), "closing");
	close(fd);
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = {
		{ "two_sleepers", two_sleepers },
		{ "stopped_senders_wake_nobody_less", stopped_senders_wake_nobody_less },
		{ "killed_senders_leave_no_silent_completion", killed_senders_leave_no_silent_completion },
		{ "channels_come_and_go", channels_come_and_go },
		{ "the_tail_comes_last", the_tail_comes_last },
		{ "revoked_half_way", revoked_half_way },
	};
	static const struct vt_role roles[] = { { "answerer", answerer }, { "sender", sender }, { "server", server },
						{ "writer", writer }, { "intruder", intruder } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
