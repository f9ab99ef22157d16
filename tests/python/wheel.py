"""Unpacks the wheel of `make wheel` into a folder, with the modes of its files, and holds it against its own words.

python3 wheel.py WHEEL FOLDER
"""

import base64
import csv
import hashlib
import importlib.metadata
import io
import os
import stat
import sys
import zipfile
from pathlib import Path


def unpack(path, folder):
    with zipfile.ZipFile(path) as wheel:
        for entry in wheel.infolist():
            mode = entry.external_attr >> 16
            assert stat.S_ISREG(mode), f"{entry.filename} is no file, which pip would not make"
            os.chmod(wheel.extract(entry, folder), stat.S_IMODE(mode))


def hold_to_record(folder, info):
    """Each file is listed with its digest and size, and no other: pip checks neither, and removes what is listed."""
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    rows = list(csv.reader(io.StringIO((info / "RECORD").read_text())))
    assert {name for name, _, _ in rows} == files, files ^ {name for name, _, _ in rows}
    for name, digest, size in rows:
        data = (folder / name).read_bytes()
        if name != f"{info.name}/RECORD":
            sha256 = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            assert (digest, int(size)) == (f"sha256={sha256}", len(data)), name


def main(path, folder):
    unpack(path, folder)
    name, version, *tag = path.stem.split("-")
    info = folder / f"{name}-{version}.dist-info"
    hold_to_record(folder, info)
    assert f"Tag: {'-'.join(tag)}\n" in (info / "WHEEL").read_text()
    sys.path.insert(0, str(folder))
    (found,) = importlib.metadata.distributions(name="vervain", path=[str(folder)])
    assert (found.version, found.metadata["Name"]) == (version, "vervain")
    points = {point.group: point for point in found.entry_points}
    assert points.keys() == {"console_scripts", "pytest11"}, points
    assert callable(points["console_scripts"].load())
    assert (folder / points["pytest11"].value.replace(".", "/")).with_suffix(".py").is_file()
    assert (folder / "vervain/py.typed").is_file()
    for file in (folder / "vervain/_prefix").rglob("*.so*"):
        assert os.access(file, os.X_OK), file
    assert os.access(folder / "vervain/_prefix/bin/vervain", os.X_OK)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
