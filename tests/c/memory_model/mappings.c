// Calls that make, move and end mappings.
#define _GNU_SOURCE
#include "model.h"

static struct page fresh_page(int prot, int shared, size_t n)
{
    struct page p = {.prot = (uint8_t)prot, .id = new_id()};
    if (shared) {
        p.is = SHARED;
        p.object = new_object(n);
    }
    return p;
}

void call_map(void)
{
    size_t n = some_pages(), bytes = bytes_of(n);
    int prot = some_prot(), shared = one_in(5), flags = shared ? MAP_SHARED : MAP_PRIVATE;
    if (one_in(10))
        flags |= MAP_NORESERVE;
    if (one_in(10))
        flags |= MAP_POPULATE;
    uintptr_t hint = 0;
    struct range r;
    if (one_in(8) && some_range(&r) && allowed("hint"))
        hint = r.at + (one_in(2) ? 0 : r.n * page);
    if (full(n))
        return;
    struct page like = fresh_page(prot, shared, n);
    like.is |= hint ? PLACED : 0;
    say("mmap(%lx, %zu = %zu pages, %d, %x)", hint, bytes, n, prot, flags);
    errno = 77;
    void *got = mmap((void *)hint, bytes, prot, flags | MAP_ANONYMOUS, -1, 0);
    int code = errno;
    say("= %p", got);
    if (got == MAP_FAILED || (uintptr_t)got % page)
        fail("mmap: %p %s", got, name_of(code));
    kept("mmap", code);
    check_apart("mmap", (uintptr_t)got, bytes);
    note((uintptr_t)got, n, like);
    add_span((uintptr_t)got, n);
    if (prot & PROT_READ && one_in(4))
        for (size_t i = 0; i < n * page / 8; i += 3)
            if (((volatile uint64_t *)got)[i])
                fail("mmap: %p has no zero at %zu", got, i * 8);
    check_some((uintptr_t)got, n);
}

void call_map_fixed(void)
{
    struct range r;
    if (!some_range(&r))
        return;
    int prot = some_prot(), shared = one_in(4) && allowed("fixed-shared");
    int flags = (shared ? MAP_SHARED : MAP_PRIVATE) | MAP_FIXED;
    if (one_in(6))
        flags |= MAP_NORESERVE;
    if (one_in(10))
        flags |= MAP_POPULATE;
    // An own place again, right after it was given up: nobody else could have taken it.
    int gap = me->threads == 1 && allowed("gap") && one_in(5);
    struct page like = fresh_page(prot, shared, r.n);
    like.is |= PLACED;
    size_t bytes = bytes_of(r.n);
    if (gap) {
        say("munmap(%lx, %zu pages)", r.at, r.n);
        errno = 77;
        expect("munmap", munmap((void *)r.at, bytes), 0);
        forget(r.at, r.n);
        if (one_in(2) && allowed("gap-noreplace"))
            flags ^= MAP_FIXED | MAP_FIXED_NOREPLACE;
    }
    say("mmap(%lx, %zu = %zu pages, %d, %x fixed)", r.at, bytes, r.n, prot, flags);
    errno = 77;
    void *got = mmap((void *)r.at, bytes, prot, flags | MAP_ANONYMOUS, -1, 0);
    int code = errno;
    if ((uintptr_t)got != r.at)
        fail("mmap fixed: %p %s", got, name_of(code));
    kept("mmap fixed", code);
    note(r.at, r.n, like);
    check_some(r.at, r.n);
}

void call_map_noreplace(void)
{
    struct range r;
    if (!some_range(&r))
        return;
    uintptr_t at = r.at - any(3) * page;
    size_t n = (r.at - at) / page + 1 + any(r.n);
    say("mmap(%lx, %zu pages, MAP_FIXED_NOREPLACE)", at, n);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    errno = 77;
    expect_map("mmap fixed noreplace", mmap((void *)at, n * page, PROT_READ | PROT_WRITE, flags, -1, 0), EEXIST);
    check_some(r.at, r.n);
}

void call_unmap(void)
{
    struct range r;
    if (!some_range(&r))
        return;
    size_t bytes = bytes_of(r.n);
    // Some of it first, so that there is a hole.
    if (me->threads == 1 && r.n > 2 && one_in(4)) {
        size_t from = any(r.n), n = 1 + any(r.n - from);
        say("munmap(%lx, %zu pages)", r.at + from * page, n);
        errno = 77;
        expect("munmap", munmap((void *)(r.at + from * page), n * page), 0);
        check_gone(r.at + from * page, n);
    }
    say("munmap(%lx, %zu = %zu pages)", r.at, bytes, r.n);
    errno = 77;
    expect("munmap", munmap((void *)r.at, bytes), 0);
    forget(r.at, r.n);
    check_gone(r.at, r.n);
    check_some(r.at, r.n);
}

