// What programs do with large memory: every case prints what it saw, and nothing that depends on addresses. Run on
// private memory and on memory that is allocated from shared memory, the output must be the same.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { PAGE = 4096, MIB = 1 << 20 };

static sigjmp_buf back;

static void fault(int sig)
{
    (void)sig;
    siglongjmp(back, 1);
}

// 'r' readable only, 'w' writable too, '-' neither.
static char access_of(volatile char *p)
{
    if (sigsetjmp(back, 1))
        return '-';
    char c = *p;
    if (sigsetjmp(back, 1))
        return 'r';
    *p = c;
    return 'w';
}

static char *map(size_t n)
{
    char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return p;
}

static int all(const char *p, size_t n, char c)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != c)
            return 0;
    return 1;
}

// What each page of a range is: its first byte as a letter, '.' for zero, '-' for no access.
static void show(const char *what, char *p, size_t pages)
{
    printf("%s: ", what);
    for (size_t i = 0; i < pages; i++) {
        char a = access_of(p + i * PAGE);
        char c = a == '-' ? '-' : p[i * PAGE];
        putchar(c == 0 ? '.' : c);
    }
    putchar('\n');
}

static void result(const char *what, long r)
{
    printf("%s: %ld %s\n", what, r, r < 0 ? strerrorname_np(errno) : "");
}

static void letters(char *p, size_t pages)
{
    for (size_t i = 0; i < pages; i++)
        memset(p + i * PAGE, 'a' + (int)(i % 26), PAGE);
}

static void fresh(void)
{
    for (int i = 0; i < 3; i++) {
        char *p = map(3 * MIB);
        printf("fresh mapping %d is zero: %d\n", i, all(p, 3 * MIB, 0));
        memset(p, 'x', 3 * MIB);
        result("munmap", munmap(p, 3 * MIB));
        printf("after munmap: %c\n", access_of(p));
    }
    char *c = calloc(1, 3 * MIB);
    printf("calloc is zero: %d\n", all(c, 3 * MIB, 0));
    memset(c, 'y', 3 * MIB);
    free(c);
    c = calloc(3, MIB);
    printf("calloc again is zero: %d\n", all(c, 3 * MIB, 0));
    free(c);
}

static void parts(void)
{
    char *p = map(MIB);
    letters(p, 256);
    result("munmap middle", munmap(p + 4 * PAGE, 2 * PAGE));
    show("hole", p, 10);
    result("munmap the hole again", munmap(p + 4 * PAGE, 2 * PAGE));
    result("munmap head", munmap(p, PAGE));
    result("munmap tail", munmap(p + 255 * PAGE, PAGE));
    show("head", p, 10);
    show("tail", p + 250 * PAGE, 6);
    result("munmap unaligned", munmap(p + 1, PAGE));
    result("munmap length 0", munmap(p, 0));
    result("munmap odd length", munmap(p + 2 * PAGE, 100));
    show("odd", p, 5);
    result("munmap all", munmap(p, MIB));
    show("nothing", p, 5);
    char *q = map(4 * MIB);
    letters(q, 1024);
    result("munmap all but a page", munmap(q, 2 * MIB) | munmap(q + 2 * MIB + PAGE, 2 * MIB - PAGE));
    show("island", q + 2 * MIB - PAGE, 3);
    char *r = map(4 * MIB);
    printf("new one is zero: %d\n", all(r, 4 * MIB, 0));
    munmap(r, 4 * MIB);
    show("island", q + 2 * MIB - PAGE, 3);
    munmap(q + 2 * MIB, PAGE);
}

