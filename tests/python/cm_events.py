"""Events of librdmacm: what it has had since rdma-core 60, events of the program's own and names resolved in the background; and what becomes
of who connects before anybody listens. Prints "OK" where all held.

By ctypes, as the headers of older releases do not have the functions. Expectations: rdma_write_cm_event(3), rdma_resolve_addrinfo(3),
rdma_query_addrinfo(3), rdma_connect(3).
"""

import errno
import select
import socket
import struct
import time
from ctypes import CDLL, POINTER, Structure, byref, c_char_p, c_int, c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p, get_errno, string_at

TCP = 0x0106
UDP = 0x0111
ADDR_RESOLVED, ROUTE_RESOLVED, CONNECT_REQUEST, UNREACHABLE, REJECTED = 0, 2, 4, 7, 8
INVALID_SERVICE_ID, NOT_SUPPORTED = 8, 1  # Reason of a REJ (IBA 12.6.7.2), status of a SIDR_REP (12.11.2.1).
ADDRINFO_RESOLVED, ADDRINFO_ERROR, USER, INTERNAL, ESTABLISHED = 16, 17, 18, 19, 9
NUMERIC_HOST, SUBNET_ADMINISTRATOR, DNS = 2, 16, 32


class Channel(Structure):
    _fields_ = [("fd", c_int)]


class Event(Structure):
    _fields_ = [("id", c_void_p), ("listen_id", c_void_p), ("event", c_int), ("status", c_int), ("arg", c_uint64),
                ("rest", c_uint64 * 6)]


class ConnParam(Structure):
    _fields_ = [("private_data", c_void_p), ("private_data_len", c_uint8), ("responder_resources", c_uint8),
                ("initiator_depth", c_uint8), ("flow_control", c_uint8), ("retry_count", c_uint8), ("rnr_retry_count", c_uint8),
                ("srq", c_uint8), ("qp_num", c_uint32)]


class AddrInfo(Structure):
    _fields_ = [("flags", c_int), ("family", c_int), ("qp_type", c_int), ("port_space", c_int), ("src_len", c_uint32),
                ("dst_len", c_uint32), ("src_addr", c_void_p), ("dst_addr", c_void_p), ("src_canonname", c_char_p),
                ("dst_canonname", c_char_p), ("route_len", c_size_t), ("route", c_void_p), ("connect_len", c_size_t),
                ("connect", c_void_p), ("next", c_void_p)]


cm = CDLL("librdmacm.so.1", use_errno=True)
cm.rdma_create_event_channel.restype = POINTER(Channel)
cm.rdma_create_id.argtypes = [POINTER(Channel), POINTER(c_void_p), c_void_p, c_int]
cm.rdma_migrate_id.argtypes = [c_void_p, POINTER(Channel)]
cm.rdma_write_cm_event.argtypes = [c_void_p, c_int, c_int, c_uint64]
cm.rdma_bind_addr.argtypes = [c_void_p, c_char_p]
cm.rdma_listen.argtypes = [c_void_p, c_int]
cm.rdma_resolve_addr.argtypes = [c_void_p, c_char_p, c_char_p, c_int]
cm.rdma_resolve_route.argtypes = [c_void_p, c_int]
cm.rdma_connect.argtypes = [c_void_p, POINTER(ConnParam)]
cm.rdma_get_src_port.argtypes = [c_void_p]
cm.rdma_get_src_port.restype = c_uint16
cm.rdma_resolve_addrinfo.argtypes = [c_void_p, c_char_p, c_char_p, POINTER(AddrInfo)]
cm.rdma_query_addrinfo.argtypes = [c_void_p, POINTER(POINTER(AddrInfo))]
for function in (cm.rdma_destroy_id, cm.rdma_freeaddrinfo, cm.rdma_ack_cm_event):
    function.argtypes = [c_void_p]


def did(returned):
    assert returned == 0, (returned, errno.errorcode.get(get_errno()))


def refused(returned, why):
    assert (returned, get_errno()) == (-1, why), (returned, errno.errorcode.get(get_errno()))


def new_id(channel, space=TCP):
    made = c_void_p()
    did(cm.rdma_create_id(channel, byref(made), None, space))
    return made


def address(port):
    return struct.pack("=H2s4s8x", socket.AF_INET, struct.pack("!H", port), socket.inet_aton("127.0.0.1"))


def is_readable(channel):
    return select.select([channel.contents.fd], [], [], 0)[0] != []


def next_event(channel, of):
    event = POINTER(Event)()
    did(cm.rdma_get_cm_event(channel, byref(event)))
    found = event.contents
    assert of.value in (found.id, found.listen_id), "another identifier's"
    seen = (found.event, found.status, found.arg)
    did(cm.rdma_ack_cm_event(event))
    return seen


def answer(of):
    info = POINTER(AddrInfo)()
    did(cm.rdma_query_addrinfo(of, byref(info)))
    first = info.contents
    port, address = struct.unpack_from("!xxH4s", string_at(first.dst_addr, first.dst_len))
    said = (first.family, socket.inet_ntoa(address), port, first.port_space)
    cm.rdma_freeaddrinfo(info)
    return said


