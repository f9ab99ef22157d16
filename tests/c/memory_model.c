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
#include <errno.h>
#include <infiniband/verbs.h>
#include <malloc.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

extern char **environ;

// Wrong arguments are passed on purpose.
#pragma GCC diagnostic ignored "-Wnonnull"
#pragma GCC diagnostic ignored "-Walloc-size-larger-than="
#pragma GCC diagnostic ignored "-Wuse-after-free"

enum {
    WORDS = 4,        // checked of each page
    PAGES = 2500,     // that a thread has at most
    ROOM = 6000,      // of the table: a call adds at most 1024
    SPANS = 40,       // ranges that calls are aimed at
    BLOCKS = 24,      // of malloc
    IDS = 1 << 16,    // mappings, counted round
    TOKENS = 1 << 20, // pages of shared mappings
    OBJECTS = 1 << 14,
    SKIPS = 4096,
    DEPTH = 2, // grandchildren
};

static size_t page; // the kernel's size of it

// What a page of a mapping is besides its protection.
enum {
    SHARED = 1,
    WIPE = 2,    // on fork
    NOFORK = 4,  // not for children
    LOCKED = 8,  // mlock
    GUARD = 16,  // MADV_GUARD_INSTALL
    MAYBE = 32,  // after MADV_FREE: old or zero until it is written
    HUGE = 64,   // advice about huge pages: of no concern to contents, but it parts mappings
    PLACED = 128, // the program has said where
    PARTS = SHARED | WIPE | NOFORK | LOCKED | HUGE, // what mappings differ by, with protection
};

struct page {
    uintptr_t at;
    uint64_t token; // names its contents; 0: zeros
    uint32_t id;    // pages of one id that lie side by side are one mapping of the kernel's, unless it is in `split`
    uint32_t object, offset; // of a shared mapping
    uint8_t prot, is;
};

struct span {
    uintptr_t at;
    size_t n;
    uint64_t key;
};

struct block {
    char *at;
    size_t n;
    uint64_t token;
};

// All that a thread knows. The thread of a child has a copy of its own.
struct world {
    uint64_t random, version, label, seed;
    int thread, depth, threads;
    uint32_t ids;
    size_t pages, locked;
    int spans, pipe[2];
    struct span span[SPANS];
    struct block block[BLOCKS];
    uint8_t split[IDS];
    struct page page[ROOM];
};

// Shared mappings have contents that parents and children share, so the model of those is shared too.
struct common {
    _Atomic uint32_t objects, tokens;
    struct {
        uint32_t first, pages;
    } object[OBJECTS];
    _Atomic uint64_t token[TOKENS];
};

static struct common *common;
static _Thread_local struct world *w;
static _Thread_local sigjmp_buf back;
static _Thread_local volatile sig_atomic_t armed;

static uint64_t seed;
static long calls = 600;
static int print, threads_wanted, with_device;
static uint64_t skips[SKIPS];
static size_t skipped;
static char *without;
static struct ibv_pd *domain;
static size_t lock_limit;
// Advices that this kernel knows.
static int has_guard, has_populate, has_huge, has_willneed, has_cold;
// Whether its mremap moves several mappings at once (Linux 6.17).
static int moves_many;

// The model's own memory is asked for by system call: Vervain does not see it.
static void *own(size_t n, int flags)
{
    void *p = (void *)syscall(SYS_mmap, NULL, n, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        perror("mmap of the model");
        _exit(2);
    }
    return p;
}

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t any(uint64_t below)
{
    w->random = mix(w->random);
    return (w->random >> 8) % below;
}

static int one_in(uint64_t n)
{
    return any(n) == 0;
}

// Each call draws from a source of its own, so that a call that is left out does not change what others draw.
static void next_call(uint64_t label)
{
    w->label = label;
    w->random = mix(mix(w->seed) ^ mix(label ^ (uint64_t)w->thread << 60));
}

static int skip(uint64_t label)
{
    for (size_t i = 0; i < skipped; i++)
        if (skips[i] == (label | (uint64_t)w->thread << 60))
            return 1;
    return 0;
}

static int allowed(const char *name)
{
    size_t n = strlen(name);
    for (const char *at = without; at && (at = strstr(at, name)); at += n)
        if ((at == without || at[-1] == ',') && (at[n] == ',' || at[n] == 0))
            return 0;
    return 1;
}

static void put(const char *text, size_t n)
{
    while (n > 0) {
        ssize_t done = write(STDOUT_FILENO, text, n);
        if (done <= 0)
            return;
        text += done;
        n -= (size_t)done;
    }
}

static size_t label_text(char *text, size_t n)
{
    uint64_t label = w->label;
    int used = snprintf(text, n, "%s%d: %llu", w->depth ? "  " : "", w->thread, (unsigned long long)(label >> 16));
    if (label >> 8 & 255)
        used += snprintf(text + used, n - (size_t)used, "/%llu", (unsigned long long)(label >> 8 & 255));
    if (label & 255)
        used += snprintf(text + used, n - (size_t)used, "/%llu", (unsigned long long)(label & 255));
    return (size_t)used;
}

// No stdio buffers: what was said before a crash is there, and nothing is said twice after a fork.
__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
    if (!print)
        return;
    char text[512];
    int before = errno;
    size_t n = label_text(text, sizeof text);
    n += (size_t)snprintf(text + n, sizeof text - n, " ");
    va_list list;
    va_start(list, format);
    n += (size_t)vsnprintf(text + n, sizeof text - n - 2, format, list);
    va_end(list);
    if (n > sizeof text - 2)
        n = sizeof text - 2;
    text[n++] = '\n';
    put(text, n);
    errno = before;
}

__attribute__((format(printf, 1, 2), noreturn)) static void fail(const char *format, ...)
{
    char text[1024];
    size_t n = (size_t)snprintf(text, sizeof text, "FAILED seed %llu ", (unsigned long long)seed);
    n += label_text(text + n, sizeof text - n);
    n += (size_t)snprintf(text + n, sizeof text - n, ": ");
    va_list list;
    va_start(list, format);
    n += (size_t)vsnprintf(text + n, sizeof text - n - 2, format, list);
    va_end(list);
    if (n > sizeof text - 2)
        n = sizeof text - 2;
    text[n++] = '\n';
    put(text, n);
    _exit(1);
}

static void on_fault(int signal)
{
    if (armed) {
        armed = 0;
        siglongjmp(back, signal);
    }
    char text[100];
    int n = snprintf(text, sizeof text, "FAILED seed %llu: signal %d outside of a check\n", (unsigned long long)seed, signal);
    put(text, (size_t)n);
    _exit(1);
}

// Reads a word, or says by which signal that fails.
static int peek(uintptr_t at, uint64_t *value)
{
    int signal = sigsetjmp(back, 0);
    if (signal)
        return signal;
    armed = 1;
    *value = *(volatile uint64_t *)at;
    armed = 0;
    return 0;
}

static int poke(uintptr_t at, uint64_t value)
{
    int signal = sigsetjmp(back, 0);
    if (signal)
        return signal;
    armed = 1;
    *(volatile uint64_t *)at = value;
    armed = 0;
    return 0;
}

// ---- The table of pages, in the order of their addresses.

static size_t lower(uintptr_t at)
{
    size_t a = 0, b = w->pages;
    while (a < b) {
        size_t middle = (a + b) / 2;
        if (w->page[middle].at < at)
            a = middle + 1;
        else
            b = middle;
    }
    return a;
}

static struct page *find(uintptr_t at)
{
    size_t i = lower(at);
    return i < w->pages && w->page[i].at == at ? &w->page[i] : NULL;
}

static void forget(uintptr_t at, size_t n)
{
    size_t a = lower(at), b = lower(at + n * page);
    for (size_t i = a; i < b; i++)
        w->locked -= (w->page[i].is & LOCKED) != 0;
    memmove(&w->page[a], &w->page[b], (w->pages - b) * sizeof *w->page);
    w->pages -= b - a;
}

// Makes n entries from `at` on, which all are `like`, but for address and offset.
static struct page *note(uintptr_t at, size_t n, struct page like)
{
    forget(at, n);
    if (w->pages + n > ROOM)
        fail("the model is full");
    size_t a = lower(at);
    memmove(&w->page[a + n], &w->page[a], (w->pages - a) * sizeof *w->page);
    w->pages += n;
    for (size_t i = 0; i < n; i++) {
        w->page[a + i] = like;
        w->page[a + i].at = at + i * page;
        w->page[a + i].offset = like.offset + (uint32_t)i;
        w->locked += (like.is & LOCKED) != 0;
    }
    return &w->page[a];
}

