/* A peer that has gone before anybody came to it, or stands still: over RC its requests end when the retries are used up, over UC nobody
 * answers, so that they end as if they had been sent and lost. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define OPTS(t) &(struct vt_duo_opts){ .type = t, .nqp = 1, .depth = 64, .timeout = 12, .retry = 2, .size = 1 << 16 }

static struct vt_duo d;

/* Tells its address, and is gone. */
static int gone(int fd)
{
	return vt_duo_open(&d, OPTS(VT_RC)) && vt_put(fd, &d.qp[0]->qp_num, 4) ? 0 : 1;
}

/* Is connected, and stands still. */
static int still(int fd)
{
	uint8_t type;
	return vt_get(fd, &type, 1, 20000) && vt_duo_open(&d, OPTS(type)) && vt_duo_meet(&d, fd) && raise(SIGSTOP) ? 0 : 1;
}

/* More than are under way at once, all of them to be completed. */
static void requests_end(enum ibv_wc_status status, enum ibv_qp_state state)
{
	struct ibv_wc wc;
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr init;
	for (int i = 0; i < 40; i++) {
		struct ibv_sge sge = vt_duo_sge(&d, 0, 4096);
		vt_require(vt_duo_post(&d, 0, IBV_WR_SEND, (uint64_t)i, IBV_SEND_SIGNALED, &sge, 1, 0) == 0, "posting");
	}
	for (int i = 0; i < 40; i++) {
		vt_require(vt_poll(d.cq, &wc, 1, 20000) == 1, "completion %d", i);
		enum ibv_wc_status expected = i == 0 || status == IBV_WC_SUCCESS ? status : IBV_WC_WR_FLUSH_ERR;
		vt_check(wc.status == expected && wc.wr_id == (uint64_t)i, "request %d: %s", i, vt_wc_name((int)wc.status));
	}
	vt_require(ibv_query_qp(d.qp[0], &a, IBV_QP_STATE, &init) == 0 && a.qp_state == state, "the QP is in %s", vt_state_name((int)a.qp_state));
}

static void to_one_who_has_gone(int type, enum ibv_wc_status status, enum ibv_qp_state state)
{
	int fd;
	uint32_t qpn;
	vt_require(vt_duo_open(&d, OPTS(type)), "opening");
	pid_t pid = vt_spawn("gone", &fd);
	vt_require(pid > 0 && vt_get(fd, &qpn, 4, 20000) && vt_reap(pid, 20000) == 0, "the peer");
	d.peer = d.self;
	d.peer.qpn[0] = qpn;
	vt_require(vt_duo_connect(&d, 0), "connecting");
	requests_end(status, state);
	vt_check(vt_duo_close(&d), "closing");
	close(fd);
}

/* Many more than any queue on the way holds. */
static void to_one_who_stands_still(int type, enum ibv_wc_status status, enum ibv_qp_state state)
{
	int fd, how;
	uint8_t what = (uint8_t)type;
	vt_require(vt_duo_open(&d, OPTS(type)), "opening");
	pid_t pid = vt_spawn("still", &fd);
	vt_require(pid > 0 && vt_put(fd, &what, 1) && vt_duo_meet(&d, fd), "the peer");
	vt_require(waitpid(pid, &how, WUNTRACED) == pid && WIFSTOPPED(how), "the peer does not stand still");
	for (int i = 0; i < (type == VT_UC ? 10 : 1); i++)
		requests_end(status, state);
	kill(pid, SIGKILL);
	vt_reap(pid, 20000);
	vt_check(vt_duo_close(&d), "closing");
	close(fd);
}

static void reliable(void)
{
	to_one_who_has_gone(VT_RC, IBV_WC_RETRY_EXC_ERR, IBV_QPS_ERR);
}

static void unreliable(void)
{
	to_one_who_has_gone(VT_UC, IBV_WC_SUCCESS, IBV_QPS_RTS);
}

static void unreliable_to_one_who_stands_still(void)
{
	to_one_who_stands_still(VT_UC, IBV_WC_SUCCESS, IBV_QPS_RTS);
}

struct where {
	union ibv_gid gid;
	uint16_t lid, pad;
	uint32_t qpn;
};

