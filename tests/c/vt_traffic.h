/* vt_traffic: two sides that send, add, write and read all the time, and know what must have come. What a side counts lies in its
 * registered memory. */
#ifndef VT_TRAFFIC_H
#define VT_TRAFFIC_H

#include "vt_duo.h"

#define DEPTH 16u
#define SLOT (128u * 1024)
#define MESSAGE (SLOT - 64) /* of messages, at most */
#define LONG (200u * 1024)
/* A buffer: what this side counts, receives, what is sent, the answers of atomics, the word that the other adds to, where the other
 * writes, what is written and what the other reads, and what is read. */
#define RECV_AT 4096u
#define SEND_AT (RECV_AT + DEPTH * SLOT)
#define ANSWER_AT (SEND_AT + DEPTH * SLOT)
#define WORD_AT (ANSWER_AT + 4096)
#define THERE_AT (WORD_AT + 4096)
#define FROM_AT (THERE_AT + LONG)
#define INTO_AT (FROM_AT + LONG)
#define SIZE (INTO_AT + 2 * LONG)

enum { MESSAGES, ATOMICS, WRITES, READS, KINDS };

/* What a side counts. It lies in registered memory, and so in the image. */
struct vt_counts {
	uint64_t posted[KINDS], done[KINDS], received, last_answer;
	uint64_t iova; /* of the buffer, as keys name it */
	struct vt_duo_addr peer;
};

/* What each says to the other at the end. */
struct vt_total {
	uint64_t messages, atomics;
};

extern struct vt_duo vt_traffic;
extern bool vt_traffic_failed;

struct vt_counts *vt_traffic_counts(void);
bool vt_traffic_open(void);
bool vt_traffic_receive(uint64_t slot); /* posts one */
/* Posts what there is room for. */
void vt_traffic_post(void);
/* Takes what has completed; how many. */
int vt_traffic_take(void);
/* Goes on until everything that both have posted is done; they tell each other by `fd` how much that is. */
void vt_traffic_finish(int fd);

#endif
