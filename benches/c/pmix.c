/*
 * A rank of PMIx and of nothing else.
 *
 *   pmix    ms of PMIx_Init, of rank 0
 */
#define _GNU_SOURCE
#include "clock.h"

#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>

int main(void)
{
	/* Longer than any pmix_proc_t: its name and rank. */
	static char process[4096];
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	/* Loading is part of it, as it is of acp_init. */
	uint64_t begin = now_ns();
	void *library = dlopen("libpmix.so.2", RTLD_NOW | RTLD_GLOBAL);
	int (*init)(void *, void *, size_t) = library ? (int (*)(void *, void *, size_t))dlsym(library, "PMIx_Init") : NULL;
	int (*finalize)(void *, size_t) = library ? (int (*)(void *, size_t))dlsym(library, "PMIx_Finalize") : NULL;
	if (!init || !finalize || init(process, NULL, 0)) {
		fprintf(stderr, "pmix: no PMIx\n");
		return 1;
	}
	double took = (double)(now_ns() - begin) / 1e6;
	const char *rank = getenv("PMIX_RANK");
	if (rank && !strcmp(rank, "0"))
		printf("%.3f\n", took);
	return finalize(NULL, 0) ? 1 : 0;
}