static uint32_t new_id(void)
{
    uint32_t id = w->ids++ % IDS;
    w->split[id] = 0;
    return id;
}

// Attributes of a part have changed: whether the kernel joins the parts again later is its own affair.
static void split(uintptr_t at, size_t n)
{
    for (size_t i = lower(at); i < w->pages && w->page[i].at < at + n * page; i++)
        w->split[w->page[i].id] = 1;
}

static void add_span(uintptr_t at, size_t n)
{
    int i = w->spans < SPANS ? w->spans++ : (int)any(SPANS);
    w->span[i] = (struct span){at, n, mix(w->label)};
}

static uint32_t new_object(size_t pages)
{
    uint32_t object = atomic_fetch_add(&common->objects, 1);
    uint32_t first = atomic_fetch_add(&common->tokens, (uint32_t)pages);
    if (object >= OBJECTS || first + pages > TOKENS)
        return 0;
    common->object[object].first = first;
    common->object[object].pages = (uint32_t)pages;
    return object;
}

static int beyond(const struct page *p)
{
    return p->is & SHARED && p->offset >= common->object[p->object].pages;
}

static uint64_t token(const struct page *p)
{
    return p->is & SHARED ? atomic_load(&common->token[common->object[p->object].first + p->offset]) : p->token;
}

static void set_token(struct page *p, uint64_t value)
{
    p->is &= (uint8_t)~MAYBE;
    if (!(p->is & SHARED))
        p->token = value;
    else if (!beyond(p))
        atomic_store(&common->token[common->object[p->object].first + p->offset], value);
}

static uint64_t new_token(void)
{
    return mix(++w->version ^ (uint64_t)w->thread << 56 ^ w->label << 24) | 1;
}

// ---- Checks.

static uintptr_t word_at(uintptr_t at, int i)
{
    return at + (i == WORDS - 1 ? page - 8 : (size_t)i * (page / WORDS) + (size_t)i * 24);
}

static uint64_t word_of(uint64_t token, int i)
{
    return token ? mix(token + (uint64_t)i) : 0;
}

static void wrong(const struct page *p, const char *what, uint64_t got)
{
    fail("page %lx is to be prot %d flags %d token %llx: %s %llx", (unsigned long)p->at, p->prot, p->is,
         (unsigned long long)token(p), what, (unsigned long long)got);
}

// The signal that an access gets; 0: none.
static int expected_fault(const struct page *p, int right)
{
    if (!(p->prot & right) || p->is & GUARD)
        return SIGSEGV;
    return beyond(p) ? SIGBUS : 0;
}

static void write_page(struct page *p)
{
    uint64_t t = one_in(12) ? 0 : new_token();
    for (int i = 0; i < WORDS; i++) {
        int signal = poke(word_at(p->at, i), word_of(t, i));
        if (signal)
            wrong(p, "written, signal", (uint64_t)signal);
    }
    set_token(p, t);
}

static void check_page(struct page *p)
{
    uint64_t t = token(p), got = 0;
    int fault = expected_fault(p, PROT_READ), zero = 0;
    for (int i = 0; i < WORDS; i++) {
        int signal = peek(word_at(p->at, i), &got);
        if (signal != fault)
            wrong(p, "read, signal", (uint64_t)signal);
        if (fault)
            break;
        if (p->is & MAYBE && i == 0)
            zero = got == 0;
        if (got != (zero ? 0 : word_of(t, i)))
            wrong(p, "contains", got);
    }
    // A store of what is there. It would keep a page that is being freed, or not, so not there.
    if (p->is & MAYBE || (!fault && !one_in(4)))
        return;
    fault = expected_fault(p, PROT_WRITE);
    int signal = poke(word_at(p->at, WORDS - 1), fault ? 0 : got);
    if (signal != fault)
        wrong(p, "written, signal", (uint64_t)signal);
}

static uint64_t block_word(const struct block *b, size_t i)
{
    return mix(b->token + i);
}

// Each block has a word at each multiple of 4096, and one at its end where that is another place.
static int has_end(size_t n)
{
    return n % 4096 == 0 || n % 4096 >= 16;
}

static void mark_block(struct block *b)
{
    b->token = new_token();
    for (size_t i = 0; i + 8 <= b->n; i += 4096) {
        uint64_t word = block_word(b, i);
        memcpy(b->at + i, &word, 8);
    }
    if (has_end(b->n)) {
        uint64_t word = block_word(b, 1);
        memcpy(b->at + b->n - 8, &word, 8);
    }
}

// The first `n` bytes of what has been a block.
static void check_block(const struct block *b, size_t n, const char *when)
{
    for (size_t i = 0; i + 8 <= n; i += 4096) {
        uint64_t got = 0;
        int signal = peek((uintptr_t)b->at + i, &got);
        if (signal || got != block_word(b, i))
            fail("%s: block %p of %zu at %zu: signal %d, %llx", when, b->at, b->n, i, signal, (unsigned long long)got);
    }
    if (n == b->n && has_end(n)) {
        uint64_t got = 0;
        int signal = peek((uintptr_t)b->at + n - 8, &got);
        if (signal || got != block_word(b, 1))
            fail("%s: block %p of %zu at its end: signal %d, %llx", when, b->at, b->n, signal, (unsigned long long)got);
    }
}

static void check_all(void)
{
    for (size_t i = 0; i < w->pages; i++)
        check_page(&w->page[i]);
    for (int i = 0; i < BLOCKS; i++)
        if (w->block[i].at)
            check_block(&w->block[i], w->block[i].n, "later");
}

// What a call was about: its ends, its neighbours, and some pages in between.
static void check_some(uintptr_t at, size_t n)
{
    for (int i = 0; i < 10; i++) {
        size_t k = i < 2 ? (size_t)i : i < 4 ? n - (size_t)i + 1 : i == 4 ? n + 1 : any(n) + 1;
        struct page *p = find(at - page + k * page);
        if (p)
            check_page(p);
    }
}

// Nothing is there: only said at once after the call, for others may map something there later. Other threads may at once.
static void check_gone(uintptr_t at, size_t n)
{
    if (w->threads > 1)
        return;
    for (int i = 0; i < 4; i++) {
        uintptr_t here = at + (i == 0 ? 0 : i == 1 ? n - 1 : any(n)) * page;
        uint64_t got;
        int signal = peek(here, &got);
        if (signal != SIGSEGV)
            fail("page %lx is to be unmapped: read, signal %d", (unsigned long)here, signal);
    }
}

static const char *name_of(int code)
{
    return code ? strerrorname_np(code) : "success";
}

// What succeeds leaves errno alone, as the C library's system calls do.
static void kept(const char *what, int code)
{
    if (code != 77 && allowed(strncmp(what, "fork", 4) ? "errno" : "fork-errno"))
        fail("%s: errno became %s though nothing failed", what, name_of(code));
}

// A system call that says 0, or -1 and why.
static void expect(const char *what, int result, int want)
{
    int got = errno;
    if (result != (want ? -1 : 0) || (want && got != want))
        fail("%s: %d %s, not %s", what, result, result ? name_of(got) : "", name_of(want));
    if (!want)
        kept(what, got);
}

static void expect_map(const char *what, const void *result, int want)
{
    int got = errno;
    if (result != MAP_FAILED || got != want)
        fail("%s: %p %s, not %s", what, result, result == MAP_FAILED ? name_of(got) : "", name_of(want));
}

// New memory must not be where other memory is.
static void check_apart(const char *what, uintptr_t at, size_t bytes)
{
    size_t i = lower(at & ~(page - 1));
    if (i < w->pages && w->page[i].at < at + bytes)
        fail("%s: %lx lies on page %lx", what, (unsigned long)at, (unsigned long)w->page[i].at);
    for (int k = 0; k < BLOCKS; k++) {
        uintptr_t b = (uintptr_t)w->block[k].at;
        if (b && b < at + bytes && at < b + w->block[k].n)
            fail("%s: %lx lies on block %lx", what, (unsigned long)at, (unsigned long)b);
    }
}

