/* vt: what every C test of the device shares. Reporting of cases, opening a device, and the "side": one end of a
 * connection that can be driven either in this process or, by fixed-size requests over a socket pair, in another one. */
#ifndef VT_H
#define VT_H

#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include <infiniband/verbs.h>

#define VT_ACCESS_ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
#define VT_QKEY 0x11223344u
#define VT_GRH 40 /* bytes in front of every UD message in the receive buffer */
#define VT_ARRAY(a) (sizeof(a) / sizeof((a)[0]))

/* Names of newer rdma-core releases that an older system's header lacks: atomic write (43) and flush (46). Their builders
 * stand behind wr_abort in struct ibv_qp_ex, in this order. */
#define VT_WR_ATOMIC_WRITE 15
#define VT_QP_EX_WITH_ATOMIC_WRITE (1u << 12)
#define VT_QP_EX_WITH_FLUSH (1u << 11)
#define VT_ACCESS_FLUSH_GLOBAL (1 << 8)
#define VT_ACCESS_FLUSH_PERSISTENT (1 << 9)
#define VT_FLUSH_GLOBAL 1
#define VT_FLUSH_PERSISTENT 2
#define VT_FLUSH_RANGE 0
void vt_build_atomic_write(struct ibv_qp_ex *qpx, uint32_t rkey, uint64_t remote_addr, const void *value);
void vt_build_flush(struct ibv_qp_ex *qpx, uint32_t rkey, uint64_t remote_addr, size_t len, uint8_t type, uint8_t level);

/* ---- vt_share.c: memory ---- */
/* Zeroed pages as mmap gives them, MAP_FAILED; with VT_SHARED=1 in an object that peers map. */
void *vt_memory(size_t len);
void vt_memory_free(void *p, size_t len);

/* ---- vt.c: cases and reporting ---- */
struct vt_case {
	const char *name;
	void (*run)(void);
};

extern jmp_buf vt_abandon;

/* Runs the named cases (all without a name). Options before names: "--two" runs sides in two processes, "--seed N",
 * where N may be "random". Without one the seed is that of $VT_SEED, else 1.
 * Returns the exit status: 0 only when no check failed. */
