// The C library's allocator.
#define _GNU_SOURCE
#include "model.h"

static void check_zero(const char *what, const char *at, size_t n)
{
    size_t step = one_in(4) ? 8 : 512;
    uint64_t word;
    for (size_t i = 0; i + 8 <= n; i += step) {
        memcpy(&word, at + i, 8);
        if (word)
            fail("%s: %p of %zu has no zero at %zu", what, at, n, i);
    }
}

static void allocate(struct block *b)
{
    size_t n = some_bytes(), align = 16;
    int kind = (int)any(7);
    if (n < 16)
        n = 16;
    if (me->pages + n / page > PAGES)
        return;
    void *got = NULL;
    errno = 77;
    switch (kind) {
    case 0:
    case 1:
        say("malloc(%zu)", n);
        got = malloc(n);
        break;
    case 2:
        say("calloc(1, %zu)", n);
        got = calloc(1, n);
        break;
    case 3:
        align = (size_t)16 << any(18);
        say("aligned_alloc(%zu, %zu)", align, n);
        got = aligned_alloc(align, n);
        break;
    case 4: {
        align = (size_t)8 << any(19);
        say("posix_memalign(%zu, %zu)", align, n);
        int code = posix_memalign(&got, align, n);
        if (code || errno != 77)
            fail("posix_memalign: %s, errno %s", name_of(code), name_of(errno));
        break;
    }
    case 5:
        say("valloc(%zu)", n);
        align = page;
        got = valloc(n);
        break;
    default:
        say("realloc(NULL, %zu)", n);
        got = realloc(NULL, n);
    }
    say("= %p", got);
    if (!got || (uintptr_t)got % align)
        fail("allocation of %zu aligned to %zu: %p", n, align, got);
    if (malloc_usable_size(got) < n)
        fail("malloc_usable_size(%p) = %zu, not %zu", got, malloc_usable_size(got), n);
    check_apart("allocation", (uintptr_t)got, n);
    if (kind == 2)
        check_zero("calloc", got, n);
    *b = (struct block){.at = got, .n = n};
    mark_block(b);
}

// What programs do to whole pages within a block, and undo.
static void block_pages(struct block *b)
{
    uintptr_t from = ((uintptr_t)b->at + page - 1) & ~(page - 1), end = ((uintptr_t)b->at + b->n) & ~(page - 1);
    if (from >= end)
        return;
    size_t n = (end - from) / page;
    from += any(n) * page;
    n = 1 + any((end - from) / page);
    void *at = (void *)from;
    int kind = (int)any(6);
    uint64_t got;
    say("pages of block %p: kind %d of %lx, %zu pages", b->at, kind, from, n);
    errno = 77;
    switch (kind) {
    case 0:
    case 1: {
        int prot = kind ? PROT_NONE : PROT_READ;
        expect("mprotect", mprotect(at, n * page, prot), 0);
        if (poke(from + any(n) * page, 0) != SIGSEGV || peek(from + any(n) * page, &got) != (kind ? SIGSEGV : 0))
            fail("mprotect in block %p", b->at);
        if (one_in(2) && me->depth < DEPTH && allowed("block-protect-fork"))
            children(b, from, n, -prot);
        errno = 77;
        expect("mprotect", mprotect(at, n * page, PROT_READ | PROT_WRITE), 0);
        break;
    }
    case 2:
        check_block(b, b->n, "before MADV_DONTNEED");
        expect("dontneed", madvise(at, n * page, MADV_DONTNEED), 0);
        check_zero("MADV_DONTNEED", at, n * page);
        mark_block(b);
        break;
    case 3:
        expect("free", madvise(at, n * page, MADV_FREE), 0);
        mark_block(b);
        break;
    default:
        if (me->depth >= DEPTH || !allowed("block-fork"))
            return;
        expect("fork advice", madvise(at, n * page, kind == 4 ? MADV_DONTFORK : MADV_WIPEONFORK), 0);
        children(b, from, n, kind == 4 ? MADV_DONTFORK : MADV_WIPEONFORK);
        errno = 77;
        expect("fork advice", madvise(at, n * page, kind == 4 ? MADV_DOFORK : MADV_KEEPONFORK), 0);
    }
    check_block(b, b->n, "after its pages");
}

void call_heap(void)
{
    struct block *b = &me->block[any(BLOCKS)];
    if (!b->at) {
        allocate(b);
        return;
    }
    switch (any(6)) {
    case 0: {
        check_block(b, b->n, "before realloc");
        size_t n = one_in(3) ? 16 + any(b->n) : some_bytes();
        if (n < 16)
            n = 16;
        say("realloc(%p of %zu, %zu)", b->at, b->n, n);
        struct block old = *b;
        b->at = NULL;
        char *got = realloc(old.at, n);
        say("= %p", got);
        if (!got || (uintptr_t)got % 16)
            fail("realloc: %p", got);
        check_apart("realloc", (uintptr_t)got, n);
        old.at = got;
        check_block(&old, old.n < n ? old.n : n, "after realloc");
        *b = (struct block){.at = got, .n = n};
        mark_block(b);
        break;
    }
    case 1:
        block_pages(b);
        break;
    case 2: {
        volatile size_t huge = SIZE_MAX / 2;
        void *other = b, *got = other;
        say("refused allocations");
        errno = 77;
        int missing = !malloc(huge) + !calloc(huge, 4) + !reallocarray(b->at, huge, 4) + !realloc(b->at, huge);
        if (missing != 4 || errno != ENOMEM)
            fail("%d of 4 refused, %s", missing, name_of(errno));
        if (posix_memalign(&got, 24, 100) != EINVAL || got != other)
            fail("posix_memalign of 24");
        check_block(b, b->n, "after refused allocations");
        break;
    }
    default:
        check_block(b, b->n, "before free");
        say("free(%p of %zu)", b->at, b->n);
        errno = 77;
        free(b->at);
        kept("free", errno);
        b->at = NULL;
    }
}