// ---- Choices.

// Mostly around 128 KiB, where the C library and Vervain begin to do otherwise.
static size_t some_pages(void)
{
    switch (any(10)) {
    case 0:
        return 1 + any(4);
    case 1:
        return 1 + any(64);
    case 2:
        return 64 + any(200);
    case 3:
        return one_in(3) ? 1 + any(1024) : 16 * (1 + any(8));
    case 4:
        return 32;
    default:
        return 28 + any(10);
    }
}

static size_t some_bytes(void)
{
    size_t n = some_pages() * page;
    switch (any(4)) {
    case 0:
        return n;
    case 1:
        return n - any(page);
    case 2:
        return n + any(40);
    default:
        return n - any(40);
    }
}

static int some_prot(void)
{
    static const int kinds[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_EXEC, PROT_READ, PROT_NONE};
    return one_in(3) ? kinds[any(5)] : PROT_READ | PROT_WRITE;
}

// A length that means n pages.
static size_t bytes_of(size_t n)
{
    return n * page - (one_in(4) ? any(page) : 0);
}

struct range {
    uintptr_t at;
    size_t n;
    struct page *page;
};

// Pages of the model that lie side by side, within one span or over its end.
static int some_range(struct range *r)
{
    // By the calls that made them and not by their numbers, so that less of a choice changes where a call is left out.
    uint64_t key = any(UINT64_MAX);
    while (w->spans) {
        int k = 0;
        for (int i = 1; i < w->spans; i++)
            if (mix(w->span[i].key ^ key) < mix(w->span[k].key ^ key))
                k = i;
        struct span s = w->span[k];
        size_t a = lower(s.at), b = lower(s.at + s.n * page);
        if (a == b) {
            w->span[k] = w->span[--w->spans];
            continue;
        }
        size_t i = one_in(2) ? a : a + any(b - a), end = i + 1;
        size_t most = one_in(6) ? w->pages : b;
        while (end < most && w->page[end].at == w->page[end - 1].at + page)
            end++;
        size_t n = end - i;
        switch (any(5)) {
        case 0:
            n = 1;
            break;
        case 1:
            n = 1 + any(n);
            break;
        case 2:
            n = 1 + any(n < 20 ? n : 20);
            break;
        }
        *r = (struct range){w->page[i].at, n, &w->page[i]};
        return 1;
    }
    return 0;
}

// Whether all pages differ in nothing that mappings differ by.
static int uniform(const struct range *r)
{
    for (size_t i = 1; i < r->n; i++)
        if (r->page[i].prot != r->page[0].prot || (r->page[i].is & PARTS) != (r->page[0].is & PARTS))
            return 0;
    return 1;
}

// Whether advice about huge pages is all that its pages differ by.
static int huge_in_part(const struct range *r)
{
    for (size_t i = 1; i < r->n; i++)
        if (r->page[i].prot != r->page[0].prot || ((r->page[i].is ^ r->page[0].is) & PARTS & ~HUGE))
            return 0;
    return !uniform(r);
}

// Whether the kernel surely has it as one mapping.
static int one_mapping(const struct range *r)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->page[i].id != r->page[0].id || w->split[r->page[i].id])
            return 0;
    return uniform(r);
}

static int has(const struct range *r, int what)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->page[i].is & what)
            return 1;
    return 0;
}

static int has_beyond(const struct range *r)
{
    for (size_t i = 0; i < r->n; i++)
        if (beyond(&r->page[i]))
            return 1;
    return 0;
}

static int full(size_t n)
{
    return w->pages + n > PAGES;
}

// ---- Calls: each makes one call, judges its result, and changes the model.

static struct page fresh_page(int prot, int shared, size_t n)
{
    struct page p = {.prot = (uint8_t)prot, .id = new_id()};
    if (shared) {
        p.is = SHARED;
        p.object = new_object(n);
    }
    return p;
}

static void call_map(void)
{
    size_t n = some_pages(), bytes = bytes_of(n);
    int prot = some_prot(), shared = one_in(5), flags = shared ? MAP_SHARED : MAP_PRIVATE;
    if (one_in(10))
        flags |= MAP_NORESERVE;
    if (one_in(10))
        flags |= MAP_POPULATE;
    uintptr_t hint = 0;
    struct range r;
    if (one_in(8) && some_range(&r) && allowed("hint"))
        hint = r.at + (one_in(2) ? 0 : r.n * page);
    if (full(n))
        return;
    struct page like = fresh_page(prot, shared, n);
    like.is |= hint ? PLACED : 0;
    say("mmap(%lx, %zu = %zu pages, %d, %x)", hint, bytes, n, prot, flags);
    errno = 77;
    void *got = mmap((void *)hint, bytes, prot, flags | MAP_ANONYMOUS, -1, 0);
    int code = errno;
    say("= %p", got);
    if (got == MAP_FAILED || (uintptr_t)got % page)
        fail("mmap: %p %s", got, name_of(code));
    kept("mmap", code);
    check_apart("mmap", (uintptr_t)got, bytes);
    note((uintptr_t)got, n, like);
    add_span((uintptr_t)got, n);
    if (prot & PROT_READ && one_in(4))
        for (size_t i = 0; i < n * page / 8; i += 3)
            if (((volatile uint64_t *)got)[i])
                fail("mmap: %p has no zero at %zu", got, i * 8);
    check_some((uintptr_t)got, n);
}

static void call_map_fixed(void)
{
    struct range r;
    if (!some_range(&r))
        return;
    int prot = some_prot(), shared = one_in(4) && allowed("fixed-shared");
    int flags = (shared ? MAP_SHARED : MAP_PRIVATE) | MAP_FIXED;
    if (one_in(6))
        flags |= MAP_NORESERVE;
    if (one_in(10))
        flags |= MAP_POPULATE;
    // An own place again, right after it was given up: nobody else could have taken it.
    int gap = w->threads == 1 && allowed("gap") && one_in(5);
    struct page like = fresh_page(prot, shared, r.n);
    like.is |= PLACED;
    size_t bytes = bytes_of(r.n);
    if (gap) {
        say("munmap(%lx, %zu pages)", r.at, r.n);
        errno = 77;
        expect("munmap", munmap((void *)r.at, bytes), 0);
        forget(r.at, r.n);
        if (one_in(2) && allowed("gap-noreplace"))
            flags ^= MAP_FIXED | MAP_FIXED_NOREPLACE;
    }
    say("mmap(%lx, %zu = %zu pages, %d, %x fixed)", r.at, bytes, r.n, prot, flags);
    errno = 77;
    void *got = mmap((void *)r.at, bytes, prot, flags | MAP_ANONYMOUS, -1, 0);
    int code = errno;
    if ((uintptr_t)got != r.at)
        fail("mmap fixed: %p %s", got, name_of(code));
    kept("mmap fixed", code);
    note(r.at, r.n, like);
    check_some(r.at, r.n);
}

static void call_map_noreplace(void)
{
    struct range r;
    if (!some_range(&r))
        return;
    uintptr_t at = r.at - any(3) * page;
    size_t n = (r.at - at) / page + 1 + any(r.n);
    say("mmap(%lx, %zu pages, MAP_FIXED_NOREPLACE)", at, n);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    errno = 77;
    expect_map("mmap fixed noreplace", mmap((void *)at, n * page, PROT_READ | PROT_WRITE, flags, -1, 0), EEXIST);
    check_some(r.at, r.n);
}

static void call_unmap(void)
{
    struct range r;
    if (!some_range(&r))
        return;
    size_t bytes = bytes_of(r.n);
    // Some of it first, so that there is a hole.
    if (w->threads == 1 && r.n > 2 && one_in(4)) {
        size_t from = any(r.n), n = 1 + any(r.n - from);
        say("munmap(%lx, %zu pages)", r.at + from * page, n);
        errno = 77;
        expect("munmap", munmap((void *)(r.at + from * page), n * page), 0);
        check_gone(r.at + from * page, n);
    }
    say("munmap(%lx, %zu = %zu pages)", r.at, bytes, r.n);
    errno = 77;
    expect("munmap", munmap((void *)r.at, bytes), 0);
    forget(r.at, r.n);
    check_gone(r.at, r.n);
    check_some(r.at, r.n);
}

