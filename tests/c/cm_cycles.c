/* Many connections of rdma_cm: one after the other, which leave nothing behind, and a thousand at once. $VT_CYCLES and $VT_AT_ONCE are how
 * many. The server runs in another process, perhaps on another host ($VT_PEER_NETNS, $VT_ADDRESS). */
#define _GNU_SOURCE
#include "cm.h"

#include <dirent.h>
#include <malloc.h>
#include <sys/resource.h>

/* Cycles after which all that is made once is there, and descriptors and threads are counted. */
enum { WARM = 100 };

static int number(const char *name, int otherwise)
{
	const char *text = getenv(name);
	return text ? atoi(text) : otherwise;
}

/* What a process has. */
struct usage {
	int32_t fds, threads;
	int64_t resident, virtual; /* KiB */
};

static struct usage usage(void)
{
	struct usage u = { 0 };
	char line[256];
	/* What is free does not count. */
	malloc_trim(0);
	FILE *f = fopen("/proc/self/status", "r");
	while (f && fgets(line, sizeof(line), f)) {
		sscanf(line, "VmSize: %" SCNd64, &u.virtual);
		sscanf(line, "VmRSS: %" SCNd64, &u.resident);
		sscanf(line, "Threads: %d", &u.threads);
	}
	if (f)
		fclose(f);
	DIR *d = opendir("/proc/self/fd");
	while (d && readdir(d))
		u.fds++;
	if (d)
		closedir(d);
	return u;
}

/* ---- the server ---- */
/* Requests that ask for something else than a connection begin with this. */
enum { CONNECTS = 1, USAGE };

struct many {
	struct rdma_cm_id *id;
	uint8_t byte, established, pad[6];
	struct ibv_mr *mr;
};

/* Accepts what asks, with the asked number plus one as data, checks the byte that each sends, and ends what ends. It says by its socket what
 * it has when it is asked for that. */
static int serves(int fd)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listener;
	struct sockaddr_storage at = cm_at(cm_host(), 0);
	int port, command;
	if (!channel || rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) || rdma_bind_addr(listener, (struct sockaddr *)&at) ||
	    rdma_listen(listener, 0))
		return 2;
	port = ntohs(rdma_get_src_port(listener));
	if (!vt_put(fd, &port, sizeof(port)))
		return 3;
	for (int64_t served = 0;;) {
		struct pollfd f[2] = { { .fd = channel->fd, .events = POLLIN }, { .fd = fd, .events = POLLIN } };
		if (poll(f, 2, -1) < 0)
			return 4;
		if (f[1].revents) {
			struct usage u = usage();
			if (!vt_get(fd, &command, sizeof(command), 0) || command != USAGE)
				return 0;
			if (!vt_put(fd, &u, sizeof(u)) || !vt_put(fd, &served, sizeof(served)))
				return 5;
		}
		if (!f[0].revents)
			continue;
		struct cm_told t = cm_take(channel, 0);
		struct many *m = t.id ? t.id->context : NULL;
		uint32_t asked;
		struct ibv_wc wc;
		switch (t.kind) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			m = calloc(1, sizeof(*m));
			t.id->context = m;
			m->id = t.id;
			memcpy(&asked, t.data, sizeof(asked));
			asked++;
			struct rdma_conn_param p = cm_param((uint8_t *)&asked, sizeof(asked));
			if (cm_qp(t.id) || !(m->mr = rdma_reg_msgs(t.id, &m->byte, 1)) || rdma_post_recv(t.id, NULL, &m->byte, 1, m->mr) ||
			    rdma_accept(t.id, &p))
				return 6;
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			m->established = 1;
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			/* The byte came before the end. */
			if (!m->established || vt_poll(t.id->recv_cq, &wc, 1, CM_LONG) != 1 || wc.status != IBV_WC_SUCCESS || m->byte != 55)
				return 7;
			if (rdma_disconnect(t.id))
				return 8;
			rdma_destroy_qp(t.id);
			rdma_dereg_mr(m->mr);
			rdma_destroy_id(t.id);
			free(m);
			served++;
			break;
		case -1:
			break;
		default:
			fprintf(stderr, "the server: %s, status %d\n", cm_name(t.kind), t.status);
			return 9;
		}
	}
}

