/* Rounds of messages of all sizes: "ping", "ring" and "fan" of these, or "all". Arguments: what, the seed, rounds, the longest message.
 * Sizes are drawn by the seed, most of them small, after those at which something else begins; buffers are as long as that, longer or
 * shorter, at any address, and each is another one. All that arrives is compared. */
#include "at.h"

#define SIZE_FAILED ((size_t)-1)

enum { WINDOW = 6, PORTIONS = 4, BEHIND = 9 };

static uint64_t seed;
static size_t longest;

static uint64_t drawn(unsigned what, int rank, unsigned round) {
	uint64_t x = seed ^ (uint64_t)what << 56 ^ (uint64_t)(rank + 1) << 40 ^ round;
	for (int i = 0; i < 3; i++)
		x = (x ^ x >> 31) * 0x9e3779b97f4a7c15ULL;
	return x ^ x >> 29;
}

/* Marked words, one record, parts, the ring, an offer. */
static const size_t edges[] = {0, 1, 3, 4, 5, 8, 63, 64, 65, 4087, 4088, 4089, 8175, 8176, 8177, 16256, 16383, 16384, 16385,
	(1 << 20) - 1, 1 << 20, (1 << 20) + 1, (2 << 20) + 7, SIZE_MAX - 1, SIZE_MAX};
enum { EDGES = sizeof edges / sizeof edges[0] };

/* What `rank` sends in a round. Of many ranks, only one sends what is long. */
static size_t size_of(unsigned what, int rank, unsigned round) {
	uint64_t x = drawn(what, rank, round);
	size_t most = (x >> 8) % (uint64_t)at_procs < 2 ? longest : 1 << 16, size;
	if (round < EDGES) {
		size = edges[(round + (unsigned)rank) % EDGES];
		most = rank < 2 || size < 1 << 21 ? longest : 1 << 21;
		size = size >= SIZE_MAX - 1 ? most - (SIZE_MAX - size) : size;
	} else {
		unsigned kind = (unsigned)(x % 1000);
		size_t below = kind < 600 ? 80 : kind < 940 ? 5000 : kind < 996 ? 100000 : most;
		/* As many of each number of bits. */
		while (kind >= 996 && below > 1000 && (x = drawn(x % 200, rank, round)) % 4 != 0)
			below /= 2;
		size = (x >> 12) % (below + 1);
	}
	return size < most ? size : most;
}

/* A message under way: its memory, and what comes behind it. */
struct piece {
	acp_request_t request;
	unsigned char *memory, *at;
	size_t size, room;
};

static struct piece piece_of(size_t room, uint64_t x) {
	struct piece piece = {.room = room};
	size_t before = x % 8;
	piece.memory = malloc(room + 8 + BEHIND);
	AT_MUST(piece.memory != NULL, "no %zu B", room);
	piece.at = piece.memory + before;
	memset(piece.at + room, 0xee, BEHIND);
	return piece;
}

/* As long as the message, longer or shorter. */
static struct piece place_for(unsigned what, int rank, unsigned round) {
	uint64_t x = drawn(what + 10, rank, round);
	size_t size = size_of(what, rank, round), room = size;
	if (x >> 8 & 1)
		room = x >> 9 & 1 ? size + (x >> 16) % 5000 : size - (x >> 16) % (size < 100 ? size + 1 : 100);
	struct piece piece = piece_of(room, x);
	piece.size = size < room ? size : room;
	memset(piece.at, 0, room < 64 ? room : 64);
	return piece;
}

static void is_right(const struct piece *piece, size_t got, int rank, unsigned round) {
	AT_CHECK(got == piece->size, "round %u from %d: %zu B of %zu: %s", round, rank, got, piece->size, got == SIZE_FAILED ? at_why() : "");
	size_t same = at_differs(piece->at, piece->size, rank, round);
	AT_CHECK(same == piece->size, "round %u from %d, %zu B: byte %zu differs", round, rank, piece->size, same);
	AT_CHECK(at_all_are(piece->at + piece->room, BEHIND, 0xee), "round %u from %d: behind %zu B", round, rank, piece->room);
}

static struct piece filled(unsigned what, unsigned round) {
	size_t size = size_of(what, at_rank, round);
	struct piece piece = piece_of(size, drawn(what + 20, at_rank, round));
	at_fill(piece.at, size, at_rank, round);
	return piece;
}

static void begin_send(struct piece *piece, acp_ch_t ch, unsigned what, unsigned round) {
	*piece = filled(what, round);
	piece->request = acp_nbsend_ch(ch, piece->at, piece->room);
	AT_MUST(piece->request != ACP_REQUEST_NULL, "%s", at_why());
}

static void begin_recv(struct piece *piece, acp_ch_t ch, unsigned what, int rank, unsigned round) {
	*piece = place_for(what, rank, round);
	piece->request = acp_nbrecv_ch(ch, piece->at, piece->room);
	AT_MUST(piece->request != ACP_REQUEST_NULL, "%s", at_why());
}

