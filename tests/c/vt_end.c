/* vt_end: the two ends of a test, where each request goes (this process or the other one), and the one-line forms
 * that the cases are written with. See vt.h. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static struct vt_side side_a, side_b;
struct vt_end vt_a = { .fd = -1 }, vt_b = { .fd = -1 };
static struct vt_rep last;

int vt_peer_main(int fd)
{
	struct vt_req req;
	struct vt_rep rep;
	while (vt_get(fd, &req, sizeof(req), -1)) {
		vt_side_exec(&side_b, &req, &rep);
		if (!vt_put(fd, &rep, sizeof(rep)) || req.op == VT_QUIT)
			return 0;
	}
	return 0;
}

/* The peer is a fresh program, not a fork of one that has the device open. */
static void spawn(struct vt_end *e)
{
	e->pid = vt_spawn(VT_PEER, &e->fd);
	vt_require(e->pid > 0, "starting the peer process: %s", strerror(errno));
}

void vt_ends_open(void)
{
	vt_a.local = &side_a;
	if (!vt_two)
		vt_b.local = &side_b;
	else if (vt_b.fd < 0)
		spawn(&vt_b);
}

void vt_ends_close(void)
{
	struct vt_req req = { .op = VT_QUIT };
	struct vt_rep rep;
	if (vt_a.local)
		vt_side_exec(vt_a.local, &req, &rep);
	if (vt_b.local)
		vt_side_exec(vt_b.local, &req, &rep);
	if (vt_b.fd >= 0) {
		vt_put(vt_b.fd, &req, sizeof(req));
		vt_get(vt_b.fd, &rep, sizeof(rep), 5000);
		close(vt_b.fd);
		vt_b.fd = -1;
		uint64_t until = vt_now_us() + 5000000;
		while (waitpid(vt_b.pid, NULL, WNOHANG) == 0) {
			if (vt_now_us() > until) {
				printf("FAIL the peer process did not end within 5 s\n");
				kill(vt_b.pid, SIGKILL);
				until = UINT64_MAX;
			}
			vt_sleep_ms(2);
		}
	}
}

void vt_do(struct vt_end *e, const struct vt_req *req, struct vt_rep *rep)
{
	if (e->local) {
		vt_side_exec(e->local, req, rep);
		return;
	}
	vt_require(vt_put(e->fd, req, sizeof(*req)), "the peer process is gone");
	vt_require(vt_get(e->fd, rep, sizeof(*rep), 30000), "the peer process gave no answer to request %d within 30 s", req->op);
}

void vt_setup(struct vt_end *e, const struct vt_cfg *cfg)
{
	struct vt_req r = { .op = VT_SETUP, .cfg = *cfg };
	vt_do(e, &r, &last);
	vt_require(last.rc == 0, "setting up the %s: %s", cfg->responder ? "responder" : "initiator", vt_errno_name(last.rc));
	e->info = last.info;
}

int vt_connect(struct vt_end *e, const struct vt_end *peer, enum ibv_qp_state upto)
{
	struct vt_req r = { .op = VT_CONNECT, .peer = peer->info, .arg = { (int64_t)upto } };
	vt_do(e, &r, &last);
	return last.rc;
}

void vt_pair(const struct vt_cfg *a, const struct vt_cfg *b)
{
	vt_ends_open();
	vt_setup(&vt_a, a);
	vt_setup(&vt_b, b);
	int rc = vt_connect(&vt_b, &vt_a, IBV_QPS_RTS);
	vt_require(rc == 0, "connecting the responder: %s", vt_errno_name(rc));
	rc = vt_connect(&vt_a, &vt_b, IBV_QPS_RTS);
	vt_require(rc == 0, "connecting the initiator: %s", vt_errno_name(rc));
}

int vt_simple(struct vt_end *e, enum vt_side_op op, int64_t a0, int64_t a1, int64_t a2)
{
	struct vt_req r = { .op = (int32_t)op, .arg = { a0, a1, a2 } };
	vt_do(e, &r, &last);
	return last.rc;
}

uint32_t vt_mw(struct vt_end *e, int slot, enum ibv_mw_type type, bool pd2)
{
	int rc = vt_simple(e, VT_MW, slot, (int64_t)type, pd2);
	vt_require(rc == 0, "ibv_alloc_mw of type %d: %s", (int)type, vt_errno_name(rc));
	return last.info.rkey;
}

uint32_t vt_bound_rkey(void)
{
	return last.info.rkey;
}

int vt_modify(struct vt_end *e, enum ibv_qp_state state)
{
	return vt_simple(e, VT_MODIFY, (int64_t)state, 0, 0);
}

int vt_recv(struct vt_end *e, uint64_t wr_id, uint64_t addr, uint32_t len, uint32_t lkey)
{
	struct vt_req r = { .op = VT_RECV, .wr = { .wr_id = wr_id, .nsge = 1, .sge = { { addr, len, lkey } } } };
	vt_do(e, &r, &last);
	return last.rc;
}

int vt_send(struct vt_end *e, const struct vt_wr *wr)
{
	struct vt_req r = { .op = VT_SEND, .wr = *wr };
	vt_do(e, &r, &last);
	return last.rc;
}

int vt_cqes(struct vt_end *e, int which, int n, unsigned ms, struct ibv_wc *wc)
{
	struct vt_req r = { .op = VT_POLL, .arg = { which, n > VT_MAX_WC ? VT_MAX_WC : n, (int64_t)ms } };
	vt_do(e, &r, &last);
	if (last.n > 0)
		memcpy(wc, last.wc, sizeof(*wc) * (size_t)last.n);
	return last.n;
}

int vt_state(struct vt_end *e)
{
	struct vt_req r = { .op = VT_QUERY };
	vt_do(e, &r, &last);
	return (int)last.arg[0];
}

int vt_events(struct vt_end *e, unsigned ms, int *events, int max)
{
	struct vt_req r = { .op = VT_EVENTS, .arg = { (int64_t)ms } };
	vt_do(e, &r, &last);
	for (int i = 0; i < last.nevents && i < max; i++)
		events[i] = last.event[i];
	return last.nevents;
}

struct vt_info vt_reg(struct vt_end *e, int slot, bool pd2, int access, uint64_t off, uint64_t len)
{
	struct vt_req r = { .op = VT_REG, .arg = { slot, pd2, access, (int64_t)off, (int64_t)len } };
	vt_do(e, &r, &last);
	vt_require(last.rc == 0, "registering memory with access 0x%x: %s", (unsigned)access, vt_errno_name(last.rc));
	return last.info;
}

uint64_t vt_peek(struct vt_end *e, uint64_t off)
{
	struct vt_req r = { .op = VT_PEEK, .arg = { (int64_t)off } };
	vt_do(e, &r, &last);
	return (uint64_t)last.arg[0];
}

void vt_teardown(void)
{
	vt_simple(&vt_a, VT_TEARDOWN, 0, 0, 0);
	vt_simple(&vt_b, VT_TEARDOWN, 0, 0, 0);
}

struct vt_wr vt_wr_to(const struct vt_end *from, const struct vt_end *to, int opcode, uint32_t len)
{
	return (struct vt_wr){
		.wr_id = 1,
		.opcode = opcode,
		.flags = IBV_SEND_SIGNALED,
		.nsge = 1,
		.sge = { { from->info.addr, len, from->info.lkey } },
		.raddr = to->info.addr,
		.rkey = to->info.rkey,
		.imm = 0x12345678,
		.srqn = to->info.srqn,
		.ud_qpn = to->info.qpn,
		.ud_qkey = to->info.qkey,
	};
}
