/* The part of MPI that the kernels of tests/apps use, over PM: point-to-point messages, some collective operations, derived types,
 * Cartesian grids. A message goes at once, in parts of the MTU, whether or not anybody receives it; what nobody has asked for waits in
 * memory here. While there is no room to send, what comes is taken in, so that two that send to each other go on. Not for threads.
 * Arguments are those of the standard (MPI 3.1), of which it keeps no other rule. */
#ifndef MPI_OVER_PM_H
#define MPI_OVER_PM_H

#include <pm.h>

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- Programs ---- */

_Noreturn static inline void mpi_die(const char *what, int said)
{
	fprintf(stderr, "rank %d: %s: %s\n", score_self_node, what, said && pmErrorString() ? pmErrorString() : strerror(said));
	exit(2); /* the launcher ends the others */
}

static inline void *mpi_room(size_t bytes)
{
	void *p = malloc(bytes ? bytes : 1);
	if (!p)
		mpi_die("no memory", ENOMEM);
	return p;
}

static inline int MPI_Init(int *argc, char ***argv)
{
	score_initialize(*argc, *argv);
	return 0;
}

/* The context is closed by all ranks when they end. */
static inline int MPI_Finalize(void)
{
	return 0;
}

static inline double MPI_Wtime(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* ---- Types: runs of bytes, and how far apart two elements begin ---- */

typedef struct mpi_type {
	size_t extent, size;
	size_t runs;
	struct mpi_run {
		size_t at, len;
	} *run;
} *MPI_Datatype;

/* A program need not use all of these. */
#define MPI_UNUSED __attribute__((unused))
static struct mpi_run mpi_run4 = { 0, 4 }, mpi_run8 = { 0, 8 };
MPI_UNUSED static struct mpi_type mpi_int = { 4, 4, 1, &mpi_run4 }, mpi_float = { 4, 4, 1, &mpi_run4 };
MPI_UNUSED static struct mpi_type mpi_double = { 8, 8, 1, &mpi_run8 }, mpi_uint64 = { 8, 8, 1, &mpi_run8 };
#define MPI_INT (&mpi_int)
#define MPI_FLOAT (&mpi_float)
#define MPI_DOUBLE (&mpi_double)
#define MPI_UINT64_T (&mpi_uint64)
enum { MPI_ORDER_C };

/* So many runs, to be filled in. */
static inline MPI_Datatype mpi_type_new(size_t runs, size_t extent)
{
	MPI_Datatype type = mpi_room(sizeof *type);
	*type = (struct mpi_type){ .extent = extent, .runs = runs, .run = mpi_room(runs * sizeof *type->run) };
	return type;
}

/* Of old types without gaps. */
static inline int MPI_Type_vector(int count, int length, int stride, MPI_Datatype old, MPI_Datatype *type)
{
	*type = mpi_type_new((size_t)count, ((size_t)(count - 1) * (size_t)stride + (size_t)length) * old->extent);
	for (size_t i = 0; i < (size_t)count; i++)
		(*type)->run[i] = (struct mpi_run){ i * (size_t)stride * old->extent, (size_t)length * old->extent };
	(*type)->size = (size_t)count * (size_t)length * old->size;
	return 0;
}

static inline int MPI_Type_contiguous(int count, MPI_Datatype old, MPI_Datatype *type)
{
	return MPI_Type_vector(1, count, count, old, type);
}

static inline int MPI_Type_create_subarray(int dims, const int *sizes, const int *subsizes, const int *starts, int order,
					   MPI_Datatype old, MPI_Datatype *type)
{
	(void)order;
	size_t runs = 1, whole = old->extent, index[8] = { 0 };
	for (int d = 0; d < dims; d++) {
		whole *= (size_t)sizes[d];
		runs *= d < dims - 1 ? (size_t)subsizes[d] : 1;
	}
	*type = mpi_type_new(runs, whole);
	size_t len = (size_t)subsizes[dims - 1] * old->extent;
	for (size_t n = 0; n < runs; n++) {
		size_t at = 0;
		for (int d = 0; d < dims; d++)
			at = at * (size_t)sizes[d] + (size_t)starts[d] + index[d];
		(*type)->run[n] = (struct mpi_run){ at * old->extent, len };
		for (int d = dims - 2; d >= 0 && ++index[d] == (size_t)subsizes[d]; d--)
			index[d] = 0;
	}
	(*type)->size = runs * len;
	return 0;
}

static inline int MPI_Type_commit(MPI_Datatype *type)
{
	(void)type;
	return 0;
}

static inline int MPI_Type_free(MPI_Datatype *type)
{
	free((*type)->run);
	free(*type);
	*type = NULL;
	return 0;
}

/* Between `count` elements at `memory` and the bytes of a message. */
static inline void mpi_pack(char *memory, int count, MPI_Datatype type, char *bytes, int to_bytes)
{
	for (int i = 0; i < count; i++, memory += type->extent)
		for (size_t n = 0; n < type->runs; n++) {
			char *place = memory + type->run[n].at;
			memcpy(to_bytes ? bytes : place, to_bytes ? place : bytes, type->run[n].len);
			bytes += type->run[n].len;
		}
}

/* ---- Communicators: all ranks, or this one; or a grid of either ---- */

typedef struct mpi_comm {
	int number; /* the same at all its ranks */
	int is_self;
	int dims, size[2];
} *MPI_Comm;

MPI_UNUSED static struct mpi_comm mpi_world = { .number = 0 }, mpi_self = { .is_self = 1 };
#define MPI_COMM_WORLD (&mpi_world)
#define MPI_COMM_SELF (&mpi_self)
#define MPI_PROC_NULL (-1)

_Noreturn static inline void MPI_Abort(MPI_Comm comm, int status)
{
	(void)comm;
	exit(status);
}

static inline int mpi_ranks(MPI_Comm comm)
{
	return comm->is_self ? 1 : score_num_node;
}

static inline int mpi_rank(MPI_Comm comm)
{
	return comm->is_self ? 0 : score_self_node;
}

static inline int MPI_Comm_size(MPI_Comm comm, int *size)
{
	*size = mpi_ranks(comm);
	return 0;
}

static inline int MPI_Comm_rank(MPI_Comm comm, int *rank)
{
	*rank = mpi_rank(comm);
	return 0;
}

/* Two dimensions, as even as can be, the first not smaller. */
static inline int MPI_Dims_create(int ranks, int dims, int *size)
{
	(void)dims;
	for (int small = 1; small * small <= ranks; small++)
		if (ranks % small == 0) {
			size[0] = ranks / small;
			size[1] = small;
		}
	return 0;
}

/* All ranks of `comm` call it as often; ranks keep their numbers. */
static inline int MPI_Cart_create(MPI_Comm comm, int dims, const int *size, const int *periods, int reorder, MPI_Comm *grid)
{
	static int numbers;
	(void)periods;
	(void)reorder;
	*grid = mpi_room(sizeof **grid);
	**grid = (struct mpi_comm){ .is_self = comm->is_self, .dims = dims, .size = { size[0], size[1] } };
	(*grid)->number = comm->is_self ? 0 : ++numbers;
	return 0;
}

static inline int MPI_Comm_free(MPI_Comm *comm)
{
	free(*comm);
	*comm = NULL;
	return 0;
}

static inline int MPI_Cart_coords(MPI_Comm grid, int rank, int dims, int *where)
{
	(void)dims;
	where[0] = rank / grid->size[1];
	where[1] = rank % grid->size[1];
	return 0;
}

static inline int MPI_Cart_shift(MPI_Comm grid, int dim, int by, int *from, int *to)
{
	int where[2];
	MPI_Cart_coords(grid, mpi_rank(grid), 2, where);
	int step = dim == 0 ? grid->size[1] : 1;
	*from = where[dim] - by >= 0 ? mpi_rank(grid) - by * step : MPI_PROC_NULL;
	*to = where[dim] + by < grid->size[dim] ? mpi_rank(grid) + by * step : MPI_PROC_NULL;
	return 0;
}

/* ---- Messages ---- */

/* Before the bytes of each part. The parts of a message follow each other: nothing goes to the same rank between them. */
struct mpi_head {
	int32_t comm, tag;
	uint64_t len, at;
};

/* A message that nobody has asked for yet, or not all of which has come. */
struct mpi_message {
	struct mpi_message *next;
	struct mpi_head head;
	size_t come;
	int from;
	char bytes[];
};

static struct mpi_message *mpi_come, **mpi_last = &mpi_come;

/* Takes in what has come, if anything. */
static inline void mpi_take_in(void)
{
	caddr_t buffer;
	size_t len;
	int from, said = pmReceive(score_pmnet[0], &buffer, &len);
	if (said == ENOBUFS)
		return;
	if (said)
		mpi_die("pmReceive", said);
	if ((said = pmGetSender(score_pmnet[0], &from)))
		mpi_die("pmGetSender", said);
	struct mpi_head head;
	memcpy(&head, buffer, sizeof head);
	struct mpi_message *message = mpi_come;
	while (head.at && message && !(message->from == from && message->come < message->head.len))
		message = message->next;
	if (head.at == 0) {
		message = mpi_room(sizeof *message + head.len);
		*message = (struct mpi_message){ .head = head, .from = from };
		*mpi_last = message;
		mpi_last = &message->next;
	} else if (!message || message->come != head.at || message->head.tag != head.tag || message->head.comm != head.comm)
		mpi_die("a part of a message came that does not follow the one before", EPROTO);
	len -= sizeof head;
	memcpy(message->bytes + message->come, buffer + sizeof head, len);
	message->come += len;
	if ((said = pmReleaseReceiveBuffer(score_pmnet[0])))
		mpi_die("pmReleaseReceiveBuffer", said);
}

static inline void mpi_send_bytes(const char *bytes, size_t len, int to, int tag, MPI_Comm comm)
{
	size_t mtu, at = 0;
	int said = pmGetMtu(score_pmnet[0], to, &mtu);
	if (said)
		mpi_die("pmGetMtu", said);
	do {
		struct mpi_head head = { comm->number, tag, len, at };
		size_t part = len - at < mtu - sizeof head ? len - at : mtu - sizeof head;
		caddr_t buffer;
		while ((said = pmGetSendBuffer(score_pmnet[0], to, &buffer, sizeof head + part)) == ENOBUFS)
			mpi_take_in();
		if (said)
			mpi_die("pmGetSendBuffer", said);
		memcpy(buffer, &head, sizeof head);
		memcpy(buffer + sizeof head, bytes + at, part);
		if ((said = pmSend(score_pmnet[0])))
			mpi_die("pmSend", said);
		at += part;
	} while (at < len);
}

/* The next message of that rank, tag and communicator; to be freed. */
static inline struct mpi_message *mpi_receive_message(int from, int tag, MPI_Comm comm)
{
	for (;; mpi_take_in()) {
		struct mpi_message **at = &mpi_come;
		while (*at && !((*at)->from == from && (*at)->head.tag == tag && (*at)->head.comm == comm->number))
			at = &(*at)->next;
		struct mpi_message *message = *at;
		if (!message || message->come < message->head.len)
			continue;
		*at = message->next;
		if (!message->next)
			mpi_last = at;
		return message;
	}
}

/* Where this rank is alone, it is the only one that it sends to. */
static inline int mpi_node(MPI_Comm comm, int rank)
{
	return comm->is_self ? score_self_node : rank;
}

static inline int MPI_Send(const void *memory, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm)
{
	if (to == MPI_PROC_NULL)
		return 0;
	size_t len = (size_t)count * type->size;
	char *bytes = mpi_room(len);
	mpi_pack((char *)(uintptr_t)memory, count, type, bytes, 1);
	mpi_send_bytes(bytes, len, mpi_node(comm, to), tag, comm);
	free(bytes);
	return 0;
}

#define MPI_STATUS_IGNORE NULL
#define MPI_STATUSES_IGNORE NULL

static inline int MPI_Recv(void *memory, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, void *status)
{
	(void)status;
	if (from == MPI_PROC_NULL)
		return 0;
	struct mpi_message *message = mpi_receive_message(mpi_node(comm, from), tag, comm);
	if (message->head.len != (size_t)count * type->size)
		mpi_die("a message has another length than its receive", EMSGSIZE);
	mpi_pack(memory, count, type, message->bytes, 0);
	free(message);
	return 0;
}

/* A receive, or nothing where it was a send. */
typedef struct mpi_request {
	void *memory;
	int count, from, tag;
	MPI_Datatype type;
	MPI_Comm comm;
} MPI_Request;

static inline int MPI_Isend(const void *memory, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request)
{
	*request = (MPI_Request){ .from = MPI_PROC_NULL };
	return MPI_Send(memory, count, type, to, tag, comm);
}

static inline int MPI_Irecv(void *memory, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *request)
{
	*request = (MPI_Request){ memory, count, from, tag, type, comm };
	return 0;
}

static inline int MPI_Waitall(int count, MPI_Request *requests, void *statuses)
{
	for (MPI_Request *r = requests; r < requests + count; r++)
		MPI_Recv(r->memory, r->count, r->type, r->from, r->tag, r->comm, statuses);
	return 0;
}

/* ---- Collective operations: rank 0 gathers and tells ---- */

enum { MPI_ALL_TO_ALL = -1, MPI_GATHERED = -2, MPI_TOLD = -3, MPI_SCANNED = -4 };

typedef enum { MPI_SUM, MPI_MAX, MPI_LAND } MPI_Op;

static inline void mpi_reduce(void *into, const void *from, int count, MPI_Datatype type, MPI_Op op)
{
	for (int i = 0; i < count; i++)
		if (type == MPI_DOUBLE) {
			double *a = (double *)into + i, b = ((const double *)from)[i];
			*a = op == MPI_SUM ? *a + b : *a > b ? *a : b;
		} else if (type == MPI_UINT64_T) {
			uint64_t *a = (uint64_t *)into + i, b = ((const uint64_t *)from)[i];
			*a = op == MPI_SUM ? *a + b : *a > b ? *a : b;
		} else {
			int *a = (int *)into + i, b = ((const int *)from)[i];
			*a = op == MPI_SUM ? *a + b : op == MPI_LAND ? *a && b : *a > b ? *a : b;
		}
}

static inline int MPI_Alltoallv(const void *from, const int *counts, const int *places, MPI_Datatype type, void *to,
				const int *to_counts, const int *to_places, MPI_Datatype to_type, MPI_Comm comm)
{
	int ranks = mpi_ranks(comm), rank = mpi_rank(comm);
	/* Each begins with another one. */
	for (int n = 0; n < ranks; n++) {
		int with = (rank + n) % ranks;
		MPI_Send((const char *)from + (size_t)places[with] * type->extent, counts[with], type, with, MPI_ALL_TO_ALL, comm);
	}
	for (int n = 0; n < ranks; n++) {
		int with = (rank + ranks - n) % ranks;
		MPI_Recv((char *)to + (size_t)to_places[with] * to_type->extent, to_counts[with], to_type, with, MPI_ALL_TO_ALL, comm,
			 MPI_STATUS_IGNORE);
	}
	return 0;
}

static inline int MPI_Alltoall(const void *from, int count, MPI_Datatype type, void *to, int to_count, MPI_Datatype to_type,
			       MPI_Comm comm)
{
	int ranks = mpi_ranks(comm), *lists = mpi_room(4 * (size_t)ranks * sizeof *lists);
	for (int i = 0; i < ranks; i++) {
		lists[i] = count;
		lists[ranks + i] = i * count;
		lists[2 * ranks + i] = to_count;
		lists[3 * ranks + i] = i * to_count;
	}
	MPI_Alltoallv(from, lists, lists + ranks, type, to, lists + 2 * ranks, lists + 3 * ranks, to_type, comm);
	free(lists);
	return 0;
}

static inline int MPI_Gatherv(const void *from, int count, MPI_Datatype type, void *to, const int *counts, const int *places,
			      MPI_Datatype to_type, int root, MPI_Comm comm)
{
	MPI_Send(from, count, type, root, MPI_GATHERED, comm);
	for (int i = 0; i < mpi_ranks(comm) && mpi_rank(comm) == root; i++)
		MPI_Recv((char *)to + (size_t)places[i] * to_type->extent, counts[i], to_type, i, MPI_GATHERED, comm, MPI_STATUS_IGNORE);
	return 0;
}

static inline int MPI_Gather(const void *from, int count, MPI_Datatype type, void *to, int to_count, MPI_Datatype to_type,
			     int root, MPI_Comm comm)
{
	int ranks = mpi_ranks(comm), *lists = mpi_room(2 * (size_t)ranks * sizeof *lists);
	for (int i = 0; i < ranks; i++) {
		lists[i] = to_count;
		lists[ranks + i] = i * to_count;
	}
	MPI_Gatherv(from, count, type, to, lists, lists + ranks, to_type, root, comm);
	free(lists);
	return 0;
}

static inline int MPI_Allreduce(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
	int ranks = mpi_ranks(comm);
	memmove(to, from, (size_t)count * type->size);
	if (mpi_rank(comm) != 0) {
		MPI_Send(from, count, type, 0, MPI_GATHERED, comm);
		return MPI_Recv(to, count, type, 0, MPI_TOLD, comm, MPI_STATUS_IGNORE);
	}
	void *one = mpi_room((size_t)count * type->size);
	for (int i = 1; i < ranks; i++) {
		MPI_Recv(one, count, type, i, MPI_GATHERED, comm, MPI_STATUS_IGNORE);
		mpi_reduce(to, one, count, type, op);
	}
	for (int i = 1; i < ranks; i++)
		MPI_Send(to, count, type, i, MPI_TOLD, comm);
	free(one);
	return 0;
}

/* At rank 0 `to` stays as it is. */
static inline int MPI_Exscan(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
	int rank = mpi_rank(comm);
	size_t len = (size_t)count * type->size;
	void *next = mpi_room(len);
	memcpy(next, from, len);
	if (rank > 0) {
		MPI_Recv(to, count, type, rank - 1, MPI_SCANNED, comm, MPI_STATUS_IGNORE);
		mpi_reduce(next, to, count, type, op);
	}
	if (rank + 1 < mpi_ranks(comm))
		MPI_Send(next, count, type, rank + 1, MPI_SCANNED, comm);
	free(next);
	return 0;
}

static inline int MPI_Barrier(MPI_Comm comm)
{
	int all = 1, one = 1;
	return MPI_Allreduce(&one, &all, 1, MPI_INT, MPI_LAND, comm);
}

#endif