// What madvise does to a range, page by page; NULL is a hole. Says which errno it ends with.
static int advised(uintptr_t at, size_t n, int advice)
{
    int hole = 0;
    for (size_t i = 0; i < n; i++) {
        struct page *p = find(at + i * page);
        if (advice == MADV_POPULATE_READ || advice == MADV_POPULATE_WRITE) {
            // It stops at what cannot be.
            if (!p)
                return ENOMEM;
            if (!(p->prot & (advice == MADV_POPULATE_READ ? PROT_READ : PROT_WRITE)))
                return EINVAL;
            if (p->is & GUARD || beyond(p))
                return EFAULT;
            continue;
        }
        if (!p) {
            hole = ENOMEM;
            continue;
        }
        switch (advice) {
        case MADV_DONTNEED:
        case MADV_FREE:
            if (p->is & LOCKED || (advice == MADV_FREE && p->is & SHARED))
                return EINVAL;
            if (p->is & SHARED)
                break;
            if (advice == MADV_FREE && p->token)
                p->is |= MAYBE;
            else
                set_token(p, 0);
            break;
        case MADV_REMOVE:
            if (p->is & LOCKED || !(p->is & SHARED))
                return EINVAL;
            set_token(p, 0);
            break;
        case MADV_DONTFORK:
            p->is |= NOFORK;
            break;
        case MADV_DOFORK:
            p->is &= (uint8_t)~NOFORK;
            break;
        case MADV_WIPEONFORK:
            if (p->is & SHARED)
                return EINVAL;
            p->is |= WIPE;
            break;
        case MADV_KEEPONFORK:
            p->is &= (uint8_t)~WIPE;
            break;
        case MADV_COLD:
        case MADV_PAGEOUT:
            if (p->is & LOCKED)
                return EINVAL;
            break;
        case MADV_HUGEPAGE:
        case MADV_NOHUGEPAGE:
            p->is |= HUGE;
            break;
        case MADV_GUARD_INSTALL:
            if (p->is & LOCKED)
                return EINVAL;
            p->is |= GUARD;
            set_token(p, 0);
            break;
        case MADV_GUARD_REMOVE:
            p->is &= (uint8_t)~GUARD;
            break;
        }
    }
    return hole;
}

static const struct advice {
    const char *name;
    int value;
    const int *known;
} advices[] = {
    {"dontneed", MADV_DONTNEED, NULL},
    {"dontneed", MADV_DONTNEED, NULL},
    {"free", MADV_FREE, NULL},
    {"remove", MADV_REMOVE, NULL},
    {"dontfork", MADV_DONTFORK, NULL},
    {"dofork", MADV_DOFORK, NULL},
    {"wipeonfork", MADV_WIPEONFORK, NULL},
    {"keeponfork", MADV_KEEPONFORK, NULL},
    {"willneed", MADV_WILLNEED, &has_willneed},
    {"sequential", MADV_SEQUENTIAL, NULL},
    {"hugepage", MADV_HUGEPAGE, &has_huge},
    {"nohugepage", MADV_NOHUGEPAGE, &has_huge},
    {"populate-read", MADV_POPULATE_READ, &has_populate},
    {"populate-write", MADV_POPULATE_WRITE, &has_populate},
    {"cold", MADV_COLD, &has_cold},
    {"pageout", MADV_PAGEOUT, &has_cold},
    {"guard", MADV_GUARD_INSTALL, &has_guard},
    {"unguard", MADV_GUARD_REMOVE, &has_guard},
};

static const struct advice *some_advice(void)
{
    const struct advice *a = &advices[any(sizeof advices / sizeof *advices)];
    return (a->known && !*a->known) || !allowed(a->name) ? NULL : a;
}

// Findings about memory that the program has put at a place of its choice.
static int placed_advice(int advice)
{
    switch (advice) {
    case MADV_DONTFORK:
    case MADV_DOFORK:
    case MADV_WIPEONFORK:
    case MADV_KEEPONFORK:
        return allowed("placed-fork-advice");
    case MADV_FREE:
    case MADV_REMOVE:
        return allowed("placed-free");
    }
    return 1;
}

static void call_advise(void)
{
    struct range r;
    const struct advice *a = some_advice();
    if (!a || !some_range(&r))
        return;
    // Guards of shared memory: what of them a child has is said nowhere.
    if (a->value == MADV_GUARD_INSTALL && has(&r, SHARED))
        return;
    // It ends at what is locked, with what is before it thrown away.
    int throws = a->value == MADV_DONTNEED || a->value == MADV_FREE;
    if (throws && has(&r, LOCKED) && !(r.page->is & LOCKED) && !allowed("partly-locked"))
        return;
    if (has(&r, PLACED) && !placed_advice(a->value))
        return;
    size_t bytes = bytes_of(r.n);
    say("madvise(%lx, %zu = %zu pages, %s)", r.at, bytes, r.n, a->name);
    split(r.at, r.n);
    int want = advised(r.at, r.n, a->value);
    errno = 77;
    expect(a->name, madvise((void *)r.at, bytes, a->value), want);
    check_some(r.at, r.n);
}

static int protect_model(uintptr_t at, size_t n, int prot)
{
    for (size_t i = 0; i < n; i++) {
        struct page *p = find(at + i * page);
        if (!p)
            return ENOMEM;
        p->prot = (uint8_t)prot;
    }
    return 0;
}

static void call_protect(void)
{
    struct range r;
    if (!some_range(&r))
        return;
    int prot = one_in(2) ? PROT_READ | PROT_WRITE : some_prot();
    size_t bytes = bytes_of(r.n);
    say("mprotect(%lx, %zu = %zu pages, %d)", r.at, bytes, r.n, prot);
    split(r.at, r.n);
    int want = protect_model(r.at, r.n, prot);
    errno = 77;
    expect("mprotect", mprotect((void *)r.at, bytes, prot), want);
    check_some(r.at, r.n);
}

static int lock_model(uintptr_t at, size_t n, int lock)
{
    int answer = 0;
    for (size_t i = 0; i < n; i++) {
        struct page *p = find(at + i * page);
        if (!p)
            return ENOMEM;
        w->locked += (size_t)lock - ((p->is & LOCKED) != 0);
        p->is = (uint8_t)(lock ? p->is | LOCKED : p->is & ~LOCKED);
        // What cannot be brought in is told, and locked all the same.
        if (lock && (!(p->prot & PROT_READ) || p->is & GUARD))
            answer = ENOMEM;
    }
    return answer;
}

static void call_lock(void)
{
    struct range r;
    if (!some_range(&r) || has_beyond(&r))
        return;
    int lock = one_in(2);
    if (lock && (w->locked + r.n) * page > lock_limit)
        return;
    size_t bytes = bytes_of(r.n);
    say("%s(%lx, %zu = %zu pages)", lock ? "mlock" : "munlock", r.at, bytes, r.n);
    split(r.at, r.n);
    int want = lock_model(r.at, r.n, lock);
    errno = 77;
    expect(lock ? "mlock" : "munlock", (lock ? mlock : munlock)((void *)r.at, bytes), want);
    check_some(r.at, r.n);
}

static int sync_model(uintptr_t at, size_t n, int flags)
{
    int hole = 0;
    for (size_t i = 0; i < n; i++) {
        struct page *p = find(at + i * page);
        if (!p)
            hole = ENOMEM;
        else if (flags & MS_INVALIDATE && p->is & LOCKED)
            return EBUSY;
    }
    return hole;
}

static void call_sync(void)
{
    static _Thread_local unsigned char in[ROOM];
    struct range r;
    if (!some_range(&r))
        return;
    size_t bytes = bytes_of(r.n);
    errno = 77;
    if (one_in(2)) {
        say("mincore(%lx, %zu pages)", r.at, r.n);
        expect("mincore", mincore((void *)r.at, bytes, in), 0);
        return;
    }
    int flags = (one_in(2) ? MS_SYNC : MS_ASYNC) | (one_in(2) ? MS_INVALIDATE : 0);
    say("msync(%lx, %zu pages, %d)", r.at, r.n, flags);
    int want = sync_model(r.at, r.n, flags);
    expect("msync", msync((void *)r.at, bytes, flags), want);
}

