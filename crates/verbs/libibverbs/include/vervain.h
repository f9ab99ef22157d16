/* What Vervain's libibverbs has beyond verbs: a device that stands still, is saved and restored.
 *
 * For C99 and later and C++11 and later. The functions are those of the library that `vervain run` puts in the place of the
 * system's, under the version VERVAIN_1.0. No other libibverbs has them: a program that is to run with others too asks for them by
 * dlsym(RTLD_DEFAULT, "vervain_stop"). As in verbs, they return 0 or an errno value, and the last sentence about a failure stands
 * in the log (VERVAIN_LOG=info).
 */
#ifndef VERVAIN_H
#define VERVAIN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ibv_context;

/* How a context is stopped. */
struct vervain_stop_attr {
	uint32_t comp_mask;  /* 0 */
	uint32_t timeout_ms; /* how long to wait for who is in the middle of something; 0: 2,000 */
};

/* Stops `context`, or with NULL all contexts of the process. When this returns, nothing moves: no message or RDMA operation reaches
 * the memory and the queues of its QPs, none of them reaches a peer, and nothing of either is half under way between two processes.
 * Time stands still for its QPs, and so it does for peers that are reached by memory: they wait, however long it takes. Those behind
 * packets wait as for a peer that does not answer, as long as their timeouts and retries allow.
 *
 * The program may go on to call verbs. What it posts stays in the queues until the context goes on (ibv_post_send returns ENOMEM
 * when the queue is full); ibv_poll_cq hands out what was complete before. Objects may be made, changed and destroyed.
 *
 * `attr` may be NULL. EALREADY if it is stopped already; ETIMEDOUT if a peer or a thread stood in the middle of something for too long,
 * and then nothing is stopped; EOPNOTSUPP for the 256th and later contexts that are open at once, which only NULL stops; EINVAL if no
 * device is open, or for an attribute that this library does not know. */
int vervain_stop(struct ibv_context *context, const struct vervain_stop_attr *attr);

/* Has `context` go on that vervain_stop has stopped, or with NULL the process. A context that was stopped both by itself and with the
 * process goes on when both are over. EALREADY if it is not stopped. */
int vervain_go(struct ibv_context *context);

/* The bytes of all registered memory go into the image too. */
#define VERVAIN_SAVE_MEMORY 1u

/* How a context is saved. */
struct vervain_save_attr {
	uint32_t comp_mask;  /* 0 */
	uint32_t flags;      /* VERVAIN_SAVE_MEMORY */
	uint32_t suspense_s; /* how long peers wait for the process when it has ended, in seconds; 0: 600 */
	uint32_t reserved;   /* 0 */
};

/* Writes an image of `context`, which is stopped, where `fd` stands: its protection domains, regions, windows, device memory, completion
 * channels and queues with what was not polled, SRQs, XRC domains and QPs with what was posted and has not completed. Short messages that
 * have come are in the memory of their receives when this returns, so a program that keeps its memory itself copies it then. Address
 * handles, thread domains and async events that were not read are not saved.
 *
 * The context may go on after that, and the image is void then; or the process may end. Peers that are reached by memory wait for it in
 * that case, whatever their timeouts are, until it is restored or `suspense_s` is over, whether they are stopped or not.
 *
 * `fd` is a regular file of this user with mode 0600, or a memfd. `attr` may be NULL. EBUSY if the context is not stopped,
 * or a batch (ibv_wr_start) is begun and not ended; EACCES for a
 * file that others may read or write; ENOTSUP, with a sentence, for a QP whose peer is reached through a window and for objects of other
 * contexts; EOPNOTSUPP in a process that uses librdmacm; EFAULT if registered memory is not there; ETIMEDOUT if a peer does not listen. */
int vervain_save(struct ibv_context *context, int fd, const struct vervain_save_attr *attr);

enum vervain_object_kind {
	VERVAIN_PD = 1,
	VERVAIN_DM,
	VERVAIN_MR,
	VERVAIN_MW,
	VERVAIN_COMP_CHANNEL,
	VERVAIN_CQ,
	VERVAIN_XRCD,
	VERVAIN_SRQ,
	VERVAIN_QP,
};

/* An object that was restored. */
struct vervain_object {
	uint32_t kind;         /* enum vervain_object_kind */
	uint32_t handle;       /* its `handle` when it was saved; of a channel its descriptor then; of an XRC domain 0 */
	uint32_t number;       /* qp_num, the number of an XRC SRQ, lkey and rkey; else 0 */
	uint32_t reserved;
	uint64_t user_context; /* cq_context, srq_context or qp_context when it was saved; it has it again */
	void *object;          /* struct ibv_pd *, struct ibv_qp * and so on; one that ibv_create_cq_ex has made is a struct ibv_cq_ex too */
};

/* How an image is restored. */
struct vervain_restore_attr {
	uint32_t comp_mask; /* 0 */
	uint32_t reserved;  /* 0 */
	void *user;         /* for both functions */
	/* Where `length` bytes are now that were at `addr`: whole ranges of registered memory, before any region is made. What the image
	 * has of their bytes is copied there. NULL refuses. Without this function memory is where it was. */
	void *(*memory)(void *user, uint64_t addr, uint64_t length);
	/* Called for each object when all are there, in the order of the kinds and, within one, in that in which they were made. */
	void (*restored)(void *user, const struct vervain_object *object);
};

/* Makes the objects of an image, which `fd` stands before, in `context`: that which was saved, which has stood still since and has none
 * of them any more, or another one, in another process of this user on this host say. QP numbers, SRQ numbers, keys and PSNs are what
 * they were, and each queue holds what it held; the addresses of regions are those of users of their keys, so memory may have moved.
 * The context is stopped from then on: vervain_go has it, and the peers that wait, go on. What a message by memory had moved when the
 * context was stopped is moved again.
 *
 * `attr` may be NULL. EACCES as for vervain_save; EBADMSG for what is no image or a damaged one; EPROTO for an image of another version;
 * EADDRINUSE if another process has the numbers of the QPs, with its name, and EEXIST if this one has; ESTALE if a peer says that the
 * process has gone on since it was saved, or was restored before; EINVAL for what no device holds; ENOMEM. If it fails, no object is left,
 * and the context is stopped if it was. */
int vervain_restore(struct ibv_context *context, int fd, const struct vervain_restore_attr *attr);

#ifdef __cplusplus
}
#endif

#endif
