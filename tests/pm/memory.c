/* Says how many bytes a rank holds once it knows all others and all its buffers were used: private memory, and what the process's own
 * shared memory has allocated. */
#include "pt.h"

#include <dirent.h>
#include <sys/stat.h>

static long private_bytes(void) {
	char line[256];
	long kb = 0, part;
	FILE *status = fopen("/proc/self/status", "r");
	PT_MUST(status != NULL, "status: %s", strerror(errno));
	while (fgets(line, sizeof line, status))
		if (sscanf(line, "RssAnon: %ld kB", &part) == 1)
			kb += part;
	fclose(status);
	return kb * 1024;
}

/* Of the memfds that this process has open, which are its own: peers' are closed once they are mapped. */
static long shared_bytes(void) {
	long bytes = 0;
	ino_t seen[256];
	int files = 0;
	DIR *dir = opendir("/proc/self/fd");
	PT_MUST(dir != NULL, "fd: %s", strerror(errno));
	for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
		char path[300], name[300];
		snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
		ssize_t len = readlink(path, name, sizeof name - 1);
		struct stat file;
		if (len < 0 || strncmp(name, "/memfd:", 7) != 0 || stat(path, &file) != 0)
			continue;
		int i = 0;
		while (i < files && seen[i] != file.st_ino)
			i++;
		if (i == files && files < 256) {
			seen[files++] = file.st_ino;
			bytes += (long)file.st_blocks * 512;
		}
	}
	closedir(dir);
	return bytes;
}

/* As pt_barrier, but that all only count what comes: those who have left it send to those who have not. */
static void meet(void) {
	static char any[65536];
	if (pt_rank != 0) {
		pt_must_send(0, "b", 1);
		pt_must_receive(-1, any, sizeof any);
		return;
	}
	for (int r = 1; r < pt_ranks; r++)
		pt_must_receive(-1, any, sizeof any);
	for (int r = 1; r < pt_ranks; r++)
		pt_must_send(r, "b", 1);
}

int main(void) {
	static char bytes[65536];
	pt_begin();
	/* All buffers are used: the receives go round. */
	for (int i = 0; i < 3000; i++) {
		pt_must_send(pt_rank, bytes, pt_mtu);
		pt_must_receive(-1, bytes, sizeof bytes);
	}
	meet();
	/* Everybody, in turn. */
	for (int d = 1; d < pt_ranks; d++)
		pt_must_send((pt_rank + d) % pt_ranks, bytes, pt_mtu);
	for (int d = 1; d < pt_ranks; d++)
		pt_must_receive(-1, bytes, sizeof bytes);
	pt_must_be_sent();
	meet();
	printf("memory %ld\n", private_bytes() + shared_bytes());
	fflush(stdout);
	meet();
	return pt_end();
}
