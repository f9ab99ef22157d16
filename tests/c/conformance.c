/* The table of (operation x fault) -> completion statuses, QP states and async events, for every transport.
 *
 * Expectations are those of IBA vol. 1 (9.9 error handling, 10.10.2 completion errors, 11.6.2 completion status,
 * 11.6.3 asynchronous events) as a ConnectX HCA implements them. Where the two differ the HCA is followed and the
 * row says so. Faults in the posting call itself are in posting.c, timing and order in sequences.c, windows in mw.c. */
#include "vt.h"

enum op { SEND, SEND_IMM, SEND_INV, WRITE, WRITE_IMM, READ, CAS, FAA, AWRITE, FLUSH, OPS };
#define B(x) (1u << (x))

enum fault {
	NONE,
	ZERO_LEN,          /* no data; must work */
	ZERO_LEN_BAD_RKEY, /* C9-88: the key of a zero-length RDMA operation is not checked */
	INLINE,            /* no fault: data inline, lkey invalid (it must not be looked at) */
	BUILDER,           /* no fault: through ibv_wr_* */
	RECV_SMALL,
	RECV_NONE,
	RECV_BAD_LKEY,
	RECV_PD,
	RECV_READONLY,
	LKEY_BAD,
	LKEY_PD,
	LKEY_STALE,
	LKEY_LOW,
	LKEY_HIGH,
	LKEY_READONLY,
	RKEY_BAD,
	RKEY_STALE,
	RKEY_PD,
	RANGE_LOW,
	RANGE_HIGH,
	RANGE_WRAP,
	MR_ACCESS,
	QP_ACCESS,
	MISALIGNED,
	DEST_RD_ZERO,
	PEER_DESTROYED,
	PEER_RESET,
	PEER_INIT,
	PEER_ERR,
	QKEY_WRONG,
	QPN_WRONG,
	TOO_LONG,
};

static const char *const op_names[OPS] = { "send", "send_imm", "send_inv", "write", "write_imm",
					   "read", "cas",      "faa",      "atomic_write", "flush" };
static const char *const fault_names[] = {
	[NONE] = "none", [ZERO_LEN] = "zero-length", [ZERO_LEN_BAD_RKEY] = "zero-length,bad-rkey", [INLINE] = "inline",
	[BUILDER] = "builder", [RECV_SMALL] = "recv-too-small", [RECV_NONE] = "no-recv", [RECV_BAD_LKEY] = "recv-bad-lkey",
	[RECV_PD] = "recv-lkey-other-pd", [RECV_READONLY] = "recv-mr-readonly", [LKEY_BAD] = "bad-lkey",
	[LKEY_PD] = "lkey-other-pd", [LKEY_STALE] = "lkey-stale", [LKEY_LOW] = "lkey-below-mr",
	[LKEY_HIGH] = "lkey-beyond-mr", [LKEY_READONLY] = "local-mr-readonly", [RKEY_BAD] = "bad-rkey",
	[RKEY_STALE] = "rkey-stale", [RKEY_PD] = "rkey-other-pd", [RANGE_LOW] = "below-mr", [RANGE_HIGH] = "beyond-mr",
	[RANGE_WRAP] = "address-wraps", [MR_ACCESS] = "mr-lacks-right", [QP_ACCESS] = "qp-lacks-right",
	[MISALIGNED] = "misaligned", [DEST_RD_ZERO] = "max_dest_rd_atomic-0", [PEER_DESTROYED] = "peer-destroyed",
	[PEER_RESET] = "peer-in-RESET", [PEER_INIT] = "peer-in-INIT", [PEER_ERR] = "peer-in-ERR",
	[QKEY_WRONG] = "qkey-mismatch", [QPN_WRONG] = "qpn-unknown", [TOO_LONG] = "longer-than-mtu",
};
static const char *const type_names[] = { "RC", "RC+SRQ", "UC", "UD", "XRC" };

enum { ANY = -9, NO_WC = -1, ON_RECV = -2, FLUSHED = -3, NO_EVENT = -1 };
struct outcome {
	int wc_i; /* status of the initiator's completion */
	int wc_r; /* of the responder's; ON_RECV: success if the operation takes a receive, FLUSHED: if one was posted */
	int state_i, state_r;
	int event_r;
};

