/* Memory that the program takes away while it is registered: protected, unmapped, cut off its file. An HCA has pinned
 * the pages; a device without pins must answer with a completion, and never with a signal, whichever thread meets it.
 * And the program's own handling of such signals stays what it is. */
#define _GNU_SOURCE
#include "vt.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const uint32_t lengths[] = { 8, 3, 100, 2000, 40000, 90000 };
static const int rdma[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD,
			    IBV_WR_ATOMIC_CMP_AND_SWP };
static bool writes(int op) { return op == IBV_WR_RDMA_WRITE || op == IBV_WR_RDMA_WRITE_WITH_IMM; }
static bool is_atomic(int op) { return op == IBV_WR_ATOMIC_FETCH_AND_ADD || op == IBV_WR_ATOMIC_CMP_AND_SWP; }
static const char *kind(int prot) { return prot == PROT_NONE ? "protected" : "read-only"; }

static void ready(enum vt_type type)
{
	struct vt_cfg a = vt_cfg_default(type), b = a;
	b.responder = 1;
	vt_pair(&a, &b);
}

static void protect(struct vt_end *e, int prot)
{
	int rc = vt_simple(e, VT_PROTECT, 0, VT_BUF, prot);
	vt_require(rc == 0, "mprotect: %s", vt_errno_name(rc));
}

/* One request by the initiator, in flight to its completion: the status, or -1. */
static int request(int op, uint32_t len, int prot, struct vt_end *whose)
{
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, op, is_atomic(op) ? 8 : len);
	struct ibv_wc wc;
	w.compare_add = 1;
	if (op == IBV_WR_RDMA_WRITE_WITH_IMM || op == IBV_WR_SEND)
		vt_require(!vt_recv(&vt_b, 7, vt_b.info.addr + VT_RECV_AT, 100000, vt_b.info.lkey), "posting a receive");
	protect(whose, prot);
	int rc = vt_send(&vt_a, &w);
	vt_check(rc == 0, "posting: %s", vt_errno_name(rc));
	return vt_cqes(&vt_a, 0, 1, 10000, &wc) == 1 ? (int)wc.status : -1;
}

/* Where a peer has the owner's pages mapped, as an HCA has them pinned, the data arrive whatever the owner may do. */
static void target_gone(void)
{
	for (size_t o = 0; o < VT_ARRAY(rdma); o++)
		for (size_t l = 0; l < (is_atomic(rdma[o]) ? 1 : VT_ARRAY(lengths)); l++)
			for (int prot = PROT_NONE; prot <= PROT_READ; prot += PROT_READ - PROT_NONE) {
				ready(VT_RC);
				int status = request(rdma[o], lengths[l], prot, &vt_b);
				protect(&vt_b, PROT_READ | PROT_WRITE);
				bool may = rdma[o] == IBV_WR_RDMA_READ && prot == PROT_READ;
				vt_check(status == (may ? IBV_WC_SUCCESS : IBV_WC_REM_OP_ERR) || (vt_two && status == IBV_WC_SUCCESS),
					"operation %d of %u bytes on %s memory of the peer: %s", rdma[o], lengths[l], kind(prot), vt_wc_name(status));
				uint8_t want = status == IBV_WC_SUCCESS && writes(rdma[o]) ? 0xaa : 0xbb;
				vt_check(is_atomic(rdma[o]) || (uint8_t)vt_peek(&vt_b, 0) == want, "the peer's memory after %s", vt_wc_name(status));
				vt_teardown();
			}
}

