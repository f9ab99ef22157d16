/* Runs a program whose system calls some are refused, as a container's seccomp profile does:
 *
 *   refuse NUMBER[/ARG:VALUE][=ERRNO],... PROGRAM ARGUMENTS...
 *
 * With ARG:VALUE only where that argument (from 0) has that value, of which 32 bits are looked at. The errno is EPERM where none
 * is given. It holds for all that the program starts, and nothing takes it back. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { MOST = 400, EACH = 5 };

int main(int argc, char **argv)
{
	static struct sock_filter code[EACH * MOST + 2];
	unsigned short n = 0;
	if (argc < 3)
		return 2;
	/* The programs of the tests make native calls only, so the architecture is not looked at. */
	code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (char *at = strtok(argv[1], ","); at && n < EACH * MOST; at = strtok(NULL, ",")) {
		char *end;
		unsigned long number = strtoul(at, &end, 10), argument = 6, value = 0;
		if (*end == '/') {
			argument = strtoul(end + 1, &end, 10);
			value = *end == ':' ? strtoul(end + 1, &end, 10) : 0;
		}
		unsigned long refusal = *end == '=' ? strtoul(end + 1, &end, 10) : EPERM;
		if (end == at || *end) {
			fprintf(stderr, "refuse: what is %s?\n", at);
			return 2;
		}
		if (argument < 6) {
			/* To the number of the next, over these: the argument, its value, and the number again. */
			unsigned low = (unsigned)(offsetof(struct seccomp_data, args) + 8 * argument);
			code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 4);
			code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, low);
			code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)value, 0, 1);
			code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)refusal);
			code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
			continue;
		}
		code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1);
		code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)refusal);
	}
	code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog filter = { n, code };
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) {
		perror("refuse: seccomp");
		return 2;
	}
	execvp(argv[2], argv + 2);
	perror(argv[2]);
	return 127;
}