#define OK_      { IBV_WC_SUCCESS, ON_RECV, IBV_QPS_RTS, IBV_QPS_RTS, NO_EVENT }
#define DROPPED  { IBV_WC_SUCCESS, NO_WC, IBV_QPS_RTS, IBV_QPS_RTS, NO_EVENT }
#define UNHEARD  { IBV_WC_SUCCESS, NO_WC, IBV_QPS_RTS, ANY, NO_EVENT }
/* An error of the requester alone. A reliable QP goes to ERR, an unreliable one to SQE (10.10.2.4, figure 124). */
#define LOCAL(s)  { s, NO_WC, IBV_QPS_ERR, IBV_QPS_RTS, NO_EVENT }
#define LOCAL_U(s) { s, NO_WC, IBV_QPS_SQE, IBV_QPS_RTS, NO_EVENT }
/* 9.9.3 class C: NAK, both queues in error; no receive tells the responder, so an event does. */
#define REM_ACCESS { IBV_WC_REM_ACCESS_ERR, FLUSHED, IBV_QPS_ERR, IBV_QPS_ERR, IBV_EVENT_QP_ACCESS_ERR }
#define REM_INV    { IBV_WC_REM_INV_REQ_ERR, FLUSHED, IBV_QPS_ERR, IBV_QPS_ERR, IBV_EVENT_QP_REQ_ERR }
#define TIMED_OUT  { IBV_WC_RETRY_EXC_ERR, NO_WC, IBV_QPS_ERR, ANY, NO_EVENT }
/* The receive itself is the responder's notice. */
#define RECV_ERR(init, recv) { init, recv, IBV_QPS_ERR, IBV_QPS_ERR, NO_EVENT }
#define RECV_ERR_U(recv)     { IBV_WC_SUCCESS, recv, IBV_QPS_RTS, IBV_QPS_ERR, NO_EVENT }

#define SENDS (B(SEND) | B(SEND_IMM))
#define WRITES (B(WRITE) | B(WRITE_IMM))
#define ATOMICS (B(CAS) | B(FAA))
#define TAKES_RECV (SENDS | B(SEND_INV) | B(WRITE_IMM))
#define KEYED (WRITES | B(READ) | ATOMICS | B(AWRITE))
#define ALL_RC (SENDS | WRITES | B(READ) | ATOMICS)
#define RELIABLE (B(VT_RC) | B(VT_RC_SRQ) | B(VT_XRC))
#define PLAIN_RC (B(VT_RC) | B(VT_RC_SRQ))

