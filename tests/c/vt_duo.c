/* vt_duo: see vt_duo.h. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

pid_t vt_spawn(const char *role, int *fd)
{
	int sv[2];
	char arg[16], seed[24];
	const char *at = getenv("VT_PEER_AT");
	if (at)
		return vt_call(at, role, fd);
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv))
		return -1;
	fflush(stdout);
	/* Each process draws other numbers, which the parent's seed decides. */
	snprintf(seed, sizeof(seed), "%" PRIu64, vt_random());
	pid_t parent = getpid(), pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent || !vt_enter_peers_network())
			_exit(1);
		snprintf(arg, sizeof(arg), "%d", dup(sv[1]));
		/* Under valgrind the link itself leads to valgrind; what readlink(2) says is the program there too. */
		char exe[4096] = "";
		ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
		execl(n > 0 && access(exe, X_OK) == 0 ? exe : "/proc/self/exe", "vt-role", "--seed", seed, "--role", role, arg, (char *)NULL);
		_exit(127);
	}
	close(sv[1]);
	*fd = sv[0];
	return pid;
}

int vt_reap(pid_t pid, unsigned ms)
{
	int status;
	uint64_t until = vt_now_us() + ms * 1000ull;
	while (waitpid(pid, &status, WNOHANG) == 0) {
		if (vt_now_us() > until) {
			kill(pid, SIGKILL);
			waitpid(pid, &status, 0);
			return -1;
		}
		usleep(500);
	}
	return status;
}

bool vt_kill(pid_t pid)
{
	int status = 0;
	return kill(pid, SIGKILL) == 0 && waitpid(pid, &status, 0) == pid && status == SIGKILL;
}

bool vt_put(int fd, const void *p, size_t n)
{
	for (const char *at = p; n;) {
		ssize_t k = send(fd, at, n, MSG_NOSIGNAL);
		if (k < 0 && errno == EINTR)
			continue;
		if (k <= 0)
			return false;
		at += k;
		n -= (size_t)k;
	}
	return true;
}

bool vt_get(int fd, void *p, size_t n, int timeout_ms)
{
	for (char *at = p; n;) {
		struct pollfd f = { .fd = fd, .events = POLLIN };
		int rc = poll(&f, 1, timeout_ms);
		if (rc < 0 && errno == EINTR)
			continue;
		if (rc <= 0)
			return false;
		ssize_t k = recv(fd, at, n, 0);
		if (k <= 0)
			return false;
		at += k;
		n -= (size_t)k;
	}
	return true;
}

#define need(cond, what)                                                                                                   \
	do {                                                                                                                   \
		if (!(cond)) {                                                                                                     \
			vt_failed(__FILE__, __LINE__, what ": %s", strerror(errno));                                                   \
			return false;                                                                                                  \
		}                                                                                                                  \
	} while (0)

bool vt_duo_qp(struct vt_duo *d, int i)
{
	struct ibv_qp_init_attr a = { .send_cq = d->cq, .recv_cq = d->cq, .srq = d->srq,
				      .cap = { d->o.depth, d->o.depth, d->o.sge, d->o.sge, 64 },
				      .qp_type = d->o.type == VT_UC ? IBV_QPT_UC : IBV_QPT_RC };
	need((d->qp[i] = ibv_create_qp(d->pd, &a)), "ibv_create_qp");
	d->self.qpn[i] = d->qp[i]->qp_num;
	return true;
}

bool vt_duo_open(struct vt_duo *d, const struct vt_duo_opts *o)
{
	memset(d, 0, sizeof(*d));
	d->o = *o;
	if (!d->o.depth)
		d->o.depth = 64;
	if (!d->o.sge)
		d->o.sge = 4;
	if (!vt_open(&d->dev))
		return false;
	d->buf = vt_memory(o->size);
	need(d->buf != MAP_FAILED, "mmap");
	need((d->pd = ibv_alloc_pd(d->dev.ctx)), "ibv_alloc_pd");
	need((d->mr = ibv_reg_mr(d->pd, d->buf, o->size, VT_ACCESS_ALL)), "ibv_reg_mr");
	need((d->channel = ibv_create_comp_channel(d->dev.ctx)), "ibv_create_comp_channel");
	need((d->cq = ibv_create_cq(d->dev.ctx, (int)d->o.depth * 2 * (o->nqp ? o->nqp : 1) + 16, NULL, d->channel, 0)), "ibv_create_cq");
	if (o->type == VT_RC_SRQ) {
		struct ibv_srq_init_attr a = { .attr = { d->o.depth * 2, d->o.sge, 0 } };
		need((d->srq = ibv_create_srq(d->pd, &a)), "ibv_create_srq");
	}
	for (int i = 0; i < o->nqp; i++)
		if (!vt_duo_qp(d, i))
			return false;
	d->self.gid = d->dev.gid;
	d->self.lid = d->dev.port.lid;
	d->self.addr = (uintptr_t)d->buf;
	d->self.rkey = d->mr->rkey;
	return true;
}

