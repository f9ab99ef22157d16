/* Sweeps through a grid along its diagonals, as NPB LU's solver does them: a block lower and a block upper triangular
 * system with five unknowns to a point. The grid is divided in its first two dimensions. A rank computes a plane of the
 * third when it has that plane's edges of the ranks before it, and passes its own on: two short messages for each plane
 * and sweep, one behind the other. All ranks sum the squares of the five unknowns' changes in each iteration.
 *
 * n[] is the grid without its boundary, which is zero. The sums are doubles whose order hardly shows; the unknowns must
 * be those of the serial run bit by bit. */
#include "app.h"
#include <math.h>

static const struct size SIZES[] = {
	{ "S", { 12, 12, 12 }, 50 },
	{ "W", { 33, 33, 33 }, 20 },
	{ "A", { 64, 64, 64 }, 10 },
};

enum { UNKNOWNS = 5 };
/* Per point: three products of a 5 by 5 matrix in each sweep, and what goes with them. */
enum { OPERATIONS = 2 * (3 * 2 * UNKNOWNS * UNKNOWNS + 2 * UNKNOWNS) + 6 * UNKNOWNS };

/* A rank's part: rows from[0] to from[0] + own[0] - 1 of the first dimension, counted from 1, likewise of the second. In
 * memory the planes of the third lie one behind the other, with one more row and column on each side. */
struct block {
	MPI_Comm grid;
	int low[2], high[2];
	int from[2], own[2], depth;
	MPI_Datatype column;
	double *u, *v;
};

static size_t at(const struct block *s, int i, int j, int k)
{
	return (((size_t)k * (size_t)(s->own[0] + 2) + (size_t)i) * (size_t)(s->own[1] + 2) + (size_t)j) * UNKNOWNS;
}

static double *array(const struct block *s)
{
	size_t bytes = at(s, 0, 0, s->depth + 2) * sizeof(double);
	return memset(room(bytes), 0, bytes);
}

static struct block block_new(const struct app *app, MPI_Comm comm)
{
	struct block s = { .depth = app->size->n[2] };
	int ranks, rank, dims[2] = { 0, 0 }, where[2];
	MPI_Comm_size(comm, &ranks);
	MPI_Dims_create(ranks, 2, dims);
	MPI_Cart_create(comm, 2, dims, (int[]){ 0, 0 }, 0, &s.grid);
	MPI_Comm_rank(s.grid, &rank);
	MPI_Cart_coords(s.grid, rank, 2, where);
	for (int d = 0; d < 2; d++) {
		if (app->size->n[d] < dims[d])
			refuse("more ranks than rows");
		s.from[d] = 1 + part(app->size->n[d], dims[d], where[d]);
		s.own[d] = 1 + part(app->size->n[d], dims[d], where[d] + 1) - s.from[d];
		MPI_Cart_shift(s.grid, d, 1, &s.low[d], &s.high[d]);
	}
	MPI_Type_vector(s.own[0], UNKNOWNS, (s.own[1] + 2) * UNKNOWNS, MPI_DOUBLE, &s.column);
	MPI_Type_commit(&s.column);
	s.u = array(&s);
	s.v = array(&s);
	return s;
}

static void block_free(struct block *s)
{
	free(s->u);
	free(s->v);
	MPI_Type_free(&s->column);
	MPI_Comm_free(&s->grid);
}

/* Coefficients differ from place to place, so that a point at a wrong place is seen, and are small enough for the
 * iterations to converge. */
static double coefficient(const struct block *s, int i, int j, int k)
{
	return 0.02 + 0.001 * ((s->from[0] + i) * 7 + (s->from[1] + j) * 5 + k * 3) * 0.01;
}

static double matrix(int which, int row, int column)
{
	return row == column ? 1.0 : 0.05 * ((which * 11 + row * 5 + column * 3) % 7 - 3);
}

/* Takes from `to` what the three neighbours at `x`, `y` and `z` bring. */
static void take_off(double *to, const double *x, const double *y, const double *z, double factor, double m[3][5][5])
{
	for (int row = 0; row < UNKNOWNS; row++) {
		double sum = 0;
		for (int c = 0; c < UNKNOWNS; c++)
			sum += m[0][row][c] * x[c] + m[1][row][c] * y[c] + m[2][row][c] * z[c];
		to[row] -= factor * sum;
	}
}

/* The edges of plane k, from those before or to those behind in a sweep that goes `up` or down. */
static void receive_edges(struct block *s, int k, int up)
{
	const int *from = up ? s->low : s->high;
	int i = up ? 0 : s->own[0] + 1, j = up ? 0 : s->own[1] + 1;
	MPI_Recv(s->v + at(s, i, 1, k), s->own[1] * UNKNOWNS, MPI_DOUBLE, from[0], 1, s->grid, MPI_STATUS_IGNORE);
	MPI_Recv(s->v + at(s, 1, j, k), 1, s->column, from[1], 2, s->grid, MPI_STATUS_IGNORE);
}

static void send_edges(struct block *s, int k, int up)
{
	const int *to = up ? s->high : s->low;
	int i = up ? s->own[0] : 1, j = up ? s->own[1] : 1;
	MPI_Send(s->v + at(s, i, 1, k), s->own[1] * UNKNOWNS, MPI_DOUBLE, to[0], 1, s->grid);
	MPI_Send(s->v + at(s, 1, j, k), 1, s->column, to[1], 2, s->grid);
}