// The pages of a range have got to another place; `kept` is what mremap leaves of the old one. The new place has `n`
// pages, of which those that are new have the attributes of the first.
static void moved(struct range r, uintptr_t to, size_t n, int kept, int placed)
{
    static _Thread_local struct page copy[ROOM];
    struct page first = r.page[0];
    memcpy(copy, r.page, r.n * sizeof *copy);
    if (!kept)
        forget(r.at, r.n);
    else
        for (size_t i = 0; i < r.n; i++)
            if (!(r.page[i].is & SHARED)) {
                set_token(&r.page[i], 0);
                r.page[i].is &= (uint8_t)~GUARD;
            }
    struct page like = first;
    like.id = new_id();
    like.token = 0;
    like.is = (uint8_t)((like.is & PARTS) | placed);
    struct page *p = note(to, n, like);
    for (size_t i = 0; i < n && i < r.n; i++) {
        p[i].token = copy[i].token;
        p[i].is = (uint8_t)((copy[i].is & ~PLACED) | placed);
        p[i].prot = copy[i].prot;
        p[i].object = copy[i].object;
        p[i].offset = copy[i].offset;
        if (copy[i].id != first.id || me->split[copy[i].id])
            me->split[like.id] = 1;
    }
    add_span(to, n);
}

// Onto other memory of its own, mapping after mapping: of one length, and not of locked memory.
static void remap_many(struct range r)
{
    struct range to;
    if (!moves_many || has(&r, LOCKED) || !allowed("many") || !some_range(&to) || !allowed("fixed"))
        return;
    size_t n = r.n < to.n ? r.n : to.n;
    int keep = one_in(4) && allowed("dontunmap") ? MREMAP_DONTUNMAP : 0;
    if (keep && full(n))
        return;
    r.n = n;
    say("mremap(%lx, %zu pages, fixed%s, %lx) of several", r.at, n, keep ? ", dontunmap" : "", to.at);
    errno = 77;
    void *got = mremap((void *)r.at, n * page, n * page, MREMAP_MAYMOVE | MREMAP_FIXED | keep, (void *)to.at);
    if (to.at < r.at + n * page && r.at < to.at + n * page) {
        expect_map("mremap onto itself", got, EINVAL);
        return;
    }
    if ((uintptr_t)got != to.at)
        fail("mremap of several: %p %s", got, name_of(errno));
    kept("mremap of several", errno);
    forget(to.at, n);
    r.page = find(r.at);
    if (keep)
        split(r.at, n);
    moved(r, to.at, n, keep, PLACED);
    check_some(to.at, n);
    if (keep)
        check_some(r.at, n);
    else
        check_gone(r.at, n);
}