def events_of_the_programs_own(one, other):
    a = new_id(one)
    assert not is_readable(one)
    did(cm.rdma_write_cm_event(a, USER, -7, 0x1122334455667788))
    did(cm.rdma_write_cm_event(a, USER, 0, 2))
    assert is_readable(one)
    assert next_event(one, a) == (USER, -7, 0x1122334455667788)
    # What waits goes with the identifier.
    did(cm.rdma_migrate_id(a, other))
    assert not is_readable(one) and next_event(other, a) == (USER, 0, 2)
    for kind in (INTERNAL, ESTABLISHED, ADDRINFO_RESOLVED):
        refused(cm.rdma_write_cm_event(a, kind, 0, 0), errno.EINVAL)
    did(cm.rdma_write_cm_event(a, USER, 0, 3))
    did(cm.rdma_destroy_id(a))
    assert not is_readable(other), "an event of an identifier that is no more"


def names_in_the_background(channel):
    a = new_id(channel)
    refused(cm.rdma_query_addrinfo(a, byref(POINTER(AddrInfo)())), errno.ENOENT)
    did(cm.rdma_resolve_addrinfo(a, b"127.0.0.1", b"7471", None))
    assert next_event(channel, a)[:2] == (ADDRINFO_RESOLVED, 0)
    refused(cm.rdma_resolve_addrinfo(a, b"127.0.0.2", b"7471", None), errno.EBUSY)
    assert answer(a) == (socket.AF_INET, "127.0.0.1", 7471, TCP)
    refused(cm.rdma_query_addrinfo(a, byref(POINTER(AddrInfo)())), errno.ENOENT)
    did(cm.rdma_resolve_addrinfo(a, b"no.number", b"1", AddrInfo(flags=NUMERIC_HOST | DNS)))
    assert next_event(channel, a)[:2] == (ADDRINFO_ERROR, -errno.ENOENT)
    refused(cm.rdma_query_addrinfo(a, byref(POINTER(AddrInfo)())), errno.ENOENT)
    refused(cm.rdma_resolve_addrinfo(a, None, b"1", AddrInfo(flags=SUBNET_ADMINISTRATOR)), errno.EOPNOTSUPP)
    refused(cm.rdma_resolve_addrinfo(a, None, None, None), errno.EINVAL)
    # Nobody waits for this one.
    did(cm.rdma_resolve_addrinfo(a, b"127.0.0.3", b"1", None))
    did(cm.rdma_destroy_id(a))


def names_that_are_waited_for():
    a = new_id(None)
    did(cm.rdma_resolve_addrinfo(a, b"127.0.0.1", b"9", None))
    assert answer(a)[:3] == (socket.AF_INET, "127.0.0.1", 9)
    refused(cm.rdma_resolve_addrinfo(a, b"no.number", b"1", AddrInfo(flags=NUMERIC_HOST)), errno.ENOENT)
    did(cm.rdma_destroy_id(a))


def connecting(channel, space, port):
    """An identifier that connects, without a QP of its own."""
    a = new_id(channel, space)
    did(cm.rdma_resolve_addr(a, None, address(port), 2000))
    assert next_event(channel, a)[:2] == (ADDR_RESOLVED, 0)
    did(cm.rdma_resolve_route(a, 2000))
    assert next_event(channel, a)[:2] == (ROUTE_RESOLVED, 0)
    did(cm.rdma_connect(a, ConnParam(qp_num=0x1234, responder_resources=1, initiator_depth=1, retry_count=7)))
    return a


def before_anybody_listens(one, other):
    for space in (TCP, UDP):
        listener = new_id(one, space)
        did(cm.rdma_bind_addr(listener, address(0)))
        port = socket.ntohs(cm.rdma_get_src_port(listener))
        a = connecting(other, space, port)
        time.sleep(0.02)
        assert not is_readable(one) and not is_readable(other)
        did(cm.rdma_listen(listener, 1))
        assert next_event(one, listener)[:2] == (CONNECT_REQUEST, 0)
        did(cm.rdma_destroy_id(a))
        # The identifier of the request stays: nobody answers.
        did(cm.rdma_destroy_id(listener))
        # Nobody comes here, and one that is destroyed meanwhile is not missed.
        a, b = connecting(other, space, port), connecting(other, space, port)
        did(cm.rdma_destroy_id(b))
        refusal = (REJECTED, INVALID_SERVICE_ID) if space == TCP else (UNREACHABLE, NOT_SUPPORTED)
        assert next_event(other, a)[:2] == refusal
        did(cm.rdma_destroy_id(a))


def main():
    one, other = cm.rdma_create_event_channel(), cm.rdma_create_event_channel()
    events_of_the_programs_own(one, other)
    names_in_the_background(one)
    names_that_are_waited_for()
    before_anybody_listens(one, other)
    for channel in (one, other):
        cm.rdma_destroy_event_channel(channel)
    print("OK")


main()
