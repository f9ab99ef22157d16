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

/* Waits for what this rank has issued and for all ranks to call it, frees everything and leaves the job. Returns 0 or -1. A rank
 * that ends without it, with whatever status, ends the job with a sentence. */
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

/* Allocates `size` bytes of memory of `rank`, for any rank to use and to free; `rank` may sleep. Aligned to 16 bytes, blocks of 512
 * bytes and more to 512. What is in them is not defined. They are no part of the starter memories. Most often it is one round trip to
 * `rank`. ACP_GA_NULL if `size` is 0, there is no such rank, or its heap has no memory left; acp_error has the reason. */
acp_ga_t acp_malloc(size_t size, int rank);

/* Frees what acp_malloc has given to any rank, in one or two round trips. ACP_GA_NULL is left alone; what is no allocated block, such
 * as one that was freed before, ends the job with a sentence. Accesses to the block must be complete, those of others too. */
void acp_free(acp_ga_t ga);

/* ---- Channels ----
 *
 * A channel carries messages one way between two ranks, in order. Both create their end of it; of several between the same two in the
 * same direction, the first of one goes with the first of the other, and so on. Requests go on while some thread of the rank is in a
 * function on channels. One thread at a time uses an end. */

/* This rank's end of a channel, and a request that was begun there. Numbers: one that is not valid any more is refused. */
typedef struct acp_ch *acp_ch_t;
typedef struct acp_request *acp_request_t;

#define ACP_CH_NULL ((acp_ch_t)0)           /* no channel */
#define ACP_REQUEST_NULL ((acp_request_t)0) /* no request */

/* Creates this rank's end of a channel from rank `sender` to rank `receiver`, two different ranks of which it is one, and returns at
 * once. ACP_CH_NULL on failure. */
acp_ch_t acp_create_ch(int sender, int receiver);

/* As acp_nbfree_ch and acp_wait_ch. Returns 0 or -1. */
int acp_free_ch(acp_ch_t ch);

/* Begins to free this end: over when messages that were begun are gone, and the other end is being freed too. What has come and was not
 * received is lost, and the end takes no requests any more. Returns the request, whose wait frees the end; ACP_REQUEST_NULL on
 * failure. */
acp_request_t acp_nbfree_ch(acp_ch_t ch);

/* Begins to send `size` bytes, which stay as they are until the request was waited for; that does not say that they were received.
 * Returns the request; ACP_REQUEST_NULL on failure. */
acp_request_t acp_nbsend_ch(acp_ch_t ch, void *buf, size_t size);

/* Begins to receive a message into `size` bytes, which are used until the request was waited for. What does not fit is discarded.
 * Returns the request; ACP_REQUEST_NULL on failure. */
acp_request_t acp_nbrecv_ch(acp_ch_t ch, void *buf, size_t size);

/* Sends `size` bytes, which may be used again at once. Returns 0 or -1. */
int acp_send_ch(acp_ch_t ch, void *buf, size_t size);

/* Receives a message into `size` bytes; what does not fit is discarded. Returns the bytes that were stored, INT_MAX where they are more,
 * or -1. */
int acp_recv_ch(acp_ch_t ch, void *buf, size_t size);

/* Waits for a request, which is not valid any more then. Returns the bytes that were stored of a message that was received, 0 for other
 * requests, (size_t)-1 on failure: there is no such request, or the sender has freed the channel. */
size_t acp_wait_ch(acp_request_t request);

/* Waits for `n` requests, in any order that they end in, and makes them ACP_REQUEST_NULL. What acp_wait_ch returns for each is stored
 * to `sizes` unless that is NULL. Returns 0, or -1 if one has failed. */
int acp_waitall_ch(acp_request_t *request, int n, size_t *sizes);

/* ---- Segmented buffers ----
 *
 * A source and a destination have as many segments of the same size. The source fills the segment at the tail and pushes it
 * (acp_ack_segbuf), which copies it to the destination's. The destination reads that at the head and gives it back (acp_ready_segbuf).
 * Both go around: segment i is i * segsize bytes behind the start. */

/* This rank's end. A number: one that is not valid any more is refused. */
typedef struct acp_segbuf *acp_segbuf_t;

#define ACP_SEGBUF_NULL ((acp_segbuf_t)0) /* no end */

/* Creates the end of a source, whose destination is rank `dst_rank`, or of a destination, whose source is rank `src_rank`: `segnum`
 * segments of `segsize` bytes at `buf`, which stay mapped until it is freed. Of several between the same ranks in the same direction the
 * first of one goes with the first of the other, and so on. Returns at once; ACP_SEGBUF_NULL on failure, as for this rank itself. */
acp_segbuf_t acp_create_src_segbuf(int dst_rank, void *buf, size_t segsize, size_t segnum);
acp_segbuf_t acp_create_dst_segbuf(int src_rank, void *buf, size_t segsize, size_t segnum);

