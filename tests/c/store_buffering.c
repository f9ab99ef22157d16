/* Store buffering: a Read is carried out behind the Write or Send that its QP was given before it (IBA 9.5). Two initiators,
 * each with a QP of its own to one owner of memory, write a word each and read the other's; as an adapter carries out each
 * QP's requests in their order, one of the two finds the other's word. A processor alone lets a load pass a store: both may
 * miss the other. Rounds in which both do are counted, and none may be. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#define SIZE 65536u
#define DEPTH 64u
#define OPTS &(struct vt_duo_opts){ .type = VT_RC, .nqp = 1, .depth = DEPTH, .size = SIZE }
#define OWNER_OPTS &(struct vt_duo_opts){ .type = VT_RC, .nqp = 2, .depth = DEPTH, .size = SIZE }
#define LIMIT_MS 200 /* a case ends after so long, or after $VT_LIMIT_MS */

/* Each initiator's word at the owner, in pages of their own; what it writes, the junk before it, and what it has read. */
static const uint64_t word_at[2] = { 8192, 16384 };
enum { OWN = 64, ANSWER = 4096 };

/* How the two requests are posted, and what they are. */
static struct how {
	bool two_calls, pieces, message, swap, in_line;
} how;

static struct vt_duo d[2];
static int owner_fd;
static _Atomic uint64_t arrived[2]; /* meetings that each initiator has come to */
static bool missed[2];
static uint64_t rounds, both_missed;
static atomic_bool over, failed;

/* Waits for the other initiator; soon after both go on at once. */
static void meet(int me, uint64_t meeting)
{
	atomic_store(&arrived[me], meeting);
	for (unsigned spins = 1; atomic_load(&arrived[!me]) < meeting && !atomic_load(&failed); spins++)
		if (spins % 4096 == 0)
			sched_yield();
}

static bool post(int me, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	struct ibv_send_wr *second = wr->next;
	if (!how.two_calls)
		return ibv_post_send(d[me].qp[0], wr, &bad) == 0;
	wr->next = NULL;
	return ibv_post_send(d[me].qp[0], wr, &bad) == 0 && ibv_post_send(d[me].qp[0], second, &bad) == 0;
}

/* Writes `value` to the own word, and reads the other's. */
static bool write_and_read(int me, uint64_t value, uint64_t *other)
{
	struct vt_duo *my = &d[me];
	struct ibv_wc wc;
	uint64_t own = my->peer.addr + word_at[me], others = my->peer.addr + word_at[!me];
	/* In two pieces a request is none of the short ones. */
	struct ibv_sge sge[2] = { vt_duo_sge(my, OWN, 8), vt_duo_sge(my, OWN + 8, 8) }, answer = vt_duo_sge(my, ANSWER, 8);
	struct ibv_send_wr read = { .wr_id = 2, .sg_list = &answer, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED, .opcode = IBV_WR_RDMA_READ };
	struct ibv_send_wr write = { .wr_id = 1, .next = &read, .sg_list = how.pieces ? sge : &sge[1], .num_sge = how.pieces ? 2 : 1,
				     .send_flags = how.in_line ? IBV_SEND_INLINE : 0,
				     .opcode = how.message ? IBV_WR_SEND : IBV_WR_RDMA_WRITE };
	write.wr.rdma.remote_addr = how.pieces ? own - 8 : own;
	write.wr.rdma.rkey = my->peer.rkey;
	if (how.swap) {
		/* It finds another value than this one, and changes nothing. */
		read.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
		read.wr.atomic.remote_addr = others;
		read.wr.atomic.rkey = my->peer.rkey;
		read.wr.atomic.compare_add = UINT64_MAX;
	} else {
		read.wr.rdma.remote_addr = others;
		read.wr.rdma.rkey = my->peer.rkey;
	}
	memcpy(my->buf + OWN + 8, &value, 8);
	if (!post(me, &write) || vt_poll(my->cq, &wc, 1, 20000) != 1 || wc.status != IBV_WC_SUCCESS || wc.wr_id != 2)
		return false;
	memcpy(other, my->buf + ANSWER, 8);
	return true;
}

/* Has the owner post its receives anew. */
static bool more_receives(void)
{
	char c = 'r';
	return vt_put(owner_fd, &c, 1) && vt_get(owner_fd, &c, 1, 20000);
}

