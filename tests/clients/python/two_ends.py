"""The other end of a transfer, in this process or in one of its own, for the scripts of packages that move data.

`other_end(cls, name, apart)` makes an object of `cls` and gives it, or gives a stand-in whose methods are those of the
object in another process. Every wait is bounded.
"""

import atexit
import multiprocessing
import random
import sys
import time

LIMIT = 30  # seconds


def pattern(seed, length):
    return random.Random(seed).randbytes(length)


def until(what, condition):
    """The first value of condition() that is true."""
    end = time.monotonic() + LIMIT
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            sys.exit(f"{what}: not within {LIMIT} s")
        time.sleep(0.0002)


class StandIn:
    def __init__(self, cls, name):
        # A fresh interpreter: a forked one would share this one's device.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, cls, name), daemon=True)
        self.process.start()
        theirs.close()
        atexit.register(self.end)

    def __getattr__(self, method):
        def call(*args):
            self.pipe.send((method, args))
            if not self.pipe.poll(LIMIT):
                sys.exit(f"{method}: no answer of the other process within {LIMIT} s")
            return self.pipe.recv()

        return call

    def end(self):
        self.pipe.close()
        self.process.join(LIMIT)
        if self.process.exitcode != 0:
            print(f"the other process ended with {self.process.exitcode}", file=sys.stderr)


def serve(pipe, cls, name):
    end = cls(name)
    while True:
        try:
            method, args = pipe.recv()
        except EOFError:
            return
        pipe.send(getattr(end, method)(*args))


def other_end(cls, name, apart):
    return StandIn(cls, name) if apart else cls(name)
