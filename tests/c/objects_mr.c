/* Memory objects: re-registration, iova, null region, device memory, parent and thread domains, fork_init, and the
 * verbs that a device without them refuses cleanly. */
#define _GNU_SOURCE
#include "vt.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static struct vt_side *B(void) { return vt_b.local; }

static void ready(void)
{
	struct vt_cfg a = vt_cfg_default(VT_RC), b = a;
	b.responder = 1;
	vt_pair(&a, &b);
}

static int remote(int opcode, uint64_t raddr, uint32_t rkey, uint32_t len)
{
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, opcode, len);
	struct ibv_wc wc;
	w.raddr = raddr;
	w.rkey = rkey;
	int rc = vt_send(&vt_a, &w);
	vt_check(rc == 0, "posting: %s", vt_errno_name(rc));
	return vt_cqes(&vt_a, 0, 1, 3000, &wc) == 1 ? (int)wc.status : -1;
}

#define want_status(got, want, what)                                                                                       \
	do {                                                                                                                   \
		int got_ = (got);                                                                                                  \
		vt_check(got_ == (want), "%s: expected %s, got %s", what, vt_wc_name(want), vt_wc_name(got_));                     \
	} while (0)

static void rereg(void)
{
	ready();
	struct ibv_pd *pd = B()->pd, *pd2 = B()->pd2;
	static uint8_t one[8192], two[16384];
	struct ibv_mr *mr = ibv_reg_mr(pd, one, sizeof(one), VT_ACCESS_ALL);
	vt_require(mr, "ibv_reg_mr");
	memset(one, 1, sizeof(one));
	memset(two, 2, sizeof(two));
	want_status(remote(IBV_WR_RDMA_WRITE, (uintptr_t)one, mr->rkey, 8), IBV_WC_SUCCESS, "before");
	uint32_t old_rkey = mr->rkey;
	int rc = ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, two, sizeof(two), 0);
	vt_require(rc == 0, "translation: %d", rc);
	vt_check(mr->addr == two && mr->length == sizeof(two), "struct ibv_mr is not updated");
	want_status(remote(IBV_WR_RDMA_WRITE, (uintptr_t)two + 8192, mr->rkey, 8), IBV_WC_SUCCESS, "new translation");
	vt_check(two[8192] == 0xaa && one[8] == 1, "the write went elsewhere");
	memset(one, 1, sizeof(one));
	want_status(remote(IBV_WR_RDMA_WRITE, (uintptr_t)one, mr->rkey, 8), IBV_WC_REM_ACCESS_ERR, "old translation");
	vt_check(one[0] == 1, "memory of the old translation was written");
	(void)old_rkey;

	ready(); /* a new PD pair: register anew */
	pd = B()->pd;
	pd2 = B()->pd2;
	mr = ibv_reg_mr(pd, one, sizeof(one), VT_ACCESS_ALL);
	vt_require(mr, "ibv_reg_mr");
	rc = ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	vt_require(rc == 0, "access: %d", rc);
	want_status(remote(IBV_WR_RDMA_READ, (uintptr_t)one, mr->rkey, 8), IBV_WC_SUCCESS, "read after the change of access");
	want_status(remote(IBV_WR_RDMA_WRITE, (uintptr_t)one, mr->rkey, 8), IBV_WC_REM_ACCESS_ERR, "write after the change of access");
	vt_check(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");

	ready();
	pd = B()->pd;
	pd2 = B()->pd2;
	mr = ibv_reg_mr(pd2, one, sizeof(one), VT_ACCESS_ALL);
	vt_require(mr, "ibv_reg_mr");
	rc = ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0);
	vt_require(rc == 0 && mr->pd == pd, "PD: %d", rc);
	want_status(remote(IBV_WR_RDMA_WRITE, (uintptr_t)one, mr->rkey, 8), IBV_WC_SUCCESS, "write after the change to this PD");
	rc = ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_ACCESS, pd2, two, 4096,
		VT_ACCESS_ALL);
	vt_require(rc == 0 && mr->pd == pd2 && mr->addr == two && mr->length == 4096, "all three: %d", rc);
	want_status(remote(IBV_WR_RDMA_WRITE, (uintptr_t)two, mr->rkey, 8), IBV_WC_REM_ACCESS_ERR,
		"write after the change to the other PD");
	rc = ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0);
	vt_check(rc != 0, "no change was asked for and rereg succeeded");
	rc = ibv_rereg_mr(mr, 1 << 10, NULL, NULL, 0, 0);
	vt_check(rc == IBV_REREG_MR_ERR_INPUT, "an unknown flag: %d, want IBV_REREG_MR_ERR_INPUT", rc);
	rc = ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, two, 0, 0);
	vt_check(rc == IBV_REREG_MR_ERR_INPUT, "length 0: %d, want IBV_REREG_MR_ERR_INPUT", rc);
	rc = ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE);
	vt_check(rc != 0, "remote write without local write by rereg is taken");
	vt_check(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
	vt_teardown();
}