static pid_t start(int *fd, int *port)
{
	pid_t pid = vt_spawn("serves", fd);
	vt_require(pid > 0 && vt_get(*fd, port, sizeof(*port), CM_LONG), "the server");
	return pid;
}

static struct usage servers(int fd, int64_t *served)
{
	int command = USAGE;
	struct usage u;
	vt_require(vt_put(fd, &command, sizeof(command)) && vt_get(fd, &u, sizeof(u), CM_LONG) && vt_get(fd, served, sizeof(*served), CM_LONG),
		   "the server does not answer");
	return u;
}

/* When the server has ended this many. */
static void until_served(int fd, int64_t wanted)
{
	int64_t served = 0;
	uint64_t until = vt_now_us() + CM_LONG * 1000ull;
	while (servers(fd, &served), served < wanted && vt_now_us() < until)
		vt_sleep_ms(2);
	vt_require(served == wanted, "the server has served %" PRId64 " of %" PRId64, served, wanted);
}

static void ends(int fd, pid_t pid)
{
	close(fd);
	vt_check(vt_reap(pid, CM_LONG) == 0, "the server's end");
}

/* ---- the client ---- */
static void sends_a_byte(struct rdma_cm_id *id)
{
	struct ibv_wc wc;
	uint8_t byte = 55;
	cm_works(rdma_post_send(id, NULL, &byte, 1, NULL, IBV_SEND_INLINE));
	vt_require(vt_poll(id->send_cq, &wc, 1, CM_LONG) == 1 && wc.status == IBV_WC_SUCCESS, "the byte");
}

static void answers(const struct cm_told *t, uint32_t asked)
{
	uint32_t answer;
	memcpy(&answer, t->data, sizeof(answer));
	vt_require(t->len >= sizeof(answer) && answer == asked + 1, "the answer to %u is %u", asked, answer);
}

static void cycle(struct rdma_event_channel *channel, int port, uint32_t n)
{
	struct rdma_cm_id *id = cm_resolved(channel, RDMA_PS_TCP, port, true);
	struct rdma_conn_param p = cm_param((uint8_t *)&n, sizeof(n));
	cm_works(rdma_connect(id, &p));
	struct cm_told t = cm_expect(channel, RDMA_CM_EVENT_ESTABLISHED);
	answers(&t, n);
	sends_a_byte(id);
	cm_works(rdma_disconnect(id));
	cm_expect(channel, RDMA_CM_EVENT_DISCONNECTED);
	cm_free(id);
}

static void compare(const char *whose, int cycles, const struct usage *warm, const struct usage *half, const struct usage *end)
{
	/* KiB; no connection is described in so few bytes. */
	int64_t most = 512 + cycles / 2 * 200 / 1024;
	vt_note("%s: descriptors %d, %d, %d; threads %d, %d, %d; resident %" PRId64 ", %" PRId64 ", %" PRId64 " KiB; virtual %" PRId64 ", %" PRId64
		", %" PRId64 " KiB", whose, warm->fds, half->fds, end->fds, warm->threads, half->threads, end->threads, warm->resident,
		half->resident, end->resident, warm->virtual, half->virtual, end->virtual);
	vt_check(end->fds <= warm->fds, "%s: %d descriptors have become %d", whose, warm->fds, end->fds);
	vt_check(end->threads <= warm->threads, "%s: %d threads have become %d", whose, warm->threads, end->threads);
	vt_check(end->resident - half->resident < most, "%s: grows by %" PRId64 " KiB", whose, end->resident - half->resident);
	vt_check(end->virtual - half->virtual < 16384, "%s: its addresses grow by %" PRId64 " KiB", whose, end->virtual - half->virtual);
	vt_check(end->resident - warm->resident < 16384, "%s: grows by %" PRId64 " KiB in all", whose, end->resident - warm->resident);
}

