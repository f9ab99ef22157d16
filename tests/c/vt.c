/* vt: cases, reporting, clocks and the device. See vt.h. */
#define _GNU_SOURCE
#include "vt.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

jmp_buf vt_abandon;
bool vt_two;
uint64_t vt_seed;

static char case_name[160];
static int case_failures;
static int total_failures;
static int total_cases;
static bool case_open;
static bool case_skipped;

void vt_begin(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(case_name, sizeof(case_name), fmt, ap);
	va_end(ap);
	case_failures = 0;
	case_skipped = false;
	case_open = true;
}

int vt_failures(void)
{
	return case_failures;
}

void vt_failed(const char *file, int line, const char *fmt, ...)
{
	char why[600];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	const char *base = strrchr(file, '/');
	printf("FAIL %s: %s (%s:%d)\n", case_name, why, base ? base + 1 : file, line);
	fflush(stdout);
	case_failures++;
}

void vt_note(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	printf("note %s: ", case_name);
	vprintf(fmt, ap);
	printf("\n");
	va_end(ap);
	fflush(stdout);
}

static _Noreturn void abandon(const char *word, const char *fmt, va_list ap)
{
	printf("%s %s: ", word, case_name);
	vprintf(fmt, ap);
	printf("\n");
	case_skipped = true;
	longjmp(vt_abandon, 1);
}

void vt_skip(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	abandon("skip", fmt, ap);
}

void vt_does_not_apply(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	abandon("note", fmt, ap);
}

bool vt_end(void)
{
	if (!case_open)
		return true;
	case_open = false;
	total_cases++;
	total_failures += case_failures != 0;
	if (!case_failures && !case_skipped)
		printf("ok %s\n", case_name);
	fflush(stdout);
	return case_failures == 0;
}

static int selected(int argc, char **argv, int first, const char *name)
{
	for (int i = first; i < argc; i++)
		if (!strcmp(argv[i], name))
			return 1;
	return first >= argc;
}

/* Apart from vt_main, whose locals a longjmp would endanger. */
static void run_case(const struct vt_case *c)
{
	vt_begin("%s", c->name);
	if (!setjmp(vt_abandon))
		c->run();
	vt_end();
}

/* A number; "random": one from the clock; NULL: 1, so that a run without a seed is the same each time. */
static uint64_t seed_of(const char *text)
{
	if (text && !strcmp(text, "random"))
		return vt_now_us() ^ ((uint64_t)getpid() << 40);
	return text ? strtoull(text, NULL, 0) : 1;
}

int vt_main(int argc, char **argv, const struct vt_case *cases, size_t n)
{
	return vt_main_roles(argc, argv, cases, n, NULL, 0);
}

int vt_main_roles(int argc, char **argv, const struct vt_case *cases, size_t n, const struct vt_role *roles, size_t nroles)
{
	int first = 1;
	vt_seed = seed_of(getenv("VT_SEED"));
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (; first < argc && !strncmp(argv[first], "--", 2); first++) {
		if (!strcmp(argv[first], "--two")) {
			vt_two = true;
		} else if (!strcmp(argv[first], "--seed") && first + 1 < argc) {
			vt_seed = seed_of(argv[++first]);
		} else if (!strcmp(argv[first], "--serve") && first + 1 < argc) {
			return vt_serve(atoi(argv[++first]));
		} else if (!strcmp(argv[first], "--role") && first + 2 < argc) {
			if (!strcmp(argv[first + 1], VT_PEER))
				return vt_peer_main(atoi(argv[first + 2]));
			for (size_t i = 0; i < nroles; i++)
				if (!strcmp(roles[i].name, argv[first + 1])) {
					vt_begin("%s (peer)", argv[first + 1]);
					return roles[i].run(atoi(argv[first + 2]));
				}
			return 2;
		} else {
			fprintf(stderr, "unknown option %s\n", argv[first]);
			return 2;
		}
	}
	for (int i = first; i < argc; i++) {
		size_t k = 0;
		while (k < n && strcmp(cases[k].name, argv[i]))
			k++;
		if (k == n) {
			fprintf(stderr, "no case is named %s\n", argv[i]);
			return 2;
		}
	}
	printf("seed %" PRIu64 "\n", vt_seed);
	for (size_t k = 0; k < n; k++) {
		if (selected(argc, argv, first, cases[k].name))
			run_case(&cases[k]);
	}
	vt_ends_close();
	printf("%d cases, %d failed\n", total_cases, total_failures);
	return total_failures ? 1 : 0;
}

