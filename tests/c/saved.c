/* A context that is saved in the midst of traffic, its process killed, and restored in another process (vervain.h), again and again:
 * its peer, stopped or not, waits, and no message of either is lost, doubled or out of order. */
#define _GNU_SOURCE
#include "vt_saved.h"
#include "vt_traffic.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- one side, which does what it is told ---- */

static const char *image_file(void)
{
	const char *path = getenv("VT_IMAGE");
	return path ? path : "/nonexistent";
}

static bool answer(int fd, int rc)
{
	return vt_put(fd, &rc, sizeof(rc));
}

/* Saves what stands still into the file, with all memory. */
static int save_it(void)
{
	struct vervain_save_attr attr = { .flags = VERVAIN_SAVE_MEMORY };
	int fd = open(image_file(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	int rc = fd < 0 ? errno : vt_vsave(vt_traffic.dev.ctx, fd, &attr);
	close(fd);
	return rc;
}

/* Saves what stands still into memory that nobody keeps, or, without room, not at all. */
static int save_elsewhere(bool has_room)
{
	int fd = memfd_create("image", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int rc = fd < 0 || (!has_room && fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE)) ? errno : vt_vsave(vt_traffic.dev.ctx, fd, NULL);
	close(fd);
	return rc;
}

/* Traffic, until told otherwise. */
static int serve(int fd)
{
	bool quiet = getenv("VT_QUIET") != NULL;
	for (;;) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		if (!quiet)
			vt_traffic_post();
		vt_traffic_take();
		if (vt_traffic_failed)
			return 1;
		if (poll(&p, 1, 0) != 1)
			continue;
		char what;
		if (!vt_get(fd, &what, 1, 1000))
			return 1;
		if (what == 'e')
			break;
		quiet = quiet && what != 'P';
		int rc = what == 'P' ? 0 : what == 'S' ? vt_vstop(NULL, NULL) : what == 'G' ? vt_vgo(NULL) : what == 's' ? vt_vstop(vt_traffic.dev.ctx, NULL) :
			what == 'g' ? vt_vgo(vt_traffic.dev.ctx) : what == 'w' ? save_it() : what == 'x' || what == 'y' ? save_elsewhere(what == 'x') : EINVAL;
		if (!answer(fd, rc))
			return 1;
	}
	vt_traffic_finish(fd);
	return vt_traffic_failed || !vt_duo_close(&vt_traffic);
}

static int side(int fd)
{
	vt_saved_find();
	if (!vt_traffic_open())
		return 1;
	vt_traffic_counts()->iova = (uintptr_t)vt_traffic.buf;
	if (!vt_duo_meet(&vt_traffic, fd))
		return 1;
	vt_traffic_counts()->peer = vt_traffic.peer;
	vt_fill(vt_traffic.buf + FROM_AT, LONG, 77);
	vt_fill(vt_traffic.buf + THERE_AT, LONG, 77);
	for (uint64_t slot = 0; slot < DEPTH; slot++)
		if (!vt_traffic_receive(slot))
			return 1;
	char c = 'b';
	return vt_put(fd, &c, 1) && vt_get(fd, &c, 1, 60000) ? serve(fd) : 1;
}

static void *new_memory(void *user, uint64_t addr, uint64_t length)
{
	(void)user;
	(void)addr;
	if (length != SIZE)
		return NULL;
	vt_traffic.buf = vt_memory(SIZE);
	return vt_traffic.buf == MAP_FAILED ? NULL : vt_traffic.buf;
}

static void is_there(void *user, const struct vervain_object *o)
{
	int *qps = user;
	switch (o->kind) {
	case VERVAIN_PD: vt_traffic.pd = o->object; break;
	case VERVAIN_MR: vt_traffic.mr = o->object; break;
	case VERVAIN_COMP_CHANNEL: vt_traffic.channel = o->object; break;
	case VERVAIN_CQ: vt_traffic.cq = o->object; break;
	case VERVAIN_SRQ: vt_traffic.srq = o->object; break;
	case VERVAIN_QP: vt_traffic.qp[(*qps)++] = o->object; break;
	default: vt_traffic_failed = true;
	}
}

static int restore_it(void)
{
	int qps = 0, fd = open(image_file(), O_RDONLY | O_CLOEXEC);
	struct vervain_restore_attr attr = { .user = &qps, .memory = new_memory, .restored = is_there };
	if (!vt_open(&vt_traffic.dev))
		return EIO;
	int rc = fd < 0 ? errno : vt_vrestore(vt_traffic.dev.ctx, fd, &attr);
	close(fd);
	vt_traffic.o = (struct vt_duo_opts){ .nqp = KINDS, .size = SIZE };
	return rc ? rc : qps == KINDS && !vt_traffic_failed ? 0 : EPROTO;
}

/* The one that takes the place of another. */
static int again(int fd)
{
	vt_saved_find();
	int rc = restore_it();
	return answer(fd, rc) && rc == 0 ? serve(fd) : 1;
}

/* ---- who tells them ---- */

static pid_t peer_pid, body_pid;
static int peer_fd, body_fd;

static void gone(int fd)
{
	bool is_peer = fd == peer_fd;
	int status = vt_reap(is_peer ? peer_pid : body_pid, 100);
	vt_require(false, "the %s is gone: %#x", is_peer ? "peer" : "body", (unsigned)status);
}

static void relay(int from, int to, size_t n)
{
	static uint8_t bytes[4096];
	if (n > sizeof(bytes) || !vt_get(from, bytes, n, 60000))
		gone(from);
	if (!vt_put(to, bytes, n))
		gone(to);
}

static int tell(int fd, char what)
{
	int rc = -1;
	if (!vt_put(fd, &what, 1) || !vt_get(fd, &rc, sizeof(rc), 60000))
		gone(fd);
	return rc;
}

/* Of the body, and of the peer. */
static char image[2][32];

static void new_image(int whose)
{
	strcpy(image[whose], "/tmp/vt-image-XXXXXX");
	int fd = mkstemp(image[whose]);
	vt_require(fd >= 0, "an image's file: %s", strerror(errno));
	close(fd);
}

static pid_t spawn(const char *role, int whose, int *fd)
{
	setenv("VT_IMAGE", image[whose], 1);
	pid_t pid = vt_spawn(role, fd);
	vt_require(pid > 0, "starting");
	return pid;
}

/* Two sides in traffic. */
static void begin(void)
{
	new_image(0);
	new_image(1);
	body_pid = spawn("side", 0, &body_fd);
	peer_pid = spawn("side", 1, &peer_fd);
	relay(peer_fd, body_fd, sizeof(struct vt_duo_addr));
	relay(body_fd, peer_fd, sizeof(struct vt_duo_addr));
	for (int i = 0; i < 2; i++) {
		relay(peer_fd, body_fd, 1);
		relay(body_fd, peer_fd, 1);
	}
}

static void end(void)
{
	char c = 'e';
	vt_require(vt_put(peer_fd, &c, 1) && vt_put(body_fd, &c, 1), "a side is gone at the end");
	relay(peer_fd, body_fd, sizeof(struct vt_total));
	relay(body_fd, peer_fd, sizeof(struct vt_total));
	vt_check(vt_reap(peer_pid, 90000) == 0, "the peer did not end well");
	vt_check(vt_reap(body_pid, 90000) == 0, "the restored one did not end well");
	unlink(image[0]);
	unlink(image[1]);
}

static void kill_side(pid_t pid, int fd)
{
	vt_require(vt_kill(pid), "killing");
	close(fd);
}

static void kill_body(void)
{
	kill_side(body_pid, body_fd);
}

/* Another process in the place of a side; what vervain_restore says there. */
static int restored(int whose, pid_t *pid, int *fd)
{
	int rc = -1;
	*pid = spawn("again", whose, fd);
	vt_require(vt_get(*fd, &rc, sizeof(rc), 60000), "the restored process is gone");
	return rc;
}

static int restored_body(void)
{
	return restored(0, &body_pid, &body_fd);
}

static unsigned points(void)
{
	const char *n = getenv("VT_POINTS");
	return n ? (unsigned)atoi(n) : 24;
}

static void some_traffic(void)
{
	struct timespec t = { 0, (long)(vt_random() % 6000000) };
	nanosleep(&t, NULL);
}

/* At random points of the traffic one side is saved, killed and restored; the other one is stopped meanwhile, or goes on. */
static void random_points(void)
{
	vt_saved_find();
	begin();
	for (unsigned i = 0; i < points() && !vt_traffic_failed; i++) {
		some_traffic();
		bool stands = vt_random() % 2;
		if (stands)
			vt_require(tell(peer_fd, 'S') == 0, "stopping the peer");
		int rc = tell(body_fd, 's');
		vt_require(rc == 0, "point %u: vervain_stop: %s", i, vt_errno_name(rc));
		rc = tell(body_fd, 'w');
		vt_require(rc == 0, "point %u: vervain_save: %s", i, vt_errno_name(rc));
		/* What it does after that is lost, like what its peers do there. */
		kill_body();
		if (i % 8 == 7)
			vt_sleep_ms(600);
		rc = restored_body();
		vt_require(rc == 0, "point %u: vervain_restore: %s", i, vt_errno_name(rc));
		if (stands && vt_random() % 2) {
			vt_require(tell(peer_fd, 'G') == 0, "the peer going on");
			stands = false;
		}
		rc = tell(body_fd, 'g');
		vt_require(rc == 0, "point %u: vervain_go: %s", i, vt_errno_name(rc));
		if (stands)
			vt_require(tell(peer_fd, 'G') == 0, "the peer going on");
	}
	end();
}

/* What was saved is void when the process goes on, and when it was restored once. */
static void another_past(void)
{
	vt_saved_find();
	begin();
	some_traffic();
	vt_require(tell(body_fd, 's') == 0 && tell(body_fd, 'w') == 0, "saving");
	vt_require(tell(body_fd, 'g') == 0, "going on");
	some_traffic();
	/* It lives, and has the numbers. */
	pid_t living = body_pid;
	int its = body_fd;
	vt_check(restored_body() == EADDRINUSE, "a second one beside the first");
	vt_reap(body_pid, 5000);
	close(body_fd);
	body_pid = living;
	body_fd = its;
	vt_require(tell(body_fd, 's') == 0 && tell(body_fd, 'w') == 0, "saving again");
	/* One that ends before it goes on has done nothing. */
	for (int i = 0; i < 3; i++) {
		kill_body();
		int rc = restored_body();
		vt_require(rc == 0, "restoring: %s", vt_errno_name(rc));
	}
	vt_require(tell(body_fd, 'g') == 0, "the restored one going on");
	some_traffic();
	/* So that it does not hear of the end. */
	vt_require(tell(peer_fd, 'S') == 0, "stopping the peer");
	kill_body();
	vt_check(restored_body() == ESTALE, "restoring what has gone on");
	vt_reap(body_pid, 5000);
	kill(peer_pid, SIGKILL);
	vt_reap(peer_pid, 5000);
	unlink(image[0]);
	unlink(image[1]);
}

/* Both are saved while both stand still, as the ranks of a job are, and killed, and come back in either order. */
static void both(void)
{
	vt_saved_find();
	begin();
	for (unsigned i = 0; i < points() && !vt_traffic_failed; i++) {
		some_traffic();
		int first = vt_random() % 2 ? body_fd : peer_fd, second = first == body_fd ? peer_fd : body_fd;
		vt_require(tell(first, 's') == 0 && tell(second, 's') == 0, "point %u: stopping", i);
		vt_require(tell(second, 'w') == 0 && tell(first, 'w') == 0, "point %u: saving", i);
		kill_body();
		kill_side(peer_pid, peer_fd);
		bool body_first = vt_random() % 2;
		for (int k = 0; k < 2; k++) {
			int rc = body_first == (k == 0) ? restored_body() : restored(1, &peer_pid, &peer_fd);
			vt_require(rc == 0, "point %u: vervain_restore: %s", i, vt_errno_name(rc));
			/* The first may go on before the other is there. */
			if (k == 0 && vt_random() % 2)
				vt_require(tell(body_first ? body_fd : peer_fd, 'g') == 0, "going on alone");
		}
		for (int k = 0; k < 2; k++) {
			int rc = tell(k ? body_fd : peer_fd, 'g');
			vt_require(rc == 0 || rc == EALREADY, "point %u: vervain_go: %s", i, vt_errno_name(rc));
		}
	}
	end();
}

static void *same_place(void *user, uint64_t addr, uint64_t length)
{
	(void)user;
	(void)length;
	return (void *)(uintptr_t)addr;
}

static struct ibv_qp **restored_qps;

static void is_qp(void *user, const struct vervain_object *o)
{
	struct vt_duo *s = user;
	if (o->kind == VERVAIN_PD)
		s->pd = o->object;
	else if (o->kind == VERVAIN_CQ)
		s->cq = o->object;
	else if (o->kind == VERVAIN_QP)
		*restored_qps++ = o->object;
}

static double ms_since(const struct timespec *t)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)(now.tv_sec - t->tv_sec) * 1e3 + (double)(now.tv_nsec - t->tv_nsec) / 1e6;
}

