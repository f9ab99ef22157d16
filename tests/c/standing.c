/* A process that stands still in the midst of traffic (vervain.h), and a peer that notices nothing but the time it takes: no request of
 * either fails, none is lost or done twice, and from the end of vervain_stop to vervain_go no byte of the stopped process's memory
 * and no completion comes, and nothing of it reaches the peer. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include "../../crates/verbs/libibverbs/include/vervain.h"
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Not linked: the library that the program is compiled with has no such functions. */
static int (*stop)(struct ibv_context *, const struct vervain_stop_attr *);
static int (*go)(struct ibv_context *);

static void find(void)
{
	*(void **)&stop = dlsym(RTLD_DEFAULT, "vervain_stop");
	*(void **)&go = dlsym(RTLD_DEFAULT, "vervain_go");
	vt_require(stop && go, "the library has no vervain_stop and vervain_go: %s", dlerror());
}

#define DEPTH 32u
#define MESSAGE 3000u /* of messages, at most */
#define LONG (200u * 1024)
/* A buffer: receives, what is sent, the answers of atomics, the word that the peer adds to, where the peer writes, what is written. */
#define SEND_AT (DEPTH * 4096u)
#define ANSWER_AT (2 * SEND_AT)
#define WORD_AT (ANSWER_AT + 4096)
#define THERE_AT (WORD_AT + 4096)
#define FROM_AT (THERE_AT + LONG)
#define SIZE (FROM_AT + LONG)

static struct vt_duo d;
static uint64_t posted[3], done[3], received; /* messages, atomics, writes; messages of the peer */
static bool failed;

enum { MESSAGES, ATOMICS, WRITES };
static const uint64_t at_most[3] = { 8, 8, 2 };

static bool by_packets(void)
{
	const char *link = getenv("VERVAIN_LINK");
	return link && (!strcmp(link, "roce") || !strcmp(link, "window"));
}

/* By memory a stopped peer is waited for, whatever the timeouts are; packets are repeated as long as they say. */
static bool open_to(uint8_t timeout_of_packets)
{
	bool packets = by_packets();
	struct vt_duo_opts o = { .type = VT_RC, .nqp = 3, .depth = DEPTH, .sge = 1, .size = SIZE };
	/* By memory 0.4 s, which is a fourth of the longest stop. */
	o.timeout = packets ? timeout_of_packets : 15;
	o.retry = packets ? 7 : 2;
	return vt_duo_open(&d, &o);
}

/* Longer than the longest stop. */
static bool open_duo(void)
{
	return open_to(18);
}

/* 1 s and more, to a peer that never answers. */
static bool open_to_mortal(void)
{
	return open_to(15);
}

static bool post_receive(uint64_t slot)
{
	struct ibv_sge sge = vt_duo_sge(&d, slot * 4096, 4096);
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;
	return ibv_post_recv(d.qp[0], &wr, &bad) == 0;
}

static void content(uint8_t *p, uint64_t number)
{
	vt_fill(p, MESSAGE, number * 2 + 1);
}

/* Every message says which it is, and so what it holds and how long it is. */
static void post_one(int kind)
{
	uint64_t n = posted[kind]++, slot = n % at_most[kind];
	struct ibv_sge sge;
	if (kind == MESSAGES) {
		content(d.buf + SEND_AT + slot * 4096 + 8, n);
		memcpy(d.buf + SEND_AT + slot * 4096, &n, 8);
		sge = vt_duo_sge(&d, SEND_AT + slot * 4096, 8 + (uint32_t)(n * 37 % MESSAGE));
		failed |= vt_duo_post(&d, 0, IBV_WR_SEND, MESSAGES, IBV_SEND_SIGNALED, &sge, 1, 0) != 0;
	} else if (kind == ATOMICS) {
		sge = vt_duo_sge(&d, ANSWER_AT + slot * 8, 8);
		failed |= vt_duo_post(&d, 1, IBV_WR_ATOMIC_FETCH_AND_ADD, ATOMICS, IBV_SEND_SIGNALED, &sge, 1, d.peer.addr + WORD_AT) != 0;
	} else {
		sge = vt_duo_sge(&d, FROM_AT, LONG);
		failed |= vt_duo_post(&d, 2, IBV_WR_RDMA_WRITE, WRITES, IBV_SEND_SIGNALED, &sge, 1, d.peer.addr + THERE_AT) != 0;
	}
}

