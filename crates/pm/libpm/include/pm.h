/* PM, the messages of SCore's cluster system: the C interface of libpm.
 *
 * The processes of a parallel job are the nodes of a context, numbered from 0. A process sends messages of up to 8 KiB to any node, in
 * buffers of the context's; they arrive in the order in which they were sent to that node. It reads and writes memory of other nodes that
 * these have locked. Receive buffers are shared by all who send, so memory does not grow with the number of nodes.
 *
 * The interface is PMv2 as its manual pages and Sumimoto et al., PM/InfiniBand-FJ (2004), describe it. What is known of it by name only
 * has a signature here in its style; what it does not have is marked as an extension.
 *
 * Functions return PM_SUCCESS or an errno value, and then have done nothing. Nothing waits but pmOpenContext, pmAttachContext,
 * pmCloseContext, pmDetachContext, pmSaveContext, pmRestoreContext, pmCheckpoint, pmCheckpointIfAsked where one is asked for,
 * pmRestartUser and score_initialize: ENOBUFS and EBUSY say that the same call may succeed later. All functions can also return EINVAL for
 * a null pointer, EIO where the device or the launcher has failed, and EIO in a child made by fork(2). pmErrorString has a sentence.
 *
 * For C11 and later and C++17 and later. Functions may be called by several threads at once, except those that close what others use.
 * Between pmGetSendBuffer and pmSend, and between pmReceive and pmReleaseReceiveBuffer, a context has one buffer out: threads that share
 * one agree on who has it.
 */
#ifndef PM_H
#define PM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As in sys/types.h, which has it in some modes of the compiler only. */
typedef char *caddr_t;

#define PM_SUCCESS 0
#define PM_NODE_ANY (-1) /* any node: for pmMLock and pmMUnlock */

typedef struct pmDevice pmDevice;
typedef struct pmContext pmContext;

/* Names a byte of locked memory to any node. A handle and a number of bytes make the handle of a byte further on. */
typedef uint64_t pmAddrHandle;

/* ---- Devices and contexts ---- */

/* Finds a device of a type: "ib", also called "vervain" and NULL, is an RDMA device; "composite" is for contexts that are put together
 * of others. The arguments are options, each with a value behind it: -device NAME (the first usable one otherwise), -mtu BYTES and
 * -inline BYTES (see pmSend); a composite device has none. They count before the environment's PM_DEVICE, PM_MTU and PM_INLINE.
 * ENODEV: there is no such type or device. EINVAL: an option or a variable that cannot be. */
int pmOpenDevice(char *type, int argc, char **argv, pmDevice **pmdp);

/* Closes a device. With the last one this process leaves its job, and can open no context any more. EBUSY: a context is open. */
int pmCloseDevice(pmDevice *pmd); /* extension */

/* Opens a context. All processes of the job call it, for as many contexts and in the same order, and it returns once all have; the first
 * one joins the job. Without a launcher the job is this process alone. A composite context is this process's own affair, and
 * has no nodes at first. EIO: no launcher that can be spoken to, or nodes have different settings. ENOMEM. */
int pmOpenContext(pmDevice *pmd, pmContext **pmcp);

/* Waits until all messages that were sent are with their nodes and all processes have come here, and closes the context. What has come
 * and was not received is dropped. Where a node was lost, the others are not waited for. EBUSY: it is a member of a composite
 * context; otherwise it is closed in any case. */
int pmCloseContext(pmContext *pmc);

/* Opens a device of a type, as pmOpenDevice without arguments, and a context on it. `fd` is -1: the job's context. ENODEV. EINVAL:
 * another descriptor. EIO and ENOMEM as pmOpenContext. */
int pmAttachContext(char *type, int fd, pmContext **pmcp);

/* Closes a context as pmCloseContext, and the device if pmAttachContext has opened it. */
int pmDetachContext(pmContext *pmc);

