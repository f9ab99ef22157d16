/* Rank 1 halts within the handshake with rank 0, of channels both ways and of segmented buffers both ways. Arguments: "die STEP", and
 * nobody is left waiting; "stop STEP EARLY", and ranks 0 and 2 go on with each other meanwhile, rank 0 having begun its part before
 * (EARLY is 1) or not. STEP: which act of rank 1's it comes before, of ACTS. */
#include "at.h"

#include <signal.h>

enum { SHORT = 50, LONG = (1 << 20) + 333, SEGMENT = 2000, ACTS = 12 };

static unsigned char short_from[SHORT], short_to[SHORT], long_from[LONG], long_to[LONG], source_bytes[SEGMENT], sink_bytes[SEGMENT];
static acp_ch_t out, in;
static acp_request_t sent_short, sent_long, got_short, got_long;
static acp_segbuf_t source, sink;

static acp_ch_t channel(int sender, int receiver) {
	acp_ch_t ch = acp_create_ch(sender, receiver);
	AT_MUST(ch != ACP_CH_NULL, "from %d to %d: %s", sender, receiver, at_why());
	return ch;
}

static acp_request_t request(acp_request_t made) {
	AT_MUST(made != ACP_REQUEST_NULL, "%s", at_why());
	return made;
}

static void connect_to(acp_segbuf_t end) {
	AT_CHECK(acp_connect_segbuf(end) == 0, "%s", at_why());
}

static void act(int step, int other) {
	switch (step) {
	case 0:
		in = channel(other, at_rank);
		break;
	case 1:
		out = channel(at_rank, other);
		break;
	case 2:
		sent_short = request(acp_nbsend_ch(out, short_from, SHORT));
		break;
	case 3:
		sent_long = request(acp_nbsend_ch(out, long_from, LONG));
		break;
	case 4:
		got_short = request(acp_nbrecv_ch(in, short_to, SHORT));
		break;
	case 5:
		got_long = request(acp_nbrecv_ch(in, long_to, LONG));
		break;
	case 6:
		sink = acp_create_dst_segbuf(other, sink_bytes, SEGMENT, 1);
		AT_MUST(sink != ACP_SEGBUF_NULL, "%s", at_why());
		break;
	case 7:
		source = acp_create_src_segbuf(other, source_bytes, SEGMENT, 1);
		AT_MUST(source != ACP_SEGBUF_NULL, "%s", at_why());
		break;
	case 8:
		AT_CHECK(acp_wait_ch(got_short) == SHORT, "%s", at_why());
		break;
	case 9:
		connect_to(sink);
		break;
	case 10:
		connect_to(source);
		AT_CHECK(acp_ack_segbuf(source) == 0, "%s", at_why());
		break;
	default:
		AT_CHECK(acp_wait_ch(got_long) == LONG, "%s", at_why());
	}
}

/* What is begun before rank 0 waits for anything. */
static void begin_all(int other) {
	for (int step = 0; step < 8; step++)
		act(step, other);
}

static void end_all(int other) {
	acp_request_t last[] = {sent_short, sent_long, acp_nbfree_ch(out), acp_nbfree_ch(in)};
	AT_CHECK(acp_waitall_ch(last, 4, NULL) == 0, "%s", at_why());
	while (acp_isacked_segbuf(sink) == 1)
		;
	AT_CHECK(acp_ready_segbuf(sink) == 0, "%s", at_why());
	AT_CHECK(acp_disconnect_segbuf(sink) == 0 && acp_disconnect_segbuf(source) == 0, "%s", at_why());
	AT_CHECK(acp_free_segbuf(sink) == 0 && acp_free_segbuf(source) == 0, "%s", at_why());
	AT_CHECK(at_differs(short_to, SHORT, other, 1) == SHORT && at_differs(long_to, LONG, other, 2) == LONG, "what has come");
	AT_CHECK(at_differs(sink_bytes, SEGMENT, other, 3) == SEGMENT, "the segment");
}

/* Between ranks 0 and 2. */
static void others_go_on(void) {
	static unsigned char from[LONG], to[LONG];
	int other = 2 - at_rank;
	for (unsigned round = 0; round < 12; round++) {
		size_t size = round % 3 == 2 ? LONG : round % 3 == 1 ? 30000 : 20;
		acp_ch_t forth = channel(at_rank, other), back = channel(other, at_rank);
		at_fill(from, size, at_rank, round);
		acp_request_t sent = request(acp_nbsend_ch(forth, from, size)), got = request(acp_nbrecv_ch(back, to, size));
		AT_CHECK(acp_wait_ch(got) == size && acp_wait_ch(sent) == 0, "%s", at_why());
		AT_CHECK(at_differs(to, size, other, round) == size, "round %u", round);
		acp_request_t ends[] = {acp_nbfree_ch(forth), acp_nbfree_ch(back)};
		AT_CHECK(acp_waitall_ch(ends, 2, NULL) == 0, "%s", at_why());
	}
}

int main(int argc, char **argv) {
	bool dies = argc < 2 || strcmp(argv[1], "die") == 0, early = argc > 3 && atoi(argv[3]) != 0;
	int halt = argc > 2 ? atoi(argv[2]) : 0;
	at_begin(&argc, &argv);
	AT_MUST(at_procs == 3, "three ranks");
	at_fill(short_from, SHORT, at_rank, 1);
	at_fill(long_from, LONG, at_rank, 2);
	at_fill(source_bytes, SEGMENT, at_rank, 3);
	at_tell(0, (uint64_t)getpid());
	at_sync();
	pid_t victim = (pid_t)at_told(1, 0);
	if (at_rank == 1) {
		for (int step = 0; step <= ACTS; step++) {
			if (step == halt)
				kill(getpid(), dies ? SIGKILL : SIGSTOP);
			if (step < ACTS)
				act(step, 0);
		}
		end_all(0);
	} else if (at_rank == 0) {
		if (dies || early)
			begin_all(1);
		/* What rank 1 waits for before it stops. */
		if (!dies && !early && halt > 8)
			begin_all(1), early = true;
		double until = at_now() + AT_PATIENCE;
		while (!dies && !at_is_stopped(victim)) {
			if (early)
				acp_isconnected_segbuf(source);
			AT_MUST(at_now() < until, "rank 1 does not stop");
		}
		if (!dies && !early)
			begin_all(1);
		if (!dies) {
			others_go_on();
			kill(victim, SIGCONT);
		}
		for (int step = 8; step < ACTS; step++)
			act(step, 1);
		end_all(1);
	} else if (!dies) {
		others_go_on();
	}
	return at_end();
}
