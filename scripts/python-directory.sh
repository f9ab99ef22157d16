#!/bin/sh
# python-directory.sh PREFIX: prints the directory, as seen from PREFIX, that Python packages are installed into: the one below PREFIX
# where this machine's python3 looks, or else one that has to be named in PYTHONPATH.
set -eu
prefix=${1%/}
python3 - "$prefix" 2>/dev/null <<'END' || echo lib/python3/dist-packages
import os, site, sys

prefix = os.path.normpath(sys.argv[1])
# Debian's own packages have dist-packages below lib/python3, which no version of Python changes.
found = [path for path in map(os.path.normpath, site.getsitepackages()) if os.path.dirname(path).startswith(prefix + "/lib/")]
first = min(found, key=lambda path: path != prefix + "/lib/python3/dist-packages")
print(os.path.relpath(first, prefix))
END