/* The number of nodes; of a composite context one more than the highest node that was added. */
int pmGetNodeCount(pmContext *pmc, int *nodesp); /* extension */

/* This process's node. EINVAL: it is none of a composite context. */
int pmGetSelf(pmContext *pmc, int *selfp); /* extension */

/* The longest message to a node, in bytes: 8192 unless the job says otherwise. EINVAL: there is no such node. */
int pmGetMtu(pmContext *pmc, int node, size_t *mtup);

/* Has a composite context reach `node` by `member`, where it has the same number. A node that was another member's is that no more.
 * Each process says so for itself; two nodes reach each other by the same member, or pmReceive drops what comes with EIO. EINVAL: `pmc`
 * is not composite, or `member` is, or has no such node. */
int pmAddNode(pmContext *pmc, int node, pmContext *member);

/* As pmAddNode for `n` nodes at once, under other numbers: nodes[i] of the composite context is node i of `member`. */
int pmAssociateNodes(pmContext *pmc, int n, const int *nodes, pmContext *member);

/* ---- Messages ---- */

/* A buffer of `len` bytes, 1 to the MTU, for a message to node `dest`, which may be the own one. The caller fills it and calls pmSend.
 * EINVAL: there is no such node, or no message of this length. ENOBUFS: no buffer is free, too much is under way to that node, or it is
 * not connected yet; the caller goes on receiving and tries again. EBUSY: another buffer was taken and not sent. EPIPE: the
 * node is lost. */
int pmGetSendBuffer(pmContext *pmc, int dest, caddr_t *bufp, size_t len);

/* Sends the buffer, which is the context's again. Up to PM_INLINE bytes go inside the work request. EINVAL: none was taken.
 * EPIPE: the node is lost, and the message with it. ENOBUFS: sending is stopped, and the buffer is still the caller's. */
int pmSend(pmContext *pmc);

/* Whether all messages that were sent are with their nodes, in receive buffers there. EBUSY: not yet. */
int pmIsSendDone(pmContext *pmc);

/* The next message: its bytes and their number. They are the caller's, to be written to as well, until pmReleaseReceiveBuffer. ENOBUFS:
 * none has come. EBUSY: the one before was not released. EPIPE: a node was lost, which is told once for each, when what had come was
 * received; the context goes on. A node that dies is noticed by those who have sent something to it. */
int pmReceive(pmContext *pmc, caddr_t *bufp, size_t *lenp);

/* The node that has sent the message which was received last and not released. EIO: there is none. */
int pmGetSender(pmContext *pmc, int *nodep); /* extension */

/* Gives the buffer of the message that was received last back. Those who send wait for buffers. EIO: there is none. */
int pmReleaseReceiveBuffer(pmContext *pmc);

/* ---- Memory of other nodes ---- */

/* Locks `len` bytes at `addr`, which stay mapped until they are unlocked: `rmt_node`, or any node for PM_NODE_ANY, may read and write them
 * once it was told the handle, and they can be the local side of this node's pmWrite and pmRead. The handle is the one for all nodes;
 * devices do not tell them apart. Memory may be locked more than once. EINVAL: there is no such node or no such memory, of 1 byte to 4 GiB
 * less a page. ENOSPC: the device can lock no more. A composite context locks for one node at a time. */
int pmMLock(pmContext *pmc, int rmt_node, caddr_t addr, size_t len, pmAddrHandle *hndlp);

/* Takes back one lock of the same node, address and length. With the last one of that memory its handles have lost their meaning. Where a
 * pmWrite or pmRead of this node's uses it, that is put off until it is over, and the memory stays mapped until then. ENOENT: there
 * is no such lock. */
int pmMUnlock(pmContext *pmc, int rmt_node, caddr_t addr, size_t len);

