/* Each function says what is wrong with its arguments, or with the moment, and goes on. */
#include "pt.h"

#include <sys/wait.h>

static void devices(void) {
	pmDevice *device = NULL;
	char myrinet[] = "myrinet", ib[] = "ib", composite[] = "composite", name[] = "-device", none[] = "no_such_device", mtu[] = "-mtu",
	     one[] = "1", other[] = "-other";
	char *of_none[] = {name, none}, *no_mtu[] = {mtu, one}, *no_value[] = {mtu}, *unknown[] = {other, one};
	PT_SAYS(ENODEV, "myrinet", pmOpenDevice(myrinet, 0, NULL, &device));
	PT_SAYS(ENODEV, "no_such_device", pmOpenDevice(ib, 2, of_none, &device));
	PT_SAYS(EINVAL, "-mtu=1", pmOpenDevice(ib, 2, no_mtu, &device));
	PT_SAYS(EINVAL, "wants a value", pmOpenDevice(NULL, 1, no_value, &device));
	PT_SAYS(EINVAL, "-other", pmOpenDevice(ib, 2, unknown, &device));
	PT_SAYS(EINVAL, "-other", pmOpenDevice(composite, 1, unknown, &device));
	PT_SAYS(EINVAL, "argc", pmOpenDevice(ib, -1, NULL, &device));
	PT_SAYS(EINVAL, "argv", pmOpenDevice(ib, 1, NULL, &device));
	PT_SAYS(EINVAL, "pmdp", pmOpenDevice(ib, 0, NULL, NULL));
	PT_CHECK(device == NULL, "a device was opened");
	PT_SAYS(EINVAL, "pmd", pmCloseDevice(NULL));
	PT_SAYS(EBUSY, "a context", pmCloseDevice(pt_device));
	pmContext *context = NULL;
	PT_SAYS(EINVAL, "pmd", pmOpenContext(NULL, &context));
	PT_SAYS(EINVAL, "pmcp", pmOpenContext(pt_device, NULL));
	PT_SAYS(EINVAL, "descriptor 3", pmAttachContext(ib, 3, &context));
	PT_SAYS(ENODEV, "myrinet", pmAttachContext(myrinet, -1, &context));
	PT_SAYS(EINVAL, "pmc", pmCloseContext(NULL));
	PT_SAYS(EINVAL, "pmc", pmDetachContext(NULL));
	/* A composite context is opened by this process alone. */
	pmContext *empty = NULL;
	PT_SAYS(0, "", pmAttachContext(composite, -1, &empty));
	int number = -1;
	size_t size = 0;
	caddr_t buffer = NULL;
	PT_SAYS(0, "", pmGetNodeCount(empty, &number));
	PT_CHECK(number == 0, "%d nodes", number);
	PT_SAYS(EINVAL, "no nodes", pmGetSelf(empty, &number));
	PT_SAYS(EINVAL, "node 0", pmGetMtu(empty, 0, &size));
	PT_SAYS(EINVAL, "node 0", pmGetSendBuffer(empty, 0, &buffer, 1));
	PT_SAYS(EINVAL, "no nodes", pmReceive(empty, &buffer, &size));
	PT_SAYS(EINVAL, "composite", pmAddNode(pt_context, 0, empty));
	PT_SAYS(EINVAL, "composite", pmAddNode(empty, 0, empty));
	PT_SAYS(EINVAL, "cannot be", pmAddNode(empty, pt_ranks, pt_context));
	PT_SAYS(EINVAL, "no node -1", pmAddNode(empty, -1, pt_context));
	int numbers[PT_MAX + 1] = {0};
	PT_SAYS(EINVAL, "the member has", pmAssociateNodes(empty, pt_ranks + 1, numbers, pt_context));
	PT_SAYS(EINVAL, "nodes", pmAssociateNodes(empty, 1, NULL, pt_context));
	PT_SAYS(EINVAL, "-1 nodes", pmAssociateNodes(empty, -1, numbers, pt_context));
	PT_SAYS(0, "", pmAddNode(empty, pt_rank, pt_context));
	pmAddrHandle handle;
	PT_SAYS(EINVAL, "one node at a time", pmMLock(empty, PM_NODE_ANY, (caddr_t)numbers, 4, &handle));
	PT_SAYS(EINVAL, "one node at a time", pmMUnlock(empty, PM_NODE_ANY, (caddr_t)numbers, 4));
	PT_SAYS(0, "", pmDetachContext(empty));
}

