/* 3-D FFT with transposes by all-to-all, as FT of the NAS Parallel Benchmarks does it: a heat equation with periodic
 * boundary, solved in the frequency domain. A rank has some planes of the last dimension, transforms the other two, and
 * gets all of the last one, for some rows of the second, by MPI_Alltoall; the way back is the same. Each iteration
 * evolves the spectrum by one step of time, transforms it back and sums 1024 places.
 *
 * n[] is the grid, powers of two; the ranks must divide the second and the third. Each 1-D transform is one row on one
 * rank, so that the numbers must be the serial run's bit by bit; but for the order in which the sums are taken. The
 * transform itself is checked against the definition first. */
#include "app.h"
#include <math.h>

static const struct size SIZES[] = {
	{ "S", { 64, 64, 64 }, 6 },
	{ "W", { 128, 128, 32 }, 6 },
	{ "A", { 256, 256, 128 }, 6 },
};

enum { LONGEST = 256, PLACES = 1024, MOST_ITERATIONS = 100 };
static const double ALPHA = 1e-6, PI = 3.14159265358979323846;

struct complex {
	double re, im;
};

static struct complex times(struct complex a, struct complex b)
{
	return (struct complex){ a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re };
}

/* The roots of unity, exp(-2 pi i k / LONGEST). */
static struct complex roots[LONGEST];

static void roots_init(void)
{
	for (int k = 0; k < LONGEST; k++)
		roots[k] = (struct complex){ cos(2 * PI * k / LONGEST), -sin(2 * PI * k / LONGEST) };
}

/* Transforms n numbers in place by radix 2; backward, with the conjugate roots. Neither scales. */
static void transform(struct complex *x, int n, int backward)
{
	/* To the order of bits from behind. */
	for (int i = 1, j = 0; i < n; i++) {
		int bit = n >> 1;
		for (; j & bit; bit >>= 1)
			j ^= bit;
		j ^= bit;
		if (i < j) {
			struct complex t = x[i];
			x[i] = x[j];
			x[j] = t;
		}
	}
	for (int half = 1; half < n; half *= 2)
		for (int k = 0; k < half; k++) {
			struct complex root = roots[k * (LONGEST / 2 / half)];
			if (backward)
				root.im = -root.im;
			for (int i = k; i < n; i += 2 * half) {
				struct complex odd = times(x[i + half], root), even = x[i];
				x[i] = (struct complex){ even.re + odd.re, even.im + odd.im };
				x[i + half] = (struct complex){ even.re - odd.re, even.im - odd.im };
			}
		}
}

/* Whether the transform of some random numbers is what the definition says, and comes back. */
static int transform_is_right(int n)
{
	struct complex given[LONGEST], x[LONGEST];
	uint64_t random = lcg_at(0);
	double worst = 0;
	for (int i = 0; i < n; i++) {
		given[i].re = lcg_next(&random);
		given[i].im = lcg_next(&random);
	}
	memcpy(x, given, sizeof(x));
	transform(x, n, 0);
	for (int k = 0; k < n; k++) {
		struct complex sum = { 0, 0 };
		for (int i = 0; i < n; i++) {
			struct complex part = times(given[i], roots[(int64_t)i * k * (LONGEST / n) % LONGEST]);
			sum.re += part.re;
			sum.im += part.im;
		}
		worst = fmax(worst, hypot(sum.re - x[k].re, sum.im - x[k].im));
	}
	transform(x, n, 1);
	for (int i = 0; i < n; i++)
		worst = fmax(worst, hypot(x[i].re / n - given[i].re, x[i].im / n - given[i].im));
	if (!(worst < 1e-11))
		fprintf(stderr, "fft: a transform of %d is wrong by %g\n", n, worst);
	return worst < 1e-11;
}

/* A rank's share. In space: planes z0 to z0 + planes - 1, [z][y][x]; in frequency: rows y0 to y0 + rows - 1 of all
 * planes, [y][x][z]. */
struct field {
	MPI_Comm comm;
	int ranks, n[3];
	int planes, z0, rows, y0;
	size_t count;
	struct complex *space, *frequency, *out, *in;
	/* exp(-4 alpha pi^2 k^2 t) for each frequency of each dimension, t being that of the iteration. */
	double *decay[3];
};

