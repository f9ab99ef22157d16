/* Event channels of rdma_cm: identifiers that change theirs, descriptors and acknowledgements, events that nobody has asked for, and threads
 * that share a channel. The server runs in another process, perhaps on another host, as in cm_calls.c. */
#define _GNU_SOURCE
#include "cm_calls.h"

#include <pthread.h>
#include <sys/epoll.h>

/* rdma_migrate_id(3): pending events go with it. */
static void an_identifier_changes_its_channel(void)
{
	begin();
	int i;
	struct cm_peer s = cm_start(RDMA_PS_TCP, 5);
	struct rdma_event_channel *other = rdma_create_event_channel();
	struct rdma_cm_id *id = cm_connected(channel, &s, &i), *stays = cm_connected(channel, &s, &(int){ 0 });
	cm_server_does_it(&s, .op = CM_DISCONNECT, .index = i);
	struct pollfd p = { .fd = channel->fd, .events = POLLIN };
	vt_require(poll(&p, 1, CM_LONG) == 1, "no event");
	cm_works(rdma_migrate_id(id, other));
	vt_check(id->channel == other && stays->channel == channel, "the channels");
	cm_nothing(channel);
	struct cm_told t = cm_expect(other, RDMA_CM_EVENT_DISCONNECTED);
	vt_check(t.id == id, "it is another's");
	/* What comes later comes there too. */
	cm_works(rdma_disconnect(id));
	cm_expect(other, RDMA_CM_EVENT_TIMEWAIT_EXIT);
	/* To a channel of its own, where calls wait. */
	cm_works(rdma_migrate_id(stays, NULL));
	cm_server_expect(&s, RDMA_CM_EVENT_DISCONNECTED);
	vt_check(stays->channel && stays->channel != channel, "it has no channel of its own");
	rdma_destroy_qp(stays);
	cm_free(stays);
	cm_free(id);
	rdma_destroy_event_channel(other);
	cm_ends(&s);
	end();
}

/* A listener that moves with requests that wait: their identifiers have its new channel. */
static void a_listener_changes_its_channel(void)
{
	begin();
	struct rdma_conn_param p = cm_param(NULL, 0);
	struct rdma_event_channel *other = rdma_create_event_channel(), *clients = rdma_create_event_channel();
	struct rdma_cm_id *listener = new_id(RDMA_PS_TCP), *id;
	vt_require(other && clients, "channels");
	cm_works(bind_to(listener, any(), 0));
	cm_works(rdma_listen(listener, 5));
	/* Both ends in one process. */
	struct sockaddr_storage at = cm_at(cm_v6() ? "::1" : "127.0.0.1", ntohs(rdma_get_src_port(listener)));
	cm_works(rdma_create_id(clients, &id, NULL, RDMA_PS_TCP));
	cm_works(rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 2000));
	cm_expect(clients, RDMA_CM_EVENT_ADDR_RESOLVED);
	cm_works(rdma_resolve_route(id, 2000));
	cm_expect(clients, RDMA_CM_EVENT_ROUTE_RESOLVED);
	cm_works(cm_qp(id));
	cm_works(rdma_connect(id, &p));
	struct pollfd f = { .fd = channel->fd, .events = POLLIN };
	vt_require(poll(&f, 1, CM_LONG) == 1, "no request");
	cm_works(rdma_migrate_id(listener, other));
	cm_nothing(channel);
	struct cm_told t = cm_expect(other, RDMA_CM_EVENT_CONNECT_REQUEST);
	vt_check(t.listen_id == listener && t.id->channel == other, "the request's channel");
	cm_works(cm_qp(t.id));
	cm_works(rdma_accept(t.id, &p));
	cm_expect(clients, RDMA_CM_EVENT_ESTABLISHED);
	cm_expect(other, RDMA_CM_EVENT_ESTABLISHED);
	cm_free(id);
	cm_expect(other, RDMA_CM_EVENT_DISCONNECTED);
	cm_free(t.id);
	cm_free(listener);
	rdma_destroy_event_channel(other);
	rdma_destroy_event_channel(clients);
	end();
}

