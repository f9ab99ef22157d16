/*
 * A solver that saves itself when it is asked: sweeps of SSOR through a cube of points, up and down in turn, as NPB's LU does them. Each
 * node has a slab of it. In a sweep a node computes a plane when it has the edge of the node before it, and passes its own edge on: short
 * messages, one behind the other, from the first node to the last and back.
 *
 *   make && vervain launch -n 4 -- ./lu -n 48 -i 500 -e 50
 *
 * With somebody who asks (docs/checkpoint.md, Without CRIU):
 *
 *   vervain job run --cooperative --name lu --dir ~/lu -- vervain launch -n 4 -- ./lu -i 100000 -o result
 *   vervain checkpoint lu ~/lu          # elsewhere; then it may be killed
 *   vervain restart ~/lu                # goes on from there
 *
 * -n POINTS of an edge of the cube, -i ITERATIONS, -e N: print how far it is after each N of them, -p MS: and pause so long then, as if there were more to compute, -o FILE: write each iteration's change
 * and a sum over all points there in the end. The file is the same whether the solver was interrupted or not, bit by bit.
 */
#include <pm.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LARGEST = 512, PATIENT = 200 };

static pmContext *context;
static int self, nodes;

/* What a checkpoint has of the program: the point of each plane, row and column, with a layer of others' and the boundary's around, and
 * the changes of all iterations until now. */
static struct {
	int points, iterations; /* as the options say */
	int rows, first;        /* of the first dimension: how many this node has, and which comes first, from 1 */
	int done;               /* iterations */
	double *u, *v;          /* the points, and what a sweep makes of them */
	double *changes;
} solver;

static _Noreturn void die(const char *what) {
	fprintf(stderr, "lu: node %d: %s: %s\n", self, what, errno ? strerror(errno) : pmErrorString());
	exit(1);
}

static void must(int said, const char *what) {
	errno = 0;
	if (said != PM_SUCCESS)
		die(what);
}

/* ---- Messages ---- */

/* Messages that have come before the one that was wanted, in order. They are of this program's, so a checkpoint would have to save them; but
 * none is made while there are any. */
struct waiting {
	struct waiting *next;
	int from;
	size_t bytes;
	double data[];
};
static struct waiting *waiting, **last = &waiting;

/* Takes a message in, if one has come. */
static int take(void) {
	caddr_t buffer;
	size_t bytes;
	int from, said = pmReceive(context, &buffer, &bytes);
	if (said == ENOBUFS)
		return 0;
	must(said, "pmReceive");
	must(pmGetSender(context, &from), "pmGetSender");
	struct waiting *one = malloc(sizeof *one + bytes);
	if (!one)
		die("malloc");
	one->next = NULL;
	one->from = from;
	one->bytes = bytes;
	memcpy(one->data, buffer, bytes);
	must(pmReleaseReceiveBuffer(context), "pmReleaseReceiveBuffer");
	*last = one;
	last = &one->next;
	return 1;
}

/* Sleeps until something has come. */
static void rest(void) {
	struct pollfd fd = { .events = POLLIN };
	int room = 1, said = pmBeforeSelect(context);
	if (said == EBUSY)
		return;
	must(said, "pmBeforeSelect");
	must(pmGetFd(context, &fd.fd, &room), "pmGetFd");
	poll(&fd, 1, -1);
	must(pmAfterSelect(context), "pmAfterSelect");
}

static void send_to(int node, const double *data, size_t bytes) {
	caddr_t buffer;
	int said;
	while ((said = pmGetSendBuffer(context, node, &buffer, bytes)) == ENOBUFS)
		if (!take())
			rest();
	must(said, "pmGetSendBuffer");
	memcpy(buffer, data, bytes);
	must(pmSend(context), "pmSend");
}

static void receive_from(int node, double *data, size_t bytes) {
	for (int looks = 0;; looks++) {
		for (struct waiting **at = &waiting; *at; at = &(*at)->next) {
			struct waiting *one = *at;
			if (one->from != node)
				continue;
			if (one->bytes != bytes)
				die("a message of another length");
			memcpy(data, one->data, bytes);
			*at = one->next;
			if (last == &one->next)
				last = at;
			free(one);
			return;
		}
		while (!take())
			if (++looks > PATIENT)
				rest();
	}
}

