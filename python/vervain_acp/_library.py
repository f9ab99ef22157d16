"""libacp by ctypes: the functions of acp.h with their types, and nothing else."""

import ctypes
import operator
import os
import pathlib
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

ga_t = c_uint64
atkey_t = c_uint64
handle_t = c_int64


class element_t(Structure):
    """acp_element_t: bytes somewhere in global memory."""

    _fields_ = [("ga", ga_t), ("size", c_size_t)]


class pair_t(Structure):
    """acp_pair_t: key and value."""

    _fields_ = [("first", element_t), ("second", element_t)]


class map_t(Structure):
    """acp_map_t, which ranks may send to each other as the 24 bytes that it is."""

    _fields_ = [("ga", ga_t), ("num_ranks", c_uint64), ("num_slots", c_uint64)]


class map_it_t(Structure):
    """acp_map_it_t."""

    _fields_ = [("map", map_t), ("rank", c_int), ("slot", c_int), ("elem", ga_t)]


class multiset_t(Structure):
    """acp_multiset_t, which ranks may send to each other as the 24 bytes that it is."""

    _fields_ = [("ga", ga_t), ("num_ranks", c_uint64), ("num_slots", c_uint64)]


class multiset_it_t(Structure):
    """acp_multiset_it_t."""

    _fields_ = [("set", multiset_t), ("rank", c_int), ("slot", c_int), ("elem", ga_t)]


def _found():
    """libacp.so.3: that of ACP_LIBRARY, that of the installation which this package is of, that of the system."""
    named = os.environ.get("ACP_LIBRARY")
    if named:
        return ctypes.CDLL(named)
    for parent in pathlib.Path(__file__).resolve().parents:
        beside = parent / "lib" / "libacp.so.3"
        if beside.is_file():
            return ctypes.CDLL(str(beside))
    try:
        return ctypes.CDLL("libacp.so.3")
    except OSError as error:
        raise ImportError(f"{error}: install libacp, or name it in ACP_LIBRARY") from None


_word4 = [ga_t, ga_t, c_uint32, handle_t]
_word8 = [ga_t, ga_t, c_uint64, handle_t]
_FUNCTIONS = {
    # Basic layer.
    "acp_init": (c_int, [c_void_p, c_void_p]),
    "acp_finalize": (c_int, []),
    "acp_reset": (c_int, [c_int]),
    "acp_abort": (None, [c_char_p]),
    "acp_sync": (c_int, []),
    "acp_rank": (c_int, []),
    "acp_procs": (c_int, []),
    "acp_colors": (c_int, []),
    "acp_query_starter_ga": (ga_t, [c_int]),
    "acp_register_memory": (atkey_t, [c_void_p, c_size_t, c_int]),
    "acp_unregister_memory": (c_int, [atkey_t]),
    "acp_query_ga": (ga_t, [atkey_t, c_void_p]),
    "acp_query_address": (c_void_p, [ga_t]),
    "acp_query_rank": (c_int, [ga_t]),
    "acp_query_color": (c_int, [ga_t]),
    "acp_copy": (handle_t, [ga_t, ga_t, c_size_t, handle_t]),
    "acp_cas4": (handle_t, [ga_t, ga_t, c_uint32, c_uint32, handle_t]),
    "acp_cas8": (handle_t, [ga_t, ga_t, c_uint64, c_uint64, handle_t]),
    **{f"acp_{name}4": (handle_t, _word4) for name in ("swap", "add", "xor", "or", "and")},
    **{f"acp_{name}8": (handle_t, _word8) for name in ("swap", "add", "xor", "or", "and")},
    "acp_complete": (None, [handle_t]),
    "acp_inquire": (c_int, [handle_t]),
    "acp_error": (c_char_p, []),
    "acp_clear_error": (None, []),
    # Global allocation.
    "acp_malloc": (ga_t, [c_size_t, c_int]),
    "acp_free": (None, [ga_t]),
    # Maps.
    "acp_create_map": (map_t, [c_int, POINTER(c_int), c_int, c_int]),
    "acp_destroy_map": (None, [map_t]),
    "acp_clear_map": (None, [map_t]),
    "acp_empty_map": (c_int, [map_t]),
    "acp_size_map": (c_size_t, [map_t]),
    "acp_size_local_map": (c_size_t, [map_t]),
    "acp_insert_map": (c_int, [map_t, pair_t]),
    "acp_remove_map": (None, [map_t, element_t]),
    "acp_retrieve_map": (c_size_t, [map_t, pair_t]),
    "acp_find_map": (map_it_t, [map_t, element_t]),
    "acp_begin_map": (map_it_t, [map_t]),
    "acp_begin_local_map": (map_it_t, [map_t]),
    "acp_end_map": (map_it_t, [map_t]),
    "acp_end_local_map": (map_it_t, [map_t]),
    "acp_increment_map_it": (map_it_t, [map_it_t]),
    "acp_dereference_map_it": (pair_t, [map_it_t]),
    # Multisets.
    "acp_create_multiset": (multiset_t, [c_int, POINTER(c_int), c_int, c_int]),
    "acp_destroy_multiset": (None, [multiset_t]),
    "acp_clear_multiset": (None, [multiset_t]),
    "acp_empty_multiset": (c_int, [multiset_t]),
    "acp_size_multiset": (c_size_t, [multiset_t]),
    "acp_size_local_multiset": (c_size_t, [multiset_t]),
    "acp_insert_multiset": (c_int, [multiset_t, element_t]),
    "acp_remove_multiset": (None, [multiset_t, element_t]),
    "acp_remove_all_multiset": (None, [multiset_t, element_t]),
    "acp_retrieve_multiset": (c_uint64, [multiset_t, element_t]),
    "acp_find_multiset": (multiset_it_t, [multiset_t, element_t]),
    "acp_begin_multiset": (multiset_it_t, [multiset_t]),
    "acp_begin_local_multiset": (multiset_it_t, [multiset_t]),
    "acp_end_multiset": (multiset_it_t, [multiset_t]),
    "acp_end_local_multiset": (multiset_it_t, [multiset_t]),
    "acp_increment_multiset_it": (multiset_it_t, [multiset_it_t]),
    "acp_dereference_multiset_it": (element_t, [multiset_it_t]),
}


def _exact(integer):
    """An integer's type as an argument; ctypes alone takes any number, modulo what fits."""

    class Exact:
        @classmethod
        def from_param(cls, value):
            value = operator.index(value)
            if integer(value).value != value:
                raise OverflowError(f"{value} does not fit")
            return integer(value)

    return Exact


_EXACT = {integer: _exact(integer) for integer in (c_int, c_int64, c_uint32, c_uint64, c_size_t)}


def _declared():
    library = _found()
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = [_EXACT.get(argument, argument) for argument in arguments]
    return library


lib = _declared()
