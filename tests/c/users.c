/* Processes that open the device as root and then become another user, as daemons do: the file of a kernel's device stays open.
 * Those that become the same user reach each other; one that is still root, or never was, is not let in. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include <grp.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define OPTS &(struct vt_duo_opts){ .type = VT_RC, .depth = 4, .size = 1 << 20 }
#define BYTES 400000u
#define OTHER 1234
/* Of a QP number the upper bits are the slot (docs/local-link.md). */
#define SLOT_SHIFT 14
#define HELLO 1u

static struct vt_duo d;

static bool become_other(void)
{
	return !setgroups(0, NULL) && !setresgid(OTHER, OTHER, OTHER) && !setresuid(OTHER, OTHER, OTHER);
}

/* The device as it was opened before, with one QP that is made now. */
static bool add_qp(void)
{
	d.o.nqp = 1;
	return vt_duo_qp(&d, 0);
}

/* Opens as root, and is another user from then on. Says whether it has what was written. */
static int target(int fd)
{
	char go;
	if (!vt_duo_open(&d, OPTS) || !become_other() || !add_qp() || !vt_duo_meet(&d, fd) || !vt_get(fd, &go, 1, 60000))
		return 1;
	return vt_verify(d.buf, BYTES, 7) == BYTES ? 0 : 2;
}

/* Writes to a target; the status of the completion. */
static int write_to_target(bool becomes_other)
{
	int fd;
	char go = 'g';
	struct ibv_wc wc = { .status = IBV_WC_GENERAL_ERR };
	if (!vt_duo_open(&d, OPTS))
		return -1;
	pid_t pid = vt_spawn("target", &fd);
	if (pid <= 0 || (becomes_other && !become_other()) || !add_qp() || !vt_duo_meet(&d, fd))
		return -1;
	vt_fill(d.buf, BYTES, 7);
	struct ibv_sge sge = vt_duo_sge(&d, 0, BYTES);
	if (vt_duo_post(&d, 0, IBV_WR_RDMA_WRITE, 1, IBV_SEND_SIGNALED, &sge, 1, d.peer.addr) || vt_poll(d.cq, &wc, 1, 30000) != 1)
		return -1;
	int status = vt_put(fd, &go, 1) ? vt_reap(pid, 60000) : -1;
	return wc.status == IBV_WC_SUCCESS && status ? -1 : (int)wc.status;
}

/* The status is one more than that of the completion: 0 is that of a role that could not begin. */
static int writer(int fd)
{
	(void)fd;
	return write_to_target(true) + 1;
}

static int root_writer(int fd)
{
	(void)fd;
	return write_to_target(false) + 1;
}

static void need_root(void)
{
	if (geteuid() != 0)
		vt_skip("only root can become another user");
	pid_t pid = fork();
	if (pid == 0)
		_exit(!become_other());
	int status;
	vt_require(pid > 0 && waitpid(pid, &status, 0) == pid, "a child");
	if (status)
		vt_skip("this user namespace has no user %d", OTHER);
}

static int status_of(const char *role)
{
	int fd;
	pid_t pid = vt_spawn(role, &fd);
	vt_require(pid > 0, "the role %s", role);
	int status = vt_reap(pid, 100000);
	close(fd);
	vt_require(WIFEXITED(status) && WEXITSTATUS(status) > 0, "the role %s: %d", role, status);
	return WEXITSTATUS(status) - 1;
}

static void those_that_become_the_same_user_reach_each_other(void)
{
	need_root();
	int status = status_of("writer");
	vt_check(status == IBV_WC_SUCCESS, "%s", vt_wc_name(status));
}

/* Who is another user has no more rights than that; with root's it would have them again by its peer. */
static void one_that_is_root_still_does_not_let_in_one_that_was(void)
{
	need_root();
	int status = status_of("root_writer");
	vt_check(status == IBV_WC_RETRY_EXC_ERR, "%s", vt_wc_name(status));
}

/* Whether the process that has this QP answers who greets it, if only that it is of another version. */
static bool answers(uint32_t qpn)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	int n = snprintf(at.sun_path + 1, sizeof(at.sun_path) - 1, "vervain/0/%u", qpn >> SLOT_SHIFT);
	socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
	uint32_t message[16] = { HELLO, UINT32_MAX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	bool answered = fd >= 0 && !connect(fd, (struct sockaddr *)&at, length) &&
		send(fd, message, sizeof(message), MSG_NOSIGNAL) == sizeof(message) && vt_get(fd, message, sizeof(message), 20000);
	close(fd);
	return answered;
}

static void one_that_never_was_root_is_not_let_in(void)
{
	need_root();
	int fd, status;
	char go = 'g';
	vt_require(vt_duo_open(&d, OPTS) && add_qp(), "opening");
	pid_t pid = vt_spawn("target", &fd);
	vt_require(pid > 0 && vt_duo_meet(&d, fd), "the peer");
	vt_check(answers(d.peer.qpn[0]), "root gets no answer: what follows says nothing");
	pid_t stranger = fork();
	if (stranger == 0)
		_exit(!become_other() ? 2 : answers(d.peer.qpn[0]));
	vt_require(stranger > 0 && waitpid(stranger, &status, 0) == stranger, "the stranger");
	vt_check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the stranger: %d (256: it gets an answer)", status);
	vt_require(vt_put(fd, &go, 1), "the peer is gone");
	status = vt_reap(pid, 60000);
	vt_check(WIFEXITED(status) && WEXITSTATUS(status) == 2, "the peer: %d", status);
	vt_check(vt_duo_close(&d), "closing");
	close(fd);
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = {
		{ "those_that_become_the_same_user_reach_each_other", those_that_become_the_same_user_reach_each_other },
		{ "one_that_is_root_still_does_not_let_in_one_that_was", one_that_is_root_still_does_not_let_in_one_that_was },
		{ "one_that_never_was_root_is_not_let_in", one_that_never_was_root_is_not_let_in },
	};
	static const struct vt_role roles[] = { { "target", target }, { "writer", writer }, { "root_writer", root_writer } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
