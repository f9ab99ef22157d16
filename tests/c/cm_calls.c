/* Calls of rdma_cm: what each returns, and which events come of it at both ends, in which order. Expectations are those of man 7 rdma_cm,
 * the pages of the functions, and IBA 12; the server runs in another process, perhaps on another host ($VT_PEER_NETNS, $VT_ADDRESS). */
#define _GNU_SOURCE
#include "cm.h"

#include <pthread.h>
#include <sys/epoll.h>

static struct rdma_event_channel *channel;

static void begin(void)
{
	channel = rdma_create_event_channel();
	vt_require(channel, "rdma_create_event_channel: %s", strerror(errno));
}

static void end(void)
{
	rdma_destroy_event_channel(channel);
}

static struct rdma_cm_id *new_id(enum rdma_port_space ps)
{
	struct rdma_cm_id *id;
	cm_works(rdma_create_id(channel, &id, NULL, ps));
	return id;
}

static int bind_to(struct rdma_cm_id *id, const char *host, int port)
{
	struct sockaddr_storage at = cm_at(host, port);
	return rdma_bind_addr(id, (struct sockaddr *)&at);
}

static const char *any(void)
{
	return cm_v6() ? "::" : "0.0.0.0";
}

/* man 7 rdma_cm: the client's and the server's operation, step by step, and what each is told of the other. */
static void the_events_of_a_connection(void)
{
	begin();
	uint8_t asks[CM_REQ_DATA];
	cm_fill(asks, sizeof(asks), 1);
	struct cm_peer s = cm_start(RDMA_PS_TCP, 5);
	struct rdma_cm_id *id = cm_resolved(channel, RDMA_PS_TCP, s.port, true);
	vt_check(id->verbs && id->pd && id->port_num == 1 && id->route.num_paths == 1 && id->route.path_rec, "the route");
	vt_check(ntohs(rdma_get_dst_port(id)) == s.port && rdma_get_src_port(id), "the ports");
	struct rdma_conn_param p = cm_param(asks, sizeof(asks));
	cm_works(rdma_connect(id, &p));
	struct cm_told asked = *cm_server_expect(&s, RDMA_CM_EVENT_CONNECT_REQUEST);
	int i = s.last.index;
	vt_check(asked.listen_id && asked.listen_id != asked.id, "the request's identifier is the listener's");
	vt_check(cm_holds(&asked, sizeof(asks), 1), "the data of the request: %u bytes", asked.len);
	/* What one can take the other may have under way (rdma_accept(3)). */
	vt_check(asked.responder == 2 && asked.depth == 3, "the request's depths are %u and %u", asked.responder, asked.depth);
	vt_check(asked.retry == 6 && asked.rnr_retry == 5, "its retries are %u and %u", asked.retry, asked.rnr_retry);
	vt_check(asked.qpn == id->qp->qp_num, "its QP is %#x, not %#x", asked.qpn, id->qp->qp_num);
	cm_server_does_it(&s, .op = CM_QP, .index = i);
	struct cm_ask accept = { .op = CM_ACCEPT, .index = i, .len = CM_REP_DATA };
	cm_fill(accept.data, CM_REP_DATA, 2);
	vt_require(cm_tell(&s, accept)->rc == 0, "accepting");
	struct cm_told granted = cm_expect(channel, RDMA_CM_EVENT_ESTABLISHED);
	vt_check(granted.id == id && granted.status == 0, "its status is %d", granted.status);
	vt_check(cm_holds(&granted, CM_REP_DATA, 2), "the data of the answer: %u bytes", granted.len);
	cm_server_expect(&s, RDMA_CM_EVENT_ESTABLISHED);
	vt_check(s.last.index == i, "it is another's");
	cm_sends(id, &s, i, 77);
	cm_works(rdma_disconnect(id));
	cm_server_expect(&s, RDMA_CM_EVENT_DISCONNECTED);
	/* The server answers, and only then the client hears of the end. */
	cm_nothing(channel);
	cm_server_does_it(&s, .op = CM_DISCONNECT, .index = i);
	cm_expect(channel, RDMA_CM_EVENT_DISCONNECTED);
	cm_expect(channel, RDMA_CM_EVENT_TIMEWAIT_EXIT);
	cm_server_expect(&s, RDMA_CM_EVENT_TIMEWAIT_EXIT);
	/* Of a connection that has ended already, as the kernel has it. */
	cm_works(rdma_disconnect(id));
	cm_nothing(channel);
	cm_free(id);
	cm_ends(&s);
	end();
}

/* IBA 12.10.4: who waits is not told of a crossing, but of the end, once. */
static void both_disconnect_at_once(void)
{
	begin();
	struct cm_peer s = cm_start(RDMA_PS_TCP, 5);
	for (int k = 0; k < 20; k++) {
		int i;
		struct rdma_cm_id *id = cm_connected(channel, &s, &i);
		struct cm_ask disconnect = { .op = CM_DISCONNECT, .index = i };
		vt_require(vt_put(s.fd, &disconnect, sizeof(disconnect)), "the server");
		cm_works(rdma_disconnect(id));
		vt_require(vt_get(s.fd, &s.last, sizeof(s.last), CM_LONG) && s.last.rc == 0, "the server does not disconnect");
		cm_expect(channel, RDMA_CM_EVENT_DISCONNECTED);
		cm_server_expect(&s, RDMA_CM_EVENT_DISCONNECTED);
		cm_free(id);
		cm_server_does_it(&s, .op = CM_DESTROY, .index = i);
	}
	cm_nothing(channel);
	cm_server_nothing(&s);
	cm_ends(&s);
	end();
}

static void nobody_listens(void)
{
	begin();
	struct cm_peer s = cm_start(RDMA_PS_TCP, 5);
	struct rdma_conn_param p = cm_param(NULL, 0);
	/* At a port that nobody has, and at one whose listener is gone. */
	for (int gone = 0; gone < 2; gone++) {
		if (gone)
			cm_server_does_it(&s, .op = CM_CLOSE);
		struct rdma_cm_id *id = cm_resolved(channel, RDMA_PS_TCP, gone ? s.port : s.port ^ 1, true);
		cm_works(rdma_connect(id, &p));
		struct cm_told t = cm_expect(channel, RDMA_CM_EVENT_REJECTED);
		vt_check(t.id == id && t.status == CM_NOBODY_LISTENS, "the reason is %d", t.status);
		cm_free(id);
	}
	cm_nothing(channel);
	/* The port can be had again at once. */
	cm_listens(&s, RDMA_PS_TCP, 5, s.port);
	int i;
	struct rdma_cm_id *id = cm_connected(channel, &s, &i);
	cm_free(id);
	cm_ends(&s);
	end();
}

