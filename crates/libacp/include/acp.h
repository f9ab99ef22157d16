/* ACP, Advanced Communication Primitives: the C interface of libacp.
 *
 * Each of the processes of a parallel job, its ranks, registers memory and gets global addresses for it, numbers of 64 bits that
 * all ranks understand. Any rank copies between any two global addresses, or changes words atomically, without the owner's help,
 * and orders its accesses by handles. Declared as in acp.h of ACP 3.0.0; what is not in that is marked as an extension.
 *
 * For C99 and later and C++11 and later. Functions may be called by several threads at once, except acp_init, acp_reset and
 * acp_finalize, during which no other thread may be inside a function. Before acp_init, after acp_finalize and in a child made by
 * fork(2) all functions fail, that is: they return -1, or the null value of their type.
 */
#ifndef ACP_H
#define ACP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Types and constants of the basic layer ---- */

/* A global address: rank, region and offset of a byte of registered memory. Addresses of one region are consecutive numbers, so
 * ga + 8 is 8 bytes further. Other than that the number's bits mean nothing: acp_query_rank and its like take it apart. */
typedef uint64_t acp_ga_t;

/* An address translation key: what acp_register_memory gives for a region. */
typedef uint64_t acp_atkey_t;

/* A handle: the number of an access that this rank has issued. At least 1, and greater than that of any access before it. */
typedef int64_t acp_handle_t;

#define ACP_GA_NULL 0ULL    /* no address */
#define ACP_ATKEY_NULL 0ULL /* no key */

/* Where an order is asked for: start now. Returned: the access was refused, and nothing is done. */
#define ACP_HANDLE_NULL 0ULL
/* All accesses that this rank has issued so far. */
#define ACP_HANDLE_ALL 0xffffffffffffffffULL
/* As an order: see acp_copy. Elsewhere as ACP_HANDLE_ALL. */
#define ACP_HANDLE_CONT 0xfffffffffffffffeULL

/* ---- The job ---- */

/* Joins the job that this process was started in; alone, where no launcher has started it. Returns once all ranks have called it.
 * The starter memory of every rank is zero then. The arguments are those of main or NULL, and are left as they are. A process can
 * be a rank only once. Returns 0, or -1 after one sentence on standard error. */
int acp_init(int *argc, char ***argv);

/* Waits for what this rank has issued and for all ranks to call it, frees everything and leaves the job. Returns 0 or -1. */
int acp_finalize(void);

/* Gives this process the number `rank`, from 0 to acp_procs() - 1, each of them to one process. Returns once all ranks have called
 * it. Everything is freed, registrations included, and starter memory is zero, as after acp_init: all addresses, keys and
 * handles of before have lost their meaning. Returns 0 or -1. */
int acp_reset(int rank);

/* Prints `str`, or a sentence of its own for NULL, on standard error and ends all ranks of the job with a status other than 0.
 * Does not return. In a process that is no rank it ends that process. */
void acp_abort(const char *str);

/* Returns once all ranks have called it: a barrier. It does not wait for accesses that were issued. Returns 0 or -1. */
int acp_sync(void);

/* This process's number in the job, from 0; -1 on failure. */
int acp_rank(void);

/* The number of ranks, at least 1; -1 on failure. */
int acp_procs(void);

/* The number of colors, at least 1; -1 on failure. A color is a device of this rank by which others reach its memory; they are
 * numbered from 0. */
int acp_colors(void);

/* ---- Global memory ---- */

/* The address of the starter memory of `rank`: a region that every rank has from the beginning, of a size that the job was started
 * with, by which ranks tell each other further addresses. ACP_GA_NULL if there is no such rank. */
acp_ga_t acp_query_starter_ga(int rank);

/* Registers `size` bytes from `addr` on, which must stay mapped until they are unregistered; others reach them by the device of
 * `color`, below acp_colors(). Regions may overlap. ACP_ATKEY_NULL if there is no such memory or color, or no place for one region
 * more: at least 252 can be had. */
acp_atkey_t acp_register_memory(void *addr, size_t size, int color);

/* Ends a registration of this rank's. Addresses of the region must not be used any more, and accesses to it must be complete.
 * Returns 0; -1 if there is no such registration, which that of starter memory does not count as. */
int acp_unregister_memory(acp_atkey_t atkey);

/* The address of the byte at `addr` of a region of this rank's. That just behind the end can be had too, and may not be accessed.
 * ACP_GA_NULL if `addr` is neither or there is no such region. */
acp_ga_t acp_query_ga(acp_atkey_t atkey, void *addr);

/* Where the byte lies in this process; NULL if it is not this rank's own memory. */
void *acp_query_address(acp_ga_t ga);

/* The rank of an address; -1 for ACP_GA_NULL and what is no address of a rank. */
int acp_query_rank(acp_ga_t ga);

/* The color of an address; -1 for ACP_GA_NULL and what is no address of a rank. */
int acp_query_color(acp_ga_t ga);