static void *initiator(void *arg)
{
	int me = arg != NULL;
	uint64_t meeting = 0, until = vt_now_us();
	const char *ms = getenv("VT_LIMIT_MS");
	until += 1000 * (ms ? strtoull(ms, NULL, 0) : LIMIT_MS);
	for (uint64_t round = 1; !atomic_load(&failed); round++) {
		if (me == 0) {
			atomic_store(&over, vt_now_us() > until);
			if (how.message && round % DEPTH == 1 && !more_receives())
				atomic_store(&failed, true);
		}
		meet(me, ++meeting);
		if (atomic_load(&over))
			break;
		/* Now the one is ahead by some nanoseconds, now the other. */
		for (uint64_t k = round * (me ? 7 : 5) % 32; k > 0; k--)
			__asm__ volatile("");
		uint64_t other = 0;
		if (!write_and_read(me, round, &other))
			atomic_store(&failed, true);
		missed[me] = other < round;
		meet(me, ++meeting);
		if (me == 0) {
			rounds++;
			both_missed += missed[0] && missed[1];
		}
	}
	return NULL;
}

/* Receives of both QPs, each into the word of its initiator. */
static bool post_receives(struct vt_duo *o)
{
	for (int i = 0; i < 2; i++)
		for (unsigned n = 0; n < DEPTH; n++) {
			struct ibv_sge sge = vt_duo_sge(o, word_at[i], 8);
			struct ibv_recv_wr r = { .sg_list = &sge, .num_sge = 1 }, *bad;
			if (ibv_post_recv(o->qp[i], &r, &bad))
				return false;
		}
	return true;
}

/* The owner of the words: it posts receives whenever it is asked to, and ends with its peer. */
static int owner(int fd)
{
	struct vt_duo o;
	char c = 0;
	if (!vt_duo_open(&o, OWNER_OPTS))
		return 1;
	memset(o.buf, 0, SIZE);
	struct vt_duo_addr hello = o.self;
	for (int i = 0; i < 2; i++) {
		hello.qpn[0] = o.self.qpn[i];
		if (!vt_get(fd, &o.peer, sizeof(o.peer), 20000) || !vt_put(fd, &hello, sizeof(hello)))
			return 2;
		o.peer.qpn[i] = o.peer.qpn[0];
		if (!vt_duo_connect(&o, i) || !vt_put(fd, &c, 1) || !vt_get(fd, &c, 1, 20000))
			return 3;
	}
	for (bool first = true; vt_get(fd, &c, 1, 100000) && c == 'r'; first = false) {
		struct ibv_wc wc;
		for (unsigned n = 0; !first && n < 2 * DEPTH; n++)
			if (vt_poll(o.cq, &wc, 1, 20000) != 1 || wc.status != IBV_WC_SUCCESS)
				return 4;
		if (!post_receives(&o) || !vt_put(fd, &c, 1))
			return 5;
	}
	return c == 'e' && vt_duo_close(&o) ? 0 : 6;
}

static void hammer(struct how as)
{
	pthread_t t[2];
	pid_t pid = vt_spawn("owner", &owner_fd);
	how = as;
	rounds = both_missed = 0;
	atomic_store(&failed, false);
	for (int i = 0; i < 2; i++)
		atomic_store(&arrived[i], 0);
	vt_require(pid > 0, "the owner");
	for (int i = 0; i < 2; i++)
		vt_require(vt_duo_open(&d[i], OPTS) && vt_duo_meet(&d[i], owner_fd), "initiator %d", i);
	for (int i = 0; i < 2; i++)
		pthread_create(&t[i], NULL, initiator, i ? &t[i] : NULL);
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	vt_check(!atomic_load(&failed), "a request failed in round %" PRIu64, rounds + 1);
	vt_check(both_missed == 0, "%" PRIu64 " of %" PRIu64 " rounds: both read before the other's word was there", both_missed, rounds);
	vt_put(owner_fd, "e", 1);
	int status = vt_reap(pid, 20000);
	vt_check(status == 0, "the owner failed: status 0x%x", (unsigned)status);
	vt_check(vt_duo_close(&d[0]) && vt_duo_close(&d[1]), "closing");
	vt_note("%" PRIu64 " rounds", rounds);
	close(owner_fd);
}

static void one_call(void) { hammer((struct how){ 0 }); }
static void one_call_inline(void) { hammer((struct how){ .in_line = true }); }
static void two_calls(void) { hammer((struct how){ .two_calls = true }); }
static void pieces(void) { hammer((struct how){ .pieces = true }); }
static void messages(void) { hammer((struct how){ .message = true }); }
static void atomics(void) { hammer((struct how){ .swap = true }); }

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = {
		{ "one_call", one_call },   { "one_call_inline", one_call_inline }, { "two_calls", two_calls },
		{ "pieces", pieces },       { "messages", messages },               { "atomics", atomics },
	};
	static const struct vt_role roles[] = { { "owner", owner } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
