/* cm_calls: what programs share that make one call of rdma_cm after the other: the channel of a case, and its identifiers. */
#ifndef CM_CALLS_H
#define CM_CALLS_H

#include "cm.h"

static struct rdma_event_channel *channel;

static inline void begin(void)
{
	channel = rdma_create_event_channel();
	vt_require(channel, "rdma_create_event_channel: %s", strerror(errno));
}

static inline void end(void)
{
	rdma_destroy_event_channel(channel);
}

static inline struct rdma_cm_id *new_id(enum rdma_port_space ps)
{
	struct rdma_cm_id *id;
	cm_works(rdma_create_id(channel, &id, NULL, ps));
	return id;
}

static inline int bind_to(struct rdma_cm_id *id, const char *host, int port)
{
	struct sockaddr_storage at = cm_at(host, port);
	return rdma_bind_addr(id, (struct sockaddr *)&at);
}

static inline const char *any(void)
{
	return cm_v6() ? "::" : "0.0.0.0";
}

#endif
