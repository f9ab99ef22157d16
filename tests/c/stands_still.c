/* Senders that stand still in the middle of a copy, as one does that was stopped, is held by a debugger, or waits for a page
 * of its own: here a userfaultfd serves that page when the test says so. Who takes memory or a QP away from such a sender
 * waits for it two seconds; from then on it has no success and stores nowhere. Who takes away something else does not wait.
 * And what has arrived from a sender that is stopped has arrived, whatever the receiver takes away after it has seen it, and
 * wherever the sender was stopped: it stands at the touch of a page of the receiver's arena, by the same means. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define LEN 8192u
/* In the receiver's buffer: where messages go, and where a healthy peer writes on the same page. */
#define AT 65536u
#define BESIDE (AT + LEN - 64)
/* 4.096 us * 2^13, six times: a fifth of a second in which a peer that lives answers, and no long wait for one that does not. */
#define OPTS(t, n) &(struct vt_duo_opts){ .type = t, .nqp = n, .depth = 16, .timeout = 13, .retry = 5, .size = 1 << 20 }

enum op { SEND, WRITE, READ, WRITE_IMM, NOPS };
static const char *const names[] = { "Send", "Write", "Read", "Write with immediate" };
static const int codes[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE_WITH_IMM };

/* What a sender is told to do: stand still in `op`, and say how it ended once the receiver has sent a byte. */
struct order {
	int32_t op, pad;
};

/* ---- the sender ---- */
static struct vt_duo p;
static int uffd;
static uint8_t *page;
static int orders;

