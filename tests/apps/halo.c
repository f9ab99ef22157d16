/* Halo exchange and allreduce, as the Himeno benchmark does them: Jacobi iterations of a pressure equation with a
 * stencil of 19 points, in single precision, coefficients in memory. The grid is divided in two dimensions; a rank
 * gets the faces of its neighbours, which carry the edges, and all ranks sum the residual, in each iteration.
 *
 * n[] is the grid with its boundary, which stays as it is. The sum of the residual is a double, so that the order in
 * which ranks are summed hardly shows; the pressures must be those of the serial run bit by bit. */
#include "app.h"
#include <math.h>

static const struct size SIZES[] = {
	{ "S", { 64, 64, 128 }, 40 },
	{ "M", { 128, 128, 256 }, 20 },
	{ "L", { 256, 256, 512 }, 10 },
};

/* Per inner point: 34 operations, as Himeno counts them. */
enum { OPERATIONS = 34 };
static const float OMEGA = 0.8f;

/* A rank's part of the grid: planes from[0] to from[0] + own[0] - 1 of the first dimension, likewise of the second, the
 * whole third; in memory with one more on each side, halo or boundary. */
struct block {
	MPI_Comm grid;
	int low[2], high[2];
	int from[2], own[2], depth;
	MPI_Datatype face[2];
	float *p, *next;
	float *a[4], *b[3], *c[3], *source, *inside, *changes;
};

static size_t at(const struct block *s, int i, int j, int k)
{
	return ((size_t)i * (size_t)(s->own[1] + 2) + (size_t)j) * (size_t)s->depth + (size_t)k;
}

static float *array(const struct block *s)
{
	return room(at(s, s->own[0] + 2, 0, 0) * sizeof(float));
}

/* Coefficients and pressures depend on the place in the whole grid, each in its own way, so that a point at a wrong
 * place is seen. They stay near those of Poisson's equation, so that the iterations converge. */
static void fill(struct block *s)
{
	for (int i = 0; i < s->own[0] + 2; i++)
		for (int j = 0; j < s->own[1] + 2; j++)
			for (int k = 0; k < s->depth; k++) {
				size_t x = at(s, i, j, k);
				int gi = s->from[0] - 1 + i, gj = s->from[1] - 1 + j;
				float wave = 0.01f * (float)((gi * 7 + gj * 5 + k * 3) % 11);
				for (int d = 0; d < 3; d++) {
					s->a[d][x] = 1.0f - wave;
					s->b[d][x] = 0.1f * wave * (float)(d + 1);
					s->c[d][x] = 1.0f - 0.5f * wave;
				}
				s->a[3][x] = 1.0f / 6.0f;
				s->source[x] = 0.001f * (float)((gi + 2 * gj + 3 * k) % 7);
				s->inside[x] = (gi * gj + k) % 97 ? 1.0f : 0.0f;
				s->p[x] = s->next[x] = (float)((gi * 31 + gj * 17 + k * 13) % 101) * 0.01f;
			}
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
		int inner = app->size->n[d] - 2;
		if (inner < dims[d])
			refuse("more ranks than planes");
		s.from[d] = 1 + part(inner, dims[d], where[d]);
		s.own[d] = 1 + part(inner, dims[d], where[d] + 1) - s.from[d];
		MPI_Cart_shift(s.grid, d, 1, &s.low[d], &s.high[d]);
	}
	/* A face across the first dimension lies in one piece; one across the second is a row of each plane, those
	 * of the halo too. */
	MPI_Type_contiguous((s.own[1] + 2) * s.depth, MPI_FLOAT, &s.face[0]);
	MPI_Type_vector(s.own[0] + 2, s.depth, (s.own[1] + 2) * s.depth, MPI_FLOAT, &s.face[1]);
	for (int d = 0; d < 2; d++)
		MPI_Type_commit(&s.face[d]);
	s.p = array(&s);
	s.next = array(&s);
	s.source = array(&s);
	s.inside = array(&s);
	s.changes = room((size_t)s.depth * sizeof(float));
	for (int d = 0; d < 4; d++)
		s.a[d] = array(&s);
	for (int d = 0; d < 3; d++) {
		s.b[d] = array(&s);
		s.c[d] = array(&s);
	}
	fill(&s);
	return s;
}