/* The sum of all nodes' numbers, added in the order of the nodes, so that it is the same each time. */
static double sum_of_all(double own) {
	double sum = own;
	if (self != 0) {
		send_to(0, &own, sizeof own);
		receive_from(0, &sum, sizeof sum);
		return sum;
	}
	for (int node = 1; node < nodes; node++) {
		double other;
		receive_from(node, &other, sizeof other);
		sum += other;
	}
	for (int node = 1; node < nodes; node++)
		send_to(node, &sum, sizeof sum);
	return sum;
}

/* ---- The solver ---- */

static size_t at(int plane, int row, int column) {
	size_t width = (size_t)solver.points + 2;
	return ((size_t)plane * (size_t)(solver.rows + 2) + (size_t)row) * width + (size_t)column;
}

static size_t bytes_of_array(void) { return at(solver.points + 2, 0, 0) * sizeof(double); }

static double *array(void) {
	double *numbers = calloc(1, bytes_of_array());
	if (!numbers)
		die("calloc");
	return numbers;
}

static double heat(int plane, int row, int column) {
	return 1.0 + 0.01 * ((plane * 7 + (solver.first + row) * 5 + column * 3) % 11);
}

/* Bytes of a row: what a message has. */
static size_t edge(void) { return ((size_t)solver.points + 2) * sizeof(double); }

/* The rows of others beside this node's. */
static void exchange(double *numbers) {
	for (int k = 1; k <= solver.points; k++) {
		if (self > 0)
			send_to(self - 1, numbers + at(k, 1, 0), edge());
		if (self < nodes - 1)
			send_to(self + 1, numbers + at(k, solver.rows, 0), edge());
		if (self > 0)
			receive_from(self - 1, numbers + at(k, 0, 0), edge());
		if (self < nodes - 1)
			receive_from(self + 1, numbers + at(k, solver.rows + 1, 0), edge());
	}
}

/* One of the two triangular systems: each point with the three neighbours that come before it in this direction. */
static void sweep(int up) {
	int step = up ? -1 : 1, before = self + step, behind = self - step;
	for (int n = 1; n <= solver.points; n++) {
		int k = up ? n : solver.points + 1 - n;
		if (before >= 0 && before < nodes)
			receive_from(before, solver.v + at(k, up ? 0 : solver.rows + 1, 0), edge());
		for (int a = 1; a <= solver.rows; a++)
			for (int b = 1; b <= solver.points; b++) {
				int i = up ? a : solver.rows + 1 - a, j = up ? b : solver.points + 1 - b;
				solver.v[at(k, i, j)] += 0.15 * (solver.v[at(k + step, i, j)] + solver.v[at(k, i + step, j)] +
								 solver.v[at(k, i, j + step)]);
			}
		if (behind >= 0 && behind < nodes)
			send_to(behind, solver.v + at(k, up ? solver.rows : 1, 0), edge());
	}
}

/* The sum of the squares of what it changes. */
static double iterate(void) {
	double change = 0;
	exchange(solver.u);
	memset(solver.v, 0, bytes_of_array());
	for (int k = 1; k <= solver.points; k++)
		for (int i = 1; i <= solver.rows; i++)
			for (int j = 1; j <= solver.points; j++) {
				const double *u = solver.u + at(k, i, j);
				size_t row = (size_t)solver.points + 2, plane = row * (size_t)(solver.rows + 2);
				double around = u[-1] + u[1] + u[-(ptrdiff_t)row] + u[row] + u[-(ptrdiff_t)plane] + u[plane];
				solver.v[at(k, i, j)] = (heat(k, i, j) + around) / 6 - *u;
			}
	sweep(1);
	sweep(0);
	for (int k = 1; k <= solver.points; k++)
		for (int i = 1; i <= solver.rows; i++)
			for (int j = 1; j <= solver.points; j++) {
				double more = solver.v[at(k, i, j)];
				solver.u[at(k, i, j)] += more;
				change += more * more;
			}
	return sum_of_all(change);
}

/* ---- Saving ---- */

static int open_saved(int number, int flags) {
	char path[4096];
	snprintf(path, sizeof path, "%s/lu.%d.%d", getenv("PM_CHECKPOINT"), self, number);
	int fd = open(path, flags, 0600);
	if (fd < 0)
		die(path);
	return fd;
}

static void move_all(int fd, void *data, size_t bytes, int is_written) {
	for (char *from = data; bytes > 0;) {
		ssize_t moved = is_written ? write(fd, from, bytes) : read(fd, from, bytes);
		if (moved <= 0)
			die("what is saved");
		from += moved;
		bytes -= (size_t)moved;
	}
}

