// What children of fork see of large memory, and what they do not change: as share_maps, the output must be the same on
// private memory and on memory that is allocated from shared memory.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, MIB = 1 << 20 };

static char *map(size_t n)
{
    return mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static int all(const char *p, size_t n, char c)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != c)
            return 0;
    return 1;
}

// Runs f in a child, and says how the child ended.
static void child(const char *what, void (*f)(char *), char *p)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        f(p);
        fflush(stdout);
        _exit(0);
    }
    int status;
    waitpid(pid, &status, 0);
    if (WIFSIGNALED(status))
        printf("%s: killed by %s\n", what, sigabbrev_np(WTERMSIG(status)));
    else
        printf("%s: exit %d\n", what, WEXITSTATUS(status));
}

static void looks(char *p)
{
    printf("child sees %d\n", all(p, MIB, 'p'));
    memset(p, 'c', MIB);
    char *q = malloc(MIB);
    memset(q, 'q', MIB);
    p = realloc(p, 4 * MIB);
    printf("child has %d %d\n", all(p, MIB, 'c'), all(q, MIB, 'q'));
    free(p);
    free(q);
    for (int i = 0; i < 50; i++) {
        q = calloc(1, 300000 + (size_t)i * 10000);
        memset(q, 1, 300000);
        free(q);
    }
    if (fork() == 0) {
        q = malloc(MIB);
        memset(q, 'g', MIB);
        printf("grandchild %d\n", all(q, MIB, 'g'));
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
}

static void touches(char *p)
{
    printf("child touches\n");
    fflush(stdout);
    p[0] = 1;
    printf("child touched\n");
}

static void zero(char *p)
{
    printf("child sees zero %d, then %d\n", all(p, MIB, 0), all(p + MIB, MIB, 'p'));
}

static void protection(char *p)
{
    printf("child reads %c\n", p[PAGE]);
    fflush(stdout);
    p[PAGE] = 1;
}

static void grandchild(char *p)
{
    memset(p, '1', MIB);
    child("grandchild", looks, p);
    printf("child kept %d\n", all(p, MIB, '1'));
}

static void shared(char *p)
{
    memset(p, 's', MIB);
}

// Children that live side by side, forked while the parent changes a little, much and gives memory back: each keeps what
// was there when it was forked, whatever the others and the parent do.
enum { KIDS = 12, LARGE = 8 * MIB };

static char at_fork[KIDS];

static int keeps(const char *p, int n)
{
    // Pages are changed one after the other; child n was forked when the first n had been.
    for (int i = 0; i < KIDS; i++)
        if (!all(p + i * PAGE, PAGE, i < n ? 'A' + i : 'p'))
            return 0;
    return all(p + LARGE / 2, LARGE / 4, at_fork[n]);
}

static void siblings(void)
{
    char *p = malloc(LARGE);
    memset(p, 'p', LARGE);
    int go[2];
    if (pipe(go))
        return;
    pid_t pids[KIDS];
    for (int n = 0; n < KIDS; n++) {
        char quarter = n < 3 ? 'p' : n < 6 ? 0 : n < 9 ? 'x' : 'y';
        if (quarter == 0)
            madvise((void *)(((uintptr_t)p + LARGE / 2 + PAGE - 1) & -(uintptr_t)PAGE), LARGE / 4, MADV_DONTNEED);
        else
            memset(p + LARGE / 2, quarter, LARGE / 4 + PAGE);
        memset(p + LARGE / 2, quarter, PAGE);
        at_fork[n] = quarter;
        fflush(stdout);
        pids[n] = fork();
        if (pids[n] == 0) {
            char byte;
            close(go[1]);
            int wrong = !keeps(p, n);
            memset(p + LARGE - MIB, n, MIB);
            // The parent goes on, the siblings come.
            while (read(go[0], &byte, 1) > 0)
                ;
            wrong += !keeps(p, n) || !all(p + LARGE - MIB, MIB, (char)n);
            char *own = malloc(2 * MIB);
            memset(own, n, 2 * MIB);
            pid_t grandchild = fork();
            if (grandchild == 0)
                _exit(!keeps(p, n) || !all(own, 2 * MIB, (char)n));
            int status = -1;
            waitpid(grandchild, &status, 0);
            wrong += status != 0;
            madvise((void *)(((uintptr_t)p + PAGE - 1) & -(uintptr_t)PAGE), PAGE, MADV_DONTNEED);
            free(own);
            free(p);
            _exit(wrong);
        }
        memset(p + n * PAGE, 'A' + n, PAGE);
    }
    close(go[0]);
    close(go[1]);
    for (int n = 0; n < KIDS; n++) {
        int status = -1;
        waitpid(pids[n], &status, 0);
        printf("sibling %d: %x\n", n, status);
    }
    free(p);
}

static void *writer(void *arg)
{
    volatile char *p = arg;
    for (;;)
        for (int i = 0; i < MIB; i += 64)
            p[i]++;
    return NULL;
}

// The program's own handlers are outside of ours: what they do is in the child's copy.
static char *handled;
static void on_prepare(void)
{
    memset(handled, 'h', MIB);
}
static void on_child(void)
{
    printf("in the child's handler %d\n", all(handled, MIB, 'h'));
}

static void nothing(char *p)
{
    (void)p;
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        char *p = malloc(MIB);
        memset(p, 'e', MIB);
        printf("after exec %d\n", all(p, MIB, 'e'));
        return 0;
    }
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    char *p = malloc(MIB);
    memset(p, 'p', MIB);
    child("malloc", looks, p);
    printf("parent kept %d\n", all(p, MIB, 'p'));
    for (int i = 0; i < 5; i++) {
        memset(p, 'p', MIB);
        child("again", looks, p);
    }
    child("child and grandchild", grandchild, p);
    printf("parent kept %d\n", all(p, MIB, 'p'));
    free(p);

    p = map(4 * MIB);
    memset(p, 'p', 4 * MIB);
    child("mmap", looks, memset(malloc(MIB), 'p', MIB));
    madvise(p, MIB, MADV_WIPEONFORK);
    child("wipe on fork", zero, p);
    madvise(p, MIB, MADV_KEEPONFORK);
    madvise(p + 2 * MIB, MIB, MADV_DONTFORK);
    child("not for children", touches, p + 2 * MIB);
    child("for children", touches, p + 3 * MIB);
    madvise(p + 2 * MIB, MIB, MADV_DOFORK);
    child("for children again", touches, p + 2 * MIB);
    mprotect(p, 2 * PAGE, PROT_READ);
    child("read-only", protection, p);
    mprotect(p, 2 * PAGE, PROT_NONE);
    child("no access", touches, p);
    munmap(p + MIB, PAGE);
    child("hole", touches, p + MIB);
    munmap(p, 4 * MIB);
    child("unmapped", touches, p + 2 * MIB);

    p = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    child("shared", shared, p);
    printf("parent sees what the child wrote %d\n", all(p, MIB, 's'));
    munmap(p, MIB);

    handled = malloc(MIB);
    memset(handled, 'x', MIB);
    pthread_atfork(on_prepare, NULL, on_child);
    child("handlers", nothing, NULL);

    siblings();
    p = malloc(MIB);
    char *busy = malloc(MIB);
    memset(p, 'p', MIB);
    pthread_t thread;
    pthread_create(&thread, NULL, writer, busy);
    for (int i = 0; i < 5; i++) {
        memset(p, 'p', MIB);
        child("beside a thread that writes", looks, p);
    }

    // In place of fork: what runs in the parent's memory, and what leaves it at once.
    printf("vfork\n");
    fflush(stdout);
    if (vfork() == 0) {
        p[0] = 'v';
        _exit(0);
    }
    wait(NULL);
    printf("vfork's child wrote %c\n", p[0]);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0)
        execl("/proc/self/exe", argv[0], "exec", NULL);
    waitpid(pid, NULL, 0);
    printf("system %d\n", system("echo from a shell"));
    fflush(stdout);
    // _exit: the thread still writes.
    _exit(0);
}