/* Requests that the program has not seen end with their listener; those that it has do not. */
static void a_listener_goes(void)
{
	begin();
	struct rdma_conn_param p = cm_param(NULL, 0);
	struct cm_peer s = cm_start(RDMA_PS_TCP, 5);
	struct rdma_cm_id *seen = cm_resolved(channel, RDMA_PS_TCP, s.port, true);
	cm_works(rdma_connect(seen, &p));
	cm_server_expect(&s, RDMA_CM_EVENT_CONNECT_REQUEST);
	int i = s.last.index;
	struct rdma_cm_id *unseen = cm_resolved(channel, RDMA_PS_TCP, s.port, true);
	cm_works(rdma_connect(unseen, &p));
	/* The request has come, and the program has not taken it. */
	cm_server_does_it(&s, .op = CM_WAITS, .arg = CM_LONG);
	cm_server_does_it(&s, .op = CM_CLOSE);
	struct cm_told t = cm_expect(channel, RDMA_CM_EVENT_REJECTED);
	vt_check(t.id == unseen && t.status == CM_CONSUMER, "the reason is %d", t.status);
	cm_server_nothing(&s);
	cm_server_does_it(&s, .op = CM_QP, .index = i);
	cm_server_does_it(&s, .op = CM_ACCEPT, .index = i);
	t = cm_expect(channel, RDMA_CM_EVENT_ESTABLISHED);
	vt_check(t.id == seen, "it is another's");
	cm_server_expect(&s, RDMA_CM_EVENT_ESTABLISHED);
	cm_sends(seen, &s, i, 3);
	cm_free(seen);
	cm_free(unseen);
	cm_server_expect(&s, RDMA_CM_EVENT_DISCONNECTED);
	cm_ends(&s);
	end();
}

static void a_request_is_rejected(void)
{
	begin();
	struct cm_peer s = cm_start(RDMA_PS_TCP, 5);
	struct rdma_conn_param p = cm_param(NULL, 0);
	struct rdma_cm_id *id = cm_resolved(channel, RDMA_PS_TCP, s.port, true);
	cm_works(rdma_connect(id, &p));
	cm_server_expect(&s, RDMA_CM_EVENT_CONNECT_REQUEST);
	int i = s.last.index;
	struct cm_ask reject = { .op = CM_REJECT, .index = i, .len = CM_REJ_DATA };
	cm_fill(reject.data, CM_REJ_DATA, 9);
	vt_require(cm_tell(&s, reject)->rc == 0, "rejecting: %s", vt_errno_name(s.last.err));
	struct cm_told t = cm_expect(channel, RDMA_CM_EVENT_REJECTED);
	vt_check(t.status == CM_CONSUMER && cm_holds(&t, CM_REJ_DATA, 9), "reason %d, %u bytes", t.status, t.len);
	/* It is rejected, and can be neither accepted nor rejected any more. */
	struct cm_answer *late = cm_tell(&s, (struct cm_ask){ .op = CM_REJECT, .index = i });
	vt_check(late->rc == -1 && late->err == EINVAL, "rejecting again: %d, %s", late->rc, vt_errno_name(late->err));
	late = cm_tell(&s, (struct cm_ask){ .op = CM_ACCEPT, .index = i });
	vt_check(late->rc == -1 && late->err == EINVAL, "accepting afterwards: %d, %s", late->rc, vt_errno_name(late->err));
	cm_free(id);
	/* One that takes its request back: whoever accepts it is told. */
	id = cm_resolved(channel, RDMA_PS_TCP, s.port, true);
	cm_works(rdma_connect(id, &p));
	cm_server_expect(&s, RDMA_CM_EVENT_CONNECT_REQUEST);
	i = s.last.index;
	cm_free(id);
	cm_server_does_it(&s, .op = CM_QP, .index = i);
	cm_tell(&s, (struct cm_ask){ .op = CM_ACCEPT, .index = i });
	cm_server_expect(&s, RDMA_CM_EVENT_REJECTED);
	vt_check(s.last.index == i, "it is another's");
	cm_server_nothing(&s);
	cm_ends(&s);
	end();
}

/* So many requests wait for the program; those that it has seen do not count. */
static void the_backlog_is_exceeded(void)
{
	enum { BACKLOG = 3, ALL = 8 };
	begin();
	struct cm_peer s = cm_start(RDMA_PS_TCP, BACKLOG);
	struct rdma_conn_param p = cm_param(NULL, 0);
	struct rdma_cm_id *ids[ALL];
	int refused = 0, at[BACKLOG + 1];
	for (int i = 0; i < ALL; i++) {
		ids[i] = cm_resolved(channel, RDMA_PS_TCP, s.port, true);
		cm_works(rdma_connect(ids[i], &p));
		if (i < BACKLOG)
			continue;
		struct cm_told t = cm_expect(channel, RDMA_CM_EVENT_REJECTED);
		vt_check(t.id == ids[i] && t.status == CM_CONSUMER, "request %d: reason %d", i, t.status);
		refused++;
	}
	vt_check(refused == ALL - BACKLOG, "%d are refused", refused);
	/* Seen, not accepted: there is room for one more. */
	for (int i = 0; i < BACKLOG; i++) {
		cm_server_expect(&s, RDMA_CM_EVENT_CONNECT_REQUEST);
		at[i] = s.last.index;
	}
	struct rdma_cm_id *more = cm_resolved(channel, RDMA_PS_TCP, s.port, true);
	cm_works(rdma_connect(more, &p));
	cm_server_expect(&s, RDMA_CM_EVENT_CONNECT_REQUEST);
	at[BACKLOG] = s.last.index;
	for (int i = 0; i <= BACKLOG; i++) {
		cm_server_does_it(&s, .op = CM_QP, .index = at[i]);
		cm_server_does_it(&s, .op = CM_ACCEPT, .index = at[i]);
		cm_expect(channel, RDMA_CM_EVENT_ESTABLISHED);
		cm_server_expect(&s, RDMA_CM_EVENT_ESTABLISHED);
	}
	for (int i = 0; i < ALL; i++)
		cm_free(ids[i]);
	cm_free(more);
	cm_ends(&s);
	end();
}