/* The arrays, to a file or from it. The others in `solver` follow from the options. */
static void move_solver(int number, int is_written) {
	int fd = open_saved(number, is_written ? O_WRONLY | O_CREAT | O_TRUNC : O_RDONLY);
	int of[] = { solver.points, solver.rows, solver.done };
	move_all(fd, of, sizeof of, is_written);
	if (of[0] != solver.points || of[1] != solver.rows || of[2] > solver.iterations)
		die("it was saved with other options");
	solver.done = of[2];
	move_all(fd, solver.u, bytes_of_array(), is_written);
	move_all(fd, solver.changes, (size_t)solver.done * sizeof(double), is_written);
	if (close(fd))
		die("close");
}

/* What the library calls when all nodes stand still. It sees to it that all of them have, and that the disk keeps it. */
static void save(void *argument, int number) {
	(void)argument;
	errno = 0;
	if (waiting)
		die("a message was left");
	move_solver(number, 1);
}

static _Noreturn void usage(void) {
	fprintf(stderr, "lu [-n POINTS] [-i ITERATIONS] [-e EVERY [-p MILLISECONDS]] [-o FILE]\n");
	exit(2);
}

int main(int argc, char **argv) {
	int every = 0, pause_ms = 0, option, number;
	const char *output = NULL;
	solver.points = 32;
	solver.iterations = 100;
	while ((option = getopt(argc, argv, "n:i:e:p:o:")) != -1)
		switch (option) {
		case 'n':
			solver.points = atoi(optarg);
			break;
		case 'i':
			solver.iterations = atoi(optarg);
			break;
		case 'e':
			every = atoi(optarg);
			break;
		case 'p':
			pause_ms = atoi(optarg);
			break;
		case 'o':
			output = optarg;
			break;
		default:
			usage();
		}
	if (optind != argc || solver.points < 1 || solver.points > LARGEST || solver.iterations < 1 || every < 0 || pause_ms < 0)
		usage();

	score_initialize(argc, argv);
	context = score_pmnet[0];
	self = score_self_node;
	nodes = score_num_node;
	if (solver.points < nodes)
		usage();
	solver.first = solver.points * self / nodes;
	solver.rows = solver.points * (self + 1) / nodes - solver.first;
	solver.u = array();
	solver.v = array();
	solver.changes = calloc((size_t)solver.iterations, sizeof *solver.changes);
	if (!solver.changes)
		die("calloc");

	/* Where there is a checkpoint, it goes on; all nodes have the same answer. */
	if (getenv("PM_CHECKPOINT")) {
		int said = pmRestartUser(context);
		if (said != ENOENT) {
			must(said, "pmRestartUser");
			must(pmGetCheckpoint(context, &number), "pmGetCheckpoint");
			move_solver(number, 0);
			if (self == 0)
				printf("goes on after iteration %d\n", solver.done);
		}
	}
	while (solver.done < solver.iterations) {
		/* Once in each iteration: nothing of it was sent yet. */
		must(pmCheckpointIfAsked(context, save, NULL), "pmCheckpointIfAsked");
		double change = iterate();
		solver.changes[solver.done++] = sqrt(change);
		if (self == 0 && every && solver.done % every == 0) {
			printf("iteration %d: %.17g\n", solver.done, sqrt(change));
			fflush(stdout);
			poll(NULL, 0, pause_ms);
		}
	}
	double sum = 0;
	for (int k = 1; k <= solver.points; k++)
		for (int i = 1; i <= solver.rows; i++)
			for (int j = 1; j <= solver.points; j++)
				sum += solver.u[at(k, i, j)] * (k + 2 * (solver.first + i) + 3 * j);
	sum = sum_of_all(sum);
	if (self == 0) {
		printf("lu %d, %d nodes, %d iterations: change %.17g, sum %.17g\n", solver.points, nodes, solver.done,
		       solver.changes[solver.done - 1], sum);
		FILE *file = output ? fopen(output, "w") : NULL;
		if (output && !file)
			die(output);
		for (int n = 0; file && n < solver.done; n++)
			fprintf(file, "%d %.17g\n", n + 1, solver.changes[n]);
		if (file && (fprintf(file, "sum %.17g\n", sum) < 0 || fclose(file)))
			die(output);
	}
	return 0;
}
