"""Paths that callers give."""

import os
from os import PathLike
from pathlib import Path

from sporelm.errors import RequestError, shown


def path_of(name: str, given: str | PathLike[str]) -> Path:
    """What a caller gave as a path, "~" expanded. Raises RequestError, which says `name`, for what cannot be one."""
    if not isinstance(given, str | PathLike) or not is_possible(given):
        raise RequestError(f"{name} is {shown(given)}: it must be the path of a file or a folder")
    try:
        return Path(given).expanduser()
    except RuntimeError:
        raise RequestError(f"{name} is {shown(given)}: there is no such home folder; give a full path") from None


def is_possible(given: str | PathLike[str]) -> bool:
    """Whether a system could have a file of this name: it is not empty, has no zero, and can be encoded."""
    try:
        name = os.fsencode(given)
    except ValueError:
        return False
    return bool(name) and b"\0" not in name
