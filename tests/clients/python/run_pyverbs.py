"""Runs the tests of pyverbs, as the package rdma-core ships them, and notes what each does.

    run_pyverbs.py FROM TO [--dev NAME] [--port N] [--gid N] [NAME...]

FROM is the package's folder, partly gzipped; TO an empty one that it is unpacked into. NAMEs of tests leave out the
others. TO/results gets a line for each as it happens, words separated by tabs: `start` and the name; `end`, the name,
`pass`, `skip`, `fail` or `error`, and the reason of a skip. What failed is printed in full at the end.
"""

import gzip
import importlib
import pathlib
import shutil
import sys
import unittest


def unpack(source, target):
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.suffix == ".gz":
            with gzip.open(file) as packed, open(target / file.stem, "wb") as plain:
                shutil.copyfileobj(packed, plain)
        elif file.is_file():
            shutil.copy(file, target)


class Lines(unittest.TestResult):
    """Writes what happens as it happens, so that a crash is found at the last line."""

    def __init__(self, file):
        super().__init__()
        self.file = file

    def say(self, *words):
        print("\t".join(" ".join(str(w).split()) for w in words), file=self.file)

    def startTest(self, test):
        super().startTest(test)
        self.say("start", test.id())

    def addSuccess(self, test):
        super().addSuccess(test)
        self.say("end", test.id(), "pass")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.say("end", test.id(), "skip", reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.say("end", test.id(), "fail")

    def addError(self, test, err):
        super().addError(test, err)
        self.say("end", test.id(), "error")


def main():
    source, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]) / "tests"
    unpack(source, folder)
    # As run_tests.py has it: its folder, and the package `tests` above it.
    sys.path[:0] = [str(folder), str(folder.parent)]
    sys.argv[1:3] = []
    parser = importlib.import_module("args_parser").parser
    parser.parse_args()
    tests, loader = importlib.import_module("tests"), unittest.TestLoader()
    suite = loader.loadTestsFromNames(sys.argv[1:]) if sys.argv[1:] else loader.loadTestsFromModule(tests)
    with open(folder.parent / "results", "w", buffering=1) as file:
        result = Lines(file)
        suite.run(result)
    for test, trace in result.failures + result.errors:
        print(f"== {test.id()}\n{trace}")


if __name__ == "__main__":
    main()
