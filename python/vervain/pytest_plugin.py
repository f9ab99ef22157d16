"""The fixture `rdma` and the marker of the same name. pytest finds this module by an entry point of the package."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from ._options import NAMES
from ._session import Session
from ._where import Error

# The session of each test that runs; pytest's own place for such things is younger than the pytest of Ubuntu 22.04.
_SESSIONS: WeakKeyDictionary[pytest.Item, Session] = WeakKeyDictionary()


def pytest_configure(config: pytest.Config) -> None:
    """Declares the marker."""
    line = "rdma(**options): options of the fixture `rdma`, as of `vervain run`: link='roce', faults='drop=1%', …"
    config.addinivalue_line("markers", line)


@pytest.fixture
def rdma(request: pytest.FixtureRequest) -> Iterator[Session]:
    """RDMA devices for this test, a vervain.Session: run, popen, env, devices, counters, with_faults.

    The marker `rdma` gives options. What still runs at the end of the test is killed.
    """
    options: dict[str, Any] = {}
    # The nearest mark comes first, and its options count.
    for mark in reversed(list(request.node.iter_markers("rdma"))):
        unknown = sorted(mark.kwargs.keys() - NAMES)
        if mark.args or unknown:
            wrong = ", ".join([*map(repr, mark.args), *unknown])
            pytest.fail(f"mark rdma: {wrong} is no option; they are {', '.join(sorted(NAMES))}", pytrace=False)
        options.update(mark.kwargs)
    try:
        session = Session(**options)
    except Error as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    with session:
        _SESSIONS[request.node] = session
        yield session
        del _SESSIONS[request.node]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Adds to the report of a failure what the programs have printed, and the counters."""
    outcome = yield
    report = outcome.get_result()
    session = _SESSIONS.get(item)
    if report.failed and session is not None:
        report.sections.extend(session.report())
