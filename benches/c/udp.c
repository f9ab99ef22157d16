/*
 * What UDP does over the loopback interface between two processes, without Vervain: the bound of the RoCE link. Prints one
 * number on a line.
 *
 *   udp poll BYTES N CPU CPU      ns of half a round trip, median; both sides ask until a datagram is there
 *   udp block BYTES N CPU CPU     the same; both sides sleep in recvfrom
 *   udp stream SEGMENT N CPU CPU  MiB/s of N trains of datagrams of SEGMENT bytes, which one sendmsg hands over
 *                                 (UDP_SEGMENT) and one recvmsg takes (UDP_GRO); at most WINDOW trains are under way, so
 *                                 that none is lost, and the receiver tells after every REPORT trains how far it is
 */
#define _GNU_SOURCE
#include "clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CLIENT, SERVER };
enum { WINDOW = 32, REPORT = 4, LARGEST = 65507, MOST_SEGMENTS = 64 };

static void die(const char *what)
{
	fprintf(stderr, "udp: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int open_socket(struct sockaddr_in *name)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0), room = 16 << 20;
	socklen_t length = sizeof *name;
	*name = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	if (fd < 0 || bind(fd, (struct sockaddr *)name, length) || getsockname(fd, (struct sockaddr *)name, &length))
		die("socket");
	/* As much as the kernel gives. */
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room))
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
	return fd;
}

static void take(int fd, void *bytes, size_t length, int flags)
{
	ssize_t got;
	do
		got = recv(fd, bytes, length, flags);
	while (got < 0 && (errno == EAGAIN || errno == EINTR));
	if (got < 0)
		die("recv");
}

static void give(int fd, const struct sockaddr_in *to, const void *bytes, size_t length)
{
	if (sendto(fd, bytes, length, 0, (const struct sockaddr *)to, sizeof *to) != (ssize_t)length)
		die("sendto");
}

static void pingpong(int role, int fd, const struct sockaddr_in *peer, size_t length, size_t count, int flags)
{
	static char bytes[LARGEST];
	double *samples = calloc(count, sizeof *samples);
	uint64_t cost = clock_cost_ns();
	for (size_t i = 0; i < count; i++) {
		uint64_t begin = now_ns();
		if (role == CLIENT)
			give(fd, peer, bytes, length);
		take(fd, bytes, sizeof bytes, flags);
		if (role == SERVER)
			give(fd, peer, bytes, length);
		uint64_t took = now_ns() - begin;
		samples[i] = (double)(took > cost ? took - cost : 0) / 2;
	}
	if (role == CLIENT)
		printf("%.1f\n", median(samples, count));
}

static void send_trains(int fd, const struct sockaddr_in *peer, size_t segment, size_t count)
{
	size_t segments = LARGEST / segment < MOST_SEGMENTS ? LARGEST / segment : MOST_SEGMENTS;
	struct iovec train = { malloc(segments * segment), segments * segment };
	union {
		char bytes[CMSG_SPACE(sizeof(uint16_t))];
		struct cmsghdr align;
	} control;
	struct msghdr message = { .msg_name = (void *)peer, .msg_namelen = sizeof *peer, .msg_iov = &train, .msg_iovlen = 1,
				  .msg_control = control.bytes, .msg_controllen = sizeof control.bytes };
	uint64_t done = 0;

	memset(train.iov_base, 1, train.iov_len);
	control.align = (struct cmsghdr){ CMSG_LEN(sizeof(uint16_t)), SOL_UDP, UDP_SEGMENT };
	*(uint16_t *)CMSG_DATA(&control.align) = segment;
	uint64_t begin = now_ns();
	for (size_t sent = 0; sent < count; sent++) {
		while (sent - done >= WINDOW)
			take(fd, &done, sizeof done, 0);
		if (sendmsg(fd, &message, 0) < 0)
			die("sendmsg");
	}
	while (done < count)
		take(fd, &done, sizeof done, 0);
	printf("%.1f\n", (double)train.iov_len * (double)count / 1048576.0 / ((double)(now_ns() - begin) / 1e9));
}

static void receive_trains(int fd, const struct sockaddr_in *peer, size_t count)
{
	static char bytes[1 << 16];
	for (uint64_t done = 1; done <= count; done++) {
		take(fd, bytes, sizeof bytes, 0);
		if (done % REPORT == 0 || done == count)
			give(fd, peer, &done, sizeof done);
	}
}

int main(int argc, char **argv)
{
	if (argc != 6) {
		fprintf(stderr, "udp: see the head of udp.c\n");
		return 2;
	}
	size_t length = strtoul(argv[2], NULL, 10), count = strtoul(argv[3], NULL, 10);
	struct sockaddr_in name[2];
	int fd[2] = { open_socket(&name[CLIENT]), open_socket(&name[SERVER]) };
	int on = 1, streams = !strcmp(argv[1], "stream");
	if (streams && setsockopt(fd[SERVER], SOL_UDP, UDP_GRO, &on, sizeof on))
		die("UDP_GRO");
	pid_t child = fork();
	if (child < 0)
		die("fork");
	int role = child ? CLIENT : SERVER;
	if (role == SERVER)
		prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	pin(atoi(argv[role == CLIENT ? 4 : 5]));

	if (!streams)
		pingpong(role, fd[role], &name[!role], length, count, strcmp(argv[1], "poll") ? 0 : MSG_DONTWAIT);
	else if (role == CLIENT)
		send_trains(fd[role], &name[!role], length, count);
	else
		receive_trains(fd[role], &name[!role], count);
	if (role == CLIENT) {
		int status;
		waitpid(child, &status, 0);
		return status != 0;
	}
	return 0;
}
