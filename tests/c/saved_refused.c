/* What vervain_save and vervain_restore refuse (vervain.h), and that nothing has changed after it. */
#define _GNU_SOURCE
#include "vt_world.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static bool by_window(void)
{
	const char *link = getenv("VERVAIN_LINK");
	return link && !strcmp(link, "window");
}

/* A little of everything, and traffic that is not over. */
static void some_objects(void)
{
	open_world();
	w->channel = ibv_create_comp_channel(w->dev.ctx);
	KEEP(VERVAIN_COMP_CHANNEL, w->channel);
	make_cq(0, 16, w->channel);
	make_cq(1, 16, NULL);
	w->mw[0] = ibv_alloc_mw(w->pd, IBV_MW_TYPE_2);
	KEEP(VERVAIN_MW, w->mw[0]);
	make_qp(IBV_QPT_UD, 2, 0);
	vt_require(to_init(w->qp[2]) == 0 && to_rtr(w->qp[2], NULL, 0) == 0 && to_rts(w->qp[2], 1) == 0, "a UD QP");
	if (by_window())
		return;
	pair(IBV_QPT_RC, 0, 1, 0);
	receive(1, 1, 0, 100);
	receive(1, 2, 200, 100);
	vt_fill(w->buf + 30000, 100, 2);
	send_of(0, 3, 30000, 100, 0);
	completes(0, 3, IBV_WC_SUCCESS);
	completes(1, 1, IBV_WC_SUCCESS);
}

/* What is there goes on as if nothing had been. */
static void goes_on(void)
{
	go_on();
	if (!by_window()) {
		send_of(0, 5, 30000, 100, 0);
		completes(0, 5, IBV_WC_SUCCESS);
		completes(1, 2, IBV_WC_SUCCESS);
		works(0, 1, 0, 1);
	}
	world_end();
}

static int save_to(int fd, const struct vervain_save_attr *attr)
{
	return vt_vsave(w->dev.ctx, fd, attr);
}

static void expect(int rc, int expected, const char *what)
{
	vt_check(rc == expected, "%s: %s for %s", what, vt_errno_name(rc), vt_errno_name(expected));
}

static const char *const kinds[] = { "a file that others may read", "a pipe", "a device", "a folder", "a closed descriptor" };
static const int kind_errors[] = { EACCES, EINVAL, EINVAL, EINVAL, EBADF };

static char path[32];

/* Of the first kind until `path` is unlinked. */
static int kind_of_file(unsigned kind)
{
	int fds[2];
	switch (kind) {
	case 0:
		strcpy(path, "/tmp/vt-image-XXXXXX");
		fds[0] = mkstemp(path);
		vt_require(fds[0] >= 0 && fchmod(fds[0], 0644) == 0, "a file");
		return fds[0];
	case 1:
		vt_require(pipe(fds) == 0, "a pipe");
		close(fds[0]);
		return fds[1];
	case 2: return open("/dev/null", O_RDWR | O_CLOEXEC);
	case 3: return open("/tmp", O_RDONLY | O_CLOEXEC);
	default: return 999;
	}
}

static void save(void)
{
	struct vervain_save_attr attr = { .comp_mask = 1 };
	world_new();
	some_objects();
	int fd = vt_image();
	expect(save_to(fd, NULL), EBUSY, "a context that is not stopped");
	halt();
	expect(vt_vsave(NULL, fd, NULL), EINVAL, "no context");
	expect(save_to(fd, &attr), EINVAL, "an unknown attribute");
	attr = (struct vervain_save_attr){ .flags = 2 };
	expect(save_to(fd, &attr), EINVAL, "an unknown flag");
	attr = (struct vervain_save_attr){ .reserved = 1 };
	expect(save_to(fd, &attr), EINVAL, "what is reserved");
	vt_check(lseek(fd, 0, SEEK_END) == 0, "something was written");
	for (unsigned i = 0; i < VT_ARRAY(kinds); i++) {
		int other = kind_of_file(i);
		expect(save_to(other, NULL), kind_errors[i], kinds[i]);
		close(other);
	}
	unlink(path);
	char name[64];
	snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
	int read_only = open(name, O_RDONLY | O_CLOEXEC);
	vt_require(read_only >= 0, "opening a memfd once more");
	expect(save_to(read_only, NULL), EBADF, "a file that may only be read");
	close(read_only);
	/* Not all of it can be written; that is an error, not the end of the program by SIGXFSZ. */
	struct rlimit before, little = { 100, RLIM_INFINITY };
	vt_require(getrlimit(RLIMIT_FSIZE, &before) == 0, "limits");
	little.rlim_max = before.rlim_max;
	int file = kind_of_file(0);
	vt_require(fchmod(file, 0600) == 0 && unlink(path) == 0 && setrlimit(RLIMIT_FSIZE, &little) == 0, "a limit");
	expect(save_to(file, NULL), EFBIG, "a file that may not be so long");
	vt_require(setrlimit(RLIMIT_FSIZE, &before) == 0, "limits");
	close(file);
	/* Registered memory that is gone. */
	void *p = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr = ibv_reg_mr(w->pd, p, 8192, IBV_ACCESS_LOCAL_WRITE);
	vt_require(mr && munmap((char *)p + 4096, 4096) == 0, "a region");
	attr = (struct vervain_save_attr){ .flags = VERVAIN_SAVE_MEMORY };
	expect(save_to(fd, &attr), EFAULT, "memory that is not there");
	vt_check(ibv_dereg_mr(mr) == 0, "deregistering");
	munmap(p, 4096);
	expect(save_to(fd, NULL), 0, "saving after all");
	close(fd);
	goes_on();
}

