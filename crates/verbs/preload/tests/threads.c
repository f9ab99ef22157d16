/* Before a program under the preload has a second thread, the kernel has given what would take long later. */
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { GET_REGISTRATIONS = 1 << 9 };

static void *nothing(void *argument)
{
	return argument;
}

static int descriptors(void)
{
	char line[256];
	int size = -1;
	FILE *status = fopen("/proc/self/status", "r");
	while (status && fgets(line, sizeof line, status))
		if (sscanf(line, "FDSize: %d", &size) == 1)
			break;
	if (status)
		fclose(status);
	return size;
}

/* Prints the registrations, and the room for descriptors, before and after the start of a thread. */
int main(void)
{
	pthread_t thread;
	long before = syscall(SYS_membarrier, GET_REGISTRATIONS, 0, 0);
	printf("%ld %d\n", before, descriptors());
	if (pthread_create(&thread, NULL, nothing, NULL) || pthread_join(thread, NULL))
		return 1;
	printf("%ld %d\n", syscall(SYS_membarrier, GET_REGISTRATIONS, 0, 0), descriptors());
	return 0;
}