static const struct row {
	enum fault fault;
	unsigned ops, types;
	struct outcome want;
} table[] = {
	{ NONE, ALL_RC, RELIABLE, OK_ },
	{ NONE, B(AWRITE) | B(FLUSH), PLAIN_RC | B(VT_XRC), OK_ },
	{ NONE, B(SEND_INV), PLAIN_RC, OK_ },
	{ NONE, SENDS | WRITES, B(VT_UC), OK_ },
	{ NONE, SENDS, B(VT_UD), OK_ },
	{ BUILDER, ALL_RC, RELIABLE, OK_ },
	{ BUILDER, SENDS | WRITES, B(VT_UC), OK_ },
	{ BUILDER, SENDS, B(VT_UD), OK_ },
	{ INLINE, SENDS | WRITES, RELIABLE | B(VT_UC), OK_ },
	{ INLINE, SENDS, B(VT_UD), OK_ },
	{ ZERO_LEN, SENDS | WRITES | B(READ), RELIABLE, OK_ },
	{ ZERO_LEN, SENDS | WRITES, B(VT_UC), OK_ },
	{ ZERO_LEN, SENDS, B(VT_UD), OK_ },
	{ ZERO_LEN_BAD_RKEY, WRITES | B(READ), RELIABLE, OK_ },

	/* A message longer than its receive: class C, the receive completes in error (9.9.3, table 60). UC and UD: IBA
	 * would drop the message (class D); ConnectX completes the receive with a length error and stops the QP. */
	{ RECV_SMALL, SENDS | B(SEND_INV), PLAIN_RC, RECV_ERR(IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR) },
	{ RECV_SMALL, SENDS, B(VT_XRC), RECV_ERR(IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR) },
	{ RECV_SMALL, SENDS, B(VT_UC) | B(VT_UD), RECV_ERR_U(IBV_WC_LOC_LEN_ERR) },
	/* A write with immediate uses the receive only for the completion: its length does not matter. */
	{ RECV_SMALL, B(WRITE_IMM), RELIABLE | B(VT_UC), OK_ },

	/* No receive: RNR NAK, class B, the responder is unharmed. rnr_retry is 1 here. */
	{ RECV_NONE, TAKES_RECV & ~B(SEND_INV), RELIABLE, LOCAL(IBV_WC_RNR_RETRY_EXC_ERR) },
	{ RECV_NONE, B(WRITE) | B(READ) | ATOMICS, RELIABLE, OK_ },
	{ RECV_NONE, SENDS | B(WRITE_IMM), B(VT_UC), DROPPED },
	{ RECV_NONE, SENDS, B(VT_UD), DROPPED },

	/* Class A: the receive's own buffer is at fault. */
	{ RECV_BAD_LKEY, SENDS, RELIABLE, RECV_ERR(IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR) },
	{ RECV_PD, SENDS, RELIABLE, RECV_ERR(IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR) },
	{ RECV_READONLY, SENDS, RELIABLE, RECV_ERR(IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR) },
	{ RECV_BAD_LKEY, SENDS, B(VT_UC) | B(VT_UD), RECV_ERR_U(IBV_WC_LOC_PROT_ERR) },

	/* The requester's own buffers: nothing reaches the responder's queues. */
	{ LKEY_BAD, ALL_RC, RELIABLE, LOCAL(IBV_WC_LOC_PROT_ERR) },
	{ LKEY_PD, ALL_RC, RELIABLE, LOCAL(IBV_WC_LOC_PROT_ERR) },
	{ LKEY_STALE, ALL_RC, RELIABLE, LOCAL(IBV_WC_LOC_PROT_ERR) },
	{ LKEY_LOW, ALL_RC, RELIABLE, LOCAL(IBV_WC_LOC_PROT_ERR) },
	{ LKEY_HIGH, ALL_RC, RELIABLE, LOCAL(IBV_WC_LOC_PROT_ERR) },
	{ LKEY_READONLY, B(READ) | ATOMICS, RELIABLE, LOCAL(IBV_WC_LOC_PROT_ERR) },
	{ LKEY_READONLY, SENDS | WRITES, RELIABLE | B(VT_UC), OK_ },
	{ LKEY_BAD, SENDS | WRITES, B(VT_UC), LOCAL_U(IBV_WC_LOC_PROT_ERR) },
	{ LKEY_PD, SENDS | WRITES, B(VT_UC), LOCAL_U(IBV_WC_LOC_PROT_ERR) },
	{ LKEY_STALE, SENDS | WRITES, B(VT_UC), LOCAL_U(IBV_WC_LOC_PROT_ERR) },
	{ LKEY_HIGH, SENDS | WRITES, B(VT_UC), LOCAL_U(IBV_WC_LOC_PROT_ERR) },
	{ LKEY_BAD, SENDS, B(VT_UD), LOCAL_U(IBV_WC_LOC_PROT_ERR) },
	{ LKEY_PD, SENDS, B(VT_UD), LOCAL_U(IBV_WC_LOC_PROT_ERR) },
	{ LKEY_STALE, SENDS, B(VT_UD), LOCAL_U(IBV_WC_LOC_PROT_ERR) },
	{ LKEY_HIGH, SENDS, B(VT_UD), LOCAL_U(IBV_WC_LOC_PROT_ERR) },

	/* Remote keys and ranges: NAK remote access error, and the responder hears of it by an event (11.6.3.2). */
	{ RKEY_BAD, KEYED, RELIABLE, REM_ACCESS },
	{ RKEY_STALE, KEYED, RELIABLE, REM_ACCESS },
	{ RKEY_PD, KEYED, RELIABLE, REM_ACCESS },
	{ RANGE_LOW, KEYED, RELIABLE, REM_ACCESS },
	{ RANGE_HIGH, KEYED, RELIABLE, REM_ACCESS },
	{ RANGE_WRAP, KEYED, RELIABLE, REM_ACCESS },
	{ MR_ACCESS, KEYED | B(FLUSH), RELIABLE, REM_ACCESS },
	/* UC: class D, the message is dropped and the QP stays. */
	{ RKEY_BAD, WRITES, B(VT_UC), DROPPED },
	{ RKEY_STALE, WRITES, B(VT_UC), DROPPED },
	{ RKEY_PD, WRITES, B(VT_UC), DROPPED },
	{ RANGE_LOW, WRITES, B(VT_UC), DROPPED },
	{ RANGE_HIGH, WRITES, B(VT_UC), DROPPED },
	{ MR_ACCESS, WRITES, B(VT_UC), DROPPED },

	/* A function that the QP is not enabled for is an unsupported opcode: NAK invalid request (9.7.4.1.5). */
	{ QP_ACCESS, WRITES | B(READ) | ATOMICS, RELIABLE, REM_INV },
	{ QP_ACCESS, WRITES, B(VT_UC), DROPPED },
	{ MISALIGNED, ATOMICS | B(AWRITE), RELIABLE, REM_INV },
	{ DEST_RD_ZERO, B(READ) | ATOMICS, RELIABLE, REM_INV },

	/* A QP that is not there, or cannot receive, is silence (9.6.1.1.2, 10.3.1): the requester's timer decides. */
	{ PEER_DESTROYED, ALL_RC, RELIABLE, TIMED_OUT },
	{ PEER_RESET, ALL_RC, RELIABLE, TIMED_OUT },
	{ PEER_INIT, ALL_RC, RELIABLE, TIMED_OUT },
	{ PEER_ERR, ALL_RC, RELIABLE, TIMED_OUT },
	{ PEER_DESTROYED, SENDS | WRITES, B(VT_UC), UNHEARD },
	{ PEER_RESET, SENDS | WRITES, B(VT_UC), UNHEARD },
	{ PEER_INIT, SENDS | WRITES, B(VT_UC), UNHEARD },
	{ PEER_ERR, SENDS | WRITES, B(VT_UC), UNHEARD },
	{ PEER_DESTROYED, SENDS, B(VT_UD), UNHEARD },
	{ PEER_RESET, SENDS, B(VT_UD), UNHEARD },
	{ PEER_ERR, SENDS, B(VT_UD), UNHEARD },
	{ QKEY_WRONG, SENDS, B(VT_UD), DROPPED },
	{ QPN_WRONG, SENDS, B(VT_UD), DROPPED },
	{ TOO_LONG, SENDS, B(VT_UD), LOCAL_U(IBV_WC_LOC_LEN_ERR) },
};

