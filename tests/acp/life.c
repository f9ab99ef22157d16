/* Joining and leaving: each function before acp_init, between, in a child of fork(2) and after acp_finalize. With the argument
 * "refused" acp_init must fail, for what the environment says. */
#include "at.h"

#include <sys/wait.h>

/* What each function answers in a process that is no rank, and why. */
static void outside(const char *why) {
	static uint64_t memory[2];
	AT_CHECK(acp_rank() == -1, "acp_rank is %d", acp_rank());
	AT_CHECK(acp_error() && strstr(acp_error(), why), "%s", at_why());
	AT_CHECK(acp_error() && strstr(acp_error(), "acp_rank: "), "%s", at_why());
	AT_CHECK(acp_procs() == -1, "acp_procs is %d", acp_procs());
	AT_CHECK(acp_colors() == -1, "acp_colors is %d", acp_colors());
	AT_CHECK(acp_sync() == -1, "acp_sync succeeds");
	AT_CHECK(acp_reset(0) == -1, "acp_reset succeeds");
	AT_CHECK(acp_error() && strstr(acp_error(), why), "%s", at_why());
	AT_CHECK(acp_query_starter_ga(0) == ACP_GA_NULL, "there is starter memory");
	AT_CHECK(acp_register_memory(memory, sizeof memory, 0) == ACP_ATKEY_NULL, "memory is registered");
	AT_CHECK(acp_unregister_memory(1) == -1, "memory is unregistered");
	AT_CHECK(acp_query_ga(1, memory) == ACP_GA_NULL, "there is an address");
	AT_CHECK(acp_query_address(1) == NULL, "there is memory");
	AT_CHECK(acp_query_rank(1) == -1, "there is a rank");
	AT_CHECK(acp_query_color(1) == -1, "there is a color");
	AT_CHECK(acp_copy(1, 1, 1, AT_NULL) == AT_NULL, "acp_copy has a handle");
	AT_CHECK(acp_error() && strstr(acp_error(), why), "%s", at_why());
	AT_CHECK(acp_cas4(1, 1, 1, 1, AT_NULL) == AT_NULL && acp_cas8(1, 1, 1, 1, AT_NULL) == AT_NULL, "cas has a handle");
	AT_CHECK(acp_swap4(1, 1, 1, AT_NULL) == AT_NULL && acp_swap8(1, 1, 1, AT_NULL) == AT_NULL, "swap has a handle");
	AT_CHECK(acp_add4(1, 1, 1, AT_NULL) == AT_NULL && acp_add8(1, 1, 1, AT_NULL) == AT_NULL, "add has a handle");
	AT_CHECK(acp_xor4(1, 1, 1, AT_NULL) == AT_NULL && acp_xor8(1, 1, 1, AT_NULL) == AT_NULL, "xor has a handle");
	AT_CHECK(acp_or4(1, 1, 1, AT_NULL) == AT_NULL && acp_or8(1, 1, 1, AT_NULL) == AT_NULL, "or has a handle");
	AT_CHECK(acp_and4(1, 1, 1, AT_NULL) == AT_NULL && acp_and8(1, 1, 1, AT_NULL) == AT_NULL, "and has a handle");
	acp_complete(1);
	acp_complete(AT_ALL);
	AT_CHECK(acp_inquire(1) == -1 && acp_inquire(AT_ALL) == -1, "acp_inquire answers");
	AT_CHECK(acp_finalize() == -1, "acp_finalize succeeds");
}

static int refused(void) {
	AT_CHECK(acp_init(NULL, NULL) == -1, "acp_init succeeds");
	AT_CHECK(acp_error() && strstr(acp_error(), "acp_init: "), "%s", at_why());
	outside("acp_init has not been called");
	return at_verdict();
}

/* The child's status says how many checks of its own failed. */
static void child(void) {
	fflush(stdout);
	pid_t pid = fork();
	AT_MUST(pid >= 0, "fork: %s", strerror(errno));
	if (pid == 0) {
		at_failures = 0;
		AT_CHECK(acp_init(NULL, NULL) == -1, "a child becomes a rank");
		outside("forked");
		AT_CHECK(acp_init(NULL, NULL) == -1, "a child becomes a rank");
		_exit(at_failures != 0);
	}
	int status = -1;
	AT_CHECK(waitpid(pid, &status, 0) == pid && status == 0, "the child ends with %#x", (unsigned)status);
}

int main(int argc, char **argv) {
	if (argc > 1 && strcmp(argv[1], "refused") == 0)
		return refused();
	outside("acp_init has not been called");
	int count = argc;
	char **words = argv, *last = argv[argc - 1];
	/* Programs in other languages have no arguments to show. */
	AT_MUST((getpid() % 2 ? acp_init(NULL, NULL) : acp_init(&argc, &argv)) == 0, "%s", at_why());
	AT_CHECK(argc == count && argv == words && argv[count - 1] == last && argv[count] == NULL, "the arguments have changed");
	at_number();
	AT_CHECK(acp_colors() >= 1, "%d colors", acp_colors());
	AT_CHECK(acp_init(&argc, &argv) == -1, "a second acp_init succeeds");
	AT_CHECK(acp_error() && strstr(acp_error(), "acp_init: acp_init has been called before"), "%s", at_why());
	AT_CHECK(acp_rank() == at_rank && acp_procs() == at_procs, "a second acp_init has an effect");
	/* All ranks have different numbers. */
	at_tell(0, 100 + (uint64_t)at_rank);
	at_sync();
	for (int r = 0; r < at_procs; r++)
		AT_CHECK(at_told(r, 0) == 100 + (uint64_t)r, "rank %d is %" PRIu64, r, at_told(r, 0) - 100);
	at_sync();
	child();
	/* The rank is unharmed. */
	at_tell(1, 200 + (uint64_t)at_rank);
	at_sync();
	for (int r = 0; r < at_procs; r++)
		AT_CHECK(at_told(r, 1) == 200 + (uint64_t)r, "rank %d has %" PRIu64, r, at_told(r, 1));
	at_sync();
	AT_CHECK(acp_finalize() == 0, "%s", at_why());
	outside("acp_finalize has been called");
	AT_CHECK(acp_init(&argc, &argv) == -1, "a process becomes a rank twice");
	outside("acp_finalize has been called");
	return at_verdict();
}