/* How long it takes where there is most to save: QPs that are connected to themselves, in pairs of a save and a restore. */
static void many_qps(void)
{
	enum { MANY = 10000, TIMES = 3 };
	static struct ibv_qp *qp[MANY];
	struct vt_duo s = { .o = { .depth = 4, .sge = 1, .timeout = 14 } };
	uint32_t first;
	vt_saved_find();
	vt_require(vt_open(&s.dev), "opening");
	s.pd = ibv_alloc_pd(s.dev.ctx);
	s.cq = ibv_create_cq(s.dev.ctx, MANY, NULL, NULL, 0);
	vt_require(s.pd && s.cq, "PD, CQ: %s", strerror(errno));
	s.peer = (struct vt_duo_addr){ .gid = s.dev.gid, .lid = s.dev.port.lid };
	for (int i = 0; i < MANY; i++) {
		vt_require(vt_duo_qp(&s, 0), "QP %d", i);
		qp[i] = s.qp[0];
		s.peer.qpn[0] = s.qp[0]->qp_num;
		vt_require(vt_duo_connect(&s, 0), "connecting QP %d", i);
	}
	first = qp[0]->qp_num;
	double saves = 0, restores = 0;
	for (int k = 0; k < TIMES; k++) {
		struct timespec t;
		int fd = memfd_create("image", MFD_CLOEXEC);
		struct vervain_restore_attr attr = { .user = &s, .memory = same_place, .restored = is_qp };
		vt_require(fd >= 0 && vt_vstop(s.dev.ctx, NULL) == 0, "stopping");
		clock_gettime(CLOCK_MONOTONIC, &t);
		vt_require(vt_vsave(s.dev.ctx, fd, NULL) == 0, "saving");
		double took = ms_since(&t);
		saves = k && saves < took ? saves : took;
		for (int i = 0; i < MANY; i++)
			vt_require(ibv_destroy_qp(qp[i]) == 0, "destroying QP %d", i);
		vt_require(!ibv_destroy_cq(s.cq) && !ibv_dealloc_pd(s.pd), "destroying");
		lseek(fd, 0, SEEK_SET);
		restored_qps = qp;
		clock_gettime(CLOCK_MONOTONIC, &t);
		int rc = vt_vrestore(s.dev.ctx, fd, &attr);
		took = ms_since(&t);
		restores = k && restores < took ? restores : took;
		vt_require(rc == 0, "vervain_restore: %s", vt_errno_name(rc));
		vt_require(restored_qps == qp + MANY && qp[0]->qp_num == first && qp[MANY - 1]->state == IBV_QPS_RTS, "what was restored");
		vt_require(vt_vgo(s.dev.ctx) == 0, "going on");
		close(fd);
	}
	vt_note("%d QPs: saved in %.0f ms, restored in %.0f ms", MANY, saves, restores);
	for (int i = 0; i < MANY; i++)
		vt_require(ibv_destroy_qp(qp[i]) == 0, "destroying QP %d", i);
	vt_check(!ibv_destroy_cq(s.cq) && !ibv_dealloc_pd(s.pd) && !ibv_close_device(s.dev.ctx), "cleaning up");
}