static void messages(void) {
	pmContext *c = pt_context;
	caddr_t buffer = NULL, second = NULL;
	size_t len = 0;
	int number = -1;
	PT_SAYS(EINVAL, "of 0 bytes", pmGetSendBuffer(c, pt_rank, &buffer, 0));
	PT_SAYS(EINVAL, "bytes: 1 to", pmGetSendBuffer(c, pt_rank, &buffer, pt_mtu + 1));
	PT_SAYS(EINVAL, "no node", pmGetSendBuffer(c, pt_ranks, &buffer, 1));
	PT_SAYS(EINVAL, "no node -1", pmGetSendBuffer(c, -1, &buffer, 1));
	PT_SAYS(EINVAL, "bufp", pmGetSendBuffer(c, pt_rank, NULL, 1));
	PT_SAYS(EINVAL, "pmc", pmGetSendBuffer(NULL, pt_rank, &buffer, 1));
	PT_CHECK(buffer == NULL, "a buffer was given out");
	PT_SAYS(EINVAL, "no send buffer", pmSend(c));
	PT_SAYS(ENOBUFS, "no message", pmReceive(c, &buffer, &len));
	PT_SAYS(EINVAL, "lenp", pmReceive(c, &buffer, NULL));
	PT_SAYS(EINVAL, "bufp", pmReceive(c, NULL, &len));
	PT_SAYS(EIO, "no message was received", pmReleaseReceiveBuffer(c));
	PT_SAYS(EIO, "no message was received", pmGetSender(c, &number));
	PT_SAYS(EINVAL, "no node", pmGetMtu(c, pt_ranks, &len));
	PT_SAYS(EINVAL, "mtup", pmGetMtu(c, 0, NULL));
	PT_SAYS(EINVAL, "pmc", pmIsSendDone(NULL));
	PT_SAYS(EINVAL, "pmc", pmBeforeSelect(NULL));
	PT_SAYS(EINVAL, "pmc", pmAfterSelect(NULL));
	PT_SAYS(0, "", pmAfterSelect(c));
	PT_SAYS(EINVAL, "nfdp", pmGetFd(c, &number, NULL));

	/* One buffer is out at a time, either way. */
	double until = pt_now() + PT_PATIENCE;
	int said;
	while ((said = pmGetSendBuffer(c, pt_rank, &buffer, 5)) == ENOBUFS)
		PT_MUST(pt_now() < until, "no buffer");
	PT_MUST(said == 0, "%s", pt_why());
	PT_SAYS(EBUSY, "not sent", pmGetSendBuffer(c, pt_rank, &second, 5));
	memcpy(buffer, "first", 5);
	PT_SAYS(0, "", pmSend(c));
	PT_SAYS(EINVAL, "no send buffer", pmSend(c));
	pt_must_send(pt_rank, "second", 6);
	while ((said = pmReceive(c, &buffer, &len)) == ENOBUFS)
		PT_MUST(pt_now() < until, "no message");
	PT_CHECK(said == 0 && len == 5 && memcmp(buffer, "first", 5) == 0, "%zu bytes: %s", len, pt_why());
	PT_SAYS(EBUSY, "not released", pmReceive(c, &second, &len));
	/* It is the caller's, to be written to as well. */
	memset(buffer, 'x', pt_mtu);
	PT_SAYS(0, "", pmReleaseReceiveBuffer(c));
	PT_SAYS(EIO, "no message was received", pmReleaseReceiveBuffer(c));
	char text[8] = {0};
	PT_CHECK(pt_must_receive(pt_rank, text, sizeof text) == 6 && strcmp(text, "second") == 0, "'%s'", text);
	pt_must_be_sent();
}

static void memory(void) {
	pmContext *c = pt_context;
	char byte = 0;
	PT_SAYS(EINVAL, "hndlp", pmMLock(c, 0, &byte, 1, NULL));
	PT_SAYS(EINVAL, "pmc", pmMLock(NULL, 0, &byte, 1, NULL));
	PT_SAYS(EINVAL, "pmc", pmMUnlock(NULL, 0, &byte, 1));
	PT_SAYS(ENOENT, "not locked", pmMUnlock(c, 0, &byte, 1));
	PT_SAYS(EINVAL, "handle", pmWrite(c, pt_rank, 1, 2, 3));
	PT_SAYS(EINVAL, "handle", pmRead(c, pt_rank, 1, 2, 3));
	PT_SAYS(EINVAL, "pmc", pmIsReadDone(NULL));
	PT_SAYS(EINVAL, "pmc", pmIsWriteDone(NULL));
}

/* In a child all functions fail, and the parent goes on. */
static void child(void) {
	pid_t pid = fork();
	PT_MUST(pid >= 0, "fork: %s", strerror(errno));
	if (pid == 0) {
		caddr_t buffer;
		size_t len;
		PT_SAYS(EIO, "forked", pmReceive(pt_context, &buffer, &len));
		PT_SAYS(EIO, "forked", pmGetSendBuffer(pt_context, 0, &buffer, 1));
		PT_SAYS(EIO, "forked", pmCloseContext(pt_context));
		_exit(pt_failures != 0);
	}
	int status = -1;
	PT_CHECK(waitpid(pid, &status, 0) == pid && status == 0, "the child ended with %#x", (unsigned)status);
}

int main(void) {
	PT_CHECK(pmErrorString() == NULL, "an error before any");
	pt_begin();
	devices();
	messages();
	memory();
	child();
	/* No messages between ranks: one that is early would be none of those that are expected above. */
	int said = pt_end();
	/* The job was left with the last device. */
	pmDevice *device;
	pmContext *context;
	PT_SAYS(0, "", pmOpenDevice(NULL, 0, NULL, &device));
	PT_SAYS(EIO, "left its job", pmOpenContext(device, &context));
	PT_SAYS(0, "", pmCloseDevice(device));
	return said || pt_failures;
}