#define LEN 1024u
#define MR1_AT 4096u /* the region of slot 1 lies at [MR1_AT, MR1_AT + MR1_LEN) of the buffer */
#define MR1_LEN 4096u

static uint32_t length_of(enum op op, enum fault fault)
{
	if (op == CAS || op == FAA || op == AWRITE)
		return 8;
	if (fault == ZERO_LEN || fault == ZERO_LEN_BAD_RKEY)
		return 0;
	if (fault == INLINE)
		return 32;
	return fault == TOO_LONG ? 4097 : LEN;
}

static int opcode_of(enum op op)
{
	static const int codes[OPS] = { IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, IBV_WR_RDMA_WRITE,
					IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP,
					IBV_WR_ATOMIC_FETCH_AND_ADD, VT_WR_ATOMIC_WRITE, VT_OP_FLUSH };
	return codes[op];
}

static uint64_t builders(enum op op)
{
	static const uint64_t bits[OPS] = { IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_EX_WITH_SEND_WITH_INV,
					    IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
					    IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
					    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, VT_QP_EX_WITH_ATOMIC_WRITE,
					    VT_QP_EX_WITH_FLUSH };
	return bits[op];
}

static bool by_builder(enum op op, enum fault fault)
{
	return fault == BUILDER || op == AWRITE || op == FLUSH;
}