static void too_much_data(void)
{
	begin();
	static const uint8_t data[256];
	struct cm_peer s = cm_start(RDMA_PS_TCP, 5);
	struct rdma_cm_id *id = cm_resolved(channel, RDMA_PS_TCP, s.port, true);
	struct rdma_conn_param p = cm_param(data, CM_REQ_DATA + 1);
	cm_fails(rdma_connect(id, &p), EINVAL);
	/* Nothing has happened: what fits goes. */
	p.private_data_len = CM_REQ_DATA;
	cm_works(rdma_connect(id, &p));
	cm_server_expect(&s, RDMA_CM_EVENT_CONNECT_REQUEST);
	int i = s.last.index;
	struct cm_answer *said = cm_tell(&s, (struct cm_ask){ .op = CM_REJECT, .index = i, .len = CM_REJ_DATA + 1 });
	vt_check(said->rc == -1 && said->err == EINVAL, "rejecting: %d, %s", said->rc, vt_errno_name(said->err));
	said = cm_tell(&s, (struct cm_ask){ .op = CM_ACCEPT, .index = i, .len = CM_REP_DATA + 1 });
	vt_check(said->rc == -1 && said->err == EINVAL, "accepting: %d, %s", said->rc, vt_errno_name(said->err));
	cm_nothing(channel);
	cm_server_does_it(&s, .op = CM_ACCEPT, .index = i, .len = CM_REP_DATA);
	cm_expect(channel, RDMA_CM_EVENT_ESTABLISHED);
	cm_free(id);
	cm_ends(&s);
	end();
}

static void no_way_leads_there(void)
{
	begin();
	/* RFC 5737 and RFC 3849: nobody has these. Where there is a default route they cannot be told from others. */
	struct sockaddr_storage at = cm_at(cm_v6() ? "2001:db8::7" : "192.0.2.7", 7471);
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP);
	int rc = rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 2000);
	if (rc) {
		vt_check(errno == ENETUNREACH, "it is %s", vt_errno_name(errno));
	} else {
		struct cm_told t = cm_expect(channel, RDMA_CM_EVENT_ADDR_ERROR);
		static const int errors[] = { ENETUNREACH, EHOSTUNREACH, ETIMEDOUT, ENODEV };
		bool known = false;
		for (size_t k = 0; k < VT_ARRAY(errors); k++)
			known |= t.status == -errors[k];
		vt_check(known, "the status is %d", t.status);
	}
	/* Another address may be tried with it. */
	struct cm_peer s = cm_start(RDMA_PS_TCP, 5);
	at = cm_at(cm_host(), s.port);
	cm_works(rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 2000));
	cm_expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	cm_free(id);
	cm_ends(&s);
	/* An address of its own that is none of this host's. */
	id = new_id(RDMA_PS_TCP);
	cm_fails(bind_to(id, cm_v6() ? "2001:db8::7" : "192.0.2.77", 0), EADDRNOTAVAIL);
	cm_free(id);
	end();
}

/* An identifier that is bound to an address has the device of that address; the unspecified one is of none, and the loopback's only
   where the host has no other. */
static void bound_to_an_address(void)
{
	begin();
	static const char *const none[] = { "0.0.0.0", "::", "127.0.0.1", "::1" };
	bool only_loopback = !getenv("VT_PEER_NETNS");
	for (size_t k = 0; k < VT_ARRAY(none); k++) {
		struct rdma_cm_id *id = new_id(RDMA_PS_TCP);
		cm_works(bind_to(id, none[k], 0));
		vt_check(!id->verbs == !(only_loopback && k > 1), "%s: %s", none[k], id->verbs ? "has a device" : "has none");
		vt_check(rdma_get_src_port(id), "%s has no port", none[k]);
		cm_free(id);
	}
	/* An address of this host's, where it has one. */
	struct cm_peer s = cm_start(RDMA_PS_TCP, 5);
	struct rdma_cm_id *way = cm_resolved(channel, RDMA_PS_TCP, s.port, false), *id = new_id(RDMA_PS_TCP);
	struct sockaddr_storage own = way->route.addr.src_storage;
	bool loopback = !strcmp(cm_host(), "127.0.0.1") || !strcmp(cm_host(), "::1");
	if (own.ss_family == AF_INET)
		((struct sockaddr_in *)&own)->sin_port = 0;
	else
		((struct sockaddr_in6 *)&own)->sin6_port = 0;
	cm_works(rdma_bind_addr(id, (struct sockaddr *)&own));
	vt_check(loopback || (id->verbs == way->verbs && id->port_num == 1 && id->pd), "the address has no device");
	cm_free(id);
	cm_free(way);
	cm_ends(&s);
	end();
}

static void a_port_is_in_use(void)
{
	begin();
	struct rdma_cm_id *first = new_id(RDMA_PS_TCP), *second = new_id(RDMA_PS_TCP), *third = new_id(RDMA_PS_UDP);
	cm_works(bind_to(first, any(), 0));
	int port = ntohs(rdma_get_src_port(first));
	vt_check(port, "there is no port");
	/* cma_check_port of the kernel: where one of two is for any address, it is the address that cannot be had. */
	cm_fails(bind_to(second, any(), port), EADDRNOTAVAIL);
	cm_fails(bind_to(second, cm_host(), port), EADDRNOTAVAIL);
	/* Datagrams have ports of their own. */
	cm_works(bind_to(third, any(), port));
	cm_works(rdma_listen(first, 5));
	cm_fails(bind_to(second, any(), port), EADDRNOTAVAIL);
	/* By another process of the host. */
	if (!getenv("VT_PEER_NETNS")) {
		struct cm_peer s = cm_start(RDMA_PS_TCP, 5);
		struct cm_ask listen = { .op = CM_LISTEN, .ps = RDMA_PS_TCP, .port = port };
		snprintf(listen.host, sizeof(listen.host), "%s", any());
		cm_tell(&s, listen);
		vt_check(s.last.rc == -1 && s.last.err == EADDRNOTAVAIL, "another process: %d, %s", s.last.rc, vt_errno_name(s.last.err));
		snprintf(listen.host, sizeof(listen.host), "%s", cm_host());
		cm_tell(&s, listen);
		vt_check(s.last.rc == -1 && s.last.err == EADDRNOTAVAIL, "another process, at one address: %d, %s", s.last.rc,
			 vt_errno_name(s.last.err));
		cm_fails(bind_to(second, cm_host(), s.port), EADDRINUSE);
		cm_ends(&s);
	}
	/* It is free when its identifier is gone. */
	cm_works(rdma_destroy_id(first));
	cm_works(bind_to(second, any(), port));
	cm_works(rdma_listen(second, 0));
	cm_free(second);
	cm_free(third);
	end();
}

