/* Short messages into a shared receive queue may wait in their completions until the program polls: they are in the memory of
 * their receives when the completion is, and when that memory is taken back. */
#define _GNU_SOURCE
#include "vt_duo.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#define RECVS 512
#define ROOM 64
#define APART 128
#define RECEIVER &(struct vt_duo_opts){ .type = VT_RC_SRQ, .nqp = 1, .depth = RECVS / 2, .sge = 2, .size = RECVS * APART }
#define SENDER &(struct vt_duo_opts){ .type = VT_RC, .nqp = 1, .depth = RECVS, .size = 1 << 16 }

static struct vt_duo d;
static int fd;
static pid_t pid;

/* Told over the socket: so many messages of a size, of the message's number for 0xffff; dies after them. */
struct order {
	uint32_t messages, size, die;
};
#define BY_NUMBER 0xffff

static uint32_t size_of(const struct order *o, uint32_t number) { return o->size == BY_NUMBER ? number % 45 : o->size; }

static int sender(int sock)
{
	struct order o;
	struct ibv_wc wc;
	char done = 1;
	if (!vt_duo_open(&d, SENDER) || !vt_duo_meet(&d, sock))
		return 1;
	while (vt_get(sock, &o, sizeof(o), 60000) && o.messages) {
		for (uint32_t i = 0; i < o.messages; i++) {
			struct ibv_sge sge = vt_duo_sge(&d, 0, size_of(&o, i));
			vt_fill(d.buf, sge.length, i);
			if (vt_duo_post(&d, 0, IBV_WR_SEND, i, IBV_SEND_SIGNALED, &sge, 1, 0) || vt_poll(d.cq, &wc, 1, 30000) != 1 ||
			    wc.status != IBV_WC_SUCCESS) {
				printf("FAIL sender: message %u\n", i);
				return 1;
			}
		}
		vt_put(sock, &done, 1);
		if (o.die)
			raise(SIGKILL);
	}
	return vt_duo_close(&d) ? 0 : 1;
}

static void post(uint64_t id, uint64_t addr, uint32_t lkey, uint32_t first)
{
	struct ibv_sge sge[2] = { { addr, first, lkey }, { addr + first, ROOM - first, lkey } };
	struct ibv_recv_wr r = { .wr_id = id, .sg_list = sge, .num_sge = first < ROOM ? 2 : 1 }, *bad;
	vt_require(ibv_post_srq_recv(d.srq, &r, &bad) == 0, "posting receive %" PRIu64, id);
}

/* A receiver with receives that begin with a piece of `first` bytes, and its sender. */
static void begin(uint32_t first)
{
	vt_require(vt_duo_open(&d, RECEIVER), "the receiver");
	memset(d.buf, 0xee, RECVS * APART);
	for (uint64_t i = 0; i < RECVS; i++)
		post(i, (uintptr_t)d.buf + i * APART, d.mr->lkey, first);
	pid = vt_spawn("sender", &fd);
	vt_require(pid > 0 && vt_duo_meet(&d, fd), "the sender");
}

/* Has the messages sent, and waits until they are. */
static void send_all(uint32_t messages, uint32_t size, uint32_t die)
{
	struct order o = { messages, size, die };
	char done;
	vt_require(vt_put(fd, &o, sizeof(o)) && vt_get(fd, &done, 1, 30000), "the sender is gone");
}

/* Receive `id` has message `number` of the order, and nothing beside it was touched. */
static void look(uint64_t id, const struct order *o, uint32_t number)
{
	uint8_t *at = d.buf + id * APART;
	uint32_t size = size_of(o, number), i = size;
	vt_check(vt_verify(at, size, number) == size, "message %u of %u bytes in receive %" PRIu64, number, size, id);
	while (i < APART && at[i] == 0xee)
		i++;
	vt_check(i == APART, "message %u of %u bytes: byte %u beside it was touched", number, size, i);
}

static void take(uint32_t messages, uint32_t size, uint64_t first)
{
	struct order o = { messages, size, 0 };
	struct ibv_wc wc;
	for (uint32_t i = 0; i < messages; i++) {
		vt_require(vt_poll(d.cq, &wc, 1, 10000) == 1, "message %u of %u does not come", i, messages);
		vt_require(wc.status == IBV_WC_SUCCESS && wc.wr_id == first + i && wc.byte_len == size_of(&o, i),
			   "message %u: %s, wr_id %" PRIu64 ", %u bytes", i, vt_wc_name((int)wc.status), wc.wr_id, wc.byte_len);
		look(wc.wr_id, &o, i);
	}
	vt_check(ibv_poll_cq(d.cq, 1, &wc) == 0, "one completion too many");
}

static void end(void)
{
	struct order o = { 0, 0, 0 };
	vt_put(fd, &o, sizeof(o));
	int status = vt_reap(pid, 20000);
	vt_check(status == 0, "the sender: status 0x%x", (unsigned)status);
	close(fd);
	vt_check(vt_duo_close(&d), "closing");
}

static void every_size(void)
{
	begin(ROOM);
	for (uint32_t size = 0; size <= ROOM; size++) {
		send_all(3, size, 0);
		take(3, size, size * 3);
	}
	end();
}

/* Far more than completions have room for beside the receives. */
static void many_wait(void)
{
	begin(ROOM);
	send_all(200, BY_NUMBER, 0);
	take(200, BY_NUMBER, 0);
	send_all(300, 8, 0);
	take(300, 8, 200);
	end();
}