/* The channel's descriptor, as a program waits for it: without waiting, and by edges. */
static void the_descriptor_of_a_channel(void)
{
	begin();
	struct rdma_cm_event *e;
	struct epoll_event one = { .events = EPOLLIN | EPOLLET };
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	vt_require(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, channel->fd, &one) == 0, "epoll");
	vt_require(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0, "O_NONBLOCK");
	vt_check(fcntl(channel->fd, F_GETFD) & FD_CLOEXEC, "the descriptor survives exec");
	cm_fails(rdma_get_cm_event(channel, &e), EAGAIN);
	vt_check(epoll_wait(epoll, &one, 1, 0) == 0, "an edge, and no event");
	struct cm_peer s = cm_start(RDMA_PS_TCP, 50);
	struct sockaddr_storage at = cm_at(cm_host(), s.port);
	struct rdma_cm_id *ids[3];
	for (int k = 0; k < 3; k++) {
		ids[k] = new_id(RDMA_PS_TCP);
		cm_works(rdma_resolve_addr(ids[k], NULL, (struct sockaddr *)&at, 2000));
		/* An edge for each event, whether those before were taken or not. */
		vt_require(epoll_wait(epoll, &one, 1, CM_LONG) == 1, "event %d makes no edge", k);
		vt_check(epoll_wait(epoll, &one, 1, 0) == 0, "event %d makes two edges", k);
	}
	for (int k = 0; k < 3; k++) {
		cm_works(rdma_get_cm_event(channel, &e));
		vt_check(e->id == ids[k] && e->event == RDMA_CM_EVENT_ADDR_RESOLVED, "event %d", k);
		cm_works(rdma_ack_cm_event(e));
	}
	cm_fails(rdma_get_cm_event(channel, &e), EAGAIN);
	/* Events that go with their identifier make the descriptor quiet. */
	for (int k = 0; k < 3; k++)
		cm_works(rdma_resolve_route(ids[k], 2000));
	cm_free(ids[0]);
	cm_free(ids[2]);
	cm_works(rdma_get_cm_event(channel, &e));
	vt_check(e->id == ids[1] && e->event == RDMA_CM_EVENT_ROUTE_RESOLVED, "it is %s", cm_name((int)e->event));
	cm_works(rdma_ack_cm_event(e));
	struct pollfd p = { .fd = channel->fd, .events = POLLIN };
	vt_check(poll(&p, 1, 0) == 0, "readable, and no event");
	cm_fails(rdma_get_cm_event(channel, &e), EAGAIN);
	cm_free(ids[1]);
	cm_ends(&s);
	close(epoll);
	end();
}

static void *acknowledges_late(void *event)
{
	vt_sleep_ms(CM_SHORT);
	uint64_t *now = malloc(sizeof(*now));
	*now = vt_now_us();
	rdma_ack_cm_event(event);
	return now;
}

/* rdma_destroy_id(3) waits for the acknowledgements; rdma_get_cm_event(3) tells that all events are to be acknowledged. */
static void an_identifier_goes_when_its_events_are_acknowledged(void)
{
	begin();
	struct cm_peer s = cm_start(RDMA_PS_TCP, 5);
	struct sockaddr_storage at = cm_at(cm_host(), s.port);
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP);
	struct rdma_cm_event *e;
	pthread_t thread;
	void *acknowledged;
	cm_works(rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 2000));
	cm_works(rdma_get_cm_event(channel, &e));
	vt_require(pthread_create(&thread, NULL, acknowledges_late, e) == 0, "a thread");
	cm_works(rdma_destroy_id(id));
	uint64_t gone = vt_now_us();
	pthread_join(thread, &acknowledged);
	vt_check(gone >= *(uint64_t *)acknowledged, "it was gone before");
	free(acknowledged);
	cm_ends(&s);
	end();
}