static void *no_memory(void *user, uint64_t addr, uint64_t length)
{
	(void)user;
	(void)addr;
	(void)length;
	return NULL;
}

static void *not_there(void *user, uint64_t addr, uint64_t length)
{
	(void)addr;
	(void)length;
	return user;
}

static int restore(int fd)
{
	vt_rewind(fd);
	return vt_vrestore(w->dev.ctx, fd, NULL);
}

static void restores(void)
{
	struct vervain_save_attr with_memory = { .flags = VERVAIN_SAVE_MEMORY };
	struct vervain_restore_attr attr = { .comp_mask = 1 };
	world_new();
	some_objects();
	halt();
	int fd = vt_image(), bare = vt_image();
	vt_note_all(&w->things);
	expect(save_to(fd, &with_memory), 0, "saving");
	expect(save_to(bare, NULL), 0, "saving without memory");
	expect(restore(fd), EEXIST, "keys that are in use, in the context itself");
	vt_compare_all(&w->things);
	/* In another context, whose numbers these are not. */
	struct vt_dev other;
	vt_require(vt_open(&other), "opening the device once more");
	vt_rewind(fd);
	expect(vt_vrestore(other.ctx, fd, NULL), EEXIST, "keys that are in use");
	vt_check(vt_vgo(other.ctx) == EALREADY && ibv_close_device(other.ctx) == 0, "the other context is as it was");
	destroy_world();
	/* Another context, for one that was saved is void when it goes on. */
	vt_require(ibv_close_device(w->dev.ctx) == 0 && vt_open(&w->dev), "opening the device anew");

	expect(vt_vrestore(NULL, fd, NULL), EINVAL, "no context");
	expect(vt_vrestore(w->dev.ctx, fd, &attr), EINVAL, "an unknown attribute");
	attr = (struct vervain_restore_attr){ .reserved = 1 };
	expect(vt_vrestore(w->dev.ctx, fd, &attr), EINVAL, "what is reserved");
	for (unsigned i = 0; i < VT_ARRAY(kinds); i++) {
		int file = kind_of_file(i);
		expect(vt_vrestore(w->dev.ctx, file, NULL), kind_errors[i], kinds[i]);
		close(file);
	}
	unlink(path);
	int empty = vt_image();
	expect(restore(empty), EBADMSG, "an empty file");
	close(empty);

	/* Cut off, or with a byte that is another one. */
	off_t length = lseek(bare, 0, SEEK_END), all = lseek(fd, 0, SEEK_END);
	vt_require(length > 64 && all > BUF, "%lld bytes, and %lld", (long long)length, (long long)all);
	uint8_t *image = mmap(NULL, (size_t)all, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	int part = vt_image();
	vt_require(image != MAP_FAILED, "mapping");
	for (off_t n = 0; n < all; n += n < length ? 1 : 4095) {
		uint8_t was = image[n];
		image[n] ^= (uint8_t)(1u << (vt_random() % 8));
		int rc = restore(fd);
		image[n] = was;
		vt_require(rc == EBADMSG, "byte %lld was changed: %s", (long long)n, vt_errno_name(rc));
		vt_require(ftruncate(part, 0) == 0 && pwrite(part, image, (size_t)n, 0) == n, "a part");
		rc = restore(part);
		vt_require(rc == EBADMSG, "%lld bytes of it: %s", (long long)n, vt_errno_name(rc));
	}
	munmap(image, (size_t)all);
	close(part);

	attr = (struct vervain_restore_attr){ .memory = no_memory };
	for (int i = 0; i < 2; i++) {
		vt_rewind(i ? fd : bare);
		expect(vt_vrestore(w->dev.ctx, i ? fd : bare, &attr), ENOMEM, "memory that is refused");
	}
	attr = (struct vervain_restore_attr){ .memory = not_there, .user = (void *)4096 };
	vt_rewind(fd);
	expect(vt_vrestore(w->dev.ctx, fd, &attr), EFAULT, "bytes for memory that is not there");
	vt_rewind(bare);
	expect(vt_vrestore(w->dev.ctx, bare, &attr), EFAULT, "memory that is not there");
	attr.user = (void *)(UINTPTR_MAX - 4095);
	vt_rewind(bare);
	expect(vt_vrestore(w->dev.ctx, bare, &attr), ENOMEM, "memory that wraps");

	/* Nothing was left, and the context is as before. */
	vt_check(vt_vgo(w->dev.ctx) == EALREADY, "it is stopped");
	vt_rewind(fd);
	memset(w->buf, 0, BUF);
	expect(vt_restore_all(&w->things, w->dev.ctx, fd), 0, "restoring after all");
	vt_compare_all(&w->things);
	close(fd);
	close(bare);
	goes_on();
}

/* The name of a file without one is its descriptor: then its mode says nothing. An image may stand anywhere in a file. */
static void unlinked(void)
{
	world_new();
	some_objects();
	halt();
	int fd = kind_of_file(0);
	vt_require(unlink(path) == 0 && pwrite(fd, "before", 6, 0) == 6 && lseek(fd, 6, SEEK_SET) == 6, "a file");
	vt_note_all(&w->things);
	expect(save_to(fd, NULL), 0, "saving");
	vt_require(write(fd, "after", 5) == 5 && lseek(fd, 6, SEEK_SET) == 6, "a file");
	destroy_world();
	expect(vt_restore_all(&w->things, w->dev.ctx, fd), 0, "restoring");
	char after[6] = "";
	vt_check(read(fd, after, 5) == 5 && !strcmp(after, "after"), "it does not stand after the image: %s", after);
	close(fd);
	goes_on();
}

/* Too few descriptors, in a process that has none of the numbers yet: it is refused, or it is all there. */
static void with_few_descriptors(const struct pasts *p, int fd)
{
	(void)p;
	struct rlimit all;
	vt_require(vt_open(&w->dev) && getrlimit(RLIMIT_NOFILE, &all) == 0, "opening the device");
	int rc = EMFILE, next = dup(fd), refused = 0;
	close(next);
	for (int more = 0; rc != 0 && more < 100; more++, refused++) {
		struct rlimit few = { (rlim_t)(next + more), all.rlim_max };
		vt_require(setrlimit(RLIMIT_NOFILE, &few) == 0, "a limit");
		vt_rewind(fd);
		rc = vt_restore_all(&w->things, w->dev.ctx, fd);
		vt_require(rc == 0 || rc == EMFILE, "%d descriptors more: %s", more, vt_errno_name(rc));
	}
	vt_require(setrlimit(RLIMIT_NOFILE, &all) == 0, "limits");
	vt_check(rc == 0 && refused > 1, "refused %d times, and at last %s", refused, vt_errno_name(rc));
	vt_compare_all(&w->things);
	goes_on();
}

static void saved_there(const struct pasts *p, int fd)
{
	(void)p;
	some_objects();
	halt();
	vt_note_all(&w->things);
	expect(save_to(fd, NULL), 0, "saving");
}

static void descriptors(void)
{
	const char *link = getenv("VERVAIN_LINK");
	if (link && strcmp(link, "local"))
		vt_does_not_apply("sockets of other processes come into it");
	int fd = vt_image();
	world_new();
	vt_require(by_child(saved_there, NULL, fd) == 0, "the process that was saved");
	vt_require(by_child(with_few_descriptors, NULL, fd) == 0, "the process that was restored");
	close(fd);
}

static void windows_of_peers(void)
{
	if (!by_window())
		vt_does_not_apply("peers are not reached through a window");
	world_new();
	some_objects();
	pair(IBV_QPT_RC, 0, 1, 0);
	halt();
	int fd = vt_image();
	expect(save_to(fd, NULL), ENOTSUP, "a peer that is reached through a window");
	close(fd);
	go_on();
	works(0, 1, 0, 1);
	world_end();
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { { "save", save }, { "restores", restores }, { "unlinked", unlinked }, { "descriptors", descriptors }, { "windows_of_peers", windows_of_peers } };
	return vt_main(argc, argv, cases, VT_ARRAY(cases));
}
