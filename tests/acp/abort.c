/* Ends the job, or a rank of it, in the way that the argument names, while the other ranks wait for the last one. */
#include "at.h"

#include <signal.h>
#include <sys/wait.h>

int main(int argc, char **argv) {
	const char *how = argc > 1 ? argv[1] : "";
	if (strcmp(how, "before") == 0) {
		acp_abort("nothing has begun");
		return 0;
	}
	at_begin(&argc, &argv);
	if (strcmp(how, "child") == 0) {
		/* A child's abort ends the child. */
		pid_t pid = fork();
		if (pid == 0)
			acp_abort("a child ends");
		int status = 0;
		AT_CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 1, "%#x",
			(unsigned)status);
		return at_end();
	}
	if (strcmp(how, "after") == 0) {
		at_sync();
		AT_CHECK(acp_finalize() == 0, "%s", at_why());
		if (at_rank == at_procs - 1)
			acp_abort("all is over");
		return at_verdict();
	}
	at_sync();
	if (strcmp(how, "kill") == 0 && at_rank == at_procs - 1)
		raise(SIGKILL);
	if (at_rank == at_procs - 1) {
		acp_abort(strcmp(how, "null") == 0 ? NULL : "no more of this\n");
		printf("FAIL acp_abort returns\n");
	}
	acp_sync();
	printf("FAIL rank %d goes on\n", at_rank);
	return 0;
}