static int open_uffd(void)
{
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	struct uffdio_api api = { .api = UFFD_API };
	if (fd >= 0 && ioctl(fd, UFFDIO_API, &api)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/* Says that the fault has come; serves the page when the test says so. */
static void *pager(void *unused)
{
	(void)unused;
	struct uffd_msg message;
	if (read(uffd, &message, sizeof(message)) != sizeof(message))
		return NULL;
	char c = 'f';
	vt_put(orders, &c, 1);
	vt_get(orders, &c, 1, 60000);
	struct uffdio_zeropage zero = { .range = { (uintptr_t)page, LEN } };
	ioctl(uffd, UFFDIO_ZEROPAGE, &zero);
	return NULL;
}

static int one(struct ibv_sge sge, enum op op, uint64_t at)
{
	struct ibv_wc wc;
	if (vt_duo_post(&p, 0, codes[op], 1, IBV_SEND_SIGNALED, &sge, 1, at) || vt_poll(p.cq, &wc, 1, 30000) != 1)
		return -1;
	return (int)wc.status;
}

static int sender(int fd)
{
	struct order order;
	if (!vt_duo_open(&p, OPTS(VT_RC, 1)) || !vt_duo_meet(&p, fd) || !vt_get(fd, &order, sizeof(order), 20000))
		return 1;
	/* The way there is known before it counts. */
	if (one(vt_duo_sge(&p, 0, 8), WRITE, p.peer.addr) != IBV_WC_SUCCESS)
		return 1;
	orders = fd;
	uffd = open_uffd();
	page = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr = ibv_reg_mr(p.pd, page, LEN, IBV_ACCESS_LOCAL_WRITE);
	if (uffd < 0 || page == MAP_FAILED || !mr || madvise(page, LEN, MADV_DONTNEED))
		return 1;
	struct uffdio_register range = { .range = { (uintptr_t)page, LEN }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	pthread_t thread;
	if (ioctl(uffd, UFFDIO_REGISTER, &range) || pthread_create(&thread, NULL, pager, NULL))
		return 1;
	int32_t status = one((struct ibv_sge){ (uintptr_t)page, LEN, mr->lkey }, order.op, p.peer.addr + AT);
	pthread_join(thread, NULL);
	vt_put(fd, &status, sizeof(status));
	char c;
	vt_get(fd, &c, 1, 20000);
	return 0;
}

/* ---- the receiver ---- */
static struct vt_duo r;
struct peer {
	pid_t pid;
	int fd;
};

static bool stands(struct peer *s, enum op op)
{
	struct order order = { .op = (int32_t)op };
	char c = 0;
	return vt_put(s->fd, &order, sizeof(order)) && vt_get(s->fd, &c, 1, 20000) && c == 'f';
}

/* Lets it go on; how its request ended. */
static int goes_on(struct peer *s)
{
	char c = 'g';
	int32_t status = -1;
	vt_put(s->fd, &c, 1);
	vt_get(s->fd, &status, sizeof(status), 30000);
	return status;
}

static void end(struct peer *s)
{
	char c = 'e';
	vt_put(s->fd, &c, 1);
	vt_check(vt_reap(s->pid, 10000) == 0, "the sender did not end well");
	close(s->fd);
}

/* A peer in `role` for the QP in slot `i`. */
static struct peer meet(int i, const char *role)
{
	struct peer s = { .fd = -1 };
	struct ibv_qp *qp = r.qp[0];
	uint32_t qpn = r.self.qpn[0];
	int nqp = r.o.nqp;
	r.qp[0] = r.qp[i];
	r.self.qpn[0] = r.self.qpn[i];
	r.o.nqp = 1;
	s.pid = vt_spawn(role, &s.fd);
	vt_require(s.pid > 0 && vt_duo_meet(&r, s.fd), "the %s", role);
	r.qp[0] = qp;
	r.self.qpn[0] = qpn;
	r.o.nqp = nqp;
	return s;
}

static void need_faults(void)
{
	int fd = open_uffd();
	if (fd < 0)
		vt_skip("userfaultfd: %s", strerror(errno));
	close(fd);
}

/* Whether a store may come late: into memory that the program shares with others itself (docs/local-link.md, Known limits). */
static bool late_stores(void)
{
	return getenv("VT_LATE_STORES") != NULL;
}

/* The first place where memory differs from what the receiver has put there, or its length. */
static size_t changed(void)
{
	size_t i = 0;
	while (i < r.o.size && r.buf[i] == 0x33)
		i++;
	return i;
}

static int to_err(int qp)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };
	return ibv_modify_qp(r.qp[qp], &a, IBV_QP_STATE);
}

/* One sender for each of `ops`, each on a QP of its own; all stand still at the same time. */
static void ended_while_they_stood(enum vt_type type, const enum op *ops, int n)
{
	struct peer s[NOPS];
	struct ibv_wc wc[3 * NOPS];
	vt_require(vt_duo_open(&r, OPTS(type, n)), "the receiver");
	int taken = 0, posted = 0;
	for (int i = 0; i < n; i++) {
		s[i] = meet(i, "sender");
		struct ibv_sge sge = vt_duo_sge(&r, AT, LEN);
		struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
		for (wr.wr_id = 0; wr.wr_id < 3; wr.wr_id++)
			vt_require(!(r.srq ? ibv_post_srq_recv(r.srq, &wr, &bad) : ibv_post_recv(r.qp[i], &wr, &bad)), "post_recv");
		vt_require(stands(&s[i], ops[i]), "the sender does not stand in its %s", names[ops[i]]);
		taken += ops[i] == SEND || ops[i] == WRITE_IMM;
		posted += 3;
	}
	for (int i = 0; i < n; i++)
		vt_check(to_err(i) == 0, "modify to ERR");
	int flushed = r.srq ? taken : posted, got = vt_poll(r.cq, wc, flushed, 5000);
	vt_check(got == flushed, "%d receives were flushed, not %d", got, flushed);
	for (int i = 0; i < got; i++)
		vt_check(wc[i].status == IBV_WC_WR_FLUSH_ERR, "a receive ended with %s", vt_wc_name((int)wc[i].status));
	vt_check(!ibv_dereg_mr(r.mr), "ibv_dereg_mr");
	for (int i = 0; i < n; i++) {
		vt_check(!ibv_destroy_qp(r.qp[i]), "ibv_destroy_qp");
		r.qp[i] = NULL;
	}
	memset(r.buf, 0x33, r.o.size);
	for (int i = 0; i < n; i++) {
		int status = goes_on(&s[i]);
		vt_check(status == IBV_WC_RETRY_EXC_ERR, "the %s that nobody waited for ends with %s", names[ops[i]], vt_wc_name(status));
	}
	vt_check(late_stores() || changed() == r.o.size, "memory was written at %zu after it was given back", changed());
	vt_check(vt_poll(r.cq, wc, 1, 100) == 0, "a completion came afterwards");
	for (int i = 0; i < n; i++)
		end(&s[i]);
	r.mr = ibv_reg_mr(r.pd, r.buf, 4096, IBV_ACCESS_LOCAL_WRITE);
	vt_duo_close(&r);
}

static void no_success_and_no_store_after_the_end(void)
{
	need_faults();
	ended_while_they_stood(VT_RC, (enum op[]){ SEND, WRITE, READ, WRITE_IMM }, 4);
	ended_while_they_stood(VT_RC_SRQ, (enum op[]){ SEND, WRITE_IMM }, 2);
}

/* Another peer goes on writing to the page that the sender stands in, for its memory stays registered when `taken` is done. */
static void taken_from_one_alone(void (*taken)(void))
{
	need_faults();
	vt_require(vt_duo_open(&r, OPTS(VT_RC, 2)), "the receiver");
	struct peer s = meet(0, "sender"), second = meet(1, "writer");
	memset(r.buf, 0x33, r.o.size);
	vt_require(stands(&s, WRITE), "the sender does not stand");
	for (uint8_t n = 1; n < 4; n++) {
		char c = 'w';
		vt_check(vt_put(second.fd, &c, 1) && vt_get(second.fd, &c, 1, 20000) && c == IBV_WC_SUCCESS, "the writer, time %d", n);
		vt_check(r.buf[BESIDE] == n, "the writer's byte %d is not there: %d", n, r.buf[BESIDE]);
		if (n == 1) {
			taken();
			vt_check(r.buf[BESIDE] == n && r.buf[AT] == 0x33, "what is taken away changes memory");
			r.buf[AT + 1] = 0x44;
		} else if (n == 2) {
			int status = goes_on(&s);
			vt_check(status == IBV_WC_RETRY_EXC_ERR, "the sender that nobody waited for ends with %s", vt_wc_name(status));
			vt_check(late_stores() || (r.buf[AT] == 0x33 && r.buf[AT + 1] == 0x44 && r.buf[BESIDE] == n),
				 "memory was written after it was taken away");
		}
	}
	end(&s);
	end(&second);
	vt_duo_close(&r);
}

static void end_the_qp(void)
{
	vt_check(!ibv_destroy_qp(r.qp[0]), "ibv_destroy_qp");
	r.qp[0] = NULL;
}

static void register_anew(void)
{
	vt_check(!ibv_rereg_mr(r.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, VT_ACCESS_ALL), "ibv_rereg_mr");
}

static void memory_in_use_is_taken_from_one_alone(void)
{
	taken_from_one_alone(end_the_qp);
}

static void a_key_that_stays_leads_to_the_programs_memory(void)
{
	taken_from_one_alone(register_anew);
}

/* Writes 1, 2, 3 … beside the sender's place, one for each byte 'w'. */
static int writer(int fd)
{
	if (!vt_duo_open(&p, OPTS(VT_RC, 1)) || !vt_duo_meet(&p, fd))
		return 1;
	char c;
	for (uint8_t n = 1; vt_get(fd, &c, 1, 30000) && c == 'w'; n++) {
		p.buf[0] = n;
		c = (char)one(vt_duo_sge(&p, 0, 1), WRITE, p.peer.addr + BESIDE);
		vt_put(fd, &c, 1);
	}
	return vt_duo_close(&p) ? 0 : 1;
}

static void what_is_elsewhere_is_left_alone(void)
{
	enum { N = 4 };
	need_faults();
	vt_require(vt_duo_open(&r, OPTS(VT_RC, N)), "the receiver");
	struct peer s[N];
	for (int i = 0; i < N; i++) {
		s[i] = meet(i, "sender");
		vt_require(stands(&s[i], i % 2 ? WRITE : READ), "sender %d does not stand", i);
	}
	/* A region, a window, a QP and a CQ that none of them uses. */
	uint8_t *other = vt_memory(1 << 20);
	struct ibv_mr *mr = ibv_reg_mr(r.pd, other, 1 << 20, VT_ACCESS_ALL | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(r.pd, IBV_MW_TYPE_2);
	struct ibv_qp_init_attr a = { .send_cq = r.cq, .recv_cq = r.cq, .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp *qp = ibv_create_qp(r.pd, &a);
	vt_require(mr && mw && qp, "objects");
	vt_check(!ibv_destroy_qp(qp) && !ibv_dealloc_mw(mw), "ends of objects that nobody uses");
	vt_check(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE), "ibv_rereg_mr");
	vt_check(!ibv_dereg_mr(mr), "ibv_dereg_mr");
	vt_memory_free(other, 1 << 20);
	/* Nobody was cut off. */
	for (int i = 0; i < N; i++) {
		int status = goes_on(&s[i]);
		vt_check(status == IBV_WC_SUCCESS, "sender %d, from which nothing was taken, ends with %s", i, vt_wc_name(status));
		end(&s[i]);
	}
	vt_duo_close(&r);
}

/* Nothing ends here because a machine is slow. */
#define PATIENT(n) &(struct vt_duo_opts){ .type = VT_RC, .nqp = n, .depth = 16, .timeout = 18, .retry = 2, .size = 1 << 20 }

static const int unanswered[] = { IBV_WR_RDMA_WRITE, IBV_WR_ATOMIC_FETCH_AND_ADD };

/* Posts a write, or an atomic that adds 1. */
static int post_to(int opcode, uint64_t addr, uint32_t rkey)
{
	struct ibv_sge sge = vt_duo_sge(&p, 0, 8);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = (enum ibv_wr_opcode)opcode, .send_flags = IBV_SEND_SIGNALED }, *bad;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = addr;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = addr;
		wr.wr.rdma.rkey = rkey;
	}
	return ibv_post_send(p.qp[0], &wr, &bad);
}