static void sweep(struct block *s, int up, double m[3][5][5])
{
	int step = up ? -1 : 1;
	for (int n = 1; n <= s->depth; n++) {
		int k = up ? n : s->depth + 1 - n;
		receive_edges(s, k, up);
		for (int a = 1; a <= s->own[0]; a++)
			for (int b = 1; b <= s->own[1]; b++) {
				int i = up ? a : s->own[0] + 1 - a, j = up ? b : s->own[1] + 1 - b;
				take_off(s->v + at(s, i, j, k), s->v + at(s, i + step, j, k), s->v + at(s, i, j + step, k),
					 s->v + at(s, i, j, k + step), coefficient(s, i, j, k), m);
			}
		send_edges(s, k, up);
	}
}

/* The sums of the squares of the last changes. Of `app` it is told how far it is, unless it is NULL. */
static void solve(struct block *s, const struct app *app, int iterations, double norms[UNKNOWNS])
{
	double m[2][3][5][5];
	for (int x = 0; x < 2 * 3 * 5 * 5; x++)
		m[x / 75][x / 25 % 3][x / 5 % 5][x % 5] = matrix(x / 25, x / 5 % 5, x % 5);
	for (int n = 0; n < iterations; n++) {
		double own[UNKNOWNS] = { 0 };
		for (int k = 1; k <= s->depth; k++)
			for (int i = 1; i <= s->own[0]; i++)
				for (int j = 1; j <= s->own[1]; j++)
					for (int c = 0; c < UNKNOWNS; c++) {
						size_t x = at(s, i, j, k) + (size_t)c;
						s->v[x] = 1.0 + 0.1 * c - s->u[x] + coefficient(s, i, j, k);
					}
		sweep(s, 1, m[0]);
		sweep(s, 0, m[1]);
		for (int k = 1; k <= s->depth; k++)
			for (int i = 1; i <= s->own[0]; i++)
				for (int j = 1; j <= s->own[1]; j++)
					for (int c = 0; c < UNKNOWNS; c++) {
						size_t x = at(s, i, j, k) + (size_t)c;
						s->u[x] += 0.5 * s->v[x];
						own[c] += s->v[x] * s->v[x];
					}
		MPI_Allreduce(own, norms, UNKNOWNS, MPI_DOUBLE, MPI_SUM, s->grid);
		if (app)
			app_step(app, n + 1, norms[0]);
	}
}

/* Rank 0 gets everybody's planes, by a type that puts them where they belong, and compares them with the serial run's. */
static int compare(const struct app *app, struct block *s, const double norms[UNKNOWNS])
{
	int mine[4] = { s->from[0], s->from[1], s->own[0], s->own[1] }, ok = 1;
	int all[4] = { s->depth + 2, s->own[0] + 2, s->own[1] + 2, UNKNOWNS };
	MPI_Datatype own;
	MPI_Type_create_subarray(4, all, (int[]){ s->depth, s->own[0], s->own[1], UNKNOWNS }, (int[]){ 1, 1, 1, 0 },
				 MPI_ORDER_C, MPI_DOUBLE, &own);
	MPI_Type_commit(&own);
	MPI_Request r[2];
	MPI_Isend(mine, 4, MPI_INT, 0, 3, s->grid, &r[0]);
	MPI_Isend(s->u, 1, own, 0, 4, s->grid, &r[1]);
	if (app->rank == 0) {
		struct block serial = block_new(app, MPI_COMM_SELF);
		double expected[UNKNOWNS];
		solve(&serial, NULL, app->iterations, expected);
		for (int c = 0; c < UNKNOWNS; c++)
			if (!(fabs(norms[c] - expected[c]) <= 1e-9 * expected[c])) {
				fprintf(stderr, "wavefront: norm %d is %.15g, serial %.15g\n", c, norms[c], expected[c]);
				ok = 0;
			}
		double *whole = array(&serial);
		size_t numbers = at(&serial, 0, 0, serial.depth + 2), wrong = 0;
		for (int from = 0; from < app->ranks; from++) {
			MPI_Datatype place;
			int bounds[4];
			MPI_Recv(bounds, 4, MPI_INT, from, 3, s->grid, MPI_STATUS_IGNORE);
			int whole_of[4] = { serial.depth + 2, serial.own[0] + 2, serial.own[1] + 2, UNKNOWNS };
			MPI_Type_create_subarray(4, whole_of, (int[]){ s->depth, bounds[2], bounds[3], UNKNOWNS },
						 (int[]){ 1, bounds[0], bounds[1], 0 }, MPI_ORDER_C, MPI_DOUBLE, &place);
			MPI_Type_commit(&place);
			MPI_Recv(whole, 1, place, from, 4, s->grid, MPI_STATUS_IGNORE);
			MPI_Type_free(&place);
		}
		for (size_t x = 0; x < numbers; x++)
			wrong += memcmp(&whole[x], &serial.u[x], sizeof(double)) != 0;
		if (wrong)
			fprintf(stderr, "wavefront: %zu of %zu numbers differ from the serial run's\n", wrong, numbers);
		ok = ok && !wrong;
		free(whole);
		block_free(&serial);
	}
	MPI_Waitall(2, r, MPI_STATUSES_IGNORE);
	MPI_Type_free(&own);
	return ok;
}

int main(int argc, char **argv)
{
	struct app app = app_start(argc, argv, SIZES, 3);
	struct block s = block_new(&app, MPI_COMM_WORLD);
	double norms[UNKNOWNS];
	MPI_Barrier(s.grid);
	double start = MPI_Wtime();
	solve(&s, &app, app.iterations, norms);
	double took = longest(MPI_Wtime() - start, s.grid);
	int ok = isfinite(norms[0]) && (!app.checked || compare(&app, &s, norms));
	const int *n = app.size->n;
	char numbers[100];
	snprintf(numbers, sizeof(numbers), "%.0f MFLOPS, change %.6e",
		 (double)n[0] * n[1] * n[2] * OPERATIONS * app.iterations / took * 1e-6, sqrt(norms[0]));
	block_free(&s);
	return app_end(&app, "wavefront", took, numbers, ok);
}
