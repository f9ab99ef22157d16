// The table of pages, in the order of their addresses, and the checks that memory is as it says.
#define _GNU_SOURCE
#include "model.h"

size_t lower(uintptr_t at)
{
    size_t a = 0, b = me->pages;
    while (a < b) {
        size_t middle = (a + b) / 2;
        if (me->page[middle].at < at)
            a = middle + 1;
        else
            b = middle;
    }
    return a;
}

struct page *find(uintptr_t at)
{
    size_t i = lower(at);
    return i < me->pages && me->page[i].at == at ? &me->page[i] : NULL;
}

void forget(uintptr_t at, size_t n)
{
    size_t a = lower(at), b = lower(at + n * page);
    for (size_t i = a; i < b; i++)
        me->locked -= (me->page[i].is & LOCKED) != 0;
    memmove(&me->page[a], &me->page[b], (me->pages - b) * sizeof *me->page);
    me->pages -= b - a;
}

// Makes n entries from `at` on, which all are `like`, but for address and offset.
struct page *note(uintptr_t at, size_t n, struct page like)
{
    forget(at, n);
    if (me->pages + n > ROOM)
        fail("the model is full");
    size_t a = lower(at);
    memmove(&me->page[a + n], &me->page[a], (me->pages - a) * sizeof *me->page);
    me->pages += n;
    for (size_t i = 0; i < n; i++) {
        me->page[a + i] = like;
        me->page[a + i].at = at + i * page;
        me->page[a + i].offset = like.offset + (uint32_t)i;
        me->locked += (like.is & LOCKED) != 0;
    }
    return &me->page[a];
}

uint32_t new_id(void)
{
    uint32_t id = me->ids++ % IDS;
    me->split[id] = 0;
    return id;
}

// Attributes of a part have changed: whether the kernel joins the parts again later is its own affair.
void split(uintptr_t at, size_t n)
{
    for (size_t i = lower(at); i < me->pages && me->page[i].at < at + n * page; i++)
        me->split[me->page[i].id] = 1;
}

void add_span(uintptr_t at, size_t n)
{
    int i = me->spans < SPANS ? me->spans++ : (int)any(SPANS);
    me->span[i] = (struct span){at, n, mix(me->label)};
}

uint32_t new_object(size_t pages)
{
    uint32_t object = atomic_fetch_add(&common->objects, 1);
    uint32_t first = atomic_fetch_add(&common->tokens, (uint32_t)pages);
    if (object >= OBJECTS || first + pages > TOKENS)
        return 0;
    common->object[object].first = first;
    common->object[object].pages = (uint32_t)pages;
    return object;
}

int beyond(const struct page *p)
{
    return p->is & SHARED && p->offset >= common->object[p->object].pages;
}

uint64_t token(const struct page *p)
{
    return p->is & SHARED ? atomic_load(&common->token[common->object[p->object].first + p->offset]) : p->token;
}

void set_token(struct page *p, uint64_t value)
{
    p->is &= (uint8_t)~MAYBE;
    if (!(p->is & SHARED))
        p->token = value;
    else if (!beyond(p))
        atomic_store(&common->token[common->object[p->object].first + p->offset], value);
}

uint64_t new_token(void)
{
    return mix(++me->version ^ (uint64_t)me->thread << 56 ^ me->label << 24) | 1;
}

// ---- Checks.

uintptr_t word_at(uintptr_t at, int i)
{
    return at + (i == WORDS - 1 ? page - 8 : (size_t)i * (page / WORDS) + (size_t)i * 24);
}

uint64_t word_of(uint64_t token, int i)
{
    return token ? mix(token + (uint64_t)i) : 0;
}

void wrong(const struct page *p, const char *what, uint64_t got)
{
    fail("page %lx is to be prot %d flags %d token %llx: %s %llx", (unsigned long)p->at, p->prot, p->is,
         (unsigned long long)token(p), what, (unsigned long long)got);
}

// The signal that an access gets; 0: none.
int expected_fault(const struct page *p, int right)
{
    if (!(p->prot & right) || p->is & GUARD)
        return SIGSEGV;
    return beyond(p) ? SIGBUS : 0;
}

void write_page(struct page *p)
{
    uint64_t t = one_in(12) ? 0 : new_token();
    for (int i = 0; i < WORDS; i++) {
        int signal = poke(word_at(p->at, i), word_of(t, i));
        if (signal)
            wrong(p, "written, signal", (uint64_t)signal);
    }
    set_token(p, t);
}

