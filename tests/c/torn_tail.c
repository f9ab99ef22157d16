/* Torn tails: a reader that polls the end of a message never sees older bytes before it. A peer writes messages of many
 * lengths, with aligned and unaligned ends, each of one byte value; an acknowledgement by RDMA Write lets it go on, so
 * that every byte must be exactly of the message whose end is there. For messages that a completion tells of, the
 * completion is the end. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#define LONGEST ((4u << 20) + 64)
#define SIZE (2 * (LONGEST + 4096))
#define OPTS &(struct vt_duo_opts){ .type = VT_RC, .nqp = 1, .depth = 16, .size = SIZE }
#define ROUNDS 2000
#define LIMIT_MS 200 /* a case ends after so long, or after $VT_LIMIT_MS, whatever its rounds: two busy cores are slow */

/* What the reader looks at. */
enum { LAST_BYTE, LAST_WORD, IMMEDIATE, SEND };

struct message {
	uint64_t at; /* address in the reader */
	uint32_t rkey, len;
	uint32_t how, value; /* value 0: the end */
};

static struct vt_duo d;
static struct ibv_wc early; /* a receive completion that was met on the way; wr_id 0: none */

static int rounds(void)
{
	const char *n = getenv("VT_ROUNDS");
	return n ? atoi(n) : ROUNDS;
}

static uint64_t limit_us(void)
{
	const char *ms = getenv("VT_LIMIT_MS");
	return 1000 * (ms ? strtoull(ms, NULL, 0) : LIMIT_MS);
}

static uint32_t length(int round)
{
	static const uint32_t middle[] = { 256u << 10, 1u << 20, 4u << 20 };
	int32_t jitter = (int32_t)(vt_random() % 41) - 20;
	if (round % 8 < 5)
		return (uint32_t)(1 + round / 8 * 5 % 64 + round % 8) % 64 + 1;
	if (round % 8 < 7)
		return (uint32_t)((round % 8 == 5 ? 4096 : 65536) + jitter);
	return (uint32_t)((int32_t)middle[round / 8 % 3] + jitter);
}

/* Waits for a word to become `value`; the peer needs a core, too. */
static bool word_becomes(const volatile uint64_t *word, uint64_t value)
{
	uint64_t until = vt_now_us() + 20000000;
	for (unsigned spins = 1; *word != value; spins++)
		if (spins % 256 == 0) {
			if (vt_now_us() > until)
				return false;
			sched_yield();
		}
	return true;
}

#define PAGE 4096u
#define ROOM (LONGEST + 2 * PAGE + PAGE - LONGEST % PAGE)

