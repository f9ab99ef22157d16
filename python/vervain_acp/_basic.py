"""The basic layer: the job, registered memory, copies and atomics, completion; and global allocation."""

import ctypes
import mmap
import threading

from ._library import lib

GA_NULL = 0
HANDLE_NULL = 0
HANDLE_ALL = -1
HANDLE_CONT = -2


class Error(Exception):
    """What a function of libacp says of why it failed."""


def _why(name):
    sentence = lib.acp_error()
    return Error(sentence.decode(errors="replace") if sentence else f"{name} failed")


def _ok(name, failed, *arguments):
    """What a function returns, unless it is the value by which it fails."""
    # Some failures have no sentence, and would have that of an earlier call.
    lib.acp_clear_error()
    value = getattr(lib, name)(*arguments)
    if value == failed:
        raise _why(name)
    return value


def _call(name, *arguments):
    """What a function returns whose value does not tell that it has failed."""
    lib.acp_clear_error()
    value = getattr(lib, name)(*arguments)
    if lib.acp_error():
        raise _why(name)
    return value


def init():
    """Joins the job that this process was started in; returns once all ranks have."""
    _ok("acp_init", -1, None, None)


def finalize():
    """Waits for all ranks, and leaves the job."""
    try:
        _ok("acp_finalize", -1)
    finally:
        _forget_scratch()


def reset(rank):
    """Starts again as rank `rank`: everything is freed. The ranks' numbers are a permutation."""
    _ok("acp_reset", -1, rank)
    _forget_scratch()


def abort(sentence):
    """Ends all ranks of the job. Does not return."""
    lib.acp_abort(sentence.encode())


def sync():
    """Returns once all ranks have called it."""
    _ok("acp_sync", -1)


def rank():
    """This process's number, from 0."""
    return _ok("acp_rank", -1)


def procs():
    """The number of ranks."""
    return _ok("acp_procs", -1)


def colors():
    """The number of colors."""
    return _ok("acp_colors", -1)


def query_starter_ga(of):
    """The address of a rank's starter memory."""
    return _ok("acp_query_starter_ga", GA_NULL, of)


def query_rank(ga):
    """The rank of an address; -1 for that of none."""
    return lib.acp_query_rank(ga)


def query_color(ga):
    """The color of an address; -1 for that of none."""
    return lib.acp_query_color(ga)


def local(ga, size):
    """A memoryview of `size` bytes at `ga`, which are this rank's own. Others may write to them at any time."""
    address = lib.acp_query_address(ga)
    if address is None:
        raise Error(f"{ga:#x} is no address of this rank's memory")
    if size < 0:
        raise ValueError(f"{size} bytes")
    if size == 0:
        return memoryview(b"")
    if lib.acp_query_address(ga + size) != address + size:
        raise Error(f"{size} bytes at {ga:#x} are more than are registered there")
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


def array(ga, dtype, count):
    """A numpy array over `count` values at `ga`, which are this rank's own."""
    import numpy

    dtype = numpy.dtype(dtype)
    return numpy.frombuffer(local(ga, dtype.itemsize * count), dtype)


class Region:
    """Registered memory of this rank's: zeros of its own, or an object with a writable buffer, such as a numpy array.

    `ga` is the address of its first byte. It ends with `close`, at the end of a `with`, or when nobody has it any more; what was
    given stays alive until then.
    """

    def __init__(self, memory, color=0):
        self._key = 0
        if isinstance(memory, int):
            if memory < 1:
                raise ValueError(f"a region of {memory} bytes")
            memory = mmap.mmap(-1, memory)
        self.memory = memoryview(memory).cast("B")
        if self.memory.nbytes == 0:
            raise Error("there is nothing to register in an empty buffer")
        # Refuses what cannot be written, and holds the buffer.
        self._bytes = (ctypes.c_ubyte * self.memory.nbytes).from_buffer(self.memory)
        address = ctypes.addressof(self._bytes)
        self._key = _ok("acp_register_memory", 0, address, self.memory.nbytes, color)
        self.ga = lib.acp_query_ga(self._key, address)

    def __len__(self):
        return self.memory.nbytes

    def array(self, dtype, offset=0, count=-1):
        """A numpy array over it."""
        import numpy

        return numpy.frombuffer(self.memory, dtype, count, offset)

    def close(self):
        """Unregisters it. Accesses to it must be complete."""
        key, self._key = self._key, 0
        # acp_finalize and acp_reset have unregistered it.
        if key and lib.acp_query_address(self.ga) == ctypes.addressof(self._bytes):
            _ok("acp_unregister_memory", -1, key)

    def __del__(self):
        try:
            self.close()
        except Error:
            pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def copy(dst, src, size, order=HANDLE_NULL):
    """Copies `size` bytes from `src` to `dst`, of any ranks; returns the handle."""
    return _ok("acp_copy", HANDLE_NULL, dst, src, size, order)


def _compare(name):
    def atomic(dst, src, oldval, newval, order=HANDLE_NULL):
        return _ok(f"acp_{name}", HANDLE_NULL, dst, src, oldval, newval, order)

    atomic.__name__ = name
    atomic.__doc__ = f"acp_{name}: where the word at `src` is `oldval` it becomes `newval`; what it was is stored to `dst`."
    return atomic


def _combine(name, what):
    def atomic(dst, src, value, order=HANDLE_NULL):
        return _ok(f"acp_{name}", HANDLE_NULL, dst, src, value, order)

    atomic.__name__ = name
    atomic.__doc__ = f"acp_{name}: the word at `src` {what}; what it was is stored to `dst`, this rank's."
    return atomic


cas4, cas8 = _compare("cas4"), _compare("cas8")
swap4, swap8 = (_combine(f"swap{width}", "becomes `value`") for width in (4, 8))
add4, add8 = (_combine(f"add{width}", "is added `value`") for width in (4, 8))
xor4, xor8 = (_combine(f"xor{width}", "is combined with `value` by exclusive or") for width in (4, 8))
or4, or8 = (_combine(f"or{width}", "is combined with `value` by or") for width in (4, 8))
and4, and8 = (_combine(f"and{width}", "is combined with `value` by and") for width in (4, 8))


def complete(handle=HANDLE_ALL):
    """Waits for an access and all before it."""
    _call("acp_complete", handle)


def inquire(handle=HANDLE_ALL):
    """Whether `complete` would return at once."""
    return _ok("acp_inquire", -1, handle) == 0


def malloc(size, of):
    """Allocates memory of rank `of`; returns its address."""
    return _ok("acp_malloc", GA_NULL, size, of)


def free(ga):
    """Frees what `malloc` has given to any rank."""
    _call("acp_free", ga)


def read(ga, size):
    """The bytes at `ga`, of any rank's."""
    scratch = scratch_region(size)
    complete(copy(scratch.ga, ga, size))
    return bytes(scratch.memory[:size])


def write(ga, data):
    """Copies bytes to `ga`, of any rank's; returns when they are there."""
    data = memoryview(data).cast("B")
    scratch = scratch_region(data.nbytes)
    scratch.memory[: data.nbytes] = data
    complete(copy(ga, scratch.ga, data.nbytes))


# Registered memory that calls put their bytes into. Each thread has its own: a call that waits for another rank lets others run.
_scratch = threading.local()


def _forget_scratch():
    global _scratch
    _scratch = threading.local()


def scratch_region(size):
    """Registered memory of at least `size` bytes that this thread may use until its next call here."""
    region = getattr(_scratch, "region", None)
    if region is None or len(region) < size:
        region = _scratch.region = Region(1 << max(size - 1, 4095).bit_length())
    return region