/* Sets both sides up as the fault demands and connects them. */
static void prepare(enum op op, enum fault fault, enum vt_type type)
{
	struct vt_cfg a = vt_cfg_default(type), b = a;
	b.responder = 1;
	if (fault == RECV_NONE)
		a.rnr_retry = 1;
	if (fault >= PEER_DESTROYED && fault <= PEER_ERR) {
		a.timeout = 10; /* 4.2 ms */
		a.retry_cnt = 1;
	}
	if (by_builder(op, fault))
		a.send_ops = builders(op);
	if (op == FLUSH)
		b.qp_access |= VT_ACCESS_FLUSH_GLOBAL;
	if (fault == QP_ACCESS)
		b.qp_access &= ~(unsigned)(op == WRITE || op == WRITE_IMM ? IBV_ACCESS_REMOTE_WRITE :
					   op == READ			  ? IBV_ACCESS_REMOTE_READ :
									    IBV_ACCESS_REMOTE_ATOMIC);
	if (fault == DEST_RD_ZERO)
		b.max_dest_rd = 0;
	vt_ends_open();
	vt_setup(&vt_a, &a);
	vt_setup(&vt_b, &b);
	enum ibv_qp_state upto = fault == PEER_RESET ? IBV_QPS_RESET : fault == PEER_INIT ? IBV_QPS_INIT : IBV_QPS_RTS;
	int rc = vt_connect(&vt_b, &vt_a, upto);
	vt_require(rc == 0, "connecting the responder: %s", vt_errno_name(rc));
	rc = vt_connect(&vt_a, &vt_b, IBV_QPS_RTS);
	vt_require(rc == 0, "connecting the initiator: %s", vt_errno_name(rc));
}

/* Posts the one receive of the responder; the tests that want none skip it. */
static bool receive(enum op op, enum fault fault, enum vt_type type)
{
	uint32_t lkey = vt_b.info.lkey, len = length_of(op, fault), grh = type == VT_UD ? VT_GRH : 0;
	if (fault == RECV_NONE || (fault == PEER_RESET && type != VT_RC_SRQ && type != VT_XRC))
		return false;
	if (fault == RECV_SMALL)
		len = len / 2;
	else if (fault == RECV_BAD_LKEY)
		lkey ^= 0x5a5a5a00;
	else if (fault == RECV_PD)
		lkey = vt_reg(&vt_b, 2, true, IBV_ACCESS_LOCAL_WRITE, VT_RECV_AT, 65536).lkey;
	else if (fault == RECV_READONLY)
		lkey = vt_reg(&vt_b, 2, false, 0, VT_RECV_AT, 65536).lkey;
	int rc = vt_recv(&vt_b, 77, vt_b.info.addr + VT_RECV_AT, len + grh, lkey);
	vt_require(rc == 0, "posting the receive: %s", vt_errno_name(rc));
	return true;
}

/* Builds the request with the fault in it. */
static struct vt_wr request(enum op op, enum fault fault)
{
	uint32_t len = length_of(op, fault);
	struct vt_wr w = vt_wr_to(&vt_a, &vt_b, opcode_of(op), len);
	struct vt_info mr;
	w.compare_add = op == CAS ? 5 : 3;
	w.swap = op == FLUSH ? LEN : 9;
	w.use_ex = by_builder(op, fault);
	if (len == 0)
		w.nsge = 0;
	switch (fault) {
	case INLINE:
		w.flags |= IBV_SEND_INLINE;
		w.sge[0].lkey = 0xdead0000;
		break;
	case LKEY_BAD:
		w.sge[0].lkey ^= 0x5a5a5a00;
		break;
	case LKEY_PD:
		w.sge[0].lkey = vt_reg(&vt_a, 1, true, IBV_ACCESS_LOCAL_WRITE, 0, 65536).lkey;
		break;
	case LKEY_READONLY:
		w.sge[0].lkey = vt_reg(&vt_a, 1, false, 0, 0, 65536).lkey;
		break;
	case LKEY_STALE:
		w.sge[0].lkey = vt_reg(&vt_a, 1, false, IBV_ACCESS_LOCAL_WRITE, 0, 65536).lkey;
		vt_simple(&vt_a, VT_DEREG, 1, 0, 0);
		break;
	case LKEY_LOW:
	case LKEY_HIGH:
		mr = vt_reg(&vt_a, 1, false, IBV_ACCESS_LOCAL_WRITE, MR1_AT, MR1_LEN);
		w.sge[0].lkey = mr.lkey;
		w.sge[0].addr = fault == LKEY_LOW ? mr.addr - 1 : mr.addr + MR1_LEN - len + 1;
		break;
	case RKEY_BAD:
	case ZERO_LEN_BAD_RKEY:
		w.rkey ^= 0x5a5a5a00;
		break;
	case RKEY_STALE:
		w.rkey = vt_reg(&vt_b, 1, false, VT_ACCESS_ALL, 0, 65536).rkey;
		vt_simple(&vt_b, VT_DEREG, 1, 0, 0);
		break;
	case RKEY_PD:
		w.rkey = vt_reg(&vt_b, 1, true, VT_ACCESS_ALL, 0, 65536).rkey;
		break;
	case RANGE_LOW:
	case RANGE_HIGH:
		mr = vt_reg(&vt_b, 1, false, VT_ACCESS_ALL, MR1_AT, MR1_LEN);
		w.rkey = mr.rkey;
		w.raddr = fault == RANGE_LOW ? mr.addr - 8 : mr.addr + MR1_LEN - len + 8;
		break;
	case RANGE_WRAP:
		w.raddr = UINT64_MAX - 7; /* address + length passes 2^64 */
		break;
	case MR_ACCESS:
		w.rkey = vt_reg(&vt_b, 1, false,
				op == WRITE || op == WRITE_IMM || op == AWRITE || op == FLUSH ?
					IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ :
				op == READ ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC :
					     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
				0, 65536).rkey;
		break;
	case MISALIGNED:
		w.raddr += 4;
		break;
	case QKEY_WRONG:
		w.ud_qkey ^= 1;
		break;
	case QPN_WRONG:
		w.ud_qpn = 0xfffff0;
		break;
	default:
		break;
	}
	if (op == FLUSH && fault == NONE)
		w.rkey = vt_reg(&vt_b, 1, false, VT_ACCESS_ALL | VT_ACCESS_FLUSH_GLOBAL, 0, 65536).rkey;
	return w;
}