/* Posts what there is room for. */
static void post(void)
{
	for (int kind = 0; kind < 3; kind++)
		while (posted[kind] - done[kind] < at_most[kind])
			post_one(kind);
}

/* Takes what has completed; how many. */
static int take(void)
{
	struct ibv_wc wc[16];
	int n = ibv_poll_cq(d.cq, 16, wc);
	for (int i = 0; i < n; i++) {
		if (wc[i].status != IBV_WC_SUCCESS) {
			printf("FAIL a completion with %s\n", vt_wc_name((int)wc[i].status));
			failed = true;
		} else if (wc[i].opcode & IBV_WC_RECV) {
			static uint8_t expected[8 + MESSAGE];
			const uint8_t *got = d.buf + wc[i].wr_id * 4096;
			memcpy(expected, &received, 8);
			content(expected + 8, received);
			if (wc[i].byte_len != 8 + (uint32_t)(received * 37 % MESSAGE) || memcmp(got, expected, wc[i].byte_len)) {
				uint64_t number;
				memcpy(&number, got, 8);
				printf("FAIL message %" PRIu64 " came as %" PRIu64 ", %u bytes\n", received, number, wc[i].byte_len);
				failed = true;
			}
			received++;
			failed |= !post_receive(wc[i].wr_id);
		} else {
			done[wc[i].wr_id]++;
		}
	}
	return n;
}

static uint64_t word(void)
{
	uint64_t value;
	memcpy(&value, d.buf + WORD_AT, 8);
	return value;
}

/* What the other may have changed: the receives, the word, where it writes. */
static uint64_t memory(void)
{
	return vt_hash(d.buf, SEND_AT) ^ vt_hash(d.buf + WORD_AT, 4096) * 3 ^ vt_hash(d.buf + THERE_AT, LONG) * 5;
}

/* And the answers of own requests. */
static uint64_t all_memory(void)
{
	return memory() ^ vt_hash(d.buf + ANSWER_AT, 4096) * 7;
}

static bool begin(int fd)
{
	for (uint64_t slot = 0; slot < DEPTH; slot++)
		if (!post_receive(slot))
			return false;
	vt_fill(d.buf + FROM_AT, LONG, 77);
	char c = 'b';
	return vt_put(fd, &c, 1) && vt_get(fd, &c, 1, 60000);
}

/* What each says to the other at the end: how much it has asked for. */
struct total {
	uint64_t messages, atomics;
};

/* Goes on until everything that both have posted is done. */
static void finish(int fd)
{
	struct total mine = { posted[MESSAGES], posted[ATOMICS] }, theirs = { UINT64_MAX, 0 };
	bool asked = false;
	uint64_t until = vt_now_us() + 60000000;
	while (!failed && (!asked || done[0] < posted[0] || done[1] < posted[1] || done[2] < posted[2] || received < theirs.messages)) {
		take();
		struct pollfd p = { .fd = fd, .events = POLLIN };
		if (!asked && done[0] == posted[0] && done[1] == posted[1] && done[2] == posted[2])
			asked = vt_put(fd, &mine, sizeof(mine));
		if (theirs.messages == UINT64_MAX && poll(&p, 1, 0) == 1 && !vt_get(fd, &theirs, sizeof(theirs), 60000))
			failed = true;
		if (vt_now_us() > until) {
			printf("FAIL %" PRIu64 " of %" PRIu64 " messages, %" PRIu64 " of %" PRIu64 " atomics, %" PRIu64 " of %" PRIu64 " writes\n",
				done[0], posted[0], done[1], posted[1], done[2], posted[2]);
			failed = true;
		}
	}
	vt_check(!failed, "traffic failed");
	vt_check(received == theirs.messages, "%" PRIu64 " messages for %" PRIu64, received, theirs.messages);
	vt_check(word() == theirs.atomics, "%" PRIu64 " added for %" PRIu64, word(), theirs.atomics);
	vt_check(vt_verify(d.buf + THERE_AT, LONG, 77) == LONG, "what was written");
}

