// Accesses to memory: by the program, by the kernel, and by a device.
#define _GNU_SOURCE
#include "model.h"

void call_write(void)
{
    struct range r;
    if (!some_range(&r))
        return;
    size_t step = 1 + any(3);
    say("write %lx, %zu pages, each %zu", r.at, r.n, step);
    for (size_t i = 0; i < r.n; i += step)
        if (!expected_fault(&r.page[i], PROT_WRITE))
            write_page(&r.page[i]);
}

// The kernel reads and writes where the program may, and says EFAULT where it may not.
void call_kernel(void)
{
    struct range r;
    if (!some_range(&r))
        return;
    struct page *p = &r.page[any(r.n)];
    uint64_t got = 0;
    void *first = (void *)p->at;
    say("write(2) and read(2) of %lx", p->at);
    if (p->is & MAYBE)
        return;
    int fault = expected_fault(p, PROT_READ);
    errno = 77;
    ssize_t n = write(me->pipe[1], first, 8);
    if (fault ? n != -1 || errno != EFAULT : n != 8)
        wrong(p, "write(2) of it says", (uint64_t)n);
    if (!fault && (read(me->pipe[0], &got, 8) != 8 || got != word_of(token(p), 0)))
        wrong(p, "write(2) of it writes", got);
    if (write(me->pipe[1], &got, 8) != 8)
        fail("write(2): %s", name_of(errno));
    fault = expected_fault(p, PROT_WRITE);
    uint64_t there = word_of(token(p), 0);
    errno = 77;
    if (fault) {
        n = read(me->pipe[0], first, 8);
        if (n != -1 || errno != EFAULT)
            wrong(p, "read(2) into it says", (uint64_t)n);
        // A pipe gives up what could not be copied, or keeps it.
        close(me->pipe[0]);
        close(me->pipe[1]);
        if (pipe(me->pipe))
            fail("pipe: %s", name_of(errno));
    } else if (got == there && read(me->pipe[0], first, 8) != 8) {
        wrong(p, "read(2) into it says", (uint64_t)errno);
    } else if (got != there && read(me->pipe[0], &got, 8) != 8) {
        fail("read(2): %s", name_of(errno));
    }
    check_page(p);
}

// A memory region that comes and goes changes nothing of what the program sees.
void call_register(void)
{
    struct range r;
    if (!domain || !some_range(&r))
        return;
    static _Thread_local struct ibv_mr *regions[4];
    static _Thread_local pid_t owner;
    if (owner != getpid()) {
        // A child has no device.
        if (me->depth)
            return;
        owner = getpid();
    }
    int k = (int)any(4);
    if (regions[k]) {
        say("ibv_dereg_mr");
        if (ibv_dereg_mr(regions[k]))
            fail("ibv_dereg_mr: %s", name_of(errno));
        regions[k] = NULL;
    } else {
        say("ibv_reg_mr(%lx, %zu pages)", r.at, r.n);
        // Memory without access is refused.
        regions[k] = ibv_reg_mr(domain, (void *)r.at, r.n * page, IBV_ACCESS_LOCAL_WRITE);
    }
    check_some(r.at, r.n);
}
