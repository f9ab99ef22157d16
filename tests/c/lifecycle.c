/* What happens to a program around its verbs calls: threads that vanish inside one, fork, fork and exec, exit with
 * everything open, file descriptors that run out, and a device opened again and again. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define OPTS &(struct vt_duo_opts){ .type = VT_RC, .nqp = 1, .depth = 64, .size = 1 << 20 }

static struct vt_duo d;

/* A peer that only lends its memory and waits for the end. */
static int lender_peer(int fd)
{
	char c;
	if (!vt_duo_open(&d, OPTS) || !vt_duo_meet(&d, fd))
		return 1;
	vt_get(fd, &c, 1, 120000);
	return vt_duo_close(&d) ? 0 : 1;
}

static pid_t start(int *fd)
{
	pid_t pid = vt_spawn("lender", fd);
	vt_require(pid > 0 && vt_duo_open(&d, OPTS) && vt_duo_meet(&d, *fd), "setup");
	return pid;
}

static void finish(pid_t pid, int fd)
{
	char c = 1;
	vt_put(fd, &c, 1);
	vt_check(vt_reap(pid, 10000) == 0, "the peer failed");
	vt_check(vt_duo_close(&d), "closing");
	close(fd);
}

static bool write_once(void)
{
	struct ibv_wc wc;
	struct ibv_sge sge = vt_duo_sge(&d, 0, 4096);
	uint64_t begin = vt_now_us();
	int rc;
	while ((rc = vt_duo_post(&d, 0, IBV_WR_RDMA_WRITE, 7, IBV_SEND_SIGNALED, &sge, 1, d.peer.addr)) == ENOMEM) {
		/* The queue is full of what a thread that is gone left behind: it drains by itself, its completions here. */
		while (ibv_poll_cq(d.cq, 1, &wc) > 0)
			;
		if (vt_now_us() - begin > 3000000)
			return false;
	}
	while (rc == 0) {
		if (vt_poll(d.cq, &wc, 1, 3000) != 1)
			return false;
		if (wc.wr_id == 7)
			return wc.status == IBV_WC_SUCCESS;
	}
	return false;
}

static int how;
static void vanish(int sig)
{
	(void)sig;
	if (how)
		pthread_exit(NULL);
	syscall(SYS_exit, 0);
}

static void *busy(void *arg)
{
	struct ibv_wc wc[4];
	struct ibv_sge sge[2] = { vt_duo_sge(&d, 0, 300), vt_duo_sge(&d, 8192, 20000) };
	(void)arg;
	for (;;) {
		vt_duo_post(&d, 0, IBV_WR_RDMA_WRITE, 1, IBV_SEND_SIGNALED, sge, 2, d.peer.addr);
		ibv_poll_cq(d.cq, 4, wc);
		ibv_req_notify_cq(d.cq, 0);
		struct ibv_mr *mr = ibv_reg_mr(d.pd, d.buf, 4096, IBV_ACCESS_LOCAL_WRITE);
		if (mr)
			ibv_dereg_mr(mr);
		pthread_testcancel();
	}
	return NULL;
}

static bool looped(void)
{
	d.peer = d.self;
	return vt_duo_connect(&d, 0);
}

