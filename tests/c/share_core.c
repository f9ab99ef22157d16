// Dies with a core dump: of large memory, little of it touched. The needles must be in the dump, and the rest must not
// have been brought to life for it.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

int main(void)
{
    struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_CORE, &all);
    char *heap = malloc(8u << 20);
    char *sparse = mmap(NULL, 256u << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *kept = malloc(64u << 20);
    memset(kept, 1, 64u << 20);
    free(kept);
    // Written so that the needles are not in the program itself.
    for (int i = 0; i < 10; i++) {
        heap[(4u << 20) + (unsigned)i] = (char)('0' + i);
        sparse[(100u << 20) + (unsigned)i] = (char)('9' - i);
    }
    strcpy(heap + (4u << 20) + 10, "-in-malloc");
    strcpy(sparse + (100u << 20) + 10, "-in-mmap");
    // The compiler must not think that nobody reads them.
    __asm__ volatile("" : : "r"(heap), "r"(sparse) : "memory");
    puts("now");
    fflush(stdout);
    raise(SIGSEGV);
    return 0;
}
