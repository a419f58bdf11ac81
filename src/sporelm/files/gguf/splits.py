"""Models split over several files: how the files are named and what their headers must say."""

import re
from pathlib import Path

from sporelm.errors import ModelFileError, ModelNotFound
from sporelm.files.gguf.header import Header

NUMBER_KEY = "split.no"  # which file this is, from 0
COUNT_KEY = "split.count"
TENSORS_KEY = "split.tensors.count"  # in all files together
MAX_SPLITS = 65_535  # split.count is a u16

_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def split_path(folder: Path, stem: str, number: int, count: int) -> Path:
    """The file that holds split `number` (from 0) of `count`."""
    return folder / f"{stem}-{number + 1:05d}-of-{count:05d}.gguf"


def other_splits(path: Path, header: Header) -> list[Path]:
    """The files that follow the first one, none if the model is not split.

    Raises ModelFileError if `path` is not the first split or is not named as splits are, ModelNotFound if one is
    missing.
    """
    count = _split_value(path, header, COUNT_KEY, 1)
    number = _split_value(path, header, NUMBER_KEY, 0)
    if count <= 1:
        return []
    named = _NAME.fullmatch(path.name)
    if named is None or int(named["count"]) != count or int(named["number"]) != number + 1:
        wanted = f"NAME-{number + 1:05d}-of-{count:05d}.gguf"
        raise ModelFileError(f"{path} is split {number + 1} of {count} by its header; it must be named {wanted}")
    if number:
        first = split_path(path.parent, named["stem"], 0, count)
        raise ModelFileError(f"{path} is split {number + 1} of {count}; open the first one: {first}")
    others = [split_path(path.parent, named["stem"], i, count) for i in range(1, count)]
    for i, other in enumerate(others, 2):
        if not other.is_file():
            raise ModelNotFound(f"{other} is missing: it is split {i} of {count} of the model; put it beside the first")
    return others


def check_split(path: Path, header: Header, number: int, count: int) -> None:
    """Check that a later file is the split it is taken for. Raises ModelFileError."""
    says = (_split_value(path, header, NUMBER_KEY, 0), _split_value(path, header, COUNT_KEY, 1))
    if says != (number, count):
        raise ModelFileError(
            f"{path} says that it is split {says[0] + 1} of {says[1]}, it should be {number + 1} of {count}"
        )


def check_tensor_total(path: Path, header: Header, total: int) -> None:
    """Check the number of tensors of all splits together against what the first says. Raises ModelFileError."""
    expected = header.metadata.get(TENSORS_KEY, total)
    if expected != total:
        raise ModelFileError(
            f"{path}: {TENSORS_KEY} is {expected}, the splits hold {total}; some are not of this model"
        )


def _split_value(path: Path, header: Header, key: str, default: int) -> int:
    value = header.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_SPLITS:
        raise ModelFileError(f"{path}: {key} must be a whole number from 0 to {MAX_SPLITS}")
    return value