/* A thread may leave its QP torn, which then is in ERR; it may leave no lock held and no other object broken. */
static void vanishing(int by_pthread_exit)
{
	struct sigaction sa = { .sa_handler = vanish };
	int torn = 0;
	uint64_t longest = 0;
	vt_require(vt_duo_open(&d, OPTS) && looped(), "setup");
	how = by_pthread_exit;
	sigaction(SIGUSR1, &sa, NULL);
	for (int round = 0; round < 30; round++) {
		pthread_t t;
		vt_require(pthread_create(&t, NULL, busy, NULL) == 0, "a thread");
		usleep((useconds_t)(200 + vt_random() % 2000));
		pthread_kill(t, SIGUSR1);
		pthread_join(t, NULL);
		/* No hang is the point: what the others must wait for is told, and bounded. */
		uint64_t begin = vt_own_us();
		struct ibv_mr *mr = ibv_reg_mr(d.pd, d.buf, 4096, IBV_ACCESS_LOCAL_WRITE);
		vt_require(mr && ibv_dereg_mr(mr) == 0, "round %d: registration", round);
		vt_require(ibv_req_notify_cq(d.cq, 0) == 0, "round %d: ibv_req_notify_cq", round);
		bool works = write_once();
		uint64_t took = vt_own_us() - begin;
		longest = took > longest ? took : longest;
		if (works)
			continue;
		struct ibv_qp_attr a;
		struct ibv_qp_init_attr ia;
		struct ibv_wc wc;
		vt_require(ibv_query_qp(d.qp[0], &a, IBV_QP_STATE, &ia) == 0 && a.qp_state == IBV_QPS_ERR,
			"round %d: the QP neither works nor is in ERR", round);
		torn++;
		vt_require(ibv_destroy_qp(d.qp[0]) == 0, "round %d: ibv_destroy_qp", round);
		while (ibv_poll_cq(d.cq, 1, &wc) > 0)
			;
		vt_require(vt_duo_qp(&d, 0) && looped() && write_once(), "round %d: a new QP on the same CQ", round);
	}
	vt_note("30 threads vanished, %d of them inside a call on the QP; the others waited %" PRIu64 " us at most", torn, longest);
	vt_check(longest < 1000000, "another thread waited %" PRIu64 " us for one that is gone", longest);
	/* Regions that a thread had made when it went keep the PD: only the queues can be destroyed. */
	vt_check(!ibv_destroy_qp(d.qp[0]) && !ibv_destroy_cq(d.cq), "destroying the queues");
}

static void thread_sys_exit(void) { vanishing(0); }
static void thread_pthread_exit(void) { vanishing(1); }

static void cancel(void *(*what)(void *), unsigned after_us, int round)
{
	pthread_t t;
	void *end = NULL;
	vt_require(pthread_create(&t, NULL, what, NULL) == 0, "a thread");
	usleep((useconds_t)(vt_random() % after_us));
	pthread_cancel(t);
	pthread_join(t, &end);
	vt_require(end == PTHREAD_CANCELED, "round %d: the thread was not cancelled", round);
}

/* No verb but the waits for events is a cancellation point: a thread that is cancelled has done all of a call or nothing. */
static void thread_cancel(void)
{
	vt_require(vt_duo_open(&d, OPTS) && looped(), "setup");
	for (int round = 0; round < 200; round++) {
		struct ibv_qp_attr a;
		struct ibv_qp_init_attr ia;
		cancel(busy, 600, round);
		vt_require(ibv_query_qp(d.qp[0], &a, IBV_QP_STATE, &ia) == 0 && a.qp_state == IBV_QPS_RTS, "round %d: the QP is in %s",
			round, vt_state_name((int)a.qp_state));
		vt_require(write_once(), "round %d: a write", round);
	}
	vt_check(vt_duo_close(&d), "closing, which a region that was left would prevent");
}

static bool get_event(void)
{
	struct ibv_cq *cq;
	void *context;
	if (ibv_get_cq_event(d.channel, &cq, &context))
		return false;
	ibv_ack_cq_events(cq, 1);
	return true;
}

static void *await_events(void *arg)
{
	(void)arg;
	for (;;) {
		ibv_req_notify_cq(d.cq, 0);
		get_event();
	}
	return NULL;
}