/* ---- Access ----
 *
 * An access is issued here and proceeds by itself, also if this rank calls no function any more. It starts once its `order` is
 * fulfilled:
 *
 *   a handle         that access and all that were issued before it are complete
 *   ACP_HANDLE_NULL  at once
 *   ACP_HANDLE_ALL   all that were issued so far are complete
 *   ACP_HANDLE_CONT  if the access just before is between the same ranks in the same direction, by the same colors: the order of
 *                    that one is fulfilled, and this one does not overtake it; else as ACP_HANDLE_ALL
 *
 * An access returns its handle, or ACP_HANDLE_NULL if it was refused: an address or an order that cannot be. A fault that is found
 * only later, such as an address behind the end of a region of another rank, ends the job with a sentence. */

/* Copies `size` bytes from `src` to `dst`, each of which may be of any rank. The ranges must not overlap. `size` may be 0; nothing
 * limits it but the regions. */
acp_handle_t acp_copy(acp_ga_t dst, acp_ga_t src, size_t size, acp_handle_t order);

/* Atomic operations on the word at `src`, which may be of any rank; what it was is stored at `dst`, which is of the caller. Both
 * are aligned to the word: 4 or 8 bytes, in the byte order of the host. They are atomic with each other, also for words that
 * overlap. */

/* Compare and swap: where the word is `oldval`, it becomes `newval`. */
acp_handle_t acp_cas4(acp_ga_t dst, acp_ga_t src, uint32_t oldval, uint32_t newval, acp_handle_t order);
acp_handle_t acp_cas8(acp_ga_t dst, acp_ga_t src, uint64_t oldval, uint64_t newval, acp_handle_t order);

/* The word becomes `value`. */
acp_handle_t acp_swap4(acp_ga_t dst, acp_ga_t src, uint32_t value, acp_handle_t order);
acp_handle_t acp_swap8(acp_ga_t dst, acp_ga_t src, uint64_t value, acp_handle_t order);

/* `value` is added to the word, modulo 2^32 or 2^64. */
acp_handle_t acp_add4(acp_ga_t dst, acp_ga_t src, uint32_t value, acp_handle_t order);
acp_handle_t acp_add8(acp_ga_t dst, acp_ga_t src, uint64_t value, acp_handle_t order);

/* The word becomes itself combined with `value`, bit by bit: exclusive or, or, and. */
acp_handle_t acp_xor4(acp_ga_t dst, acp_ga_t src, uint32_t value, acp_handle_t order);
acp_handle_t acp_xor8(acp_ga_t dst, acp_ga_t src, uint64_t value, acp_handle_t order);
acp_handle_t acp_or4(acp_ga_t dst, acp_ga_t src, uint32_t value, acp_handle_t order);
acp_handle_t acp_or8(acp_ga_t dst, acp_ga_t src, uint64_t value, acp_handle_t order);
acp_handle_t acp_and4(acp_ga_t dst, acp_ga_t src, uint32_t value, acp_handle_t order);
acp_handle_t acp_and8(acp_ga_t dst, acp_ga_t src, uint64_t value, acp_handle_t order);

/* Returns once the access and all that were issued before it are complete; at once for ACP_HANDLE_NULL and what was never
 * issued. */
void acp_complete(acp_handle_t handle);

/* Whether acp_complete would return at once: 0 yes, 1 not yet; -1 on failure. */
int acp_inquire(acp_handle_t handle);

/* ---- Global allocation ---- */

/* Allocates `size` bytes of memory of `rank`, aligned to 16 bytes, for any rank to use and to free. ACP_GA_NULL if `size` is 0,
 * there is no such rank, or its heap has no memory left. */
acp_ga_t acp_malloc(size_t size, int rank);

/* Frees what acp_malloc has given to any rank. ACP_GA_NULL is left alone; an address of anything else ends the job with a
 * sentence. */
void acp_free(acp_ga_t ga);

/* ---- Channels ---- */

/* ---- Segmented buffers ---- */

/* ---- Workspaces ---- */

/* ---- Containers: types ----
 *
 * The bytes of a container lie in the heaps of ranks. A container's own type is a small value that names it, which ranks send to
 * each other as it is. */

/* Bytes somewhere in global memory. */
typedef struct {
    acp_ga_t ga;
    size_t size;
} acp_element_t;

/* Two of them: key and value. */
typedef struct {
    acp_element_t first;
    acp_element_t second;
} acp_pair_t;

/* ---- Vectors ---- */

/* ---- Deques ---- */

/* ---- Lists ---- */

/* ---- Sets ---- */

/* ---- Multisets ---- */

/* ---- Maps ---- */

/* ---- Generic names ----
 *
 * acp_X(type, ...) is acp_X_type(...): acp_insert(map, m, p) is acp_insert_map(m, p), and acp_increment(map_it, i) is
 * acp_increment_map_it(i). */

/* ---- Extension ---- */

/* Why the last function that has failed in this thread did: a sentence, valid until the next one fails in this thread; NULL if none
 * has. The queries acp_query_* have a sentence only for a process that is no rank. */
const char *acp_error(void);

#ifdef __cplusplus
}
#endif

#endif
