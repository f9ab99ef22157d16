"""Maps and multisets in global memory."""

import ctypes

from . import _basic as basic
from ._library import element_t, lib, map_t, multiset_t, pair_t


def _created(function, kind, ranks, slots, of):
    ranks = list(range(basic.procs())) if ranks is None else list(ranks)
    numbers = (ctypes.c_int * len(ranks))(*ranks)
    if list(numbers) != ranks:
        raise OverflowError(f"a rank of {ranks} does not fit")
    of = basic.rank() if of is None else of
    lib.acp_clear_error()
    made = function(len(ranks), numbers, slots, of)
    if made.ga == basic.GA_NULL:
        raise basic._why(f"acp_create_{kind}")
    return made


def _placed(*parts):
    """The parts in registered memory, one behind the other."""
    parts = [memoryview(part).cast("B") for part in parts]
    scratch = basic.scratch_region(sum(part.nbytes for part in parts))
    elements, at = [], 0
    for part in parts:
        scratch.memory[at : at + part.nbytes] = part
        elements.append(element_t(scratch.ga + at, part.nbytes))
        at += part.nbytes
    return elements


def _read(element):
    return basic.read(element.ga, element.size)


class _Container:
    """What both have: a handle, of which `bytes` makes what other ranks open it by."""

    def __init__(self, handle):
        self.handle = handle

    @classmethod
    def open(cls, sent):
        """That which another rank has created, from its `bytes`."""
        return cls(cls._type.from_buffer_copy(sent))

    def __bytes__(self):
        return bytes(self.handle)

    def _call(self, function, *arguments):
        return basic._call(f"acp_{function}_{self._kind}", self.handle, *arguments)

    def __len__(self):
        return self._call("size")

    def local_len(self):
        """How many keys are in this rank's memory."""
        return self._call("size_local")

    def clear(self):
        """Removes everything."""
        self._call("clear")

    def destroy(self):
        """Frees it; no rank may use it any more."""
        self._call("destroy")

    def _iterators(self, local):
        suffix = "_local" if local else ""
        it, end = self._call(f"begin{suffix}"), self._call(f"end{suffix}")
        while it.elem != basic.GA_NULL and (it.rank, it.slot, it.elem) != (end.rank, end.slot, end.elem):
            yield it
            it = basic._call(f"acp_increment_{self._kind}_it", it)


class Map(_Container):
    """A map from bytes to bytes, spread by the keys over the memory of ranks. Any rank may use it at any time.

    `ranks` are those that have the elements, all if not given; `of` is the rank that has the directory, this one if not given.
    """

    _type, _kind = map_t, "map"

    @classmethod
    def create(cls, ranks=None, slots=1024, of=None):
        """A new one without elements."""
        return cls(_created(lib.acp_create_map, "map", ranks, slots, of))

    def insert(self, key, value):
        """Adds a value, not empty, of a key that has none. Returns whether it had none."""
        if not key or not value:
            raise ValueError("keys and values of a map have at least one byte")
        return self._call("insert", pair_t(*_placed(key, value))) == 1

    def get(self, key, default=None):
        """The value of a key."""
        if not key:
            return default
        key, size = memoryview(key).cast("B"), 256
        while True:
            # The value comes behind the key.
            at = key.nbytes
            scratch = basic.scratch_region(at + size)
            scratch.memory[:at] = key
            stored = self._call("retrieve", pair_t(element_t(scratch.ga, at), element_t(scratch.ga + at, size)))
            if stored == 0:
                return default
            if stored <= size:
                return bytes(scratch.memory[at : at + stored])
            size = stored

    def __contains__(self, key):
        return bool(key) and self._call("find", *_placed(key)).elem != basic.GA_NULL

    def __getitem__(self, key):
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def remove(self, key):
        """Removes a key, if it is there."""
        self._call("remove", *_placed(key))

    def items(self, local=False):
        """Keys with values; those in this rank's memory only, if `local`. What others change meanwhile may come or not."""
        for it in self._iterators(local):
            pair = lib.acp_dereference_map_it(it)
            if pair.first.ga != basic.GA_NULL:
                yield _read(pair.first), _read(pair.second)

    def __iter__(self):
        return (key for key, _ in self.items())


class Multiset(_Container):
    """A count for each of some keys, which are bytes, spread by the keys over the memory of ranks. Any rank may use it at any time.

    Its length is the number of different keys.
    """

    _type, _kind = multiset_t, "multiset"

    @classmethod
    def create(cls, ranks=None, slots=1024, of=None):
        """A new one without keys."""
        return cls(_created(lib.acp_create_multiset, "multiset", ranks, slots, of))

    def insert(self, key):
        """Adds 1 to the count of a key."""
        if not key:
            raise ValueError("keys of a multiset have at least one byte")
        self._call("insert", *_placed(key))

    def count(self, key):
        """The count of a key."""
        return self._call("retrieve", *_placed(key)) if key else 0

    def __contains__(self, key):
        return self.count(key) > 0

    def remove(self, key):
        """Takes 1 from the count of a key, if it is there."""
        self._call("remove", *_placed(key))

    def remove_all(self, key):
        """Removes a key."""
        self._call("remove_all", *_placed(key))

    def keys(self, local=False):
        """The keys; those in this rank's memory only, if `local`."""
        for it in self._iterators(local):
            element = lib.acp_dereference_multiset_it(it)
            if element.ga != basic.GA_NULL:
                yield _read(element)

    __iter__ = keys

    def items(self, local=False):
        """Keys with their counts."""
        for key in self.keys(local):
            yield key, self.count(key)