// Calls on a range of which a part has just been unmapped.
static void call_hole(void)
{
    struct range r;
    static _Thread_local unsigned char in[ROOM];
    if (w->threads > 1 || !allowed("hole") || !some_range(&r))
        return;
    size_t from = one_in(3) ? 0 : any(r.n), n = one_in(3) ? r.n - from : 1 + any(r.n - from);
    if (n == r.n && !allowed("hole-whole"))
        return;
    int placed = has(&r, PLACED);
    uintptr_t gap = r.at + from * page;
    say("munmap(%lx, %zu pages)", gap, n);
    errno = 77;
    expect("munmap", munmap((void *)gap, n * page), 0);
    split(r.at, r.n);
    forget(gap, n);
    const struct advice *a = some_advice();
    errno = 77;
    switch (any(8)) {
    case 0:
    case 1: {
        if (!a || a->value == MADV_GUARD_INSTALL || (placed && !placed_advice(a->value)))
            break;
        if ((a->value == MADV_REMOVE || a->value == MADV_WIPEONFORK) && !allowed("hole-remove"))
            break;
        say("madvise(%lx, %zu pages, %s) with a hole", r.at, r.n, a->name);
        int want = advised(r.at, r.n, a->value);
        expect(a->name, madvise((void *)r.at, r.n * page, a->value), want);
        break;
    }
    case 2: {
        if (!allowed("hole-protect"))
            break;
        int prot = some_prot();
        say("mprotect(%lx, %zu pages, %d) with a hole", r.at, r.n, prot);
        int want = protect_model(r.at, r.n, prot);
        expect("mprotect", mprotect((void *)r.at, r.n * page, prot), want);
        break;
    }
    case 3: {
        say("munlock(%lx, %zu pages) with a hole", r.at, r.n);
        int want = lock_model(r.at, r.n, 0);
        expect("munlock", munlock((void *)r.at, r.n * page), want);
        break;
    }
    case 4:
        if (!allowed("hole-mincore"))
            break;
        say("mincore(%lx, %zu pages) with a hole", r.at, r.n);
        expect("mincore", mincore((void *)r.at, r.n * page, in), ENOMEM);
        break;
    case 5: {
        say("msync(%lx, %zu pages) with a hole", r.at, r.n);
        int want = sync_model(r.at, r.n, MS_ASYNC);
        expect("msync", msync((void *)r.at, r.n * page, MS_ASYNC), want);
        break;
    }
    case 6:
        if (n == r.n && !allowed("hole-remap"))
            break;
        say("mremap(%lx, %zu pages, %zu) with a hole", r.at, r.n, r.n + 4);
        expect_map("mremap", mremap((void *)r.at, r.n * page, (r.n + 4) * page, MREMAP_MAYMOVE), EFAULT);
        break;
    default:
        say("munmap(%lx, %zu pages) with a hole", r.at, r.n);
        expect("munmap", munmap((void *)r.at, r.n * page), 0);
        forget(r.at, r.n);
        check_gone(r.at, r.n);
    }
    check_gone(gap, n);
    check_some(r.at, r.n);
}

// The pages of a range have got to another place; `kept` is what mremap leaves of the old one. The new place has `n`
// pages, of which those that are new have the attributes of the first.
static void moved(struct range r, uintptr_t to, size_t n, int kept, int placed)
{
    static _Thread_local struct page copy[ROOM];
    struct page first = r.page[0];
    memcpy(copy, r.page, r.n * sizeof *copy);
    if (!kept)
        forget(r.at, r.n);
    else
        for (size_t i = 0; i < r.n; i++)
            if (!(r.page[i].is & SHARED)) {
                set_token(&r.page[i], 0);
                r.page[i].is &= (uint8_t)~GUARD;
            }
    struct page like = first;
    like.id = new_id();
    like.token = 0;
    like.is = (uint8_t)((like.is & PARTS) | placed);
    struct page *p = note(to, n, like);
    for (size_t i = 0; i < n && i < r.n; i++) {
        p[i].token = copy[i].token;
        p[i].is = (uint8_t)((copy[i].is & ~PLACED) | placed);
        p[i].prot = copy[i].prot;
        p[i].object = copy[i].object;
        p[i].offset = copy[i].offset;
        if (copy[i].id != first.id || w->split[copy[i].id])
            w->split[like.id] = 1;
    }
    add_span(to, n);
}

// Onto other memory of its own, mapping after mapping: of one length, and not of locked memory.
static void remap_many(struct range r)
{
    struct range to;
    if (!moves_many || has(&r, LOCKED) || !allowed("many") || !some_range(&to) || !allowed("fixed"))
        return;
    size_t n = r.n < to.n ? r.n : to.n;
    int keep = one_in(4) && allowed("dontunmap") ? MREMAP_DONTUNMAP : 0;
    if (keep && full(n))
        return;
    r.n = n;
    say("mremap(%lx, %zu pages, fixed%s, %lx) of several", r.at, n, keep ? ", dontunmap" : "", to.at);
    errno = 77;
    void *got = mremap((void *)r.at, n * page, n * page, MREMAP_MAYMOVE | MREMAP_FIXED | keep, (void *)to.at);
    if (to.at < r.at + n * page && r.at < to.at + n * page) {
        expect_map("mremap onto itself", got, EINVAL);
        return;
    }
    if ((uintptr_t)got != to.at)
        fail("mremap of several: %p %s", got, name_of(errno));
    kept("mremap of several", errno);
    forget(to.at, n);
    r.page = find(r.at);
    if (keep)
        split(r.at, n);
    moved(r, to.at, n, keep, PLACED);
    check_some(to.at, n);
    if (keep)
        check_some(r.at, n);
    else
        check_gone(r.at, n);
}