/* Waits until the other rank has created its end. Returns 0, or -1 if that has other sizes, or this one was disconnected. */
int acp_connect_segbuf(acp_segbuf_t segbuf);

/* Whether both ends are there, and this one is not disconnected: 0 yes, 1 no; -1 if the other one has other sizes. */
int acp_isconnected_segbuf(acp_segbuf_t segbuf);

/* The destination's: gives the segment at the head back. Returns 0, or -1, as where none has come. */
int acp_ready_segbuf(acp_segbuf_t segbuf);

/* The source's: pushes the segment at the tail, which must stay as it is until it has arrived. Returns 0, or -1, as where all segments
 * are pushed and none was given back. */
int acp_ack_segbuf(acp_segbuf_t segbuf);

/* Whether a segment is not pushed, as far as this rank knows: 0 yes, 1 no; -1 if this end is not connected. */
int acp_isready_segbuf(acp_segbuf_t segbuf);

/* Whether a segment is pushed and not given back, as far as this rank knows: 0 yes, 1 no; -1 if this end is not connected. */
int acp_isacked_segbuf(acp_segbuf_t segbuf);

/* The index of the segment to be given back next, of that to be pushed next, and, of a source, of the first one that has not
 * arrived; 0 of a destination. -1 if this end is not connected. */
int64_t acp_query_segbuf_head(acp_segbuf_t segbuf);
int64_t acp_query_segbuf_tail(acp_segbuf_t segbuf);
int64_t acp_query_segbuf_sent(acp_segbuf_t segbuf);

/* Disconnects this end: no segment is pushed or given back any more; those that were pushed arrive. Returns 0, or -1 if it was
 * disconnected. */
int acp_disconnect_segbuf(acp_segbuf_t segbuf);

/* Frees this end, which was disconnected, once the other one is disconnected too. Returns 0 or -1. */
int acp_free_segbuf(acp_segbuf_t segbuf);

/* ---- Workspaces ----
 *
 * Memory in blocks of consecutive ranks, which any rank reads and writes by offsets. All ranks create and destroy it. */

/* A workspace. Programs may read it. */
struct acp_wsditem {
    size_t size_ws;        /* bytes of the workspace */
    size_t size_default;   /* bytes of a block */
    size_t size_remainder; /* bytes of the last one; 0 if it has as many as the others */
    size_t ngas;           /* blocks */
    acp_atkey_t key_data;  /* this rank's block: key, address, place; null if it has none */
    acp_ga_t ga_data;
    acp_atkey_t *keys; /* all blocks': keys, addresses, ranks, bytes */
    acp_ga_t *gas;
    int *procs, *sizes;
    void *data;
};
typedef struct acp_wsditem *acp_wsd_t;

#define ACP_WSD_NULL ((acp_wsd_t)-1) /* no workspace */

/* Creates a workspace of `size` bytes, zero at first, in blocks of as many consecutive ranks as it needs; the next one begins at the rank
 * behind them. All ranks call it with the same size. Returns once all have; ACP_WSD_NULL at all of them on failure: no bytes, not enough
 * ranks, no memory. */
acp_wsd_t acp_create_ws(size_t size);

/* Has the next workspace begin at rank `proc_start`, 0 at first, in blocks of `size_default` bytes, 17073526 at first, at most INT_MAX.
 * All ranks call it with the same values. Returns 0, or 1 if there is no such rank or block. */
int acp_setparams_ws(size_t proc_start, size_t size_default);

/* Destroys a workspace. All ranks call it; it returns once all have. */
void acp_destroy_ws(acp_wsd_t WSD);

/* Copies `size` bytes from `offset` of the workspace to `ga`, of any rank, and waits for that. Returns 0, or 1 on failure, as where they
 * are not inside. */
int acp_read_ws(acp_wsd_t WSD, acp_ga_t ga, size_t size, size_t offset);

/* Copies `size` bytes from `ga`, of any rank, to `offset` of the workspace, and waits for that. Returns as acp_read_ws. */
int acp_write_ws(acp_wsd_t WSD, const acp_ga_t ga, size_t size, size_t offset);

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

/* ---- Vectors ----
 *
 * A vector is bytes that lie one behind the other in the heap of a rank; sizes and positions count bytes. When they have no room any
 * more they move to twice the room. Any rank works on any vector, one of them at a time if it is changed. Bytes that are put in may
 * be those of the vector itself, and are copied from where they lie, of any rank: writes to them have to be complete.
 *
 * Round trips are those to other ranks, besides allocating and freeing memory. What fails returns ACP_GA_NULL as `.ga`, or in an
 * iterator as `.vector.ga`, -1 as an int and 0 as a size, has changed nothing, and acp_error tells why. A vector that is none, as
 * one that was destroyed, ends the job with a sentence, for what it says to be can be anything. The same is true of deques and lists.
 *
 * The name of a vector: the address of its header. */
