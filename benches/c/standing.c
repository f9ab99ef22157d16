/*
 * What it costs to stop a context, to let it go on, to save it and to restore it (vervain.h).
 *
 *   standing QPS
 *
 * prints the best of many: microseconds of a stop and of going on, milliseconds of a save and of a restore. The QPs are connected, each
 * to itself.
 */
#define _GNU_SOURCE
#include "clock.h"
#include "verbs.h"

#include "../../crates/verbs/libibverbs/include/vervain.h"
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

enum { STOPS = 51, SAVES = 5 };

static int (*stop)(struct ibv_context *, const struct vervain_stop_attr *);
static int (*go)(struct ibv_context *);
static int (*save)(struct ibv_context *, int, const struct vervain_save_attr *);
static int (*restore)(struct ibv_context *, int, const struct vervain_restore_attr *);

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp **qps;
static int known;

static void restored(void *user, const struct vervain_object *o)
{
	(void)user;
	if (o->kind == VERVAIN_PD)
		pd = o->object;
	else if (o->kind == VERVAIN_CQ)
		cq = o->object;
	else if (o->kind == VERVAIN_QP)
		qps[known++] = o->object;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 10000;
	struct ibv_context *context = open_device();
	*(void **)&stop = dlsym(RTLD_DEFAULT, "vervain_stop");
	*(void **)&go = dlsym(RTLD_DEFAULT, "vervain_go");
	*(void **)&save = dlsym(RTLD_DEFAULT, "vervain_save");
	*(void **)&restore = dlsym(RTLD_DEFAULT, "vervain_restore");
	if (!stop || !go || !save || !restore)
		die("not Vervain's library");
	pd = ibv_alloc_pd(context);
	cq = pd ? ibv_create_cq(context, count, NULL, NULL, 0) : NULL;
	qps = calloc((size_t)count, sizeof(*qps));
	if (!cq || !qps)
		die("objects");
	for (int i = 0; i < count; i++) {
		qps[i] = make_qp(pd, cq, cq, NULL, 4);
		connect_qp(qps[i], address_of(qps[i], NULL));
	}
	uint64_t best[4] = { UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX };
	for (int k = 0; k < STOPS; k++) {
		uint64_t begin = now_ns();
		need("vervain_stop", stop(context, NULL));
		uint64_t middle = now_ns();
		need("vervain_go", go(context));
		best[0] = least(best[0], middle - begin);
		best[1] = least(best[1], now_ns() - middle);
		usleep(2000);
	}
	for (int k = 0; k < SAVES; k++) {
		int fd = memfd_create("image", MFD_CLOEXEC);
		struct vervain_restore_attr attr = { .restored = restored };
		need("vervain_stop", stop(context, NULL));
		uint64_t begin = now_ns();
		need("vervain_save", save(context, fd, NULL));
		best[2] = least(best[2], now_ns() - begin);
		for (int i = 0; i < count; i++)
			need("ibv_destroy_qp", ibv_destroy_qp(qps[i]));
		need("ibv_destroy_cq", ibv_destroy_cq(cq));
		need("ibv_dealloc_pd", ibv_dealloc_pd(pd));
		lseek(fd, 0, SEEK_SET);
		known = 0;
		begin = now_ns();
		need("vervain_restore", restore(context, fd, &attr));
		best[3] = least(best[3], now_ns() - begin);
		need("vervain_go", go(context));
		close(fd);
	}
	printf("%.1f %.1f %.2f %.2f\n", (double)best[0] / 1e3, (double)best[1] / 1e3, (double)best[2] / 1e6, (double)best[3] / 1e6);
	return 0;
}
