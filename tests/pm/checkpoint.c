/* A computation that makes a checkpoint every 20 steps and goes on from the last one when it is started again: each rank computes a
 * number from its own of the step before and its neighbour's of some steps before, so that messages are under way all the time.
 * Arguments: how many steps (200); "step" and at the end of which step all die, or "checkpoint" and in the midst of which one rank 0
 * dies; or "asked" and how many microseconds a step takes at most: it makes checkpoints only when it is asked for them, at any step, and
 * rank 1 cannot make the first one. The directory is PM_CHECKPOINT. */
#include "pt.h"

#include <fcntl.h>
#include <signal.h>

#define EVERY 20
#define BEHIND 5 /* steps that the neighbour's number is old */

static struct {
	int32_t step;
	uint64_t value;
} mine;

static int dies_in = -1, asked = -1;

static uint64_t first(int rank) { return (uint64_t)rank * 0x9e3779b97f4a7c15ULL + 1; }

static uint64_t next(uint64_t own, uint64_t other) { return (own ^ other >> 7) * 0xd6e8feb86659fd93ULL + (own >> 31); }

static int open_data(int number, int flags) {
	char path[4096];
	snprintf(path, sizeof path, "%s/data.%d.%d", getenv("PM_CHECKPOINT"), pt_rank, number);
	int fd = open(path, flags, 0600);
	PT_MUST(fd >= 0, "%s: %s", path, strerror(errno));
	return fd;
}

static void save(void *argument, int number) {
	PT_CHECK(argument == &mine, "the argument is another");
	if (pt_rank == 0 && number == dies_in)
		raise(SIGKILL);
	int fd = open_data(number, O_WRONLY | O_CREAT | O_TRUNC);
	PT_MUST(write(fd, &mine, sizeof mine) == (ssize_t)sizeof mine && fsync(fd) == 0 && close(fd) == 0, "%s", strerror(errno));
}

/* What all come to, computed by one. */
static uint64_t result(int rank, int steps) {
	static uint64_t all[PT_MAX][2048];
	PT_MUST(steps < 2048, "%d steps", steps);
	for (int t = 0; t <= steps; t++)
		for (int r = 0; r < pt_ranks; r++)
			all[r][t] = t == 0 ? first(r) : next(all[r][t - 1], t <= BEHIND ? 0 : all[(r + pt_ranks - 1) % pt_ranks][t - 1 - BEHIND]);
	return all[rank][steps];
}

/* Asks whether a checkpoint is wanted. At rank 1 there is no directory for the first one. */
static void look(const char *directory, bool *may_fail) {
	int before = 0, after = 0, had = pmGetCheckpoint(pt_context, &before);
	if (*may_fail && pt_rank == 1)
		unsetenv("PM_CHECKPOINT");
	int said = pmCheckpointIfAsked(pt_context, save, &mine);
	if (*may_fail && said != 0) {
		PT_CHECK(said == (pt_rank == 1 ? EINVAL : ECANCELED), "pmCheckpointIfAsked: %s", pt_why());
		*may_fail = false;
		PT_CHECK(pmGetCheckpoint(pt_context, &after) == had, "a checkpoint that has failed counts");
	} else {
		PT_CHECK(said == 0, "pmCheckpointIfAsked: %s", pt_why());
		if (pmGetCheckpoint(pt_context, &after) == 0 && (had != 0 || after != before)) {
			PT_CHECK(!*may_fail && after == before + 1, "checkpoint %d after %d", after, before);
			printf("rank %d has saved step %d\n", pt_rank, mine.step);
			fflush(stdout);
		}
	}
	setenv("PM_CHECKPOINT", directory, 1);
}

/* The context that was the first to ask is the one of the job. */
static void look_at_another(void) {
	pmContext *other;
	PT_MUST(pmOpenContext(pt_device, &other) == 0, "pmOpenContext: %s", pt_why());
	PT_SAYS(EINVAL, "another context", pmCheckpointIfAsked(other, NULL, NULL));
	PT_MUST(pmCloseContext(other) == 0, "pmCloseContext: %s", pt_why());
}

int main(int argc, char **argv) {
	int32_t steps = argc > 1 ? atoi(argv[1]) : 200, dies_at = -1;
	if (argc > 3 && strcmp(argv[2], "step") == 0)
		dies_at = atoi(argv[3]);
	else if (argc > 3 && strcmp(argv[2], "asked") == 0)
		asked = atoi(argv[3]);
	else if (argc > 3)
		dies_in = atoi(argv[3]);
	pt_begin();
	/* One that has no directory keeps all from it, and none waits. */
	char *directory = strdup(getenv("PM_CHECKPOINT"));
	if (pt_rank == 1)
		unsetenv("PM_CHECKPOINT");
	PT_SAYS(pt_rank == 1 ? EINVAL : ECANCELED, pt_rank == 1 ? "names no directory" : "node 1 could not", pmRestartUser(pt_context));
	PT_SAYS(pt_rank == 1 ? EINVAL : ECANCELED, pt_rank == 1 ? "names no directory" : "node 1 could not", pmCheckpoint(pt_context, NULL, NULL));
	setenv("PM_CHECKPOINT", directory, 1);
	int number = 0, said = pmRestartUser(pt_context);
	if (said == ENOENT) {
		PT_CHECK(strstr(pt_why(), "there is no checkpoint"), "%s", pt_why());
		PT_SAYS(ENOENT, "no checkpoint", pmGetCheckpoint(pt_context, &number));
		mine.value = first(pt_rank);
	} else {
		PT_MUST(said == 0 && pmGetCheckpoint(pt_context, &number) == 0, "pmRestartUser: %s", pt_why());
		int fd = open_data(number, O_RDONLY);
		PT_MUST(read(fd, &mine, sizeof mine) == (ssize_t)sizeof mine && close(fd) == 0, "what the program had");
		PT_CHECK(asked >= 0 || mine.step == number * EVERY, "checkpoint %d has step %d", number, mine.step);
	}
	printf("rank %d begins with step %d\n", pt_rank, mine.step);
	fflush(stdout);
	bool may_fail = asked >= 0 && said == ENOENT;
	bool is_first = asked >= 0;
	while (mine.step < steps) {
		if (asked >= 0) {
			look(directory, &may_fail);
			usleep((unsigned)(rand_r(&(unsigned){(unsigned)(mine.step * PT_MAX + pt_rank)}) % (asked + 1)));
		}
		if (is_first)
			look_at_another();
		is_first = false;
		uint64_t other = 0;
		pt_must_send((pt_rank + 1) % pt_ranks, &mine.value, sizeof mine.value);
		if (mine.step >= BEHIND)
			pt_must_receive((pt_rank + pt_ranks - 1) % pt_ranks, &other, sizeof other);
		mine.value = next(mine.value, other);
		mine.step++;
		if (mine.step == dies_at)
			raise(SIGKILL);
		if (asked < 0 && mine.step % EVERY == 0) {
			PT_MUST(pmCheckpoint(pt_context, save, &mine) == 0, "pmCheckpoint: %s", pt_why());
			int made = 0;
			PT_CHECK(pmGetCheckpoint(pt_context, &made) == 0 && made == ++number, "checkpoint %d", made);
			number = made;
		}
	}
	PT_CHECK(mine.value == result(pt_rank, steps), "another result");
	for (int i = 0; i < (steps < BEHIND ? steps : BEHIND); i++) {
		uint64_t other;
		pt_must_receive((pt_rank + pt_ranks - 1) % pt_ranks, &other, sizeof other);
	}
	return pt_end();
}
