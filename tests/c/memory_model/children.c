// Children: of fork, vfork and posix_spawn.
#define _GNU_SOURCE
#include "model.h"

static void wait_for(const char *what, pid_t pid)
{
    if (pid < 0)
        fail("%s: %s", what, name_of(errno));
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            fail("waitpid: %s", name_of(errno));
    if (status)
        fail("%s: the child ended with %x", what, (unsigned)status);
}

static pid_t start(void)
{
    // Without the handlers, where no other thread could have the allocator.
    errno = 77;
    pid_t pid = me->threads == 1 && one_in(6) && allowed("_Fork") ? _Fork() : fork();
    if (pid >= 0)
        kept(pid ? "fork in the parent" : "fork in the child", errno);
    if (pid == 0) {
        alarm(30);
        me->depth++;
        me->threads = 1;
        // What is read from a pipe goes to whoever comes first.
        if (pipe(me->pipe))
            fail("pipe: %s", name_of(errno));
        // Memory that is not for children, wiped, and no longer locked. Guards that would be wiped are gone.
        for (size_t i = 0; i < me->pages; i++) {
            struct page *p = &me->page[i];
            uint64_t got;
            if (p->is & NOFORK && peek(p->at, &got) != SIGSEGV)
                wrong(p, "a child can read it", got);
            if (p->is & WIPE) {
                set_token(p, 0);
                p->is &= (uint8_t)~GUARD;
            }
            p->is &= (uint8_t)~LOCKED;
        }
        me->locked = 0;
        for (size_t i = 0; i < me->pages;)
            if (me->page[i].is & NOFORK)
                forget(me->page[i].at, 1);
            else
                i++;
    }
    return pid;
}

// A child looks at all, does as its parent does, and its children too.
void call_fork(void)
{
    if (me->depth >= DEPTH)
        return;
    uint64_t label = me->label;
    long n = (long)any(me->depth ? 12 : 30);
    say("fork, for %ld calls", n);
    pid_t pid = start();
    if (pid == 0) {
        check_all();
        some_calls(label, me->depth == 1 ? 8 : 0, n);
        check_all();
        _exit(0);
    }
    wait_for("fork", pid);
    check_all();
}

// A child, while pages of a block have an advice about it, or a protection (as a negative number).
void children(struct block *b, uintptr_t at, size_t n, int advice)
{
    pid_t pid = start();
    if (pid == 0) {
        for (size_t i = 0; i < n; i++) {
            uint64_t got = 0;
            int signal = peek(at + i * page, &got), lost = advice == MADV_DONTFORK || advice == -PROT_NONE;
            if (signal != (lost ? SIGSEGV : 0) || (advice == MADV_WIPEONFORK && got))
                fail("page %zu of %lx of block %p of %zu in a child: signal %d, %llx", i, (unsigned long)at, b->at,
                     b->n, signal, (unsigned long long)got);
            if (advice < 0 && poke(at + i * page, 0) != SIGSEGV)
                fail("a child can write page %lx of block %p", (unsigned long)(at + i * page), b->at);
        }
        for (int k = 0; k < BLOCKS; k++)
            if (me->block[k].at && &me->block[k] != b)
                check_block(&me->block[k], me->block[k].n, "in a child");
        _exit(0);
    }
    wait_for("fork", pid);
}

// The child of vfork has its parent's memory.
void call_vfork(void)
{
    struct range r;
    if (!some_range(&r))
        return;
    struct page *p = &r.page[any(r.n)];
    if (expected_fault(p, PROT_WRITE))
        return;
    uint64_t t = new_token();
    say("vfork, to write %lx", p->at);
    pid_t pid = vfork();
    if (pid == 0) {
        for (int i = 0; i < WORDS; i++)
            *(volatile uint64_t *)word_at(p->at, i) = word_of(t, i);
        _exit(0);
    }
    wait_for("vfork", pid);
    set_token(p, t);
    check_page(p);
}

void call_spawn(void)
{
    if (!one_in(4))
        return;
    char *const arguments[] = {"true", NULL};
    pid_t pid = -1;
    say("posix_spawn");
    errno = posix_spawnp(&pid, "true", NULL, NULL, arguments, environ);
    wait_for("posix_spawn", pid);
    check_all();
}
