#define _GNU_SOURCE
#include "vt_traffic.h"

#include <poll.h>

static const uint64_t at_most[KINDS] = { 6, 8, 2, 2 };

struct vt_duo vt_traffic;
bool vt_traffic_failed;

struct vt_counts *vt_traffic_counts(void)
{
	return (struct vt_counts *)vt_traffic.buf;
}

static struct ibv_sge sge_at(uint64_t at, uint32_t length)
{
	return (struct ibv_sge){ vt_traffic_counts()->iova + at, length, vt_traffic.mr->lkey };
}

static bool by_srq(void)
{
	return getenv("VT_BY_SRQ") != NULL;
}

static bool by_packets(void)
{
	const char *link = getenv("VERVAIN_LINK");
	return link && !strcmp(link, "roce");
}

/* By memory a peer is waited for, whatever the timeouts are: 0.4 s in all. Packets are repeated as long as they say: 8.6 s. */
bool vt_traffic_open(void)
{
	struct vt_duo_opts o = { .type = by_srq() ? VT_RC_SRQ : VT_RC, .nqp = KINDS, .depth = DEPTH, .sge = 2, .size = SIZE };
	o.timeout = by_packets() ? 18 : 15;
	o.retry = by_packets() ? 7 : 2;
	return vt_duo_open(&vt_traffic, &o);
}

bool vt_traffic_receive(uint64_t slot)
{
	/* In two pieces, so that both are found again. */
	struct ibv_sge sge[2] = { sge_at(RECV_AT + slot * SLOT, 100), sge_at(RECV_AT + slot * SLOT + 100, SLOT - 100) };
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = sge, .num_sge = 2 }, *bad;
	return (vt_traffic.srq ? ibv_post_srq_recv(vt_traffic.srq, &wr, &bad) : ibv_post_recv(vt_traffic.qp[0], &wr, &bad)) == 0;
}

/* Mostly short, now and then so long that it goes in pieces. */
static uint32_t length_of(uint64_t number)
{
	return 8 + (uint32_t)(number % 5 == 0 ? number * 7919 % (MESSAGE - 8) : number * 37 % 600);
}

static void content(uint8_t *p, uint64_t number)
{
	memcpy(p, &number, 8);
	vt_fill(p + 8, length_of(number) - 8, number * 2 + 1);
}