/* ibv_get_cq_event is one: a thread that ends in it leaves the channel and the CQ to the others. */
static void thread_cancel_wait(void)
{
	struct ibv_wc wc;
	vt_require(vt_duo_open(&d, OPTS) && looped(), "setup");
	for (int round = 0; round < 50; round++)
		cancel(await_events, 2000, round);
	struct ibv_sge sge = vt_duo_sge(&d, 0, 64);
	vt_require(ibv_req_notify_cq(d.cq, 0) == 0, "ibv_req_notify_cq");
	vt_require(vt_duo_post(&d, 0, IBV_WR_RDMA_WRITE, 7, IBV_SEND_SIGNALED, &sge, 1, d.peer.addr) == 0, "a write");
	vt_check(get_event(), "no event: %s", vt_errno_name(errno));
	vt_check(vt_poll(d.cq, &wc, 1, 3000) == 1 && wc.status == IBV_WC_SUCCESS, "the write");
	vt_check(vt_duo_close(&d), "closing");
}

/* With the context that a forked child has from its parent: objects of its own work, those of the parent are EIO. */
static int child_of_context(void)
{
	struct ibv_context *ctx = d.dev.ctx;
	struct vt_duo mine = { .o = d.o };
	struct ibv_wc wc;
	struct ibv_async_event ev;
	if (ibv_reg_mr(d.pd, d.buf, 4096, 0) || errno != EIO)
		return 10;
	mine.dev = d.dev;
	mine.channel = ibv_create_comp_channel(ctx);
	mine.pd = ibv_alloc_pd(ctx);
	mine.cq = ibv_create_cq(ctx, 64, NULL, mine.channel, 0);
	mine.buf = vt_memory(mine.o.size);
	mine.mr = mine.pd ? ibv_reg_mr(mine.pd, mine.buf, mine.o.size, VT_ACCESS_ALL) : NULL;
	struct ibv_srq_init_attr si = { .attr = { .max_wr = 4, .max_sge = 1 } };
	mine.srq = mine.pd ? ibv_create_srq(mine.pd, &si) : NULL;
	if (!mine.channel || !mine.cq || !mine.mr || !mine.srq)
		return 11;
	/* What belongs to the parent does not mix with what is the child's. */
	struct ibv_qp_init_attr qi = { .send_cq = d.cq, .recv_cq = mine.cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	if (ibv_create_qp(mine.pd, &qi) || errno != EIO)
		return 12;
	qi.send_cq = mine.cq;
	if (ibv_create_qp(d.pd, &qi) || errno != EIO)
		return 13;
	if (d.channel && (ibv_create_cq(ctx, 4, NULL, d.channel, 0) || errno != EIO))
		return 14;
	if (!vt_duo_qp(&mine, 0))
		return 15;
	mine.self = d.self;
	mine.self.qpn[0] = mine.qp[0]->qp_num;
	mine.self.addr = (uintptr_t)mine.buf;
	mine.self.rkey = mine.mr->rkey;
	mine.peer = mine.self;
	struct ibv_sge sge = vt_duo_sge(&mine, 0, 64);
	uint64_t to = mine.peer.addr + 4096;
	if (!vt_duo_connect(&mine, 0) || vt_duo_post(&mine, 0, IBV_WR_RDMA_WRITE, 7, IBV_SEND_SIGNALED, &sge, 1, to) ||
	    vt_poll(mine.cq, &wc, 1, 3000) != 1 || wc.status != IBV_WC_SUCCESS)
		return 16;
	/* An event of the child's is the child's alone, though it has the descriptor's number from its parent. */
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_ERR };
	if (ibv_modify_qp(mine.qp[0], &at, IBV_QP_STATE) || vt_event(ctx, &ev, 1000) != 1)
		return 17;
	if (ev.event_type != IBV_EVENT_QP_LAST_WQE_REACHED || ev.element.qp != mine.qp[0])
		return 18;
	ibv_ack_async_event(&ev);
	struct ibv_alloc_dm_attr da = { .length = 4096 };
	struct ibv_dm *dm = ibv_alloc_dm(ctx, &da);
	if (!dm || ibv_free_dm(dm) || ibv_destroy_qp(mine.qp[0]) || ibv_destroy_srq(mine.srq) ||
	    ibv_dereg_mr(mine.mr) || ibv_destroy_cq(mine.cq) || ibv_destroy_comp_channel(mine.channel) ||
	    ibv_dealloc_pd(mine.pd))
		return 19;
	return 0;
}