/* Identifiers that go with events and requests that nobody has asked for. */
static void identifiers_go_with_events_that_wait(void)
{
	begin();
	int i;
	struct cm_peer s = cm_start(RDMA_PS_TCP, 5);
	struct sockaddr_storage at = cm_at(cm_host(), s.port);
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP);
	cm_works(rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 2000));
	/* It may be under way yet. */
	cm_free(id);
	cm_nothing(channel);
	/* Established, which the client has not been told, and gone: the server is told of both. */
	struct rdma_conn_param p = cm_param(NULL, 0);
	id = cm_resolved(channel, RDMA_PS_TCP, s.port, true);
	cm_works(rdma_connect(id, &p));
	i = cm_server_accepts(&s);
	vt_sleep_ms(CM_SHORT);
	cm_free(id);
	struct cm_answer *r = cm_tell(&s, (struct cm_ask){ .op = CM_EVENT, .arg = CM_LONG });
	/* The library confirms a response when the program asks for the event, which it has not. */
	vt_check(r->told.kind == RDMA_CM_EVENT_REJECTED && r->index == i, "the server: %s", cm_name(r->told.kind));
	cm_nothing(channel);
	/* A disconnection that nobody has asked for. */
	id = cm_connected(channel, &s, &i);
	cm_server_does_it(&s, .op = CM_DISCONNECT, .index = i);
	vt_sleep_ms(CM_SHORT);
	cm_free(id);
	cm_server_expect(&s, RDMA_CM_EVENT_DISCONNECTED);
	cm_nothing(channel);
	cm_ends(&s);
	end();
}

/* ---- threads ---- */
enum { THREADS = 4, EACH = 12 };

struct crowd {
	struct rdma_event_channel *channel;
	struct cm_peer *s;
	struct rdma_cm_id *ids[THREADS * EACH];
	int stage[THREADS * EACH]; /* events of each, in their order */
	int left, bad;
	pthread_mutex_t lock;
};

/* The last one comes only where others end much later. */
static const int order[] = { RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_DISCONNECTED,
			     RDMA_CM_EVENT_TIMEWAIT_EXIT };

/* One of those who ask for events of all identifiers: what is next for each. */
static void *crowd_thread(void *arg)
{
	struct crowd *c = arg;
	struct rdma_cm_event *e;
	struct rdma_conn_param p = cm_param(NULL, 0);
	for (;;) {
		struct pollfd f = { .fd = c->channel->fd, .events = POLLIN };
		pthread_mutex_lock(&c->lock);
		bool over = c->left == 0 || c->bad;
		pthread_mutex_unlock(&c->lock);
		if (over)
			return NULL;
		if (poll(&f, 1, 20) <= 0 || rdma_get_cm_event(c->channel, &e))
			continue;
		struct rdma_cm_id *id = e->id;
		long k = (long)(intptr_t)id->context;
		int kind = (int)e->event, rc = 0;
		rdma_ack_cm_event(e);
		pthread_mutex_lock(&c->lock);
		int stage = c->stage[k]++;
		if (stage >= (int)VT_ARRAY(order) || kind != order[stage])
			c->bad = 1 + kind;
		pthread_mutex_unlock(&c->lock);
		switch (stage) {
		case 0:
			rc = rdma_resolve_route(id, 2000);
			break;
		case 1:
			rc = cm_qp(id) || rdma_connect(id, &p);
			break;
		case 2:
			rc = rdma_disconnect(id);
			break;
		}
		pthread_mutex_lock(&c->lock);
		c->left -= stage == 3;
		if (rc)
			c->bad = 1000 + stage;
		pthread_mutex_unlock(&c->lock);
	}
}