static void nap_us(long us)
{
	struct timespec t = { 0, us * 1000 };
	nanosleep(&t, NULL);
}

static void stop_and_save_body(void)
{
	int rc = tell(body_fd, 's');
	vt_require(rc == 0, "vervain_stop: %s", vt_errno_name(rc));
	rc = tell(body_fd, 'w');
	vt_require(rc == 0, "vervain_save: %s", vt_errno_name(rc));
}

static void body_goes_on(void)
{
	int rc = restored_body();
	vt_require(rc == 0, "vervain_restore: %s", vt_errno_name(rc));
	rc = tell(body_fd, 'g');
	vt_require(rc == 0, "vervain_go: %s", vt_errno_name(rc));
}

/* The image does not know of a peer that has its first request after the save, while the process stands still. It waits all the same,
 * also for one that is killed before it goes on. */
static void late_peer(void)
{
	vt_saved_find();
	setenv("VT_QUIET", "1", 1);
	begin();
	unsetenv("VT_QUIET");
	stop_and_save_body();
	vt_require(tell(peer_fd, 'P') == 0, "the peer's first requests");
	vt_sleep_ms(100);
	kill_body();
	vt_sleep_ms(600);
	vt_require(restored_body() == 0, "restoring");
	vt_sleep_ms(100);
	kill_body();
	vt_sleep_ms(600);
	body_goes_on();
	some_traffic();
	/* And the one that it is now. */
	stop_and_save_body();
	kill_body();
	body_goes_on();
	end();
}

