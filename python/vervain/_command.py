"""The command, asked and executed by Python: what `vervain run`, `vervain env` and `vervain devices` do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Union, cast

from . import _options
from ._where import Error, executable

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import Options

__all__ = ["Device", "Error", "Gid", "Port", "devices", "env", "executable", "run"]

#: A program with its arguments, or a program alone.
Program = Union[str, "os.PathLike[str]", "Sequence[Union[str, os.PathLike[str]]]"]


class Gid(TypedDict):
    """An entry of a port's GID table; `netdev` is the interface that it comes from, if any."""

    index: int
    gid: str
    type: str
    netdev: str | None


class Port(TypedDict):
    """A port; numbers as in `struct ibv_port_attr`."""

    number: int
    state: int
    phys_state: int
    link_layer: str
    active_mtu: int
    max_mtu: int
    active_width: int
    active_speed: int
    lid: int
    sm_lid: int
    sm_sl: int
    lmc: int
    cap_mask: int
    gid_tbl_len: int
    gids: list[Gid]
    pkeys: list[int]


class Device(TypedDict):
    """A device as programs see it; GUIDs are four groups of four hexadecimal digits."""

    name: str
    uverbs: str
    node_type: int
    fw_ver: str
    node_guid: str
    sys_image_guid: str
    vendor_id: int
    vendor_part_id: int
    hw_ver: int
    ports: list[Port]


def under_vervain(program: Program, options: Mapping[str, Any]) -> list[str]:
    """The command line that runs a program on Vervain's devices."""
    # A text is a sequence too, of its letters.
    whole = [program] if isinstance(program, (str, os.PathLike)) else program
    return [executable(), "run", *_options.words(options), "--", *(os.fspath(word) for word in whole)]


def run(program: Program, **options: Any) -> subprocess.CompletedProcess[Any]:
    """As subprocess.run, on Vervain's devices; takes the options of both, such as `link="roce"` and `check=True`.

    Exit status 2 means a wrong option, 125 that Vervain failed, 126 and 127 that the program cannot be executed or is
    missing; standard error has the sentence. Raises what subprocess.run does, and Error if there is no command.
    """
    for name in ("shell", "executable"):
        if options.get(name):
            raise ValueError(f"{name} would replace the command; the list begins with it: ['sh', '-c', …]")
    device = {name: options.pop(name) for name in _options.NAMES & options.keys()}
    return subprocess.run(under_vervain(program, device), **options)


def env(**options: Unpack[Options]) -> dict[str, str]:
    """This process's environment with the variables that put a program on Vervain's devices, for subprocess's `env`.

    Raises Error if an option or a variable has a wrong value.
    """
    return environment(dict(os.environ), options)


def environment(base: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, str]:
    """`base` with the variables of `vervain env` that it gets by these options."""
    __tracebackhide__ = True
    variables: dict[str, str] = json.loads(ask("env", ["--format=json", *_options.words(options)], base))
    # An empty value stands for a variable that is to be unset.
    return {name: value for name, value in {**base, **variables}.items() if value or name not in variables}


def devices(**options: Unpack[Options]) -> list[Device]:
    """The devices that a program gets by these options. Raises Error if an option or a variable has a wrong value."""
    return listed(dict(os.environ), options)


def listed(base: Mapping[str, str], options: Mapping[str, Any]) -> list[Device]:
    """The devices of a program in the environment `base`."""
    return cast("list[Device]", json.loads(ask("devices", ["--json", *_options.words(options)], base)))


def ask(subcommand: str, words: Sequence[str], base: Mapping[str, str]) -> str:
    """What a subcommand prints; its warnings go to standard error. Raises Error with its sentence if it fails."""
    __tracebackhide__ = True
    line = [executable(), subcommand, *words]
    end = subprocess.run(line, env=base, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if end.returncode != 0:
        raise Error(sentence(end.stderr) or f"`vervain {subcommand}` ended with status {end.returncode}")
    sys.stderr.write(end.stderr)
    return end.stdout


def sentence(said: str) -> str:
    """The last line of standard error, without the command's name."""
    last = said.strip().rpartition("\n")[2]
    return last[len("vervain: ") :] if last.startswith("vervain: ") else last