/* Serves what comes, with a thread of its own for the answers. */
static int crowd_server(int fd)
{
	struct cm_server s = { .channel = rdma_create_event_channel() };
	struct sockaddr_storage at = cm_at(cm_host(), 0);
	struct rdma_conn_param p = cm_param(NULL, 0);
	int disconnected = 0, port;
	if (!s.channel || rdma_create_id(s.channel, &s.listener, NULL, RDMA_PS_TCP) || rdma_bind_addr(s.listener, (struct sockaddr *)&at) ||
	    rdma_listen(s.listener, THREADS * EACH))
		return 2;
	port = ntohs(rdma_get_src_port(s.listener));
	if (!vt_put(fd, &port, sizeof(port)))
		return 3;
	while (disconnected < THREADS * EACH) {
		struct cm_told t = cm_take(s.channel, CM_LONG);
		if (t.kind == RDMA_CM_EVENT_CONNECT_REQUEST && (cm_qp(t.id) || rdma_accept(t.id, &p)))
			return 4;
		if (t.kind == RDMA_CM_EVENT_DISCONNECTED && (disconnected++, rdma_disconnect(t.id)))
			return 5;
		if (t.kind < 0 || t.kind == RDMA_CM_EVENT_REJECTED || t.kind == RDMA_CM_EVENT_UNREACHABLE)
			return 6;
	}
	return vt_get(fd, &port, sizeof(port), CM_LONG) ? 0 : 7;
}

static void threads_share_a_channel(void)
{
	struct crowd c = { .channel = rdma_create_event_channel(), .left = THREADS * EACH };
	struct sockaddr_storage at;
	pthread_t threads[THREADS];
	int fd, port;
	pthread_mutex_init(&c.lock, NULL);
	pid_t pid = vt_spawn("crowd", &fd);
	vt_require(pid > 0 && vt_get(fd, &port, sizeof(port), CM_LONG), "the server");
	at = cm_at(cm_host(), port);
	for (long k = 0; k < THREADS * EACH; k++)
		cm_works(rdma_create_id(c.channel, &c.ids[k], (void *)(intptr_t)k, RDMA_PS_TCP));
	for (int k = 0; k < THREADS; k++)
		vt_require(pthread_create(&threads[k], NULL, crowd_thread, &c) == 0, "a thread");
	for (int k = 0; k < THREADS * EACH; k++)
		cm_works(rdma_resolve_addr(c.ids[k], NULL, (struct sockaddr *)&at, 2000));
	uint64_t until = vt_now_us() + CM_LONG * 1000ull;
	for (bool over = false; !over && vt_now_us() < until; vt_sleep_ms(5)) {
		pthread_mutex_lock(&c.lock);
		over = c.left == 0 || c.bad;
		pthread_mutex_unlock(&c.lock);
	}
	pthread_mutex_lock(&c.lock);
	vt_check(c.left == 0 && !c.bad, "%d have not come to their end; %d", c.left, c.bad);
	c.left = 0;
	pthread_mutex_unlock(&c.lock);
	for (int k = 0; k < THREADS; k++)
		pthread_join(threads[k], NULL);
	for (int k = 0; k < THREADS * EACH; k++)
		cm_free(c.ids[k]);
	rdma_destroy_event_channel(c.channel);
	vt_put(fd, &port, sizeof(port));
	vt_check(vt_reap(pid, CM_LONG) == 0, "the server's end");
	close(fd);
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = {
		{ "an_identifier_changes_its_channel", an_identifier_changes_its_channel },
		{ "a_listener_changes_its_channel", a_listener_changes_its_channel },
		{ "the_descriptor_of_a_channel", the_descriptor_of_a_channel },
		{ "an_identifier_goes_when_its_events_are_acknowledged", an_identifier_goes_when_its_events_are_acknowledged },
		{ "identifiers_go_with_events_that_wait", identifiers_go_with_events_that_wait },
		{ "threads_share_a_channel", threads_share_a_channel },
	};
	static const struct vt_role roles[] = { CM_SERVER, { "crowd", crowd_server } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