uint64_t vt_random(void)
{
	/* splitmix64: good enough to choose sizes and offsets, and a printed seed replays it. */
	uint64_t z = (vt_seed += 0x9e3779b97f4a7c15ull);
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

uint64_t vt_now_us(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u;
}

/* What this thread has waited for a processor, in ns. */
static unsigned long long waited_ns(void)
{
	unsigned long long ran, waited = 0;
	FILE *f = fopen("/proc/thread-self/schedstat", "re");
	if (f && fscanf(f, "%llu %llu", &ran, &waited) != 2)
		waited = 0;
	if (f)
		fclose(f);
	return waited;
}

uint64_t vt_own_us(void)
{
	unsigned long long before, waited = waited_ns();
	uint64_t now;
	/* A wait between the two looks at clocks would be in one of them only. */
	do {
		before = waited;
		now = vt_now_us();
		waited = waited_ns();
	} while (waited != before);
	return now - waited / 1000;
}

void vt_sleep_ms(unsigned ms)
{
	struct timespec ts = { ms / 1000, (long)(ms % 1000) * 1000000L };
	while (nanosleep(&ts, &ts) && errno == EINTR)
		;
}

uint64_t vt_hash(const void *p, size_t n)
{
	const uint8_t *b = p;
	uint64_t h = 0xcbf29ce484222325ull;
	for (size_t i = 0; i < n; i++)
		h = (h ^ b[i]) * 0x100000001b3ull;
	return h;
}

const char *vt_wc_name(int status)
{
	static const char *const names[] = {
		"SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR",
		"MW_BIND_ERR", "BAD_RESP_ERR", "LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR",
		"RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR", "REM_INV_RD_REQ_ERR", "REM_ABORT_ERR",
		"INV_EECN_ERR", "INV_EEC_STATE_ERR", "FATAL_ERR", "RESP_TIMEOUT_ERR", "GENERAL_ERR",
	};
	if (status < 0)
		return "no completion";
	return (size_t)status < VT_ARRAY(names) ? names[status] : "?";
}

const char *vt_state_name(int state)
{
	static const char *const names[] = { "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR" };
	return state >= 0 && (size_t)state < VT_ARRAY(names) ? names[state] : "?";
}

const char *vt_event_name(int event)
{
	return event < 0 ? "no event" : ibv_event_type_str((enum ibv_event_type)event);
}

const char *vt_errno_name(int err)
{
	const char *name = err ? strerrorname_np(err) : "0";
	return name ? name : "?";
}

/* The entry to use: $VT_GID, which may be "last", the last that is not empty; else the loopback's IPv4-mapped GID, else any IPv4-mapped one, else index 0. */
static int choose_gid(struct vt_dev *dev)
{
	int best = -1;
	const char *given = getenv("VT_GID");
	if (given && strcmp(given, "last"))
		return atoi(given);
	for (int i = 0; i < dev->port.gid_tbl_len; i++) {
		struct ibv_gid_entry e;
		if (ibv_query_gid_ex(dev->ctx, dev->port_num, (uint32_t)i, &e, 0))
			continue;
		if (given) {
			best = i;
			continue;
		}
		static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };
		if (e.gid_type != IBV_GID_TYPE_ROCE_V2 || memcmp(e.gid.raw, mapped, 12))
			continue;
		if (e.gid.raw[12] == 127)
			return i;
		if (best < 0)
			best = i;
	}
	return best < 0 ? 0 : best;
}