typedef struct {
    acp_ga_t ga;
} acp_vector_t;

/* A position in a vector: `index` bytes behind its first byte. Arithmetic on it is the caller's own: whether there is such a byte is
 * found by the function that uses it. Positions behind 2147483647 cannot be named. */
typedef struct {
    acp_vector_t vector;
    int index;
} acp_vector_it_t;

/* Makes a vector of `size` bytes, which are anything, in the heap of `rank`. `.ga` is ACP_GA_NULL if there is no such rank, or no memory
 * left there. */
acp_vector_t acp_create_vector(size_t size, int rank);

/* Frees the vector. */
void acp_destroy_vector(acp_vector_t vector);

/* Bytes that it has; 1 if it has none, 0 if it has some; bytes that it has room for, a multiple of 8. One round trip. */
size_t acp_size_vector(acp_vector_t vector);
int acp_empty_vector(acp_vector_t vector);
size_t acp_capacity_vector(acp_vector_t vector);

/* Makes room for `size` bytes in all, so that none has to be made until there are more. */
void acp_reserve_vector(acp_vector_t vector, size_t size);

/* Erases all bytes; the room stays. */
void acp_clear_vector(acp_vector_t vector);

/* Where the byte at `index` lies, until the vector is changed; ACP_GA_NULL if there is none. One round trip. */
acp_ga_t acp_at_vector(acp_vector_t vector, int index);

/* Adds `size` bytes from `ga` on at the end. Two round trips where there is room. */
void acp_push_back_vector(acp_vector_t vector, const acp_ga_t ga, size_t size);

/* Erases `size` bytes at the end, or as many as there are. Two round trips. */
void acp_pop_back_vector(acp_vector_t vector, size_t size);

/* Inserts bytes before the position, which may be the end: `size` bytes from `ga` on, or those from `start` up to `end` of any
 * vector, the same one included. Returns the position of the first. Two round trips where there is room and nothing moves, and one
 * for each 256 KiB that move. */
acp_vector_it_t acp_insert_vector(acp_vector_it_t it, const acp_ga_t ga, size_t size);
acp_vector_it_t acp_insert_range_vector(acp_vector_it_t it, acp_vector_it_t start, acp_vector_it_t end);

/* Erases `size` bytes from the position on, or as many as there are; or those from `start` up to `end`. Returns the position behind
 * them. Round trips as of insertion. */
acp_vector_it_t acp_erase_vector(acp_vector_it_t it, size_t size);
acp_vector_it_t acp_erase_range_vector(acp_vector_it_t start, acp_vector_it_t end);

/* Makes the first a copy of all bytes of the second, or of those from `start` up to `end`, which may be its own. Two round trips where
 * there is room. */
void acp_assign_vector(acp_vector_t vector1, acp_vector_t vector2);
void acp_assign_range_vector(acp_vector_t vector, acp_vector_it_t start, acp_vector_it_t end);

/* Exchanges the bytes of both, which stay where they lie, of whichever rank; room that is made later is of the vector's own rank. Two
 * round trips. */
void acp_swap_vector(acp_vector_t vector1, acp_vector_t vector2);

/* The position of the first byte, without a round trip; that behind the last one. */
acp_vector_it_t acp_begin_vector(acp_vector_t vector);
acp_vector_it_t acp_end_vector(acp_vector_t vector);

/* The position `n` bytes further on, or back if `n` is negative; how many bytes `last` is behind `first`. No round trip. */
acp_vector_it_t acp_advance_vector_it(acp_vector_it_t it, int n);
int acp_distance_vector_it(acp_vector_it_t first, acp_vector_it_t last);

/* Where the byte at the position lies, and those behind it up to the end; as acp_at_vector. */
acp_ga_t acp_dereference_vector_it(acp_vector_it_t it);

/* ---- Deques ----
 *
 * A deque is bytes in the heap of a rank that are added and taken at both ends. They begin anywhere in their room, and go on at its
 * start where it ends, so that they lie in two parts at most. Otherwise as vectors.
 *
 * The name of a deque: the address of its header. */
typedef struct {
    acp_ga_t ga;
} acp_deque_t;

/* A position in a deque: `index` bytes behind its first byte. Arithmetic on it is the caller's own: whether there is such a byte is
 * found by the function that uses it. Positions behind 2147483647 cannot be named. */
typedef struct {
    acp_deque_t deque;
    int index;
} acp_deque_it_t;

/* Makes a deque without bytes and with room for `size` in the heap of `rank`. `.ga` is ACP_GA_NULL if there is no such rank, or no memory
 * left there. */
acp_deque_t acp_create_deque(size_t size, int rank);

/* Frees the deque. */
void acp_destroy_deque(acp_deque_t deque);

/* Bytes that it has; 1 if it has none, 0 if it has some; bytes that it has room for. One round trip. */
size_t acp_size_deque(acp_deque_t deque);
int acp_empty_deque(acp_deque_t deque);
size_t acp_capacity_deque(acp_deque_t deque);