static void iova(void)
{
	ready();
	static uint8_t mem[8192];
	const uint64_t at = 0x123400000000ull + 16;
	memset(mem, 0, sizeof(mem));
	struct ibv_mr *mr = ibv_reg_mr_iova(B()->pd, mem + 16, 4096, at, VT_ACCESS_ALL);
	vt_require(mr, "ibv_reg_mr_iova: %s", strerror(errno));
	want_status(remote(IBV_WR_RDMA_WRITE, at + 64, mr->rkey, 8), IBV_WC_SUCCESS, "write at the iova");
	vt_check(mem[16 + 64] == 0xaa && mem[16 + 63] == 0 && mem[16 + 72] == 0, "the write went elsewhere");
	/* Local requests go by the iova as well. */
	struct ibv_sge sge = { at + 64, 8, mr->lkey };
	struct ibv_recv_wr rr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_wc wc;
	vt_require(ibv_post_recv(B()->qp, &rr, &bad) == 0, "posting");
	vt_simple(&vt_a, VT_POKE, 0, 0x5151515151515151, 0);
	want_status(remote(IBV_WR_SEND, 0, 0, 8), IBV_WC_SUCCESS, "send");
	vt_check(vt_cqes(&vt_b, 1, 1, 2000, &wc) == 1 && wc.status == IBV_WC_SUCCESS && mem[16 + 64] == 0x51, "receive at an iova");
	want_status(remote(IBV_WR_RDMA_WRITE, (uintptr_t)mem + 16, mr->rkey, 8), IBV_WC_REM_ACCESS_ERR, "write at the address instead");
	vt_check(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");

	ready();
	/* Zero-based is iova 0. */
	volatile unsigned zero_based = VT_ACCESS_ALL | IBV_ACCESS_ZERO_BASED;
	mr = ibv_reg_mr(B()->pd, mem, 4096, zero_based);
	vt_require(mr, "IBV_ACCESS_ZERO_BASED: %s", strerror(errno));
	want_status(remote(IBV_WR_RDMA_WRITE, 32, mr->rkey, 8), IBV_WC_SUCCESS, "write into a zero-based region");
	vt_check(mem[32] == 0x51 || mem[32] == 0xaa, "a zero-based write went elsewhere");
	vt_check(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
	vt_teardown();
}

static void null_mr(void)
{
	ready();
	struct vt_side *a = vt_a.local;
	struct ibv_mr *null = ibv_alloc_null_mr(a->pd);
	vt_require(null, "ibv_alloc_null_mr: %s", strerror(errno));
	/* A gather of zeros between two pieces, and a scatter that throws the middle away. */
	struct ibv_sge sge[3] = { { vt_a.info.addr, 8, vt_a.info.lkey }, { 0, 16, null->lkey }, { vt_a.info.addr, 8, vt_a.info.lkey } };
	struct ibv_send_wr w = { .sg_list = sge, .num_sge = 3, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_wc wc;
	w.wr.rdma.remote_addr = vt_b.info.addr;
	w.wr.rdma.rkey = vt_b.info.rkey;
	vt_require(ibv_post_send(a->qp, &w, &bad) == 0 && vt_poll(a->scq, &wc, 1, 2000) == 1, "posting");
	want_status((int)wc.status, IBV_WC_SUCCESS, "write with a null element");
	vt_check(vt_peek(&vt_b, 0) == 0xaaaaaaaaaaaaaaaaull && vt_peek(&vt_b, 8) == 0 && vt_peek(&vt_b, 16) == 0 &&
			 vt_peek(&vt_b, 24) == 0xaaaaaaaaaaaaaaaaull, "a null element reads as zeros");
	for (uint64_t i = 0; i < 4; i++)
		vt_simple(&vt_b, VT_POKE, (int64_t)(i * 8), (int64_t)(0x100 + i), 0);
	sge[2].addr += 64;
	w.opcode = IBV_WR_RDMA_READ;
	vt_require(ibv_post_send(a->qp, &w, &bad) == 0 && vt_poll(a->scq, &wc, 1, 2000) == 1, "posting");
	want_status((int)wc.status, IBV_WC_SUCCESS, "read with a null element");
	vt_check(vt_peek(&vt_a, 0) == 0x100 && vt_peek(&vt_a, 64) == 0x103, "a null element swallows its share");
	vt_check(ibv_dereg_mr(null) == 0, "ibv_dereg_mr");
	vt_teardown();
}

static void device_memory(void)
{
	ready();
	struct ibv_context *ctx = B()->dev.ctx;
	struct ibv_alloc_dm_attr da = { .length = 8192 };
	struct ibv_dm *dm = ibv_alloc_dm(ctx, &da);
	vt_require(dm, "ibv_alloc_dm: %s", strerror(errno));
	uint8_t in[64], out[64];
	memset(in, 0x3c, sizeof(in));
	vt_check(ibv_memcpy_to_dm(dm, 128, in, 64) == 0, "ibv_memcpy_to_dm");
	vt_check(ibv_memcpy_from_dm(out, dm, 128, 64) == 0 && !memcmp(in, out, 64), "ibv_memcpy_from_dm");
	vt_check(ibv_memcpy_to_dm(dm, 8192 - 32, in, 64) != 0, "a copy beyond the end is taken");
	vt_check(ibv_memcpy_from_dm(out, dm, UINT64_MAX - 16, 64) != 0, "a copy that wraps is taken");
	struct ibv_mr *mr = ibv_reg_dm_mr(B()->pd, dm, 4096, 4096, VT_ACCESS_ALL | IBV_ACCESS_ZERO_BASED);
	vt_require(mr, "ibv_reg_dm_mr: %s", strerror(errno));
	want_status(remote(IBV_WR_RDMA_WRITE, 256, mr->rkey, 64), IBV_WC_SUCCESS, "write into device memory");
	vt_check(ibv_memcpy_from_dm(out, dm, 4096 + 256, 64) == 0 && out[0] == 0xaa && out[63] == 0xaa, "the write is not there");
	want_status(remote(IBV_WR_RDMA_READ, 256, mr->rkey, 64), IBV_WC_SUCCESS, "read of device memory");
	/* A local request from device memory: the receive lands there. */
	struct ibv_sge sge = { 512, 64, mr->lkey };
	struct ibv_recv_wr rr = { .sg_list = &sge, .num_sge = 1 }, *rbad;
	struct ibv_wc wc;
	vt_check(ibv_post_recv(B()->qp, &rr, &rbad) == 0, "posting");
	want_status(remote(IBV_WR_SEND, 0, 0, 64), IBV_WC_SUCCESS, "send into device memory");
	vt_check(vt_cqes(&vt_b, 1, 1, 2000, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "the receive");
	vt_check(ibv_memcpy_from_dm(out, dm, 4096 + 512, 8) == 0 && out[0] == 0xaa, "the received data are not there");
	int rc = ibv_free_dm(dm);
	vt_require(rc == EBUSY, "device memory with a region: expected EBUSY, got %s", vt_errno_name(rc));
	want_status(remote(IBV_WR_RDMA_WRITE, 4096 - 32, mr->rkey, 64), IBV_WC_REM_ACCESS_ERR, "write beyond the region");
	vt_check(!ibv_reg_dm_mr(B()->pd, dm, 8000, 4096, VT_ACCESS_ALL | IBV_ACCESS_ZERO_BASED) && errno == EINVAL,
		"a region beyond the memory");
	vt_check(!ibv_reg_dm_mr(B()->pd, dm, 0, 4096, VT_ACCESS_ALL) && errno == EINVAL, "a region that is not zero-based");
	vt_check(ibv_dereg_mr(mr) == 0 && ibv_free_dm(dm) == 0, "freeing in the right order");
	struct ibv_device_attr_ex x = { 0 };
	vt_require(ibv_query_device_ex(ctx, NULL, &x) == 0, "ibv_query_device_ex");
	da.length = (size_t)x.max_dm_size + 1;
	errno = 0;
	vt_check(!ibv_alloc_dm(ctx, &da) && (errno == ENOMEM || errno == EINVAL), "more than max_dm_size: %s", vt_errno_name(errno));
	vt_teardown();
}

/* Memory that the library gives out: many writes to each, so that a peer may come to put there by itself. */
static void given_memory(void)
{
	enum { N = 100, LEN = 64 };
	ready();
	struct ibv_alloc_dm_attr da = { .length = N * LEN };
	struct ibv_dm *dm = ibv_alloc_dm(B()->dev.ctx, &da);
	vt_require(dm, "ibv_alloc_dm: %s", strerror(errno));
	struct ibv_mr *mr = ibv_reg_dm_mr(B()->pd, dm, 0, N * LEN, VT_ACCESS_ALL | IBV_ACCESS_ZERO_BASED);
	vt_require(mr, "ibv_reg_dm_mr: %s", strerror(errno));
	for (uint64_t i = 0; i < N; i++)
		want_status(remote(IBV_WR_RDMA_WRITE, i * LEN, mr->rkey, LEN), IBV_WC_SUCCESS, "write into device memory");
	uint8_t out[LEN];
	vt_check(ibv_memcpy_from_dm(out, dm, (N - 1) * LEN, LEN) == 0 && out[0] == 0xaa && out[LEN - 1] == 0xaa, "the last write");
	vt_check(ibv_dereg_mr(mr) == 0 && ibv_free_dm(dm) == 0, "freeing device memory");
	/* Later than the headers of the tests. */
	void *(*alloc)(struct ibv_pd *, size_t, void **);
	void (*release)(void *);
	*(void **)&alloc = dlsym(RTLD_DEFAULT, "ibv_alloc_buf");
	*(void **)&release = dlsym(RTLD_DEFAULT, "ibv_free_buf");
	vt_require(alloc && release, "no ibv_alloc_buf");
	void *buf;
	uint8_t *p = alloc(B()->pd, N * LEN, &buf);
	vt_require(p && p[0] == 0, "ibv_alloc_buf: %s", strerror(errno));
	vt_require(mr = ibv_reg_mr(B()->pd, p, N * LEN, VT_ACCESS_ALL), "ibv_reg_mr: %s", strerror(errno));
	for (uint64_t i = 0; i < N; i++)
		want_status(remote(IBV_WR_RDMA_WRITE, (uintptr_t)p + i * LEN, mr->rkey, LEN), IBV_WC_SUCCESS, "write into a buffer");
	vt_check(p[0] == 0xaa && p[N * LEN - 1] == 0xaa, "the writes are not there");
	vt_check(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
	release(buf);
	vt_teardown();
}

/* What a peer has put to by itself stays device memory in every other way, and is taken back with its key. */
static void device_memory_in_use(void)
{
	enum { N = 10, LEN = 64 };
	ready();
	struct ibv_alloc_dm_attr da = { .length = 8192 };
	struct ibv_dm *dm = ibv_alloc_dm(B()->dev.ctx, &da);
	vt_require(dm, "ibv_alloc_dm: %s", strerror(errno));
	struct ibv_mr *mr = ibv_reg_dm_mr(B()->pd, dm, 4096, N * LEN, VT_ACCESS_ALL | IBV_ACCESS_ZERO_BASED);
	vt_require(mr, "ibv_reg_dm_mr: %s", strerror(errno));
	for (uint64_t i = 0; i < N; i++)
		want_status(remote(IBV_WR_RDMA_WRITE, i * LEN, mr->rkey, LEN), IBV_WC_SUCCESS, "write into device memory");
	uint64_t word = 41, now;
	vt_check(ibv_memcpy_to_dm(dm, 4096 + LEN, &word, sizeof(word)) == 0, "ibv_memcpy_to_dm");
	want_status(remote(IBV_WR_RDMA_READ, LEN, mr->rkey, 8), IBV_WC_SUCCESS, "read of device memory");
	vt_check(vt_peek(&vt_a, 0) == 41, "what was read is %" PRIu64, vt_peek(&vt_a, 0));
	struct vt_wr add = vt_wr_to(&vt_a, &vt_b, IBV_WR_ATOMIC_FETCH_AND_ADD, 8);
	add.raddr = LEN;
	add.rkey = mr->rkey;
	add.compare_add = 1;
	struct ibv_wc wc;
	vt_require(!vt_send(&vt_a, &add) && vt_cqes(&vt_a, 0, 1, 3000, &wc) == 1, "posting an atomic");
	want_status((int)wc.status, IBV_WC_SUCCESS, "an atomic on device memory");
	vt_check(vt_peek(&vt_a, 0) == 41 && ibv_memcpy_from_dm(&now, dm, 4096 + LEN, 8) == 0 && now == 42,
		"an atomic on 41 leaves %" PRIu64, now);
	vt_require(!vt_recv(&vt_a, 1, vt_a.info.addr + VT_RECV_AT, LEN, vt_a.info.lkey), "posting a receive");
	struct ibv_sge sge = { LEN, LEN, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	vt_require(!ibv_post_send(B()->qp, &wr, &bad) && vt_cqes(&vt_b, 0, 1, 3000, &wc) == 1, "posting a send");
	want_status((int)wc.status, IBV_WC_SUCCESS, "a send out of device memory");
	vt_check(vt_cqes(&vt_a, 1, 1, 3000, &wc) == 1 && vt_peek(&vt_a, VT_RECV_AT) == 42, "what the send has brought");
	/* Who could put there without asking cannot any more. */
	uint32_t rkey = mr->rkey;
	vt_check(ibv_free_dm(dm) == EBUSY && ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
	want_status(remote(IBV_WR_RDMA_WRITE, LEN, rkey, LEN), IBV_WC_REM_ACCESS_ERR, "a write by a key that has gone");
	vt_check(ibv_memcpy_from_dm(&now, dm, 4096 + LEN, 8) == 0 && now == 42, "the write is there");
	vt_check(ibv_free_dm(dm) == 0, "freeing device memory");
	vt_teardown();
}

static void domains(void)
{
	ready();
	struct ibv_context *ctx = B()->dev.ctx;
	struct ibv_td_init_attr ta = { 0 };
	struct ibv_td *td = ibv_alloc_td(ctx, &ta);
	vt_require(td, "ibv_alloc_td: %s", strerror(errno));
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_parent_domain_init_attr pa = { .pd = pd, .td = td };
	struct ibv_pd *parent = ibv_alloc_parent_domain(ctx, &pa);
	vt_require(pd && parent, "ibv_alloc_parent_domain: %s", strerror(errno));
	static uint8_t mem[4096];
	struct ibv_mr *mr = ibv_reg_mr(parent, mem, sizeof(mem), VT_ACCESS_ALL);
	struct ibv_qp_init_attr ia = { .send_cq = B()->scq, .recv_cq = B()->rcq, .cap = { 8, 8, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp *qp = ibv_create_qp(parent, &ia);
	vt_require(mr && qp, "objects of a parent domain: %s", strerror(errno));
	int rc = ibv_dealloc_pd(pd);
	vt_require(rc == EBUSY, "a PD under a parent domain: expected EBUSY, got %s", vt_errno_name(rc));
	rc = ibv_dealloc_td(td);
	vt_require(rc == EBUSY, "a TD under a parent domain: expected EBUSY, got %s", vt_errno_name(rc));
	rc = ibv_dealloc_pd(parent);
	vt_require(rc == EBUSY, "a parent domain with a QP: expected EBUSY, got %s", vt_errno_name(rc));
	/* Objects of the parent and of its PD work together: they are one protection domain. */
	struct ibv_mr *plain = ibv_reg_mr(pd, mem, sizeof(mem), VT_ACCESS_ALL);
	vt_require(plain, "ibv_reg_mr");
	ibv_destroy_qp(B()->qp);
	B()->qp = qp;
	B()->self.qpn = vt_b.info.qpn = qp->qp_num;
	vt_require(!vt_modify(&vt_a, IBV_QPS_RESET) && !vt_connect(&vt_b, &vt_a, IBV_QPS_RTS) && !vt_connect(&vt_a, &vt_b,
		IBV_QPS_RTS), "connecting");
	want_status(remote(IBV_WR_RDMA_WRITE, (uintptr_t)mem, plain->rkey, 8), IBV_WC_SUCCESS, "a region of the PD by a QP of the parent");
	want_status(remote(IBV_WR_RDMA_WRITE, (uintptr_t)mem, mr->rkey, 8), IBV_WC_SUCCESS, "a region of the parent by a QP of the parent");
	ibv_destroy_qp(qp);
	B()->qp = NULL;
	vt_check(!ibv_dereg_mr(mr) && !ibv_dereg_mr(plain) && !ibv_dealloc_pd(parent) && !ibv_dealloc_td(td) && !ibv_dealloc_pd(pd),
		 "freeing in the right order");
	vt_teardown();
}

static void forks(void)
{
	/* First of all cases: ibv_fork_init comes before any registration. */
	vt_check(ibv_fork_init() == 0, "ibv_fork_init");
	vt_check(ibv_is_fork_initialized() != IBV_FORK_DISABLED, "ibv_is_fork_initialized says disabled");
	ready();
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0)
		_exit(0);
	int status;
	vt_require(waitpid(pid, &status, 0) == pid && status == 0, "the child");
	vt_check(system("true") == 0, "system()");
	want_status(remote(IBV_WR_RDMA_WRITE, vt_b.info.addr, vt_b.info.rkey, 4096), IBV_WC_SUCCESS, "write after fork");
	vt_check(vt_peek(&vt_b, 4088) == 0xaaaaaaaaaaaaaaaaull, "the write after fork is not there");
	vt_teardown();
}

/* What the device does not have: EOPNOTSUPP, never a silent success. */
static void unsupported(void)
{
	ready();
	struct ibv_context *ctx = B()->dev.ctx;
	struct ibv_flow_attr fa = { .size = sizeof(fa), .port = 1 };
	errno = 0;
	vt_check(!ibv_create_flow(B()->qp, &fa) && errno == EOPNOTSUPP, "flow steering: %s", vt_errno_name(errno));
	errno = 0;
	struct ibv_wq_init_attr wa = { .wq_type = IBV_WQT_RQ, .max_wr = 1, .max_sge = 1, .pd = B()->pd, .cq = B()->rcq };
	vt_check(!ibv_create_wq(ctx, &wa) && errno == EOPNOTSUPP, "work queues: %s", vt_errno_name(errno));
	errno = 0;
	struct ibv_counters_init_attr ca = { 0 };
	vt_check(!ibv_create_counters(ctx, &ca) && errno == EOPNOTSUPP, "counters: %s", vt_errno_name(errno));
	errno = 0;
	vt_check(!ibv_reg_dmabuf_mr(B()->pd, 0, 4096, 0, 0, IBV_ACCESS_LOCAL_WRITE) && errno == EOPNOTSUPP, "dmabuf: %s",
		vt_errno_name(errno));
	struct ibv_qp_rate_limit_attr ra = { .rate_limit = 1000 };
	int rc = ibv_modify_qp_rate_limit(B()->qp, &ra);
	vt_check(rc == EOPNOTSUPP, "rate limit: %s", vt_errno_name(rc));
	errno = 0;
	struct ibv_context *other = ibv_import_device(dup(ctx->cmd_fd));
	if (other) {
		struct ibv_pd *pd = ibv_import_pd(other, B()->pd->handle);
		vt_check(pd != NULL, "ibv_import_pd of an imported device: %s", vt_errno_name(errno));
		if (pd) {
			ibv_unimport_pd(pd);
		}
		ibv_close_device(other);
	} else {
		vt_check(errno == EOPNOTSUPP, "ibv_import_device: %s", vt_errno_name(errno));
		errno = 0;
		vt_check(!ibv_import_pd(ctx, 1) && errno == EOPNOTSUPP, "ibv_import_pd: %s", vt_errno_name(errno));
		errno = 0;
		vt_check(!ibv_import_mr(B()->pd, 1) && errno == EOPNOTSUPP, "ibv_import_mr: %s", vt_errno_name(errno));
	}
	struct ibv_ece ece = { 0 };
	rc = ibv_query_ece(B()->qp, &ece);
	vt_check(rc == EOPNOTSUPP || (rc == 0 && ece.options == 0), "ibv_query_ece: %s", vt_errno_name(rc));
	struct ibv_sge sge = { vt_b.info.addr, 8, vt_b.info.lkey };
	rc = ibv_advise_mr(B()->pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1);
	vt_check(rc == EOPNOTSUPP || rc == 0, "ibv_advise_mr: %s", vt_errno_name(rc));
	struct ibv_srq_init_attr_ex tm = { .attr = { 4, 1, 0 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM,
					   .srq_type = IBV_SRQT_TM, .pd = B()->pd, .cq = B()->rcq, .tm_cap = { 4, 4 } };
	errno = 0;
	vt_check(!ibv_create_srq_ex(ctx, &tm) && errno == EOPNOTSUPP, "tag matching SRQ: %s", vt_errno_name(errno));
	vt_teardown();
}

/* Kinds of memory that programs register: files, shared, huge lengths, stack, a region that grows over several maps. */
static void kinds(void)
{
	ready();
	size_t len = 1 << 20;
	int fd = memfd_create("vt", MFD_CLOEXEC);
	vt_require(fd >= 0 && ftruncate(fd, (off_t)len) == 0, "memfd");
	uint8_t *shared = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	uint8_t *anon_shared = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint8_t *file_private = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	uint8_t *heap = malloc(len), stack[4096];
	vt_require(shared != MAP_FAILED && anon_shared != MAP_FAILED && file_private != MAP_FAILED && heap, "memory");
	uint8_t *twin = mmap(NULL, 2 * len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	vt_require(twin != MAP_FAILED && mmap(twin + len, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == twin + len,
		"two maps in a row");
	struct { const char *name; uint8_t *at; size_t n, off; } kind[] = {
		{ "shared memfd", shared, len, 4000 }, { "anonymous shared", anon_shared, len, 5000 }, { "private file", file_private,
			len, 6000 },
		{ "heap", heap, len, 333 }, { "stack", stack, sizeof(stack), 64 }, { "across two maps", twin, 2 * len, len - 100 },
	};
	for (size_t i = 0; i < VT_ARRAY(kind); i++) {
		struct ibv_mr *mr = ibv_reg_mr(B()->pd, kind[i].at, kind[i].n, VT_ACCESS_ALL);
		vt_require(mr, "%s: %s", kind[i].name, strerror(errno));
		memset(kind[i].at + kind[i].off - 1, 0x11, 202);
		want_status(remote(IBV_WR_RDMA_WRITE, (uintptr_t)kind[i].at + kind[i].off, mr->rkey, 200), IBV_WC_SUCCESS, kind[i].name);
		vt_check(kind[i].at[kind[i].off - 1] == 0x11 && kind[i].at[kind[i].off] == 0xaa && kind[i].at[kind[i].off + 199] == 0xaa &&
				 kind[i].at[kind[i].off + 200] == 0x11, "%s: the data are not where they belong", kind[i].name);
		kind[i].at[kind[i].off] = 0x42;
		want_status(remote(IBV_WR_RDMA_READ, (uintptr_t)kind[i].at + kind[i].off, mr->rkey, 8), IBV_WC_SUCCESS, kind[i].name);
		vt_check((vt_peek(&vt_a, 0) & 0xff) == 0x42, "%s: the read gave old data", kind[i].name);
		vt_simple(&vt_a, VT_FILL, 0, 4096, 0xaa);
		vt_check(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
	}
	munmap(shared, len);
	munmap(anon_shared, len);
	munmap(file_private, len);
	munmap(twin, 2 * len);
	free(heap);
	close(fd);
	vt_teardown();
}

static void *pages(int prot, int flags, int fd)
{
	void *p = mmap(NULL, 3 * 4096, prot, flags, fd, 0);
	vt_require(p != MAP_FAILED, "mmap: %s", strerror(errno));
	return p;
}

/* Memory is registered for what it can be pinned for (get_user_pages, ib_access_writable of the kernel). */
static void rights_of_the_mapping(void)
{
	ready();
	struct ibv_pd *pd = B()->pd;
	int fd = memfd_create("vt", MFD_CLOEXEC);
	vt_require(fd >= 0 && ftruncate(fd, 3 * 4096) == 0, "memfd");
	const int anon = MAP_PRIVATE | MAP_ANONYMOUS;
	uint8_t *middle = pages(PROT_READ | PROT_WRITE, anon | MAP_NORESERVE, -1), *heap = malloc(1 << 20);
	vt_require(heap && !mprotect(middle + 4096, 4096, PROT_READ), "mprotect");
	uint8_t *large = (uint8_t *)(((uintptr_t)heap + 4095) & ~4095ul);
	memset(large, 1, 3 * 4096);
	vt_require(!mprotect(large, 3 * 4096, PROT_READ), "mprotect");
	struct { const char *name; uint8_t *at; } kind[] = {
		{ "anonymous", pages(PROT_READ, anon, -1) }, { "shared with a file", pages(PROT_READ, MAP_SHARED, fd) },
		{ "large and protected", large }, { "protected in the middle", middle }, { "a constant's", (uint8_t *)(uintptr_t)"constant" },
	};
	static const int writing[] = { IBV_ACCESS_LOCAL_WRITE, VT_ACCESS_ALL, IBV_ACCESS_MW_BIND,
				       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC };
	for (size_t k = 0; k < VT_ARRAY(kind); k++) {
		size_t len = k + 1 < VT_ARRAY(kind) ? 3 * 4096 : 8;
		for (size_t r = 0; r < VT_ARRAY(writing); r++) {
			int rights = writing[r];
			struct ibv_mr *mr = ibv_reg_mr(pd, kind[k].at, len, rights);
			vt_check(!mr && errno == EFAULT, "read-only memory, %s, for 0x%x: %s", kind[k].name, (unsigned)rights,
				mr ? "registered" : vt_errno_name(errno));
		}
		struct ibv_mr *mr = ibv_reg_mr(pd, kind[k].at, len, IBV_ACCESS_REMOTE_READ);
		vt_require(mr, "read-only memory, %s, to be read: %s", kind[k].name, strerror(errno));
		want_status(remote(IBV_WR_RDMA_READ, (uintptr_t)kind[k].at, mr->rkey, 8), IBV_WC_SUCCESS, kind[k].name);
		/* What is registered to be read cannot become what is written either; the region stays as it is. */
		int rc = ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, VT_ACCESS_ALL);
		vt_check(rc == IBV_REREG_MR_ERR_INPUT && errno == EFAULT, "rereg of read-only memory, %s: %d, %s", kind[k].name, rc,
			vt_errno_name(errno));
		want_status(remote(IBV_WR_RDMA_READ, (uintptr_t)kind[k].at, mr->rkey, 8), IBV_WC_SUCCESS, kind[k].name);
		vt_check(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
	}
	struct ibv_mr *mr = ibv_reg_mr(pd, B()->buf, 4096, VT_ACCESS_ALL);
	vt_require(mr, "ibv_reg_mr");
	int rc = ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, kind[0].at, 4096, 0);
	vt_check(rc == IBV_REREG_MR_ERR_INPUT && errno == EFAULT, "rereg onto read-only memory: %d, %s", rc, vt_errno_name(errno));
	vt_check(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
	/* Sparse memory stays so. */
	size_t huge = 1ul << 40;
	uint8_t *sparse = mmap(NULL, huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	vt_require(sparse != MAP_FAILED, "mmap: %s", strerror(errno));
	mr = ibv_reg_mr(pd, sparse, huge, VT_ACCESS_ALL);
	vt_check(mr && ibv_dereg_mr(mr) == 0, "sparse memory: %s", vt_errno_name(errno));
	munmap(sparse, huge);
	munmap(kind[0].at, 3 * 4096);
	munmap(kind[1].at, 3 * 4096);
	munmap(middle, 3 * 4096);
	vt_check(!mprotect(large, 3 * 4096, PROT_READ | PROT_WRITE), "mprotect");
	free(heap);
	close(fd);
	vt_teardown();
}

/* Keys cannot be guessed from those of another process, or from one another. */
static void keys_by_chance(void)
{
	enum { CHILDREN = 4 };
	uint32_t first[CHILDREN], second[CHILDREN];
	int same = 0, in_a_row = 0;
	fflush(stdout);
	for (int i = 0; i < CHILDREN; i++) {
		int fds[2];
		vt_require(pipe(fds) == 0, "pipe");
		pid_t pid = fork();
		if (pid == 0) {
			struct vt_dev dev;
			static uint8_t mem[4096];
			if (!vt_open(&dev))
				_exit(1);
			struct ibv_pd *pd = ibv_alloc_pd(dev.ctx);
			struct ibv_mr *a = pd ? ibv_reg_mr(pd, mem, sizeof(mem), VT_ACCESS_ALL) : NULL;
			struct ibv_mr *b = a ? ibv_reg_mr(pd, mem, sizeof(mem), VT_ACCESS_ALL) : NULL;
			uint32_t keys[2] = { b ? a->rkey : 0, b ? b->rkey : 0 };
			_exit(write(fds[1], keys, sizeof(keys)) != sizeof(keys) || !b);
		}
		uint32_t keys[2] = { 0, 0 };
		int status;
		close(fds[1]);
		vt_require(read(fds[0], keys, sizeof(keys)) == sizeof(keys) && waitpid(pid, &status, 0) == pid && status == 0, "a child");
		close(fds[0]);
		first[i] = keys[0];
		second[i] = keys[1];
		in_a_row += second[i] >> 8 == (first[i] >> 8) + 1;
		for (int j = 0; j < i; j++)
			same += first[j] >> 8 == first[i] >> 8;
	}
	vt_check(same == 0, "processes begin with the same key: 0x%x 0x%x 0x%x 0x%x", first[0], first[1], first[2], first[3]);
	vt_check(in_a_row < CHILDREN, "keys are counted up: 0x%x 0x%x", first[0], second[0]);
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = {
		{ "forks", forks }, { "rereg", rereg }, { "iova", iova }, { "null_mr", null_mr }, { "device_memory", device_memory },
		{ "domains", domains }, { "unsupported", unsupported }, { "kinds", kinds },
		{ "given_memory", given_memory }, { "device_memory_in_use", device_memory_in_use },
		{ "rights_of_the_mapping", rights_of_the_mapping }, { "keys_by_chance", keys_by_chance },
	};
	return vt_main(argc, argv, cases, VT_ARRAY(cases));
}
