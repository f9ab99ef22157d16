/* Nodes whose connections are those of nodes that wait for receives of theirs. They write to, read from and send to others, and try again
 * until they can, though they receive nothing meanwhile. 5 nodes, PM_CONNECTIONS=2. Arguments: "star" or "ring", and how many messages each
 * sender sends to each receiver, more than these have receives for.
 *   star: node 0 to all, while 1 and 2 send to it
 *   ring: nodes 0, 1 and 2 each to the next, while 3 and 4 send to all three
 * Or "still": node 0 has sent to as many as it has connections, and calls nothing any more; node 3 writes to it all the same. */
#include "pt.h"

#define NODES 5
#define LEN 512u

static unsigned char memory[LEN], own[2 * LEN];
static pmAddrHandle at[NODES];
static uint32_t each;
static bool ring;

static bool receives(int r) { return ring ? r < 3 : r == 0; }

static bool sends(int r) { return ring ? r >= 3 : r == 1 || r == 2; }

/* The next message, of `len` bytes, and from whom. */
static int receive(void *into, size_t len) {
	double until = pt_now() + PT_PATIENCE;
	caddr_t buffer;
	size_t has = 0;
	int said, from;
	while ((said = pmReceive(pt_context, &buffer, &has)) == ENOBUFS)
		PT_MUST(pt_now() < until, "no message");
	PT_MUST(said == 0 && pmGetSender(pt_context, &from) == 0 && has == len, "%zu bytes: %s", has, pt_why());
	memcpy(into, buffer, len);
	PT_MUST(pmReleaseReceiveBuffer(pt_context) == 0, "%s", pt_why());
	return from;
}

/* All know the handles of all, by node 0, and nobody sends anything else before. */
static void tell_handles(void) {
	at[pt_rank] = pt_lock(PM_NODE_ANY, memory, LEN);
	if (pt_rank > 0) {
		pt_must_send(0, &at[pt_rank], sizeof *at);
		pt_must_receive(0, at, sizeof at);
		pt_must_send(0, "has", 3);
		pt_must_receive(0, own, 2);
		return;
	}
	for (int i = 1; i < NODES; i++) {
		pmAddrHandle told;
		int from = receive(&told, sizeof told);
		at[from] = told;
	}
	for (int r = 1; r < NODES; r++)
		pt_must_send(r, at, sizeof at);
	for (int i = 1; i < NODES; i++)
		receive(own, 3);
	for (int r = 1; r < NODES; r++)
		pt_must_send(r, "go", 2);
}

static void send_all(void) {
	unsigned char bytes[LEN];
	for (uint32_t n = 0; n < each; n++)
		for (int r = 0; r < NODES; r++) {
			if (!receives(r))
				continue;
			for (size_t i = 0; i < LEN; i++)
				bytes[i] = pt_byte(pt_rank, r, n, i);
			pt_must_send(r, bytes, LEN);
		}
	pt_must_be_sent();
}

static void receive_all(void) {
	unsigned char bytes[LEN];
	uint32_t received[NODES] = {0};
	for (uint32_t n = 0; n < 2 * each; n++) {
		int from = receive(bytes, LEN);
		size_t i = 0;
		while (i < LEN && bytes[i] == pt_byte(from, pt_rank, received[from], i))
			i++;
		PT_CHECK(i == LEN, "message %u from %d, byte %zu", received[from], from, i);
		received[from]++;
	}
	for (int r = 0; r < NODES; r++)
		PT_CHECK(received[r] == (sends(r) ? each : 0), "%u messages from %d", received[r], r);
}

/* Writes to a node and reads it back, and receives nothing. */
static void reach(int r, pmAddrHandle here) {
	memset(own + LEN, 0, LEN);
	pt_copy(true, r, at[r], here, LEN);
	PT_CHECK(pt_copied(true) == 0, "pmIsWriteDone: %s", pt_why());
	pt_copy(false, r, at[r], here + LEN, LEN);
	PT_CHECK(pt_copied(false) == 0, "pmIsReadDone: %s", pt_why());
	PT_CHECK(memcmp(own, own + LEN, LEN) == 0, "what was read back from %d", r);
}

static void while_one_stands_still(void) {
	if (pt_rank == 0) {
		/* Both are connected before the last ones, which are over without a look of this node's. */
		for (int i = 0; i < 2; i++) {
			pt_must_send(1, "some", 4);
			pt_must_send(2, "some", 4);
			if (i == 0)
				pt_must_be_sent();
		}
		double until = pt_now() + PT_PATIENCE;
		while (*(volatile unsigned char *)memory == 0)
			PT_MUST(pt_now() < until, "nobody has written");
	} else if (pt_rank <= 2) {
		pt_must_receive(0, own, 4);
		pt_must_receive(0, own, 4);
	} else if (pt_rank == 3) {
		/* By then it stands still; if not, all is easier. */
		usleep(100000);
		own[0] = 1;
		pt_copy(true, 0, at[0], pt_lock(PM_NODE_ANY, own, sizeof own), 1);
		PT_CHECK(pt_copied(true) == 0, "pmIsWriteDone: %s", pt_why());
	}
}

int main(int argc, char **argv) {
	pmAddrHandle here;
	PT_MUST(argc >= 2, "an argument");
	ring = strcmp(argv[1], "ring") == 0;
	each = (uint32_t)(argc > 2 ? atoi(argv[2]) : 0);
	pt_begin();
	PT_MUST(pt_ranks == NODES, "%d nodes", pt_ranks);
	tell_handles();
	if (strcmp(argv[1], "still") == 0) {
		while_one_stands_still();
		return pt_end();
	}
	if (!receives(pt_rank)) {
		if (sends(pt_rank))
			send_all();
		/* The last word of one that has reached all. */
		if (!ring)
			pt_must_receive(0, own, 4);
		return pt_end();
	}
	for (size_t i = 0; i < LEN; i++)
		own[i] = pt_byte(pt_rank, 0, 0, i);
	here = pt_lock(PM_NODE_ANY, own, sizeof own);
	/* By then the senders have all connections and wait; if not, all is easier. */
	usleep(300000);
	if (ring) {
		reach((pt_rank + 1) % 3, here);
	} else {
		/* Connections begin to close, which are wanted again. */
		for (int r = NODES - 1; r > 0; r--) {
			int said = pmWrite(pt_context, r, at[r], here, 1);
			PT_MUST(said == 0 || said == ENOBUFS, "%s", pt_why());
		}
		for (int r = 1; r < NODES; r++)
			reach(r, here);
		for (int r = 1; r < NODES; r++)
			pt_must_send(r, "done", 4);
	}
	receive_all();
	return pt_end();
}