/* Stops after it has posted, and tells how the request ended. */
static int stopped(int fd)
{
	struct ibv_wc wc = { .status = -1 };
	int32_t which;
	if (!vt_duo_open(&p, PATIENT(1)) || !vt_duo_meet(&p, fd) || !vt_get(fd, &which, sizeof(which), 20000))
		return 1;
	memset(p.buf, 0x55, 8);
	if (one(vt_duo_sge(&p, 0, 8), WRITE, p.peer.addr) != IBV_WC_SUCCESS)
		return 1;
	if (post_to(unanswered[which], p.peer.addr + AT, p.peer.rkey))
		return 1;
	raise(SIGSTOP);
	int32_t status = vt_poll(p.cq, &wc, 1, 20000) == 1 ? (int32_t)wc.status : -1;
	if (which && status == IBV_WC_SUCCESS && memcmp(p.buf, "\x33\x33\x33\x33\x33\x33\x33\x33", 8))
		status = -2;
	vt_put(fd, &status, sizeof(status));
	char c;
	vt_get(fd, &c, 1, 20000);
	return 0;
}

/* It stands still from now on, with all its threads. */
static void wait_stopped(const struct peer *s)
{
	siginfo_t info;
	vt_require(!waitid(P_PID, (id_t)s->pid, &info, WSTOPPED | WNOWAIT), "waitid: %s", strerror(errno));
}