/* An image is good as long as nothing has moved, whatever is saved after it or could not be. */
static void saved_again(void)
{
	vt_saved_find();
	begin();
	for (int i = 0; i < 2; i++) {
		some_traffic();
		stop_and_save_body();
		int rc = tell(body_fd, 'x');
		vt_require(rc == 0, "vervain_save once more: %s", vt_errno_name(rc));
		rc = tell(body_fd, 'y');
		vt_require(rc == EPERM, "vervain_save into what is sealed: %s", vt_errno_name(rc));
		kill_body();
		body_goes_on();
	}
	end();
}

/* Both are saved, and one is killed and goes on in another process while the other stands; that one ends only then, and is waited for. */
static void one_after_the_other(void)
{
	vt_saved_find();
	begin();
	for (int i = 0; i < 2; i++) {
		some_traffic();
		stop_and_save_body();
		vt_require(tell(peer_fd, 's') == 0 && tell(peer_fd, 'w') == 0, "saving the peer");
		kill_body();
		body_goes_on();
		vt_sleep_ms(20);
		kill_side(peer_pid, peer_fd);
		vt_sleep_ms(600);
		int rc = restored(1, &peer_pid, &peer_fd);
		vt_require(rc == 0, "vervain_restore of the peer: %s", vt_errno_name(rc));
		vt_require(tell(peer_fd, 'g') == 0, "the peer going on");
	}
	end();
}