/* Makes room for `size` bytes in all, so that none has to be made until there are more. */
void acp_reserve_deque(acp_deque_t deque, size_t size);

/* Erases all bytes; the room stays. */
void acp_clear_deque(acp_deque_t deque);

/* Where the byte at `index` lies, until the deque is changed; ACP_GA_NULL if there is none. One round trip. */
acp_ga_t acp_at_deque(acp_deque_t deque, int index);

/* Adds `size` bytes from `ga` on at the end, or at the front, in their order. Two round trips where there is room. */
void acp_push_back_deque(acp_deque_t deque, const acp_ga_t ga, size_t size);
void acp_push_front_deque(acp_deque_t deque, const acp_ga_t ga, size_t size);

/* Erases `size` bytes at the end, or at the front, or as many as there are. Two round trips. */
void acp_pop_back_deque(acp_deque_t deque, size_t size);
void acp_pop_front_deque(acp_deque_t deque, size_t size);

/* Inserts bytes before the position, which may be the end: `size` bytes from `ga` on, or those from `start` up to `end` of any
 * deque, the same one included. Returns the position of the first. Two round trips where there is room and nothing moves, and one
 * for each 256 KiB that move, which are those before the position or behind it, whichever are fewer. */
acp_deque_it_t acp_insert_deque(acp_deque_it_t it, const acp_ga_t ga, size_t size);
acp_deque_it_t acp_insert_range_deque(acp_deque_it_t it, acp_deque_it_t start, acp_deque_it_t end);

/* Erases `size` bytes from the position on, or as many as there are; or those from `start` up to `end`. Returns the position behind
 * them. Round trips as of insertion. */
acp_deque_it_t acp_erase_deque(acp_deque_it_t it, size_t size);
acp_deque_it_t acp_erase_range_deque(acp_deque_it_t start, acp_deque_it_t end);

/* Makes the first a copy of all bytes of the second, or of those from `start` up to `end`, which may be its own. Two round trips where
 * there is room. */
void acp_assign_deque(acp_deque_t deque1, acp_deque_t deque2);
void acp_assign_range_deque(acp_deque_t deque, acp_deque_it_t start, acp_deque_it_t end);

/* Exchanges the bytes of both, which stay where they lie, of whichever rank; room that is made later is of the deque's own rank. Two
 * round trips. */
void acp_swap_deque(acp_deque_t deque1, acp_deque_t deque2);

/* The position of the first byte, without a round trip; that behind the last one. */
acp_deque_it_t acp_begin_deque(acp_deque_t deque);
acp_deque_it_t acp_end_deque(acp_deque_t deque);

/* The position `n` bytes further on, or back if `n` is negative; how many bytes `last` is behind `first`. No round trip. */
acp_deque_it_t acp_advance_deque_it(acp_deque_it_t it, int n);
int acp_distance_deque_it(acp_deque_it_t first, acp_deque_it_t last);

/* Where up to `size` bytes from the position on lie, as many as there are: `first`, and if they go on at the start of the room there
 * `second`, which else is ACP_GA_NULL and of size 0. Both are if there is no byte at the position. One round trip. */
acp_pair_t acp_dereference_deque_it(acp_deque_it_t it, size_t size);

/* ---- Lists ----
 *
 * A list is elements of any sizes in the heaps of any ranks, each linked with the one before and the next. Otherwise as vectors. Where
 * the links have to be gone along, that is a round trip for each element.
 *
 * The name of a list: the address of its header. */
typedef struct {
    acp_ga_t ga;
} acp_list_t;

/* A position in a list: that of an element, or the end, behind the last one, where `elem` is the list's own `ga`. It is good until the
 * element is erased; of an element that has gone to another list, `list` has to be that. Failures have ACP_GA_NULL as `elem`. */
typedef struct {
    acp_list_t list;
    acp_ga_t elem;
} acp_list_it_t;

/* Makes a list without elements in the heap of `rank`. `.ga` is ACP_GA_NULL if there is no such rank, or no memory left there. */
acp_list_t acp_create_list(int rank);

/* Erases all elements; also frees the list. One round trip for each element, and two, and freeing them. */
void acp_clear_list(acp_list_t list);
void acp_destroy_list(acp_list_t list);

/* Elements that it has; 1 if it has none, 0 if it has some. One round trip. */
size_t acp_size_list(acp_list_t list);
int acp_empty_list(acp_list_t list);

/* Adds a copy of the bytes that `elem` names as an element in the heap of `rank`: at the end, at the front, or before a position, which
 * may be the end, whose function returns that of the element. Two round trips and an allocation. */
void acp_push_back_list(acp_list_t list, const acp_element_t elem, int rank);
void acp_push_front_list(acp_list_t list, const acp_element_t elem, int rank);
acp_list_it_t acp_insert_list(acp_list_it_t it, const acp_element_t elem, int rank);