static void call_remap(void)
{
    struct range r;
    if (!some_range(&r) || (has(&r, LOCKED) && (w->locked * page * 2 > lock_limit || !allowed("locked-remap"))))
        return;
    if (has(&r, PLACED) && !allowed("placed-remap"))
        return;
    int kind = (int)any(8);
    size_t new = kind < 2 ? 1 + any(r.n) : r.n + some_pages();
    if (full(new) && kind > 1)
        return;
    int sure = one_mapping(&r), flags = one_in(4) ? 0 : MREMAP_MAYMOVE;
    struct page *behind = find(r.at + r.n * page);
    void *got, *old = (void *)r.at;
    size_t len = bytes_of(r.n);
    if (kind >= 2 && kind <= 4) {
        if (huge_in_part(&r) && !allowed("huge-in-part"))
            return;
        // Grows. Guards that are locked would have to be brought in.
        if (has(&r, LOCKED) && (has(&r, GUARD) || !(r.page->prot & PROT_READ) || has_beyond(&r)))
            return;
        if (has(&r, LOCKED) && (w->locked + new) * page > lock_limit)
            return;
        say("mremap(%lx, %zu pages, %zu pages, %x)", r.at, r.n, new, flags);
        errno = 77;
        got = mremap(old, len, new * page, flags);
        int code = errno;
        say("= %p %s", got, got == MAP_FAILED ? name_of(code) : "");
        if (got == MAP_FAILED) {
            // EFAULT: more than one mapping. ENOMEM: no room, and it may not move.
            if ((code != EFAULT || sure) && (code != ENOMEM || flags))
                fail("mremap: %s", name_of(code));
        } else if (!uniform(&r)) {
            fail("mremap of pages that differ: %p", got);
        } else if (got == old) {
            kept("mremap", code);
            if (behind)
                fail("mremap in place, over page %lx", (unsigned long)behind->at);
            struct page like = r.page[r.n - 1];
            like.token = 0;
            like.is &= PARTS | PLACED;
            like.offset++;
            check_apart("mremap", r.at + r.n * page, (new - r.n) * page);
            note(r.at + r.n * page, new - r.n, like);
            add_span(r.at, new);
        } else {
            kept("mremap", code);
            if (!flags)
                fail("mremap moved to %p", got);
            check_apart("mremap", (uintptr_t)got, new * page);
            moved(r, (uintptr_t)got, new, 0, 0);
            check_some((uintptr_t)got, new);
            check_gone(r.at, r.n);
        }
        check_some(r.at, r.n);
        return;
    }
    if (kind < 2) {
        // What stays where it is may be several mappings.
        say("mremap(%lx, %zu pages, %zu pages, %x)", r.at, r.n, new, flags);
        errno = 77;
        got = mremap(old, len, new * page, flags);
        if (got != old)
            fail("mremap in place: %p %s", got, name_of(errno));
        kept("mremap in place", errno);
        if (new < r.n) {
            forget(r.at + new * page, r.n - new);
            check_gone(r.at + new * page, r.n - new);
        }
        check_some(r.at, r.n);
        return;
    }
    if (!sure) {
        if (kind == 5)
            remap_many(r);
        return;
    }
    switch (kind) {
    case 5: {
        // Onto other memory of its own.
        struct range to;
        if (!some_range(&to) || !allowed("fixed"))
            return;
        int shrinks = to.n < r.n;
        if (has(&r, LOCKED) && (has(&r, GUARD) || has_beyond(&r) || !(r.page->prot & PROT_READ)))
            return;
        say("mremap(%lx, %zu pages, %zu pages, fixed, %lx)", r.at, r.n, to.n, to.at);
        errno = 77;
        got = mremap(old, len, to.n * page, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)to.at);
        if (to.at < r.at + r.n * page && r.at < to.at + to.n * page) {
            expect_map("mremap onto itself", got, EINVAL);
            break;
        }
        if ((uintptr_t)got != to.at)
            fail("mremap fixed: %p %s", got, name_of(errno));
        kept("mremap fixed", errno);
        // The target's entries go first, which moves those of the source in the table.
        forget(to.at, to.n);
        r.page = find(r.at);
        if (shrinks) {
            uintptr_t rest = r.at + to.n * page;
            size_t n = r.n - to.n;
            r.n = to.n;
            moved(r, to.at, to.n, 0, PLACED);
            forget(rest, n);
        } else {
            moved(r, to.at, to.n, 0, PLACED);
        }
        check_some(to.at, to.n);
        check_gone(r.at, r.n);
        break;
    }
    case 6:
        // Not of locked memory: the kernel unlocks more than it is asked to.
        if (has(&r, LOCKED) || !allowed("dontunmap") || full(r.n))
            return;
        say("mremap(%lx, %zu pages, dontunmap)", r.at, r.n);
        errno = 77;
        got = mremap(old, r.n * page, r.n * page, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
        say("= %p", got);
        if (got == MAP_FAILED)
            fail("mremap dontunmap: %s", name_of(errno));
        kept("mremap dontunmap", errno);
        check_apart("mremap", (uintptr_t)got, r.n * page);
        split(r.at, r.n);
        moved(r, (uintptr_t)got, r.n, 1, 0);
        check_some((uintptr_t)got, r.n);
        break;
    default: {
        if (has(&r, LOCKED))
            return;
        size_t n = 1 + any(r.n);
        say("mremap(%lx, 0, %zu pages)", r.at, n);
        errno = 77;
        got = mremap(old, 0, n * page, MREMAP_MAYMOVE);
        say("= %p", got);
        if (!(r.page->is & SHARED)) {
            expect_map("mremap of length 0", got, EINVAL);
            break;
        }
        if (got == MAP_FAILED)
            fail("mremap of length 0: %s", name_of(errno));
        check_apart("mremap", (uintptr_t)got, n * page);
        struct page like = *r.page;
        like.id = new_id();
        like.is &= (uint8_t)~PLACED;
        note((uintptr_t)got, n, like);
        add_span((uintptr_t)got, n);
        check_some((uintptr_t)got, n);
    }
    }
    check_some(r.at, r.n);
}

// Arguments that are wrong, or mean nothing.
static void call_wrong(void)
{
    struct range r;
    if (!some_range(&r))
        return;
    void *at = (void *)r.at, *odd = (void *)(r.at + 1 + any(page - 1));
    size_t n = r.n * page;
    const struct advice *a = some_advice();
    int kind = (int)any(20);
    say("wrong call %d at %lx", kind, r.at);
    const int anonymous = MAP_PRIVATE | MAP_ANONYMOUS;
    volatile size_t huge = SIZE_MAX / 2;
    errno = 77;
    switch (kind) {
    case 0:
        expect("munmap of nothing", munmap(at, 0), EINVAL);
        break;
    case 1:
        expect("munmap unaligned", munmap(odd, n), EINVAL);
        break;
    case 2:
        expect("mprotect unaligned", mprotect(odd, n, PROT_NONE), EINVAL);
        break;
    case 3:
        expect("mprotect of nothing", mprotect(at, 0, PROT_NONE), 0);
        break;
    case 4:
        if (a)
            expect("madvise unaligned", madvise(odd, n, a->value), EINVAL);
        break;
    case 5:
        if (a && allowed("advise-nothing"))
            expect(a->name, madvise(at, 0, a->value), 0);
        break;
    case 6:
        expect("madvise unknown", madvise(at, n, 7777), EINVAL);
        break;
    case 7:
        if (a)
            expect("madvise beyond", madvise(at, huge * 2 + 1, a->value), EINVAL);
        break;
    case 8:
        expect_map("mremap unaligned", mremap(odd, n, n + page, MREMAP_MAYMOVE), EINVAL);
        break;
    case 9:
        expect_map("mremap to nothing", mremap(at, n, 0, MREMAP_MAYMOVE), EINVAL);
        break;
    case 10:
        expect_map("mremap unknown", mremap(at, n, n + page, 64), EINVAL);
        break;
    case 11:
        expect_map("mremap fixed", mremap(at, n, n, MREMAP_FIXED, at), EINVAL);
        break;
    case 12:
        expect("msync both", msync(at, n, MS_SYNC | MS_ASYNC), EINVAL);
        break;
    case 13:
        expect("msync unaligned", msync(odd, n, MS_SYNC), EINVAL);
        break;
    case 14:
        expect_map("mmap of nothing", mmap(at, 0, PROT_READ, anonymous, -1, 0), EINVAL);
        break;
    case 15:
        expect_map("mmap of no kind", mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_ANONYMOUS, -1, 0), EINVAL);
        break;
    case 16:
        expect_map("mmap unaligned", mmap(odd, n, PROT_READ, anonymous | MAP_FIXED, -1, 0), EINVAL);
        break;
    case 17:
        expect_map("mmap too long", mmap(NULL, huge, PROT_READ | PROT_WRITE, anonymous, -1, 0), ENOMEM);
        break;
    case 18:
        // EINVAL since Linux 6.17, and EFAULT where it is more than one mapping.
        if (mremap(at, n, huge & ~(page - 1), MREMAP_MAYMOVE) != MAP_FAILED || errno == 77)
            fail("mremap too long: %s", name_of(errno));
        break;
    default:
        expect_map("mremap dontunmap of two lengths",
                   mremap(at, n, n + page, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL), EINVAL);
    }
    check_some(r.at, r.n);
}

static void call_write(void)
{
    struct range r;
    if (!some_range(&r))
        return;
    size_t step = 1 + any(3);
    say("write %lx, %zu pages, each %zu", r.at, r.n, step);
    for (size_t i = 0; i < r.n; i += step)
        if (!expected_fault(&r.page[i], PROT_WRITE))
            write_page(&r.page[i]);
}

// The kernel reads and writes where the program may, and says EFAULT where it may not.
static void call_kernel(void)
{
    struct range r;
    if (!some_range(&r))
        return;
    struct page *p = &r.page[any(r.n)];
    uint64_t got = 0;
    void *first = (void *)p->at;
    say("write(2) and read(2) of %lx", p->at);
    if (p->is & MAYBE)
        return;
    int fault = expected_fault(p, PROT_READ);
    errno = 77;
    ssize_t n = write(w->pipe[1], first, 8);
    if (fault ? n != -1 || errno != EFAULT : n != 8)
        wrong(p, "write(2) of it says", (uint64_t)n);
    if (!fault && (read(w->pipe[0], &got, 8) != 8 || got != word_of(token(p), 0)))
        wrong(p, "write(2) of it writes", got);
    if (write(w->pipe[1], &got, 8) != 8)
        fail("write(2): %s", name_of(errno));
    fault = expected_fault(p, PROT_WRITE);
    uint64_t there = word_of(token(p), 0);
    errno = 77;
    if (fault) {
        n = read(w->pipe[0], first, 8);
        if (n != -1 || errno != EFAULT)
            wrong(p, "read(2) into it says", (uint64_t)n);
        // A pipe gives up what could not be copied, or keeps it.
        close(w->pipe[0]);
        close(w->pipe[1]);
        if (pipe(w->pipe))
            fail("pipe: %s", name_of(errno));
    } else if (got == there && read(w->pipe[0], first, 8) != 8) {
        wrong(p, "read(2) into it says", (uint64_t)errno);
    } else if (got != there && read(w->pipe[0], &got, 8) != 8) {
        fail("read(2): %s", name_of(errno));
    }
    check_page(p);
}