static void local_gone(void)
{
	static const enum vt_type types[] = { VT_RC, VT_UC, VT_XRC };
	for (size_t t = 0; t < VT_ARRAY(types); t++)
		for (size_t o = 0; o <= VT_ARRAY(rdma); o++) {
			int op = o < VT_ARRAY(rdma) ? rdma[o] : IBV_WR_SEND;
			bool sends = writes(op) || op == IBV_WR_SEND;
			for (size_t l = 0; l < (is_atomic(op) ? 1 : VT_ARRAY(lengths)) && (sends || types[t] != VT_UC); l++)
				for (int prot = PROT_NONE; prot <= PROT_READ; prot += PROT_READ - PROT_NONE) {
					ready(types[t]);
					uint64_t before = is_atomic(op) ? vt_peek(&vt_b, 0) : 0;
					int status = request(op, lengths[l], prot, &vt_a);
					protect(&vt_a, PROT_READ | PROT_WRITE);
					int want = sends && prot == PROT_READ ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR;
					/* Whoever answers a long read may put it into the pages themselves, as an HCA does that has them pinned. */
					bool may = vt_two && op == IBV_WR_RDMA_READ && lengths[l] >= 65536 && status == IBV_WC_SUCCESS;
					vt_check(status == want || may, "operation %d of %u bytes, own memory %s: expected %s, got %s", op, lengths[l],
						kind(prot), vt_wc_name(want), vt_wc_name(status));
					/* An atomic whose answer has no place is not carried out twice. */
					uint64_t now = is_atomic(op) ? vt_peek(&vt_b, 0) : 0;
					vt_check(now == before || (op == IBV_WR_ATOMIC_FETCH_AND_ADD && now == before + 1), "an atomic: 0x%" PRIx64,
						now - before);
					vt_teardown();
				}
		}
}

static void receive_gone(void)
{
	static const enum vt_type types[] = { VT_RC, VT_RC_SRQ, VT_XRC };
	for (size_t t = 0; t < VT_ARRAY(types); t++)
		for (size_t l = 0; l < VT_ARRAY(lengths); l++)
			for (int prot = PROT_NONE; prot <= PROT_READ; prot += PROT_READ - PROT_NONE) {
				ready(types[t]);
				struct ibv_wc wc;
				int status = request(IBV_WR_SEND, lengths[l], prot, &vt_b);
				protect(&vt_b, PROT_READ | PROT_WRITE);
				vt_check(status == IBV_WC_REM_OP_ERR || (vt_two && status == IBV_WC_SUCCESS),
					"a send of %u bytes into %s memory: %s", lengths[l], kind(prot), vt_wc_name(status));
				int want = status == IBV_WC_SUCCESS ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR;
				vt_check(vt_cqes(&vt_b, 1, 1, 5000, &wc) == 1 && (int)wc.status == want, "its receive");
				vt_teardown();
			}
}

static void datagram_gone(void)
{
	struct ibv_wc wc;
	for (int prot = PROT_NONE; prot <= PROT_READ; prot += PROT_READ - PROT_NONE) {
		ready(VT_UD);
		int status = request(IBV_WR_SEND, 500, prot, &vt_a);
		protect(&vt_a, PROT_READ | PROT_WRITE);
		vt_check(status == (prot == PROT_READ ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR), "a datagram from %s memory: %s", kind(prot),
			vt_wc_name(status));
		ready(VT_UD);
		status = request(IBV_WR_SEND, 500, prot, &vt_b);
		vt_check(status == IBV_WC_SUCCESS, "a datagram into %s memory: %s", kind(prot), vt_wc_name(status));
		int n = vt_cqes(&vt_b, 1, 1, 5000, &wc);
		protect(&vt_b, PROT_READ | PROT_WRITE);
		vt_check(n == 1 && (wc.status == IBV_WC_LOC_PROT_ERR || (vt_two && wc.status == IBV_WC_SUCCESS)), "its receive: %s",
			n == 1 ? vt_wc_name((int)wc.status) : "none");
		vt_teardown();
	}
}