/* Begins to write `len` bytes, 1 to 1 GiB, from `local`, which is memory locked here, to `rmt`, which is memory that `rmt_node` has
 * locked. Writes to a node are carried out in order; messages may overtake them, so that who tells the node of the data waits for
 * pmIsWriteDone first. EINVAL: there is no such node, or `local` or a byte behind it is not locked here. ENOBUFS: too many are under way,
 * or the node is not connected yet. EPIPE: the node is lost, or has refused an earlier pmWrite or pmRead. */
int pmWrite(pmContext *pmc, int rmt_node, pmAddrHandle rmt, pmAddrHandle local, size_t len);

/* Begins to read `len` bytes from `rmt` to `local`, otherwise as pmWrite. */
int pmRead(pmContext *pmc, int rmt_node, pmAddrHandle rmt, pmAddrHandle local, size_t len);

/* Whether all writes are over, and the bytes in the nodes' memory. EBUSY: not yet. EFAULT, once: a node has refused one, since the memory
 * is not locked there; pmWrite and pmRead to that node return EPIPE then, while messages go on. EPIPE, once: one has failed with
 * its connection. */
int pmIsWriteDone(pmContext *pmc);

/* Whether all reads are over, and the bytes in this node's memory; otherwise as pmIsWriteDone. */
int pmIsReadDone(pmContext *pmc);

/* ---- Sleeping ---- */

/* Prepares for a sleep in select(2), poll(2) or epoll(7): the descriptor of pmGetFd is readable once something has happened that the
 * caller has not seen: a message, room to send, the end of a pmWrite. EBUSY: something has happened already, so that the caller
 * tries again rather than sleep. */
int pmBeforeSelect(pmContext *pmc);

/* The descriptors to sleep on. `*nfdp` says how many `fd` has room for, then how many there are: 1. EINVAL: no room. */
int pmGetFd(pmContext *pmc, int *fd, int *nfdp);

/* Ends what pmBeforeSelect has begun: the descriptor is not readable until the next one, unless by a message that comes meanwhile. The
 * sleeper may have been woken for nothing. */
int pmAfterSelect(pmContext *pmc);

/* ---- Standing still, saving and restoring ---- */

/* Stops all sending of the context with 0, and has it go on otherwise. While it is stopped, pmGetSendBuffer, pmSend, pmWrite and pmRead
 * return ENOBUFS; what was sent before goes on, and messages are received. */
int pmControlSend(pmContext *pmc, int on);

/* Stops all sending too, and has the context keep what comes, however much that is, so that others that do the same need not wait until
 * this node receives it; pmReceive gives it out as ever. Both until pmControlSend lets sending go on. */
int pmSendStable(pmContext *pmc);

/* Whether nothing of this node's is under way any more: messages are in receive buffers of their nodes, writes and reads are over.
 * EBUSY: not yet. EINVAL: sending is not stopped. */
int pmIsSendStable(pmContext *pmc);

/* Writes the context to a file, in the place of what that has: the messages that have come and were not received, how many were sent and
 * received, which memory is locked, the MTU and the nodes. All nodes call it when their sending is stopped, by pmControlSend or
 * pmSendStable; it returns once all have, and sending is stopped until pmControlSend. Then the images of all nodes are of one moment: each
 * message was received, or stands in the image of its receiver or sender. Where all devices can stand still, as Vervain's do, nothing is
 * waited for: messages, writes and reads that are under way begin anew after a restore, and of writes and reads the program is not told
 * that they are over before sending goes on. Else they are waited for. `fd` is a regular file, or a memfd, of this user with mode 0600.
 * EACCES: it is none. EINVAL: sending is not stopped. EBUSY: a send buffer is out, or a message was not released. EPIPE: a node is lost.
 * ECANCELED: it has failed at another node. ENOSPC and others of write(2). A composite context: EINVAL, for its members are saved. */
int pmSaveContext(pmContext *pmc, int fd);