static void fork_harmless(void)
{
	int fd;
	pid_t pid = start(&fd);
	for (int kind = 0; kind < 6; kind++) {
		fflush(stdout);
		pid_t child = fork();
		if (child == 0) {
			switch (kind) {
			case 0:
				_exit(0);
			case 1:
				exit(0); /* with atexit handlers and destructors of the library */
			case 2:
				execl("/bin/true", "true", (char *)NULL);
				_exit(127);
			case 3:
				usleep(100000);
				_exit(0);
			case 4:
				_exit(child_of_context());
			default: {
				/* The child uses the device anew, with objects of its own. */
				struct vt_dev dev;
				struct ibv_pd *pd = vt_open(&dev) ? ibv_alloc_pd(dev.ctx) : NULL;
				_exit(pd && ibv_dealloc_pd(pd) == 0 && ibv_close_device(dev.ctx) == 0 ? 0 : 3);
			}
			}
		}
		for (int i = 0; i < 50; i++)
			vt_require(write_once(), "a write while a child of kind %d lives", kind);
		int status = vt_reap(child, 10000);
		vt_check(status == 0, "the child of kind %d ended with status 0x%x", kind, (unsigned)status);
		vt_require(write_once(), "a write after a child of kind %d", kind);
		struct ibv_async_event ev;
		vt_check(vt_event(d.dev.ctx, &ev, 0) == 0, "a child of kind %d left an event here", kind);
	}
	vt_check(system("exit 3") != -1, "system()");
	vt_require(write_once(), "a write after system()");
	finish(pid, fd);
}

/* Exits or is gone with everything open: nothing may crash on the way out. */
static int exit_peer(int fd)
{
	(void)fd;
	struct ibv_wc wc;
	if (!vt_duo_open(&d, OPTS))
		return 1;
	d.peer = d.self;
	if (!vt_duo_connect(&d, 0) || !write_once())
		return 1;
	struct ibv_sge sge = vt_duo_sge(&d, 0, 64);
	struct ibv_recv_wr r = { .sg_list = &sge, .num_sge = 1 }, *bad;
	ibv_post_recv(d.qp[0], &r, &bad);
	ibv_poll_cq(d.cq, 1, &wc);
	exit(0);
}

static int main_thread_exit_peer(int fd)
{
	pthread_t t;
	(void)fd;
	if (!vt_duo_open(&d, OPTS))
		return 1;
	d.peer = d.self;
	if (!vt_duo_connect(&d, 0) || pthread_create(&t, NULL, busy, NULL))
		return 1;
	usleep(3000);
	return 0; /* main returns while another thread is inside the library */
}

static void exit_open(void)
{
	for (int i = 0; i < 10; i++) {
		int fd, status;
		pid_t pid = vt_spawn("exit", &fd);
		status = vt_reap(pid, 10000);
		vt_check(status == 0, "exit with everything open: status 0x%x", (unsigned)status);
		close(fd);
		pid = vt_spawn("main_exit", &fd);
		status = vt_reap(pid, 10000);
		vt_check(status == 0, "exit with a thread in the library: status 0x%x", (unsigned)status);
		close(fd);
	}
}

static int count_fds(void)
{
	int n = 0;
	DIR *dir = opendir("/proc/self/fd");
	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n;
}

