/* A process that outlives its peer: it writes into the peer's memory until that has died, with its machine perhaps, is told so, and goes
 * on with the next peer that comes to the same place ($VT_PEER_AT). It says when a peer may be killed, which somebody else does. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include <signal.h>
#include <unistd.h>

#define SIZE (256u << 10)
#define LIVES 2

static struct vt_duo d;
static const struct vt_duo_opts opts = { .type = VT_RC, .nqp = 1, .size = SIZE };

/* Says of each seed whether its memory has that content, until nobody asks any more. */
static int target(int fd)
{
	uint64_t seed;
	if (!vt_duo_open(&d, &opts) || !vt_duo_meet(&d, fd))
		return 1;
	while (vt_get(fd, &seed, sizeof(seed), -1) && seed) {
		char ok = vt_verify(d.buf, SIZE, seed) == SIZE;
		if (!vt_put(fd, &ok, 1))
			return 1;
	}
	return vt_duo_close(&d) ? 0 : 1;
}

static enum ibv_wc_status write_all(void)
{
	struct ibv_wc wc;
	struct ibv_sge sge = vt_duo_sge(&d, 0, SIZE);
	vt_require(vt_duo_post(&d, 0, IBV_WR_RDMA_WRITE, 1, IBV_SEND_SIGNALED, &sge, 1, d.peer.addr) == 0, "posting");
	vt_require(vt_poll(d.cq, &wc, 1, 30000) == 1, "a Write does not end");
	return wc.status;
}

static void check(int fd)
{
	for (int i = 0; i < 20; i++) {
		uint64_t seed = vt_random() | 1;
		char ok = 0;
		vt_fill(d.buf, SIZE, seed);
		vt_require(write_all() == IBV_WC_SUCCESS, "a Write to a peer that lives");
		vt_require(vt_put(fd, &seed, sizeof(seed)) && vt_get(fd, &ok, 1, 30000), "the peer is gone");
		vt_require(ok, "the peer has other bytes than were written");
	}
}

/* An error has to come, some time after the peer's death; nobody here knows when that is. */
static void write_until_told(void)
{
	enum ibv_wc_status status;
	uint64_t begin = vt_now_us();
	do {
		status = write_all();
		vt_require(vt_now_us() - begin < 120000000, "nobody has told that the peer is dead");
	} while (status == IBV_WC_SUCCESS);
	vt_check(status == IBV_WC_RETRY_EXC_ERR, "the peer's death is told by %s", vt_wc_name((int)status));
}

static void a_peer_dies_and_another_comes(void)
{
	int fd;
	uint64_t end = 0;
	vt_require(vt_duo_open(&d, &opts), "opening");
	for (int life = 1;; life++) {
		pid_t pid = vt_spawn("target", &fd);
		vt_require(pid > 0 && vt_duo_meet(&d, fd), "peer %d", life);
		check(fd);
		if (life == LIVES) {
			vt_require(vt_put(fd, &end, sizeof(end)) && vt_reap(pid, 30000) == 0, "the last peer");
			break;
		}
		printf("peer %d may die\n", life);
		write_until_told();
		printf("peer %d is dead\n", life);
		/* What stands for it here hears nothing of a machine that is gone. */
		kill(pid, SIGKILL);
		vt_reap(pid, 5000);
		close(fd);
		vt_require(ibv_destroy_qp(d.qp[0]) == 0 && vt_duo_qp(&d, 0), "a new QP");
	}
	vt_check(vt_duo_close(&d), "closing");
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { { "a_peer_dies_and_another_comes", a_peer_dies_and_another_comes } };
	static const struct vt_role roles[] = { { "target", target } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