// A memory region that comes and goes changes nothing of what the program sees.
static void call_register(void)
{
    struct range r;
    if (!domain || !some_range(&r))
        return;
    static _Thread_local struct ibv_mr *regions[4];
    static _Thread_local pid_t owner;
    if (owner != getpid()) {
        // A child has no device.
        if (w->depth)
            return;
        owner = getpid();
    }
    int k = (int)any(4);
    if (regions[k]) {
        say("ibv_dereg_mr");
        if (ibv_dereg_mr(regions[k]))
            fail("ibv_dereg_mr: %s", name_of(errno));
        regions[k] = NULL;
    } else {
        say("ibv_reg_mr(%lx, %zu pages)", r.at, r.n);
        // Memory without access is refused.
        regions[k] = ibv_reg_mr(domain, (void *)r.at, r.n * page, IBV_ACCESS_LOCAL_WRITE);
    }
    check_some(r.at, r.n);
}

// ---- The C library's allocator.

static void check_zero(const char *what, const char *at, size_t n)
{
    size_t step = one_in(4) ? 8 : 512;
    uint64_t word;
    for (size_t i = 0; i + 8 <= n; i += step) {
        memcpy(&word, at + i, 8);
        if (word)
            fail("%s: %p of %zu has no zero at %zu", what, at, n, i);
    }
}

static void allocate(struct block *b)
{
    size_t n = some_bytes(), align = 16;
    int kind = (int)any(7);
    if (n < 16)
        n = 16;
    if (w->pages + n / page > PAGES)
        return;
    void *got = NULL;
    errno = 77;
    switch (kind) {
    case 0:
    case 1:
        say("malloc(%zu)", n);
        got = malloc(n);
        break;
    case 2:
        say("calloc(1, %zu)", n);
        got = calloc(1, n);
        break;
    case 3:
        align = (size_t)16 << any(18);
        say("aligned_alloc(%zu, %zu)", align, n);
        got = aligned_alloc(align, n);
        break;
    case 4: {
        align = (size_t)8 << any(19);
        say("posix_memalign(%zu, %zu)", align, n);
        int code = posix_memalign(&got, align, n);
        if (code || errno != 77)
            fail("posix_memalign: %s, errno %s", name_of(code), name_of(errno));
        break;
    }
    case 5:
        say("valloc(%zu)", n);
        align = page;
        got = valloc(n);
        break;
    default:
        say("realloc(NULL, %zu)", n);
        got = realloc(NULL, n);
    }
    say("= %p", got);
    if (!got || (uintptr_t)got % align)
        fail("allocation of %zu aligned to %zu: %p", n, align, got);
    if (malloc_usable_size(got) < n)
        fail("malloc_usable_size(%p) = %zu, not %zu", got, malloc_usable_size(got), n);
    check_apart("allocation", (uintptr_t)got, n);
    if (kind == 2)
        check_zero("calloc", got, n);
    *b = (struct block){.at = got, .n = n};
    mark_block(b);
}

static void children(struct block *b, uintptr_t at, size_t n, int advice);

// What programs do to whole pages within a block, and undo.
static void block_pages(struct block *b)
{
    uintptr_t from = ((uintptr_t)b->at + page - 1) & ~(page - 1), end = ((uintptr_t)b->at + b->n) & ~(page - 1);
    if (from >= end)
        return;
    size_t n = (end - from) / page;
    from += any(n) * page;
    n = 1 + any((end - from) / page);
    void *at = (void *)from;
    int kind = (int)any(6);
    uint64_t got;
    say("pages of block %p: kind %d of %lx, %zu pages", b->at, kind, from, n);
    errno = 77;
    switch (kind) {
    case 0:
    case 1: {
        int prot = kind ? PROT_NONE : PROT_READ;
        expect("mprotect", mprotect(at, n * page, prot), 0);
        if (poke(from + any(n) * page, 0) != SIGSEGV || peek(from + any(n) * page, &got) != (kind ? SIGSEGV : 0))
            fail("mprotect in block %p", b->at);
        if (one_in(2) && w->depth < DEPTH && allowed("block-protect-fork"))
            children(b, from, n, -prot);
        errno = 77;
        expect("mprotect", mprotect(at, n * page, PROT_READ | PROT_WRITE), 0);
        break;
    }
    case 2:
        check_block(b, b->n, "before MADV_DONTNEED");
        expect("dontneed", madvise(at, n * page, MADV_DONTNEED), 0);
        check_zero("MADV_DONTNEED", at, n * page);
        mark_block(b);
        break;
    case 3:
        expect("free", madvise(at, n * page, MADV_FREE), 0);
        mark_block(b);
        break;
    default:
        if (w->depth >= DEPTH || !allowed("block-fork"))
            return;
        expect("fork advice", madvise(at, n * page, kind == 4 ? MADV_DONTFORK : MADV_WIPEONFORK), 0);
        children(b, from, n, kind == 4 ? MADV_DONTFORK : MADV_WIPEONFORK);
        errno = 77;
        expect("fork advice", madvise(at, n * page, kind == 4 ? MADV_DOFORK : MADV_KEEPONFORK), 0);
    }
    check_block(b, b->n, "after its pages");
}

static void call_heap(void)
{
    struct block *b = &w->block[any(BLOCKS)];
    if (!b->at) {
        allocate(b);
        return;
    }
    switch (any(6)) {
    case 0: {
        check_block(b, b->n, "before realloc");
        size_t n = one_in(3) ? 16 + any(b->n) : some_bytes();
        if (n < 16)
            n = 16;
        say("realloc(%p of %zu, %zu)", b->at, b->n, n);
        struct block old = *b;
        b->at = NULL;
        char *got = realloc(old.at, n);
        say("= %p", got);
        if (!got || (uintptr_t)got % 16)
            fail("realloc: %p", got);
        check_apart("realloc", (uintptr_t)got, n);
        old.at = got;
        check_block(&old, old.n < n ? old.n : n, "after realloc");
        *b = (struct block){.at = got, .n = n};
        mark_block(b);
        break;
    }
    case 1:
        block_pages(b);
        break;
    case 2: {
        volatile size_t huge = SIZE_MAX / 2;
        void *other = b, *got = other;
        say("refused allocations");
        errno = 77;
        int missing = !malloc(huge) + !calloc(huge, 4) + !reallocarray(b->at, huge, 4) + !realloc(b->at, huge);
        if (missing != 4 || errno != ENOMEM)
            fail("%d of 4 refused, %s", missing, name_of(errno));
        if (posix_memalign(&got, 24, 100) != EINVAL || got != other)
            fail("posix_memalign of 24");
        check_block(b, b->n, "after refused allocations");
        break;
    }
    default:
        check_block(b, b->n, "before free");
        say("free(%p of %zu)", b->at, b->n);
        errno = 77;
        free(b->at);
        kept("free", errno);
        b->at = NULL;
    }
}

// ---- Children.

static void some_calls(uint64_t base, int shift, long n);

static void wait_for(const char *what, pid_t pid)
{
    if (pid < 0)
        fail("%s: %s", what, name_of(errno));
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            fail("waitpid: %s", name_of(errno));
    if (status)
        fail("%s: the child ended with %x", what, (unsigned)status);
}

static pid_t start(void)
{
    // Without the handlers, where no other thread could have the allocator.
    errno = 77;
    pid_t pid = w->threads == 1 && one_in(6) && allowed("_Fork") ? _Fork() : fork();
    if (pid >= 0)
        kept(pid ? "fork in the parent" : "fork in the child", errno);
    if (pid == 0) {
        alarm(30);
        w->depth++;
        w->threads = 1;
        // What is read from a pipe goes to whoever comes first.
        if (pipe(w->pipe))
            fail("pipe: %s", name_of(errno));
        // Memory that is not for children, wiped, and no longer locked. Guards that would be wiped are gone.
        for (size_t i = 0; i < w->pages; i++) {
            struct page *p = &w->page[i];
            uint64_t got;
            if (p->is & NOFORK && peek(p->at, &got) != SIGSEGV)
                wrong(p, "a child can read it", got);
            if (p->is & WIPE) {
                set_token(p, 0);
                p->is &= (uint8_t)~GUARD;
            }
            p->is &= (uint8_t)~LOCKED;
        }
        w->locked = 0;
        for (size_t i = 0; i < w->pages;)
            if (w->page[i].is & NOFORK)
                forget(w->page[i].at, 1);
            else
                i++;
    }
    return pid;
}

