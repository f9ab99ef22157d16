// Calls that change what mappings are like: madvise, mprotect, mlock, msync.
#define _GNU_SOURCE
#include "model.h"

// What madvise does to a range, page by page; NULL is a hole. Says which errno it ends with.
int advised(uintptr_t at, size_t n, int advice)
{
    int hole = 0;
    for (size_t i = 0; i < n; i++) {
        struct page *p = find(at + i * page);
        if (advice == MADV_POPULATE_READ || advice == MADV_POPULATE_WRITE) {
            // It stops at what cannot be.
            if (!p)
                return ENOMEM;
            if (!(p->prot & (advice == MADV_POPULATE_READ ? PROT_READ : PROT_WRITE)))
                return EINVAL;
            if (p->is & GUARD || beyond(p))
                return EFAULT;
            continue;
        }
        if (!p) {
            hole = ENOMEM;
            continue;
        }
        switch (advice) {
        case MADV_DONTNEED:
        case MADV_FREE:
            if (p->is & LOCKED || (advice == MADV_FREE && p->is & SHARED))
                return EINVAL;
            if (p->is & SHARED)
                break;
            if (advice == MADV_FREE && p->token)
                p->is |= MAYBE;
            else
                set_token(p, 0);
            break;
        case MADV_REMOVE:
            if (p->is & LOCKED || !(p->is & SHARED))
                return EINVAL;
            set_token(p, 0);
            break;
        case MADV_DONTFORK:
            p->is |= NOFORK;
            break;
        case MADV_DOFORK:
            p->is &= (uint8_t)~NOFORK;
            break;
        case MADV_WIPEONFORK:
            if (p->is & SHARED)
                return EINVAL;
            p->is |= WIPE;
            break;
        case MADV_KEEPONFORK:
            p->is &= (uint8_t)~WIPE;
            break;
        case MADV_COLD:
        case MADV_PAGEOUT:
            if (p->is & LOCKED)
                return EINVAL;
            break;
        case MADV_HUGEPAGE:
        case MADV_NOHUGEPAGE:
            p->is |= HUGE;
            break;
        case MADV_GUARD_INSTALL:
            if (p->is & LOCKED)
                return EINVAL;
            p->is |= GUARD;
            set_token(p, 0);
            break;
        case MADV_GUARD_REMOVE:
            p->is &= (uint8_t)~GUARD;
            break;
        }
    }
    return hole;
}

static const struct advice advices[] = {
    {"dontneed", MADV_DONTNEED, NULL},
    {"dontneed", MADV_DONTNEED, NULL},
    {"free", MADV_FREE, NULL},
    {"remove", MADV_REMOVE, NULL},
    {"dontfork", MADV_DONTFORK, NULL},
    {"dofork", MADV_DOFORK, NULL},
    {"wipeonfork", MADV_WIPEONFORK, NULL},
    {"keeponfork", MADV_KEEPONFORK, NULL},
    {"willneed", MADV_WILLNEED, &has_willneed},
    {"sequential", MADV_SEQUENTIAL, NULL},
    {"hugepage", MADV_HUGEPAGE, &has_huge},
    {"nohugepage", MADV_NOHUGEPAGE, &has_huge},
    {"populate-read", MADV_POPULATE_READ, &has_populate},
    {"populate-write", MADV_POPULATE_WRITE, &has_populate},
    {"cold", MADV_COLD, &has_cold},
    {"pageout", MADV_PAGEOUT, &has_cold},
    {"guard", MADV_GUARD_INSTALL, &has_guard},
    {"unguard", MADV_GUARD_REMOVE, &has_guard},
};

const struct advice *some_advice(void)
{
    const struct advice *a = &advices[any(sizeof advices / sizeof *advices)];
    return (a->known && !*a->known) || !allowed(a->name) ? NULL : a;
}

// Findings about memory that the program has put at a place of its choice.
int placed_advice(int advice)
{
    switch (advice) {
    case MADV_DONTFORK:
    case MADV_DOFORK:
    case MADV_WIPEONFORK:
    case MADV_KEEPONFORK:
        return allowed("placed-fork-advice");
    case MADV_FREE:
    case MADV_REMOVE:
        return allowed("placed-free");
    }
    return 1;
}