int vt_main(int argc, char **argv, const struct vt_case *cases, size_t n);
/* vt_main for a program that starts itself anew in other roles (vt_spawn): "--role NAME FD". */
struct vt_role {
	const char *name;
	int (*run)(int fd); /* -> exit status */
};
int vt_main_roles(int argc, char **argv, const struct vt_case *cases, size_t n, const struct vt_role *roles, size_t nroles);
int vt_failures(void); /* of this case, so far */
void vt_failed(const char *file, int line, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void vt_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* For programs whose cases are rows of a table: each row is reported on its own line under this name. */
void vt_begin(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
bool vt_end(void);
/* Ends the case for what the machine lacks, which counts as a skipped test. */
void vt_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
/* Ends a case that has nothing to say in this kind of run. */
void vt_does_not_apply(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

/* A failed check is printed and the case goes on. */
#define vt_check(cond, ...)                                                                                                \
	do {                                                                                                                   \
		if (!(cond))                                                                                                       \
			vt_failed(__FILE__, __LINE__, __VA_ARGS__);                                                                    \
	} while (0)
/* A failed requirement ends the case. */
#define vt_require(cond, ...)                                                                                              \
	do {                                                                                                                   \
		if (!(cond)) {                                                                                                     \
			vt_failed(__FILE__, __LINE__, __VA_ARGS__);                                                                    \
			longjmp(vt_abandon, 1);                                                                                        \
		}                                                                                                                  \
	} while (0)

extern bool vt_two;      /* run sides in two processes */
extern uint64_t vt_seed; /* seed of vt_random; printed by vt_main */
uint64_t vt_random(void);
uint64_t vt_now_us(void);
/* vt_now_us less the time that this thread was ready and waited for a processor, where the kernel counts it: what a call takes by this
 * clock it has slept or worked, however busy the machine is. */
uint64_t vt_own_us(void);
void vt_sleep_ms(unsigned ms);
uint64_t vt_hash(const void *p, size_t n); /* FNV-1a, 64 bits */
const char *vt_wc_name(int status);
const char *vt_state_name(int state);
const char *vt_event_name(int event);
const char *vt_errno_name(int err);

/* ---- vt.c: the device ---- */
struct vt_dev {
	struct ibv_context *ctx;
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	uint8_t port_num;
	bool global; /* addresses carry a GRH (Ethernet, or with $VT_GID) */
	int gid_index;
	union ibv_gid gid;
};
bool vt_open(struct vt_dev *dev); /* prints why when it fails */
/* vt_apart.c: runs roles for callers of another container, one after the other, until it is killed. */
int vt_serve(int port);
/* In a child that becomes the peer, before exec: to the network namespace of $VT_PEER_NETNS, where that is set. */
bool vt_enter_peers_network(void);
int vt_poll(struct ibv_cq *cq, struct ibv_wc *wc, int n, unsigned timeout_ms); /* until n completions or the time is over */
int vt_event(struct ibv_context *ctx, struct ibv_async_event *ev, unsigned timeout_ms); /* 1 got one, 0 none; not acked */

/* ---- vt_side.c: one end of a connection ---- */
enum vt_type { VT_RC, VT_RC_SRQ, VT_UC, VT_UD, VT_XRC };

struct vt_cfg {
	int32_t type; /* vt_type */
	int32_t responder;
	uint32_t qp_access;
	uint32_t timeout, retry_cnt, rnr_retry, min_rnr_timer, max_rd, max_dest_rd;
	uint32_t sq_depth, rq_depth, max_sge, max_inline;
	uint32_t qkey, mtu;
	int32_t sq_sig_all;
	int32_t one_cq;    /* receives report to the CQ of the sends too */
	int32_t psn_off;   /* by how much sq_psn is not what the peer was told */
	uint64_t send_ops; /* non-zero: ibv_create_qp_ex with these builders */
};

struct vt_info {
	union ibv_gid gid;
	uint32_t qpn, srqn, psn, qkey;
	uint16_t lid;
	uint8_t max_dest_rd, pad;
	uint64_t addr, size; /* the registered buffer of the side */
	uint32_t lkey, rkey;
};

/* Operations beyond ibv_wr_opcode that the builder interface alone has, or that are not posted by ibv_post_send. */
enum { VT_OP_FLUSH = 100, VT_OP_BIND_MW1 };

struct vt_wr {
	uint64_t wr_id;
	int32_t opcode; /* ibv_wr_opcode or VT_OP_* */
	uint32_t flags;
	int32_t nsge;
	struct ibv_sge sge[4];
	uint64_t raddr;
	uint32_t rkey;
	uint32_t imm; /* host order, or the rkey to invalidate */
	uint64_t compare_add, swap;
	uint32_t flush_kind; /* placement of a flush, 0 for global; its length is in swap */
	uint32_t srqn, ud_qpn, ud_qkey;
	int32_t use_ex; /* post through ibv_wr_* */
	int32_t mw;     /* slot of the window to bind */
	uint32_t mw_rkey, mw_access;
	int32_t mw_mr; /* slot of the MR under the window */
	uint64_t mw_addr, mw_len;
};

#define VT_SLOTS 8
struct vt_side {
	struct vt_dev dev;
	bool open;
	struct vt_cfg cfg;
	struct ibv_pd *pd, *pd2;
	struct ibv_cq *scq, *rcq;
	struct ibv_qp *qp;
	struct ibv_srq *srq;
	struct ibv_xrcd *xrcd;
	struct ibv_ah *ah;
	struct vt_info self, peer;
	uint8_t *buf;
	struct ibv_mr *mr[VT_SLOTS]; /* slot 0: the whole buffer with all rights */
	struct ibv_mw *mw[VT_SLOTS];
};
#define VT_BUF (256u * 1024)
/* Layout of a side's buffer: the receive area and the area of sources and targets do not touch. */
#define VT_RECV_AT (128u * 1024)

enum vt_side_op {
	VT_SETUP,    /* cfg -> info; QP left in RESET */
	VT_CONNECT,  /* peer, arg0 = highest state -> rc */
	VT_MODIFY,   /* arg0 = state, no other attribute */
	VT_RECV,     /* wr.sge, wr.nsge, wr.wr_id -> rc of posting */
	VT_SEND,     /* wr -> rc of posting, arg0 = repeat */
	VT_POLL,     /* arg0 = 0 send CQ, 1 receive CQ; arg1 = n, arg2 = ms -> wcs */
	VT_EVENTS,   /* arg0 = ms for the first -> events (acknowledged), COMM_EST left out */
	VT_QUERY,    /* -> arg0 = state */
	VT_REG,      /* arg0 = slot, arg1 = second pd, arg2 = access, arg3 = offset, arg4 = length -> info.lkey, rkey, addr */
	VT_DEREG,    /* arg0 = slot */
	VT_MW,       /* arg0 = slot, arg1 = type, arg2 = second pd -> info.rkey */
	VT_MW_FREE,  /* arg0 = slot */
	VT_DESTROY,  /* the QP */
	VT_DESTROY_SRQ, /* the SRQ, after the QP */
	VT_FILL,     /* arg0 = offset, arg1 = length, arg2 = byte */
	VT_HASH,     /* arg0 = offset, arg1 = length -> arg0 */
	VT_PEEK,     /* arg0 = offset -> arg0 = the 8 bytes there */
	VT_POKE,     /* arg0 = offset, arg1 = value of 8 bytes */
	VT_PROTECT,  /* arg0 = offset, arg1 = length, arg2 = PROT_*: mprotect -> rc */
	VT_PSNS,     /* -> arg0 = sq_psn, arg1 = rq_psn as queried */
	VT_TEARDOWN, /* everything but the device */
	VT_QUIT,
};

struct vt_req {
	int32_t op, pad;
	struct vt_cfg cfg;
	struct vt_info peer;
	struct vt_wr wr;
	int64_t arg[6];
};

#define VT_MAX_WC 32
struct vt_rep {
	int32_t rc, n;
	struct vt_info info;
	int64_t arg[2];
	struct ibv_wc wc[VT_MAX_WC];
	int32_t event[8], nevents, pad;
};

/* A side as a test sees it: local, or behind a socket. */
struct vt_end {
	struct vt_side *local;
	int fd;
	pid_t pid;
	struct vt_info info;
};

void vt_side_exec(struct vt_side *s, const struct vt_req *req, struct vt_rep *rep);
#define VT_PEER "responder" /* the role of the other process of --two */
int vt_peer_main(int fd);
extern struct vt_end vt_a, vt_b; /* initiator (always local) and responder (local, or another process with --two) */
void vt_ends_open(void);         /* required by a case before the first vt_do */
void vt_ends_close(void);
void vt_do(struct vt_end *e, const struct vt_req *req, struct vt_rep *rep);

/* One-line forms of the requests. */
struct vt_cfg vt_cfg_default(enum vt_type type);
void vt_setup(struct vt_end *e, const struct vt_cfg *cfg);
int vt_connect(struct vt_end *e, const struct vt_end *peer, enum ibv_qp_state upto);
void vt_pair(const struct vt_cfg *a, const struct vt_cfg *b); /* both set up and in RTS */
int vt_modify(struct vt_end *e, enum ibv_qp_state state);
int vt_recv(struct vt_end *e, uint64_t wr_id, uint64_t addr, uint32_t len, uint32_t lkey);
int vt_send(struct vt_end *e, const struct vt_wr *wr);
int vt_cqes(struct vt_end *e, int which, int n, unsigned ms, struct ibv_wc *wc);
int vt_state(struct vt_end *e);
int vt_events(struct vt_end *e, unsigned ms, int *events, int max);
struct vt_info vt_reg(struct vt_end *e, int slot, bool pd2, int access, uint64_t off, uint64_t len);
int vt_simple(struct vt_end *e, enum vt_side_op op, int64_t a0, int64_t a1, int64_t a2);
uint32_t vt_mw(struct vt_end *e, int slot, enum ibv_mw_type type, bool pd2); /* -> rkey of the window */
uint32_t vt_bound_rkey(void); /* rkey of the window that the last vt_send named */
uint64_t vt_peek(struct vt_end *e, uint64_t off);
void vt_teardown(void); /* both ends */
/* A WR of one SGE at offset 0 of the buffer of `from`, aimed at offset 0 of the buffer of `to`. */
struct vt_wr vt_wr_to(const struct vt_end *from, const struct vt_end *to, int opcode, uint32_t len);

#endif
