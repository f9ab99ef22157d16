/* What a program sees when the network fails under its traffic: cables that are pulled and come back, peers that are killed,
 * hosts that are gone. Runs in a namespace of its own, whose eth0 it takes down by ip(8); the peers run in that of
 * $VT_PEER_NETNS. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#define AREA 65536u
#define DEPTH 32
/* 4.096 us * 2^14, eight times: half a second of silence. 2^18: 8.6 s. */
#define SHORT { .type = VT_RC, .nqp = 1, .depth = DEPTH, .size = 2 * AREA, .timeout = 14, .retry = 7 }
#define LONG { .type = VT_RC, .nqp = 1, .depth = DEPTH, .size = 2 * AREA, .timeout = 18, .retry = 7 }

struct peer {
	struct vt_duo d;
	pid_t pid;
	int fd;
	unsigned out;
	uint64_t done;
	int failed; /* status of the first completion that was none of success */
};

/* The other side: its memory is written and read; it connects anew when told. */
static int target(int fd)
{
	static struct vt_duo d;
	struct vt_duo_opts o;
	char word;
	if (!vt_get(fd, &o, sizeof(o), 20000) || !vt_duo_open(&d, &o) || !vt_duo_meet(&d, fd))
		return 1;
	while (vt_get(fd, &word, 1, 600000)) {
		struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
		if (ibv_modify_qp(d.qp[0], &reset, IBV_QP_STATE) || !vt_duo_connect(&d, 0) || !vt_put(fd, &word, 1))
			return 1;
	}
	return vt_duo_close(&d) ? 0 : 1;
}

static void begin(struct peer *p, struct vt_duo_opts o)
{
	memset(p, 0, sizeof(*p));
	p->failed = -1;
	p->pid = vt_spawn("target", &p->fd);
	vt_require(p->pid > 0 && vt_put(p->fd, &o, sizeof(o)) && vt_duo_open(&p->d, &o) && vt_duo_meet(&p->d, p->fd), "setup");
}

static void end(struct peer *p)
{
	vt_check(vt_duo_close(&p->d), "closing");
	close(p->fd);
	vt_reap(p->pid, 10000);
}

/* Keeps writes and reads under way for ms, or until so many are done, or one fails. */
static void traffic_of(struct peer *p, uint64_t requests, unsigned ms)
{
	uint64_t until = vt_now_us() + ms * 1000ull, end = p->done + requests;
	while (p->failed < 0 && p->done < end && vt_now_us() < until) {
		while (p->out < DEPTH / 2) {
			struct ibv_sge sge = vt_duo_sge(&p->d, AREA, p->out % 2 ? AREA : 64);
			int op = p->out % 3 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
			if (vt_duo_post(&p->d, 0, op, p->out, IBV_SEND_SIGNALED, &sge, 1, p->d.peer.addr)) {
				vt_check(false, "posting");
				return;
			}
			p->out++;
		}
		struct ibv_wc wc;
		if (vt_poll(p->d.cq, &wc, 1, 20) != 1)
			continue;
		p->out--;
		p->done++;
		if (wc.status != IBV_WC_SUCCESS)
			p->failed = (int)wc.status;
	}
}

static void traffic(struct peer *p, unsigned ms)
{
	traffic_of(p, UINT32_MAX, ms);
}

/* For ms, and on a busy machine until one more is done. */
static void traffic_goes_on(struct peer *p, unsigned ms)
{
	uint64_t before = p->done;
	traffic(p, ms);
	for (int more = 0; more < 100 && p->failed < 0 && p->done == before; more++)
		traffic(p, 100);
}

static int state_of(struct vt_duo *d)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr i;
	return ibv_query_qp(d->qp[0], &a, IBV_QP_STATE, &i) ? -1 : (int)a.qp_state;
}

/* Whether the event comes within ms; others are let pass. */
static bool told(struct vt_duo *d, enum ibv_event_type wanted, unsigned ms)
{
	uint64_t until = vt_now_us() + ms * 1000ull;
	for (;;) {
		struct ibv_async_event ev;
		uint64_t now = vt_now_us();
		if (now > until || !vt_event(d->dev.ctx, &ev, (unsigned)((until - now) / 1000)))
			return false;
		ibv_ack_async_event(&ev);
		if (ev.event_type == wanted)
			return ev.element.port_num == 1;
	}
}

static int port_state(struct vt_duo *d)
{
	struct ibv_port_attr a;
	return ibv_query_port(d->dev.ctx, 1, &a) ? -1 : (int)a.state;
}

static void command(const char *line) { vt_require(system(line) == 0, "%s", line); }

