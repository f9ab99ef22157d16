// The model's types, settings and functions, by the file that has them.
#ifndef MODEL_H
#define MODEL_H

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

// Its names are no library's.
#pragma GCC visibility push(hidden)

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

struct range {
    uintptr_t at;
    size_t n;
    struct page *page;
};

struct advice {
    const char *name;
    int value;
    const int *known; // whether this kernel knows it; NULL: every one does
};

// ---- memory_model.c
extern size_t page; // the kernel's size of it
extern struct common *common;
extern _Thread_local struct world *me;
extern _Thread_local sigjmp_buf back;
extern _Thread_local volatile sig_atomic_t armed;

extern uint64_t seed;
extern long calls;
extern int print, threads_wanted, with_device;
extern uint64_t skips[SKIPS];
extern size_t skipped;
extern char *without;
extern struct ibv_pd *domain;
extern size_t lock_limit;
// Advices that this kernel knows.
extern int has_guard, has_populate, has_huge, has_willneed, has_cold;
// Whether its mremap moves several mappings at once (Linux 6.17).
extern int moves_many;
void some_calls(uint64_t base, int shift, long n);

// ---- base.c
void *own(size_t n, int flags);
uint64_t mix(uint64_t x);
uint64_t any(uint64_t below);
int one_in(uint64_t n);
void next_call(uint64_t label);
int skip(uint64_t label);
int allowed(const char *name);
__attribute__((format(printf, 1, 2))) void say(const char *format, ...);
__attribute__((format(printf, 1, 2), noreturn)) void fail(const char *format, ...);
void on_fault(int signal);
int peek(uintptr_t at, uint64_t *value);
int poke(uintptr_t at, uint64_t value);

// ---- pages.c
size_t lower(uintptr_t at);
struct page *find(uintptr_t at);
void forget(uintptr_t at, size_t n);
struct page *note(uintptr_t at, size_t n, struct page like);
uint32_t new_id(void);
void split(uintptr_t at, size_t n);
void add_span(uintptr_t at, size_t n);
uint32_t new_object(size_t pages);
int beyond(const struct page *p);
uint64_t token(const struct page *p);
void set_token(struct page *p, uint64_t value);
uint64_t new_token(void);
uintptr_t word_at(uintptr_t at, int i);
uint64_t word_of(uint64_t token, int i);
void wrong(const struct page *p, const char *what, uint64_t got);
int expected_fault(const struct page *p, int right);
void write_page(struct page *p);
void check_page(struct page *p);
void mark_block(struct block *b);
void check_block(const struct block *b, size_t n, const char *when);
void check_all(void);
void check_some(uintptr_t at, size_t n);
void check_gone(uintptr_t at, size_t n);
const char *name_of(int code);
void kept(const char *what, int code);
void expect(const char *what, int result, int want);
void expect_map(const char *what, const void *result, int want);
void check_apart(const char *what, uintptr_t at, size_t bytes);

// ---- choices.c
size_t some_pages(void);
size_t some_bytes(void);
int some_prot(void);
size_t bytes_of(size_t n);
int some_range(struct range *r);
int uniform(const struct range *r);
int huge_in_part(const struct range *r);
int one_mapping(const struct range *r);
int has(const struct range *r, int what);
int has_beyond(const struct range *r);
int full(size_t n);

// ---- mappings.c
void call_map(void);
void call_map_fixed(void);
void call_map_noreplace(void);
void call_unmap(void);
void call_remap(void);

// ---- attributes.c
int advised(uintptr_t at, size_t n, int advice);
const struct advice *some_advice(void);
int placed_advice(int advice);
void call_advise(void);
int protect_model(uintptr_t at, size_t n, int prot);
void call_protect(void);
int lock_model(uintptr_t at, size_t n, int lock);
void call_lock(void);
int sync_model(uintptr_t at, size_t n, int flags);
void call_sync(void);

// ---- errors.c
void call_hole(void);
void call_wrong(void);

// ---- access.c
void call_write(void);
void call_kernel(void);
void call_register(void);

// ---- heap.c
void call_heap(void);

// ---- children.c
void call_fork(void);
void children(struct block *b, uintptr_t at, size_t n, int advice);
void call_vfork(void);
void call_spawn(void);

// ---- running.c
extern char *self[24];
extern int self_count;
int many(uint64_t from, uint64_t count);
int shrink(void);

#pragma GCC visibility pop

#endif
