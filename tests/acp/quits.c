/* The last rank ends with status 0 and without acp_finalize, in the way that the first argument names, while the others wait for
 * it in acp_sync, or in acp_finalize if the second one says so. With "atexit" all ranks leave the job in a function of atexit(3),
 * with "child" each has a child that ends by exit(3): the job ends well. */
#include "at.h"

#include <signal.h>
#include <sys/wait.h>

static void leave(void) {
	AT_CHECK(acp_finalize() == 0, "%s", at_why());
	at_verdict();
}

static void quit(int number) { exit(number != SIGUSR1); }

int main(int argc, char **argv) {
	const char *how = argc > 1 ? argv[1] : "", *others = argc > 2 ? argv[2] : "";
	/* Before acp_init, so that it comes after all that the library has registered. */
	if (strcmp(how, "atexit") == 0)
		AT_MUST(atexit(leave) == 0, "atexit");
	at_begin(&argc, &argv);
	at_sync();
	if (strcmp(how, "atexit") == 0)
		return 0;
	if (strcmp(how, "child") == 0) {
		fflush(stdout);
		pid_t pid = fork();
		if (pid == 0)
			exit(0);
		int status = -1;
		AT_CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0, "the child ends with %#x", (unsigned)status);
		return at_end();
	}
	if (at_rank == at_procs - 1) {
		if (strcmp(how, "_exit") == 0)
			_exit(0);
		/* In the buffer of the stream. */
		printf("LAST WORDS\n");
		if (strcmp(how, "exit") == 0)
			exit(0);
		if (strcmp(how, "signal") == 0) {
			signal(SIGUSR1, quit);
			raise(SIGUSR1);
		}
		return 0;
	}
	if (strcmp(others, "finalize") == 0)
		acp_finalize();
	else
		acp_sync();
	printf("FAIL rank %d goes on\n", at_rank);
	return 0;
}
