/* Peers that this process cannot start, because they run in another container: there `PROGRAM --serve PORT` waits, and here
 * $VT_PEER_AT is "ADDRESS:PORT". Each role is two connections: its socket, and one that brings its exit status back. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROLE = 32 };

static int call(const char *at)
{
	char host[64];
	int port, on = 1;
	if (sscanf(at, "%63[^:]:%d", host, &port) != 2)
		return -1;
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	if (inet_pton(AF_INET, host, &to.sin_addr) != 1)
		return -1;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	/* The server may be on its way still. */
	for (int tries = 0; connect(fd, (struct sockaddr *)&to, sizeof(to)); tries++) {
		if (tries == 1000) {
			close(fd);
			return -1;
		}
		usleep(10000);
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	return fd;
}

pid_t vt_call(const char *at, const char *role, int *fd)
{
	char name[ROLE] = "", status = 1;
	snprintf(name, sizeof(name), "%s", role);
	*fd = call(at);
	int end = call(at);
	if (*fd < 0 || end < 0 || !vt_put(*fd, name, sizeof(name)))
		return -1;
	fflush(stdout);
	pid_t parent = getpid(), pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(*fd);
		_exit(getppid() == parent && vt_get(end, &status, 1, -1) ? status : 1);
	}
	close(end);
	return pid;
}

int vt_serve(int port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	int on = 1, door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(door, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(door, (struct sockaddr *)&at, sizeof(at)) || listen(door, 16)) {
		perror("--serve");
		return 1;
	}
	for (;;) {
		char name[ROLE], arg[16], status = 1;
		int fd = accept4(door, NULL, NULL, SOCK_CLOEXEC), end = accept4(door, NULL, NULL, SOCK_CLOEXEC), how;
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
		if (fd < 0 || end < 0 || !vt_get(fd, name, sizeof(name), 10000))
			return 1;
		pid_t server = getpid(), pid = fork();
		if (pid == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (getppid() != server)
				_exit(1);
			snprintf(arg, sizeof(arg), "%d", dup(fd));
			execl("/proc/self/exe", "vt-role", "--role", name, arg, (char *)NULL);
			_exit(127);
		}
		close(fd);
		if (pid > 0 && waitpid(pid, &how, 0) == pid && WIFEXITED(how))
			status = (char)WEXITSTATUS(how);
		vt_put(end, &status, 1);
		close(end);
	}
}
