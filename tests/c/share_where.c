// Says where memory lies, by what the device asks. The argument is the size of a request; prints "shared", "window" (in
// the region of node 0) or "private" for malloc, posix_memalign of 100 bytes at a page, mmap, and shared anonymous memory.
#define _GNU_SOURCE
#include "share_api.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static const char *where(const struct share_api *api, void *p, size_t n)
{
    struct share_place place;
    if (!api || api->find((uintptr_t)p, n, &place))
        return "private";
    // A region is behind the header, and its memory has an owner.
    uint64_t first = place.kind == SHARE_KIND_WINDOW ? 65536 : 0;
    if ((place.kind == SHARE_KIND_WINDOW) != (place.incarnation != 0))
        return "wrong";
    char *peer = mmap(NULL, n + 4096, PROT_READ, MAP_SHARED, place.fd, (off_t)((first + place.offset) & ~4095ull));
    *(volatile char *)p = 'w';
    int same = peer != MAP_FAILED && peer[place.offset & 4095] == 'w';
    return !same ? "wrong" : place.kind == SHARE_KIND_WINDOW ? "window" : "shared";
}

int main(int argc, char **argv)
{
    size_t n = argc > 1 ? strtoul(argv[1], NULL, 0) : 1 << 20;
    if (argc > 2 && !strcmp(argv[2], "close")) {
        // As a daemon does, when the heap is there. The compiler must not leave the block out.
        char *volatile p = malloc(n);
        memset(p, 1, n);
        free(p);
        for (int fd = 3; fd < 2000; fd++)
            close(fd);
        close_range(3, 5000, 0);
        closefrom(3);
        n *= 2;
    } else if (argc > 2) {
        struct rlimit r = {RLIM_INFINITY, RLIM_INFINITY};
        r.rlim_cur = strtoul(argv[3], NULL, 0);
        setrlimit(strcmp(argv[2], "as") ? strcmp(argv[2], "data") ? RLIMIT_FSIZE : RLIMIT_DATA : RLIMIT_AS, &r);
    }
    const struct share_api *(*entry)(void);
    *(void **)&entry = dlsym(RTLD_DEFAULT, "vervain_share_v1");
    char *a = malloc(n);
    void *b;
    if (posix_memalign(&b, 4096, 100))
        return 1;
    char *c = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *d = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const struct share_api *api = entry ? entry() : NULL;
    printf("malloc %s\n", where(api, a, n));
    printf("memalign %s\n", where(api, b, 100));
    printf("mmap %s\n", where(api, c, n));
    printf("shared %s\n", where(api, d, n));
    // The device has asked.
    char *e = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    printf("later %s\n", where(api, e, n));
    return 0;
}
