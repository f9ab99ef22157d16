// What allocation costs a program that never opens a device: run with and without the preload library. Each case prints
// the best time of several rounds in ns, per call or per page.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { ROUNDS = 15 };

static double now(void)
{
    struct timespec t;
    // Not of the wall: other processes on the machine are not what is measured.
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static volatile char sink;

static void touch(char *p, size_t n)
{
    for (size_t i = 0; i < n; i += 4096)
        p[i] = 1;
    sink = p[n - 1];
}

// The compiler must not see that a block is never used.
static void *escape(void *p)
{
    __asm__ volatile("" : "+r"(p) : : "memory");
    return p;
}

static double small(size_t n)
{
    enum { CALLS = 200000 };
    double start = now();
    for (int i = 0; i < CALLS; i++)
        free(escape(malloc(n)));
    return (now() - start) / CALLS;
}

// As a database does: blocks of all sizes live for a while, in no order.
static double mixed(size_t largest)
{
    enum { CALLS = 50000, LIVE = 256 };
    static void *live[LIVE];
    uint32_t seed = 12345;
    double start = now();
    for (int i = 0; i < CALLS; i++) {
        seed = seed * 1664525u + 1013904223u;
        unsigned slot = seed >> 24;
        size_t n = 16u << ((seed >> 8) % 16);
        n = n > largest ? largest : n;
        free(live[slot]);
        live[slot] = escape(malloc(n));
        memset(live[slot], 1, n < 256 ? n : 256);
    }
    double took = now() - start;
    for (int i = 0; i < LIVE; i++) {
        free(live[i]);
        live[i] = NULL;
    }
    return took / CALLS;
}

static double untouched(size_t n)
{
    enum { CALLS = 20000 };
    double start = now();
    for (int i = 0; i < CALLS; i++)
        free(escape(malloc(n)));
    return (now() - start) / CALLS;
}

static double again(size_t n)
{
    int calls = n > (16u << 20) ? 4 : 64;
    double start = now();
    for (int i = 0; i < calls; i++) {
        char *p = escape(malloc(n));
        touch(p, n);
        free(p);
    }
    return (now() - start) / calls / ((double)n / 4096);
}

static double zeroed(size_t n)
{
    int calls = n > (16u << 20) ? 4 : 64;
    double start = now();
    for (int i = 0; i < calls; i++) {
        char *p = escape(calloc(1, n));
        touch(p, n);
        free(p);
    }
    return (now() - start) / calls / ((double)n / 4096);
}

static double mapped(size_t n)
{
    int calls = n > (16u << 20) ? 4 : 64;
    double start = now();
    for (int i = 0; i < calls; i++) {
        char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        touch(p, n);
        munmap(p, n);
    }
    return (now() - start) / calls / ((double)n / 4096);
}

// A vector that doubles by an eighth.
static double growing(size_t n)
{
    double start = now();
    size_t have = 1 << 16;
    char *p = malloc(have);
    touch(p, have);
    while (have < n) {
        size_t next = have + have / 8;
        p = escape(realloc(p, next));
        touch(p + have, next - have);
        have = next;
    }
    free(p);
    return (now() - start) / ((double)n / 4096);
}

// Memory that is used once.
static double first(size_t n)
{
    enum { BLOCKS = 16 };
    char *p[BLOCKS];
    double start = now();
    for (int i = 0; i < BLOCKS; i++) {
        p[i] = escape(malloc(n));
        touch(p[i], n);
    }
    double took = now() - start;
    for (int i = 0; i < BLOCKS; i++)
        free(p[i]);
    return took / BLOCKS / ((double)n / 4096);
}

static void run(const char *name, double (*f)(size_t), size_t n)
{
    double best = 1e18;
    for (int i = 0; i < ROUNDS; i++) {
        double took = f(n);
        best = took < best ? took : best;
    }
    printf("%s %.1f\n", name, best);
}

int main(void)
{
    run("malloc_free_64B", small, 64);
    run("malloc_free_1KiB", small, 1024);
    run("mixed_to_64KiB", mixed, 64 << 10);
    run("mixed_to_512KiB", mixed, 512 << 10);
    run("untouched_256KiB", untouched, 256 << 10);
    run("untouched_64MiB", untouched, 64 << 20);
    run("touch_again_256KiB", again, 256 << 10);
    run("touch_again_4MiB", again, 4 << 20);
    run("touch_again_64MiB", again, 64 << 20);
    run("calloc_again_256KiB", zeroed, 256 << 10);
    run("calloc_again_4MiB", zeroed, 4 << 20);
    run("calloc_again_64MiB", zeroed, 64 << 20);
    run("mmap_again_256KiB", mapped, 256 << 10);
    run("mmap_again_4MiB", mapped, 4 << 20);
    run("mmap_again_64MiB", mapped, 64 << 20);
    run("growing_64MiB", growing, 64 << 20);
    run("first_touch_1MiB", first, 1 << 20);
    run("first_touch_16MiB", first, 16 << 20);
    return 0;
}