static void calls_in_the_wrong_order(void)
{
	begin();
	struct cm_peer s = cm_start(RDMA_PS_TCP, 5);
	struct rdma_conn_param p = cm_param(NULL, 0);
	struct sockaddr_storage at = cm_at(cm_host(), s.port);
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP);
	cm_fails(cm_qp(id), EINVAL);
	cm_fails(rdma_disconnect(id), EINVAL);
	cm_fails(rdma_reject(id, NULL, 0), EINVAL);
	cm_fails(rdma_notify(id, IBV_EVENT_COMM_EST), EINVAL);
	cm_works(rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 2000));
	cm_expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	cm_works(cm_qp(id));
	cm_fails(cm_qp(id), EINVAL);
	cm_fails(rdma_connect(id, &p), EINVAL);
	cm_fails(rdma_listen(id, 5), EINVAL);
	cm_fails(rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 2000), EINVAL);
	cm_fails(bind_to(id, any(), 0), EINVAL);
	cm_works(rdma_resolve_route(id, 2000));
	cm_expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	cm_fails(rdma_resolve_route(id, 2000), EINVAL);
	cm_fails(rdma_accept(id, &p), EINVAL);
	cm_works(rdma_connect(id, &p));
	cm_fails(rdma_connect(id, &p), EINVAL);
	int i = cm_server_accepts(&s);
	cm_expect(channel, RDMA_CM_EVENT_ESTABLISHED);
	cm_server_expect(&s, RDMA_CM_EVENT_ESTABLISHED);
	cm_fails(rdma_connect(id, &p), EINVAL);
	cm_fails(rdma_accept(id, &p), EINVAL);
	cm_fails(rdma_reject(id, NULL, 0), EINVAL);
	cm_fails(rdma_establish(id), EINVAL);
	struct cm_answer *again = cm_tell(&s, (struct cm_ask){ .op = CM_ACCEPT, .index = i });
	vt_check(again->rc == -1 && again->err == EINVAL, "accepting again: %d, %s", again->rc, vt_errno_name(again->err));
	/* None of it has harmed the connection. */
	cm_sends(id, &s, i, 5);
	cm_free(id);
	/* A listener. */
	id = new_id(RDMA_PS_TCP);
	cm_works(bind_to(id, any(), 0));
	cm_fails(bind_to(id, any(), 0), EINVAL);
	cm_works(rdma_listen(id, 5));
	cm_fails(rdma_listen(id, 5), EINVAL);
	cm_fails(rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 2000), EINVAL);
	cm_fails(rdma_connect(id, &p), EINVAL);
	cm_fails(rdma_get_request(id, &id), EINVAL);
	cm_free(id);
	cm_fails(rdma_create_id(channel, &id, NULL, (enum rdma_port_space)0x999), EINVAL);
	cm_fails(rdma_ack_cm_event(NULL), EINVAL);
	cm_ends(&s);
	end();
}

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

/* ---- synchronous identifiers ---- */
struct synchronous {
	struct rdma_cm_id *listener;
	struct rdma_addrinfo *there;
	int rc, err;
	uint8_t got;
};

static struct rdma_addrinfo *info(const char *host, int port, int flags)
{
	struct rdma_addrinfo hints = { .ai_flags = flags | RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP, .ai_qp_type = IBV_QPT_RC }, *found;
	char service[16];
	snprintf(service, sizeof(service), "%d", port);
	vt_require(rdma_getaddrinfo(host, service, &hints, &found) == 0, "rdma_getaddrinfo");
	return found;
}

static struct ibv_qp_init_attr init_attr(void)
{
	return (struct ibv_qp_init_attr){ .cap = { 4, 4, 1, 1, 16 }, .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };
}

#define step(call)              \
	do {                        \
		if ((call) < 0) {       \
			y->rc = __LINE__;   \
			y->err = errno;     \
			return NULL;        \
		}                       \
	} while (0)

static void *synchronous_server(void *arg)
{
	struct synchronous *y = arg;
	struct rdma_cm_id *id;
	struct ibv_wc wc;
	uint8_t bytes[16];
	step(rdma_get_request(y->listener, &id));
	struct ibv_mr *mr = rdma_reg_msgs(id, bytes, sizeof(bytes));
	step(mr && id->qp ? 0 : -1);
	step(rdma_post_recv(id, NULL, bytes, sizeof(bytes), mr));
	step(rdma_accept(id, NULL));
	step(rdma_get_recv_comp(id, &wc));
	y->got = wc.status == IBV_WC_SUCCESS ? bytes[0] : 0;
	/* Waits until the other end has ended it. */
	step(rdma_disconnect(id));
	rdma_dereg_mr(mr);
	rdma_destroy_ep(id);
	return NULL;
}

/* rdma_create_ep(3), rdma_get_request(3): calls return when their event has come. */
static void calls_wait(int qp_type)
{
	struct synchronous y = { 0 };
	struct rdma_addrinfo *here = info(cm_v6() ? "::" : NULL, 0, RAI_PASSIVE), *there;
	struct ibv_qp_init_attr attr = init_attr();
	struct rdma_cm_id *id;
	struct ibv_wc wc;
	pthread_t thread;
	uint8_t byte = 91;
	attr.qp_type = here->ai_qp_type = qp_type;
	cm_works(rdma_create_ep(&y.listener, here, NULL, &attr));
	rdma_freeaddrinfo(here);
	cm_works(rdma_listen(y.listener, 5));
	there = info(cm_v6() ? "::1" : "127.0.0.1", ntohs(rdma_get_src_port(y.listener)), 0);
	there->ai_qp_type = qp_type;
	for (int k = 0; k < 2; k++) {
		vt_require(pthread_create(&thread, NULL, synchronous_server, &y) == 0, "a thread");
		attr = init_attr();
		attr.qp_type = qp_type;
		cm_works(rdma_create_ep(&id, there, NULL, &attr));
		vt_check(id->qp && id->channel, "what it has");
		cm_works(rdma_connect(id, NULL));
		vt_check(id->event && id->event->event == RDMA_CM_EVENT_ESTABLISHED, "the event of its connection");
		cm_works(rdma_post_send(id, NULL, &byte, 1, NULL, IBV_SEND_INLINE));
		vt_check(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "sending");
		cm_works(rdma_disconnect(id));
		rdma_destroy_ep(id);
		pthread_join(thread, NULL);
		vt_check(y.rc == 0 && y.got == byte, "the server: line %d, %s, has got %d", y.rc, vt_errno_name(y.err), y.got);
	}
	rdma_destroy_ep(y.listener);
	/* Nobody listens any more: the call says so. */
	attr = init_attr();
	attr.qp_type = qp_type;
	cm_works(rdma_create_ep(&id, there, NULL, &attr));
	cm_fails(rdma_connect(id, NULL), ECONNREFUSED);
	vt_check(id->event && id->event->event == RDMA_CM_EVENT_REJECTED && id->event->status == CM_NOBODY_LISTENS, "the event of that");
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(there);
}

static void identifiers_whose_calls_wait(void)
{
	calls_wait(IBV_QPT_RC);
}

static void identifiers_whose_calls_wait_connect_unreliably(void)
{
	calls_wait(IBV_QPT_UC);
}

