/* cm: what the tests of rdma_cm share: events that are waited for, and a server in another process that does what it is told. */
#ifndef CM_H
#define CM_H

#include "vt_duo.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#define CM_LONG 20000 /* ms: within this time comes what is to come */
#define CM_SHORT 200  /* ms: what is not to come has had the time to */
#define CM_IDS 64     /* of the server */
#define CM_QPN_ALL 0xffffffu /* to all of a group */

/* Reasons of a REJ (IBA 12.6.7.2) and statuses of a SIDR_REP (12.11.2.1). */
enum { CM_NOBODY_LISTENS = 8, CM_CONSUMER = 28, SIDR_NOBODY_SERVES = 1, SIDR_REFUSED = 2 };

/* Room for a program's data: that of the message, less the 36 bytes of the IP CM service where it is a request (IBA annex A11). */
enum { CM_REQ_DATA = 56, CM_REP_DATA = 196, CM_REJ_DATA = 148, CM_SIDR_REQ_DATA = 180, CM_SIDR_REP_DATA = 136 };

/* An event, acknowledged. */
struct cm_told {
	int kind; /* -1: there was none */
	int status;
	struct rdma_cm_id *id, *listen_id;
	uint8_t len, responder, depth, retry, rnr_retry, pad[3];
	uint32_t qpn, qkey;
	struct ibv_ah_attr ah; /* of a QP for datagrams */
	uint8_t data[256];
};

static inline const char *cm_name(int kind)
{
	return kind < 0 ? "no event" : rdma_event_str((enum rdma_cm_event_type)kind);
}

