// Fills the shared heap of a window with blocks of 1 MiB and does with them what its standard input says, line by line:
// fill, check, free N, large N, fork, _Fork, spawn. Answers each with a line.
#define _GNU_SOURCE
#include "share_api.h"

#include <dlfcn.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MIB = 1 << 20, MOST = 4096, BEYOND = 4 };

static const struct share_api *api;
static uint64_t *blocks[MOST];
static int count;

static int is_in_window(void *p, size_t n)
{
    struct share_place place;
    return api && !api->find((uintptr_t)p, n, &place) && place.kind == SHARE_KIND_WINDOW && place.offset + n <= place.object_len;
}

static void mark(uint64_t *p)
{
    for (int i = 0; i < MIB / 8; i++)
        p[i] = (uint64_t)getpid() << 32 | (uint64_t)i;
}

static int is_marked(const uint64_t *p, pid_t by)
{
    for (int i = 0; i < MIB / 8; i++)
        if (p[i] != ((uint64_t)by << 32 | (uint64_t)i))
            return 0;
    return 1;
}

// Until the region is full, and some blocks beyond, which come from elsewhere. How many are in the window.
static int fill(void)
{
    int inside = 0;
    for (int beyond = 0; count < MOST && beyond < BEYOND; count++) {
        uint64_t *p = blocks[count] = malloc(MIB);
        if (!p)
            return -1;
        if (is_in_window(p, MIB))
            inside++;
        else
            beyond++;
        mark(p);
    }
    return inside;
}

static int intact(pid_t by)
{
    for (int i = 0; i < count; i++)
        if (!is_marked(blocks[i], by))
            return 0;
    return 1;
}

static int child(pid_t (*how)(void))
{
    pid_t parent = getpid(), pid = how();
    if (pid == 0) {
        // What it has is its own, and what it allocates is in no window.
        void *p = malloc(MIB);
        _Exit(intact(parent) && p && !is_in_window(p, MIB) ? pause() : 1);
    }
    return pid;
}

int main(void)
{
    const struct share_api *(*entry)(void);
    *(void **)&entry = dlsym(RTLD_DEFAULT, "vervain_share_v1");
    api = entry ? entry() : NULL;
    char line[100];
    int n;
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "fill\n")) {
            printf("%d\n", fill());
        } else if (!strcmp(line, "check\n")) {
            printf("%d\n", intact(getpid()));
        } else if (sscanf(line, "free %d", &n) == 1) {
            // The first of them lie side by side.
            for (int i = 0; i < n; i++)
                free(blocks[i]);
            memmove(blocks, blocks + n, (size_t)(count - n) * sizeof *blocks);
            count -= n;
            printf("0\n");
        } else if (sscanf(line, "large %d", &n) == 1) {
            void *p = calloc((size_t)n, MIB);
            int zero = 1;
            for (size_t i = 0; i < (size_t)n * MIB; i++)
                zero &= !((char *)p)[i];
            printf("%d\n", zero ? is_in_window(p, (size_t)n * MIB) : -1);
            free(p);
        } else if (!strcmp(line, "fork\n")) {
            printf("%d\n", child(fork));
        } else if (!strcmp(line, "_Fork\n")) {
            printf("%d\n", child(_Fork));
        } else if (!strcmp(line, "spawn\n")) {
            pid_t pid;
            char *words[] = {"sleep", "60", NULL}, *none[] = {NULL};
            printf("%d\n", posix_spawnp(&pid, "sleep", NULL, NULL, words, none) ? -1 : pid);
        } else {
            return 1;
        }
    }
    return 0;
}