static void in_pieces(void)
{
	for (uint32_t first = 1; first <= 33; first += 8) {
		begin(first);
		send_all(90, BY_NUMBER, 0);
		take(90, BY_NUMBER, 0);
		end();
	}
}

/* Deregistered before it is polled for: by then the messages are there, and later nothing is stored any more. */
static void deregistered(void)
{
	begin(ROOM);
	struct order o = { 60, BY_NUMBER, 0 };
	struct ibv_wc wc;
	send_all(o.messages, o.size, 0);
	vt_check(ibv_dereg_mr(d.mr) == 0, "ibv_dereg_mr");
	for (uint32_t i = 0; i < o.messages; i++)
		look(i, &o, i);
	memset(d.buf, 0x77, RECVS * APART);
	for (uint32_t i = 0; i < o.messages; i++)
		vt_require(vt_poll(d.cq, &wc, 1, 10000) == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == i, "message %u", i);
	for (size_t i = 0; i < RECVS * APART; i++)
		vt_require(d.buf[i] == 0x77, "byte %zu was stored to after ibv_dereg_mr", i);
	d.mr = ibv_reg_mr(d.pd, d.buf, d.o.size, VT_ACCESS_ALL);
	end();
}

/* Another region by the same key: what came before lies in the old memory. */
static void reregistered(void)
{
	begin(ROOM);
	struct order o = { 40, 16, 0 };
	struct ibv_wc wc;
	uint8_t *other = vt_memory(1 << 16);
	send_all(o.messages, o.size, 0);
	vt_check(ibv_rereg_mr(d.mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, other, 1 << 16, 0) == 0, "ibv_rereg_mr");
	for (uint32_t i = 0; i < o.messages; i++)
		look(i, &o, i);
	vt_check(vt_poll(d.cq, &wc, 1, 10000) == 1 && wc.status == IBV_WC_SUCCESS, "the first message");
	end();
	vt_memory_free(other, 1 << 16);
}

/* Addresses that the key names otherwise than the program. */
static void by_other_addresses(void)
{
	vt_require(vt_duo_open(&d, RECEIVER), "the receiver");
	struct ibv_mr *mr = ibv_reg_mr_iova(d.pd, d.buf, d.o.size, 0x10000, VT_ACCESS_ALL);
	vt_require(mr, "ibv_reg_mr_iova");
	memset(d.buf, 0xee, RECVS * APART);
	for (uint64_t i = 0; i < 100; i++)
		post(i, 0x10000 + i * APART, mr->lkey, ROOM);
	pid = vt_spawn("sender", &fd);
	vt_require(pid > 0 && vt_duo_meet(&d, fd), "the sender");
	send_all(90, BY_NUMBER, 0);
	take(90, BY_NUMBER, 0);
	vt_check(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
	end();
}

static void sender_dies(void)
{
	begin(ROOM);
	send_all(100, 12, 1);
	vt_reap(pid, 20000);
	take(100, 12, 0);
	close(fd);
	vt_check(vt_duo_close(&d), "closing");
}

/* The QP goes to ERR with messages that were not polled for: they come first, then its last receive. */
static void error_after(void)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };
	begin(ROOM);
	send_all(70, 20, 0);
	vt_check(ibv_modify_qp(d.qp[0], &a, IBV_QP_STATE) == 0, "ERR");
	take(70, 20, 0);
	end();
}

/* Memory that the program has taken away while it is registered: an error, and no signal. */
static void memory_gone(void)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr init;
	struct ibv_wc wc;
	begin(ROOM);
	/* The first message finds the way, and does not wait in its completion. */
	send_all(2, 8, 0);
	vt_require(mprotect(d.buf, 4096, PROT_NONE) == 0, "mprotect");
	vt_check(vt_poll(d.cq, &wc, 1, 10000) == 1 && wc.status == IBV_WC_SUCCESS, "the first message");
	vt_check(vt_poll(d.cq, &wc, 1, 10000) == 1 && wc.status == IBV_WC_LOC_PROT_ERR && wc.wr_id == 1,
		 "expected LOC_PROT_ERR, got %s", vt_wc_name((int)wc.status));
	a.qp_state = IBV_QPS_RESET;
	for (int i = 0; i < 5000 && ibv_query_qp(d.qp[0], &a, IBV_QP_STATE, &init) == 0 && a.qp_state != IBV_QPS_ERR; i++)
		vt_sleep_ms(1);
	vt_check(a.qp_state == IBV_QPS_ERR, "the QP is in %s", vt_state_name((int)a.qp_state));
	vt_check(mprotect(d.buf, 4096, PROT_READ | PROT_WRITE) == 0, "mprotect");
	end();
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = {
		{ "every_size", every_size },
		{ "many_wait", many_wait },
		{ "in_pieces", in_pieces },
		{ "deregistered", deregistered },
		{ "reregistered", reregistered },
		{ "by_other_addresses", by_other_addresses },
		{ "sender_dies", sender_dies },
		{ "error_after", error_after },
		{ "memory_gone", memory_gone },
	};
	static const struct vt_role roles[] = { { "sender", sender } };
	return vt_main_roles(argc, argv, cases, VT_ARRAY(cases), roles, VT_ARRAY(roles));
}
