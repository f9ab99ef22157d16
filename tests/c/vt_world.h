/* vt_world: objects of one process for the tests of vervain_save and vervain_restore, whose peers are in the same process, and three ways
 * to have them again. */
#ifndef VT_WORLD_H
#define VT_WORLD_H

#include "vt_duo.h"
#include "vt_saved.h"

#define BUF (64u * 1024)
#define QPS 12
#define CQS 6

/* Lies in memory that a forked child shares. */
struct world {
	struct vt_dev dev;
	struct vt_things things;
	struct ibv_pd *pd, *parent;
	struct ibv_dm *dm;
	struct ibv_mr *mr, *mrs[6];
	struct ibv_mw *mw[8];
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq[CQS];
	struct ibv_xrcd *xrcd;
	struct ibv_srq *srq;
	struct ibv_qp *qp[QPS];
	/* A QP in a multicast group. */
	struct ibv_qp **in_group;
	union ibv_gid group;
	uint32_t key[8];
	uint64_t noted[4];
	_Alignas(4096) uint8_t buf[BUF];
};

extern struct world *w;

#define KEEP(kind, place) vt_keep(&w->things, kind, (void **)&(place))

/* What is before the save, all made and at the end stopped; and what must be after it, all stopped at first. */
struct pasts {
	void (*before)(void);
	void (*after)(void);
};

/* In the process that was saved, when it has destroyed all; in another process; and in the one that was saved as if nothing had been. */
void world_again(const struct pasts *p);
void world_elsewhere(const struct pasts *p);
void world_goes_on(const struct pasts *p);
/* The status of a child that has done `f`. */
int by_child(void (*f)(const struct pasts *, int), const struct pasts *p, int fd);
#define PASTS(name)                                                               \
	static const struct pasts name = { name##_before, name##_after };         \
	static void name##_again(void) { world_again(&name); }                    \
	static void name##_elsewhere(void) { world_elsewhere(&name); }            \
	static void name##_goes_on(void) { world_goes_on(&name); }
#define CASES(name) { #name "_again", name##_again }, { #name "_elsewhere", name##_elsewhere }, { #name "_goes_on", name##_goes_on }

/* A world in memory, the device with a PD and a region in it, and the end of all. */
void world_new(void);
void open_world(void);
void destroy_world(void);
void world_end(void);

void make_cq(int i, int entries, struct ibv_comp_channel *channel);
struct ibv_qp_init_attr_ex init_of(enum ibv_qp_type type, int i, int cq);
void make_qp_of(int i, struct ibv_qp_init_attr_ex init);
void make_qp(enum ibv_qp_type type, int i, int cq);
struct ibv_ah_attr address(void);
int to_init(struct ibv_qp *qp);
int to_rtr(struct ibv_qp *qp, const struct ibv_qp *peer, uint32_t psn);
int to_rts(struct ibv_qp *qp, uint32_t psn);
void join(int a, int b);
void pair(enum ibv_qp_type type, int a, int b, int cq);
struct ibv_sge at(uint64_t offset, uint32_t length);
struct ibv_send_wr request(uint64_t id, enum ibv_wr_opcode opcode, struct ibv_sge *sge);
int post(int qp, struct ibv_send_wr *wr);
void send_of(int qp, uint64_t id, uint64_t offset, uint32_t length, unsigned flags);
void rdma(int qp, uint64_t id, enum ibv_wr_opcode opcode, uint64_t offset, uint32_t length, uint64_t remote, uint32_t rkey);
void receive(int qp, uint64_t id, uint64_t offset, uint32_t length);
struct ibv_wc completes(int cq, uint64_t id, int status);
void is_empty(int cq);
void works(int a, int b, int cq_a, int cq_b);
void halt(void);
void go_on(void);

#endif
