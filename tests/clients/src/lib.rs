//! Tests of clients that bring much with them: MPI, UCX, HPCC, pyverbs, wheels, a browser, containers, sanitizers. What they are
//! made with is in `vervain-tests`, whose own tests need little more than a compiler and perftest.
