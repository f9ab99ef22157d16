/* A context that stands still: sending is stopped and goes on, by pmControlSend and pmSendStable, which keeps what comes. Arguments: how
 * many messages each rank sends to each (300); anything more: on a composite context. */
#include "pt.h"

static uint32_t sent[PT_MAX], received[PT_MAX];

static bool send_one(int to) {
	unsigned char bytes[100];
	for (size_t i = 0; i < sizeof bytes; i++)
		bytes[i] = pt_byte(pt_rank, to, sent[to], i);
	if (!pt_send(to, bytes, sizeof bytes))
		return false;
	sent[to]++;
	return true;
}

static bool receive_one(void) {
	caddr_t buffer;
	size_t len;
	int from;
	int said = pmReceive(pt_context, &buffer, &len);
	if (said == ENOBUFS)
		return false;
	PT_MUST(said == 0, "pmReceive: %s", pt_why());
	PT_MUST(pmGetSender(pt_context, &from) == 0, "pmGetSender: %s", pt_why());
	PT_CHECK(len == 100, "%zu bytes", len);
	for (size_t i = 0; i < len; i++)
		PT_CHECK((unsigned char)buffer[i] == pt_byte(from, pt_rank, received[from], i), "message %u from %d, byte %zu", received[from], from, i);
	received[from]++;
	PT_SAYS(0, "", pmReleaseReceiveBuffer(pt_context));
	return true;
}

/* Nothing is sent while sending is stopped, and all functions say so. */
static void nothing_leaves(void) {
	caddr_t buffer;
	unsigned char *memory = pt_pages(4096);
	pmAddrHandle here = pt_lock(pt_rank, memory, 4096);
	PT_SAYS(EINVAL, "was not stopped", pmIsSendStable(pt_context));
	/* One that is out when it stops stays the program's. */
	double until = pt_now() + PT_PATIENCE;
	int said;
	while ((said = pmGetSendBuffer(pt_context, pt_rank, &buffer, 1)) == ENOBUFS)
		PT_MUST(pt_now() < until, "no buffer");
	PT_MUST(said == 0, "%s", pt_why());
	*buffer = 'x';
	PT_SAYS(0, "", pmControlSend(pt_context, 0));
	PT_SAYS(0, "", pmControlSend(pt_context, 0));
	PT_SAYS(ENOBUFS, "sending is stopped", pmSend(pt_context));
	PT_SAYS(ENOBUFS, "sending is stopped", pmWrite(pt_context, pt_rank, here, here + 8, 8));
	PT_SAYS(ENOBUFS, "sending is stopped", pmRead(pt_context, pt_rank, here, here + 8, 8));
	while ((said = pmIsSendStable(pt_context)) == EBUSY)
		PT_MUST(pt_now() < until, "it is not stable");
	PT_CHECK(said == 0, "%s", pt_why());
	PT_SAYS(0, "", pmControlSend(pt_context, 1));
	PT_SAYS(0, "", pmSend(pt_context));
	char one;
	pt_must_receive(pt_rank, &one, 1);
	PT_CHECK(one == 'x', "'%c'", one);
	PT_SAYS(0, "", pmControlSend(pt_context, 0));
	PT_SAYS(ENOBUFS, "sending is stopped", pmGetSendBuffer(pt_context, pt_rank, &buffer, 1));
	PT_SAYS(0, "", pmControlSend(pt_context, 1));
	PT_SAYS(0, "", pmMUnlock(pt_context, pt_rank, (caddr_t)memory, 4096));
	PT_SAYS(EINVAL, "pmc", pmControlSend(NULL, 1));
	PT_SAYS(EINVAL, "pmc", pmSendStable(NULL));
	PT_SAYS(EINVAL, "pmc", pmIsSendStable(NULL));
}

int main(int argc, char **argv) {
	uint32_t each = argc > 1 ? (uint32_t)atoi(argv[1]) : 300;
	bool mixed = argc > 2;
	if (mixed)
		pt_begin_composite(false);
	else
		pt_begin();
	if (mixed) {
		PT_SAYS(EINVAL, "its members", pmSaveContext(pt_context, 0));
		PT_SAYS(EINVAL, "its members", pmRestoreContext(pt_context, 0));
		PT_SAYS(EINVAL, "its members", pmCheckpoint(pt_context, NULL, NULL));
		PT_SAYS(EINVAL, "its members", pmRestartUser(pt_context));
	}
	/* All send until there is no room, receive nothing, and are stable nevertheless, for what comes is kept. */
	uint32_t all = 0, wanted = each * (uint32_t)pt_ranks;
	double until = pt_now() + PT_PATIENCE;
	while (all < wanted) {
		PT_MUST(pt_now() < until, "%u of %u were sent", all, wanted);
		uint32_t before = all;
		for (int to = 0; to < pt_ranks; to++)
			if (sent[to] < each && send_one(to))
				all++;
		if (all > before && all % 7 != 0)
			continue;
		PT_SAYS(0, "", pmSendStable(pt_context));
		int said;
		while ((said = pmIsSendStable(pt_context)) == EBUSY)
			PT_MUST(pt_now() < until, "rank %d is not stable with %u sent", pt_rank, all);
		PT_CHECK(said == 0, "%s", pt_why());
		PT_SAYS(0, "", pmIsSendDone(pt_context));
		if (all % 3 == 0)
			receive_one();
		PT_SAYS(0, "", pmControlSend(pt_context, 1));
	}
	/* Until all are stable: then all that was sent is received, without anybody's sending. */
	PT_SAYS(0, "", pmSendStable(pt_context));
	for (uint32_t got = 0; got < wanted;) {
		PT_MUST(pt_now() < until, "%u of %u have come", got, wanted);
		if (!receive_one())
			pt_sleep();
		got = 0;
		for (int from = 0; from < pt_ranks; from++)
			got += received[from];
	}
	PT_SAYS(0, "", pmControlSend(pt_context, 1));
	/* Nobody sends to this rank any more. */
	nothing_leaves();
	return pt_end();
}