static int post_one(int kind, uint64_t n)
{
	struct vt_counts *c = vt_traffic_counts();
	uint64_t slot = n % at_most[kind];
	struct ibv_send_wr wr = { .wr_id = (uint64_t)kind, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_sge sge;
	if (kind == MESSAGES) {
		content(vt_traffic.buf + SEND_AT + slot * SLOT, n);
		sge = sge_at(SEND_AT + slot * SLOT, length_of(n));
		wr.opcode = IBV_WR_SEND;
		if (sge.length <= 64) {
			wr.send_flags |= IBV_SEND_INLINE;
			sge.addr = (uintptr_t)vt_traffic.buf + SEND_AT + slot * SLOT;
		}
	} else if (kind == ATOMICS) {
		sge = sge_at(ANSWER_AT + slot * 8, 8);
		wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		wr.wr.atomic.remote_addr = c->peer.addr + WORD_AT;
		wr.wr.atomic.rkey = c->peer.rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		sge = kind == WRITES ? sge_at(FROM_AT, LONG) : sge_at(INTO_AT + slot * LONG, LONG);
		wr.opcode = kind == WRITES ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
		wr.wr.rdma.remote_addr = c->peer.addr + (kind == WRITES ? THERE_AT : FROM_AT);
		wr.wr.rdma.rkey = c->peer.rkey;
		if (kind == READS)
			memset(vt_traffic.buf + INTO_AT + slot * LONG, 0, LONG);
	}
	wr.sg_list = &sge;
	return ibv_post_send(vt_traffic.qp[kind], &wr, &bad);
}

/* Posts what there is room for. Every message says which it is, and so what it holds and how long it is. */
void vt_traffic_post(void)
{
	struct vt_counts *c = vt_traffic_counts();
	for (int kind = 0; kind < KINDS; kind++)
		while (c->posted[kind] - c->done[kind] < at_most[kind])
			vt_traffic_failed |= post_one(kind, c->posted[kind]++) != 0;
}

static void wrong(const char *what, uint64_t n)
{
	printf("FAIL %s %" PRIu64 "\n", what, n);
	vt_traffic_failed = true;
}

static void took(const struct ibv_wc *wc)
{
	static uint8_t expected[SLOT];
	struct vt_counts *c = vt_traffic_counts();
	if (wc->status != IBV_WC_SUCCESS) {
		printf("FAIL a completion with %s (%" PRIu64 ")\n", vt_wc_name((int)wc->status), wc->wr_id);
		vt_traffic_failed = true;
	} else if (wc->opcode & IBV_WC_RECV) {
		const uint8_t *got = vt_traffic.buf + RECV_AT + wc->wr_id * SLOT;
		content(expected, c->received);
		if (wc->byte_len != length_of(c->received) || memcmp(got, expected, wc->byte_len)) {
			uint64_t number;
			memcpy(&number, got, 8);
			printf("FAIL message %" PRIu64 " came as %" PRIu64 ", %u bytes\n", c->received, number, wc->byte_len);
			vt_traffic_failed = true;
		}
		c->received++;
		vt_traffic_failed |= !vt_traffic_receive(wc->wr_id);
	} else {
		uint64_t n = c->done[wc->wr_id]++, slot = n % at_most[wc->wr_id];
		if (wc->wr_id == READS && vt_verify(vt_traffic.buf + INTO_AT + slot * LONG, LONG, 77) != LONG)
			wrong("what was read by", n);
		if (wc->wr_id == ATOMICS) {
			uint64_t answer;
			memcpy(&answer, vt_traffic.buf + ANSWER_AT + slot * 8, 8);
			if (answer != n)
				wrong("the answer of atomic", n);
		}
	}
}

/* Takes what has completed; how many. */
int vt_traffic_take(void)
{
	struct ibv_wc wc[16];
	int n = ibv_poll_cq(vt_traffic.cq, 16, wc);
	for (int i = 0; i < n; i++)
		took(&wc[i]);
	return n;
}

/* Goes on until everything that both have posted is done. */
void vt_traffic_finish(int fd)
{
	struct vt_counts *c = vt_traffic_counts();
	struct vt_total mine = { c->posted[MESSAGES], c->posted[ATOMICS] }, theirs = { UINT64_MAX, 0 };
	bool asked = false;
	uint64_t until = vt_now_us() + 60000000, word;
	for (;;) {
		bool all = true;
		for (int kind = 0; kind < KINDS; kind++)
			all = all && c->done[kind] == c->posted[kind];
		if (vt_traffic_failed || (asked && all && c->received >= theirs.messages))
			break;
		vt_traffic_take();
		struct pollfd p = { .fd = fd, .events = POLLIN };
		if (!asked && all)
			asked = vt_put(fd, &mine, sizeof(mine));
		if (theirs.messages == UINT64_MAX && poll(&p, 1, 0) == 1 && !vt_get(fd, &theirs, sizeof(theirs), 60000))
			vt_traffic_failed = true;
		if (vt_now_us() > until) {
			for (int kind = 0; kind < KINDS; kind++)
				printf("FAIL %" PRIu64 " of %" PRIu64 " of kind %d\n", c->done[kind], c->posted[kind], kind);
			vt_traffic_failed = true;
		}
	}
	memcpy(&word, vt_traffic.buf + WORD_AT, 8);
	vt_check(!vt_traffic_failed, "traffic failed");
	vt_check(c->received == theirs.messages, "%" PRIu64 " messages for %" PRIu64, c->received, theirs.messages);
	vt_check(word == theirs.atomics, "%" PRIu64 " added for %" PRIu64, word, theirs.atomics);
	vt_check(vt_verify(vt_traffic.buf + THERE_AT, LONG, 77) == LONG, "what was written");
}
