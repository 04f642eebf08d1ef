"""The package's docstring is a map of its files."""

from __future__ import annotations

import re

import rlkit.training


def test_the_map_of_the_package_names_every_file_once(root):
    folder = root / "rlkit" / "training"
    files = sorted(path.name for path in folder.glob("*.py") if path.name != "__init__.py")
    assert sorted(re.findall(r"\w+\.py", rlkit.training.__doc__)) == files