static struct field field_new(const struct app *app, MPI_Comm comm)
{
	struct field f = { .comm = comm };
	int rank;
	MPI_Comm_size(comm, &f.ranks);
	MPI_Comm_rank(comm, &rank);
	memcpy(f.n, app->size->n, sizeof(f.n));
	if (f.n[1] % f.ranks || f.n[2] % f.ranks)
		refuse("fft: the number of ranks must divide the second and the third dimension");
	f.planes = f.n[2] / f.ranks;
	f.rows = f.n[1] / f.ranks;
	f.z0 = f.planes * rank;
	f.y0 = f.rows * rank;
	f.count = (size_t)f.planes * (size_t)f.n[1] * (size_t)f.n[0];
	f.space = room(f.count * sizeof(struct complex));
	f.frequency = room(f.count * sizeof(struct complex));
	f.out = room(f.count * sizeof(struct complex));
	f.in = room(f.count * sizeof(struct complex));
	for (int d = 0; d < 3; d++)
		f.decay[d] = room((size_t)f.n[d] * sizeof(double));
	uint64_t random = lcg_at(2 * (uint64_t)f.z0 * (uint64_t)f.n[1] * (uint64_t)f.n[0]);
	for (size_t i = 0; i < f.count; i++) {
		f.space[i].re = lcg_next(&random);
		f.space[i].im = lcg_next(&random);
	}
	return f;
}

static void field_free(struct field *f)
{
	free(f->space);
	free(f->frequency);
	free(f->out);
	free(f->in);
	for (int d = 0; d < 3; d++)
		free(f->decay[d]);
}

static struct complex *at(const struct field *f, int x, int y, int z)
{
	return f->space + ((size_t)z * (size_t)f->n[1] + (size_t)y) * (size_t)f->n[0] + (size_t)x;
}

/* All planes of a rank, along x and y. */
static void transform_planes(struct field *f, int backward)
{
	struct complex column[LONGEST];
	const int nx = f->n[0], ny = f->n[1];
	for (int z = 0; z < f->planes; z++) {
		struct complex *plane = f->space + (size_t)z * (size_t)ny * (size_t)nx;
		for (int y = 0; y < ny; y++)
			transform(plane + (size_t)y * (size_t)nx, nx, backward);
		for (int x = 0; x < nx; x++) {
			for (int y = 0; y < ny; y++)
				column[y] = plane[(size_t)y * (size_t)nx + (size_t)x];
			transform(column, ny, backward);
			for (int y = 0; y < ny; y++)
				plane[(size_t)y * (size_t)nx + (size_t)x] = column[y];
		}
	}
}

/* What goes from a rank to another, or back: [y][x][z] of the rows of the one and the planes of the other. */
static size_t piece(const struct field *f)
{
	return f->count / (size_t)f->ranks;
}

static void all_to_all(struct field *f)
{
	int doubles = (int)(piece(f) * 2);
	MPI_Alltoall(f->out, doubles, MPI_DOUBLE, f->in, doubles, MPI_DOUBLE, f->comm);
}

/* Between f->space and the pieces in `pieces`, which begin with that of rank 0. */
static void planes_and_pieces(struct field *f, struct complex *pieces, int to_pieces)
{
	const int nx = f->n[0], ny = f->n[1];
	for (int y = 0; y < ny; y++)
		for (int x = 0; x < nx; x++)
			for (int z = 0; z < f->planes; z++) {
				struct complex *in_plane = at(f, x, y, z);
				if (to_pieces)
					*pieces++ = *in_plane;
				else
					*in_plane = *pieces++;
			}
}

/* Between f->frequency and the pieces: each row of z is made of one stretch of every rank's. */
static void rows_and_pieces(struct field *f, struct complex *pieces, int to_pieces)
{
	const size_t lines = (size_t)f->rows * (size_t)f->n[0], stretch = (size_t)f->planes;
	for (int r = 0; r < f->ranks; r++)
		for (size_t line = 0; line < lines; line++) {
			struct complex *in_row = f->frequency + line * (size_t)f->n[2] + (size_t)r * stretch;
			struct complex *in_piece = pieces + (size_t)r * piece(f) + line * stretch;
			memcpy(to_pieces ? in_piece : in_row, to_pieces ? in_row : in_piece, stretch * sizeof(*in_row));
		}
}

static void forward(struct field *f)
{
	transform_planes(f, 0);
	planes_and_pieces(f, f->out, 1);
	all_to_all(f);
	rows_and_pieces(f, f->in, 0);
	for (size_t i = 0; i < f->count; i += (size_t)f->n[2])
		transform(f->frequency + i, f->n[2], 0);
}

