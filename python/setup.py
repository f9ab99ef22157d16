"""What pyproject.toml cannot say: `pip install SOURCE/python` leaves nothing in the source tree, which may be read-only."""

import tempfile

import setuptools

with tempfile.TemporaryDirectory() as folder:
    setuptools.setup(options={"build": {"build_base": folder}, "egg_info": {"egg_base": folder}})