/* A window of type 2 at the responder for the send with invalidate to take away. */
static uint32_t bound_window(void)
{
	uint32_t rkey = ibv_inc_rkey(vt_mw(&vt_b, 0, IBV_MW_TYPE_2, false));
	struct vt_wr w = { .wr_id = 5, .opcode = IBV_WR_BIND_MW, .flags = IBV_SEND_SIGNALED, .mw = 0, .mw_rkey = rkey,
			   .mw_mr = 0, .mw_addr = vt_b.info.addr, .mw_len = 4096, .mw_access = IBV_ACCESS_REMOTE_WRITE };
	struct ibv_wc wc = { 0 };
	int rc = vt_send(&vt_b, &w);
	vt_require(rc == 0, "posting the bind: %s", vt_errno_name(rc));
	int n = vt_cqes(&vt_b, 0, 1, 2000, &wc);
	vt_require(n == 1 && wc.status == IBV_WC_SUCCESS, "the bind gave %s", vt_wc_name(n == 1 ? (int)wc.status : -1));
	return rkey;
}

static void check_memory(enum op op, enum fault fault, enum vt_type type, const struct outcome *want, const uint64_t *guard)
{
	bool done = want->wc_i == IBV_WC_SUCCESS && want->wc_r != NO_WC && want->state_r == IBV_QPS_RTS;
	uint32_t len = length_of(op, fault);
	const uint64_t a = 0xaaaaaaaaaaaaaaaaull, b = 0xbbbbbbbbbbbbbbbbull;
	uint64_t got;
	if (!done || len == 0) {
		/* Nothing outside the region of slot 1 may have changed, nor inside when there was no right to it. */
		struct vt_req r = { .op = VT_HASH, .arg = { MR1_AT + MR1_LEN, VT_RECV_AT - MR1_AT - MR1_LEN } };
		struct vt_rep rep;
		vt_do(&vt_b, &r, &rep);
		vt_check((uint64_t)rep.arg[0] == guard[0], "memory of the responder changed by a request that had to fail");
		if (fault != LKEY_BAD && fault != LKEY_PD && fault != LKEY_STALE && fault != LKEY_LOW && fault != LKEY_HIGH &&
		    fault != LKEY_READONLY) {
			got = vt_peek(&vt_b, 0);
			vt_check(got == 5, "the responder's first word is 0x%" PRIx64 " after a failed request", got);
		}
		return;
	}
	switch (op) {
	case SEND:
	case SEND_IMM:
	case SEND_INV:
		got = vt_peek(&vt_b, VT_RECV_AT + (type == VT_UD ? VT_GRH : 0) + len - 8);
		vt_check(got == a, "received data end in 0x%" PRIx64, got);
		break;
	case WRITE:
	case WRITE_IMM:
		got = vt_peek(&vt_b, len - 8);
		vt_check(got == a, "written data end in 0x%" PRIx64, got);
		got = vt_peek(&vt_b, len);
		vt_check(got == b, "the word after the written data became 0x%" PRIx64, got);
		break;
	case READ:
		got = vt_peek(&vt_a, len - 8);
		vt_check(got == b, "read data end in 0x%" PRIx64, got);
		break;
	case CAS:
	case FAA:
		got = vt_peek(&vt_a, 0);
		vt_check(got == 5, "the atomic returned 0x%" PRIx64 " for 5", got);
		got = vt_peek(&vt_b, 0);
		vt_check(got == (op == CAS ? 9 : 8), "the atomic left %" PRIu64, got);
		break;
	case AWRITE:
		got = vt_peek(&vt_b, 0);
		vt_check(got == 9, "the atomic write left %" PRIu64, got);
		break;
	default:
		break;
	}
}

