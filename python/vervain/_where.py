"""Where the command is. Imports little: the entry point starts through this module."""

from __future__ import annotations

import os


class Error(Exception):
    """Vervain cannot do what was asked; the text is the command's own sentence."""


def executable() -> str:
    """The path of the command `vervain`: that of the wheel, else the first in PATH.

    Raises Error if there is none, or it may not be executed.
    """
    # The tree of `make install`: the command finds its libraries in ../lib/vervain.
    bundled = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_prefix", "bin", "vervain")
    if not os.path.exists(bundled):
        return _in_path()
    if not os.access(bundled, os.X_OK):
        raise Error(f"{bundled} is not executable: unpacked without its mode (chmod +x), or on a noexec file system")
    return bundled


def _in_path() -> str:
    import shutil

    found = shutil.which("vervain")
    if found is None:
        raise Error("this package has no command vervain, and there is none in PATH")
    return found