/* Inserts copies of the elements from `start` up to `end`, of any list, before a position. Each is of the rank that the original is of.
 * Returns the position of the first one. One round trip for each element, and three, and their allocation. */
acp_list_it_t acp_insert_range_list(acp_list_it_t it, acp_list_it_t start, acp_list_it_t end);

/* Erases the last element, or the first. Three round trips. */
void acp_pop_back_list(acp_list_t list);
void acp_pop_front_list(acp_list_t list);

/* Erases the element at a position, or those from `start` up to `end`. Returns the position behind. Two round trips, and of a range one
 * for each element. */
acp_list_it_t acp_erase_list(acp_list_it_t it);
acp_list_it_t acp_erase_range_list(acp_list_it_t start, acp_list_it_t end);

/* Makes the first a copy of the second, or of the elements from `start` up to `end`, which may be its own. Each copy is of the rank that
 * the original is of. One round trip for each element, old or new, and four, and allocating and freeing them. */
void acp_assign_list(acp_list_t list1, acp_list_t list2);
void acp_assign_range_list(acp_list_t list, acp_list_it_t start, acp_list_it_t end);

/* Erases all elements with the size and the bytes of `elem`; all with those of the element before. One round trip for each element,
 * two, and one for each 256 KiB that are compared. */
void acp_remove_list(acp_list_t list, const acp_element_t elem);
void acp_unique_list(acp_list_t list);

/* Reverses the order of the elements. One round trip for each, and two. */
void acp_reverse_list(acp_list_t list);

/* Sorts the elements; those that are equal keep their order. `comp` gets them where they lie, which may be at other ranks: to look at
 * them is its own affair, by acp_copy. It returns less than, equal to, or greater than 0. Round trips as of acp_reverse_list, and those
 * of `comp`, which is called n log n times at most. It must not change the list. */
void acp_sort_list(acp_list_t list, int (*comp)(const acp_element_t elem1, const acp_element_t elem2));

/* Moves the elements of `list2` into `list1`; both are sorted by `comp`, and so is the result. Of equal ones those of `list1` come first.
 * One round trip for each element of both, and three. */
void acp_merge_list(acp_list_t list1, acp_list_t list2, int (*comp)(const acp_element_t elem1, const acp_element_t elem2));

/* Moves the element at `it2`, of any list, before `it1`. Two round trips. */
void acp_splice_list(acp_list_it_t it1, acp_list_it_t it2);

/* Moves the elements from `start` up to `end`, of any list, before `it`, which must not be in their midst. They are counted: one round trip
 * for each, and three. */
void acp_splice_range_list(acp_list_it_t it, acp_list_it_t start, acp_list_it_t end);

/* Exchanges the elements of two lists, which stay where they lie. Two round trips. */
void acp_swap_list(acp_list_t list1, acp_list_t list2);

/* The position of the first element, or the end if there is none: one round trip. The end: none. */
acp_list_it_t acp_begin_list(acp_list_t list);
acp_list_it_t acp_end_list(acp_list_t list);

/* The next position; the one before; the one `n` further on, or back if `n` is negative. One round trip for each element. They fail behind
 * the end and before the first. */
acp_list_it_t acp_increment_list_it(acp_list_it_t it);
acp_list_it_t acp_decrement_list_it(acp_list_it_t it);
acp_list_it_t acp_advance_list_it(acp_list_it_t it, int n);

/* Where the bytes of the element lie, until it is erased; ACP_GA_NULL and size 0 at the end. One round trip. */
acp_element_t acp_dereference_list_it(acp_list_it_t it);

/* How many elements `last` is behind `first`; -1 if it is not. One round trip for each, and one. */
int acp_distance_list_it(acp_list_it_t first, acp_list_it_t last);

/* ---- Sets ----
 *
 * Sets, multisets and maps are hash tables in the memory of several ranks. A key is any bytes, at least one; its CRC-64 says in which
 * of the tables and in which slot there it belongs. A slot is a list, to whose end new elements go. Keys and values that are given to
 * a function may lie in the memory of any rank, and are copied.
 *
 * Any number of ranks and threads may insert, remove, find, retrieve and go through the same container at once: for each key there
 * is one order of all that was done with it. Functions on all of a container, such as size, clear or merge, see each slot at a
 * moment of its own. acp_destroy_X is alone: nobody may be using the container, nor use it later.
 *
 * An iterator goes through the elements in the order of the ranks in the list that the container was made with, of the slots there,
 * and of insertion. Elements that others insert or remove meanwhile are found or not. At an element that was removed, increment
 * goes to the first one that is left in its slot, and dereference fails.
 *
 * The functions with _local_ in their names are about the elements that are stored on the caller. Those that return nothing, and
 * fail, have the reason in acp_error(). */

