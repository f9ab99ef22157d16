/* The pieces of a package that brings a libibverbs of its own, each made of this file by a macro (tests/loading.rs), and
 * the program that loads them: `program LIBRARY FUNCTION` prints what the library's function says. */

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

typedef const char *answer(void);

#if defined(VERBS)
const char *ibv_who(void) { return VERBS; }
#elif defined(TRANSPORT)
extern answer ibv_who;
const char *transport_who(void) { return ibv_who(); }
#elif defined(PLUGIN)
extern answer transport_who;
const char *plugin_who(void) { return transport_who(); }
#elif defined(CALLER)
/* Only this library's own DT_RUNPATH leads there. */
const char *loads_by_its_own_search_path(void)
{
    void *library = dlopen("libfound.so", RTLD_NOW);
    return library ? ((answer *)dlsym(library, "ibv_who"))() : dlerror();
}
#else
int main(int argc, char **argv)
{
    if (argc < 3 || !dlopen(NULL, RTLD_NOW) || dlopen("/no/such/library.so", RTLD_NOW) || !dlerror())
        return 2;
    void *library = dlopen(argv[1], RTLD_NOW);
    if (!library)
        return puts(dlerror()), 1;
    answer *who = (answer *)dlsym(library, argv[2]);
    puts(who ? who() : dlerror());
    /* Nothing is left of calls that the program did not make. */
    return who && !dlerror() ? 0 : 1;
}
#endif
