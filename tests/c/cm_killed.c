/* Processes with connections of rdma_cm that are killed, or stand still: whoever is left is told, and serves others. Processes of the
 * clients' host are killed at each step of the handshake, then that of the server, which listens again at once. */
#define _GNU_SOURCE
#include "cm.h"

#include <sys/wait.h>

/* How far a client goes before it is killed. */
enum step { RESOLVED, ASKED, ANSWERED, ESTABLISHED, STEPS };
static const char *const steps[] = { "before it asks", "when it has asked", "when it was answered", "when it is established" };

struct victim {
	int32_t step, port;
};

static int victim(int fd)
{
	struct victim v;
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_conn_param p = cm_param(NULL, 0);
	if (!channel || !vt_get(fd, &v, sizeof(v), CM_LONG))
		return 2;
	if (setjmp(vt_abandon))
		return 3;
	/* Without a QP the program confirms a response itself, or does not. */
	struct rdma_cm_id *id = cm_resolved(channel, RDMA_PS_TCP, v.port, v.step != ANSWERED);
	p.qp_num = 77;
	if (v.step >= ASKED)
		cm_works(rdma_connect(id, &p));
	if (v.step == ANSWERED)
		cm_expect(channel, RDMA_CM_EVENT_CONNECT_RESPONSE);
	if (v.step == ESTABLISHED)
		cm_expect(channel, RDMA_CM_EVENT_ESTABLISHED);
	raise(SIGKILL);
	return 4;
}

/* Starts a client on the host of this process. */
static pid_t start_victim(int step, int port, int *fd)
{
	struct victim v = { .step = step, .port = port };
	const char *there = getenv("VT_PEER_NETNS");
	char *kept = there ? strdup(there) : NULL;
	unsetenv("VT_PEER_NETNS");
	pid_t pid = vt_spawn("victim", fd);
	if (kept)
		setenv("VT_PEER_NETNS", kept, 1);
	free(kept);
	vt_require(pid > 0 && vt_put(*fd, &v, sizeof(v)), "a client");
	return pid;
}

static void was_killed(pid_t pid, int fd)
{
	int status;
	vt_require(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "the client ends with %#x",
		   (unsigned)status);
	close(fd);
}

static void is_served(struct rdma_event_channel *channel, struct cm_peer *s, uint8_t byte)
{
	int i;
	struct rdma_cm_id *id = cm_connected(channel, s, &i);
	cm_sends(id, s, i, byte);
	cm_works(rdma_disconnect(id));
	cm_server_expect(s, RDMA_CM_EVENT_DISCONNECTED);
	vt_check(s->last.index == i, "the end is another's");
	cm_server_does_it(s, .op = CM_DISCONNECT, .index = i);
	cm_expect(channel, RDMA_CM_EVENT_DISCONNECTED);
	cm_free(id);
	cm_server_does_it(s, .op = CM_DESTROY, .index = i);
}

/* man 7 rdma_cm: the server's operation. Nobody says good-bye in the name of a process of another host, which has no kernel that knows of its
 * connections. */
static void clients_are_killed(void)
{
	bool apart = getenv("VT_PEER_NETNS") != NULL;
	struct cm_peer s = cm_start(RDMA_PS_TCP, 5);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	vt_require(channel, "a channel");
	for (int step = RESOLVED; step < STEPS; step++) {
		int i = -1;
		/* One that is established all the while. */
		int stays;
		struct rdma_cm_id *id = cm_connected(channel, &s, &stays);
		int fd;
		pid_t pid = start_victim(step, s.port, &fd);
		if (step == ANSWERED || step == ESTABLISHED)
			i = cm_server_accepts(&s);
		was_killed(pid, fd);
		vt_begin("a client is killed %s", steps[step]);
		if (step == ASKED) {
			cm_server_expect(&s, RDMA_CM_EVENT_CONNECT_REQUEST);
			i = s.last.index;
		}
		if (step == ESTABLISHED)
			cm_server_expect(&s, RDMA_CM_EVENT_ESTABLISHED);
		/* What the kernel says in its name; nothing of a request that is not accepted (ucma_event_handler). */
		if (!apart && step > ASKED) {
			struct cm_told *t = cm_server_expect(&s, step == ESTABLISHED ? RDMA_CM_EVENT_DISCONNECTED : RDMA_CM_EVENT_REJECTED);
			vt_check(s.last.index == i, "the event (status %d) is another's", t->status);
		}
		if (step > RESOLVED)
			cm_server_does_it(&s, .op = CM_DESTROY, .index = i);
		is_served(channel, &s, (uint8_t)(10 + step));
		cm_sends(id, &s, stays, (uint8_t)(20 + step));
		cm_free(id);
		cm_server_expect(&s, RDMA_CM_EVENT_DISCONNECTED);
		cm_server_does_it(&s, .op = CM_DESTROY, .index = stays);
		vt_end();
	}
	rdma_destroy_event_channel(channel);
	cm_ends(&s);
}