static int count_threads(void)
{
	int n = 0;
	DIR *dir = opendir("/proc/self/task");
	for (struct dirent *e; dir && (e = readdir(dir));)
		n += e->d_name[0] != '.';
	if (dir)
		closedir(dir);
	return n;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

/* Opens the device as the first thing this process does and tells how long that took. */
static int first_open_peer(int fd)
{
	uint64_t begin = vt_now_us();
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx = list ? ibv_open_device(list[0]) : NULL;
	uint64_t us = ctx ? vt_now_us() - begin : 0;
	return vt_put(fd, &us, sizeof(us)) && ctx && ibv_close_device(ctx) == 0 ? 0 : 1;
}

static void open_again(void)
{
	struct vt_dev dev;
	uint64_t first[11];
	for (size_t i = 0; i < VT_ARRAY(first); i++) {
		int fd;
		pid_t pid = vt_spawn("first_open", &fd);
		vt_check(vt_get(fd, &first[i], sizeof(first[i]), 10000) && first[i] && vt_reap(pid, 5000) == 0, "the first open of a process");
		close(fd);
	}
	qsort(first, VT_ARRAY(first), sizeof(first[0]), by_value);
	vt_note("the first open of a process takes %" PRIu64 " us (median of %zu; goal 5000)", first[VT_ARRAY(first) / 2], VT_ARRAY(first));
	vt_require(vt_open(&dev) && ibv_close_device(dev.ctx) == 0, "opening");
	int fds = count_fds(), threads = count_threads();
	uint64_t us[60];
	for (size_t i = 0; i < VT_ARRAY(us); i++) {
		uint64_t begin = vt_now_us();
		struct ibv_device **list = ibv_get_device_list(NULL);
		struct ibv_context *ctx = list ? ibv_open_device(list[0]) : NULL;
		us[i] = vt_now_us() - begin;
		vt_require(ctx, "open number %zu: %s", i, strerror(errno));
		ibv_free_device_list(list);
		struct ibv_pd *pd = ibv_alloc_pd(ctx);
		struct ibv_cq *cq = ibv_create_cq(ctx, 100, NULL, NULL, 0);
		struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .cap = { 16, 16, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
		struct ibv_qp *qp = ibv_create_qp(pd, &a);
		vt_require(qp && !ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx),
			"objects, number %zu", i);
	}
	qsort(us, VT_ARRAY(us), sizeof(us[0]), by_value);
	vt_note("opening takes %" PRIu64 " us (median of %zu), at most %" PRIu64, us[VT_ARRAY(us) / 2], VT_ARRAY(us), us[VT_ARRAY(us) - 1]);
	vt_check(count_fds() == fds, "%d file descriptors, %d before", count_fds(), fds);
	/* The kernel may still be ending one that has been waited for. */
	for (uint64_t until = vt_now_us() + 20000000; count_threads() != threads && vt_now_us() < until;)
		vt_sleep_ms(1);
	vt_check(count_threads() == threads, "%d threads, %d before", count_threads(), threads);
}

/* Every limit from none free to some: an object is made or refused with an errno, and all is well afterwards. */
static void fd_limit(void)
{
	struct rlimit old, low;
	getrlimit(RLIMIT_NOFILE, &old);
	int opened = 0, refused = 0;
	int highest = dup(0);
	close(highest);
	for (int extra = 0; extra < 24; extra++) {
		low = old;
		low.rlim_cur = (rlim_t)(highest + extra);
		setrlimit(RLIMIT_NOFILE, &low);
		errno = 0;
		struct ibv_device **list = ibv_get_device_list(NULL);
		struct ibv_context *ctx = list && list[0] ? ibv_open_device(list[0]) : NULL;
		int err = errno;
		if (!ctx) {
			refused++;
			vt_check(err == EMFILE, "no descriptor left: expected EMFILE, got %s", vt_errno_name(err));
		} else {
			opened++;
			struct ibv_pd *pd = ibv_alloc_pd(ctx);
			errno = 0;
			struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
			vt_check(ch || errno == EMFILE, "a channel: %s", vt_errno_name(errno));
			errno = 0;
			struct ibv_cq *cq = ibv_create_cq(ctx, 10, NULL, ch, 0);
			vt_check(cq || errno == EMFILE, "a CQ: %s", vt_errno_name(errno));
			struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
			errno = 0;
			struct ibv_qp *qp = cq && pd ? ibv_create_qp(pd, &a) : NULL;
			vt_check(qp || !cq || errno == EMFILE, "a QP: %s", vt_errno_name(errno));
			if (qp)
				ibv_destroy_qp(qp);
			if (cq)
				ibv_destroy_cq(cq);
			if (ch)
				ibv_destroy_comp_channel(ch);
			if (pd)
				ibv_dealloc_pd(pd);
			vt_check(ibv_close_device(ctx) == 0, "ibv_close_device");
		}
		if (list)
			ibv_free_device_list(list);
	}
	setrlimit(RLIMIT_NOFILE, &old);
	vt_note("with 0 to 23 free descriptors: %d opened, %d refused", opened, refused);
	vt_check(refused > 0 && opened > 0, "%d opened, %d refused", opened, refused);
	struct vt_dev dev;
	vt_check(vt_open(&dev) && ibv_close_device(dev.ctx) == 0, "opening with the limit raised again");
}

static long status_kib(const char *key)
{
	char line[256];
	long kib = 0;
	FILE *f = fopen("/proc/self/status", "r");
	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, key, strlen(key)))
			kib = strtol(line + strlen(key) + 1, NULL, 10);
	if (f)
		fclose(f);
	return kib;
}

