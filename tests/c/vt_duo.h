/* vt_duo: two or more processes of one program, each with its own device, connected over a socket pair to exchange
 * addresses. For the tests of data, concurrency and death, where each side runs code of its own. */
#ifndef VT_DUO_H
#define VT_DUO_H

#include "vt.h"

/* Starts this program anew as `--role NAME FD`; it dies with its parent. Returns the pid, the socket in *fd. */
pid_t vt_spawn(const char *role, int *fd);
/* vt_apart.c: the same where the peer is in another container, by its `--serve PORT` at "ADDRESS:PORT"; vt_spawn does so when
 * $VT_PEER_AT is set. The process of the pid ends as the peer does. */
pid_t vt_call(const char *at, const char *role, int *fd);
/* Waits for the end of a child, at most ms; kills it then. Returns the wait status, or -1 when it had to be killed. */
int vt_reap(pid_t pid, unsigned ms);
bool vt_kill(pid_t pid); /* by SIGKILL, and waits for its end, however busy the machine is; false if it ended otherwise */
bool vt_put(int fd, const void *p, size_t n);
bool vt_get(int fd, void *p, size_t n, int timeout_ms);

#define VT_DUO_QPS 64
struct vt_duo_opts {
	enum vt_type type; /* VT_RC or VT_UC; VT_RC_SRQ: receives come from one SRQ */
	int nqp;
	uint32_t depth, sge;
	uint32_t timeout, retry; /* 0: 14 and 7 */
	size_t size;             /* of the buffer */
};

struct vt_duo_addr {
	union ibv_gid gid;
	uint16_t lid, pad;
	uint32_t rkey;
	uint64_t addr;
	uint32_t qpn[VT_DUO_QPS];
};

struct vt_duo {
	struct vt_duo_opts o;
	struct vt_dev dev;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq; /* sends and receives */
	struct ibv_srq *srq;
	struct ibv_qp *qp[VT_DUO_QPS];
	struct ibv_mr *mr;
	uint8_t *buf;
	struct vt_duo_addr self, peer;
};

/* Objects of one side; every step prints why it failed and returns false. */
bool vt_duo_open(struct vt_duo *d, const struct vt_duo_opts *o);
bool vt_duo_qp(struct vt_duo *d, int i);                      /* a new QP in slot i */
bool vt_duo_connect(struct vt_duo *d, int i);                 /* to peer.qpn[i] */
bool vt_duo_meet(struct vt_duo *d, int fd);                   /* exchanges addresses and connects all */
bool vt_duo_close(struct vt_duo *d);

/* Posts one request; sge are split by the caller. */
int vt_duo_post(struct vt_duo *d, int qp, int opcode, uint64_t id, unsigned flags, const struct ibv_sge *sge, int nsge, uint64_t raddr);
struct ibv_sge vt_duo_sge(const struct vt_duo *d, uint64_t off, uint32_t len);

/* Content that is known from its seed: 8-byte words of a generator, the last one cut. */
void vt_fill(uint8_t *p, size_t n, uint64_t seed);
/* Offset of the first byte that is wrong, or n. */
size_t vt_verify(const uint8_t *p, size_t n, uint64_t seed);

#endif
