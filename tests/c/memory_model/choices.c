// Choices of sizes, protections and ranges, and what a range is like.
#define _GNU_SOURCE
#include "model.h"

// Mostly around 128 KiB, where the C library and Vervain begin to do otherwise.
size_t some_pages(void)
{
    switch (any(10)) {
    case 0:
        return 1 + any(4);
    case 1:
        return 1 + any(64);
    case 2:
        return 64 + any(200);
    case 3:
        return one_in(3) ? 1 + any(1024) : 16 * (1 + any(8));
    case 4:
        return 32;
    default:
        return 28 + any(10);
    }
}

size_t some_bytes(void)
{
    size_t n = some_pages() * page;
    switch (any(4)) {
    case 0:
        return n;
    case 1:
        return n - any(page);
    case 2:
        return n + any(40);
    default:
        return n - any(40);
    }
}

int some_prot(void)
{
    static const int kinds[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_EXEC, PROT_READ, PROT_NONE};
    return one_in(3) ? kinds[any(5)] : PROT_READ | PROT_WRITE;
}

// A length that means n pages.
size_t bytes_of(size_t n)
{
    return n * page - (one_in(4) ? any(page) : 0);
}

// Pages of the model that lie side by side, within one span or over its end.
int some_range(struct range *r)
{
    // By the calls that made them and not by their numbers, so that less of a choice changes where a call is left out.
    uint64_t key = any(UINT64_MAX);
    while (me->spans) {
        int k = 0;
        for (int i = 1; i < me->spans; i++)
            if (mix(me->span[i].key ^ key) < mix(me->span[k].key ^ key))
                k = i;
        struct span s = me->span[k];
        size_t a = lower(s.at), b = lower(s.at + s.n * page);
        if (a == b) {
            me->span[k] = me->span[--me->spans];
            continue;
        }
        size_t i = one_in(2) ? a : a + any(b - a), end = i + 1;
        size_t most = one_in(6) ? me->pages : b;
        while (end < most && me->page[end].at == me->page[end - 1].at + page)
            end++;
        size_t n = end - i;
        switch (any(5)) {
        case 0:
            n = 1;
            break;
        case 1:
            n = 1 + any(n);
            break;
        case 2:
            n = 1 + any(n < 20 ? n : 20);
            break;
        }
        *r = (struct range){me->page[i].at, n, &me->page[i]};
        return 1;
    }
    return 0;
}

// Whether all pages differ in nothing that mappings differ by.
int uniform(const struct range *r)
{
    for (size_t i = 1; i < r->n; i++)
        if (r->page[i].prot != r->page[0].prot || (r->page[i].is & PARTS) != (r->page[0].is & PARTS))
            return 0;
    return 1;
}

// Whether advice about huge pages is all that its pages differ by.
int huge_in_part(const struct range *r)
{
    for (size_t i = 1; i < r->n; i++)
        if (r->page[i].prot != r->page[0].prot || ((r->page[i].is ^ r->page[0].is) & PARTS & ~HUGE))
            return 0;
    return !uniform(r);
}

// Whether the kernel surely has it as one mapping.
int one_mapping(const struct range *r)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->page[i].id != r->page[0].id || me->split[r->page[i].id])
            return 0;
    return uniform(r);
}

int has(const struct range *r, int what)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->page[i].is & what)
            return 1;
    return 0;
}

int has_beyond(const struct range *r)
{
    for (size_t i = 0; i < r->n; i++)
        if (beyond(&r->page[i]))
            return 1;
    return 0;
}

int full(size_t n)
{
    return me->pages + n > PAGES;
}