static void *datagram_client(void *arg)
{
	struct synchronous *y = arg;
	struct rdma_cm_id *id;
	struct ibv_qp_init_attr attr = init_attr();
	attr.qp_type = IBV_QPT_UD;
	step(rdma_create_ep(&id, y->there, NULL, &attr));
	step(rdma_connect(id, NULL));
	step(rdma_disconnect(id));
	rdma_destroy_ep(id);
	return NULL;
}

/* The event of a request that was accepted is the listener's, which waits for none when it goes. */
static void a_listener_of_datagrams_goes_before_those_who_were_accepted(void)
{
	struct synchronous y = { 0 };
	struct rdma_addrinfo *here = info(cm_v6() ? "::" : NULL, 0, RAI_PASSIVE);
	struct ibv_qp_init_attr attr = init_attr();
	struct rdma_cm_id *id;
	pthread_t thread;
	here->ai_port_space = RDMA_PS_UDP;
	attr.qp_type = here->ai_qp_type = IBV_QPT_UD;
	cm_works(rdma_create_ep(&y.listener, here, NULL, &attr));
	rdma_freeaddrinfo(here);
	cm_works(rdma_listen(y.listener, 5));
	y.there = info(cm_v6() ? "::1" : "127.0.0.1", ntohs(rdma_get_src_port(y.listener)), 0);
	y.there->ai_port_space = RDMA_PS_UDP;
	y.there->ai_qp_type = IBV_QPT_UD;
	vt_require(pthread_create(&thread, NULL, datagram_client, &y) == 0, "a thread");
	cm_works(rdma_get_request(y.listener, &id));
	cm_works(rdma_accept(id, NULL));
	pthread_join(thread, NULL);
	vt_check(y.rc == 0, "the client: line %d, %s", y.rc, vt_errno_name(y.err));
	rdma_destroy_ep(y.listener);
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(y.there);
}

/* ---- QPs of the program's own ---- */
struct own_qp {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t buf[64];
};

static void make_own(struct own_qp *o, struct rdma_cm_id *id)
{
	vt_require((o->cq = ibv_create_cq(id->verbs, 8, NULL, NULL, 0)), "a CQ");
	struct ibv_qp_init_attr init = { .send_cq = o->cq, .recv_cq = o->cq, .cap = { 4, 4, 1, 1, 16 }, .qp_type = IBV_QPT_RC };
	vt_require((o->qp = ibv_create_qp(id->pd, &init)), "a QP");
	vt_require((o->mr = ibv_reg_mr(id->pd, o->buf, sizeof(o->buf), IBV_ACCESS_LOCAL_WRITE)), "a region");
}

static void move_own(struct own_qp *o, struct rdma_cm_id *id, enum ibv_qp_state to)
{
	struct ibv_qp_attr a = { .qp_state = to };
	int mask, rc;
	cm_works(rdma_init_qp_attr(id, &a, &mask));
	vt_require((mask & IBV_QP_STATE) && a.qp_state == to, "the state is not asked for");
	rc = ibv_modify_qp(o->qp, &a, mask);
	vt_require(rc == 0, "to %s: %s", vt_state_name((int)to), vt_errno_name(rc));
}

static void receive_own(struct own_qp *o)
{
	struct ibv_sge sge = { (uintptr_t)o->buf, sizeof(o->buf), o->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad;
	vt_require(ibv_post_recv(o->qp, &wr, &bad) == 0, "posting a receive");
}

static void send_own(struct own_qp *o, uint8_t byte)
{
	struct ibv_sge sge = { (uintptr_t)&byte, 1, 0 };
	struct ibv_send_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE }, *bad;
	struct ibv_wc wc;
	vt_require(ibv_post_send(o->qp, &wr, &bad) == 0, "posting");
	vt_require(vt_poll(o->cq, &wc, 1, CM_LONG) == 1 && wc.status == IBV_WC_SUCCESS, "sending");
}

static void free_own(struct own_qp *o)
{
	vt_check(ibv_destroy_qp(o->qp) == 0 && ibv_destroy_cq(o->cq) == 0 && ibv_dereg_mr(o->mr) == 0, "freeing");
}

/* rdma_connect(3), rdma_establish(3), rdma_init_qp_attr(3): the client moves its QP itself. */
static void a_qp_of_the_programs_own(void)
{
	begin();
	struct own_qp o;
	struct cm_peer s = cm_start(RDMA_PS_TCP, 5);
	struct rdma_cm_id *id = cm_resolved(channel, RDMA_PS_TCP, s.port, false);
	make_own(&o, id);
	struct rdma_conn_param p = cm_param(NULL, 0);
	p.qp_num = o.qp->qp_num;
	struct ibv_qp_attr early = { .qp_state = IBV_QPS_RTR };
	int mask;
	cm_fails(rdma_init_qp_attr(id, &early, &mask), EINVAL);
	cm_works(rdma_connect(id, &p));
	cm_server_expect(&s, RDMA_CM_EVENT_CONNECT_REQUEST);
	vt_check(s.last.told.qpn == o.qp->qp_num, "the request names QP %#x", s.last.told.qpn);
	int i = s.last.index;
	cm_server_does_it(&s, .op = CM_QP, .index = i);
	cm_server_does_it(&s, .op = CM_ACCEPT, .index = i, .len = 4);
	struct cm_told t = cm_expect(channel, RDMA_CM_EVENT_CONNECT_RESPONSE);
	vt_check(t.qpn && t.len >= 4, "the response: QP %#x, %u bytes", t.qpn, t.len);
	/* The server hears of it when the client is ready. */
	cm_server_nothing(&s);
	move_own(&o, id, IBV_QPS_INIT);
	receive_own(&o);
	move_own(&o, id, IBV_QPS_RTR);
	move_own(&o, id, IBV_QPS_RTS);
	cm_works(rdma_establish(id));
	cm_server_expect(&s, RDMA_CM_EVENT_ESTABLISHED);
	cm_nothing(channel);
	cm_fails(rdma_establish(id), EINVAL);
	send_own(&o, 44);
	struct cm_answer *got = cm_tell(&s, (struct cm_ask){ .op = CM_GETS, .index = i, .arg = CM_LONG });
	vt_check(got->rc == 44, "the server has got %d", got->rc);
	struct ibv_wc wc;
	cm_server_does_it(&s, .op = CM_SENDS, .index = i, .arg = 45);
	vt_check(vt_poll(o.cq, &wc, 1, CM_LONG) == 1 && wc.status == IBV_WC_SUCCESS && o.buf[0] == 45, "the answer");
	cm_works(rdma_disconnect(id));
	cm_server_expect(&s, RDMA_CM_EVENT_DISCONNECTED);
	cm_server_does_it(&s, .op = CM_DISCONNECT, .index = i);
	cm_expect(channel, RDMA_CM_EVENT_DISCONNECTED);
	free_own(&o);
	cm_free(id);
	cm_ends(&s);
	end();
}