/* A set: where it is, how many ranks its list has, and slots on each. */
typedef struct {
    acp_ga_t ga;
    uint64_t num_ranks;
    uint64_t num_slots;
} acp_set_t;

/* An iterator: the index in the list of ranks, the slot there, the element. At the end num_ranks, 0 and ACP_GA_NULL. */
typedef struct {
    acp_set_t set;
    int rank;
    int slot;
    acp_ga_t elem;
} acp_set_it_t;

/* An iterator, and whether it was a success. */
typedef struct {
    acp_set_it_t it;
    int success;
} acp_set_ib_t;

/* Makes a set without keys: what finds it in the memory of `rank`, and a table of `num_slots` slots in that of each of the
 * `num_ranks` ranks in the list, which may have a rank more than once; all ranks if `num_ranks` is 0. Its ga is ACP_GA_NULL on
 * failure: a rank that is none, no slots, no memory. */
acp_set_t acp_create_set(int num_ranks, const int *ranks, int num_slots, int rank);

/* Frees a set. */
void acp_destroy_set(acp_set_t set);

/* Inserts a key. Returns 1, or 0 if it was there, has no bytes, or there is no memory. */
int acp_insert_set(acp_set_t set, acp_element_t key);

/* Removes a key if it is there. */
void acp_remove_set(acp_set_t set, acp_element_t key);

/* The iterator of a key; the end if it is not there. */
acp_set_it_t acp_find_set(acp_set_t set, acp_element_t key);

/* Removes all keys. */
void acp_clear_set(acp_set_t set);

/* How many keys there are. 0 on failure. */
size_t acp_size_set(acp_set_t set);
size_t acp_size_local_set(acp_set_t set);

/* Whether there are no keys: 1 or 0. 1 on failure. */
int acp_empty_set(acp_set_t set);
int acp_empty_local_set(acp_set_t set);

/* Inserts the keys of `set2` into `set1`: all, or those that are stored on the caller. `set2` stays as it is. */
void acp_merge_set(acp_set_t set1, acp_set_t set2);
void acp_merge_local_set(acp_set_t set1, acp_set_t set2);

/* As merge, and the keys are no longer in `set2`. */
void acp_move_set(acp_set_t set1, acp_set_t set2);
void acp_move_local_set(acp_set_t set1, acp_set_t set2);

/* Removes all keys of `set1`, then as merge. */
void acp_assign_set(acp_set_t set1, acp_set_t set2);
void acp_assign_local_set(acp_set_t set1, acp_set_t set2);

/* Exchanges the keys of two sets. Both keep their ranks and slots, and need not have the same. */
void acp_swap_set(acp_set_t set1, acp_set_t set2);

/* The first key; the end if there is none. */
acp_set_it_t acp_begin_set(acp_set_t set);

/* The end, behind the last key. */
acp_set_it_t acp_end_set(acp_set_t set);

/* The first key that is stored on the caller, and the first one behind the last table of the caller's, or the end. Both are the same
 * if none is stored there. Where the list of ranks has the caller more than once, other ranks' keys may lie between. */
acp_set_it_t acp_begin_local_set(acp_set_t set);
acp_set_it_t acp_end_local_set(acp_set_t set);

/* The next key; the end behind the last one, and for what is no iterator of a set that there is. */
acp_set_it_t acp_increment_set_it(acp_set_it_t it);

/* Where the key is, for acp_copy from there. Its ga is ACP_GA_NULL on failure: no key is there. */
acp_element_t acp_dereference_set_it(acp_set_it_t it);

/* ---- Multisets ----
 *
 * As sets, with a counter for each key. */

/* A multiset. */
typedef struct {
    acp_ga_t ga;
    uint64_t num_ranks;
    uint64_t num_slots;
} acp_multiset_t;

/* An iterator, as of a set. */
typedef struct {
    acp_multiset_t set;
    int rank;
    int slot;
    acp_ga_t elem;
} acp_multiset_it_t;

/* An iterator, and whether it was a success. */
typedef struct {
    acp_multiset_it_t it;
    int success;
} acp_multiset_ib_t;

/* Makes a multiset without keys, and frees one: as for sets. */
acp_multiset_t acp_create_multiset(int num_ranks, const int *ranks, int num_slots, int rank);
void acp_destroy_multiset(acp_multiset_t set);

/* Inserts a key once more. Returns 1, or 0 if it has no bytes or there is no memory. */
int acp_insert_multiset(acp_multiset_t set, acp_element_t key);

/* Removes a key once, if it is there. */
void acp_remove_multiset(acp_multiset_t set, acp_element_t key);

/* Removes a key as often as it is there. */
void acp_remove_all_multiset(acp_multiset_t set, acp_element_t key);

/* How often a key is there. 0 on failure too. */
uint64_t acp_retrieve_multiset(acp_multiset_t set, acp_element_t key);

/* The iterator of a key; the end if it is not there. */
acp_multiset_it_t acp_find_multiset(acp_multiset_t set, acp_element_t key);

