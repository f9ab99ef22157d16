"""The Python package of ACP, as each rank of a job. Prints "OK rank R" where all held; needs numpy."""

import sys
import threading
from ctypes import ArgumentError

import numpy

import vervain_acp as acp


def told(words):
    """Each rank's words, by way of starter memory."""
    mine = numpy.array(words, dtype="<u8")
    acp.array(acp.query_starter_ga(acp.rank()), "<u8", len(words))[:] = mine
    acp.sync()
    all_words = [numpy.frombuffer(acp.read(acp.query_starter_ga(r), mine.nbytes), "<u8") for r in range(acp.procs())]
    acp.sync()
    return all_words


def sent(data):
    """What rank 0 has, at all ranks."""
    if acp.rank() == 0:
        acp.local(acp.query_starter_ga(0), len(data))[:] = data
    acp.sync()
    got = acp.read(acp.query_starter_ga(0), 24)
    acp.sync()
    return got


def refused(function, *arguments, words="", by=acp.Error):
    try:
        function(*arguments)
    except by as error:
        assert words in str(error), error
        return
    raise AssertionError(f"{function.__name__}{arguments} is not refused")


def basic_layer(rank, procs):
    assert 0 <= rank < procs and acp.colors() >= 1
    right, left = (rank + 1) % procs, (rank - 1) % procs
    # An array of numpy's own is registered in place; a copy to the right lands in it.
    field = numpy.zeros(1000, dtype="<f8")
    region = acp.Region(field)
    bases = [int(words[0]) for words in told([region.ga])]
    assert acp.query_rank(bases[right]) == right and acp.query_color(region.ga) == 0
    values = acp.Region(800)
    values.array("<f8")[:] = numpy.arange(100) + rank
    put = acp.copy(bases[right] + 8 * 500, values.ga, 800)
    acp.complete(put)
    assert acp.inquire(put) and acp.inquire()
    acp.sync()
    assert (field[500:600] == numpy.arange(100) + left).all() and not field[:500].any() and not field[600:].any()
    acp.sync()
    # Every atomic, on a word of the right neighbour's, of 8 bytes and of 4.
    old = values.array("<u8", 0, 1)
    old4 = values.array("<u4", 8, 1)
    for atomics, seen, at, top in [
        ((acp.add8, acp.xor8, acp.or8, acp.and8, acp.swap8, acp.cas8), old, values.ga, 2**64),
        ((acp.add4, acp.xor4, acp.or4, acp.and4, acp.swap4, acp.cas4), old4, values.ga + 8, 2**32),
    ]:
        add, xor, or_, and_, swap, cas = atomics
        word = bases[right]
        expected = [0, top - 1, top - 16, top - 1, 0xF0, 7]
        for atomic, operands, before in zip(
            (add, xor, or_, and_, swap, cas), ((top - 1,), (15,), (15,), (0xF0,), (7,), (7, 0)), expected
        ):
            acp.complete(atomic(at, word, *operands))
            assert int(seen[0]) == before, (atomic.__name__, int(seen[0]), before)
        acp.complete(add(at, word, 0, acp.HANDLE_ALL))
        assert int(seen[0]) == 0
    refused(acp.copy, 0, region.ga, 8, words="global address of no rank")
    refused(acp.add8, bases[right] if procs > 1 else 0, bases[left], 1)
    refused(acp.add8, values.ga + 1, values.ga, 1, words="aligned")
    refused(acp.query_starter_ga, procs, words=f"acp_query_starter_ga: there is no rank {procs}: the job has {procs}")
    # Nothing registered: the failure has no sentence, and not that of the call before.
    refused(acp._basic._ok, "acp_query_ga", acp.GA_NULL, 0, 0, words="acp_query_ga failed")
    refused(acp.Region, bytearray(0))
    refused(acp.Region, 0, by=ValueError)
    refused(acp.Region, -8, by=ValueError)
    refused(acp.Region, b"read only", by=TypeError)
    # No number is taken modulo what fits.
    refused(acp.query_starter_ga, 2**32, by=ArgumentError)
    refused(acp.copy, bases[right], region.ga, -1, by=ArgumentError)
    refused(acp.add4, values.ga, region.ga, 2**32, by=ArgumentError)
    refused(acp.local, region.ga, -1, by=ValueError)
    if procs > 1:
        refused(acp.local, bases[right], 8)
    refused(acp.local, region.ga, 8001)
    acp.sync()
    key = region.ga
    region.close()
    region.close()
    refused(acp.local, key, 8)
    # One that nobody has any more is unregistered.
    gone = acp.Region(4096).ga
    refused(acp.local, gone, 8)


