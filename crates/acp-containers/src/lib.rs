//! ACP's containers in global memory: vectors, deques, lists, sets, multisets and maps whose bytes lie in the heaps of any ranks,
//! and which all ranks reach.