/* Removes all keys. */
void acp_clear_multiset(acp_multiset_t set);

/* How many different keys there are. 0 on failure. */
size_t acp_size_multiset(acp_multiset_t set);
size_t acp_size_local_multiset(acp_multiset_t set);

/* Whether there are no keys: 1 or 0. 1 on failure. */
int acp_empty_multiset(acp_multiset_t set);
int acp_empty_local_multiset(acp_multiset_t set);

/* Inserts the keys of `set2` into `set1` as often as they are there: all, or those that are stored on the caller. `set2` stays as it
 * is; after move they are no longer there; assign removes all of `set1` first. */
void acp_merge_multiset(acp_multiset_t set1, acp_multiset_t set2);
void acp_merge_local_multiset(acp_multiset_t set1, acp_multiset_t set2);
void acp_move_multiset(acp_multiset_t set1, acp_multiset_t set2);
void acp_move_local_multiset(acp_multiset_t set1, acp_multiset_t set2);
void acp_assign_multiset(acp_multiset_t set1, acp_multiset_t set2);
void acp_assign_local_multiset(acp_multiset_t set1, acp_multiset_t set2);

/* Exchanges the keys of two multisets. */
void acp_swap_multiset(acp_multiset_t set1, acp_multiset_t set2);

/* Iterators, as of a set: a key is there once, however often it was inserted. */
acp_multiset_it_t acp_begin_multiset(acp_multiset_t set);
acp_multiset_it_t acp_end_multiset(acp_multiset_t set);
acp_multiset_it_t acp_begin_local_multiset(acp_multiset_t set);
acp_multiset_it_t acp_end_local_multiset(acp_multiset_t set);
acp_multiset_it_t acp_increment_multiset_it(acp_multiset_it_t it);

/* Where the key is. Its ga is ACP_GA_NULL on failure. */
acp_element_t acp_dereference_multiset_it(acp_multiset_it_t it);

/* ---- Maps ----
 *
 * As sets, with a value for each key: any bytes, which begin at an address that is aligned to 8. */

/* A map. */
typedef struct {
    acp_ga_t ga;
    uint64_t num_ranks;
    uint64_t num_slots;
} acp_map_t;

/* An iterator, as of a set. */
typedef struct {
    acp_map_t map;
    int rank;
    int slot;
    acp_ga_t elem;
} acp_map_it_t;

/* An iterator, and whether it was a success. */
typedef struct {
    acp_map_it_t it;
    int success;
} acp_map_ib_t;

/* Makes a map without keys, and frees one: as for sets. */
acp_map_t acp_create_map(int num_ranks, const int *ranks, int num_slots, int rank);
void acp_destroy_map(acp_map_t map);

/* Inserts the key pair.first with the value pair.second. Returns 1, or 0 if the key was there, whose value stays as it is, if it has
 * no bytes, or there is no memory. A value of size 0 removes the key, and 0 is returned. */
int acp_insert_map(acp_map_t map, acp_pair_t pair);

/* Removes a key if it is there. */
void acp_remove_map(acp_map_t map, acp_element_t key);

/* Copies the value of the key pair.first to pair.second.ga, of any rank: as many bytes as pair.second.size says, or fewer if it has
 * fewer. Returns how many bytes the value has, also if that is more; 0 if the key is not there, and on failure. What is at
 * pair.second.ga is not specified after 0. */
size_t acp_retrieve_map(acp_map_t map, acp_pair_t pair);

/* The iterator of a key; the end if it is not there. */
acp_map_it_t acp_find_map(acp_map_t map, acp_element_t key);

/* Removes all keys, or those that are stored on the caller. */
void acp_clear_map(acp_map_t map);
void acp_clear_local_map(acp_map_t map);

/* How many keys there are. 0 on failure. */
size_t acp_size_map(acp_map_t map);
size_t acp_size_local_map(acp_map_t map);

/* Whether there are no keys: 1 or 0. 1 on failure. */
int acp_empty_map(acp_map_t map);
int acp_empty_local_map(acp_map_t map);

/* Inserts what `map2` has into `map1`: all, or what is stored on the caller. A key that is in `map1` keeps its value there. `map2`
 * stays as it is; after move they are no longer there; assign removes all of `map1` first. */
void acp_merge_map(acp_map_t map1, acp_map_t map2);
void acp_merge_local_map(acp_map_t map1, acp_map_t map2);
void acp_move_map(acp_map_t map1, acp_map_t map2);
void acp_move_local_map(acp_map_t map1, acp_map_t map2);
void acp_assign_map(acp_map_t map1, acp_map_t map2);
void acp_assign_local_map(acp_map_t map1, acp_map_t map2);

/* Exchanges what two maps have. */
void acp_swap_map(acp_map_t map1, acp_map_t map2);

