"""Two NIXL agents move data over UCX, in memory of the CPU, and check it.

    nixl_agents.py one | two        (processes)

The wheel needs no GPU for that, and no torch. UCX_TLS says by what it goes.
"""

import ctypes
import sys

import numpy as np
from nixl_cu12 import nixl_agent, nixl_agent_config

from two_ends import other_end, pattern, until

LENGTH = 8 << 20
PIECES = 16  # of a transfer of several descriptors


class End:
    """An agent with a piece of registered memory."""

    def __init__(self, name):
        self.name = name
        self.agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
        self.memory = np.zeros(LENGTH, np.uint8)
        self.address = self.memory.ctypes.data
        self.registered = self.agent.register_memory([(self.address, LENGTH, 0, name)], "DRAM")

    def introduction(self):
        return self.name, self.agent.get_agent_metadata(), self.address

    def fill(self, seed, length):
        self.memory[:] = 0
        ctypes.memmove(self.address, pattern(seed, length), length)

    def has(self, seed, length):
        return ctypes.string_at(self.address, length) == pattern(seed, length) and not self.memory[length:].any()

    def notification(self):
        """The agent that sent the next one, and its text."""
        [(agent, texts)] = until("a notification", self.agent.get_new_notifs).items()
        return agent, texts


class Transfers:
    def __init__(self, mine, other):
        self.mine, self.other = mine, other
        name, metadata, self.address = other.introduction()
        self.peer = mine.agent.add_remote_agent(metadata)
        assert self.peer == name.encode(), self.peer

    def move(self, direction, pieces, text):
        """Moves pieces, (offset, length) each, and sends `text` behind them."""
        local, remote = (
            self.mine.agent.get_xfer_descs([(base + at, length, 0) for at, length in pieces], "DRAM")
            for base in (self.mine.address, self.address)
        )
        handle = self.mine.agent.initialize_xfer(direction, local, remote, self.peer, text)
        state = [self.mine.agent.transfer(handle)]

        def done():
            assert state[0] in ("DONE", "PROC"), state
            if state[0] != "DONE":
                state[0] = self.mine.agent.check_xfer_state(handle)
            return state[0] == "DONE"

        until(direction, done)
        assert self.other.notification() == (self.mine.name, [text])
        self.mine.agent.release_xfer_handle(handle)

    def check(self, seed, length, pieces):
        self.mine.fill(seed, length)
        self.other.fill(seed + 1, 0)
        self.move("WRITE", pieces, b"written %d" % length)
        assert self.other.has(seed, length), f"WRITE of {length} in {len(pieces)}"
        self.other.fill(seed + 2, length)
        self.mine.fill(seed + 1, 0)
        self.move("READ", pieces, b"read %d" % length)
        assert self.mine.has(seed + 2, length), f"READ of {length} in {len(pieces)}"


def main():
    mine, other = End("initiator"), other_end(End, "target", sys.argv[1] == "two")
    transfers = Transfers(mine, other)
    moved = 0
    for seed, length in enumerate([1, 4096, 100_000, LENGTH]):
        transfers.check(10 * seed, length, [(0, length)])
        moved += 2 * length
    piece = LENGTH // PIECES
    transfers.check(99, LENGTH, [(at * piece, piece) for at in range(PIECES)])
    moved += 2 * LENGTH
    mine.agent.send_notif(transfers.peer, b"alone")
    assert other.notification() == (mine.name, [b"alone"])
    print(f"moved {moved} bytes")


if __name__ == "__main__":
    main()