static void what_was_seen_has_arrived(void)
{
	enum { KEY, QP, ALL, ENDS };
	static const char *const taken[] = { "the key", "the QP", "everything" };
	for (int which = 0; which < (int)VT_ARRAY(unanswered); which++)
		for (int end_of = KEY; end_of < ENDS; end_of++) {
			memset(&r, 0, sizeof(r));
			vt_require(vt_duo_open(&r, PATIENT(1)), "the receiver");
			memset(r.buf, 0x33, r.o.size);
			struct peer s = meet(0, "stopped");
			int32_t order = which;
			vt_require(vt_put(s.fd, &order, sizeof(order)), "the order");
			uint64_t until = vt_now_us() + 20000000;
			while (*(volatile uint8_t *)&r.buf[AT] == 0x33 && vt_now_us() < until)
				;
			vt_check(r.buf[AT] != 0x33, "nothing came");
			wait_stopped(&s);
			if (end_of == KEY) {
				vt_check(!ibv_dereg_mr(r.mr), "ibv_dereg_mr");
				r.mr = NULL;
			} else if (end_of == QP) {
				end_the_qp();
			} else {
				vt_duo_close(&r);
			}
			kill(s.pid, SIGCONT);
			int32_t status = -1;
			vt_get(s.fd, &status, sizeof(status), 30000);
			vt_check(status == IBV_WC_SUCCESS, "operation %d, seen before the end of %s: %s", unanswered[which], taken[end_of],
				 status == -2 ? "another word came back" : vt_wc_name(status));
			end(&s);
			if (end_of == KEY)
				r.mr = ibv_reg_mr(r.pd, r.buf, 4096, IBV_ACCESS_LOCAL_WRITE);
			if (end_of != ALL)
				vt_duo_close(&r);
		}
}