/* Iterators, as of a set. */
acp_map_it_t acp_begin_map(acp_map_t map);
acp_map_it_t acp_end_map(acp_map_t map);
acp_map_it_t acp_begin_local_map(acp_map_t map);
acp_map_it_t acp_end_local_map(acp_map_t map);
acp_map_it_t acp_increment_map_it(acp_map_it_t it);

/* Where the key and the value are, for copies and atomics there; they stay until the key is removed. Both ga are ACP_GA_NULL on
 * failure. */
acp_pair_t acp_dereference_map_it(acp_map_it_t it);

/* ---- Generic names ----
 *
 * acp_X(type, ...) is acp_X_type(...): acp_insert(map, m, p) is acp_insert_map(m, p), and acp_increment(map_it, i) is
 * acp_increment_map_it(i). Names of functions that no type has are there for those of programs. */

#define acp_assign(type, ...) acp_assign_##type(__VA_ARGS__)
#define acp_assign_range(type, ...) acp_assign_range_##type(__VA_ARGS__)
#define acp_at(type, ...) acp_at_##type(__VA_ARGS__)
#define acp_back(type, ...) acp_back_##type(__VA_ARGS__)
#define acp_begin(type, ...) acp_begin_##type(__VA_ARGS__)
#define acp_bucket(type, ...) acp_bucket_##type(__VA_ARGS__)
#define acp_bucket_count(type, ...) acp_bucket_count_##type(__VA_ARGS__)
#define acp_bucket_size(type, ...) acp_bucket_size_##type(__VA_ARGS__)
#define acp_capacity(type, ...) acp_capacity_##type(__VA_ARGS__)
#define acp_clear(type, ...) acp_clear_##type(__VA_ARGS__)
#define acp_count(type, ...) acp_count_##type(__VA_ARGS__)
#define acp_create(type, ...) acp_create_##type(__VA_ARGS__)
#define acp_destroy(type, ...) acp_destroy_##type(__VA_ARGS__)
#define acp_empty(type, ...) acp_empty_##type(__VA_ARGS__)
#define acp_end(type, ...) acp_end_##type(__VA_ARGS__)
#define acp_erase(type, ...) acp_erase_##type(__VA_ARGS__)
#define acp_erase_range(type, ...) acp_erase_range_##type(__VA_ARGS__)
#define acp_find(type, ...) acp_find_##type(__VA_ARGS__)
#define acp_front(type, ...) acp_front_##type(__VA_ARGS__)
#define acp_insert(type, ...) acp_insert_##type(__VA_ARGS__)
#define acp_insert_range(type, ...) acp_insert_range_##type(__VA_ARGS__)
#define acp_merge(type, ...) acp_merge_##type(__VA_ARGS__)
#define acp_pop_back(type, ...) acp_pop_back_##type(__VA_ARGS__)
#define acp_pop_front(type, ...) acp_pop_front_##type(__VA_ARGS__)
#define acp_push_back(type, ...) acp_push_back_##type(__VA_ARGS__)
#define acp_push_front(type, ...) acp_push_front_##type(__VA_ARGS__)
#define acp_remove(type, ...) acp_remove_##type(__VA_ARGS__)
#define acp_reserve(type, ...) acp_reserve_##type(__VA_ARGS__)
#define acp_reverse(type, ...) acp_reverse_##type(__VA_ARGS__)
#define acp_size(type, ...) acp_size_##type(__VA_ARGS__)
#define acp_sort(type, ...) acp_sort_##type(__VA_ARGS__)
#define acp_splice(type, ...) acp_splice_##type(__VA_ARGS__)
#define acp_swap(type, ...) acp_swap_##type(__VA_ARGS__)
#define acp_unique(type, ...) acp_unique_##type(__VA_ARGS__)

/* Of iterators: the type is vector_it and so on. */
#define acp_advance(type, ...) acp_advance_##type(__VA_ARGS__)
#define acp_decrement(type, ...) acp_decrement_##type(__VA_ARGS__)
#define acp_dereference(type, ...) acp_dereference_##type(__VA_ARGS__)
#define acp_dereference_value(type, ...) acp_dereference_value_##type(__VA_ARGS__)
#define acp_distance(type, ...) acp_distance_##type(__VA_ARGS__)
#define acp_increment(type, ...) acp_increment_##type(__VA_ARGS__)
#define acp_size_value(type, ...) acp_size_value_##type(__VA_ARGS__)

/* ---- Extension ---- */

/* Why the last function that has failed in this thread did: a sentence, valid until the next one fails in this thread; NULL if none
 * has since acp_clear_error. The queries acp_query_* have a sentence only for a process that is no rank. */
const char *acp_error(void);

/* Makes acp_error return NULL until the next function fails in this thread. For those whose value does not tell failure from another
 * outcome, as errno = 0 is for some of the C library's: acp_insert_map returns 0 where the key is there and where there is no memory. */
void acp_clear_error(void);

#ifdef __cplusplus
}
#endif

#endif
