"""Binds 20 identifiers of librdmacm one after the other, each at a port of its own. Prints "OK" where all could be."""

import socket
import struct
from ctypes import CDLL, byref, c_char_p, c_int, c_void_p, get_errno

cm = CDLL("librdmacm.so.1", use_errno=True)
cm.rdma_create_event_channel.restype = c_void_p
cm.rdma_create_id.argtypes = [c_void_p, c_void_p, c_void_p, c_int]
cm.rdma_bind_addr.argtypes = [c_void_p, c_char_p]
cm.rdma_destroy_id.argtypes = [c_void_p]

TCP = 0x0106
channel = cm.rdma_create_event_channel()
assert channel, get_errno()
for _ in range(20):
    made = c_void_p()
    assert cm.rdma_create_id(channel, byref(made), None, TCP) == 0, get_errno()
    assert cm.rdma_bind_addr(made, struct.pack("=H14x", socket.AF_INET)) == 0, get_errno()
    assert cm.rdma_destroy_id(made) == 0, get_errno()
print("OK")
