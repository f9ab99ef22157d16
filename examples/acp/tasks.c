/* tasks: a queue of tasks that all ranks take from and add to. A task is a block of some rank's heap; the queue is one of rank 0's.
 * Here a task is an interval of the integral of 4 sqrt(1 - x^2) from 0 to 1, which is pi: a rank that finds it too coarse puts
 * both halves into the queue in its place, in the heaps of two ranks, so that nobody knows beforehand how much there is to do.
 *
 *   vervain launch -n 4 -- ./tasks [ERROR]
 */
#include <acp.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLACES (1 << 16) /* tasks that the queue can have in all */
#define SMALLEST 1e-5    /* an interval that is not halved any more */

struct task {
	double from, to;
};

/* The queue. A task that is added takes the next place of `tail`, one that is taken the next of `head`. */
struct queue {
	uint64_t head, tail;
	uint64_t open; /* tasks that are not done; 0: there will be no more */
	acp_ga_t tasks[PLACES];
};
#define AT(queue, member) ((queue) + offsetof(struct queue, member))

/* What a rank reads into and writes from. */
struct own {
	acp_ga_t queue; /* rank 0's tells the others */
	uint64_t word;
	struct task task;
	double sum;
	uint64_t done;
};

static struct own *own;
static acp_ga_t mine, queue;
static int procs;

static void must(int holds, const char *what)
{
	if (holds)
		return;
	const char *why = acp_error();
	char sentence[300];
	snprintf(sentence, sizeof sentence, "tasks: %s: %s", what, why ? why : "");
	acp_abort(sentence);
}

static uint64_t add(acp_ga_t word, uint64_t value)
{
	acp_complete(acp_add8(mine + offsetof(struct own, word), word, value, ACP_HANDLE_NULL));
	return own->word;
}

static uint64_t read_word(acp_ga_t word)
{
	acp_complete(acp_copy(mine + offsetof(struct own, word), word, sizeof own->word, ACP_HANDLE_NULL));
	return own->word;
}

/* Puts a task into the heap of a rank and its address into the queue, in this order. */
static void add_task(double from, double to)
{
	add(AT(queue, open), 1);
	uint64_t place = add(AT(queue, tail), 1);
	must(place < PLACES, "the queue is full");
	acp_ga_t task = acp_malloc(sizeof(struct task), (int)(place % (uint64_t)procs));
	must(task != ACP_GA_NULL, "acp_malloc");
	own->task.from = from;
	own->task.to = to;
	acp_complete(acp_copy(task, mine + offsetof(struct own, task), sizeof own->task, ACP_HANDLE_NULL));
	own->word = task;
	acp_complete(acp_copy(AT(queue, tasks) + place * 8, mine + offsetof(struct own, word), 8, ACP_HANDLE_NULL));
}

/* The next task, or 0 when there will be none any more. */
static int take_task(struct task *task)
{
	uint64_t place = add(AT(queue, head), 1);
	acp_ga_t at = ACP_GA_NULL;
	while (place >= PLACES || (at = read_word(AT(queue, tasks) + place * 8)) == ACP_GA_NULL)
		if (read_word(AT(queue, open)) == 0)
			return 0;
	acp_complete(acp_copy(mine + offsetof(struct own, task), at, sizeof own->task, ACP_HANDLE_NULL));
	*task = own->task;
	acp_free(at);
	return 1;
}

static double height(double x)
{
	return 4 * sqrt(x < 1 ? 1 - x * x : 0);
}

static double simpson(double from, double to)
{
	return (to - from) / 6 * (height(from) + 4 * height((from + to) / 2) + height(to));
}

int main(int argc, char **argv)
{
	must(acp_init(&argc, &argv) == 0, "acp_init");
	double error = argc > 1 ? atof(argv[1]) : 1e-10;
	int rank = acp_rank();
	procs = acp_procs();
	mine = acp_query_starter_ga(rank);
	own = acp_query_address(mine);
	if (rank == 0) {
		queue = acp_malloc(sizeof(struct queue), 0);
		must(queue != ACP_GA_NULL, "acp_malloc");
		memset(acp_query_address(queue), 0, sizeof(struct queue));
		own->queue = queue;
		add_task(0, 1);
	}
	acp_sync();
	queue = read_word(acp_query_starter_ga(0) + offsetof(struct own, queue));

	struct task task;
	while (take_task(&task)) {
		double middle = (task.from + task.to) / 2, coarse = simpson(task.from, task.to);
		double fine = simpson(task.from, middle) + simpson(middle, task.to);
		if (fabs(fine - coarse) > error * (task.to - task.from) && task.to - task.from > SMALLEST) {
			add_task(task.from, middle);
			add_task(middle, task.to);
		} else {
			own->sum += fine;
		}
		own->done++;
		add(AT(queue, open), UINT64_MAX);
	}
	acp_sync();

	if (rank == 0) {
		double sum = 0;
		uint64_t done = 0, busy = 0;
		for (int of = 0; of < procs; of++) {
			uint64_t bits = read_word(acp_query_starter_ga(of) + offsetof(struct own, sum));
			double part;
			memcpy(&part, &bits, sizeof part);
			sum += part;
			uint64_t some = read_word(acp_query_starter_ga(of) + offsetof(struct own, done));
			done += some;
			busy += some > 0;
		}
		printf("tasks: %d ranks, %llu of them had work\n", procs, (unsigned long long)busy);
		printf("tasks: %llu tasks, integral %.9f\n", (unsigned long long)done, sum);
		acp_free(queue);
	}
	acp_sync();
	return acp_finalize() == 0 ? 0 : 1;
}