/* ---- the peer, which goes on all the time ---- */
static int peer(int fd)
{
	if (!open_duo() || !vt_duo_meet(&d, fd) || !begin(fd))
		return 1;
	for (;;) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		post();
		take();
		if (failed)
			return 1;
		if (poll(&p, 1, 0) != 1)
			continue;
		char c;
		if (!vt_get(fd, &c, 1, 1000))
			return 1;
		if (c == 'e')
			break;
		/* What of the other's requests has reached this memory; short messages do when they are polled. */
		while (take() > 0) {
		}
		uint64_t now = memory();
		vt_put(fd, &now, sizeof(now));
	}
	finish(fd);
	return failed || !vt_duo_close(&d);
}

/* ---- the one that is stopped ---- */
static int fd = -1;

static uint64_t at_the_peer(void)
{
	uint64_t there = 0;
	char c = 'q';
	vt_require(vt_put(fd, &c, 1) && vt_get(fd, &there, sizeof(there), 60000), "the peer is gone");
	return there;
}

static void stand(struct ibv_context *what, unsigned ms)
{
	int rc = stop(what, NULL);
	vt_require(rc == 0, "vervain_stop: %s", vt_errno_name(rc));
	/* What came before the stop is there to be polled. What is posted now waits. */
	while (take() > 0) {
	}
	uint64_t here = all_memory(), there = at_the_peer();
	post();
	vt_sleep_ms(ms);
	vt_check(take() == 0, "a completion came while the process stood");
	vt_check(all_memory() == here, "memory of the process that stood has changed");
	/* Packets that have left are no longer its own. */
	vt_check(by_packets() || at_the_peer() == there, "something of the process that stood has reached its peer");
	rc = go(what);
	vt_require(rc == 0, "vervain_go: %s", vt_errno_name(rc));
}

static void in_traffic(void)
{
	find();
	pid_t pid = vt_spawn("peer", &fd);
	vt_require(pid > 0 && open_duo() && vt_duo_meet(&d, fd) && begin(fd), "starting");
	for (int round = 0; round < 30 && !failed; round++) {
		uint64_t until = vt_now_us() + vt_random() % 8000;
		do {
			post();
			take();
		} while (vt_now_us() < until && !failed);
		/* The process as a whole, or its one context. */
		stand(round % 2 ? d.dev.ctx : NULL, round == 15 ? 1600 : 8);
	}
	char c = 'e';
	vt_put(fd, &c, 1);
	finish(fd);
	vt_check(vt_reap(pid, 60000) == 0, "the peer did not end well");
	vt_check(vt_duo_close(&d), "closing");
	vt_note("%" PRIu64 " messages, %" PRIu64 " atomics, %" PRIu64 " writes", posted[0], posted[1], posted[2]);
}

/* ---- requests that are taken back before the peer, whose threads stand all, has begun them ---- */
static int waits(int fd)
{
	char c;
	if (!open_duo() || !vt_duo_meet(&d, fd) || !begin(fd) || !vt_get(fd, &c, 1, 60000))
		return 1;
	post();
	finish(fd);
	return failed || !vt_duo_close(&d);
}

static void taken_back(void)
{
	find();
	int status;
	pid_t pid = vt_spawn("waits", &fd);
	vt_require(pid > 0 && open_duo() && vt_duo_meet(&d, fd) && begin(fd), "starting");
	/* The two processes know each other, and nothing else was asked for: the first message of a QP asks for room to pass through. */
	post_one(ATOMICS);
	uint64_t until = vt_now_us() + 10000000;
	while (done[ATOMICS] == 0 && !failed && vt_now_us() < until)
		take();
	vt_require(done[ATOMICS] == 1, "the first atomic");
	vt_require(kill(pid, SIGSTOP) == 0 && waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status), "the other does not stand");
	post();
	for (int round = 0; round < 4 && !failed; round++) {
		struct ibv_context *what = round % 2 ? d.dev.ctx : NULL;
		int rc = stop(what, NULL);
		vt_check(rc == 0, "vervain_stop: %s", vt_errno_name(rc));
		if (rc == 0)
			vt_check(go(what) == 0, "vervain_go");
		take();
	}
	char c = 'e';
	vt_require(kill(pid, SIGCONT) == 0 && vt_put(fd, &c, 1), "the other does not go on");
	finish(fd);
	vt_check(vt_reap(pid, 60000) == 0, "the peer did not end well");
	vt_check(vt_duo_close(&d), "closing");
}