static void one_after_the_other(void)
{
	int fd, port, cycles = number("VT_CYCLES", 10000);
	int64_t served;
	struct usage mine[3], theirs[3];
	pid_t pid = start(&fd, &port);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	vt_require(channel, "a channel");
	uint64_t begun = vt_now_us();
	for (int n = 0; n < cycles; n++) {
		if (n == WARM || n == cycles / 2) {
			int at = n == WARM ? 0 : 1;
			until_served(fd, n);
			/* Until those that have ended are forgotten (4.096 us x 2^19): how many are remembered depends on the machine. */
			if (at)
				vt_sleep_ms(3000);
			mine[at] = usage();
			theirs[at] = servers(fd, &served);
		}
		cycle(channel, port, (uint32_t)n);
	}
	until_served(fd, cycles);
	vt_note("%d cycles in %" PRIu64 " ms", cycles, (vt_now_us() - begun) / 1000);
	vt_sleep_ms(3000);
	mine[2] = usage();
	theirs[2] = servers(fd, &served);
	compare("the client", cycles, &mine[0], &mine[1], &mine[2]);
	compare("the server", cycles, &theirs[0], &theirs[1], &theirs[2]);
	rdma_destroy_event_channel(channel);
	ends(fd, pid);
}

/* All are on their way at once, all are established at once, and all end at once. */
static void a_thousand_at_once(void)
{
	int fd, port, all = number("VT_AT_ONCE", 1000), reached = 0;
	pid_t pid = start(&fd, &port);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id **ids = calloc((size_t)all, sizeof(*ids));
	struct sockaddr_storage at = cm_at(cm_host(), port);
	uint64_t begun = vt_now_us();
	vt_require(channel && ids, "a channel");
	for (intptr_t n = 0; n < all; n++) {
		cm_works(rdma_create_id(channel, &ids[n], (void *)n, RDMA_PS_TCP));
		cm_works(rdma_resolve_addr(ids[n], NULL, (struct sockaddr *)&at, 10000));
	}
	for (int resolved = 0; resolved < all;) {
		struct cm_told t = cm_take(channel, CM_LONG);
		vt_require(t.kind == RDMA_CM_EVENT_ADDR_RESOLVED || t.kind == RDMA_CM_EVENT_ROUTE_RESOLVED, "%s (status %d), %d are resolved",
			   cm_name(t.kind), t.status, resolved);
		if (t.kind == RDMA_CM_EVENT_ADDR_RESOLVED) {
			cm_works(rdma_resolve_route(t.id, 2000));
			continue;
		}
		cm_works(cm_qp(t.id));
		resolved++;
	}
	for (int n = 0; n < all; n++) {
		uint32_t asks = (uint32_t)n;
		struct rdma_conn_param p = cm_param((uint8_t *)&asks, sizeof(asks));
		cm_works(rdma_connect(ids[n], &p));
	}
	for (; reached < all; reached++) {
		struct cm_told t = cm_take(channel, CM_LONG);
		if (t.kind != RDMA_CM_EVENT_ESTABLISHED)
			break;
		answers(&t, (uint32_t)(intptr_t)t.id->context);
	}
	vt_require(reached == all, "%d of %d are established", reached, all);
	uint64_t established = vt_now_us();
	for (int n = 0; n < all; n++)
		sends_a_byte(ids[n]);
	for (int n = 0; n < all; n++)
		cm_works(rdma_disconnect(ids[n]));
	for (int ended = 0; ended < all;) {
		struct cm_told t = cm_take(channel, CM_LONG);
		/* The first leave timewait while the last are yet to end. */
		vt_require(t.kind == RDMA_CM_EVENT_DISCONNECTED || t.kind == RDMA_CM_EVENT_TIMEWAIT_EXIT, "%s (status %d), %d have ended",
			   cm_name(t.kind), t.status, ended);
		ended += t.kind == RDMA_CM_EVENT_DISCONNECTED;
	}
	vt_note("%d established after %" PRIu64 " ms, ended after %" PRIu64 " more", all, (established - begun) / 1000,
		(vt_now_us() - established) / 1000);
	for (int n = 0; n < all; n++)
		cm_free(ids[n]);
	until_served(fd, all);
	free(ids);
	rdma_destroy_event_channel(channel);
	ends(fd, pid);
}

int main(int argc, char **argv)
{
	/* A thousand identifiers with QPs have two channels each. */
	struct rlimit files;
	if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	static const struct vt_case cases[] = { { "one_after_the_other", one_after_the_other }, { "a_thousand_at_once", a_thousand_at_once } };
	static const struct vt_role roles[] = { { "serves", serves } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
