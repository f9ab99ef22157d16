// Calls with arguments that are wrong, that mean nothing, or that name ranges with holes.
#define _GNU_SOURCE
#include "model.h"

// Calls on a range of which a part has just been unmapped.
void call_hole(void)
{
    struct range r;
    static _Thread_local unsigned char in[ROOM];
    if (me->threads > 1 || !allowed("hole") || !some_range(&r))
        return;
    size_t from = one_in(3) ? 0 : any(r.n), n = one_in(3) ? r.n - from : 1 + any(r.n - from);
    if (n == r.n && !allowed("hole-whole"))
        return;
    int placed = has(&r, PLACED);
    uintptr_t gap = r.at + from * page;
    say("munmap(%lx, %zu pages)", gap, n);
    errno = 77;
    expect("munmap", munmap((void *)gap, n * page), 0);
    split(r.at, r.n);
    forget(gap, n);
    const struct advice *a = some_advice();
    errno = 77;
    switch (any(8)) {
    case 0:
    case 1: {
        if (!a || a->value == MADV_GUARD_INSTALL || (placed && !placed_advice(a->value)))
            break;
        if ((a->value == MADV_REMOVE || a->value == MADV_WIPEONFORK) && !allowed("hole-remove"))
            break;
        say("madvise(%lx, %zu pages, %s) with a hole", r.at, r.n, a->name);
        int want = advised(r.at, r.n, a->value);
        expect(a->name, madvise((void *)r.at, r.n * page, a->value), want);
        break;
    }
    case 2: {
        if (!allowed("hole-protect"))
            break;
        int prot = some_prot();
        say("mprotect(%lx, %zu pages, %d) with a hole", r.at, r.n, prot);
        int want = protect_model(r.at, r.n, prot);
        expect("mprotect", mprotect((void *)r.at, r.n * page, prot), want);
        break;
    }
    case 3: {
        say("munlock(%lx, %zu pages) with a hole", r.at, r.n);
        int want = lock_model(r.at, r.n, 0);
        expect("munlock", munlock((void *)r.at, r.n * page), want);
        break;
    }
    case 4:
        if (!allowed("hole-mincore"))
            break;
        say("mincore(%lx, %zu pages) with a hole", r.at, r.n);
        expect("mincore", mincore((void *)r.at, r.n * page, in), ENOMEM);
        break;
    case 5: {
        say("msync(%lx, %zu pages) with a hole", r.at, r.n);
        int want = sync_model(r.at, r.n, MS_ASYNC);
        expect("msync", msync((void *)r.at, r.n * page, MS_ASYNC), want);
        break;
    }
    case 6:
        if (n == r.n && !allowed("hole-remap"))
            break;
        say("mremap(%lx, %zu pages, %zu) with a hole", r.at, r.n, r.n + 4);
        expect_map("mremap", mremap((void *)r.at, r.n * page, (r.n + 4) * page, MREMAP_MAYMOVE), EFAULT);
        break;
    default:
        say("munmap(%lx, %zu pages) with a hole", r.at, r.n);
        expect("munmap", munmap((void *)r.at, r.n * page), 0);
        forget(r.at, r.n);
        check_gone(r.at, r.n);
    }
    check_gone(gap, n);
    check_some(r.at, r.n);
}

// Arguments that are wrong, or mean nothing.
void call_wrong(void)
{
    struct range r;
    if (!some_range(&r))
        return;
    void *at = (void *)r.at, *odd = (void *)(r.at + 1 + any(page - 1));
    size_t n = r.n * page;
    const struct advice *a = some_advice();
    int kind = (int)any(20);
    say("wrong call %d at %lx", kind, r.at);
    const int anonymous = MAP_PRIVATE | MAP_ANONYMOUS;
    volatile size_t huge = SIZE_MAX / 2;
    errno = 77;
    switch (kind) {
    case 0:
        expect("munmap of nothing", munmap(at, 0), EINVAL);
        break;
    case 1:
        expect("munmap unaligned", munmap(odd, n), EINVAL);
        break;
    case 2:
        expect("mprotect unaligned", mprotect(odd, n, PROT_NONE), EINVAL);
        break;
    case 3:
        expect("mprotect of nothing", mprotect(at, 0, PROT_NONE), 0);
        break;
    case 4:
        if (a)
            expect("madvise unaligned", madvise(odd, n, a->value), EINVAL);
        break;
    case 5:
        if (a && allowed("advise-nothing"))
            expect(a->name, madvise(at, 0, a->value), 0);
        break;
    case 6:
        expect("madvise unknown", madvise(at, n, 7777), EINVAL);
        break;
    case 7:
        if (a)
            expect("madvise beyond", madvise(at, huge * 2 + 1, a->value), EINVAL);
        break;
    case 8:
        expect_map("mremap unaligned", mremap(odd, n, n + page, MREMAP_MAYMOVE), EINVAL);
        break;
    case 9:
        expect_map("mremap to nothing", mremap(at, n, 0, MREMAP_MAYMOVE), EINVAL);
        break;
    case 10:
        expect_map("mremap unknown", mremap(at, n, n + page, 64), EINVAL);
        break;
    case 11:
        expect_map("mremap fixed", mremap(at, n, n, MREMAP_FIXED, at), EINVAL);
        break;
    case 12:
        expect("msync both", msync(at, n, MS_SYNC | MS_ASYNC), EINVAL);
        break;
    case 13:
        expect("msync unaligned", msync(odd, n, MS_SYNC), EINVAL);
        break;
    case 14:
        expect_map("mmap of nothing", mmap(at, 0, PROT_READ, anonymous, -1, 0), EINVAL);
        break;
    case 15:
        expect_map("mmap of no kind", mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_ANONYMOUS, -1, 0), EINVAL);
        break;
    case 16:
        expect_map("mmap unaligned", mmap(odd, n, PROT_READ, anonymous | MAP_FIXED, -1, 0), EINVAL);
        break;
    case 17:
        expect_map("mmap too long", mmap(NULL, huge, PROT_READ | PROT_WRITE, anonymous, -1, 0), ENOMEM);
        break;
    case 18:
        // EINVAL since Linux 6.17, and EFAULT where it is more than one mapping.
        if (mremap(at, n, huge & ~(page - 1), MREMAP_MAYMOVE) != MAP_FAILED || errno == 77)
            fail("mremap too long: %s", name_of(errno));
        break;
    default:
        expect_map("mremap dontunmap of two lengths",
                   mremap(at, n, n + page, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL), EINVAL);
    }
    check_some(r.at, r.n);
}
