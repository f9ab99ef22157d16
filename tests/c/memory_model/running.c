// Running itself: many seeds side by side, and the fewest calls that still fail in the same way.
#define _GNU_SOURCE
#include "model.h"

char *self[24];
int self_count;

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

int many(uint64_t from, uint64_t count)
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
int shrink(void)
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