void check_page(struct page *p)
{
    uint64_t t = token(p), got = 0;
    int fault = expected_fault(p, PROT_READ), zero = 0;
    for (int i = 0; i < WORDS; i++) {
        int signal = peek(word_at(p->at, i), &got);
        if (signal != fault)
            wrong(p, "read, signal", (uint64_t)signal);
        if (fault)
            break;
        if (p->is & MAYBE && i == 0)
            zero = got == 0;
        if (got != (zero ? 0 : word_of(t, i)))
            wrong(p, "contains", got);
    }
    // A store of what is there. It would keep a page that is being freed, or not, so not there.
    if (p->is & MAYBE || (!fault && !one_in(4)))
        return;
    fault = expected_fault(p, PROT_WRITE);
    int signal = poke(word_at(p->at, WORDS - 1), fault ? 0 : got);
    if (signal != fault)
        wrong(p, "written, signal", (uint64_t)signal);
}

static uint64_t block_word(const struct block *b, size_t i)
{
    return mix(b->token + i);
}

// Each block has a word at each multiple of 4096, and one at its end where that is another place.
static int has_end(size_t n)
{
    return n % 4096 == 0 || n % 4096 >= 16;
}

void mark_block(struct block *b)
{
    b->token = new_token();
    for (size_t i = 0; i + 8 <= b->n; i += 4096) {
        uint64_t word = block_word(b, i);
        memcpy(b->at + i, &word, 8);
    }
    if (has_end(b->n)) {
        uint64_t word = block_word(b, 1);
        memcpy(b->at + b->n - 8, &word, 8);
    }
}

// The first `n` bytes of what has been a block.
void check_block(const struct block *b, size_t n, const char *when)
{
    for (size_t i = 0; i + 8 <= n; i += 4096) {
        uint64_t got = 0;
        int signal = peek((uintptr_t)b->at + i, &got);
        if (signal || got != block_word(b, i))
            fail("%s: block %p of %zu at %zu: signal %d, %llx", when, b->at, b->n, i, signal, (unsigned long long)got);
    }
    if (n == b->n && has_end(n)) {
        uint64_t got = 0;
        int signal = peek((uintptr_t)b->at + n - 8, &got);
        if (signal || got != block_word(b, 1))
            fail("%s: block %p of %zu at its end: signal %d, %llx", when, b->at, b->n, signal, (unsigned long long)got);
    }
}

void check_all(void)
{
    for (size_t i = 0; i < me->pages; i++)
        check_page(&me->page[i]);
    for (int i = 0; i < BLOCKS; i++)
        if (me->block[i].at)
            check_block(&me->block[i], me->block[i].n, "later");
}

// What a call was about: its ends, its neighbours, and some pages in between.
void check_some(uintptr_t at, size_t n)
{
    for (int i = 0; i < 10; i++) {
        size_t k = i < 2 ? (size_t)i : i < 4 ? n - (size_t)i + 1 : i == 4 ? n + 1 : any(n) + 1;
        struct page *p = find(at - page + k * page);
        if (p)
            check_page(p);
    }
}

// Nothing is there: only said at once after the call, for others may map something there later. Other threads may at once.
void check_gone(uintptr_t at, size_t n)
{
    if (me->threads > 1)
        return;
    for (int i = 0; i < 4; i++) {
        uintptr_t here = at + (i == 0 ? 0 : i == 1 ? n - 1 : any(n)) * page;
        uint64_t got;
        int signal = peek(here, &got);
        if (signal != SIGSEGV)
            fail("page %lx is to be unmapped: read, signal %d", (unsigned long)here, signal);
    }
}

const char *name_of(int code)
{
    return code ? strerrorname_np(code) : "success";
}

// What succeeds leaves errno alone, as the C library's system calls do.
void kept(const char *what, int code)
{
    if (code != 77 && allowed(strncmp(what, "fork", 4) ? "errno" : "fork-errno"))
        fail("%s: errno became %s though nothing failed", what, name_of(code));
}

// A system call that says 0, or -1 and why.
void expect(const char *what, int result, int want)
{
    int got = errno;
    if (result != (want ? -1 : 0) || (want && got != want))
        fail("%s: %d %s, not %s", what, result, result ? name_of(got) : "", name_of(want));
    if (!want)
        kept(what, got);
}

void expect_map(const char *what, const void *result, int want)
{
    int got = errno;
    if (result != MAP_FAILED || got != want)
        fail("%s: %p %s, not %s", what, result, result == MAP_FAILED ? name_of(got) : "", name_of(want));
}

// New memory must not be where other memory is.
void check_apart(const char *what, uintptr_t at, size_t bytes)
{
    size_t i = lower(at & ~(page - 1));
    if (i < me->pages && me->page[i].at < at + bytes)
        fail("%s: %lx lies on page %lx", what, (unsigned long)at, (unsigned long)me->page[i].at);
    for (int k = 0; k < BLOCKS; k++) {
        uintptr_t b = (uintptr_t)me->block[k].at;
        if (b && b < at + bytes && at < b + me->block[k].n)
            fail("%s: %lx lies on block %lx", what, (unsigned long)at, (unsigned long)b);
    }
}
