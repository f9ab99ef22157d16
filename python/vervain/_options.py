"""The options of `vervain run`, as keyword arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict


class Options(TypedDict, total=False):
    """Options by their names, with `_` for `-`. None, or an option that is not given, leaves the environment's value.

    An empty string unsets the variable behind an option. `vervain run --help` explains values.
    """

    devices: int | None
    ports: int | None
    link_layer: Literal["ethernet", "infiniband", ""] | None
    link: Literal["auto", "local", "roce", "window", ""] | None
    interface: str | Sequence[str] | None
    window: str | os.PathLike[str] | None
    log: Literal["off", "error", "warn", "info", "debug", "trace", ""] | None
    memory: Literal["auto", "vm", "owner", ""] | None
    share: Literal["auto", "always", "off", ""] | None
    fork_limit: int | str | None
    adopt: bool | Literal["on", "off", ""] | None
    faults: str | Sequence[str] | None
    pcap: str | os.PathLike[str] | None
    lib_dir: str | os.PathLike[str] | None
    no_preload: bool
    verbose: bool


NAMES = frozenset(Options.__annotations__)
# Options without a value; `adopt` is a setting of on and off.
_FLAGS = frozenset({"no_preload", "verbose"})


def words(options: Mapping[str, Any]) -> list[str]:
    """The options as words of the command line. Raises TypeError for a name that is none."""
    line = []
    for name, value in options.items():
        if name not in NAMES:
            raise TypeError(f"'{name}' is no option of `vervain run`; they are {', '.join(sorted(NAMES))}")
        option = "--" + name.replace("_", "-")
        if name in _FLAGS:
            line += [option] if value else []
        elif value is not None:
            line.append(f"{option}={_text(value)}")
    return line


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
