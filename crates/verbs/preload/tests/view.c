// Every function that the preload stands before, on the paths that it shows and on paths that it must leave alone.
// Exit status 0, or a line on standard error for each expectation that failed and 1.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEV "/sys/class/infiniband/vervain0"
#define NODE "/dev/infiniband/uverbs0"

static int failures;

static void check_(int ok, const char *what, int line)
{
	if (!ok) {
		fprintf(stderr, "line %d: %s (errno %s)\n", line, what, strerror(errno));
		failures++;
	}
}
#define check(e) check_(!!(e), #e, __LINE__)

static void check_content(int fd)
{
	char text[64] = "";
	check(fd >= 0 && read(fd, text, sizeof(text) - 1) > 0 && !strcmp(text, "1: CA\n"));
	close(fd);
}

static void opening(volatile int flags)
{
	check_content(open(DEV "/node_type", O_RDONLY));
	check_content(open64(DEV "/node_type", O_RDONLY));
	check_content(openat(AT_FDCWD, DEV "/node_type", O_RDONLY));
	check_content(openat64(-1, DEV "/node_type", O_RDONLY));
	// Flags that the compiler cannot see make these the fortified variants.
	check_content(open(DEV "/node_type", flags));
	check_content(openat(AT_FDCWD, DEV "/node_type", flags));
	FILE *f = fopen(DEV "/node_type", "r"), *g = fopen64(DEV "/node_type", "r");
	check(f && g && fgetc(f) == '1' && fgetc(g) == '1');
	check(open(DEV "/nothing", O_RDONLY) == -1 && errno == ENOENT);
	int fd = open(NODE, O_RDWR | O_CLOEXEC);
	check(fd >= 0);
	close(fd);
	check(!access(NODE, R_OK | W_OK) && !eaccess(NODE, R_OK) && !euidaccess(NODE, R_OK));
	check(!faccessat(AT_FDCWD, DEV, R_OK, 0));
	check(access("/dev/infiniband0", F_OK) == -1 && errno == ENOENT);
	int here = open(".", O_RDONLY | O_DIRECTORY);
	check(!chdir(DEV));
	check_content(open("node_type", O_RDONLY));
	check(chdir(DEV "/nothing") == -1 && errno == ENOENT && !fchdir(here));
	close(here);
	// The mode of a new file still arrives.
	const char *name = "new-file";
	umask(0);
	fd = open(name, O_CREAT | O_EXCL | O_WRONLY, 0640);
	struct stat st;
	check(fd >= 0 && !fstat(fd, &st) && (st.st_mode & 0777) == 0640);
	unlink(name);
}

static void status(void)
{
	struct stat st;
	struct stat64 st64;
	struct statx stx;
	check(!stat(NODE, &st) && S_ISCHR(st.st_mode));
	check(!stat64(NODE, &st64) && S_ISCHR(st64.st_mode));
	check(!lstat(NODE, &st) && S_ISCHR(st.st_mode));
	check(!lstat64(NODE, &st64) && S_ISCHR(st64.st_mode));
	check(!fstatat(AT_FDCWD, NODE, &st, AT_SYMLINK_NOFOLLOW) && S_ISCHR(st.st_mode));
	check(!fstatat64(AT_FDCWD, NODE, &st64, 0) && S_ISCHR(st64.st_mode));
	check(!statx(AT_FDCWD, NODE, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &stx) && S_ISCHR(stx.stx_mode));
	check(!lstat(DEV, &st) && S_ISLNK(st.st_mode));
	check(!stat(DEV, &st) && S_ISDIR(st.st_mode));
	check(!stat("/sys", &st) && S_ISDIR(st.st_mode));
	check(stat("/sys/class/infiniband/mlx5_0", &st) == -1 && errno == ENOENT);
}

// What a program linked against a glibc before 2.33 calls. The linker offers these names no more.
#ifdef __aarch64__
#define OLDEST "GLIBC_2.17"
#define STAT_VERSION 0
#else
#define OLDEST "GLIBC_2.2.5"
#define STAT_VERSION 1
#endif
__asm__(".symver old_xstat, __xstat@" OLDEST);
__asm__(".symver old_lxstat64, __lxstat64@" OLDEST);
int old_xstat(int version, const char *path, struct stat *out);
int old_lxstat64(int version, const char *path, struct stat64 *out);