static void check_recv(enum op op, enum fault fault, enum vt_type type, const struct ibv_wc *wc)
{
	uint32_t len = length_of(op, fault) + (type == VT_UD ? VT_GRH : 0);
	int opcode = op == WRITE_IMM ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
	vt_check((int)wc->opcode == opcode, "receive opcode %d, want %d", (int)wc->opcode, opcode);
	vt_check(wc->byte_len == len, "receive byte_len %u, want %u", wc->byte_len, len);
	bool imm = op == SEND_IMM || op == WRITE_IMM;
	vt_check(!!(wc->wc_flags & IBV_WC_WITH_IMM) == imm, "IBV_WC_WITH_IMM is %s", imm ? "missing" : "set");
	vt_check(!imm || be32toh(wc->imm_data) == 0x12345678, "immediate data 0x%x", be32toh(wc->imm_data));
	vt_check(!!(wc->wc_flags & IBV_WC_WITH_INV) == (op == SEND_INV), "IBV_WC_WITH_INV is wrong");
	if (type == VT_UD) {
		vt_check(wc->src_qp == vt_a.info.qpn, "src_qp 0x%x, want 0x%x", wc->src_qp, vt_a.info.qpn);
		vt_check(!vt_a.local->dev.global || (wc->wc_flags & IBV_WC_GRH), "IBV_WC_GRH is missing on Ethernet");
	}
	if (type != VT_XRC)
		vt_check(wc->qp_num == vt_b.info.qpn, "receive qp_num 0x%x, want 0x%x", wc->qp_num, vt_b.info.qpn);
}

static void check_events(enum vt_type type, const struct outcome *want)
{
	int got[8] = { 0 };
	bool err = want->state_r == IBV_QPS_ERR, last_wqe = false;
	bool wait = want->event_r != NO_EVENT || (err && type == VT_RC_SRQ);
	int n = vt_events(&vt_b, wait ? 2000 : 5, got, 8), matched = 0;
	/* Two are due on a QP with SRQ; the second may come a little later. */
	if (type == VT_RC_SRQ && err && want->event_r != NO_EVENT && n == 1)
		n += vt_events(&vt_b, 2000, got + 1, 7);
	for (int i = 0; i < n; i++) {
		if (got[i] == want->event_r)
			matched++;
		else if (got[i] == IBV_EVENT_QP_LAST_WQE_REACHED && err && type != VT_RC)
			last_wqe = true; /* 11.6.3.8: of a QP with SRQ; an XRC target may give it too */
		else
			vt_failed(__FILE__, __LINE__, "responder event: expected %s, got %s", vt_event_name(want->event_r),
				  vt_event_name(got[i]));
	}
	vt_check(matched == (want->event_r != NO_EVENT), "responder event: expected %s, got it %d times",
		 vt_event_name(want->event_r), matched);
	vt_check(last_wqe || !(err && type == VT_RC_SRQ), "responder event: expected last WQE reached, got none");
	n = vt_events(&vt_a, 0, got, 8);
	vt_check(n == 0, "initiator event: expected none, got %s", vt_event_name(got[0]));
}

