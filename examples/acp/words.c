/* words: how often each word is in some texts. The counts are a multiset, spread over the memory of all ranks by the words; each
 * rank takes its share of the lines and counts them in, wherever a word lies. At the end each goes through the words in its own
 * memory, and rank 0 prints the most frequent ones.
 *
 *   vervain launch -n 4 -- ./words FILE...
 */
#include <acp.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LONGEST 63 /* bytes of a word; longer ones are cut */
#define MOST 10    /* words that are printed */

struct count {
	uint64_t times;
	char word[LONGEST + 1];
};

/* What each rank has for the others to read: its handle of the multiset, and the most frequent words of its part. */
struct board {
	acp_multiset_t words;
	uint64_t different, all;
	struct count most[MOST];
};

static void must(int holds, const char *what)
{
	if (holds)
		return;
	const char *why = acp_error();
	char sentence[300];
	snprintf(sentence, sizeof sentence, "words: %s: %s", what, why ? why : "");
	acp_abort(sentence);
}

/* More often first, then by the alphabet. */
static int by_times(const void *a, const void *b)
{
	const struct count *x = a, *y = b;
	if (x->times != y->times)
		return x->times < y->times ? 1 : -1;
	return strcmp(x->word, y->word);
}

static void keep(struct count *most, struct count one)
{
	if (by_times(&one, &most[MOST - 1]) < 0) {
		most[MOST - 1] = one;
		qsort(most, MOST, sizeof *most, by_times);
	}
}

int main(int argc, char **argv)
{
	must(acp_init(&argc, &argv) == 0, "acp_init");
	int rank = acp_rank(), procs = acp_procs();

	/* One board of each rank in starter memory, and a place for what is read of others'. */
	struct board *board = acp_query_address(acp_query_starter_ga(rank));
	acp_ga_t here = acp_query_starter_ga(rank) + sizeof *board;
	struct board *other = acp_query_address(here);

	if (rank == 0) {
		int *ranks = malloc(sizeof *ranks * (size_t)procs);
		for (int i = 0; i < procs; i++)
			ranks[i] = i;
		board->words = acp_create(multiset, procs, ranks, 4096, 0);
		must(board->words.ga != ACP_GA_NULL, "acp_create_multiset");
		free(ranks);
	}
	acp_sync();
	acp_complete(acp_copy(here, acp_query_starter_ga(0), sizeof *board, ACP_HANDLE_NULL));
	acp_multiset_t words = other->words;

	/* Keys are read from registered memory. */
	char word[LONGEST + 1];
	acp_atkey_t key = acp_register_memory(word, sizeof word, 0);
	must(key != ACP_ATKEY_NULL, "acp_register_memory");
	acp_element_t element = {acp_query_ga(key, word), 0};

	for (int i = 1; i < argc; i++) {
		FILE *file = fopen(argv[i], "r");
		if (!file) {
			perror(argv[i]);
			acp_abort("words: there is no such text");
		}
		char *line = NULL;
		size_t room = 0;
		for (long number = 0; getline(&line, &room, file) >= 0; number++) {
			if (number % procs != rank)
				continue;
			for (const char *at = line; *at;) {
				element.size = 0;
				for (; isalpha((unsigned char)*at); at++)
					if (element.size < LONGEST)
						word[element.size++] = (char)tolower((unsigned char)*at);
				if (element.size > 0) {
					must(acp_insert(multiset, words, element) == 1, "acp_insert_multiset");
					board->all++;
				} else {
					at++;
				}
			}
		}
		free(line);
		fclose(file);
	}
	acp_sync();

	/* The words in this rank's memory: their bytes have an address here. */
	acp_multiset_it_t end = acp_end_local_multiset(words);
	for (acp_multiset_it_t it = acp_begin_local_multiset(words); it.rank != end.rank || it.elem != end.elem;
	     it = acp_increment(multiset_it, it)) {
		acp_element_t found = acp_dereference(multiset_it, it);
		struct count one = {acp_retrieve_multiset(words, found), ""};
		memcpy(one.word, acp_query_address(found.ga), found.size);
		keep(board->most, one);
		board->different++;
	}
	acp_sync();

	if (rank == 0) {
		struct count most[MOST] = {{0, ""}};
		uint64_t all = 0, different = 0;
		for (int of = 0; of < procs; of++) {
			acp_complete(acp_copy(here, acp_query_starter_ga(of), sizeof *board, ACP_HANDLE_NULL));
			all += other->all;
			different += other->different;
			for (int i = 0; i < MOST; i++)
				keep(most, other->most[i]);
		}
		printf("words: %d ranks, %llu words, %llu different\n", procs, (unsigned long long)all, (unsigned long long)different);
		for (int i = 0; i < MOST && most[i].times; i++)
			printf("%8llu %s\n", (unsigned long long)most[i].times, most[i].word);
		acp_destroy(multiset, words);
	}
	acp_sync();
	acp_unregister_memory(key);
	return acp_finalize() == 0 ? 0 : 1;
}
