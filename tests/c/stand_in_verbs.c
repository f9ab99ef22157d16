/* A stand-in between a program and its libibverbs, for what Vervain's device does not have: memory that is registered as
 * a dma-buf. The "buffer" is a file in memory, which is mapped where its memory is said to be and registered there. What
 * is deregistered is a line in the file STAND_IN_LOG, among those of the stand-in for CUDA. Everything else is the
 * library's own, to which this one is linked. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#undef ibv_reg_mr

static void say(const char *what, uint64_t number)
{
	const char *path = getenv("STAND_IN_LOG");
	int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
	dprintf(fd, "%d %s %llu\n", getpid(), what, (unsigned long long)number);
	close(fd);
}

static void *library(const char *name)
{
	return dlsym(dlopen("libibverbs.so.1", RTLD_LAZY), name);
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
	int flags = MAP_SHARED | MAP_FIXED_NOREPLACE;
	if (mmap((void *)iova, length, PROT_READ | PROT_WRITE, flags, fd, (off_t)offset) != (void *)iova) {
		errno = EINVAL;
		return NULL;
	}
	say("register as a dma-buf from", offset);
	return ibv_reg_mr(pd, (void *)iova, length, access);
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	int (*dereg)(struct ibv_mr *) = (int (*)(struct ibv_mr *))library("ibv_dereg_mr");
	size_t length = mr->length;
	int rc = dereg(mr);
	say("deregister", length);
	return rc;
}
