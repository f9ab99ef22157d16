/*
 * What a process pays for having a device open: the time to open it, and then memory and processor time while it does
 * nothing.
 *
 *   idle SECONDS
 *
 * The library is loaded by dlopen, so that its own pages are counted too. Prints one line of numbers:
 * ms to list and open, KiB (PSS) added by loading and opening, KiB added by opening alone, KiB of private pages written
 * by both, ms of processor time in SECONDS of sleep, threads.
 */
#define _GNU_SOURCE
#include "clock.h"

#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

struct ibv_device;
struct ibv_context;

/* A field of a /proc/self file, in the file's own unit. */
static long field(const char *path, const char *name)
{
	char line[256];
	long value = -1;
	FILE *file = fopen(path, "r");
	while (file && fgets(line, sizeof line, file))
		if (!strncmp(line, name, strlen(name)))
			value = atol(line + strlen(name));
	if (file)
		fclose(file);
	return value;
}

static long pss_kib(void)
{
	return field("/proc/self/smaps_rollup", "Pss:");
}

static long written_kib(void)
{
	return field("/proc/self/smaps_rollup", "Private_Dirty:");
}

int main(int argc, char **argv)
{
	long seconds = argc > 1 ? atol(argv[1]) : 2;
	pss_kib(); /* the first call brings in stdio's own pages */
	long bare = pss_kib(), bare_written = written_kib();
	void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_GLOBAL);
	if (!library) {
		fprintf(stderr, "idle: %s\n", dlerror());
		return 1;
	}
	struct ibv_device **(*get_device_list)(int *) = dlsym(library, "ibv_get_device_list");
	struct ibv_context *(*open_device)(struct ibv_device *) = dlsym(library, "ibv_open_device");
	if (!get_device_list || !open_device)
		return 1;

	long loaded = pss_kib();
	uint64_t begin = now_ns();
	struct ibv_device **list = get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? open_device(list[0]) : NULL;
	double opening = (double)(now_ns() - begin) / 1e6;
	if (!context) {
		fprintf(stderr, "idle: no device\n");
		return 1;
	}
	usleep(50000); /* let what opening has started come to rest */
	long opened = pss_kib(), written = written_kib();

	double before = cpu_ms();
	sleep((unsigned)seconds);
	double idle = cpu_ms() - before;
	printf("%.4f %ld %ld %ld %.4f %ld\n", opening, opened - bare, opened - loaded, written - bare_written, idle,
	       field("/proc/self/status", "Threads:"));
	return 0;
}