static inline struct sockaddr_storage cm_at(const char *host, int port)
{
	struct sockaddr_storage at = { 0 };
	struct sockaddr_in *v4 = (struct sockaddr_in *)&at;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&at;
	if (inet_pton(AF_INET6, host, &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons((uint16_t)port);
		return at;
	}
	memset(&at, 0, sizeof(at));
	inet_pton(AF_INET, host, &v4->sin_addr);
	v4->sin_family = AF_INET;
	v4->sin_port = htons((uint16_t)port);
	return at;
}

/* Where the server is, as clients know it. */
static inline const char *cm_host(void)
{
	const char *host = getenv("VT_ADDRESS");
	return host ? host : "127.0.0.1";
}

static inline bool cm_v6(void)
{
	return strchr(cm_host(), ':') != NULL;
}

static inline struct cm_told cm_take(struct rdma_event_channel *channel, unsigned ms)
{
	struct cm_told t = { .kind = -1 };
	struct pollfd p = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *e;
	if (poll(&p, 1, (int)ms) <= 0 || rdma_get_cm_event(channel, &e))
		return t;
	t.kind = (int)e->event;
	t.status = e->status;
	t.id = e->id;
	t.listen_id = e->listen_id;
	const void *data;
	/* Of a QP for datagrams it is another struct, which begins as the other does. */
	if (e->id->qp_type == IBV_QPT_UD) {
		t.qpn = e->param.ud.qp_num;
		t.qkey = e->param.ud.qkey;
		t.ah = e->param.ud.ah_attr;
	} else {
		t.qpn = e->param.conn.qp_num;
		t.responder = e->param.conn.responder_resources;
		t.depth = e->param.conn.initiator_depth;
		t.retry = e->param.conn.retry_count;
		t.rnr_retry = e->param.conn.rnr_retry_count;
	}
	t.len = e->param.conn.private_data_len;
	data = e->param.conn.private_data;
	if (e->event != RDMA_CM_EVENT_MULTICAST_JOIN && e->event != RDMA_CM_EVENT_MULTICAST_ERROR && data)
		memcpy(t.data, data, t.len);
	rdma_ack_cm_event(e);
	return t;
}

/* The next event, which has to be of this kind. */
#define cm_expect(channel, wanted)                                                                                        \
	({                                                                                                                    \
		struct cm_told told_ = cm_take(channel, CM_LONG);                                                                 \
		vt_require(told_.kind == (int)(wanted), "%s (status %d), not %s", cm_name(told_.kind), told_.status, cm_name(wanted)); \
		told_;                                                                                                            \
	})
#define cm_nothing(channel)                                                                                               \
	do {                                                                                                                  \
		struct cm_told told_ = cm_take(channel, CM_SHORT);                                                                \
		vt_check(told_.kind < 0, "%s (status %d), and nothing was to come", cm_name(told_.kind), told_.status);           \
	} while (0)

/* A call that fails with this errno; one that succeeds. */
#define cm_fails(call, wanted)                                                                                            \
	do {                                                                                                                  \
		int rc_ = (call), err_ = errno;                                                                                   \
		vt_check(rc_ == -1 && err_ == (wanted), #call ": %d, %s, not %s", rc_, vt_errno_name(err_), vt_errno_name(wanted)); \
	} while (0)
#define cm_works(call)                                                                                                    \
	do {                                                                                                                  \
		int rc_ = (call);                                                                                                 \
		vt_require(rc_ == 0, #call ": %d, %s", rc_, vt_errno_name(errno));                                                \
	} while (0)

static inline int cm_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = { .cap = { 8, 8, 1, 1, 16 }, .qp_type = id->qp_type, .sq_sig_all = 1 };
	return rdma_create_qp(id, NULL, &init);
}

/* Private data that tell where they come from. */
static inline void cm_fill(uint8_t *data, size_t n, uint8_t seed)
{
	for (size_t i = 0; i < n; i++)
		data[i] = (uint8_t)(seed + 7 * i);
}

static inline bool cm_holds(const struct cm_told *t, size_t n, uint8_t seed)
{
	uint8_t data[256];
	cm_fill(data, n, seed);
	return t->len >= n && memcmp(t->data, data, n) == 0;
}

static inline struct rdma_conn_param cm_param(const uint8_t *data, uint8_t n)
{
	return (struct rdma_conn_param){ .private_data = data, .private_data_len = n, .responder_resources = 3, .initiator_depth = 2,
					 .retry_count = 6, .rnr_retry_count = 5 };
}

/* The way to the server's port, on this channel, with a QP. */
static inline struct rdma_cm_id *cm_resolved(struct rdma_event_channel *channel, enum rdma_port_space ps, int port, bool with_qp)
{
	struct rdma_cm_id *id;
	struct sockaddr_storage at = cm_at(cm_host(), port);
	cm_works(rdma_create_id(channel, &id, NULL, ps));
	cm_works(rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 2000));
	cm_expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	cm_works(rdma_resolve_route(id, 2000));
	cm_expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	if (with_qp)
		cm_works(cm_qp(id));
	return id;
}

static inline void cm_free(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	cm_works(rdma_destroy_id(id));
}

/* ---- the server ---- */
enum cm_op {
	CM_LISTEN,     /* host, port, ps, arg = backlog -> rc, port */
	CM_CLOSE,      /* the listener */
	CM_EVENT,      /* arg = ms -> told, index: of the identifier that it is of, -1 the listener */
	CM_WAITS,      /* arg = ms -> rc, once there is an event, which stays */
	CM_QP,         /* index -> rc; with a receive */
	CM_ACCEPT,     /* index, data -> rc */
	CM_REJECT,     /* index, data -> rc */
	CM_DISCONNECT, /* index -> rc */
	CM_DESTROY,    /* index, with its QP -> rc */
	CM_GETS,       /* index, arg = ms -> rc = the byte that has come, -1 none */
	CM_SENDS,      /* index, arg = the byte -> rc */
	CM_JOIN,       /* index, host = group -> rc; the event is told by CM_EVENT */
	CM_LEAVE,      /* index, host = group -> rc */
	CM_STATE,      /* index -> rc = the state of its QP */
	CM_NEW,        /* ps, host = its address -> index, with a QP */
};

struct cm_ask {
	int32_t op, index, arg, port, ps;
	uint8_t len, data[255];
	char host[64];
};

struct cm_answer {
	int32_t rc, err, port, index;
	struct cm_told told;
};

/* Identifiers of the server, each with a message of its own; those that are destroyed are NULL. */
struct cm_server {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *listener, *ids[CM_IDS];
	struct ibv_mr *mr[CM_IDS];
	uint8_t buf[CM_IDS][128];
	int n;
};

static inline int cm_index(struct cm_server *s, const struct rdma_cm_id *id)
{
	for (int i = 0; i < s->n; i++)
		if (s->ids[i] == id)
			return i;
	return -1;
}

static inline int cm_add(struct cm_server *s, struct rdma_cm_id *id)
{
	if (s->n == CM_IDS)
		return -1;
	s->ids[s->n] = id;
	return s->n++;
}

static inline int cm_server_qp(struct cm_server *s, int i)
{
	if (cm_qp(s->ids[i]))
		return -1;
	s->mr[i] = rdma_reg_msgs(s->ids[i], s->buf[i], sizeof(s->buf[i]));
	return s->mr[i] ? rdma_post_recv(s->ids[i], NULL, s->buf[i], sizeof(s->buf[i]), s->mr[i]) : -1;
}

static inline int cm_server_gets(struct cm_server *s, int i, unsigned ms)
{
	struct ibv_wc wc;
	if (vt_poll(s->ids[i]->recv_cq, &wc, 1, ms) != 1 || wc.status != IBV_WC_SUCCESS)
		return -1;
	int got = s->buf[i][s->ids[i]->qp_type == IBV_QPT_UD ? VT_GRH : 0];
	return rdma_post_recv(s->ids[i], NULL, s->buf[i], sizeof(s->buf[i]), s->mr[i]) ? -1 : got;
}

static inline void cm_server_does(struct cm_server *s, const struct cm_ask *a, struct cm_answer *r)
{
	struct sockaddr_storage at = cm_at(a->host, a->port);
	struct sockaddr *sa = (struct sockaddr *)&at;
	struct rdma_cm_id *id = a->index >= 0 && a->index < s->n ? s->ids[a->index] : NULL;
	struct rdma_conn_param p = cm_param(a->data, a->len);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	r->index = a->index;
	errno = 0;
	switch (a->op) {
	case CM_LISTEN:
		r->rc = rdma_create_id(s->channel, &s->listener, NULL, (enum rdma_port_space)a->ps);
		if (r->rc == 0 && ((r->rc = rdma_bind_addr(s->listener, sa)) || (r->rc = rdma_listen(s->listener, a->arg)))) {
			int err = errno;
			rdma_destroy_id(s->listener);
			s->listener = NULL;
			errno = err;
		} else if (r->rc == 0) {
			r->port = ntohs(rdma_get_src_port(s->listener));
		}
		break;
	case CM_CLOSE:
		r->rc = rdma_destroy_id(s->listener);
		s->listener = NULL;
		break;
	case CM_EVENT:
		r->told = cm_take(s->channel, (unsigned)a->arg);
		r->index = r->told.kind == RDMA_CM_EVENT_CONNECT_REQUEST ? cm_add(s, r->told.id) : cm_index(s, r->told.id);
		r->rc = 0;
		break;
	case CM_WAITS: {
		struct pollfd event = { .fd = s->channel->fd, .events = POLLIN };
		r->rc = poll(&event, 1, a->arg) == 1 ? 0 : -1;
		break;
	}
	case CM_QP:
		r->rc = cm_server_qp(s, a->index);
		break;
	case CM_ACCEPT:
		/* Of datagrams there is no more to say. */
		r->rc = rdma_accept(id, &p);
		break;
	case CM_REJECT:
		r->rc = rdma_reject(id, a->data, a->len);
		break;
	case CM_DISCONNECT:
		r->rc = rdma_disconnect(id);
		break;
	case CM_DESTROY:
		if (id->qp)
			rdma_destroy_qp(id);
		if (s->mr[a->index])
			rdma_dereg_mr(s->mr[a->index]);
		s->mr[a->index] = NULL;
		r->rc = rdma_destroy_id(id);
		s->ids[a->index] = NULL;
		break;
	case CM_GETS:
		r->rc = cm_server_gets(s, a->index, (unsigned)a->arg);
		break;
	case CM_SENDS: {
		struct ibv_wc wc;
		uint8_t byte = (uint8_t)a->arg;
		r->rc = rdma_post_send(id, NULL, &byte, 1, NULL, IBV_SEND_INLINE);
		if (r->rc == 0)
			r->rc = vt_poll(id->send_cq, &wc, 1, CM_LONG) == 1 ? (int)wc.status : -1;
		break;
	}
	case CM_JOIN:
		r->rc = rdma_join_multicast(id, sa, NULL);
		break;
	case CM_LEAVE:
		r->rc = rdma_leave_multicast(id, sa);
		break;
	case CM_STATE:
		r->rc = ibv_query_qp(id->qp, &attr, IBV_QP_STATE, &init) ? -1 : (int)attr.qp_state;
		break;
	case CM_NEW:
		r->rc = rdma_create_id(s->channel, &id, NULL, (enum rdma_port_space)a->ps);
		r->index = r->rc ? -1 : cm_add(s, id);
		/* Bound to the loopback's address it would have no device. */
		if (r->rc == 0 && (r->rc = rdma_resolve_addr(id, NULL, sa, 2000)) == 0 &&
		    cm_take(s->channel, CM_LONG).kind == RDMA_CM_EVENT_ADDR_RESOLVED)
			r->rc = cm_server_qp(s, r->index);
		break;
	default:
		r->rc = -1;
	}
	r->err = errno;
}

/* Does as it is told, until nobody tells it any more. */
static inline int cm_serve(int fd)
{
	static struct cm_server s;
	static struct cm_answer r;
	struct cm_ask a;
	s.channel = rdma_create_event_channel();
	if (!s.channel)
		return 2;
	while (vt_get(fd, &a, sizeof(a), -1)) {
		memset(&r, 0, sizeof(r));
		cm_server_does(&s, &a, &r);
		if (!vt_put(fd, &r, sizeof(r)))
			break;
	}
	return vt_failures() ? 1 : 0;
}
#define CM_SERVER { "server", cm_serve }

/* The server of a case, as the case knows it. */
struct cm_peer {
	int fd, port;
	pid_t pid;
	struct cm_answer last;
};

static inline struct cm_answer *cm_tell(struct cm_peer *s, struct cm_ask a)
{
	vt_require(vt_put(s->fd, &a, sizeof(a)) && vt_get(s->fd, &s->last, sizeof(s->last), 2 * CM_LONG), "the server does not answer");
	return &s->last;
}

/* One that listens, with this backlog, at the port; 0 for any. */
static inline void cm_listens(struct cm_peer *s, enum rdma_port_space ps, int backlog, int port)
{
	struct cm_ask a = { .op = CM_LISTEN, .ps = (int)ps, .arg = backlog, .port = port };
	snprintf(a.host, sizeof(a.host), "%s", cm_host());
	vt_require(cm_tell(s, a)->rc == 0, "the server does not listen: %s", vt_errno_name(s->last.err));
	s->port = s->last.port;
}

static inline struct cm_peer cm_start(enum rdma_port_space ps, int backlog)
{
	struct cm_peer s = { .fd = -1 };
	s.pid = vt_spawn("server", &s.fd);
	vt_require(s.pid > 0, "the server");
	cm_listens(&s, ps, backlog, 0);
	return s;
}

static inline void cm_ends(struct cm_peer *s)
{
	close(s->fd);
	int status = vt_reap(s->pid, CM_LONG);
	vt_check(status == 0, "the server ends with %#x", (unsigned)status);
}

/* The server's next event, which has to be of this kind; `last.index` is whose. */
#define cm_server_expect(s, wanted)                                                                                       \
	({                                                                                                                    \
		struct cm_answer *answer_ = cm_tell(s, (struct cm_ask){ .op = CM_EVENT, .arg = CM_LONG });                        \
		vt_require(answer_->told.kind == (int)(wanted), "the server: %s (status %d), not %s", cm_name(answer_->told.kind), \
			answer_->told.status, cm_name(wanted));                                                                       \
		&answer_->told;                                                                                                   \
	})
#define cm_server_nothing(s)                                                                                              \
	do {                                                                                                                  \
		struct cm_answer *answer_ = cm_tell(s, (struct cm_ask){ .op = CM_EVENT, .arg = CM_SHORT });                       \
		vt_check(answer_->told.kind < 0, "the server: %s (status %d), and nothing was to come", cm_name(answer_->told.kind), \
			answer_->told.status);                                                                                        \
	} while (0)
/* It does something with one of its identifiers, successfully. */
#define cm_server_does_it(s, ...)                                                                                         \
	do {                                                                                                                  \
		struct cm_answer *answer_ = cm_tell(s, (struct cm_ask){ __VA_ARGS__ });                                           \
		vt_require(answer_->rc == 0, "the server, " #__VA_ARGS__ ": %d, %s", answer_->rc, vt_errno_name(answer_->err));   \
	} while (0)

/* The server takes the request that comes next, with a QP, and tells its index; nobody has heard of the connection yet. */
static inline int cm_server_accepts(struct cm_peer *s)
{
	cm_server_expect(s, RDMA_CM_EVENT_CONNECT_REQUEST);
	int i = s->last.index;
	cm_server_does_it(s, .op = CM_QP, .index = i);
	cm_server_does_it(s, .op = CM_ACCEPT, .index = i);
	return i;
}

/* A connection to the server, of which both have heard; the server's index of it. */
static inline struct rdma_cm_id *cm_connected(struct rdma_event_channel *channel, struct cm_peer *s, int *index)
{
	struct rdma_cm_id *id = cm_resolved(channel, RDMA_PS_TCP, s->port, true);
	struct rdma_conn_param p = cm_param(NULL, 0);
	cm_works(rdma_connect(id, &p));
	*index = cm_server_accepts(s);
	cm_expect(channel, RDMA_CM_EVENT_ESTABLISHED);
	cm_server_expect(s, RDMA_CM_EVENT_ESTABLISHED);
	return id;
}

/* A byte to the server, which gets it. */
static inline void cm_sends(struct rdma_cm_id *id, struct cm_peer *s, int index, uint8_t byte)
{
	struct ibv_wc wc;
	cm_works(rdma_post_send(id, NULL, &byte, 1, NULL, IBV_SEND_INLINE));
	vt_require(vt_poll(id->send_cq, &wc, 1, CM_LONG) == 1, "the byte does not leave");
	vt_require(wc.status == IBV_WC_SUCCESS, "the byte: %s", vt_wc_name((int)wc.status));
	struct cm_answer *got = cm_tell(s, (struct cm_ask){ .op = CM_GETS, .index = index, .arg = CM_LONG });
	vt_check(got->rc == byte, "the server has got %d, not %d", got->rc, byte);
}

#endif
