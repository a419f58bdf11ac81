"""How names out of files appear in error messages."""

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from sporelm.errors import ModelFileError


def quote(name: str) -> str:
    """Return a name of a file for a one-line message: quoted, escaped and clipped."""
    return repr(name if len(name) <= 80 else name[:77] + "...")


def no_such_tensor(path: Path, name: str, names: Iterable[str]) -> ModelFileError:
    """The error for a tensor that a file lacks, with the nearest of the names that it has."""
    near = get_close_matches(name[:200], list(islice(names, 10_000)), 1)
    nearest = f"; the nearest name is {quote(near[0])}" if near else ""
    return ModelFileError(f"{path} has no tensor {quote(name)}{nearest}")
