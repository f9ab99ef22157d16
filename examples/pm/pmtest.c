/*
 * What PM's messages and copies between two nodes take, over their length: round trips, and the bandwidth of messages, of pmWrite and of
 * pmRead. Node 0 measures, with the last node; any others sleep.
 *
 *   make && vervain launch -n 2 -- ./pmtest
 *   vervain launch -n 2 -- ./pmtest -r -s 8 -n 100000        # round trips of 8 bytes only
 *   PM_INLINE=0 vervain launch -n 2 -- ./pmtest -r           # no data in work requests
 *   PM_SRQ=off vervain launch -n 2 -- ./pmtest               # receives of each connection's own
 */
#define _GNU_SOURCE /* sched_setaffinity */
#include <pm.h>

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ROUND_TRIPS = 1, MESSAGES = 2, WRITES = 4, READS = 8, KINDS = 4 };

/* Lengths: of messages up to the MTU, of copies up to this. */
static const size_t LONGEST_COPY = 1 << 20;
/* Bytes that a bandwidth is measured with, and messages at most. */
static const size_t VOLUME = 256 << 20;
static const long MOST = 200000;
static const long ROUND_TRIPS_OF_EACH = 20000;

static pmContext *context;
static int other;
static int is_first;

static void die(const char *what, int said)
{
	fprintf(stderr, "pmtest: %s: %s\n", what, said && pmErrorString() ? pmErrorString() : strerror(said));
	exit(1); /* the launcher ends the others */
}

static void must(int said, const char *what)
{
	if (said != PM_SUCCESS)
		die(what, said);
}