static void run_row(enum op op, enum fault fault, enum vt_type type, const struct outcome *want)
{
	struct ibv_wc wc[4];
	prepare(op, fault, type);
	bool posted = receive(op, fault, type);
	struct vt_req h = { .op = VT_HASH, .arg = { MR1_AT + MR1_LEN, VT_RECV_AT - MR1_AT - MR1_LEN } };
	struct vt_rep rep;
	vt_simple(&vt_b, VT_POKE, 0, 5, 0);
	vt_do(&vt_b, &h, &rep);
	uint64_t guard = (uint64_t)rep.arg[0];
	struct vt_wr w = request(op, fault);
	if (op == SEND_INV)
		w.imm = bound_window();
	if (fault == PEER_DESTROYED)
		vt_simple(&vt_b, VT_DESTROY, 0, 0, 0);
	if (fault == PEER_ERR) {
		vt_modify(&vt_b, IBV_QPS_ERR);
		vt_cqes(&vt_b, 1, 1, 50, wc);
		vt_events(&vt_b, 5, (int[8]){ 0 }, 8);
	}
	int rc = vt_send(&vt_a, &w);
	vt_require(rc == 0, "posting: expected 0, got %s", vt_errno_name(rc));
	int n = vt_cqes(&vt_a, 0, 1, 5000, wc);
	int status = n == 1 ? (int)wc[0].status : NO_WC;
	vt_check(status == want->wc_i, "initiator: expected %s, got %s", vt_wc_name(want->wc_i), vt_wc_name(status));
	vt_check(n != 1 || (wc[0].wr_id == 1 && wc[0].qp_num == vt_a.info.qpn), "initiator completion names wr_id %" PRIu64, wc[0].wr_id);

	int wc_r = want->wc_r;
	if (wc_r == ON_RECV)
		wc_r = B(op) & TAKES_RECV ? IBV_WC_SUCCESS : NO_WC;
	else if (wc_r == FLUSHED) /* receives of a shared queue are not flushed with a QP */
		wc_r = posted && type != VT_RC_SRQ && type != VT_XRC ? IBV_WC_WR_FLUSH_ERR : NO_WC;
	n = vt_cqes(&vt_b, 1, 1, wc_r == NO_WC ? 5 : 2000, wc);
	status = n == 1 ? (int)wc[0].status : NO_WC;
	vt_check(status == wc_r, "responder: expected %s, got %s", vt_wc_name(wc_r), vt_wc_name(status));
	if (status == IBV_WC_SUCCESS && wc_r == status)
		check_recv(op, fault, type, &wc[0]);
	vt_check(n != 1 || wc[0].wr_id == 77, "responder completion names wr_id %" PRIu64, wc[0].wr_id);
	n = vt_cqes(&vt_a, 0, 1, 0, wc);
	vt_check(n == 0, "a second completion at the initiator: %s", vt_wc_name((int)wc[0].status));

	int state = vt_state(&vt_a);
	vt_check(state == want->state_i, "initiator QP: expected %s, got %s", vt_state_name(want->state_i), vt_state_name(state));
	state = want->state_r == ANY ? ANY : vt_state(&vt_b);
	vt_check(state == want->state_r, "responder QP: expected %s, got %s", vt_state_name(want->state_r), vt_state_name(state));
	check_events(type, want);
	check_memory(op, fault, type, want, &guard);
	vt_teardown();
}

static void guarded_row(enum op op, const struct row *row, enum vt_type type)
{
	vt_begin("%s %s %s", type_names[type], op_names[op], fault_names[row->fault]);
	if (!setjmp(vt_abandon))
		run_row(op, row->fault, type, &row->want);
	vt_end();
}

static void run_type(enum vt_type type)
{
	for (size_t i = 0; i < VT_ARRAY(table); i++)
		for (int op = 0; op < OPS; op++)
			if ((table[i].types & B(type)) && (table[i].ops & B(op)))
				guarded_row((enum op)op, &table[i], type);
	vt_begin("%s table", type_names[type]);
}

static void rc(void) { run_type(VT_RC); }
static void rc_srq(void) { run_type(VT_RC_SRQ); }
static void uc(void) { run_type(VT_UC); }
static void ud(void) { run_type(VT_UD); }
static void xrc(void) { run_type(VT_XRC); }

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { { "rc", rc }, { "rc_srq", rc_srq }, { "uc", uc }, { "ud", ud }, { "xrc", xrc } };
	return vt_main(argc, argv, cases, VT_ARRAY(cases));
}