/* One that stops, and does nothing more. */
static int stands(int fd)
{
	find();
	char c = 's';
	if (!open_to_mortal() || !vt_duo_meet(&d, fd) || !vt_get(fd, &c, 1, 60000) || stop(NULL, NULL) != 0 || !vt_put(fd, &c, 1))
		return 1;
	for (;;)
		pause();
}

/* A stopped process that is killed is one that has died: who waits for it is told so. */
static void killed(void)
{
	find();
	pid_t pid = vt_spawn("stands", &fd);
	vt_require(pid > 0 && open_to_mortal() && vt_duo_meet(&d, fd), "starting");
	struct ibv_sge sge = vt_duo_sge(&d, FROM_AT, 64);
	struct ibv_wc wc;
	uint64_t to = d.peer.addr + THERE_AT;
	vt_require(vt_duo_post(&d, 1, IBV_WR_RDMA_WRITE, 1, IBV_SEND_SIGNALED, &sge, 1, to) == 0 && vt_poll(d.cq, &wc, 1, 10000) == 1 &&
		wc.status == IBV_WC_SUCCESS, "before the stop");
	char c = 's';
	vt_require(vt_put(fd, &c, 1) && vt_get(fd, &c, 1, 60000), "the other does not stop");
	vt_require(vt_duo_post(&d, 1, IBV_WR_RDMA_WRITE, 2, IBV_SEND_SIGNALED, &sge, 1, to) == 0, "posting");
	vt_check(vt_poll(d.cq, &wc, 1, 600) == 0, "a write to a stopped process ended: %s", ibv_wc_status_str(wc.status));
	vt_require(vt_kill(pid), "the end of the other");
	vt_check(vt_poll(d.cq, &wc, 1, 60000) == 1 && wc.wr_id == 2 && wc.status == IBV_WC_RETRY_EXC_ERR,
		"a write to one that was killed while it was stopped: %s", ibv_wc_status_str(wc.status));
	vt_check(vt_duo_close(&d), "closing");
}

/* What the functions refuse. */
static void refusals(void)
{
	find();
	struct vt_dev dev, other;
	struct vervain_stop_attr unknown = { .comp_mask = 1 };
	vt_check(stop(NULL, NULL) == EINVAL && go(NULL) == EINVAL, "without a device");
	vt_require(vt_open(&dev) && vt_open(&other), "opening");
	vt_check(stop(dev.ctx, &unknown) == EINVAL, "an unknown attribute");
	vt_check(go(dev.ctx) == EALREADY && go(NULL) == EALREADY, "what is not stopped");
	vt_check(stop(dev.ctx, NULL) == 0 && stop(dev.ctx, NULL) == EALREADY, "a context twice");
	vt_check(stop(NULL, NULL) == 0 && stop(NULL, NULL) == EALREADY && stop(other.ctx, NULL) == 0, "the process too");
	vt_check(go(dev.ctx) == 0 && go(NULL) == 0 && go(NULL) == EALREADY && go(other.ctx) == 0, "going on");
	vt_check(!ibv_close_device(dev.ctx) && !ibv_close_device(other.ctx), "closing");
}