void call_remap(void)
{
    struct range r;
    if (!some_range(&r) || (has(&r, LOCKED) && (me->locked * page * 2 > lock_limit || !allowed("locked-remap"))))
        return;
    if (has(&r, PLACED) && !allowed("placed-remap"))
        return;
    int kind = (int)any(8);
    size_t new = kind < 2 ? 1 + any(r.n) : r.n + some_pages();
    if (full(new) && kind > 1)
        return;
    int sure = one_mapping(&r), flags = one_in(4) ? 0 : MREMAP_MAYMOVE;
    struct page *behind = find(r.at + r.n * page);
    void *got, *old = (void *)r.at;
    size_t len = bytes_of(r.n);
    if (kind >= 2 && kind <= 4) {
        if (huge_in_part(&r) && !allowed("huge-in-part"))
            return;
        // Grows. Guards that are locked would have to be brought in.
        if (has(&r, LOCKED) && (has(&r, GUARD) || !(r.page->prot & PROT_READ) || has_beyond(&r)))
            return;
        if (has(&r, LOCKED) && (me->locked + new) * page > lock_limit)
            return;
        say("mremap(%lx, %zu pages, %zu pages, %x)", r.at, r.n, new, flags);
        errno = 77;
        got = mremap(old, len, new * page, flags);
        int code = errno;
        say("= %p %s", got, got == MAP_FAILED ? name_of(code) : "");
        if (got == MAP_FAILED) {
            // EFAULT: more than one mapping. ENOMEM: no room, and it may not move.
            if ((code != EFAULT || sure) && (code != ENOMEM || flags))
                fail("mremap: %s", name_of(code));
        } else if (!uniform(&r)) {
            fail("mremap of pages that differ: %p", got);
        } else if (got == old) {
            kept("mremap", code);
            if (behind)
                fail("mremap in place, over page %lx", (unsigned long)behind->at);
            struct page like = r.page[r.n - 1];
            like.token = 0;
            like.is &= PARTS | PLACED;
            like.offset++;
            check_apart("mremap", r.at + r.n * page, (new - r.n) * page);
            note(r.at + r.n * page, new - r.n, like);
            add_span(r.at, new);
        } else {
            kept("mremap", code);
            if (!flags)
                fail("mremap moved to %p", got);
            check_apart("mremap", (uintptr_t)got, new * page);
            moved(r, (uintptr_t)got, new, 0, 0);
            check_some((uintptr_t)got, new);
            check_gone(r.at, r.n);
        }
        check_some(r.at, r.n);
        return;
    }
    if (kind < 2) {
        // What stays where it is may be several mappings.
        say("mremap(%lx, %zu pages, %zu pages, %x)", r.at, r.n, new, flags);
        errno = 77;
        got = mremap(old, len, new * page, flags);
        if (got != old)
            fail("mremap in place: %p %s", got, name_of(errno));
        kept("mremap in place", errno);
        if (new < r.n) {
            forget(r.at + new * page, r.n - new);
            check_gone(r.at + new * page, r.n - new);
        }
        check_some(r.at, r.n);
        return;
    }
    if (!sure) {
        if (kind == 5)
            remap_many(r);
        return;
    }
    switch (kind) {
    case 5: {
        // Onto other memory of its own.
        struct range to;
        if (!some_range(&to) || !allowed("fixed"))
            return;
        int shrinks = to.n < r.n;
        if (has(&r, LOCKED) && (has(&r, GUARD) || has_beyond(&r) || !(r.page->prot & PROT_READ)))
            return;
        say("mremap(%lx, %zu pages, %zu pages, fixed, %lx)", r.at, r.n, to.n, to.at);
        errno = 77;
        got = mremap(old, len, to.n * page, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)to.at);
        if (to.at < r.at + r.n * page && r.at < to.at + to.n * page) {
            expect_map("mremap onto itself", got, EINVAL);
            break;
        }
        if ((uintptr_t)got != to.at)
            fail("mremap fixed: %p %s", got, name_of(errno));
        kept("mremap fixed", errno);
        // The target's entries go first, which moves those of the source in the table.
        forget(to.at, to.n);
        r.page = find(r.at);
        if (shrinks) {
            uintptr_t rest = r.at + to.n * page;
            size_t n = r.n - to.n;
            r.n = to.n;
            moved(r, to.at, to.n, 0, PLACED);
            forget(rest, n);
        } else {
            moved(r, to.at, to.n, 0, PLACED);
        }
        check_some(to.at, to.n);
        check_gone(r.at, r.n);
        break;
    }
    case 6:
        // Not of locked memory: the kernel unlocks more than it is asked to.
        if (has(&r, LOCKED) || !allowed("dontunmap") || full(r.n))
            return;
        say("mremap(%lx, %zu pages, dontunmap)", r.at, r.n);
        errno = 77;
        got = mremap(old, r.n * page, r.n * page, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
        say("= %p", got);
        if (got == MAP_FAILED)
            fail("mremap dontunmap: %s", name_of(errno));
        kept("mremap dontunmap", errno);
        check_apart("mremap", (uintptr_t)got, r.n * page);
        split(r.at, r.n);
        moved(r, (uintptr_t)got, r.n, 1, 0);
        check_some((uintptr_t)got, r.n);
        break;
    default: {
        if (has(&r, LOCKED))
            return;
        size_t n = 1 + any(r.n);
        say("mremap(%lx, 0, %zu pages)", r.at, n);
        errno = 77;
        got = mremap(old, 0, n * page, MREMAP_MAYMOVE);
        say("= %p", got);
        if (!(r.page->is & SHARED)) {
            expect_map("mremap of length 0", got, EINVAL);
            break;
        }
        if (got == MAP_FAILED)
            fail("mremap of length 0: %s", name_of(errno));
        check_apart("mremap", (uintptr_t)got, n * page);
        struct page like = *r.page;
        like.id = new_id();
        like.is &= (uint8_t)~PLACED;
        note((uintptr_t)got, n, like);
        add_span((uintptr_t)got, n);
        check_some((uintptr_t)got, n);
    }
    }
    check_some(r.at, r.n);
}
