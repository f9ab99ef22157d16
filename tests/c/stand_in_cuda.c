/* A stand-in for the CUDA driver, libcuda.so.1, for machines without a GPU: two GPUs whose memory is this process's own.
 * STAND_IN_GPU says what they are like:
 *
 *   none      there is no GPU
 *   full      no memory is left
 *   far       their memory is where nothing is mapped, so that no device reaches it by its address
 *   sealed    their memory is mapped without any right, as CUDA has that of real ones in the CPU's page table
 *   (else)    their memory can be reached
 *
 * Each call that makes, fills or ends something is a line in the file STAND_IN_LOG, after the number of the process. What
 * the driver would refuse is refused: memory without a current context, a context that was not retained, ranges that are
 * no pages. The first line says whether mlx5 was told to leave memory to the device (MLX5_SCATTER_TO_CQE). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201 };
enum { GPUS = 2, MOST = 64, SYNC_MEMOPS = 6, DMA_BUF_FD = 1 };
/* CUDA's addresses are multiples of 512 and, where little is asked for, not of a page. */
enum { ODD = 512 };

static int retained[GPUS];
static void *current[8];
static int depth;
static struct memory { uint64_t at; size_t size; int synced; } memories[MOST];

static int is(const char *what)
{
	const char *like = getenv("STAND_IN_GPU");
	return like && !strcmp(like, what);
}

static void say(const char *format, ...)
{
	char line[200];
	va_list rest;
	const char *path = getenv("STAND_IN_LOG");
	int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
	va_start(rest, format);
	vsnprintf(line, sizeof line, format, rest);
	va_end(rest);
	dprintf(fd, "%d %s\n", getpid(), line);
	close(fd);
}

static struct memory *find(uint64_t at)
{
	for (struct memory *m = memories; m < memories + MOST; m++)
		if (m->size && at >= m->at && at < m->at + m->size)
			return m;
	return NULL;
}

int cuInit(unsigned flags)
{
	const char *scatter = getenv("MLX5_SCATTER_TO_CQE");
	say("init, scatter %s", scatter ? scatter : "unset");
	return flags ? INVALID_VALUE : is("none") ? NO_DEVICE : 0;
}

int cuGetErrorName(int error, const char **name)
{
	*name = error == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : NULL;
	return *name ? 0 : INVALID_VALUE;
}

int cuDeviceGetCount(int *count)
{
	*count = GPUS;
	return 0;
}

int cuDeviceGet(int *device, int index)
{
	if (index < 0 || index >= GPUS)
		return INVALID_DEVICE;
	*device = index;
	return 0;
}

int cuDeviceGetName(char *name, int length, int device)
{
	snprintf(name, (size_t)length, "Stand-in %d", device);
	return 0;
}

int cuDeviceGetPCIBusId(char *id, int length, int device)
{
	snprintf(id, (size_t)length, "FFFF:%02X:00.0", device);
	return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
	say("retain %d", device);
	retained[device]++;
	*context = &retained[device];
	return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
	say("release %d", device);
	return retained[device]-- > 0 ? 0 : INVALID_CONTEXT;
}

int cuCtxPushCurrent_v2(void *context)
{
	if (depth == 8 || *(int *)context <= 0)
		return INVALID_CONTEXT;
	current[depth++] = context;
	return 0;
}

int cuCtxPopCurrent_v2(void **context)
{
	if (!depth)
		return INVALID_CONTEXT;
	*context = current[--depth];
	return 0;
}

int cuMemAlloc_v2(uint64_t *at, size_t size)
{
	static uint64_t next = 1ULL << 44;
	struct memory *m = memories;
	if (!depth)
		return INVALID_CONTEXT;
	while (m < memories + MOST && m->size)
		m++;
	if (is("full") || m == memories + MOST)
		return OUT_OF_MEMORY;
	if (is("far")) {
		*at = next + ODD;
		next += 1ULL << 36;
	} else {
		int rights = is("sealed") ? PROT_NONE : PROT_READ | PROT_WRITE;
		char *start = mmap(NULL, size + ODD, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (start == MAP_FAILED)
			return OUT_OF_MEMORY;
		if (!is("sealed"))
			/* As memory is that somebody had before. */
			memset(start, 0xa5, size + ODD);
		*at = (uint64_t)(start + ODD);
	}
	*m = (struct memory){ .at = *at, .size = size };
	say("alloc %zu", size);
	return 0;
}

int cuPointerSetAttribute(const void *value, int attribute, uint64_t at)
{
	struct memory *m = find(at);
	if (!depth || !m || attribute != SYNC_MEMOPS)
		return INVALID_VALUE;
	m->synced = *(const unsigned *)value == 1;
	say("sync");
	return 0;
}

int cuMemsetD8_v2(uint64_t at, unsigned char value, size_t size)
{
	struct memory *m = find(at);
	if (!depth || !m || !m->synced || size > m->size || at + size > m->at + m->size)
		return INVALID_VALUE;
	if (!is("far") && !is("sealed"))
		memset((void *)at, value, size);
	say("fill %zu", size);
	return 0;
}

int cuMemGetHandleForAddressRange(void *handle, uint64_t at, size_t size, int type, unsigned long long flags)
{
	struct memory *m = find(at);
	if (!depth || !m || type != DMA_BUF_FD || flags || at % 4096 || size % 4096 || at + size > m->at + m->size)
		return INVALID_VALUE;
	int fd = memfd_create("stand-in", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)size))
		return OUT_OF_MEMORY;
	*(int *)handle = fd;
	say("export %zu", size);
	return 0;
}

int cuMemFree_v2(uint64_t at)
{
	struct memory *m = find(at);
	if (!depth || !m || m->at != at)
		return INVALID_VALUE;
	if (!is("far"))
		munmap((void *)(at - ODD), m->size + ODD);
	say("free %zu", m->size);
	m->size = 0;
	return 0;
}
