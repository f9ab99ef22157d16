/* QPs by rdma_cm: synchronous identifiers, QPs that the program moves itself, those for datagrams and groups, and their devices. The server
 * runs in another process, perhaps on another host, as in cm_calls.c. */
#define _GNU_SOURCE
#include "cm_calls.h"

#include <pthread.h>

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

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = {
		{ "identifiers_whose_calls_wait", identifiers_whose_calls_wait },
		{ "identifiers_whose_calls_wait_connect_unreliably", identifiers_whose_calls_wait_connect_unreliably },
		{ "a_listener_of_datagrams_goes_before_those_who_were_accepted", a_listener_of_datagrams_goes_before_those_who_were_accepted },
		{ "a_qp_of_the_programs_own", a_qp_of_the_programs_own },
		{ "a_response_is_rejected", a_response_is_rejected },
		{ "a_message_comes_before_the_rtu", a_message_comes_before_the_rtu },
		{ "the_devices", the_devices },
		{ "datagrams", datagrams },
		{ "groups", groups },
	};
	static const struct vt_role roles[] = { CM_SERVER };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