/* From the spectrum in f->frequency, evolved to time t, to f->space; the spectrum stays. */
static void backward(struct field *f, int t, struct complex *spectrum)
{
	for (int d = 0; d < 3; d++)
		for (int k = 0; k < f->n[d]; k++) {
			double wave = k < f->n[d] / 2 ? k : k - f->n[d];
			f->decay[d][k] = exp(-4 * ALPHA * PI * PI * wave * wave * t);
		}
	memcpy(spectrum, f->frequency, f->count * sizeof(*spectrum));
	struct complex *row = f->frequency;
	for (int y = 0; y < f->rows; y++)
		for (int x = 0; x < f->n[0]; x++) {
			double plane = f->decay[1][f->y0 + y] * f->decay[0][x];
			for (int z = 0; z < f->n[2]; z++) {
				row[z].re *= plane * f->decay[2][z];
				row[z].im *= plane * f->decay[2][z];
			}
			transform(row, f->n[2], 1);
			row += f->n[2];
		}
	rows_and_pieces(f, f->out, 1);
	memcpy(f->frequency, spectrum, f->count * sizeof(*spectrum));
	all_to_all(f);
	planes_and_pieces(f, f->in, 0);
	transform_planes(f, 1);
	double scale = 1.0 / ((double)f->n[0] * f->n[1] * f->n[2]);
	for (size_t i = 0; i < f->count; i++) {
		f->space[i].re *= scale;
		f->space[i].im *= scale;
	}
}

/* The sum over 1024 places of the grid, which lie on all planes. */
static struct complex checksum(const struct field *f)
{
	struct complex own = { 0, 0 }, all;
	for (int j = 1; j <= PLACES; j++) {
		int x = j % f->n[0], y = 3 * j % f->n[1], z = 5 * j % f->n[2] - f->z0;
		if (z < 0 || z >= f->planes)
			continue;
		const struct complex *place = at(f, x, y, z);
		own.re += place->re;
		own.im += place->im;
	}
	MPI_Allreduce(&own, &all, 2, MPI_DOUBLE, MPI_SUM, f->comm);
	return all;
}

static void solve(struct field *f, int iterations, struct complex *sums)
{
	struct complex *spectrum = room(f->count * sizeof(*spectrum));
	forward(f);
	for (int t = 1; t <= iterations; t++) {
		backward(f, t, spectrum);
		sums[t - 1] = checksum(f);
	}
	free(spectrum);
}

/* Rank 0 gets everybody's planes, which follow each other, and compares them and the sums with the serial run's. */
static int compare(const struct app *app, const struct field *f, const struct complex *sums)
{
	int ok = 1, doubles = (int)(f->count * 2);
	size_t total = f->count * (size_t)f->ranks;
	struct complex *whole = app->rank ? NULL : room(total * sizeof(*whole)), expected[MOST_ITERATIONS];
	MPI_Gather(f->space, doubles, MPI_DOUBLE, whole, doubles, MPI_DOUBLE, 0, f->comm);
	if (app->rank)
		return 1;
	struct field serial = field_new(app, MPI_COMM_SELF);
	solve(&serial, app->iterations, expected);
	for (int t = 0; t < app->iterations; t++) {
		double apart = hypot(sums[t].re - expected[t].re, sums[t].im - expected[t].im);
		if (!(apart <= 1e-10 * hypot(expected[t].re, expected[t].im))) {
			fprintf(stderr, "fft: sum %d is (%.15g, %.15g), the serial run's (%.15g, %.15g)\n", t + 1,
				sums[t].re, sums[t].im, expected[t].re, expected[t].im);
			ok = 0;
		}
	}
	if (memcmp(whole, serial.space, total * sizeof(*whole))) {
		fprintf(stderr, "fft: the field is not the serial run's\n");
		ok = 0;
	}
	field_free(&serial);
	free(whole);
	return ok;
}

int main(int argc, char **argv)
{
	struct app app = app_start(argc, argv, SIZES, 3);
	struct complex sums[MOST_ITERATIONS];
	int ok = 1;
	if (app.iterations > MOST_ITERATIONS)
		refuse("fft: 100 iterations at most");
	roots_init();
	for (int n = 2; n <= LONGEST; n *= 2)
		ok = transform_is_right(n) && ok;
	struct field f = field_new(&app, MPI_COMM_WORLD);
	MPI_Barrier(f.comm);
	double start = MPI_Wtime();
	solve(&f, app.iterations, sums);
	double took = longest(MPI_Wtime() - start, f.comm);
	ok = (!app.checked || compare(&app, &f, sums)) && ok;
	/* 5 n log2 n operations a transform, one forward and one back for each iteration. */
	double points = (double)f.n[0] * f.n[1] * f.n[2];
	char numbers[100];
	snprintf(numbers, sizeof(numbers), "%.0f MFLOPS, checksum (%.9e, %.9e)",
		 5 * points * log2(points) * (app.iterations + 1) / took * 1e-6, sums[app.iterations - 1].re,
		 sums[app.iterations - 1].im);
	field_free(&f);
	return app_end(&app, "fft", took, numbers, ok);
}