/* More contexts than can be stopped alone. */
static void many_contexts(void)
{
	enum { MOST = 255, MORE = 260 };
	static struct vt_dev dev[MORE];
	find();
	for (int i = 0; i < MORE; i++)
		vt_require(vt_open(&dev[i]), "opening %d", i);
	int stopped = 0, refused = 0;
	for (int i = 0; i < MORE; i++) {
		int rc = stop(dev[i].ctx, NULL);
		stopped += rc == 0;
		refused += rc == EOPNOTSUPP;
	}
	vt_check(stopped == MOST && refused == MORE - MOST, "%d stopped, %d refused", stopped, refused);
	vt_check(stop(NULL, NULL) == 0 && go(NULL) == 0, "all together");
	for (int i = 0; i < MORE; i++)
		vt_check(go(dev[i].ctx) == (i < MOST ? 0 : EOPNOTSUPP), "context %d going on", i);
	/* One that is closed makes room. */
	vt_require(!ibv_close_device(dev[7].ctx) && vt_open(&dev[7]), "opening again");
	vt_check(stop(dev[7].ctx, NULL) == 0 && go(dev[7].ctx) == 0, "in its place");
	for (int i = 0; i < MORE; i++)
		vt_check(!ibv_close_device(dev[i].ctx), "closing %d", i);
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

/* How long it takes where there is most to look at. */
static void many_qps(void)
{
	enum { MANY = 10000, TIMES = 51 };
	static struct ibv_qp *qp[MANY];
	static uint64_t stops[TIMES], goes[TIMES];
	struct vt_duo s = { .o = { .depth = 4, .sge = 1, .timeout = 14 } };
	find();
	vt_require(vt_open(&s.dev), "opening");
	s.pd = ibv_alloc_pd(s.dev.ctx);
	s.cq = ibv_create_cq(s.dev.ctx, MANY, NULL, NULL, 0);
	vt_require(s.pd && s.cq, "PD, CQ: %s", strerror(errno));
	s.peer = (struct vt_duo_addr){ .gid = s.dev.gid, .lid = s.dev.port.lid };
	for (int i = 0; i < MANY; i++) {
		vt_require(vt_duo_qp(&s, 0), "QP %d", i);
		qp[i] = s.qp[0];
		s.peer.qpn[0] = s.qp[0]->qp_num;
		vt_require(vt_duo_connect(&s, 0), "connecting QP %d", i);
	}
	for (int i = 0; i < TIMES; i++) {
		struct timespec t[3];
		clock_gettime(CLOCK_MONOTONIC, &t[0]);
		vt_require(stop(s.dev.ctx, NULL) == 0, "stopping");
		clock_gettime(CLOCK_MONOTONIC, &t[1]);
		vt_require(go(s.dev.ctx) == 0, "going on");
		clock_gettime(CLOCK_MONOTONIC, &t[2]);
		stops[i] = (uint64_t)(t[1].tv_sec - t[0].tv_sec) * 1000000000 + (uint64_t)(t[1].tv_nsec - t[0].tv_nsec);
		goes[i] = (uint64_t)(t[2].tv_sec - t[1].tv_sec) * 1000000000 + (uint64_t)(t[2].tv_nsec - t[1].tv_nsec);
		vt_sleep_ms(2);
	}
	qsort(stops, TIMES, sizeof(*stops), by_size);
	qsort(goes, TIMES, sizeof(*goes), by_size);
	vt_note("%d QPs: stopped in %.0f us (%.0f to %.0f), going on in %.0f us", MANY, (double)stops[TIMES / 2] / 1e3,
		(double)stops[0] / 1e3, (double)stops[TIMES - 1] / 1e3, (double)goes[TIMES / 2] / 1e3);
	for (int i = 0; i < MANY; i++)
		vt_require(ibv_destroy_qp(qp[i]) == 0, "destroying QP %d", i);
	vt_check(!ibv_destroy_cq(s.cq) && !ibv_dealloc_pd(s.pd) && !ibv_close_device(s.dev.ctx), "cleaning up");
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = {
		{ "refusals", refusals }, { "in_traffic", in_traffic }, { "taken_back", taken_back }, { "killed", killed },
		{ "many_contexts", many_contexts }, { "many_qps", many_qps },
	};
	static const struct vt_role roles[] = { { "peer", peer }, { "waits", waits }, { "stands", stands } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
