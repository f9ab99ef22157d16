/* Requesters that sleep on a completion channel while the owner of the memory carries out what they have asked for (DESIGN
 * decision 4d): atomics on memory that no peer can map, and, where the owner copies, Reads and Writes. They arm the CQ first and
 * post from what they then poll, so that most requests are posted between the arm and the sleep. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#define PEERS 3
#define STREAMS 3 /* requests that a peer has outstanding */
#define SIZE (1u << 20)
#define AT_A_TIME 100000u /* bytes of a long Read or Write: two turns through the owner's buffer */
#define OPTS(n) &(struct vt_duo_opts){ .type = VT_RC, .nqp = n, .depth = 32, .size = SIZE }
#define STEPS 400 /* of each stream */
#define LIMIT_MS 10000

enum { ATOMICS, COPIES, APART };

static struct vt_duo d;
static struct {
	uint64_t addr;
	uint32_t rkey, which;
} job;

/* One loop of requests. Each completion posts the next. */
static struct stream {
	uint64_t guess;
	uint32_t steps;
	bool swaps;
} streams[STREAMS];
static atomic_uint ended;
static atomic_bool failed;

static uint64_t word_of(unsigned s)
{
	return 4096 * (1 + (uint64_t)s % 2);
}

static bool post(unsigned s)
{
	struct stream *st = &streams[s];
	/* Streams of copies are far apart in both memories. */
	uint32_t n = job.which != COPIES ? 8 : s ? AT_A_TIME : 64;
	uint64_t local = (uint64_t)s * (SIZE / STREAMS & ~4095u);
	struct ibv_sge sge = vt_duo_sge(&d, local, n);
	struct ibv_send_wr w = { .wr_id = s, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad;
	if (job.which == COPIES) {
		w.opcode = st->steps % 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
		w.wr.rdma.remote_addr = job.addr + local;
		w.wr.rdma.rkey = job.rkey;
	} else {
		w.opcode = st->swaps ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD;
		w.wr.atomic.remote_addr = job.addr + word_of(s);
		w.wr.atomic.rkey = job.rkey;
		w.wr.atomic.compare_add = st->swaps ? st->guess : 1;
		w.wr.atomic.swap = st->guess + 1;
	}
	return ibv_post_send(d.qp[0], &w, &bad) == 0;
}

/* The request of a stream is over; whether it took the stream a step on. */
static void answered(unsigned s)
{
	struct stream *st = &streams[s];
	bool won = true;
	if (job.which != COPIES && st->swaps) {
		uint64_t old;
		memcpy(&old, d.buf + (uint64_t)s * (SIZE / STREAMS & ~4095u), 8);
		won = old == st->guess;
		st->guess = won ? old + 1 : old;
	}
	st->steps += won;
}

static int ask_pipe[2]; /* to the thread that posts */

/* Takes in what the CQ holds; the next requests are posted here, or by the other thread. */
static int take(void)
{
	struct ibv_wc wc[4];
	int got = 0;
	for (int n; (n = ibv_poll_cq(d.cq, 4, wc)) > 0; got += n)
		for (int i = 0; i < n; i++) {
			unsigned s = (unsigned)wc[i].wr_id;
			if (wc[i].status != IBV_WC_SUCCESS) {
				printf("FAIL peer: %s\n", vt_wc_name(wc[i].status));
				return -1;
			}
			answered(s);
			if (streams[s].steps >= STEPS)
				atomic_fetch_add(&ended, 1);
			else if (job.which == APART ? write(ask_pipe[1], &s, sizeof(s)) != sizeof(s) : !post(s))
				return -1;
		}
	return got;
}

/* Posts what the sleeper has asked for, at any time after that armed. */
static void *poster(void *arg)
{
	unsigned s;
	(void)arg;
	while (read(ask_pipe[0], &s, sizeof(s)) == sizeof(s)) {
		for (uint64_t i = vt_random() % 4; i; i--)
			sched_yield();
		if (!post(s))
			atomic_store(&failed, true);
	}
	return NULL;
}

static bool sleep_until_all_ended(void)
{
	while (atomic_load(&ended) < STREAMS && !atomic_load(&failed)) {
		struct ibv_cq *cq;
		void *context;
		struct pollfd f = { .fd = d.channel->fd, .events = POLLIN };
		if (ibv_req_notify_cq(d.cq, 0) || take() < 0)
			return false;
		if (atomic_load(&ended) == STREAMS)
			break;
		if (poll(&f, 1, LIMIT_MS) != 1) {
			int late = ibv_poll_cq(d.cq, 1, &(struct ibv_wc){ 0 });
			printf("FAIL peer: no event in %d ms; a poll finds %d completions\n", LIMIT_MS, late);
			return false;
		}
		if (ibv_get_cq_event(d.channel, &cq, &context))
			return false;
		ibv_ack_cq_events(cq, 1);
	}
	return !atomic_load(&failed);
}

static int requester(int fd)
{
	pthread_t thread;
	char c;
	if (!vt_duo_open(&d, OPTS(1)) || !vt_duo_meet(&d, fd) || !vt_get(fd, &job, sizeof(job), 20000))
		return 1;
	if (job.which == APART && (pipe(ask_pipe) || pthread_create(&thread, NULL, poster, NULL)))
		return 1;
	for (unsigned s = 0; s < STREAMS; s++) {
		streams[s].swaps = s < 2;
		if (!post(s))
			return 1;
	}
	uint64_t begin = vt_now_us();
	if (!sleep_until_all_ended())
		return 2;
	uint64_t us = vt_now_us() - begin;
	if (job.which == APART) {
		close(ask_pipe[1]);
		pthread_join(thread, NULL);
		close(ask_pipe[0]);
	}
	return vt_put(fd, &us, sizeof(us)) && vt_get(fd, &c, 1, 60000) && vt_duo_close(&d) ? 0 : 3;
}

static uint8_t *memory;
static atomic_bool stop;
static uint64_t own;

/* The owner's program changes one of the words too, and does not poll: its progress thread serves. */
static void *owner(void *arg)
{
	_Atomic uint64_t *word = (_Atomic uint64_t *)(void *)(memory + word_of(1));
	(void)arg;
	for (; !atomic_load(&stop); own++) {
		atomic_fetch_add(word, 1);
		usleep(50);
	}
	return NULL;
}

static void sleepers(uint32_t which)
{
	int fd[PEERS];
	pid_t pid[PEERS];
	pthread_t thread;
	char c = 1;
	vt_require(vt_duo_open(&d, OPTS(PEERS)), "the owner");
	/* Memory that the preload leaves alone. */
	memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct ibv_mr *mr = memory != MAP_FAILED ? ibv_reg_mr(d.pd, memory, SIZE, VT_ACCESS_ALL) : NULL;
	vt_require(mr, "memory");
	struct vt_duo_addr mine = d.self, hello = mine;
	for (int i = 0; i < PEERS; i++) {
		pid[i] = vt_spawn("requester", &fd[i]);
		hello.qpn[0] = mine.qpn[i];
		vt_require(pid[i] > 0 && vt_get(fd[i], &d.peer, sizeof(d.peer), 20000) && vt_put(fd[i], &hello, sizeof(hello)), "peer %d", i);
		d.peer.qpn[i] = d.peer.qpn[0];
		vt_require(vt_duo_connect(&d, i) && vt_put(fd[i], &c, 1) && vt_get(fd[i], &c, 1, 20000), "peer %d", i);
	}
	own = 0;
	atomic_store(&stop, false);
	vt_require(pthread_create(&thread, NULL, owner, NULL) == 0, "a thread");
	job.addr = (uintptr_t)memory;
	job.rkey = mr->rkey;
	job.which = which;
	uint64_t us, longest = 0;
	bool all = true;
	for (int i = 0; i < PEERS; i++)
		all &= vt_put(fd[i], &job, sizeof(job));
	for (int i = 0; i < PEERS && all; i++) {
		all = vt_get(fd[i], &us, sizeof(us), 60000);
		vt_check(all, "peer %d did not come to the end", i);
		longest = us > longest ? us : longest;
	}
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
	/* Streams 0 and 2 change the first word, stream 1 the second. */
	uint64_t want[2] = { 2ull * PEERS * STEPS, PEERS * STEPS + own };
	for (unsigned s = 0; s < 2 && which != COPIES && all; s++) {
		uint64_t got;
		memcpy(&got, memory + word_of(s), 8);
		vt_check(got == want[s], "word %u is %" PRIu64 ", not %" PRIu64, s, got, want[s]);
	}
	vt_note("%" PRIu64 " ms", longest / 1000);
	for (int i = 0; i < PEERS; i++) {
		vt_put(fd[i], "e", 1);
		int status = vt_reap(pid[i], 20000);
		vt_check(status == 0, "peer %d failed: status 0x%x", i, (unsigned)status);
		close(fd[i]);
	}
	vt_check(ibv_dereg_mr(mr) == 0 && vt_duo_close(&d), "closing");
	munmap(memory, SIZE);
}

static void atomics(void) { sleepers(ATOMICS); }
static void copies(void) { sleepers(COPIES); }
static void posted_by_another_thread(void) { sleepers(APART); }

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { { "atomics", atomics },
						{ "copies", copies },
						{ "posted_by_another_thread", posted_by_another_thread } };
	static const struct vt_role roles[] = { { "requester", requester } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
