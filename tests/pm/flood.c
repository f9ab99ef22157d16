/* All ranks send to rank 0 more than all its buffers hold, while it calls nothing; then it receives. Nothing is lost, and each rank's
 * messages are in order. The argument is how many messages each sends (3000). */
#include "pt.h"

int main(int argc, char **argv) {
	uint32_t count = argc > 1 ? (uint32_t)atoi(argv[1]) : 3000, next[PT_MAX] = {0};
	static unsigned char bytes[65536];
	pt_begin();
	pt_barrier();
	if (pt_rank != 0) {
		for (uint32_t n = 0; n < count;) {
			size_t len = n % 7 == 0 ? 16 : pt_mtu;
			memcpy(bytes, &n, sizeof n);
			for (size_t i = sizeof n; i < len; i += 509)
				bytes[i] = pt_byte(pt_rank, 0, n, i);
			if (pt_send(0, bytes, len))
				n++;
			else
				pt_sleep();
		}
		pt_must_receive(0, bytes, 1);
	} else {
		usleep(300000);
		for (uint64_t all = (uint64_t)count * (uint64_t)(pt_ranks - 1); all > 0; all--) {
			caddr_t buffer;
			size_t len;
			int from, said;
			uint32_t n;
			while ((said = pmReceive(pt_context, &buffer, &len)) == ENOBUFS)
				pt_sleep();
			PT_MUST(said == 0 && pmGetSender(pt_context, &from) == 0, "%s", pt_why());
			memcpy(&n, buffer, sizeof n);
			PT_CHECK(n == next[from], "message %u of rank %d in place of %u", n, from, next[from]);
			PT_CHECK(len == (n % 7 == 0 ? 16 : pt_mtu), "message %u of rank %d has %zu bytes", n, from, len);
			for (size_t i = sizeof n; i < len; i += 509)
				PT_CHECK((unsigned char)buffer[i] == pt_byte(from, 0, n, i), "message %u of rank %d, byte %zu", n, from, i);
			next[from]++;
			PT_MUST(pmReleaseReceiveBuffer(pt_context) == 0, "%s", pt_why());
		}
		for (int r = 1; r < pt_ranks; r++)
			pt_must_send(r, "d", 1);
	}
	return pt_end();
}