def allocation(rank, procs):
    blocks = [acp.malloc(size, (rank + size) % procs) for size in range(1, 2000, 7)]
    assert len(set(blocks)) == len(blocks) and all(block % 16 == 0 for block in blocks)
    for size, block in zip(range(1, 2000, 7), blocks):
        acp.write(block, bytes([rank + 1, size % 251]) * (size // 2) + b"x" * (size % 2))
    acp.sync()
    for size, block in zip(range(1, 2000, 7), blocks):
        assert acp.read(block, size) == bytes([rank + 1, size % 251]) * (size // 2) + b"x" * (size % 2)
        acp.free(block)
    acp.free(acp.GA_NULL)
    refused(acp.malloc, 8, procs, words="no rank")
    refused(acp.malloc, 0, 0)
    refused(acp.malloc, -1, 0, by=ArgumentError)
    # A view of a block here.
    mine = acp.malloc(80, rank)
    acp.array(mine, "<u8", 10)[:] = range(10)
    assert acp.read(mine, 80) == numpy.arange(10, dtype="<u8").tobytes()
    acp.free(mine)
    # Threads have scratch memory each.
    wrong = []

    def one(name):
        block = acp.malloc(64, (rank + 1) % procs)
        for i in range(200):
            data = bytes([name, i % 256]) * 32
            acp.write(block, data)
            if acp.read(block, 64) != data:
                wrong.append((name, i))
        acp.free(block)

    threads = [threading.Thread(target=one, args=[name]) for name in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong, wrong


def containers(rank, procs):
    made = acp.Map.create(slots=64) if rank == 0 else None
    shared = acp.Map.open(sent(bytes(made) if made is not None else b""))
    mine = {f"{rank}:{i}".encode(): f"value {i} of {rank}".encode() * (1 + i % 40) for i in range(200)}
    for key, value in mine.items():
        assert shared.insert(key, value)
        assert not shared.insert(key, b"another")
    assert shared.insert(b"who", b"%d" % rank) == (shared[b"who"] == b"%d" % rank)
    acp.sync()
    assert len(shared) == 200 * procs + 1
    # Those of all ranks, the parts in their memory together.
    items = dict(shared.items())
    assert len(items) == 200 * procs + 1 and all(items[key] == value for key, value in mine.items())
    parts = [int(words[0]) for words in told([shared.local_len()])]
    assert sum(parts) == len(shared) and dict(shared.items(local=True)).items() <= items.items()
    assert len(dict(shared.items(local=True))) == parts[rank]
    assert all(key in shared and shared.get(key) == value for key, value in mine.items())
    assert b"nobody" not in shared and shared.get(b"nobody", 3) == 3 and b"" not in shared
    acp.sync()
    for key in mine:
        shared.remove(key)
    acp.sync()
    assert list(shared) == [b"who"]
    acp.sync()
    if rank == 0:
        shared.clear()
        assert len(shared) == 0
        shared.destroy()
        # None of these has a value that tells a failure from another outcome.
        refused(shared.insert, b"key", b"value", words="there is no map")
        refused(shared.get, b"key", words="there is no map")
        refused(shared.remove, b"key", words="there is no map")
        refused(shared.clear, words="there is no map")
        refused(shared.destroy, words="there is no map")
        refused(len, shared, words="there is no map")
        refused(list, shared, words="there is no map")
        refused(shared.__contains__, b"key", words="there is no map")
        refused(acp.Map.create, [procs], words="no rank")
        refused(acp.Map.create, [2**32], by=OverflowError)
    counts = acp.Multiset.create(ranks=[procs - 1], slots=7, of=procs - 1) if rank == 0 else None
    counts = acp.Multiset.open(sent(bytes(counts) if counts is not None else b""))
    for i in range(300):
        counts.insert(b"%d" % (i % 10))
    acp.sync()
    assert dict(counts.items()) == {b"%d" % i: 30 * procs for i in range(10)} and len(counts) == 10
    assert counts.local_len() == (10 if rank == procs - 1 else 0) == len(list(counts.keys(local=True)))
    acp.sync()
    counts.remove(b"3")
    acp.sync()
    assert counts.count(b"3") == 29 * procs and b"3" in counts and b"33" not in counts
    acp.sync()
    if rank == 0:
        counts.remove_all(b"3")
        assert counts.count(b"3") == 0 and sorted(counts) == [b"%d" % i for i in range(10) if i != 3]
        counts.destroy()
    acp.sync()


def main():
    refused(acp.rank, words="acp_init has not been called")
    acp.init()
    rank, procs = acp.rank(), acp.procs()
    for part in (basic_layer, allocation, containers):
        part(rank, procs)
        acp.sync()
    acp.reset((rank + 1) % procs)
    assert acp.rank() == (rank + 1) % procs
    allocation(acp.rank(), procs)
    if "abort" in sys.argv:
        if rank == 1:
            acp.abort("enough")
        acp.sync()
    acp.finalize()
    refused(acp.sync, words="acp_finalize has been called")
    print(f"OK rank {rank}", flush=True)


main()
