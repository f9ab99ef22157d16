/* Connections by rdma_cm: what each call returns, and which events come of it at both ends, in which order. Expectations are those of
 * man 7 rdma_cm, the pages of the functions, and IBA 12; the server runs in another process, perhaps on another host ($VT_PEER_NETNS,
 * $VT_ADDRESS). */
#define _GNU_SOURCE
#include "cm_calls.h"

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
		{ "options", options },
	};
	static const struct vt_role roles[] = { CM_SERVER };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