static void advice(void)
{
    static const struct {
        const char *name;
        int value;
    } kinds[] = {
        {"DONTNEED", MADV_DONTNEED}, {"WILLNEED", MADV_WILLNEED},     {"NORMAL", MADV_NORMAL},
        {"RANDOM", MADV_RANDOM},     {"SEQUENTIAL", MADV_SEQUENTIAL}, {"REMOVE", MADV_REMOVE},
        {"DONTFORK", MADV_DONTFORK}, {"DOFORK", MADV_DOFORK},         {"WIPEONFORK", MADV_WIPEONFORK},
        {"KEEP", MADV_KEEPONFORK},   {"DONTDUMP", MADV_DONTDUMP},     {"DODUMP", MADV_DODUMP},
        {"COLD", MADV_COLD},         {"POPULATE", MADV_POPULATE_WRITE},
        {"NOHUGEPAGE", MADV_NOHUGEPAGE}, {"wrong", 12345},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char *p = map(MIB);
        letters(p, 256);
        result(kinds[i].name, madvise(p + 2 * PAGE, 3 * PAGE, kinds[i].value));
        show("pages", p, 8);
        result("unaligned", madvise(p + 1, PAGE, kinds[i].value));
        result("length 0", madvise(p, 0, kinds[i].value));
        munmap(p + 4 * PAGE, PAGE);
        result("with a hole", madvise(p + 3 * PAGE, 3 * PAGE, kinds[i].value));
        show("pages", p, 8);
        munmap(p, MIB);
    }
    // Contents after MADV_FREE are old or zero until they are written; then they stay.
    char *p = map(MIB);
    letters(p, 256);
    result("FREE", madvise(p, MIB, MADV_FREE));
    letters(p, 256);
    show("written after FREE", p, 8);
    result("mprotect", mprotect(p, 4 * PAGE, PROT_READ));
    result("DONTNEED read-only", madvise(p, 8 * PAGE, MADV_DONTNEED));
    show("pages", p, 10);
    printf("access %c %c\n", access_of(p), access_of(p + 4 * PAGE));
    munmap(p, MIB);
    char *m = malloc(MIB);
    char *page = (char *)(((uintptr_t)m + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
    letters(page, 8);
    result("DONTNEED in malloc", madvise(page + PAGE, 2 * PAGE, MADV_DONTNEED));
    show("malloc", page, 6);
    free(m);
    for (int i = 0; i < 4; i++) {
        char *pop = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        unsigned char in[256];
        int n = 0;
        result("mincore", mincore(pop, MIB, in));
        for (int k = 0; k < 256; k++)
            n += in[k] & 1;
        printf("populated %d, zero %d\n", n, all(pop, MIB, 0));
        memset(pop, 1, MIB);
        munmap(pop, MIB);
    }
}

static void protection(void)
{
    char *p = map(MIB);
    letters(p, 256);
    result("read-only", mprotect(p, PAGE, PROT_READ));
    result("none", mprotect(p + PAGE, PAGE, PROT_NONE));
    printf("access %c %c %c\n", access_of(p), access_of(p + PAGE), access_of(p + 2 * PAGE));
    result("read-write", mprotect(p + PAGE, PAGE, PROT_READ | PROT_WRITE));
    show("pages", p, 4);
    result("unaligned", mprotect(p + 1, PAGE, PROT_READ));
    // Returns 42, on x86-64 and AArch64.
#if defined __x86_64__
    memcpy(p + 4 * PAGE, "\xb8\x2a\x00\x00\x00\xc3", 6);
#else
    memcpy(p + 4 * PAGE, "\x40\x05\x80\x52\xc0\x03\x5f\xd6", 8);
#endif
    result("executable", mprotect(p + 4 * PAGE, PAGE, PROT_READ | PROT_EXEC));
    __builtin___clear_cache(p + 4 * PAGE, p + 5 * PAGE);
    int (*code)(void);
    char *at = p + 4 * PAGE;
    memcpy(&code, &at, sizeof at);
    printf("code %d\n", code());
    munmap(p, MIB);
    // A protection must not be inherited by the next owner of the memory.
    for (int i = 0; i < 3; i++) {
        char *q = map(MIB);
        printf("next one %c, zero %d\n", access_of(q + PAGE), all(q, MIB, 0));
        mprotect(q, MIB, PROT_NONE);
        munmap(q, MIB);
        char *m = aligned_alloc(PAGE, 4 * MIB);
        printf("next block %c\n", access_of(m + PAGE));
        memset(m, 1, 4 * MIB);
        mprotect(m, 2 * PAGE, PROT_READ);
        mprotect(m, 2 * PAGE, PROT_READ | PROT_WRITE);
        free(m);
    }
}

static void moving(void)
{
    char *p = map(MIB);
    letters(p, 256);
    p = mremap(p, MIB, 8 * MIB, MREMAP_MAYMOVE);
    show("grown", p, 5);
    printf("rest zero %d\n", all(p + MIB, 7 * MIB, 0));
    memset(p + MIB, 'z', 7 * MIB);
    char *q = mremap(p, 8 * MIB, MIB, 0);
    printf("shrunk in place %d\n", p == q);
    show("end", q + MIB - 2 * PAGE, 2);
    printf("behind %c\n", access_of(q + MIB));
    q = mremap(q, MIB, 4 * MIB, MREMAP_MAYMOVE);
    printf("grown again, rest zero %d\n", all(q + MIB, 3 * MIB, 0));
    show("start", q, 5);

    char *target = map(4 * MIB);
    memset(target, 't', 4 * MIB);
    char *r = mremap(q, 2 * MIB, 2 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, target + MIB);
    printf("fixed %d\n", r == target + MIB);
    show("before it", target + MIB - PAGE, 3);
    show("after it", target + 3 * MIB - PAGE, 3);
    printf("old place %c, rest of it %c\n", access_of(q), access_of(q + 2 * MIB));
    munmap(q, 4 * MIB);
    munmap(target, 4 * MIB);
    printf("target gone %c %c\n", access_of(target), access_of(target + MIB));

    char *s = map(2 * MIB);
    letters(s, 512);
    char *moved = mremap(s, MIB, MIB, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    printf("dontunmap %d\n", moved != MAP_FAILED);
    show("moved", moved, 4);
    show("left", s, 4);
    munmap(moved, MIB);
    mprotect(s + MIB, PAGE, PROT_READ);
    errno = 0;
    printf("over two protections %d %s\n", mremap(s, 2 * MIB, 3 * MIB, MREMAP_MAYMOVE) == MAP_FAILED,
           strerrorname_np(errno));
    mprotect(s, 2 * MIB, PROT_READ);
    char *ro = mremap(s, 2 * MIB, 3 * MIB, MREMAP_MAYMOVE);
    printf("read-only moved %c %c\n", access_of(ro), access_of(ro + 2 * MIB));
    munmap(ro, 3 * MIB);
    char *u = map(MIB);
    errno = 0;
    printf("unaligned %d %s\n", mremap(u + 1, PAGE, 2 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED, strerrorname_np(errno));
    errno = 0;
    printf("wrong flags %d %s\n", mremap(u, PAGE, PAGE, 64) == MAP_FAILED, strerrorname_np(errno));
    errno = 0;
    printf("new length 0 %d %s\n", mremap(u, PAGE, 0, 0) == MAP_FAILED, strerrorname_np(errno));
    munmap(u, MIB);
    errno = 0;
    printf("unmapped %d %s\n", mremap(u, MIB, 2 * MIB, MREMAP_MAYMOVE) == MAP_FAILED, strerrorname_np(errno));
}

static void fixed(void)
{
    char *p = map(4 * MIB);
    letters(p, 1024);
    char *q = mmap(p + MIB, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    printf("fixed over %d\n", q == p + MIB);
    show("edge", p + MIB - 2 * PAGE, 4);
    memset(q, 'q', MIB);
    FILE *f = tmpfile();
    fputs("file", f);
    fflush(f);
    char *file = mmap(p + 2 * MIB, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, fileno(f), 0);
    printf("file over %.4s\n", file);
    char *none = mmap(p, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    printf("guard %d %c %c\n", none == p, access_of(p), access_of(p + PAGE));
    errno = 0;
    char *taken = mmap(p, MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    printf("noreplace %d %s\n", taken == MAP_FAILED, strerrorname_np(errno));
    result("DONTNEED over all", madvise(p, 4 * MIB, MADV_DONTNEED));
    printf("file still %.4s\n", file);
    show("after", p + MIB - PAGE, 3);
    result("munmap all", munmap(p, 4 * MIB));
    show("after", p + MIB - PAGE, 3);
    fclose(f);
    // The same place again, after it was given back.
    q = mmap(p, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    printf("old place %d, zero %d\n", q == p, all(q, 2 * MIB, 0));
    memset(q, 'o', 2 * MIB);
    for (int i = 0; i < 20; i++) {
        char *other = map(4 * MIB);
        memset(other, 'n', 4 * MIB);
        munmap(other, 4 * MIB);
    }
    printf("untouched by others %d\n", all(q, 2 * MIB, 'o'));
    munmap(q, 2 * MIB);
}

static void locking(void)
{
    char *p = map(MIB);
    letters(p, 256);
    result("mlock", mlock(p, 16 * PAGE));
    result("DONTNEED locked", madvise(p, PAGE, MADV_DONTNEED));
    show("locked", p, 3);
    result("munlock", munlock(p, 16 * PAGE));
    result("DONTNEED", madvise(p, PAGE, MADV_DONTNEED));
    show("unlocked", p, 3);
    result("mlock2", mlock2(p, 4 * PAGE, MLOCK_ONFAULT));
    munmap(p, MIB);
    result("mlock nothing", mlock(p, PAGE));
    result("msync", msync(map(MIB), PAGE, MS_SYNC));
}

static void blocks(void)
{
    char *p = malloc(200000);
    memset(p, 'm', 200000);
    for (size_t n = 200000; n < 50 * MIB; n = n * 3 / 2) {
        p = realloc(p, n);
        if (!all(p, 200000, 'm') || malloc_usable_size(p) < n)
            printf("realloc to %zu lost something\n", n);
        p[n - 1] = 'e';
    }
    p = realloc(p, 1000);
    printf("shrunk %d\n", all(p, 1000, 'm'));
    p = realloc(p, 300000);
    printf("grown %d\n", all(p, 1000, 'm'));
    printf("realloc to 0 %d\n", realloc(p, 0) == NULL);
    p = realloc(NULL, 300000);
    memset(p, 1, 300000);
    free(p);
    errno = 0;
    volatile size_t huge = SIZE_MAX / 2;
    printf("too much %d %s\n", malloc(huge) == NULL, strerrorname_np(errno));
    errno = 0;
    printf("calloc overflow %d %s\n", calloc(huge, 4) == NULL, strerrorname_np(errno));
    errno = 0;
    printf("reallocarray overflow %d %s\n", reallocarray(NULL, huge, 4) == NULL, strerrorname_np(errno));
    void *const other = &back, *a = other;
    printf("posix_memalign 3: %d\n", posix_memalign(&a, 3, 100));
    printf("kept %d\n", a == other);
    for (size_t align = 8; align <= 4 * MIB; align *= 2)
        for (size_t n = 1; n < 2 * MIB; n = n * 7 + 100) {
            if (posix_memalign(&a, align, n) || (uintptr_t)a % align)
                printf("posix_memalign %zu %zu\n", align, n);
            memset(a, 1, n);
            free(a);
        }
    a = valloc(100);
    printf("valloc %d\n", (int)((uintptr_t)a % PAGE));
    free(a);
    a = pvalloc(PAGE + 1);
    printf("pvalloc %d %d\n", (int)((uintptr_t)a % PAGE), malloc_usable_size(a) >= 2 * PAGE);
    free(a);
    errno = 77;
    p = malloc(MIB);
    free(p);
    printf("errno kept %d\n", errno);
    // Untouched memory costs none.
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    p = calloc(1, 512u * MIB);
    p[100 * MIB] = 1;
    p = realloc(p, 900u * MIB);
    printf("sparse kept %d\n", p[100 * MIB]);
    free(p);
    getrusage(RUSAGE_SELF, &after);
    printf("sparse stays sparse %d\n", after.ru_maxrss - before.ru_maxrss < 100 * 1024);
}

static void limits(void)
{
    fflush(stdout);
    if (fork() == 0) {
        struct rlimit r = {300 * MIB, 300 * MIB};
        setrlimit(RLIMIT_AS, &r);
        char *p = malloc(100 * MIB), *q = malloc(100 * MIB), *t = malloc(250 * MIB);
        printf("limited space %d %d %d\n", !!p, !!q, !!t);
        free(p);
        free(q);
        t = malloc(200 * MIB);
        printf("after free %d\n", !!t);
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
    if (fork() == 0) {
        struct rlimit r = {64 * MIB, 64 * MIB};
        setrlimit(RLIMIT_DATA, &r);
        char *p = malloc(20 * MIB), *q = malloc(100 * MIB);
        printf("limited data %d %d\n", !!p, !!q);
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
    if (fork() == 0) {
        struct rlimit r = {16 * MIB, 16 * MIB};
        setrlimit(RLIMIT_FSIZE, &r);
        char *p = malloc(20 * MIB);
        memset(p, 'f', 20 * MIB);
        fflush(stdout);
        if (fork() == 0) {
            printf("limited files %d\n", all(p, 20 * MIB, 'f'));
            fflush(stdout);
            _exit(0);
        }
        wait(NULL);
        _exit(0);
    }
    wait(NULL);
}

static int failed_with(int result)
{
    return result == 0 ? 0 : errno;
}

// What has been unmapped is not there, and leaves nothing behind for what is mapped next.
static void unmapped(void)
{
    size_t n = 4 * MIB;
    unsigned char there[1024];
    char *p = map(n);
    memset(p, 'u', n);
    munmap(p, n);
    printf("unmapped %c %d", access_of(p), failed_with(mincore(p, n, there)));
    printf(" %d", failed_with(msync(p, n, MS_ASYNC)));
    printf(" %d", failed_with(mprotect(p, n, PROT_READ)));
    printf(" %d", failed_with(madvise(p, n, MADV_DONTNEED)));
    printf(" %d\n", failed_with(munmap(p, n)));
    char *q = mmap(p, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    printf("at its place %d %d\n", q == p, q == p && all(q, n, 0));
    munmap(q, n);
    p = map(n);
    munmap(p, n);
    q = mmap(p, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    printf("at its place by a hint %d\n", q == p);
    munmap(q, n);
    for (int i = 0; i < 3; i++) {
        p = map(n);
        memset(p, 'x', n);
        int guarded = madvise(p, 2 * PAGE, 102 /* MADV_GUARD_INSTALL, Linux 6.13 */);
        printf("guard %d %c%c\n", guarded, access_of(p), access_of(p + 2 * PAGE));
        munmap(p, n);
        p = map(n);
        printf("after it %d %c\n", all(p, n, 0), access_of(p));
        munmap(p, n);
    }
}

// MREMAP_DONTUNMAP of the heap's own and of what the program has put over it.
static void left_behind(void)
{
    for (int over = 0; over < 2; over++) {
        char *p = map(MIB);
        if (over)
            mmap(p, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        memset(p, 'd', MIB);
        char *q = mremap(p, 16 * PAGE, 16 * PAGE, MREMAP_MAYMOVE | 4 /* MREMAP_DONTUNMAP */, NULL);
        printf("dontunmap %d %d %d %d\n", q != MAP_FAILED, all(q, 16 * PAGE, 'd'), all(p, 16 * PAGE, 0),
               all(p + 16 * PAGE, MIB - 16 * PAGE, 'd'));
        munmap(q, 16 * PAGE);
        munmap(p, MIB);
    }
}

// Many small blocks at page boundaries: they do not take a mapping each.
static void many(void)
{
    enum { N = 70000 };
    static char *p[N];
    int bad = 0;
    for (int i = 0; i < N; i++) {
        if (posix_memalign((void **)&p[i], PAGE << i % 3, PAGE)) {
            printf("memory for %d\n", i);
            return;
        }
        bad += (uintptr_t)p[i] % (PAGE << i % 3) != 0;
        *(int *)p[i] = i;
    }
    for (int i = 0; i < N; i += 2)
        free(p[i]);
    FILE *maps = fopen("/proc/self/maps", "r");
    int lines = 0;
    for (int c; (c = getc(maps)) != EOF;)
        lines += c == '\n';
    fclose(maps);
    for (int i = 0; i < N; i += 2)
        if (posix_memalign((void **)&p[i], PAGE, PAGE << i % 4) == 0)
            memset(p[i], 1, PAGE << i % 4);
    for (int i = 1; i < N; i += 2)
        bad += *(int *)p[i] != i || malloc_usable_size(p[i]) < PAGE;
    // What the program did to one of them is not there for the next.
    mprotect(p[1], PAGE, PROT_NONE);
    madvise(p[3], PAGE, MADV_DONTNEED);
    bad += *p[3] != 0;
    mprotect(p[1], PAGE, PROT_READ | PROT_WRITE);
    bad += *(int *)p[1] != 1;
    mprotect(p[5], PAGE, PROT_READ);
    p[7] = realloc(p[7], 3 * PAGE);
    bad += *(int *)p[7] != 7;
    p[9] = realloc(p[9], MIB);
    bad += *(int *)p[9] != 9;
    mprotect(p[5], PAGE, PROT_READ | PROT_WRITE);
    pid_t child = fork();
    if (child == 0) {
        int wrong = 0;
        for (int i = 11; i < N; i += 2)
            wrong += *(int *)p[i] != i;
        for (int i = 11; i < N; i++)
            free(p[i]);
        _exit(wrong != 0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    for (int i = 0; i < N; i++)
        free(p[i]);
    printf("many %d, child %x, mappings %s\n", bad, status, lines < 1000 ? "few" : "many");
}

// A filter that lets through what the C library's allocator needs, and kills for the rest. How it is set: by prctl(2), by
// seccomp(2) through syscall(2), as libseccomp does.
static int forbid(int by_syscall)
{
    static const unsigned allowed[] = {SYS_mmap, SYS_munmap, SYS_mremap, SYS_brk, SYS_madvise, SYS_mprotect, SYS_write,
                                       SYS_exit, SYS_exit_group, SYS_newfstatat, SYS_futex, SYS_getrandom};
    struct sock_filter filter[64];
    unsigned short n = 0;
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++) {
        filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], 0, 1);
        filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    struct sock_fprog program = {n, filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return by_syscall ? (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) : prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static void sandboxed(void)
{
    for (int by_syscall = 0; by_syscall < 2; by_syscall++) {
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            char *block = malloc(MIB), *kept = malloc(20 * MIB), *mapping = map(4 * MIB);
            memset(block, 'b', MIB);
            memset(kept, 'k', 20 * MIB);
            memset(mapping, 'm', 4 * MIB);
            errno = 0;
            int set = syscall(SYS_close, -1) == -1 && errno == EBADF && forbid(by_syscall) == 0;
            block = realloc(block, 3 * MIB);
            int right = all(block, MIB, 'b');
            madvise(mapping, MIB, MADV_DONTNEED);
            right += all(mapping, MIB, 0) && all(mapping + MIB, MIB, 'm');
            munmap(mapping, 4 * MIB);
            mapping = map(4 * MIB);
            right += all(mapping, 4 * MIB, 0);
            free(kept);
            kept = calloc(1, 20 * MIB);
            right += all(kept, 20 * MIB, 0);
            free(kept);
            free(block);
            block = aligned_alloc(PAGE, PAGE);
            right += block && !((uintptr_t)block % PAGE);
            free(block);
            _exit(set * 10 + right);
        }
        int status = -1;
        waitpid(pid, &status, 0);
        printf("with a filter %d: %x\n", by_syscall, status);
    }
}

int main(void)
{
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    struct sigaction action = {.sa_handler = fault};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    void (*cases[])(void) = {fresh, parts, advice, protection, moving, fixed, locking, blocks, limits, unmapped, left_behind, many, sandboxed};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        printf("== %zu\n", i);
        cases[i]();
    }
    fflush(stdout);
    return 0;
}