/* The other way to refuse: the client does not take the response (rdma_reject(3)). */
static void a_response_is_rejected(void)
{
	begin();
	struct own_qp o;
	struct cm_peer s = cm_start(RDMA_PS_TCP, 5);
	struct rdma_cm_id *id = cm_resolved(channel, RDMA_PS_TCP, s.port, false);
	make_own(&o, id);
	struct rdma_conn_param p = cm_param(NULL, 0);
	uint8_t why[CM_REJ_DATA];
	cm_fill(why, sizeof(why), 6);
	p.qp_num = o.qp->qp_num;
	cm_works(rdma_connect(id, &p));
	int i = cm_server_accepts(&s);
	cm_expect(channel, RDMA_CM_EVENT_CONNECT_RESPONSE);
	cm_works(rdma_reject(id, why, sizeof(why)));
	cm_fails(rdma_establish(id), EINVAL);
	struct cm_told *t = cm_server_expect(&s, RDMA_CM_EVENT_REJECTED);
	vt_check(t->status == CM_CONSUMER && cm_holds(t, sizeof(why), 6), "reason %d, %u bytes", t->status, t->len);
	vt_check(cm_tell(&s, (struct cm_ask){ .op = CM_STATE, .index = i })->rc == IBV_QPS_ERR, "its QP is in %s",
		 vt_state_name(s.last.rc));
	free_own(&o);
	cm_free(id);
	cm_ends(&s);
	end();
}

/* rdma_notify(3): a message has come before the RTU, to a QP that is ready to receive. The server is this process. */
static void a_message_comes_before_the_rtu(void)
{
	if (getenv("VT_PEER_NETNS"))
		vt_does_not_apply("both ends are in this process");
	begin();
	struct rdma_event_channel *clients = rdma_create_event_channel();
	struct rdma_conn_param p = cm_param(NULL, 0);
	struct rdma_cm_id *listener = new_id(RDMA_PS_TCP), *id;
	struct own_qp a, b;
	struct ibv_async_event e;
	struct ibv_wc wc;
	cm_works(bind_to(listener, any(), 0));
	cm_works(rdma_listen(listener, 5));
	id = cm_resolved(clients, RDMA_PS_TCP, ntohs(rdma_get_src_port(listener)), false);
	make_own(&a, id);
	p.qp_num = a.qp->qp_num;
	cm_works(rdma_connect(id, &p));
	struct cm_told t = cm_expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	make_own(&b, t.id);
	move_own(&b, t.id, IBV_QPS_INIT);
	receive_own(&b);
	move_own(&b, t.id, IBV_QPS_RTR);
	p.qp_num = b.qp->qp_num;
	cm_works(rdma_accept(t.id, &p));
	cm_expect(clients, RDMA_CM_EVENT_CONNECT_RESPONSE);
	move_own(&a, id, IBV_QPS_INIT);
	move_own(&a, id, IBV_QPS_RTR);
	move_own(&a, id, IBV_QPS_RTS);
	send_own(&a, 12);
	vt_require(vt_poll(b.cq, &wc, 1, CM_LONG) == 1 && wc.status == IBV_WC_SUCCESS && b.buf[0] == 12, "the message");
	vt_require(vt_event(t.id->verbs, &e, CM_LONG) == 1, "no asynchronous event");
	vt_check(e.event_type == IBV_EVENT_COMM_EST && e.element.qp == b.qp, "it is %s", vt_event_name((int)e.event_type));
	cm_nothing(channel);
	cm_works(rdma_notify(t.id, e.event_type));
	ibv_ack_async_event(&e);
	cm_expect(channel, RDMA_CM_EVENT_ESTABLISHED);
	cm_fails(rdma_notify(t.id, IBV_EVENT_COMM_EST), EISCONN);
	cm_fails(rdma_notify(t.id, IBV_EVENT_QP_FATAL), EINVAL);
	move_own(&b, t.id, IBV_QPS_RTS);
	/* The RTU says nothing new. */
	cm_works(rdma_establish(id));
	cm_nothing(channel);
	cm_works(rdma_disconnect(t.id));
	cm_expect(clients, RDMA_CM_EVENT_DISCONNECTED);
	cm_free(id);
	cm_expect(channel, RDMA_CM_EVENT_DISCONNECTED);
	free_own(&a);
	free_own(&b);
	cm_free(t.id);
	cm_free(listener);
	rdma_destroy_event_channel(clients);
	end();
}

/* rdma_set_option(3). */
static void options(void)
{
	begin();
	int yes = 1, no = 0;
	uint8_t tos = 0x40, timeout = 14;
	struct rdma_cm_id *first = new_id(RDMA_PS_TCP), *second = new_id(RDMA_PS_TCP), *id;
	cm_fails(rdma_set_option(first, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 2), EINVAL);
	cm_fails(rdma_set_option(first, RDMA_OPTION_ID, 99, &yes, sizeof(yes)), ENOSYS);
	cm_fails(rdma_set_option(first, 99, 0, &yes, sizeof(yes)), ENOSYS);
	/* Two may be bound to one port; one listens. */
	cm_works(rdma_set_option(first, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof(yes)));
	cm_works(bind_to(first, any(), 0));
	int port = ntohs(rdma_get_src_port(first));
	cm_fails(bind_to(second, any(), port), EADDRNOTAVAIL);
	cm_works(rdma_set_option(second, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof(yes)));
	cm_works(bind_to(second, any(), port));
	cm_works(rdma_listen(first, 5));
	cm_fails(rdma_listen(second, 5), EADDRINUSE);
	cm_works(rdma_destroy_id(first));
	cm_works(rdma_listen(second, 5));
	cm_works(rdma_destroy_id(second));
	/* One that takes its family only leaves the port to the other family. */
	first = new_id(RDMA_PS_TCP);
	second = new_id(RDMA_PS_TCP);
	cm_works(rdma_set_option(first, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &yes, sizeof(yes)));
	cm_works(bind_to(first, "::", 0));
	port = ntohs(rdma_get_src_port(first));
	cm_works(bind_to(second, "0.0.0.0", port));
	cm_works(rdma_listen(first, 5));
	cm_works(rdma_listen(second, 5));
	cm_fails(rdma_set_option(first, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &no, sizeof(no)), EINVAL);
	cm_works(rdma_destroy_id(first));
	cm_works(rdma_destroy_id(second));
	/* Type of service and timeout are the QP's. */
	struct cm_peer s = cm_start(RDMA_PS_TCP, 5);
	struct sockaddr_storage at = cm_at(cm_host(), s.port);
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr init;
	struct rdma_conn_param p = cm_param(NULL, 0);
	id = new_id(RDMA_PS_TCP);
	cm_works(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof(tos)));
	cm_works(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof(timeout)));
	cm_works(rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 2000));
	cm_expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	cm_works(rdma_resolve_route(id, 2000));
	cm_expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	cm_works(cm_qp(id));
	cm_works(rdma_connect(id, &p));
	int i = cm_server_accepts(&s);
	cm_expect(channel, RDMA_CM_EVENT_ESTABLISHED);
	vt_require(ibv_query_qp(id->qp, &a, IBV_QP_AV | IBV_QP_TIMEOUT, &init) == 0, "querying");
	vt_check(a.ah_attr.grh.traffic_class == tos, "the traffic class is %#x", a.ah_attr.grh.traffic_class);
	vt_check(a.timeout == timeout, "the timeout is %u", a.timeout);
	vt_check(id->route.path_rec[0].traffic_class == tos, "that of the path is %#x", id->route.path_rec[0].traffic_class);
	cm_sends(id, &s, i, 1);
	cm_free(id);
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