/* Makes the context what it was when the file was written, by this process or by the one of this number in an earlier job of as many. All
 * nodes call it, with files of one save. What was sent and has come since is forgotten; connections are made anew where there are
 * none. Memory that was locked at the save is to be locked now, at the same addresses, whatever its contents and handles; its handles
 * are then the ones of the save, for all nodes. Sending is stopped until pmControlSend.
 * EACCES: as above. EBADMSG: the file has no image, or one that is damaged. EPROTONOSUPPORT: one of another version of PM. EINVAL: one of
 * another node, number of nodes or MTU, or memory is not locked that was, or other memory has a handle of it. ESTALE: nodes have images of
 * different saves. EBUSY, EPIPE, ECANCELED as above. In all these cases the context is as it was. */
int pmRestoreContext(pmContext *pmc, int fd);

/* Makes a checkpoint of the context in the directory that PM_CHECKPOINT names, which nodes may share or not. All nodes call it. It
 * stops all sending and saves the context. Then it calls `callback`, if that is not NULL, with `arg` and the checkpoint's number, from
 * 1: the program saves its own data under that number, and calls no function of this context. Once all nodes have returned from it,
 * the checkpoint is whole and takes the place of the one before, at once, and sending goes on. EINVAL: PM_CHECKPOINT names no
 * directory. Otherwise as pmSaveContext, and what open(2) says; the checkpoint before is then still there. */
int pmCheckpoint(pmContext *pmc, void (*callback)(void *, int), void *arg);

/* Makes a checkpoint as pmCheckpoint, if somebody has asked for one from outside: `vervain checkpoint`, of a job that `vervain job run
 * --cooperative` has started. All nodes call it equally often, such as once in each step, and all make the checkpoint at the same of their
 * calls, the first that none has begun when it is asked for. Nothing is sent and nobody is waited for where none is asked for,
 * or where nobody can ask. pmGetCheckpoint tells whether there was one. What is in the directory when all nodes have saved is
 * moved away before they go on, and put back there at a restart. Calls of one context of a job count, and its callback
 * may make checkpoints of other contexts. EINVAL: the first call was another context's. Otherwise as pmCheckpoint. */
int pmCheckpointIfAsked(pmContext *pmc, void (*callback)(void *, int), void *arg); /* extension */

/* Makes the context what it was at the last whole checkpoint in the directory that PM_CHECKPOINT names, and lets sending go on. All nodes
 * call it, the same contexts in the same order as in the job that has made it. ENOENT: there is none; the job begins anew. Otherwise as
 * pmRestoreContext, and what open(2) says. */
int pmRestartUser(pmContext *pmc);

/* The number of the last whole checkpoint that was made, or restarted from. ENOENT: there was none. */
int pmGetCheckpoint(pmContext *pmc, int *numberp); /* extension */

/* ---- Errors ---- */

/* Why the last function that has failed in this thread did, in one sentence; NULL before any has. Good until the next call in this
 * thread. With PM_LOG=on in the environment these sentences are also printed on standard error, but for ENOBUFS and EBUSY. */
const char *pmErrorString(void); /* extension */

/* ---- SCore's variables ---- */

/* Joins the job, opens its context, and sets the variables below; the process ends with a sentence if that fails. All processes call it,
 * once. The arguments are those of main, and are left as they are. When the program ends with status 0, the context is closed as by
 * pmCloseContext; with another status the launcher ends the others. */
void score_initialize(int argc, char **argv);

/* Sleeps until something has come, for 10 ms at most. */
void score_become_idle(void);

extern int score_num_pmnet;       /* contexts: 1 */
extern pmContext **score_pmnet;   /* the contexts */
extern int score_num_host;        /* hosts of the job */
extern int score_self_host;       /* the number of this one */
extern int score_num_proc;        /* processes of the job */
extern int score_self_proc;       /* the number of this one */
extern int score_num_node;        /* nodes of the context: the processes */
extern int score_self_node;       /* the number of this one */

#ifdef __cplusplus
}
#endif

#endif
