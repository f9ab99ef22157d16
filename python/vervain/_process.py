"""A program that a session has started: its output lies in files, and it is killed with all that it has started."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ._where import Error

#: Seconds that only a hang takes.
LIMIT = 120.0
# Seconds between two looks at a condition for which the kernel has no event.
_LOOK = 0.01
# Lines of each output in a report: the end is what explains a failure.
_LAST_LINES = 60


class Process:
    """A running program. Its output is kept in files, so it never blocks on a pipe that nobody reads."""

    def __init__(
        self,
        line: Sequence[str],
        files: Path,
        env: Mapping[str, str],
        cwd: str | os.PathLike[str] | None = None,
        input: str | None = None,
    ) -> None:
        """Starts `line`; `files` is where its output lies, with .out and .err behind the name."""
        self.args = list(line)
        self._files = files
        self._status: int | None = None
        self._reaped = False
        file = self._file
        file("in").write_text(input or "")
        with file("in").open("rb") as stdin, file("out").open("wb") as out, file("err").open("wb") as err:
            self._popen = subprocess.Popen(
                line, stdin=stdin, stdout=out, stderr=err, env=env, cwd=cwd, start_new_session=True
            )

    def _file(self, end: str) -> Path:
        return self._files.with_name(f"{self._files.name}.{end}")

    @property
    def pid(self) -> int:
        """The program's process id, which is that of its process group and of its Unix session too."""
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """As of subprocess: the exit status, minus the number of the signal that ended it, or None while it runs."""
        return self.poll()

    @property
    def output(self) -> str:
        """All that it has written to standard output by now."""
        return self._file("out").read_text(errors="replace")

    @property
    def errors(self) -> str:
        """All that it has written to standard error by now."""
        return self._file("err").read_text(errors="replace")

    def poll(self) -> int | None:
        """`returncode`, looked at now."""
        # The process stays a zombie until `close`: so its number names nobody else when its children are looked for.
        if self._status is None:
            end = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if end is not None:
                self._status = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
        return self._status

    def wait(self, timeout: float = LIMIT) -> int:
        """Waits for its end and returns `returncode`.

        Raises subprocess.TimeoutExpired after so many seconds; it runs on then.
        """
        __tracebackhide__ = True
        end = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(self.args, timeout, self.output, self.errors)
            time.sleep(_LOOK)
        return status

    def wait_listening(self, port: int, timeout: float = LIMIT) -> None:
        """Waits until it or one of its children listens on a port, by TCP or rdma_cm.

        Raises Error if it ends before, subprocess.TimeoutExpired after so many seconds.
        """
        __tracebackhide__ = True
        end = time.monotonic() + timeout
        # Looked at without a connection, which would be the only one that many servers of RDMA tools accept.
        while not self._listens(port):
            if self.poll() is not None:
                raise Error(f"`{shlex.join(self.args)}` {self._how_it_is()} before it listened on port {port}")
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(self.args, timeout, self.output, self.errors)
            time.sleep(_LOOK)

    def _listens(self, port: int) -> bool:
        sockets = set()
        for family in ("tcp", "tcp6"):
            for columns in self._table(family):
                # The local address, the state (0A is LISTEN) and the inode: proc(5).
                if columns[3] == "0A" and int(columns[1].rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{columns[9]}]")
        for columns in self._table("unix"):
            # A service of rdma_cm has a name that ends with /cm/, its number, which ends with the port, and an address.
            service = columns[7].rpartition("/")[0].rpartition("/cm/")[2] if len(columns) > 7 else ""
            if service.endswith(f"{port:04x}") and "/cm/" in columns[7]:
                sockets.add(f"socket:[{columns[6]}]")
        return bool(sockets) and any(sockets & _descriptors(pid) for pid in self._members())

    def _table(self, name: str) -> list[list[str]]:
        """The columns of each line of a table of sockets, which is that of the program's network namespace."""
        text = _bytes(f"/proc/{self.pid}/net/{name}").decode(errors="replace")
        return [line.split() for line in text.splitlines()[1:]]

    def _members(self) -> list[int]:
        """The processes of its Unix session that have not ended."""
        return [pid for pid in _processes() if _unix_session(pid) == self.pid]

    def kill(self) -> None:
        """Ends it and all processes of its Unix session with SIGKILL, and waits until they are gone."""
        if not self._reaped:
            self.poll()
            kill_until_none(self._members)
            self.poll()

    def close(self) -> None:
        """As `kill`; from then on its number may be another process's."""
        if not self._reaped:
            self.kill()
            self._popen.wait()
            self._reaped = True

    def _how_it_is(self) -> str:
        status = self._status
        if status is None:
            return "was still running"
        return f"ended with status {status}" if status >= 0 else f"was ended by {signal.Signals(-status).name}"

    def report(self) -> str:
        """The command line, how it ended, and the last lines that it has printed."""
        self.poll()
        parts = [f"$ {shlex.join(self.args)}", f"  {self._how_it_is()}"]
        for name, text in (("standard output", self.output), ("standard error", self.errors)):
            lines = text.splitlines()
            if lines:
                left_out = len(lines) - _LAST_LINES
                parts.append(f"  {name}:" if left_out <= 0 else f"  {name}, after {left_out} lines:")
                parts += ["    " + line for line in lines[-_LAST_LINES:]]
        return "\n".join(parts)


def kill_until_none(find: Callable[[], Sequence[int]]) -> None:
    """Kills the processes that `find` finds until it finds none: one that starts others is a moment faster.

    Raises Error if some are there for a time that only a process takes which the kernel cannot end.
    """
    end = time.monotonic() + LIMIT
    while found := find():
        if time.monotonic() > end:
            raise Error(f"processes {', '.join(map(str, found))} do not end by SIGKILL")
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK)


def with_variable(assignment: str) -> list[int]:
    """The processes of this user that were started with a variable, given as NAME=VALUE."""
    wanted = assignment.encode()
    return [pid for pid in _processes() if pid != os.getpid() and wanted in _bytes(f"/proc/{pid}/environ").split(b"\0")]


def _processes() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _unix_session(pid: int) -> int:
    """The Unix session of a process, 0 if it has ended."""
    # Behind the name, which may hold anything: state, parent, group, session (proc(5)).
    columns = _bytes(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(columns[3]) if columns and columns[0] != b"Z" else 0


def _bytes(path: str) -> bytes:
    """A file of /proc, empty if its process has ended or is another user's."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _descriptors(pid: int) -> set[str]:
    """What the descriptors of a process are, as links of /proc name it."""
    folder = f"/proc/{pid}/fd"
    found = set()
    try:
        for descriptor in os.listdir(folder):
            found.add(os.readlink(f"{folder}/{descriptor}"))
    except OSError:
        # The process or a descriptor has gone meanwhile; the next look sees what there is then.
        pass
    return found