/* Memory for messages that ends before a page which is not present. */
static uint8_t *at_an_edge(void)
{
	uint8_t *p = mmap(NULL, ROOM + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return p == MAP_FAILED || mprotect(p + ROOM, PAGE, PROT_NONE) ? NULL : p;
}

/* Message i lies in the writer's memory by i % 3: in its buffer, at an address of i % 13, which pairs with every end of the reader's;
 * right before the edge; or with the reader's place 1 to 15 bytes behind it, modulo a page. Of the last two, some processors' string
 * instructions copy byte by byte. */
static int writer(int fd)
{
	struct message m;
	struct ibv_wc wc;
	uint8_t *edge = at_an_edge();
	if (!edge || !vt_duo_open(&d, OPTS) || !vt_duo_meet(&d, fd))
		return 1;
	struct ibv_mr *mr = ibv_reg_mr(d.pd, edge, ROOM, 0);
	if (!mr)
		return 6;
	/* Acknowledgement i is the word i at the start of the buffer. */
	const volatile uint64_t *go = (const volatile uint64_t *)d.buf;
	const struct message *next = (const struct message *)(d.buf + 64);
	for (uint64_t i = 1;; i++) {
		if (!word_becomes(go, i))
			return 2;
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		m = *next;
		if (!m.value)
			break;
		uint64_t from = 4096 + i % 13, behind = (m.at - (1 + i / 3 % 15) - (uintptr_t)edge) % PAGE;
		uint8_t *at = i % 3 == 0 ? d.buf + from : i % 3 == 1 ? edge + ROOM - m.len : edge + behind;
		memset(at, (int)m.value, m.len);
		/* A third of the messages come from two pieces, the second of them short, but never cutting a word that is polled. */
		uint32_t second = i % 3 == 0 && m.len > 24 ? (m.how == LAST_WORD ? 8 : 1) + (uint32_t)(i % 11) : 0;
		struct ibv_sge sge[2] = { vt_duo_sge(&d, from, m.len - second), vt_duo_sge(&d, from + m.len - second, second) };
		if (i % 3)
			sge[0] = (struct ibv_sge){ (uintptr_t)at, m.len, mr->lkey };
		int op = m.how == SEND ? IBV_WR_SEND : m.how == IMMEDIATE ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
		d.peer.rkey = m.rkey;
		if (vt_duo_post(&d, 0, op, i, IBV_SEND_SIGNALED, sge, second ? 2 : 1, m.at) || vt_poll(d.cq, &wc, 1, 20000) != 1)
			return 3;
		if (wc.status != IBV_WC_SUCCESS) {
			printf("FAIL writer: message %" PRIu64 " of %u bytes: %s\n", i, m.len, vt_wc_name((int)wc.status));
			return 4;
		}
	}
	/* Whose QP goes at once may have told nobody that it has the last word. */
	char c;
	return vt_get(fd, &c, 1, 20000) && ibv_dereg_mr(mr) == 0 && vt_duo_close(&d) ? 0 : 5;
}

/* Tells the writer of the next message; the word goes last. */
static void tell(uint64_t number, const struct message *m)
{
	struct ibv_wc wc;
	uint64_t at = SIZE - 4096;
	memcpy(d.buf + at, m, sizeof(*m));
	memcpy(d.buf + at + 64, &number, 8);
	struct ibv_sge body = vt_duo_sge(&d, at, sizeof(*m)), word = vt_duo_sge(&d, at + 64, 8);
	vt_require(!vt_duo_post(&d, 0, IBV_WR_RDMA_WRITE, 1, 0, &body, 1, d.peer.addr + 64) &&
		   !vt_duo_post(&d, 0, IBV_WR_RDMA_WRITE, UINT64_MAX, IBV_SEND_SIGNALED, &word, 1, d.peer.addr), "posting");
	int n = vt_poll(d.cq, &wc, 1, 20000);
	/* Where others copy, the answer may be here first. */
	if (n == 1 && wc.status == IBV_WC_SUCCESS && wc.opcode & IBV_WC_RECV) {
		early = wc;
		n = vt_poll(d.cq, &wc, 1, 20000);
	}
	vt_require(n == 1 && wc.wr_id == UINT64_MAX && wc.status == IBV_WC_SUCCESS, "telling the writer of message %" PRIu64 ": %s", number,
		n == 1 ? vt_wc_name((int)wc.status) : "no completion");
}

static bool see_byte(const volatile uint8_t *tail, uint8_t old)
{
	uint64_t until = vt_now_us() + 20000000;
	for (unsigned spins = 1; *tail == old; spins++)
		if (spins % 4096 == 0) {
			if (vt_now_us() > until)
				return false;
			sched_yield();
		}
	return true;
}

/* Where it does not change at once, it is there when all of it is. */
static bool see_word(const volatile uint64_t *tail, uint64_t old, uint64_t new, bool at_once)
{
	uint64_t until = vt_now_us() + 20000000, got;
	for (unsigned spins = 1; (got = *tail) != new; spins++) {
		vt_require(got == old || !at_once, "the last word was %016" PRIx64 ", then %016" PRIx64 ", not %016" PRIx64, old, got, new);
		if (spins % 4096 == 0) {
			if (vt_now_us() > until)
				return false;
			sched_yield();
		}
	}
	return true;
}

/* A receive completion; the tail is looked at before everything else. */
static void see_cqe(uint64_t number, uint32_t how, uint32_t len)
{
	struct ibv_wc wc = early;
	early.wr_id = 0;
	vt_require(wc.wr_id || vt_poll(d.cq, &wc, 1, 20000) == 1, "message %" PRIu64 " of %u bytes: no completion", number, len);
	vt_require(wc.status == IBV_WC_SUCCESS && wc.wr_id == number, "message %" PRIu64 ": %s", number, vt_wc_name((int)wc.status));
	if (how == IMMEDIATE)
		vt_require(be32toh(wc.imm_data) == (uint32_t)number, "the immediate of message %" PRIu64, number);
	else
		vt_require(wc.byte_len == len, "message %" PRIu64 " of %u bytes has %u", number, len, wc.byte_len);
}

/* Memory that the messages go to. */
static uint8_t *own_memfd(void)
{
	int fd = memfd_create("torn-tail", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0 || ftruncate(fd, SIZE) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK))
		return NULL;
	uint8_t *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return p == MAP_FAILED ? NULL : p;
}

