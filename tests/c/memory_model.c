// Random memory calls against a model of what Linux and the C library promise. From a seed the program allocates, maps,
// unmaps, moves, protects, advises, locks and forks, and keeps for each page what it must be: protection, private or
// shared, contents, what a child gets. After each call its result and errno, and at times every page, must be what the
// model says. It passes without Vervain (that proves the model) and must pass under `vervain run`.
//
//   memory_model --seed N [--calls K] [--print] [--without NAME,NAME] [--threads T] [--device]
//   memory_model --seeds FROM COUNT ...    each seed in a process of its own, two at a time
//   memory_model --seed N --shrink ...     the fewest calls that still fail in the same way, printed
//
// Each fourth seed has three threads, unless told otherwise. With --device the program has a device where there is one, and
// registers memory. A call is named by its thread and number; those of a child by the fork's number, a slash, and their
// own. --skip, a list of such numbers, is how shrinking leaves calls out. --without leaves out calls (`table`), advices, and
// what asks allowed(): known differences.
#define _GNU_SOURCE
#include "memory_model/model.h"

size_t page; // the kernel's size of it
struct common *common;
_Thread_local struct world *me;
_Thread_local sigjmp_buf back;
_Thread_local volatile sig_atomic_t armed;

uint64_t seed;
long calls = 600;
int print, threads_wanted, with_device;
uint64_t skips[SKIPS];
size_t skipped;
char *without;
struct ibv_pd *domain;
size_t lock_limit;
// Advices that this kernel knows.
int has_guard, has_populate, has_huge, has_willneed, has_cold;
// Whether its mremap moves several mappings at once (Linux 6.17).
int moves_many;

static const struct call {
    const char *name;
    void (*make)(void);
    int weight;
} table[] = {
    {"map", call_map, 12},         {"map-fixed", call_map_fixed, 6}, {"noreplace", call_map_noreplace, 1},
    {"unmap", call_unmap, 9},      {"remap", call_remap, 10},        {"protect", call_protect, 6},
    {"advise", call_advise, 12},   {"lock", call_lock, 3},           {"sync", call_sync, 2},
    {"hole", call_hole, 4},        {"wrong", call_wrong, 3},         {"write", call_write, 12},
    {"heap", call_heap, 22},       {"kernel", call_kernel, 2},       {"fork", call_fork, 1},
    {"vfork", call_vfork, 1},      {"spawn", call_spawn, 1},         {"register", call_register, 4},
};

// Calls whose labels are base plus 1, 2, 3 ... at the given place of the label.
void some_calls(uint64_t base, int shift, long n)
{
    const uint64_t sum = 111;
    for (long i = 1; i <= n; i++) {
        uint64_t label = base + ((uint64_t)i << shift);
        if (skip(label))
            continue;
        next_call(label);
        uint64_t at = any(sum);
        size_t k = 0;
        for (; k + 1 < sizeof table / sizeof *table && at >= (uint64_t)table[k].weight; k++)
            at -= (uint64_t)table[k].weight;
        if (allowed(table[k].name))
            table[k].make();
        if (i % 40 == 0)
            check_all();
    }
}

static void *thread(void *argument)
{
    me = argument;
    if (pipe(me->pipe))
        fail("pipe: %s", name_of(errno));
    some_calls(0, 16, calls);
    me->label = (uint64_t)(calls + 1) << 16;
    check_all();
    return NULL;
}

static int knows(int advice)
{
    void *p = own(page, MAP_PRIVATE);
    int answer = syscall(SYS_madvise, p, page, advice) == 0;
    syscall(SYS_munmap, p, page);
    return answer;
}

static int knows_many(void)
{
    char *p = own(4 * page, MAP_PRIVATE);
    syscall(SYS_mprotect, p, page, PROT_READ);
    void *to = p + 2 * page;
    int answer = (void *)syscall(SYS_mremap, p, 2 * page, 2 * page, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to;
    syscall(SYS_munmap, p, 4 * page);
    return answer;
}

static void open_device(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
    domain = context ? ibv_alloc_pd(context) : NULL;
}

static int one_seed(void)
{
    alarm(120);
    page = (size_t)sysconf(_SC_PAGESIZE);
    has_guard = knows(MADV_GUARD_INSTALL);
    has_populate = knows(MADV_POPULATE_WRITE);
    has_huge = knows(MADV_HUGEPAGE);
    has_willneed = knows(MADV_WILLNEED);
    has_cold = knows(MADV_COLD);
    moves_many = knows_many();
    struct rlimit limit;
    getrlimit(RLIMIT_MEMLOCK, &limit);
    lock_limit = limit.rlim_cur == RLIM_INFINITY ? 64u << 20 : limit.rlim_cur / 8;
    struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    common = own(sizeof *common, MAP_SHARED);
    // Object 0 has no pages: it is what an object is when there is no room for more.
    atomic_store(&common->objects, 1);
    if (with_device)
        open_device();
    int threads = threads_wanted ? threads_wanted : seed % 4 == 3 ? 3 : 1;
    pthread_t id[16];
    struct world *worlds[16] = {0};
    for (int i = 0; i < threads; i++) {
        worlds[i] = own(sizeof *me, MAP_PRIVATE);
        worlds[i]->seed = seed;
        worlds[i]->thread = i;
        worlds[i]->threads = threads;
    }
    for (int i = 1; i < threads; i++)
        if (pthread_create(&id[i], NULL, thread, worlds[i]))
            return 2;
    thread(worlds[0]);
    for (int i = 1; i < threads; i++)
        pthread_join(id[i], NULL);
    return 0;
}

int main(int argc, char **argv)
{
    uint64_t from = 0, count = 0;
    int shrinks = 0;
    seed = 1;
    self[self_count++] = argv[0];
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        int first = i;
        if (strcmp(name, "--print") == 0) {
            print = 1;
        } else if (strcmp(name, "--device") == 0) {
            with_device = 1;
        } else if (strcmp(name, "--shrink") == 0) {
            shrinks = 1;
            continue;
        } else if (i + 1 >= argc) {
            fprintf(stderr, "%s: what?\n", name);
            return 2;
        } else if (strcmp(name, "--seed") == 0) {
            seed = strtoull(argv[++i], NULL, 10);
            continue;
        } else if (strcmp(name, "--seeds") == 0 && i + 2 < argc) {
            from = strtoull(argv[++i], NULL, 10);
            count = strtoull(argv[++i], NULL, 10);
            continue;
        } else if (strcmp(name, "--calls") == 0) {
            calls = strtol(argv[++i], NULL, 10);
        } else if (strcmp(name, "--threads") == 0) {
            threads_wanted = (int)strtol(argv[++i], NULL, 10);
            if (threads_wanted < 1 || threads_wanted > 16)
                return 2;
        } else if (strcmp(name, "--without") == 0) {
            without = argv[++i];
        } else if (strcmp(name, "--skip") == 0) {
            for (char *at = argv[++i]; *at && skipped < SKIPS; at += *at == ',')
                skips[skipped++] = strtoull(at, &at, 10);
            continue;
        } else {
            fprintf(stderr, "%s: unknown\n", name);
            return 2;
        }
        for (; first <= i && self_count < 20; first++)
            self[self_count++] = argv[first];
    }
    if (count)
        return many(from, count);
    return shrinks ? shrink() : one_seed();
}
