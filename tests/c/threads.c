/* Any thread, any object (man ibv_post_send and verbs' thread rule): many threads post to one QP, poll one CQ and fill
 * one SRQ at once; atomics contended from several sides; both directions streaming at the same time. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#define POSTERS 4
#define EACH 4000 /* messages per posting thread */
#define TOTAL (POSTERS * EACH)
#define SLOT 64

static struct vt_duo d;
static int failures;
static unsigned posted, send_done, received;
static uint8_t seen[TOTAL];
static unsigned stop;

static void fail(const char *what, int value)
{
	if (__atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED) < 5)
		printf("FAIL thread: %s (%d)\n", what, value);
}

/* Messages carry their number; the receiver counts each exactly once. */
static void *poster(void *arg)
{
	unsigned k = (unsigned)(uintptr_t)arg;
	uint64_t at = 4096 + k * SLOT;
	for (unsigned i = 0; i < EACH; i++) {
		uint32_t number = k * EACH + i;
		memcpy(d.buf + at, &number, 4);
		struct ibv_sge sge = vt_duo_sge(&d, at, 4);
		int rc;
		uint64_t start = vt_now_us();
		/* Inline: the source is free again when the call returns. A full queue is the only refusal. */
		while ((rc = vt_duo_post(&d, 0, IBV_WR_SEND_WITH_IMM, number, IBV_SEND_SIGNALED | IBV_SEND_INLINE, &sge, 1, 0)) == ENOMEM) {
			sched_yield();
			if (vt_now_us() - start > 30000000) {
				fail("a send queue stays full for 30 s", (int)number);
				return NULL;
			}
		}
		if (rc) {
			fail("post_send", rc);
			return NULL;
		}
		__atomic_fetch_add(&posted, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void *send_poller(void *arg)
{
	(void)arg;
	struct ibv_wc wc[8];
	while (__atomic_load_n(&send_done, __ATOMIC_RELAXED) < TOTAL && !__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		int n = ibv_poll_cq(d.cq, 8, wc);
		if (n < 0)
			fail("poll_cq", n);
		for (int i = 0; i < n; i++) {
			if (wc[i].status != IBV_WC_SUCCESS)
				fail(vt_wc_name((int)wc[i].status), (int)wc[i].wr_id);
			if (wc[i].wr_id >= TOTAL || __atomic_exchange_n(&seen[wc[i].wr_id], 1, __ATOMIC_RELAXED))
				fail("a send completed twice", (int)wc[i].wr_id);
		}
		if (n > 0)
			__atomic_fetch_add(&send_done, (unsigned)n, __ATOMIC_RELAXED);
		else
			sched_yield();
	}
	return NULL;
}

static bool post_receive(uint64_t slot)
{
	struct ibv_sge sge = vt_duo_sge(&d, slot * SLOT, SLOT);
	struct ibv_recv_wr r = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;
	return ibv_post_srq_recv(d.srq, &r, &bad) == 0;
}

static void *receiver(void *arg)
{
	(void)arg;
	struct ibv_wc wc[4];
	uint64_t last = vt_now_us();
	while (__atomic_load_n(&received, __ATOMIC_RELAXED) < TOTAL && !failures) {
		int n = ibv_poll_cq(d.cq, 4, wc);
		if (n <= 0) {
			sched_yield();
			if (vt_now_us() - last > 30000000)
				fail("nothing was received for 30 s", (int)received);
			continue;
		}
		last = vt_now_us();
		for (int i = 0; i < n; i++) {
			uint32_t number, imm = be32toh(wc[i].imm_data);
			if (wc[i].status != IBV_WC_SUCCESS || wc[i].byte_len != 4) {
				fail(vt_wc_name((int)wc[i].status), (int)wc[i].byte_len);
				continue;
			}
			memcpy(&number, d.buf + wc[i].wr_id * SLOT, 4);
			if (number != imm || number >= TOTAL) {
				printf("FAIL receive %" PRIu64 " holds message %u, its immediate data say %u\n", wc[i].wr_id, number, imm);
				fail("a receive holds another message", (int)imm);
			} else if (__atomic_exchange_n(&seen[number], 1, __ATOMIC_RELAXED))
				fail("a message arrived twice", (int)number);
			if (!post_receive(wc[i].wr_id))
				fail("post_srq_recv", errno);
		}
		__atomic_fetch_add(&received, (unsigned)n, __ATOMIC_RELAXED);
	}
	return NULL;
}

#define OPTS &(struct vt_duo_opts){ .type = VT_RC_SRQ, .nqp = 1, .depth = 64, .size = 1 << 20 }

static int shared_peer(int fd)
{
	pthread_t t[3];
	if (!vt_duo_open(&d, OPTS))
		return 1;
	for (uint64_t i = 0; i < 100; i++)
		if (!post_receive(i))
			return 1;
	if (!vt_duo_meet(&d, fd))
		return 1;
	for (int i = 0; i < 3; i++)
		pthread_create(&t[i], NULL, receiver, NULL);
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
	char done;
	vt_get(fd, &done, 1, 30000);
	if (received != TOTAL)
		printf("FAIL peer: %u of %u messages\n", received, (unsigned)TOTAL);
	return !vt_duo_close(&d) || failures || received != TOTAL;
}

static void shared_objects(void)
{
	int fd;
	pid_t pid = vt_spawn("shared", &fd);
	pthread_t t[POSTERS], p[2];
	vt_require(pid > 0 && vt_duo_open(&d, OPTS) && vt_duo_meet(&d, fd), "setup");
	for (uintptr_t i = 0; i < POSTERS; i++)
		pthread_create(&t[i], NULL, poster, (void *)i);
	for (int i = 0; i < 2; i++)
		pthread_create(&p[i], NULL, send_poller, NULL);
	for (int i = 0; i < POSTERS; i++)
		pthread_join(t[i], NULL);
	uint64_t start = vt_now_us();
	while (send_done < TOTAL && vt_now_us() - start < 20000000)
		vt_sleep_ms(2);
	stop = 1;
	for (int i = 0; i < 2; i++)
		pthread_join(p[i], NULL);
	vt_check(send_done == TOTAL && posted == TOTAL, "%u of %u sends completed", send_done, (unsigned)TOTAL);
	vt_check(failures == 0, "%d failures in threads", failures);
	char done = 1;
	vt_put(fd, &done, 1);
	vt_check(vt_reap(pid, 40000) == 0, "the receiver failed");
	vt_check(vt_duo_close(&d), "closing");
	close(fd);
}

/* ---- atomics from two processes, each by two QPs, and by the owner's own code where the device says so ---- */
#define ADDS 3000
#define FAA_OPTS &(struct vt_duo_opts){ .type = VT_RC, .nqp = 2, .depth = 64, .size = 1 << 20 }

/* Adds one ADDS times, by FAA or by CAS until it succeeds. */
static bool add_all(struct vt_duo *duo, int qp, bool cas)
{
	struct ibv_wc wc;
	uint64_t seen_value = 0, at = 8192 + (uint64_t)qp * 64;
	volatile uint64_t *result = (volatile uint64_t *)(duo->buf + at);
	struct ibv_sge sge = vt_duo_sge(duo, at, 8);
	for (unsigned done = 0; done < ADDS;) {
		struct ibv_send_wr w = { .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
					 .opcode = cas ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD }, *bad;
		w.wr.atomic.remote_addr = duo->peer.addr;
		w.wr.atomic.rkey = duo->peer.rkey;
		w.wr.atomic.compare_add = cas ? seen_value : 1;
		w.wr.atomic.swap = seen_value + 1;
		if (ibv_post_send(duo->qp[qp], &w, &bad) || vt_poll(duo->cq, &wc, 1, 20000) != 1 || wc.status != IBV_WC_SUCCESS) {
			printf("FAIL atomic %u: %s\n", done, vt_wc_name((int)wc.status));
			return false;
		}
		bool hit = !cas || *result == seen_value;
		done += hit;
		seen_value = hit ? *result + 1 : *result;
	}
	return true;
}

static int adder_peer(int fd)
{
	if (!vt_duo_open(&d, FAA_OPTS) || !vt_duo_meet(&d, fd))
		return 1;
	bool ok = add_all(&d, 0, false) && add_all(&d, 1, true);
	char done = 1;
	vt_put(fd, &done, 1);
	vt_get(fd, &done, 1, 30000);
	return vt_duo_close(&d) && ok ? 0 : 1;
}

static void atomics(void)
{
	/* The counter is in this process; two others add to it, and so does this one. */
	int fd[2];
	static struct vt_duo me[2];
	pid_t pid[2];
	for (int i = 0; i < 2; i++)
		pid[i] = vt_spawn("adder", &fd[i]);
	vt_require(pid[0] > 0 && pid[1] > 0 && vt_duo_open(&me[0], FAA_OPTS) && vt_duo_open(&me[1], FAA_OPTS), "setup");
	/* Both connections serve the memory of the first. */
	struct ibv_mr *mr = ibv_reg_mr(me[1].pd, me[0].buf, 4096, VT_ACCESS_ALL);
	vt_require(mr, "ibv_reg_mr");
	volatile uint64_t *counter = (volatile uint64_t *)me[0].buf;
	*counter = 0;
	me[1].self.addr = me[0].self.addr;
	me[1].self.rkey = mr->rkey;
	vt_require(vt_duo_meet(&me[0], fd[0]) && vt_duo_meet(&me[1], fd[1]), "connecting");
	uint64_t want = 4 * ADDS;
	if (me[0].dev.attr.atomic_cap == IBV_ATOMIC_GLOB) {
		for (unsigned i = 0; i < 200000; i++)
			__atomic_fetch_add(counter, 1, __ATOMIC_SEQ_CST);
		want += 200000;
	}
	char done = 1;
	for (int i = 0; i < 2; i++)
		vt_check(vt_get(fd[i], &done, 1, 60000), "adder %d is gone", i);
	vt_check(*counter == want, "the counter holds %" PRIu64 ", want %" PRIu64, *counter, want);
	for (int i = 0; i < 2; i++) {
		vt_put(fd[i], &done, 1);
		vt_check(vt_reap(pid[i], 20000) == 0, "adder %d failed", i);
		close(fd[i]);
	}
	ibv_dereg_mr(mr);
	vt_check(vt_duo_close(&me[1]) && vt_duo_close(&me[0]), "closing");
}

/* ---- both directions streaming, deep queues, three kinds of operation ---- */
#define STREAM 600
#define CHUNK (48u << 10)
#define STREAM_OPTS &(struct vt_duo_opts){ .type = VT_RC, .nqp = 2, .depth = 64, .size = 16 << 20 }

static bool stream(struct vt_duo *s)
{
	struct ibv_wc wc[16];
	unsigned sent = 0, done = 0, out[2] = { 0, 0 };
	uint64_t last = vt_now_us();
	while (done < STREAM) {
		/* Each QP has every second slot: with fewer than 50 outstanding the next slot of a QP is free again. */
		while (sent < STREAM && out[sent % 2] < 50) {
			uint64_t at = (sent % 100) * (uint64_t)CHUNK;
			bool read = sent % 3 == 2;
			struct ibv_sge sge[2] = { vt_duo_sge(s, (8u << 20) + at, 1000), vt_duo_sge(s, (8u << 20) + at + 1000, CHUNK - 1000) };
			if (!read)
				vt_fill(s->buf + (8u << 20) + at, CHUNK, sent);
			int rc = vt_duo_post(s, (int)(sent % 2), read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, sent, IBV_SEND_SIGNALED, sge,
				2, s->peer.addr + at);
			if (rc == ENOMEM)
				break;
			if (rc) {
				printf("FAIL stream: post %u: %s\n", sent, vt_errno_name(rc));
				return false;
			}
			out[sent++ % 2]++;
		}
		int n = ibv_poll_cq(s->cq, 16, wc);
		for (int i = 0; i < n; i++, out[wc[i - 1].wr_id % 2]--)
			if (wc[i].status != IBV_WC_SUCCESS) {
				printf("FAIL stream: %" PRIu64 ": %s\n", wc[i].wr_id, vt_wc_name((int)wc[i].status));
				return false;
			}
		if (n > 0) {
			done += (unsigned)n;
			last = vt_now_us();
		} else if (vt_now_us() - last > 30000000) {
			printf("FAIL stream: %u of %u after 30 s of silence\n", done, sent);
			return false;
		} else {
			sched_yield();
		}
	}
	return true;
}

/* Slots whose last operation was a write hold that write. */
static bool arrived(struct vt_duo *s)
{
	for (unsigned i = STREAM - 100; i < STREAM; i++)
		if (i % 3 != 2 && vt_verify(s->buf + (i % 100) * (uint64_t)CHUNK, CHUNK, i) != CHUNK) {
			printf("FAIL stream: slot of write %u holds other data\n", i);
			return false;
		}
	return true;
}

static int stream_peer(int fd)
{
	if (!vt_duo_open(&d, STREAM_OPTS) || !vt_duo_meet(&d, fd))
		return 1;
	bool ok = stream(&d);
	char done = 1;
	vt_put(fd, &done, 1);
	vt_get(fd, &done, 1, 60000);
	ok = ok && arrived(&d);
	return vt_duo_close(&d) && ok ? 0 : 1;
}

static void both_ways(void)
{
	int fd;
	pid_t pid = vt_spawn("stream", &fd);
	vt_require(pid > 0 && vt_duo_open(&d, STREAM_OPTS) && vt_duo_meet(&d, fd), "setup");
	vt_check(stream(&d), "streaming");
	char done;
	vt_check(vt_get(fd, &done, 1, 60000), "the peer is gone");
	vt_check(arrived(&d), "the data of the peer");
	vt_put(fd, &done, 1);
	vt_check(vt_reap(pid, 20000) == 0, "the peer failed");
	vt_check(vt_duo_close(&d), "closing");
	close(fd);
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { { "shared_objects", shared_objects }, { "atomics", atomics }, { "both_ways", both_ways } };
	static const struct vt_role roles[] = { { "shared", shared_peer }, { "adder", adder_peer }, { "stream", stream_peer } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