static double now_us(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static void send_message(size_t len)
{
	caddr_t buffer;
	int said;
	do
		said = pmGetSendBuffer(context, other, &buffer, len);
	while (said == ENOBUFS);
	must(said, "pmGetSendBuffer");
	buffer[len - 1] = (char)len; /* what is filled in does not matter here */
	must(pmSend(context), "pmSend");
}

/* A message of `len` bytes, whose first bytes go to `to` if that is anything. */
static void receive_message(size_t len, void *to, size_t wanted)
{
	caddr_t buffer;
	size_t got;
	int said;
	do
		said = pmReceive(context, &buffer, &got);
	while (said == ENOBUFS);
	must(said, "pmReceive");
	if (got != len || (!to && buffer[len - 1] != (char)len))
		die("another message came than was sent", 0);
	if (to)
		memcpy(to, buffer, wanted);
	must(pmReleaseReceiveBuffer(context), "pmReleaseReceiveBuffer");
}

/* Both nodes are here. */
static void meet(void)
{
	if (is_first) {
		send_message(1);
		receive_message(1, NULL, 0);
	} else {
		receive_message(1, NULL, 0);
		send_message(1);
	}
}

static int by_size(const void *a, const void *b)
{
	double left = *(const double *)a, right = *(const double *)b;
	return (left > right) - (left < right);
}

/* Microseconds of a round trip: the median of `count`. */
static double round_trip(size_t len, long count)
{
	double *each = malloc((size_t)count * sizeof *each);
	if (!each)
		die("malloc", ENOMEM);
	for (long i = -count / 10; i < count; i++) {
		double begin = now_us();
		if (is_first) {
			send_message(len);
			receive_message(len, NULL, 0);
		} else {
			receive_message(len, NULL, 0);
			send_message(len);
		}
		if (i >= 0)
			each[i] = now_us() - begin;
	}
	qsort(each, (size_t)count, sizeof *each, by_size);
	double median = each[count / 2];
	free(each);
	return median;
}

/* Bytes per microsecond, which are MB/s, from the first message until all have been received. */
static double messages(size_t len, long count)
{
	meet();
	double begin = now_us();
	for (long i = 0; i < count; i++) {
		if (is_first)
			send_message(len);
		else
			receive_message(len, NULL, 0);
	}
	meet();
	return (double)len * (double)count / (now_us() - begin);
}

static double copies(int kind, size_t len, long count, pmAddrHandle there, pmAddrHandle here)
{
	meet();
	double begin = now_us();
	for (long i = 0; i < count && is_first; i++) {
		int said;
		do
			said = kind == WRITES ? pmWrite(context, other, there, here, len) :
						pmRead(context, other, there, here, len);
		while (said == ENOBUFS);
		must(said, kind == WRITES ? "pmWrite" : "pmRead");
	}
	int said;
	do
		said = kind == WRITES ? pmIsWriteDone(context) : pmIsReadDone(context);
	while (said == EBUSY);
	must(said, "a copy");
	double took = now_us() - begin;
	meet();
	return (double)len * (double)count / took;
}

/* Runs on the processor of this node in a list of them. */
static void run_on(const char *list)
{
	cpu_set_t set;
	char *end;
	for (int i = 0; i < score_self_node && strchr(list, ','); i++)
		list = strchr(list, ',') + 1;
	long cpu = strtol(list, &end, 10);
	CPU_ZERO(&set);
	CPU_SET((size_t)cpu, &set);
	if (end == list || cpu < 0 || sched_setaffinity(0, sizeof set, &set))
		die("-c: no such processor", 0);
}

static void usage(void)
{
	fputs("Usage: pmtest [-r] [-m] [-w] [-g] [-s MIN[:MAX]] [-n COUNT] [-c CPU,CPU]\n"
	      "  -r  round trips: the median, in microseconds\n"
	      "  -m  messages one after another, in MB/s\n"
	      "  -w  pmWrite, in MB/s\n"
	      "  -g  pmRead, in MB/s\n"
	      "  -s  lengths in bytes, from MIN, each twice the one before\n"
	      "  -n  how many of each length\n"
	      "  -c  the processor of each node\n"
	      "All four over all lengths if nothing is asked for.\n",
	      stderr);
	exit(2);
}

int main(int argc, char **argv)
{
	int kinds = 0, option;
	size_t min = 8, max = LONGEST_COPY;
	long count = 0;
	const char *cpus = NULL;
	while ((option = getopt(argc, argv, "rmwgs:n:c:")) != -1) {
		char *end = optarg;
		switch (option) {
		case 'r':
			kinds |= ROUND_TRIPS;
			break;
		case 'm':
			kinds |= MESSAGES;
			break;
		case 'w':
			kinds |= WRITES;
			break;
		case 'g':
			kinds |= READS;
			break;
		case 's':
			min = max = strtoull(optarg, &end, 10);
			if (*end == ':')
				max = strtoull(end + 1, &end, 10);
			if (*end || min == 0 || max < min || max > LONGEST_COPY)
				usage();
			break;
		case 'c':
			cpus = optarg;
			break;
		case 'n':
			count = strtol(optarg, &end, 10);
			if (*end || count < 1)
				usage();
			break;
		default:
			usage();
		}
	}
	if (optind != argc)
		usage();
	if (kinds == 0)
		kinds = ROUND_TRIPS | MESSAGES | WRITES | READS;

	score_initialize(argc, argv);
	context = score_pmnet[0];
	is_first = score_self_node == 0;
	if (cpus)
		run_on(cpus);
	other = is_first ? score_num_node - 1 : 0;
	if (score_num_node < 2)
		die("there is no other node: vervain launch -n 2", 0);
	if (!is_first && score_self_node != score_num_node - 1)
		return 0; /* it waits for the others in the end */

	size_t mtu;
	must(pmGetMtu(context, other, &mtu), "pmGetMtu");
	void *memory = NULL;
	if (posix_memalign(&memory, 4096, LONGEST_COPY))
		die("posix_memalign", ENOMEM);
	memset(memory, 1 + score_self_node, LONGEST_COPY);
	pmAddrHandle here, there;
	must(pmMLock(context, other, memory, LONGEST_COPY, &here), "pmMLock");
	caddr_t buffer;
	int said;
	do
		said = pmGetSendBuffer(context, other, &buffer, sizeof here);
	while (said == ENOBUFS);
	must(said, "pmGetSendBuffer");
	memcpy(buffer, &here, sizeof here);
	must(pmSend(context), "pmSend");
	receive_message(sizeof there, &there, sizeof there);

	static const char *const names[KINDS] = { "round trip [us]", "messages [MB/s]", "pmWrite [MB/s]", "pmRead [MB/s]" };
	if (is_first) {
		printf("%10s", "bytes");
		for (int i = 0; i < KINDS; i++)
			if (kinds & 1 << i)
				printf("  %15s", names[i]);
		printf("\n");
	}
	for (size_t len = min; len <= max; len *= 2) {
		long many = (long)(VOLUME / len) < MOST ? (long)(VOLUME / len) : MOST;
		double values[KINDS] = { 0 };
		for (int i = 0; i < KINDS; i++) {
			int kind = 1 << i;
			long of_each = count ? count : kind == ROUND_TRIPS ? ROUND_TRIPS_OF_EACH : many;
			if (!(kinds & kind) || (kind <= MESSAGES && len > mtu))
				continue;
			values[i] = kind == ROUND_TRIPS ? round_trip(len, of_each) :
				    kind == MESSAGES	? messages(len, of_each) :
							  copies(kind, len, of_each, there, here);
		}
		if (!is_first)
			continue;
		printf("%10zu", len);
		for (int i = 0; i < KINDS; i++) {
			if (!(kinds & 1 << i))
				continue;
			if (values[i] > 0)
				printf("  %15.*f", i == 0 ? 3 : 1, values[i]);
			else
				printf("  %15s", "-");
		}
		printf("\n");
		fflush(stdout);
	}
	must(pmMUnlock(context, other, memory, LONGEST_COPY), "pmMUnlock");
	meet();
	return 0;
}