void call_advise(void)
{
    struct range r;
    const struct advice *a = some_advice();
    if (!a || !some_range(&r))
        return;
    // Guards of shared memory: what of them a child has is said nowhere.
    if (a->value == MADV_GUARD_INSTALL && has(&r, SHARED))
        return;
    // It ends at what is locked, with what is before it thrown away.
    int throws = a->value == MADV_DONTNEED || a->value == MADV_FREE;
    if (throws && has(&r, LOCKED) && !(r.page->is & LOCKED) && !allowed("partly-locked"))
        return;
    if (has(&r, PLACED) && !placed_advice(a->value))
        return;
    size_t bytes = bytes_of(r.n);
    say("madvise(%lx, %zu = %zu pages, %s)", r.at, bytes, r.n, a->name);
    split(r.at, r.n);
    int want = advised(r.at, r.n, a->value);
    errno = 77;
    expect(a->name, madvise((void *)r.at, bytes, a->value), want);
    check_some(r.at, r.n);
}

int protect_model(uintptr_t at, size_t n, int prot)
{
    for (size_t i = 0; i < n; i++) {
        struct page *p = find(at + i * page);
        if (!p)
            return ENOMEM;
        p->prot = (uint8_t)prot;
    }
    return 0;
}

void call_protect(void)
{
    struct range r;
    if (!some_range(&r))
        return;
    int prot = one_in(2) ? PROT_READ | PROT_WRITE : some_prot();
    size_t bytes = bytes_of(r.n);
    say("mprotect(%lx, %zu = %zu pages, %d)", r.at, bytes, r.n, prot);
    split(r.at, r.n);
    int want = protect_model(r.at, r.n, prot);
    errno = 77;
    expect("mprotect", mprotect((void *)r.at, bytes, prot), want);
    check_some(r.at, r.n);
}

int lock_model(uintptr_t at, size_t n, int lock)
{
    int answer = 0;
    for (size_t i = 0; i < n; i++) {
        struct page *p = find(at + i * page);
        if (!p)
            return ENOMEM;
        me->locked += (size_t)lock - ((p->is & LOCKED) != 0);
        p->is = (uint8_t)(lock ? p->is | LOCKED : p->is & ~LOCKED);
        // What cannot be brought in is told, and locked all the same.
        if (lock && (!(p->prot & PROT_READ) || p->is & GUARD))
            answer = ENOMEM;
    }
    return answer;
}

void call_lock(void)
{
    struct range r;
    if (!some_range(&r) || has_beyond(&r))
        return;
    int lock = one_in(2);
    if (lock && (me->locked + r.n) * page > lock_limit)
        return;
    size_t bytes = bytes_of(r.n);
    say("%s(%lx, %zu = %zu pages)", lock ? "mlock" : "munlock", r.at, bytes, r.n);
    split(r.at, r.n);
    int want = lock_model(r.at, r.n, lock);
    errno = 77;
    expect(lock ? "mlock" : "munlock", (lock ? mlock : munlock)((void *)r.at, bytes), want);
    check_some(r.at, r.n);
}

int sync_model(uintptr_t at, size_t n, int flags)
{
    int hole = 0;
    for (size_t i = 0; i < n; i++) {
        struct page *p = find(at + i * page);
        if (!p)
            hole = ENOMEM;
        else if (flags & MS_INVALIDATE && p->is & LOCKED)
            return EBUSY;
    }
    return hole;
}

void call_sync(void)
{
    static _Thread_local unsigned char in[ROOM];
    struct range r;
    if (!some_range(&r))
        return;
    size_t bytes = bytes_of(r.n);
    errno = 77;
    if (one_in(2)) {
        say("mincore(%lx, %zu pages)", r.at, r.n);
        expect("mincore", mincore((void *)r.at, bytes, in), 0);
        return;
    }
    int flags = (one_in(2) ? MS_SYNC : MS_ASYNC) | (one_in(2) ? MS_INVALIDATE : 0);
    say("msync(%lx, %zu pages, %d)", r.at, r.n, flags);
    int want = sync_model(r.at, r.n, flags);
    expect("msync", msync((void *)r.at, bytes, flags), want);
}
