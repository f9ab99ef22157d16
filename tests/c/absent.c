/* A peer that has gone before anybody came to it, or stands still: over RC its requests end when the retries are used up, over UC nobody
 * answers, so that they end as if they had been sent and lost. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include <signal.h>
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
	int fd;
	uint8_t what = (uint8_t)type;
	vt_require(vt_duo_open(&d, OPTS(type)), "opening");
	pid_t pid = vt_spawn("still", &fd);
	vt_require(pid > 0 && vt_put(fd, &what, 1) && vt_duo_meet(&d, fd), "the peer");
	usleep(50000);
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

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { { "reliable", reliable }, { "unreliable", unreliable },
						{ "unreliable_to_one_who_stands_still", unreliable_to_one_who_stands_still } };
	static const struct vt_role roles[] = { { "gone", gone }, { "still", still } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
