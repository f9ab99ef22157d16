// Threads allocate, grow, shrink, map, unmap and free memory of all sizes, hand blocks to each other, and check each
// byte pattern; meanwhile the process forks. Prints "ok" and the number of operations.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 8, SLOTS = 24, OPERATIONS = 6000 };

struct block {
    unsigned char *at;
    size_t size;
    uint64_t seed;
    int mapped;
};

static _Atomic(struct block *) exchange[16];
static atomic_int failed;

// First and last bytes of each page carry the seed.
static void mark(struct block *b, size_t from)
{
    for (size_t i = from & ~(size_t)4095; i < b->size; i += 4096)
        b->at[i] = (unsigned char)(b->seed + i / 4096);
    b->at[b->size - 1] = (unsigned char)b->seed;
}

static void check(const struct block *b, size_t size, const char *when)
{
    for (size_t i = 0; i < size; i += 4096)
        if (b->at[i] != (unsigned char)(b->seed + i / 4096) && i != b->size - 1) {
            printf("%s: byte %zu of %zu is %d\n", when, i, b->size, b->at[i]);
            atomic_store(&failed, 1);
            return;
        }
}

static void drop(struct block *b)
{
    if (!b->at)
        return;
    check(b, b->size, "at free");
    if (b->mapped)
        munmap(b->at, b->size);
    else
        free(b->at);
    b->at = NULL;
}

static void *work(void *arg)
{
    uint64_t x = (uintptr_t)arg * 0x9e3779b97f4a7c15u + 1;
    struct block slots[SLOTS] = {{0}};
    for (int n = 0; n < OPERATIONS && !atomic_load(&failed); n++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        struct block *b = &slots[(x >> 20) % SLOTS];
        size_t size = ((size_t)1 << (4 + (x >> 40) % 17)) + (x >> 50) % 5000;
        switch (b->at ? x % 4 : 4 + x % 4) {
        case 0:
            drop(b);
            break;
        case 1:
            if (!b->mapped) {
                size_t least = b->size < size ? b->size : size;
                b->at = realloc(b->at, size);
                if (least > 1)
                    check(b, least - 1, "after realloc");
                b->size = size;
                mark(b, 0);
            }
            break;
        case 2: {
            // Another thread frees it.
            struct block *mine = malloc(sizeof *mine);
            *mine = *b;
            b->at = NULL;
            struct block *other = atomic_exchange(&exchange[(x >> 30) % 16], mine);
            if (other) {
                drop(other);
                free(other);
            }
            break;
        }
        case 3:
            check(b, b->size, "in between");
            break;
        case 4:
            *b = (struct block){.at = calloc(1, size), .size = size, .seed = x >> 8};
            for (size_t i = 0; i < size; i += 512)
                if (b->at[i]) {
                    printf("calloc of %zu is not zero at %zu\n", size, i);
                    atomic_store(&failed, 1);
                    break;
                }
            mark(b, 0);
            break;
        case 5:
            *b = (struct block){.at = malloc(size), .size = size, .seed = x >> 8};
            mark(b, 0);
            break;
        case 6:
            *b = (struct block){.at = aligned_alloc(4096, size), .size = size, .seed = x >> 8};
            mark(b, 0);
            break;
        default:
            size = (size + 4095) & ~(size_t)4095;
            *b = (struct block){.size = size, .seed = x >> 8, .mapped = 1};
            b->at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            for (size_t i = 0; i < size; i += 4096)
                if (b->at[i] || b->at[i + 4095]) {
                    printf("mapping of %zu is not zero at %zu\n", size, i);
                    atomic_store(&failed, 1);
                    break;
                }
            mark(b, 0);
        }
    }
    for (int i = 0; i < SLOTS; i++)
        drop(&slots[i]);
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)(i + 1));
    for (int i = 0; i < 20; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            // The child's heap works, whatever the threads were doing.
            alarm(20);
            char *p = calloc(1, 500000);
            memset(p, 1, 500000);
            p = realloc(p, 3000000);
            free(p);
            _exit(0);
        }
        int status;
        waitpid(pid, &status, 0);
        if (status) {
            printf("a child ended with %x\n", (unsigned)status);
            atomic_store(&failed, 1);
        }
        usleep(20000);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("%s\n", atomic_load(&failed) ? "failed" : "ok");
    return atomic_load(&failed);
}