/* Memory of the responder in this process that is taken away altogether. */
static void unmapped(void)
{
	enum { UNMAPPED, REPLACED, CUT_OFF, WAYS };
	static const char *const names[] = { "unmapped", "replaced by nothing", "cut off its file" };
	const size_t len = 1 << 20;
	if (vt_two)
		vt_does_not_apply("the memory is of this process");
	for (int way = 0; way < WAYS; way++)
		for (int op = IBV_WR_RDMA_WRITE; op <= IBV_WR_RDMA_READ; op += IBV_WR_RDMA_READ - IBV_WR_RDMA_WRITE) {
			ready(VT_RC);
			int fd = memfd_create("vt", MFD_CLOEXEC);
			vt_require(fd >= 0 && ftruncate(fd, (off_t)len) == 0, "memfd");
			int flags = way == CUT_OFF ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
			uint8_t *p = mmap(NULL, len, PROT_READ | PROT_WRITE, flags, way == CUT_OFF ? fd : -1, 0);
			vt_require(p != MAP_FAILED, "mmap");
			memset(p, 0x11, len);
			struct ibv_mr *mr = ibv_reg_mr(vt_b.local->pd, p, len, VT_ACCESS_ALL);
			vt_require(mr, "ibv_reg_mr: %s", strerror(errno));
			if (way == UNMAPPED)
				munmap(p, len);
			else if (way == REPLACED)
				vt_require(mmap(p, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p, "mmap");
			else
				vt_require(ftruncate(fd, 0) == 0, "ftruncate");
			struct vt_wr w = vt_wr_to(&vt_a, &vt_b, op, 5000);
			struct ibv_wc wc;
			w.raddr = (uintptr_t)p + 4000;
			w.rkey = mr->rkey;
			vt_require(vt_send(&vt_a, &w) == 0 && vt_cqes(&vt_a, 0, 1, 10000, &wc) == 1, "posting");
			vt_check(wc.status == IBV_WC_REM_OP_ERR, "memory that was %s: %s", names[way], vt_wc_name((int)wc.status));
			vt_check(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
			if (way != UNMAPPED)
				munmap(p, len);
			close(fd);
			vt_teardown();
		}
}

static sigjmp_buf back;
static void *volatile fault_at;
static volatile int seen;
static void on_fault(int signal, siginfo_t *info, void *context)
{
	(void)context;
	seen = signal;
	fault_at = info->si_addr;
	siglongjmp(back, 1);
}

/* The program's handlers, set before or after the device is opened, get what is theirs and nothing else. */
static void own_handlers(void)
{
	struct sigaction mine = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO }, old;
	ready(VT_RC);
	vt_require(!sigaction(SIGSEGV, NULL, &old), "sigaction");
	vt_check(old.sa_handler == SIG_DFL, "a handler that the program has not set is shown to it");
	vt_check(signal(SIGBUS, SIG_IGN) == SIG_DFL && signal(SIGBUS, SIG_DFL) == SIG_IGN, "signal(2) does not say what was before");
	vt_require(!sigaction(SIGSEGV, &mine, &old) && old.sa_handler == SIG_DFL, "sigaction");
	vt_require(!sigaction(SIGSEGV, NULL, &old) && old.sa_sigaction == on_fault && old.sa_flags & SA_SIGINFO, "what was set");
	uint8_t *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	for (int round = 0; round < 3; round++) {
		seen = 0;
		if (!sigsetjmp(back, 1))
			*(volatile uint8_t *)(page + 100) = 1;
		vt_check(seen == SIGSEGV && fault_at == page + 100, "the program's own fault: signal %d at %p", seen, fault_at);
		seen = 0;
		int status = request(IBV_WR_RDMA_WRITE, 100, PROT_NONE, &vt_a);
		protect(&vt_a, PROT_READ | PROT_WRITE);
		vt_check(status == IBV_WC_LOC_PROT_ERR && !seen, "the device's: %s, signal %d", vt_wc_name(status), seen);
		ready(VT_RC);
	}
	vt_require(!sigaction(SIGSEGV, &(struct sigaction){ .sa_handler = SIG_DFL }, &old) && old.sa_sigaction == on_fault, "back");
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0) {
		*(volatile uint8_t *)page = 1;
		_exit(0);
	}
	int status;
	vt_check(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV,
		"a child that faults without a handler ends with status 0x%x", status);
	pid = fork();
	if (pid == 0) {
		raise(SIGBUS);
		_exit(0);
	}
	vt_check(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS,
		"a child that is sent SIGBUS ends with status 0x%x", status);
	munmap(page, 4096);
	vt_teardown();
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = {
		{ "target_gone", target_gone }, { "local_gone", local_gone }, { "receive_gone", receive_gone },
		{ "datagram_gone", datagram_gone }, { "unmapped", unmapped }, { "own_handlers", own_handlers },
	};
	return vt_main(argc, argv, cases, VT_ARRAY(cases));
}