static void block_free(struct block *s)
{
	for (int d = 0; d < 4; d++)
		free(s->a[d]);
	for (int d = 0; d < 3; d++) {
		free(s->b[d]);
		free(s->c[d]);
	}
	free(s->p);
	free(s->next);
	free(s->source);
	free(s->inside);
	free(s->changes);
	for (int d = 0; d < 2; d++)
		MPI_Type_free(&s->face[d]);
	MPI_Comm_free(&s->grid);
}

/* The second dimension after the first: its faces carry the edges that the first brought. */
static void exchange(struct block *s)
{
	for (int d = 0; d < 2; d++) {
		int last = s->own[d];
		float *low_halo = s->p, *low = s->p + (d ? at(s, 0, 1, 0) : at(s, 1, 0, 0));
		float *high = s->p + (d ? at(s, 0, last, 0) : at(s, last, 0, 0));
		float *high_halo = s->p + (d ? at(s, 0, last + 1, 0) : at(s, last + 1, 0, 0));
		MPI_Request r[4];
		MPI_Irecv(low_halo, 1, s->face[d], s->low[d], 1, s->grid, &r[0]);
		MPI_Irecv(high_halo, 1, s->face[d], s->high[d], 2, s->grid, &r[1]);
		MPI_Isend(low, 1, s->face[d], s->low[d], 2, s->grid, &r[2]);
		MPI_Isend(high, 1, s->face[d], s->high[d], 1, s->grid, &r[3]);
		MPI_Waitall(4, r, MPI_STATUSES_IGNORE);
	}
}

/* One row of an iteration. The next pressures and the changes go elsewhere than what is read, so that the compiler
 * can take several points at once. */
static void sweep_row(const struct block *s, size_t row, float *restrict next, float *restrict changes)
{
	const size_t I = at(s, 1, 0, 0), J = at(s, 0, 1, 0);
	const float *p = s->p + row, *source = s->source + row, *inside = s->inside + row;
	const float *a0 = s->a[0] + row, *a1 = s->a[1] + row, *a2 = s->a[2] + row, *a3 = s->a[3] + row;
	const float *b0 = s->b[0] + row, *b1 = s->b[1] + row, *b2 = s->b[2] + row;
	const float *c0 = s->c[0] + row, *c1 = s->c[1] + row, *c2 = s->c[2] + row;
	for (int k = 1; k < s->depth - 1; k++) {
		const float *x = p + k;
		float sum = a0[k] * x[I] + a1[k] * x[J] + a2[k] * x[1] +
			    c0[k] * *(x - I) + c1[k] * *(x - J) + c2[k] * x[-1] +
			    b0[k] * (x[I + J] - *(x + I - J) - *(x - I + J) + *(x - I - J)) +
			    b1[k] * (x[J + 1] - *(x - J + 1) - *(x + J - 1) + *(x - J - 1)) +
			    b2[k] * (x[I + 1] - *(x - I + 1) - *(x + I - 1) + *(x - I - 1)) + source[k];
		float change = (sum * a3[k] - x[0]) * inside[k];
		changes[k] = change;
		next[k] = x[0] + OMEGA * change;
	}
}

/* One iteration over a rank's own points; returns its part of the residual. */
static double sweep(struct block *s)
{
	double residual = 0;
	for (int i = 1; i <= s->own[0]; i++)
		for (int j = 1; j <= s->own[1]; j++) {
			size_t row = at(s, i, j, 0);
			sweep_row(s, row, s->next + row, s->changes);
			for (int k = 1; k < s->depth - 1; k++)
				residual += (double)(s->changes[k] * s->changes[k]);
		}
	/* The boundary and the halo of `next` are those of `p`, or come with the next exchange. */
	float *old = s->p;
	s->p = s->next;
	s->next = old;
	return residual;
}

