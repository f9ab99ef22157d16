"""`python -m vervain`, and the entry point `vervain`: becomes the command, whose pid and exit status are its own."""

from __future__ import annotations

import os
import sys

from ._where import Error, executable


def main() -> None:
    """Exit status 126 if the command cannot be executed, as of `vervain run`."""
    try:
        command = executable()
        os.execv(command, ["vervain", *sys.argv[1:]])
    except (Error, OSError) as error:
        print(f"vervain: {error}", file=sys.stderr)
        sys.exit(126)


if __name__ == "__main__":
    main()