static void old_status(void)
{
	struct stat st;
	struct stat64 st64;
	check(!old_xstat(STAT_VERSION, NODE, &st) && S_ISCHR(st.st_mode));
	check(!old_xstat(STAT_VERSION, "/proc", &st) && S_ISDIR(st.st_mode));
	check(!old_lxstat64(STAT_VERSION, NODE, &st64) && S_ISCHR(st64.st_mode));
	check(!old_lxstat64(STAT_VERSION, DEV, &st64) && S_ISLNK(st64.st_mode));
}

static void links(void)
{
	static char buffer[PATH_MAX];
	memset(buffer, 0, sizeof(buffer));
	check(readlink(DEV, buffer, sizeof(buffer)) > 0);
	check(!strcmp(buffer, "../../devices/virtual/infiniband/vervain0"));
	check(readlinkat(AT_FDCWD, DEV, buffer, sizeof(buffer)) > 0);
	check(readlink(NODE, buffer, sizeof(buffer)) == -1 && errno == EINVAL);

	// Fortified: the compiler knows the size of the buffer.
	check(realpath(DEV, buffer) == buffer && !strcmp(buffer, "/sys/devices/virtual/infiniband/vervain0"));
	char *found = realpath(DEV "/ports/1/../..", NULL);
	check(found && !strcmp(found, "/sys/devices/virtual/infiniband/vervain0"));
	free(found);
	// Mooncake's way to the PCI device.
	found = realpath(DEV "/../..", NULL);
	check(found && !strcmp(found, "/sys/devices/virtual"));
	free(found);
	found = canonicalize_file_name(NODE);
	check(found && !strcmp(found, NODE));
	free(found);
	check(!realpath(DEV "/device", NULL) && errno == ENOENT);
	found = realpath("/usr/..", NULL);
	check(found && !strcmp(found, "/"));
	free(found);
}

static int dotless(const struct dirent *e)
{
	return e->d_name[0] != '.';
}

static int dotless64(const struct dirent64 *e)
{
	return e->d_name[0] != '.';
}

static void listing(void)
{
	DIR *d = opendir("/sys/class/infiniband");
	int seen = 0;
	for (struct dirent *e; d && (e = readdir(d));)
		seen += !strcmp(e->d_name, "vervain0");
	check(seen == 1);
	struct dirent **names;
	struct dirent64 **names64;
	check(scandir("/sys/class/infiniband/", &names, dotless, alphasort) == 1 && !strcmp(names[0]->d_name, "vervain0"));
	check(scandir64("/dev/infiniband", &names64, dotless64, alphasort64) == 1 && !strcmp(names64[0]->d_name, "uverbs0"));

	glob_t g = { .gl_offs = 2 };
	check(!glob("/sys/class/infiniband/*/ports/[0-9]*", GLOB_DOOFFS, NULL, &g));
	check(g.gl_pathc == 1 && !g.gl_pathv[1] && !strcmp(g.gl_pathv[2], DEV "/ports/1"));
	check(!glob("/dev/infiniband/uverbs*", GLOB_DOOFFS | GLOB_APPEND, NULL, &g));
	check(g.gl_pathc == 2 && !strcmp(g.gl_pathv[2], DEV "/ports/1") && !strcmp(g.gl_pathv[3], NODE));
	globfree(&g);
	check(glob("/sys/class/infiniband/nothing*", 0, NULL, &g) == GLOB_NOMATCH);
}

static void children(void)
{
	int rc;
	pid_t pid = fork();
	if (!pid)
		_exit(access(NODE, R_OK) ? 1 : 0);
	check(waitpid(pid, &rc, 0) == pid && rc == 0);
	pid = vfork();
	if (!pid)
		_exit(access(NODE, R_OK) ? 1 : 0);
	check(waitpid(pid, &rc, 0) == pid && rc == 0);
	check(system("test -c " NODE) == 0);
}

int main(void)
{
	errno = 77;
	check(!access(NODE, R_OK) && errno == 77);
	opening(O_RDONLY);
	status();
	old_status();
	links();
	listing();
	children();
	return !!failures;
}