/* What the owner is asked for, and where the sender stands: at the how manieth page of the owner's arena that it touches. */
struct look {
	uint64_t addr;
	uint32_t rkey;
	int32_t opcode, touch;
	uint32_t pad;
};

#define PAGE 4096u
/* Arenas of a process: its own, and those of its peers. */
static struct arena {
	uint64_t from, to;
} arenas[16];
static struct look look;
static atomic_bool is_told; /* whether the sender stands or not */

/* Those that are mapped now, as far as `known` are not; how many. */
static int find_arenas(const struct arena *known, int n)
{
	char line[512], rights[8];
	struct arena a, found[VT_ARRAY(arenas)];
	int got = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	while (maps && fgets(line, sizeof(line), maps) && got < (int)VT_ARRAY(arenas)) {
		if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s", &a.from, &a.to, rights) != 3 || strcmp(rights, "rw-s") ||
		    !strstr(line, "/memfd:vervain ("))
			continue;
		bool is_known = false;
		for (int i = 0; i < n; i++)
			is_known |= a.from < known[i].to && known[i].from < a.to;
		if (!is_known)
			found[got++] = a;
	}
	if (maps)
		fclose(maps);
	memcpy(arenas, found, sizeof(struct arena) * (size_t)got);
	return got;
}

static int open_minor_uffd(void)
{
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_MINOR_SHMEM };
	if (fd >= 0 && ioctl(fd, UFFDIO_API, &api)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/* Lets every touch through at once but the one that was asked for, which waits for the test. */
static void *toucher(void *unused)
{
	struct uffd_msg message;
	for (int n = 1; read(uffd, &message, sizeof(message)) == sizeof(message); n++) {
		if (n == look.touch && !atomic_exchange(&is_told, true)) {
			char c = 'f';
			vt_put(orders, &c, 1);
			vt_get(orders, &c, 1, 60000);
		}
		struct uffdio_continue go = { .range = { message.arg.pagefault.address & ~(uint64_t)(PAGE - 1), PAGE } };
		/* The owner may have given the page back meanwhile. */
		if (ioctl(uffd, UFFDIO_CONTINUE, &go))
			ioctl(uffd, UFFDIO_WAKE, &go.range);
	}
	return unused;
}

/* Posts, and looks for the owner's answer; says 'f' when it stands in that, or 'n' if a look touches fewer pages. */
static int looking(int fd)
{
	struct ibv_wc wc = { .status = -1 };
	char c = 'm';
	if (!vt_duo_open(&p, PATIENT(1)))
		return 1;
	int n = find_arenas(NULL, 0);
	struct arena own[VT_ARRAY(arenas)];
	memcpy(own, arenas, sizeof(own));
	memset(p.buf, 1, 8);
	/* The owner makes no acquaintances once it stands. */
	if (!vt_duo_meet(&p, fd) || one(vt_duo_sge(&p, 0, 8), WRITE, p.peer.addr) != IBV_WC_SUCCESS || !vt_put(fd, &c, 1) ||
	    !vt_get(fd, &look, sizeof(look), 20000))
		return 1;
	if (post_to(look.opcode, look.addr, look.rkey) || ibv_poll_cq(p.cq, 1, &wc))
		return 1;
	orders = fd;
	uffd = open_minor_uffd();
	n = find_arenas(own, n);
	pthread_t thread;
	for (int i = 0; i < n; i++) {
		struct arena *a = &arenas[i];
		struct uffdio_register range = { .range = { a->from, a->to - a->from }, .mode = UFFDIO_REGISTER_MODE_MINOR };
		if (ioctl(uffd, UFFDIO_REGISTER, &range) || madvise((void *)(uintptr_t)a->from, a->to - a->from, MADV_DONTNEED))
			return 1;
	}
	if (!n || pthread_create(&thread, NULL, toucher, NULL))
		return 1;
	int got = 0;
	for (int i = 0; i < 1000 && !got; i++)
		got = ibv_poll_cq(p.cq, 1, &wc);
	if (!atomic_exchange(&is_told, true)) {
		c = 'n';
		vt_put(fd, &c, 1);
		vt_get(fd, &c, 1, 60000);
	}
	if (!got)
		got = vt_poll(p.cq, &wc, 1, 20000);
	int32_t status = got == 1 ? (int32_t)wc.status : -1;
	vt_put(fd, &status, sizeof(status));
	vt_get(fd, &c, 1, 20000);
	return 0;
}

/* The owner stands in the middle of the first request, its own page missing; each sender stands at another place of its look for
 * the answer. The owner goes on and answers all; its program takes away what it was asked for by, and then the senders go on. */
static void answered_while_they_looked(bool key, int opcode)
{
	enum { N = 8 };
	struct peer s[N];
	char c = 0;
	memset(&r, 0, sizeof(r));
	vt_require(vt_duo_open(&r, PATIENT(N)), "the receiver");
	uffd = open_uffd();
	page = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr = ibv_reg_mr(r.pd, page, LEN, VT_ACCESS_ALL);
	struct uffdio_register range = { .range = { (uintptr_t)page, LEN }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	vt_require(mr && !madvise(page, LEN, MADV_DONTNEED) && !ioctl(uffd, UFFDIO_REGISTER, &range), "the page");
	for (int i = 0; i < N; i++) {
		s[i] = meet(i, "looking");
		vt_require(vt_get(s[i].fd, &c, 1, 20000) && c == 'm', "sender %d", i);
	}
	int stand = 0;
	for (int i = 0; i < N; i++) {
		struct look order = { .addr = (uintptr_t)page + 8u * (unsigned)i, .rkey = mr->rkey, .opcode = opcode, .touch = i + 1 };
		vt_require(vt_put(s[i].fd, &order, sizeof(order)) && vt_get(s[i].fd, &c, 1, 20000), "sender %d has not posted", i);
		stand += c == 'f';
	}
	vt_check(stand > 1, "the senders stand in %d places", stand);
	struct uffdio_zeropage zero = { .range = { (uintptr_t)page, LEN } };
	ioctl(uffd, UFFDIO_ZEROPAGE, &zero);
	uint64_t until = vt_now_us() + 20000000;
	for (int i = 0; i < N; i++) {
		while (!*(volatile uint8_t *)&page[i * 8] && vt_now_us() < until)
			;
		vt_check(page[i * 8] == 1, "the owner has not done what sender %d has asked for", i);
	}
	vt_check(!key || !ibv_dereg_mr(mr), "ibv_dereg_mr");
	for (int i = 0; i < N && !key; i++) {
		vt_check(!ibv_destroy_qp(r.qp[i]), "ibv_destroy_qp");
		r.qp[i] = NULL;
	}
	for (int i = 0; i < N; i++) {
		int status = goes_on(&s[i]);
		vt_check(status == IBV_WC_SUCCESS, "operation %d, done before the end of %s, at touch %d: %s", opcode, key ? "the key" : "the QP",
			 i + 1, vt_wc_name(status));
		end(&s[i]);
	}
	vt_check(key || !ibv_dereg_mr(mr), "ibv_dereg_mr");
	vt_duo_close(&r);
	munmap(page, LEN);
	close(uffd);
}

static void what_the_owner_has_done_counts_wherever_the_sender_stood(void)
{
	const char *way = getenv("VERVAIN_MEMORY");
	need_faults();
	int fd = open_minor_uffd();
	if (fd < 0)
		vt_skip("userfaultfd for minor faults: %s", strerror(errno));
	close(fd);
	answered_while_they_looked(true, IBV_WR_ATOMIC_FETCH_AND_ADD);
	answered_while_they_looked(false, IBV_WR_ATOMIC_FETCH_AND_ADD);
	if (way && !strcmp(way, "owner"))
		answered_while_they_looked(false, IBV_WR_RDMA_WRITE);
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { { "no_success_and_no_store_after_the_end", no_success_and_no_store_after_the_end },
						{ "memory_in_use_is_taken_from_one_alone", memory_in_use_is_taken_from_one_alone },
						{ "a_key_that_stays_leads_to_the_programs_memory", a_key_that_stays_leads_to_the_programs_memory },
						{ "what_is_elsewhere_is_left_alone", what_is_elsewhere_is_left_alone },
						{ "what_was_seen_has_arrived", what_was_seen_has_arrived },
						{ "what_the_owner_has_done_counts_wherever_the_sender_stood",
						  what_the_owner_has_done_counts_wherever_the_sender_stood } };
	static const struct vt_role roles[] = { { "sender", sender }, { "writer", writer }, { "stopped", stopped }, { "looking", looking } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
