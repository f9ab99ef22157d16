// Frees large memory and asks for nothing more: what is kept for the next request must be given back by itself, since the
// program has a device.
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Resident shared memory in KiB, without a request to the heap.
static long resident(void)
{
    static char text[8192];
    FILE *f = fopen("/proc/self/status", "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
    text[n] = 0;
    char *line = strstr(text, "RssShmem:");
    return line ? atol(line + 9) : -1;
}

int main(void)
{
    int n;
    struct ibv_device **list = ibv_get_device_list(&n);
    struct ibv_context *ctx = list && n ? ibv_open_device(list[0]) : NULL;
    if (!ctx)
        return 2;
    long before = resident();
    for (int round = 0; round < 2; round++) {
        char *block[16];
        for (int i = 0; i < 16; i++)
            memset(block[i] = malloc(1 << 20), i, 1 << 20);
        for (int i = 0; i < 16; i++)
            free(block[i]);
        printf("round %d: %s\n", round, resident() > before + 8192 ? "kept" : "not kept");
        int tries = 300;
        while (resident() > before + 4096 && tries--)
            usleep(100000);
        printf("round %d: %s\n", round, tries > 0 ? "given back" : "still there");
    }
    ibv_close_device(ctx);
    return 0;
}