/* RETRY_EXC_ERR for the first, ERR for the QP, a flush for each of the others (IBA 9.9.2.4.1). */
static void retries_exceeded(struct peer *p)
{
	traffic(p, 20000);
	vt_check(p->failed == IBV_WC_RETRY_EXC_ERR, "the first completion in error is %s", vt_wc_name(p->failed));
	struct ibv_wc wc[DEPTH];
	int n = vt_poll(p->d.cq, wc, (int)p->out, 5000);
	vt_check(n == (int)p->out, "%d of %u requests are flushed", n, p->out);
	for (int i = 0; i < n; i++)
		vt_check(wc[i].status == IBV_WC_WR_FLUSH_ERR, "%s behind the error", vt_wc_name((int)wc[i].status));
	p->out = 0;
	vt_check(state_of(&p->d) == IBV_QPS_ERR, "the QP is in %s", vt_state_name(state_of(&p->d)));
}

static void connect_again(struct peer *p)
{
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	char word = 'c';
	vt_require(ibv_modify_qp(p->d.qp[0], &reset, IBV_QP_STATE) == 0 && vt_put(p->fd, &word, 1) &&
			   vt_get(p->fd, &word, 1, 20000) && vt_duo_connect(&p->d, 0),
		   "connecting again");
	uint64_t before = p->done;
	p->failed = -1;
	traffic_goes_on(p, 300);
	vt_check(p->failed < 0 && p->done > before, "the new connection: %s", vt_wc_name(p->failed));
}

static void a_pulled_cable(void)
{
	static struct peer p;
	begin(&p, (struct vt_duo_opts)SHORT);
	traffic_goes_on(&p, 300);
	vt_require(p.failed < 0 && p.done > 0, "before: %s", vt_wc_name(p.failed));
	vt_check(port_state(&p.d) == IBV_PORT_ACTIVE, "port state %d with a cable", port_state(&p.d));
	command("ip link set eth0 down");
	retries_exceeded(&p);
	vt_check(told(&p.d, IBV_EVENT_PORT_ERR, 5000), "no PORT_ERR");
	vt_check(port_state(&p.d) == IBV_PORT_DOWN, "port state %d without a cable", port_state(&p.d));
	command("ip link set eth0 up");
	vt_check(told(&p.d, IBV_EVENT_PORT_ACTIVE, 5000), "no PORT_ACTIVE");
	vt_check(port_state(&p.d) == IBV_PORT_ACTIVE, "port state %d with the cable back", port_state(&p.d));
	connect_again(&p);
	end(&p);
}

static void a_cable_that_is_soon_back(void)
{
	static struct peer p;
	begin(&p, (struct vt_duo_opts)LONG);
	traffic_goes_on(&p, 200);
	for (int i = 0; i < 3; i++) {
		command("ip link set eth0 down");
		traffic(&p, 300);
		command("ip link set eth0 up");
		uint64_t before = p.done;
		traffic_of(&p, 10 * DEPTH, 2000);
		vt_check(p.failed < 0 && p.done > before, "time %d: %s after %" PRIu64 " completions", i, vt_wc_name(p.failed),
			 p.done - before);
	}
	/* A read of the neighbour's address may hold the peer's answers back for a while. */
	struct ibv_wc wc[DEPTH];
	int n = vt_poll(p.d.cq, wc, (int)p.out, 10000);
	vt_check(n == (int)p.out, "%d of %u requests have ended", n, p.out);
	end(&p);
}

static void a_killed_peer(void)
{
	static struct peer victim, healthy;
	begin(&healthy, (struct vt_duo_opts)SHORT);
	for (int i = 0; i < 5; i++) {
		begin(&victim, (struct vt_duo_opts)SHORT);
		traffic_goes_on(&victim, 20 + (unsigned)(vt_random() % 60));
		vt_require(victim.failed < 0 && victim.done > 0, "before: %s", vt_wc_name(victim.failed));
		kill(victim.pid, SIGKILL);
		retries_exceeded(&victim);
		uint64_t before = healthy.done;
		traffic_goes_on(&healthy, 100);
		vt_check(healthy.failed < 0 && healthy.done > before, "the healthy peer: %s", vt_wc_name(healthy.failed));
		end(&victim);
	}
	struct ibv_wc wc[DEPTH];
	vt_check(vt_poll(healthy.d.cq, wc, (int)healthy.out, 5000) == (int)healthy.out, "the healthy peer's last requests");
	end(&healthy);
}

/* The harness takes the second host away when it reads the note, and eth0 with it. */
static void a_host_that_is_gone(void)
{
	static struct peer p;
	begin(&p, (struct vt_duo_opts)SHORT);
	traffic_goes_on(&p, 300);
	vt_require(p.failed < 0 && p.done > 0, "before: %s", vt_wc_name(p.failed));
	kill(p.pid, SIGKILL);
	vt_note("the host may go");
	retries_exceeded(&p);
	vt_check(told(&p.d, IBV_EVENT_PORT_ERR, 15000), "no PORT_ERR");
	vt_check(port_state(&p.d) == IBV_PORT_DOWN, "port state %d", port_state(&p.d));
	end(&p);
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = {
		{ "a_pulled_cable", a_pulled_cable },
		{ "a_cable_that_is_soon_back", a_cable_that_is_soon_back },
		{ "a_killed_peer", a_killed_peer },
		{ "a_host_that_is_gone", a_host_that_is_gone },
	};
	static const struct vt_role roles[] = { { "target", target } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
