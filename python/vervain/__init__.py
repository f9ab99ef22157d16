"""RDMA without RDMA hardware: run programs on Vervain's devices, and test them.

    import vervain

    vervain.run(["ibv_devinfo"], check=True)

    with vervain.Session(link="roce") as rdma:
        lossy = rdma.with_faults("drop=1%", seed=7)
        server = lossy.popen(["./my-server", "--port", "7000"])
        server.wait_listening(7000)
        lossy.run(["./my-client", "localhost:7000"], check=True)
        assert lossy.counters()["resent_pkts"] > 0

Options have the names and values of those of `vervain run`, with `_` for `-`. pytest's fixture `rdma` is a Session.
"""

from __future__ import annotations

from ._where import Error, executable

# A type checker's constant. The module typing, and all that talks to the command, would more than double the start of
# the command from a shell, which is this package's entry point.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._command import Device, Gid, Port, devices, env, run
    from ._options import Options
    from ._process import Process
    from ._session import Session

_MODULES = {
    **dict.fromkeys(("Device", "Gid", "Port", "devices", "env", "run"), "_command"),
    "Options": "_options",
    "Process": "_process",
    "Session": "_session",
}

__all__ = ["Device", "Error", "Gid", "Options", "Port", "Process", "Session", "devices", "env", "executable", "run"]


def __getattr__(name: str) -> object:
    """A public name, imported when it is first used (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from importlib import import_module

    globals()[name] = value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return __all__