bool vt_duo_connect(struct vt_duo *d, int i)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = VT_ACCESS_ALL & ~IBV_ACCESS_LOCAL_WRITE };
	bool uc = d->o.type == VT_UC;
	int rc = ibv_modify_qp(d->qp[i], &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	need(rc == 0, "INIT");
	a.qp_state = IBV_QPS_RTR;
	a.path_mtu = d->dev.port.active_mtu;
	a.dest_qp_num = d->peer.qpn[i];
	a.max_dest_rd_atomic = 4;
	a.min_rnr_timer = 1;
	a.ah_attr.port_num = 1;
	a.ah_attr.dlid = d->peer.lid;
	if (d->dev.global) {
		a.ah_attr.is_global = 1;
		a.ah_attr.grh.dgid = d->peer.gid;
		a.ah_attr.grh.sgid_index = (uint8_t)d->dev.gid_index;
		a.ah_attr.grh.hop_limit = 64;
	}
	rc = ibv_modify_qp(d->qp[i], &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			   (uc ? 0 : IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	need(rc == 0, "RTR");
	a.qp_state = IBV_QPS_RTS;
	const char *slow = getenv("VT_TIMEOUT"); /* Of a machine that is emulated. */
	a.timeout = (uint8_t)(d->o.timeout ? d->o.timeout : slow ? (uint32_t)atoi(slow) : 14);
	a.retry_cnt = (uint8_t)(d->o.retry ? d->o.retry : 7);
	a.rnr_retry = 7;
	a.max_rd_atomic = 4;
	rc = ibv_modify_qp(d->qp[i], &a, IBV_QP_STATE | IBV_QP_SQ_PSN |
			   (uc ? 0 : IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
	need(rc == 0, "RTS");
	return true;
}

bool vt_duo_meet(struct vt_duo *d, int fd)
{
	char go = 1;
	need(vt_put(fd, &d->self, sizeof(d->self)) && vt_get(fd, &d->peer, sizeof(d->peer), 20000), "exchanging addresses");
	for (int i = 0; i < d->o.nqp; i++)
		if (!vt_duo_connect(d, i))
			return false;
	need(vt_put(fd, &go, 1) && vt_get(fd, &go, 1, 20000), "exchanging readiness");
	return true;
}

bool vt_duo_close(struct vt_duo *d)
{
	for (int i = 0; i < d->o.nqp; i++)
		if (d->qp[i])
			need(ibv_destroy_qp(d->qp[i]) == 0, "ibv_destroy_qp");
	need(!d->srq || ibv_destroy_srq(d->srq) == 0, "ibv_destroy_srq");
	need(ibv_destroy_cq(d->cq) == 0, "ibv_destroy_cq");
	need(ibv_destroy_comp_channel(d->channel) == 0, "ibv_destroy_comp_channel");
	need(ibv_dereg_mr(d->mr) == 0 && ibv_dealloc_pd(d->pd) == 0, "ibv_dereg_mr, ibv_dealloc_pd");
	vt_memory_free(d->buf, d->o.size);
	need(ibv_close_device(d->dev.ctx) == 0, "ibv_close_device");
	return true;
}

struct ibv_sge vt_duo_sge(const struct vt_duo *d, uint64_t off, uint32_t len)
{
	return (struct ibv_sge){ (uintptr_t)d->buf + off, len, d->mr->lkey };
}

int vt_duo_post(struct vt_duo *d, int qp, int opcode, uint64_t id, unsigned flags, const struct ibv_sge *sge, int nsge, uint64_t raddr)
{
	struct ibv_send_wr w = { .wr_id = id, .sg_list = (struct ibv_sge *)(uintptr_t)sge, .num_sge = nsge,
				 .opcode = (enum ibv_wr_opcode)opcode, .send_flags = flags, .imm_data = htobe32((uint32_t)id) }, *bad;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
		w.wr.atomic.remote_addr = raddr;
		w.wr.atomic.rkey = d->peer.rkey;
		w.wr.atomic.compare_add = 1;
	} else {
		w.wr.rdma.remote_addr = raddr;
		w.wr.rdma.rkey = d->peer.rkey;
	}
	return ibv_post_send(d->qp[qp], &w, &bad);
}

static uint64_t word(uint64_t seed, uint64_t i)
{
	uint64_t z = seed + i * 0x9e3779b97f4a7c15ull;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	return z ^ (z >> 29);
}

void vt_fill(uint8_t *p, size_t n, uint64_t seed)
{
	for (size_t i = 0; i < n; i += 8) {
		uint64_t w = word(seed, i);
		memcpy(p + i, &w, n - i < 8 ? n - i : 8);
	}
}

size_t vt_verify(const uint8_t *p, size_t n, uint64_t seed)
{
	for (size_t i = 0; i < n; i += 8) {
		uint64_t w = word(seed, i);
		size_t k = n - i < 8 ? n - i : 8;
		if (memcmp(p + i, &w, k)) {
			const uint8_t *b = (const uint8_t *)&w;
			size_t j = 0;
			while (p[i + j] == b[j])
				j++;
			return i + j;
		}
	}
	return n;
}