static void is_sent(struct piece *piece) {
	if (piece->memory == NULL)
		return;
	AT_CHECK(acp_wait_ch(piece->request) == 0, "%s", at_why());
	free(piece->memory);
	piece->memory = NULL;
}

static void is_received(struct piece *piece, int rank, unsigned round) {
	if (piece->memory == NULL)
		return;
	is_right(piece, acp_wait_ch(piece->request), rank, round);
	free(piece->memory);
	piece->memory = NULL;
}

static acp_ch_t channel(int sender, int receiver) {
	acp_ch_t ch = acp_create_ch(sender, receiver);
	AT_MUST(ch != ACP_CH_NULL, "from %d to %d: %s", sender, receiver, at_why());
	return ch;
}

static void end(acp_ch_t *all, int count) {
	acp_request_t ends[AT_MAX];
	for (int i = 0; i < count; i++)
		ends[i] = acp_nbfree_ch(all[i]);
	AT_CHECK(acp_waitall_ch(ends, count, NULL) == 0, "%s", at_why());
}

/* Pairs of ranks, one message at a time. */
static void ping(unsigned from, unsigned to) {
	int other = at_rank ^ 1;
	if (other >= at_procs)
		return;
	acp_ch_t forth = channel(at_rank & ~1, at_rank | 1), back = channel(at_rank | 1, at_rank & ~1);
	acp_ch_t out = at_rank & 1 ? back : forth, in = at_rank & 1 ? forth : back;
	for (unsigned step = 2 * from; step < 2 * to; step++) {
		unsigned round = step / 2;
		if ((int)(step & 1) == (at_rank & 1)) {
			struct piece piece = filled(1, round);
			AT_CHECK(acp_send_ch(out, piece.at, piece.room) == 0, "%s", at_why());
			free(piece.memory);
		} else {
			struct piece piece = place_for(1, other, round);
			int got = acp_recv_ch(in, piece.at, piece.room);
			is_right(&piece, (size_t)got, other, round);
			free(piece.memory);
		}
	}
	end((acp_ch_t[]){forth, back}, 2);
}

/* Some messages are under way around the ring. */
static void ring(unsigned from, unsigned to) {
	int next = (at_rank + 1) % at_procs, before = (at_rank + at_procs - 1) % at_procs;
	acp_ch_t out = channel(at_rank, next), in = channel(before, at_rank);
	struct piece sent[WINDOW] = {{0}}, got[WINDOW] = {{0}};
	for (unsigned round = from; round < to + WINDOW; round++) {
		unsigned slot = round % WINDOW;
		/* The older one, or one that is to come behind it. */
		unsigned early = from + WINDOW + 1 < round && round < to && drawn(30, at_rank, round) % 4 == 0 ? 1 : 0;
		if (early)
			is_received(&got[(round + 1) % WINDOW], before, round + 1 - WINDOW);
		is_received(&got[slot], before, round - WINDOW);
		is_sent(&sent[slot]);
		if (round < to) {
			begin_send(&sent[slot], out, 2, round);
			begin_recv(&got[slot], in, 2, before, round);
		}
	}
	end((acp_ch_t[]){out, in}, 2);
}

/* All others send to rank 0. */
static void fan_in(unsigned from, unsigned to) {
	static struct piece under_way[AT_MAX][WINDOW];
	acp_ch_t all[AT_MAX];
	for (int r = 1; r < at_procs; r++)
		if (at_rank == 0 || at_rank == r)
			all[r] = channel(r, 0);
	for (unsigned round = from; round < to + WINDOW; round++)
		for (int r = 1; r < at_procs; r++) {
			struct piece *piece = &under_way[r][round % WINDOW];
			if (at_rank == 0)
				is_received(piece, r, round - WINDOW);
			if (at_rank == 0 && round < to)
				begin_recv(piece, all[r], 3, r, round);
			if (at_rank == r)
				is_sent(piece);
			if (at_rank == r && round < to)
				begin_send(piece, all[r], 3, round);
		}
	if (at_rank == 0)
		end(all + 1, at_procs - 1);
	else
		end(all + at_rank, 1);
}

int main(int argc, char **argv) {
	const char *what = argc > 1 ? argv[1] : "all";
	seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
	unsigned rounds = argc > 3 ? (unsigned)atol(argv[3]) : 1000;
	longest = argc > 4 ? (size_t)atol(argv[4]) : 1 << 20;
	at_begin(&argc, &argv);
	bool all = strcmp(what, "all") == 0;
	for (unsigned portion = 0; portion < PORTIONS; portion++) {
		unsigned from = rounds * portion / PORTIONS, to = rounds * (portion + 1) / PORTIONS;
		if (all || strcmp(what, "ping") == 0)
			ping(from, to);
		if (all || strcmp(what, "ring") == 0)
			ring(from, to);
		if (all || strcmp(what, "fan") == 0)
			fan_in(from, to);
	}
	return at_end();
}