/* The residual of the last iteration. */
static double solve(struct block *s, int iterations)
{
	double all = 0;
	for (int n = 0; n < iterations; n++) {
		exchange(s);
		double own = sweep(s);
		MPI_Allreduce(&own, &all, 1, MPI_DOUBLE, MPI_SUM, s->grid);
	}
	return all;
}

/* Rank 0 gets everybody's points, by a type that puts them where they belong, and compares them with the serial
 * run's. */
static int compare(const struct app *app, struct block *s, double residual)
{
	int mine[4] = { s->from[0], s->from[1], s->own[0], s->own[1] }, bounds[4], ok = 1;
	MPI_Datatype own;
	MPI_Type_create_subarray(3, (int[]){ s->own[0] + 2, s->own[1] + 2, s->depth },
				 (int[]){ s->own[0], s->own[1], s->depth }, (int[]){ 1, 1, 0 }, MPI_ORDER_C, MPI_FLOAT,
				 &own);
	MPI_Type_commit(&own);
	MPI_Request r[2];
	MPI_Isend(mine, 4, MPI_INT, 0, 3, s->grid, &r[0]);
	MPI_Isend(s->p, 1, own, 0, 4, s->grid, &r[1]);
	if (app->rank == 0) {
		struct block serial = block_new(app, MPI_COMM_SELF);
		double expected = solve(&serial, app->iterations);
		if (!(fabs(residual - expected) <= 1e-9 * expected)) {
			fprintf(stderr, "halo: residual %.15g, serial %.15g\n", residual, expected);
			ok = 0;
		}
		/* The boundary is the serial run's; what nobody sends stays NaN. */
		size_t points = at(&serial, serial.own[0] + 2, 0, 0);
		float *whole = array(&serial);
		memcpy(whole, serial.p, points * sizeof(float));
		for (int i = 1; i <= serial.own[0]; i++)
			for (size_t x = at(&serial, i, 1, 0); x < at(&serial, i, serial.own[1] + 1, 0); x++)
				whole[x] = NAN;
		for (int from = 0; from < app->ranks; from++) {
			MPI_Datatype place;
			MPI_Recv(bounds, 4, MPI_INT, from, 3, s->grid, MPI_STATUS_IGNORE);
			MPI_Type_create_subarray(3, app->size->n, (int[]){ bounds[2], bounds[3], s->depth },
						 (int[]){ bounds[0], bounds[1], 0 }, MPI_ORDER_C, MPI_FLOAT, &place);
			MPI_Type_commit(&place);
			MPI_Recv(whole, 1, place, from, 4, s->grid, MPI_STATUS_IGNORE);
			MPI_Type_free(&place);
		}
		size_t wrong = 0;
		for (size_t x = 0; x < points; x++)
			wrong += memcmp(&whole[x], &serial.p[x], sizeof(float)) != 0;
		if (wrong)
			fprintf(stderr, "halo: %zu of %zu points differ from the serial run's\n", wrong, points);
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
	MPI_Barrier(s.grid);
	double start = MPI_Wtime();
	double residual = solve(&s, app.iterations);
	double took = longest(MPI_Wtime() - start, s.grid);
	int ok = isfinite(residual) && (!app.checked || compare(&app, &s, residual));
	const int *n = app.size->n;
	double points = (double)(n[0] - 2) * (n[1] - 2) * (n[2] - 2);
	char numbers[100];
	snprintf(numbers, sizeof(numbers), "%.0f MFLOPS, residual %.6e",
		 points * OPERATIONS * app.iterations / took * 1e-6, residual);
	block_free(&s);
	return app_end(&app, "halo", took, numbers, ok);
}