static void kill_server(struct cm_peer *s)
{
	kill(s->pid, SIGKILL);
	int status;
	waitpid(s->pid, &status, 0);
	close(s->fd);
}

/* Its port is free at once, its clients hear of its end, and those that had asked are refused, some when they ask again. */
static void the_server_is_killed(void)
{
	bool apart = getenv("VT_PEER_NETNS") != NULL;
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_conn_param p = cm_param(NULL, 0);
	struct cm_peer s = cm_start(RDMA_PS_TCP, 5);
	vt_require(channel, "a channel");
	for (int life = 0; life < 3; life++) {
		int i, port = s.port;
		struct rdma_cm_id *id = cm_connected(channel, &s, &i);
		struct rdma_cm_id *asks = cm_resolved(channel, RDMA_PS_TCP, port, true);
		cm_works(rdma_connect(asks, &p));
		cm_server_expect(&s, RDMA_CM_EVENT_CONNECT_REQUEST);
		kill_server(&s);
		if (!apart) {
			struct cm_told t = cm_expect(channel, RDMA_CM_EVENT_DISCONNECTED);
			vt_check(t.id == id, "it is another's");
		}
		cm_free(id);
		cm_free(asks);
		s.pid = vt_spawn("server", &s.fd);
		vt_require(s.pid > 0, "another server");
		cm_listens(&s, RDMA_PS_TCP, 5, port);
		is_served(channel, &s, (uint8_t)life);
	}
	/* One whose request nobody answers any more. */
	struct rdma_cm_id *asks = cm_resolved(channel, RDMA_PS_TCP, s.port, true);
	cm_works(rdma_connect(asks, &p));
	cm_server_expect(&s, RDMA_CM_EVENT_CONNECT_REQUEST);
	kill_server(&s);
	/* In packets nobody is left who would say so. */
	const char *link = getenv("VERVAIN_LINK");
	if (!apart && !(link && !strcmp(link, "roce"))) {
		struct cm_told t = cm_expect(channel, RDMA_CM_EVENT_REJECTED);
		vt_check(t.id == asks, "it is another's");
	}
	cm_free(asks);
	rdma_destroy_event_channel(channel);
}

/* A server that stands still is waited for. */
static void the_server_stands_still(void)
{
	int i, status;
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_conn_param p = cm_param(NULL, 0);
	struct cm_peer s = cm_start(RDMA_PS_TCP, 5);
	vt_require(channel, "a channel");
	struct rdma_cm_id *id = cm_connected(channel, &s, &i), *asks[3];
	for (int k = 0; k < 3; k++)
		asks[k] = cm_resolved(channel, RDMA_PS_TCP, s.port, true);
	kill(s.pid, SIGSTOP);
	vt_require(waitpid(s.pid, &status, WUNTRACED) == s.pid && WIFSTOPPED(status), "it does not stop");
	for (int k = 0; k < 3; k++)
		cm_works(rdma_connect(asks[k], &p));
	vt_sleep_ms(1500);
	cm_nothing(channel);
	kill(s.pid, SIGCONT);
	/* All requests are there before the first is accepted. */
	int accepted[3];
	for (int k = 0; k < 3; k++) {
		cm_server_expect(&s, RDMA_CM_EVENT_CONNECT_REQUEST);
		accepted[k] = s.last.index;
	}
	for (int k = 0; k < 3; k++) {
		cm_server_does_it(&s, .op = CM_QP, .index = accepted[k]);
		cm_server_does_it(&s, .op = CM_ACCEPT, .index = accepted[k]);
		cm_expect(channel, RDMA_CM_EVENT_ESTABLISHED);
		cm_server_expect(&s, RDMA_CM_EVENT_ESTABLISHED);
		vt_check(s.last.index == accepted[k], "it is another's");
	}
	cm_sends(id, &s, i, 88);
	for (int k = 0; k < 3; k++)
		cm_free(asks[k]);
	cm_free(id);
	for (int k = 0; k < 4; k++)
		cm_server_expect(&s, RDMA_CM_EVENT_DISCONNECTED);
	rdma_destroy_event_channel(channel);
	cm_ends(&s);
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { { "clients_are_killed", clients_are_killed }, { "the_server_is_killed", the_server_is_killed },
						{ "the_server_stands_still", the_server_stands_still } };
	static const struct vt_role roles[] = { CM_SERVER, { "victim", victim } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