static void idle_cost(void)
{
	/* What the allocator and stdio take at first use is not the device's. */
	char *warm = malloc(100000);
	memset(warm, 1, 100000);
	free(warm);
	long anon = status_kib("RssAnon"), shmem = status_kib("RssShmem");
	struct vt_dev dev;
	vt_require(vt_open(&dev), "opening");
	struct ibv_pd *pd = ibv_alloc_pd(dev.ctx);
	struct ibv_cq *cq = ibv_create_cq(dev.ctx, 256, NULL, NULL, 0);
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .cap = { 128, 128, 2, 2, 64 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp *qp = ibv_create_qp(pd, &a);
	vt_require(qp, "ibv_create_qp: %s", strerror(errno));
	long more = status_kib("RssAnon") - anon + status_kib("RssShmem") - shmem;
	struct rusage before, after;
	getrusage(RUSAGE_SELF, &before);
	vt_sleep_ms(1000);
	getrusage(RUSAGE_SELF, &after);
	long cpu = (after.ru_utime.tv_sec - before.ru_utime.tv_sec + after.ru_stime.tv_sec - before.ru_stime.tv_sec) * 1000000L +
		   after.ru_utime.tv_usec - before.ru_utime.tv_usec + after.ru_stime.tv_usec - before.ru_stime.tv_usec;
	vt_note("an open device with PD, CQ and QP takes %ld KiB; idle for 1 s it used %ld us of CPU and was woken %ld times", more, cpu,
		after.ru_nvcsw - before.ru_nvcsw);
	vt_check(more < 1536, "%ld KiB of memory for an idle device (goal: 1024)", more);
	vt_check(cpu < 20000 && after.ru_nvcsw - before.ru_nvcsw < 50, "an idle device used %ld us of CPU", cpu);
	ibv_destroy_qp(qp);
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
	ibv_close_device(dev.ctx);
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = {
		{ "idle_cost", idle_cost }, { "open_again", open_again }, { "fd_limit", fd_limit }, { "fork_harmless", fork_harmless },
		{ "exit_open", exit_open }, { "thread_sys_exit", thread_sys_exit }, { "thread_pthread_exit", thread_pthread_exit },
		{ "thread_cancel", thread_cancel }, { "thread_cancel_wait", thread_cancel_wait },
	};
	static const struct vt_role roles[] = { { "lender", lender_peer }, { "first_open", first_open_peer }, { "exit", exit_peer },
		{ "main_exit", main_thread_exit_peer } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
