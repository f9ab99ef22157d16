#!/usr/bin/env python3
"""make-wheel.py BUILD_DIR PACKAGE_DIR VERSION: makes the Python wheel of the command, its libraries and python/vervain.

The last line that it prints is the wheel's path. Needs nothing but Python, a C compiler and binutils, which building
needs too. The format is PEP 427's. The same files and SOURCE_DATE_EPOCH give the same bytes.
"""

import base64
import hashlib
import io
import os
import pathlib
import re
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Below the package, as `make install PREFIX=` has them: the command finds its libraries in ../lib/vervain.
PREFIX = "vervain/_prefix"

METADATA = """\
Metadata-Version: 2.4
Name: vervain
Version: {version}
Summary: RDMA without RDMA hardware: run and test programs that use libibverbs
License-Expression: MIT OR Apache-2.0
License-File: LICENSE-MIT
License-File: LICENSE-APACHE
Keywords: RDMA,InfiniBand,RoCE,libibverbs,testing
Classifier: Development Status :: 4 - Beta
Classifier: Environment :: Console
Classifier: Framework :: Pytest
Classifier: Intended Audience :: Developers
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Programming Language :: Rust
Classifier: Topic :: Software Development :: Testing
Classifier: Topic :: System :: Networking
Classifier: Typing :: Typed
Requires-Python: >=3.9
Description-Content-Type: text/markdown

{description}"""

WHEEL = """\
Wheel-Version: 1.0
Generator: make-wheel.py
Root-Is-Purelib: false
Tag: {tag}
"""

ENTRY_POINTS = """\
[console_scripts]
vervain = vervain.__main__:main

[pytest11]
vervain = vervain.pytest_plugin
"""

# e_machine of ELF, and the machine's name in tags of wheels.
MACHINES = {62: "x86_64", 183: "aarch64"}
# Versions of glibc's symbols that have no number, and the glibc that has them first.
NAMED_VERSIONS = {"ABI_DT_RELR": (2, 36)}


def tool(*line):
    """What a program prints, in English."""
    return subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "LC_ALL": "C"}).stdout


def is_elf(path):
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def machine(path):
    """The machine that an ELF file is for, as tags of wheels have it."""
    with path.open("rb") as file:
        (number,) = struct.unpack_from("<H", file.read(20), 18)
    return MACHINES[number]


def glibc(path):
    """The oldest glibc that has all symbol versions which an ELF file names, as (2, 34)."""
    needed = [(2, 0)]
    # Only what it needs: what it exports has version definitions, which have no GLIBC in their names.
    for version in re.findall(r"Name: GLIBC_(\S+)", tool("readelf", "--version-info", "--wide", path)):
        numbers = re.fullmatch(r"(\d+)\.(\d+)(\.\d+)?", version)
        if numbers is None and version not in NAMED_VERSIONS:
            raise SystemExit(f"make-wheel.py: {path} needs GLIBC_{version}, which no tag of a wheel can say")
        needed.append(NAMED_VERSIONS.get(version) or (int(numbers[1]), int(numbers[2])))
    return max(needed)


def stand_in(link, target):
    """Puts a library in a link's place that has nothing but `target` as a dependency: wheels have no links.

    A copy would be a second libibverbs in a process that has loaded the first; this one leads to the same, by its name.
    """
    name = link.name
    link.unlink()
    folder = target.parent
    line = [
        os.environ.get("TARGET_CC") or os.environ.get("CC", "cc"),
        "-shared",
        "-nostdlib",
        "-s",
        "-o",
        link,
        f"-Wl,-soname,{name}",
        "-Wl,--no-as-needed",
    ]
    line += ["-Wl,--build-id=none", "-Wl,-z,noseparate-code", "-L", folder, f"-l:{target.name}"]
    # Its own dependencies are no concern of a file without any code.
    line += ["-Wl,--unresolved-symbols=ignore-all", "-Wl,-rpath,$ORIGIN"]
    subprocess.run(line, check=True)


def stage(build, prefix):
    """Fills `prefix` with the command and its libraries, without links and without what debuggers read."""
    if not (build / "vervain").is_file():
        raise SystemExit(f"make-wheel.py: {build}/vervain is not built: run make build")
    stripped = prefix.with_name("stripped")
    subprocess.run([ROOT / "scripts/strip.sh", build, stripped], check=True)
    (prefix / "bin").mkdir(parents=True)
    shutil.copyfile(stripped / "vervain", prefix / "bin/vervain")
    libraries = prefix / "lib/vervain"
    subprocess.run([ROOT / "scripts/stage-libs.sh", stripped, libraries], check=True)
    # Programs preload this one by its path, and what a stand-in leads to would come behind libc: one name has the file.
    sockets = libraries / "rsocket"
    (sockets / "librspreload.so.1.0.0").replace(sockets / "librspreload.so")
    (sockets / "librspreload.so.1").unlink()
    for link in [path for path in sorted(libraries.rglob("*")) if path.is_symlink()]:
        stand_in(link, link.resolve())


def entries(prefix):
    """The files of the wheel but those about itself: names in it, and paths."""
    package = ROOT / "python/vervain"
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield f"vervain/{path.relative_to(package)}", path
    for path in sorted(prefix.rglob("*")):
        if path.is_file():
            yield f"{PREFIX}/{path.relative_to(prefix)}", path


class Wheel:
    """A wheel that is written; RECORD lists each file with its digest and size."""

    def __init__(self, path, info):
        # ZIP knows no time before 1980.
        epoch = max(int(os.environ.get("SOURCE_DATE_EPOCH") or time.time()), 315532800)
        self.time = time.gmtime(epoch)[:6]
        self.info = info
        self.record = io.StringIO()
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9)

    def add(self, name, data, executable=False):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.write(f"{name},sha256={digest},{len(data)}\n")
        self._write(name, data, executable)

    def _write(self, name, data, executable=False):
        entry = zipfile.ZipInfo(name, self.time)
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.create_system = 3
        entry.external_attr = (stat.S_IFREG | (0o755 if executable else 0o644)) << 16
        self.zip.writestr(entry, data)

    def close(self):
        name = f"{self.info}/RECORD"
        self._write(name, (self.record.getvalue() + f"{name},,\n").encode())
        self.zip.close()


def main(build, packages, version):
    packages.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=packages) as folder:
        prefix = pathlib.Path(folder) / "prefix"
        stage(build, prefix)
        elf_files = [path for path in prefix.rglob("*") if path.is_file() and is_elf(path)]
        major, minor = max(map(glibc, elf_files))
        (architecture,) = set(map(machine, elf_files))
        tag = f"py3-none-manylinux_{major}_{minor}_{architecture}"
        info = f"vervain-{version}.dist-info"
        new = pathlib.Path(folder) / "wheel"
        wheel = Wheel(new, info)
        for name, path in entries(prefix):
            wheel.add(name, path.read_bytes(), executable=name.startswith(f"{PREFIX}/") and is_elf(path))
        description = (ROOT / "docs/python.md").read_text()
        wheel.add(f"{info}/METADATA", METADATA.format(version=version, description=description).encode())
        wheel.add(f"{info}/WHEEL", WHEEL.format(tag=tag).encode())
        wheel.add(f"{info}/entry_points.txt", ENTRY_POINTS.encode())
        for license in ("LICENSE-MIT", "LICENSE-APACHE"):
            wheel.add(f"{info}/licenses/{license}", (ROOT / license).read_bytes())
        wheel.close()
        path = packages / f"vervain-{version}-{tag}.whl"
        new.replace(path)
    print(path)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit("usage: make-wheel.py BUILD_DIR PACKAGE_DIR VERSION")
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3])
