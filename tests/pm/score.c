/* SCore's variables say what the context does, and a program that ends has left its job. The argument is the number of hosts. */
#include "pt.h"

int main(int argc, char **argv) {
	int hosts = argc > 1 ? atoi(argv[1]) : 1;
	PT_CHECK(score_num_pmnet == 0 && score_pmnet == NULL && score_num_node == 0, "something is there before score_initialize");
	score_initialize(argc, argv);
	PT_MUST(score_num_pmnet == 1 && score_pmnet != NULL && score_pmnet[0] != NULL, "%d contexts", score_num_pmnet);
	pt_context = score_pmnet[0];
	pt_numbers();
	PT_CHECK(score_num_node == pt_ranks && score_self_node == pt_rank, "node %d of %d", score_self_node, score_num_node);
	PT_CHECK(score_num_proc == pt_ranks && score_self_proc == pt_rank, "process %d of %d", score_self_proc, score_num_proc);
	PT_CHECK(score_num_host == hosts && score_self_host >= 0 && score_self_host < hosts, "host %d of %d", score_self_host, score_num_host);
	/* A token goes round; who waits for it is idle. */
	int next = (pt_rank + 1) % pt_ranks, token = pt_rank;
	pt_must_send(next, &token, sizeof token);
	caddr_t buffer;
	size_t len;
	int said;
	while ((said = pmReceive(pt_context, &buffer, &len)) == ENOBUFS)
		score_become_idle();
	PT_MUST(said == 0 && len == sizeof token, "%s", pt_why());
	memcpy(&token, buffer, sizeof token);
	PT_CHECK(token == (pt_rank + pt_ranks - 1) % pt_ranks, "the token of %d", token);
	PT_SAYS(0, "", pmReleaseReceiveBuffer(pt_context));
	return pt_verdict();
}