/* A peer that stands still as a whole, by SIGSTOP, when another process takes the place of a saved one. */
static void frozen_peer(void)
{
	vt_saved_find();
	begin();
	for (int i = 0; i < 3; i++) {
		some_traffic();
		stop_and_save_body();
		int status;
		vt_require(kill(peer_pid, SIGSTOP) == 0 && waitpid(peer_pid, &status, WUNTRACED) == peer_pid && WIFSTOPPED(status), "SIGSTOP");
		kill_body();
		int rc = restored_body();
		vt_require(rc == 0, "vervain_restore: %s", vt_errno_name(rc));
		if (i)
			vt_require(tell(body_fd, 'g') == 0, "vervain_go");
		nap_us((long)(vt_random() % 20000));
		vt_require(kill(peer_pid, SIGCONT) == 0, "SIGCONT");
		if (i == 0)
			vt_require(tell(body_fd, 'g') == 0, "vervain_go");
	}
	end();
}

/* Processes that are killed while they restore. What was saved is good still. */
static void killed_in_the_middle(void)
{
	vt_saved_find();
	begin();
	for (unsigned i = 0; i < points(); i++) {
		some_traffic();
		stop_and_save_body();
		kill_body();
		for (int k = 0; k < 4; k++) {
			body_pid = spawn("again", 0, &body_fd);
			nap_us((long)(vt_random() % 30000));
			kill_body();
		}
		body_goes_on();
	}
	/* While one saves: it is dead for its peer, or may be restored. */
	vt_require(tell(body_fd, 's') == 0, "stopping");
	char c = 'w';
	vt_require(vt_put(body_fd, &c, 1), "a save");
	nap_us((long)(vt_random() % 20000));
	kill_body();
	int rc = restored_body();
	if (rc == 0) {
		vt_require(tell(body_fd, 'g') == 0, "vervain_go");
		end();
		return;
	}
	vt_check(rc == EBADMSG || rc == ESTALE, "what was not all saved: %s", vt_errno_name(rc));
	vt_reap(body_pid, 5000);
	kill(peer_pid, SIGKILL);
	vt_reap(peer_pid, 5000);
	unlink(image[0]);
	unlink(image[1]);
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { { "random_points", random_points }, { "both", both }, { "another_past", another_past },
		{ "many_qps", many_qps }, { "late_peer", late_peer }, { "saved_again", saved_again }, { "one_after_the_other", one_after_the_other }, { "frozen_peer", frozen_peer }, { "killed_in_the_middle", killed_in_the_middle } };
	static const struct vt_role roles[] = { { "side", side }, { "again", again } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