static void read_messages(uint8_t *target, const char *what, uint32_t how)
{
	int fd, done = 0;
	pid_t pid = vt_spawn("writer", &fd);
	vt_require(target, "memory: %s", strerror(errno));
	vt_require(pid > 0 && vt_duo_open(&d, OPTS) && vt_duo_meet(&d, fd), "the peer");
	struct ibv_mr *mr = ibv_reg_mr(d.pd, target, SIZE, VT_ACCESS_ALL);
	vt_require(mr, "ibv_reg_mr: %s", strerror(errno));
	const char *way = getenv("VERVAIN_MEMORY"), *link = getenv("VERVAIN_LINK");
	bool owner = way && !strcmp(way, "owner"), packets = link && (!strcmp(link, "roce") || !strcmp(link, "window"));
	uint8_t old = 255;
	memset(target, old, SIZE);
	uint64_t end = vt_now_us() + limit_us(), number = 1;
	for (; done < rounds() && vt_now_us() < end; done++, number++) {
		uint32_t len = length(done), value = 1 + (uint32_t)(number % 250);
		/* Every end modulo 16; the word that is polled is an aligned one. */
		uint64_t at = 64 + vt_random() % 16;
		if (how == LAST_WORD) {
			len = len < 8 ? len + 8 : len;
			at += 8 - (at + len) % 8;
		}
		uint8_t *p = target + at;
		/* The bytes around the message must stay; inside of it all are of before. */
		memset(p - 16, 255, 16);
		memset(p, old, len);
		memset(p + len, 255, 16);
		/* The owner's copies are parted at lines of the message, not of memory. */
		bool at_once = !owner || len <= 65536 || (uintptr_t)p % 8 == 0;
		/* Where a packet begins inside of the word, an HCA too stores the packets one after the other: every MTU is a
		 * multiple of 256. */
		if (packets && len > 256 && len % 256 > 0 && len % 256 < 8)
			at_once = false;
		struct message m = { (uintptr_t)p, mr->rkey, len, how, value };
		if (how == SEND || how == IMMEDIATE) {
			struct ibv_sge sge = { (uintptr_t)p, len, mr->lkey };
			struct ibv_recv_wr r = { .wr_id = number, .sg_list = &sge, .num_sge = how == SEND }, *bad;
			vt_require(ibv_post_recv(d.qp[0], &r, &bad) == 0, "posting a receive");
		}
		tell(number, &m);
		if (how == LAST_BYTE)
			vt_require(see_byte(p + len - 1, old), "message %" PRIu64 " of %u bytes never came", number, len);
		else if (how == LAST_WORD)
			vt_require(see_word((uint64_t *)(void *)(p + len - 8), old * 0x0101010101010101ull, value * 0x0101010101010101ull, at_once),
				"message %" PRIu64 " of %u bytes never came", number, len);
		else
			see_cqe(number, how, len);
		/* What may have been stored last is looked at first: next to the end, or far from it. */
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		for (uint32_t k = 0, i; k < len; k++) {
			i = number % 4 ? len - 1 - k : k;
			vt_require(p[i] == value, "%s: with the end of message %" PRIu64 " there (%u bytes at %u modulo 16), byte %u is %u, not %u",
				what, number, len, (unsigned)((uintptr_t)p % 16), i, p[i], value);
		}
		for (int i = 0; i < 16; i++)
			vt_require(p[-1 - i] == 255 && p[len + (uint32_t)i] == 255, "bytes around message %" PRIu64 " of %u bytes", number, len);
		old = (uint8_t)value;
	}
	struct message last = { 0 };
	tell(number, &last);
	vt_put(fd, "e", 1);
	int status = vt_reap(pid, 20000);
	vt_check(status == 0, "the writer failed: status 0x%x", (unsigned)status);
	vt_check(ibv_dereg_mr(mr) == 0 && vt_duo_close(&d), "closing");
	vt_note("%d messages into %s", done, what);
	close(fd);
}

static void over(uint32_t how)
{
	uint8_t *p = malloc(SIZE);
	read_messages(p, "malloc'd memory", how);
	free(p);
	p = own_memfd();
	read_messages(p, "the program's memfd", how);
	munmap(p, SIZE);
	p = vt_memory(SIZE);
	read_messages(p, "mapped memory", how);
	vt_memory_free(p, SIZE);
}

static void last_byte(void) { over(LAST_BYTE); }
static void last_word(void) { over(LAST_WORD); }
static void immediate(void) { over(IMMEDIATE); }
static void send_(void) { over(SEND); }

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = {
		{ "last_byte", last_byte }, { "last_word", last_word }, { "immediate", immediate }, { "send", send_ },
	};
	static const struct vt_role roles[] = { { "writer", writer } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
