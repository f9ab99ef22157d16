/* Every rank sends messages of random lengths to every rank, itself too, while it receives; each byte is checked, and that the messages of
 * a pair come in order and all do. Arguments: how many messages each rank sends to each (200); "spin" or "sleep" while there is nothing to do; a
 * seed; "one" context, a "mixed" one of two, or one that is "reversed". With "stay=FILE" behind them, no rank sends its last message while FILE
 * is there, on a machine of any speed. */
#include "pt.h"

static uint64_t state;

static uint32_t draw(uint32_t below) {
	state = state * 6364136223846793005ULL + 1442695040888963407ULL;
	return (uint32_t)((state >> 33) % below);
}

/* Lengths around those where something changes, and any. */
static size_t any_length(void) {
	static const size_t special[] = {1, 2, 8, 63, 64, 65, 128, 256, 1024, 1025, 4096};
	switch (draw(4)) {
	case 0: return special[draw(sizeof special / sizeof *special)];
	case 1: return pt_mtu - draw(3);
	case 2: return 1 + draw(300);
	default: return 1 + draw((uint32_t)pt_mtu);
	}
}

static size_t some_length(void) {
	size_t len = any_length();
	return len < pt_mtu ? len : pt_mtu;
}

static uint32_t sent[PT_MAX], received[PT_MAX];
static uint64_t all_sent, all_received, bytes_received;

static bool send_to(int to) {
	caddr_t buffer;
	size_t len = some_length();
	int said = pmGetSendBuffer(pt_context, to, &buffer, len);
	if (said == ENOBUFS)
		return false;
	PT_MUST(said == 0, "pmGetSendBuffer(%d, %zu): %s", to, len, pt_why());
	for (size_t i = 0; i < len; i++)
		buffer[i] = (char)pt_byte(pt_rank, to, sent[to], i);
	PT_MUST(pmSend(pt_context) == 0, "pmSend: %s", pt_why());
	sent[to]++;
	all_sent++;
	return true;
}

/* To any rank that can be sent to: who sleeps has tried all, for what has woken it may have been the connection to one of them. */
static bool send_one(uint32_t each) {
	int to = (int)draw((uint32_t)pt_ranks);
	for (int tried = 0; tried < pt_ranks; tried++, to = (to + 1) % pt_ranks)
		if (sent[to] < each && send_to(to))
			return true;
	return false;
}

static bool receive_one(void) {
	caddr_t buffer;
	size_t len;
	int from;
	int said = pmReceive(pt_context, &buffer, &len);
	if (said == ENOBUFS)
		return false;
	PT_MUST(said == 0, "pmReceive: %s", pt_why());
	PT_MUST(pmGetSender(pt_context, &from) == 0 && from >= 0 && from < pt_ranks, "pmGetSender: %s", pt_why());
	PT_CHECK(len >= 1 && len <= pt_mtu, "%zu bytes from %d", len, from);
	size_t i = 0;
	while (i < len && (unsigned char)buffer[i] == pt_byte(from, pt_rank, received[from], i))
		i++;
	PT_CHECK(i == len, "message %u from %d, byte %zu of %zu", received[from], from, i, len);
	PT_MUST(pmReleaseReceiveBuffer(pt_context) == 0, "pmReleaseReceiveBuffer: %s", pt_why());
	received[from]++;
	all_received++;
	bytes_received += len;
	return true;
}

int main(int argc, char **argv) {
	const char *stay = argc > 1 && strncmp(argv[argc - 1], "stay=", 5) == 0 ? argv[--argc] + 5 : NULL;
	uint32_t each = argc > 1 ? (uint32_t)atoi(argv[1]) : 200;
	const char *how = argc > 2 ? argv[2] : "spin";
	const char *context = argc > 4 ? argv[4] : "one";
	if (strcmp(context, "one") == 0)
		pt_begin();
	else
		pt_begin_composite(strcmp(context, "reversed") == 0);
	state = (uint64_t)pt_rank + 1 + (argc > 3 ? strtoull(argv[3], NULL, 10) << 20 : 0);
	uint64_t all = (uint64_t)each * (uint64_t)pt_ranks;
	double last = pt_now();
	while (all_sent < all || all_received < all) {
		/* In bursts, so that queues fill and run dry. */
		bool any = false, stays = false;
		for (uint32_t n = 1 + draw(40); n > 0; n--) {
			stays = stay != NULL && all_sent + 1 == all && access(stay, F_OK) == 0;
			any |= all_sent < all && !stays && send_one(each);
		}
		for (uint32_t n = 1 + draw(40); n > 0; n--)
			any |= receive_one();
		/* Who stays may be sent nothing, and does not wait for it. */
		if (any || stays)
			last = pt_now();
		else if (strcmp(how, "sleep") == 0)
			pt_sleep();
		PT_MUST(pt_now() - last < PT_PATIENCE, "%" PRIu64 " of %" PRIu64 " were sent, %" PRIu64 " received", all_sent, all, all_received);
	}
	for (int r = 0; r < pt_ranks; r++)
		PT_CHECK(received[r] == each, "%u of %u messages from %d", received[r], each, r);
	pt_must_be_sent();
	caddr_t buffer;
	size_t len;
	PT_SAYS(ENOBUFS, "no message", pmReceive(pt_context, &buffer, &len));
	return pt_end();
}