/* A QP for datagrams on what `d` has opened, and where it is. */
static struct ibv_qp *datagram_qp(struct where *at)
{
	struct ibv_qp_init_attr ia = { .send_cq = d.cq, .recv_cq = d.cq, .cap = { 8, 8, 1, 1, 0 }, .qp_type = IBV_QPT_UD };
	struct ibv_qp *qp = ibv_create_qp(d.pd, &ia);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = VT_QKEY };
	if (!qp || ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY))
		return NULL;
	a.qp_state = IBV_QPS_RTR;
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE))
		return NULL;
	a.qp_state = IBV_QPS_RTS;
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN))
		return NULL;
	*at = (struct where){ .gid = d.dev.gid, .lid = d.dev.port.lid, .qpn = qp->qp_num };
	return qp;
}

/* Waits for two datagrams, but stands still before anybody has sent one. */
static int still_for_datagrams(int fd)
{
	struct where at;
	struct ibv_wc wc;
	if (!vt_duo_open(&d, OPTS(VT_RC)))
		return 1;
	struct ibv_qp *qp = datagram_qp(&at);
	for (uint64_t i = 0; qp && i < 2; i++) {
		struct ibv_sge sge = vt_duo_sge(&d, i * 1024, 40 + 64);
		struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;
		if (ibv_post_recv(qp, &wr, &bad))
			return 1;
	}
	if (!qp || !vt_put(fd, &at, sizeof(at)) || raise(SIGSTOP))
		return 1;
	for (uint64_t i = 0; i < 2; i++)
		if (vt_poll(d.cq, &wc, 1, 10000) != 1 || wc.wr_id != i || vt_verify(d.buf + i * 1024 + 40, 64, i + 1) != 64)
			return 2 + (int)i;
	return 0;
}

/* IBA 9.8.3: a datagram is done when it has left, whatever becomes of it, and what it was read from is the program's again. It arrives
 * as it was, and the next one behind it. */
static void datagrams_to_one_who_stands_still(void)
{
	int fd, status;
	struct where own, at;
	struct ibv_wc wc;
	vt_require(vt_duo_open(&d, OPTS(VT_RC)), "opening");
	struct ibv_qp *qp = datagram_qp(&own);
	pid_t pid = vt_spawn("still_for_datagrams", &fd);
	vt_require(qp && pid > 0 && vt_get(fd, &at, sizeof(at), 20000), "the peer");
	vt_require(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status), "the peer does not stand still");
	struct ibv_ah_attr av = { .port_num = 1, .dlid = at.lid, .is_global = d.dev.global };
	av.grh.dgid = at.gid;
	av.grh.sgid_index = (uint8_t)d.dev.gid_index;
	av.grh.hop_limit = 1;
	struct ibv_ah *ah = ibv_create_ah(d.pd, &av);
	vt_require(ah, "ibv_create_ah: %s", strerror(errno));
	for (uint64_t i = 0; i < 2; i++) {
		vt_fill(d.buf, 64, i + 1);
		struct ibv_sge sge = vt_duo_sge(&d, 0, 64);
		struct ibv_send_wr w = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
		w.wr.ud.ah = ah;
		w.wr.ud.remote_qpn = at.qpn;
		w.wr.ud.remote_qkey = VT_QKEY;
		vt_require(ibv_post_send(qp, &w, &bad) == 0, "posting");
		/* Long before the peer is given up. */
		vt_check(vt_poll(d.cq, &wc, 1, 300) == 1 && wc.status == IBV_WC_SUCCESS, "datagram %d waits for its receiver", (int)i);
	}
	vt_fill(d.buf, 64, 3);
	kill(pid, SIGCONT);
	status = vt_reap(pid, 20000);
	vt_check(status == 0, "the peer: %d (2, 3: the first or second is not what was sent)", status >> 8);
	ibv_destroy_ah(ah);
	ibv_destroy_qp(qp);
	vt_check(vt_duo_close(&d), "closing");
	close(fd);
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { { "reliable", reliable }, { "unreliable", unreliable },
						{ "unreliable_to_one_who_stands_still", unreliable_to_one_who_stands_still },
						{ "datagrams_to_one_who_stands_still", datagrams_to_one_who_stands_still } };
	static const struct vt_role roles[] = { { "gone", gone }, { "still", still }, { "still_for_datagrams", still_for_datagrams } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
