// What all of the model stands on: numbers drawn at random, reports, and accesses that survive a signal.
#define _GNU_SOURCE
#include "model.h"

// The model's own memory is asked for by system call: Vervain does not see it.
void *own(size_t n, int flags)
{
    void *p = (void *)syscall(SYS_mmap, NULL, n, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        perror("mmap of the model");
        _exit(2);
    }
    return p;
}

uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t any(uint64_t below)
{
    me->random = mix(me->random);
    return (me->random >> 8) % below;
}

int one_in(uint64_t n)
{
    return any(n) == 0;
}

// Each call draws from a source of its own, so that a call that is left out does not change what others draw.
void next_call(uint64_t label)
{
    me->label = label;
    me->random = mix(mix(me->seed) ^ mix(label ^ (uint64_t)me->thread << 60));
}

int skip(uint64_t label)
{
    for (size_t i = 0; i < skipped; i++)
        if (skips[i] == (label | (uint64_t)me->thread << 60))
            return 1;
    return 0;
}

int allowed(const char *name)
{
    size_t n = strlen(name);
    for (const char *at = without; at && (at = strstr(at, name)); at += n)
        if ((at == without || at[-1] == ',') && (at[n] == ',' || at[n] == 0))
            return 0;
    return 1;
}

static void put(const char *text, size_t n)
{
    while (n > 0) {
        ssize_t done = write(STDOUT_FILENO, text, n);
        if (done <= 0)
            return;
        text += done;
        n -= (size_t)done;
    }
}

static size_t label_text(char *text, size_t n)
{
    uint64_t label = me->label;
    int used = snprintf(text, n, "%s%d: %llu", me->depth ? "  " : "", me->thread, (unsigned long long)(label >> 16));
    if (label >> 8 & 255)
        used += snprintf(text + used, n - (size_t)used, "/%llu", (unsigned long long)(label >> 8 & 255));
    if (label & 255)
        used += snprintf(text + used, n - (size_t)used, "/%llu", (unsigned long long)(label & 255));
    return (size_t)used;
}

// No stdio buffers: what was said before a crash is there, and nothing is said twice after a fork.
__attribute__((format(printf, 1, 2))) void say(const char *format, ...)
{
    if (!print)
        return;
    char text[512];
    int before = errno;
    size_t n = label_text(text, sizeof text);
    n += (size_t)snprintf(text + n, sizeof text - n, " ");
    va_list list;
    va_start(list, format);
    n += (size_t)vsnprintf(text + n, sizeof text - n - 2, format, list);
    va_end(list);
    if (n > sizeof text - 2)
        n = sizeof text - 2;
    text[n++] = '\n';
    put(text, n);
    errno = before;
}

__attribute__((format(printf, 1, 2), noreturn)) void fail(const char *format, ...)
{
    char text[1024];
    size_t n = (size_t)snprintf(text, sizeof text, "FAILED seed %llu ", (unsigned long long)seed);
    n += label_text(text + n, sizeof text - n);
    n += (size_t)snprintf(text + n, sizeof text - n, ": ");
    va_list list;
    va_start(list, format);
    n += (size_t)vsnprintf(text + n, sizeof text - n - 2, format, list);
    va_end(list);
    if (n > sizeof text - 2)
        n = sizeof text - 2;
    text[n++] = '\n';
    put(text, n);
    _exit(1);
}

void on_fault(int signal)
{
    if (armed) {
        armed = 0;
        siglongjmp(back, signal);
    }
    char text[100];
    int n = snprintf(text, sizeof text, "FAILED seed %llu: signal %d outside of a check\n", (unsigned long long)seed, signal);
    put(text, (size_t)n);
    _exit(1);
}

// Reads a word, or says by which signal that fails.
int peek(uintptr_t at, uint64_t *value)
{
    int signal = sigsetjmp(back, 0);
    if (signal)
        return signal;
    armed = 1;
    *value = *(volatile uint64_t *)at;
    armed = 0;
    return 0;
}

int poke(uintptr_t at, uint64_t value)
{
    int signal = sigsetjmp(back, 0);
    if (signal)
        return signal;
    armed = 1;
    *(volatile uint64_t *)at = value;
    armed = 0;
    return 0;
}
