/* Eight processes send to one over eight QPs that share an SRQ and a CQ: the receiver polls busily, then lets the SRQ run
 * down to its limit, then sleeps on a completion channel. Every message arrives exactly once and in the order of its
 * sender, the limit is told once for each time it was armed, and nobody hangs. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#define SENDERS 8
#define RECVS 256
#define OPTS &(struct vt_duo_opts){ .type = VT_RC_SRQ, .nqp = SENDERS, .depth = RECVS / 2, .size = 1 << 20 }
#define CLIENT &(struct vt_duo_opts){ .type = VT_RC, .nqp = 1, .depth = 32, .size = 1 << 20 }
#define BUSY 4000
#define LIMITED 2000
#define ASLEEP 600
#define LIMIT 32
#define MSG 64
#define SHORT 16 /* short enough to wait in its completion */
#define PAGE 4096

static struct vt_duo d;
static int fd[SENDERS];
static pid_t pid[SENDERS];
static uint64_t last[SENDERS], total;
static uint64_t held[RECVS]; /* receives that are not posted again yet */
static unsigned nheld;
static uint64_t apart = MSG; /* from one receive to the next */

/* Told over the socket: how many messages, at most how many µs between two, and at most how many page faults, 0 for any; 0
 * messages are the end. */
struct order {
	uint32_t messages, pause, most_faults;
};

static long faults(void)
{
	struct rusage usage;
	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_minflt;
}

static int sender(int sock)
{
	struct order o;
	struct ibv_wc wc;
	uint64_t number = 0;
	if (!vt_duo_open(&d, CLIENT) || !vt_duo_meet(&d, sock))
		return 1;
	while (vt_get(sock, &o, sizeof(o), 60000) && o.messages) {
		long before = faults();
		for (uint32_t i = 1, out = 0; i <= o.messages; i++) {
			uint64_t text[MSG / 8] = { ++number, ~number };
			struct ibv_sge sge = { (uintptr_t)text, o.most_faults ? MSG : SHORT, 0 };
			if (vt_duo_post(&d, 0, IBV_WR_SEND_WITH_IMM, number, IBV_SEND_SIGNALED | IBV_SEND_INLINE, &sge, 1, 0)) {
				printf("FAIL sender: posting %" PRIu64 "\n", number);
				return 1;
			}
			for (out++; out >= 16 || (i == o.messages && out); out--)
				if (vt_poll(d.cq, &wc, 1, 30000) != 1 || wc.status != IBV_WC_SUCCESS) {
					printf("FAIL sender: message %" PRIu64 "\n", number);
					return 1;
				}
			if (o.pause)
				usleep((useconds_t)(vt_random() % o.pause));
		}
		if (o.most_faults && faults() - before > o.most_faults) {
			printf("FAIL sender: %ld page faults in %u messages\n", faults() - before, o.messages);
			return 1;
		}
	}
	return vt_duo_close(&d) ? 0 : 1;
}

static void post_receive(uint64_t slot)
{
	struct ibv_sge sge = vt_duo_sge(&d, slot * apart, MSG);
	struct ibv_recv_wr r = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;
	vt_require(ibv_post_srq_recv(d.srq, &r, &bad) == 0, "no room for a receive that came back");
}

static void open_all(void)
{
	vt_require(vt_duo_open(&d, OPTS), "the receiver");
	struct vt_duo_addr mine = d.self, hello = mine;
	memset(last, 0, sizeof(last));
	memset(d.buf, 0, RECVS * apart);
	total = nheld = 0;
	for (uint64_t i = 0; i < RECVS; i++)
		post_receive(i);
	for (int i = 0; i < SENDERS; i++) {
		char go = 1;
		pid[i] = vt_spawn("sender", &fd[i]);
		hello.qpn[0] = mine.qpn[i];
		vt_require(pid[i] > 0 && vt_get(fd[i], &d.peer, sizeof(d.peer), 20000) && vt_put(fd[i], &hello, sizeof(hello)), "sender %d", i);
		d.peer.qpn[i] = d.peer.qpn[0];
		vt_require(vt_duo_connect(&d, i) && vt_put(fd[i], &go, 1) && vt_get(fd[i], &go, 1, 20000), "sender %d", i);
	}
}

static void order_all(uint32_t messages, uint32_t pause)
{
	struct order o = { .messages = messages, .pause = pause };
	for (int i = 0; i < SENDERS; i++)
		vt_require(vt_put(fd[i], &o, sizeof(o)), "sender %d is gone", i);
}

/* Polls once; returns how many messages came. */
static int take(bool hold)
{
	struct ibv_wc wc[16];
	int n = ibv_poll_cq(d.cq, 16, wc);
	vt_require(n >= 0, "ibv_poll_cq");
	for (int i = 0; i < n; i++) {
		int from = 0;
		uint64_t text[2];
		while (from < SENDERS && d.self.qpn[from] != wc[i].qp_num)
			from++;
		vt_require(from < SENDERS && wc[i].wr_id < RECVS, "a completion of QP 0x%x, wr_id %" PRIu64, wc[i].qp_num, wc[i].wr_id);
		vt_require(wc[i].status == IBV_WC_SUCCESS, "sender %d: %s", from, vt_wc_name((int)wc[i].status));
		memcpy(text, d.buf + wc[i].wr_id * apart, sizeof(text));
		vt_require(text[0] == last[from] + 1 && text[1] == ~text[0] && be32toh(wc[i].imm_data) == (uint32_t)text[0] &&
			   wc[i].byte_len == (apart == MSG ? SHORT : MSG), "sender %d: after message %" PRIu64 " came %" PRIu64, from, last[from], text[0]);
		memset(d.buf + wc[i].wr_id * apart, 0, MSG);
		last[from]++;
		total++;
		if (hold)
			held[nheld++] = wc[i].wr_id;
		else
			post_receive(wc[i].wr_id);
	}
	return n;
}

