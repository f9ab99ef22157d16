"""Two of Mooncake's transfer engines move data by RDMA, in memory of the CPU, and check it.

    mooncake_engines.py one | two   (processes)

The engines find each other by themselves (P2PHANDSHAKE), without a metadata server.
"""

import ctypes
import mmap
import sys

from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode

from two_ends import other_end, pattern, until

LENGTH = 8 << 20
PIECES = 16  # of a batch
HOST = "127.0.0.1"


class End:
    """An engine with a piece of registered memory."""

    def __init__(self, name):
        self.engine = TransferEngine()
        status = self.engine.initialize(HOST, "P2PHANDSHAKE", "rdma", "vervain0")
        assert status == 0, f"{name}: initialize gave {status}"
        self.memory = mmap.mmap(-1, LENGTH)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        status = self.engine.register_memory(self.address, LENGTH)
        assert status == 0, f"{name}: register_memory gave {status}"

    def introduction(self):
        return f"{HOST}:{self.engine.get_rpc_port()}", self.address

    def topology(self):
        return self.engine.get_local_topology()

    def fill(self, seed, length):
        self.memory[:] = pattern(seed, length) + bytes(LENGTH - length)

    def has(self, seed, length):
        return self.memory[:] == pattern(seed, length) + bytes(LENGTH - length)

    def notification(self):
        """The names and texts of those that have come."""
        return [(n.name, n.msg) for n in until("a notification", self.engine.get_notifies)]


def check(what, mine, other, move, seed, length, opcode):
    source, target = (mine, other) if opcode == TransferOpcode.Write else (other, mine)
    source.fill(seed, length)
    target.fill(seed, 0)
    status = move()
    assert status == 0, f"{what} of {length}: {status}"
    assert target.has(seed, length), f"{what} of {length}: other bytes"
    return length


def main():
    mine, other = End("initiator"), other_end(End, "target", sys.argv[1] == "two")
    peer, address = other.introduction()
    assert "vervain0" in mine.topology(), mine.topology()
    engine, moved = mine.engine, 0
    for seed, length in enumerate([1, 4096, 100_000, LENGTH]):
        for opcode in (TransferOpcode.Write, TransferOpcode.Read):

            def move():
                return engine.transfer_sync(peer, mine.address, address, length, opcode)

            moved += check(opcode, mine, other, move, 10 * seed, length, opcode)
    piece = LENGTH // PIECES
    here, there = ([base + at * piece for at in range(PIECES)] for base in (mine.address, address))
    for opcode in (TransferOpcode.Write, TransferOpcode.Read):

        def batch():
            return engine.batch_transfer_sync(peer, here, there, [piece] * PIECES, opcode)

        moved += check(f"batch {opcode}", mine, other, batch, 99, LENGTH, opcode)

    def notified():
        text = TransferNotify("initiator", "written")
        return engine.transfer_sync(peer, mine.address, address, 4096, TransferOpcode.Write, text)

    moved += check("with a notification", mine, other, notified, 7, 4096, TransferOpcode.Write)
    assert other.notification() == [("initiator", "written")]
    # A key that no memory has: an error, and not the end of the engine.
    assert engine.transfer_sync_write(peer, mine.address, address + LENGTH, 4096) != 0
    print(f"moved {moved} bytes")


if __name__ == "__main__":
    main()
