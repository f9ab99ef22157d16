"""A session: options, and a place of its own where the counters of the programs that run with them begin at 0."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from . import _command
from ._command import Device, Error, Program
from ._process import LIMIT, Process, kill_until_none, with_variable

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self, Unpack

    from ._options import Options

# Names the directory below which the command keeps what its programs share: docs/environment.md.
_PLACE = "XDG_RUNTIME_DIR"
# A file beside the counters that is none, and a counter of the interface that no program changes: docs/counters.md.
_NO_COUNTER = "lifespan"
_OF_THE_HOST = "link_downed"


class Session:
    """Devices for the programs of one test. Used by `with`, or closed by `close`, which kills what still runs.

    Programs of a session share its counters, and reach each other; programs of other sessions reach them too, since all
    sessions of a user are on one network. In its programs XDG_RUNTIME_DIR names a directory of the session.
    """

    def __init__(self, **options: Unpack[Options]) -> None:
        """A session whose programs run with these options of `vervain run`. Raises Error if one has a wrong value."""
        __tracebackhide__ = True
        self.options = options
        # Of this user only: the command keeps nothing in a directory that others may enter.
        self._directory = Path(tempfile.mkdtemp(prefix="vervain-"))
        self._processes: list[Process] = []
        self._derived: list[Session] = []
        without_run = {name: value for name, value in options.items() if name != "verbose"}
        try:
            #: The whole environment of a program of this session, for subprocess's `env`.
            self.env = _command.environment(self._base(), without_run)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"Session({', '.join(f'{name}={value!r}' for name, value in self.options.items())})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kills all that the session's programs have started, closes sessions made from it, removes its directory."""
        # What cannot be closed hinders no other.
        with contextlib.ExitStack() as last_first:
            last_first.callback(shutil.rmtree, self._directory, ignore_errors=True)
            # Those that have left the Unix session of their program still have the directory in their environment.
            last_first.callback(kill_until_none, lambda: with_variable(f"{_PLACE}={self._directory}"))
            for process in self._processes:
                last_first.callback(process.close)
            for session in self._derived:
                last_first.callback(session.close)

    def with_options(self, **options: Unpack[Options]) -> Session:
        """A session with other options beside this one's, with counters of its own. This one closes it."""
        __tracebackhide__ = True
        session = Session(**cast("Options", {**self.options, **options}))
        self._derived.append(session)
        return session

    def with_faults(self, faults: str | Sequence[str], seed: int | None = None) -> Session:
        """A session whose packets meet faults, such as "drop=1%"; a seed decides the same again.

        Only packets meet faults, so `link` is "roce", unless this session has one.
        """
        __tracebackhide__ = True
        items = [faults] if isinstance(faults, str) else list(faults)
        if seed is not None:
            items.append(f"seed={seed}")
        return self.with_options(link=self.options.get("link") or "roce", faults=items)

    def _base(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        return {**os.environ, _PLACE: str(self._directory), **(more or {})}

    @functools.cached_property
    def devices(self) -> list[Device]:
        """The devices that programs of this session see."""
        of_programs = ("no_preload", "verbose")
        return _command.listed(self._base(), {k: v for k, v in self.options.items() if k not in of_programs})

    def popen(
        self,
        program: Program,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        input: str | None = None,
    ) -> Process:
        """Starts a program on the session's devices. `env` has additional variables, `input` is its standard input."""
        line = _command.under_vervain(program, self.options)
        process = Process(line, self._directory / str(len(self._processes)), self._base(env), cwd, input)
        self._processes.append(process)
        return process

    def run(
        self,
        program: Program,
        *,
        check: bool = False,
        timeout: float = LIMIT,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        input: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program to its end, as subprocess.run with its output as text; `env` has additional variables.

        Raises subprocess.CalledProcessError if it fails, with `check`, and subprocess.TimeoutExpired after `timeout`
        seconds, when it has been killed.
        """
        # A traceback of pytest ends with the line of the test.
        __tracebackhide__ = True
        process = self.popen(program, env=env, cwd=cwd, input=input)
        try:
            status = process.wait(timeout)
        except BaseException:
            process.kill()
            raise
        if check and status != 0:
            raise subprocess.CalledProcessError(status, process.args, process.output, process.errors)
        return subprocess.CompletedProcess(process.args, status, process.output, process.errors)

    def counters(self, device: str = "*", port: int | str = "*") -> dict[str, int]:
        """The counters of a device's port, or the sums over all, by their names in docs/counters.md.

        They count all programs that this session has started, also while these run. Raises Error if they cannot
        be read.
        """
        # The preload gives a program that opens a counter its value, so a program of the session has to read them.
        files = " ".join(
            f"/sys/class/infiniband/{device}/ports/{port}/{kind}/*" for kind in ("counters", "hw_counters")
        )
        options = {**self.options, "no_preload": False, "verbose": False}
        line = _command.under_vervain(["sh", "-c", f"grep -H . {files}"], options)
        end = subprocess.run(line, env=self._base(), stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if end.returncode != 0:
            raise Error(f"the counters cannot be read: {_command.sentence(end.stderr)}")
        sums: dict[str, int] = {}
        for row in end.stdout.splitlines():
            path, _, value = row.rpartition(":")
            name = path.rpartition("/")[2]
            if name != _NO_COUNTER:
                sums[name] = sums.get(name, 0) + int(value)
        return sums

    def report(self) -> list[tuple[str, str]]:
        """Titles and texts that explain a failure: what each program has printed, how it ended, and the counters."""
        sections = []
        if self._processes:
            sections.append((f"{self!r}: programs", "\n".join(process.report() for process in self._processes)))
            sections.append((f"{self!r}: counters that are not 0", self._counters_as_text()))
        return sections + [section for session in self._derived for section in session.report()]

    def _counters_as_text(self) -> str:
        try:
            counted = {name: value for name, value in self.counters().items() if value and name != _OF_THE_HOST}
        except (Error, OSError) as error:
            return str(error)
        width = max(map(len, counted), default=0)
        return "\n".join(f"{name:{width}}  {value}" for name, value in counted.items()) or "none"