/* rdma_get_devices(3): the devices, open, as identifiers have them. */
static void the_devices(void)
{
	begin();
	int n = -1, m = 0;
	struct ibv_context **all = rdma_get_devices(&n);
	struct ibv_device **list = ibv_get_device_list(&m);
	vt_require(all && list, "rdma_get_devices: %s", strerror(errno));
	vt_check(n == m && n > 0 && !all[n], "%d devices, not %d", n, m);
	struct cm_peer s = cm_start(RDMA_PS_TCP, 5);
	struct rdma_cm_id *id = cm_resolved(channel, RDMA_PS_TCP, s.port, false);
	bool known = false;
	for (int k = 0; k < n; k++)
		known |= all[k] == id->verbs;
	vt_check(known, "the identifier's device is none of them");
	/* A protection domain of the program's on it. */
	struct ibv_pd *pd = ibv_alloc_pd(id->verbs);
	struct ibv_qp_init_attr init = init_attr();
	vt_require(pd, "a protection domain");
	cm_works(rdma_create_qp(id, pd, &init));
	vt_check(id->qp->pd == pd && id->pd == pd, "the QP has another");
	rdma_free_devices(all);
	ibv_free_device_list(list);
	cm_free(id);
	vt_check(ibv_dealloc_pd(pd) == 0, "its end");
	cm_ends(&s);
	end();
}

