/* The first request to a process that was stopped after it was connected: an adapter needs no CPU of its host, so an RDMA
 * Write succeeds at once. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define OPTS &(struct vt_duo_opts){ .type = VT_RC, .nqp = 1, .depth = 4, .size = 4096 }
/* Much longer than a handshake with a process that has a CPU. */
#define SETTLES_US 300000

static struct vt_duo d;

/* Says whether it has what was written, once it goes on. */
static int stopped(int fd)
{
	char go;
	if (!vt_duo_open(&d, OPTS) || !vt_duo_meet(&d, fd) || !vt_get(fd, &go, 1, 20000))
		return 1;
	return d.buf[0] == 7 && vt_duo_close(&d) ? 0 : 2;
}

static void a_write_to_a_stopped_process(void)
{
	int fd, status;
	char go = 'g';
	struct ibv_wc wc = { .status = IBV_WC_GENERAL_ERR };
	vt_require(vt_duo_open(&d, OPTS), "opening");
	pid_t pid = vt_spawn("stopped", &fd);
	vt_require(pid > 0 && vt_duo_meet(&d, fd), "the peer");
	usleep(SETTLES_US);
	vt_require(kill(pid, SIGSTOP) == 0 && waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status), "stopping the peer");
	d.buf[0] = 7;
	struct ibv_sge sge = vt_duo_sge(&d, 0, 1);
	int rc = vt_duo_post(&d, 0, IBV_WR_RDMA_WRITE, 1, IBV_SEND_SIGNALED | IBV_SEND_INLINE, &sge, 1, d.peer.addr);
	vt_require(rc == 0, "posting: %s", vt_errno_name(rc));
	int n = vt_poll(d.cq, &wc, 1, 20000);
	vt_check(n == 1 && wc.status == IBV_WC_SUCCESS, "%d completions, %s", n, vt_wc_name((int)wc.status));
	kill(pid, SIGCONT);
	vt_require(vt_put(fd, &go, 1), "the peer is gone");
	status = vt_reap(pid, 20000);
	vt_check(status == 0, "the peer: %d (2: it has not what was written)", status >> 8);
	vt_check(vt_duo_close(&d), "closing");
	close(fd);
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { { "a_write_to_a_stopped_process", a_write_to_a_stopped_process } };
	static const struct vt_role roles[] = { { "stopped", stopped } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
