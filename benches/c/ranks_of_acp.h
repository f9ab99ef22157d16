/* What the measuring programs of ACP share: who a rank is, where it runs, and what ends it. */
#ifndef VERVAIN_BENCH_RANKS_OF_ACP_H
#define VERVAIN_BENCH_RANKS_OF_ACP_H

#include <acp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "clock.h"

static int rank, ranks;

static inline void die(const char *what)
{
	fprintf(stderr, "acp: %s: %s\n", what, acp_error() ? acp_error() : "no reason");
	acp_abort(NULL);
	exit(1);
}

static inline void complete(acp_handle_t handle)
{
	if (handle == (acp_handle_t)ACP_HANDLE_NULL)
		die("an access was refused");
	acp_complete(handle);
}

static inline void synchronize(size_t size)
{
	(void)size;
	if (acp_sync())
		die("acp_sync");
}

/* To its CPU, and to its launcher's death. The rank as the launchers tell it before acp_init, which starts threads. */
static inline void pin_rank(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	const char *names[] = { "VERVAIN_JOB_RANK", "PMIX_RANK" }, *cpus = getenv("ACP_CPUS");
	int own = 0;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (getenv(names[i]))
			own = atoi(getenv(names[i]));
	for (; cpus && own > 0; own--)
		cpus = strchr(cpus, ',') ? strchr(cpus, ',') + 1 : NULL;
	if (cpus)
		pin(atoi(cpus));
}

static inline void who_am_i(void)
{
	rank = acp_rank();
	ranks = acp_procs();
}

#endif