/* Datagrams: service ID resolution (IBA 12.11). */
static void datagrams(void)
{
	begin();
	uint8_t asks[CM_SIDR_REQ_DATA + 1];
	cm_fill(asks, sizeof(asks), 4);
	struct cm_peer s = cm_start(RDMA_PS_UDP, 5);
	struct rdma_cm_id *id = cm_resolved(channel, RDMA_PS_UDP, s.port, true);
	struct rdma_conn_param p = cm_param(asks, CM_SIDR_REQ_DATA + 1);
	cm_fails(rdma_connect(id, &p), EINVAL);
	p.private_data_len = CM_SIDR_REQ_DATA;
	cm_works(rdma_connect(id, &p));
	struct cm_told asked = *cm_server_expect(&s, RDMA_CM_EVENT_CONNECT_REQUEST);
	vt_check(cm_holds(&asked, CM_SIDR_REQ_DATA, 4), "the data of the request: %u bytes", asked.len);
	int i = s.last.index;
	struct cm_answer *said = cm_tell(&s, (struct cm_ask){ .op = CM_ACCEPT, .index = i, .len = CM_SIDR_REP_DATA + 1 });
	vt_check(said->rc == -1 && said->err == EINVAL, "accepting with too much: %d, %s", said->rc, vt_errno_name(said->err));
	cm_server_does_it(&s, .op = CM_QP, .index = i);
	struct cm_ask accept = { .op = CM_ACCEPT, .index = i, .len = CM_SIDR_REP_DATA };
	cm_fill(accept.data, CM_SIDR_REP_DATA, 5);
	vt_require(cm_tell(&s, accept)->rc == 0, "accepting: %s", vt_errno_name(s.last.err));
	struct cm_told t = cm_expect(channel, RDMA_CM_EVENT_ESTABLISHED);
	vt_check(cm_holds(&t, CM_SIDR_REP_DATA, 5) && t.qpn && t.qkey, "QP %#x, key %#x, %u bytes", t.qpn, t.qkey, t.len);
	/* It is the server who answers; nobody confirms. */
	cm_server_nothing(&s);
	struct ibv_ah *ah = ibv_create_ah(id->pd, &t.ah);
	vt_require(ah, "an address handle: %s", strerror(errno));
	struct ibv_wc wc;
	uint8_t byte = 66;
	struct ibv_mr *mr = rdma_reg_msgs(id, &byte, 1);
	cm_works(rdma_post_ud_send(id, NULL, &byte, 1, mr, IBV_SEND_SIGNALED, ah, t.qpn));
	vt_require(vt_poll(id->send_cq, &wc, 1, CM_LONG) == 1 && wc.status == IBV_WC_SUCCESS, "sending");
	said = cm_tell(&s, (struct cm_ask){ .op = CM_GETS, .index = i, .arg = CM_LONG });
	vt_check(said->rc == 66, "the server has got %d", said->rc);
	ibv_destroy_ah(ah);
	rdma_dereg_mr(mr);
	cm_free(id);
	/* Refused. */
	id = cm_resolved(channel, RDMA_PS_UDP, s.port, true);
	cm_works(rdma_connect(id, &p));
	cm_server_expect(&s, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct cm_ask reject = { .op = CM_REJECT, .index = s.last.index, .len = CM_SIDR_REP_DATA };
	cm_fill(reject.data, CM_SIDR_REP_DATA, 6);
	vt_require(cm_tell(&s, reject)->rc == 0, "rejecting: %s", vt_errno_name(s.last.err));
	t = cm_expect(channel, RDMA_CM_EVENT_UNREACHABLE);
	vt_check(t.status == SIDR_REFUSED && cm_holds(&t, CM_SIDR_REP_DATA, 6), "status %d, %u bytes", t.status, t.len);
	cm_free(id);
	/* Nobody serves it: a port of connections is another one. */
	cm_listens(&s, RDMA_PS_TCP, 5, 0);
	id = cm_resolved(channel, RDMA_PS_UDP, s.port, true);
	cm_works(rdma_connect(id, &p));
	t = cm_expect(channel, RDMA_CM_EVENT_UNREACHABLE);
	vt_check(t.status == SIDR_NOBODY_SERVES, "status %d", t.status);
	cm_free(id);
	cm_server_nothing(&s);
	cm_ends(&s);
	end();
}

/* rdma_join_multicast(3): messages to a group come to those that have joined it, until they leave. */
static void groups(void)
{
	const char *link = getenv("VERVAIN_LINK");
	if (!strcmp(cm_host(), "::1") && link && !strcmp(link, "roce"))
		vt_does_not_apply("the kernel leads no IPv6 group by the loopback");
	begin();
	const char *names[2] = { cm_v6() ? "ff02::7:1" : "239.7.1.1", cm_v6() ? "ff02::7:2" : "239.7.1.2" };
	struct cm_peer s = cm_start(RDMA_PS_UDP, 5);
	struct sockaddr_storage to = cm_at(cm_host(), s.port), group;
	struct sockaddr *g = (struct sockaddr *)&group;
	struct rdma_cm_id *id = new_id(RDMA_PS_UDP);
	struct ibv_ah *ah[2];
	cm_works(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000));
	cm_expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	cm_works(cm_qp(id));
	struct cm_ask member = { .op = CM_NEW, .ps = RDMA_PS_UDP };
	snprintf(member.host, sizeof(member.host), "%s", cm_host());
	vt_require(cm_tell(&s, member)->rc == 0, "a member: %s", vt_errno_name(s.last.err));
	int i = s.last.index;
	for (int k = 0; k < 2; k++) {
		group = cm_at(names[k], 0);
		struct rdma_cm_join_mc_attr_ex sends = { .comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
							 .join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, .addr = g };
		/* One that only sends gets nothing of it. */
		cm_works(k ? rdma_join_multicast(id, g, &ah[k]) : rdma_join_multicast_ex(id, &sends, &ah[k]));
		struct rdma_cm_event *e;
		cm_works(rdma_get_cm_event(channel, &e));
		vt_require(e->event == RDMA_CM_EVENT_MULTICAST_JOIN && e->status == 0, "%s, %d", cm_name((int)e->event), e->status);
		vt_check(e->param.ud.private_data == &ah[k], "the context is another");
		vt_check(e->param.ud.qp_num == CM_QPN_ALL && e->param.ud.qkey, "QP %#x", e->param.ud.qp_num);
		ah[k] = ibv_create_ah(id->pd, &e->param.ud.ah_attr);
		vt_require(ah[k], "an address handle: %s", strerror(errno));
		cm_works(rdma_ack_cm_event(e));
		struct cm_ask join = { .op = CM_JOIN, .index = i };
		snprintf(join.host, sizeof(join.host), "%s", names[k]);
		vt_require(cm_tell(&s, join)->rc == 0, "joining: %s", vt_errno_name(s.last.err));
		cm_server_expect(&s, RDMA_CM_EVENT_MULTICAST_JOIN);
	}
	uint8_t bytes[2] = { 21, 22 };
	struct ibv_mr *mr = rdma_reg_msgs(id, bytes, sizeof(bytes));
	struct ibv_wc wc;
	for (int round = 0; round < 2; round++) {
		for (int k = 0; k < 2; k++) {
			cm_works(rdma_post_ud_send(id, NULL, &bytes[k], 1, mr, IBV_SEND_SIGNALED, ah[k], CM_QPN_ALL));
			vt_require(vt_poll(id->send_cq, &wc, 1, CM_LONG) == 1 && wc.status == IBV_WC_SUCCESS, "sending");
			bool is_member = !(round && k);
			struct cm_answer *got = cm_tell(&s, (struct cm_ask){ .op = CM_GETS, .index = i, .arg = is_member ? CM_LONG : CM_SHORT });
			vt_check(got->rc == (is_member ? bytes[k] : -1), "round %d, group %d: %d", round, k, got->rc);
		}
		if (!round) {
			struct cm_ask leave = { .op = CM_LEAVE, .index = i };
			snprintf(leave.host, sizeof(leave.host), "%s", names[1]);
			vt_require(cm_tell(&s, leave)->rc == 0, "leaving: %s", vt_errno_name(s.last.err));
			cm_tell(&s, leave);
			vt_check(s.last.rc == -1 && s.last.err == EADDRNOTAVAIL, "leaving again: %s", vt_errno_name(s.last.err));
		}
	}
	vt_check(ibv_destroy_ah(ah[0]) == 0 && ibv_destroy_ah(ah[1]) == 0, "freeing");
	group = cm_at("10.1.1.1", 0);
	cm_fails(rdma_join_multicast(id, g, NULL), EINVAL);
	rdma_dereg_mr(mr);
	cm_free(id);
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
		{ "the_events_of_a_connection", the_events_of_a_connection },
		{ "both_disconnect_at_once", both_disconnect_at_once },
		{ "nobody_listens", nobody_listens },
		{ "a_listener_goes", a_listener_goes },
		{ "a_request_is_rejected", a_request_is_rejected },
		{ "the_backlog_is_exceeded", the_backlog_is_exceeded },
		{ "too_much_data", too_much_data },
		{ "no_way_leads_there", no_way_leads_there },
		{ "bound_to_an_address", bound_to_an_address },
		{ "a_port_is_in_use", a_port_is_in_use },
		{ "calls_in_the_wrong_order", calls_in_the_wrong_order },
		{ "an_identifier_changes_its_channel", an_identifier_changes_its_channel },
		{ "a_listener_changes_its_channel", a_listener_changes_its_channel },
		{ "the_descriptor_of_a_channel", the_descriptor_of_a_channel },
		{ "an_identifier_goes_when_its_events_are_acknowledged", an_identifier_goes_when_its_events_are_acknowledged },
		{ "identifiers_whose_calls_wait", identifiers_whose_calls_wait },
		{ "identifiers_whose_calls_wait_connect_unreliably", identifiers_whose_calls_wait_connect_unreliably },
		{ "a_listener_of_datagrams_goes_before_those_who_were_accepted", a_listener_of_datagrams_goes_before_those_who_were_accepted },
		{ "a_qp_of_the_programs_own", a_qp_of_the_programs_own },
		{ "a_response_is_rejected", a_response_is_rejected },
		{ "a_message_comes_before_the_rtu", a_message_comes_before_the_rtu },
		{ "options", options },
		{ "identifiers_go_with_events_that_wait", identifiers_go_with_events_that_wait },
		{ "the_devices", the_devices },
		{ "datagrams", datagrams },
		{ "groups", groups },
		{ "threads_share_a_channel", threads_share_a_channel },
	};
	static const struct vt_role roles[] = { CM_SERVER, { "crowd", crowd_server } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