static void poll_until(uint64_t mark, bool hold)
{
	uint64_t progress = vt_now_us();
	while (total < mark && nheld < RECVS)
		if (take(hold))
			progress = vt_now_us();
		else
			vt_require(vt_now_us() - progress < 20000000, "nothing comes any more after %" PRIu64 " messages", total);
}

static void post_held(void)
{
	while (nheld)
		post_receive(held[--nheld]);
}

/* How many times the limit was told, and nothing else. */
static int limits_told(unsigned ms)
{
	struct ibv_async_event e;
	int n = 0;
	while (vt_event(d.dev.ctx, &e, n ? 0 : ms) == 1) {
		bool limit = e.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && e.element.srq == d.srq;
		int type = (int)e.event_type;
		ibv_ack_async_event(&e);
		if (type == IBV_EVENT_COMM_EST)
			continue;
		vt_require(limit, "event %s", vt_event_name(type));
		n++;
	}
	return n;
}

static void arm_limit(void)
{
	struct ibv_srq_attr a = { .srq_limit = LIMIT };
	vt_require(ibv_modify_srq(d.srq, &a, IBV_SRQ_LIMIT) == 0, "ibv_modify_srq: %s", strerror(errno));
}

/* Arms, looks, sleeps. */
static unsigned sleep_until(uint64_t mark)
{
	struct ibv_cq *cq;
	void *context;
	unsigned slept = 0;
	while (total < mark) {
		vt_require(ibv_req_notify_cq(d.cq, 0) == 0, "ibv_req_notify_cq");
		if (take(false))
			continue;
		struct pollfd f = { .fd = d.channel->fd, .events = POLLIN };
		if (poll(&f, 1, 10000) != 1) {
			int missed = take(false);
			vt_require(false, "asleep for 10 s after %" PRIu64 " of %" PRIu64 " messages, %d in the CQ", total, mark, missed);
		}
		vt_require(ibv_get_cq_event(d.channel, &cq, &context) == 0 && cq == d.cq, "ibv_get_cq_event: %s", strerror(errno));
		ibv_ack_cq_events(cq, 1);
		slept++;
	}
	return slept;
}

static void close_all(uint64_t each)
{
	order_all(0, 0);
	for (int i = 0; i < SENDERS; i++) {
		int status = vt_reap(pid[i], 20000);
		vt_check(status == 0, "sender %d: status 0x%x", i, (unsigned)status);
		vt_check(last[i] == each, "sender %d: %" PRIu64 " messages", i, last[i]);
		close(fd[i]);
	}
	for (int i = 0; i < 20; i++)
		vt_check(take(false) == 0, "a message too many");
	vt_check(vt_duo_close(&d), "closing");
}

static void busily(void)
{
	open_all();
	order_all(BUSY, 0);
	poll_until((uint64_t)BUSY * SENDERS, false);
	close_all(BUSY);
}

/* The receiver posts none again until the limit was told; the senders find the queue empty meanwhile and try again. */
static void the_limit_is_told_once(void)
{
	int armed = 0, told = 0;
	uint64_t all = (uint64_t)LIMITED * SENDERS;
	open_all();
	order_all(LIMITED, 0);
	while (total + 2 * RECVS < all) {
		vt_require(limits_told(0) == 0, "a limit was told that is not armed");
		arm_limit();
		armed++;
		poll_until(total + RECVS, true); /* all of them: the queue is empty */
		told += limits_told(5000);
		vt_require(told == armed, "armed %d times, told %d times", armed, told);
		struct ibv_srq_attr a;
		vt_require(ibv_query_srq(d.srq, &a) == 0 && a.srq_limit == 0, "still armed at %u", a.srq_limit);
		post_held();
		/* Below the limit once more, and not armed. */
		poll_until(total + RECVS, true);
		vt_require(limits_told(0) == 0, "told once more");
		post_held();
	}
	poll_until(all, false);
	vt_check(limits_told(20) == 0, "told once more");
	vt_check(armed > 5, "armed only %d times", armed);
	close_all(LIMITED);
	vt_note("the limit was armed and told %d times", armed);
}

static void asleep(void)
{
	open_all();
	order_all(ASLEEP, 300);
	unsigned slept = sleep_until((uint64_t)ASLEEP * SENDERS);
	/* Then a storm, and one that is all but over. */
	order_all(BUSY, 0);
	unsigned storm = sleep_until((uint64_t)(ASLEEP + BUSY) * SENDERS);
	for (int i = 1; i <= 20; i++) {
		order_all(1, 0);
		sleep_until((uint64_t)(ASLEEP + BUSY + i) * SENDERS);
	}
	close_all(ASLEEP + BUSY + 20);
	vt_note("%u events for %d messages with pauses, %u for %d without", slept, ASLEEP * SENDERS, storm, BUSY * SENDERS);
}

/* Receives in a page of their own each, as UCX posts them: whoever sends does not take a page fault for each. For peers that map
 * the memory. */
static void far_apart(void)
{
	struct order o = { .messages = RECVS, .most_faults = RECVS / 2 };
	apart = PAGE;
	open_all();
	for (int i = 0; i < SENDERS; i++) {
		vt_require(vt_put(fd[i], &o, sizeof(o)), "sender %d is gone", i);
		poll_until(RECVS * (uint64_t)(i + 1), false);
	}
	close_all(RECVS);
	apart = MSG;
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = {
		{ "busily", busily }, { "the_limit_is_told_once", the_limit_is_told_once }, { "asleep", asleep },
		{ "far_apart", far_apart },
	};
	static const struct vt_role roles[] = { { "sender", sender } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
