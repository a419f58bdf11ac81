"""Validation of the paths that callers pass in."""

import os
from os import PathLike
from pathlib import Path

from sporelm.errors import RequestError, safe_repr


def parse_path(name: str, value: str | PathLike[str]) -> Path:
    """Return `value` as a Path with "~" expanded. Raises RequestError, which names `name`, if it is not a path."""
    if not isinstance(value, str | PathLike) or not is_valid_path(value):
        raise RequestError(f"{name} is {safe_repr(value)}: it must be the path of a file or a folder")
    try:
        return Path(value).expanduser()
    except RuntimeError:
        raise RequestError(f"{name} is {safe_repr(value)}: there is no such home folder; give a full path") from None


def is_valid_path(value: str | PathLike[str]) -> bool:
    """Return whether a file can have this name: it is not empty, contains no NUL and can be encoded."""
    try:
        name = os.fsencode(value)
    except ValueError:
        return False
    return bool(name) and b"\0" not in name