bool vt_open(struct vt_dev *dev)
{
	memset(dev, 0, sizeof(*dev));
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);
	if (!list || n == 0) {
		printf("no RDMA device: %s\n", strerror(errno));
		if (list)
			ibv_free_device_list(list);
		return false;
	}
	dev->ctx = ibv_open_device(list[0]);
	int err = errno;
	ibv_free_device_list(list);
	if (!dev->ctx) {
		printf("ibv_open_device: %s\n", strerror(err));
		return false;
	}
	dev->port_num = 1;
	if (ibv_query_device(dev->ctx, &dev->attr) || ibv_query_port(dev->ctx, dev->port_num, &dev->port)) {
		printf("query of the device failed: %s\n", strerror(errno));
		return false;
	}
	dev->global = dev->port.link_layer == IBV_LINK_LAYER_ETHERNET || getenv("VT_GID");
	dev->gid_index = dev->global ? choose_gid(dev) : 0;
	if (ibv_query_gid(dev->ctx, dev->port_num, dev->gid_index, &dev->gid)) {
		printf("ibv_query_gid of index %d failed\n", dev->gid_index);
		return false;
	}
	fcntl(dev->ctx->async_fd, F_SETFL, fcntl(dev->ctx->async_fd, F_GETFL) | O_NONBLOCK);
	return true;
}

bool vt_enter_peers_network(void)
{
	const char *path = getenv("VT_PEER_NETNS");
	if (!path)
		return true;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd >= 0 && setns(fd, CLONE_NEWNET) == 0;
}

int vt_poll(struct ibv_cq *cq, struct ibv_wc *wc, int n, unsigned timeout_ms)
{
	uint64_t start = vt_now_us();
	int got = 0;
	for (unsigned spins = 0;; spins++) {
		int rc = ibv_poll_cq(cq, n - got, wc + got);
		if (rc < 0)
			return rc;
		got += rc;
		if (got >= n)
			return got;
		uint64_t waited = vt_now_us() - start;
		if (waited >= (uint64_t)timeout_ms * 1000u)
			return got;
		/* Two cores serve many tests: spin at first, then leave the core to the peer. */
		if (waited > 500)
			usleep(50);
		else if (spins % 16 == 15)
			sched_yield();
	}
}

int vt_event(struct ibv_context *ctx, struct ibv_async_event *ev, unsigned timeout_ms)
{
	struct pollfd p = { .fd = ctx->async_fd, .events = POLLIN };
	int rc;
	do
		rc = poll(&p, 1, (int)timeout_ms);
	while (rc < 0 && errno == EINTR);
	if (rc <= 0)
		return 0;
	return ibv_get_async_event(ctx, ev) == 0;
}

/* The nth builder behind wr_abort. */
static void late_builder(struct ibv_qp_ex *qpx, size_t nth, void *fn)
{
	memcpy(fn, (const char *)qpx + offsetof(struct ibv_qp_ex, wr_abort) + nth * sizeof(void *), sizeof(void *));
}

void vt_build_atomic_write(struct ibv_qp_ex *qpx, uint32_t rkey, uint64_t remote_addr, const void *value)
{
	void (*build)(struct ibv_qp_ex *, uint32_t, uint64_t, const void *);
	late_builder(qpx, 1, &build);
	build(qpx, rkey, remote_addr, value);
}

void vt_build_flush(struct ibv_qp_ex *qpx, uint32_t rkey, uint64_t remote_addr, size_t len, uint8_t type, uint8_t level)
{
	void (*build)(struct ibv_qp_ex *, uint32_t, uint64_t, size_t, uint8_t, uint8_t);
	late_builder(qpx, 2, &build);
	build(qpx, rkey, remote_addr, len, type, level);
}