// A child looks at all, does as its parent does, and its children too.
static void call_fork(void)
{
    if (w->depth >= DEPTH)
        return;
    uint64_t label = w->label;
    long n = (long)any(w->depth ? 12 : 30);
    say("fork, for %ld calls", n);
    pid_t pid = start();
    if (pid == 0) {
        check_all();
        some_calls(label, w->depth == 1 ? 8 : 0, n);
        check_all();
        _exit(0);
    }
    wait_for("fork", pid);
    check_all();
}

// A child, while pages of a block have an advice about it, or a protection (as a negative number).
static void children(struct block *b, uintptr_t at, size_t n, int advice)
{
    pid_t pid = start();
    if (pid == 0) {
        for (size_t i = 0; i < n; i++) {
            uint64_t got = 0;
            int signal = peek(at + i * page, &got), lost = advice == MADV_DONTFORK || advice == -PROT_NONE;
            if (signal != (lost ? SIGSEGV : 0) || (advice == MADV_WIPEONFORK && got))
                fail("page %zu of %lx of block %p of %zu in a child: signal %d, %llx", i, (unsigned long)at, b->at,
                     b->n, signal, (unsigned long long)got);
            if (advice < 0 && poke(at + i * page, 0) != SIGSEGV)
                fail("a child can write page %lx of block %p", (unsigned long)(at + i * page), b->at);
        }
        for (int k = 0; k < BLOCKS; k++)
            if (w->block[k].at && &w->block[k] != b)
                check_block(&w->block[k], w->block[k].n, "in a child");
        _exit(0);
    }
    wait_for("fork", pid);
}

// The child of vfork has its parent's memory.
static void call_vfork(void)
{
    struct range r;
    if (!some_range(&r))
        return;
    struct page *p = &r.page[any(r.n)];
    if (expected_fault(p, PROT_WRITE))
        return;
    uint64_t t = new_token();
    say("vfork, to write %lx", p->at);
    pid_t pid = vfork();
    if (pid == 0) {
        for (int i = 0; i < WORDS; i++)
            *(volatile uint64_t *)word_at(p->at, i) = word_of(t, i);
        _exit(0);
    }
    wait_for("vfork", pid);
    set_token(p, t);
    check_page(p);
}

static void call_spawn(void)
{
    if (!one_in(4))
        return;
    char *const arguments[] = {"true", NULL};
    pid_t pid = -1;
    say("posix_spawn");
    errno = posix_spawnp(&pid, "true", NULL, NULL, arguments, environ);
    wait_for("posix_spawn", pid);
    check_all();
}

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
static void some_calls(uint64_t base, int shift, long n)
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
    w = argument;
    if (pipe(w->pipe))
        fail("pipe: %s", name_of(errno));
    some_calls(0, 16, calls);
    w->label = (uint64_t)(calls + 1) << 16;
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
        worlds[i] = own(sizeof *w, MAP_PRIVATE);
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

// ---- Running itself.

static char *self[24];
static int self_count;

// With `quiet`, what it says goes to that descriptor.
static pid_t run_seed(uint64_t number, const char *skip_list, int quiet, int loud)
{
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)number);
    pid_t pid = fork();
    if (pid)
        return pid;
    char *arguments[32];
    int n = 0;
    for (; n < self_count; n++)
        arguments[n] = self[n];
    arguments[n++] = "--seed";
    arguments[n++] = text;
    if (skip_list) {
        arguments[n++] = "--skip";
        arguments[n++] = (char *)skip_list;
    }
    if (loud)
        arguments[n++] = "--print";
    arguments[n] = NULL;
    if (quiet) {
        dup2(quiet, STDOUT_FILENO);
        dup2(quiet, STDERR_FILENO);
    }
    execv("/proc/self/exe", arguments);
    _exit(127);
}

static int many(uint64_t from, uint64_t count)
{
    uint64_t failed = 0, started = 0, ended = 0;
    struct {
        pid_t pid;
        uint64_t seed;
    } running[2] = {{0}};
    while (ended < count) {
        int k = running[0].pid ? 1 : 0;
        if (started < count && !running[k].pid) {
            running[k].seed = from + started++;
            running[k].pid = run_seed(running[k].seed, NULL, 0, 0);
            continue;
        }
        int status = 0;
        pid_t pid = wait(&status);
        if (pid < 0)
            break;
        k = running[0].pid == pid ? 0 : 1;
        running[k].pid = 0;
        ended++;
        failed += status != 0;
        if (status && !(WIFEXITED(status) && WEXITSTATUS(status) == 1))
            printf("FAILED seed %llu: ended with %x\n", (unsigned long long)running[k].seed, (unsigned)status);
    }
    printf("%llu seeds, %llu failed\n", (unsigned long long)count, (unsigned long long)failed);
    return failed != 0;
}

static char *skip_text(void)
{
    static char text[SKIPS * 22];
    size_t n = 0;
    text[0] = 0;
    for (size_t i = 0; i < skipped; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%llu", i ? "," : "", (unsigned long long)skips[i]);
    return text;
}

// What a run says of its first failure, without the numbers; "" if it does not fail.
static const char *failure(void)
{
    static char text[4096];
    int fd = memfd_create("failure", 0), status = 0;
    pid_t pid = run_seed(seed, skip_text(), fd, 0);
    waitpid(pid, &status, 0);
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    close(fd);
    text[n < 0 ? 0 : n] = 0;
    if (status == 0)
        return "";
    char *line = strstr(text, "FAILED"), *message = line ? strstr(line, ": ") : NULL;
    message = message ? strstr(message + 2, ": ") : NULL;
    if (!message)
        return "ended";
    message[strcspn(message, "\n")] = 0;
    char *to = text;
    for (const char *c = message + 2; *c; c++)
        if (!strchr("0123456789abcdef", *c))
            *to++ = *c;
    *to = 0;
    return text;
}

static int still_fails(const char *same)
{
    // Schedules of threads differ: what failed once in four is kept.
    for (int i = 0; i < (threads_wanted > 1 || seed % 4 == 3 ? 4 : 1); i++)
        if (strcmp(failure(), same) == 0)
            return 1;
    return 0;
}

// Leaves calls out, many at once and then one by one, while it still fails.
static int shrink(void)
{
    int threads = threads_wanted ? threads_wanted : seed % 4 == 3 ? 3 : 1;
    static uint64_t labels[SKIPS];
    size_t n = 0;
    // Calls of the program, then those of its children.
    for (int t = 0; t < threads; t++)
        for (long i = 1; i <= calls && n < SKIPS; i++)
            labels[n++] = (uint64_t)i << 16 | (uint64_t)t << 60;
    static char same[4096];
    for (int i = 0; i < 4 && !same[0]; i++)
        strcpy(same, failure());
    if (!same[0]) {
        printf("seed %llu does not fail\n", (unsigned long long)seed);
        return 2;
    }
    for (int round = 0; round < 2; round++) {
        for (size_t size = n / 2 ? n / 2 : 1; size; size /= 2)
            for (size_t end = n; end > 0;) {
                size_t take = end < size ? end : size, before = skipped;
                for (size_t i = end - take; i < end && skipped < SKIPS; i++)
                    skips[skipped++] = labels[i];
                if (still_fails(same)) {
                    memmove(&labels[end - take], &labels[end], (n - end) * sizeof *labels);
                    n -= take;
                } else {
                    skipped = before;
                }
                end -= take;
            }
        if (round)
            break;
        size_t tops = n;
        for (size_t i = 0; i < tops; i++)
            for (uint64_t k = 1; k <= 30 && n < SKIPS && tops < 40; k++)
                labels[n++] = labels[i] + (k << 8);
    }
    printf("calls that are left: %zu\n", n);
    fflush(stdout);
    int status;
    pid_t pid = run_seed(seed, skip_text(), 0, 1);
    waitpid(pid, &status, 0);
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
