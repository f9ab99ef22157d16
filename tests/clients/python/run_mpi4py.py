"""Runs the tests of mpi4py, as its source distribution has them, but for those that a list leaves out.

    run_mpi4py.py FOLDER LIST RESULTS [NAME...]

FOLDER is the distribution's folder `test`; LIST has a line for each test, class or module that is left out: its name,
without what comes before and after (`test_win.TestWinCreateDynamicSelf`), and the reason. NAMEs of the same kind leave out
the others. Each rank writes a file, RESULTS and its number: `start` and the name, then `end`, the name, `pass`, `skip`,
`fail` or `error`, and how many seconds it took, separated by tabs. What failed is printed in full at the end.
"""

import pathlib
import sys
import time
import unittest


class Lines(unittest.TestResult):
    """Writes what happens as it happens, so that a crash or a hang is found at the last line."""

    def __init__(self, file):
        super().__init__()
        self.file = file
        self.outcome = self.began = None

    def say(self, *words):
        print("\t".join(words), file=self.file)

    def startTest(self, test):
        super().startTest(test)
        self.outcome, self.began = "pass", time.monotonic()
        self.say("start", test.id())

    def stopTest(self, test):
        super().stopTest(test)
        self.say("end", test.id(), self.outcome, f"{time.monotonic() - self.began:.2f}")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.outcome = "skip"

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.outcome = "fail"

    def addError(self, test, err):
        super().addError(test, err)
        self.outcome = "error"

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err:
            self.outcome = "error"


def left_out(file):
    lines = [line.split(None, 1)[0] for line in file.read_text().splitlines() if line and not line.startswith("#")]
    return set(lines)


def within(test, names):
    """Whether one of the names is the test's, its class's or its module's."""
    words = test.id().split(".")
    return any(".".join(words[:n]) in names for n in range(1, len(words) + 1))


def each(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from each(test)
        else:
            yield test


def main():
    folder, leave, results = (pathlib.Path(a) for a in sys.argv[1:4])
    only, leave = set(sys.argv[4:]), left_out(leave)
    sys.path.insert(0, str(folder))
    # As runtests.py has it: no arrays in GPUs, which keep the tests that spawn from running.
    sys.modules["cupy"] = sys.modules["numba"] = None
    from mpi4py import MPI

    # In the same order on all ranks: most tests are collective.
    names = sorted(file.stem for file in folder.glob("test_*.py"))
    tests = list(each(unittest.TestLoader().loadTestsFromNames(n for n in names if n not in leave)))
    tests = [t for t in tests if not within(t, leave) and (not only or within(t, only))]
    with open(f"{results}{MPI.COMM_WORLD.rank}", "w", buffering=1) as file:
        result = Lines(file)
        unittest.TestSuite(tests).run(result)
    for test, trace in result.failures + result.errors:
        print(f"== rank {MPI.COMM_WORLD.rank} {test.id()}\n{trace}")
    print(f"rank {MPI.COMM_WORLD.rank}: {result.testsRun} tests, {len(result.failures + result.errors)} failed")
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
