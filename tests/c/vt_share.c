/* vt_share: memory for the tests, private, or (VT_SHARED=1) in a sealed memfd that the device is told of by the symbol
 * through which the preload tells it of shared memory (crates/base/share/src/api.rs). So the ways to mapped memory are tested
 * whatever the preload serves. Without VT_SHARED the preload's own symbol is passed on. */
#define _GNU_SOURCE
#include "share_api.h"
#include "vt.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#define OBJECT_LEN (64ull << 30) /* sparse; memory that is given back is not used again */
#define PAGE 4096u
#define RANGES 4096

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	uintptr_t addr;
	size_t len;
	uint64_t offset;
} ranges[RANGES];
static uint64_t next_offset;
static int object = -1;
/* The process whose memory the object is: a forked child has one of its own. */
static pid_t object_of;

static bool shared(void)
{
	const char *v = getenv("VT_SHARED");
	return v && *v == '1';
}

static bool have_object(void)
{
	if (object_of == getpid())
		return true;
	object = memfd_create("vt-shared", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (object < 0 || ftruncate(object, OBJECT_LEN) || fcntl(object, F_ADD_SEALS, F_SEAL_SHRINK))
		return false;
	memset(ranges, 0, sizeof(ranges));
	next_offset = 0;
	object_of = getpid();
	return true;
}

void *vt_memory(size_t len)
{
	if (!shared())
		return mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void *p = MAP_FAILED;
	pthread_mutex_lock(&lock);
	size_t i = 0;
	while (i < RANGES && ranges[i].len)
		i++;
	if (i < RANGES && have_object())
		p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, object, (off_t)next_offset);
	if (p != MAP_FAILED) {
		ranges[i].addr = (uintptr_t)p;
		ranges[i].len = len;
		ranges[i].offset = next_offset;
		next_offset += (len + PAGE - 1) / PAGE * PAGE;
	}
	pthread_mutex_unlock(&lock);
	return p;
}

void vt_memory_free(void *p, size_t len)
{
	munmap(p, len);
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < RANGES; i++)
		if (ranges[i].len && ranges[i].addr == (uintptr_t)p) {
			if (object_of == getpid())
				fallocate(object, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)ranges[i].offset, (off_t)len);
			ranges[i].len = 0;
		}
	pthread_mutex_unlock(&lock);
}

static int find(uintptr_t addr, size_t len, struct share_place *out)
{
	int rc = -1;
	pthread_mutex_lock(&lock);
	bool there = have_object();
	*out = (struct share_place){ .kind = 1, .object = 1, .object_len = OBJECT_LEN };
	for (size_t i = 0; i < RANGES; i++)
		if (ranges[i].len && addr >= ranges[i].addr && addr - ranges[i].addr <= ranges[i].len &&
		    len <= ranges[i].len - (addr - ranges[i].addr)) {
			out->offset = ranges[i].offset + (addr - ranges[i].addr);
			rc = 0;
		}
	/* The device asks where large allocations lie; they would lie here. */
	if (rc && len >= 1u << 20)
		rc = 0;
	if (!there)
		rc = -1;
	out->fd = object;
	pthread_mutex_unlock(&lock);
	return rc;
}

static int pin(uintptr_t addr, size_t len, struct share_place *out)
{
	if (find(addr, len, out))
		return -1;
	/* Only memory that vt_memory gave. */
	for (size_t i = 0; i < RANGES; i++)
		if (ranges[i].len && addr >= ranges[i].addr && addr < ranges[i].addr + ranges[i].len)
			return 0;
	return -1;
}

static void unpin(uint64_t obj, uint64_t offset, size_t len)
{
	(void)obj, (void)offset, (void)len;
}

static void set_fork_gate(void (*before)(void), void (*after)(void))
{
	(void)before, (void)after;
}

/* A memfd of the program's own is shared with others on purpose. */
static void part(uintptr_t addr, size_t len)
{
	(void)addr, (void)len;
}

/* Nothing is kept for the next request. */
static void set_reaper(void (*called)(void))
{
	(void)called;
}

static uint64_t reap(void)
{
	return UINT64_MAX;
}

const struct share_api *vervain_share_v1(void);
const struct share_api *vervain_share_v1(void)
{
	static const struct share_api ours = { SHARE_API_VERSION, sizeof(ours), find, pin, unpin, set_fork_gate, part, set_reaper, reap };
	if (shared())
		return &ours;
	const struct share_api *(*next)(void);
	*(void **)&next = dlsym(RTLD_NEXT, "vervain_share_v1");
	return next ? next() : NULL;
}
