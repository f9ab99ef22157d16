/* Ranks that sleep in select(2), poll(2) and epoll(7) are woken by a message, by room for one, and by the end of a write. */
#include "pt.h"

#include <sys/epoll.h>

#define ROUNDS 12

static int descriptor(void) {
	int fds[4] = {-1, -1, -1, -1}, room = 4;
	PT_SAYS(0, "", pmGetFd(pt_context, fds, &room));
	PT_CHECK(room == 1 && fds[0] >= 0 && fds[1] == -1, "%d descriptors, the first %d", room, fds[0]);
	room = 0;
	PT_SAYS(EINVAL, "room for 0", pmGetFd(pt_context, fds, &room));
	return fds[0];
}

/* How many descriptors are ready after a sleep of at most `seconds`. */
static int sleep_on(int fd, int how, int seconds) {
	if (how == 0) {
		fd_set set;
		struct timeval most = {seconds, 0};
		FD_ZERO(&set);
		FD_SET(fd, &set);
		return select(fd + 1, &set, NULL, NULL, &most);
	}
	if (how == 1) {
		struct pollfd one = {fd, POLLIN, 0};
		return poll(&one, 1, seconds * 1000);
	}
	int set = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event event = {EPOLLIN, {NULL}};
	PT_MUST(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0, "epoll: %s", strerror(errno));
	int ready = epoll_wait(set, &event, 1, seconds * 1000);
	close(set);
	return ready;
}

/* The rank that sleeps, and how often it really did. */
static void sleeper(int fd) {
	int slept = 0;
	for (int i = 0; i < ROUNDS; i++) {
		caddr_t buffer;
		size_t len;
		int said;
		while ((said = pmReceive(pt_context, &buffer, &len)) == ENOBUFS) {
			int before = pmBeforeSelect(pt_context);
			if (before == EBUSY)
				continue;
			PT_MUST(before == 0, "pmBeforeSelect: %s", pt_why());
			slept++;
			PT_MUST(sleep_on(fd, i % 3, (int)PT_PATIENCE) == 1, "round %d: nothing has woken it", i);
			PT_SAYS(0, "", pmAfterSelect(pt_context));
			if (sleep_on(fd, i % 3, 0) == 0)
				continue;
			/* Where something else has woken it, the message may have come since. */
			said = pmReceive(pt_context, &buffer, &len);
			PT_CHECK(said == 0, "it is still readable after pmAfterSelect");
			if (said == 0)
				break;
		}
		PT_MUST(said == 0 && len == 4 && memcmp(buffer, &i, 4) == 0, "round %d: %zu bytes, %s", i, len, pt_why());
		PT_SAYS(0, "", pmReleaseReceiveBuffer(pt_context));
	}
	/* The sender waits a while before each; all in vain would mean that it never slept. */
	PT_CHECK(slept > 0, "it has never slept");
}

static void waker(int to) {
	for (int i = 0; i < ROUNDS; i++) {
		usleep(30000);
		pt_must_send(to, &i, sizeof i);
	}
}

/* Messages to a rank that does not receive for a while: who has no more buffers sleeps until there is one. */
static void room(int fd) {
	static char bytes[65536];
	int last = pt_ranks - 1, count = 2500, slept = 0;
	unsigned char *memory = pt_pages(4096);
	pmAddrHandle here = pt_lock(PM_NODE_ANY, memory, 4096), there = 0;
	if (pt_rank == last)
		pt_must_send(0, &here, sizeof here);
	if (pt_rank == 0) {
		bool told = false;
		memory[0] = 1;
		pt_must_receive(last, &there, sizeof there);
		for (int i = 0; i < count;) {
			memcpy(bytes, &i, sizeof i);
			if (pt_send(last, bytes, pt_mtu)) {
				i++;
				continue;
			}
			if (!told) {
				told = true;
				pt_copy(true, last, there, here, 1);
			}
			if (pmBeforeSelect(pt_context) == 0) {
				slept++;
				PT_MUST(sleep_on(fd, 0, (int)PT_PATIENCE) == 1, "message %d: nothing has woken it", i);
				PT_SAYS(0, "", pmAfterSelect(pt_context));
			}
		}
		PT_CHECK(slept > 0, "there was always room");
	} else if (pt_rank == last) {
		/* Until the sender has found no room, and a while, so that it sleeps. */
		double until = pt_now() + PT_PATIENCE;
		while (__atomic_load_n(memory, __ATOMIC_ACQUIRE) == 0)
			PT_MUST(pt_now() < until, "there is always room");
		usleep(200000);
		for (int i = 0, got; i < count; i++) {
			size_t len = pt_must_receive(0, bytes, sizeof bytes);
			memcpy(&got, bytes, sizeof got);
			PT_CHECK(len == pt_mtu && got == i, "message %d, of %zu bytes, in place of %d", got, len, i);
		}
	}
}

/* A write that is long enough not to be over at once. */
static void written(int fd) {
	size_t len = (size_t)64 << 20;
	unsigned char *memory = pt_pages(len);
	pmAddrHandle here = pt_lock(PM_NODE_ANY, memory, len), there;
	if (pt_rank == 0) {
		pt_must_receive(pt_ranks - 1, &there, sizeof there);
		memset(memory, 0x5a, len);
		pt_copy(true, pt_ranks - 1, there, here, len);
		int said;
		while ((said = pmIsWriteDone(pt_context)) == EBUSY)
			if (pmBeforeSelect(pt_context) == 0) {
				PT_MUST(sleep_on(fd, 1, (int)PT_PATIENCE) == 1, "the end of the write has not woken it");
				PT_SAYS(0, "", pmAfterSelect(pt_context));
			}
		PT_CHECK(said == 0, "pmIsWriteDone: %s", pt_why());
		pt_must_send(pt_ranks - 1, "w", 1);
	} else if (pt_rank == pt_ranks - 1) {
		char word;
		pt_must_send(0, &here, sizeof here);
		pt_must_receive(0, &word, 1);
		PT_CHECK(memory[0] == 0x5a && memory[len / 2] == 0x5a && memory[len - 1] == 0x5a, "not all was written");
	}
	PT_SAYS(0, "", pmMUnlock(pt_context, PM_NODE_ANY, (caddr_t)memory, len));
}

int main(void) {
	pt_begin();
	PT_MUST(pt_ranks >= 2, "2 ranks at least");
	int fd = descriptor();
	/* Others wait in pmCloseContext. */
	if (pt_rank == 0 || pt_rank == pt_ranks - 1) {
		if (pt_rank == 0)
			waker(pt_ranks - 1);
		else
			sleeper(fd);
		room(fd);
		written(fd);
	}
	return pt_end();
}
