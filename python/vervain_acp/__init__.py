"""ACP in Python: global memory for the ranks of a job, by libacp.

The functions are those of acp.h without `acp_`: addresses and handles are numbers, failures raise Error with libacp's sentence.
`Region` is registered memory, `local` and `array` are views of this rank's; `Map` and `Multiset` are containers of all ranks.

    import vervain_acp as acp

    acp.init()
    block = acp.malloc(8, (acp.rank() + 1) % acp.procs())
    acp.write(block, b"a word..")
    acp.finalize()
"""

from ._basic import (
    GA_NULL,
    HANDLE_ALL,
    HANDLE_CONT,
    HANDLE_NULL,
    Error,
    Region,
    abort,
    add4,
    add8,
    and4,
    and8,
    array,
    cas4,
    cas8,
    colors,
    complete,
    copy,
    finalize,
    free,
    init,
    inquire,
    local,
    malloc,
    or4,
    or8,
    procs,
    query_color,
    query_rank,
    query_starter_ga,
    rank,
    read,
    reset,
    swap4,
    swap8,
    sync,
    write,
    xor4,
    xor8,
)
from ._containers import Map, Multiset

__all__ = [name for name in dir() if not name.startswith("_")]
