"""Copies of models that tests change."""

import shutil
from pathlib import Path


def copied(source: Path, target: Path) -> Path:
    """A new folder with the files of another one: that one may be read-only, the new one is not."""
    target.mkdir()
    for path in source.iterdir():
        shutil.copyfile(path, target / path.name)
    return target
